//! The hot control block: the state used for an in-order segment, its acknowledgment and its reply.
//!
//! Must stay true: 128 bytes, two cache lines of this machine and one DMA line of the engine.

use crate::buffer::ring::Ring;
use crate::buffer::slab::NONE;
use crate::secrets::Ends;
use crate::timer::Tick;
use crate::wire::Ip;
use std::ops::BitOr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// TCP connection state (RFC 9293 section 3.3.2). LISTEN has no control block, see
/// [`crate::stack::listener::Listener`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    Closed,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
}

impl State {
    /// The state stored as `byte` by [`Hot::set_state`].
    #[inline]
    fn from_byte(byte: u8) -> Self {
        // The identity on stored bytes: compiles to one comparison, no table.
        match byte {
            1 => Self::SynSent,
            2 => Self::SynReceived,
            3 => Self::Established,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::CloseWait,
            7 => Self::Closing,
            8 => Self::LastAck,
            9 => Self::TimeWait,
            _ => Self::Closed,
        }
    }

    /// True if the peer may still send data.
    #[inline]
    pub(crate) fn receives(self) -> bool {
        match self {
            Self::Established | Self::FinWait1 | Self::FinWait2 => true,
            Self::Closed
            | Self::SynSent
            | Self::SynReceived
            | Self::CloseWait
            | Self::Closing
            | Self::LastAck
            | Self::TimeWait => false,
        }
    }

    /// True in the synchronized states (RFC 9293 section 3.10.7.4).
    #[inline]
    pub(crate) fn is_synchronized(self) -> bool {
        match self {
            Self::Closed | Self::SynSent | Self::SynReceived => false,
            Self::Established
            | Self::FinWait1
            | Self::FinWait2
            | Self::CloseWait
            | Self::Closing
            | Self::LastAck
            | Self::TimeWait => true,
        }
    }

    /// True if data of ours may be sent, or is unacknowledged.
    #[inline]
    pub(crate) fn sends(self) -> bool {
        match self {
            Self::Established
            | Self::CloseWait
            | Self::FinWait1
            | Self::Closing
            | Self::LastAck => true,
            Self::Closed | Self::SynSent | Self::SynReceived | Self::FinWait2 | Self::TimeWait => {
                false
            }
        }
    }
}

/// Flags of a session for ECN (RFC 3168 section 6.1). They share one byte with the state, because
/// the control block is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EcnFlags(u8);

impl EcnFlags {
    /// ECN-setup SYN and SYN-ACK were exchanged: marks are echoed, echoes are obeyed.
    pub(crate) const NEGOTIATED: Self = Self(0x10);
    /// A mark was received: all acknowledgments carry ECE until a segment with CWR (section 6.1.3).
    pub(crate) const ECHO_OWED: Self = Self(0x20);
    /// The window was reduced: the next new data carries CWR (section 6.1.2).
    pub(crate) const CWR_OWED: Self = Self(0x40);
    /// The window was reduced in this window of data, up to `Cold::reduced_until`. Acknowledgments
    /// take the slow path meanwhile, which detects its end.
    pub(crate) const REDUCED: Self = Self(0x80);
}

impl BitOr for EcnFlags {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Bits of [`Hot`]'s byte of state that are a [`State`].
const STATE_BITS: u8 = 0x0f;

/// The running retransmission timer; one at a time (RFC 8985 section 7.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Timer {
    /// No timer.
    None,
    /// Retransmission timeout (RFC 6298).
    Retransmission,
    /// Tail-loss probe (RFC 8985 section 7).
    Probe,
    /// RACK reordering timer (RFC 8985 section 6.2, step 5).
    Reordering,
    /// Zero-window probe (RFC 9293 section 3.8.6.1).
    Persist,
    /// An echo of congestion at a window of one segment: new data waits (RFC 3168 section 6.1.2).
    Held,
}

impl Timer {
    /// The timer stored as `byte` by [`Hot::set_timer`].
    #[inline]
    fn from_byte(byte: u8) -> Self {
        match byte {
            1 => Self::Retransmission,
            2 => Self::Probe,
            3 => Self::Reordering,
            4 => Self::Persist,
            5 => Self::Held,
            _ => Self::None,
        }
    }
}

