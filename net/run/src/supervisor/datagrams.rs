//! UDP: taking over sockets, and moving datagrams between them and the stack. `crate::carrier`
//! describes how datagrams enter and leave a program's socket; `super::sending` and
//! `super::receiving` have the calls.

use super::{Supervisor, errno_of};
use crate::address::{self, Given};
use crate::caller::Caller;
use crate::carrier::{self, Carrier, Way};
use crate::control::Marks;
use crate::ports::{Claim, Transport};
use crate::scope::Server;
use crate::socket::{Adopting, Opened, Purpose, Socket, State, inode_of};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use sidecore_net::sock::client::Socket as Session;
use sidecore_sys::{message, socket_option};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

impl Supervisor {
    /// Takes a UDP socket from the kernel's network and binds it to `asked`, with any port if that
    /// is 0; its inode. If the stack has not answered yet ([`Self::is_asking`]), the call has to
    /// wait.
    pub(super) fn adopt_datagrams(
        &mut self,
        caller: &Caller<'_>,
        descriptor: i32,
        opened: Opened,
        asked: SocketAddr,
    ) -> Result<u64, Errno> {
        let mut carrier = Carrier::new(opened.is_v6)?;
        let is_near = carrier::share_network(&opened.file, &carrier.far);
        let flags = caller.flags(descriptor);
        let number = |name| {
            let value = socket_option::get(opened.file.as_fd(), libc::SOL_SOCKET, name, 4);
            value.unwrap_or_else(|_| vec![0; 4])
        };
        // Saved, because they are cleared before the kernel's socket is bound.
        let options = [libc::SO_REUSEADDR, libc::SO_REUSEPORT].map(|name| (name, number(name)));
        let is_set = |at: usize| options[at].1.iter().any(|byte| *byte != 0);
        let claim = Claim {
            ip: asked.ip(),
            is_v6_only: opened.is_v6_only,
            reuses_address: is_set(0),
            reuses_port: is_set(1),
            listens: false,
        };
        let set = options
            .iter()
            .filter(|it| it.1.iter().any(|byte| *byte != 0));
        let shared: Vec<i32> = set.map(|it| it.0).collect();
        // A socket of another network namespace cannot reach ours: one of ours replaces it.
        let near = if is_near {
            opened.file
        } else {
            let near = carrier::alike(&opened.file, opened.is_v6)?;
            crate::socket::set_nonblocking(&near, flags.is_nonblocking)?;
            Rc::new(near)
        };
        let inode = inode_of(&near)?;
        let mut local = asked;
        if local.port() == 0 {
            // The kernel chooses the port, unless another program's socket at the stack has that
            // one.
            carrier.settle(&near, &shared)?;
            local.set_port(carrier.near.port());
            if !self.ports.is_free(Transport::Udp, local.port()) {
                local.set_port(self.ephemeral_port(Transport::Udp));
            }
        }
        let options = options
            .into_iter()
            .filter(|it| it.1.iter().any(|byte| *byte != 0));
        let socket = Socket {
            transport: Transport::Udp,
            is_v6: opened.is_v6,
            is_v6_only: opened.is_v6_only,
            far: None,
            kernel: Rc::new(carrier.far.try_clone().map_err(|_| Errno::MFILE)?),
            options: options.map(|it| (libc::SOL_SOCKET, it.0, it.1)).collect(),
            owns_kernel: true,
            bound: local.ip(),
            local,
            peer: None,
            state: State::Datagram(Vec::new()),
            waiting: VecDeque::new(),
            holder: (caller.call.thread, descriptor),
            resets_on_close: false,
            carrier: Some(carrier),
            ring_place: None,
            named: None,
            asked: None,
        };
        // Conflicts between the programs' own sockets are found before the stack is asked.
        if !self.take_port(inode, Transport::Udp, local.port(), claim) {
            return Err(Errno::ADDRINUSE);
        }
        let adopting = Adopting {
            near,
            is_near,
            shared,
            flags,
        };
        let again = Adopting {
            near: Rc::clone(&adopting.near),
            shared: adopting.shared.clone(),
            ..adopting
        };
        let asked = self
            .insert(inode, socket)
            .and_then(|()| self.ask_stack(inode, None, Purpose::Datagrams(again)));
        // Its close may be found by a sweep only, and its port at the stack must be free soon
        // after.
        if self.scope.has_stack() {
            self.sweep_every = super::SWEEP_LISTENERS_EVERY;
        }
        match asked {
            // The call waits for the stack's answer.
            Ok(true) => return Ok(inode),
            Ok(false) => self.settle_datagrams(inode, &adopting, Some(caller.call))?,
            Err(error) => {
                self.forget(inode);
                self.ports.release(Transport::Udp, local.port(), inode);
                return Err(error);
            }
        }
        if !is_near {
            caller.forget_inode();
        }
        Ok(inode)
    }

