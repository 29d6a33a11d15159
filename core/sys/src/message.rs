//! Messages of sockets, with names and control messages as bytes (sendmsg(2), recvmsg(2)), and
//! datagrams of UDP, many a call (sendmmsg(2), recvmmsg(2)).
//!
//! Why here: a process that makes another program's calls passes on its bytes, and returns the
//! kernel's answer byte by byte; typed interfaces know only some of it. Many datagrams a call need
//! arrays of C structs. Must stay true: nothing here waits or raises a signal. Descriptors
//! (SCM_RIGHTS) are not for these calls: sockets of the Internet's families have none.
#![allow(unsafe_code)] // names and control messages as bytes

use rustix::io::Errno;
use sidecore_bare::width::ToUsize;
use std::io;
use std::mem::zeroed;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

/// A message that was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// Number of bytes; with `MSG_TRUNC` among the requested flags, of the whole message.
    pub bytes: usize,
    /// `struct sockaddr` of its sender.
    pub name: Vec<u8>,
    /// Bytes of control messages.
    pub control_bytes: usize,
    /// `MSG_TRUNC`, `MSG_CTRUNC` and their like.
    pub flags: i32,
}

/// Sends a message to `name` (none where that is empty); never waits.
///
/// # Errors
/// The kernel's.
pub fn send(
    socket: BorrowedFd<'_>,
    name: &[u8],
    payload: &[u8],
    control: &[u8],
    flags: i32,
) -> Result<usize, Errno> {
    let mut piece = libc::iovec {
        iov_base: payload.as_ptr().cast_mut().cast(),
        iov_len: payload.len(),
    };
    // SAFETY: plain numbers and pointers, for which zeros are values.
    let mut header: libc::msghdr = unsafe { zeroed() };
    if !name.is_empty() {
        header.msg_name = name.as_ptr().cast_mut().cast();
        header.msg_namelen = name.len() as libc::socklen_t;
    }
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    if !control.is_empty() {
        header.msg_control = control.as_ptr().cast_mut().cast();
        header.msg_controllen = control.len() as _;
    }
    let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the header points to slices that outlive the call, which only reads them.
    let result = unsafe { libc::sendmsg(socket.as_raw_fd(), ptr::from_ref(&header), flags) };
    count(result)
}

/// Receives a message; never waits.
///
/// # Errors
/// The kernel's, `EAGAIN` where none is there.
pub fn receive(
    socket: BorrowedFd<'_>,
    payload: &mut [u8],
    control: &mut [u8],
    flags: i32,
) -> Result<Received, Errno> {
    let mut name = [0u8; NAME_BYTES_MAX];
    let mut piece = libc::iovec {
        iov_base: payload.as_mut_ptr().cast(),
        iov_len: payload.len(),
    };
    // SAFETY: plain numbers and pointers, for which zeros are values.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_name = name.as_mut_ptr().cast();
    header.msg_namelen = name.len() as libc::socklen_t;
    header.msg_iov = &raw mut piece;
    header.msg_iovlen = 1;
    if !control.is_empty() {
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = control.len() as _;
    }
    let flags = flags | libc::MSG_DONTWAIT;
    // SAFETY: the header points to slices that outlive the call, with their lengths; the kernel
    // writes no more than those.
    let result = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    let bytes = count(result)?;
    let name_bytes = header.msg_namelen.to_usize().min(name.len());
    Ok(Received {
        bytes,
        name: name[..name_bytes].to_vec(),
        control_bytes: control_length(&header).min(control.len()),
        flags: header.msg_flags,
    })
}

