//! The place at which the page is served: a port of the loopback, or a local socket.
//!
//! Must stay true: no address that another machine can reach; a local socket belongs to its owner
//! alone, and its path is walked by descriptors.

use sidecore_attach::{ListenError, ServerSocket};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::str::FromStr;

/// Address of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A port of the loopback; port 0 lets the system choose one.
    Loopback(SocketAddr),
    /// A local socket, for its owner and root.
    Socket(PathBuf),
}

impl Default for Address {
    /// Port 0 of 127.0.0.1.
    fn default() -> Self {
        Self::Loopback(SocketAddr::from(([127, 0, 0, 1], 0)))
    }
}

impl FromStr for Address {
    type Err = UiError;

    fn from_str(text: &str) -> Result<Self, UiError> {
        if let Some(path) = text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
            return Ok(Self::Socket(path.into()));
        }
        let text = text.strip_prefix("tcp:").unwrap_or(text);
        let named = text
            .strip_prefix("localhost:")
            .map(|port| format!("127.0.0.1:{port}"));
        let address: SocketAddr = match named.as_deref().unwrap_or(text).parse() {
            Ok(address) => address,
            Err(_) => return Err(UiError::Form(text.to_owned())),
        };
        match address.ip() {
            IpAddr::V4(ip) if ip.is_loopback() => Ok(Self::Loopback(address)),
            IpAddr::V6(ip) if ip.is_loopback() => Ok(Self::Loopback(address)),
            _ => Err(UiError::Reachable(address)),
        }
    }
}

/// Reasons why there is no page, or no [`Address`] of one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UiError {
    /// A text that has neither form of an address.
    #[error("`{0}` is neither unix:PATH nor 127.0.0.1:PORT")]
    Form(String),
    /// An address that other machines reach.
    #[error(
        "{0} is not on the loopback; listen on 127.0.0.1 and reach it from elsewhere by \
         `ssh -L PORT:127.0.0.1:PORT HOST`"
    )]
    Reachable(SocketAddr),
    /// The port cannot be taken.
    #[error("cannot listen on {address}: {source}; port 0 is a free one")]
    Port {
        /// As it was asked for.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The socket cannot be taken.
    #[error("cannot listen on {path}: {source}")]
    Socket {
        /// As it was asked for.
        path: PathBuf,
        /// The reason.
        source: ListenError,
    },
    /// A thread, the token or the event loop is refused.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// A listening socket; a local one's file goes with it.
#[derive(Debug)]
pub(crate) enum Listener {
    Loopback(TcpListener),
    Socket(UnixListener, ServerSocket),
}

impl Listener {
    pub(crate) fn bind(address: &Address) -> Result<Self, UiError> {
        match address {
            Address::Loopback(address) => {
                let listener = TcpListener::bind(address).map_err(|source| UiError::Port {
                    address: *address,
                    source,
                })?;
                listener.set_nonblocking(true)?;
                Ok(Self::Loopback(listener))
            }
            Address::Socket(path) => {
                let socket = ServerSocket::take_stream(path).map_err(|source| UiError::Socket {
                    path: path.clone(),
                    source,
                })?;
                // A second descriptor: the socket keeps its own, and removes the file in the end.
                let listener = UnixListener::from(socket.listener().try_clone_to_owned()?);
                listener.set_nonblocking(true)?;
                Ok(Self::Socket(listener, socket))
            }
        }
    }

    /// Its address, with the port that was chosen.
    pub(crate) fn address(&self) -> std::io::Result<Address> {
        match self {
            Self::Loopback(listener) => Ok(Address::Loopback(listener.local_addr()?)),
            Self::Socket(_, socket) => Ok(Address::Socket(socket.path().to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_loopback_and_local_sockets_are_addresses() {
        for (text, port) in [
            ("127.0.0.1:0", 0),
            ("tcp:127.0.0.1:80", 80),
            ("localhost:8080", 8080),
            ("127.9.9.9:1", 1),
            ("[::1]:7", 7),
        ] {
            match text.parse() {
                Ok(Address::Loopback(address)) => assert_eq!(address.port(), port, "{text}"),
                other => panic!("{text}: {other:?}"),
            }
        }
        assert_eq!(
            "unix:/a b".parse::<Address>().unwrap(),
            Address::Socket("/a b".into())
        );
        for text in [
            "0.0.0.0:80",
            "[::]:80",
            "192.0.2.1:80",
            "[::ffff:127.0.0.1]:80",
        ] {
            let refused = text.parse::<Address>().unwrap_err();
            assert!(matches!(refused, UiError::Reachable(_)), "{text}");
        }
        for text in [
            "",
            "unix:",
            "80",
            "127.0.0.1",
            "localhost",
            "example.org:80",
            "localhost:x",
        ] {
            let refused = text.parse::<Address>().unwrap_err();
            assert!(matches!(refused, UiError::Form(_)), "{text}");
        }
    }
}
