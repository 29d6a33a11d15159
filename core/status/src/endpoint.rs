//! The endpoint for metrics: `unix:PATH`, or `tcp:PORT` on the loopback.
//!
//! Must stay true: a port is open to other machines only where such an address is written out. A
//! file that is not a dead endpoint's socket is never replaced. Source: unix(7).

use crate::Status;
use crate::http::Http;
use crate::service::Service;
use sidecore_sys::folder::remove_named;
use sidecore_sys::local_socket;
use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// Address of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// `unix:PATH`
    Unix(PathBuf),
    /// `tcp:PORT` (on 127.0.0.1), `tcp:ADDRESS:PORT`; port 0 takes a free one.
    Tcp(SocketAddr),
}

/// Reasons why there is no endpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// An address that is not valid.
    #[error(
        "`{0}` is no address for metrics; write unix:PATH, tcp:PORT (on the loopback) or \
         tcp:ADDRESS:PORT, with an IP address"
    )]
    Address(String),
    /// A live process has the socket, or another kind of file is there.
    #[error(
        "{} is there already, and is no dead server's socket; give the metrics another path",
        .0.display()
    )]
    Occupied(PathBuf),
    /// The system refused it.
    #[error("cannot offer metrics at {address}: {source}")]
    Listen {
        /// The address.
        address: Address,
        /// The system's error.
        source: io::Error,
    },
}

impl FromStr for Address {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let bad = || EndpointError::Address(text.to_owned());
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(PathBuf::from(path))),
            Some(("tcp", port)) if port.parse::<u16>().is_ok() => {
                let port = port.parse().map_err(|_| bad())?;
                Ok(Self::Tcp((Ipv4Addr::LOCALHOST, port).into()))
            }
            Some(("tcp", rest)) => {
                let (host, port) = rest.rsplit_once(':').ok_or_else(bad)?;
                let port = port.parse().map_err(|_| bad())?;
                // A name may be that of any address, today or tomorrow.
                let address = match host {
                    "localhost" | "" => IpAddr::V4(Ipv4Addr::LOCALHOST),
                    host => {
                        // An IPv6 address stands in brackets, as in a URL (RFC 3986 section 3.2.2).
                        let bare = host.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
                        bare.unwrap_or(host).parse().map_err(|_| bad())?
                    }
                };
                Ok(Self::Tcp((address, port).into()))
            }
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

/// An endpoint, until it is dropped.
#[derive(Debug)]
pub struct Endpoint {
    address: Address,
    _service: Service,
    _file: Option<SocketFile>,
}

impl Endpoint {
    /// Offers the metrics of a server, made anew for each request.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub fn start(address: &Address, status: &Arc<Status>) -> Result<Self, EndpointError> {
        let failed = |source| EndpointError::Listen {
            address: address.clone(),
            source,
        };
        let (listener, bound, file): (OwnedFd, _, _) = match address {
            Address::Unix(path) => {
                let (listener, file) = bind_unix(path)?;
                (listener, address.clone(), Some(file))
            }
            Address::Tcp(address) => {
                let listener = TcpListener::bind(address).map_err(failed)?;
                // The service has one thread, which must never wait in accept(2).
                listener.set_nonblocking(true).map_err(failed)?;
                let bound = listener.local_addr().map_err(failed)?;
                (listener.into(), Address::Tcp(bound), None)
            }
        };
        let service = Service::start("metrics", listener, Http(Arc::clone(status)));
        Ok(Self {
            address: bound,
            _service: service.map_err(failed)?,
            _file: file,
        })
    }

    /// Its address, with the port that was assigned.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }
}

/// A socket's file; removed on drop while it is still ours.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: Option<(u64, u64)>,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Another server may have taken the path over meanwhile.
        if self.identity.is_some() && identity(&self.path) == self.identity {
            // It can only be gone already, which is the goal.
            remove_named(&self.path).ok();
        }
    }
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let meta = std::fs::symlink_metadata(path).ok()?;
    Some((meta.dev(), meta.ino()))
}

