#![doc = include_str!("../README.md")]
//!
//! Top-down: `bytes`, `descriptors` and `waits` have the functions that programs call; `epoll`,
//! `poll` and `stream` implement them for rings; `accepting` accepts sessions from listeners,
//! `closing` handles their end; `datagrams` is UDP, `records` UDP by rings; `rings` and `interest`
//! give rings to a descriptor, and handle its epoll registration; `blocking` sleeps in a call on
//! one descriptor; `attachment` has the memory shared with the supervisor, `table` the records of
//! descriptors, `spin` polls again before a thread sleeps, `real` has the intercepted functions,
//! `marked` the calls by which filter and supervisor distinguish the library from the program.
//!
//! Must stay true: without a supervisor, and for anything but a stream of the stack, a call goes to
//! the C library and costs one load more; operations that rings do not support first return the
//! stream to its pair. Any thread may call. Nothing unwinds into the program, nothing is printed,
//! no thread is started.

#![allow(unsafe_code, reason = "a C surface")]
#![allow(clippy::missing_safety_doc)] // They are the C library's functions, with its rules.

mod accepting;
mod attachment;
mod blocking;
mod bytes;
mod closing;
mod datagrams;
mod descriptors;
mod epoll;
mod interest;
mod marked;
mod poll;
mod real;
mod records;
mod rings;
mod spin;
mod stream;
mod table;
mod told;
mod waits;

use std::ffi::{c_int, c_void};

pub use bytes::*;
pub use descriptors::*;
pub use waits::*;

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = {
    extern "C" fn loaded() {
        // SAFETY: the handler is a function of this library, which is never unloaded.
        unsafe { libc::pthread_atfork(None, Some(has_child), Some(forked)) };
        // Before any thread exists that could change the environment.
        rings::read_environment();
        table::begin_process();
        accepting::inherit();
    }
    loaded
};

/// Runs in the parent after a fork.
unsafe extern "C" fn has_child() {
    table::note_child();
}

/// Runs in the child after a fork.
unsafe extern "C" fn forked() {
    table::forked();
    interest::forked();
    attachment::forked();
}

/// `read` of programs built with _FORTIFY_SOURCE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(
    file: c_int,
    to: *mut c_void,
    bytes: usize,
    room: usize,
) -> isize {
    check(bytes, room);
    // SAFETY: as of read(2).
    unsafe { read(file, to, bytes) }
}

/// `recv` of programs built with _FORTIFY_SOURCE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(
    file: c_int,
    to: *mut c_void,
    bytes: usize,
    room: usize,
    flags: c_int,
) -> isize {
    check(bytes, room);
    // SAFETY: as of recv(2).
    unsafe { recv(file, to, bytes, flags) }
}

/// `recvfrom` of programs built with _FORTIFY_SOURCE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    file: c_int,
    to: *mut c_void,
    bytes: usize,
    room: usize,
    flags: c_int,
    from: *mut libc::sockaddr,
    from_bytes: *mut libc::socklen_t,
) -> isize {
    check(bytes, room);
    // SAFETY: as of recvfrom(2).
    unsafe { recvfrom(file, to, bytes, flags, from, from_bytes) }
}

/// Aborts the program if a buffer is too short, as the C library does.
fn check(bytes: usize, room: usize) {
    if bytes > room {
        std::process::abort();
    }
}

#[cfg(test)]
mod tests;
