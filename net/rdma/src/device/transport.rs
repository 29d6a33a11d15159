//! Streams of a device: kernel sockets under an epoll instance, or sessions of an attachment.
//!
//! Must stay true: a session has at most its share of the attachment's chunks with the engine, so
//! that a peer that does not read leaves some for the others.

use crate::Options;
use crate::RdmaError;
use crate::stream::{Session, failed};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use sidecore_net::sock::client::{Client, ClientOptions, Socket, status};
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

/// Events that one poll takes.
const EVENTS_MAX: usize = 64;
/// Chunks of 16 KiB, each way, of an attachment.
const CHUNKS: u32 = 1024;
/// Least number of chunks that a session may have with the engine.
const CHUNKS_MIN: u32 = 2;
/// The longest unit on the stack: the size of a chunk.
const CHUNK_BYTES: usize = 16 << 10;
/// The first dynamic port.
const PORT_MIN: u16 = 49_152;
/// Ports that are tried before listening fails.
const PORTS_MAX: u16 = 256;
/// Flag in a listener's event data, in addition to its number.
const IS_LISTENER: u64 = 1 << 32;
/// Event data of the owner's descriptors.
const WATCHED: u64 = 1 << 33;

/// Transports for a device's streams.
#[derive(Debug)]
#[non_exhaustive]
pub enum Transport {
    /// The kernel's TCP sockets.
    Kernel,
    /// The stack whose engine listens at this path.
    Stack(PathBuf),
    /// An existing attachment.
    Attached(Box<Client>),
}

impl Transport {
    /// The stack at the path in the environment's `SIDECORE_RDMA_SOCKET`; the kernel if it is not
    /// set.
    #[must_use]
    pub fn from_environment() -> Self {
        match std::env::var_os("SIDECORE_RDMA_SOCKET") {
            Some(path) if !path.is_empty() => Self::Stack(path.into()),
            _ => Self::Kernel,
        }
    }

    /// Addresses of the stack that an engine at a path has; none of the kernel, whose interfaces
    /// the caller can list, and of an attachment. Blocks for a round trip to the engine.
    ///
    /// # Errors
    /// The engine does not answer.
    pub fn addresses(&self) -> Result<Vec<IpAddr>, RdmaError> {
        match self {
            Self::Stack(path) => Ok(addresses_in(&status(path)?)),
            Self::Kernel | Self::Attached(_) => Ok(Vec::new()),
        }
    }
}

/// Addresses in an engine's status: a list of texts like "10.0.0.1/24".
fn addresses_in(status: &str) -> Vec<IpAddr> {
    let list = status.split_once("\"addresses\"").map(|found| found.1);
    let list = list.and_then(|rest| Some(rest.split_once('[')?.1.split_once(']')?.0));
    // Every second part is between quotes.
    let texts = list.unwrap_or_default().split('"').skip(1).step_by(2);
    texts
        .filter_map(|text| text.split('/').next()?.parse().ok())
        .collect()
}

/// A connection's stream.
#[derive(Debug)]
pub(super) enum Wire {
    /// A kernel socket; true while it is being opened.
    Kernel(TcpStream, bool),
    Stack(Socket),
}

/// A connection or listener that can make progress; or a descriptor of the owner.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ready {
    Link(u32),
    Listener(u32),
    Watched,
}

/// As the data of an event of epoll.
impl From<Ready> for EventData {
    fn from(ready: Ready) -> Self {
        Self::new_u64(match ready {
            Ready::Link(index) => index.into(),
            Ready::Listener(index) => IS_LISTENER | u64::from(index),
            Ready::Watched => WATCHED,
        })
    }
}

impl From<u64> for Ready {
    fn from(data: u64) -> Self {
        if data == WATCHED {
            return Self::Watched;
        }
        // The lower half is the number.
        let index = data as u32;
        if data & IS_LISTENER == 0 {
            Self::Link(index)
        } else {
            Self::Listener(index)
        }
    }
}

#[derive(Debug)]
pub(super) enum Net {
    Kernel {
        epoll: OwnedFd,
        listeners: HashMap<u32, TcpListener>,
    },
    Stack {
        client: Box<Client>,
        epoll: OwnedFd,
        is_armed: bool,
        links: HashMap<Socket, Ready>,
        listeners: HashMap<u32, Socket>,
        peers: HashMap<Socket, SocketAddr>,
        /// Listeners to poll again.
        again: Vec<u32>,
    },
}

