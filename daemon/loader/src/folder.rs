//! A folder of kernels: its trusted owners, and copies of its files.
//!
//! Why here: a loaded kernel runs with all of the daemon's rights. So the folder, everything above
//! it and each file must be root's or this user's, and closed to all others' writes. Must stay
//! true: check and use go through the same descriptor ([`sys::Folder`]). A file is opened once, the
//! descriptor that was checked is read, and the copy that was read is hashed and linked. So neither
//! a redirected link nor a file exchanged in between changes anything. Source: memfd_create(2).

use crate::error::{Fault, FolderError, ObjectError};
use rustix::fs::{self, FileType, MemfdFlags, OFlags, SealFlags, Stat};
use rustix::io::Errno;
use sidecore_bare::width::ToU64;
use sidecore_daemon::served::KernelHash;
use sidecore_sys::folder as sys;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A folder that only root and this user can change.
#[derive(Debug)]
pub(crate) struct Folder(sys::Folder);

/// The bytes of an object, in sealed memory.
#[derive(Debug)]
pub(crate) struct Copy {
    pub(crate) name: OsString,
    pub(crate) memory: OwnedFd,
    pub(crate) hash: KernelHash,
}

impl Folder {
    /// Opens the folder and checks it with all that is above it.
    pub(crate) fn open(folder: &Path) -> Result<Self, FolderError> {
        match sys::Folder::open_trusted(folder) {
            Ok(opened) => Ok(Self(opened)),
            Err(sys::FolderError::Owner { place, uid }) => Err(FolderError::Unsafe {
                folder: folder.to_owned(),
                place,
                fault: Fault::Owner { uid },
            }),
            Err(sys::FolderError::Writable { place, mode }) => Err(FolderError::Unsafe {
                folder: folder.to_owned(),
                place,
                fault: Fault::Writable { mode },
            }),
            Err(other) => Err(FolderError::Unreadable {
                folder: folder.to_owned(),
                source: other.into_io(),
            }),
        }
    }

    /// Its path, as it was given.
    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// The names of its objects, in order.
    pub(crate) fn objects(&self) -> Result<Vec<OsString>, FolderError> {
        let names = self.0.names().map_err(|source| FolderError::Unreadable {
            folder: self.path().to_owned(),
            source,
        })?;
        let is_object = |name: &OsString| {
            let name = name.as_bytes();
            name.ends_with(b".so") && !name.starts_with(b".")
        };
        let mut names: Vec<OsString> = names.into_iter().filter(is_object).collect();
        // The order of loading must not depend on that of the directory.
        names.sort();
        Ok(names)
    }

    /// Opens a file, checks it, and copies it.
    pub(crate) fn copy(&self, name: &OsStr) -> Result<Copy, ObjectError> {
        let file = self.0.open_file(Path::new(name), OFlags::RDONLY, 0);
        let file = file.map_err(|error| match Errno::from_io_error(&error) {
            Some(Errno::LOOP) => ObjectError::Link,
            _ => ObjectError::Unreadable(error),
        })?;
        let stat = fs::fstat(&file).map_err(io::Error::from)?;
        // A pipe or a device could block the daemon, or never end.
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Fault::Kind.into());
        }
        check(&stat)?;
        let mut bytes = Vec::new();
        // One more than the limit, so that a file that grows meanwhile is noticed too.
        file.take(OBJECT_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        if bytes.len().to_u64() > OBJECT_BYTES_MAX {
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
    // Sealed: the bytes that were hashed are those that are linked, whatever has the descriptor.
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// Checks a file's owner and mode.
fn check(stat: &Stat) -> Result<(), Fault> {
    let own = sidecore_sys::local_socket::effective_uid();
    if stat.st_uid != 0 && stat.st_uid != own {
        return Err(Fault::Owner { uid: stat.st_uid });
    }
    let mode = stat.st_mode & 0o7777;
    match mode & 0o022 {
        0 => Ok(()),
        _ => Err(Fault::Writable { mode }),
    }
}

/// The longest object that is loaded.
const OBJECT_BYTES_MAX: u64 = 256 << 20;
