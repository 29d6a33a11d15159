//! State of the sockets that were taken from the kernel.
//!
//! A program holds the *near* end of a pair; the supervisor has the *far* one, unless both ends
//! belong to programs. For datagrams the near end is the socket that the program opened
//! (`crate::carrier`). Must stay true: no duplicate of a near end is kept, so that the far end gets
//! a hang-up when the last program closes the near one.

use crate::address::plain;
use crate::caller::Flags;
use crate::carrier::Carrier;
use crate::ports::{Claim, Transport};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sidecore_net::sock::client::{Opening, Received, Socket as Session};
use sidecore_net_rings::{Served, Stream as Rings};
use sidecore_sys::SharedMap;
use sidecore_sys::local_socket;
use sidecore_sys::seccomp::Call;
use sidecore_sys::socket_option;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Instant;

/// One socket, identified by the inode of its near end.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) transport: Transport,
    pub(crate) is_v6: bool,
    pub(crate) is_v6_only: bool,
    /// The supervisor's end; none if another program has it.
    pub(crate) far: Option<OwnedFd>,
    /// The kernel's socket that the program opened, or that of the listener: it stores the options.
    pub(crate) kernel: Rc<OwnedFd>,
    /// Options that were set later, if this socket shares `kernel` with others.
    pub(crate) options: Vec<(i32, i32, Vec<u8>)>,
    /// True if `kernel` is used by this socket alone.
    pub(crate) owns_kernel: bool,
    /// The address that bind(2) gave it.
    pub(crate) bound: IpAddr,
    pub(crate) local: SocketAddr,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) state: State,
    /// Calls that wait.
    pub(crate) waiting: VecDeque<Waiting>,
    /// The last user: a thread and its descriptor.
    pub(crate) holder: (i32, i32),
    /// SO_LINGER with a time of zero: close resets the connection.
    pub(crate) resets_on_close: bool,
    /// For datagrams: there is no pair, and `kernel` is the carrier's far end.
    pub(crate) carrier: Option<Carrier>,
    /// The process that has rings for the socket, and the socket's number there, until it is
    /// detached.
    pub(crate) ring_place: Option<(usize, u32)>,
    /// The number of its name, if its listener is accepted from directly, or it is such a listener.
    pub(crate) named: Option<u64>,
    /// Requests to the stack that a call waits for.
    pub(crate) asked: Option<Asked>,
}

/// Sockets of the stack that are being opened for a socket here.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) purpose: Purpose,
    /// Requests without an answer.
    pub(crate) openings: Vec<Opening>,
    pub(crate) engines: Vec<Session>,
    pub(crate) refused: Option<Errno>,
}

impl Asked {
    /// True if a datagram socket is being moved from the kernel's network to the stack.
    pub(crate) fn is_adopting(&self) -> bool {
        matches!(self.purpose, Purpose::Datagrams(_))
    }
}

/// The call that waits for the stack's answers.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// listen(2), which is repeated.
    Listen,
    /// Any call that takes a datagram socket from the kernel.
    Datagrams(Adopting),
    /// No call: the engine was gone, and is back.
    Again,
}

/// A datagram socket that is being moved from the kernel's network to the stack.
#[derive(Debug)]
pub(crate) struct Adopting {
    /// The program's own socket, or the one that replaces it.
    pub(crate) near: Rc<OwnedFd>,
    pub(crate) is_near: bool,
    /// Options that are cleared before it is bound.
    pub(crate) shared: Vec<i32>,
    pub(crate) flags: Flags,
}

/// A holder that is not known.
pub(crate) const NOBODY: (i32, i32) = (0, -1);

/// State of a socket.
#[derive(Debug)]
pub(crate) enum State {
    /// Bound only.
    Bound,
    /// Listens.
    Listening(Listening),
    /// A session that is being opened.
    Connecting(Connecting),
    /// A session of the stack, joined to the pair.
    Open(Stream),
    /// Joined to another program's socket; true once connect(2) has reported it.
    Joined(bool),
    /// The session could not be opened; holds the error until a call reports it.
    Failed(Option<Errno>),
    /// Sends and receives datagrams.
    Datagram(Vec<Session>),
    /// The session failed before a program had accepted it.
    Doomed,
    /// Its session is over.
    Over,
}

