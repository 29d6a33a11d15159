//! The likelihood of a tree, with conditional likelihood vectors (CLVs, or partials) that are
//! reused until they are invalid.
//!
//! A [`Likelihood`] owns a tree. For each inner node it keeps one CLV: that of the subtree behind
//! the node, seen from one of its three branches, the one that was last needed. An evaluation at
//! another branch reorients the nodes on the way there, and no others; a search and a fit of
//! lengths go from branch to neighbouring branch. A change of the tree marks the CLVs that it
//! invalidates, in all three directions; they are computed again when they are needed. Site repeats
//! depend on the topology alone and outlive changes of lengths and parameters.
//!
//! Patterns are cut into chunks, each with CLVs of its own. One call runs a whole traversal chunk
//! by chunk. So a node's CLV is still in the cache (the engine's local store) when its parent is
//! computed, and engines share only read-only tables.
//!
//! Must stay true: valid CLVs were computed from valid CLVs, even if those are no longer kept. So a
//! walk that marks stops at the first marked one. All CLVs of one plan are oriented towards one
//! branch, so that no step overwrites a CLV that a later one reads. Sums are added per chunk, then
//! in a tree: the same doubles, on whichever thread or process the chunks ran.
//! One thread at a time calls it; only the [`Runner`] spreads work.

mod branches;
mod changes;
mod chunk;
mod climb;
mod fit;
mod insertion;
mod mixture;
mod part;
mod plan;
mod step;
mod sums;
mod unlinked;

pub use branches::{LENGTH_MAX, LENGTH_MIN};
pub use fit::Lengths;
pub use insertion::{Insertion, Insertions, Refined};
pub use part::{Part, PartOptions};

use crate::kernel::{Derivatives, Isa};
use crate::model::{Model, ScalerName};
use crate::msa::Patterns;
use crate::runner::{Runner, Work};
use crate::tree::{EdgeId, HalfId, Tree, Walk};
use chunk::{Chunk, SharedArena, Unseen};
use sidecore_offload::OffloadError;
use step::Step;

/// Errors that keep a likelihood from being computed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LikelihoodError {
    /// An engine failed.
    #[error("the likelihood's loop failed: {0}")]
    Offload(#[from] OffloadError),
    /// The alignment and the tree have different numbers of taxa.
    #[error("the tree has {tree} taxa, the alignment {alignment}")]
    Taxa {
        /// Tips.
        tree: usize,
        /// Sequences.
        alignment: usize,
    },
    /// The likelihood is 0 or no number.
    #[error("the log-likelihood is {lnl}: no parameters of this model can give this alignment")]
    Impossible {
        /// The value.
        lnl: f64,
    },
    /// A saved state of another search.
    #[error("the saved search has {what}: it is not of this alignment and model")]
    State {
        /// The part that does not fit.
        what: &'static str,
    },
}

/// Options of the computation; they change the result in the last bits at most.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Instruction set.
    pub isa: Isa,
    /// Site repeats: CLV entries are computed once for patterns that are alike below a node.
    pub repeats: bool,
    /// Most bytes of one node's CLV in a chunk; the number of a chunk's patterns follows from it.
    pub chunk_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            isa: Isa::detect(),
            repeats: true,
            chunk_bytes: CHUNK_BYTES,
        }
    }
}

/// Size of a node's CLV in a chunk: the few CLVs in use during a traversal fit into a local store
/// of 256 KiB, and a small alignment still has chunks to share. From 8 to 128 KiB the speed of one
/// core is the same.
pub const CHUNK_BYTES: usize = 16 << 10;

/// The likelihood of a tree under the models of its partitions.
#[derive(Debug)]
pub struct Likelihood<R> {
    tree: Tree,
    parts: Vec<Part>,
    /// This process's share of the chunks, in order.
    chunks: Vec<Chunk>,
    /// For each partition the number of its first chunk, counted over all processes; then the
    /// number of all chunks.
    bounds: Vec<usize>,
    /// Size of a block: neighbouring chunks that belong to one process together.
    block: usize,
    exchange: sums::Exchange,
    runner: R,
    options: Options,
    /// For each inner half-edge: true if its site repeats match the tree.
    classes_valid: Vec<bool>,
    /// For each inner half-edge: true if its CLV, as last computed, is still right.
    values_valid: Vec<bool>,
    /// For each inner node the half-edge whose CLV is kept; [`NONE`] at first.
    held: Vec<u32>,
    /// The branch that the sum tables were made for, if they are still right.
    sum_table: Option<EdgeId>,
    scratch: Scratch,
    /// Estimated time of one core for one node's CLV.
    newview_ns: f64,
    /// Linkage of the partitions' lengths.
    lengths: Lengths,
}

