//! Listeners with direct accepts: the preload library of the program calls the kernel's accept(2)
//! on the near end, and no call of it reaches the supervisor.
//!
//! Each session is a connection to the near end, whose far end has a name with the addresses
//! ([`sidecore_net_rings::Name`]). The supervisor learns the inode of the accepted end at the first
//! call about it; until then a session of the stack has a temporary number. Must stay true: a name
//! is trusted only if the kernel reports that this process has connected or, for the loopback, a
//! process of this user; programs whose accept calls reach the supervisor can share such a listener
//! with those whose calls do not.

use super::super::named::{
    Maker, connect_named, end_bytes, ends_of, is_accepting, is_made_by, listener_of, peers_name,
    read_name,
};
use super::super::resets;
use super::*;
use crate::socket::files::set_nonblocking;
use rustix::net::{SocketAddrUnix, SocketFlags};
use std::collections::VecDeque;

/// A program's end of a session that was opened directly.
pub(in super::super) struct Opened {
    pub(in super::super) near: OwnedFd,
    pub(in super::super) number: u64,
    /// The listener, if this supervisor has it.
    pub(in super::super) listener: Option<u64>,
}

/// A listener with direct accepts.
struct Target {
    name: SocketAddrUnix,
    is_v6: bool,
    /// Its number, if this supervisor has it.
    own: Option<u64>,
}

