//! A run of zeroed bytes with one owner, reached without a call to that owner.
//!
//! Why here: a pure crate works on memory that others make (in huge pages, locked, or from the
//! allocator), and must reach each byte as fast as in a slice of its own. A call through a trait
//! object for each access would cost more than the access. So the start and the length are kept
//! next to the owner, which is asked once. Must stay true: while the memory lives, the owner is
//! never reached again except to be dropped.
#![allow(unsafe_code)] // Keeps a slice next to its owner, and asks the allocator for zeroed pages.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;

/// An owner of bytes at an address of their own.
///
/// # Safety
/// [`Owner::bytes_mut`] returns the same memory at each call, wherever the owner itself is moved,
/// until it is dropped; nothing else reaches that memory meanwhile.
pub unsafe trait Owner: Send + Sync + 'static {
    /// The bytes.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// Bytes and their owner, which is dropped with them.
pub struct Memory {
    start: NonNull<u8>,
    len: usize,
    _owner: Box<dyn Owner>,
}

// SAFETY: the memory is reached only through borrows of this, and its owner may be sent.
unsafe impl Send for Memory {}
// SAFETY: as above; through `&Memory` the bytes can only be read.
unsafe impl Sync for Memory {}

impl Memory {
    /// The memory of `owner`.
    pub fn new(owner: impl Owner) -> Self {
        // Into its box first, where the bytes of an owner that holds them itself stay.
        let mut owner: Box<dyn Owner> = Box::new(owner);
        let bytes = owner.bytes_mut();
        Self {
            len: bytes.len(),
            start: NonNull::from(bytes).cast(),
            _owner: owner,
        }
    }

    /// `bytes` zeroed bytes from the allocator, aligned to `ALIGNMENT_BYTES`; none where it has
    /// no more, or for 0 bytes.
    #[must_use]
    pub fn zeroed(bytes: usize) -> Option<Self> {
        Pages::new(bytes).map(Self::new)
    }

    /// The bytes.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the owner's memory, which lives as long as self and is reached through self
        // alone.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The bytes, to be written.
    #[inline]
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("start", &self.start)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// Zeroed memory of the allocator.
struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory belongs to this alone.
unsafe impl Send for Pages {}
// SAFETY: as above; a shared borrow gives nothing out.
unsafe impl Sync for Pages {}

impl Pages {
    fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, ALIGNMENT_BYTES).ok()?;
        if bytes == 0 {
            return None;
        }
        // SAFETY: the layout's size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { start, layout })
    }
}

// SAFETY: the allocation stays where it is until the drop, and only this has its address.
unsafe impl Owner for Pages {
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: allocated with this size, zeroed, and uniquely borrowed.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and no borrow outlives self.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

/// Alignment of [`Memory::zeroed`]: a page's.
const ALIGNMENT_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn is_zeroed_aligned_and_keeps_what_is_written() {
        let mut memory = Memory::zeroed(10_000).unwrap();
        assert_eq!(memory.bytes().len(), 10_000);
        assert_eq!(memory.bytes().as_ptr().addr() % ALIGNMENT_BYTES, 0);
        assert!(memory.bytes().iter().all(|&byte| byte == 0));
        memory.bytes_mut()[9_999] = 7;
        let moved = Box::new(memory);
        assert_eq!(moved.bytes()[9_999], 7);
        assert!(Memory::zeroed(0).is_none());
        assert!(Memory::zeroed(usize::MAX).is_none());
    }

    struct Told(Box<[u8]>, Arc<AtomicBool>);

    // SAFETY: the box's bytes stay where they are, and nothing else has them.
    unsafe impl Owner for Told {
        fn bytes_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }

    impl Drop for Told {
        fn drop(&mut self) {
            self.1.store(true, Ordering::Relaxed);
        }
    }

    #[test]
    fn the_owner_goes_with_the_memory() {
        let gone = Arc::new(AtomicBool::new(false));
        let memory = Memory::new(Told(Box::new([1, 2, 3]), Arc::clone(&gone)));
        assert_eq!(memory.bytes(), [1, 2, 3]);
        assert!(!gone.load(Ordering::Relaxed));
        drop(memory);
        assert!(gone.load(Ordering::Relaxed));
    }
}
