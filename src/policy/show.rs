//! A resolved policy in the words of a policy file.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::error::{PolicyError, Problem};
use super::file::{
    At, BindTable, CellTable, ChannelTable, EnvironmentTable, ExposeTable, File, FilesystemTable,
    LimitsTable, NetworkTable, PathOr, RequireTable, RunTable, SeccompTable, TmpfsTable, WorkspaceTable,
};
use super::{
    Bind, Cell, Channel, Entry, Environment, Expose, Filesystem, Network, Origin, Policy, Protect, Require,
    RunScope, Seccomp, Tmpfs, Workspace, check, vars,
};

/// The policy as TOML that loads to the same policy again.
///
/// # Errors
///
/// A path that is not UTF-8, which TOML cannot hold.
pub fn show(policy: &Policy) -> Result<String, PolicyError> {
    Ok(toml::to_string_pretty(&file(policy)?).expect("tables with string keys"))
}

/// The policy as JSON, with the keys of a policy file.
///
/// # Errors
///
/// As [`show`].
pub fn show_json(policy: &Policy) -> Result<String, PolicyError> {
    let mut value = serde_json::to_value(file(policy)?).expect("tables with string keys");
    unescape(&mut value);
    Ok(format!("{value:#}\n"))
}

/// No policy is read from JSON, so a dollar there is a dollar.
fn unescape(value: &mut Value) {
    match value {
        Value::String(text) => *text = text.replace("$$", "$"),
        Value::Array(values) => values.iter_mut().for_each(unescape),
        Value::Object(members) => members.values_mut().for_each(unescape),
        _ => {}
    }
}

/// The policy file; in its strings each dollar is doubled. Everything is taken
/// apart on the way, so that a key which is forgotten does not compile.
fn file(policy: &Policy) -> Result<File, PolicyError> {
    let Policy {
        mode,
        cell,
        filesystem,
        run,
        channel,
        workspace,
        environment,
        network,
        seccomp,
        limits,
        require,
        accept,
    } = policy;
    let Network { mode: network } = network;
    let Require { landlock, allow_missing, without } = require;
    Ok(File {
        version: 1,
        extends: Vec::new(),
        accept: accept.iter().cloned().map(At::from).collect(),
        mode: Some(*mode),
        cell: cell_table(cell)?,
        filesystem: filesystem_table(filesystem)?,
        run: run_table(run)?,
        channel: channel.as_ref().map(channel_table).transpose()?.map(At::from),
        workspace: workspace.as_ref().map(workspace_table).transpose()?.map(At::from),
        environment: environment_table(environment),
        network: NetworkTable { mode: Some(*network) },
        seccomp: seccomp_table(seccomp)?,
        limits: LimitsTable {
            processes: Some(limits.processes.into()),
            open_files: limits.open_files.map(At::from),
            file_size: limits.file_size.map(|size| check::size_text(size).into()),
            tmp: limits.tmp.map(|size| check::size_text(size).into()),
        },
        require: RequireTable {
            landlock: Some((*landlock).into()),
            allow_missing: allow_missing.clone(),
            without: without.iter().copied().map(At::from).collect(),
        },
    })
}

fn cell_table(cell: &Cell) -> Result<CellTable, PolicyError> {
    let Cell { hostname, workdir, home, timeout, timeout_grace, umask } = cell;
    let duration = |time: &Duration| At::from(check::duration_text(*time));
    let workdir = workdir.as_ref().map(|path| text(path, &"--chdir".into()));
    Ok(CellTable {
        hostname: Some(hostname.clone().into()),
        workdir: workdir.transpose()?.map(At::from),
        home: Some(text(home, &"cell.home".into())?.into()),
        timeout: timeout.as_ref().map(duration),
        timeout_grace: Some(duration(timeout_grace)),
        umask: Some(check::umask_text(*umask).into()),
    })
}

fn filesystem_table(filesystem: &Filesystem) -> Result<FilesystemTable, PolicyError> {
    let Filesystem { system, ro_bind, bind: writable, tmpfs: fresh, devices } = filesystem;
    Ok(FilesystemTable {
        system: Some(*system),
        ro_bind: each(ro_bind, bind)?,
        bind: each(writable, bind)?,
        tmpfs: each(fresh, tmpfs)?,
        devices: each(devices, entry)?,
    })
}

