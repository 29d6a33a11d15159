//! Small frames without a session: ARP, ICMP, resets, cookies, datagrams. They are queued in one
//! block of memory until the NIC takes them.

use crate::frame::{Outgoing, TransmitChecksum};
use std::collections::VecDeque;
use std::ops::Range;

/// Bytes that may be queued; frames beyond that are dropped, as a network may.
const BYTES_MAX: usize = 256 << 10;
/// Frames that may be queued.
const FRAMES_MAX: usize = 1024;

/// The queue. Frames are complete, checksums included.
#[derive(Debug, Default)]
pub(crate) struct Control {
    bytes: Vec<u8>,
    frames: VecDeque<Range<usize>>,
}

impl Control {
    /// A queue with all its memory.
    pub(crate) fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(BYTES_MAX),
            frames: VecDeque::with_capacity(FRAMES_MAX),
        }
    }

    /// Space for a frame of `len` bytes, zeroed, to be filled; none if the queue is full.
    pub(crate) fn push(&mut self, len: usize) -> Option<&mut [u8]> {
        if self.frames.is_empty() {
            self.bytes.clear();
        }
        let start = self.bytes.len();
        if start + len > BYTES_MAX || self.frames.len() == FRAMES_MAX {
            return None;
        }
        self.bytes.resize(start + len, 0);
        self.frames.push_back(start..start + len);
        Some(&mut self.bytes[start..])
    }

    /// True if `frames` more frames of `bytes` in total fit.
    pub(crate) fn has_room(&self, frames: usize, bytes: usize) -> bool {
        // The bytes of sent frames are reclaimed by the next push into an empty queue.
        let held = if self.frames.is_empty() {
            0
        } else {
            self.bytes.len()
        };
        held + bytes <= BYTES_MAX && self.room() >= frames
    }

    /// Removes the frames that were pushed last, all but the first `kept` of the queue; in order.
    pub(crate) fn take_back(&mut self, kept: usize) -> Vec<Vec<u8>> {
        let Some(first) = self.frames.get(kept).map(|range| range.start) else {
            return Vec::new();
        };
        // Copied: the caller keeps them longer than the queue keeps its bytes.
        let taken = self.frames.drain(kept..);
        let taken = taken.map(|range| self.bytes[range].to_vec()).collect();
        self.bytes.truncate(first);
        taken
    }

    /// Drops all frames but the first `kept` of the queue.
    pub(crate) fn forget_after(&mut self, kept: usize) {
        if let Some(first) = self.frames.get(kept).map(|range| range.start) {
            self.frames.truncate(kept);
            self.bytes.truncate(first);
        }
    }

    /// True if the queue is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Queued frames.
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Free places, in frames.
    pub(crate) fn room(&self) -> usize {
        FRAMES_MAX - self.frames.len()
    }

    /// Passes frames on until the NIC has no room; then false. `sent` counts them.
    pub(crate) fn flush(
        &mut self,
        send: &mut dyn FnMut(&Outgoing<'_>) -> bool,
        sent: &mut u64,
    ) -> bool {
        while let Some(range) = self.frames.front() {
            let frame = Outgoing {
                header: &self.bytes[range.clone()],
                payload: [&[], &[]],
                checksum: TransmitChecksum::Complete,
                segment_bytes: None,
            };
            // It stays in the queue: the NIC has room again some time later.
            if !send(&frame) {
                return false;
            }
            *sent += 1;
            self.frames.pop_front();
        }
        true
    }
}
