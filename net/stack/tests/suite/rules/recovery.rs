//! Loss recovery: gaps, probes, timeouts, duplicates.

use crate::rules::common::{MS, S, offloading};
use crate::rules::loss_timers::{TRIP, measured};
use crate::rules::peer::{ACK, FIN, PLAIN, Peer, SACK, Segment, blocks, sack_option};

/// A sender without SACK needs three to recover a loss without a timeout.
#[test]
fn rfc_5681_4_2_segments_behind_a_gap_are_answered_though_they_come_in_one_batch() {
    for options in [&PLAIN[..], &SACK] {
        let mut peer = Peer::new(|_| {});
        let id = peer.open(options);
        peer.take();
        let base = peer.sequence;
        for (count, answers) in [(1, 1), (2, 2), (5, 3)] {
            let ahead = (1..=count).map(|number| Segment {
                sequence: base + 1000 * number,
                ..peer.segment(ACK, &[1; 1000])
            });
            let ahead: Vec<Segment> = ahead.collect();
            peer.send_together(&ahead);
            let out = peer.take();
            assert_eq!(out.len(), answers, "{count} segments");
            let same = |it: &Segment| it.acknowledgment == base && it.payload.is_empty();
            assert!(out.iter().all(same), "{out:?}");
        }
        // The segment that fills the gap is acknowledged once.
        peer.data(&[1; 1000]);
        let out = peer.take();
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].acknowledgment, base + 6000);
        assert_eq!(peer.stack.read(id, &mut [0; 9000]).expect("open"), 6000);
    }
}

/// If one acknowledgment for a whole window were lost, the sender would stop.
#[test]
fn rfc_5681_4_2_a_few_segments_in_one_batch_are_acknowledged_in_two_steps() {
    for (count, wanted) in [(1, vec![]), (3, vec![3000]), (8, vec![4000, 8000])] {
        let mut peer = Peer::new(|_| {});
        peer.open(&PLAIN);
        // The first ones of a session are acknowledged one by one.
        for _ in 0..40 {
            peer.data(&[1; 1000]);
            peer.run(100 * MS);
        }
        peer.take();
        let base = peer.sequence;
        let batch = (0..count).map(|number| Segment {
            sequence: base + 1000 * number,
            ..peer.segment(ACK, &[1; 1000])
        });
        let batch: Vec<Segment> = batch.collect();
        peer.send_together(&batch);
        let out = peer.take();
        let acknowledged: Vec<u32> = out.iter().map(|it| it.acknowledgment - base).collect();
        assert_eq!(acknowledged, wanted, "{count} segments");
        let edge = |it: &Segment| it.acknowledgment + u32::from(it.window);
        assert!(out.is_sorted_by_key(edge), "{out:?}");
    }
}

/// Segments in order and segments behind a gap, in one batch: neither acknowledgment replaces the
/// other.
#[test]
fn rfc_5681_4_2_a_batch_with_a_gap_in_it_is_answered_for_both_of_its_parts() {
    let mut peer = Peer::new(|_| {});
    peer.open(&PLAIN);
    peer.take();
    let base = peer.sequence;
    let batch = [0, 1, 2, 3, 4, 5, 7, 8, 9].map(|number| Segment {
        sequence: base + 1000 * number,
        ..peer.segment(ACK, &[1; 1000])
    });
    peer.send_together(&batch);
    let acknowledged: Vec<u32> = peer
        .take()
        .iter()
        .map(|it| it.acknowledgment - base)
        .collect();
    assert_eq!(acknowledged, [3000, 6000, 6000, 6000]);
}

#[test]
fn rfc_2018_4_gaps_are_reported_newest_first_and_rfc_2883_duplicates_before_them() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&SACK);
    peer.take();
    let base = peer.sequence;
    let at = |peer: &Peer, offset: u32, len: usize| Segment {
        sequence: base + offset,
        ..peer.segment(ACK, &vec![1; len])
    };
    for offset in [2000, 6000, 4000] {
        let segment = at(&peer, offset, 500);
        peer.send(&segment);
    }
    let out = peer.take();
    assert_eq!(
        out.len(),
        3,
        "an acknowledgment at once for each (RFC 5681 section 4.2)"
    );
    assert!(out.iter().all(|segment| segment.acknowledgment == base));
    let expected = [
        (base + 4000, base + 4500),
        (base + 6000, base + 6500),
        (base + 2000, base + 2500),
    ];
    assert_eq!(blocks(&out[2]), expected);
    let segment = at(&peer, 4100, 200);
    peer.send(&segment);
    let first = blocks(&peer.take()[0])[0];
    assert_eq!(first, (base + 4100, base + 4300), "RFC 2883 section 4.2.2");
    // The gaps are filled.
    let segment = at(&peer, 0, 6000);
    peer.send(&segment);
    let out = peer.take();
    assert_eq!(out[0].acknowledgment, base + 6500);
    let held = (base + 2000, base + 2500);
    assert_eq!(blocks(&out[0]), [held], "RFC 2883 section 4.2.2");
    assert_eq!(peer.stack.info(id).expect("open").unread, 6500);
}

