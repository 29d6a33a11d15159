//! A layer as a device: metadata of a file system, then the contents of its files, fetched as they
//! are read and kept in a file.
//!
//! A layer's folder holds:
//!
//! | name | is |
//! |---|---|
//! | `index` | the layer's index |
//! | `trusted` | there if the index was made here, or proved by all bytes of the layer |
//! | `data` | the device: sparse, with a hole where nothing has come yet |
//! | `here-BOOT-INDEX` | a byte for each span, 1 once its contents are in `data` |
//! | `blob-BOOT-INDEX` | the layer's compressed bytes, until an index from elsewhere is proved |
//! | `complete` | there once all contents are in `data`, durably |
//! | `start` | paths of files that a container of the image reads first, one a line |
//!
//! BOOT is this boot's number, INDEX a hash of the index: marks say nothing of contents that
//! another index has placed.
//!
//! Must stay true: a read returns contents that the index's check confirms, or an error; `complete`
//! and `trusted` appear only after what they say is durable; after kill -9 at any moment the folder
//! can be opened again. A device writes in the folder that it opened, not in a later one at the
//! same path.
//! Called from: any thread; reads block on the network.

mod ahead;
mod program;
mod through;

use crate::build::{BuildError, Ranges, build};
use crate::index::{Index, IndexError};
use crate::store::{
    BLOB, COMPLETE, DATA, HERE, INDEX, TRUSTED, boot_id, forget_others, has, index_in, of_folder,
    open_data, read_marks, read_or_zeros, suffix_of, write_in, write_tree,
};
use crate::tree::{CONTENTS_AT, Layer as Tree};
use ahead::Readers;
use parking_lot::{Condvar, Mutex};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_export::fuse::{FuseOptions, Keeping};
use sidecore_export::live;
use sidecore_format::source::{BlockSource, Deliver, Extent, ReadError, check_range};
use sidecore_remote::blob::RemoteBlob;
use sidecore_status::Status;
use sidecore_sys::folder::Folder;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use through::{Unkept, is_full};

pub use crate::store::{LayerError, Store, sha256_of};

/// Figures of a layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Figures {
    /// Size of the device.
    pub size_bytes: u64,
    /// Reads of clients.
    pub reads: u64,
    /// Bytes of these reads.
    pub read_bytes: u64,
    /// Reads that ended in an error.
    pub failed_reads: u64,
    /// Spans of reads that were here.
    pub cache_hits: u64,
    /// Spans that a read waited for.
    pub cache_misses: u64,
    /// Compressed bytes that were fetched.
    pub fetched_bytes: u64,
}

