//! A mapping without its file.

use super::SharedSlice;
use crate::SysError;
use rustix::fs::SealFlags;
use rustix::mm::{self, MapFlags, ProtFlags};
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

/// Memory of another process's, mapped here for reading and writing, of which no descriptor is kept:
/// for a library in a program whose descriptors are not its own.
#[derive(Debug)]
pub struct SharedMapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value; its bytes are only accessed by atomics and by copies
// that expect others to write at the same time.
unsafe impl Send for SharedMapping {}
// SAFETY: as above.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps `bytes` of a sealed memfd of just that length.
    ///
    /// # Errors
    /// [`SysError::NotSealed`], [`SysError::Size`], or the kernel's refusal.
    pub fn open(file: BorrowedFd<'_>, bytes: usize) -> Result<Self, SysError> {
        let seals = rustix::fs::fcntl_get_seals(file).map_err(super::refused("reading seals"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(SysError::NotSealed);
        }
        let size = rustix::fs::fstat(file).map_err(super::refused("fstat"))?;
        if bytes == 0 || !usize::try_from(size.st_size).is_ok_and(|size| size == bytes) {
            return Err(SysError::Size {
                what: "shared memory",
                value: bytes,
                rule: "exactly as long as its file",
            });
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { mm::mmap(ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0) };
        let start = start
            .and_then(|start| NonNull::new(start.cast::<u8>()).ok_or(rustix::io::Errno::NOMEM))
            .map_err(|source| SysError::Map {
                bytes,
                source: source.into(),
            })?;
        Ok(Self { start, len: bytes })
    }

    /// Its bytes.
    #[must_use]
    pub fn slice(&self) -> SharedSlice<'_> {
        SharedSlice {
            start: self.start,
            len: self.len,
            writable: true,
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
