//! The flags of a session: those that each segment may need, and those about the end of the data
//! written.

use std::ops::BitOr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Boolean flags of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub(crate) struct Flags(u32);

impl Flags {
    pub(super) const EMPTY: Self = Self(0);
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
    /// Our FIN has been sent; it is counted in SND.NXT.
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
    /// Waits for its pacer, until `Pacer::wake`.
    pub(crate) const PACED: Self = Self(1 << 23);
    /// The receiving side is shut down (`SHUT_RD`): a read without data returns the end.
    pub(crate) const READ_SHUTDOWN: Self = Self(1 << 24);
    /// An error is pending for the application (`SO_ERROR`).
    pub(crate) const FAILED: Self = Self(1 << 25);
    /// Quick-ACK mode: acknowledgments are not delayed (young session, or data out of order).
    pub(crate) const QUICK: Self = Self(1 << 26);
    /// One retransmission is due regardless of the congestion window (RFC 6675 section 5, step
    /// 4.3).
    pub(crate) const RETRANSMIT_OWED: Self = Self(1 << 27);
    /// The NIC had no room for the next segment, and nothing is in flight whose timer would run.
    pub(crate) const REFUSED: Self = Self(1 << 30);
    /// A batch of in-order segments: half of it is acknowledged before the whole.
    pub(crate) const HALF_ACK_OWED: Self = Self(1 << 31);
    /// Number of duplicate acknowledgments owed in addition to `ACK_NOW`, 0 to 3: see
    /// [`Flags::owe_dup_ack`].
    const DUP_ACKS_OWED: Self = Self(3 << DUP_ACKS_SHIFT);

    /// Both sets, in constants, where `|` is not available yet.
    pub(crate) const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if any of `others` is set.
    #[inline]
    pub(super) fn has(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    #[inline]
    pub(super) fn set(&mut self, others: Self) {
        self.0 |= others.0;
    }

    #[inline]
    pub(super) fn clear(&mut self, others: Self) {
        self.0 &= !others.0;
    }

    /// Those that are in `others`, too.
    #[inline]
    pub(super) fn intersection(self, others: Self) -> Self {
        Self(self.0 & others.0)
    }

    /// Duplicate acknowledgments owed for out-of-order segments of this batch (RFC 5681 section
    /// 4.2), 0 to 3.
    #[inline]
    pub(super) fn dup_acks_owed(self) -> u32 {
        (self.0 & Self::DUP_ACKS_OWED.0) >> DUP_ACKS_SHIFT
    }

    /// Counts one more, up to three.
    #[inline]
    pub(super) fn owe_dup_ack(&mut self) {
        let owed = (self.dup_acks_owed() + 1).min(DUP_ACKS_MAX);
        self.clear(Self::DUP_ACKS_OWED);
        self.0 |= owed << DUP_ACKS_SHIFT;
    }

    /// Clears the count.
    #[inline]
    pub(super) fn clear_dup_acks(&mut self) {
        self.clear(Self::DUP_ACKS_OWED);
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

/// Flags about the data written last, which most sessions never need. They are stored with the
/// path, which every write and every segment touches, so that checking them costs nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub(crate) struct SendTail(u8);

impl SendTail {
    /// No flag.
    pub(crate) const EMPTY: Self = Self(0);
    /// The application announced more (`MSG_MORE`): a partial segment waits for it, or for the next
    /// acknowledgment.
    pub(crate) const HELD: Self = Self(1 << 0);
    /// The end of the data is not the end of a message: sent without PSH.
    pub(crate) const UNPUSHED: Self = Self(1 << 1);
    /// The ring has record marks or bytes to be timestamped: see [`crate::tcp::record_marks`].
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

impl BitOr for SendTail {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owed_duplicates_are_counted_up_to_three_among_the_other_flags() {
        let mut flags = Flags::EMPTY;
        flags.set(Flags::RETRANSMIT_OWED | Flags::HALF_ACK_OWED);
        for owed in [1, 2, 3, 3] {
            flags.owe_dup_ack();
            assert_eq!(flags.dup_acks_owed(), owed);
        }
        assert!(flags.has(Flags::RETRANSMIT_OWED) && flags.has(Flags::HALF_ACK_OWED));
        flags.clear_dup_acks();
        assert_eq!(flags.dup_acks_owed(), 0);
        assert!(flags.has(Flags::RETRANSMIT_OWED) && flags.has(Flags::HALF_ACK_OWED));
    }
}
