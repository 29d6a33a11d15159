//! Listeners with direct accepts: the preload library of the program calls the kernel's accept(2)
//! on the near end, and no call of it reaches the supervisor.
//!
//! Each session is a connection to the near end, whose far end has a name with the addresses
//! ([`sidecore_net_rings::Name`]). The supervisor learns the inode of the accepted end at the first
//! call about it; until then a session of the stack has a temporary number. Must stay true: a name
//! is trusted only if the kernel reports that this process has connected or, for the loopback, a
//! process of this user; programs whose accept calls reach the supervisor can share such a listener
//! with those whose calls do not.

use super::named::{
    ACCEPTING, Maker, connect_named, end_bytes, ends_of, is_accepting, is_made_by, is_there,
    listener_of, peers_name, read_name,
};
use super::{Supervisor, resets};
use crate::caller::Caller;
use crate::ports::Transport;
use crate::socket::{From, NOBODY, Pending, Socket, State, Stream, set_nonblocking};
use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, SocketFlags};
use sidecore_net::sock::client::Socket as Session;
use sidecore_net_rings::{Name, Role};
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

/// Names, and the sockets that have them.
#[derive(Debug, Default)]
pub(super) struct Direct {
    /// Names made so far.
    count: u64,
    /// Derives numbers from the count, with a secret key, so that no other process can predict the
    /// next name and bind it first.
    numbers: std::collections::hash_map::RandomState,
    /// The last temporary number of a session.
    last_key: u64,
    /// Sockets by the numbers of their names: listeners, sessions not known to be accepted, and
    /// near ends of connecting programs.
    named: HashMap<u64, u64>,
    /// Inodes that were examined and are not sessions.
    strangers: HashSet<u64>,
    /// Listeners that are polled: more sessions wait than the near end takes, or a call waits for a
    /// session.
    overdue: HashSet<u64>,
    has_listeners: bool,
}

/// A program's end of a session that was opened directly.
pub(super) struct Opened {
    pub(super) near: OwnedFd,
    pub(super) number: u64,
    /// The listener, if this supervisor has it.
    pub(super) listener: Option<u64>,
}

impl Direct {
    fn number(&mut self) -> u64 {
        use std::hash::BuildHasher;
        self.count = self.count.wrapping_add(1);
        self.numbers.hash_one(self.count)
    }

    pub(super) fn name(&mut self, role: Role) -> Name {
        Name::new(role, std::process::id(), self.number())
    }

    /// True if listeners have to be polled soon.
    pub(super) fn is_overdue(&self) -> bool {
        !self.overdue.is_empty()
    }

    pub(super) fn bear(&mut self, number: u64, inode: u64) {
        self.named.insert(number, inode);
    }

    pub(super) fn forget(&mut self, number: u64) {
        self.named.remove(&number);
    }

    /// A new name for a listener.
    pub(super) fn listener(&mut self) -> Name {
        self.has_listeners = true;
        self.name(Role::Listener)
    }
}

impl Supervisor {
    /// Connects pending sessions to a listener's near end. False if no program has it any more.
    pub(super) fn show_direct(&mut self, inode: u64) -> bool {
        let mut left = VecDeque::new();
        let mut is_there = true;
        while let Some((pending, name)) = self.next_pending(inode) {
            let done = match &pending.from {
                From::Stack(session) => {
                    let ends = (pending.local, pending.peer);
                    self.bring(inode, &name, *session, ends)
                }
                _ => Err(Errno::OPNOTSUPP),
            };
            match done {
                Ok(()) => {}
                Err(Errno::CONNREFUSED) => {
                    is_there = false;
                    left.push_back(pending);
                }
                Err(_) => left.push_back(pending),
            }
        }
        if let Some(listening) = self.listening(inode) {
            listening.pending = left;
        }
        is_there && self.show_tokens(inode)
    }

    fn listening(&mut self, inode: u64) -> Option<&mut crate::socket::Listening> {
        match &mut self.sockets.get_mut(&inode)?.state {
            State::Listening(listening) => Some(listening),
            _ => None,
        }
    }

    fn next_pending(&mut self, inode: u64) -> Option<(Pending, SocketAddrUnix)> {
        let listening = self.listening(inode)?;
        let name = listening.name.clone()?;
        Some((listening.pending.pop_front()?, name))
    }

