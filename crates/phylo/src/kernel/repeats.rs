//! Site repeats: which patterns look alike below a node.
//!
//! Why here: two patterns with the same characters at all tips of a subtree have the same values at
//! its root. A node's class of a pattern is the pair of its children's classes, renumbered in order
//! of appearance; a tip's class is the code. Values are computed and kept once a class.
//! Must stay true: classes depend on the topology and the alignment alone, never on lengths or
//! parameters; the same children give the same numbers.
//! Source: Kobert, Stamatakis, Flouri, "Efficient detection of repeating sites to accelerate
//! phylogenetic likelihood calculations", Systematic Biology 66 (2017), 205-217.

/// The classes of one node over a run of patterns.
#[derive(Debug, Default)]
pub struct Classes {
    /// For each pattern its class.
    pub of_pattern: Vec<u16>,
    /// For each class the left child's class (or code).
    pub left: Vec<u16>,
    /// For each class the right child's class (or code).
    pub right: Vec<u16>,
}

impl Classes {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.left.len()
    }

    /// Every pattern a class of its own.
    pub fn separate(&mut self, left: &[u16], right: &[u16]) {
        self.of_pattern.clear();
        self.of_pattern
            .extend((0..left.len()).map(|pattern| pattern as u16));
        self.left.clear();
        self.left.extend_from_slice(left);
        self.right.clear();
        self.right.extend_from_slice(right);
    }

    /// The pairs of the children's classes. `counts` are how many those are.
    ///
    /// # Panics
    /// When there are more than [`PATTERNS_MAX`] patterns, or fewer on one side.
    pub fn join(&mut self, left: &[u16], right: &[u16], counts: [usize; 2], pairs: &mut Pairs) {
        let patterns = left.len();
        assert!(
            patterns <= PATTERNS_MAX && right.len() == patterns,
            "{patterns} patterns"
        );
        // A child that tells nearly all patterns apart leaves nothing to find.
        if counts[0].max(counts[1]) * 8 > patterns * 7 {
            return self.separate(left, right);
        }
        self.of_pattern.clear();
        self.left.clear();
        self.right.clear();
        pairs.begin(patterns);
        for (&a, &b) in left.iter().zip(right) {
            let next = self.left.len() as u16;
            let class = pairs.class(a, b, next);
            if class == next {
                self.left.push(a);
                self.right.push(b);
            }
            self.of_pattern.push(class);
        }
    }
}

/// The most patterns that classes are numbered over: their numbers have 16 bits.
pub const PATTERNS_MAX: usize = 1 << 15;

/// A table of pairs that were seen, made once and used for every node.
#[derive(Debug, Default)]
pub struct Pairs {
    slots: Vec<Slot>,
    mask: usize,
    round: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    round: u32,
    pair: u32,
    class: u16,
}

impl Pairs {
    fn begin(&mut self, patterns: usize) {
        let wanted = (2 * patterns).next_power_of_two().max(16);
        if self.slots.len() != wanted || self.round == u32::MAX {
            self.slots.clear();
            self.slots.resize(wanted, Slot::default());
            self.mask = wanted - 1;
            self.round = 0;
        }
        self.round += 1;
    }

    /// The class of a pair: the one it got before, or `next`.
    #[inline]
    fn class(&mut self, a: u16, b: u16, next: u16) -> u16 {
        let pair = u32::from(a) << 16 | u32::from(b);
        let mut at = (u64::from(pair).wrapping_mul(MULTIPLIER) >> 32) as usize & self.mask;
        loop {
            let slot = &mut self.slots[at];
            if slot.round != self.round {
                *slot = Slot {
                    round: self.round,
                    pair,
                    class: next,
                };
                return next;
            }
            if slot.pair == pair {
                return slot.class;
            }
            at = (at + 1) & self.mask;
        }
    }
}

/// An odd number near the golden ratio's part of 2^64: spreads pairs over the table.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;
