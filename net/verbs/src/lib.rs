#![doc = include_str!("../README.md")]
//!
//! Top-down: `build.rs` has the exported names, their versions, and the functions here; `device`
//! has the device and contexts, `node` its file, `memory` protection domains with regions and
//! shared queues, `queue` completion queues and channels, `pair` pairs, `fast` posting, `steps` the
//! same in steps; `direct` and `exchange` pairs that programs connect themselves, `datagram` those
//! without connections; `cm` identifiers of connections, `event` their events, `connect` their
//! making, `endpoint` the calls that make several objects, `address` addresses, `left` what closed
//! contexts leave; `state` is the state behind them, `engine` the lock and the thread that makes
//! progress; `abi` has the layouts. Names of numbers, refused calls and stream sockets are in this
//! file.
//!
//! Must stay true: an object is a box that begins with the interface's structure, created by one
//! call and freed by another; its state is in `state`, by number. Nothing unwinds into a program: a
//! panic ends the process (`extern "C"`).

#![allow(unsafe_code, reason = "a C surface")]

mod abi;
mod address;
mod cm;
mod connect;
mod datagram;
mod device;
mod direct;
mod endpoint;
mod engine;
mod event;
mod exchange;
mod fast;
mod left;
mod memory;
mod node;
mod pair;
mod queue;
mod state;
mod steps;

#[doc(hidden)]
pub use abi::layouts;

use sidecore_rdma::{PostError, RdmaError, StartFault};
use std::ffi::c_int;

include!(concat!(env!("OUT_DIR"), "/symbols.rs"));

/// Sets the program's `errno`.
pub(crate) fn errno(number: c_int) {
    // SAFETY: this thread's own place.
    unsafe { *libc::__errno_location() = number };
}

/// The program's `errno`.
pub(crate) fn last_errno() -> c_int {
    // SAFETY: this thread's own place.
    unsafe { *libc::__errno_location() }
}

/// The result of a call that returns -1 and sets `errno`.
pub(crate) fn fail(number: c_int) -> c_int {
    errno(number);
    -1
}

/// The result of a call that returns a pointer and sets `errno`.
pub(crate) fn pointer_failed<T>(number: c_int) -> *mut T {
    errno(number);
    std::ptr::null_mut()
}

/// An error as its number.
pub(crate) fn number_of(error: &RdmaError) -> c_int {
    match error {
        RdmaError::Io(error) => error.raw_os_error().unwrap_or(libc::ENOTCONN),
        RdmaError::Memory(_) | RdmaError::TooMany(..) => libc::ENOMEM,
        RdmaError::Post(PostError::Full(_)) => libc::ENOMEM,
        RdmaError::Engine(_) => libc::ECONNREFUSED,
        RdmaError::Post(PostError::NoReads) => libc::EOPNOTSUPP,
        RdmaError::Start(StartFault::NotRequested) | RdmaError::Ended(_) => libc::ENOTCONN,
        _ => libc::EINVAL,
    }
}

/// Calls that this library does not have: multicast, address handles of completions, the drivers'
/// interface, import of objects, mapped writes of `rsocket`.
pub(crate) mod refused {
    use std::ffi::{c_int, c_void};

    /// A call that returns an error number.
    pub(crate) unsafe extern "C" fn number() -> c_int {
        crate::errno(libc::EOPNOTSUPP);
        libc::EOPNOTSUPP
    }

    /// A call that returns -1 and sets `errno`.
    pub(crate) unsafe extern "C" fn minus_one() -> isize {
        crate::errno(libc::EOPNOTSUPP);
        -1
    }

    /// A call that returns a pointer.
    pub(crate) unsafe extern "C" fn pointer() -> *mut c_void {
        crate::pointer_failed(libc::EOPNOTSUPP)
    }

    /// A call without a result, or whose result is 0 for "no". Drivers that are linked to a program
    /// register themselves by one: their devices are the kernel's.
    pub(crate) unsafe extern "C" fn nothing() -> c_int {
        0
    }
}

/// Names of numbers, and rates.
pub(crate) mod names {
    use crate::abi;
    use std::ffi::{CStr, c_char, c_int};

