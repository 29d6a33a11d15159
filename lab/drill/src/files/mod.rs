//! Sockets under descriptors, as C programs know them, on a stack in virtual time.
//!
//! No call waits: a call that would block returns `EAGAIN` (a connection that is being opened:
//! `EINPROGRESS`), and the driver of the clock tries again. Both the interpreter and the C
//! interface for outside script runners stand on this. Source: POSIX.1-2017 and Linux's manual
//! pages socket(7), tcp(7), connect(2), poll(2) for the errors that each call reports.

mod epoll;
mod errors;
mod option;
mod transfer;

use super::host::Host;
use super::names;
use epoll::Epoll;
pub use errors::Report;
use errors::ZeroCopy;
pub use option::OptionValue;
use option::RequestedOptions;
use sidecore_net_stack::{ListenerId, SessionId, UdpId};
use sidecore_net_stack::{NetError, SessionError};
use sidecore_net_stack::{SessionInfo, SessionState};
use std::fmt;
use std::net::SocketAddr;

/// An error number of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match names::error_name(self.0) {
            Some(name) => write!(f, "{name}"),
            None => write!(f, "error {}", self.0),
        }
    }
}

/// Result of a call, as C programs see it.
pub type Answer<T> = Result<T, Errno>;

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// A TCP socket that neither listens nor was connected.
    Fresh,
    Listener(ListenerId),
    Session(SessionId),
    /// A UDP socket, bound when it is first used.
    Udp(Option<UdpId>),
    /// No socket: an epoll.
    Epoll,
}

#[derive(Debug, Clone)]
struct Socket {
    kind: Kind,
    v6: bool,
    non_blocking: bool,
    bound: Option<SocketAddr>,
    peer: Option<SocketAddr>,
    requested: RequestedOptions,
    /// Of a listener: a session that was taken from the stack for a readiness check.
    next: Option<SessionId>,
    /// Of a UDP socket: a datagram, likewise.
    datagram: Option<(SocketAddr, Vec<u8>)>,
    /// The session's error was reported.
    error_reported: bool,
    /// `connect` has reported the session as open.
    connected: bool,
    shut_read: bool,
    shut_write: bool,
    /// Of an epoll.
    epoll: Option<Box<Epoll>>,
    /// Reports about writes with `MSG_ZEROCOPY`.
    zero_copy: ZeroCopy,
}

impl Socket {
    fn new(kind: Kind, v6: bool, non_blocking: bool) -> Self {
        Self {
            kind,
            v6,
            non_blocking,
            bound: None,
            peer: None,
            requested: RequestedOptions::default(),
            next: None,
            datagram: None,
            error_reported: false,
            connected: false,
            shut_read: false,
            shut_write: false,
            epoll: None,
            zero_copy: ZeroCopy::default(),
        }
    }
}

/// The descriptors of one program.
#[derive(Debug)]
pub struct Files {
    host: Host,
    open: Vec<Option<Socket>>,
}

/// The first descriptor; below it are the three that every program has.
const FIRST: i32 = 3;
/// Descriptors at once.
const OPEN_MAX: usize = 4096;

pub(crate) const fn fail<T>(errno: i32) -> Answer<T> {
    Err(Errno(errno))
}

impl Files {
    /// None open.
    #[must_use]
    pub fn new(host: Host) -> Self {
        Self {
            host,
            open: Vec::new(),
        }
    }

    /// The stack and its clock.
    pub fn host(&mut self) -> &mut Host {
        &mut self.host
    }

    fn index(&self, fd: i32) -> Answer<usize> {
        let index = usize::try_from(i64::from(fd) - i64::from(FIRST)).ok();
        let index = index.filter(|&index| matches!(self.open.get(index), Some(Some(_))));
        index.ok_or(Errno(libc::EBADF))
    }

    fn socket_at(&self, fd: i32) -> Answer<&Socket> {
        let index = self.index(fd)?;
        self.open[index].as_ref().ok_or(Errno(libc::EBADF))
    }

    fn socket_mut(&mut self, fd: i32) -> Answer<&mut Socket> {
        let index = self.index(fd)?;
        self.open[index].as_mut().ok_or(Errno(libc::EBADF))
    }

    /// The lowest free descriptor, as POSIX has it.
    fn insert(&mut self, socket: Socket) -> Answer<i32> {
        let free = self.open.iter().position(Option::is_none);
        let index = free.unwrap_or(self.open.len());
        if index >= OPEN_MAX {
            return fail(libc::EMFILE);
        }
        if index == self.open.len() {
            self.open.push(None);
        }
        self.open[index] = Some(socket);
        Ok(index as i32 + FIRST)
    }

