//! Retransmissions: lost data, and probes for a loss that nothing behind it shows.
//!
//! Source: RFC 6675 section 5, RFC 8985 section 7.3.

use super::{Load, Outcome, Output, TURN_BYTES};
use crate::buffer::NONE;
use crate::state::flags::Flags;
use crate::tcp::rack::ProbeData;
use crate::wire::tcp::{ACK, FIN, Options, PSH};
use sidecore_bare::width::ToUsize;

impl Output<'_, '_> {
    /// True if lost data or a probe is to be sent.
    #[inline]
    pub(super) fn has_losses(&self) -> bool {
        self.session.hot.scoreboard != NONE
            && (self.session.lost_bytes() > 0 || self.session.hot.has(Flags::PROBE_TAIL))
    }

    /// Retransmits lost segments, as far as the window allows, and sends a tail-loss probe.
    pub(super) fn send_lost(&mut self) -> Outcome {
        if self.session.hot.has(Flags::PROBE_TAIL) {
            match self.send_tail_probe() {
                Outcome::Done => self.session.hot.clear(Flags::PROBE_TAIL),
                other => return other,
            }
        }
        let mut turn = TURN_BYTES;
        loop {
            let board = self.session.hot.scoreboard;
            let scoreboard = self.session.common.scoreboards.get_mut(board);
            let Some(index) = scoreboard.first_lost() else {
                return Outcome::Done;
            };
            let mss = u32::from(self.session.hot.mss);
            let (cwnd, pipe) = (self.session.hot.send.cwnd, self.session.pipe());
            // RFC 6675 section 5 step 4.3, RFC 5681 section 3.2 step 3: the acknowledgment that
            // shows a loss permits one segment regardless of the window; the others (C) need room
            // for one whole segment, or nothing in flight.
            let owed = self.session.hot.has(Flags::RETRANSMIT_OWED);
            if !owed && pipe > 0 && cwnd < pipe.saturating_add(mss) {
                return Outcome::Done;
            }
            if turn == 0 {
                return Outcome::More;
            }
            // One header and one call for as much as the window allows: the NIC cuts it.
            let room = (cwnd.saturating_sub(pipe) / mss).max(1) * mss;
            let mut chunk = self.piece_bytes(usize::MAX);
            if self.session.hot.ecn.may_carry_cwr() {
                chunk = chunk.min(mss.to_usize());
            }
            if !owed {
                chunk = self.paced(chunk);
                if chunk == 0 {
                    return Outcome::Done;
                }
            }
            let scoreboard = self.session.common.scoreboards.get_mut(board);
            let record = scoreboard.records[index];
            let limit = record.range.start.after(room.to_usize().min(chunk));
            if limit < record.range.end {
                // The rest stays marked as lost, and is sent when the window allows it.
                scoreboard.cut(limit);
            }
            let len = scoreboard.records[index].range.len();
            match self.send_again(index) {
                Outcome::Done => {}
                other => return other,
            }
            self.session.hot.clear(Flags::RETRANSMIT_OWED);
            turn = turn.saturating_sub(len.to_usize());
            self.arm_after_sending();
        }
    }

    /// Retransmits a record of the scoreboard, and updates the state.
    fn send_again(&mut self, index: usize) -> Outcome {
        let session = &mut self.session;
        let board = session.hot.scoreboard;
        let range = session.common.scoreboards.get(board).records[index].range;
        let una = session.hot.send.una;
        let data_end = una.after(session.hot.tx.len());
        let end = range.end.earlier(data_end);
        // The FIN has a sequence number, and no byte in the ring.
        let len = end.distance(range.start).max(0).cast_unsigned().to_usize();
        let fin = data_end < range.end && session.hot.has(Flags::FIN_SENT);
        let pushes = len > 0 && self.pushes(end, len, end == data_end);
        let load = Load {
            sequence: range.start,
            offset: (range.start - una).to_usize(),
            len,
            flags: ACK | if fin { FIN } else { 0 } | if pushes { PSH } else { 0 },
        };
        let outcome = self.emit(load, &mut Options::default());
        // Changed only after the NIC has taken the segment.
        if outcome != Outcome::Done {
            return outcome;
        }
        let session = &mut self.session;
        session.cold.resent = session.cold.resent.saturating_add(1);
        session.common.counters.retransmitted += 1;
        if session.hot.has(Flags::RECOVERY) {
            session.cold.prr.on_sent(range.len());
            let stamp = session.hot.timestamps.at(session.common.now_ms);
            session.cold.undo.note_resent(range, stamp);
        }
        self.note_paced(range.len().to_usize());
        let session = &mut self.session;
        let now_us = session.common.now_us;
        let scoreboard = session.common.scoreboards.get_mut(board);
        scoreboard.resent(index, now_us);
        if session.path.is_modelled() {
            self.tell_model_of_sending(range.len());
        }
        Outcome::Done
    }

    /// Retransmits the head of the missing data: see [`Session::probes_recovery`].
    ///
    /// [`Session::probes_recovery`]: crate::tcp::Session::probes_recovery
    fn send_recovery_probe(&mut self) -> Outcome {
        let mss = u32::from(self.session.hot.mss);
        let board = self.session.hot.scoreboard;
        let scoreboard = self.session.common.scoreboards.get_mut(board);
        let Some(index) = scoreboard.first_missing() else {
            return Outcome::Done;
        };
        let range = scoreboard.records[index].range;
        if range.len() > mss {
            scoreboard.cut(range.start + mss);
        }
        match self.send_again(index) {
            Outcome::Done => {}
            other => return other,
        }
        self.session.cold.rack.recovery_probe_sent();
        self.probe_sent();
        Outcome::Done
    }

    /// RFC 8985 section 7.3: new data if there is some, else the last segment again.
    fn send_tail_probe(&mut self) -> Outcome {
        if self.session.probes_recovery() {
            return self.send_recovery_probe();
        }
        let unsent = self.record_left(self.session.hot.unsent());
        let window = self.session.hot.send.left();
        let sent = if unsent > 0 && window > 0 {
            // New data is better than a retransmission: it shows the loss of the tail as well, and
            // is not wasted if nothing was lost.
            let mss = usize::from(self.session.hot.mss);
            match self.send_data(unsent.min(window).min(mss)) {
                Outcome::Done => {}
                other => return other,
            }
            ProbeData::New
        } else {
            let mss = u32::from(self.session.hot.mss);
            let board = self.session.hot.scoreboard;
            let scoreboard = self.session.common.scoreboards.get_mut(board);
            let Some(last) = scoreboard.records.back().copied() else {
                return Outcome::Done;
            };
            if last.range.len() > mss {
                scoreboard.cut(last.range.end - mss);
            }
            // The last segment, not the first missing one: its SACK shows every hole before it.
            let index = scoreboard.records.len() - 1;
            match self.send_again(index) {
                Outcome::Done => {}
                other => return other,
            }
            ProbeData::Retransmitted
        };
        let nxt = self.session.hot.send.nxt;
        self.session.cold.rack.probe_sent(nxt, sent);
        self.probe_sent();
        Outcome::Done
    }

    fn probe_sent(&mut self) {
        self.session.common.counters.tail_probes += 1;
        self.session.arm_retransmission();
    }
}
