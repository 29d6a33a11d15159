//! Datagrams by rings: of a socket that one process uses, with the library.
//!
//! The memory, its waiters and its lock are those of a stream with large rings. Must stay true:
//! what the kernel's socket holds when rings begin comes first out of them, and what they hold when
//! they end goes to that socket, in order; the program's own socket has no error of which it would
//! not hear; a program that corrupts its memory loses its rings, and no more.

use super::super::rings::Rings;
use super::route::Incoming;
use super::*;
use crate::direct::Records;
use rustix::event::{PollFd, PollFlags};
use sidecore_net::sock::client::Client;
use sidecore_net_rings::datagram::{Frame, Head, PAYLOAD_BYTES_MAX, RINGS_OF_V6};
use sidecore_net_rings::{Broken, WORDS};
use sidecore_sync::Changed;
use std::os::fd::BorrowedFd;
use std::time::Instant;

impl Datagrams {
    /// Serves a library's request for rings.
    ///
    /// # Errors
    /// `EAGAIN`: not now. `EOPNOTSUPP`: not for this socket. `ESTALE`: not for this process.
    pub(in super::super) fn serve_ring_request(
        &mut self,
        table: &mut Table,
        rings: &mut Rings,
        caller: &mut Caller<'_>,
    ) -> Result<Reply, Errno> {
        let target = caller.call.arguments[3];
        let attachment = caller.read_int(target)?.cast_unsigned();
        let begun = Instant::now();
        let words = rings.admit(caller, attachment).and_then(|()| {
            let words = self.begin_rings(table, rings, caller, attachment);
            // A refused request has its price, too.
            rings.spend(begun);
            words
        });
        rings.count(&words);
        let bytes: Vec<u8> = words?.iter().flat_map(|word| word.to_ne_bytes()).collect();
        caller.write(target, &bytes)?;
        Ok(ZERO)
    }

    fn begin_rings(
        &mut self,
        table: &mut Table,
        rings: &mut Rings,
        caller: &Caller<'_>,
        attachment: u32,
    ) -> Result<[u32; WORDS], Errno> {
        let descriptor = caller.int(0);
        let inode = caller.inode(descriptor).ok_or(Errno::BADF)?;
        let near = caller.fetch(descriptor)?;
        let socket = table.sockets.get(&inode).ok_or(Errno::OPNOTSUPP)?;
        let (is_v6, place) = (socket.is_v6, &socket.ring_place);
        let carrier = socket.carrier().ok_or(Errno::OPNOTSUPP)?;
        if carrier.records.is_some() {
            // Another process has them: two use the socket, so neither may.
            self.end_rings_soon(table, inode);
            return Err(Errno::OPNOTSUPP);
        }
        if place.is_some() || carrier.direct.place.is_none() {
            return Err(Errno::OPNOTSUPP);
        }
        let has_state = carrier.faults.are_pending() || carrier.corked.is_some();
        if has_state || socket.asked.is_some() || socket.holder.is_elsewhere(caller, inode) {
            return Err(Errno::AGAIN);
        }
        let room = ring_room(&near).ok_or(Errno::OPNOTSUPP)?;
        if habits_of(&near, is_v6).is_odd() {
            return Err(Errno::OPNOTSUPP);
        }
        // What it sent before precedes what it will send by the rings.
        self.take(table, inode);
        if self.unfinished.contains(&inode) || has_error(&near) {
            return Err(Errno::AGAIN);
        }
        let carrier = table.sockets.get(&inode).and_then(Socket::carrier);
        let carrier = carrier.ok_or(Errno::OPNOTSUPP)?;
        let usual_hops = usual_hops(carrier.far.as_fd(), carrier.at.is_ipv6());
        let taken = rings.take_place(caller, attachment, inode, true)?;
        let told = told_of(&near);
        let mut records = Records::begin(taken.ring, room, usual_hops).ok_or(Errno::NOMEM)?;
        self.move_waiting(table, inode, &near, &mut records)
            .map_err(|Broken| Errno::OPNOTSUPP)?;
        let socket = table.sockets.get_mut(&inode).ok_or(Errno::OPNOTSUPP)?;
        socket.holder = Holder::lasting(caller, descriptor, socket.holder);
        socket.ring_place = Some(taken.lease);
        if let Some(carrier) = socket.carrier_mut() {
            carrier.records = Some(Box::new(records));
        }
        let [number, slab, large, _] = taken.words;
        let family = if is_v6 { RINGS_OF_V6 } else { 0 };
        Ok([number, slab, large, family | told])
    }

