//! HyStart++: leaves the first slow start when the round trip grows, before the bottleneck's queue
//! is full.
//!
//! Without it slow start ends only after sending twice the capacity of path and queue, and half of
//! that is dropped. Source: RFC 9406, with its recommended constants; applied while the threshold
//! is at its initial value (section 4.3).
//!
//! Additions to the RFC, because with it alone five times as much is dropped as by Linux at a queue
//! of one bandwidth-delay product:
//!
//! - Its five rounds of conservative slow start triple the window, for which such a queue has no
//!   room. Their purpose is to distinguish jitter from a queue, so they end as soon as that is
//!   certain: when the round trip has grown by the threshold once more.
//! - Acknowledgments that arrive close together for half a round trip show by their duration that
//!   half of the path is filled; the other half will be within a round trip (the "ACK train" of Ha
//!   and Rhee, "Taming the elephants: New TCP slow start", 2011, section 4.1, as in Linux). On a
//!   short path the gap that ends a train is a quarter of the round trip: with Linux's gap the
//!   bursts of successive rounds would form one train. On even shorter paths, the delay by which
//!   hosts batch acknowledgments reaches half a round trip.
//! - A paced window is spread over half of the round trip, so that only a longer train shows the
//!   path's capacity; conservative slow start follows it. Its RTT samples grow only with the queue,
//!   not with the position in a burst. Each sample is therefore judged, instead of the minimum of a
//!   round: from half of the threshold on, the window grows as in conservative slow start, and
//!   after eight consecutive samples beyond the threshold slow start ends. Waiting for the end of a
//!   round would fill the queue meanwhile.

use super::Acked;
use crate::wire::sequence::Sequence;

/// The delay that ends slow start is this part of the round trip (MIN_RTT_DIVISOR), within these
/// bounds (MIN_RTT_THRESH and MAX_RTT_THRESH).
const DELAY_MIN_US: u32 = 4_000;
const DELAY_MAX_US: u32 = 16_000;
const DELAY_DIVISOR: u32 = 8;
/// N_RTT_SAMPLE: samples of a round before it is judged.
const SAMPLES_MIN: u8 = 8;
/// The least threshold of a paced session on a short path, where 4 ms of queue are several windows:
/// half of the round trip, the same as for the train of an unpaced one.
const PACED_DELAY_DIVISOR: u32 = 2;
const PACED_DELAY_MIN_US: u32 = 1_000;
/// CSS_GROWTH_DIVISOR and CSS_ROUNDS: conservative slow start.
const CONSERVATIVE_DIVISOR: u32 = 4;
const CONSERVATIVE_ROUNDS: u8 = 5;
/// Largest gap between acknowledgments of one train, or this part of the round trip, and never more
/// than a quarter of it.
const TRAIN_GAP_US: u32 = 2_000;
const TRAIN_GAP_DIVISOR: u32 = 16;
const TRAIN_GAP_MAX_DIVISOR: u32 = 4;
/// Linux's `hystart_low_window`: smaller windows grow whatever the round trips are.
const CLASSIC_SEGMENTS_MIN: u32 = 16;
/// Shortest round trip for which trains are evaluated.
const TRAIN_TRIP_MIN_US: u32 = 500;

/// Phase of the first slow start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Standard,
    /// Conservative slow start (CSS): the round trip has grown; jitter would be recognized within
    /// some rounds.
    Conservative {
        baseline_us: u32,
        /// A round trip of this length is not jitter.
        sure_us: u32,
        rounds_left: u8,
    },
}

/// Growth that an acknowledgment permits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Growth {
    /// Bytes that the window may grow by.
    Bytes(u32),
    /// Congestion avoidance begins.
    Leave,
}

/// State of HyStart++ (RFC 9406 section 4.2).
#[derive(Debug, Clone)]
pub(crate) struct HyStart {
    phase: Phase,
    /// windowEnd: the round ends when this is acknowledged; none before the first.
    round_end: Option<Sequence>,
    /// Minimum round trip before this round, and in it; `u32::MAX` for infinity. The RFC compares
    /// with the last round's (lastRoundMinRTT), which would follow a slowly growing queue.
    last_min_us: u32,
    current_min_us: u32,
    samples: u8,
    /// The current train of acknowledgments: the times of its first and its last.
    train_us: Option<(u32, u32)>,
    /// Consecutive samples of a paced session beyond the threshold.
    long_samples: u8,
}

impl Default for HyStart {
    fn default() -> Self {
        Self {
            phase: Phase::Standard,
            round_end: None,
            last_min_us: u32::MAX,
            current_min_us: u32::MAX,
            samples: 0,
            train_us: None,
            long_samples: 0,
        }
    }
}

