//! One layer: an overlay's file, read and written.
//!
//! Why here: everything that a crash may interrupt is in this folder, a file for each kind of step.
//! - A write (`write`) puts its bytes into free slots, then changes the map in memory; the change
//!   waits in `pending`.
//! - A flush (`flush`) appends the pending changes to the log as one group and syncs once; then the
//!   slots that they replaced are free. The next group is written only after that.
//! - A snapshot (`snapshot`) writes the leaves of the map that changed, the pointers to
//!   all leaves and the bits of slots in use to free slots, syncs, and points the superblocks to
//!   them; the log begins again in its other half.
//!
//! Must stay true: an accepted change has room in the log (`admit`); a slot is free only once
//! nothing durable points to it. Order of locks: `log`, then `state`.
//! Called from: any thread; blocks on the disk.

mod flush;
mod snapshot;
mod write;

pub(super) use flush::write_superblocks;

use super::OverlayError;
use super::format::{Change, Entry, Geometry, Superblock};
use super::load::load;
use super::map::Map;
use super::seal::{Seal, random};
use super::slots::Slots;
use super::store::Store;
use crate::format::lock::FrameKey;
use parking_lot::Mutex;
use sidecore_bare::width::{ToU64, ToUsize};
use std::ops::Range;
use std::sync::Arc;

/// Room that the grains of a layer take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// Bytes of all grains that have a slot.
    pub bytes: u64,
    /// Bytes of grains that changed since the last flush; a run of zeros counts as one grain.
    pub dirty_bytes: u64,
}

/// An open layer.
pub(super) struct Layer {
    store: Box<dyn Store>,
    seal: Arc<Seal>,
    /// Sizes of the parts. The number of grains is the map's, since it may grow.
    geometry: Geometry,
    dirty_max: usize,
    log: Mutex<Log>,
    state: Mutex<State>,
}

/// State of the file; locked by the thread that writes the log.
struct Log {
    superblock: Superblock,
    /// Number of the next group.
    sequence: u64,
}

struct State {
    map: Map,
    slots: Slots,
    /// Changes that are in no group yet, in order.
    pending: Vec<Change>,
    /// Changes that writers have reserved room for.
    reserved: usize,
    /// Slots whose bytes are being written and that no change refers to yet.
    in_flight: Vec<Range<u64>>,
    /// Slots that are free once the pending changes are durable.
    freed: Vec<u64>,
    /// True if room of those slots goes back to the file system.
    discarded: bool,
    /// Number of changes so far, and of the durable ones.
    changes: u64,
    durable: u64,
    log_used: u64,
    zeroed_leaves: u64,
    broken: Option<String>,
}

impl Layer {
    /// Opens a layer; `key` is its image's, if that is encrypted. With `writable`, prepares its
    /// file for writing. `map_bytes` of the map are kept in memory.
    ///
    /// # Errors
    /// [`OverlayError`].
    pub(super) fn open(
        store: Box<dyn Store>,
        key: Option<&FrameKey>,
        writable: bool,
        map_bytes: usize,
    ) -> Result<Self, OverlayError> {
        let loaded = load(&*store, key, map_bytes)?;
        if writable {
            if loaded.superblock.frozen {
                return Err(OverlayError::Frozen);
            }
            // The file is prepared for writing before any change of it is accepted.
            flush::prepare(&*store, &loaded)?;
        }
        let superblock = loaded.superblock;
        // A sealed layer starts a new log with a new salt: codes of a copy of the file must never
        // match.
        let begins_anew = writable && superblock.lock.is_some();
        let layer = Self {
            store,
            geometry: loaded.geometry,
            seal: loaded.seal,
            // Leaves that differ from the file cannot be evicted; a quarter of the map's memory
            // stays for reads.
            dirty_max: map_bytes / loaded.geometry.grain_bytes * 3 / 4,
            log: Mutex::new(Log {
                superblock,
                sequence: loaded.sequence,
            }),
            state: Mutex::new(State {
                map: loaded.map,
                slots: loaded.slots,
                pending: Vec::new(),
                reserved: 0,
                in_flight: Vec::new(),
                freed: Vec::new(),
                discarded: false,
                changes: 0,
                durable: 0,
                log_used: loaded.log_used,
                zeroed_leaves: loaded.zeroed_leaves,
                broken: None,
            }),
        };
        if begins_anew {
            layer.begin_anew()?;
        }
        Ok(layer)
    }

