//! States of a tree's inner nodes: marginal posterior probabilities, site by site.
//!
//! For each inner node the CLVs of its three branches are multiplied, state by state, with the
//! state's frequency in the category, and summed over the categories of rates and classes. Divided
//! by their sum these are the probabilities of the states given the alignment, with all other
//! nodes' states summed out.
//! Why here: plain loops over the model's matrices ([`Process`]); they run once, where a search's
//! kernels run millions of times.
//! Must stay true: values that grow too small are scaled by powers of two, which changes no digit.
//! Source: Yang, Kumar and Nei, Genetics 141 (1995), 1641-1650.
//!
//! ```
//! use sidecore_phylo::ancestors::Ancestors;
//! use sidecore_phylo::model::{Model, ModelName};
//! use sidecore_phylo::msa::{Alignment, Alphabet, Patterns};
//! use sidecore_phylo::newick::Newick;
//! use sidecore_phylo::tree::Tree;
//!
//! let alignment = Alignment::parse(b">a\nAC\n>b\nAC\n>c\nAT\n>d\nGT\n")?;
//! let patterns = Patterns::new(&alignment, Alphabet::Dna)?;
//! let text = "((a:0.1,b:0.1):0.1,c:0.1,d:0.1);";
//! let tree = Tree::from_newick(&Newick::parse(text)?, alignment.names())?;
//! let model = Model::new(ModelName::parse("JC", &mut |_| unreachable!())?, &patterns);
//! let found = Ancestors::new(&tree, &patterns, &model, 1.0);
//! // The node beside a and b most probably has an A, then a C.
//! let sites: Vec<usize> = patterns.site_patterns().map(|(_, pattern)| pattern).collect();
//! assert_eq!(found.nodes(), 2);
//! assert!(found.probabilities(0, sites[0])[0] > 0.9);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod sequences;

pub use sequences::{AncestralSequences, ancestors_bytes};

use crate::model::{Model, Process};
use crate::msa::Patterns;
use crate::newick::Newick;
use crate::tree::{HalfId, Tree};

/// Posterior probabilities of all inner nodes' states.
#[derive(Debug, Clone)]
pub struct Ancestors {
    nodes: usize,
    patterns: usize,
    states: usize,
    /// Node by node, pattern by pattern, one value a state.
    values: Vec<f64>,
}

impl Ancestors {
    /// For a tree with its lengths (times `scale`) and a model with its values. Inner nodes are
    /// numbered in the order in which [`labelled`] writes them. Memory: 8 bytes for each node,
    /// pattern and state.
    ///
    /// # Panics
    /// When tree and patterns have different taxa.
    #[must_use]
    pub fn new(tree: &Tree, patterns: &Patterns, model: &Model, scale: f64) -> Self {
        assert_eq!(tree.taxa(), patterns.taxa(), "taxa of tree and alignment");
        let process = model.process();
        let order = inner_nodes(tree);
        let states = process.shape.states;
        let mut found = Self {
            nodes: order.len(),
            patterns: patterns.len(),
            states,
            values: vec![0.0; order.len() * patterns.len() * states],
        };
        let mut block = Block::new(tree, &process, scale, BLOCK);
        let mut first = 0;
        // In blocks of patterns, which bounds the memory of the CLVs.
        while first < patterns.len() {
            let count = BLOCK.min(patterns.len() - first);
            block.fill(tree, patterns, first, count);
            for (node, &half) in order.iter().enumerate() {
                for at in 0..count {
                    let from = (node * patterns.len() + first + at) * states;
                    let to = &mut found.values[from..from + states];
                    block.posterior(tree, patterns, first, at, half, to);
                }
            }
            first += count;
        }
        found
    }

    /// Number of inner nodes.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// The probabilities of a node's states at a pattern; they sum to 1.
    ///
    /// # Panics
    /// When there is no such node or pattern.
    #[must_use]
    pub fn probabilities(&self, node: usize, pattern: usize) -> &[f64] {
        assert!(
            pattern < self.patterns,
            "pattern {pattern} of {}",
            self.patterns
        );
        &self.values[(node * self.patterns + pattern) * self.states..][..self.states]
    }
}