impl HyStart {
    /// Data was acknowledged while the window was the limit.
    pub(crate) fn on_acked(&mut self, acked: &Acked) -> Growth {
        // Retransmitted data gives no sample (Karn), and says nothing about a queue.
        if let Some(rtt_us) = acked.rtt_us {
            self.current_min_us = self.current_min_us.min(rtt_us);
            self.samples = self.samples.saturating_add(1);
        }
        let mut slows = false;
        if acked.paced {
            if self.phase == Phase::Standard && self.train_fills(acked) {
                self.phase = Phase::Conservative {
                    baseline_us: self.current_min_us,
                    sure_us: u32::MAX,
                    rounds_left: CONSERVATIVE_ROUNDS,
                };
            }
            match self.judge_paced(acked) {
                Verdict::Open => {}
                Verdict::Longer => slows = true,
                Verdict::Queue => return Growth::Leave,
            }
        } else if self.train_fills(acked) || self.judge() == Verdict::Queue {
            return Growth::Leave;
        }
        // A round ends when the first byte sent after its start is acknowledged.
        let round_end = *self.round_end.get_or_insert(acked.next);
        if acked.ack >= round_end {
            self.round_end = Some(acked.next);
            // The least of all rounds: see the field.
            self.last_min_us = self.last_min_us.min(self.current_min_us);
            self.current_min_us = u32::MAX;
            self.samples = 0;
            // RFC 9406 section 4.2: conservative slow start lasts a few rounds at most.
            if let Phase::Conservative { rounds_left, .. } = &mut self.phase {
                *rounds_left -= 1;
                if *rounds_left == 0 {
                    return Growth::Leave;
                }
            }
        }
        match self.phase {
            Phase::Standard if !slows => Growth::Bytes(acked.bytes),
            _ => Growth::Bytes(acked.bytes / CONSERVATIVE_DIVISOR),
        }
    }

    /// HyStart as in Linux, instead of HyStart++: trains of acknowledgments of half of the least
    /// round trip, or a round whose least round trip is longer, end slow start at once.
    pub(crate) fn on_acked_classic(&mut self, window: u32, acked: &Acked) -> Growth {
        let now_us = acked.now_us;
        if self.round_end.is_none_or(|end| end < acked.ack) {
            self.round_end = Some(acked.next);
            self.train_us = Some((now_us, now_us));
            self.current_min_us = u32::MAX;
            self.samples = 0;
        }
        let growth = Growth::Bytes(acked.bytes);
        let Some(rtt_us) = acked.rtt_us else {
            return growth;
        };
        self.last_min_us = self.last_min_us.min(rtt_us);
        if window < CLASSIC_SEGMENTS_MIN * acked.mss {
            return growth;
        }
        if let Some((first_us, last_us)) = &mut self.train_us
            && now_us.wrapping_sub(*last_us) <= TRAIN_GAP_US
        {
            *last_us = now_us;
            // A paced window is itself spread over half of the round trip.
            let halves = if acked.paced { 1 } else { 2 };
            if now_us.wrapping_sub(*first_us) > self.last_min_us / halves {
                return Growth::Leave;
            }
        }
        self.current_min_us = self.current_min_us.min(rtt_us);
        if self.samples < SAMPLES_MIN {
            self.samples += 1;
            return growth;
        }
        let delay_us = (self.last_min_us / DELAY_DIVISOR).clamp(DELAY_MIN_US, DELAY_MAX_US);
        if self.current_min_us > self.last_min_us.saturating_add(delay_us) {
            return Growth::Leave;
        }
        growth
    }

    /// The same for a paced session, for each sample.
    fn judge_paced(&mut self, acked: &Acked) -> Verdict {
        let Some(rtt_us) = acked.rtt_us else {
            return Verdict::Open;
        };
        let short_us =
            (self.last_min_us / PACED_DELAY_DIVISOR).clamp(PACED_DELAY_MIN_US, DELAY_MIN_US);
        let delay_us = (self.last_min_us / DELAY_DIVISOR).clamp(short_us, DELAY_MAX_US);
        let longer_us = rtt_us.saturating_sub(self.last_min_us);
        if longer_us < delay_us {
            self.long_samples = 0;
            return if longer_us < delay_us / 2 {
                Verdict::Open
            } else {
                Verdict::Longer
            };
        }
        self.long_samples += 1;
        if self.long_samples < SAMPLES_MIN {
            Verdict::Longer
        } else {
            Verdict::Queue
        }
    }

