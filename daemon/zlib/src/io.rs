//! The program's buffers in a `z_stream`: its input, and the room for its output.

use libc::c_uint;
use libz_rs_sys::z_stream;
use sidecore_bare::width::ToUsize;
use std::ptr;

/// A number of bytes as `avail_in` and `avail_out` have it. All that comes here is a part of what
/// such a field said, of a window of at most 32 KiB, or of a file's buffer of less than 2 GiB.
#[inline]
pub(crate) fn available(bytes: usize) -> c_uint {
    bytes as c_uint
}

/// Input that was not consumed yet.
///
/// # Safety
/// `next_in` and `avail_in` name readable memory, for as long as the slice is used.
pub(crate) unsafe fn input<'a>(stream: &z_stream) -> &'a [u8] {
    if stream.avail_in == 0 || stream.next_in.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(stream.next_in, stream.avail_in.to_usize()) }
}

/// Marks input as consumed.
pub(crate) fn consume(stream: &mut z_stream, bytes: usize) {
    debug_assert!(bytes <= stream.avail_in.to_usize(), "more than there is");
    stream.next_in = stream.next_in.wrapping_add(bytes);
    stream.avail_in -= available(bytes);
    stream.total_in = stream.total_in.wrapping_add(bytes as _);
}

/// Marks room as written.
pub(crate) fn produced(stream: &mut z_stream, bytes: usize) {
    debug_assert!(
        bytes <= stream.avail_out.to_usize(),
        "more than there is room"
    );
    stream.next_out = stream.next_out.wrapping_add(bytes);
    stream.avail_out -= available(bytes);
    stream.total_out = stream.total_out.wrapping_add(bytes as _);
}

/// Writes as many of `bytes` as there is room for; returns how many.
///
/// # Safety
/// `next_out` and `avail_out` name writable memory.
pub(crate) unsafe fn put(stream: &mut z_stream, bytes: &[u8]) -> usize {
    let count = bytes.len().min(stream.avail_out.to_usize());
    // Without room `next_out` may be NULL.
    if count > 0 {
        // SAFETY: the caller's promise; the source is ours, or input that the program keeps apart.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), stream.next_out, count) };
        produced(stream, count);
    }
    count
}

/// Gives the program's buffers to the base library's stream, and takes the rest back, with its
/// counts and its message, after `work`.
pub(crate) fn with_base<R>(
    stream: &mut z_stream,
    base: &mut z_stream,
    work: impl FnOnce(&mut z_stream) -> R,
) -> R {
    (base.next_in, base.avail_in) = (stream.next_in, stream.avail_in);
    (base.next_out, base.avail_out) = (stream.next_out, stream.avail_out);
    let result = work(base);
    // The base library's totals begin with its own stream: the program's go on by the differences.
    let (consumed, written) = (
        stream.avail_in - base.avail_in,
        stream.avail_out - base.avail_out,
    );
    (stream.next_in, stream.avail_in) = (base.next_in, base.avail_in);
    (stream.next_out, stream.avail_out) = (base.next_out, base.avail_out);
    stream.total_in = stream.total_in.wrapping_add(consumed.into());
    stream.total_out = stream.total_out.wrapping_add(written.into());
    stream.msg = base.msg;
    result
}
