//! An output file that gets its name only when it is complete.
//!
//! Why here: Ctrl-C, a crash or a full disk during `pack` must not leave half an image where a
//! whole one is expected. The bytes are written to a file without a name (`O_TMPFILE`) in the same
//! directory, which the kernel drops if the process dies. If the file system does not support such
//! files, a file with an unpredictable name is used, and removed when this value is dropped.
//! Must stay true: the directory is opened once, and the target's name in it is changed only by one
//! `link` or `rename`, after the bytes are on disk. So another user that replaces the directory, or
//! puts a link in the target's place, cannot redirect the output.

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, openat};
use rustix::io::Errno;
use sidecore_sys::folder::{Folder, open_named};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Treatment of a file that already has the target's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Replace a regular file; refuse all others.
    Replace,
    /// Refuse.
    Keep,
    /// Replace a regular file, and write directly to a block device.
    Force,
}

impl Existing {
    /// Of two wishes, the first of which wins: to keep what is there, and to write to devices.
    #[must_use]
    pub fn of(keeps: bool, forces: bool) -> Self {
        match (keeps, forces) {
            (true, _) => Self::Keep,
            (_, true) => Self::Force,
            _ => Self::Replace,
        }
    }
}

/// A file being written.
#[derive(Debug)]
pub struct Output {
    file: File,
    folder: Folder,
    name: OsString,
    kind: Kind,
    /// Device and inode of the existing file with the target's name.
    replaces: Option<(u64, u64)>,
    existing: Existing,
}

#[derive(Debug)]
enum Kind {
    /// Has no name yet.
    Nameless,
    /// Has this name until it is finished.
    Hidden(OsString),
    /// Is the target itself (a block device).
    Straight,
}

