//! listen(2) and accept(2): listeners, and sessions that come to them.
//!
//! Must stay true: a session is in one accept queue, or was given to one program; a session that no
//! program can see is refused, so that its opener does not wait.

mod direct;
mod queue;

use super::engine::Request;
use super::mark::Mark;
use super::streams::Streams;
use super::table::Table;
use super::{PROCEED, Reply, ZERO, named};
use crate::address;
use crate::caller::Caller;
use crate::loopback::Rendezvous;
use crate::ports::Transport;
use crate::socket::files::{inode_of, limit_sending, listening_end, pair, set_nonblocking};
use crate::socket::{
    Head, Holder, Interest, Joined, Listening, Origin, Pending, Purpose, Report, Socket, State,
    Stream,
};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use sidecore_net::sock::client::Socket as Session;
use sidecore_net_rings::{Name, Role};
use sidecore_sys::{local_socket, socket_option};
use std::collections::HashSet;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

/// The listeners' parts that are no socket's own.
#[derive(Debug)]
pub(super) struct Listeners {
    /// Programs of other supervisors are found, and find these listeners, by it.
    rendezvous: Option<Rendezvous>,
    /// Stores the options of sessions without a listener.
    spare: Rc<OwnedFd>,
    /// Inodes that were examined and are not sessions that a program has accepted directly.
    examined: HashSet<u64>,
    /// Listeners that are polled: more sessions wait than the near end takes, or a call waits for a
    /// session.
    overdue: HashSet<u64>,
    /// True once a program has had a listener with direct accepts.
    has_direct: bool,
}

/// A listener that is to be made of a bound socket.
struct Start {
    backlog: u32,
    is_direct: bool,
    engines: Vec<Session>,
}

/// A session that was not given to a caller.
struct NotGiven {
    /// The session, unless the call was answered before.
    origin: Option<Origin>,
    errno: Errno,
}

impl Listeners {
    /// # Errors
    /// The kernel's: no descriptors left.
    pub(super) fn new(rendezvous: Option<Rendezvous>) -> Result<Self, Errno> {
        let kind = rustix::net::SocketType::STREAM;
        let flags = rustix::net::SocketFlags::CLOEXEC;
        let inet = rustix::net::AddressFamily::INET;
        Ok(Self {
            rendezvous,
            spare: Rc::new(rustix::net::socket_with(inet, kind, flags, None)?),
            examined: HashSet::new(),
            overdue: HashSet::new(),
            has_direct: false,
        })
    }

    /// Answers listen(2) of a bound socket.
    pub(super) fn listen(
        &mut self,
        table: &mut Table,
        streams: &mut Streams,
        caller: &mut Caller<'_>,
        inode: u64,
    ) -> Result<Reply, Errno> {
        let Some(socket) = table.sockets.get_mut(&inode) else {
            return Ok(PROCEED);
        };
        let backlog = match u32::try_from(caller.int(1)) {
            Ok(backlog) => backlog.clamp(1, BACKLOG_MAX),
            // As in Linux, a negative backlog is the longest one.
            Err(_) => BACKLOG_MAX,
        };
        match &mut socket.state {
            State::Listening(listening) => {
                listening.backlog = backlog;
                return Ok(ZERO);
            }
            State::Bound => {}
            State::Datagram(_) => return Err(Errno::OPNOTSUPP),
            _ => return Err(Errno::INVAL),
        }
        // Other processes that have the bound socket get the listener from this one.
        socket.holder = Holder::of(caller, caller.int(0));
        // Sockets that share a port by SO_REUSEADDR may be bound together, but not listen together.
        let (claim, port) = (socket.claim(true), socket.local.port());
        if !table.take_port(inode, Transport::Tcp, port, claim) {
            return Err(Errno::ADDRINUSE);
        }
        match table.ask_stack(inode, Some(backlog), Purpose::Listen)? {
            // The call is repeated once the stack has answered.
            Request::Pending => return Ok(table.park_asking(inode, caller)),
            Request::Complete => {}
        }
        let start = Start {
            backlog,
            is_direct: caller.call.arguments[5] == sidecore_net_rings::BY_ITSELF,
            engines: table.take_asked(inode)?,
        };
        let started = self.start(table, caller, inode, start)?;
        // Sessions may have arrived already.
        self.take_accepted(table, streams, started);
        Ok(ZERO)
    }

