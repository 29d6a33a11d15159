//! State of the sockets that were taken from the kernel.
//!
//! A program holds the *near* end of a pair; the supervisor has the *far* one, unless both ends
//! belong to programs. For datagrams the near end is the socket that the program opened
//! (`crate::carrier`). Must stay true: no duplicate of a near end is kept, so that the far end gets
//! a hang-up when the last program closes the near one.

pub(crate) mod files;
mod opened;
mod stream;

pub(crate) use opened::Opened;
pub(crate) use stream::{
    Backlog, Consumed, Head, Inbound, Interest, Notice, Outbound, Path, Report, RingEnd, Stream,
};

use crate::caller::{self, Caller, Flags};
use crate::carrier::Carrier;
use crate::loopback::RendezvousSocket;
use crate::ports::{Claim, Transport};
use rustix::io::Errno;
use rustix::net::SocketAddrUnix;
use sidecore_net::sock::client::{Opening, Socket as Session};
use sidecore_sys::socket_option;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

/// One socket, identified by the inode of its near end.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) transport: Transport,
    pub(crate) is_v6: bool,
    pub(crate) is_v6_only: bool,
    /// The supervisor's end; none if another program has it.
    pub(crate) far: Option<OwnedFd>,
    /// The kernel's socket that the program opened, or that of the listener: it stores the options.
    /// For datagrams, the carrier's far end.
    pub(crate) kernel: Rc<OwnedFd>,
    /// Options that were set later, if this socket shares `kernel` with others.
    pub(crate) options: Vec<SetOption>,
    /// True if `kernel` is used by this socket alone.
    pub(crate) owns_kernel: bool,
    /// The address that bind(2) gave it.
    pub(crate) bound: IpAddr,
    pub(crate) local: SocketAddr,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) state: State,
    pub(crate) holder: Holder,
    /// SO_SNDBUF, in bytes, if the program has set it ([`Self::set_bytes`]).
    pub(crate) send_bytes: Option<u32>,
    /// The largest window of its session, in bytes, if the program limits it ([`Self::window`]).
    pub(crate) window_max: Option<u32>,
    /// SO_LINGER with a time of zero: close resets the connection.
    pub(crate) resets_on_close: bool,
    /// SO_LINGER with another time.
    pub(crate) lingers: Option<Duration>,
    /// Its place in a process with rings, until it is detached.
    pub(crate) ring_place: Option<Rc<Lease>>,
    /// The number of its name, if its listener is accepted from directly, or it is such a listener.
    pub(crate) named: Option<u64>,
    /// Requests to the stack that a call waits for.
    pub(crate) asked: Option<Asked>,
}

/// A value that setsockopt(2) has set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetOption {
    pub(crate) level: i32,
    pub(crate) name: i32,
    pub(crate) value: Vec<u8>,
}

/// The last user of a socket: by it, the supervisor finds the near end again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) thread: i32,
    pub(crate) descriptor: i32,
    /// Its process, which has the descriptor still when the thread has ended; 0: not known.
    pub(crate) process: i32,
}

impl Holder {
    /// No call about the socket has come yet.
    pub(crate) const UNKNOWN: Self = Self {
        thread: 0,
        descriptor: -1,
        process: 0,
    };

    /// The calling thread, with this descriptor.
    pub(crate) fn of(caller: &Caller<'_>, descriptor: i32) -> Self {
        Self {
            thread: caller.call.thread,
            descriptor,
            process: 0,
        }
    }

    /// The same with its process, which need not be asked for if the thread is that of `before`.
    pub(crate) fn lasting(caller: &Caller<'_>, descriptor: i32, before: Self) -> Self {
        let is_known = before.process != 0 && before.thread == caller.call.thread;
        let process = if is_known {
            before.process
        } else {
            caller.leader().unwrap_or_default()
        };
        Self {
            process,
            ..Self::of(caller, descriptor)
        }
    }

    /// True if a process other than the caller's was seen to use the socket, and has it still.
    pub(crate) fn is_elsewhere(self, caller: &Caller<'_>, inode: u64) -> bool {
        // The thread first: the caller is its usual user.
        self.thread != caller.call.thread
            && caller::socket_inode(self.thread, self.descriptor) == Some(inode)
            && caller::leader(self.thread) != caller.leader()
    }

