//! UDP: taking sockets, sendto(2), recvfrom(2) and their like, and datagrams that are written
//! plainly. `crate::carrier` says how they get into and out of a program's socket.

use super::connect::given;
use super::{PROCEED, Reply, Supervisor, errno_of};
use crate::address::{self, Given};
use crate::caller::Caller;
use crate::carrier::{self, Carrier, Way};
use crate::control::{self, Asked, Marks};
use crate::ports::{Claim, Transport};
use crate::scope::Server;
use crate::socket::{Opened, Socket, State, inode_of};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use sidecore_net::sock::client::Socket as Session;
use sidecore_sys::seccomp::Answer;
use sidecore_sys::{message, socket_option};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

/// `struct msghdr` as a program has it, in 64-bit programs.
struct Header {
    name: u64,
    name_bytes: u32,
    pieces: Vec<(u64, usize)>,
    control: u64,
    control_bytes: u64,
}

impl Supervisor {
    /// Takes a UDP socket from the kernel's network and binds it to `asked`, where port 0 is any;
    /// its inode.
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
        // The kernel's socket has them no more once it is bound.
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
        // A socket of another network does not reach ours: one of ours takes its place.
        let near = if is_near {
            opened.file
        } else {
            let near = carrier::alike(&opened.file, opened.is_v6)?;
            crate::socket::set_nonblocking(&near, flags.is_nonblocking)?;
            near
        };
        let inode = inode_of(&near)?;
        let mut local = asked;
        if local.port() == 0 {
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
        };
        if !self.take_port(inode, Transport::Udp, local.port(), claim) {
            return Err(Errno::ADDRINUSE);
        }
        let done = self.insert(inode, socket).and_then(|()| {
            self.serve_at_stack(inode)?;
            if let Some(carrier) = self.carrier(inode) {
                carrier.settle(&near, &shared)?;
            }
            if is_near {
                Ok(())
            } else {
                self.replace(caller, descriptor, &near, flags)
            }
        });
        if let Err(error) = done {
            self.forget(inode);
            self.ports.release(Transport::Udp, local.port(), inode);
            return Err(error);
        }
        if self.scope.has_stack() {
            self.sweep_every = super::SWEEP_LISTENERS_EVERY;
        }
        self.welcome(local);
        Ok(inode)
    }

    fn carrier(&mut self, inode: u64) -> Option<&mut Carrier> {
        self.sockets.get_mut(&inode)?.carrier.as_mut()
    }

    /// Somebody has a port now: those who were refused there are no longer.
    fn welcome(&mut self, local: SocketAddr) {
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

    /// True if it is known that nobody is at `peer`: of the loopback alone.
    fn is_nobody(&self, peer: SocketAddr) -> bool {
        self.scope.of_peer(peer.ip()) == Some(Server::Loopback)
            && self.ports.at(Transport::Udp, peer).is_empty()
    }

    /// Sets or forgets the only peer of the socket that `near` is of.
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
        // As the kernel does, it has the address from which it would send from now on.
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
                // The kernel has taken back the port that it had chosen; where somebody has it now,
                // another does.
                rustix::net::bind(near, &carrier.near).ok();
                carrier.settle(near, &[])?;
            }
        }
        socket.peer = peer;
        socket.local.set_ip(source.unwrap_or(bound));
        let to = socket.local.ip();
        let way = peer.map(|from| Way { from, to, is_v6 });
        // What came before the peer was forgotten is still its.
        if way.is_some() {
            self.senders.set_far(carrier.at, way);
        }
        Ok(())
    }

    pub(super) fn send_to(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let [_, source, bytes, ..] = caller.call.arguments;
        let given = given(caller, 4, 5)?;
        let Some(inode) = self.datagram_socket(caller, given)? else {
            return self.send_to_peer(caller);
        };
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if bytes > DATAGRAM_BYTES_MAX {
            return Err(Errno::MSGSIZE);
        }
        let payload = caller.read(source, bytes)?;
        let flags = caller.int(3);
        let sent = self.send_datagram(caller, inode, given, &payload, &[], flags)?;
        Ok(Reply::Now(Answer::Value(sent as i64)))
    }

    /// Sends on a session though an address was given, which the kernel's TCP ignores and a pair
    /// does not. Where the pair is full it says so, also to who would wait.
    fn send_to_peer(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let descriptor = caller.int(0);
        let known = caller
            .inode(descriptor)
            .and_then(|inode| self.sockets.get(&inode));
        if !known.is_some_and(|it| matches!(it.state, State::Open(_) | State::Joined(_))) {
            return Ok(PROCEED);
        }
        let near = caller.fetch(descriptor)?;
        let [_, source, bytes, ..] = caller.call.arguments;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let payload = caller.read(source, bytes.min(DATAGRAM_BYTES_MAX))?;
        let sent = message::send(near.as_fd(), &[], &payload, &[], 0)?;
        Ok(Reply::Now(Answer::Value(sent as i64)))
    }

    pub(super) fn send_message(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let (at, flags) = (caller.call.arguments[1], caller.int(2));
        match self.send_one(caller, at, flags)? {
            Some(bytes) => Ok(Reply::Now(Answer::Value(bytes as i64))),
            None => Ok(PROCEED),
        }
    }

    pub(super) fn send_messages(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let (at, flags) = (caller.call.arguments[1], caller.int(3));
        let count = (caller.call.arguments[2] as u32).min(MESSAGES_MAX);
        for index in 0..count {
            let at = at + u64::from(index) * MESSAGE_BYTES;
            match self.send_one(caller, at, flags) {
                Ok(Some(bytes)) => {
                    caller.write(at + HEADER_BYTES, &(bytes as u32).to_ne_bytes())?
                }
                Ok(None) => return Ok(PROCEED),
                Err(error) if index == 0 => return Err(error),
                Err(_) => return Ok(Reply::Now(Answer::Value(index.into()))),
            }
        }
        Ok(Reply::Now(Answer::Value(count.into())))
    }

    /// Sends the message whose header is at `at`; none where the socket is not one of ours.
    fn send_one(
        &mut self,
        caller: &mut Caller<'_>,
        at: u64,
        flags: i32,
    ) -> Result<Option<usize>, Errno> {
        let Some(inode) = caller.inode(caller.int(0)) else {
            return Ok(None);
        };
        let known = self.sockets.get(&inode).map(|socket| &socket.state);
        if known.is_some_and(|state| !matches!(state, State::Datagram(_))) {
            return Ok(None);
        }
        let header = Header::read(caller, at)?;
        let given = if header.name == 0 || header.name_bytes == 0 {
            Given::Unspecified
        } else {
            let bytes = (header.name_bytes as usize).min(address::BYTES_MAX);
            address::read(&caller.read(header.name, bytes)?)
        };
        let Some(inode) = self.datagram_socket(caller, given)? else {
            return Ok(None);
        };
        if header.control_bytes > CONTROL_BYTES_MAX {
            return Err(Errno::NOBUFS);
        }
        let control = caller.read(header.control, header.control_bytes as usize)?;
        let mut payload = Vec::new();
        for (piece, bytes) in header.pieces {
            if payload.len() + bytes > DATAGRAM_BYTES_MAX {
                return Err(Errno::MSGSIZE);
            }
            payload.extend(caller.read(piece, bytes)?);
        }
        self.send_datagram(caller, inode, given, &payload, &control, flags)
            .map(Some)
    }

    /// The caller's socket, where it is one of ours for datagrams, or becomes one because of whom
    /// it sends to.
    fn datagram_socket(
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

    /// Sends what a program gave an address for, or control messages; how many bytes.
    fn send_datagram(
        &mut self,
        caller: &Caller<'_>,
        inode: u64,
        to: Given,
        payload: &[u8],
        control: &[u8],
        flags: i32,
    ) -> Result<usize, Errno> {
        let addresses = &self.scope.addresses;
        let asked = Asked::read(control, |ip| addresses.contains(&ip));
        let socket = self.sockets.get(&inode).ok_or(Errno::BADF)?;
        let is_v6 = socket.is_v6;
        let peer = match to {
            Given::Inet(peer) => super::connect::plain_peer(peer, is_v6),
            // The kernel does it on the program's own socket, and refuses what it refuses.
            Given::Unspecified => {
                let near = caller.fetch(caller.int(0))?;
                let control = &asked.for_kernel;
                let sent = message::send(near.as_fd(), &[], payload, control, flags)?;
                // It is with the peer before the call returns, as it is with the kernel.
                self.take_datagrams(inode);
                return Ok(sent);
            }
            Given::Other => return Err(Errno::AFNOSUPPORT),
        };
        if peer.is_ipv6() && !is_v6 {
            return Err(Errno::AFNOSUPPORT);
        }
        if peer.ip() == IpAddr::from(Ipv4Addr::BROADCAST) {
            let near = caller.fetch(caller.int(0))?;
            let may = socket_option::get(near.as_fd(), libc::SOL_SOCKET, libc::SO_BROADCAST, 4)?;
            let may = may.iter().any(|byte| *byte != 0);
            return Err(if may {
                Errno::NETUNREACH
            } else {
                Errno::ACCESS
            });
        }
        if peer.port() == 0 {
            return Err(Errno::INVAL);
        }
        let headers = if peer.is_ipv6() { 8 } else { 28 };
        if payload.len() > DATAGRAM_BYTES_MAX - headers {
            return Err(Errno::MSGSIZE);
        }
        if self.scope.of_peer(peer.ip()).is_none() {
            return Err(Errno::NETUNREACH);
        }
        let is_plain = control.is_empty() && flags & !PLAIN_FLAGS == 0;
        let has_peer = socket.peer.is_some();
        let marks = socket.carrier.as_ref().and_then(|carrier| carrier.marks);
        let mut marks = match marks {
            Some(marks) if is_plain && !has_peer => marks,
            _ => {
                let near = caller.fetch(caller.int(0))?;
                if !is_plain || has_peer {
                    // Limits, refusals and what is still to be told are the kernel's.
                    let sink = address::write(self.senders.sink(is_v6)?, is_v6);
                    message::send(near.as_fd(), &sink, payload, &asked.for_kernel, flags)?;
                }
                let marks = carrier::marks_of(&near, is_v6);
                if let Some(carrier) = self.carrier(inode) {
                    carrier.marks = Some(marks);
                }
                marks
            }
        };
        marks.hops = asked.marks.hops.or(marks.hops);
        marks.class = asked.marks.class.or(marks.class);
        let segment_bytes = asked.segment_bytes.map_or(usize::MAX, usize::from);
        if payload.len() <= segment_bytes {
            self.route(inode, asked.source, peer, payload, marks)?;
        } else {
            for segment in payload.chunks(segment_bytes) {
                self.route(inode, asked.source, peer, segment, marks)?;
            }
        }
        Ok(payload.len())
    }

    /// Sends a datagram to whom it is for.
    fn route(
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
                // Without a buffer it is lost, as datagrams are.
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
        // Each turn but the last forgets one.
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
        // Who has no peer does not hear of it.
        if is_connected {
            self.refuse_datagrams(inode);
        }
        Ok(())
    }

    /// Has a socket hear that nobody is where its peer was.
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
        // What it sends from now on is refused by the kernel; so is this, for what it has sent.
        // Where that fails, it hears of it one datagram later.
        if crate::caller::socket_inode(thread, descriptor) == Some(inode)
            && let Ok(near) = crate::caller::fetch(thread, descriptor)
        {
            message::send(near.as_fd(), &[], &[], &[], 0).ok();
        }
    }

    /// Puts a datagram into a program's socket; lost where that is full. False where no program has
    /// it any more.
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

    /// Datagrams that came from the stack: of the sockets that share a port, to the one that is
    /// connected to who sent it, else to the last that is connected to nobody.
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

    /// Datagrams that a program wrote plainly: to its peer.
    pub(super) fn take_datagrams(&mut self, inode: u64) {
        let mut payload = std::mem::take(&mut self.scratch);
        payload.resize(DATAGRAM_BYTES_MAX, 0);
        let mut control = [0; MARKS_BYTES];
        let mut is_more = true;
        for _ in 0..DATAGRAMS_MAX {
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
                // Of what was sent to the program; it may have gone.
                Err(Errno::CONNREFUSED) => continue,
                Err(_) => {
                    is_more = false;
                    break;
                }
            };
            let is_programs = address::write(carrier.near, socket.is_v6) == received.name;
            if let Some(peer) = socket.peer.filter(|_| is_programs) {
                let marks = Marks::read(&control[..received.control_bytes]);
                // Lost where there is no way, as datagrams are.
                self.route(inode, None, peer, &payload[..received.bytes], marks)
                    .ok();
            }
        }
        self.scratch = payload;
        if is_more {
            self.starved.push_back(inode);
        }
    }

    pub(super) fn receive_from(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let [_, target, room, _, name, name_length] = caller.call.arguments;
        let flags = caller.int(3);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let taken = match self.take_one(caller, flags, room, 0)? {
            Taken::Reply(reply) => return Ok(reply),
            Taken::Datagram(taken) => taken,
        };
        caller.write(target, &taken.payload)?;
        caller.write_sized(name, name_length, &taken.name)?;
        Ok(Reply::Now(Answer::Value(taken.bytes as i64)))
    }

    pub(super) fn receive_message(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let (at, flags) = (caller.call.arguments[1], caller.int(2));
        // Who asks for bytes alone has no use for us.
        if self.is_datagrams(caller) && Header::read(caller, at)?.is_bare() {
            return Ok(PROCEED);
        }
        match self.receive_one(caller, at, flags)? {
            Ok(bytes) => Ok(Reply::Now(Answer::Value(bytes as i64))),
            Err(reply) => Ok(reply),
        }
    }

    pub(super) fn receive_messages(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let at = caller.call.arguments[1];
        let count = (caller.call.arguments[2] as u32).min(MESSAGES_MAX);
        let mut flags = caller.int(3);
        for index in 0..count {
            let at = at + u64::from(index) * MESSAGE_BYTES;
            match self.receive_one(caller, at, flags) {
                Ok(Ok(bytes)) => {
                    caller.write(at + HEADER_BYTES, &(bytes as u32).to_ne_bytes())?;
                }
                Ok(Err(reply)) if index == 0 => return Ok(reply),
                Err(error) if index == 0 => return Err(error),
                _ => return Ok(Reply::Now(Answer::Value(index.into()))),
            }
            // The first may wait; those behind it are taken if they are there.
            flags |= libc::MSG_DONTWAIT;
        }
        Ok(Reply::Now(Answer::Value(count.into())))
    }

    /// Receives into the message whose header is at `at`: how many bytes.
    fn receive_one(
        &mut self,
        caller: &mut Caller<'_>,
        at: u64,
        flags: i32,
    ) -> Result<Result<usize, Reply>, Errno> {
        if !self.is_datagrams(caller) {
            return Ok(Err(PROCEED));
        }
        let header = Header::read(caller, at)?;
        let room = header
            .pieces
            .iter()
            .fold(0usize, |room, it| room.saturating_add(it.1));
        let control_room = if header.control == 0 {
            0
        } else {
            header.control_bytes.min(CONTROL_BYTES_MAX) as usize
        };
        let taken = match self.take_one(caller, flags, room, control_room)? {
            Taken::Reply(reply) => return Ok(Err(reply)),
            Taken::Datagram(taken) => taken,
        };
        let mut rest = taken.payload.as_slice();
        for (piece, room) in header.pieces {
            let (now, later) = rest.split_at(room.min(rest.len()));
            caller.write(piece, now)?;
            rest = later;
        }
        if header.name != 0 {
            let room = (header.name_bytes as usize).min(taken.name.len());
            caller.write(header.name, &taken.name[..room])?;
            let bytes = taken.name.len() as u32;
            caller.write(at + NAME_BYTES_AT, &bytes.to_ne_bytes())?;
        }
        caller.write(header.control, &taken.control)?;
        let bytes = taken.control.len() as u64;
        caller.write(at + CONTROL_BYTES_AT, &bytes.to_ne_bytes())?;
        caller.write(at + FLAGS_AT, &taken.flags.to_ne_bytes())?;
        Ok(Ok(taken.bytes))
    }

    fn is_datagrams(&self, caller: &Caller<'_>) -> bool {
        let inode = caller.inode(caller.int(0));
        let socket = inode.and_then(|inode| self.sockets.get(&inode));
        socket.is_some_and(|it| matches!(it.state, State::Datagram(_)))
    }

    /// The next datagram of the caller's socket, as much as there is room for.
    fn take_one(
        &mut self,
        caller: &mut Caller<'_>,
        flags: i32,
        room: usize,
        control_room: usize,
    ) -> Result<Taken, Errno> {
        let descriptor = caller.int(0);
        let Some(inode) = caller.inode(descriptor) else {
            return Ok(Taken::Reply(PROCEED));
        };
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return Ok(Taken::Reply(PROCEED));
        };
        // What the kernel has to say of what was sent it says itself.
        if !matches!(socket.state, State::Datagram(_)) || flags & libc::MSG_ERRQUEUE != 0 {
            return Ok(Taken::Reply(PROCEED));
        }
        let is_v6 = socket.is_v6;
        socket.holder = (caller.call.thread, descriptor);
        let near = caller.fetch(descriptor)?;
        let how = flags & !libc::MSG_WAITFORONE;
        let mut payload = vec![0; room.min(DATAGRAM_BYTES_MAX)];
        let mut control = vec![0; control_room];
        for _ in 0..DATAGRAMS_MAX {
            let received = message::receive(near.as_fd(), &mut payload, &mut control, how);
            let received = match received {
                Ok(received) => received,
                Err(Errno::AGAIN) => {
                    let waits = flags & libc::MSG_DONTWAIT == 0;
                    if !waits || caller.flags(descriptor).is_nonblocking {
                        return Err(Errno::AGAIN);
                    }
                    let patience = patience_of(&near);
                    self.watch(inode, near)?;
                    return Ok(Taken::Reply(self.park(inode, caller, patience)));
                }
                Err(error) => return Err(error),
            };
            let by = address::read(&received.name);
            let way = match by {
                Given::Inet(by) => self.senders.way(is_v6, by),
                _ => None,
            };
            // Shut for reading: the end, from nobody.
            let is_end = received.name.is_empty();
            if way.is_none() && !is_end {
                // Another process has sent it to the kernel's address: it is for nobody.
                if flags & libc::MSG_PEEK != 0 {
                    message::receive(near.as_fd(), &mut [], &mut [], 0).ok();
                }
                continue;
            }
            payload.truncate(received.bytes);
            control.truncate(received.control_bytes);
            if let Some(way) = way {
                control::set_destination(&mut control, way.to);
            }
            return Ok(Taken::Datagram(Datagram {
                bytes: received.bytes,
                payload,
                control,
                name: way
                    .map(|way| address::write(way.from, is_v6))
                    .unwrap_or_default(),
                flags: received.flags,
            }));
        }
        Err(Errno::AGAIN)
    }

    /// Watches a program's socket while a call of its waits.
    fn watch(&mut self, inode: u64, near: OwnedFd) -> Result<(), Errno> {
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

    /// Lets go of a program's socket again, unless a call waits for it.
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
            // The program's own copy would keep it there.
            epoll::delete(&self.epoll, &watched).ok();
        }
    }

    /// Forgets the sockets for datagrams that no program has any more.
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

    /// Makes the calls again that wait for datagrams.
    pub(super) fn retry_watched(&mut self, inode: u64) {
        self.retry(inode);
        self.unwatch(inode);
    }
}

