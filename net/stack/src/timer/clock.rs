//! Comparison of clock readings that wrap: the microseconds and milliseconds of
//! [`Common`](crate::shared::Common), and the timestamps of RFC 7323.
//!
//! Must stay true: the two readings are less than half of the clock's range apart.

/// True if the reading `a` is earlier than `b`.
#[inline]
pub(crate) fn before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

/// True if `a` is earlier than `b`, or the same.
#[inline]
pub(crate) fn before_or_at(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() <= 0
}
