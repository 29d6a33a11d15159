//! listen(2), accept(2), and connections to listeners.

use super::{PROCEED, Reply, Supervisor, ZERO, named};
use crate::address;
use crate::caller::Caller;
use crate::ports::Transport;
use crate::socket::{
    From, Listening, Opened, Pending, Purpose, State, Stream, inode_of, is_hung_up, listening_end,
    local_stream, pair, set_nonblocking,
};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use sidecore_net::sock::client::Socket as Session;
use sidecore_net_rings::{Name, Role};
use sidecore_sys::{local_socket, socket_option};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

impl Supervisor {
    pub(super) fn listen(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let descriptor = caller.int(0);
        let Some(inode) = caller.inode(descriptor) else {
            return Ok(PROCEED);
        };
        let backlog = caller.int(1);
        let inode = if self.sockets.contains_key(&inode) {
            inode
        } else {
            let Some(opened) = Opened::of(caller.fetch(descriptor)?) else {
                return Ok(PROCEED);
            };
            let opened = self.unheard.as_opened(inode, opened);
            let any = SocketAddr::new(opened.any(), 0);
            // A socket that has a port or a peer in the kernel stays there.
            let is_kernels = opened.local.port() != 0 || opened.is_connected;
            if opened.transport != Transport::Tcp
                || is_kernels
                || self.scope.of_local(any.ip()).is_none()
            {
                return Ok(PROCEED);
            }
            self.adopt(caller, descriptor, opened, any)?
        };
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return Ok(PROCEED);
        };
        let backlog = if backlog < 0 {
            BACKLOG_MAX
        } else {
            backlog.cast_unsigned().clamp(1, BACKLOG_MAX)
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
        // Sockets that share a port by SO_REUSEADDR may be bound together, but not listen together.
        let (claim, port) = (socket.claim(true), socket.local.port());
        if !self.take_port(inode, Transport::Tcp, port, claim) {
            return Err(Errno::ADDRINUSE);
        }
        if self.ask_stack(inode, Some(backlog), Purpose::Listen)? {
            // The call is repeated once the stack has answered.
            return Ok(self.park_asking(inode, caller));
        }
        let engines = self.take_asked(inode)?;
        let is_direct = caller.call.arguments[5] == sidecore_net_rings::BY_ITSELF;
        let as_listener = (backlog, is_direct, engines);
        let started = self.start_listening(caller, descriptor, inode, as_listener)?;
        // Sessions may have arrived already.
        self.take_accepted(started);
        Ok(ZERO)
    }

    /// Replaces a bound socket by a listening near end.
    fn start_listening(
        &mut self,
        caller: &Caller<'_>,
        descriptor: i32,
        inode: u64,
        (backlog, is_direct, engines): (u32, bool, Vec<Session>),
    ) -> Result<u64, Errno> {
        let flags = caller.flags(descriptor);
        let own_name = is_direct.then(|| self.direct.listener());
        let (near, name) = match &own_name {
            Some(name) => {
                let made = named::listening_end(name, flags.is_nonblocking)?;
                // Direct accepts block in the kernel, so SO_RCVTIMEO has to be set there.
                let (level, option) = (libc::SOL_SOCKET, libc::SO_RCVTIMEO);
                if let Ok(patience) = self.option_value(inode, level, option, 16) {
                    socket_option::set(made.0.as_fd(), level, option, &patience).ok();
                }
                made
            }
            None => listening_end(flags.is_nonblocking)?,
        };
        let listener = inode_of(&near)?;
        let mut socket = self.remove(inode).ok_or(Errno::BADF)?;
        if let Some(name) = own_name {
            socket.named = Some(name.number);
            self.direct.bear(name.number, listener);
        }
        socket.state = State::Listening(Listening {
            engines,
            backlog,
            name: Some(name),
            is_direct,
            ..Listening::default()
        });
        let (claim, port) = (socket.claim(true), socket.local.port());
        // It cannot fail: no other claim was made in between.
        let _ = self.ports.take(Transport::Tcp, port, listener, claim);
        let begun = self
            .insert(listener, socket)
            .and_then(|()| self.open_doors(listener))
            .and_then(|()| self.replace(caller, descriptor, &near, flags));
        let Err(error) = begun else {
            self.sweep_every = super::SWEEP_LISTENERS_EVERY;
            return Ok(listener);
        };
        // It stays bound, as it was.
        if let Some(mut socket) = self.remove(listener) {
            if let State::Listening(listening) = std::mem::replace(&mut socket.state, State::Bound)
            {
                self.close_listening(listening);
            }
            let claim = socket.claim(false);
            let _ = self.ports.take(Transport::Tcp, port, inode, claim);
            self.insert(inode, socket)?;
        }
        Err(error)
    }

