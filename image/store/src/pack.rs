//! Packs: objects of some MiB that hold many chunks, with an index at the end; and chunks, from
//! their contents to their stored bytes and back.
//!
//! Why here: a bucket with an object for each chunk costs a request for each of them. The index is
//! read by writers, to find chunks that are there; manifests say where each chunk lies, so that
//! readers need no index.
//! Must stay true: no length is believed: a chunk inflates to exactly the size that its manifest
//! states, and its contents are those that its key names. Map: `docs/store.md`.
//! Called from: any thread.

use crate::StoreError;
use crate::backend::{Backend, Id};
use crate::domain::{ChunkKey, Domain, TAG_BYTES, chunk_id, random};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_block::codec::{CodecId, Deflater, Inflater, make_deflater, make_inflater};
use std::ops::Range;

/// A chunk in a pack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) id: Id,
    /// Offset of its stored bytes in the pack.
    pub(crate) at: u32,
    pub(crate) stored_bytes: u32,
    pub(crate) raw_bytes: u32,
}

/// A pack that is being filled.
pub(crate) struct PackBuilder {
    bytes: Vec<u8>,
    chunks: Vec<Packed>,
}

impl PackBuilder {
    /// Begins a pack of a domain.
    ///
    /// # Errors
    /// [`StoreError::Cipher`]: the system has no random bytes.
    pub(crate) fn new(tag: [u8; TAG_BYTES]) -> Result<Self, StoreError> {
        // It is full behind the chunk that crosses the limit, so one more chunk never moves it.
        let mut bytes = Vec::with_capacity(PACK_BYTES + CHUNK_BYTES_MAX.to_usize());
        bytes.extend(HEAD_MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([0_u8; 4]);
        bytes.extend(tag);
        // Drawn, so that no two packs are equal: a pack that is written anew never has the key of
        // one that is about to be removed.
        bytes.extend(&random()?[..16]);
        let chunks = Vec::new();
        Ok(Self { bytes, chunks })
    }

    /// Adds a chunk; returns its offset. `None` for a length that has no room in its field.
    pub(crate) fn push(&mut self, id: Id, stored: &[u8], raw_bytes: u32) -> Option<u32> {
        let at = u32::try_from(self.bytes.len()).ok()?;
        let stored_bytes = u32::try_from(stored.len()).ok()?;
        self.bytes.extend_from_slice(stored);
        self.chunks.push(Packed {
            id,
            at,
            stored_bytes,
            raw_bytes,
        });
        Some(at)
    }

    /// True once it is to be written.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= PACK_BYTES || self.chunks.len() >= PACK_CHUNKS_MAX.to_usize()
    }

    /// Its bytes, with the index; `None` for a pack without chunks.
    pub(crate) fn finish(mut self) -> Option<Vec<u8>> {
        // The index comes last: offsets are known only then, and a reader finds it from the end.
        let count = u32::try_from(self.chunks.len()).ok()?;
        if count == 0 {
            return None;
        }
        let mut index = Vec::with_capacity(self.chunks.len() * RECORD_BYTES);
        for chunk in &self.chunks {
            index.extend(chunk.id.0);
            index.extend(chunk.stored_bytes.to_le_bytes());
            index.extend(chunk.raw_bytes.to_le_bytes());
        }
        let head = &self.bytes[..HEAD_BYTES];
        // Of the index alone: chunks have keys of their own, and a reader of the index does not
        // read them.
        let check = index_check(head, &index);
        self.bytes.extend(index);
        self.bytes.extend(check);
        self.bytes.extend(count.to_le_bytes());
        self.bytes.extend(VERSION.to_le_bytes());
        self.bytes.extend(TAIL_MAGIC);
        Some(self.bytes)
    }
}

/// The index of a pack.
pub(crate) struct PackIndex {
    pub(crate) tag: [u8; TAG_BYTES],
    pub(crate) chunks: Vec<Packed>,
}

