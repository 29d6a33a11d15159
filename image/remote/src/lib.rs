//! Remote images, read by ranges as their frames are needed: HTTP, S3, registries.
//!
//! Top-down, the way a read travels:
//!
//! - [`Location`]: the URLs that commands take in place of a file's name.
//! - [`access`]: images by name, a file or a URL, with the keys and the trust that each must have.
//! - [`RemoteImage`]: an opened image; a [`RemoteSource`] for `sidecore-block`.
//! - [`Repository`]: one in a registry: its manifests, blobs, and artifacts that refer to them.
//! - [`blob`]: ranges of one blob, whatever is in it.
//! - [`store`]: stores of versions, in a folder or below a URL.
//! - `tables`: its headers and tables, for parsers.
//! - `fetch`: frames in flight: queues, threads, memory.
//! - `disk`: disk cache of frames, shared by processes.
//! - `origin`: requests, their credentials, and the checks that every reply must pass; these are
//!   public, and hidden, for the target `remote` of `lab/fuzz`.
//! - `link`, [`Retry`]: estimates of the network; when a request is repeated.
//! - `trace`, [`read_trace`]: the frames that a reader touches, in order.
//!
//! Must stay true: returned bytes are the image's, as far as its own checks, the server's sizes and
//! validators tell; otherwise an error is returned. No request is retried for ever.

pub mod access;
pub mod blob;
mod disk;
#[doc(hidden)]
pub mod fault;
mod fetch;
mod link;
mod location;
#[doc(hidden)]
pub mod origin;
pub mod store;
mod tables;
mod trace;

pub use fault::Retry;
pub use fetch::Counts;
pub use location::{Location, is_sha256};
pub use origin::oci::{Artifact, Descriptor, ImageManifest, Repository};
pub use trace::{read_trace, trace_parts};

use disk::Disk;
use fault::Fault;
use fetch::Fetcher;
use link::Link;
use origin::{Ask, Origin, Reply};
use parking_lot::Mutex;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_block::format::{Frame, Index, ReadAt};
use sidecore_block::image::{RemoteSource, Stored, Traffic};
use sidecore_block::trust::digits_of;
use sidecore_random::Random;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Instant;
use tables::{Beyond, Tables};

/// Options of [`RemoteImage::open`].
#[derive(Debug, Clone)]
pub struct Options {
    /// Upper bound of the memory for compressed frames that are in flight or not used yet.
    pub memory_bytes: u64,
    /// Directory of the disk cache, and its maximum size in bytes.
    pub cache: Option<(PathBuf, u64)>,
    /// Limits of retries.
    pub retry: Retry,
    /// Bytes after the head that are prefetched at once: if the image holds a tree, its metadata. 0
    /// for callers that only read the image's tables.
    pub beyond_bytes: u64,
    /// True if redirects to other servers are followed.
    pub may_leave: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory_bytes: 64 << 20,
            cache: None,
            retry: Retry::default(),
            beyond_bytes: 0,
            may_leave: true,
        }
    }
}

/// Reasons why a remote image cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// A URL that does not name an image.
    #[error("{url}: {reason}; take {form}")]
    Location {
        /// The URL, without what may be a password.
        url: String,
        /// The flaw.
        reason: &'static str,
        /// A form that a URL may have.
        form: &'static str,
    },
    /// The server or the network failed.
    #[error("cannot read {location}: {reason}")]
    Source {
        /// The image.
        location: String,
        /// The reason.
        reason: String,
    },
    /// The cache directory.
    #[error("cannot keep frames in {directory}: {source}")]
    Cache {
        /// The directory.
        directory: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
}

/// An opened remote image.
pub struct RemoteImage {
    tables: Tables,
    fetcher: Fetcher,
    /// Frames that are fetched together with the first of them.
    together: Mutex<Vec<Frame>>,
}

