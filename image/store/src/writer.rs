//! Writers: an image is cut into chunks, those that the store lacks are packed, and a name is
//! published.
//!
//! Why here: the order of the steps, which makes a writer safe next to others and to collectors,
//! and lets it die anywhere: packs, then the manifest, then the name.
//! Must stay true: boundaries of chunks depend on the bytes and the domain alone; memory is bounded
//! by a batch, a pack, and some 80 bytes for each chunk of the store. Nothing is published that was
//! not written before.
//! Called from: one thread for each session, which blocks; chunks are compressed on all cores.
//! Source: W. Xia et al., "The Design of Fast Content-Defined Chunking for Data Deduplication Based
//! Storage Systems", IEEE TPDS 31(9), 2020.

use crate::backend::{Id, PACKS};
use crate::domain::{ChunkKey, Domain, chunk_id};
use crate::gc::Lease;
use crate::manifest::{Draft, ENTRIES_MAX, Entry, HOLE, TOO_MANY};
use crate::pack::{Encoder, PackBuilder, PackIndex, in_parts};
use crate::version::Version;
use crate::{Store, StoreError};
use fastcdc::v2020::{FastCDC, Normalization};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_block::format::write::is_zero;
use sidecore_block::source::BlockSource;
use std::collections::{HashMap, HashSet};

/// Result of [`Session::publish`].
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Added {
    /// The version's name.
    pub name: String,
    /// Id of its manifest.
    pub manifest: String,
    /// Size of the image in bytes.
    pub raw_bytes: u64,
    /// Chunks that the image has, without those of zeros.
    pub chunks: u64,
    /// Chunks that the store lacked.
    pub new_chunks: u64,
    /// Bytes that were written: packs and manifest.
    pub stored_bytes: u64,
}

/// An image whose chunks are stored, and which has no name yet.
#[derive(Default)]
pub struct Stored {
    entries: Vec<Entry>,
    raw_bytes: u64,
    chunks: u64,
    new_chunks: u64,
    stored_bytes: u64,
}

/// The place of a chunk that the store has.
#[derive(Clone, Copy)]
struct Place {
    /// Number of its pack in the session.
    pack: u32,
    at: u32,
    stored_bytes: u32,
    raw_bytes: u32,
}

/// A writer at work, with a lease on the store.
pub struct Session<'s> {
    store: &'s Store,
    domain: &'s Domain,
    lease: Lease<'s>,
    known: HashMap<Id, Place>,
    /// Packs by number; the one that is being filled, with the next number, has no id yet. Chunks
    /// in a pack that is not here any more are not there.
    packs: HashMap<u32, Id>,
    next_pack: u32,
    filling: Option<PackBuilder>,
    level: i32,
    threads: usize,
    written_bytes: u64,
}

