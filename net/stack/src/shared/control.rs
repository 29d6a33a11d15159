//! Frames without a session: ARP, ICMP, resets, cookies, datagrams. They are queued in one block of
//! memory until the NIC takes them.

use super::frames::Flow;
use crate::frame::{Outgoing, TransmitChecksum};
use crate::wire::udp;
use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::ops::Range;

/// Bytes that may be queued; frames beyond that are dropped, as a network may.
const BYTES_MAX: usize = 256 << 10;
/// Datagrams that the NIC may cut from one frame: what Linux does (`UDP_MAX_SEGMENTS`).
const SEGMENTS_MAX: usize = 64;
/// Frames that may be queued.
const FRAMES_MAX: usize = 1024;

/// The queue. Frames are complete, checksums included, unless they say otherwise.
#[derive(Debug, Default)]
pub(crate) struct Control {
    bytes: Vec<u8>,
    frames: VecDeque<Queued>,
}

/// A frame, and what is left to the NIC.
#[derive(Debug, Clone)]
struct Queued {
    range: Range<usize>,
    header_bytes: usize,
    /// Datagrams whose checksums the NIC completes: their number, beyond 1 for it to cut.
    datagrams: Option<(Flow, usize)>,
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
        self.frames.push_back(Queued {
            range: start..start + len,
            header_bytes: len,
            datagrams: None,
        });
        Some(&mut self.bytes[start..])
    }

    /// Appends a datagram whose checksum the NIC completes; false if the queue is full.
    pub(crate) fn push_datagram(&mut self, header: &[u8], payload: &[u8], flow: Flow) -> bool {
        if !self.has_room(1, header.len() + payload.len()) {
            return false;
        }
        if self.frames.is_empty() {
            self.bytes.clear();
        }
        let start = self.bytes.len();
        self.bytes.extend_from_slice(header);
        self.bytes.extend_from_slice(payload);
        self.frames.push_back(Queued {
            range: start..self.bytes.len(),
            header_bytes: header.len(),
            datagrams: Some((flow, 1)),
        });
        true
    }

    /// The last frame's datagrams, and the bytes of their payloads.
    pub(crate) fn last(&self) -> Option<(Flow, usize)> {
        let last = self.frames.back()?;
        let (flow, _) = last.datagrams?;
        Some((flow, last.range.len() - last.header_bytes))
    }

    /// Appends a datagram to the last frame, which the NIC is to cut; `header` takes the place of
    /// the frame's. False if there is no room.
    pub(crate) fn extend_last(&mut self, header: &[u8], payload: &[u8]) -> bool {
        let Some(last) = self.frames.back_mut() else {
            return false;
        };
        let Some((_, count)) = &mut last.datagrams else {
            return false;
        };
        if *count >= SEGMENTS_MAX || self.bytes.len() + payload.len() > BYTES_MAX {
            return false;
        }
        *count += 1;
        // Its bytes are the last ones.
        self.bytes.extend_from_slice(payload);
        last.range.end = self.bytes.len();
        if let Some(place) = self.bytes.get_mut(last.range.start..) {
            place[..header.len()].copy_from_slice(header);
        }
        true
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
        let Some(first) = self.frames.get(kept).map(|queued| queued.range.start) else {
            return Vec::new();
        };
        // Copied: the caller keeps them longer than the queue keeps its bytes.
        let taken = self.frames.drain(kept..);
        let taken = taken
            .map(|queued| self.bytes[queued.range].to_vec())
            .collect();
        self.bytes.truncate(first);
        taken
    }

    /// Drops all frames but the first `kept` of the queue.
    pub(crate) fn forget_after(&mut self, kept: usize) {
        if let Some(first) = self.frames.get(kept).map(|queued| queued.range.start) {
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
        while let Some(queued) = self.frames.front() {
            let bytes = &self.bytes[queued.range.clone()];
            let (header, payload) = bytes.split_at(queued.header_bytes);
            let checksum = match &queued.datagrams {
                None => TransmitChecksum::Complete,
                Some((flow, _)) => TransmitChecksum::Partial {
                    start: flow.sum_start,
                    offset: udp::CHECKSUM_OFFSET,
                },
            };
            let several = queued.datagrams.filter(|(_, count)| *count > 1);
            let frame = Outgoing {
                header,
                payload: [payload, &[]],
                checksum,
                segment_bytes: several.and_then(|(flow, _)| NonZeroU16::new(flow.each)),
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
