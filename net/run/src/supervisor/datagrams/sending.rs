//! sendto(2), sendmsg(2) and sendmmsg(2).

use super::super::PROCEED;
use super::header::{
    CONTROL_BYTES_MAX, HEADER_BYTES, Header, MESSAGE_BYTES, MESSAGES_MAX, NAME_BYTES_AT,
    clear_control, clear_controls,
};
use super::refusing::{fail_by_held, translated};
use super::route::{Outgoing, segments_of};
use super::*;
use crate::carrier::Corked;
use crate::control::Asked;
use crate::direct::Habits;
use sidecore_bare::width::ToUsize as _;
use std::net::Ipv4Addr;

/// A datagram that a program sends with an explicit address or control messages.
struct Sending<'d> {
    to: Given,
    payload: &'d [u8],
    control: &'d [u8],
    flags: i32,
}

/// A datagram, or a part of one.
struct Part<'d> {
    source: Option<IpAddr>,
    peer: SocketAddr,
    payload: &'d [u8],
    marks: Marks,
}

impl Datagrams {
    pub(in super::super) fn send_to(
        &mut self,
        table: &mut Table,
        caller: &mut Caller<'_>,
    ) -> Result<Reply, Errno> {
        let [_, source, bytes, ..] = caller.call.arguments;
        let (to, _) = caller.address(4, 5)?;
        if to == Given::Other {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            self.interfaces.ask(table, caller, source, bytes);
        }
        let Some(inode) = self.of_caller(table, caller, to)? else {
            return send_to_peer(table, caller);
        };
        if table.is_asking(inode) {
            return Ok(table.park_asking(inode, caller));
        }
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if bytes > DATAGRAM_BYTES_MAX {
            return Err(Errno::MSGSIZE);
        }
        let sending = Sending {
            to,
            payload: &caller.read(source, bytes)?,
            control: &[],
            flags: caller.int(3),
        };
        let sent = self.send(table, caller, inode, &sending)?;
        Ok(Reply::bytes(sent))
    }

    pub(in super::super) fn send_message(
        &mut self,
        table: &mut Table,
        caller: &mut Caller<'_>,
    ) -> Result<Reply, Errno> {
        let (at, flags) = (caller.call.arguments[1], caller.int(2));
        if table.is_session(caller) {
            clear_control(caller, at, true)?;
            return send_named(table, caller, at, flags);
        }
        Ok(match self.send_one(table, caller, at, flags)? {
            Sent::Bytes(bytes) => Reply::bytes(bytes),
            Sent::Reply(reply) => reply,
        })
    }

    pub(in super::super) fn send_messages(
        &mut self,
        table: &mut Table,
        caller: &mut Caller<'_>,
    ) -> Result<Reply, Errno> {
        let (at, flags) = (caller.call.arguments[1], caller.int(3));
        let count = caller.int(2).cast_unsigned();
        if table.is_session(caller) {
            clear_controls(caller, at, count.into(), true)?;
            for index in 0..u64::from(count.min(MESSAGES_MAX)) {
                // The kernel's TCP ignores a name, and a pair does not.
                clear_name(caller, at + index * MESSAGE_BYTES)?;
            }
            return Ok(PROCEED);
        }
        let count = count.min(MESSAGES_MAX);
        for index in 0..count {
            let at = at + u64::from(index) * MESSAGE_BYTES;
            match self.send_one(table, caller, at, flags) {
                Ok(Sent::Bytes(bytes)) => {
                    caller.write(at + HEADER_BYTES, &length(bytes).to_ne_bytes())?
                }
                // Only the first message can get here: the socket is the same for all.
                Ok(Sent::Reply(reply)) => return Ok(reply),
                Err(error) if index == 0 => return Err(error),
                // As in the kernel, the error is lost: the program sends the rest again.
                Err(_) => return Ok(Reply::Now(Answer::Value(index.into()))),
            }
        }
        Ok(Reply::Now(Answer::Value(count.into())))
    }

