//! A whole analysis: searches from several starts, bootstraps, and what they say together.
//!
//! - [`plan`]: which pieces of work there are, which are done, what comes next. Pure.
//! - [`job`]: how a piece is done: a search.
//! - [`workers`]: pieces as tasks on a pool's engines. [`coordinator`]: hands them out,
//!   here and to other processes.
//!
//! Must stay true: what a piece gives depends on the seed, its kind and its index alone; so
//! engines, policies, ranks, interruptions and the order of things change nothing but the time.

pub mod coordinator;
pub mod job;
pub mod plan;
pub mod workers;

use crate::likelihood::LikelihoodError;
use crate::splits::CompareError;
use crate::tree::TreeError;
use sidecore_offload::OffloadError;

/// Errors that end an analysis early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AnalysisError {
    /// A likelihood.
    #[error(transparent)]
    Likelihood(#[from] LikelihoodError),
    /// An engine.
    #[error(transparent)]
    Offload(#[from] OffloadError),
    /// A tree that does not go with the alignment.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// Trees that do not go together.
    #[error(transparent)]
    Compare(#[from] CompareError),
    /// A state that was saved cannot be read.
    #[error("{kind} {index}: its saved state cannot be read ({why}); begin anew with --redo")]
    State {
        /// Of which piece.
        kind: plan::Kind,
        /// Which.
        index: u32,
        /// The reason.
        why: String,
    },
    /// A piece could not be done.
    #[error("{kind} {index}: {why}")]
    Piece {
        /// Of what kind.
        kind: plan::Kind,
        /// Which.
        index: u32,
        /// The cause.
        why: String,
    },
    /// No thread could be started for the coordinator.
    #[error("cannot start a thread: {0}; allow more processes (ulimit -u), or end some")]
    Thread(std::io::Error),
    /// A change could not be kept.
    #[error("{0}")]
    Keep(Box<dyn std::error::Error + Send + Sync>),
}
