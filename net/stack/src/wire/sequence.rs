//! Arithmetic on sequence numbers, which wrap. Source: RFC 9293 section 3.4.

/// True if `a` comes before `b`, modulo 2^32 (RFC 9293 section 3.4).
#[inline]
pub(crate) fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// True if `a` comes before `b` or equals it.
#[inline]
pub(crate) fn before_or_at(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) <= 0
}

/// The earlier one.
#[inline]
pub(crate) fn earlier(a: u32, b: u32) -> u32 {
    if before(a, b) { a } else { b }
}

/// The later one.
#[inline]
pub(crate) fn later(a: u32, b: u32) -> u32 {
    if before(a, b) { b } else { a }
}

/// Sequence numbers from `start` to before `end`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub start: u32,
    /// The number after the last.
    pub end: u32,
}

impl Range {
    /// Count of sequence numbers; less than 2^31.
    #[inline]
    pub fn len(&self) -> u32 {
        self.end.wrapping_sub(self.start)
    }

    /// True if it contains no sequence number.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// True if it contains all of `other`.
    #[inline]
    pub fn contains(&self, other: &Self) -> bool {
        before_or_at(self.start, other.start) && before_or_at(other.end, self.end)
    }
}
