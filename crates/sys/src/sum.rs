//! The sum of a buffer's 32-bit words, with the widest registers that the processor has.
//!
//! Why here: the Internet checksum touches every byte of what crosses a link without hardware for
//! it, and code for wider registers than every processor has may only be called after a look at this
//! one, which the compiler cannot check. Must stay true: all ways give the same sum. Any thread.
//! Source: RFC 1071 section 2 (words may be summed in any width and order).
#![allow(unsafe_code)] // calls of functions for processors with AVX2

/// The sum of the 32-bit words of `bytes`, as they lie in memory. What does not fill a block of 16
/// bytes at the end is left out.
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

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2(bytes: &[u8]) -> u64 {
    let mut lanes = [0_u64; 16];
    let mut blocks = bytes.chunks_exact(64);
    for block in &mut blocks {
        for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(4)) {
            *lane += word_of(word);
        }
    }
    lanes.iter().sum::<u64>() + in_lanes(blocks.remainder())
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
