//! Options of sockets by number, as programs name them to the kernel (getsockopt(2)).
//!
//! Why here: code that answers for another program's sockets sees numbers and bytes, which the
//! standard library and rustix do not pass on.
#![allow(unsafe_code)] // numbers and bytes as the caller has them

use rustix::io::Errno;
use sidecore_bare::width::ToUsize;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The value of an option, of at most `bytes_max` bytes.
///
/// # Errors
/// The kernel's.
pub fn get(
    socket: BorrowedFd<'_>,
    level: i32,
    name: i32,
    bytes_max: usize,
) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; bytes_max];
    let mut bytes = libc::socklen_t::try_from(bytes_max).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: the kernel writes at most `bytes` bytes to the vector, which is that long.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    check(result)?;
    value.truncate(bytes.to_usize());
    Ok(value)
}

/// Sets an option.
///
/// # Errors
/// The kernel's.
pub fn set(socket: BorrowedFd<'_>, level: i32, name: i32, value: &[u8]) -> Result<(), Errno> {
    let bytes = libc::socklen_t::try_from(value.len()).map_err(|_| Errno::INVAL)?;
    // SAFETY: the kernel reads `bytes` bytes of the slice, which is that long. Options whose value
    // has pointers of its own (filters) are read from this process, which the kernel checks.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_ptr().cast(),
            bytes,
        )
    };
    check(result)
}

fn check(result: i32) -> Result<(), Errno> {
    if result == 0 {
        return Ok(());
    }
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    Err(Errno::from_raw_os_error(errno))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn options_come_back() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let one = 1i32.to_ne_bytes();
        set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_BROADCAST, &one).unwrap();
        let value = get(socket.as_fd(), libc::SOL_SOCKET, libc::SO_BROADCAST, 64);
        assert_eq!(value, Ok(one.to_vec()));
        let unknown = get(socket.as_fd(), libc::SOL_SOCKET, 9999, 4);
        assert_eq!(unknown, Err(Errno::NOPROTOOPT));
    }
}
