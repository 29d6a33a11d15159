//! Memory that several processes share: a sealed memfd and its mapping.
//!
//! Why here: requests cross from one process to another over such memory, and the other side is
//! untrusted: it may write anywhere in it at any time. So no reference to its plain bytes is ever
//! made. A [`SharedSlice`] is an address and a length. Its bytes are copied in and out by
//! instructions that the compiler cannot look into or repeat, and its words are atomics. The file
//! is sealed: it can be neither cut short (which would make an access a `SIGBUS`) nor grown.
//!
//! No seal prevents a process with write access from punching a hole. The hole reads as zeros, and
//! the next access takes a page for it. If the machine then has none left (`vm.overcommit_memory` =
//! 2, at its limit), that is a `SIGBUS` after all. So memory that this process made and shares for
//! writing is guarded as maps of files are ([`crate::FileMap`]): a page of zeros takes the place,
//! and [`SharedMap::damaged`] reports it.
//!
//! Must stay true: a mapping lives as long as every slice and overlay of it, by lifetime. Data is
//! read once, is plain bytes, and is checked before use. Any thread. Source: memfd_create(2),
//! fcntl(2) "File Sealing", mmap(2).
#![allow(unsafe_code)] // Maps shared memory and copies to and from it.

mod lent;
mod mapping;
mod slice;

pub use lent::LentMemory;
pub use mapping::SharedMapping;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) use slice::copy_racing;
pub use slice::{Overlay, SharedSlice};

use crate::SysError;
use crate::map::Guard;
use crate::region::page_bytes;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use sidecore_bare::width::ToU64;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Access that another process gets to the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Read and write it.
    ReadWrite,
    /// Only read it: the kernel refuses any other mapping to every holder of the descriptor.
    ReadOnly,
}

/// A mapping of a sealed memfd.
#[derive(Debug)]
pub struct SharedMap {
    start: NonNull<u8>,
    len: usize,
    file: Arc<OwnedFd>,
    writable: bool,
    locked: AtomicBool,
    guard: Option<&'static Guard>,
}

// SAFETY: the mapping belongs to this value; its bytes are only accessed by atomics and by copies
// that expect others to write at the same time.
unsafe impl Send for SharedMap {}
// SAFETY: as above.
unsafe impl Sync for SharedMap {}

impl SharedMap {
    /// Makes `bytes` (rounded up to whole pages) of zeroed memory, every page present and locked
    /// where that is allowed, to be handed to another process by [`Self::file`]. This process may
    /// write to it whatever `sharing` says.
    ///
    /// # Errors
    /// [`SysError::Size`] for 0 bytes, [`SysError::Map`] and [`SysError::Call`] where the operating
    /// system refuses; [`SysError::TooManyMaps`], [`SysError::Handler`].
    pub fn create(name: &str, bytes: usize, sharing: Sharing) -> Result<Self, SysError> {
        let map = Self::reserve(name, bytes, sharing)?;
        map.make_present();
        Ok(map)
    }

