//! Sizes of segments: how much one frame carries, when a small one may go, and what pacing permits.
//!
//! Source: RFC 9293 sections 3.7.4 (Nagle), 3.8.6.2.1 (silly windows) and 3.9.1.2 (PSH).

use super::Output;
use crate::shared::config::Behaviour;
use crate::state::flags::{Flags, SendTail};
use crate::wire::sequence::Sequence;
use sidecore_bare::width::{ToU64, ToUsize};

/// Round trips, in microseconds, up to which a super-segment may have the link's full size.
const SHORT_ROUND_US: u32 = 512;
/// That size.
const SUPER_BYTES_MAX: u64 = 0xffff;

impl Output<'_, '_> {
    /// The part of `unsent` bytes that one segment may carry: up to a record's end.
    #[inline]
    pub(super) fn record_left(&self, unsent: usize) -> usize {
        if self.session.path.tail.has(SendTail::MARKED) {
            let nxt = self.session.hot.send.nxt;
            self.session.cold.marks.record_bytes(nxt, unsent)
        } else {
            unsent
        }
    }

    /// True if `len` bytes up to `end` are sent with PSH; `last`: they are the last in the buffer.
    ///
    /// RFC 9293 section 3.9.1.2 (MUST-61) requires it for the last data in the buffer, unless the
    /// application announced more. Super-segments always have it, as Linux's do: a peer's NIC that
    /// merges segments then delivers them at once.
    #[inline]
    pub(super) fn pushes(&self, end: Sequence, len: usize, last: bool) -> bool {
        let tail = self.session.path.tail;
        len > usize::from(self.session.hot.mss)
            || last && !tail.has(SendTail::UNPUSHED)
            || tail.has(SendTail::MARKED) && self.session.cold.marks.is_record_end(end)
    }

    /// True if a burst ends with the next `len` bytes: the segments that would be one super-segment
    /// of a link that cuts those. Linux's have PSH there, too, where it cuts them itself.
    #[inline]
    pub(super) fn burst_ends(&mut self, len: usize) -> bool {
        let mss = usize::from(self.session.hot.mss);
        if usize::from(self.session.path.super_bytes) > mss
            || self.session.common.config.behaviour == Behaviour::Standard
        {
            return false;
        }
        self.burst += len;
        let most = self.burst_bytes().min(self.halves());
        self.burst > mss && self.burst + mss > most
    }

    /// True if no whole segment fits into the peer's window after the next `len` bytes: the peer
    /// gets no more until its application has read, for which it may wait for PSH.
    #[inline]
    pub(super) fn fills_window(&self, len: usize) -> bool {
        self.session.hot.send.left() < len + usize::from(self.session.hot.mss)
    }

    /// Payload bytes of new data that one frame may carry.
    #[inline]
    pub(super) fn chunk_bytes(&self) -> usize {
        let mss = usize::from(self.session.hot.mss);
        if usize::from(self.session.path.super_bytes) <= mss {
            return mss;
        }
        self.piece_bytes(self.halves().min(self.burst_bytes()))
    }

    /// Half a window at most: the acknowledgment of the first half arrives while the second is
    /// sent.
    #[inline]
    fn halves(&self) -> usize {
        (self.session.hot.send.cwnd.to_usize() / 2).min(self.window_half())
    }

    /// Payload bytes of a frame with at most `most` of them: whole segments only, otherwise each
    /// super-segment would end with a small packet.
    #[inline]
    pub(super) fn piece_bytes(&self, most: usize) -> usize {
        let mss = usize::from(self.session.hot.mss);
        let most = most.min(usize::from(self.session.path.super_bytes));
        if most > mss { most - most % mss } else { mss }
    }

    /// Half of the largest window that the peer has advertised, if that is less than a
    /// super-segment.
    #[inline]
    fn window_half(&self) -> usize {
        let super_bytes = usize::from(self.session.path.super_bytes);
        if self.session.hot.send.wnd.to_usize() / 2 >= super_bytes {
            return usize::MAX;
        }
        self.session.cold.window_max.to_usize() / 2
    }

