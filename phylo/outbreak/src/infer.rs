//! The inference: placement of one genome after the other, then rounds of moves and fits.
//!
//! Genomes come in the order of their differences from the reference, fewest first. Where the tree
//! is large, the places of the next few are searched at once on the tree as it is, then applied in
//! order; each of them also looks at the branches that those before it made. Moves of a block of
//! subtrees are searched at once, too, and applied by their gains, each one checked on the tree as
//! it is then. Sizes of batches and blocks depend on the tree alone, so engines change nothing.
//!
//! Must stay true: memory stays in proportion to the lists; every loop ends, or has a bound.
//! Source: De Maio and others, Nature Genetics 55 (2023), 746-752; the batches are ours.

use crate::genome::{Genome, Genomes};
use crate::model::{ModelChoice, Rates};
use crate::search::{Fit, Found, MOVE_GAIN, Move, among, best_fit, find, find_move, present_gain};
use crate::sparse::{Edge, Space};
use crate::tree::{NONE, Place, ROOT, Tree};
use crate::{Options, OutbreakError};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_offload::Pool;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// The present work of an inference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Genomes are placed.
    Placing,
    /// Subtrees move, in this round from 1.
    Moving(u32),
    /// Lengths and rates are fitted.
    Fitting,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Placing => f.write_str("genomes placed"),
            Self::Moving(round) => write!(f, "subtrees, round {round} of moves"),
            Self::Fitting => f.write_str("rounds over lengths and rates"),
        }
    }
}

/// Progress of an inference.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    /// The present work.
    pub stage: Stage,
    /// Genomes or subtrees of this stage that are done.
    pub done: u64,
    /// All of them.
    pub all: u64,
}

/// A tree of genomes, with its likelihood.
#[derive(Debug)]
pub struct Outbreak {
    pub(crate) tree: Tree,
    pub(crate) space: Space,
    pub(crate) names: Vec<String>,
    pub(crate) lnl: f64,
    pub(crate) moves: u64,
    pub(crate) rounds: u32,
    pub(crate) was_stopped: bool,
}

/// Infers the tree of genomes. Blocks. Once `stop` is raised, no further round of moves begins, and
/// the tree is the one found so far.
///
/// # Errors
/// [`OutbreakError::Stopped`] where `stop` was raised before all genomes were placed; an engine
/// that failed.
pub fn infer(
    genomes: Genomes,
    options: &Options,
    pool: &Pool,
    watch: &mut dyn FnMut(Progress),
    stop: &AtomicBool,
) -> Result<Outbreak, OutbreakError> {
    let Genomes {
        names,
        lists,
        reference,
        ..
    } = genomes;
    let shares = reference.shares();
    let mut rates = options.model.start(shares);
    let fits_rates = matches!(options.model, ModelChoice::Gtr);
    if fits_rates {
        let counts = distinct_substitutions(&lists, |site| reference.base(site));
        rates = Rates::of_counts(&counts, shares);
    }
    let mut groups = groups(lists).into_iter();
    let Some((first, taxa)) = groups.next() else {
        return Err(OutbreakError::Input {
            what: "there are no genomes".to_owned(),
        });
    };
    let mut work = Work {
        tree: Tree::new(first, taxa),
        space: Space::new(reference, rates),
        shares: fits_rates.then_some(shares),
        pool,
        watch,
        stop,
    };
    work.place_all(groups.collect())?;
    work.settle(SETTLE_BETWEEN);
    let (mut moves, mut rounds) = (0, 0);
    // The number of nodes is fixed from here on: a move uses its own inner node again.
    let mut dirty = vec![true; work.tree.nodes.len()];
    while rounds < options.rounds && !work.is_stopped() {
        rounds += 1;
        let made = work.move_subtrees(rounds, &mut dirty)?;
        moves += made;
        if made == 0 {
            break;
        }
        work.settle(SETTLE_BETWEEN);
    }
    let lnl = work.settle(SETTLE_ROUNDS);
    let was_stopped = work.is_stopped();
    Ok(Outbreak {
        tree: work.tree,
        space: work.space,
        names,
        lnl,
        moves,
        rounds,
        was_stopped,
    })
}

