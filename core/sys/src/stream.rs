//! Copies to shared memory that go past this core's cache, and the fence behind them.
//!
//! Why here: after an ordinary copy, data that one core writes and another reads next is in the
//! wrong place, the writer's cache. If the two share no level of it, every line that is written
//! again must first be fetched back from the reader, line by line. A streamed line goes to memory
//! instead, whole, and nothing is fetched for it. Must stay true: lines are written whole;
//! [`fence_streamed`] comes before the word that announces them. Any thread. Source: AMD64
//! Architecture Programmer's Manual, volume 4, MOVNTDQ; volume 3, SFENCE.
//!
//! ```
//! use sidecore_sys::{SharedMap, Sharing, stream};
//!
//! let map = SharedMap::create("example", 4096, Sharing::ReadWrite)?;
//! map.slice().stream_at(64, &[b"head ", b"and body"]);
//! // Before anything that tells the reader.
//! stream::fence_streamed();
//! let mut read = [0; 13];
//! map.slice().read_at(64, &mut read);
//! assert_eq!(&read, b"head and body");
//! # Ok::<(), sidecore_sys::SysError>(())
//! ```
#![allow(unsafe_code)] // Racing copies to shared memory, and the fence instruction.

use crate::prefetch::LINE_BYTES;
use crate::shared::SharedSlice;

impl SharedSlice<'_> {
    /// Copies `pieces`, one after the other, to byte `offset` on, past this core's cache, and fills
    /// the last line with zeros. For data that another core reads next and this one does not.
    ///
    /// # Panics
    /// If `offset` is not at a line's beginning, the lines reach past the end, or the memory is
    /// read-only.
    #[inline]
    pub fn stream_at(self, offset: usize, pieces: &[&[u8]]) {
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        let end = bytes
            .checked_next_multiple_of(LINE_BYTES)
            .and_then(|bytes| offset.checked_add(bytes));
        assert!(
            self.is_writable()
                && end.is_some_and(|end| end <= self.len())
                && (self.address() + offset).is_multiple_of(LINE_BYTES),
            "{bytes} bytes streamed to {offset} of {} (writable: {})",
            self.len(),
            self.is_writable()
        );
        let put = |at: usize, lines: &[u8]| {
            // SAFETY: whole lines from `offset` on up to `end`, which lie within, are writable,
            // begin at a line (checked) and live as long as the slice; the source is plain memory
            // of ours, apart from it as in `write_at`.
            unsafe { stream_lines(lines.as_ptr(), self.as_ptr().add(at), lines.len()) }
        };
        // A line that several pieces share is put together here first.
        let mut line = [0; LINE_BYTES];
        let (mut at, mut held) = (offset, 0);
        for &piece in pieces {
            let mut piece = piece;
            if held > 0 {
                let (first, rest) = piece.split_at(piece.len().min(LINE_BYTES - held));
                line[held..held + first.len()].copy_from_slice(first);
                held += first.len();
                piece = rest;
                if held < LINE_BYTES {
                    continue;
                }
                put(at, &line);
                at += LINE_BYTES;
            }
            let (whole, rest) = piece.split_at(piece.len() / LINE_BYTES * LINE_BYTES);
            put(at, whole);
            at += whole.len();
            line[..rest.len()].copy_from_slice(rest);
            held = rest.len();
        }
        if held > 0 {
            line[held..].fill(0);
            put(at, &line);
        }
    }
}

/// Store fence: writes of [`SharedSlice::stream_at`] arrive before any later store; an ordinary
/// one, even with Release, may otherwise arrive earlier.
#[inline]
pub fn fence_streamed() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: orders stores and does nothing else; SSE is part of x86-64.
    unsafe {
        std::arch::asm!("sfence", options(nostack, preserves_flags));
    }
}

/// Copies whole lines past this core's cache while others may read or write them.
///
/// # Safety
/// Both ranges are mapped (`to` writable) for the whole call and do not overlap; `to` is at a
/// line's beginning and `len` a multiple of [`LINE_BYTES`].
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn stream_lines(from: *const u8, to: *mut u8, len: usize) {
    for at in (0..len).step_by(LINE_BYTES) {
        // SAFETY: the caller's promise: 64 bytes from `at` on lie within both, and `to` is aligned.
        // The compiler cannot see through it, so a race has no meaning but the machine's. SSE2 is
        // part of x86-64.
        unsafe {
            std::arch::asm!(
                "movdqu {a}, [{from}]",
                "movdqu {b}, [{from} + 16]",
                "movdqu {c}, [{from} + 32]",
                "movdqu {d}, [{from} + 48]",
                "movntdq [{to}], {a}",
                "movntdq [{to} + 16], {b}",
                "movntdq [{to} + 32], {c}",
                "movntdq [{to} + 48], {d}",
                from = in(reg) from.add(at),
                to = in(reg) to.add(at),
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// As above, with ordinary stores: no others are known here.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn stream_lines(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { crate::shared::copy_racing(from, to, len) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{SharedMap, Sharing};

    #[test]
    fn pieces_of_any_length_arrive_one_behind_the_other() {
        let map = SharedMap::create("test", 4096, Sharing::ReadWrite).unwrap();
        let bytes: Vec<u8> = (0..1000_u32)
            .map(|at| (at * 7 + at / 256 + 1) as u8)
            .collect();
        for lengths in [
            [0, 0, 0],
            [1, 0, 0],
            [16, 48, 0],
            [16, 66, 0],
            [16, 66, 1448 / 2],
            [82, 0, 129],
            [63, 1, 64],
            [3, 5, 55],
            [64, 128, 192],
            [0, 700, 1],
        ] {
            map.slice().write_at(0, &[0xee; 2048]);
            let mut rest = &bytes[..];
            let pieces = lengths.map(|len| {
                let (piece, others) = rest.split_at(len);
                rest = others;
                piece
            });
            map.slice().stream_at(128, &pieces);
            fence_streamed();
            let len: usize = lengths.iter().sum();
            let mut read = vec![0; 1024];
            map.slice().read_at(0, &mut read);
            let end = 128 + len.next_multiple_of(LINE_BYTES);
            assert!(read[..128].iter().all(|&byte| byte == 0xee));
            assert_eq!(read[128..128 + len], bytes[..len], "{lengths:?}");
            assert!(read[128 + len..end].iter().all(|&byte| byte == 0));
            assert!(read[end..].iter().all(|&byte| byte == 0xee));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let map = SharedMap::create("test", 4096, Sharing::ReadWrite).unwrap();
        let slice = map.slice().range(0..200).unwrap();
        for (offset, len) in [(8, 1), (192, 1), (64, 129), (usize::MAX - 63, 64)] {
            let bytes = vec![1; len];
            let streamed = std::panic::catch_unwind(|| slice.stream_at(offset, &[&bytes]));
            assert!(streamed.is_err(), "{len} bytes at {offset}");
        }
        assert!(std::panic::catch_unwind(|| slice.read_only().stream_at(0, &[&[1]])).is_err());
    }
}