    /// True while the stack's answer about a socket is missing.
    pub(super) fn is_asking(&self, inode: u64) -> bool {
        let socket = self.sockets.get(&inode);
        socket.is_some_and(|socket| socket.asked.is_some())
    }

    pub(super) fn carrier(&mut self, inode: u64) -> Option<&mut Carrier> {
        self.sockets.get_mut(&inode)?.carrier.as_mut()
    }

    /// A socket was bound to a port: sockets that are connected there are no longer refused.
    pub(super) fn welcome(&mut self, local: SocketAddr) {
        let is_welcome = |inode: &u64| {
            let peer = self.sockets.get(inode).and_then(|socket| socket.peer);
            peer.is_some_and(|peer| peer.port() == local.port() && !self.is_nobody(peer))
        };
        let welcome: Vec<u64> = self.refused.iter().copied().filter(is_welcome).collect();
        for inode in welcome {
            if let Some(carrier) = self.carrier(inode)
                && carrier.unpark().is_ok()
            {
                self.refused.remove(&inode);
            }
        }
    }

    /// True if no socket is bound at `peer`; known for the loopback only.
    fn is_nobody(&self, peer: SocketAddr) -> bool {
        self.scope.of_peer(peer.ip()) == Some(Server::Loopback)
            && self.ports.at(Transport::Udp, peer).is_empty()
    }

