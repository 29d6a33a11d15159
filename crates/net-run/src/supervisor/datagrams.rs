//! UDP: sendto(2), recvfrom(2) and their like, and datagrams that are written and read plainly.

use super::connect::given;
use super::{PROCEED, Reply, Supervisor, errno_of};
use crate::address::{self, Given};
use crate::caller::Caller;
use crate::ports::Transport;
use crate::scope::Server;
use crate::socket::{Opened, State};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use sidecore_net::sock::client::Socket as Session;
use sidecore_sys::local_socket;
use sidecore_sys::seccomp::Answer;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

/// `struct msghdr` as a program has it, in 64-bit programs.
struct Header {
    name: u64,
    name_bytes: u32,
    pieces: Vec<(u64, usize)>,
}

impl Supervisor {
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
        self.send_datagram(inode, given, &payload)?;
        Ok(Reply::Now(Answer::Value(bytes as i64)))
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
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = rustix::net::send(&near, &payload, flags)?;
        Ok(Reply::Now(Answer::Value(sent as i64)))
    }

    pub(super) fn send_message(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let at = caller.call.arguments[1];
        match self.send_one(caller, at)? {
            Some(bytes) => Ok(Reply::Now(Answer::Value(bytes as i64))),
            None => Ok(PROCEED),
        }
    }

    pub(super) fn send_messages(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let at = caller.call.arguments[1];
        let count = (caller.call.arguments[2] as u32).min(MESSAGES_MAX);
        for index in 0..count {
            let at = at + u64::from(index) * MESSAGE_BYTES;
            match self.send_one(caller, at) {
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
    fn send_one(&mut self, caller: &mut Caller<'_>, at: u64) -> Result<Option<usize>, Errno> {
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
        let mut payload = Vec::new();
        for (piece, bytes) in header.pieces {
            if payload.len() + bytes > DATAGRAM_BYTES_MAX {
                return Err(Errno::MSGSIZE);
            }
            payload.extend(caller.read(piece, bytes)?);
        }
        self.send_datagram(inode, given, &payload)?;
        Ok(Some(payload.len()))
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
        self.adopt(caller, descriptor, opened, any).map(Some)
    }

    /// Sets or forgets the only peer of a socket.
    pub(super) fn connect_datagrams(&mut self, inode: u64, peer: Option<SocketAddr>) {
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return;
        };
        let peer = peer.map(|peer| super::connect::plain_peer(peer, socket.is_v6));
        socket.peer = peer;
        socket.local.set_ip(socket.bound);
        let Some(peer) = peer.filter(|_| socket.bound.is_unspecified()) else {
            return;
        };
        // As the kernel does, it has the address from which it would send from now on.
        let ip = self.source_for(peer.ip());
        if let (Some(socket), Some(ip)) = (self.sockets.get_mut(&inode), ip) {
            socket.local.set_ip(ip);
        }
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

    fn send_datagram(&mut self, inode: u64, to: Given, payload: &[u8]) -> Result<(), Errno> {
        let socket = self.sockets.get(&inode).ok_or(Errno::BADF)?;
        let peer = match to {
            Given::Inet(peer) => peer,
            Given::Unspecified => socket.peer.ok_or(Errno::DESTADDRREQ)?,
            Given::Other => return Err(Errno::AFNOSUPPORT),
        };
        if peer.is_ipv6() && !socket.is_v6 {
            return Err(Errno::AFNOSUPPORT);
        }
        if peer.port() == 0 {
            return Err(Errno::INVAL);
        }
        let headers = if socket.is_v6 { 8 } else { 28 };
        if payload.len() > DATAGRAM_BYTES_MAX - headers {
            return Err(Errno::MSGSIZE);
        }
        match self.scope.of_peer(peer.ip()) {
            Some(Server::Loopback) => self.send_to_program(inode, peer, payload),
            Some(Server::Stack) => {
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
        peer: SocketAddr,
        payload: &[u8],
    ) -> Result<(), Errno> {
        let socket = self.sockets.get(&inode).ok_or(Errno::BADF)?;
        let mut from = socket.local;
        if from.ip().is_unspecified() {
            from.set_ip(self.source_for(peer.ip()).unwrap_or(from.ip()));
        }
        let mut peer = peer;
        if peer.ip().is_unspecified() {
            peer.set_ip(
                self.source_for(Ipv4Addr::LOCALHOST.into())
                    .unwrap_or(peer.ip()),
            );
        }
        let takers = self.ports.at(Transport::Udp, peer);
        let Some(taker) = takers.first() else {
            // Who has no peer does not hear of it.
            return match socket.peer {
                Some(_) => Err(Errno::CONNREFUSED),
                None => Ok(()),
            };
        };
        self.deliver(*taker, from, payload);
        Ok(())
    }

    /// Puts a datagram into a socket's pair; lost where that is full.
    fn deliver(&mut self, inode: u64, from: SocketAddr, payload: &[u8]) {
        let Some(socket) = self.sockets.get(&inode) else {
            return;
        };
        let Some(far) = &socket.far else {
            return;
        };
        if socket.peer.is_some_and(|peer| peer != from) {
            return;
        }
        let Ok(tag) = self.tags.file(from) else {
            return;
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = [tag.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&files));
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = rustix::net::sendmsg(far, &[IoSlice::new(payload)], &mut control, flags);
        if sent.is_ok() {
            self.retry(inode);
        }
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
            if let Some(inode) = with_peer(Some(from)).or_else(|| with_peer(None)) {
                self.deliver(inode, from, &payload);
            }
        }
    }

    /// Datagrams that a program wrote plainly: to its peer.
    pub(super) fn take_datagrams(&mut self, inode: u64) {
        let mut buffer = vec![0; DATAGRAM_BYTES_MAX];
        for _ in 0..DATAGRAMS_MAX {
            let Some(far) = self.sockets.get(&inode).and_then(|it| it.far.as_ref()) else {
                return;
            };
            let received = rustix::net::recv(far, &mut buffer[..], RecvFlags::DONTWAIT);
            match received {
                Err(_) => return,
                // The end, unless it is a datagram of no bytes.
                Ok((_, 0)) if local_socket::is_hung_up(far.as_fd()) => return,
                Ok((_, count)) => {
                    // Lost where there is no way, as datagrams are.
                    self.send_datagram(inode, Given::Unspecified, &buffer[..count])
                        .ok();
                }
            }
        }
        self.starved.push_back(inode);
    }

    pub(super) fn receive_from(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let [_, target, room, _, name, name_length] = caller.call.arguments;
        let flags = caller.int(3);
        let taken = match self.take_one(caller, flags)? {
            Taken::Reply(reply) => return Ok(reply),
            Taken::Datagram(taken) => taken,
        };
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let count = taken.payload.len().min(room);
        caller.write(target, &taken.payload[..count])?;
        if let Some(from) = taken.from {
            caller.write_sized(name, name_length, &address::write(from, taken.is_v6))?;
        }
        let whole = if flags & libc::MSG_TRUNC == 0 {
            count
        } else {
            taken.payload.len()
        };
        Ok(Reply::Now(Answer::Value(whole as i64)))
    }

    pub(super) fn receive_message(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let (at, flags) = (caller.call.arguments[1], caller.int(2));
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
        let taken = match self.take_one(caller, flags)? {
            Taken::Reply(reply) => return Ok(Err(reply)),
            Taken::Datagram(taken) => taken,
        };
        let header = Header::read(caller, at)?;
        let mut rest = taken.payload.as_slice();
        for (piece, room) in header.pieces {
            let (now, later) = rest.split_at(room.min(rest.len()));
            caller.write(piece, now)?;
            rest = later;
        }
        let count = taken.payload.len() - rest.len();
        let mut bits = 0;
        if !rest.is_empty() {
            bits |= libc::MSG_TRUNC;
        }
        let name = taken.from.map(|from| address::write(from, taken.is_v6));
        let name = name.unwrap_or_default();
        if header.name != 0 {
            let room = (header.name_bytes as usize).min(name.len());
            caller.write(header.name, &name[..room])?;
        }
        caller.write(at + NAME_BYTES_AT, &(name.len() as u32).to_ne_bytes())?;
        caller.write(at + CONTROL_BYTES_AT, &0u64.to_ne_bytes())?;
        caller.write(at + FLAGS_AT, &bits.to_ne_bytes())?;
        let whole = flags & libc::MSG_TRUNC != 0;
        Ok(Ok(if whole { taken.payload.len() } else { count }))
    }

    /// The next datagram of the caller's socket.
    fn take_one(&mut self, caller: &mut Caller<'_>, flags: i32) -> Result<Taken, Errno> {
        let descriptor = caller.int(0);
        let Some(inode) = caller.inode(descriptor) else {
            return Ok(Taken::Reply(PROCEED));
        };
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return Ok(Taken::Reply(PROCEED));
        };
        if !matches!(socket.state, State::Datagram(_)) {
            return Ok(Taken::Reply(PROCEED));
        }
        let (is_v6, peer) = (socket.is_v6, socket.peer);
        socket.holder = (caller.call.thread, descriptor);
        let near = caller.fetch(descriptor)?;
        let mut how = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        how.set(RecvFlags::PEEK, flags & libc::MSG_PEEK != 0);
        let mut payload = vec![0; DATAGRAM_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = rustix::net::recvmsg(
            &near,
            &mut [IoSliceMut::new(&mut payload)],
            &mut control,
            how,
        );
        match received {
            Ok(message) => {
                payload.truncate(message.bytes);
                let files = control.drain().filter_map(|message| match message {
                    RecvAncillaryMessage::ScmRights(files) => Some(files),
                    _ => None,
                });
                let tag: Option<OwnedFd> = files.flatten().last();
                let from = tag.and_then(|tag| self.tags.address(&tag)).or(peer);
                Ok(Taken::Datagram(Datagram {
                    payload,
                    from,
                    is_v6,
                }))
            }
            Err(Errno::AGAIN) => {
                let waits = flags & libc::MSG_DONTWAIT == 0;
                if !waits || caller.flags(descriptor).is_nonblocking {
                    return Err(Errno::AGAIN);
                }
                let patience = self.patience(inode, libc::SO_RCVTIMEO);
                Ok(Taken::Reply(self.park(inode, caller, patience)))
            }
            Err(error) => Err(error),
        }
    }
}

enum Taken {
    Datagram(Datagram),
    Reply(Reply),
}

struct Datagram {
    payload: Vec<u8>,
    from: Option<SocketAddr>,
    is_v6: bool,
}

impl Header {
    fn read(caller: &mut Caller<'_>, at: u64) -> Result<Self, Errno> {
        let bytes = caller.read(at, HEADER_BYTES as usize)?;
        let word = |at: usize| -> u64 {
            let bytes = bytes.get(at..).and_then(|bytes| bytes.first_chunk());
            bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
        };
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
            name_bytes: word(8) as u32,
            pieces: pieces.collect(),
        })
    }
}

/// Largest datagram.
const DATAGRAM_BYTES_MAX: usize = 65_535;
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
/// Plainly written datagrams that one look takes in.
const DATAGRAMS_MAX: usize = 64;
