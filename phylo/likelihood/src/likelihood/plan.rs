//! Plan of a traversal: the CLVs to compute before a call's own work, children first.
//!
//! Must stay true: a step comes after its children's steps; a CLV that is not kept stays in its
//! scratch place until its parent has read it. All CLVs of one plan are oriented towards one
//! branch, so that no step overwrites a CLV that a later one reads. Steps are plain data that names
//! half-edges, branches and places by number; the tables and CLVs behind the numbers belong to a
//! part and to a chunk.

use super::Part;
use super::validity::{Child, Ends, SCRATCH_PLACES, Step, Validity};
use crate::tree::{EdgeId, HalfId, Tree, Walk};

/// Fate of a traversal's CLVs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    /// Each is kept at its node's place.
    Kept,
    /// Each is in a scratch place until its parent has read it.
    Scratch,
}

/// Steps of the last plan, and scratch memory, kept so that planning allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Plan {
    steps: Vec<Step>,
    walk: Walk,
    /// Scratch places that are free in a traversal that keeps no CLVs.
    free: Vec<usize>,
    /// For each node the place of its CLV in such a traversal.
    places: Vec<usize>,
}

impl Plan {
    /// The steps, children first.
    pub(super) fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Plans the CLVs at both ends of a branch.
    pub(super) fn towards_branch(
        &mut self,
        (tree, parts): (&Tree, &mut [Part]),
        validity: &mut Validity,
        edge: EdgeId,
        storage: Storage,
    ) -> Ends {
        let [a, b] = tree.ends(edge);
        self.towards((tree, parts), validity, &[a, b], storage);
        // Kernels expect a tip on the far side.
        let (near, far) = if tree.is_tip(a) { (b, a) } else { (a, b) };
        Ends {
            near: self.child(tree, near, storage),
            far: self.child(tree, far, storage),
        }
    }

    /// Plans the steps that make some half-edges valid. Where CLVs are kept, they are marked as
    /// valid; else they move from place to place.
    pub(super) fn towards(
        &mut self,
        (tree, parts): (&Tree, &mut [Part]),
        validity: &mut Validity,
        ends: &[HalfId],
        storage: Storage,
    ) {
        let (taxa, nodes) = (tree.taxa(), tree.inner_halves() / 3);
        self.steps.clear();
        // Scratch places first: only when they run out is a kept CLV overwritten.
        if storage == Storage::Scratch {
            self.free.clear();
            self.free.extend(nodes..nodes + SCRATCH_PLACES);
            self.places.clear();
            self.places.extend(0..nodes);
        }
        for &end in ends {
            // The walk's memory is lent to the tree, whose order is read below.
            let mut walk = std::mem::take(&mut self.walk);
            let missing = |half: HalfId| validity.lacks_clv(half.index() - taxa);
            tree.walk(end, missing, &mut walk);
            for &half in walk.order() {
                let target = half.index() - taxa;
                let children = tree.others(half).map(|other| tree.back(other));
                let [left, right] = children.map(|half| self.child(tree, half, storage));
                for child in [left, right] {
                    // Matrices are made here, by the owner's thread, because chunks only read them.
                    for part in &mut *parts {
                        part.prepare_child(&child, part.length(tree, child.edge));
                    }
                }
                // Repeats outlive changes of lengths, so they are found only after a change of
                // topology.
                let repeats = validity.renew_repeats(target);
                let place = match storage {
                    Storage::Kept => {
                        validity.keep_clv(target);
                        target / 3
                    }
                    Storage::Scratch => self.take_place(target / 3, [left, right], validity),
                };
                self.steps.push(Step {
                    target,
                    place,
                    left,
                    right,
                    repeats,
                });
            }
            self.walk = walk;
        }
    }

    /// A free place for a node's CLV that is not kept; the children's places are free from then on.
    fn take_place(&mut self, node: usize, children: [Child; 2], validity: &mut Validity) -> usize {
        let nodes = self.places.len();
        let place = self.free.pop().unwrap_or(node);
        self.places[node] = place;
        if place == node {
            validity.lose_clv(node);
        }
        // Kept CLVs of valid subtrees stay at their nodes: only scratch places become free.
        let read = children.into_iter().filter(|child| !child.tip);
        let scratch = read.map(|child| child.place).filter(|&at| at >= nodes);
        self.free.extend(scratch);
        place
    }

    /// A half-edge as one side of a step or a branch.
    fn child(&self, tree: &Tree, half: HalfId, storage: Storage) -> Child {
        match storage {
            Storage::Kept => Child::kept(tree, half),
            Storage::Scratch => Child::placed(tree, half, |node| self.places[node]),
        }
    }
}
