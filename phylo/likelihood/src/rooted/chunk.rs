//! The CLVs of a rooted tree for some patterns.
//!
//! Pattern by pattern, category by category, one value a state. A pattern whose values are all
//! small is divided by the kernels' threshold, and its scale counts how often.
//! Must stay true: a chunk writes to itself alone, so chunks run on any thread.

use super::rates::RateMatrix;
use super::{Data, RootedTree};
use crate::kernel::{Derivatives, LN_THRESHOLD, THRESHOLD};
use sidecore_bare::width::ToUsize;
use std::ops::Range;

/// All that chunks read.
pub(super) struct Setting<'a> {
    pub(super) states: usize,
    pub(super) tree: &'a RootedTree,
    pub(super) data: &'a Data,
    /// Of the branch above each node.
    pub(super) tables: &'a [Table],
    /// Of each category.
    pub(super) rates: &'a [f64],
    pub(super) weights: &'a [f64],
    /// Frequencies at the root, of each matrix.
    pub(super) root: &'a [f64],
    /// For each pattern the likelihood that invariable sites add.
    pub(super) fixed: &'a [f64],
    /// One for all categories, or one for each.
    pub(super) matrices: &'a [RateMatrix],
}

impl Setting<'_> {
    /// Values of a pattern.
    pub(super) fn span(&self) -> usize {
        self.states * self.rates.len()
    }

    /// The rate matrix of a category, row by row. Categories are counted on over all patterns.
    fn changes(&self, category: usize) -> &[f64] {
        self.matrices[self.place(category)].rates()
    }

    /// The frequencies at the root of a category, which is counted as those of [`Self::changes`].
    fn root_of(&self, category: usize) -> &[f64] {
        &self.root[self.place(category) * self.states..][..self.states]
    }

    fn place(&self, category: usize) -> usize {
        // As many as there are categories, or one.
        category % self.rates.len() % self.matrices.len()
    }
}

/// Probabilities of changes over a branch.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// For each category a matrix, row by row, from the upper end's state to the lower one's.
    matrices: Vec<f64>,
    /// Of a tip, for each code: category by category, for each state of the upper end.
    tips: Vec<f64>,
}

impl Table {
    /// `codes` are those of a tip, each with the states that it may be and their likelihoods; none
    /// of an inner node.
    pub(super) fn fill(
        &mut self,
        matrices: &[RateMatrix],
        rates: &[f64],
        length: f64,
        codes: &[Vec<(usize, f64)>],
    ) {
        let n = matrices[0].equilibrium().len();
        self.matrices.resize(rates.len() * n * n, 0.0);
        let categories = rates.iter().zip(matrices.iter().cycle());
        for ((rate, matrix), out) in categories.zip(self.matrices.chunks_exact_mut(n * n)) {
            matrix.transitions(rate * length, out);
        }
        self.tips.clear();
        for states in codes {
            // Rows of all categories, one after the other.
            for row in self.matrices.chunks_exact(n) {
                let own = states.iter().map(|&(state, share)| row[state] * share);
                self.tips.push(own.sum());
            }
        }
    }
}

/// A CLV, and for each pattern its scale.
#[derive(Debug, Default)]
struct Clv {
    values: Vec<f64>,
    scales: Vec<u32>,
}

impl Clv {
    fn reset(&mut self, patterns: usize, span: usize) {
        self.values.clear();
        self.values.resize(patterns * span, 1.0);
        self.scales.clear();
        self.scales.resize(patterns, 0);
    }

