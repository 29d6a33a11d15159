//! Options of a run, and the stack that it uses where none is named.

use sidecore_attach::Trust;
use sidecore_net::setup::{Setup, SetupError};
use sidecore_net::sock::client::status_of;
use sidecore_net::sock::control::{SockError, default_socket, find_socket};
use sidecore_sys::preload::{self, Library, PRELOAD};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The stack that programs use.
#[derive(Debug, Clone)]
pub enum Engine {
    /// A running one, by its control socket, and the users that are trusted as its owner.
    At(PathBuf, Trust),
    /// One hosted in the supervisor, by its configuration.
    Hosted(Box<Setup>),
    /// No stack: the loopback alone.
    None,
}

impl Engine {
    /// The stack of a run: one hosted by the configuration at a path, else the running one with
    /// this socket, else the one that [`Engine::find`] finds. The socket's path is absolute.
    ///
    /// # Errors
    /// Those of the configuration's file.
    pub fn of(
        config: Option<&Path>,
        socket: Option<&Path>,
        trust: Trust,
        has_loopback: bool,
    ) -> Result<Self, SetupError> {
        Ok(match (config, socket) {
            (Some(path), _) => Self::Hosted(Box::new(Setup::read(path)?)),
            (None, Some(socket)) => Self::At(socket.to_owned(), trust),
            (None, None) => Self::find(trust, has_loopback),
        })
    }

    /// The stack of a run that names none: the user's own or root's, by its default socket. Where
    /// neither runs and the loopback is served, none is needed. Connects to the socket.
    #[must_use]
    pub fn find(trust: Trust, has_loopback: bool) -> Self {
        let socket = find_socket(&trust);
        // A socket that a killed stack left behind does not count.
        let serves = || !matches!(status_of(&socket, &trust), Err(SockError::NoEngine { .. }));
        if has_loopback && !serves() {
            return Self::None;
        }
        Self::At(socket, trust)
    }
}

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The stack.
    pub engine: Engine,
    /// Serve `127.0.0.0/8` and `::1` among supervised programs.
    pub has_loopback: bool,
    /// Take all addresses from the kernel except the loopback's.
    pub is_all: bool,
    /// Folder through which programs of several supervisors find each other on the loopback.
    pub rendezvous: PathBuf,
    /// Value of `LD_PRELOAD` for programs: the library that moves bytes of sessions by rings, then
    /// any that the user set. None: the environment stays as it is.
    pub preload: Option<OsString>,
}

impl Options {
    /// The options of a run with this stack, without a library. Programs of several runs find each
    /// other next to the stack's socket if that is this user's, else next to the user's default
    /// one.
    #[must_use]
    pub fn new(engine: Engine, has_loopback: bool) -> Self {
        let socket = match &engine {
            Engine::At(socket, _) if is_own(socket) => socket.clone(),
            // The loopback joins programs of one user, whichever user runs the stack.
            Engine::At(..) | Engine::Hosted(_) | Engine::None => default_socket(),
        };
        let mut rendezvous = socket.into_os_string();
        rendezvous.push(".loopback");
        Self {
            engine,
            has_loopback,
            is_all: false,
            rendezvous: rendezvous.into(),
            preload: None,
        }
    }

    /// The same with the library that moves bytes by rings in shared memory, where it is installed:
    /// without it, programs are served as static ones are.
    #[must_use]
    pub fn with_rings(mut self) -> Self {
        match LIBRARY.find() {
            Ok(library) => self.preload = Some(preload::list(PRELOAD, library)),
            Err(why) => tracing::warn!("slower, without rings in shared memory: {why}"),
        }
        self
    }
}

/// The library that moves bytes of sessions by rings in shared memory.
const LIBRARY: Library = Library {
    name: "libsidecore_net_preload.so",
    installed_name: None,
    variable: "SIDECORE_NET_LIBRARY",
};

/// True if the folder of a socket belongs to this user.
fn is_own(socket: &Path) -> bool {
    let folder = socket.parent().and_then(|folder| folder.metadata().ok());
    folder.is_some_and(|folder| folder.uid() == sidecore_sys::local_socket::effective_uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_meet_next_to_the_socket_of_their_own_user() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("net.sock");
        let options = Options::new(Engine::At(socket, Trust::default()), true);
        let expected = folder.path().join("net.sock.loopback");
        assert_eq!(options.rendezvous, expected);
        assert!(options.has_loopback && !options.is_all);
        assert_eq!(options.preload, None);
    }

    #[test]
    fn without_a_stack_of_their_own_they_meet_next_to_the_default_one() {
        let mut default = default_socket().into_os_string();
        default.push(".loopback");
        let nowhere = PathBuf::from("/proc/none/net.sock");
        for engine in [Engine::None, Engine::At(nowhere, Trust::default())] {
            let options = Options::new(engine, false);
            assert_eq!(options.rendezvous.as_os_str(), default);
        }
    }
}
