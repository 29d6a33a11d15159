#![doc = include_str!("../README.md")]
//!
//! Top-down: `deflate`, `inflate`, `whole` (one buffer to another) and `gz` have the functions that
//! programs call; `forward` those of the base library (zlib-rs). `engines` makes blocks, on engines
//! or on the caller; `memory`, `io`, `settings`, `guard` and `foreign` are the base of the others.
//!
//! Must stay true: whatever a program may rely on in zlib's manual holds here. No panic unwinds
//! into the program, nothing is printed, no thread is started. Any thread may call, each stream one
//! at a time, as zlib has it. Source: zlib's manual (zlib.h), RFC 1950, 1951, 1952.

#![allow(unsafe_code, reason = "a C surface")]
#![allow(non_snake_case, reason = "zlib's names")]

mod deflate;
mod engines;
mod foreign;
mod forward;
mod gz;
mod inflate;
mod io;
mod memory;
mod process;
mod whole;

pub use deflate::*;
pub use forward::{
    adler32, adler32_combine, adler32_combine64, adler32_z, crc32, crc32_combine,
    crc32_combine_gen, crc32_combine_gen64, crc32_combine_op, crc32_combine64, crc32_z,
    get_crc_table, zError, zlibCompileFlags, zlibVersion,
};
pub use gz::*;
pub use inflate::*;
pub use process::prctl;
pub use whole::*;

// The symbols that have a version (`build.rs`); those without are exported where they stand.
include!(concat!(env!("OUT_DIR"), "/symbols.rs"));

mod guard {
    //! The border to C: nothing of ours unwinds across it, and nothing is printed. An exception of
    //! the program itself goes on there ([`foreign`]).

    use crate::foreign;
    use std::cell::Cell;
    use std::panic::{self, AssertUnwindSafe};
    use std::sync::Once;

    thread_local! {
        static INSIDE: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs one call; `otherwise` where it panics, which would be a bug of ours.
    pub(crate) fn call<R>(otherwise: R, work: impl FnOnce() -> R) -> R {
        static QUIET: Once = Once::new();
        // The standard error is the program's. The hook that is replaced belongs to this library's
        // own standard library, except in tests.
        QUIET.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                if !INSIDE.try_with(Cell::get).unwrap_or(true) {
                    before(info);
                }
            }));
        });
        let outer = INSIDE.try_with(|inside| inside.replace(true));
        let result = panic::catch_unwind(AssertUnwindSafe(work));
        if let Ok(outer) = outer {
            INSIDE.try_with(|inside| inside.set(outer)).ok();
        }
        // Behind all that would have to be undone: nothing is dropped below this frame any more.
        foreign::go_on();
        result.unwrap_or(otherwise)
    }
}
