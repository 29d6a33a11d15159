//! Every comparison of Sidecore with its peers, and the papers' experiments.
//!
//! - [`block`], [`offload`], [`net`], [`phylo`]: one module a service, called by `sidecore SERVICE
//!   bench`.
//! - `frame`: groups, rounds, noise, head, figures and pictures of all of them, once.
//! - [`measure`]: candidates in turn, ratios, spreads, foreign load, and their tables.
//!
//! Why here: peers (rayon, crossbeam's channels, smoltcp, other programs) are needed to compare,
//! not to serve; with the benches in a crate of their own no library depends on one.
//! Must stay true: nothing but `cli` (feature `bench`) depends on this crate.

pub mod block;
mod frame;
pub mod measure;
pub mod net;
pub mod offload;
pub mod phylo;

pub use frame::{BenchError, Measured};

/// The README's example: it compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
