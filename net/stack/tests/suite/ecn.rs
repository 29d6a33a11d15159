//! Explicit congestion notification end to end: a bottleneck that marks, networks that mark, bleach
//! and falsify, and every receive path of a session.
//!
//! Tests of single segments and their replies are in
//! `lab/drill/tests/drill/ecn.drill`.

use crate::common;
use crate::common_fragments as fragments;

use common::bottleneck::Bottleneck;
use common::segment::{
    CE, CWR, ECE, ECT_0, NOT_ECT, ecn, flags_at, set_ecn, set_flags, set_offset_and_flags,
};
use common::{Frame, MS, Random, S, World, offloading, plain, v4, v6};
use fragments::{Target, UDP, cut, datagram, frame};
use sidecore_net_stack::frame::{Capabilities, ReceivedChecksum};
use sidecore_net_stack::{Algorithm, Config, Ecn, EcnMode, SessionId};
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

/// A session from end 0 to end 1 that is open at both.
fn open(world: &mut World, to: SocketAddr) -> [SessionId; 2] {
    let listener = world.stacks[1].listen(to, 4).expect("listens");
    let client = world.stacks[0].connect(to, None).expect("connects");
    world.run(S);
    let server = world.stacks[1].accept(listener).expect("listens");
    [client, server.expect("one session")]
}

/// Sends for a while; bytes that arrived.
fn stream(world: &mut World, [from, to]: [SessionId; 2], ns: u64) -> u64 {
    let (data, mut scratch) = (vec![7; 1 << 20], vec![0; 1 << 20]);
    let until = world.now_ns + ns;
    let mut got = 0;
    while world.now_ns < until {
        world.stacks[0].write(from, &data).expect("open");
        got += world.stacks[1].read(to, &mut scratch).expect("open") as u64;
        let at = (world.now_ns + MS).min(until);
        if !world.step(at) {
            world.now_ns = at;
        }
    }
    got
}

fn active(config: &mut Config) {
    config.ecn = Ecn::Active;
}

/// Through a link that marks behind 5 ms of queue nothing is dropped and nothing is retransmitted,
/// and the link is used: by both algorithms, with and without a NIC that cuts.
#[test]
fn a_link_that_marks_is_used_and_drops_nothing() {
    for (mbit, delay_ms, seconds) in [(10, 1, 20), (10, 10, 20), (100, 1, 5), (100, 10, 10)] {
        for (nic, algorithm) in [
            (plain as fn(u8) -> Capabilities, Algorithm::Cubic),
            (offloading, Algorithm::Cubic),
            (plain, Algorithm::Reno),
        ] {
            let mut world = World::with(1, [nic(1), nic(2)], |config| {
                config.ecn = Ecn::Active;
                config.congestion = algorithm;
            });
            world.impairment.delay_ns = delay_ms * MS;
            // Room for slow start, which gets the first echo a round trip late.
            let room = Bottleneck::marking(mbit * 1_000_000, 1 << 20, 5 * MS);
            world.bottleneck = Some(room);
            let ends = open(&mut world, v4(2, 80));
            let got = stream(&mut world, ends, seconds * S);
            let most = (mbit * 1_000_000 / 8 * seconds) as f64 * 1448.0 / 1514.0;
            let used = got as f64 / most;
            let counters = world.stacks[0].counters();
            let queue = world.bottleneck.expect("still there");
            let case = format!("{mbit} Mbit, {delay_ms} ms, {algorithm:?}");
            eprintln!(
                "{case}: {used:.3} used, {} marked, {} reductions, {} dropped, queue of {} bytes",
                queue.marked, counters.ecn_reductions, queue.dropped, queue.backlog_bytes_max
            );
            assert!(used >= 0.95, "{case}: {used:.3} of the rate");
            assert_eq!((queue.dropped, counters.retransmitted), (0, 0), "{case}");
            assert!(queue.marked > 0 && counters.ecn_reductions > 0, "{case}");
            // Each mark that arrived was counted, on any receive path.
            let seen = world.stacks[1].counters().ecn_ce_received;
            assert!(
                seen <= queue.marked && seen + 1000 >= queue.marked,
                "{case}: {seen}"
            );
        }
    }
}

