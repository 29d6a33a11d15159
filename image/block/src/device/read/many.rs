//! Reads of several frames: delivered together from their slots, or through a buffer.

use super::super::inflate::{After, Out};
use super::super::stages::{Stage, nanos};
use super::super::{Device, INFLATE_CLASS, PIECES_MAX};
use super::Read;
use super::claims::{Claim, Piece};
use crate::source::{Deliver, ReadError};
use crate::tracks;
use arrayvec::ArrayVec;
use parking_lot::RwLockReadGuard;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_engine::Core;
use sidecore_offload::OffloadError;
use sidecore_sys::SlotBuf;
use sidecore_trace as trace;
use std::ops::Range;
use std::time::Instant;

/// A whole frame that is decompressed straight into the caller's buffer.
struct Direct<'b> {
    frame: u64,
    out: &'b mut [u8],
    result: Result<usize, ReadError>,
}

impl Device {
    /// Several frames, delivered together from their slots. False, with nothing delivered or held,
    /// when slots ran out or a frame that was joined failed: the read then has to go past the
    /// cache.
    pub(super) fn read_many(
        &self,
        read: Read<'_>,
        frames: Range<u64>,
        bytes: Range<u64>,
        deliver: &mut Deliver<'_>,
    ) -> bool {
        let mut pieces = ArrayVec::<Piece<'_>, PIECES_MAX>::new();
        let mut claims = ArrayVec::<Claim<'_>, PIECES_MAX>::new();
        if !self.take_all(
            frames.clone(),
            bytes.end,
            read.keep,
            &mut pieces,
            &mut claims,
        ) {
            return false;
        }
        let (found, missing) = (pieces.len().to_u64(), claims.len().to_u64());
        trace::instant(&tracks::LOOK_UP, found, missing);
        if let Err((frame, error)) = self.fill_all(read, frames.end - frames.start, &mut claims) {
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
            let wait = match piece {
                Piece::Joined(_) => Some(trace::span(&tracks::JOIN, frame, 0)),
                _ => None,
            };
            let guard = pin.lock();
            drop(wait);
            let whole = self.index.frame(frame).raw_bytes.to_usize();
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
            let from = bytes.start.saturating_sub(frame.raw_offset);
            let to = (bytes.end - frame.raw_offset).min(frame.raw_bytes.into());
            // The zeros are as long as the longest frame.
            let bytes: &[u8] = guard.as_ref().map_or(&self.zeros, |guard| guard);
            slices.push(&bytes[from.to_usize()..to.to_usize()]);
        }
        let _deliver = trace::span(&tracks::DELIVER, bytes.end - bytes.start, 0);
        deliver(Ok(&slices));
        true
    }

