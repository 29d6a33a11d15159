//! Two stacks and the network between them, in virtual time, from a seed.
//!
//! The link delays, loses, reorders, duplicates and damages frames as configured. Nothing here
//! blocks or reads a clock: a run is reproducible from its seed.
#![allow(dead_code, missing_docs, unreachable_pub)] // each test file uses its part

pub mod bottleneck;
pub mod lone;
pub mod segment;

use bottleneck::Bottleneck;
use sidecore_net_stack::frame::{
    Capabilities, Outgoing, Received, ReceivedChecksum, TransmitChecksum,
};
use sidecore_net_stack::{Cidr, Config, Stack};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;

/// Random numbers of the schedules.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        sidecore_random::split_mix(&mut self.0)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(limit)) >> 64) as u64
    }

    /// True `per_million` times of a million.
    pub fn happens(&mut self, per_million: u64) -> bool {
        self.below(1_000_000) < per_million
    }
}

/// Impairments of the link, each in millionths.
#[derive(Debug, Clone, Copy, Default)]
pub struct Impairment {
    pub loss: u64,
    pub reorder: u64,
    pub duplicate: u64,
    pub corrupt: u64,
    pub delay_ns: u64,
    pub jitter_ns: u64,
}

/// A frame on the link.
#[derive(Debug, Clone)]
pub struct Frame {
    pub bytes: Vec<u8>,
    pub checksum: ReceivedChecksum,
    pub segment_bytes: Option<NonZeroU16>,
}

impl Frame {
    pub fn of(outgoing: &Outgoing<'_>) -> Self {
        let [a, b] = outgoing.payload;
        Self {
            bytes: [outgoing.header, a, b].concat(),
            checksum: match outgoing.checksum {
                TransmitChecksum::Complete => ReceivedChecksum::Unknown,
                TransmitChecksum::Partial { .. } => ReceivedChecksum::Partial,
            },
            segment_bytes: outgoing.segment_bytes,
        }
    }

    pub fn received(&mut self) -> Received<'_> {
        Received {
            bytes: &mut self.bytes,
            checksum: self.checksum,
            segment_bytes: self.segment_bytes,
        }
    }
}

/// The sender of a frame, and the frame, to be changed in transit.
pub type Meddler = dyn FnMut(usize, &mut Frame);

/// The sender of a frame, and its bytes.
pub type Filter = dyn FnMut(usize, &[u8]) -> bool;

/// The network: two ends, 0 and 1.
pub struct World {
    pub now_ns: u64,
    pub stacks: [Stack; 2],
    pub impairment: Impairment,
    pub random: Random,
    queue: BTreeMap<(u64, u64), (usize, Frame)>,
    serial: u64,
    /// Every sent frame, if requested.
    pub trace: Option<Vec<(u64, usize, Vec<u8>)>>,
    /// Inspects each frame in transit; false drops it.
    pub filter: Option<Box<Filter>>,
    /// Changes each frame in transit.
    pub meddler: Option<Box<Meddler>>,
    pub delivered: u64,
    /// Between end 0 and end 1, in this direction only.
    pub bottleneck: Option<Bottleneck>,
}

pub const MTU: usize = 1500;

/// A plain NIC.
pub fn plain(number: u8) -> Capabilities {
    Capabilities::plain([2, 0, 0, 0, 0, number], MTU)
}

/// A NIC that cuts super-segments and completes checksums.
pub fn offloading(number: u8) -> Capabilities {
    Capabilities {
        super_segment_bytes: 65_535,
        completes_checksums: true,
        cuts_datagrams: false,
        merges_received: true,
        ..plain(number)
    }
}

/// The configuration of one end.
pub fn config(number: u8, seed: u64) -> Config {
    let addresses = vec![
        Cidr {
            address: IpAddr::from([10, 0, 0, number]),
            prefix_bits: 24,
        },
        Cidr {
            address: v6(number).ip(),
            prefix_bits: 64,
        },
    ];
    Config {
        addresses,
        seed: seed.wrapping_mul(2).wrapping_add(u64::from(number)),
        sessions_max: 4096,
        ..Config::default()
    }
}

/// The IPv4 address of an end.
pub fn v4(number: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number], port))
}

/// The IPv6 address of an end, port 80.
pub fn v6(number: u8) -> SocketAddr {
    SocketAddr::from(([0xfd00, 0, 0, 0, 0, 0, 0, u16::from(number)], 80))
}

impl World {
    pub fn new(seed: u64) -> Self {
        Self::with(seed, [plain(1), plain(2)], |_| {})
    }

