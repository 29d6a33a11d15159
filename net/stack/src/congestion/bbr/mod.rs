//! BBR, version 3: a model of the path (its rate, its round trip, the amount it holds without loss)
//! determines the sending rate and the amount in flight.
//!
//! Why here: CUBIC fills any queue and treats each random loss as a full one. Source:
//! draft-ietf-ccwg-bbr ("BBR Congestion Control"), whose names the comments give in parentheses.
//! Bytes, microseconds that wrap, and rates in bytes a second. Pure: the session reports data that
//! was sent, delivered and lost, and takes the window and the rate from it.
//!
//! Differences from the draft:
//! - the loss of a flight is judged at the mark of the newest delivered segment, not at each lost
//!   segment, for which the scoreboard keeps no state;
//! - one lost segment of a flight is tolerated, even if it exceeds the threshold of 2 %, and does
//!   not lower the short-term bounds either. By the letter, any loss on a path of less than 50
//!   segments is congestion, and 1 % of random loss costs 15 % of the goodput;
//! - an echo of a mark by classic ECN (RFC 3168), which the draft leaves open, counts like loss
//!   beyond the threshold.

mod delivery;
mod probe;
mod signals;

pub(crate) use delivery::Sample;

use super::initial_window;
use delivery::Delivery;
use probe::PROBE_WAIT_US;
use signals::{FullPipe, MinRtt};

/// Gains of the rate by phase: 4 ln 2 in startup (BBRStartupPacingGain), and so on.
const STARTUP_GAIN: f64 = 2.77;
const DRAIN_GAIN: f64 = 0.5;
const DOWN_GAIN: f64 = 0.9;
const UP_GAIN: f64 = 1.25;
/// Gains of the window (BBRDefaultCwndGain; ProbeBW_UP's).
const WINDOW_GAIN: f64 = 2.0;
const WINDOW_UP_GAIN: f64 = 2.25;
/// The rate stays below the bottleneck's by this factor (BBRPacingMarginPercent).
const MARGIN: f64 = 0.99;
/// BBRMinPipeCwnd, in segments.
const SEGMENTS_MIN: u32 = 4;
/// BBRLossThresh, BBRBeta, BBRHeadroom.
const LOSS_MAX: f64 = 0.02;
const BETA: f64 = 0.7;
const HEADROOM: f64 = 0.15;
/// Factor for a flight with marks: RFC 8511 section 3.1.
const BETA_ECN: f64 = 0.85;
/// BBRStartupFullLossCnt: acknowledgments of a round that show loss.
const STARTUP_LOSSES: u32 = 6;
/// Rounds that each of two slots of the ACK aggregation filter covers.
const EXTRA_ROUNDS: u32 = 5;

/// State of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Startup,
    Drain,
    Down,
    Cruise,
    Refill,
    Up,
    ProbeRtt,
}

/// The probe phase that current acknowledgments belong to (BBR.ack_phase).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Feedback {
    /// No probe.
    Idle,
    Starting,
    Probe,
    Stopping,
}

/// Why loss recovery begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Acknowledgments, or their absence for a while, show a loss.
    Loss,
    /// A retransmission timeout.
    Timeout,
}

/// An acknowledgment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ack {
    pub(crate) now_us: u32,
    /// Bytes newly delivered.
    pub(crate) delivered: u32,
    /// Time when the newest delivered segment was sent.
    pub(crate) sent_us: Option<u32>,
    pub(crate) rtt_us: Option<u32>,
    /// Bytes in flight after it.
    pub(crate) in_flight: u32,
    pub(crate) window: u32,
    pub(crate) mss: u32,
    /// Loss recovery is in progress.
    pub(crate) recovering: bool,
}

/// ProbeRTT at the low window: its end, and true after a whole round.
#[derive(Debug, Clone, Copy)]
struct Hold {
    until_us: u32,
    round_over: bool,
}

