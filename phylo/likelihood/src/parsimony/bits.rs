//! Sets of states as bits: one word has one state of 64 sites.
//!
//! Must stay true: a padding site has all states at all tips, so that it never costs anything.
//! Patterns with the same cost on every tree are only counted.

use crate::kernel::{Isa, compiled_for};
use crate::msa::Patterns;
use sidecore_bare::width::ToUsize;

/// The tips' state sets of all sites whose cost depends on the tree, and Fitch's rule on such sets.
///
/// A node's sets are [`Sites::words`] words. Loops are compiled for this machine's vectors.
#[derive(Debug)]
pub struct Sites {
    isa: Isa,
    /// Partition by partition: states, and blocks of [`LANES`] words a state.
    parts: Vec<Run>,
    tips: Vec<Vec<u64>>,
    words: usize,
    always: u64,
}

#[derive(Debug, Clone, Copy)]
struct Run {
    states: usize,
    blocks: usize,
}

/// Words that are processed together.
const LANES: usize = 4;
type Lanes = [u64; LANES];

impl Sites {
    /// Of some partitions.
    ///
    /// # Panics
    /// When there is no partition, or one of another number of taxa.
    #[must_use]
    pub fn new(parts: &[&Patterns]) -> Self {
        assert!(!parts.is_empty(), "no partition");
        let mut sites = Self {
            isa: Isa::detect(),
            parts: Vec::new(),
            tips: vec![Vec::new(); parts[0].taxa()],
            words: 0,
            always: 0,
        };
        for patterns in parts {
            assert_eq!(patterns.taxa(), sites.tips.len(), "taxa of a partition");
            sites.push(patterns);
        }
        sites
    }

    fn push(&mut self, patterns: &Patterns) {
        let states = patterns.alphabet().states();
        let masks = patterns.masks();
        let mut columns: Vec<usize> = Vec::new();
        for (pattern, &weight) in patterns.weights().iter().enumerate() {
            // A pattern with the same cost on every tree needs no bits.
            match self.fixed_cost(patterns, pattern) {
                Some(cost) => self.always += cost * u64::from(weight),
                None => columns.extend(std::iter::repeat_n(pattern, weight.to_usize())),
            }
        }
        let blocks = columns.len().div_ceil(64 * LANES);
        for (taxon, words) in self.tips.iter_mut().enumerate() {
            // Behind the words of the partitions before this one.
            let start = words.len();
            // Sites beyond the last have all states, so they never count a change.
            words.resize(start + blocks * states * LANES, u64::MAX);
            let own = &mut words[start..];
            let codes = patterns.codes(taxon);
            for (site, &pattern) in columns.iter().enumerate() {
                let mask = masks[usize::from(codes[pattern])];
                let (block, within) = (site / (64 * LANES), site % (64 * LANES));
                for state in (0..states).filter(|state| mask >> state & 1 == 0) {
                    let word = (block * states + state) * LANES + within / 64;
                    own[word] &= !(1 << (within % 64));
                }
            }
        }
        self.words += blocks * states * LANES;
        self.parts.push(Run { states, blocks });
    }

    /// The cost of a pattern if it is the same on every tree: at most one state occurs at more than
    /// one tip, and all others are known.
    fn fixed_cost(&self, patterns: &Patterns, pattern: usize) -> Option<u64> {
        if patterns.common_states(pattern) != 0 {
            return Some(0);
        }
        let masks = patterns.masks();
        let unknown = patterns.alphabet().unknown();
        let (mut once, mut again) = (0_u64, 0_u64);
        for taxon in 0..patterns.taxa() {
            let code = patterns.codes(taxon)[pattern];
            let mask = masks[usize::from(code)];
            if code == unknown {
                continue;
            }
            // What an ambiguous tip costs depends on its neighbours.
            if mask.count_ones() != 1 {
                return None;
            }
            again |= once & mask;
            once |= mask;
        }
        // A state at a single tip costs one change on every tree, a single repeated state none.
        (again.count_ones() <= 1).then(|| u64::from(once.count_ones().saturating_sub(1)))
    }

    /// Number of taxa.
    #[must_use]
    pub fn taxa(&self) -> usize {
        self.tips.len()
    }

    /// Words of one node.
    #[must_use]
    pub fn words(&self) -> usize {
        self.words
    }

    /// Changes at the sites that cost the same on all trees.
    #[must_use]
    pub fn always(&self) -> u64 {
        self.always
    }

