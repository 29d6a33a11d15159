//! Writing after the peer has closed: TCP accepts the first write, a local pair does not.
//!
//! Must stay true: results differ from the kernel's only on a pair that represents a session; a
//! program's own local sockets, and kernel TCP sockets, are unchanged. A program gets SIGPIPE when
//! TCP would have sent it.

use crate::interest::{EDGE, ONE_SHOT, control};
use crate::marked::{has_internet_name, kernels_option, was_connected};
use crate::real::{errno, real, set_errno};
use crate::table::{self, ENDED, Kind, PARDONED, Record, SHUT_WRITE};
use std::ffi::c_int;

/// Makes a receiving kernel call, and records its result: 0 bytes mean that the peer has ended.
/// The error of a call on a socket without a peer becomes TCP's.
#[inline]
pub(crate) fn receive(file: c_int, wanted: usize, work: impl Fn() -> isize) -> isize {
    let mut received = work();
    if received == -1 && is_behind_end(file) {
        received = work();
    }
    if received < 0 || received == 0 && wanted > 0 {
        note(file, received);
    }
    received
}

/// True for a reset behind the peer's end, of which the kernel has just reported the first. As on
/// TCP, reads go on to return the end: of a pair, from the next one on. A connection that was
/// refused has had neither rings nor an end.
fn is_behind_end(file: c_int) -> bool {
    errno() == libc::ECONNRESET
        && table::record(file)
            .is_some_and(|record| record.kind() == Kind::Ring || record.has(ENDED))
        && is_without_peer(file)
}

fn note(file: c_int, received: isize) {
    let flag = match received {
        0 => ENDED,
        // A reset was reported by this read, so the next write fails.
        _ if errno() == libc::ECONNRESET => ENDED | PARDONED,
        _ if errno() == libc::EINVAL && is_without_peer(file) => return set_errno(libc::ENOTCONN),
        _ => return,
    };
    if let Some(record) = table::record(file)
        && matches!(record.kind(), Kind::Candidate | Kind::Barred)
    {
        record.add(flag);
    }
}

/// The same for a program with rings: a reset is reported once.
#[inline]
pub(crate) fn receive_at_end(file: c_int, work: impl Fn() -> isize) -> isize {
    let received = work();
    if received == -1 && errno() == libc::ECONNRESET {
        if is_behind_end(file) {
            // Polls go on to report the error.
            return work();
        }
        note_error(file);
    }
    received
}

/// The result of a sending kernel call that did not pass [`send`].
#[inline]
pub(crate) fn note_sent(file: c_int, sent: isize) -> isize {
    if sent == -1 && errno() == libc::ENOTCONN && is_without_peer(file) {
        return broken(file, 0);
    }
    sent
}

/// True for a socket of a session's kind without a peer: bound, listening, or over in both
/// directions. The kernel has a local socket, where the program has a TCP socket.
#[cold]
fn is_without_peer(file: c_int) -> bool {
    kernels_option(file, libc::SO_DOMAIN) == Some(libc::AF_UNIX)
        && kernels_option(file, libc::SO_TYPE) == Some(libc::SOCK_STREAM)
        && has_internet_name(file)
        && !was_connected(file)
}

/// A session's error was reported (SO_ERROR): writes fail from now on.
pub(crate) fn note_error(file: c_int) {
    if let Some(record) = table::record(file) {
        record.add(PARDONED);
    }
}

/// The program has ended its sending on a pair: as TCP does, and a local pair does not, an
/// edge-triggered epoll instance reports the state anew.
#[cold]
pub(crate) fn poll_anew(file: c_int, record: &Record) {
    let events = record.events.load(std::sync::atomic::Ordering::Relaxed);
    let Some(epoll) = record.epoll() else {
        return;
    };
    if events & EDGE == 0 || events & ONE_SHOT != 0 {
        return;
    }
    if kernels_option(file, libc::SO_DOMAIN) != Some(libc::AF_UNIX) || !was_connected(file) {
        return;
    }
    let data = record.data.load(std::sync::atomic::Ordering::Relaxed);
    control(epoll, libc::EPOLL_CTL_MOD, file, events, data);
}

