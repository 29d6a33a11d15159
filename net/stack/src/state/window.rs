//! The two windows of a session: what may be sent, and what the peer may send.
//!
//! Source: RFC 9293 sections 3.3.1 (names), 3.8.6 (windows) and 3.10.7.4 (their update), RFC 7323
//! section 2 (scales).

use crate::wire::sequence::Sequence;
use sidecore_bare::width::ToUsize;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A window field without a scale.
const FIELD_MAX: u32 = 0xffff;

/// Sequence numbers of the data sent, and the two windows that limit it.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct SendWindow {
    /// SND.UNA: the first unacknowledged sequence number.
    pub(crate) una: Sequence,
    /// SND.NXT: the next sequence number to be sent.
    pub(crate) nxt: Sequence,
    /// SND.WND: the peer's window, in bytes.
    pub(crate) wnd: u32,
    /// SND.WL1 and SND.WL2: sequence and acknowledgment number of the last window update.
    pub(crate) wl1: Sequence,
    pub(crate) wl2: Sequence,
    /// Congestion window, in bytes.
    pub(crate) cwnd: u32,
}

impl SendWindow {
    /// Sequence numbers in flight.
    #[inline]
    pub(crate) fn in_flight(&self) -> u32 {
        self.nxt - self.una
    }

    /// Unused part of the peer's window, in bytes.
    #[inline]
    pub(crate) fn left(&self) -> usize {
        // Negative if the peer shrank its window (RFC 9293 section 3.8.6).
        let left = (self.una + self.wnd).distance(self.nxt).max(0);
        left.cast_unsigned().to_usize()
    }

    /// Takes the window of a segment, and its numbers.
    #[inline]
    pub(crate) fn set(&mut self, window: u32, sequence: Sequence, acknowledgment: Sequence) {
        self.wnd = window;
        self.wl1 = sequence;
        self.wl2 = acknowledgment;
    }

    /// RFC 9293 section 3.10.7.4: true if a segment with these numbers has the newest window; as in
    /// Linux, also a retransmitted one, if it acknowledges more. An old window with a new
    /// acknowledgment number would have an edge that the peer never advertised.
    #[inline]
    pub(crate) fn is_newer(&self, sequence: Sequence, acknowledgment: Sequence) -> bool {
        self.una < acknowledgment
            || self.wl1 < sequence
            || self.wl1 == sequence && self.wl2 <= acknowledgment
    }

    /// Part of the congestion window that was in use, in bytes. A window that held data back
    /// (`limited`) was used in full, even if an acknowledgment has just reduced the flight; limited
    /// transmit does not count (RFC 5681 section 3.2 step 2).
    pub(crate) fn used(&self, limited: bool) -> u32 {
        if limited {
            self.cwnd
        } else {
            self.in_flight().min(self.cwnd)
        }
    }
}

/// Sequence numbers of the data received, and the window advertised for it.
#[derive(Debug, Clone, Copy, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct ReceiveWindow {
    /// RCV.NXT: the next sequence number expected.
    pub(crate) nxt: Sequence,
    /// Right edge of the window advertised to the peer; never moves back.
    pub(crate) edge: Sequence,
    /// Last acknowledgment number sent (RFC 7323's Last.ACK.sent).
    pub(crate) acked: Sequence,
}

impl ReceiveWindow {
    /// Bytes that the peer may still send, as far as it knows.
    #[inline]
    pub(crate) fn left(&self) -> u32 {
        self.edge - self.nxt
    }

    /// True if a segment from `start` to before `end` is acceptable. As in Linux, one at the edge
    /// of the window is, so that its acknowledgment and its FIN are not lost.
    #[inline]
    pub(crate) fn accepts(&self, start: Sequence, end: Sequence) -> bool {
        end >= self.nxt
            && start <= self.edge
            // A keepalive probe is entirely before the expected number.
            && !(start < self.nxt && end == self.nxt)
    }

    /// Advance of the edge, if the window were now as large as a buffer of `bytes` with `held`
    /// permits; negative if the buffer is fuller than the edge allows for.
    #[inline]
    pub(crate) fn gain(&self, bytes: u32, held: usize, scale: u8) -> i32 {
        // The ring holds no more than 2^32 bytes, and a full one has no room.
        let room = u32::try_from(held).map_or(0, |held| bytes.saturating_sub(held));
        let room = room.min(FIELD_MAX << scale);
        (self.nxt + room).distance(self.edge)
    }

