//! Folders reached and used through descriptors.
//!
//! Why here: a path that is looked up twice may name two things, and a folder that another user can
//! change may be exchanged between a check and a use. Every component that keeps files in a folder
//! (caches, state, sockets, checkpoints, kernels) opens it once, by this module, and reaches its
//! contents through the descriptor. Must stay true: what was checked is what is used; no function
//! here but [`Folder::open`] follows a symbolic link; nothing is written under its final name
//! before all of it is there. Any thread may call any of them; they wait for the file system only.
//! Source: openat2(2), open(2), renameat(2), path_resolution(7).

use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, RawMode, ResolveFlags, Stat};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// A folder, open.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    descriptor: OwnedFd,
}

/// A folder that cannot be opened, or in which another user could exchange what lies there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// A system call failed.
    #[error("{call} {}: {source}", .place.display())]
    Call {
        /// The call's purpose, as a verb.
        call: &'static str,
        /// The path at which it failed.
        place: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A component of the path belongs to another user.
    #[error(
        "{} belongs to user {uid}, who could exchange what lies in it; \
         choose a folder of your own, or give this one to you (chown) or to root",
        .place.display()
    )]
    Owner {
        /// The component.
        place: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// A component of the path can be changed by other users.
    #[error(
        "{} can be changed by other users (mode {mode:04o}); close it: chmod go-w {}",
        .place.display(), .place.display()
    )]
    Writable {
        /// The component.
        place: PathBuf,
        /// Its permissions.
        mode: u32,
    },
}

impl FolderError {
    /// The same as an error of input and output, for callers that have no better type.
    #[must_use]
    pub fn into_io(self) -> io::Error {
        let kind = match &self {
            Self::Call { source, .. } => source.kind(),
            Self::Owner { .. } | Self::Writable { .. } => io::ErrorKind::PermissionDenied,
        };
        io::Error::new(kind, self)
    }
}