/// Calls `visit` for each pattern with the probabilities of the states at some nodes, by the tips
/// on their own side alone: at a half-edge's node those that are not across its branch. They are in
/// the order of `halves`, one value a state, all 0 where those tips leave every state open.
pub(crate) fn subtree_states(
    tree: &Tree,
    patterns: &Patterns,
    model: &Model,
    halves: &[HalfId],
    mut visit: impl FnMut(usize, &[f64]),
) {
    let process = model.process();
    let states = process.shape.states;
    let tips: Vec<Vec<usize>> = halves.iter().map(|&half| tips_behind(tree, half)).collect();
    let mut block = Block::new(tree, &process, 1.0, BLOCK);
    let mut values = vec![0.0; halves.len() * states];
    let mut first = 0;
    while first < patterns.len() {
        let count = BLOCK.min(patterns.len() - first);
        block.fill(tree, patterns, first, count);
        for at in 0..count {
            for ((&half, tips), to) in halves.iter().zip(&tips).zip(values.chunks_mut(states)) {
                block.behind(tree, patterns, first, at, (half, tips), to);
            }
            visit(first + at, &values);
        }
        first += count;
    }
}

/// The tips on a half-edge's side of its branch.
fn tips_behind(tree: &Tree, half: HalfId) -> Vec<usize> {
    let (mut tips, mut path) = (Vec::new(), vec![half]);
    while let Some(half) = path.pop() {
        match tree.is_tip(half) {
            true => tips.push(half.index()),
            false => path.extend(tree.others(half).map(|other| tree.back(other))),
        }
    }
    tips
}

/// The tree with its inner nodes named `Node1`, `Node2`, …, from the inner node next to the first
/// taxon.
#[must_use]
pub fn labelled(tree: &Tree, names: &[String]) -> Newick {
    let root = tree.back(HalfId(0));
    let mut newick = Newick::root(name(0));
    let length = |half: HalfId| Some(tree.length(tree.edge(half)));
    newick.push(0, names[0].clone(), length(root));
    let mut next = 1;
    // Half-edges that point to the subtrees still to be written, the next one last.
    let [a, b] = tree.others(root);
    let mut path = vec![(b, 0), (a, 0)];
    while let Some((half, parent)) = path.pop() {
        let below = tree.back(half);
        if tree.is_tip(below) {
            newick.push(parent, names[below.index()].clone(), length(half));
            continue;
        }
        let node = newick.push(parent, name(next), length(half));
        next += 1;
        let [a, b] = tree.others(below);
        path.extend([(b, node), (a, node)]);
    }
    newick
}

/// An inner node's name.
#[must_use]
pub fn name(node: usize) -> String {
    format!("Node{}", node + 1)
}

/// A half-edge of each inner node, in the order of [`labelled`].
fn inner_nodes(tree: &Tree) -> Vec<HalfId> {
    let mut nodes = Vec::new();
    let mut path = vec![tree.back(HalfId(0))];
    while let Some(half) = path.pop() {
        if !tree.is_tip(half) {
            nodes.push(half);
            let [a, b] = tree.others(half);
            path.extend([tree.back(b), tree.back(a)]);
        }
    }
    nodes
}

/// Likelihoods of a run of patterns, in all directions of all nodes.
pub(crate) struct Block<'p> {
    process: &'p Process,
    /// Branch by branch the transition matrices of all rates, as [`Process::transitions`] has them.
    matrices: Vec<Vec<f64>>,
    /// For each inner half-edge the CLV of the subtree behind its node: pattern by pattern, rate by
    /// rate, one value a state.
    values: Vec<Vec<f64>>,
    /// And the scaler of each pattern.
    scalers: Vec<Vec<i32>>,
    scratch: Vec<f64>,
}

impl<'p> Block<'p> {
    /// For up to this many patterns at a time.
    pub(crate) fn new(tree: &Tree, process: &'p Process, scale: f64, patterns: usize) -> Self {
        let shape = process.shape;
        let matrix = |edge| {
            let mut matrix = vec![0.0; shape.matrix()];
            process.transitions(scale * tree.length(edge), &mut matrix);
            matrix
        };
        let mut edges: Vec<_> = tree.edges().collect();
        // Matrices are found by the branch's number.
        edges.sort_by_key(|edge| edge.index());
        let inner = tree.inner_halves();
        Self {
            process,
            matrices: edges.into_iter().map(matrix).collect(),
            values: vec![vec![0.0; patterns * shape.span()]; inner],
            scalers: vec![vec![0; patterns]; inner],
            scratch: vec![0.0; shape.span()],
        }
    }

