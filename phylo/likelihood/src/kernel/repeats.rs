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
pub(crate) struct Classes {
    /// For each pattern its class; then for each class the left child's class (or code), then for
    /// each the right one's. Not looked at where every pattern is its own class.
    lists: Vec<u16>,
    patterns: usize,
    count: usize,
    separate: bool,
}

impl Classes {
    /// How many there are.
    #[must_use]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// For each pattern its class; None where each is a class of its own, numbered alike.
    #[must_use]
    pub(crate) fn of_pattern(&self) -> Option<&[u16]> {
        (!self.separate).then(|| &self.lists[..self.patterns])
    }

    /// For each class the left and the right child's; None as in [`Classes::of_pattern`]: the
    /// children's own, pattern by pattern, are those.
    #[must_use]
    pub(crate) fn children(&self) -> Option<[&[u16]; 2]> {
        let of_children = || self.lists[self.patterns..].split_at(self.count);
        (!self.separate)
            .then(of_children)
            .map(|(left, right)| [left, right])
    }

    /// Every pattern a class of its own. Costs nothing.
    pub(crate) fn separate(&mut self, patterns: usize) {
        self.count = patterns;
        self.separate = true;
    }

    /// The pairs of the children's classes. `counts` are how many those are.
    ///
    /// # Panics
    /// When there are more than [`PATTERNS_MAX`] patterns, or fewer on one side; or a class is not
    /// below its count.
    pub(crate) fn join(
        &mut self,
        left: &[u16],
        right: &[u16],
        counts: [usize; 2],
        pairs: &mut Pairs,
    ) {
        let patterns = left.len();
        assert!(
            patterns <= PATTERNS_MAX && right.len() == patterns,
            "{patterns} patterns"
        );
        // A child that tells most patterns apart leaves little to find: less than looking costs.
        if counts[0].max(counts[1]) * SHARE_MAX[1] > patterns * SHARE_MAX[0] {
            return self.separate(patterns);
        }
        self.separate = false;
        self.patterns = patterns;
        self.lists.resize(patterns, 0);
        // Of a length that is not known yet: made elsewhere, kept as long as it is.
        let mut children = std::mem::take(&mut pairs.children);
        for list in &mut children {
            list.resize(patterns, 0);
        }
        let of_pattern = &mut self.lists[..patterns];
        let lists = of_pattern.iter_mut().zip(left.iter().zip(right));
        let mut count = 0;
        let own = children.each_mut();
        if counts[0] * counts[1] <= CELLS_MAX {
            let (cells, round) = pairs.begin_cells(counts[0] * counts[1]);
            for (class, (&a, &b)) in lists {
                let cell = &mut cells[usize::from(a) * counts[1] + usize::from(b)];
                // Written whether it is new or not: a branch here would be guessed wrong too often.
                let new = *cell >> 16 != round;
                *cell = if new {
                    round << 16 | count as u32
                } else {
                    *cell
                };
                *class = *cell as u16;
                (own[0][count], own[1][count]) = (a, b);
                count += usize::from(new);
            }
        } else {
            pairs.begin(patterns);
            for (class, (&a, &b)) in lists {
                *class = pairs.class(a, b, count as u16);
                if usize::from(*class) == count {
                    (own[0][count], own[1][count]) = (a, b);
                    count += 1;
                }
            }
        }
        self.count = count;
        // A few topologies need all the room that any will.
        let room = patterns + (2 * count).next_multiple_of(ROOM);
        self.lists.reserve_exact(room - patterns);
        for list in &children {
            self.lists.extend_from_slice(&list[..count]);
        }
        pairs.children = children;
    }
}

/// The most patterns that classes are numbered over: their numbers have 16 bits.
pub(crate) const PATTERNS_MAX: usize = 1 << 15;

/// Lists grow in steps of this many entries.
const ROOM: usize = 32;
/// With a larger share of distinct patterns in one child, the classes are not merged.
const SHARE_MAX: [usize; 2] = [7, 8];
/// Few pairs are looked up in a table of all that there can be (64 KiB), more are hashed.
const CELLS_MAX: usize = 1 << 14;

/// Tables of pairs that were seen, made once and used for every node.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    /// Pair by pair the round (16 bits) in which it was seen last, and its class then.
    cells: Vec<u32>,
    cells_round: u32,
    /// Class by class the left and the right child's, while they are being numbered.
    children: [Vec<u16>; 2],
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
    /// Cells of which none is of this round, and the round.
    fn begin_cells(&mut self, cells: usize) -> (&mut [u32], u32) {
        if self.cells.is_empty() || self.cells_round == u32::from(u16::MAX) {
            self.cells.clear();
            self.cells.resize(CELLS_MAX, 0);
            self.cells_round = 0;
        }
        self.cells_round += 1;
        (&mut self.cells[..cells], self.cells_round)
    }

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
