//! The local sockets that stand for a program's TCP sockets.

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use sidecore_sys::{local_socket, socket_option};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

/// A new pair: the program's end, nonblocking if so requested, and the supervisor's, always
/// nonblocking.
///
/// # Errors
/// The kernel's: no descriptors left.
pub(crate) fn pair(near_is_nonblocking: bool) -> Result<(OwnedFd, OwnedFd), Errno> {
    let kind = SocketType::STREAM;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (near, far) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None)?;
    // TCP passes no descriptors; a pair would (SCM_RIGHTS).
    local_socket::refuse_descriptors(near.as_fd());
    local_socket::refuse_descriptors(far.as_fd());
    set_nonblocking(&near, near_is_nonblocking)?;
    Ok((near, far))
}

/// A new near end of a listener, and its name. It is itself a listening local socket, so that reads
/// and writes fail and it is never reported as writable, like any listener.
///
/// # Errors
/// The kernel's.
pub(crate) fn listening_end(is_nonblocking: bool) -> Result<(OwnedFd, SocketAddrUnix), Errno> {
    let near = local_stream(false)?;
    // Autobind: the kernel chooses an abstract name.
    rustix::net::bind(&near, &SocketAddrUnix::new_unnamed())?;
    rustix::net::listen(&near, TOKEN_BACKLOG)?;
    set_nonblocking(&near, is_nonblocking)?;
    let name = SocketAddrUnix::try_from(rustix::net::getsockname(&near)?)?;
    Ok((near, name))
}

/// An unconnected local socket. Neither it nor a socket accepted from it receives descriptors.
///
/// # Errors
/// The kernel's.
pub(crate) fn local_stream(is_nonblocking: bool) -> Result<OwnedFd, Errno> {
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, is_nonblocking);
    let made = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    local_socket::refuse_descriptors(made.as_fd());
    Ok(made)
}

const TOKEN_BACKLOG: i32 = 256;

/// The effective user of the process that opened a socket.
pub(crate) fn owner_of(file: &OwnedFd) -> u32 {
    // It cannot fail for a socket.
    rustix::fs::fstat(file).map_or(0, |about| about.st_uid)
}

/// Sets or clears `O_NONBLOCK` on `file`.
///
/// # Errors
/// The kernel's.
pub(crate) fn set_nonblocking(file: &OwnedFd, is_nonblocking: bool) -> Result<(), Errno> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    let mut wanted = flags;
    wanted.set(rustix::fs::OFlags::NONBLOCK, is_nonblocking);
    if wanted != flags {
        rustix::fs::fcntl_setfl(file, wanted)?;
    }
    Ok(())
}

/// True if the other end is closed, not only shut for writing.
pub(crate) fn is_hung_up(far: &OwnedFd) -> bool {
    // HUP is always reported; RDHUP, after shutdown(2), must not count.
    let mut polled = [PollFd::new(far, PollFlags::empty())];
    let none = rustix::time::Timespec::default();
    rustix::event::poll(&mut polled, Some(&none)).is_ok()
        && polled[0].revents().contains(PollFlags::HUP)
}

/// The inode of one of this process's descriptors.
///
/// # Errors
/// The kernel's.
pub(crate) fn inode_of(file: &OwnedFd) -> Result<u64, Errno> {
    Ok(rustix::fs::fstat(file)?.st_ino)
}

/// The time in `struct timeval`, as SO_RCVTIMEO has it; none if it is zero, which is no limit.
pub(crate) fn patience(value: &[u8]) -> Option<Duration> {
    let (seconds, rest) = value.split_first_chunk()?;
    let seconds = u64::from_ne_bytes(*seconds);
    let micros = u64::from_ne_bytes(*rest.first_chunk()?);
    let patience = Duration::from_secs(seconds).checked_add(Duration::from_micros(micros))?;
    (!patience.is_zero()).then_some(patience)
}

/// SO_SNDBUF, or SO_RCVBUF, of a TCP socket whose program has not set it (`net.ipv4.tcp_wmem` and
/// `net.ipv4.tcp_rmem`), in bytes.
pub(crate) fn usual_bytes(name: i32) -> Option<u32> {
    static USUAL: OnceLock<[Option<u32>; 2]> = OnceLock::new();
    let [sending, receiving] = USUAL.get_or_init(|| {
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::STREAM;
        let made = rustix::net::socket_with(AddressFamily::INET, kind, flags, None).ok();
        [libc::SO_SNDBUF, libc::SO_RCVBUF]
            .map(|name| number(made.as_ref()?, libc::SOL_SOCKET, name))
    });
    match name {
        libc::SO_RCVBUF => *receiving,
        _ => *sending,
    }
}

/// The number that is an option's value.
fn number(file: &OwnedFd, level: i32, name: i32) -> Option<u32> {
    let value = socket_option::get(file.as_fd(), level, name, 4).ok()?;
    value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// The largest window of a session, by SO_RCVBUF as the kernel reports it and by TCP_WINDOW_CLAMP;
/// none if the program has set neither. As in the kernel, that is half of the buffer, of which
/// the other half is overhead.
pub(crate) fn window_of(receive_bytes: Option<u32>, clamp: Option<u32>) -> Option<u32> {
    let half = receive_bytes.map(|bytes| bytes / 2);
    // Zero is no clamp. The kernel itself sets a huge one when it tries to connect the socket.
    let clamp = clamp.filter(|clamp| (1..WINDOW_MAX).contains(clamp));
    let window = half.into_iter().chain(clamp).min()?;
    Some(window.clamp(WINDOW_MIN, WINDOW_MAX))
}

/// The same of a socket that the program has opened, and that is not connected yet.
pub(crate) fn window_set(kernel: &OwnedFd) -> Option<u32> {
    let bytes = number(kernel, libc::SOL_SOCKET, libc::SO_RCVBUF);
    let bytes = bytes.filter(|bytes| Some(*bytes) != usual_bytes(libc::SO_RCVBUF));
    let clamp = number(kernel, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP);
    window_of(bytes, clamp)
}

/// Lets an end of a session's pair hold half of what the program allows: the near end of
/// SO_SNDBUF as it is reported, of which the stack holds the other half; the far end of two
/// windows, for what the program has not read.
pub(crate) fn limit_sending(end: BorrowedFd<'_>, bytes: u32) {
    // The kernel doubles the value, and has a least one.
    let value = (bytes / 4).to_ne_bytes();
    socket_option::set(end, libc::SOL_SOCKET, libc::SO_SNDBUF, &value).ok();
}

/// Writes to the pair until its near end is no longer writable, which holds until there is a
/// session; returns the number of bytes.
pub(crate) fn fill(near: &OwnedFd) -> Result<usize, Errno> {
    let bytes = [0; FILL_BYTES];
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let mut filled = 0;
    // The kernel counts memory, not bytes, and its limits can be changed: it is asked each time.
    for _ in 0..FILLS_MAX {
        match rustix::net::send(near, &bytes, flags) {
            Ok(count) => filled += count,
            Err(Errno::AGAIN) => break,
            Err(error) => return Err(error),
        }
        if !is_writable(near) {
            break;
        }
    }
    Ok(filled)
}

fn is_writable(file: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(file, PollFlags::OUT)];
    let none = rustix::time::Timespec::default();
    rustix::event::poll(&mut polled, Some(&none)).is_ok()
        && polled[0].revents().contains(PollFlags::OUT)
}

const FILL_BYTES: usize = 64 << 10;
const FILLS_MAX: usize = 256;
/// The least and the largest receive buffer of the stack, in bytes.
const WINDOW_MIN: u32 = 4096;
const WINDOW_MAX: u32 = 8 << 20;
