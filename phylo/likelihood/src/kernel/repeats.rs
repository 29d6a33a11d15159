//! Site repeats: patterns that are alike below a node.
//!
//! Why here: two patterns with the same characters at all tips of a subtree have the same CLV
//! entries at its root. A node's class of a pattern is the pair of its children's classes,
//! renumbered in order of appearance; a tip's class is the code. Entries are computed and kept once
//! for each class.
//! Must stay true: classes depend on the topology and the alignment alone, never on branch lengths
//! or parameters; the same children give the same numbers.
//! Source: Kobert, Stamatakis, Flouri, "Efficient detection of repeating sites to accelerate
//! phylogenetic likelihood calculations", Systematic Biology 66 (2017), 205-217.

/// The classes of one node over a run of patterns.
#[derive(Debug, Default)]
pub(crate) struct Classes {
    /// The class of each pattern; then for each class the left child's class (or code), then for
    /// each the right one's. Unused where every pattern is its own class.
    lists: Vec<u16>,
    patterns: usize,
    count: usize,
    separate: bool,
}

impl Classes {
    /// Number of classes.
    #[must_use]
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// The class of each pattern; `None` where each is a class of its own, with the same number.
    #[must_use]
    pub(crate) fn of_pattern(&self) -> Option<&[u16]> {
        (!self.separate).then(|| &self.lists[..self.patterns])
    }

    /// The left and the right child's class of each class; `None` as in [`Classes::of_pattern`]:
    /// then the children's own classes, pattern by pattern, apply.
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

    /// Numbers the pairs of the children's classes. `counts` are the children's numbers of classes.
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
        // A child that separates most patterns leaves few repeats: fewer than the search for them
        // costs.
        if counts[0].max(counts[1]) * SHARE_MAX[1] > patterns * SHARE_MAX[0] {
            return self.separate(patterns);
        }
        self.separate = false;
        self.patterns = patterns;
        self.lists.resize(patterns, 0);
        // Of unknown length: made in the scratch list, then copied at its exact length.
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
                // Written in both cases: a branch here would be mispredicted too often.
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
        // Rounded up, so that after a few topologies the room suffices for all later ones.
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
/// Few possible pairs are looked up in a table of all of them (64 KiB), more are hashed.
const CELLS_MAX: usize = 1 << 14;

/// Tables of pairs seen so far, allocated once and used for every node.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    /// For each pair the round (16 bits) in which it was last seen, and its class then.
    cells: Vec<u32>,
    cells_round: u32,
    /// The left and the right child's class of each class, while they are being numbered.
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
    /// The cells, none of them marked with this round, and the round.
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
            // Slots of earlier rounds count as empty, so the table need not be cleared.
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
