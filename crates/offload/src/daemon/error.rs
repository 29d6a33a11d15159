//! Why a daemon could not start.

use super::{CLIENTS_MAX, ENGINES_MAX};
use sidecore_engine::KernelError;
use sidecore_sys::SysError;
use sidecore_sys::place::PlaceError;
use std::path::{Path, PathBuf};

/// Why a daemon could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// Another daemon serves at this socket.
    #[error(
        "a daemon{} already serves at {}; stop it, or give this one another socket",
        pid.map(|pid| format!(" (process {pid})")).unwrap_or_default(),
        socket.display()
    )]
    InUse {
        /// The socket.
        socket: PathBuf,
        /// The other daemon's process, where it said.
        pid: Option<u32>,
    },
    /// What is at the socket's path belongs to somebody else.
    #[error(
        "{} belongs to user {uid}, not to this one ({own_uid}); remove it or give another path",
        socket.display()
    )]
    NotOurs {
        /// The socket.
        socket: PathBuf,
        /// Its owner.
        uid: u32,
        /// Who we are.
        own_uid: u32,
    },
    /// What is at the socket's path is no socket.
    #[error("{} is there and is no socket; remove it or give another path", socket.display())]
    NotASocket {
        /// The path.
        socket: PathBuf,
    },
    /// The socket's folder or file could not be made.
    #[error("cannot make the socket {}: {source}", socket.display())]
    Socket {
        /// The socket.
        socket: PathBuf,
        /// Why.
        source: SysError,
    },
    /// The number of engines is out of range.
    #[error("{engines} engines asked for; a daemon has 1 to {ENGINES_MAX}")]
    EngineCount {
        /// What was asked for.
        engines: usize,
    },
    /// More engines than cores.
    #[error(
        "{engines} engines asked for on {cores} cores; ask for at most {cores}, or let them share \
         cores with --oversubscribe"
    )]
    TooManyEngines {
        /// What was asked for.
        engines: usize,
        /// Cores that this process may use.
        cores: usize,
    },
    /// The number of clients is out of range.
    #[error("room for {clients} clients asked for; a daemon has room for 1 to {CLIENTS_MAX}")]
    ClientCount {
        /// What was asked for.
        clients: usize,
    },
    /// A kernel does not fit the engines.
    #[error(
        "kernel `{name}` (local store of {store_bytes} bytes) cannot run on the engines: {source}"
    )]
    Kernel {
        /// Its name.
        name: &'static str,
        /// What it needs.
        store_bytes: usize,
        /// Why not.
        source: KernelError,
    },
    /// No thread.
    #[error("cannot start a thread: {source}; raise the limit on threads (`ulimit -u`)")]
    Thread {
        /// Why.
        source: std::io::Error,
    },
    /// The operating system refused something else.
    #[error(transparent)]
    System(#[from] SysError),
}

impl DaemonError {
    /// Why `socket` could not be taken.
    pub(super) fn of_place(error: PlaceError, socket: &Path) -> Self {
        let socket = socket.to_owned();
        match error {
            PlaceError::InUse { pid } => Self::InUse { socket, pid },
            PlaceError::NotOurs { path, uid, own_uid } => Self::NotOurs {
                socket: path,
                uid,
                own_uid,
            },
            PlaceError::NotASocket => Self::NotASocket { socket },
            PlaceError::Sys(source) => Self::Socket { socket, source },
        }
    }
}