/// A layer that is served.
pub struct LayerDevice {
    folder: Folder,
    /// End of the names of marks.
    of: String,
    data: File,
    here: File,
    /// Compressed bytes, where the index has to be proved by them.
    kept: Option<File>,
    index: Index,
    tree: Tree,
    metadata_bytes: u64,
    /// Hash of the metadata.
    hash: String,
    blob: RemoteBlob,
    spans: Mutex<Vec<Span>>,
    arrived: Condvar,
    /// The whole layer has shown that its index is wrong.
    is_refused: AtomicBool,
    counters: [AtomicU64; 5],
    /// Itself, for threads that fetch ahead of readers, and the number of these.
    own: Weak<Self>,
    ahead: AtomicUsize,
    unkept: Unkept,
    readers: Mutex<Readers>,
    /// Programs and libraries that were looked at for others that they name: by their first byte.
    known: Mutex<BTreeSet<u64>>,
    /// A clone is the place of a thread that follows programs; and names that were looked up.
    followers: Arc<()>,
    names: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Span {
    Missing,
    Coming,
    Here,
}

impl LayerDevice {
    /// Opens a layer that has an index in `store`, to fetch what is missing from `blob`.
    ///
    /// # Errors
    /// [`LayerError`].
    pub fn open(store: &Store, sha256: &str, blob: RemoteBlob) -> Result<Arc<Self>, LayerError> {
        let path = store.folder(sha256)?;
        let failed = || of_folder(&path);
        let folder = Folder::open(&path).map_err(failed())?;
        let (index, index_hash, is_trusted) =
            index_in(&folder, sha256).ok_or(IndexError::Damaged("is not there or damaged"))?;
        let mut tree = index.tree()?;
        let of = suffix_of(&boot_id().map_err(failed())?, &index_hash);
        let is_complete = has(&folder, COMPLETE) && has(&folder, DATA);
        if !is_complete {
            // Left without `data`, it would say that the new one is whole.
            let _ = folder.remove_file(COMPLETE.as_ref());
        }
        let data = open_data(&folder, DATA).map_err(failed())?;
        if !is_complete {
            // After a loss of power a mark may be on the disk whose contents are not: marks of
            // another boot count for nothing.
            forget_others(&folder, &of);
            write_tree(&data, &tree).map_err(failed())?;
        }
        let here = open_data(&folder, &format!("{HERE}{of}")).map_err(failed())?;
        let mut marks = vec![0; index.spans()];
        let known = read_marks(&here, &mut marks).map_err(failed())?;
        let spans = marks[..].iter().enumerate().map(|(at, &mark)| {
            match is_complete || (at < known && mark == 1) {
                true => Span::Here,
                false => Span::Missing,
            }
        });
        let spans = spans.collect();
        // Only an index from elsewhere has to be proved, and only by the compressed bytes.
        let kept = match is_trusted || is_complete {
            true => None,
            false => Some(open_data(&folder, &format!("{BLOB}{of}")).map_err(failed())?),
        };
        let metadata_bytes = tree.metadata.len().to_u64();
        let hash = blake3::hash(&tree.metadata).to_hex().to_string();
        // They are in the file now, and a large layer has tens of megabytes of them.
        tree.metadata = Vec::new();
        Ok(Arc::new_cyclic(|own| Self {
            folder,
            of,
            data,
            here,
            kept,
            index,
            tree,
            metadata_bytes,
            hash,
            blob,
            spans: Mutex::new(spans),
            arrived: Condvar::new(),
            is_refused: AtomicBool::new(false),
            counters: Default::default(),
            own: Weak::clone(own),
            ahead: AtomicUsize::new(0),
            unkept: Unkept::default(),
            readers: Mutex::default(),
            known: Mutex::default(),
            followers: Arc::default(),
            names: AtomicUsize::new(0),
        }))
    }

    /// True if a directory on the path of another has no entry of its own in the layer.
    #[must_use]
    pub fn has_implied_directories(&self) -> bool {
        self.tree.has_implied_directories
    }

    /// The figures as of now.
    #[must_use]
    pub fn figures(&self) -> Figures {
        // Relaxed: counters alone, which order nothing.
        let [reads, read_bytes, failed_reads, cache_hits, cache_misses] =
            std::array::from_fn(|at| self.counters[at].load(Ordering::Relaxed));
        Figures {
            size_bytes: self.tree.device_bytes,
            reads,
            read_bytes,
            failed_reads,
            cache_hits,
            cache_misses,
            fetched_bytes: self.blob.fetched_bytes(),
        }
    }

    /// Options of a FUSE server of a layer, on `threads` threads where they are given.
    #[must_use]
    pub fn fuse_options(threads: Option<usize>, keeping: Keeping) -> FuseOptions {
        FuseOptions {
            read_ahead_bytes: READ_AHEAD_BYTES,
            keeping,
            threads: threads.unwrap_or(THREADS),
            ..FuseOptions::of_user()
        }
    }

    /// The status of its server, which serves the layer called `name` in some way at a place.
    #[must_use]
    pub fn status(self: &Arc<Self>, name: &str, way: &'static str, place: String) -> Arc<Status> {
        let device = Arc::clone(self);
        let figures = move || serde_json::to_value(device.figures()).unwrap_or_default();
        live::status(name, way, &[place], figures)
    }

