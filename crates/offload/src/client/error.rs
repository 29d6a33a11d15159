//! What can go wrong for a client.

use sidecore_engine::KernelError;
use sidecore_sys::SysError;
use std::path::PathBuf;

/// Why a client could not attach, or a call gave no reply.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// Nobody serves there.
    #[error(
        "no daemon serves at {} ({source}); start one with `sidecore daemon`",
        socket.display()
    )]
    NoDaemon {
        /// The socket.
        socket: PathBuf,
        /// What the operating system said.
        source: SysError,
    },
    /// The daemon said no.
    #[error("the daemon refused: {reason}")]
    Refused {
        /// In its words.
        reason: String,
    },
    /// The daemon did not answer in time.
    #[error("the daemon at {} did not answer within {waited_ms} ms", socket.display())]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// How long we waited.
        waited_ms: u64,
    },
    /// The daemon's answer makes no sense.
    #[error("the answer of the daemon makes no sense; use the same release for both sides")]
    Nonsense,
    /// No such kernel in this client's registry.
    #[error("there is no kernel `{name}`")]
    UnknownKernel {
        /// The name.
        name: String,
    },
    /// More words, inputs and outputs than a request carries, or a range outside its buffer.
    #[error("{what}: {value}, the limit is {limit}")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        value: usize,
        /// How much there may be.
        limit: usize,
    },
    /// The kernel gave an error on an engine.
    #[error("{text}")]
    Engine {
        /// The first 64 bytes of what it said.
        text: String,
    },
    /// The kernel gave an error on this process's own core.
    #[error(transparent)]
    Host(#[from] KernelError),
    /// The operating system refused something.
    #[error(transparent)]
    System(#[from] SysError),
}
