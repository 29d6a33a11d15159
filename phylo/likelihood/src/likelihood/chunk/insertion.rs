//! Insertions, scored chunk by chunk in scratch CLVs: the tree and its CLVs stay unchanged.
//!
//! Must stay true: scratch CLVs are pattern by pattern (no repeats), and belong to one call.

use super::Chunk;
use super::store::Values;
use crate::kernel::{Buffer, Isa, Operand, SiteTerms, combine_sites, insert, newview};
use crate::likelihood::part::Part;
use crate::likelihood::step::Child;
use crate::tree::EdgeId;

/// Origin of the near-side CLV of a visited branch.
#[derive(Debug, Clone, Copy)]
pub(in crate::likelihood) enum Source {
    /// Across the branch that pruning left behind, from its other end.
    Joined(Child),
    /// Across a branch that was visited before, from its slot.
    Slot(usize, EdgeId),
}

/// One visited branch: its near-side CLV is computed, then the insertion into its middle scored.
#[derive(Debug, Clone, Copy)]
pub(in crate::likelihood) struct Visit {
    pub(in crate::likelihood) source: Source,
    /// The other neighbour of the near node.
    pub(in crate::likelihood) sibling: Child,
    /// Slot of the near-side CLV.
    pub(in crate::likelihood) slot: usize,
    /// The far side.
    pub(in crate::likelihood) far: Child,
}

/// An end of the star of three branches around an inserted node.
#[derive(Debug, Clone, Copy)]
pub(in crate::likelihood) enum StarEnd {
    /// The near side of the target branch.
    Slot(usize),
    /// A node or tip of the tree.
    Child(Child),
}

/// Scratch memory of a chunk for insertions.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    slots: Vec<Values>,
    node: Values,
    /// CLV of the scored subtree, moved to the insertion node, with frequencies and weights.
    below: Values,
    /// A span of ones, and each pattern's index of it.
    ones: Buffer,
    zeros: Vec<u16>,
    identity: Vec<u16>,
    scores: Vec<f64>,
}

impl Values {
    /// A CLV, pattern by pattern.
    fn operand<'a>(&'a self, matrix: &'a [crate::kernel::Quad], index: &'a [u16]) -> Operand<'a> {
        Operand::Inner {
            matrix,
            values: self.quads.as_slice(),
            scalers: &self.scalers,
            index,
        }
    }
}

impl Chunk {
    /// Computes the CLV of a subtree at the node of its insertion, for [`Chunk::visit`].
    pub(in crate::likelihood) fn begin_scores(&mut self, part: &Part, subtree: Child, isa: Isa) {
        let mut scratch = self.lend_scratch(&[]);
        let mut below = std::mem::take(&mut scratch.below);
        let mut counts = std::mem::take(&mut self.scalers);
        self.store.fit(&mut below, self.weights.len());
        let shape = part.process().shape;
        // A tip of ones takes the place of the third neighbour: the product is the subtree's side
        // alone.
        scratch.ones.resize(shape.quads());
        scratch.ones.doubles_mut().fill(1.0);
        scratch.zeros.resize(self.patterns(), 0);
        let ones = Operand::Tip {
            table: scratch.ones.as_slice(),
            index: &scratch.zeros,
        };
        let [matrix, table] = part.folded();
        let subtree = self.end(subtree, matrix, table);
        self.make(part, [&subtree, &ones], &mut below, &mut counts, isa);
        (self.scalers, scratch.below) = (counts, below);
        self.scratch = scratch;
    }

