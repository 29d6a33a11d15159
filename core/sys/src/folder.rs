//! Folders reached and used through descriptors.
//!
//! Why here: a path that is looked up twice may name two things, and a folder that another user can
//! change may be exchanged between a check and a use. Every component that keeps files in a folder
//! (caches, state, sockets, checkpoints, kernels) opens it once, by this module, and reaches its
//! contents through the descriptor. Must stay true: check and use go through the same descriptor.
//! No link of another user is followed, and below an open folder none at all. Nothing is written
//! under its final name before all of it is there. Any thread may call any of them; they wait for
//! the file system only, and [`Folder::lock_within`] for a lock.
//! Source: openat2(2), open(2), renameat(2), path_resolution(7).

use rustix::fs::{
    self, AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, RawMode, ResolveFlags, Stat,
};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use way::{Checks, Way, open_by_components};

/// A folder, open.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    descriptor: OwnedFd,
}

/// A folder that cannot be opened, or whose contents another user could exchange.
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
    /// A component of the path is another user's link.
    #[error(
        "{} is a link of user {uid}, who could lead it anywhere; name the place itself",
        .place.display()
    )]
    Link {
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
            Self::Owner { .. } | Self::Link { .. } | Self::Writable { .. } => {
                io::ErrorKind::PermissionDenied
            }
        };
        io::Error::new(kind, self)
    }
}

impl Folder {
    /// Opens the folder at a path that the user named. Links on the way are followed where root or
    /// this user made them: use it for folders whose place the user answers for.
    ///
    /// # Errors
    /// Those of open(2); [`FolderError::Link`] within.
    pub fn open(path: &Path) -> io::Result<Self> {
        let descriptor = open_named(path, FOLDER, 0)?.into();
        Ok(Self::from_descriptor(path.to_owned(), descriptor))
    }

    /// Opens the folder in which the file at a path that the user named lies, or is to lie, as
    /// [`Folder::open`] does; with the file's name.
    ///
    /// # Errors
    /// As [`Folder::open`]; `InvalidInput` where the path ends with no name.
    pub fn of_file(path: &Path) -> io::Result<(Self, OsString)> {
        let Some(name) = path.file_name() else {
            let text = format!("{} does not end with a file's name", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        let above = match path.parent() {
            Some(above) if !above.as_os_str().is_empty() => above,
            _ => Path::new("."),
        };
        Ok((Self::open(above)?, name.to_owned()))
    }

    /// A folder that is open already; `path` is for messages.
    #[must_use]
    pub fn from_descriptor(path: PathBuf, descriptor: OwnedFd) -> Self {
        Self { path, descriptor }
    }

    /// Opens a folder that only root and this user can change. Each component from `/` down is
    /// opened through the one above it, and checked: its owner is root or this user, and no other
    /// user may write to it. Above the folder a sticky component (`/tmp`) will do: others cannot
    /// exchange our entries there.
    ///
    /// Links are followed where root or this user made them.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn open_trusted(path: &Path) -> Result<Self, FolderError> {
        let descriptor = Way::begin(path, Checks::All)?.folder(None)?;
        Ok(Self::from_descriptor(path.to_owned(), descriptor))
    }

    /// The same, and makes the components that are missing, with `mode` less the umask.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn create_trusted(path: &Path, mode: RawMode) -> Result<Self, FolderError> {
        let descriptor = Way::begin(path, Checks::All)?.folder(Some(mode))?;
        Ok(Self::from_descriptor(path.to_owned(), descriptor))
    }

