//! Calls that carry data.

#![allow(unsafe_code)] // the C surface: reads and writes what C's pointers point to

use crate::abi::User;
use crate::address;
use crate::calls::waits;
use crate::errors;
use crate::shim::{self, Shim, c_result};
use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use sidecore_net_drill::files::{Answer, Errno};
use std::net::SocketAddr;
use std::ptr::{null, null_mut};

/// Bytes that one call may carry.
const LEN_MAX: usize = 64 << 20;
/// Pieces of one vectored call: Linux's `UIO_MAXIOV`.
const PIECES_MAX: usize = 1024;

impl Shim {
    fn receive(
        &self,
        fd: c_int,
        len: usize,
        flags: c_int,
    ) -> Answer<(Vec<u8>, usize, Option<SocketAddr>)> {
        if len > LEN_MAX {
            return Err(Errno(libc::EINVAL));
        }
        let mut bytes = vec![0; len];
        let wait = flags & libc::MSG_DONTWAIT == 0;
        let (count, from) = self.call(
            |files| wait && waits(files, fd),
            None,
            |files| files.receive(fd, &mut bytes, flags),
        )?;
        bytes.truncate(count);
        Ok((bytes, count, from))
    }

    /// A blocked call on a stream goes on until all is taken.
    fn send(&self, fd: c_int, bytes: &[u8], flags: c_int, to: Option<SocketAddr>) -> Answer<usize> {
        let wait = flags & libc::MSG_DONTWAIT == 0;
        let mut sent = 0;
        let mut blocked = false;
        let all = self.call(
            |files| wait && waits(files, fd),
            None,
            |files| {
                // A writer is woken when a good part of the buffer is free, not by each byte.
                if blocked && files.poll(fd, libc::POLLOUT)? == 0 {
                    return Err(Errno(libc::EAGAIN));
                }
                blocked = true;
                let rest = &bytes[sent..];
                sent += match to {
                    Some(to) => files.send_to(fd, to, rest, flags)?,
                    None => files.send(fd, rest, flags)?,
                };
                let more = sent < bytes.len() && wait && waits(files, fd);
                if more {
                    Err(Errno(libc::EAGAIN))
                } else {
                    Ok(())
                }
            },
        );
        match all {
            Err(error) if sent == 0 => Err(error),
            _ => Ok(sent),
        }
    }
}

/// The pieces of a vectored call.
///
/// # Safety
/// `pieces` is null or points to `count` pieces.
unsafe fn pieces<'p>(pieces: *const iovec, count: usize) -> Answer<&'p [iovec]> {
    if count > PIECES_MAX || pieces.is_null() && count > 0 {
        return Err(Errno(libc::EINVAL));
    }
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: not null, and the caller promises `count` pieces.
    Ok(unsafe { std::slice::from_raw_parts(pieces, count) })
}

fn total(pieces: &[iovec]) -> Answer<usize> {
    let sum = pieces
        .iter()
        .try_fold(0_usize, |sum, piece| sum.checked_add(piece.iov_len));
    sum.filter(|&sum| sum <= LEN_MAX).ok_or(Errno(libc::EINVAL))
}

/// # Safety
/// Each piece is good for its length.
unsafe fn gather(pieces: &[iovec]) -> Answer<Vec<u8>> {
    let mut bytes = Vec::with_capacity(total(pieces)?);
    for piece in pieces.iter().filter(|piece| piece.iov_len > 0) {
        if piece.iov_base.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: not null, and good for its length, says the caller.
        bytes.extend_from_slice(unsafe {
            std::slice::from_raw_parts(piece.iov_base.cast::<u8>(), piece.iov_len)
        });
    }
    Ok(bytes)
}

/// # Safety
/// Each piece is good for its length.
unsafe fn scatter(mut bytes: &[u8], pieces: &[iovec]) {
    for piece in pieces.iter().filter(|piece| !piece.iov_base.is_null()) {
        let (part, rest) = bytes.split_at(piece.iov_len.min(bytes.len()));
        // SAFETY: good for its length, of which no more is written.
        unsafe {
            piece
                .iov_base
                .cast::<u8>()
                .copy_from_nonoverlapping(part.as_ptr(), part.len());
        }
        bytes = rest;
    }
}

/// Common part of the receiving calls.
///
/// # Safety
/// As C says of recvfrom(2) and readv(2).
unsafe fn receive(
    user: User,
    fd: c_int,
    into: &[iovec],
    flags: c_int,
    from: (*mut sockaddr, *mut socklen_t),
) -> ssize_t {
    let done = || -> Answer<usize> {
        // SAFETY: C's promise on `user`.
        let shim = unsafe { shim::of(user) }?;
        let nowhere = |piece: &iovec| piece.iov_len > 0 && piece.iov_base.is_null();
        if into.iter().any(nowhere) {
            return Err(Errno(libc::EFAULT));
        }
        let (bytes, count, sender) = shim.receive(fd, total(into)?, flags)?;
        // SAFETY: C's promise on the pieces, and on the address and its length.
        unsafe {
            scatter(&bytes, into);
            if let Some(sender) = sender {
                let v6 = shim.lock().files.is_v6(fd)?;
                address::write(sender, v6, from.0, from.1);
            }
        }
        Ok(count)
    };
    c_size(done())
}