/// State of a listener.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    /// Listeners at the stack.
    pub(crate) engines: Vec<Session>,
    /// Rendezvous sockets at which other supervisors find it.
    pub(crate) doors: Vec<usize>,
    pub(crate) backlog: u32,
    /// Sessions in the accept queue.
    pub(crate) pending: VecDeque<Pending>,
    /// The near end's own name: it is a listening local socket.
    pub(crate) name: Option<SocketAddrUnix>,
    /// Connections to the near end, which make it readable.
    pub(crate) tokens: VecDeque<OwnedFd>,
    /// The error of the last such connection: descriptors or memory are short. A full queue is not
    /// an error; the near end is readable then.
    pub(crate) unshown: Option<Errno>,
    /// The preload library of its program accepts from the near end.
    pub(crate) is_direct: bool,
}

/// A session in the accept queue.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) from: From,
}

/// Origin of a session.
#[derive(Debug)]
pub(crate) enum From {
    /// A session of the stack.
    Stack(Session),
    /// A program: the other end of its pair.
    Program(OwnedFd),
    /// A session of the stack that is already joined to this near end; its number.
    Session(OwnedFd, u64),
}

/// State of a session that is being opened.
#[derive(Debug)]
pub(crate) struct Connecting {
    pub(crate) at_stack: AtStack,
    /// Bytes in the pair, which keep the near end from being writable.
    pub(crate) filler: usize,
}

/// The stack's part of a session that is being opened.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AtStack {
    /// The request was sent to the stack.
    Asked(Opening),
    /// The session exists at the stack.
    Begun(Session),
}

/// State of an open session.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) engine: Session,
    /// A received piece, and how many of its bytes were written to the pair.
    pub(crate) carried: Option<(Received, usize)>,
    /// The program sends no more, and the stack was notified.
    pub(crate) near_ended: bool,
    /// The peer sends no more, and the program was notified.
    pub(crate) peer_ended: bool,
    /// The end was also reported through the pair (shutdown(2)).
    pub(crate) pair_is_told: bool,
    /// connect(2) has reported that it is open.
    pub(crate) is_told: bool,
    /// Bytes at the head of the pair that are padding, not data ([`Connecting::filler`]).
    pub(crate) filler: usize,
    /// The program was seen to send no more; earlier bytes may still be in the pair.
    pub(crate) near_is_ending: bool,
    /// Bytes wait in the pair because the stack had no room.
    pub(crate) near_waits: bool,
    /// EPOLLOUT is armed for the pair.
    pub(crate) watches_room: bool,
    /// Bytes pass through rings, in both directions.
    pub(crate) ring: Option<RingEnd>,
    /// Unread bytes of rings that were taken back, and how many of them were written to the pair.
    pub(crate) leftover: Option<(Vec<u8>, usize)>,
    /// The stream uses its pair from now on and never gets rings.
    pub(crate) is_barred: bool,
    /// The number of its far end's name, until the accepting program has sent its first bytes.
    pub(crate) hello: Option<u64>,
}

impl Stream {
    /// A session of the stack that is joined to the pair.
    pub(crate) fn new(engine: Session, is_told: bool, filler: usize) -> Self {
        Self {
            engine,
            carried: None,
            near_ended: false,
            peer_ended: false,
            pair_is_told: false,
            is_told,
            filler,
            near_is_ending: false,
            near_waits: false,
            watches_room: false,
            ring: None,
            leftover: None,
            is_barred: false,
            hello: None,
        }
    }
}

/// The supervisor's end of a stream's rings.
#[derive(Debug)]
pub(crate) struct RingEnd {
    /// The process at the other end, and the stream's number there.
    pub(crate) process: usize,
    pub(crate) stream: u32,
    /// Memory of the slab with the stream's rings.
    pub(crate) memory: Rc<SharedMap>,
    /// The stream's large rings.
    pub(crate) large: Option<Rc<SharedMap>>,
    pub(crate) served: Served,
    /// Taken back: only bytes that the program wrote before are left in it.
    pub(crate) is_back: bool,
}

