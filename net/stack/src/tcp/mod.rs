//! TCP: the state machine of one session. RFC 9293, and the documents named in the files below.
//!
//! [`Session`] gives access to a session: its control block and the state shared by all sessions.
//! Its parts own their state: the windows, timestamps and round trips in [`crate::state`],
//! [`ecn::Ecn`], [`rack::Rack`], [`prr::Prr`], [`undo::Undo`], [`pacing::Pacer`], [`model::Model`],
//! [`record_marks::Marks`], [`keepalive::Keepalive`], [`keepalive::UserTimeout`] and
//! [`flight::Flight`]. What happens to a session is one of three: a segment arrives ([`input`]), it
//! may send ([`output`]), its timers expire ([`expiry`]).
//! It never accesses another session; events that concern several (accepting, ending) are put into
//! lists for the stack.
//! Must stay true: no method walks sessions, none allocates per packet.

pub(crate) mod chronograph;
pub(crate) mod cold;
pub(crate) mod cookie;
pub(crate) mod ecn;
pub(crate) mod expiry;
pub(crate) mod flight;
pub(crate) mod input;
pub(crate) mod keepalive;
pub(crate) mod loss_recovery;
pub(crate) mod model;
pub(crate) mod open;
pub(crate) mod output;
pub(crate) mod pacing;
pub(crate) mod prr;
pub(crate) mod rack;
pub(crate) mod record_marks;
pub(crate) mod send_buffer;
pub(crate) mod timers;
pub(crate) mod undo;

use crate::buffer::NONE;
use crate::error::{NetError, SessionError};
use crate::ranges::scoreboard::Scoreboard;
use crate::shared::{Common, EventSource};
use crate::state::flags::Flags;
use crate::state::hot::{Hot, Path, State};
use crate::wire::sequence;
use crate::wire::tcp::Options;
use cold::Cold;
use ecn::Ecn;

/// Access to one session.
pub(crate) struct Session<'s> {
    pub(crate) number: u32,
    pub(crate) hot: &'s mut Hot,
    pub(crate) path: &'s mut Path,
    pub(crate) cold: &'s mut Cold,
    pub(crate) common: &'s mut Common,
}

