//! The hot control block: all that an in-order segment, its acknowledgment and its answer touch.
//!
//! Must stay true: 128 bytes, two lines of this machine's cache and one of the engine's DMA.

use crate::buffer::ring::Ring;
use crate::buffer::slab::NONE;
use crate::secrets::Ends;
use crate::timer::Tick;
use crate::wire::Ip;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// States of RFC 9293 section 3.3.2. `LISTEN` has no control block, see
/// [`crate::tcp::listener::Listener`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub(crate) struct State(u8);

impl State {
    pub(crate) const CLOSED: Self = Self(0);
    pub(crate) const SYN_SENT: Self = Self(1);
    pub(crate) const SYN_RECEIVED: Self = Self(2);
    pub(crate) const ESTABLISHED: Self = Self(3);
    pub(crate) const FIN_WAIT_1: Self = Self(4);
    pub(crate) const FIN_WAIT_2: Self = Self(5);
    pub(crate) const CLOSE_WAIT: Self = Self(6);
    pub(crate) const CLOSING: Self = Self(7);
    pub(crate) const LAST_ACK: Self = Self(8);
    pub(crate) const TIME_WAIT: Self = Self(9);

    /// The peer may still send data.
    #[inline]
    pub(crate) fn receives(self) -> bool {
        matches!(
            self,
            Self::ESTABLISHED | Self::FIN_WAIT_1 | Self::FIN_WAIT_2
        )
    }

    /// Both ends have agreed on the session.
    #[inline]
    pub(crate) fn is_synchronized(self) -> bool {
        self.0 >= Self::ESTABLISHED.0
    }

    /// Data of ours may still go out, or wait for its acknowledgment.
    #[inline]
    pub(crate) fn sends(self) -> bool {
        matches!(
            self,
            Self::ESTABLISHED
                | Self::CLOSE_WAIT
                | Self::FIN_WAIT_1
                | Self::CLOSING
                | Self::LAST_ACK
        )
    }
}

/// Which of the retransmission timers runs; one at a time, as RFC 8985 section 7.2 has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub(crate) struct Timer(u8);

impl Timer {
    pub(crate) const NONE: Self = Self(0);
    /// RFC 6298.
    pub(crate) const RETRANSMISSION: Self = Self(1);
    /// RFC 8985 section 7.
    pub(crate) const PROBE: Self = Self(2);
    /// RFC 8985 section 6.2, step 5.
    pub(crate) const REORDERING: Self = Self(3);
    /// RFC 9293 section 3.8.6.1.
    pub(crate) const PERSIST: Self = Self(4);
}