    /// Moves the datagrams that a program's socket holds to its rings.
    fn move_waiting(
        &mut self,
        table: &Table,
        inode: u64,
        near: &OwnedFd,
        records: &mut Records,
    ) -> Result<(), Broken> {
        let mut batch = self.batch.take().unwrap_or_else(route::new_batch);
        let mut moved = Ok(());
        // Bounded: other processes may send to the socket's port at any rate.
        for _ in 0..WAITING_MAX {
            if moved.is_err() || batch.receive(near.as_fd()).is_err() {
                break;
            }
            for message in batch.messages() {
                // Another process has sent the others to the kernel's loopback address.
                if let Some(way) = self.way(table, inode, address::read(message.name)) {
                    // Those that the program has asked for.
                    let marks = (Marks::read(message.control), records.usual_hops);
                    let head = head_of((way.from, way.to), message.payload.len(), marks);
                    moved = moved.and_then(|()| records.give(head, message.payload));
                }
            }
        }
        self.batch = Some(batch);
        moved
    }

    /// Gives a program a datagram by its rings; false if it has none. The caller has found that the
    /// socket takes it.
    pub(super) fn give_by_ring(
        &mut self,
        table: &mut Table,
        inode: u64,
        ends: (SocketAddr, IpAddr),
        (payload, marks): (&[u8], Marks),
    ) -> bool {
        let carrier = table.sockets.get_mut(&inode).and_then(Socket::carrier_mut);
        let Some(records) = carrier.and_then(|it| it.records.as_mut()) else {
            return false;
        };
        let marks = (marks, records.usual_hops);
        let given = records.give(head_of(ends, payload.len(), marks), payload);
        if !std::mem::replace(&mut records.is_noted, true) {
            self.noted.push(inode);
        }
        if given == Err(Broken) && !self.end_rings(table, inode, true) {
            self.end_later(inode);
        }
        true
    }

    /// Serves the rings of a socket with news: datagrams of the program, or room for some.
    pub(in super::super) fn look_at_rings(&mut self, table: &mut Table, inode: u64) {
        let carrier = table.sockets.get_mut(&inode).and_then(Socket::carrier_mut);
        let Some(records) = carrier.and_then(|it| it.records.as_mut()) else {
            return;
        };
        let flushed = records.flush();
        if flushed == Ok(true) && !std::mem::replace(&mut records.is_noted, true) {
            self.noted.push(inode);
        }
        if flushed == Err(Broken) {
            self.end_rings(table, inode, true);
            return;
        }
        match self.forward_records(table, inode, true) {
            Ok(true) => {}
            Ok(false) => self.keep_waiting(inode),
            Err(Broken) => {
                self.end_rings(table, inode, true);
            }
        }
    }

    /// Forwards what a program has sent by rings; false if the stack has no buffers for all of it.
    pub(super) fn take_records(&mut self, table: &mut Table, inode: u64) -> bool {
        // As of most sockets.
        if of_socket(table, inode).is_none() {
            return true;
        }
        for _ in 0..LAST_ROUNDS {
            match self.forward_records(table, inode, true) {
                Ok(true) => return true,
                Ok(false) if is_short(table) => break,
                Ok(false) => {}
                Err(Broken) => {
                    self.end_rings(table, inode, true);
                    return true;
                }
            }
        }
        self.keep_waiting(inode);
        false
    }

    /// Looks again at the rings of a socket in the next round.
    fn keep_waiting(&mut self, inode: u64) {
        if !self.waiting.contains(&inode) {
            self.waiting.push_back(inode);
        }
    }

    /// Continues with the rings of which one round did not take all.
    pub(in super::super) fn take_waiting(&mut self, table: &mut Table) {
        for _ in 0..self.waiting.len() {
            if let Some(inode) = self.waiting.pop_front() {
                self.look_at_rings(table, inode);
            }
        }
    }