impl PackIndex {
    /// Reads the index of the pack with this key, and not its chunks.
    ///
    /// # Errors
    /// [`StoreError::Io`], [`StoreError::Damaged`].
    pub(crate) fn read(backend: &dyn Backend, key: &str) -> Result<Self, StoreError> {
        let failed = |source| StoreError::io("read", key, backend, source);
        let damaged = |reason: &str| StoreError::damaged(key, reason);
        // With the index, as a rule: one round trip for it.
        let found = backend.read_end(key, END_BYTES).map_err(failed)?;
        let (size, end) = found.ok_or_else(|| damaged("it is not there"))?;
        // Before any range is computed from a size that a server has stated.
        let fixed = (HEAD_BYTES + TAIL_BYTES).to_u64();
        if size < fixed || size > PACK_BYTES_MAX {
            return Err(damaged("it is too short or too long for a pack"));
        }
        if end.len().to_u64() != size.min(END_BYTES) {
            return Err(damaged("its end did not come as a whole"));
        }
        let end_at = size - end.len().to_u64();
        let part = |range: Range<u64>| match range.start.checked_sub(end_at) {
            // Inside: ranges end at `size` at most, and so does `end`.
            Some(from) => {
                let to = (range.end - end_at).to_usize();
                Ok(end[from.to_usize()..to].to_vec())
            }
            None => backend.read(key, range).map_err(failed),
        };
        let tail_at = size - TAIL_BYTES.to_u64();
        let head = part(0..HEAD_BYTES.to_u64())?;
        let tail = part(tail_at..size)?;
        let count = tail_count(&tail).ok_or_else(|| damaged("its end is not that of a pack"))?;
        // At most PACK_CHUNKS_MAX records: the count was checked before memory is taken for it.
        let index_bytes = u64::from(count) * RECORD_BYTES.to_u64();
        if size - fixed < index_bytes {
            return Err(damaged("its index is longer than it"));
        }
        let index_at = tail_at - index_bytes;
        let index = part(index_at..tail_at)?;
        Self::parse(&head, &index, &tail, index_at).map_err(damaged)
    }

    /// Reads the index in the bytes of a whole pack.
    ///
    /// # Errors
    /// The fault.
    fn of_bytes(bytes: &[u8]) -> Result<Self, &'static str> {
        let behind_head = |at: &usize| *at >= HEAD_BYTES;
        let tail_at = bytes.len().checked_sub(TAIL_BYTES).filter(behind_head);
        let tail_at = tail_at.ok_or("it is too short for a pack")?;
        let (rest, tail) = bytes.split_at(tail_at);
        let count = tail_count(tail).ok_or("its end is not that of a pack")?;
        let index_at = tail_at.checked_sub(count.to_usize() * RECORD_BYTES);
        let index_at = index_at.filter(behind_head);
        let index_at = index_at.ok_or("its index is longer than it")?;
        Self::parse(
            &rest[..HEAD_BYTES],
            &rest[index_at..],
            tail,
            index_at.to_u64(),
        )
    }

    /// Checks head, index and tail; the index begins at `index_at`.
    fn parse(head: &[u8], index: &[u8], tail: &[u8], index_at: u64) -> Result<Self, &'static str> {
        let version = VERSION.to_le_bytes();
        let is_head = head.starts_with(&HEAD_MAGIC) && head.get(8..12) == Some(&version[..]);
        let tag = head.get(16..).and_then(|rest| rest.first_chunk());
        let tag = tag.filter(|_| is_head).ok_or("it begins as no pack")?;
        // Against accidents. Against changes there is the pack's name, and each chunk's key.
        if tail[..32] != index_check(head, index) {
            return Err("its index does not match its checksum");
        }
        let mut chunks = Vec::with_capacity(index.len() / RECORD_BYTES);
        let mut at = HEAD_BYTES.to_u64();
        for record in index.as_chunks::<RECORD_BYTES>().0 {
            let mut id = [0; 32];
            id.copy_from_slice(&record[..32]);
            let stored_bytes = le32(&record[32..]);
            let raw_bytes = le32(&record[36..]);
            if !are_lengths(stored_bytes, raw_bytes) {
                return Err("a chunk in its index has a senseless length");
            }
            chunks.push(Packed {
                id: Id(id),
                // Below 2^32: the pack's length is.
                at: u32::try_from(at).map_err(|_| "it is too long")?,
                stored_bytes,
                raw_bytes,
            });
            at += u64::from(stored_bytes);
        }
        match at == index_at {
            true => Ok(Self { tag: *tag, chunks }),
            false => Err("its chunks do not fill it"),
        }
    }
}

/// Makes sure that a pack from elsewhere holds what its index says, as far as that needs no keys:
/// a writer that finds a chunk in an index does not store it again.
///
/// # Errors
/// The fault.
pub(crate) fn check_contents(bytes: &[u8]) -> Result<(), String> {
    let index = PackIndex::of_bytes(bytes)?;
    let domain = Domain::shared();
    if index.tag != domain.tag() {
        return Ok(());
    }
    let mut inflater = make_inflater(CodecId::Zstd);
    // The contents are compared with their name, which is a stronger check.
    inflater.set_verified(true);
    for chunk in &index.chunks {
        let start = chunk.at.to_usize();
        // Inside: the lengths add up to where the index begins.
        let stored = &bytes[start..start + chunk.stored_bytes.to_usize()];
        // At most CHUNK_BYTES_MAX, as `are_lengths` has made sure.
        let mut raw = vec![0; chunk.raw_bytes.to_usize()];
        let inflated = inflater.inflate(stored, &mut raw);
        inflated.map_err(|error| error.to_string())?;
        if chunk_id(&domain.chunk_key(&raw)) != chunk.id {
            return Err("a chunk in it is another one than its index says".to_owned());
        }
    }
    Ok(())
}

