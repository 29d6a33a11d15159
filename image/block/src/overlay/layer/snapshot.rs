//! Snapshots of a layer's map, after which the log begins again.

use super::super::OverlayError;
use super::super::format::{Snapshot, Superblock};
use super::super::map::Written;
use super::super::seal::Part;
use super::super::slots::Slots;
use super::{Layer, State, write_superblocks};
use sidecore_bare::width::ToU64;

impl Layer {
    /// Writes a snapshot of the map and begins the log again. All earlier changes are durable then.
    ///
    /// # Errors
    /// [`OverlayError::NoSpace`]: nothing has changed; others.
    pub(in super::super) fn snapshot(&self) -> Result<(), OverlayError> {
        self.snapshot_sized(None)
    }

    /// Makes the device larger: a snapshot whose superblock has the new size, so that after a crash
    /// the size and the pointers to leaves belong together. It is durable then. Layers below it and
    /// the image must have nothing behind the former end.
    ///
    /// # Errors
    /// As [`Self::snapshot`]; [`OverlayError::TooLarge`].
    pub(in super::super) fn grow(&self, size_bytes: u64) -> Result<(), OverlayError> {
        self.snapshot_sized(Some(size_bytes))
    }

    fn snapshot_sized(&self, size_bytes: Option<u64>) -> Result<(), OverlayError> {
        let mut log = self.log.lock();
        let mut state = self.state.lock();
        if let Some(reason) = &state.broken {
            return Err(OverlayError::Broken(reason.clone()));
        }
        let mut superblock = log.superblock.clone();
        superblock.size_bytes = size_bytes.unwrap_or(superblock.size_bytes);
        superblock.check_sizes()?;
        let mut written = Written::default();
        // Kept to restore: a failed snapshot must change nothing.
        let (before, grains) = (state.slots.clone(), state.map.grains());
        state.map.resize(superblock.grains());
        let made = self.write_snapshot(&log.superblock, &mut state, &mut written);
        let (snapshot, slots) = match made {
            Ok(made) => made,
            Err(error) => {
                state.map.undo(&written);
                state.map.resize(grains);
                state.slots = before;
                if matches!(error, OverlayError::Broken(_)) {
                    state.broken = Some(error.to_string());
                }
                return Err(error);
            }
        };
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
        state.begin_log(slots);
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
        let bound = root.len().to_u64() + slots.count() / 8 + SNAPSHOT_SLACK_BYTES;
        let run = self.geometry.slots_for(bound);
        let slot = slots.take_run(run);
        // The old snapshot stays valid until the superblock changes: its slots are free only in the
        // new one.
        let mut after = slots.clone();
        let old_run = old.snapshot.map_or(0..0, |it| {
            it.slot..it.slot + self.geometry.slots_for(it.bytes)
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
        let bytes_total = root.len().to_u64() + after.count().div_ceil(64) * 8;
        // Slots of the bound that were not needed.
        for spare in slot + self.geometry.slots_for(bytes_total)..slot + run {
            after.give_back(spare);
        }
        let mut bytes = root;
        bytes.extend_from_slice(&after.encode());
        let snapshot = Snapshot {
            slot,
            bytes: bytes.len().to_u64(),
            check: self.seal.check(Part::Snapshot, &bytes),
        };
        bytes.resize(bytes.len().next_multiple_of(self.geometry.slot_bytes), 0);
        self.store
            .write_at(&bytes, self.geometry.slot_at(slot))
            .map_err(OverlayError::write)?;
        // A snapshot must be durable before a superblock names it.
        self.store
            .sync()
            .map_err(|error| OverlayError::Broken(error.to_string()))?;
        Ok((snapshot, after))
    }

    /// True when a snapshot would save work at the next opening.
    pub(in super::super) fn is_changed(&self) -> bool {
        let state = self.state.lock();
        state.log_used > 0 || !state.pending.is_empty()
    }
}

impl State {
    /// Goes on with an empty log and these slots, behind a snapshot.
    fn begin_log(&mut self, mut slots: Slots) {
        // Slots of writes in progress are in no map yet and would be free in the snapshot's copy.
        for range in &self.in_flight {
            range.clone().for_each(|slot| {
                slots.claim(slot);
            });
        }
        self.slots = slots;
        self.pending.clear();
        self.freed.clear();
        self.discarded = false;
        self.durable = self.changes;
        self.log_used = 0;
        self.zeroed_leaves = 0;
    }
}

/// Bits of the slots that a snapshot itself takes.
const SNAPSHOT_SLACK_BYTES: u64 = 16 << 10;
