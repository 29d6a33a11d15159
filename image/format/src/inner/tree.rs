//! A directory tree, walked through descriptors in a fixed order, and a UUID derived from it.
//!
//! Why here: another user may change the tree while it is packed, so a path that is looked up twice
//! may lead to two files, the second one outside. Each entry is opened once, in its open parent
//! directory, without following a link; all its attributes are read from that descriptor.
//!
//! Must stay true: the order is that of sorted paths; at most [`OPEN_MAX`] directories are open,
//! however deep the tree. A directory that has to be opened again is reached from the root without
//! following a link, and must be the same one.

use super::InnerError;
use super::rules::Rules;
use rustix::fs::{FileType, Mode, OFlags, RawDir, Stat, fstat, openat};
use rustix::io::Errno;
use sidecore_sys::folder::Folder;
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// An entry of the tree, open.
pub(super) struct Visit<'w> {
    /// Its path inside the tree.
    pub(super) path: &'w Path,
    /// Number of directories between the root and it.
    pub(super) depth: usize,
    pub(super) stat: &'w Stat,
    /// Directories and regular files are open for reading, all others with `O_PATH`.
    pub(super) file: BorrowedFd<'w>,
}

/// Visits every entry below `root`, sorted by path. Symbolic links are not followed.
pub(super) fn walk(
    root: &Folder,
    visit: impl FnMut(&Visit<'_>) -> Result<(), InnerError>,
) -> Result<(), InnerError> {
    walk_by(root, &Rules::default(), visit)
}

/// The same, but for what the rules leave out.
pub(super) fn walk_by(
    root: &Folder,
    rules: &Rules,
    mut visit: impl FnMut(&Visit<'_>) -> Result<(), InnerError>,
) -> Result<(), InnerError> {
    let mut walk = Walk {
        root,
        rules,
        levels: Vec::new(),
        path: PathBuf::new(),
        listing: Vec::with_capacity(LISTING_BYTES),
    };
    // A file description of its own, so that its listing position is not shared with other users of
    // `root`.
    let again = openat(root, ".", DIRECTORY, Mode::empty());
    let opened = again.and_then(|file| fstat(&file).map(|stat| (file, stat)));
    let (file, stat) = opened.map_err(|errno| walk.failed(errno.into()))?;
    walk.enter(file, &stat)?;
    while let Some(level) = walk.levels.last_mut() {
        // The names are sorted downwards, so that the next one is at the end.
        let Some(name) = level.names.pop() else {
            walk.levels.pop();
            walk.path.pop();
            continue;
        };
        if level.folder.is_none() {
            walk.open_again()?;
        }
        walk.path.push(&name.name);
        let depth = walk.levels.len() - 1;
        let folder = walk.levels.last().and_then(|level| level.folder.as_ref());
        let opened = folder.map(|folder| open(folder.as_fd(), &name.name, name.kind));
        let Some(Some((file, stat))) = opened.transpose().map_err(|error| walk.failed(error))?
        else {
            return Err(walk.changed());
        };
        visit(&Visit {
            path: &walk.path,
            depth,
            stat: &stat,
            file: file.as_fd(),
        })?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => walk.enter(file, &stat)?,
            _ => drop(walk.path.pop()),
        }
    }
    Ok(())
}

/// The state of a walk.
struct Walk<'r> {
    root: &'r Folder,
    rules: &'r Rules,
    /// The directories from the root down to the current one.
    levels: Vec<Level>,
    /// Path of the last one, or of the entry that is being visited.
    path: PathBuf,
    /// Buffer for a part of a listing; empty between uses.
    listing: Vec<u8>,
}

struct Level {
    /// `None` if too many are open.
    folder: Option<OwnedFd>,
    identity: (u64, u64),
    /// Entries that were not visited yet, the next one last.
    names: Vec<Name>,
}

struct Name {
    name: OsString,
    /// Its kind when the directory was listed.
    kind: FileType,
}

