//! Simulated impairments between a stack and its NIC: for tests and for measuring their cost.
//!
//! [`Impaired`] applies an [`Impairment`] to *received* frames: [`Loss`], [`Reorder`],
//! [`Duplicate`], [`Delay`], [`Corrupt`], [`RateLimit`]. It is a NIC itself, so they can be stacked
//! in any order; with both ends of a link wrapped, both directions are impaired. [`Trace`] captures
//! frames; [`Loopback`] is a wire without a NIC.
//!
//! Must stay true: all randomness comes from a seed and the only time is the given [`Clock`], so
//! that a run can be replayed; a held frame is a copy in a bounded queue.

mod impairments;
mod loopback;
mod trace;

pub use impairments::{Corrupt, Delay, Duplicate, Loss, RateLimit, Reorder};
pub use loopback::Loopback;
pub use trace::Trace;

use super::{Capabilities, Nic, NicError, Outgoing, Received, ReceivedChecksum};
use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The time, set by the driver of the stack; clones share it. Any thread.
#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    /// Nanoseconds since an arbitrary start.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        // Relaxed: a number that orders no other memory.
        self.0.load(Ordering::Relaxed)
    }

    /// Sets the time.
    pub fn set_ns(&self, now_ns: u64) {
        self.0.store(now_ns, Ordering::Relaxed);
    }
}

/// A held frame.
#[derive(Debug, Clone)]
pub struct Frame {
    /// From the Ethernet header on.
    pub bytes: Vec<u8>,
    /// State of the transport checksum.
    pub checksum: ReceivedChecksum,
    /// Segment size of a super-segment.
    pub segment_bytes: Option<NonZeroU16>,
}

/// Held frames by due time.
#[derive(Debug, Default)]
pub struct Queue {
    /// By due time; frames of the same time in insertion order.
    frames: BTreeMap<(u64, u64), Frame>,
    next: u64,
    /// Buffers for reuse.
    spare: Vec<Vec<u8>>,
}

impl Queue {
    /// Delivers `frame` at `due_ns`, or drops it if [`QUEUE_FRAMES_MAX`] wait.
    pub fn put(&mut self, due_ns: u64, frame: Frame) {
        if self.frames.len() >= QUEUE_FRAMES_MAX {
            return;
        }
        self.frames.insert((due_ns, self.next), frame);
        self.next += 1;
    }

    fn copy(&mut self, frame: &Received<'_>) -> Frame {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(frame.bytes);
        Frame {
            bytes,
            checksum: frame.checksum,
            segment_bytes: frame.segment_bytes,
        }
    }

    fn take_due(&mut self, now_ns: u64) -> Option<Frame> {
        let first = self.frames.first_entry()?;
        (first.key().0 <= now_ns).then(|| first.remove())
    }
}

/// Impairment applied to received frames.
pub trait Impairment {
    /// Puts `frame`, which arrives at `now_ns`, into `queue`: once, twice, later, changed, or not
    /// at all.
    fn pass(&mut self, frame: Frame, now_ns: u64, queue: &mut Queue);
}

/// A NIC with an impairment.
#[derive(Debug)]
pub struct Impaired<N, I> {
    nic: N,
    impairment: I,
    clock: Clock,
    queue: Queue,
}

impl<N: Nic, I: Impairment> Impaired<N, I> {
    /// Puts `impairment` in front of `nic`.
    pub fn new(nic: N, impairment: I, clock: Clock) -> Self {
        Self {
            nic,
            impairment,
            clock,
            queue: Queue::default(),
        }
    }

    /// The impairment.
    pub fn impairment(&self) -> &I {
        &self.impairment
    }

    /// The NIC behind it.
    pub fn nic(&self) -> &N {
        &self.nic
    }
}

impl<N: Nic, I: Impairment> Nic for Impaired<N, I> {
    fn capabilities(&self) -> Capabilities {
        self.nic.capabilities()
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, NicError> {
        let now_ns = self.clock.now_ns();
        let (impairment, queue) = (&mut self.impairment, &mut self.queue);
        self.nic.receive(budget, &mut |received| {
            let frame = queue.copy(&received);
            impairment.pass(frame, now_ns, queue);
        })?;
        for count in 0..budget {
            let Some(mut frame) = self.queue.take_due(now_ns) else {
                return Ok(count);
            };
            sink(Received {
                bytes: &mut frame.bytes,
                checksum: frame.checksum,
                segment_bytes: frame.segment_bytes,
            });
            // Bounded: a burst must not keep its memory for the rest of a run.
            if self.queue.spare.len() < SPARE_MAX {
                self.queue.spare.push(frame.bytes);
            }
        }
        Ok(budget)
    }

    fn transmit(&mut self, frame: &Outgoing<'_>) -> Result<bool, NicError> {
        self.nic.transmit(frame)
    }

    fn flush(&mut self) -> Result<(), NicError> {
        self.nic.flush()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.nic.descriptor()
    }

    fn arm(&mut self) -> Result<bool, NicError> {
        // No descriptor reports when a held frame becomes due, so the caller must poll.
        Ok(self.nic.arm()? && self.queue.frames.is_empty())
    }
}

/// The most frames that one queue holds.
pub const QUEUE_FRAMES_MAX: usize = 1 << 16;
const SPARE_MAX: usize = 1024;

#[cfg(test)]
mod tests;