    /// A duplicate of the near end with this inode; none if the holder has closed it.
    pub(crate) fn fetch(self, inode: u64) -> Option<OwnedFd> {
        let by = |thread| caller::fetch_socket(thread, self.descriptor, inode);
        by(self.thread).or_else(|| by(self.process))
    }
}

/// A socket's use of a stream's number in a process with rings. The number is free once it is
/// dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Held for its count: that of all leases.
    _all: Rc<()>,
}

impl Lease {
    pub(crate) fn of(all: &Rc<()>) -> Self {
        Self {
            _all: Rc::clone(all),
        }
    }
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
#[derive(Debug, Clone)]
pub(crate) struct Adopting {
    /// The program's own socket, or the one that replaces it.
    pub(crate) near: Rc<OwnedFd>,
    pub(crate) is_near: bool,
    /// Options that are cleared before it is bound.
    pub(crate) shared: Vec<i32>,
    pub(crate) flags: Flags,
}

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
    /// Joined to another program's socket.
    Joined(Joined),
    /// The session could not be opened; holds the error until a call reports it.
    Failed(Option<Errno>),
    /// Sends and receives datagrams.
    Datagram(Datagram),
    /// The session failed before a program had accepted it.
    Doomed,
    /// The program has shut its session both ways before the peer had ended it.
    Shut,
    /// Its session is over.
    Over,
}

/// State of a datagram socket.
#[derive(Debug)]
pub(crate) struct Datagram {
    /// Sockets at the stack.
    pub(crate) engines: Vec<Session>,
    pub(crate) carrier: Carrier,
}

/// State of a session between two programs.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) report: Report,
    /// The program has ended its sending (shutdown(2)).
    pub(crate) is_shut: bool,
    /// The program has ended its receiving: the pair does not show the peer's end any more.
    pub(crate) is_deaf: bool,
}

impl Joined {
    pub(crate) fn new(report: Report) -> Self {
        Self {
            report,
            is_shut: false,
            is_deaf: false,
        }
    }
}

/// Directions of a session that have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Ends {
    /// The program sends no more.
    pub(crate) own: bool,
    /// The peer sends no more.
    pub(crate) peers: bool,
}

/// State of a listener.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    /// Listeners at the stack.
    pub(crate) engines: Vec<Session>,
    /// Rendezvous sockets at which other supervisors find it.
    pub(crate) rendezvous: Vec<RendezvousSocket>,
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
    /// The process that has made it (pidfd), until its end was noticed.
    pub(crate) owner: Option<OwnedFd>,
}

/// A session in the accept queue.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) local: SocketAddr,
    pub(crate) peer: SocketAddr,
    pub(crate) origin: Origin,
}