impl Session<'_> {
    /// Its explicit congestion notification.
    #[inline]
    pub(crate) fn ecn(&mut self) -> Ecn<'_> {
        Ecn {
            state: &mut self.hot.ecn,
            counters: &mut self.cold.ecn,
        }
    }

    /// Puts it into the ready list.
    #[inline]
    pub(crate) fn make_ready(&mut self) {
        // The flag keeps a session from being listed twice; it is cleared when its turn comes.
        if !self.hot.has(Flags::READY) {
            self.hot.set(Flags::READY);
            self.common.ready.push_back(self.number);
        }
    }

    /// Queues an event for the application: the session's readiness changed.
    #[inline]
    pub(crate) fn notify(&mut self) {
        // The listener announces an embryo, and an orphan has no owner to notify.
        if !self.hot.has(Flags::EVENT | Flags::DETACHED | Flags::EMBRYO) {
            self.hot.set(Flags::EVENT);
            self.common
                .pending_events
                .push_back(EventSource::Session(self.number));
        }
    }

    /// Requests an acknowledgment at the end of this round.
    #[inline]
    pub(crate) fn acknowledge_now(&mut self) {
        self.hot.set(Flags::ACK_NOW);
        self.make_ready();
    }

    /// Records an error about the session's packets from a router or the peer's host, and notifies
    /// the application: RFC 9293 sections 3.9.1.8 and 3.9.2.2.
    pub(crate) fn note_soft_error(&mut self, error: SessionError) {
        self.cold.soft_error.note(error, self.hot.send.una);
        self.notify();
    }

    /// Ends the session: nothing is sent or received any more. Data received in order can still be
    /// read, even before an error, as in Linux.
    pub(crate) fn finish(&mut self, error: Option<SessionError>) {
        if self.hot.state() == State::Closed {
            return;
        }
        self.hot.set_state(State::Closed);
        // Nothing is retransmitted; the receive ring stays for an owner that has not read it all.
        self.hot.tx.release(&mut self.common.pool);
        if self.hot.has(Flags::DETACHED | Flags::EMBRYO) {
            self.hot.rx.release(&mut self.common.pool);
        }
        self.drop_scoreboard();
        self.cold.model.forget();
        if self.hot.out_of_order != NONE {
            self.common.out_of_order.give(self.hot.out_of_order);
            self.hot.out_of_order = NONE;
        }
        self.hot.stop_timer();
        self.hot.ack_at = 0;
        self.hot.slow_at = 0;
        // Nothing counts as in flight, so that no timer is started.
        self.hot.send.una = self.hot.send.nxt;
        self.hot
            .clear(Flags::ACK_NOW | Flags::ACK_LATER | Flags::SEND_SYN | Flags::PACED);
        if error.is_some() {
            self.cold.error = error;
            self.hot.set(Flags::FAILED);
        }
        self.notify();
        // The stack owns the table: it removes the session after this step.
        self.common.newly_closed.push(self.number);
    }

    /// Returns the scoreboard to the pool.
    pub(crate) fn drop_scoreboard(&mut self) {
        if self.hot.scoreboard != NONE {
            self.common.scoreboards.give(self.hot.scoreboard);
            self.hot.scoreboard = NONE;
            self.cold.rack.forget_newest();
        }
    }

    /// The scoreboard, created from the only segment in flight if there was none.
    pub(crate) fn scoreboard(&mut self) -> &mut Scoreboard {
        if self.hot.scoreboard == NONE {
            self.hot.scoreboard = self.common.scoreboards.take();
            let scoreboard = self.common.scoreboards.get_mut(self.hot.scoreboard);
            scoreboard.clear(self.hot.send.una);
            if self.hot.send.in_flight() > 0 {
                // The one segment that only the control block recorded until now.
                let range = sequence::Range {
                    start: self.hot.send.una,
                    end: self.hot.send.nxt,
                };
                scoreboard.push(range, self.hot.sent_us);
            }
        }
        self.common.scoreboards.get_mut(self.hot.scoreboard)
    }

    /// Bytes in the network, as far as known: RFC 6675 section 4.
    #[inline]
    pub(crate) fn pipe(&self) -> u32 {
        if self.hot.scoreboard == NONE {
            return self.hot.send.in_flight();
        }
        let scoreboard = self.common.scoreboards.get(self.hot.scoreboard);
        let mut gone = scoreboard.sacked_bytes + scoreboard.lost_bytes;
        if !self.hot.has(Flags::SACK) {
            // RFC 5681 section 3.2: each duplicate stands for a segment that has left the network.
            gone += u32::from(self.hot.duplicates) * u32::from(self.hot.mss);
        }
        self.hot.send.in_flight().saturating_sub(gone)
    }

    /// The window field of a segment that is being sent, or would be; advances the advertised edge.
    #[inline]
    pub(crate) fn window_field(&mut self) -> u16 {
        let mut bytes = self.path.receive_bytes;
        if !self.common.pool.is_ample() {
            // An application that does not read holds no more than its share.
            let share = self.share_bytes();
            bytes = bytes.min(u32::try_from(share).unwrap_or(u32::MAX));
        }
        let (path, hot) = (&*self.path, &mut *self.hot);
        let (held, scale) = (hot.rx.len(), path.scales.receive());
        hot.receive.advertise(bytes, held, scale, hot.mss)
    }

    /// Our timestamp in a segment sent at `sent_us`.
    pub(crate) fn stamp_at(&self, sent_us: u32) -> u32 {
        let (now_us, now_ns) = (self.common.now_us, self.common.now_ns);
        self.hot.timestamps.of_segment(sent_us, now_us, now_ns)
    }

    /// Bytes known to be lost and not retransmitted.
    pub(crate) fn lost_bytes(&self) -> u32 {
        match self.hot.scoreboard {
            NONE => 0,
            board => self.common.scoreboards.get(board).lost_bytes,
        }
    }

    /// Bytes that the peer reported by SACK.
    pub(crate) fn sacked_bytes(&self) -> u32 {
        match self.hot.scoreboard {
            NONE => 0,
            board => self.common.scoreboards.get(board).sacked_bytes,
        }
    }

    /// RFC 9293 section 3.10.4: queues a FIN after the written data.
    pub(crate) fn queue_fin(&mut self) -> Result<(), NetError> {
        match self.hot.state() {
            State::Established => self.hot.set_state(State::FinWait1),
            State::CloseWait => self.hot.set_state(State::LastAck),
            State::SynReceived | State::SynSent => {}
            State::Closed => return Err(NetError::NotConnected),
            // The FIN is queued already.
            State::FinWait1
            | State::FinWait2
            | State::Closing
            | State::LastAck
            | State::TimeWait => return Ok(()),
        }
        self.hot.set(Flags::FIN_QUEUED);
        self.make_ready();
        Ok(())
    }

    /// Ends the session with a reset to the peer: RFC 9293 section 3.10.5.
    pub(crate) fn reset(&mut self, error: Option<SessionError>) {
        // RFC 9293 section 3.10.5: none in SYN-SENT, where there is no number for it, and none in
        // TIME-WAIT, where the peer has finished.
        let peer_knows = self.hot.state().is_synchronized() && self.hot.state() != State::TimeWait
            || self.hot.state() == State::SynReceived;
        if peer_knows {
            let ends = self.path.ends();
            let mut options = Options::default();
            if self.hot.has(Flags::TIMESTAMPS) {
                let stamp = self.hot.timestamps.at(self.common.now_ms);
                options.timestamps = Some((stamp, self.hot.timestamps.recent));
            }
            self.common.send_reset_with(
                &ends,
                self.path.hop(),
                self.hot.send.nxt,
                Some(self.hot.receive.nxt),
                &options,
            );
        }
        self.finish(error);
    }
}
