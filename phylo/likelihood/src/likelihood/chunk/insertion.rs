//! Insertions, scored chunk by chunk in scratch CLVs: the tree and its CLVs stay unchanged.
//!
//! Must stay true: scratch CLVs are pattern by pattern (no repeats), and belong to one call.

use super::Chunk;
use super::clvs::{Clv, Others, Sides};
use crate::kernel::{Buffer, Isa, Loops, Operand, Quad, Tip};
use crate::likelihood::part::Part;
use crate::likelihood::validity::Child;
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

impl StarEnd {
    fn operand<'a>(
        self,
        (slots, sides, identity): (&'a [Clv], Sides<'a>, &'a [u16]),
        tables: [&'a [Quad]; 2],
    ) -> Operand<'a> {
        match self {
            Self::Slot(slot) => slots[slot].operand(tables[0], identity),
            Self::Child(child) => sides.end(child, tables),
        }
    }
}

/// Scratch memory of a chunk for insertions.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    slots: Vec<Clv>,
    node: Clv,
    /// CLV of the scored subtree, moved to the insertion node, with frequencies and weights.
    below: Clv,
    /// A span of ones, and each pattern's index of it.
    ones: Buffer,
    zeros: Vec<u16>,
    scores: Vec<f64>,
}

impl Chunk {
    /// Computes the CLV of a subtree at the node of its insertion, for [`Chunk::visit`].
    pub(in crate::likelihood) fn begin_scores(&mut self, part: &Part, subtree: Child, isa: Isa) {
        let patterns = self.patterns();
        let loops = part.loops(isa, &self.profile_of);
        let shape = loops.shape;
        let Scratch {
            below, ones, zeros, ..
        } = &mut self.insertions;
        // A tip of ones takes the place of the third neighbour: the product is the subtree's side
        // alone.
        ones.resize(shape.quads());
        ones.doubles_mut().fill(1.0);
        zeros.resize(patterns, 0);
        let ones = Operand::Tip(Tip {
            table: ones.as_slice(),
            index: zeros,
        });
        self.clvs.memory.fit(below, patterns);
        let subtree = self.clvs.sides(&self.tips).end(subtree, part.folded());
        let quads = below.quads.as_mut_slice();
        let scaled = loops.carry([&subtree, &ones], quads, &mut self.scalers);
        below.keep_scalers(scaled, &self.scalers);
    }

    /// Computes the near sides of `visits`; with `score` the insertion into each is scored.
    pub(in crate::likelihood) fn visit(
        &mut self,
        part: &Part,
        visits: &[Visit],
        score: bool,
        isa: Isa,
    ) {
        let patterns = self.patterns();
        let loops = part.loops(isa, &self.profile_of);
        let identity = &self.tips.identity;
        let Scratch {
            slots,
            below,
            scores,
            ..
        } = &mut self.insertions;
        let most = visits.iter().map(|visit| visit.slot + 1).max().unwrap_or(0);
        if slots.len() < most {
            slots.resize_with(most, Clv::default);
        }
        scores.clear();
        for visit in visits {
            let (near, slots) = Others::split(slots, visit.slot);
            // Without repeats: a near side is used once, which does not pay for finding its
            // classes.
            self.clvs.memory.fit(near, patterns);
            let sides = self.clvs.sides(&self.tips);
            let source = match visit.source {
                Source::Joined(child) => sides.end(child, part.joined()),
                Source::Slot(slot, edge) => slots.get(slot).operand(part.matrix(edge), identity),
            };
            let sibling = match visit.sibling.tip {
                true => sides.end(visit.sibling, [&[], part.tip_table(visit.sibling.at)]),
                false => sides.end(visit.sibling, [part.matrix(visit.sibling.edge), &[]]),
            };
            fill(near, [&source, &sibling], &mut self.scalers, &loops);
            // Near sides on the way to a refined insertion are needed, but not their scores.
            if !score {
                continue;
            }
            let half = part.half(visit.far.edge);
            let near = near.operand(half[0], identity);
            let far = sides.end(visit.far, half);
            let below = below.operand(&[], identity);
            let terms = self.sites.terms.as_mut_slice();
            let scaled = loops.insert([&near, &far, &below], terms, &mut self.scalers);
            let scalers = if scaled { &self.scalers[..] } else { &[] };
            scores.push(self.sites.log_likelihood(isa, loops.shape.rates, scalers));
        }
    }

    /// The log-likelihood of this chunk with the subtree in the `k`th branch of the last visits.
    pub(in crate::likelihood) fn score(&self, k: usize) -> f64 {
        self.insertions.scores[k]
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
        let patterns = self.patterns();
        let loops = part.loops(isa, &self.profile_of);
        let identity = &self.tips.identity;
        let Scratch { slots, node, .. } = &mut self.insertions;
        self.clvs.memory.fit(node, patterns);
        let sides = self.clvs.sides(&self.tips);
        let near_sides = (&slots[..], sides, &identity[..]);
        let [left, right] = OTHERS[third].map(|k| ends[k].operand(near_sides, part.star(k)));
        fill(node, [&left, &right], &mut self.scalers, &loops);
        let [near_matrix, far_matrix, far_table] = part.eigen();
        let near = node.operand(near_matrix, identity);
        let far = ends[third].operand(near_sides, [far_matrix, far_table]);
        let (scalers, sites) = (&mut self.scalers, &mut self.sites);
        self.sum_table.make(&loops, &near, &far, scalers, sites);
    }
}

/// Computes a CLV, pattern by pattern, into a buffer with room for all patterns.
fn fill(clv: &mut Clv, [left, right]: [&Operand<'_>; 2], scalers: &mut [u16], loops: &Loops<'_>) {
    let quads = clv.quads.as_mut_slice();
    let scaled = loops.newview([left, right], quads, scalers);
    clv.keep_scalers(scaled, scalers);
}

const OTHERS: [[usize; 2]; 3] = [[1, 2], [0, 2], [0, 1]];
