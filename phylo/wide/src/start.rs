//! Trees by parsimony: stepwise addition, taxa in random order, each where it costs the fewest
//! changes of state; then moves of subtrees that save changes.
//!
//! Why here: all branches are tried for each of the first taxa, which is n^2 insertions; a count
//! ends as soon as it exceeds the least so far, mostly after a few hundred sites. Each further
//! taxon is added near those like it that are there already ([`Guide`]), which is n log n. Walks
//! end where the cost is well above the least: neighbourhoods are bounded in a tree of any size.
//! Places for many taxa or subtrees are sought at once, on all engines, in a tree that does not
//! change meanwhile. Changes are then made one after the other, each sought again if another one
//! came before it.
//! Must stay true: of the cheapest branches the first is taken. Every move saves a change, so that
//! rounds end; batches depend on the tree alone. So the result does not depend on the number of
//! engines.

use crate::sets::Sets;
use crate::{Stage, Step, Watch};
use sidecore_bare::width::ToU64;
use sidecore_likelihood::likelihood::LikelihoodError;
use sidecore_likelihood::msa::Patterns;
use sidecore_likelihood::parsimony::Sites;
use sidecore_likelihood::random::Random;
use sidecore_likelihood::runner::{Runner, Work};
use sidecore_likelihood::tree::{EdgeId, HalfId, LENGTH_DEFAULT, Tree};
use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicU64, Ordering};