    /// The same, without its pages in this process. They exist, zeroed, for the first process that
    /// gets the memory, but every first access here costs a page fault until
    /// `Self::make_present`, which may come later. Takes half the time of [`Self::create`] or
    /// less.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn reserve(name: &str, bytes: usize, sharing: Sharing) -> Result<Self, SysError> {
        Self::reserve_in_steps(name, bytes, sharing, &mut || ())
    }

    /// The same for a thread that must not keep its core for long: `between` is called after every
    /// 256 KiB, which take some 150 us, and may sleep.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn reserve_in_steps(
        name: &str,
        bytes: usize,
        sharing: Sharing,
        between: &mut dyn FnMut(),
    ) -> Result<Self, SysError> {
        Self::make(name, bytes, sharing, Some(between))
    }

    /// The same, without pages: each comes, zeroed, with the first access to it by any process that
    /// has the memory. For two ends that trust each other, such as those of one process: that the
    /// machine has no memory left shows at an access. Takes no time worth mentioning, however large
    /// it is.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn on_demand(name: &str, bytes: usize, sharing: Sharing) -> Result<Self, SysError> {
        Self::make(name, bytes, sharing, None)
    }

    /// Makes it, with its pages in steps if there is something to do between them.
    fn make(
        name: &str,
        bytes: usize,
        sharing: Sharing,
        between: Option<&mut dyn FnMut()>,
    ) -> Result<Self, SysError> {
        let rounded = bytes.checked_next_multiple_of(page_bytes());
        let len = rounded.filter(|&len| len > 0).ok_or(SysError::Size {
            what: "shared memory",
            value: bytes,
            rule: "at least 1 byte and less than the address space",
        })?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
            // Before Linux 6.3 there is no such flag.
            .or_else(|_| rustix::fs::memfd_create(name, flags))
            .map_err(refused("memfd_create"))?;
        rustix::fs::ftruncate(&file, len.to_u64()).map_err(refused("ftruncate of a memfd"))?;
        // Now, and not at an access, is when the machine may have no memory left.
        if let Some(between) = between {
            for at in (0..len).step_by(STEP_BYTES) {
                let step = STEP_BYTES.min(len - at).to_u64();
                rustix::fs::fallocate(&file, FallocateFlags::empty(), at.to_u64(), step)
                    .map_err(refused("fallocate of a memfd"))?;
                between();
            }
        }
        let mut map = Self::map(file, len, true)?;
        if sharing == Sharing::ReadWrite {
            map.guard()?;
        }
        let mut seals = SealFlags::SHRINK | SealFlags::GROW;
        if sharing == Sharing::ReadOnly {
            // Mappings that exist stay writable: ours.
            seals |= SealFlags::FUTURE_WRITE;
        }
        rustix::fs::fcntl_add_seals(&map.file, seals | SealFlags::SEAL)
            .map_err(refused("sealing a memfd"))?;
        Ok(map)
    }

    /// Maps memory that another process made and handed over: all of it, after a look at its seals
    /// and size. Pages are made present, and locked where that is allowed.
    ///
    /// # Errors
    /// [`SysError::NotSealed`] where the other side could cut it short; [`SysError::Size`] where it
    /// is not `bytes` long; [`SysError::Map`], [`SysError::Call`].
    pub fn open(file: OwnedFd, bytes: usize, sharing: Sharing) -> Result<Self, SysError> {
        let map = Self::open_on_demand(file, bytes, sharing)?;
        map.make_present();
        Ok(map)
    }

    /// The same; pages are mapped as they are first used. Takes no time worth mentioning, however
    /// large it is.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_on_demand(file: OwnedFd, bytes: usize, sharing: Sharing) -> Result<Self, SysError> {
        check_sealed(file.as_fd(), bytes)?;
        Self::map(file, bytes, sharing == Sharing::ReadWrite)
    }

    /// Makes every page present in this process, and locks it where that is allowed. Takes some
    /// milliseconds for 16 MiB; the memory may be in use meanwhile.
    pub(crate) fn make_present(&self) {
        self.make_present_in_steps(&mut || ());
    }

    /// The same for a thread that must not keep its core for long: `between` is called after every
    /// 256 KiB, which take some 100 us, and may sleep.
    pub fn make_present_in_steps(&self, between: &mut dyn FnMut()) {
        let advice = if self.writable {
            Advice::LinuxPopulateWrite
        } else {
            Advice::LinuxPopulateRead
        };
        for at in (0..self.len).step_by(STEP_BYTES) {
            let step = STEP_BYTES.min(self.len - at);
            // A kernel before 5.14 makes pages present at their first access.
            // SAFETY: the range lies within this mapping; populating changes none of its contents.
            unsafe { mm::madvise(self.start.as_ptr().add(at).cast(), step, advice) }.ok();
            between();
        }
        // All or nothing: a part would only use up the user's lock limit.
        // SAFETY: the range is this mapping.
        let locked = unsafe { mm::mlock(self.start.as_ptr().cast(), self.len) }.is_ok();
        // Relaxed: a figure for people.
        self.locked.store(locked, Ordering::Relaxed);
    }

    /// The file, for another process that may have it for as long as it likes ([`Self::lend`]
    /// else).
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// A view of all its memory.
    #[must_use]
    pub fn slice(&self) -> SharedSlice<'_> {
        SharedSlice {
            start: self.start,
            len: self.len,
            writable: self.writable,
            life: PhantomData,
        }
    }

    /// True if it is locked in memory (mlock(2)).
    #[must_use]
    pub fn locked(&self) -> bool {
        self.locked.load(Ordering::Relaxed)
    }

    fn map(file: OwnedFd, len: usize, writable: bool) -> Result<Self, SysError> {
        let start = map_file(file.as_fd(), len, writable)?;
        Ok(Self {
            start,
            len,
            file: Arc::new(file),
            writable,
            locked: AtomicBool::new(false),
            guard: None,
        })
    }

    /// True once a page that another process took away could not be had again. Its contents are
    /// lost, and the two processes no longer see the same memory.
    #[must_use]
    pub fn damaged(&self) -> bool {
        self.guard.is_some_and(Guard::damaged)
    }

    fn guard(&mut self) -> Result<(), SysError> {
        let guard = Guard::claim()?;
        guard.arm(self.start.as_ptr().addr(), self.len, self.writable);
        self.guard = Some(guard);
        Ok(())
    }
}

