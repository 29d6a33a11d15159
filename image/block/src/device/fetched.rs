//! Prefetch of the compressed frames of a remote image, before an engine is requested.
//!
//! Why here: a frame takes a network round trip to arrive. An engine that waited for it would
//! decompress nothing else meanwhile, and a reader of several frames would wait for one after
//! another.
//! Must stay true: nothing is fetched for a local file, at no cost. Frames that are cached, or
//! known to be zeros, are not requested. A frame that is evicted between this step and its look-up
//! is decompressed from the source directly: slower, never wrong.

use super::{Device, TraceSink};
use crate::image::Stored;
use crate::source::ReadError;
use crate::tracks;
use sidecore_bare::width::ToU64;
use std::ops::Range;
use std::sync::Arc;

/// Frames fetched for one read; empty for a local file.
#[derive(Default)]
pub(super) struct Fetched(Vec<(u64, Stored)>);

impl Fetched {
    /// The compressed bytes of `frame`, if they were fetched.
    pub(super) fn of(&self, frame: u64) -> Option<&[u8]> {
        let at = self.0.binary_search_by_key(&frame, |(frame, _)| *frame);
        at.ok().map(|at| &*self.0[at].1)
    }
}

impl Device {
    /// Fetches those of `frames` that are not cached, and prefetches the frames of the bytes
    /// `ahead`. Returns at once for a local file.
    ///
    /// # Errors
    /// [`ReadError::Io`]: a frame cannot be fetched.
    pub(super) fn fetch_missing(
        &self,
        frames: Range<u64>,
        ahead: &Range<u64>,
    ) -> Result<Fetched, ReadError> {
        if let Some(trace) = self.trace.get() {
            // Holes are never requested.
            let mut run: Option<Range<u64>> = None;
            for frame in self.index.stored_in(frames.clone()) {
                match &mut run {
                    Some(run) if run.end == frame => run.end += 1,
                    _ => {
                        if let Some(run) = run.replace(frame..frame + 1) {
                            trace.touched(run);
                        }
                    }
                }
            }
            if let Some(run) = run {
                trace.touched(run);
            }
        }
        let Some(remote) = self.image.remote() else {
            return Ok(Fetched::default());
        };
        // Zero frames and cached ones need no request. The cache lock is released before the
        // network is used.
        let missing: Vec<u64> = {
            let cache = self.cache.lock();
            let wanted = |&frame: &u64| !self.index.is_zero(frame) && !cache.contains(frame);
            self.index.stored_in(frames).filter(wanted).collect()
        };
        // Whole frames: the last byte's frame is included.
        let behind = match ahead.is_empty() {
            true => 0..0,
            false => self.index.frame_at(ahead.start)..self.index.frame_at(ahead.end - 1) + 1,
        };
        if missing.is_empty() && behind.is_empty() {
            return Ok(Fetched::default());
        }
        let wanted: Vec<_> = missing.iter().map(|&i| self.index.frame(i)).collect();
        let mut behind = (self.index.stored_in(behind))
            .filter(|&frame| !self.index.is_zero(frame))
            .map(|frame| self.index.frame(frame));
        let first = missing.first().copied().unwrap_or(u64::MAX);
        let fetch = sidecore_trace::span(&tracks::FETCH, first, missing.len().to_u64());
        let stored = remote.fetch(&wanted, &mut behind).map_err(|error| {
            let error = ReadError::Io {
                reason: error.to_string(),
            };
            // Once for each place: a reader that retries must not fill the log.
            if let Some(&first) = missing.first() {
                self.log_damage(first, &error);
            }
            error
        })?;
        drop(fetch);
        Ok(Fetched(missing.into_iter().zip(stored).collect()))
    }

    /// Bytes of contents to have in flight ahead of a sequential reader.
    pub(super) fn read_ahead_window(&self) -> super::readahead::Window {
        match self.image.remote() {
            None => super::readahead::Window::Doubling(self.read_ahead_bytes),
            Some(remote) => {
                // The link carries compressed bytes, readers count contents.
                let frames = self.index.stored_frames();
                let raw = frames.saturating_mul(self.index.frame_bytes().into());
                let (raw, stored) = (
                    raw.min(self.index.raw_bytes()),
                    self.index.stored_bytes().max(1),
                );
                let bytes =
                    u128::from(remote.window_bytes()) * u128::from(raw) / u128::from(stored);
                let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
                super::readahead::Window::Earned(bytes.min(REMOTE_WINDOW_BYTES_MAX))
            }
        }
    }

    /// Reports to `sink` the frames that are read from now on. At most one sink in a device's life;
    /// a second is refused, and dropped.
    pub fn trace_into(&self, sink: Arc<dyn TraceSink>) -> bool {
        self.trace.set(sink).is_ok()
    }
}

/// Most contents requested ahead of one reader: images that hold almost only zeros decompress to
/// far more than their size.
const REMOTE_WINDOW_BYTES_MAX: u64 = 1 << 30;
