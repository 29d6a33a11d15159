//! Errors of other processes, and how a command is shown.

use std::process::Command;

/// Errors of a child process.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// It failed, or took longer than it may.
    #[error("`{command}` {what}")]
    Program {
        /// The command line.
        command: String,
        /// Exit status or signal, and the last output.
        what: String,
    },
    /// The operating system refused something.
    #[error("cannot {what}: {source}")]
    Io {
        /// The attempt.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The run was cancelled.
    #[error("interrupted")]
    Interrupted,
}

/// An error of the system, with what was tried.
pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> ChildError {
    let what = what.into();
    move |source| ChildError::Io { what, source }
}

/// A command as one would type it, without quotes.
#[must_use]
pub fn describe(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}
