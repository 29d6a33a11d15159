//! containerd's remote snapshotter: layers of unmodified images are mounted instead of unpacked.
//!
//! - [`run`]: the service on its socket, until it is stopped.
//! - `snapshots`: what they do: records, folders, overlayfs.
//! - `layer_store`: the same layers for podman and its kind.
//! - `mounts`: layers that are mounted, by the kernel itself or by a server for each.
//! - `owners`: layers of containers that have a user namespace.
//! - `records`, `messages`, `grpc`: files, bytes and wire.
//!
//! Must stay true: servers of layers outlive this process, and containers do not notice its end; a
//! layer that cannot be mounted is unpacked by containerd as any other.
//! Source: containerd, its pages on remote snapshotters and on plug-ins ("Proxy Plugins").

mod grpc;
mod layer_store;
mod mounts;
mod owners;
mod records;
mod snapshots;
#[cfg(test)]
mod tests;

mod messages {
    //! Messages of containerd's service for snapshots.
    //!
    //! Why here: written out instead of generated, so that a build needs no `protoc`.
    //! Must stay true: numbers and types of fields are containerd's; unknown fields are skipped.
    //! Source: containerd, `api/services/snapshots/v1/snapshots.proto` and `api/types/mount.proto`.

    use prost::Message;
    use std::collections::BTreeMap;

    /// `PrepareSnapshotRequest` and `ViewSnapshotRequest`.
    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct Prepare {
        #[prost(string, tag = "2")]
        pub(crate) key: String,
        #[prost(string, tag = "3")]
        pub(crate) parent: String,
        #[prost(btree_map = "string, string", tag = "4")]
        pub(crate) labels: BTreeMap<String, String>,
    }

    /// Any request with a key alone: `Mounts`, `Remove`, `Stat`, `Usage`.
    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct Key {
        #[prost(string, tag = "2")]
        pub(crate) key: String,
    }

    /// `CommitSnapshotRequest`.
    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct Commit {
        #[prost(string, tag = "2")]
        pub(crate) name: String,
        #[prost(string, tag = "3")]
        pub(crate) key: String,
        #[prost(btree_map = "string, string", tag = "4")]
        pub(crate) labels: BTreeMap<String, String>,
        #[prost(string, tag = "5")]
        pub(crate) parent: String,
    }

    /// `UpdateSnapshotRequest`.
    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct Update {
        #[prost(message, optional, tag = "2")]
        pub(crate) info: Option<Info>,
        #[prost(message, optional, tag = "3")]
        pub(crate) mask: Option<Mask>,
    }

    /// `google.protobuf.FieldMask`.
    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct Mask {
        #[prost(string, repeated, tag = "1")]
        pub(crate) paths: Vec<String>,
    }

    /// `ListSnapshotsRequest`.
    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct List {
        #[prost(string, repeated, tag = "2")]
        pub(crate) filters: Vec<String>,
    }

    /// `ListSnapshotsResponse`.
    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct Listed {
        #[prost(message, repeated, tag = "1")]
        pub(crate) info: Vec<Info>,
    }

    /// A response that holds mounts.
    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct Mounts {
        #[prost(message, repeated, tag = "1")]
        pub(crate) mounts: Vec<Mount>,
    }

    /// `containerd.types.Mount`.
    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct Mount {
        #[prost(string, tag = "1")]
        pub(crate) kind: String,
        #[prost(string, tag = "2")]
        pub(crate) source: String,
        #[prost(string, repeated, tag = "4")]
        pub(crate) options: Vec<String>,
    }

    /// A response that holds an [`Info`].
    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct Described {
        #[prost(message, optional, tag = "1")]
        pub(crate) info: Option<Info>,
    }

    /// `Info`.
    #[derive(Clone, PartialEq, Message)]
    pub(crate) struct Info {
        #[prost(string, tag = "1")]
        pub(crate) name: String,
        #[prost(string, tag = "2")]
        pub(crate) parent: String,
        #[prost(int32, tag = "3")]
        pub(crate) kind: i32,
        #[prost(message, optional, tag = "4")]
        pub(crate) created_at: Option<Timestamp>,
        #[prost(message, optional, tag = "5")]
        pub(crate) updated_at: Option<Timestamp>,
        #[prost(btree_map = "string, string", tag = "6")]
        pub(crate) labels: BTreeMap<String, String>,
    }

    /// `google.protobuf.Timestamp`.
    #[derive(Clone, Copy, PartialEq, Message)]
    pub(crate) struct Timestamp {
        #[prost(int64, tag = "1")]
        pub(crate) seconds: i64,
        #[prost(int32, tag = "2")]
        pub(crate) nanos: i32,
    }

