//! Stores of versions: `store:PLACE#NAME`, where PLACE is a folder or the URL of one.
//!
//! Why here: `sidecore-store` knows files; this module adds objects of buckets (`bucket`), of web
//! servers, which are read alone, and of registries (`registry`), which get a store as a whole.
//! Must stay true: what a server sends is only bytes: the store checks each object against its
//! name.
//! Called from: any thread; blocks.

mod bucket;
mod registry;

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
