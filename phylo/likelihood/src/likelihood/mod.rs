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
mod chunks;
pub(crate) mod climb;
mod fit;
mod insertion;
mod part;
mod part_fit;
mod plan;
mod posteriors;
mod starts;
mod sums;
mod unlinked;
mod validity;

pub(crate) use branches::best_length;
pub use branches::{LENGTH_MAX, LENGTH_MIN};
pub use chunks::clv_bytes;
pub use insertion::{Insertion, Insertions, Refined};
pub use part::{Part, PartOptions};
pub use posteriors::Posteriors;
pub use unlinked::{SiteClasses, optimise_shared_model};

use crate::kernel::{Derivatives, Isa};
use crate::model::{Model, ScalerName};
use crate::msa::Patterns;
use crate::runner::{Runner, Work};
use crate::tree::{EdgeId, HalfId, Tree};
use branches::Rounds;
use chunk::Chunk;
use chunks::Chunks;
use plan::{Plan, Storage};
use sidecore_bare::width::ToUsize;
use sidecore_offload::OffloadError;
use std::ops::Range;
use validity::Ends;
use validity::Validity;

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

/// Linkage of the branch lengths of partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lengths {
    /// All have the tree's, times the scale that each was given.
    #[default]
    Linked,
    /// Likewise, and the scales are fitted; their mean, weighted by sites, is 1.
    Scaled,
    /// Each partition has lengths of its own; the tree's are their mean, weighted by sites.
    Unlinked,
}

impl Lengths {
    /// All of them by name, with a line about each.
    #[rustfmt::skip] // a line each
    pub const NAMED: [(&str, &str, Self); 3] = [
        ("linked", "One length a branch", Self::Linked),
        ("scaled", SCALED, Self::Scaled),
        ("unlinked", "Each partition has lengths of its own", Self::Unlinked),
    ];
}

const SCALED: &str = "One length a branch, times a factor that is fitted for each partition";

/// The likelihood of a tree under the models of its partitions.
#[derive(Debug)]
pub struct Likelihood<R> {
    tree: Tree,
    parts: Vec<Part>,
    chunks: Chunks<R>,
    validity: Validity,
    plan: Plan,
    insertions: insertion::Scratch,
    rounds: Rounds,
    /// Linkage of the partitions' lengths.
    lengths: Lengths,
    /// True if all partitions have one model.
    one_model: bool,
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

    /// For several partitions. Lengths outside [`LENGTH_MIN`]..=`LENGTH_MAX` are clamped, as
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
            // By number only: trees are numbered by the alignment's names before they come here.
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
        Ok(Self {
            chunks: Chunks::new(&parts, tree.inner_halves() / 3, runner, options),
            validity: Validity::new(&tree),
            plan: Plan::default(),
            insertions: insertion::Scratch::default(),
            rounds: Rounds::default(),
            tree,
            parts,
            lengths,
            one_model: false,
        })
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
        finite(self.evaluate_raw(edge, Storage::Kept)?)
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
        // A partition's sites are numbered within the alignment, in ascending order.
        let last = |part: &Part| part.patterns().alignment_sites().last().copied();
        let last = self.parts.iter().filter_map(last).max();
        let mut all = vec![0.0; last.map_or(0, |last| last.to_usize() + 1)];
        for number in 0..self.parts.len() {
            let by_pattern = self.chunks.pattern_log_likelihoods(&self.parts, number);
            // Patterns are sorted and counted once; the caller knows columns.
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
        self.run(edge, 0..self.chunks.len(), Storage::Kept, |_, _, _, _| {})
    }

    /// Invalidates all CLVs, as a change of every parameter does; site repeats stay.
    pub fn forget_values(&mut self) {
        self.validity.forget_clvs();
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
        finite(self.evaluate_raw(edge, Storage::Scratch)?)
    }

    /// As [`Likelihood::evaluate_once`], but only the contribution of some partitions.
    ///
    /// # Errors
    /// [`LikelihoodError::Offload`]. It may be no finite number.
    fn evaluate_parts(&mut self, parts: Range<usize>) -> Result<f64, LikelihoodError> {
        let edge = self.tree.edge(HalfId(0));
        let own = self.chunks.of_parts(parts.clone());
        // Only these partitions' tables: a fit of their parameters leaves those of others.
        for part in &mut self.parts[parts.clone()] {
            part.prepare_evaluate(&self.tree, edge);
        }
        self.run(edge, own, Storage::Scratch, Chunk::evaluate)?;
        Ok(self.chunks.sum(parts, Chunk::lnl))
    }

