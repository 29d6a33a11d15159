//! Plan of a call: values to make before its own work, and the loop that does both.
//!
//! Must stay true: a step comes after those that make its children; values that are not kept stay
//! in their scratch place until their parent has read them.

use super::chunk::{Chunk, SCRATCH_PLACES};
use super::step::{Child, Ends, Step};
use super::{Likelihood, LikelihoodError, Part};
use crate::kernel::Isa;
use crate::runner::{Runner, Work};
use crate::tree::{EdgeId, HalfId};
use std::ops::Range;

impl<R: Runner> Likelihood<R> {
    /// Makes the values at both ends of a branch, then does `then`, on some chunks: all of them
    /// where values are kept.
    pub(super) fn run(
        &mut self,
        edge: EdgeId,
        chunks: Range<usize>,
        keep: bool,
        then: impl Fn(&mut Chunk, &Part, &Ends, Isa) + Sync,
    ) -> Result<(), LikelihoodError> {
        let [a, b] = self.tree.ends(edge);
        self.plan(&[a, b], keep);
        let (near, far) = if self.tree.is_tip(a) { (b, a) } else { (a, b) };
        let ends = Ends {
            near: self.placed_child(near, keep),
            far: self.placed_child(far, keep),
        };
        self.run_steps(chunks, |chunk, part, isa| then(chunk, part, &ends, isa))
    }

    /// Makes the values at some half-edges.
    pub(super) fn run_towards(&mut self, ends: &[HalfId]) -> Result<(), LikelihoodError> {
        self.plan(ends, true);
        if self.scratch.steps.is_empty() {
            return Ok(());
        }
        self.run_steps(0..self.chunks.len(), |_, _, _| {})
    }

    /// Does what was planned, then `then`, chunk by chunk.
    fn run_steps(
        &mut self,
        chunks: Range<usize>,
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
        let ns = (self.newview_ns * share * (steps.len() + 1) as f64) as u64;
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

    /// The steps that make some half-edges valid, children first, into the scratch. Where values
    /// are kept, they are marked as done; else they go from place to place.
    fn plan(&mut self, ends: &[HalfId], keep: bool) {
        let taxa = self.tree.taxa();
        let mut walk = std::mem::take(&mut self.scratch.walk);
        let mut steps = std::mem::take(&mut self.scratch.steps);
        steps.clear();
        if !keep {
            let directions = self.values_valid.len();
            let places = directions..directions + SCRATCH_PLACES;
            self.scratch.free.clear();
            self.scratch.free.extend(places);
            self.scratch.places.clear();
            self.scratch.places.extend(0..directions);
        }
        for &end in ends {
            let valid = &self.values_valid;
            self.tree
                .walk(end, |half| !valid[half.index() - taxa], &mut walk);
            for &half in walk.order() {
                let target = half.index() - taxa;
                let children = self.tree.others(half).map(|other| self.tree.back(other));
                let [left, right] = children.map(|half| self.placed_child(half, keep));
                for child in [left, right] {
                    let tree = &self.tree;
                    self.parts
                        .iter_mut()
                        .for_each(|part| part.prepare_child(&child, part.length(tree, child.edge)));
                }
                let classes = !std::mem::replace(&mut self.classes_valid[target], true);
                let place = match keep {
                    true => target,
                    false => self.take_place(target, [left, right]),
                };
                self.values_valid[target] |= keep;
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

    /// A free place for values that are not kept; those of the children are free from then on.
    fn take_place(&mut self, target: usize, children: [Child; 2]) -> usize {
        let directions = self.values_valid.len();
        let place = self.scratch.free.pop().unwrap_or(target);
        self.scratch.places[target] = place;
        let read = children.into_iter().filter(|child| !child.tip);
        let scratch = read.map(|child| child.place).filter(|&at| at >= directions);
        self.scratch.free.extend(scratch);
        place
    }

    /// A half-edge as one side of a step or a branch, its values where they are kept.
    pub(super) fn child(&self, half: HalfId) -> Child {
        self.placed_child(half, true)
    }

    /// `kept` is false where its values may be in a scratch place.
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
            place: if tip || kept {
                at
            } else {
                self.scratch.places[at]
            },
            edge: self.tree.edge(half),
        }
    }
}
