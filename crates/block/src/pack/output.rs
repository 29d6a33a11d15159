//! A file that appears under its name only when it is whole.
//!
//! Why here: Ctrl-C, a crash or a full disk during `pack` must not leave half an image where a
//! whole one is expected. The bytes go to a file without a name (`O_TMPFILE`) in the same
//! directory, which the kernel drops if we die; where the file system has no such files, to a
//! hidden name beside the target, removed when this value is dropped.
//! Must stay true: the target's name is touched by nothing but one `link` or `rename`, after the
//! bytes are on disk.

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// Treatment of a file that already has the target's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Replace a regular file; refuse all else.
    Replace,
    /// Refuse.
    Keep,
    /// Replace a regular file, and write straight onto a block device.
    Force,
}

/// A file being written.
#[derive(Debug)]
pub(super) struct Output {
    file: File,
    target: PathBuf,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Has no name yet.
    Nameless,
    /// Has this name until it is finished.
    Hidden(PathBuf),
    /// Is the target itself (a block device).
    Straight,
}

impl Output {
    /// Opens an output that will be called `target`.
    pub(super) fn create(target: &Path, existing: Existing) -> io::Result<Self> {
        match fs::metadata(target) {
            Ok(found) if found.is_file() && existing != Existing::Keep => {}
            Ok(found) if found.is_file() => {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "it exists already, and --no-clobber was given",
                ));
            }
            Ok(found) if found.is_dir() => {
                return Err(io::Error::new(
                    io::ErrorKind::IsADirectory,
                    "it is a directory; name a file in it",
                ));
            }
            Ok(_) if existing == Existing::Force => {
                return Ok(Self {
                    file: OpenOptions::new().read(true).write(true).open(target)?,
                    target: target.to_owned(),
                    kind: Kind::Straight,
                });
            }
            Ok(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "it is no regular file; give --force to write straight onto it, \
                     which destroys what it holds",
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let directory = directory_of(target);
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let (file, kind) = match rustix::fs::open(directory, flags, Mode::from_raw_mode(0o666)) {
            Ok(file) => (File::from(file), Kind::Nameless),
            // Not every file system has them, and old kernels take the flag for O_DIRECTORY.
            Err(
                rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR | rustix::io::Errno::INVAL,
            ) => {
                let hidden = hidden_name(target);
                let mut options = OpenOptions::new();
                let file = options
                    .read(true)
                    .write(true)
                    .create_new(true)
                    .open(&hidden)?;
                (file, Kind::Hidden(hidden))
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Self {
            file,
            target: target.to_owned(),
            kind,
        })
    }

    /// The file behind it.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// True when the bytes that are never written read as zeros.
    pub(super) fn starts_empty(&self) -> bool {
        !matches!(self.kind, Kind::Straight)
    }

    /// Puts the bytes on disk and gives them their name.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        match std::mem::replace(&mut self.kind, Kind::Straight) {
            Kind::Straight => return Ok(()),
            Kind::Hidden(hidden) => {
                fs::rename(&hidden, &self.target).inspect_err(|_| {
                    let _ = fs::remove_file(&hidden);
                })?;
            }
            Kind::Nameless => self.link()?,
        }
        // The name is on disk only when the directory is.
        File::open(directory_of(&self.target))?.sync_all()
    }

    fn link(&self) -> io::Result<()> {
        let nameless = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let link =
            |name: &Path| rustix::fs::linkat(CWD, &nameless, CWD, name, AtFlags::SYMLINK_FOLLOW);
        match link(&self.target) {
            Err(rustix::io::Errno::EXIST) => {
                // A link does not replace; a rename does.
                let hidden = hidden_name(&self.target);
                link(&hidden)?;
                fs::rename(&hidden, &self.target).inspect_err(|_| {
                    let _ = fs::remove_file(&hidden);
                })
            }
            other => Ok(other?),
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Kind::Hidden(hidden) = &self.kind {
            let _ = fs::remove_file(hidden);
        }
    }
}

/// A file without a name in `directory`, or one with a name that is removed at once.
pub(crate) fn nameless(directory: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(directory, flags, Mode::from_raw_mode(0o600)) {
        Ok(file) => Ok(File::from(file)),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR | rustix::io::Errno::INVAL) => {
            let name = hidden_name(&directory.join("inner"));
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&name)?;
            fs::remove_file(&name)?;
            Ok(file)
        }
        Err(error) => Err(error.into()),
    }
}

fn directory_of(target: &Path) -> &Path {
    match target.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    }
}

fn hidden_name(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    // Unique among the processes of this machine; a name left over by a crash of another is not
    // taken over.
    let mut number = 0;
    loop {
        let hidden = format!(".{name}.{}.{number}.tmp", std::process::id());
        let hidden = target.with_file_name(hidden);
        if fs::symlink_metadata(&hidden).is_err() || number == HIDDEN_NAMES_MAX {
            return hidden;
        }
        number += 1;
    }
}

const HIDDEN_NAMES_MAX: u32 = 1000;