impl Listeners {
    /// Connects pending sessions to a listener's near end. False if no program has it any more.
    pub(super) fn show_direct(
        &mut self,
        table: &mut Table,
        streams: &mut Streams,
        inode: u64,
    ) -> bool {
        let mut left = VecDeque::new();
        let mut is_there = true;
        while let Some((pending, name)) = next_pending(table, inode) {
            let done = match &pending.origin {
                Origin::Stack(session) => {
                    let ends = (pending.local, pending.peer);
                    self.join_session(table, streams, inode, &name, (*session, ends))
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
        if let Some(listening) = table.listening(inode) {
            listening.pending = left;
        }
        is_there && self.show_tokens(table, inode)
    }

    /// Announces sessions that cannot be connected directly: the library then makes a call that
    /// reaches the supervisor.
    fn show_tokens(&mut self, table: &mut Table, inode: u64) -> bool {
        let own = table.names.make(Role::Token);
        let Some(listening) = table.listening(inode) else {
            return true;
        };
        let wanted = listening.pending.len().min(TOKENS_MAX);
        let Some(name) = listening.name.clone().filter(|_| wanted > 0) else {
            listening.tokens.clear();
            return true;
        };
        let mut is_there = true;
        if listening.tokens.len() < wanted {
            match connect_named(&own, &name, Maker::Own) {
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
        self.overdue.insert(inode);
        is_there
    }

    /// Connects one session of the stack to a near end.
    fn join_session(
        &mut self,
        table: &mut Table,
        streams: &mut Streams,
        listener: u64,
        to: &SocketAddrUnix,
        (session, ends): (Session, (SocketAddr, SocketAddr)),
    ) -> Result<(), Errno> {
        let mut name = table.names.make(Role::Session);
        let of = table.sockets.get(&listener).ok_or(Errno::CONNREFUSED)?;
        let (local, peer) = ends;
        name.ends = [peer, local].map(|end| end_bytes(end, of.is_v6));
        let far = connect_named(&name, to, Maker::Own)?;
        let stream = Stream::new(session, Report::Made, Head::Greeting(name.number));
        let mut socket = self.accepted(table, listener, ends, State::Open(stream));
        socket.far = Some(far);
        socket.named = Some(name.number);
        let key = table.names.next_key();
        insert_or_end(table, key, socket);
        if table.sockets.contains_key(&key) {
            table.names.bear(name.number, key);
            // Bytes may have arrived before the session was joined, and trigger no event.
            streams.give_to_program(table, key);
        }
        Ok(())
    }

    /// Opens a session that another program's library accepts; none if the listener has no direct
    /// accepts.
    pub(in super::super) fn open_directly(
        &mut self,
        table: &mut Table,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Option<Opened> {
        let target = self.find_direct(table, local, peer)?;
        // The name of this end carries both addresses, so the accepting library needs no call for
        // them.
        let mut name = table.names.make(Role::Program);
        name.ends = [local, peer].map(|end| end_bytes(end, target.is_v6));
        if !name.is_of_loopback() {
            return None;
        }
        // Any process may bind a name that is free again, so the creator is checked.
        let maker = match target.own {
            Some(_) => Maker::Own,
            None => Maker::User,
        };
        match connect_named(&name, &target.name, maker) {
            Ok(near) => {
                let of = target.own.and_then(|listener| table.sockets.get(&listener));
                if of.is_some_and(|of| of.resets_on_close) {
                    resets::put_urgent(near.as_fd());
                }
                Some(Opened {
                    near,
                    number: name.number,
                    listener: target.own,
                })
            }
            Err(Errno::CONNREFUSED) => {
                // No program has the near end of the listener any more.
                if let Some(listener) = target.own {
                    table.forget(listener);
                }
                None
            }
            Err(_) => None,
        }
    }

    fn find_direct(
        &self,
        table: &mut Table,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Option<Target> {
        // Listeners of this supervisor come first; the folder names those of others.
        let listeners = table.listeners_at(peer);
        if let Some(inode) = turn_of(&listeners, local) {
            let is_v6 = table.sockets.get(&inode)?.is_v6;
            let listening = table.listening(inode).filter(|it| it.is_direct)?;
            return Some(Target {
                name: listening.name.clone()?,
                is_v6,
                own: Some(inode),
            });
        }
        let (name, is_v6) = self.rendezvous.as_ref()?.near_of(peer)?;
        Some(Target {
            name: SocketAddrUnix::new_abstract_name(&name.bytes()).ok()?,
            is_v6,
            own: None,
        })
    }

    /// Learns of a session that the caller has accepted directly, at its first call about it.
    pub(in super::super) fn meet(
        &mut self,
        table: &mut Table,
        streams: &mut Streams,
        caller: &Caller<'_>,
    ) {
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
        if !self.has_direct || !is_about_one {
            return;
        }
        let descriptor = caller.int(0);
        let Some(inode) = caller.inode(descriptor) else {
            return;
        };
        // Sockets found not to be such sessions are remembered: fetching them at every call would
        // be slow.
        if table.sockets.contains_key(&inode) || self.examined.contains(&inode) {
            return;
        }
        let near = caller.fetch(descriptor);
        let name = near.as_ref().ok().and_then(|near| peers_name(near));
        let holder = Holder::of(caller, descriptor);
        let (Ok(near), Some(name)) = (near, name) else {
            if self.examined.len() >= EXAMINED_MAX {
                self.examined.clear();
            }
            self.examined.insert(inode);
            return;
        };
        match name.role {
            Role::Session => {
                if let Some(key) = session_of(table, &near, &name) {
                    settle(table, streams, key, inode, holder);
                }
            }
            Role::Program => self.meet_program(table, &near, (inode, holder), &name),
            Role::Listener | Role::Token => {}
        }
    }

    /// The caller has accepted a session of another program.
    fn meet_program(
        &self,
        table: &mut Table,
        near: &OwnedFd,
        (inode, holder): (u64, Holder),
        name: &Name,
    ) {
        let Some(ends) = ends_of(name) else {
            return;
        };
        let listener = listener_of(near).and_then(|number| table.names.socket(number));
        let state = State::Joined(Joined::new(Report::Made));
        let mut socket = self.accepted(table, listener.unwrap_or_default(), ends, state);
        socket.is_v6 |= address::is_v6(&name.ends[0]);
        socket.holder = holder;
        if let Err(error) = table.insert(inode, socket) {
            crate::aside::say(format!("a session cannot be joined: {error}"));
        }
        join_named(table, inode, name);
    }

    /// The next session at a listener's near end, for a program whose accept call reached the
    /// supervisor.
    pub(super) fn accept_from_near(
        &self,
        table: &Table,
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
        let found = take_from_near(table, &near);
        if waits {
            set_nonblocking(&near, false).ok();
        }
        Ok(found)
    }

    /// The calling program has accepted a session of the stack by a call.
    pub(super) fn settle_given(
        &self,
        table: &mut Table,
        streams: &mut Streams,
        key: u64,
        inode: u64,
        holder: Holder,
    ) {
        let state = table.sockets.get_mut(&key).map(|it| &mut it.state);
        if let Some(State::Open(stream)) = state {
            stream.head.expect_no_greeting();
        }
        settle(table, streams, key, inode, holder);
    }
}

fn next_pending(table: &mut Table, inode: u64) -> Option<(Pending, SocketAddrUnix)> {
    let listening = table.listening(inode)?;
    let name = listening.name.clone()?;
    Some((listening.pending.pop_front()?, name))
}

/// The session with this near end.
fn session_of(table: &Table, near: &OwnedFd, name: &Name) -> Option<u64> {
    let by = local_socket::peer(near.as_fd()).ok()?.pid;
    let own = std::process::id();
    let is_ours = i64::from(by) == i64::from(own) && name.process == own;
    let key = table.names.socket(name.number);
    key.filter(|key| is_ours && is_accepting(*key))
}

/// Records that the two sockets are the ends of one pair.
pub(super) fn join_named(table: &mut Table, inode: u64, name: &Name) {
    if name.role == Role::Program
        && name.process == std::process::id()
        && let Some(peer) = table.names.socket(name.number)
    {
        table.join_peers(inode, peer);
    }
}

/// Replaces the temporary number of a session by the inode of its near end.
fn settle(table: &mut Table, streams: &mut Streams, key: u64, inode: u64, holder: Holder) {
    let Some(mut socket) = table.sockets.remove(&key) else {
        return;
    };
    if let Some(number) = socket.named.take() {
        table.names.forget(number);
    }
    // The holder first: a session that has failed is reset through it.
    socket.holder = holder;
    for engine in socket.engines() {
        table.engine.join(engine, inode);
    }
    if let Some(far) = &socket.far {
        let interest = match &socket.state {
            State::Open(stream) => stream.interest,
            _ => Interest::Input,
        };
        super::super::streams::watch(&table.epoll, far, inode, interest);
    }
    streams.renumber(key, inode);
    if table.sockets.contains_key(&inode) {
        // The inode was reused: the old socket was closed unnoticed.
        table.forget(inode);
    }
    table.sockets.insert(inode, socket);
    // It may have failed before its program was known.
    streams.end_doomed(table, inode);
}

fn take_from_near(table: &Table, near: &OwnedFd) -> Option<Pending> {
    for _ in 0..TRIES_MAX {
        let (came, from) = rustix::net::acceptfrom_with(near, SocketFlags::CLOEXEC).ok()?;
        let Some(name) = from.and_then(read_name) else {
            continue;
        };
        let pending = match name.role {
            Role::Session => session_of(table, &came, &name).and_then(|key| {
                let socket = table.sockets.get(&key)?;
                Some(Pending {
                    local: socket.local,
                    peer: socket.peer?,
                    origin: Origin::Session(came, key),
                })
            }),
            Role::Program if is_made_by(&came, Maker::User) => {
                ends_of(&name).map(|(local, peer)| Pending {
                    local,
                    peer,
                    origin: Origin::Program(came),
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

/// Inodes that are remembered.
const EXAMINED_MAX: usize = 4096;
/// Connections at a near end that one call skips.
const TRIES_MAX: usize = 256;
