//! bind(2) and connect(2).

use super::{PROCEED, Reply, Supervisor, ZERO, errno_of};
use crate::address::{self, Given};
use crate::caller::{Caller, Flags};
use crate::ports::Transport;
use crate::scope::Server;
use crate::socket::{
    AtStack, Connecting, Opened, Socket, State, Stream, inode_of, local_stream, pair,
};
use rustix::io::Errno;
use rustix::net::SendFlags;
use sidecore_net::sock::client::Opening;
use sidecore_sys::seccomp::Answer;
use sidecore_sys::socket_option;
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

impl Supervisor {
    pub(super) fn bind(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let descriptor = caller.int(0);
        let Some(inode) = caller.inode(descriptor) else {
            return Ok(PROCEED);
        };
        if let Some(socket) = self.sockets.get(&inode) {
            // A signal interrupted the call, and it is repeated.
            let is_asking = socket.asked.is_some() && matches!(socket.state, State::Datagram(_));
            if is_asking && socket.holder == (caller.call.thread, descriptor) {
                return Ok(self.park_asking(inode, caller));
            }
            return Err(Errno::INVAL);
        }
        let (Given::Inet(asked), is_v6) = given_family(caller, 1, 2)? else {
            return Ok(PROCEED);
        };
        if self.scope.of_local(asked.ip()).is_none() {
            return Ok(PROCEED);
        }
        let Some(opened) = Opened::of(caller.fetch(descriptor)?) else {
            return Ok(PROCEED);
        };
        let opened = self.unheard.as_opened(inode, opened);
        let is_foreign = is_v6 != opened.is_v6;
        if opened.local.port() != 0 || opened.is_connected || is_foreign {
            return Ok(PROCEED);
        }
        let inode = self.adopt(caller, descriptor, opened, asked)?;
        if self.is_asking(inode) {
            return Ok(self.park_asking(inode, caller));
        }
        Ok(ZERO)
    }

    /// Takes a socket from the kernel and binds it to `asked`, with any port if that is 0; its
    /// inode.
    pub(super) fn adopt(
        &mut self,
        caller: &Caller<'_>,
        descriptor: i32,
        opened: Opened,
        asked: SocketAddr,
    ) -> Result<u64, Errno> {
        if opened.transport == Transport::Udp {
            return self.adopt_datagrams(caller, descriptor, opened, asked);
        }
        let mut local = asked;
        if local.port() == 0 {
            local.set_port(opened.choose_port(local.ip())?);
        }
        let (chosen, kernel) = (local.port(), inode_of(&opened.file)?);
        let is_chosen = asked.port() == 0;
        let flags = caller.flags(descriptor);
        // Unconnected: reads fail, and polls report a hang-up, as for an unconnected TCP socket.
        let near = local_stream(flags.is_nonblocking)?;
        let inode = inode_of(&near)?;
        let socket = Socket {
            transport: opened.transport,
            is_v6: opened.is_v6,
            is_v6_only: opened.is_v6_only,
            far: None,
            kernel: opened.file,
            options: Vec::new(),
            owns_kernel: true,
            bound: local.ip(),
            local,
            peer: None,
            state: State::Bound,
            waiting: VecDeque::new(),
            holder: (caller.call.thread, descriptor),
            resets_on_close: false,
            carrier: None,
            ring_place: None,
            named: None,
            asked: None,
        };
        let claim = socket.claim(false);
        if !self.take_port(inode, opened.transport, local.port(), claim) {
            return Err(Errno::ADDRINUSE);
        }
        let done = self
            .insert(inode, socket)
            .and_then(|()| self.replace(caller, descriptor, &near, flags));
        if let Err(error) = done {
            // The port stays bound in the kernel, so the repeated call must find which one was
            // chosen.
            self.ports.release(opened.transport, local.port(), inode);
            self.forget(inode);
            if is_chosen {
                self.unheard.note_chosen(kernel, chosen);
            }
            return Err(error);
        }
        Ok(inode)
    }