impl RemoteImage {
    /// Opens the image at `location` with two concurrent requests, for its first and its last
    /// bytes, and one for the bytes after the head if wanted. For a registry, requests for a
    /// manifest and a token precede them. Blocks.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn open(location: &Location, options: Options) -> Result<Arc<Self>, RemoteError> {
        let failed = |fault: Fault| RemoteError::Source {
            location: location.to_string(),
            reason: fault.to_string(),
        };
        let retry = options.retry;
        let origin = patiently(&retry, 0, || {
            Origin::new(location, &retry, options.may_leave)
        })
        .map_err(failed)?;
        let origin = Arc::new(origin);
        let begun = Instant::now();
        // Before the ends, so that all three requests are in flight at once.
        let beyond = ask_beyond(&origin, options.beyond_bytes);
        let (head, tail) = ends(&origin, &retry).map_err(failed)?;
        if let Some(beyond) = &beyond {
            beyond.expect(head.identity.clone(), origin.sha256().is_some());
        }
        let mut link = Link::default();
        for reply in [&head, &tail] {
            link.answered(begun.elapsed(), reply.waited);
        }
        let mut identity = head.identity.clone();
        if let Some(sha256) = origin.sha256() {
            // Caches on the way may change the validator; the digest stays the same.
            identity.validator = Some(sha256.to_owned());
        }
        let disk = options.cache.map(|(directory, limit_bytes)| {
            let disk = Disk::open(&directory, limit_bytes, &location.to_string(), &identity);
            disk.map_err(|source| RemoteError::Cache { directory, source })
        });
        let keep = |reply: Reply| (reply.offset, Stored::from(reply.bytes));
        let tables = Tables::new(identity.size_bytes, [keep(head), keep(tail)], beyond);
        let memory_bytes = options.memory_bytes;
        let fetcher = Fetcher::new(
            origin,
            retry,
            identity,
            link,
            disk.transpose()?.flatten(),
            memory_bytes,
        );
        let together = Mutex::default();
        Ok(Arc::new(Self {
            tables,
            fetcher,
            together,
        }))
    }

    /// Totals since the image was opened, without the two requests for its ends.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.fetcher.counts()
    }

    /// SHA-256 of the whole image in hexadecimal digits, if a registry gives it. Reading frames
    /// does not check it: that needs all bytes of the image.
    #[must_use]
    pub fn sha256(&self) -> Option<&str> {
        self.fetcher.origin().sha256()
    }

    /// Reads the whole image and compares it with [`Self::sha256`]; `None` where there is none.
    ///
    /// # Errors
    /// The image cannot be read.
    pub fn check_sha256(&self) -> io::Result<Option<bool>> {
        let Some(expected) = self.sha256() else {
            return Ok(None);
        };
        let mut hash = ring::digest::Context::new(&ring::digest::SHA256);
        let mut buffer = vec![0; 1 << 20];
        let mut at = 0;
        while at < self.tables.size_bytes() {
            let take = (self.tables.size_bytes() - at)
                .min(buffer.len().to_u64())
                .to_usize();
            self.read_exact_at(&mut buffer[..take], at)?;
            hash.update(&buffer[..take]);
            at += take.to_u64();
        }
        let found = digits_of(hash.finish().as_ref());
        Ok(Some(found == expected))
    }

    /// Fetches `frames` of `index` in their order, on a thread of its own, until all were requested
    /// or the image is dropped. Frames that are read meanwhile are not requested twice.
    pub fn prefetch(self: &Arc<Self>, index: &Index, frames: &[u64]) {
        let frames: Vec<Frame> = (frames.iter().copied())
            .filter(|&frame| frame < index.frames() && !index.is_zero(frame))
            .map(|frame| index.frame(frame))
            .filter(|frame| !self.tables.covers(frame))
            .collect();
        self.fetcher.remember_used(true);
        let image = Arc::downgrade(self);
        let ask = move || {
            // In parts, so that the image can be dropped in between.
            for part in frames.chunks(PREFETCH_FRAMES) {
                let Some(image) = Weak::upgrade(&image) else {
                    return;
                };
                // This thread's own reference is the last one once the image was dropped.
                let more = || Arc::strong_count(&image) > 1;
                image.fetcher.prefetch(part, &more);
            }
            if let Some(image) = Weak::upgrade(&image) {
                image.fetcher.remember_used(false);
            }
        };
        let thread = std::thread::Builder::new().name("prefetch".into());
        if let Err(error) = thread.spawn(ask) {
            tracing::warn!("nothing is prefetched: {error}");
        }
    }

    /// Prefetches all `frames` of `index`, in order, as soon as one of them that is not cached is
    /// read: the reader of one will read the others, each a round trip later.
    pub fn fetch_together(&self, index: &Index, frames: &[u64]) {
        let frames = (frames.iter().copied())
            .filter(|&frame| frame < index.frames() && !index.is_zero(frame))
            .map(|frame| index.frame(frame))
            .filter(|frame| !self.tables.covers(frame));
        *self.together.lock() = frames.collect();
    }

    /// The former name of [`Self::fetch_together`].
    #[deprecated(note = "it is called fetch_together")]
    pub fn bring_together(&self, index: &Index, frames: &[u64]) {
        self.fetch_together(index, frames);
    }

    /// Frames to fetch together with one of `wanted`; returned once.
    fn together_with(&self, wanted: &[Frame]) -> Vec<Frame> {
        if wanted.is_empty() {
            return Vec::new();
        }
        let mut together = self.together.lock();
        let is_wanted = |frame: &Frame| wanted.iter().any(|it| it.offset == frame.offset);
        match together.iter().any(is_wanted) {
            // Once: afterwards the frames are here, or readers fetch them as they need them.
            true => std::mem::take(&mut together),
            false => Vec::new(),
        }
    }

    /// True if there is a disk cache.
    #[must_use]
    pub(crate) fn keeps_frames(&self) -> bool {
        self.fetcher.keeps()
    }
}

impl ReadAt for RemoteImage {
    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.tables.size_bytes())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.tables.read(&self.fetcher, buf, offset)
    }

    fn will_read(&self, range: Range<u64>) {
        self.tables.will_read(range);
    }
}