/// Scratch memory of plans and walks, kept so that they allocate nothing.
#[derive(Debug, Default)]
struct Scratch {
    steps: Vec<Step>,
    walk: Walk,
    path: Vec<HalfId>,
    edges: Vec<EdgeId>,
    insertions: insertion::Walk,
    visits: Vec<chunk::Visit>,
    ends: Vec<HalfId>,
    /// Scratch places that are free in a traversal that keeps no CLVs.
    free: Vec<usize>,
    /// For each node the place of its CLV in such a traversal.
    places: Vec<usize>,
}

impl<R: Runner> Likelihood<R> {
    /// For one alignment and one model.
    ///
    /// # Errors
    /// [`LikelihoodError::Taxa`].
    pub fn new(
        tree: Tree,
        patterns: Patterns,
        model: Model,
        runner: R,
        options: Options,
    ) -> Result<Self, LikelihoodError> {
        let part = PartOptions {
            patterns,
            model,
            scale: 1.0,
        };
        Self::partitioned(tree, vec![part], runner, options)
    }

    /// For several partitions. Lengths outside [`LENGTH_MIN`]..=[`LENGTH_MAX`] are clamped, as
    /// RAxML does. If any partition's model has `+B`, the lengths of all partitions are scaled;
    /// else they are linked.
    ///
    /// # Errors
    /// [`LikelihoodError::Taxa`].
    ///
    /// # Panics
    /// When there is no partition.
    pub fn partitioned(
        mut tree: Tree,
        parts: Vec<PartOptions>,
        runner: R,
        options: Options,
    ) -> Result<Self, LikelihoodError> {
        assert!(!parts.is_empty(), "no partition");
        for part in &parts {
            let alignment = part.patterns.taxa();
            if alignment != tree.taxa() {
                return Err(LikelihoodError::Taxa {
                    tree: tree.taxa(),
                    alignment,
                });
            }
        }
        // As RAxML does; a length of 0 could make patterns impossible.
        for edge in tree.edges() {
            tree.set_length(edge, tree.length(edge).clamp(LENGTH_MIN, LENGTH_MAX));
        }
        let (mut chunks, mut bounds) = (Vec::new(), vec![0]);
        let arena = SharedArena::new();
        let nodes = tree.inner_halves() / 3;
        let scaled = |part: &PartOptions| part.model.name().scaler == ScalerName::Fitted;
        let lengths = match parts.len() > 1 && parts.iter().any(scaled) {
            true => Lengths::Scaled,
            false => Lengths::Linked,
        };
        let parts: Vec<Part> = parts
            .into_iter()
            .enumerate()
            .map(|(number, part)| Part::new(number, part, &tree, options.isa))
            .collect();
        for (number, part) in parts.iter().enumerate() {
            // Chunks are cut by bytes, so that protein and codon chunks fit the cache as well as
            // DNA's.
            let bytes = part.process().shape.span() * size_of::<f64>();
            let size = (options.chunk_bytes / bytes).clamp(CHUNK_MIN, CHUNK_MAX);
            let unseen = usize::from(Unseen::of(part).is_some());
            bounds.push(bounds[number] + part.patterns().len().div_ceil(size) + unseen);
        }
        let share = runner.share();
        // The bounds count the chunks of all processes; only this process's share is allocated.
        let block = sums::block(parts.len(), bounds[parts.len()], share.count);
        for (number, part) in parts.iter().enumerate() {
            let (first, mut count) = (bounds[number], bounds[number + 1] - bounds[number]);
            let has = |k: usize| share.has((first + k) / block);
            let unseen = Unseen::of(part);
            // A correction is one more chunk, the partition's last.
            count -= usize::from(unseen.is_some());
            for k in (0..count).filter(|&k| has(k)) {
                let range = sums::chunk_range(part.patterns().len(), count, k);
                chunks.push(Chunk::new(number, part, range, nodes, &arena));
            }
            if let Some(unseen) = unseen.filter(|_| has(count)) {
                chunks.push(Chunk::unseen(number, part, unseen, nodes, &arena));
            }
        }
        let inner = tree.inner_halves();
        let mut likelihood = Self {
            tree,
            parts,
            chunks,
            bounds,
            block,
            exchange: sums::Exchange::default(),
            runner,
            options,
            classes_valid: vec![false; inner],
            values_valid: vec![false; inner],
            held: vec![NONE; nodes],
            sum_table: None,
            scratch: Scratch::default(),
            newview_ns: 0.0,
            lengths,
        };
        // A rough estimate, by which the runner decides if a loop is worth an engine.
        for chunk in &likelihood.chunks {
            let shape = likelihood.parts[chunk.part()].process().shape;
            likelihood.newview_ns += (shape.matrix() * chunk.patterns()) as f64 * ENTRY_NS;
        }
        (0..likelihood.parts.len()).for_each(|part| likelihood.refresh_fixed(part));
        Ok(likelihood)
    }

