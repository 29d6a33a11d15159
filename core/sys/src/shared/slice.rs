//! A stretch of shared memory: an address and a length, and the ways to its bytes.
//!
//! Why here: this file has all permitted operations on memory that others write to at any time:
//! racing copies, and words that are atomics. Must stay true: no reference to its plain bytes is
//! made; every offset is checked against the length. Any thread.

use std::marker::PhantomData;
use std::mem::{align_of, size_of};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// A type that may be laid over shared memory: made of atomics only.
///
/// # Safety
/// `#[repr(C)]` or `#[repr(transparent)]`; every field is an atomic of the standard library, or an
/// array or a type of such; no padding matters and any bytes are a valid value.
pub unsafe trait Overlay: Sync {}

// SAFETY: an atomic of the standard library.
unsafe impl Overlay for AtomicU32 {}
// SAFETY: an atomic of the standard library.
unsafe impl Overlay for AtomicU64 {}

/// A range of memory that others may write to at any time.
#[derive(Clone, Copy)]
pub struct SharedSlice<'m> {
    pub(super) start: NonNull<u8>,
    pub(super) len: usize,
    pub(super) writable: bool,
    pub(super) life: PhantomData<&'m [AtomicU8]>,
}

// SAFETY: nothing but atomics and racing copies touch the memory, so any thread may.
unsafe impl Send for SharedSlice<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedSlice<'_> {}

impl<'m> SharedSlice<'m> {
    /// The empty slice.
    pub const EMPTY: Self = Self {
        start: NonNull::dangling(),
        len: 0,
        writable: false,
        life: PhantomData,
    };

    /// This process's own memory, uniquely borrowed: for code that works on shared memory and is
    /// now to work on this.
    #[must_use]
    pub fn from_mut(bytes: &'m mut [u8]) -> Self {
        let len = bytes.len();
        Self {
            start: NonNull::from(bytes).cast(),
            len,
            writable: true,
            life: PhantomData,
        }
    }

    /// This process's own memory, read-only.
    #[must_use]
    pub fn from_ref(bytes: &'m [u8]) -> Self {
        Self {
            start: NonNull::from(bytes).cast(),
            len: bytes.len(),
            writable: false,
            life: PhantomData,
        }
    }