impl Folder {
    /// Opens the folder at a path that the user named. Links on the way are followed: use it for
    /// folders whose place the user answers for.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open(path: &Path) -> io::Result<Self> {
        let descriptor = fs::openat(CWD, path, FOLDER, Mode::empty())?;
        Ok(Self::from_descriptor(path.to_owned(), descriptor))
    }

    /// A folder that is open already; `path` is for messages.
    #[must_use]
    pub fn from_descriptor(path: PathBuf, descriptor: OwnedFd) -> Self {
        Self { path, descriptor }
    }

    /// Opens a folder that only root and this user can change. Each component from `/` down is
    /// opened through the one above it, and checked: its owner is root or this user, and no other
    /// user may write to it. Above the folder a sticky component (`/tmp`) will do: others cannot
    /// exchange what is ours there.
    ///
    /// Links in the path are resolved before the walk; a link that appears afterwards fails it.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn open_trusted(path: &Path) -> Result<Self, FolderError> {
        let resolved = path.canonicalize().map_err(failed("opening", path))?;
        Self::walk(path, &resolved, None)
    }

    /// The same, and makes the components that are missing, with `mode` less the umask.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn create_trusted(path: &Path, mode: RawMode) -> Result<Self, FolderError> {
        let absolute = std::path::absolute(path).map_err(failed("resolving", path))?;
        // The part that exists is resolved, links included; the rest is made below it.
        let mut missing = Vec::new();
        let mut existing = absolute.as_path();
        let resolved = loop {
            match existing.canonicalize() {
                Ok(resolved) => break resolved,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let (Some(name), Some(above)) = (existing.file_name(), existing.parent())
                    else {
                        return Err(failed("resolving", path)(error));
                    };
                    missing.push(name.to_owned());
                    existing = above;
                }
                Err(error) => return Err(failed("opening", path)(error)),
            }
        };
        let whole = missing
            .iter()
            .rev()
            .fold(resolved, |at, name| at.join(name));
        Self::walk(path, &whole, Some(mode))
    }

    fn walk(path: &Path, resolved: &Path, make: Option<RawMode>) -> Result<Self, FolderError> {
        let mut place = PathBuf::from("/");
        let root = fs::openat(CWD, "/", FOLDER, Mode::empty());
        let mut here = root.map_err(failed("opening", &place))?;
        let names = resolved
            .components()
            .filter_map(|component| match component {
                Component::Normal(name) => Some(name),
                _ => None,
            });
        for name in names {
            check(here.as_fd(), &place, true)?;
            place.push(name);
            here = match (open_folder(here.as_fd(), name), make) {
                (Err(Errno::NOENT), Some(mode)) => {
                    match fs::mkdirat(&here, name, Mode::from_raw_mode(mode)) {
                        // Another process may have made it meanwhile: it is checked as any.
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return Err(failed("making", &place)(error)),
                    }
                    open_folder(here.as_fd(), name).map_err(failed("opening", &place))?
                }
                (opened, _) => opened.map_err(failed("opening", &place))?,
            };
        }
        check(here.as_fd(), &place, false)?;
        Ok(Self::from_descriptor(path.to_owned(), here))
    }

    /// Its path, as it was given: for messages only.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path by which this process reaches `name` in this folder, wherever the folder has been
    /// moved to: for calls that take no descriptor, as bind(2) of a local socket does. `name`
    /// itself is looked up anew, links included.
    #[must_use]
    pub fn reach(&self, name: &OsStr) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.descriptor.as_raw_fd())).join(name)
    }

    /// Owner, mode and kind of the folder itself.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub fn stat(&self) -> io::Result<Stat> {
        Ok(fs::fstat(&self.descriptor)?)
    }

    /// Opens a folder below this one. No link is followed, and `..` does not lead out of it.
    ///
    /// # Errors
    /// Those of openat2(2); `ELOOP` where there is a link on the way.
    pub fn beneath(&self, relative: &Path) -> io::Result<Self> {
        let descriptor = open_beneath(self.as_fd(), relative, FOLDER, Mode::empty())?;
        Ok(Self::from_descriptor(self.path.join(relative), descriptor))
    }

    /// Opens a file below this folder with the flags of openat(2). No link is followed, and a pipe
    /// without a writer does not hold the caller up.
    ///
    /// # Errors
    /// Those of openat2(2); `ELOOP` where there is a link on the way.
    pub fn open_file(&self, relative: &Path, flags: OFlags, mode: RawMode) -> io::Result<File> {
        let flags = flags | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(mode);
        Ok(open_beneath(self.as_fd(), relative, flags, mode)?.into())
    }

    /// Opens a regular file below this folder for reading.
    ///
    /// # Errors
    /// As [`Folder::open_file`]; `InvalidInput` where it is no regular file.
    pub fn read_file(&self, relative: &Path) -> io::Result<File> {
        let file = self.open_file(relative, OFlags::RDONLY, 0)?;
        let stat = fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            let text = format!(
                "{} is not a regular file",
                self.path.join(relative).display()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(file)
    }

    /// The names in it, in no order.
    ///
    /// # Errors
    /// Those of getdents(2).
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in fs::Dir::read_from(&self.descriptor)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    /// Makes a new file with a name that another user cannot guess, for writing and reading.
    ///
    /// # Errors
    /// Those of openat(2).
    pub fn temporary(&self, mode: RawMode) -> io::Result<(OsString, File)> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        loop {
            let name = OsString::from(format!(".sidecore-{:016x}", unguessable()));
            match self.open_file(Path::new(&name), flags, mode) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                opened => return opened.map(|file| (name, file)),
            }
        }
    }

    /// Gives `name` new contents: all of them, on the disk, or, where anything fails, none. The
    /// file is written under another name first; `mode` is that of a new file, less the umask.
    ///
    /// # Errors
    /// Those of `write` and of the file system; then the file is as it was.
    pub fn replace(
        &self,
        name: &OsStr,
        mode: RawMode,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> io::Result<()> {
        let (hidden, mut file) = self.temporary(mode)?;
        let written = write(&mut file)
            .and_then(|()| file.sync_all())
            .and_then(|()| self.rename(&hidden, name));
        written.inspect_err(|_| {
            // Best effort: the error that led here is the one to report.
            self.remove_file(&hidden).ok();
        })
    }

    /// Renames a file within the folder; an old one of the new name goes.
    ///
    /// # Errors
    /// Those of renameat(2).
    pub fn rename(&self, from: &OsStr, to: &OsStr) -> io::Result<()> {
        Ok(fs::renameat(&self.descriptor, from, &self.descriptor, to)?)
    }

    /// Removes a file, or a link itself.
    ///
    /// # Errors
    /// Those of unlinkat(2).
    pub fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        Ok(fs::unlinkat(&self.descriptor, name, AtFlags::empty())?)
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Opens `relative` below `folder` without following any link and without leaving the folder.
fn open_beneath(
    folder: BorrowedFd<'_>,
    relative: &Path,
    flags: OFlags,
    mode: Mode,
) -> io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    // EAGAIN: a rename came in between, and the kernel could not tell whether `..` leads out.
    for _ in 0..ATTEMPTS_MAX {
        match fs::openat2(folder, relative, flags, mode, resolve) {
            Err(Errno::AGAIN) => {}
            // Before Linux 5.6, and where a filter of system calls does not know it.
            Err(Errno::NOSYS | Errno::PERM) => {
                return open_by_components(folder, relative, flags, mode);
            }
            opened => return Ok(opened?),
        }
    }
    Err(Errno::AGAIN.into())
}

