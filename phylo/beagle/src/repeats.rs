//! Site repeats: patterns that are alike below a node are one class, and have their partials once.
//!
//! How: a tip's classes are its states. Two patterns are alike at a node if they are alike at both
//! children. Which they are depends on the tree below alone, so classes are kept by what they were
//! made from, and a client that goes back and forth between trees finds them again.
//! Must stay true: a node with partials of its own, or with too many classes, has none, and so has
//! every node above it. All bounds are below: a chunk keeps a few lists for each of its buffers.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Classes of the patterns of a chunk at one node.
#[derive(Debug)]
pub(crate) struct Classes {
    /// The class of each pattern; numbered in the order of their first patterns.
    pub(crate) of: Vec<u16>,
    /// The first pattern of each class; of a tip as many zeros as there may be states.
    pub(crate) first: Vec<u16>,
    /// For each child the class there of each class here.
    pub(crate) below: [Vec<u16>; 2],
    /// Number that no other list of this chunk has had.
    stamp: u64,
}

/// Lists of one chunk.
#[derive(Debug, Default)]
pub(crate) struct Repeats {
    /// By the stamps of both children; none where there would be too many classes.
    made: BTreeMap<(u64, u64), Option<Arc<Classes>>>,
    next: u64,
    /// By the pair of classes of the children.
    table: Vec<u16>,
    /// Of the list that is made, as [`Classes`] has them.
    of: Vec<u16>,
    first: Vec<u16>,
    below: [Vec<u16>; 2],
}

impl Repeats {
    /// Classes of a tip.
    pub(crate) fn of_tip(&mut self, codes: &[u16]) -> Arc<Classes> {
        // Codes index the parents' tables, so the largest counts, not how many occur.
        let count = codes.iter().max().map_or(0, |&code| usize::from(code) + 1);
        self.next += 1;
        Arc::new(Classes {
            of: codes.to_vec(),
            first: vec![0; count],
            below: [Vec::new(), Vec::new()],
            stamp: self.next,
        })
    }

    /// Classes of a node from those of its children; none if there are too many.
    pub(crate) fn of_node(
        &mut self,
        left: &Arc<Classes>,
        right: &Arc<Classes>,
        lists_max: usize,
        pairs_each: (usize, usize),
    ) -> Option<Arc<Classes>> {
        let pairs = left.first.len() * right.first.len();
        // Before the lookup, so that a list that does not pay costs nothing.
        if pairs > left.of.len() * pairs_each.0 / pairs_each.1 {
            return None;
        }
        let key = (left.stamp, right.stamp);
        if let Some(made) = self.made.get(&key) {
            return made.clone();
        }
        if self.made.len() >= lists_max {
            // Trees go on changing: what was used lately is soon made again.
            self.made.clear();
        }
        let wide = right.first.len();
        let made = self.make(&left.of, &right.of, pairs, wide).map(Arc::new);
        self.made.insert(key, made.clone());
        made
    }

    /// `wide` is the number of classes on the right, `pairs` that of both, multiplied.
    fn make(&mut self, left: &[u16], right: &[u16], pairs: usize, wide: usize) -> Option<Classes> {
        let most = left.len() * SHARE_MAX.0 / SHARE_MAX.1;
        self.table.clear();
        self.table.resize(pairs, NO_CLASS);
        // Most lists of deep nodes are given up: they are made in memory that is used again.
        self.of.resize(left.len(), 0);
        // One place more than there may be classes: every pattern is written as if it were new.
        let lists = [&mut self.first].into_iter().chain(&mut self.below);
        lists.for_each(|list| list.resize(most + 1, 0));
        let [of_left, of_right] = &mut self.below;
        let mut count = 0;
        let patterns = left.iter().zip(right).zip(&mut self.of);
        for (pattern, ((&a, &b), of)) in (0..).zip(patterns) {
            let class = &mut self.table[usize::from(a) * wide + usize::from(b)];
            let at = usize::from(count);
            (self.first[at], of_left[at], of_right[at]) = (pattern, a, b);
            // Without a jump: whether a pair is new is hard to foretell.
            let is_new = *class == NO_CLASS;
            *class = if is_new { count } else { *class };
            count += u16::from(is_new);
            *of = *class;
            if usize::from(count) > most {
                return None;
            }
        }
        let classes = usize::from(count);
        self.next += 1;
        Some(Classes {
            of: self.of.clone(),
            first: self.first[..classes].to_vec(),
            below: [of_left[..classes].to_vec(), of_right[..classes].to_vec()],
            stamp: self.next,
        })
    }
}

const NO_CLASS: u16 = u16::MAX;
/// Pairs of classes of two children for each pattern, at most, as a fraction: the table stays in
/// the cache, and is cleared in less time than classes save.
pub(crate) const PAIRS_EACH: (usize, usize) = (32, 1);
/// The same for four states: a list takes longer to make than the partials of a node, so that only
/// lists pay that are short and come again, those of few tips.
pub(crate) const PAIRS_OF_FOUR: (usize, usize) = (1, 1);
/// Share of the patterns that classes may be: beyond it the indirection costs what it saves.
const SHARE_MAX: (usize, usize) = (3, 4);