/// The model of one session.
#[derive(Debug, Clone)]
pub(crate) struct Bbr {
    delivery: Delivery,
    phase: Phase,
    feedback: Feedback,
    /// Maximum of the rate over this probing cycle and the previous one (BBR.max_bw).
    max_rate: [f64; 2],
    /// Bounds by recent congestion (bw_shortterm, inflight_shortterm), infinite without any; and by
    /// probes (inflight_longterm).
    rate_low: f64,
    flight_low: u32,
    flight_high: u32,
    /// Maximum of this round.
    rate_latest: f64,
    flight_latest: u32,
    /// Ends of the round trips, as numbers of delivered bytes.
    round_end: u64,
    round_start: bool,
    rounds: u32,
    loss_round_end: u64,
    loss_in_round: bool,
    /// In startup: acknowledgments of the round that showed loss.
    losses: u32,
    recovery_rounds: u32,
    pipe: FullPipe,
    min_rtt: MinRtt,
    /// In ProbeRTT, once the flight is small.
    probe_rtt: Option<Hold>,
    /// State of probing for rate.
    cycle_at: u32,
    probe_wait_us: u32,
    rounds_since_probe: u32,
    up_segments: u32,
    up_rounds: u32,
    up_bytes: u32,
    probing_samples: bool,
    /// ACK aggregation: bytes beyond the rate, in this slot and the previous one.
    extra: [u32; 2],
    extra_rounds: u32,
    epoch_at: u32,
    epoch_bytes: u64,
    /// Sending restarts after a pause.
    restarts: bool,
    /// The window before loss recovery or ProbeRTT, and the round in which recovery keeps the
    /// flight constant.
    saved_window: u32,
    conserves_until: Option<u64>,
    /// Bytes found lost since the last acknowledgment.
    newly_lost: u32,
    /// Bytes a second.
    rate: f64,
    chance: u64,
}

impl Bbr {
    /// A new model; `rtt_us` of the handshake, or 0.
    pub(crate) fn new(window: u32, rtt_us: u32, now_us: u32, seed: u32) -> Self {
        let mut new = Self {
            delivery: Delivery::new(now_us),
            phase: Phase::Startup,
            feedback: Feedback::Idle,
            max_rate: [0.0; 2],
            rate_low: f64::INFINITY,
            flight_low: u32::MAX,
            flight_high: u32::MAX,
            rate_latest: 0.0,
            flight_latest: 0,
            round_end: 0,
            round_start: false,
            rounds: 0,
            loss_round_end: 0,
            loss_in_round: false,
            losses: 0,
            recovery_rounds: 0,
            pipe: FullPipe::default(),
            min_rtt: MinRtt::new(now_us),
            probe_rtt: None,
            cycle_at: now_us,
            probe_wait_us: PROBE_WAIT_US,
            rounds_since_probe: 0,
            up_segments: u32::MAX,
            up_rounds: 0,
            up_bytes: 0,
            probing_samples: false,
            extra: [0; 2],
            extra_rounds: 0,
            epoch_at: now_us,
            epoch_bytes: 0,
            restarts: false,
            saved_window: 0,
            conserves_until: None,
            newly_lost: 0,
            rate: 0.0,
            chance: u64::from(seed),
        };
        new.first_rate(window, rtt_us);
        new
    }

    /// The rate before there is a sample (BBRInitPacingRate): a window per round trip, or per
    /// millisecond.
    pub(crate) fn first_rate(&mut self, window: u32, rtt_us: u32) {
        if self.max_rate() == 0.0 {
            let round_us = if rtt_us == 0 { 1_000 } else { rtt_us };
            self.rate = STARTUP_GAIN * f64::from(window) * 1e6 / f64::from(round_us);
        }
    }

    /// Rate to send at, in bytes a second.
    pub(crate) fn rate(&self) -> f64 {
        self.rate
    }

    /// True before the first round trip was measured.
    pub(crate) fn is_new(&self) -> bool {
        self.max_rate() == 0.0
    }

    /// `bytes` were sent, with `before` in flight before them.
    pub(crate) fn sent(&mut self, now_us: u32, before: u32, bytes: u32, rtt_us: u32) {
        if before == 0 && self.delivery.is_app_limited() {
            // BBRHandleRestartFromIdle.
            self.restarts = true;
            self.epoch_at = now_us;
            self.epoch_bytes = 0;
            if self.is_probing_rate() {
                self.rate = MARGIN * self.bounded_rate();
            }
        }
        self.delivery.sent(now_us, before, bytes, rtt_us);
    }

