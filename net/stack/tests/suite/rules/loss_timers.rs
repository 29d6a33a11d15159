//! Loss recovery by timers: RACK, probes, timeouts.

use crate::rules::common::{MS, S};
use crate::rules::peer::{ACK, PLAIN, Peer, RST, SACK, SYN, sack_option};
use sidecore_net_stack::{NetError, SessionError, SessionId};

#[test]
fn rfc_8985_what_left_before_what_has_arrived_is_lost_and_sent_again_once() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&SACK);
    peer.take();
    peer.stack.write(id, &[1; 10_000]).expect("open");
    peer.flush();
    let first = peer.take()[0].sequence;
    peer.now_ns += 10 * MS;
    let sack = |peer: &mut Peer, from: u32, to: u32| {
        let mut segment = peer.segment(ACK, &[]);
        segment.options = sack_option(&[(first + from, first + to)]);
        peer.send(&segment);
    };
    sack(&mut peer, 1000, 2000);
    sack(&mut peer, 1000, 3000);
    assert_eq!(
        peer.take(),
        [],
        "not before three segments, or the reordering window"
    );
    sack(&mut peer, 1000, 4000);
    let out = peer.take();
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].sequence, first);
    sack(&mut peer, 1000, 5000);
    assert_eq!(peer.take(), []);
    let info = peer.stack.info(id).expect("open");
    assert!(info.recovering);
    assert_eq!(
        info.threshold, 7000,
        "RFC 9438 section 4.6: 0.7 of what was in flight"
    );
    peer.ack(10_000);
    let info = peer.stack.info(id).expect("open");
    assert!(!info.recovering);
    assert_eq!(info.retransmitted, 1);
}

#[test]
fn rfc_8985_7_a_lost_tail_is_probed_for_before_the_timeout() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&SACK);
    peer.take();
    // A round trip of 20 ms.
    peer.stack.write(id, &[1; 100]).expect("open");
    peer.flush();
    peer.now_ns += 20 * MS;
    peer.ack(100);
    peer.take();
    peer.stack.write(id, &[1; 3000]).expect("open");
    peer.flush();
    let sent = peer.take();
    assert_eq!(sent.len(), 3);
    // The session's round trip is below 20 ms (the handshake took none); so is twice that.
    peer.run(45 * MS);
    let out = peer.take();
    assert_eq!(out.len(), 1, "a probe");
    assert_eq!(out[0].sequence, sent[2].sequence, "the last segment");
    assert_eq!(peer.stack.counters().timeouts, 0);
    // The peer had lost the last two: SACK of the probe shows that (RFC 8985 section 7.4).
    peer.acknowledgment += 1000;
    let mut segment = peer.segment(ACK, &[]);
    segment.options = sack_option(&[(sent[2].sequence, sent[2].sequence + 1000)]);
    peer.now_ns += 20 * MS;
    peer.send(&segment);
    peer.run(20 * MS);
    let out = peer.take();
    assert_eq!(out[0].sequence, sent[1].sequence);
    assert_eq!(peer.stack.counters().timeouts, 0);
}

#[test]
fn rfc_6298_timeouts_double_and_rfc_9293_3_8_3_end_the_session() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.take();
    peer.stack.write(id, &[1; 100]).expect("open");
    peer.flush();
    peer.take();
    let mut times = Vec::new();
    for _ in 0..400 {
        peer.run(5 * S);
        peer.greet();
        for segment in peer.take() {
            times.push((peer.now_ns, segment.flags & RST != 0));
        }
    }
    assert_eq!(times.iter().filter(|(_, reset)| *reset).count(), 1);
    assert_eq!(times.len(), 16, "15 times again, then a reset");
    let out_of_order: Vec<u64> = times
        .windows(2)
        .map(|pair| (pair[1].0 - pair[0].0) / S)
        .collect();
    assert!(
        out_of_order[7] >= 20 && out_of_order[12] >= 115,
        "{out_of_order:?}"
    );
    let error = peer.stack.write(id, b"x").expect_err("over");
    assert!(matches!(error, NetError::Ended(SessionError::TimedOut)));
}

/// RFC 8985 section 7.2 leaves a second loss to the timeout; on a short path a probe is sent before
/// it.
#[test]
fn a_retransmission_that_is_lost_with_nothing_behind_it_is_probed_for_before_the_timeout() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&SACK);
    peer.take();
    peer.stack.write(id, &[1; 4_000]).expect("open");
    peer.flush();
    let first = peer.take()[0].sequence;
    peer.now_ns += 10 * MS;
    let mut segment = peer.segment(ACK, &[]);
    segment.options = sack_option(&[(first + 1000, first + 4000)]);
    peer.send(&segment);
    assert_eq!(peer.take().len(), 1, "sent again, and lost again");
    let mut probes = 0;
    while peer.stack.counters().timeouts == 0 {
        peer.run(MS);
        let out = peer.take();
        assert!(out.iter().all(|it| it.sequence == first), "{out:?}");
        probes += out.len();
    }
    assert!(probes >= 2, "a probe, and then the timeout's");
}

/// Round trip of the sessions below.
pub(super) const TRIP: u64 = 40 * MS;

/// A session with SACK and measured round trips of [`TRIP`].
pub(super) fn measured(peer: &mut Peer) -> SessionId {
    let listener = peer.listen();
    let mut syn = peer.segment(SYN, &[]);
    syn.options = SACK.to_vec();
    peer.send(&syn);
    peer.run(TRIP);
    peer.sequence += 1;
    peer.acknowledgment = peer.take()[0].sequence.wrapping_add(1);
    peer.ack(0);
    let id = peer.stack.accept(listener).expect("open").expect("one");
    for _ in 0..20 {
        peer.stack.write(id, &[1; 2000]).expect("open");
        peer.flush();
        peer.run(TRIP);
        peer.ack(2000);
    }
    peer.take();
    id
}

