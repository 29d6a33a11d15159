//! Plan of a call: the CLVs to compute before its own work, and the loop that does both.
//!
//! Must stay true: a step comes after its children's steps; a CLV that is not kept stays in its
//! scratch place until its parent has read it.

use super::chunk::{Chunk, SCRATCH_PLACES};
use super::step::{Child, Ends, Step};
use super::{Likelihood, LikelihoodError, NONE, Part};
use crate::kernel::Isa;
use crate::runner::{Runner, Work};
use crate::tree::{EdgeId, HalfId};
use std::ops::Range;

impl<R: Runner> Likelihood<R> {
    /// Computes the CLVs at both ends of a branch, then does `then`, on some chunks: all of them
    /// where CLVs are kept.
    pub(super) fn run(
        &mut self,
        edge: EdgeId,
        chunks: Range<usize>,
        keep: bool,
        then: impl Fn(&mut Chunk, &Part, &Ends, Isa) + Sync,
    ) -> Result<(), LikelihoodError> {
        let [a, b] = self.tree.ends(edge);
        self.plan(&[a, b], keep);
        // Kernels expect a tip on the far side.
        let (near, far) = if self.tree.is_tip(a) { (b, a) } else { (a, b) };
        let ends = Ends {
            near: self.placed_child(near, keep),
            far: self.placed_child(far, keep),
        };
        self.run_steps(chunks, 1.0, |chunk, part, isa| {
            then(chunk, part, &ends, isa);
        })
    }

    /// Computes the CLVs at some half-edges, all oriented towards one place, then does `then`,
    /// which takes as long as `more` newviews.
    pub(super) fn run_towards(
        &mut self,
        ends: &[HalfId],
        more: f64,
        then: impl Fn(&mut Chunk, &Part, Isa) + Sync,
    ) -> Result<(), LikelihoodError> {
        self.plan(ends, true);
        self.run_steps(0..self.chunks.len(), more, then)
    }

    /// Runs the planned steps, then `then`, chunk by chunk.
    fn run_steps(
        &mut self,
        chunks: Range<usize>,
        more: f64,
        then: impl Fn(&mut Chunk, &Part, Isa) + Sync,
    ) -> Result<(), LikelihoodError> {
        let (parts, options, steps) = (&self.parts, self.options, &self.scratch.steps);
        let all = self.chunks.len();
        let chunks = match steps.iter().any(|step| step.classes) {
            // Repeats are marked for all chunks at once.
            true => &mut self.chunks[..],
            false => &mut self.chunks[chunks],
        };
        let share = chunks.len() as f64 / all as f64;
        let ns = (self.newview_ns * share * (steps.len() as f64 + more)) as u64;
        let result = self.runner.run_sized(Work::Traverse, ns, chunks, |chunk| {
            let part = &parts[chunk.part()];
            for step in steps {
                chunk.newview(part, step, options);
            }
            then(chunk, part, options.isa);
        });
        if result.is_err() {
            self.forget_all();
        }
        Ok(result?)
    }

    /// The steps that make some half-edges valid, children first, into the scratch. Where CLVs are
    /// kept, they are marked as valid; else they move from place to place.
    fn plan(&mut self, ends: &[HalfId], keep: bool) {
        let taxa = self.tree.taxa();
        let mut walk = std::mem::take(&mut self.scratch.walk);
        let mut steps = std::mem::take(&mut self.scratch.steps);
        steps.clear();
        // Scratch places first: only when they run out is a kept CLV overwritten.
        if !keep {
            let nodes = self.held.len();
            self.scratch.free.clear();
            self.scratch.free.extend(nodes..nodes + SCRATCH_PLACES);
            self.scratch.places.clear();
            self.scratch.places.extend(0..nodes);
        }
        for &end in ends {
            let (valid, held) = (&self.values_valid, &self.held);
            // A CLV must be valid and be the direction that is kept of its node.
            let missing = |half: HalfId| {
                let at = half.index() - taxa;
                !valid[at] || held[at / 3] != at as u32
            };
            self.tree.walk(end, missing, &mut walk);
            for &half in walk.order() {
                let target = half.index() - taxa;
                let children = self.tree.others(half).map(|other| self.tree.back(other));
                let [left, right] = children.map(|half| self.placed_child(half, keep));
                for child in [left, right] {
                    // Matrices are made here, by the owner's thread, because chunks only read them.
                    let tree = &self.tree;
                    self.parts
                        .iter_mut()
                        .for_each(|part| part.prepare_child(&child, part.length(tree, child.edge)));
                }
                // Repeats outlive changes of lengths, so they are found only after a change of
                // topology.
                let classes = !std::mem::replace(&mut self.classes_valid[target], true);
                let place = match keep {
                    true => target / 3,
                    false => self.take_place(target / 3, [left, right]),
                };
                if keep {
                    self.values_valid[target] = true;
                    self.held[target / 3] = target as u32;
                }
                steps.push(Step {
                    target,
                    place,
                    left,
                    right,
                    classes,
                });
            }
        }
        (self.scratch.walk, self.scratch.steps) = (walk, steps);
    }

    /// A free place for a node's CLV that is not kept; the children's places are free from then on.
    fn take_place(&mut self, node: usize, children: [Child; 2]) -> usize {
        let nodes = self.held.len();
        let place = self.scratch.free.pop().unwrap_or(node);
        self.scratch.places[node] = place;
        if place == node {
            // The CLV that was kept there is lost.
            self.held[node] = NONE;
        }
        let read = children.into_iter().filter(|child| !child.tip);
        let scratch = read.map(|child| child.place).filter(|&at| at >= nodes);
        self.scratch.free.extend(scratch);
        place
    }

    /// A half-edge as one side of a step or a branch, where its CLV is kept.
    pub(super) fn child(&self, half: HalfId) -> Child {
        self.placed_child(half, true)
    }

    /// `kept` is false where its CLV may be in a scratch place.
    fn placed_child(&self, half: HalfId, kept: bool) -> Child {
        let tip = self.tree.is_tip(half);
        let at = if tip {
            half.index()
        } else {
            half.index() - self.tree.taxa()
        };
        Child {
            tip,
            at,
            place: match (tip, kept) {
                (true, _) => at,
                // An inner node has one place, for the CLV of one of its three directions.
                (false, true) => at / 3,
                (false, false) => self.scratch.places[at / 3],
            },
            edge: self.tree.edge(half),
        }
    }
}
