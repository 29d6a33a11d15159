//! The scoreboard: what is in flight, when it left, and what became of it.
//!
//! Why here: SACK (RFC 2018), RACK-TLP (RFC 8985) and the pipe of RFC 6675 all ask the same list. One
//! record is what left at once, a super-segment perhaps; it is cut where an acknowledgment cuts it.
//! Must stay true: records lie in the order of their sequence numbers, without holes, from `snd_una`
//! to `snd_nxt`; the byte counts are the sums over the records.

use super::sequence::{Range, before, before_or_at};
use std::collections::VecDeque;

/// Records of one session. Beyond it nothing is cut any more, and nothing new is sent.
pub(crate) const RECORDS_MAX: usize = 8192;
/// A board that grew beyond this gives its memory back when it is done.
const KEPT: usize = 512;

/// What is known of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// In flight as far as we know.
    Flying,
    /// The peer has it (RFC 2018).
    Sacked,
    /// Lost, and not yet sent again.
    Lost,
}

/// Sequence numbers that left together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    pub(crate) range: Range,
    /// When it left last.
    pub(crate) sent_us: u32,
    pub(crate) fate: Fate,
    /// Sent more than once.
    pub(crate) again: bool,
}

/// What an acknowledgment delivered.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Delivered {
    /// Bytes that the peer was not known to have before.
    pub(crate) bytes: u32,
    /// The record that left last among those delivered: when, its end, and whether it had been
    /// sent again.
    pub(crate) newest: Option<(u32, u32, bool)>,
    /// Something delivered was sent once and lies before what was known to be there: it was
    /// reordered (RFC 8985 section 6.2, step 3).
    pub(crate) reordered: bool,
}

impl Delivered {
    fn note(&mut self, record: &Record) {
        let newer = self.newest.is_none_or(|(sent, end, _)| {
            before(sent, record.sent_us) || sent == record.sent_us && before(end, record.range.end)
        });
        if newer {
            self.newest = Some((record.sent_us, record.range.end, record.again));
        }
    }
}

/// The list.
#[derive(Debug, Default)]
pub(crate) struct Board {
    pub(crate) records: VecDeque<Record>,
    pub(crate) sacked_bytes: u32,
    pub(crate) lost_bytes: u32,
    /// The highest that the peer is known to have.
    pub(crate) highest: u32,
}

impl Board {
    /// Starts with `una` as the first number.
    pub(crate) fn clear(&mut self, una: u32) {
        self.records.clear();
        if self.records.capacity() > KEPT {
            self.records.shrink_to(KEPT);
        }
        self.sacked_bytes = 0;
        self.lost_bytes = 0;
        self.highest = una;
    }

    /// Notes what leaves now.
    pub(crate) fn push(&mut self, range: Range, sent_us: u32) {
        self.records.push_back(Record {
            range,
            sent_us,
            fate: Fate::Flying,
            again: false,
        });
    }

    /// Takes off what `ack` acknowledges.
    pub(crate) fn acknowledge(&mut self, ack: u32, delivered: &mut Delivered) {
        while let Some(first) = self.records.front_mut() {
            if before_or_at(ack, first.range.start) {
                break;
            }
            let whole = before_or_at(first.range.end, ack);
            let mut part = *first;
            if !whole {
                part.range.end = ack;
                first.range.start = ack;
            }
            let bytes = part.range.len();
            match part.fate {
                Fate::Sacked => self.sacked_bytes -= bytes,
                fate => {
                    if fate == Fate::Lost {
                        self.lost_bytes -= bytes;
                    }
                    delivered.bytes += bytes;
                    delivered.note(&part);
                    delivered.reordered |= !part.again && before(part.range.end, self.highest);
                }
            }
            if whole {
                self.records.pop_front();
            } else {
                break;
            }
        }
        if before(self.highest, ack) {
            self.highest = ack;
        }
    }

    /// Notes a block that the peer reports to have.
    pub(crate) fn sack(&mut self, block: Range, delivered: &mut Delivered) {
        self.cut(block.start);
        self.cut(block.end);
        let mut at = self
            .records
            .partition_point(|record| before(record.range.start, block.start));
        while let Some(record) = self.records.get_mut(at) {
            if before(block.end, record.range.end) {
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
                delivered.reordered |= !record.again && before(record.range.end, self.highest);
            }
            at += 1;
        }
        if before(self.highest, block.end) {
            self.highest = block.end;
        }
    }

