//! CUBIC: the window as a cubic function of the time since the last loss. Source: RFC 9438,
//! RFC 8511.

use super::{Acked, Control, scaled, slow_start};

/// RFC 9438 section 4.1: the constant C, in segments per cubed second.
const C: f64 = 0.4;
/// RFC 9438 section 4.6.
const BETA: f64 = 0.7;
/// RFC 8511 section 3.1: the factor after a mark, when the queue is known to be short.
const BETA_ECN: f64 = 0.85;
/// RFC 9438 section 4.3: makes the Reno-friendly region as fast as Reno.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// State; windows in segments, times in seconds, as in the RFC.
#[derive(Debug, Clone)]
pub(crate) struct Cubic {
    threshold: u32,
    /// Start of the current epoch of congestion avoidance, later by the time without growth.
    epoch_us: Option<u32>,
    /// Time of the last growth.
    grown_us: u32,
    w_max: f64,
    k: f64,
    /// The window that Reno would have.
    w_est: f64,
    /// Remainder of growth below a byte.
    rest: f64,
}

impl Default for Cubic {
    fn default() -> Self {
        Self {
            threshold: u32::MAX,
            epoch_us: None,
            grown_us: 0,
            w_max: 0.0,
            k: 0.0,
            w_est: 0.0,
            rest: 0.0,
        }
    }
}

impl Cubic {
    /// The start of the epoch, where one has begun. RFC 9438 sections 4.2 and 5.8: it leaves out
    /// the time in which the application was the limit. While the window is, acknowledgments come
    /// within a round trip.
    fn epoch(&mut self, acked: &Acked) -> Option<u32> {
        let epoch_us = self.epoch_us?;
        let silent_us = acked.now_us.wrapping_sub(self.grown_us);
        let shifted = epoch_us.wrapping_add(silent_us.saturating_sub(acked.srtt_us));
        self.epoch_us = Some(shifted);
        Some(shifted)
    }

    fn begin(&mut self, segments: f64, now_us: u32) {
        self.epoch_us = Some(now_us);
        self.w_est = segments;
        self.rest = 0.0;
        if segments < self.w_max {
            // RFC 9438 section 4.2, figure 2.
            self.k = ((self.w_max - segments) / C).cbrt();
        } else {
            self.w_max = segments;
            self.k = 0.0;
        }
    }

    /// RFC 9438 section 4.6: reduces the window and its target by this factor.
    fn reduce(&mut self, window: u32, flight: u32, mss: u32, beta: f64) -> u32 {
        let segments = f64::from(window) / f64::from(mss.max(1));
        // RFC 9438 section 4.7: fast convergence.
        self.w_max = if segments < self.w_max {
            segments * (1.0 + beta) / 2.0
        } else {
            segments
        };
        // RFC 9438 section 4.6, from the amount in flight rather than an unused window.
        self.threshold = scaled(flight.min(window), beta).max(2 * mss);
        self.epoch_us = None;
        self.threshold
    }
}

impl Control for Cubic {
    fn threshold(&self) -> u32 {
        self.threshold
    }

    fn on_acked(&mut self, window: u32, acked: &Acked) -> u32 {
        let (window, left) = slow_start(window, self.threshold, acked.bytes);
        if left == 0 || acked.mss == 0 {
            return window;
        }
        let mss = f64::from(acked.mss);
        let segments = f64::from(window) / mss;
        let began = self.epoch(acked).unwrap_or_else(|| {
            self.begin(segments, acked.now_us);
            acked.now_us
        });
        self.grown_us = acked.now_us;
        let seconds = f64::from(acked.now_us.wrapping_sub(began)) / 1e6;
        let rtt = f64::from(acked.srtt_us) / 1e6;
        // RFC 9438 section 4.2, figure 1, a round trip ahead; held to 1.5 windows (section 4.2).
        let ahead = seconds + rtt - self.k;
        let target = (C * ahead * ahead * ahead + self.w_max).clamp(segments, 1.5 * segments);
        let arrived = f64::from(left) / mss;
        // RFC 9438 section 4.3, figure 4; past w_max it grows as Reno does.
        let alpha = if self.w_est < self.w_max { ALPHA } else { 1.0 };
        self.w_est += alpha * arrived / segments;
        let at = seconds - self.k;
        let cubic = C * at * at * at + self.w_max;
        let next = if cubic < self.w_est {
            // The Reno-friendly region.
            self.w_est.max(segments)
        } else {
            // Sections 4.4 and 4.5: (target - cwnd) / cwnd for each segment acknowledged.
            segments + (target - segments) / segments * arrived
        };
        let grown = (next - segments) * mss + self.rest;
        let whole = grown.floor().min(f64::from(left));
        self.rest = (grown - whole).clamp(0.0, 1.0);
        window.saturating_add(whole as u32)
    }

    fn on_loss(&mut self, window: u32, flight: u32, mss: u32, _now_us: u32) -> u32 {
        self.reduce(window, flight, mss, BETA)
    }

    fn on_echo(&mut self, window: u32, flight: u32, mss: u32, _now_us: u32) -> u32 {
        self.reduce(window, flight, mss, BETA_ECN)
    }

