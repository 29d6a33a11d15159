//! recvfrom(2), recvmsg(2) and recvmmsg(2).

use super::super::PROCEED;
use super::header::{
    Arrived, CONTROL_BYTES_AT, CONTROL_BYTES_MAX, FLAGS_AT, HEADER_BYTES, Header, MESSAGE_BYTES,
    MESSAGES_MAX, NAME_BYTES_AT, Room, Taken, clear_control, clear_controls,
};
use super::refusing::{fail_by_held, translated};
use super::*;
use crate::control;
use crate::socket::files::patience;
use sidecore_bare::width::{ToU64 as _, ToUsize as _};
use std::time::Duration;

impl Datagrams {
    pub(in super::super) fn receive_from(
        &mut self,
        table: &mut Table,
        caller: &mut Caller<'_>,
    ) -> Result<Reply, Errno> {
        let [_, target, room, _, name, name_length] = caller.call.arguments;
        let flags = caller.int(3);
        refuse_queue(table, caller, flags)?;
        if !self.interfaces.is_empty()
            && let Some(reply) = self.interfaces.receive_from(caller)?
        {
            return Ok(reply);
        }
        let room = Room {
            payload: usize::try_from(room).unwrap_or(usize::MAX),
            control: 0,
        };
        let taken = match self.take_one(table, caller, flags, room)? {
            Taken::Reply(reply) => return Ok(reply),
            Taken::Datagram(taken) => taken,
        };
        caller.write(target, &taken.payload)?;
        caller.write_sized(name, name_length, &taken.name)?;
        Ok(Reply::bytes(taken.bytes))
    }

    pub(in super::super) fn receive_message(
        &mut self,
        table: &mut Table,
        caller: &mut Caller<'_>,
    ) -> Result<Reply, Errno> {
        let (at, flags) = (caller.call.arguments[1], caller.int(2));
        refuse_queue(table, caller, flags)?;
        if !self.interfaces.is_empty()
            && let Some(reply) = self.interfaces.receive_message(caller)?
        {
            return Ok(reply);
        }
        if table.is_session(caller) {
            clear_control(caller, at, false)?;
            return Ok(PROCEED);
        }
        // Without address and control messages, the kernel's own answer is right.
        if is_datagram(table, caller) && Header::read(caller, at)?.is_bare() {
            return Ok(PROCEED);
        }
        Ok(match self.receive_one(table, caller, at, flags)? {
            Received::Bytes(bytes) => Reply::bytes(bytes),
            Received::Reply(reply) => reply,
        })
    }

    pub(in super::super) fn receive_messages(
        &mut self,
        table: &mut Table,
        caller: &mut Caller<'_>,
    ) -> Result<Reply, Errno> {
        let at = caller.call.arguments[1];
        let count = caller.int(2).cast_unsigned();
        refuse_queue(table, caller, caller.int(3))?;
        if table.is_session(caller) {
            clear_controls(caller, at, count.into(), false)?;
            return Ok(PROCEED);
        }
        let count = count.min(MESSAGES_MAX);
        let mut flags = caller.int(3);
        for index in 0..count {
            let at = at + u64::from(index) * MESSAGE_BYTES;
            match self.receive_one(table, caller, at, flags) {
                Ok(Received::Bytes(bytes)) => {
                    caller.write(at + HEADER_BYTES, &length(bytes).to_ne_bytes())?;
                }
                Ok(Received::Reply(reply)) if index == 0 => return Ok(reply),
                Err(error) if index == 0 => return Err(error),
                _ => return Ok(Reply::Now(Answer::Value(index.into()))),
            }
            // Only the first may block; later ones are received if they are there.
            flags |= libc::MSG_DONTWAIT;
        }
        Ok(Reply::Now(Answer::Value(count.into())))
    }

    /// Receives into the message whose header is at `at`.
    fn receive_one(
        &mut self,
        table: &mut Table,
        caller: &mut Caller<'_>,
        at: u64,
        flags: i32,
    ) -> Result<Received, Errno> {
        if !is_datagram(table, caller) {
            return Ok(Received::Reply(PROCEED));
        }
        // Read before the datagram is taken: a fault in the header must not lose it.
        let header = Header::read(caller, at)?;
        let pieces = header.pieces.iter();
        let room = Room {
            payload: pieces.fold(0, |room, it| it.1.saturating_add(room)),
            control: match header.control {
                0 => 0,
                _ => header.control_bytes.min(CONTROL_BYTES_MAX).to_usize(),
            },
        };
        let taken = match self.take_one(table, caller, flags, room)? {
            Taken::Reply(reply) => return Ok(Received::Reply(reply)),
            Taken::Datagram(taken) => taken,
        };
        let mut rest = taken.payload.as_slice();
        for (piece, room) in header.pieces {
            let (now, later) = rest.split_at(room.min(rest.len()));
            caller.write(piece, now)?;
            rest = later;
        }
        if header.name != 0 {
            // As in the kernel, the name is truncated, and the length reported is that of the whole
            // name.
            let room = header.name_bytes.to_usize().min(taken.name.len());
            caller.write(header.name, &taken.name[..room])?;
            let bytes = length(taken.name.len());
            caller.write(at + NAME_BYTES_AT, &bytes.to_ne_bytes())?;
        }
        caller.write(header.control, &taken.control)?;
        let bytes = taken.control.len().to_u64();
        caller.write(at + CONTROL_BYTES_AT, &bytes.to_ne_bytes())?;
        caller.write(at + FLAGS_AT, &taken.flags.to_ne_bytes())?;
        Ok(Received::Bytes(taken.bytes))
    }

