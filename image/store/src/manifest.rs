//! Manifests: one version of one image, as a list of chunks and the places where they lie.
//!
//! Why here: a version is opened with its manifest alone. The head is never encrypted, and names
//! the packs that are used, so that garbage collection and copies need no keys. The body has the
//! keys of the chunks and is encrypted in a domain; the head is authenticated with it.
//! Must stay true: any bytes are taken without a panic; memory is bounded by the object's length
//! and [`PAYLOAD_BYTES_MAX`]. Entries that were returned fill the image without a gap. Map:
//! `docs/store.md`.
//! Pure.

use crate::StoreError;
use crate::backend::Id;
use crate::domain::{ChunkKey, Domain, NONCE_BYTES, TAG_BYTES, random};
use crate::pack::{HEAD_BYTES, PACK_BYTES_MAX, are_lengths, le32};
use sidecore_bare::width::ToUsize;
use sidecore_block::codec::{CodecId, make_deflater, make_inflater};
use std::collections::HashMap;

/// A run of an image's bytes: a chunk, or zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Offset of its first byte in the image.
    pub(crate) start: u64,
    pub(crate) raw_bytes: u32,
    /// 0 for zeros.
    pub(crate) stored_bytes: u32,
    /// Number of its pack in the head; [`HOLE`] for zeros.
    pub(crate) pack: u32,
    /// Offset in the pack.
    pub(crate) at: u32,
    pub(crate) key: ChunkKey,
}

impl Entry {
    /// True for zeros, which are not stored.
    pub(crate) fn is_hole(&self) -> bool {
        self.pack == HOLE
    }

    /// Offset in the image behind its last byte.
    pub(crate) fn end(&self) -> u64 {
        self.start + u64::from(self.raw_bytes)
    }
}

/// The part of a manifest that is never encrypted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) tag: [u8; TAG_BYTES],
    /// Number of the key that encrypts the body; 0 for none.
    pub(crate) key: u32,
    nonce: [u8; NONCE_BYTES],
    /// Size of the image.
    pub(crate) size_bytes: u64,
    /// Seconds since 1970.
    pub(crate) created_s: u64,
    /// Packs that hold its chunks.
    pub(crate) packs: Vec<Id>,
    /// Length of the body before compression.
    payload_bytes: u32,
    /// Its own length.
    len: usize,
}

impl Head {
    /// Reads the head of a manifest.
    ///
    /// # Errors
    /// The fault.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, &'static str> {
        let mut left = bytes;
        let short = "it is cut short";
        if take::<8>(&mut left).ok_or(short)? != MAGIC {
            return Err("it begins as no manifest");
        }
        if u32::from_le_bytes(take(&mut left).ok_or(short)?) != VERSION {
            return Err("a later version of this program wrote it; update it");
        }
        let key = u32::from_le_bytes(take(&mut left).ok_or(short)?);
        let tag = take(&mut left).ok_or(short)?;
        let nonce: [u8; 16] = take(&mut left).ok_or(short)?;
        let size_bytes = u64::from_le_bytes(take(&mut left).ok_or(short)?);
        let created_s = u64::from_le_bytes(take(&mut left).ok_or(short)?);
        let count = u32::from_le_bytes(take(&mut left).ok_or(short)?);
        let payload_bytes = u32::from_le_bytes(take(&mut left).ok_or(short)?);
        if payload_bytes > PAYLOAD_BYTES_MAX {
            return Err("its body is longer than the limit");
        }
        // No overflow: 2^32 ids of 32 bytes are below 2^64. The list takes no more memory than the
        // object has bytes.
        let (list, _) = left.split_at_checked(32 * count.to_usize()).ok_or(short)?;
        let packs = list.as_chunks::<32>().0.iter().map(|id| Id(*id)).collect();
        let mut short_nonce = [0; NONCE_BYTES];
        short_nonce.copy_from_slice(&nonce[..NONCE_BYTES]);
        Ok(Self {
            tag,
            key,
            nonce: short_nonce,
            size_bytes,
            created_s,
            packs,
            payload_bytes,
            len: FIXED_BYTES + list.len(),
        })
    }
}

/// One version of one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) head: Head,
    /// The name under which it was published.
    pub(crate) name: String,
    /// Hash of sizes and keys of all chunks: equal for equal contents in one store and domain.
    pub(crate) digest: [u8; 32],
    /// The manifest that had this name before.
    pub(crate) parent: Option<Id>,
    pub(crate) entries: Vec<Entry>,
}

