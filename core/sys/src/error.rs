//! Errors of system calls; each message has the remedy.

use std::io;

/// A refusal of the operating system, or a bound of this crate that was reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SysError {
    /// Memory could not be allocated or mapped.
    #[error("cannot map {bytes} bytes of memory: {source}; ask for less or raise the memory limit")]
    Map {
        /// Requested bytes.
        bytes: usize,
        /// The operating system's error.
        source: io::Error,
    },
    /// A file could not be mapped.
    #[error("cannot map {bytes} bytes of the file from offset {offset}: {source}")]
    MapFile {
        /// First requested byte.
        offset: u64,
        /// Requested bytes.
        bytes: usize,
        /// The operating system's error.
        source: io::Error,
    },
    /// More guarded file maps than the fault handler's table holds.
    #[error("{limit} files are mapped already, the most that are guarded at once; close one first")]
    TooManyMaps {
        /// The table's size.
        limit: usize,
    },
    /// The fault handler could not be installed.
    #[error("cannot install the handler for faults in mapped files: {0}")]
    Handler(io::Error),
    /// An invalid size.
    #[error("{what} of {value} bytes is not allowed: {rule}")]
    Size {
        /// The thing that has the size.
        what: &'static str,
        /// The size, in bytes.
        value: usize,
        /// The rule that the size breaks.
        rule: &'static str,
    },
    /// The thread may not run on the requested core.
    #[error(
        "cannot pin this thread to core {cpu}: {source}; allowed are the cores in `taskset -p $$`"
    )]
    Pin {
        /// The requested core.
        cpu: usize,
        /// The operating system's error.
        source: io::Error,
    },
    /// Shared memory whose maker could still truncate it.
    #[error(
        "the shared memory is not sealed against shrinking and growing; its maker is not to be \
         trusted"
    )]
    NotSealed,
    /// Any other call that failed.
    #[error("{call} failed: {source}")]
    Call {
        /// The system call.
        call: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}
