//! New data, and the FIN after it.
//!
//! Source: RFC 9293 section 3.8.2, RFC 5681 section 4.1, RFC 7661.

use super::{Load, Outcome, Output, TURN_BYTES};
use crate::buffer::NONE;
use crate::congestion::{Control, initial_window};
use crate::ranges::scoreboard::RECORDS_MAX;
use crate::state::ecn::EcnState;
use crate::state::flags::{Flags, SendTail};
use crate::state::hot::Timer;
use crate::tcp::model::Sent;
use crate::wire::sequence::{Range, Sequence};
use crate::wire::tcp::{ACK, FIN, Options, PSH};
use sidecore_bare::width::ToUsize;

/// Windows up to these segments are not reset after a pause: the initial one is no smaller.
const SEGMENTS_KEPT: u32 = 10;

/// The next piece of new data.
enum Next {
    /// This number of bytes is sent now.
    Bytes(usize),
    /// The rest waits, for an acknowledgment, a window or a timer.
    Waits,
}

impl Output<'_, '_> {
    /// Sends new data, and the FIN after it.
    pub(super) fn send_new(&mut self) -> Outcome {
        if self.session.hot.timer() == Timer::Held {
            // RFC 3168 section 6.1.2: the timer makes the session ready again.
            return Outcome::Done;
        }
        let mut turn = TURN_BYTES;
        self.restart_after_idle();
        loop {
            let unsent = self.session.hot.unsent();
            if unsent == 0 {
                if self.session.hot.fin_waits() {
                    // All data was sent before the application closed: the FIN is sent alone.
                    return self.send_data(0);
                }
                self.note_application_limited();
                return Outcome::Done;
            }
            if turn == 0 {
                return Outcome::More;
            }
            let Next::Bytes(len) = self.next_bytes(unsent) else {
                return Outcome::Done;
            };
            match self.send_data(len) {
                Outcome::Done => turn = turn.saturating_sub(len),
                other => return other,
            }
        }
    }

    /// Nothing is left to send: the application is the limit (RFC 7661).
    fn note_application_limited(&mut self) {
        self.note_model_limited();
        let session = &mut self.session;
        if session.hot.has(Flags::CWND_LIMITED)
            && session.pipe() < session.hot.send.cwnd / 2
            && !self.slow_start_is_used()
        {
            self.session.hot.clear(Flags::CWND_LIMITED);
        }
    }

    /// True in slow start while more than half of the window is in use.
    fn slow_start_is_used(&self) -> bool {
        let (send, flight) = (&self.session.hot.send, &self.session.cold.flight);
        flight.is_current(send.una)
            && send.cwnd < self.session.cold.congestion.threshold()
            && flight.uses_half_of(send.cwnd)
    }

    /// The next piece of `unsent` bytes that both windows, Nagle's algorithm and pacing permit.
    fn next_bytes(&mut self, unsent: usize) -> Next {
        let mss = usize::from(self.session.hot.mss);
        let fin = self.session.hot.fin_waits();
        let record = self.record_left(unsent);
        // A segment that ends a record before further data is exempt from Nagle: it will not grow.
        let complete = record < unsent;
        let mut len = record.min(self.session.hot.send.left());
        if len > mss {
            len = len.min(self.chunk_bytes());
        }
        if self.session.hot.ecn.may_carry_cwr() {
            len = len.min(mss);
        }
        if len >= mss {
            // A partial segment after the last full one is sent with it, if it may be sent at all.
            let rest = len % mss;
            if len != record || !complete && !self.may_send_small(rest, rest, fin) {
                len -= rest;
            }
        } else if len > 0 && self.session.hot.has(Flags::PROBE_WINDOW) {
            // RFC 9293 section 3.8.6.2.1 (4): a window that stays small is used eventually, and the
            // data probes it.
            self.session.hot.clear(Flags::PROBE_WINDOW);
        } else if (!complete || len < record) && !self.may_send_small(len, record, fin) {
            self.hold_back();
            return Next::Waits;
        }
        let Some(len) = self.within_congestion_window(len) else {
            self.session.hot.set(Flags::CWND_LIMITED);
            return Next::Waits;
        };
        let board = self.session.hot.scoreboard;
        if board != NONE && self.session.common.scoreboards.get(board).records.len() >= RECORDS_MAX
        {
            // The scoreboard is full: the next acknowledgment makes room, and makes the session
            // ready.
            return Next::Waits;
        }
        match self.paced(len) {
            0 => Next::Waits,
            len => Next::Bytes(len),
        }
    }

    /// A small segment is held back. With data in flight an acknowledgment will update the window;
    /// otherwise only a probe does. A cork holds data back no longer than that either: tcp(7).
    fn hold_back(&mut self) {
        let session = &mut self.session;
        if session.hot.send.in_flight() == 0 && session.hot.timer() == Timer::None {
            session.start_persist();
        }
        self.note_model_limited();
    }

    /// The part of `len` bytes that the congestion window permits; none if it permits nothing.
    fn within_congestion_window(&mut self, len: usize) -> Option<usize> {
        let mss = usize::from(self.session.hot.mss);
        // RFC 6675 section 4: data that SACK reports as delivered, or that is lost, makes room.
        let pipe = self.session.pipe();
        let room = self.session.hot.send.cwnd.saturating_sub(pipe).to_usize();
        // An empty pipe always permits one segment, otherwise a window below the MSS would stall
        // the session.
        if room < len.min(mss) && pipe > 0 {
            return None;
        }
        if room >= len {
            return Some(len);
        }
        self.session.hot.set(Flags::CWND_LIMITED);
        Some((room - room % mss).max(mss.min(len)))
    }

