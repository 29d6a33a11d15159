//! A server's socket: its default path, taking it, and leaving it.
//!
//! Why here: two servers must not share a socket, and a killed server leaves its socket behind. So
//! a lock file next to the socket shows whether the server is alive: the lock ends with its holder,
//! however that ends. The holder of the lock may remove a socket that is left over. Must stay true:
//! nothing of another user is followed, locked or removed. Every folder from `/` down to the socket
//! belongs to this user or root and cannot be changed by others. It is checked and used through the
//! same descriptors, so a path cannot be exchanged in between. Source: flock(2), unix(7), open(2).

use crate::ListenError;
use rustix::fs::{AtFlags, FileType, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::SocketType;
use sidecore_sys::folder::{Folder, FolderError};
use sidecore_sys::identity::Identities;
use sidecore_sys::{SysError, local_socket};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The default path of a server's socket: `sidecore/NAME.sock` in `$XDG_RUNTIME_DIR`, in `/run` for
/// root, and in `/tmp/sidecore-UID` for other users without such a folder.
#[must_use]
pub fn default_socket(name: &str) -> PathBuf {
    let uid = local_socket::effective_uid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    match runtime {
        _ if uid == 0 => system_socket(name),
        Some(folder) => Path::new(&folder).join(format!("sidecore/{name}.sock")),
        None => PathBuf::from(format!("/tmp/sidecore-{uid}/{name}.sock")),
    }
}

/// The path at which root's server listens unless given another.
#[must_use]
pub(crate) fn system_socket(name: &str) -> PathBuf {
    PathBuf::from(format!("/run/sidecore/{name}.sock"))
}

/// A socket that is ours; dropping it removes it.
#[derive(Debug)]
pub struct ServerSocket {
    path: PathBuf,
    folder: Folder,
    name: OsString,
    listener: OwnedFd,
    /// Held until the socket is removed.
    _lock: OwnedFd,
}

impl ServerSocket {
    /// Takes the socket at `path` and listens; `only_owner`: other users cannot connect. Makes the
    /// folder where there is none. Does not wait.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn take(path: &Path, only_owner: bool) -> Result<Self, ListenError> {
        Self::take_as(path, only_owner, SocketType::SEQPACKET)
    }

    /// As [`ServerSocket::take`], of a socket that carries a stream of bytes, as HTTP needs. Other
    /// users cannot connect.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn take_stream(path: &Path) -> Result<Self, ListenError> {
        Self::take_as(path, true, SocketType::STREAM)
    }

    fn take_as(path: &Path, only_owner: bool, kind: SocketType) -> Result<Self, ListenError> {
        let own_uid = local_socket::effective_uid();
        if !Identities::of_this_process().is_user(own_uid) {
            return Err(ListenError::Unmapped { own_uid });
        }
        let Some(name) = path.file_name() else {
            return Err(ListenError::NotASocket);
        };
        let folder = prepare_folder(path, only_owner)?;
        if let Some(found) = look(&folder, name)? {
            check_owner(path, &found)?;
            if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
                return Err(ListenError::NotASocket);
            }
        }
        // Before the old socket is removed: only the holder of the lock may do that.
        let lock = take_lock(&folder, path)?;
        // A server that keeps its lock elsewhere (another mount of the folder) still answers.
        let reached = folder.reach(name);
        if local_socket::answers(&reached) {
            return Err(ListenError::InUse { pid: None });
        }
        match folder.remove_file(name) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed("removing the socket that was left over")(source).into());
            }
            _ => {}
        }
        let mode = if only_owner { 0o600 } else { 0o666 };
        let listener = local_socket::listen_as(kind, &reached, mode, BACKLOG)?;
        Ok(Self {
            path: path.to_owned(),
            folder,
            name: name.to_owned(),
            listener,
            _lock: lock,
        })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The socket that accepts connections.
    #[must_use]
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for ServerSocket {
    fn drop(&mut self) {
        // The lock file stays: removing it would let two servers lock two files of one name.
        self.folder.remove_file(&self.name).ok();
    }
}

