//! TCP: one session's machine. RFC 9293, and the documents that the files below name.
//!
//! A session is worked on through [`Session`]: its control block and what all sessions share. It never
//! sees another session; what concerns several (accepting, ending) is left in lists for the stack.
//! Must stay true: no method walks sessions, none allocates per packet.

pub(crate) mod acknowledge;
pub(crate) mod board;
pub(crate) mod cold;
pub(crate) mod congestion;
pub(crate) mod cookie;
pub(crate) mod gaps;
pub(crate) mod input;
pub(crate) mod listener;
pub(crate) mod open;
pub(crate) mod order;
pub(crate) mod output;
pub(crate) mod prr;
pub(crate) mod rack;
pub(crate) mod receive;
pub(crate) mod repair;
pub(crate) mod rtt;
pub(crate) mod sequence;
pub(crate) mod timers;
pub(crate) mod undo;

use crate::buffer::pool::Pool;
use crate::buffer::slab::{NONE, Slab};
use crate::error::SessionError;
use crate::secrets::Secrets;
use crate::stack::config::Config;
use crate::stack::control::Control;
use crate::stack::counters::Counters;
use crate::stack::fragments::IDENTIFICATIONS;
use crate::stack::interface::Interface;
use crate::stack::neighbors::Neighbors;
use crate::stack::paths::Paths;
use crate::state::hot::{Hot, Path, State, Timer, flag};
use crate::timer::{Tick, Wheel};
use board::Board;
use cold::Cold;
use gaps::Gaps;
use sidecore_random::Random;
use std::collections::VecDeque;

/// What a list of happenings names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Happening {
    /// A session's readiness changed.
    Session(u32),
    /// A listener has a session to accept.
    Listener(u32),
    /// A UDP socket has a datagram.
    Udp(u32),
}

/// What all sessions of a stack share.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) now_ns: u64,
    pub(crate) now_us: u32,
    pub(crate) now_ms: u32,
    pub(crate) tick: Tick,
    pub(crate) config: Config,
    pub(crate) pool: Pool,
    pub(crate) boards: Slab<Board>,
    pub(crate) gaps: Slab<Gaps>,
    pub(crate) wheel: Wheel,
    pub(crate) secrets: Secrets,
    pub(crate) random: Random,
    pub(crate) interface: Interface,
    pub(crate) neighbors: Neighbors,
    pub(crate) control: Control,
    pub(crate) counters: Counters,
    /// Sessions that may have something to send.
    pub(crate) ready: VecDeque<u32>,
    /// For the applications.
    pub(crate) happenings: VecDeque<Happening>,
    /// Sessions that have been closed, to be taken out of the table.
    pub(crate) closed: Vec<u32>,
    /// Embryos that are established, to be put into their listener's queue.
    pub(crate) born: Vec<u32>,
    /// Sessions in TIME-WAIT, the oldest first: the first to go when there is no room.
    pub(crate) time_wait: VecDeque<u32>,
    /// Challenge acknowledgments that may still go out in this second (RFC 5961 section 7).
    pub(crate) challenges_left: u32,
    pub(crate) challenge_second: u64,
    /// Moves on with each port that is chosen (RFC 6056).
    pub(crate) next_port: u32,
    /// The largest packets on ways that are narrower than the link.
    pub(crate) paths: Paths,
    /// Of packets in fragments: see [`Common::identify`].
    pub(crate) identifications: [u32; IDENTIFICATIONS],
    /// A packet on its way into fragments; between two it holds nothing that counts.
    pub(crate) long: Vec<u8>,
}

impl Common {
    /// Moves the clocks; they never go back.
    #[inline]
    pub(crate) fn set_now(&mut self, now_ns: u64) {
        if now_ns > self.now_ns {
            self.now_ns = now_ns;
            self.now_us = (now_ns / 1_000) as u32;
            self.now_ms = (now_ns / 1_000_000) as u32;
            self.tick = crate::timer::tick_at(now_ns);
        }
    }

    /// The tick that is `us` microseconds away, and never this one.
    #[inline]
    pub(crate) fn tick_in_us(&self, us: u32) -> Tick {
        crate::timer::tick_after(self.now_ns + u64::from(us) * 1_000)
    }

    /// Whether one more challenge may go out: RFC 5961 section 7, with a bound that nobody outside
    /// can count along with (RFC 5961's fixed one was a side channel).
    pub(crate) fn may_challenge(&mut self) -> bool {
        let second = self.now_ns / 1_000_000_000;
        if second != self.challenge_second {
            self.challenge_second = second;
            self.challenges_left =
                CHALLENGES_MIN + self.random.below(u64::from(CHALLENGES_MIN)) as u32;
        }
        let may = self.challenges_left > 0;
        self.challenges_left -= u32::from(may);
        may
    }
}

