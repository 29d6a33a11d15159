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

mod claims;
mod many;
mod one;

use super::fetched::Fetched;
use super::{Device, PIECES_MAX};
use crate::source::{BlockSource, Deliver, ReadError, check_range};
use crate::tracks;
use claims::Taken;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_engine::Core;
use sidecore_trace as trace;
use std::ops::Range;
use std::time::Instant;

/// Read-ahead is posted only up to this many waiting items per engine.
const AHEAD_BACKLOG_PER_ENGINE: usize = 32;

/// Terms that all steps of one read share.
#[derive(Clone, Copy)]
struct Read<'r> {
    /// Its frames that were fetched over the network.
    fetched: &'r Fetched,
    /// True if its frames are likely to be read again, false for a part of a stream.
    keep: bool,
    /// When it began.
    begun: Instant,
}

impl Device {
    /// See [`BlockSource::read_with`].
    pub(super) fn read_in_pieces(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        let begun = Instant::now();
        let _read = trace::span(&tracks::READ, offset, len.to_u64());
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
        let bytes = offset..offset + len.to_u64();
        let last = self.index.frame_at(bytes.end - 1);
        let fetched = match self.fetch_missing(first..last + 1, &ahead) {
            Ok(fetched) => fetched,
            Err(error) => return deliver(Err(&error)),
        };
        let read = Read {
            fetched: &fetched,
            keep: !sequential,
            begun,
        };
        if first == last {
            let within = (offset - self.index.frame(first).raw_offset).to_usize();
            self.read_one(read, first, within..within + len, deliver);
        } else {
            // All pins and claims of `read_many` are released when it returns; the buffered read
            // takes slots itself and must not wait for this very reader.
            let fits = last - first < PIECES_MAX.to_u64();
            if !fits || !self.read_many(read, first..last + 1, bytes, deliver) {
                self.read_buffered(read, offset, len, deliver);
            }
        }
        // After the delivery: the reader has its bytes, and its engine is idle again.
        self.post_ahead(ahead);
    }

    /// See [`BlockSource::read_into`].
    pub(super) fn read_into_buffer(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        let _read = trace::span(&tracks::READ, offset, dst.len().to_u64());
        check_range(offset, dst.len(), self.size_bytes())?;
        if dst.is_empty() {
            return Ok(());
        }
        let first = self.index.frame_at(offset);
        let last = self.index.frame_at(offset + dst.len().to_u64() - 1);
        // All at once: separate fetches of the edges and the middle would take a round trip each.
        let fetched = self.fetch_missing(first..last + 1, &(0..0))?;
        let read = Read {
            fetched: &fetched,
            keep: true,
            begun: Instant::now(),
        };
        self.inflate_into(read, offset, dst)
    }

    /// Background: decompresses a frame into the cache, unless it is there.
    pub(super) fn fill_ahead(&self, core: &mut Core, frame: u64) {
        if frame >= self.index.frames() || self.index.is_zero(frame) {
            return;
        }
        let want = self.index.frame(frame).raw_bytes.to_usize();
        // Without `keep`: if no reader comes for the frame, it must not displace frames in use.
        // With a full cache the work is dropped, for the result could not be kept.
        if let Some(Taken::Claimed(mut claim)) = self.try_take(frame, want, false, false) {
            let begun = Instant::now();
            let read = Read {
                fetched: &Fetched::default(),
                keep: false,
                begun,
            };
            self.fill(read, core, &mut claim, begun);
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
        let advice = readers.observe(offset, len.to_u64(), self.size_bytes(), window);
        (advice.sequential, advice.ahead)
    }

    /// Posts read-ahead for a sequential reader to the engines that are left over.
    fn post_ahead(&self, ahead: Range<u64>) {
        // Frames of a remote image are already in flight; an engine would only wait for them.
        if self.image.remote().is_some() {
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
            if full {
                return;
            }
            trace::flow_from(&tracks::FRAME, frame);
            if !self.pool.post(background, frame) {
                return;
            }
        }
    }
}
