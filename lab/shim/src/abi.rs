//! The interface as C has it: one structure of pointers, filled in once.
//!
//! The order and the types are those that the outside runner declares in its `packetdrill.h`; the
//! declarations are our own. Must stay true: 33 pointers, in this order.
//!
//! `fcntl` and `ioctl` are variadic in C and take one argument more here. On Linux's x86-64 and
//! AArch64 a variadic call passes it in the register in which a plain call does.

use libc::{
    c_char, c_int, c_longlong, c_uint, c_ulong, c_void, epoll_event, iovec, loff_t, msghdr, nfds_t,
    pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval,
};

/// First argument of every function: the handle that the runner was given.
pub(crate) type User = *mut c_void;

/// Table of functions that packetdrill calls (`struct packetdrill_interface`).
#[repr(C)]
#[derive(Debug)]
pub struct Interface {
    pub(crate) userdata: User,
    pub(crate) free: unsafe extern "C" fn(User),
    pub(crate) socket: unsafe extern "C" fn(User, c_int, c_int, c_int) -> c_int,
    pub(crate) bind: unsafe extern "C" fn(User, c_int, *const sockaddr, socklen_t) -> c_int,
    pub(crate) listen: unsafe extern "C" fn(User, c_int, c_int) -> c_int,
    pub(crate) accept: unsafe extern "C" fn(User, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    pub(crate) connect: unsafe extern "C" fn(User, c_int, *const sockaddr, socklen_t) -> c_int,
    pub(crate) read: unsafe extern "C" fn(User, c_int, *mut c_void, size_t) -> ssize_t,
    pub(crate) readv: unsafe extern "C" fn(User, c_int, *const iovec, c_int) -> ssize_t,
    pub(crate) recv: unsafe extern "C" fn(User, c_int, *mut c_void, size_t, c_int) -> ssize_t,
    pub(crate) recvfrom: unsafe extern "C" fn(
        User,
        c_int,
        *mut c_void,
        size_t,
        c_int,
        *mut sockaddr,
        *mut socklen_t,
    ) -> ssize_t,
    pub(crate) recvmsg: unsafe extern "C" fn(User, c_int, *mut msghdr, c_int) -> ssize_t,
    pub(crate) write: unsafe extern "C" fn(User, c_int, *const c_void, size_t) -> ssize_t,
    pub(crate) writev: unsafe extern "C" fn(User, c_int, *const iovec, c_int) -> ssize_t,
    pub(crate) send: unsafe extern "C" fn(User, c_int, *const c_void, size_t, c_int) -> ssize_t,
    pub(crate) sendto: unsafe extern "C" fn(
        User,
        c_int,
        *const c_void,
        size_t,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> ssize_t,
    pub(crate) sendmsg: unsafe extern "C" fn(User, c_int, *const msghdr, c_int) -> ssize_t,
    pub(crate) fcntl: unsafe extern "C" fn(User, c_int, c_int, c_ulong) -> c_int,
    pub(crate) ioctl: unsafe extern "C" fn(User, c_int, c_ulong, *mut c_void) -> c_int,
    pub(crate) close: unsafe extern "C" fn(User, c_int) -> c_int,
    pub(crate) shutdown: unsafe extern "C" fn(User, c_int, c_int) -> c_int,
    pub(crate) getsockopt:
        unsafe extern "C" fn(User, c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
    pub(crate) setsockopt:
        unsafe extern "C" fn(User, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    pub(crate) poll: unsafe extern "C" fn(User, *mut pollfd, nfds_t, c_int) -> c_int,
    pub(crate) netdev_send: unsafe extern "C" fn(User, *const c_void, size_t) -> c_int,
    pub(crate) netdev_receive:
        unsafe extern "C" fn(User, *mut c_void, *mut size_t, *mut c_longlong) -> c_int,
    pub(crate) usleep: unsafe extern "C" fn(User, c_uint) -> c_int,
    pub(crate) gettimeofday: unsafe extern "C" fn(User, *mut timeval, *mut c_void) -> c_int,
    pub(crate) epoll_create: unsafe extern "C" fn(User, c_int) -> c_int,
    pub(crate) epoll_ctl:
        unsafe extern "C" fn(User, c_int, c_int, c_int, *mut epoll_event) -> c_int,
    pub(crate) epoll_wait:
        unsafe extern "C" fn(User, c_int, *mut epoll_event, c_int, c_int) -> c_int,
    pub(crate) pipe: unsafe extern "C" fn(User, *mut c_int) -> c_int,
    pub(crate) splice: unsafe extern "C" fn(
        User,
        c_int,
        *mut loff_t,
        c_int,
        *mut loff_t,
        size_t,
        c_uint,
    ) -> ssize_t,
}

const _: () = assert!(size_of::<Interface>() == 33 * size_of::<*mut c_void>());

/// Flags as the runner passes them, as text.
pub(crate) type Flags = *const c_char;
