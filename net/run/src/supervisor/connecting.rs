//! Sessions that programs open, from connect(2) until they are open or have failed.

use super::calls::{Goal, Limit};
use super::connect::{Parts, Route};
use super::engine::Close;
use super::listeners::Listeners;
use super::{Reply, Supervisor, ZERO, errno_of};
use crate::caller::Caller;
use crate::ports::Transport;
use crate::socket::files::{fill, inode_of, limit_sending, pair, set_nonblocking, window_set};
use crate::socket::{AtStack, Connecting, Head, Joined, Report, State, Stream};
use rustix::io::Errno;
use rustix::net::SendFlags;
use sidecore_net::sock::client::Opening;
use sidecore_sys::seccomp::Answer;
use sidecore_sys::socket_option;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// A program's end of a session that is open already.
struct NearEnd {
    file: OwnedFd,
    /// The number of its name, if it was opened directly.
    named: Option<u64>,
}

impl Supervisor {
    /// Opens a session to another program: each gets one end of a pair.
    pub(super) fn open_to_program(
        &mut self,
        caller: &mut Caller<'_>,
        peer: SocketAddr,
        parts: Parts,
    ) -> Result<Reply, Errno> {
        let table = &mut self.table;
        let port = match parts.bound.port() {
            0 => table.ports.ephemeral(Transport::Tcp),
            port => port,
        };
        let ip = match peer.ip() {
            _ if !parts.bound.ip().is_unspecified() => parts.bound.ip(),
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        let local = SocketAddr::new(ip, port);
        let route = Route { local, peer };
        if parts.bound.port() != 0 && table.is_joined(local, peer) {
            return self.refuse(caller, route, parts, Errno::ADDRNOTAVAIL);
        }
        // SO_LINGER of zero needs access to the other end, which a direct session does not give.
        let level = libc::SOL_SOCKET;
        let linger = socket_option::get(parts.kernel.as_fd(), level, libc::SO_LINGER, 8);
        let resets = linger.is_ok_and(|linger| super::options::resets(&linger));
        if !resets && let Some(opened) = self.listeners.open_directly(table, local, peer) {
            let near = NearEnd {
                file: opened.near,
                named: Some(opened.number),
            };
            let reply = self.join(caller, route, parts, near, None);
            if let Some(listener) = opened.listener {
                // A program without the library may wait for a session of the near end.
                self.table.calls.wake(listener);
            }
            return reply;
        }
        let streams = &mut self.streams;
        match self.listeners.open_between(table, streams, local, peer) {
            Ok(opened) => {
                let near = NearEnd {
                    file: opened.near,
                    named: None,
                };
                self.join(caller, route, parts, near, opened.peer)
            }
            Err(error) => self.refuse(caller, route, parts, error),
        }
    }

    /// Gives a program its end of a session with another program.
    fn join(
        &mut self,
        caller: &Caller<'_>,
        route: Route,
        parts: Parts,
        near: NearEnd,
        peer: Option<u64>,
    ) -> Result<Reply, Errno> {
        let (table, at) = (&mut self.table, parts.at);
        set_nonblocking(&near.file, at.flags.is_nonblocking)?;
        let inode = inode_of(&near.file)?;
        let report = match at.flags.is_nonblocking {
            true => Report::Due,
            false => Report::Made,
        };
        let mut socket = parts.socket(caller, route, None, State::Joined(Joined::new(report)));
        socket.named = near.named;
        table.insert(inode, socket)?;
        if let Some(number) = near.named {
            table.names.bear(number, inode);
        }
        if let Some(peer) = peer {
            table.join_peers(inode, peer);
        }
        if let Err(error) = table.replace(caller, at, &near.file) {
            table.forget(inode);
            return Err(error);
        }
        if near.named.is_none() && table.take_linger(inode) {
            table.arm_reset(inode);
        }
        if at.flags.is_nonblocking {
            // As in the kernel, although it is open already; SO_ERROR and epoll report that at
            // once.
            return Err(Errno::INPROGRESS);
        }
        Ok(ZERO)
    }

    /// A session that cannot be opened: the error at once or, for a nonblocking caller, later, as
    /// the kernel reports it.
    fn refuse(
        &mut self,
        caller: &Caller<'_>,
        route: Route,
        parts: Parts,
        error: Errno,
    ) -> Result<Reply, Errno> {
        let at = parts.at;
        if !at.flags.is_nonblocking || error != Errno::CONNREFUSED {
            // The original socket was never connected, so it is in the right state.
            set_nonblocking(&parts.kernel, at.flags.is_nonblocking)?;
            self.table.replace(caller, at, &parts.kernel)?;
            return Err(error);
        }
        if parts.bound.port() == 0 && self.refuse_by_kernel(caller, &parts)? {
            return Err(Errno::INPROGRESS);
        }
        let (near, far) = pair(true)?;
        let inode = inode_of(&near)?;
        let mut socket = parts.socket(caller, route, None, State::Failed(Some(error)));
        socket.peer = None;
        // Closing an end with unread bytes is reported as an error at the other end.
        rustix::net::send(&near, &[0], SendFlags::NOSIGNAL)?;
        drop(far);
        self.table.insert(inode, socket)?;
        self.table.replace(caller, at, &near)?;
        Err(Errno::INPROGRESS)
    }

    /// Lets the kernel refuse the program's own socket, so that the error is reported natively;
    /// false if it cannot.
    fn refuse_by_kernel(&mut self, caller: &Caller<'_>, parts: &Parts) -> Result<bool, Errno> {
        let Ok(vacant) = self.vacant.of(parts.is_v6) else {
            return Ok(false);
        };
        set_nonblocking(&parts.kernel, true)?;
        if rustix::net::connect(&parts.kernel, &vacant) != Err(Errno::INPROGRESS) {
            return Ok(false);
        }
        if caller.inode(parts.at.number) != Some(inode_of(&parts.kernel)?) {
            self.table.replace(caller, parts.at, &parts.kernel)?;
        }
        Ok(true)
    }

    /// Opens a session of the stack.
    pub(super) fn open_to_stack(
        &mut self,
        caller: &mut Caller<'_>,
        peer: SocketAddr,
        parts: Parts,
    ) -> Result<Reply, Errno> {
        Listeners::look_at_port(&mut self.table, peer);
        let engine = &mut self.table.engine;
        // The SYN already announces the window.
        let window = window_set(&parts.kernel);
        let opening = engine.begin_connect(parts.bound.port(), peer, window)?;
        let made = self.join_opening(caller, peer, opening, parts);
        if made.is_err() {
            self.table.engine.cancel(opening);
        }
        made
    }

    fn join_opening(
        &mut self,
        caller: &mut Caller<'_>,
        peer: SocketAddr,
        opening: Opening,
        parts: Parts,
    ) -> Result<Reply, Errno> {
        let (table, at) = (&mut self.table, parts.at);
        let (near, far) = pair(at.flags.is_nonblocking)?;
        let inode = inode_of(&near)?;
        // Unspecified until the stack has answered.
        let any = match peer.ip() {
            IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let local = SocketAddr::new(any, parts.bound.port());
        let state = |filler| {
            let at_stack = AtStack::Asked(opening);
            State::Connecting(Connecting { at_stack, filler })
        };
        let mut socket = parts.socket(caller, Route { local, peer }, Some(far), state(0));
        if let Some(bytes) = socket.send_bytes {
            limit_sending(near.as_fd(), bytes);
        }
        if let (Some(window), Some(far)) = (socket.window_max, &socket.far) {
            limit_sending(far.as_fd(), 2 * window);
        }
        if at.flags.is_nonblocking {
            // A program that polls for the end of connect(2) must not find the pair writable
            // before.
            socket.state = state(fill(&near)?);
        }
        let patience = socket.patience(libc::SO_SNDTIMEO);
        table.insert(inode, socket)?;
        table.engine.await_answer(opening, inode);
        if let Err(error) = table.replace(caller, at, &near) {
            table.remove(inode);
            return Err(error);
        }
        if at.flags.is_nonblocking {
            // A responsive engine answers within this time: then errors are reported directly, and
            // the local address is known.
            let limit = Limit::after(Some(BEGINNING_MAX), Errno::INPROGRESS);
            return Ok(table.calls.park(inode, caller, limit, Goal::Beginning));
        }
        Ok(table.park(inode, caller, patience))
    }

    /// Completes a session that was being opened, or fails it.
    pub(super) fn finish_connecting(&mut self, inode: u64) {
        let table = &mut self.table;
        let Some(socket) = table.sockets.get_mut(&inode) else {
            return;
        };
        let (State::Connecting(connecting), Some(client)) =
            (&socket.state, &mut table.engine.client)
        else {
            return;
        };
        // The stack has not answered the request, so there is no session to look at.
        let AtStack::Begun(engine) = connecting.at_stack else {
            return;
        };
        let head = match connecting.filler {
            0 => Head::Data,
            filler => Head::Filler(filler),
        };
        if client.readiness(engine).closed {
            // The read returns the reason; a session that was closed without one was refused.
            let mut none = [0];
            let error = match client.read(engine, &mut none) {
                Err(error) => errno_of(&error),
                Ok(_) => Errno::CONNREFUSED,
            };
            table.engine.end(engine, Close::Reset);
            self.fail_connecting(inode, error);
            return;
        }
        if !client.is_connected(engine) {
            return;
        }
        // A waiting connect(2) reports the success; without one, the next connect(2) does.
        let waiting = table.calls.take(inode);
        let report = match waiting.is_empty() {
            true => Report::Due,
            false => Report::Made,
        };
        socket.state = State::Open(Stream::new(engine, report, head));
        for waiting in waiting {
            table.calls.answer(&waiting.call, Answer::Value(0));
        }
        // Also removes the filler, so that the near end becomes writable.
        self.streams.take_from_program(table, inode);
    }

    pub(super) fn fail_connecting(&mut self, inode: u64, error: Errno) {
        let table = &mut self.table;
        let Some(socket) = table.sockets.get_mut(&inode) else {
            return;
        };
        // The filler stays unread: closing the far end so is reported as an error at the near end.
        let far = socket.far.take();
        socket.peer = None;
        // One report is enough: that of the waiting calls, or that of the next call.
        let left = Some(error).filter(|_| !table.calls.has(inode));
        socket.state = State::Failed(left);
        table.calls.fail(inode, error);
        drop(far);
        table.sweeps.note_unseen();
    }
}

/// Time that a nonblocking connect(2) waits for the stack's first answer.
const BEGINNING_MAX: Duration = Duration::from_millis(2);