/// The same link drops packets that are not ECN-capable, so the comparison is fair: without ECN it
/// costs drops and retransmissions.
#[test]
fn without_ecn_the_same_link_drops() {
    let mut world = World::with(1, [plain(1), plain(2)], |config| config.ecn = Ecn::Passive);
    world.impairment.delay_ns = MS;
    world.bottleneck = Some(Bottleneck::marking(10_000_000, 1 << 20, 5 * MS));
    let ends = open(&mut world, v4(2, 80));
    stream(&mut world, ends, 10 * S);
    let queue = world.bottleneck.expect("still there");
    assert!(queue.dropped > 0 && queue.marked == 0);
    assert!(world.stacks[0].counters().retransmitted > 0);
    assert_eq!(world.stacks[0].counters().ecn_sessions, 0);
}

/// Counts marks set on a share of the ECN-capable frames of end 0.
fn marker(world: &mut World, per_million: u64) -> Rc<Cell<u64>> {
    let marked = Rc::new(Cell::new(0));
    let (count, mut random) = (marked.clone(), Random(3));
    world.meddler = Some(Box::new(move |from, frame: &mut Frame| {
        if from == 0 && ecn(&frame.bytes) == ECT_0 && random.happens(per_million) {
            set_ecn(&mut frame.bytes, CE);
            count.set(count.get() + 1);
        }
    }));
    marked
}

/// No mark is missed on any receive path: by the table, by the last flow, staged with many, or
/// placed in the receive ring by the NIC.
#[test]
fn every_mark_is_seen_on_every_way_in() {
    for (nic, to) in [
        (plain as fn(u8) -> Capabilities, v4(2, 80)),
        (plain, v6(2)),
        (offloading, v4(2, 80)),
        (offloading, v6(2)),
    ] {
        let mut world = World::with(1, [nic(1), nic(2)], active);
        let ends = open(&mut world, to);
        // Without marks the fast paths are used.
        stream(&mut world, ends, 100 * MS);
        let landed = world.stacks[1].counters().direct_placements;
        assert_eq!(landed > 0, nic(1).merges_received, "{to}");
        let marked = marker(&mut world, 100_000);
        stream(&mut world, ends, S);
        world.run(S);
        let seen = world.stacks[1].counters().ecn_ce_received;
        assert!(marked.get() > 20, "{to}: {} marked", marked.get());
        assert_eq!(seen, marked.get(), "{to}");
        let info = world.stacks[1].info(ends[1]).expect("open");
        assert!(info.ecn == EcnMode::Classic && info.ecn_seen);
        assert!(world.stacks[0].counters().ecn_reductions > 5);
    }
}

/// Section 6.1.1, 6.1.4 and 6.1.5 over a whole exchange with losses: SYNs, pure acknowledgments and
/// retransmissions are not ECN-capable, all new data is, and CWR is on new data alone.
#[test]
fn only_new_data_is_ecn_capable() {
    for nic in [plain as fn(u8) -> Capabilities, offloading] {
        let mut world = World::with(9, [nic(1), nic(2)], active);
        world.impairment.loss = 20_000;
        world.trace = Some(Vec::new());
        let ends = open(&mut world, v4(2, 80));
        let marked = marker(&mut world, 20_000);
        stream(&mut world, ends, 2 * S);
        world.run(2 * S);
        let (mut next, mut again, mut cwr) = (None, 0, 0);
        for (_, from, bytes) in world.trace.take().expect("was asked for") {
            let Some(at) = flags_at(&bytes) else { continue };
            let payload = bytes.len() - 34 - usize::from(bytes[46] >> 4) * 4;
            let sequence = u32::from_be_bytes(bytes[38..42].try_into().expect("four"));
            let capable = ecn(&bytes) != NOT_ECT;
            if from == 1 || payload == 0 {
                assert!(!capable, "flags {:#x}", bytes[at]);
                continue;
            }
            let end = sequence.wrapping_add(payload as u32);
            let new = next.is_none_or(|next: u32| end.wrapping_sub(next) as i32 > 0);
            assert_eq!(capable, new, "{sequence} of {next:?}");
            if new {
                next = Some(end);
                cwr += usize::from(bytes[at] & CWR != 0);
            } else {
                again += 1;
                assert_eq!(bytes[at] & CWR, 0, "CWR on what is sent again");
            }
            // The NIC that cuts it might repeat CWR.
            assert!(bytes[at] & CWR == 0 || payload <= 1448, "{payload}");
        }
        assert!(
            again > 10 && cwr > 10 && marked.get() > 10,
            "{again}, {cwr}"
        );
    }
}

