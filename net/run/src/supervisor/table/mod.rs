//! The table of the sockets that were taken from the kernel, and all that is known by a socket's
//! number.
//!
//! Must stay true: a socket that is removed leaves nothing behind: no waiting call, no port, no
//! name, no request to the stack, and nothing that its own fields release (rings, rendezvous
//! sockets).
//!
//! A program's descriptors: the file behind one, and behind its duplicates, is replaced here.

use super::calls::{Calls, Goal, Limit};
use super::duplicates::Duplicates;
use super::engine::{Close, Engine, Request};
use super::mark::Mark;
use super::named::Names;
use super::sweeps::Sweeps;
use super::{Reply, WATCHED, ZERO};
use crate::caller::{self, Caller, Descriptor};
use crate::direct::{Directory, Records};
use crate::migrate::Migration;
use crate::ports::{Claim, Ports, Transport};
use crate::scope::Scope;
use crate::socket::files::inode_of;
use crate::socket::{Inbound, Listening, Origin, Purpose, Socket, State};
use rustix::event::epoll::{self, EventFlags};
use rustix::io::Errno;
use sidecore_net::sock::SocketOption;
use sidecore_net::sock::client::{Socket as Session, set_peer};
use sidecore_sys::seccomp::Answer;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The table.
pub(super) struct Table {
    pub(super) calls: Calls,
    pub(super) engine: Engine,
    pub(super) sockets: HashMap<u64, Socket>,
    pub(super) ports: Ports,
    pub(super) names: Names,
    pub(super) duplicates: Duplicates,
    pub(super) migration: Migration,
    pub(super) scope: Scope,
    pub(super) sweeps: Sweeps,
    /// Datagram sockets that programs use without calls.
    pub(super) directory: Directory,
    pub(super) epoll: OwnedFd,
    /// The other ends of pairs between programs.
    peers: HashMap<u64, u64>,
}

impl Table {
    pub(super) fn new(calls: Calls, engine: Engine, scope: Scope, epoll: OwnedFd) -> Self {
        Self {
            calls,
            engine,
            sockets: HashMap::new(),
            ports: Ports::of_this_process(),
            names: Names::default(),
            duplicates: Duplicates::default(),
            migration: Migration::default(),
            scope,
            sweeps: Sweeps::default(),
            directory: Directory::default(),
            epoll,
            peers: HashMap::new(),
        }
    }

    /// The socket behind the first argument of a call.
    pub(super) fn of_caller(&self, caller: &Caller<'_>) -> Option<&Socket> {
        self.sockets.get(&caller.inode(caller.int(0))?)
    }

    /// True if the caller's socket is one of ours, but not for datagrams.
    pub(super) fn is_session(&self, caller: &Caller<'_>) -> bool {
        let socket = self.of_caller(caller);
        socket.is_some_and(|socket| !socket.is_datagram())
    }

    pub(super) fn listening(&mut self, inode: u64) -> Option<&mut Listening> {
        self.sockets.get_mut(&inode)?.listening_mut()
    }

    /// Adds a socket, and watches its far end.
    ///
    /// # Errors
    /// The kernel's: no memory left.
    pub(super) fn insert(&mut self, inode: u64, socket: Socket) -> Result<(), Errno> {
        let mark = Mark::Far(inode).data();
        match (&socket.far, socket.carrier()) {
            (Some(far), _) => epoll::add(&self.epoll, far, mark, WATCHED)?,
            (None, Some(carrier)) => epoll::add(&self.epoll, &carrier.far, mark, WATCHED)?,
            (None, None) => self.sweeps.note_unseen(),
        }
        for engine in socket.engines() {
            self.engine.join(engine, inode);
        }
        if self.sockets.contains_key(&inode) {
            // The inode was reused: the old socket was closed unnoticed.
            self.forget(inode);
        }
        self.sockets.insert(inode, socket);
        Ok(())
    }

