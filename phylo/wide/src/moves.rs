//! Moves of subtrees that save changes of state.
//!
//! Why here: places for many subtrees are sought at once, on all engines, in a tree that does not
//! change meanwhile; moves are then made one after the other, each sought again if another one came
//! before it.
//! Must stay true: every move saves a change, so that rounds end; batches have a fixed size, so
//! that the result does not depend on the number of engines.

use crate::sets::Sets;
use crate::{Stage, Step, Watch};
use sidecore_bare::width::ToU64;
use sidecore_likelihood::likelihood::LikelihoodError;
use sidecore_likelihood::runner::{Runner, Work};
use sidecore_likelihood::tree::{EdgeId, HalfId, Tree};
use std::ops::ControlFlow;

/// Moves subtrees, each to its cheapest place within a radius, until no move saves a change.
pub(crate) fn improve<R: Runner>(
    tree: &mut Tree,
    sets: &mut Sets<'_>,
    runner: &R,
    watch: &mut Watch<'_>,
) -> Result<ControlFlow<()>, LikelihoodError> {
    let mut rounds = Rounds {
        quiet: vec![false; tree.halves()],
        seekers: Vec::new(),
        done: 0,
    };
    for radius in RADII {
        rounds.quiet.fill(false);
        for _ in 0..ROUNDS_MAX {
            let moved = rounds.round(tree, sets, radius, runner, watch)?;
            match moved {
                None => return Ok(ControlFlow::Break(())),
                Some(0) => break,
                Some(_) => {}
            }
        }
    }
    Ok(ControlFlow::Continue(()))
}

struct Rounds {
    /// For each half-edge: true if its subtree was tried since the last change near it.
    quiet: Vec<bool>,
    seekers: Vec<Seeker>,
    /// Subtrees tried so far.
    done: usize,
}

impl Rounds {
    /// Tries all subtrees that are not quiet; the number of moves, or `None` where the watch broke
    /// it off.
    fn round<R: Runner>(
        &mut self,
        tree: &mut Tree,
        sets: &mut Sets<'_>,
        radius: usize,
        runner: &R,
        watch: &mut Watch<'_>,
    ) -> Result<Option<usize>, LikelihoodError> {
        let inner = (tree.taxa()..tree.halves()).map(HalfId::new);
        let halves: Vec<HalfId> = inner.filter(|half| !self.quiet[half.index()]).collect();
        let mut moved = 0;
        for batch in halves.chunks(BATCH) {
            moved += self.batch(tree, sets, batch, radius, runner)?;
            self.done += batch.len();
            if watch(&Step::at(Stage::Moves, self.done, 0)).is_break() {
                return Ok(None);
            }
        }
        Ok(Some(moved))
    }

    fn batch<R: Runner>(
        &mut self,
        tree: &mut Tree,
        sets: &mut Sets<'_>,
        batch: &[HalfId],
        radius: usize,
        runner: &R,
    ) -> Result<usize, LikelihoodError> {
        let runs: Vec<&[HalfId]> = batch.chunks(RUN).collect();
        self.seekers.resize_with(runs.len(), Seeker::default);
        for (seeker, run) in self.seekers.iter_mut().zip(runs) {
            seeker.halves.clear();
            seeker.halves.extend_from_slice(run);
        }
        {
            let (tree, sets) = (&*tree, &*sets);
            let ns = batch.len().to_u64() * SUBTREE_NS;
            runner.run_sized(Work::Traverse, ns, &mut self.seekers, |seeker| {
                seeker.seek_all(tree, sets, radius);
            })?;
        }
        let found: Vec<(HalfId, Option<EdgeId>)> = self
            .seekers
            .iter()
            .flat_map(|seeker| seeker.halves.iter().copied().zip(seeker.found.clone()))
            .collect();
        let mut moved = 0;
        for (half, place) in found {
            self.quiet[half.index()] = true;
            // After another move the place may be worse, or within the subtree.
            let place = match (place, moved) {
                (Some(_), 1..) => self.seekers[0].seek(tree, sets, half, radius),
                (place, _) => place,
            };
            if let Some(to) = place {
                let gap = tree.back(tree.others(half)[0]);
                sets.move_subtree(tree, half, to);
                self.wake(tree, half);
                self.wake(tree, gap);
                moved += 1;
            }
        }
        Ok(moved)
    }

