//! Refused datagrams: the errors of their senders, and the error queue (ip(7), IP_RECVERR).
//!
//! The kernel makes errors and entries of the queue on the program's own socket: the datagram is
//! sent once more, from that socket to a port of the kernel's loopback that refuses it. A socket
//! with a peer sends it to its far end, one without to a *refuser*, a port in place of one
//! destination. Only the addresses in an entry are replaced, when it is read.
//!
//! Must stay true: a socket that has not asked for errors of unconnected sends gets none; the
//! number of refusers is bounded.

use super::receiving::{Arrived, Room, Taken};
use super::*;
use crate::control;
use std::os::fd::BorrowedFd;

/// Ports of the kernel's loopback that refuse datagrams, each in place of one destination.
#[derive(Debug, Default)]
pub(super) struct Refusers {
    files: HashMap<(SocketAddr, bool), (OwnedFd, SocketAddr)>,
    peers: HashMap<(bool, SocketAddr), SocketAddr>,
    order: VecDeque<(SocketAddr, bool)>,
}

impl Refusers {
    /// The address that refuses in place of `peer`, for sockets of a family.
    fn of(&mut self, peer: SocketAddr, is_v6: bool) -> Result<SocketAddr, Errno> {
        if let Some((_, at)) = self.files.get(&(peer, is_v6)) {
            return Ok(*at);
        }
        if self.order.len() >= REFUSERS_MAX
            && let Some(oldest) = self.order.pop_front()
            && let Some((_, at)) = self.files.remove(&oldest)
        {
            self.peers.remove(&(oldest.1, address::plain(at)));
        }
        let (file, at) = carrier::bound(is_v6)?;
        // Its own peer: the kernel refuses datagrams of all others.
        rustix::net::connect(&file, &at)?;
        self.files.insert((peer, is_v6), (file, at));
        self.peers.insert((is_v6, address::plain(at)), peer);
        self.order.push_back((peer, is_v6));
        Ok(at)
    }

    /// The destination in whose place an address, which is plain, refuses.
    fn peer(&self, is_v6: bool, at: SocketAddr) -> Option<SocketAddr> {
        self.peers.get(&(is_v6, at)).copied()
    }
}

impl Datagrams {
    /// Makes the kernel report that `peer` refused a datagram of a socket, as far as the socket
    /// hears of it: as the error of the next call where that is its peer, else by IP_RECVERR only.
    pub(super) fn refuse(
        &mut self,
        table: &Table,
        inode: u64,
        peer: SocketAddr,
        payload: &[u8],
    ) -> Option<()> {
        let socket = table.sockets.get(&inode)?;
        let carrier = socket.carrier()?;
        let has_peer = socket.peer == Some(peer);
        let hears = carrier.habits.is_some_and(|habits| habits.hears_errors);
        if !has_peer && (!hears || socket.peer.is_some()) {
            return None;
        }
        let to = if has_peer {
            carrier.park().ok()?;
            Vec::new()
        } else {
            let at = self.refusers.of(peer, socket.is_v6).ok()?;
            address::write(at, socket.is_v6)
        };
        // Without a descriptor the program hears of the next one.
        if let Some(near) = socket.holder.fetch(inode) {
            send_refused(near.as_fd(), &to, payload);
        }
        Some(())
    }

    /// The same for a datagram that the stack has sent: the peer may take the next one.
    pub(super) fn refuse_once(
        &mut self,
        table: &Table,
        inode: u64,
        peer: SocketAddr,
        payload: &[u8],
    ) {
        self.refuse(table, inode, peer, payload);
        if let Some(carrier) = table.sockets.get(&inode).and_then(Socket::carrier) {
            // If the kernel refuses, so does the far end, until the next connect.
            carrier.unpark().ok();
        }
    }