    /// Opens rendezvous sockets, so that other supervisors find a listener.
    fn open_doors(&mut self, inode: u64) -> Result<(), Errno> {
        let (Some(socket), Some(rendezvous)) = (self.sockets.get(&inode), &self.rendezvous) else {
            return Ok(());
        };
        if !self.scope.has_loopback {
            return Ok(());
        }
        let claim = socket.claim(true);
        // Sockets that share a port do so within one supervisor; the first has the rendezvous
        // socket.
        let others = self.ports.at(Transport::Tcp, socket.local);
        if others.iter().any(|other| *other != inode) {
            return Ok(());
        }
        let direct = match &socket.state {
            State::Listening(listening) if listening.is_direct => socket.named,
            _ => None,
        };
        let near = direct.map(|number| {
            let name = Name::new(Role::Listener, std::process::id(), number);
            (name, socket.is_v6)
        });
        let doors = rendezvous.open(socket.local, claim.is_v6_only, inode, near)?;
        let mut places = Vec::new();
        for door in doors {
            let place = self.doors.iter().position(Option::is_none);
            let place = place.unwrap_or_else(|| {
                self.doors.push(None);
                self.doors.len() - 1
            });
            let mark = EventData::new_u64(super::DOORS + place as u64);
            epoll::add(&self.epoll, door.file(), mark, EventFlags::IN)?;
            self.doors[place] = Some(door);
            places.push(place);
        }
        if let Some(socket) = self.sockets.get_mut(&inode)
            && let State::Listening(listening) = &mut socket.state
        {
            listening.doors = places;
        }
        Ok(())
    }

    /// Queues sessions that programs of other supervisors open.
    pub(super) fn answer_door(&mut self, place: usize) {
        let mut came = Vec::new();
        let mut owner = None;
        if let Some(Some(door)) = self.doors.get(place) {
            owner = Some(door.owner());
            while came.len() < VISITS_MAX
                && let Some(pending) = door.next()
            {
                came.push(pending);
            }
        }
        if let Some(inode) = owner {
            for pending in came {
                // A full listener drops the session, which its opener sees as a hang-up.
                self.queue(inode, pending).ok();
            }
        }
    }

    /// Opens a loopback session between two addresses: the near end of the connecting program, and
    /// the other one if it belongs to a program of this supervisor.
    pub(super) fn open_between(
        &mut self,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Result<(OwnedFd, Option<u64>), Errno> {
        let listeners = self.listeners_at(peer);
        if let Some(listener) = turn_of(&listeners, local) {
            let (near, other) = pair(true)?;
            let mate = inode_of(&other)?;
            let pending = Pending {
                local: peer,
                peer: local,
                from: From::Program(other),
            };
            self.queue(listener, pending)?;
            return Ok((near, Some(mate)));
        }
        let rendezvous = self.rendezvous.as_ref().ok_or(Errno::CONNREFUSED)?;
        let mut name = self.direct.name(Role::Program);
        // The listener's family is not known here: IPv4-mapped addresses work for both.
        name.ends = [local, peer].map(|end| named::end_bytes(end, true));
        Ok((rendezvous.visit(peer, &name)?, None))
    }

    /// This supervisor's listeners at an address.
    pub(super) fn listeners_at(&mut self, local: SocketAddr) -> Vec<u64> {
        let listeners = self.ports.at(Transport::Tcp, local);
        if listeners.iter().any(|inode| self.is_closed(*inode)) {
            self.forget_closed(Transport::Tcp, local.port());
            return self.ports.at(Transport::Tcp, local);
        }
        listeners
    }

    fn queue(&mut self, inode: u64, pending: Pending) -> Result<(), Errno> {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return Err(Errno::CONNREFUSED);
        };
        let State::Listening(listening) = &mut socket.state else {
            return Err(Errno::CONNREFUSED);
        };
        if listening.pending.len() >= PENDING_MAX {
            return Err(Errno::CONNREFUSED);
        }
        listening.pending.push_back(pending);
        if !self.show_pending(inode) {
            self.forget(inode);
            return Err(Errno::CONNREFUSED);
        }
        self.retry(inode);
        self.refuse_unshown(inode)
    }