/// Different lists in the order in which they are placed, each with the taxa that have it.
fn groups(mut lists: Vec<Genome>) -> Vec<(Genome, Vec<u32>)> {
    // Unknown sites count as differences: a tip can only take in genomes that say less, so those
    // that say most come before them.
    let key = |list: &Genome| list.differences().map(u64::from).iter().sum::<u64>();
    let mut order: Vec<(u64, u32)> = (0..)
        .zip(&lists)
        .map(|(at, list)| (key(list), at))
        .collect();
    // Equal keys by the file's order, which makes this a total order.
    order.sort_unstable();
    let mut groups: Vec<(Genome, Vec<u32>)> = Vec::new();
    let mut known: HashMap<u64, Vec<usize>> = HashMap::new();
    for (_, taxon) in order {
        let list = std::mem::take(&mut lists[taxon.to_usize()]);
        // A digest may be shared by chance, or on purpose: lists decide.
        let same = known.entry(list.digest()).or_default();
        let known = same.iter().copied().find(|&at| groups[at].0 == list);
        match known {
            Some(at) => groups[at].1.push(taxon),
            None => {
                same.push(groups.len());
                groups.push((list, vec![taxon]));
            }
        }
    }
    groups
}

/// Number of different substitutions from the reference, for each pair of bases: the first guess at
/// rates, before there is a tree.
fn distinct_substitutions(lists: &[Genome], base: impl Fn(u32) -> usize) -> [[f64; 4]; 4] {
    let mut seen = HashSet::new();
    let mut counts = [[0.0; 4]; 4];
    for (site, to) in lists.iter().flat_map(Genome::other_bases) {
        // Each site and base once: a substitution that a thousand genomes inherit happened once.
        if seen.insert((site, to)) {
            counts[base(site)][to] += 1.0;
        }
    }
    counts
}

/// An inference under way.
struct Work<'w> {
    tree: Tree,
    space: Space,
    /// The reference's frequencies, where rates are fitted.
    shares: Option<[f64; 4]>,
    pool: &'w Pool,
    watch: &'w mut dyn FnMut(Progress),
    stop: &'w AtomicBool,
}