/// A tree by stepwise addition, and its sets; `None` where the watch broke it off. Of the first
/// `scanned` taxa all branches are tried, of the others those near like ones.
pub(crate) fn add_all<'s, R: Runner>(
    (sites, patterns): (&'s Sites, &[&Patterns]),
    scanned: usize,
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
    let scanned = scanned.clamp(3, taxa);
    for (before, &tip) in order[..scanned].iter().enumerate().skip(3) {
        let edge = cheapest(&tree, &sets, before, tip, runner)?;
        tree.insert_tip(tip, before, edge);
        sets.inserted(&tree, tip);
        let step = Step::at(Stage::Addition, before, taxa);
        if before.is_multiple_of(LOOK_EVERY) && watch(&step).is_break() {
            return Ok(None);
        }
    }
    if scanned < taxa {
        let mut guided = Guided {
            guide: Guide::new(patterns, &order, random),
            finders: Vec::new(),
        };
        let mut before = scanned;
        while before < taxa {
            // A share of the tree: what the batch adds itself, which its search does not see, stays
            // little.
            let size = (before / BATCH_SHARE).clamp(1, BATCH).min(taxa - before);
            let tips = &order[before..before + size];
            guided.add(&mut tree, &mut sets, before, tips, runner)?;
            before += size;
            if watch(&Step::at(Stage::Addition, before, taxa)).is_break() {
                return Ok(None);
            }
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

/// Taxa that are added near like ones.
struct Guided {
    guide: Guide,
    finders: Vec<Finder>,
}

impl Guided {
    /// Adds a batch of taxa to a tree of the `there` first ones.
    fn add<R: Runner>(
        &mut self,
        tree: &mut Tree,
        sets: &mut Sets<'_>,
        there: usize,
        tips: &[usize],
        runner: &R,
    ) -> Result<(), LikelihoodError> {
        let runs: Vec<&[usize]> = tips.chunks(SUBTREES).collect();
        self.finders.resize_with(runs.len(), Finder::default);
        for (finder, run) in self.finders.iter_mut().zip(runs) {
            finder.tips.clear();
            finder.tips.extend_from_slice(run);
        }
        {
            let (tree, sets, guide) = (&*tree, &*sets, &self.guide);
            let ns = tips.len().to_u64() * TIP_NS;
            runner.run_sized(Work::Traverse, ns, &mut self.finders, |finder| {
                finder.seek_all(tree, sets, guide, there);
            })?;
        }
        let finders = self.finders.iter();
        let found: Vec<EdgeId> = finders.flat_map(|own| own.found.iter().copied()).collect();
        for (before, (&tip, edge)) in (there..).zip(tips.iter().zip(found)) {
            // Around the place that was found, and near what the batch has added since.
            let finder = &mut self.finders[0];
            finder.like_ones(sets.sites(), &self.guide, tip, there..before);
            let edge = finder.seek(tree, sets, tip, Some(edge));
            tree.insert_tip(tip, before, edge);
            sets.inserted(tree, tip);
        }
        Ok(())
    }
}

/// For each taxon some that are like it and come before it.
///
/// Taxa are sorted by the characters of a few random patterns, several times. Neighbours in such an
/// order share as many of the first characters as any. The nearest among the taxa that come earlier
/// are the neighbours in a linked list of the order, once all later ones are taken out.
#[derive(Debug)]
struct Guide {
    /// For each taxon its place in the order of addition.
    place: Vec<usize>,
    /// For each taxon [`NEAR`] others; [`NONE`] where there is none.
    near: Vec<usize>,
}

impl Guide {
    fn new(patterns: &[&Patterns], order: &[usize], random: &mut Random) -> Self {
        let mut place = vec![0; order.len()];
        for (at, &tip) in order.iter().enumerate() {
            place[tip] = at;
        }
        let mut guide = Self {
            place,
            near: vec![NONE; order.len() * NEAR],
        };
        for table in 0..NEAR / 2 {
            let keys = keys(patterns, order.len(), random);
            guide.sort(&keys, table, order);
        }
        guide
    }

    /// Notes each taxon's neighbours in the order of the keys.
    fn sort(&mut self, keys: &[[u8; KEY]], table: usize, order: &[usize]) {
        let mut sorted = order.to_vec();
        // Equal keys by their places, which makes this a total order.
        sorted.sort_unstable_by_key(|&tip| (&keys[tip], self.place[tip]));
        let (mut before, mut after) = (vec![NONE; sorted.len()], vec![NONE; sorted.len()]);
        for pair in sorted.windows(2) {
            (after[pair[0]], before[pair[1]]) = (pair[1], pair[0]);
        }
        for &tip in order.iter().rev() {
            let (left, right) = (before[tip], after[tip]);
            self.near[tip * NEAR + 2 * table..][..2].copy_from_slice(&[left, right]);
            if left != NONE {
                after[left] = right;
            }
            if right != NONE {
                before[right] = left;
            }
        }
    }

    fn near(&self, tip: usize) -> &[usize] {
        &self.near[tip * NEAR..][..NEAR]
    }
}

/// For each taxon its codes of some patterns drawn at random.
fn keys(patterns: &[&Patterns], taxa: usize, random: &mut Random) -> Vec<[u8; KEY]> {
    let all: usize = patterns.iter().map(|own| own.len()).sum();
    let mut keys = vec![[0; KEY]; taxa];
    for at in 0..KEY {
        // Constant sites are a few patterns, so most of those drawn differ.
        let mut drawn = random.index(all.max(1));
        for own in patterns {
            if drawn < own.len() {
                for (taxon, key) in keys.iter_mut().enumerate() {
                    key[at] = own.codes(taxon)[drawn];
                }
                break;
            }
            drawn -= own.len();
        }
    }
    keys
}

/// Seeks places for some taxa.
#[derive(Debug, Default)]
struct Finder {
    tips: Vec<usize>,
    /// For each of them the cheapest branch that was looked at.
    found: Vec<EdgeId>,
    /// Taxa like the present one, after their numbers of differences.
    like: Vec<(u64, usize)>,
    queue: Vec<EdgeId>,
    /// For each branch the number of the search that looked at it last.
    seen: Vec<u64>,
    search: u64,
}

impl Finder {
    fn seek_all(&mut self, tree: &Tree, sets: &Sets<'_>, guide: &Guide, there: usize) {
        self.found.clear();
        for at in 0..self.tips.len() {
            let tip = self.tips[at];
            self.like_ones(sets.sites(), guide, tip, 0..there);
            let edge = self.seek(tree, sets, tip, None);
            self.found.push(edge);
        }
    }

    /// Notes the taxa most like `tip` among those that the guide knows at these places.
    fn like_ones(&mut self, sites: &Sites, guide: &Guide, tip: usize, places: Range<usize>) {
        let below = sites.tip(tip);
        self.like.clear();
        for &other in guide.near(tip) {
            let is_known = self.like.iter().any(|&(_, known)| known == other);
            if other == NONE || is_known || !places.contains(&guide.place[other]) {
                continue;
            }
            let own = sites.tip(other);
            // Between two equal ends these are the sites that have no state in common.
            let differences = sites.insert(own, own, below, u64::MAX);
            self.like.push((differences, other));
        }
        self.like.sort_unstable();
        self.like.truncate(LIKE_MAX);
    }

    /// The cheapest branch for a tip near a branch and the branches of the taxa like it.
    fn seek(&mut self, tree: &Tree, sets: &Sets<'_>, tip: usize, first: Option<EdgeId>) -> EdgeId {
        let sites = sets.sites();
        let below = sites.tip(tip);
        self.search += 1;
        self.seen.resize(tree.edges().count(), 0);
        self.queue.clear();
        self.queue.extend(first);
        let like = self.like.iter();
        let like = like.map(|&(_, other)| tree.edge(HalfId::new(other)));
        self.queue.extend(like);
        if self.queue.is_empty() {
            // All like ones are of the same batch: any branch is a start.
            self.queue.push(EdgeId::new(0));
        }
        let (mut best, mut least) = (self.queue[0], u64::MAX);
        let mut at = 0;
        while at < self.queue.len().min(LOOKS_MAX) {
            let edge = self.queue[at];
            at += 1;
            if std::mem::replace(&mut self.seen[edge.index()], self.search) == self.search {
                continue;
            }
            let ends = tree.ends(edge);
            let [a, b] = ends.map(|end| sets.get(end));
            let limit = least.saturating_add(SLACK);
            let cost = sites.insert(a, b, below, limit);
            if cost < least {
                (best, least) = (edge, cost);
            }
            if cost < limit {
                let inner = ends.into_iter().filter(|&end| !tree.is_tip(end));
                let next = inner.flat_map(|end| tree.others(end));
                self.queue.extend(next.map(|half| tree.edge(half)));
            }
        }
        best
    }
}

/// Taxa that are known to be like one: two for each order.
const NEAR: usize = 32;
/// Patterns that an order is made by.
const KEY: usize = 32;
/// No taxon.
const NONE: usize = usize::MAX;
/// Like taxa near which a place is sought.
const LIKE_MAX: usize = 3;
/// Branches that are looked at for a taxon.
const LOOKS_MAX: usize = 600;
/// A batch of taxa is this share of those in the tree, or less.
const BATCH_SHARE: usize = 8;
/// Time to seek the place of a taxon, in nanoseconds.
const TIP_NS: u64 = 20_000;
/// Changes above the least so far up to which a walk goes on.
const SLACK: u64 = 5;

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
                let limit = least.saturating_add(SLACK);
                let cost = sites.insert(&own[0], sets.get(far), below, limit);
                if cost < least {
                    (best, least) = (Some(tree.edge(near)), cost);
                }
                // Beyond a place that costs much more none is cheaper, but for a few.
                if cost < limit {
                    self.spread(tree, far, depth, radius);
                }
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
