//! Congestion control: the amount that may be in flight. One trait, implemented by CUBIC and Reno;
//! and BBR, whose model of the path a session updates separately ([`bbr`]).
//!
//! The control block holds the window; an algorithm holds the threshold and its own state, and is
//! called when data was acknowledged or lost, or a mark was echoed. Source: RFC 9293 section 3.8.2,
//! RFC 5681, RFC 9438, RFC 8511.

pub(crate) mod bbr;
mod cubic;
mod hystart;
mod reno;

use crate::wire::sequence::Sequence;
pub(crate) use cubic::Cubic;
use hystart::{Growth, HyStart};
pub(crate) use reno::Reno;

/// The algorithm of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 5681.
    Reno,
    /// BBR, version 3: draft-ietf-ccwg-bbr ("BBR Congestion Control").
    Bbr,
}

/// The rule that ends the first slow start before a loss does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum SlowStart {
    /// HyStart++ (RFC 9406).
    #[default]
    HyStartPlusPlus,
    /// HyStart (Ha and Rhee, 2011), which Linux has in CUBIC alone: Reno ends by a loss.
    HyStart,
}

/// Newly acknowledged data, as an algorithm's input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acked {
    /// Newly acknowledged bytes.
    pub(crate) bytes: u32,
    pub(crate) mss: u32,
    pub(crate) srtt_us: u32,
    pub(crate) now_us: u32,
    /// Round-trip sample of the acknowledgment; none if it may belong to either transmission.
    pub(crate) rtt_us: Option<u32>,
    /// The acknowledgment number, and the next number to be sent.
    pub(crate) ack: Sequence,
    pub(crate) next: Sequence,
    /// The pacer spreads the window over the round trip.
    pub(crate) paced: bool,
    pub(crate) slow_start: SlowStart,
}

/// A congestion control algorithm. Windows are in bytes.
pub(crate) trait Control {
    /// Slow start ends here.
    fn threshold(&self) -> u32;

    /// The window after data was acknowledged while the window was the limit.
    fn on_acked(&mut self, window: u32, acked: &Acked) -> u32;

    /// The new threshold after a loss with `flight` bytes in flight.
    fn on_loss(&mut self, window: u32, flight: u32, mss: u32, now_us: u32) -> u32;

    /// The new threshold after the peer echoed a mark (RFC 3168 section 6.1.2), with the
    /// algorithm's factor for congestion avoidance (RFC 8511 section 3.1).
    fn on_echo(&mut self, window: u32, flight: u32, mss: u32, now_us: u32) -> u32;

    /// The new threshold after a loss in the window of data for which [`Control::on_echo`] has
    /// reduced it: the same as after the loss alone.
    fn on_loss_after_echo(&mut self, mss: u32) -> u32;

    /// The same as [`Control::on_loss`] after a retransmission timeout.
    fn on_timeout(&mut self, window: u32, flight: u32, mss: u32, now_us: u32) -> u32 {
        self.on_loss(window, flight, mss, now_us)
    }

    /// Slow start ends at this window.
    fn leave_slow_start(&mut self, window: u32);

    /// Sending resumes after a pause.
    fn on_restart(&mut self, now_us: u32);
}

/// Congestion control of one session.
#[derive(Debug, Clone)]
pub(crate) struct Congestion {
    chosen: Chosen,
    hystart: HyStart,
    /// The last reduction was the smaller one of RFC 8511.
    lenient: bool,
}

#[derive(Debug, Clone)]
enum Chosen {
    Cubic(Cubic),
    Reno(Reno),
    /// The model determines the window.
    Bbr(Modelled),
}

/// BBR's implementation of the trait: nothing here changes a window, and slow start does not end.
#[derive(Debug, Clone, Copy)]
struct Modelled;

impl Control for Modelled {
    fn threshold(&self) -> u32 {
        u32::MAX
    }

    fn on_acked(&mut self, window: u32, _acked: &Acked) -> u32 {
        window
    }

    fn on_loss(&mut self, window: u32, _flight: u32, _mss: u32, _now_us: u32) -> u32 {
        window
    }

    fn on_echo(&mut self, window: u32, _flight: u32, _mss: u32, _now_us: u32) -> u32 {
        window
    }

    fn on_loss_after_echo(&mut self, _mss: u32) -> u32 {
        u32::MAX
    }

    fn leave_slow_start(&mut self, _window: u32) {}

    fn on_restart(&mut self, _now_us: u32) {}
}

