//! Memory of the host for programs that allocate it (0x2102).
//!
//! A program's pointers to it have 32 bits. Where the C library gives memory above 4 GiB (in a
//! thread of a host of 64 bits), it is taken from maps below instead; the host cannot `free` that
//! itself.
//!
//! Must stay true: a block is given back to where it came from, which the table of live ones says.

use super::call::{Call, errno, halves, set_errno};
use crate::store;
use parking_lot::Mutex;
use sidecore_bare::width::{ToU64, ToUsize};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};

/// The handler of 0x2102.
pub(super) unsafe extern "C" fn serve(store: *mut c_void, place: c_uint) -> c_int {
    // SAFETY: called with a store's view.
    let call = unsafe { Call::new(store, place) };
    set_errno(0);
    let (first, second) = (call.wide(0), call.wide(1));
    let result = match call.operation {
        1 => zeroed(first, second),
        2 => {
            free(first);
            0
        }
        3 => allocate(first, 0),
        4 => resize(first, second),
        5 => aligned(&call),
        _ => {
            set_errno(libc::ENOSYS);
            0
        }
    };
    call.set_wide(result);
    call.set_error(errno());
    0
}

/// First address that a pointer of a program's cannot have.
const REACH: usize = 1 << 32;

/// A block of memory below 4 GiB; 0, and ENOMEM, where there is none.
fn allocate(bytes: usize, alignment: usize) -> usize {
    // SAFETY: a new block; if it is freed, no other code has its address.
    unsafe {
        let block = match alignment {
            0 => libc::malloc(bytes),
            _ => libc::aligned_alloc(alignment, bytes),
        };
        let address = block.expose_provenance();
        // A null block is malloc's own failure, with its errno.
        if block.is_null() || address.saturating_add(bytes) <= REACH {
            return address;
        }
        libc::free(block);
    }
    let found = LOW.lock().allocate(bytes, alignment);
    found.unwrap_or_else(|| {
        set_errno(libc::ENOMEM);
        0
    })
}

fn zeroed(count: usize, size: usize) -> usize {
    let Some(bytes) = count.checked_mul(size) else {
        set_errno(libc::ENOMEM);
        return 0;
    };
    let block = allocate(bytes, 0);
    if block != 0 {
        // SAFETY: a block of `bytes` bytes.
        unsafe { std::ptr::write_bytes(block as *mut u8, 0, bytes) };
    }
    block
}

fn free(block: usize) {
    if !LOW.lock().free(block) {
        // SAFETY: programs free only blocks that they got, as in C.
        unsafe { libc::free(block as *mut c_void) };
    }
}

fn resize(block: usize, bytes: usize) -> usize {
    if block == 0 {
        return allocate(bytes, 0);
    }
    let own = LOW.lock().bytes(block);
    let before = own.unwrap_or_else(|| {
        // SAFETY: as in `free`.
        unsafe { libc::malloc_usable_size(block as *mut c_void) }
    });
    // As the C library of the time did: it frees, and answers null.
    if bytes == 0 {
        free(block);
        return 0;
    }
    // Not by the C library's own, which may move the block above 4 GiB.
    let moved = allocate(bytes, 0);
    if moved != 0 {
        let kept = before.min(bytes);
        // SAFETY: two blocks, each of that many bytes at least.
        unsafe { std::ptr::copy_nonoverlapping(block as *const u8, moved as *mut u8, kept) };
        free(block);
    }
    moved
}

/// posix_memalign: the address goes to a place of the store; gives the error's number.
fn aligned(call: &Call) -> usize {
    let (alignment, bytes) = (call.wide(1), call.wide(2));
    // A program's pointers have 4 bytes, so that is its least.
    if !alignment.is_power_of_two() || alignment < 4 {
        return number(libc::EINVAL);
    }
    // aligned_alloc may refuse less than what malloc aligns to.
    let block = allocate(bytes, alignment.max(16));
    set_errno(0);
    if block == 0 {
        return number(libc::ENOMEM);
    }
    call.set_words(call.word(0), &halves(block.to_u64()));
    0
}