    /// Forwards at most [`RECORDS_MAX`] datagrams; with `waits`, none for which the stack has no
    /// buffer now. True if none is left.
    fn forward_records(
        &mut self,
        table: &mut Table,
        inode: u64,
        waits: bool,
    ) -> Result<bool, Broken> {
        let mut payload = std::mem::take(&mut self.payload);
        payload.resize(PAYLOAD_BYTES_MAX, 0);
        let forwards = std::mem::replace(&mut self.forwards, true);
        let mut done = Ok(false);
        for _ in 0..RECORDS_MAX {
            if waits && is_short(table) {
                break;
            }
            let Some((records, target)) = of_socket(table, inode) else {
                done = Ok(true);
                break;
            };
            match records.take(&mut payload) {
                Ok(Some(head)) => {
                    self.forward(table, inode, (target, head), &payload[..head.bytes]);
                }
                Ok(None) => {
                    done = Ok(true);
                    break;
                }
                Err(Broken) => {
                    done = Err(Broken);
                    break;
                }
            }
        }
        self.payload = payload;
        self.forwards = forwards;
        let _ = Changed::publish();
        if let Some((records, _)) = of_socket(table, inode)
            && records.view().is_ok_and(|view| view.program_waits())
            && !std::mem::replace(&mut records.is_noted, true)
        {
            self.noted.push(inode);
        }
        done
    }

    /// Forwards one datagram of a program.
    fn forward(
        &mut self,
        table: &mut Table,
        inode: u64,
        (target, head): (Target, Head),
        payload: &[u8],
    ) {
        let peer = match head.peer.port() {
            0 => target.peer,
            _ => Some(address::plain_peer(head.peer, target.is_v6)),
        };
        // It was disconnected meanwhile; and calls refuse what an IPv4 socket cannot reach.
        let Some(peer) = peer.filter(|peer| peer.is_ipv4() || target.is_v6) else {
            return;
        };
        let frame = Frame {
            peer,
            segment_bytes: head.segment_bytes,
        };
        let class = head.class_to(peer.ip()).map(i32::from);
        let class = class.or(target.marks.class);
        let marks = Marks {
            class,
            ..target.marks
        };
        self.forward_frame(table, inode, frame, payload, marks);
    }

    /// Notifies the programs whose rings have changed in this round.
    pub(in super::super) fn notify(&mut self, table: &mut Table, rings: &mut Rings) {
        for inode in self.noted.drain(..) {
            let carrier = table.sockets.get_mut(&inode).and_then(Socket::carrier_mut);
            if let Some(records) = carrier.and_then(|it| it.records.as_mut()) {
                records.is_noted = false;
                rings.notify(&records.ring);
            }
        }
        for ring in self.ended.drain(..) {
            // They find that the socket is the kernel's again.
            rings.notify(&ring);
        }
    }

    /// Moves a socket from its rings back to the kernel; false while the program copies, unless
    /// `by_force`, and while datagrams of a ring are being forwarded.
    pub(in super::super) fn end_rings(
        &mut self,
        table: &mut Table,
        inode: u64,
        by_force: bool,
    ) -> bool {
        let Some((records, _)) = of_socket(table, inode) else {
            return true;
        };
        if self.forwards {
            return false;
        }
        // What finds no buffer would be lost: the library, or the loop, asks again; not for ever,
        // because the engine may be stopped.
        records.delays += 1;
        let may_wait = !by_force && records.delays <= DELAYS_MAX && records.has_more();
        if may_wait && !self.take_records(table, inode) {
            return false;
        }
        let Some((records, _)) = of_socket(table, inode) else {
            return true;
        };
        if records.view().is_ok_and(|view| !view.take_back(by_force)) {
            return false;
        }
        // No more come, unless the program writes without the lock: so the rounds are bounded.
        for _ in 0..LAST_ROUNDS {
            if self.forward_records(table, inode, false) != Ok(false) {
                break;
            }
        }
        let carrier = table.sockets.get_mut(&inode).and_then(Socket::carrier_mut);
        let Some(records) = carrier.and_then(|it| it.records.take()) else {
            return true;
        };
        self.ended.push(records.ring.clone());
        let unread = records.unread();
        let same = |one: &(Head, Vec<u8>), other: &(Head, Vec<u8>)| {
            (one.0.peer, one.0.to, one.0.marks()) == (other.0.peer, other.0.to, other.0.marks())
        };
        for alike in unread.chunk_by(same) {
            let Some((head, _)) = alike.first() else {
                continue;
            };
            let payloads: Vec<&[u8]> = alike.iter().map(|(_, it)| it.as_slice()).collect();
            let incoming = Incoming {
                from: head.peer,
                to: head.to,
                payloads: &payloads,
                marks: marks_of(*head),
            };
            if !self.deliver(table, inode, &incoming) {
                table.forget(inode);
                break;
            }
        }
        true
    }

