//! Messages of sockets, with names and control messages as bytes (sendmsg(2), recvmsg(2)).
//!
//! Why here: a process that makes another program's calls passes on its bytes, and returns the
//! kernel's answer byte by byte; typed interfaces know only some of it. Must stay true: nothing
//! here waits or raises a signal. Descriptors (SCM_RIGHTS) are not for these calls: sockets of the
//! Internet's families have none.
#![allow(unsafe_code)] // names and control messages as bytes

use rustix::io::Errno;
use sidecore_bare::width::ToUsize;
use std::io;
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
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
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
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
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
        control_bytes: (header.msg_controllen as usize).min(control.len()),
        flags: header.msg_flags,
    })
}

/// Sends messages to one name (none where that is empty), all with the same control messages, by
/// one call; never waits. Returns the number that the kernel took, at most [`BATCH_MAX`].
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
    let mut pieces: [libc::iovec; BATCH_MAX] = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut messages: [libc::mmsghdr; BATCH_MAX] = unsafe { std::mem::zeroed() };
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
    /// Memory for [`BATCH_MAX`] messages of at most these lengths, in bytes (each at least 1).
    #[must_use]
    pub fn new(payload_bytes: usize, control_bytes: usize) -> Self {
        let (payload_bytes, control_bytes) = (payload_bytes.max(1), control_bytes.max(1));
        Self {
            payload_bytes,
            control_bytes,
            names: vec![[0; NAME_BYTES_MAX]; BATCH_MAX],
            // Zeroed memory of the system: only what messages need becomes present.
            payloads: vec![0; BATCH_MAX * payload_bytes],
            controls: vec![0; BATCH_MAX * control_bytes],
            lengths: Vec::with_capacity(BATCH_MAX),
        }
    }

    /// Receives the messages that wait, in place of those before; never waits. Returns their
    /// number, at most [`BATCH_MAX`].
    ///
    /// # Errors
    /// The kernel's, `EAGAIN` where none is there.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> Result<usize, Errno> {
        self.lengths.clear();
        // SAFETY: plain numbers and pointers, for which zeros are values.
        let mut pieces: [libc::iovec; BATCH_MAX] = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; BATCH_MAX] = unsafe { std::mem::zeroed() };
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
                BATCH_MAX as _,
                libc::MSG_DONTWAIT as _,
                ptr::null_mut(),
            )
        };
        let received = count(received as isize)?.min(BATCH_MAX);
        let taken = messages[..received].iter().map(|message| {
            let header = &message.msg_hdr;
            [
                header.msg_namelen.to_usize().min(NAME_BYTES_MAX),
                message.msg_len.to_usize().min(self.payload_bytes),
                (header.msg_controllen as usize).min(self.control_bytes),
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

fn count(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Errno::from_raw_os_error(errno)
    })
}

/// Messages of one call at most.
pub const BATCH_MAX: usize = 32;
/// `struct sockaddr_storage`.
const NAME_BYTES_MAX: usize = 128;

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
        let texts: Vec<Vec<u8>> = (0..BATCH_MAX + 3).map(|it| vec![b'x'; it]).collect();
        let payloads: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
        let mut batch = Batch::new(20, 64);
        assert_eq!(batch.receive(other.as_fd()), Err(Errno::AGAIN));
        assert_eq!(batch.messages().count(), 0);
        assert_eq!(send_all(one.as_fd(), &[], &payloads, &[]), Ok(BATCH_MAX));
        let rest = &payloads[BATCH_MAX..];
        assert_eq!(send_all(one.as_fd(), &[], rest, &[]), Ok(3));
        let mut lengths = Vec::new();
        while batch.receive(other.as_fd()).is_ok() {
            for message in batch.messages() {
                assert_eq!((message.name.len(), message.control.len()), (16, 0));
                lengths.push(message.payload.len());
            }
        }
        // What there is no room for is cut off.
        let expected: Vec<usize> = (0..BATCH_MAX + 3).map(|it| it.min(20)).collect();
        assert_eq!(lengths, expected);
        let wrong = send_all(one.as_fd(), &[], &payloads, &[0; 16]);
        assert_eq!(wrong, Err(Errno::INVAL));
        assert_eq!(send_all(one.as_fd(), &[], &[], &[]), Ok(0));
    }
}
