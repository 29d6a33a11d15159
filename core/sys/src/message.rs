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

fn count(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| {
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
        Errno::from_raw_os_error(errno)
    })
}

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
}
