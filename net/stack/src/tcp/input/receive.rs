//! Received data, in order and out of order, and the FIN after it.
//!
//! Source: RFC 9293 sections 3.8.6.2.2 (window) and 3.8.6.3 (delayed acknowledgments), RFC 5681
//! section 4.2, RFC 2018, RFC 2883.

use super::Input;
use crate::buffer::NONE;
use crate::error::SessionError;
use crate::state::flags::Flags;
use crate::state::hot::State;
use crate::tcp::Session;
use crate::wire::sequence::{Range, Sequence};
use crate::wire::tcp::FIN;
use sidecore_bare::width::ToUsize;

/// From this size on a second segment is acknowledged at once, whatever the full size is: RFC 9293
/// section 3.8.6.3 counts full-sized segments, and some peers have a smaller MSS than ours.
const FULL_BYTES: usize = 536;
/// Segments of a batch from which on its acknowledgment is preceded by one for half of them.
const HALF_ACK_SEGMENTS_MIN: usize = 4;
/// Immediate acknowledgments after data arrived out of order.
const QUICK_AFTER_GAP: u8 = 8;

impl Input<'_, '_> {
    /// Data that begins at RCV.NXT and fits into the window.
    #[inline]
    pub(super) fn receive_in_order(&mut self, data: &[u8]) {
        let hot = &mut *self.session.hot;
        let held = hot.rx.len();
        if !hot.rx.write_at(&mut self.session.common.pool, held, data) {
            // No memory: it is not acknowledged, so it will be retransmitted.
            self.session.common.counters.no_memory += 1;
            return;
        }
        self.received_in_order(data.len());
    }

    /// The same if the data is in the ring already.
    #[inline]
    pub(super) fn received_in_order(&mut self, len: usize) {
        let hot = &mut *self.session.hot;
        hot.rx.extend(len);
        let nxt = hot.receive.nxt;
        hot.receive.nxt = nxt.after(len);
        let first = hot.unacked_bytes == 0;
        hot.unacked_bytes += hot.receive.nxt - nxt;
        let unacked = hot.unacked_bytes.to_usize();
        // RFC 9293 section 3.8.6.3: at least every second full-sized segment.
        let mss = usize::from(hot.mss);
        if unacked >= HALF_ACK_SEGMENTS_MIN * mss && !first && len <= mss {
            hot.set(Flags::HALF_ACK_OWED);
        }
        let enough = unacked >= 2 * mss || !first && len >= FULL_BYTES;
        if enough || hot.has(Flags::QUICK) {
            self.use_quick();
            self.session.acknowledge_now();
        } else {
            hot.set(Flags::ACK_LATER);
            self.session.make_ready();
        }
        self.session.notify();
    }

    /// The first acknowledgments of a session are sent at once, so that they do not delay the
    /// peer's slow start; later, or once data and replies alternate, they may be delayed.
    #[inline]
    fn use_quick(&mut self) {
        let (hot, cold) = (&mut *self.session.hot, &mut *self.session.cold);
        if hot.has(Flags::QUICK) {
            cold.quick = cold.quick.saturating_sub(1);
            if cold.quick == 0 {
                hot.clear(Flags::QUICK);
            }
        }
    }

