//! Sessions whose congestion control is a model of the path: BBR's side of a session.
//!
//! The model is updated for each transmission, each delivery and each loss, and sets window and
//! rate itself: slow start, rate reduction and restarts after a pause as in CUBIC and Reno do not
//! apply. It is allocated with the first data sent, so that a SYN costs no memory. Must stay true:
//! other sessions pay for one bit of the path, which is in the cache already.

use super::Session;
use super::prr::Prr;
use crate::congestion::bbr::{Ack, Bbr, Cause};
use crate::congestion::{Algorithm, Congestion};
use crate::state::flags::{Flags, SendTail};

/// BBR's model, once data was sent with it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model(Option<Box<Bbr>>);

/// A transmission, for the model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) now_us: u32,
    /// Bytes in flight after it, and its own.
    pub(crate) in_flight: u32,
    pub(crate) bytes: u32,
    pub(crate) window: u32,
    /// The smoothed round trip; 0 before the first sample.
    pub(crate) smoothed_us: u32,
    /// Start of a new model's random numbers.
    pub(crate) seed: u32,
}

impl Model {
    /// Data was sent or retransmitted; the first creates the model.
    #[cold]
    pub(crate) fn sent(&mut self, sent: Sent) {
        let new = || {
            Box::new(Bbr::new(
                sent.window,
                sent.smoothed_us,
                sent.now_us,
                sent.seed,
            ))
        };
        let bbr = self.0.get_or_insert_with(new);
        // Until the first sample the rate follows the window and the round trip of the handshake.
        bbr.first_rate(sent.window, sent.smoothed_us);
        let before = sent.in_flight.saturating_sub(sent.bytes);
        bbr.sent(sent.now_us, before, sent.bytes, sent.smoothed_us);
    }

    /// Nothing is left to send within the peer's window, and the congestion window has room.
    #[cold]
    pub(crate) fn limited(&mut self, in_flight: u32) {
        if let Some(bbr) = &mut self.0 {
            bbr.limited(in_flight);
        }
    }

    /// Loss detection found these bytes lost.
    #[inline]
    pub(crate) fn lost(&mut self, bytes: u32) {
        if let Some(bbr) = &mut self.0 {
            bbr.lost(bytes);
        }
    }

    /// Data was delivered: the new window, if there is a model.
    #[cold]
    pub(crate) fn acked(&mut self, ack: &Ack) -> Option<u32> {
        self.0.as_mut().map(|bbr| bbr.acked(ack))
    }

    /// The peer echoed a mark (RFC 3168 section 6.1.2); `flight` bytes were in flight.
    #[cold]
    pub(crate) fn marked(&mut self, flight: u32, ack: &Ack) {
        if let Some(bbr) = &mut self.0 {
            bbr.marked(flight, ack);
        }
    }

    /// Loss recovery begins: the new window, if there is a model.
    #[cold]
    pub(crate) fn recovery_begins(
        &mut self,
        window: u32,
        in_flight: u32,
        mss: u32,
        cause: Cause,
    ) -> Option<u32> {
        let bbr = self.0.as_mut()?;
        Some(bbr.recovery_begins(window, in_flight, mss, cause))
    }

    /// Loss recovery has ended: the new window, if there is a model.
    #[cold]
    pub(crate) fn recovery_ends(&mut self, window: u32) -> Option<u32> {
        self.0.as_mut().map(|bbr| bbr.recovery_ends(window))
    }

    /// The rate to send at, in bytes a second; none before the first data.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.0.as_ref().map(|bbr| bbr.rate())
    }

    /// Frees its memory; the next data starts a new one.
    pub(crate) fn forget(&mut self) {
        self.0 = None;
    }
}

impl Session<'_> {
    /// Selects the congestion control, which restarts.
    pub(crate) fn choose_congestion(&mut self, algorithm: Algorithm) {
        self.cold.congestion = Congestion::new(algorithm);
        // Its threshold is not what a reduction because of marks approaches.
        if self.cold.prr.is_for_marks() {
            self.cold.prr = Prr::default();
        }
        // A model of the path before is no better than none: the new one measures it again.
        self.cold.model.forget();
        if algorithm == Algorithm::Bbr {
            self.path.tail.set(SendTail::MODELLED);
        } else {
            self.path.tail.clear(SendTail::MODELLED);
        }
    }

    /// An acknowledgment that delivered these bytes, for the model.
    pub(crate) fn model_ack(&self, delivered: u32) -> Ack {
        Ack {
            now_us: self.common.now_us,
            delivered,
            sent_us: None,
            rtt_us: None,
            in_flight: self.pipe(),
            window: self.hot.send.cwnd,
            mss: u32::from(self.hot.mss),
            recovering: self.hot.has(Flags::RECOVERY),
        }
    }
}