    /// Begins the log again with another salt: groups of a copy of the file, or dropped groups,
    /// must not count as part of this one.
    fn begin_anew(&self) -> Result<(), OverlayError> {
        let mut log = self.log.lock();
        log.superblock.salt = u64::from_le_bytes(random()?);
        if self.state.lock().log_used > 0 {
            drop(log);
            return self.snapshot();
        }
        log.superblock.generation += 1;
        write_superblocks(&*self.store, &log.superblock, &self.seal)?;
        self.sync()
    }

    /// Bytes of a slot: a grain and, if it is sealed, nonce and tag.
    pub(super) fn slot_bytes(&self) -> usize {
        self.geometry.slot_bytes
    }

    /// Its superblock.
    pub(super) fn superblock(&self) -> Superblock {
        self.log.lock().superblock.clone()
    }

    /// Room that its grains take.
    pub(super) fn used(&self) -> Used {
        let state = self.state.lock();
        let grain_bytes = self.geometry.grain_bytes.to_u64();
        Used {
            bytes: state.slots.used() * grain_bytes,
            dirty_bytes: (state.changes - state.durable) * grain_bytes,
        }
    }

    /// The entry of a grain.
    ///
    /// # Errors
    /// [`OverlayError`].
    pub(super) fn entry(&self, grain: u64) -> Result<Entry, OverlayError> {
        self.state.lock().map.get(&*self.store, grain)
    }

    /// Puts the entries of the grains from `first` into those of `found` that are absent.
    ///
    /// # Errors
    /// [`OverlayError`].
    pub(super) fn look_up(
        &self,
        first: u64,
        found: &mut [Entry],
        mut each: impl FnMut(usize),
    ) -> Result<(), OverlayError> {
        let mut state = self.state.lock();
        let range = first..first + found.len().to_u64();
        state
            .map
            .walk(&*self.store, range, &mut |start, entries, run| {
                let at = (start - first).to_usize();
                let len = entries.len().max(run.to_usize());
                for (index, slot) in found[at..at + len].iter_mut().enumerate() {
                    // A run is passed as a single entry.
                    let entry = entries[index.min(entries.len() - 1)];
                    if *slot == Entry::Absent && entry != Entry::Absent {
                        *slot = entry;
                        each(at + index);
                    }
                }
                true
            })
    }

    /// The run of grains from `first` whose entries are of one kind: absent, zero or data; at most
    /// to `end`.
    ///
    /// # Errors
    /// [`OverlayError`].
    pub(super) fn run(&self, first: u64, end: u64) -> Result<(Entry, u64), OverlayError> {
        let mut kind = None;
        let mut len = 0;
        let mut looks = 0;
        let mut state = self.state.lock();
        // A device may be larger than the layers below its top one, which have nothing there.
        if first >= state.map.grains() {
            return Ok((Entry::Absent, end.saturating_sub(first)));
        }
        state
            .map
            .walk(&*self.store, first..end, &mut |_, entries, run| {
                looks += 1;
                let kind = *kind.get_or_insert(entries[0]);
                let same =
                    |entry: &Entry| std::mem::discriminant(entry) == std::mem::discriminant(&kind);
                let count = entries.iter().take_while(|entry| same(entry)).count();
                match run > 0 && count > 0 {
                    true => len += run,
                    false => len += count.to_u64(),
                }
                // Bounded, since every leaf may have to be read from the file.
                count == entries.len() && looks < RUN_LEAVES_MAX
            })?;
        Ok((kind.unwrap_or(Entry::Absent), len))
    }

    /// Fills `out` with the bytes of neighbouring slots from `slot`, without checking them.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn read_slots(&self, slot: u64, out: &mut [u8]) -> Result<(), OverlayError> {
        let offset = self.geometry.slot_at(slot);
        self.store.read_at(out, offset).map_err(OverlayError::read)
    }

    /// True if these are the bytes of a grain's slot in this layer, for an entry that was looked up
    /// before; the grain then lies at their beginning. `None` where the grain was written since, so
    /// that its slot may hold another grain's bytes.
    ///
    /// # Errors
    /// [`OverlayError`].
    pub(super) fn judge(
        &self,
        grain: u64,
        entry: Entry,
        bytes: &mut [u8],
    ) -> Result<Option<bool>, OverlayError> {
        if let Entry::Data { check, .. } = entry
            && self.seal.open(grain, check, bytes)
        {
            return Ok(Some(true));
        }
        Ok((self.entry(grain)? == entry).then_some(false))
    }
}

/// Leaves that one run is followed through, at most.
const RUN_LEAVES_MAX: usize = 4096;
