//! One stack, with manually built frames as its input.
//!
//! Must stay true: the stack's own code is not used to build them.

use super::segment::internet_checksum;
use super::{Frame, S, config, plain, v4, v6};
use sidecore_net_stack::{Config, Counters, Stack};
use std::net::SocketAddr;

pub const OUR_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub const PEER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
pub const OURS: [u8; 4] = [10, 0, 0, 1];
pub const PEER: [u8; 4] = [10, 0, 0, 2];
pub const ALL_NODES: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// One stack, and the frames that it sends.
pub struct Lone {
    pub stack: Stack,
    pub now_ns: u64,
}

impl Lone {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = config(1, 1);
        change(&mut config);
        let mut lone = Self {
            stack: Stack::new(config, &plain(1)).expect("a stack"),
            now_ns: S,
        };
        lone.stack.listen(v4(1, 80), 16).expect("listens");
        lone.stack.listen(v6(1), 16).expect("listens");
        lone.sent();
        lone
    }

    pub fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        self.stack.transmit(self.now_ns, &mut |outgoing| {
            frames.push(Frame::of(outgoing).bytes);
            true
        });
        frames
    }

    /// Frames that the stack sends in reply to one; neighbours are resolved.
    pub fn answers(&mut self, mut bytes: Vec<u8>) -> Vec<Vec<u8>> {
        let received = sidecore_net_stack::frame::Received {
            bytes: &mut bytes,
            checksum: sidecore_net_stack::frame::ReceivedChecksum::Unknown,
            segment_bytes: None,
        };
        self.stack.receive(self.now_ns, received);
        self.stack.process_staged();
        self.sent()
    }

    pub fn counters(&self) -> Counters {
        self.stack.counters()
    }

    /// Returns frames that it sends to itself, as the engine's loopback does, without advancing
    /// time; the number of frames until it is silent.
    pub fn loop_back(&mut self, frames_max: usize) -> usize {
        let mut count = 0;
        loop {
            let mut frames = Vec::new();
            self.stack.transmit(self.now_ns, &mut |outgoing| {
                frames.push(Frame::of(outgoing));
                true
            });
            frames.retain(|frame| frame.bytes.starts_with(&OUR_MAC));
            if frames.is_empty() {
                return count;
            }
            for frame in &mut frames {
                count += 1;
                assert!(count <= frames_max, "{count} frames went round");
                self.stack.receive_own(self.now_ns, frame.received());
            }
            self.stack.process_staged();
        }
    }
}

pub fn ethernet(destination: [u8; 6], kind: u16, packet: &[u8]) -> Vec<u8> {
    let mut bytes = [destination, PEER_MAC].concat();
    bytes.extend(kind.to_be_bytes());
    bytes.extend(packet);
    bytes
}

/// An IPv4 packet; `options` in whole words.
pub fn ipv4(from: [u8; 4], to: [u8; 4], protocol: u8, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let header = 20 + options.len();
    let total = (header + payload.len()) as u16;
    let mut packet = vec![0x40 | (header / 4) as u8, 0];
    packet.extend(total.to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    packet.extend([from, to].concat());
    packet.extend(options);
    let sum = internet_checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(payload);
    packet
}

pub fn ipv6(from: [u8; 16], to: [u8; 16], next: u8, payload: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend((payload.len() as u16).to_be_bytes());
    packet.extend([next, 255]);
    packet.extend([from, to].concat());
    packet.extend(payload);
    packet
}

/// A payload with the checksum of its pseudo-header at `at`.
pub fn sealed(from: &[u8], to: &[u8], protocol: u8, mut payload: Vec<u8>, at: usize) -> Vec<u8> {
    let mut all = [from, to].concat();
    all.extend([0, protocol]);
    all.extend((payload.len() as u16).to_be_bytes());
    all.extend(&payload);
    let sum = internet_checksum(&all);
    payload[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    payload
}

pub fn segment(ports: [u16; 2], sequence: u32, acknowledgment: u32, flags: u8) -> Vec<u8> {
    let mut bytes = ports.map(u16::to_be_bytes).concat();
    bytes.extend(sequence.to_be_bytes());
    bytes.extend(acknowledgment.to_be_bytes());
    bytes.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    bytes
}

pub fn echo(kind: u8) -> Vec<u8> {
    let mut bytes = vec![kind, 0, 0, 0, 0, 1, 0, 1, 1, 2, 3, 4];
    let sum = internet_checksum(&bytes);
    bytes[2..4].copy_from_slice(&sum.to_be_bytes());
    bytes
}

pub fn v6_bytes(number: u8) -> [u8; 16] {
    match v6(number) {
        SocketAddr::V6(address) => address.ip().octets(),
        SocketAddr::V4(_) => unreachable!(),
    }
}
