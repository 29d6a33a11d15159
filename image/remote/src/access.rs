//! Images by name, a local file or a URL, and the trust that each must have.
//!
//! Why here: the one place that decides between the two, and where an image is refused before its
//! first byte is used. Must stay true: what is shown or kept of a URL holds no secret; every
//! command that reads an image opens it here.

use crate::HEAD_BYTES;
use crate::store;
use crate::trace::{TraceWriter, read_trace};
use crate::{Location, Options, RemoteError, RemoteImage};
use sidecore_bare::width::ToU64;
use sidecore_block::device::{Device, DeviceConfig, DeviceError};
use sidecore_block::format::output::nameless;
use sidecore_block::format::sidecar::lacks_index;
use sidecore_block::format::{FormatError, Frame, FrameReader, Index};
use sidecore_block::image::Image;
use sidecore_block::inner::metadata_end;
use sidecore_block::pack::Limits;
use sidecore_block::secret::Secrets;
use sidecore_block::trust::Trust;
use sidecore_offload::{OffloadError, Pool, PoolConfig};
use sidecore_store::{Domain, StoreError, Version};
use std::fs::File;
use std::io::{self, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Cache, keys and trust with which images are opened.
#[derive(Default)]
pub struct Access {
    /// Directory that caches frames of a remote image, and its largest size in bytes.
    pub cache: Option<(PathBuf, u64)>,
    /// Roots and keys of which an image must have one.
    pub trust: Trust,
    /// Index of a zstd file that has none.
    pub sidx: Option<PathBuf>,
    /// Keys that open an encrypted image.
    pub secrets: Secrets,
    /// File of the keys of an encrypted store's versions.
    pub domain: Option<PathBuf>,
}

/// Resources of a device that reads an image.
#[derive(Debug, Clone, Copy)]
pub struct DeviceOptions<'a> {
    /// Engines that decompress.
    pub engines: usize,
    /// Bound of the memory that is held for it.
    pub memory_bytes: u64,
    /// Take the file's bytes as they are.
    pub raw: bool,
    /// File that is told which frames are read.
    pub trace: Option<&'a Path>,
    /// Trace whose frames are fetched from the start.
    pub prefetch: Option<&'a Path>,
}

/// An image, its tables read.
pub struct Opened {
    /// The bytes.
    pub image: Image,
    /// The tables.
    pub index: Index,
    /// The same image, where it is remote.
    pub remote: Option<Arc<RemoteImage>>,
}

impl Opened {
    /// Reads a remote image as a whole and compares it with the digest by which it is named; `None`
    /// where there is none.
    ///
    /// # Errors
    /// The image cannot be read.
    pub fn check_sha256(&self) -> io::Result<Option<bool>> {
        let remote = self.remote.as_ref();
        remote.map_or(Ok(None), |remote| remote.check_sha256())
    }

    /// The bounds of a walk over the image within those by which it was opened: compressed frames
    /// of a remote one take half of the memory.
    #[must_use]
    pub fn limits(&self, whole: Limits) -> Limits {
        let memory_bytes = match self.remote {
            Some(_) => whole.memory_bytes - whole.memory_bytes / 2,
            None => whole.memory_bytes,
        };
        Limits {
            memory_bytes,
            ..whole
        }
    }
}

/// Reasons why an image cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The URL, or the remote image.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// The file.
    #[error("cannot open {name}: {source}")]
    File {
        /// The file's name.
        name: String,
        /// The operating system's error.
        source: io::Error,
    },
    /// The image's tables.
    #[error("cannot open {name}: {source}")]
    Format {
        /// The image's name.
        name: String,
        /// The cause.
        source: FormatError,
    },
    /// An image that was to be trusted, and whose bytes were to be taken as they are.
    #[error(
        "--raw takes an image's bytes as they are, which no hash tree covers; leave it out, or \
         --root-hash and --verify-key"
    )]
    RawTrusted,
    /// A trace, read or written.
    #[error("cannot {what} {}: {source}", path.display())]
    Trace {
        /// The attempt.
        what: &'static str,
        /// The trace.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The engines cannot be started.
    #[error(transparent)]
    Engines(#[from] OffloadError),
    /// The device that reads it.
    #[error("cannot open {name}: {source}")]
    Device {
        /// The image's name.
        name: String,
        /// The cause.
        source: DeviceError,
    },
    /// A version of a store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A version of a store that was to be checked by what it does not carry.
    #[error(
        "{name} is a version of a store, which has no index, hash tree or lock of its own; leave \
         out --sidx, --root-hash, --verify-key, --identity and --passphrase-file"
    )]
    Version {
        /// The version's name.
        name: String,
    },
    /// An image whose tables are too large.
    #[error(
        "the image's index takes {index_bytes} bytes of memory, --memory allows {memory_bytes}; \
         allow more"
    )]
    Memory {
        /// Bytes of its tables.
        index_bytes: u64,
        /// The bound.
        memory_bytes: u64,
    },
    /// An index for an image that has one.
    #[error("{name} has an index of its own; leave out --sidx {}", sidx.display())]
    TwoIndexes {
        /// The image's name.
        name: String,
        /// The other index.
        sidx: PathBuf,
    },
}

