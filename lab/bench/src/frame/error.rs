//! One error for all benches.

use crate::measure::child::ChildError;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Errors of a measurement or of the whole run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// A program or facility that this machine lacks. Reported, not a failure.
    #[error("{0}")]
    Missing(String),
    /// A program failed, or exceeded its time limit.
    #[error("`{command}` {what}")]
    Program {
        /// The command line.
        command: String,
        /// Exit status or signal, and the last output.
        what: String,
    },
    /// A candidate gave a wrong result.
    #[error("{0}")]
    Wrong(String),
    /// Output bytes differ from the input's.
    #[error("{what} does not deliver the bytes that were packed: {detail}")]
    WrongBytes {
        /// The server or image.
        what: String,
        /// The place of the difference.
        detail: String,
    },
    /// Not enough room for the inputs.
    #[error(
        "the inputs need {needed_bytes} bytes in {}, {free_bytes} are free; \
         choose another place with --scratch, or run --quick", .directory.display()
    )]
    Space {
        /// The directory of the inputs.
        directory: PathBuf,
        /// Bytes that they take.
        needed_bytes: u64,
        /// Bytes that are free there.
        free_bytes: u64,
    },
    /// The operating system refused something.
    #[error("cannot {what}: {source}")]
    Io {
        /// The attempted operation.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A core, memory or a namespace was refused.
    #[error(transparent)]
    System(#[from] sidecore_sys::SysError),
    /// An error of the service that is measured.
    #[error(transparent)]
    Service(Box<dyn std::error::Error + Send + Sync>),
    /// The run was cancelled.
    #[error("interrupted; everything was ended and removed")]
    Interrupted,
}

impl BenchError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// True if the other groups cannot go on either.
    pub(super) fn ends_the_run(&self) -> bool {
        matches!(self, Self::Interrupted | Self::Space { .. })
    }
}

impl From<ChildError> for BenchError {
    fn from(error: ChildError) -> Self {
        match error {
            ChildError::Program { command, what } => Self::Program { command, what },
            ChildError::Io { what, source } => Self::Io { what, source },
            ChildError::Interrupted => Self::Interrupted,
        }
    }
}

/// Makes `?` work for errors of the services.
macro_rules! from_service {
    ($($error:ty),+ $(,)?) => {$(
        impl From<$error> for $crate::frame::BenchError {
            fn from(error: $error) -> Self {
                Self::Service(Box::new(error))
            }
        }
    )+};
}
pub(crate) use from_service;

/// Fails once the run is cancelled.
///
/// # Errors
/// [`BenchError::Interrupted`].
pub(crate) fn interrupted(cancel: &AtomicBool) -> Result<(), BenchError> {
    // Relaxed: a flag alone, nothing is published with it.
    if cancel.load(Ordering::Relaxed) {
        return Err(BenchError::Interrupted);
    }
    Ok(())
}
