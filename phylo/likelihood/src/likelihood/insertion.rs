//! Scores of inserting a subtree elsewhere (SPR moves), without a change of the tree.
//!
//! Why here: a search by SPR moves needs millions of these scores. All CLVs are oriented away from
//! the pruned place once. From walk to walk they stay valid, except for a few nodes between one
//! subtree and the next. Only the near side of each visited branch is computed again, one newview a
//! branch, in scratch CLVs. A few branches at a time ([`walk`]) are scored by one loop over chunks,
//! and between loops the caller says where to continue.
//! Must stay true: nothing here changes the tree, its lengths or its CLVs.

mod walk;

use super::chunk::{Source, StarEnd, Visit};
use super::plan::Storage;
use super::validity::Child;
use super::{LENGTH_MAX, LENGTH_MIN, Likelihood, LikelihoodError};
use crate::runner::{Runner, Work};
use crate::tree::{EdgeId, HalfId, Tree};
use walk::{Visited, Walk};

/// A target branch for a subtree, and its score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Insertion {
    /// The branch.
    pub edge: EdgeId,
    /// Number of nodes between it and the pruned place, from 1.
    pub distance: u32,
    /// The log-likelihood with the subtree in the branch's middle, no length changed.
    pub lnl: f64,
    /// The branch's half-edge that is nearer to the old place, and its node's nearest one.
    near: HalfId,
    entry: HalfId,
    /// The insertion from which the walk came.
    parent: Option<usize>,
}

/// The branches that were tried for one subtree.
#[derive(Debug, Clone, Default)]
pub struct Insertions {
    /// All of them, each after its parent in the walk.
    pub tried: Vec<Insertion>,
    half: HalfId,
}

/// An insertion with its three branch lengths optimised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Refined {
    /// The branch.
    pub edge: EdgeId,
    /// The log-likelihood.
    pub lnl: f64,
    /// The lengths to the branch's two ends, in the order of [`crate::tree::Tree::ends`].
    pub lengths: [f64; 2],
    /// The length to the subtree.
    pub stem: f64,
}

/// Scratch memory of walks, kept so that they allocate nothing.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    walk: Walk,
    visits: Vec<Visit>,
    ends: Vec<HalfId>,
}

impl<R: Runner> Likelihood<R> {
    /// Scores the insertions of the subtree behind `half` (with `half`'s node) into branches up to
    /// `radius` away; it goes beyond a branch only where `follow` returns true. Blocks.
    ///
    /// # Errors
    /// [`LikelihoodError::Offload`].
    ///
    /// # Panics
    /// When `half` is a tip's.
    pub fn score_insertions(
        &mut self,
        half: HalfId,
        radius: u32,
        found: &mut Insertions,
        mut follow: impl FnMut(&Insertion) -> bool,
    ) -> Result<(), LikelihoodError> {
        found.tried.clear();
        found.half = half;
        self.begin_insertions(half);
        let stem = self.tree.edge(half);
        let below = self.tree.back(half);
        let (tip, length) = (self.tree.is_tip(below), self.tree.length(stem));
        let subtree = Child::kept(&self.tree, below);
        // The subtree's branch is folded once: it is the same for all target branches.
        for part in &mut self.parts {
            part.prepare_folded(tip, length * part.factor(&self.tree, stem));
        }
        let sides = self.tree.others(half).map(|own| self.tree.back(own));
        let own = (&self.tree, &mut self.parts[..]);
        let ends = [below, sides[0], sides[1]];
        self.plan
            .towards(own, &mut self.validity, &ends, Storage::Kept);
        self.run_plan(0..self.chunks.len(), 1.0, |chunk, part, isa| {
            chunk.begin_scores(part, subtree, isa);
        })?;
        let mut walk = std::mem::take(&mut self.insertions.walk);
        walk.clear();
        for entry in sides {
            walk.push(&mut found.tried, beyond(&self.tree, entry, None, 1));
        }
        let mut batch = Vec::new();
        while walk.next(&found.tried, &mut batch) {
            // All chunks score a batch, then the sums are exchanged once: processes wait for each
            // other at most once a batch.
            self.visit(half, &found.tried, &batch, true)?;
            self.chunks.sums(
                0..self.parts.len(),
                batch.len(),
                |chunk, k| chunk.score(k),
                |k, lnl| found.tried[batch[k].at].lnl = lnl,
            );
            for &Visited { at, .. } in &batch {
                let tried = &found.tried[at];
                // The caller decides by the score how far the walk continues behind this branch.
                let on = tried.distance < radius && follow(tried);
                let (entry, distance) = (self.tree.back(tried.near), tried.distance + 1);
                let beyond = beyond(&self.tree, entry, Some(at), distance);
                walk.finish(at, &mut found.tried, beyond.filter(|_| on));
            }
        }
        self.insertions.walk = walk;
        Ok(())
    }

