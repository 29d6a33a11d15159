//! The hot control block: the state used for an in-order segment, its acknowledgment and its reply.
//!
//! Its parts own their fields and the rules about them: [`SendWindow`], [`ReceiveWindow`],
//! [`Timestamps`], [`RoundTrip`], [`EcnState`]. Each is a stretch of the block.
//!
//! Must stay true: 128 bytes, two cache lines of this machine and one DMA line of the engine.

use super::Timestamps;
use super::ecn::EcnState;
use super::flags::{Flags, SendTail};
use super::rtt::RoundTrip;
use super::window::{ReceiveWindow, Scales, SendWindow};
use crate::buffer::NONE;
use crate::buffer::ring::Ring;
use crate::secrets::Ends;
use crate::timer::Tick;
use crate::wire::Ip;
use crate::wire::sequence::Sequence;
use sidecore_bare::width::ToUsize;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// TCP connection state (RFC 9293 section 3.3.2). A listener is in LISTEN, and has no session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are the RFC's")]
pub enum State {
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
    /// The timer stored as `byte` by [`Hot::start_timer`].
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

/// The control block. Times end in `_us` (wrap after 71 minutes); ticks are the wheel's.
#[derive(Debug, Clone, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C, align(128))]
pub(crate) struct Hot {
    /// Distinguishes successive sessions with this number.
    pub(crate) generation: u32,
    flags: Flags,
    /// A [`State`], and below a [`Timer`]: bytes, since the block is a view of plain memory.
    state: u8,
    timer: u8,
    /// Explicit congestion notification.
    pub(crate) ecn: EcnState,
    /// Payload bytes of a full segment, options already taken off.
    pub(crate) mss: u16,
    /// Duplicate acknowledgments in a row, for peers without SACK (RFC 5681 section 3.2).
    pub(crate) duplicates: u16,
    // 16
    /// Send side: numbers, the peer's window, the congestion window.
    pub(crate) send: SendWindow,
    /// Receive side. SND.UNA is the send ring's head, RCV.NXT the receive ring's end.
    pub(crate) receive: ReceiveWindow,
    // 52
    pub(crate) timestamps: Timestamps,
    pub(crate) rtt: RoundTrip,
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
    timer_at: Tick,
    /// Deadline of the delayed acknowledgment.
    pub(crate) ack_at: Tick,
    /// Deadline of the slow timers: keepalive, FIN-WAIT-2, TIME-WAIT.
    pub(crate) slow_at: Tick,
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
            ecn: EcnState::OFF,
            mss: 0,
            duplicates: 0,
            send: SendWindow::default(),
            receive: ReceiveWindow::default(),
            timestamps: Timestamps::default(),
            rtt: RoundTrip::default(),
            sent_us: 0,
            last_received_ms: 0,
            scoreboard: NONE,
            out_of_order: NONE,
            rx: Ring::EMPTY,
            tx: Ring::EMPTY,
            armed: 0,
            timer_at: 0,
            ack_at: 0,
            slow_at: 0,
            unacked_bytes: 0,
        }
    }

    /// The connection's state.
    #[inline]
    pub(crate) fn state(&self) -> State {
        State::from_byte(self.state)
    }

    #[inline]
    pub(crate) fn set_state(&mut self, state: State) {
        self.state = state as u8;
    }

    /// The retransmission timer that runs.
    #[inline]
    pub(crate) fn timer(&self) -> Timer {
        Timer::from_byte(self.timer)
    }

    /// Deadline of that timer; 0 if none runs.
    #[inline]
    pub(crate) fn timer_at(&self) -> Tick {
        self.timer_at
    }

    /// Starts a retransmission timer in place of the one that runs. The caller enters the deadline
    /// into the wheel.
    #[inline]
    pub(crate) fn start_timer(&mut self, timer: Timer, at: Tick) {
        self.timer = timer as u8;
        self.timer_at = at;
    }

    /// Stops the retransmission timer; its entry in the wheel finds nothing to do.
    #[inline]
    pub(crate) fn stop_timer(&mut self) {
        self.start_timer(Timer::None, 0);
    }

    /// True if any of `flags` is set.
    #[inline]
    pub(crate) fn has(&self, flags: Flags) -> bool {
        self.flags.has(flags)
    }

    #[inline]
    pub(crate) fn set(&mut self, flags: Flags) {
        self.flags.set(flags);
    }

    #[inline]
    pub(crate) fn clear(&mut self, flags: Flags) {
        self.flags.clear(flags);
    }

    /// Sets the flags, or clears them.
    pub(crate) fn switch(&mut self, flags: Flags, on: bool) {
        if on {
            self.set(flags);
        } else {
            self.clear(flags);
        }
    }

    /// Those of `flags` that are set.
    #[inline]
    pub(crate) fn flags_in(&self, flags: Flags) -> Flags {
        self.flags.intersection(flags)
    }

    /// Duplicate acknowledgments owed for out-of-order segments of this batch, 0 to 3.
    #[inline]
    pub(crate) fn dup_acks_owed(&self) -> u32 {
        self.flags.dup_acks_owed()
    }

    /// Counts one more of them.
    #[inline]
    pub(crate) fn owe_dup_ack(&mut self) {
        self.flags.owe_dup_ack();
    }

    /// Clears their count.
    #[inline]
    pub(crate) fn clear_dup_acks(&mut self) {
        self.flags.clear_dup_acks();
    }

    /// Time since an acceptable segment was last received, in milliseconds.
    pub(crate) fn silent_ms(&self, now_ms: u32) -> u32 {
        now_ms.wrapping_sub(self.last_received_ms)
    }

    /// True if a FIN is to be sent that was not sent yet.
    #[inline]
    pub(crate) fn fin_waits(&self) -> bool {
        self.has(Flags::FIN_QUEUED) && !self.has(Flags::FIN_SENT)
    }

    /// Bytes of the send ring that were never sent.
    #[inline]
    pub(crate) fn unsent(&self) -> usize {
        // A FIN in flight has a sequence number, and no byte in the ring.
        let fin = u32::from(self.has(Flags::FIN_SENT));
        let flying = self.send.in_flight().saturating_sub(fin);
        self.tx.len().saturating_sub(flying.to_usize())
    }

    /// True if the receive ring accepts `bytes` more, in order.
    pub(crate) fn takes_in_order(&self, bytes: usize) -> bool {
        self.state() == State::Established
            && self.out_of_order == NONE
            && !self.has(Flags::READ_SHUTDOWN | Flags::DETACHED)
            && bytes <= self.receive.left().to_usize()
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
    pub(crate) small_end: Sequence,
    /// Consecutive retransmission timeouts, or probes: the back-off.
    pub(crate) retries: u8,
    /// Flags about the data written last.
    pub(crate) tail: SendTail,
    /// Traffic class of sent packets: six bits of DSCP (RFC 2474), without ECN's two.
    pub(crate) traffic_class: u8,
    /// Scales of the two window fields.
    pub(crate) scales: Scales,
}

const _: () = assert!(size_of::<Path>() == 64, "a session's ends are one line");

impl Path {
    /// Number and generation of the next hop's entry.
    pub(crate) fn hop(&self) -> (u16, u16) {
        (self.neighbor, self.neighbor_generation)
    }

    /// True if a model of the path determines window and rate.
    #[inline]
    pub(crate) fn is_modelled(&self) -> bool {
        self.tail.has(SendTail::MODELLED)
    }

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
