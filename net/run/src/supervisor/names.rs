//! getsockname(2), getpeername(2), and SIOCOUTQ.

use super::table::Table;
use super::{PROCEED, Reply, ZERO};
use crate::address;
use crate::caller::Caller;
use crate::socket::{Ends, Inbound, Socket, State};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use sidecore_bare::width::ToU64 as _;
use sidecore_net_rings::{BY_ITSELF, HELLO_BYTES};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// The end of a session whose address is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// The program's own.
    Local,
    /// Its peer's.
    Peer,
}

/// Answers getsockname(2) or getpeername(2).
pub(super) fn answer(
    table: &mut Table,
    caller: &mut Caller<'_>,
    side: Side,
) -> Result<Reply, Errno> {
    let descriptor = caller.int(0);
    let Some(inode) = caller.inode(descriptor) else {
        return Ok(PROCEED);
    };
    let Some(socket) = table.sockets.get_mut(&inode) else {
        return Ok(PROCEED);
    };
    socket.note_holder(caller, descriptor, inode);
    let address = match side {
        Side::Local => socket.local,
        // The library only checks which supervisor had a closed session (`closing.rs` there).
        Side::Peer => peer(socket, caller, caller.call.arguments[5] == BY_ITSELF)?,
    };
    let bytes = address::write(address, socket.is_v6);
    let [_, target, length, ..] = caller.call.arguments;
    caller.write_sized(target, length, &bytes)?;
    Ok(ZERO)
}

/// The peer of the caller's socket; also that of a session that is over, if `is_past_end`.
///
/// # Errors
/// `ENOTCONN`.
pub(super) fn peer(
    socket: &Socket,
    caller: &Caller<'_>,
    is_past_end: bool,
) -> Result<SocketAddr, Errno> {
    let is_connected = match socket.state {
        State::Open(_) | State::Joined(_) | State::Datagram(_) => true,
        // The library asks for a session that the peer has ended.
        State::Shut => !is_past_end,
        State::Over => is_past_end,
        _ => false,
    };
    // A failed connect(2) leaves the peer's address behind, but no peer.
    let peer = socket.peer.filter(|_| is_connected);
    let peer = peer.ok_or(Errno::NOTCONN)?;
    let over = Ends {
        own: true,
        peers: true,
    };
    if !is_past_end && ends(socket, caller) == over {
        return Err(Errno::NOTCONN);
    }
    Ok(peer)
}

/// The directions of the caller's session that have ended.
pub(super) fn ends(socket: &Socket, caller: &Caller<'_>) -> Ends {
    match &socket.state {
        State::Open(stream) => Ends {
            own: stream.outbound.has_ended(),
            peers: stream.inbound != Inbound::Open,
        },
        State::Joined(joined) => {
            let near = caller.fetch(caller.int(0));
            let now = near.map_or(PollFlags::empty(), |near| polled(&near));
            // A reset ends both.
            let is_reset = now.contains(PollFlags::ERR);
            Ends {
                own: is_reset || joined.is_shut,
                peers: is_reset || now.contains(PollFlags::RDHUP) && !joined.is_deaf,
            }
        }
        _ => Ends::default(),
    }
}

/// Answers SIOCOUTQ with the bytes that the supervisor has not read yet; for a pair, the kernel
/// counts memory, not bytes.
pub(super) fn unsent_bytes(table: &mut Table, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
    let Some(socket) = table.of_caller(caller) else {
        return Ok(PROCEED);
    };
    if socket.is_datagram() {
        return Ok(PROCEED);
    }
    // As of TCP (tcp_ioctl).
    if matches!(socket.state, State::Listening(_)) {
        return Err(Errno::INVAL);
    }
    let unread = match &socket.far {
        Some(far) => {
            let greeting = match &socket.state {
                State::Open(stream) if stream.head.is_greeting() => HELLO_BYTES.to_u64(),
                _ => 0,
            };
            // The greeting is the library's, not the program's.
            rustix::io::ioctl_fionread(far)?.saturating_sub(greeting)
        }
        None => 0,
    };
    let unread = i32::try_from(unread).unwrap_or(i32::MAX);
    let target = caller.call.arguments[2];
    caller.write(target, &unread.to_ne_bytes())?;
    Ok(ZERO)
}

/// End and error of a pair at its near end: the other end sends no more (RDHUP), or was closed with
/// unread bytes (ERR), which is a reset.
fn polled(near: &OwnedFd) -> PollFlags {
    // The pair alone knows: no byte of it passes the supervisor.
    let mut polled = [PollFd::new(near, PollFlags::RDHUP)];
    let none = rustix::time::Timespec::default();
    match rustix::event::poll(&mut polled, Some(&none)) {
        Ok(_) => polled[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}
