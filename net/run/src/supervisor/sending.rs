//! sendto(2), sendmsg(2) and sendmmsg(2).

use super::connect::given;
use super::datagrams::DATAGRAM_BYTES_MAX;
use super::header::{
    CONTROL_BYTES_MAX, HEADER_BYTES, Header, MESSAGE_BYTES, MESSAGES_MAX, clear_control,
    clear_controls,
};
use super::{PROCEED, Reply, Supervisor};
use crate::address::{self, Given};
use crate::caller::Caller;
use crate::carrier;
use crate::control::{Asked, Marks};
use crate::socket::State;
use rustix::io::Errno;
use sidecore_sys::seccomp::Answer;
use sidecore_sys::{message, socket_option};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;

impl Supervisor {
    pub(super) fn send_to(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let [_, source, bytes, ..] = caller.call.arguments;
        let given = given(caller, 4, 5)?;
        let Some(inode) = self.datagram_socket(caller, given)? else {
            return self.send_to_peer(caller);
        };
        if self.is_asking(inode) {
            return Ok(self.park_asking(inode, caller));
        }
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if bytes > DATAGRAM_BYTES_MAX {
            return Err(Errno::MSGSIZE);
        }
        let payload = caller.read(source, bytes)?;
        let flags = caller.int(3);
        let sent = self.send_datagram(caller, inode, given, &payload, &[], flags)?;
        Ok(Reply::Now(Answer::Value(sent as i64)))
    }

    /// Sends on a session although the call has an address, which the kernel's TCP ignores and a
    /// pair does not. If the pair is full, the call fails with EAGAIN even if it may block.
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
        // If a signal interrupts the call, its repetition must not send again.
        self.unheard.placed = caller.inode(descriptor);
        Ok(Reply::Now(Answer::Value(sent as i64)))
    }

    pub(super) fn send_message(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let (at, flags) = (caller.call.arguments[1], caller.int(2));
        if self.is_session(caller) {
            clear_control(caller, at, true)?;
            return Ok(PROCEED);
        }
        Ok(match self.send_one(caller, at, flags)? {
            Sent::Bytes(bytes) => Reply::Now(Answer::Value(bytes as i64)),
            Sent::Reply(reply) => reply,
        })
    }

    pub(super) fn send_messages(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let (at, flags) = (caller.call.arguments[1], caller.int(3));
        let count = caller.call.arguments[2] as u32;
        if self.is_session(caller) {
            clear_controls(caller, at, count.into(), true)?;
            return Ok(PROCEED);
        }
        let count = count.min(MESSAGES_MAX);
        for index in 0..count {
            let at = at + u64::from(index) * MESSAGE_BYTES;
            match self.send_one(caller, at, flags) {
                Ok(Sent::Bytes(bytes)) => {
                    caller.write(at + HEADER_BYTES, &(bytes as u32).to_ne_bytes())?
                }
                // Only the first message can get here: the socket is the same for all.
                Ok(Sent::Reply(reply)) => return Ok(reply),
                Err(error) if index == 0 => return Err(error),
                Err(_) => return Ok(Reply::Now(Answer::Value(index.into()))),
            }
        }
        Ok(Reply::Now(Answer::Value(count.into())))
    }

    /// True if the caller's socket is one of ours, but not for datagrams.
    pub(super) fn is_session(&self, caller: &Caller<'_>) -> bool {
        let inode = caller.inode(caller.int(0));
        let socket = inode.and_then(|inode| self.sockets.get(&inode));
        socket.is_some_and(|it| !matches!(it.state, State::Datagram(_)))
    }

    /// Sends the message whose header is at `at`.
    fn send_one(&mut self, caller: &mut Caller<'_>, at: u64, flags: i32) -> Result<Sent, Errno> {
        // Not one of ours: the descriptor is not a socket.
        if caller.inode(caller.int(0)).is_none() {
            return Ok(Sent::Reply(PROCEED));
        }
        let header = Header::read(caller, at)?;
        let given = if header.name == 0 || header.name_bytes == 0 {
            Given::Unspecified
        } else {
            let bytes = (header.name_bytes as usize).min(address::BYTES_MAX);
            address::read(&caller.read(header.name, bytes)?)
        };
        let Some(inode) = self.datagram_socket(caller, given)? else {
            return Ok(Sent::Reply(PROCEED));
        };
        if self.is_asking(inode) {
            return Ok(Sent::Reply(self.park_asking(inode, caller)));
        }
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
            .map(Sent::Bytes)
    }

    /// Sends a datagram with an explicit address or control messages; the number of bytes.
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
            // The kernel sends it on the program's own socket, with its own checks.
            Given::Unspecified => {
                let near = caller.fetch(caller.int(0))?;
                let control = &asked.for_kernel;
                let sent = message::send(near.as_fd(), &[], payload, control, flags)?;
                // As in the kernel, the datagram is delivered before the call returns.
                self.take_datagrams(inode);
                return Ok(sent);
            }
            Given::Other => return Err(Errno::AFNOSUPPORT),
        };
        if peer.is_ipv6() && !is_v6 {
            return Err(Errno::AFNOSUPPORT);
        }
        // The stack sends no broadcast datagrams: the errors are those of a kernel without a route
        // for them.
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
        // The limit of 65,535 bytes includes the UDP header, and IPv4's own.
        let headers = if peer.is_ipv6() { 8 } else { 28 };
        if payload.len() > DATAGRAM_BYTES_MAX - headers {
            return Err(Errno::MSGSIZE);
        }
        if self.scope.of_peer(peer.ip()).is_none() {
            return Err(Errno::NETUNREACH);
        }
        let is_plain = control.is_empty() && flags & !PLAIN_FLAGS == 0;
        let has_peer = socket.peer.is_some();
        // The options of the program's socket are read once; later plain datagrams need no
        // descriptor of it.
        let known = socket.carrier.as_ref().and_then(|carrier| carrier.habits);
        let habits = match known {
            Some(habits) if is_plain && !has_peer && habits.segment_bytes.is_none() => habits,
            _ => {
                let near = caller.fetch(caller.int(0))?;
                let habits = known.unwrap_or_else(|| carrier::habits_of(&near, is_v6));
                if !is_plain || has_peer || habits.segment_bytes.is_some() {
                    // The kernel checks limits and options, and reports pending errors.
                    let sink = address::write(self.senders.sink(is_v6)?, is_v6);
                    message::send(near.as_fd(), &sink, payload, &asked.for_kernel, flags)?;
                }
                if let Some(carrier) = self.carrier(inode) {
                    carrier.habits = Some(habits);
                }
                habits
            }
        };
        let marks = Marks {
            hops: asked.marks.hops.or(habits.marks.hops),
            class: asked.marks.class.or(habits.marks.class),
        };
        let segment_bytes = asked.segment_bytes.or(habits.segment_bytes);
        let segment_bytes = segment_bytes.map_or(usize::MAX, usize::from);
        if payload.len() <= segment_bytes {
            self.route(inode, asked.source, peer, payload, marks)?;
        } else {
            for segment in payload.chunks(segment_bytes) {
                self.route(inode, asked.source, peer, segment, marks)?;
            }
        }
        Ok(payload.len())
    }
}

/// Result of an attempt to send one message.
enum Sent {
    Bytes(usize),
    Reply(Reply),
}

/// Flags of sendto(2) that do not concern the datagram.
const PLAIN_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CONFIRM;
