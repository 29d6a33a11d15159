//! HyStart++: leaves the first slow start when the round trip grows, before the bottleneck's queue
//! is full.
//!
//! Without it slow start ends only when it has sent twice what path and queue hold, and half of
//! that is dropped. Source: RFC 9406, with its recommended constants; applied while the threshold
//! is at its initial value (section 4.3).

/// The delay that ends slow start lies between these (MIN_RTT_THRESH and MAX_RTT_THRESH), and is
/// this part of the round trip (MIN_RTT_DIVISOR).
const DELAY_MIN_US: u32 = 4_000;
const DELAY_MAX_US: u32 = 16_000;
const DELAY_DIVISOR: u32 = 8;
/// N_RTT_SAMPLE: samples of a round before it is judged.
const SAMPLES_MIN: u8 = 8;
/// CSS_GROWTH_DIVISOR and CSS_ROUNDS: conservative slow start.
const CONSERVATIVE_DIVISOR: u32 = 4;
const CONSERVATIVE_ROUNDS: u8 = 5;

/// Phase of the first slow start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Standard,
    /// Conservative slow start (CSS): the round trip has grown; a jitter would show within some
    /// rounds.
    Conservative {
        baseline_us: u32,
        rounds_left: u8,
    },
}

/// Growth that an acknowledgment allows.
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
    /// windowEnd: the round is over when this is acknowledged; none before the first.
    round_end: Option<u32>,
    /// lastRoundMinRTT and currentRoundMinRTT; `u32::MAX` for infinity.
    last_min_us: u32,
    current_min_us: u32,
    samples: u8,
}

impl Default for HyStart {
    fn default() -> Self {
        Self {
            phase: Phase::Standard,
            round_end: None,
            last_min_us: u32::MAX,
            current_min_us: u32::MAX,
            samples: 0,
        }
    }
}

impl HyStart {
    /// An acknowledgment up to `ack` of `bytes` more, with `next` the next number to be sent.
    pub(crate) fn on_acked(
        &mut self,
        bytes: u32,
        rtt_us: Option<u32>,
        ack: u32,
        next: u32,
    ) -> Growth {
        if let Some(rtt_us) = rtt_us {
            self.current_min_us = self.current_min_us.min(rtt_us);
            self.samples = self.samples.saturating_add(1);
        }
        self.judge();
        let round_end = *self.round_end.get_or_insert(next);
        if !crate::wire::sequence::before(ack, round_end) {
            self.round_end = Some(next);
            self.last_min_us = self.current_min_us;
            self.current_min_us = u32::MAX;
            self.samples = 0;
            if let Phase::Conservative { rounds_left, .. } = &mut self.phase {
                *rounds_left -= 1;
                if *rounds_left == 0 {
                    return Growth::Leave;
                }
            }
        }
        match self.phase {
            Phase::Standard => Growth::Bytes(bytes),
            Phase::Conservative { .. } => Growth::Bytes(bytes / CONSERVATIVE_DIVISOR),
        }
    }

    fn judge(&mut self) {
        if self.samples < SAMPLES_MIN || self.current_min_us == u32::MAX {
            return;
        }
        match self.phase {
            Phase::Standard if self.last_min_us != u32::MAX => {
                let delay_us = (self.last_min_us / DELAY_DIVISOR).clamp(DELAY_MIN_US, DELAY_MAX_US);
                if self.current_min_us >= self.last_min_us.saturating_add(delay_us) {
                    self.phase = Phase::Conservative {
                        baseline_us: self.current_min_us,
                        rounds_left: CONSERVATIVE_ROUNDS,
                    };
                }
            }
            // It was jitter: the round trip is shorter again.
            Phase::Conservative { baseline_us, .. } if self.current_min_us < baseline_us => {
                self.phase = Phase::Standard;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS: u32 = 1_000;

    /// A round of ten acknowledgments, all with this round trip.
    fn round(hystart: &mut HyStart, from: &mut u32, rtt_us: u32) -> Vec<Growth> {
        let end = from.wrapping_add(10 * MSS);
        (0..10)
            .map(|_| {
                *from = from.wrapping_add(MSS);
                let next = end.wrapping_add(10 * MSS);
                hystart.on_acked(MSS, Some(rtt_us), *from, next)
            })
            .collect()
    }

    #[test]
    fn a_growing_round_trip_ends_slow_start_after_five_conservative_rounds() {
        let (mut hystart, mut at) = (HyStart::default(), u32::MAX - 5 * MSS);
        for _ in 0..4 {
            let growth = round(&mut hystart, &mut at, 10_000);
            assert!(growth.iter().all(|growth| *growth == Growth::Bytes(MSS)));
        }
        let mut slow = 0;
        for more in 0..20 {
            let growth = round(&mut hystart, &mut at, 20_000 + more * 1_000);
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
    fn a_jitter_is_forgiven() {
        let (mut hystart, mut at) = (HyStart::default(), 0);
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
        let (mut hystart, mut at) = (HyStart::default(), 0);
        for more in 0..7 {
            let growth = round(&mut hystart, &mut at, 50 + more * 500);
            assert!(growth.iter().all(|growth| *growth == Growth::Bytes(MSS)));
        }
    }
}
