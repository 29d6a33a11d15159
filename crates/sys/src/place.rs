//! A server's socket: finding its place, taking it, and leaving it.
//!
//! Why here: the daemon and the protocol stack both have one. Two servers must not share a socket, and
//! one that was killed leaves its socket behind. So a lock file beside the socket says who is alive:
//! the lock ends with its holder, however that ends. Whoever holds the lock may remove a socket that
//! is left over. Must stay true: nothing of another user is followed, locked or removed.
//! Source: flock(2), unix(7).

use crate::{SysError, local_socket};
use std::fs;
use std::io::Write;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Why a place cannot be taken; who asked says it in its own words.
#[derive(Debug)]
pub enum PlaceError {
    /// Another server is alive there; its process, where it said.
    InUse {
        /// The process.
        pid: Option<u32>,
    },
    /// The socket, or the lock beside it, belongs to somebody else.
    NotOurs {
        /// Which of the two.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Who we are.
        own_uid: u32,
    },
    /// What is there is no socket.
    NotASocket,
    /// The operating system refused.
    Sys(SysError),
}

/// Where a server and its clients meet unless told otherwise: `sidecore/NAME.sock` in
/// `$XDG_RUNTIME_DIR`, in `/run` for root, and in `/tmp/sidecore-UID` for others who have no such
/// folder.
#[must_use]
pub fn default_socket(name: &str) -> PathBuf {
    let uid = local_socket::effective_uid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    match runtime {
        _ if uid == 0 => PathBuf::from(format!("/run/sidecore/{name}.sock")),
        Some(folder) => Path::new(&folder).join(format!("sidecore/{name}.sock")),
        None => PathBuf::from(format!("/tmp/sidecore-{uid}/{name}.sock")),
    }
}

/// A socket that is ours; dropping it removes it.
#[derive(Debug)]
pub struct Place {
    socket: PathBuf,
    listener: OwnedFd,
    /// Held until the socket is gone.
    _lock: OwnedFd,
}

impl Place {
    /// Where connections come in.
    #[must_use]
    pub fn listener(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        self.listener.as_fd()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The lock file stays: removing it would let two servers lock two files of one name.
        fs::remove_file(&self.socket).ok();
    }
}

/// Takes the socket and listens; `only_owner`: other users cannot connect.
///
/// # Errors
/// [`PlaceError`].
pub fn take(socket: &Path, only_owner: bool) -> Result<Place, PlaceError> {
    let failed = PlaceError::Sys;
    let io = |call| move |source| SysError::Call { call, source };
    if let Some(folder) = socket
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
    {
        // Others may pass through where they may attach; the socket's peer is checked anyway.
        let mode = if only_owner { 0o700 } else { 0o755 };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(folder)
            .map_err(io("making its folder"))
            .map_err(failed)?;
    }
    check_ours(socket)?;
    let lock_path = lock_path(socket);
    check_ours_file(&lock_path)?;
    let lock = local_socket::lock_file(&lock_path).map_err(failed)?;
    let Some(lock) = lock else {
        return Err(PlaceError::InUse {
            pid: fs::read_to_string(&lock_path)
                .ok()
                .and_then(|text| text.trim().parse().ok()),
        });
    };
    // A server that keeps its lock elsewhere (another mount of the folder) still answers.
    if local_socket::connect(socket).is_ok() {
        return Err(PlaceError::InUse { pid: None });
    }
    let mut file = fs::File::from(lock);
    file.set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()))
        .map_err(io("writing its lock file"))
        .map_err(failed)?;
    match fs::remove_file(socket) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            return Err(failed(SysError::Call {
                call: "removing the socket that was left over",
                source,
            }));
        }
        _ => {}
    }
    let mode = if only_owner { 0o600 } else { 0o666 };
    let listener = local_socket::listen(socket, mode, BACKLOG).map_err(failed)?;
    Ok(Place {
        socket: socket.to_owned(),
        listener,
        _lock: file.into(),
    })
}

/// What is at the path, if anything, must be a socket of this user.
fn check_ours(socket: &Path) -> Result<(), PlaceError> {
    let Ok(found) = fs::symlink_metadata(socket) else {
        return Ok(());
    };
    check_owner(socket, &found)?;
    if found.file_type().is_socket() {
        Ok(())
    } else {
        Err(PlaceError::NotASocket)
    }
}

fn check_ours_file(path: &Path) -> Result<(), PlaceError> {
    match fs::symlink_metadata(path) {
        Ok(found) => check_owner(path, &found),
        Err(_) => Ok(()),
    }
}

fn check_owner(path: &Path, found: &fs::Metadata) -> Result<(), PlaceError> {
    let own_uid = local_socket::effective_uid();
    if found.uid() == own_uid {
        return Ok(());
    }
    Err(PlaceError::NotOurs {
        path: path.to_owned(),
        uid: found.uid(),
        own_uid,
    })
}

fn lock_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    PathBuf::from(path)
}

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
