//! A published version, read at any offset.
//!
//! Why here: a version is a raw image whose bytes come from chunks, so it is a source of
//! `sidecore-block`'s device: whatever reads an image (mounts, exports, `unpack`) reads a version.
//! Must stay true: every chunk is compared with its key before a byte of it is delivered. Memory is
//! bounded by two manifests and [`RECENT_CHUNKS`].
//! Called from: any thread; blocks on the store. Chunks of one read are fetched side by side.

use crate::backend::Id;
use crate::domain::{Domain, Secret};
use crate::manifest::{Entry, Manifest};
use crate::pack::{Decoder, in_parts};
use crate::{Store, StoreError};
use parking_lot::Mutex;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_block::format::{Frame, ReadAt};
use sidecore_block::image::{Image, RemoteSource, Stored, Traffic};
use sidecore_block::pack::{
    Exported, Limits, Options, PackError, Source, Target, Work, pack, unpack_image,
};
use std::collections::{BTreeSet, HashSet, VecDeque};
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A chunk of a version by its number, and its contents.
type Numbered = (usize, Arc<[u8]>);

/// A version of an image in a store.
pub struct Version {
    store: Store,
    domain: Arc<Domain>,
    id: Id,
    manifest: Manifest,
    /// The manifest that its name was last seen with, and what it says if it is the same version
    /// with its chunks in other places.
    moved: Mutex<(Id, Option<Arc<Manifest>>)>,
    /// Contents of the chunks that were read last, by the number of their entry.
    recent: Mutex<VecDeque<(usize, Arc<[u8]>)>>,
    fetched_bytes: AtomicU64,
}

impl Version {
    /// Opens a version. Of a store that is only read, nothing else is needed than its references,
    /// manifests and packs. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Unknown`], [`StoreError::Domain`], [`StoreError::Damaged`] and others.
    pub fn open(store: &Store, name: &str, domain: Arc<Domain>) -> Result<Self, StoreError> {
        let (id, manifest) = store.manifest(name, &domain)?;
        Ok(Self {
            store: store.clone(),
            domain,
            id,
            manifest,
            moved: Mutex::new((id, None)),
            recent: Mutex::default(),
            fetched_bytes: AtomicU64::new(0),
        })
    }

    /// Size of the image in bytes.
    #[must_use]
    pub fn raw_bytes(&self) -> u64 {
        self.manifest.head.size_bytes
    }

    /// A reader of all bytes in their order.
    #[must_use]
    pub fn reader(self: &Arc<Self>) -> impl Read + Send + use<> {
        VersionReader {
            version: Arc::clone(self),
            at: 0,
        }
    }

    /// Writes all bytes, or, where `is_packed`, a compressed image of them, which `engines` make.
    /// The target is whole or unchanged. `progress` is called with the number of bytes done.
    /// Blocks.
    ///
    /// # Errors
    /// [`PackError`].
    pub fn write_to(
        self: &Arc<Self>,
        target: Target<'_>,
        is_packed: bool,
        engines: usize,
        progress: &mut (dyn FnMut(u64) + Send),
    ) -> Result<Exported, PackError> {
        let limits = Limits::default();
        let written = |stored_bytes| Exported {
            raw_bytes: self.raw_bytes(),
            stored_bytes,
        };
        if is_packed {
            let mut source = Source::from_reader(Box::new(self.reader()), &self.manifest.name);
            source.size_bytes = Some(self.raw_bytes());
            let options = Options::zstd(None, engines, limits);
            return pack(source, target, &options, progress).map(|it| written(it.stored_bytes));
        }
        let image = Image::Remote(Arc::clone(self) as _);
        let index = image.index(true)?;
        let work = Work::of(engines, limits);
        unpack_image(&image, &index, target, work, progress).map(|it| written(it.raw_bytes))
    }