impl Walk<'_> {
    /// Lists the directory at the path.
    fn enter(&mut self, folder: OwnedFd, stat: &Stat) -> Result<(), InnerError> {
        let mut names = Vec::new();
        // One buffer for all levels: a listing is complete before the next one begins.
        let mut listing = std::mem::take(&mut self.listing);
        let mut entries = RawDir::new(&folder, listing.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(|errno| self.failed(errno.into()))?;
            let name = entry.file_name().to_bytes();
            let is_dots = name == b"." || name == b"..";
            let path = || self.path.join(OsStr::from_bytes(name));
            let is_excluded = self.rules.may_exclude() && self.rules.excludes_itself(&path());
            if !is_dots && !is_excluded {
                names.push(Name {
                    name: OsString::from_vec(name.to_vec()),
                    kind: entry.file_type(),
                });
            }
        }
        self.listing = listing;
        names.sort_unstable_by(|a, b| b.name.cmp(&a.name));
        self.levels.push(Level {
            folder: Some(folder),
            identity: identity(stat),
            names,
        });
        // The outermost one is closed: it is needed again last.
        if let Some(far) = self.levels.len().checked_sub(OPEN_MAX + 1) {
            self.levels[far].folder = None;
        }
        Ok(())
    }

    /// Opens the innermost directories again, from the root down.
    fn open_again(&mut self) -> Result<(), InnerError> {
        // As many as may be open: the walk goes up from here, and each would be needed soon.
        let first = self.levels.len().saturating_sub(OPEN_MAX);
        // The root's own level has no name.
        let names: Vec<&OsStr> = self.path.iter().collect();
        let above: PathBuf = names[..first].iter().collect();
        let mut here = match first {
            0 => openat(self.root, ".", DIRECTORY, Mode::empty()).map_err(io::Error::from),
            _ => self.root.beneath(&above).map(Folder::into_descriptor),
        };
        for at in first..self.levels.len() {
            let folder = here.map_err(|error| self.failed(error))?;
            let stat = fstat(&folder).map_err(|errno| self.failed(errno.into()))?;
            // Reached by names again: another user may have put another directory there.
            if identity(&stat) != self.levels[at].identity {
                return Err(self.changed());
            }
            here = match names.get(at) {
                Some(name) => openat(&folder, *name, DIRECTORY, Mode::empty()).map_err(Into::into),
                None => Err(Errno::NOENT.into()),
            };
            self.levels[at].folder = Some(folder);
        }
        Ok(())
    }

    fn failed(&self, source: io::Error) -> InnerError {
        InnerError::Directory {
            path: self.root.path().join(&self.path),
            source,
        }
    }

    fn changed(&self) -> InnerError {
        InnerError::Changed {
            path: self.root.path().join(&self.path),
        }
    }
}

/// Opens an entry as its current kind; `None` if it changes with each attempt. Pipes and devices
/// are opened only with `O_PATH`: this neither waits for a writer nor calls a driver.
fn open(
    folder: BorrowedFd<'_>,
    name: &OsStr,
    listed: FileType,
) -> io::Result<Option<(OwnedFd, Stat)>> {
    let mut kind = listed;
    for _ in 0..ATTEMPTS_MAX {
        let flags = match kind {
            FileType::Directory => DIRECTORY,
            FileType::RegularFile => REGULAR,
            _ => OTHER,
        };
        let file = match openat(folder, name, flags, Mode::empty()) {
            Ok(file) => file,
            // The entry's kind has changed meanwhile.
            Err(Errno::LOOP | Errno::NOTDIR | Errno::NXIO) if flags != OTHER => {
                kind = FileType::Unknown;
                continue;
            }
            Err(errno) => return Err(errno.into()),
        };
        let stat = fstat(&file)?;
        let found = FileType::from_raw_mode(stat.st_mode);
        if found == kind || !matches!(found, FileType::Directory | FileType::RegularFile) {
            return Ok(Some((file, stat)));
        }
        kind = found;
    }
    Ok(None)
}

/// Device and inode.
pub(super) fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// A UUID (RFC 9562, version 8) from the names, kinds and sizes in the tree: the same for equal
/// trees, wherever they lie, and almost certainly different for others.
pub(super) fn uuid(root: &Folder) -> Result<String, InnerError> {
    let mut identity = Identity::default();
    walk(root, |visit| {
        identity.add(visit.path, visit.stat);
        Ok(())
    })?;
    let mut text = String::new();
    for (index, byte) in identity.uuid().into_iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

/// The UUID of a tree, computed from its entries in order.
#[derive(Default)]
pub(super) struct Identity(Xxh3);

impl Identity {
    /// Adds an entry by its path inside the tree.
    pub(super) fn add(&mut self, path: &Path, stat: &Stat) {
        self.0.update(path.as_os_str().as_bytes());
        let bytes = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => 0,
            _ => u64::try_from(stat.st_size).unwrap_or_default(),
        };
        self.0.update(&stat.st_mode.to_le_bytes());
        self.0.update(&bytes.to_le_bytes());
        self.0.update(&[0]);
    }

    pub(super) fn uuid(&self) -> [u8; 16] {
        uuid_of(&self.0)
    }
}

/// The UUID that a hash stands for.
pub(super) fn uuid_of(hash: &Xxh3) -> [u8; 16] {
    // RFC 9562, section 5.8: version 8 in bits 48 to 51, the variant in bits 64 and 65.
    let bits = hash.digest128() & !(0xF << 76) & !(0x3 << 62) | 0x8 << 76 | 0x2 << 62;
    bits.to_be_bytes()
}