    /// Computes the CLVs of all directions.
    pub(crate) fn fill(&mut self, tree: &Tree, patterns: &Patterns, first: usize, count: usize) {
        let mut made = vec![false; tree.inner_halves()];
        let index = |half: HalfId| half.index() - tree.taxa();
        // From every half-edge, since the tree has no root: all directions are needed.
        for start in (tree.taxa()..tree.halves()).map(HalfId::new) {
            for half in tree.post_order(start, |half| !made[index(half)]) {
                // Taken out, since `times` borrows the whole block.
                let mut values = std::mem::take(&mut self.values[index(half)]);
                let mut scalers = std::mem::take(&mut self.scalers[index(half)]);
                for at in 0..count {
                    let own = &mut values[at * self.process.shape.span()..];
                    let own = &mut own[..self.process.shape.span()];
                    own.fill(1.0);
                    let mut scaled = 0;
                    for other in tree.others(half) {
                        scaled += self.times(tree, patterns, first, at, other, own);
                    }
                    // Rescaled before the products underflow.
                    let most = own.iter().copied().fold(0.0, f64::max);
                    if most < SMALL {
                        own.iter_mut().for_each(|value| *value *= LARGE);
                        scaled += 1;
                    }
                    scalers[at] = scaled;
                }
                self.values[index(half)] = values;
                self.scalers[index(half)] = scalers;
                made[index(half)] = true;
            }
        }
    }

    /// Multiplies a CLV by the one at the other end of a half-edge's branch, moved over the branch;
    /// returns its scaler.
    fn times(
        &mut self,
        tree: &Tree,
        patterns: &Patterns,
        first: usize,
        at: usize,
        half: HalfId,
        values: &mut [f64],
    ) -> i32 {
        // Taken out, since `moved` borrows the whole block.
        let mut sums = std::mem::take(&mut self.scratch);
        let matrix = &self.matrices[tree.edge(half).index()];
        let below = tree.back(half);
        let scaled = self.moved(tree, patterns, (first, at), below, matrix, &mut sums);
        values
            .iter_mut()
            .zip(&sums)
            .for_each(|(value, sum)| *value *= *sum);
        self.scratch = sums;
        scaled
    }

    /// The CLV of the subtree behind a half-edge's node, moved over a branch with these transition
    /// matrices, of the pattern at a place of the block; returns its scaler.
    pub(crate) fn moved(
        &self,
        tree: &Tree,
        patterns: &Patterns,
        (first, at): (usize, usize),
        below: HalfId,
        matrix: &[f64],
        sums: &mut [f64],
    ) -> i32 {
        let (n, span) = (self.process.shape.states, self.process.shape.span());
        sums.fill(0.0);
        let rates = sums.chunks_mut(n).zip(matrix.chunks(n * n));
        if tree.is_tip(below) {
            let code = patterns.codes(below.index())[first + at];
            let mask = patterns.masks()[usize::from(code)];
            // A tip's ambiguous code allows several states: the columns of all of them are added.
            for (sums, matrix) in rates {
                for state in (0..n).filter(|state| mask >> state & 1 == 1) {
                    let column = &matrix[state * n..][..n];
                    sums.iter_mut().zip(column).for_each(|(sum, p)| *sum += p);
                }
            }
            return 0;
        }
        let from = below.index() - tree.taxa();
        let there = &self.values[from][at * span..][..span];
        for (rate, (sums, matrix)) in rates.enumerate() {
            for (state, value) in there[rate * n..][..n].iter().enumerate() {
                let column = &matrix[state * n..][..n];
                sums.iter_mut()
                    .zip(column)
                    .for_each(|(sum, p)| *sum += p * value);
            }
        }
        self.scalers[from][at]
    }

