//! The wire between two ends: its impairments, and a record of its traffic.
//!
//! Why here: each session has its own impairments, and the seed determines the fate of its `n`th
//! frame each way, whichever stack sends it. Other frames than TCP pass. Must stay true: a frame is
//! recorded when an end sent it, and again when the other one receives it.

use super::case::{Bottleneck, Case, Weather};
use super::segment::{self, Segment};
use sidecore_net::nic::middleware::{Frame, Impairment, Queue, RateLimit};
use sidecore_net::nic::{Nic, Outgoing, TransmitChecksum};
use std::cell::RefCell;
use std::rc::Rc;

/// A segment that was sent, or that arrived.
#[derive(Debug, Clone)]
pub(crate) struct Passed {
    pub(crate) at_ns: u64,
    /// 0 from the client, 1 from the server.
    pub(crate) direction: usize,
    pub(crate) arrived: bool,
    /// Fate of the frame, at the wire.
    pub(crate) fate: &'static str,
    pub(crate) segment: Segment,
}

/// State of one session on the wire.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    weather: Option<(Weather, u64)>,
    limits: [Option<RateLimit>; 2],
    counts: [u64; 2],
    pub(crate) passed: Vec<Passed>,
    /// Nothing passes any more.
    pub(crate) cut: bool,
    /// Number of times that the whole wire was late because the machine was busy.
    pub(crate) stalls: usize,
}

/// All sessions, by the server's port.
#[derive(Debug, Default)]
pub(crate) struct Flows {
    first_port: u16,
    pub(crate) all: Vec<Flow>,
}

impl Flows {
    /// Sessions of these cases, `each` consecutive ones per case, at ports from `first_port` on.
    pub(crate) fn of(cases: &[Case], each: usize, first_port: u16) -> Self {
        let flow = |case: &Case| Flow {
            weather: Some((case.weather, case.luck)),
            limits: case.bottlenecks.map(|it| it.map(limit)),
            ..Flow::default()
        };
        let all = cases.iter().flat_map(|case| (0..each).map(|_| flow(case)));
        Self {
            first_port,
            all: all.collect(),
        }
    }

    /// The session of a segment, and its direction.
    fn find(&mut self, ports: [u16; 2]) -> Option<(&mut Flow, usize)> {
        let number = |port: u16| usize::from(port.checked_sub(self.first_port)?).into();
        let known = |port| -> Option<usize> {
            let number: Option<usize> = number(port);
            number.filter(|&number| number < self.all.len())
        };
        let (number, direction) = match (known(ports[1]), known(ports[0])) {
            (Some(number), _) => (number, 0),
            (None, Some(number)) => (number, 1),
            (None, None) => return None,
        };
        Some((&mut self.all[number], direction))
    }

    /// Records that a frame arrives; false if it is to be lost.
    fn arrives(&mut self, bytes: &[u8], now_ns: u64) -> bool {
        let Some(segment) = Segment::parse(bytes) else {
            return true;
        };
        let Some((flow, direction)) = self.find(segment.ports) else {
            return true;
        };
        if !flow.cut {
            flow.passed.push(Passed {
                at_ns: now_ns,
                direction,
                arrived: true,
                fate: if segment.intact { "" } else { "damaged" },
                segment,
            });
        }
        !flow.cut
    }
}

/// Impairment of the frames from one end.
pub(crate) struct Fates(pub(crate) Rc<RefCell<Flows>>);

impl Impairment for Fates {
    fn pass(&mut self, mut frame: Frame, now_ns: u64, queue: &mut Queue) {
        let mut flows = self.0.borrow_mut();
        let segment = Segment::parse(&frame.bytes);
        let ports = segment.as_ref().map_or([0; 2], |segment| segment.ports);
        let (Some(segment), Some((flow, direction))) = (segment, flows.find(ports)) else {
            return queue.put(now_ns, frame);
        };
        let Some((weather, seed)) = flow.weather.filter(|_| !flow.cut) else {
            return;
        };
        let fate = weather.fate(seed, direction, flow.counts[direction]);
        flow.counts[direction] += 1;
        // Randomly lost frames do not reach the bottleneck.
        let limit = flow.limits[direction].as_mut().filter(|_| !fate.lost);
        let through_ns = limit.map_or(Some(now_ns), |it| it.admit(frame.bytes.len(), now_ns));
        let said = match (fate.lost, through_ns, fate.corrupt, fate.late, fate.twice) {
            (true, ..) => "lost",
            (_, None, ..) => DROPPED,
            (.., Some(_), _, _) => "damaged",
            (.., true, _) => "late",
            (.., true) => "twice",
            _ => "",
        };
        flow.passed.push(Passed {
            at_ns: now_ns,
            direction,
            arrived: false,
            fate: said,
            segment,
        });
        let Some(through_ns) = through_ns.filter(|_| !fate.lost) else {
            return;
        };
        if let Some(bits) = fate.corrupt {
            // IPv6's header has no checksum.
            let v4 = frame.bytes[12] == 8;
            let from = if v4 {
                14
            } else {
                segment::transport_at(&frame.bytes).unwrap_or(14)
            };
            let bit = bits % ((frame.bytes.len() - from) as u64 * 8);
            frame.bytes[from + (bit / 8) as usize] ^= 1 << (bit % 8);
        }
        let late_ns = if fate.late { weather.late_ns } else { 0 };
        let due_ns = through_ns + weather.delay_ns + late_ns;
        if fate.twice {
            queue.put(due_ns, frame.clone());
        }
        queue.put(due_ns, frame);
    }
}

/// Passes frames from one end's wire to `to`; their number.
pub(crate) fn forward(
    from: &mut impl Nic,
    flows: &RefCell<Flows>,
    now_ns: u64,
    to: &mut dyn FnMut(&mut [u8]),
) -> usize {
    let taken = from.receive(BATCH, &mut |frame| {
        if flows.borrow_mut().arrives(frame.bytes, now_ns) {
            to(frame.bytes);
        }
    });
    taken.expect("a NIC")
}

/// Sends a whole frame; without room it is lost, as in any switch.
pub(crate) fn send(to: &mut impl Nic, bytes: &[u8]) {
    let frame = Outgoing {
        header: bytes,
        payload: [&[], &[]],
        checksum: TransmitChecksum::Complete,
        segment_bytes: None,
    };
    to.transmit(&frame).expect("a NIC");
}

fn limit(bottleneck: Bottleneck) -> RateLimit {
    RateLimit::new(bottleneck.bits_per_second, bottleneck.queue_bytes)
}

/// Fate of a frame that found the bottleneck's queue full.
pub(crate) const DROPPED: &str = "dropped";
const BATCH: usize = 256;
