//! Files made in a folder: contents, and then what the image says of them.
//!
//! Must stay true: every call goes through the descriptor of the folder in which the file lies, and
//! no link is followed: nothing outside of the target changes, whatever other users do there. A
//! file is made new or not at all. One that replaces another has a hidden name until it is whole,
//! so that a full disk or a damaged image leaves the old one.

use super::{Options, Outcome};
use crate::{FilesError, Kind, Node, Piece, Tree};
use parking_lot::Mutex;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use sidecore_sys::folder::Folder;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A new file on its way to its name.
pub(super) struct Making {
    /// The name that it gets.
    pub(super) name: OsString,
    /// The name that it has until then, where an old file has its own.
    hidden: Option<OsString>,
}

impl Making {
    /// The name that it has now.
    pub(super) fn current(&self) -> &OsStr {
        self.hidden.as_deref().unwrap_or(&self.name)
    }

    /// Gives it its name. An old file goes with that; its other names keep its contents.
    pub(super) fn settle(&self, folder: &Folder) -> Result<(), FilesError> {
        match &self.hidden {
            Some(hidden) => folder
                .rename(hidden, &self.name)
                .map_err(FilesError::Output),
            None => Ok(()),
        }
    }

    /// Removes it. Best effort: the error that led here is the one to report.
    pub(super) fn give_up(&self, folder: &Folder) {
        folder.remove_file(self.current()).ok();
    }
}

/// Makes `name` in `folder` a new regular file; its contents are still zeros.
pub(super) fn create(
    folder: &Folder,
    name: &OsStr,
    node: &Node,
    options: &Options,
) -> io::Result<(Making, File)> {
    // EXCL: an open of what is there would write through a link or into another user's file.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    // Set-id bits only once the file has its owner; attributes can be set while it may be written.
    let mode = Mode::from_raw_mode(u32::from(node.permissions & 0o777 | OWN_BITS));
    let (making, file) = begin(folder, name, options, |name| {
        fs::openat(folder, name, flags, mode)
    })?;
    Ok((making, file.into()))
}

/// Bytes that may be written.
pub(super) struct Budget<'w> {
    pub(super) written: &'w AtomicU64,
    pub(super) bytes_max: u64,
}

impl Budget<'_> {
    /// Counts bytes before they are written.
    fn take(&self, len: usize) -> io::Result<()> {
        let len = u64::try_from(len).unwrap_or(u64::MAX);
        // Relaxed: only the sum counts.
        // Taken before the write: threads that race past the limit together still stop.
        let before = self.written.fetch_add(len, Ordering::Relaxed);
        match before.saturating_add(len) > self.bytes_max {
            // No error of the system's has this kind without a number.
            true => Err(io::ErrorKind::QuotaExceeded.into()),
            false => Ok(()),
        }
    }
}

/// A further name of a file.
pub(super) struct Further {
    pub(super) first: PathBuf,
    pub(super) directory: PathBuf,
    pub(super) name: OsString,
    pub(super) node: Node,
}

impl Further {
    pub(super) fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }
}

/// Files of several names of which one was not made, by their numbers: true where that name alone
/// was the reason, since something else has it.
#[derive(Default)]
pub(super) struct Unmade(Mutex<HashMap<u64, bool>>);

impl Unmade {
    pub(super) fn note(&self, node: &Node, error: &FilesError) {
        if node.links > 1 {
            let is_taken = match error {
                FilesError::Output(error) => matches!(
                    error.kind(),
                    io::ErrorKind::AlreadyExists | io::ErrorKind::IsADirectory
                ),
                _ => false,
            };
            self.0.lock().insert(node.id, is_taken);
        }
    }

    pub(super) fn is_taken(&self, id: u64) -> Option<bool> {
        self.0.lock().get(&id).copied()
    }
}

/// Gives the file at `first` its further name.
pub(super) fn further(
    into: &Folder,
    first: &Path,
    named: &Further,
    options: &Options,
) -> io::Result<()> {
    let from = into.beneath(first.parent().unwrap_or(Path::new("")))?;
    let name = first.file_name().unwrap_or_default();
    let to = into.beneath(&named.directory)?;
    link((&from, name), (&to, &named.name), options)
}

