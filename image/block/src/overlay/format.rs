//! Bytes of an overlay's file: superblocks, groups of the log, entries (`docs/formats/overlay.md`).
//!
//! Why here: the layout is in one file, without I/O, and accepts any bytes.
//! Must stay true: decoded numbers are bounded before memory is allocated by them; bytes that do
//! not match their checksum count as absent.

use super::OverlayError;
use super::seal::{LayerLock, Part, Seal};
use crate::format::OVERLAY_MAGIC;
use crate::format::lock::Cipher;
use sidecore_bare::width::{ToU64, ToUsize};
use xxhash_rust::xxh3::xxh3_64;

/// Smallest and largest unit of copy-on-write in bytes.
pub const GRAIN_BYTES_RANGE: std::ops::RangeInclusive<u32> = 4 << 10..=64 << 10;

/// Default unit of copy-on-write in bytes.
pub(super) const GRAIN_BYTES_DEFAULT: u32 = 4 << 10;

/// A random name of an overlay.
pub(super) type Id = [u8; 16];

/// State of one grain in one layer: nothing, zeros, or the slot that holds its bytes with their
/// check ([`Seal`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// The layer below has it.
    Absent,
    /// It reads as zeros.
    Zero,
    /// Its bytes.
    Data {
        /// Number of the slot.
        slot: u64,
        /// Check of the slot's bytes.
        check: u64,
    },
}

impl Entry {
    /// Reads 16 bytes; `None` where they are not valid.
    pub(super) fn decode(bytes: &[u8; ENTRY_BYTES]) -> Option<Self> {
        let (place, check) = (u64_at(bytes, 0), u64_at(bytes, 8));
        match (place >> KIND_SHIFT, place & NUMBER_MASK) {
            (KIND_ABSENT, 0) if check == 0 => Some(Self::Absent),
            (KIND_ZERO, 0) if check == 0 => Some(Self::Zero),
            (KIND_DATA, slot) if slot < SLOTS_MAX => Some(Self::Data { slot, check }),
            _ => None,
        }
    }

    /// Its 16 bytes.
    pub(super) fn encode(self) -> [u8; ENTRY_BYTES] {
        let (place, check) = match self {
            Self::Absent => (KIND_ABSENT << KIND_SHIFT, 0),
            Self::Zero => (KIND_ZERO << KIND_SHIFT, 0),
            Self::Data { slot, check } => (KIND_DATA << KIND_SHIFT | slot, check),
        };
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&place.to_le_bytes());
        bytes[8..].copy_from_slice(&check.to_le_bytes());
        bytes
    }
}

/// One change of the map, as the log keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// A grain's bytes are in a slot now.
    Data {
        /// The grain.
        grain: u64,
        /// Number of the slot.
        slot: u64,
        /// Check of the slot's bytes.
        check: u64,
    },
    /// A run of grains reads as zeros now.
    Zero {
        /// The first grain.
        grain: u64,
        /// Grains, at least 1.
        count: u64,
    },
}

impl Change {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (grain, place, check) = (u64_at(bytes, 0), u64_at(bytes, 8), u64_at(bytes, 16));
        match (place >> KIND_SHIFT, place & NUMBER_MASK) {
            (KIND_DATA, slot) if slot < SLOTS_MAX => Some(Self::Data { grain, slot, check }),
            (KIND_ZERO, count) if count > 0 && check == 0 => Some(Self::Zero { grain, count }),
            _ => None,
        }
    }

    fn encode(self, out: &mut Vec<u8>) {
        let (grain, place, check) = match self {
            Self::Data { grain, slot, check } => (grain, KIND_DATA << KIND_SHIFT | slot, check),
            Self::Zero { grain, count } => (grain, KIND_ZERO << KIND_SHIFT | count, 0),
        };
        for word in [grain, place, check] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }
}

/// Bytes that a group of `changes` takes in the log.
pub(super) fn group_bytes(changes: usize) -> usize {
    CHANGE_BYTES * (changes + 1)
}