impl Access {
    /// Opens an image whose frames will all be read in order; `-` is standard input, here and
    /// below, once. Its tables, and the frames on their way ([`Opened::limits`]), may take
    /// `memory_bytes`. Blocks on the file or the network.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn open_whole(&self, path: &Path, memory_bytes: u64) -> Result<Opened, AccessError> {
        let opened = self.open_bounded(path, memory_bytes)?;
        self.unlock(path, opened)
    }

    /// Opens an image to describe it; an encrypted image also without its key. Blocks.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn open_to_look(&self, path: &Path, memory_bytes: u64) -> Result<Opened, AccessError> {
        let opened = self.open_bounded(path, memory_bytes)?;
        match self.secrets.is_empty() {
            true => Ok(opened),
            false => self.unlock(path, opened),
        }
    }

    /// Opens an image without its key. Half of the memory is for the compressed frames of a remote
    /// one.
    fn open_bounded(&self, path: &Path, memory_bytes: u64) -> Result<Opened, AccessError> {
        let in_flight_bytes = (memory_bytes / 2).min(WHOLE_MEMORY_BYTES);
        let opened = self.open_locked(path, false, in_flight_bytes, 0)?;
        let index_bytes = opened.index.memory_bytes().to_u64();
        match index_bytes < memory_bytes {
            true => Ok(opened),
            false => Err(AccessError::Memory {
                index_bytes,
                memory_bytes,
            }),
        }
    }

    /// Opens an image; a remote one may hold `memory_bytes` of compressed frames. With `raw`, the
    /// bytes are taken as they are. Blocks.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn open(&self, path: &Path, raw: bool, memory_bytes: u64) -> Result<Opened, AccessError> {
        // Frames in the cache are not fetched.
        let is_cached = self.cache.as_ref().is_some_and(|(it, _)| it.exists());
        let beyond_bytes = match is_cached {
            true => 0,
            false => BEYOND_BYTES.min(memory_bytes / 16),
        };
        let opened = self.open_locked(path, raw, memory_bytes, beyond_bytes)?;
        self.unlock(path, opened)
    }

    /// Opens an image and starts the engines that decompress it. Blocks.
    ///
    /// # Errors
    /// [`AccessError`].
    pub fn open_device(
        &self,
        path: &Path,
        options: DeviceOptions<'_>,
    ) -> Result<Arc<Device>, AccessError> {
        // Of a remote image, half is for compressed frames in flight.
        let in_flight_bytes = options.memory_bytes / 2;
        let opened = self.open(path, options.raw, in_flight_bytes)?;
        let (image, index) = (opened.image, opened.index);
        let memory_bytes = match opened.remote {
            Some(_) => options.memory_bytes - in_flight_bytes,
            None => options.memory_bytes,
        };
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |source| AccessError::Trace { what, path, source }
        };
        match (options.prefetch, &opened.remote) {
            // A trace says what will be read better than a guess.
            (Some(trace), remote) => {
                let frames = read_trace(trace, &index).map_err(failed("prefetch by", trace))?;
                match remote {
                    Some(remote) => remote.prefetch(&index, &frames),
                    None => tracing::info!("a file of this machine is not prefetched"),
                }
            }
            (None, Some(remote)) => {
                remote.fetch_together(&index, &frames_of_metadata(&image, &index));
            }
            (None, None) => {}
        }
        let trace = options
            .trace
            .map(|path| TraceWriter::create(path, &index).map_err(failed("write the trace", path)));
        let trace = trace.transpose()?;
        let pool = Pool::start(PoolConfig {
            engines: options.engines,
            ..PoolConfig::default()
        })?;
        let config = DeviceConfig {
            memory_bytes,
            ..DeviceConfig::default()
        };
        let device = Device::open_indexed(image, index, Arc::new(pool), config);
        let device = device.map_err(|source| AccessError::Device {
            name: name(path),
            source,
        })?;
        if let Some(trace) = trace {
            device.trace_into(Arc::new(trace));
        }
        Ok(device)
    }

    /// Public keys by which a signature of an opened image is valid, as hexadecimal digits.
    #[must_use]
    pub fn keys_valid(&self, index: &Index) -> Vec<String> {
        index.tree().map_or_else(Vec::new, |tree| {
            self.trust.valid_keys(&tree.root, &tree.signatures)
        })
    }

    /// Opens an image without its key, or a version of a store.
    fn open_locked(
        &self,
        path: &Path,
        raw: bool,
        memory_bytes: u64,
        beyond_bytes: u64,
    ) -> Result<Opened, AccessError> {
        match store::parts(path) {
            Some((place, version)) => self.open_version(path, Path::new(place), version),
            None => self.open_image(path, raw, memory_bytes, beyond_bytes),
        }
    }

    fn open_image(
        &self,
        path: &Path,
        raw: bool,
        memory_bytes: u64,
        beyond_bytes: u64,
    ) -> Result<Opened, AccessError> {
        if raw && !self.trust.is_empty() {
            return Err(AccessError::RawTrusted);
        }
        let format = |source| AccessError::Format {
            name: name(path),
            source,
        };
        let mut remote = None;
        let (image, index) = match location(path) {
            Some(location) => {
                let location = location?;
                let options = Options {
                    memory_bytes,
                    beyond_bytes,
                    cache: self.cache.clone(),
                    ..Options::default()
                };
                let opened = RemoteImage::open(&location, options)?;
                remote = Some(Arc::clone(&opened));
                let image = Image::Remote(opened);
                let index = match image.index(raw) {
                    Err(error) if lacks_index(&error) && self.sidx.is_none() => {
                        sidecar_index(&location, &image, memory_bytes).unwrap_or(Err(error))
                    }
                    other => other,
                };
                (image, index)
            }
            None => {
                let file = open_file(path)?;
                let index = match (raw, &self.sidx) {
                    (true, _) => Index::open_raw(&file),
                    (false, Some(_)) => Index::open(&file),
                    // It has no name, so nothing lies next to it.
                    (false, None) if is_standard_input(path) => Index::open(&file),
                    (false, None) => Index::open_sidecar(&file, path),
                };
                (Image::from(file), index)
            }
        };
        let index = match (index, &self.sidx) {
            (Err(error), Some(sidx)) if lacks_index(&error) => {
                let file = open_file(sidx)?;
                Index::read_sidecar(&image, &file, image.file().is_some())
            }
            (Ok(_), Some(sidx)) => {
                return Err(AccessError::TwoIndexes {
                    name: name(path),
                    sidx: sidx.clone(),
                });
            }
            (index, _) => index,
        };
        let mut index = index.map_err(format)?;
        self.trust.apply(&mut index, &image).map_err(format)?;
        Ok(Opened {
            image,
            index,
            remote,
        })
    }

    /// Opens a version of a store: a raw image, whose bytes the store checks.
    fn open_version(
        &self,
        path: &Path,
        place: &Path,
        version: &str,
    ) -> Result<Opened, AccessError> {
        if self.sidx.is_some() || !self.trust.is_empty() || !self.secrets.is_empty() {
            return Err(AccessError::Version { name: name(path) });
        }
        let domain = self.domain.as_deref().map(Domain::read).transpose()?;
        let domain = Arc::new(domain.unwrap_or_else(Domain::shared));
        let version = Version::open(&store::open(place)?, version, domain)?;
        let image = Image::Remote(Arc::new(version));
        let index = image.index(true).map_err(|source| AccessError::Format {
            name: name(path),
            source,
        })?;
        Ok(Opened {
            image,
            index,
            remote: None,
        })
    }

    fn unlock(&self, path: &Path, mut opened: Opened) -> Result<Opened, AccessError> {
        let unlocked = self.secrets.apply(&mut opened.index);
        unlocked.map_err(|source| AccessError::Format {
            name: name(path),
            source,
        })?;
        Ok(opened)
    }
}