/// A peer, or a middlebox, that echoes marks without end costs speed, but not the session: the
/// window stays at two segments or more, and all data arrives.
#[test]
fn a_flood_of_echoes_leaves_two_segments() {
    for algorithm in [Algorithm::Cubic, Algorithm::Reno] {
        let mut world = World::with(2, [plain(1), plain(2)], |config| {
            config.ecn = Ecn::Active;
            config.congestion = algorithm;
        });
        world.impairment.delay_ns = 5 * MS;
        let ends = open(&mut world, v4(2, 80));
        world.meddler = Some(Box::new(|from, frame: &mut Frame| {
            if from == 1
                && let Some(at) = flags_at(&frame.bytes)
            {
                let flags = frame.bytes[at] | ECE;
                set_flags(&mut frame.bytes, at, flags, true);
            }
        }));
        let mut got = 0;
        for _ in 0..200 {
            got += stream(&mut world, ends, 50 * MS);
            let info = world.stacks[0].info(ends[0]).expect("open");
            let floor = 2 * u32::from(info.mss);
            assert!(info.window >= floor, "{algorithm:?}: {}", info.window);
        }
        // Two segments in each round trip of 10 ms, less the delay of acknowledgments.
        assert!(got > 500_000, "{algorithm:?}: {got} bytes in 10 s");
        let info = world.stacks[0].info(ends[0]).expect("open");
        assert_eq!(info.window, 2 * u32::from(info.mss), "{algorithm:?}");
        assert!(world.stacks[0].counters().ecn_reductions > 100);
    }
}

/// A network that sets and clears ECN fields, ECE and CWR at random, with losses and reordering:
/// written data arrives, in all configurations of both ends.
#[test]
fn a_network_that_lies_about_ecn_loses_nothing() {
    let only = std::env::var("SIDECORE_SEED").ok();
    let only: Option<u64> = only.and_then(|seed| seed.parse().ok());
    for seed in only.map_or(0..60, |seed| seed..seed + 1) {
        eprintln!("SIDECORE_SEED={seed}");
        lie(seed);
    }
}