fn bind_unix(path: &Path) -> Result<(OwnedFd, SocketFile), EndpointError> {
    let failed = |source| EndpointError::Listen {
        address: Address::Unix(path.to_owned()),
        source,
    };
    // The server may leave its directory before it removes the file.
    let path = &std::path::absolute(path).map_err(failed)?;
    // Open to others by chmod, where this user wants that.
    let listener = local_socket::take_path(path, 0o600, BACKLOG).map_err(|error| {
        if error.kind() == ErrorKind::AddrInUse {
            return EndpointError::Occupied(path.clone());
        }
        failed(error)
    })?;
    let file = SocketFile {
        path: path.clone(),
        identity: identity(path),
    };
    Ok((listener, file))
}

/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;
    use crate::metrics::strict::parse;
    use crate::metrics::{Metric, Unit};
    use serde_json::json;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::Barrier;
    use std::time::Duration;

    fn status() -> Arc<Status> {
        let fields = || json!({"read_bytes": 7});
        Status::new(Kind::Image, "a", fields).with_metrics(|fields| {
            let read = Metric::counter("image_read", "Bytes.").in_unit(Unit::Bytes);
            vec![read.sample(&[("image", "a")], &fields["read_bytes"])]
        })
    }

    fn get(mut stream: impl Read + Write) -> String {
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    #[test]
    fn addresses_are_of_the_loopback_unless_written_out() {
        for (text, shown) in [
            ("tcp:9100", "tcp:127.0.0.1:9100"),
            ("tcp:localhost:9100", "tcp:127.0.0.1:9100"),
            ("tcp:[::1]:1", "tcp:[::1]:1"),
            ("tcp:0.0.0.0:1", "tcp:0.0.0.0:1"),
            ("unix:a.sock", "unix:a.sock"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            "tcp:",
            "tcp:example.org:1",
            "tcp:1.2.3.4",
            "unix:",
            "udp:1",
            "tcp:99999",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_scrape_is_made_anew_and_slow_readers_cost_nothing() {
        let address = "tcp:0".parse().unwrap();
        let endpoint = Endpoint::start(&address, &status()).unwrap();
        let Address::Tcp(at) = *endpoint.address() else {
            panic!("a port")
        };
        assert!(at.ip().is_loopback() && at.port() != 0);
        let silent: Vec<_> = (0..30).map(|_| TcpStream::connect(at).unwrap()).collect();
        for _ in 0..3 {
            let samples = parse(&get(TcpStream::connect(at).unwrap())).unwrap();
            assert!(samples.iter().any(|(name, _, value)| {
                name == "sidecore_image_read_bytes_total" && *value == 7.0
            }));
        }
        drop((silent, endpoint));
        // The thread ends soon.
        while TcpStream::connect(at).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn of_two_that_start_at_once_one_gets_a_dead_socket() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.sock");
        for _ in 0..1000 {
            drop(UnixListener::bind(&path).unwrap());
            let both = Barrier::new(2);
            let start = || {
                both.wait();
                bind_unix(&path)
            };
            let started = std::thread::scope(|scope| {
                let other = scope.spawn(start);
                [start(), other.join().unwrap()]
            });
            let (winners, others): (Vec<_>, Vec<_>) =
                started.iter().partition(|started| started.is_ok());
            assert_eq!(winners.len(), 1, "{started:?}");
            assert!(matches!(others[0], Err(EndpointError::Occupied(_))));
            let (_, file) = winners[0].as_ref().unwrap();
            assert_eq!(identity(&path), file.identity);
            UnixStream::connect(&path).unwrap();
        }
        assert!(!path.exists());
    }

    #[test]
    fn a_dead_socket_is_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.sock");
        let address = Address::Unix(path.clone());
        drop(UnixListener::bind(&path).unwrap());
        let endpoint = Endpoint::start(&address, &status()).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        parse(&get(UnixStream::connect(&path).unwrap())).unwrap();
        let second = Endpoint::start(&address, &status());
        assert!(
            matches!(second, Err(EndpointError::Occupied(_))),
            "{second:?}"
        );
        drop(endpoint);
        assert!(!path.exists());
        std::fs::write(&path, "text").unwrap();
        let error = Endpoint::start(&address, &status()).unwrap_err();
        assert!(error.to_string().contains("another path"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "text");
    }
}
