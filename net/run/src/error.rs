//! Errors of running a program.

use rustix::io::Errno;
use sidecore_net::setup::SetupError;
use sidecore_net::sock::control::SockError;
use sidecore_sys::SysError;
use std::path::PathBuf;

/// Why a program could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// The stack cannot be attached to.
    #[error(transparent)]
    Attach(#[from] SockError),
    /// The stack cannot be brought up.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The kernel does not pass system calls to the supervisor.
    #[error(
        "the kernel hands no calls over ({0}); it must be Linux 5.9 or newer, and nobody else may \
         supervise this process so (container runtimes do)"
    )]
    Filter(SysError),
    /// The program does not start.
    #[error("cannot run {}: {source}", program.display())]
    Program {
        /// Its name.
        program: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The folder for the loopback cannot be used.
    #[error("the loopback's folder {} cannot be used: {source}", path.display())]
    Rendezvous {
        /// The folder.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A system call failed.
    #[error("{call} failed: {source}")]
    System {
        /// The call.
        call: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// Calls of programs can no longer be received or answered.
    #[error("{0}; calls about sockets of programs that go on fail from here on")]
    Calls(SysError),
    /// The supervisor ended before its program.
    #[error("the supervisor ended unexpectedly; sockets of programs that go on are gone")]
    Gone,
}

/// Names the system call that failed.
pub(crate) fn system(call: &'static str) -> impl Fn(Errno) -> RunError {
    move |source| RunError::System {
        call,
        source: source.into(),
    }
}