fn lie(seed: u64) {
    const BYTES: usize = 200_000;
    let mut random = Random(seed);
    let modes = [Ecn::Off, Ecn::Passive, Ecn::Active, Ecn::Accurate];
    let chosen = [0, 1].map(|_| modes[random.below(4) as usize]);
    let nic = [plain, offloading][random.below(2) as usize];
    let which = Cell::new(0);
    let sack = random.happens(700_000);
    let mut world = World::with(seed, [nic(1), nic(2)], |config| {
        config.ecn = chosen[which.replace(1)];
        config.offers.sack = sack;
    });
    world.impairment.loss = [0, 20_000][random.below(2) as usize];
    world.impairment.reorder = [0, 50_000][random.below(2) as usize];
    let to = [v4(2, 80), v6(2)][random.below(2) as usize];
    let (each, mut lies) = (random.below(500_000), random.clone());
    world.meddler = Some(Box::new(move |_, frame: &mut Frame| {
        if lies.happens(each) {
            set_ecn(&mut frame.bytes, lies.below(4) as u8);
        }
        if let Some(at) = flags_at(&frame.bytes)
            && lies.happens(each)
        {
            let flip = [ECE, CWR, ECE | CWR][lies.below(3) as usize];
            let whole = frame.checksum == ReceivedChecksum::Unknown;
            let flags = frame.bytes[at] ^ flip;
            let offset = frame.bytes[at - 1] ^ u8::from(lies.happens(500_000));
            set_offset_and_flags(&mut frame.bytes, at, [offset, flags], whole);
        }
    }));
    let listener = world.stacks[1].listen(to, 4).expect("listens");
    let client = world.stacks[0].connect(to, None).expect("connects");
    let data: Vec<u8> = (0..BYTES).map(|at| ((at * 31) >> 3) as u8).collect();
    let (mut written, mut got, mut server) = (0, Vec::<u8>::new(), None);
    let mut scratch = vec![0; 60_000];
    let limit = world.now_ns + 600 * S;
    while got.len() < BYTES {
        assert!(world.now_ns < limit, "seed {seed}: stuck at {}", got.len());
        let taken = world.stacks[0].write(client, &data[written..]);
        written += taken.unwrap_or(0);
        server = server.or_else(|| world.stacks[1].accept(listener).expect("listens"));
        if let Some(server) = server {
            let count = world.stacks[1].read(server, &mut scratch).expect("open");
            got.extend(&scratch[..count]);
            let _ = world.stacks[1].write(server, &scratch[..count.min(100)]);
        }
        let count = world.stacks[0].read(client, &mut scratch);
        assert!(count.is_ok(), "seed {seed}");
        world.run(5 * MS);
        if let Ok(info) = world.stacks[0].info(client)
            && info.retransmitted == 0
            && written > 0
        {
            let floor = u32::from(info.mss);
            assert!(info.window >= floor, "seed {seed}: {}", info.window);
        }
    }
    assert!(got == data, "seed {seed}: what arrived");
}

/// RFC 3168 section 5.3: a mark on one fragment marks the packet; if another fragment is not
/// ECN-capable, the packet is dropped; a field common to all is kept.
#[test]
fn a_mark_on_a_fragment_is_one_on_the_packet() {
    for v4 in [true, false] {
        for (fields, arrives) in [
            ([ECT_0, ECT_0, ECT_0], true),
            ([ECT_0, CE, ECT_0], true),
            ([CE, 1, ECT_0], true),
            ([NOT_ECT, NOT_ECT, NOT_ECT], true),
            ([NOT_ECT, CE, NOT_ECT], false),
            ([ECT_0, NOT_ECT, CE], false),
        ] {
            let mut target = Target::new();
            let pieces = cut(9, UDP, &datagram(v4, &[5; 2000]), 1000);
            for (piece, field) in pieces.iter().zip(fields) {
                let mut bytes = frame(v4, 2, piece);
                set_ecn(&mut bytes, field);
                target.put(bytes);
            }
            let udp = target.udp;
            let got = target.stack.receive_part(udp, 0, 3000, &mut |_| {});
            assert_eq!(got.is_some(), arrives, "{fields:?}, IPv4: {v4}");
            if let Some(got) = got {
                let marked = fields.contains(&CE);
                assert_eq!(got.class, if marked { CE } else { fields[0] });
            }
            let refused = target.stack.counters().reassemblies_refused;
            assert_eq!(refused, u64::from(!arrives));
        }
    }
}

/// Hop limit and traffic class of a datagram are those of its packet, the bits of ECN included.
#[test]
fn a_datagram_has_the_marks_of_its_packet() {
    for v4 in [true, false] {
        let mut target = Target::new();
        for (hops, class) in [(64, 0), (61, 0xb9), (255, 3), (1, 0xff)] {
            let pieces = cut(9, UDP, &datagram(v4, &[5; 20]), 1000);
            let mut bytes = frame(v4, 2, &pieces[0]);
            if v4 {
                (bytes[15], bytes[22]) = (class, hops);
            } else {
                (bytes[14], bytes[15], bytes[21]) = (6 << 4 | class >> 4, class << 4, hops);
            }
            // With IPv4's checksum.
            set_ecn(&mut bytes, class & 3);
            target.put(bytes);
            let udp = target.udp;
            let got = target.stack.receive_part(udp, 0, 100, &mut |_| {});
            let got = got.expect("arrives");
            assert_eq!((got.hops, got.class), (hops, class), "IPv4: {v4}");
        }
    }
}