    fn on_loss_after_echo(&mut self, mss: u32) -> u32 {
        self.threshold = scaled(self.threshold, BETA / BETA_ECN).max(2 * mss);
        self.epoch_us = None;
        self.threshold
    }

    fn on_timeout(&mut self, window: u32, flight: u32, mss: u32, _now_us: u32) -> u32 {
        let threshold = self.reduce(window, flight, mss, BETA);
        // RFC 9438 section 4.8: the next epoch begins at the plateau, whatever the window was
        // before: K is 0, and w_max the window with which congestion avoidance begins.
        self.w_max = 0.0;
        threshold
    }

    fn leave_slow_start(&mut self, window: u32) {
        self.threshold = window;
    }

    fn on_restart(&mut self, _now_us: u32) {
        // The window is another one after the restart (RFC 5681 section 4.1), so the curve is, too.
        self.epoch_us = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::SlowStart;
    use crate::wire::sequence::Sequence;

    fn run(cubic: &mut Cubic, mut window: u32, from_us: u32, rounds: u32, rtt_us: u32) -> u32 {
        for round in 0..rounds {
            let acked = Acked {
                bytes: window,
                mss: 1000,
                srtt_us: rtt_us,
                now_us: from_us + round * rtt_us,
                rtt_us: None,
                ack: Sequence::default(),
                next: Sequence::default(),
                paced: false,
                slow_start: SlowStart::default(),
            };
            window = cubic.on_acked(window, &acked);
        }
        window
    }

    #[test]
    fn comes_back_to_the_old_window_after_k_seconds() {
        let mut cubic = Cubic::default();
        let threshold = cubic.on_loss(1_000_000, 1_000_000, 1000, 0);
        assert_eq!(threshold, 700_000);
        // K = cbrt(300 / 0.4) = 9.1 s: 91 rounds of 100 ms.
        let half = run(&mut cubic.clone(), threshold, 0, 45, 100_000);
        let back = run(&mut cubic, threshold, 0, 92, 100_000);
        assert!((990_000..1_020_000).contains(&back), "{back}");
        // Concave: most of the growth is early.
        assert!(half > 940_000, "{half}");
    }

    #[test]
    fn is_no_slower_than_reno_on_a_short_path() {
        let mut cubic = Cubic::default();
        let threshold = cubic.on_loss(20_000, 20_000, 1000, 0);
        let after = run(&mut cubic, threshold, 0, 100, 1000);
        // 100 rounds of a millisecond: the cubic function itself has hardly moved.
        assert!(after > 14_000 + 45_000, "{after}");
    }

    #[test]
    fn a_mark_costs_less_than_a_loss_and_both_as_much_as_a_loss() {
        let mut cubic = Cubic::default();
        assert_eq!(cubic.on_echo(1_000_000, 1_000_000, 1000, 0), 850_000);
        assert!((cubic.w_max - 1000.0).abs() < 1e-9);
        assert_eq!(cubic.on_loss_after_echo(1000), 700_000);
        assert_eq!(cubic.on_echo(1000, 1000, 1000, 0), 2000);
    }

    /// RFC 9438 section 4.8: no way back to the old window, and growth from the plateau.
    #[test]
    fn after_a_timeout_the_plateau_is_where_avoidance_begins() {
        let mut cubic = Cubic::default();
        assert_eq!(cubic.on_timeout(1_000_000, 1_000_000, 1000, 0), 700_000);
        let after = run(&mut cubic, 700_000, 0, 11, 100_000);
        assert!((cubic.w_max - 700.0).abs() < 1e-9 && cubic.k == 0.0);
        // C * 1.1^3 is half a segment; Reno's share of 11 rounds is below 11 segments.
        assert!((700_000..712_000).contains(&after), "{after}");
        // A loss before avoidance begins has a plateau of its own.
        let mut cubic = Cubic::default();
        cubic.on_timeout(1_000_000, 1_000_000, 1000, 0);
        cubic.on_loss(400_000, 400_000, 1000, 0);
        assert!((cubic.w_max - 400.0).abs() < 1e-9);
    }

    /// RFC 9438 sections 4.2 and 5.8: time in which the application was the limit does not count.
    #[test]
    fn a_pause_of_the_application_stops_the_clock() {
        let mut cubic = Cubic::default();
        let threshold = cubic.on_loss(1_000_000, 1_000_000, 1000, 0);
        let window = run(&mut cubic, threshold, 0, 120, 100_000);
        let straight = run(&mut cubic.clone(), window, 12_000_000, 10, 100_000);
        let paused = run(&mut cubic, window, 72_000_000, 10, 100_000);
        assert_eq!(paused, straight);
    }

    #[test]
    fn fast_convergence_gives_way() {
        let mut cubic = Cubic::default();
        cubic.on_loss(1_000_000, 1_000_000, 1000, 0);
        cubic.on_loss(800_000, 800_000, 1000, 0);
        assert!((cubic.w_max - 680.0).abs() < 1e-9);
    }
}
