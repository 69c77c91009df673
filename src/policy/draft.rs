//! A policy while its sources are added, each over the former ones.

mod workspace;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::error::{PolicyError, Problem};
use super::file::{
    At, BindTable, CellTable, ChannelTable, EnvironmentTable, ExposeTable, File, FilesystemTable,
    LimitsTable, PathOr, RequireTable, RunTable, TmpfsTable,
};
use super::load::Source;
use super::vars::utf8;
use super::{
    Bind, Cell, Channel, Entry, Environment, Expose, ExposeKind, Filesystem, Layer, Limits, LockAccess, Mode,
    Network, Origin, Policy, Require, RunScope, Seccomp, Tmpfs, View, check,
};
use crate::cli::CellOptions;
use workspace::DraftWorkspace;

/// A policy that is not whole yet: a channel's entries may be named by one
/// source and its directory by a later one.
#[derive(Default)]
pub(super) struct Draft {
    mode: Mode,
    cell: Cell,
    filesystem: Filesystem,
    run: RunScope,
    channel: DraftChannel,
    workspace: DraftWorkspace,
    environment: Environment,
    network: Network,
    seccomp: Seccomp,
    limits: Limits,
    require: Require,
    accept: Vec<String>,
}

/// Entries are as written: they count from the directory, once it is known.
#[derive(Default)]
struct DraftChannel {
    /// Where a source first spoke of a channel.
    named: Option<Origin>,
    dir: Option<Entry>,
    fifo: Vec<Entry>,
    lock: Vec<Entry>,
    lock_access: LockAccess,
    read_only: Vec<Entry>,
    execute: Vec<Entry>,
    replaceable: bool,
}

impl Draft {
    /// Adds a file; what it extends was added before.
    pub fn add_file(&mut self, file: File, source: &Source) -> Result<(), PolicyError> {
        set(&mut self.mode, file.mode);
        for name in &file.accept {
            let name = source.read(name, |name, _| check::warning(name))?;
            add(&mut self.accept, name);
        }
        self.add_cell(&file.cell, source)?;
        self.add_filesystem(&file.filesystem, source)?;
        self.add_run(&file.run, source)?;
        if let Some(channel) = &file.channel {
            self.add_channel(channel, source)?;
        }
        if let Some(workspace) = &file.workspace {
            self.workspace.add(workspace, source)?;
        }
        self.add_environment(&file.environment, source)?;
        set(&mut self.network.mode, file.network.mode);
        if let Some(filter) = &file.seccomp.filter {
            self.seccomp.filter = Some(source.read(filter, |name, _| check::name(name))?);
        }
        if let Some(file) = &file.seccomp.file {
            self.seccomp.file = Some(source.read(file, |file, origin| {
                let path = check::host_path(file.as_ref(), source.dir)?;
                Ok(Entry { path, origin })
            })?);
        }
        self.add_limits(&file.limits, source)?;
        self.add_require(&file.require, source)
    }

    fn add_cell(&mut self, table: &CellTable, source: &Source) -> Result<(), PolicyError> {
        let cell = &mut self.cell;
        if let Some(name) = &table.hostname {
            cell.hostname = source.read(name, |name, _| check::hostname(name))?;
        }
        if let Some(path) = &table.workdir {
            cell.workdir = Some(source.read(path, |path, _| check::cell_path(path.as_ref()))?);
        }
        if let Some(path) = &table.home {
            cell.home = source.read(path, |path, _| check::mount_point(path.as_ref()))?;
        }
        if let Some(text) = &table.timeout {
            cell.timeout = Some(source.read(text, |text, _| check::timeout(text))?);
        }
        if let Some(text) = &table.timeout_grace {
            cell.timeout_grace = source.read(text, |text, _| check::duration(text))?;
        }
        if let Some(text) = &table.umask {
            cell.umask = source.read(text, |text, _| check::umask(text))?;
        }
        Ok(())
    }

