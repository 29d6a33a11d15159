//! A mapping without its file.

use super::SharedSlice;
use crate::SysError;
use rustix::mm;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

/// Memory of another process, mapped here without keeping a descriptor: for a library in a program
/// whose descriptors are not its own.
#[derive(Debug)]
pub struct SharedMapping {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: the mapping belongs to this value; its bytes are only accessed by atomics and by copies
// that expect others to write at the same time.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps `bytes` of a sealed memfd of just that length, for reading and writing.
    ///
    /// # Errors
    /// [`SysError::NotSealed`], [`SysError::Size`], or the kernel's refusal.
    pub fn open(file: BorrowedFd<'_>, bytes: usize) -> Result<Self, SysError> {
        Self::map(file, bytes, true)
    }

    /// The same for reading only.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_to_read(file: BorrowedFd<'_>, bytes: usize) -> Result<Self, SysError> {
        Self::map(file, bytes, false)
    }

    fn map(file: BorrowedFd<'_>, bytes: usize, writable: bool) -> Result<Self, SysError> {
        super::check_sealed(file, bytes)?;
        let start = super::map_file(file, bytes, writable)?;
        Ok(Self {
            start,
            len: bytes,
            writable,
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn slice(&self) -> SharedSlice<'_> {
        SharedSlice {
            start: self.start,
            len: self.len,
            writable: self.writable,
            life: PhantomData,
        }
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own and no slice of it outlives it.
        unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) }.ok();
    }
}