    /// True once acknowledgments that arrived close together took half of the shortest round trip;
    /// for a paced window, which is spread over half of it, more than that in one round.
    fn train_fills(&mut self, acked: &Acked) -> bool {
        let now_us = acked.now_us;
        let least_us = self.last_min_us.min(self.current_min_us);
        let (first_us, last_us) = self.train_us.get_or_insert((now_us, now_us));
        if least_us == u32::MAX || least_us < TRAIN_TRIP_MIN_US {
            return false;
        }
        let gap_us = TRAIN_GAP_US.max(least_us / TRAIN_GAP_DIVISOR);
        let gap_us = gap_us.min(least_us / TRAIN_GAP_MAX_DIVISOR);
        let begins = now_us.wrapping_sub(*last_us) > gap_us;
        if begins || acked.paced && self.round_end.is_none_or(|end| acked.ack >= end) {
            *first_us = now_us;
        }
        *last_us = now_us;
        let filled_us = if acked.paced {
            least_us * 5 / 8
        } else {
            least_us / 2
        };
        now_us.wrapping_sub(*first_us) > filled_us
    }

    fn judge(&mut self) -> Verdict {
        if self.samples < SAMPLES_MIN || self.current_min_us == u32::MAX {
            return Verdict::Open;
        }
        match self.phase {
            Phase::Standard if self.last_min_us != u32::MAX => {
                let delay_us = (self.last_min_us / DELAY_DIVISOR).clamp(DELAY_MIN_US, DELAY_MAX_US);
                if self.current_min_us >= self.last_min_us.saturating_add(delay_us) {
                    self.phase = Phase::Conservative {
                        baseline_us: self.current_min_us,
                        sure_us: self.current_min_us.saturating_add(delay_us),
                        rounds_left: CONSERVATIVE_ROUNDS,
                    };
                }
            }
            // It was jitter: the round trip is shorter again.
            Phase::Conservative { baseline_us, .. } if self.current_min_us < baseline_us => {
                self.phase = Phase::Standard;
            }
            Phase::Conservative { sure_us, .. } if self.current_min_us >= sure_us => {
                return Verdict::Queue;
            }
            _ => {}
        }
        Verdict::Open
    }
}

