//! Accurate ECN (RFC 9768) end to end: links that mark, peers with RFC 3168's ECN only, and lost
//! acknowledgments.
//!
//! Tests of single segments and their replies are in `lab/drill/tests/drill/ecn.drill`; a
//! network with wrong ECN fields is in `ecn.rs`.

use crate::common;

use common::bottleneck::Bottleneck;
use common::segment::{CE, ECT_0, NOT_ECT, ecn, flags_at, set_ecn};
use common::{Frame, MS, Random, S, World, offloading, plain, v4, v6};
use sidecore_net_stack::frame::Capabilities;
use sidecore_net_stack::{Algorithm, Counters, Ecn, EcnMode, SessionId};
use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;

/// Two ends with these forms of ECN.
fn world(seed: u64, nic: fn(u8) -> Capabilities, forms: [Ecn; 2], algorithm: Algorithm) -> World {
    let which = Cell::new(0);
    World::with(seed, [nic(1), nic(2)], |config| {
        config.ecn = forms[which.replace(1)];
        config.congestion = algorithm;
    })
}

/// A session from end 0 to end 1 that is open at both.
fn open(world: &mut World, to: SocketAddr) -> [SessionId; 2] {
    let listener = world.stacks[1].listen(to, 4).expect("listens");
    let client = world.stacks[0].connect(to, None).expect("connects");
    world.run(S);
    let server = world.stacks[1].accept(listener).expect("listens");
    [client, server.expect("one session")]
}

/// Sends for a while, and waits until everything has arrived; bytes that arrived within that time.
fn stream(world: &mut World, [from, to]: [SessionId; 2], ns: u64) -> u64 {
    let (data, mut scratch) = (vec![7; 1 << 20], vec![0; 1 << 20]);
    let until = world.now_ns + ns;
    let (mut got, mut got_in_time) = (0, 0);
    while world.now_ns < until + 5 * S {
        if world.now_ns < until {
            world.stacks[0].write(from, &data).expect("open");
            got_in_time = got;
        }
        got += world.stacks[1].read(to, &mut scratch).expect("open") as u64;
        let at = world.now_ns + MS;
        if !world.step(at) {
            world.now_ns = at;
        }
    }
    got_in_time
}

/// Marks a share of the ECN-capable frames of end 0.
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

fn counters(world: &World) -> [Counters; 2] {
    [0, 1].map(|end| world.stacks[end].counters())
}

/// Through a link that marks behind 5 ms of queue nothing is dropped, the link is used, and all
/// marks are reported to the sender.
#[test]
fn a_link_that_marks_is_used_and_its_marks_are_counted() {
    for (mbit, delay_ms, seconds) in [(10, 10, 20), (100, 1, 5), (100, 10, 10)] {
        for (nic, algorithm) in [
            (plain as fn(u8) -> Capabilities, Algorithm::Cubic),
            (offloading, Algorithm::Cubic),
            (plain, Algorithm::Reno),
        ] {
            let mut world = world(1, nic, [Ecn::Accurate; 2], algorithm);
            world.impairment.delay_ns = delay_ms * MS;
            let room = Bottleneck::marking(mbit * 1_000_000, 1 << 20, 5 * MS);
            world.bottleneck = Some(room);
            let ends = open(&mut world, v4(2, 80));
            let got = stream(&mut world, ends, seconds * S);
            let most = (mbit * 1_000_000 / 8 * seconds) as f64 * 1448.0 / 1514.0;
            let used = got as f64 / most;
            let [ours, theirs] = counters(&world);
            let queue = world.bottleneck.expect("still there");
            let case = format!("{mbit} Mbit, {delay_ms} ms, {algorithm:?}");
            let (told, seen) = (ours.accurate_ecn_reported, theirs.ecn_ce_received);
            eprintln!(
                "{case}: {used:.3} used, {} marked, {seen} seen, {told} told, {} reductions",
                queue.marked, ours.ecn_reductions
            );
            assert!(used >= 0.95, "{case}: {used:.3} of the rate");
            assert_eq!(queue.dropped, 0, "{case}");
            assert!(ours.retransmitted <= ours.tail_probes, "{case}");
            assert!(ours.ecn_reductions > 0, "{case}");
            assert_eq!(seen, queue.marked, "{case}");
            assert!(told * 10 >= seen * 9 && told * 10 <= seen * 11, "{case}");
            assert_eq!(
                (ours.accurate_ecn_sessions, theirs.accurate_ecn_sessions),
                (1, 1)
            );
        }
    }
}

