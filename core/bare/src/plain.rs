//! Values that are the same thing as their bytes.
//!
//! Why here: a DMA moves bytes, a kernel computes on numbers. The conversion is a cast of a
//! reference, and only this module has it. Must stay true: a [`Plain`] type has no padding, no
//! invalid bit pattern and no interior mutability. So any bytes make a value of it and any value is
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
#![allow(unsafe_code)] // Reinterprets references between a plain type and bytes.

use std::mem::{align_of, size_of};

/// A type that any bytes are a value of, and whose values are all bytes.
///
/// # Safety
/// The type has no padding bytes, every bit pattern is a valid value, it holds no pointer or
/// reference, and it has no interior mutability. Its size is not zero.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

macro_rules! plain {
    ($($t:ty),*) => { $(
        // SAFETY: a primitive number: no padding, every bit pattern valid, no interior mutability.
        unsafe impl Plain for $t {}
    )* };
}
plain!(
    u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize, f32, f64
);

// SAFETY: an array has the padding (none), the validity (any) and the mutability (none) of its
// elements; the assertion in the casts below refuses a length of zero at compile time.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}

/// The bytes of a run of values.
#[inline]
#[must_use]
pub fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: `Plain` has no padding, so all bytes are initialised; the length is that of the same
    // memory.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), std::mem::size_of_val(values)) }
}

/// The bytes of a run of values, to be changed.
#[inline]
#[must_use]
pub fn bytes_of_mut<T: Plain>(values: &mut [T]) -> &mut [u8] {
    let len = std::mem::size_of_val(values);
    // SAFETY: as in `bytes_of`; any bytes that are written make valid values, and the borrow is
    // unique.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), len) }
}

/// Bytes as a run of values: `None` where they are not aligned for them or are no whole number of
/// them.
#[inline]
#[must_use]
pub fn values_of<T: Plain>(bytes: &[u8]) -> Option<&[T]> {
    let count = fitting::<T>(bytes.as_ptr(), bytes.len())?;
    // SAFETY: aligned and whole (checked), and any bytes are valid values of a `Plain` type.
    Some(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), count) })
}

/// Bytes as a run of values to be changed: `None` where they are not aligned or are no whole number
/// of them.
#[inline]
#[must_use]
pub fn values_of_mut<T: Plain>(bytes: &mut [u8]) -> Option<&mut [T]> {
    let count = fitting::<T>(bytes.as_ptr(), bytes.len())?;
    // SAFETY: aligned and whole (checked); any bytes are valid values, any values are bytes; the
    // borrow is unique.
    Some(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), count) })
}

/// Number of values of `T` in the memory, if it is aligned for them and holds a whole number.
fn fitting<T: Plain>(start: *const u8, bytes: usize) -> Option<usize> {
    const { assert!(size_of::<T>() != 0, "a plain type of no bytes") };
    // A reference to values that are not aligned would be undefined behaviour.
    let aligned = start.addr().is_multiple_of(align_of::<T>());
    (aligned && bytes.is_multiple_of(size_of::<T>())).then(|| bytes / size_of::<T>())
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