    fn add_filesystem(&mut self, table: &FilesystemTable, source: &Source) -> Result<(), PolicyError> {
        set(&mut self.filesystem.system, table.system);
        for entry in &table.ro_bind {
            let bind = source.read(entry, |entry, origin| bind(entry, source.dir, origin))?;
            self.filesystem.ro_bind.push(bind);
        }
        for entry in &table.bind {
            let bind = source.read(entry, |entry, origin| match bind(entry, source.dir, origin)? {
                bind if bind.overlay => Err(Problem::WritableOverlay),
                bind => Ok(bind),
            })?;
            self.filesystem.bind.push(bind);
        }
        for entry in &table.tmpfs {
            let tmpfs = source.read(entry, tmpfs)?;
            self.filesystem.tmpfs.push(tmpfs);
        }
        for entry in &table.devices {
            let device = source
                .read(entry, |path, origin| Ok(Entry { path: check::device(path.as_ref())?, origin }))?;
            self.filesystem.devices.push(device);
        }
        Ok(())
    }

    fn add_run(&mut self, table: &RunTable, source: &Source) -> Result<(), PolicyError> {
        let run = &mut self.run;
        for (list, entries) in [(&mut run.hide, &table.hide), (&mut run.create, &table.create)] {
            for entry in entries {
                list.push(source.read(entry, |path, origin| {
                    Ok(Entry { path: check::part_of_host(path.as_ref(), source.dir)?, origin })
                })?);
            }
        }
        for entry in &table.expose {
            let expose = source.read(entry, |entry, origin| expose(entry, source.dir, origin))?;
            run.expose.push(expose);
        }
        Ok(())
    }

    fn add_channel(&mut self, table: &At<ChannelTable>, source: &Source) -> Result<(), PolicyError> {
        let channel = &mut self.channel;
        channel.named.get_or_insert(source.origin(table.offset()));
        let table = table.value();
        if let Some(dir) = &table.dir {
            channel.dir = Some(source.read(dir, |dir, origin| {
                let path = check::view(dir.as_ref(), source.dir)?;
                Ok(Entry { path, origin })
            })?);
        }
        for (list, entries) in [
            (&mut channel.fifo, &table.fifo),
            (&mut channel.lock, &table.lock),
            (&mut channel.read_only, &table.read_only),
            (&mut channel.execute, &table.execute),
        ] {
            list.extend(
                entries
                    .iter()
                    .map(|entry| Entry { path: entry.value().into(), origin: source.origin(entry.offset()) }),
            );
        }
        set(&mut channel.lock_access, table.lock_access);
        set(&mut channel.replaceable, table.replaceable);
        Ok(())
    }

    fn add_environment(&mut self, table: &EnvironmentTable, source: &Source) -> Result<(), PolicyError> {
        for name in &table.pass {
            let name = source.read(name, |name, _| check::env_name(name))?;
            self.pass(name);
        }
        for (name, value) in &table.set {
            let (name, value) =
                source.read(value, |value, _| Ok((check::env_name(name)?, check::env_value(value)?)))?;
            self.set_env(name, value);
        }
        Ok(())
    }

    /// Of passing a variable and setting it, the later one counts.
    fn pass(&mut self, name: String) {
        self.environment.set.remove(&name);
        if !self.environment.pass.contains(&name) {
            self.environment.pass.push(name);
        }
    }

    fn set_env(&mut self, name: String, value: String) {
        self.environment.pass.retain(|passed| *passed != name);
        self.environment.set.insert(name, value);
    }

    fn add_limits(&mut self, table: &LimitsTable, source: &Source) -> Result<(), PolicyError> {
        let limits = &mut self.limits;
        if let Some(count) = &table.processes {
            limits.processes = source.read(count, |count, _| check::count(*count))?;
        }
        if let Some(count) = &table.open_files {
            limits.open_files = Some(source.read(count, |count, _| check::count(*count))?);
        }
        for (limit, size) in [(&mut limits.file_size, &table.file_size), (&mut limits.tmp, &table.tmp)] {
            if let Some(size) = size {
                *limit = Some(source.read(size, |size, _| check::size(size))?);
            }
        }
        Ok(())
    }