    /// Marks missing spans as coming, from the first one of `within` on. Those before `least` are
    /// taken in any case, further ones while all have at most `bytes_max` in the blob.
    fn claim(
        &self,
        spans: &mut [Span],
        within: Range<usize>,
        least: usize,
        bytes_max: u64,
    ) -> Range<usize> {
        let mut end = within.start;
        while end < within.end && spans[end] == Span::Missing {
            let blob = self.index.blob_range(within.start..end + 1);
            if end >= least && blob.end - blob.start > bytes_max {
                break;
            }
            spans[end] = Span::Coming;
            end += 1;
        }
        within.start..end
    }

    /// Fetches spans that this caller has claimed.
    fn fetch(&self, claimed: Range<usize>) -> io::Result<()> {
        // An early return gives the spans back: readers that wait for them would wait for ever.
        let mut left = Unfinished {
            device: self,
            spans: claimed.clone(),
        };
        let range = self.index.blob_range(claimed.clone());
        let bytes = match range.is_empty() {
            // A span without compressed bytes is one of an empty tail; a range request for nothing
            // is an error.
            true => Vec::new(),
            false => self.blob.read(range.clone())?,
        };
        if let Some(kept) = &self.kept {
            // Before the spans are decompressed: the proof needs the bytes of spans that fail their
            // check, too.
            kept.write_all_at(&bytes, range.start)?;
        }
        for span in claimed {
            let own = self.index.blob_range(span..span + 1);
            let own = (own.start - range.start).to_usize()..(own.end - range.start).to_usize();
            let tar = self.index.open_span(span, &bytes[own]);
            self.keep(span, &tar.map_err(io::Error::other)?)?;
            left.spans.start = span + 1;
            self.spans.lock()[span] = Span::Here;
            self.arrived.notify_all();
        }
        Ok(())
    }

    /// Writes the contents that lie in a span to their places.
    fn keep(&self, span: usize, tar: &[u8]) -> io::Result<()> {
        let range = self.index.tar_range(span);
        let extents = &self.tree.extents;
        let first = extents.partition_point(|it| it.tar_at + it.bytes <= range.start);
        for extent in extents[first..]
            .iter()
            .take_while(|it| it.tar_at < range.end)
        {
            let start = extent.tar_at.max(range.start);
            let end = (extent.tar_at + extent.bytes).min(range.end);
            let bytes = &tar[(start - range.start).to_usize()..(end - range.start).to_usize()];
            let at = extent.device_at + (start - extent.tar_at);
            self.data.write_all_at(bytes, at)?;
        }
        // After the contents: a mark alone would make zeros of them after kill -9.
        self.here.write_all_at(&[1], span.to_u64())
    }

    /// Waits until the contents of a range of the device are here.
    fn ensure(&self, range: Range<u64>) -> io::Result<()> {
        // Metadata were written when the layer was opened.
        if range.end <= CONTENTS_AT {
            return Ok(());
        }
        let extents = &self.tree.extents;
        let first = extents.partition_point(|it| it.device_at + it.bytes <= range.start);
        for extent in extents[first..]
            .iter()
            .take_while(|it| it.device_at < range.end)
        {
            let start = range.start.saturating_sub(extent.device_at);
            let end = (range.end - extent.device_at).min(extent.bytes);
            let tar = extent.tar_at + start..extent.tar_at + end;
            let wanted = self.index.spans_of(tar);
            let is_sequential = self.readers.lock().follow(&wanted);
            if self.are_here(&wanted) {
                continue;
            }
            // First: what is read soon is on its way while this read waits.
            self.begin_ahead(&wanted, extent, is_sequential);
            for span in wanted.clone() {
                self.ensure_span(span, wanted.end)?;
            }
        }
        Ok(())
    }

    fn are_here(&self, wanted: &Range<usize>) -> bool {
        let spans = self.spans.lock();
        let are_here = spans[wanted.clone()].iter().all(|&it| it == Span::Here);
        if are_here {
            self.count(3, wanted.len().to_u64());
        }
        are_here
    }