    /// Finds the best three lengths around the `k`th of the last scored insertions, each `rounds`
    /// times, and the log-likelihood with them. The tree must be unchanged since. Blocks.
    ///
    /// # Errors
    /// [`LikelihoodError::Offload`].
    ///
    /// # Panics
    /// When there is no such insertion.
    pub fn refine_insertion(
        &mut self,
        found: &Insertions,
        k: usize,
        rounds: usize,
    ) -> Result<Refined, LikelihoodError> {
        self.begin_insertions(found.half);
        let target = found.tried[k];
        // Scratch CLVs of the walk are gone: the near sides on the path are computed again.
        let mut path = vec![k];
        while let Some(parent) = found.tried[path[path.len() - 1]].parent {
            path.push(parent);
        }
        let steps = path.iter().rev().enumerate();
        // Each visit reads its parent's slot, and no later visit does: two slots suffice.
        let batch = steps.map(|(step, &at)| Visited {
            at,
            slot: step % 2,
            from: (step > 0).then_some((step + 1) % 2),
        });
        let batch: Vec<Visited> = batch.collect();
        self.visit(found.half, &found.tried, &batch, false)?;
        let far = self.tree.back(target.near);
        let below = self.tree.back(found.half);
        let ends = [
            StarEnd::Slot((path.len() - 1) % 2),
            StarEnd::Child(Child::kept(&self.tree, far)),
            StarEnd::Child(Child::kept(&self.tree, below)),
        ];
        let tips = [false, self.tree.is_tip(far), self.tree.is_tip(below)];
        // The inserted node starts in the middle, as it was scored.
        let half = (0.5 * self.tree.length(target.edge)).clamp(LENGTH_MIN, LENGTH_MAX);
        let mut lengths = [half, half, self.tree.length(self.tree.edge(found.half))];
        let stem = self.tree.edge(found.half);
        let edges = [target.edge, target.edge, stem];
        let lnl = self.fit_star(&ends, edges, tips, &mut lengths, rounds)?;
        // The near side may be either end of the branch; `lengths` is in the order of `ends`.
        let turned = self.tree.ends(target.edge)[0] != target.near;
        Ok(Refined {
            edge: target.edge,
            lnl,
            lengths: if turned {
                [lengths[1], lengths[0]]
            } else {
                [lengths[0], lengths[1]]
            },
            stem: lengths[2],
        })
    }

    /// Moves the subtree behind `half` to the better place `to`, lengths included. Returns the
    /// branch that closed the gap.
    pub fn apply_insertion(&mut self, half: HalfId, to: &Refined) -> EdgeId {
        let pruned = self.prune(half);
        let _ = self.regraft(pruned, to.edge);
        // The split branch's other half has the factors of the whole until it is fitted.
        self.tree.copy_factors(to.edge, pruned.edges[1]);
        let [a, b] = self.tree.others(half);
        for (own, length) in [a, b, half]
            .into_iter()
            .zip([to.lengths[0], to.lengths[1], to.stem])
        {
            self.set_length(self.tree.edge(own), length);
        }
        pruned.edges[0]
    }

    /// Takes another tree of the same taxa, its lengths clamped to [`LENGTH_MIN`]..=`LENGTH_MAX`.
    /// CLVs of unchanged subtrees stay valid.
    ///
    /// # Panics
    /// When it has another number of taxa.
    pub fn set_tree(&mut self, mut tree: Tree) {
        assert_eq!(tree.taxa(), self.tree.taxa(), "taxa of the new tree");
        for edge in tree.edges() {
            tree.set_length(edge, tree.length(edge).clamp(LENGTH_MIN, LENGTH_MAX));
        }
        for half in (0..tree.halves()).map(HalfId::new) {
            let (own, new) = (self.tree.edge(half), tree.edge(half));
            if own == new
                && self.tree.back(half) == tree.back(half)
                && self.tree.length(own) == tree.length(new)
                && (0..self.parts.len())
                    .all(|part| self.tree.factor(part, own) == tree.factor(part, new))
            {
                continue;
            }
            // Directions that do not have this node behind them in the old tree are made of the
            // same nodes in the new one.
            if !self.tree.is_tip(half) {
                self.validity.mark_node(&self.tree, half);
            }
            for part in &mut self.parts {
                part.forget_edge(own);
                part.forget_edge(new);
            }
        }
        self.validity.forget_sum_table();
        self.tree = tree;
    }

    /// The best three lengths of a star, one after the other; and the log-likelihood.
    fn fit_star(
        &mut self,
        ends: &[StarEnd; 3],
        edges: [EdgeId; 3],
        tips: [bool; 3],
        lengths: &mut [f64; 3],
        rounds: usize,
    ) -> Result<f64, LikelihoodError> {
        for branch in 0..3 {
            let (tip, length) = (tips[branch], lengths[branch]);
            self.prepare_star(branch, edges[branch], tip, length);
        }
        for _ in 0..rounds {
            // The new stem first: its length is furthest from the optimum.
            for third in [2, 0, 1] {
                let (parts, work) = (&self.parts, Work::Traverse);
                self.chunks.run_all(parts, work, 2.0, |chunk, part, isa| {
                    chunk.star_table(part, ends, third, isa);
                })?;
                let edge = edges[third];
                let length = super::branches::best_length(lengths[third], |length| {
                    self.slope(edge, length)
                })?;
                lengths[third] = length;
                self.prepare_star(third, edge, tips[third], length);
            }
        }
        // The last table is that of branch 1, made with the other two's last lengths.
        Ok(self.table_lnl(edges[1], lengths[1])?)
    }

