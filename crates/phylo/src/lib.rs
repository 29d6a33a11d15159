//! Maximum-likelihood phylogenies: a core that is deterministic and without I/O, and the ways in to
//! it.
//!
//! Top-down, the way an analysis goes:
//!
//! - [`msa`]: alignments, their checks and site patterns; [`msa::partitions`]: which sites have
//!   which model.
//! - [`model`]: substitution models by their RAxML-NG names; [`tree`], [`newick`]: trees.
//! - [`likelihood`]: the likelihood of a tree, its branch lengths and parameters.
//! - [`parsimony`]: trees to start from; [`search`]: the tree of the highest likelihood;
//!   [`constraint`]: splits that it must have.
//! - [`kernel`]: the loops that all time goes into; [`runner`]: who runs them, on how many engines.
//! - [`bootstrap`], [`support`], [`alrt`], [`ufboot`]: how sure a tree is; [`splits`]: what they
//!   count.
//! - [`selection`]: the model that an alignment asks for; [`ancestors`]: states of inner nodes.
//! - [`topology`]: which of several trees an alignment excludes.
//! - [`consensus`]: one tree of many; [`rooting`]: where a tree's root may be.
//! - [`analysis`]: all of it as tasks, handed out by one coordinator; [`io`]: files, other
//!   processes.
//! - [`packed`]: compressed files, before any parser.
//! - [`simulate`]: alignments along a tree; [`compare`]: how far two trees are apart; [`random`]:
//!   what both, and searches, draw from a seed.
//! - [`fuzzing`]: entry points for fuzzers.
//!
//! Must stay true: one seed, one result, whatever the number of engines; unsafe code only in
//! `kernel/simd`. Source: Blagojevic and others, "RAxML-Cell: Parallel phylogenetic tree inference
//! on the Cell Broadband Engine" (2007), and what its kernels compute (Felsenstein 1981).

pub mod alrt;
pub mod analysis;
pub mod ancestors;
pub mod bootstrap;
pub mod compare;
pub mod consensus;
pub mod constraint;
pub mod fuzzing;
pub mod io;
pub mod kernel;
pub mod likelihood;
pub mod model;
pub mod msa;
pub mod newick;
pub mod packed;
pub mod parsimony;
pub mod random;
pub mod rooting;
pub mod runner;
pub mod search;
pub mod selection;
pub mod simulate;
pub mod splits;
pub mod support;
pub mod topology;
pub mod tree;
pub mod ufboot;

/// Runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
