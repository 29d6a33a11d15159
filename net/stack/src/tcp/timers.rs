//! Starting and stopping the timers of a session, and their entry in the wheel.
//!
//! Source: RFC 6298 section 5, RFC 8985 section 7.2, RFC 9293 sections 3.8.4 (keepalive), 3.8.6.1
//! (zero window) and 3.6.1 (TIME-WAIT).

use super::Session;
use crate::error::SessionError;
use crate::state::flags::Flags;
use crate::state::hot::{State, Timer};
use crate::timer::sooner;

/// Minimum delay of a tail-loss probe: as in Linux, two of its ticks of a millisecond.
const PROBE_MIN_US: u32 = 2_000;

impl Session<'_> {
    /// Enters the earliest deadline into the timer wheel.
    #[inline]
    pub(crate) fn arm_wheel(&mut self) {
        let hot = &mut *self.hot;
        let mut next = sooner(sooner(hot.timer_at(), hot.ack_at), hot.slow_at);
        if hot.has(Flags::PACED) {
            next = sooner(next, self.cold.pacer.wake);
        }
        // Only an earlier deadline moves the entry: a later one is found when the entry expires, so
        // that acknowledgments do not touch the wheel.
        if next != 0 && (hot.armed == 0 || next != hot.armed && sooner(next, hot.armed) == next) {
            hot.armed = next;
            self.common.wheel.insert(self.number, next);
        }
    }

    /// Starts a retransmission timer, in place of the one that runs.
    #[inline]
    pub(crate) fn start_timer(&mut self, timer: Timer, us: u32) {
        self.hot.start_timer(timer, self.common.tick_in_us(us));
        self.arm_wheel();
    }

    /// RFC 6298 sections 2 and 5.5: the timeout, backed off.
    #[inline]
    pub(crate) fn timeout_us(&self) -> u32 {
        self.hot.rtt.timeout_us(self.path.retries)
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
        self.start_timer(timer, us);
    }

    /// The retransmission timers after an acknowledgment: RFC 6298 sections 5.2 and 5.3.
    pub(crate) fn arm_after_acknowledgment(&mut self, progress: bool) {
        if self.hot.send.in_flight() == 0 {
            self.hot.stop_timer();
        // The reordering timer is earlier than the timeout, which it starts when it expires.
        } else if self.hot.timer() != Timer::Reordering
            && (progress || self.hot.timer() == Timer::None)
        {
            self.arm_retransmission();
        }
    }

    /// Starts the persist timer, which probes a zero window (RFC 9293 section 3.8.6.1).
    pub(crate) fn start_persist(&mut self) {
        let timeout_us = self.within_user_timeout_us(self.timeout_us());
        self.start_timer(Timer::Persist, timeout_us);
    }

    /// A timeout, or the end of the user timeout if that is earlier (RFC 9293 section 3.8.3).
    pub(crate) fn within_user_timeout_us(&self, timeout_us: u32) -> u32 {
        let (una, now_ms) = (self.hot.send.una, self.common.now_ms);
        self.cold.user_timeout.bounded_us(timeout_us, una, now_ms)
    }

    /// The next hop does not answer. RFC 9293 section 3.9.2.2: a hard error for a session that is
    /// being opened; an established one keeps trying, by its timers.
    pub(crate) fn hop_failed(&mut self) {
        match self.hot.state() {
            State::Closed | State::TimeWait => {}
            State::SynSent => self.finish(Some(SessionError::Unreachable)),
            _ if self.hot.timer() != Timer::None => {}
            _ if self.hot.send.in_flight() > 0 => self.arm_retransmission(),
            _ => self.start_persist(),
        }
    }

    /// RFC 9293 section 3.6.1: starts TIME-WAIT for 2 MSL.
    pub(crate) fn enter_time_wait(&mut self) {
        if self.hot.state() != State::TimeWait {
            self.hot.set_state(State::TimeWait);
            self.common.time_wait.push_back(self.number);
        }
        self.hot.stop_timer();
        // Both FINs are acknowledged: nothing is in flight.
        self.drop_scoreboard();
        self.cold.model.forget();
        self.hot.slow_at = self.common.tick_in_ms(self.common.config.time_wait_ms);
        self.arm_wheel();
        self.notify();
    }

    /// Bounds FIN-WAIT-2 of an orphaned session, as in Linux (`tcp_fin_timeout`).
    pub(crate) fn watch_fin_wait_2(&mut self) {
        if self.hot.state() == State::FinWait2 && self.hot.has(Flags::DETACHED) {
            self.hot.slow_at = self.common.tick_in_ms(self.common.config.time_wait_ms);
            self.arm_wheel();
        }
    }

    /// Starts the keepalive timer, or stops it.
    pub(crate) fn watch_keepalive(&mut self) {
        self.hot.slow_at = 0;
        if self.hot.has(Flags::KEEPALIVE) && self.hot.state().is_synchronized() {
            self.hot.slow_at = self.common.tick_in_ms(self.cold.keepalive.idle_ms());
            self.arm_wheel();
        }
    }
}

/// The NIC has no room. The session stays ready and is tried in each round; but if no timer
/// runs, nothing would ever end it on a link that takes nothing any more (RFC 9293 section
/// 3.8.3).
pub(crate) fn note_refused(session: &mut Session<'_>) {
    if session.hot.state() == State::Closed || session.hot.timer() != Timer::None {
        return;
    }
    let waits = session.hot.tx.len() > 0 || session.hot.fin_waits();
    if session.hot.has(Flags::SEND_SYN) {
        // The SYN counts as in flight before it was sent.
        session.start_timer(Timer::Retransmission, session.timeout_us());
    } else if waits && session.hot.send.in_flight() == 0 {
        session.hot.set(Flags::REFUSED);
        session.start_persist();
    }
}