/// Fills a part of a file.
pub(super) fn fill(
    tree: &dyn Tree,
    node: &Node,
    range: Range<u64>,
    file: &File,
    budget: &Budget<'_>,
) -> Result<(), FilesError> {
    let (mut at, end) = (range.start, range.end);
    let mut ends_in_hole = false;
    tree.contents(node, range, &mut |piece| {
        match piece {
            Piece::Bytes(bytes) => {
                budget.take(bytes.len())?;
                file.write_all_at(bytes, at)?;
                at += u64::try_from(bytes.len()).unwrap_or(0);
                ends_in_hole = false;
            }
            Piece::Hole(len) => {
                at += len;
                ends_in_hole = true;
            }
        }
        Ok(())
    })?;
    // Nothing was written at the end, so the file would be too short; holes in between need no
    // call.
    if ends_in_hole && end == node.size_bytes {
        file.set_len(end).map_err(FilesError::Output)?;
    }
    match at == end {
        true => Ok(()),
        false => Err(FilesError::damaged(node.id, "a file's contents")),
    }
}

/// Makes anything but a regular file or a directory.
pub(super) fn make(
    tree: &dyn Tree,
    folder: &Folder,
    name: &OsStr,
    node: &Node,
    options: &Options,
) -> Result<Making, FilesError> {
    let made = |(making, ()): (Making, ())| making;
    if node.kind == Kind::Link {
        let target = tree.link(node)?;
        let link = |name: &OsStr| fs::symlinkat(&*target, folder, name);
        let begun = begin(folder, name, options, link);
        return begun.map(made).map_err(FilesError::Output);
    }
    let kind = match node.kind {
        Kind::CharacterDevice => FileType::CharacterDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::Fifo => FileType::Fifo,
        _ => FileType::Socket,
    };
    let mode = Mode::from_raw_mode(u32::from(node.permissions & 0o777));
    let device = match node.kind {
        Kind::CharacterDevice | Kind::BlockDevice => fs::makedev(node.device.0, node.device.1),
        _ => 0,
    };
    let make = |name: &OsStr| fs::mknodat(folder, name, kind, mode, device);
    let begun = begin(folder, name, options, make);
    begun.map(made).map_err(FilesError::Output)
}

/// Makes a further name of a file.
pub(super) fn link(
    from: (&Folder, &OsStr),
    to: (&Folder, &OsStr),
    options: &Options,
) -> io::Result<()> {
    let link = |name: &OsStr| fs::linkat(from.0, from.1, to.0, name, AtFlags::empty());
    let (making, ()) = begin(to.0, to.1, options, link)?;
    let Some(hidden) = &making.hidden else {
        return Ok(());
    };
    let renamed = to.0.rename(hidden, to.1);
    // Also after success: between two names of one file a rename does nothing.
    to.0.remove_file(hidden).ok();
    renamed
}

