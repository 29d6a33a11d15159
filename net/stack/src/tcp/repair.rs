//! Loss recovery: entering and leaving it, timeouts and probes.
//!
//! Source: RFC 6675 section 5 (SACK), RFC 6582 (NewReno), RFC 8985 sections 6.3 and 7, RFC 6298
//! section 5.

use super::Session;
use crate::buffer::slab::NONE;
use crate::congestion::Control;
use crate::ranges::scoreboard::{Delivered, Fate};
use crate::state::hot::{Flags, Timer};
use crate::wire::sequence::before;

impl Session<'_> {
    /// Loss detection after an acknowledgment, and the end of a recovery.
    pub(crate) fn repair(&mut self, ack: u32, newly: u32, delivered: &Delivered) {
        if self.hot.has(Flags::RECOVERY) && !before(ack, self.cold.recover) {
            self.leave_recovery();
        }
        if self.hot.has(Flags::SACK) {
            self.detect(delivered, newly > 0);
        } else if self.hot.has(Flags::RECOVERY) && newly > 0 && self.hot.scoreboard != NONE {
            // RFC 6582 section 3.2 step 3: a partial acknowledgment shows the next loss.
            let mss = u32::from(self.hot.mss);
            let scoreboard = self.scoreboard();
            if let Some(first) = scoreboard.records.front().copied()
                && first.fate == Fate::Flying
            {
                scoreboard.cut(first.range.start.wrapping_add(mss));
                scoreboard.lose(0);
                self.hot.set(Flags::REPAIR_OWED);
            }
        }
    }

    /// RFC 8985 section 6.2, step 5, and its consequences; also when the reordering timer expires.
    pub(crate) fn detect(&mut self, delivered: &Delivered, advanced: bool) {
        // Recovery begins before its allowance is computed: PRR starts from the window at entry.
        let before = self.lost_bytes();
        let (lost, wait_us) = self.rack_detect();
        self.model_lost(before);
        if lost {
            self.enter_recovery(delivered);
        }
        self.prr_delivered(delivered.bytes, advanced, lost);
        self.wait_for_reordering(wait_us);
    }

    /// RFC 8985 section 6.2 step 5: checks again when data that may only be late has timed out.
    pub(crate) fn wait_for_reordering(&mut self, wait_us: Option<u32>) {
        if let Some(us) = wait_us {
            self.hot.set_timer(Timer::Reordering);
            self.hot.timer_at = self.common.tick_in_us(us);
            self.arm_wheel();
        } else if self.hot.timer() == Timer::Reordering {
            self.hot.set_timer(Timer::None);
            self.hot.timer_at = 0;
        }
    }

    /// RFC 6675 section 5 step 4, once for each window of data.
    pub(crate) fn enter_recovery(&mut self, delivered: &Delivered) {
        self.make_ready();
        if self.hot.has(Flags::RECOVERY) {
            // Losses of the same window are one congestion signal (RFC 5681 section 3.1).
            return;
        }
        self.undo_remember();
        self.hot.set(Flags::RECOVERY | Flags::REPAIR_OWED);
        self.cold.after_timeout = false;
        self.cold.recover = self.hot.snd_nxt;
        if self.is_reduced_already() {
            self.shrink_rest();
        } else {
            self.shrink();
        }
        self.prr_begin(delivered);
        if self.is_modelled() {
            self.model_repair_begins(false);
        }
    }

    /// Part of the window that was in use, in bytes (RFC 9438 section 4.6). A window that held data
    /// back was used in full, even if an acknowledgment has just reduced the flight; limited
    /// transmit does not count (RFC 5681 section 3.2 step 2).
    fn used(&self) -> u32 {
        if self.hot.has(Flags::CWND_LIMITED) {
            self.hot.cwnd
        } else {
            self.hot.in_flight().min(self.hot.cwnd)
        }
    }

    /// Reduces the congestion window for a loss event.
    fn shrink(&mut self) {
        let used = self.used();
        let mss = u32::from(self.hot.mss);
        let now_us = self.common.now_us;
        self.hot.cwnd = self
            .cold
            .congestion
            .on_loss(self.hot.cwnd, used, mss, now_us);
        self.note_reduction();
        self.common.counters.recoveries += 1;
    }

    /// RFC 3168 section 6.1.2: losses and marks of one window of data reduce the window once. A
    /// loss shows that the queue was full: the reduction becomes that of a loss, without RFC 8511's
    /// smaller factor.
    fn shrink_rest(&mut self) {
        // The earlier window was reduced because of the echo, which was not spurious.
        self.undo_forget();
        let mss = u32::from(self.hot.mss);
        let threshold = self.cold.congestion.on_loss_after_echo(mss);
        self.hot.cwnd = self.hot.cwnd.min(threshold);
        self.note_reduction();
        self.common.counters.recoveries += 1;
    }

    /// RFC 8985 section 7.4.2: a loss that a probe repaired reduces the window nevertheless.
    pub(crate) fn shrink_once(&mut self) {
        if !self.hot.has(Flags::RECOVERY) && !self.is_reduced_already() {
            self.undo_forget();
            self.shrink();
        }
    }

    pub(crate) fn leave_recovery(&mut self) {
        // First, while the flags still show the algorithm of the recovery.
        self.prr_end();
        if self.is_modelled() {
            self.model_repair_ends();
        }
        self.hot.clear(Flags::RECOVERY | Flags::REPAIR_OWED);
        self.cold.after_timeout = false;
        self.hot.duplicates = 0;
        self.rack_recovered();
    }

    /// RFC 6298 section 5.4 to 5.6, RFC 8985 section 6.3: all data that is not known to be
    /// delivered is lost, and slow start begins.
    pub(crate) fn timed_out(&mut self) {
        self.common.counters.timeouts += 1;
        let mss = u32::from(self.hot.mss);
        // RFC 5681 section 3.1: not lowered again for the same segment, nor (section 4.3) for the
        // same window of data.
        if self.path.retries == 0 && !self.hot.has(Flags::RECOVERY) {
            if self.is_reduced_already() {
                // Reduced because of an echo, which was not spurious; slow start follows
                // nevertheless.
                self.undo_forget();
            } else {
                self.undo_remember();
                let used = self.used();
                self.cold
                    .congestion
                    .on_timeout(self.hot.cwnd, used, mss, self.common.now_us);
            }
            self.note_reduction();
        }
        let before = self.lost_bytes();
        let scoreboard = self.scoreboard();
        // A peer may renege on SACKed data (RFC 2018 section 8); only a timeout shows it.
        scoreboard.forget_if_reneged();
        for index in 0..scoreboard.records.len() {
            scoreboard.lose(index);
        }
        self.model_lost(before);
        if self.is_modelled() {
            self.model_repair_begins(true);
        }
        // The loss window (RFC 5681 section 3.1): the ACK clock has stopped, and restarts with one
        // segment.
        self.hot.cwnd = mss;
        self.hot.duplicates = 0;
        self.hot.set(Flags::RECOVERY | Flags::CWND_LIMITED);
        self.cold.after_timeout = true;
        self.cold.flight_max = self.cold.flight_max.max(self.hot.in_flight());
        self.cold.flight_end = self.hot.snd_nxt;
        self.cold.recover = self.hot.snd_nxt;
        self.cold.rack.probe = None;
        self.path.retries = self.path.retries.saturating_add(1);
        if self.path.retries > 1 {
            // Two in a row: the neighbour may be gone.
            let (number, generation) = (self.path.neighbor, self.path.neighbor_generation);
            let now_ns = self.common.now_ns;
            self.common.neighbors.suspect(number, generation, now_ns);
        }
        if self.path.retries == RETRIES_TOLD {
            self.notify();
        }
        self.hot.set_timer(Timer::None);
        self.hot.timer_at = 0;
        self.make_ready();
    }

    /// The retransmission timers after an acknowledgment: RFC 6298 sections 5.2 and 5.3.
    pub(crate) fn arm_after_acknowledgment(&mut self, progress: bool) {
        if self.hot.in_flight() == 0 {
            self.hot.set_timer(Timer::None);
            self.hot.timer_at = 0;
        // The reordering timer is earlier than the timeout, which it starts when it expires.
        } else if self.hot.timer() != Timer::Reordering
            && (progress || self.hot.timer() == Timer::None)
        {
            self.arm_retransmission();
        }
    }

    /// Starts the timer for the data in flight: a probe's if it is useful, else the timeout.
    #[inline]
    pub(crate) fn arm_retransmission(&mut self) {
        let mut timeout_us = self.timeout_us();
        if self.path.retries > 0 {
            timeout_us = self.within_user_timeout_us(timeout_us);
        }
        let (timer, us) = match self.probe_after_us() {
            // RFC 8985 section 7.2: no later than the timeout.
            Some(us) if us < timeout_us => (Timer::Probe, us.max(PROBE_MIN_US)),
            _ => (Timer::Retransmission, timeout_us),
        };
        self.hot.set_timer(timer);
        self.hot.timer_at = self.common.tick_in_us(us);
        self.arm_wheel();
    }
}

/// Consecutive timeouts after which the application is notified: R1 of RFC 9293 section 3.8.3
/// (SHLD-9, SHLD-10).
const RETRIES_TOLD: u8 = 3;
/// Minimum delay of a tail-loss probe: as in Linux, two of its ticks of a millisecond.
const PROBE_MIN_US: u32 = 2_000;
