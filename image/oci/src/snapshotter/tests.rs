//! containerd's calls over the socket, and what is left after any of them.

use super::grpc::Code;
use super::messages::{Commit, Described, Info, Key, List, Listed, Mask, Mounts, Prepare, Update};
use super::records::{Kind, Layer, Record, Records};
use super::snapshots::Snapshots;
use super::{Config, SnapshotterError, Stopper, UnixAddress, mounts, run, stopper};
use crate::layer::Store;
use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use tempfile::TempDir;

/// A snapshotter on a thread, ended on drop.
struct Running {
    folder: TempDir,
    stop: Stopper,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn start() -> Self {
        Self::over(tempfile::tempdir().unwrap())
    }

    fn over(folder: TempDir) -> Self {
        let config = config(folder.path());
        let (stop, stopped) = stopper();
        let (ready, is_ready) = channel();
        let work = move || run(&config, stopped, || ready.send(()).unwrap()).unwrap();
        let thread = Some(std::thread::spawn(work));
        is_ready.recv().unwrap();
        Self {
            folder,
            stop,
            thread,
        }
    }

    /// A call; the messages of the answer, or the code of the refusal.
    fn call(&self, method: &str, message: &impl Message) -> Result<Vec<Vec<u8>>, i32> {
        let body = message.encode_to_vec();
        call(&self.folder.path().join("socket"), method, &body)
    }

    fn one<M: Message + Default>(&self, method: &str, message: &impl Message) -> Result<M, i32> {
        let answer = self.call(method, message)?;
        Ok(M::decode(&answer[0][..]).unwrap())
    }

    /// Names of all snapshots on the disk, as the next start would read them.
    fn on_disk(&self) -> Vec<String> {
        let records = Records::open(&self.folder.path().join("root/records")).unwrap();
        records.all().map(|it| it.name.clone()).collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        self.thread.take().unwrap().join().unwrap();
        assert!(!self.folder.path().join("socket").exists());
    }
}

fn config(folder: &Path) -> Config {
    Config {
        socket: folder.join("socket"),
        root: folder.join("root"),
        trust_indexes: false,
        rate_bytes: 0,
        verify_keys: Vec::new(),
        layer_store: None,
        metrics: None,
    }
}

#[test]
fn snapshots_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let snapshots = Arc::new(with_one(folder.path()));
    let status = super::status(Path::new("/run/s.sock"), &snapshots);
    let text = status.metrics();
    for line in [
        "sidecore_snapshotter_snapshots 1",
        "sidecore_snapshotter_layers 0",
        "sidecore_snapshotter_unmounted_total 0",
    ] {
        assert!(text.lines().any(|it| it == line), "{line} in {text}");
    }
}

#[test]
fn no_socket_stays_where_metrics_cannot_be_offered() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        metrics: Some("unix:/dev/null/metrics".parse().unwrap()),
        ..config(folder.path())
    };
    let (_stop, stopped) = stopper();
    let ended = run(&config, stopped, || panic!("it is not ready"));
    assert!(matches!(ended, Err(SnapshotterError::Metrics(_))));
    assert!(!config.socket.exists());
}

/// Snapshots without their service, of which the first one has the key `key` and the number 1.
fn with_one(folder: &Path) -> Snapshots {
    let config = config(folder);
    let store = Store::open(&config.root.join("layers")).unwrap();
    let mounts = Arc::new(mounts::Mounts::new(&config, store));
    let snapshots = Snapshots::open(&config, mounts).unwrap();
    snapshots.prepare(Kind::Active, prepare("key", "")).unwrap();
    snapshots
}