impl Output {
    /// Opens an output that will be named `target`.
    pub fn create(target: &Path, existing: Existing) -> io::Result<Self> {
        let refused = |kind, text: &str| Err(io::Error::new(kind, text));
        // O_PATH: the file is looked at without the right to read it, and a device is not opened.
        let found = match open_named(target, OFlags::PATH, 0) {
            Ok(found) => Some(found.metadata()?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let is_straight = match &found {
            None => false,
            Some(found) if found.is_file() && existing != Existing::Keep => false,
            Some(found) if found.is_file() => {
                return refused(io::ErrorKind::AlreadyExists, CLOBBERS);
            }
            Some(found) if found.is_dir() => {
                return refused(
                    io::ErrorKind::IsADirectory,
                    "it is a directory; name a file in it",
                );
            }
            Some(_) if existing == Existing::Force => true,
            Some(_) => {
                return refused(
                    io::ErrorKind::AlreadyExists,
                    "it is no regular file; give --force to write straight onto it, \
                     which destroys what it holds",
                );
            }
        };
        // From here on the name is used only in this open directory.
        let (folder, name) = Folder::of_file(target)?;
        let (file, kind) = if is_straight {
            let file = open_named(target, OFlags::RDWR, 0)?;
            // Nothing is written to a file that has replaced the block device.
            if file.metadata()?.is_file() {
                return Err(io::Error::other("it has just become another file"));
            }
            (file, Kind::Straight)
        } else {
            // Closed to others, where the file that it replaces is: that may hold a secret.
            let mode = found
                .as_ref()
                .map_or(0o666, |found| found.mode() & 0o666 | 0o600);
            match without_name(&folder, mode)? {
                Some(file) => (file, Kind::Nameless),
                None => {
                    let (hidden, file) = folder.temporary(mode)?;
                    (file, Kind::Hidden(hidden))
                }
            }
        };
        Ok(Self {
            file,
            folder,
            name,
            kind,
            replaces: found.map(|found| (found.dev(), found.ino())),
            existing,
        })
    }

    /// The file behind it.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Device and inode of the file that it replaces.
    pub fn replaces(&self) -> Option<(u64, u64)> {
        self.replaces
    }

    /// True when bytes that are never written read as zeros.
    pub fn starts_empty(&self) -> bool {
        !matches!(self.kind, Kind::Straight)
    }

    /// Writes the bytes to disk and gives the file its name.
    pub fn finish(mut self) -> io::Result<()> {
        // Before the name: after a crash the name must not stand for an empty file.
        self.file.sync_all()?;
        match std::mem::replace(&mut self.kind, Kind::Straight) {
            Kind::Straight => return Ok(()),
            Kind::Hidden(hidden) => self.take_place(&hidden)?,
            Kind::Nameless => self.link()?,
        }
        // The name is durable only after the directory is synced.
        self.folder.sync()
    }

    fn link(&self) -> io::Result<()> {
        // linkat(2): AT_EMPTY_PATH would need CAP_DAC_READ_SEARCH.
        let nameless = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let link = |name: &OsStr| {
            rustix::fs::linkat(CWD, &nameless, &self.folder, name, AtFlags::SYMLINK_FOLLOW)
        };
        match link(&self.name) {
            Err(Errno::EXIST) if self.existing == Existing::Keep => {
                Err(io::Error::new(io::ErrorKind::AlreadyExists, CLOBBERS))
            }
            Err(Errno::EXIST) => {
                // A link does not replace an existing file; a rename does.
                let hidden = self.folder.unused_name();
                link(&hidden)?;
                self.take_place(&hidden)
            }
            other => Ok(other?),
        }
    }

    fn take_place(&self, hidden: &OsStr) -> io::Result<()> {
        let renamed = match self.existing {
            Existing::Keep => self.take_free_place(hidden),
            Existing::Replace | Existing::Force => self.folder.rename(hidden, &self.name),
        };
        renamed.inspect_err(|_| {
            let _ = self.folder.remove_file(hidden);
        })
    }

    /// Gives the file its name unless another file has it, which may have come since this one was
    /// created.
    fn take_free_place(&self, hidden: &OsStr) -> io::Result<()> {
        let folder = &self.folder;
        let clobbers = || io::Error::new(io::ErrorKind::AlreadyExists, CLOBBERS);
        let flags = RenameFlags::NOREPLACE;
        match rustix::fs::renameat_with(folder, hidden, folder, &self.name, flags) {
            Ok(()) => return Ok(()),
            Err(Errno::EXIST) => return Err(clobbers()),
            // Not every file system knows the flag.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
            Err(error) => return Err(error.into()),
        }
        match rustix::fs::linkat(folder, hidden, folder, &self.name, AtFlags::empty()) {
            Ok(()) => folder.remove_file(hidden),
            Err(Errno::EXIST) => Err(clobbers()),
            // Nor has every one hard links: without both, a look is the best there is.
            Err(_) => match is_there(folder.stat_of(&self.name))? {
                true => Err(clobbers()),
                false => folder.rename(hidden, &self.name),
            },
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Kind::Hidden(hidden) = &self.kind {
            let _ = self.folder.remove_file(hidden);
        }
    }
}

/// A file without a name in `directory`, or one with a name that is removed at once.
pub fn nameless(directory: &Path) -> io::Result<File> {
    let folder = Folder::open(directory)?;
    if let Some(file) = without_name(&folder, 0o600)? {
        return Ok(file);
    }
    let (hidden, file) = folder.temporary(0o600)?;
    folder.remove_file(&hidden)?;
    Ok(file)
}

/// A file without a name in `folder`; `None` if its file system does not support that.
fn without_name(folder: &Folder, mode: u32) -> io::Result<Option<File>> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match openat(folder, ".", flags, Mode::from_raw_mode(mode)) {
        Ok(file) => Ok(Some(file.into())),
        // Not every file system supports it, and old kernels mistake the flag for O_DIRECTORY.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// True if a look has found a file, false if there is none. A look that fails shows neither.
fn is_there<T>(look: io::Result<T>) -> io::Result<bool> {
    match look {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

const CLOBBERS: &str = "it exists already, and --no-clobber was given";

#[cfg(test)]
mod tests {
    use super::*;

    /// An output on a file system without nameless files.
    fn hidden(directory: &Path, existing: Existing) -> Output {
        let folder = Folder::open(directory).unwrap();
        let (name, file) = folder.temporary(0o666).unwrap();
        Output {
            file,
            folder,
            name: "image".into(),
            kind: Kind::Hidden(name),
            replaces: None,
            existing,
        }
    }

    #[test]
    fn a_look_that_fails_shows_no_free_place() {
        let directory = tempfile::tempdir().unwrap();
        let folder = Folder::open(directory.path()).unwrap();
        std::fs::write(directory.path().join("disk"), "").unwrap();
        let look = |name: &str| is_there(folder.stat_of(OsStr::new(name)));
        assert!(look("disk").unwrap());
        assert!(!look("other").unwrap());
        // Not a directory, and longer than a name can be.
        look("disk/other").unwrap_err();
        look(&"n".repeat(300)).unwrap_err();
    }

    #[test]
    fn a_file_that_came_meanwhile_is_kept_where_it_is_to_be() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("image");
        hidden(directory.path(), Existing::Keep).finish().unwrap();
        assert_eq!(std::fs::read(&place).unwrap(), b"");
        std::fs::write(&place, "another's").unwrap();
        let refused = hidden(directory.path(), Existing::Keep).finish();
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&place).unwrap(), b"another's");
        hidden(directory.path(), Existing::Replace)
            .finish()
            .unwrap();
        assert_eq!(std::fs::read(&place).unwrap(), b"");
        // Nothing else is left there.
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_file_is_as_closed_as_the_one_that_it_replaces() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("image");
        std::fs::write(&place, "secret").unwrap();
        for mode in [0o600, 0o400, 0o000] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&place, mode).unwrap();
            let output = Output::create(&place, Existing::Replace).unwrap();
            output.finish().unwrap();
            let found = place.metadata().unwrap();
            assert_eq!((found.len(), found.mode() & 0o777), (0, 0o600));
            std::fs::write(&place, "secret").unwrap();
        }
    }
}
