//! What goes out: repairs first, then new data, then a bare acknowledgment.
//!
//! A frame is a header built here and up to two pieces of the send ring where they lie. What the NIC
//! cuts by itself goes out as one super-segment. Source: RFC 9293 sections 3.7.4 (Nagle), 3.8.6.2.1
//! (silly windows) and 3.8.2, RFC 6675 section 5, RFC 8985 section 7.3, RFC 9293 section 3.10.

use super::Session;
use super::board::RECORDS_MAX;
use super::congestion::Control;
use super::sequence::{Range, before, before_or_at, earlier};
use crate::buffer::slab::NONE;
use crate::checksum::{Sum, pseudo};
use crate::nic::{Outgoing, TransmitChecksum};
use crate::stack::neighbors::Hop;
use crate::state::hot::{State, Timer, flag};
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::ip;
use crate::wire::tcp::{self, ACK, FIN, OPTIONS_BYTES_MAX, Options, PSH, SYN, Tcp};
use std::num::NonZeroU16;
use zerocopy::IntoBytes;
use zerocopy::network_endian::{U16, U32};

/// Ethernet, IPv6, TCP and its options.
pub(crate) const HEADER_BYTES_MAX: usize =
    ethernet::HEADER_BYTES + ip::V6_BYTES + tcp::HEADER_BYTES + OPTIONS_BYTES_MAX;
/// Behind more bytes than these the next batch's answer comes before any timer of the peer's.
const HALVED_BYTES_MAX: u32 = 48 << 10;
/// Payload bytes that one session sends before others have their turn.
const TURN_BYTES: usize = 256 << 10;

/// Where frames go; false when there is no room.
pub(crate) type Send<'f> = dyn FnMut(&Outgoing<'_>) -> bool + 'f;

/// What became of a frame, or of a session's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Nothing is left to do.
    Done,
    /// There is more, when others have had their turn.
    More,
    /// The NIC has no room.
    Full,
    /// The next hop's hardware address is not known yet.
    Unresolved,
}

/// What a segment carries of the send ring.
#[derive(Debug, Clone, Copy, Default)]
struct Load {
    sequence: u32,
    /// Where in the ring.
    offset: usize,
    len: usize,
    flags: u8,
}