/// Writes group number `sequence`.
pub(super) fn encode_group(sequence: u64, log: Log<'_>, changes: &[Change]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(group_bytes(changes.len()));
    bytes.extend_from_slice(&GROUP_MAGIC.to_le_bytes());
    bytes.extend_from_slice(&(changes.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&sequence.to_le_bytes());
    bytes.extend_from_slice(&[0; 8]);
    for change in changes {
        change.encode(&mut bytes);
    }
    let check = log.check(&bytes);
    bytes[16..24].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// Reads the group at the head of `log`: its number and its changes; `None` where there is no whole
/// group.
pub(super) fn decode_group(bytes: &[u8], log: Log<'_>) -> Option<(u64, Vec<Change>)> {
    let head: &[u8; CHANGE_BYTES] = bytes.first_chunk()?;
    if u32_at(head, 0) != GROUP_MAGIC {
        return None;
    }
    let count = u32_at(head, 4).to_usize();
    let bytes = bytes.get(..CHANGE_BYTES.checked_mul(count.checked_add(1)?)?)?;
    // The checksum's own place counts as zeros.
    let mut copy = bytes.to_vec();
    copy[16..24].fill(0);
    if log.check(&copy) != u64_at(head, 16) {
        return None;
    }
    let changes = bytes[CHANGE_BYTES..].chunks_exact(CHANGE_BYTES);
    let changes = changes.map(Change::decode).collect::<Option<Vec<_>>>()?;
    Some((u64_at(head, 8), changes))
}

/// True if a group with a number above `sequence` lies anywhere in `bytes`: it was written after
/// all earlier groups were durable.
pub(super) fn has_later_group(bytes: &[u8], sequence: u64, log: Log<'_>) -> bool {
    let magic = GROUP_MAGIC.to_le_bytes();
    // A candidate group is hashed to its stated length. In a log that was written here groups do
    // not nest, so all of them together are no longer than it.
    let mut left = HASHED_BYTES_MAX;
    (0..bytes.len().saturating_sub(CHANGE_BYTES))
        .step_by(8)
        .filter(|&at| bytes[at..at + 4] == magic)
        // Numbers within one filling of the log are close together; those of older fillings are
        // smaller.
        .filter(|&at| u64_at(&bytes[at..], 8).wrapping_sub(sequence + 1) < LOG_BYTES)
        .any(|at| {
            let claimed = group_bytes(u32_at(&bytes[at..], 4).to_usize());
            left = left.saturating_sub(claimed.min(bytes.len() - at));
            left == 0 || decode_group(&bytes[at..], log).is_some()
        })
}

/// Keys and salt of the checks of a log's groups.
#[derive(Clone, Copy)]
pub(super) struct Log<'s> {
    /// The layer's.
    pub seal: &'s Seal,
    /// The superblock's.
    pub salt: u64,
}

impl Log<'_> {
    fn check(self, bytes: &[u8]) -> u64 {
        self.seal.check(Part::Group(self.salt), bytes)
    }
}

/// Sizes of a layer's parts, and where its slots lie in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Geometry {
    /// Bytes of a grain, and of a leaf.
    pub grain_bytes: usize,
    /// Bytes of a slot: a grain and, if it is sealed, its nonce and tag.
    pub slot_bytes: usize,
    /// Entries of a leaf.
    pub leaf_entries: u64,
    /// Grains of the device.
    pub grains: u64,
}

impl Geometry {
    /// Offset of a slot in the file.
    pub(super) fn slot_at(self, slot: u64) -> u64 {
        SLOTS_AT + slot * self.slot_bytes.to_u64()
    }

    /// Slots that `bytes` take.
    pub(super) fn slots_for(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.slot_bytes.to_u64())
    }

    /// Number of the leaf of a grain, and the index of its entry there.
    pub(super) fn place(self, grain: u64) -> (u64, usize) {
        let entry = grain % self.leaf_entries;
        (grain / self.leaf_entries, entry.to_usize())
    }

    /// The grain after the last one of the leaf that has `grain`.
    pub(super) fn leaf_end(self, grain: u64) -> u64 {
        let end = (grain / self.leaf_entries + 1) * self.leaf_entries;
        end.min(self.grains)
    }
}

/// Layer below an overlay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Parent {
    /// The base image itself.
    Base,
    /// Another overlay, which is frozen.
    Overlay {
        /// Its name.
        id: Id,
        /// Its path, as seen from the directory of this overlay.
        path: String,
    },
}

/// A snapshot of the map, and its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// First of the slots that hold it.
    pub slot: u64,
    /// Bytes: pointers to leaves, then the bits of slots in use.
    pub bytes: u64,
    /// Check of them.
    pub check: u64,
}

/// The beginning of an overlay's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Superblock {
    /// Bytes of a grain, and of a slot.
    pub grain_bytes: u32,
    /// Name of this overlay.
    pub id: Id,
    /// Seed of the log's checksums.
    pub salt: u64,
    /// Greater in the newer superblock.
    pub generation: u64,
    /// Size of the device in bytes.
    pub size_bytes: u64,
    /// True once another overlay has this one as its parent: it is frozen.
    pub frozen: bool,
    /// Half of the log that is in use.
    pub half: u8,
    /// Number of the first group in that half.
    pub sequence: u64,
    /// Slots that the snapshot's bits cover.
    pub slots: u64,
    /// The map, unless nothing was ever written to it.
    pub snapshot: Option<Snapshot>,
    /// Layer below.
    pub parent: Parent,
    /// Identity of the image at the bottom.
    pub base: [u8; 32],
    /// Name of that image, for messages.
    pub base_name: String,
    /// The lock of an overlay on an encrypted image.
    pub lock: Option<LayerLock>,
}