    /// Sends the message whose header is at `at`.
    fn send_one(
        &mut self,
        table: &mut Table,
        caller: &mut Caller<'_>,
        at: u64,
        flags: i32,
    ) -> Result<Sent, Errno> {
        // Not one of ours: the descriptor is not a socket.
        if caller.inode(caller.int(0)).is_none() {
            return Ok(Sent::Reply(PROCEED));
        }
        let header = Header::read(caller, at)?;
        let to = if header.name == 0 || header.name_bytes == 0 {
            Given::Unspecified
        } else {
            let bytes = header.name_bytes.to_usize().min(address::BYTES_MAX);
            address::read(&caller.read(header.name, bytes)?)
        };
        let Some(inode) = self.of_caller(table, caller, to)? else {
            // Of a netlink socket, whose messages need no name.
            if let [(piece, bytes), ..] = header.pieces.as_slice() {
                self.interfaces.ask(table, caller, *piece, *bytes);
            }
            return Ok(Sent::Reply(PROCEED));
        };
        if table.is_asking(inode) {
            return Ok(Sent::Reply(table.park_asking(inode, caller)));
        }
        if header.control_bytes > CONTROL_BYTES_MAX {
            return Err(Errno::NOBUFS);
        }
        let control = caller.read(header.control, header.control_bytes.to_usize())?;
        let mut payload = Vec::new();
        for (piece, bytes) in header.pieces {
            // Before the copy: a program may name more memory than there is.
            if bytes > DATAGRAM_BYTES_MAX - payload.len() {
                return Err(Errno::MSGSIZE);
            }
            payload.extend(caller.read(piece, bytes)?);
        }
        let sending = Sending {
            to,
            payload: &payload,
            control: &control,
            flags,
        };
        self.send(table, caller, inode, &sending).map(Sent::Bytes)
    }

    /// Sends a datagram; the number of bytes.
    fn send(
        &mut self,
        table: &mut Table,
        caller: &Caller<'_>,
        inode: u64,
        sending: &Sending<'_>,
    ) -> Result<usize, Errno> {
        self.take_frames(table, inode);
        let addresses = &table.scope.addresses;
        let asked = Asked::read(sending.control, |ip| addresses.contains(&ip));
        let is_v6 = table.sockets.get(&inode).ok_or(Errno::BADF)?.is_v6;
        let peer = match sending.to {
            Given::Inet(peer) => address::plain_peer(peer, is_v6),
            // The kernel sends it on the program's own socket, with its own checks.
            Given::Unspecified => {
                let near = caller.fetch(caller.int(0))?;
                let (payload, control) = (sending.payload, &asked.for_kernel);
                fail_by_held(table, inode)?;
                let sent = message::send(near.as_fd(), &[], payload, control, sending.flags);
                let sent = sent.map_err(|error| translated(table, inode, error))?;
                // As in the kernel, the datagram is delivered before the call returns.
                self.take(table, inode);
                publish(table, inode, Some(&*near));
                return Ok(sent);
            }
            Given::Other => return Err(Errno::AFNOSUPPORT),
        };
        check(table, caller, peer, is_v6, sending.payload.len())?;
        let habits = self.judge(table, caller, inode, (sending, peer), &asked)?;
        let wanted = asked.marks(peer.ip());
        let marks = Marks {
            hops: wanted.hops.or(habits.marks.hops),
            class: wanted.class.or(habits.marks.class),
        };
        // As in the kernel, an address of the other family is passed over.
        let is_alike = |ip: &IpAddr| ip.is_ipv4() == peer.is_ipv4();
        let source = asked.source.filter(is_alike);
        let is_corked = sending.flags & libc::MSG_MORE != 0 || habits.is_corked;
        let part = Part {
            source,
            peer,
            payload: sending.payload,
            marks,
        };
        if self.cork(table, inode, &part, is_corked)? {
            return Ok(sending.payload.len());
        }
        let segment_bytes = asked.segment_bytes.or(habits.segment_bytes);
        let segment_bytes = segment_bytes.map_or(usize::MAX, usize::from);
        let segments = segments_of(sending.payload, segment_bytes);
        let outgoing = Outgoing {
            source,
            peer,
            payloads: &segments,
            marks,
        };
        self.route(table, inode, outgoing)?;
        if table.scope.of_peer(peer.ip()) == Some(Server::Stack) {
            // The next ones need no call.
            table.directory.set_reaches(peer.ip(), true);
        }
        publish(table, inode, None);
        Ok(sending.payload.len())
    }

