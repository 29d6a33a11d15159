//! Output: retransmissions first, then new data, then a pure acknowledgment.
//!
//! A frame is a header built here and up to two pieces of the send ring in place. If the NIC cuts
//! segments itself, they are sent as one super-segment. Source: RFC 9293 sections 3.7.4 (Nagle),
//! 3.8.6.2.1 (silly windows) and 3.8.2, RFC 6675 section 5, RFC 8985 section 7.3, RFC 9293 section
//! 3.10.

use super::{Session, accurate};
use crate::buffer::slab::NONE;
use crate::checksum::{Sum, pseudo};
use crate::congestion::Control;
use crate::frame::{Outgoing, TransmitChecksum};
use crate::ranges::scoreboard::RECORDS_MAX;
use crate::shared::neighbors::Hop;
use crate::state::hot::{EcnFlags, Flags, Path, State, Tail, Timer};
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::ip::{self, Codepoint};
use crate::wire::sequence::{Range, before, before_or_at, earlier};
use crate::wire::tcp::{self, ACK, CWR, FIN, OPTIONS_BYTES_MAX, Options, PSH, SYN, Tcp};
use std::num::NonZeroU16;
use zerocopy::IntoBytes;
use zerocopy::network_endian::{U16, U32};

/// Ethernet, IPv6, TCP and its options.
pub(crate) const HEADER_BYTES_MAX: usize =
    ethernet::HEADER_BYTES + ip::V6_BYTES + tcp::HEADER_BYTES + OPTIONS_BYTES_MAX;
/// After more bytes than this the next batch's reply precedes any timer of the peer.
const HALF_ACK_BYTES_MAX: u32 = 48 << 10;
/// Round trips, in microseconds, up to which a super-segment may have the link's full size.
const SHORT_ROUND_US: u32 = 512;
/// Payload bytes that one session sends before others get their turn.
const TURN_BYTES: usize = 256 << 10;

/// Callback that transmits a frame; returns false when the NIC has no room.
pub(crate) type Send<'f> = dyn FnMut(&Outgoing<'_>) -> bool + 'f;

/// Result of sending a frame, or of a session's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing is left to do.
    Done,
    /// There is more to send, after the others' turn.
    More,
    /// The NIC has no room.
    Full,
    /// The next hop's hardware address is not known yet.
    Unresolved,
}

/// A segment's range of the send ring.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    sequence: u32,
    /// Offset in the ring.
    offset: usize,
    len: usize,
    flags: u8,
}

