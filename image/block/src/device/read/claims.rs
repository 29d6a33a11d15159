//! Frames of a read in the cache: looked up, pinned, and claimed where this reader must fill them.

use super::super::cache::{Lookup, SlotId};
use super::super::{Device, PIECES_MAX};
use crate::format::Frame;
use crate::source::ReadError;
use arrayvec::ArrayVec;
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use sidecore_bare::width::ToUsize;
use sidecore_offload::task;
use sidecore_sys::SlotBuf;
use std::ops::Range;

/// A pinned slot.
pub(super) struct Pin<'d> {
    device: &'d Device,
    pub(super) slot: SlotId,
    /// True when this reader is done with the frame and will not return to it.
    spent: bool,
}

/// A pinned slot that this reader must fill; failed, if it is dropped before.
pub(super) struct Claim<'d> {
    /// Dropped before `pin`, so that no look-up finds the slot free and its lock taken.
    pub(super) bytes: Option<RwLockWriteGuard<'d, SlotBuf>>,
    pub(super) pin: Pin<'d>,
    pub(super) frame: u64,
    /// The beginning of the frame was cached before: it is being read again.
    pub(super) again: bool,
    /// The cache already knows that only the frame's beginning will come; see [`Cache::leave`].
    ///
    /// [`Cache::leave`]: super::super::cache::Cache::leave
    pub(super) left: bool,
    /// Result of decompressing: bytes that are valid from the frame's beginning.
    pub(super) result: Option<Result<usize, ReadError>>,
}

/// One frame of a read.
pub(super) enum Piece<'d> {
    Zero,
    Held(Pin<'d>),
    Joined(Pin<'d>),
    /// Index in the list of claims.
    Claimed(usize),
}

/// Result of a look-up, with its locks.
pub(super) enum Taken<'d> {
    Held(Pin<'d>),
    Joined(Pin<'d>),
    Claimed(Claim<'d>),
}

impl<'d> Pin<'d> {
    pub(super) fn lock(&self) -> RwLockReadGuard<'d, SlotBuf> {
        let slot = &self.device.slots[self.slot.0];
        if task::is_task() {
            // The filler of the slot may be a task of this very thread, parked: it must continue.
            return task::wait_for(|| slot.try_read());
        }
        slot.read()
    }

    pub(super) fn is_ready(&self, frame: u64, want: usize) -> bool {
        self.device.cache.lock().is_ready(self.slot, frame, want)
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        // Without the cache's lock, which all readers of the device share.
        self.device.pins.unpin(self.slot, self.spent);
    }
}

impl<'d> Claim<'d> {
    /// The claim of a slot that the cache has just given to `frame`.
    ///
    /// To be called before the cache is unlocked: no other reader can then find the slot filling
    /// and take its lock first. The slot was unpinned, so no reader holds that lock.
    fn new(device: &'d Device, slot: SlotId, frame: u64, again: bool, spent: bool) -> Self {
        Self {
            bytes: Some(device.slots[slot.0].write()),
            pin: Pin {
                device,
                slot,
                spent,
            },
            frame,
            again,
            left: false,
            result: None,
        }
    }

    /// Reports the outcome to the cache and admits readers.
    pub(super) fn publish(&mut self) {
        if !self.left {
            let mut cache = self.pin.device.cache.lock();
            match &self.result {
                Some(Ok(valid)) => cache.filled(self.pin.slot, *valid),
                Some(Err(_)) | None => cache.failed(self.pin.slot),
            }
        }
        self.bytes = None;
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if self.bytes.is_some() {
            self.publish();
        }
    }
}

impl Device {
    /// Looks a frame up and takes its locks; `None` when every slot is pinned.
    pub(super) fn try_take(
        &self,
        frame: u64,
        want: usize,
        keep: bool,
        spent: bool,
    ) -> Option<Taken<'_>> {
        let mut cache = self.cache.lock();
        let found = cache.look_up(frame, want, keep);
        if cache.take_growth_request() {
            // Only wakes the growth thread: touching memory here would delay this reader.
            self.growth.request();
        }
        let pin = |slot| Pin {
            device: self,
            slot,
            spent,
        };
        // The cache stays locked until the claim has its slot's lock; see `Claim::new`.
        match found {
            Lookup::Hit(slot) => Some(Taken::Held(pin(slot))),
            Lookup::Filling(slot) => Some(Taken::Joined(pin(slot))),
            Lookup::Claimed { slot, again } => {
                Some(Taken::Claimed(Claim::new(self, slot, frame, again, spent)))
            }
            Lookup::Full => None,
        }
    }

    /// Takes every frame of a range, for a read that stops at byte `end`, in one step; false, with
    /// nothing taken, when slots ran out.
    pub(super) fn take_all<'d>(
        &'d self,
        frames: Range<u64>,
        end: u64,
        keep: bool,
        pieces: &mut ArrayVec<Piece<'d>, PIECES_MAX>,
        claims: &mut ArrayVec<Claim<'d>, PIECES_MAX>,
    ) -> bool {
        // Locked once for the whole range: two readers of the same range would otherwise each claim
        // some frames and, with few slots left, keep one another from the rest.
        let mut cache = self.cache.lock();
        let mut found = ArrayVec::<Lookup, PIECES_MAX>::new();
        for frame in frames.clone().filter(|&frame| !self.index.is_zero(frame)) {
            let want = self.index.frame(frame).raw_bytes.to_usize();
            let lookup = cache.look_up(frame, want, keep);
            if lookup == Lookup::Full {
                // The cache is still locked, so no reader has seen these claims and joined them.
                found.iter().for_each(|lookup| cache.undo(lookup));
                return false;
            }
            found.push(lookup);
        }
        if cache.take_growth_request() {
            self.growth.request();
        }
        let mut found = found.into_iter();
        for frame in frames {
            let Frame {
                raw_offset,
                raw_bytes,
                ..
            } = self.index.frame(frame);
            // The last frame may extend past the read: the stream will return to it.
            let spent = !keep && raw_offset + u64::from(raw_bytes) <= end;
            let pin = |slot| Pin {
                device: self,
                slot,
                spent,
            };
            let lookup = match self.index.is_zero(frame) {
                true => None,
                false => found.next(),
            };
            pieces.push(match lookup {
                None | Some(Lookup::Full) => Piece::Zero,
                Some(Lookup::Hit(slot)) => Piece::Held(pin(slot)),
                Some(Lookup::Filling(slot)) => Piece::Joined(pin(slot)),
                Some(Lookup::Claimed { slot, again }) => {
                    claims.push(Claim::new(self, slot, frame, again, spent));
                    Piece::Claimed(claims.len() - 1)
                }
            });
        }
        true
    }
}