    const NODES: [&CStr; 7] = [
        c"unknown",
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
    ];
    const PORTS: [&CStr; 6] = [
        c"no state change (NOP)",
        c"down",
        c"init",
        c"armed",
        c"active",
        c"active defer",
    ];
    const EVENTS: [&CStr; 20] = [
        c"CQ error",
        c"local work queue catastrophic error",
        c"invalid request local work queue error",
        c"local access violation work queue error",
        c"communication established",
        c"send queue drained",
        c"path migrated",
        c"path migration request error",
        c"local catastrophic error",
        c"port active",
        c"port error",
        c"LID change",
        c"P_Key change",
        c"SM change",
        c"SRQ catastrophic error",
        c"SRQ limit reached",
        c"last WQE reached",
        c"client reregistration",
        c"GID table change",
        c"WQ fatal",
    ];
    const STATUSES: [&CStr; 24] = [
        c"success",
        c"local length error",
        c"local QP operation error",
        c"local EE context operation error",
        c"local protection error",
        c"Work Request Flushed Error",
        c"memory bind error",
        c"bad response error",
        c"local access error",
        c"remote invalid request error",
        c"remote access error",
        c"remote operation error",
        c"transport retry counter exceeded",
        c"RNR retry counter exceeded",
        c"local RDD violation error",
        c"remote invalid RD request",
        c"remote aborted operation",
        c"invalid EE context number",
        c"invalid EE context state",
        c"fatal error",
        c"response timeout error",
        c"general error",
        c"TM error",
        c"TM software rendezvous",
    ];
    /// Rates: the interface's number, a multiple of 2.5 Gbit/s, Mbit/s.
    const RATES: [(c_int, c_int, c_int); 10] = [
        (2, 1, 2_500),
        (5, 2, 5_000),
        (3, 4, 10_000),
        (6, 8, 20_000),
        (4, 12, 30_000),
        (7, 16, 40_000),
        (15, 10, 25_781),
        (19, 20, 53_125),
        (16, 40, 103_125),
        (17, 80, 206_250),
    ];

    fn text(table: &[&'static CStr], number: c_int) -> *const c_char {
        let found = usize::try_from(number).ok().and_then(|at| table.get(at));
        found.map_or(c"unknown", |text| text).as_ptr()
    }

    pub(crate) unsafe extern "C" fn node_type(number: c_int) -> *const c_char {
        text(&NODES, number)
    }

    pub(crate) unsafe extern "C" fn port_state(number: c_int) -> *const c_char {
        text(&PORTS, number)
    }

    pub(crate) unsafe extern "C" fn event_type(number: c_int) -> *const c_char {
        text(&EVENTS, number)
    }

    pub(crate) unsafe extern "C" fn wc_status(number: c_int) -> *const c_char {
        text(&STATUSES, number)
    }

    pub(crate) unsafe extern "C" fn cm_event(number: c_int) -> *const c_char {
        text(&abi::EVENTS, number)
    }

    pub(crate) unsafe extern "C" fn rate_to_mult(rate: c_int) -> c_int {
        let found = RATES.iter().find(|one| one.0 == rate);
        found.map_or(-1, |one| one.1)
    }

    pub(crate) unsafe extern "C" fn mult_to_rate(mult: c_int) -> c_int {
        let found = RATES.iter().find(|one| one.1 == mult);
        found.map_or(0, |one| one.0)
    }

    pub(crate) unsafe extern "C" fn rate_to_mbps(rate: c_int) -> c_int {
        let found = RATES.iter().find(|one| one.0 == rate);
        found.map_or(-1, |one| one.2)
    }

    pub(crate) unsafe extern "C" fn mbps_to_rate(mbps: c_int) -> c_int {
        let found = RATES.iter().find(|one| one.2 == mbps);
        found.map_or(0, |one| one.0)
    }
}

/// `rsocket`: the interface's stream sockets, which are the kernel's here.
///
/// A stream over TCP needs no RDMA below it: each call is the one of the system without its "r".
/// Both sides must be of this library: the bytes are not those of librdmacm's own protocol. Mapped
/// writes (`riowrite`) have no counterpart and are refused.
pub(crate) mod rsocket {
    use std::ffi::{c_int, c_void};

    /// The level of the interface's own options.
    const SOL_RDMA: c_int = 0x10000;
    /// Length of an option that is on or off.
    const OPTION_BYTES: libc::socklen_t = size_of::<c_int>() as libc::socklen_t;

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
        accept = accept(
            fd: c_int, address: *mut libc::sockaddr, count: *mut libc::socklen_t
        ) -> c_int;
        connect = connect(
            fd: c_int, address: *const libc::sockaddr, count: libc::socklen_t
        ) -> c_int;
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
                let (value, bytes) = ((&raw const yes).cast(), OPTION_BYTES);
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
            // SAFETY: commands whose argument is a number.
            libc::F_GETFL | libc::F_SETFL | libc::F_GETFD | libc::F_SETFD => unsafe {
                libc::fcntl(fd, command, argument)
            },
            _ => crate::fail(libc::ENOTSUP),
        }
    }
}
