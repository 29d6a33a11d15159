//! `rsocket`: the interface's stream sockets, which are the kernel's here.
//!
//! A stream over TCP needs no RDMA below it: each call is the one of the system without its "r".
//! Both sides must be of this library: the bytes are not those of librdmacm's own protocol. Mapped
//! writes (`riowrite`) have no counterpart and are refused.

use std::ffi::{c_int, c_void};

/// The level of the interface's own options.
const SOL_RDMA: c_int = 0x10000;

/// Calls of the system under the interface's names.
macro_rules! calls {
    ($($name:ident = $call:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {$(
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            // SAFETY: the arguments of the call of the system, as rsocket(7) demands.
            unsafe { libc::$call($($argument),*) }
        }
    )*};
}

calls! {
    bind = bind(fd: c_int, address: *const libc::sockaddr, count: libc::socklen_t) -> c_int;
    listen = listen(fd: c_int, backlog: c_int) -> c_int;
    accept = accept(fd: c_int, address: *mut libc::sockaddr, count: *mut libc::socklen_t) -> c_int;
    connect = connect(fd: c_int, address: *const libc::sockaddr, count: libc::socklen_t) -> c_int;
    shutdown = shutdown(fd: c_int, how: c_int) -> c_int;
    close = close(fd: c_int) -> c_int;
    recv = recv(fd: c_int, into: *mut c_void, count: usize, flags: c_int) -> isize;
    recvfrom = recvfrom(
        fd: c_int, into: *mut c_void, count: usize, flags: c_int, address: *mut libc::sockaddr,
        room: *mut libc::socklen_t
    ) -> isize;
    recvmsg = recvmsg(fd: c_int, message: *mut libc::msghdr, flags: c_int) -> isize;
    sendto = sendto(
        fd: c_int, from: *const c_void, count: usize, flags: c_int,
        address: *const libc::sockaddr, bytes: libc::socklen_t
    ) -> isize;
    sendmsg = sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize;
    read = read(fd: c_int, into: *mut c_void, count: usize) -> isize;
    readv = readv(fd: c_int, pieces: *const libc::iovec, count: c_int) -> isize;
    writev = writev(fd: c_int, pieces: *const libc::iovec, count: c_int) -> isize;
    poll = poll(places: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int;
    select = select(
        count: c_int, readable: *mut libc::fd_set, writable: *mut libc::fd_set,
        exceptional: *mut libc::fd_set, timeout: *mut libc::timeval
    ) -> c_int;
    getpeername = getpeername(
        fd: c_int, address: *mut libc::sockaddr, count: *mut libc::socklen_t
    ) -> c_int;
    getsockname = getsockname(
        fd: c_int, address: *mut libc::sockaddr, count: *mut libc::socklen_t
    ) -> c_int;
}

pub(crate) unsafe extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: numbers only; an option of this stack.
    unsafe {
        let fd = libc::socket(family, kind, protocol);
        if fd >= 0 && kind & 0xf == libc::SOCK_STREAM {
            // The interface's messages go out at once; and a server that starts again finds its
            // port free, as with RDMA.
            let yes: c_int = 1;
            let (value, bytes) = (
                (&raw const yes).cast(),
                size_of::<c_int>() as libc::socklen_t,
            );
            libc::setsockopt(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, value, bytes);
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, value, bytes);
        }
        fd
    }
}

pub(crate) unsafe extern "C" fn send(
    fd: c_int,
    from: *const c_void,
    count: usize,
    flags: c_int,
) -> isize {
    // A peer that is gone is an error of the call here: the interface has no signal for it.
    // SAFETY: the arguments of send(2), as rsocket(7) demands.
    unsafe { libc::send(fd, from, count, flags | libc::MSG_NOSIGNAL) }
}

pub(crate) unsafe extern "C" fn write(fd: c_int, from: *const c_void, count: usize) -> isize {
    // SAFETY: the arguments of write(2), as rsocket(7) demands.
    unsafe { send(fd, from, count, 0) }
}

pub(crate) unsafe extern "C" fn setsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    count: libc::socklen_t,
) -> c_int {
    // Sizes of RDMA's queues: there are none.
    if level == SOL_RDMA {
        return 0;
    }
    // SAFETY: the arguments of setsockopt(2), as rsocket(7) demands.
    unsafe { libc::setsockopt(fd, level, option, value, count) }
}

pub(crate) unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    count: *mut libc::socklen_t,
) -> c_int {
    if level == SOL_RDMA {
        return crate::fail(libc::ENOPROTOOPT);
    }
    // SAFETY: the arguments of getsockopt(2), as rsocket(7) demands.
    unsafe { libc::getsockopt(fd, level, option, value, count) }
}

pub(crate) unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    match command {
        // SAFETY: rsocket(7) has these two alone, whose argument is a number.
        libc::F_GETFL | libc::F_SETFL => unsafe { libc::fcntl(fd, command, argument) },
        _ => crate::fail(libc::ENOTSUP),
    }
}