/// Yes-or-no facts of a session.
pub(crate) mod flag {
    /// In the ready list.
    pub(crate) const READY: u32 = 1 << 0;
    /// In the list of events.
    pub(crate) const EVENT: u32 = 1 << 1;
    /// Both ends send timestamps (RFC 7323).
    pub(crate) const TIMESTAMPS: u32 = 1 << 2;
    /// The peer takes SACK (RFC 2018).
    pub(crate) const SACK: u32 = 1 << 3;
    /// An acknowledgment must go out now.
    pub(crate) const ACK_NOW: u32 = 1 << 4;
    /// One is owed, and may wait for data.
    pub(crate) const ACK_LATER: u32 = 1 << 5;
    /// The application has sent all.
    pub(crate) const FIN_QUEUED: u32 = 1 << 6;
    /// Our FIN has been sent; it counts in `snd_nxt`.
    pub(crate) const FIN_SENT: u32 = 1 << 7;
    /// The peer's FIN has come, in order.
    pub(crate) const FIN_RECEIVED: u32 = 1 << 8;
    /// The application has let go of it.
    pub(crate) const DETACHED: u32 = 1 << 9;
    /// Nagle's algorithm is off.
    pub(crate) const NO_DELAY: u32 = 1 << 10;
    /// The congestion window held something back: it may grow (RFC 9293 section 3.8.2, RFC 7661).
    pub(crate) const CWND_LIMITED: u32 = 1 << 11;
    /// The application found the send buffer full and wants to hear of room.
    pub(crate) const WANTS_ROOM: u32 = 1 << 12;
    /// Waits in a listener's queue for `accept`.
    pub(crate) const EMBRYO: u32 = 1 << 13;
    /// A probe of the zero window is to go out (RFC 9293 section 3.8.6.1).
    pub(crate) const PROBE_WINDOW: u32 = 1 << 14;
    /// A keepalive probe is to go out (RFC 9293 section 3.8.4).
    pub(crate) const PROBE_ALIVE: u32 = 1 << 15;
    /// Our SYN (or SYN-ACK) is to go out, again if need be.
    pub(crate) const SEND_SYN: u32 = 1 << 16;
    /// Loss is being repaired: fast recovery or after a timeout.
    pub(crate) const RECOVERY: u32 = 1 << 17;
    /// A tail-loss probe is to go out (RFC 8985 section 7.3).
    pub(crate) const PROBE_TAIL: u32 = 1 << 18;
    /// The application wants small writes held back until it says otherwise (TCP_CORK).
    pub(crate) const CORKED: u32 = 1 << 19;
    /// Data and answers alternate: acknowledgments wait for data to ride on.
    pub(crate) const INTERACTIVE: u32 = 1 << 20;
    /// Keepalive is on.
    pub(crate) const KEEPALIVE: u32 = 1 << 21;
    /// Waits for its neighbour's hardware address.
    pub(crate) const UNRESOLVED: u32 = 1 << 22;
    /// The peer will send no more that we take: the application has shut its reading side.
    pub(crate) const DEAF: u32 = 1 << 24;
    /// An error waits to be told to the application.
    pub(crate) const FAILED: u32 = 1 << 25;
    /// Acknowledgments are due at once (out-of-order data was seen lately, or the session is young).
    pub(crate) const QUICK: u32 = 1 << 26;
    /// The next segment of a repair goes out whatever the congestion window is.
    pub(crate) const REPAIR_OWED: u32 = 1 << 27;
    /// Beside `ACK_NOW`: it is for a segment behind a gap,
    pub(crate) const AHEAD: u32 = 1 << 28;
    /// for two,
    pub(crate) const AHEAD_TWICE: u32 = 1 << 29;
    /// for three or more: so many go out.
    pub(crate) const AHEAD_THRICE: u32 = 1 << 30;
    /// A few segments came in order in this batch: half of them are acknowledged before all.
    pub(crate) const HALVED: u32 = 1 << 31;
    /// All of those for segments ahead.
    pub(crate) const AHEAD_ALL: u32 = AHEAD | AHEAD_TWICE | AHEAD_THRICE;
}

/// The control block. Times end in `_us` (wrap after 71 minutes); ticks are the wheel's.
#[derive(Debug, Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(128))]
pub(crate) struct Hot {
    /// Which of the sessions under this number it is.
    pub(crate) generation: u32,
    /// Of [`flag`].
    pub(crate) flags: u32,
    pub(crate) state: State,
    pub(crate) timer: Timer,
    /// What the peer's window fields are shifted by.
    pub(crate) snd_scale: u8,
    /// What ours are shifted by.
    pub(crate) rcv_scale: u8,
    /// Payload bytes of a full segment, options already taken off.
    pub(crate) mss: u16,
    /// Segments without progress in a row, for peers without SACK.
    pub(crate) duplicates: u16,
    // 16
    /// The first unacknowledged sequence number; where data is concerned, the send ring's head.
    pub(crate) snd_una: u32,
    /// The next to be sent.
    pub(crate) snd_nxt: u32,
    /// The peer's window, in bytes.
    pub(crate) snd_wnd: u32,
    /// Segment and acknowledgment of the last window update.
    pub(crate) snd_wl1: u32,
    pub(crate) snd_wl2: u32,
    /// Congestion window, in bytes.
    pub(crate) cwnd: u32,
    /// The next expected; end of the receive ring.
    pub(crate) rcv_nxt: u32,
    /// End of the window that the peer was told of; never moves back.
    pub(crate) rcv_edge: u32,
    // 48
    /// What was acknowledged last (RFC 7323's Last.ACK.sent).
    pub(crate) rcv_acked: u32,
    /// RFC 7323's TS.Recent.
    pub(crate) ts_recent: u32,
    /// Added to the clock of milliseconds in our timestamps.
    pub(crate) ts_offset: u32,
    /// RFC 6298's, in microseconds; `srtt_us` is 0 before the first sample.
    pub(crate) srtt_us: u32,
    pub(crate) rttvar_us: u32,
    /// When the only segment in flight left, where `board` is none.
    pub(crate) sent_us: u32,
    /// When anything was last received; wraps after 49 days.
    pub(crate) heard_ms: u32,
    /// The scoreboard of what is in flight; none where that is nothing or one segment, sent once.
    pub(crate) board: u32,
    // 80
    /// What came out of order; none where nothing did.
    pub(crate) gaps: u32,
    /// Received, not yet read.
    pub(crate) rx: Ring,
    /// Written, not yet acknowledged.
    pub(crate) tx: Ring,
    // 108
    /// The tick at which the wheel will look at the session.
    pub(crate) armed: Tick,
    /// Deadline of `timer`.
    pub(crate) timer_at: Tick,
    /// Deadline of the delayed acknowledgment.
    pub(crate) ack_at: Tick,
    /// Deadline of what is rare: keepalive, FIN-WAIT-2, TIME-WAIT.
    pub(crate) rare_at: Tick,
    /// Bytes received since an acknowledgment was last sent.
    pub(crate) unacked_bytes: u32,
}