    /// Processes the text and the FIN of an acceptable segment, in any order.
    pub(super) fn receive(&mut self) {
        let segment = self.segment;
        let start = segment.sequence;
        let mut data = segment.payload;
        let mut from = start;
        let fin_at = start.after(data.len());
        let mut fin = segment.has(FIN);
        let hot = &*self.session.hot;
        if (data.is_empty() && !fin) || hot.has(Flags::FIN_RECEIVED) || !hot.state().receives() {
            return;
        }
        if hot.has(Flags::DETACHED) && hot.receive.nxt < fin_at {
            self.refuse_data();
            return;
        }
        if !data.is_empty() && hot.ecn.is_negotiated() {
            let noted = self.session.ecn().note_data(segment);
            self.take_marks(noted);
        }
        let window = self.session.hot.receive;
        // Data before the window was received already.
        if from < window.nxt {
            let old = (window.nxt - from).to_usize().min(data.len());
            data = &data[old..];
            if self.session.hot.has(Flags::SACK) {
                let end = from.after(old);
                self.duplicate(Range { start: from, end });
            }
            from = from.after(old);
            self.session.acknowledge_now();
        }
        // Data behind the window will be retransmitted.
        let room = (window.edge - from).to_usize();
        if data.len() > room {
            data = &data[..room];
            fin = false;
            self.session.acknowledge_now();
        }
        if from == window.nxt {
            self.receive_next(data, fin);
        } else if window.nxt < from {
            self.receive_ahead(from, data, fin.then_some(fin_at));
        }
    }

    /// RFC 9293 section 3.6.1 (RFC 2525 section 2.17): the data will not be read, so the peer gets
    /// a reset. Like that of a removed session (section 3.10.7.1), it has the number that the peer
    /// expects, whether it has received our FIN or not.
    fn refuse_data(&mut self) {
        let session = &mut self.session;
        let (ends, hop) = (session.path.ends(), session.path.hop());
        let ack = self.segment.acknowledgment;
        session.common.send_reset(&ends, hop, ack);
        session.finish(Some(SessionError::Aborted));
    }

    fn receive_next(&mut self, data: &[u8], fin: bool) {
        let before_it = self.session.hot.receive.nxt;
        let end = before_it.after(data.len());
        // Without a gap, no list has to be joined.
        if self.session.hot.out_of_order == NONE {
            if !data.is_empty() {
                self.receive_in_order(data);
            }
            if fin && self.session.hot.receive.nxt == end {
                self.receive_fin();
            }
            return;
        }
        let (hot, common) = (&mut *self.session.hot, &mut *self.session.common);
        let held = hot.rx.len();
        if !data.is_empty() && !hot.rx.write_at(&mut common.pool, held, data) {
            common.counters.no_memory += 1;
            return;
        }
        // The bytes may close a gap: ranges that follow are in order now.
        let out_of_order = common.out_of_order.get_mut(hot.out_of_order);
        // RFC 2883 section 4.2: a segment may span data that is held already.
        let repeated = out_of_order.overlap(&Range {
            start: before_it,
            end,
        });
        let joined = out_of_order.join(end);
        let fin = fin || out_of_order.fin == Some(joined);
        let done = out_of_order.is_empty() || fin;
        hot.rx.extend((joined - before_it).to_usize());
        hot.receive.nxt = joined;
        if done {
            self.drop_out_of_order();
        }
        // RFC 5681 section 4.2: at once when a gap is filled, partly or entirely. The new
        // acknowledgment replaces owed duplicates.
        self.session.hot.clear_dup_acks();
        self.session.acknowledge_now();
        if let Some(repeated) = repeated
            && self.session.hot.has(Flags::SACK)
        {
            self.duplicate(repeated);
        }
        if !data.is_empty() {
            self.session.notify();
        }
        if fin {
            self.receive_fin();
        }
    }