    pub(super) fn connect(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let descriptor = caller.int(0);
        let Some(inode) = caller.inode(descriptor) else {
            return Ok(PROCEED);
        };
        if self.sockets.contains_key(&inode) {
            return self.connect_known(caller, descriptor, inode);
        }
        // Only IPv4 and IPv6 peers can be at the stack; other families are the kernel's.
        let (Given::Inet(peer), is_v6) = given_family(caller, 1, 2)? else {
            return Ok(PROCEED);
        };
        let Some(server) = self.scope.of_peer(peer.ip()) else {
            return Ok(PROCEED);
        };
        let Some(opened) = Opened::of(caller.fetch(descriptor)?) else {
            return Ok(PROCEED);
        };
        let opened = self.unheard.as_opened(inode, opened);
        // UDP accepts an AF_INET address on an IPv6 socket, too.
        let is_foreign = is_v6 != opened.is_v6 && (is_v6 || opened.transport == Transport::Tcp);
        if opened.is_v6_only && peer.is_ipv4() {
            return Err(Errno::NETUNREACH);
        }
        // Bound in the kernel to one of its addresses, so only the kernel can connect it.
        let is_kernels = opened.local.port() != 0 && !opened.local.ip().is_unspecified();
        if opened.is_connected || is_foreign || is_kernels {
            return Ok(PROCEED);
        }
        if opened.transport == Transport::Udp {
            // It is bound to the wildcard address first, with the port that it has in the kernel,
            // and then connected.
            let any = SocketAddr::new(opened.any(), opened.local.port());
            let inode = self.adopt_datagrams(caller, descriptor, opened, any)?;
            if self.is_asking(inode) {
                return Ok(self.park_asking(inode, caller));
            }
            let near = caller.fetch(descriptor)?;
            self.connect_datagrams(inode, &near, Some(peer))?;
            return Ok(ZERO);
        }
        let parts = Parts {
            is_v6: opened.is_v6,
            is_v6_only: opened.is_v6_only,
            port: opened.local.port(),
            ip: opened.local.ip(),
            kernel: opened.file,
            flags: caller.flags(descriptor),
        };
        self.open(
            caller,
            descriptor,
            server,
            plain_peer(peer, opened.is_v6),
            parts,
        )
    }