    /// The next entry of a socket's error queue.
    ///
    /// # Errors
    /// `EAGAIN` if it is empty, even if the call may block.
    pub(super) fn take_error(
        &self,
        table: &Table,
        inode: u64,
        near: &OwnedFd,
        flags: i32,
        room: Room,
    ) -> Result<Taken, Errno> {
        let is_v6 = table.sockets.get(&inode).ok_or(Errno::BADF)?.is_v6;
        let mut payload = vec![0; room.payload.min(DATAGRAM_BYTES_MAX)];
        let mut control = vec![0; room.control];
        for _ in 0..FOREIGN_MAX {
            let received = message::receive(near.as_fd(), &mut payload, &mut control, flags)?;
            let at = address::read(&received.name);
            let peer = match at {
                Given::Inet(at) => self.refusers.peer(is_v6, at),
                _ => None,
            };
            let peer = peer.or_else(|| Some(self.way(table, inode, at)?.from));
            // An error about no datagram of the program's.
            let Some(peer) = peer else {
                continue;
            };
            payload.truncate(received.bytes);
            control.truncate(received.control_bytes);
            control::set_offender(&mut control, peer.ip());
            return Ok(Taken::Datagram(Arrived {
                bytes: received.bytes,
                payload,
                control,
                name: address::write(peer, is_v6),
                flags: received.flags,
            }));
        }
        Err(Errno::AGAIN)
    }
}

/// Sends what will be refused. An error that is pending fails the first send and is used up by it:
/// the second one makes it anew, so that a program that waits for it does not wait for ever.
fn send_refused(near: BorrowedFd<'_>, to: &[u8], payload: &[u8]) {
    let send = || message::send(near, to, payload, &[], 0);
    send().or_else(|_| send()).ok();
}

/// Refusers that are kept; an entry of an evicted one that the program has not read is lost.
const REFUSERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_that_nothing_has_read_are_all_kept() {
        let mut refusers = Refusers::default();
        let near = carrier::datagram_socket(false).unwrap();
        let (level, name) = (libc::IPPROTO_IP, libc::IP_RECVERR);
        socket_option::set(near.as_fd(), level, name, &1_i32.to_ne_bytes()).unwrap();
        for (port, payload) in [(1, b"1"), (2, b"2"), (1, b"3")] {
            let at = refusers.of(SocketAddr::from(([10, 0, 0, 1], port)), false);
            send_refused(near.as_fd(), &address::write(at.unwrap(), false), payload);
        }
        let heard = rustix::net::sockopt::socket_error(&near).unwrap();
        assert_eq!(heard, Err(Errno::CONNREFUSED));
        let (mut payload, mut control) = ([0; 8], [0; 256]);
        for expected in [b"1", b"2", b"3"] {
            let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
            let read = message::receive(near.as_fd(), &mut payload, &mut control, flags).unwrap();
            assert_eq!(payload[..read.bytes], *expected);
        }
    }

    #[test]
    fn a_refuser_stands_for_a_destination_until_many_others_came() {
        let mut refusers = Refusers::default();
        let peer = |port| SocketAddr::from(([10, 0, 0, 1], port));
        let first = refusers.of(peer(1), false).unwrap();
        assert_eq!(refusers.of(peer(1), false), Ok(first));
        assert_eq!(refusers.peer(false, first), Some(peer(1)));
        assert_eq!(refusers.peer(true, first), None);
        for other in [[192, 0, 2, 1], [127, 0, 0, 2]] {
            let elsewhere = SocketAddr::from((other, first.port()));
            assert_eq!(refusers.peer(false, elsewhere), None);
        }
        // The kernel refuses what is sent there.
        let near = carrier::datagram_socket(false).unwrap();
        rustix::net::connect(&near, &first).unwrap();
        assert_eq!(message::send(near.as_fd(), &[], b"x", &[], 0), Ok(1));
        let heard = rustix::net::sockopt::socket_error(&near).unwrap();
        assert_eq!(heard, Err(Errno::CONNREFUSED));
        for port in 2..=REFUSERS_MAX as u16 + 1 {
            refusers.of(peer(port), false).unwrap();
        }
        assert_eq!(refusers.peer(false, first), None);
    }
}
