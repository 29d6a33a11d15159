//! A whole analysis: searches from several starts, bootstraps, and their combined result.
//!
//! - [`plan`]: the pieces of work, their state, their order, and the time that is left. Pure.
//! - [`job`]: does a piece: a search; [`genes`]: a piece a locus, each with a tree of its own.
//! - [`setup`]: what a run is asked for; [`supports`]: support of its best tree.
//! - [`workers`]: pieces as tasks on a pool's engines. [`coordinator`]: hands them out, here and to
//!   other processes.
//!
//! Must stay true: a piece's result depends on the seed, its kind and its index alone; so engines,
//! policies, ranks, interruptions and the order of work change only the time.

pub mod coordinator;
pub mod genes;
pub mod job;
pub mod plan;
pub mod setup;
pub mod supports;
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
    /// A tree that does not fit the alignment.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// Trees that do not fit one another.
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