/// Common part of the sending calls.
///
/// # Safety
/// As C says of sendto(2) and writev(2).
unsafe fn transmit(
    user: User,
    fd: c_int,
    from: &[iovec],
    flags: c_int,
    to: (*const sockaddr, socklen_t),
) -> ssize_t {
    let done = || -> Answer<usize> {
        // SAFETY: C's promises on `user`, the pieces and the address.
        unsafe {
            let shim = shim::of(user)?;
            let bytes = gather(from)?;
            let to = if to.0.is_null() {
                None
            } else {
                Some(address::read(to.0, to.1)?)
            };
            shim.send(fd, &bytes, flags, to)
        }
    };
    c_size(done())
}

fn c_size(answer: Answer<usize>) -> ssize_t {
    c_result(answer.map(|size| size as i64))
}

fn one(bytes: *const c_void, len: size_t) -> [iovec; 1] {
    [iovec {
        iov_base: bytes.cast_mut(),
        iov_len: len,
    }]
}

/// read(2).
pub(crate) unsafe extern "C" fn read(
    user: User,
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
) -> ssize_t {
    // SAFETY: C's promises, handed on.
    unsafe { receive(user, fd, &one(bytes, len), 0, (null_mut(), null_mut())) }
}

/// readv(2).
pub(crate) unsafe extern "C" fn readv(
    user: User,
    fd: c_int,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    // SAFETY: C's promises, handed on.
    unsafe {
        match pieces(vector, usize::try_from(count).unwrap_or(usize::MAX)) {
            Ok(into) => receive(user, fd, into, 0, (null_mut(), null_mut())),
            Err(error) => c_size(Err(error)),
        }
    }
}

/// recv(2).
pub(crate) unsafe extern "C" fn recv(
    user: User,
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: C's promises, handed on.
    unsafe { receive(user, fd, &one(bytes, len), flags, (null_mut(), null_mut())) }
}

/// recvfrom(2).
pub(crate) unsafe extern "C" fn recvfrom(
    user: User,
    fd: c_int,
    bytes: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: C's promises, handed on.
    unsafe { receive(user, fd, &one(bytes, len), flags, (from, from_len)) }
}

/// recvmsg(2), with control messages for the error queue alone.
pub(crate) unsafe extern "C" fn recvmsg(
    user: User,
    fd: c_int,
    message: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: null or a message header, says C.
    let Some(message) = (unsafe { message.as_mut() }) else {
        return c_size(Err(Errno(libc::EFAULT)));
    };
    if flags & libc::MSG_ERRQUEUE != 0 {
        let mut done = || -> Answer<usize> {
            // SAFETY: C's promise on `user`.
            let shim = unsafe { shim::of(user) }?;
            let (report, v6) = {
                let mut state = shim.lock();
                (state.files.report(fd)?, state.files.is_v6(fd)?)
            };
            let control = errors::control(&report, v6);
            // SAFETY: null or good for its length, says C; no more is written.
            unsafe { errors::write(&control, message) };
            Ok(0)
        };
        return c_size(done());
    }
    let mut from_len = message.msg_namelen;
    let from = (message.msg_name.cast::<sockaddr>(), &raw mut from_len);
    // SAFETY: C's promises, handed on.
    let count = unsafe {
        match pieces(message.msg_iov, message.msg_iovlen) {
            Ok(into) => receive(user, fd, into, flags, from),
            Err(error) => return c_size(Err(error)),
        }
    };
    if !message.msg_name.is_null() {
        message.msg_namelen = from_len;
    }
    message.msg_controllen = 0;
    message.msg_flags = 0;
    count
}

/// write(2).
pub(crate) unsafe extern "C" fn write(
    user: User,
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
) -> ssize_t {
    // SAFETY: C's promises, handed on.
    unsafe { transmit(user, fd, &one(bytes, len), 0, (null(), 0)) }
}

/// writev(2).
pub(crate) unsafe extern "C" fn writev(
    user: User,
    fd: c_int,
    vector: *const iovec,
    count: c_int,
) -> ssize_t {
    // SAFETY: C's promises, handed on.
    unsafe {
        match pieces(vector, usize::try_from(count).unwrap_or(usize::MAX)) {
            Ok(from) => transmit(user, fd, from, 0, (null(), 0)),
            Err(error) => c_size(Err(error)),
        }
    }
}

/// send(2).
pub(crate) unsafe extern "C" fn send(
    user: User,
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: C's promises, handed on.
    unsafe { transmit(user, fd, &one(bytes, len), flags, (null(), 0)) }
}

/// sendto(2).
pub(crate) unsafe extern "C" fn sendto(
    user: User,
    fd: c_int,
    bytes: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    // SAFETY: C's promises, handed on.
    unsafe { transmit(user, fd, &one(bytes, len), flags, (to, to_len)) }
}

/// sendmsg(2), without control messages.
pub(crate) unsafe extern "C" fn sendmsg(
    user: User,
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: null or a message header, says C.
    let Some(message) = (unsafe { message.as_ref() }) else {
        return c_size(Err(Errno(libc::EFAULT)));
    };
    let to = (
        message.msg_name.cast::<sockaddr>().cast_const(),
        message.msg_namelen,
    );
    // SAFETY: C's promises, handed on.
    unsafe {
        match pieces(message.msg_iov, message.msg_iovlen) {
            Ok(from) => transmit(user, fd, from, flags, to),
            Err(error) => c_size(Err(error)),
        }
    }
}