    /// Sets or clears the peer of the socket with the near end `near`.
    pub(super) fn connect_datagrams(
        &mut self,
        inode: u64,
        near: &OwnedFd,
        peer: Option<SocketAddr>,
    ) -> Result<(), Errno> {
        let Some(socket) = self.sockets.get(&inode) else {
            return Ok(());
        };
        let (is_v6, bound) = (socket.is_v6, socket.bound);
        let peer = peer.map(|peer| super::connect::plain_peer(peer, is_v6));
        if let Some(peer) = peer {
            self.forget_closed(Transport::Udp, peer.port());
        }
        let is_nobody = peer.is_some_and(|peer| self.is_nobody(peer));
        // As in the kernel, connecting fixes the source address.
        let source = peer
            .filter(|_| bound.is_unspecified())
            .and_then(|peer| self.source_for(peer.ip()));
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return Ok(());
        };
        let Some(carrier) = &mut socket.carrier else {
            return Ok(());
        };
        match peer {
            Some(_) if is_nobody => {
                carrier.park()?;
                self.refused.insert(inode);
            }
            _ => {
                carrier.unpark()?;
                self.refused.remove(&inode);
            }
        }
        match peer {
            Some(_) => rustix::net::connect(near, &carrier.at)?,
            None => {
                rustix::net::connect_unspec(near)?;
                // The kernel has released the port that it chose at bind(2); if another socket has
                // it by now, the kernel chooses a new one.
                rustix::net::bind(near, &carrier.near).ok();
                carrier.settle(near, &[])?;
            }
        }
        socket.peer = peer;
        socket.local.set_ip(source.unwrap_or(bound));
        let to = socket.local.ip();
        let way = peer.map(|from| Way { from, to, is_v6 });
        // Datagrams that arrived before a disconnect are still reported as the old peer's.
        if way.is_some() {
            self.senders.set_far(carrier.at, way);
        }
        Ok(())
    }

    /// The caller's socket, if it is a datagram socket of ours, or becomes one because of the
    /// destination `to`.
    pub(super) fn datagram_socket(
        &mut self,
        caller: &mut Caller<'_>,
        to: Given,
    ) -> Result<Option<u64>, Errno> {
        let descriptor = caller.int(0);
        let Some(inode) = caller.inode(descriptor) else {
            return Ok(None);
        };
        if let Some(socket) = self.sockets.get_mut(&inode) {
            socket.holder = (caller.call.thread, descriptor);
            return Ok(matches!(socket.state, State::Datagram(_)).then_some(inode));
        }
        let Given::Inet(peer) = to else {
            return Ok(None);
        };
        if self.scope.of_peer(peer.ip()).is_none() {
            return Ok(None);
        }
        let Some(opened) = Opened::of(caller.fetch(descriptor)?) else {
            return Ok(None);
        };
        let is_foreign = peer.is_ipv6() && !opened.is_v6;
        if opened.transport != Transport::Udp || opened.local.port() != 0 || is_foreign {
            return Ok(None);
        }
        let any = SocketAddr::new(opened.any(), 0);
        self.adopt_datagrams(caller, descriptor, opened, any)
            .map(Some)
    }

    fn source_for(&self, peer: IpAddr) -> Option<IpAddr> {
        if peer.is_loopback() {
            return Some(match peer {
                IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        let mut own = self.scope.addresses.iter().copied();
        own.find(|own| own.is_ipv4() == peer.is_ipv4())
    }

    /// Sends a datagram to the server of its destination.
    pub(super) fn route(
        &mut self,
        inode: u64,
        source: Option<IpAddr>,
        peer: SocketAddr,
        payload: &[u8],
        marks: Marks,
    ) -> Result<(), Errno> {
        match self.scope.of_peer(peer.ip()) {
            Some(Server::Loopback) => self.send_to_program(inode, source, peer, payload, marks),
            Some(Server::Stack) => {
                let socket = self.sockets.get(&inode).ok_or(Errno::BADF)?;
                let State::Datagram(engines) = &socket.state else {
                    return Err(Errno::NOTCONN);
                };
                let client = self.client.as_mut().ok_or(Errno::NETDOWN)?;
                let of_family = engines.iter().copied().find(|engine| {
                    let local = client.local(*engine);
                    local.is_some_and(|local| local.is_ipv4() == peer.is_ipv4())
                });
                let engine = of_family.ok_or(Errno::NETUNREACH)?;
                // Without a buffer the datagram is lost, which UDP allows.
                let sent = client.send_to(engine, peer, payload);
                sent.map(drop).map_err(|error| errno_of(&error))
            }
            None => Err(Errno::NETUNREACH),
        }
    }

    fn send_to_program(
        &mut self,
        inode: u64,
        source: Option<IpAddr>,
        peer: SocketAddr,
        payload: &[u8],
        marks: Marks,
    ) -> Result<(), Errno> {
        let socket = self.sockets.get(&inode).ok_or(Errno::BADF)?;
        let mut from = socket.local;
        let is_connected = socket.peer == Some(peer);
        if let Some(source) = source.or_else(|| {
            let is_any = from.ip().is_unspecified();
            is_any.then(|| self.source_for(peer.ip())).flatten()
        }) {
            from.set_ip(source);
        }
        // Each iteration but the last removes a closed socket.
        loop {
            let takers = self.ports.at(Transport::Udp, peer);
            let with_peer = |peer: Option<SocketAddr>| {
                let mut fitting = takers.iter().rev().filter(|inode| {
                    let socket = self.sockets.get(inode);
                    socket.is_some_and(|socket| socket.peer == peer)
                });
                fitting.next().copied()
            };
            let Some(taker) = with_peer(Some(from)).or_else(|| with_peer(None)) else {
                break;
            };
            if self.deliver(taker, from, peer.ip(), payload, marks) {
                return Ok(());
            }
            self.forget(taker);
        }
        // As in the kernel, an unconnected sender gets no error.
        if is_connected {
            self.refuse_datagrams(inode);
        }
        Ok(())
    }

    /// Makes the kernel report ECONNREFUSED to a socket without a receiver at its peer's address.
    fn refuse_datagrams(&mut self, inode: u64) {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return;
        };
        let (thread, descriptor) = socket.holder;
        let Some(carrier) = &mut socket.carrier else {
            return;
        };
        if carrier.park().is_err() {
            return;
        }
        self.refused.insert(inode);
        // From now on the kernel refuses its writes. An empty datagram is sent for it now, to
        // report the refusal of the one before; if that fails, the error comes one datagram later.
        if let Some(near) = crate::caller::fetch_socket(thread, descriptor, inode) {
            message::send(near.as_fd(), &[], &[], &[], 0).ok();
        }
    }

    /// Sends a datagram to a program's socket; it is lost if the buffer is full. False if no
    /// program has the socket any more.
    fn deliver(
        &mut self,
        inode: u64,
        from: SocketAddr,
        to: IpAddr,
        payload: &[u8],
        marks: Marks,
    ) -> bool {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return true;
        };
        let is_v6 = socket.is_v6;
        let Some(carrier) = &mut socket.carrier else {
            return true;
        };
        let sender = match socket.peer {
            // A connected socket receives from its peer only.
            Some(peer) if peer != from => return true,
            Some(_) => None,
            None => match self.senders.sender(Way { from, to, is_v6 }) {
                Ok(sender) => Some(sender),
                Err(_) => return true,
            },
        };
        let is_live = carrier.deliver(sender.as_deref(), payload, marks);
        if is_live && !socket.waiting.is_empty() {
            self.retry_watched(inode);
        }
        is_live
    }

    /// Delivers datagrams from the stack. Of the sockets that share a port, one connected to the
    /// source is preferred, else the last unconnected one.
    pub(super) fn give_datagrams(&mut self, engine: Session) {
        loop {
            let Some(client) = &mut self.client else {
                return;
            };
            let Some((received, from)) = client.receive_from(engine) else {
                return;
            };
            let local = client.local(engine).map(|local| local.ip());
            let payload = received.bytes().to_vec();
            client.release(received);
            let sharers = self.sharers.get(&engine).into_iter().flatten().rev();
            let with_peer = |peer: Option<SocketAddr>| {
                let mut fitting = sharers.clone().filter(|inode| {
                    let socket = self.sockets.get(inode);
                    socket.is_some_and(|socket| socket.peer == peer)
                });
                fitting.next().copied()
            };
            let Some(inode) = with_peer(Some(from)).or_else(|| with_peer(None)) else {
                continue;
            };
            let to = local
                .filter(|ip| !ip.is_unspecified())
                .or_else(|| self.source_for(from.ip()));
            let to = to.unwrap_or(from.ip());
            if !self.deliver(inode, from, to, &payload, Marks::default()) {
                self.forget(inode);
            }
        }
    }

    /// Forwards datagrams that a program wrote without an address to its peer.
    pub(super) fn take_datagrams(&mut self, inode: u64) {
        let mut payload = std::mem::take(&mut self.scratch);
        payload.resize(DATAGRAM_BYTES_MAX, 0);
        let mut control = [0; MARKS_BYTES];
        let mut is_more = true;
        for _ in 0..TAKEN_MAX {
            let Some(socket) = self.sockets.get(&inode) else {
                is_more = false;
                break;
            };
            let Some(carrier) = &socket.carrier else {
                is_more = false;
                break;
            };
            let far = carrier.far.as_fd();
            let received = match message::receive(far, &mut payload, &mut control, 0) {
                Ok(received) => received,
                // The error of an earlier delivery; the program's socket may be closed.
                Err(Errno::CONNREFUSED) => continue,
                Err(_) => {
                    is_more = false;
                    break;
                }
            };
            let is_programs = address::write(carrier.near, socket.is_v6) == received.name;
            if let Some(peer) = socket.peer.filter(|_| is_programs) {
                let marks = Marks::read(&control[..received.control_bytes]);
                // Lost if there is no route, which UDP allows.
                self.route(inode, None, peer, &payload[..received.bytes], marks)
                    .ok();
            }
        }
        self.scratch = payload;
        if is_more {
            self.starved.push_back(inode);
        }
    }

    /// Watches a program's socket while one of its calls waits.
    pub(super) fn watch(&mut self, inode: u64, near: Rc<OwnedFd>) -> Result<(), Errno> {
        let Some(carrier) = self
            .sockets
            .get_mut(&inode)
            .and_then(|it| it.carrier.as_mut())
        else {
            return Ok(());
        };
        if carrier.watched.is_none() {
            let mark = EventData::new_u64(super::NEARS + inode);
            let flags = EventFlags::IN | EventFlags::ET;
            epoll::add(&self.epoll, &near, mark, flags)?;
            carrier.watched = Some(near);
        }
        Ok(())
    }

    /// Drops the duplicate of a program's socket, unless a call waits for it.
    pub(super) fn unwatch(&mut self, inode: u64) {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return;
        };
        let listener = &self.listener;
        let is_waiting = |it: &super::Waiting| listener.is_waiting(it.call.id);
        if socket.waiting.iter().any(is_waiting) {
            return;
        }
        if let Some(watched) = socket.carrier.as_mut().and_then(|it| it.watched.take()) {
            // Closing it is not enough: the program's own descriptor keeps the file in the epoll.
            epoll::delete(&self.epoll, &watched).ok();
        }
    }

    /// Removes the datagram sockets that no program has any more.
    pub(super) fn sweep_datagrams(&mut self) {
        let sockets = self.sockets.iter();
        let all: Vec<u64> = sockets
            .filter(|(_, socket)| socket.carrier.is_some())
            .map(|(inode, _)| *inode)
            .collect();
        for inode in all {
            self.unwatch(inode);
            if self.is_closed(inode) {
                self.forget(inode);
            }
        }
    }

    /// Repeats the calls that wait for datagrams.
    pub(super) fn retry_watched(&mut self, inode: u64) {
        self.retry(inode);
        self.unwatch(inode);
    }
}

/// Largest datagram.
pub(super) const DATAGRAM_BYTES_MAX: usize = 65_535;
/// Datagrams of other processes that one call skips.
pub(super) const STRANGERS_MAX: usize = 64;
/// Datagrams read in one go: about as many as the buffer holds at most.
const TAKEN_MAX: usize = 256;
/// Capacity for TTL and traffic class.
const MARKS_BYTES: usize = 128;