    /// Bytes of one super-segment at this session's rate: the amount sent in a millisecond at twice
    /// the rate, and on short paths more, as in Linux (`tcp_tso_autosize`). A burst of 64 KiB on a
    /// slow path fills a queue shared with other flows, and a loss means retransmitting all of it.
    #[inline]
    fn burst_bytes(&self) -> usize {
        let srtt_us = self.session.hot.rtt.smoothed_us;
        if srtt_us < SHORT_ROUND_US {
            return usize::MAX;
        }
        let cwnd = u64::from(self.session.hot.send.cwnd);
        let rated = cwnd * 2_000_000 / 1_024 / u64::from(srtt_us);
        let more = SUPER_BYTES_MAX
            .checked_shr(srtt_us / SHORT_ROUND_US)
            .unwrap_or(0);
        let segments = usize::from(self.session.common.config.burst_segments_min);
        let least = segments * usize::from(self.session.hot.mss);
        (rated + more).to_usize().max(least)
    }

    /// Nagle's algorithm and silly-window avoidance: true if a partial segment of `len` bytes may
    /// be sent.
    pub(super) fn may_send_small(&self, len: usize, unsent: usize, fin: bool) -> bool {
        if len == 0 {
            return false;
        }
        if len < unsent {
            // RFC 9293 section 3.8.6.2.1 (3): a window of less than a segment, if it is at least
            // half of the largest one.
            return len >= self.session.cold.window_max.to_usize() / 2;
        }
        let tail = self.session.path.tail;
        if fin || tail.has(SendTail::FLUSH) {
            return true;
        }
        let hot = &*self.session.hot;
        if hot.has(Flags::CORKED) || tail.has(SendTail::HELD) {
            return false;
        }
        hot.has(Flags::NO_DELAY) || !self.small_in_flight()
    }

    /// True while a partial segment is unacknowledged: no other partial segment is sent meanwhile.
    /// RFC 9293 section 3.7.4 applies this to any segment; with Minshall's change ("A Proposed
    /// Modification to Nagle's Algorithm", 1999, section 3), which Linux also has, the rest of a
    /// long write does not wait for the peer's delayed acknowledgment.
    #[inline]
    fn small_in_flight(&self) -> bool {
        let (send, end) = (&self.session.hot.send, self.session.path.small_end);
        send.una < end && end <= send.nxt
    }

    /// The part of `len` bytes permitted by the windows that may be sent now; 0 if the session has
    /// to wait, for which it is then in the wheel.
    #[inline]
    pub(super) fn paced(&mut self, len: usize) -> usize {
        if self.session.may_be_paced() {
            self.paced_len(len)
        } else {
            len
        }
    }

    #[cold]
    fn paced_len(&mut self, len: usize) -> usize {
        let session = &mut self.session;
        let Some(rate) = session.pacing_rate() else {
            return len;
        };
        let (mss, now_ns) = (session.hot.mss, session.common.now_ns);
        let pacer = &mut session.cold.pacer;
        let permitted = match session.common.config.behaviour {
            Behaviour::Standard => pacer.permit(rate, mss, len, now_ns),
            Behaviour::Linux => pacer.permit_whole(len, now_ns),
        };
        if permitted == 0 {
            session.hot.set(Flags::PACED);
            session.arm_wheel();
        }
        permitted
    }

    /// Accounts for sent bytes.
    #[inline]
    pub(super) fn note_paced(&mut self, len: usize) {
        let session = &mut self.session;
        if session.may_be_paced()
            && let Some(rate) = session.pacing_rate()
        {
            let now_ns = session.common.now_ns;
            let (pacer, len) = (&mut session.cold.pacer, len.to_u64());
            match session.common.config.behaviour {
                Behaviour::Standard => pacer.sent(rate, len, now_ns),
                Behaviour::Linux => pacer.sent_whole(rate, len, now_ns),
            }
        }
    }
}
