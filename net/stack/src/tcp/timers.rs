//! Timers of a session.
//!
//! Source: RFC 6298 section 5, RFC 8985 sections 6.3 and 7.3, RFC 9293 sections 3.8.3 (giving up),
//! 3.8.4 (keepalive), 3.8.6.1 (zero window) and 3.6.1 (TIME-WAIT).

use super::Session;
use crate::buffer::slab::NONE;
use crate::error::SessionError;
use crate::ranges::scoreboard::Delivered;
use crate::state::hot::{Flags, State, Tail, Timer};
use crate::timer::{Tick, is_due, sooner, tick_after};

/// SYN retransmissions before a connect fails: 247 s, because RFC 9293 section 3.8.3 (MUST-23) asks
/// for at least 3 minutes. Linux has one less (`tcp_syn_retries`), and fails after 127 s.
const SYN_RETRIES: u8 = 7;
/// SYN-ACK retransmissions: Linux's `tcp_synack_retries`.
const SYN_ACK_RETRIES: u8 = 5;
/// Timeouts before a session is aborted: Linux's `tcp_retries2` (RFC 9293 section 3.8.3: R2 is at
/// least 100 s).
const RETRIES: u8 = 15;
/// The same for a session without an owner: Linux's `tcp_orphan_retries`.
const ORPHAN_RETRIES: u8 = 8;

