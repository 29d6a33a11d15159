//! Fragmented packets: reassembly, rejection, cost, and sending.

use crate::common;
use crate::common_fragments as fragments;

use common::{MS, Random, S, World, v4, v6};
use fragments::{Jumble, Piece, TCP, Target, UDP, cut, datagram, echo, frame, join, read};
use sidecore_net_stack::NetError;
use std::collections::HashSet;

/// As in `reassembly.rs`.
const DATAGRAMS_MAX: usize = 128;
const BYTES_MAX: usize = 4 << 20;

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random(seed);
    (0..len).map(|_| random.bits() as u8).collect()
}

#[test]
fn datagrams_of_any_length_arrive() {
    for (first, from, to, most) in [
        (true, v4(1, 0), v4(2, 53), 65_507),
        (false, v6(1), v6(2), 65_527),
    ] {
        let mut world = World::new(5);
        world.trace = Some(Vec::new());
        let sender = world.stacks[0].bind_udp(from).expect("binds");
        let receiver = world.stacks[1].bind_udp(to).expect("binds");
        let mut bytes = vec![0; 70_000];
        // The first one waits for the neighbour's address.
        for len in [
            9000, 0, 1400, 1452, 1453, 1472, 1473, 2960, 8000, 65_000, most,
        ] {
            let sent = pattern(len as u64, len);
            world.stacks[0].send_to(sender, to, &sent).expect("sends");
            world.run(10 * MS);
            let got = world.stacks[1].receive_from(receiver, &mut bytes);
            let (_, _, got) = got.expect("open").expect("a datagram");
            assert_eq!(bytes[..got], sent, "{len} bytes, IPv4: {first}");
        }
        let error = world.stacks[0].send_to(sender, to, &vec![0; most + 1]);
        assert!(matches!(error, Err(NetError::TooLong { limit, .. }) if limit == most));
        let trace = world.trace.take().expect("was asked for");
        let mut pieces = 0;
        for (_, _, frame) in &trace {
            assert!(frame.len() <= 14 + 1500, "{} bytes", frame.len());
            pieces += u64::from(read(frame).is_some());
        }
        let [sent, received] = [0, 1].map(|at| world.stacks[at].counters());
        assert_eq!(sent.fragments_sent, pieces);
        assert_eq!(received.fragments_received, pieces);
        assert_eq!(sent.packets_fragmented, received.packets_reassembled);
        assert!(sent.packets_fragmented >= 6);
        assert_eq!(world.stacks[1].fragments_held(), (0, 0));
        assert_eq!(world.stacks[1].buffers().in_use, 0);
    }
}

#[test]
fn large_echo_requests_are_answered() {
    for v4 in [true, false] {
        let mut target = Target::new();
        let protocol = if v4 { 1 } else { 58 };
        let request = echo(v4, 20_000);
        for piece in cut(9, protocol, &request, 1448) {
            target.put(frame(v4, 2, &piece));
        }
        let pieces: Vec<Piece> = target.out.iter().filter_map(|frame| read(frame)).collect();
        assert_eq!(pieces.len(), target.out.len());
        let answer = join(&pieces);
        assert_eq!(answer[0], if v4 { 0 } else { 129 });
        assert_eq!(answer[4..], request[4..]);
        if v4 {
            assert_eq!(target.out[0][30..34], [10, 0, 0, 2]);
        }
    }
}

/// Any order and any repetition: each packet is delivered once, unchanged. With contradictory
/// fragments it may not be delivered, but never with wrong bytes.
#[test]
fn pieces_come_in_any_order() {
    let (mut random, mut refused, mut whole) = (Random(77), 0, 0);
    for round in 0..3000_u32 {
        let Jumble {
            v4,
            sent,
            pieces,
            honest,
        } = Jumble::new(&mut random, round);
        let mut target = Target::new();
        for piece in &pieces {
            target.put(frame(v4, 2, piece));
        }
        let got = target.read();
        if honest {
            assert_eq!(got.as_deref(), Some(&sent[..]), "round {round}");
        }
        if let Some(got) = got {
            assert_eq!(got, sent, "round {round}");
            whole += 1;
        } else {
            refused += 1;
        }
        assert_eq!(target.read(), None, "once");
        assert!(target.out.is_empty(), "no answer");
        target.wait(61 * S);
        assert_eq!(target.stack.fragments_held(), (0, 0));
        assert_eq!(target.stack.buffers().in_use, 0);
    }
    assert!(whole > 1500 && refused > 100, "{whole} {refused}");
}

