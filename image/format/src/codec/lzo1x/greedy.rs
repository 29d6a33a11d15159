//! Levels 1 to 3: one pass, one candidate per position, and longer strides where nothing repeats.
//!
//! Why here: packing a large image must keep up with a disk. Like LZO1X-1, it hashes four bytes and
//! takes the match that it finds. In addition, it extends matches backwards and enters a position
//! inside each match, which improves its compression.
//!
//! Must stay true: one stride is at most [`STRIDE_MAX`], so that data that start to repeat are
//! noticed; the table is cleared for each frame, so that a frame's bytes depend on nothing before
//! it. One engine at a time.
//!
//! Source: the idea of LZO1X-1 as described in its documentation; multiplicative hashing after
//! Knuth.

use super::emit::{Emitter, REACH_FAR, common_length, quad};
use sidecore_bare::width::ToUsize;

const TABLE_BITS: u32 = 14;
const STRIDE_MAX: usize = 64;
/// Positions at a frame's end at which no match starts, so that four bytes can always be read.
const TAIL: usize = 4;

/// The scratch memory of one engine: by hash, the last position of four bytes with it, plus one.
pub(super) struct Greedy {
    table: Box<[u32]>,
    /// Binary logarithm of the literals after which the stride grows by one.
    patience: u32,
    /// Searches one position further before taking a match.
    lazy: bool,
}

impl Greedy {
    pub(super) fn new(level: u8) -> Self {
        let patience = match level {
            0..=2 => 5,
            _ => 9,
        };
        Self {
            table: vec![0; 1 << TABLE_BITS].into_boxed_slice(),
            patience,
            lazy: level >= 2,
        }
    }

    /// Encodes `raw` without the end marker; returns the position of the literals that are still to
    /// be written.
    pub(super) fn parse(&mut self, raw: &[u8], emitter: &mut Emitter<'_>) -> usize {
        // Of the frame before: its positions would be read as this frame's.
        self.table.fill(0);
        let end = raw.len().saturating_sub(TAIL);
        let (mut anchor, mut at) = (0, 0);
        while at < end {
            let Some(mut found) = self.find(raw, at) else {
                // Data without repeats are passed over in longer and longer strides.
                at += (1 + ((at - anchor) >> self.patience)).min(STRIDE_MAX);
                continue;
            };
            let mut start = at;
            if self.lazy
                && at + 1 < end
                && let Some(next) = self.find(raw, at + 1)
                && next.length > found.length + 1
            {
                (found, start) = (next, at + 1);
            }
            // The bytes before both may be equal too.
            let mut from = start - found.distance;
            while start > anchor && from > 0 && raw[start - 1] == raw[from - 1] {
                start -= 1;
                from -= 1;
                found.length += 1;
            }
            emitter.literals(&raw[anchor..start]);
            emitter.copy(found.length, found.distance);
            at = start + found.length;
            anchor = at;
            if at < end {
                // A position near the match's end: what follows often repeats from there.
                self.enter(raw, at - 2);
            }
        }
        anchor
    }

    fn find(&mut self, raw: &[u8], at: usize) -> Option<Found> {
        let before = self.enter(raw, at)?;
        let distance = at - before;
        if distance > REACH_FAR || quad(raw, before) != quad(raw, at) {
            return None;
        }
        // The four bytes were just compared: equal hashes alone may be a collision.
        let length = 4 + common_length(raw, before + 4, at + 4);
        Some(Found { length, distance })
    }

    /// Records that `at` holds its four bytes; returns the last position that held them, or others
    /// with the same hash.
    fn enter(&mut self, raw: &[u8], at: usize) -> Option<usize> {
        let slot = quad(raw, at).wrapping_mul(0x9e37_79b1) >> (32 - TABLE_BITS);
        let before = std::mem::replace(&mut self.table[slot.to_usize()], at as u32 + 1);
        // The lazy search may have entered a position already.
        before
            .to_usize()
            .checked_sub(1)
            .filter(|&before| before < at)
    }
}

struct Found {
    length: usize,
    distance: usize,
}
