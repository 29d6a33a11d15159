//! The local store: an engine's private memory, and the buffers that a kernel cuts from it.
//!
//! Why here: a kernel's data lies together, in huge pages, locked and touched before the first
//! request, small enough to stay in the core's own cache. A kernel takes buffers from an [`Arena`];
//! none is given back before the kernel ends, as a program for the Cell laid out its store once. So
//! a forgotten buffer leaks nothing: the end of the run frees it. Must stay true: buffers never
//! overlap and cannot outlive the run, by lifetime (`'c`), without unsafe code; each starts on a
//! line of 128 bytes. A new buffer holds the last kernel's bytes.

use crate::error::StoreError;
use sidecore_sys::{Plain, Region, RegionOptions, SysError, plain};
use std::cell::Cell;
use std::ops::{Deref, DerefMut};

/// Bytes of a line: the alignment of buffers, and the size of an atomic transfer.
pub(crate) const LINE_BYTES: usize = 128;
/// Bytes of the Cell's local store, and of ours unless configured.
pub(crate) const STORE_BYTES_DEFAULT: usize = 256 << 10;

/// The memory of one engine's local store.
#[derive(Debug)]
pub struct LocalStore {
    region: Region,
    bytes: usize,
}

impl LocalStore {
    /// Maps a store of `bytes`.
    ///
    /// # Errors
    /// [`SysError`] where the memory cannot be had.
    pub fn new(bytes: usize, options: RegionOptions) -> Result<Self, SysError> {
        let region = Region::new(bytes, options)?;
        Ok(Self { region, bytes })
    }

    /// Bytes of the store.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Its memory region: page size, locked, touched.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The whole store as free memory, for one run.
    pub(crate) fn arena(&mut self) -> Arena<'_> {
        let size = self.bytes;
        Arena {
            free: Cell::new(&mut self.region.bytes_mut()[..size]),
            size,
        }
    }
}

/// The part of a local store that is still free during one run.
pub struct Arena<'c> {
    free: Cell<&'c mut [u8]>,
    size: usize,
}

impl<'c> Arena<'c> {
    /// Cuts a buffer of `count` values, aligned to 128 bytes. Its contents are unspecified.
    ///
    /// # Errors
    /// [`StoreError::Full`]; nothing is taken then.
    pub fn alloc<T: Plain>(&self, count: usize) -> Result<Buf<'c, T>, StoreError> {
        const { assert!(align_of::<T>() <= LINE_BYTES, "aligned to more than a line") };
        let free = self.free.take();
        let free_bytes = free.len();
        let wanted = count
            .checked_mul(size_of::<T>())
            // Whole lines, so that the next buffer begins on one.
            .and_then(|bytes| bytes.checked_next_multiple_of(LINE_BYTES))
            .unwrap_or(usize::MAX);
        // The store's size need not be whole lines; its last part line is never handed out.
        if wanted > free_bytes {
            self.free.set(free);
            return Err(StoreError::Full {
                wanted,
                free: free_bytes,
                size: self.size,
            });
        }
        let (taken, rest) = free.split_at_mut(wanted);
        self.free.set(rest);
        let bytes = &mut taken[..count * size_of::<T>()];
        // Lines are aligned for any plain type, so this is never empty-handed.
        let values = plain::values_of_mut(bytes).unwrap_or_default();
        Ok(Buf {
            len: values.len(),
            values,
            view: None,
        })
    }

    /// Bytes that are still free.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        let free = self.free.take();
        let bytes = free.len();
        self.free.set(free);
        bytes
    }

    /// Bytes of the whole store.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.size
    }
}

impl std::fmt::Debug for Arena<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "a store with {} of {} bytes free",
            self.free_bytes(),
            self.size
        )
    }
}

/// A buffer in the local store. It holds [`Self::capacity`] values, of which the first `len` count:
/// all of them when new, the number that was read after a get.
///
/// After a get that lent instead of copying it reads main memory; the first write to it makes the
/// copy.
#[derive(Debug)]
pub struct Buf<'c, T> {
    values: &'c mut [T],
    len: usize,
    /// Main memory that a get lent. As long as `len`, at most as long as `values`.
    view: Option<&'c [T]>,
}

