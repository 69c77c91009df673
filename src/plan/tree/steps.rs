//! From entries to steps: each mount point is made where it is ours to make,
//! and was looked up where it is not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::{Content, Hidden, TMPFS, Tree, VIEW, hide, overlap, proc, text, text_of};
use crate::error::Error;
use crate::host::File;
use crate::plan::landlock::{access, allow};
use crate::plan::step::{Stage, Step};
use crate::plan::{Prepare, Text};
use crate::policy::Policy;
use crate::sys::mount::{Attributes, READ_ONLY};

/// The mounts and the Landlock rules, in the order of the kernel's needs.
pub(in crate::plan) struct Built {
    pub mounts: Vec<Step>,
    /// Covers come last: a mask shows a device that is bound after `/proc`.
    pub covers: Vec<Step>,
    pub rules: Vec<Step>,
    /// What a layer holds alone where two should.
    pub notes: Vec<String>,
    /// What the launcher has to make on the host first.
    pub prepare: Vec<Prepare>,
    /// How each hidden path is hidden.
    pub hidden: Vec<Hidden>,
    /// The overlay's own directory beside the workspace.
    pub work_directory: Option<PathBuf>,
}

/// Orders the entries of a tree; `with_rights` where Landlock grants on files.
pub(super) fn order(
    mut tree: Tree,
    policy: &Policy,
    with_rights: bool,
    hidden: Vec<Hidden>,
) -> Result<Built, Error> {
    let mut steps = Steps::new(&tree);
    let (mut rules, mut notes) = (Vec::new(), std::mem::take(&mut tree.notes));
    let mut directories = BTreeSet::from([PathBuf::from("/")]);
    tree.each(|place, node, around| {
        let holder = around.last();
        if let Some(holder) = holder {
            overlap::check(&tree, policy, (place, node), *holder)?;
        }
        notes.extend(overlap::note(&tree, policy, (place, node), with_rights));
        notes.extend(overlap::note_of_nested(policy, (place, node), holder.copied()));

        let is_ours = holder.is_none_or(|(_, holder)| !holder.content.shows_what_is_there());
        if is_ours && !matches!(node.content, Content::Cover { .. }) {
            make_parents(place, &mut directories, &mut steps.mounts)?;
            make_place(place, &node.content, &mut steps.mounts)?;
        }
        // Made, or found in a view: it stands from here on.
        if node.content.is_directory() {
            directories.insert(place.to_owned());
        }
        steps.mount(place, &node.content)?;
        if with_rights {
            let abi = tree.host.landlock;
            let wanted = access(abi, node.grant, node.content.is_directory());
            // Rights add up along a path: what is granted above need not be said twice.
            let above = around.iter().fold(0, |above, (_, outer)| above | access(abi, outer.grant, true));
            if wanted & !above != 0 {
                rules.push(allow(text(place)?, wanted));
            }
        }
        Ok(())
    })?;
    steps.covers.extend(proc::covers(policy.mode));
    let (mounts, covers) = steps.finish()?;
    let Tree { prepare, work_directory, .. } = tree;
    Ok(Built { mounts, covers, rules, notes, prepare, hidden, work_directory })
}

fn make_parents(place: &Path, made: &mut BTreeSet<PathBuf>, steps: &mut Vec<Step>) -> Result<(), Error> {
    let Some(parent) = place.parent() else { return Ok(()) };
    if made.contains(parent) {
        return Ok(());
    }
    make_parents(parent, made, steps)?;
    made.insert(parent.to_owned());
    steps.push(make_directory(relative(parent), 0o755)?);
    Ok(())
}

fn make_place(place: &Path, content: &Content, steps: &mut Vec<Step>) -> Result<(), Error> {
    let path = text(relative(place))?;
    steps.push(match content {
        Content::Symlink { target } => Step::MakeSymlink { path, target: text(target)? },
        Content::File { content } => Step::MakeFile { path, content: content.clone() },
        content if content.is_directory() => Step::MakeDirectory { path, mode: 0o755 },
        _ => Step::MakeFile { path, content: Default::default() },
    });
    Ok(())
}

fn make_directory(path: impl AsRef<Path>, mode: u32) -> Result<Step, Error> {
    Ok(Step::MakeDirectory { path: text(path.as_ref())?, mode })
}

/// How many entries a directory of an upper layer has at least.
const LEAST_ENTRIES: usize = 8;