/// No mark is missed on any receive path, and each is reported: by the table, by the last flow,
/// staged with many, or placed in the receive ring by the NIC.
#[test]
fn every_mark_is_told_on_every_way_in() {
    for (nic, to) in [
        (plain as fn(u8) -> Capabilities, v4(2, 80)),
        (plain, v6(2)),
        (offloading, v4(2, 80)),
        (offloading, v6(2)),
    ] {
        let mut world = world(1, nic, [Ecn::Accurate; 2], Algorithm::Cubic);
        let ends = open(&mut world, to);
        stream(&mut world, ends, 100 * MS);
        let marked = marker(&mut world, 50_000);
        stream(&mut world, ends, S);
        let [ours, theirs] = counters(&world);
        assert!(marked.get() > 20, "{to}: {} marked", marked.get());
        if nic(1).merges_received {
            // A merged segment counts as its parts: more than three bits can represent.
            assert!(theirs.ecn_ce_received > 2 * marked.get(), "{to}");
            assert!(ours.accurate_ecn_reported >= marked.get(), "{to}");
        } else {
            assert_eq!(theirs.ecn_ce_received, marked.get(), "{to}");
            assert_eq!(ours.accurate_ecn_reported, marked.get(), "{to}");
        }
        let info = world.stacks[1].info(ends[1]).expect("open");
        assert!(info.ecn == EcnMode::Accurate && info.ecn_seen);
        assert!(ours.ecn_reductions > 5);
    }
}

/// One end counts, the other has RFC 3168's ECN, or none: they agree on the common form, whose
/// marks are processed.
#[test]
fn a_peer_without_it_has_what_it_knows() {
    for (forms, agreed) in [
        ([Ecn::Accurate, Ecn::Passive], true),
        ([Ecn::Accurate, Ecn::Active], true),
        ([Ecn::Active, Ecn::Accurate], true),
        ([Ecn::Accurate, Ecn::Off], false),
        ([Ecn::Off, Ecn::Accurate], false),
        ([Ecn::Passive, Ecn::Accurate], false),
    ] {
        let mut world = world(4, plain, forms, Algorithm::Cubic);
        world.impairment.delay_ns = 5 * MS;
        let ends = open(&mut world, v4(2, 80));
        let marked = marker(&mut world, 10_000);
        stream(&mut world, ends, S);
        let [ours, theirs] = counters(&world);
        for of in [ours, theirs] {
            assert_eq!(of.ecn_sessions, u64::from(agreed), "{forms:?}");
            assert_eq!(of.accurate_ecn_sessions, 0, "{forms:?}");
        }
        assert_eq!(marked.get() > 5, agreed, "{forms:?}");
        assert_eq!(theirs.ecn_ce_received, marked.get(), "{forms:?}");
        assert_eq!(ours.ecn_reductions > 2, agreed, "{forms:?}");
    }
}

/// Every second acknowledgment is lost: the three bits of those that arrive report nearly all
/// marks, few or many, and no marks that did not exist.
#[test]
fn marks_are_told_where_acknowledgments_are_lost() {
    for (per_million, lost) in [
        (10_000, 300_000),
        (100_000, 500_000),
        (500_000, 500_000),
        (900_000, 300_000),
        (0, 900_000),
    ] {
        let mut world = world(7, plain, [Ecn::Accurate; 2], Algorithm::Cubic);
        world.impairment.delay_ns = 5 * MS;
        let ends = open(&mut world, v4(2, 80));
        marker(&mut world, per_million);
        let mut random = Random(5);
        world.filter = Some(Box::new(move |from, _| from == 0 || !random.happens(lost)));
        let got = stream(&mut world, ends, 3 * S);
        world.filter = None;
        stream(&mut world, ends, 10 * MS);
        let [ours, theirs] = counters(&world);
        let (told, seen) = (ours.accurate_ecn_reported, theirs.ecn_ce_received);
        let case = format!("{per_million} marked, {lost} lost");
        eprintln!(
            "{case}: {got} bytes, {seen} seen, {told} told, {} reductions",
            ours.ecn_reductions
        );
        assert!(got > 10_000, "{case}");
        assert!(
            told * 10 >= seen * 8 && told * 10 <= seen * 12,
            "{case}: {told} of {seen}"
        );
        assert_eq!(ours.ecn_reductions > 0, per_million > 0, "{case}");
    }
}