/// Makes a directory that only this user enters for now. One that is there already will do.
pub(super) fn make_directory(folder: &Folder, name: &OsStr) -> io::Result<()> {
    match fs::mkdirat(folder, name, Mode::RWXU) {
        Ok(()) => Ok(()),
        // That it is a directory, and no link to one, shows when it is opened.
        Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Calls `make` with the name for a new file: a hidden one where an old file has its name and may
/// be replaced.
fn begin<T>(
    folder: &Folder,
    name: &OsStr,
    options: &Options,
    make: impl Fn(&OsStr) -> rustix::io::Result<T>,
) -> io::Result<(Making, T)> {
    let making = |hidden| Making {
        name: name.to_owned(),
        hidden,
    };
    match make(name) {
        Err(Errno::EXIST) if options.overwrite => {
            // Found now, and not by the rename after all of a file was written.
            let is_directory =
                |stat: fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
            if folder.stat_of(name).is_ok_and(is_directory) {
                return Err(Errno::ISDIR.into());
            }
            let hidden = folder.unused_name();
            let made = make(&hidden)?;
            Ok((making(Some(hidden)), made))
        }
        made => Ok((making(None), made?)),
    }
}

/// Gives a regular file or a directory, open as `file`, what its node says.
pub(super) fn finish(
    tree: &dyn Tree,
    node: &Node,
    file: impl AsFd,
    options: &Options,
    outcome: &mut Outcome,
) -> Result<(), FilesError> {
    let output = |errno: Errno| FilesError::Output(errno.into());
    let owner = options.owner_of(node);
    // First: a change of owner clears set-id bits and `security.capability` (chown(2),
    // capabilities(7)).
    if let Some((uid, gid)) = owner {
        let (uid, gid) = (fs::Uid::from_raw(uid), fs::Gid::from_raw(gid));
        fs::fchown(&file, Some(uid), Some(gid)).map_err(output)?;
    }
    for (name, value) in tree.attributes(node)? {
        let set = fs::fsetxattr(&file, &*name, &value, XattrFlags::empty());
        outcome.attribute(&name, set)?;
    }
    let permissions = options.permissions_of(node, outcome);
    // What the creation could not give: bits of the umask, set-id bits, and what chown took away.
    let is_directory = node.kind == Kind::Directory;
    let is_made_so =
        permissions & (0o7000 | options.umask) == 0 && permissions & OWN_BITS == OWN_BITS;
    if is_directory || !is_made_so {
        let mode = Mode::from_raw_mode(permissions.into());
        fs::fchmod(&file, mode).map_err(output)?;
    }
    // Last: each of the calls above changes a time.
    fs::futimens(&file, &times(node)).map_err(output)
}

/// The same for what cannot be opened.
pub(super) fn finish_named(
    tree: &dyn Tree,
    folder: &Folder,
    name: &OsStr,
    node: &Node,
    options: &Options,
    outcome: &mut Outcome,
) -> Result<(), FilesError> {
    let output = |errno: Errno| FilesError::Output(errno.into());
    if let Some((uid, gid)) = options.owner_of(node) {
        let (uid, gid) = (fs::Uid::from_raw(uid), fs::Gid::from_raw(gid));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        fs::chownat(folder, name, Some(uid), Some(gid), flags).map_err(output)?;
    }
    let attributes = tree.attributes(node)?;
    if !attributes.is_empty() {
        // The calls for attributes take no folder's descriptor, but its path in /proc.
        let place = folder.reach(name);
        for (name, value) in attributes {
            let set = fs::lsetxattr(&place, &*name, &value, XattrFlags::empty());
            outcome.attribute(&name, set)?;
        }
    }
    let permissions = options.permissions_of(node, outcome);
    if node.kind != Kind::Link && permissions & (0o7000 | options.umask) != 0 {
        // A link that was put in the place of the device would be followed: it is not touched.
        let mode = Mode::from_raw_mode(permissions.into());
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = fs::openat(folder, name, flags, Mode::empty()).map_err(output)?;
        let stat = fs::fstat(&file).map_err(output)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            let place = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
            fs::chmod(place, mode).map_err(output)?;
        }
    }
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    fs::utimensat(folder, name, &times(node), flags).map_err(output)
}

/// This process's mask of permissions; the call that reads it would change it.
pub(super) fn umask() -> Option<u16> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Umask:"))?;
    u16::from_str_radix(line.trim(), 8).ok()
}

/// Permissions that this user needs to fill a file: read and write.
const OWN_BITS: u16 = 0o600;

fn times(node: &Node) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: fs::UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: node.mtime_s,
            tv_nsec: node.mtime_ns.into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use crate::tests::small_and_large;
    use crate::walk::Wanted;
    use crate::{FilesError, Options, extract};
    use sidecore_sys::folder::Folder;
    use std::fs;
    use std::sync::atomic::AtomicU64;

    /// The limit ends the work as a full disk does.
    #[test]
    fn a_file_that_cannot_be_replaced_stays() {
        let out = tempfile::tempdir().unwrap();
        let sizes = || ["a", "b"].map(|name| fs::metadata(out.path().join(name)).unwrap().len());
        let count = || fs::read_dir(out.path()).unwrap().count();
        for name in ["a", "b"] {
            fs::write(out.path().join(name), "old").unwrap();
        }
        let tree = small_and_large(|_| ());
        let into = Folder::open(out.path()).unwrap();
        let mut options = Options::new(2);
        (options.overwrite, options.bytes_max) = (true, 10);
        let run = |options| {
            extract(
                &tree,
                &mut Wanted::new(&[]).unwrap(),
                &into,
                options,
                &AtomicU64::new(0),
            )
        };
        assert!(matches!(run(options), Err(FilesError::Limit(10))));
        assert_eq!((sizes(), count()), ([3, 3], 2));
        options.bytes_max = 1 << 30;
        run(options).unwrap();
        assert_eq!((sizes(), count()), ([100, 24 << 20], 2));
    }
}
