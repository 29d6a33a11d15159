//! The scoreboard under random acknowledgments, and the cost of an update.

use super::*;
use sidecore_random::Random;

fn range(start: u32, end: u32) -> Range {
    between(Sequence::new(start), Sequence::new(end))
}

fn between(start: Sequence, end: Sequence) -> Range {
    Range { start, end }
}

fn check(scoreboard: &Scoreboard) {
    let sum = |fate| -> u32 {
        let of = scoreboard
            .records
            .iter()
            .filter(|record| record.fate == fate);
        of.map(|record| record.range.len()).sum()
    };
    assert_eq!(scoreboard.sacked_bytes, sum(Fate::Sacked));
    assert_eq!(scoreboard.lost_bytes, sum(Fate::Lost));
    let pairs = scoreboard
        .records
        .iter()
        .zip(scoreboard.records.iter().skip(1));
    for (a, b) in pairs {
        assert_eq!(a.range.end, b.range.start);
        assert!(a.range.start < a.range.end);
    }
}

#[test]
fn counts_stay_the_sums_whatever_comes() {
    let mut random = Random::new(9);
    for _ in 0..if cfg!(miri) { 5 } else { 300 } {
        let start = Sequence::new(random.bits() as u32);
        let mut scoreboard = Scoreboard::default();
        scoreboard.clear(start);
        let (mut una, mut end) = (start, start);
        for step in 0..60_u32 {
            let size = random.below(5000) as u32 + 1;
            scoreboard.push(between(end, end + size), step);
            end += size;
            let flight = end - una;
            let mut delivered = Delivered::default();
            let a = una + random.below(u64::from(flight)) as u32;
            let b = a + (random.below(u64::from(end - a)) as u32 + 1);
            match random.below(4) {
                0 => {
                    una = a;
                    scoreboard.acknowledge(una, &mut delivered);
                }
                1 => scoreboard.sack(&[between(a, b)], 1, &mut delivered),
                2 => {
                    let index = random.below(scoreboard.records.len() as u64) as usize;
                    scoreboard.lose(index);
                }
                _ => {
                    if let Some(index) = scoreboard.first_lost() {
                        scoreboard.resent(index, step);
                    }
                }
            }
            assert!(delivered.bytes <= flight);
            check(&scoreboard);
            assert_eq!(scoreboard.records.front().expect("some").range.start, una);
        }
    }
}

/// Reference model of RACK loss detection: looks at every record, without the time order.
fn overdue_of_all(
    scoreboard: &Scoreboard,
    newest: (u32, Sequence),
    now_us: u32,
    patience_us: u32,
) -> (Vec<Range>, Option<u32>) {
    let (mut lost, mut wait) = (Vec::new(), None);
    for record in &scoreboard.records {
        let earlier = before(record.sent_us, newest.0)
            || record.sent_us == newest.0 && record.range.end < newest.1;
        if !earlier || record.fate != Fate::Flying {
            continue;
        }
        let age_us = now_us.wrapping_sub(record.sent_us);
        if age_us >= patience_us {
            lost.push(record.range);
        } else {
            wait = wait.max(Some(patience_us - age_us));
        }
    }
    (lost, wait)
}

#[test]
fn the_order_of_time_finds_what_a_look_at_all_finds() {
    let mut random = Random::new(4);
    for _ in 0..if cfg!(miri) { 3 } else { 500 } {
        let start = Sequence::new(random.bits() as u32);
        let mut scoreboard = Scoreboard::default();
        scoreboard.clear(start);
        let (mut end, mut una) = (start, start);
        let mut newest: Option<(u32, Sequence)> = None;
        let mut now_us = random.bits() as u32;
        for _ in 0..200 {
            now_us = now_us.wrapping_add(1 + random.below(20) as u32);
            for _ in 0..random.below(4) {
                let size = random.below(3000) as u32 + 1;
                scoreboard.push(between(end, end + size), now_us);
                end += size;
            }
            if scoreboard.lost_bytes > 0 && random.below(2) == 0 {
                now_us = now_us.wrapping_add(1);
                let at = scoreboard.first_lost().expect("one");
                scoreboard.resent(at, now_us);
            }
            if end == una {
                continue;
            }
            now_us = now_us.wrapping_add(1);
            let mut delivered = Delivered::default();
            let far = end - una;
            let a = una + random.below(u64::from(far)) as u32;
            let b = a + (random.below(u64::from(end - a)) as u32 + 1);
            match random.below(8) {
                0 => {
                    una = a;
                    scoreboard.acknowledge(una, &mut delivered);
                }
                1 => scoreboard.unmark_lost(),
                _ => scoreboard.sack(&[between(a, b)], 1, &mut delivered),
            }
            if let Some((sent_us, record_end, _)) = delivered.newest {
                let newer = newest.is_none_or(|(time, last)| {
                    before(time, sent_us) || time == sent_us && last < record_end
                });
                if newer {
                    newest = Some((sent_us, record_end));
                }
            }
            let Some(newest) = newest else { continue };
            let patience_us = random.below(100) as u32;
            let (lost, wait) = overdue_of_all(&scoreboard, newest, now_us, patience_us);
            let found = scoreboard.overdue(newest, now_us, patience_us);
            assert_eq!(found, (!lost.is_empty(), wait));
            for range in lost {
                let of = |record: &&Record| record.range == range;
                let record = scoreboard.records.iter().find(of).expect("it");
                assert_eq!(record.fate, Fate::Lost);
            }
            check(&scoreboard);
        }
    }
}