    fn receive_ahead(&mut self, from: Sequence, data: &[u8], fin_at: Option<Sequence>) {
        // RFC 5681 section 4.2: an immediate acknowledgment for each segment, so that the sender
        // detects the gap; section 3.2 makes a sender without SACK wait for three, and an
        // acknowledgment may itself be lost. Linux, too, answers the first three of a batch
        // separately and later ones together.
        self.session.hot.owe_dup_ack();
        self.session.acknowledge_now();
        let (hot, common) = (&mut *self.session.hot, &mut *self.session.common);
        hot.set(Flags::QUICK);
        self.session.cold.quick = self.session.cold.quick.max(QUICK_AFTER_GAP);
        let range = Range {
            start: from,
            end: from.after(data.len()),
        };
        // Only a session with a gap has a list.
        if hot.out_of_order == NONE {
            hot.out_of_order = common.out_of_order.take();
            common.out_of_order.get_mut(hot.out_of_order).clear();
        }
        let out_of_order = common.out_of_order.get_mut(hot.out_of_order);
        if fin_at.is_some() {
            out_of_order.fin = fin_at;
        }
        if data.is_empty() {
            return;
        }
        if out_of_order.has(&range) {
            // RFC 2883 section 4: the block that contains it comes next in the report.
            out_of_order.insert(range);
            if hot.has(Flags::SACK) {
                self.duplicate(range);
            }
            return;
        }
        // The number of ranges is limited; the peer sends this one again.
        if !out_of_order.takes(&range) {
            common.counters.no_memory += 1;
            return;
        }
        let repeated = out_of_order.overlap(&range);
        let offset = hot.rx.len() + (from - hot.receive.nxt).to_usize();
        if hot.rx.write_at(&mut common.pool, offset, data) {
            out_of_order.insert(range);
            common.counters.out_of_order += 1;
            // The block that contains it comes next in the report, as it was touched last.
            if let Some(repeated) = repeated
                && hot.has(Flags::SACK)
            {
                self.duplicate(repeated);
            }
        } else {
            common.counters.no_memory += 1;
            if out_of_order.is_empty() {
                self.drop_out_of_order();
            }
        }
    }

    fn drop_out_of_order(&mut self) {
        let (hot, common) = (&mut *self.session.hot, &mut *self.session.common);
        common.out_of_order.give(hot.out_of_order);
        hot.out_of_order = NONE;
        // Without bytes written ahead, an empty ring keeps no buffer.
        if hot.rx.len() == 0 {
            hot.rx.release(&mut common.pool);
        }
    }

    /// RFC 9293 section 3.10.7.4, eighth: the peer's FIN, in order.
    fn receive_fin(&mut self) {
        let session = &mut self.session;
        let window = &mut session.hot.receive;
        window.nxt += 1;
        window.edge = window.edge.later(window.nxt);
        session.hot.set(Flags::FIN_RECEIVED);
        session.acknowledge_now();
        match session.hot.state() {
            State::Established => session.hot.set_state(State::CloseWait),
            // If our FIN had been acknowledged, the state would be FIN-WAIT-2.
            State::FinWait1 => session.hot.set_state(State::Closing),
            State::FinWait2 => session.enter_time_wait(),
            // No other state receives a FIN in order: see `State::receives`.
            State::Closed
            | State::SynSent
            | State::SynReceived
            | State::CloseWait
            | State::Closing
            | State::LastAck
            | State::TimeWait => {}
        }
        session.notify();
    }

    /// Stores a duplicate for the next acknowledgment: RFC 2883 section 4. One that follows a
    /// pending one is merged with it, as if both had been in one segment.
    pub(super) fn duplicate(&mut self, range: Range) {
        let pending = &mut self.session.cold.duplicate;
        *pending = Some(match *pending {
            Some(last) if last.end == range.start => Range {
                start: last.start,
                end: range.end,
            },
            _ => range,
        });
    }
}

impl Session<'_> {
    /// The application has read `count` bytes.
    pub(crate) fn consumed(&mut self, count: usize) {
        let hot = &mut *self.hot;
        let ahead = hot.out_of_order != NONE;
        hot.rx.consume(&mut self.common.pool, count, ahead);
        if !hot.state().receives() {
            return;
        }
        // A window update is sent only if it is worth a segment: RFC 9293 section 3.8.6.2.2, and
        // half of the buffer if the peer still has some window left.
        let bytes = self.path.receive_bytes;
        let gain = hot
            .receive
            .gain(bytes, hot.rx.len(), self.path.scales.receive());
        let (half, mss) = (bytes / 2, u32::from(hot.mss));
        let worth =
            |gain: u32| gain >= half || hot.receive.left() < 2 * mss && gain >= half.min(mss);
        if gain > 0 && worth(gain.cast_unsigned()) {
            self.acknowledge_now();
        }
    }
}