    /// Refuses the newest session if no connection announces that sessions wait. The opener gets an
    /// error then, instead of both programs waiting for each other.
    fn refuse_unshown(&mut self, inode: u64) -> Result<(), Errno> {
        if let Some(socket) = self.sockets.get_mut(&inode)
            && let State::Listening(listening) = &mut socket.state
            && listening.unshown.is_some()
            && listening.tokens.is_empty()
            && listening.pending.pop_back().is_some()
        {
            return Err(Errno::CONNREFUSED);
        }
        Ok(())
    }

    /// Queues sessions that the stack has accepted for a listener.
    pub(super) fn take_accepted(&mut self, inode: u64) {
        let (Some(socket), Some(client)) = (self.sockets.get_mut(&inode), &mut self.client) else {
            return;
        };
        let local = socket.local;
        let State::Listening(listening) = &mut socket.state else {
            return;
        };
        for engine in &listening.engines {
            while let Some((session, peer)) = client.accept(*engine) {
                listening.pending.push_back(Pending {
                    local: client.local(session).unwrap_or(local),
                    peer,
                    from: From::Stack(session),
                });
            }
        }
        if !self.show_pending(inode) {
            return self.forget(inode);
        }
        if self
            .sockets
            .get(&inode)
            .is_some_and(|socket| !socket.waiting.is_empty())
        {
            self.retry(inode);
        }
    }