    fn add_require(&mut self, table: &RequireTable, source: &Source) -> Result<(), PolicyError> {
        if let Some(abi) = &table.landlock {
            self.require.landlock = source.read(abi, |abi, _| match abi {
                0 => Err(Problem::NoLandlockAbi),
                abi => Ok(*abi),
            })?;
        }
        for layer in &table.allow_missing {
            add(&mut self.require.allow_missing, *layer);
        }
        for layer in &table.without {
            let layer = source.read(layer, |layer, _| own_layer(*layer))?;
            add(&mut self.require.without, layer);
        }
        Ok(())
    }

    /// Adds the flags; their relative paths on the host count from `cwd`.
    pub fn add_flags(&mut self, options: &CellOptions, cwd: &Path) -> Result<(), PolicyError> {
        set(&mut self.mode, options.mode);
        if let Some(name) = &options.hostname {
            self.cell.hostname = flag("--hostname", |_| check::hostname(name))?;
        }
        if let Some(path) = &options.chdir {
            self.cell.workdir = Some(flag("--chdir", |_| check::cell_path(path))?);
        }
        if let Some(text) = &options.timeout {
            self.cell.timeout = Some(flag("--timeout", |_| check::timeout(text))?);
        }
        if let Some(text) = &options.umask {
            self.cell.umask = flag("--umask", |_| check::umask(text))?;
        }
        for text in &options.ro_bind {
            let bind = flag("--ro-bind", |origin| bind_flag(text, cwd, origin))?;
            self.filesystem.ro_bind.push(bind);
        }
        for text in &options.bind {
            let bind = flag("--bind", |origin| bind_flag(text, cwd, origin))?;
            self.filesystem.bind.push(bind);
        }
        for path in &options.tmpfs {
            let tmpfs = flag("--tmpfs", |origin| {
                if has_colon(path.as_os_str()) {
                    return Err(Problem::TmpfsColon(path.clone()));
                }
                let path = check::mount_point(path)?;
                let size = None;
                Ok(Tmpfs { path, size, origin })
            })?;
            self.filesystem.tmpfs.push(tmpfs);
        }
        for path in &options.device {
            let device = flag("--device", |origin| Ok(Entry { path: check::device(path)?, origin }))?;
            self.filesystem.devices.push(device);
        }
        for path in &options.hide {
            self.run
                .hide
                .push(flag("--hide", |origin| Ok(Entry { path: check::part_of_host(path, cwd)?, origin }))?);
        }
        for path in &options.expose {
            let expose = flag("--expose", |origin| {
                Ok(Expose {
                    path: check::view(path, cwd)?,
                    kind: ExposeKind::Directory,
                    create: false,
                    origin,
                })
            })?;
            self.run.expose.push(expose);
        }
        if let Some(dir) = &options.channel {
            self.channel.dir = Some(flag("--channel", |origin| {
                let path = check::view(dir, cwd)?;
                Ok(Entry { path, origin })
            })?);
        }
        if let Some(text) = &options.workspace {
            let by_flags_alone = options.policy.is_empty();
            flag("--workspace", |origin| self.workspace.add_flag(text, cwd, origin, by_flags_alone))?;
        }
        for text in &options.env {
            let (name, value) = flag("--env", |_| env_flag(text))?;
            match value {
                Some(value) => self.set_env(name, value),
                None => self.pass(name),
            }
        }
        set(&mut self.workspace.told, options.told);
        set(&mut self.network.mode, options.net);
        for filter in &options.seccomp {
            // No built-in filter has a name like a path.
            if filter.contains(['/', '.']) {
                self.seccomp.file = Some(flag("--seccomp", |origin| {
                    let path = check::host_path(filter.as_ref(), cwd)?;
                    Ok(Entry { path, origin })
                })?);
            } else {
                self.seccomp.filter = Some(flag("--seccomp", |_| check::name(filter))?);
            }
        }
        if let Some(count) = options.processes {
            self.limits.processes = flag("--processes", |_| check::count(count))?;
        }
        for name in &options.accept {
            add(&mut self.accept, flag("--accept", |_| check::warning(name))?);
        }
        for layer in &options.allow_missing {
            add(&mut self.require.allow_missing, *layer);
        }
        for layer in &options.without {
            let layer = flag("--without", |_| own_layer(*layer))?;
            add(&mut self.require.without, layer);
        }
        Ok(())
    }