    /// The first byte. A caller that makes a reference of it ensures that nothing writes meanwhile.
    #[inline]
    #[must_use]
    pub fn as_ptr(self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Length in bytes.
    #[inline]
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// True if the length is 0.
    #[inline]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Address of the first byte, for checks of its alignment.
    #[inline]
    #[must_use]
    pub fn address(self) -> usize {
        self.start.as_ptr().addr()
    }

    /// Prefetches the line at `offset` into this core's cache; does nothing beyond the end.
    #[inline]
    pub fn prefetch(self, offset: usize) {
        if offset < self.len {
            crate::prefetch::line(self.start.as_ptr().wrapping_add(offset));
        }
    }

    /// The bytes of `range`, or `None` if it reaches past the end.
    #[inline]
    #[must_use]
    pub fn range(self, range: Range<usize>) -> Option<Self> {
        if range.start > range.end || range.end > self.len {
            return None;
        }
        Some(Self {
            // SAFETY: within the memory, just checked.
            start: unsafe { self.start.add(range.start) },
            len: range.end - range.start,
            ..self
        })
    }

    /// A read-only view of the same memory.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self {
            writable: false,
            ..self
        }
    }

    /// True if it may be written.
    #[must_use]
    pub fn is_writable(self) -> bool {
        self.writable
    }

    /// Copies from byte `offset` on into `target`. Bytes that are written meanwhile come over old,
    /// new, or mixed.
    ///
    /// # Panics
    /// If the range reaches past the end.
    #[inline]
    pub fn read_at(self, offset: usize, target: &mut [u8]) {
        let end = offset.checked_add(target.len());
        assert!(
            end.is_some_and(|end| end <= self.len),
            "a read of {} bytes at {offset} of {}",
            target.len(),
            self.len
        );
        // SAFETY: the range lies within (checked), and lives for 'm; the target is ours alone.
        unsafe {
            copy_racing(
                self.start.as_ptr().add(offset),
                target.as_mut_ptr(),
                target.len(),
            )
        }
    }

    /// Copies `source` to byte `offset` on.
    ///
    /// # Panics
    /// If the range reaches past the end, or the memory is read-only.
    #[inline]
    pub fn write_at(self, offset: usize, source: &[u8]) {
        let end = offset.checked_add(source.len());
        assert!(
            self.writable && end.is_some_and(|end| end <= self.len),
            "a write of {} bytes at {offset} of {} (writable: {})",
            source.len(),
            self.len,
            self.writable
        );
        // SAFETY: the range lies within and is writable (checked), and lives for 'm; the source is
        // plain memory of ours. They overlap only if a caller lends us the same memory as a slice,
        // which `from_mut` forbids by its unique borrow.
        unsafe {
            copy_racing(
                source.as_ptr(),
                self.start.as_ptr().add(offset),
                source.len(),
            )
        }
    }

    /// Copies `count` bytes from byte `from` of `source`, which others may write to as well, to
    /// byte `offset` on.
    ///
    /// # Panics
    /// If a range reaches past its end, this memory is read-only, or the two overlap.
    #[inline]
    pub fn copy_at(self, offset: usize, source: SharedSlice<'_>, from: usize, count: usize) {
        let fits =
            |start: usize, len: usize| start.checked_add(count).is_some_and(|end| end <= len);
        assert!(
            self.writable && fits(offset, self.len) && fits(from, source.len),
            "a copy of {count} bytes at {from} of {} to {offset} of {} (writable: {})",
            source.len,
            self.len,
            self.writable
        );
        let (to, from) = (self.address() + offset, source.address() + from);
        assert!(
            to + count <= from || from + count <= to,
            "a copy between ranges that overlap"
        );
        // SAFETY: both ranges lie within, live for the call, and do not overlap (all checked);
        // the target is writable (checked).
        unsafe {
            copy_racing(
                source.start.as_ptr().add(from - source.address()),
                self.start.as_ptr().add(offset),
                count,
            )
        }
    }

    /// The value at byte `offset` as a type made of atomics, or `None` where it does not fit, is
    /// not aligned, or the memory is read-only.
    #[inline]
    #[must_use]
    pub fn overlay<T: Overlay>(self, offset: usize) -> Option<&'m T> {
        let end = offset.checked_add(size_of::<T>())?;
        let aligned = (self.address() + offset).is_multiple_of(align_of::<T>());
        if end > self.len || !aligned || !self.writable {
            return None;
        }
        // SAFETY: within the memory and aligned (checked); any bytes are a valid `T`, which is all
        // atomics, so others may write to it at any time; it lives for 'm.
        Some(unsafe { self.start.add(offset).cast::<T>().as_ref() })
    }

    /// Reads the 64-bit word at byte `offset` once; also of memory that is read-only here. Acquire:
    /// the partner is the writer's Release.
    ///
    /// # Panics
    /// If the word does not fit or is not aligned.
    #[inline]
    #[must_use]
    pub fn load_u64(self, offset: usize) -> u64 {
        let fits = offset.checked_add(8).is_some_and(|end| end <= self.len);
        let aligned = (self.address() + offset).is_multiple_of(8);
        assert!(fits && aligned, "no word at byte {offset} of {}", self.len);
        // SAFETY: within the memory and aligned (checked). An acquire load of a word is allowed on
        // memory that is mapped read-only (std::sync::atomic, "Atomic accesses to read-only
        // memory").
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
            .load(Ordering::Acquire)
    }
}

impl std::fmt::Debug for SharedSlice<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes of shared memory", self.len)
    }
}

/// Copies bytes while others may write to either side. The result is some mixture of old and new
/// bytes, never anything worse.
///
/// # Safety
/// Both ranges are mapped (`to` writable) for the whole call and do not overlap.
#[inline]
pub(crate) unsafe fn copy_racing(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= STRING_COPY_BYTES_MIN {
        // SAFETY: the caller's promise; the direction flag is clear by the calling convention. The
        // compiler cannot see through it, so a race has no meaning but the machine's.
        unsafe {
            std::arch::asm!(
                "rep movsb",
                inout("rcx") len => _,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(nostack, preserves_flags),
            );
        }
        return;
    }
    let word = size_of::<u64>();
    let mut at = 0;
    // SAFETY: offsets stay below `len` (loops' conditions); atomics of a byte need no alignment,
    // the word loop runs only where both sides are aligned; relaxed, because order is made by the
    // words that announce the bytes.
    unsafe {
        if (from.addr() | to.addr()).is_multiple_of(word) {
            while at + word <= len {
                let value = AtomicU64::from_ptr(from.add(at).cast_mut().cast());
                let target = AtomicU64::from_ptr(to.add(at).cast());
                target.store(value.load(Ordering::Relaxed), Ordering::Relaxed);
                at += word;
            }
        }
        while at < len {
            let value = AtomicU8::from_ptr(from.add(at).cast_mut());
            let target = AtomicU8::from_ptr(to.add(at));
            target.store(value.load(Ordering::Relaxed), Ordering::Relaxed);
            at += 1;
        }
    }
}

/// Size in bytes from which the processor's string copy is faster than a loop of words.
#[cfg(target_arch = "x86_64")]
const STRING_COPY_BYTES_MIN: usize = 128;
