//! Likelihoods of rooted trees under nonreversible models, and of populations.
//!
//! Rates there and back differ, so the likelihood depends on the root: a branch leads from its
//! upper end to its lower one. So a [`RootedLikelihood`] keeps, of each node, the CLV of all below
//! it, and while lengths are fitted that of all else, seen from the upper end of the branch above
//! it. A likelihood is taken at the root alone. Lengths are fitted one after the other, depth
//! first, by Newton's method; rates by a climb.
//!
//! Must stay true: chunks of patterns do not depend on the number of engines, and their sums are
//! added in a fixed tree: one result on any number of them. No fit ends below its start.
//! Source: Felsenstein, "Evolutionary trees from DNA sequences: a maximum likelihood approach",
//! Journal of Molecular Evolution 17 (1981), 368-376.
//!
//! ```
//! use sidecore_likelihood::msa::{Alignment, Patterns};
//! use sidecore_likelihood::newick::Newick;
//! use sidecore_likelihood::rooted::{RootedLikelihood, RootedModel, RootedModelName, RootedTree};
//! use sidecore_likelihood::runner::Serial;
//!
//! let alignment = Alignment::parse(b">a\nACGTAC\n>b\nACGTTC\n>c\nAGGTAC\n")?;
//! let name = RootedModelName::parse("UNREST{1/2/1/2/1/3/1/1/1/1/4/1}+G4", &mut |path| {
//!     std::fs::read_to_string(path)
//! })?;
//! let name = name.ok_or("a reversible model")?;
//! let patterns = Patterns::new(&alignment, name.alphabet())?;
//! let newick = Newick::parse("((a:0.1,b:0.1):0.1,c:0.1);")?;
//! let tree = RootedTree::from_newick(&newick, alignment.names())?;
//! let model = RootedModel::new(name, &patterns);
//! let mut likelihood = RootedLikelihood::new(tree, &patterns, model, Serial)?;
//! let given = likelihood.evaluate()?;
//! assert!(likelihood.optimise(0.001)? >= given);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod chunk;
mod pomo;
mod rates;

pub use pomo::Counts;
pub use rates::{RootedModel, RootedModelName};

use crate::kernel::Derivatives;
use crate::likelihood::climb::{Bend, climb, maximise};
use crate::likelihood::{LENGTH_MAX, LENGTH_MIN, LikelihoodError, best_length};
use crate::model::ALPHA_RANGE;
use crate::msa::Patterns;
use crate::newick::{LENGTH_DEFAULT, Newick};
use crate::runner::{Runner, Work, sum_in_tree_of};
use crate::tree::{TreeError, taxa_of_tips};
use chunk::{Chunk, Setting, Table};
use rates::{RateMatrix, TERMS};
use sidecore_bare::width::{ToU64, ToUsize};

/// A rooted tree of an alignment's taxa. Its root has two branches; other nodes may have more.
#[derive(Debug, Clone)]
pub struct RootedTree {
    newick: Newick,
    /// Of each node; none of inner ones.
    taxa: Vec<Option<usize>>,
    /// Of the branch above each node; not used of the root.
    lengths: Vec<f64>,
}

impl RootedTree {
    /// From a parsed tree; `names` number the tips. Lengths are clamped to [`LENGTH_MIN`] and
    /// [`LENGTH_MAX`]; a branch without one gets [`LENGTH_DEFAULT`].
    ///
    /// # Errors
    /// [`TreeError`]; [`TreeError::Unrooted`] where the root has another number of branches.
    pub fn from_newick(newick: &Newick, names: &[String]) -> Result<Self, TreeError> {
        match newick.nodes()[0].children.len() {
            2 => Self::from_any(newick, names),
            _ => Err(TreeError::Unrooted),
        }
    }

    /// As [`RootedTree::from_newick`], of a tree whose root may have more branches: for models that
    /// are reversible.
    ///
    /// # Errors
    /// [`TreeError`].
    pub fn from_any(newick: &Newick, names: &[String]) -> Result<Self, TreeError> {
        let taxa = taxa_of_tips(newick, names)?;
        let nodes = newick.nodes();
        // Two branches in a row have one sum that counts: each length alone would not be
        // identified.
        if nodes.iter().any(|node| node.children.len() == 1) {
            return Err(TreeError::TooFewNeighbours { neighbours: 2 });
        }
        let length = |node: &crate::newick::Node| node.length.unwrap_or(LENGTH_DEFAULT);
        let lengths = nodes.iter().map(length);
        Ok(Self {
            lengths: lengths
                .map(|own| own.clamp(LENGTH_MIN, LENGTH_MAX))
                .collect(),
            newick: newick.clone(),
            taxa,
        })
    }

