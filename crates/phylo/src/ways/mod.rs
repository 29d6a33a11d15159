//! The ways in to an analysis: files under a prefix, and other processes.
//!
//! - [`checkpoint`]: what is kept of a run, so that it goes on after anything.
//! - [`files`]: a run's files; what they hold, and that no other run's are overwritten.
//! - [`run`]: a run, in one process or led from rank 0; [`ranks`]: its other processes;
//!   `mpi`, with the feature of that name: how these find each other.
//!
//! Must stay true: everything else in this crate is without I/O.

pub mod checkpoint;
pub mod files;
#[cfg(feature = "mpi")]
pub mod mpi;
pub mod ranks;
pub mod run;

use std::path::PathBuf;

/// What keeps a run's files from being used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WaysError {
    /// Results of something else.
    #[error("{} is there already; choose another --prefix, or --redo to replace it", path.display())]
    Exists {
        /// Which file.
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
        /// What differs.
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
        /// Where, from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// Another process has it.
    #[error("another run is using {}; let it end, or choose another --prefix", path.display())]
    Locked {
        /// The checkpoint.
        path: PathBuf,
    },
    /// The system said no.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// Do what.
        what: &'static str,
        /// With what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

/// An error of the system, with what was being done.
fn io(what: &'static str, path: &std::path::Path) -> impl FnOnce(std::io::Error) -> WaysError {
    let path = path.to_owned();
    move |source| WaysError::Io { what, path, source }
}