    /// The same as soon as no copy is in progress: another process uses the socket, or it has an
    /// error.
    pub(in super::super) fn end_rings_soon(&mut self, table: &mut Table, inode: u64) {
        if !self.end_rings(table, inode, false) {
            self.end_later(inode);
        }
    }

    fn end_later(&mut self, inode: u64) {
        if !self.ending.contains(&inode) {
            self.ending.push(inode);
        }
    }

    /// Tries again to end rings.
    pub(in super::super) fn end_again(&mut self, table: &mut Table) {
        for inode in std::mem::take(&mut self.ending) {
            self.end_rings_soon(table, inode);
        }
    }
}

/// The settings on which the forwarding of a socket's datagrams depends.
#[derive(Debug, Clone, Copy)]
struct Target {
    is_v6: bool,
    peer: Option<SocketAddr>,
    marks: Marks,
}

/// The rings of a socket, if it has some.
fn of_socket(table: &mut Table, inode: u64) -> Option<(&mut Records, Target)> {
    let socket = table.sockets.get_mut(&inode)?;
    let (is_v6, peer) = (socket.is_v6, socket.peer);
    let carrier = socket.carrier_mut()?;
    let marks = carrier.habits.map(|habits| habits.marks);
    let marks = marks.unwrap_or_default();
    let target = Target { is_v6, peer, marks };
    Some((carrier.records.as_deref_mut()?, target))
}

/// True while the stack has no buffers for the longest datagram: what waits in a ring is not lost.
fn is_short(table: &mut Table) -> bool {
    let client = table.engine.client.as_mut();
    client.is_some_and(|client| {
        let needed = BUFFERS_MIN.min(Client::buffers_max(client));
        Client::buffers_free(client) < needed
    })
}

/// True if the kernel would add nothing to the datagrams of a program's socket that rings do not
/// carry, and SO_RCVBUF; none: it would, or the program allows less than rings hold.
pub(super) fn ring_room(near: &OwnedFd) -> Option<usize> {
    let number = |level, name| {
        let value = socket_option::get(near.as_fd(), level, name, 4).ok()?;
        value.first_chunk().map(|it| i32::from_ne_bytes(*it))
    };
    // An option that the family does not have is not set.
    let is_set = |(level, name): &(i32, i32)| number(*level, *name).is_some_and(|on| on != 0);
    if MARKING.iter().any(is_set) {
        return None;
    }
    // -1: it is off. A kernel without it has none to set.
    if number(libc::SOL_SOCKET, libc::SO_PEEK_OFF).is_some_and(|at| at >= 0) {
        return None;
    }
    let bytes = |name| usize::try_from(number(libc::SOL_SOCKET, name)?).ok();
    let (receive, send) = (bytes(libc::SO_RCVBUF)?, bytes(libc::SO_SNDBUF)?);
    (receive.min(send) >= RINGS_FROM).then_some(receive)
}

/// True if the next call on a socket of the kernel would report an error.
fn has_error(near: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(near, PollFlags::IN)];
    let none = rustix::time::Timespec::default();
    let found = rustix::event::poll(&mut polled, Some(&none));
    found.is_err()
        || polled[0]
            .revents()
            .intersects(PollFlags::ERR | PollFlags::HUP)
}

/// The marks of a datagram that a program has not read, for the kernel's sendmsg(2).
fn marks_of(head: Head) -> Marks {
    let (hops, class) = head.marks();
    Marks {
        // A program may have forged it, and the kernel refuses 0.
        hops: Some(hops.max(1).into()),
        class: Some(class.into()),
    }
}

/// The head of a datagram for a program.
fn head_of(
    (from, to): (SocketAddr, IpAddr),
    bytes: usize,
    (marks, usual_hops): (Marks, u8),
) -> Head {
    let byte = |value: Option<i32>| value.and_then(|it| u8::try_from(it).ok());
    let head = Head {
        bytes,
        peer: from,
        to,
        segment_bytes: 0,
    };
    let hops = byte(marks.hops).unwrap_or(usual_hops);
    head.with_marks(hops, byte(marks.class).unwrap_or(0))
}