    fn connect_known(
        &mut self,
        caller: &mut Caller<'_>,
        descriptor: i32,
        inode: u64,
    ) -> Result<Reply, Errno> {
        let given = given(caller, 1, 2)?;
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return Ok(PROCEED);
        };
        // The stack has not answered yet; the call waits, and is repeated after the answer.
        if socket.asked.is_some() && matches!(socket.state, State::Datagram(_)) {
            return Ok(self.park_asking(inode, caller));
        }
        match &mut socket.state {
            State::Datagram(_) => {
                let peer = match given {
                    // As in the kernel, AF_UNSPEC dissolves the connection.
                    Given::Inet(peer) => Some(peer),
                    Given::Unspecified => None,
                    Given::Other => return Err(Errno::AFNOSUPPORT),
                };
                let near = caller.fetch(descriptor)?;
                self.connect_datagrams(inode, &near, peer)?;
                Ok(ZERO)
            }
            State::Open(_) | State::Joined(_) | State::Connecting(_)
                if given == Given::Unspecified =>
            {
                self.disconnect(caller, descriptor, inode)
            }
            State::Connecting(_) => {
                if caller.flags(descriptor).is_nonblocking {
                    return Err(Errno::ALREADY);
                }
                let patience = self.send_patience(inode);
                Ok(self.park(inode, caller, patience))
            }
            // After a nonblocking connect(2), the next call reports the success once, and later
            // ones fail.
            State::Open(stream) => {
                if std::mem::replace(&mut stream.is_told, true) {
                    return Err(Errno::ISCONN);
                }
                Ok(ZERO)
            }
            State::Joined(told) => {
                if std::mem::replace(told, true) {
                    return Err(Errno::ISCONN);
                }
                Ok(ZERO)
            }
            State::Listening(_) => Err(Errno::ISCONN),
            State::Failed(error) => match error.take() {
                // The error is reported once; the next connect(2) tries again, as in Linux.
                Some(error) => Err(error),
                None => self.open_again(caller, descriptor, inode, given),
            },
            State::Bound => self.open_again(caller, descriptor, inode, given),
            State::Doomed | State::Over => Err(Errno::ISCONN),
        }
    }

    /// Aborts a session; the program gets back the socket that it opened (connect(2) with
    /// AF_UNSPEC).
    fn disconnect(
        &mut self,
        caller: &Caller<'_>,
        descriptor: i32,
        inode: u64,
    ) -> Result<Reply, Errno> {
        let flags = caller.flags(descriptor);
        let kernel = match self.sockets.get_mut(&inode) {
            Some(socket) if socket.owns_kernel => {
                socket.resets_on_close = true;
                Rc::clone(&socket.kernel)
            }
            _ => return Err(Errno::OPNOTSUPP),
        };
        crate::socket::set_nonblocking(&kernel, flags.is_nonblocking)?;
        self.arm_reset(inode);
        self.replace(caller, descriptor, &kernel, flags)?;
        self.forget(inode);
        Ok(ZERO)
    }

    /// Opens a session on a socket that was bound, or whose connect(2) failed before.
    fn open_again(
        &mut self,
        caller: &mut Caller<'_>,
        descriptor: i32,
        inode: u64,
        given: Given,
    ) -> Result<Reply, Errno> {
        let Given::Inet(peer) = given else {
            return Err(Errno::AFNOSUPPORT);
        };
        let flags = caller.flags(descriptor);
        let Some(socket) = self.remove(inode) else {
            return Ok(PROCEED);
        };
        let (kernel, is_v6) = (Rc::clone(&socket.kernel), socket.is_v6);
        let Some(server) = self.scope.of_peer(peer.ip()) else {
            // The new peer is reached by the kernel only: the program gets its original socket
            // back.
            let local = SocketAddr::from((
                if is_v6 {
                    IpAddr::from(Ipv6Addr::UNSPECIFIED)
                } else {
                    Ipv4Addr::UNSPECIFIED.into()
                },
                socket.local.port(),
            ));
            // Fails if the kernel bound it when it chose the port.
            rustix::net::bind(&kernel, &local).ok();
            crate::socket::set_nonblocking(&kernel, flags.is_nonblocking)?;
            self.replace(caller, descriptor, &kernel, flags)?;
            return Ok(PROCEED);
        };
        let parts = Parts {
            is_v6,
            is_v6_only: socket.is_v6_only,
            port: socket.local.port(),
            ip: socket.local.ip(),
            kernel,
            flags,
        };
        let opened = self.open(caller, descriptor, server, plain_peer(peer, is_v6), parts);
        if opened.is_err() && !caller.is_waiting() && !self.sockets.contains_key(&inode) {
            // A signal interrupted the call: the caller still has the socket, and repeats the call.
            let (claim, port) = (socket.claim(false), socket.local.port());
            let _ = self.ports.take(Transport::Tcp, port, inode, claim);
            self.insert(inode, socket)?;
        }
        opened
    }

    fn open(
        &mut self,
        caller: &mut Caller<'_>,
        descriptor: i32,
        server: Server,
        peer: SocketAddr,
        parts: Parts,
    ) -> Result<Reply, Errno> {
        match server {
            Server::Loopback => self.open_to_program(caller, descriptor, peer, parts),
            Server::Stack => self.open_to_stack(caller, descriptor, peer, parts),
        }
    }

    /// Opens a session to another program: each gets one end of a pair.
    fn open_to_program(
        &mut self,
        caller: &mut Caller<'_>,
        descriptor: i32,
        peer: SocketAddr,
        parts: Parts,
    ) -> Result<Reply, Errno> {
        let port = match parts.port {
            0 => self.ephemeral_port(Transport::Tcp),
            port => port,
        };
        let local = SocketAddr::new(
            match peer.ip() {
                _ if !parts.ip.is_unspecified() => parts.ip,
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            },
            port,
        );
        if parts.port != 0 && self.is_connected(local, peer) {
            let error = Errno::ADDRNOTAVAIL;
            return self.refuse(caller, descriptor, (local, peer), parts, error);
        }
        // SO_LINGER of zero needs access to the other end, which a direct session does not give.
        let level = libc::SOL_SOCKET;
        let linger = socket_option::get(parts.kernel.as_fd(), level, libc::SO_LINGER, 8);
        let resets = linger.is_ok_and(|linger| super::options::resets(&linger));
        if !resets && let Some(opened) = self.open_directly(local, peer) {
            return self.join_directly(caller, descriptor, (local, peer), parts, opened);
        }
        let (near, mate) = match self.open_between(local, peer) {
            Ok(opened) => opened,
            Err(error) => return self.refuse(caller, descriptor, (local, peer), parts, error),
        };
        let inode = inode_of(&near)?;
        let flags = parts.flags;
        let is_nonblocking = flags.is_nonblocking;
        crate::socket::set_nonblocking(&near, is_nonblocking)?;
        let mut socket = parts.socket(local, peer, (caller.call.thread, descriptor), None);
        socket.state = State::Joined(!is_nonblocking);
        self.insert(inode, socket)?;
        if let Some(mate) = mate {
            self.mates.insert(inode, mate);
            self.mates.insert(mate, inode);
        }
        if let Err(error) = self.replace(caller, descriptor, &near, flags) {
            self.forget(inode);
            return Err(error);
        }
        if self.take_linger(inode) {
            self.arm_reset(inode);
        }
        if is_nonblocking {
            // As in the kernel, although it is open already; SO_ERROR and epoll report that at
            // once.
            return Err(Errno::INPROGRESS);
        }
        Ok(ZERO)
    }

    /// Gives a program its end of a session that another program's library accepts.
    fn join_directly(
        &mut self,
        caller: &Caller<'_>,
        descriptor: i32,
        (local, peer): (SocketAddr, SocketAddr),
        parts: Parts,
        opened: super::direct::Opened,
    ) -> Result<Reply, Errno> {
        let flags = parts.flags;
        let is_nonblocking = flags.is_nonblocking;
        crate::socket::set_nonblocking(&opened.near, is_nonblocking)?;
        let inode = inode_of(&opened.near)?;
        let mut socket = parts.socket(local, peer, (caller.call.thread, descriptor), None);
        socket.state = State::Joined(!is_nonblocking);
        socket.named = Some(opened.number);
        self.insert(inode, socket)?;
        self.direct.bear(opened.number, inode);
        if let Err(error) = self.replace(caller, descriptor, &opened.near, flags) {
            self.forget(inode);
            return Err(error);
        }
        if let Some(listener) = opened.listener {
            self.retry(listener);
        }
        if is_nonblocking {
            // As in the kernel, although it is open already; SO_ERROR and epoll report that at
            // once.
            return Err(Errno::INPROGRESS);
        }
        Ok(ZERO)
    }

    /// True if there is a session between these addresses.
    fn is_connected(&mut self, local: SocketAddr, peer: SocketAddr) -> bool {
        let is_there = |it: &Self| {
            let mut joined = it
                .sockets
                .values()
                .filter(|socket| matches!(socket.state, State::Joined(_)) && socket.local == local);
            joined.any(|socket| socket.peer == Some(peer))
        };
        if !is_there(self) {
            return false;
        }
        // Its end may not have been noticed yet.
        self.sweep();
        is_there(self)
    }

    /// A session that cannot be opened: the error at once or, for a nonblocking caller, later, as
    /// the kernel reports it.
    fn refuse(
        &mut self,
        caller: &Caller<'_>,
        descriptor: i32,
        (local, peer): (SocketAddr, SocketAddr),
        parts: Parts,
        error: Errno,
    ) -> Result<Reply, Errno> {
        let flags = parts.flags;
        if !flags.is_nonblocking || error != Errno::CONNREFUSED {
            // The original socket was never connected, so it is in the right state.
            crate::socket::set_nonblocking(&parts.kernel, flags.is_nonblocking)?;
            self.replace(caller, descriptor, &parts.kernel, flags)?;
            return Err(error);
        }
        if parts.port == 0 && self.refuse_by_kernel(caller, descriptor, &parts)? {
            return Err(Errno::INPROGRESS);
        }
        let (near, far) = pair(true)?;
        let inode = inode_of(&near)?;
        let mut socket = parts.socket(local, peer, (caller.call.thread, descriptor), None);
        socket.peer = None;
        socket.state = State::Failed(Some(error));
        // Closing an end with unread bytes is reported as an error at the other end.
        rustix::net::send(&near, &[0], SendFlags::NOSIGNAL)?;
        drop(far);
        self.insert(inode, socket)?;
        self.replace(caller, descriptor, &near, flags)?;
        Err(Errno::INPROGRESS)
    }

    /// Lets the kernel refuse the program's own socket, so that the error is reported natively;
    /// false if it cannot.
    fn refuse_by_kernel(
        &mut self,
        caller: &Caller<'_>,
        descriptor: i32,
        parts: &Parts,
    ) -> Result<bool, Errno> {
        let Ok(nobody) = self.senders.nobody(parts.is_v6) else {
            return Ok(false);
        };
        crate::socket::set_nonblocking(&parts.kernel, true)?;
        if rustix::net::connect(&parts.kernel, &nobody) != Err(Errno::INPROGRESS) {
            return Ok(false);
        }
        if caller.inode(descriptor) != Some(inode_of(&parts.kernel)?) {
            self.replace(caller, descriptor, &parts.kernel, parts.flags)?;
        }
        Ok(true)
    }

    /// Opens a session of the stack.
    fn open_to_stack(
        &mut self,
        caller: &mut Caller<'_>,
        descriptor: i32,
        peer: SocketAddr,
        parts: Parts,
    ) -> Result<Reply, Errno> {
        let client = self.client.as_mut().ok_or(Errno::NETDOWN)?;
        let begun = client.begin_connect(parts.port, peer);
        let opening = begun.map_err(|error| errno_of(&error))?;
        let made = self.join_opening(caller, descriptor, peer, opening, parts);
        if made.is_err()
            && let Some(client) = &mut self.client
        {
            self.openings.remove(&opening);
            client.give_up(opening).ok();
        }
        made
    }

    fn join_opening(
        &mut self,
        caller: &mut Caller<'_>,
        descriptor: i32,
        peer: SocketAddr,
        opening: Opening,
        parts: Parts,
    ) -> Result<Reply, Errno> {
        let (near, far) = pair(parts.flags.is_nonblocking)?;
        let inode = inode_of(&near)?;
        let flags = parts.flags;
        let filler = if flags.is_nonblocking {
            fill(&near)?
        } else {
            0
        };
        // Unspecified until the stack has answered.
        let local = match peer.ip() {
            IpAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, parts.port)),
            IpAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, parts.port)),
        };
        let holder = (caller.call.thread, descriptor);
        let mut socket = parts.socket(local, peer, holder, Some(far));
        let at_stack = AtStack::Asked(opening);
        socket.state = State::Connecting(Connecting { at_stack, filler });
        self.insert(inode, socket)?;
        self.openings.insert(opening, inode);
        if let Err(error) = self.replace(caller, descriptor, &near, flags) {
            self.remove(inode);
            return Err(error);
        }
        if flags.is_nonblocking {
            // A responsive engine answers within this time: then errors are reported directly, and
            // the local address is known.
            let reply = self.park(inode, caller, Some(BEGINNING_MAX));
            if let Some(socket) = self.sockets.get_mut(&inode)
                && let Some(last) = socket.waiting.back_mut()
            {
                last.only_begins = true;
            }
            return Ok(reply);
        }
        let patience = self.send_patience(inode);
        Ok(self.park(inode, caller, patience))
    }

    /// Completes a session that was being opened, or fails it.
    pub(super) fn finish_connecting(&mut self, inode: u64) {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return;
        };
        let (State::Connecting(connecting), Some(client)) = (&socket.state, &mut self.client)
        else {
            return;
        };
        // The stack has not answered the request, so there is no session to look at.
        let AtStack::Begun(engine) = connecting.at_stack else {
            return;
        };
        let filler = connecting.filler;
        let readiness = client.readiness(engine);
        if readiness.closed {
            // The read returns the reason; a session that was closed without one was refused.
            let mut none = [0];
            let error = match client.read(engine, &mut none) {
                Err(error) => errno_of(&error),
                Ok(_) => Errno::CONNREFUSED,
            };
            self.sessions.remove(&engine);
            self.close_session(engine, true);
            self.fail_connecting(inode, error);
            return;
        }
        if !client.is_connected(engine) {
            return;
        }
        // A waiting connect(2) reports the success; without one, the next connect(2) does.
        socket.state = State::Open(Stream::new(engine, !socket.waiting.is_empty(), filler));
        for waiting in self.take_waiting(inode) {
            self.listener.answer(waiting.call.id, Answer::Value(0));
        }
        // Also removes the filler, so that the near end becomes writable.
        self.take_from_program(inode);
    }

    pub(super) fn fail_connecting(&mut self, inode: u64, error: Errno) {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return;
        };
        // The filler stays unread: closing the far end so is reported as an error at the near end.
        let far = socket.far.take();
        socket.peer = None;
        if socket.waiting.is_empty() {
            socket.state = State::Failed(Some(error));
        } else {
            socket.state = State::Failed(None);
            self.fail_waiting(inode, error);
        }
        drop(far);
        self.unseen += 1;
    }

    fn send_patience(&self, inode: u64) -> Option<Duration> {
        self.patience(inode, libc::SO_SNDTIMEO)
    }

    /// SO_SNDTIMEO or SO_RCVTIMEO of a socket; none if it is not set.
    pub(super) fn patience(&self, inode: u64, name: i32) -> Option<Duration> {
        let value = self.option_value(inode, libc::SOL_SOCKET, name, 16).ok()?;
        let seconds = u64::from_ne_bytes(*value.first_chunk()?);
        let micros = u64::from_ne_bytes(*value.get(8..)?.first_chunk()?);
        let patience = Duration::from_secs(seconds) + Duration::from_micros(micros);
        (!patience.is_zero()).then_some(patience)
    }

    /// Passes options that were set before the session existed to the stack.
    pub(super) fn tell_options(&mut self, inode: u64) {
        for (level, name) in super::options::TOLD {
            let value = self.option_value(inode, level, name, 4);
            if let Ok(value) = value
                && value.iter().any(|byte| *byte != 0)
            {
                self.pass_option_on(inode, level, name, &value);
            }
        }
        self.take_linger(inode);
    }

    /// Applies SO_LINGER of zero that was set before the session existed; true if it was.
    fn take_linger(&mut self, inode: u64) -> bool {
        let linger = self.option_value(inode, libc::SOL_SOCKET, libc::SO_LINGER, 8);
        if let (Ok(linger), Some(socket)) = (linger, self.sockets.get_mut(&inode)) {
            socket.resets_on_close = super::options::resets(&linger);
            return socket.resets_on_close;
        }
        false
    }
}