/// Boolean flags of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub(crate) struct Flags(u32);

impl Flags {
    const EMPTY: Self = Self(0);
    /// Listed in the queue of sessions with something to send.
    pub(crate) const READY: Self = Self(1 << 0);
    /// Listed in the queue of pending events.
    pub(crate) const EVENT: Self = Self(1 << 1);
    /// Timestamps option negotiated (RFC 7323 section 3.2).
    pub(crate) const TIMESTAMPS: Self = Self(1 << 2);
    /// SACK-permitted negotiated (RFC 2018 section 2).
    pub(crate) const SACK: Self = Self(1 << 3);
    /// An acknowledgment is owed at the end of this round.
    pub(crate) const ACK_NOW: Self = Self(1 << 4);
    /// A delayed acknowledgment is owed; it may ride on data (RFC 9293 section 3.8.6.3).
    pub(crate) const ACK_LATER: Self = Self(1 << 5);
    /// The application has closed its sending side; the FIN follows the buffered data.
    pub(crate) const FIN_QUEUED: Self = Self(1 << 6);
    /// Our FIN has been sent; it is counted in `snd_nxt`.
    pub(crate) const FIN_SENT: Self = Self(1 << 7);
    /// The peer's FIN was received in order.
    pub(crate) const FIN_RECEIVED: Self = Self(1 << 8);
    /// Orphaned: the application has closed its handle.
    pub(crate) const DETACHED: Self = Self(1 << 9);
    /// Nagle's algorithm is disabled (`TCP_NODELAY`).
    pub(crate) const NO_DELAY: Self = Self(1 << 10);
    /// The congestion window held data back and may grow (RFC 9293 section 3.8.2, RFC 7661).
    pub(crate) const CWND_LIMITED: Self = Self(1 << 11);
    /// The application found the send buffer full and waits for room.
    pub(crate) const WANTS_ROOM: Self = Self(1 << 12);
    /// Not yet accepted: in SYN-RECEIVED, or in a listener's accept queue.
    pub(crate) const EMBRYO: Self = Self(1 << 13);
    /// A zero-window probe is to be sent (RFC 9293 section 3.8.6.1).
    pub(crate) const PROBE_WINDOW: Self = Self(1 << 14);
    /// A keepalive probe is to be sent (RFC 9293 section 3.8.4).
    pub(crate) const PROBE_ALIVE: Self = Self(1 << 15);
    /// Our SYN or SYN-ACK is to be sent or retransmitted.
    pub(crate) const SEND_SYN: Self = Self(1 << 16);
    /// Loss recovery is in progress: fast recovery, or after a retransmission timeout.
    pub(crate) const RECOVERY: Self = Self(1 << 17);
    /// A tail-loss probe is to be sent (RFC 8985 section 7.3).
    pub(crate) const PROBE_TAIL: Self = Self(1 << 18);
    /// Partial segments are held back (`TCP_CORK`).
    pub(crate) const CORKED: Self = Self(1 << 19);
    /// Request-response traffic ("ping-pong" mode): acknowledgments are delayed.
    pub(crate) const INTERACTIVE: Self = Self(1 << 20);
    /// Keepalive is enabled.
    pub(crate) const KEEPALIVE: Self = Self(1 << 21);
    /// Waits for the next hop's hardware address.
    pub(crate) const UNRESOLVED: Self = Self(1 << 22);
    /// Waits for its pacer, until `Cold::pacer.wake`.
    pub(crate) const PACED: Self = Self(1 << 23);
    /// The receiving side is shut down (`SHUT_RD`): a read without data returns the end.
    pub(crate) const READ_SHUTDOWN: Self = Self(1 << 24);
    /// An error is pending for the application (`SO_ERROR`).
    pub(crate) const FAILED: Self = Self(1 << 25);
    /// Quick-ACK mode: acknowledgments are not delayed (young session, or data out of order).
    pub(crate) const QUICK: Self = Self(1 << 26);
    /// One retransmission is due regardless of the congestion window (RFC 6675 section 5, step
    /// 4.3).
    pub(crate) const REPAIR_OWED: Self = Self(1 << 27);
    /// A batch of in-order segments: half of it is acknowledged before the whole.
    pub(crate) const HALF_ACK_OWED: Self = Self(1 << 31);
    /// Number of duplicate acknowledgments owed in addition to `ACK_NOW`, 0 to 3: see
    /// [`Hot::owe_dup_ack`].
    const DUP_ACKS_OWED: Self = Self(3 << DUP_ACKS_SHIFT);