impl Session<'_> {
    /// Enters the earliest deadline into the timer wheel.
    #[inline]
    pub(crate) fn arm_wheel(&mut self) {
        let hot = &mut *self.hot;
        let mut next = sooner(sooner(hot.timer_at, hot.ack_at), hot.rare_at);
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

    /// Runs the timers that are due; called by the timer wheel.
    pub(crate) fn on_tick(&mut self) {
        self.hot.armed = 0;
        let now = self.common.tick;
        if is_due(self.hot.ack_at, now) {
            self.hot.ack_at = 0;
            if self.hot.has(Flags::ACK_LATER) {
                // No data could carry it: this is not request-response traffic.
                self.hot.clear(Flags::INTERACTIVE);
                self.common.counters.delayed_acks += 1;
                self.acknowledge_now();
            }
        }
        if is_due(self.hot.timer_at, now) {
            let timer = self.hot.timer();
            self.hot.set_timer(Timer::None);
            self.hot.timer_at = 0;
            self.on_timer(timer);
        }
        if is_due(self.hot.rare_at, now) {
            self.hot.rare_at = 0;
            self.on_rare();
        }
        if self.hot.has(Flags::PACED) && is_due(self.cold.pacer.wake, now) {
            self.on_paced();
        }
        self.arm_wheel();
    }

    fn on_timer(&mut self, timer: Timer) {
        let flying = self.hot.in_flight() > 0;
        // A FIN alone waits like data: its next hop may not have answered.
        let fin_waits = self.hot.has(Flags::FIN_QUEUED) && !self.hot.has(Flags::FIN_SENT);
        let held_back = (self.hot.tx.len() > 0 || fin_waits) && !flying;
        if flying || held_back {
            self.note_stall();
        }
        match (timer, self.hot.state()) {
            (_, State::Closed | State::TimeWait) | (Timer::None, _) => {}
            (Timer::Retransmission, State::SynSent | State::SynReceived) => self.syn_timed_out(),
            // RFC 9293 section 3.8.6 (SHLD-17, MUST-35): after the peer shrank its window to zero,
            // a retransmission is a probe of it.
            (Timer::Retransmission, _) if flying && self.gives_up(self.hot.snd_wnd == 0) => {}
            (Timer::Retransmission, _) if flying && !self.probes_at_timeout() => self.timed_out(),
            (Timer::Retransmission | Timer::Probe, _) if flying => {
                // A probe may retransmit the only segment in flight, which then needs a record.
                self.scoreboard();
                self.hot.set(Flags::PROBE_TAIL);
                self.make_ready();
                // If the probe cannot be sent, the timeout remains.
                self.hot.set_timer(Timer::Retransmission);
                self.hot.timer_at = self.common.tick_in_us(self.timeout_us());
            }
            (Timer::Reordering, _) => {
                self.detect(&Delivered::default(), false);
                self.arm_after_acknowledgment(true);
            }
            // Held back by a cork or by `MSG_MORE`, for as long as tcp(7) allows. A window without
            // room for it is probed instead.
            (Timer::Persist, _) if held_back && self.has_window_for_next() => {
                self.path.tail.clear(Tail::UNPUSHED);
                self.path.tail.set(Tail::FLUSH);
                self.make_ready();
            }
            (Timer::Persist, _) if held_back && !self.gives_up(true) => {
                // Backed off like retransmissions, and without end while the peer replies.
                self.hot.set(Flags::PROBE_WINDOW);
                self.make_ready();
                self.path.retries = self.path.retries.saturating_add(1);
                self.start_persist();
            }
            (Timer::Held, _) => self.make_ready(),
            _ => {}
        }
    }

    /// True if the peer's window has room for a whole segment, or for all that is unsent.
    fn has_window_for_next(&self) -> bool {
        let next = self.unsent().min(usize::from(self.hot.mss));
        self.window_left() >= next
    }

    /// True if a timeout is replaced by a tail-loss probe: by RFC 8985 section 7.2 its timer is no
    /// later than the timeout. They coincide with one segment in flight, whose acknowledgment the
    /// peer may delay. The missing data may only be late then, and the window stays unchanged.
    fn probes_at_timeout(&self) -> bool {
        self.hot.has(Flags::SACK)
            && !self.hot.has(Flags::RECOVERY)
            && self.hot.srtt_us > 0
            && self.path.retries == 0
            && self.cold.rack.probe.is_none()
            && !self.probes_repair()
    }

    /// Starts the persist timer, which probes a zero window (RFC 9293 section 3.8.6.1).
    pub(crate) fn start_persist(&mut self) {
        self.hot.set_timer(Timer::Persist);
        let timeout_us = self.within_user_timeout_us(self.timeout_us());
        self.hot.timer_at = self.common.tick_in_us(timeout_us);
        self.arm_wheel();
    }

    /// Records the time since when the currently unacknowledged data is so.
    fn note_stall(&mut self) {
        let una = self.hot.snd_una;
        if self.cold.stalled.is_some_and(|(of, _)| of == una) {
            return;
        }
        // A scoreboard has the time of sending; without one, the control block has it for the only
        // segment.
        let sent_us = match self.hot.scoreboard {
            _ if self.hot.in_flight() == 0 => self.common.now_us,
            NONE => self.hot.sent_us,
            board => {
                let first = self.common.scoreboards.get(board).records.front();
                first.map_or(self.hot.sent_us, |record| record.sent_us)
            }
        };
        let age_ms = self.common.now_us.wrapping_sub(sent_us) / 1_000;
        self.cold.stalled = Some((una, self.common.now_ms.wrapping_sub(age_ms)));
    }

    /// Time since when the current data is unacknowledged, in milliseconds; 0 before a timer has
    /// checked.
    fn stalled_ms(&self) -> u32 {
        match self.cold.stalled {
            Some((of, since_ms)) if of == self.hot.snd_una => {
                self.common.now_ms.wrapping_sub(since_ms)
            }
            _ => 0,
        }
    }

    /// A timeout, or the end of the user timeout if that is earlier (RFC 9293 section 3.8.3).
    pub(crate) fn within_user_timeout_us(&self, timeout_us: u32) -> u32 {
        match self.cold.user_timeout_ms {
            0 => timeout_us,
            user_ms => {
                let left_ms = user_ms.saturating_sub(self.stalled_ms()).max(1);
                timeout_us.min(left_ms.saturating_mul(1_000))
            }
        }
    }

    /// True once retransmissions or probes reach their limit, or unacknowledged data the user
    /// timeout (RFC 9293 section 3.8.3): the connection is aborted.
    fn gives_up(&mut self, probing: bool) -> bool {
        // An orphan's memory has no user, so it gets fewer attempts.
        let orphan = self.hot.has(Flags::DETACHED);
        let limit = if orphan { ORPHAN_RETRIES } else { RETRIES };
        let user_ms = self.cold.user_timeout_ms;
        let over = if user_ms > 0 {
            self.path.retries > 0 && self.stalled_ms() >= user_ms
        } else {
            // RFC 9293 section 3.8.6.1 (MUST-37): a peer that answers probes of its zero window is
            // alive, regardless of their number.
            let answered = probing && !orphan && self.silent_ms() < PROBES_SILENT_MS;
            self.path.retries >= limit && !answered
        };
        if over {
            self.reset(Some(self.timeout_error()));
        }
        over
    }

    /// The reason for a timeout: a soft error, or none.
    fn timeout_error(&self) -> SessionError {
        self.soft_error().unwrap_or(SessionError::TimedOut)
    }

    /// The next hop does not answer. RFC 9293 section 3.9.2.2: a hard error for a session that is
    /// being opened; an established one keeps trying, by its timers.
    pub(crate) fn hop_failed(&mut self) {
        match self.hot.state() {
            State::Closed | State::TimeWait => {}
            State::SynSent => self.finish(Some(SessionError::Unreachable)),
            _ if self.hot.timer() != Timer::None => {}
            _ if self.hot.in_flight() > 0 => self.arm_retransmission(),
            _ => self.start_persist(),
        }
    }

    fn syn_timed_out(&mut self) {
        let passive = self.hot.state() == State::SynReceived;
        let limit = if passive {
            SYN_ACK_RETRIES
        } else {
            SYN_RETRIES
        };
        // RFC 9293 section 3.8.3 (MUST-22): the application's limit applies to SYNs, too.
        let user_ms = u64::from(self.cold.user_timeout_ms);
        let waited_ms = (self.common.now_ns - self.cold.opened_ns) / 1_000_000;
        let over = if user_ms > 0 {
            waited_ms >= user_ms
        } else {
            self.path.retries >= limit
        };
        if over {
            self.finish(Some(self.timeout_error()));
            return;
        }
        self.path.retries = self.path.retries.saturating_add(1);
        self.common.counters.timeouts += 1;
        self.hot.set(Flags::SEND_SYN);
        self.make_ready();
    }

    fn on_rare(&mut self) {
        match self.hot.state() {
            // 2 MSL have passed, or no owner waits for the peer's FIN.
            State::TimeWait | State::FinWait2 if self.hot.has(Flags::DETACHED) => {
                self.finish(None);
            }
            State::TimeWait => self.finish(None),
            State::Closed | State::SynSent | State::SynReceived => {}
            State::Established
            | State::FinWait1
            | State::FinWait2
            | State::CloseWait
            | State::Closing
            | State::LastAck => self.on_keepalive(),
        }
    }

    /// RFC 9293 section 3.6.1: starts TIME-WAIT for 2 MSL.
    pub(crate) fn enter_time_wait(&mut self) {
        if self.hot.state() != State::TimeWait {
            self.hot.set_state(State::TimeWait);
            self.common.time_wait.push_back(self.number);
        }
        self.hot.set_timer(Timer::None);
        self.hot.timer_at = 0;
        // Both FINs are acknowledged: nothing is in flight.
        self.drop_scoreboard();
        self.cold.bbr = None;
        self.hot.rare_at = self.tick_in_ms(self.common.config.time_wait_ms);
        self.arm_wheel();
        self.notify();
    }

    /// Bounds FIN-WAIT-2 of an orphaned session, as in Linux (`tcp_fin_timeout`).
    pub(crate) fn watch_fin_wait_2(&mut self) {
        if self.hot.state() == State::FinWait2 && self.hot.has(Flags::DETACHED) {
            self.hot.rare_at = self.tick_in_ms(self.common.config.time_wait_ms);
            self.arm_wheel();
        }
    }

    /// Starts the keepalive timer, or stops it.
    pub(crate) fn watch_keepalive(&mut self) {
        self.hot.rare_at = 0;
        if self.hot.has(Flags::KEEPALIVE) && self.hot.state().is_synchronized() {
            let idle_ms = self.cold.keepalive.idle_s.saturating_mul(1000);
            self.hot.rare_at = self.tick_in_ms(idle_ms);
            self.arm_wheel();
        }
    }

    /// RFC 9293 section 3.8.4.
    fn on_keepalive(&mut self) {
        if !self.hot.has(Flags::KEEPALIVE) {
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
            self.hot.set(Flags::PROBE_ALIVE);
            self.make_ready();
            keepalive.interval_s.saturating_mul(1000)
        };
        self.hot.rare_at = self.tick_in_ms(wait_ms);
    }

    /// Time since a segment was last received, in milliseconds.
    pub(crate) fn silent_ms(&self) -> u32 {
        self.common.now_ms.wrapping_sub(self.hot.last_received_ms)
    }

    /// The tick in `ms`, or the most distant one of the wheel; a session woken too early waits
    /// again.
    fn tick_in_ms(&self, ms: u32) -> Tick {
        let ms = u64::from(ms.min(WHEEL_MS_MAX));
        tick_after(self.common.now_ns + ms * 1_000_000)
    }
}

/// Two days: the wheel's ticks wrap after 6.5.
const WHEEL_MS_MAX: u32 = 2 * 24 * 3600 * 1000;
/// Silence after which earlier answered probes count as unanswered: at least the time of
/// [`RETRIES`] probes.
const PROBES_SILENT_MS: u32 = 900_000;