/// A multiple of the page.
const STEP_BYTES: usize = 256 << 10;

impl Drop for SharedMap {
    fn drop(&mut self) {
        if let Some(guard) = self.guard {
            guard.disarm();
        }
        // SAFETY: the mapping is this value's own and no slice of it outlives it.
        unsafe { mm::munmap(self.start.as_ptr().cast(), self.len) }.ok();
        if let Some(guard) = self.guard {
            guard.free();
        }
    }
}

/// That a file is sealed and has `bytes`, no more and no less: then no access can fail.
fn check_sealed(file: BorrowedFd<'_>, bytes: usize) -> Result<(), SysError> {
    let seals = rustix::fs::fcntl_get_seals(file).map_err(refused("reading seals"))?;
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
        return Err(SysError::NotSealed);
    }
    let size = rustix::fs::fstat(file).map_err(refused("fstat"))?.st_size;
    if bytes == 0 || !usize::try_from(size).is_ok_and(|size| size == bytes) {
        return Err(SysError::Size {
            what: "shared memory",
            value: bytes,
            rule: "exactly as long as its file",
        });
    }
    Ok(())
}

fn map_file(file: BorrowedFd<'_>, len: usize, writable: bool) -> Result<NonNull<u8>, SysError> {
    let protection = if writable {
        ProtFlags::READ | ProtFlags::WRITE
    } else {
        ProtFlags::READ
    };
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let start = unsafe { mm::mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0) };
    start
        .and_then(|start| NonNull::new(start.cast::<u8>()).ok_or(rustix::io::Errno::NOMEM))
        .map_err(|source| SysError::Map {
            bytes: len,
            source: source.into(),
        })
}