    fn evaluate_raw(&mut self, edge: EdgeId, storage: Storage) -> Result<f64, LikelihoodError> {
        for part in &mut self.parts {
            part.prepare_evaluate(&self.tree, edge);
        }
        self.run(edge, 0..self.chunks.len(), storage, Chunk::evaluate)?;
        Ok(self.chunks.sum(0..self.parts.len(), Chunk::lnl))
    }

    /// Makes the sum tables of a branch.
    fn make_sum_table(&mut self, edge: EdgeId) -> Result<(), LikelihoodError> {
        if self.validity.has_sum_table(edge) {
            return Ok(());
        }
        self.run(
            edge,
            0..self.chunks.len(),
            Storage::Kept,
            Chunk::make_sum_table,
        )?;
        self.validity.keep_sum_table(edge);
        Ok(())
    }

    /// Computes the CLVs at both ends of a branch, then does `then`, on some chunks: all of them
    /// where CLVs are kept.
    fn run(
        &mut self,
        edge: EdgeId,
        chunks: Range<usize>,
        storage: Storage,
        then: impl Fn(&mut Chunk, &Part, &Ends, Isa) + Sync,
    ) -> Result<(), LikelihoodError> {
        // `then` may overwrite the sum tables, and its scratch is theirs.
        self.validity.forget_sum_table();
        let own = (&self.tree, &mut self.parts[..]);
        let ends = self
            .plan
            .towards_branch(own, &mut self.validity, edge, storage);
        self.run_plan(chunks, 1.0, |chunk, part, isa| {
            then(chunk, part, &ends, isa)
        })
    }

    /// Runs the planned steps, then `then`, which takes as long as `more` newviews.
    fn run_plan(
        &mut self,
        chunks: Range<usize>,
        more: f64,
        then: impl Fn(&mut Chunk, &Part, Isa) + Sync,
    ) -> Result<(), LikelihoodError> {
        let (parts, steps) = (&self.parts, self.plan.steps());
        let result = self.chunks.run_steps(parts, steps, chunks, more, then);
        // Some chunks ran the steps and some did not: what the plan marked as valid is not.
        result.inspect_err(|_| self.validity.forget_all())
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
        self.prepare_powers(edge, length);
        let (tree, parts) = (&self.tree, &self.parts);
        self.chunks
            .run_all(parts, Work::Derivatives, 0.5, Chunk::derivatives)?;
        Ok(self.chunks.sum_slopes(0..parts.len(), |part| {
            parts[part].scale() * parts[part].factor(tree, edge)
        }))
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
        self.prepare_powers(edge, length);
        self.chunks
            .run_all(&self.parts, Work::Derivatives, 0.5, Chunk::evaluate_table)?;
        Ok(self.chunks.sum(0..self.parts.len(), Chunk::lnl))
    }

    fn prepare_powers(&mut self, edge: EdgeId, length: f64) {
        for part in &mut self.parts {
            part.prepare_powers(length * part.factor(&self.tree, edge));
        }
    }
}

fn finite(lnl: f64) -> Result<f64, LikelihoodError> {
    if lnl.is_finite() {
        Ok(lnl)
    } else {
        Err(LikelihoodError::Impossible { lnl })
    }
}

mod exchange {
    //! Blocks of chunks, and the terms that processes exchange for them.

    use std::ops::Range;

    /// Terms in exchange: this process's, and all processes'.
    #[derive(Debug, Default)]
    pub(super) struct Exchange {
        pub(super) own: Vec<f64>,
        pub(super) all: Vec<f64>,
    }

    /// Chunks of a block, which one process has whole and adds by itself: a power of two, so that
    /// the block is a branch of the tree of sums, and few enough that every process has
    /// [`BLOCKS_MIN`]. One where there are several partitions, whose sums begin elsewhere in the
    /// tree.
    pub(super) fn block(parts: usize, chunks: usize, processes: usize) -> usize {
        let most = chunks / (BLOCKS_MIN * processes);
        match parts {
            1 if most > 0 => 1 << most.ilog2(),
            _ => 1,
        }
    }

    /// Fewer blocks would be uneven: neighbours are alike, and site repeats save more in some
    /// places.
    const BLOCKS_MIN: usize = 8;

    /// The patterns of the `k`th of `count` chunks. They are even: the last one must not be a crumb
    /// that an engine waits for.
    pub(super) fn chunk_range(patterns: usize, count: usize, k: usize) -> Range<usize> {
        patterns * k / count..patterns * (k + 1) / count
    }
}

#[cfg(test)]
mod tests;