    /// The next datagram of the caller's socket, truncated to `room`.
    fn take_one(
        &mut self,
        table: &mut Table,
        caller: &mut Caller<'_>,
        flags: i32,
        room: Room,
    ) -> Result<Taken, Errno> {
        let descriptor = caller.int(0);
        let Some(inode) = caller.inode(descriptor) else {
            return Ok(Taken::Reply(PROCEED));
        };
        let Some(socket) = table.sockets.get_mut(&inode) else {
            return Ok(Taken::Reply(PROCEED));
        };
        if !socket.is_datagram() {
            return Ok(Taken::Reply(PROCEED));
        }
        socket.holder = Holder::of(caller, descriptor);
        let is_v6 = socket.is_v6;
        let near = caller.fetch(descriptor)?;
        let how = flags & !libc::MSG_WAITFORONE;
        if flags & libc::MSG_ERRQUEUE != 0 {
            return self.take_error(table, inode, &near, how, room);
        }
        // Of a process that has no rings.
        self.end_rings_soon(table, inode);
        fail_by_held(table, inode)?;
        publish(table, inode, Some(&*near));
        let mut payload = vec![0; room.payload.min(DATAGRAM_BYTES_MAX)];
        let mut control = vec![0; room.control];
        for _ in 0..FOREIGN_MAX {
            let received = message::receive(near.as_fd(), &mut payload, &mut control, how);
            let received = match received {
                Ok(received) => received,
                Err(Errno::AGAIN) => {
                    let waits = flags & libc::MSG_DONTWAIT == 0;
                    if !waits || caller.flags(descriptor).is_nonblocking {
                        return Err(Errno::AGAIN);
                    }
                    let patience = patience_of(&near);
                    table.watch(inode, near)?;
                    return Ok(Taken::Reply(table.park(inode, caller, patience)));
                }
                Err(error) => return Err(translated(table, inode, error)),
            };
            // Shut down for reading: an end of file, without a source address.
            let is_end = received.name.is_empty();
            let way = self.way(table, inode, address::read(&received.name));
            if way.is_none() && !is_end {
                // Another process has sent it to the kernel's loopback address: it is dropped.
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
            let name = way.map(|way| address::write(way.from, is_v6));
            return Ok(Taken::Datagram(Arrived {
                bytes: received.bytes,
                payload,
                control,
                name: name.unwrap_or_default(),
                flags: received.flags,
            }));
        }
        Err(Errno::AGAIN)
    }

    /// The addresses for which the sender of a received datagram stands; none: another process.
    pub(super) fn way(&self, table: &Table, inode: u64, by: Given) -> Option<Way> {
        let socket = table.sockets.get(&inode)?;
        let Given::Inet(by) = by else {
            return None;
        };
        let of_far = |carrier: &Carrier| carrier.represents.filter(|_| carrier.is_far(by));
        // A socket with a peer gets datagrams from its own far end, others from senders.
        let sender = self.senders.way(socket.is_v6, by);
        sender.or_else(|| socket.carrier().and_then(of_far))
    }
}

/// The error queue of a session is empty; a pair, which has none, would give bytes of the stream.
///
/// # Errors
/// `EAGAIN`, as of an empty queue, even if the call may block.
fn refuse_queue(table: &Table, caller: &Caller<'_>, flags: i32) -> Result<(), Errno> {
    if flags & libc::MSG_ERRQUEUE != 0 && table.is_session(caller) {
        return Err(Errno::AGAIN);
    }
    Ok(())
}

/// True if the caller's socket is a datagram socket of ours.
fn is_datagram(table: &Table, caller: &Caller<'_>) -> bool {
    table.of_caller(caller).is_some_and(Socket::is_datagram)
}

/// SO_RCVTIMEO; none if it is not set.
fn patience_of(near: &OwnedFd) -> Option<Duration> {
    let value = socket_option::get(near.as_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, 16).ok()?;
    patience(&value)
}

/// Result of an attempt to receive into one message.
enum Received {
    Bytes(usize),
    Reply(Reply),
}