impl RingEnd {
    /// A view of the rings in its memory.
    pub(crate) fn view(&self) -> Option<Rings<'_>> {
        let large = self.large.as_ref().map(|large| large.slice());
        Some(Rings::of_slab(self.memory.slice(), self.stream)?.with_large(large))
    }
}

/// A call that waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting {
    pub(crate) call: Call,
    /// Deadline.
    pub(crate) until: Option<Instant>,
    /// A nonblocking connect(2): it is answered once the session exists at the stack.
    pub(crate) only_begins: bool,
}

impl Socket {
    /// The claim to its local address, for [`crate::ports::Ports`].
    pub(crate) fn claim(&self, listens: bool) -> Claim {
        let is_set = |name| {
            let value = socket_option::get(self.kernel.as_fd(), libc::SOL_SOCKET, name, 4);
            value.is_ok_and(|value| value.iter().any(|byte| *byte != 0))
        };
        Claim {
            ip: self.bound,
            is_v6_only: self.is_v6_only,
            reuses_address: is_set(libc::SO_REUSEADDR),
            reuses_port: is_set(libc::SO_REUSEPORT),
            listens,
        }
    }

    /// Pending requests to the stack.
    pub(crate) fn openings(&self) -> Vec<Opening> {
        let asked = self.asked.iter().flat_map(|asked| &asked.openings);
        let mut openings: Vec<Opening> = asked.copied().collect();
        if let State::Connecting(connecting) = &self.state
            && let AtStack::Asked(opening) = connecting.at_stack
        {
            openings.push(opening);
        }
        openings
    }

    /// Its sessions, listeners or datagram sockets at the stack.
    pub(crate) fn engines(&self) -> Vec<Session> {
        match &self.state {
            State::Listening(listening) => listening.engines.clone(),
            State::Connecting(connecting) => match connecting.at_stack {
                AtStack::Begun(session) => vec![session],
                AtStack::Asked(_) => Vec::new(),
            },
            State::Open(stream) => vec![stream.engine],
            State::Datagram(engines) => engines.clone(),
            _ => Vec::new(),
        }
    }
}

/// A kernel socket as the program opened it, before it is taken over.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: Rc<OwnedFd>,
    pub(crate) transport: Transport,
    pub(crate) is_v6: bool,
    pub(crate) is_v6_only: bool,
    /// The address to which the kernel has bound it; port 0 if it is not bound.
    pub(crate) local: SocketAddr,
    pub(crate) is_connected: bool,
    /// A port that the kernel chose for a call that a signal interrupted: for the program the
    /// socket is still unbound.
    pub(crate) chosen: Option<u16>,
}