    /// socket(2).
    ///
    /// # Errors
    /// `EAFNOSUPPORT`, `EPROTONOSUPPORT`, `EMFILE`.
    pub fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Answer<i32> {
        let v6 = match domain {
            libc::AF_INET => false,
            libc::AF_INET6 => true,
            _ => return fail(libc::EAFNOSUPPORT),
        };
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let udp = match (kind & !flags, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => false,
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => true,
            _ => return fail(libc::EPROTONOSUPPORT),
        };
        let non_blocking = kind & libc::SOCK_NONBLOCK != 0;
        let kind = if udp { Kind::Udp(None) } else { Kind::Fresh };
        let mut socket = Socket::new(kind, v6, non_blocking);
        socket.requested.send_bytes = self.host.send_memory;
        self.insert(socket)
    }

    /// bind(2).
    ///
    /// # Errors
    /// `EINVAL` if it is bound, `EADDRNOTAVAIL`, `EADDRINUSE`.
    pub fn bind(&mut self, fd: i32, address: SocketAddr) -> Answer<()> {
        let socket = self.socket_at(fd)?;
        if socket.bound.is_some() || !matches!(socket.kind, Kind::Fresh | Kind::Udp(None)) {
            return fail(libc::EINVAL);
        }
        let mut bound = address;
        let mut kind = socket.kind;
        if matches!(kind, Kind::Udp(None)) {
            let udp = self.host.stack().bind_udp(address).map_err(errno)?;
            bound = self.host.stack().udp_address(udp).map_err(errno)?;
            kind = Kind::Udp(Some(udp));
        } else if !address.ip().is_unspecified() {
            let own = self.host.stack().networks().own;
            if !own.iter().any(|(ours, _)| *ours == address.ip()) {
                return fail(libc::EADDRNOTAVAIL);
            }
        }
        let socket = self.socket_mut(fd)?;
        socket.bound = Some(bound);
        socket.kind = kind;
        Ok(())
    }

    /// listen(2).
    ///
    /// # Errors
    /// `EINVAL` if it is not bound or connected, `EADDRINUSE`, `EOPNOTSUPP`.
    pub fn listen(&mut self, fd: i32, backlog: i32) -> Answer<()> {
        let socket = self.socket_at(fd)?;
        match (socket.kind, socket.bound) {
            (Kind::Listener(_), _) => Ok(()),
            (Kind::Fresh, Some(address)) => {
                let backlog = usize::try_from(backlog).unwrap_or(0);
                let listener = self.host.stack().listen(address, backlog).map_err(errno)?;
                let socket = self.socket_mut(fd)?;
                socket.kind = Kind::Listener(listener);
                let requested = socket.requested.clone();
                requested.apply_to_listener(self.host.stack(), listener)
            }
            (Kind::Udp(_), _) => fail(libc::EOPNOTSUPP),
            (Kind::Epoll, _) => fail(libc::ENOTSOCK),
            _ => fail(libc::EINVAL),
        }
    }

    /// accept4(2): the new descriptor, and the peer's address.
    ///
    /// # Errors
    /// `EAGAIN` while there is none, `EINVAL` if it does not listen, `EMFILE`.
    pub fn accept(&mut self, fd: i32, flags: i32) -> Answer<(i32, SocketAddr)> {
        let socket = self.socket_mut(fd)?;
        let Kind::Listener(listener) = socket.kind else {
            return fail(libc::EINVAL);
        };
        let next = socket.next.take();
        let mut accepted = socket.clone();
        let session = match next {
            Some(next) => next,
            None => {
                let next = self.host.stack().accept(listener).map_err(errno)?;
                next.ok_or(Errno(libc::EAGAIN))?
            }
        };
        let (local, peer) = self.host.stack().addresses(session).map_err(errno)?;
        accepted.kind = Kind::Session(session);
        accepted.bound = Some(local);
        accepted.peer = Some(peer);
        accepted.connected = true;
        accepted.non_blocking = flags & libc::SOCK_NONBLOCK != 0;
        let requested = accepted.requested.clone();
        let fd = self.insert(accepted)?;
        // Options are inherited from the listener, as Linux has it.
        requested.apply(self.host.stack(), session)?;
        self.host.flush();
        Ok((fd, peer))
    }

