//! A read's way through the device.
//!
//! Three paths, all of which end in [`Device::inflate`] on some engine:
//! - one frame, without a copy: delivered as soon as the wanted bytes are out, from the slot;
//! - several frames, without a copy: claimed together, inflated as one loop, delivered together;
//! - into the caller's buffer: whole frames are inflated straight into it, past the cache (the
//!   kernel's page cache keeps them: the way in is FUSE or ublk), edges go through the cache.
//!
//! Must stay true: whoever holds a [`Claim`] fills it without waiting for another reader first;
//! `deliver` is called exactly once, whatever happens.

use super::cache::{Lookup, SlotId};
use super::inflate::After;
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

/// How long a reader that found every slot pinned waits before it looks again unasked.
const PINNED_WAIT: Duration = Duration::from_millis(1);

/// Read-ahead stops posting when so much background work waits per engine.
const AHEAD_BACKLOG_PER_ENGINE: usize = 32;

/// A pinned slot.
struct Pin<'d> {
    device: &'d Device,
    slot: SlotId,
    /// Whether this reader is done with the frame and will not come back to it.
    spent: bool,
}

/// A pinned slot that this reader must fill; failed, if it is dropped before.
struct Claim<'d> {
    /// Dropped before `pin`, so that nobody finds the slot free and its lock taken.
    bytes: Option<RwLockWriteGuard<'d, SlotBuf>>,
    pin: Pin<'d>,
    frame: u64,
    again: bool,
    /// What the engine said: bytes that are valid from the frame's beginning.
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