    /// Subtrees near a changed place are tried again.
    fn wake(&mut self, tree: &Tree, half: HalfId) {
        let mut path = vec![(half, 0), (tree.back(half), 0)];
        while let Some((entry, depth)) = path.pop() {
            self.quiet[entry.index()] = false;
            if tree.is_tip(entry) || depth == WAKE_RADIUS {
                continue;
            }
            for other in tree.others(entry) {
                self.quiet[other.index()] = false;
                path.push((tree.back(other), depth + 1));
            }
        }
    }
}

/// Seeks places for some subtrees.
#[derive(Debug, Default)]
struct Seeker {
    halves: Vec<HalfId>,
    /// For each of them a cheaper place than its own.
    found: Vec<Option<EdgeId>>,
    /// For each depth the sets of the near side.
    near: Vec<Vec<u64>>,
    path: Vec<(HalfId, HalfId, usize)>,
}

impl Seeker {
    fn seek_all(&mut self, tree: &Tree, sets: &Sets<'_>, radius: usize) {
        self.found.clear();
        for at in 0..self.halves.len() {
            let place = self.seek(tree, sets, self.halves[at], radius);
            self.found.push(place);
        }
    }

    /// The branch within the radius in which the subtree behind `half` costs least, if that is less
    /// than where it is.
    fn seek(
        &mut self,
        tree: &Tree,
        sets: &Sets<'_>,
        half: HalfId,
        radius: usize,
    ) -> Option<EdgeId> {
        let sites = sets.sites();
        let sides = tree.others(half).map(|own| tree.back(own));
        let below = sets.get(tree.back(half));
        let [a, b] = sides.map(|side| sets.get(side));
        let mut least = sites.insert(a, b, below, u64::MAX);
        let mut best = None;
        self.near.resize_with(radius + 1, || vec![0; sites.words()]);
        for (side, other) in [(sides[0], sides[1]), (sides[1], sides[0])] {
            // No place needs fewer than no changes.
            if least == 0 {
                break;
            }
            self.near[0].copy_from_slice(sets.get(other));
            // The near node's half-edge on the branch to be visited, the one by which the node was
            // entered, and the depth.
            self.path.clear();
            self.spread(tree, side, 0, radius);
            while let Some((near, entry, depth)) = self.path.pop() {
                // The walk is depth first: one buffer for each depth.
                let (before, own) = self.near.split_at_mut(depth);
                let [x, y] = tree.others(near);
                let sibling = if x == entry { y } else { x };
                let sibling = sets.get(tree.back(sibling));
                sites.join(&before[depth - 1], sibling, &mut own[0]);
                let far = tree.back(near);
                let cost = sites.insert(&own[0], sets.get(far), below, least);
                if cost < least {
                    (best, least) = (Some(tree.edge(near)), cost);
                }
                self.spread(tree, far, depth, radius);
            }
        }
        best
    }

    fn spread(&mut self, tree: &Tree, entry: HalfId, depth: usize, radius: usize) {
        if !tree.is_tip(entry) && depth < radius {
            let nears = tree.others(entry).into_iter();
            self.path.extend(nears.map(|near| (near, entry, depth + 1)));
        }
    }
}

/// Radii of the moves, in nodes: first all near ones, then those farther away.
const RADII: [usize; 2] = [8, 16];
/// Rounds end by themselves; this only makes that visible.
const ROUNDS_MAX: usize = 50;
/// Subtrees whose places are sought in the same tree, and those of one run.
const BATCH: usize = 256;
const RUN: usize = 16;
/// Time to seek a place, in nanoseconds.
const SUBTREE_NS: u64 = 20_000;
/// Radius around a change, in nodes, within which subtrees are tried again.
const WAKE_RADIUS: usize = 6;
