//! What all benches share: how contestants are measured in turns, what is reckoned from the rounds,
//! how a figure stands beside a paper's or a peer's, and how that is written down.
//!
//! Why here: the services never import one another, and a ratio must mean the same in each of them.
//!
//! - [`stats`]: rounds, medians, ratios, spreads.
//! - [`turns`]: contestants that run one after another, every round beginning with another one.
//! - [`report`]: a figure beside a paper's ([`Row`]), beside a peer's ([`Peer`]), a [`Sample`].
//! - [`markdown`], [`Table`]: the same for people and for `docs/results`.
//! - [`distance`]: how far apart two cores are, which changes on virtual machines.
//! - [`child`]: other processes that speak in lines, ended whatever happens.
//!
//! Must stay true: no figure without its spread and rounds; losses and misses are written like
//! wins; what a bench measures, and against whom, is not in here.
//! Source: DESIGN, "how we prove things"; own.

pub mod child;
pub mod distance;
pub mod markdown;
pub mod report;
pub mod stats;
mod table;
pub mod turns;

pub use report::{Better, Figures, Peer, Row, Sample};
pub use table::Table;