/// Sends by the kernel, without a signal; `work` gets the flags.
#[inline]
pub(crate) fn send(
    file: c_int,
    flags: c_int,
    wanted: impl FnOnce() -> usize,
    work: impl FnOnce(c_int) -> isize,
) -> isize {
    // Those with rings come here once their session is over.
    let Some(record) = table::record(file)
        .filter(|record| matches!(record.kind(), Kind::Candidate | Kind::Barred | Kind::Ring))
    else {
        return work(flags);
    };
    // The signal is sent below, if TCP would send it.
    let sent = work(flags | libc::MSG_NOSIGNAL);
    if sent != -1 {
        return sent;
    }
    match errno() {
        libc::EPIPE => refused(file, record, flags, wanted()),
        // The latter two where an address was given, which TCP ignores.
        libc::ENOTCONN | libc::EOPNOTSUPP | libc::EISCONN if is_without_peer(file) => {
            broken(file, flags)
        }
        _ => sent,
    }
}

/// True if a write must use [`send`]: the program has read the peer's end. Not before, since
/// sandboxed programs may be allowed to call write but not send.
#[inline]
pub(crate) fn has_ended(file: c_int) -> bool {
    table::record(file).is_some_and(|record| {
        record.has(ENDED) && matches!(record.kind(), Kind::Candidate | Kind::Barred)
    })
}

/// The result by TCP's rules when the kernel reports EPIPE for a pair.
#[cold]
fn refused(file: c_int, record: &Record, flags: c_int, wanted: usize) -> isize {
    if !record.has(SHUT_WRITE) && !record.has(PARDONED) {
        // Asked once in a session's life, so its system calls do not matter.
        match end_of(file) {
            // Rings end by a reset alone; here it has been reported.
            End::Closed if record.kind() == Kind::Ring => {}
            // The peer's reply, a reset, makes the next write fail (RFC 9293 section 3.10.7.1).
            End::Closed => {
                record.add(PARDONED);
                return wanted.cast_signed();
            }
            // The peer closed with unread bytes, and its reset has arrived (RFC 2525 section 2.17).
            End::Reset(error) => {
                record.add(PARDONED);
                set_errno(error);
                return -1;
            }
            End::Other => {}
        }
    }
    broken(file, flags)
}

/// EPIPE, and the signal unless the flags forbid it. Datagram sockets that were shut raise none.
#[cold]
fn broken(file: c_int, flags: c_int) -> isize {
    let is_stream = kernels_option(file, libc::SO_TYPE) == Some(libc::SOCK_STREAM);
    if is_stream && flags & libc::MSG_NOSIGNAL == 0 {
        // SAFETY: calls without pointers: this thread's signal, as the kernel would have sent it.
        unsafe {
            let thread = libc::syscall(libc::SYS_gettid);
            libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGPIPE);
        }
    }
    set_errno(libc::EPIPE);
    -1
}

enum End {
    /// The peer has closed the session in order.
    Closed,
    /// The session has ended with this error, which is reported once.
    Reset(c_int),
    /// Not a session's pair, or its peer is still connected.
    Other,
}

fn end_of(file: c_int) -> End {
    let mut polled = libc::pollfd {
        fd: file,
        events: 0,
        revents: 0,
    };
    let count = real!(poll(&raw mut polled => *mut libc::pollfd, 1 => libc::nfds_t, 0 => c_int)
        -> c_int);
    // The other end is still open: the program has shut its own side.
    if count != 1 || polled.revents & libc::POLLHUP == 0 {
        return End::Other;
    }
    if kernels_option(file, libc::SO_DOMAIN) != Some(libc::AF_UNIX) || !was_connected(file) {
        return End::Other;
    }
    if polled.revents & libc::POLLERR == 0 {
        return End::Closed;
    }
    // Reading it clears it, as the report to the program would.
    match kernels_option(file, libc::SO_ERROR) {
        Some(error) if error != 0 => End::Reset(error),
        _ => End::Other,
    }
}