    /// The application or the peer's window limits the rate.
    pub(crate) fn limited(&mut self, in_flight: u32) {
        self.delivery.limit(in_flight);
    }

    /// `bytes` more were detected as lost.
    pub(crate) fn lost(&mut self, bytes: u32) {
        self.newly_lost = self.newly_lost.saturating_add(bytes);
    }

    /// Loss recovery begins: its first window. The flight stays constant for a round; after a
    /// timeout it restarts from the minimum.
    pub(crate) fn recovery_begins(
        &mut self,
        window: u32,
        in_flight: u32,
        mss: u32,
        cause: Cause,
    ) -> u32 {
        self.saved_window = self.saved_window.max(window);
        self.recovery_rounds = 0;
        self.losses = 0;
        if cause == Cause::Timeout {
            // BBRSaveCwnd kept the window: the flight that a timeout leaves says nothing about the
            // path.
            self.conserves_until = None;
            return mss;
        }
        // Packet conservation for one round: what was in flight, and the retransmission.
        self.conserves_until = Some(self.delivery.delivered);
        in_flight + mss
    }

    /// Loss recovery has ended.
    pub(crate) fn recovery_ends(&mut self, window: u32) -> u32 {
        self.conserves_until = None;
        window.max(std::mem::take(&mut self.saved_window))
    }

    /// The peer echoed a mark: a router's queue is too long.
    pub(crate) fn marked(&mut self, in_flight: u32, ack: &Ack) {
        self.note_loss();
        if self.phase == Phase::Startup {
            self.pipe.mark_reached();
            self.flight_high = self
                .flight_high
                .min(in_flight.max(self.inflight(1.0, ack.mss)));
        } else if self.probing_samples {
            let sample = Sample {
                in_flight: (f64::from(in_flight) * BETA_ECN) as u32,
                ..Sample::default()
            };
            self.flight_too_high(&sample, ack);
        }
    }

    /// Updates the model (BBRUpdateOnACK); returns the window.
    pub(crate) fn acked(&mut self, ack: &Ack) -> u32 {
        let least_us = self.min_rtt.get().unwrap_or(0);
        // Losses found since the last acknowledgment belong to the flight that this one samples.
        let lost = std::mem::take(&mut self.newly_lost);
        self.delivery.lost += u64::from(lost);
        let sample = self
            .delivery
            .delivered(ack.now_us, ack.delivered, ack.sent_us, least_us);
        if lost > 0 {
            self.losses += 1;
            if is_too_high(&sample, ack.mss) {
                self.note_loss();
            }
        }
        let loss_round = self.take_sample(&sample);
        if loss_round {
            self.adapt_low_bounds(ack);
            self.loss_in_round = false;
        }
        self.note_bunching(ack);
        self.pipe.check(&sample, self.round_start);
        self.check_startup(&sample, ack);
        // BBRCheckDrain.
        if self.phase == Phase::Drain && ack.in_flight <= self.inflight(1.0, ack.mss) {
            self.start_down(ack);
        }
        self.cycle(&sample, ack);
        self.min_rtt.note(ack.rtt_us, ack.now_us);
        // After the cycle, which must not leave the phase that this one enters.
        let window = self.probe_rtt(ack);
        // BBRAdvanceLatestDeliverySignals.
        if loss_round {
            self.rate_latest = sample.rate;
            self.flight_latest = u32::try_from(sample.delivered).unwrap_or(u32::MAX);
        }
        self.set_rate();
        self.window(window, ack)
    }

    fn max_rate(&self) -> f64 {
        self.max_rate[0].max(self.max_rate[1])
    }

    /// BBR.bw.
    fn bounded_rate(&self) -> f64 {
        self.max_rate().min(self.rate_low)
    }

    fn is_probing_rate(&self) -> bool {
        match self.phase {
            Phase::Down | Phase::Cruise | Phase::Refill | Phase::Up => true,
            Phase::Startup | Phase::Drain | Phase::ProbeRtt => false,
        }
    }