    /// `UsageResponse`.
    #[derive(Clone, Copy, PartialEq, Message)]
    pub(crate) struct Usage {
        #[prost(int64, tag = "1")]
        pub(crate) size: i64,
        #[prost(int64, tag = "2")]
        pub(crate) inodes: i64,
    }
}

mod service {
    //! containerd's calls, decoded and answered.
    //!
    //! Source: containerd, `api/services/snapshots/v1/snapshots.proto`.

    use super::grpc::{Code, Handler, Refusal};
    use super::messages::{Commit, Described, Key, List, Listed, Mounts, Update};
    use super::records::Kind;
    use super::snapshots::Snapshots;
    use prost::Message;
    use std::sync::Arc;

    /// Answers calls from `snapshots`.
    pub(crate) fn handler(snapshots: Arc<Snapshots>) -> Arc<Handler> {
        Arc::new(move |path: &str, bytes: &[u8]| {
            let method = path.strip_prefix(SERVICE).unwrap_or_default();
            let answer = call(&snapshots, method, bytes);
            if let Err(refusal) = &answer {
                tracing::debug!("{method}: {refusal}");
            }
            answer
        })
    }

    fn call(snapshots: &Snapshots, method: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Refusal> {
        let one = |message: &dyn Encode| Ok(vec![message.encoded()]);
        match method {
            "Prepare" => {
                let mounts = snapshots.prepare(Kind::Active, read(bytes)?)?;
                one(&Mounts { mounts })
            }
            "View" => {
                let mounts = snapshots.prepare(Kind::View, read(bytes)?)?;
                one(&Mounts { mounts })
            }
            "Mounts" => {
                let mounts = snapshots.mounts(&key(bytes)?)?;
                one(&Mounts { mounts })
            }
            "Commit" => {
                snapshots.commit(read::<Commit>(bytes)?)?;
                Ok(EMPTY.to_vec())
            }
            "Remove" => {
                snapshots.remove(&key(bytes)?)?;
                Ok(EMPTY.to_vec())
            }
            "Stat" => {
                let info = Some(snapshots.stat(&key(bytes)?)?);
                one(&Described { info })
            }
            "Update" => {
                let info = Some(snapshots.update(read::<Update>(bytes)?)?);
                one(&Described { info })
            }
            "List" => {
                let info = snapshots.list(&read::<List>(bytes)?.filters);
                let parts = info.chunks(LISTED_MAX).map(|info| {
                    let info = info.to_vec();
                    Listed { info }.encode_to_vec()
                });
                Ok(parts.collect())
            }
            "Usage" => one(&snapshots.usage(&key(bytes)?)?),
            "Cleanup" => {
                snapshots.cleanup();
                Ok(EMPTY.to_vec())
            }
            other => Err(Refusal::new(
                Code::Unimplemented,
                format!("there is no call `{other}`"),
            )),
        }
    }

    /// Messages of different types as one.
    trait Encode {
        fn encoded(&self) -> Vec<u8>;
    }

    impl<M: Message> Encode for M {
        fn encoded(&self) -> Vec<u8> {
            self.encode_to_vec()
        }
    }

    fn key(bytes: &[u8]) -> Result<String, Refusal> {
        Ok(read::<Key>(bytes)?.key)
    }

    fn read<M: Message + Default>(bytes: &[u8]) -> Result<M, Refusal> {
        M::decode(bytes).map_err(|error| Refusal::new(Code::InvalidArgument, error.to_string()))
    }

    /// Used where a call has nothing to answer: one message without fields.
    const EMPTY: [Vec<u8>; 1] = [Vec::new()];
    const SERVICE: &str = "/containerd.services.snapshots.v1.Snapshots/";
    /// Snapshots of one message of a list, as containerd's own server sends them.
    const LISTED_MAX: usize = 100;
}

use crate::layer::{LayerError, Store};
use layer_store::Layers;
use mounts::Mounts;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::fs::FlockOperation;
use serde_json::Value;
use sidecore_status::metrics::Metric;
use sidecore_status::{Address, EndpointError, Kind, Live, Status};
use snapshots::Snapshots;
use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Address of a service for containerd, written as `unix:PATH`.
#[derive(Debug, Clone)]
pub struct UnixAddress(pub PathBuf);

impl FromStr for UnixAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some(path) if !path.is_empty() => Ok(Self(path.into())),
            _ => Err("must be unix: and a path".into()),
        }
    }
}

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
    /// Folder on which c/storage finds layers, too (podman, CRI-O, buildah).
    pub layer_store: Option<PathBuf>,
    /// Address of the endpoint for metrics.
    pub metrics: Option<Address>,
}

