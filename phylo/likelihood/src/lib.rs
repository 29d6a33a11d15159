//! Likelihoods of phylogenetic trees: deterministic, without I/O.
//!
//! - [`msa`], [`newick`]: alignments, site patterns and trees as text, of `sidecore-alignment`.
//! - [`model`]: substitution models by their RAxML-NG names; [`tree`]: trees.
//! - [`likelihood`]: the likelihood of a tree, its branch lengths and parameters, from conditional
//!   likelihood vectors (CLVs, also called partials) of each node and their scalers.
//! - [`kernel`]: the SIMD loops over patterns; [`runner`]: which engines run them.
//! - [`rooted`]: nonreversible models on rooted trees, models of populations; [`profiles`]:
//!   frequencies of each site.
//! - [`parsimony`]: trees to start from.
//! - [`splits`]: the parts in which branches divide the taxa; [`bootstrap`]: replicates, until more
//!   would change no consensus.
//! - [`simulate`]: alignments along a tree; [`random`]: numbers from a seed.
//!
//! Must stay true: one seed, one result, whatever the number of engines; unsafe code only in
//! `kernel/simd`. Source: Blagojevic and others, "RAxML-Cell: Parallel phylogenetic tree inference
//! on the Cell Broadband Engine" (2007), and what its kernels compute (Felsenstein 1981).

pub mod bootstrap;
pub mod kernel;
pub mod likelihood;
pub mod model;
pub mod parsimony;
pub mod profiles;
pub mod random;
pub mod rooted;
pub mod runner;
pub mod simulate;
pub mod splits;
pub mod tree;

pub use sidecore_alignment as msa;
pub use sidecore_alignment::newick;

/// Runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