impl Default for Congestion {
    fn default() -> Self {
        Self::new(Algorithm::default())
    }
}

impl Congestion {
    /// New congestion control with this algorithm.
    pub(crate) fn new(algorithm: Algorithm) -> Self {
        let chosen = match algorithm {
            Algorithm::Cubic => Chosen::Cubic(Cubic::default()),
            Algorithm::Reno => Chosen::Reno(Reno::default()),
            Algorithm::Bbr => Chosen::Bbr(Modelled),
        };
        Self {
            chosen,
            hystart: HyStart::default(),
            lenient: false,
        }
    }

    /// The algorithm.
    pub(crate) fn algorithm(&self) -> Algorithm {
        match self.chosen {
            Chosen::Cubic(_) => Algorithm::Cubic,
            Chosen::Reno(_) => Algorithm::Reno,
            Chosen::Bbr(_) => Algorithm::Bbr,
        }
    }

    fn control(&mut self) -> &mut dyn Control {
        match &mut self.chosen {
            Chosen::Cubic(cubic) => cubic,
            Chosen::Reno(reno) => reno,
            Chosen::Bbr(modelled) => modelled,
        }
    }
}

impl Control for Congestion {
    fn threshold(&self) -> u32 {
        match &self.chosen {
            Chosen::Cubic(cubic) => cubic.threshold(),
            Chosen::Reno(reno) => reno.threshold(),
            Chosen::Bbr(modelled) => modelled.threshold(),
        }
    }

    fn on_acked(&mut self, window: u32, acked: &Acked) -> u32 {
        if self.threshold() != u32::MAX {
            return self.control().on_acked(window, acked);
        }
        // The first slow start: RFC 9406 section 4.3.
        let growth = match (acked.slow_start, &self.chosen) {
            (SlowStart::HyStartPlusPlus, _) => self.hystart.on_acked(acked),
            (SlowStart::HyStart, Chosen::Cubic(_)) => self.hystart.on_acked_classic(window, acked),
            // Linux's `tcp_cubic` has it, and no other algorithm.
            (SlowStart::HyStart, _) => Growth::Bytes(acked.bytes),
        };
        match growth {
            Growth::Bytes(bytes) => {
                let acked = Acked { bytes, ..*acked };
                self.control().on_acked(window, &acked)
            }
            Growth::Leave => {
                self.control().leave_slow_start(window);
                window
            }
        }
    }

    fn on_loss(&mut self, window: u32, flight: u32, mss: u32, now_us: u32) -> u32 {
        self.lenient = false;
        self.control().on_loss(window, flight, mss, now_us)
    }

    fn on_echo(&mut self, window: u32, flight: u32, mss: u32, now_us: u32) -> u32 {
        // RFC 8511 covers congestion avoidance. Slow start has overshot for a round trip when the
        // echo arrives, by up to a factor of two.
        self.lenient = window >= self.threshold();
        if self.lenient {
            self.control().on_echo(window, flight, mss, now_us)
        } else {
            self.control().on_loss(window, flight, mss, now_us)
        }
    }

    fn on_loss_after_echo(&mut self, mss: u32) -> u32 {
        if std::mem::take(&mut self.lenient) {
            self.control().on_loss_after_echo(mss)
        } else {
            self.threshold()
        }
    }

    fn on_timeout(&mut self, window: u32, flight: u32, mss: u32, now_us: u32) -> u32 {
        self.lenient = false;
        self.control().on_timeout(window, flight, mss, now_us)
    }

    fn leave_slow_start(&mut self, window: u32) {
        self.control().leave_slow_start(window);
    }

    fn on_restart(&mut self, now_us: u32) {
        self.control().on_restart(now_us);
    }
}

/// RFC 6928 section 2: the initial window.
pub(crate) fn initial_window(mss: u32) -> u32 {
    (10 * mss).min((2 * mss).max(14_600))
}

/// A share of a window, in bytes, rounded down.
fn scaled(window: u32, share: f64) -> u32 {
    (f64::from(window) * share) as u32
}

/// Slow start: RFC 5681 section 3.1, equation 2, by bytes (RFC 3465 with L unlimited, as RFC 9406
/// section 4 allows if the NIC cuts bursts). Returns the window and the bytes left over for
/// congestion avoidance.
fn slow_start(window: u32, threshold: u32, bytes: u32) -> (u32, u32) {
    let grown = window.saturating_add(bytes).min(threshold.max(window));
    (grown, bytes - (grown - window))
}