fn call(socket: &Path, method: &str, message: &[u8]) -> Result<Vec<Vec<u8>>, i32> {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_io().build().unwrap();
    runtime.block_on(async {
        let stream = tokio::net::UnixStream::connect(socket).await.unwrap();
        let (client, connection) = h2::client::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        let mut client = client.ready().await.unwrap();
        let service = "containerd.services.snapshots.v1.Snapshots";
        let request = http::Request::post(format!("http://localhost/{service}/{method}"));
        let request = request.body(()).unwrap();
        let (response, mut stream) = client.send_request(request, false).unwrap();
        let mut body = BytesMut::new();
        body.put_u8(0);
        body.put_u32(message.len() as u32);
        body.put_slice(message);
        stream.send_data(body.freeze(), true).unwrap();
        let mut body = response.await.unwrap().into_body();
        let mut bytes = Vec::new();
        while let Some(piece) = body.data().await {
            let piece: Bytes = piece.unwrap();
            body.flow_control().release_capacity(piece.len()).unwrap();
            bytes.extend_from_slice(&piece);
        }
        let trailers = body.trailers().await.unwrap().unwrap();
        let code: i32 = trailers["grpc-status"].to_str().unwrap().parse().unwrap();
        if code != 0 {
            return Err(code);
        }
        let mut rest = &bytes[..];
        let mut messages = Vec::new();
        while let Some((head, after)) = rest.split_first_chunk::<5>() {
            let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
            messages.push(after[..length].to_vec());
            rest = &after[length..];
        }
        Ok(messages)
    })
}

fn prepare(key: &str, parent: &str) -> Prepare {
    Prepare {
        key: key.into(),
        parent: parent.into(),
        labels: BTreeMap::from([("of".to_owned(), key.to_owned())]),
    }
}

fn key(key: &str) -> Key {
    Key { key: key.into() }
}

fn commit(name: &str, key: &str) -> Commit {
    Commit {
        name: name.into(),
        key: key.into(),
        ..Commit::default()
    }
}

/// A record of a layer or, without one, of what is written above it.
fn record(id: u64, name: &str, parent: &str, sha256: Option<&str>) -> Record {
    Record {
        id,
        name: name.into(),
        parent: parent.into(),
        kind: sha256.map_or(Kind::Active, |_| Kind::Committed),
        labels: BTreeMap::new(),
        created: (0, 0),
        updated: (0, 0),
        usage: (0, 0),
        layer: sha256.map(|sha256| Layer {
            // No registry is asked by a name that is none.
            image: "nothing".into(),
            sha256: sha256.into(),
        }),
    }
}

/// As after a start without a network: a container must not find an empty folder in the place of a
/// layer, and the layer's files stay until neither containerd nor c/storage has a use for them.
#[test]
fn a_layer_that_is_not_mounted_is_refused_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let digests = ["a", "b", "c"].map(|digit| digit.repeat(64));
    for place in [
        "records",
        "snapshots/1/fs",
        "snapshots/2/fs",
        "snapshots/3/fs",
        "snapshots/4/fs",
    ] {
        std::fs::create_dir_all(root.join(place)).unwrap();
    }
    for sha256 in &digests {
        std::fs::create_dir_all(root.join("layers").join(sha256)).unwrap();
    }
    std::fs::create_dir_all(root.join("store").join(&digests[1])).unwrap();
    let mut records = Records::open(&root.join("records")).unwrap();
    for record in [
        record(1, "one", "", Some(&digests[0])),
        record(2, "two", "one", Some(&digests[1])),
        record(3, "above", "two", None),
        record(4, "other", "", Some(&digests[0])),
    ] {
        records.put(None, record).unwrap();
    }
    drop(records);
    let running = Running::over(folder);
    // The third layer has no record: it is gone since the start.
    let left = || {
        let is_left = |sha256: &String| root.join("layers").join(sha256).exists();
        digests.each_ref().map(is_left)
    };
    assert_eq!(left(), [true, true, false]);
    for (method, message) in [
        ("Prepare", prepare("new", "two").encode_to_vec()),
        ("View", prepare("new", "one").encode_to_vec()),
        ("Mounts", key("above").encode_to_vec()),
    ] {
        let socket = running.folder.path().join("socket");
        let refused = call(&socket, method, &message).unwrap_err();
        assert_eq!(refused, UNAVAILABLE, "{method}");
    }
    assert_eq!(running.on_disk(), ["above", "one", "other", "two"]);
    for name in ["above", "two"] {
        running.call("Remove", &key(name)).unwrap();
    }
    // c/storage has the second one.
    assert_eq!(left(), [true, true, false]);
    running.call("Remove", &key("one")).unwrap();
    // Another snapshot has the first one.
    assert_eq!(left(), [true, true, false]);
    running.call("Remove", &key("other")).unwrap();
    assert_eq!(left(), [false, true, false]);
    std::fs::remove_dir_all(root.join("store")).unwrap();
    running.call("Cleanup", &key("")).unwrap();
    assert_eq!(left(), [false; 3]);
}

