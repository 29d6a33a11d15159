//! Stores of versions: `store:PLACE#NAME`, where PLACE is a folder or the URL of one.
//!
//! Why here: `sidecore-store` knows files; this module adds objects of buckets (`bucket`), of web
//! servers, which are read alone, and of registries (`registry`), which get a store as a whole.
//! Must stay true: what a server sends is only bytes: the store checks each object against its
//! name.
//! Called from: any thread; blocks.

mod bucket;

pub use bucket::BucketBackend;

use crate::origin::{Ask, Origin};
use crate::{Location, Retry, patiently};
use parking_lot::Mutex;
use registry::RegistryBackend;
use sidecore_store::{Backend, Copied, FolderBackend, Lock, Store, StoreError};
use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The place and the version in `store:PLACE#NAME`; `None` for another name of an image.
#[must_use]
pub(crate) fn parts(path: &Path) -> Option<(&str, &str)> {
    // A version's name has no `#`, but a folder's may have.
    path.to_str()?.strip_prefix(SCHEME)?.rsplit_once('#')
}

/// Opens the store at a place: a folder, a bucket, or a URL or an image of a registry, which are
/// read alone. Blocks.
///
/// # Errors
/// [`StoreError::NoStore`] and others.
pub fn open(place: &Path) -> Result<Store, StoreError> {
    match backend(place)? {
        Some(backend) => Store::open(backend),
        None => match FolderBackend::open(place) {
            Ok(folder) => Store::open(Arc::new(folder)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(StoreError::NoStore(shown(place)))
            }
            Err(error) => Err(failed(place, error)),
        },
    }
}

/// Makes a store at a place that has none: a folder, which is made where it is not there, or a
/// bucket. Its chunks have `chunk_bytes` on average. Blocks.
///
/// # Errors
/// As [`Store::create_in`]; a place that is read alone.
pub fn create(place: &Path, chunk_bytes: u64) -> Result<Store, StoreError> {
    match backend(place)? {
        Some(backend) => Store::create(backend, chunk_bytes),
        None => Store::create_in(place, chunk_bytes),
    }
}

/// Copies versions to another place, with what it lacks of them; all versions unless `names` are
/// given. A store is made there where there is none. With `replace`, a name may stand for another
/// version there. `progress` is called with the number of bytes written. Blocks.
///
/// # Errors
/// As [`Store::copy_to`] and [`create`].
pub fn copy(
    from: &Store,
    to: &Path,
    names: &[String],
    replace: bool,
    progress: &mut dyn FnMut(u64),
) -> Result<Copied, StoreError> {
    let location = to.to_str().and_then(Location::parse);
    if let Some(Ok(location @ Location::Oci { .. })) = location {
        return registry::push(from, &location, names, replace, progress);
    }
    let to = match open(to) {
        Err(StoreError::NoStore(_)) => create(to, from.chunk_bytes().into())?,
        opened => opened?,
    };
    from.copy_to(&to, names, replace, progress)
}

/// The objects at a place that is no folder.
fn backend(place: &Path) -> Result<Option<Arc<dyn Backend>>, StoreError> {
    let Some(location) = place.to_str().and_then(Location::parse) else {
        return Ok(None);
    };
    let location = location.map_err(|error| failed(place, io::Error::other(error)))?;
    let made: io::Result<Arc<dyn Backend>> = match location {
        Location::S3 { .. } => BucketBackend::new(&location, Retry::default())
            .map(|backend| Arc::new(backend) as Arc<dyn Backend>),
        Location::Http(_) => {
            RemoteBackend::new(location).map(|backend| Arc::new(backend) as Arc<dyn Backend>)
        }
        Location::Oci { .. } => {
            RegistryBackend::new(&location).map(|backend| Arc::new(backend) as Arc<dyn Backend>)
        }
    };
    made.map(Some).map_err(|error| failed(place, error))
}

fn failed(place: &Path, source: io::Error) -> StoreError {
    StoreError::Io {
        doing: "open",
        what: "store".to_owned(),
        place: shown(place),
        source,
    }
}

/// A place for messages, without secrets.
pub(crate) fn shown(place: &Path) -> String {
    match place.to_str().and_then(Location::parse) {
        Some(Ok(location)) => location.to_string(),
        Some(Err(_)) => "the store".to_owned(),
        None => place.display().to_string(),
    }
}

/// The objects of a store below a URL.
struct RemoteBackend {
    base: Location,
    retry: Retry,
    first: Origin,
    /// Objects that were asked for, with the targets of their redirects.
    origins: Mutex<HashMap<String, Arc<Origin>>>,
}

impl RemoteBackend {
    fn new(base: Location) -> io::Result<Self> {
        let retry = Retry::default();
        let first = object(&base, SETTINGS)?;
        Ok(Self {
            first: Origin::new(&first, &retry, true)?,
            base,
            retry,
            origins: Mutex::default(),
        })
    }

    fn origin(&self, key: &str) -> io::Result<Arc<Origin>> {
        if let Some(origin) = self.origins.lock().get(key) {
            return Ok(Arc::clone(origin));
        }
        let location = object(&self.base, key)?;
        let origin = Arc::new(self.first.sibling(&location, &self.retry)?);
        let mut origins = self.origins.lock();
        // Bounded: those of a store with thousands of packs are made again when they are wanted.
        if origins.len() >= ORIGINS_MAX {
            origins.clear();
        }
        origins.insert(key.to_owned(), Arc::clone(&origin));
        Ok(origin)
    }