    /// The tree.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The partitions.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Number of this process's chunks of a loop: the most engines that can share it.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// The log-likelihood. Blocks; recomputes the parts that are not valid.
    ///
    /// # Errors
    /// [`LikelihoodError::Offload`], [`LikelihoodError::Impossible`].
    pub fn evaluate(&mut self) -> Result<f64, LikelihoodError> {
        let edge = self.tree.edge(HalfId(0));
        self.evaluate_at(edge)
    }

    /// The log-likelihood, computed at some branch: the same at each, but for rounding.
    ///
    /// # Errors
    /// As [`Likelihood::evaluate`].
    pub fn evaluate_at(&mut self, edge: EdgeId) -> Result<f64, LikelihoodError> {
        finite(self.evaluate_raw(edge, true)?)
    }

    /// The log-likelihood of every site: one value for each of the alignment's columns, in order.
    /// Columns without a character, which belong to no pattern, are 0: every tree gives them the
    /// likelihood 1. (So are columns that no partition has, and all of a codon's but the first.) A
    /// partition's ascertainment correction is spread evenly over its columns, so that they sum to
    /// the tree's log-likelihood.
    ///
    /// # Errors
    /// As [`Likelihood::evaluate`].
    pub fn site_log_likelihoods(&mut self) -> Result<Vec<f64>, LikelihoodError> {
        self.evaluate()?;
        let last = |part: &Part| part.patterns().alignment_sites().last().copied();
        let last = self.parts.iter().filter_map(last).max();
        let mut all = vec![0.0; last.map_or(0, |last| last as usize + 1)];
        for number in 0..self.parts.len() {
            let by_pattern = self.pattern_log_likelihoods(number);
            for (site, pattern) in self.parts[number].patterns().site_patterns() {
                all[site] = by_pattern[pattern];
            }
        }
        Ok(all)
    }

    /// Makes the CLVs at both ends of a branch valid, without evaluating there: for measurements of
    /// newview alone.
    ///
    /// # Errors
    /// [`LikelihoodError::Offload`].
    pub fn traverse(&mut self, edge: EdgeId) -> Result<(), LikelihoodError> {
        self.run(edge, 0..self.chunks.len(), true, |_, _, _, _| {})
    }

    /// Invalidates all CLVs, as a change of every parameter does; site repeats stay.
    pub fn forget_values(&mut self) {
        self.values_valid.fill(false);
        self.sum_table = None;
    }

    /// Invalidates all site repeats and CLVs, as a new topology does.
    pub(crate) fn forget_all(&mut self) {
        self.classes_valid.fill(false);
        self.forget_values();
    }

    /// The log-likelihood, without keeping CLVs: for searches over a parameter, where all CLVs are
    /// invalid and will be invalid again. It stays in the cache, where a traversal that keeps a
    /// large alignment's CLVs waits for memory. The result has the same bits as that of
    /// [`Likelihood::evaluate`].
    ///
    /// # Errors
    /// As [`Likelihood::evaluate`].
    pub fn evaluate_once(&mut self) -> Result<f64, LikelihoodError> {
        let edge = self.tree.edge(HalfId(0));
        finite(self.evaluate_raw(edge, false)?)
    }

    /// As [`Likelihood::evaluate_once`], but only one partition's contribution.
    ///
    /// # Errors
    /// [`LikelihoodError::Offload`]. It may be no finite number.
    fn evaluate_part(&mut self, part: usize) -> Result<f64, LikelihoodError> {
        let edge = self.tree.edge(HalfId(0));
        let own = self.chunks_of(part..part + 1);
        self.parts[part].prepare_evaluate(&self.tree, edge);
        self.sum_table = None;
        self.run(edge, own, false, |chunk, part, ends, isa| {
            chunk.evaluate(part, ends, isa)
        })?;
        Ok(self.sum(part..part + 1, Chunk::lnl))
    }

