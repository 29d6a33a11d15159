#![doc = include_str!("../README.md")]
//!
//! Top-down: `src/symbols` has the exported names, their versions, and the functions here;
//! `device` has the device and contexts, `memory` domains and regions, `queue` completion queues
//! and channels, `pair` and `shared` pairs and shared queues, `fast` posting, `steps` the same in
//! steps; `cm` identifiers of connections, `event` their events, `connect` their making,
//! `endpoint` the calls that make several objects, `address` addresses, `rsocket` stream sockets;
//! `state` is the state behind them, `engine` the lock and the thread that makes progress; `abi`
//! and `cm_abi` are the layouts.
//!
//! Must stay true: an object is a box that begins with the interface's structure, created by one
//! call and freed by another; its state is in `state`, by number. Nothing unwinds into a program: a
//! panic ends the process (`extern "C"`).

#![allow(unsafe_code, reason = "a C surface")]

mod abi;
mod address;
mod cm;
mod cm_abi;
mod connect;
mod device;
mod endpoint;
mod engine;
mod event;
mod fast;
mod memory;
mod names;
mod pair;
mod queue;
mod refused;
mod rsocket;
mod shared;
mod state;
mod steps;
mod table;

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