    /// Replaces a bound socket by a listening near end; the new socket's inode.
    fn start(
        &mut self,
        table: &mut Table,
        caller: &Caller<'_>,
        inode: u64,
        start: Start,
    ) -> Result<u64, Errno> {
        let place = caller.descriptor(caller.int(0));
        let own_name = start.is_direct.then(|| {
            self.has_direct = true;
            table.names.make(Role::Listener)
        });
        let (near, name) = match &own_name {
            Some(name) => {
                let made = named::listening_end(name, place.flags.is_nonblocking)?;
                // Direct accepts block in the kernel, so SO_RCVTIMEO has to be set there.
                let (level, option) = (libc::SOL_SOCKET, libc::SO_RCVTIMEO);
                let socket = table.sockets.get(&inode);
                if let Some(Ok(patience)) = socket.map(|it| it.option(level, option, 16)) {
                    socket_option::set(made.0.as_fd(), level, option, &patience).ok();
                }
                made
            }
            None => listening_end(place.flags.is_nonblocking)?,
        };
        let listener = inode_of(&near)?;
        let mut socket = table.remove(inode).ok_or(Errno::BADF)?;
        if let Some(name) = own_name {
            socket.named = Some(name.number);
            table.names.bear(name.number, listener);
        }
        socket.state = State::Listening(Listening {
            engines: start.engines,
            backlog: start.backlog,
            name: Some(name),
            is_direct: start.is_direct,
            ..Listening::default()
        });
        let (claim, port) = (socket.claim(true), socket.local.port());
        // It cannot fail: no other claim was made in between.
        let _ = table.ports.take(Transport::Tcp, port, listener, claim);
        let begun = table
            .insert(listener, socket)
            .and_then(|()| self.open_rendezvous(table, listener))
            .and_then(|()| table.replace(caller, place, &near));
        let Err(error) = begun else {
            queue::watch_owner(table, caller, listener);
            table.tell_options(listener);
            table.sweeps.hurry();
            return Ok(listener);
        };
        // It stays bound, as it was.
        if let Some(mut socket) = table.remove(listener) {
            if let State::Listening(listening) = std::mem::replace(&mut socket.state, State::Bound)
            {
                table.close_listening(listening);
            }
            let claim = socket.claim(false);
            let _ = table.ports.take(Transport::Tcp, port, inode, claim);
            table.insert(inode, socket)?;
        }
        Err(error)
    }

    /// Opens rendezvous sockets, so that other supervisors find a listener.
    fn open_rendezvous(&self, table: &mut Table, inode: u64) -> Result<(), Errno> {
        let (Some(socket), Some(rendezvous)) = (table.sockets.get_mut(&inode), &self.rendezvous)
        else {
            return Ok(());
        };
        if !table.scope.has_loopback {
            return Ok(());
        }
        // Sockets that share a port do so within one supervisor; the first has the rendezvous
        // socket.
        let others = table.ports.at(Transport::Tcp, socket.local);
        if others.iter().any(|other| *other != inode) {
            return Ok(());
        }
        let (local, is_v6, is_v6_only) = (socket.local, socket.is_v6, socket.is_v6_only);
        let number = socket.named;
        let Some(listening) = socket.listening_mut() else {
            return Ok(());
        };
        let near = number.filter(|_| listening.is_direct).map(|number| {
            let name = Name::new(Role::Listener, std::process::id(), number);
            (name, is_v6)
        });
        listening.rendezvous = rendezvous.open(local, is_v6_only, near)?;
        for socket in &listening.rendezvous {
            let mark = Mark::Rendezvous(inode).data();
            epoll::add(&table.epoll, socket.file(), mark, EventFlags::IN)?;
        }
        Ok(())
    }