/// Reads the sidecar index (`.sidx`) of a remote zstd file; `None` where there is none. It must
/// come from the same server: an index is trusted as much as its file, since a writer of one can
/// write the other.
fn sidecar_index(
    location: &Location,
    image: &Image,
    memory_bytes: u64,
) -> Option<Result<Index, FormatError>> {
    let sidecar = location.sidecar()?;
    let options = Options {
        memory_bytes,
        may_leave: false,
        ..Options::default()
    };
    match RemoteImage::open(&sidecar, options) {
        Ok(found) => Some(Index::read_sidecar(image, &*found, false)),
        Err(error) => {
            tracing::info!("no index beside it: {error}");
            None
        }
    }
}

fn open_file(path: &Path) -> Result<File, AccessError> {
    let opened = match is_standard_input(path) {
        true => standard_input(),
        false => File::open(path),
    };
    opened.map_err(|source| AccessError::File {
        name: name(path),
        source,
    })
}

fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-")
}

/// Standard input as a file that is read in places: itself where it is one, at its beginning; else
/// a copy of what comes to its end, in a nameless file in the temporary folder, which bounds it.
fn standard_input() -> io::Result<File> {
    let mut input = sidecore_sys::input::open(Path::new("-"))?;
    // A pipe has no position.
    if input.stream_position().is_ok_and(|at| at == 0) {
        return Ok(input);
    }
    let mut copy = nameless(&std::env::temp_dir())?;
    io::copy(&mut input, &mut copy)?;
    Ok(copy)
}