    /// connect(2). It never waits: a TCP socket's first call is `EINPROGRESS`, a later one returns
    /// the outcome; [`Files::connection`] returns it without a call.
    ///
    /// # Errors
    /// `EINPROGRESS`, `EALREADY`, `EISCONN`, and why it failed.
    pub fn connect(&mut self, fd: i32, address: SocketAddr) -> Answer<()> {
        let socket = self.socket_at(fd)?;
        let (bound, connected) = (socket.bound, socket.connected);
        match socket.kind {
            Kind::Fresh => {
                let requested = socket.requested.clone();
                let session = self.host.stack().connect(address, bound).map_err(errno)?;
                requested.apply(self.host.stack(), session)?;
                let (local, peer) = self.host.stack().addresses(session).map_err(errno)?;
                let socket = self.socket_mut(fd)?;
                socket.kind = Kind::Session(session);
                socket.bound = Some(local);
                socket.peer = Some(peer);
                self.host.flush();
                fail(libc::EINPROGRESS)
            }
            Kind::Session(_) => match self.connection(fd) {
                Ok(()) if connected => fail(libc::EISCONN),
                Err(Errno(libc::EINPROGRESS)) => fail(libc::EALREADY),
                other => other,
            },
            Kind::Udp(_) => {
                self.udp(fd)?;
                self.socket_mut(fd)?.peer = Some(address);
                Ok(())
            }
            Kind::Listener(_) => fail(libc::EISCONN),
            Kind::Epoll => fail(libc::ENOTSOCK),
        }
    }

    /// Progress of a connection that was begun: open, `EINPROGRESS`, or its error, reported once.
    ///
    /// # Errors
    /// See above.
    pub fn connection(&mut self, fd: i32) -> Answer<()> {
        if let Some(error) = self.take_error(fd)? {
            return Err(error);
        }
        match self.info(fd)?.state {
            SessionState::SynSent | SessionState::SynReceived => fail(libc::EINPROGRESS),
            SessionState::Closed => fail(libc::ECONNABORTED),
            _ => {
                self.socket_mut(fd)?.connected = true;
                Ok(())
            }
        }
    }

    /// close(2).
    ///
    /// # Errors
    /// `EBADF`.
    pub fn close(&mut self, fd: i32) -> Answer<()> {
        let index = self.index(fd)?;
        let Some(socket) = self.open[index].take() else {
            return fail(libc::EBADF);
        };
        let stack = self.host.stack();
        let done = match socket.kind {
            Kind::Session(id) if socket.requested.resets() => stack.abort(id),
            Kind::Session(id) => stack.close(id),
            Kind::Listener(id) => {
                let next = socket.next.map_or(Ok(()), |next| stack.abort(next));
                next.and(stack.close_listener(id))
            }
            Kind::Udp(Some(id)) => stack.close_udp(id),
            Kind::Fresh | Kind::Udp(None) | Kind::Epoll => Ok(()),
        };
        self.leave_epolls(fd);
        self.host.flush();
        done.map_err(errno)
    }

    /// shutdown(2).
    ///
    /// # Errors
    /// `ENOTCONN`, `EINVAL`.
    pub fn shutdown(&mut self, fd: i32, how: i32) -> Answer<()> {
        if !(libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
            return fail(libc::EINVAL);
        }
        let Kind::Session(id) = self.socket_at(fd)?.kind else {
            return fail(libc::ENOTCONN);
        };
        if self.info(fd)?.state == SessionState::Closed {
            return fail(libc::ENOTCONN);
        }
        if how != libc::SHUT_WR {
            self.socket_mut(fd)?.shut_read = true;
            self.host.stack().shutdown_read(id).map_err(errno)?;
        }
        if how != libc::SHUT_RD {
            self.socket_mut(fd)?.shut_write = true;
            self.host.stack().shutdown_write(id).map_err(errno)?;
        }
        self.host.flush();
        Ok(())
    }

