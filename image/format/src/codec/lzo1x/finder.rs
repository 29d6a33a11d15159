//! Finds earlier occurrences of the bytes at a position, nearest first, each longer than the one
//! before.
//!
//! Why here: the cost of a match in LZO1X grows with its distance, so for every length only its
//! nearest occurrence matters, and [`optimal`](super::optimal) needs all of them.
//!
//! Must stay true: positions are entered in order, each once; nothing is reported beyond
//! [`REACH_FAR`] or before the frame's start; a search examines at most the level's depth of
//! candidates. One engine at a time.
//!
//! Source: hash chains, as in Deutsch's deflate (RFC 1951, section 4).

use super::emit::{REACH_FAR, REACH_MIDDLE, REACH_PAIR, common_length, quad};
use sidecore_bare::width::ToUsize;

/// Number of positions in the chain: the next power of two above [`REACH_FAR`].
const WINDOW: usize = 1 << 16;
const TRIPLE_BITS: u32 = 15;
const QUAD_BITS: u32 = 16;

/// The scratch memory of one engine, about 900 KiB. A table holds positions plus one; 0 means none.
pub(super) struct Finder {
    pairs: Box<[u32]>,
    triples: Box<[u32]>,
    quads: Box<[u32]>,
    chain: Box<[u32]>,
    depth: usize,
    nice: usize,
}

impl Finder {
    pub(super) fn new(level: u8) -> Self {
        // How many earlier places are compared, and the length at which the search ends.
        let (depth, nice) = match level {
            0..=4 => (4, 48),
            5 => (8, 96),
            6 => (16, 128),
            7 => (48, 256),
            8 => (256, 1024),
            _ => (4096, 4096),
        };
        let table = |entries: usize| vec![0; entries].into_boxed_slice();
        Self {
            pairs: table(1 << 16),
            triples: table(1 << TRIPLE_BITS),
            quads: table(1 << QUAD_BITS),
            chain: table(WINDOW),
            depth,
            nice,
        }
    }

    /// Clears the positions of the previous frame.
    pub(super) fn reset(&mut self) {
        // The chain needs no clearing: it is entered through the tables, and each link is older
        // than the one before.
        self.pairs.fill(0);
        self.triples.fill(0);
        self.quads.fill(0);
    }

    /// A match of this length or more is taken at once.
    pub(super) const fn nice(&self) -> usize {
        self.nice
    }

    /// Enters `at` without searching.
    pub(super) fn enter(&mut self, raw: &[u8], at: usize) {
        self.replace(raw, at);
    }

    /// Enters `at`; replaces `found` by pairs of length and distance, both rising. No match
    /// reaches beyond the end of `raw`.
    pub(super) fn find(&mut self, raw: &[u8], at: usize, found: &mut Vec<(usize, usize)>) {
        found.clear();
        let [pair, triple, mut next] = self.replace(raw, at);
        let room = raw.len() - at;
        // Pairs and triples have tables of their own: the chain below links positions by four
        // bytes.
        let mut longest = 1;
        for (candidate, reach) in [(pair, REACH_PAIR), (triple, REACH_MIDDLE)] {
            if let Some(before) = earlier(candidate, at, reach) {
                let length = common_length(raw, before, at);
                if length > longest {
                    longest = length;
                    found.push((length, at - before));
                }
            }
        }
        for _ in 0..self.depth {
            let Some(before) = earlier(next, at, REACH_FAR) else {
                break;
            };
            // Nothing longer can follow, or it would not be worth the search.
            if longest >= room || longest >= self.nice {
                break;
            }
            // Four bytes at the end of a possible longer match: most candidates fail here.
            let last = longest.max(3) - 3;
            if quad(raw, before + last) == quad(raw, at + last) {
                let length = common_length(raw, before, at);
                if length > longest.max(3) {
                    longest = length;
                    found.push((length, at - before));
                }
            }
            // The window is larger than the farthest match: an overwritten link lies out of reach.
            next = self.chain[before & (WINDOW - 1)];
        }
    }

    /// Enters `at` and returns what the three tables held.
    fn replace(&mut self, raw: &[u8], at: usize) -> [u32; 3] {
        let word = quad(raw, at);
        let here = at as u32 + 1;
        let left = raw.len() - at;
        if left < 4 {
            // The next piece starts without these bytes: too few to matter.
            return [0; 3];
        }
        let pair = (word & 0xffff).to_usize();
        let triple = ((word << 8).wrapping_mul(0x9e37_79b1) >> (32 - TRIPLE_BITS)).to_usize();
        let quad = (word.wrapping_mul(0x9e37_79b1) >> (32 - QUAD_BITS)).to_usize();
        let before = [self.pairs[pair], self.triples[triple], self.quads[quad]];
        (self.pairs[pair], self.triples[triple], self.quads[quad]) = (here, here, here);
        self.chain[at & (WINDOW - 1)] = before[2];
        before
    }
}

/// The position in an entry, if it lies before `at` and within `reach`.
fn earlier(entry: u32, at: usize, reach: usize) -> Option<usize> {
    entry
        .to_usize()
        .checked_sub(1)
        .filter(|&before| before < at && at - before <= reach)
}
