//! Memory between inaccessible pages, for tests of unsafe decoders.

// Inaccessible pages need the memory calls of the operating system.
#![allow(unsafe_code)]

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

const PAGE: usize = 4096;

/// Usable pages between two that fault.
pub(crate) struct Guarded {
    base: *mut u8,
    bytes: usize,
}

impl Guarded {
    pub(crate) fn new(room: usize) -> Self {
        let bytes = room.next_multiple_of(PAGE) + 2 * PAGE;
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh mapping wherever the kernel likes; its first and last page are made
        // untouchable.
        unsafe {
            let base = mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags)
                .expect("pages for the test");
            mprotect(base, PAGE, MprotectFlags::empty()).expect("the first page is guarded");
            mprotect(base.byte_add(bytes - PAGE), PAGE, MprotectFlags::empty())
                .expect("the last page is guarded");
            Self {
                base: base.cast(),
                bytes,
            }
        }
    }

    /// A slice of `count` bytes that ends where the last page starts, or starts where the first one
    /// ends.
    pub(crate) fn slice(&mut self, count: usize, is_at_end: bool) -> &mut [u8] {
        assert!(count <= self.bytes - 2 * PAGE);
        let from = if is_at_end {
            self.bytes - PAGE - count
        } else {
            PAGE
        };
        // SAFETY: inside the pages that may be used, borrowed as long as `self` is.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(from), count) }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, whole; no borrow outlives `self`.
        unsafe { munmap(self.base.cast(), self.bytes).expect("our own mapping") };
    }
}