impl Session<'_> {
    /// Sends as much as the windows allow.
    pub(crate) fn output(&mut self, send: &mut Send<'_>) -> Outcome {
        if self.hot.has(Flags::SEND_SYN) {
            return self.send_syn(send);
        }
        if self.hot.state().sends() {
            // RFC 5681 section 2: an acknowledgment with data is not a duplicate, and a full
            // segment has no room for SACK blocks. A gap is therefore reported before data is sent,
            // which would clear the report. Accurate ECN's first pure acknowledgment reports the
            // SYN-ACK's mark, which data cannot (RFC 9768 section 3.2.2.1).
            let reports = self.has_report() || self.path.ecn & Path::OPENING != 0;
            if self.hot.has(Flags::ACK_NOW) && reports {
                match self.send_bare(send) {
                    Outcome::Done => {}
                    other => return other,
                }
            }
            // Lost data goes first: the peer delivers nothing behind a hole, so that new data would
            // only fill its buffer.
            if self.hot.scoreboard != NONE
                && (self.common.scoreboards.get(self.hot.scoreboard).lost_bytes > 0
                    || self.hot.has(Flags::PROBE_TAIL))
            {
                match self.send_repairs(send) {
                    Outcome::Done => {}
                    other => return other,
                }
            }
            if self.hot.tx.len() > 0 || self.hot.has(Flags::FIN_QUEUED) {
                match self.send_new(send) {
                    Outcome::Done => {}
                    other => return other,
                }
            }
            if self.path.tail.has(Tail::LOW_WATER | Tail::TIMED) {
                self.after_output();
            }
        }
        self.send_bare(send)
    }

    /// Rare work after all permitted data was sent: features that few sessions use.
    #[cold]
    fn after_output(&mut self) {
        if self.hot.has(Flags::WANTS_ROOM) && self.is_writable() {
            self.hot.clear(Flags::WANTS_ROOM);
            self.notify();
        }
        if self.path.tail.has(Tail::TIMED) {
            self.count_time();
        }
    }

    /// Sends our SYN, or SYN-ACK.
    fn send_syn(&mut self, send: &mut Send<'_>) -> Outcome {
        let answer = self.hot.state() == State::SynReceived;
        let first = self.hot.state() == State::SynSent;
        if !answer && !first {
            // The handshake was completed or aborted while the SYN waited for its turn.
            self.hot.clear(Flags::SEND_SYN);
            return Outcome::Done;
        }
        // A SYN-ACK contains only options that the peer's SYN offered: RFC 7323 sections 2.2 and
        // 3.2, RFC 2018 section 2.
        let config = &self.common.config;
        let wants = |flag| first || self.hot.has(flag);
        let mut options = Options {
            mss: Some(self.largest_mss()),
            sack_permitted: config.sack && wants(Flags::SACK),
            scale: self.cold.scaling.then_some(self.hot.rcv_scale),
            ..Options::default()
        };
        if config.timestamps && wants(Flags::TIMESTAMPS) {
            options.timestamps = Some((self.timestamp(), self.hot.ts_recent));
        }
        let load = Load {
            sequence: self.cold.iss,
            flags: if answer { SYN | ACK } else { SYN },
            ..Load::default()
        };
        let outcome = self.emit(load, &mut options, send);
        if outcome == Outcome::Done {
            self.hot.clear(Flags::SEND_SYN);
            self.hot.sent_us = self.common.now_us;
            self.hot.set_timer(Timer::Retransmission);
            self.hot.timer_at = self.common.tick_in_us(self.timeout_us());
            self.arm_wheel();
        }
        outcome
    }

    /// Retransmits lost segments, as far as the window allows, and sends a tail-loss probe.
    fn send_repairs(&mut self, send: &mut Send<'_>) -> Outcome {
        if self.hot.has(Flags::PROBE_TAIL) {
            match self.send_tail_probe(send) {
                Outcome::Done => self.hot.clear(Flags::PROBE_TAIL),
                other => return other,
            }
        }
        let mut turn = TURN_BYTES;
        loop {
            let scoreboard = self.common.scoreboards.get_mut(self.hot.scoreboard);
            let Some(index) = scoreboard.first_lost() else {
                return Outcome::Done;
            };
            let mss = u32::from(self.hot.mss);
            let pipe = self.pipe();
            // RFC 6675 section 5 step 4.3, RFC 5681 section 3.2 step 3: the acknowledgment that
            // shows a loss permits one segment regardless of the window; the others (C) need room
            // for one whole segment, or nothing in flight.
            let owed = self.hot.has(Flags::REPAIR_OWED);
            if !owed && pipe > 0 && self.hot.cwnd < pipe.saturating_add(mss) {
                return Outcome::Done;
            }
            if turn == 0 {
                return Outcome::More;
            }
            // One header and one call for as much as the window allows: the NIC cuts it.
            let room = (self.hot.cwnd.saturating_sub(pipe) / mss).max(1) * mss;
            let mut chunk = self.piece_bytes(usize::MAX);
            if self.may_say_cwr() {
                chunk = chunk.min(mss as usize);
            }
            if !owed {
                chunk = self.paced(chunk);
                if chunk == 0 {
                    return Outcome::Done;
                }
            }
            let scoreboard = self.common.scoreboards.get_mut(self.hot.scoreboard);
            let record = scoreboard.records[index];
            let limit = record.range.start.wrapping_add(room.min(chunk as u32));
            if before(limit, record.range.end) {
                // The rest stays marked as lost, and is sent when the window allows it.
                scoreboard.cut(limit);
            }
            let len = scoreboard.records[index].range.len();
            match self.send_again(index, send) {
                Outcome::Done => {}
                other => return other,
            }
            self.hot.clear(Flags::REPAIR_OWED);
            turn = turn.saturating_sub(len as usize);
            self.arm_after_sending();
        }
    }

    /// RFC 6298 section 5.1 does not restart a running timer; RFC 8985 section 7.2 restarts the
    /// probe timer, if one is useful, with each segment.
    #[inline]
    fn arm_after_sending(&mut self) {
        let start = match self.hot.timer() {
            Timer::None | Timer::Probe | Timer::Persist => true,
            Timer::Retransmission => self.probe_after_us().is_some(),
            _ => false,
        };
        if start {
            self.arm_retransmission();
        }
    }

    /// Retransmits a record of the scoreboard, and updates the state.
    fn send_again(&mut self, index: usize, send: &mut Send<'_>) -> Outcome {
        let range = self.common.scoreboards.get(self.hot.scoreboard).records[index].range;
        let data_end = self.hot.snd_una.wrapping_add(self.hot.tx.len() as u32);
        let end = earlier(range.end, data_end);
        let len = end.wrapping_sub(range.start) as i32;
        // The FIN has a sequence number, and no byte in the ring.
        let fin = before(data_end, range.end) && self.hot.has(Flags::FIN_SENT);
        let load = Load {
            sequence: range.start,
            offset: range.start.wrapping_sub(self.hot.snd_una) as usize,
            len: len.max(0) as usize,
            flags: ACK
                | if fin { FIN } else { 0 }
                | if len > 0 && self.pushes(end, len as usize, end == data_end) {
                    PSH
                } else {
                    0
                },
        };
        let outcome = self.emit(load, &mut Options::default(), send);
        // Changed only after the NIC has taken the segment.
        if outcome == Outcome::Done {
            self.cold.resent = self.cold.resent.saturating_add(1);
            self.common.counters.retransmitted += 1;
            self.prr_sent(range.len());
            self.paced_sent(range.len() as usize);
            self.undo_resent(range, self.timestamp());
            let now_us = self.common.now_us;
            let scoreboard = self.common.scoreboards.get_mut(self.hot.scoreboard);
            scoreboard.resent(index, now_us);
            if self.is_modelled() {
                self.model_sent(range.len() as usize);
            }
        }
        outcome
    }

    /// Retransmits the head of the missing data: see [`Session::probes_repair`].
    fn send_repair_probe(&mut self, send: &mut Send<'_>) -> Outcome {
        let mss = u32::from(self.hot.mss);
        let scoreboard = self.common.scoreboards.get_mut(self.hot.scoreboard);
        let Some(index) = scoreboard.first_missing() else {
            return Outcome::Done;
        };
        let start = scoreboard.records[index].range.start;
        if scoreboard.records[index].range.len() > mss {
            scoreboard.cut(start.wrapping_add(mss));
        }
        match self.send_again(index, send) {
            Outcome::Done => {}
            other => return other,
        }
        self.cold.rack.repair_probes += 1;
        self.common.counters.tail_probes += 1;
        self.arm_retransmission();
        Outcome::Done
    }

    /// RFC 8985 section 7.3: new data if there is some, else the last segment again.
    fn send_tail_probe(&mut self, send: &mut Send<'_>) -> Outcome {
        if self.probes_repair() {
            return self.send_repair_probe(send);
        }
        let unsent = self.record_left(self.unsent());
        let window = self.window_left();
        if unsent > 0 && window > 0 {
            // New data is better than a retransmission: it shows the loss of the tail as well, and
            // is not wasted if nothing was lost.
            let len = unsent.min(window).min(usize::from(self.hot.mss));
            match self.send_data(len, send) {
                Outcome::Done => {}
                other => return other,
            }
            self.cold.rack.probe = Some((self.hot.snd_nxt, false));
        } else {
            let mss = u32::from(self.hot.mss);
            let scoreboard = self.common.scoreboards.get_mut(self.hot.scoreboard);
            let Some(last) = scoreboard.records.back().copied() else {
                return Outcome::Done;
            };
            if last.range.len() > mss {
                scoreboard.cut(last.range.end.wrapping_sub(mss));
            }
            // The last segment, not the first missing one: its SACK shows every hole before it.
            let index = scoreboard.records.len() - 1;
            match self.send_again(index, send) {
                Outcome::Done => {}
                other => return other,
            }
            self.cold.rack.probe = Some((self.hot.snd_nxt, true));
        }
        self.common.counters.tail_probes += 1;
        self.arm_retransmission();
        Outcome::Done
    }

    /// Bytes of the ring that were never sent.
    #[inline]
    pub(crate) fn unsent(&self) -> usize {
        let fin = u32::from(self.hot.has(Flags::FIN_SENT));
        let flying = self.hot.in_flight().saturating_sub(fin);
        self.hot.tx.len().saturating_sub(flying as usize)
    }

    /// The part of `unsent` bytes that one segment may carry: up to a record's end.
    #[inline]
    fn record_left(&self, unsent: usize) -> usize {
        if self.path.tail.has(Tail::MARKED) {
            self.record_bytes(unsent)
        } else {
            unsent
        }
    }

    /// True if `len` bytes up to `end` are sent with PSH; `last`: they are the last in the buffer.
    ///
    /// RFC 9293 section 3.9.1.2 (MUST-61) requires it for the last data in the buffer, unless the
    /// application announced more. Super-segments always have it, as Linux's do: a peer's NIC that
    /// merges segments then delivers them at once.
    #[inline]
    fn pushes(&self, end: u32, len: usize, last: bool) -> bool {
        len > usize::from(self.hot.mss)
            || last && !self.path.tail.has(Tail::UNPUSHED)
            || self.path.tail.has(Tail::MARKED) && self.is_record_end(end)
    }

    /// True if no whole segment fits into the peer's window after the next `len` bytes: the peer
    /// gets no more until its application has read, for which it may wait for PSH.
    #[inline]
    fn fills_window(&self, len: usize) -> bool {
        self.window_left() < len + usize::from(self.hot.mss)
    }

    /// Unused part of the peer's window, in bytes.
    #[inline]
    pub(crate) fn window_left(&self) -> usize {
        let edge = self.hot.snd_una.wrapping_add(self.hot.snd_wnd);
        // Negative if the peer shrank its window (RFC 9293 section 3.8.6).
        let left = edge.wrapping_sub(self.hot.snd_nxt) as i32;
        left.max(0) as usize
    }

    /// Payload bytes of new data that one frame may carry.
    #[inline]
    fn chunk_bytes(&self) -> usize {
        let most = usize::from(self.path.super_bytes);
        if most <= usize::from(self.hot.mss) {
            return usize::from(self.hot.mss);
        }
        // Half a window at most: the acknowledgment of the first half arrives while the second is
        // sent.
        let half = (self.hot.cwnd as usize / 2).min(self.window_half());
        self.piece_bytes(half.min(self.burst_bytes()))
    }

    /// Payload bytes of a frame with at most `most` of them: whole segments only, otherwise each
    /// super-segment would end with a small packet.
    #[inline]
    fn piece_bytes(&self, most: usize) -> usize {
        let mss = usize::from(self.hot.mss);
        let most = most.min(usize::from(self.path.super_bytes));
        if most > mss { most - most % mss } else { mss }
    }

    /// Half of the largest window that the peer has advertised, if that is less than a
    /// super-segment.
    #[inline]
    fn window_half(&self) -> usize {
        if self.hot.snd_wnd as usize / 2 >= usize::from(self.path.super_bytes) {
            return usize::MAX;
        }
        self.cold.window_max as usize / 2
    }

    /// Bytes of one super-segment at this session's rate: the amount sent in a millisecond at twice
    /// the rate, and on short paths more, as in Linux (`tcp_tso_autosize`). A burst of 64 KiB on a
    /// slow path fills a queue shared with other flows, and a loss means retransmitting all of it.
    #[inline]
    fn burst_bytes(&self) -> usize {
        let srtt_us = self.hot.srtt_us;
        if srtt_us < SHORT_ROUND_US {
            return usize::MAX;
        }
        let rated = u64::from(self.hot.cwnd) * 2_000_000 / 1_024 / u64::from(srtt_us);
        let more = 0xffff_usize
            .checked_shr(srtt_us / SHORT_ROUND_US)
            .unwrap_or(0);
        let least = usize::from(self.common.config.burst_segments_min) * usize::from(self.hot.mss);
        (rated as usize + more).max(least)
    }

    /// Sends new data, and the FIN after it.
    fn send_new(&mut self, send: &mut Send<'_>) -> Outcome {
        if self.hot.timer() == Timer::Held {
            // RFC 3168 section 6.1.2: the timer makes the session ready again.
            return Outcome::Done;
        }
        let mut turn = TURN_BYTES;
        self.restart_after_idle();
        loop {
            let unsent = self.unsent();
            let fin = self.hot.has(Flags::FIN_QUEUED) && !self.hot.has(Flags::FIN_SENT);
            if unsent == 0 {
                if fin {
                    // All data was sent before the application closed: the FIN is sent alone.
                    return self.send_data(0, send);
                }
                if self.is_modelled() {
                    self.model_limited();
                }
                // The application is the limit: RFC 7661.
                if self.hot.has(Flags::CWND_LIMITED)
                    && self.pipe() < self.hot.cwnd / 2
                    && !self.slow_start_is_used()
                {
                    self.hot.clear(Flags::CWND_LIMITED);
                }
                return Outcome::Done;
            }
            if turn == 0 {
                return Outcome::More;
            }
            let mss = usize::from(self.hot.mss);
            let window = self.window_left();
            let record = self.record_left(unsent);
            // A segment that ends a record before further data is exempt from Nagle: it will not
            // grow.
            let complete = record < unsent;
            let mut len = record.min(window);
            if len > mss {
                len = len.min(self.chunk_bytes());
            }
            if self.may_say_cwr() {
                len = len.min(mss);
            }
            if len >= mss {
                // A partial segment after the last full one is sent with it, if it may be sent at
                // all.
                let rest = len % mss;
                if len != record || !complete && !self.may_send_small(rest, rest, fin) {
                    len -= rest;
                }
            } else if len > 0 && self.hot.has(Flags::PROBE_WINDOW) {
                // RFC 9293 section 3.8.6.2.1 (4): a window that stays small is used eventually, and
                // the data probes it.
                self.hot.clear(Flags::PROBE_WINDOW);
            } else if (!complete || len < record) && !self.may_send_small(len, record, fin) {
                // With data in flight an acknowledgment will update the window; otherwise only a
                // probe does. A cork holds data back no longer than that either: tcp(7).
                if self.hot.in_flight() == 0 && self.hot.timer() == Timer::None {
                    self.start_persist();
                }
                if self.is_modelled() {
                    self.model_limited();
                }
                return Outcome::Done;
            }
            // RFC 6675 section 4: data that SACK reports as delivered, or that is lost, makes room.
            let pipe = self.pipe();
            let room = self.hot.cwnd.saturating_sub(pipe) as usize;
            // An empty pipe always permits one segment, otherwise a window below the MSS would
            // stall the session.
            if room < len.min(mss) && pipe > 0 {
                self.hot.set(Flags::CWND_LIMITED);
                return Outcome::Done;
            }
            if room < len {
                self.hot.set(Flags::CWND_LIMITED);
                len = (room - room % mss).max(mss.min(len));
            }
            if self.hot.scoreboard != NONE
                && self
                    .common
                    .scoreboards
                    .get(self.hot.scoreboard)
                    .records
                    .len()
                    >= RECORDS_MAX
            {
                // The scoreboard is full: the next acknowledgment makes room, and makes the session
                // ready.
                return Outcome::Done;
            }
            len = self.paced(len);
            if len == 0 {
                return Outcome::Done;
            }
            match self.send_data(len, send) {
                Outcome::Done => turn = turn.saturating_sub(len),
                other => return other,
            }
        }
    }

    /// Nagle's algorithm and silly-window avoidance: true if a partial segment of `len` bytes may
    /// be sent.
    fn may_send_small(&self, len: usize, unsent: usize, fin: bool) -> bool {
        if len == 0 {
            return false;
        }
        if len < unsent {
            // RFC 9293 section 3.8.6.2.1 (3): a window of less than a segment, if it is at least
            // half of the largest one.
            return len >= self.cold.window_max as usize / 2;
        }
        if fin || self.path.tail.has(Tail::FLUSH) {
            return true;
        }
        if self.hot.has(Flags::CORKED) || self.path.tail.has(Tail::HELD) {
            return false;
        }
        self.hot.has(Flags::NO_DELAY) || !self.small_in_flight()
    }

    /// True while a partial segment is unacknowledged: no other partial segment is sent meanwhile.
    /// RFC 9293 section 3.7.4 applies this to any segment; with Minshall's change ("A Proposed
    /// Modification to Nagle's Algorithm", 1999, section 3), which Linux also has, the rest of a
    /// long write does not wait for the peer's delayed acknowledgment.
    #[inline]
    fn small_in_flight(&self) -> bool {
        let end = self.path.small_end;
        before(self.hot.snd_una, end) && before_or_at(end, self.hot.snd_nxt)
    }

    /// RFC 5681 section 4.1: the window is reset after a pause of a retransmission timeout.
    fn restart_after_idle(&mut self) {
        // A window no larger than the initial one would not shrink, whatever the pause.
        if self.hot.in_flight() != 0
            || self.hot.cwnd <= 10 * u32::from(self.hot.mss)
            || !self.common.config.restart_after_idle
            || self.is_modelled()
        {
            return;
        }
        let idle_us = self.common.now_us.wrapping_sub(self.cold.last_sent_us);
        if idle_us > self.timeout_us() {
            let first = crate::congestion::initial_window(u32::from(self.hot.mss));
            self.hot.cwnd = self.hot.cwnd.min(first);
            self.cold.congestion.on_restart(self.common.now_us);
        }
    }

    /// Sends the next `len` bytes, with the FIN if they are the last.
    #[inline]
    fn send_data(&mut self, len: usize, send: &mut Send<'_>) -> Outcome {
        let unsent = self.unsent();
        let last = len == unsent;
        let end_of_data = self.hot.snd_nxt.wrapping_add(len as u32);
        let fin = last && self.hot.has(Flags::FIN_QUEUED) && !self.hot.has(Flags::FIN_SENT);
        let load = Load {
            sequence: self.hot.snd_nxt,
            offset: self.hot.tx.len() - unsent,
            len,
            flags: ACK
                | if fin { FIN } else { 0 }
                | if len > 0 && (self.fills_window(len) || self.pushes(end_of_data, len, last)) {
                    PSH
                } else {
                    0
                },
        };
        let owed = self.hot.has(Flags::ACK_LATER | Flags::ACK_NOW);
        let outcome = self.emit(load, &mut Options::default(), send);
        if outcome != Outcome::Done {
            return outcome;
        }
        if owed {
            // Data carried it: from now on acknowledgments may wait for data.
            self.hot.set(Flags::INTERACTIVE);
            self.hot.clear(Flags::QUICK);
        }
        let from = self.hot.snd_nxt;
        let end = from.wrapping_add(len as u32 + u32::from(fin));
        let now_us = self.common.now_us;
        // One segment in flight needs no scoreboard: request and reply never allocate one.
        if self.hot.in_flight() == 0 && self.hot.scoreboard == NONE {
            self.hot.sent_us = now_us;
        } else {
            self.scoreboard().push(Range { start: from, end }, now_us);
        }
        self.hot.snd_nxt = end;
        // Only a session with a model of the path keeps records of the delivery.
        if self.is_modelled() {
            self.model_sent(len);
        }
        let flight = self.hot.in_flight();
        if flight > self.hot.cwnd / 2 {
            self.note_flight(flight);
        }
        if self.path.tail != Tail::EMPTY {
            self.path.tail.clear(Tail::FLUSH);
            if self.path.tail.has(Tail::MARKED) {
                self.marks_sent();
            }
        }
        let mss = usize::from(self.hot.mss);
        if len < mss || len > mss && !len.is_multiple_of(mss) {
            self.path.small_end = end;
        }
        self.prr_sent(len as u32);
        self.paced_sent(len);
        if fin {
            self.hot.set(Flags::FIN_SENT);
        }
        // Smaller windows are not reset after a pause, so they need no time of the last sending.
        if self.hot.cwnd > 10 * u32::from(self.hot.mss) {
            self.cold.last_sent_us = now_us;
        }
        self.arm_after_sending();
        Outcome::Done
    }

    /// Slow start may double a window of which more than half is used, even if nothing was held
    /// back: the acknowledged data proves that the path takes as much (RFC 7661 section 4.1, and
    /// Linux). The maximum in flight counts for a whole window.
    fn note_flight(&mut self, flight: u32) {
        if before_or_at(self.cold.flight_end, self.hot.snd_una) || flight > self.cold.flight_max {
            self.cold.flight_max = flight;
            self.cold.flight_end = self.hot.snd_nxt;
        }
        if self.hot.cwnd < self.cold.congestion.threshold() {
            self.hot.set(Flags::CWND_LIMITED);
        }
    }

    /// True in slow start while more than half of the window is in use.
    fn slow_start_is_used(&self) -> bool {
        before(self.hot.snd_una, self.cold.flight_end)
            && self.hot.cwnd < self.cold.congestion.threshold()
            && self.hot.cwnd < self.cold.flight_max.saturating_mul(2)
    }

    /// Sends a segment without data if one is owed: an acknowledgment or a probe.
    fn send_bare(&mut self, send: &mut Send<'_>) -> Outcome {
        // Read before anything is sent, which clears it.
        let more = self.hot.dup_acks_owed().saturating_sub(1);
        let mut load = Load {
            sequence: self.hot.snd_nxt,
            flags: ACK,
            ..Load::default()
        };
        if self.hot.has(Flags::PROBE_WINDOW | Flags::PROBE_ALIVE) {
            // RFC 9293 sections 3.8.6.1 and 3.8.4: one before the number that the peer expects; it
            // replies.
            load.sequence = self.hot.snd_una.wrapping_sub(1);
        } else if !self.hot.has(Flags::ACK_NOW) {
            // The timer runs from the first unacknowledged segment; later ones do not restart it.
            if self.hot.has(Flags::ACK_LATER) && self.hot.ack_at == 0 {
                self.hot.ack_at = self.common.tick_in_us(self.common.config.delayed_ack_us);
                self.arm_wheel();
            }
            return Outcome::Done;
        } else {
            let outcome = self.acknowledge_half(load, send);
            if outcome != Outcome::Done {
                return outcome;
            }
        }
        let outcome = self.emit(load, &mut Options::default(), send);
        if outcome == Outcome::Done {
            self.hot.clear(Flags::PROBE_WINDOW | Flags::PROBE_ALIVE);
            for _ in 0..more {
                // If the NIC has no room, the one sent before suffices.
                self.emit(load, &mut Options::default(), send);
            }
        }
        outcome
    }

    /// Sends an acknowledgment for half of a batch before the one for all. RFC 5681 section 4.2
    /// requires one for two segments; a batch is answered at its end, and if that were the only
    /// acknowledgment for a window, its loss would stop the sender until its timeout.
    fn acknowledge_half(&mut self, load: Load, send: &mut Send<'_>) -> Outcome {
        let (all, bytes) = (self.hot.rcv_nxt, self.hot.unacked_bytes);
        if !self.hot.has(Flags::HALF_ACK_OWED) || bytes >= HALF_ACK_BYTES_MAX {
            return Outcome::Done;
        }
        let mss = u32::from(self.hot.mss);
        // The state when half had been received; the window's edge stays the same.
        self.hot.rcv_nxt = all.wrapping_sub((bytes / 2).next_multiple_of(mss));
        let outcome = self.emit(load, &mut Options::default(), send);
        self.hot.rcv_nxt = all;
        if outcome == Outcome::Done {
            self.hot.set(Flags::ACK_NOW);
        }
        outcome
    }

    /// Our timestamp clock: RFC 7323 section 5.4.
    #[inline]
    pub(crate) fn timestamp(&self) -> u32 {
        self.common.now_ms.wrapping_add(self.hot.ts_offset)
    }

    /// Builds the header and passes the frame on.
    #[inline]
    fn emit(&mut self, load: Load, options: &mut Options, send: &mut Send<'_>) -> Outcome {
        let hop = self.common.neighbors.hop(
            self.path.neighbor,
            self.path.neighbor_generation,
            self.number,
            self.common.now_ns,
        );
        let mac = match hop {
            Hop::Known(mac) => mac,
            Hop::Waiting => {
                self.hot.set(Flags::UNRESOLVED);
                return Outcome::Unresolved;
            }
            Hop::Gone => {
                let remote = self.path.remote;
                // The entry was reused for another neighbour: the table was full.
                let Some((neighbor, generation)) = self.common.find_hop(&remote) else {
                    return Outcome::Unresolved;
                };
                self.path.neighbor = neighbor;
                self.path.neighbor_generation = generation;
                self.hot.set(Flags::UNRESOLVED);
                return Outcome::More;
            }
        };
        let syn = load.flags & SYN != 0;
        if !syn {
            if self.hot.has(Flags::TIMESTAMPS) {
                options.timestamps = Some((self.timestamp(), self.hot.ts_recent));
            }
            // A full segment has no room for blocks; a pure acknowledgment was sent before it.
            if load.len == 0 {
                self.report(options);
            }
        }
        let setup = if syn { self.ecn_setup() } else { 0 };
        let window = if syn {
            // RFC 7323 section 2.2: a SYN's window is never scaled.
            self.hot.rcv_edge.wrapping_sub(self.hot.rcv_nxt).min(0xffff) as u16
        } else {
            self.window_field()
        };
        let mut option_bytes = [0; OPTIONS_BYTES_MAX];
        let option_len = tcp::write_options(options, &mut option_bytes);
        let tcp_len = tcp::HEADER_BYTES + option_len;
        let path = &*self.path;
        let mut header = [0; HEADER_BYTES_MAX];
        let kind = if path.local.is_v4() {
            ethernet::IPV4
        } else {
            ethernet::IPV6
        };
        header[..ethernet::HEADER_BYTES]
            .copy_from_slice(Ethernet::new(mac, self.common.interface.mac, kind).as_bytes());
        let at = ethernet::HEADER_BYTES
            + ip::write(
                &mut header[ethernet::HEADER_BYTES..],
                &path.local,
                &path.remote,
                ip::TCP,
                self.common.config.hops,
                tcp_len + load.len,
            );
        if path.traffic_class != 0 {
            ip::set_traffic_class(&mut header[ethernet::HEADER_BYTES..at], path.traffic_class);
        }
        // A retransmission begins before `snd_nxt`.
        let fresh = load.len > 0 && load.sequence == self.hot.snd_nxt;
        let bare = accurate::is_bare(load.flags, load.len, options.block_count);
        let (ace, codepoint) = if syn {
            (setup, Codepoint::NotEct)
        } else {
            self.ecn_to_send(fresh, bare)
        };
        if codepoint != Codepoint::NotEct {
            ip::set_codepoint(&mut header[ethernet::HEADER_BYTES..at], codepoint);
        }
        let mut fields = Tcp {
            source: U16::new(path.local_port),
            destination: U16::new(path.remote_port),
            sequence: U32::new(load.sequence),
            acknowledgment: U32::new(if load.flags & ACK != 0 {
                self.hot.rcv_nxt
            } else {
                0
            }),
            offset: (tcp_len / 4) as u8 * 16,
            flags: load.flags,
            window: U16::new(window),
            checksum: [0; 2],
            urgent: U16::new(0),
        };
        fields.set_ace(ace);
        header[at..at + tcp::HEADER_BYTES].copy_from_slice(fields.as_bytes());
        header[at + tcp::HEADER_BYTES..at + tcp_len].copy_from_slice(&option_bytes[..option_len]);
        // The sum begins with the pseudo-header; a NIC that completes checksums adds the rest.
        let payload = self.hot.tx.pieces(&self.common.pool, load.offset, load.len);
        let sum = pseudo(&path.local, &path.remote, ip::TCP).plus_word((tcp_len + load.len) as u16);
        let checksum_at = at + usize::from(tcp::CHECKSUM_OFFSET);
        let checksum = if self.common.interface.completes_checksums {
            header[checksum_at..checksum_at + 2].copy_from_slice(&sum.partial());
            TransmitChecksum::Partial {
                start: at as u16,
                offset: tcp::CHECKSUM_OFFSET,
            }
        } else {
            let mut sum = sum
                .plus(Sum::of(&header[at..at + tcp_len]))
                .plus(Sum::of(payload[0]));
            // After an odd number of bytes, the second piece begins in the middle of a word of the
            // sum.
            sum = if payload[0].len().is_multiple_of(2) {
                sum.plus(Sum::of(payload[1]))
            } else {
                sum.plus_odd(Sum::of(payload[1]))
            };
            header[checksum_at..checksum_at + 2].copy_from_slice(&sum.field());
            TransmitChecksum::Complete
        };
        let mss = self.hot.mss;
        let frame = Outgoing {
            header: &header[..at + tcp_len],
            payload,
            checksum,
            // The NIC cuts a super-segment into segments of this size.
            segment_bytes: (load.len > usize::from(mss))
                .then(|| NonZeroU16::new(mss))
                .flatten(),
        };
        if !send(&frame) {
            return Outcome::Full;
        }
        self.common.counters.segments_sent += 1;
        let hot = &mut *self.hot;
        // RFC 3168 section 6.1.2: CWR is sent once for each reduction.
        if fields.flags & CWR != 0 {
            hot.clear_ecn(EcnFlags::CWR_OWED);
        }
        if self.path.ecn & Path::ACCURATE != 0 {
            self.marks_told(bare);
        }
        let hot = &mut *self.hot;
        if load.flags & ACK != 0 {
            hot.clear(Flags::ACK_NOW | Flags::ACK_LATER | Flags::HALF_ACK_OWED);
            hot.clear_dup_acks();
            // Any segment with ACK acknowledges everything received so far.
            hot.ack_at = 0;
            hot.unacked_bytes = 0;
            hot.rcv_acked = hot.rcv_nxt;
        }
        Outcome::Done
    }

    /// Ends the session with a reset to the peer: RFC 9293 section 3.10.5.
    pub(crate) fn reset(&mut self, error: Option<crate::error::SessionError>) {
        // RFC 9293 section 3.10.5: none in SYN-SENT, where there is no number for it, and none in
        // TIME-WAIT, where the peer has finished.
        let peer_knows = self.hot.state().is_synchronized() && self.hot.state() != State::TimeWait
            || self.hot.state() == State::SynReceived;
        if peer_knows {
            let ends = self.path.ends();
            let mut options = Options::default();
            if self.hot.has(Flags::TIMESTAMPS) {
                options.timestamps = Some((self.timestamp(), self.hot.ts_recent));
            }
            self.common.send_reset_with(
                &ends,
                (self.path.neighbor, self.path.neighbor_generation),
                self.hot.snd_nxt,
                Some(self.hot.rcv_nxt),
                &options,
            );
        }
        self.finish(error);
    }
}