    /// `gain` bandwidth-delay products in bytes, without the allowance for segmentation.
    fn product(&self, rate: f64, gain: f64) -> f64 {
        self.min_rtt
            .get()
            .map_or(f64::INFINITY, |us| gain * rate * f64::from(us) / 1e6)
    }

    /// BBRInflight: with an allowance for segments that wait for each other at both ends.
    fn inflight(&self, gain: f64, mss: u32) -> u32 {
        // BBR.send_quantum: a millisecond of data. BBR.offload_budget has three of them.
        let quantum = (self.rate / 1_000.0).clamp(f64::from(2 * mss), 65_536.0);
        let bytes = self.product(self.bounded_rate(), gain).max(3.0 * quantum);
        let bytes = bytes.max(f64::from(SEGMENTS_MIN * mss)) as u32;
        if self.phase == Phase::Up {
            bytes.saturating_add(2 * mss)
        } else {
            bytes
        }
    }

    /// BBRInflightWithHeadroom: leaves room for other flows.
    fn with_headroom(&self, mss: u32) -> u32 {
        if self.flight_high == u32::MAX {
            return u32::MAX;
        }
        let headroom = ((f64::from(self.flight_high) * HEADROOM) as u32).max(mss);
        self.flight_high
            .saturating_sub(headroom)
            .max(SEGMENTS_MIN * mss)
    }

    /// BBRTargetInflight.
    fn target(&self, ack: &Ack) -> u32 {
        (self.product(self.bounded_rate(), 1.0) as u32).min(ack.window)
    }

    fn note_loss(&mut self) {
        if !self.loss_in_round {
            self.loss_round_end = self.delivery.delivered;
        }
        self.loss_in_round = true;
    }

    /// BBRUpdateLatestDeliverySignals and BBRUpdateMaxBw; true at the end of a round for loss
    /// detection.
    fn take_sample(&mut self, sample: &Sample) -> bool {
        self.round_start = false;
        let Some(prior) = sample.prior_delivered else {
            return false;
        };
        self.rate_latest = self.rate_latest.max(sample.rate);
        let delivered = u32::try_from(sample.delivered).unwrap_or(u32::MAX);
        self.flight_latest = self.flight_latest.max(delivered);
        if prior >= self.round_end {
            self.start_round();
            self.rounds += 1;
            self.rounds_since_probe += 1;
            self.round_start = true;
        }
        // A sample limited by the application can raise the maximum, but not lower it.
        if sample.rate > 0.0 && (sample.rate >= self.max_rate() || !sample.app_limited) {
            self.max_rate[0] = self.max_rate[0].max(sample.rate);
        }
        let loss_round = prior >= self.loss_round_end;
        if loss_round {
            self.loss_round_end = self.delivery.delivered;
        }
        loss_round
    }

    fn start_round(&mut self) {
        self.round_end = self.delivery.delivered;
    }

    /// BBRAdaptLowerBoundsFromCongestion: not while a probe searches for the bounds.
    fn adapt_low_bounds(&mut self, ack: &Ack) {
        if !self.loss_in_round || matches!(self.phase, Phase::Startup | Phase::Refill | Phase::Up) {
            return;
        }
        if self.rate_low == f64::INFINITY {
            self.rate_low = self.max_rate();
        }
        if self.flight_low == u32::MAX {
            self.flight_low = ack.window;
        }
        // The pacing margin and the tolerated loss must not lower the bounds again in each round.
        let rate = self.rate_latest / MARGIN;
        self.rate_low = rate.max(BETA * self.rate_low);
        let lower = (BETA * f64::from(self.flight_low)) as u32;
        self.flight_low = (self.flight_latest + ack.mss).max(lower);
    }

    fn forget_low_bounds(&mut self) {
        self.rate_low = f64::INFINITY;
        self.flight_low = u32::MAX;
    }

