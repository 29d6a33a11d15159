//! Snapshots: folders, records and overlayfs' mounts of them.
//!
//! | in the root | is |
//! |---|---|
//! | `records/ID` | what a snapshot is, durably |
//! | `snapshots/ID/fs` | its files: a folder to write in, or a layer's mount |
//! | `snapshots/ID/work` | overlayfs' own, while it is active |
//! | `snapshots/ID/lower` | layers with mapped owners, for a container with a user namespace |
//! | `layers/` | indexes and contents of layers |
//!
//! Must stay true: a record is written after its folder is there, and removed before it goes, so
//! that after kill -9 there is at most a folder without a record, which `cleanup` removes; the
//! files of a committed snapshot are on the disk before its record says so; no mount is handed out
//! that has the folder of a layer below it on which nothing is mounted.
//! Called from: any thread. The lock of the records is not held while a layer is mounted, which
//! waits for a network, nor while files are synced, counted or deleted. A layer's turn is held from
//! the begin of its mount to the end, also where its record is there before.

use super::grpc::{Code, Refusal};
use super::messages::{Commit, Info, Mount, Prepare, Update, Usage};
use super::mounts::{Mounts, Table};
use super::owners::{Owners, unmap};
use super::records::{Kind, Layer, Record, Records, now, remote_layer};
use super::records::{check_parent, committable, exists, layers_above, missing};
use super::{Config, Turn, Turns};
use crate::store::{remove_folder, set_aside, sync, usage_of};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// All snapshots.
pub(crate) struct Snapshots {
    root: PathBuf,
    records: Mutex<Records>,
    /// Snapshots of layers that are being mounted.
    pub(super) mounting: Turns,
    mounts: Arc<Mounts>,
    /// Layers that containerd unpacks, since they could not be mounted.
    unmounted: AtomicU64,
}