const _: () = assert!(size_of::<Hot>() == 128, "a hot control block is 128 bytes");

impl Hot {
    /// Of no session.
    pub(crate) fn closed() -> Self {
        Self {
            generation: 0,
            flags: 0,
            state: State::CLOSED,
            timer: Timer::NONE,
            snd_scale: 0,
            rcv_scale: 0,
            mss: 0,
            duplicates: 0,
            snd_una: 0,
            snd_nxt: 0,
            snd_wnd: 0,
            snd_wl1: 0,
            snd_wl2: 0,
            cwnd: 0,
            rcv_nxt: 0,
            rcv_edge: 0,
            rcv_acked: 0,
            ts_recent: 0,
            ts_offset: 0,
            srtt_us: 0,
            rttvar_us: 0,
            sent_us: 0,
            heard_ms: 0,
            board: NONE,
            gaps: NONE,
            rx: Ring::EMPTY,
            tx: Ring::EMPTY,
            armed: 0,
            timer_at: 0,
            ack_at: 0,
            rare_at: 0,
            unacked_bytes: 0,
        }
    }

    #[inline]
    pub(crate) fn has(&self, flags: u32) -> bool {
        self.flags & flags != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, flags: u32) {
        self.flags |= flags;
    }

    #[inline]
    pub(crate) fn clear(&mut self, flags: u32) {
        self.flags &= !flags;
    }

    /// Sequence numbers in flight.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.snd_nxt.wrapping_sub(self.snd_una)
    }
}

/// A session's ends and the way to its peer: one line.
#[derive(Debug, Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(64))]
pub(crate) struct Path {
    pub(crate) local: Ip,
    pub(crate) remote: Ip,
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
    /// Under which the session is looked up.
    pub(crate) hash: u32,
    /// The next hop's entry among the neighbours, and which of the entries under that number.
    pub(crate) neighbor: u16,
    pub(crate) neighbor_generation: u16,
    /// The largest packet on the way, in bytes.
    pub(crate) mtu: u16,
    /// Of the interface, what the headers leave of a super-segment's payload; 0 for none.
    pub(crate) super_bytes: u16,
    /// Bounds of the two rings, in bytes.
    pub(crate) send_bytes: u32,
    pub(crate) receive_bytes: u32,
    /// Where the last segment ended that was sent and not full; what is sent again does not count.
    pub(crate) small_end: u32,
    /// Timeouts in a row, or probes.
    pub(crate) retries: u8,
    pub(crate) reserved: [u8; 3],
}

const _: () = assert!(size_of::<Path>() == 64, "a session's ends are one line");

impl Path {
    /// The ends.
    #[inline]
    pub(crate) fn ends(&self) -> Ends {
        Ends {
            local: self.local,
            remote: self.remote,
            local_port: self.local_port,
            remote_port: self.remote_port,
        }
    }
}
