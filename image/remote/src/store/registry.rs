//! A store of versions in a registry: a manifest whose layers are the objects, under a tag.
//!
//! Why here: a registry keeps blobs by their SHA-256 and names manifests by tags; it has no writes
//! of single objects. So a store is pushed there as a whole, and read alone.
//! Must stay true: a tag names a whole store at any time: the manifest is pushed last. What a tag
//! has already stays, and another kind of image is not replaced. Keys in annotations are used only
//! if they are those of a store's objects; small objects are checked by their digest, and parts of
//! packs by the store.
//! Called from: any thread; blocks.
//! Source: OCI Image Format Specification 1.1, "Guidelines for Artifact Usage".

use super::bucket::{changes, is_plain};
use super::{ORIGINS_MAX, SETTINGS};
use crate::blob::RemoteBlob;
use crate::fault::Fault;
use crate::location::is_sha256;
use crate::origin::oci::{Descriptor, MANIFEST_TYPE, Repository};
use crate::{Location, Retry, patiently};
use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use serde::Deserialize;
use serde_json::json;
use sidecore_bare::width::ToU64;
use sidecore_block::trust::digits_of;
use sidecore_store::{Backend, Copied, Lock, Store, StoreError};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Digest and size of each object, by its key.
type Objects = BTreeMap<String, (String, u64)>;

/// The objects of a store under a tag, as they were when it was opened.
pub(super) struct RegistryBackend {
    location: Location,
    repository: Repository,
    objects: Objects,
    /// Packs that parts were read of.
    blobs: Mutex<HashMap<String, Arc<RemoteBlob>>>,
}

impl RegistryBackend {
    /// Reads the manifest at `oci://REGISTRY/REPOSITORY:TAG`. Blocks.
    ///
    /// # Errors
    /// The registry's; a manifest that is no store's.
    pub(super) fn new(location: &Location) -> io::Result<Self> {
        let (repository, reference) = parts(location)?;
        let text = repository.image(reference)?.text;
        Ok(Self {
            location: location.clone(),
            objects: objects_of(&text)?,
            repository,
            blobs: Mutex::default(),
        })
    }

    fn blob(&self, sha256: &str) -> io::Result<Arc<RemoteBlob>> {
        let mut blobs = self.blobs.lock();
        if let Some(blob) = blobs.get(sha256) {
            return Ok(Arc::clone(blob));
        }
        // Bounded: those of a store with thousands of packs are made again when they are wanted.
        if blobs.len() >= ORIGINS_MAX {
            blobs.clear();
        }
        let blob = Arc::new(RemoteBlob::new(&self.repository, sha256)?);
        blobs.insert(sha256.to_owned(), Arc::clone(&blob));
        Ok(blob)
    }
}

impl Backend for RegistryBackend {
    fn name(&self) -> String {
        self.location.to_string()
    }

    fn get(&self, key: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let Some((sha256, size_bytes)) = self.objects.get(key) else {
            return Ok(None);
        };
        if *size_bytes > bytes_max {
            return Err(io::Error::other("it is longer than its kind can be"));
        }
        Ok(Some(self.repository.small_blob(sha256, bytes_max)?))
    }

    fn read(&self, key: &str, range: Range<u64>) -> io::Result<Vec<u8>> {
        let found = self.objects.get(key);
        let (sha256, size_bytes) = found.ok_or(io::ErrorKind::NotFound)?;
        if range.end > *size_bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match range.is_empty() {
            true => Ok(Vec::new()),
            false => self.blob(sha256)?.read(range),
        }
    }

    fn size(&self, key: &str) -> io::Result<Option<u64>> {
        Ok(self.objects.get(key).map(|(_, size_bytes)| *size_bytes))
    }

    fn put(&self, _: &str, _: &[u8]) -> io::Result<()> {
        Err(read_only())
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Err(read_only())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let begin = format!("{folder}/");
        let names = self
            .objects
            .keys()
            .filter_map(|key| key.strip_prefix(&begin));
        Ok(names.map(str::to_owned).collect())
    }

    fn lock(&self) -> io::Result<Lock> {
        Err(read_only())
    }
}

fn read_only() -> io::Error {
    let text = "a store in a registry is read alone; `sidecore store copy` adds versions to it";
    io::Error::new(io::ErrorKind::Unsupported, text)
}

