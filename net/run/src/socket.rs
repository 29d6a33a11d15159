//! State of the sockets that were taken from the kernel.
//!
//! What a program holds is its *near* end of a pair; the supervisor has the *far* one, unless both
//! are programs'. For datagrams the near end is the socket that the program opened
//! (`crate::carrier`). Must stay true: no copy of a near end is kept, so that a far end hangs up
//! when the last program lets go.

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

/// One socket, named by the inode of its near end.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) transport: Transport,
    pub(crate) is_v6: bool,
    pub(crate) is_v6_only: bool,
    /// The supervisor's end; none where another program has it.
    pub(crate) far: Option<OwnedFd>,
    /// The kernel's socket that the program opened, or that of the listener: options are kept
    /// there.
    pub(crate) kernel: Rc<OwnedFd>,
    /// Options that were set since, of a socket that shares `kernel` with others.
    pub(crate) options: Vec<(i32, i32, Vec<u8>)>,
    /// True if `kernel` is this socket's alone.
    pub(crate) owns_kernel: bool,
    /// The address that bind(2) gave it.
    pub(crate) bound: IpAddr,
    pub(crate) local: SocketAddr,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) state: State,
    /// Calls that wait.
    pub(crate) waiting: VecDeque<Waiting>,
    /// Who used it last: a thread and its descriptor.
    pub(crate) holder: (i32, i32),
    /// SO_LINGER of no time: closing resets.
    pub(crate) resets_on_close: bool,
    /// Of a socket for datagrams: it has no pair, and `kernel` is the carrier's far end.
    pub(crate) carrier: Option<Carrier>,
    /// The process that has rings for it, and its number there, until it is forgotten.
    pub(crate) ring_place: Option<(usize, u32)>,
    /// The number of its name, where its listener is accepted from directly, or it is one.
    pub(crate) named: Option<u64>,
    /// Questions to the stack, while a call waits for the answers.
    pub(crate) asked: Option<Asked>,
}

/// Sockets of the stack's that are being opened for one here.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) purpose: Purpose,
    /// Those that are not answered.
    pub(crate) openings: Vec<Opening>,
    pub(crate) engines: Vec<Session>,
    pub(crate) refused: Option<Errno>,
}

impl Asked {
    /// True if a socket for datagrams is on its way from the kernel's network.
    pub(crate) fn is_adopting(&self) -> bool {
        matches!(self.purpose, Purpose::Datagrams(_))
    }
}

/// The call that waits for the stack's answers.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// listen(2), which is made again.
    Listen,
    /// Any that takes a socket for datagrams from the kernel.
    Datagrams(Adopting),
    /// None: the stack was gone, and is back.
    Again,
}

/// A socket for datagrams on its way from the kernel's network.
#[derive(Debug)]
pub(crate) struct Adopting {
    /// The program's own, or the one that comes in its place.
    pub(crate) near: Rc<OwnedFd>,
    pub(crate) is_near: bool,
    /// Options that are taken from it.
    pub(crate) shared: Vec<i32>,
    pub(crate) flags: Flags,
}

/// A holder that is not known.
pub(crate) const NOBODY: (i32, i32) = (0, -1);

/// State of a socket.
#[derive(Debug)]
pub(crate) enum State {
    /// Bound, no more.
    Bound,
    /// Listens.
    Listening(Listening),
    /// A session that is being opened.
    Connecting(Connecting),
    /// A session of the stack, joined to the pair.
    Open(Stream),
    /// Joined to another program's socket; true once connect(2) has told.
    Joined(bool),
    /// A session could not be opened; the error until it was told.
    Failed(Option<Errno>),
    /// Sends and receives datagrams.
    Datagram(Vec<Session>),
    /// Its session failed before a program had accepted it.
    Doomed,
    /// Its session is over.
    Over,
}

/// State of a listener.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    /// At the stack.
    pub(crate) engines: Vec<Session>,
    /// Names at which other supervisors find it.
    pub(crate) doors: Vec<usize>,
    pub(crate) backlog: u32,
    /// Sessions to accept.
    pub(crate) pending: VecDeque<Pending>,
    /// The near end's own name: it is a listening local socket.
    pub(crate) name: Option<SocketAddrUnix>,
    /// Connections to it, which make it readable.
    pub(crate) tokens: VecDeque<OwnedFd>,
    /// Why the last one could not be made: descriptors or memory are short. Its queue being full is
    /// no reason; it is readable then.
    pub(crate) unshown: Option<Errno>,
    /// Its program's library accepts from the near end.
    pub(crate) is_direct: bool,
}

/// A session that waits to be accepted.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) from: From,
}

/// Origin of a session.
#[derive(Debug)]
pub(crate) enum From {
    /// The stack.
    Stack(Session),
    /// A program: the other end of its pair.
    Program(OwnedFd),
    /// The stack, joined to this near end already; its number.
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
    /// The stack was asked for it.
    Asked(Opening),
    /// It has begun.
    Begun(Session),
}

