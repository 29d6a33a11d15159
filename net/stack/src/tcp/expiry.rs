//! Expired timers of a session.
//!
//! Source: RFC 6298 section 5, RFC 8985 sections 6.3 and 7.3, RFC 9293 sections 3.8.3 (giving up),
//! 3.8.4 (keepalive), 3.8.6.1 (zero window) and 3.6.1 (TIME-WAIT).

use super::Session;
use super::keepalive::Step;
use super::prr::Prr;
use crate::buffer::NONE;
use crate::congestion::Control;
use crate::congestion::bbr::Cause;
use crate::error::SessionError;
use crate::ranges::scoreboard::Delivered;
use crate::state::flags::{Flags, SendTail};
use crate::state::hot::{State, Timer};
use crate::timer::is_due;

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
/// The same for any session while memory is short: some seconds without progress.
const PRESSED_RETRIES: u8 = 4;
/// Consecutive timeouts after which the application is notified: R1 of RFC 9293 section 3.8.3
/// (SHLD-9, SHLD-10).
const RETRIES_NOTIFIED: u8 = 3;
/// Time between the attempts that count while the NIC takes nothing: Linux's
/// `TCP_RESOURCE_PROBE_INTERVAL`.
const REFUSED_US: u32 = 500_000;
/// Silence after which earlier answered probes count as unanswered: at least the time of
/// [`RETRIES`] probes.
const PROBES_SILENT_MS: u32 = 900_000;

/// A session whose entry in the timer wheel has expired.
pub(crate) struct Expiry<'s> {
    session: Session<'s>,
}

impl<'s> Expiry<'s> {
    pub(crate) fn new(session: Session<'s>) -> Self {
        Self { session }
    }

    /// Runs the timers that are due.
    pub(crate) fn run(mut self) {
        let now = self.session.common.tick;
        let hot = &mut *self.session.hot;
        hot.armed = 0;
        if is_due(hot.ack_at, now) {
            hot.ack_at = 0;
            if hot.has(Flags::ACK_LATER) {
                // No data could carry it: this is not request-response traffic.
                hot.clear(Flags::INTERACTIVE);
                self.session.common.counters.delayed_acks += 1;
                self.session.acknowledge_now();
            }
        }
        let hot = &mut *self.session.hot;
        if is_due(hot.timer_at(), now) {
            let timer = hot.timer();
            hot.stop_timer();
            self.retransmission(timer);
        }
        if is_due(self.session.hot.slow_at, now) {
            self.session.hot.slow_at = 0;
            self.slow();
        }
        if self.session.hot.has(Flags::PACED) && is_due(self.session.cold.pacer.wake, now) {
            self.session.hot.clear(Flags::PACED);
            self.session.make_ready();
        }
        self.session.arm_wheel();
    }

    /// The retransmission timer of this kind.
    fn retransmission(&mut self, timer: Timer) {
        let hot = &*self.session.hot;
        let flying = hot.send.in_flight() > 0;
        // A FIN alone waits like data: its next hop may not have answered.
        let held_back = (hot.tx.len() > 0 || hot.fin_waits()) && !flying;
        if flying || held_back {
            self.note_stall();
        }
        match (timer, self.session.hot.state()) {
            (_, State::Closed | State::TimeWait) | (Timer::None, _) => {}
            (Timer::Retransmission, State::SynSent | State::SynReceived) => self.syn_timed_out(),
            // RFC 9293 section 3.8.6 (SHLD-17, MUST-35): after the peer shrank its window to zero,
            // a retransmission is a probe of it.
            (Timer::Retransmission, _) if flying && self.gives_up(self.has_no_window()) => {}
            (Timer::Retransmission, _) if flying && !self.probes_at_timeout() => self.timed_out(),
            (Timer::Retransmission | Timer::Probe, _) if flying => self.probe_tail(),
            (Timer::Reordering, _) => {
                self.session.detect_losses(&Delivered::default(), false);
                self.session.arm_after_acknowledgment(true);
            }
            (Timer::Persist, _) if held_back && self.session.hot.has(Flags::REFUSED) => {
                self.still_refused();
            }
            // Held back by a cork or by `MSG_MORE`, for as long as tcp(7) allows. A window without
            // room for it is probed instead.
            (Timer::Persist, _) if held_back && self.has_window_for_next() => {
                let session = &mut self.session;
                session.path.tail.clear(SendTail::UNPUSHED);
                session.path.tail.set(SendTail::FLUSH);
                session.make_ready();
            }
            (Timer::Persist, _) if held_back && !self.gives_up(true) => {
                // Backed off like retransmissions, and without end while the peer replies.
                let session = &mut self.session;
                session.hot.set(Flags::PROBE_WINDOW);
                session.make_ready();
                session.path.retries = session.path.retries.saturating_add(1);
                session.start_persist();
            }
            (Timer::Held, _) => self.session.make_ready(),
            _ => {}
        }
    }