    /// The whole policy, if it is one.
    pub fn finish(self) -> Result<Policy, PolicyError> {
        let policy = Policy {
            mode: self.mode,
            cell: self.cell,
            filesystem: self.filesystem,
            run: self.run,
            channel: self.channel.finish()?,
            workspace: self.workspace.finish()?,
            environment: self.environment,
            network: self.network,
            seccomp: self.seccomp,
            limits: self.limits,
            require: self.require,
            accept: self.accept,
        };
        one_entry_each(&policy)?;
        Ok(policy)
    }
}

impl DraftChannel {
    fn finish(self) -> Result<Option<Channel>, PolicyError> {
        let Some(Entry { path: dir, origin }) = self.dir else {
            return match self.named {
                Some(place) => Err(Problem::NoChannelDir.at(&place)),
                None => Ok(None),
            };
        };
        let below = |entries| resolve(entries, &dir, true);
        let anywhere = |entries| resolve(entries, &dir, false);
        Ok(Some(Channel {
            fifo: below(self.fifo)?,
            lock: below(self.lock)?,
            lock_access: self.lock_access,
            read_only: anywhere(self.read_only)?,
            execute: anywhere(self.execute)?,
            replaceable: self.replaceable,
            dir,
            origin,
        }))
    }
}

/// Makes a channel's entries absolute; `below`: each must lie in `dir`.
fn resolve(entries: Vec<Entry>, dir: &Path, below: bool) -> Result<Vec<Entry>, PolicyError> {
    let resolve = |Entry { path, origin }| {
        let path = check::view(&path, dir).map_err(|problem| problem.at(&origin))?;
        if below && !path.starts_with(dir) {
            let dir = dir.to_owned();
            return Err(Problem::OutsideChannel { path, dir }.at(&origin));
        }
        Ok(Entry { path, origin })
    };
    entries.into_iter().map(resolve).collect()
}

/// Refuses two entries on one place of the cell: one would cover the other.
fn one_entry_each(policy: &Policy) -> Result<(), PolicyError> {
    let filesystem = &policy.filesystem;
    let (binds, others): (Vec<View>, Vec<View>) = policy.views().partition(|view| view.role.is_bind());
    let tmpfs = filesystem.tmpfs.iter().map(|tmpfs| (&*tmpfs.path, &tmpfs.origin));
    let devices = filesystem.devices.iter().map(|device| (&*device.path, &device.origin));
    let binds = binds.iter().map(|view| (view.place, view.origin));
    let others = others.iter().map(|view| (view.place, view.origin));

    let mut taken: BTreeMap<&Path, &Origin> = BTreeMap::new();
    for (path, origin) in binds.chain(tmpfs).chain(devices).chain(others) {
        if let Some(other) = taken.insert(path, origin) {
            let (path, other) = (path.to_owned(), other.clone());
            return Err(Problem::Duplicate { path, other }.at(origin));
        }
    }
    Ok(())
}

impl Source<'_> {
    /// Reads one value; what is wrong with it is wrong at its line.
    fn read<T, R>(
        &self,
        value: &At<T>,
        read: impl FnOnce(&T, Origin) -> Result<R, Problem>,
    ) -> Result<R, PolicyError> {
        let origin = self.origin(value.offset());
        read(value.value(), origin.clone()).map_err(|problem| problem.at(&origin))
    }
}