    /// Keeps a part of a datagram, of which more follows (MSG_MORE, UDP_CORK), or sends the whole
    /// one with its last part. False if the datagram has no other part.
    fn cork(
        &mut self,
        table: &mut Table,
        inode: u64,
        part: &Part<'_>,
        is_corked: bool,
    ) -> Result<bool, Errno> {
        let socket = table.sockets.get_mut(&inode).ok_or(Errno::BADF)?;
        let carrier = socket.carrier_mut().ok_or(Errno::NOTCONN)?;
        if !is_corked && carrier.corked.is_none() {
            return Ok(false);
        }
        // As in the kernel, the first part says where the datagram goes. The kernel has checked
        // the length of all parts on the program's socket.
        let corked = carrier.corked.get_or_insert_with(|| Corked {
            source: part.source,
            peer: part.peer,
            marks: part.marks,
            payload: Vec::new(),
        });
        if part.payload.len() > DATAGRAM_BYTES_MAX - corked.payload.len() {
            return Err(Errno::MSGSIZE);
        }
        corked.payload.extend_from_slice(part.payload);
        // What the library sends meanwhile would be a part, too.
        table.directory.withhold(&carrier.direct);
        if !is_corked {
            self.uncork(table, inode)?;
        }
        Ok(true)
    }

    /// Sends the parts of a datagram that were kept.
    ///
    /// # Errors
    /// As [`Self::route`].
    pub(in super::super) fn uncork(&mut self, table: &mut Table, inode: u64) -> Result<(), Errno> {
        let carrier = table.sockets.get_mut(&inode).and_then(Socket::carrier_mut);
        let Some(corked) = carrier.and_then(|carrier| carrier.corked.take()) else {
            return Ok(());
        };
        let whole = Outgoing {
            source: corked.source,
            peer: corked.peer,
            payloads: &[corked.payload.as_slice()],
            marks: corked.marks,
        };
        self.route(table, inode, whole)
    }