    /// Union of both sets, in constants, where `|` is not available yet.
    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Position of [`Flags::DUP_ACKS_OWED`] in the word.
const DUP_ACKS_SHIFT: u32 = 28;
/// Duplicate acknowledgments owed to one batch, at most.
const DUP_ACKS_MAX: u32 = 3;

impl BitOr for Flags {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The control block. Times end in `_us` (wrap after 71 minutes); ticks are the wheel's.
#[derive(Debug, Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(128))]
pub(crate) struct Hot {
    /// Distinguishes successive sessions with this number.
    pub(crate) generation: u32,
    flags: Flags,
    /// A [`State`] below and [`EcnFlags`] above; bytes, since the block is a view of plain memory.
    state: u8,
    /// A [`Timer`].
    timer: u8,
    /// Window scale of the peer's window fields (Snd.Wind.Shift).
    pub(crate) snd_scale: u8,
    /// Window scale of ours (Rcv.Wind.Shift).
    pub(crate) rcv_scale: u8,
    /// Payload bytes of a full segment, options already taken off.
    pub(crate) mss: u16,
    /// Duplicate acknowledgments in a row, for peers without SACK (RFC 5681 section 3.2).
    pub(crate) duplicates: u16,
    // 16
    /// SND.UNA: the first unacknowledged sequence number; for data, the send ring's head.
    pub(crate) snd_una: u32,
    /// SND.NXT: the next sequence number to be sent.
    pub(crate) snd_nxt: u32,
    /// SND.WND: the peer's window, in bytes.
    pub(crate) snd_wnd: u32,
    /// SND.WL1 and SND.WL2: sequence and acknowledgment number of the last window update.
    pub(crate) snd_wl1: u32,
    pub(crate) snd_wl2: u32,
    /// Congestion window, in bytes.
    pub(crate) cwnd: u32,
    /// RCV.NXT: the next sequence number expected; end of the receive ring.
    pub(crate) rcv_nxt: u32,
    /// Right edge of the window advertised to the peer; never moves back.
    pub(crate) rcv_edge: u32,
    // 48
    /// Last acknowledgment number sent (RFC 7323's Last.ACK.sent).
    pub(crate) rcv_acked: u32,
    /// RFC 7323's TS.Recent.
    pub(crate) ts_recent: u32,
    /// Offset of our timestamps from the millisecond clock.
    pub(crate) ts_offset: u32,
    /// RFC 6298's estimators, in microseconds; `srtt_us` is 0 before the first sample.
    pub(crate) srtt_us: u32,
    pub(crate) rttvar_us: u32,
    /// Send time of the only segment in flight, if `scoreboard` is none.
    pub(crate) sent_us: u32,
    /// Time of the last acceptable segment; wraps after 49 days.
    pub(crate) last_received_ms: u32,
    /// Index of the scoreboard; [`NONE`] with nothing in flight, or one segment sent once.
    pub(crate) scoreboard: u32,
    // 80
    /// Index of the out-of-order ranges; [`NONE`] if nothing arrived out of order.
    pub(crate) out_of_order: u32,
    /// Receive ring: data received and not read.
    pub(crate) rx: Ring,
    /// Send ring: data written and not acknowledged.
    pub(crate) tx: Ring,
    // 108
    /// Tick of the session's entry in the timer wheel.
    pub(crate) armed: Tick,
    /// Deadline of `timer`.
    pub(crate) timer_at: Tick,
    /// Deadline of the delayed acknowledgment.
    pub(crate) ack_at: Tick,
    /// Deadline of the slow timers: keepalive, FIN-WAIT-2, TIME-WAIT.
    pub(crate) rare_at: Tick,
    /// Bytes received since an acknowledgment was last sent.
    pub(crate) unacked_bytes: u32,
}

const _: () = assert!(size_of::<Hot>() == 128, "a hot control block is 128 bytes");

impl Hot {
    /// The block of a free number.
    pub(crate) fn closed() -> Self {
        Self {
            generation: 0,
            flags: Flags::EMPTY,
            state: State::Closed as u8,
            timer: Timer::None as u8,
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
            last_received_ms: 0,
            scoreboard: NONE,
            out_of_order: NONE,
            rx: Ring::EMPTY,
            tx: Ring::EMPTY,
            armed: 0,
            timer_at: 0,
            ack_at: 0,
            rare_at: 0,
            unacked_bytes: 0,
        }
    }