impl Work<'_> {
    fn is_stopped(&self) -> bool {
        // Relaxed: the flag alone decides.
        self.stop.load(Ordering::Relaxed)
    }

    fn say(&mut self, stage: Stage, done: usize, all: usize) {
        (self.watch)(Progress {
            stage,
            done: done.to_u64(),
            all: all.to_u64(),
        });
    }

    /// Places all genomes behind the first one.
    fn place_all(&mut self, groups: Vec<(Genome, Vec<u32>)>) -> Result<(), OutbreakError> {
        let all = groups.len();
        let mut groups = groups.into_iter();
        let mut left = all;
        // Two tips make the first branch.
        while self.tree.top() == NONE {
            let Some((genome, taxa)) = groups.next() else {
                return Ok(());
            };
            left -= 1;
            if self
                .tree
                .node(ROOT)
                .lower
                .covers(&genome, &self.space.reference)
            {
                self.cover(ROOT, taxa);
                continue;
            }
            let edge = Edge::new(&self.space, &self.tree.node(ROOT).lower, &genome);
            let length = edge.best_length(self.space.one());
            let tip = self.tree.add_tip(genome, taxa);
            self.tree.link_second(&self.space, tip, length);
        }
        while left > 0 {
            if self.is_stopped() {
                return Err(OutbreakError::Stopped);
            }
            self.say(Stage::Placing, all - left, all);
            // By the tree, never by the engines. A sixteenth of the tips: the batch's own
            // additions, which the search cannot see, stay few.
            let size = (self.tree.tips() / TIPS_A_GENOME).clamp(1, BATCH_MAX);
            let batch: Vec<(Genome, Vec<u32>)> = groups.by_ref().take(size).collect();
            left -= batch.len();
            let (tree, space) = (&self.tree, &self.space);
            let found: Vec<Found> = match &batch[..] {
                // A batch of one is not worth a wake-up of the pool.
                [(genome, _)] => vec![find(tree, space, genome)],
                batch => {
                    let each = self.pool.par(batch);
                    each.map(|(genome, _)| find(tree, space, genome))
                        .collect()?
                }
            };
            // In the batch's order: the tree is changed by one thread only.
            self.apply_batch(batch, found);
        }
        Ok(())
    }

    fn cover(&mut self, tip: u32, taxa: Vec<u32>) {
        self.tree.nodes[tip.to_usize()].taxa.extend(taxa);
    }

    /// Puts genomes where they were found to belong, one after the other.
    fn apply_batch(&mut self, batch: Vec<(Genome, Vec<u32>)>, found: Vec<Found>) {
        let mut tips: Vec<u32> = Vec::new();
        let mut made: Vec<u32> = Vec::new();
        for ((genome, taxa), found) in batch.into_iter().zip(found) {
            let candidates = match found {
                Found::Covered(tip) => {
                    self.cover(tip, taxa);
                    continue;
                }
                Found::Branches(candidates) => candidates,
            };
            let (tree, reference) = (&self.tree, &self.space.reference);
            // The search saw the tree without the batch's tips.
            let covering = tips
                .iter()
                .find(|&&tip| tree.node(tip).lower.covers(&genome, reference));
            if let Some(&tip) = covering {
                self.cover(tip, taxa);
                continue;
            }
            let (tree, space) = (&self.tree, &self.space);
            let candidates = match made.is_empty() {
                true => candidates,
                false => {
                    // What the batch has made since is looked at as well.
                    let found = candidates.iter().map(|candidate| candidate.edge);
                    let mut edges: Vec<u32> = found.chain(made.iter().copied()).collect();
                    // Equal scores are decided by order, which must not depend on the history of
                    // the batch.
                    edges.sort_unstable();
                    edges.dedup();
                    among(tree, space, &genome, edges)
                }
            };
            let start = space.one();
            let place = match best_fit(tree, space, &genome, start, &candidates) {
                Some(Fit { place, .. }) => place,
                // No walk ends without a branch.
                None => Place {
                    edge: tree.top(),
                    lengths: [0.5 * tree.node(tree.top()).length; 3],
                },
            };
            let tip = self.tree.add_tip(genome, taxa);
            let inner = self.tree.add_inner();
            self.tree.attach(&self.space, (tip, inner), place);
            tips.push(tip);
            // All three parts that the split branch became, also for the rest of the batch.
            made.extend([tip, inner, place.edge]);
        }
    }

    /// Fits rates and lengths until they have settled, or for some rounds; returns the
    /// log-likelihood of lists that are all new.
    fn settle(&mut self, rounds: usize) -> f64 {
        // Updates stop where lists change little, and these rests add up: gains need lists that are
        // new.
        let mut lnl = self.tree.rebuild(&self.space);
        for round in 0..rounds {
            if self.is_stopped() {
                break;
            }
            self.say(Stage::Fitting, round, rounds);
            if let Some(shares) = self.shares {
                // A step of expectation and maximisation, without the time spent in each base:
                // genomes that are nearly equal keep the reference's composition.
                let rates = Rates::of_counts(&self.substitutions(), shares);
                // Lists depend on the rates: none of the old ones may be compared with new ones.
                let old = std::mem::replace(&mut self.space.rates, rates);
                let now = self.tree.rebuild(&self.space);
                // Counts are of a step towards the best rates, and this one may be none.
                if now < lnl {
                    self.space.rates = old;
                    self.tree.rebuild(&self.space);
                }
            }
            self.fit_lengths();
            let now = self.tree.rebuild(&self.space);
            let gain = now - lnl;
            lnl = now;
            if gain < SETTLE_GAIN {
                break;
            }
        }
        lnl
    }

    /// Expected substitutions on all branches.
    fn substitutions(&self) -> [[f64; 4]; 4] {
        let mut counts = [[0.0; 4]; 4];
        for node in self.tree.order() {
            let own = self.tree.node(node);
            let ends = (&own.upper, &own.lower);
            Edge::count_substitutions(&self.space, ends, own.length, &mut counts);
        }
        counts
    }

    /// Fits the length of each branch, one after the other.
    fn fit_lengths(&mut self) {
        for node in self.tree.order() {
            let own = self.tree.node(node);
            let edge = Edge::new(&self.space, &own.upper, &own.lower);
            // A start above 0 lets a branch without a length grow again.
            let best = edge.best_length(own.length.max(self.space.one()));
            // Each change makes lists around it again; most lengths of a later round are as they
            // were.
            if (best - own.length).abs() > LENGTH_STEP * best.max(own.length) {
                self.tree.set_length(&self.space, node, best);
            }
        }
    }

    /// Moves subtrees whose neighbourhood has changed to better places; returns how many moved.
    fn move_subtrees(&mut self, round: u32, dirty: &mut [bool]) -> Result<u64, OutbreakError> {
        let mut order = self.tree.order();
        // Taken before the moves, which set marks for the next round.
        order.retain(|node| std::mem::take(&mut dirty[node.to_usize()]));
        let mut made = 0;
        for (block, nodes) in order.chunks(BLOCK).enumerate() {
            if self.is_stopped() {
                break;
            }
            self.say(Stage::Moving(round), block * BLOCK, order.len());
            let (tree, space) = (&self.tree, &self.space);
            let each = self.pool.par(nodes);
            let found: Vec<Option<Move>> =
                each.map(|&node| find_move(tree, space, node)).collect()?;
            let mut moves: Vec<Move> = found.into_iter().flatten().collect();
            // The largest gain first: a smaller one that needs the same branches loses. Ties by
            // number, so that engines change nothing.
            moves.sort_by(|a, b| b.gain.total_cmp(&a.gain).then(a.subtree.cmp(&b.subtree)));
            for wanted in moves {
                made += u64::from(self.apply_move(wanted, dirty));
            }
        }
        Ok(made)
    }

    /// Moves a subtree if that is still possible, and still better; true if it was.
    fn apply_move(&mut self, wanted: Move, dirty: &mut [bool]) -> bool {
        let Move { subtree, edge, .. } = wanted;
        // Those before it may have changed all around it.
        let Some(now) = present_gain(&self.tree, &self.space, subtree) else {
            return false;
        };
        let around = [
            subtree,
            self.tree.node(subtree).parent,
            self.tree.sibling(subtree),
        ];
        // On one of these three branches it is where it was; inside itself it would cut itself off.
        if around.contains(&edge) || self.tree.is_within(edge, subtree) {
            return false;
        }
        // From here on it must be attached again, better or not.
        let (inner, old) = self.tree.detach(&self.space, subtree);
        let query = &self.tree.node(subtree).lower;
        let start = old.lengths[2].max(self.space.one());
        let candidates = among(&self.tree, &self.space, query, [edge]);
        let fit = best_fit(&self.tree, &self.space, query, start, &candidates);
        // A minimum gain ends the rounds: moves between equal places would go on for ever.
        let better = fit.filter(|fit| fit.gain > now + MOVE_GAIN);
        let place = better.map_or(old, |fit| fit.place);
        self.tree.attach(&self.space, (subtree, inner), place);
        if better.is_some() {
            // Both places: what was around the old one may now fit elsewhere.
            for node in [subtree, inner, old.edge, place.edge] {
                self.mark(node, dirty);
            }
        }
        better.is_some()
    }

    /// Marks a node and those around it for the next round.
    fn mark(&self, node: u32, dirty: &mut [bool]) {
        let own = self.tree.node(node);
        let [a, b] = own.children;
        let near = [node, own.parent, self.tree.sibling(node), a, b];
        for node in near.into_iter().filter(|&node| node != NONE) {
            dirty[node.to_usize()] = true;
        }
    }
}

/// Tips for each genome of a batch, whose places are searched at once; and a batch's most genomes.
const TIPS_A_GENOME: usize = 16;
const BATCH_MAX: usize = 128;
/// Subtrees whose moves are searched at once.
const BLOCK: usize = 1024;
/// Rounds over rates and lengths: at the end, between moves, and the gain below which they end.
const SETTLE_ROUNDS: usize = 8;
const SETTLE_BETWEEN: usize = 2;
const SETTLE_GAIN: f64 = 0.02;
/// Lengths that would change by a smaller share stay as they are.
const LENGTH_STEP: f64 = 0.002;
