//! SO_LINGER of zero between two programs: closing makes the peer read a reset.
//!
//! A pair between programs ends with ECONNRESET if an end is closed with unread bytes. While a
//! socket has a linger time of zero, a byte of urgent data is therefore kept in it: reads skip it,
//! and closing leaves it unread. Must stay true: no read ever returns a byte that no program sent.
//! The price: a read of data behind the byte may take it away, and the close is an ordinary end
//! then; if the peer sends urgent data itself, the byte becomes part of the stream.

use super::table::Table;
use crate::caller::Caller;
use crate::socket::files::inode_of;
use crate::socket::{Origin, State};
use rustix::net::{RecvFlags, SendFlags};
use sidecore_sys::message;
use std::os::fd::{AsFd, BorrowedFd};

impl Table {
    /// Makes the peer of a program's socket read a reset when that is closed.
    pub(super) fn arm_reset(&self, inode: u64) {
        let Some(peer) = self.peer_of(inode) else {
            return;
        };
        if let Some(socket) = self.sockets.get(&peer) {
            if let Some(near) = socket.holder.fetch(peer) {
                put_urgent(near.as_fd());
            }
            return;
        }
        // The other end waits in an accept queue.
        let pending = self.sockets.values().filter_map(|it| match &it.state {
            State::Listening(listening) => Some(&listening.pending),
            _ => None,
        });
        let near = pending.flatten().find_map(|pending| match &pending.origin {
            Origin::Program(near) => (inode_of(near).ok() == Some(peer)).then_some(near),
            Origin::Stack(_) | Origin::Session(..) => None,
        });
        if let Some(near) = near {
            put_urgent(near.as_fd());
        }
    }

    /// Makes the peer read an end of file again.
    pub(super) fn disarm_reset(&self, caller: &Caller<'_>, inode: u64) {
        if self.peer_of(inode).is_some()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::Transport;
    use crate::socket::files::pair;
    use crate::socket::tests::socket;
    use crate::socket::{Holder, Joined, Listening, Pending, Report};
    use crate::supervisor::tests::fixtures::{callers, table};
    use rustix::io::Errno;
    use std::os::fd::{AsRawFd as _, OwnedFd};

    fn holder(file: &OwnedFd) -> Holder {
        Holder {
            thread: rustix::thread::gettid().as_raw_nonzero().get(),
            descriptor: file.as_raw_fd(),
            process: 0,
        }
    }

    fn read(file: &OwnedFd) -> Result<usize, Errno> {
        let received = rustix::net::recv(file, &mut [0; 4], RecvFlags::DONTWAIT);
        received.map(|(_, count)| count)
    }

    /// A table with the two ends of a pair of two programs.
    fn joined() -> (Table, [OwnedFd; 2], [u64; 2]) {
        let (listener, _callers) = callers(0);
        let mut table = table(listener);
        let (one, other) = pair(true).unwrap();
        let ends = [one, other];
        let inodes = ends.each_ref().map(|end| inode_of(end).unwrap());
        for (end, inode) in ends.iter().zip(inodes) {
            let mut of = socket(State::Joined(Joined::new(Report::Made)));
            of.holder = holder(end);
            table.insert(inode, of).unwrap();
        }
        table.join_peers(inodes[0], inodes[1]);
        (table, ends, inodes)
    }

    #[test]
    fn a_close_is_an_end_unless_a_reset_is_armed() {
        let (_table, [one, other], _) = joined();
        drop(one);
        assert_eq!(read(&other), Ok(0));
        let (table, [one, other], [inode, _]) = joined();
        table.arm_reset(inode);
        assert_eq!(read(&other), Err(Errno::AGAIN));
        drop(one);
        assert_eq!(read(&other), Err(Errno::CONNRESET));
    }

    #[test]
    fn no_read_returns_the_byte() {
        let (table, [one, other], [inode, _]) = joined();
        table.arm_reset(inode);
        rustix::net::send(&other, b"x", SendFlags::empty()).unwrap();
        // The program reads its data, never the byte.
        assert_eq!(read(&one), Ok(1));
        drop(one);
        // Recent kernels have dropped it with that; for others it is still unread.
        let end = read(&other);
        assert!(matches!(end, Ok(0) | Err(Errno::CONNRESET)), "{end:?}");
    }

    #[test]
    fn the_reset_of_a_session_in_an_accept_queue_is_armed_there() {
        let (mut table, [one, other], [inode, peer]) = joined();
        table.forget(peer);
        table.join_peers(inode, peer);
        let mut listening = Listening::default();
        let end = "127.0.0.1:1".parse().unwrap();
        listening.pending.push_back(Pending {
            local: end,
            peer: end,
            origin: Origin::Program(other.try_clone().unwrap()),
        });
        table
            .insert(1, socket(State::Listening(listening)))
            .unwrap();
        table.arm_reset(inode);
        let mut urgent = [7];
        let (_, count) = rustix::net::recv(&one, &mut urgent, RecvFlags::OOB).unwrap();
        assert_eq!((count, urgent), (1, [0]));
    }

    #[test]
    fn without_a_known_peer_nothing_is_armed() {
        let (mut table, [one, _other], [inode, peer]) = joined();
        table.forget(peer);
        table.arm_reset(inode);
        table.arm_reset(u64::MAX);
        let urgent = rustix::net::recv(&one, &mut [0], RecvFlags::OOB);
        assert!(urgent.is_err());
        assert_eq!(table.sockets[&inode].transport, Transport::Tcp);
    }
}
