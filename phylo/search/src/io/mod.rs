//! I/O of an analysis: files under a prefix, and other processes.
//!
//! - [`checkpoint`]: the state of a run, from which it can be resumed.
//! - [`input`]: input files, and the memory that they may take; [`data`]: the alignments, trees and
//!   models in them, checked against one another; [`partitions`]: files that say which sites have
//!   which model.
//! - [`files`]: a run's output files; those of other runs are not overwritten.
//! - [`run`]: a run, in one process or led from rank 0; [`role`]: which of them this
//!   process is; [`ranks`]: its other processes; `mpi`, with
//!   the feature of that name: their messages.
//!
//! Must stay true: everything else in this crate is without I/O.

pub mod checkpoint;
pub mod data;
pub mod files;
pub mod input;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod partitions;
pub mod ranks;
pub mod role;
pub mod run;

use crate::analysis::AnalysisError;
use std::path::PathBuf;

/// Errors of a run's files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    /// Results of another run.
    #[error(
        "{} is there already; choose another --prefix, or --redo to replace it",
        path.display()
    )]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The checkpoint of another run.
    #[error(
        "{} belongs to a run with another {what} ({was}; now {is}); \
         choose another --prefix, or --redo to begin anew",
        path.display()
    )]
    OtherRun {
        /// The checkpoint.
        path: PathBuf,
        /// The setting that differs.
        what: String,
        /// Its value then.
        was: String,
        /// Its value now.
        is: String,
    },
    /// Not a checkpoint, or one that was changed.
    #[error("{}, line {line}: {why}; begin anew with --redo", path.display())]
    Damaged {
        /// The checkpoint.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// The reason.
        why: String,
    },
    /// Another process has it.
    #[error("another run is using {}; let it end, or choose another --prefix", path.display())]
    Locked {
        /// The checkpoint.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
}

impl From<FilesError> for AnalysisError {
    fn from(error: FilesError) -> Self {
        Self::Keep(Box::new(error))
    }
}

/// An error of the system, with the operation.
fn io_error(
    what: &'static str,
    path: &std::path::Path,
) -> impl FnOnce(std::io::Error) -> FilesError {
    let path = path.to_owned();
    move |source| FilesError::Io { what, path, source }
}