/// State of an open session.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) engine: Session,
    /// Received, and written to the pair up to some byte.
    pub(crate) carried: Option<(Received, usize)>,
    /// The program sends no more, and the stack knows.
    pub(crate) near_ended: bool,
    /// The peer sends no more, and the program knows.
    pub(crate) peer_ended: bool,
    /// And knows it by its pair.
    pub(crate) pair_is_told: bool,
    /// connect(2) has told that it is open.
    pub(crate) is_told: bool,
    /// Bytes at the head of the pair that nobody wrote.
    pub(crate) filler: usize,
    /// The program was seen to send no more; what it wrote before may still lie in the pair.
    pub(crate) near_is_ending: bool,
    /// Bytes lie in the pair that found no room at the stack.
    pub(crate) near_waits: bool,
    /// The epoll tells when the pair has room.
    pub(crate) watches_room: bool,
    /// Bytes take rings, in both directions.
    pub(crate) ring: Option<RingEnd>,
    /// Bytes from rings that were taken back, for the pair, up to some byte.
    pub(crate) leftover: Option<(Vec<u8>, usize)>,
    /// It keeps to its pair.
    pub(crate) is_barred: bool,
    /// The number of its far end's name, until the first bytes have come from who accepted it.
    pub(crate) hello: Option<u64>,
}

impl Stream {
    /// Joined to a session of the stack.
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
    /// The process that has the other end, and the stream's number there.
    pub(crate) process: usize,
    pub(crate) stream: u32,
    /// That of a slab of streams.
    pub(crate) memory: Rc<SharedMap>,
    /// Its large rings.
    pub(crate) large: Option<Rc<SharedMap>>,
    pub(crate) served: Served,
    /// It was taken back: only what the program wrote before is still in it.
    pub(crate) is_back: bool,
}

impl RingEnd {
    /// View of its memory.
    pub(crate) fn view(&self) -> Option<Rings<'_>> {
        let large = self.large.as_ref().map(|large| large.slice());
        Some(Rings::of_slab(self.memory.slice(), self.stream)?.with_large(large))
    }
}

/// A call that waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting {
    pub(crate) call: Call,
    /// When it is to give up.
    pub(crate) until: Option<Instant>,
    /// A connect(2) that does not wait for the session: it is answered once that has begun.
    pub(crate) only_begins: bool,
}

impl Socket {
    /// Both families' listening addresses, the claim to them.
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

    /// The stack's answers that it waits for.
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

    /// Its session or sockets at the stack.
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

/// A socket as a program opened it, still the kernel's.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: Rc<OwnedFd>,
    pub(crate) transport: Transport,
    pub(crate) is_v6: bool,
    pub(crate) is_v6_only: bool,
    /// Where the kernel has bound it; port 0 where it has not.
    pub(crate) local: SocketAddr,
    pub(crate) is_connected: bool,
    /// The kernel has bound it for a call that a signal has called away: to the program it is not.
    pub(crate) chosen: Option<u16>,
}

impl Opened {
    /// Looks at a socket; none where it is neither TCP nor UDP.
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
        // Who is connected has a port.
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

    /// Any address of its family.
    pub(crate) fn any(&self) -> IpAddr {
        if self.is_v6 {
            Ipv6Addr::UNSPECIFIED.into()
        } else {
            Ipv4Addr::UNSPECIFIED.into()
        }
    }

    /// Has the kernel choose a port, so that it gives it to nobody else.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn choose_port(&self, ip: IpAddr) -> Result<u16, Errno> {
        if let Some(port) = self.chosen {
            return Ok(port);
        }
        // An address of the stack's is none of the kernel's.
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

/// A new pair: the program's end, which waits or does not, and the supervisor's, which never does.
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

/// A new near end of a listener, and its name. It listens itself, so that reading and writing it
/// fail and no room is reported, as of any listener.
///
/// # Errors
/// The kernel's.
pub(crate) fn listening_end(is_nonblocking: bool) -> Result<(OwnedFd, SocketAddrUnix), Errno> {
    let near = local_stream(false)?;
    // The kernel chooses an abstract name.
    rustix::net::bind(&near, &SocketAddrUnix::new_unnamed())?;
    rustix::net::listen(&near, TOKEN_BACKLOG)?;
    set_nonblocking(&near, is_nonblocking)?;
    let name = SocketAddrUnix::try_from(rustix::net::getsockname(&near)?)?;
    Ok((near, name))
}

/// A local socket that is not connected. Neither it nor what it accepts takes descriptors.
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

/// Has calls on `file` wait, or not.
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

/// The inode of a descriptor of ours.
///
/// # Errors
/// The kernel's.
pub(crate) fn inode_of(file: &OwnedFd) -> Result<u64, Errno> {
    Ok(rustix::fs::fstat(file)?.st_ino)
}