#[test]
fn rfc_5681_3_2_three_duplicates_without_sack() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.take();
    peer.stack.write(id, &[1; 10_000]).expect("open");
    peer.flush();
    let first = peer.take()[0].sequence;
    peer.ack(0);
    peer.ack(0);
    assert_eq!(peer.take(), []);
    peer.ack(0);
    let out = peer.take();
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].sequence, out[0].payload.len()), (first, 1000));
    // RFC 6582: a partial acknowledgment shows the next loss.
    peer.ack(3000);
    let out = peer.take();
    assert_eq!(out[0].sequence, first + 3000);
}

/// Two duplicates of a number that was acknowledged then, and one of a later number, are not three.
#[test]
fn rfc_5681_3_2_duplicates_of_an_earlier_number_do_not_count() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.take();
    peer.stack.write(id, &[1; 1000]).expect("open");
    peer.flush();
    peer.ack(0);
    peer.ack(0);
    peer.ack(1000);
    peer.take();
    peer.stack.write(id, &[1; 10_000]).expect("open");
    peer.flush();
    peer.take();
    peer.ack(0);
    assert_eq!(peer.take(), []);
    assert_eq!(peer.stack.counters().recoveries, 0);
}

/// Congestion control and timers count segments, acknowledgments count bytes.
#[test]
fn rfc_6298_5_3_what_is_left_of_a_segment_acknowledged_in_part_keeps_its_timer() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.take();
    peer.stack.write(id, &[1; 1000]).expect("open");
    peer.flush();
    let sent = peer.take();
    peer.now_ns += 10 * MS;
    peer.ack(400);
    peer.run(5 * S);
    let again = peer.take();
    assert_eq!(again[0].sequence, sent[0].sequence + 400);
    assert_eq!(again[0].payload.len(), 600);
    assert_eq!(peer.stack.info(id).expect("open").in_flight, 600);
    assert!(peer.stack.counters().timeouts > 0);
}

/// Two segments were late, not lost; the peer reports the second one before the first has arrived.
#[test]
fn rfc_2883_4_2_2_a_duplicate_above_the_acknowledgment_lies_in_the_second_block() {
    for reported in [true, false] {
        let mut peer = Peer::new(|_| {});
        let id = peer.open(&SACK);
        peer.take();
        peer.stack.write(id, &[1; 10_000]).expect("open");
        peer.flush();
        let first = peer.take()[0].sequence;
        let at = |segment: u32| first + 1000 * segment;
        peer.now_ns += 10 * MS;
        let sack = |peer: &mut Peer, acknowledged: u32, blocks: &[(u32, u32)]| {
            let mut segment = peer.segment(ACK, &[]);
            segment.acknowledgment = at(acknowledged);
            segment.options = sack_option(blocks);
            peer.send(&segment);
        };
        for end in 5..8 {
            sack(&mut peer, 0, &[(at(3), at(end)), (at(1), at(2))]);
        }
        let again: Vec<u32> = peer.take().iter().map(|it| it.sequence).collect();
        assert!(again.starts_with(&[at(0), at(2)]), "{again:?}");
        // The third: the original first, and then the retransmission.
        sack(&mut peer, 0, &[(at(1), at(7))]);
        if reported {
            sack(&mut peer, 0, &[(at(2), at(3)), (at(1), at(7))]);
        } else {
            sack(&mut peer, 0, &[(at(1), at(7))]);
        }
        assert_eq!(peer.stack.counters().undone, 0);
        sack(&mut peer, 7, &[(at(0), at(1))]);
        let undone = peer.stack.counters().undone;
        assert_eq!(undone, u64::from(reported), "all, or one of two");
    }
}

#[test]
fn rfc_9293_3_10_4_only_what_ends_with_the_fin_is_sent_again_with_one() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.take();
    peer.stack.write(id, &[1; 3_000]).expect("open");
    peer.stack.shutdown_write(id).expect("open");
    peer.flush();
    let sent = peer.take();
    assert!(sent.last().expect("some").flags & FIN != 0);
    peer.run(2 * S);
    let again = peer.take();
    assert_eq!(again[0].sequence, sent[0].sequence);
    assert!(again[0].flags & FIN == 0, "{again:?}");
}

/// The NIC cuts whatever it gets; the window limits the amount.
#[test]
fn rfc_5681_3_1_a_super_segment_is_no_larger_than_the_window() {
    let mut peer = Peer::behind(&offloading(1), |_| {});
    let id = peer.open(&PLAIN);
    peer.take();
    peer.stack.write(id, &[1; 50_000]).expect("open");
    peer.flush();
    let bytes = |peer: &mut Peer| -> usize {
        let out = peer.take();
        out.iter().map(|it| it.payload.len()).sum()
    };
    assert_eq!(bytes(&mut peer), 10_000);
    // Room for one segment and a half: whole ones only.
    peer.ack(750);
    assert_eq!(bytes(&mut peer), 1_000);
    // A timeout, and slow start from one segment: again room for one and a half.
    while peer.stack.counters().timeouts == 0 {
        peer.run(10 * MS);
    }
    assert_eq!(bytes(&mut peer), 1_000);
    peer.ack(750);
    assert!((1..=2_000).contains(&bytes(&mut peer)));
}