impl Config {
    /// The same with absolute paths: the service may leave its working directory.
    ///
    /// # Errors
    /// There is no working directory.
    pub fn absolute(self) -> io::Result<Self> {
        let whole = |path: &PathBuf| std::path::absolute(path);
        Ok(Self {
            socket: whole(&self.socket)?,
            root: whole(&self.root)?,
            layer_store: self.layer_store.as_ref().map(whole).transpose()?,
            verify_keys: self
                .verify_keys
                .iter()
                .map(whole)
                .collect::<Result<_, _>>()?,
            ..self
        })
    }
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
    /// The endpoint for metrics.
    #[error(transparent)]
    Metrics(#[from] EndpointError),
}

/// Ends [`run`], from any thread.
#[derive(Debug)]
pub struct Stopper(Mutex<Option<oneshot::Sender<()>>>);

/// The receiving end of a [`Stopper`].
#[derive(Debug)]
pub struct Stopped(oneshot::Receiver<()>);

/// A pair of both.
#[must_use]
pub fn stopper() -> (Stopper, Stopped) {
    let (sender, receiver) = oneshot::channel();
    (Stopper(Mutex::new(Some(sender))), Stopped(receiver))
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
    // The kernel gives the lock back however the process ends; a file alone would outlive a kill.
    rustix::fs::flock(&lock_file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| SnapshotterError::Used(config.root.clone()))?;
    let store = Store::open(&config.root.join("layers"))?;
    // One for both: the files of a layer go once neither has a use for it.
    let mounts = Arc::new(Mounts::new(config, store));
    let shown = (config.layer_store.as_ref())
        .map(|dir| Layers::show(config, Arc::clone(&mounts), dir).map_err(of(dir)))
        .transpose()?;
    let snapshots = Snapshots::open(config, mounts).map_err(of(&config.root))?;
    // Before containerd can ask: a container must not see a layer that is not mounted again yet.
    snapshots.adopt();
    let listener = listen(&config.socket).map_err(of(&config.socket))?;
    let snapshots = Arc::new(snapshots);
    let status = status(&config.socket, &snapshots);
    let live = Live::begin(&status, config.metrics.as_ref(), true);
    // Without it nothing would answer containerd there.
    let live = live.inspect_err(|_| drop(fs::remove_file(&config.socket)))?;
    ready();
    let handler = service::handler(snapshots);
    let served = grpc::serve(listener, handler, stop.0).map_err(of(&config.socket));
    drop(live);
    let _ = fs::remove_file(&config.socket);
    drop(shown);
    drop(lock_file);
    served
}

/// The snapshotter's entry in the list of servers, with its metrics.
fn status(socket: &Path, snapshots: &Arc<Snapshots>) -> Arc<Status> {
    let snapshots = Arc::clone(snapshots);
    let fields = move || snapshots.status();
    Status::new(Kind::Snapshotter, socket.display().to_string(), fields).with_metrics(metrics)
}

fn metrics(fields: &Value) -> Vec<Metric> {
    let of = |metric: Metric, key: &str| metric.sample(&[], &fields[key]);
    let unmounted = "Layers that containerd unpacked, since they could not be mounted.";
    vec![
        of(
            Metric::gauge("snapshotter_snapshots", "Snapshots."),
            "snapshots",
        ),
        of(
            Metric::gauge("snapshotter_layers", "Mounted layers."),
            "layers",
        ),
        of(
            Metric::counter("snapshotter_unmounted", unmounted),
            "unmounted_total",
        ),
    ]
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

/// Names of layers or snapshots, each of which one thread at a time has.
#[derive(Clone, Default)]
struct Turns(Arc<Names>);

#[derive(Default)]
struct Names {
    taken: Mutex<BTreeSet<String>>,
    freed: Condvar,
}

/// A name that a thread has, until it is dropped.
struct Turn {
    names: Arc<Names>,
    name: String,
}

impl Turns {
    /// Takes a name; waits while another thread has it.
    fn take(&self, name: &str) -> Turn {
        let mut taken = self.0.taken.lock();
        while taken.contains(name) {
            self.0.freed.wait(&mut taken);
        }
        taken.insert(name.to_owned());
        self.turn(name)
    }

    /// Takes a name, unless another thread has it.
    fn try_take(&self, name: &str) -> Option<Turn> {
        let is_free = self.0.taken.lock().insert(name.to_owned());
        is_free.then(|| self.turn(name))
    }

    /// Keeps all names free, until the guard is dropped; none if a thread has one.
    fn all_free(&self) -> Option<MutexGuard<'_, BTreeSet<String>>> {
        Some(self.0.taken.lock()).filter(|taken| taken.is_empty())
    }

    fn turn(&self, name: &str) -> Turn {
        Turn {
            names: Arc::clone(&self.0),
            name: name.to_owned(),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Also after a failure: another thread would wait for ever.
        self.names.taken.lock().remove(&self.name);
        self.names.freed.notify_all();
    }
}

/// Makes a folder for this user alone, where it is not there.
fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}