    /// Computes the near sides of `visits`; with `score` the insertion into each is scored.
    pub(in crate::likelihood) fn visit(
        &mut self,
        part: &Part,
        visits: &[Visit],
        score: bool,
        isa: Isa,
    ) {
        // Moved out while they are filled, because the tree's CLVs are borrowed meanwhile.
        let mut scratch = self.lend_scratch(visits);
        let (mut terms, mut counts) = (
            std::mem::take(&mut self.terms),
            std::mem::take(&mut self.scalers),
        );
        let shape = part.process().shape;
        scratch.scores.clear();
        for visit in visits {
            let mut near = std::mem::take(&mut scratch.slots[visit.slot]);
            // Without repeats: a near side is used once, which does not pay for finding its
            // classes.
            self.store.fit(&mut near, self.weights.len());
            let source = match visit.source {
                Source::Joined(child) => {
                    let [matrix, table] = part.joined();
                    self.end(child, matrix, table)
                }
                Source::Slot(slot, edge) => {
                    scratch.slots[slot].operand(part.matrix(edge), &scratch.identity)
                }
            };
            let sibling = if visit.sibling.tip {
                self.end(visit.sibling, &[], part.tip_table(visit.sibling.at))
            } else {
                self.end(visit.sibling, part.matrix(visit.sibling.edge), &[])
            };
            self.make(part, [&source, &sibling], &mut near, &mut counts, isa);
            scratch.slots[visit.slot] = near;
            // Near sides on the way to a refined insertion are needed, but not their scores.
            if !score {
                continue;
            }
            let [half, table] = part.half(visit.far.edge);
            let near = scratch.slots[visit.slot].operand(half, &scratch.identity);
            let far = self.end(visit.far, half, table);
            let below = scratch.below.operand(&[], &scratch.identity);
            let out = terms.as_mut_slice();
            let scaled = insert(isa, shape, &near, &far, &below, out, &mut counts);
            let sites = SiteTerms {
                rates: shape.rates,
                terms: terms.as_slice(),
                scalers: if scaled { &counts } else { &[] },
                fixed: &self.fixed,
            };
            let lnl = combine_sites(isa, &sites, &self.weights, &mut self.site_lnl);
            scratch.scores.push(self.corrected(lnl));
        }
        (self.terms, self.scalers) = (terms, counts);
        self.scratch = scratch;
    }

    /// The log-likelihood of this chunk with the subtree in the `k`th branch of the last visits.
    pub(in crate::likelihood) fn score(&self, k: usize) -> f64 {
        self.scratch.scores[k]
    }

    /// Computes the CLV at the star's centre, seen from the branch `third`, and that branch's sum
    /// table.
    pub(in crate::likelihood) fn star_table(
        &mut self,
        part: &Part,
        ends: &[StarEnd; 3],
        third: usize,
        isa: Isa,
    ) {
        // Buffers are taken out, since `make` borrows all of `self`.
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut node = std::mem::take(&mut scratch.node);
        let mut counts = std::mem::take(&mut self.scalers);
        self.store.fit(&mut node, self.weights.len());
        let [i, j] = OTHERS[third];
        let [left, right] = [i, j].map(|k| self.star_end(&scratch, ends[k], part.star(k)));
        self.make(part, [&left, &right], &mut node, &mut counts, isa);
        let mut table = std::mem::take(&mut self.table);
        let shape = part.process().shape;
        let [near_matrix, far_matrix, far_table] = part.eigen();
        let near = node.operand(near_matrix, &scratch.identity);
        let far = self.star_end(&scratch, ends[third], [far_matrix, far_table]);
        let to = table.as_mut_slice();
        let scaled = newview(isa, shape, &near, &far, to, &mut counts, false);
        self.level(shape, &mut table, scaled.then_some(&counts));
        (self.table, self.scalers) = (table, counts);
        scratch.node = node;
        self.scratch = scratch;
    }

    fn star_end<'a>(
        &'a self,
        scratch: &'a Scratch,
        end: StarEnd,
        [matrix, table]: [&'a [crate::kernel::Quad]; 2],
    ) -> Operand<'a> {
        match end {
            StarEnd::Slot(slot) => scratch.slots[slot].operand(matrix, &scratch.identity),
            StarEnd::Child(child) => self.end(child, matrix, table),
        }
    }

    fn lend_scratch(&mut self, visits: &[Visit]) -> Scratch {
        let mut scratch = std::mem::take(&mut self.scratch);
        let patterns = self.patterns();
        if scratch.identity.len() != patterns {
            scratch.identity = (0..patterns).map(|pattern| pattern as u16).collect();
        }
        let slots = visits.iter().map(|visit| visit.slot + 1).max().unwrap_or(0);
        if scratch.slots.len() < slots {
            scratch.slots.resize_with(slots, Values::default);
        }
        scratch
    }

    /// A node's CLV, pattern by pattern, into a buffer with room for all patterns.
    fn make(
        &self,
        part: &Part,
        [left, right]: [&Operand<'_>; 2],
        to: &mut Values,
        counts: &mut [u16],
        isa: Isa,
    ) {
        let shape = part.process().shape;
        let quads = to.quads.as_mut_slice();
        let scaled = newview(isa, shape, left, right, quads, counts, true);
        to.keep_counts(scaled, &counts[..self.patterns() * shape.rates]);
    }
}

const OTHERS: [[usize; 2]; 3] = [[1, 2], [0, 2], [0, 1]];