/// The steps so far.
struct Steps {
    /// What the names of padding begin with.
    salt: u128,
    /// How many of them there are.
    padding: usize,
    /// Where overlays are put together. Their mount options name its
    /// directories, so that they name nothing of the host.
    scratch: PathBuf,
    /// How many there are.
    overlays: usize,
    mounts: Vec<Step>,
    covers: Vec<Step>,
    /// Made read-only when all that stands in them is mounted.
    sealed: Vec<PathBuf>,
}

impl Steps {
    fn new(tree: &Tree) -> Steps {
        let mut scratch = "scratch".to_owned();
        // A name in the root that nothing else has.
        while tree.nodes.keys().any(|place| relative(place).starts_with(&scratch)) {
            scratch.push('-');
        }
        Steps {
            salt: tree.host.salt,
            padding: 0,
            scratch: scratch.into(),
            overlays: 0,
            mounts: Vec::new(),
            covers: Vec::new(),
            sealed: Vec::new(),
        }
    }

    fn mount(&mut self, place: &Path, content: &Content) -> Result<(), Error> {
        let path = text(relative(place))?;
        let stage = stage(place);
        match content {
            Content::Bind { source, file, to_be_made, may_vanish, attributes } => {
                self.mounts.push(Step::Bind {
                    source: text(source)?,
                    identity: (!to_be_made).then_some(file.identity),
                    may_vanish: *may_vanish,
                    path,
                    attributes: *attributes,
                    stage,
                })
            }
            Content::Overlay { source, file, upper } => {
                let scratch = self.scratch()?;
                let (over, view) = (scratch.join("over"), scratch.join("view"));
                self.mounts.extend([make_directory(&over, file.mode)?, make_directory(&view, 0o755)?]);
                self.upper(&over, upper)?;
                self.layer(source, file, &view, READ_ONLY | VIEW, stage)?;
                // Without xino a file keeps the number of its inode.
                let layers = format!("{}:{}", over.display(), view.display());
                let options = [("lowerdir", layers), ("xino", "off".to_owned())];
                self.fresh("overlay", &options, path, READ_ONLY | VIEW, stage)?;
            }
            Content::Stubs { source, file, parent: (parent, beside), work, stubs } => {
                let scratch = self.scratch()?;
                let [over, around, upper, work_link] =
                    ["over", "around", "upper", "work"].map(|name| scratch.join(name));
                self.mounts.extend([make_directory(&over, file.mode)?, make_directory(&around, 0o755)?]);
                self.stubs(&over, stubs)?;
                // The kernel wants the upper directory and the work directory on
                // one mount, so their parent is mounted; the links keep its names
                // out of the mount table.
                self.layer(parent, beside, &around, VIEW, stage)?;
                for (link, target) in [(&upper, source), (&work_link, work)] {
                    let target = Path::new("around").join(target.file_name().unwrap_or_default());
                    self.mounts.push(Step::MakeSymlink { path: text(link)?, target: text(&target)? });
                }
                let inside = around.join(source.file_name().unwrap_or_default());
                self.mounts.push(Step::MustBe { path: text(&inside)?, identity: file.identity });
                let options = [("lowerdir", &over), ("upperdir", &upper), ("workdir", &work_link)];
                let options = options.map(|(key, path)| (key, path.display().to_string()));
                // Its marks in the `user.` namespace: `trusted.` is the host's root's.
                let options = [&options[..], &[("userxattr", String::new())]].concat();
                self.fresh("overlay", &options, path, VIEW, stage)?;
            }
            Content::Sealed => {
                self.fresh(TMPFS, &[("mode", "0755".to_owned())], path, VIEW, stage)?;
                self.sealed.push(place.to_owned());
            }
            Content::Fresh { filesystem, options, attributes } => {
                self.fresh(filesystem, options, path, *attributes, stage)?;
            }
            Content::Cover { source, inode, attributes, .. } => self.covers.push(Step::Cover {
                source: text(relative(source))?,
                inode: *inode,
                path,
                attributes: *attributes,
            }),
            Content::Directory | Content::Symlink { .. } | Content::File { .. } => {}
        }
        Ok(())
    }

    fn fresh(
        &mut self,
        filesystem: &str,
        options: &[(&str, String)],
        path: Text,
        attributes: Attributes,
        stage: Stage,
    ) -> Result<(), Error> {
        let options = options.iter().map(|(key, value)| Ok((text_of(*key)?, text_of(value.as_str())?)));
        self.mounts.push(Step::Mount {
            filesystem: text_of(filesystem)?,
            options: options.collect::<Result<Vec<(Text, Text)>, Error>>()?,
            path,
            attributes,
            stage,
        });
        Ok(())
    }

