//! One test for each rule of the RFCs that is visible to a peer: the segments are built manually.
//!
//! - here: windows, acknowledgments, options, state of a session.
//! - `behaviour`: the standards' ways and Linux's; a NIC without room.
//! - `writes`: hints and bounds of writes.
//! - `recovery`: loss recovery, `loss_timers`: by timers; `lifetime`: start and end of sessions.
//! - `requirements`: items of docs/rfc-requirements.md that no other test covers.
//! - `peer`: the sender of the segments.

use crate::common;
mod behaviour;
mod lifetime;
mod loss_timers;
mod peer;
mod recovery;
mod requirements;
mod windows;
mod writes;

use common::segment::internet_checksum;
use common::{MS, S, World, v4};
use peer::{ACK, PLAIN, Peer, RST, SYN};
use sidecore_net_stack::{Keepalive, SessionError, SessionId, SessionOption};
#[test]
fn rfc_6928_the_initial_window_is_ten_segments() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.take();
    assert_eq!(peer.stack.write(id, &[1; 50_000]).expect("open"), 50_000);
    peer.flush();
    let out = peer.take();
    assert_eq!(out.len(), 10);
    assert!(out.iter().all(|segment| segment.payload.len() == 1000));
    // Slow start: two for each one acknowledged (RFC 5681 section 3.1).
    peer.ack(1000);
    assert_eq!(peer.take().len(), 2);
}

#[test]
fn rfc_9293_3_8_6_3_every_second_segment_is_acknowledged_at_once_others_after_40_ms() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    // After the first segments, which are acknowledged at once.
    for _ in 0..20 {
        peer.data(&[1; 1000]);
    }
    peer.take();
    peer.run(S);
    peer.take();
    peer.data(&[1; 1000]);
    assert_eq!(peer.take(), []);
    peer.data(&[1; 1000]);
    assert_eq!(peer.take().len(), 1);
    peer.data(&[1; 100]);
    peer.run(39 * MS);
    assert_eq!(peer.take(), []);
    peer.run(2 * MS);
    let out = peer.take();
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].acknowledgment, peer.sequence);
    assert_eq!(peer.stack.info(id).expect("open").unread, 22_100);
}

#[test]
fn rfc_9293_3_8_6_1_a_shut_window_is_probed_and_opens() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    let mut shut = peer.segment(ACK, &[]);
    shut.window = 0;
    peer.send(&shut);
    peer.take();
    peer.stack.write(id, b"held back").expect("open");
    peer.flush();
    assert_eq!(peer.take(), []);
    for _ in 0..3 {
        peer.run(20 * S);
        peer.greet();
        let out = peer.take();
        assert!(!out.is_empty());
        assert_eq!(out[0].sequence, peer.acknowledgment.wrapping_sub(1));
        assert!(out[0].payload.is_empty());
        peer.send(&shut);
        peer.take();
    }
    peer.ack(0);
    let out = peer.take();
    assert_eq!(out[0].payload, b"held back");
}

#[test]
fn rfc_9293_3_8_6_2_2_our_window_shuts_and_opens_by_whole_segments() {
    let mut peer = Peer::new(|config| config.receive_bytes = 8192);
    let id = peer.open(&PLAIN);
    for _ in 0..8 {
        peer.data(&[1; 1000]);
    }
    peer.data(&[1; 192]);
    assert_eq!(peer.take().last().expect("some").window, 0);
    let segment = peer.segment(ACK, &[9; 100]);
    peer.send(&segment);
    let out = peer.take();
    assert_eq!(
        out[0].acknowledgment, peer.sequence,
        "beyond the window: not taken"
    );
    let mut bytes = [0; 900];
    peer.stack.read(id, &mut bytes).expect("open");
    peer.flush();
    assert_eq!(peer.take(), [], "less than a segment is not worth telling");
    peer.stack.read(id, &mut bytes).expect("open");
    peer.flush();
    assert!(peer.take()[0].window >= 1000);
}

#[test]
fn rfc_9293_3_7_4_nagle_holds_small_segments_back() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.take();
    for text in [b"a", b"b", b"c"] {
        peer.stack.write(id, text).expect("open");
        peer.flush();
    }
    assert_eq!(peer.take().len(), 1);
    peer.ack(1);
    assert_eq!(peer.take()[0].payload, b"bc");
    peer.stack
        .set_option(id, SessionOption::NoDelay(true))
        .expect("open");
    peer.stack.write(id, b"d").expect("open");
    peer.flush();
    assert_eq!(peer.take()[0].payload, b"d");
}

#[test]
fn rfc_9293_3_8_4_keepalive_asks_a_silent_peer_and_gives_up() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.take();
    let keepalive = Keepalive {
        idle_s: 10,
        interval_s: 2,
        probes: 3,
    };
    let option = SessionOption::Keepalive(Some(keepalive));
    peer.stack.set_option(id, option).expect("open");
    peer.run(9 * S);
    assert_eq!(peer.take(), []);
    peer.run(2 * S);
    let out = peer.take();
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].sequence, peer.acknowledgment.wrapping_sub(1));
    peer.ack(0);
    peer.run(8 * S);
    assert_eq!(peer.take(), [], "it answered");
    peer.run(20 * S);
    let out = peer.take();
    assert_eq!(out.len(), 4, "three probes and a reset");
    assert!(out[3].flags & RST != 0);
    assert_eq!(peer.error(id), Some(SessionError::TimedOut));
}