impl Snapshots {
    /// Reads the records.
    ///
    /// # Errors
    /// The system's, or a damaged record.
    pub(crate) fn open(config: &Config, mounts: Arc<Mounts>) -> io::Result<Self> {
        let root = config.root.clone();
        // Containers' users pass through to their files.
        for name in ["records", "snapshots"] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o711)
                .create(root.join(name))?;
        }
        Ok(Self {
            records: Mutex::new(Records::open(&root.join("records"))?),
            mounts,
            root,
            mounting: Turns::default(),
            unmounted: AtomicU64::new(0),
        })
    }

    /// Makes all layers mounted that should be: those whose servers live are left as they are.
    pub(crate) fn adopt(&self) {
        let records = self.records.lock();
        for record in records.all() {
            if let Some(layer) = &record.layer {
                let is_lowest = record.parent.is_empty();
                match self.mounts.adopt(layer, &self.files(record.id), is_lowest) {
                    Ok(()) => {}
                    Err(error) => tracing::error!("{} is not mounted: {error}", record.name),
                }
            }
        }
        drop(records);
        self.cleanup();
    }

    /// `Prepare` and `View`.
    pub(crate) fn prepare(&self, kind: Kind, request: Prepare) -> Result<Vec<Mount>, Refusal> {
        let Prepare {
            key,
            parent,
            labels,
        } = request;
        check_name(&key)?;
        let owners = Owners::of(&labels)?;
        {
            let records = self.records.lock();
            if records.get(&key).is_some() {
                return Err(exists(&key));
            }
            check_parent(&records, &parent)?;
        }
        if kind == Kind::Active
            && let Some((target, layer)) = remote_layer(&labels)
            && self.mount_layer(&target, &parent, &labels, layer)
        {
            // By this refusal containerd learns that the layer is there and need not be unpacked.
            return Err(exists(&target));
        }
        self.remount(&parent)?;
        let mut records = self.records.lock();
        // It may have gone while a layer was tried.
        check_parent(&records, &parent)?;
        self.check_mounted(&records, &parent)?;
        if records.get(&key).is_some() {
            return Err(exists(&key));
        }
        let id = records.new_id();
        let below = records.get(&parent).map(|parent| self.files(parent.id));
        let owners = owners.filter(|owners| !owners.are_applied(below.as_deref()));
        let time = now();
        let record = Record {
            id,
            name: key,
            parent,
            kind,
            labels,
            created: time,
            updated: time,
            usage: (0, 0),
            layer: None,
        };
        let made = self.make_folder(&record, below.as_deref(), owners.as_ref());
        let made = made.map_err(|error| internal(&error)).and_then(|()| {
            let mounts = self.mounts_of(&records, &record)?;
            let put = records.put(None, record);
            put.map_err(|error| internal(&error))?;
            Ok(mounts)
        });
        made.inspect_err(|_| {
            unmap(&self.folder(id), &self.mounts);
            let _ = fs::remove_dir_all(self.folder(id));
        })
    }

    /// Makes the folders of a new snapshot, whose parent's files are in `below`.
    fn make_folder(
        &self,
        record: &Record,
        below: Option<&Path>,
        owners: Option<&Owners>,
    ) -> io::Result<()> {
        let folder = self.folder(record.id);
        DirBuilder::new().mode(0o700).create(&folder)?;
        // Overlayfs reads through this folder as the user that mounts.
        fs::set_permissions(&folder, mode(0o711))?;
        let files = self.files(record.id);
        DirBuilder::new().mode(0o755).create(&files)?;
        // The root of a container has the owner and mode of its image's.
        let below = below.map(fs::metadata).transpose()?;
        let (owner, bits) = match &below {
            Some(below) => (Some((below.uid(), below.gid())), below.mode() & 0o7777),
            None => (owners.map(|_| (0, 0)), 0o755),
        };
        if let Some((uid, gid)) = owner {
            // Files that the container writes have owners outside of its namespace.
            let (uid, gid) = owners.map_or((uid, gid), |owners| owners.outside(uid, gid));
            chown(&files, Some(uid), Some(gid))?;
        }
        fs::set_permissions(&files, mode(bits))?;
        match record.kind {
            Kind::Active => DirBuilder::new().mode(0o711).create(folder.join("work")),
            _ => Ok(()),
        }
    }

    /// Mounts a layer as the committed snapshot `target`; false if containerd has to unpack it.
    fn mount_layer(
        &self,
        target: &str,
        parent: &str,
        labels: &BTreeMap<String, String>,
        layer: Layer,
    ) -> bool {
        let turn = self.mounting.take(target);
        // Another call, or another namespace of containerd, has made it meanwhile.
        if let Some(found) = self.records.lock().get(target) {
            return found.parent == parent && found.kind == Kind::Committed;
        }
        match self.mount_new(target, parent, labels, layer, turn) {
            Ok(()) => true,
            Err(reason) => {
                tracing::warn!("{target} is not mounted, containerd unpacks it: {reason}");
                false
            }
        }
    }

    /// Layers of a snapshot and of those below it that should be mounted and are not.
    fn unmounted(&self, records: &Records, name: &str) -> Result<Vec<Record>, Refusal> {
        let mut found = Vec::new();
        let mut name = name;
        // Read once for all layers, and not at all where there is none.
        let table = LazyCell::new(Table::read);
        while !name.is_empty() {
            let record = records.get(name).ok_or_else(|| missing(name))?;
            if record.layer.is_some() && table.source_of(&self.files(record.id)).is_none() {
                found.push(record.clone());
            }
            name = &record.parent;
        }
        Ok(found)
    }

    /// Mounts layers of a snapshot and of those below it that the start could not, for lack of a
    /// network, say. Waits for it; holds no lock meanwhile.
    fn remount(&self, name: &str) -> Result<(), Refusal> {
        let unmounted = self.unmounted(&self.records.lock(), name)?;
        for record in unmounted {
            let Some(layer) = &record.layer else {
                continue;
            };
            let _turn = self.mounting.take(&record.name);
            let found = self.records.lock().get(&record.name).map(|it| it.id);
            // Removed meanwhile: its layer would come again, without a record.
            if found != Some(record.id) {
                continue;
            }
            let is_lowest = record.parent.is_empty();
            let adopted = (self.mounts).adopt(layer, &self.files(record.id), is_lowest);
            if let Err(error) = adopted {
                tracing::error!("{} is not mounted: {error}", record.name);
            }
        }
        Ok(())
    }

    /// Refuses a snapshot with a layer that is not mounted: a container would find an empty folder
    /// in its place, and start all the same.
    fn check_mounted(&self, records: &Records, name: &str) -> Result<(), Refusal> {
        match self.unmounted(records, name)?.first() {
            None => Ok(()),
            Some(record) => Err(Refusal::new(
                Code::Unavailable,
                format!(
                    "the layer of snapshot {} is not mounted; the snapshotter's log has the \
                     reason, and the next call tries again",
                    record.name
                ),
            )),
        }
    }

    fn mount_new(
        &self,
        target: &str,
        parent: &str,
        labels: &BTreeMap<String, String>,
        layer: Layer,
        turn: Turn,
    ) -> Result<(), String> {
        (self.mounts).prepare_ahead(&layer.image, layers_above(labels, &layer));
        // Until the record names it.
        let _hold = self.mounts.hold(&layer.sha256);
        let id = self.records.lock().new_id();
        let files = self.files(id);
        let failed = |error: io::Error| error.to_string();
        DirBuilder::new()
            .recursive(true)
            .mode(0o711)
            .create(&files)
            .map_err(failed)?;
        let undo = || {
            self.mounts.undo(&files);
            let _ = fs::remove_dir(&files);
            let _ = fs::remove_dir(self.folder(id));
        };
        let begun = self.mounts.begin(&layer, &files, parent.is_empty());
        let mounted = begun.and_then(|begun| {
            // The first server shows that the kernel takes them. Further ones need no answer here.
            let is_later = !begun.is_mounted && self.mounts.has_served();
            if !begun.is_mounted && !is_later {
                self.mounts.serve(&layer, &files)?;
            }
            Ok(is_later)
        });
        let is_later = mounted.inspect_err(|_| {
            self.unmounted.fetch_add(1, Ordering::Relaxed);
            undo();
        })?;
        let to_serve = is_later.then(|| layer.clone());
        let time = now();
        let record = Record {
            id,
            name: target.to_owned(),
            parent: parent.to_owned(),
            kind: Kind::Committed,
            labels: labels.clone(),
            created: time,
            updated: time,
            usage: (0, 0),
            layer: Some(layer),
        };
        let mut records = self.records.lock();
        // No lock was held while the layer was mounted, and containerd may have removed the parent.
        let is_there = check_parent(&records, parent).is_ok();
        let put = match is_there {
            true => records.put(None, record).map_err(failed),
            false => Err("its parent is gone".into()),
        };
        drop(records);
        put.inspect_err(|_| undo())?;
        if let Some(layer) = to_serve {
            self.serve_soon(layer, files, turn);
        }
        Ok(())
    }

    /// Starts the server of a layer on a thread of its own, so that containerd goes on with the
    /// next one. A call that needs the mount waits for its turn, and retries where this fails.
    fn serve_soon(&self, layer: Layer, files: PathBuf, turn: Turn) {
        let mounts = Arc::clone(&self.mounts);
        let work = move || {
            if let Err(error) = mounts.serve(&layer, &files) {
                tracing::warn!("{} is not mounted yet: {error}", turn.name);
            }
            drop(turn);
        };
        let thread = std::thread::Builder::new().name("serve".into());
        if let Err(error) = thread.spawn(work) {
            tracing::warn!("a layer is mounted when it is asked for: {error}");
        }
    }

    /// `Mounts`.
    pub(crate) fn mounts(&self, key: &str) -> Result<Vec<Mount>, Refusal> {
        self.remount(key)?;
        let records = self.records.lock();
        let record = records.get(key).ok_or_else(|| missing(key))?;
        if record.kind == Kind::Committed {
            return Err(Refusal::new(
                Code::FailedPrecondition,
                format!("snapshot {key} is committed"),
            ));
        }
        self.check_mounted(&records, key)?;
        self.mounts_of(&records, record)
    }

    fn mounts_of(&self, records: &Records, record: &Record) -> Result<Vec<Mount>, Refusal> {
        let path = |path: PathBuf| path.to_string_lossy().into_owned();
        let files = path(self.files(record.id));
        let mut lower = Vec::new();
        let mut parent = &record.parent;
        while !parent.is_empty() {
            let found = records.get(parent).ok_or_else(|| missing(parent))?;
            lower.push(self.files(found.id));
            parent = &found.parent;
        }
        if let Some(owners) = Owners::of(&record.labels)?
            && !owners.are_applied(lower.first().map(PathBuf::as_path))
        {
            let mapped = owners.map(&self.folder(record.id), &lower, &self.mounts);
            lower = mapped.map_err(|error| {
                let text = format!("the owners of its layers cannot be mapped: {error}");
                Refusal::new(Code::Internal, text)
            })?;
        }
        let mut lower: Vec<String> = lower.into_iter().map(path).collect();
        let bind = |source: String, access: &str| {
            Ok(vec![Mount {
                kind: "bind".into(),
                source,
                options: vec![access.into(), "rbind".into()],
            }])
        };
        // The index binds an upper folder to file handles of its lower ones, and a layer that is
        // mounted again has others.
        let mut options = vec!["index=off".to_owned()];
        match (record.kind, lower.len()) {
            (Kind::Active, 0) => return bind(files, "rw"),
            (_, 0) => return bind(files, "ro"),
            (Kind::View, 1) => return bind(lower.remove(0), "ro"),
            (Kind::Active, _) => {
                let work = path(self.folder(record.id).join("work"));
                options.extend([format!("workdir={work}"), format!("upperdir={files}")]);
            }
            _ => {}
        }
        options.push(format!("lowerdir={}", lower.join(":")));
        Ok(vec![Mount {
            kind: "overlay".into(),
            source: "overlay".into(),
            options,
        }])
    }

    /// `Commit`.
    pub(crate) fn commit(&self, request: Commit) -> Result<(), Refusal> {
        check_name(&request.name)?;
        let id = committable(&self.records.lock(), &request)?.id;
        let files = self.files(id);
        // containerd does not unpack again what a record says is there, so a loss of power must not
        // leave empty files behind it.
        sync(&files).map_err(|error| internal(&error))?;
        let usage = usage_of(&files).map_err(|error| internal(&error))?;
        let mut records = self.records.lock();
        // No lock was held meanwhile.
        let found = committable(&records, &request)?;
        if found.id != id {
            return Err(Refusal::new(
                Code::FailedPrecondition,
                format!("snapshot {} was removed and made again", request.key),
            ));
        }
        let mut record = found.clone();
        if !request.parent.is_empty() {
            record.parent = request.parent;
        }
        record.name = request.name;
        record.kind = Kind::Committed;
        record.labels = request.labels;
        // The committed snapshot is a new one.
        record.updated = now();
        record.created = record.updated;
        record.usage = usage;
        records
            .put(Some(&request.key), record)
            .map_err(|error| internal(&error))?;
        drop(records);
        // Overlayfs has no more use for them.
        unmap(&self.folder(id), &self.mounts);
        let _ = fs::remove_dir_all(self.folder(id).join("work"));
        Ok(())
    }

    /// `Remove`.
    pub(crate) fn remove(&self, key: &str) -> Result<(), Refusal> {
        // A server may be about to mount it.
        let turn = self.mounting.take(key);
        let folder = self.detach(key)?;
        drop(turn);
        // Many files take long, and no other call waits for them.
        remove_folder(&folder);
        Ok(())
    }

    /// Removes the record of a snapshot; its folder is returned, under another name.
    pub(super) fn detach(&self, key: &str) -> Result<PathBuf, Refusal> {
        let mut records = self.records.lock();
        // overlayfs' mounts of the children name this snapshot's folder.
        if records.all().any(|it| it.parent == key) {
            return Err(Refusal::new(
                Code::FailedPrecondition,
                format!("cannot remove snapshot {key}: it has children"),
            ));
        }
        let removed = records.remove(key).map_err(|error| internal(&error))?;
        let record = removed.ok_or_else(|| missing(key))?;
        unmap(&self.folder(record.id), &self.mounts);
        if let Some(layer) = &record.layer {
            self.mounts.undo(&self.files(record.id));
            // Images share layers: the contents go with the last snapshot of them. Looked for here
            // first, since a collection reads all records from the disk.
            let mut layers = records.all().filter_map(|it| it.layer.as_ref());
            if !layers.any(|it| it.sha256 == layer.sha256) {
                self.mounts.collect(Some(&layer.sha256));
            }
        }
        Ok(set_aside(self.folder(record.id)))
    }

    /// `Stat`.
    pub(crate) fn stat(&self, key: &str) -> Result<Info, Refusal> {
        let records = self.records.lock();
        records
            .get(key)
            .map(Record::info)
            .ok_or_else(|| missing(key))
    }

    /// `Update`.
    pub(crate) fn update(&self, request: Update) -> Result<Info, Refusal> {
        let info = request.info.unwrap_or_default();
        let mut records = self.records.lock();
        let mut record = (records.get(&info.name).cloned()).ok_or_else(|| missing(&info.name))?;
        let owners = |it: &Record| (it.kind != Kind::Committed).then(|| Owners::of(&it.labels));
        let before = owners(&record);
        let paths = request.mask.unwrap_or_default().paths;
        if paths.is_empty() {
            record.labels.clone_from(&info.labels);
        }
        for path in paths {
            match path.strip_prefix("labels.") {
                _ if path == "labels" => record.labels.clone_from(&info.labels),
                Some(label) => {
                    match info.labels.get(label).filter(|value| !value.is_empty()) {
                        // An empty value removes the label, as in containerd's own snapshotters.
                        Some(value) => record.labels.insert(label.into(), value.clone()),
                        None => record.labels.remove(label),
                    };
                }
                None => {
                    return Err(Refusal::new(
                        Code::InvalidArgument,
                        format!("the field {path} of a snapshot cannot be changed"),
                    ));
                }
            }
        }
        // Its folders have them.
        if owners(&record) != before {
            let text = "the owners of a snapshot are mapped as it is made";
            return Err(Refusal::new(Code::InvalidArgument, text));
        }
        record.updated = now();
        let info = record.info();
        let name = record.name.clone();
        records
            .put(Some(&name), record)
            .map_err(|error| internal(&error))?;
        Ok(info)
    }

    /// `List`.
    pub(crate) fn list(&self, filters: &[String]) -> Vec<Info> {
        let records = self.records.lock();
        let found = records.all().filter(|it| it.matches(filters));
        found.map(Record::info).collect()
    }

    /// The numbers of snapshots and of mounted layers, and of those that could not be mounted.
    pub(crate) fn status(&self) -> Value {
        let records = self.records.lock();
        json!({
            "snapshots": records.all().count(),
            "layers": records.all().filter(|it| it.layer.is_some()).count(),
            "unmounted_total": self.unmounted.load(Ordering::Relaxed),
        })
    }

    /// `Usage`.
    pub(crate) fn usage(&self, key: &str) -> Result<Usage, Refusal> {
        let record = self.records.lock().get(key).cloned();
        let record = record.ok_or_else(|| missing(key))?;
        let (size, inodes) = match (&record.layer, record.kind) {
            (Some(layer), _) => self.mounts.usage(&layer.sha256),
            (None, Kind::Committed) => record.usage,
            // Files may go while they are counted.
            (None, _) => usage_of(&self.files(record.id)).map_err(|error| internal(&error))?,
        };
        Ok(Usage { size, inodes })
    }

    /// `Cleanup`: removes folders and layers without a record.
    pub(crate) fn cleanup(&self) {
        // A layer that is being mounted has no record yet.
        let Some(none) = self.mounting.all_free() else {
            return;
        };
        let records = self.records.lock();
        let ids: BTreeSet<String> = records.all().map(|it| it.id.to_string()).collect();
        let entries = fs::read_dir(self.root.join("snapshots"));
        let mut aside = Vec::new();
        for entry in entries.into_iter().flatten().flatten() {
            if !ids.contains(&*entry.file_name().to_string_lossy()) {
                unmap(&entry.path(), &self.mounts);
                self.mounts.undo(&entry.path().join("fs"));
                aside.push(set_aside(entry.path()));
            }
        }
        self.mounts.collect(None);
        drop((records, none));
        for folder in aside {
            remove_folder(&folder);
        }
    }

    fn folder(&self, id: u64) -> PathBuf {
        self.root.join("snapshots").join(id.to_string())
    }

    fn files(&self, id: u64) -> PathBuf {
        self.folder(id).join("fs")
    }
}

/// Refuses an empty name: it stands for no parent.
fn check_name(name: &str) -> Result<(), Refusal> {
    match name {
        "" => Err(Refusal::new(Code::InvalidArgument, "a snapshot has a name")),
        _ => Ok(()),
    }
}

fn mode(bits: u32) -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(bits)
}

fn internal(error: &io::Error) -> Refusal {
    Refusal::new(Code::Internal, error.to_string())
}
