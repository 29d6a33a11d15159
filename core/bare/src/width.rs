//! Conversions between `usize`, `u32` and `u64` that cannot lose a bit on the machines that are
//! supported.
//!
//! Why here: `From` leaves them out, because `usize` may have 16 bits somewhere. Sidecore needs
//! pointers of 64 bits (shared-memory rings and mapped images are larger than 4 GiB), which is
//! asserted once here, so that a plain `as`, which truncates silently, stands only where
//! truncation is meant.

const _: () = assert!(
    usize::BITS == 64,
    "Sidecore needs a machine with 64-bit pointers"
);

/// Lossless conversion to `u64`.
///
/// ```
/// use sidecore_bare::width::ToU64;
///
/// assert_eq!([1_u8, 2, 3].len().to_u64(), 3_u64);
/// ```
pub trait ToU64: Copy {
    /// The same number as a `u64`.
    fn to_u64(self) -> u64;
}

/// Lossless conversion to `usize`, for lengths and indices.
///
/// ```
/// use sidecore_bare::width::ToUsize;
///
/// let frames = ["a", "b", "c"];
/// let index = 2_u32;
/// assert_eq!(frames[index.to_usize()], "c");
/// ```
pub trait ToUsize: Copy {
    /// The same number as a `usize`.
    fn to_usize(self) -> usize;
}

impl ToU64 for usize {
    #[inline]
    fn to_u64(self) -> u64 {
        self as u64
    }
}

impl ToUsize for u32 {
    #[inline]
    fn to_usize(self) -> usize {
        self as usize
    }
}

impl ToUsize for u64 {
    #[inline]
    fn to_usize(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::{ToU64, ToUsize};

    #[test]
    fn the_largest_values_come_through() {
        assert_eq!(usize::MAX.to_u64(), u64::MAX);
        assert_eq!(u64::MAX.to_usize(), usize::MAX);
        assert_eq!(u32::MAX.to_usize(), 0xffff_ffff);
    }
}