/// An idle engine sleeps until then.
#[test]
fn a_keepalive_of_a_day_hardly_wakes_the_stack() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    let keepalive = Keepalive {
        idle_s: 24 * 3600,
        interval_s: 60,
        probes: 3,
    };
    let option = SessionOption::Keepalive(Some(keepalive));
    peer.stack.set_option(id, option).expect("open");
    peer.take();
    let until = peer.now_ns + (24 * 3600 - 1) * S;
    let mut wakes = 0;
    while let Some(at) = peer.stack.next_timer().filter(|&at| at <= until) {
        peer.run(at.saturating_sub(peer.now_ns).max(1_000));
        wakes += 1;
        assert!(wakes <= 10, "at {} s", peer.now_ns / S);
    }
    assert_eq!(peer.take(), []);
}

#[test]
fn rfc_7323_5_3_old_timestamps_are_not_taken() {
    let mut peer = Peer::new(|config| config.offers.timestamps = true);
    let stamp = |value: u32| {
        let mut option = vec![1, 1, 8, 10];
        option.extend(value.to_be_bytes());
        option.extend([0; 4]);
        option
    };
    let listener = peer.listen();
    let mut syn = peer.segment(SYN, &[]);
    syn.options = [vec![2, 4, 5, 180], stamp(100)].concat();
    peer.send(&syn);
    let answer = peer.take().remove(0);
    assert_eq!(answer.options[..4], [2, 4, 5, 180]);
    assert_eq!(answer.options[4..8], [1, 1, 8, 10]);
    assert_eq!(answer.options[12..16], 100_u32.to_be_bytes(), "the echo");
    peer.sequence += 1;
    peer.acknowledgment = answer.sequence.wrapping_add(1);
    for (value, payload, taken) in [(101, &b"new"[..], 3), (90, b"old", 3), (101, b"er", 5)] {
        let mut segment = peer.segment(ACK, payload);
        segment.sequence = peer.sequence + if taken == 5 { 3 } else { 0 };
        segment.options = stamp(value);
        peer.send(&segment);
        peer.run(50 * MS);
        if value == 101 && taken == 3 {
            let id = peer.stack.accept(listener).expect("open").expect("one");
            assert_eq!(peer.stack.info(id).expect("open").unread, 3);
        }
    }
    assert_eq!(peer.stack.counters().paws, 1);
    let last = peer.take().pop().expect("some");
    assert_eq!(last.acknowledgment, peer.sequence + 5);
}

#[test]
fn rfc_7323_5_5_after_24_days_of_silence_any_timestamp_is_taken() {
    const DAY: u64 = 24 * 3600 * S;
    for (days, taken) in [(1, 0), (23, 0), (25, 3)] {
        let mut peer = Peer::new(|config| config.offers.timestamps = true);
        let stamp = |value: u32| {
            let mut option = vec![1, 1, 8, 10];
            option.extend(value.to_be_bytes());
            option.extend([0; 4]);
            option
        };
        let listener = peer.listen();
        let mut syn = peer.segment(SYN, &[]);
        syn.options = stamp(100);
        peer.send(&syn);
        let answer = peer.take().remove(0);
        peer.sequence += 1;
        peer.acknowledgment = answer.sequence.wrapping_add(1);
        let mut segment = peer.segment(ACK, &[]);
        segment.options = stamp(101);
        peer.send(&segment);
        let id = peer.stack.accept(listener).expect("open").expect("one");
        peer.run(days * DAY);
        let mut segment = peer.segment(ACK, b"old");
        segment.options = stamp(90);
        peer.send(&segment);
        let unread = peer.stack.info(id).expect("open").unread;
        assert_eq!(unread, taken, "after {days} days");
    }
}

/// ICMP's "fragmentation needed" about a segment of the session, from a router.
fn path_takes_1000_bytes(peer: &mut Peer, sequence: u32) {
    icmp_about(peer, [3, 4], 1000, sequence);
}

/// An ICMP error of this type and code about a segment of the session, from a router.
fn icmp_about(peer: &mut Peer, [kind, code]: [u8; 2], mtu: u16, sequence: u32) {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.extend([0x45, 0, 0, 56, 0, 0, 0x40, 0, 64, 1, 0, 0]);
    bytes.extend([10, 0, 0, 9, 10, 0, 0, 1]);
    let sum = internet_checksum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    let mut message = vec![kind, code, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    message.extend([0x45, 0, 5, 220, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    message.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 80]);
    message.extend(peer.port.to_be_bytes());
    message.extend(sequence.to_be_bytes());
    let sum = internet_checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    bytes.extend(message);
    peer.put(bytes);
}

/// A segment that fits the smaller path may still arrive.
#[test]
fn rfc_1191_6_3_a_segment_that_just_fits_the_smaller_path_is_not_sent_again() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&[2, 4, 5, 180]);
    peer.take();
    peer.stack.write(id, &[1; 1460 + 960]).expect("open");
    peer.flush();
    let sent = peer.take();
    assert_eq!(sent.len(), 2, "{sent:?}");
    path_takes_1000_bytes(&mut peer, sent[0].sequence);
    let bytes: usize = peer.take().iter().map(|it| it.payload.len()).sum();
    assert_eq!(bytes, 1460);
}