/// Steps of a window of `count` segments, one in fifty lost and retransmitted: each acknowledgment
/// reports one more segment, and is followed by loss detection and a retransmission.
fn steps_of_a_window(count: u32) -> u64 {
    let mut scoreboard = Scoreboard::default();
    scoreboard.clear(Sequence::new(0));
    for number in 0..count {
        scoreboard.push(range(number * 1000, (number + 1) * 1000), number);
    }
    let mut now_us = count;
    let (mut from, mut newest) = (0, (0, Sequence::new(0)));
    for number in 0..count {
        now_us += 1;
        if number % 50 == 0 {
            from = (number + 1) * 1000;
            continue;
        }
        let mut delivered = Delivered::default();
        let block = range(from, (number + 1) * 1000);
        scoreboard.sack(&[block], 1, &mut delivered);
        assert_eq!(delivered.bytes, 1000);
        let (sent_us, end, _) = delivered.newest.expect("one");
        if newest <= (sent_us, end) {
            newest = (sent_us, end);
        }
        // A round trip takes one microsecond per segment; a quarter more is the reordering window.
        scoreboard.overdue(newest, now_us, count + count / 4);
        if let Some(at) = scoreboard.first_lost() {
            scoreboard.resent(at, now_us);
        }
    }
    // Losses in the last quarter are found after their timeout.
    let (lost, _) = scoreboard.overdue(newest, now_us + count, count + count / 4);
    assert!(lost);
    let mut resent = 0;
    while let Some(at) = scoreboard.first_lost() {
        scoreboard.resent(at, now_us);
        resent += 1;
    }
    assert!(resent >= count / 250, "{resent}");
    scoreboard.order.steps
}

/// A walk over all records took 8,000 steps for each of 8,000 acknowledgments.
#[test]
#[cfg_attr(miri, ignore = "long; counts steps of code without `unsafe`")]
fn a_large_window_costs_a_few_steps_an_acknowledgment() {
    let (half, whole) = (steps_of_a_window(4_000), steps_of_a_window(8_000));
    assert!(whole < 16 * 8_000, "{whole} steps");
    assert!(whole < half * 9 / 4, "{whole} steps; for half of it {half}");
}

#[test]
fn a_block_cuts_a_super_segment() {
    let mut scoreboard = Scoreboard::default();
    scoreboard.clear(Sequence::new(0));
    scoreboard.push(range(0, 10_000), 1);
    let mut delivered = Delivered::default();
    scoreboard.sack(&[range(3000, 4000)], 1, &mut delivered);
    assert_eq!((delivered.bytes, scoreboard.records.len()), (1000, 3));
    // Again: nothing new.
    let mut delivered = Delivered::default();
    scoreboard.sack(&[range(3000, 4000)], 1, &mut delivered);
    assert_eq!(delivered.bytes, 0);
    scoreboard.acknowledge(Sequence::new(10_000), &mut delivered);
    assert_eq!((delivered.bytes, scoreboard.sacked_bytes), (9000, 0));
    assert!(delivered.reordered, "0..3000 came after 3000..4000");
}

/// A report may show two gaps at once, if the previous one was lost or merged with it.
#[test]
fn blocks_of_one_report_are_newest_first_and_that_is_no_reordering() {
    let mut scoreboard = Scoreboard::default();
    scoreboard.clear(Sequence::new(0));
    for number in 0..8 {
        scoreboard.push(range(1000 * number, 1000 * (number + 1)), 1);
    }
    let mut delivered = Delivered::default();
    scoreboard.sack(&[range(3000, 5000), range(1000, 2000)], 1, &mut delivered);
    assert_eq!((delivered.bytes, delivered.reordered), (3000, false));
    // A block below an earlier report does show reordering.
    let mut delivered = Delivered::default();
    let blocks = [range(2000, 5000), range(1000, 2000)];
    scoreboard.sack(&blocks, 1, &mut delivered);
    assert_eq!((delivered.bytes, delivered.reordered), (1000, true));
}
