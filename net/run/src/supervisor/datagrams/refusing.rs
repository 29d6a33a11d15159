//! Refused datagrams: the errors of their senders, and the error queue (ip(7), IP_RECVERR).
//!
//! The kernel makes errors and entries of the queue on the program's own socket: the datagram is
//! sent once more, from that socket to a port of the kernel's loopback that refuses it. A socket
//! with a peer sends it to its far end, one without to a *refuser*, a port in place of one
//! destination and one ICMP error. To the kernel all are "port unreachable": the error itself
//! replaces that in an entry when it is read, and in calls that the supervisor sees.
//!
//! Must stay true: a socket that has not asked for errors gets only those that the kernel would
//! give it; the number of refusers is bounded.

use super::header::{Arrived, Room, Taken};
use super::*;
use crate::control::{self, refused_by};
use sidecore_net::IcmpError;
use std::os::fd::BorrowedFd;

/// Ports of the kernel's loopback that refuse datagrams, each in place of one destination.
#[derive(Debug, Default)]
pub(super) struct Refusers {
    files: HashMap<(Refused, bool), (OwnedFd, SocketAddr)>,
    refused: HashMap<(bool, SocketAddr), Refused>,
    order: VecDeque<(Refused, bool)>,
}

/// A destination, and the error about what is sent there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Refused {
    peer: SocketAddr,
    error: IcmpError,
}

impl Refusers {
    /// The address that refuses in place of a destination, for sockets of a family.
    fn of(&mut self, refused: Refused, is_v6: bool) -> Result<SocketAddr, Errno> {
        if let Some((_, at)) = self.files.get(&(refused, is_v6)) {
            return Ok(*at);
        }
        if self.order.len() >= REFUSERS_MAX
            && let Some(oldest) = self.order.pop_front()
            && let Some((_, at)) = self.files.remove(&oldest)
        {
            self.refused.remove(&(oldest.1, address::plain(at)));
        }
        let (file, at) = carrier::bound(is_v6)?;
        // Its own peer: the kernel refuses datagrams of all others.
        rustix::net::connect(&file, &at)?;
        self.files.insert((refused, is_v6), (file, at));
        self.refused.insert((is_v6, address::plain(at)), refused);
        self.order.push_back((refused, is_v6));
        Ok(at)
    }

    /// The destination in whose place an address, which is plain, refuses.
    fn refused(&self, is_v6: bool, at: SocketAddr) -> Option<Refused> {
        self.refused.get(&(is_v6, at)).copied()
    }
}

impl Datagrams {
    /// Makes the kernel report that `peer` refused a datagram of a socket, as far as the socket
    /// hears of it: as the error of the next call where that is its peer, else by IP_RECVERR only.
    pub(super) fn refuse(
        &mut self,
        table: &mut Table,
        inode: u64,
        peer: SocketAddr,
        payload: &[u8],
    ) -> Option<()> {
        self.report(table, inode, (peer, payload), refused_by(peer.ip()))
    }

    /// The same for any ICMP error. The far end of a socket with a peer stays parked.
    fn report(
        &mut self,
        table: &mut Table,
        inode: u64,
        (peer, payload): (SocketAddr, &[u8]),
        error: IcmpError,
    ) -> Option<()> {
        let (errno, is_hard) = control::errno_of(&error);
        let socket = table.sockets.get_mut(&inode)?;
        let (is_v6, its_peer, holder) = (socket.is_v6, socket.peer, socket.holder);
        let has_peer = its_peer == Some(peer);
        let carrier = socket.carrier_mut()?;
        let hears = |carrier: &Carrier| carrier.habits.is_some_and(|it| it.hears_errors);
        // A socket with another peer has not sent it. Without one, the options are known from
        // the send.
        if !has_peer && (!hears(carrier) || its_peer.is_some()) {
            return None;
        }
        // Without a descriptor the program hears of the next one.
        let near = holder.fetch(inode);
        // Writes without an address have not asked for the options.
        if has_peer
            && carrier.habits.is_none()
            && let Some(near) = &near
        {
            carrier.habits = Some(habits_of(near, is_v6));
        }
        // "Too big" without an entry of the queue would be ECONNREFUSED, at which programs give
        // up instead of sending less.
        let is_heard = has_peer && is_hard && errno != Errno::MSGSIZE;
        if !is_heard && !hears(carrier) {
            return None;
        }
        // The error is the kernel's socket's.
        self.end_rings_soon(table, inode);
        let carrier = table.sockets.get_mut(&inode)?.carrier_mut()?;
        let to = if has_peer {
            carrier.park().ok()?;
            Vec::new()
        } else {
            let at = self.refusers.of(Refused { peer, error }, is_v6).ok()?;
            address::write(at, is_v6)
        };
        if error != refused_by(peer.ip()) || carrier.faults.are_pending() {
            carrier.faults.note(payload, error);
            // The library would hear of another error.
            table.directory.withhold(&carrier.direct);
        }
        if let Some(near) = near {
            send_refused(near.as_fd(), &to, payload);
            // For the same reason only the queue keeps it, and calls that come here.
            if errno == Errno::MSGSIZE && rustix::net::sockopt::socket_error(&near).is_ok() {
                carrier.faults.hold();
            }
        }
        Some(())
    }

