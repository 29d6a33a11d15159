//! Stepwise addition: taxa in random order, each where it costs the fewest changes of state.
//!
//! Why here: all branches are tried for each taxon, which is n^2 insertions; a count ends as soon
//! as it exceeds the least so far, mostly after a few hundred sites.
//! Must stay true: of the cheapest branches the first is taken, on any number of engines.

use crate::sets::Sets;
use crate::{Stage, Step, Watch};
use sidecore_bare::width::ToU64;
use sidecore_likelihood::likelihood::LikelihoodError;
use sidecore_likelihood::parsimony::Sites;
use sidecore_likelihood::random::Random;
use sidecore_likelihood::runner::{Runner, Work};
use sidecore_likelihood::tree::{EdgeId, LENGTH_DEFAULT, Tree};
use std::ops::Range;
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
    let runs = edges.div_ceil(RUN);
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
const RUN: usize = 512;
/// Time of an insertion whose count ends early.
const INSERTION_NS: u64 = 30;
/// Taxa between two calls of the watch.
const LOOK_EVERY: usize = 64;