    /// A taxon's sets.
    ///
    /// # Panics
    /// When there is no such taxon.
    #[must_use]
    pub fn tip(&self, taxon: usize) -> &[u64] {
        &self.tips[taxon]
    }

    /// Computes a node's sets from its children's; returns the changes that it adds.
    ///
    /// # Panics
    /// When one has fewer words than a node.
    pub fn join(&self, a: &[u64], b: &[u64], to: &mut [u64]) -> u64 {
        compiled_for(self.isa, || self.join_parts(a, b, to))
    }

    #[inline(always)]
    fn join_parts(&self, a: &[u64], b: &[u64], to: &mut [u64]) -> u64 {
        let (mut start, mut changes) = (0, 0);
        for part in &self.parts {
            let words = part.blocks * part.states * LANES;
            let range = start..start + words;
            let (a, b, to) = (&a[range.clone()], &b[range.clone()], &mut to[range]);
            // The usual numbers of states as constants: the compiler unrolls their loops.
            changes += match part.states {
                4 => join(4, a, b, to),
                20 => join(20, a, b, to),
                states => join(states, a, b, to),
            };
            start += words;
        }
        changes
    }

    /// Number of changes that a subtree with the sets `below` adds in a branch between `a` and `b`;
    /// if that is at least `limit`, any number of at least `limit`.
    ///
    /// # Panics
    /// As [`Sites::join`].
    #[must_use]
    pub fn insert(&self, a: &[u64], b: &[u64], below: &[u64], limit: u64) -> u64 {
        compiled_for(self.isa, || self.insert_parts(a, b, below, limit))
    }

    #[inline(always)]
    fn insert_parts(&self, a: &[u64], b: &[u64], below: &[u64], limit: u64) -> u64 {
        let (mut start, mut changes) = (0, 0);
        for part in &self.parts {
            let words = part.blocks * part.states * LANES;
            let range = start..start + words;
            let (a, b, below) = (&a[range.clone()], &b[range.clone()], &below[range]);
            let left = limit.saturating_sub(changes);
            changes += match part.states {
                4 => insert(4, a, b, below, left),
                20 => insert(20, a, b, below, left),
                states => insert(states, a, b, below, left),
            };
            start += words;
            if changes >= limit {
                // Worse than the best place already: the other partitions can only add to it.
                break;
            }
        }
        changes
    }
}

fn lanes(words: &[u64]) -> &[Lanes] {
    words.as_chunks().0
}

#[inline(always)]
fn join(states: usize, a: &[u64], b: &[u64], to: &mut [u64]) -> u64 {
    let blocks = lanes(a)
        .chunks_exact(states)
        .zip(lanes(b).chunks_exact(states));
    let to = to.as_chunks_mut::<LANES>().0.chunks_exact_mut(states);
    let mut changes = 0;
    for ((a, b), to) in blocks.zip(to) {
        let mut any = [0; LANES];
        for state in 0..states {
            for lane in 0..LANES {
                let both = a[state][lane] & b[state][lane];
                to[state][lane] = both;
                any[lane] |= both;
            }
        }
        // Fitch's rule: without a common state the union, at the cost of one change.
        for state in 0..states {
            for lane in 0..LANES {
                to[state][lane] |= !any[lane] & (a[state][lane] | b[state][lane]);
            }
        }
        changes += count(any);
    }
    changes
}

#[inline(always)]
fn insert(states: usize, a: &[u64], b: &[u64], below: &[u64], limit: u64) -> u64 {
    let blocks = lanes(a)
        .chunks_exact(states)
        .zip(lanes(b).chunks_exact(states));
    let mut changes = 0;
    for ((a, b), below) in blocks.zip(lanes(below).chunks_exact(states)) {
        let (mut any, mut met, mut met_either) = ([0; LANES], [0; LANES], [0; LANES]);
        for state in 0..states {
            for lane in 0..LANES {
                let (x, y, z) = (a[state][lane], b[state][lane], below[state][lane]);
                any[lane] |= x & y;
                met[lane] |= x & y & z;
                met_either[lane] |= (x | y) & z;
            }
        }
        let fits = std::array::from_fn(|lane| met[lane] | (!any[lane] & met_either[lane]));
        changes += count(fits);
        // The caller looks for less than `limit`.
        if changes >= limit {
            break;
        }
    }
    changes
}

/// Number of sites that are set in none of the words.
fn count(any: Lanes) -> u64 {
    any.iter().map(|word| u64::from(word.count_zeros())).sum()
}