/// Sends messages to one name (none where that is empty), all with the same control messages, by
/// one call; never waits. Returns the number that the kernel took, at most [`DATAGRAMS_MAX`].
///
/// # Errors
/// The kernel's, about the first message.
pub fn send_all(
    socket: BorrowedFd<'_>,
    name: &[u8],
    payloads: &[&[u8]],
    control: &[u8],
) -> Result<usize, Errno> {
    // SAFETY: plain numbers and pointers, for which zeros are values.
    let mut pieces: [libc::iovec; DATAGRAMS_MAX] = unsafe { zeroed() };
    // SAFETY: as above.
    let mut messages: [libc::mmsghdr; DATAGRAMS_MAX] = unsafe { zeroed() };
    let mut count = 0;
    for (payload, (piece, message)) in payloads.iter().zip(pieces.iter_mut().zip(&mut messages)) {
        piece.iov_base = payload.as_ptr().cast_mut().cast();
        piece.iov_len = payload.len();
        let header = &mut message.msg_hdr;
        if !name.is_empty() {
            header.msg_name = name.as_ptr().cast_mut().cast();
            header.msg_namelen = name.len() as libc::socklen_t;
        }
        header.msg_iov = piece;
        header.msg_iovlen = 1;
        if !control.is_empty() {
            header.msg_control = control.as_ptr().cast_mut().cast();
            header.msg_controllen = control.len() as _;
        }
        count += 1;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the first `count` messages point to pieces, and both to slices that outlive the call,
    // which only reads them.
    let sent =
        unsafe { libc::sendmmsg(socket.as_raw_fd(), messages.as_mut_ptr(), count, flags as _) };
    self::count(sent as isize)
}

/// Memory for messages that are received by one call.
#[derive(Debug)]
pub struct Batch {
    payload_bytes: usize,
    control_bytes: usize,
    names: Vec<[u8; NAME_BYTES_MAX]>,
    payloads: Vec<u8>,
    controls: Vec<u8>,
    /// Lengths of name, payload and control messages of those that were received last.
    lengths: Vec<[usize; 3]>,
}

/// A message of a [`Batch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'b> {
    /// `struct sockaddr` of its sender.
    pub name: &'b [u8],
    /// Its bytes; what there was no room for is cut off.
    pub payload: &'b [u8],
    /// Its control messages.
    pub control: &'b [u8],
}

impl Batch {
    /// Memory for [`DATAGRAMS_MAX`] messages of at most these lengths, in bytes (each at least 1).
    #[must_use]
    pub fn new(payload_bytes: usize, control_bytes: usize) -> Self {
        let (payload_bytes, control_bytes) = (payload_bytes.max(1), control_bytes.max(1));
        Self {
            payload_bytes,
            control_bytes,
            names: vec![[0; NAME_BYTES_MAX]; DATAGRAMS_MAX],
            // Zeroed memory of the system: only what messages need becomes present.
            payloads: vec![0; DATAGRAMS_MAX * payload_bytes],
            controls: vec![0; DATAGRAMS_MAX * control_bytes],
            lengths: Vec::with_capacity(DATAGRAMS_MAX),
        }
    }

    /// Receives the messages that wait, in place of those before; never waits. Returns their
    /// number, at most [`DATAGRAMS_MAX`].
    ///
    /// # Errors
    /// The kernel's, `EAGAIN` where none is there.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        self.lengths.clear();
        // SAFETY: plain numbers and pointers, for which zeros are values.
        let mut pieces: [libc::iovec; DATAGRAMS_MAX] = unsafe { zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; DATAGRAMS_MAX] = unsafe { zeroed() };
        let payloads = self.payloads.chunks_exact_mut(self.payload_bytes);
        let controls = self.controls.chunks_exact_mut(self.control_bytes);
        let rooms = self.names.iter_mut().zip(payloads.zip(controls));
        let slots = pieces.iter_mut().zip(&mut messages);
        for ((piece, message), (name, (payload, control))) in slots.zip(rooms) {
            piece.iov_base = payload.as_mut_ptr().cast();
            piece.iov_len = payload.len();
            let header = &mut message.msg_hdr;
            header.msg_name = name.as_mut_ptr().cast();
            header.msg_namelen = name.len() as libc::socklen_t;
            header.msg_iov = piece;
            header.msg_iovlen = 1;
            header.msg_control = control.as_mut_ptr().cast();
            header.msg_controllen = control.len() as _;
        }
        // SAFETY: each message points to memory of its own in this value, with its length; the
        // kernel writes no more than that.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                messages.as_mut_ptr(),
                DATAGRAMS_MAX as _,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        let received = count(received as isize)?.min(DATAGRAMS_MAX);
        let taken = messages[..received].iter().map(|message| {
            let header = message.msg_hdr;
            [
                header.msg_namelen.to_usize().min(NAME_BYTES_MAX),
                message.msg_len.to_usize().min(self.payload_bytes),
                control_length(&header).min(self.control_bytes),
            ]
        });
        self.lengths.extend(taken);
        Ok(received)
    }

    /// The messages that were received last, in their order.
    pub fn messages(&self) -> impl Iterator<Item = Message<'_>> {
        let payloads = self.payloads.chunks_exact(self.payload_bytes);
        let controls = self.controls.chunks_exact(self.control_bytes);
        let rooms = self.names.iter().zip(payloads.zip(controls));
        let lengths = self.lengths.iter();
        lengths.zip(rooms).map(|(lengths, (name, rooms))| Message {
            name: &name[..lengths[0]],
            payload: &rooms.0[..lengths[1]],
            control: &rooms.1[..lengths[2]],
        })
    }
}

