//! The errors of listening (a server's) and of attaching (a client's).

use sidecore_sys::SysError;
use std::path::PathBuf;

/// An error of taking a server's socket; the services put it in their own words.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another server is alive there; its process, where it said.
    #[error("another server is alive there")]
    InUse {
        /// The process.
        pid: Option<u32>,
    },
    /// The socket, the lock next to it or their folder belongs to another user.
    #[error(
        "{} belongs to user {uid}, not to this one ({own_uid}); remove it or give another path",
        path.display()
    )]
    NotOurs {
        /// Which of them.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// The user of this process.
        own_uid: u32,
    },
    /// This process's user is not mapped in its user namespace: other users have the same number.
    #[error(
        "this user is not mapped in its user namespace (shown as {own_uid}), so that its files \
         cannot be told from others'; map it, or run this outside"
    )]
    Unmapped {
        /// The number that stands for all users that are not mapped.
        own_uid: u32,
    },
    /// Others may write to the socket's folder.
    #[error(
        "other users may write to {} (mode {mode:04o}); run `chmod go-w` on it or give another \
         path",
        folder.display()
    )]
    OpenFolder {
        /// The folder.
        folder: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The socket's parent is not a folder; a link does not count as one.
    #[error("{} is no folder (links are not followed); give another path", folder.display())]
    NotAFolder {
        /// Its path.
        folder: PathBuf,
    },
    /// The path names something that is no socket.
    #[error("what is there is no socket; remove it or give another path")]
    NotASocket,
    /// The operating system refused.
    #[error(transparent)]
    System(#[from] SysError),
}

/// An error of attaching; the services put it in their own words.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// No process serves there.
    #[error("nobody serves at {} ({source})", socket.display())]
    Nobody {
        /// The socket.
        socket: PathBuf,
        /// The error of connecting.
        source: SysError,
    },
    /// An untrusted user serves there.
    #[error(
        "{} is served by user {uid}, who is neither this user ({own_uid}) nor root; nothing was \
         sent there",
        socket.display()
    )]
    Untrusted {
        /// The socket.
        socket: PathBuf,
        /// The server's user.
        uid: u32,
        /// The user of this process.
        own_uid: u32,
    },
    /// The server's user is not mapped in this process's user namespace, so it cannot be
    /// distinguished from others.
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
    /// The server said no.
    #[error("refused: {reason}")]
    Refused {
        /// In its words.
        reason: String,
    },
    /// The server's answer makes no sense.
    #[error(
        "what answers at {} is of another version; use the same release for both",
        socket.display()
    )]
    Nonsense {
        /// The socket.
        socket: PathBuf,
    },
    /// No answer in time.
    #[error("no answer from {} within {waited_ms} ms", socket.display())]
    Silent {
        /// The socket.
        socket: PathBuf,
        /// The time that was waited.
        waited_ms: u64,
    },
    /// The operating system refused.
    #[error(transparent)]
    System(#[from] SysError),
}
