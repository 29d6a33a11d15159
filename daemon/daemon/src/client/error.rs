//! The errors of a client.

use crate::served::RegistryError;
use sidecore_attach::AttachError;
use sidecore_engine::KernelError;
use sidecore_sys::SysError;
use std::path::PathBuf;

/// An error of attaching, or of a call that gave no reply.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No daemon serves at the socket.
    #[error(
        "no daemon serves at {} ({source}); start one with `sidecore daemon`",
        socket.display()
    )]
    NoDaemon {
        /// The socket.
        socket: PathBuf,
        /// The operating system's error.
        source: SysError,
    },
    /// The daemon there runs as an untrusted user; nothing was sent to it.
    #[error(
        "{} is served by user {uid}, who is neither this user ({own_uid}) nor root; nothing was \
         sent there; remove it, give another socket, or name the user with `--server-uid {uid}`",
        socket.display()
    )]
    Untrusted {
        /// The socket.
        socket: PathBuf,
        /// The daemon's user.
        uid: u32,
        /// The user of this process.
        own_uid: u32,
    },
    /// The daemon's user is not mapped in this process's user namespace, so it cannot be
    /// distinguished from others; nothing was sent to it.
    #[error(
        "{} is served by a user whom this user namespace does not map (shown as {uid}), so that it \
         cannot be told from others; nothing was sent there; map the user, or run this outside",
        socket.display()
    )]
    Unmapped {
        /// The socket.
        socket: PathBuf,
        /// The number that stands for all users that are not mapped.
        uid: u32,
    },
    /// The daemon refused the client.
    #[error("the daemon refused: {reason}")]
    Refused {
        /// The daemon's reason.
        reason: String,
    },
    /// The daemon did not answer in time.
    #[error("the daemon at {} did not answer within {waited_ms} ms", socket.display())]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// The time waited, in milliseconds.
        waited_ms: u64,
    },
    /// The daemon's answer is malformed.
    #[error("the answer of the daemon makes no sense; use the same release for both sides")]
    Nonsense,
    /// No such kernel in this client's registry.
    #[error("there is no kernel `{name}`; `sidecore offload kernels` lists those of a daemon")]
    UnknownKernel {
        /// The name.
        name: String,
    },
    /// More words, inputs and outputs than a request carries, or a range outside its buffer.
    #[error("{what}: {value}, the limit is {limit}")]
    Limit {
        /// The thing that is too many.
        what: &'static str,
        /// Its number.
        value: usize,
        /// The limit of its number.
        limit: usize,
    },
    /// A kernel that only the daemon has was not done in time: its engine is at another request, or
    /// at this one. The outputs are as they were.
    #[error(
        "kernel `{kernel}`, which only the daemon has, was not done within {waited_ms} ms; its \
         engine is busy (`sidecore top`): allow more time, or start the daemon with more engines"
    )]
    Late {
        /// Its name.
        kernel: &'static str,
        /// The time waited, in milliseconds.
        waited_ms: u64,
    },
    /// The buffers of a call do not fit the arena, and only the daemon has the kernel.
    #[error(
        "the buffers of a call of `{kernel}`, which only the daemon has, find no room in the \
         arena; free some, or ask for a larger arena (`ClientOptions::arena_bytes`)"
    )]
    ArenaFull {
        /// The kernel's name.
        kernel: &'static str,
    },
    /// The kernel gave an error on an engine.
    #[error("{text}")]
    Engine {
        /// The first 64 bytes of the kernel's message.
        text: String,
    },
    /// As many jobs are open as a client may have: submitted and their outcome not taken.
    #[error("{open} jobs are open, the limit; take the outcome of one")]
    Full {
        /// Number of open jobs.
        open: usize,
    },
    /// The daemon ended before it answered, and this process cannot do the work: of an
    /// [`Attachment`](super::Attachment) alone.
    #[error("the daemon is gone; do the work here, or attach again")]
    Lost,
    /// The job was cancelled before it was done.
    #[error("the job was cancelled")]
    Cancelled,
    /// The kernel gave an error on this process's own core.
    #[error(transparent)]
    Host(#[from] KernelError),
    /// The registry does not take a kernel.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// The operating system refused something.
    #[error(transparent)]
    System(#[from] SysError),
}

impl From<AttachError> for ClientError {
    fn from(error: AttachError) -> Self {
        match error {
            AttachError::Nobody { socket, source } => Self::NoDaemon { socket, source },
            AttachError::Untrusted {
                socket,
                uid,
                own_uid,
            } => Self::Untrusted {
                socket,
                uid,
                own_uid,
            },
            AttachError::Unmapped { socket, uid } => Self::Unmapped { socket, uid },
            AttachError::Refused { reason } => Self::Refused { reason },
            AttachError::Silent { socket, waited_ms } => Self::Silent { socket, waited_ms },
            AttachError::System(source) => Self::System(source),
            _ => Self::Nonsense,
        }
    }
}