/// Makes the socket's folder, or opens and checks the one that is there, and all above it.
fn prepare_folder(socket: &Path, only_owner: bool) -> Result<Folder, ListenError> {
    let folder = match socket.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // In a world-writable folder another user may have put a link in its place.
    if fs::symlink_metadata(folder).is_ok_and(|found| !found.is_dir()) {
        return Err(ListenError::NotAFolder {
            folder: folder.to_owned(),
        });
    }
    // Other users may pass through where they may attach; each connection is checked anyway.
    let mode = if only_owner { 0o700 } else { 0o755 };
    match Folder::create_trusted(folder, mode) {
        Ok(folder) => Ok(folder),
        // The folder itself may be sticky, as /tmp is: others may add files, but not replace ours.
        // All above it were checked before, so no other user can exchange it now.
        Err(FolderError::Writable { mode, .. }) if mode & 0o1000 != 0 => {
            Ok(Folder::open(folder).map_err(failed("opening its folder"))?)
        }
        Err(FolderError::Writable { place, mode }) => Err(ListenError::OpenFolder {
            folder: place,
            mode,
        }),
        Err(FolderError::Owner { place, uid }) => Err(ListenError::NotOurs {
            path: place,
            uid,
            own_uid: local_socket::effective_uid(),
        }),
        Err(FolderError::Call { source, .. }) => {
            Err(failed("making or opening its folder")(source).into())
        }
        Err(error) => Err(failed("opening its folder")(error.into_io()).into()),
    }
}

/// Takes the lock next to the socket at `path`, and writes this process's number there.
fn take_lock(folder: &Folder, path: &Path) -> Result<OwnedFd, ListenError> {
    let lock_path = lock_path(path);
    let name = lock_path.file_name().unwrap_or_default();
    if let Some(found) = look(folder, name)? {
        check_owner(&lock_path, &found)?;
    }
    let flags = OFlags::RDWR | OFlags::CREATE;
    let opened = folder.open_file(Path::new(name), flags, 0o600);
    let mut lock = opened.map_err(failed("opening its lock file"))?;
    // Again, of the open file: it may have been exchanged since `look`.
    let found = rustix::fs::fstat(&lock).map_err(|error| failed("its lock file")(error.into()))?;
    check_owner(&lock_path, &found)?;
    match rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let mut text = String::new();
            lock.take(LOCK_BYTES_MAX).read_to_string(&mut text).ok();
            return Err(ListenError::InUse {
                pid: text.trim().parse().ok(),
            });
        }
        Err(error) => return Err(failed("flock")(error.into()).into()),
    }
    // A shorter number must not keep digits of a longer one.
    lock.set_len(0)
        .and_then(|()| writeln!(lock, "{}", std::process::id()))
        .map_err(failed("writing its lock file"))?;
    Ok(lock.into())
}

/// The state of a file in a folder, links not followed; `None` without such a file.
fn look(folder: &Folder, name: &OsStr) -> Result<Option<Stat>, ListenError> {
    match rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(failed("looking at its socket")(error.into()).into()),
    }
}

fn check_owner(path: &Path, found: &Stat) -> Result<(), ListenError> {
    let own_uid = local_socket::effective_uid();
    if found.st_uid == own_uid {
        return Ok(());
    }
    Err(ListenError::NotOurs {
        path: path.to_owned(),
        uid: found.st_uid,
        own_uid,
    })
}

fn lock_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    PathBuf::from(path)
}

fn failed(call: &'static str) -> impl Fn(std::io::Error) -> SysError {
    move |source| SysError::Call { call, source }
}