    /// A view of the host in the scratch directory, for an overlay to be made of.
    fn layer(
        &mut self,
        source: &Path,
        file: &File,
        at: &Path,
        attributes: Attributes,
        stage: Stage,
    ) -> Result<(), Error> {
        let identity = Some(file.identity);
        let (source, path) = (text(source)?, text(at)?);
        self.mounts.push(Step::Bind { source, identity, may_vanish: false, path, attributes, stage });
        Ok(())
    }

    /// A directory to put one overlay together in.
    fn scratch(&mut self) -> Result<PathBuf, Error> {
        if self.overlays == 0 {
            self.mounts.push(make_directory(&self.scratch, 0o700)?);
            let place = text(&self.scratch)?;
            // statfs(2) of an overlay would tell how many inodes its upper layers have,
            // but not where nobody counts them.
            let options = [("mode", "0700".to_owned()), ("nr_inodes", "0".to_owned())];
            self.fresh(TMPFS, &options, place, VIEW, Stage::Mounts)?;
        }
        let directory = self.scratch.join(self.overlays.to_string());
        self.overlays += 1;
        self.mounts.push(make_directory(&directory, 0o755)?);
        Ok(directory)
    }

    /// An upper layer. The size of a directory there counts its entries, and
    /// stat(2) in the cell tells it: whiteouts of names that nobody can guess fill
    /// each one up, so that it does not count what is hidden. The directories come
    /// first, as their inodes are numbered in this order.
    fn upper(&mut self, over: &Path, upper: &hide::Upper) -> Result<(), Error> {
        let mut entries = BTreeMap::from([(Path::new(""), 0)]);
        for (below, entry) in upper {
            if let hide::Over::Directory(mode) = entry {
                entries.entry(below).or_default();
                self.mounts.push(make_directory(over.join(below), *mode)?);
            }
            *entries.entry(below.parent().unwrap_or(below)).or_default() += 1;
        }
        for (below, entry) in upper {
            let path = text(&over.join(below))?;
            match entry {
                hide::Over::Directory(_) => {}
                hide::Over::Whiteout => self.mounts.push(Step::MakeWhiteout { path }),
                hide::Over::File(content) => {
                    self.mounts.push(Step::MakeFile { path, content: content.clone() });
                }
            }
        }
        for (directory, count) in entries.into_iter().filter(|_| !upper.is_empty()) {
            let full = usize::next_power_of_two(count).max(LEAST_ENTRIES);
            for _ in count..full {
                self.padding += 1;
                let name = format!("{:032x}{:x}", self.salt, self.padding);
                let path = text(&over.join(directory).join(name))?;
                self.mounts.push(Step::MakeWhiteout { path });
            }
        }
        Ok(())
    }

    fn stubs(&mut self, over: &Path, stubs: &[(PathBuf, bool)]) -> Result<(), Error> {
        let mut made = BTreeSet::from([over.to_owned()]);
        for (below, is_directory) in stubs {
            let path = over.join(below);
            make_parents(&path, &mut made, &mut self.mounts)?;
            self.mounts.push(match is_directory {
                true => make_directory(&path, 0o755)?,
                false => Step::MakeFile { path: text(&path)?, content: Default::default() },
            });
        }
        Ok(())
    }

    /// The mounts, and what comes behind all of them.
    fn finish(mut self) -> Result<(Vec<Step>, Vec<Step>), Error> {
        for place in &self.sealed {
            self.covers.push(Step::Seal { path: text(relative(place))? });
        }
        if self.overlays > 0 {
            let path = text(&self.scratch)?;
            self.mounts.push(Step::Detach { path: path.clone() });
            self.mounts.push(Step::RemoveDirectory { path });
        }
        Ok((self.mounts, self.covers))
    }
}

fn stage(place: &Path) -> Stage {
    if place.starts_with("/proc") {
        Stage::Proc
    } else if place.starts_with("/dev") {
        Stage::Dev
    } else {
        Stage::Mounts
    }
}

/// A place of the cell as the child names it: from the new root, which is its
/// working directory.
fn relative(place: &Path) -> &Path {
    place.strip_prefix("/").unwrap_or(place)
}