    /// The connection's state.
    #[inline]
    pub(crate) fn state(&self) -> State {
        State::from_byte(self.state & STATE_BITS)
    }

    /// True if established without any ECN state that acknowledgments must check: the first
    /// condition of header prediction, and its only one about ECN.
    #[inline]
    pub(crate) fn is_predictable(&self) -> bool {
        self.state & !QUIET_ECN.0 == State::Established as u8
    }

    /// True if any of `flags` is set.
    #[inline]
    pub(crate) fn has_ecn(&self, flags: EcnFlags) -> bool {
        self.state & flags.0 != 0
    }

    #[inline]
    pub(crate) fn set_ecn(&mut self, flags: EcnFlags) {
        self.state |= flags.0;
    }

    #[inline]
    pub(crate) fn clear_ecn(&mut self, flags: EcnFlags) {
        self.state &= !flags.0;
    }

    #[inline]
    pub(crate) fn set_state(&mut self, state: State) {
        self.state = self.state & !STATE_BITS | state as u8;
    }

    /// The retransmission timer that runs.
    #[inline]
    pub(crate) fn timer(&self) -> Timer {
        Timer::from_byte(self.timer)
    }

    #[inline]
    pub(crate) fn set_timer(&mut self, timer: Timer) {
        self.timer = timer as u8;
    }

    /// True if any of `flags` is set.
    #[inline]
    pub(crate) fn has(&self, flags: Flags) -> bool {
        self.flags.0 & flags.0 != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, flags: Flags) {
        self.flags.0 |= flags.0;
    }

    #[inline]
    pub(crate) fn clear(&mut self, flags: Flags) {
        self.flags.0 &= !flags.0;
    }

    /// Those of `flags` that are set.
    #[inline]
    pub(crate) fn flags_in(&self, flags: Flags) -> Flags {
        Flags(self.flags.0 & flags.0)
    }

    /// Duplicate acknowledgments owed for out-of-order segments of this batch (RFC 5681 section
    /// 4.2), 0 to 3.
    #[inline]
    pub(crate) fn dup_acks_owed(&self) -> u32 {
        (self.flags.0 & Flags::DUP_ACKS_OWED.0) >> DUP_ACKS_SHIFT
    }

    /// Counts one more, up to three.
    #[inline]
    pub(crate) fn owe_dup_ack(&mut self) {
        let owed = (self.dup_acks_owed() + 1).min(DUP_ACKS_MAX);
        self.clear(Flags::DUP_ACKS_OWED);
        self.flags.0 |= owed << DUP_ACKS_SHIFT;
    }

    /// Clears the count.
    #[inline]
    pub(crate) fn clear_dup_acks(&mut self) {
        self.clear(Flags::DUP_ACKS_OWED);
    }