#[test]
fn what_is_not_taken_and_what_comes_early_is_counted() {
    let mut peer = Peer::new(|_| {});
    peer.open(&PLAIN);
    peer.take();
    for count in 1..=3 {
        let mut early = peer.segment(ACK, &[1; 100]);
        early.sequence += 1000 * count;
        peer.send(&early);
        assert_eq!(peer.stack.counters().out_of_order, u64::from(count));
        let mut outside = peer.segment(ACK, b"x");
        outside.sequence = outside.sequence.wrapping_add(50_000_000);
        peer.send(&outside);
        assert_eq!(peer.stack.counters().unacceptable, u64::from(count));
    }
}

/// The acknowledgment after a timeout shows by its echo which transmission it belongs to; our
/// timestamp clock counts milliseconds.
#[test]
fn rfc_7323_4_1_an_echo_bounds_the_round_trip_after_a_timeout() {
    let mut peer = Peer::new(|config| config.offers.timestamps = true);
    let stamps = |echo: &[u8]| [&[1, 1, 8, 10, 0, 0, 0, 7][..], echo].concat();
    let listener = peer.listen();
    let mut syn = peer.segment(SYN, &[]);
    syn.options = stamps(&[0; 4]);
    peer.send(&syn);
    let answer = peer.take().remove(0);
    peer.sequence += 1;
    peer.acknowledgment = answer.sequence.wrapping_add(1);
    let acknowledge = |peer: &mut Peer, bytes: u32, wait_ns: u64, echo: &[u8]| {
        peer.now_ns += wait_ns;
        peer.acknowledgment = peer.acknowledgment.wrapping_add(bytes);
        let mut segment = peer.segment(ACK, &[]);
        segment.options = stamps(echo);
        peer.send(&segment);
    };
    let at = answer.options.windows(2).position(|pair| pair == [8, 10]);
    let at = at.expect("timestamps") + 2;
    acknowledge(&mut peer, 0, 50 * MS, &answer.options[at..at + 4]);
    let id = peer.stack.accept(listener).expect("open").expect("one");
    assert_eq!(peer.stack.info(id).expect("open").rtt_us, 50_000);
    peer.stack.write(id, &[1; 100]).expect("open");
    peer.flush();
    let sent_ns = peer.now_ns;
    let first = peer.take().pop().expect("sent");
    while peer.stack.counters().timeouts == 0 {
        peer.run(MS);
    }
    // It was the first one, only late: an eighth of the difference to the echo's value.
    acknowledge(&mut peer, 100, 10 * MS, &first.options[4..8]);
    let late_us = (peer.now_ns - sent_ns) / 1_000;
    let wanted_us = (7 * 50_000 + late_us) / 8;
    let rtt_us = u64::from(peer.stack.info(id).expect("open").rtt_us);
    assert!(
        rtt_us.abs_diff(wanted_us) <= 250,
        "{rtt_us} us, {wanted_us}"
    );
}

#[test]
fn rfc_1191_a_smaller_path_is_learned_and_what_was_too_large_goes_again() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&[2, 4, 5, 180]);
    peer.take();
    peer.stack.write(id, &[1; 5000]).expect("open");
    peer.flush();
    let sent = peer.take();
    assert_eq!(sent[0].payload.len(), 1460);
    path_takes_1000_bytes(&mut peer, sent[0].sequence);
    assert_eq!(peer.stack.info(id).expect("open").mss, 960);
    let out = peer.take();
    assert!(!out.is_empty() && out.iter().all(|segment| segment.payload.len() <= 960));
    assert_eq!(out[0].sequence, sent[0].sequence);
}

#[test]
fn an_idle_session_holds_no_buffer() {
    let mut world = World::new(2);
    let listener = world.stacks[1].listen(v4(2, 80), 64).expect("listens");
    let clients: Vec<SessionId> = (0..50)
        .map(|_| world.stacks[0].connect(v4(2, 80), None).expect("connects"))
        .collect();
    world.run(S);
    for &client in &clients {
        let server = world.stacks[1]
            .accept(listener)
            .expect("open")
            .expect("one");
        world.stacks[0].write(client, b"ping").expect("open");
        world.run(100 * MS);
        let mut bytes = [0; 10];
        assert_eq!(world.stacks[1].read(server, &mut bytes).expect("open"), 4);
    }
    assert_eq!(world.stacks[0].buffers().in_use, 0);
    assert_eq!(world.stacks[1].buffers().in_use, 0);
}