/// What a look-up gave, with its locks.
enum Taken<'d> {
    Held(Pin<'d>),
    Joined(Pin<'d>),
    Claimed(Claim<'d>),
}

/// A whole frame that is inflated straight into the caller's buffer.
struct Direct<'b> {
    frame: u64,
    out: &'b mut [u8],
    result: Result<usize, ReadError>,
}

impl<'d> Pin<'d> {
    fn lock(&self) -> RwLockReadGuard<'d, SlotBuf> {
        let slot = &self.device.slots[self.slot.0 as usize];
        if task::is_task() {
            // Whoever fills the slot may be a task of this very thread, parked: it must go on.
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
        // Cheap where nobody waits.
        self.device.unpinned.notify_all();
    }
}

impl Claim<'_> {
    /// Tells the cache how it went and lets readers in.
    fn publish(&mut self) {
        let mut cache = self.pin.device.cache.lock();
        match &self.result {
            Some(Ok(valid)) => cache.filled(self.pin.slot, *valid as u32),
            Some(Err(_)) | None => cache.failed(self.pin.slot),
        }
        drop(cache);
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
        let (sequential, ahead) = self.observe(offset, len);
        let first = self.index.frame_at(offset);
        let last = self.index.frame_at(offset + len as u64 - 1);
        if first == last {
            let within = (offset - self.index.frame(first).raw_offset) as usize;
            self.read_one(first, within..within + len, !sequential, begun, deliver);
        } else if last - first < PIECES_MAX as u64 {
            self.read_many(first..last + 1, offset, len, !sequential, begun, deliver);
        } else {
            self.read_buffered(offset, len, deliver);
        }
        self.post_ahead(ahead);
    }

    /// See [`BlockSource::read_into`].
    pub(super) fn read_into_buffer(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        let begun = Instant::now();
        check_range(offset, dst.len(), self.size_bytes())?;
        let mut at = offset;
        let mut rest = dst;
        while !rest.is_empty() {
            let first = self.index.frame_at(at);
            let frame = self.index.frame(first);
            let within = (at - frame.raw_offset) as usize;
            let here = (frame.raw_bytes as usize - within).min(rest.len());
            if here < frame.raw_bytes as usize {
                let (part, others) = std::mem::take(&mut rest).split_at_mut(here);
                self.copy_one(first, within, part, begun)?;
                rest = others;
                at += here as u64;
            } else {
                let (bytes, others) = self.inflate_run(first, rest, begun)?;
                rest = others;
                at += bytes as u64;
            }
        }
        Ok(())
    }

    /// Background: inflates a frame into the cache, unless it is there.
    pub(super) fn fill_ahead(&self, core: &mut Core, frame: u64) {
        if frame >= self.index.frames() || self.index.is_zero(frame) {
            return;
        }
        let want = self.index.frame(frame).raw_bytes as usize;
        if let Some(Taken::Claimed(mut claim)) = self.try_take(frame, want, false, false) {
            self.fill(core, &mut claim, Instant::now());
            if let Some(Err(error)) = &claim.result {
                self.log_damage(frame, error);
            }
        }
    }

    /// Whether the read is part of a stream, and which bytes to inflate ahead of it.
    fn observe(&self, offset: u64, len: usize) -> (bool, Range<u64>) {
        if self.read_ahead_bytes == 0 {
            return (false, 0..0);
        }
        let mut readers = self.readers.lock();
        let advice = readers.observe(offset, len as u64, self.size_bytes(), self.read_ahead_bytes);
        (advice.sequential, advice.ahead)
    }

    /// Gives whatever engines are left something to inflate ahead of a sequential reader.
    fn post_ahead(&self, ahead: Range<u64>) {
        let Some(background) = self.background.get().filter(|_| !ahead.is_empty()) else {
            return;
        };
        let first = self.index.frame_at(ahead.start);
        let last = self.index.frame_at(ahead.end - 1);
        let (start, end) = (self.index.frame(first), self.index.frame(last));
        let end = end.offset + u64::from(end.stored_bytes);
        self.advise_willneed(start.offset..end);
        // Others are reading, or every engine is busy: they keep the engines at work, and this
        // reader comes to these frames soon.
        if self.pool.ready() > 0 || self.pool.engines_idle() == 0 {
            return;
        }
        for frame in first..=last {
            let full = self.pool.backlog() >= AHEAD_BACKLOG_PER_ENGINE * self.pool.engines();
            if full || !self.pool.post(background, frame) {
                return;
            }
        }
    }

    /// Looks a frame up and takes its locks; `None` when every slot is pinned.
    fn try_take(&self, frame: u64, want: usize, keep: bool, spent: bool) -> Option<Taken<'_>> {
        let mut cache = self.cache.lock();
        let pin = |slot| Pin {
            device: self,
            slot,
            spent,
        };
        let found = cache.look_up(frame, want as u32, keep);
        if cache.take_wish() {
            self.growth.wish();
        }
        match found {
            Lookup::Hit(slot) => Some(Taken::Held(pin(slot))),
            Lookup::Filling(slot) => Some(Taken::Joined(pin(slot))),
            Lookup::Claimed { slot, again } => {
                // Under the cache's lock: nobody can find the slot filling and get in first. It was
                // unpinned, so nobody holds its lock.
                let bytes = Some(self.slots[slot.0 as usize].write());
                let pin = pin(slot);
                Some(Taken::Claimed(Claim {
                    bytes,
                    pin,
                    frame,
                    again,
                    result: None,
                }))
            }
            Lookup::Full => None,
        }
    }

    fn wait_for_unpin(&self) {
        if task::is_task() {
            // Those who hold the slots may be tasks of this very thread.
            let due_ns = task::now_ns() + PINNED_WAIT.as_nanos() as u64;
            return task::wait_for(|| (task::now_ns() >= due_ns).then_some(()));
        }
        let mut cache = self.cache.lock();
        self.unpinned.wait_for(&mut cache, PINNED_WAIT);
    }

    fn read_one(
        &self,
        frame: u64,
        range: Range<usize>,
        keep: bool,
        begun: Instant,
        deliver: &mut Deliver<'_>,
    ) {
        if self.index.is_zero(frame) {
            return deliver(Ok(&[&self.zeros[range]]));
        }
        let spent = !keep && range.end == self.index.frame(frame).raw_bytes as usize;
        loop {
            match self.try_take(frame, range.end, keep, spent) {
                None => self.wait_for_unpin(),
                Some(Taken::Held(pin)) => return deliver(Ok(&[&pin.lock()[range]])),
                Some(Taken::Joined(pin)) => {
                    let bytes = pin.lock();
                    if pin.is_ready(frame, range.end) {
                        return deliver(Ok(&[&bytes[range]]));
                    }
                    // It failed, or stopped before our bytes: look again.
                }
                Some(Taken::Claimed(claim)) => {
                    return self.fill_one(claim, range, keep, begun, deliver);
                }
            }
        }
    }

    /// Inflates a claimed frame and delivers as soon as the wanted bytes are there. What then
    /// happens with the rest: it is finished for the cache if the reader is sequential, came back
    /// to this frame, or is not alone with it; a random reader's frame is left as it is, because
    /// the next read is elsewhere and waits for this engine.
    fn fill_one(
        &self,
        mut claim: Claim<'_>,
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
            let finish = !keep || again || self.cache.lock().others_pinned(slot) > 0;
            if finish { After::Finish } else { After::Leave }
        };
        if let Some(bytes) = claim.bytes.as_mut() {
            let result = self
                .pool
                .call(|core| self.inflate(core, frame, bytes, range.end, claimed, &mut on_wanted));
            claim.result = Some(result);
        }
        claim.publish();
        if let Some(Err(error)) = &claim.result {
            self.log_damage(frame, error);
            if !delivered {
                deliver(Err(error));
            }
        }
    }

    fn read_many(
        &self,
        frames: Range<u64>,
        offset: u64,
        len: usize,
        keep: bool,
        begun: Instant,
        deliver: &mut Deliver<'_>,
    ) {
        let mut pieces = ArrayVec::<Piece<'_>, PIECES_MAX>::new();
        let mut claims = ArrayVec::<Claim<'_>, PIECES_MAX>::new();
        while !self.take_all(
            frames.clone(),
            offset + len as u64,
            keep,
            &mut pieces,
            &mut claims,
        ) {
            // All or nothing: whoever waits for slots holds none.
            pieces.clear();
            claims.clear();
            self.wait_for_unpin();
        }
        let claimed = Instant::now();
        self.stages.record(
            Stage::SetUp,
            nanos(claimed - begun) / (frames.end - frames.start),
        );
        let filled = self
            .pool
            .for_each(INFLATE_CLASS, &mut claims, |core, claim| {
                self.fill(core, claim, claimed)
            });
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
            return deliver(Err(&error));
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
                // The one who was inflating it failed or stopped early: start over, by ourselves.
                drop(guard);
                guards.clear();
                return self.read_buffered(offset, len, deliver);
            }
            guards.push(Some(guard));
        }
        let mut slices = ArrayVec::<&[u8], PIECES_MAX>::new();
        let end = offset + len as u64;
        for (guard, frame) in guards.iter().zip(frames) {
            let frame = self.index.frame(frame);
            let from = offset.saturating_sub(frame.raw_offset) as usize;
            let to = (end - frame.raw_offset).min(u64::from(frame.raw_bytes)) as usize;
            let bytes: &[u8] = guard.as_ref().map_or(&self.zeros, |guard| guard);
            slices.push(&bytes[from..to]);
        }
        deliver(Ok(&slices));
    }

    /// Takes every frame of a range, for a read that stops at byte `end`; false when slots ran out.
    fn take_all<'d>(
        &'d self,
        frames: Range<u64>,
        end: u64,
        keep: bool,
        pieces: &mut ArrayVec<Piece<'d>, PIECES_MAX>,
        claims: &mut ArrayVec<Claim<'d>, PIECES_MAX>,
    ) -> bool {
        for frame in frames {
            if self.index.is_zero(frame) {
                pieces.push(Piece::Zero);
                continue;
            }
            let Frame {
                raw_offset,
                raw_bytes: want,
                ..
            } = self.index.frame(frame);
            let spent = !keep && raw_offset + u64::from(want) <= end;
            pieces.push(match self.try_take(frame, want as usize, keep, spent) {
                None => return false,
                Some(Taken::Held(pin)) => Piece::Held(pin),
                Some(Taken::Joined(pin)) => Piece::Joined(pin),
                Some(Taken::Claimed(claim)) => {
                    claims.push(claim);
                    Piece::Claimed(claims.len() - 1)
                }
            });
        }
        true
    }

    /// Inflates the whole of a claimed frame; the claim keeps the result.
    fn fill(&self, core: &mut Core, claim: &mut Claim<'_>, claimed: Instant) {
        let whole = self.index.frame(claim.frame).raw_bytes as usize;
        if let Some(bytes) = claim.bytes.as_mut() {
            let finish = &mut |_: &[u8]| After::Finish;
            claim.result = Some(self.inflate(core, claim.frame, bytes, whole, claimed, finish));
        }
    }

    /// A read that is served through a buffer of its own: more frames than fit one delivery, or a
    /// frame that another reader failed to inflate.
    fn read_buffered(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        let mut buffer = vec![0; len];
        match self.read_into_buffer(offset, &mut buffer) {
            Ok(()) => deliver(Ok(&[&buffer])),
            Err(error) => deliver(Err(&error)),
        }
    }

    /// Copies a part of one frame, through the cache.
    fn copy_one(
        &self,
        frame: u64,
        within: usize,
        dst: &mut [u8],
        begun: Instant,
    ) -> Result<(), ReadError> {
        let mut result = Ok(());
        let range = within..within + dst.len();
        self.read_one(frame, range, true, begun, &mut |bytes| match bytes {
            Ok(pieces) => dst.copy_from_slice(pieces[0]),
            Err(error) => result = Err(error.clone()),
        });
        result
    }

    /// Fills as many whole frames of `dst` as one loop takes, beginning with frame `first`. Returns
    /// how many bytes that were, and what is left of `dst`.
    fn inflate_run<'b>(
        &self,
        first: u64,
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
                direct.result =
                    self.inflate(core, direct.frame, direct.out, whole, claimed, finish);
            });
        for direct in direct {
            let result = match direct.result {
                Ok(0) => Err(unfilled(direct.frame, &filled)),
                other => other,
            };
            if let Err(error) = result {
                self.log_damage(direct.frame, &error);
                return Err(error);
            }
        }
        for (frame, out) in cached {
            self.copy_one(frame, 0, out, begun)?;
        }
        Ok((bytes, rest))
    }
}

/// Why a frame was never begun: another of the same loop panicked.
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