/// The parts of a manifest.
pub(crate) struct Draft<'a> {
    pub(crate) name: &'a str,
    pub(crate) created_s: u64,
    pub(crate) parent: Option<Id>,
    /// In order; the packs' numbers are those of `packs`.
    pub(crate) entries: &'a [Entry],
    /// Packs by number.
    pub(crate) packs: &'a HashMap<u32, Id>,
}

impl Draft<'_> {
    /// The manifest's bytes.
    ///
    /// # Errors
    /// [`StoreError::Limit`]: too many chunks; [`StoreError::Codec`], [`StoreError::Cipher`].
    pub(crate) fn encode(&self, domain: &Domain) -> Result<Vec<u8>, StoreError> {
        let limit = || StoreError::Limit(TOO_MANY);
        // Only the packs in use, in the order of their first one.
        let (mut numbers, mut packs) = (HashMap::new(), Vec::new());
        let mut entries = self.entries.to_vec();
        for entry in entries.iter_mut().filter(|entry| !entry.is_hole()) {
            let id = self.packs.get(&entry.pack).ok_or_else(limit)?;
            let next = u32::try_from(packs.len()).map_err(|_| limit())?;
            let number = *numbers.entry(entry.pack).or_insert_with(|| {
                packs.push(*id);
                next
            });
            entry.pack = number;
        }
        // Session numbers are replaced by now: the same image gives the same columns, whatever else
        // the session knew.
        let payload = self.payload(&entries).ok_or_else(limit)?;
        let payload_bytes = u32::try_from(payload.len()).ok();
        let payload_bytes = payload_bytes.filter(|bytes| *bytes <= PAYLOAD_BYTES_MAX);
        let payload_bytes = payload_bytes.ok_or_else(limit)?;
        let drawn = random()?;
        // Drawn for each manifest: one key encrypts few enough for 96 random bits (NIST SP 800-38D,
        // 8.3: 2^32).
        let nonce = &drawn[..16];
        let mut head = Vec::with_capacity(FIXED_BYTES + 32 * packs.len());
        head.extend(MAGIC);
        head.extend(VERSION.to_le_bytes());
        head.extend(domain.current_key().to_le_bytes());
        head.extend(domain.tag());
        head.extend(nonce);
        head.extend(entries.last().map_or(0, Entry::end).to_le_bytes());
        head.extend(self.created_s.to_le_bytes());
        head.extend(u32::try_from(packs.len()).unwrap_or(u32::MAX).to_le_bytes());
        head.extend(payload_bytes.to_le_bytes());
        packs.iter().for_each(|id| head.extend(id.0));
        let mut body = Vec::new();
        make_deflater(CodecId::Zstd, Some(LEVEL))?.deflate(&payload, &mut body)?;
        let mut short_nonce = [0; NONCE_BYTES];
        short_nonce.copy_from_slice(&nonce[..NONCE_BYTES]);
        // Compressed before it is encrypted: ciphertext does not compress.
        let body = domain.seal_body(short_nonce, &head, body)?;
        head.extend(body);
        Ok(head)
    }

    /// The body before compression: columns, because equal fields in a row compress well.
    fn payload(&self, entries: &[Entry]) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(PAYLOAD_FIXED_BYTES + entries.len() * ENTRY_BYTES + 64);
        out.extend(u16::try_from(self.name.len()).ok()?.to_le_bytes());
        out.extend(self.name.as_bytes());
        out.extend(digest_of(entries));
        out.extend(self.parent.map_or([0; 32], |id| id.0));
        out.extend(u32::try_from(entries.len()).ok()?.to_le_bytes());
        let column = |out: &mut Vec<u8>, field: &dyn Fn(&Entry) -> u32| {
            entries
                .iter()
                .for_each(|entry| out.extend(field(entry).to_le_bytes()));
        };
        column(&mut out, &|entry| entry.raw_bytes);
        column(&mut out, &|entry| entry.stored_bytes);
        column(&mut out, &|entry| entry.pack);
        let mut next = 0;
        for entry in entries {
            // Relative to the end of the chunk before: mostly 0.
            out.extend(entry.at.wrapping_sub(next).to_le_bytes());
            next = entry.at.wrapping_add(entry.stored_bytes);
        }
        entries.iter().for_each(|entry| out.extend(entry.key));
        Some(out)
    }
}

