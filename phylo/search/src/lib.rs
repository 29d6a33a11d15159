//! Maximum-likelihood phylogenies: searches, bootstraps and whole analyses.
//!
//! Top-down, in the order of an analysis:
//!
//! - [`analysis`]: all of it as tasks, handed out by one coordinator; [`io`]: files, other
//!   processes.
//! - [`search`]: the tree of the highest likelihood.
//! - [`evaluation`]: the likelihood of a given tree; [`heterotachy`]: of classes with lengths of
//!   their own.
//! - [`bootstrap`], [`support`], `alrt`, `ufboot`: branch support.
//! - [`selection`]: the best-fitting model; [`ancestors`]: states of inner nodes.
//! - [`topology`]: tests of several trees against one another.
//! - [`consensus`]: one tree of many; [`rooting`]: ways to root a tree; [`dating`]: dates of nodes.
//! - [`quartets`]: gene trees as sets of taxa; [`species`]: a tree of the species.
//! - [`compare`]: distances between trees.
//! - [`concordance`]: gene trees and sites that agree with a tree's branches.
//! - [`placement`]: the branches of a tree that other sequences could stem from.
//! - [`packed`]: compressed files, before any parser.
//!
//! Alignments, models, trees and likelihoods are re-exported from `sidecore-likelihood`.
//!
//! Must stay true: one seed, one result, whatever the number of engines. Source: Blagojevic and
//! others, "RAxML-Cell: Parallel phylogenetic tree inference on the Cell Broadband Engine" (2007).

mod alrt;
pub mod analysis;
pub mod ancestors;
pub mod compare;
pub mod concordance;
pub mod consensus;
pub mod constraint;
pub mod dating;
pub mod evaluation;
pub mod heterotachy;
pub mod io;
pub mod placement;
pub mod quartets;
pub mod rooting;
pub mod search;
pub mod selection;
pub mod species;
pub mod support;
mod taxa;
pub mod topology;
mod ufboot;

pub use sidecore_alignment::packed;
pub use sidecore_likelihood::{
    bootstrap, kernel, likelihood, model, msa, newick, parsimony, profiles, random, rooted, runner,
    simulate, splits, tree,
};

/// Runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
