//! Trees by parsimony: stepwise addition, taxa in random order, each where it costs the fewest
//! changes of state; then moves of subtrees that save changes.
//!
//! Why here: all branches are tried for each taxon, which is n^2 insertions; a count ends as soon
//! as it exceeds the least so far, mostly after a few hundred sites. Places for many subtrees are
//! sought at once, on all engines, in a tree that does not change meanwhile. Moves are then made
//! one after the other, each sought again if another one came before it.
//! Must stay true: of the cheapest branches the first is taken. Every move saves a change, so that
//! rounds end; batches have a fixed size. So the result does not depend on the number of engines.

use crate::sets::Sets;
use crate::{Stage, Step, Watch};
use sidecore_bare::width::ToU64;
use sidecore_likelihood::likelihood::LikelihoodError;
use sidecore_likelihood::parsimony::Sites;
use sidecore_likelihood::random::Random;
use sidecore_likelihood::runner::{Runner, Work};
use sidecore_likelihood::tree::{EdgeId, HalfId, LENGTH_DEFAULT, Tree};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicU64, Ordering};

/// A tree by stepwise addition, and its sets; `None` where the watch broke it off.
pub(crate) fn add_all<'s, R: Runner>(
    sites: &'s Sites,
    random: &mut Random,
    runner: &R,
    watch: &mut Watch<'_>,
) -> Result<Option<(Tree, Sets<'s>)>, LikelihoodError> {
    let taxa = sites.taxa();
    let mut order: Vec<usize> = (0..taxa).collect();
    for k in (1..taxa).rev() {
        order.swap(k, random.index(k + 1));
    }
    let mut tree = Tree::star(taxa, [order[0], order[1], order[2]], LENGTH_DEFAULT);
    let mut sets = Sets::of_star(sites, &tree);
    for (before, &tip) in order.iter().enumerate().skip(3) {
        let edge = cheapest(&tree, &sets, before, tip, runner)?;
        tree.insert_tip(tip, before, edge);
        sets.inserted(&tree, tip);
        let step = Step::at(Stage::Addition, before, taxa);
        if before.is_multiple_of(LOOK_EVERY) && watch(&step).is_break() {
            return Ok(None);
        }
    }
    Ok(Some((tree, sets)))
}

/// A run of branches, and the cheapest of them: changes, then number.
struct Scan {
    edges: Range<usize>,
    best: (u64, usize),
}

fn cheapest<R: Runner>(
    tree: &Tree,
    sets: &Sets<'_>,
    before: usize,
    tip: usize,
    runner: &R,
) -> Result<EdgeId, LikelihoodError> {
    let edges = 2 * before - 3;
    let sites = sets.sites();
    let below = sites.tip(tip);
    let runs = edges.div_ceil(BRANCHES);
    let mut scans: Vec<Scan> = (0..runs)
        .map(|k| Scan {
            edges: edges * k / runs..edges * (k + 1) / runs,
            best: (u64::MAX, usize::MAX),
        })
        .collect();
    // The least cost of all runs so far: what costs more needs no exact count. Relaxed: an old
    // value is a valid bound, too, and nothing else is read by it.
    let least = AtomicU64::new(u64::MAX - 1);
    let ns = edges.to_u64() * INSERTION_NS;
    runner.run_sized(Work::Traverse, ns, &mut scans, |scan| {
        for at in scan.edges.clone() {
            let [a, b] = tree.ends(EdgeId::new(at)).map(|end| sets.get(end));
            // Equal costs are counted in full, so that the first branch of them wins.
            let limit = least.load(Ordering::Relaxed) + 1;
            let cost = sites.insert(a, b, below, limit);
            if cost < limit && (cost, at) < scan.best {
                scan.best = (cost, at);
                least.fetch_min(cost, Ordering::Relaxed);
            }
        }
    })?;
    let best = scans.iter().map(|scan| scan.best).min();
    // There are three branches at least, and the cheapest is below any limit.
    Ok(EdgeId::new(best.map_or(0, |(_, at)| at)))
}

/// Branches of a run: some 20 us of work.
const BRANCHES: usize = 512;
/// Time of an insertion whose count ends early.
const INSERTION_NS: u64 = 30;
/// Taxa between two calls of the watch.
const LOOK_EVERY: usize = 64;

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
        let runs: Vec<&[HalfId]> = batch.chunks(SUBTREES).collect();
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
const SUBTREES: usize = 16;
/// Time to seek a place, in nanoseconds.
const SUBTREE_NS: u64 = 20_000;
/// Radius around a change, in nodes, within which subtrees are tried again.
const WAKE_RADIUS: usize = 6;
