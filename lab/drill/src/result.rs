//! Results of a script's calls.

use super::files::Errno;
use std::fmt;

/// Result of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Returned {
    Value(i64),
    Error(Errno),
    /// It cannot be done yet, and its descriptor waits.
    Waits,
    /// It returned, but its outputs differ from the script's.
    Other(String),
}

/// Progress of a blocking call.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// `connect` has begun.
    pub(crate) begun: bool,
    /// Bytes that `write` has handed over.
    pub(crate) written: usize,
    /// When `poll` gives up, on the virtual clock.
    pub(crate) until_ns: Option<u64>,
}

impl fmt::Display for Returned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => write!(f, "{value}"),
            Self::Error(error) => write!(f, "-1 {error}"),
            Self::Waits => write!(f, "nothing yet: it waits (write its time as FROM...TO)"),
            Self::Other(what) => write!(f, "{what}"),
        }
    }
}
