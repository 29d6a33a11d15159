//! Flushes of a layer: the pending changes as one group of the log, made durable with their data.

use super::super::OverlayError;
use super::super::format::{
    CHANGE_BYTES, Change, LOG_AT, LOG_BYTES, Log, SLOTS_AT, SUPERBLOCK_BYTES, Superblock,
    encode_group, group_bytes,
};
use super::super::load::Loaded;
use super::super::seal::Seal;
use super::super::store::Store;
use super::{Layer, State};
use sidecore_bare::width::{ToU64, ToUsize};
use std::ops::Range;

/// Changes on their way to the log, and what follows once they are durable.
struct Flushing {
    changes: Vec<Change>,
    /// Slots that are free then.
    freed: Vec<u64>,
    /// True if room of those slots goes back to the file system.
    discarded: bool,
    /// Number of the last change among them.
    upto: u64,
    /// Bytes of the log in use, these changes included.
    log_used: u64,
}

impl Layer {
    /// Makes all changes durable that were made before the call.
    ///
    /// # Errors
    /// [`OverlayError::NoSpace`]: nothing is lost, and a later flush may succeed; others.
    pub(in super::super) fn flush(&self) -> Result<(), OverlayError> {
        let wanted = self.state.lock().changes;
        // The log is locked before the state: groups reach the file in the order of their sequence
        // numbers.
        let mut log = self.log.lock();
        let flushing = {
            let mut state = self.state.lock();
            if let Some(reason) = &state.broken {
                return Err(OverlayError::Broken(reason.clone()));
            }
            // Another thread's flush, begun later, may have done it.
            if state.durable >= wanted {
                return Ok(());
            }
            state.begin_flush()
        };
        let how = Log {
            seal: &self.seal,
            salt: log.superblock.salt,
        };
        let group = encode_group(log.sequence, how, &flushing.changes);
        let half = LOG_AT + u64::from(log.superblock.half) * LOG_BYTES;
        let at = half + flushing.log_used - group.len().to_u64();
        if let Err(error) = self.store.write_at(&group, at) {
            let error = OverlayError::write(error);
            let mut state = self.state.lock();
            match error {
                // A full disk leaves the old bytes as they were, and an incomplete group has no
                // effect: it is written again later.
                OverlayError::NoSpace(_) => state.undo_flush(flushing),
                // After other errors the log's contents are unknown.
                _ => state.broken = Some(error.to_string()),
            }
            return Err(error);
        }
        // One sync makes the group and the data of its changes durable together.
        self.sync()?;
        log.sequence += 1;
        if flushing.discarded {
            self.punch(&flushing.freed);
        }
        // Replaced slots are free only now: before the sync, a crash would have restored them.
        let mut state = self.state.lock();
        for slot in flushing.freed {
            state.slots.give_back(slot);
        }
        state.durable = flushing.upto;
        Ok(())
    }

    /// Makes the layer durable, and marks it as one that another stands on. The caller sees to it
    /// that nothing writes to it any more. Other processes may read it from then on.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub(in super::super) fn freeze(&self) -> Result<(), OverlayError> {
        self.flush()?;
        let mut log = self.log.lock();
        let frozen = Superblock {
            frozen: true,
            generation: log.superblock.generation + 1,
            ..log.superblock.clone()
        };
        write_superblocks(&*self.store, &frozen, &self.seal)?;
        self.sync()?;
        log.superblock = frozen;
        // A lock that cannot be shared only keeps other readers out.
        if let Err(error) = self.store.share() {
            tracing::debug!("the frozen layer stays locked: {error}");
        }
        Ok(())
    }

    /// After a failed sync the contents of the disk are unknown: nothing more is written.
    pub(super) fn sync(&self) -> Result<(), OverlayError> {
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
        runs.retain(|run| (run.end - run.start).to_usize() >= PUNCH_SLOTS_MIN);
        for run in &runs {
            let start = self.geometry.slot_at(run.start);
            let len = self.geometry.slot_at(run.end) - start;
            // A failure is not an error: the slots stay usable, only the space is not returned.
            if let Err(error) = self.store.punch(start, len) {
                tracing::debug!("no room was given back: {error}");
            }
        }
    }
}

impl State {
    /// Takes the pending changes, with room for their group in the log.
    fn begin_flush(&mut self) -> Flushing {
        let changes = std::mem::take(&mut self.pending);
        self.log_used += group_bytes(changes.len()).to_u64();
        Flushing {
            changes,
            freed: std::mem::take(&mut self.freed),
            discarded: std::mem::take(&mut self.discarded),
            upto: self.changes,
            log_used: self.log_used,
        }
    }

    /// Puts changes back whose group could not be written, before those made meanwhile.
    fn undo_flush(&mut self, flushing: Flushing) {
        self.log_used -= group_bytes(flushing.changes.len()).to_u64();
        let newer = std::mem::replace(&mut self.pending, flushing.changes);
        self.pending.extend(newer);
        self.freed.extend(flushing.freed);
        self.discarded |= flushing.discarded;
    }
}

/// Prepares a loaded file for writing.
pub(super) fn prepare(store: &dyn Store, loaded: &Loaded) -> Result<(), OverlayError> {
    // Flushes must find room on a full disk. The blocks must also have been written once: if the
    // file system has to record a block as used, each sync of the log costs a commit of its own.
    let mut at = store.size_bytes().map_err(OverlayError::read)?;
    let zeros = vec![0; 1 << 20];
    while at < SLOTS_AT {
        let len = (SLOTS_AT - at).min(zeros.len().to_u64());
        let written = store.write_at(&zeros[..len.to_usize()], at);
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
        let len = CHANGE_BYTES.min((LOG_BYTES - loaded.log_used).to_usize());
        store
            .write_at(&[0; CHANGE_BYTES][..len], at)
            .map_err(OverlayError::write)?;
    }
    store.sync().map_err(OverlayError::write)
}

/// Writes both superblocks. The first is durable before the second is written, so one is always
/// whole.
pub(in super::super) fn write_superblocks(
    store: &dyn Store,
    superblock: &Superblock,
    seal: &Seal,
) -> Result<(), OverlayError> {
    let bytes = superblock.encode(seal);
    store.write_at(&bytes, 0).map_err(OverlayError::write)?;
    store.sync().map_err(OverlayError::write)?;
    store
        .write_at(&bytes, SUPERBLOCK_BYTES.to_u64())
        .map_err(OverlayError::write)
}

/// Slots in a row whose room goes back to the file system when they are discarded.
pub(super) const PUNCH_SLOTS_MIN: usize = 16;
