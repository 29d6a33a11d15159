//! Reno: one segment more each round trip, half after a loss. Source: RFC 5681 section 3.1,
//! RFC 8511.

use super::{Acked, Control, scaled, slow_start};

/// RFC 5681 section 3.1, equation 4.
const BETA: f64 = 0.5;
/// RFC 8511 section 3.1: after a mark.
const BETA_ECN: f64 = 0.8;

/// Its state.
#[derive(Debug, Clone)]
pub(crate) struct Reno {
    threshold: u32,
    /// Bytes acknowledged towards the next segment of growth.
    credit: u32,
}

impl Default for Reno {
    fn default() -> Self {
        Self {
            // RFC 5681 section 3.1: arbitrarily high.
            threshold: u32::MAX,
            credit: 0,
        }
    }
}

impl Control for Reno {
    fn threshold(&self) -> u32 {
        self.threshold
    }

    fn on_acked(&mut self, window: u32, acked: &Acked) -> u32 {
        let (mut window, left) = slow_start(window, self.threshold, acked.bytes);
        self.credit = self.credit.saturating_add(left);
        // RFC 5681 section 3.1: one segment for each window's worth of acknowledged bytes.
        while self.credit >= window {
            self.credit -= window;
            window = window.saturating_add(acked.mss);
        }
        window
    }

    fn on_loss(&mut self, _window: u32, flight: u32, mss: u32, _now_us: u32) -> u32 {
        // RFC 5681 section 3.1, equation 4.
        self.threshold = (flight / 2).max(2 * mss);
        self.credit = 0;
        self.threshold
    }

    fn on_echo(&mut self, _window: u32, flight: u32, mss: u32, _now_us: u32) -> u32 {
        self.threshold = scaled(flight, BETA_ECN).max(2 * mss);
        self.credit = 0;
        self.threshold
    }

    fn on_loss_after_echo(&mut self, mss: u32) -> u32 {
        self.threshold = scaled(self.threshold, BETA / BETA_ECN).max(2 * mss);
        self.threshold
    }

    fn leave_slow_start(&mut self, window: u32) {
        self.threshold = window;
    }

    fn on_restart(&mut self, _now_us: u32) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::{Algorithm, Congestion, SlowStart};
    use crate::wire::sequence::Sequence;

    fn acked(bytes: u32) -> Acked {
        Acked {
            bytes,
            mss: 1000,
            srtt_us: 1000,
            now_us: 0,
            rtt_us: None,
            ack: Sequence::default(),
            next: Sequence::default(),
            paced: false,
            slow_start: SlowStart::default(),
        }
    }

    #[test]
    fn doubles_then_adds_one_segment_a_window() {
        let mut reno = Reno::default();
        assert_eq!(reno.on_acked(10_000, &acked(10_000)), 20_000);
        assert_eq!(reno.on_loss(20_000, 20_000, 1000, 0), 10_000);
        let mut window = 10_000;
        for _ in 0..10 {
            window = reno.on_acked(window, &acked(1000));
        }
        assert_eq!(window, 11_000);
    }

    #[test]
    fn a_mark_costs_less_than_a_loss_and_both_as_much_as_a_loss() {
        let mut reno = Reno::default();
        assert_eq!(reno.on_echo(100_000, 100_000, 1000, 0), 80_000);
        assert_eq!(reno.on_loss_after_echo(1000), 50_000);
        assert_eq!(reno.on_echo(1000, 1000, 1000, 0), 2000);
        assert_eq!(reno.on_loss_after_echo(1000), 2000);
    }

    /// Linux has HyStart in CUBIC alone: longer round trips end slow start there, and not here.
    #[test]
    fn hystart_is_cubic_s_alone() {
        for (algorithm, ends) in [(Algorithm::Cubic, true), (Algorithm::Reno, false)] {
            let mut congestion = Congestion::new(algorithm);
            let mut window = 20_000;
            for segment in 1..=60 {
                let rtt_us = if segment <= 20 { 10_000 } else { 100_000 };
                let acked = Acked {
                    now_us: segment * 5_000,
                    rtt_us: Some(rtt_us),
                    ack: Sequence::new(segment * 1000),
                    next: Sequence::new(segment * 1000 + window),
                    slow_start: SlowStart::HyStart,
                    ..acked(1000)
                };
                window = congestion.on_acked(window, &acked);
            }
            assert_eq!(congestion.threshold() < u32::MAX, ends, "{algorithm:?}");
        }
    }

    #[test]
    fn never_below_two_segments() {
        assert_eq!(Reno::default().on_loss(1000, 1000, 1000, 0), 2000);
    }
}