    /// BBRUpdateACKAggregation.
    fn note_bunching(&mut self, ack: &Ack) {
        if self.round_start {
            self.extra_rounds += 1;
            if self.extra_rounds >= EXTRA_ROUNDS {
                self.extra_rounds = 0;
                self.extra = [0, self.extra[0]];
            }
        }
        let epoch_us = f64::from(ack.now_us.wrapping_sub(self.epoch_at));
        let mut expected = self.bounded_rate() * epoch_us / 1e6;
        if self.epoch_bytes as f64 <= expected {
            self.epoch_at = ack.now_us;
            self.epoch_bytes = 0;
            expected = 0.0;
        }
        self.epoch_bytes += u64::from(ack.delivered);
        let extra = (self.epoch_bytes as f64 - expected).min(f64::from(ack.window)) as u32;
        // In startup the growing rate itself looks like ACK aggregation.
        if self.pipe.is_reached() {
            self.extra[0] = self.extra[0].max(extra);
        }
    }

    /// BBRCheckStartupDone, with BBRCheckStartupHighLoss.
    fn check_startup(&mut self, sample: &Sample, ack: &Ack) {
        if self.phase != Phase::Startup {
            return;
        }
        if self.round_start {
            let much = self.losses >= STARTUP_LOSSES && is_too_high(sample, ack.mss);
            if ack.recovering && self.recovery_rounds > 0 && much {
                self.pipe.mark_reached();
                let product = self.product(self.max_rate(), 1.0) as u32;
                self.flight_high = product.max(self.flight_latest);
            }
            if ack.recovering {
                self.recovery_rounds += 1;
            }
            self.losses = 0;
        }
        if self.pipe.is_reached() {
            self.phase = Phase::Drain;
        }
    }

    /// BBRSetPacingRate.
    fn set_rate(&mut self) {
        if self.is_new() {
            return;
        }
        let gain = match self.phase {
            Phase::Startup => STARTUP_GAIN,
            Phase::Drain => DRAIN_GAIN,
            Phase::Down => DOWN_GAIN,
            Phase::Up => UP_GAIN,
            Phase::Cruise | Phase::Refill | Phase::ProbeRtt => 1.0,
        };
        let rate = gain * self.bounded_rate() * MARGIN;
        if self.pipe.is_reached() || rate > self.rate {
            self.rate = rate;
        }
    }

    /// BBRSetCwnd.
    fn window(&mut self, mut window: u32, ack: &Ack) -> u32 {
        let gain = if self.phase == Phase::Up {
            WINDOW_UP_GAIN
        } else {
            WINDOW_GAIN
        };
        let extra = self.extra[0].max(self.extra[1]);
        let most = self.inflight(gain, ack.mss).saturating_add(extra);
        let grown = window.saturating_add(ack.delivered);
        if self.pipe.is_reached() {
            window = grown.min(most);
        } else if window < most || self.delivery.delivered < u64::from(initial_window(ack.mss)) {
            // The first samples cover only part of the first window.
            window = grown;
        }
        if let Some(until) = self.conserves_until {
            if self.round_start && self.round_end > until {
                self.conserves_until = None;
            } else {
                window = window.min(ack.in_flight + ack.delivered.max(ack.mss));
            }
        }
        window = window.max(SEGMENTS_MIN * ack.mss);
        // BBRBoundCwndForModel and BBRBoundCwndForProbeRTT.
        let high = match self.phase {
            Phase::Down | Phase::Refill | Phase::Up => self.flight_high,
            Phase::Cruise | Phase::ProbeRtt => self.with_headroom(ack.mss),
            Phase::Startup | Phase::Drain => u32::MAX,
        };
        let bound = high.min(self.flight_low).max(SEGMENTS_MIN * ack.mss);
        window = window.min(bound);
        if self.phase == Phase::ProbeRtt {
            window = window.min(self.probe_rtt_window(ack.mss));
        }
        window
    }
}

/// BBRIsInflightTooHigh: more of a flight was lost than is tolerated.
fn is_too_high(sample: &Sample, mss: u32) -> bool {
    let forgiven = (f64::from(sample.in_flight) * LOSS_MAX).max(f64::from(mss));
    sample.prior_delivered.is_some() && sample.lost as f64 > forgiven
}