    /// Decompresses the claimed frames of a read of `frames`, as one loop; all readers that joined
    /// them are admitted then.
    ///
    /// # Errors
    /// A frame that failed, and why.
    fn fill_all(
        &self,
        read: Read<'_>,
        frames: u64,
        claims: &mut [Claim<'_>],
    ) -> Result<(), (u64, ReadError)> {
        let claimed = Instant::now();
        self.stages
            .record(Stage::SetUp, nanos(claimed - read.begun) / frames);
        flows(claims.iter().map(|claim| claim.frame));
        let filled = self.pool.for_each(INFLATE_CLASS, claims, |core, claim| {
            self.fill(read, core, claim, claimed)
        });
        // All claims are filled before the caller's first lock: otherwise two readers that each
        // joined a frame of the other's would wait for one another.
        for claim in &mut *claims {
            claim.publish();
        }
        let failed = claims.iter().find_map(|claim| match &claim.result {
            Some(Err(error)) => Some((claim.frame, error.clone())),
            Some(Ok(_)) => None,
            None => Some((claim.frame, unfilled(claim.frame, &filled))),
        });
        failed.map_or(Ok(()), Err)
    }

    /// Decompresses the whole of a claimed frame; the claim keeps the result.
    pub(super) fn fill(
        &self,
        read: Read<'_>,
        core: &mut Core,
        claim: &mut Claim<'_>,
        claimed: Instant,
    ) {
        let whole = self.index.frame(claim.frame).raw_bytes.to_usize();
        if let Some(bytes) = claim.bytes.as_mut() {
            let finish = &mut |_: &[u8]| After::Finish;
            let (out, stored) = (Out::Here(bytes), read.fetched.of(claim.frame));
            let result = self.inflate(core, (claim.frame, stored), out, whole, claimed, finish);
            claim.result = Some(result);
        }
    }

    /// A read that is served through a buffer of its own: more frames than fit one delivery, more
    /// than there are slots, or a frame that another reader failed to decompress. The caller holds
    /// no pins.
    pub(super) fn read_buffered(
        &self,
        read: Read<'_>,
        offset: u64,
        len: usize,
        deliver: &mut Deliver<'_>,
    ) {
        let mut buffer = vec![0; len];
        match self.inflate_into(read, offset, &mut buffer) {
            Ok(()) => deliver(Ok(&[&buffer])),
            Err(error) => deliver(Err(&error)),
        }
    }

    /// Fills `dst` with the contents from `offset`, a range inside the device whose frames were
    /// fetched.
    pub(super) fn inflate_into(
        &self,
        read: Read<'_>,
        offset: u64,
        dst: &mut [u8],
    ) -> Result<(), ReadError> {
        // Edges are likely to be read again, whatever the read is a part of; see below.
        let edges = Read { keep: true, ..read };
        let mut at = offset;
        let mut rest = dst;
        while !rest.is_empty() {
            let first = self.index.frame_at(at);
            let frame = self.index.frame(first);
            let frame_bytes = frame.raw_bytes.to_usize();
            let within = (at - frame.raw_offset).to_usize();
            let here = (frame_bytes - within).min(rest.len());
            // The neighbouring read probably needs the other part of an edge frame, so edges are
            // cached. Whole frames are kept by the kernel's page cache; the device need not keep
            // them too.
            if here < frame_bytes {
                let (part, others) = std::mem::take(&mut rest).split_at_mut(here);
                self.copy_one(edges, first, within, part)?;
                rest = others;
                at += here.to_u64();
            } else {
                let (bytes, others) = self.inflate_run(edges, first, rest)?;
                rest = others;
                at += bytes.to_u64();
            }
        }
        Ok(())
    }

    /// Fills as many whole frames of `dst` as one loop takes, beginning with frame `first`. Returns
    /// how many bytes that were, and what is left of `dst`.
    fn inflate_run<'b>(
        &self,
        read: Read<'_>,
        first: u64,
        dst: &'b mut [u8],
    ) -> Result<(usize, &'b mut [u8]), ReadError> {
        let len = dst.len();
        let mut direct = ArrayVec::<Direct<'b>, PIECES_MAX>::new();
        let mut cached = ArrayVec::<(u64, &'b mut [u8]), PIECES_MAX>::new();
        let rest = self.split_run(first, dst, &mut direct, &mut cached);
        let claimed = Instant::now();
        let frames = (direct.len() + cached.len()).max(1).to_u64();
        self.stages
            .record(Stage::SetUp, nanos(claimed - read.begun) / frames);
        flows(direct.iter().map(|direct| direct.frame));
        let filled = self
            .pool
            .for_each(INFLATE_CLASS, &mut direct, |core, direct| {
                let whole = direct.out.len();
                let finish = &mut |_: &[u8]| After::Finish;
                let (out, frame) = (Out::Here(direct.out), direct.frame);
                let stored = read.fetched.of(frame);
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
            self.copy_one(read, frame, 0, out)?;
        }
        Ok((len - rest.len(), rest))
    }

    /// Splits whole frames off `dst`, from frame `first` on: those to decompress, and those that
    /// are cached. Frames of zeros are filled at once. Returns what is left of `dst`.
    fn split_run<'b>(
        &self,
        first: u64,
        dst: &'b mut [u8],
        direct: &mut ArrayVec<Direct<'b>, PIECES_MAX>,
        cached: &mut ArrayVec<(u64, &'b mut [u8]), PIECES_MAX>,
    ) -> &'b mut [u8] {
        let mut rest = dst;
        for frame in (first..self.index.frames()).take(PIECES_MAX) {
            let len = self.index.frame(frame).raw_bytes.to_usize();
            if len > rest.len() {
                break;
            }
            let (out, others) = std::mem::take(&mut rest).split_at_mut(len);
            rest = others;
            if self.index.is_zero(frame) {
                out.fill(0);
            } else if self.cache.lock().contains(frame) {
                // A copy is cheaper than decompressing. Not pinned now: a pin held across the loop
                // of the others would be missing to other readers.
                cached.push((frame, out));
            } else {
                direct.push(Direct {
                    frame,
                    out,
                    result: Ok(0),
                });
            }
        }
        rest
    }
}

/// Records that these frames are asked for.
#[inline]
fn flows(frames: impl Iterator<Item = u64>) {
    if trace::is_on() {
        frames.for_each(|frame| trace::flow_from(&tracks::FRAME, frame));
    }
}

/// The error of a frame that was never started: another frame of the same loop panicked.
fn unfilled(frame: u64, loop_result: &Result<(), OffloadError>) -> ReadError {
    let reason = match loop_result {
        Ok(()) => "it was not inflated".to_owned(),
        Err(error) => error.to_string(),
    };
    ReadError::BadFrame { frame, reason }
}