    /// Removes a socket from all tables; its sessions at the stack stay open.
    pub(super) fn remove(&mut self, inode: u64) -> Option<Socket> {
        // First: the duplicate of a datagram socket is kept as long as a call waits for it.
        // Calls that wait for the end of a session that lingers are woken by that.
        let lingers = |socket: &Socket| socket.lingers.is_some() && !socket.is_datagram();
        if !self.sockets.get(&inode).is_some_and(lingers) {
            self.calls.fail(inode, Errno::BADF);
        }
        self.unwatch(inode);
        self.peers.remove(&inode);
        let mut socket = self.sockets.remove(&inode)?;
        self.engine.cancel_all(&mut socket);
        if let Some(number) = socket.named.take() {
            self.names.forget(number);
        }
        self.ports
            .release(socket.transport, socket.local.port(), inode);
        for engine in socket.engines() {
            self.engine.part(engine);
        }
        if let State::Datagram(datagram) = &mut socket.state {
            let carrier = &mut datagram.carrier;
            self.directory.leave(&mut carrier.direct, carrier.at);
            let engine = &mut self.engine;
            // One that other programs' sockets share stays open.
            datagram
                .engines
                .retain(|it| engine.is_last_sharer(*it, inode));
        }
        Some(socket)
    }

    /// Removes a socket that no program has any more, and closes its sessions.
    pub(super) fn forget(&mut self, inode: u64) {
        let Some(mut socket) = self.remove(inode) else {
            return;
        };
        self.engine.return_chunk(&mut socket.state);
        self.duplicates.forget(inode);
        let engines = socket.engines();
        if socket.lingers.is_some() {
            // The library's request is answered, or waits for what lingers.
            self.calls.wake(inode);
        }
        let lingers = socket.lingers.filter(|_| !socket.resets_on_close);
        match (socket.state, lingers) {
            (State::Listening(listening), _) => self.close_listening(listening),
            (State::Open(stream), Some(time)) => self.engine.linger(inode, stream.engine, time),
            _ => {
                for engine in engines {
                    self.engine
                        .close(engine, Close::by_reset_if(socket.resets_on_close));
                }
            }
        }
    }

    /// Answers the library's request after close(2) of a socket with SO_LINGER: the call waits.
    pub(super) fn linger(&mut self, inode: u64, caller: &Caller<'_>) -> Reply {
        let is_closing = |it: &&Socket| matches!(it.state, State::Open(_)) && it.is_closed();
        let closing = self.sockets.get(&inode).filter(is_closing);
        let time = closing.and_then(|socket| socket.lingers);
        if time.is_none() && !self.engine.is_lingering(inode) {
            // It is acknowledged, or other descriptors of it are left.
            return ZERO;
        }
        // What ends a lingering session answers the call, too.
        let limit = Limit::after(time, Errno::AGAIN);
        self.calls.park(inode, caller, limit, Goal::Completion)
    }