    /// Answers accept(2) and accept4(2).
    pub(super) fn accept(
        &mut self,
        table: &mut Table,
        streams: &mut Streams,
        caller: &mut Caller<'_>,
        flags: i32,
    ) -> Result<Reply, Errno> {
        let descriptor = caller.int(0);
        let Some(inode) = caller.inode(descriptor) else {
            return Ok(PROCEED);
        };
        let Some(socket) = table.sockets.get_mut(&inode) else {
            return Ok(PROCEED);
        };
        if flags & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 {
            return Err(Errno::INVAL);
        }
        socket.holder = Holder::of(caller, descriptor);
        let listening = match &mut socket.state {
            State::Listening(listening) => listening,
            State::Datagram(_) => return Err(Errno::OPNOTSUPP),
            _ => return Err(Errno::INVAL),
        };
        let is_direct = listening.is_direct;
        let mut next = listening.pending.pop_front();
        let is_last = listening.pending.is_empty();
        if next.is_none() && is_direct {
            next = self.accept_from_near(table, caller, descriptor)?;
        }
        let Some(pending) = next else {
            take_tokens(table, caller, descriptor, inode);
            if is_direct {
                // The near end does not report to the supervisor, so it is polled.
                self.overdue.insert(inode);
            }
            if caller.flags(descriptor).is_nonblocking {
                return Err(Errno::AGAIN);
            }
            let socket = table.sockets.get(&inode);
            let patience = socket.and_then(|it| it.patience(libc::SO_RCVTIMEO));
            return Ok(table.park(inode, caller, patience));
        };
        let (local, peer) = (pending.local, pending.peer);
        if !is_direct && is_last {
            // `take_tokens` needs the near end; once the call is answered, it can no longer be
            // duplicated.
            caller.fetch(descriptor).ok();
        }
        match self.give(table, streams, caller, (inode, pending, flags)) {
            Ok(()) => {
                take_tokens(table, caller, descriptor, inode);
                Ok(Reply::Done)
            }
            Err(NotGiven { origin, errno }) => {
                // The caller was interrupted, or has no free descriptor: the next call gets the
                // session.
                if let (Some(origin), Some(listening)) = (origin, table.listening(inode)) {
                    let pending = Pending {
                        local,
                        peer,
                        origin,
                    };
                    listening.pending.push_front(pending);
                }
                Err(errno)
            }
        }
    }

    /// Gives a session to the caller, or returns it if that fails.
    fn give(
        &mut self,
        table: &mut Table,
        streams: &mut Streams,
        caller: &mut Caller<'_>,
        (listener, pending, flags): (u64, Pending, i32),
    ) -> Result<(), NotGiven> {
        let Pending {
            local,
            peer,
            origin,
        } = pending;
        let (near, far) = match near_end(table, caller, listener, peer, &origin, flags) {
            Ok(made) => made,
            Err(errno) => {
                let origin = Some(origin);
                return Err(NotGiven { origin, errno });
            }
        };
        // The call is answered here: from now on, the session cannot go back to the queue.
        let closes_on_exec = flags & libc::SOCK_CLOEXEC != 0;
        let given = inode_of(&near).and_then(|inode| {
            let descriptor = caller.answer_with(near.as_fd(), closes_on_exec)?;
            Ok((inode, Holder::of(caller, descriptor)))
        });
        let (inode, holder) = match given {
            Ok(given) => given,
            Err(errno) => {
                let origin = Some(origin);
                return Err(NotGiven { origin, errno });
            }
        };
        let state = match origin {
            Origin::Stack(engine) => State::Open(Stream::new(engine, Report::Made, Head::Data)),
            Origin::Program(_) => State::Joined(Joined::new(Report::Made)),
            // It has its pair and its entry already, and only gets its inode and its holder.
            Origin::Session(_, key) => {
                self.settle_given(table, streams, key, inode, holder);
                return Ok(());
            }
        };
        let mut socket = self.accepted(table, listener, (local, peer), state);
        socket.far = far;
        socket.holder = holder;
        let resets_on_close = socket.resets_on_close;
        insert_or_end(table, inode, socket);
        if !table.sockets.contains_key(&inode) {
            return Ok(());
        }
        if table.peer_of(inode).is_none()
            && let Some(name) = named::peers_name(&near)
        {
            direct::join_named(table, inode, &name);
        }
        if resets_on_close {
            table.arm_reset(inode);
        }
        // Bytes may have arrived before the accept; they trigger no further event.
        streams.give_to_program(table, inode);
        Ok(())
    }

    /// A new socket, with the properties of the listener that accepted it.
    fn accepted(
        &self,
        table: &Table,
        listener: u64,
        (local, peer): (SocketAddr, SocketAddr),
        state: State,
    ) -> Socket {
        let of = table.sockets.get(&listener);
        let kernel = Rc::clone(of.map_or(&self.spare, |of| &of.kernel));
        Socket {
            is_v6: of.is_some_and(|of| of.is_v6),
            is_v6_only: of.is_some_and(|of| of.is_v6_only),
            options: of.map(|of| of.options.clone()).unwrap_or_default(),
            owns_kernel: false,
            peer: Some(peer),
            send_bytes: of.and_then(|of| of.send_bytes),
            window_max: of.and_then(|of| of.window_max),
            resets_on_close: of.is_some_and(|of| of.resets_on_close),
            lingers: of.and_then(|of| of.lingers),
            ..Socket::new(Transport::Tcp, kernel, local, state)
        }
    }