#[test]
fn what_contradicts_refuses_what_comes_later_too() {
    for v4 in [true, false] {
        let mut target = Target::new();
        let packet = datagram(v4, &pattern(3, 2000));
        let pieces = cut(5, UDP, &packet, 800);
        let over = Piece {
            offset: 792,
            bytes: packet[792..808].to_vec(),
            ..pieces[0].clone()
        };
        target.put(frame(v4, 2, &pieces[0]));
        target.put(frame(v4, 2, &over));
        for piece in &pieces {
            target.put(frame(v4, 2, piece));
        }
        assert_eq!(target.read(), None);
        assert_eq!(target.stack.counters().reassemblies_refused, 1);
        assert_eq!(target.stack.buffers().in_use, 0);
        // RFC 8200 section 4.5: no error is sent.
        target.wait(61 * S);
        assert!(target.out.is_empty());
        assert_eq!(target.stack.fragments_held(), (0, 0));
        // Then the number may be reused.
        for piece in &pieces {
            target.put(frame(v4, 2, piece));
        }
        assert!(target.read().is_some());
    }
}

/// RFC 792, RFC 1122 section 3.3.2, RFC 8200 section 4.5.
#[test]
fn what_is_late_is_told() {
    for (v4, wait) in [(true, 30 * S), (false, 60 * S)] {
        let mut target = Target::new();
        let packet = datagram(v4, &pattern(3, 3000));
        let pieces = cut(5, UDP, &packet, 1200);
        target.put(frame(v4, 2, &pieces[0]));
        target.put(frame(v4, 2, &pieces[1]));
        // Without the first fragment, no error is sent.
        let others = cut(6, UDP, &packet, 1200);
        target.put(frame(v4, 2, &others[1]));
        target.wait(wait - 10 * MS);
        assert!(target.out.is_empty());
        assert_eq!(target.stack.fragments_held().0, 2);
        target.wait(20 * MS);
        assert_eq!(target.stack.fragments_held(), (0, 0));
        assert_eq!(target.stack.counters().reassemblies_late, 2);
        assert_eq!(target.out.len(), 1);
        let (out, first) = (&target.out[0], frame(v4, 2, &pieces[0]));
        if v4 {
            assert_eq!((out[23], &out[34..36]), (1, &[11, 1][..]));
            assert_eq!(out[42..], first[14..14 + out.len() - 42]);
            assert_eq!(out.len(), 14 + 576);
        } else {
            assert_eq!((out[20], &out[54..56]), (58, &[3, 1][..]));
            assert_eq!(out[62..], first[14..14 + out.len() - 62]);
            assert_eq!(out.len(), 14 + 1280);
        }
        // Later fragments start a new packet.
        target.put(frame(v4, 2, &pieces[2]));
        assert_eq!(target.read(), None);
        target.wait(wait);
        assert_eq!(target.out.len(), 1);
    }
}

/// Many packets that are never completed: bounded memory, the oldest is evicted, and a valid one is
/// delivered.
#[test]
fn memory_is_bounded_and_the_oldest_goes() {
    let mut random = Random(4);
    let mut target = Target::new();
    let sent = pattern(8, 9000);
    for round in 0..20_000_u32 {
        let v4 = random.happens(500_000);
        let piece = Piece {
            identification: round,
            offset: 8 * random.below(8000) as usize,
            more: true,
            protocol: UDP,
            bytes: vec![1; 8 * (1 + random.below(100) as usize)],
        };
        target.put(frame(v4, 3 + random.below(200) as u8, &piece));
        let (datagrams, bytes) = target.stack.fragments_held();
        assert!(datagrams <= DATAGRAMS_MAX && bytes <= BYTES_MAX, "{bytes}");
        if round % 1000 == 999 {
            for piece in cut(round, UDP, &datagram(v4, &sent), 1400) {
                target.put(frame(v4, 2, &piece));
            }
            assert_eq!(target.read().as_deref(), Some(&sent[..]));
        }
        target.now_ns += 100_000;
    }
    let counters = target.stack.counters();
    assert!(counters.reassemblies_evicted > 19_000, "{counters:?}");
    // Buffers grow in slabs of 2 MiB; four classes have one.
    assert!(target.stack.buffers().allocated_bytes <= BYTES_MAX + 4 * (2 << 20));
    target.wait(61 * S);
    assert_eq!(target.stack.fragments_held(), (0, 0));
    assert_eq!(target.stack.buffers().in_use, 0);
}

