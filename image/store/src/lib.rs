//! A content-addressed store of disk images: versions and images share their chunks.
//!
//! - [`Backend`]: the place of the objects; [`FolderBackend`] is a folder.
//! - [`Domain`]: writers that share chunks, and the keys that open what they have stored.
//! - `pack`, `manifest`: the objects: chunks in packs, a version as a list of chunks.
//! - [`Session`]: a writer: cuts an image, stores what is new, publishes a name.
//! - [`Version`]: a published version, read at any offset; a source for `sidecore-block`'s device.
//! - `gc`: leases of writers, and removal of what no name needs, in two phases.
//! - `check`: integrity, compaction, copies to another store, figures; `report`: these for people.
//!
//! Must stay true: a name leads to a whole version, whatever writer, collector or machine died in
//! between. Bytes are delivered only if they are the ones that were stored. Nothing that a store
//! holds is believed: lengths, places and counts are bounded before memory is taken.
//! The objects byte by byte, and the proof of the garbage collection: `docs/store.md`.

mod backend;
mod check;
mod domain;
mod gc;
mod manifest;
mod pack;
mod report;
mod version;
mod writer;

pub use backend::{Backend, FolderBackend, Lock};
pub use check::{Checked, Compacted, Copied, Listed, Totals};
pub use domain::Domain;
pub use gc::Collected;
pub use report::{Gone, Keys, Made, Removed};
pub use version::Version;
pub use writer::{Added, Session, Stored};

use backend::{Id, REFS};
use manifest::{Head, MANIFEST_BYTES_MAX, Manifest};
use pack::in_parts;
use sidecore_block::codec::CodecError;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// Reasons why a store cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// An operation on an object failed.
    #[error("cannot {doing} `{what}` of the store {place}: {source}")]
    Io {
        /// The operation.
        doing: &'static str,
        /// The object's key.
        what: String,
        /// The store.
        place: String,
        /// The system's error.
        source: io::Error,
    },
    /// An object is not what it should be.
    #[error("`{what}` of the store is damaged: {reason}; `sidecore store verify` lists all damage")]
    Damaged {
        /// The object's key, and the part of it.
        what: String,
        /// The fault.
        reason: String,
    },
    /// The place holds no store.
    #[error("{0} holds no store; `sidecore store init` makes one")]
    NoStore(String),
    /// The place holds one already.
    #[error("{0} holds a store already")]
    IsStore(String),
    /// A folder for a store.
    #[error("cannot make {}: {source}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The average of chunks.
    #[error("chunks of {0} bytes: the average is a power of two from 4KiB to 1MiB")]
    ChunkBytes(u64),
    /// Not a name.
    #[error(
        "`{0}` is no name of a version: it takes 1 to 128 letters, digits and `._-+:@`, and begins \
         with a letter or a digit"
    )]
    Name(String),
    /// No such version.
    #[error("the store has no version `{0}`; `sidecore store list` names those that it has")]
    Unknown(String),
    /// The name is in use.
    #[error("the store has a version `{0}` already; take another name, or --replace")]
    Exists(String),
    /// Another writer was faster.
    #[error("another writer has changed `{0}` meanwhile; run the command again")]
    Changed(String),
    /// A collection removes an object at this moment.
    #[error(
        "`{0}` is being removed from the store by a collection; run `sidecore store gc` on it, and \
         then the command again"
    )]
    Going(String),
    /// The writer was held up for longer than its lease.
    #[error(
        "the writer's lease has ended, so that what it relied on may be gone; nothing was \
         published, run the command again"
    )]
    LeaseLost,
    /// A version of another domain.
    #[error(
        "`{0}` belongs to another domain, or is encrypted: name the file of its keys with --domain"
    )]
    Domain(String),
    /// A version without encryption, where keys were given.
    #[error("`{0}` is not encrypted; leave out --domain, or fetch the right store")]
    NotEncrypted(String),
    /// A file of keys.
    #[error("cannot use the keys in {}: {source}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The cipher, or the system's random numbers.
    #[error("the cipher or the system's random source failed")]
    Cipher,
    /// The codec.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The image that is added.
    #[error("cannot read the image: {0}")]
    Source(#[from] sidecore_block::source::ReadError),
    /// A bound of the format.
    #[error("{0}")]
    Limit(&'static str),
}

impl StoreError {
    pub(crate) fn io(
        doing: &'static str,
        what: &str,
        backend: &dyn Backend,
        source: io::Error,
    ) -> Self {
        Self::Io {
            doing,
            what: what.to_owned(),
            place: backend.name(),
            source,
        }
    }

    pub(crate) fn damaged(what: &str, reason: impl Into<String>) -> Self {
        Self::Damaged {
            what: what.to_owned(),
            reason: reason.into(),
        }
    }
}

/// Settings of a store, in its object `store`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Settings {
    format: String,
    version: u32,
    chunk_bytes: u32,
}

/// The time in milliseconds since 1970.
type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// An open store. Cheap to clone; any thread may use it.
#[derive(Clone)]
pub struct Store {
    backend: Arc<dyn Backend>,
    chunk_bytes: u32,
    clock: Clock,
}