    /// Reads and checks every chunk whose place is not in `seen`, to which it is added. Returns a
    /// description of each fault. `progress` is called with the number of bytes done.
    pub(crate) fn read_all(
        &self,
        seen: &mut HashSet<(Id, u32)>,
        progress: &mut dyn FnMut(u64),
    ) -> Vec<String> {
        // One for the whole walk: its buffers serve all chunks.
        let mut decoder = Decoder::new(&self.domain);
        let mut faults = Vec::new();
        for (number, entry) in self.manifest.entries.iter().enumerate() {
            let pack = self.manifest.head.packs.get(entry.pack.to_usize());
            // Holes have a number that no list of packs reaches.
            if let Some(pack) = pack
                && seen.insert((*pack, entry.at))
                && let Err(error) = self.load(&mut decoder, number)
            {
                faults.push(error.to_string());
            }
            progress(entry.end());
        }
        faults
    }

    /// Its manifest.
    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Id of its manifest.
    pub(crate) fn id(&self) -> Id {
        self.id
    }

    /// The stored bytes of the chunk of an entry, whose contents were checked.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Damaged`].
    pub(crate) fn stored(&self, number: usize) -> Result<Vec<u8>, StoreError> {
        let stored = self.fetch_stored(number)?;
        self.decode(&mut Decoder::new(&self.domain), number, stored.clone())?;
        Ok(stored)
    }

    /// Key of the pack of an entry that is no hole, and the range in it.
    fn place(&self, number: usize) -> (String, Range<u64>) {
        // Cloned, so that no read waits for another's store access with the lock held.
        let moved = self.moved.lock().1.clone();
        let manifest = moved.as_deref().unwrap_or(&self.manifest);
        let entry = &manifest.entries[number];
        let key = manifest.head.packs[entry.pack.to_usize()].pack();
        let start = u64::from(entry.at);
        (key, start..start + u64::from(entry.stored_bytes))
    }

    /// The stored bytes of the chunk of an entry, unchecked.
    fn fetch_stored(&self, number: usize) -> Result<Vec<u8>, StoreError> {
        // Read at first where it was opened: a version that moved is the exception.
        let (key, range) = self.place(number);
        match self.read_place(&key, range) {
            // A mount outlives compactions, after which a pack may be gone.
            Err(StoreError::Io { .. }) if self.has_moved()? => {
                let (key, range) = self.place(number);
                self.read_place(&key, range)
            }
            read => read,
        }
    }

    /// Looks if the name stands for the same version with its chunks in other places now.
    fn has_moved(&self) -> Result<bool, StoreError> {
        let name = &self.manifest.name;
        let id = self.store.reference(name)?;
        // A manifest is long: the same one is not read again for each chunk that is gone.
        if id == Some(self.moved.lock().0) {
            return Ok(self.moved.lock().1.is_some());
        }
        let (id, manifest) = self.store.manifest(name, &self.domain)?;
        // An equal digest: the same entries, but for their places.
        let is_same = manifest.digest == self.manifest.digest;
        *self.moved.lock() = (id, is_same.then(|| Arc::new(manifest)));
        Ok(is_same)
    }