#[test]
fn what_no_honest_sender_makes_is_refused() {
    // Beyond the maximum packet length.
    let beyond = Piece {
        identification: 3,
        offset: 65_528,
        more: false,
        protocol: UDP,
        bytes: vec![0; 100],
    };
    let mut target = Target::new();
    target.put(frame(true, 2, &beyond));
    assert_eq!(target.stack.counters().reassemblies_refused, 1);
    assert!(target.out.is_empty());
    // RFC 8200 section 4.5: at the wrong field, or the header chain of a first fragment.
    let crooked = Piece {
        offset: 8,
        more: true,
        bytes: vec![0; 13],
        ..beyond.clone()
    };
    let torn = Piece {
        offset: 0,
        more: true,
        protocol: TCP,
        bytes: vec![0; 16],
        ..beyond.clone()
    };
    for (piece, code, pointer) in [(&beyond, 0, 42), (&crooked, 0, 4), (&torn, 3, 0)] {
        target.out.clear();
        target.put(frame(false, 2, piece));
        let out = &target.out[0];
        assert_eq!((out[20], &out[54..56]), (58, &[4, code][..]));
        assert_eq!(out[58..62], u32::to_be_bytes(pointer));
        assert_eq!(out[62..], frame(false, 2, piece)[14..]);
    }
    // RFC 1858: IPv4's are refused silently, and so is the rest.
    target.out.clear();
    target.put(frame(true, 2, &torn));
    target.put(frame(true, 2, &crooked));
    assert!(target.out.is_empty());
    assert_eq!(target.stack.counters().reassemblies_refused, 2);
    assert_eq!(target.stack.buffers().in_use, 0);
}

/// RFC 6946: a fragment that is a whole packet is processed alone.
#[test]
fn atomic_fragments_stand_alone() {
    let mut target = Target::new();
    let packet = datagram(false, &pattern(3, 2000));
    let pieces = cut(5, UDP, &packet, 1200);
    target.put(frame(false, 2, &pieces[0]));
    let atomic = &cut(5, UDP, &datagram(false, b"alone"), 1200)[0];
    target.put(frame(false, 2, atomic));
    assert_eq!(target.read().as_deref(), Some(&b"alone"[..]));
    target.put(frame(false, 2, &pieces[1]));
    assert_eq!(target.read().map(|bytes| bytes.len()), Some(2000));
}

/// A session's segments arrive in fragments, cut in transit (IPv4).
#[test]
fn segments_in_pieces_are_taken() {
    let mut world = World::new(5);
    let listener = world.stacks[1].listen(v4(2, 80), 4).expect("listens");
    let client = world.stacks[0].connect(v4(2, 80), None).expect("connects");
    world.run(10 * MS);
    let server = world.stacks[1].accept(listener).expect("open");
    let server = server.expect("one");
    // Packets to the server are intercepted, cut, and passed on.
    let caught = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let catches = std::rc::Rc::clone(&caught);
    world.filter = Some(Box::new(move |from, bytes: &[u8]| {
        let long = from == 0 && bytes.len() > 1000;
        if long {
            catches.borrow_mut().push(bytes.to_vec());
        }
        !long
    }));
    let sent = pattern(1, 5000);
    let mut left = &sent[..];
    let mut got = Vec::new();
    let mut number = 0;
    for _ in 0..100 {
        let taken = world.stacks[0].write(client, left).expect("open");
        left = &left[taken..];
        world.flush();
        let all: Vec<Vec<u8>> = caught.borrow_mut().drain(..).collect();
        for bytes in all {
            number += 1;
            let pieces = cut(number, TCP, &bytes[34..], 488);
            for piece in pieces.iter().rev() {
                let mut piece = frame(true, 2, piece);
                // From the first stack to the second.
                piece[..12].copy_from_slice(&bytes[..12]);
                piece[26..34].copy_from_slice(&bytes[26..34]);
                world.inject(1, piece);
            }
        }
        world.run(MS);
        let mut bytes = [0; 10_000];
        let count = world.stacks[1].read(server, &mut bytes).unwrap_or(0);
        got.extend_from_slice(&bytes[..count]);
        if got.len() == sent.len() {
            break;
        }
    }
    assert_eq!(got, sent);
    assert!(world.stacks[1].counters().packets_reassembled >= 3);
    assert_eq!(world.stacks[0].counters().retransmitted, 0);
}