/// The raw bytes of a file or of a URL. Blocks.
///
/// # Errors
/// [`AccessError`].
pub fn open_bytes(path: &Path) -> Result<Image, AccessError> {
    match location(path) {
        Some(location) => {
            let opened = RemoteImage::open(&location?, Options::default())?;
            Ok(Image::Remote(opened))
        }
        None => Ok(open_file(path)?.into()),
    }
}

/// True where `path` is a URL, or a version of a store: no file's path.
#[must_use]
pub fn is_remote(path: &Path) -> bool {
    store::parts(path).is_some() || location(path).is_some()
}

/// Name of an image for people and records.
#[must_use]
pub fn name(path: &Path) -> String {
    if let Some((place, version)) = store::parts(path) {
        return format!("store:{}#{version}", store::shown(Path::new(place)));
    }
    match location(path) {
        Some(Ok(location)) => location.to_string(),
        // An invalid URL is refused with a message of its own, which leaves out the query.
        Some(Err(_)) => "the image".into(),
        None if is_standard_input(path) => "standard input".into(),
        None => path.display().to_string(),
    }
}

fn location(path: &Path) -> Option<Result<Location, RemoteError>> {
    Location::parse(path.to_str()?)
}

/// The head and the metadata of a tree of some twenty thousand files, as `pack` lays them out and
/// compresses them. A MiB would do for sixty thousand, but would be more than a third of the bytes
/// that a short start fetches of a small tree.
const BEYOND_BYTES: u64 = 192 << 10;
/// Memory for compressed frames of an image that is read in order: the bandwidth-delay product of 1
/// Gb/s and 200 ms.
const WHOLE_MEMORY_BYTES: u64 = 96 << 20;

/// Frames of a tree's metadata that are worth a prefetch, from the first one that did not come with
/// the image's head. Without it, a walk over a remote tree waits a round trip for every few of
/// them. Empty for any other image.
#[must_use]
fn frames_of_metadata(image: &Image, index: &Index) -> Vec<u64> {
    let first = (index.frames() > 0 && !index.is_zero(0)).then(|| index.frame(0));
    // Bytes beyond the head are not here yet; the mount fetches them anyway.
    let is_here = |frame: &Frame| frame.offset + u64::from(frame.stored_bytes) <= HEAD_BYTES;
    let Some(first) = first.filter(is_here) else {
        return Vec::new();
    };
    let mut reader = FrameReader::of(index, false);
    // A damaged frame is reported to its reader.
    let end = reader.read(image, &first).ok().and_then(metadata_end);
    let end = end.unwrap_or(0).min(index.raw_bytes());
    let frames = match end {
        0 => 0,
        end => index.frame_at(end - 1) + 1,
    };
    let mut bytes = 0;
    let is_worth_it = |frame: &u64| {
        bytes += u64::from(index.frame(*frame).stored_bytes);
        bytes <= METADATA_BYTES
    };
    index.stored_in(0..frames).take_while(is_worth_it).collect()
}

/// Compressed metadata that one prefetch covers: those of some 60,000 files. The first up to 320
/// KiB came with the first replies and are not fetched again.
const METADATA_BYTES: u64 = 1 << 20;