    fn read_place(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, StoreError> {
        let backend = &*self.store.backend;
        let stored = backend.read(key, range);
        let stored = stored.map_err(|source| StoreError::io("read", key, backend, source))?;
        // Relaxed: a counter.
        self.fetched_bytes
            .fetch_add(stored.len().to_u64(), Ordering::Relaxed);
        Ok(stored)
    }

    fn decode(
        &self,
        decoder: &mut Decoder<'_>,
        number: usize,
        stored: Vec<u8>,
    ) -> Result<Vec<u8>, StoreError> {
        let entry = &self.manifest.entries[number];
        let raw = decoder.decode(&entry.key, stored, entry.raw_bytes);
        raw.map_err(|reason| {
            let (key, range) = self.place(number);
            let what = format!("{key} bytes {} to {}", range.start, range.end);
            StoreError::damaged(&what, reason)
        })
    }

    /// The contents of the chunk of an entry, from the store.
    fn load(&self, decoder: &mut Decoder<'_>, number: usize) -> Result<Arc<[u8]>, StoreError> {
        let stored = self.fetch_stored(number)?;
        Ok(self.decode(decoder, number, stored)?.into())
    }

    /// The contents of a chunk, if it was read a short time ago.
    fn recent(&self, number: usize) -> Option<Arc<[u8]>> {
        let recent = self.recent.lock();
        let found = recent.iter().find(|(other, _)| *other == number);
        found.map(|(_, raw)| Arc::clone(raw))
    }

    fn remember(&self, number: usize, raw: &Arc<[u8]>) {
        let mut recent = self.recent.lock();
        // Two threads may have loaded the same chunk; a second copy would push another one out.
        if recent.iter().any(|(other, _)| *other == number) {
            return;
        }
        if recent.len() >= RECENT_CHUNKS {
            // The oldest, not the least used: reads of an image go forward, and the bound is small.
            recent.pop_front();
        }
        recent.push_back((number, Arc::clone(raw)));
    }

    /// Loads the chunks of entries that were not read a short time ago, side by side, and with them
    /// some of those `ahead`, as far as there are idle threads. Returns the contents of `wanted` by
    /// their numbers.
    fn load_all(
        &self,
        wanted: &BTreeSet<usize>,
        ahead: &BTreeSet<usize>,
    ) -> Result<Vec<Numbered>, StoreError> {
        let mut loaded = Vec::with_capacity(wanted.len());
        let mut missing = Vec::new();
        for &number in wanted {
            match self.recent(number) {
                Some(raw) => loaded.push((number, raw)),
                None => missing.push(number),
            }
        }
        if !missing.is_empty() {
            // Chunks ahead ride along in the same round trip, and never make it longer.
            let idle = THREADS.saturating_sub(missing.len());
            let others = ahead.difference(wanted).copied();
            let others = others.filter(|number| self.recent(*number).is_none());
            missing.extend(others.take(idle));
        }
        let fetched = in_parts(&missing, THREADS, |part| {
            let mut decoder = Decoder::new(&self.domain);
            let mut contents = Vec::with_capacity(part.len());
            for &number in part {
                contents.push((number, self.load(&mut decoder, number)));
            }
            Ok(contents)
        })?;
        for (number, raw) in fetched {
            match raw {
                Ok(raw) => {
                    self.remember(number, &raw);
                    if wanted.contains(&number) {
                        loaded.push((number, raw));
                    }
                }
                Err(error) if wanted.contains(&number) => return Err(error),
                // Only the reads that touch it fail.
                Err(_) => {}
            }
        }
        loaded.sort_unstable_by_key(|(number, _)| *number);
        Ok(loaded)
    }

    /// Numbers of the entries that hold the bytes of a range, without those of zeros.
    fn stored_in(&self, offset: u64, len: u64) -> impl Iterator<Item = usize> {
        let entries = self.entries_of(offset, len);
        let stored = entries.filter(|(_, entry)| !entry.is_hole());
        stored.map(|(number, _)| number)
    }

    /// Numbers of the entries that hold the bytes of a range.
    fn entries_of(&self, offset: u64, len: u64) -> impl Iterator<Item = (usize, &Entry)> {
        let first = self.manifest.entry_at(offset);
        let rest = self.manifest.entries.iter().enumerate().skip(first);
        rest.take_while(move |(_, entry)| len > 0 && entry.start < offset + len)
    }

    /// Fills `buf` from chunks that were loaded; those that are not there are loaded one by one.
    fn copy(
        &self,
        buf: &mut [u8],
        offset: u64,
        loaded: &[(usize, Arc<[u8]>)],
    ) -> Result<(), StoreError> {
        // No overflow: `check` has compared both with the image's size.
        let end = offset + buf.len().to_u64();
        for (number, entry) in self.entries_of(offset, buf.len().to_u64()) {
            let from = offset.max(entry.start);
            let to = end.min(entry.end());
            let part = &mut buf[(from - offset).to_usize()..(to - offset).to_usize()];
            if entry.is_hole() {
                part.fill(0);
                continue;
            }
            let raw = match loaded.binary_search_by_key(&number, |(number, _)| *number) {
                Ok(found) => Arc::clone(&loaded[found].1),
                Err(_) => self.load(&mut Decoder::new(&self.domain), number)?,
            };
            let inside = (from - entry.start).to_usize()..(to - entry.start).to_usize();
            part.copy_from_slice(&raw[inside]);
        }
        Ok(())
    }

    /// Makes sure that a range lies inside the image.
    fn check(&self, offset: u64, len: usize) -> io::Result<()> {
        match offset.checked_add(len.to_u64()) {
            Some(end) if end <= self.raw_bytes() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl ReadAt for Version {
    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.raw_bytes())
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.check(offset, buf.len())?;
        // In steps, so that the chunks of a long read are not all held at once.
        for (step, part) in buf.chunks_mut(STEP_BYTES).enumerate() {
            let at = offset + (step * STEP_BYTES).to_u64();
            let numbers: BTreeSet<usize> = self.stored_in(at, part.len().to_u64()).collect();
            let loaded = self.load_all(&numbers, &BTreeSet::new());
            let loaded = loaded.map_err(io::Error::other)?;
            self.copy(part, at, &loaded).map_err(io::Error::other)?;
        }
        Ok(())
    }

    fn digest(&self) -> Option<[u8; 32]> {
        Some(self.manifest.digest)
    }

    fn secret(&self) -> Option<Secret> {
        self.domain.overlay_secret(&self.manifest.digest)
    }
}

impl RemoteSource for Version {
    fn fetch(
        &self,
        wanted: &[Frame],
        ahead: &mut dyn Iterator<Item = Frame>,
    ) -> io::Result<Vec<Stored>> {
        let mut numbers = BTreeSet::new();
        for frame in wanted {
            self.check(frame.offset, frame.stored_bytes.to_usize())?;
            numbers.extend(self.stored_in(frame.offset, frame.stored_bytes.into()));
        }
        let mut behind = BTreeSet::new();
        // A reader that waits anyway has the next chunks come with it; one that need not is not
        // held up.
        if numbers.iter().any(|number| self.recent(*number).is_none()) {
            for frame in ahead.take(AHEAD_FRAMES_MAX) {
                let is_inside = self.check(frame.offset, frame.stored_bytes.to_usize());
                if is_inside.is_err() || behind.len() >= THREADS {
                    break;
                }
                behind.extend(self.stored_in(frame.offset, frame.stored_bytes.into()));
            }
        }
        let loaded = self.load_all(&numbers, &behind);
        let loaded = loaded.map_err(io::Error::other)?;
        let frames = wanted.iter().map(|frame| -> io::Result<Stored> {
            let mut bytes = vec![0; frame.stored_bytes.to_usize()];
            let copied = self.copy(&mut bytes, frame.offset, &loaded);
            copied.map_err(io::Error::other)?;
            Ok(bytes.into())
        });
        frames.collect()
    }

    fn window_bytes(&self) -> u64 {
        WINDOW_BYTES
    }

    fn traffic(&self) -> Traffic {
        Traffic {
            // Relaxed: a counter.
            fetched_bytes: self.fetched_bytes.load(Ordering::Relaxed),
            retries: 0,
        }
    }

    fn version(&self) -> Option<String> {
        Some(Id(self.manifest.digest).to_string())
    }
}

/// Reads a version from its first byte to its last.
struct VersionReader {
    version: Arc<Version>,
    at: u64,
}

impl Read for VersionReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.version.raw_bytes() - self.at;
        let take = left.min(buf.len().to_u64()).to_usize();
        self.version.read_exact_at(&mut buf[..take], self.at)?;
        self.at += take.to_u64();
        Ok(take)
    }
}

/// Chunks that are kept: a reader of small pieces reads each chunk once.
const RECENT_CHUNKS: usize = 32;
/// Chunks that are fetched side by side for one read.
const THREADS: usize = 8;
/// Bytes of one step of a long read.
const STEP_BYTES: usize = 4 << 20;
/// Frames of a sequential reader that are looked at, for chunks to fetch with those it waits for.
const AHEAD_FRAMES_MAX: usize = 64;
/// Bytes of contents ahead of a sequential reader: those of some [`RECENT_CHUNKS`].
const WINDOW_BYTES: u64 = 2 << 20;