/// RFC 1191, RFC 8201: a router's report about a datagram's path applies to the next ones.
#[test]
fn datagrams_fit_the_way() {
    for (first, from, to) in [(true, v4(1, 0), v4(2, 53)), (false, v6(1), v6(2))] {
        let mut world = World::new(5);
        let sender = world.stacks[0].bind_udp(from).expect("binds");
        let receiver = world.stacks[1].bind_udp(to).expect("binds");
        world.stacks[0].send_to(sender, to, b"?").expect("sends");
        world.run(10 * MS);
        world.trace = Some(Vec::new());
        let long = pattern(1, 5000);
        let longest = |world: &mut World| {
            world.stacks[0].send_to(sender, to, &long).expect("sends");
            world.run(10 * MS);
            let trace = world.trace.replace(Vec::new()).expect("was asked for");
            let sizes = trace.iter().map(|(_, _, frame)| frame.len() - 14);
            (sizes.max().expect("some"), trace)
        };
        let (most, trace) = longest(&mut world);
        assert_eq!(most, if first { 1500 } else { 1496 });
        let about = &trace[0].2[14..];
        // From a router: a report about another host's datagram is not accepted.
        let other = if first { 20 } else { 48 };
        let mut forged = about.to_vec();
        forged[other] ^= 0x40;
        for (about, expected) in [
            (&forged[..], most),
            (about, if first { 1396 } else { 1400 }),
        ] {
            world.inject(0, too_big(first, about, 1400));
            world.run(MS);
            world.trace = Some(Vec::new());
            assert_eq!(longest(&mut world).0, expected);
        }
        assert_eq!(world.stacks[0].counters().paths_shrunk, 1);
        // After ten minutes the path may have become wider.
        world.run(601 * S);
        world.flush();
        world.trace = Some(Vec::new());
        assert_eq!(longest(&mut world).0, most);
        let mut bytes = [0; 5000];
        world.stacks[1]
            .receive_from(receiver, &mut bytes)
            .expect("open");
    }
}

/// From a router on the link to the first stack.
fn too_big(v4: bool, about: &[u8], mtu: u16) -> Vec<u8> {
    let quoted = &about[..about.len().min(200)];
    let kind: [u8; 2] = if v4 { [3, 4] } else { [2, 0] };
    let mut message = [kind.as_slice(), &[0; 4], &mtu.to_be_bytes(), quoted].concat();
    let sum = if v4 {
        !message
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]))
            .fold(0_u32, |sum, word| (sum + word) % 0xffff) as u16
    } else {
        fragments::checksum(v4, 58, &message)
    };
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let protocol = if v4 { 1 } else { 58 };
    let whole = frame(
        v4,
        2,
        &Piece {
            identification: 0,
            offset: 0,
            more: false,
            protocol,
            bytes: message,
        },
    );
    // IPv6: an atomic fragment, which is accepted as it is.
    whole
}

/// RFC 7739, RFC 6864: identifications that cannot be predicted from those towards another host,
/// and that are reused late.
#[test]
fn identifications_differ() {
    let mut begins = HashSet::new();
    for seed in 0..20 {
        for (from, to) in [(v4(1, 0), v4(2, 53)), (v6(1), v6(2))] {
            let mut world = World::new(seed);
            let sender = world.stacks[0].bind_udp(from).expect("binds");
            world.stacks[0].send_to(sender, to, b"?").expect("sends");
            world.run(10 * MS);
            world.trace = Some(Vec::new());
            let mut seen = HashSet::new();
            for _ in 0..200 {
                world.stacks[0]
                    .send_to(sender, to, &[7; 2000])
                    .expect("sends");
                world.run(MS);
            }
            for (_, from, frame) in world.trace.take().expect("was asked for") {
                if let Some(piece) = read(&frame).filter(|_| from == 0) {
                    seen.insert(piece.identification);
                    begins.extend((seen.len() == 1).then_some(piece.identification));
                }
            }
            assert_eq!(seen.len(), 200);
        }
    }
    assert!(begins.len() >= 38, "{begins:?}");
}
