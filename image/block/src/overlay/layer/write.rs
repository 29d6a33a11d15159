//! Writes of a layer: bytes into free slots, then the map in memory, then the pending changes.

use super::super::OverlayError;
use super::super::format::{CHANGE_BYTES, Change, LOG_BYTES, group_bytes};
use super::super::load::ZEROED_LEAVES_MAX;
use super::super::seal::Seal;
use super::super::store::Store;
use super::flush::PUNCH_SLOTS_MIN;
use super::{Layer, State};
use parking_lot::MutexGuard;
use sidecore_bare::width::{ToU64, ToUsize};
use std::borrow::Cow;
use std::ops::Range;

impl Layer {
    /// Writes whole grains from `first`. The caller holds their range.
    ///
    /// # Errors
    /// [`OverlayError::NoSpace`]: the old contents stay, of all grains or of those after the
    /// written ones; or another error.
    pub(in super::super) fn write(&self, first: u64, bytes: &[u8]) -> Result<(), OverlayError> {
        let grain_bytes = self.geometry.grain_bytes;
        let mut grain = first;
        for part in bytes.chunks(grain_bytes * PART_GRAINS_MAX) {
            let wanted = part.len() / grain_bytes;
            // `write_run` takes the lock again; the reservation stays.
            drop(self.admit(wanted)?);
            let mut done = 0;
            while done < wanted {
                let result = self.write_run(grain, &part[done * grain_bytes..]);
                let count = match result {
                    Ok(count) => count,
                    Err(error) => {
                        self.state.lock().reserved -= wanted - done;
                        return Err(error);
                    }
                };
                done += count;
                grain += count.to_u64();
            }
        }
        Ok(())
    }

    /// Writes as many of these grains as lie in one run of slots; returns their number.
    fn write_run(&self, first: u64, bytes: &[u8]) -> Result<usize, OverlayError> {
        let grain_bytes = self.geometry.grain_bytes;
        let wanted = self.run_max(bytes.len() / grain_bytes).to_u64();
        let (slot, count) = {
            // In flight from here on: a snapshot taken meanwhile must not treat these slots as
            // free.
            let mut state = self.state.lock();
            let (slot, count) = state.slots.take(wanted);
            state.in_flight.push(slot..slot + count);
            (slot, count)
        };
        let range = slot..slot + count;
        let count = count.to_usize();
        let bytes = &bytes[..count * grain_bytes];
        let mut changes = Vec::with_capacity(count);
        let written = self
            .seal(first, slot, bytes, &mut changes)
            .and_then(|bytes| self.store.write_at(&bytes, self.geometry.slot_at(slot)));
        let mut state = self.state.lock();
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
        for slot in slot + put.to_u64()..range.end {
            state.slots.give_back(slot);
        }
        result.map(|()| count)
    }

    /// Limit of the grains that are sealed at once: their bytes are in memory twice.
    fn run_max(&self, wanted: usize) -> usize {
        match *self.seal {
            Seal::Open => wanted,
            Seal::Keys(_) => wanted.min(SEALED_RUN_BYTES / self.geometry.grain_bytes),
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
        let grain_bytes = self.geometry.grain_bytes;
        let grains = bytes.chunks_exact(grain_bytes);
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
            sealed[..grain_bytes].copy_from_slice(grain);
            change(at, self.seal.seal(first + at, sealed)?);
        }
        Ok(Cow::Owned(slots))
    }

    /// Makes grains zeros. The caller holds their range.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub(in super::super) fn zero(&self, grains: Range<u64>) -> Result<(), OverlayError> {
        let mut grain = grains.start;
        while grain < grains.end {
            // Leaf by leaf: each is changed as a whole or not at all.
            let mut state = self.admit(1)?;
            let end = state.map.leaf_end(grain).min(grains.end);
            let count = end - grain;
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
            // Other threads may flush between the changes that were admitted: each may then be in a
            // group by itself, with a head of its own.
            let heads = (state.reserved + count) * CHANGE_BYTES;
            let room = group_bytes(waiting) + heads;
            let full = state.log_used + room.to_u64() > LOG_BYTES
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

/// Changes in memory that are in no group: more cause a flush. 3 MiB.
const PENDING_MAX: usize = 128 << 10;
/// Grains that are written between two checks of the room in the log.
const PART_GRAINS_MAX: usize = 1024;
/// Bytes that are sealed at once.
const SEALED_RUN_BYTES: usize = 1 << 20;