/// The most datagrams of one call.
pub const DATAGRAMS_MAX: usize = 32;

/// Takes waiting datagrams of a UDP socket: one into each `slot_bytes` bytes of `slots`, its length
/// and its sender into `found`. Returns how many. A longer one is cut to its slot, and one whose
/// sender has no address of the Internet's families has the sender `0.0.0.0:0`.
///
/// # Errors
/// The kernel's; none waiting is none received.
pub fn receive_datagrams(
    socket: BorrowedFd<'_>,
    slots: &mut [u8],
    slot_bytes: usize,
    found: &mut [(usize, SocketAddr)],
) -> Result<usize, Errno> {
    let mut names = [[0u8; INTERNET_NAME_BYTES]; DATAGRAMS_MAX];
    // SAFETY: C structs of numbers and null pointers; only those that are filled in are used.
    let mut pieces: [libc::iovec; DATAGRAMS_MAX] = unsafe { zeroed() };
    // SAFETY: as above.
    let mut messages: [libc::mmsghdr; DATAGRAMS_MAX] = unsafe { zeroed() };
    let mut wanted = 0;
    let count_max = DATAGRAMS_MAX.min(found.len());
    for slot in slots.chunks_exact_mut(slot_bytes.max(1)).take(count_max) {
        pieces[wanted].iov_base = slot.as_mut_ptr().cast();
        pieces[wanted].iov_len = slot.len();
        let header = &mut messages[wanted].msg_hdr;
        header.msg_iov = &raw mut pieces[wanted];
        header.msg_iovlen = 1;
        header.msg_name = names[wanted].as_mut_ptr().cast();
        header.msg_namelen = INTERNET_NAME_BYTES as libc::socklen_t;
        wanted += 1;
    }
    // SAFETY: the first `wanted` messages point to names, and to pieces that point into `slots`:
    // disjoint, with their lengths, and borrowed for the call.
    let received = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            wanted as u32,
            libc::MSG_DONTWAIT as _,
            ptr::null_mut(),
        )
    };
    let received = match count(received as isize) {
        Err(Errno::AGAIN | Errno::INTR) => 0,
        received => received?,
    };
    let messages = messages.iter().zip(&names).take(received);
    for ((length, sender), (message, name)) in found.iter_mut().zip(messages) {
        *length = message.msg_len.to_usize().min(slot_bytes);
        *sender = internet_address(name).unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into());
    }
    Ok(received)
}

/// Sends datagrams by a UDP socket, each to its address. Returns how many the kernel took: it has
/// no room for the others now. One that cannot be sent (no route, too long) is lost.
///
/// # Errors
/// The kernel's: the descriptor is no socket.
pub fn send_datagrams(
    socket: BorrowedFd<'_>,
    datagrams: &[(SocketAddr, &[u8])],
) -> Result<usize, Errno> {
    let mut names = [[0u8; INTERNET_NAME_BYTES]; DATAGRAMS_MAX];
    // SAFETY: C structs of numbers and null pointers; only those that are filled in are used.
    let mut pieces: [libc::iovec; DATAGRAMS_MAX] = unsafe { zeroed() };
    // SAFETY: as above.
    let mut messages: [libc::mmsghdr; DATAGRAMS_MAX] = unsafe { zeroed() };
    let mut wanted = 0;
    for (to, payload) in datagrams.iter().take(DATAGRAMS_MAX) {
        let name_bytes = write_internet_address(to, &mut names[wanted]);
        pieces[wanted].iov_base = payload.as_ptr().cast_mut().cast();
        pieces[wanted].iov_len = payload.len();
        let header = &mut messages[wanted].msg_hdr;
        header.msg_iov = &raw mut pieces[wanted];
        header.msg_iovlen = 1;
        header.msg_name = names[wanted].as_mut_ptr().cast();
        header.msg_namelen = name_bytes as libc::socklen_t;
        wanted += 1;
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the first `wanted` messages point to names, and to pieces that point to payloads,
    // with their lengths; all of them are only read.
    let sent = unsafe {
        libc::sendmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            wanted as u32,
            flags as _,
        )
    };
    match count(sent as isize) {
        // A full queue is not a loss: the caller may try again.
        Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::INTR) => Ok(0),
        Err(error @ (Errno::BADF | Errno::NOTSOCK)) => Err(error),
        Err(_) => Ok(wanted.min(1)),
        sent => sent,
    }
}

