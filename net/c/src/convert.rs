//! The convention of the calls, and values as C has them.
//!
//! Must stay true: nothing unwinds into the program; each errno of the header comes from here.

use sidecore_net::sock::SocketError;
use sidecore_net::sock::client::{ClientError, Socket};
use sidecore_net::sock::control::SockError;
use sidecore_sys::SysError;
use std::ffi::{CStr, c_int, c_void};
use std::net::{Ipv6Addr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// `struct sidecore_net_address`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RawAddress {
    ip: [u8; 16],
    port: u16,
}

/// `struct sidecore_net_piece`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawPiece {
    pub(crate) data: *mut u8,
    pub(crate) bytes: usize,
    pub(crate) peer: RawAddress,
    pub(crate) lent: u32,
}

impl From<SocketAddr> for RawAddress {
    fn from(address: SocketAddr) -> Self {
        let ip = match address {
            // The header has one form: IPv4 is mapped (RFC 4291 section 2.5.5.2).
            SocketAddr::V4(v4) => v4.ip().to_ipv6_mapped(),
            SocketAddr::V6(v6) => *v6.ip(),
        };
        Self {
            ip: ip.octets(),
            port: address.port(),
        }
    }
}

impl From<RawAddress> for SocketAddr {
    fn from(raw: RawAddress) -> Self {
        Self::new(Ipv6Addr::from(raw.ip).to_canonical(), raw.port)
    }
}

/// An error's number, positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(c_int);

impl Errno {
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    pub(crate) const AGAIN: Self = Self(libc::EAGAIN);
    pub(crate) const BAD_SOCKET: Self = Self(libc::EBADF);
    pub(crate) const TOO_LONG: Self = Self(libc::EMSGSIZE);
}

impl From<ClientError> for Errno {
    fn from(error: ClientError) -> Self {
        Self(match error {
            ClientError::Socket(error) => match error {
                SocketError::Refused => libc::ECONNREFUSED,
                SocketError::Reset => libc::ECONNRESET,
                SocketError::Aborted => libc::ECONNABORTED,
                SocketError::TimedOut => libc::ETIMEDOUT,
                SocketError::Unreachable => libc::EHOSTUNREACH,
                SocketError::InUse => libc::EADDRINUSE,
                SocketError::NotOurs => libc::EADDRNOTAVAIL,
                SocketError::Full => libc::ENOBUFS,
                SocketError::NotOpen => libc::ENOTCONN,
                SocketError::TooLong => libc::EMSGSIZE,
                SocketError::Invalid => libc::EINVAL,
                SocketError::NetworkUnreachable => libc::ENETUNREACH,
                SocketError::Prohibited => libc::EACCES,
                SocketError::NoProtocol => libc::ENOPROTOOPT,
                _ => libc::EIO,
            },
            // Lost, and whatever else ends an attachment.
            _ => libc::ESHUTDOWN,
        })
    }
}

/// The error of attaching.
pub(crate) fn attach_errno(error: &SockError) -> Errno {
    Errno(match error {
        SockError::NoEngine { source, .. } => errno_of(source).unwrap_or(libc::ECONNREFUSED),
        SockError::Untrusted { .. } | SockError::Unmapped { .. } => libc::EKEYREJECTED,
        SockError::NotAllowed { .. } | SockError::Refused { .. } => libc::EACCES,
        SockError::Nonsense { .. } => libc::EPROTO,
        SockError::Silent { .. } => libc::ETIMEDOUT,
        SockError::Sys(source) => errno_of(source).unwrap_or(libc::EIO),
        _ => libc::EIO,
    })
}

/// The operating system's number.
fn errno_of(error: &SysError) -> Option<c_int> {
    match error {
        SysError::Call { source, .. } | SysError::Map { source, .. } => source.raw_os_error(),
        _ => None,
    }
}

/// The text of an error of attaching; of the C library's for others.
pub(crate) fn attach_text(error: c_int) -> &'static CStr {
    match error.saturating_abs() {
        0 => c"attached",
        libc::EKEYREJECTED => {
            c"another user, neither this one nor root, has the engine there; nothing was sent to it"
        }
        libc::ENOENT | libc::ECONNREFUSED => {
            c"no engine serves there; start one with `sidecore net up`"
        }
        libc::EACCES => c"the engine refuses this user; `sidecore net status` says why",
        libc::EPROTO => c"the engine is of another version; use the same release for both",
        libc::ETIMEDOUT => c"the engine does not answer; is it stopped?",
        libc::EINVAL => c"an argument is NULL or out of its range",
        _ => c"the operating system refuses; `sidecore net status` shows its reason",
    }
}