/// Properties of a socket that is to be connected.
struct Parts {
    is_v6: bool,
    is_v6_only: bool,
    /// The port that it was bound to, or 0.
    port: u16,
    /// The address that it was bound to, or the unspecified one.
    ip: IpAddr,
    kernel: Rc<OwnedFd>,
    flags: Flags,
}

impl Parts {
    fn socket(
        self,
        local: SocketAddr,
        peer: SocketAddr,
        holder: (i32, i32),
        far: Option<OwnedFd>,
    ) -> Socket {
        Socket {
            transport: Transport::Tcp,
            is_v6: self.is_v6,
            is_v6_only: self.is_v6_only,
            far,
            kernel: self.kernel,
            options: Vec::new(),
            owns_kernel: true,
            bound: local.ip(),
            local,
            peer: Some(peer),
            state: State::Bound,
            waiting: VecDeque::new(),
            holder,
            resets_on_close: false,
            carrier: None,
            ring_place: None,
            named: None,
            asked: None,
        }
    }
}

/// As in the kernel, the unspecified address as a destination is this host.
pub(super) fn plain_peer(peer: SocketAddr, is_v6: bool) -> SocketAddr {
    if !peer.ip().is_unspecified() {
        return peer;
    }
    let ip = match (peer.ip(), is_v6) {
        (IpAddr::V6(_), true) => IpAddr::from(Ipv6Addr::LOCALHOST),
        _ => Ipv4Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, peer.port())
}