impl Store {
    /// Makes a store at a place that has none. Its chunks have `chunk_bytes` on average, a power of
    /// two from 4 KiB to 1 MiB: smaller ones share more and cost more entries. Blocks.
    ///
    /// # Errors
    /// [`StoreError::IsStore`], [`StoreError::ChunkBytes`], [`StoreError::Io`].
    pub fn create(backend: Arc<dyn Backend>, chunk_bytes: u64) -> Result<Self, StoreError> {
        let refused = StoreError::ChunkBytes(chunk_bytes);
        let chunk_bytes = u32::try_from(chunk_bytes).ok();
        let chunk_bytes = chunk_bytes
            .filter(|&bytes| is_chunk(bytes))
            .ok_or(refused)?;
        let store = Self::of(backend, chunk_bytes);
        let _lock = store.lock()?;
        if store.get(SETTINGS, SETTINGS_BYTES_MAX)?.is_some() {
            return Err(StoreError::IsStore(store.backend.name()));
        }
        let settings = Settings {
            format: FORMAT.to_owned(),
            version: VERSION,
            chunk_bytes,
        };
        store.put_json(SETTINGS, &settings)?;
        Ok(store)
    }

    /// As [`Self::create`], in a folder, which is made where it is not there.
    ///
    /// # Errors
    /// As [`Self::create`], [`StoreError::Folder`]; chunks of no such size make no folder.
    pub fn create_in(folder: &Path, chunk_bytes: u64) -> Result<Self, StoreError> {
        if !u32::try_from(chunk_bytes).is_ok_and(is_chunk) {
            return Err(StoreError::ChunkBytes(chunk_bytes));
        }
        let backend = FolderBackend::create(folder).map_err(|source| StoreError::Folder {
            path: folder.to_owned(),
            source,
        })?;
        Self::create(Arc::new(backend), chunk_bytes)
    }

    /// Opens the store at a place. Blocks.
    ///
    /// # Errors
    /// [`StoreError::NoStore`], [`StoreError::Damaged`], [`StoreError::Io`].
    pub fn open(backend: Arc<dyn Backend>) -> Result<Self, StoreError> {
        let store = Self::of(backend, CHUNK_BYTES);
        let none = || StoreError::NoStore(store.backend.name());
        let bytes = store.get(SETTINGS, SETTINGS_BYTES_MAX)?;
        let settings: Settings = parse_json(SETTINGS, &bytes.ok_or_else(none)?)?;
        if settings.format != FORMAT || settings.version != VERSION {
            let reason = "it is of another version; update this program";
            return Err(StoreError::damaged(SETTINGS, reason));
        }
        match is_chunk(settings.chunk_bytes) {
            true => Ok(Self {
                chunk_bytes: settings.chunk_bytes,
                ..store
            }),
            false => Err(StoreError::damaged(SETTINGS, "its chunks have no size")),
        }
    }

    fn of(backend: Arc<dyn Backend>, chunk_bytes: u32) -> Self {
        let clock = || {
            let elapsed = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            let elapsed = elapsed.map_or(0, |elapsed| elapsed.as_millis());
            u64::try_from(elapsed).unwrap_or(u64::MAX)
        };
        Self {
            backend,
            chunk_bytes,
            clock: Arc::new(clock),
        }
    }

    /// The same store with another clock, in milliseconds: tests decide when a lease ends.
    #[doc(hidden)]
    #[must_use]
    pub fn with_clock(mut self, clock: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Names of all versions, sorted. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        let names = self.list(REFS)?;
        Ok(names.into_iter().filter(|name| is_name(name)).collect())
    }