fn run_table(run: &RunScope) -> Result<RunTable, PolicyError> {
    let RunScope { hide, expose: exposed, create } = run;
    Ok(RunTable { hide: each(hide, entry)?, expose: each(exposed, expose)?, create: each(create, entry)? })
}

fn environment_table(environment: &Environment) -> EnvironmentTable {
    let Environment { pass, set } = environment;
    EnvironmentTable {
        pass: pass.iter().map(|name| vars::escape(name).into()).collect(),
        set: set.iter().map(|(name, value)| (name.clone(), vars::escape(value).into())).collect(),
    }
}

fn seccomp_table(seccomp: &Seccomp) -> Result<SeccompTable, PolicyError> {
    let Seccomp { filter, file } = seccomp;
    Ok(SeccompTable {
        filter: filter.as_deref().map(|name| vars::escape(name).into()),
        file: file.as_ref().map(entry).transpose()?.map(At::from),
    })
}

fn bind(bind: &Bind) -> Result<PathOr<BindTable>, PolicyError> {
    let Bind { src, dest, optional, overlay, origin } = bind;
    let (optional, overlay, is_same) = (*optional, *overlay, src == dest);
    let src = text(src, origin)?;
    if is_same && !optional && !overlay && !src.contains(':') {
        return Ok(PathOr::Path(src));
    }
    Ok(PathOr::Table(BindTable { src, dest: Some(text(dest, origin)?), optional, overlay }))
}

fn tmpfs(tmpfs: &Tmpfs) -> Result<PathOr<TmpfsTable>, PolicyError> {
    let Tmpfs { path, size, origin } = tmpfs;
    let path = text(path, origin)?;
    Ok(match size {
        None => PathOr::Path(path),
        Some(size) => PathOr::Table(TmpfsTable { path, size: Some(check::size_text(*size)) }),
    })
}

fn expose(expose: &Expose) -> Result<PathOr<ExposeTable>, PolicyError> {
    let Expose { path, kind, create, origin } = expose;
    Ok(PathOr::Table(ExposeTable { path: text(path, origin)?, kind: *kind, create: *create }))
}

fn channel_table(channel: &Channel) -> Result<ChannelTable, PolicyError> {
    let Channel { dir, fifo, lock, lock_access, read_only, execute, replaceable, origin } = channel;
    Ok(ChannelTable {
        dir: Some(text(dir, origin)?.into()),
        fifo: each(fifo, entry)?,
        lock: each(lock, entry)?,
        lock_access: Some(*lock_access),
        read_only: each(read_only, entry)?,
        execute: each(execute, entry)?,
        replaceable: Some(*replaceable),
    })
}

fn workspace_table(workspace: &Workspace) -> Result<WorkspaceTable, PolicyError> {
    let Workspace { dir, at, access, protect: protected, protect_missing, told, origin } = workspace;
    Ok(WorkspaceTable {
        dir: Some(text(dir, origin)?.into()),
        at: Some(text(at, origin)?.into()),
        access: Some(*access),
        protect: Some(each(protected, protect)?),
        protect_missing: Some(*protect_missing),
        told: Some(*told),
    })
}

fn protect(protect: &Protect) -> Result<String, PolicyError> {
    let Protect { path, is_directory, origin } = protect;
    let end = if *is_directory { "/" } else { "" };
    text(path, origin).map(|path| path + end)
}

fn entry(entry: &Entry) -> Result<String, PolicyError> {
    let Entry { path, origin } = entry;
    text(path, origin)
}

fn each<T, R>(
    entries: &[T],
    write: impl Fn(&T) -> Result<R, PolicyError>,
) -> Result<Vec<At<R>>, PolicyError> {
    entries.iter().map(|entry| write(entry).map(At::from)).collect()
}

fn text(path: &Path, origin: &Origin) -> Result<String, PolicyError> {
    let text = path.to_str().map(vars::escape);
    text.ok_or_else(|| Problem::Unwritable(path.to_owned()).at(origin))
}