/// The number of chunks in a pack, as its last bytes say.
fn tail_count(tail: &[u8]) -> Option<u32> {
    let rest = tail.get(32..TAIL_BYTES)?;
    let is_tail = rest[4..8] == VERSION.to_le_bytes() && rest[8..] == TAIL_MAGIC;
    Some(le32(rest)).filter(|count| is_tail && (1..=PACK_CHUNKS_MAX).contains(count))
}

/// BLAKE3 of a pack's head and index.
fn index_check(head: &[u8], index: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(head).update(index);
    *hasher.finalize().as_bytes()
}

/// True for lengths that a chunk can have.
pub(crate) fn are_lengths(stored_bytes: u32, raw_bytes: u32) -> bool {
    // Bytes that do not compress grow by a frame's headers, a nonce and a tag: far less than this.
    let stored_max = 2 * u64::from(raw_bytes) + 4096;
    (1..=CHUNK_BYTES_MAX).contains(&raw_bytes)
        && stored_bytes > 0
        && u64::from(stored_bytes) <= stored_max
}

/// The little-endian `u32` at the start of `bytes`, which the caller has bounded.
pub(crate) fn le32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Makes stored bytes of contents.
pub(crate) struct Encoder<'d> {
    domain: &'d Domain,
    deflater: Box<dyn Deflater>,
}

impl<'d> Encoder<'d> {
    /// For chunks of a domain, at a level of zstd.
    ///
    /// # Errors
    /// [`StoreError::Codec`]: no such level, or no memory.
    pub(crate) fn new(domain: &'d Domain, level: i32) -> Result<Self, StoreError> {
        let deflater = make_deflater(CodecId::Zstd, Some(level))?;
        Ok(Self { domain, deflater })
    }

    /// The stored bytes of a chunk.
    ///
    /// # Errors
    /// [`StoreError::Codec`], [`StoreError::Cipher`].
    pub(crate) fn encode(&mut self, key: &ChunkKey, raw: &[u8]) -> Result<Vec<u8>, StoreError> {
        let mut compressed = Vec::new();
        self.deflater.deflate(raw, &mut compressed)?;
        self.domain.seal_chunk(key, compressed)
    }
}

/// Makes contents of stored bytes.
pub(crate) struct Decoder<'d> {
    domain: &'d Domain,
    inflater: Box<dyn Inflater>,
}

impl<'d> Decoder<'d> {
    pub(crate) fn new(domain: &'d Domain) -> Self {
        let mut inflater = make_inflater(CodecId::Zstd);
        // The contents are compared with their key, which is a stronger check.
        inflater.set_verified(true);
        Self { domain, inflater }
    }

    /// The contents of the chunk with this key.
    ///
    /// # Errors
    /// The fault: these bytes are not that chunk.
    pub(crate) fn decode(
        &mut self,
        key: &ChunkKey,
        stored: Vec<u8>,
        raw_bytes: u32,
    ) -> Result<Vec<u8>, String> {
        let compressed = self.domain.open_chunk(key, stored);
        let compressed = compressed.ok_or("it was not encrypted with its key")?;
        let mut raw = vec![0; raw_bytes.to_usize()];
        let inflated = self.inflater.inflate(&compressed, &mut raw);
        inflated.map_err(|error| error.to_string())?;
        match self.domain.chunk_key(&raw) == *key {
            true => Ok(raw),
            false => Err("its contents are not those that its name stands for".to_owned()),
        }
    }
}

/// Calls `work` with the parts of `items`, on up to `threads` threads, and joins what it returns.
/// Work on parts of `items`, side by side; this thread does it where no other can be started.
///
/// # Errors
/// The first that `work` returns.
pub(crate) fn in_parts<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&[T]) -> Result<Vec<R>, StoreError> + Sync,
) -> Result<Vec<R>, StoreError> {
    let part_len = items.len().div_ceil(threads.max(1)).max(1);
    if part_len >= items.len() {
        return work(items);
    }
    let work = &work;
    let parts: Vec<Result<Vec<R>, StoreError>> = std::thread::scope(|scope| {
        let start = |part| {
            let builder = std::thread::Builder::new().name("chunks".into());
            (part, builder.spawn_scoped(scope, move || work(part)))
        };
        let started: Vec<_> = items.chunks(part_len).map(start).collect();
        let ended = started.into_iter().map(|(part, thread)| match thread {
            Ok(thread) => match thread.join() {
                Ok(made) => made,
                Err(panic) => std::panic::resume_unwind(panic),
            },
            Err(_) => work(part),
        });
        ended.collect()
    });
    let mut all = Vec::with_capacity(items.len());
    for part in parts {
        all.extend(part?);
    }
    Ok(all)
}