    /// Announces sessions that cannot be connected directly: the library then makes a call that
    /// reaches the supervisor.
    fn show_tokens(&mut self, inode: u64) -> bool {
        let number = self.direct.name(Role::Token);
        let Some(listening) = self.listening(inode) else {
            return true;
        };
        let wanted = listening.pending.len().min(super::listen::TOKENS_MAX);
        let Some(name) = listening.name.clone().filter(|_| wanted > 0) else {
            listening.tokens.clear();
            return true;
        };
        let mut is_there = true;
        if listening.tokens.len() < wanted {
            match connect_named(&number, &name, Maker::Own) {
                Ok(token) => {
                    listening.tokens.push_back(token);
                    listening.unshown = None;
                }
                Err(error) => {
                    is_there = error != Errno::CONNREFUSED;
                    listening.unshown = Some(error).filter(|error| *error != Errno::AGAIN);
                }
            }
        }
        self.direct.overdue.insert(inode);
        is_there
    }

    /// Connects one session of the stack to a near end.
    fn bring(
        &mut self,
        listener: u64,
        to: &SocketAddrUnix,
        session: Session,
        (local, peer): (SocketAddr, SocketAddr),
    ) -> Result<(), Errno> {
        let mut name = self.direct.name(Role::Session);
        let of = self.sockets.get(&listener).ok_or(Errno::CONNREFUSED)?;
        name.ends = [peer, local].map(|end| end_bytes(end, of.is_v6));
        let far = connect_named(&name, to, Maker::Own)?;
        let mut stream = Stream::new(session, true, 0);
        stream.hello = Some(name.number);
        let mut socket = self.accepted(listener, local, peer, State::Open(stream));
        socket.far = Some(far);
        socket.named = Some(name.number);
        self.direct.last_key = (self.direct.last_key + 1) % ACCEPTING;
        let key = ACCEPTING | self.direct.last_key;
        if let Err(error) = self.insert(key, socket) {
            crate::aside::say(format!("a session cannot be joined: {error}"));
            self.close_session(session, true);
            return Ok(());
        }
        self.direct.bear(name.number, key);
        self.give_to_program(key);
        Ok(())
    }

    /// A new socket, with the properties of the listener that accepted it.
    pub(super) fn accepted(
        &self,
        listener: u64,
        local: SocketAddr,
        peer: SocketAddr,
        state: State,
    ) -> Socket {
        let of = self.sockets.get(&listener);
        let kernel = of.map(|of| Rc::clone(&of.kernel));
        Socket {
            transport: Transport::Tcp,
            is_v6: of.is_some_and(|of| of.is_v6),
            is_v6_only: of.is_some_and(|of| of.is_v6_only),
            far: None,
            kernel: kernel.unwrap_or_else(|| Rc::clone(&self.spare)),
            options: of.map(|of| of.options.clone()).unwrap_or_default(),
            owns_kernel: false,
            bound: local.ip(),
            local,
            peer: Some(peer),
            state,
            waiting: VecDeque::new(),
            holder: NOBODY,
            resets_on_close: of.is_some_and(|of| of.resets_on_close),
            carrier: None,
            ring_place: None,
            named: None,
            asked: None,
        }
    }

    /// Opens a session that another program's library accepts; none if the listener has no direct
    /// accepts.
    pub(super) fn open_directly(&mut self, local: SocketAddr, peer: SocketAddr) -> Option<Opened> {
        // Listeners of this supervisor come first; the folder names those of others.
        let listeners = self.listeners_at(peer);
        let (to, is_v6, listener) = match super::listen::turn_of(&listeners, local) {
            Some(inode) => {
                let is_v6 = self.sockets.get(&inode)?.is_v6;
                let listening = self.listening(inode).filter(|it| it.is_direct)?;
                (listening.name.clone()?, is_v6, Some(inode))
            }
            None => {
                let (name, is_v6) = self.rendezvous.as_ref()?.near_of(peer)?;
                let name = SocketAddrUnix::new_abstract_name(&name.bytes()).ok()?;
                (name, is_v6, None)
            }
        };
        // The name of this end carries both addresses, so the accepting library needs no call for
        // them.
        let mut name = self.direct.name(Role::Program);
        name.ends = [local, peer].map(|end| end_bytes(end, is_v6));
        if !name.is_of_loopback() {
            return None;
        }
        // Any process may bind a name that is free again, so the creator is checked.
        let maker = if listener.is_some() {
            Maker::Own
        } else {
            Maker::User
        };
        match connect_named(&name, &to, maker) {
            Ok(near) => {
                let of = listener.and_then(|listener| self.sockets.get(&listener));
                if of.is_some_and(|of| of.resets_on_close) {
                    resets::put_urgent(near.as_fd());
                }
                Some(Opened {
                    near,
                    number: name.number,
                    listener,
                })
            }
            Err(Errno::CONNREFUSED) => {
                // No program has the near end of the listener any more.
                if let Some(listener) = listener {
                    self.forget(listener);
                }
                None
            }
            Err(_) => None,
        }
    }

