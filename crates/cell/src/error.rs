//! What can go wrong: only what is read from outside.

/// Why a machine cannot be simulated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CellError {
    /// The file cannot be read.
    #[error("cannot read the machine {name}: {source}")]
    Read {
        /// The file.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// The file is no machine description.
    #[error("{name}, line {line}: {reason}; docs/machines shows complete descriptions")]
    Parse {
        /// The file.
        name: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong there.
        reason: String,
    },
    /// A value is out of range.
    #[error("{name}: {reason}")]
    Value {
        /// The file.
        name: String,
        /// Which value, and what it may be.
        reason: String,
    },
}