impl Net {
    pub(super) fn open(transport: Transport) -> Result<Self, RdmaError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        let client = match transport {
            Transport::Kernel => {
                return Ok(Self::Kernel {
                    epoll,
                    listeners: HashMap::new(),
                });
            }
            Transport::Stack(path) => {
                let options = ClientOptions {
                    chunks: CHUNKS,
                    waits_for_others: true,
                    ..ClientOptions::default()
                };
                Box::new(Client::attach(&path, &options)?)
            }
            Transport::Attached(client) => client,
        };
        // One descriptor for its owner to wait for, as with the kernel's sockets.
        for descriptor in client.descriptors().into_iter().flatten() {
            let events = EventFlags::IN | EventFlags::RDHUP;
            epoll::add(&epoll, descriptor, EventData::new_u64(0), events)
                .map_err(io::Error::from)?;
        }
        Ok(Self::Stack {
            client,
            epoll,
            is_armed: false,
            links: HashMap::new(),
            listeners: HashMap::new(),
            peers: HashMap::new(),
            again: Vec::new(),
        })
    }

    pub(super) fn is_stack(&self) -> bool {
        matches!(self, Self::Stack { .. })
    }

    /// Options adapted to the transport: on the stack a unit fits into a chunk.
    pub(super) fn fitted(&self, mut options: Options) -> Options {
        if self.is_stack() {
            options.segment_bytes = options.segment_bytes.min(CHUNK_BYTES);
        }
        options
    }

    pub(super) fn listen(
        &mut self,
        index: u32,
        local: SocketAddr,
        backlog: u16,
    ) -> Result<(), RdmaError> {
        match self {
            Self::Kernel { .. } => {
                let socket = kernel_socket(local)?;
                // A server that starts again must not wait for its old connections' TIME-WAIT.
                sockopt::set_socket_reuseaddr(&socket, true).map_err(io::Error::from)?;
                rustix::net::bind(&socket, &local).map_err(io::Error::from)?;
                self.listen_at(index, socket, backlog)?;
            }
            Self::Stack {
                client,
                links,
                listeners,
                ..
            } => {
                let socket = listen_on_stack(client, local, backlog.into())?;
                links.insert(socket, Ready::Listener(index));
                listeners.insert(index, socket);
            }
        }
        Ok(())
    }

    /// Listens at a socket of the kernel that is bound and does not block.
    pub(super) fn listen_at(
        &mut self,
        index: u32,
        socket: OwnedFd,
        backlog: u16,
    ) -> Result<(), RdmaError> {
        let Self::Kernel { epoll, listeners } = self else {
            return Err(io::Error::from(io::ErrorKind::Unsupported).into());
        };
        rustix::net::listen(&socket, backlog.into()).map_err(io::Error::from)?;
        let data = Ready::Listener(index).into();
        epoll::add(&*epoll, &socket, data, EventFlags::IN).map_err(io::Error::from)?;
        listeners.insert(index, TcpListener::from(socket));
        Ok(())
    }

    pub(super) fn listener_address(&self, index: u32) -> Option<SocketAddr> {
        match self {
            Self::Kernel { listeners, .. } => listeners.get(&index)?.local_addr().ok(),
            Self::Stack {
                client, listeners, ..
            } => client.local(*listeners.get(&index)?),
        }
    }

    pub(super) fn close_listener(&mut self, index: u32) {
        match self {
            // Closing it removes it from the epoll instance.
            Self::Kernel { listeners, .. } => drop(listeners.remove(&index)),
            Self::Stack {
                client,
                links,
                listeners,
                ..
            } => {
                if let Some(socket) = listeners.remove(&index) {
                    links.remove(&socket);
                    client.close(socket).ok();
                }
            }
        }
    }

    /// Stops or resumes accepting connections of a listener, depending on free places.
    pub(super) fn rest(&mut self, index: u32, rests: bool) {
        match self {
            Self::Kernel { epoll, listeners } => {
                if let Some(listener) = listeners.get(&index) {
                    // Level-triggered events of connections that are not accepted would keep a
                    // waiting thread awake.
                    let data = Ready::Listener(index).into();
                    let events = if rests {
                        EventFlags::empty()
                    } else {
                        EventFlags::IN
                    };
                    epoll::modify(epoll, listener, data, events).ok();
                }
            }
            Self::Stack { again, .. } if rests => again.push(index),
            Self::Stack { .. } => {}
        }
    }

    /// A listener may have more connections.
    pub(super) fn has_more(&mut self, index: u32) {
        // The kernel's epoll is level-triggered and reports them again.
        if let Self::Stack { again, .. } = self {
            again.push(index);
        }
    }

    pub(super) fn accept(&mut self, listener: u32, index: u32) -> Option<Wire> {
        match self {
            Self::Kernel { epoll, listeners } => {
                let (stream, _) = listeners.get(&listener)?.accept().ok()?;
                stream.set_nonblocking(true).ok()?;
                // Small messages must not wait for acknowledgments of earlier ones.
                stream.set_nodelay(true).ok()?;
                let data = Ready::Link(index).into();
                epoll::add(epoll, &stream, data, EventFlags::IN).ok()?;
                Some(Wire::Kernel(stream, false))
            }
            Self::Stack {
                client,
                links,
                listeners,
                peers,
                ..
            } => {
                let (socket, peer) = client.accept(*listeners.get(&listener)?)?;
                links.insert(socket, Ready::Link(index));
                peers.insert(socket, peer);
                Some(Wire::Stack(socket))
            }
        }
    }

    pub(super) fn connect(
        &mut self,
        index: u32,
        peer: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<Wire, RdmaError> {
        match self {
            Self::Kernel { epoll, .. } => {
                let socket = kernel_socket(peer)?;
                sockopt::set_tcp_nodelay(&socket, true).map_err(io::Error::from)?;
                if let Some(local) = local {
                    sockopt::set_socket_reuseaddr(&socket, true).map_err(io::Error::from)?;
                    rustix::net::bind(&socket, &local).map_err(io::Error::from)?;
                }
                // Non-blocking: the outcome is an event, a socket that becomes writable.
                match rustix::net::connect(&socket, &peer) {
                    Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
                    Err(error) => return Err(io::Error::from(error).into()),
                }
                let data = Ready::Link(index).into();
                let events = EventFlags::IN | EventFlags::OUT;
                epoll::add(epoll, &socket, data, events).map_err(io::Error::from)?;
                Ok(Wire::Kernel(TcpStream::from(socket), true))
            }
            Self::Stack {
                client,
                links,
                peers,
                ..
            } => {
                let port = local.map_or(0, |local| local.port());
                let socket = client.connect_from(port, peer).map_err(failed)?;
                links.insert(socket, Ready::Link(index));
                peers.insert(socket, peer);
                Ok(Wire::Stack(socket))
            }
        }
    }

    pub(super) fn addresses(&self, wire: &Wire) -> Option<(SocketAddr, SocketAddr)> {
        match (self, wire) {
            (_, Wire::Kernel(stream, _)) => {
                Some((stream.local_addr().ok()?, stream.peer_addr().ok()?))
            }
            (Self::Stack { client, peers, .. }, Wire::Stack(socket)) => {
                Some((client.local(*socket)?, *peers.get(socket)?))
            }
            _ => None,
        }
    }

    pub(super) fn close(&mut self, wire: Wire) {
        if let (
            Self::Stack {
                client,
                links,
                peers,
                ..
            },
            Wire::Stack(socket),
        ) = (self, wire)
        {
            links.remove(&socket);
            peers.remove(&socket);
            client.close(socket).ok();
        }
    }

    pub(super) fn session(&mut self, socket: Socket) -> Option<Session<'_>> {
        match self {
            Self::Kernel { .. } => None,
            Self::Stack { client, links, .. } => {
                // Listeners are among them, and one is kept for the connection to come.
                let sessions = u32::try_from(links.len() + 1).unwrap_or(u32::MAX);
                let share = CHUNKS / sessions;
                Some(Session {
                    client,
                    socket,
                    chunks_max: share.max(CHUNKS_MIN),
                })
            }
        }
    }

    /// Registers the events that a connection waits for with the kernel.
    pub(super) fn set_interest(&mut self, index: u32, wire: &Wire, wanted: EventFlags, over: bool) {
        let (Self::Kernel { epoll, .. }, Wire::Kernel(stream, _)) = (self, wire) else {
            return;
        };
        let data = Ready::Link(index).into();
        // A connection that has ended would be reported as hung up for ever.
        if wanted.is_empty() && over {
            epoll::delete(&*epoll, stream).ok();
        } else if epoll::modify(&*epoll, stream, data, wanted).is_err() {
            epoll::add(&*epoll, stream, data, wanted).ok();
        }
    }

    /// Collects connections and listeners that can make progress.
    pub(super) fn poll(&mut self, ready: &mut Vec<Ready>) -> Result<(), RdmaError> {
        match self {
            Self::Kernel { epoll, .. } => {
                let mut events = [epoll::Event {
                    flags: EventFlags::empty(),
                    data: EventData::new_u64(0),
                }; EVENTS_MAX];
                let none = Timespec::default();
                let count = match epoll::wait(&*epoll, &mut events[..], Some(&none)) {
                    Ok(count) => count,
                    Err(rustix::io::Errno::INTR) => 0,
                    Err(error) => return Err(io::Error::from(error).into()),
                };
                ready.extend(
                    events[..count]
                        .iter()
                        .map(|event| Ready::from(event.data.u64())),
                );
            }
            Self::Stack {
                client,
                is_armed,
                links,
                again,
                ..
            } => {
                // Otherwise the engine would send wake-ups to a thread that polls.
                if std::mem::take(is_armed) {
                    client.cancel_sleep();
                    if client.is_lost() {
                        return Err(failed(sidecore_net::sock::client::ClientError::Lost).into());
                    }
                }
                client.poll(Duration::ZERO).map_err(failed)?;
                while let Some(socket) = client.next_ready() {
                    ready.extend(links.get(&socket));
                }
                ready.extend(again.drain(..).map(Ready::Listener));
            }
        }
        Ok(())
    }

    pub(super) fn watch(&self, descriptor: BorrowedFd<'_>) -> Result<(), RdmaError> {
        let Self::Kernel { epoll, .. } = self else {
            return Err(io::Error::from(io::ErrorKind::Unsupported).into());
        };
        let data = Ready::Watched.into();
        epoll::add(epoll, descriptor, data, EventFlags::IN).map_err(io::Error::from)?;
        Ok(())
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Kernel { epoll, .. } => Some(epoll.as_fd()),
            Self::Stack { client, epoll, .. } => client.descriptors().map(|_| epoll.as_fd()),
        }
    }

    /// True if none can make progress, and the descriptor will report the next one.
    pub(super) fn arm(&mut self) -> Result<bool, RdmaError> {
        match self {
            // epoll is level-triggered: nothing that is ready now is missed.
            Self::Kernel { .. } => Ok(true),
            Self::Stack {
                client, is_armed, ..
            } => {
                *is_armed = true;
                Ok(client.announce_sleep().map_err(failed)?)
            }
        }
    }

    /// Waits for the descriptor.
    pub(super) fn wait(&mut self, timeout: Duration) -> Result<(), RdmaError> {
        if let Some(descriptor) = self.descriptor() {
            let timeout = Timespec {
                tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: timeout.subsec_nanos().into(),
            };
            let mut places = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
            return match poll(&mut places, Some(&timeout)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
                Err(error) => Err(io::Error::from(error).into()),
            };
        }
        match self {
            Self::Stack { client, .. } => client
                .poll(timeout)
                .map(drop)
                .map_err(|error| failed(error).into()),
            Self::Kernel { .. } => Ok(()),
        }
    }
}