    /// True if the descriptor is in non-blocking mode (fcntl(2), `O_NONBLOCK`); waiting is the
    /// caller's part.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn is_non_blocking(&self, fd: i32) -> Answer<bool> {
        Ok(self.socket_at(fd)?.non_blocking)
    }

    /// See [`Files::is_non_blocking`].
    ///
    /// # Errors
    /// `EBADF`.
    pub fn set_non_blocking(&mut self, fd: i32, on: bool) -> Answer<()> {
        self.socket_mut(fd)?.non_blocking = on;
        Ok(())
    }

    /// The socket's own address, and its peer's.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn addresses(&self, fd: i32) -> Answer<(Option<SocketAddr>, Option<SocketAddr>)> {
        let socket = self.socket_at(fd)?;
        Ok((socket.bound, socket.peer))
    }

    /// True for a socket of family `AF_INET6`.
    ///
    /// # Errors
    /// `EBADF`.
    pub fn is_v6(&self, fd: i32) -> Answer<bool> {
        Ok(self.socket_at(fd)?.v6)
    }

    /// State of a descriptor's session.
    ///
    /// # Errors
    /// `ENOTCONN` if it has none.
    pub fn info(&mut self, fd: i32) -> Answer<SessionInfo> {
        match self.socket_at(fd)?.kind {
            Kind::Session(id) => self.host.stack().info(id).map_err(errno),
            _ => fail(libc::ENOTCONN),
        }
    }

    /// The error that a session ended with, the first time.
    fn take_error(&mut self, fd: i32) -> Answer<Option<Errno>> {
        let socket = self.socket_at(fd)?;
        let Kind::Session(id) = socket.kind else {
            return Ok(None);
        };
        if socket.error_reported {
            return Ok(None);
        }
        let error = self.host.stack().readiness(id).map_err(errno)?.error;
        let Some(error) = error else { return Ok(None) };
        self.socket_mut(fd)?.error_reported = true;
        Ok(Some(Errno(session_errno(error))))
    }
}

/// The `errno` value of a stack error.
pub(crate) fn errno(error: NetError) -> Errno {
    Errno(match error {
        NetError::AddressInUse(_) => libc::EADDRINUSE,
        NetError::AddressNotOurs(_) | NetError::NoPort(_) => libc::EADDRNOTAVAIL,
        NetError::NoRoute(_) => libc::ENETUNREACH,
        NetError::Sessions(_) | NetError::QueueFull => libc::ENOBUFS,
        NetError::Memory(_) => libc::ENOMEM,
        NetError::Gone => libc::EBADF,
        NetError::NotConnected => libc::ENOTCONN,
        NetError::ShutDown => libc::EPIPE,
        NetError::TooLong { .. } => libc::EMSGSIZE,
        NetError::Ended(error) => session_errno(error),
        _ => libc::EINVAL,
    })
}

fn session_errno(error: SessionError) -> i32 {
    match error {
        SessionError::Refused => libc::ECONNREFUSED,
        SessionError::Reset => libc::ECONNRESET,
        SessionError::Aborted => libc::ECONNABORTED,
        SessionError::TimedOut => libc::ETIMEDOUT,
        SessionError::NetworkUnreachable => libc::ENETUNREACH,
        SessionError::Prohibited => libc::EACCES,
        SessionError::NoProtocol => libc::ENOPROTOOPT,
        _ => libc::EHOSTUNREACH,
    }
}

impl Files {
    /// Which of poll(2)'s events hold now, of `wanted` and those that are always reported.
    ///
    /// # Errors
    /// `EBADF`; poll(2) itself tells that by `POLLNVAL`.
    pub fn poll(&mut self, fd: i32, wanted: i16) -> Answer<i16> {
        let socket = self.socket_at(fd)?;
        let both = socket.shut_read && socket.shut_write;
        let (kind, error_reported) = (socket.kind, socket.error_reported);
        let mut events = 0;
        match kind {
            Kind::Fresh => events |= libc::POLLOUT | libc::POLLHUP,
            Kind::Listener(id) => {
                // The stack tells whether there is one by handing it over; it is kept for accept.
                if self.socket_at(fd)?.next.is_none() {
                    let next = self.host.stack().accept(id).map_err(errno)?;
                    self.socket_mut(fd)?.next = next;
                }
                if self.socket_at(fd)?.next.is_some() {
                    events |= libc::POLLIN;
                }
            }
            Kind::Session(id) => {
                let readiness = self.host.stack().readiness(id).map_err(errno)?;
                if readiness.readable {
                    events |= libc::POLLIN;
                }
                if readiness.end_of_input() {
                    events |= libc::POLLRDHUP;
                }
                if readiness.writable || both {
                    events |= libc::POLLOUT;
                }
                if readiness.is_closed() || readiness.end_of_input() && both {
                    events |= libc::POLLHUP;
                }
                let reports = readiness.stamped || self.socket_at(fd)?.zero_copy.has_reports();
                if readiness.error.is_some() && !error_reported || reports {
                    events |= libc::POLLERR;
                }
            }
            Kind::Epoll => {}
            Kind::Udp(_) => {
                events |= libc::POLLOUT;
                match self.take_datagram(fd) {
                    Ok(datagram) => {
                        self.socket_mut(fd)?.datagram = Some(datagram);
                        events |= libc::POLLIN;
                    }
                    Err(Errno(libc::EAGAIN)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(events & (wanted | libc::POLLERR | libc::POLLHUP))
    }
}