const INVALID_ARGUMENT: i32 = 3;
const NOT_FOUND: i32 = 5;
const ALREADY_EXISTS: i32 = 6;
const FAILED_PRECONDITION: i32 = 9;
const UNAVAILABLE: i32 = 14;

#[test]
fn snapshots_are_made_stacked_and_removed() {
    let running = Running::start();
    let mounts: Mounts = running.one("Prepare", &prepare("base-key", "")).unwrap();
    assert_eq!(mounts.mounts[0].kind, "bind");
    std::fs::write(Path::new(&mounts.mounts[0].source).join("file"), "x").unwrap();
    assert_eq!(running.on_disk(), ["base-key"]);
    running.call("Commit", &commit("base", "base-key")).unwrap();
    assert_eq!(running.on_disk(), ["base"]);
    let mounts: Mounts = running.one("Prepare", &prepare("top", "base")).unwrap();
    assert_eq!(mounts.mounts[0].kind, "overlay");
    let lower = mounts.mounts[0].options.last().unwrap();
    let lower = lower.strip_prefix("lowerdir=").unwrap();
    assert_eq!(
        std::fs::read_to_string(Path::new(lower).join("file")).unwrap(),
        "x"
    );
    let view: Mounts = running.one("View", &prepare("view", "base")).unwrap();
    assert_eq!(view.mounts[0].options, ["ro", "rbind"]);
    let again: Mounts = running.one("Mounts", &key("top")).unwrap();
    assert_eq!(again, mounts);

    let refused = |method, message: &Key| running.call(method, message).unwrap_err();
    assert_eq!(
        running.call("Prepare", &prepare("top", "")).unwrap_err(),
        ALREADY_EXISTS
    );
    assert_eq!(
        running.call("Prepare", &prepare("x", "none")).unwrap_err(),
        NOT_FOUND
    );
    assert_eq!(
        running.call("Commit", &commit("base", "top")).unwrap_err(),
        ALREADY_EXISTS
    );
    assert_eq!(refused("Remove", &key("base")), FAILED_PRECONDITION);
    assert_eq!(refused("Remove", &key("none")), NOT_FOUND);
    assert_eq!(refused("Nothing", &key("")), 12);
    // An empty name would be that of every lowest snapshot's parent.
    assert_eq!(
        running.call("Prepare", &prepare("", "")).unwrap_err(),
        INVALID_ARGUMENT
    );
    assert_eq!(
        running.call("Commit", &commit("", "top")).unwrap_err(),
        INVALID_ARGUMENT
    );
    for name in ["top", "view", "base"] {
        running.call("Remove", &key(name)).unwrap();
    }
    assert!(running.on_disk().is_empty());
    let folders = running.folder.path().join("root/snapshots");
    assert_eq!(std::fs::read_dir(folders).unwrap().count(), 0);
}

#[test]
fn labels_are_changed_and_filtered_by() {
    let running = Running::start();
    for name in ["one", "two"] {
        running.call("Prepare", &prepare(name, "")).unwrap();
    }
    let info = Info {
        name: "one".into(),
        labels: BTreeMap::from([("a.b".to_owned(), "c".to_owned())]),
        ..Info::default()
    };
    let update = Update {
        info: Some(info),
        mask: Some(Mask {
            paths: vec!["labels.a.b".into()],
        }),
    };
    let described: Described = running.one("Update", &update).unwrap();
    assert_eq!(described.info.unwrap().labels.len(), 2);
    let list = |filter: &str| {
        let filters = vec![filter.to_owned()];
        let answer = running.call("List", &List { filters }).unwrap();
        let infos = answer
            .iter()
            .flat_map(|it| Listed::decode(&it[..]).unwrap().info);
        infos.map(|it| it.name).collect::<Vec<_>>()
    };
    assert_eq!(list("labels.\"a.b\"==c,parent==\"\""), ["one"]);
    assert_eq!(list("kind==active"), ["one", "two"]);
    assert_eq!(list("labels.of!=one"), ["two"]);
    assert!(list("kind==committed").is_empty());
}

