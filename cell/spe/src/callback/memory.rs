//! Memory of the host for programs that allocate it (0x2102).
//!
//! A program's pointers to it have 32 bits. Where the C library gives memory above 4 GiB (in a
//! thread of a host of 64 bits), it is taken from maps below instead; the host cannot `free` that
//! itself.
//!
//! Must stay true: a block is given back to where it came from, which the table of live ones says.

use super::call::{Call, errno, set_errno};
use crate::store;
use parking_lot::Mutex;
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
    call.set_word_at(call.slots() + 12, errno() as u32);
    0
}

/// First address that a pointer of a program's cannot have.
const REACH: u64 = 1 << 32;

/// A block of memory below 4 GiB; 0, and ENOMEM, where there is none.
fn allocate(bytes: u64, alignment: u64) -> u64 {
    // SAFETY: a new block; if it is freed, no other code has its address.
    unsafe {
        let block = match alignment {
            0 => libc::malloc(bytes as usize),
            _ => libc::aligned_alloc(alignment as usize, bytes as usize),
        };
        if block.is_null() || (block as u64).saturating_add(bytes) <= REACH {
            return block as u64;
        }
        libc::free(block);
    }
    let found = LOW.lock().allocate(bytes as usize, alignment as usize);
    found.unwrap_or_else(|| {
        set_errno(libc::ENOMEM);
        0
    })
}

fn zeroed(count: u64, size: u64) -> u64 {
    let Some(bytes) = count.checked_mul(size) else {
        set_errno(libc::ENOMEM);
        return 0;
    };
    let block = allocate(bytes, 0);
    if block != 0 {
        // SAFETY: a block of `bytes` bytes.
        unsafe { std::ptr::write_bytes(block as *mut u8, 0, bytes as usize) };
    }
    block
}

fn free(block: u64) {
    if !LOW.lock().free(block as usize) {
        // SAFETY: programs free only blocks that they got, as in C.
        unsafe { libc::free(block as *mut c_void) };
    }
}

fn resize(block: u64, bytes: u64) -> u64 {
    if block == 0 {
        return allocate(bytes, 0);
    }
    let own = LOW.lock().bytes(block as usize);
    let before = own.unwrap_or_else(|| {
        // SAFETY: as in `free`.
        unsafe { libc::malloc_usable_size(block as *mut c_void) }
    });
    if bytes == 0 {
        free(block);
        return 0;
    }
    // Not by the C library's own, which may move the block above 4 GiB.
    let moved = allocate(bytes, 0);
    if moved != 0 {
        let kept = before.min(bytes as usize);
        // SAFETY: two blocks, each of that many bytes at least.
        unsafe { std::ptr::copy_nonoverlapping(block as *const u8, moved as *mut u8, kept) };
        free(block);
    }
    moved
}

/// posix_memalign: the address goes to a place of the store; gives the error's number.
fn aligned(call: &Call) -> u64 {
    let (alignment, bytes) = (call.wide(1), call.wide(2));
    if !alignment.is_power_of_two() || alignment < 4 {
        return libc::EINVAL as u64;
    }
    let block = allocate(bytes, alignment.max(16));
    set_errno(0);
    if block == 0 {
        return libc::ENOMEM as u64;
    }
    let to = call.word(0) as usize;
    call.set_words(to, &[block as u32, (block >> 32) as u32]);
    0
}

/// Blocks below 4 GiB, in sizes that are powers of two.
struct Low {
    /// Addresses of live blocks, each with the logarithm of its size.
    live: BTreeMap<usize, u32>,
    /// Free blocks by that logarithm.
    free: [Vec<usize>; SMALL_MAX as usize + 1],
}

static LOW: Mutex<Low> = Mutex::new(Low {
    live: BTreeMap::new(),
    free: [const { Vec::new() }; SMALL_MAX as usize + 1],
});
/// Blocks of 16 bytes at least; from 64 KiB on each is a map of its own.
const SMALL_MIN: u32 = 4;
const SMALL_MAX: u32 = 15;
const MAP_LOG: u32 = 16;
const DATA: i32 = libc::PROT_READ | libc::PROT_WRITE;

impl Low {
    fn allocate(&mut self, bytes: usize, alignment: usize) -> Option<u64> {
        let log = bytes.max(alignment).checked_next_power_of_two()?.ilog2();
        let log = log.max(SMALL_MIN);
        // Maps begin at multiples of 64 KiB.
        if alignment > 1 << MAP_LOG || log >= u32::BITS {
            return None;
        }
        let block = if log > SMALL_MAX {
            store::map_low(1 << log, DATA).ok()?
        } else {
            if self.free[log as usize].is_empty() {
                let map = store::map_low(1 << MAP_LOG, DATA).ok()?;
                let blocks = (map..map + (1 << MAP_LOG)).step_by(1 << log);
                self.free[log as usize].extend(blocks);
            }
            self.free[log as usize].pop()?
        };
        self.live.insert(block, log);
        Some(block as u64)
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
                self.free[log as usize].push(block);
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
            free: [const { Vec::new() }; SMALL_MAX as usize + 1],
        };
        let sizes = [1, 16, 17, 4096, 40_000, 65_536, 300_000];
        let blocks = sizes.map(|bytes| low.allocate(bytes, 0).expect("room") as usize);
        for (block, bytes) in blocks.iter().zip(sizes) {
            assert!(block + bytes <= REACH as usize);
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
        assert_eq!(low.allocate(20, 0), Some(blocks[2] as u64));
        for alignment in [32, 128, 4096, 1 << 16] {
            let block = low.allocate(10, alignment).expect("room") as usize;
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