impl<'s> Session<'s> {
    /// Takes a lease and reads the index of all packs of the domain. Chunks are compressed at a
    /// level of zstd, on up to `threads` threads. Blocks.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn begin(
        store: &'s Store,
        domain: &'s Domain,
        level: i32,
        threads: usize,
    ) -> Result<Self, StoreError> {
        // Before the first look: what is seen from here on stays.
        let lease = Lease::take(store)?;
        let mut session = Self {
            store,
            domain,
            lease,
            known: HashMap::new(),
            packs: HashMap::new(),
            next_pack: 0,
            filling: None,
            level,
            threads,
            written_bytes: 0,
        };
        let names = store.list(PACKS)?;
        let ids: Vec<Id> = names.iter().filter_map(|name| Id::parse(name)).collect();
        let backend = &*store.backend;
        // Side by side: each costs a round trip or two where the store is far.
        for some in ids.chunks(LEARN_PACKS) {
            let read = in_parts(some, backend.requests_max(), |part| {
                let index = |id: &Id| (*id, PackIndex::read(backend, &id.pack()));
                Ok(part.iter().map(index).collect())
            })?;
            for (id, index) in read {
                session.learn(id, index)?;
            }
            // Tens of thousands of packs on a slow disk take a while.
            session.lease.renew()?;
        }
        Ok(session)
    }

    /// Takes the index of a pack, which was read: of a pack, the end alone, so that a store of
    /// terabytes is known after some MiB for each million chunks. A damaged one is left out: its
    /// chunks are stored again.
    fn learn(&mut self, id: Id, read: Result<PackIndex, StoreError>) -> Result<(), StoreError> {
        let index = match read {
            Ok(index) if index.tag == self.domain.tag() => index,
            Ok(_) => return Ok(()),
            // It may just have been removed.
            Err(_) if self.lease.is_doomed(&id.pack()) => return Ok(()),
            Err(error @ StoreError::Damaged { .. }) => {
                tracing::warn!("its chunks are stored again: {error}");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let pack = self.number_pack()?;
        self.packs.insert(pack, id);
        for chunk in index.chunks {
            // Beyond the bound some chunks are stored twice: larger, never wrong.
            if self.known.len() < KNOWN_MAX {
                let place = Place {
                    pack,
                    at: chunk.at,
                    stored_bytes: chunk.stored_bytes,
                    raw_bytes: chunk.raw_bytes,
                };
                self.known.entry(chunk.id).or_insert(place);
            }
        }
        Ok(())
    }

    fn number_pack(&mut self) -> Result<u32, StoreError> {
        let number = self.next_pack;
        // The highest number stands for zeros in entries.
        let next = number.checked_add(1).filter(|next| *next < HOLE);
        self.next_pack = next.ok_or(StoreError::Limit("the store has too many packs"))?;
        Ok(number)
    }

    /// Stores the chunks of an image that the store lacks. `progress` is called with the number of
    /// bytes done. Blocks.
    ///
    /// # Errors
    /// [`StoreError`]; what was written is removed by later garbage collections.
    pub fn store(
        &mut self,
        source: &dyn BlockSource,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Stored, StoreError> {
        if source.size_bytes() == 0 {
            return Err(StoreError::Limit(
                "the image has no bytes: nothing is stored",
            ));
        }
        // The store's, and no option: images cut by another average would share nothing.
        let average = self.store.chunk_bytes;
        let mut cutter = Cutter::new(source, average.to_usize(), self.domain.cut_seed());
        let mut stored = Stored::default();
        let before = self.written_bytes;
        loop {
            let pieces = cutter.next()?;
            if pieces.is_empty() {
                break;
            }
            self.store_pieces(&pieces, &mut stored)?;
            // Now, and not once all of it is stored.
            if stored.entries.len() > ENTRIES_MAX {
                return Err(StoreError::Limit(TOO_MANY));
            }
            progress(stored.raw_bytes);
            self.lease.renew()?;
        }
        self.flush()?;
        stored.stored_bytes = self.written_bytes - before;
        Ok(stored)
    }

    fn store_pieces(&mut self, pieces: &[Piece], stored: &mut Stored) -> Result<(), StoreError> {
        let chunks = pieces.iter().filter_map(|piece| match piece {
            Piece::Chunk(raw) => Some(&**raw),
            Piece::Zeros(_) => None,
        });
        let chunks: Vec<&[u8]> = chunks.collect();
        // Hashing first, on all threads: only what the store lacks is compressed, which costs most.
        let domain = self.domain;
        let keys = in_parts(&chunks, self.threads, |part| {
            Ok(part.iter().map(|raw| domain.chunk_key(raw)).collect())
        })?;
        let mut new: HashMap<ChunkKey, Vec<u8>> = self.encode_new(&chunks, &keys)?;
        // In the image's order again, so that a reader finds neighbouring chunks next to one
        // another in a pack.
        let mut keys = keys.into_iter();
        for piece in pieces {
            let (raw, key) = match piece {
                Piece::Zeros(bytes) => {
                    add_zeros(&mut stored.entries, *bytes, stored.raw_bytes);
                    stored.raw_bytes += bytes;
                    continue;
                }
                Piece::Chunk(raw) => (raw, keys.next().ok_or(StoreError::Limit(NO_CHUNK))?),
            };
            // Removed: the second equal chunk of a batch finds the first one's place.
            let place = match new.remove(&key) {
                Some(bytes) => {
                    stored.new_chunks += 1;
                    self.push(&key, &bytes, raw.len())?
                }
                None => {
                    let place = self.known.get(&chunk_id(&key));
                    *place.ok_or(StoreError::Limit(NO_CHUNK))?
                }
            };
            stored.entries.push(Entry {
                start: stored.raw_bytes,
                raw_bytes: place.raw_bytes,
                stored_bytes: place.stored_bytes,
                pack: place.pack,
                at: place.at,
                key,
            });
            stored.chunks += 1;
            stored.raw_bytes += raw.len().to_u64();
        }
        Ok(())
    }

    /// Stored bytes of those chunks that the store lacks, each once.
    fn encode_new(
        &mut self,
        chunks: &[&[u8]],
        keys: &[ChunkKey],
    ) -> Result<HashMap<ChunkKey, Vec<u8>>, StoreError> {
        let mut lacking: HashMap<ChunkKey, &[u8]> = HashMap::new();
        for (raw, key) in chunks.iter().zip(keys) {
            if !lacking.contains_key(key) && !self.has(key, raw.len())? {
                lacking.insert(*key, raw);
            }
        }
        let lacking: Vec<(ChunkKey, &[u8])> = lacking.into_iter().collect();
        let (domain, level) = (self.domain, self.level);
        let encoded = in_parts(&lacking, self.threads, |part| {
            // One for each thread: a compressor's state is large, and not shared.
            let mut encoder = Encoder::new(domain, level)?;
            let mut made = Vec::with_capacity(part.len());
            for (key, raw) in part {
                made.push((*key, encoder.encode(key, raw)?));
            }
            Ok(made)
        })?;
        Ok(encoded.into_iter().collect())
    }

    /// True if the store has a chunk, which then stays.
    fn has(&mut self, key: &ChunkKey, raw_len: usize) -> Result<bool, StoreError> {
        let id = chunk_id(key);
        let Some(place) = self.known.get(&id).copied() else {
            return Ok(false);
        };
        match self.packs.get(&place.pack).map(Id::pack) {
            // The pack that is being filled has no id, and cannot go.
            None if place.pack == self.next_pack => {}
            None => return Ok(false),
            Some(pack) if self.lease.is_doomed(&pack) && !self.lease.keep(&pack)? => {
                // It was removed, with all chunks in it.
                self.packs.remove(&place.pack);
                return Ok(false);
            }
            Some(_) => {}
        }
        // An index that states another length for these contents is wrong.
        let is_right = place.raw_bytes.to_usize() == raw_len;
        if !is_right {
            // So that the chunk that is stored anew takes its place.
            self.known.remove(&id);
        }
        Ok(is_right)
    }

    /// Puts a chunk into the pack that is being filled.
    fn push(&mut self, key: &ChunkKey, bytes: &[u8], raw_len: usize) -> Result<Place, StoreError> {
        let limit = || StoreError::Limit("a chunk has no room in a pack");
        if self.filling.as_ref().is_some_and(PackBuilder::is_full) {
            self.flush()?;
        }
        // After a flush that failed there is none either, and the next one has another number.
        let mut pack = match self.filling.take() {
            Some(pack) => pack,
            None => PackBuilder::new(self.domain.tag())?,
        };
        let id = chunk_id(key);
        let raw_bytes = u32::try_from(raw_len).map_err(|_| limit())?;
        let at = pack.push(id, bytes, raw_bytes);
        self.filling = Some(pack);
        let place = Place {
            // It has this number once it is written: `flush` is the next to take one.
            pack: self.next_pack,
            at: at.ok_or_else(limit)?,
            stored_bytes: u32::try_from(bytes.len()).map_err(|_| limit())?,
            raw_bytes,
        };
        self.known.insert(id, place);
        Ok(place)
    }

    /// Writes the pack that is being filled.
    fn flush(&mut self) -> Result<(), StoreError> {
        let Some(bytes) = self.filling.take().and_then(PackBuilder::finish) else {
            return Ok(());
        };
        let id = Id::of(&bytes);
        // Its number is gone even if it cannot be written: its chunks are then not there.
        let number = self.number_pack()?;
        self.store.put(&id.pack(), &bytes)?;
        self.packs.insert(number, id);
        self.written_bytes += bytes.len().to_u64();
        Ok(())
    }

    /// Gives an image that this session has stored its name, at once. With `replace`, the name may
    /// stand for another version, which becomes the parent. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::Changed`], [`StoreError::LeaseLost`] and others; the
    /// name is then as it was.
    pub fn publish(
        &mut self,
        name: &str,
        stored: &Stored,
        replace: bool,
    ) -> Result<Added, StoreError> {
        let old = self.store.reference(name)?;
        if old.is_some() && !replace {
            return Err(StoreError::Exists(name.to_owned()));
        }
        // The reference is looked at again under the lock; this look spares the work of a manifest.
        let created_s = self.store.now_ms() / 1000;
        let (id, manifest_bytes) = self.publish_as(name, stored, old, (created_s, old))?;
        Ok(Added {
            name: name.to_owned(),
            manifest: id.to_string(),
            raw_bytes: stored.raw_bytes,
            chunks: stored.chunks,
            new_chunks: stored.new_chunks,
            stored_bytes: stored.stored_bytes + manifest_bytes,
        })
    }

    /// Publishes an image under a name that stands for `old` now, with a time and a parent. Returns
    /// the manifest's id and length.
    fn publish_as(
        &mut self,
        name: &str,
        stored: &Stored,
        old: Option<Id>,
        (created_s, parent): (u64, Option<Id>),
    ) -> Result<(Id, u64), StoreError> {
        let draft = Draft {
            name,
            created_s,
            parent,
            entries: &stored.entries,
            packs: &self.packs,
        };
        let bytes = draft.encode(self.domain)?;
        let id = Id::of(&bytes);
        // Durable before the name: a crash here leaves an object that no name needs.
        self.store.put(&id.manifest(), &bytes)?;
        self.lease.publish(name, old, id)?;
        Ok((id, bytes.len().to_u64()))
    }

    /// Takes the chunks in these packs for chunks that the store has not.
    pub(crate) fn forget(&mut self, packs: &HashSet<Id>) {
        self.packs.retain(|_, id| !packs.contains(&*id));
    }

    /// Stores those chunks of a version anew, as they are, whose packs were forgotten. Has its name
    /// stand for the same version with the new places, if it has not changed. Returns the bytes
    /// that were written. Blocks.
    ///
    /// # Errors
    /// [`StoreError::Changed`] and others; the name is then as it was.
    pub(crate) fn move_version(&mut self, version: &Version) -> Result<u64, StoreError> {
        let manifest = version.manifest();
        let before = self.written_bytes;
        let mut entries = Vec::with_capacity(manifest.entries.len());
        for (number, entry) in manifest.entries.iter().enumerate() {
            if entry.is_hole() {
                entries.push(*entry);
                continue;
            }
            let raw_len = entry.raw_bytes.to_usize();
            if !self.has(&entry.key, raw_len)? {
                // Checked against its key, still compressed and encrypted: a damaged chunk is not
                // carried on.
                let bytes = version.stored(number)?;
                self.push(&entry.key, &bytes, raw_len)?;
                self.lease.renew()?;
            }
            let place = self.known.get(&chunk_id(&entry.key));
            let place = place.ok_or(StoreError::Limit(NO_CHUNK))?;
            entries.push(Entry {
                stored_bytes: place.stored_bytes,
                pack: place.pack,
                at: place.at,
                ..*entry
            });
        }
        self.flush()?;
        let stored = Stored {
            entries,
            ..Stored::default()
        };
        // As it was: a compaction is no new version.
        let made = (manifest.head.created_s, manifest.parent);
        let (_, bytes) = self.publish_as(&manifest.name, &stored, Some(version.id()), made)?;
        Ok(self.written_bytes - before + bytes)
    }

    /// Ends as a process does that is killed: the lease stays until it expires.
    #[doc(hidden)]
    pub fn die(self) {
        std::mem::forget(self);
    }
}

/// Adds zeros to the last entry where it is one of zeros, and else an entry.
fn add_zeros(entries: &mut Vec<Entry>, bytes: u64, start: u64) {
    let mut left = bytes;
    if let Some(last) = entries.last_mut().filter(|last| last.is_hole()) {
        let room = HOLE_BYTES_MAX - u64::from(last.raw_bytes);
        let more = left.min(room);
        // At most HOLE_BYTES_MAX, which 32 bits hold.
        last.raw_bytes += u32::try_from(more).unwrap_or(0);
        left -= more;
    }
    while left > 0 {
        let take = left.min(HOLE_BYTES_MAX);
        entries.push(Entry {
            start: start + (bytes - left),
            raw_bytes: u32::try_from(take).unwrap_or(0),
            stored_bytes: 0,
            pack: HOLE,
            at: 0,
            key: [0; 32],
        });
        left -= take;
    }
}

/// A part of an image, as it is stored.
enum Piece {
    Chunk(Vec<u8>),
    /// Zeros, whole chunks of the largest size.
    Zeros(u64),
}

/// Cuts an image into chunks.
struct Cutter<'a> {
    source: &'a dyn BlockSource,
    average: usize,
    seed: u64,
    /// Bytes that are read and not returned yet, at the start.
    buffer: Vec<u8>,
    filled: usize,
    /// Offset in the image behind them.
    at: u64,
}

impl<'a> Cutter<'a> {
    fn new(source: &'a dyn BlockSource, average: usize, seed: u64) -> Self {
        // Room for several of the longest chunks: each call then returns at least one piece.
        let capacity = BATCH_BYTES.max(4 * average * FACTOR);
        Self {
            source,
            average,
            seed,
            buffer: vec![0; capacity],
            filled: 0,
            at: 0,
        }
    }

    /// The next pieces; none at the end.
    fn next(&mut self) -> Result<Vec<Piece>, StoreError> {
        let max = self.average * FACTOR;
        if let Some(zeros) = self.skip_zeros(max.to_u64()) {
            return Ok(vec![Piece::Zeros(zeros)]);
        }
        let size = self.source.size_bytes();
        while self.filled < self.buffer.len() && self.at < size {
            let room = (self.buffer.len() - self.filled).min(READ_BYTES).to_u64();
            let take = room.min(size - self.at).to_usize();
            let part = &mut self.buffer[self.filled..self.filled + take];
            // In parts, since a source may decompress what it reads.
            self.source.read_into(self.at, part)?;
            self.filled += take;
            self.at += take.to_u64();
        }
        let bytes = &self.buffer[..self.filled];
        // FastCDC's normalisation (Xia 2020, section 3.4): sizes stay near the average, so that
        // fewer boundaries are forced ones, which shift with an insertion.
        let (min, level) = (self.average / FACTOR, Normalization::Level1);
        let cuts = FastCDC::with_level_and_seed(bytes, min, self.average, max, level, self.seed);
        let (mut pieces, mut done) = (Vec::new(), 0);
        for cut in cuts {
            // A chunk is cut where it would be with all bytes that could be part of it.
            if self.at < size && cut.offset + max > self.filled {
                break;
            }
            done = cut.offset + cut.length;
            let chunk = &bytes[cut.offset..done];
            pieces.push(match chunk.len() == max && is_zero(chunk) {
                true => Piece::Zeros(max.to_u64()),
                false => Piece::Chunk(chunk.to_vec()),
            });
        }
        // The rest is cut again with what follows: a boundary must not depend on the batches.
        self.buffer.copy_within(done..self.filled, 0);
        self.filled -= done;
        Ok(pieces)
    }

    /// Whole chunks of zeros, where a hole of the source has them: it is not read.
    fn skip_zeros(&mut self, max: u64) -> Option<u64> {
        if self.at >= self.source.size_bytes() || !is_zero(&self.buffer[..self.filled]) {
            return None;
        }
        // What waits is zeros, too: else the hole's start would become a boundary that a copy
        // without holes has not.
        let extent = self.source.extent(self.at);
        if !extent.zero {
            return None;
        }
        let left = self.source.size_bytes() - self.at;
        let before = self.filled.to_u64();
        // Whole chunks of the longest size: as the same zeros are cut where they are read.
        let zeros = (before + extent.len.min(left)) / max * max;
        // Less than a chunk may be waiting: the rest of a batch.
        let skipped = zeros.checked_sub(before).filter(|skipped| *skipped > 0)?;
        self.at += skipped;
        self.filled = 0;
        Some(zeros)
    }
}

/// Said where a step of this module is wrong; nothing is published then.
const NO_CHUNK: &str = "a chunk of the image was not stored";
/// Ratio of the average to the shortest chunk, and of the longest to the average.
const FACTOR: usize = 4;
/// Packs whose indexes are read together.
const LEARN_PACKS: usize = 32;
/// Bytes that are cut, hashed and compressed together.
const BATCH_BYTES: usize = 8 << 20;
/// Bytes of one read.
const READ_BYTES: usize = 1 << 20;
/// Zeros of one entry.
const HOLE_BYTES_MAX: u64 = 1 << 30;
/// Chunks of a store that a writer knows: of 1 TiB in chunks of 64 KiB.
const KNOWN_MAX: usize = 16 << 20;