impl RemoteSource for RemoteImage {
    fn fetch(
        &self,
        wanted: &[Frame],
        ahead: &mut dyn Iterator<Item = Frame>,
    ) -> io::Result<Vec<Stored>> {
        let ends: Vec<_> = wanted
            .iter()
            .map(|frame| self.tables.of_ends(frame))
            .collect();
        let missing: Vec<Frame> = (wanted.iter().zip(&ends))
            .filter(|(_, end)| end.is_none())
            .map(|(frame, _)| *frame)
            .collect();
        if self.keeps_frames() {
            for (frame, found) in wanted.iter().zip(&ends) {
                if let Some(found) = found.as_ref().filter(|found| !found.is_end) {
                    self.fetcher.keep(frame, &found.stored);
                }
            }
        }
        let together = self.together_with(&missing).into_iter();
        let mut ahead = together.chain(ahead.filter(|frame| !self.tables.covers(frame)));
        let mut fetched = self.fetcher.fetch(&missing, &mut ahead)?.into_iter();
        let stored = ends.into_iter();
        let stored = stored.map(|end| end.map(|it| it.stored).or_else(|| fetched.next()));
        let stored: Option<Vec<Stored>> = stored.collect();
        stored.ok_or_else(|| io::Error::other("a frame did not come"))
    }

    fn window_bytes(&self) -> u64 {
        self.fetcher.window_bytes()
    }

    fn traffic(&self) -> Traffic {
        let counts = self.counts();
        Traffic {
            fetched_bytes: counts.fetched_bytes,
            retries: counts.retries,
        }
    }

    fn version(&self) -> Option<String> {
        self.fetcher.validator().map(str::to_owned)
    }
}

/// Requests the first and the last bytes of an image, both at once.
fn ends(origin: &Origin, retry: &Retry) -> Result<(Reply, Reply), Fault> {
    let get = |ask: Ask, seed| patiently(retry, seed, || origin.get(&ask, None, &mut |_| ()));
    let (head, tail) = std::thread::scope(|scope| {
        let ask_head = || get(Ask::Head(HEAD_BYTES), 1);
        let head = std::thread::Builder::new().spawn_scoped(scope, ask_head);
        let tail = origin.get(&Ask::Tail(TAIL_BYTES), None, &mut |_| ());
        let panicked = |_| Err(Fault::Final("a request panicked".into()));
        match head {
            Ok(head) => (head.join().unwrap_or_else(panicked), tail),
            // No thread could be started: one request after the other.
            Err(_) => (ask_head(), tail),
        }
    });
    let head = head?;
    let tail = match tail {
        Ok(tail) => tail,
        // Some stores do not support ranges that count from the end, or fail if the image is
        // shorter. The size is known now, so the retries use it.
        Err(_) => {
            let size = head.identity.size_bytes;
            get(Ask::Range(size.saturating_sub(TAIL_BYTES)..size), 2)?
        }
    };
    // A validator alone may differ where the digest is known: caches on the way may change it.
    if head.identity != tail.identity && origin.sha256().is_none() {
        return Err(Fault::Final("it changed while it was opened".into()));
    }
    Ok((head, tail))
}

/// Requests the bytes after the head, on a thread of its own, once.
fn ask_beyond(origin: &Arc<Origin>, bytes: u64) -> Option<Arc<Beyond>> {
    if bytes == 0 {
        return None;
    }
    let range = HEAD_BYTES..HEAD_BYTES.saturating_add(bytes);
    let beyond = Arc::new(Beyond::new(range.clone()));
    let (origin, settled) = (Arc::clone(origin), Arc::clone(&beyond));
    let ask = move || {
        let reply = origin.get(&Ask::Part(range), None, &mut |_| ());
        settled.settle(reply.ok());
    };
    let thread = std::thread::Builder::new().name("beyond".into());
    thread.spawn(ask).ok().map(|_| beyond)
}

/// Tries `make` as often as `retry` allows.
fn patiently<T>(retry: &Retry, seed: u64, make: impl Fn() -> Result<T, Fault>) -> Result<T, Fault> {
    let mut random = Random::new(seed ^ u64::from(std::process::id()) << 32);
    let mut attempt = 0;
    loop {
        match make() {
            Err(fault) if fault.may_pass() => match retry.pause(attempt, &mut random) {
                Some(pause) => std::thread::sleep(pause),
                None => return Err(fault),
            },
            result => return result,
        }
        attempt += 1;
    }
}

/// Bytes of the image's beginning that are read when it is opened: they identify the format and
/// hold the first frames with the superblock.
const HEAD_BYTES: u64 = 128 << 10;
/// Bytes of its end: tables of some ten thousand frames.
const TAIL_BYTES: u64 = 384 << 10;
/// Frames that are prefetched between two checks whether the image was dropped.
const PREFETCH_FRAMES: usize = 4096;
