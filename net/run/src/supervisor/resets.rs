//! SO_LINGER of zero between two programs: closing makes the peer read a reset.
//!
//! A pair between programs ends with ECONNRESET if an end is closed with unread bytes. While a
//! socket has a linger time of zero, a byte of urgent data is therefore kept in it: reads skip it,
//! and closing leaves it unread. Must stay true: no read ever returns a byte that no program sent.
//! The price: if the peer sends urgent data itself, that byte becomes part of the stream.

use super::Supervisor;
use crate::caller::{self, Caller};
use crate::socket::{From, State, inode_of};
use rustix::net::{RecvFlags, SendFlags};
use sidecore_sys::message;
use std::os::fd::{AsFd, BorrowedFd};

impl Supervisor {
    /// Makes the peer of a program's socket read a reset when that is closed.
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
        // The other end waits in an accept queue.
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

    /// Makes the peer read an end of file again.
    pub(super) fn disarm_reset(&self, caller: &Caller<'_>, inode: u64) {
        if self.mates.contains_key(&inode)
            && let Ok(near) = caller.fetch(caller.int(0))
        {
            let mut urgent = [0];
            let flags = RecvFlags::OOB | RecvFlags::DONTWAIT;
            // Fails if a read has already skipped it.
            rustix::net::recv(&near, &mut urgent, flags).ok();
        }
    }
}

pub(super) fn put_urgent(peer: BorrowedFd<'_>) {
    // If the peer sends no more, or the kernel (before Linux 5.15) lacks it, the peer reads an end.
    let flags = SendFlags::OOB.bits() as i32;
    message::send(peer, &[], &[0], &[], flags).ok();
}