/// Two segments, the first of which is lost: nanoseconds from the second's report to the
/// retransmission.
fn repair_wait_ns(peer: &mut Peer, id: SessionId) -> u64 {
    peer.stack.write(id, &[1; 2000]).expect("open");
    peer.flush();
    peer.run(TRIP);
    let sent = peer.take();
    assert_eq!(sent.len(), 2);
    let first = sent[0].sequence;
    let mut report = peer.segment(ACK, &[]);
    report.options = sack_option(&[(first + 1000, first + 2000)]);
    peer.send(&report);
    let began_ns = peer.now_ns;
    while peer.out.is_empty() {
        assert!(peer.now_ns - began_ns < S, "no repair");
        peer.run(MS);
    }
    assert_eq!(peer.take()[0].sequence, first);
    let waited_ns = peer.now_ns - began_ns;
    // Time for a reply, so that nothing looks spurious.
    peer.run(TRIP);
    peer.ack(2000);
    waited_ns
}

#[test]
fn rfc_8985_6_2_4_patience_that_a_duplicate_taught_lasts_sixteen_recoveries() {
    let mut peer = Peer::new(|_| {});
    let id = measured(&mut peer);
    let quarter = TRIP / 4;
    let close = |waited_ns: u64, wanted_ns: u64| waited_ns.abs_diff(wanted_ns) <= 3 * MS;
    let waited_ns = repair_wait_ns(&mut peer, id);
    assert!(close(waited_ns, quarter), "{waited_ns}");
    // A spurious retransmission: the peer reports a duplicate.
    peer.stack.write(id, &[1; 2000]).expect("open");
    peer.flush();
    peer.run(TRIP);
    let first = peer.take()[0].sequence;
    let mut report = peer.segment(ACK, &[]);
    report.options = sack_option(&[(first + 1000, first + 2000)]);
    peer.send(&report);
    peer.run(TRIP / 2);
    assert_eq!(peer.take()[0].sequence, first);
    peer.acknowledgment += 2000;
    let mut twice = peer.segment(ACK, &[]);
    twice.options = sack_option(&[(first, first + 1000)]);
    peer.send(&twice);
    for number in 1..=16 {
        let waited_ns = repair_wait_ns(&mut peer, id);
        assert!(close(waited_ns, 2 * quarter), "{number}: {waited_ns}");
    }
    let waited_ns = repair_wait_ns(&mut peer, id);
    assert!(close(waited_ns, quarter), "{waited_ns}");
}

/// Without a loss in between, a repeated report postpones nothing.
#[test]
fn rfc_6298_5_3_only_new_acknowledgments_restart_the_timer() {
    let mut peer = Peer::new(|_| {});
    let id = measured(&mut peer);
    let old = peer.acknowledgment;
    peer.stack.write(id, &[1; 1000]).expect("open");
    peer.flush();
    peer.take();
    for _ in 0..20 {
        peer.run(TRIP / 2);
        let mut report = peer.segment(ACK, &[]);
        report.options = sack_option(&[(old - 1000, old)]);
        peer.send(&report);
    }
    let again = peer.take();
    assert_eq!(again.first().map(|it| it.sequence), Some(old));
}

#[test]
fn rfc_6298_5_3_a_new_acknowledgment_restarts_the_timer() {
    let mut peer = Peer::new(|_| {});
    let id = measured(&mut peer);
    peer.stack.write(id, &[1; 2000]).expect("open");
    peer.flush();
    peer.take();
    // A probe is sent after two round trips; an acknowledgment just before it is progress.
    peer.run(2 * TRIP - 5 * MS);
    peer.ack(1000);
    peer.run(TRIP);
    assert_eq!(peer.take().len(), 0);
    peer.run(3 * TRIP);
    assert_eq!(peer.take()[0].sequence, peer.acknowledgment);
}

/// One timeout is a loss; two in a row may be a neighbour that is gone.
#[test]
fn rfc_1122_2_3_2_1_the_second_timeout_in_a_row_asks_for_the_next_hop() {
    let mut peer = Peer::new(|_| {});
    let id = measured(&mut peer);
    peer.stack.write(id, &[1; 1000]).expect("open");
    peer.flush();
    let before = peer.arp_requests;
    let mut requests = Vec::new();
    for timeouts in 1..=2 {
        while peer.stack.counters().timeouts < timeouts {
            peer.run(10 * MS);
        }
        requests.push(peer.arp_requests - before);
    }
    assert_eq!(requests, [0, 1]);
}

/// The probe was the segment that the peer lacked: that is a loss, and reduces the window.
#[test]
fn rfc_8985_7_4_2_a_loss_that_a_probe_repaired_lowers_the_window() {
    let mut peer = Peer::new(|_| {});
    let id = measured(&mut peer);
    let threshold = |peer: &mut Peer| peer.stack.info(id).expect("open").threshold;
    let before = threshold(&mut peer);
    peer.stack.write(id, &[1; 3000]).expect("open");
    peer.flush();
    peer.run(TRIP);
    peer.ack(2000);
    peer.take();
    peer.run(3 * TRIP);
    let probe = peer.take();
    assert_eq!(probe[0].sequence, peer.acknowledgment);
    peer.stack.write(id, &[1; 1000]).expect("open");
    peer.flush();
    peer.run(TRIP);
    assert_eq!(threshold(&mut peer), before);
    peer.ack(2000);
    assert!(threshold(&mut peer) < before);
}
