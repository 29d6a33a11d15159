//! Frames that the stack sends to itself: they bypass the NIC.
//!
//! Why here: two applications of one engine talk to each other. A frame waits for the end of the
//! stack's turn; its checksum stays incomplete, because its bytes never leave this memory. Must
//! stay true: a full queue refuses frames, and the stack keeps them.

use crate::Stack;
use crate::nic::{Outgoing, Received, ReceivedChecksum, TransmitChecksum};
use std::collections::VecDeque;
use std::num::NonZeroU16;

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Loopback {
    frames: VecDeque<Frame>,
    /// Buffers for reuse.
    spare: Vec<Vec<u8>>,
    bytes: usize,
}

#[derive(Debug)]
struct Frame {
    bytes: Vec<u8>,
    checksum: ReceivedChecksum,
    segment_bytes: Option<NonZeroU16>,
}

impl Loopback {
    /// Queues a frame; false if the queue is full.
    #[inline]
    pub(super) fn transmit(&mut self, frame: &Outgoing<'_>) -> bool {
        if self.frames.len() >= FRAMES_MAX || self.bytes + frame.len() > BYTES_MAX {
            return false;
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        for piece in [frame.header, frame.payload[0], frame.payload[1]] {
            bytes.extend_from_slice(piece);
        }
        self.bytes += bytes.len();
        self.frames.push_back(Frame {
            bytes,
            checksum: match frame.checksum {
                TransmitChecksum::Partial { .. } => ReceivedChecksum::Partial,
                TransmitChecksum::Complete => ReceivedChecksum::Verified,
            },
            segment_bytes: frame.segment_bytes,
        });
        true
    }

    /// True if no frame is queued.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Passes at most `frames_max` queued frames to the stack; returns their number.
    #[inline]
    pub(super) fn receive(&mut self, now_ns: u64, stack: &mut Stack, frames_max: usize) -> usize {
        // Replies are queued behind the present frames and wait for the next pass: sockets that
        // reply to each other without end cannot keep this pass from ending.
        let count = self.frames.len().min(frames_max);
        for mut frame in self.frames.drain(..count) {
            self.bytes -= frame.bytes.len();
            stack.receive_own(
                now_ns,
                Received {
                    bytes: &mut frame.bytes,
                    checksum: frame.checksum,
                    segment_bytes: frame.segment_bytes,
                },
            );
            self.spare.push(frame.bytes);
        }
        count
    }
}

const FRAMES_MAX: usize = 1024;
const BYTES_MAX: usize = 4 << 20;