/// One reduction in a window of data, however many of its packets are marked (RFC 3168 section
/// 6.1.2): with a mark on each, at most one per round trip, and two segments remain.
#[test]
fn a_round_trip_has_one_reduction() {
    let mut world = world(7, plain, [Ecn::Accurate; 2], Algorithm::Cubic);
    world.impairment.delay_ns = 10 * MS;
    let ends = open(&mut world, v4(2, 80));
    marker(&mut world, 1_000_000);
    stream(&mut world, ends, 2 * S);
    let [ours, _] = counters(&world);
    // In seven seconds of round trips of 20 ms, including the time for the data to arrive.
    let reductions = ours.ecn_reductions;
    assert!((300..=355).contains(&reductions), "{reductions}");
    let info = world.stacks[0].info(ends[0]).expect("open");
    assert_eq!(info.window, 2 * u32::from(info.mss));
}

/// RFC 3168 section 6.1 as far as it applies: SYNs, pure acknowledgments and retransmissions are
/// not ECN-capable, all new data is; and no super-segment has the flag that is cut off.
#[test]
fn only_new_data_is_ecn_capable() {
    for nic in [plain as fn(u8) -> Capabilities, offloading] {
        let mut world = world(9, nic, [Ecn::Accurate; 2], Algorithm::Cubic);
        world.impairment.loss = 20_000;
        world.trace = Some(Vec::new());
        let ends = open(&mut world, v4(2, 80));
        // Marks in both directions, so that the sender's counter moves, too.
        let mut random = Random(3);
        world.meddler = Some(Box::new(move |_, frame: &mut Frame| {
            if ecn(&frame.bytes) == ECT_0 && random.happens(20_000) {
                set_ecn(&mut frame.bytes, CE);
            }
        }));
        for _ in 0..40 {
            world.stacks[1].write(ends[1], &[1; 5000]).expect("open");
            let mut scratch = [0; 5000];
            let _ = world.stacks[0].read(ends[0], &mut scratch).expect("open");
            let data = vec![7; 100_000];
            world.stacks[0].write(ends[0], &data).expect("open");
            world.run(20 * MS);
            let mut scratch = vec![0; 1 << 20];
            world.stacks[1].read(ends[1], &mut scratch).expect("open");
        }
        let (mut next, mut again, mut values) = ([None; 2], 0, [0; 8]);
        for (_, from, bytes) in world.trace.take().expect("was asked for") {
            let Some(at) = flags_at(&bytes) else { continue };
            let payload = bytes.len() - 34 - usize::from(bytes[46] >> 4) * 4;
            let sequence = u32::from_be_bytes(bytes[38..42].try_into().expect("four"));
            let capable = ecn(&bytes) != NOT_ECT;
            let ace = (bytes[at - 1] & 1) << 2 | bytes[at] >> 6;
            assert!(ace & 2 == 0 || payload <= 1448, "{ace:#b} on {payload}");
            if payload == 0 {
                assert!(!capable, "flags {:#x}", bytes[at]);
                continue;
            }
            values[usize::from(ace)] += 1;
            let end = sequence.wrapping_add(payload as u32);
            let new = next[from].is_none_or(|next: u32| end.wrapping_sub(next) as i32 > 0);
            assert_eq!(capable, new, "{sequence} of {next:?}");
            if new {
                next[from] = Some(end);
            } else {
                again += 1;
            }
        }
        assert!(again > 10, "{again}");
        let said = values.iter().filter(|&&count| count > 0).count();
        assert!(said >= 6 && values[2] + values[6] > 0, "{values:?}");
    }
}

/// Section 3.2.2.1: data that waits for the handshake is not sent with the acknowledgment of the
/// SYN-ACK, since only a pure one can report the SYN-ACK's ECN field.
#[test]
fn the_first_acknowledgment_goes_before_data() {
    let mut world = world(2, plain, [Ecn::Accurate; 2], Algorithm::Cubic);
    world.trace = Some(Vec::new());
    world.stacks[1].listen(v4(2, 80), 4).expect("listens");
    let client = world.stacks[0].connect(v4(2, 80), None).expect("connects");
    let written = world.stacks[0].write(client, &[7; 500]);
    assert_eq!(written.expect("open"), 500);
    world.run(S);
    let mut said = Vec::new();
    for (_, from, bytes) in world.trace.take().expect("was asked for") {
        if from == 0
            && let Some(at) = flags_at(&bytes)
        {
            let ace = (bytes[at - 1] & 1) << 2 | bytes[at] >> 6;
            said.push((ace, bytes.len() > 500));
        }
    }
    assert_eq!(said, [(0b111, false), (0b010, false), (0b101, true)]);
}
