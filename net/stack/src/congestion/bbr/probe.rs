//! The probes: for a higher rate, every two or three seconds, and for the round trip without a
//! queue, every five.
//!
//! A probe for rate refills the pipe for a round, sends 25 % more than the bottleneck's rate until
//! a queue or loss appears, and then drains its queue. Source: draft-ietf-ccwg-bbr ("BBR Congestion
//! Control"), ProbeBW and ProbeRTT.

use super::{Ack, BETA, Bbr, Feedback, Hold, Phase, SEGMENTS_MIN, Sample, is_too_high};
use crate::timer::before_or_at;
use sidecore_random::split_mix;

/// BBRProbeRTTDuration.
const PROBE_RTT_US: u32 = 200_000;
/// BBRProbeRTTCwndGain.
const PROBE_RTT_GAIN: f64 = 0.5;
/// Minimum time between two probes for rate, and the random addition.
pub(super) const PROBE_WAIT_US: u32 = 2_000_000;
const PROBE_WAIT_MORE_US: u64 = 1_000_000;
/// Rounds between two probes, at most: as often as Reno's window grows back on usual paths.
const PROBE_ROUNDS_MAX: u32 = 63;

impl Bbr {
    /// BBRUpdateProbeBWCyclePhase.
    pub(super) fn cycle(&mut self, sample: &Sample, ack: &Ack) {
        if !self.pipe.is_reached() {
            return;
        }
        self.adapt_high_bound(sample, ack);
        match self.phase {
            Phase::Down => {
                if !self.probe_if_time(ack)
                    && ack.in_flight <= self.with_headroom(ack.mss)
                    && ack.in_flight <= self.inflight(1.0, ack.mss)
                {
                    self.phase = Phase::Cruise;
                }
            }
            Phase::Cruise => {
                self.probe_if_time(ack);
            }
            Phase::Refill => {
                // BBRProbeBW_REFILL lasts one round; the probe begins then.
                if self.round_start {
                    self.probing_samples = true;
                    self.start_up(sample, ack);
                }
            }
            Phase::Up => {
                if self.is_window_used(sample, ack) && ack.window >= self.flight_high {
                    // The bound limits the rate, not the path.
                    self.pipe.restart(sample.rate);
                } else if self.pipe.is_full_now() {
                    self.start_down(ack);
                }
            }
            Phase::Startup | Phase::Drain | Phase::ProbeRtt => {}
        }
    }

    /// BBRCheckTimeToProbeBW.
    fn probe_if_time(&mut self, ack: &Ack) -> bool {
        let waited = ack.now_us.wrapping_sub(self.cycle_at) > self.probe_wait_us;
        // On a path that holds next to nothing the actual window counts: probing in every second
        // round would overflow a short queue each time.
        let held = self.inflight(1.0, ack.mss).min(ack.window);
        let rounds = (held / ack.mss.max(1)).min(PROBE_ROUNDS_MAX);
        let due = waited || self.rounds_since_probe >= rounds.max(1);
        if due {
            self.forget_low_bounds();
            self.up_rounds = 0;
            self.up_bytes = 0;
            self.feedback = Feedback::Idle;
            self.start_round();
            self.phase = Phase::Refill;
        }
        due
    }

    fn start_up(&mut self, sample: &Sample, ack: &Ack) {
        self.feedback = Feedback::Starting;
        self.start_round();
        self.pipe.restart(sample.rate);
        self.phase = Phase::Up;
        self.raise_slope(ack);
    }

    pub(super) fn start_down(&mut self, ack: &Ack) {
        // BBRResetCongestionSignals.
        self.loss_in_round = false;
        self.rate_latest = 0.0;
        self.flight_latest = 0;
        self.up_segments = u32::MAX;
        let chance = split_mix(&mut self.chance);
        self.rounds_since_probe = (chance & 1) as u32;
        self.probe_wait_us = PROBE_WAIT_US + ((chance >> 1) % PROBE_WAIT_MORE_US) as u32;
        self.cycle_at = ack.now_us;
        self.feedback = Feedback::Stopping;
        self.start_round();
        self.phase = Phase::Down;
    }