/// Result of an evaluation of the round trips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Open,
    /// They may be growing.
    Longer,
    /// They grow because of a queue.
    Queue,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::SlowStart;

    const MSS: u32 = 1_000;

    /// A round of ten acknowledgments, all with this round trip and this far apart.
    fn train(
        hystart: &mut HyStart,
        from: &mut Sequence,
        rtt_us: u32,
        apart_us: u32,
    ) -> Vec<Growth> {
        let begun_us = (from.get() / MSS).wrapping_mul(10_000);
        let end = *from + 10 * MSS;
        (1..=10)
            .map(|index| {
                *from += MSS;
                hystart.on_acked(&Acked {
                    bytes: MSS,
                    mss: MSS,
                    srtt_us: rtt_us,
                    now_us: begun_us.wrapping_add(index * apart_us),
                    rtt_us: Some(rtt_us),
                    ack: *from,
                    next: end + 10 * MSS,
                    paced: false,
                    slow_start: SlowStart::default(),
                })
            })
            .collect()
    }

    /// The same in a moment.
    fn round(hystart: &mut HyStart, from: &mut Sequence, rtt_us: u32) -> Vec<Growth> {
        train(hystart, from, rtt_us, 0)
    }

    #[test]
    fn a_longer_round_trip_ends_slow_start_after_five_conservative_rounds() {
        let (mut hystart, mut at) = (HyStart::default(), Sequence::new(u32::MAX - 5 * MSS));
        for _ in 0..4 {
            let growth = round(&mut hystart, &mut at, 10_000);
            assert!(growth.iter().all(|growth| *growth == Growth::Bytes(MSS)));
        }
        let mut slow = 0;
        for more in 0..20 {
            let growth = round(&mut hystart, &mut at, 20_000 + more * 100);
            slow += growth
                .iter()
                .filter(|it| **it == Growth::Bytes(MSS / 4))
                .count();
            if growth.contains(&Growth::Leave) {
                assert!(slow >= 30, "{slow}");
                return;
            }
        }
        panic!("slow start does not end");
    }

    #[test]
    fn a_growing_queue_ends_slow_start_in_the_next_round() {
        let (mut hystart, mut at) = (HyStart::default(), Sequence::new(0));
        for _ in 0..4 {
            round(&mut hystart, &mut at, 40_000);
        }
        let first = round(&mut hystart, &mut at, 46_000);
        assert!(!first.contains(&Growth::Leave));
        // Below the threshold: it may still be jitter.
        let second = round(&mut hystart, &mut at, 49_000);
        assert!(!second.contains(&Growth::Leave));
        let third = round(&mut hystart, &mut at, 51_000);
        assert_eq!(third[7], Growth::Leave);
    }

    #[test]
    fn acknowledgments_that_last_half_a_round_trip_end_slow_start() {
        for (rtt_us, apart_us, ends) in [
            (40_000, 2_400, true),
            (40_000, 1_000, false),
            // Too far apart for a train.
            (40_000, 2_600, false),
            (5_000, 300, true),
            (5_000, 100, false),
            (1_900, 110, true),
            // So short that hosts may have batched the acknowledgments.
            (400, 110, false),
        ] {
            let (mut hystart, mut at) = (HyStart::default(), Sequence::new(0));
            let growth = [0; 3].map(|_| train(&mut hystart, &mut at, rtt_us, apart_us));
            let left = growth.concat().contains(&Growth::Leave);
            assert_eq!(left, ends, "{rtt_us}, {apart_us}");
        }
    }

    #[test]
    fn samples_of_a_paced_session_are_judged_one_by_one() {
        let (mut hystart, mut at) = (HyStart::default(), Sequence::new(0));
        for _ in 0..2 {
            round(&mut hystart, &mut at, 40_000);
        }
        let mut take = |rtt_us| {
            hystart.on_acked(&Acked {
                bytes: MSS,
                mss: MSS,
                srtt_us: rtt_us,
                now_us: 0,
                rtt_us: Some(rtt_us),
                ack: at,
                next: at + 1,
                paced: true,
                slow_start: SlowStart::default(),
            })
        };
        let (whole, quarter) = (Growth::Bytes(MSS), Growth::Bytes(MSS / 4));
        assert_eq!(take(42_000), whole);
        assert_eq!(take(43_000), quarter, "half of the threshold of 5 ms");
        assert_eq!([0; 7].map(|_| take(45_000)), [quarter; 7]);
        assert_eq!(take(44_000), quarter, "one was shorter");
        assert_eq!(take(40_000), whole);
        assert_eq!([0; 7].map(|_| take(46_000)), [quarter; 7]);
        assert_eq!(take(46_000), Growth::Leave);
    }

    #[test]
    fn classic_hystart_leaves_at_the_ninth_longer_sample_of_a_round() {
        let (mut hystart, mut at) = (HyStart::default(), Sequence::new(u32::MAX - 5 * MSS));
        let mut take = |window, rtt_us, now_us, more| {
            at += MSS;
            let acked = Acked {
                bytes: MSS,
                mss: MSS,
                srtt_us: rtt_us,
                now_us,
                rtt_us: Some(rtt_us),
                ack: at,
                next: at + more,
                paced: false,
                slow_start: SlowStart::HyStart,
            };
            hystart.on_acked_classic(window, &acked)
        };
        let whole = Growth::Bytes(MSS);
        assert_eq!(take(20 * MSS, 100_000, 0, 0), whole);
        // A window below 16 segments is not judged.
        for _ in 0..20 {
            assert_eq!(take(15 * MSS, 200_000, 100_000, 30 * MSS), whole);
        }
        assert_eq!(
            [0; 8].map(|_| take(16 * MSS, 113_000, 300_000, 0)),
            [whole; 8]
        );
        assert_eq!(take(16 * MSS, 113_000, 300_000, 0), Growth::Leave);
    }

    #[test]
    fn classic_hystart_leaves_after_a_train_of_half_a_round_trip() {
        for (apart_us, leaves) in [(1_900, true), (1_600, false), (2_100, false)] {
            let (mut hystart, mut at) = (HyStart::default(), Sequence::new(0));
            let growth = (0..30).map(|index| {
                at += MSS;
                hystart.on_acked_classic(
                    20 * MSS,
                    &Acked {
                        bytes: MSS,
                        mss: MSS,
                        srtt_us: 100_000,
                        now_us: index * apart_us,
                        rtt_us: Some(100_000),
                        ack: at,
                        next: Sequence::new(40 * MSS),
                        paced: false,
                        slow_start: SlowStart::HyStart,
                    },
                )
            });
            let left = growth.into_iter().any(|growth| growth == Growth::Leave);
            assert_eq!(left, leaves, "{apart_us}");
        }
    }

    #[test]
    fn a_jitter_is_forgiven() {
        let (mut hystart, mut at) = (HyStart::default(), Sequence::new(0));
        for _ in 0..4 {
            round(&mut hystart, &mut at, 10_000);
        }
        round(&mut hystart, &mut at, 20_000);
        round(&mut hystart, &mut at, 20_000);
        assert_ne!(hystart.phase, Phase::Standard);
        round(&mut hystart, &mut at, 10_000);
        assert_eq!(hystart.phase, Phase::Standard);
    }

    #[test]
    fn a_short_path_is_not_slowed_by_less_than_four_milliseconds() {
        let (mut hystart, mut at) = (HyStart::default(), Sequence::new(0));
        for more in 0..7 {
            let growth = round(&mut hystart, &mut at, 50 + more * 500);
            assert!(growth.iter().all(|growth| *growth == Growth::Bytes(MSS)));
        }
    }
}
