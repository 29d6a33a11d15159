//! Frames from the stack to itself: they never meet the NIC.
//!
//! Why here: two applications of one engine talk to each other. A frame waits for the end of the
//! stack's turn; its checksum is left as it is, because its bytes never leave this memory. Must stay
//! true: a full queue says so, and the stack keeps what does not fit.

use crate::nic::{Outgoing, Received, ReceivedChecksum, TransmitChecksum};
use crate::stack::Stack;
use std::collections::VecDeque;
use std::num::NonZeroU16;

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Loopback {
    frames: VecDeque<Frame>,
    /// Buffers to be used again.
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
    /// Takes a frame; false where there is no room.
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

    /// Whether nothing waits.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Hands the stack what it sent before; how many frames.
    #[inline]
    pub(super) fn receive(&mut self, now_ns: u64, stack: &mut Stack) -> usize {
        let count = self.frames.len();
        while let Some(mut frame) = self.frames.pop_front() {
            stack.receive(
                now_ns,
                Received {
                    bytes: &mut frame.bytes,
                    checksum: frame.checksum,
                    segment_bytes: frame.segment_bytes,
                },
            );
            self.spare.push(frame.bytes);
        }
        self.bytes = 0;
        count
    }
}

const FRAMES_MAX: usize = 1024;
const BYTES_MAX: usize = 4 << 20;
