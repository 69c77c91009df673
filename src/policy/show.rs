//! A resolved policy in the words of a policy file.

use std::path::Path;

use serde_json::Value;

use super::error::{PolicyError, Problem};
use super::file::{
    At, BindTable, CellTable, ChannelTable, EnvironmentTable, ExposeTable, File, FilesystemTable,
    NetworkTable, PathOr, RequireTable, RunTable, SeccompTable, TmpfsTable, WorkspaceTable,
};
use super::{Bind, Channel, Entry, Expose, Origin, Policy, Protect, Tmpfs, Workspace, check, vars};

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

/// The policy file; in its strings each dollar is doubled.
fn file(policy: &Policy) -> Result<File, PolicyError> {
    let Policy { mode, cell, filesystem, run, channel, workspace, environment, network, seccomp, require } =
        policy;
    let duration = |time| At::from(humantime::format_duration(time).to_string());
    let workdir = cell.workdir.as_ref();
    let workdir = workdir.map(|path| text(path, &"--chdir".into()));
    Ok(File {
        version: 1,
        extends: Vec::new(),
        mode: Some(*mode),
        cell: CellTable {
            hostname: Some(cell.hostname.clone().into()),
            workdir: workdir.transpose()?.map(At::from),
            home: Some(text(&cell.home, &"cell.home".into())?.into()),
            timeout: cell.timeout.map(duration),
            timeout_grace: Some(duration(cell.timeout_grace)),
        },
        filesystem: FilesystemTable {
            system: Some(filesystem.system),
            ro_bind: each(&filesystem.ro_bind, bind)?,
            bind: each(&filesystem.bind, bind)?,
            tmpfs: each(&filesystem.tmpfs, tmpfs)?,
        },
        run: RunTable {
            hide: each(&run.hide, entry)?,
            expose: each(&run.expose, expose)?,
            create: each(&run.create, entry)?,
        },
        channel: channel.as_ref().map(channel_table).transpose()?.map(At::from),
        workspace: workspace.as_ref().map(workspace_table).transpose()?.map(At::from),
        environment: EnvironmentTable {
            pass: environment.pass.iter().map(|name| vars::escape(name).into()).collect(),
            set: environment
                .set
                .iter()
                .map(|(name, value)| (name.clone(), vars::escape(value).into()))
                .collect(),
        },
        network: NetworkTable { mode: Some(network.mode) },
        seccomp: SeccompTable {
            filter: seccomp.filter.as_deref().map(|name| vars::escape(name).into()),
            file: seccomp
                .file
                .as_ref()
                .map(|file| text(&file.path, &file.origin))
                .transpose()?
                .map(Into::into),
        },
        require: RequireTable {
            landlock: Some(require.landlock.into()),
            allow_missing: require.allow_missing.clone(),
            without: require.without.iter().copied().map(At::from).collect(),
        },
    })
}

fn bind(bind: &Bind) -> Result<PathOr<BindTable>, PolicyError> {
    let src = text(&bind.src, &bind.origin)?;
    if bind.src == bind.dest && !bind.optional && !bind.overlay && !src.contains(':') {
        return Ok(PathOr::Path(src));
    }
    let dest = Some(text(&bind.dest, &bind.origin)?);
    Ok(PathOr::Table(BindTable { src, dest, optional: bind.optional, overlay: bind.overlay }))
}

fn tmpfs(tmpfs: &Tmpfs) -> Result<PathOr<TmpfsTable>, PolicyError> {
    let path = text(&tmpfs.path, &tmpfs.origin)?;
    Ok(match tmpfs.size {
        None => PathOr::Path(path),
        Some(size) => PathOr::Table(TmpfsTable { path, size: Some(check::size_text(size)) }),
    })
}

fn expose(expose: &Expose) -> Result<PathOr<ExposeTable>, PolicyError> {
    Ok(PathOr::Table(ExposeTable {
        path: text(&expose.path, &expose.origin)?,
        kind: expose.kind,
        create: expose.create,
    }))
}

fn channel_table(channel: &Channel) -> Result<ChannelTable, PolicyError> {
    Ok(ChannelTable {
        dir: Some(text(&channel.dir, &channel.origin)?.into()),
        fifo: each(&channel.fifo, entry)?,
        lock: each(&channel.lock, entry)?,
        lock_access: Some(channel.lock_access),
        read_only: each(&channel.read_only, entry)?,
        execute: each(&channel.execute, entry)?,
        replaceable: Some(channel.replaceable),
    })
}

fn workspace_table(workspace: &Workspace) -> Result<WorkspaceTable, PolicyError> {
    Ok(WorkspaceTable {
        dir: Some(text(&workspace.dir, &workspace.origin)?.into()),
        at: Some(text(&workspace.at, &workspace.origin)?.into()),
        access: Some(workspace.access),
        protect: Some(each(&workspace.protect, protect)?),
        protect_missing: Some(workspace.protect_missing),
    })
}

fn protect(protect: &Protect) -> Result<String, PolicyError> {
    let end = if protect.is_directory { "/" } else { "" };
    text(&protect.path, &protect.origin).map(|path| path + end)
}

fn entry(entry: &Entry) -> Result<String, PolicyError> {
    text(&entry.path, &entry.origin)
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