    /// The same for a datagram that the stack has sent: the peer may take the next one.
    pub(super) fn refuse_once(
        &mut self,
        table: &mut Table,
        inode: u64,
        datagram: (SocketAddr, &[u8]),
        error: IcmpError,
    ) {
        let reported = self.report(table, inode, datagram, error);
        let carrier = table.sockets.get(&inode).and_then(Socket::carrier);
        if let (Some(()), Some(carrier)) = (reported, carrier) {
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
        table: &mut Table,
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
            let refused = match at {
                Given::Inet(at) => self.refusers.refused(is_v6, at),
                _ => None,
            };
            let peer = self.way(table, inode, at).map(|way| way.from);
            let carrier = table.sockets.get_mut(&inode).and_then(Socket::carrier_mut);
            // With MSG_TRUNC the length is that of the whole payload.
            let shown = payload.get(..received.bytes).unwrap_or(&payload);
            let noted = carrier.and_then(|it| it.faults.take(shown));
            let refused = refused.or_else(|| {
                let peer = peer?;
                let error = noted.unwrap_or_else(|| refused_by(peer.ip()));
                Some(Refused { peer, error })
            });
            // An error about no datagram of the program's.
            let Some(Refused { peer, error }) = refused else {
                continue;
            };
            payload.truncate(received.bytes);
            control.truncate(received.control_bytes);
            control::set_error(&mut control, &error);
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

/// The error number of a call on a datagram socket in place of the kernel's.
pub(super) fn translated(table: &mut Table, inode: u64, error: Errno) -> Errno {
    let carrier = table.sockets.get_mut(&inode).and_then(Socket::carrier_mut);
    carrier.map_or(error, |carrier| carrier.faults.translate(error))
}

/// Fails a call on a datagram socket whose error the kernel does not have any more.
///
/// # Errors
/// That error.
pub(super) fn fail_by_held(table: &mut Table, inode: u64) -> Result<(), Errno> {
    let carrier = table.sockets.get_mut(&inode).and_then(Socket::carrier_mut);
    let held = carrier.and_then(|carrier| carrier.faults.take_held());
    held.map_or(Ok(()), Err)
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

    fn refused(port: u16) -> Refused {
        let peer = SocketAddr::from(([10, 0, 0, 1], port));
        Refused {
            peer,
            error: refused_by(peer.ip()),
        }
    }

    #[test]
    fn refusals_that_nothing_has_read_are_all_kept() {
        let mut refusers = Refusers::default();
        let near = carrier::datagram_socket(false).unwrap();
        let (level, name) = (libc::IPPROTO_IP, libc::IP_RECVERR);
        socket_option::set(near.as_fd(), level, name, &1_i32.to_ne_bytes()).unwrap();
        for (port, payload) in [(1, b"1"), (2, b"2"), (1, b"3")] {
            let at = refusers.of(refused(port), false);
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
        let first = refusers.of(refused(1), false).unwrap();
        assert_eq!(refusers.of(refused(1), false), Ok(first));
        assert_eq!(refusers.refused(false, first), Some(refused(1)));
        assert_eq!(refusers.refused(true, first), None);
        for other in [[192, 0, 2, 1], [127, 0, 0, 2]] {
            let elsewhere = SocketAddr::from((other, first.port()));
            assert_eq!(refusers.refused(false, elsewhere), None);
        }
        // Another error about the same destination.
        let mut too_big = refused(1);
        (too_big.error.code, too_big.error.info) = (4, 1400);
        let second = refusers.of(too_big, false).unwrap();
        assert_ne!(second, first);
        assert_eq!(refusers.refused(false, second), Some(too_big));
        // The kernel refuses what is sent there.
        let near = carrier::datagram_socket(false).unwrap();
        rustix::net::connect(&near, &first).unwrap();
        assert_eq!(message::send(near.as_fd(), &[], b"x", &[], 0), Ok(1));
        let heard = rustix::net::sockopt::socket_error(&near).unwrap();
        assert_eq!(heard, Err(Errno::CONNREFUSED));
        for port in 2..=REFUSERS_MAX as u16 + 1 {
            refusers.of(refused(port), false).unwrap();
        }
        assert_eq!(refusers.refused(false, first), None);
    }
}
