//! Three stacks with one address, with manual handoffs.

use super::*;
use crate::frame::Capabilities;
use crate::wire::fragment::{self, Piece};
use crate::wire::tcp::{ACK, RST, SYN};
use crate::wire::{Ip, arp, udp};
use crate::{Cidr, Config, SessionId, Stack};
use std::net::{IpAddr, SocketAddr};

const OWN: [u8; 4] = [10, 0, 0, 1];
const PEER: [u8; 4] = [10, 0, 0, 2];
const OWN_MAC: Mac = [2, 0, 0, 0, 0, 1];
const PEER_MAC: Mac = [2, 0, 0, 0, 0, 2];
const NOW_NS: u64 = 1_000_000_000;

struct Shard3 {
    stacks: Vec<Stack>,
}

impl Shard3 {
    fn new() -> Self {
        let config = Config {
            addresses: vec![Cidr {
                address: IpAddr::from(OWN),
                prefix_bits: 24,
            }],
            sessions_max: 16,
            seed: 7,
            ..Config::default()
        };
        let stacks = (0..3).map(|index| {
            let nic = Capabilities::plain(OWN_MAC, 1500);
            let mut stack = Stack::new(config.clone(), &nic).expect("a stack");
            stack.join_shard(index, 3);
            stack
        });
        let mut all = Self {
            stacks: stacks.collect(),
        };
        let announced = all.sent();
        assert_eq!(announced.len(), 1, "an address is announced once");
        assert_eq!(announced[0].0, 0);
        all
    }

    /// Passes a frame to stack `to`; then carries all handoffs until none is left. Returns the sent
    /// frames, each with its stack.
    fn put(&mut self, to: usize, mut frame: Vec<u8>) -> Vec<(usize, Vec<u8>)> {
        let received = Received {
            bytes: &mut frame,
            checksum: ReceivedChecksum::Unknown,
            segment_bytes: None,
        };
        self.stacks[to].receive(NOW_NS, received);
        self.stacks[to].process_staged();
        self.carry();
        self.sent()
    }

    fn carry(&mut self) {
        for _ in 0..8 {
            for from in 0..3 {
                let mut handed = Vec::new();
                self.stacks[from].take_handoffs(&mut |one| {
                    let copy = Handoff {
                        bytes: one.bytes.clone(),
                        ..*one
                    };
                    handed.push(copy);
                });
                for mut one in handed {
                    let to: Vec<usize> = match one.kind {
                        HandoffKind::Notice | HandoffKind::Copy => {
                            (0..3).filter(|&to| to != from).collect()
                        }
                        HandoffKind::Fragment => vec![0],
                        HandoffKind::Stray { .. } => vec![(from + 1) % 3],
                    };
                    for to in to {
                        let stack = &mut self.stacks[to];
                        stack.receive_handoff(NOW_NS, &mut one);
                        stack.process_staged();
                    }
                }
            }
        }
        for stack in &mut self.stacks {
            stack.take_handoffs(&mut |one| panic!("{one:?} goes round without end"));
        }
    }

    fn sent(&mut self) -> Vec<(usize, Vec<u8>)> {
        let mut sent = Vec::new();
        for (number, stack) in self.stacks.iter_mut().enumerate() {
            stack.transmit(NOW_NS, &mut |frame| {
                let pieces = [frame.header, frame.payload[0], frame.payload[1]];
                sent.push((number, pieces.concat()));
                true
            });
        }
        sent
    }

    /// Introduces the peer to all stacks.
    fn introduce(&mut self) {
        let sent = self.put(0, arp_frame(arp::Operation::Reply));
        assert!(sent.is_empty(), "{sent:?}");
    }
}

fn arp_frame(operation: arp::Operation) -> Vec<u8> {
    let packet = arp::Arp {
        operation,
        sender_mac: PEER_MAC,
        sender: PEER,
        target_mac: [0; 6],
        target: OWN,
    };
    let link = Ethernet::new(OWN_MAC, PEER_MAC, ethernet::ARP);
    [link.as_bytes(), &packet.to_bytes()[..]].concat()
}

/// A packet from the peer.
fn packet(protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 14 + ip::V4_BYTES + payload.len()];
    let link = Ethernet::new(OWN_MAC, PEER_MAC, ethernet::IPV4);
    frame[..14].copy_from_slice(link.as_bytes());
    let (source, destination) = (Ip::v4(PEER), Ip::v4(OWN));
    ip::write(
        &mut frame[14..],
        &source,
        &destination,
        protocol,
        64,
        payload.len(),
    );
    frame[34..].copy_from_slice(payload);
    frame
}

