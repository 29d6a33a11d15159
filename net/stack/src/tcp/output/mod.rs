//! Output: retransmissions first, then new data, then a pure acknowledgment.
//!
//! A frame is a header built in [`frame`] and up to two pieces of the send ring in place. If the
//! NIC cuts segments itself, they are sent as one super-segment. Source: RFC 9293 sections 3.7.4
//! (Nagle), 3.8.6.2.1 (silly windows), 3.8.2 and 3.10, RFC 6675 section 5, RFC 8985 section 7.3.

mod data;
mod frame;
mod retransmit;
mod sizes;

use super::Session;
use super::open::syns_resent;
use crate::buffer::NONE;
use crate::frame::Outgoing;
use crate::state::ecn::EcnState;
use crate::state::flags::{Flags, SendTail};
use crate::state::hot::{State, Timer};
use crate::wire::sequence::Sequence;
use crate::wire::tcp::{ACK, BLOCKS_MAX, Options, SYN};

/// After more bytes than this the next batch's reply precedes any timer of the peer.
const HALF_ACK_BYTES_MAX: u32 = 48 << 10;
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
    sequence: Sequence,
    /// Offset in the ring.
    offset: usize,
    len: usize,
    flags: u8,
}

/// The turn of a session to send.
pub(crate) struct Output<'s, 'f> {
    pub(crate) session: Session<'s>,
    send: &'f mut Send<'f>,
    /// New data of this turn since the last PSH, where the link does not cut super-segments.
    burst: usize,
}

impl<'s, 'f> Output<'s, 'f> {
    pub(crate) fn new(session: Session<'s>, send: &'f mut Send<'f>) -> Self {
        Self {
            session,
            send,
            burst: 0,
        }
    }

    /// The NIC has room again: attempts that it refused were no timeouts.
    #[cold]
    fn not_refused(&mut self) {
        self.session.hot.clear(Flags::REFUSED);
        self.session.path.retries = 0;
    }

    /// Sends as much as the windows allow.
    pub(crate) fn run(&mut self) -> Outcome {
        if self.session.hot.has(Flags::SEND_SYN) {
            return self.send_syn();
        }
        if self.session.hot.state().sends() {
            match self.send_all() {
                Outcome::Done => {}
                other => return other,
            }
            let tail = self.session.path.tail;
            if tail.has(SendTail::LOW_WATER | SendTail::TIMED) {
                self.after_data();
            }
        }
        self.send_bare()
    }

    fn send_all(&mut self) -> Outcome {
        // RFC 5681 section 2: an acknowledgment with data is not a duplicate, and a full segment
        // has no room for SACK blocks. A gap is therefore reported before data is sent, which would
        // clear the report. Accurate ECN's first pure acknowledgment reports the SYN-ACK's mark,
        // which data cannot (RFC 9768 section 3.2.2.1).
        let hot = &*self.session.hot;
        let reports = self.has_report() || hot.ecn.has(EcnState::OPENING);
        if hot.has(Flags::ACK_NOW) && reports {
            match self.send_bare() {
                Outcome::Done => {}
                other => return other,
            }
        }
        // Lost data goes first: the peer delivers nothing behind a hole, so that new data would
        // only fill its buffer.
        if self.has_losses() {
            match self.send_lost() {
                Outcome::Done => {}
                other => return other,
            }
        }
        let hot = &*self.session.hot;
        if hot.tx.len() > 0 || hot.has(Flags::FIN_QUEUED) {
            return self.send_new();
        }
        Outcome::Done
    }

    /// Rare work after all permitted data was sent: features that few sessions use.
    #[cold]
    fn after_data(&mut self) {
        let session = &mut self.session;
        if session.hot.has(Flags::WANTS_ROOM) && session.send_buffer().has_room() {
            session.hot.clear(Flags::WANTS_ROOM);
            session.notify();
        }
        if session.path.tail.has(SendTail::TIMED) {
            session.count_time();
        }
    }

    /// Sends our SYN, or SYN-ACK.
    fn send_syn(&mut self) -> Outcome {
        let session = &mut self.session;
        let (first, answer) = match session.hot.state() {
            State::SynSent => (true, false),
            State::SynReceived => (false, true),
            _ => {
                // The handshake was completed or aborted while the SYN waited for its turn.
                session.hot.clear(Flags::SEND_SYN);
                return Outcome::Done;
            }
        };
        // A SYN-ACK contains only options that the peer's SYN offered: RFC 7323 sections 2.2 and
        // 3.2, RFC 2018 section 2.
        let config = &session.common.config;
        let wants = |flag| first || session.hot.has(flag);
        let scale = session.path.scales.receive();
        let mut options = Options {
            mss: Some(session.largest_mss()),
            sack_permitted: config.offers.sack && wants(Flags::SACK),
            scale: session.cold.scaling.then_some(scale),
            ..Options::default()
        };
        if config.offers.timestamps && wants(Flags::TIMESTAMPS) {
            options.timestamps = Some(self.stamps());
        }
        let session = &mut self.session;
        let load = Load {
            sequence: session.cold.iss,
            flags: if answer { SYN | ACK } else { SYN },
            ..Load::default()
        };
        let outcome = self.emit(load, &mut options);
        if outcome == Outcome::Done {
            let session = &mut self.session;
            session.hot.clear(Flags::SEND_SYN);
            session.hot.sent_us = session.common.now_us;
            session.path.retries = syns_resent(session);
            session.cold.syns_refused = 0;
            session.start_timer(Timer::Retransmission, session.timeout_us());
        }
        outcome
    }