/// One session at work.
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
        if !self.hot.has(flag::READY) {
            self.hot.set(flag::READY);
            self.common.ready.push_back(self.number);
        }
    }

    /// Has the application hear that something changed.
    #[inline]
    pub(crate) fn notify(&mut self) {
        if !self.hot.has(flag::EVENT | flag::DETACHED | flag::EMBRYO) {
            self.hot.set(flag::EVENT);
            self.common
                .happenings
                .push_back(Happening::Session(self.number));
        }
    }

    /// An acknowledgment must go out at the end of this round.
    #[inline]
    pub(crate) fn acknowledge_now(&mut self) {
        self.hot.set(flag::ACK_NOW);
        self.make_ready();
    }

    /// One for each segment of a batch, up to three. RFC 5681 section 4.2 wants it of all that come behind a
    /// gap, section 3.2 has a sender without SACK wait for three, and what tells of a loss may be lost
    /// itself; Linux, too, answers the first three one by one and those after them together.
    pub(crate) fn acknowledge_each(&mut self) {
        let another = if self.hot.has(flag::AHEAD_TWICE) {
            flag::AHEAD_THRICE
        } else if self.hot.has(flag::AHEAD) {
            flag::AHEAD_TWICE
        } else {
            flag::AHEAD
        };
        self.hot.set(another);
        self.acknowledge_now();
    }

    /// RFC 5961: a challenge, if there may be one.
    pub(crate) fn challenge(&mut self) {
        if self.common.may_challenge() {
            self.common.counters.challenges += 1;
            self.acknowledge_now();
        }
    }

    /// Ends the session: nothing more goes out or in. What was received in order stays to be read,
    /// also before an error, as Linux has it.
    pub(crate) fn finish(&mut self, error: Option<SessionError>) {
        if self.hot.state == State::CLOSED {
            return;
        }
        self.hot.state = State::CLOSED;
        self.hot.tx.release(&mut self.common.pool);
        if self.hot.has(flag::DETACHED | flag::EMBRYO) {
            self.hot.rx.release(&mut self.common.pool);
        }
        self.drop_board();
        if self.hot.gaps != NONE {
            self.common.gaps.give(self.hot.gaps);
            self.hot.gaps = NONE;
        }
        self.hot.timer = Timer::NONE;
        self.hot.timer_at = 0;
        self.hot.ack_at = 0;
        self.hot.rare_at = 0;
        self.hot.snd_una = self.hot.snd_nxt;
        self.hot
            .clear(flag::ACK_NOW | flag::ACK_LATER | flag::SEND_SYN);
        if error.is_some() {
            self.cold.error = error;
            self.hot.set(flag::FAILED);
        }
        self.notify();
        self.common.closed.push(self.number);
    }

    /// Gives the scoreboard back.
    pub(crate) fn drop_board(&mut self) {
        if self.hot.board != NONE {
            self.common.boards.give(self.hot.board);
            self.hot.board = NONE;
        }
    }

    /// The scoreboard, made from the only segment in flight where there was none.
    pub(crate) fn board(&mut self) -> &mut Board {
        if self.hot.board == NONE {
            self.hot.board = self.common.boards.take();
            let board = self.common.boards.get_mut(self.hot.board);
            board.clear(self.hot.snd_una);
            if self.hot.in_flight() > 0 {
                let range = sequence::Range {
                    start: self.hot.snd_una,
                    end: self.hot.snd_nxt,
                };
                board.push(range, self.hot.sent_us);
            }
        }
        self.common.boards.get_mut(self.hot.board)
    }

    /// Bytes in the network as far as we know: RFC 6675 section 4.
    #[inline]
    pub(crate) fn pipe(&self) -> u32 {
        if self.hot.board == NONE {
            return self.hot.in_flight();
        }
        let board = self.common.boards.get(self.hot.board);
        let mut gone = board.sacked_bytes + board.lost_bytes;
        if !self.hot.has(flag::SACK) {
            // RFC 5681 section 3.2: each duplicate stands for a segment that has left the network.
            gone += u32::from(self.hot.duplicates) * u32::from(self.hot.mss);
        }
        self.hot.in_flight().saturating_sub(gone)
    }
}

/// Challenges in a second, at least; at most twice as many.
const CHALLENGES_MIN: u32 = 500;