/// The control messages by which the library describes datagrams to the program of this socket
/// ([`direct::TELLS`]).
fn told_of(near: &OwnedFd) -> u32 {
    let is_set = |(level, name, _): &&(i32, i32, u32)| {
        let value = socket_option::get(near.as_fd(), *level, *name, 4).ok();
        value.is_some_and(|value| value.iter().any(|byte| *byte != 0))
    };
    TOLD.iter().filter(is_set).map(|(_, _, bit)| bit).sum()
}

/// The hop limit that datagrams have from a socket without one of its own.
fn usual_hops(far: BorrowedFd<'_>, is_v6: bool) -> u8 {
    let (level, name) = match is_v6 {
        true => (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS),
        false => (libc::IPPROTO_IP, libc::IP_TTL),
    };
    let value = socket_option::get(far, level, name, 4).unwrap_or_default();
    // Little-endian: at most 255.
    value.first().copied().unwrap_or(USUAL_HOPS)
}

/// Options by which the kernel describes datagrams in control messages that rings do not carry.
const MARKING: [(i32, i32); 19] = [
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING),
    // With a time of 64 bits (`include/uapi/asm-generic/socket.h`).
    (libc::SOL_SOCKET, 63),
    (libc::SOL_SOCKET, 64),
    (libc::SOL_SOCKET, 65),
    (libc::SOL_SOCKET, libc::SO_RXQ_OVFL),
    // SO_RCVMARK, SO_RCVPRIORITY.
    (libc::SOL_SOCKET, 75),
    (libc::SOL_SOCKET, 82),
    // IP_CHECKSUM, IP_RECVFRAGSIZE (`include/uapi/linux/in.h`).
    (libc::IPPROTO_IP, 23),
    (libc::IPPROTO_IP, 25),
    (libc::IPPROTO_IP, libc::IP_RECVOPTS),
    (libc::IPPROTO_IP, libc::IP_RETOPTS),
    (libc::IPPROTO_IP, libc::IP_ORIGDSTADDR),
    (libc::IPPROTO_IPV6, libc::IPV6_FLOWINFO),
    (libc::IPPROTO_IPV6, libc::IPV6_ORIGDSTADDR),
    // IPV6_RECVFRAGSIZE, and those of RFC 2292 (`include/uapi/linux/in6.h`).
    (libc::IPPROTO_IPV6, 77),
    (libc::IPPROTO_IPV6, 2),
    (libc::IPPROTO_IPV6, 8),
];
/// SO_RCVBUF and SO_SNDBUF from which on a socket may have rings.
pub(super) const RINGS_FROM: usize = 128 << 10;
/// Options by which a datagram is described in control messages that the library makes, too.
const TOLD: [(i32, i32, u32); 6] = [
    (libc::IPPROTO_IP, libc::IP_PKTINFO, direct::TELLS_PLACE),
    (libc::IPPROTO_IP, libc::IP_RECVTTL, direct::TELLS_HOPS),
    (libc::IPPROTO_IP, libc::IP_RECVTOS, direct::TELLS_CLASS),
    (
        libc::IPPROTO_IPV6,
        libc::IPV6_RECVPKTINFO,
        direct::TELLS_PLACE_V6,
    ),
    (
        libc::IPPROTO_IPV6,
        libc::IPV6_RECVHOPLIMIT,
        direct::TELLS_HOPS_V6,
    ),
    (
        libc::IPPROTO_IPV6,
        libc::IPV6_RECVTCLASS,
        direct::TELLS_CLASS_V6,
    ),
];
/// The kernel's default hop limit (`net.ipv4.ip_default_ttl`), where it cannot be asked for.
const USUAL_HOPS: u8 = 64;
/// Datagrams that one look at a ring takes.
const RECORDS_MAX: usize = 512;
/// Looks that take all of a full ring of empty datagrams.
const LAST_ROUNDS: usize = 64;
/// Requests to end rings, 1 ms apart, that wait for buffers.
const DELAYS_MAX: u32 = 100;
/// Buffers of the longest datagram.
const BUFFERS_MIN: usize = 4;
/// Batches of the kernel's socket that are moved to rings.
const WAITING_MAX: usize = 512;