    /// Removes a version; the space is freed by later garbage collections. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], [`StoreError::Name`], [`StoreError::Io`].
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        // A publication in progress sees the name as it was, or without it.
        let _lock = self.lock()?;
        match self.reference(name) {
            // Else a damaged name would stay, and end every garbage collection.
            Ok(Some(_)) | Err(StoreError::Damaged { .. }) => {}
            Ok(None) => return Err(StoreError::Unknown(name.to_owned())),
            Err(error) => return Err(error),
        }
        self.remove_object(&reference_key(name))
    }

    /// Makes sure that a version can be published under a name, before its image is read; with
    /// `replace`, also where there is one. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::Name`], [`StoreError::Damaged`], [`StoreError::Io`].
    pub fn check_name(&self, name: &str, replace: bool) -> Result<(), StoreError> {
        match self.reference(name)? {
            Some(_) if !replace => Err(StoreError::Exists(name.to_owned())),
            _ => Ok(()),
        }
    }

    /// Average bytes of a chunk's contents.
    #[must_use]
    pub fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    fn now_ms(&self) -> u64 {
        (self.clock)()
    }

    /// The manifest that a name stands for.
    fn reference(&self, name: &str) -> Result<Option<Id>, StoreError> {
        if !is_name(name) {
            return Err(StoreError::Name(name.to_owned()));
        }
        let key = reference_key(name);
        let Some(bytes) = self.get(&key, REFERENCE_BYTES_MAX)? else {
            return Ok(None);
        };
        let text = String::from_utf8(bytes).unwrap_or_default();
        let id = text.strip_suffix('\n').and_then(Id::parse);
        id.map(Some)
            .ok_or_else(|| StoreError::damaged(&key, "it is not the id of a manifest"))
    }

    /// The head and the bytes of a manifest, which have its id.
    fn manifest_bytes(&self, id: &Id) -> Result<(Head, Vec<u8>), StoreError> {
        let key = id.manifest();
        let bytes = self.get(&key, MANIFEST_BYTES_MAX)?;
        let bytes = bytes.ok_or_else(|| StoreError::damaged(&key, "it is not there"))?;
        if Id::of(&bytes) != *id {
            return Err(StoreError::damaged(
                &key,
                "its bytes are not those of its name",
            ));
        }
        let head = Head::parse(&bytes).map_err(|reason| StoreError::damaged(&key, reason))?;
        Ok((head, bytes))
    }

    /// The manifest of a version, for the keys of a domain.
    fn manifest(&self, name: &str, domain: &Domain) -> Result<(Id, Manifest), StoreError> {
        let id = self.reference(name)?;
        let id = id.ok_or_else(|| StoreError::Unknown(name.to_owned()))?;
        let (head, bytes) = self.manifest_bytes(&id)?;
        if head.tag != domain.tag() {
            return Err(match head.key {
                0 => StoreError::NotEncrypted(name.to_owned()),
                _ => StoreError::Domain(name.to_owned()),
            });
        }
        let key = id.manifest();
        let manifest = Manifest::parse(head, &bytes, domain);
        let manifest = manifest.map_err(|reason| StoreError::damaged(&key, reason))?;
        // Else the place's owner could pass one version off as another one.
        if manifest.name != name {
            let reason = format!("it was published as `{}`", manifest.name);
            return Err(StoreError::damaged(&reference_key(name), reason));
        }
        Ok((id, manifest))
    }

    fn get(&self, key: &str, bytes_max: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let found = self.backend.get(key, bytes_max);
        found.map_err(|source| StoreError::io("read", key, &*self.backend, source))
    }

    fn put(&self, key: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let written = self.backend.put(key, bytes);
        written.map_err(|source| StoreError::io("write", key, &*self.backend, source))
    }

    fn put_json<T: serde::Serialize>(&self, key: &str, value: &T) -> Result<(), StoreError> {
        let text = serde_json::to_vec(value).map_err(|error| {
            let source = io::Error::other(error);
            StoreError::io("write", key, &*self.backend, source)
        })?;
        self.put(key, &text)
    }

    fn size(&self, key: &str) -> Result<Option<u64>, StoreError> {
        let size = self.backend.size(key);
        size.map_err(|source| StoreError::io("look at", key, &*self.backend, source))
    }

    /// Sizes of objects in bytes; 0 of one that is not there.
    fn sizes(&self, keys: &[String]) -> Result<Vec<u64>, StoreError> {
        in_parts(keys, self.backend.requests_max(), |part| {
            let size =
                |key: &String| -> Result<u64, StoreError> { Ok(self.size(key)?.unwrap_or(0)) };
            part.iter().map(size).collect()
        })
    }

    fn remove_object(&self, key: &str) -> Result<(), StoreError> {
        let removed = self.backend.remove(key);
        removed.map_err(|source| StoreError::io("remove", key, &*self.backend, source))
    }

    fn list(&self, folder: &str) -> Result<Vec<String>, StoreError> {
        let names = self.backend.list(folder);
        names.map_err(|source| StoreError::io("list", folder, &*self.backend, source))
    }

    fn lock(&self) -> Result<Lock, StoreError> {
        let lock = self.backend.lock();
        lock.map_err(|source| StoreError::io("lock", "store", &*self.backend, source))
    }
}

/// Key of the reference of a name.
fn reference_key(name: &str) -> String {
    format!("{REFS}/{name}")
}

/// The sum of sizes that a server has stated: any.
fn sum(sizes: &[u64]) -> u64 {
    sizes.iter().fold(0, |sum, size| sum.saturating_add(*size))
}

fn parse_json<T: serde::de::DeserializeOwned>(key: &str, bytes: &[u8]) -> Result<T, StoreError> {
    serde_json::from_slice(bytes).map_err(|error| StoreError::damaged(key, error.to_string()))
}

/// True for what can be the name of a version: it becomes a file's name and a part of a URL.
fn is_name(name: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+:@".contains(&byte);
    name.len() <= NAME_BYTES_MAX
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.bytes().all(is_inner)
}

/// True for an average that chunks can have.
fn is_chunk(bytes: u32) -> bool {
    bytes.is_power_of_two() && (4 << 10..=1 << 20).contains(&bytes)
}

/// Average bytes of a chunk unless another size is wanted: that of other stores of chunks.
pub const CHUNK_BYTES: u32 = 64 << 10;
const SETTINGS: &str = "store";
const FORMAT: &str = "sidecore store";
const VERSION: u32 = 1;
const SETTINGS_BYTES_MAX: u64 = 4096;
/// An id and a newline.
const REFERENCE_BYTES_MAX: u64 = 80;
const NAME_BYTES_MAX: usize = 128;

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
