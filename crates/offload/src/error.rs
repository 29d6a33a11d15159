//! What can go wrong with off-loaded work.

use sidecore_engine::KernelError;
use sidecore_sys::SysError;

/// Why off-loaded work did not end well, or the pool could not start.
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
        /// Which one.
        engine: usize,
        /// Why.
        source: SysError,
    },
    /// The number of engines asked for is out of range.
    #[error("{engines} engines asked for; a pool has 1 to {max}")]
    EngineCount {
        /// What was asked for.
        engines: usize,
        /// The most a pool has.
        max: usize,
    },
    /// The operating system refused a thread.
    #[error("cannot start the thread of engine {engine}: {source}")]
    Thread {
        /// Which one.
        engine: usize,
        /// Why.
        source: std::io::Error,
    },
}