    /// Both directions of a session have been shut down: it is over, and a program may have it
    /// still. Only a sweep finds that it is closed.
    pub(super) fn end_shut(&mut self, inode: u64) {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return;
        };
        let engines = socket.engines();
        self.engine.return_chunk(&mut socket.state);
        if matches!(&socket.state, State::Open(stream) if stream.inbound == Inbound::Open) {
            socket.state = State::Shut;
        } else {
            socket.state = State::Over;
            // So that the library does not take it for one that was reset.
            socket.peer = None;
        }
        socket.far = None;
        self.sweeps.note_unseen();
        for engine in engines {
            self.engine.end(engine, Close::Orderly);
        }
    }

    /// Closes what a listener has; its rendezvous sockets end with it.
    pub(super) fn close_listening(&mut self, listening: Listening) {
        for engine in listening.engines {
            self.engine.end(engine, Close::Orderly);
        }
        for pending in listening.pending {
            match pending.origin {
                // As in the kernel, peers that were not accepted read a reset.
                Origin::Stack(session) => self.engine.close(session, Close::Reset),
                Origin::Session(_, key) => self.forget(key),
                Origin::Program(_) => {}
            }
        }
    }

    /// True if no program has the socket any more.
    pub(super) fn is_closed(&self, inode: u64) -> bool {
        self.sockets.get(&inode).is_some_and(Socket::is_closed)
    }

    /// Removes the sockets at a port that no program has any more, if the loop has not noticed yet.
    pub(super) fn forget_closed(&mut self, transport: Transport, port: u16) {
        for inode in self.ports.owners(transport, port) {
            if self.is_closed(inode) {
                self.forget(inode);
            }
        }
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

    /// Claims a port for a socket; false if another claim conflicts.
    pub(super) fn take_port(
        &mut self,
        inode: u64,
        transport: Transport,
        port: u16,
        claim: Claim,
    ) -> bool {
        // The usual case first: a sweep reads the table of all local sockets.
        if self.ports.take(transport, port, inode, claim) {
            return true;
        }
        // Its owner may have been closed unnoticed.
        self.forget_closed(transport, port);
        self.sweep();
        self.ports.take(transport, port, inode, claim)
    }

    /// True if there is a session between these addresses of two programs.
    pub(super) fn is_joined(&mut self, local: SocketAddr, peer: SocketAddr) -> bool {
        let is_there = |it: &Self| {
            it.sockets.values().any(|socket| {
                matches!(socket.state, State::Joined(_))
                    && (socket.local, socket.peer) == (local, Some(peer))
            })
        };
        if !is_there(self) {
            return false;
        }
        // Its end may not have been noticed yet.
        self.sweep();
        is_there(self)
    }

    /// Records that two sockets are the ends of one pair.
    pub(super) fn join_peers(&mut self, one: u64, other: u64) {
        self.peers.insert(one, other);
        self.peers.insert(other, one);
    }

    /// The other end of a pair between programs, if this supervisor has seen both.
    pub(super) fn peer_of(&self, inode: u64) -> Option<u64> {
        self.peers.get(&inode).copied()
    }

    /// Parks a call in the wait queue of its socket.
    pub(super) fn park(
        &mut self,
        inode: u64,
        caller: &Caller<'_>,
        patience: Option<Duration>,
    ) -> Reply {
        // Without a socket, no event would ever repeat the call.
        let Some(socket) = self.sockets.get(&inode) else {
            return Reply::Now(Answer::Fail(Errno::BADF));
        };
        let errno = match socket.state {
            State::Connecting(_) => Errno::INPROGRESS,
            _ => Errno::AGAIN,
        };
        let limit = Limit::after(patience, errno);
        self.calls.park(inode, caller, limit, Goal::Completion)
    }

    /// Parks a call until the stack has answered the request for its socket.
    pub(super) fn park_asking(&mut self, inode: u64, caller: &Caller<'_>) -> Reply {
        self.park(inode, caller, None)
    }

    /// Requests what a socket needs at the stack, unless that was requested.
    ///
    /// # Errors
    /// `ENETDOWN`: the engine is gone.
    pub(super) fn ask_stack(
        &mut self,
        inode: u64,
        backlog: Option<u32>,
        purpose: Purpose,
    ) -> Result<Request, Errno> {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return Ok(Request::Complete);
        };
        let needs_stack = self.scope.has_stack() && !socket.local.ip().is_loopback();
        if socket.asked.is_none() && !needs_stack {
            return Ok(Request::Complete);
        }
        self.engine.request(inode, socket, backlog, purpose)
    }

    /// The requested sockets at the stack, once all answers have arrived.
    ///
    /// # Errors
    /// The stack's refusal; `EBADF`: the socket is gone.
    pub(super) fn take_asked(&mut self, inode: u64) -> Result<Vec<Session>, Errno> {
        let socket = self.sockets.get_mut(&inode).ok_or(Errno::BADF)?;
        self.engine.take_asked(socket)
    }

    /// Assigns these sockets at the stack to a listener or a datagram socket.
    pub(super) fn give_engines(&mut self, inode: u64, engines: Vec<Session>) {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return self.engine.close_unshared(engines);
        };
        match &mut socket.state {
            State::Listening(listening) => {
                for engine in &engines {
                    self.engine.join(*engine, inode);
                }
                listening.engines = engines;
            }
            State::Datagram(datagram) => {
                for engine in &engines {
                    self.engine.share(*engine, inode);
                    if let Some(client) = &mut self.engine.client {
                        // The loop notices when the engine is gone.
                        client.set(*engine, SocketOption::Refusals(true)).ok();
                    }
                }
                datagram.engines = engines;
                self.pass_peer_on(inode);
            }
            // It changed while the stack answered.
            _ => self.engine.close_unshared(engines),
        }
    }

    /// Makes the stack refuse datagrams of others than a socket's peer. Sockets that share a port
    /// with others take what comes, and drop it here.
    pub(super) fn pass_peer_on(&mut self, inode: u64) {
        let engines = self.sockets.get(&inode).map(Socket::engines);
        for engine in engines.into_iter().flatten() {
            let peer = match self.engine.sharers(engine) {
                [only] => self.sockets.get(only).and_then(|it| it.peer),
                _ => None,
            };
            if let Some(client) = &mut self.engine.client {
                // The loop notices when the engine is gone.
                set_peer(client, engine, peer).ok();
            }
        }
    }

    /// True while the stack's answer about a socket is missing.
    pub(super) fn is_asking(&self, inode: u64) -> bool {
        let socket = self.sockets.get(&inode);
        socket.is_some_and(|socket| socket.asked.is_some())
    }

    /// Watches a program's datagram socket while one of its calls waits.
    ///
    /// # Errors
    /// The kernel's: no memory left.
    pub(super) fn watch(&mut self, inode: u64, near: Rc<OwnedFd>) -> Result<(), Errno> {
        let socket = self.sockets.get_mut(&inode);
        let Some(carrier) = socket.and_then(Socket::carrier_mut) else {
            return Ok(());
        };
        if carrier.watched.is_none() {
            let flags = EventFlags::IN | EventFlags::ET;
            epoll::add(&self.epoll, &near, Mark::Near(inode).data(), flags)?;
            carrier.watched = Some(near);
        }
        Ok(())
    }

    /// Drops the duplicate of a program's datagram socket, unless a call waits for it.
    pub(super) fn unwatch(&mut self, inode: u64) {
        let socket = self.sockets.get_mut(&inode);
        let Some(carrier) = socket.and_then(Socket::carrier_mut) else {
            return;
        };
        if carrier.watched.is_none() || self.calls.has_live(inode) {
            return;
        }
        if let Some(watched) = carrier.watched.take() {
            // Closing it is not enough: the program's own descriptor keeps the file in the epoll.
            epoll::delete(&self.epoll, &watched).ok();
        }
    }

    /// Removes the sockets without a far end that no program has any more.
    pub(super) fn sweep(&mut self) {
        let begun = Instant::now();
        self.sweeps.begin();
        self.sweep_datagrams();
        if !self.sockets.values().any(Socket::is_unseen) {
            return;
        }
        let Ok(text) = std::fs::read("/proc/self/net/unix") else {
            return;
        };
        // Abstract names may contain any bytes.
        let text = String::from_utf8_lossy(&text);
        let inodes = text
            .lines()
            .filter_map(|line| line.split_whitespace().nth(6));
        let live: HashSet<u64> = inodes.filter_map(|inode| inode.parse().ok()).collect();
        let gone = |(inode, socket): (&u64, &Socket)| {
            (socket.is_unseen() && !live.contains(inode)).then_some(*inode)
        };
        let gone: Vec<u64> = self.sockets.iter().filter_map(gone).collect();
        for inode in gone {
            self.forget(inode);
        }
        let is_at_stack = |socket: &Socket| match &socket.state {
            State::Listening(listening) => !listening.engines.is_empty(),
            State::Datagram(datagram) => !datagram.engines.is_empty(),
            _ => false,
        };
        let is_pressing = self.sockets.values().any(is_at_stack);
        self.sweeps.end(begun, is_pressing);
    }

    /// Removes the datagram sockets that no program has any more.
    fn sweep_datagrams(&mut self) {
        let sockets = self.sockets.iter();
        let all: Vec<u64> = sockets
            .filter(|(_, socket)| socket.is_datagram())
            .map(|(inode, _)| *inode)
            .collect();
        // A duplicate that is left would keep the port bound, and the socket alive.
        for inode in all {
            self.unwatch(inode);
            let carrier = self.sockets.get(&inode).and_then(Socket::carrier);
            // What it sent before is sent first.
            let has_sent = carrier.is_some_and(|carrier| {
                let has_more = carrier.records.as_deref().is_some_and(Records::has_more);
                has_more || carrier.direct.has_frames()
            });
            if !has_sent && self.is_closed(inode) {
                self.forget(inode);
            }
        }
    }
}