/// An error's number, as the result of a call.
fn number(error: i32) -> usize {
    error.cast_unsigned().to_usize()
}

/// Blocks below 4 GiB, in sizes that are powers of two.
struct Low {
    /// Addresses of live blocks, each with the logarithm of its size.
    live: BTreeMap<usize, usize>,
    /// Free blocks by that logarithm.
    free: [Vec<usize>; SMALL_MAX + 1],
}

static LOW: Mutex<Low> = Mutex::new(Low {
    live: BTreeMap::new(),
    free: [const { Vec::new() }; SMALL_MAX + 1],
});
/// Blocks of 16 bytes at least; from 64 KiB on each is a map of its own.
const SMALL_MIN: usize = 4;
const SMALL_MAX: usize = 15;
const MAP_LOG: usize = 16;
/// Logarithm of the size that no block below 4 GiB has.
const REACH_LOG: usize = 32;
const DATA: i32 = libc::PROT_READ | libc::PROT_WRITE;

impl Low {
    fn allocate(&mut self, bytes: usize, alignment: usize) -> Option<usize> {
        let whole = bytes.max(alignment).checked_next_power_of_two()?;
        let log = whole.ilog2().to_usize().max(SMALL_MIN);
        // Maps begin at multiples of 64 KiB.
        if alignment > 1 << MAP_LOG || log >= REACH_LOG {
            return None;
        }
        let block = if log > SMALL_MAX {
            store::map_low(1 << log, DATA).ok()?
        } else {
            if self.free[log].is_empty() {
                // Never given back: small blocks come and go, and their class keeps the map.
                let map = store::map_low(1 << MAP_LOG, DATA).ok()?;
                let blocks = (map..map + (1 << MAP_LOG)).step_by(1 << log);
                self.free[log].extend(blocks);
            }
            self.free[log].pop()?
        };
        self.live.insert(block, log);
        Some(block)
    }

    /// Size of a live block.
    fn bytes(&self, block: usize) -> Option<usize> {
        self.live.get(&block).map(|log| 1 << log)
    }

    /// False where it is no live block of this table.
    fn free(&mut self, block: usize) -> bool {
        match self.live.remove(&block) {
            None => false,
            Some(log) if log > SMALL_MAX => {
                // SAFETY: a map of this length, which the program gave back.
                unsafe { store::unmap_low(block, 1 << log) };
                true
            }
            Some(log) => {
                self.free[log].push(block);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_below_4_gib_do_not_overlap_and_are_used_again() {
        let mut low = Low {
            live: BTreeMap::new(),
            free: [const { Vec::new() }; SMALL_MAX + 1],
        };
        let sizes = [1, 16, 17, 4096, 40_000, 65_536, 300_000];
        let blocks = sizes.map(|bytes| low.allocate(bytes, 0).expect("room"));
        for (block, bytes) in blocks.iter().zip(sizes) {
            assert!(block + bytes <= REACH);
            assert!(low.bytes(*block).expect("live") >= bytes);
            // SAFETY: a live block of `bytes` bytes.
            unsafe { std::ptr::write_bytes(*block as *mut u8, 7, bytes) };
        }
        let ranges: Vec<_> = low
            .live
            .iter()
            .map(|(at, log)| (*at, at + (1 << log)))
            .collect();
        assert!(
            ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0),
            "{ranges:x?}"
        );
        assert!(low.free(blocks[2]) && !low.free(blocks[2]) && !low.free(blocks[3] + 16));
        assert_eq!(low.allocate(20, 0), Some(blocks[2]));
        for alignment in [32, 128, 4096, 1 << 16] {
            let block = low.allocate(10, alignment).expect("room");
            assert!(block.is_multiple_of(alignment) && low.free(block));
        }
        assert_eq!(low.allocate(10, 1 << 17), None);
        assert_eq!(low.allocate(1 << 40, 0), None);
        assert_eq!(low.allocate(usize::MAX, 0), None);
        for block in low.live.keys().copied().collect::<Vec<_>>() {
            assert!(low.free(block));
        }
    }
}
