//! Callbacks: a program's requests to the host's C library by stop-and-signal 0x2100 to 0x21ff.
//!
//! Served here: C99's streams (0x2100), files and time of POSIX (0x2101), memory of the host
//! (0x2102). A program may register its own for the other numbers. Streams are the process's, so
//! the order with its own output is kept.
//!
//! Must stay true: addresses of a program are masked and lengths cut at the store's end; runs on
//! the thread that called `spe_context_run`. Source: libspe2's documentation, newlib for numbers.

mod c99;
mod call;
mod memory;
mod posix;

use parking_lot::RwLock;
use std::ffi::{c_int, c_uint, c_void};

/// A handler: the store's address, and the place in it of the message word.
pub(crate) type Handler = unsafe extern "C" fn(*mut c_void, c_uint) -> c_int;

/// Numbers of callbacks.
pub(crate) const NUMBERS: usize = 256;
/// Numbers that programs may replace but neither add nor remove.
pub(crate) const RESERVED: usize = 4;

static HANDLERS: RwLock<[Option<Handler>; NUMBERS]> = RwLock::new({
    let mut handlers = [None; NUMBERS];
    handlers[0] = Some(c99::serve as Handler);
    handlers[1] = Some(posix::serve as Handler);
    handlers[2] = Some(memory::serve as Handler);
    handlers
});

/// The handler of a number, if there is one.
pub(crate) fn handler(number: usize) -> Option<Handler> {
    HANDLERS.read().get(number).copied().flatten()
}

/// Sets or removes the handler of a number.
pub(crate) fn set_handler(number: usize, handler: Option<Handler>) {
    if let Some(place) = HANDLERS.write().get_mut(number) {
        *place = handler;
    }
}

#[cfg(test)]
mod tests;
