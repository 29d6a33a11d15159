//! getsockname(2), getpeername(2), and SIOCOUTQ.

use super::{PROCEED, Reply, Supervisor, ZERO};
use crate::address;
use crate::caller::Caller;
use crate::socket::State;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use sidecore_net_rings::{BY_ITSELF, HELLO_BYTES};
use std::os::fd::OwnedFd;

impl Supervisor {
    pub(super) fn local_name(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        self.name(caller, false)
    }

    pub(super) fn peer_name(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        self.name(caller, true)
    }

    fn name(&mut self, caller: &mut Caller<'_>, is_peer: bool) -> Result<Reply, Errno> {
        let descriptor = caller.int(0);
        let Some(inode) = caller.inode(descriptor) else {
            return Ok(PROCEED);
        };
        // The library only checks which supervisor had a closed session (`closing.rs` there).
        let is_asked_by_library = caller.call.arguments[5] == BY_ITSELF;
        let is_over = is_peer && !is_asked_by_library && self.ends(caller, inode) == (true, true);
        let Some(socket) = self.sockets.get_mut(&inode) else {
            return Ok(PROCEED);
        };
        socket.holder = (caller.call.thread, descriptor);
        let address = if is_peer {
            let is_connected = matches!(
                socket.state,
                State::Open(_) | State::Joined(_) | State::Datagram(_)
            );
            let peer = socket.peer.filter(|_| is_connected);
            let peer = peer.ok_or(Errno::NOTCONN)?;
            if is_over {
                return Err(Errno::NOTCONN);
            }
            peer
        } else {
            socket.local
        };
        let bytes = address::write(address, socket.is_v6);
        let [_, target, length, ..] = caller.call.arguments;
        caller.write_sized(target, length, &bytes)?;
        Ok(ZERO)
    }

    /// True for each direction of the caller's session that has ended: its own, and the peer's.
    pub(super) fn ends(&self, caller: &Caller<'_>, inode: u64) -> (bool, bool) {
        match self.sockets.get(&inode).map(|socket| &socket.state) {
            Some(State::Open(stream)) => (stream.near_ended, stream.peer_ended),
            Some(State::Joined(_)) => match caller.fetch(caller.int(0)) {
                Ok(near) => {
                    let now = polled(&near);
                    let is_reset = now.contains(PollFlags::ERR);
                    let is_at_end = is_reset || now.contains(PollFlags::RDHUP);
                    (is_reset || self.ended.contains(&inode), is_at_end)
                }
                Err(_) => (self.ended.contains(&inode), false),
            },
            _ => (false, false),
        }
    }

    /// Answers SIOCOUTQ with the bytes that the supervisor has not read yet; for a pair, the kernel
    /// counts memory, not bytes.
    pub(super) fn unsent_bytes(&mut self, caller: &mut Caller<'_>) -> Result<Reply, Errno> {
        let Some(inode) = caller.inode(caller.int(0)) else {
            return Ok(PROCEED);
        };
        let Some(socket) = self.sockets.get(&inode) else {
            return Ok(PROCEED);
        };
        if socket.carrier.is_some() {
            return Ok(PROCEED);
        }
        let unread = match &socket.far {
            Some(far) => {
                let hello = match &socket.state {
                    State::Open(stream) if stream.hello.is_some() => HELLO_BYTES as u64,
                    _ => 0,
                };
                rustix::io::ioctl_fionread(far)?.saturating_sub(hello)
            }
            None => 0,
        };
        let unread = i32::try_from(unread).unwrap_or(i32::MAX);
        let target = caller.call.arguments[2];
        caller.write(target, &unread.to_ne_bytes())?;
        Ok(ZERO)
    }
}

/// End and error of a pair at its near end: the other end sends no more (RDHUP), or was closed with
/// unread bytes (ERR), which is a reset.
fn polled(near: &OwnedFd) -> PollFlags {
    let mut polled = [PollFd::new(near, PollFlags::RDHUP)];
    let none = rustix::time::Timespec::default();
    match rustix::event::poll(&mut polled, Some(&none)) {
        Ok(_) => polled[0].revents(),
        Err(_) => PollFlags::empty(),
    }
}