    /// Opens a folder that belongs to this user or root and is closed to the writing of others, and
    /// makes the missing components, with `mode` less the umask. The folders above it are not
    /// checked. Others may put another folder in its place, which then is not one's own, but they
    /// change nothing in this one.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn create_own(path: &Path, mode: RawMode) -> Result<Self, FolderError> {
        let descriptor = Way::begin(path, Checks::Last)?.folder(Some(mode))?;
        Ok(Self::from_descriptor(path.to_owned(), descriptor))
    }

    /// Opens `name` in this folder, a folder that it makes where there is none, with `mode` less
    /// the umask; checked as [`Folder::create_own`] checks. No link is followed.
    ///
    /// # Errors
    /// [`FolderError`].
    pub fn create_inside(&self, name: &OsStr, mode: RawMode) -> Result<Self, FolderError> {
        let place = self.path.join(name);
        match fs::mkdirat(self, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("making", &place)(error)),
        }
        let opened = fs::openat(self, name, FOLDER | OFlags::NOFOLLOW, Mode::empty());
        let descriptor = opened.map_err(failed("opening", &place))?;
        // What exists already may be another user's.
        check(descriptor.as_fd(), &place, false)?;
        Ok(Self::from_descriptor(place, descriptor))
    }

    /// Its path, as it was given: for messages only.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same folder through a mount of its own, which ends with the descriptor: read-only, and
    /// no link in it or below is followed. For programs that walk by names.
    ///
    /// # Errors
    /// Those of open_tree(2) and mount_setattr(2): `EPERM` without `CAP_SYS_ADMIN`, `ENOSYS` and
    /// `EINVAL` before Linux 5.12.
    pub fn without_links(&self) -> io::Result<Self> {
        let descriptor = crate::linkless::mount_of(self.as_fd())?;
        Ok(Self::from_descriptor(self.path.clone(), descriptor))
    }

    /// The descriptor alone.
    #[must_use]
    pub fn into_descriptor(self) -> OwnedFd {
        self.descriptor
    }

    /// A path by which this process reaches `name` in this folder, even after the folder was moved.
    /// For calls that take no descriptor, as bind(2) of a local socket does. `name` itself is
    /// looked up anew, links included.
    #[must_use]
    pub fn reach(&self, name: &OsStr) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.descriptor.as_raw_fd())).join(name)
    }

    /// Locks the folder itself (flock(2)) until the descriptor is closed; waits while another
    /// opening of it, mostly another process's, has the lock, at most for `limit`.
    ///
    /// # Errors
    /// `TimedOut` after that time; those of flock(2).
    pub fn lock_within(&self, limit: Duration) -> io::Result<()> {
        let begun = Instant::now();
        loop {
            // A wait in the kernel would have no bound.
            match fs::flock(self, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::AGAIN | Errno::INTR) if begun.elapsed() < limit => {
                    std::thread::sleep(LOCK_LOOK);
                }
                Err(Errno::AGAIN | Errno::INTR) => {
                    let place = self.path.display();
                    let text = format!("another process keeps the folder {place} locked");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
                locked => return Ok(locked?),
            }
        }
    }

    /// Makes the names in it durable.
    ///
    /// # Errors
    /// Those of fsync(2).
    pub fn sync(&self) -> io::Result<()> {
        Ok(fs::fsync(&self.descriptor)?)
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
        // NONBLOCK: a pipe that has been put in the file's place must not block the open.
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

    /// A name for a file that is to get another one soon, which no other user can guess.
    #[must_use]
    pub fn unused_name(&self) -> OsString {
        format!(".sidecore-{:016x}", unguessable()).into()
    }

    /// Makes a new file with a name that another user cannot guess, for writing and reading.
    ///
    /// # Errors
    /// Those of openat(2).
    pub fn temporary(&self, mode: RawMode) -> io::Result<(OsString, File)> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        loop {
            let name = self.unused_name();
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
            // Durable before it is visible under its name.
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

    /// Moves a file to `to` in another folder of the same file system; an old one there goes.
    ///
    /// # Errors
    /// Those of renameat(2).
    pub fn move_to(&self, from: &OsStr, folder: &Self, to: &OsStr) -> io::Result<()> {
        Ok(fs::renameat(
            &self.descriptor,
            from,
            &folder.descriptor,
            to,
        )?)
    }

    /// Owner, mode and kind of the entry with this name; of a link itself.
    ///
    /// # Errors
    /// Those of fstatat(2).
    pub fn stat_of(&self, name: &OsStr) -> io::Result<Stat> {
        Ok(fs::statat(
            &self.descriptor,
            name,
            AtFlags::SYMLINK_NOFOLLOW,
        )?)
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

/// Opens the file or folder at a path that the user named, with the flags of openat(2). Links are
/// followed where root or this user made them: another user's link could lead to a file that only
/// this user may read or write.
///
/// # Errors
/// Those of open(2); [`FolderError::Link`] within.
pub fn open_named(path: &Path, flags: OFlags, mode: RawMode) -> io::Result<File> {
    let flags = flags | OFlags::CLOEXEC;
    let mode = Mode::from_raw_mode(mode);
    match fs::openat2(CWD, path, flags, mode, ResolveFlags::NO_SYMLINKS) {
        // A link on the way; or no such call, before Linux 5.6 and behind filters.
        Err(Errno::LOOP | Errno::AGAIN | Errno::NOSYS | Errno::PERM) => {}
        opened => return Ok(opened?.into()),
    }
    let way = Way::begin(path, Checks::None).map_err(way::plain)?;
    Ok(way.file(flags, mode).map_err(way::plain)?.into())
}

/// Replaces the contents of the file at a path that the user named: all of them, on the disk, or,
/// where anything fails, none ([`Folder::replace`]). A link of root or this user stays one, and the
/// old file's mode stays; `mode` is that of a new file. A pipe, a device and the like is written to
/// as it is. So is a file that is open already (`/dev/stdout`, `/dev/fd/3`), at its end: its opener
/// writes to it as well.
///
/// # Errors
/// Those of `write` and of the file system; [`FolderError::Link`] within.
pub fn write_named(
    path: &Path,
    mode: RawMode,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    match named(path)? {
        Named::Open(mut file) => write(&mut file),
        Named::In { folder, name, old } => folder.replace(&name, mode, |file| {
            if let Some(old) = &old {
                file.set_permissions(old.clone())?;
            }
            write(file)
        }),
    }
}

/// Removes the file, or the link itself, at a path that the user named, reached as by
/// [`Folder::of_file`].
///
/// # Errors
/// Those of unlinkat(2), and of [`Folder::of_file`].
pub fn remove_named(path: &Path) -> io::Result<()> {
    let (folder, name) = Folder::of_file(path)?;
    folder.remove_file(&name)
}

/// Makes sure that [`write_named`] can begin, before there is anything to write. An existing file
/// stays as it is.
///
/// # Errors
/// Those of [`write_named`].
pub fn check_named(path: &Path) -> io::Result<()> {
    if let Named::In { folder, .. } = named(path)? {
        let (hidden, _) = folder.temporary(0o600)?;
        folder.remove_file(&hidden)?;
    }
    Ok(())
}

/// The target of a write to a path.
enum Named {
    /// A pipe, a device, or a file that is open already: written to as it is.
    Open(File),
    /// A name in a folder, and the file that has it.
    In {
        folder: Folder,
        name: OsString,
        old: Option<Permissions>,
    },
}

fn named(path: &Path) -> io::Result<Named> {
    let old = match open_named(path, OFlags::PATH, 0) {
        Ok(old) => Some(old.metadata()?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    // These lead to open files by links of the kernel's, which cannot be avoided.
    let is_open = OPEN_FILES.iter().any(|place| path.starts_with(place));
    if is_open || old.as_ref().is_some_and(|old| !old.is_file()) {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOCTTY;
        let file = open_named(path, flags, 0)?;
        if !is_open && file.metadata()?.is_file() {
            return Err(io::Error::other("it has just become another file"));
        }
        return Ok(Named::Open(file));
    }
    let way = Way::begin(path, Checks::None).map_err(way::plain)?;
    let (descriptor, name) = way.target().map_err(way::plain)?;
    let folder = Folder::from_descriptor(path.parent().unwrap_or(path).to_owned(), descriptor);
    let old = old.map(|old| old.permissions());
    Ok(Named::In { folder, name, old })
}

/// Opens `relative` below `folder` without following any link and without leaving the folder.
fn open_beneath(
    folder: BorrowedFd<'_>,
    relative: &Path,
    flags: OFlags,
    mode: Mode,
) -> io::Result<OwnedFd> {
    let relative = match relative.as_os_str().is_empty() {
        true => Path::new("."),
        false => relative,
    };
    // A path of any length may be below a folder; one call takes less.
    if relative.as_os_str().len() >= PATH_BYTES_MAX {
        return open_by_components(folder, relative, flags, mode);
    }
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
    // In a sticky directory others can add entries, but not replace ours.
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
    // Keys from the system's random numbers: a name that others can foresee could be taken.
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

/// `PATH_MAX` of Linux.
const PATH_BYTES_MAX: usize = 4096;
/// Places whose names are files that are open already.
const OPEN_FILES: [&str; 4] = ["/dev/fd", "/dev/stdout", "/dev/stderr", "/proc"];

/// Time between two looks at a lock.
const LOCK_LOOK: Duration = Duration::from_millis(1);
/// Attempts at a path that is being renamed meanwhile.
const ATTEMPTS_MAX: usize = 64;

mod way;

#[cfg(test)]
mod tests;
