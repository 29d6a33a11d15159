//! Values that are the same thing as their bytes.
//!
//! Why here: a DMA moves bytes, a kernel computes on numbers. The conversion is a cast of a
//! reference. Must stay true: a [`Plain`] type has no padding, no invalid bit pattern and no
//! interior mutability, which `zerocopy` proves. So any bytes make a value of it and any value is
//! bytes.
//!
//! ```
//! use sidecore_bare::plain::{bytes_of, values_of};
//!
//! let bytes = bytes_of(&[1_u32, 2]);
//! assert_eq!(bytes.len(), 8);
//! assert_eq!(values_of::<u32>(bytes), Some(&[1, 2][..]));
//! // No whole number of values, nor aligned for them.
//! assert_eq!(values_of::<u32>(&bytes[1..]), None);
//! ```

use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A type that any bytes are a value of, and whose values are all bytes: primitive numbers, arrays
/// of them, and whatever derives `zerocopy`'s traits.
pub trait Plain: FromBytes + IntoBytes + Immutable + Copy + Send + Sync + 'static {}

impl<T: FromBytes + IntoBytes + Immutable + Copy + Send + Sync + 'static> Plain for T {}

/// The bytes of a run of values.
#[inline]
#[must_use]
pub fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    values.as_bytes()
}

/// The bytes of a run of values, to be changed.
#[inline]
#[must_use]
pub fn bytes_of_mut<T: Plain>(values: &mut [T]) -> &mut [u8] {
    values.as_mut_bytes()
}

/// Bytes as a run of values: `None` where they are not aligned for them or are no whole number of
/// them.
#[inline]
#[must_use]
pub fn values_of<T: Plain>(bytes: &[u8]) -> Option<&[T]> {
    <[T]>::ref_from_bytes(bytes).ok()
}

/// Bytes as a run of values to be changed: `None` where they are not aligned or are no whole number
/// of them.
#[inline]
#[must_use]
pub fn values_of_mut<T: Plain>(bytes: &mut [u8]) -> Option<&mut [T]> {
    <[T]>::mut_from_bytes(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_bytes_are_the_same_memory() {
        let mut values = [0x0102_0304_u32, 5];
        bytes_of_mut(&mut values)[0] = 0xff;
        assert_eq!(values[0].to_ne_bytes()[0], 0xff);
        assert_eq!(values_of::<u32>(bytes_of(&values)), Some(&values[..]));
        assert_eq!(
            values_of::<u32>(&bytes_of(&values)[1..5]),
            None,
            "not aligned"
        );
        assert_eq!(values_of::<u32>(&bytes_of(&values)[..3]), None, "not whole");
    }
}