/// Listens on the stack, which assigns ports only for connecting: port 0 becomes one of the dynamic
/// ports (RFC 6335), starting at one that differs between processes.
fn listen_on_stack(
    client: &mut Client,
    local: SocketAddr,
    backlog: u32,
) -> Result<Socket, RdmaError> {
    if local.port() != 0 {
        return Ok(client.listen(local, backlog).map_err(failed)?);
    }
    // The low bits differ most between processes that start one after the other.
    let first = std::process::id() as u16;
    let mut outcome = Err(RdmaError::TooMany("tries of a port", PORTS_MAX.into()));
    for step in 0..PORTS_MAX {
        let port = PORT_MIN + first.wrapping_mul(7).wrapping_add(step) % (u16::MAX - PORT_MIN);
        match client.listen(SocketAddr::new(local.ip(), port), backlog) {
            Ok(socket) => return Ok(socket),
            Err(error) => outcome = Err(failed(error).into()),
        }
    }
    outcome
}

fn kernel_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() {
        AddressFamily::INET
    } else {
        AddressFamily::INET6
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(
        family,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_names_the_addresses_of_its_stack() {
        let four: IpAddr = "10.0.0.1".parse().unwrap();
        let six: IpAddr = "fd00::1".parse().unwrap();
        for (status, addresses) in [
            (
                r#"{"addresses":["10.0.0.1/24","fd00::1/64"]}"#,
                vec![four, six],
            ),
            (
                r#"{"a": 1, "addresses": [ "10.0.0.1/24" ], "b": ["x"]}"#,
                vec![four],
            ),
            (r#"{"addresses": ["nonsense", "10.0.0.1"]}"#, vec![four]),
            (r#"{"addresses": ["10.0.0.1"#, vec![]),
            (r#"{"addresses": []}"#, vec![]),
            ("", vec![]),
        ] {
            assert_eq!(addresses_in(status), addresses, "{status}");
        }
    }
}