fn segment(ports: [u16; 2], flags: u8, sequence: u32, acknowledgment: u32) -> Vec<u8> {
    let mut bytes = vec![0; 20];
    bytes[..2].copy_from_slice(&ports[0].to_be_bytes());
    bytes[2..4].copy_from_slice(&ports[1].to_be_bytes());
    bytes[4..8].copy_from_slice(&sequence.to_be_bytes());
    bytes[8..12].copy_from_slice(&acknowledgment.to_be_bytes());
    bytes[12] = 5 << 4;
    bytes[13] = flags;
    bytes[14..16].copy_from_slice(&1000_u16.to_be_bytes());
    let sum = crate::checksum::pseudo(&Ip::v4(PEER), &Ip::v4(OWN), ip::TCP)
        .plus_word(20)
        .plus(crate::checksum::Sum::of(&bytes));
    bytes[16..18].copy_from_slice(&sum.field());
    packet(ip::TCP, &bytes)
}

fn datagram(port: u16, payload: &[u8]) -> Vec<u8> {
    // No checksum, as IPv4 allows.
    let mut bytes = vec![0; udp::HEADER_BYTES];
    bytes[..2].copy_from_slice(&9000_u16.to_be_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..6].copy_from_slice(&((8 + payload.len()) as u16).to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

fn flags(frame: &[u8]) -> u8 {
    assert_eq!(frame[23], ip::TCP, "{frame:?}");
    frame[47]
}

fn any(port: u16) -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], port))
}

#[test]
fn a_listener_of_one_serves_what_comes_to_any() {
    let mut all = Shard3::new();
    let listener = all.stacks[2].listen(any(80), 8).expect("a listener");
    let sent = all.put(0, segment([5000, 80], SYN, 100, 0));
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].0, flags(&sent[0].1)), (2, SYN | ACK));
    let isn = u32::from_be_bytes(sent[0].1[38..42].try_into().expect("four bytes"));
    // The rest of the handshake arrives at yet another stack.
    let sent = all.put(1, segment([5000, 80], ACK, 101, isn.wrapping_add(1)));
    assert!(sent.is_empty(), "{sent:?}");
    let session = all.stacks[2].accept(listener).expect("a listener");
    assert!(session.is_some());
    // A reset that arrives at a stack with a listener of its own.
    all.stacks[1].listen(any(80), 8).expect("a listener");
    all.put(1, segment([5000, 80], RST, 101, 0));
    let over = all.stacks[2]
        .readiness(session.expect("a session"))
        .expect("a session");
    assert!(over.is_closed(), "{over:?}");
}

#[test]
fn what_nobody_wants_is_refused_once() {
    let mut all = Shard3::new();
    for to in 0..3 {
        let sent = all.put(to, segment([5000, 81], SYN, 100, 0));
        assert_eq!(sent.len(), 1, "to {to}: {sent:?}");
        assert_eq!(flags(&sent[0].1) & RST, RST);
        let sent = all.put(to, packet(ip::UDP, &datagram(53, b"any?")));
        assert_eq!(sent.len(), 1, "to {to}: {sent:?}");
        assert_eq!(sent[0].1[34..36], [3, 3], "port unreachable");
    }
}

#[test]
fn a_question_is_answered_once_and_its_sender_known_to_all() {
    let mut all = Shard3::new();
    let sent = all.put(1, arp_frame(arp::Operation::Request));
    assert_eq!(sent.len(), 1, "{sent:?}");
    assert_eq!(sent[0].0, 1);
    for stack in &mut all.stacks {
        let socket = stack.bind_udp(any(0)).expect("a socket");
        let to = SocketAddr::from((PEER, 9));
        stack.send_to(socket, to, b"I know you").expect("a way");
    }
    let sent = all.sent();
    assert_eq!(sent.len(), 3, "no questions: {sent:?}");
    assert!(sent.iter().all(|(_, frame)| frame[..6] == PEER_MAC));
    // Each has its own port, so that replies reach the right one.
    let mut ports: Vec<_> = sent
        .iter()
        .map(|(_, frame)| frame[34..36].to_vec())
        .collect();
    ports.dedup();
    assert_eq!(ports.len(), 3, "{ports:?}");
    let echo = [8, 0, 0xf7, 0xff, 0, 0, 0, 0];
    let sent = all.put(2, packet(ip::ICMP, &echo));
    assert_eq!((sent.len(), sent[0].0), (1, 2), "{sent:?}");
}