    fn evaluate_raw(&mut self, edge: EdgeId, keep: bool) -> Result<f64, LikelihoodError> {
        self.parts
            .iter_mut()
            .for_each(|part| part.prepare_evaluate(&self.tree, edge));
        self.sum_table = None;
        self.run(
            edge,
            0..self.chunks.len(),
            keep,
            |chunk, part, ends, isa| chunk.evaluate(part, ends, isa),
        )?;
        Ok(self.sum(0..self.parts.len(), Chunk::lnl))
    }

    /// Makes the sum tables of a branch.
    fn make_sum_table(&mut self, edge: EdgeId) -> Result<(), LikelihoodError> {
        if self.sum_table == Some(edge) {
            return Ok(());
        }
        self.run(
            edge,
            0..self.chunks.len(),
            true,
            |chunk, part, ends, isa| chunk.sum_table(part, ends, isa),
        )?;
        self.sum_table = Some(edge);
        Ok(())
    }

    /// The derivatives of the log-likelihood by a branch's length, at `length`.
    ///
    /// # Errors
    /// [`LikelihoodError::Offload`].
    pub fn derivatives(
        &mut self,
        edge: EdgeId,
        length: f64,
    ) -> Result<Derivatives, LikelihoodError> {
        self.make_sum_table(edge)?;
        self.slope(edge, length)
    }

    /// The derivatives that the present sum tables give at a length of the tree's branch `edge`.
    fn slope(&mut self, edge: EdgeId, length: f64) -> Result<Derivatives, LikelihoodError> {
        let tree = &self.tree;
        self.parts
            .iter_mut()
            .for_each(|part| part.prepare_powers(length * part.factor(tree, edge)));
        let (parts, isa) = (&self.parts, self.options.isa);
        let ns = (0.5 * self.newview_ns) as u64;
        self.runner
            .run_sized(Work::Derivatives, ns, &mut self.chunks, |chunk| {
                chunk.derivatives(&parts[chunk.part()], isa);
            })?;
        Ok(self.sum_slopes(edge))
    }

    /// The log-likelihood with this `length` of a branch, from its sum table. But for rounding it
    /// equals [`Likelihood::evaluate_at`] once the length is set, for a third of the work if the
    /// table is there, as after [`Likelihood::optimise_length`].
    ///
    /// # Errors
    /// As [`Likelihood::evaluate`].
    pub fn evaluate_length(&mut self, edge: EdgeId, length: f64) -> Result<f64, LikelihoodError> {
        self.make_sum_table(edge)?;
        finite(self.table_lnl(edge, length)?)
    }

    /// The log-likelihood that the present sum tables give at a length of the tree's branch `edge`.
    fn table_lnl(&mut self, edge: EdgeId, length: f64) -> Result<f64, OffloadError> {
        let tree = &self.tree;
        self.parts
            .iter_mut()
            .for_each(|part| part.prepare_powers(length * part.factor(tree, edge)));
        let (parts, isa, ns) = (&self.parts, self.options.isa, 0.5 * self.newview_ns);
        self.runner
            .run_sized(Work::Derivatives, ns as u64, &mut self.chunks, |chunk| {
                chunk.evaluate_table(&parts[chunk.part()], isa);
            })?;
        Ok(self.sum(0..self.parts.len(), Chunk::lnl))
    }
}

fn finite(lnl: f64) -> Result<f64, LikelihoodError> {
    if lnl.is_finite() {
        Ok(lnl)
    } else {
        Err(LikelihoodError::Impossible { lnl })
    }
}

/// No half-edge.
const NONE: u32 = u32::MAX;
/// Cost of one matrix entry for a pattern, everything included: DNA with four rates has 64 entries
/// and takes about seven nanoseconds a node.
const ENTRY_NS: f64 = 0.1;
/// Bounds of a chunk's patterns: with fewer, the calls cost more than the chunks gain; more would
/// not fit the classes' 16-bit numbers.
const CHUNK_MIN: usize = 32;
const CHUNK_MAX: usize = crate::kernel::repeats::PATTERNS_MAX;

#[cfg(test)]
mod tests;