    /// RFC 5681 section 4.1: the window is reset after a pause of a retransmission timeout.
    fn restart_after_idle(&mut self) {
        let session = &mut self.session;
        let mss = u32::from(session.hot.mss);
        // A window no larger than the initial one would not shrink, whatever the pause.
        if session.hot.send.in_flight() != 0
            || session.hot.send.cwnd <= SEGMENTS_KEPT * mss
            || !session.common.config.restart_after_idle
            || session.path.is_modelled()
        {
            return;
        }
        let now_us = session.common.now_us;
        let idle_us = now_us.wrapping_sub(session.cold.last_sent_us);
        if idle_us > session.timeout_us() {
            let cwnd = session.hot.send.cwnd;
            session.hot.send.cwnd = cwnd.min(initial_window(mss));
            session.cold.congestion.on_restart(now_us);
        }
    }

    /// Sends the next `len` bytes, with the FIN if they are the last.
    #[inline]
    pub(super) fn send_data(&mut self, len: usize) -> Outcome {
        let hot = &*self.session.hot;
        let (unsent, held) = (hot.unsent(), hot.tx.len());
        let last = len == unsent;
        let fin = last && hot.fin_waits();
        let start = hot.send.nxt;
        let data_end = start.after(len);
        let pushes = len > 0
            && (self.fills_window(len) || self.pushes(data_end, len, last) || self.burst_ends(len));
        if pushes {
            self.burst = 0;
        }
        let load = Load {
            sequence: start,
            offset: held - unsent,
            len,
            flags: ACK | if fin { FIN } else { 0 } | if pushes { PSH } else { 0 },
        };
        let owed = self.session.hot.has(Flags::ACK_LATER | Flags::ACK_NOW);
        let outcome = self.emit(load, &mut Options::default());
        if outcome != Outcome::Done {
            return outcome;
        }
        let session = &mut self.session;
        if owed {
            // Data carried it: from now on acknowledgments may wait for data.
            session.hot.set(Flags::INTERACTIVE);
            session.hot.clear(Flags::QUICK);
        }
        let end = data_end + u32::from(fin);
        let now_us = session.common.now_us;
        // One segment in flight needs no scoreboard: request and reply never allocate one.
        if session.hot.send.in_flight() == 0 && session.hot.scoreboard == NONE {
            session.hot.sent_us = now_us;
        } else {
            session.scoreboard().push(Range { start, end }, now_us);
        }
        session.hot.send.nxt = end;
        let bytes = data_end - start;
        // Only a session with a model of the path keeps records of the delivery.
        if session.path.is_modelled() {
            self.tell_model_of_sending(bytes);
        }
        self.note_sent(
            Range {
                start,
                end: data_end,
            },
            end,
        );
        if fin {
            self.session.hot.set(Flags::FIN_SENT);
        }
        self.arm_after_sending();
        Outcome::Done
    }

    /// The state after sending new data; `end` counts the FIN, too.
    #[inline]
    fn note_sent(&mut self, data: Range, end: Sequence) {
        let session = &mut self.session;
        let send = session.hot.send;
        let flight = send.in_flight();
        if flight > send.cwnd / 2 {
            session.cold.flight.note(flight, send.una, send.nxt);
            // More than half of the window is in use: slow start may double it.
            if send.cwnd < session.cold.congestion.threshold() {
                session.hot.set(Flags::CWND_LIMITED);
            }
        }
        if session.path.tail != SendTail::EMPTY {
            session.path.tail.clear(SendTail::FLUSH);
            if session.path.tail.has(SendTail::MARKED) {
                let now_ns = session.common.now_ns;
                session.cold.marks.sent(send.nxt, now_ns);
            }
        }
        let (bytes, mss) = (data.len(), u32::from(session.hot.mss));
        if bytes < mss || bytes > mss && !bytes.is_multiple_of(mss) {
            session.path.small_end = end;
        }
        if session.hot.has(Flags::RECOVERY) || session.hot.ecn.has(EcnState::REDUCED) {
            session.cold.prr.on_sent(bytes);
        }
        // Smaller windows are not reset after a pause, so they need no time of the last sending.
        if send.cwnd > SEGMENTS_KEPT * mss {
            session.cold.last_sent_us = session.common.now_us;
        }
        self.note_paced(bytes.to_usize());
    }

    /// The model of the path learns of a transmission.
    #[cold]
    pub(super) fn tell_model_of_sending(&mut self, bytes: u32) {
        let session = &mut self.session;
        let sent = Sent {
            now_us: session.common.now_us,
            in_flight: session.pipe(),
            bytes,
            window: session.hot.send.cwnd,
            smoothed_us: session.hot.rtt.smoothed_us,
            seed: session.cold.iss.get(),
        };
        session.cold.model.sent(sent);
    }

    /// Nothing is left to send within the peer's window: the model learns that its rate is not the
    /// limit.
    fn note_model_limited(&mut self) {
        let session = &mut self.session;
        if !session.path.is_modelled() || session.lost_bytes() > 0 {
            return;
        }
        let in_flight = session.pipe();
        if in_flight < session.hot.send.cwnd {
            session.cold.model.limited(in_flight);
        }
    }
}