/// Reads the value of a flag; what is wrong with it is wrong at the flag.
fn flag<R>(name: &str, read: impl FnOnce(Origin) -> Result<R, Problem>) -> Result<R, PolicyError> {
    read(name.into()).map_err(|problem| problem.at(name))
}

fn bind(entry: &PathOr<BindTable>, dir: &Path, origin: Origin) -> Result<Bind, Problem> {
    let (src, dest, optional, overlay) = match entry {
        // `a:b` could be two paths, as in the flag, or one.
        PathOr::Path(path) if path.contains(':') => return Err(Problem::Colon(path.clone())),
        PathOr::Path(path) => (path, None, false, false),
        PathOr::Table(table) => (&table.src, table.dest.as_deref(), table.optional, table.overlay),
    };
    let src = check::view(src.as_ref(), dir)?;
    let dest = match dest {
        Some(dest) => check::mount_point(dest.as_ref())?,
        None => src.clone(),
    };
    Ok(Bind { src, dest, optional, overlay, origin })
}

fn bind_flag(text: &OsStr, cwd: &Path, origin: Origin) -> Result<Bind, Problem> {
    let (src, dest) = split_colon(text);
    let src = check::view(src, cwd)?;
    let dest = match dest {
        // Docker's `:ro`, say, would be a part of the path, and the view writable.
        Some(dest) if has_colon(dest.as_os_str()) => {
            return Err(Problem::SecondColon(text.display().to_string()));
        }
        Some(dest) => check::mount_point(dest)?,
        None => src.clone(),
    };
    Ok(Bind { src, dest, optional: false, overlay: false, origin })
}

fn has_colon(text: &OsStr) -> bool {
    text.as_bytes().contains(&b':')
}

fn split_colon(text: &OsStr) -> (&Path, Option<&Path>) {
    let mut parts = text.as_bytes().splitn(2, |byte| *byte == b':');
    let mut part = || parts.next().map(|part| Path::new(OsStr::from_bytes(part)));
    (part().unwrap_or(Path::new("")), part())
}

fn tmpfs(entry: &PathOr<TmpfsTable>, origin: Origin) -> Result<Tmpfs, Problem> {
    let (path, size) = match entry {
        PathOr::Path(path) => (path, None),
        PathOr::Table(table) => (&table.path, table.size.as_deref()),
    };
    Ok(Tmpfs { path: check::mount_point(path.as_ref())?, size: size.map(check::size).transpose()?, origin })
}

fn expose(entry: &PathOr<ExposeTable>, dir: &Path, origin: Origin) -> Result<Expose, Problem> {
    let (path, kind, create) = match entry {
        PathOr::Path(path) => (path, ExposeKind::Directory, false),
        PathOr::Table(table) => (&table.path, table.kind, table.create),
    };
    Ok(Expose { path: check::view(path.as_ref(), dir)?, kind, create, origin })
}

fn env_flag(text: &OsStr) -> Result<(String, Option<String>), Problem> {
    let text = utf8(text)?;
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(check::env_value(value)?)),
        None => (text, None),
    };
    Ok((check::env_name(name)?, value))
}

fn own_layer(layer: Layer) -> Result<Layer, Problem> {
    match layer {
        Layer::Landlock | Layer::Seccomp | Layer::Network => Ok(layer),
        Layer::LandlockScope => Err(Problem::NotALayerOfItsOwn("landlock-scope")),
        Layer::Cgroup => Err(Problem::NotALayerOfItsOwn("cgroup")),
    }
}

fn set<T: Copy>(value: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *value = given;
    }
}

fn add<T: PartialEq>(list: &mut Vec<T>, item: T) {
    if !list.contains(&item) {
        list.push(item);
    }
}