/// Reads the address in the caller's memory whose pointer and length are these arguments.
pub(super) fn given(
    caller: &mut Caller<'_>,
    pointer: usize,
    length: usize,
) -> Result<Given, Errno> {
    Ok(given_family(caller, pointer, length)?.0)
}

/// The same, and true if it was passed as AF_INET6.
fn given_family(
    caller: &mut Caller<'_>,
    pointer: usize,
    length: usize,
) -> Result<(Given, bool), Errno> {
    let bytes = usize::try_from(caller.int(length)).map_err(|_| Errno::INVAL)?;
    if bytes > address::BYTES_MAX {
        return Err(Errno::INVAL);
    }
    let bytes = caller.read(caller.call.arguments[pointer], bytes)?;
    let family = bytes
        .first_chunk()
        .map(|it| i32::from(u16::from_ne_bytes(*it)));
    Ok((address::read(&bytes), family == Some(libc::AF_INET6)))
}

/// Writes to the pair until its near end is no longer writable, which holds until there is a
/// session; returns the number of bytes.
pub(super) fn fill(near: &OwnedFd) -> Result<usize, Errno> {
    let bytes = [0; FILL_BYTES];
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let mut filled = 0;
    for _ in 0..FILLS_MAX {
        match rustix::net::send(near, &bytes, flags) {
            Ok(count) => filled += count,
            Err(Errno::AGAIN) => break,
            Err(error) => return Err(error),
        }
        if !is_writable(near) {
            break;
        }
    }
    Ok(filled)
}

fn is_writable(file: &OwnedFd) -> bool {
    use rustix::event::{PollFd, PollFlags};
    let mut polled = [PollFd::new(file, PollFlags::OUT)];
    let none = rustix::time::Timespec::default();
    rustix::event::poll(&mut polled, Some(&none)).is_ok()
        && polled[0].revents().contains(PollFlags::OUT)
}

/// Time that a nonblocking connect(2) waits for the stack's first answer.
const BEGINNING_MAX: Duration = Duration::from_millis(2);
const FILL_BYTES: usize = 64 << 10;
const FILLS_MAX: usize = 256;