impl Manifest {
    /// Reads a manifest of this domain, whose head was read from the same bytes.
    ///
    /// # Errors
    /// The fault.
    pub(crate) fn parse(head: Head, bytes: &[u8], domain: &Domain) -> Result<Self, String> {
        let (clear, sealed) = bytes.split_at_checked(head.len).ok_or("it is cut short")?;
        let body = domain.open_body(head.key, head.nonce, clear, sealed);
        let body = body.ok_or_else(|| match head.key {
            0 => "it is not encrypted, and its domain is".to_owned(),
            key => format!("key {key} of its domain does not open it: it was changed, or is gone"),
        })?;
        // At most PAYLOAD_BYTES_MAX, as the head's reading has made sure.
        let mut payload = vec![0; head.payload_bytes.to_usize()];
        let inflated = make_inflater(CodecId::Zstd).inflate(&body, &mut payload);
        inflated.map_err(|error| error.to_string())?;
        Self::of_payload(head, &payload).map_err(str::to_owned)
    }

    fn of_payload(head: Head, payload: &[u8]) -> Result<Self, &'static str> {
        let short = "its body is cut short";
        let mut left = payload;
        let name_len = u16::from_le_bytes(take(&mut left).ok_or(short)?);
        let (name, rest) = left.split_at_checked(name_len.into()).ok_or(short)?;
        left = rest;
        let name = std::str::from_utf8(name).map_err(|_| "its name is no text")?;
        let digest: [u8; 32] = take(&mut left).ok_or(short)?;
        let parent: [u8; 32] = take(&mut left).ok_or(short)?;
        let count = u32::from_le_bytes(take(&mut left).ok_or(short)?);
        if left.len() != count.to_usize() * ENTRY_BYTES {
            return Err("its list of chunks has another length than it says");
        }
        let entries = read_entries(left, count.to_usize(), &head)?;
        // Readers of a moved version trust an equal digest, so it must be that of these entries.
        if digest_of(&entries) != digest {
            return Err("its list of chunks does not match its digest");
        }
        Ok(Self {
            name: name.to_owned(),
            head,
            digest,
            parent: Some(Id(parent)).filter(|_| parent != [0; 32]),
            entries,
        })
    }

    /// Number of the entry that holds the byte at an offset inside the image.
    pub(crate) fn entry_at(&self, offset: u64) -> usize {
        let behind = self.entries.partition_point(|entry| entry.start <= offset);
        behind.saturating_sub(1)
    }
}

/// Reads `count` entries from columns whose length was checked.
fn read_entries(columns: &[u8], count: usize, head: &Head) -> Result<Vec<Entry>, &'static str> {
    let (numbers, keys) = columns.split_at(4 * 4 * count);
    let keys = keys.as_chunks::<32>().0;
    let field = |column: usize, row: usize| le32(&numbers[4 * (column * count + row)..]);
    let mut entries = Vec::with_capacity(count);
    let (mut start, mut next) = (0_u64, 0_u32);
    for (row, key) in keys.iter().enumerate() {
        let entry = Entry {
            start,
            raw_bytes: field(0, row),
            stored_bytes: field(1, row),
            pack: field(2, row),
            at: field(3, row).wrapping_add(next),
            key: *key,
        };
        // In 64 bits: the sum of two 32-bit fields of a hostile manifest would wrap.
        let end = u64::from(entry.at) + u64::from(entry.stored_bytes);
        let is_sound = match entry.is_hole() {
            true => entry.raw_bytes > 0 && entry.stored_bytes == 0,
            false => {
                are_lengths(entry.stored_bytes, entry.raw_bytes)
                    && entry.pack.to_usize() < head.packs.len()
                    && entry.at.to_usize() >= HEAD_BYTES
                    && end <= PACK_BYTES_MAX
            }
        };
        if !is_sound {
            return Err("a chunk has a senseless place or length");
        }
        // No overflow: 2^32 entries of less than 2^32 bytes.
        start = entry.end();
        next = entry.at.wrapping_add(entry.stored_bytes);
        entries.push(entry);
    }
    match start == head.size_bytes && start > 0 {
        true => Ok(entries),
        false => Err("its chunks do not add up to its size"),
    }
}

/// Hash of sizes and keys of all chunks.
fn digest_of(entries: &[Entry]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(DIGEST_CONTEXT);
    for entry in entries {
        hasher.update(&entry.raw_bytes.to_le_bytes());
        hasher.update(&entry.key);
    }
    *hasher.finalize().as_bytes()
}

/// The first `N` bytes of `left`, which begins behind them then.
fn take<const N: usize>(left: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = left.split_first_chunk()?;
    *left = rest;
    Some(*first)
}