#[cfg(test)]
mod tests;

impl Table {
    /// A descriptor was duplicated (dup(2) and its like): the duplicates of a socket that may be
    /// replaced later are remembered.
    pub(super) fn note_duplicate(&mut self, caller: &Caller<'_>) {
        if let Some(inode) = caller.inode(caller.int(0)) {
            let state = self.sockets.get(&inode).map(|socket| &socket.state);
            if matches!(state, None | Some(State::Bound | State::Failed(_))) {
                self.duplicates.note(inode);
            }
        }
    }

    /// Replaces a caller's descriptor, and its duplicates in the same process, by `near`; in epoll
    /// instances, too.
    ///
    /// # Errors
    /// The kernel's; nothing was replaced.
    pub(super) fn replace(
        &mut self,
        caller: &Caller<'_>,
        at: Descriptor,
        near: &OwnedFd,
    ) -> Result<(), Errno> {
        let from = caller.inode(at.number);
        self.put(caller, at, near)?;
        caller.forget_inode();
        let (Some(from), to) = (from, inode_of(near)?) else {
            return Ok(());
        };
        if self.sockets.contains_key(&to) {
            self.duplicates.follow(from, to);
        }
        if !self.duplicates.take_noted(from) {
            return Ok(());
        }
        self.duplicates.note(to);
        for duplicate in caller::descriptors_of(caller.call.thread, from) {
            // If it fails, the duplicate was closed, or keeps the old socket, like one in another
            // process.
            self.put(caller, caller.descriptor(duplicate), near).ok();
        }
        Ok(())
    }

    fn put(&mut self, caller: &Caller<'_>, at: Descriptor, near: &OwnedFd) -> Result<(), Errno> {
        // Before the descriptor is replaced: afterwards the old file has no number to look for.
        let moved = self.migration.begin(caller, at.number);
        caller.replace(at, near.as_fd())?;
        self.calls.kept.placed = inode_of(near).ok();
        if let Some(moved) = moved {
            self.migration.end(moved, near);
        }
        Ok(())
    }

    /// Gives a caller the socket that replaces the one of its call.
    pub(super) fn catch_up(&mut self, caller: &Caller<'_>) {
        if self.duplicates.is_empty() {
            return;
        }
        let descriptor = caller.int(0);
        let Some(inode) = caller.inode(descriptor) else {
            return;
        };
        let Some(to) = self.duplicates.replacement(inode) else {
            return;
        };
        let Some(socket) = self.sockets.get(&to) else {
            return;
        };
        // If the last user is gone, the caller keeps the old socket.
        if let Some(near) = socket.holder.fetch(to) {
            self.put(caller, caller.descriptor(descriptor), &near).ok();
            caller.forget_inode();
        }
    }
}