impl<'c, T: Plain> Buf<'c, T> {
    /// Number of values that fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.values.len()
    }

    /// Makes the first `len` values count; those beyond the old length keep their old contents.
    ///
    /// # Panics
    /// If `len` is more than the capacity.
    pub fn set_len(&mut self, len: usize) {
        assert!(
            len <= self.values.len(),
            "a buffer of {} made {len} long",
            self.values.len()
        );
        self.own();
        self.len = len;
    }

    /// Makes the copy if main memory was lent.
    #[inline]
    fn own(&mut self) {
        // The first write makes the lent bytes the buffer's own, as after a copied get.
        if let Some(view) = self.view.take() {
            self.values[..self.len].copy_from_slice(view);
        }
    }

    #[inline]
    pub(crate) fn address(&self) -> usize {
        self.values.as_ptr().addr()
    }

    #[inline]
    pub(crate) fn into_bytes(self) -> Buf<'c, u8> {
        Buf {
            values: plain::bytes_of_mut(self.values),
            len: self.len * size_of::<T>(),
            view: self.view.map(plain::bytes_of),
        }
    }
}

impl<'c> Buf<'c, u8> {
    /// Back to the type it was made from bytes of; a length that is no whole number of values is
    /// rounded up.
    #[inline]
    pub(crate) fn into_values<T: Plain>(self) -> Buf<'c, T> {
        // Never empty-handed: the buffer was made of whole values of this type.
        let values: &mut [T] = plain::values_of_mut(self.values).unwrap_or_default();
        Buf {
            len: self.len.div_ceil(size_of::<T>()).min(values.len()),
            values,
            view: self.view.and_then(plain::values_of),
        }
    }

    /// All bytes that fit, for a get to write.
    #[inline]
    pub(crate) fn whole_mut(&mut self) -> &mut [u8] {
        // The caller overwrites all of it: a lent view would hide the new bytes.
        self.view = None;
        self.values
    }

    #[inline]
    pub(crate) fn lend(&mut self, view: &'c [u8]) {
        self.len = view.len();
        self.view = Some(view);
    }

    #[inline]
    pub(crate) fn set_filled(&mut self, len: usize) {
        self.len = len;
    }
}

impl<T: Plain> Deref for Buf<'_, T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self.view {
            Some(view) => view,
            None => &self.values[..self.len],
        }
    }
}

impl<T: Plain> DerefMut for Buf<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        self.own();
        &mut self.values[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(bytes: usize) -> LocalStore {
        LocalStore::new(bytes, RegionOptions::default()).unwrap()
    }

    #[test]
    fn buffers_are_lines_apart_and_run_out_cleanly() {
        let mut store = store(1000);
        for _ in 0..3 {
            let arena = store.arena();
            let mut first = arena.alloc::<u8>(1).unwrap();
            let mut second = arena.alloc::<u64>(17).unwrap();
            assert_eq!(first.address() % LINE_BYTES, 0);
            assert_eq!(second.address() - first.address(), 128);
            first.fill(1);
            second.fill(2);
            assert_eq!((first[0], second[16]), (1, 2));
            assert_eq!(arena.free_bytes(), 1000 - 3 * 128);
            let full = arena.alloc::<u32>(160).unwrap_err();
            assert!(
                full.to_string()
                    .contains("640 bytes wanted, 616 of 1000 are free"),
                "{full}"
            );
            assert!(arena.alloc::<u64>(usize::MAX).is_err());
            let _forgotten = arena.alloc::<u32>(128).unwrap();
            assert!(arena.alloc::<u8>(105).is_err(), "104 are left");
            assert!(arena.alloc::<u8>(0).unwrap().is_empty());
        }
    }

    #[test]
    fn a_lent_buffer_copies_at_the_first_write() {
        let mut store = store(4096);
        let arena = store.arena();
        let main = [1u32, 2, 3];
        let mut bytes = arena.alloc::<u32>(4).unwrap().into_bytes();
        bytes.lend(plain::bytes_of(&main));
        let mut buffer = bytes.into_values::<u32>();
        assert!(buffer.view.is_some());
        assert_eq!(buffer.as_ptr(), main.as_ptr());
        buffer[1] = 9;
        assert!(buffer.view.is_none());
        assert_eq!((&buffer[..], main), (&[1, 9, 3][..], [1, 2, 3]));
        assert_eq!(buffer.capacity(), 4);
        buffer.set_len(4);
        assert_eq!(buffer.len(), 4);
    }
}