impl Superblock {
    /// The geometry of a layer with this superblock and this seal.
    pub(super) fn geometry(&self, seal: &Seal) -> Geometry {
        let grain_bytes = self.grain_bytes.to_usize();
        Geometry {
            grain_bytes,
            slot_bytes: grain_bytes + seal.trailer_bytes(),
            leaf_entries: self.leaf_entries(),
            grains: self.grains(),
        }
    }

    /// Number of grains of the device.
    pub(super) fn grains(&self) -> u64 {
        self.size_bytes.div_ceil(u64::from(self.grain_bytes))
    }

    /// Entries of a leaf: a leaf takes one slot.
    pub(super) fn leaf_entries(&self) -> u64 {
        u64::from(self.grain_bytes) / ENTRY_BYTES.to_u64()
    }

    /// Leaves that the device takes.
    pub(super) fn leaves(&self) -> u64 {
        self.grains().div_ceil(self.leaf_entries())
    }

    /// Checks the sizes, for a new file and for one that is read.
    ///
    /// # Errors
    /// [`OverlayError::Grain`], [`OverlayError::TooLarge`].
    pub(super) fn check_sizes(&self) -> Result<(), OverlayError> {
        let grain_bytes = self.grain_bytes;
        if !grain_bytes.is_power_of_two() || !GRAIN_BYTES_RANGE.contains(&grain_bytes) {
            return Err(OverlayError::Grain { grain_bytes });
        }
        let largest = LEAVES_MAX * self.leaf_entries() * u64::from(grain_bytes);
        if self.size_bytes == 0 || self.size_bytes > largest {
            return Err(OverlayError::TooLarge {
                size_bytes: self.size_bytes,
                grain_bytes,
                largest,
            });
        }
        Ok(())
    }