    /// Multiplies by the likelihood of all below a node's branch, for each state of its upper end.
    fn multiply(&mut self, set: &Setting<'_>, node: usize, below: &Clv, patterns: Range<usize>) {
        let (span, table) = (set.span(), &set.tables[node]);
        // One child after the other, into a product: a node may have any number of them.
        let own = self.values.chunks_exact_mut(span);
        if let Some(taxon) = set.tree.taxa[node] {
            for (own, code) in own.zip(&set.data.codes[taxon][patterns]) {
                let from = &table.tips[code.to_usize() * span..][..span];
                own.iter_mut()
                    .zip(from)
                    .for_each(|(own, from)| *own *= from);
            }
        } else {
            for (own, from) in own.zip(below.values.chunks_exact(span)) {
                rows(set.states, &table.matrices, from, |at, sum| own[at] *= sum);
            }
            let scales = self.scales.iter_mut().zip(&below.scales);
            scales.for_each(|(own, scale)| *own += scale);
        }
        self.rescale(span);
    }

    fn rescale(&mut self, span: usize) {
        let own = self.values.chunks_exact_mut(span).zip(&mut self.scales);
        for (values, scale) in own {
            // One scale for all categories of a pattern: they are added at the root without a look
            // at it.
            let most = values.iter().copied().fold(0.0, f64::max);
            // All 0 is an impossible pattern, which no factor brings back.
            if most > 0.0 && most < THRESHOLD {
                values.iter_mut().for_each(|value| *value /= THRESHOLD);
                *scale += 1;
            }
        }
    }
}

/// Calls `each` with the place and the value of each entry of a product of matrices, one for each
/// category, and a pattern's values.
fn rows(states: usize, matrices: &[f64], from: &[f64], mut each: impl FnMut(usize, f64)) {
    let blocks = matrices.chunks_exact(states * states);
    for (category, (block, from)) in blocks.zip(from.chunks_exact(states)).enumerate() {
        for (state, row) in block.chunks_exact(states).enumerate() {
            each(category * states + state, dot(row, from));
        }
    }
}

