#![doc = include_str!("../README.md")]
//!
//! Top-down: `bytes`, `descriptors` and `waits` have the functions that programs call; `epoll`,
//! `poll` and `stream` do it where rings are concerned; `accepting` takes sessions from listeners,
//! `closing` says how they end; `rings` and `interest` say how a descriptor gets rings, and stands
//! in an epoll then;
//! `attachment` has what is shared with the supervisor, `table` what is known of each descriptor,
//! `spin` looks again before a thread sleeps, `real` has the functions behind ours, `marked` the
//! calls that filter and supervisor tell from the program's.
//!
//! Must stay true: without a supervisor, and for all that is not a stream of the stack's, a call is
//! the C library's and costs a load more; whatever is not served by rings is given back to the
//! pair first. Any thread may call. Nothing unwinds into the program, nothing is printed, no thread
//! is started.

#![allow(unsafe_code, reason = "a C surface")]
#![allow(clippy::missing_safety_doc)] // They are the C library's functions, with its rules.

mod accepting;
mod attachment;
mod bytes;
mod closing;
mod descriptors;
mod epoll;
mod interest;
mod marked;
mod poll;
mod real;
mod rings;
mod spin;
mod stream;
mod table;
mod waits;

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
        rings::read_environment();
        table::begin_process();
    }
    loaded
};

/// Runs in a fork's parent.
unsafe extern "C" fn has_child() {
    table::note_child();
}

/// Runs in a fork's child.
unsafe extern "C" fn forked() {
    table::forked();
    interest::forked();
    attachment::forked();
}

/// Ends the program where a buffer is too short, as the C library does.
fn check(bytes: usize, room: usize) {
    if bytes > room {
        std::process::abort();
    }
}
