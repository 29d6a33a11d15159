//! Reads of one frame, through the cache or, where every slot is pinned, past it.

use super::super::Device;
use super::super::inflate::{After, Out};
use super::super::stages::{Stage, nanos};
use super::Read;
use super::claims::{Claim, Taken};
use crate::source::{Deliver, ReadError};
use crate::tracks;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_trace as trace;
use std::ops::Range;
use std::time::Instant;

/// Failed fills by others that a reader joins before it decompresses the frame itself, past the
/// cache.
const JOINS_MAX: usize = 4;

impl Device {
    /// Delivers the bytes `range` of a frame.
    pub(super) fn read_one(
        &self,
        read: Read<'_>,
        frame: u64,
        range: Range<usize>,
        deliver: &mut Deliver<'_>,
    ) {
        if self.index.is_zero(frame) {
            return deliver(Ok(&[&self.zeros[range]]));
        }
        // A stream reads a frame in pieces; only the piece that ends it is done with it.
        let spent = !read.keep && range.end == self.index.frame(frame).raw_bytes.to_usize();
        for _ in 0..JOINS_MAX {
            match self.try_take(frame, range.end, read.keep, spent) {
                None => break,
                Some(Taken::Held(pin)) => {
                    trace::instant(&tracks::HIT, frame, 0);
                    let _deliver = trace::span(&tracks::DELIVER, range.len().to_u64(), 0);
                    return deliver(Ok(&[&pin.lock()[range]]));
                }
                Some(Taken::Joined(pin)) => {
                    // Waits for the filler of the frame, which holds this lock for writing.
                    let wait = trace::span(&tracks::JOIN, frame, 0);
                    let bytes = pin.lock();
                    drop(wait);
                    if pin.is_ready(frame, range.end) {
                        return deliver(Ok(&[&bytes[range]]));
                    }
                    // The filler failed: look up again, another fill may succeed.
                }
                Some(Taken::Claimed(claim)) => {
                    trace::instant(&tracks::MISS, frame, 0);
                    return self.fill_one(read, claim, range, deliver);
                }
            }
        }
        self.read_aside(read, frame, range, deliver);
    }

    /// Decompresses a frame in the engine's spare frame, past the cache, and delivers from there.
    fn read_aside(
        &self,
        read: Read<'_>,
        frame: u64,
        range: Range<usize>,
        deliver: &mut Deliver<'_>,
    ) {
        let claimed = Instant::now();
        self.stages
            .record(Stage::SetUp, nanos(claimed - read.begun));
        trace::flow_from(&tracks::FRAME, frame);
        let (want, mut delivered) = (range.end, false);
        let mut on_wanted = |wanted: &[u8]| {
            deliver(Ok(&[&wanted[range.clone()]]));
            delivered = true;
            // No other reader can see the spare frame, so the rest of the frame is not needed.
            After::Leave
        };
        let result = self.pool.call(|core| {
            let stored = read.fetched.of(frame);
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
        read: Read<'_>,
        mut claim: Claim<'_>,
        range: Range<usize>,
        deliver: &mut Deliver<'_>,
    ) {
        let claimed = Instant::now();
        self.stages
            .record(Stage::SetUp, nanos(claimed - read.begun));
        let mut delivered = false;
        let (frame, slot, again) = (claim.frame, claim.pin.slot, claim.again);
        let mut on_wanted = |wanted: &[u8]| {
            deliver(Ok(&[&wanted[range.clone()]]));
            delivered = true;
            // The compressed bytes of a remote image are here now; they may be gone when the rest
            // is wanted.
            if !read.keep || again || self.image.remote().is_some() {
                return After::Finish;
            }
            // One atomic step: a reader that joins later sees how much is valid, and one that
            // joined before gets the whole frame.
            claim.left = self.cache.lock().leave(slot, wanted.len());
            if claim.left {
                After::Leave
            } else {
                After::Finish
            }
        };
        if let Some(bytes) = claim.bytes.as_mut() {
            trace::flow_from(&tracks::FRAME, frame);
            let result = self.pool.call(|core| {
                let (out, stored) = (Out::Here(bytes), read.fetched.of(frame));
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

    /// Copies a part of one frame, through the cache.
    pub(super) fn copy_one(
        &self,
        read: Read<'_>,
        frame: u64,
        within: usize,
        dst: &mut [u8],
    ) -> Result<(), ReadError> {
        let mut result = Ok(());
        let range = within..within + dst.len();
        self.read_one(read, frame, range, &mut |bytes| match bytes {
            Ok(pieces) => dst.copy_from_slice(pieces[0]),
            Err(error) => result = Err(error.clone()),
        });
        result
    }
}