    /// BBRAdaptLongTermModel.
    fn adapt_high_bound(&mut self, sample: &Sample, ack: &Ack) {
        if self.feedback == Feedback::Starting && self.round_start {
            self.feedback = Feedback::Probe;
        }
        if self.feedback == Feedback::Stopping && self.round_start {
            self.feedback = Feedback::Idle;
            if self.is_probing_rate() && !sample.app_limited && self.max_rate[0] > 0.0 {
                // All samples of the probe are complete: BBRAdvanceMaxBwFilter.
                self.max_rate = [0.0, self.max_rate[0]];
            }
        }
        if is_too_high(sample, ack.mss) {
            if self.probing_samples {
                self.flight_too_high(sample, ack);
            }
            return;
        }
        if self.flight_high == u32::MAX {
            return;
        }
        self.flight_high = self.flight_high.max(sample.in_flight);
        if self.phase == Phase::Up {
            self.probe_upward(sample, ack);
        }
    }

    /// BBRHandleInflightTooHigh.
    pub(super) fn flight_too_high(&mut self, sample: &Sample, ack: &Ack) {
        self.probing_samples = false;
        if !sample.app_limited {
            let least = (f64::from(self.target(ack)) * BETA) as u32;
            self.flight_high = sample.in_flight.max(least);
        }
        if self.phase == Phase::Up {
            self.start_down(ack);
        }
    }

    /// True if the window limited the flight of the sample.
    fn is_window_used(&self, sample: &Sample, ack: &Ack) -> bool {
        sample.in_flight.saturating_add(3 * ack.mss) > ack.window
    }

    /// BBRProbeInflightLongtermUpward.
    fn probe_upward(&mut self, sample: &Sample, ack: &Ack) {
        if !self.is_window_used(sample, ack) || ack.window < self.flight_high {
            return;
        }
        self.up_bytes += ack.delivered;
        let each = self.up_segments.saturating_mul(ack.mss).max(1);
        let segments = self.up_bytes / each;
        self.up_bytes -= segments * each;
        self.flight_high = self.flight_high.saturating_add(segments * ack.mss);
        if self.round_start {
            self.raise_slope(ack);
        }
    }

    /// BBRRaiseInflightLongtermSlope: one segment in the first round, two in the next, four…
    fn raise_slope(&mut self, ack: &Ack) {
        let growth = 1 << self.up_rounds;
        self.up_rounds = (self.up_rounds + 1).min(30);
        self.up_segments = (ack.window / ack.mss.max(1) / growth).max(1);
    }

    /// BBRCheckProbeRTT; returns the window, restored at the end of the probe.
    pub(super) fn probe_rtt(&mut self, ack: &Ack) -> u32 {
        let mut window = ack.window;
        // The minimum round trip was not measured for a while: it shows only with little in flight.
        if self.phase != Phase::ProbeRtt && self.min_rtt.is_expired() && !self.restarts {
            self.phase = Phase::ProbeRtt;
            self.saved_window = self.saved_window.max(window);
            self.probe_rtt = None;
            self.feedback = Feedback::Stopping;
            self.start_round();
        }
        if self.phase == Phase::ProbeRtt {
            // With so little in flight, samples do not show the path's rate.
            self.delivery.limit(ack.in_flight);
            let low = ack.in_flight <= self.probe_rtt_window(ack.mss);
            match &mut self.probe_rtt {
                None if low => {
                    self.probe_rtt = Some(Hold {
                        until_us: ack.now_us.wrapping_add(PROBE_RTT_US),
                        round_over: false,
                    });
                    self.start_round();
                }
                None => {}
                Some(hold) => {
                    // At the low window for a minimum time, and for one whole round.
                    hold.round_over |= self.round_start;
                    let over = before_or_at(hold.until_us, ack.now_us);
                    if hold.round_over && over {
                        self.min_rtt.probed(ack.now_us);
                        window = window.max(std::mem::take(&mut self.saved_window));
                        self.forget_low_bounds();
                        if self.pipe.is_reached() {
                            self.start_down(ack);
                            self.phase = Phase::Cruise;
                        } else {
                            self.phase = Phase::Startup;
                        }
                    }
                }
            }
        }
        // The first delivery ends the restart after a pause.
        if ack.delivered > 0 {
            self.restarts = false;
        }
        window
    }

    pub(super) fn probe_rtt_window(&self, mss: u32) -> u32 {
        let half = self.product(self.bounded_rate(), PROBE_RTT_GAIN);
        (half as u32).max(SEGMENTS_MIN * mss)
    }
}
