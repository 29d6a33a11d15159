//! Errors of a script and of its run.

use sidecore_net_stack::NetError;

/// A script that could not be read or did not match.
#[derive(Debug, thiserror::Error)]
#[error("{script}:{line}: {problem}")]
#[non_exhaustive]
pub struct DrillError {
    /// The script's name.
    pub script: String,
    /// Line number, counted from 1.
    pub line: usize,
    /// The problem.
    pub problem: Problem,
}

/// Problem of a script or of its run. Times are seconds since the script's begin; packets are in
/// the script's notation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The line cannot be read.
    #[error("{0}; the grammar is in docs/formats/drill.md")]
    Syntax(String),
    /// Another packet than expected.
    #[error("a packet differs in {differs}\n  expected > {expected}\n       got > {got}")]
    Packet {
        /// The differing part.
        differs: &'static str,
        /// As the script has it.
        expected: String,
        /// As it was, with its time.
        got: String,
    },
    /// The right packet at another time.
    #[error("a packet came at {got_s:.6}, expected {expected_s:.6}\n  packet > {packet}")]
    Time {
        /// The packet.
        packet: String,
        /// When it was expected.
        expected_s: f64,
        /// When it went out.
        got_s: f64,
    },
    /// No packet.
    #[error("nothing went out by {until_s:.6}\n  expected > {expected}")]
    Silence {
        /// As the script has it.
        expected: String,
        /// Time limit of the wait, in seconds.
        until_s: f64,
    },
    /// An unexpected packet.
    #[error(
        "a packet went out at {at_s:.6} that the script does not expect before this line\n  \
         got > {got}"
    )]
    Unexpected {
        /// The packet.
        got: String,
        /// When it went out.
        at_s: f64,
    },
    /// A call returned something else.
    #[error("{call} returned {got}, expected {expected}")]
    Result {
        /// The call.
        call: String,
        /// As the script has it.
        expected: String,
        /// The value found.
        got: String,
    },
    /// A call returned at another time.
    #[error("{call} returned at {got_s:.6}, expected {expected_s:.6}")]
    ReturnTime {
        /// The call.
        call: String,
        /// When it was to return.
        expected_s: f64,
        /// When it did.
        got_s: f64,
    },
    /// An assertion failed.
    #[error("{what} does not hold: {left} against {right}")]
    Assertion {
        /// The assertion.
        what: String,
        /// Its left side's value.
        left: i64,
        /// Its right side's.
        right: i64,
    },
    /// The stack cannot be set up like this.
    #[error("the stack: {0}")]
    Stack(#[from] NetError),
}
