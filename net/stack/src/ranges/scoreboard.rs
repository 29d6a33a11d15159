//! The scoreboard: transmitted ranges in flight, their time of sending, and their fate.
//!
//! Why here: SACK (RFC 2018), RACK-TLP (RFC 8985) and the pipe of RFC 6675 all use the same list.
//! One record is one transmission, possibly a super-segment; an acknowledgment may split it. An
//! update costs only the changes: losses are searched in the order of time ([`Order`]), blocks that
//! were reported before are skipped, and the search for the first lost record starts where one may
//! be. Must stay true: records are ordered by their sequence numbers, without holes, from `snd_una`
//! to `snd_nxt`; the byte counts are the sums over the records.

use super::order::{Left, Order};
use crate::timer::before;
use crate::wire::sequence::{Range, Sequence};
use crate::wire::tcp::BLOCKS_MAX;
use std::collections::VecDeque;

/// Records of one session. At this bound no record is split, and nothing new is sent.
pub(crate) const RECORDS_MAX: usize = 8192;
/// A scoreboard that grew beyond this frees its memory when it is empty.
const KEPT: usize = 512;

/// Status of a transmitted range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// In flight, as far as known.
    Flying,
    /// The peer has it (RFC 2018).
    Sacked,
    /// Lost, and not yet retransmitted.
    Lost,
}

/// Sequence numbers sent together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    pub(crate) range: Range,
    /// Time of the last transmission.
    pub(crate) sent_us: u32,
    pub(crate) fate: Fate,
    /// Sent more than once.
    pub(crate) again: bool,
}

/// Data newly delivered by an acknowledgment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Delivered {
    /// Bytes that were not known to be delivered before.
    pub(crate) bytes: u32,
    /// The delivered record that was sent last: its time of sending, its end, and true if it was
    /// retransmitted.
    pub(crate) newest: Option<(u32, Sequence, bool)>,
    /// Time of sending of the newest delivered record without a retransmission.
    pub(crate) newest_once: Option<u32>,
    /// A delivered record that was sent once lies before data known to be delivered: it was
    /// reordered (RFC 8985 section 6.2, step 3).
    pub(crate) reordered: bool,
    /// Bytes from its beginning to the end of the data known to be delivered.
    pub(crate) reordering_bytes: u32,
}

impl Delivered {
    /// Detects that a record was delivered after one that was sent later.
    fn note_order(&mut self, record: &Record, highest: Sequence) {
        if !record.again && record.range.end < highest {
            self.reordered = true;
            let bytes = highest - record.range.start;
            self.reordering_bytes = self.reordering_bytes.max(bytes);
        }
    }

    fn note(&mut self, record: &Record) {
        let newer = self.newest.is_none_or(|(sent, end, _)| {
            before(sent, record.sent_us) || sent == record.sent_us && end < record.range.end
        });
        if newer {
            self.newest = Some((record.sent_us, record.range.end, record.again));
        }
        let later = |sent_us| before(sent_us, record.sent_us);
        if !record.again && self.newest_once.is_none_or(later) {
            self.newest_once = Some(record.sent_us);
        }
    }
}

/// Counts of the segments in flight, by their fate.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Segments {
    pub(crate) all: u32,
    pub(crate) sacked: u32,
    pub(crate) lost: u32,
    pub(crate) again: u32,
}

/// The list.
#[derive(Debug, Default)]
pub(crate) struct Scoreboard {
    pub(crate) records: VecDeque<Record>,
    pub(crate) sacked_bytes: u32,
    pub(crate) lost_bytes: u32,
    /// The highest sequence number known to be delivered.
    pub(crate) highest: Sequence,
    order: Order,
    /// Blocks of the last report, all of which are known to be delivered.
    seen: [Range; BLOCKS_MAX],
    /// No record before this is lost.
    lost_from: Sequence,
}

impl Scoreboard {
    /// Starts with `una` as the first number.
    pub(crate) fn clear(&mut self, una: Sequence) {
        self.records.clear();
        if self.records.capacity() > KEPT {
            self.records.shrink_to(KEPT);
        }
        self.sacked_bytes = 0;
        self.lost_bytes = 0;
        self.highest = una;
        self.order.clear();
        self.seen = Default::default();
        self.lost_from = una;
    }

    /// Counts of its segments of `mss` bytes. In recovery, one that was sent again is known to be
    /// lost once; a probe outside of recovery shows no loss.
    pub(crate) fn segments(&self, mss: u32, recovering: bool) -> Segments {
        let mut counts = Segments::default();
        for record in &self.records {
            let segments = record.range.len().div_ceil(mss);
            counts.all += segments;
            match record.fate {
                Fate::Sacked => counts.sacked += segments,
                Fate::Lost => counts.lost += segments,
                Fate::Flying if record.again => {
                    counts.again += segments;
                    counts.lost += if recovering { segments } else { 0 };
                }
                Fate::Flying => {}
            }
        }
        counts
    }

