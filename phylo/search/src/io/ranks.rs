//! Other processes (ranks) that work for a run, each with workers of its own.
//!
//! ```text
//!   rank 0: coordinator ── outbox ──► its MPI thread ── order ──► MPI thread ── Workers::deliver
//!           (a thread)  ◄─ mailbox ──                ◄─ event ──              ◄── channel ── tasks
//! ```
//!
//! - [`post`]: how messages go: over MPI (`io::mpi`), or between threads of one process, for tests.
//! - [`farm`]: every rank has pieces of its own, on tasks of its pool.
//! - [`team`]: several ranks do one piece together, each with a share of the sites.
//! - [`layout`]: which ranks are a team, and how many a search should have.
//!
//! Must stay true: one thread of each rank touches its [`post::Post`], and so MPI: the one that
//! initialised it. That thread never blocks in a receive: it polls, with growing pauses, so that an
//! idle rank costs next to nothing. Rank 0 keeps a piece's result before it orders a piece that
//! builds on it. Where a message service reports that a rank is gone, its pieces go to others. MPI
//! ends all ranks instead, and a new job resumes from the checkpoint with any number of them.

pub mod farm;
pub mod layout;
pub mod post;
pub mod team;

mod line;

use sidecore_offload::OffloadError;
use sidecore_sys::SysError;

/// Errors that keep a process from being a rank, or end a rank's work early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RankError {
    /// Rank 0 is gone.
    #[error("rank 0 is gone; what it received is in its checkpoint: start the job again to go on")]
    Gone,
    /// A shared piece could not be done here.
    #[error("rank {rank} cannot do its share: {source}; start the job again to go on")]
    Share {
        /// The rank.
        rank: u32,
        /// The cause.
        source: crate::analysis::AnalysisError,
    },
    /// This process's engines.
    #[error(transparent)]
    Offload(#[from] OffloadError),
    /// The system did not say which cores are ours.
    #[error(transparent)]
    Cores(#[from] SysError),
    /// One of several ranks, which a program without MPI cannot be.
    #[error(
        "this program was built without MPI, and one rank cannot see the others: run it without \
         mpirun, or build the package sidecore-cli with its feature `mpi`"
    )]
    NoMpi,
    /// The ranks do not go together.
    #[cfg(feature = "mpi")]
    #[error(transparent)]
    Mpi(#[from] super::mpi::MpiError),
}

#[cfg(test)]
mod tests;
