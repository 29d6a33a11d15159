//! The read path of the device.
//!
//! Three paths, all of which end in [`Device::inflate`] on some engine:
//! - one frame, without a copy: delivered from the slot as soon as the wanted bytes are
//!   decompressed;
//! - several frames, without a copy: claimed together, decompressed as one loop, delivered
//!   together;
//! - into the caller's buffer: whole frames are decompressed straight into it, past the cache (the
//!   kernel's page cache keeps them: the export is FUSE or ublk); edges go through the cache.
//!
//! **No reader waits for a slot.** A reader that finds every slot pinned decompresses past the
//! cache: whole frames into a buffer of the read's own, a part of a frame into the engine's spare
//! frame. Readers release pins, and the waiting reader may itself be one of them. Waiting for pins
//! would need an order among readers that nothing enforces.
//!
//! Must stay true: the owner of a [`Claim`] waits only for an engine until the claim is filled, and
//! the holder of an engine waits for nothing of the device's. So each chain of waits ends at a
//! thread that decompresses. `deliver` is called exactly once, whatever happens.

use super::brought::Brought;
use super::cache::{Lookup, SlotId};
use super::inflate::{After, Out};
use super::stages::Stage;
use super::{Device, INFLATE_CLASS, PIECES_MAX};
use crate::format::Frame;
use crate::source::{BlockSource, Deliver, ReadError, check_range};
use arrayvec::ArrayVec;
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};
use sidecore_engine::Core;
use sidecore_offload::task;
use sidecore_sys::SlotBuf;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Failed fills by others that a reader joins before it decompresses the frame itself, past the
/// cache.
const JOINS_MAX: usize = 4;

/// Read-ahead is posted only up to this many waiting items per engine.
const AHEAD_BACKLOG_PER_ENGINE: usize = 32;

/// A pinned slot.
struct Pin<'d> {
    device: &'d Device,
    slot: SlotId,
    /// True when this reader is done with the frame and will not return to it.
    spent: bool,
}

/// A pinned slot that this reader must fill; failed, if it is dropped before.
struct Claim<'d> {
    /// Dropped before `pin`, so that no look-up finds the slot free and its lock taken.
    bytes: Option<RwLockWriteGuard<'d, SlotBuf>>,
    pin: Pin<'d>,
    frame: u64,
    again: bool,
    /// The cache already knows that only the frame's beginning will come; see [`Cache::leave`].
    left: bool,
    /// Result of decompressing: bytes that are valid from the frame's beginning.
    result: Option<Result<usize, ReadError>>,
}

