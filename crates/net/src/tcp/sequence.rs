//! Arithmetic on sequence numbers, which wrap. Source: RFC 9293 section 3.4.

/// Whether `a` comes before `b`.
#[inline]
pub(crate) fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// Whether `a` comes before `b` or is it.
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

/// From the first sequence number up to but not the last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u32,
    pub(crate) end: u32,
}

impl Range {
    /// How many there are; more than 2^31 makes no sense.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.end.wrapping_sub(self.start)
    }

    /// Whether all of `other` lies in it.
    #[inline]
    pub(crate) fn contains(&self, other: &Self) -> bool {
        before_or_at(self.start, other.start) && before_or_at(other.end, self.end)
    }
}