/// Maximum number of open directories; descriptor limits begin at hundreds.
const OPEN_MAX: usize = 32;
/// Attempts to open an entry that changes its kind each time.
const ATTEMPTS_MAX: usize = 8;
/// Bytes of a listing that are read at once, as in readdir(3).
const LISTING_BYTES: usize = 32 << 10;
const OTHER: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const REGULAR: OFlags = OFlags::RDONLY
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

#[cfg(test)]
mod tests {
    //! Trees that are deep or wide, and trees that change while they are walked.

    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn paths(root: &Path) -> Vec<PathBuf> {
        let folder = Folder::open(root).unwrap();
        let mut found = Vec::new();
        walk(&folder, |visit| {
            assert_eq!(visit.path.iter().count(), visit.depth + 1);
            found.push(visit.path.to_owned());
            Ok(())
        })
        .unwrap();
        found
    }

    /// Descriptors of this process that are open in `root`.
    fn open_in(root: &Path) -> usize {
        let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
        let targets = links.filter_map(|link| fs::read_link(link.path()).ok());
        targets.filter(|target| target.starts_with(root)).count()
    }

    #[test]
    fn entries_come_in_the_order_of_their_paths() {
        let root = tempfile::tempdir().unwrap();
        for name in ["a/b/c", "a.b/c", "a-b", "b/a", "a/z"] {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, name).unwrap();
        }
        let found = paths(root.path());
        assert!(found.is_sorted(), "{found:?}");
        assert_eq!(found.len(), 9);
    }

    #[test]
    fn a_deep_tree_takes_few_descriptors() {
        let root = tempfile::tempdir().unwrap();
        let depth = 300;
        let mut here = Folder::open(root.path()).unwrap();
        for _ in 0..depth {
            // On both sides of the path down, so that the walk returns to each directory.
            for name in ["long name of a directory", "a", "z"] {
                rustix::fs::mkdirat(&here, name, Mode::RWXU).unwrap();
            }
            here = here.beneath(Path::new("long name of a directory")).unwrap();
        }
        let folder = Folder::open(root.path()).unwrap();
        let mut count = 0;
        let mut open_max = 0;
        walk(&folder, |visit| {
            count += 1;
            if visit.depth % 50 == 0 {
                open_max = open_max.max(open_in(root.path()));
            }
            Ok(())
        })
        .unwrap();
        assert_eq!(count, 3 * depth);
        assert!(
            (OPEN_MAX..OPEN_MAX + 8).contains(&open_max),
            "{open_max} are open"
        );
    }

    #[test]
    fn a_directory_that_becomes_a_link_is_a_link() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "secret").unwrap();
        let tree = root.path();
        for name in ["a", "b", "c"] {
            fs::create_dir(tree.join(name)).unwrap();
        }
        let folder = Folder::open(tree).unwrap();
        let mut kinds = Vec::new();
        walk(&folder, |visit| {
            if visit.path == Path::new("a") {
                // Both were listed as directories.
                fs::rename(tree.join("b"), tree.join("away")).unwrap();
                symlink(outside.path(), tree.join("b")).unwrap();
                fs::remove_dir(tree.join("c")).unwrap();
                rustix::fs::mknodat(
                    rustix::fs::CWD,
                    tree.join("c"),
                    FileType::Fifo,
                    Mode::RUSR,
                    0,
                )
                .unwrap();
            }
            kinds.push((
                visit.path.to_owned(),
                FileType::from_raw_mode(visit.stat.st_mode),
            ));
            Ok(())
        })
        .unwrap();
        let expected = [
            ("a", FileType::Directory),
            ("b", FileType::Symlink),
            ("c", FileType::Fifo),
        ];
        assert_eq!(
            kinds,
            expected.map(|(name, kind)| (PathBuf::from(name), kind))
        );
    }

    #[test]
    fn a_directory_that_was_exchanged_is_not_come_back_to() {
        let root = tempfile::tempdir().unwrap();
        let tree = root.path();
        let deep: PathBuf = (0..OPEN_MAX + 4).map(|_| "d").collect();
        fs::create_dir_all(tree.join(&deep)).unwrap();
        for name in ["d", "z"] {
            fs::create_dir_all(tree.join("d").join(name)).unwrap();
        }
        let folder = Folder::open(tree).unwrap();
        let error = walk(&folder, |visit| {
            if visit.path == deep {
                fs::rename(tree.join("d"), tree.join("away")).unwrap();
                fs::create_dir_all(tree.join("d/z")).unwrap();
            }
            Ok(())
        })
        .unwrap_err();
        assert!(matches!(error, InnerError::Changed { .. }), "{error}");
    }
}
