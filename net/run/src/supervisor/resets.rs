//! A linger of nothing (SO_LINGER) between two programs: the peer of who closes reads a reset.
//!
//! A pair between programs ends with ECONNRESET where who closes has left something unread. So, as
//! long as a socket has a linger of nothing, a byte of urgent data lies in it: reading passes over
//! it, and closing leaves it behind. Must stay true: no byte is ever read that nobody sent.
//! The price: urgent data of the peer's own makes that byte one of the stream's.

use super::Supervisor;
use crate::caller::{self, Caller};
use crate::socket::{From, State, inode_of};
use rustix::net::{RecvFlags, SendFlags};
use sidecore_sys::message;
use std::os::fd::{AsFd, BorrowedFd};

impl Supervisor {
    /// Has the peer of a program's socket read a reset when that is closed.
    pub(super) fn arm_reset(&self, inode: u64) {
        let Some(mate) = self.mates.get(&inode) else {
            return;
        };
        if let Some(socket) = self.sockets.get(mate) {
            let (thread, descriptor) = socket.holder;
            if let Some(peer) = caller::fetch_socket(thread, descriptor, *mate) {
                put_urgent(peer.as_fd());
            }
            return;
        }
        // Not accepted yet.
        let pending = self.sockets.values().filter_map(|it| match &it.state {
            State::Listening(listening) => Some(&listening.pending),
            _ => None,
        });
        let peer = pending.flatten().find_map(|pending| match &pending.from {
            From::Program(peer) => (inode_of(peer).ok() == Some(*mate)).then_some(peer),
            From::Stack(_) | From::Session(..) => None,
        });
        if let Some(peer) = peer {
            put_urgent(peer.as_fd());
        }
    }

    /// It is to read an end after all.
    pub(super) fn disarm_reset(&self, caller: &Caller<'_>, inode: u64) {
        if self.mates.contains_key(&inode)
            && let Ok(near) = caller.fetch(caller.int(0))
        {
            let mut urgent = [0];
            let flags = RecvFlags::OOB | RecvFlags::DONTWAIT;
            // Reading has passed over it.
            rustix::net::recv(&near, &mut urgent, flags).ok();
        }
    }
}

pub(super) fn put_urgent(peer: BorrowedFd<'_>) {
    // Where the peer sends no more, or the kernel (before Linux 5.15) has none, an end it is.
    let flags = SendFlags::OOB.bits() as i32;
    message::send(peer, &[], &[0], &[], flags).ok();
}
