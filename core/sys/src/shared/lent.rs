//! Shared memory that was lent to another process, and taking it back.
//!
//! Why here: memory of a memfd is charged to its creator, and lives as long as any process has a
//! descriptor or a mapping of it. A server that forgets a segment when its client hangs up can be
//! made to hold any amount. So lent memory has an open file description of its own
//! ([`SharedMap::lend`]), and the kernel says whether it is still held. It grants a write lease
//! only where no other description of the file is open, by descriptor, by mapping or in a message.
//! A descriptor opened with `O_PATH` is not counted and keeps the file alive, so
//! [`LentMemory::reclaim`] also punches all pages out. A process that opens the file anew from
//! there gets zeroed pages that the kernel charges to *that* process.
//!
//! Must stay true: pages are punched out only while the lease is held, so no process that still
//! reads the memory loses it. Any thread. Source: fcntl(2) "Leases", fallocate(2), memfd_create(2);
//! check_conflicting_open() in Linux's fs/locks.c.

use super::{SharedMap, refused};
use crate::SysError;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use sidecore_bare::width::ToU64;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

impl SharedMap {
    /// A descriptor to hand to another process: of an open file description of its own, so that
    /// [`LentMemory::reclaim`] can tell whether it is still held.
    ///
    /// # Errors
    /// [`SysError::Call`] where `/proc` is not mounted or descriptors have run out.
    pub fn lend(&self) -> Result<OwnedFd, SysError> {
        reopen(&self.file)
    }

    /// The memory without its mapping, for [`LentMemory::reclaim`] after this map is dropped.
    #[must_use]
    pub fn lent(&self) -> LentMemory {
        LentMemory {
            file: Arc::clone(&self.file),
            bytes: self.len.to_u64(),
        }
    }
}

/// Memory that may be held by another process.
#[derive(Debug)]
pub struct LentMemory {
    file: Arc<OwnedFd>,
    bytes: u64,
}

impl LentMemory {
    /// The size in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes that are present now. Holes are not.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn present_bytes(&self) -> u64 {
        rustix::fs::fstat(&*self.file).map_or(0, |found| found.st_blocks as u64 * 512)
    }

    /// Frees the pages if no other process has the memory open or mapped; whether it did. To be
    /// called after this process has unmapped it. Three or four system calls; does not wait.
    #[must_use]
    pub fn reclaim(&self) -> bool {
        // A descriptor of `memfd_create` is not counted among the writers and cannot hold a write
        // lease; one that was opened by path is and can.
        let Ok(file) = reopen(&self.file) else {
            return false;
        };
        let Some(_lease) = Lease::take(&file) else {
            return false;
        };
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, flags, 0, self.bytes).is_ok()
    }
}

/// A write lease, given up when dropped.
struct Lease<'f>(&'f OwnedFd);

impl<'f> Lease<'f> {
    /// `None` where another description of the file is open.
    #[allow(unsafe_code)] // Commands of fcntl that have no safe wrapper.
    fn take(file: &'f OwnedFd) -> Option<Self> {
        let fd = file.as_raw_fd();
        // A process that opens the file at this moment breaks the lease, and the kernel sends a
        // signal: SIGIO, which ends a process, unless another is chosen. SIGURG is ignored.
        // SAFETY: F_SETSIG and F_SETLEASE take numbers and touch no memory of this process.
        let taken = unsafe {
            libc::fcntl(fd, F_SETSIG, libc::SIGURG) == 0
                && libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) == 0
        };
        taken.then_some(Self(file))
    }
}

impl Drop for Lease<'_> {
    #[allow(unsafe_code)]
    fn drop(&mut self) {
        // SAFETY: as in `take`.
        unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }
}

fn reopen(file: &OwnedFd) -> Result<OwnedFd, SysError> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(refused("opening shared memory through /proc/self/fd"))
}

/// Of Linux's asm-generic/fcntl.h; the crate `libc` lacks it.
const F_SETSIG: libc::c_int = 10;

#[cfg(test)]
mod tests {
    use crate::{SharedMap, Sharing};
    use rustix::fs::{Mode, OFlags};
    use std::os::fd::AsRawFd;

    #[test]
    fn memory_is_reclaimed_once_nobody_has_it_open_or_mapped() {
        let bytes = 1 << 20;
        let ours = SharedMap::create("test", bytes, Sharing::ReadWrite).unwrap();
        let lent = ours.lent();
        let file = ours.lend().unwrap();
        let weak = format!("/proc/self/fd/{}", file.as_raw_fd());
        // Not counted by the lease, and keeps the file.
        let weak = rustix::fs::open(weak, OFlags::PATH, Mode::empty()).unwrap();
        let theirs = SharedMap::open(file, bytes, Sharing::ReadWrite).unwrap();
        drop(ours);
        assert!(!lent.reclaim(), "it is mapped and open");
        theirs.slice().write_at(0, b"still here");
        assert_eq!(lent.present_bytes(), bytes as u64);
        drop(theirs);
        assert!(lent.reclaim());
        assert_eq!(lent.present_bytes(), 0);
        let again = format!("/proc/self/fd/{}", weak.as_raw_fd());
        let again = rustix::fs::open(again, OFlags::RDONLY, Mode::empty()).unwrap();
        assert!(!lent.reclaim(), "it is open for reading");
        drop(again);
        assert!(lent.reclaim());
    }
}