/// Only an advance of the cumulative acknowledgment permits an additional segment (RFC 9937 section
/// 6).
#[test]
fn rfc_9937_6_a_repair_that_makes_no_progress_sends_what_is_delivered() {
    let mut peer = Peer::new(|_| {});
    let id = measured(&mut peer);
    peer.stack.write(id, &[1; 60_000]).expect("open");
    peer.flush();
    peer.run(TRIP);
    let sent = peer.take();
    let last = sent.last().expect("some").sequence + 1000;
    assert!(sent.len() >= 10, "{}", sent.len());
    let report = |peer: &mut Peer, from: u32| {
        let mut report = peer.segment(ACK, &[]);
        report.options = sack_option(&[(from, last)]);
        peer.send(&report);
        peer.take().len()
    };
    // Three at once show the loss; then at most one segment per delivered one.
    report(&mut peer, last - 3000);
    let mut out = 0;
    for number in 4..sent.len() as u32 - 1 {
        out += report(&mut peer, last - 1000 * number);
    }
    assert!(out <= sent.len() - 5, "{out} of {}", sent.len());
}

#[test]
fn rfc_5681_3_1_a_second_timeout_does_not_lower_the_threshold_again() {
    let mut peer = Peer::new(|_| {});
    let id = measured(&mut peer);
    peer.stack.write(id, &[1; 8000]).expect("open");
    peer.flush();
    let mut thresholds = Vec::new();
    for timeouts in 1..=3 {
        while peer.stack.counters().timeouts < timeouts {
            peer.run(10 * MS);
        }
        thresholds.push(peer.stack.info(id).expect("open").threshold);
    }
    assert!(
        thresholds.iter().all(|&it| it == thresholds[0]),
        "{thresholds:?}"
    );
    assert!(thresholds[0] >= 2000, "{thresholds:?}");
}

/// The window was reduced at the loss; the loss of its retransmission belongs to the same window.
#[test]
fn rfc_5681_4_3_a_timeout_in_recovery_does_not_lower_the_threshold_again() {
    let mut peer = Peer::new(|_| {});
    let id = measured(&mut peer);
    peer.stack.write(id, &[1; 30_000]).expect("open");
    peer.flush();
    peer.run(TRIP);
    let sent = peer.take();
    let (first, last) = (sent[0].sequence, sent[sent.len() - 1].sequence);
    let mut report = peer.segment(ACK, &[]);
    report.options = sack_option(&[(first + 1000, last + 1000)]);
    peer.send(&report);
    assert_eq!(peer.take()[0].sequence, first);
    let threshold = peer.stack.info(id).expect("open").threshold;
    while peer.stack.counters().timeouts == 0 {
        peer.run(10 * MS);
    }
    assert_eq!(peer.stack.info(id).expect("open").threshold, threshold);
}

/// One header for all lost data, as the window allows.
#[test]
fn a_nic_that_cuts_gets_what_is_lost_in_one_piece() {
    let mut peer = Peer::behind(&offloading(1), |config| config.burst_segments_min = 64);
    let id = measured(&mut peer);
    peer.stack.write(id, &[1; 60_000]).expect("open");
    peer.flush();
    peer.run(TRIP);
    let sent = peer.take();
    let first = sent[0].sequence;
    let bytes: u32 = sent.iter().map(|it| it.payload.len() as u32).sum();
    assert!(bytes >= 10_000, "{bytes}");
    let mut report = peer.segment(ACK, &[]);
    report.options = sack_option(&[(first + 3000, first + bytes)]);
    peer.send(&report);
    let again = peer.take();
    assert_eq!((again[0].sequence, again[0].payload.len()), (first, 3000),);
}

/// Data reported behind a gap permitted more transmissions when it was reported. If it were counted
/// again when the gap is closed, a burst as long as the gap would be sent (found by
/// `differential_net`, at a queue without room for it).
#[test]
fn rfc_5681_3_1_the_end_of_a_gap_lets_no_burst_go() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&SACK);
    peer.take();
    peer.stack.write(id, &[1; 100_000]).expect("open");
    peer.flush();
    let first = peer.take()[0].sequence;
    let window = |peer: &mut Peer| peer.stack.info(id).expect("open").window;
    let before = window(&mut peer);
    peer.now_ns += 10 * MS;
    let mut report = peer.segment(ACK, &[]);
    report.acknowledgment = first;
    report.options = sack_option(&[(first + 1000, first + 3000)]);
    peer.send(&report);
    assert_eq!(peer.take().len(), 2);
    assert_eq!(window(&mut peer), before);
    report.acknowledgment = first + 3000;
    report.options.clear();
    peer.send(&report);
    assert_eq!(window(&mut peer), before + 1000);
    // One for the data that has left, one for the growth of the window.
    assert_eq!(peer.take().len(), 2);
}