    /// Learns of a session that the caller has accepted directly, at its first call about it.
    pub(super) fn meet(&mut self, caller: &Caller<'_>) {
        // These calls are not about a session that was accepted.
        let is_about_one = !matches!(
            caller.call.number,
            libc::SYS_accept
                | libc::SYS_accept4
                | libc::SYS_bind
                | libc::SYS_listen
                | libc::SYS_epoll_create1
                | libc::SYS_io_uring_setup
        );
        if !self.direct.has_listeners || !is_about_one {
            return;
        }
        let descriptor = caller.int(0);
        let Some(inode) = caller.inode(descriptor) else {
            return;
        };
        // Sockets found not to be such sessions are remembered: fetching them at every call would
        // be slow.
        if self.sockets.contains_key(&inode) || self.direct.strangers.contains(&inode) {
            return;
        }
        let near = caller.fetch(descriptor);
        let name = near.as_ref().ok().and_then(|near| peers_name(near));
        let holder = (caller.call.thread, descriptor);
        match (near, name) {
            (Ok(near), Some(name)) => self.know(&near, inode, &name, holder),
            _ => {
                if self.direct.strangers.len() >= STRANGERS_MAX {
                    self.direct.strangers.clear();
                }
                self.direct.strangers.insert(inode);
            }
        }
    }

    fn know(&mut self, near: &OwnedFd, inode: u64, name: &Name, holder: (i32, i32)) {
        match name.role {
            Role::Session => {
                if let Some(key) = self.session_of(near, name) {
                    self.settle(key, inode, holder);
                }
            }
            Role::Program => {
                let listener = listener_of(near).and_then(|of| self.direct.named.get(&of).copied());
                let Some((local, peer)) = ends_of(name) else {
                    return;
                };
                let listener = listener.unwrap_or_default();
                let mut socket = self.accepted(listener, local, peer, State::Joined(true));
                socket.is_v6 |= name.ends[0].starts_with(&(libc::AF_INET6 as u16).to_ne_bytes());
                socket.holder = holder;
                if let Err(error) = self.insert(inode, socket) {
                    crate::aside::say(format!("a session cannot be joined: {error}"));
                }
                self.link_mates(inode, name);
            }
            Role::Listener | Role::Token => {}
        }
    }

    /// The session with this near end.
    fn session_of(&self, near: &OwnedFd, name: &Name) -> Option<u64> {
        let by = sidecore_sys::local_socket::peer(near.as_fd()).ok()?.pid;
        let own = std::process::id();
        let is_ours = i64::from(by) == i64::from(own) && name.process == own;
        let key = self.direct.named.get(&name.number).copied();
        key.filter(|key| is_ours && is_accepting(*key))
    }

    /// Records that the two sockets are the ends of one pair.
    pub(super) fn link_mates(&mut self, inode: u64, name: &Name) {
        if name.role == Role::Program
            && name.process == std::process::id()
            && let Some(mate) = self.direct.named.get(&name.number).copied()
        {
            self.mates.insert(inode, mate);
            self.mates.insert(mate, inode);
        }
    }