    /// Makes two records of the one that `at` lies in.
    pub(crate) fn cut(&mut self, at: u32) {
        let index = self
            .records
            .partition_point(|record| before_or_at(record.range.end, at));
        let Some(record) = self.records.get_mut(index) else {
            return;
        };
        if !before(record.range.start, at) || self.records.len() >= RECORDS_MAX * 2 {
            return;
        }
        let mut second = self.records[index];
        self.records[index].range.end = at;
        second.range.start = at;
        self.records.insert(index + 1, second);
    }

    /// Calls a record lost, if it was thought to be under way.
    pub(crate) fn lose(&mut self, index: usize) -> bool {
        let record = &mut self.records[index];
        let flying = record.fate == Fate::Flying;
        if flying {
            record.fate = Fate::Lost;
            self.lost_bytes += record.range.len();
        }
        flying
    }

    /// Calls nothing lost any more.
    pub(crate) fn hope(&mut self) {
        for record in &mut self.records {
            if record.fate == Fate::Lost {
                record.fate = Fate::Flying;
            }
        }
        self.lost_bytes = 0;
    }

    /// The first record that the peer is not known to have.
    pub(crate) fn first_missing(&self) -> Option<usize> {
        self.records
            .iter()
            .position(|record| record.fate != Fate::Sacked)
    }

    /// Forgets what the peer said it has, if it cannot be so: it said that it has the first number
    /// that it has not acknowledged (RFC 2018 section 8, RFC 6675 section 5.1).
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
        self.sacked_bytes = 0;
    }

    /// The first lost record.
    pub(crate) fn first_lost(&self) -> Option<usize> {
        if self.lost_bytes == 0 {
            return None;
        }
        self.records
            .iter()
            .position(|record| record.fate == Fate::Lost)
    }

    /// Notes that a record left again.
    pub(crate) fn resent(&mut self, index: usize, sent_us: u32) {
        let record = &mut self.records[index];
        if record.fate == Fate::Lost {
            self.lost_bytes -= record.range.len();
        }
        record.fate = Fate::Flying;
        record.again = true;
        record.sent_us = sent_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn range(start: u32, end: u32) -> Range {
        Range { start, end }
    }

    fn check(board: &Board) {
        let sum = |fate| -> u32 {
            let of = board.records.iter().filter(|record| record.fate == fate);
            of.map(|record| record.range.len()).sum()
        };
        assert_eq!(board.sacked_bytes, sum(Fate::Sacked));
        assert_eq!(board.lost_bytes, sum(Fate::Lost));
        let pairs = board.records.iter().zip(board.records.iter().skip(1));
        for (a, b) in pairs {
            assert_eq!(a.range.end, b.range.start);
            assert!(before(a.range.start, a.range.end));
        }
    }

    #[test]
    fn counts_stay_the_sums_whatever_comes() {
        let mut random = Random::new(9);
        for _ in 0..300 {
            let start = random.bits() as u32;
            let mut board = Board::default();
            board.clear(start);
            let (mut una, mut end) = (start, start);
            for step in 0..60_u32 {
                let size = random.below(5000) as u32 + 1;
                board.push(range(end, end.wrapping_add(size)), step);
                end = end.wrapping_add(size);
                let flight = end.wrapping_sub(una);
                let mut delivered = Delivered::default();
                let a = una.wrapping_add(random.below(u64::from(flight)) as u32);
                let b = a.wrapping_add(random.below(u64::from(end.wrapping_sub(a))) as u32 + 1);
                match random.below(4) {
                    0 => {
                        una = a;
                        board.acknowledge(una, &mut delivered);
                    }
                    1 => board.sack(range(a, b), &mut delivered),
                    2 => {
                        let index = random.below(board.records.len() as u64) as usize;
                        board.lose(index);
                    }
                    _ => {
                        if let Some(index) = board.first_lost() {
                            board.resent(index, step);
                        }
                    }
                }
                assert!(delivered.bytes <= flight);
                check(&board);
                assert_eq!(board.records.front().expect("some").range.start, una);
            }
        }
    }

    #[test]
    fn a_block_cuts_a_super_segment() {
        let mut board = Board::default();
        board.clear(0);
        board.push(range(0, 10_000), 1);
        let mut delivered = Delivered::default();
        board.sack(range(3000, 4000), &mut delivered);
        assert_eq!((delivered.bytes, board.records.len()), (1000, 3));
        // Again: nothing new.
        let mut delivered = Delivered::default();
        board.sack(range(3000, 4000), &mut delivered);
        assert_eq!(delivered.bytes, 0);
        board.acknowledge(10_000, &mut delivered);
        assert_eq!((delivered.bytes, board.sacked_bytes), (9000, 0));
        assert!(delivered.reordered, "0..3000 came after 3000..4000");
    }
}
