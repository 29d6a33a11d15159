//! Traffic of a stack with itself takes a bounded part of a round, so that the NIC and the
//! applications get their turn: sockets that answer each other without end, LAND, self-connect.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use sidecore_net::engine::{Engine, EngineOptions};
use sidecore_net::nic::{Capabilities, Nic, NicError, Outgoing, Received, ReceivedChecksum};
use sidecore_net::{Cidr, Config, Stack, UdpId};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

/// Frames that one round takes from the loopback, at most (`LOOPED_FRAMES_MAX` of the engine).
const LOOPED_FRAMES_MAX: u64 = 1024;
const OURS: [u8; 4] = [10, 0, 0, 1];
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// A wire without a peer: sent frames are lost, received frames were put there before.
#[derive(Default)]
struct Lonely {
    received: VecDeque<Vec<u8>>,
    asked: u64,
}

/// Handle on the NIC that stays with the test.
type Wire = std::rc::Rc<std::cell::RefCell<Lonely>>;

struct LonelyNic(Wire);

impl Nic for LonelyNic {
    fn capabilities(&self) -> Capabilities {
        Capabilities::plain(MAC, 1500)
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, NicError> {
        let mut wire = self.0.borrow_mut();
        wire.asked += 1;
        let count = wire.received.len().min(budget);
        for mut bytes in wire.received.drain(..count) {
            sink(Received {
                bytes: &mut bytes,
                // As from a NIC with checksum offload: the test computes only IP's.
                checksum: ReceivedChecksum::Verified,
                segment_bytes: None,
            });
        }
        Ok(count)
    }

    fn transmit(&mut self, _: &Outgoing<'_>) -> Result<bool, NicError> {
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), NicError> {
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

fn engine(wire: &Wire) -> Engine<LonelyNic> {
    let nic = LonelyNic(Wire::clone(wire));
    let addresses = vec![Cidr {
        address: IpAddr::from(OURS),
        prefix_bits: 24,
    }];
    let config = Config {
        addresses,
        sessions_max: 64,
        ..Config::default()
    };
    let stack = Stack::new(config, &nic.capabilities()).unwrap();
    Engine::new(nic, stack, None, EngineOptions::default())
}

fn at(port: u16) -> SocketAddr {
    SocketAddr::from((OURS, port))
}

/// Answers every datagram with two, to the next socket.
fn multiply(stack: &mut Stack, sockets: &[UdpId]) -> usize {
    let (mut work, mut bytes) = (0, [0; 64]);
    while stack.next_event().is_some() {}
    for (number, &socket) in sockets.iter().enumerate() {
        while let Some((_, _, len)) = stack.receive_from(socket, &mut bytes).unwrap() {
            let next = at(7_000 + ((number + 1) % sockets.len()) as u16);
            // Without room it is lost, as on a wire.
            stack.send_to(socket, next, &bytes[..len]).ok();
            stack.send_to(socket, next, &bytes[..len]).ok();
            work += 1;
        }
    }
    work
}

#[test]
fn datagrams_that_multiply_leave_every_round_bounded() {
    let wire = Wire::default();
    let mut engine = engine(&wire);
    let stack = engine.stack();
    let bind = |number: u16| stack.bind_udp(at(7_000 + number)).unwrap();
    let sockets: Vec<UdpId> = (0..64).map(bind).collect();
    for &socket in &sockets {
        engine.stack().send_to(socket, at(7_000), b"storm").unwrap();
    }
    let (mut most, mut before) = (0, engine.stack().counters().frames_received);
    for round in 1..=200 {
        let mut local = |stack: &mut Stack| multiply(stack, &sockets);
        assert!(engine.round(&mut local).unwrap() > 0, "the storm goes on");
        let after = engine.stack().counters().frames_received;
        most = most.max(after - before);
        before = after;
        assert_eq!(wire.borrow().asked, round, "the NIC has its turn");
    }
    assert!(most <= LOOPED_FRAMES_MAX, "{most} frames in one round");
    assert!(most > LOOPED_FRAMES_MAX / 2, "{most}: this is no storm");
}

/// CERT advisory CA-1997-28: a SYN whose both ends are the same.
fn land(port: u16) -> Vec<u8> {
    let mut bytes = [MAC, [2, 0, 0, 0, 0, 9]].concat();
    bytes.extend([8, 0]);
    let mut ip = [0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0, 0].to_vec();
    ip.extend([OURS, OURS].concat());
    let words = ip
        .chunks(2)
        .map(|two| u32::from(two[0]) << 8 | u32::from(two[1]));
    let sum: u32 = words.sum();
    let checksum = !((sum & 0xffff) + (sum >> 16)) as u16;
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    bytes.extend(ip);
    bytes.extend([port.to_be_bytes(), port.to_be_bytes()].concat());
    bytes.extend([0, 0, 0, 9, 0, 0, 0, 0, 0x50, 2, 4, 0, 0, 0, 0, 0]);
    bytes
}

#[test]
fn land_and_self_connect_take_a_bounded_round_and_fall_silent() {
    const LANDS: u64 = 64;
    let wire = Wire::default();
    let mut engine = engine(&wire);
    engine.stack().listen(at(80), 16).unwrap();
    let session = engine.stack().connect(at(5_000), Some(at(5_000))).unwrap();
    let mut nothing = |_: &mut Stack| 0;
    let (mut before, mut looped) = (0, 0);
    for _ in 0..200 {
        wire.borrow_mut()
            .received
            .extend((0..LANDS).map(|_| land(80)));
        engine.round(&mut nothing).unwrap();
        let after = engine.stack().counters().frames_received;
        let frames = after - before;
        before = after;
        assert!(frames <= LANDS + LOOPED_FRAMES_MAX, "{frames} in one round");
        looped += frames - LANDS.min(frames);
    }
    let counters = engine.stack().counters();
    assert_eq!(counters.martians, 200 * LANDS, "{counters:?}");
    assert_eq!(engine.stack().sessions(), 1, "LAND opens nothing");
    assert!(engine.stack().readiness(session).unwrap().writable);
    assert!(
        looped < 200,
        "{looped} frames: it talks to itself without end"
    );
}
