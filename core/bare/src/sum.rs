//! The sum of a buffer's 32-bit words, with the widest registers that the processor has.
//!
//! Why here: the Internet checksum touches every byte that crosses a link without hardware for it.
//! Code for wider registers than every processor has may only be called after a check of this
//! processor, which the compiler cannot do. Must stay true: all paths give the same sum. Any
//! thread.
//! Source: RFC 1071 section 2 (words may be summed in any width and order).
//!
//! ```
//! use sidecore_bare::{plain::bytes_of, sum};
//!
//! let words = [u32::MAX, 1, 2, 3];
//! // Wider than the words: nothing is lost to a carry.
//! assert_eq!(sum::of_words(bytes_of(&words)), u64::from(u32::MAX) + 6);
//! ```
#![allow(unsafe_code)] // loads into registers, and calls of functions for processors with AVX2

/// The sum of the 32-bit words of `bytes`, as they lie in memory. An incomplete block of 16 bytes
/// at the end is left out.
#[inline]
#[must_use]
pub fn of_words(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if bytes.len() >= WIDE_BYTES_MIN && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: this processor has AVX2.
        return unsafe { with_avx2(bytes) };
    }
    in_lanes(bytes)
}

/// Eight words at a time: those at even places and those at odd ones have four lanes of 64 bits
/// each. Two of each, so that no addition waits for the one before it.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2(bytes: &[u8]) -> u64 {
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi64, _mm256_and_si256, _mm256_loadu_si256, _mm256_set1_epi64x,
        _mm256_setzero_si256, _mm256_srli_epi64, _mm256_storeu_si256,
    };
    let even = _mm256_set1_epi64x(0xffff_ffff);
    // Four sums of their own: no addition waits for the one before.
    let mut sums = [_mm256_setzero_si256(); 4];
    let (blocks, rest) = bytes.as_chunks::<64>();
    for block in blocks {
        let (first, second) = block.split_at(32);
        // SAFETY: each half is 32 bytes long; the instruction needs no alignment.
        let [a, b] = [first, second]
            .map(|half| unsafe { _mm256_loadu_si256(half.as_ptr().cast::<__m256i>()) });
        sums[0] = _mm256_add_epi64(sums[0], _mm256_and_si256(a, even));
        sums[1] = _mm256_add_epi64(sums[1], _mm256_srli_epi64::<32>(a));
        sums[2] = _mm256_add_epi64(sums[2], _mm256_and_si256(b, even));
        sums[3] = _mm256_add_epi64(sums[3], _mm256_srli_epi64::<32>(b));
    }
    let [a, b, c, d] = sums;
    let sum = _mm256_add_epi64(_mm256_add_epi64(a, b), _mm256_add_epi64(c, d));
    let mut lanes = [0_u64; 4];
    // SAFETY: the target is 32 bytes long; the instruction needs no alignment.
    unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast::<__m256i>(), sum) };
    lanes.iter().sum::<u64>() + in_lanes(rest)
}

#[inline(always)]
fn in_lanes(bytes: &[u8]) -> u64 {
    // Four lanes, so that the compiler adds them side by side.
    let mut lanes = [0_u64; 4];
    for block in bytes.chunks_exact(16) {
        for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(4)) {
            *lane += word_of(word);
        }
    }
    lanes.iter().sum()
}

#[inline(always)]
fn word_of(bytes: &[u8]) -> u64 {
    let mut four = [0; 4];
    four.copy_from_slice(bytes);
    u64::from(u32::from_ne_bytes(four))
}

/// Below this a look at the processor costs more than wide registers gain.
#[cfg(target_arch = "x86_64")]
const WIDE_BYTES_MIN: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_and_narrow_registers_agree() {
        let bytes: Vec<u8> = (0..5000_u32)
            .map(|at| (at * 167 + at / 256) as u8)
            .collect();
        for len in [0, 15, 16, 255, 256, 257, 300, 1448, 1460, 4999, 5000] {
            for start in [0, 1, 7] {
                let bytes = &bytes[start..len.max(start)];
                let words = bytes[..bytes.len() / 16 * 16].chunks_exact(4);
                let expected: u64 = words.map(word_of).sum();
                assert_eq!(of_words(bytes), expected, "{len} bytes from {start}");
            }
        }
    }
}