/// The address in a `struct sockaddr_in` or `sockaddr_in6`.
fn internet_address(name: &[u8; INTERNET_NAME_BYTES]) -> Option<SocketAddr> {
    let (family, rest) = name.split_first_chunk::<2>()?;
    let (port, rest) = rest.split_first_chunk::<2>()?;
    let port = u16::from_be_bytes(*port);
    match i32::from(u16::from_ne_bytes(*family)) {
        libc::AF_INET => {
            let address: [u8; 4] = *rest.first_chunk()?;
            Some(SocketAddr::from((Ipv4Addr::from(address), port)))
        }
        libc::AF_INET6 => {
            let (flow, rest) = rest.split_first_chunk::<4>()?;
            let (address, scope) = rest.split_first_chunk::<16>()?;
            let address = Ipv6Addr::from(*address);
            let scope = u32::from_ne_bytes(*scope.first_chunk()?);
            let flow = u32::from_ne_bytes(*flow);
            Some(SocketAddrV6::new(address, port, flow, scope).into())
        }
        _ => None,
    }
}

/// Writes `struct sockaddr_in` or `sockaddr_in6`; returns its length.
fn write_internet_address(address: &SocketAddr, name: &mut [u8; INTERNET_NAME_BYTES]) -> usize {
    name[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(address) => {
            name[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            name[4..8].copy_from_slice(&address.ip().octets());
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(address) => {
            name[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            name[8..24].copy_from_slice(&address.ip().octets());
            name[24..].copy_from_slice(&address.scope_id().to_ne_bytes());
            INTERNET_NAME_BYTES
        }
    }
}

fn count(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Errno::from_raw_os_error(errno)
    })
}

/// `struct sockaddr_storage`.
const NAME_BYTES_MAX: usize = 128;
/// `struct sockaddr_in6`.
const INTERNET_NAME_BYTES: usize = size_of::<libc::sockaddr_in6>();
const _: () = assert!(INTERNET_NAME_BYTES == 28 && size_of::<libc::sockaddr_in>() == 16);

/// Bytes of control messages that a call has left.
// musl has an `u32` there.
#[allow(clippy::unnecessary_cast)]
fn control_length(header: &libc::msghdr) -> usize {
    header.msg_controllen as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn messages_come_with_their_names_and_control_messages() {
        let [one, other] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let on = 1i32.to_ne_bytes();
        let option = libc::IP_RECVTTL;
        crate::socket_option::set(other.as_fd(), libc::IPPROTO_IP, option, &on).unwrap();
        one.connect(other.local_addr().unwrap()).unwrap();
        assert_eq!(send(one.as_fd(), &[], b"hello", &[], 0), Ok(5));
        other.set_nonblocking(true).unwrap();
        let ready = &mut Vec::new();
        let patience = std::time::Duration::from_secs(60);
        crate::local_socket::poll(&[other.as_fd()], ready, patience).unwrap();
        let (mut payload, mut control) = ([0; 3], [0; 64]);
        let received = receive(other.as_fd(), &mut payload, &mut control, libc::MSG_TRUNC);
        let received = received.unwrap();
        assert_eq!((received.bytes, &payload), (5, b"hel"));
        assert_eq!(received.flags & libc::MSG_TRUNC, libc::MSG_TRUNC);
        assert_eq!(received.name.len(), 16);
        assert_eq!(
            received.name[2..4],
            one.local_addr().unwrap().port().to_be_bytes()
        );
        // A header of 16 bytes, a number of 4, and 4 bytes more.
        assert_eq!(received.control_bytes, 24);
        assert_eq!(control[16..20], 64i32.to_ne_bytes());
        let nothing = receive(other.as_fd(), &mut payload, &mut [], 0);
        assert_eq!(nothing, Err(Errno::AGAIN));
        let wrong = send(one.as_fd(), &[], b"x", &[0; 16], 0);
        assert_eq!(wrong, Err(Errno::INVAL));
    }

    #[test]
    fn many_messages_go_and_come_by_one_call_each() {
        let [one, other] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        other.connect(one.local_addr().unwrap()).unwrap();
        one.connect(other.local_addr().unwrap()).unwrap();
        let texts: Vec<Vec<u8>> = (0..DATAGRAMS_MAX + 3).map(|it| vec![b'x'; it]).collect();
        let payloads: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
        let mut batch = Batch::new(20, 64);
        assert_eq!(batch.receive(other.as_fd()), Err(Errno::AGAIN));
        assert_eq!(batch.messages().count(), 0);
        assert_eq!(
            send_all(one.as_fd(), &[], &payloads, &[]),
            Ok(DATAGRAMS_MAX)
        );
        let rest = &payloads[DATAGRAMS_MAX..];
        assert_eq!(send_all(one.as_fd(), &[], rest, &[]), Ok(3));
        let mut lengths = Vec::new();
        while batch.receive(other.as_fd()).is_ok() {
            for message in batch.messages() {
                assert_eq!((message.name.len(), message.control.len()), (16, 0));
                lengths.push(message.payload.len());
            }
        }
        // What there is no room for is cut off.
        let expected: Vec<usize> = (0..DATAGRAMS_MAX + 3).map(|it| it.min(20)).collect();
        assert_eq!(lengths, expected);
        let wrong = send_all(one.as_fd(), &[], &payloads, &[0; 16]);
        assert_eq!(wrong, Err(Errno::INVAL));
        assert_eq!(send_all(one.as_fd(), &[], &[], &[]), Ok(0));
    }

    #[test]
    fn datagrams_come_in_their_order_with_their_senders() {
        for (near, far) in [("127.0.0.1:0", "127.0.0.1:0"), ("[::1]:0", "[::]:0")] {
            let Ok(near) = UdpSocket::bind(near) else {
                continue; // A machine without IPv6.
            };
            let far = UdpSocket::bind(far).unwrap();
            let mut to = near.local_addr().unwrap();
            to.set_port(far.local_addr().unwrap().port());
            let payloads: Vec<Vec<u8>> = (0..40u8).map(|at| vec![at; usize::from(at)]).collect();
            let mut left: Vec<(SocketAddr, &[u8])> =
                payloads.iter().map(|payload| (to, &payload[..])).collect();
            assert_eq!(send_datagrams(near.as_fd(), &left), Ok(DATAGRAMS_MAX));
            left.drain(..DATAGRAMS_MAX);
            assert_eq!(send_datagrams(near.as_fd(), &left), Ok(8));
            // What is refused is lost, and the next goes.
            let nowhere = SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 0));
            assert_eq!(send_datagrams(near.as_fd(), &[(nowhere, b"x")]), Ok(1));
            let none = (0, SocketAddr::from(([0; 4], 0)));
            let (mut slots, mut found, mut came) = (vec![0; 20 * 64], [none; 64], 0);
            let patience = std::time::Duration::from_secs(60);
            while came < 40 {
                crate::local_socket::poll(&[far.as_fd()], &mut Vec::new(), patience).unwrap();
                let count = receive_datagrams(far.as_fd(), &mut slots, 20, &mut found).unwrap();
                for (slot, (length, sender)) in slots.chunks(20).zip(found).take(count) {
                    assert_eq!(slot[..length], payloads[came][..length]);
                    assert_eq!(length, came.min(20));
                    assert_eq!(sender, near.local_addr().unwrap());
                    came += 1;
                }
            }
            let more = receive_datagrams(far.as_fd(), &mut slots, 20, &mut found);
            assert_eq!(more, Ok(0));
        }
    }
}
