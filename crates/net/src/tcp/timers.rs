//! What a session does when its time has come.
//!
//! Source: RFC 6298 section 5, RFC 8985 sections 6.3 and 7.3, RFC 9293 sections 3.8.3 (giving up),
//! 3.8.4 (keepalive), 3.8.6.1 (zero window) and 3.6.1 (TIME-WAIT).

use super::Session;
use super::board::Delivered;
use crate::error::SessionError;
use crate::state::hot::{State, Timer, flag};
use crate::timer::{Tick, is_due, sooner, tick_after};

/// SYNs that are sent again before a connect fails: Linux's `tcp_syn_retries`; RFC 9293 section 3.8.3
/// asks for 3 minutes at least, and 6 doublings of a second are 127 s, as Linux has it.
const SYN_RETRIES: u8 = 6;
/// SYN-ACKs that are sent again: Linux's `tcp_synack_retries`.
const SYN_ACK_RETRIES: u8 = 5;
/// Timeouts before a session is given up: Linux's `tcp_retries2` (RFC 9293 section 3.8.3: R2 is at
/// least 100 s).
const RETRIES: u8 = 15;
/// The same for a session whose owner is gone: Linux's `tcp_orphan_retries`.
const ORPHAN_RETRIES: u8 = 8;

impl Session<'_> {
    /// Has the wheel look at the session when the first of its deadlines comes.
    #[inline]
    pub(crate) fn arm_wheel(&mut self) {
        let hot = &mut *self.hot;
        let next = sooner(sooner(hot.timer_at, hot.ack_at), hot.rare_at);
        if next != 0 && (hot.armed == 0 || next != hot.armed && sooner(next, hot.armed) == next) {
            hot.armed = next;
            self.common.wheel.insert(self.number, next);
        }
    }

    /// The wheel's look: does what is due.
    pub(crate) fn on_tick(&mut self) {
        self.hot.armed = 0;
        let now = self.common.tick;
        if is_due(self.hot.ack_at, now) {
            self.hot.ack_at = 0;
            if self.hot.has(flag::ACK_LATER) {
                self.hot.clear(flag::INTERACTIVE);
                self.common.counters.delayed_acks += 1;
                self.acknowledge_now();
            }
        }
        if is_due(self.hot.timer_at, now) {
            let timer = std::mem::replace(&mut self.hot.timer, Timer::NONE);
            self.hot.timer_at = 0;
            self.on_timer(timer);
        }
        if is_due(self.hot.rare_at, now) {
            self.hot.rare_at = 0;
            self.on_rare();
        }
        self.arm_wheel();
    }

    fn on_timer(&mut self, timer: Timer) {
        let flying = self.hot.in_flight() > 0;
        let held_back = self.hot.tx.len() > 0 && !flying;
        match (timer, self.hot.state) {
            (_, State::CLOSED | State::TIME_WAIT) | (Timer::NONE, _) => {}
            (Timer::RETRANSMISSION, State::SYN_SENT | State::SYN_RECEIVED) => self.syn_timed_out(),
            (Timer::RETRANSMISSION, _) if flying && !self.gives_up(false) => self.timed_out(),
            (Timer::PROBE, _) if flying => {
                self.board();
                self.hot.set(flag::PROBE_TAIL);
                self.make_ready();
                // Should the probe not get out, the timeout is there.
                self.hot.timer = Timer::RETRANSMISSION;
                self.hot.timer_at = self.common.tick_in_us(self.timeout_us());
            }
            (Timer::REORDERING, _) => {
                self.detect(&Delivered::default(), false);
                self.arm_after_acknowledgment(true);
            }
            (Timer::PERSIST, _) if held_back && !self.gives_up(true) => {
                self.hot.set(flag::PROBE_WINDOW);
                self.make_ready();
                self.path.retries = self.path.retries.saturating_add(1);
                self.start_persist();
            }
            _ => {}
        }
    }

    /// RFC 9293 section 3.8.6.1: asks again and again whether the window is still shut.
    pub(crate) fn start_persist(&mut self) {
        self.hot.timer = Timer::PERSIST;
        self.hot.timer_at = self.common.tick_in_us(self.timeout_us());
        self.arm_wheel();
    }

    /// Whether too much was tried in vain; then the session is over.
    fn gives_up(&mut self, probing: bool) -> bool {
        let orphan = self.hot.has(flag::DETACHED);
        let limit = if orphan { ORPHAN_RETRIES } else { RETRIES };
        let user_ms = self.cold.user_timeout_ms;
        let over = if user_ms > 0 {
            self.path.retries > 0 && self.silent_ms() >= user_ms
        } else {
            // RFC 9293 section 3.8.6.1 (MUST-37): a peer that answers probes of its shut window is
            // alive, however many there were.
            let answered = probing && !orphan && self.silent_ms() < PROBES_SILENT_MS;
            self.path.retries >= limit && !answered
        };
        if over {
            self.reset(Some(SessionError::TimedOut));
        }
        over
    }

    /// The next hop does not answer. RFC 9293 section 3.9.2.2: hard for a session that is being
    /// opened; an established one goes on trying, by its timers.
    pub(crate) fn hop_failed(&mut self) {
        match self.hot.state {
            State::CLOSED | State::TIME_WAIT => {}
            State::SYN_SENT => self.finish(Some(SessionError::Unreachable)),
            _ if self.hot.timer != Timer::NONE => {}
            _ if self.hot.in_flight() > 0 => self.arm_retransmission(),
            _ => self.start_persist(),
        }
    }

    fn syn_timed_out(&mut self) {
        let passive = self.hot.state == State::SYN_RECEIVED;
        let limit = if passive {
            SYN_ACK_RETRIES
        } else {
            SYN_RETRIES
        };
        if self.path.retries >= limit {
            self.finish(Some(SessionError::TimedOut));
            return;
        }
        self.path.retries += 1;
        self.common.counters.timeouts += 1;
        self.hot.set(flag::SEND_SYN);
        self.make_ready();
    }

    fn on_rare(&mut self) {
        match self.hot.state {
            // 2 MSL are over; or nobody waits for the peer's FIN any longer.
            State::TIME_WAIT | State::FIN_WAIT_2 if self.hot.has(flag::DETACHED) => {
                self.finish(None);
            }
            State::TIME_WAIT => self.finish(None),
            State::CLOSED | State::SYN_SENT | State::SYN_RECEIVED => {}
            _ => self.on_keepalive(),
        }
    }

    /// RFC 9293 section 3.6.1: waits for 2 MSL, from now.
    pub(crate) fn enter_time_wait(&mut self) {
        if self.hot.state != State::TIME_WAIT {
            self.hot.state = State::TIME_WAIT;
            self.common.time_wait.push_back(self.number);
        }
        self.hot.timer = Timer::NONE;
        self.hot.timer_at = 0;
        self.drop_board();
        self.hot.rare_at = self.tick_in_ms(self.common.config.time_wait_ms);
        self.arm_wheel();
        self.notify();
    }

    /// Nobody reads the session any more: the peer's FIN is not waited for without end.
    pub(crate) fn watch_fin_wait_2(&mut self) {
        if self.hot.state == State::FIN_WAIT_2 && self.hot.has(flag::DETACHED) {
            self.hot.rare_at = self.tick_in_ms(self.common.config.time_wait_ms);
            self.arm_wheel();
        }
    }

    /// Starts the clock of keepalive, or stops it.
    pub(crate) fn watch_keepalive(&mut self) {
        self.hot.rare_at = 0;
        if self.hot.has(flag::KEEPALIVE) && self.hot.state.is_synchronized() {
            let idle_ms = self.cold.keepalive.idle_s.saturating_mul(1000);
            self.hot.rare_at = self.tick_in_ms(idle_ms);
            self.arm_wheel();
        }
    }

    /// RFC 9293 section 3.8.4.
    fn on_keepalive(&mut self) {
        if !self.hot.has(flag::KEEPALIVE) {
            return;
        }
        let keepalive = self.cold.keepalive;
        let idle_ms = keepalive.idle_s.saturating_mul(1000);
        let silent_ms = self.silent_ms();
        // Only when no data is outstanding.
        let early = silent_ms < idle_ms && self.cold.alive_probes == 0;
        let wait_ms = if self.hot.in_flight() > 0 || early {
            idle_ms.saturating_sub(silent_ms).max(1_000)
        } else if self.cold.alive_probes >= keepalive.probes {
            self.reset(Some(SessionError::TimedOut));
            return;
        } else {
            self.cold.alive_probes += 1;
            self.hot.set(flag::PROBE_ALIVE);
            self.make_ready();
            keepalive.interval_s.saturating_mul(1000)
        };
        self.hot.rare_at = self.tick_in_ms(wait_ms);
    }

    /// How long nothing was received.
    pub(crate) fn silent_ms(&self) -> u32 {
        self.common.now_ms.wrapping_sub(self.hot.heard_ms)
    }

    /// The tick that is `ms` away, or as far away as the wheel reaches; whoever is woken too early
    /// waits again.
    fn tick_in_ms(&self, ms: u32) -> Tick {
        let ms = u64::from(ms.min(WHEEL_MS_MAX));
        tick_after(self.common.now_ns + ms * 1_000_000)
    }
}

/// Two days: the wheel's ticks wrap after 6.5.
const WHEEL_MS_MAX: u32 = 2 * 24 * 3600 * 1000;
/// Silence after which probes that were answered before count as unanswered: what [`RETRIES`] of them
/// take, at least.
const PROBES_SILENT_MS: u32 = 900_000;