/// For each category a row of values times a matrix.
fn times<'m>(states: usize, from: &[f64], matrix: impl Fn(usize) -> &'m [f64], to: &mut [f64]) {
    let categories = from.chunks_exact(states).zip(to.chunks_exact_mut(states));
    for (category, (from, to)) in categories.enumerate() {
        to.fill(0.0);
        for (value, row) in from.iter().zip(matrix(category).chunks_exact(states)) {
            to.iter_mut()
                .zip(row)
                .for_each(|(to, entry)| *to += value * entry);
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Some patterns and their CLVs.
#[derive(Debug)]
pub(super) struct Chunk {
    patterns: Range<usize>,
    /// Of all below each node; empty of tips.
    below: Vec<Clv>,
    /// Of all that is not below each node, at the upper end of the branch above it, with the
    /// frequencies of the root.
    above: Vec<Clv>,
    /// Of the node that was entered last, `above` times the rate matrix, once and twice.
    turned: [Vec<f64>; 2],
    /// For each pattern its log-likelihood.
    sites: Vec<f64>,
    lnl: f64,
    slope: Derivatives,
}

impl Chunk {
    pub(super) fn new(patterns: Range<usize>) -> Self {
        Self {
            patterns,
            below: Vec::new(),
            above: Vec::new(),
            turned: [const { Vec::new() }; 2],
            sites: Vec::new(),
            lnl: 0.0,
            slope: Derivatives::default(),
        }
    }

    /// Makes room for a tree of this many nodes.
    pub(super) fn begin(&mut self, nodes: usize) {
        self.below.resize_with(nodes, Clv::default);
        self.above.resize_with(nodes, Clv::default);
    }

    /// Computes the CLV below an inner node from those of its children; nothing of a tip.
    pub(super) fn renew(&mut self, set: &Setting<'_>, node: usize) {
        let children = set.tree.children(node);
        if children.is_empty() {
            return;
        }
        let mut own = std::mem::take(&mut self.below[node]);
        own.reset(self.patterns.len(), set.span());
        for &child in children {
            own.multiply(set, child, &self.below[child], self.patterns.clone());
        }
        self.below[node] = own;
    }

    /// Takes the likelihoods at the root, whose CLV must be valid.
    pub(super) fn finish(&mut self, set: &Setting<'_>) {
        let (span, root) = (set.span(), &self.below[0]);
        self.sites.clear();
        self.lnl = 0.0;
        // The root alone has a likelihood: a nonreversible process depends on its place.
        let own = root.values.chunks_exact(span).zip(&root.scales);
        for (pattern, (values, &scale)) in self.patterns.clone().zip(own) {
            let categories = values.chunks_exact(set.states).zip(set.weights);
            let sum: f64 = (categories.enumerate())
                .map(|(category, (own, weight))| weight * dot(set.root_of(category), own))
                .sum();
            let mut log = libm::log(sum) + f64::from(scale) * LN_THRESHOLD;
            // In this order an exponential that underflows is far below what is fixed.
            if set.fixed[pattern] > 0.0 {
                log = libm::log(libm::exp(log) + set.fixed[pattern]);
            }
            // Populations have no invariable sites, so the order does not matter.
            log += set.data.offsets.get(pattern).copied().unwrap_or(0.0);
            self.sites.push(log);
            self.lnl += f64::from(set.data.weights[pattern]) * log;
        }
    }

    /// Computes the CLV above a node. That of its parent must be valid, and those below its
    /// siblings.
    pub(super) fn enter(&mut self, set: &Setting<'_>, node: usize) {
        let Some(parent) = set.tree.parent(node) else {
            return;
        };
        let (span, count) = (set.span(), self.patterns.len());
        let mut own = std::mem::take(&mut self.above[node]);
        own.reset(count, span);
        if set.tree.parent(parent).is_none() {
            let categories = own.values.chunks_exact_mut(set.states);
            // Nothing is above the root's branches but the distribution that the process begins
            // with.
            let each = categories.enumerate();
            each.for_each(|(at, values)| values.copy_from_slice(set.root_of(at)));
        } else {
            let (from, matrices) = (&self.above[parent], &set.tables[parent].matrices);
            let pairs = from.values.chunks_exact(span);
            let square = set.states * set.states;
            let of = |category: usize| &matrices[category * square..][..square];
            for (from, to) in pairs.zip(own.values.chunks_exact_mut(span)) {
                times(set.states, from, of, to);
            }
            own.scales.copy_from_slice(&from.scales);
        }
        for &sibling in set.tree.children(parent) {
            if sibling != node {
                // Its siblings are part of all else, seen from the upper end of this branch.
                own.multiply(set, sibling, &self.below[sibling], self.patterns.clone());
            }
        }
        let [once, twice] = &mut self.turned;
        once.resize(count * span, 0.0);
        twice.resize(count * span, 0.0);
        // Without the categories' rates, which come later.
        times(set.states, &own.values, |at| set.changes(at), once);
        times(set.states, once, |at| set.changes(at), twice);
        self.above[node] = own;
    }

    /// The derivatives by the length of the branch above the node that was entered last, with
    /// `table` of that branch.
    pub(super) fn differentiate(&mut self, set: &Setting<'_>, node: usize, table: &Table) {
        let (n, span) = (set.states, set.span());
        let (above, below) = (&self.above[node], &self.below[node]);
        let taxon = set.tree.taxa[node];
        let mut down = vec![0.0; span];
        self.slope = Derivatives::default();
        for (at, pattern) in self.patterns.clone().enumerate() {
            let mut scale = above.scales[at];
            match taxon {
                Some(taxon) => {
                    let code = set.data.codes[taxon][pattern].to_usize();
                    down.copy_from_slice(&table.tips[code * span..][..span]);
                }
                None => {
                    let from = &below.values[at * span..][..span];
                    rows(n, &table.matrices, from, |at, sum| down[at] = sum);
                    scale += below.scales[at];
                }
            }
            // Scales cancel: slopes are ratios of numbers with the same factor, which is not
            // computed.
            let (mut whole, mut first, mut second) = (0.0, 0.0, 0.0);
            for (category, (rate, weight)) in set.rates.iter().zip(set.weights).enumerate() {
                let place = at * span + category * n;
                let down = &down[category * n..][..n];
                whole += weight * dot(&above.values[place..][..n], down);
                first += weight * rate * dot(&self.turned[0][place..][..n], down);
                second += weight * rate * rate * dot(&self.turned[1][place..][..n], down);
            }
            if set.fixed[pattern] > 0.0 {
                // Infinite where the rest is nothing in comparison.
                whole += set.fixed[pattern] * libm::exp(-f64::from(scale) * LN_THRESHOLD);
            }
            let count = f64::from(set.data.weights[pattern]);
            let slope = first / whole;
            self.slope.first += count * slope;
            self.slope.second += count * (second / whole - slope * slope);
        }
    }

    pub(super) fn lnl(&self) -> f64 {
        self.lnl
    }

    pub(super) fn slope(&self) -> Derivatives {
        self.slope
    }

    pub(super) fn sites(&self) -> &[f64] {
        &self.sites
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::msa::{Alignment, Alphabet, Patterns};
    use crate::newick::Newick;
    use crate::random::{Random, index};
    use crate::rooted::{RootedLikelihood, RootedModel, RootedModelName};
    use crate::runner::{Serial, sum_in_tree_of};
    use crate::tree::TreeError;

    pub(in crate::rooted) const RATES: &str = "1/2/3/0.4/1/6/0.5/2/1/0.7/3/1";

    fn name(text: &str) -> RootedModelName {
        let name = RootedModelName::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into()));
        name.unwrap().unwrap()
    }

    /// The likelihood of a tree under a model.
    pub(in crate::rooted) fn made(
        alignment: &Alignment,
        newick: &str,
        model: &str,
    ) -> RootedLikelihood<Serial> {
        let name = name(model);
        let patterns = Patterns::new(alignment, name.alphabet()).unwrap();
        let newick = Newick::parse(newick).unwrap();
        let tree = RootedTree::from_newick(&newick, alignment.names()).unwrap();
        let model = RootedModel::new(name, &patterns);
        RootedLikelihood::new(tree, &patterns, model, Serial).unwrap()
    }

    /// Sites that evolve from the root down.
    pub(in crate::rooted) fn simulated(
        newick: &str,
        model: &str,
        sites: usize,
        seed: u64,
    ) -> Alignment {
        let tree = Newick::parse(newick).unwrap();
        let names = tree.tip_labels();
        let dummy = names.iter().map(|_| b"ACGT".to_vec()).collect();
        let dummy = Alignment::new(names.clone(), dummy).unwrap();
        let own = made(&dummy, newick, model);
        let mut random = Random::new(seed);
        let mut rows = vec![Vec::new(); names.len()];
        let mut tables = vec![vec![0.0; 16]; tree.nodes().len()];
        for (node, table) in tables.iter_mut().enumerate().skip(1) {
            let length = tree.nodes()[node].length.unwrap();
            own.matrices[0].transitions(length, table);
        }
        for _ in 0..sites {
            let mut states = vec![index(&mut random, &own.root)];
            for (node, own) in tree.nodes().iter().enumerate().skip(1) {
                let from: usize = states[own.parent.unwrap()];
                states.push(index(&mut random, &tables[node][4 * from..][..4]));
            }
            for (row, tip) in rows.iter_mut().zip(tree.tips()) {
                row.push(b"ACGT"[states[tip]]);
            }
        }
        Alignment::new(names, rows).unwrap()
    }

    pub(in crate::rooted) const FOUR: &str = "((a:0.1,b:0.3):0.2,(c:0.15,d:0.05):0.4);";

    #[test]
    fn a_likelihood_is_the_sum_over_all_states() {
        let alignment =
            Alignment::parse(b">a\nACGTRA\n>b\nACCTAA\n>c\nAGTT-A\n>d\nACTAYA\n").unwrap();
        let model = format!("UNREST{{{RATES}}}+IU{{0.2}}+R2{{0.3/1.7}}{{0.5/0.5}}");
        let mut own = made(&alignment, FOUR, &model);
        let found = own.site_log_likelihoods().unwrap();
        let lengths = [0.1, 0.3, 0.15, 0.05];
        for (site, lnl) in found.iter().enumerate() {
            let codes: Vec<u8> = (0..4)
                .map(|taxon| Alphabet::Dna.code(alignment.row(taxon)[site]).unwrap())
                .collect();
            let has = |taxon: usize, state: usize| codes[taxon] >> state & 1 == 1;
            let mut sum = 0.0;
            for (weight, rate) in own.across.weights.iter().zip(&own.across.rates) {
                let over = |length: f64| {
                    let mut p = [0.0; 16];
                    own.matrices[0].transitions(rate * length, &mut p);
                    p
                };
                let tips = lengths.map(over);
                let inner = [0.2, 0.4].map(over);
                let tip = |taxon: usize, from: usize| -> f64 {
                    let to = (0..4).filter(|&to| has(taxon, to));
                    to.map(|to| tips[taxon][4 * from + to]).sum()
                };
                for root in 0..4 {
                    for left in 0..4 {
                        for right in 0..4 {
                            let ways = inner[0][4 * root + left] * inner[1][4 * root + right];
                            let below = tip(0, left) * tip(1, left) * tip(2, right);
                            sum += weight * own.root[root] * ways * below * tip(3, right);
                        }
                    }
                }
            }
            let same = (0..4).filter(|&state| (0..4).all(|taxon| has(taxon, state)));
            sum += 0.2 * same.map(|state| own.root[state]).sum::<f64>();
            assert!((lnl - sum.ln()).abs() < 1e-12, "{site}: {lnl} {}", sum.ln());
        }
    }

    #[test]
    fn derivatives_are_those_of_differences() {
        let alignment = simulated(FOUR, &format!("UNREST{{{RATES}}}"), 200, 5);
        let model = format!("UNREST{{{RATES}}}+IU{{0.1}}+G4m{{0.7}}");
        let mut own = made(&alignment, FOUR, &model);
        for node in 1..7 {
            let at = own.tree.lengths[node];
            let mut value = |length: f64| {
                own.tree.lengths[node] = length;
                own.evaluate().unwrap()
            };
            let h = 1e-5;
            // At the length itself in the end, which the CLVs then have.
            let [less, more, middle] = [at - h, at + h, at].map(&mut value);
            let first = (more - less) / (2.0 * h);
            let second = (less + more - 2.0 * middle) / (h * h);
            own.run(1, |chunk, set| {
                // Nodes above come first.
                for node in 1..7 {
                    chunk.enter(set, node);
                }
                chunk.enter(set, node);
                chunk.differentiate(set, node, &set.tables[node]);
            })
            .unwrap();
            let found = sum_in_tree_of(&own.chunks, Chunk::slope);
            assert!(
                (found.first - first).abs() < 1e-3 * (1.0 + first.abs()),
                "{node}"
            );
            let far = (found.second - second).abs();
            assert!(far < 1e-2 * (1.0 + second.abs()), "{node}: {far}");
        }
    }

    #[test]
    fn large_trees_do_not_underflow_and_roots_are_needed() {
        let mut newick = "t0:0.4".to_owned();
        for tip in 1..400 {
            newick = format!("({newick},t{tip}:0.4):0.4");
        }
        let newick = format!("{newick};");
        let newick = newick.replace("):0.4;", ");");
        let model = format!("UNREST{{{RATES}}}+IU{{0.01}}");
        let alignment = simulated(&newick, &model, 5, 1);
        let mut own = made(&alignment, &newick, &model);
        let lnl = own.optimise_lengths(1.0, 1).unwrap();
        assert!(lnl.is_finite() && lnl < -500.0, "{lnl}");
        let names: Vec<String> = "abcd".chars().map(String::from).collect();
        for text in ["(a:1,b:1,(c:1,d:1):1);", "((a:1,b:1,c:1,d:1):1);"] {
            let tree = RootedTree::from_newick(&Newick::parse(text).unwrap(), &names);
            assert!(matches!(tree, Err(TreeError::Unrooted)), "{text}");
        }
    }
}