    /// Its 4,096 bytes, with the authentication code of `seal`. Names that are too long are cut.
    pub(super) fn encode(&self, seal: &Seal) -> Vec<u8> {
        let mut bytes = vec![0; SUPERBLOCK_BYTES];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        // Fields at the fixed offsets of docs/formats/overlay.md.
        put(0, OVERLAY_MAGIC);
        let version = match self.lock {
            None => VERSION,
            Some(_) => VERSION_SEALED,
        };
        put(8, &version.to_le_bytes());
        put(12, &self.grain_bytes.to_le_bytes());
        put(16, &self.id);
        put(32, &self.salt.to_le_bytes());
        put(40, &self.generation.to_le_bytes());
        put(48, &self.size_bytes.to_le_bytes());
        put(56, &[u8::from(self.frozen), self.half]);
        put(64, &self.sequence.to_le_bytes());
        put(72, &self.slots.to_le_bytes());
        if let Some(snapshot) = &self.snapshot {
            put(80, &snapshot.slot.to_le_bytes());
            put(88, &snapshot.bytes.to_le_bytes());
            put(96, &snapshot.check.to_le_bytes());
        }
        put(112, &self.base);
        if let Parent::Overlay { id, path } = &self.parent {
            put(58, &[1]);
            put(144, id);
            put(160, &(path.len() as u16).to_le_bytes());
            put(PARENT_AT, path.as_bytes());
        }
        let name = cut(&self.base_name);
        put(162, &(name.len() as u16).to_le_bytes());
        put(BASE_NAME_AT, name.as_bytes());
        if let Some(lock) = &self.lock {
            put(CIPHER_AT, &[lock.cipher.number()]);
            put(LAYER_SALT_AT, &lock.salt);
        }
        // The authentication code covers the fields; the checksum covers the code, too.
        if let Some(code) = seal.superblock_code(&bytes[..CODE_AT]) {
            bytes[CODE_AT..CHECK_AT].copy_from_slice(code.as_bytes());
        }
        let check = xxh3_64(&bytes[..CHECK_AT]);
        bytes[CHECK_AT..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads one; `None` where the bytes are no sound superblock of this version.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != SUPERBLOCK_BYTES
            || bytes[..8] != *OVERLAY_MAGIC
            || ![VERSION, VERSION_SEALED].contains(&u32_at(bytes, 8))
            || u64_at(bytes, CHECK_AT) != xxh3_64(&bytes[..CHECK_AT])
        {
            return None;
        }
        let parent = match bytes[58] {
            0 => Parent::Base,
            1 => Parent::Overlay {
                id: bytes[144..160].try_into().ok()?,
                path: name_at(bytes, PARENT_AT, 160)?,
            },
            _ => return None,
        };
        let lock = match u32_at(bytes, 8) {
            VERSION => None,
            _ => Some(LayerLock {
                cipher: Cipher::of_number(bytes[CIPHER_AT])?,
                salt: *bytes[LAYER_SALT_AT..].first_chunk()?,
                code: *bytes[CODE_AT..].first_chunk()?,
            }),
        };
        let snapshot = Snapshot {
            slot: u64_at(bytes, 80),
            bytes: u64_at(bytes, 88),
            check: u64_at(bytes, 96),
        };
        let superblock = Self {
            grain_bytes: u32_at(bytes, 12),
            id: bytes[16..32].try_into().ok()?,
            salt: u64_at(bytes, 32),
            generation: u64_at(bytes, 40),
            size_bytes: u64_at(bytes, 48),
            frozen: bytes[56] == 1,
            half: bytes[57],
            sequence: u64_at(bytes, 64),
            slots: u64_at(bytes, 72),
            // A length of 0 means that there is no snapshot yet.
            snapshot: (snapshot.bytes > 0).then_some(snapshot),
            parent,
            base: bytes[112..144].try_into().ok()?,
            base_name: name_at(bytes, BASE_NAME_AT, 162)?,
            lock,
        };
        // Bounds that keep later arithmetic from overflowing, and memory bounded.
        let sound = bytes[56] <= 1
            && superblock.half <= 1
            && superblock.sequence < u64::MAX / 2
            && superblock.generation < u64::MAX / 2
            && superblock.slots <= SLOTS_MAX;
        sound.then_some(superblock)
    }
}

impl Superblock {
    /// True if the superblock has the code that `seal` computes, or neither has one.
    pub(super) fn is_authentic(&self, seal: &Seal) -> bool {
        let bytes = self.encode(seal);
        match (&self.lock, seal.superblock_code(&bytes[..CODE_AT])) {
            (None, None) => true,
            // Compared in constant time.
            (Some(lock), Some(code)) => code == blake3::Hash::from_bytes(lock.code),
            _ => false,
        }
    }
}

/// The name at `at`, whose length is at `len_at`; `None` where it is not valid.
fn name_at(bytes: &[u8], at: usize, len_at: usize) -> Option<String> {
    let len = usize::from(u16::from_le_bytes([bytes[len_at], bytes[len_at + 1]]));
    let text = bytes.get(at..at + len.min(NAME_BYTES_MAX + 1))?;
    let text = std::str::from_utf8(text).ok()?;
    // Names reach paths and messages: no overlong ones, and no NUL byte.
    (text.len() <= NAME_BYTES_MAX && !text.contains('\0')).then(|| text.to_owned())
}

/// A name, cut at a character if it is too long.
fn cut(name: &str) -> &str {
    let mut end = name.len().min(NAME_BYTES_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let word = bytes[at..].first_chunk().copied();
    u32::from_le_bytes(word.unwrap_or_default())
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes[at..].first_chunk().copied();
    u64::from_le_bytes(word.unwrap_or_default())
}

/// Bytes of a superblock; there are two, one behind the other.
pub(super) const SUPERBLOCK_BYTES: usize = 4096;
/// Offset of the log's first half; the second follows it, then the slots.
pub(super) const LOG_AT: u64 = 64 << 10;
/// Bytes of a half of the log.
pub(super) const LOG_BYTES: u64 = 4 << 20;
/// Offset of slot 0.
pub(super) const SLOTS_AT: u64 = LOG_AT + 2 * LOG_BYTES;
/// Bytes of an entry in a leaf and of a pointer to a leaf.
pub(super) const ENTRY_BYTES: usize = 16;
/// Bytes of a change in the log, and of the head of a group.
pub(super) const CHANGE_BYTES: usize = 24;
/// Bounds the pointers to leaves in memory: 64 MiB of them.
pub(super) const LEAVES_MAX: u64 = 4 << 20;
/// The longest path of a parent and name of a base, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 1024;
/// Bytes of a damaged log that are hashed in search of a whole group.
const HASHED_BYTES_MAX: usize = 32 * LOG_BYTES as usize;
/// Slots that a file may have.
const SLOTS_MAX: u64 = 1 << 44;
const VERSION: u32 = 1;
/// The version of an overlay on an encrypted image.
const VERSION_SEALED: u32 = 2;
const GROUP_MAGIC: u32 = u32::from_le_bytes(*b"ogrp");
const PARENT_AT: usize = 176;
const BASE_NAME_AT: usize = PARENT_AT + NAME_BYTES_MAX;
const CIPHER_AT: usize = BASE_NAME_AT + NAME_BYTES_MAX;
const LAYER_SALT_AT: usize = CIPHER_AT + 8;
const CHECK_AT: usize = SUPERBLOCK_BYTES - 8;
const CODE_AT: usize = CHECK_AT - 32;
const KIND_SHIFT: u32 = 56;
const NUMBER_MASK: u64 = (1 << KIND_SHIFT) - 1;
const KIND_ABSENT: u64 = 0;
const KIND_ZERO: u64 = 1;
const KIND_DATA: u64 = 2;
