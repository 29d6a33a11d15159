//! One layer: an overlay's file, read and written.
//!
//! Why here: everything that a crash may interrupt is in this file, in the order of its steps.
//! - A write puts its bytes into free slots, then changes the map in memory; the change waits in
//!   `pending`.
//! - A flush appends the pending changes to the log as one group and syncs once; then the slots
//!   that they replaced are free. The next group is written only after that.
//! - A snapshot ([`Layer::snapshot`]) writes the leaves of the map that changed, the pointers to
//!   all leaves and the bits of slots in use to free slots, syncs, and points the superblocks to
//!   them; the log begins again in its other half.
//!
//! Must stay true: an accepted change has room in the log (`admit`); a slot is free only once
//! nothing durable points to it. Order of locks: `log`, then `state`.
//! Called from: any thread; blocks on the disk.

use super::OverlayError;
use super::format::{
    Change, Entry, LOG_AT, LOG_BYTES, SLOTS_AT, SUPERBLOCK_BYTES, Snapshot, Superblock,
    encode_group, group_bytes,
};
use super::load::{Loaded, ZEROED_LEAVES_MAX, load};
use super::map::{Map, Written};
use super::seal::{Part, Seal, random};
use super::slots::Slots;
use super::store::Store;
use crate::format::lock::FrameKey;
use parking_lot::{Mutex, MutexGuard};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// An open layer.
pub(super) struct Layer {
    store: Box<dyn Store>,
    seal: Arc<Seal>,
    grain_bytes: usize,
    slot_bytes: u64,
    grains: u64,
    leaf_entries: u64,
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
            prepare(&*store, &loaded)?;
        }
        let superblock = loaded.superblock;
        // A sealed layer starts a new log with a new salt: codes of a copy of the file must never
        // match.
        let begins_anew = writable && superblock.lock.is_some();
        let layer = Self {
            store,
            grain_bytes: superblock.grain_bytes as usize,
            slot_bytes: u64::from(superblock.grain_bytes) + loaded.seal.trailer_bytes() as u64,
            seal: loaded.seal,
            grains: superblock.grains(),
            leaf_entries: superblock.leaf_entries(),
            // Leaves that differ from the file cannot be evicted; a quarter of the map's memory
            // stays for reads.
            dirty_max: map_bytes / superblock.grain_bytes as usize * 3 / 4,
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
        self.slot_bytes as usize
    }

    /// Its superblock.
    pub(super) fn superblock(&self) -> Superblock {
        self.log.lock().superblock.clone()
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
        let range = first..first + found.len() as u64;
        state
            .map
            .walk(&*self.store, range, &mut |start, entries, run| {
                let at = (start - first) as usize;
                let len = entries.len().max(run as usize);
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
                    false => len += count as u64,
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
        let offset = SLOTS_AT + slot * self.slot_bytes;
        self.store.read_at(out, offset).map_err(OverlayError::read)
    }

    /// Writes whole grains from `first`. The caller holds their range.
    ///
    /// # Errors
    /// [`OverlayError::NoSpace`]: the old contents stay, of all grains or of those after the
    /// written ones; or another error.
    pub(super) fn write(&self, first: u64, bytes: &[u8]) -> Result<(), OverlayError> {
        let mut grain = first;
        for part in bytes.chunks(self.grain_bytes * PART_GRAINS_MAX) {
            let wanted = (part.len() / self.grain_bytes) as u64;
            // `write_run` takes the lock again; the reservation stays.
            drop(self.admit(wanted as usize)?);
            let mut done = 0;
            while done < wanted {
                let result = self.write_run(grain, &part[done as usize * self.grain_bytes..]);
                let count = match result {
                    Ok(count) => count,
                    Err(error) => {
                        self.state.lock().reserved -= (wanted - done) as usize;
                        return Err(error);
                    }
                };
                done += count;
                grain += count;
            }
        }
        Ok(())
    }

    /// Writes as many of these grains as lie in one run of slots; returns their number.
    fn write_run(&self, first: u64, bytes: &[u8]) -> Result<u64, OverlayError> {
        let wanted = self.run_max((bytes.len() / self.grain_bytes) as u64);
        let (slot, count) = {
            // In flight from here on: a snapshot taken meanwhile must not treat these slots as
            // free.
            let mut state = self.state.lock();
            let (slot, count) = state.slots.take(wanted);
            state.in_flight.push(slot..slot + count);
            (slot, count)
        };
        let bytes = &bytes[..count as usize * self.grain_bytes];
        let mut changes = Vec::with_capacity(count as usize);
        let written = self
            .seal(first, slot, bytes, &mut changes)
            .and_then(|bytes| {
                let offset = SLOTS_AT + slot * self.slot_bytes;
                self.store.write_at(&bytes, offset)
            });
        let mut state = self.state.lock();
        let range = slot..slot + count;
        state.in_flight.retain(|it| *it != range);
        let mut put = 0;
        let mut result = written.map_err(OverlayError::write);
        if result.is_ok() {
            // The map changes only after the bytes are written, so that readers never see an
            // unwritten slot.
            for change in &changes {
                result = state.put(&*self.store, *change);
                if result.is_err() {
                    break;
                }
                put += 1;
            }
        }
        if result.is_ok() {
            state.reserved -= put;
        }
        // Slots that no change names were written for nothing and are free again.
        for slot in slot + put as u64..slot + count {
            state.slots.give_back(slot);
        }
        result.map(|()| count)
    }

    /// Limit of the grains that are sealed at once: their bytes are in memory twice.
    fn run_max(&self, wanted: u64) -> u64 {
        match self.seal.trailer_bytes() {
            0 => wanted,
            _ => wanted.min((SEALED_RUN_BYTES / self.grain_bytes) as u64),
        }
    }

    /// The bytes of the slots from `slot` for the grains from `first`, and the changes that refer
    /// to them.
    fn seal<'b>(
        &self,
        first: u64,
        slot: u64,
        bytes: &'b [u8],
        changes: &mut Vec<Change>,
    ) -> std::io::Result<Cow<'b, [u8]>> {
        let grains = bytes.chunks_exact(self.grain_bytes);
        let mut change = |at: u64, check: u64| {
            changes.push(Change::Data {
                grain: first + at,
                slot: slot + at,
                check,
            });
        };
        // Without encryption the caller's bytes are stored unchanged, so they are not copied.
        if let Seal::Open = *self.seal {
            for (grain, at) in grains.zip(0..) {
                change(at, xxhash_rust::xxh3::xxh3_64(grain));
            }
            return Ok(Cow::Borrowed(bytes));
        }
        let mut slots = vec![0; grains.len() * self.slot_bytes()];
        self.seal.draw_nonces(&mut slots, self.slot_bytes())?;
        let sealed = slots.chunks_exact_mut(self.slot_bytes());
        for ((grain, sealed), at) in grains.zip(sealed).zip(0..) {
            sealed[..self.grain_bytes].copy_from_slice(grain);
            change(at, self.seal.seal(first + at, sealed)?);
        }
        Ok(Cow::Owned(slots))
    }

    /// Makes grains zeros. The caller holds their range.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(super) fn zero(&self, grains: Range<u64>) -> Result<(), OverlayError> {
        let mut grain = grains.start;
        while grain < grains.end {
            // Leaf by leaf: each is changed as a whole or not at all.
            let leaf_end = (grain / self.leaf_entries + 1) * self.leaf_entries;
            let end = leaf_end.min(grains.end).min(self.grains);
            let count = end - grain;
            let mut state = self.admit(1)?;
            state.reserved -= 1;
            state.zeroed_leaves += 1;
            let before = state.freed.len();
            state.put(&*self.store, Change::Zero { grain, count })?;
            state.discarded |= state.freed.len() - before >= PUNCH_SLOTS_MIN;
            grain = end;
        }
        Ok(())
    }

    /// Waits until `count` more changes have room in memory and in the log, and reserves it.
    fn admit(&self, count: usize) -> Result<MutexGuard<'_, State>, OverlayError> {
        loop {
            let mut state = self.state.lock();
            if let Some(reason) = &state.broken {
                return Err(OverlayError::Broken(reason.clone()));
            }
            let waiting = state.pending.len() + state.reserved + count;
            let full = state.log_used + group_bytes(waiting) as u64 > LOG_BYTES
                || state.map.dirty() > self.dirty_max
                || state.zeroed_leaves > ZEROED_LEAVES_MAX;
            if !full && waiting <= PENDING_MAX {
                state.reserved += count;
                return Ok(state);
            }
            // Snapshot and flush take the lock themselves.
            drop(state);
            match full {
                true => self.snapshot()?,
                false => self.flush()?,
            }
        }
    }

    /// Makes all changes durable that were made before the call.
    ///
    /// # Errors
    /// [`OverlayError::NoSpace`]: nothing is lost, and a later flush may succeed; others.
    pub(super) fn flush(&self) -> Result<(), OverlayError> {
        let wanted = self.state.lock().changes;
        // The log is locked before the state: groups reach the file in the order of their sequence
        // numbers.
        let mut log = self.log.lock();
        let (changes, freed, discarded, upto) = {
            let mut state = self.state.lock();
            if let Some(reason) = &state.broken {
                return Err(OverlayError::Broken(reason.clone()));
            }
            // Another thread's flush, begun later, may have done it.
            if state.durable >= wanted {
                return Ok(());
            }
            let changes = std::mem::take(&mut state.pending);
            state.log_used += group_bytes(changes.len()) as u64;
            let freed = std::mem::take(&mut state.freed);
            (
                changes,
                freed,
                std::mem::take(&mut state.discarded),
                state.changes,
            )
        };
        let half = u64::from(log.superblock.half);
        let how = super::format::Log {
            seal: &self.seal,
            salt: log.superblock.salt,
        };
        let group = encode_group(log.sequence, how, &changes);
        let at = LOG_AT + half * LOG_BYTES + self.state.lock().log_used - group.len() as u64;
        if let Err(error) = self.store.write_at(&group, at) {
            let error = OverlayError::write(error);
            let mut state = self.state.lock();
            // A full disk leaves the old bytes as they were; after other errors the log's contents
            // are unknown.
            if !matches!(error, OverlayError::NoSpace(_)) {
                state.broken = Some(error.to_string());
                return Err(error);
            }
            // An incomplete group has no effect: it is written again later.
            state.log_used -= group.len() as u64;
            let newer = std::mem::replace(&mut state.pending, changes);
            state.pending.extend(newer);
            state.freed.extend(freed);
            state.discarded |= discarded;
            return Err(error);
        }
        // One sync makes the group and the data of its changes durable together.
        self.sync()?;
        log.sequence += 1;
        if discarded {
            self.punch(&freed);
        }
        // Replaced slots are free only now: before the sync, a crash would have brought them back.
        let mut state = self.state.lock();
        for slot in freed {
            state.slots.give_back(slot);
        }
        state.durable = upto;
        Ok(())
    }

    /// After a failed sync the contents of the disk are unknown: nothing more is written.
    fn sync(&self) -> Result<(), OverlayError> {
        self.store.sync().map_err(|error| {
            let error = OverlayError::write(error);
            self.state.lock().broken = Some(error.to_string());
            error
        })
    }

    /// Gives long runs of slots back to the file system: slots that nothing points to any more and
    /// that have not been allocated again.
    fn punch(&self, freed: &[u64]) {
        let mut slots = freed.to_vec();
        slots.sort_unstable();
        let mut runs: Vec<Range<u64>> = Vec::new();
        for slot in slots {
            match runs.last_mut() {
                Some(run) if run.end == slot => run.end += 1,
                _ => runs.push(slot..slot + 1),
            }
        }
        // A call for each short run would cost more than the space is worth.
        runs.retain(|run| (run.end - run.start) as usize >= PUNCH_SLOTS_MIN);
        for run in &runs {
            let (offset, len) = (
                run.start * self.slot_bytes,
                (run.end - run.start) * self.slot_bytes,
            );
            // A failure is not an error: the slots stay usable, only the space is not returned.
            if let Err(error) = self.store.punch(SLOTS_AT + offset, len) {
                tracing::debug!("no room was given back: {error}");
            }
        }
    }

    /// Writes a snapshot of the map and begins the log again. All earlier changes are durable then.
    ///
    /// # Errors
    /// [`OverlayError::NoSpace`]: nothing has changed; others.
    pub(super) fn snapshot(&self) -> Result<(), OverlayError> {
        let mut log = self.log.lock();
        let mut state = self.state.lock();
        if let Some(reason) = &state.broken {
            return Err(OverlayError::Broken(reason.clone()));
        }
        let mut written = Written::default();
        // Kept to restore: a failed snapshot must change nothing.
        let before = state.slots.clone();
        let made = self.write_snapshot(&log.superblock, &mut state, &mut written);
        let (snapshot, mut slots) = match made {
            Ok(made) => made,
            Err(error) => {
                state.map.undo(&written);
                state.slots = before;
                if matches!(error, OverlayError::Broken(_)) {
                    state.broken = Some(error.to_string());
                }
                return Err(error);
            }
        };
        let mut superblock = log.superblock.clone();
        superblock.generation += 1;
        // The log begins again in its other half; groups of the old half have lower sequence
        // numbers.
        superblock.half ^= 1;
        superblock.sequence = log.sequence;
        superblock.slots = slots.count();
        superblock.snapshot = Some(snapshot);
        if let Err(error) = write_superblocks(&*self.store, &superblock, &self.seal) {
            // It is unknown which of the two is on the disk.
            state.broken = Some(error.to_string());
            return Err(error);
        }
        log.superblock = superblock;
        state.map.keep(&written);
        // Slots of writes in progress are in no map yet and would be free in the snapshot's copy.
        for range in &state.in_flight {
            range.clone().for_each(|slot| {
                slots.claim(slot);
            });
        }
        state.slots = slots;
        state.pending.clear();
        state.freed.clear();
        state.discarded = false;
        state.durable = state.changes;
        state.log_used = 0;
        state.zeroed_leaves = 0;
        Ok(())
    }

    /// Writes leaves, pointers and bits; makes them durable, with all data so far. Returns the
    /// place of the snapshot, and the slots in use once it is valid.
    fn write_snapshot(
        &self,
        old: &Superblock,
        state: &mut State,
        written: &mut Written,
    ) -> Result<(Snapshot, Slots), OverlayError> {
        let State { map, slots, .. } = state;
        let root = map.write(&*self.store, &mut || slots.take(1).0, written)?;
        // The bits also cover the slots that they themselves take; so the bound has some slack.
        let bound = root.len() as u64 + slots.count() / 8 + SNAPSHOT_SLACK_BYTES;
        let run = bound.div_ceil(self.slot_bytes);
        let slot = slots.take_run(run);
        // The old snapshot stays valid until the superblock changes: its slots are free only in the
        // new one.
        let mut after = slots.clone();
        let old_run = old.snapshot.map_or(0..0, |it| {
            it.slot..it.slot + run_of(it.bytes, self.slot_bytes)
        });
        let outdated = map.outdated(written);
        let in_flight = state.in_flight.iter().cloned().flatten();
        for slot in state
            .freed
            .iter()
            .copied()
            .chain(outdated)
            .chain(old_run)
            .chain(in_flight)
        {
            after.give_back(slot);
        }
        let bytes_total = root.len() as u64 + after.count().div_ceil(64) * 8;
        // Slots of the bound that were not needed.
        for spare in slot + run_of(bytes_total, self.slot_bytes)..slot + run {
            after.give_back(spare);
        }
        let mut bytes = root;
        bytes.extend_from_slice(&after.encode());
        let snapshot = Snapshot {
            slot,
            bytes: bytes.len() as u64,
            check: self.seal.check(Part::Snapshot, &bytes),
        };
        bytes.resize(
            (run_of(snapshot.bytes, self.slot_bytes) * self.slot_bytes) as usize,
            0,
        );
        let offset = SLOTS_AT + slot * self.slot_bytes;
        self.store
            .write_at(&bytes, offset)
            .map_err(OverlayError::write)?;
        // A snapshot must be durable before a superblock names it.
        self.store
            .sync()
            .map_err(|error| OverlayError::Broken(error.to_string()))?;
        Ok((snapshot, after))
    }

    /// True when a snapshot would save work at the next opening.
    pub(super) fn is_changed(&self) -> bool {
        let state = self.state.lock();
        state.log_used > 0 || !state.pending.is_empty()
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

impl State {
    /// Applies one change in memory, for which room was reserved.
    fn put(&mut self, store: &dyn Store, change: Change) -> Result<(), OverlayError> {
        self.map.apply(store, change, &mut self.freed)?;
        self.changes += 1;
        // Adjacent runs of zeros are one change.
        if let (
            Change::Zero { grain, count },
            Some(Change::Zero {
                grain: from,
                count: len,
            }),
        ) = (change, self.pending.last_mut())
            && *from + *len == grain
        {
            *len += count;
            return Ok(());
        }
        self.pending.push(change);
        Ok(())
    }
}

/// Prepares a loaded file for writing.
fn prepare(store: &dyn Store, loaded: &Loaded) -> Result<(), OverlayError> {
    // Flushes must find room on a full disk. The blocks must also have been written once: if the
    // file system has to record a block as used, each sync of the log costs a commit of its own.
    let mut at = store.size_bytes().map_err(OverlayError::read)?;
    let zeros = vec![0; 1 << 20];
    while at < SLOTS_AT {
        let len = (SLOTS_AT - at).min(zeros.len() as u64);
        let written = store.write_at(&zeros[..len as usize], at);
        written.map_err(OverlayError::write)?;
        at += len;
    }
    // A copy of the file may have made holes.
    store.reserve(0, SLOTS_AT).map_err(OverlayError::write)?;
    if !loaded.paired {
        write_superblocks(store, &loaded.superblock, &loaded.seal)?;
    }
    if loaded.torn {
        // Otherwise a dropped group could become whole later.
        let half = LOG_AT + u64::from(loaded.superblock.half) * LOG_BYTES;
        let at = half + loaded.log_used;
        let len = (super::format::CHANGE_BYTES as u64).min(LOG_BYTES - loaded.log_used) as usize;
        store
            .write_at(&[0; super::format::CHANGE_BYTES][..len], at)
            .map_err(OverlayError::write)?;
    }
    store.sync().map_err(OverlayError::write)
}

/// Writes both superblocks. The first is durable before the second is written, so one is always
/// whole.
pub(super) fn write_superblocks(
    store: &dyn Store,
    superblock: &Superblock,
    seal: &Seal,
) -> Result<(), OverlayError> {
    let bytes = superblock.encode(seal);
    store.write_at(&bytes, 0).map_err(OverlayError::write)?;
    store.sync().map_err(OverlayError::write)?;
    store
        .write_at(&bytes, SUPERBLOCK_BYTES as u64)
        .map_err(OverlayError::write)
}

fn run_of(bytes: u64, slot_bytes: u64) -> u64 {
    bytes.div_ceil(slot_bytes)
}

/// Changes in memory that are in no group: more cause a flush. 3 MiB.
pub(super) const PENDING_MAX: usize = 128 << 10;
/// Grains that are written between two checks of the room in the log.
const PART_GRAINS_MAX: usize = 1024;
/// Bytes that are sealed at once.
const SEALED_RUN_BYTES: usize = 1 << 20;
/// Slots in a row whose room goes back to the file system when they are discarded.
const PUNCH_SLOTS_MIN: usize = 16;
/// Leaves that one run is followed through, at most.
const RUN_LEAVES_MAX: usize = 4096;
/// Bits of the slots that a snapshot itself takes.
const SNAPSHOT_SLACK_BYTES: u64 = 16 << 10;