    /// The NIC has had no room for another while.
    fn still_refused(&mut self) {
        if self.gives_up(true) {
            return;
        }
        let session = &mut self.session;
        session.path.retries = session.path.retries.saturating_add(1);
        // The path is not congested, so nothing backs off.
        let wait_us = session.within_user_timeout_us(REFUSED_US);
        session.start_timer(Timer::Persist, wait_us);
    }

    fn has_no_window(&self) -> bool {
        self.session.hot.send.wnd == 0
    }

    /// True if the peer's window has room for a whole segment, or for all that is unsent.
    fn has_window_for_next(&self) -> bool {
        let hot = &*self.session.hot;
        hot.send.left() >= hot.unsent().min(usize::from(hot.mss))
    }

    /// Sends a tail-loss probe at the next turn.
    fn probe_tail(&mut self) {
        let session = &mut self.session;
        // A probe may retransmit the only segment in flight, which then needs a record.
        session.scoreboard();
        session.hot.set(Flags::PROBE_TAIL);
        session.make_ready();
        // If the probe cannot be sent, the timeout remains. `run` enters it into the wheel.
        let at = session.common.tick_in_us(session.timeout_us());
        session.hot.start_timer(Timer::Retransmission, at);
    }

    /// True if a timeout is replaced by a tail-loss probe: by RFC 8985 section 7.2 its timer is no
    /// later than the timeout. They coincide with one segment in flight, whose acknowledgment the
    /// peer may delay. The missing data may only be late then, and the window stays unchanged.
    fn probes_at_timeout(&self) -> bool {
        let hot = &*self.session.hot;
        hot.has(Flags::SACK)
            && !hot.has(Flags::RECOVERY)
            && hot.rtt.smoothed_us > 0
            && self.session.path.retries == 0
            && !self.session.probes_recovery()
    }

    /// RFC 6298 section 5.4 to 5.6, RFC 8985 section 6.3: all data that is not known to be
    /// delivered is lost, and slow start begins.
    fn timed_out(&mut self) {
        let session = &mut self.session;
        session.common.counters.timeouts += 1;
        let mss = u32::from(session.hot.mss);
        // RFC 5681 section 3.1: not lowered again for the same segment, nor (section 4.3) for the
        // same window of data.
        if session.path.retries == 0 && !session.hot.has(Flags::RECOVERY) {
            let send = session.hot.send;
            if session.ecn().is_reduced_already(send.una) {
                // Reduced because of an echo, which was not spurious; slow start follows
                // nevertheless.
                session.cold.undo.forget();
            } else {
                let cold = &mut *session.cold;
                cold.undo.remember(send.una, send.cwnd, &cold.congestion);
                let used = send.used(session.hot.has(Flags::CWND_LIMITED));
                let now_us = session.common.now_us;
                cold.congestion.on_timeout(send.cwnd, used, mss, now_us);
            }
            session.note_reduction();
        }
        let before = session.lost_bytes();
        let scoreboard = session.scoreboard();
        // A peer may renege on SACKed data (RFC 2018 section 8); only a timeout shows it.
        scoreboard.forget_if_reneged();
        for index in 0..scoreboard.records.len() {
            scoreboard.lose(index);
        }
        let lost = session.lost_bytes().saturating_sub(before);
        session.cold.model.lost(lost);
        session.tell_model_of_recovery(Cause::Timeout);
        // The loss window (RFC 5681 section 3.1): the ACK clock has stopped, and restarts with one
        // segment.
        let hot = &mut *session.hot;
        hot.send.cwnd = mss;
        session.cold.prr = Prr::default();
        hot.duplicates = 0;
        hot.set(Flags::RECOVERY | Flags::CWND_LIMITED);
        session.cold.after_timeout = true;
        session.cold.recover = hot.send.nxt;
        let (in_flight, nxt) = (hot.send.in_flight(), hot.send.nxt);
        session.cold.flight.note_timeout(in_flight, nxt);
        session.cold.rack.forget_probe();
        session.path.retries = session.path.retries.saturating_add(1);
        if session.path.retries > 1 {
            // Two in a row: the neighbour may be gone.
            let (number, generation) = session.path.hop();
            let now_ns = session.common.now_ns;
            session.common.neighbors.suspect(number, generation, now_ns);
        }
        if session.path.retries == RETRIES_NOTIFIED {
            session.notify();
        }
        session.make_ready();
    }

