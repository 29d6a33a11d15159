//! Bootstrap replicates and the best tree offered to each.
//!
//! Must stay true: trees that no replicate keeps are dropped, so that there are never more trees
//! than replicates.

use crate::likelihood::Likelihood;
use crate::random::Random;
use crate::runner::Runner;
use crate::tree::{EdgeId, HalfId, LENGTH_MIN, Tree};
use std::collections::HashMap;
use std::ops::Range;

pub(super) struct Replicates {
    /// For each pattern a site that has it.
    sites: Vec<usize>,
    /// For each pattern the number of draws of each replicate.
    weights: Vec<f32>,
    /// For each replicate the best tree.
    best: Vec<Best>,
    trees: Vec<Option<(Tree, usize)>>,
    free: Vec<usize>,
    /// The first tree's log-likelihoods of the patterns; all sums are of differences to them, for
    /// which single precision is enough.
    first: Vec<f64>,
    sums: Vec<f32>,
    /// Largest distance behind the best tree of a tree that a replicate took.
    farthest: f64,
    random: Random,
}

/// The best tree offered to a replicate.
#[derive(Debug, Clone, Copy)]
struct Best {
    /// Its log-likelihood above the first tree's.
    lnl: f64,
    /// Its number.
    tree: usize,
    /// Offers as good as this one, so far.
    equals: u64,
}

impl Replicates {
    pub(super) fn new<R: Runner>(
        likelihood: &Likelihood<R>,
        count: usize,
        random: &mut Random,
    ) -> Self {
        let (mut sites, mut weights) = (Vec::new(), Vec::new());
        for part in likelihood.parts() {
            let own: Vec<(usize, usize)> = part.patterns().site_patterns().collect();
            let first = sites.len();
            sites.resize(first + part.patterns().len(), 0);
            // Pattern by pattern, so that a log-likelihood is added to all replicates at once; the
            // counts are exact in `f32`.
            weights.resize(sites.len() * count, 0.0_f32);
            for &(site, pattern) in &own {
                sites[first + pattern] = site;
            }
            // Each partition keeps its number of sites.
            for replicate in 0..count {
                for _ in 0..own.len() {
                    let (_, pattern) = own[random.index(own.len())];
                    weights[(first + pattern) * count + replicate] += 1.0;
                }
            }
        }
        Self {
            sites,
            weights,
            best: vec![
                Best {
                    lnl: f64::NEG_INFINITY,
                    tree: usize::MAX,
                    equals: 0,
                };
                count
            ],
            trees: Vec::new(),
            free: Vec::new(),
            first: Vec::new(),
            sums: vec![0.0; count],
            farthest: 0.0,
            random: Random::new(random.bits()),
        }
    }

    /// Distance behind the best tree up to which a tree is offered.
    pub(super) fn reach(&self) -> f64 {
        1.5 * self.farthest + REACH_MIN
    }

    /// Offers a tree that is `behind` the best.
    pub(super) fn offer(&mut self, tree: &Tree, sites: &[f64], behind: f64) {
        let count = self.best.len();
        if self.first.is_empty() {
            // Differences from the first tree are small, so single precision is enough for them.
            self.first
                .extend(self.sites.iter().map(|&site| sites[site]));
        }
        self.sums.fill(0.0);
        let patterns = self.sites.iter().zip(&self.first);
        for ((&site, first), weights) in patterns.zip(self.weights.chunks(count)) {
            // Pattern by pattern over all replicates: the inner loop is one vectorised run of
            // weights.
            let gain = (sites[site] - first) as f32;
            for (sum, &weight) in self.sums.iter_mut().zip(weights) {
                *sum += gain * weight;
            }
        }
        let mut number = None;
        for replicate in 0..count {
            let before = self.best[replicate];
            let sum = f64::from(self.sums[replicate]);
            if sum < before.lnl - TIE {
                continue;
            }
            // Sums that differ by less than rounding are ties.
            let better = sum > before.lnl + TIE;
            let equals = if better { 1 } else { before.equals + 1 };
            // Of several equal trees each is kept with the same chance.
            if !better && self.random.below(equals) > 0 {
                self.best[replicate].equals = equals;
                continue;
            }
            let number = *number.get_or_insert_with(|| {
                let at = self.free.pop().unwrap_or_else(|| {
                    self.trees.push(None);
                    self.trees.len() - 1
                });
                self.trees[at] = Some((tree.clone(), 0));
                at
            });
            self.best[replicate] = Best {
                lnl: sum.max(before.lnl),
                tree: number,
                equals,
            };
            if let Some((_, users)) = &mut self.trees[number] {
                *users += 1;
            }
            self.release(before.tree);
            self.farthest = self.farthest.max(behind);
        }
    }