    /// Waits until a span is here. Missing ones up to `end` come by the same request.
    fn ensure_span(&self, span: usize, end: usize) -> io::Result<()> {
        let mut spans = self.spans.lock();
        if spans[span] == Span::Here {
            self.count(3, 1);
            return Ok(());
        }
        self.count(4, 1);
        loop {
            match spans[span] {
                Span::Here => return Ok(()),
                Span::Coming => self.arrived.wait(&mut spans),
                Span::Missing => {
                    let claimed = self.claim(&mut spans, span..end, end, 0);
                    drop(spans);
                    return self.fetch(claimed);
                }
            }
        }
    }

    /// Makes the layer complete, once all spans are here: proves the index where it came from
    /// elsewhere, and writes all durably. False if some are missing again.
    pub(crate) fn complete(&self) -> Result<bool, LayerError> {
        let mut spans = self.spans.lock();
        while spans.contains(&Span::Coming) {
            // Spans that others fetch become present or missing; both wake this thread.
            self.arrived.wait(&mut spans);
        }
        // A fetch has failed.
        if spans.contains(&Span::Missing) {
            return Ok(false);
        }
        drop(spans);
        if has(&self.folder, COMPLETE) {
            return Ok(true);
        }
        let failed = || of_folder(self.folder.path());
        if let Some(kept) = &self.kept {
            let tar_sha256 = match self.prove(kept) {
                // It says nothing of the index, and may pass.
                Err(LayerError::Build(BuildError::Io(error))) => {
                    tracing::warn!("the layer's index is not proved now: {error}");
                    return Ok(false);
                }
                proved => proved.inspect_err(|_| self.refuse())?,
            };
            write_in(&self.folder, TRUSTED, tar_sha256.as_bytes()).map_err(failed())?;
        }
        // `complete` outlives a loss of power, so the contents must be on the disk before it is.
        self.data.sync_all().map_err(failed())?;
        write_in(&self.folder, COMPLETE, b"").map_err(failed())?;
        forget_others(&self.folder, "");
        tracing::info!("the layer is complete");
        Ok(true)
    }

    /// Gives nothing more out: the index has been refuted.
    fn refuse(&self) {
        // Relaxed: a read that misses it is one that came before.
        self.is_refused.store(true, Ordering::Relaxed);
        // The next mount must use neither the index nor what it has placed; without an index the
        // layer is fetched as a whole. The index last: it alone has the rest tried again.
        let of = |kind| format!("{kind}{}", self.of);
        for name in [&*of(HERE), &of(BLOB), COMPLETE, DATA, INDEX] {
            let _ = self.folder.remove_file(name.as_ref());
        }
    }

