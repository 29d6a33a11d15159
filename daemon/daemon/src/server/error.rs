//! The errors of starting a daemon.

use super::{CLIENTS_MAX, ENGINES_MAX};
use sidecore_attach::ListenError;
use sidecore_engine::KernelError;
use sidecore_sys::SysError;
use std::path::{Path, PathBuf};

/// An error of starting a daemon.
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
    /// This user may not use the socket or its folder.
    #[error("cannot serve at {}: {source}", socket.display())]
    NotOurs {
        /// The socket.
        socket: PathBuf,
        /// The reason.
        source: ListenError,
    },
    /// The socket's path names something that is no socket.
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
        /// The reason.
        source: SysError,
    },
    /// The number of engines is out of range.
    #[error("{engines} engines asked for; a daemon has 1 to {ENGINES_MAX}")]
    EngineCount {
        /// The requested value.
        engines: usize,
    },
    /// More engines than cores.
    #[error(
        "{engines} engines asked for on {cores} cores; ask for at most {cores}, or let them share \
         cores with --oversubscribe"
    )]
    TooManyEngines {
        /// The requested value.
        engines: usize,
        /// Cores that this process may use.
        cores: usize,
    },
    /// The number of clients is out of range.
    #[error("room for {clients} clients asked for; a daemon has room for 1 to {CLIENTS_MAX}")]
    ClientCount {
        /// The requested value.
        clients: usize,
    },
    /// A kernel does not fit the engines.
    #[error(
        "kernel `{name}` (local store of {store_bytes} bytes) cannot run on the engines: {source}"
    )]
    Kernel {
        /// Its name.
        name: &'static str,
        /// The local store that it needs.
        store_bytes: usize,
        /// The reason.
        source: KernelError,
    },
    /// The operating system refused a thread.
    #[error("cannot start a thread: {source}; raise the limit on threads (`ulimit -u`)")]
    Thread {
        /// The reason.
        source: std::io::Error,
    },
    /// The thread of an engine ended by a panic, which would be our bug.
    #[error("engine {engine} has failed; its panic is above")]
    Broken {
        /// The engine.
        engine: usize,
    },
    /// The operating system refused something else.
    #[error(transparent)]
    System(#[from] SysError),
}

impl DaemonError {
    /// The reason why `socket` could not be taken.
    pub(super) fn of_socket(error: ListenError, socket: &Path) -> Self {
        let socket = socket.to_owned();
        match error {
            ListenError::InUse { pid } => Self::InUse { socket, pid },
            ListenError::NotASocket => Self::NotASocket { socket },
            ListenError::System(source) => Self::Socket { socket, source },
            source => Self::NotOurs { socket, source },
        }
    }
}
