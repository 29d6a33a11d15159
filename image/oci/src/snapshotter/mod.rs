//! containerd's remote snapshotter: layers of unmodified images are mounted instead of unpacked.
//!
//! - [`run`]: the service on its socket, until it is stopped.
//! - `service`: containerd's calls.
//! - `snapshots`: what they do: records, folders, overlayfs.
//! - `mounts`: layers that are mounted, by the kernel itself or by a server for each.
//! - `records`, `messages`, `grpc`: files, bytes and wire.
//!
//! Must stay true: servers of layers outlive this process, and containers do not notice its end; a
//! layer that cannot be mounted is unpacked by containerd as any other.
//! Source: containerd, its pages on remote snapshotters and on plug-ins ("Proxy Plugins").

mod grpc;
mod messages;
mod mounts;
mod records;
mod service;
mod snapshots;
#[cfg(test)]
mod tests;

use crate::layer::{LayerError, Store};
use rustix::fs::FlockOperation;
use snapshots::Snapshots;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::oneshot;

/// Options of [`run`].
#[derive(Debug, Clone)]
pub struct Config {
    /// Path of the socket.
    pub socket: PathBuf,
    /// Folder of snapshots, records and layers.
    pub root: PathBuf,
    /// Use indexes from the registry. They are proved once the whole layer is here.
    pub trust_indexes: bool,
    /// Bytes a second at which the rest of a layer is fetched in the background; 0 for no bound.
    pub rate_bytes: u64,
    /// Public keys of images that layers were converted to; without one such images are taken
    /// only if indexes are trusted.
    pub verify_keys: Vec<PathBuf>,
}

/// Reasons why the snapshotter cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotterError {
    /// Another one uses the folder.
    #[error("another snapshotter uses {0}; stop it, or name another folder with --root")]
    Used(PathBuf),
    /// The folder or the socket.
    #[error("cannot use {path}: {source}")]
    Path {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The layers' folder.
    #[error(transparent)]
    Layer(#[from] LayerError),
}

/// Ends [`run`], from any thread.
#[derive(Debug)]
pub struct Stopper(parking_lot::Mutex<Option<oneshot::Sender<()>>>);

/// The receiving end of a [`Stopper`].
#[derive(Debug)]
pub struct Stopped(oneshot::Receiver<()>);

/// A pair of both.
#[must_use]
pub fn stopper() -> (Stopper, Stopped) {
    let (sender, receiver) = oneshot::channel();
    (
        Stopper(parking_lot::Mutex::new(Some(sender))),
        Stopped(receiver),
    )
}

impl Stopper {
    /// Ends the snapshotter; again, it does nothing.
    pub fn stop(&self) {
        if let Some(sender) = self.0.lock().take() {
            // It may have ended by itself.
            let _ = sender.send(());
        }
    }
}

/// Serves containerd until [`Stopper::stop`]. `ready` is called once it can connect.
///
/// # Errors
/// [`SnapshotterError`].
pub fn run(config: &Config, stop: Stopped, ready: impl FnOnce()) -> Result<(), SnapshotterError> {
    let of = |path: &Path| {
        let path = path.to_owned();
        move |source| SnapshotterError::Path { path, source }
    };
    make_folder(&config.root).map_err(of(&config.root))?;
    let lock = config.root.join("lock");
    let mut options = OpenOptions::new();
    let lock_file = options.write(true).create(true).truncate(false).mode(0o600);
    let lock_file = lock_file.open(&lock).map_err(of(&lock))?;
    rustix::fs::flock(&lock_file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| SnapshotterError::Used(config.root.clone()))?;
    let store = Store::open(&config.root.join("layers"))?;
    let snapshots = Snapshots::open(config, store).map_err(of(&config.root))?;
    snapshots.adopt();
    let listener = listen(&config.socket).map_err(of(&config.socket))?;
    ready();
    let handler = service::handler(Arc::new(snapshots));
    let served = grpc::serve(listener, handler, stop.0).map_err(of(&config.socket));
    let _ = fs::remove_file(&config.socket);
    drop(lock_file);
    served
}

/// Listens on a socket that this user alone may open.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    if let Some(folder) = socket.parent() {
        make_folder(folder)?;
    }
    // Left by one that was killed: nothing listens there.
    if socket.exists() && UnixStream::connect(socket).is_err() {
        fs::remove_file(socket)?;
    }
    let listener = UnixListener::bind(socket)?;
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    fs::set_permissions(socket, mode)?;
    Ok(listener)
}

/// Makes a folder for this user alone, where it is not there.
fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}