fn refused(call: &'static str) -> impl Fn(rustix::io::Errno) -> SysError {
    move |source| SysError::Call {
        call,
        source: source.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn memory_on_demand_has_the_pages_that_were_written() {
        let map = SharedMap::on_demand("test-demand", 64 * page_bytes(), Sharing::ReadWrite);
        let map = map.unwrap();
        let pages = || rustix::fs::fstat(map.file()).unwrap().st_blocks * 512 / page_bytes() as i64;
        assert_eq!(pages(), 0);
        map.slice().write_at(5 * page_bytes(), &[7]);
        assert_eq!(pages(), 1);
        let copy = map.file().try_clone_to_owned().unwrap();
        let other = SharedMap::open_on_demand(copy, 64 * page_bytes(), Sharing::ReadWrite).unwrap();
        let mut byte = [0];
        other.slice().read_at(5 * page_bytes(), &mut byte);
        assert_eq!((byte, pages()), ([7], 1));
    }

    #[test]
    fn a_hole_reads_as_zeros_and_a_page_that_cannot_be_had_is_no_end() {
        use rustix::fs::FallocateFlags as How;
        let page = page_bytes();
        let map = SharedMap::create("test", 2 * page, Sharing::ReadWrite).unwrap();
        map.slice().write_at(page, &[7; 8]);
        let hole = How::PUNCH_HOLE | How::KEEP_SIZE;
        rustix::fs::fallocate(map.file(), hole, page as u64, page as u64).unwrap();
        let mut bytes = [1; 8];
        map.slice().read_at(page, &mut bytes);
        assert_eq!((bytes, map.damaged()), ([0; 8], false));
        // No seal, and cut short: as where a page is missing and memory is out.
        let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 2 * page as u64).unwrap();
        let mut map = SharedMap::map(file, 2 * page, true).unwrap();
        map.guard().unwrap();
        map.slice().write_at(0, &[7; 8]);
        rustix::fs::ftruncate(&map.file, page as u64).unwrap();
        assert!(!map.damaged());
        map.slice().write_at(page + 8, &[9; 8]);
        map.slice().read_at(page + 8, &mut bytes);
        assert_eq!((bytes, map.damaged()), ([9; 8], true));
        map.slice().read_at(0, &mut bytes);
        assert_eq!(bytes, [7; 8]);
    }

    #[test]
    fn two_mappings_are_the_same_memory_and_bounds_hold() {
        let ours = SharedMap::create("test", 10_000, Sharing::ReadWrite).unwrap();
        let len = ours.slice().len();
        assert_eq!(len, 12_288);
        let file = ours.file().try_clone_to_owned().unwrap();
        let theirs = SharedMap::open(file, len, Sharing::ReadWrite).unwrap();
        for (offset, bytes) in [(0, 1), (1, 7), (8, 64), (13, 127), (64, 128), (3, 5_000)] {
            let data: Vec<u8> = (0..bytes).map(|index| (index * 7 + offset) as u8).collect();
            ours.slice().write_at(offset, &data);
            let mut back = vec![0; bytes];
            theirs.slice().read_at(offset, &mut back);
            assert_eq!(back, data, "{bytes} bytes at {offset}");
        }
        let word: &AtomicU32 = theirs.slice().overlay(8).unwrap();
        word.store(0x0102_0304, Ordering::Release);
        assert_eq!(ours.slice().load_u64(8) as u32, 0x0102_0304);
        assert!(
            ours.slice().overlay::<AtomicU32>(9).is_none(),
            "not aligned"
        );
        assert!(
            ours.slice().overlay::<AtomicU32>(len - 3).is_none(),
            "past the end"
        );
        assert!(ours.slice().overlay::<AtomicU32>(usize::MAX).is_none());
        assert!(ours.slice().range(5..len + 1).is_none());
        let (from, to) = (6, 5);
        assert!(ours.slice().range(from..to).is_none());
        let part = ours.slice().range(100..200).unwrap();
        assert!(std::panic::catch_unwind(|| part.write_at(99, &[1, 2])).is_err());
        assert!(std::panic::catch_unwind(|| part.read_at(usize::MAX, &mut [0])).is_err());
    }

    #[test]
    fn it_can_be_neither_cut_nor_grown_nor_unsealed() {
        let map = SharedMap::create("test", 4096, Sharing::ReadWrite).unwrap();
        assert_eq!(rustix::fs::ftruncate(map.file(), 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(map.file(), 8192), Err(Errno::PERM));
        let more = rustix::fs::fcntl_add_seals(map.file(), SealFlags::WRITE);
        assert_eq!(more, Err(Errno::PERM));
        let plain = rustix::fs::memfd_create("plain", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&plain, 4096).unwrap();
        let refused = SharedMap::open(plain, 4096, Sharing::ReadWrite);
        assert!(matches!(refused, Err(SysError::NotSealed)));
        let file = map.file().try_clone_to_owned().unwrap();
        let refused = SharedMap::open(file, 8192, Sharing::ReadWrite);
        assert!(matches!(refused, Err(SysError::Size { .. })));
    }

    #[test]
    fn read_only_memory_is_read_only_for_others() {
        let ours = SharedMap::create("test", 4096, Sharing::ReadOnly).unwrap();
        let file = || ours.file().try_clone_to_owned().unwrap();
        let refused = SharedMap::open(file(), 4096, Sharing::ReadWrite);
        assert!(matches!(refused, Err(SysError::Map { .. })));
        assert!(rustix::io::write(ours.file(), b"x").is_err());
        let theirs = SharedMap::open(file(), 4096, Sharing::ReadOnly).unwrap();
        ours.slice()
            .overlay::<AtomicU32>(0)
            .unwrap()
            .store(5, Ordering::Release);
        assert_eq!(theirs.slice().load_u64(0), 5);
        assert!(theirs.slice().overlay::<AtomicU32>(0).is_none());
        let slice = theirs.slice();
        assert!(std::panic::catch_unwind(|| slice.write_at(0, &[1])).is_err());
    }
}
