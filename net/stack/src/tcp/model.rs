//! Sessions whose congestion control is a model of the path: BBR's side of a session.
//!
//! The model is updated for each transmission, each delivery and each loss, and sets window and
//! rate itself: slow start, rate reduction and restarts after a pause as in CUBIC and Reno do not
//! apply. It is allocated with the first data sent, so that a SYN costs no memory. Must stay true:
//! other sessions pay for one bit of the path, which is in the cache already.

use super::Session;
use crate::buffer::slab::NONE;
use crate::congestion::bbr::{Ack, Bbr};
use crate::congestion::{Algorithm, Congestion};
use crate::state::hot::{Flags, Tail};

impl Session<'_> {
    /// Selects the congestion control, which restarts.
    pub(crate) fn choose_congestion(&mut self, algorithm: Algorithm) {
        self.cold.congestion = Congestion::new(algorithm);
        self.cold.bbr = None;
        if algorithm == Algorithm::Bbr {
            self.path.tail.set(Tail::MODELLED);
        } else {
            self.path.tail.clear(Tail::MODELLED);
        }
    }

    /// True if a model determines window and rate.
    #[inline]
    pub(crate) fn is_modelled(&self) -> bool {
        self.path.tail.has(Tail::MODELLED)
    }

    /// `len` bytes were sent or retransmitted.
    #[cold]
    pub(crate) fn model_sent(&mut self, len: usize) {
        let (window, srtt_us, now_us) = (self.hot.cwnd, self.hot.srtt_us, self.common.now_us);
        let before = self.pipe().saturating_sub(len as u32);
        let seed = self.cold.iss;
        let new = || Box::new(Bbr::new(window, srtt_us, now_us, seed));
        let bbr = self.cold.bbr.get_or_insert_with(new);
        bbr.first_rate(window, srtt_us);
        bbr.sent(now_us, before, len as u32, srtt_us);
    }

    /// Nothing is left to send within the peer's window.
    #[cold]
    pub(crate) fn model_limited(&mut self) {
        let in_flight = self.pipe();
        let lost = self.lost_bytes() > 0;
        if in_flight < self.hot.cwnd
            && !lost
            && let Some(bbr) = &mut self.cold.bbr
        {
            bbr.limited(in_flight);
        }
    }

    /// Bytes known to be lost and not retransmitted.
    pub(crate) fn lost_bytes(&self) -> u32 {
        match self.hot.scoreboard {
            NONE => 0,
            board => self.common.scoreboards.get(board).lost_bytes,
        }
    }

    /// Loss detection has run; `before` is the earlier [`Session::lost_bytes`].
    #[inline]
    pub(crate) fn model_lost(&mut self, before: u32) {
        if self.is_modelled() {
            let bytes = self.lost_bytes().saturating_sub(before);
            if let Some(bbr) = &mut self.cold.bbr {
                bbr.lost(bytes);
            }
        }
    }

    /// Data was delivered.
    #[cold]
    pub(crate) fn model_acked(&mut self, bytes: u32, sent_us: Option<u32>, rtt_us: Option<u32>) {
        let ack = self.model_ack(bytes, sent_us, rtt_us);
        // Not beyond the amount that could ever be in flight.
        let most = (2 * self.path.send_bytes).max(self.hot.cwnd);
        if let Some(bbr) = &mut self.cold.bbr {
            self.hot.cwnd = bbr.acked(&ack).min(most);
        }
    }

    /// The peer echoed a mark (RFC 3168 section 6.1.2); `flight` bytes were in flight.
    #[cold]
    pub(crate) fn model_marked(&mut self, flight: u32) {
        let ack = self.model_ack(0, None, None);
        if let Some(bbr) = &mut self.cold.bbr {
            bbr.marked(flight, &ack);
        }
    }

    fn model_ack(&self, delivered: u32, sent_us: Option<u32>, rtt_us: Option<u32>) -> Ack {
        Ack {
            now_us: self.common.now_us,
            delivered,
            sent_us,
            rtt_us,
            in_flight: self.pipe(),
            window: self.hot.cwnd,
            mss: u32::from(self.hot.mss),
            repairing: self.hot.has(Flags::RECOVERY),
        }
    }

    /// Loss recovery begins, by a timeout or without one.
    #[cold]
    pub(crate) fn model_repair_begins(&mut self, timeout: bool) {
        let in_flight = self.pipe();
        let mss = u32::from(self.hot.mss);
        if let Some(bbr) = &mut self.cold.bbr {
            let window = bbr.repair_begins(self.hot.cwnd, in_flight, mss, timeout);
            self.hot.cwnd = window;
        }
    }

    /// Loss recovery has ended.
    #[cold]
    pub(crate) fn model_repair_ends(&mut self) {
        if let Some(bbr) = &mut self.cold.bbr {
            self.hot.cwnd = bbr.repair_ends(self.hot.cwnd);
        }
    }
}