    /// Records the time since when the currently unacknowledged data is so.
    fn note_stall(&mut self) {
        let (hot, common) = (&*self.session.hot, &*self.session.common);
        let una = hot.send.una;
        if self.session.cold.user_timeout.knows(una) {
            return;
        }
        // A scoreboard has the time of sending; without one, the control block has it for the only
        // segment.
        let sent_us = match hot.scoreboard {
            _ if hot.send.in_flight() == 0 => common.now_us,
            NONE => hot.sent_us,
            board => {
                let first = common.scoreboards.get(board).records.front();
                first.map_or(hot.sent_us, |record| record.sent_us)
            }
        };
        let age_ms = common.now_us.wrapping_sub(sent_us) / 1_000;
        let since_ms = common.now_ms.wrapping_sub(age_ms);
        self.session.cold.user_timeout.note(una, since_ms);
    }

    /// True once retransmissions or probes reach their limit, or unacknowledged data the user
    /// timeout (RFC 9293 section 3.8.3): the connection is aborted.
    fn gives_up(&mut self, probing: bool) -> bool {
        let session = &mut self.session;
        let now_ms = session.common.now_ms;
        // An orphan's memory has no user, so it gets fewer attempts.
        let orphan = session.hot.has(Flags::DETACHED);
        let over = if let Some(limit_ms) = session.cold.user_timeout.limit_ms() {
            let timeout = &session.cold.user_timeout;
            let stalled_ms = timeout.stalled_ms(session.hot.send.una, now_ms);
            session.path.retries > 0 && stalled_ms >= limit_ms
        } else {
            // RFC 9293 section 3.8.6.1 (MUST-37): a peer that answers probes of its zero window is
            // alive, regardless of their number.
            let silent_ms = session.hot.silent_ms(now_ms);
            let answered = probing && !orphan && silent_ms < PROBES_SILENT_MS;
            let limit = if orphan { ORPHAN_RETRIES } else { RETRIES };
            session.path.retries >= limit && !answered
        };
        // As Linux's `tcp_out_of_resources`, but for sessions with an owner, too: while memory is
        // short, those without progress give theirs back.
        let is_pressed = session.common.pool.is_short() && session.path.retries >= PRESSED_RETRIES;
        if is_pressed {
            session.common.counters.no_memory += 1;
        }
        let over = over || is_pressed;
        if over {
            let error = session.cold.soft_error.get(session.hot.send.una);
            let error = error.unwrap_or(SessionError::TimedOut);
            session.reset(Some(error));
        }
        over
    }

    fn syn_timed_out(&mut self) {
        let session = &mut self.session;
        // RFC 9293 section 3.8.3 (MUST-22): the application's limit applies to SYNs, too.
        let over = if let Some(limit_ms) = session.cold.user_timeout.limit_ms() {
            let waited_ms = (session.common.now_ns - session.cold.opened_ns) / 1_000_000;
            waited_ms >= u64::from(limit_ms)
        } else if session.hot.state() == State::SynReceived {
            session.path.retries >= SYN_ACK_RETRIES
        } else {
            session.path.retries >= SYN_RETRIES
        };
        if over {
            let error = session.cold.soft_error.get(session.hot.send.una);
            let error = error.unwrap_or(SessionError::TimedOut);
            session.finish(Some(error));
            return;
        }
        session.path.retries = session.path.retries.saturating_add(1);
        if session.hot.has(Flags::SEND_SYN) {
            // The path has not seen it, so its silence says nothing about the options.
            session.cold.syns_refused = session.cold.syns_refused.saturating_add(1);
        }
        session.common.counters.timeouts += 1;
        session.hot.set(Flags::SEND_SYN);
        session.make_ready();
    }

    fn slow(&mut self) {
        match self.session.hot.state() {
            // 2 MSL have passed, or no owner waits for the peer's FIN.
            State::FinWait2 if self.session.hot.has(Flags::DETACHED) => self.session.finish(None),
            State::TimeWait => self.session.finish(None),
            State::Closed | State::SynSent | State::SynReceived => {}
            State::Established
            | State::FinWait1
            | State::FinWait2
            | State::CloseWait
            | State::Closing
            | State::LastAck => self.keepalive(),
        }
    }

    /// RFC 9293 section 3.8.4.
    fn keepalive(&mut self) {
        let session = &mut self.session;
        if !session.hot.has(Flags::KEEPALIVE) {
            return;
        }
        let silent_ms = session.hot.silent_ms(session.common.now_ms);
        let outstanding = session.hot.send.in_flight() > 0;
        let wait_ms = match session.cold.keepalive.expired(silent_ms, outstanding) {
            Step::Wait { ms } => ms,
            Step::Probe { ms } => {
                session.hot.set(Flags::PROBE_ALIVE);
                session.make_ready();
                ms
            }
            Step::Abort => {
                session.reset(Some(SessionError::TimedOut));
                return;
            }
        };
        session.hot.slow_at = session.common.tick_in_ms(wait_ms);
    }
}
