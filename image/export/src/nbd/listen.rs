//! Addresses of the server, and its listening sockets.
//!
//! Why here: a Unix socket's file outlives a server that was killed. Distinguishing a dead server's
//! socket from a live one, without two servers taking the same path, is done in one place.
//! Must stay true: a file that is not a dead server's socket is never removed; on drop only our own
//! file is.
//! Source: `unix(7)`; RFC 3986 section 3.2.2 for `[IPv6]:PORT`.

use super::NbdError;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};
use sidecore_attach::network_of;
use sidecore_sys::folder::remove_named;
use sidecore_sys::local_socket::{self, free_path};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{self, UnixListener};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Address to listen on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// `unix:PATH`
    Unix(PathBuf),
    /// `tcp:HOST:PORT`; port 0 takes a free one.
    Tcp(String),
}

impl FromStr for Address {
    type Err = NbdError;

    fn from_str(text: &str) -> Result<Self, NbdError> {
        let bad = || NbdError::Address {
            text: text.to_owned(),
        };
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(PathBuf::from(path))),
            Some(("tcp", rest)) => {
                let (host, port) = rest.rsplit_once(':').ok_or_else(bad)?;
                // RFC 3986, section 3.2.2: an IPv6 address stands in brackets, since it has colons
                // itself.
                let bare = host.trim_start_matches('[').trim_end_matches(']');
                if bare.is_empty() || port.parse::<u16>().is_err() {
                    return Err(bad());
                }
                Ok(Self::Tcp(rest.to_owned()))
            }
            _ => Err(bad()),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(host) => write!(f, "tcp:{host}"),
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub(super) enum Listener {
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener),
}

impl Listener {
    pub(super) fn bind(address: &Address) -> Result<Self, NbdError> {
        let fails = |error: std::io::Error| NbdError::Listen {
            address: address.to_string(),
            reason: error.to_string(),
        };
        let listener = match address {
            Address::Unix(path) => {
                let (listener, file) = bind_unix(path)?;
                listener.set_nonblocking(true).map_err(fails)?;
                Self::Unix(listener, file)
            }
            Address::Tcp(host) => {
                let addresses: Vec<SocketAddr> = host.to_socket_addrs().map_err(fails)?.collect();
                let listener = TcpListener::bind(&addresses[..]).map_err(fails)?;
                listener.set_nonblocking(true).map_err(fails)?;
                Self::Tcp(listener)
            }
        };
        Ok(listener)
    }

    /// Takes a socket that listens already.
    pub(super) fn take(socket: OwnedFd) -> Result<Self, NbdError> {
        let wrong = |what: &str| NbdError::Passed { what: what.into() };
        let asked = |error: Errno| wrong(&format!("no socket ({error})"));
        if sockopt::socket_type(&socket).map_err(asked)? != SocketType::STREAM {
            return Err(wrong("no stream socket"));
        }
        if !sockopt::socket_acceptconn(&socket).map_err(asked)? {
            return Err(wrong("a socket that does not listen"));
        }
        let failed = |error: std::io::Error| wrong(&error.to_string());
        match sockopt::socket_domain(&socket).map_err(asked)? {
            AddressFamily::UNIX => {
                let listener = UnixListener::from(socket);
                listener.set_nonblocking(true).map_err(failed)?;
                let address = listener.local_addr().map_err(failed)?;
                let path = address.as_pathname().unwrap_or(Path::new("(passed)"));
                // The file is that of the process which made the socket.
                let file = SocketFile {
                    path: path.to_owned(),
                    identity: None,
                };
                Ok(Self::Unix(listener, file))
            }
            AddressFamily::INET | AddressFamily::INET6 => {
                let listener = TcpListener::from(socket);
                listener.set_nonblocking(true).map_err(failed)?;
                Ok(Self::Tcp(listener))
            }
            _ => Err(wrong("a socket of another family")),
        }
    }

    /// Address it listens on, with the port that was assigned.
    pub(super) fn address(&self) -> Address {
        match self {
            Self::Unix(_, file) => Address::Unix(file.path.clone()),
            Self::Tcp(listener) => Address::Tcp(
                listener
                    .local_addr()
                    .map_or_else(|_| "?".to_owned(), |address| address.to_string()),
            ),
        }
    }

    /// Accepts a client; its socket and its identity.
    pub(super) fn accept(&self) -> std::io::Result<(OwnedFd, Peer)> {
        match self {
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                let peer = local_socket::peer(stream.as_fd()).map_err(std::io::Error::other)?;
                Ok((stream.into(), Peer::User(peer.uid)))
            }
            Self::Tcp(listener) => {
                let (stream, from) = listener.accept()?;
                stream.set_nonblocking(false)?;
                // Replies are whole messages; delaying one to merge it with others only costs time.
                stream.set_nodelay(true)?;
                // A client whose machine is gone must not keep its place for ever.
                rustix::net::sockopt::set_socket_keepalive(&stream, true)?;
                Ok((stream.into(), Peer::Network(network_of(from.ip()))))
            }
        }
    }
}

/// Identity of a client, for limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Peer {
    User(u32),
    Network(IpAddr),
}

impl Peer {
    /// True for the users with reserved places: root and the server's own user.
    pub(super) fn is_preferred(self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        matches!(self, Self::User(uid) if uid == 0 || uid == own)
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
        match self {
            Self::Unix(listener, _) => listener.as_fd(),
            Self::Tcp(listener) => listener.as_fd(),
        }
    }
}

/// The file of a Unix socket; removed on drop while it is still ours.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // It can only be gone already, which is the goal.
            let _ = remove_named(&self.path);
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

fn bind_unix(path: &Path) -> Result<(UnixListener, SocketFile), NbdError> {
    let failed = |reason: String| NbdError::Listen {
        address: format!("unix:{}", path.display()),
        reason,
    };
    let fails = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => failed(format!("{error}; make its directory first")),
        _ => failed(error.to_string()),
    };
    let address = net::SocketAddr::from_pathname(path)
        .map_err(|error| failed(format!("{error}; a path may have 107 bytes at most")))?;
    // Locked until the server listens: two that start at once must not both find the same dead
    // socket, since the second would remove the first one's new file.
    let (_locked, was_dead) = free_path(path).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => taken(path),
        _ => fails(error),
    })?;
    if was_dead {
        let path = path.display();
        tracing::info!("removing the socket of a server that is gone: {path}");
    }
    let listener = UnixListener::bind_addr(&address).map_err(fails)?;
    let file = SocketFile {
        path: path.to_owned(),
        identity: identity(path),
    };
    Ok((listener, file))
}

/// The error for a path that a file has, which is not a dead server's socket.
fn taken(path: &Path) -> NbdError {
    let path = path.to_owned();
    let found = std::fs::symlink_metadata(&path);
    match found.is_ok_and(|meta| meta.file_type().is_socket()) {
        true => NbdError::InUse { path },
        false => NbdError::NotASocket { path },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked() {
        for good in ["unix:/tmp/x", "tcp:localhost:10809", "tcp:[::1]:10809"] {
            let address: Address = good.parse().unwrap();
            assert_eq!(address.to_string(), good);
        }
        for bad in [
            "",
            "unix:",
            "/tmp/x",
            "tcp:localhost",
            "tcp::1",
            "tcp:host:99999",
            "udp:x:1",
        ] {
            assert!(bad.parse::<Address>().is_err(), "`{bad}` was taken");
        }
    }
}
