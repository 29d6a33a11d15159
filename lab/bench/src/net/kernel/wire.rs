//! A bad wire: its effect on frames, between two TAPs of the kernel or in front of our stack.
//!
//! Why here: this machine's kernel may lack a queueing discipline for it, and both sides of the
//! comparison go through the same code: frame by frame, each direction from a seed of its own.
//! Must stay true: no super-segments, or one draw would decide over 44 frames at once.

use super::super::BenchError;
use sidecore_net::nic::middleware::{Clock, Frame, Impaired, Impairment, Loopback, Queue};
use sidecore_net::nic::tap::Tap;
use sidecore_net::nic::{Capabilities, Nic, NicError, Outgoing, Received, TransmitChecksum};
use sidecore_random::SplitMix;
use sidecore_sys::cpu;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Impairments of a wire, each a share of all, 0 to 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weather {
    /// Share of frames that are lost.
    pub(super) loss: f64,
    /// Share that is delayed by [`LATE_NS`], so that others overtake them.
    pub(super) late: f64,
    /// Share that is duplicated.
    pub(super) twice: f64,
}

impl Weather {
    pub(super) const fn losing(loss: f64) -> Self {
        Self {
            loss,
            late: 0.0,
            twice: 0.0,
        }
    }

    pub(super) const fn overtaking(late: f64) -> Self {
        Self {
            late,
            ..Self::losing(0.0)
        }
    }

    pub(super) const fn doubling(twice: f64) -> Self {
        Self {
            twice,
            ..Self::losing(0.0)
        }
    }
}

/// One direction of the wire.
struct Direction {
    weather: Weather,
    random: SplitMix,
}

impl Direction {
    fn new(weather: Weather, seed: u64) -> Self {
        Self {
            weather,
            random: SplitMix::new(seed),
        }
    }
}

impl Impairment for Direction {
    fn pass(&mut self, frame: Frame, now_ns: u64, queue: &mut Queue) {
        if self.random.happens(self.weather.loss) {
            return;
        }
        let late = self.random.happens(self.weather.late);
        let due_ns = now_ns + DELAY_NS + if late { LATE_NS } else { 0 };
        if self.random.happens(self.weather.twice) {
            queue.put(due_ns, frame.clone());
        }
        queue.put(due_ns, frame);
    }
}

/// Our stack's NIC at the end of a bad wire whose other end is a TAP.
pub(super) struct BadWire {
    incoming: Impaired<Tap, Direction>,
    /// Sent frames in flight to the TAP.
    outgoing: Impaired<Loopback, Direction>,
    clock: Clock,
    begun: Instant,
}

impl BadWire {
    pub(super) fn new(tap: Tap, weather: Weather, seed: u64) -> Self {
        let clock = Clock::default();
        let sent = Loopback::new(tap.capabilities(), BATCH);
        let (here, there) = (
            Direction::new(weather, seed),
            Direction::new(weather, !seed),
        );
        Self {
            incoming: Impaired::new(tap, here, clock.clone()),
            outgoing: Impaired::new(sent, there, clock.clone()),
            clock,
            begun: Instant::now(),
        }
    }
}

impl Nic for BadWire {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            // A frame crosses the wire as bytes, and an unfinished checksum is lost information
            // behind it.
            completes_checksums: false,
            ..self.incoming.capabilities()
        }
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, NicError> {
        // A quiet engine polls for input, and does not flush.
        self.clock.set_ns(self.begun.elapsed().as_nanos() as u64);
        forward(&mut self.outgoing, &mut self.incoming)?;
        self.incoming.receive(budget, sink)
    }

    fn transmit(&mut self, frame: &Outgoing<'_>) -> Result<bool, NicError> {
        self.outgoing.transmit(frame)
    }

    fn flush(&mut self) -> Result<(), NicError> {
        self.clock.set_ns(self.begun.elapsed().as_nanos() as u64);
        forward(&mut self.outgoing, &mut self.incoming).map(drop)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Carries frames from one TAP to the other and back until `stop` is set.
pub(super) fn carry(
    near: Tap,
    far: Tap,
    weather: Weather,
    seed: u64,
    core: usize,
    stop: &AtomicBool,
) -> Result<(), BenchError> {
    cpu::pin(core)?;
    let (clock, begun) = (Clock::default(), Instant::now());
    let mut near = Impaired::new(near, Direction::new(weather, seed), clock.clone());
    let mut far = Impaired::new(far, Direction::new(weather, !seed), clock.clone());
    while !stop.load(Ordering::Relaxed) {
        clock.set_ns(begun.elapsed().as_nanos() as u64);
        forward(&mut near, &mut far)?;
        forward(&mut far, &mut near)?;
    }
    Ok(())
}

/// Hands the input of one NIC to the other; returns the number of frames.
pub(super) fn forward(from: &mut impl Nic, to: &mut impl Nic) -> Result<usize, NicError> {
    let mut failed = None;
    let count = from.receive(BATCH, &mut |frame| {
        let frame = Outgoing {
            header: frame.bytes,
            payload: [&[], &[]],
            checksum: TransmitChecksum::Complete,
            segment_bytes: None,
        };
        // A frame without room is lost, as in any switch.
        if let Err(error) = to.transmit(&frame) {
            failed = Some(error);
        }
    })?;
    failed.map_or(Ok(count), Err)
}

/// Each way takes so long: a round trip of a small data centre.
pub(super) const DELAY_NS: u64 = 100_000;
/// Delay of late frames, in nanoseconds.
pub(super) const LATE_NS: u64 = 200_000;
/// Frames that are carried at once.
const BATCH: usize = 256;