    /// Compares all compressed bytes with the layer's digest, and the index with one that is made
    /// of them; returns the tar's SHA-256.
    fn prove(&self, kept: &File) -> Result<String, LayerError> {
        // What was kept on the way is compared first; the registry is asked again only if that
        // fails.
        let mut is_from_here = true;
        loop {
            let mut read = |range: Range<u64>| match is_from_here {
                true => {
                    let mut bytes = vec![0; (range.end - range.start).to_usize()];
                    kept.read_exact_at(&mut bytes, range.start)?;
                    Ok(bytes)
                }
                false => self.blob.read(range),
            };
            let mut input = Ranges::new(self.index.blob_bytes(), &mut read);
            let found = build(&mut input, None);
            match found {
                Ok(built) if built.index == self.index => return Ok(built.tar_sha256),
                Ok(built) if built.index.layer() == self.index.layer() => {
                    let what = "does not fit the layer, whose digest is right";
                    return Err(IndexError::Damaged(what).into());
                }
                // Another server of this layer may have kept a part of it elsewhere.
                _ if is_from_here => is_from_here = false,
                Ok(built) => {
                    return Err(LayerError::Digest {
                        found: built.index.layer(),
                        wanted: self.index.layer(),
                    });
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn count(&self, which: usize, by: u64) {
        self.counters[which].fetch_add(by, Ordering::Relaxed);
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        check_range(offset, dst.len(), self.tree.device_bytes)?;
        self.count(0, 1);
        let io = |error: io::Error| ReadError::Io {
            reason: error.to_string(),
        };
        let result = match self.is_refused.load(Ordering::Relaxed) {
            // Contents that were read before cannot be taken back; no further ones are given out.
            true => Err(io(io::Error::other("the layer's index is wrong"))),
            false if self.unkept.is_full() => self.read_through(offset, dst).map_err(io),
            false => self
                .ensure(offset..offset + dst.len().to_u64())
                .and_then(|()| read_or_zeros(&self.data, dst, offset))
                .or_else(|error| match is_full(&error) {
                    true => {
                        self.unkept.begin();
                        self.read_through(offset, dst)
                    }
                    false => Err(error),
                })
                .map_err(io),
        };
        match &result {
            Ok(()) => {
                self.count(1, dst.len().to_u64());
                if dst.starts_with(program::MAGIC) {
                    self.follow(offset);
                }
            }
            Err(error) => {
                self.count(2, 1);
                tracing::warn!("a read of the layer failed: {error}");
            }
        }
        result
    }
}

#[cfg(test)]
impl LayerDevice {
    /// Brings all spans as a fetch does, from the blob's bytes.
    pub(crate) fn fill(&self, blob: &[u8]) {
        for span in 0..self.index.spans() {
            let range = self.index.blob_range(span..span + 1);
            let bytes = &blob[range.start.to_usize()..range.end.to_usize()];
            if let Some(kept) = &self.kept {
                kept.write_all_at(bytes, range.start).unwrap();
            }
            let tar = self.index.open_span(span, bytes).unwrap();
            self.keep(span, &tar).unwrap();
            self.spans.lock()[span] = Span::Here;
        }
    }

    /// True if no span is here.
    pub(crate) fn is_empty(&self) -> bool {
        self.spans.lock().iter().all(|&it| it == Span::Missing)
    }

    /// Reads the first file.
    pub(crate) fn first_file(&self) -> Vec<u8> {
        let extent = self.tree.extents[0];
        let mut bytes = vec![0; extent.bytes.to_usize()];
        self.read(extent.device_at, &mut bytes).unwrap();
        bytes
    }
}

/// Spans that were claimed and are not here: given back if the fetch fails.
struct Unfinished<'a> {
    device: &'a LayerDevice,
    spans: Range<usize>,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.spans.is_empty() {
            self.device.spans.lock()[self.spans.clone()].fill(Span::Missing);
            self.device.arrived.notify_all();
        }
    }
}

impl BlockSource for LayerDevice {
    fn size_bytes(&self) -> u64 {
        self.tree.device_bytes
    }

    fn preferred_bytes(&self) -> u32 {
        128 << 10
    }

    fn read_with_max_bytes(&self) -> usize {
        1 << 20
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        self.read(offset, dst)
    }

    fn read_with(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        let mut bytes = vec![0; len];
        match self.read(offset, &mut bytes) {
            Ok(()) => deliver(Ok(&[&bytes])),
            Err(error) => deliver(Err(&error)),
        }
    }

    fn extent(&self, offset: u64) -> Extent {
        // Copies and checks of the device need not read the room between metadata and contents.
        let hole = self.metadata_bytes..CONTENTS_AT.min(self.tree.device_bytes);
        let end = match offset {
            _ if hole.contains(&offset) => hole.end,
            _ if offset < hole.start => hole.start,
            _ => self.tree.device_bytes,
        };
        Extent {
            len: end.saturating_sub(offset),
            zero: hole.contains(&offset),
        }
    }

    fn waits_for_a_network(&self) -> bool {
        true
    }

    fn identity(&self) -> Option<String> {
        // The layer alone does not say where the contents lie: its index does.
        Some(format!("{} {}", self.index.layer(), self.hash))
    }
}

/// The kernel's read-ahead in the device, beyond that of erofs within a file: more would reach into
/// the next file, and a reader waits for all of a request. What a sequential reader needs next is
/// fetched here (`ahead`).
const READ_AHEAD_BYTES: u32 = 16 << 10;
/// Threads that answer the kernel: reads at once, most of which wait for the network.
const THREADS: usize = 16;
