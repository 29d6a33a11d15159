//! Bootstraps: branch support from replicates that resample the alignment's columns.
//!
//! - [`convergence`]: tests if there are enough of them.
//!
//! A *standard* replicate is a search of its own, from a start of its own, on resampled weights. A
//! *rapid* one begins where another replicate's search ended. Replicates come in chains of
//! `CHAIN`: the first of a chain starts from a parsimony tree, each later one from the tree of
//! the one before it, and all of them stop after the lazy rounds, without the slow ones. That is
//! the idea of RAxML's rapid bootstrap. Ours has no approximation of rate categories, and its
//! chains are short, so that they can be parallel tasks whose result does not depend on the worker.
//!
//! Must stay true: a replicate's weights depend on the seed and its index alone; a chain's trees on
//! these and the chain's number.
//! Sources: Felsenstein, Evolution 39 (1985), 783-791; Stamatakis, Hoover and Rougemont, Systematic
//! Biology 57 (2008), 758-771.

pub mod convergence;

/// Replicates of a rapid chain.
pub(crate) const CHAIN: u32 = 10;