impl Opened {
    /// Inspects a socket; none if it is neither TCP nor UDP.
    pub(crate) fn of(file: Rc<OwnedFd>) -> Option<Self> {
        let number = |level, name| {
            let value = socket_option::get(file.as_fd(), level, name, 4).ok()?;
            value.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes))
        };
        let is_v6 = match number(libc::SOL_SOCKET, libc::SO_DOMAIN)? {
            libc::AF_INET => false,
            libc::AF_INET6 => true,
            _ => return None,
        };
        let kind = number(libc::SOL_SOCKET, libc::SO_TYPE)?;
        let protocol = number(libc::SOL_SOCKET, libc::SO_PROTOCOL)?;
        let transport = match (kind, protocol) {
            (libc::SOCK_STREAM, libc::IPPROTO_TCP | libc::IPPROTO_MPTCP) => Transport::Tcp,
            (libc::SOCK_DGRAM, libc::IPPROTO_UDP) => Transport::Udp,
            _ => return None,
        };
        let is_v6_only = is_v6 && number(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) == Some(1);
        let local = rustix::net::getsockname(&file).ok()?;
        let local = SocketAddr::try_from(local).ok()?;
        // A connected socket has a port; getpeername(2) is skipped for the others.
        let is_connected = local.port() != 0 && rustix::net::getpeername(&file).is_ok();
        Some(Self {
            file,
            transport,
            is_v6,
            is_v6_only,
            local: plain(local),
            is_connected,
            chosen: None,
        })
    }

    /// The unspecified address of its family.
    pub(crate) fn any(&self) -> IpAddr {
        if self.is_v6 {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        }
    }

    /// Lets the kernel choose a port, and keeps it bound, so that no other socket gets the port.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn choose_port(&self, ip: IpAddr) -> Result<u16, Errno> {
        if let Some(port) = self.chosen {
            return Ok(port);
        }
        // The kernel cannot bind to an address of the stack.
        let ip = if ip.is_loopback() { ip } else { self.any() };
        let ip = match ip {
            IpAddr::V4(ip) if self.is_v6 => IpAddr::V6(ip.to_ipv6_mapped()),
            ip => ip,
        };
        rustix::net::bind(&self.file, &SocketAddr::new(ip, 0))?;
        let bound = rustix::net::getsockname(&self.file)?;
        let bound = SocketAddr::try_from(bound).map_err(|_| Errno::INVAL)?;
        Ok(bound.port())
    }
}

/// A new pair: the program's end, nonblocking if so requested, and the supervisor's, always
/// nonblocking.
///
/// # Errors
/// The kernel's: no descriptors left.
pub(crate) fn pair(near_is_nonblocking: bool) -> Result<(OwnedFd, OwnedFd), Errno> {
    let kind = SocketType::STREAM;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (near, far) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
    local_socket::refuse_descriptors(near.as_fd());
    local_socket::refuse_descriptors(far.as_fd());
    set_nonblocking(&near, near_is_nonblocking)?;
    Ok((near, far))
}

/// A new near end of a listener, and its name. It is itself a listening local socket, so that reads
/// and writes fail and it is never reported as writable, like any listener.
///
/// # Errors
/// The kernel's.
pub(crate) fn listening_end(is_nonblocking: bool) -> Result<(OwnedFd, SocketAddrUnix), Errno> {
    let near = local_stream(false)?;
    // Autobind: the kernel chooses an abstract name.
    rustix::net::bind(&near, &SocketAddrUnix::new_unnamed())?;
    rustix::net::listen(&near, TOKEN_BACKLOG)?;
    set_nonblocking(&near, is_nonblocking)?;
    let name = SocketAddrUnix::try_from(rustix::net::getsockname(&near)?)?;
    Ok((near, name))
}

/// An unconnected local socket. Neither it nor a socket accepted from it receives descriptors.
///
/// # Errors
/// The kernel's.
pub(crate) fn local_stream(is_nonblocking: bool) -> Result<OwnedFd, Errno> {
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, is_nonblocking);
    let made = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    local_socket::refuse_descriptors(made.as_fd());
    Ok(made)
}

const TOKEN_BACKLOG: i32 = 256;

/// Sets or clears `O_NONBLOCK` on `file`.
///
/// # Errors
/// The kernel's.
pub(crate) fn set_nonblocking(file: &OwnedFd, is_nonblocking: bool) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    let mut wanted = flags;
    wanted.set(rustix::fs::OFlags::NONBLOCK, is_nonblocking);
    if wanted != flags {
        rustix::fs::fcntl_setfl(file, wanted)?;
    }
    Ok(())
}

/// True if the other end is closed, not only shut for writing.
pub(crate) fn is_hung_up(far: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(far, PollFlags::empty())];
    let none = rustix::time::Timespec::default();
    rustix::event::poll(&mut polled, Some(&none)).is_ok()
        && polled[0].revents().contains(PollFlags::HUP)
}

/// The inode of one of this process's descriptors.
///
/// # Errors
/// The kernel's.
pub(crate) fn inode_of(file: &OwnedFd) -> Result<u64, Errno> {
    Ok(rustix::fs::fstat(file)?.st_ino)
}