    /// RFC 6298 section 5.1 does not restart a running timer; RFC 8985 section 7.2 restarts the
    /// probe timer, if one is useful, with each segment.
    #[inline]
    fn arm_after_sending(&mut self) {
        let session = &mut self.session;
        let start = match session.hot.timer() {
            Timer::None | Timer::Probe | Timer::Persist => true,
            Timer::Retransmission => session.probe_after_us().is_some(),
            Timer::Reordering | Timer::Held => false,
        };
        if start {
            session.arm_retransmission();
        }
    }

    /// Sends a segment without data if one is owed: an acknowledgment or a probe.
    fn send_bare(&mut self) -> Outcome {
        let session = &mut self.session;
        // Read before anything is sent, which clears it.
        let more = session.hot.dup_acks_owed().saturating_sub(1);
        let mut load = Load {
            sequence: session.hot.send.nxt,
            flags: ACK,
            ..Load::default()
        };
        if session.hot.has(Flags::PROBE_WINDOW | Flags::PROBE_ALIVE) {
            // RFC 9293 sections 3.8.6.1 and 3.8.4: one before the number that the peer expects; it
            // replies.
            load.sequence = session.hot.send.una - 1;
        } else if !session.hot.has(Flags::ACK_NOW) {
            // The timer runs from the first unacknowledged segment; later ones do not restart it.
            if session.hot.has(Flags::ACK_LATER) && session.hot.ack_at == 0 {
                let delay_us = session.common.config.delayed_ack_us;
                session.hot.ack_at = session.common.tick_in_us(delay_us);
                session.arm_wheel();
            }
            return Outcome::Done;
        } else {
            let outcome = self.acknowledge_half(load);
            if outcome != Outcome::Done {
                return outcome;
            }
        }
        let outcome = self.emit(load, &mut Options::default());
        if outcome == Outcome::Done {
            let probes = Flags::PROBE_WINDOW | Flags::PROBE_ALIVE;
            self.session.hot.clear(probes);
            for _ in 0..more {
                // If the NIC has no room, the one sent before suffices.
                self.emit(load, &mut Options::default());
            }
        }
        outcome
    }

    /// Sends an acknowledgment for half of a batch before the one for all. RFC 5681 section 4.2
    /// requires one for two segments; a batch is answered at its end, and if that were the only
    /// acknowledgment for a window, its loss would stop the sender until its timeout.
    fn acknowledge_half(&mut self, load: Load) -> Outcome {
        let hot = &mut *self.session.hot;
        let (all, bytes) = (hot.receive.nxt, hot.unacked_bytes);
        if !hot.has(Flags::HALF_ACK_OWED) || bytes >= HALF_ACK_BYTES_MAX {
            return Outcome::Done;
        }
        let mss = u32::from(hot.mss);
        // The state when half had been received; the window's edge stays the same.
        hot.receive.nxt = all - (bytes / 2).next_multiple_of(mss);
        let outcome = self.emit(load, &mut Options::default());
        let hot = &mut *self.session.hot;
        hot.receive.nxt = all;
        if outcome == Outcome::Done {
            hot.set(Flags::ACK_NOW);
        }
        outcome
    }

    /// Our timestamp, and the peer's to echo.
    #[inline]
    fn stamps(&self) -> (u32, u32) {
        let stamps = &self.session.hot.timestamps;
        (stamps.at(self.session.common.now_ms), stamps.recent)
    }

    /// True if a gap or a duplicate is to be reported to the peer.
    #[inline]
    fn has_report(&self) -> bool {
        let hot = &*self.session.hot;
        let gap = hot.out_of_order != NONE;
        gap || hot.has(Flags::SACK) && self.session.cold.duplicate.is_some()
    }

    /// Adds reports of gaps and duplicates: RFC 2018 section 4, RFC 2883 section 4.
    #[inline]
    fn report(&mut self, options: &mut Options) {
        let session = &mut self.session;
        let (hot, number) = (&*session.hot, session.hot.out_of_order);
        let gap = number != NONE;
        if !hot.has(Flags::SACK) || !gap && !hot.has(Flags::ACK_NOW) {
            return;
        }
        if let Some(duplicate) = session.cold.duplicate.take() {
            options.blocks[0] = duplicate;
            options.block_count = 1;
        }
        if gap {
            let out_of_order = session.common.out_of_order.get(number);
            options.block_count = out_of_order
                .report(&mut options.blocks, options.block_count)
                .min(BLOCKS_MAX);
        }
    }
}