/// The pack of zeros.
pub(crate) const HOLE: u32 = u32::MAX;
/// Longest manifest: of an image of some 300 GiB in chunks of 64 KiB.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 288 << 20;
const PAYLOAD_BYTES_MAX: u32 = 256 << 20;
/// Entries that a manifest has room for, whatever its name.
pub(crate) const ENTRIES_MAX: usize = (256 << 20) / ENTRY_BYTES - 16;
/// Said of an image with more.
pub(crate) const TOO_MANY: &str =
    "the image has too many chunks for a version; use a store with larger ones (init --chunk)";
const MAGIC: [u8; 8] = *b"sideroot";
const VERSION: u32 = 1;
/// Head without the list of packs.
const FIXED_BYTES: usize = 72;
/// Payload without name and columns.
const PAYLOAD_FIXED_BYTES: usize = 70;
/// Four numbers and a key.
const ENTRY_BYTES: usize = 48;
/// Keys do not compress, and the other columns do at any level.
const LEVEL: i32 = 9;
const DIGEST_CONTEXT: &str = "sidecore store: digest of a version (v1)";

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Vec<Entry>, HashMap<u32, Id>) {
        let entry = |start, pack, at| Entry {
            start,
            raw_bytes: 5000,
            stored_bytes: 300,
            pack,
            at,
            key: [7; 32],
        };
        let hole = Entry {
            stored_bytes: 0,
            raw_bytes: 1 << 30,
            key: [0; 32],
            ..entry(10_000, HOLE, 0)
        };
        let last = entry(10_000 + (1 << 30), 9, 5000);
        let entries = vec![entry(0, 9, 48), entry(5000, 4, 700), hole, last];
        let packs = [(9, Id([1; 32])), (4, Id([2; 32])), (5, Id([3; 32]))];
        (entries, packs.into())
    }

    fn encoded(domain: &Domain) -> Vec<u8> {
        let (entries, packs) = sample();
        let draft = Draft {
            name: "disk",
            created_s: 12,
            parent: Some(Id([9; 32])),
            entries: &entries,
            packs: &packs,
        };
        draft.encode(domain).unwrap()
    }

    fn parse(bytes: &[u8], domain: &Domain) -> Result<Manifest, String> {
        let head = Head::parse(bytes)?;
        Manifest::parse(head, bytes, domain)
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        let domain = Domain::shared();
        let found = parse(&encoded(&domain), &domain).unwrap();
        assert_eq!((&*found.name, found.head.created_s), ("disk", 12));
        // A pack that no chunk lies in is left out.
        assert_eq!(found.head.packs, [Id([1; 32]), Id([2; 32])]);
        assert_eq!(found.parent, Some(Id([9; 32])));
        let (entries, _) = sample();
        for (found, entry) in found.entries.iter().zip(&entries) {
            assert_eq!((found.start, found.at), (entry.start, entry.at));
        }
        assert_eq!(found.entry_at(4999), 0);
        assert_eq!(found.entry_at(5000), 1);
        assert_eq!(found.entry_at(10_000 + (1 << 30)), 3);
    }

    #[test]
    fn damaged_and_cut_manifests_give_an_error_or_the_same_manifest() {
        let domain = Domain::shared();
        let bytes = encoded(&domain);
        let whole = parse(&bytes, &domain).unwrap();
        for len in 0..bytes.len() {
            parse(&bytes[..len], &domain).unwrap_err();
        }
        for bit in 0..8 * bytes.len() {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // Fields that only the id of the object protects: tag, nonce, time and packs.
            if let Ok(found) = parse(&damaged, &domain) {
                assert_eq!(found.entries, whole.entries);
            }
        }
    }

    #[test]
    fn senseless_entries_are_refused() {
        let domain = Domain::shared();
        let change: [fn(&mut Entry); 5] = [
            |entry| entry.raw_bytes = 0,
            |entry| entry.raw_bytes = 5 << 20,
            |entry| entry.stored_bytes = 0,
            |entry| entry.stored_bytes = 1 << 20,
            |entry| entry.at = 47,
        ];
        for change in change {
            let (mut entries, packs) = sample();
            change(&mut entries[0]);
            let draft = Draft {
                name: "disk",
                created_s: 0,
                parent: None,
                entries: &entries,
                packs: &packs,
            };
            let bytes = draft.encode(&domain).unwrap();
            parse(&bytes, &domain).unwrap_err();
        }
    }
}
