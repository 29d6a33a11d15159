//! Out-of-order receive queue: the ranges beyond `rcv_nxt` that are already in the receive ring.
//!
//! Must stay true: blocks are disjoint, do not touch, and are ordered; none starts at or before
//! `rcv_nxt`. Source: RFC 9293 section 3.10.7.4, RFC 2018 section 4.

use crate::wire::sequence::{Range, Sequence};
use crate::wire::tcp::BLOCKS_MAX;

/// Blocks kept at most; a segment that needs one more is dropped and will be retransmitted. A
/// window of 700 segments in random order rarely makes more than 175.
pub(crate) const OUT_OF_ORDER_MAX: usize = 256;

/// A block, and when it was last touched.
#[derive(Debug, Clone, Copy, Default)]
struct Block {
    range: Range,
    touched: u32,
}

/// The blocks of one session.
#[derive(Debug)]
pub(crate) struct OutOfOrderRanges {
    blocks: [Block; OUT_OF_ORDER_MAX],
    count: usize,
    clock: u32,
    /// Sequence number of a FIN received out of order.
    pub(crate) fin: Option<Sequence>,
}

impl Default for OutOfOrderRanges {
    fn default() -> Self {
        Self {
            blocks: [Block::default(); OUT_OF_ORDER_MAX],
            count: 0,
            clock: 0,
            fin: None,
        }
    }
}

impl OutOfOrderRanges {
    /// Removes all.
    pub(crate) fn clear(&mut self) {
        self.count = 0;
        self.clock = 0;
        self.fin = None;
    }

    /// True if no range and no FIN is held.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0 && self.fin.is_none()
    }

    /// True if all of `range` was received before.
    pub(crate) fn has(&self, range: &Range) -> bool {
        self.blocks[..self.count]
            .iter()
            .any(|block| block.range.contains(range))
    }

    /// The first part of `range` that was received before, if any was.
    pub(crate) fn overlap(&self, range: &Range) -> Option<Range> {
        let mut blocks = self.blocks[..self.count].iter().map(|block| block.range);
        let held = blocks.find(|held| held.start < range.end && range.start < held.end)?;
        Some(Range {
            start: range.start.later(held.start),
            end: range.end.earlier(held.end),
        })
    }

    /// True if [`OutOfOrderRanges::insert`] has room for `range`.
    pub(crate) fn takes(&self, range: &Range) -> bool {
        self.count < OUT_OF_ORDER_MAX
            || self.blocks[..self.count]
                .iter()
                .any(|block| block.range.start <= range.end && range.start <= block.range.end)
    }

    /// Adds a range for which [`OutOfOrderRanges::takes`] is true.
    pub(crate) fn insert(&mut self, mut range: Range) {
        self.clock += 1;
        // All blocks that it overlaps or touches are merged with it.
        let first =
            self.blocks[..self.count].partition_point(|block| block.range.end < range.start);
        let mut last = first;
        while last < self.count && self.blocks[last].range.start <= range.end {
            range.start = range.start.earlier(self.blocks[last].range.start);
            range.end = range.end.later(self.blocks[last].range.end);
            last += 1;
        }
        let block = Block {
            range,
            touched: self.clock,
        };
        if first == last {
            // The caller has asked for room: this only guards the array.
            if self.count == OUT_OF_ORDER_MAX {
                return;
            }
            self.blocks.copy_within(first..self.count, first + 1);
            self.count += 1;
        } else {
            self.blocks.copy_within(last..self.count, first + 1);
            self.count -= last - first - 1;
        }
        self.blocks[first] = block;
    }

    /// Everything before `next` was received in order; returns the end of that after joining blocks
    /// that begin there.
    pub(crate) fn join(&mut self, mut next: Sequence) -> Sequence {
        let mut gone = 0;
        while gone < self.count && self.blocks[gone].range.start <= next {
            next = next.later(self.blocks[gone].range.end);
            gone += 1;
        }
        // The order must stay, for the binary search of the next segment.
        self.blocks.copy_within(gone..self.count, 0);
        self.count -= gone;
        next
    }

    /// Blocks to report, the one touched last first (RFC 2018 section 4), from `out[from..]` on.
    /// Returns the resulting number of blocks.
    pub(crate) fn report(&self, out: &mut [Range; BLOCKS_MAX], from: usize) -> usize {
        let mut count = from;
        // Each turn finds the next older one: sorting would need memory.
        let mut below = u32::MAX;
        while count < BLOCKS_MAX {
            let newest = self.blocks[..self.count]
                .iter()
                .filter(|block| block.touched < below)
                .max_by_key(|block| block.touched);
            let Some(block) = newest else { break };
            below = block.touched;
            out[count] = block.range;
            count += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_random::Random;

    fn range(start: u32, end: u32) -> Range {
        Range {
            start: Sequence::new(start),
            end: Sequence::new(end),
        }
    }

    #[test]
    fn agrees_with_a_set_of_bytes() {
        let mut random = Random::new(4);
        for _ in 0..if cfg!(miri) { 5 } else { 300 } {
            let base = Sequence::new(random.bits() as u32);
            let mut out_of_order = OutOfOrderRanges::default();
            let mut have = [false; 300];
            let mut next = 0_usize;
            for _ in 0..80 {
                let start = next + 1 + random.below(200 - next.min(150) as u64) as usize;
                let end = (start + 1 + random.below(20) as usize).min(300);
                let at = |offset: usize| base.after(offset);
                if start < end && random.below(8) > 0 {
                    let (start_at, end_at) = (at(start), at(end));
                    let range = range(start_at.get(), end_at.get());
                    let all = have[start..end].iter().all(|&byte| byte);
                    assert_eq!(out_of_order.has(&range), all);
                    assert!(out_of_order.takes(&range));
                    out_of_order.insert(range);
                    have[start..end].fill(true);
                } else {
                    next += random.below(10) as usize;
                    next = next.min(150);
                    have[..next].fill(true);
                    while next < 150 && have[next] {
                        next += 1;
                    }
                    // The model stops at 150; the blocks need not.
                    let joined = (out_of_order.join(at(next)) - base) as usize;
                    assert!(have[..joined].iter().all(|&byte| byte));
                    assert!(!have[joined]);
                    next = joined.min(299);
                    if next >= 150 {
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn reports_the_newest_first() {
        let mut out_of_order = OutOfOrderRanges::default();
        for start in [10, 50, 30, 70, 90] {
            out_of_order.insert(range(start, start + 5));
        }
        out_of_order.insert(range(33, 37));
        let mut out = [Range::default(); BLOCKS_MAX];
        assert_eq!(out_of_order.report(&mut out, 0), 4);
        let starts = out.map(|block| block.start.get());
        assert_eq!(starts, [30, 90, 70, 50]);
    }
}
