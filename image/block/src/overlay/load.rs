//! Loads a layer from its file: superblock, snapshot, and the log since.
//!
//! Why here: this is the reader of untrusted bytes, and it decides what a crash has left.
//! Must stay true: any bytes are accepted as input. A group that a crash has torn is dropped whole.
//! A group that is followed by another was durable, so damage in it is an error and not the end of
//! the log.

use super::OverlayError;
use super::format::{
    CHANGE_BYTES, Change, ENTRY_BYTES, Geometry, LOG_AT, LOG_BYTES, Log, SLOTS_AT,
    SUPERBLOCK_BYTES, Superblock, decode_group, group_bytes, has_later_group,
};
use super::map::Map;
use super::pointers::CHUNK;
use super::seal::Seal;
use super::slots::Slots;
use super::store::Store;
use crate::format::is_overlay;
use crate::format::lock::FrameKey;
use sidecore_bare::width::{ToU64, ToUsize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Contents of a layer's file.
pub(super) struct Loaded {
    pub(super) superblock: Superblock,
    pub(super) seal: Arc<Seal>,
    pub(super) geometry: Geometry,
    pub(super) map: Map,
    pub(super) slots: Slots,
    /// Bytes of the log that hold sound groups.
    pub(super) log_used: u64,
    /// Number of the next group.
    pub(super) sequence: u64,
    /// True if bytes after those groups were dropped.
    pub(super) torn: bool,
    /// True if both superblocks are the same.
    pub(super) paired: bool,
    /// Leaves that the log's runs of zeros span.
    pub(super) zeroed_leaves: u64,
}

/// Reads the newer of the two valid superblocks; also returns whether the other is the same.
///
/// # Errors
/// [`OverlayError::NotOverlay`], [`OverlayError::Damaged`], the system's.
pub(super) fn superblock(store: &dyn Store) -> Result<(Superblock, bool), OverlayError> {
    let mut found: Vec<Superblock> = Vec::new();
    let mut claims = false;
    for at in [0, SUPERBLOCK_BYTES.to_u64()] {
        let bytes = read_padded(store, at, SUPERBLOCK_BYTES)?;
        // Bytes that begin like an overlay but are not valid are damage, not another kind of file.
        claims |= is_overlay(&bytes);
        found.extend(Superblock::decode(&bytes));
    }
    found.sort_by_key(|it| it.generation);
    let paired = found.len() == 2 && found[0] == found[1];
    match found.pop() {
        Some(superblock) => Ok((superblock, paired)),
        None if claims => Err(OverlayError::Damaged {
            what: "its superblock",
            at: 0,
        }),
        None => Err(OverlayError::NotOverlay),
    }
}

/// Reads a layer; `key` is its image's, if that is encrypted. Keeps `map_bytes` of the map's leaves
/// in memory.
///
/// # Errors
/// As [`superblock`]; [`OverlayError::NotSealed`], [`OverlayError::Forged`],
/// [`OverlayError::WrongBase`].
pub(super) fn load(
    store: &dyn Store,
    key: Option<&FrameKey>,
    map_bytes: usize,
) -> Result<Loaded, OverlayError> {
    let (superblock, paired) = superblock(store)?;
    let seal = Arc::new(seal_of(&superblock, key)?);
    superblock.check_sizes()?;
    let geometry = superblock.geometry(&seal);
    let leaves_max = (map_bytes / geometry.grain_bytes).max(LEAVES_MIN);
    let map = Map::new(Arc::clone(&seal), geometry, leaves_max);
    let mut loaded = Loaded {
        map,
        slots: Slots::default(),
        log_used: 0,
        sequence: superblock.sequence,
        torn: false,
        paired,
        zeroed_leaves: 0,
        superblock,
        seal,
        geometry,
    };
    // The snapshot first: the log holds only the changes after it.
    loaded.snapshot(store)?;
    loaded.replay(store)?;
    Ok(loaded)
}

/// The seal of a layer; `key` is its image's, if that is encrypted. The superblock must have been
/// written with it.
///
/// # Errors
/// [`OverlayError::NotSealed`], [`OverlayError::Forged`], [`OverlayError::WrongBase`].
pub(super) fn seal_of(
    superblock: &Superblock,
    key: Option<&FrameKey>,
) -> Result<Seal, OverlayError> {
    match (&superblock.lock, key) {
        (None, None) => Ok(Seal::Open),
        // Anyone may have written it, to have it accepted as a file of the key's owner.
        (None, Some(_)) => Err(OverlayError::NotSealed),
        (Some(_), None) => Err(OverlayError::WrongBase {
            name: superblock.base_name.clone(),
        }),
        (Some(lock), Some(key)) => {
            let seal = Seal::of(lock, key);
            match superblock.is_authentic(&seal) {
                true => Ok(seal),
                false => Err(OverlayError::Forged),
            }
        }
    }
}

impl Loaded {
    /// Whole slots that fit the file's size.
    fn slots_in_file(&self, store: &dyn Store) -> Result<u64, OverlayError> {
        let bytes = store.size_bytes().map_err(OverlayError::read)?;
        Ok(bytes.saturating_sub(SLOTS_AT) / self.geometry.slot_bytes.to_u64())
    }

    fn snapshot(&mut self, store: &dyn Store) -> Result<(), OverlayError> {
        let Some(snapshot) = self.superblock.snapshot else {
            return Ok(());
        };
        let damaged = OverlayError::Damaged {
            what: "the snapshot of its map",
            at: 0,
        };
        // Sizes are computed from the superblock and compared with the file before memory is taken.
        let root_bytes = self.superblock.leaves() * ENTRY_BYTES.to_u64();
        let bits_bytes = self.superblock.slots.div_ceil(64) * 8;
        let run = self.geometry.slots_for(snapshot.bytes);
        let in_file = self.slots_in_file(store)?;
        if Some(snapshot.bytes) != root_bytes.checked_add(bits_bytes)
            || self.superblock.slots > SLOTS_READ_MAX
            || snapshot
                .slot
                .checked_add(run)
                .is_none_or(|end| end > in_file)
        {
            return Err(damaged);
        }
        // In pieces, of which only nonzero ones are kept: the file may be one large hole.
        let mut check = self.seal.snapshot_check();
        let mut slots = Slots::new(self.superblock.slots);
        let mut is_sound = true;
        let start = self.geometry.slot_at(snapshot.slot);
        let map = &mut self.map;
        each_piece(store, start, root_bytes, &mut |at, piece| {
            check.update(piece);
            is_sound &= map.load_root(at / ENTRY_BYTES.to_u64(), piece);
        })?;
        each_piece(store, start + root_bytes, bits_bytes, &mut |at, piece| {
            check.update(piece);
            is_sound &= slots.load(at / 8, piece);
        })?;
        // Compared at the end: pieces loaded so far are dropped with the error.
        if check.finish() != snapshot.check || !is_sound {
            return Err(damaged);
        }
        self.slots = slots;
        Ok(())
    }

    fn replay(&mut self, store: &dyn Store) -> Result<(), OverlayError> {
        let half = LOG_AT + u64::from(self.superblock.half) * LOG_BYTES;
        let log = read_padded(store, half, LOG_BYTES.to_usize())?;
        let seal = Arc::clone(&self.seal);
        let how = Log {
            seal: &seal,
            salt: self.superblock.salt,
        };
        let mut groups = Vec::new();
        let mut end = 0;
        while let Some((number, changes)) = decode_group(&log[end..], how) {
            // A group with another number is from an earlier use of this half.
            if number != self.sequence + groups.len().to_u64() {
                break;
            }
            end += group_bytes(changes.len());
            groups.push(changes);
        }
        let next = self.sequence + groups.len().to_u64();
        // A crash can tear only the last group: an intact later one means that this one is damaged.
        if has_later_group(&log[end..], next, how) {
            return Err(OverlayError::Damaged {
                what: "a group of its log",
                at: next,
            });
        }
        let in_file = self.slots_in_file(store)?;
        let last = groups.len();
        for (index, changes) in groups.into_iter().enumerate() {
            let lasting = lasting(&changes);
            // Only the last group may lack its data: the next one is written when those are
            // durable.
            if index + 1 == last && !self.has_arrived(store, &lasting, in_file)? {
                tracing::warn!(
                    "the overlay was not closed; {} changes that were never flushed are dropped",
                    changes.len()
                );
                break;
            }
            self.log_used += group_bytes(changes.len()).to_u64();
            self.apply(store, &lasting, in_file)?;
            self.sequence += 1;
        }
        let used = self.log_used.to_usize();
        self.torn = log[used..].iter().take(CHANGE_BYTES).any(|&byte| byte != 0);
        Ok(())
    }

    /// True when the data of a group's lasting changes are all in the file.
    fn has_arrived(
        &self,
        store: &dyn Store,
        changes: &[Change],
        in_file: u64,
    ) -> Result<bool, OverlayError> {
        let mut bytes = vec![0; self.geometry.slot_bytes];
        // A slot past the file's end, or one that does not verify, means that the crash lost the
        // data.
        for change in changes {
            let Change::Data { grain, slot, check } = *change else {
                continue;
            };
            if slot >= in_file {
                return Ok(false);
            }
            store
                .read_at(&mut bytes, self.geometry.slot_at(slot))
                .map_err(OverlayError::read)?;
            if !self.seal.open(grain, check, &mut bytes) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn apply(
        &mut self,
        store: &dyn Store,
        changes: &[Change],
        in_file: u64,
    ) -> Result<(), OverlayError> {
        let number = self.sequence;
        let damaged = || OverlayError::Damaged {
            what: "a change in its log",
            at: number,
        };
        let Geometry {
            grains,
            leaf_entries,
            ..
        } = self.geometry;
        let mut freed = Vec::new();
        for change in changes {
            let sound = match *change {
                Change::Data { grain, slot, .. } => {
                    grain < grains && slot < in_file && self.slots.claim(slot)
                }
                Change::Zero { grain, count } => {
                    // A writer begins a new log long before this.
                    self.zeroed_leaves += count.min(grains) / leaf_entries + 1;
                    self.zeroed_leaves <= 2 * ZEROED_LEAVES_MAX
                        && grain.checked_add(count).is_some_and(|end| end <= grains)
                }
            };
            if !sound {
                return Err(damaged());
            }
            self.apply_change(store, *change, &mut freed)?;
        }
        for slot in freed {
            // False for a slot of two grains, for example.
            if !self.slots.give_back(slot) {
                return Err(damaged());
            }
        }
        Ok(())
    }

    /// Applies one change, a run of zeros leaf by leaf: leaves that refer to one slot repeatedly
    /// would free more slots than there are.
    fn apply_change(
        &mut self,
        store: &dyn Store,
        change: Change,
        freed: &mut Vec<u64>,
    ) -> Result<(), OverlayError> {
        // A writer begins a new log before this many leaves differ from the file.
        let dirty_max = LOG_LEAF_BYTES_MAX / self.geometry.grain_bytes + DIRTY_SLACK;
        let mut left = Some(change);
        while let Some(change) = left.take() {
            let part = match change {
                Change::Data { .. } => change,
                Change::Zero { grain, count } => {
                    let here = count.min(self.geometry.leaf_end(grain) - grain);
                    left = (here < count).then_some(Change::Zero {
                        grain: grain + here,
                        count: count - here,
                    });
                    Change::Zero { grain, count: here }
                }
            };
            self.map.apply(store, part, freed)?;
            if freed.len().to_u64() > self.slots.used() || self.map.dirty() > dirty_max {
                return Err(OverlayError::Damaged {
                    what: "a change in its log",
                    at: self.sequence,
                });
            }
        }
        Ok(())
    }
}

/// The changes of a group without those that a later one of it replaces. The slots of these are
/// free behind the group: by now they may hold other bytes, or a crash may have left them past the
/// end of the file.
fn lasting(changes: &[Change]) -> Vec<Change> {
    let mut last: BTreeMap<u64, usize> = BTreeMap::new();
    for (at, change) in changes.iter().enumerate() {
        match *change {
            Change::Data { grain, .. } => {
                last.insert(grain, at);
            }
            Change::Zero { grain, count } => {
                let range = grain..grain.saturating_add(count);
                let gone: Vec<u64> = last.range(range).map(|it| *it.0).collect();
                for grain in gone {
                    last.remove(&grain);
                }
            }
        }
    }
    let lasts = |at: usize, change: &Change| match change {
        Change::Data { grain, .. } => last.get(grain) == Some(&at),
        Change::Zero { .. } => true,
    };
    let changes = changes.iter().enumerate();
    let kept = changes.filter(|(at, change)| lasts(*at, change));
    kept.map(|(_, change)| *change).collect()
}

/// Reads `len` bytes; those past the end of the file are zeros.
pub(super) fn read_padded(
    store: &dyn Store,
    offset: u64,
    len: usize,
) -> Result<Vec<u8>, OverlayError> {
    let size = store.size_bytes().map_err(OverlayError::read)?;
    let there = size.saturating_sub(offset).min(len.to_u64()).to_usize();
    let mut bytes = vec![0; len];
    store
        .read_at(&mut bytes[..there], offset)
        .map_err(OverlayError::read)?;
    Ok(bytes)
}

/// Calls `each` with the bytes from `offset`, in order and in pieces, and with each piece's offset.
fn each_piece(
    store: &dyn Store,
    offset: u64,
    len: u64,
    each: &mut dyn FnMut(u64, &[u8]),
) -> Result<(), OverlayError> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = 0;
    while at < len {
        let take = (len - at).min(PIECE_BYTES.to_u64()).to_usize();
        let piece = &mut piece[..take];
        store
            .read_at(piece, offset + at)
            .map_err(OverlayError::read)?;
        each(at, piece);
        at += take.to_u64();
    }
    Ok(())
}

/// A snapshot is read in pieces of whole chunks of pointers.
const PIECE_BYTES: usize = 16 * CHUNK * ENTRY_BYTES;
/// Most slots whose bits are read: 16 TiB of grains of 4 KiB.
const SLOTS_READ_MAX: u64 = 1 << 32;
/// Bound of the leaves that a log leaves different from the file, in bytes of the file: a writer
/// begins a new log at three quarters of that.
const LOG_LEAF_BYTES_MAX: usize = MAP_BYTES;
/// Leaves of the map in memory, of the layer that is written.
pub(super) const MAP_BYTES: usize = 32 << 20;
/// Slack for the changes of several writers in progress, and for tests with smaller maps.
const DIRTY_SLACK: usize = 256;
/// Leaves that runs of zeros may span before the log begins again: bounds the time of reading it.
pub(super) const ZEROED_LEAVES_MAX: u64 = 16 << 20;
/// Least number of leaves in memory.
const LEAVES_MIN: usize = 16;
