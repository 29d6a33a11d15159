//! A folder of kernels: who could have put what is in it, and copies of its files.
//!
//! Why here: what is loaded runs with all that the daemon may do. So the folder, everything above
//! it and each file must be root's or this user's, and closed to all others' writes. Must stay
//! true: what is checked is what is used. The way to the folder is walked name by name through
//! descriptors, no symbolic link is followed, and a file is opened once: the descriptor that was
//! checked is read, and the copy that was read is what is hashed and linked. So neither a link that
//! is bent nor a file that is exchanged in between changes anything. Source: open(2), O_NOFOLLOW;
//! memfd_create(2).

use crate::error::{Fault, FolderError, ObjectError};
use rustix::fs::{self, FileType, MemfdFlags, Mode, OFlags, SealFlags, Stat};
use rustix::io::Errno;
use sidecore_offload::served::KernelHash;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// A folder that only root and this user can change.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    descriptor: OwnedFd,
}

/// The bytes of an object, in memory that nobody can change any more.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) name: OsString,
    pub(crate) memory: OwnedFd,
    pub(crate) hash: KernelHash,
}

impl Folder {
    /// Opens the folder and checks it with all that is above it.
    pub(crate) fn open(folder: &Path) -> Result<Self, FolderError> {
        let unreadable = |source: io::Error| FolderError::Unreadable {
            folder: folder.to_owned(),
            source,
        };
        // Links on the way are resolved here; if one is bent afterwards, the walk finds a link.
        let path = folder.canonicalize().map_err(unreadable)?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let open = |at: &OwnedFd, name: &OsStr| fs::openat(at, name, flags, Mode::empty());
        let refused = |error: Errno| unreadable(error.into());
        let mut place = PathBuf::from("/");
        let mut here = fs::open("/", flags, Mode::empty()).map_err(refused)?;
        let names = path.components().filter_map(|component| match component {
            Component::Normal(name) => Some(name),
            _ => None,
        });
        for name in names {
            check(&here, &place, folder, true)?;
            here = open(&here, name).map_err(refused)?;
            place.push(name);
        }
        check(&here, &place, folder, false)?;
        Ok(Self {
            path: folder.to_owned(),
            descriptor: here,
        })
    }

    /// Its path, as it was given.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The names of its objects, in order.
    pub(crate) fn objects(&self) -> Result<Vec<OsString>, FolderError> {
        let unreadable = |error: Errno| FolderError::Unreadable {
            folder: self.path.clone(),
            source: error.into(),
        };
        let mut names = Vec::new();
        for entry in fs::Dir::read_from(&self.descriptor).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name().to_bytes().to_vec();
            if name.ends_with(b".so") && !name.starts_with(b".") {
                names.push(OsString::from_vec(name));
            }
        }
        names.sort();
        Ok(names)
    }

    /// Opens a file, checks it, and copies it.
    pub(crate) fn copy(&self, name: &OsStr) -> Result<Copy, ObjectError> {
        // NONBLOCK: a pipe without a writer is refused below instead of waited for.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = fs::openat(&self.descriptor, name, flags, Mode::empty());
        let file = file.map_err(|error| match error {
            Errno::LOOP => ObjectError::Link,
            error => ObjectError::Unreadable(error.into()),
        })?;
        let stat = fs::fstat(&file).map_err(io::Error::from)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Fault::Kind.into());
        }
        check_stat(&stat, false)?;
        let mut bytes = Vec::new();
        // One more than the limit, so that a file that grows meanwhile is noticed too.
        File::from(file)
            .take(OBJECT_BYTES_MAX + 1)
            .read_to_end(&mut bytes)?;
        if bytes.len() as u64 > OBJECT_BYTES_MAX {
            return Err(ObjectError::TooLong {
                bytes: u64::try_from(stat.st_size).unwrap_or(u64::MAX),
                limit: OBJECT_BYTES_MAX,
            });
        }
        Ok(Copy {
            name: name.to_owned(),
            memory: sealed(name, &bytes)?,
            hash: KernelHash::of(&bytes),
        })
    }
}

/// Memory with these bytes, for good.
fn sealed(name: &OsStr, bytes: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Debuggers and profilers show the name; a memfd's has 249 bytes at most.
    let name = [b"sidecore-kernel:", name.as_bytes()].concat();
    let name = &name[..name.len().min(200)];
    let memory = fs::memfd_create(name, flags | MemfdFlags::EXEC)
        // Before Linux 6.3 there is no such flag, and all memfds may hold code.
        .or_else(|_| fs::memfd_create(name, flags))?;
    let mut file = File::from(memory);
    file.write_all(bytes)?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// Checks a folder at `place`, which is `folder` or above it.
fn check(
    descriptor: impl AsFd,
    place: &Path,
    folder: &Path,
    is_above: bool,
) -> Result<(), FolderError> {
    let stat = fs::fstat(descriptor).map_err(|error| FolderError::Unreadable {
        folder: folder.to_owned(),
        source: error.into(),
    })?;
    check_stat(&stat, is_above).map_err(|fault| FolderError::Unsafe {
        folder: folder.to_owned(),
        place: place.to_owned(),
        fault,
    })
}

/// Checks owner and mode. In a sticky folder others may make files, but not exchange ours: such a
/// one may be above the kernels' folder.
fn check_stat(stat: &Stat, may_be_sticky: bool) -> Result<(), Fault> {
    let own = sidecore_sys::local_socket::effective_uid();
    if stat.st_uid != 0 && stat.st_uid != own {
        return Err(Fault::Owner { uid: stat.st_uid });
    }
    let mode = stat.st_mode & 0o7777;
    let is_sticky = mode & 0o1000 != 0;
    if mode & 0o022 != 0 && !(may_be_sticky && is_sticky) {
        return Err(Fault::Writable { mode });
    }
    Ok(())
}

/// The longest object that is loaded.
const OBJECT_BYTES_MAX: u64 = 256 << 20;
