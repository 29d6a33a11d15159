//! A server's socket: its default path, taking it, and leaving it.
//!
//! Why here: two servers must not share a socket, and one that was killed leaves its socket behind.
//! So a lock file beside the socket says who is alive: the lock ends with its holder, however that
//! ends. Whoever holds the lock may remove a socket that is left over. Must stay true: nothing of
//! another user is followed, locked or removed, and no server listens in a folder in which another
//! user could put a socket in the place of its own. Source: flock(2), unix(7), open(2).

use crate::ListenError;
use sidecore_sys::{SysError, local_socket};
use std::fs;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The path at which a server listens unless given another: `sidecore/NAME.sock` in
/// `$XDG_RUNTIME_DIR`, in `/run` for root, and in `/tmp/sidecore-UID` for others who have no such
/// folder.
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
    listener: OwnedFd,
    /// Held until the socket is gone.
    _lock: OwnedFd,
}

impl ServerSocket {
    /// Takes the socket at `path` and listens; `only_owner`: other users cannot connect. Makes the
    /// folder where there is none. Does not wait.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn take(path: &Path, only_owner: bool) -> Result<Self, ListenError> {
        prepare_folder(path, only_owner)?;
        check_socket(path)?;
        let lock_path = lock_path(path);
        check_owner_of_file(&lock_path)?;
        let Some(lock) = local_socket::lock_file(&lock_path)? else {
            return Err(ListenError::InUse {
                pid: fs::read_to_string(&lock_path)
                    .ok()
                    .and_then(|text| text.trim().parse().ok()),
            });
        };
        // A server that keeps its lock elsewhere (another mount of the folder) still answers.
        if local_socket::connect(path).is_ok() {
            return Err(ListenError::InUse { pid: None });
        }
        let mut file = fs::File::from(lock);
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .map_err(failed("writing its lock file"))?;
        match fs::remove_file(path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed("removing the socket that was left over")(source).into());
            }
            _ => {}
        }
        let mode = if only_owner { 0o600 } else { 0o666 };
        let listener = local_socket::listen(path, mode, BACKLOG)?;
        Ok(Self {
            path: path.to_owned(),
            listener,
            _lock: file.into(),
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
        fs::remove_file(&self.path).ok();
    }
}

/// Makes the socket's folder, or checks the one that is there.
fn prepare_folder(socket: &Path, only_owner: bool) -> Result<(), ListenError> {
    let folder = match socket.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // Others may pass through where they may attach; who connects is checked anyway.
    let mode = if only_owner { 0o700 } else { 0o755 };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(folder)
        .map_err(failed("making its folder"))?;
    // In a folder that everybody may write to, somebody else may have made this one first, or a
    // link in its place: then the socket would be that user's to replace.
    let found = fs::symlink_metadata(folder).map_err(failed("looking at its folder"))?;
    if !found.is_dir() {
        return Err(ListenError::NotAFolder {
            folder: folder.to_owned(),
        });
    }
    check_owner(folder, &found, true)?;
    let mode = found.mode() & 0o7777;
    // In a sticky folder (/tmp) others may add files, but not replace ours.
    if mode & 0o022 != 0 && mode & 0o1000 == 0 {
        return Err(ListenError::OpenFolder {
            folder: folder.to_owned(),
            mode,
        });
    }
    Ok(())
}

/// Checks that the path names a socket of this user, or nothing.
fn check_socket(socket: &Path) -> Result<(), ListenError> {
    let Ok(found) = fs::symlink_metadata(socket) else {
        return Ok(());
    };
    check_owner(socket, &found, false)?;
    if found.file_type().is_socket() {
        Ok(())
    } else {
        Err(ListenError::NotASocket)
    }
}

fn check_owner_of_file(path: &Path) -> Result<(), ListenError> {
    match fs::symlink_metadata(path) {
        Ok(found) => check_owner(path, &found, false),
        Err(_) => Ok(()),
    }
}

fn check_owner(path: &Path, found: &fs::Metadata, or_root: bool) -> Result<(), ListenError> {
    let own_uid = local_socket::effective_uid();
    if found.uid() == own_uid || or_root && found.uid() == 0 {
        return Ok(());
    }
    Err(ListenError::NotOurs {
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

fn failed(call: &'static str) -> impl Fn(std::io::Error) -> SysError {
    move |source| SysError::Call { call, source }
}

/// Connections that wait to be accepted. Many, because the queue is shared by all users: whoever
/// fills it keeps others out until the server has turned the connections away, which it does at
/// some ten microseconds each.
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
    fn one_server_a_socket() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("a.sock");
        let first = ServerSocket::take(&path, true).unwrap();
        let pid = std::process::id();
        match ServerSocket::take(&path, true) {
            Err(ListenError::InUse { pid: said }) => assert_eq!(said, Some(pid)),
            other => panic!("{other:?}"),
        }
        drop(first);
        assert!(!path.exists());
        fs::write(&path, "").unwrap();
        let refused = ServerSocket::take(&path, true);
        assert!(
            matches!(refused, Err(ListenError::NotASocket)),
            "{refused:?}"
        );
    }
}