/// Adds versions of a store to the one under a tag, which is made where it is not there. Returns
/// what was copied. Blocks.
///
/// # Errors
/// [`StoreError::Exists`]: a name stands for another version there, and may not be replaced.
pub(super) fn push(
    from: &Store,
    location: &Location,
    names: &[String],
    replace: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<Copied, StoreError> {
    let failed = |doing, what: &str, source| StoreError::Io {
        doing,
        what: what.to_owned(),
        place: location.to_string(),
        source,
    };
    let (repository, tag) = parts(location).map_err(|error| failed("open", "store", error))?;
    // Before anything is pushed: what has a digest for its name never changes.
    if tag.starts_with("sha256:") {
        let text = "a digest names what is there already; name a tag";
        return Err(failed("write", "store", io::Error::other(text)));
    }
    let text = (repository.tagged(tag, MANIFEST_TYPE)).map_err(io::Error::from);
    let old = text.and_then(|text| text.map_or_else(|| Ok(Objects::new()), |it| objects_of(&it)));
    let old = old.map_err(|error| failed("read", "store", error))?;
    let mut objects = old.clone();
    let mut copied = Copied::default();
    let has = |key: &str| old.contains_key(key);
    let mut put = |key: &str, bytes: &[u8]| {
        let sha256 = digits_of(digest(&SHA256, bytes).as_ref());
        let is_same = old.get(key).map(|(there, _)| *there == sha256);
        let name = key.strip_prefix("refs/");
        if is_same == Some(true) {
            copied.unchanged += u64::from(name.is_some());
            return Ok(());
        }
        if let Some(name) = name.filter(|_| is_same.is_some() && !replace) {
            return Err(StoreError::Exists(name.to_owned()));
        }
        let pushed = patiently(repository.retry(), 13, || repository.push_blob(bytes));
        pushed.map_err(|fault| failed("write", key, fault.into()))?;
        objects.insert(key.to_owned(), (sha256, bytes.len().to_u64()));
        if !changes(key) {
            copied.objects += 1;
            copied.copied_bytes += bytes.len().to_u64();
            progress(copied.copied_bytes);
        }
        Ok(())
    };
    let versions = from.export(names, &has, &mut put)?;
    copied.versions = versions;
    if objects != old {
        let pushed = push_manifest(&repository, tag, &objects);
        pushed.map_err(|fault| failed("write", "store", fault.into()))?;
    }
    Ok(copied)
}

/// Pushes the manifest of these objects.
fn push_manifest(repository: &Repository, tag: &str, objects: &Objects) -> Result<(), Fault> {
    let empty = b"{}";
    patiently(repository.retry(), 14, || repository.push_blob(empty))?;
    let layer = |(key, (sha256, size)): (&String, &(String, u64))| Descriptor {
        media_type: OBJECT_TYPE.to_owned(),
        digest: format!("sha256:{sha256}"),
        size: *size,
        artifact_type: None,
        annotations: BTreeMap::from([(KEY.to_owned(), key.clone())]),
        platform: None,
    };
    let layers: Vec<Descriptor> = objects.iter().map(layer).collect();
    let empty_sha256 = digits_of(digest(&SHA256, empty).as_ref());
    let document = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": STORE_TYPE,
        "config": {
            "mediaType": "application/vnd.oci.empty.v1+json",
            "digest": format!("sha256:{empty_sha256}"),
            "size": empty.len(),
        },
        "layers": layers,
    });
    let text = document.to_string();
    if text.len().to_u64() > TEXT_BYTES_MAX {
        return Err(Fault::Final(format!(
            "{} objects are more than a manifest has room for; push fewer versions under a tag",
            objects.len()
        )));
    }
    let push = || repository.push_manifest(tag, MANIFEST_TYPE, text.as_bytes());
    patiently(repository.retry(), 15, push).map(|_| ())
}

/// The repository of a location, and its tag or digest.
fn parts(location: &Location) -> io::Result<(Repository, &str)> {
    match location {
        Location::Oci {
            registry,
            repository,
            reference,
        } => {
            let repository = Repository::new(registry, repository, Retry::default())?;
            Ok((repository, reference.as_str()))
        }
        Location::Http(_) | Location::S3 { .. } => Err(io::Error::other("it is no registry")),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    artifact_type: Option<String>,
    #[serde(default)]
    layers: Vec<Descriptor>,
}

/// The objects in a store's manifest.
fn objects_of(text: &[u8]) -> io::Result<Objects> {
    let document: Document = serde_json::from_slice(text).map_err(io::Error::other)?;
    if document.artifact_type.as_deref() != Some(STORE_TYPE) {
        return Err(io::Error::other(
            "it is an image of another kind, and no store",
        ));
    }
    let object = |it: Descriptor| {
        let key = it.annotations.get(KEY).filter(|key| is_key(key))?.clone();
        let sha256 = it.digest.strip_prefix("sha256:")?.to_owned();
        is_sha256(&sha256).then_some((key, (sha256, it.size)))
    };
    Ok(document.layers.into_iter().filter_map(object).collect())
}

/// True for the key of an object that a registry has of a store.
fn is_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((folder, name)) => ["packs", "manifests", "refs"].contains(&folder) && is_plain(name),
        None => key == SETTINGS,
    }
}

/// Type of a store as an artifact, and of its objects.
const STORE_TYPE: &str = "application/vnd.sidecore.store.v1";
const OBJECT_TYPE: &str = "application/vnd.sidecore.store.object.v1";
/// The annotation of a layer that is an object's key.
const KEY: &str = "dev.sidecore.store.key";
/// Longer manifests are refused by registries, and by the reader.
const TEXT_BYTES_MAX: u64 = 4 << 20;
