//! Congestion control: how much may be in flight. One trait, CUBIC and Reno behind it.
//!
//! The control block holds the window; an algorithm holds the threshold and what else it needs, and is
//! asked when data was acknowledged or lost. Source: RFC 9293 section 3.8.2, RFC 5681, RFC 9438.

mod cubic;
mod reno;

pub(crate) use cubic::Cubic;
pub(crate) use reno::Reno;

/// Which algorithm a session uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// RFC 9438.
    #[default]
    Cubic,
    /// RFC 5681.
    Reno,
}

/// What an algorithm is told when data was acknowledged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Acked {
    /// Bytes, newly.
    pub(crate) bytes: u32,
    pub(crate) mss: u32,
    pub(crate) srtt_us: u32,
    pub(crate) now_us: u32,
}

/// A congestion control algorithm. Windows are in bytes.
pub(crate) trait Control {
    /// Slow start ends here.
    fn threshold(&self) -> u32;

    /// The window after data was acknowledged while the window was what limited us.
    fn on_acked(&mut self, window: u32, acked: &Acked) -> u32;

    /// The new threshold after loss was found with `flight` bytes in flight.
    fn on_loss(&mut self, window: u32, flight: u32, mss: u32, now_us: u32) -> u32;

    /// The same after a retransmission timeout.
    fn on_timeout(&mut self, window: u32, flight: u32, mss: u32, now_us: u32) -> u32 {
        self.on_loss(window, flight, mss, now_us)
    }

    /// Sending goes on after a pause.
    fn on_restart(&mut self, now_us: u32);
}

/// The algorithm of one session.
#[derive(Debug, Clone)]
pub(crate) enum Congestion {
    Cubic(Cubic),
    Reno(Reno),
}

impl Default for Congestion {
    fn default() -> Self {
        Self::new(Algorithm::default())
    }
}

impl Congestion {
    /// A new one.
    pub(crate) fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Cubic => Self::Cubic(Cubic::default()),
            Algorithm::Reno => Self::Reno(Reno::default()),
        }
    }

    /// Which it is.
    pub(crate) fn algorithm(&self) -> Algorithm {
        match self {
            Self::Cubic(_) => Algorithm::Cubic,
            Self::Reno(_) => Algorithm::Reno,
        }
    }

    fn control(&mut self) -> &mut dyn Control {
        match self {
            Self::Cubic(cubic) => cubic,
            Self::Reno(reno) => reno,
        }
    }
}

impl Control for Congestion {
    fn threshold(&self) -> u32 {
        match self {
            Self::Cubic(cubic) => cubic.threshold(),
            Self::Reno(reno) => reno.threshold(),
        }
    }

    fn on_acked(&mut self, window: u32, acked: &Acked) -> u32 {
        self.control().on_acked(window, acked)
    }

    fn on_loss(&mut self, window: u32, flight: u32, mss: u32, now_us: u32) -> u32 {
        self.control().on_loss(window, flight, mss, now_us)
    }

    fn on_timeout(&mut self, window: u32, flight: u32, mss: u32, now_us: u32) -> u32 {
        self.control().on_timeout(window, flight, mss, now_us)
    }

    fn on_restart(&mut self, now_us: u32) {
        self.control().on_restart(now_us);
    }
}

/// RFC 6928 section 2: the initial window.
pub(crate) fn initial_window(mss: u32) -> u32 {
    (10 * mss).min((2 * mss).max(14_600))
}

/// Slow start: RFC 5681 section 3.1, equation 2, by bytes (RFC 3465 with L unlimited, as RFC 9406
/// section 4 allows where bursts are the NIC's to cut). Returns the window and the bytes left over
/// for congestion avoidance.
fn slow_start(window: u32, threshold: u32, bytes: u32) -> (u32, u32) {
    let grown = window.saturating_add(bytes).min(threshold.max(window));
    (grown, bytes - (grown - window))
}