enum Taken {
    Datagram(Datagram),
    Reply(Reply),
}

struct Datagram {
    /// What the call returns.
    bytes: usize,
    payload: Vec<u8>,
    control: Vec<u8>,
    name: Vec<u8>,
    flags: i32,
}

impl Header {
    fn read(caller: &mut Caller<'_>, at: u64) -> Result<Self, Errno> {
        let bytes = caller.read(at, HEADER_BYTES as usize)?;
        let word = |at: usize| -> u64 {
            let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
        };
        let name_bytes = word(8) as u32;
        if name_bytes.cast_signed() < 0 {
            return Err(Errno::INVAL);
        }
        let count = word(24);
        if count > PIECES_MAX {
            return Err(Errno::MSGSIZE);
        }
        let list = caller.read(word(16), count as usize * 16)?;
        let (pairs, _) = list.as_chunks::<16>();
        let pieces = pairs.iter().map(|pair| {
            let half = |at: usize| {
                let bytes = pair[at..].first_chunk();
                bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
            };
            (half(0), usize::try_from(half(8)).unwrap_or(usize::MAX))
        });
        Ok(Self {
            name: word(0),
            name_bytes,
            pieces: pieces.collect(),
            control: word(32),
            control_bytes: word(40),
        })
    }

    /// True if it has room for neither a name nor control messages.
    fn is_bare(&self) -> bool {
        self.name == 0 && (self.control == 0 || self.control_bytes == 0)
    }
}