    /// The probabilities of the states at a half-edge's node by the tips on its side.
    fn behind(
        &self,
        tree: &Tree,
        patterns: &Patterns,
        first: usize,
        at: usize,
        (half, tips): (HalfId, &[usize]),
        to: &mut [f64],
    ) {
        let span = self.process.shape.span();
        let mask = |tip: usize| patterns.masks()[usize::from(patterns.codes(tip)[first + at])];
        let unknown = patterns.masks()[usize::from(patterns.alphabet().unknown())];
        to.fill(0.0);
        // Their states are those of the stationary process, which is no observation.
        if tips.iter().all(|&tip| mask(tip) == unknown) {
            return;
        }
        let common = tips.iter().fold(unknown, |common, &tip| common & mask(tip));
        let frequency = |state: usize| match common >> state & 1 {
            1 => self.process.frequencies[state],
            _ => 0.0,
        };
        if tree.is_tip(half) {
            let one = to.iter_mut().enumerate();
            one.for_each(|(state, to)| *to = frequency(state));
        } else {
            let own = half.index() - tree.taxa();
            let values = &self.values[own][at * span..][..span];
            self.add_categories(values, to);
            if self.process.invariant > 0.0 && common != 0 {
                let scaled = self.scalers[own][at];
                // Values that were scaled that often are negligible next to the invariable part.
                if scaled > SCALED_MAX {
                    to.fill(0.0);
                }
                let factor = self.process.invariant * LARGE.powi(scaled.min(SCALED_MAX));
                for (state, to) in to.iter_mut().enumerate() {
                    *to += factor * frequency(state);
                }
            }
        }
        let sum: f64 = to.iter().sum();
        to.iter_mut().for_each(|value| *value /= sum);
    }

    /// Adds the joint probabilities of states and data of all categories, each with its own
    /// frequencies.
    fn add_categories(&self, values: &[f64], to: &mut [f64]) {
        let each = values.chunks(self.process.shape.states).enumerate();
        for (rate, values) in each {
            let weight = self.process.weights[rate];
            let pairs = values.iter().zip(self.process.frequencies_of(rate));
            for (to, (value, frequency)) in to.iter_mut().zip(pairs) {
                *to += weight * value * frequency;
            }
        }
    }

    /// The probabilities of a node's states.
    fn posterior(
        &mut self,
        tree: &Tree,
        patterns: &Patterns,
        first: usize,
        at: usize,
        half: HalfId,
        to: &mut [f64],
    ) {
        let span = self.process.shape.span();
        let own = half.index() - tree.taxa();
        let mut values = self.values[own][at * span..][..span].to_vec();
        let scaled =
            self.scalers[own][at] + self.times(tree, patterns, first, at, half, &mut values);
        to.fill(0.0);
        self.add_categories(&values, to);
        // Invariable sites have one state at all nodes.
        let common = patterns.common_states(first + at);
        if self.process.invariant > 0.0 && common != 0 {
            // Scaled values that many times are negligible next to the unscaled invariable part.
            if scaled > SCALED_MAX {
                to.fill(0.0);
            }
            let factor = self.process.invariant * LARGE.powi(scaled.min(SCALED_MAX));
            for (state, to) in to.iter_mut().enumerate() {
                if common >> state & 1 == 1 {
                    *to += factor * self.process.frequencies[state];
                }
            }
        }
        let sum: f64 = to.iter().sum();
        to.iter_mut().for_each(|value| *value /= sum);
    }
}

/// Patterns that are processed at a time: the CLVs of all directions of a large tree stay small.
const BLOCK: usize = 64;
/// Values below this are multiplied with [`LARGE`].
const SMALL: f64 = 1e-77;
/// 2 to the power 256.
pub(crate) const LARGE: f64 = 1.157_920_892_373_162e77;
/// Times that [`LARGE`] fits into a double.
const SCALED_MAX: i32 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::likelihood::{Likelihood, Options};
    use crate::model::ModelName;
    use crate::msa::{Alignment, Alphabet};
    use crate::random::Random;
    use crate::runner::Serial;
    use crate::tree::random_tree;

    fn model(name: &str, patterns: &Patterns) -> Model {
        let read = &mut |_: &str| Err(std::io::Error::other("no file"));
        Model::new(ModelName::parse(name, read).unwrap(), patterns)
    }

    const SIX: &[u8] = b"6 12