    /// Replaces the temporary number of a session by the inode of its near end.
    fn settle(&mut self, key: u64, inode: u64, holder: (i32, i32)) {
        let Some(mut socket) = self.sockets.remove(&key) else {
            return;
        };
        if let Some(number) = socket.named.take() {
            self.direct.forget(number);
        }
        socket.holder = holder;
        for engine in socket.engines() {
            self.sessions.insert(engine, inode);
        }
        if let Some(far) = &socket.far {
            let is_full = matches!(&socket.state, State::Open(stream) if stream.watches_room);
            super::transfer::watch(&self.epoll, far, inode, is_full);
        }
        for starved in self.starved.iter_mut().filter(|it| **it == key) {
            *starved = inode;
        }
        if self.sockets.contains_key(&inode) {
            // The inode was reused: the old socket was closed unnoticed.
            self.forget(inode);
        }
        self.sockets.insert(inode, socket);
        self.end_doomed(inode);
    }

    /// The next session at a listener's near end, for a program whose accept call reached the
    /// supervisor.
    pub(super) fn accept_from_near(
        &mut self,
        caller: &Caller<'_>,
        descriptor: i32,
    ) -> Result<Option<Pending>, Errno> {
        let near = caller.fetch(descriptor)?;
        let waits = !rustix::fs::fcntl_getfl(&near)?.contains(rustix::fs::OFlags::NONBLOCK);
        // This process must not block, and another one may accept what a poll has seen. A library
        // that accepts at this moment gets EAGAIN and tries again.
        if waits {
            set_nonblocking(&near, true)?;
        }
        let found = self.take_from_near(&near);
        if waits {
            set_nonblocking(&near, false).ok();
        }
        Ok(found)
    }

    fn take_from_near(&mut self, near: &OwnedFd) -> Option<Pending> {
        for _ in 0..TRIES_MAX {
            let (came, from) = rustix::net::acceptfrom_with(near, SocketFlags::CLOEXEC).ok()?;
            let Some(name) = from.and_then(read_name) else {
                continue;
            };
            let pending = match name.role {
                Role::Session => self.session_of(&came, &name).and_then(|key| {
                    let socket = self.sockets.get(&key)?;
                    Some(Pending {
                        local: socket.local,
                        peer: socket.peer?,
                        from: From::Session(came, key),
                    })
                }),
                Role::Program if is_made_by(&came, Maker::User) => {
                    ends_of(&name).map(|(local, peer)| Pending {
                        local,
                        peer,
                        from: From::Program(came),
                    })
                }
                Role::Program | Role::Listener | Role::Token => None,
            };
            if pending.is_some() {
                return pending;
            }
        }
        None
    }

    /// The calling program has accepted a session of the stack.
    pub(super) fn settle_given(&mut self, key: u64, inode: u64, holder: (i32, i32)) {
        if let Some(socket) = self.sockets.get_mut(&key)
            && let State::Open(stream) = &mut socket.state
        {
            stream.hello = None;
        }
        self.settle(key, inode, holder);
    }

    /// Polls a listener for which a call waits: the near end does not report to the supervisor.
    pub(super) fn watch_waiting(&mut self, inode: u64) {
        self.direct.overdue.insert(inode);
    }

    /// A program has closed a descriptor of a listener: if it was the last one, connections are
    /// refused from now on.
    pub(super) fn look_at_listener(&mut self, inode: u64) {
        let name = self.listening(inode).and_then(|it| it.name.clone());
        if name.is_some_and(|name| !is_there(&name)) {
            self.forget(inode);
        }
    }

    /// Polls the overdue listeners.
    pub(super) fn look_at_overdue(&mut self) {
        for inode in std::mem::take(&mut self.direct.overdue) {
            let Some(listening) = self.listening(inode) else {
                continue;
            };
            if !listening.is_direct {
                // Only an announcement that failed is repeated.
                if listening.tokens.is_empty() && !self.show_pending(inode) {
                    self.forget(inode);
                }
                continue;
            }
            if !listening.pending.is_empty() && !self.show_direct(inode) {
                self.forget(inode);
                continue;
            }
            self.retry(inode);
            if let Some(socket) = self.sockets.get(&inode)
                && let State::Listening(listening) = &socket.state
                && !(socket.waiting.is_empty() && listening.pending.is_empty())
            {
                self.direct.overdue.insert(inode);
            }
        }
    }
}

const STRANGERS_MAX: usize = 4096;
/// Connections at a near end that one call skips.
const TRIES_MAX: usize = 256;
