//! recvfrom(2), recvmsg(2) and recvmmsg(2).

use super::datagrams::{DATAGRAM_BYTES_MAX, STRANGERS_MAX};
use super::header::{
    CONTROL_BYTES_AT, CONTROL_BYTES_MAX, FLAGS_AT, HEADER_BYTES, Header, MESSAGE_BYTES,
    MESSAGES_MAX, NAME_BYTES_AT, clear_control, clear_controls,
};
use super::{PROCEED, Reply, Supervisor};
use crate::address::{self, Given};
use crate::caller::Caller;
use crate::control;
use crate::socket::State;
use rustix::io::Errno;
use sidecore_sys::seccomp::Answer;
use sidecore_sys::{message, socket_option};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

impl Supervisor {
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
        if self.is_session(caller) {
            clear_control(caller, at, false)?;
            return Ok(PROCEED);
        }
        // Without address and control messages, the kernel's own answer is right.
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
        let count = caller.call.arguments[2] as u32;
        if self.is_session(caller) {
            clear_controls(caller, at, count.into(), false)?;
            return Ok(PROCEED);
        }
        let count = count.min(MESSAGES_MAX);
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
            // Only the first may block; later ones are received if they are there.
            flags |= libc::MSG_DONTWAIT;
        }
        Ok(Reply::Now(Answer::Value(count.into())))
    }

    /// Receives into the message whose header is at `at`; the number of bytes.
    fn receive_one(
        &mut self,
        caller: &mut Caller<'_>,
        at: u64,
        flags: i32,
    ) -> Result<Result<usize, Reply>, Errno> {
        if !self.is_datagrams(caller) {
            return Ok(Err(PROCEED));
        }
        // Read before the datagram is taken: a fault in the header must not lose it.
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
            // As in the kernel, the name is truncated, and the length reported is that of the whole
            // name.
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

    /// The next datagram of the caller's socket, truncated to `room`.
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
        // The kernel reports its error queue itself.
        if !matches!(socket.state, State::Datagram(_)) || flags & libc::MSG_ERRQUEUE != 0 {
            return Ok(Taken::Reply(PROCEED));
        }
        let is_v6 = socket.is_v6;
        socket.holder = (caller.call.thread, descriptor);
        let near = caller.fetch(descriptor)?;
        let how = flags & !libc::MSG_WAITFORONE;
        let mut payload = vec![0; room.min(DATAGRAM_BYTES_MAX)];
        let mut control = vec![0; control_room];
        for _ in 0..STRANGERS_MAX {
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
            // Shut down for reading: an end of file, without a source address.
            let is_end = received.name.is_empty();
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
}

enum Taken {
    Datagram(Datagram),
    Reply(Reply),
}

struct Datagram {
    /// The result of the call.
    bytes: usize,
    payload: Vec<u8>,
    control: Vec<u8>,
    name: Vec<u8>,
    flags: i32,
}

/// SO_RCVTIMEO; none if it is not set.
fn patience_of(near: &OwnedFd) -> Option<Duration> {
    let value = socket_option::get(near.as_fd(), libc::SOL_SOCKET, libc::SO_RCVTIMEO, 16).ok()?;
    let seconds = u64::from_ne_bytes(*value.first_chunk()?);
    let micros = u64::from_ne_bytes(*value.get(8..)?.first_chunk()?);
    let patience = Duration::from_secs(seconds) + Duration::from_micros(micros);
    (!patience.is_zero()).then_some(patience)
}