/// A container with a user namespace has its layers' files as its own, and the layers stay.
#[test]
fn owners_are_mapped_in_the_layers_below() {
    if sidecore_sys::local_socket::effective_uid() != 0 {
        eprintln!("skipped: only root gives files away");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let snapshots = with_one(folder.path());
    let place = folder.path().join("root/snapshots");
    let file = place.join("1/fs/file");
    std::fs::write(&file, "x").unwrap();
    snapshots.commit(commit("base", "key")).unwrap();
    let owner = |path: &Path| {
        let found = std::fs::metadata(path).unwrap();
        (found.uid(), found.gid())
    };
    let before = owner(&file);
    let label = |name: &str| format!("containerd.io/snapshot/{name}mapping");
    let mut half = prepare("half", "base");
    half.labels.insert(label("uid"), "0:100000:65536".into());
    let mut whole = prepare("top", "base");
    whole.labels.clone_from(&half.labels);
    whole.labels.insert(label("gid"), "0:200000:65536".into());
    let labels = whole.labels.clone();
    let refused = snapshots.prepare(Kind::Active, half).unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument);
    let mounts = match snapshots.prepare(Kind::Active, whole) {
        Ok(mounts) => mounts,
        // An old kernel, or a file system that maps no owners.
        Err(refused) if refused.text.contains("cannot be mapped") => {
            eprintln!("skipped: {refused}");
            assert!(!place.join("2").exists() && file.exists());
            return;
        }
        Err(refused) => panic!("{refused}"),
    };
    let lower = mounts[0].options.last().unwrap();
    let lower = Path::new(lower.strip_prefix("lowerdir=").unwrap());
    assert_eq!(lower, place.join("2/lower/0"));
    let mapped = (100_000, 200_000);
    assert_eq!(owner(&lower.join("file")), mapped);
    assert_eq!(owner(&place.join("2/fs")), mapped);
    assert!(std::fs::write(lower.join("file"), "y").is_err());
    assert_eq!(snapshots.mounts("top").unwrap(), mounts);
    // As after a start of the machine.
    rustix::mount::unmount(lower, rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(snapshots.mounts("top").unwrap(), mounts);
    assert_eq!(owner(&lower.join("file")), mapped);
    snapshots.remove("top").unwrap();
    assert!(!place.join("2").exists());
    assert_eq!(std::fs::read(&file).unwrap(), b"x");
    assert_eq!(owner(&file), before);
    // A client that has changed the owners itself gives the same labels.
    let mounts = snapshots.prepare(Kind::Active, prepare("copy", "base"));
    let mounts = mounts.unwrap();
    let mut options = mounts[0].options.iter();
    let upper = options.find_map(|it| it.strip_prefix("upperdir=")).unwrap();
    std::os::unix::fs::chown(upper, Some(mapped.0), Some(mapped.1)).unwrap();
    snapshots.commit(commit("copied", "copy")).unwrap();
    let mut plain = prepare("plain", "copied");
    plain.labels = labels;
    let mounts = snapshots.prepare(Kind::Active, plain).unwrap();
    let lower = mounts[0].options.last().unwrap();
    let first = lower.strip_prefix("lowerdir=").unwrap().split(':').next();
    assert_eq!(first, Some(upper));
    let upper = mounts[0]
        .options
        .iter()
        .find_map(|it| it.strip_prefix("upperdir="));
    assert_eq!(owner(Path::new(upper.unwrap())), mapped);
}

/// A crash may leave two things: a record half written, and a folder without a record.
#[test]
fn what_a_crash_leaves_is_removed() {
    let running = Running::start();
    running.call("Prepare", &prepare("kept", "")).unwrap();
    let root = running.folder.path().join("root");
    std::fs::write(root.join("records/9.123"), "{").unwrap();
    std::fs::create_dir_all(root.join("snapshots/9/fs")).unwrap();
    assert_eq!(running.on_disk(), ["kept"]);
    running.call("Cleanup", &key("")).unwrap();
    assert!(!root.join("snapshots/9").exists() && !root.join("records/9.123").exists());
    let _: Mounts = running.one("Mounts", &key("kept")).unwrap();
    // A second one would write to the same folder.
    let config = Config {
        socket: root.join("other"),
        ..config(running.folder.path())
    };
    let error = run(&config, stopper().1, || ()).unwrap_err().to_string();
    assert!(error.contains("another snapshotter"), "{error}");
}

/// To delete many files takes long: other calls do not wait for it, a new snapshot of that key
/// included.
#[test]
fn a_removed_snapshot_is_deleted_after_its_record() {
    let folder = tempfile::tempdir().unwrap();
    let snapshots = with_one(folder.path());
    let place = folder.path().join("root/snapshots");
    std::fs::write(place.join("1/fs/file"), "x").unwrap();
    let aside = snapshots.detach("key").unwrap();
    assert_eq!(std::fs::read(aside.join("fs/file")).unwrap(), b"x");
    assert!(!place.join("1").exists());
    let refused = snapshots.stat("key").unwrap_err();
    assert_eq!(refused.code, Code::NotFound);
    snapshots.prepare(Kind::Active, prepare("key", "")).unwrap();
    // As after a kill before the files went.
    snapshots.cleanup();
    assert!(!aside.exists() && place.join("2/fs").exists());
    std::fs::write(place.join("2/fs/file"), "x").unwrap();
    snapshots.remove("key").unwrap();
    assert_eq!(std::fs::read_dir(place).unwrap().count(), 0);
}

/// Another kernel may not take the mounts of servers.
#[test]
fn a_server_of_this_boot_alone_says_that_further_ones_will_mount() {
    let folder = tempfile::tempdir().unwrap();
    let config = config(folder.path());
    let has_served = || {
        let store = Store::open(&config.root.join("layers")).unwrap();
        mounts::Mounts::new(&config, store).has_served()
    };
    assert!(!has_served());
    let place = config.root.join("served");
    std::fs::write(&place, "another boot").unwrap();
    assert!(!has_served());
    std::fs::write(&place, crate::store::boot_id().unwrap()).unwrap();
    assert!(has_served());
}

/// A server would mount the layer on a folder that is gone.
#[test]
fn a_layer_that_is_being_mounted_is_removed_after_that() {
    let folder = tempfile::tempdir().unwrap();
    let snapshots = with_one(folder.path());
    let turn = snapshots.mounting.take("key");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let removed = scope.spawn(|| {
            snapshots.remove("key").unwrap();
            is_over.load(Ordering::SeqCst)
        });
        std::thread::sleep(std::time::Duration::from_millis(100));
        snapshots.stat("key").unwrap();
        is_over.store(true, Ordering::SeqCst);
        drop(turn);
        assert!(removed.join().unwrap());
    });
}