    /// Lets the kernel check a datagram on the program's socket, unless it is a plain one; the
    /// options with which that socket sends.
    fn judge(
        &mut self,
        table: &mut Table,
        caller: &Caller<'_>,
        inode: u64,
        (sending, peer): (&Sending<'_>, SocketAddr),
        asked: &Asked,
    ) -> Result<Habits, Errno> {
        let socket = table.sockets.get_mut(&inode).ok_or(Errno::BADF)?;
        let (is_v6, has_peer) = (socket.is_v6, socket.peer.is_some());
        let carrier = socket.carrier_mut().ok_or(Errno::NOTCONN)?;
        let is_plain = sending.control.is_empty() && sending.flags & !PLAIN_FLAGS == 0;
        let needs_kernel = |habits: &Habits| !is_plain || has_peer || habits.is_odd();
        // The options of the program's socket are read once; later plain datagrams need no
        // descriptor of it.
        if let Some(habits) = carrier.habits
            && !needs_kernel(&habits)
        {
            return Ok(habits);
        }
        let near = caller.fetch(caller.int(0))?;
        let habits = carrier.habits.unwrap_or_else(|| habits_of(&near, is_v6));
        if needs_kernel(&habits) {
            // The kernel checks limits and options, and reports pending errors.
            let sink = address::write(self.senders.sink(is_v6)?, is_v6);
            let (payload, mut control) = (sending.payload, asked.for_kernel.as_slice());
            if let Some(error) = carrier.faults.take_held() {
                return Err(error);
            }
            if is_v6 && peer.is_ipv4() && !control.is_empty() {
                self.senders.check_v4(payload, control)?;
                control = &[];
            }
            // A part that stayed in the program's socket (MSG_MORE) would be the beginning of what
            // the program writes there itself.
            let flags = sending.flags & !libc::MSG_MORE;
            message::send(near.as_fd(), &sink, payload, control, flags)
                .map_err(|error| carrier.faults.translate(error))?;
        }
        carrier.habits = Some(habits);
        Ok(habits)
    }
}

/// Sends on a session although the call has an address, which the kernel's TCP ignores and a pair
/// does not. If the pair is full, the call fails with EAGAIN even if it may block.
fn send_to_peer(table: &mut Table, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
    let state = table.of_caller(caller).map(|it| &it.state);
    if !matches!(state, Some(State::Open(_) | State::Joined(_))) {
        return Ok(PROCEED);
    }
    let descriptor = caller.int(0);
    let near = caller.fetch(descriptor)?;
    let [_, source, bytes, ..] = caller.call.arguments;
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    let payload = caller.read(source, bytes.min(DATAGRAM_BYTES_MAX))?;
    let sent = message::send(near.as_fd(), &[], &payload, &[], 0)?;
    // If a signal interrupts the call, its repetition must not send again.
    table.calls.kept.placed = caller.inode(descriptor);
    Ok(Reply::bytes(sent))
}

/// The same for sendmsg(2), whose control messages are cleared already.
fn send_named(
    table: &mut Table,
    caller: &mut Caller<'_>,
    at: u64,
    flags: i32,
) -> Result<Reply, Errno> {
    let state = table.of_caller(caller).map(|it| &it.state);
    let is_joined = matches!(state, Some(State::Open(_) | State::Joined(_)));
    let header = Header::read(caller, at)?;
    if !is_joined || header.name == 0 || header.name_bytes == 0 {
        return Ok(PROCEED);
    }
    let descriptor = caller.int(0);
    let near = caller.fetch(descriptor)?;
    let mut payload = Vec::new();
    for (piece, bytes) in header.pieces {
        let bytes = bytes.min(DATAGRAM_BYTES_MAX - payload.len());
        payload.extend(caller.read(piece, bytes)?);
    }
    let never_waits = flags | libc::MSG_DONTWAIT;
    match message::send(near.as_fd(), &[], &payload, &[], never_waits) {
        Ok(sent) => {
            // If a signal interrupts the call, its repetition must not send again.
            table.calls.kept.placed = caller.inode(descriptor);
            Ok(Reply::bytes(sent))
        }
        // The kernel waits for room; it gets the message without the name.
        Err(Errno::AGAIN) if flags & libc::MSG_DONTWAIT == 0 => {
            clear_name(caller, at)?;
            Ok(PROCEED)
        }
        // With its signal.
        Err(Errno::PIPE) => {
            clear_name(caller, at)?;
            Ok(PROCEED)
        }
        Err(error) => Err(error),
    }
}

/// Takes the name out of a message's header in the caller's memory.
fn clear_name(caller: &mut Caller<'_>, at: u64) -> Result<(), Errno> {
    let bytes = caller.read(at + NAME_BYTES_AT, 4)?;
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    caller.write(at + NAME_BYTES_AT, &0u32.to_ne_bytes())
}

/// Checks a destination as the kernel does.
fn check(
    table: &Table,
    caller: &Caller<'_>,
    peer: SocketAddr,
    is_v6: bool,
    bytes: usize,
) -> Result<(), Errno> {
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
    if bytes > DATAGRAM_BYTES_MAX - headers {
        return Err(Errno::MSGSIZE);
    }
    if table.scope.of_peer(peer.ip()).is_none() {
        return Err(Errno::NETUNREACH);
    }
    Ok(())
}

/// Result of an attempt to send one message.
enum Sent {
    Bytes(usize),
    Reply(Reply),
}

/// Flags of sendto(2) that do not concern the datagram.
const PLAIN_FLAGS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_CONFIRM;
