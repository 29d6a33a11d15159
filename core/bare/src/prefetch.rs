//! Prefetch hints: these lines will be read or written soon.
//!
//! Why here: the instruction is an intrinsic. A hint never faults and never changes what a program
//! computes, so the functions are safe. Source: Intel SDM, PREFETCHh and PREFETCHW.
//!
//! ```
//! use sidecore_bare::prefetch;
//!
//! let rows: Vec<[u8; 256]> = vec![[1; 256]; 16];
//! let mut sum = 0_u64;
//! for (index, row) in rows.iter().enumerate() {
//!     // The row after next is on its way while this one is summed.
//!     if let Some(next) = rows.get(index + 2) {
//!         prefetch::for_read(next, 256);
//!     }
//!     sum += row.iter().map(|&byte| u64::from(byte)).sum::<u64>();
//! }
//! assert_eq!(sum, 16 * 256);
//! ```
#![allow(unsafe_code)] // The prefetch intrinsics.

/// Bytes that one hint covers.
pub const LINE_BYTES: usize = 64;

/// Prefetches the first `bytes_max` bytes of `memory` into this core's cache. The processor's own
/// prefetcher takes over once a stream is running, so a few KiB are enough for a large block.
#[inline]
pub fn for_read(memory: &[u8], bytes_max: usize) {
    for line in memory[..memory.len().min(bytes_max)].chunks(LINE_BYTES) {
        self::line(line.as_ptr());
    }
}

/// Asks for the line of one address.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn line(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch of any address is allowed and has no effect that a program can see.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
}

/// Nothing: no such instruction is known here.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub fn line(address: *const u8) {
    let _ = address;
}
