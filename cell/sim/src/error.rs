//! Errors in input from outside: machine files and options.

/// Errors of reading a machine description.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CellError {
    /// The file cannot be read.
    #[error("cannot read the machine {name}: {source}")]
    Read {
        /// The file.
        name: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is no machine description.
    #[error("{name}, line {line}: {reason}; docs/machines shows complete descriptions")]
    Parse {
        /// The file.
        name: String,
        /// The line, from 1.
        line: usize,
        /// The fault.
        reason: String,
    },
    /// A value is out of range.
    #[error("{name}: {reason}")]
    Value {
        /// The file.
        name: String,
        /// The value, and its range.
        reason: String,
    },
}