/// True if a pack lists this chunk at this place.
pub(crate) fn lists(chunks: &[Packed], key: &ChunkKey, at: u32, lengths: (u32, u32)) -> bool {
    let found = chunks.binary_search_by_key(&at, |chunk| chunk.at);
    found.is_ok_and(|found| {
        let chunk = &chunks[found];
        chunk.id == chunk_id(key) && (chunk.stored_bytes, chunk.raw_bytes) == lengths
    })
}

/// Bytes of a pack with `chunks` chunks without those of the chunks themselves.
pub(crate) fn pack_overhead_bytes(chunks: usize) -> u64 {
    (HEAD_BYTES + TAIL_BYTES + chunks * RECORD_BYTES).to_u64()
}

/// Bytes after which a pack is written.
pub(crate) const PACK_BYTES: usize = 16 << 20;
/// A pack and the longest chunk and index that may still be added, rounded up.
pub(crate) const PACK_BYTES_MAX: u64 = 64 << 20;
const PACK_CHUNKS_MAX: u32 = 64 << 10;
/// Contents of the longest chunk: four times the largest average.
pub(crate) const CHUNK_BYTES_MAX: u32 = 4 << 20;
/// Magic, version, zeros, tag, random bytes.
pub(crate) const HEAD_BYTES: usize = 48;
/// Checksum, number of chunks, version, magic.
const TAIL_BYTES: usize = 48;
/// Bytes that are read of a pack's end at first: the index of some 1,600 chunks.
const END_BYTES: u64 = 64 << 10;
/// Id, stored bytes, contents' bytes.
const RECORD_BYTES: usize = 40;
const HEAD_MAGIC: [u8; 8] = *b"sidepack";
const TAIL_MAGIC: [u8; 8] = *b"packends";
const VERSION: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_in_order() {
        let items: Vec<u32> = (0..100).collect();
        for threads in [0, 1, 3, 7, 200] {
            let twice = |part: &[u32]| Ok(part.iter().map(|it| it * 2).collect());
            let found = in_parts(&items, threads, twice).unwrap();
            assert!(found.iter().zip(&items).all(|(two, one)| *two == 2 * one));
            assert_eq!(found.len(), items.len());
        }
    }

    #[test]
    fn a_pack_from_elsewhere_is_checked_by_its_contents() {
        let domain = Domain::shared();
        let raw = [vec![1; 5000], vec![2; 7000]];
        let keys = [&raw[0], &raw[1]].map(|raw| domain.chunk_key(raw));
        let pack = |tag, names: [usize; 2]| {
            let mut encoder = Encoder::new(&domain, 3).unwrap();
            let mut pack = PackBuilder::new(tag).unwrap();
            for (contents, name) in names.into_iter().enumerate() {
                let stored = encoder.encode(&keys[contents], &raw[contents]).unwrap();
                let raw_bytes = u32::try_from(raw[contents].len()).unwrap();
                pack.push(chunk_id(&keys[name]), &stored, raw_bytes);
            }
            pack.finish().unwrap()
        };
        let whole = pack(domain.tag(), [0, 1]);
        check_contents(&whole).unwrap();
        let lying = check_contents(&pack(domain.tag(), [0, 0])).unwrap_err();
        assert!(lying.contains("another one"), "{lying}");
        // Those of a domain open with its keys alone.
        check_contents(&pack([7; TAG_BYTES], [0, 0])).unwrap();
        for len in 0..whole.len() {
            check_contents(&whole[..len]).unwrap_err();
        }
    }

    #[test]
    fn a_chunk_in_the_wrong_place_is_an_error() {
        let domain = Domain::shared();
        let (one, two) = (vec![1; 5000], vec![2; 5000]);
        let keys = [&one, &two].map(|raw| domain.chunk_key(raw));
        let mut encoder = Encoder::new(&domain, 3).unwrap();
        let stored = encoder.encode(&keys[0], &one).unwrap();
        let mut decoder = Decoder::new(&domain);
        assert_eq!(decoder.decode(&keys[0], stored.clone(), 5000), Ok(one));
        decoder.decode(&keys[1], stored.clone(), 5000).unwrap_err();
        for wrong in [1, 4999, 5001] {
            decoder.decode(&keys[0], stored.clone(), wrong).unwrap_err();
        }
        for bit in 0..8 * stored.len() {
            let mut damaged = stored.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // A bit without meaning (of the checksum) may still give the right contents.
            if let Ok(raw) = decoder.decode(&keys[0], damaged, 5000) {
                assert_eq!(raw, vec![1; 5000]);
            }
        }
    }
}