    /// Records a transmission.
    pub(crate) fn push(&mut self, range: Range, sent_us: u32) {
        // Both lists get it: one is ordered by number, the other by time.
        self.order.push(range, sent_us);
        self.records.push_back(Record {
            range,
            sent_us,
            fate: Fate::Flying,
            again: false,
        });
    }

    /// Removes acknowledged records.
    pub(crate) fn acknowledge(&mut self, ack: Sequence, delivered: &mut Delivered) {
        while let Some(first) = self.records.front_mut() {
            if ack <= first.range.start {
                break;
            }
            let whole = first.range.end <= ack;
            // The peer may acknowledge a part of a segment: the record keeps the rest.
            let mut part = *first;
            if !whole {
                part.range.end = ack;
                first.range.start = ack;
            }
            let bytes = part.range.len();
            match part.fate {
                // A SACK has reported it before, so it is not delivered now.
                Fate::Sacked => self.sacked_bytes -= bytes,
                fate => {
                    if fate == Fate::Lost {
                        self.lost_bytes -= bytes;
                    }
                    delivered.bytes += bytes;
                    delivered.note(&part);
                    delivered.note_order(&part, self.highest);
                }
            }
            if whole {
                self.records.pop_front();
            } else {
                break;
            }
        }
        if self.highest < ack {
            self.highest = ack;
        }
        // Acknowledged records are gone, so the search for lost ones may start behind them.
        self.lost_from = self.lost_from.later(ack);
        self.order.acknowledge(ack);
    }

    /// Processes the SACK blocks of the peer, which lie behind its acknowledgment number.
    pub(crate) fn sack(&mut self, blocks: &[Range], mss: u32, delivered: &mut Delivered) {
        let seen = self.seen;
        // RFC 8985 section 6.2, step 3 examines deliveries in the order of sequence numbers; blocks
        // are reported newest first (RFC 2018 section 4). Reordering is therefore detected against
        // earlier acknowledgments only, and two gaps in one acknowledgment are not reordering.
        let highest = self.highest;
        let mut next = [Range::default(); BLOCKS_MAX];
        for (&block, next) in blocks.iter().zip(&mut next) {
            if self.is_crumb(block, mss) {
                continue;
            }
            // Usually a block of the last report has grown at one end.
            let known = seen
                .iter()
                .find(|seen| !seen.is_empty() && block.contains(seen));
            match known {
                Some(known) => {
                    self.sack_new(block.start, known.start, highest, delivered);
                    self.sack_new(known.end, block.end, highest, delivered);
                }
                None => self.sack_new(block.start, block.end, highest, delivered),
            }
            // A crumb is left out here too, so that it is examined again.
            *next = block;
        }
        self.seen = next;
    }

    /// True for a block that begins within a segment and is shorter than one. A peer that received
    /// our segments cannot report it; a forged one could split the records at will
    /// (CVE-2019-11478).
    fn is_crumb(&self, block: Range, mss: u32) -> bool {
        if block.len() >= mss {
            return false;
        }
        let at = self
            .records
            .partition_point(|record| record.range.end <= block.start);
        self.records.get(at).is_some_and(|record| {
            let within = block.start - record.range.start;
            // The part before the first record is acknowledged already; the caller clips it.
            record.fate != Fate::Sacked && within > 0 && !within.is_multiple_of(mss.max(1))
        })
    }

    fn sack_new(
        &mut self,
        start: Sequence,
        end: Sequence,
        highest: Sequence,
        delivered: &mut Delivered,
    ) {
        if start == end {
            return;
        }
        let block = Range { start, end };
        // After the splits, each record lies inside or outside of the block.
        self.cut(block.start);
        self.cut(block.end);
        let mut at = self
            .records
            .partition_point(|record| record.range.start < block.start);
        while let Some(record) = self.records.get_mut(at) {
            self.order.step();
            if block.end < record.range.end {
                break;
            }
            if record.fate != Fate::Sacked {
                let bytes = record.range.len();
                if record.fate == Fate::Lost {
                    self.lost_bytes -= bytes;
                }
                record.fate = Fate::Sacked;
                self.sacked_bytes += bytes;
                delivered.bytes += bytes;
                delivered.note(record);
                delivered.note_order(record, highest);
            }
            at += 1;
        }
        if self.highest < block.end {
            self.highest = block.end;
        }
    }

    /// Splits the record at `at`.
    pub(crate) fn cut(&mut self, at: Sequence) {
        let index = self
            .records
            .partition_point(|record| record.range.end <= at);
        let Some(record) = self.records.get_mut(index) else {
            return;
        };
        if record.range.start >= at || self.records.len() >= RECORDS_MAX * 2 {
            return;
        }
        // Both parts keep the time and the fate of the transmission.
        let mut second = self.records[index];
        self.records[index].range.end = at;
        second.range.start = at;
        self.records.insert(index + 1, second);
    }