    /// Prepares the tables of one branch of the star; `edge` is its branch in the tree.
    fn prepare_star(&mut self, branch: usize, edge: EdgeId, tip: bool, length: f64) {
        let (tree, parts) = (&self.tree, self.parts.iter_mut());
        parts.for_each(|part| {
            part.prepare_star(branch, tip, length * part.factor(tree, edge));
        });
    }

    /// Prepares the tables of the branch that pruning the subtree behind `half` would leave.
    fn begin_insertions(&mut self, half: HalfId) {
        assert!(!self.tree.is_tip(half), "a tip has no place to leave");
        let [a, b] = self.tree.others(half);
        self.validity.forget_sum_table();
        // The gap is closed by one branch with the length of the two that met there.
        let joined = self.tree.edge(a);
        let length = (self.tree.length(joined) + self.tree.length(self.tree.edge(b)))
            .clamp(LENGTH_MIN, LENGTH_MAX);
        let mut ends = [a, b].into_iter().map(|own| self.tree.back(own));
        let tip = ends.any(|end| self.tree.is_tip(end));
        for part in &mut self.parts {
            part.begin_insertions();
            part.prepare_joined(tip, length * part.factor(&self.tree, joined));
        }
    }

    /// Describes an insertion's near side: from the slot `from`, or across the old place.
    fn visit_of(
        &mut self,
        half: HalfId,
        tried: &Insertion,
        from: Option<usize>,
        slot: usize,
    ) -> Visit {
        let Insertion { near, entry, .. } = *tried;
        let tree = &self.tree;
        let [x, y] = tree.others(near);
        let sibling = Child::kept(tree, tree.back(if x == entry { y } else { x }));
        let far = Child::kept(tree, tree.back(near));
        let back = tree.back(entry);
        // Lengths are copied first, since the parts are borrowed mutably below.
        let lengths = [near, entry].map(|half| tree.length(tree.edge(half)));
        let sibling_length = tree.length(sibling.edge);
        let [p, q] = tree.others(half);
        let across = tree.back(if p == back { q } else { p });
        let (across, through) = [across, entry].map(|half| Child::kept(tree, half)).into();
        for part in &mut self.parts {
            let factor = |edge| part.factor(tree, edge);
            let own = [far.edge, sibling.edge, through.edge].map(factor);
            part.prepare_half(far.edge, far.tip, lengths[0] * own[0]);
            part.prepare_child(&sibling, sibling_length * own[1]);
            // The first step across the old place uses the joined branch instead.
            if from.is_some() {
                part.prepare_child(&through, lengths[1] * own[2]);
            }
        }
        Visit {
            source: match from {
                Some(slot) => Source::Slot(slot, through.edge),
                None => Source::Joined(across),
            },
            sibling,
            slot,
            far,
        }
    }

    /// Computes the near sides of some insertions of the subtree behind `half`, and the CLVs that
    /// they need; with `score` scores them.
    fn visit(
        &mut self,
        half: HalfId,
        tried: &[Insertion],
        batch: &[Visited],
        score: bool,
    ) -> Result<(), LikelihoodError> {
        let mut visits = std::mem::take(&mut self.insertions.visits);
        let mut ends = std::mem::take(&mut self.insertions.ends);
        visits.clear();
        // The CLVs around the old place are used in every walk.
        ends.clear();
        let own = self.tree.others(half);
        ends.extend([half, own[0], own[1]].map(|own| self.tree.back(own)));
        for visited in batch {
            let tried = &tried[visited.at];
            visits.push(self.visit_of(half, tried, visited.from, visited.slot));
            let others = self.tree.others(tried.near);
            let sibling = others.into_iter().find(|other| *other != tried.entry);
            let seen = [Some(tried.near), sibling].into_iter().flatten();
            ends.extend(seen.map(|own| self.tree.back(own)));
        }
        let each = if score { 2.0 } else { 1.0 };
        let more = each * visits.len() as f64;
        let own = (&self.tree, &mut self.parts[..]);
        self.plan
            .towards(own, &mut self.validity, &ends, Storage::Kept);
        let result = self.run_plan(0..self.chunks.len(), more, |chunk, part, isa| {
            chunk.visit(part, &visits, score, isa);
        });
        (self.insertions.visits, self.insertions.ends) = (visits, ends);
        result
    }
}

/// The two branches beyond the node that is entered by `entry`; none for a tip.
fn beyond(
    tree: &Tree,
    entry: HalfId,
    parent: Option<usize>,
    distance: u32,
) -> impl Iterator<Item = Insertion> + use<> {
    let (tip, others) = (tree.is_tip(entry), tree.others(entry));
    let edges = others.map(|near| tree.edge(near));
    let both = others.into_iter().zip(edges).filter(move |_| !tip);
    both.map(move |(near, edge)| Insertion {
        edge,
        distance,
        lnl: f64::NEG_INFINITY,
        near,
        entry,
        parent,
    })
}
