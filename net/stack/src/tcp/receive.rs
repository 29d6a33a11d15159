//! Received data: in order, out of order, and its acknowledgment, window and SACK blocks.
//!
//! Source: RFC 9293 sections 3.8.6.2.2 (window) and 3.8.6.3 (delayed acknowledgments), RFC 5681
//! section 4.2, RFC 2018, RFC 2883.

use super::Session;
use crate::buffer::slab::NONE;
use crate::ranges::out_of_order::OutOfOrderRanges;
use crate::state::hot::{Flags, State};
use crate::wire::sequence::{Range, before, later};
use crate::wire::tcp::{BLOCKS_MAX, FIN, Options, Segment};

/// From this size on a second segment is acknowledged at once, whatever the full size is: RFC 9293
/// section 3.8.6.3 counts full-sized segments, and some peers have a smaller MSS than ours.
const FULL_BYTES: usize = 536;

impl Session<'_> {
    /// Data that begins at `rcv_nxt` and fits into the window.
    #[inline]
    pub(crate) fn receive_in_order(&mut self, data: &[u8]) {
        let hot = &mut *self.hot;
        let held = hot.rx.len();
        if !hot.rx.write_at(&mut self.common.pool, held, data) {
            // No memory: it is not acknowledged, so it will be retransmitted.
            self.common.counters.no_memory += 1;
            return;
        }
        self.received_in_order(data.len());
    }

    /// The same if the data is in the ring already.
    #[inline]
    pub(crate) fn received_in_order(&mut self, len: usize) {
        let hot = &mut *self.hot;
        hot.rx.extend(len);
        hot.rcv_nxt = hot.rcv_nxt.wrapping_add(len as u32);
        let first = hot.unacked_bytes == 0;
        hot.unacked_bytes += len as u32;
        // RFC 9293 section 3.8.6.3: at least every second full-sized segment.
        let mss = u32::from(hot.mss);
        if hot.unacked_bytes >= HALF_ACK_SEGMENTS_MIN * mss && !first && len as u32 <= mss {
            hot.set(Flags::HALF_ACK_OWED);
        }
        let enough = hot.unacked_bytes >= 2 * mss || !first && len >= FULL_BYTES;
        if enough || hot.has(Flags::QUICK) {
            self.quick_used();
            self.acknowledge_now();
        } else {
            hot.set(Flags::ACK_LATER);
            self.make_ready();
        }
        self.notify();
    }

    /// The first acknowledgments of a session are sent at once, so that they do not delay the
    /// peer's slow start; later, or once data and replies alternate, they may be delayed.
    #[inline]
    fn quick_used(&mut self) {
        if self.hot.has(Flags::QUICK) {
            self.cold.quick = self.cold.quick.saturating_sub(1);
            if self.cold.quick == 0 {
                self.hot.clear(Flags::QUICK);
            }
        }
    }

    /// Processes the text and the FIN of an acceptable segment, in any order.
    pub(crate) fn receive(&mut self, segment: &Segment<'_>) {
        let start = segment.sequence;
        let mut data = segment.payload;
        let mut from = start;
        let fin_at = start.wrapping_add(data.len() as u32);
        let mut fin = segment.flags & FIN != 0;
        if (data.is_empty() && !fin) || self.hot.has(Flags::FIN_RECEIVED) {
            return;
        }
        if !self.hot.state().receives() {
            return;
        }
        if self.hot.has(Flags::DETACHED) && before(self.hot.rcv_nxt, fin_at) {
            // RFC 9293 section 3.6.1 (RFC 2525 section 2.17): the data will not be read, so the
            // peer gets a reset. Like that of a removed session (section 3.10.7.1), it has the
            // number that the peer expects, whether it has received our FIN or not.
            let hop = (self.path.neighbor, self.path.neighbor_generation);
            let ends = self.path.ends();
            let ack = segment.acknowledgment;
            self.common.send_reset(&ends, hop, ack, None);
            self.finish(Some(crate::error::SessionError::Aborted));
            return;
        }
        if !data.is_empty() {
            self.note_ecn(segment);
        }
        // Data before the window was received already.
        if before(from, self.hot.rcv_nxt) {
            let old = self.hot.rcv_nxt.wrapping_sub(from).min(data.len() as u32);
            data = &data[old as usize..];
            if self.hot.has(Flags::SACK) {
                let end = from.wrapping_add(old);
                self.duplicate(Range { start: from, end });
            }
            from = from.wrapping_add(old);
            self.acknowledge_now();
        }
        // Data behind the window will be retransmitted.
        let room = self.hot.rcv_edge.wrapping_sub(from);
        if data.len() as u32 > room {
            data = &data[..room as usize];
            fin = false;
            self.acknowledge_now();
        }
        if from == self.hot.rcv_nxt {
            self.receive_next(data, fin);
        } else if before(self.hot.rcv_nxt, from) {
            self.receive_ahead(from, data, fin.then_some(fin_at));
        }
    }

    fn receive_next(&mut self, data: &[u8], fin: bool) {
        let before_it = self.hot.rcv_nxt;
        // Without a gap, no list has to be joined.
        if self.hot.out_of_order == NONE {
            if !data.is_empty() {
                self.receive_in_order(data);
            }
            let end = before_it.wrapping_add(data.len() as u32);
            if fin && self.hot.rcv_nxt == end {
                self.receive_fin();
            }
            return;
        }
        let held = self.hot.rx.len();
        if !data.is_empty() && !self.hot.rx.write_at(&mut self.common.pool, held, data) {
            self.common.counters.no_memory += 1;
            return;
        }
        // The bytes may close a gap: ranges that follow are in order now.
        let out_of_order = self.common.out_of_order.get_mut(self.hot.out_of_order);
        let next = before_it.wrapping_add(data.len() as u32);
        let joined = out_of_order.join(next);
        let fin = fin || out_of_order.fin == Some(joined);
        let done = out_of_order.is_empty() || fin;
        self.hot.rx.extend(joined.wrapping_sub(before_it) as usize);
        self.hot.rcv_nxt = joined;
        if done {
            self.drop_out_of_order();
        }
        // RFC 5681 section 4.2: at once when a gap is filled, partly or entirely. The new
        // acknowledgment replaces owed duplicates.
        self.hot.clear_dup_acks();
        self.acknowledge_now();
        if !data.is_empty() {
            self.notify();
        }
        if fin {
            self.receive_fin();
        }
    }

    fn receive_ahead(&mut self, from: u32, data: &[u8], fin_at: Option<u32>) {
        // RFC 5681 section 4.2: an immediate acknowledgment, so that the sender detects the gap.
        self.acknowledge_each();
        self.hot.set(Flags::QUICK);
        self.cold.quick = self.cold.quick.max(QUICK_AFTER_GAP);
        let range = Range {
            start: from,
            end: from.wrapping_add(data.len() as u32),
        };
        // Only a session with a gap has a list.
        if self.hot.out_of_order == NONE {
            self.hot.out_of_order = self.common.out_of_order.take();
            self.common
                .out_of_order
                .get_mut(self.hot.out_of_order)
                .clear();
        }
        let out_of_order: &mut OutOfOrderRanges =
            self.common.out_of_order.get_mut(self.hot.out_of_order);
        if fin_at.is_some() {
            out_of_order.fin = fin_at;
        }
        if data.is_empty() {
            return;
        }
        if out_of_order.has(&range) {
            // RFC 2883 section 4: the block that contains it comes next in the report.
            out_of_order.insert(range);
            if self.hot.has(Flags::SACK) {
                self.duplicate(range);
            }
            return;
        }
        // The number of ranges is limited; the peer sends this one again.
        if !out_of_order.takes(&range) {
            self.common.counters.no_memory += 1;
            return;
        }
        let offset = self.hot.rx.len() + from.wrapping_sub(self.hot.rcv_nxt) as usize;
        if self.hot.rx.write_at(&mut self.common.pool, offset, data) {
            self.common
                .out_of_order
                .get_mut(self.hot.out_of_order)
                .insert(range);
            self.common.counters.out_of_order += 1;
        } else {
            self.common.counters.no_memory += 1;
            if self
                .common
                .out_of_order
                .get(self.hot.out_of_order)
                .is_empty()
            {
                self.drop_out_of_order();
            }
        }
    }

    fn drop_out_of_order(&mut self) {
        self.common.out_of_order.give(self.hot.out_of_order);
        self.hot.out_of_order = NONE;
        if self.hot.rx.len() == 0 {
            self.hot.rx.release(&mut self.common.pool);
        }
    }

    /// RFC 9293 section 3.10.7.4, eighth: the peer's FIN, in order.
    fn receive_fin(&mut self) {
        self.hot.rcv_nxt = self.hot.rcv_nxt.wrapping_add(1);
        self.hot.rcv_edge = later(self.hot.rcv_edge, self.hot.rcv_nxt);
        self.hot.set(Flags::FIN_RECEIVED);
        self.acknowledge_now();
        match self.hot.state() {
            State::Established => self.hot.set_state(State::CloseWait),
            State::FinWait1 => {
                // If our FIN had been acknowledged, the state would be FIN-WAIT-2.
                self.hot.set_state(State::Closing);
            }
            State::FinWait2 => self.enter_time_wait(),
            // No other state receives a FIN in order: see `State::receives`.
            State::Closed
            | State::SynSent
            | State::SynReceived
            | State::CloseWait
            | State::Closing
            | State::LastAck
            | State::TimeWait => {}
        }
        self.notify();
    }

    /// The application has read `count` bytes.
    pub(crate) fn consumed(&mut self, count: usize) {
        let ahead = self.hot.out_of_order != NONE;
        self.hot.rx.consume(&mut self.common.pool, count, ahead);
        if !self.hot.state().receives() {
            return;
        }
        // A window update is sent only if it is worth a segment: RFC 9293 section 3.8.6.2.2, and
        // half of the buffer if the peer still has some window left.
        let advertised = self.hot.rcv_edge.wrapping_sub(self.hot.rcv_nxt);
        let gain = self.window_edge().wrapping_sub(self.hot.rcv_edge);
        let half = self.path.receive_bytes / 2;
        let mss = u32::from(self.hot.mss);
        if (gain as i32) > 0 && (gain >= half || advertised < 2 * mss && gain >= half.min(mss)) {
            self.acknowledge_now();
        }
    }

    /// Right edge of the largest window that could be advertised now.
    fn window_edge(&self) -> u32 {
        let room = (self.path.receive_bytes as usize).saturating_sub(self.hot.rx.len()) as u32;
        let room = room.min(0xffff << self.hot.rcv_scale);
        self.hot.rcv_nxt.wrapping_add(room)
    }

    /// The window field of the segment being sent; advances the advertised edge.
    #[inline]
    pub(crate) fn window_field(&mut self) -> u16 {
        let edge = self.window_edge();
        let gain = edge.wrapping_sub(self.hot.rcv_edge);
        // RFC 9293 section 3.8.6.2.2: the edge advances by whole segments; and section 3.8.6: it
        // never moves back.
        let least = (self.path.receive_bytes / 2).min(u32::from(self.hot.mss));
        if (gain as i32) > 0 && gain >= least {
            self.hot.rcv_edge = edge;
        }
        let window = self.hot.rcv_edge.wrapping_sub(self.hot.rcv_nxt);
        (window >> self.hot.rcv_scale).min(0xffff) as u16
    }

    /// Stores a duplicate for the next acknowledgment: RFC 2883 section 4. One that follows a
    /// pending one is merged with it, as if both had been in one segment.
    pub(crate) fn duplicate(&mut self, range: Range) {
        self.cold.duplicate = Some(match self.cold.duplicate {
            Some(last) if last.end == range.start => Range {
                start: last.start,
                end: range.end,
            },
            _ => range,
        });
    }

    /// True if a gap or a duplicate is to be reported to the peer.
    #[inline]
    pub(crate) fn has_report(&self) -> bool {
        self.hot.out_of_order != NONE || self.hot.has(Flags::SACK) && self.cold.duplicate.is_some()
    }

    /// Adds reports of gaps and duplicates: RFC 2018 section 4, RFC 2883 section 4.
    #[inline]
    pub(crate) fn report(&mut self, options: &mut Options) {
        if !self.hot.has(Flags::SACK) {
            return;
        }
        if self.hot.out_of_order == NONE && !self.hot.has(Flags::ACK_NOW) {
            return;
        }
        if let Some(duplicate) = self.cold.duplicate.take() {
            options.blocks[0] = duplicate;
            options.block_count = 1;
        }
        if self.hot.out_of_order != NONE {
            let out_of_order = self.common.out_of_order.get(self.hot.out_of_order);
            options.block_count = out_of_order
                .report(&mut options.blocks, options.block_count)
                .min(BLOCKS_MAX);
        }
    }
}

/// Segments of a batch from which on its acknowledgment is preceded by one for half of them.
const HALF_ACK_SEGMENTS_MIN: u32 = 4;
/// Immediate acknowledgments after data arrived out of order.
const QUICK_AFTER_GAP: u8 = 8;