impl Session<'_> {
    /// Sends what may be sent now.
    pub(crate) fn output(&mut self, send: &mut Send<'_>) -> Outcome {
        if self.hot.has(flag::SEND_SYN) {
            return self.send_syn(send);
        }
        if self.hot.state.sends() {
            if self.hot.board != NONE
                && (self.common.boards.get(self.hot.board).lost_bytes > 0
                    || self.hot.has(flag::PROBE_TAIL))
            {
                match self.send_repairs(send) {
                    Outcome::Done => {}
                    other => return other,
                }
            }
            if self.hot.tx.len() > 0 || self.hot.has(flag::FIN_QUEUED) {
                match self.send_new(send) {
                    Outcome::Done => {}
                    other => return other,
                }
            }
        }
        self.send_bare(send)
    }

    /// Our SYN, or SYN-ACK.
    fn send_syn(&mut self, send: &mut Send<'_>) -> Outcome {
        let answer = self.hot.state == State::SYN_RECEIVED;
        let first = self.hot.state == State::SYN_SENT;
        if !answer && !first {
            self.hot.clear(flag::SEND_SYN);
            return Outcome::Done;
        }
        let config = &self.common.config;
        let wants = |flag| first || self.hot.has(flag);
        let mut options = Options {
            mss: Some(self.largest_mss()),
            sack_permitted: config.sack && wants(flag::SACK),
            scale: self.cold.scaling.then_some(self.hot.rcv_scale),
            ..Options::default()
        };
        if config.timestamps && wants(flag::TIMESTAMPS) {
            options.timestamps = Some((self.timestamp(), self.hot.ts_recent));
        }
        let load = Load {
            sequence: self.cold.iss,
            flags: if answer { SYN | ACK } else { SYN },
            ..Load::default()
        };
        let outcome = self.emit(load, &mut options, send);
        if outcome == Outcome::Done {
            self.hot.clear(flag::SEND_SYN);
            self.hot.sent_us = self.common.now_us;
            self.hot.timer = Timer::RETRANSMISSION;
            self.hot.timer_at = self.common.tick_in_us(self.timeout_us());
            self.arm_wheel();
        }
        outcome
    }

    /// Lost segments, as far as the window allows, and a tail-loss probe.
    fn send_repairs(&mut self, send: &mut Send<'_>) -> Outcome {
        if self.hot.has(flag::PROBE_TAIL) {
            match self.send_tail_probe(send) {
                Outcome::Done => self.hot.clear(flag::PROBE_TAIL),
                other => return other,
            }
        }
        let mut turn = TURN_BYTES;
        loop {
            let board = self.common.boards.get_mut(self.hot.board);
            let Some(index) = board.first_lost() else {
                return Outcome::Done;
            };
            let mss = u32::from(self.hot.mss);
            let pipe = self.pipe();
            // RFC 6675 section 5 step 4.3, RFC 5681 section 3.2 step 3: what tells of a loss lets one
            // segment out whatever the window is; the others (C) need one whole segment's room, or
            // nothing in flight.
            let owed = self.hot.has(flag::REPAIR_OWED);
            if !owed && pipe > 0 && self.hot.cwnd < pipe.saturating_add(mss) {
                return Outcome::Done;
            }
            if turn == 0 {
                return Outcome::More;
            }
            let room = (self.hot.cwnd.saturating_sub(pipe) / mss).max(1) * mss;
            let chunk = self.chunk_bytes().max(mss as usize) as u32;
            let board = self.common.boards.get_mut(self.hot.board);
            let record = board.records[index];
            let limit = record.range.start.wrapping_add(room.min(chunk));
            if before(limit, record.range.end) {
                board.cut(limit);
            }
            let len = board.records[index].range.len();
            match self.send_again(index, send) {
                Outcome::Done => {}
                other => return other,
            }
            self.hot.clear(flag::REPAIR_OWED);
            turn = turn.saturating_sub(len as usize);
            self.arm_after_sending();
        }
    }

    /// RFC 6298 section 5.1 leaves a timer that runs alone; RFC 8985 section 7.2 has a probe's, where
    /// one makes sense, start again with each segment.
    #[inline]
    fn arm_after_sending(&mut self) {
        let start = match self.hot.timer {
            Timer::NONE | Timer::PROBE | Timer::PERSIST => true,
            Timer::RETRANSMISSION => self.probe_after_us().is_some(),
            _ => false,
        };
        if start {
            self.arm_retransmission();
        }
    }

    /// A record of the board once more, and what follows from that.
    fn send_again(&mut self, index: usize, send: &mut Send<'_>) -> Outcome {
        let range = self.common.boards.get(self.hot.board).records[index].range;
        let data_end = self.hot.snd_una.wrapping_add(self.hot.tx.len() as u32);
        let end = earlier(range.end, data_end);
        let len = end.wrapping_sub(range.start) as i32;
        let fin = before(data_end, range.end) && self.hot.has(flag::FIN_SENT);
        let load = Load {
            sequence: range.start,
            offset: range.start.wrapping_sub(self.hot.snd_una) as usize,
            len: len.max(0) as usize,
            // RFC 9293 section 3.9.1.2 (MUST-61): on what is last in the buffer.
            flags: ACK
                | if fin { FIN } else { 0 }
                | if len > 0 && end == data_end { PSH } else { 0 },
        };
        let outcome = self.emit(load, &mut Options::default(), send);
        if outcome == Outcome::Done {
            self.cold.resent = self.cold.resent.saturating_add(1);
            self.common.counters.retransmitted += 1;
            self.prr_sent(range.len());
            self.undo_resent(range, self.timestamp());
            let now_us = self.common.now_us;
            let board = self.common.boards.get_mut(self.hot.board);
            board.resent(index, now_us);
        }
        outcome
    }

    /// The head of what is missing once more: see [`Session::probes_repair`].
    fn send_repair_probe(&mut self, send: &mut Send<'_>) -> Outcome {
        let mss = u32::from(self.hot.mss);
        let board = self.common.boards.get_mut(self.hot.board);
        let Some(index) = board.first_missing() else {
            return Outcome::Done;
        };
        let start = board.records[index].range.start;
        if board.records[index].range.len() > mss {
            board.cut(start.wrapping_add(mss));
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
        let unsent = self.unsent();
        let window = self.window_left();
        if unsent > 0 && window > 0 {
            let len = unsent.min(window).min(usize::from(self.hot.mss));
            match self.send_data(len, send) {
                Outcome::Done => {}
                other => return other,
            }
            self.cold.rack.probe = Some((self.hot.snd_nxt, false));
        } else {
            let mss = u32::from(self.hot.mss);
            let board = self.common.boards.get_mut(self.hot.board);
            let Some(last) = board.records.back().copied() else {
                return Outcome::Done;
            };
            if last.range.len() > mss {
                board.cut(last.range.end.wrapping_sub(mss));
            }
            let index = board.records.len() - 1;
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
        let fin = u32::from(self.hot.has(flag::FIN_SENT));
        let flying = self.hot.in_flight().saturating_sub(fin);
        self.hot.tx.len().saturating_sub(flying as usize)
    }

    /// What the peer's window leaves.
    #[inline]
    fn window_left(&self) -> usize {
        let edge = self.hot.snd_una.wrapping_add(self.hot.snd_wnd);
        let left = edge.wrapping_sub(self.hot.snd_nxt) as i32;
        left.max(0) as usize
    }

    /// Payload bytes that may go out in one frame.
    #[inline]
    fn chunk_bytes(&self) -> usize {
        let mss = usize::from(self.hot.mss);
        let most = usize::from(self.path.super_bytes);
        if most > mss { most - most % mss } else { mss }
    }

    /// New data, and the FIN behind it.
    fn send_new(&mut self, send: &mut Send<'_>) -> Outcome {
        let mut turn = TURN_BYTES;
        self.restart_after_idle();
        loop {
            let unsent = self.unsent();
            let fin = self.hot.has(flag::FIN_QUEUED) && !self.hot.has(flag::FIN_SENT);
            if unsent == 0 {
                if fin {
                    return self.send_data(0, send);
                }
                // The application is what limits us: RFC 7661.
                if self.hot.has(flag::CWND_LIMITED) && self.pipe() < self.hot.cwnd / 2 {
                    self.hot.clear(flag::CWND_LIMITED);
                }
                return Outcome::Done;
            }
            if turn == 0 {
                return Outcome::More;
            }
            let mss = usize::from(self.hot.mss);
            let window = self.window_left();
            let mut len = unsent.min(window).min(self.chunk_bytes());
            if len >= mss {
                // What is behind the last full segment goes with it where it may go at all.
                let rest = len % mss;
                if len != unsent || !self.may_send_small(rest, rest, fin) {
                    len -= rest;
                }
            } else if !self.may_send_small(len, unsent, fin) {
                if window < unsent && self.hot.in_flight() == 0 && self.hot.timer == Timer::NONE {
                    self.start_persist();
                }
                return Outcome::Done;
            }
            let pipe = self.pipe();
            let room = self.hot.cwnd.saturating_sub(pipe) as usize;
            if room < len.min(mss) && pipe > 0 {
                self.hot.set(flag::CWND_LIMITED);
                return Outcome::Done;
            }
            if room < len {
                self.hot.set(flag::CWND_LIMITED);
                len = (room - room % mss).max(mss.min(len));
            }
            if self.hot.board != NONE
                && self.common.boards.get(self.hot.board).records.len() >= RECORDS_MAX
            {
                return Outcome::Done;
            }
            match self.send_data(len, send) {
                Outcome::Done => turn = turn.saturating_sub(len),
                other => return other,
            }
        }
    }

    /// Whether less than a full segment may go out.
    fn may_send_small(&self, len: usize, unsent: usize, fin: bool) -> bool {
        if len == 0 {
            return false;
        }
        if len < unsent {
            // RFC 9293 section 3.8.6.2.1 (3): a window of less than a segment, if it is half of the
            // largest.
            return len >= self.cold.window_max as usize / 2;
        }
        if fin {
            return true;
        }
        if self.hot.has(flag::CORKED) {
            return false;
        }
        self.hot.has(flag::NO_DELAY) || !self.small_in_flight()
    }

    /// Whether a segment is unacknowledged that was not full: nothing small goes out meanwhile. RFC
    /// 9293 section 3.7.4 says so of any segment; with Minshall's change ("A Proposed Modification to
    /// Nagle's Algorithm", 1999, section 3), which Linux has too, the rest of a long write does not
    /// wait for the peer's delayed acknowledgment.
    #[inline]
    fn small_in_flight(&self) -> bool {
        let end = self.path.small_end;
        before(self.hot.snd_una, end) && before_or_at(end, self.hot.snd_nxt)
    }

    /// RFC 5681 section 4.1: after a pause of a timeout the window starts anew.
    fn restart_after_idle(&mut self) {
        if self.hot.in_flight() != 0 || self.hot.cwnd <= 10 * u32::from(self.hot.mss) {
            return;
        }
        let idle_us = self.common.now_us.wrapping_sub(self.cold.spoke_us);
        if idle_us > self.timeout_us() {
            let first = super::congestion::initial_window(u32::from(self.hot.mss));
            self.hot.cwnd = self.hot.cwnd.min(first);
            self.cold.congestion.on_restart(self.common.now_us);
        }
    }

    /// The next `len` bytes, with the FIN if nothing is left behind them.
    #[inline]
    fn send_data(&mut self, len: usize, send: &mut Send<'_>) -> Outcome {
        let unsent = self.unsent();
        let last = len == unsent;
        let fin = last && self.hot.has(flag::FIN_QUEUED) && !self.hot.has(flag::FIN_SENT);
        let load = Load {
            sequence: self.hot.snd_nxt,
            offset: self.hot.tx.len() - unsent,
            len,
            flags: ACK | if fin { FIN } else { 0 } | if last && len > 0 { PSH } else { 0 },
        };
        let owed = self.hot.has(flag::ACK_LATER | flag::ACK_NOW);
        let outcome = self.emit(load, &mut Options::default(), send);
        if outcome != Outcome::Done {
            return outcome;
        }
        if owed {
            // It rode on data: from now on acknowledgments may wait for that.
            self.hot.set(flag::INTERACTIVE);
            self.hot.clear(flag::QUICK);
        }
        let from = self.hot.snd_nxt;
        let end = from.wrapping_add(len as u32 + u32::from(fin));
        let now_us = self.common.now_us;
        if self.hot.in_flight() == 0 && self.hot.board == NONE {
            self.hot.sent_us = now_us;
        } else {
            self.board().push(Range { start: from, end }, now_us);
        }
        self.hot.snd_nxt = end;
        let mss = usize::from(self.hot.mss);
        if len < mss || len > mss && !len.is_multiple_of(mss) {
            self.path.small_end = end;
        }
        self.prr_sent(len as u32);
        if fin {
            self.hot.set(flag::FIN_SENT);
        }
        if self.hot.cwnd > 10 * u32::from(self.hot.mss) {
            self.cold.spoke_us = now_us;
        }
        self.arm_after_sending();
        Outcome::Done
    }

    /// A segment without data, where one is owed.
    fn send_bare(&mut self, send: &mut Send<'_>) -> Outcome {
        // Read before anything goes out, which forgets it.
        let more = [flag::AHEAD_TWICE, flag::AHEAD_THRICE].map(|flag| self.hot.has(flag));
        let mut load = Load {
            sequence: self.hot.snd_nxt,
            flags: ACK,
            ..Load::default()
        };
        if self.hot.has(flag::PROBE_WINDOW | flag::PROBE_ALIVE) {
            // RFC 9293 sections 3.8.6.1 and 3.8.4: one before what the peer expects; it answers.
            load.sequence = self.hot.snd_una.wrapping_sub(1);
        } else if !self.hot.has(flag::ACK_NOW) {
            if self.hot.has(flag::ACK_LATER) && self.hot.ack_at == 0 {
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
            self.hot.clear(flag::PROBE_WINDOW | flag::PROBE_ALIVE);
            for _ in more.into_iter().filter(|&more| more) {
                // Where the NIC has no room, one is enough.
                self.emit(load, &mut Options::default(), send);
            }
        }
        outcome
    }

    /// Where a few segments came in one batch, an acknowledgment of half of them before that of all. RFC 5681
    /// section 4.2 wants one for two segments; a batch is answered at its end, and if that answer were the
    /// only one for a window, its loss would stop the sender until its timer.
    fn acknowledge_half(&mut self, load: Load, send: &mut Send<'_>) -> Outcome {
        let (all, bytes) = (self.hot.rcv_nxt, self.hot.unacked_bytes);
        if !self.hot.has(flag::HALVED) || bytes >= HALVED_BYTES_MAX {
            return Outcome::Done;
        }
        let mss = u32::from(self.hot.mss);
        // As it was when half had come; the window's edge stays where it is.
        self.hot.rcv_nxt = all.wrapping_sub((bytes / 2).next_multiple_of(mss));
        let outcome = self.emit(load, &mut Options::default(), send);
        self.hot.rcv_nxt = all;
        if outcome == Outcome::Done {
            self.hot.set(flag::ACK_NOW);
        }
        outcome
    }

    /// Our clock as the peer sees it: RFC 7323 section 5.4.
    #[inline]
    pub(crate) fn timestamp(&self) -> u32 {
        self.common.now_ms.wrapping_add(self.hot.ts_offset)
    }

    /// Builds the header and hands the frame over.
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
                self.hot.set(flag::UNRESOLVED);
                return Outcome::Unresolved;
            }
            Hop::Gone => {
                let remote = self.path.remote;
                let Some((neighbor, generation)) = self.common.find_hop(&remote) else {
                    return Outcome::Unresolved;
                };
                self.path.neighbor = neighbor;
                self.path.neighbor_generation = generation;
                self.hot.set(flag::UNRESOLVED);
                return Outcome::More;
            }
        };
        let syn = load.flags & SYN != 0;
        if !syn {
            if self.hot.has(flag::TIMESTAMPS) {
                options.timestamps = Some((self.timestamp(), self.hot.ts_recent));
            }
            // A full segment has no room for blocks; those go out on the bare acknowledgment.
            if load.len == 0 {
                self.report(options);
            }
        }
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
                ip::HOPS,
                tcp_len + load.len,
            );
        let fields = Tcp {
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
        header[at..at + tcp::HEADER_BYTES].copy_from_slice(fields.as_bytes());
        header[at + tcp::HEADER_BYTES..at + tcp_len].copy_from_slice(&option_bytes[..option_len]);
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
            segment_bytes: (load.len > usize::from(mss))
                .then(|| NonZeroU16::new(mss))
                .flatten(),
        };
        if !send(&frame) {
            return Outcome::Full;
        }
        self.common.counters.segments_sent += 1;
        let hot = &mut *self.hot;
        if load.flags & ACK != 0 {
            hot.clear(flag::ACK_NOW | flag::ACK_LATER | flag::AHEAD_ALL | flag::HALVED);
            hot.ack_at = 0;
            hot.unacked_bytes = 0;
            hot.rcv_acked = hot.rcv_nxt;
        }
        Outcome::Done
    }

    /// Ends the session with a reset to the peer: RFC 9293 section 3.10.5.
    pub(crate) fn reset(&mut self, error: Option<crate::error::SessionError>) {
        let told = self.hot.state.is_synchronized() && self.hot.state != State::TIME_WAIT
            || self.hot.state == State::SYN_RECEIVED;
        if told {
            let ends = self.path.ends();
            self.common.send_reset(
                &ends,
                (self.path.neighbor, self.path.neighbor_generation),
                self.hot.snd_nxt,
                Some(self.hot.rcv_nxt),
            );
        }
        self.finish(error);
    }
}
