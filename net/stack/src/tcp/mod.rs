//! TCP: the state machine of one session. RFC 9293, and the documents named in the files below.
//!
//! [`Session`] gives access to a session: its control block and the state shared by all sessions.
//! It never accesses another session; events that concern several (accepting, ending) are put into
//! lists for the stack.
//! Must stay true: no method walks sessions, none allocates per packet.

pub(crate) mod accurate;
pub(crate) mod acknowledge;
pub(crate) mod chronograph;
pub(crate) mod cold;
pub(crate) mod cookie;
pub(crate) mod ecn;
pub(crate) mod input;
pub(crate) mod marks;
pub(crate) mod model;
pub(crate) mod open;
pub(crate) mod opening;
pub(crate) mod output;
pub(crate) mod pacing;
pub(crate) mod prr;
pub(crate) mod rack;
pub(crate) mod receive;
pub(crate) mod repair;
pub(crate) mod rtt;
pub(crate) mod timers;
pub(crate) mod undo;

use crate::buffer::slab::NONE;
use crate::error::SessionError;
use crate::ranges::scoreboard::Scoreboard;
use crate::shared::{Common, EventSource};
use crate::state::hot::{Flags, Hot, Path, State, Timer};
use crate::wire::sequence;
use cold::Cold;

/// Access to one session.
pub(crate) struct Session<'s> {
    pub(crate) number: u32,
    pub(crate) hot: &'s mut Hot,
    pub(crate) path: &'s mut Path,
    pub(crate) cold: &'s mut Cold,
    pub(crate) common: &'s mut Common,
}

impl Session<'_> {
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

    /// Owes a duplicate acknowledgment for each segment of a batch, up to three. RFC 5681 section
    /// 4.2 requires one for each segment behind a gap, section 3.2 makes a sender without SACK wait
    /// for three, and an acknowledgment may itself be lost; Linux, too, answers the first three
    /// separately and later ones together.
    pub(crate) fn acknowledge_each(&mut self) {
        self.hot.owe_dup_ack();
        self.acknowledge_now();
    }

    /// RFC 5961: sends a challenge ACK, if the budget permits.
    pub(crate) fn challenge(&mut self) {
        if self.common.may_challenge() {
            self.common.counters.challenges += 1;
            self.acknowledge_now();
        }
    }

    /// Records an error about the session's packets from a router or the peer's host, and notifies
    /// the application: RFC 9293 sections 3.9.1.8 and 3.9.2.2.
    pub(crate) fn note_soft_error(&mut self, error: SessionError) {
        self.cold.soft_error = Some((error, self.hot.snd_una));
        self.notify();
    }

    /// The last soft error, unless a segment was received since: then the problem has passed.
    pub(crate) fn soft_error(&self) -> Option<SessionError> {
        let (error, una) = self.cold.soft_error?;
        (una == self.hot.snd_una).then_some(error)
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
        self.cold.bbr = None;
        if self.hot.out_of_order != NONE {
            self.common.out_of_order.give(self.hot.out_of_order);
            self.hot.out_of_order = NONE;
        }
        self.hot.set_timer(Timer::None);
        self.hot.timer_at = 0;
        self.hot.ack_at = 0;
        self.hot.rare_at = 0;
        // Nothing counts as in flight, so that no timer is started.
        self.hot.snd_una = self.hot.snd_nxt;
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
        }
    }

    /// The scoreboard, created from the only segment in flight if there was none.
    pub(crate) fn scoreboard(&mut self) -> &mut Scoreboard {
        if self.hot.scoreboard == NONE {
            self.hot.scoreboard = self.common.scoreboards.take();
            let scoreboard = self.common.scoreboards.get_mut(self.hot.scoreboard);
            scoreboard.clear(self.hot.snd_una);
            if self.hot.in_flight() > 0 {
                // The one segment that only the control block recorded until now.
                let range = sequence::Range {
                    start: self.hot.snd_una,
                    end: self.hot.snd_nxt,
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
            return self.hot.in_flight();
        }
        let scoreboard = self.common.scoreboards.get(self.hot.scoreboard);
        let mut gone = scoreboard.sacked_bytes + scoreboard.lost_bytes;
        if !self.hot.has(Flags::SACK) {
            // RFC 5681 section 3.2: each duplicate stands for a segment that has left the network.
            gone += u32::from(self.hot.duplicates) * u32::from(self.hot.mss);
        }
        self.hot.in_flight().saturating_sub(gone)
    }
}