/// SO_RCVTIMEO; none without one.
fn patience_of(near: &OwnedFd) -> Option<Duration> {
    let value = socket_option::get(near.as_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, 16).ok()?;
    let seconds = u64::from_ne_bytes(*value.first_chunk()?);
    let micros = u64::from_ne_bytes(*value.get(8..)?.first_chunk()?);
    let patience = Duration::from_secs(seconds) + Duration::from_micros(micros);
    (!patience.is_zero()).then_some(patience)
}

/// Largest datagram.
const DATAGRAM_BYTES_MAX: usize = 65_535;
/// Flags of sendto(2) that say nothing about the datagram.
const PLAIN_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CONFIRM;
/// Control messages about one datagram; net.core.optmem_max is about as much.
const CONTROL_BYTES_MAX: u64 = 64 << 10;
/// Room for hops and class.
const MARKS_BYTES: usize = 128;
/// `struct msghdr`: its size, and where things lie in it.
const HEADER_BYTES: u64 = 56;
const NAME_BYTES_AT: u64 = 8;
const CONTROL_BYTES_AT: u64 = 40;
const FLAGS_AT: u64 = 48;
/// `struct mmsghdr`.
const MESSAGE_BYTES: u64 = 64;
/// UIO_MAXIOV.
const PIECES_MAX: u64 = 1024;
/// Messages of one call; a program makes it again for the rest.
const MESSAGES_MAX: u32 = 64;
/// Plainly written datagrams that one look takes in, and strangers' that are passed over.
const DATAGRAMS_MAX: usize = 64;