    /// Makes the near end readable while sessions wait. Each new session adds a connection, up to a
    /// bound, for edge-triggered polls (EPOLLET). False if no program has the near end any more.
    pub(super) fn show_pending(&mut self, inode: u64) -> bool {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return true;
        };
        let State::Listening(listening) = &mut socket.state else {
            return true;
        };
        if listening.is_direct {
            return self.show_direct(inode);
        }
        let Some(name) = &listening.name else {
            return true;
        };
        if listening.pending.is_empty() {
            return true;
        }
        if listening.tokens.len() >= TOKENS_MAX {
            return !listening.tokens.front().is_some_and(is_hung_up);
        }
        let shown = local_stream(true).and_then(|token| {
            rustix::net::connect(&token, name)?;
            listening.tokens.push_back(token);
            Ok(())
        });
        listening.unshown = shown.err().filter(|error| *error != Errno::AGAIN);
        if listening.tokens.is_empty() {
            // A program that polls it would wait for ever: the announcement is repeated later.
            self.watch_waiting(inode);
        }
        shown != Err(Errno::CONNREFUSED)
    }

    pub(super) fn accept(&mut self, caller: &mut Caller<'_>, flags: i32) -> Result<Reply, Errno> {
        let descriptor = caller.int(0);
        let Some(inode) = caller.inode(descriptor) else {
            return Ok(PROCEED);
        };
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return Ok(PROCEED);
        };
        if flags & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) != 0 {
            return Err(Errno::INVAL);
        }
        socket.holder = (caller.call.thread, descriptor);
        let State::Listening(listening) = &mut socket.state else {
            return Err(if matches!(socket.state, State::Datagram(_)) {
                Errno::OPNOTSUPP
            } else {
                Errno::INVAL
            });
        };
        let is_direct = listening.is_direct;
        let mut next = listening.pending.pop_front();
        let is_last = listening.pending.is_empty();
        if next.is_none() && is_direct {
            next = self.accept_from_near(caller, descriptor)?;
        }
        let Some(pending) = next else {
            self.take_tokens(caller, descriptor, inode);
            if is_direct {
                self.watch_waiting(inode);
            }
            if caller.flags(descriptor).is_nonblocking {
                return Err(Errno::AGAIN);
            }
            let patience = self.patience(inode, libc::SO_RCVTIMEO);
            return Ok(self.park(inode, caller, patience));
        };
        let (local, peer) = (pending.local, pending.peer);
        if !is_direct && is_last {
            // `take_tokens` needs the near end; once the call is answered, it can no longer be
            // duplicated.
            caller.fetch(descriptor).ok();
        }
        let given = self.give(caller, inode, pending, flags);
        match given {
            Ok(()) => {
                self.take_tokens(caller, descriptor, inode);
                Ok(Reply::Done)
            }
            Err((Some(from), error)) => {
                // The caller was interrupted, or has no free descriptor: the next call gets the
                // session.
                if let Some(socket) = self.sockets.get_mut(&inode)
                    && let State::Listening(listening) = &mut socket.state
                {
                    listening.pending.push_front(Pending { local, peer, from });
                }
                Err(error)
            }
            Err((None, error)) => Err(error),
        }
    }

    /// Gives a session to the caller, or returns it if that fails.
    fn give(
        &mut self,
        caller: &mut Caller<'_>,
        listener: u64,
        pending: Pending,
        flags: i32,
    ) -> Result<(), (Option<From>, Errno)> {
        let Pending { local, peer, from } = pending;
        let Some(of) = self.sockets.get(&listener) else {
            return Err((Some(from), Errno::BADF));
        };
        let is_v6 = of.is_v6;
        let is_nonblocking = flags & libc::SOCK_NONBLOCK != 0;
        if let Err(error) = write_peer(caller, peer, is_v6) {
            return Err((Some(from), error));
        }
        let made = match &from {
            From::Stack(_) => pair(is_nonblocking).map(|(near, far)| (near, Some(far))),
            From::Program(near) | From::Session(near, _) => set_nonblocking(near, is_nonblocking)
                .and_then(|()| near.try_clone().map_err(|_| Errno::MFILE))
                .map(|near| (near, None)),
        };
        let (near, far) = match made {
            Ok(made) => made,
            Err(error) => return Err((Some(from), error)),
        };
        let inode = match inode_of(&near) {
            Ok(inode) => inode,
            Err(error) => return Err((Some(from), error)),
        };
        // The call is answered here: from now on, the session cannot go back to the queue.
        let closes_on_exec = flags & libc::SOCK_CLOEXEC != 0;
        let descriptor =
            match self
                .listener
                .answer_with(caller.call.id, near.as_fd(), closes_on_exec)
            {
                Ok(descriptor) => descriptor,
                Err(error) => return Err((Some(from), error)),
            };
        let state = match from {
            From::Stack(engine) => State::Open(Stream::new(engine, true, 0)),
            From::Program(_) => State::Joined(true),
            // It has its pair and its entry already, and only gets its inode and its holder.
            From::Session(_, key) => {
                self.settle_given(key, inode, (caller.call.thread, descriptor));
                return Ok(());
            }
        };
        let mut socket = self.accepted(listener, local, peer, state);
        socket.far = far;
        socket.holder = (caller.call.thread, descriptor);
        let resets_on_close = socket.resets_on_close;
        let engines = socket.engines();
        if let Err(error) = self.insert(inode, socket) {
            crate::aside::say(format!("a session cannot be joined: {error}"));
            // The peer sees the same end as the program.
            for engine in engines {
                self.close_session(engine, true);
            }
            return Ok(());
        }
        if !self.mates.contains_key(&inode)
            && let Some(name) = named::peers_name(&near)
        {
            self.link_mates(inode, &name);
        }
        if resets_on_close {
            self.arm_reset(inode);
        }
        // Bytes may have arrived before the accept; they trigger no further event.
        self.give_to_program(inode);
        Ok(())
    }

    /// Removes the connections that announced sessions, once none waits, and connections by other
    /// processes, which carry no session.
    fn take_tokens(&mut self, caller: &Caller<'_>, descriptor: i32, inode: u64) {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return;
        };
        let State::Listening(listening) = &mut socket.state else {
            return;
        };
        if !listening.pending.is_empty() {
            return;
        }
        listening.tokens.clear();
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

    /// Stops listening; the socket stays bound.
    pub(super) fn stop_listening(&mut self, inode: u64) {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return;
        };
        let (claim, port) = (socket.claim(false), socket.local.port());
        let State::Listening(listening) = std::mem::replace(&mut socket.state, State::Bound) else {
            return;
        };
        if let Some(number) = socket.named.take() {
            self.direct.forget(number);
        }
        // It cannot fail: the socket had the port before.
        let _ = self.ports.take(Transport::Tcp, port, inode, claim);
        self.close_listening(listening);
        self.fail_waiting(inode, Errno::INVAL);
    }

    pub(super) fn close_listening(&mut self, listening: Listening) {
        for place in listening.doors {
            if let Some(door) = self.doors.get_mut(place) {
                *door = None;
            }
        }
        for engine in listening.engines {
            self.sessions.remove(&engine);
            self.close_session(engine, false);
        }
        for pending in listening.pending {
            match pending.from {
                From::Stack(session) => self.close_session(session, true),
                From::Session(_, key) => self.forget(key),
                From::Program(_) => {}
            }
        }
    }

    /// Answers shutdown(2).
    pub(super) fn shutdown(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let Some(inode) = caller.inode(caller.int(0)) else {
            return Ok(PROCEED);
        };
        let Some(socket) = self.sockets.get(&inode) else {
            return Ok(PROCEED);
        };
        let how = caller.int(1);
        if !(0..=2).contains(&how) {
            return Err(Errno::INVAL);
        }
        match socket.state {
            State::Listening(_) => {
                if how == libc::SHUT_WR {
                    return Ok(ZERO);
                }
                self.stop_listening(inode);
                // The kernel runs the call as well, so that polls of the near end report it.
                Ok(PROCEED)
            }
            State::Joined(_) => {
                if how != libc::SHUT_RD {
                    self.ended.insert(inode);
                }
                Ok(PROCEED)
            }
            State::Open(_) | State::Datagram(_) => Ok(PROCEED),
            _ => Err(Errno::NOTCONN),
        }
    }
}