    /// The bytes of an object, and its size.
    fn ask(&self, key: &str, ask: &Ask) -> io::Result<(Vec<u8>, u64)> {
        let origin = self.origin(key)?;
        let get = || origin.get(ask, None, &mut |_| ());
        let reply = patiently(&self.retry, 5, get)?;
        Ok((reply.bytes, reply.identity.size_bytes))
    }
}

impl Backend for RemoteBackend {
    fn name(&self) -> String {
        self.base.to_string()
    }

    fn get(&self, key: &str, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
        let (bytes, size_bytes) = self.ask(key, &Ask::Head(bytes_max.max(1)))?;
        match size_bytes <= bytes_max {
            true => Ok(Some(bytes)),
            false => Err(io::Error::other("it is longer than its kind can be")),
        }
    }

    fn read(&self, key: &str, range: Range<u64>) -> io::Result<Vec<u8>> {
        match range.is_empty() {
            true => Ok(Vec::new()),
            false => Ok(self.ask(key, &Ask::Range(range))?.0),
        }
    }

    fn read_end(&self, key: &str, bytes_max: u64) -> io::Result<Option<(u64, Vec<u8>)>> {
        let (bytes, size_bytes) = self.ask(key, &Ask::Tail(bytes_max.max(1)))?;
        Ok(Some((size_bytes, bytes)))
    }

    fn size(&self, key: &str) -> io::Result<Option<u64>> {
        Ok(Some(self.ask(key, &Ask::Head(1))?.1))
    }

    fn put(&self, _: &str, _: &[u8]) -> io::Result<()> {
        Err(read_only())
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Err(read_only())
    }

    fn list(&self, _: &str) -> io::Result<Vec<String>> {
        let text = "a store behind a web server is not listed; name a version, or use its folder \
                    or its bucket";
        Err(io::Error::new(io::ErrorKind::Unsupported, text))
    }

    fn lock(&self) -> io::Result<Lock> {
        Err(read_only())
    }
}

fn read_only() -> io::Error {
    let text = "a store behind a web server is read alone; write to its folder or its bucket";
    io::Error::new(io::ErrorKind::Unsupported, text)
}

/// The location of an object of the store at `base`.
fn object(base: &Location, key: &str) -> io::Result<Location> {
    match base {
        Location::Http(url) => {
            // A query may be needed for each object.
            let end = url.find(['?', '#']).unwrap_or(url.len());
            let (path, query) = url.split_at(end);
            let path = path.trim_end_matches('/');
            Ok(Location::Http(format!("{path}/{key}{query}")))
        }
        Location::S3 { .. } | Location::Oci { .. } => Err(io::Error::other(
            "a store is a folder, or one behind http://, https:// or s3://",
        )),
    }
}

/// Begin of the name of a version as an image.
const SCHEME: &str = "store:";
const SETTINGS: &str = "store";
const ORIGINS_MAX: usize = 256;

mod registry {
    //! A store of versions in a registry: a manifest whose layers are the objects, under a tag.
    //!
    //! Why here: a registry keeps blobs by their SHA-256 and names manifests by tags; it has no
    //! writes of single objects. So a store is pushed there as a whole, and read alone.
    //! Must stay true: a tag names a whole store at any time: the manifest is pushed last. What a
    //! tag has already stays, and another kind of image is not replaced. Keys in annotations are
    //! used only if they are those of a store's objects; small objects are checked by their digest,
    //! and parts of packs by the store.
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
            // Bounded: those of a store with thousands of packs are made again when they are
            // wanted.
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

    /// Adds versions of a store to the one under a tag, which is made where it is not there.
    /// Returns what was copied. Blocks.
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
        let old =
            text.and_then(|text| text.map_or_else(|| Ok(Objects::new()), |it| objects_of(&it)));
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
            Some((folder, name)) => {
                ["packs", "manifests", "refs"].contains(&folder) && is_plain(name)
            }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_versions_are_told_from_other_names() {
        let parts = |text| parts(Path::new(text));
        assert_eq!(parts("store:/srv/a#disk:1"), Some(("/srv/a", "disk:1")));
        assert_eq!(parts("store:a#b#c"), Some(("a#b", "c")));
        let remote = "store:https://host/store#disk";
        assert_eq!(parts(remote), Some(("https://host/store", "disk")));
        for other in ["store:/srv/a", "/srv/a#b", "https://host/store#x"] {
            assert_eq!(parts(other), None, "{other}");
        }
    }

    #[test]
    fn objects_lie_below_the_url_of_their_store() {
        let of = |url: &str| {
            let base = Location::parse(url).unwrap().unwrap();
            object(&base, "refs/a").map(|it| match it {
                Location::Http(url) => url,
                other => other.to_string(),
            })
        };
        let signed = of("https://host/x/?sig=1").unwrap();
        assert_eq!(signed, "https://host/x/refs/a?sig=1");
        of("oci://host/x:1").unwrap_err();
    }
}