a ACGTACGTAARN
b ACGTACGAAA-N
c ACGAACCTTAAN
d CCGAACCTTACN
e CCTAATCTGAGN
f CCTAATCAGATN
";

    /// The probabilities by their definition: the likelihood with a node held in a state, by adding
    /// a tip of that state at distance 0, over the sum of these.
    #[test]
    fn probabilities_are_those_of_a_tip_at_the_node() {
        let alignment = Alignment::parse(SIX).unwrap();
        let text = "(((a:0.1,b:0.2):0.1,c:0.3):0.05,d:0.4,(e:0.2,f:0.1):0.3);";
        for name in [
            "JC",
            "HKY{1/2}+FU{0.4/0.3/0.2/0.1}+G4m{0.5}",
            "JC+IU{0.3}+G4m{0.9}",
            // Each class has frequencies of its own.
            "MIX{JC+FU{0.7/0.1/0.1/0.1},JC+FU{0.1/0.1/0.1/0.7}}",
            "MIX{JC+FU{0.7/0.1/0.1/0.1}:1:0.3,JC+FU{0.1/0.2/0.3/0.4}:2:0.7}+IU{0.2}+G2m{0.9}",
        ] {
            let patterns = Patterns::new(&alignment, Alphabet::Dna).unwrap();
            let newick = Newick::parse(text).unwrap();
            let tree = Tree::from_newick(&newick, alignment.names()).unwrap();
            let found = Ancestors::new(&tree, &patterns, &model(name, &patterns), 1.0);
            // The node above e and f, and the same with a tip there.
            let newick = labelled(&tree, alignment.names());
            let node = newick
                .nodes()
                .iter()
                .position(|node| {
                    let has = |label: &str| {
                        node.children
                            .iter()
                            .any(|&child| newick.nodes()[child].label == label)
                    };
                    has("e") && has("f")
                })
                .unwrap();
            let label = &newick.nodes()[node].label;
            let number: usize = label["Node".len()..].parse::<usize>().unwrap() - 1;
            let with = text.replace(
                "(e:0.2,f:0.1):0.3",
                "((e:0.2,f:0.1):0.000001,x:0.000001):0.3",
            );
            let mut by_state = Vec::new();
            for state in ["A", "C", "G", "T"] {
                let mut names = alignment.names().to_vec();
                let mut rows: Vec<Vec<u8>> = (0..6).map(|k| alignment.row(k).to_vec()).collect();
                names.push("x".into());
                rows.push(state.as_bytes().repeat(alignment.sites()));
                let seven = Alignment::new(names, rows).unwrap();
                let patterns_7 = Patterns::new(&seven, Alphabet::Dna).unwrap();
                let tree =
                    Tree::from_newick(&Newick::parse(&with).unwrap(), seven.names()).unwrap();
                // Frequencies and the like are the name's own: no count differs.
                let model = model(name, &patterns_7);
                let options = Options::default();
                let mut likelihood =
                    Likelihood::new(tree, patterns_7, model, Serial, options).unwrap();
                by_state.push(likelihood.site_log_likelihoods().unwrap());
            }
            for (site, pattern) in patterns.site_patterns() {
                let each: Vec<f64> = by_state.iter().map(|lnl| lnl[site].exp()).collect();
                let sum: f64 = each.iter().sum();
                let own = found.probabilities(number, pattern);
                for (p, expected) in own.iter().zip(&each) {
                    assert!(
                        (p - expected / sum).abs() < 1e-4,
                        "{name} {site}: {own:?} {each:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn large_trees_do_not_vanish() {
        let taxa = 700;
        let names: Vec<String> = (0..taxa).map(|k| format!("t{k}")).collect();
        let mut random = Random::new(4);
        let tree = random_tree(taxa, 2.0, &mut random);
        let mut row = || {
            (0..3)
                .map(|_| b"ACGT"[random.below(4) as usize])
                .chain(*b"A")
                .collect()
        };
        let rows: Vec<Vec<u8>> = (0..taxa).map(|_| row()).collect();
        let alignment = Alignment::new(names, rows).unwrap();
        let patterns = Patterns::new(&alignment, Alphabet::Dna).unwrap();
        for name in ["JC+G4", "JC+IU{0.2}"] {
            let found = Ancestors::new(&tree, &patterns, &model(name, &patterns), 1.0);
            for node in 0..found.nodes() {
                for pattern in 0..patterns.len() {
                    let sum: f64 = found.probabilities(node, pattern).iter().sum();
                    assert!((sum - 1.0).abs() < 1e-9, "{name}: {sum}");
                }
            }
        }
    }

    #[test]
    fn names_follow_the_written_tree() {
        let alignment = Alignment::parse(SIX).unwrap();
        let newick = Newick::parse("(((a,b),c),d,(e,f));").unwrap();
        let tree = Tree::from_newick(&newick, alignment.names()).unwrap();
        let text = labelled(&tree, alignment.names()).to_string();
        assert!(text.ends_with(")Node1;"), "{text}");
        for k in 1..=4 {
            assert!(text.contains(&format!("Node{k}")), "{text}");
        }
        assert_eq!(inner_nodes(&tree).len(), 4);
    }
}