/// One of several listeners on a port, chosen by the peer's port.
pub(super) fn turn_of(listeners: &[u64], peer: SocketAddr) -> Option<u64> {
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
/// Loopback sessions in one accept queue.
const PENDING_MAX: usize = 8192;
/// Sessions from other supervisors that one event accepts.
const VISITS_MAX: usize = 256;
/// Connections that announce pending sessions.
pub(super) const TOKENS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scope::Scope;
    use sidecore_sys::seccomp::{self, When};

    fn supervisor() -> Supervisor {
        let calls = [(libc::SYS_getcpu, When::Always)];
        let listener = std::thread::spawn(move || seccomp::install(&calls).unwrap());
        let listener = listener.join().unwrap();
        Supervisor::new(listener, None, None, Scope::default(), None).unwrap()
    }

    #[test]
    fn a_session_that_nothing_shows_is_refused() {
        for is_direct in [false, true] {
            let mut it = supervisor();
            let (near, name) = listening_end(true).unwrap();
            // As if descriptors were short: the announcing connection cannot be made.
            let wrong = rustix::net::SocketAddrUnix::new("/proc/none");
            let listening = Listening {
                name: Some(wrong.unwrap()),
                is_direct,
                ..Listening::default()
            };
            let ends = ["127.0.0.1:1", "127.0.0.1:2"].map(|end| end.parse().unwrap());
            let [local, peer] = ends;
            let socket = it.accepted(0, local, peer, State::Listening(listening));
            it.insert(1, socket).unwrap();
            let pending = || Pending {
                local,
                peer,
                from: From::Program(pair(true).unwrap().0),
            };
            let waiting = |it: &mut Supervisor| match &mut it.sockets.get_mut(&1).unwrap().state {
                State::Listening(listening) => (listening.pending.len(), listening.tokens.len()),
                _ => panic!("it listens no more"),
            };
            assert_eq!(it.queue(1, pending()), Err(Errno::CONNREFUSED));
            assert_eq!(waiting(&mut it), (0, 0));
            // With a reachable near end, the next session is announced.
            if let State::Listening(listening) = &mut it.sockets.get_mut(&1).unwrap().state {
                listening.name = Some(name);
            }
            assert_eq!(it.queue(1, pending()), Ok(()));
            assert_eq!(waiting(&mut it), (1, 1));
            assert!(local_socket::is_readable(near.as_fd()));
        }
    }
}
