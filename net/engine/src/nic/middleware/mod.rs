//! A bad network, put between a stack and its NIC: for tests and for measuring what it costs.
//!
//! [`Impaired`] does to the frames that come *in* what its [`Impairment`] says: [`Loss`],
//! [`Reorder`], [`Duplicate`], [`Delay`], [`Corrupt`], [`RateLimit`]. It is a NIC itself, so they
//! stack up in any order; both ends of a link wrapped make both directions bad. [`Trace`] writes
//! down what passes; [`Loopback`] is a wire without a NIC.
//!
//! Must stay true: everything is drawn from a seed and no time is read but the [`Clock`] that is
//! given, so that a run can be replayed; a frame that is held is a copy in a queue with a bound.

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

/// The time, as whoever drives the stack tells it; clones tell the same. Any thread.
#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    /// Nanoseconds since some beginning.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        // Relaxed: a number for whoever reads it, and nothing hangs on it.
        self.0.load(Ordering::Relaxed)
    }

    /// It is `now_ns` from now on.
    pub fn set_ns(&self, now_ns: u64) {
        self.0.store(now_ns, Ordering::Relaxed);
    }
}

/// A frame that is held.
#[derive(Debug, Clone)]
pub struct Frame {
    /// From the Ethernet header on.
    pub bytes: Vec<u8>,
    /// Of the transport header.
    pub checksum: ReceivedChecksum,
    /// Of a super-segment.
    pub segment_bytes: Option<NonZeroU16>,
}

/// Frames that wait for their time.
#[derive(Debug, Default)]
pub struct Queue {
    /// By the time when they are due; of the same time, in the order in which they were put in.
    frames: BTreeMap<(u64, u64), Frame>,
    next: u64,
    /// Buffers to be used again.
    spare: Vec<Vec<u8>>,
    overflown: u64,
}

impl Queue {
    /// Has `frame` handed in at `due_ns`, or drops it where [`QUEUE_FRAMES_MAX`] wait.
    pub fn put(&mut self, due_ns: u64, frame: Frame) {
        if self.frames.len() >= QUEUE_FRAMES_MAX {
            self.overflown += 1;
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
    /// Puts `frame`, which arrives at `now_ns`, into `queue`: once, twice, later, changed, or not.
    fn pass(&mut self, frame: Frame, now_ns: u64, queue: &mut Queue);
}

/// A NIC behind a bad network.
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

    /// When the next frame that is held is due; none where none is.
    #[must_use]
    pub fn next_due_ns(&self) -> Option<u64> {
        self.queue.frames.keys().next().map(|&(due_ns, _)| due_ns)
    }

    /// Frames that were dropped because too many waited.
    #[must_use]
    pub fn overflown(&self) -> u64 {
        self.queue.overflown
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
        // Nobody rings when a frame that is held becomes due.
        Ok(self.nic.arm()? && self.queue.frames.is_empty())
    }
}

/// The most frames that one queue holds.
pub const QUEUE_FRAMES_MAX: usize = 1 << 16;
const SPARE_MAX: usize = 1024;

#[cfg(test)]
mod tests;