    /// Stops listening; the socket stays bound.
    pub(super) fn stop(&self, table: &mut Table, inode: u64) {
        let Some(socket) = table.sockets.get_mut(&inode) else {
            return;
        };
        let (claim, port) = (socket.claim(false), socket.local.port());
        let State::Listening(listening) = std::mem::replace(&mut socket.state, State::Bound) else {
            return;
        };
        if let Some(number) = socket.named.take() {
            table.names.forget(number);
        }
        // It cannot fail: the socket had the port before.
        let _ = table.ports.take(Transport::Tcp, port, inode, claim);
        table.close_listening(listening);
        table.calls.fail(inode, Errno::INVAL);
    }
}

/// Adds a socket whose program has it already; if that fails, its session ends at both ends.
fn insert_or_end(table: &mut Table, inode: u64, socket: Socket) {
    let engines = socket.engines();
    if let Err(error) = table.insert(inode, socket) {
        crate::aside::say(format!("a session cannot be joined: {error}"));
        // The peer sees the same end as the program.
        for engine in engines {
            table.engine.close(engine, super::engine::Close::Reset);
        }
    }
}

/// The near end of a session for a caller, and the far one if the supervisor keeps it.
fn near_end(
    table: &Table,
    caller: &mut Caller<'_>,
    listener: u64,
    peer: SocketAddr,
    origin: &Origin,
    flags: i32,
) -> Result<(OwnedFd, Option<OwnedFd>), Errno> {
    let of = table.sockets.get(&listener).ok_or(Errno::BADF)?;
    write_peer(caller, peer, of.is_v6)?;
    let is_nonblocking = flags & libc::SOCK_NONBLOCK != 0;
    match origin {
        Origin::Stack(_) => {
            let (near, far) = pair(is_nonblocking)?;
            if let Some(bytes) = of.send_bytes {
                limit_sending(near.as_fd(), bytes);
            }
            if let Some(window) = of.window_max {
                limit_sending(far.as_fd(), 2 * window);
            }
            Ok((near, Some(far)))
        }
        Origin::Program(near) | Origin::Session(near, _) => {
            set_nonblocking(near, is_nonblocking)?;
            // The queue keeps its own: the call may still fail.
            let near = near.try_clone().map_err(|_| Errno::MFILE)?;
            Ok((near, None))
        }
    }
}

/// Removes the connections that announced sessions, once none waits, and connections by other
/// processes, which carry no session.
fn take_tokens(table: &mut Table, caller: &Caller<'_>, descriptor: i32, inode: u64) {
    let Some(listening) = table.listening(inode) else {
        return;
    };
    if !listening.pending.is_empty() {
        return;
    }
    listening.tokens.clear();
    // The library takes the tokens of its listener itself.
    if listening.is_direct {
        return;
    }
    let Ok(near) = caller.fetch(descriptor) else {
        return;
    };
    for _ in 0..=TOKENS_MAX {
        // The program's descriptor may be blocking; this call must not block.
        if !local_socket::is_readable(near.as_fd()) || rustix::net::accept(&near).is_err() {
            return;
        }
    }
}

/// One of several listeners on a port, chosen by the peer's port.
fn turn_of(listeners: &[u64], peer: SocketAddr) -> Option<u64> {
    let turn = usize::from(peer.port()).checked_rem(listeners.len())?;
    listeners.get(turn).copied()
}

/// Writes the peer's address to the arguments of accept(2).
fn write_peer(caller: &mut Caller<'_>, peer: SocketAddr, is_v6: bool) -> Result<(), Errno> {
    let [_, target, length, ..] = caller.call.arguments;
    if target == 0 {
        return Ok(());
    }
    caller.write_sized(target, length, &address::write(peer, is_v6))
}

/// Bound of listen(2)'s backlog, like net.core.somaxconn.
const BACKLOG_MAX: u32 = 4096;
/// Connections that announce pending sessions.
const TOKENS_MAX: usize = 64;

#[cfg(test)]
mod tests;
