//! The shared part of all benches: interleaved candidates, statistics of the rounds, figures next
//! to a paper's or a peer's, and tables of them.
//!
//! Why here: the services never import one another, and a ratio must mean the same in each of them.
//!
//! - [`stats`]: rounds, medians, ratios, spreads.
//! - [`interleave`]: interleaved candidates, every round beginning with another one; noisy rounds
//!   repeat.
//! - [`quiet`]: foreign load, which makes a round noisy.
//! - [`report`]: a figure next to a paper's ([`Row`]), next to a peer's ([`Peer`]), a [`Sample`].
//! - [`markdown`], [`Table`]: the same for people and for `docs/results`.
//! - [`Machine`]: the machine of a run, its load and the commit.
//! - [`distance`]: how far apart two cores are, which changes on virtual machines.
//! - [`child`]: other processes that speak in lines, ended whatever happens; [`job`]: others that
//!   run to their end.
//!
//! Must stay true: no figure without its spread and rounds; losses and misses are written like
//! wins; the subject of a bench and its peers are not in here.
//! Source: own.

pub mod child;
pub mod distance;
pub mod interleave;
pub mod job;
mod machine;
pub mod markdown;
pub mod quiet;
pub mod report;
pub mod stats;

pub use machine::Machine;
pub use report::{Better, Figures, Peer, Row, Sample};
pub use sidecore_terminal::Table;

/// The README's example: it compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
