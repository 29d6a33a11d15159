//! Errors of off-loaded work.

use sidecore_engine::KernelError;
use sidecore_sys::SysError;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The task was cancelled while it waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the task was cancelled")]
pub struct Cancelled;

impl From<Cancelled> for OffloadError {
    fn from(_: Cancelled) -> Self {
        Self::Cancelled
    }
}

/// Runs `work`, turning a panic into an error: packets, loops and engines' threads all run work,
/// and none of them may end by it.
pub(crate) fn guarded<R>(work: impl FnOnce() -> R) -> Result<R, OffloadError> {
    caught(work).map_err(|message| OffloadError::Panicked { message })
}

/// Runs `work`, turning a panic into its message.
pub(crate) fn caught<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| message_of(panic.as_ref()))
}

/// Errors of off-loaded work and of starting a pool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OffloadError {
    /// A kernel panicked on an engine; the engine lives on.
    #[error("a kernel panicked on an engine: {message}")]
    Panicked {
        /// The panic's message.
        message: String,
    },
    /// A typed kernel failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// An engine could not be made.
    #[error("cannot start engine {engine}: {source}")]
    Engine {
        /// Its number.
        engine: usize,
        /// The operating system's error.
        source: SysError,
    },
    /// There is no memory for a core on which a host does work itself.
    #[error("cannot make a core for work on the host: {source}")]
    Core {
        /// The operating system's error.
        source: SysError,
    },
    /// The requested number of engines is out of range.
    #[error("{engines} engines asked for; a pool has 1 to {max}")]
    EngineCount {
        /// The requested number.
        engines: usize,
        /// The most a pool has.
        max: usize,
    },
    /// The operating system refused a thread.
    #[error("cannot start the thread of engine {engine}: {source}")]
    Thread {
        /// Its number.
        engine: usize,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The task that asked was cancelled, or a loop's flag was set, or the task that was joined
    /// never began.
    #[error("the task was cancelled")]
    Cancelled,
    /// The deadline of a loop came before all of its items were begun.
    #[error("the deadline of the loop has come; its other items were not begun")]
    Late,
    /// A task panicked; its host and the others live on.
    #[error("a task panicked: {message}")]
    TaskPanicked {
        /// The panic's message.
        message: String,
    },
    /// The requested number of host threads is out of range, or other scopes have them.
    #[error("{hosts} hosts asked for; a process has 1 to {max} at once; ask for fewer")]
    HostCount {
        /// The requested number.
        hosts: usize,
        /// The most a process has.
        max: usize,
    },
    /// The operating system refused a host's thread.
    #[error("cannot start the thread of host {host}: {source}")]
    Host {
        /// Its number.
        host: usize,
        /// The operating system's error.
        source: std::io::Error,
    },
}

impl OffloadError {
    /// The error of a task that caught a panic itself, with the panic's message.
    #[must_use]
    pub fn task_panicked(panic: &(dyn Any + Send)) -> Self {
        Self::TaskPanicked {
            message: message_of(panic),
        }
    }
}

/// Message of a panic.
pub(crate) fn message_of(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