    /// One replicate less keeps a tree.
    fn release(&mut self, number: usize) {
        let Some(Some((_, users))) = self.trees.get_mut(number) else {
            return;
        };
        *users -= 1;
        if *users == 0 {
            self.trees[number] = None;
            self.free.push(number);
        }
    }

    /// Each replicate's tree.
    pub(super) fn trees(&self) -> Vec<Tree> {
        let tree = |best: &Best| {
            let kept = self.trees.get(best.tree).and_then(Option::as_ref);
            kept.map(|(tree, _)| tree.clone())
        };
        self.best.iter().filter_map(tree).collect()
    }

    /// The number of draws of some patterns in a replicate.
    pub(super) fn draws(&self, replicate: usize, patterns: Range<usize>) -> Vec<f64> {
        let count = self.best.len();
        let own = patterns.map(|pattern| self.weights[pattern * count + replicate]);
        own.map(f64::from).collect()
    }

    /// For each split the number of replicates' trees that have it.
    pub(super) fn supports(&self) -> HashMap<Vec<u64>, usize> {
        let mut supports = HashMap::new();
        for (tree, users) in self.trees.iter().flatten() {
            for split in splits(tree) {
                *supports.entry(split).or_insert(0) += users;
            }
        }
        supports
    }
}

/// The inner splits of a tree: the side without the first taxon.
fn splits(tree: &Tree) -> Vec<Vec<u64>> {
    let words = tree.taxa().div_ceil(64);
    let mut below: HashMap<HalfId, Vec<u64>> = HashMap::new();
    // Seen from the first taxon, so that no set contains it.
    let root = tree.back(HalfId(0));
    let mut all = Vec::new();
    for half in tree.post_order(root, |_| true) {
        let mut set = vec![0_u64; words];
        for other in tree.others(half).map(|other| tree.back(other)) {
            match below.get(&other) {
                Some(inner) => set.iter_mut().zip(inner).for_each(|(to, from)| *to |= from),
                None => set[other.index() / 64] |= 1 << (other.index() % 64),
            }
        }
        if half != root {
            all.push(set.clone());
        }
        below.insert(half, set);
    }
    all
}

/// True for a branch that resolves nothing: of about the least length.
pub(super) fn is_void(tree: &Tree, edge: EdgeId) -> bool {
    tree.length(edge) <= VOID
}

/// A hash of the splits of resolved branches: trees that resolve the others differently have the
/// same one.
pub(super) fn shape(tree: &Tree) -> u64 {
    tree.topology_of(|edge| !is_void(tree, edge))
}

/// Pearson's correlation of the supports of all splits that either has.
pub(super) fn correlation(a: &HashMap<Vec<u64>, usize>, b: &HashMap<Vec<u64>, usize>) -> f64 {
    let mut pairs: Vec<(f64, f64)> = Vec::new();
    for (split, &count) in a {
        pairs.push((count as f64, b.get(split).copied().unwrap_or(0) as f64));
    }
    for (split, &count) in b {
        if !a.contains_key(split) {
            pairs.push((0.0, count as f64));
        }
    }
    let count = pairs.len().max(1) as f64;
    // Whole numbers: sums are exact, in any order.
    let sum = |f: fn(&(f64, f64)) -> f64| pairs.iter().map(f).sum::<f64>();
    let (x, y) = (sum(|p| p.0), sum(|p| p.1));
    let xy = sum(|p| p.0 * p.1) - x * y / count;
    let xx = sum(|p| p.0 * p.0) - x * x / count;
    let yy = sum(|p| p.1 * p.1) - y * y / count;
    match xx > 0.0 && yy > 0.0 {
        true => xy / (xx * yy).sqrt(),
        false => f64::from(u8::from(a == b)),
    }
}

const VOID: f64 = 2.0 * LENGTH_MIN;
/// Log-likelihoods of a replicate that are nearer than this are equal (UFBoot2's 0.5).
const TIE: f64 = 0.5;
/// Trees within this distance of the best are offered in any case.
const REACH_MIN: f64 = 20.0;
