//! A NIC that receives the frames that were sent over it.
//!
//! Why here: between a stack and an [`Impaired`](super::Impaired) it is one direction of a wire
//! with any far end. Must stay true: frames are received unchanged, in order, and their number is
//! bounded.

use crate::nic::{Capabilities, Nic, NicError, Outgoing, Received, ReceivedChecksum};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

/// Frames that were sent and not received yet.
#[derive(Debug)]
pub struct Loopback {
    capabilities: Capabilities,
    frames: VecDeque<Vec<u8>>,
    frames_max: usize,
}

impl Loopback {
    /// One with these capabilities; it refuses frames while `frames_max` wait.
    #[must_use]
    pub fn new(capabilities: Capabilities, frames_max: usize) -> Self {
        Self {
            capabilities,
            frames: VecDeque::new(),
            frames_max,
        }
    }
}

impl Nic for Loopback {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, NicError> {
        for count in 0..budget {
            let Some(mut bytes) = self.frames.pop_front() else {
                return Ok(count);
            };
            sink(Received {
                bytes: &mut bytes,
                checksum: ReceivedChecksum::Unknown,
                segment_bytes: None,
            });
        }
        Ok(budget)
    }

    fn transmit(&mut self, frame: &Outgoing<'_>) -> Result<bool, NicError> {
        // As a full transmit ring: the stack keeps the frame.
        if self.frames.len() >= self.frames_max {
            return Ok(false);
        }
        let pieces = [frame.header, frame.payload[0], frame.payload[1]];
        self.frames.push_back(pieces.concat());
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), NicError> {
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
