//! Sequence numbers, which wrap. Source: RFC 9293 section 3.4.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A sequence number of TCP, modulo 2^32 (RFC 9293 section 3.4).
///
/// Comparisons hold for numbers less than 2^31 apart, as those of one window are: `a < b` is true
/// if `a` comes before `b`, also across the wrap.
#[derive(Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Sequence(u32);

impl Sequence {
    /// The number with this value.
    #[inline]
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value)
    }

    /// Its value.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number that follows `len` bytes.
    #[inline]
    #[must_use]
    pub fn after(self, len: usize) -> Self {
        // Wanted: sequence numbers are counted modulo 2^32.
        Self(self.0.wrapping_add(len as u32))
    }

    /// The distance from `other`, negative if this one comes before it.
    #[inline]
    pub fn distance(self, other: Self) -> i32 {
        // As a signed number the difference is the shorter way around the circle.
        self.0.wrapping_sub(other.0).cast_signed()
    }

    /// The earlier one.
    #[inline]
    pub fn earlier(self, other: Self) -> Self {
        if self < other { self } else { other }
    }

    /// The later one.
    #[inline]
    pub fn later(self, other: Self) -> Self {
        if self < other { other } else { self }
    }
}

impl fmt::Debug for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl PartialOrd for Sequence {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.distance(*other).cmp(&0))
    }
}

impl Add<u32> for Sequence {
    type Output = Self;

    #[inline]
    fn add(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count))
    }
}

impl AddAssign<u32> for Sequence {
    #[inline]
    fn add_assign(&mut self, count: u32) {
        *self = *self + count;
    }
}

impl Sub<u32> for Sequence {
    type Output = Self;

    #[inline]
    fn sub(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count))
    }
}

impl Sub for Sequence {
    type Output = u32;

    /// Count of numbers from `earlier` to this one.
    #[inline]
    fn sub(self, earlier: Self) -> u32 {
        self.0.wrapping_sub(earlier.0)
    }
}

impl From<U32> for Sequence {
    #[inline]
    fn from(field: U32) -> Self {
        Self(field.get())
    }
}

impl From<Sequence> for U32 {
    #[inline]
    fn from(number: Sequence) -> Self {
        Self::new(number.0)
    }
}

/// Sequence numbers from `start` to before `end`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Range {
    /// The first.
    pub start: Sequence,
    /// The number after the last.
    pub end: Sequence,
}

impl Range {
    /// Count of sequence numbers; less than 2^31.
    #[inline]
    pub fn len(&self) -> u32 {
        self.end - self.start
    }

    /// True if it contains no sequence number.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// True if it contains all of `other`.
    #[inline]
    pub fn contains(&self, other: &Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_distance_hold_across_the_wrap() {
        let before = Sequence::new(u32::MAX - 1);
        let behind = before + 4;
        assert_eq!((behind.get(), behind - before), (2, 4));
        let orders = [
            before < behind,
            before <= behind,
            behind > before,
            behind >= before,
        ];
        assert_eq!(orders, [true; 4]);
        assert_eq!((before.distance(behind), behind.distance(before)), (-4, 4));
        assert_eq!(
            (before.earlier(behind), before.later(behind)),
            (before, behind)
        );
        assert_eq!(before.after(5), before + 5);
        assert_eq!(behind - 4, before);
    }

    #[test]
    fn a_range_contains_those_within_it() {
        let at = |offset: u32| Sequence::new(u32::MAX) + offset;
        let range = |start, end| Range {
            start: at(start),
            end: at(end),
        };
        assert!(range(0, 9).contains(&range(3, 9)));
        assert!(!range(0, 9).contains(&range(3, 10)));
        assert_eq!((range(2, 9).len(), range(2, 2).is_empty()), (7, true));
    }
}