/// Origin of a session.
#[derive(Debug)]
pub(crate) enum Origin {
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

impl Socket {
    /// An IPv4 socket of its own, which only its kernel's socket and its address make.
    pub(crate) fn new(
        transport: Transport,
        kernel: Rc<OwnedFd>,
        local: SocketAddr,
        state: State,
    ) -> Self {
        Self {
            transport,
            is_v6: false,
            is_v6_only: false,
            far: None,
            kernel,
            options: Vec::new(),
            owns_kernel: true,
            bound: local.ip(),
            local,
            peer: None,
            state,
            holder: Holder::UNKNOWN,
            send_bytes: None,
            window_max: None,
            resets_on_close: false,
            lingers: None,
            ring_place: None,
            named: None,
            asked: None,
        }
    }

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
            owner: files::owner_of(&self.kernel),
            listens,
        }
    }

    /// True if it was bound with SO_REUSEPORT.
    pub(crate) fn shares_port(&self) -> bool {
        let value = self.option(libc::SOL_SOCKET, libc::SO_REUSEPORT, 4);
        value.is_ok_and(|value| value.iter().any(|byte| *byte != 0))
    }

    /// SO_SNDBUF or SO_RCVBUF as the kernel reports it (socket(7)).
    pub(crate) fn kept_bytes(&self, name: i32) -> Option<u32> {
        self.number(libc::SOL_SOCKET, name)
    }

    /// The same, if the program has set it before the socket was taken from the kernel: to another
    /// value than the usual one.
    pub(crate) fn set_bytes(&self, name: i32) -> Option<u32> {
        let usual = files::usual_bytes(name);
        self.kept_bytes(name).filter(|bytes| Some(*bytes) != usual)
    }

    /// The largest window that SO_RCVBUF and TCP_WINDOW_CLAMP allow its session. `is_set`: the
    /// program has just set SO_RCVBUF, so that the usual value counts, too.
    pub(crate) fn window(&self, is_set: bool) -> Option<u32> {
        let bytes = match is_set {
            true => self.kept_bytes(libc::SO_RCVBUF),
            false => self.set_bytes(libc::SO_RCVBUF),
        };
        let clamp = self.number(libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP);
        files::window_of(bytes, clamp)
    }

    fn number(&self, level: i32, name: i32) -> Option<u32> {
        let value = self.option(level, name, 4).ok()?;
        value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
    }

    /// Pending requests to the stack.
    pub(crate) fn openings(&self) -> Vec<Opening> {
        // A socket asks for listeners, or for a session, never for both.
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
            State::Datagram(datagram) => datagram.engines.clone(),
            State::Bound | State::Joined(_) | State::Failed(_) => Vec::new(),
            State::Doomed | State::Shut | State::Over => Vec::new(),
        }
    }

    pub(crate) fn is_datagram(&self) -> bool {
        matches!(self.state, State::Datagram(_))
    }

    /// True while a datagram socket has no answer of the stack.
    pub(crate) fn is_adopting(&self) -> bool {
        self.is_datagram() && self.asked.is_some()
    }

    pub(crate) fn carrier(&self) -> Option<&Carrier> {
        match &self.state {
            State::Datagram(datagram) => Some(&datagram.carrier),
            _ => None,
        }
    }

    pub(crate) fn carrier_mut(&mut self) -> Option<&mut Carrier> {
        match &mut self.state {
            State::Datagram(datagram) => Some(&mut datagram.carrier),
            _ => None,
        }
    }

    pub(crate) fn listening_mut(&mut self) -> Option<&mut Listening> {
        match &mut self.state {
            State::Listening(listening) => Some(listening),
            _ => None,
        }
    }

    /// The value of an option as it was set last.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn option(&self, level: i32, name: i32, bytes_max: usize) -> Result<Vec<u8>, Errno> {
        // Sessions of one listener share its kernel's socket, so they keep their own values here.
        let mut set = self.options.iter();
        match set.find(|it| (it.level, it.name) == (level, name)) {
            Some(set) => Ok(set.value.clone()),
            None => socket_option::get(self.kernel.as_fd(), level, name, bytes_max),
        }
    }

    /// SO_SNDTIMEO or SO_RCVTIMEO; none if it is not set.
    pub(crate) fn patience(&self, name: i32) -> Option<Duration> {
        let value = self.option(libc::SOL_SOCKET, name, TIMEVAL_BYTES).ok()?;
        files::patience(&value)
    }

    /// Keeps the value of an option for this socket alone.
    pub(crate) fn keep_option(&mut self, level: i32, name: i32, value: Vec<u8>) {
        self.drop_option(level, name);
        self.options.push(SetOption { level, name, value });
    }

    pub(crate) fn drop_option(&mut self, level: i32, name: i32) {
        self.options
            .retain(|it| (it.level, it.name) != (level, name));
    }

    /// True if no program has the near end any more, as far as the supervisor's end shows it.
    pub(crate) fn is_closed(&self) -> bool {
        let far = match &self.state {
            // A carrier's far end gets no hang-up; the near end's port is free once it is closed.
            State::Datagram(datagram) => {
                return !crate::carrier::is_live(datagram.carrier.near);
            }
            State::Listening(listening) => listening.tokens.front(),
            _ => self.far.as_ref(),
        };
        far.is_some_and(files::is_hung_up)
    }

    /// A process uses the socket by this descriptor. If another one has it, too, neither gets
    /// rings, by which the other would miss bytes.
    pub(crate) fn note_holder(&mut self, caller: &Caller<'_>, descriptor: i32, inode: u64) {
        if let State::Open(stream) = &mut self.state
            && stream.path.all_rings().is_none()
            && self.holder.is_elsewhere(caller, inode)
        {
            stream.path.bar();
        }
        self.holder = Holder::lasting(caller, descriptor, self.holder);
    }

    /// True if nothing tells the supervisor of its close: only a sweep finds it.
    pub(crate) fn is_unseen(&self) -> bool {
        self.far.is_none() && !self.is_datagram()
    }
}

/// `struct timeval` of 64-bit programs.
const TIMEVAL_BYTES: usize = 16;

#[cfg(test)]
pub(crate) mod tests;