    /// Sequence numbers in flight.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.snd_nxt.wrapping_sub(self.snd_una)
    }
}

/// ECN flags that an incoming expected segment does not change.
const QUIET_ECN: EcnFlags =
    EcnFlags(EcnFlags::NEGOTIATED.0 | EcnFlags::ECHO_OWED.0 | EcnFlags::CWR_OWED.0);

/// Flags about the data written last, which most sessions never need. They are stored with the
/// path, which every write and every segment touches, so that checking them costs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub(crate) struct Tail(u8);

impl Tail {
    /// No flag.
    pub(crate) const EMPTY: Self = Self(0);
    /// The application announced more (`MSG_MORE`): a partial segment waits for it, or for the next
    /// acknowledgment.
    pub(crate) const HELD: Self = Self(1 << 0);
    /// The end of the data is not the end of a message: sent without PSH.
    pub(crate) const UNPUSHED: Self = Self(1 << 1);
    /// The ring has record marks or bytes to be timestamped: see [`crate::tcp::marks`].
    pub(crate) const MARKED: Self = Self(1 << 2);
    /// Unsent data is bounded (`TCP_NOTSENT_LOWAT`).
    pub(crate) const LOW_WATER: Self = Self(1 << 3);
    /// The send buffer counts its content as Linux's does (`SO_SNDBUF`).
    pub(crate) const SIZED: Self = Self(1 << 6);
    /// All data that is held back is sent once, despite a cork or `MSG_MORE`.
    pub(crate) const FLUSH: Self = Self(1 << 5);
    /// Busy and limited times are counted: see [`crate::tcp::chronograph`].
    pub(crate) const TIMED: Self = Self(1 << 4);
    /// A model of the path controls congestion: see [`crate::tcp::model`].
    pub(crate) const MODELLED: Self = Self(1 << 7);

    /// True if any of `others` is set.
    #[inline]
    pub(crate) fn has(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, others: Self) {
        self.0 |= others.0;
    }

    #[inline]
    pub(crate) fn clear(&mut self, others: Self) {
        self.0 &= !others.0;
    }
}

impl BitOr for Tail {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A session's addresses and path: one cache line.
#[derive(Debug, Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(64))]
pub(crate) struct Path {
    pub(crate) local: Ip,
    pub(crate) remote: Ip,
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
    /// Hash of the addresses, the key of the lookup table.
    pub(crate) hash: u32,
    /// The next hop's neighbour entry, and its generation.
    pub(crate) neighbor: u16,
    pub(crate) neighbor_generation: u16,
    /// Path MTU, in bytes.
    pub(crate) mtu: u16,
    /// Payload bytes of a super-segment on this interface, without the headers; 0 for none.
    pub(crate) super_bytes: u16,
    /// Bounds of the two rings, in bytes.
    pub(crate) send_bytes: u32,
    pub(crate) receive_bytes: u32,
    /// End of the last new segment sent that was not full-sized (Minshall's modification of Nagle's
    /// algorithm); retransmissions do not count.
    pub(crate) small_end: u32,
    /// Consecutive retransmission timeouts, or probes: the back-off.
    pub(crate) retries: u8,
    /// Flags about the data written last.
    pub(crate) tail: Tail,
    /// Traffic class of sent packets: six bits of DSCP (RFC 2474), without ECN's two.
    pub(crate) traffic_class: u8,
    /// Flags [`Path::ECT_SEEN`] and following.
    pub(crate) ecn: u8,
}

const _: () = assert!(size_of::<Path>() == 64, "a session's ends are one line");

impl Path {
    /// In `ecn`: the peer has sent data as ECN-capable (TCP_INFO's `TCPI_OPT_ECN_SEEN`).
    pub(crate) const ECT_SEEN: u8 = 1;
    /// In `ecn`: we have sent both a SYN that asked for ECN and one that did not, so that our data
    /// must not be ECN-capable, while the peer's is (RFC 3168 section 6.1.1).
    pub(crate) const NO_ECT: u8 = 2;
    /// In `ecn`: marks are counted (RFC 9768), see [`crate::tcp::accurate`].
    pub(crate) const ACCURATE: u8 = 4;
    /// In `ecn`, if it is accurate: the last received segment was marked.
    pub(crate) const CE_LAST: u8 = 8;
    /// In `ecn`, if it is accurate: the next pure acknowledgment has the handshake's encoding (RFC
    /// 9768 section 3.2.2.1).
    pub(crate) const OPENING: u8 = 16;
    /// Position in `ecn` of the three bits for each outgoing segment: the low bits of the counter
    /// of marked packets (ACE, RFC 9768 section 3.2.2).
    pub(crate) const ACE_SHIFT: u32 = 5;

    /// The addresses and ports.
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