/// One frame of a read.
enum Piece<'d> {
    Zero,
    Held(Pin<'d>),
    Joined(Pin<'d>),
    /// Index in the list of claims.
    Claimed(usize),
}

/// Result of a look-up, with its locks.
enum Taken<'d> {
    Held(Pin<'d>),
    Joined(Pin<'d>),
    Claimed(Claim<'d>),
}

/// A whole frame that is decompressed straight into the caller's buffer.
struct Direct<'b> {
    frame: u64,
    out: &'b mut [u8],
    result: Result<usize, ReadError>,
}

impl<'d> Pin<'d> {
    fn lock(&self) -> RwLockReadGuard<'d, SlotBuf> {
        let slot = &self.device.slots[self.slot.0 as usize];
        if task::is_task() {
            // The filler of the slot may be a task of this very thread, parked: it must continue.
            return task::wait_for(|| slot.try_read());
        }
        slot.read()
    }

    fn is_ready(&self, frame: u64, want: usize) -> bool {
        self.device
            .cache
            .lock()
            .is_ready(self.slot, frame, want as u32)
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.device.cache.lock().unpin(self.slot, self.spent);
    }
}

impl<'d> Claim<'d> {
    /// The claim of a slot that the cache has just given to `frame`.
    ///
    /// To be called before the cache is unlocked: no other reader can then find the slot filling
    /// and take its lock first. The slot was unpinned, so no reader holds that lock.
    fn new(device: &'d Device, slot: SlotId, frame: u64, again: bool, spent: bool) -> Self {
        Self {
            bytes: Some(device.slots[slot.0 as usize].write()),
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
    fn publish(&mut self) {
        if !self.left {
            let mut cache = self.pin.device.cache.lock();
            match &self.result {
                Some(Ok(valid)) => cache.filled(self.pin.slot, *valid as u32),
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
    /// See [`BlockSource::read_with`].
    pub(super) fn read_in_pieces(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        let begun = Instant::now();
        if let Err(error) = check_range(offset, len, self.size_bytes()) {
            return deliver(Err(&error));
        }
        if len == 0 {
            return deliver(Ok(&[]));
        }
        // Before the read, which may take long: the stream must be known when its next request
        // arrives.
        let (sequential, ahead) = self.observe(offset, len);
        let first = self.index.frame_at(offset);
        let last = self.index.frame_at(offset + len as u64 - 1);
        let brought = match self.bring(first..last + 1, &ahead) {
            Ok(brought) => brought,
            Err(error) => return deliver(Err(&error)),
        };
        if first == last {
            let within = (offset - self.index.frame(first).raw_offset) as usize;
            let range = within..within + len;
            self.read_one(first, &brought, range, !sequential, begun, deliver);
        } else if last - first < PIECES_MAX as u64 {
            let frames = first..last + 1;
            // All its pins and claims are released when it returns; the buffered read takes slots
            // itself and must not wait for this very reader.
            let keep = !sequential;
            let bytes = offset..offset + len as u64;
            if !self.read_many(frames, &brought, bytes, keep, begun, deliver) {
                self.read_buffered(&brought, offset, len, deliver);
            }
        } else {
            self.read_buffered(&brought, offset, len, deliver);
        }
        // After the delivery: the reader has its bytes, and its engine is idle again.
        self.post_ahead(ahead);
    }

    /// See [`BlockSource::read_into`].
    pub(super) fn read_into_buffer(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        check_range(offset, dst.len(), self.size_bytes())?;
        if dst.is_empty() {
            return Ok(());
        }
        let first = self.index.frame_at(offset);
        let last = self.index.frame_at(offset + dst.len() as u64 - 1);
        // All at once: separate fetches of the edges and the middle would take a round trip each.
        let brought = self.bring(first..last + 1, &(0..0))?;
        self.inflate_into(&brought, offset, dst)
    }

    /// As [`Self::read_into_buffer`], of a range inside the device whose frames were fetched.
    fn inflate_into(
        &self,
        brought: &Brought,
        offset: u64,
        dst: &mut [u8],
    ) -> Result<(), ReadError> {
        let begun = Instant::now();
        let mut at = offset;
        let mut rest = dst;
        while !rest.is_empty() {
            let first = self.index.frame_at(at);
            let frame = self.index.frame(first);
            let within = (at - frame.raw_offset) as usize;
            let here = (frame.raw_bytes as usize - within).min(rest.len());
            // The neighbouring read probably needs the other part of an edge frame, so edges are
            // cached. Whole frames are kept by the kernel's page cache; the device need not keep
            // them too.
            if here < frame.raw_bytes as usize {
                let (part, others) = std::mem::take(&mut rest).split_at_mut(here);
                self.copy_one(first, brought, within, part, begun)?;
                rest = others;
                at += here as u64;
            } else {
                let (bytes, others) = self.inflate_run(first, brought, rest, begun)?;
                rest = others;
                at += bytes as u64;
            }
        }
        Ok(())
    }

    /// Background: decompresses a frame into the cache, unless it is there.
    pub(super) fn fill_ahead(&self, core: &mut Core, frame: u64) {
        if frame >= self.index.frames() || self.index.is_zero(frame) {
            return;
        }
        let want = self.index.frame(frame).raw_bytes as usize;
        // Without `keep`: if no reader comes for the frame, it must not displace frames in use.
        // With a full cache the work is dropped, for the result could not be kept.
        if let Some(Taken::Claimed(mut claim)) = self.try_take(frame, want, false, false) {
            self.fill(core, &mut claim, &Brought::default(), Instant::now());
            if let Some(Err(error)) = &claim.result {
                self.log_damage(frame, error);
            }
        }
    }

    /// Returns true when the read is part of a stream, and the bytes to decompress ahead of it.
    fn observe(&self, offset: u64, len: usize) -> (bool, Range<u64>) {
        // Off, for local and remote images alike.
        if self.read_ahead_bytes == 0 {
            return (false, 0..0);
        }
        let window = self.read_ahead_window();
        let mut readers = self.readers.lock();
        let advice = readers.observe(offset, len as u64, self.size_bytes(), window);
        (advice.sequential, advice.ahead)
    }

    /// Posts read-ahead for a sequential reader to the engines that are left over.
    fn post_ahead(&self, ahead: Range<u64>) {
        // Frames of a remote image are already in flight; an engine would only wait for them.
        if self.image.far().is_some() {
            return;
        }
        let Some(background) = self.background.get().filter(|_| !ahead.is_empty()) else {
            return;
        };
        let first = self.index.frame_at(ahead.start);
        let last = self.index.frame_at(ahead.end - 1);
        let mut stored = self.index.stored_in(first..last + 1);
        let Some(first) = stored.next() else {
            return;
        };
        let last = stored.last().unwrap_or(first);
        let (start, end) = (self.index.frame(first), self.index.frame(last));
        let end = end.offset + u64::from(end.stored_bytes);
        // The disk read can begin even if no engine is free.
        self.advise_willneed(start.offset..end);
        // Others are reading, or every engine is busy: they keep the engines at work, and this
        // reader comes to these frames soon.
        if self.pool.ready() > 0 || self.pool.engines_idle() == 0 {
            return;
        }
        for frame in self.index.stored_in(first..last + 1) {
            // Read-ahead that waits too long would be done after the reader has passed.
            let full = self.pool.backlog() >= AHEAD_BACKLOG_PER_ENGINE * self.pool.engines();
            if full || !self.pool.post(background, frame) {
                return;
            }
        }
    }

    /// Looks a frame up and takes its locks; `None` when every slot is pinned.
    fn try_take(&self, frame: u64, want: usize, keep: bool, spent: bool) -> Option<Taken<'_>> {
        let mut cache = self.cache.lock();
        let found = cache.look_up(frame, want as u32, keep);
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

    fn read_one(
        &self,
        frame: u64,
        brought: &Brought,
        range: Range<usize>,
        keep: bool,
        begun: Instant,
        deliver: &mut Deliver<'_>,
    ) {
        if self.index.is_zero(frame) {
            return deliver(Ok(&[&self.zeros[range]]));
        }
        // A stream reads a frame in pieces; only the piece that ends it is done with it.
        let spent = !keep && range.end == self.index.frame(frame).raw_bytes as usize;
        for _ in 0..JOINS_MAX {
            match self.try_take(frame, range.end, keep, spent) {
                None => break,
                Some(Taken::Held(pin)) => return deliver(Ok(&[&pin.lock()[range]])),
                Some(Taken::Joined(pin)) => {
                    // Waits for the filler of the frame, which holds this lock for writing.
                    let bytes = pin.lock();
                    if pin.is_ready(frame, range.end) {
                        return deliver(Ok(&[&bytes[range]]));
                    }
                    // The filler failed: look up again, another fill may succeed.
                }
                Some(Taken::Claimed(claim)) => {
                    return self.fill_one(claim, brought, range, keep, begun, deliver);
                }
            }
        }
        self.read_aside(frame, brought, range, begun, deliver);
    }

    /// Decompresses a frame in the engine's spare frame, past the cache, and delivers from there.
    fn read_aside(
        &self,
        frame: u64,
        brought: &Brought,
        range: Range<usize>,
        begun: Instant,
        deliver: &mut Deliver<'_>,
    ) {
        let claimed = Instant::now();
        self.stages.record(Stage::SetUp, nanos(claimed - begun));
        let (want, mut delivered) = (range.end, false);
        let mut on_wanted = |wanted: &[u8]| {
            deliver(Ok(&[&wanted[range.clone()]]));
            delivered = true;
            // No other reader can see the spare frame, so the rest of the frame is not needed.
            After::Leave
        };
        let result = self.pool.call(|core| {
            let stored = brought.of(frame);
            self.inflate(
                core,
                (frame, stored),
                Out::Spare,
                want,
                claimed,
                &mut on_wanted,
            )
        });
        if let Err(error) = result {
            self.log_damage(frame, &error);
            // The reader's bytes may have been sound and only the frame's rest damaged.
            if !delivered {
                deliver(Err(&error));
            }
        }
    }

    /// Decompresses a claimed frame and delivers as soon as the wanted bytes are there. The rest is
    /// finished for the cache if the reader is sequential, has returned to this frame, or is not
    /// the only one. A random reader's frame is left there, because the next read is elsewhere and
    /// waits for this engine.
    fn fill_one(
        &self,
        mut claim: Claim<'_>,
        brought: &Brought,
        range: Range<usize>,
        keep: bool,
        begun: Instant,
        deliver: &mut Deliver<'_>,
    ) {
        let claimed = Instant::now();
        self.stages.record(Stage::SetUp, nanos(claimed - begun));
        let mut delivered = false;
        let (frame, slot, again) = (claim.frame, claim.pin.slot, claim.again);
        let mut on_wanted = |wanted: &[u8]| {
            deliver(Ok(&[&wanted[range.clone()]]));
            delivered = true;
            // The compressed bytes of a remote image are here now; they may be gone when the rest
            // is wanted.
            if !keep || again || self.image.far().is_some() {
                return After::Finish;
            }
            // One atomic step: a reader that joins later sees how much is valid, and one that
            // joined before gets the whole frame.
            claim.left = self.cache.lock().leave(slot, wanted.len() as u32);
            if claim.left {
                After::Leave
            } else {
                After::Finish
            }
        };
        if let Some(bytes) = claim.bytes.as_mut() {
            let result = self.pool.call(|core| {
                let (out, stored) = (Out::Here(bytes), brought.of(frame));
                self.inflate(
                    core,
                    (frame, stored),
                    out,
                    range.end,
                    claimed,
                    &mut on_wanted,
                )
            });
            claim.result = Some(result);
        }
        // Now, not at the end of the scope: readers that joined should not wait for our logging.
        claim.publish();
        if let Some(Err(error)) = &claim.result {
            self.log_damage(frame, error);
            if !delivered {
                deliver(Err(error));
            }
        }
    }

    /// Several frames, delivered together from their slots. False, with nothing delivered or held,
    /// when slots ran out or a frame that was joined failed: the read then has to go past the
    /// cache.
    fn read_many(
        &self,
        frames: Range<u64>,
        brought: &Brought,
        bytes: Range<u64>,
        keep: bool,
        begun: Instant,
        deliver: &mut Deliver<'_>,
    ) -> bool {
        let mut pieces = ArrayVec::<Piece<'_>, PIECES_MAX>::new();
        let mut claims = ArrayVec::<Claim<'_>, PIECES_MAX>::new();
        let Range { start: offset, end } = bytes;
        if !self.take_all(frames.clone(), end, keep, &mut pieces, &mut claims) {
            return false;
        }
        let claimed = Instant::now();
        self.stages.record(
            Stage::SetUp,
            nanos(claimed - begun) / (frames.end - frames.start),
        );
        let filled = self
            .pool
            .for_each(INFLATE_CLASS, &mut claims, |core, claim| {
                self.fill(core, claim, brought, claimed)
            });
        // All claims are filled before the first lock below: otherwise two readers that each joined
        // a frame of the other's would wait for one another.
        for claim in &mut claims {
            claim.publish();
        }
        let failed = claims.iter().find_map(|claim| match &claim.result {
            Some(Err(error)) => Some((claim.frame, error.clone())),
            Some(Ok(_)) => None,
            None => Some((claim.frame, unfilled(claim.frame, &filled))),
        });
        if let Some((frame, error)) = failed {
            self.log_damage(frame, &error);
            deliver(Err(&error));
            return true;
        }
        let mut guards = ArrayVec::<Option<RwLockReadGuard<'_, SlotBuf>>, PIECES_MAX>::new();
        for (piece, frame) in pieces.iter().zip(frames.clone()) {
            let pin = match piece {
                Piece::Zero => {
                    guards.push(None);
                    continue;
                }
                Piece::Held(pin) | Piece::Joined(pin) => pin,
                Piece::Claimed(index) => &claims[*index].pin,
            };
            let guard = pin.lock();
            let whole = self.index.frame(frame).raw_bytes as usize;
            if matches!(piece, Piece::Joined(_)) && !pin.is_ready(frame, whole) {
                // The reader that was decompressing it failed. Our pins are released before we
                // start over: they may be all the slots there are.
                return false;
            }
            guards.push(Some(guard));
        }
        let mut slices = ArrayVec::<&[u8], PIECES_MAX>::new();
        for (guard, frame) in guards.iter().zip(frames) {
            let frame = self.index.frame(frame);
            let from = offset.saturating_sub(frame.raw_offset) as usize;
            let to = (end - frame.raw_offset).min(u64::from(frame.raw_bytes)) as usize;
            // The zeros are as long as the longest frame.
            let bytes: &[u8] = guard.as_ref().map_or(&self.zeros, |guard| guard);
            slices.push(&bytes[from..to]);
        }
        deliver(Ok(&slices));
        true
    }

    /// Takes every frame of a range, for a read that stops at byte `end`, in one step; false, with
    /// nothing taken, when slots ran out.
    fn take_all<'d>(
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
            let want = self.index.frame(frame).raw_bytes;
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

    /// Decompresses the whole of a claimed frame; the claim keeps the result.
    fn fill(&self, core: &mut Core, claim: &mut Claim<'_>, brought: &Brought, claimed: Instant) {
        let whole = self.index.frame(claim.frame).raw_bytes as usize;
        if let Some(bytes) = claim.bytes.as_mut() {
            let finish = &mut |_: &[u8]| After::Finish;
            let (out, stored) = (Out::Here(bytes), brought.of(claim.frame));
            let result = self.inflate(core, (claim.frame, stored), out, whole, claimed, finish);
            claim.result = Some(result);
        }
    }

    /// A read that is served through a buffer of its own: more frames than fit one delivery, more
    /// than there are slots, or a frame that another reader failed to decompress. The caller holds
    /// no pins.
    fn read_buffered(&self, brought: &Brought, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        let mut buffer = vec![0; len];
        match self.inflate_into(brought, offset, &mut buffer) {
            Ok(()) => deliver(Ok(&[&buffer])),
            Err(error) => deliver(Err(&error)),
        }
    }

    /// Copies a part of one frame, through the cache.
    fn copy_one(
        &self,
        frame: u64,
        brought: &Brought,
        within: usize,
        dst: &mut [u8],
        begun: Instant,
    ) -> Result<(), ReadError> {
        let mut result = Ok(());
        let range = within..within + dst.len();
        self.read_one(
            frame,
            brought,
            range,
            true,
            begun,
            &mut |bytes| match bytes {
                Ok(pieces) => dst.copy_from_slice(pieces[0]),
                Err(error) => result = Err(error.clone()),
            },
        );
        result
    }

    /// Fills as many whole frames of `dst` as one loop takes, beginning with frame `first`. Returns
    /// how many bytes that were, and what is left of `dst`.
    fn inflate_run<'b>(
        &self,
        first: u64,
        brought: &Brought,
        dst: &'b mut [u8],
        begun: Instant,
    ) -> Result<(usize, &'b mut [u8]), ReadError> {
        let mut rest = dst;
        let mut bytes = 0;
        let mut direct = ArrayVec::<Direct<'b>, PIECES_MAX>::new();
        let mut cached = ArrayVec::<(u64, &'b mut [u8]), PIECES_MAX>::new();
        for frame in (first..self.index.frames()).take(PIECES_MAX) {
            let len = self.index.frame(frame).raw_bytes as usize;
            if len > rest.len() {
                break;
            }
            let (out, others) = std::mem::take(&mut rest).split_at_mut(len);
            rest = others;
            bytes += len;
            if self.index.is_zero(frame) {
                out.fill(0);
            } else if self.cache.lock().contains(frame) {
                // A copy is cheaper than decompressing. Not pinned now: a pin held across the loop
                // below would be missing to other readers.
                cached.push((frame, out));
            } else {
                direct.push(Direct {
                    frame,
                    out,
                    result: Ok(0),
                });
            }
        }
        let claimed = Instant::now();
        let frames = (direct.len() + cached.len()).max(1) as u64;
        self.stages
            .record(Stage::SetUp, nanos(claimed - begun) / frames);
        let filled = self
            .pool
            .for_each(INFLATE_CLASS, &mut direct, |core, direct| {
                let whole = direct.out.len();
                let finish = &mut |_: &[u8]| After::Finish;
                let (out, frame) = (Out::Here(direct.out), direct.frame);
                let stored = brought.of(frame);
                direct.result = self.inflate(core, (frame, stored), out, whole, claimed, finish);
            });
        for direct in direct {
            let result = match direct.result {
                // No frame is empty: this one was never started.
                Ok(0) => Err(unfilled(direct.frame, &filled)),
                other => other,
            };
            if let Err(error) = result {
                self.log_damage(direct.frame, &error);
                return Err(error);
            }
        }
        // It may have been evicted meanwhile; then this decompresses it after all.
        for (frame, out) in cached {
            self.copy_one(frame, brought, 0, out, begun)?;
        }
        Ok((bytes, rest))
    }
}

/// The error of a frame that was never started: another frame of the same loop panicked.
fn unfilled(frame: u64, loop_result: &Result<(), sidecore_offload::OffloadError>) -> ReadError {
    let reason = match loop_result {
        Ok(()) => "it was not inflated".to_owned(),
        Err(error) => error.to_string(),
    };
    ReadError::BadFrame { frame, reason }
}

fn nanos(duration: Duration) -> u64 {
    duration.as_nanos() as u64
}
