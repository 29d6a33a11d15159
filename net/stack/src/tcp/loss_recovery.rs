//! Loss recovery: detecting losses, entering and leaving a recovery, undoing a spurious one.
//!
//! Why here: acknowledgments ([`super::input`]) and timers ([`super::expiry`]) both detect losses;
//! the rules of each algorithm are in its own part ([`super::rack`], [`super::prr`],
//! [`super::undo`]). Source: RFC 6675 section 5 (SACK), RFC 6582 (NewReno), RFC 8985 sections 6.3
//! and 7, RFC 9937.

use super::Session;
use super::prr::{Progress, Prr};
use super::rack::DUPLICATES_MAX;
use crate::buffer::NONE;
use crate::congestion::Control;
use crate::congestion::bbr::Cause;
use crate::ranges::scoreboard::Delivered;
use crate::state::flags::Flags;
use crate::state::hot::Timer;

impl Session<'_> {
    /// RFC 8985 section 6.2, step 5, and its consequences; also when the reordering timer expires.
    pub(crate) fn detect_losses(&mut self, delivered: &Delivered, advanced: bool) {
        let before = self.lost_bytes();
        let (lost, wait_us) = self.mark_overdue();
        self.cold
            .model
            .lost(self.lost_bytes().saturating_sub(before));
        // Recovery begins before its allowance is computed: PRR starts from the window at entry.
        if lost {
            self.enter_recovery(delivered);
        }
        self.reduce_proportionally(delivered.bytes, advanced, lost);
        // RFC 8985 section 6.2 step 5: checks again when data that may only be late has timed out.
        if let Some(us) = wait_us {
            self.start_timer(Timer::Reordering, us);
        } else if self.hot.timer() == Timer::Reordering {
            self.hot.stop_timer();
        }
    }

    /// Marks losses, and returns true if there are new ones, and the time in microseconds after
    /// which there may be more.
    fn mark_overdue(&mut self) -> (bool, Option<u32>) {
        let (board, Some(newest)) = (self.hot.scoreboard, self.cold.rack.newest()) else {
            return (false, None);
        };
        if board == NONE {
            return (false, None);
        }
        // RFC 8985 section 6.2.4: three segments behind it, or a recovery that has begun, leave no
        // doubt about a loss on a path that does not reorder.
        let three = u32::from(DUPLICATES_MAX) * u32::from(self.hot.mss);
        let sure = self.hot.has(Flags::RECOVERY) || self.sacked_bytes() >= three;
        let patience_us = self.cold.rack.patience_us(sure, self.hot.rtt.smoothed_us);
        let now_us = self.common.now_us;
        let scoreboard = self.common.scoreboards.get_mut(board);
        scoreboard.overdue(newest, now_us, patience_us)
    }

    /// True during a recovery that proportional rate reduction governs: with SACK, and not after a
    /// timeout. Without SACK, RFC 6582's inflation of the window does the same.
    fn is_proportional(&self) -> bool {
        self.hot.has(Flags::RECOVERY)
            && self.hot.has(Flags::SACK)
            && !self.cold.after_timeout
            && !self.path.is_modelled()
    }

    /// Sets the window of a recovery to the bytes that may be sent for the delivered ones.
    fn reduce_proportionally(&mut self, delivered: u32, advanced: bool, lost: bool) {
        if !self.is_proportional() || delivered == 0 && !lost {
            return;
        }
        let progress = Progress {
            pipe: self.pipe(),
            threshold: self.cold.congestion.threshold(),
            mss: u32::from(self.hot.mss),
            advanced,
            lost,
        };
        let bytes = self.cold.prr.on_delivered(delivered, progress);
        self.hot.send.cwnd = progress.pipe.saturating_add(bytes).max(progress.mss);
    }

    /// RFC 6675 section 5 step 4, once for each window of data.
    pub(crate) fn enter_recovery(&mut self, delivered: &Delivered) {
        self.make_ready();
        if self.hot.has(Flags::RECOVERY) {
            // Losses of the same window are one congestion signal (RFC 5681 section 3.1).
            return;
        }
        let send = self.hot.send;
        let congestion = &self.cold.congestion;
        self.cold.undo.remember(send.una, send.cwnd, congestion);
        self.hot.set(Flags::RECOVERY | Flags::RETRANSMIT_OWED);
        self.cold.after_timeout = false;
        self.cold.recover = send.nxt;
        self.reduce_after_loss();
        let flight = send.in_flight().saturating_sub(self.sacked_bytes());
        self.cold.prr = Prr::begin(flight + delivered.bytes);
        self.tell_model_of_recovery(Cause::Loss);
    }

    /// Reduces the congestion window for a loss event.
    pub(crate) fn reduce_after_loss(&mut self) {
        let mss = u32::from(self.hot.mss);
        let (una, window) = (self.hot.send.una, self.hot.send.cwnd);
        self.hot.send.cwnd = if self.ecn().is_reduced_already(una) {
            // RFC 3168 section 6.1.2: losses and marks of one window of data reduce the window
            // once. A loss shows that the queue was full: the reduction becomes that of a loss,
            // without RFC 8511's smaller factor. The earlier window was reduced because of the
            // echo, which was not spurious.
            self.cold.undo.forget();
            window.min(self.cold.congestion.on_loss_after_echo(mss))
        } else {
            let used = self.hot.send.used(self.hot.has(Flags::CWND_LIMITED));
            let now_us = self.common.now_us;
            self.cold.congestion.on_loss(window, used, mss, now_us)
        };
        self.note_reduction();
        self.common.counters.recoveries += 1;
    }

    /// RFC 3168 section 6.1.2: the window was reduced, for whatever reason.
    pub(crate) fn note_reduction(&mut self) {
        let send = self.hot.send;
        self.ecn().note_reduction(send.nxt, send.in_flight());
    }

    /// Loss recovery begins: a model of the path sets the window.
    pub(crate) fn tell_model_of_recovery(&mut self, cause: Cause) {
        if !self.path.is_modelled() {
            return;
        }
        let (window, pipe, mss) = (self.hot.send.cwnd, self.pipe(), u32::from(self.hot.mss));
        let window = self.cold.model.recovery_begins(window, pipe, mss, cause);
        self.hot.send.cwnd = window.unwrap_or(self.hot.send.cwnd);
    }

    pub(crate) fn leave_recovery(&mut self) {
        // First, while the flags still show the algorithm of the recovery. RFC 9937 section 6,
        // "upon exiting".
        if self.is_proportional() {
            self.hot.send.cwnd = self.cold.congestion.threshold();
        }
        if self.path.is_modelled() {
            let window = self.cold.model.recovery_ends(self.hot.send.cwnd);
            self.hot.send.cwnd = window.unwrap_or(self.hot.send.cwnd);
        }
        self.hot.clear(Flags::RECOVERY | Flags::RETRANSMIT_OWED);
        self.cold.after_timeout = false;
        self.hot.duplicates = 0;
        self.cold.rack.recovered();
    }

    /// The recovery was spurious: the segments were only late. RFC 4015 section 3, RFC 9438 section
    /// 4.9.
    pub(crate) fn undo_recovery(&mut self) {
        let saved = self.cold.undo.restore(&mut self.cold.congestion);
        // Never below the window that the recovery itself reached.
        let window = self.hot.send.cwnd.max(saved);
        self.cold.rack.note_reordering();
        self.common.counters.undone += 1;
        self.ecn().undo_reduction();
        if self.cold.after_timeout {
            // It was set only for the slow start after the timeout.
            self.hot.clear(Flags::CWND_LIMITED);
        }
        if self.hot.has(Flags::RECOVERY) {
            // Data that was marked as lost counts as in flight, until RACK's timeout.
            let board = self.hot.scoreboard;
            if board != NONE {
                self.common.scoreboards.get_mut(board).unmark_lost();
            }
            self.leave_recovery();
        }
        // Last, because leaving the recovery sets the window to its threshold.
        self.hot.send.cwnd = window;
        self.make_ready();
    }

    /// RFC 8985 section 7.2: time until a tail-loss probe is due, in microseconds; none if it is
    /// not useful.
    pub(crate) fn probe_after_us(&self) -> Option<u32> {
        let rtt = self.hot.rtt;
        if rtt.smoothed_us == 0
            || self.hot.scoreboard == NONE
            || !self.hot.has(Flags::SACK)
            || self.path.retries > 0
        {
            return None;
        }
        if self.probes_recovery() {
            let missing = is_missing_data(self);
            let rack = &self.cold.rack;
            return rack.recovery_probe_after_us(rtt.smoothed_us, rtt.variation_us, missing);
        }
        // With one segment in flight the peer may delay its acknowledgment; the retransmission
        // timer is not later then (`scoreboard` is none).
        Some(2 * rtt.smoothed_us)
    }

    /// True if a probe sent now would retransmit the head of the missing data: a probe is
    /// outstanding, or recovery is in progress. RFC 8985 section 7.2 does not probe then, and
    /// leaves a second loss with nothing behind it to the timeout. Retransmitting the head of the
    /// missing data after two round trips without an acknowledgment, and four, recovers in a
    /// hundredth of the time on a short path.
    pub(crate) fn probes_recovery(&self) -> bool {
        self.cold.rack.probe().is_some() || is_missing_data(self)
    }
}

/// True if data is known to be missing.
fn is_missing_data(session: &Session) -> bool {
    session.hot.has(Flags::RECOVERY) || session.sacked_bytes() > 0
}