    /// The tree with its present lengths.
    #[must_use]
    pub fn to_newick(&self) -> Newick {
        let mut newick = self.newick.clone();
        for node in 1..self.lengths.len() {
            newick.set_length(node, Some(self.lengths[node]));
        }
        newick
    }

    /// The sum of all branches' lengths.
    #[must_use]
    pub fn total_length(&self) -> f64 {
        self.lengths[1..].iter().sum()
    }

    fn children(&self, node: usize) -> &[usize] {
        &self.newick.nodes()[node].children
    }

    fn parent(&self, node: usize) -> Option<usize> {
        self.newick.nodes()[node].parent
    }
}

/// Categories of rates across sites.
#[derive(Debug)]
struct Across {
    rates: Vec<f64>,
    /// With the share of invariable sites they sum to 1.
    weights: Vec<f64>,
}

/// The data at the tips, as patterns.
#[derive(Debug)]
struct Data {
    /// Taxon by taxon, each pattern's code.
    codes: Vec<Vec<u32>>,
    /// Code by code the states that it may be, each with its likelihood.
    states: Vec<Vec<(usize, f64)>>,
    weights: Vec<u32>,
    /// For each pattern the states that invariable sites may have.
    common: Vec<u64>,
    /// Columns, each with its pattern.
    sites: Vec<(usize, usize)>,
    /// Number of all columns.
    columns: usize,
    /// For each pattern the logarithm that the likelihoods of its states lack; empty where they
    /// lack none.
    offsets: Vec<f64>,
}

impl Data {
    fn of_patterns(patterns: &Patterns) -> Self {
        let n = patterns.alphabet().states();
        let states = |mask: &u64| -> Vec<(usize, f64)> {
            let own = (0..n).filter(|state| mask >> state & 1 == 1);
            own.map(|state| (state, 1.0)).collect()
        };
        let codes = |taxon: usize| -> Vec<u32> {
            let own = patterns.codes(taxon).iter();
            own.map(|&code| u32::from(code)).collect()
        };
        // Sites of a partition keep the numbers of the whole alignment.
        let last = patterns.alignment_sites().last().copied();
        Self {
            codes: (0..patterns.taxa()).map(codes).collect(),
            states: patterns.masks().iter().map(states).collect(),
            weights: patterns.weights().to_vec(),
            common: (0..patterns.len())
                .map(|pattern| patterns.common_states(pattern))
                .collect(),
            sites: patterns.site_patterns().collect(),
            columns: last.map_or(0, |last| last.to_usize() + 1),
            offsets: Vec::new(),
        }
    }
}

/// The likelihood of a rooted tree under a nonreversible model.
#[derive(Debug)]
pub struct RootedLikelihood<R> {
    tree: RootedTree,
    data: Data,
    model: RootedModel,
    /// Of the model's present values: one, or one for each category of rates.
    matrices: Vec<RateMatrix>,
    across: Across,
    /// Of each matrix.
    root: Vec<f64>,
    /// For each pattern the likelihood that invariable sites add.
    fixed: Vec<f64>,
    /// Of the branch above each node.
    tables: Vec<Table>,
    chunks: Vec<Chunk>,
    runner: R,
}

impl<R: Runner> RootedLikelihood<R> {
    /// For one alignment and one model.
    ///
    /// # Errors
    /// [`LikelihoodError::Taxa`]; [`LikelihoodError::Impossible`] where the model has no
    /// equilibrium.
    ///
    /// # Panics
    /// When the model is of populations.
    pub fn new(
        tree: RootedTree,
        patterns: &Patterns,
        model: RootedModel,
        runner: R,
    ) -> Result<Self, LikelihoodError> {
        assert_eq!(model.population(), None, "populations have counts");
        Self::of_data(tree, Data::of_patterns(patterns), model, runner)
    }

    /// For populations. Frequencies that are counted are those of all counts.
    ///
    /// # Errors
    /// As [`RootedLikelihood::new`].
    ///
    /// # Panics
    /// When the model is not of populations.
    pub fn of_counts(
        tree: RootedTree,
        counts: &Counts,
        mut model: RootedModel,
        runner: R,
    ) -> Result<Self, LikelihoodError> {
        model.count_anew(&counts.shares());
        let size = model.population();
        let data = counts.data(size.expect("a model of populations"));
        Self::of_data(tree, data, model, runner)
    }

