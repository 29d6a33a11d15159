//! The socket where processes attach: taking it, and leaving it.
//!
//! A lock file beside it says who is alive: the lock ends with its holder, however that ends, and
//! whoever has it may remove a socket that is left over.

use crate::sock::control::SockError;
use sidecore_sys::{SysError, local_socket};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where processes attach unless told otherwise: `sidecore/net.sock` in `$XDG_RUNTIME_DIR`, in `/run`
/// for root, and in `/tmp/sidecore-UID` for others who have no such folder.
#[must_use]
pub fn default_socket() -> PathBuf {
    let uid = local_socket::effective_uid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    match runtime {
        _ if uid == 0 => PathBuf::from("/run/sidecore/net.sock"),
        Some(folder) => Path::new(&folder).join("sidecore/net.sock"),
        None => PathBuf::from(format!("/tmp/sidecore-{uid}/net.sock")),
    }
}

/// A socket that is ours; dropping it removes it.
#[derive(Debug)]
pub(crate) struct Place {
    socket: PathBuf,
    listener: OwnedFd,
    /// Held until the socket is gone.
    _lock: OwnedFd,
}

impl Place {
    /// Takes the socket and listens; `open_to_others`: other users may connect too.
    pub(crate) fn take(socket: &Path, open_to_others: bool) -> Result<Self, SockError> {
        let failed = |source| SockError::Place {
            socket: socket.to_owned(),
            source,
        };
        let io = |call| move |source| SysError::Call { call, source };
        if let Some(folder) = socket
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
        {
            fs::create_dir_all(folder)
                .map_err(io("making its folder"))
                .map_err(failed)?;
        }
        let own_uid = local_socket::effective_uid();
        let found = fs::symlink_metadata(socket);
        if found.is_ok_and(|found| !found.file_type().is_socket() || found.uid() != own_uid) {
            return Err(SockError::NotOurs {
                socket: socket.to_owned(),
            });
        }
        let mut lock = socket.as_os_str().to_owned();
        lock.push(".lock");
        let lock = local_socket::lock_file(Path::new(&lock)).map_err(failed)?;
        let Some(lock) = lock.filter(|_| local_socket::connect(socket).is_err()) else {
            return Err(SockError::InUse {
                socket: socket.to_owned(),
            });
        };
        match fs::remove_file(socket) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(io("removing the socket that was left over")(source)));
            }
            _ => {}
        }
        let mode = if open_to_others { 0o666 } else { 0o600 };
        let listener = local_socket::listen(socket, mode, BACKLOG).map_err(failed)?;
        Ok(Self {
            socket: socket.to_owned(),
            listener,
            _lock: lock,
        })
    }

    pub(crate) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The lock file stays: removing it would let two engines lock two files of one name.
        fs::remove_file(&self.socket).ok();
    }
}

/// Connections that wait to be let in.
const BACKLOG: i32 = 64;
