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
mod loopback {
    //! A NIC that receives the frames that were sent over it.
    //!
    //! Why here: between a stack and an [`Impaired`](super::Impaired) it is one direction of a wire
    //! with any far end. Must stay true: frames are received unchanged, in order, and their number
    //! is bounded.

    use super::{Capabilities, Nic, NicError, Outgoing, Received, ReceivedChecksum};
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
}
mod trace;

pub use impairments::{Corrupt, Delay, Duplicate, Loss, RateLimit, Reorder};
pub use loopback::Loopback;
pub use trace::Trace;

use super::{Capabilities, Nic, NicError, NicReport, Outgoing, Received, ReceivedChecksum};
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

    fn has_carrier(&self) -> bool {
        self.nic.has_carrier()
    }

    fn report(&self) -> Option<NicReport> {
        self.nic.report()
    }
}

/// The most frames that one queue holds.
pub const QUEUE_FRAMES_MAX: usize = 1 << 16;
const SPARE_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    //! Each impairment has its documented effect, and the same one for the same seed.

    use super::*;
    use crate::nic::TransmitChecksum;
    use crate::nic::pair::{self, Pair, PairOptions};

    fn send(pair: &mut Pair, number: u32) {
        let mut bytes = [0; 60];
        bytes[20..24].copy_from_slice(&number.to_le_bytes());
        let frame = Outgoing {
            header: &bytes,
            payload: [&[], &[]],
            checksum: TransmitChecksum::Complete,
            segment_bytes: None,
        };
        assert!(pair.transmit(&frame).unwrap());
        pair.flush().unwrap();
    }

    fn receive(nic: &mut impl Nic) -> Vec<u32> {
        let mut numbers = Vec::new();
        loop {
            let count = nic.receive(7, &mut |frame| {
                numbers.push(u32::from_le_bytes(frame.bytes[20..24].try_into().unwrap()));
            });
            if count.unwrap() == 0 {
                return numbers;
            }
        }
    }

    /// Numbers of the frames that arrive out of 1,000, sent one per microsecond.
    fn run(impairment: impl Impairment) -> Vec<u32> {
        let (mut near, far) = pair::link(&PairOptions::default()).unwrap();
        let clock = Clock::default();
        let mut far = Impaired::new(far, impairment, clock.clone());
        let mut numbers = Vec::new();
        for number in 0..1000 {
            clock.set_ns(u64::from(number) * 1000);
            send(&mut near, number);
            numbers.extend(receive(&mut far));
        }
        clock.set_ns(1_000_000_000);
        numbers.extend(receive(&mut far));
        assert_eq!(next_due_ns(&far), None);
        numbers
    }

    /// Due time of the next held frame.
    fn next_due_ns<N, I>(nic: &Impaired<N, I>) -> Option<u64> {
        nic.queue.frames.keys().next().map(|(due_ns, _)| *due_ns)
    }

    #[test]
    fn each_does_what_it_says_and_the_same_again() {
        let all: Vec<u32> = (0..1000).collect();
        let lost = run(Loss::new(1, 0.1));
        assert!((800..980).contains(&lost.len()), "{}", lost.len());
        assert_eq!(lost, run(Loss::new(1, 0.1)), "the same seed");
        assert_ne!(lost, run(Loss::new(2, 0.1)), "another seed");
        assert_eq!(run(Loss::new(1, 0.0)), all);
        assert!(run(Loss::new(1, 1.0)).is_empty());

        let mut reordered = run(Reorder::new(1, 0.1, 3_500));
        assert_ne!(reordered, all);
        let latest = reordered
            .iter()
            .enumerate()
            .map(|(at, &n)| at as i64 - i64::from(n));
        assert!(latest.max().unwrap() <= 4);
        reordered.sort_unstable();
        assert_eq!(reordered, all);

        let mut twice = run(Duplicate::new(1, 0.1));
        assert!((1020..1200).contains(&twice.len()));
        assert!(twice.is_sorted());
        twice.dedup();
        assert_eq!(twice, all);

        assert_eq!(run(Delay::new(1, 50_000, 9_000)), all);
        assert_eq!(run(Corrupt::new(1, 0.0)), all);
    }

    #[test]
    fn a_delay_is_kept_to_the_nanosecond() {
        let (mut near, far) = pair::link(&PairOptions::default()).unwrap();
        let clock = Clock::default();
        let mut far = Impaired::new(far, Delay::new(1, 500, 0), clock.clone());
        send(&mut near, 7);
        assert!(receive(&mut far).is_empty());
        assert_eq!(next_due_ns(&far), Some(500));
        assert!(!far.arm().unwrap(), "nobody would ring");
        clock.set_ns(499);
        assert!(receive(&mut far).is_empty());
        clock.set_ns(500);
        assert_eq!(receive(&mut far), [7]);
    }

    #[test]
    fn a_wire_has_a_rate_and_its_queue_an_end() {
        // 60 bytes take 480 ns at 1 Gb/s; a frame a microsecond fits.
        assert_eq!(run(RateLimit::new(1_000_000_000, 0)).len(), 1000);
        // At a tenth of it a frame takes 4.8 us: one in five passes.
        let passed = run(RateLimit::new(100_000_000, 120)).len();
        assert!((200..220).contains(&passed), "{passed}");
    }

    #[test]
    fn one_bit_flips_and_the_checksum_is_to_be_looked_at() {
        let (mut near, far) = pair::link(&PairOptions::default()).unwrap();
        let mut far = Impaired::new(far, Corrupt::new(3, 1.0), Clock::default());
        send(&mut near, 0);
        let mut ones = 0;
        let count = far.receive(1, &mut |frame| {
            assert_eq!(frame.checksum, ReceivedChecksum::Unknown);
            ones = frame.bytes.iter().map(|byte| byte.count_ones()).sum();
        });
        assert_eq!((count.unwrap(), ones), (1, 1));
        assert_eq!(far.impairment().corrupted(), 1);
    }

    #[test]
    fn a_trace_has_every_frame_with_its_time() {
        let (near, mut far) = pair::link(&PairOptions::default()).unwrap();
        let clock = Clock::default();
        clock.set_ns(3_000_000_005);
        let mut near = Trace::new(near, clock, Vec::new(), 30).unwrap();
        send(&mut far, 9);
        assert_eq!(receive(&mut near), [9]);
        let header = [1; 14];
        let frame = Outgoing {
            header: &header,
            payload: [&[2; 20], &[3; 20]],
            checksum: TransmitChecksum::Complete,
            segment_bytes: None,
        };
        assert!(near.transmit(&frame).unwrap());
        let (_, file) = near.finish().unwrap();
        assert_eq!(file.len(), 24 + 2 * (16 + 30));
        assert_eq!(&file[..4], [0x4d, 0x3c, 0xb2, 0xa1]);
        assert_eq!(
            &file[24..40],
            [3, 0, 0, 0, 5, 0, 0, 0, 30, 0, 0, 0, 60, 0, 0, 0]
        );
        let second = &file[24 + 46..];
        assert_eq!(&second[8..16], [30, 0, 0, 0, 54, 0, 0, 0]);
        assert_eq!(&second[16..], [[1; 14].as_slice(), &[2; 16]].concat());
    }
}