    /// The window field of a segment that is being sent; advances the advertised edge.
    #[inline]
    pub(crate) fn advertise(&mut self, bytes: u32, held: usize, scale: u8, mss: u16) -> u16 {
        let gain = self.gain(bytes, held, scale);
        // RFC 9293 section 3.8.6.2.2: the edge advances by whole segments; and section 3.8.6: it
        // never moves back.
        let least = (bytes / 2).min(u32::from(mss));
        if gain > 0 && gain.cast_unsigned() >= least {
            self.edge += gain.cast_unsigned();
        }
        field_of(self.left() >> scale)
    }

    /// The window field of a SYN, which is never scaled: RFC 7323 section 2.2.
    #[inline]
    pub(crate) fn first_field(&self) -> u16 {
        field_of(self.left())
    }
}

/// A window as a field, or the largest field.
#[inline]
pub(crate) fn field_of(window: u32) -> u16 {
    u16::try_from(window).unwrap_or(u16::MAX)
}

/// Window scales of both directions, 0 to 14 each: the peer's (Snd.Wind.Shift) in the low half of
/// the byte, ours (Rcv.Wind.Shift) in the high one.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable,
)]
#[repr(transparent)]
pub(crate) struct Scales(u8);

impl Scales {
    /// Scales of the peer's window fields, and of ours.
    pub(crate) fn new(send: u8, receive: u8) -> Self {
        debug_assert!(send <= 14 && receive <= 14, "RFC 7323 section 2.3");
        Self(send | receive << 4)
    }

    /// The scale of the peer's fields.
    #[inline]
    pub(crate) fn send(self) -> u8 {
        self.0 & 15
    }

    /// The scale of ours.
    #[inline]
    pub(crate) fn receive(self) -> u8 {
        self.0 >> 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn send() -> SendWindow {
        SendWindow {
            una: Sequence::new(u32::MAX - 99),
            nxt: Sequence::new(200),
            wnd: 1_000,
            wl1: Sequence::new(50),
            wl2: Sequence::new(u32::MAX - 99),
            cwnd: 250,
        }
    }

    #[test]
    fn a_window_that_the_peer_shrank_has_no_room() {
        let mut window = send();
        assert_eq!((window.in_flight(), window.left()), (300, 700));
        window.wnd = 299;
        assert_eq!(window.left(), 0);
        assert_eq!((window.used(true), window.used(false)), (250, 250));
        window.nxt = window.una + 100;
        assert_eq!((window.used(true), window.used(false)), (250, 100));
    }

    #[test]
    fn only_the_newest_segment_updates_the_window() {
        let window = send();
        let (una, old) = (window.una, Sequence::new(49));
        assert!(!window.is_newer(old, una));
        assert!(window.is_newer(old, una + 1), "it acknowledges more");
        assert!(window.is_newer(Sequence::new(51), una));
        assert!(window.is_newer(window.wl1, una));
        assert!(!window.is_newer(window.wl1, una - 1));
    }

    #[test]
    fn an_edge_advances_by_whole_segments_and_never_back() {
        let mut window = ReceiveWindow::default();
        assert_eq!(window.advertise(10_000, 0, 0, 1_000), 10_000);
        window.nxt += 500;
        // Half a segment more: not worth it.
        assert_eq!(window.advertise(10_000, 0, 0, 1_000), 9_500);
        window.nxt += 500;
        assert_eq!(window.advertise(10_000, 0, 0, 1_000), 10_000);
        // The buffer is full of unread data, and the edge stays.
        window.nxt += 4_000;
        assert_eq!(window.advertise(10_000, 10_000, 0, 1_000), 6_000);
        assert!(window.gain(10_000, 10_000, 0) < 0);
    }

    #[test]
    fn a_scaled_field_holds_the_largest_window() {
        let mut window = ReceiveWindow::default();
        assert_eq!(window.advertise(1 << 30, 0, 8, 1_460), u16::MAX);
        assert_eq!(window.left(), 0xffff << 8);
        assert_eq!(window.first_field(), u16::MAX);
        let scales = Scales::new(3, 14);
        assert_eq!((scales.send(), scales.receive()), (3, 14));
    }

    #[test]
    fn segments_at_the_edges_are_acceptable_and_probes_before_are_not() {
        let window = ReceiveWindow {
            nxt: Sequence::new(100),
            edge: Sequence::new(200),
            acked: Sequence::new(100),
        };
        let accepts = |start, end| window.accepts(Sequence::new(start), Sequence::new(end));
        assert!(accepts(100, 150) && accepts(50, 150) && accepts(100, 100) && accepts(200, 300));
        assert!(!accepts(99, 100) && !accepts(50, 99) && !accepts(201, 201));
    }
}
