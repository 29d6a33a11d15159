//! Results in libfabric's convention: 0 or a number, or a negative error number.

use std::ffi::c_int;

/// The result of a call that returns an `int`.
pub(crate) fn status(outcome: Result<(), c_int>) -> c_int {
    outcome.err().unwrap_or(0)
}

/// The same for a call that returns a `ssize_t`.
pub(crate) fn long_status(outcome: Result<(), c_int>) -> isize {
    long(status(outcome))
}

/// The result of a call that returns how much it did.
pub(crate) fn amount(outcome: Result<usize, c_int>) -> isize {
    outcome.map_or_else(long, usize::cast_signed)
}

/// An error number as a `ssize_t`.
fn long(number: c_int) -> isize {
    number as isize
}