    pub fn with(seed: u64, nics: [Capabilities; 2], change: impl Fn(&mut Config)) -> Self {
        let stack = |number: u8| {
            let mut config = config(number, seed);
            change(&mut config);
            Stack::new(config, &nics[usize::from(number) - 1]).expect("a stack")
        };
        Self {
            now_ns: 1_000_000_000,
            stacks: [stack(1), stack(2)],
            impairment: Impairment {
                delay_ns: 50_000,
                ..Impairment::default()
            },
            random: Random(seed),
            queue: BTreeMap::new(),
            serial: 0,
            trace: None,
            filter: None,
            meddler: None,
            delivered: 0,
            bottleneck: None,
        }
    }

    fn put(&mut self, to: usize, frame: Frame) {
        if to == 0 || self.bottleneck.is_none() {
            self.put_one(to, frame, self.now_ns);
            return;
        }
        for mut segment in bottleneck::segments(frame) {
            let now_ns = self.now_ns;
            let left_ns = self
                .bottleneck
                .as_mut()
                .and_then(|it| it.pass_frame(now_ns, &mut segment));
            if let Some(left_ns) = left_ns {
                self.put_one(to, segment, left_ns);
            }
        }
    }

    fn put_one(&mut self, to: usize, mut frame: Frame, left_ns: u64) {
        if let Some(meddler) = &mut self.meddler {
            meddler(1 - to, &mut frame);
        }
        if let Some(trace) = &mut self.trace {
            trace.push((self.now_ns, 1 - to, frame.bytes.clone()));
        }
        if let Some(filter) = &mut self.filter
            && !filter(1 - to, &frame.bytes)
        {
            return;
        }
        let with = self.impairment;
        if self.random.happens(with.loss) {
            return;
        }
        let copies = if self.random.happens(with.duplicate) {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let mut at = left_ns + with.delay_ns;
            if with.jitter_ns > 0 {
                at += self.random.below(with.jitter_ns);
            }
            if self.random.happens(with.reorder) {
                at += self.random.below(4 * with.delay_ns + 1);
            }
            if self.random.happens(with.corrupt) {
                // With checksum offload, damage would go unnoticed.
                if frame.checksum == ReceivedChecksum::Unknown {
                    let place = self.random.below(frame.bytes.len() as u64) as usize;
                    frame.bytes[place] ^= 1 << self.random.below(8);
                }
            }
            self.serial += 1;
            self.queue.insert((at, self.serial), (to, frame.clone()));
        }
    }

    /// Puts a frame on the link towards `to`, now.
    pub fn inject(&mut self, to: usize, bytes: Vec<u8>) {
        let frame = Frame {
            bytes,
            checksum: ReceivedChecksum::Unknown,
            segment_bytes: None,
        };
        self.put(to, frame);
    }

    /// Lets both send.
    pub fn flush(&mut self) {
        for from in 0..2 {
            let mut frames = Vec::new();
            self.stacks[from].transmit(self.now_ns, &mut |outgoing| {
                frames.push(Frame::of(outgoing));
                true
            });
            for frame in frames {
                self.put(1 - from, frame);
            }
        }
    }

    /// Time of the next event.
    pub fn next(&self) -> Option<u64> {
        let frame = self.queue.keys().next().map(|key| key.0);
        let timers = self.stacks.iter().map(Stack::next_timer);
        timers.chain([frame]).flatten().min()
    }

    /// Advances to the next event, and processes it; false if there is none or `until_ns` is
    /// earlier.
    pub fn step(&mut self, until_ns: u64) -> bool {
        self.flush();
        let Some(at) = self.next() else { return false };
        let at = at.max(self.now_ns);
        if at > until_ns {
            self.now_ns = until_ns;
            return false;
        }
        self.now_ns = at;
        while let Some(entry) = self.queue.first_entry() {
            if entry.key().0 > self.now_ns {
                break;
            }
            let (to, mut frame) = entry.remove();
            self.delivered += 1;
            deliver(&mut self.stacks[to], self.now_ns, &mut frame);
        }
        for stack in &mut self.stacks {
            stack.process_staged();
        }
        self.flush();
        true
    }

    /// Runs for a while.
    pub fn run(&mut self, ns: u64) {
        let until = self.now_ns + ns;
        while self.step(until) {}
        self.now_ns = until;
    }
}

/// Passes a frame like a NIC with direct placement.
pub fn deliver(stack: &mut Stack, now_ns: u64, frame: &mut Frame) {
    let split = match stack.room() {
        Some(room) if frame.bytes.len() > room.header_bytes => {
            let behind = &mut frame.bytes[room.header_bytes..];
            let [first, second] = room.payload;
            let count = behind.len().min(first.len());
            first[..count].copy_from_slice(&behind[..count]);
            second[..behind.len() - count].copy_from_slice(&behind[count..]);
            // The NIC's memory there holds bytes of another frame.
            behind.fill(0xee);
            true
        }
        _ => false,
    };
    if split {
        stack.receive_split(now_ns, frame.received());
    } else {
        stack.receive(now_ns, frame.received());
    }
}

pub const MS: u64 = 1_000_000;
pub const S: u64 = 1_000_000_000;