/// [`open_beneath`] for kernels without openat2(2): one component after the other.
fn open_by_components(
    folder: BorrowedFd<'_>,
    relative: &Path,
    flags: OFlags,
    mode: Mode,
) -> io::Result<OwnedFd> {
    let mut names = Vec::new();
    for component in relative.components() {
        match component {
            Component::Normal(name) => names.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
                return Err(Errno::XDEV.into());
            }
        }
    }
    let Some((last, above)) = names.split_last() else {
        return Ok(fs::openat(folder, ".", flags, mode)?);
    };
    let mut here: Option<OwnedFd> = None;
    for name in above {
        let at = here.as_ref().map_or(folder, AsFd::as_fd);
        here = Some(open_folder(at, name)?);
    }
    let at = here.as_ref().map_or(folder, AsFd::as_fd);
    Ok(fs::openat(at, *last, flags | OFlags::NOFOLLOW, mode)?)
}

fn open_folder(at: BorrowedFd<'_>, name: &OsStr) -> Result<OwnedFd, Errno> {
    fs::openat(at, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())
}

/// Checks owner and mode of the folder at `place`. In a sticky folder others may make files, but
/// not exchange ours, so that such a one may be above a trusted folder.
fn check(folder: BorrowedFd<'_>, place: &Path, is_above: bool) -> Result<(), FolderError> {
    let stat = fs::fstat(folder).map_err(failed("looking at", place))?;
    let own = rustix::process::geteuid().as_raw();
    if stat.st_uid != 0 && stat.st_uid != own {
        return Err(FolderError::Owner {
            place: place.to_owned(),
            uid: stat.st_uid,
        });
    }
    let mode = stat.st_mode & 0o7777;
    let is_sticky = mode & 0o1000 != 0;
    if mode & 0o022 != 0 && !(is_above && is_sticky) {
        return Err(FolderError::Writable {
            place: place.to_owned(),
            mode,
        });
    }
    Ok(())
}

/// A number that no other user can predict: the standard library's hasher is keyed by the system's
/// random source.
fn unguessable() -> u64 {
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}

fn failed<E: Into<io::Error>>(call: &'static str, place: &Path) -> impl Fn(E) -> FolderError {
    let place = place.to_owned();
    move |source| FolderError::Call {
        call,
        place: place.clone(),
        source: source.into(),
    }
}

const FOLDER: OFlags = OFlags::DIRECTORY
    .union(OFlags::RDONLY)
    .union(OFlags::CLOEXEC);

/// Attempts at a path that is being renamed meanwhile.
const ATTEMPTS_MAX: usize = 64;

#[cfg(test)]
mod tests;