/// A commit that cannot make the files durable leaves the snapshot as it is.
#[test]
fn files_are_synced_before_a_commit_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let snapshots = with_one(folder.path());
    let files = folder.path().join("root/snapshots/1/fs");
    std::fs::remove_dir(&files).unwrap();
    let refused = snapshots.commit(commit("name", "key")).unwrap_err();
    assert_eq!(refused.code, Code::Internal);
    assert_eq!(snapshots.stat("key").unwrap().kind, Kind::Active as i32);
    std::fs::create_dir(&files).unwrap();
    snapshots.commit(commit("name", "key")).unwrap();
    assert_eq!(snapshots.stat("name").unwrap().kind, Kind::Committed as i32);
}

/// A container makes and removes directories meanwhile.
#[test]
fn usage_passes_over_what_has_just_gone() {
    let folder = tempfile::tempdir().unwrap();
    let snapshots = with_one(folder.path());
    let files = folder.path().join("root/snapshots/1/fs");
    let places: Vec<_> = (0..64).map(|at| files.join(at.to_string())).collect();
    let is_over = AtomicBool::new(false);
    let refused = std::thread::scope(|scope| {
        scope.spawn(|| {
            // Relaxed: nothing else passes between the threads.
            while !is_over.load(Ordering::Relaxed) {
                places
                    .iter()
                    .for_each(|it| std::fs::create_dir(it).unwrap());
                places
                    .iter()
                    .for_each(|it| std::fs::remove_dir(it).unwrap());
            }
        });
        let refused = (0..2000).find_map(|_| snapshots.usage("key").err());
        is_over.store(true, Ordering::Relaxed);
        refused
    });
    assert_eq!(refused, None);
    assert_eq!(snapshots.usage("key").unwrap().inodes, 1);
}

#[test]
fn an_address_is_unix_and_a_path() {
    assert_eq!(
        "unix:/run/s".parse::<UnixAddress>().unwrap().0,
        Path::new("/run/s")
    );
    for odd in ["/run/s", "unix:", "tcp:1"] {
        let refused = odd.parse::<UnixAddress>().unwrap_err();
        assert_eq!(refused, "must be unix: and a path", "{odd}");
    }
}