/// Bytes of a lock file that are looked at.
const LOCK_BYTES_MAX: u64 = 32;
/// Connections that wait to be accepted. Many, because all users share the queue. A user that fills
/// it keeps others out until the server has turned the connections away, at some ten microseconds
/// each.
const BACKLOG: i32 = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_folder_that_others_can_change_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("ours");
        let socket = folder.join("a.sock");
        drop(ServerSocket::take(&socket, true).unwrap());
        for (mode, good) in [
            (0o755, true),
            (0o775, false),
            (0o777, false),
            (0o1777, true),
        ] {
            chmod(&folder, mode);
            let taken = ServerSocket::take(&socket, true);
            assert_eq!(taken.is_ok(), good, "{mode:o}: {taken:?}");
            if let Err(error) = taken {
                assert!(matches!(error, ListenError::OpenFolder { .. }), "{error}");
            }
        }
        let link = base.path().join("link");
        std::os::unix::fs::symlink(&folder, &link).unwrap();
        let error = ServerSocket::take(&link.join("a.sock"), true).unwrap_err();
        assert!(matches!(error, ListenError::NotAFolder { .. }), "{error}");
    }

    #[test]
    fn what_belongs_to_another_user_is_refused() {
        if local_socket::effective_uid() != 0 {
            // Only root can give a file away.
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("theirs");
        fs::create_dir(&folder).unwrap();
        std::os::unix::fs::chown(&folder, Some(65_534), None).unwrap();
        let socket = folder.join("a.sock");
        let refused = |path: &Path| match ServerSocket::take(&socket, true) {
            Err(ListenError::NotOurs {
                path: named, uid, ..
            }) => {
                assert_eq!((&*named, uid), (path, 65_534));
            }
            other => panic!("{other:?}"),
        };
        refused(&folder);
        std::os::unix::fs::chown(&folder, Some(0), None).unwrap();
        let lock = folder.join("a.sock.lock");
        fs::write(&lock, "").unwrap();
        std::os::unix::fs::chown(&lock, Some(65_534), None).unwrap();
        refused(&lock);
    }

    #[test]
    fn every_folder_above_belongs_to_this_user_or_root() {
        if local_socket::effective_uid() != 0 {
            // Only root can give a folder away.
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let theirs = base.path().join("theirs");
        let socket = theirs.join("ours/a.sock");
        fs::create_dir_all(theirs.join("ours")).unwrap();
        drop(ServerSocket::take(&socket, true).unwrap());
        // Its folder is still ours, but the owner of the one above could exchange it.
        std::os::unix::fs::chown(&theirs, Some(65_534), None).unwrap();
        match ServerSocket::take(&socket, true) {
            Err(ListenError::NotOurs { path, uid, .. }) => {
                assert_eq!((path, uid), (theirs.canonicalize().unwrap(), 65_534));
            }
            other => panic!("{other:?}"),
        }
        std::os::unix::fs::chown(&theirs, Some(0), None).unwrap();
        chmod(&theirs, 0o777);
        let error = ServerSocket::take(&socket, true).unwrap_err();
        assert!(matches!(error, ListenError::OpenFolder { .. }), "{error}");
    }

    #[test]
    fn one_server_a_socket() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("a.sock");
        let first = ServerSocket::take(&path, true).unwrap();
        let pid = std::process::id();
        match ServerSocket::take(&path, true) {
            Err(ListenError::InUse { pid: said }) => assert_eq!(said, Some(pid)),
            other => panic!("{other:?}"),
        }
        // One of the other type is in the way, too.
        assert!(matches!(
            ServerSocket::take_stream(&path),
            Err(ListenError::InUse { .. })
        ));
        drop(first);
        assert!(!path.exists());
        let stream = ServerSocket::take_stream(&path).unwrap();
        std::os::unix::net::UnixStream::connect(&path).unwrap();
        fs::remove_file(base.path().join("a.sock.lock")).unwrap();
        let refused = ServerSocket::take(&path, true);
        assert!(
            matches!(refused, Err(ListenError::InUse { pid: None })),
            "{refused:?}"
        );
        drop(stream);
        assert!(!path.exists());
        fs::write(&path, "").unwrap();
        let refused = ServerSocket::take(&path, true);
        assert!(
            matches!(refused, Err(ListenError::NotASocket)),
            "{refused:?}"
        );
    }
}
