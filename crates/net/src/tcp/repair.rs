//! Repair of losses: entering and leaving recovery, timeouts and probes.
//!
//! Source: RFC 6675 section 5 (SACK), RFC 6582 (NewReno), RFC 8985 sections 6.3 and 7, RFC 6298
//! section 5.

use super::Session;
use super::board::{Delivered, Fate};
use super::congestion::Control;
use super::sequence::before;
use crate::buffer::slab::NONE;
use crate::state::hot::{Timer, flag};

impl Session<'_> {
    /// After an acknowledgment: what is lost now, and is the repair over?
    pub(crate) fn repair(&mut self, ack: u32, newly: u32, delivered: &Delivered) {
        if self.hot.has(flag::RECOVERY) && !before(ack, self.cold.recover) {
            self.leave_recovery();
        }
        if self.hot.has(flag::SACK) {
            self.detect(delivered, newly > 0);
        } else if self.hot.has(flag::RECOVERY) && newly > 0 && self.hot.board != NONE {
            // RFC 6582 section 3.2 step 3: a partial acknowledgment tells of the next loss.
            let mss = u32::from(self.hot.mss);
            let board = self.board();
            if let Some(first) = board.records.front().copied()
                && first.fate == Fate::Flying
            {
                board.cut(first.range.start.wrapping_add(mss));
                board.lose(0);
                self.hot.set(flag::REPAIR_OWED);
            }
        }
    }

    /// RFC 8985 section 6.2, step 5, and what follows from it; also when the reordering timer is due.
    pub(crate) fn detect(&mut self, delivered: &Delivered, advanced: bool) {
        let (lost, wait_us) = self.rack_detect();
        if lost {
            self.enter_recovery(delivered);
        }
        self.prr_delivered(delivered.bytes, advanced, lost);
        self.wait_for_reordering(wait_us);
    }

    /// RFC 8985 section 6.2 step 5: looks again when what may only be late has had its time.
    pub(crate) fn wait_for_reordering(&mut self, wait_us: Option<u32>) {
        if let Some(us) = wait_us {
            self.hot.timer = Timer::REORDERING;
            self.hot.timer_at = self.common.tick_in_us(us);
            self.arm_wheel();
        } else if self.hot.timer == Timer::REORDERING {
            self.hot.timer = Timer::NONE;
            self.hot.timer_at = 0;
        }
    }

    /// RFC 6675 section 5 step 4, once for each window of data.
    pub(crate) fn enter_recovery(&mut self, delivered: &Delivered) {
        self.make_ready();
        if self.hot.has(flag::RECOVERY) {
            return;
        }
        self.undo_remember();
        self.hot.set(flag::RECOVERY | flag::REPAIR_OWED);
        self.cold.after_timeout = false;
        self.cold.recover = self.hot.snd_nxt;
        self.shrink();
        self.prr_begin(delivered);
    }

    /// What the window was used for: RFC 9438 section 4.6. A window that held data back was used in
    /// full, though an acknowledgment has just taken some off; what limited transmit added does not
    /// count (RFC 5681 section 3.2 step 2).
    fn used(&self) -> u32 {
        if self.hot.has(flag::CWND_LIMITED) {
            self.hot.cwnd
        } else {
            self.hot.in_flight().min(self.hot.cwnd)
        }
    }

    /// The window's answer to one loss.
    fn shrink(&mut self) {
        let used = self.used();
        let mss = u32::from(self.hot.mss);
        let now_us = self.common.now_us;
        self.hot.cwnd = self
            .cold
            .congestion
            .on_loss(self.hot.cwnd, used, mss, now_us);
        self.common.counters.recoveries += 1;
    }

    /// RFC 8985 section 7.4.2: a loss that a probe repaired counts for the window all the same.
    pub(crate) fn shrink_once(&mut self) {
        if !self.hot.has(flag::RECOVERY) {
            self.undo_forget();
            self.shrink();
        }
    }

    pub(crate) fn leave_recovery(&mut self) {
        self.prr_end();
        self.hot.clear(flag::RECOVERY | flag::REPAIR_OWED);
        self.cold.after_timeout = false;
        self.hot.duplicates = 0;
        self.rack_recovered();
    }

    /// RFC 6298 section 5.4 to 5.6, RFC 8985 section 6.3: all that is not known to have arrived is
    /// lost, and slow start begins.
    pub(crate) fn timed_out(&mut self) {
        self.common.counters.timeouts += 1;
        let mss = u32::from(self.hot.mss);
        // RFC 5681 section 3.1: not lowered again for the same segment; nor, section 4.3, for the same
        // window of data.
        if self.path.retries == 0 && !self.hot.has(flag::RECOVERY) {
            self.undo_remember();
            let used = self.used();
            self.cold
                .congestion
                .on_timeout(self.hot.cwnd, used, mss, self.common.now_us);
        }
        let board = self.board();
        board.forget_if_reneged();
        for index in 0..board.records.len() {
            board.lose(index);
        }
        self.hot.cwnd = mss;
        self.hot.duplicates = 0;
        self.hot.set(flag::RECOVERY | flag::CWND_LIMITED);
        self.cold.after_timeout = true;
        self.cold.recover = self.hot.snd_nxt;
        self.cold.rack.probe = None;
        self.path.retries = self.path.retries.saturating_add(1);
        self.hot.timer = Timer::NONE;
        self.hot.timer_at = 0;
        self.make_ready();
    }

    /// The retransmission timers after an acknowledgment: RFC 6298 sections 5.2 and 5.3.
    pub(crate) fn arm_after_acknowledgment(&mut self, progress: bool) {
        if self.hot.in_flight() == 0 {
            self.hot.timer = Timer::NONE;
            self.hot.timer_at = 0;
        } else if self.hot.timer != Timer::REORDERING && (progress || self.hot.timer == Timer::NONE)
        {
            self.arm_retransmission();
        }
    }

    /// Starts the timer for what is in flight: a probe's where one makes sense, else the timeout.
    #[inline]
    pub(crate) fn arm_retransmission(&mut self) {
        let timeout_us = self.timeout_us();
        let (timer, us) = match self.probe_after_us() {
            // RFC 8985 section 7.2: no later than the timeout.
            Some(us) if us < timeout_us => (Timer::PROBE, us.max(PROBE_MIN_US)),
            _ => (Timer::RETRANSMISSION, timeout_us),
        };
        self.hot.timer = timer;
        self.hot.timer_at = self.common.tick_in_us(us);
        self.arm_wheel();
    }
}

/// The least wait for a tail-loss probe: as Linux, two of its ticks of a millisecond.
const PROBE_MIN_US: u32 = 2_000;