    /// Marks a record as lost, if it was in flight.
    pub(crate) fn lose(&mut self, index: usize) -> bool {
        let record = &mut self.records[index];
        let flying = record.fate == Fate::Flying;
        if flying {
            record.fate = Fate::Lost;
            self.lost_bytes += record.range.len();
            self.lost_from = self.lost_from.earlier(record.range.start);
        }
        flying
    }

    /// RFC 8985 section 6.2, step 5: marks ranges as lost that were sent before `newest`, which was
    /// delivered, and are `patience_us` old; `newest`: its time of sending, and its end. Returns
    /// true if something was newly lost, and the time in microseconds until all earlier ranges may
    /// be.
    pub(crate) fn overdue(
        &mut self,
        newest: (u32, Sequence),
        now_us: u32,
        patience_us: u32,
    ) -> (bool, Option<u32>) {
        self.order.arrived(newest.0, newest.1);
        let mut lost = false;
        while let Some(&left) = self.order.waiting.front() {
            self.order.step();
            if now_us.wrapping_sub(left.sent_us) < patience_us {
                break;
            }
            self.order.waiting.pop_front();
            lost |= self.lose_left(left);
        }
        while let Some(&left) = self.order.waiting.back() {
            self.order.step();
            if let Some(end) = self.last_flying(left) {
                // The part behind it needs no second check.
                if let Some(last) = self.order.waiting.back_mut() {
                    last.range.end = end;
                }
                return (lost, Some(patience_us - now_us.wrapping_sub(left.sent_us)));
            }
            self.order.waiting.pop_back();
        }
        (lost, None)
    }

    /// Marks the part of a transmission that is still in flight as lost.
    fn lose_left(&mut self, left: Left) -> bool {
        let mut at = self
            .records
            .partition_point(|record| record.range.end <= left.range.start);
        let mut lost = false;
        while let Some(record) = self.records.get(at) {
            self.order.step();
            if record.range.start >= left.range.end {
                break;
            }
            if record.sent_us == left.sent_us {
                lost |= self.lose(at);
            }
            at += 1;
        }
        lost
    }

    /// The end of the last record of a transmission that is still in flight.
    fn last_flying(&mut self, left: Left) -> Option<Sequence> {
        let behind = self
            .records
            .partition_point(|record| record.range.start < left.range.end);
        for at in (0..behind).rev() {
            self.order.step();
            let record = &self.records[at];
            if record.range.end <= left.range.start {
                return None;
            }
            if record.fate == Fate::Flying && record.sent_us == left.sent_us {
                return Some(record.range.end);
            }
        }
        None
    }

    /// Marks all lost ranges as in flight again, after a spurious recovery.
    pub(crate) fn unmark_lost(&mut self) {
        for record in &mut self.records {
            if record.fate == Fate::Lost {
                record.fate = Fate::Flying;
            }
        }
        // Entries of lost ranges were dropped from the queues of time, and are needed again.
        self.lost_bytes = 0;
        self.order.clear();
        let flying = |record: &&Record| record.fate == Fate::Flying;
        let mut all: Vec<&Record> = self.records.iter().filter(flying).collect();
        all.sort_by(|a, b| a.sent_us.wrapping_sub(b.sent_us).cast_signed().cmp(&0));
        for record in all {
            self.order.push(record.range, record.sent_us);
        }
    }

    /// The first record that is not known to be delivered.
    pub(crate) fn first_missing(&self) -> Option<usize> {
        self.records
            .iter()
            .position(|record| record.fate != Fate::Sacked)
    }

    /// Discards SACK information that cannot be true: the peer reported the first number that it
    /// has not acknowledged (RFC 2018 section 8, RFC 6675 section 5.1).
    pub(crate) fn forget_if_reneged(&mut self) {
        if self
            .records
            .front()
            .is_none_or(|first| first.fate != Fate::Sacked)
        {
            return;
        }
        for record in &mut self.records {
            if record.fate == Fate::Sacked {
                record.fate = Fate::Flying;
            }
        }
        // Otherwise blocks of the last report would be skipped as known.
        self.sacked_bytes = 0;
        self.seen = Default::default();
    }

    /// The first lost record.
    pub(crate) fn first_lost(&mut self) -> Option<usize> {
        if self.lost_bytes == 0 {
            return None;
        }
        let from = self
            .records
            .partition_point(|record| record.range.end <= self.lost_from);
        for at in from..self.records.len() {
            self.order.step();
            let record = &self.records[at];
            if record.fate == Fate::Lost {
                self.lost_from = record.range.start;
                return Some(at);
            }
        }
        None
    }

    /// Records a retransmission; a delivered record keeps its fate.
    pub(crate) fn resent(&mut self, index: usize, sent_us: u32) {
        let record = &mut self.records[index];
        match record.fate {
            Fate::Sacked => return,
            Fate::Lost => self.lost_bytes -= record.range.len(),
            Fate::Flying => {}
        }
        self.order.push(record.range, sent_us);
        record.fate = Fate::Flying;
        record.again = true;
        record.sent_us = sent_us;
    }
}

#[cfg(test)]
mod tests;