    fn of_data(
        tree: RootedTree,
        data: Data,
        model: RootedModel,
        runner: R,
    ) -> Result<Self, LikelihoodError> {
        let (tips, alignment) = (tree.taxa.iter().flatten().count(), data.codes.len());
        if tips != alignment {
            return Err(LikelihoodError::Taxa {
                tree: tips,
                alignment,
            });
        }
        let patterns = data.weights.len();
        // A fixed length, and no share of the engines: sums are added in the same tree on any
        // number.
        let starts = (0..patterns).step_by(CHUNK);
        let range = |start: usize| start..(start + CHUNK).min(patterns);
        let mut likelihood = Self {
            chunks: starts.map(|start| Chunk::new(range(start))).collect(),
            across: Across {
                rates: Vec::new(),
                weights: Vec::new(),
            },
            root: Vec::new(),
            fixed: Vec::new(),
            tables: Vec::new(),
            tree,
            data,
            matrices: Vec::new(),
            model: model.clone(),
            runner,
        };
        // Matrices, root and fixed shares follow from the model.
        match likelihood.set_model(model) {
            true => Ok(likelihood),
            false => Err(LikelihoodError::Impossible { lnl: f64::NAN }),
        }
    }

    /// The tree.
    #[must_use]
    pub fn tree(&self) -> &RootedTree {
        &self.tree
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &RootedModel {
        &self.model
    }

    /// The frequencies of the root's states: of populations the mean over the categories of rates.
    #[must_use]
    pub fn root_frequencies(&self) -> Vec<f64> {
        if self.matrices.len() == 1 {
            return self.root.clone();
        }
        let states = self.model.states();
        let mut mean = vec![0.0; states];
        for (own, weight) in self.root.chunks_exact(states).zip(&self.across.weights) {
            let pairs = mean.iter_mut().zip(own);
            pairs.for_each(|(to, share)| *to += weight * share);
        }
        mean
    }

    /// Takes another tree of the same taxa.
    ///
    /// # Panics
    /// When it has another number of tips.
    pub fn set_tree(&mut self, tree: RootedTree) {
        let tips = tree.taxa.iter().flatten().count();
        assert_eq!(tips, self.data.codes.len(), "tips");
        self.tree = tree;
    }

    /// False where the model's values have no equilibrium: then nothing changes.
    fn set_model(&mut self, model: RootedModel) -> bool {
        // Rates without an equilibrium are a point that a climb may try: the old model stays.
        let process = model.across.process();
        let Some(matrices) = model.matrices(&process.rates) else {
            return false;
        };
        let roots = matrices.iter().flat_map(|own| model.root(own));
        self.root = roots.copied().collect();
        let share = |states: &u64| -> f64 {
            let each = self.root.iter().enumerate();
            // Populations have more states than bits, and no invariable sites.
            let has = |state: usize| *states != 0 && states >> state & 1 == 1;
            let own = each.filter(|(state, _)| has(*state));
            // A pattern may be invariable in any state that all tips allow.
            process.invariant * own.map(|(_, share)| share).sum::<f64>()
        };
        self.fixed = self.data.common.iter().map(share).collect();
        self.across = Across {
            rates: match model.population() {
                // Their matrices have the rates.
                Some(_) => vec![1.0; process.rates.len()],
                None => process.rates,
            },
            weights: process.weights,
        };
        (self.matrices, self.model) = (matrices, model);
        true
    }

    /// The log-likelihood. Blocks.
    ///
    /// # Errors
    /// [`LikelihoodError::Offload`], [`LikelihoodError::Impossible`].
    pub fn evaluate(&mut self) -> Result<f64, LikelihoodError> {
        let lnl = self.evaluate_raw()?;
        match lnl.is_finite() {
            true => Ok(lnl),
            false => Err(LikelihoodError::Impossible { lnl }),
        }
    }

    fn evaluate_raw(&mut self) -> Result<f64, LikelihoodError> {
        let nodes = self.tree.lengths.len();
        self.tables.resize_with(nodes, Table::default);
        for node in 1..nodes {
            // Taken out, since filling it reads the rest of the likelihood; put back at the end.
            let mut table = std::mem::take(&mut self.tables[node]);
            self.fill(&mut table, node, self.tree.lengths[node]);
            self.tables[node] = table;
        }
        self.run(nodes, |chunk, set| {
            chunk.begin(nodes);
            // Children come after their parents.
            for node in (0..nodes).rev() {
                chunk.renew(set, node);
            }
            chunk.finish(set);
        })?;
        Ok(sum_in_tree_of(&self.chunks, Chunk::lnl))
    }

    /// The log-likelihood of every column, in order; 0 where no taxon has a character.
    ///
    /// # Errors
    /// As [`RootedLikelihood::evaluate`].
    pub fn site_log_likelihoods(&mut self) -> Result<Vec<f64>, LikelihoodError> {
        self.evaluate()?;
        let own = self.chunks.iter().flat_map(Chunk::sites);
        let by_pattern: Vec<f64> = own.copied().collect();
        let mut sites = vec![0.0; self.data.columns];
        for &(site, pattern) in &self.data.sites {
            sites[site] = by_pattern[pattern];
        }
        Ok(sites)
    }

    /// Fits all lengths, round by round, until one gains less than `epsilon` or `rounds_max` are
    /// over. Gives the log-likelihood, which is never below that at the start. Blocks.
    ///
    /// # Errors
    /// As [`RootedLikelihood::evaluate`].
    pub fn optimise_lengths(
        &mut self,
        epsilon: f64,
        rounds_max: usize,
    ) -> Result<f64, LikelihoodError> {
        let mut lnl = self.evaluate()?;
        for _ in 0..rounds_max {
            let before = self.tree.lengths.clone();
            self.optimise_each_length()?;
            let better = self.evaluate_raw()?;
            // A branch may have come to another top of its own, which is lower.
            if better.is_nan() || better <= lnl {
                self.tree.lengths = before;
                break;
            }
            let gain = better - lnl;
            lnl = better;
            if gain < epsilon {
                break;
            }
        }
        self.evaluate()
    }

    /// One round. All CLVs below must be valid.
    fn optimise_each_length(&mut self) -> Result<(), LikelihoodError> {
        // A node, and the number of its children whose branches are done.
        let mut path: Vec<(usize, usize)> = vec![(0, 0)];
        while let Some((node, done)) = path.pop() {
            if let Some(&child) = self.tree.children(node).get(done) {
                path.push((node, done + 1));
                path.push((child, 0));
                // On the way down: what is above is final for this round, and what is below is
                // still of the last.
                self.optimise_length(child)?;
            } else if self.tree.taxa[node].is_none() {
                // The branches below have other lengths now.
                self.run(1, |chunk, set| chunk.renew(set, node))?;
            }
        }
        Ok(())
    }

    /// Fits the length of the branch above a node.
    fn optimise_length(&mut self, node: usize) -> Result<(), LikelihoodError> {
        self.run(4, |chunk, set| chunk.enter(set, node))?;
        let mut table = std::mem::take(&mut self.tables[node]);
        let length = best_length(self.tree.lengths[node], |length| {
            self.fill(&mut table, node, length);
            self.run(1, |chunk, set| chunk.differentiate(set, node, &table))?;
            Ok::<Derivatives, LikelihoodError>(sum_in_tree_of(&self.chunks, Chunk::slope))
        });
        // A table that was taken out would be an empty one for the next call.
        let length = length.inspect_err(|_| self.tables.clear())?;
        self.fill(&mut table, node, length);
        self.tables[node] = table;
        self.tree.lengths[node] = length;
        Ok(())
    }

    /// Fits lengths and all free parameters until a round gains less than `epsilon`. Gives the
    /// log-likelihood, which is never below that at the start. Blocks.
    ///
    /// # Errors
    /// As [`RootedLikelihood::evaluate`].
    pub fn optimise(&mut self, epsilon: f64) -> Result<f64, LikelihoodError> {
        // Coarsely: lengths that fit wrong rates in every digit are fitted again anyway.
        let mut lnl = self.optimise_lengths(epsilon.max(COARSE), LENGTH_ROUNDS)?;
        self.start_free_rates()?;
        let mut bend = Bend::default();
        for _ in 0..ROUNDS_MAX {
            self.optimise_model(0.1 * epsilon, &mut bend)?;
            let better = self.optimise_lengths(0.1 * epsilon, LENGTH_ROUNDS)?;
            let gain = better - lnl;
            lnl = better;
            if gain < epsilon {
                break;
            }
        }
        Ok(lnl)
    }

    /// Fits the model's free parameters.
    fn optimise_model(&mut self, epsilon: f64, bend: &mut Bend) -> Result<(), LikelihoodError> {
        let before = self.evaluate()?;
        let model = self.model.clone();
        let mut point = model.coordinates();
        if point.is_empty() {
            return Ok(());
        }
        let top = climb(&mut point, bend, epsilon, |x| self.at_point(&model, x))?;
        let x: Vec<f64> = point.iter().map(|coordinate| coordinate.at).collect();
        // The climb's last point may not be its best one, so the best is computed again to leave it
        // set.
        if !(top > before && self.at_point(&model, &x)? > before) {
            self.set_model(model);
        }
        Ok(())
    }

    /// The log-likelihood with the model at a point; the least number where it is none, so that a
    /// climb turns back.
    fn at_point(&mut self, model: &RootedModel, x: &[f64]) -> Result<f64, LikelihoodError> {
        let mut model = model.clone();
        model.move_to(x);
        self.comparable(model)
    }

    fn comparable(&mut self, model: RootedModel) -> Result<f64, LikelihoodError> {
        if !self.set_model(model) {
            // Finite: a climb's differences of two infinities would be no number.
            return Ok(f64::MIN);
        }
        let lnl = self.evaluate_raw()?;
        Ok(if lnl.is_finite() { lnl } else { f64::MIN })
    }

    /// Free rates begin at the best gamma distribution, if that is better than what they are.
    fn start_free_rates(&mut self) -> Result<(), LikelihoodError> {
        if !self.model.across.fits_free_rates() {
            return Ok(());
        }
        let given = self.model.clone();
        let before = self.evaluate()?;
        let started = |log: f64| {
            let mut model = given.clone();
            model.across.start_free_rates(libm::exp(log));
            model
        };
        let range = ALPHA_RANGE.map(libm::log);
        let (best, lnl) = maximise(range, 0.0, 0.05, |x| self.comparable(started(x)))?;
        self.set_model(if lnl > before { started(best) } else { given });
        Ok(())
    }

    /// Makes the probabilities over a branch of a length.
    fn fill(&self, table: &mut Table, node: usize, length: f64) {
        let codes = match self.tree.taxa[node] {
            Some(_) => &self.data.states[..],
            None => &[],
        };
        table.fill(&self.matrices, &self.across.rates, length, codes);
    }

    /// Runs the chunks; `steps` are the products of a matrix and a CLV for each pattern.
    fn run(
        &mut self,
        steps: usize,
        unit: impl Fn(&mut Chunk, &Setting<'_>) + Sync,
    ) -> Result<(), LikelihoodError> {
        let states = self.model.states();
        let set = Setting {
            states,
            tree: &self.tree,
            data: &self.data,
            tables: &self.tables,
            rates: &self.across.rates,
            weights: &self.across.weights,
            root: &self.root,
            fixed: &self.fixed,
            matrices: &self.matrices,
        };
        let products = (steps * self.data.weights.len() * set.span() * states).to_u64();
        let runner = &self.runner;
        runner.run_sized(Work::Traverse, products, &mut self.chunks, |chunk| {
            unit(chunk, &set);
        })?;
        Ok(())
    }
}

/// Approximate bytes of memory that the likelihood of a tree takes while its lengths are fitted;
/// `nodes` are those of the tree, `patterns` their number.
#[must_use]
pub fn rooted_bytes(nodes: usize, patterns: usize, model: &RootedModel) -> u64 {
    let categories = model.across.process().rates.len();
    let span = (categories * model.states() * 8 + 8).to_u64();
    // Matrices of each branch, and powers of the present rates and of those that are tried.
    let square = (categories * model.states() * model.states() * 8).to_u64();
    let matrices = (nodes + 2 * TERMS).to_u64() * square;
    // A CLV below and one above each node.
    2 * nodes.to_u64() * patterns.to_u64() * span + matrices
}

/// The same while each of the tree's branches is its root in turn, and each of `sites` columns of
/// the alignment has a log-likelihood for each of these roots.
#[must_use]
pub fn all_roots_bytes(nodes: usize, patterns: usize, sites: usize, model: &RootedModel) -> u64 {
    let columns = nodes.to_u64().saturating_mul(sites.to_u64());
    rooted_bytes(nodes, patterns, model).saturating_add(columns.saturating_mul(ROOT_SITE_BYTES))
}

/// Of a column for one root: its log-likelihood, and its copies in tests.
const ROOT_SITE_BYTES: u64 = 32;

/// Patterns of a chunk.
const CHUNK: usize = 128;
/// The first lengths need no better precision.
const COARSE: f64 = 0.1;
const LENGTH_ROUNDS: usize = 8;
const ROUNDS_MAX: usize = 60;

#[cfg(test)]
mod tests;