/// A socket by its number.
pub(crate) fn socket(number: i64) -> Result<Socket, Errno> {
    // A negative number is an error of an earlier call that the program passed on.
    let number = u32::try_from(number).map_err(|_| Errno::BAD_SOCKET)?;
    Ok(Socket::from_number(number))
}

/// Memory of the caller's that is read.
///
/// # Safety
/// `from` is NULL or that many bytes, which nothing changes meanwhile.
pub(crate) unsafe fn bytes<'a>(from: *const c_void, bytes: usize) -> Result<&'a [u8], Errno> {
    match (from.is_null(), bytes) {
        // Programs in C pass NULL for no bytes.
        (_, 0) => Ok(&[]),
        (false, _) if isize::try_from(bytes).is_ok() => {
            // SAFETY: the caller's promise, and no more than half of the address space.
            Ok(unsafe { std::slice::from_raw_parts(from.cast(), bytes) })
        }
        _ => Err(Errno::INVALID),
    }
}

/// Memory of the caller's that is written to.
///
/// # Safety
/// `target` is NULL or that many bytes, which nothing else uses meanwhile.
pub(crate) unsafe fn bytes_mut<'a>(
    target: *mut c_void,
    bytes: usize,
) -> Result<&'a mut [u8], Errno> {
    match (target.is_null(), bytes) {
        (_, 0) => Ok(&mut []),
        (false, _) if isize::try_from(bytes).is_ok() => {
            // SAFETY: the caller's promise, and no more than half of the address space.
            Ok(unsafe { std::slice::from_raw_parts_mut(target.cast(), bytes) })
        }
        _ => Err(Errno::INVALID),
    }
}

/// Runs a call: its result, or a negative errno.
pub(crate) fn guarded<A: From<i32> + TryFrom<i64>>(body: impl FnOnce() -> Result<i64, Errno>) -> A {
    // An attachment may be used after a panic: the engine keeps its own books of each chunk.
    let answer = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => A::try_from(value).map_err(|_| Errno::INVALID),
        Ok(Err(errno)) => Err(errno),
        // Its message was printed by the hook; a caller in C could not read it anyway.
        Err(_) => Err(Errno(libc::EIO)),
    };
    answer.unwrap_or_else(|errno| A::from(-errno.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn addresses_are_the_same_in_both_forms() {
        for text in ["10.77.0.2:7", "[2001:db8::1]:65535", "[::]:0"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(SocketAddr::from(RawAddress::from(address)), address);
        }
        let mapped: SocketAddr = "[::ffff:192.0.2.1]:80".parse().unwrap();
        let shown = SocketAddr::from(RawAddress::from(mapped)).to_string();
        assert_eq!(shown, "192.0.2.1:80");
    }

    #[test]
    fn refusals_of_attaching_have_numbers_and_texts() {
        let socket = PathBuf::from("/s");
        let foreign = SockError::Untrusted {
            socket: socket.clone(),
            uid: 65534,
            own_uid: 0,
        };
        let silent = SockError::Silent {
            socket,
            waited_ms: 5000,
        };
        assert_eq!(attach_errno(&foreign), Errno(libc::EKEYREJECTED));
        assert_eq!(attach_errno(&silent), Errno(libc::ETIMEDOUT));
        let text = attach_text(-libc::EKEYREJECTED).to_str().unwrap();
        assert!(text.contains("neither this one nor root"));
        assert_eq!(attach_text(c_int::MIN), attach_text(libc::EIO));
    }

    #[test]
    fn calls_end_in_numbers_whatever_happens() {
        assert_eq!(guarded::<c_int>(|| Ok(5)), 5);
        assert_eq!(
            guarded::<i64>(|| Err(Errno::AGAIN)),
            -i64::from(libc::EAGAIN)
        );
        assert_eq!(guarded::<c_int>(|| Ok(1 << 40)), -libc::EINVAL);
        assert_eq!(guarded::<c_int>(|| panic!("a bug")), -libc::EIO);
        // SAFETY: no bytes, and NULL.
        assert!(unsafe { bytes(std::ptr::null(), 0) }.is_ok());
        // SAFETY: NULL.
        assert!(unsafe { bytes(std::ptr::null(), 1) }.is_err());
    }
}