#[test]
fn fragments_meet_at_the_first_and_the_datagram_finds_its_socket() {
    let mut all = Shard3::new();
    let socket = all.stacks[1].bind_udp(any(53)).expect("a socket");
    let whole = datagram(53, &[7; 100]);
    for (to, range, more) in [(2, 0..56, true), (1, 56..108, false)] {
        let piece = Piece {
            identification: 9,
            offset: range.start,
            more,
            len: range.len(),
        };
        let (source, destination) = (Ip::v4(PEER), Ip::v4(OWN));
        let mut frame = vec![0; 14 + fragment::head_bytes(&source)];
        let link = Ethernet::new(OWN_MAC, PEER_MAC, ethernet::IPV4);
        frame[..14].copy_from_slice(link.as_bytes());
        let ends = (&source, &destination);
        fragment::write(&mut frame[14..], ends, ip::UDP, 64, &piece);
        frame.extend_from_slice(&whole[range]);
        assert!(all.put(to, frame).is_empty());
    }
    assert_eq!(all.stacks[0].counters().packets_reassembled, 1);
    let mut bytes = [0; 128];
    let received = all.stacks[1]
        .receive_from(socket, &mut bytes)
        .expect("a socket");
    assert_eq!(received.map(|(_, _, len)| len), Some(100));
    assert_eq!(bytes[..100], [7; 100]);
}

/// A peer that takes a datagram over hears of its hop limit and traffic class.
#[test]
fn a_datagram_keeps_its_marks_on_its_way_to_a_peer() {
    let mut all = Shard3::new();
    let socket = all.stacks[1].bind_udp(any(53)).expect("a socket");
    let mut frame = packet(ip::UDP, &datagram(53, b"marked"));
    let (source, destination) = (Ip::v4(PEER), Ip::v4(OWN));
    let len = frame.len() - 34;
    ip::write(&mut frame[14..], &source, &destination, ip::UDP, 61, len);
    ip::set_traffic_class(&mut frame[14..], 0xb8);
    ip::set_codepoint(&mut frame[14..], Codepoint::Ce);
    assert!(all.put(2, frame).is_empty());
    let got = all.stacks[1].receive_part(socket, 0, 100, &mut |_| {});
    let got = got.expect("arrives");
    assert_eq!((got.hops, got.class), (61, 0xbb));
}

#[test]
fn a_datagram_to_all_reaches_every_socket_once() {
    let mut all = Shard3::new();
    let sockets: Vec<_> = all
        .stacks
        .iter_mut()
        .map(|stack| stack.bind_udp(any(67)))
        .collect();
    let mut frame = packet(ip::UDP, &datagram(67, b"all"));
    frame[..6].copy_from_slice(&[0xff; 6]);
    let (source, destination) = (Ip::v4(PEER), Ip::v4([255; 4]));
    let len = frame.len() - 34;
    ip::write(&mut frame[14..], &source, &destination, ip::UDP, 64, len);
    assert!(all.put(1, frame).is_empty());
    for (stack, socket) in all.stacks.iter_mut().zip(sockets) {
        let socket = socket.expect("a socket");
        assert!(
            stack
                .receive_from(socket, &mut [0; 8])
                .expect("a socket")
                .is_some()
        );
        assert!(
            stack
                .receive_from(socket, &mut [0; 8])
                .expect("a socket")
                .is_none()
        );
    }
}

#[test]
fn sessions_that_are_opened_have_flows_of_their_own_and_errors_reach_them() {
    let mut all = Shard3::new();
    all.introduce();
    let peer = SocketAddr::from((PEER, 80));
    let mut sessions: Vec<(usize, SessionId)> = Vec::new();
    for number in 0..3 {
        for _ in 0..4 {
            let session = all.stacks[number].connect(peer, None).expect("a session");
            let (own, _) = all.stacks[number].addresses(session).expect("a session");
            let hash = flow::hash(own, peer);
            assert_eq!(flow::engine_of(hash, 3), number);
            sessions.push((number, session));
        }
    }
    let syns = all.sent();
    assert_eq!(syns.len(), 12, "{syns:?}");
    for ((number, session), (from, syn)) in sessions.iter().zip(&syns) {
        assert_eq!(from, number);
        // Host unreachable, about that SYN, to a peer.
        let mut error = vec![3, 1, 0, 0, 0, 0, 0, 0];
        error.extend_from_slice(&syn[14..42]);
        let field = crate::checksum::Sum::of(&error).field();
        error[2..4].copy_from_slice(&field);
        let sent = all.put((number + 1) % 3, packet(ip::ICMP, &error));
        assert!(sent.is_empty(), "{sent:?}");
        let over = all.stacks[*number].readiness(*session).expect("a session");
        assert!(over.is_closed());
    }
}

#[test]
fn what_does_not_fit_is_lost_and_counted() {
    let mut all = Shard3::new();
    let mut frame = segment([5000, 81], SYN, 100, 0);
    for _ in 0..OUTBOX_FRAMES + 10 {
        let received = Received {
            bytes: &mut frame,
            checksum: ReceivedChecksum::Verified,
            segment_bytes: None,
        };
        all.stacks[0].receive(NOW_NS, received);
    }
    let mut count = 0;
    let lost = all.stacks[0].take_handoffs(&mut |_| count += 1);
    assert_eq!((count, lost), (OUTBOX_FRAMES, 10));
    assert_eq!(all.stacks[0].take_handoffs(&mut |_| ()), 0);
}
