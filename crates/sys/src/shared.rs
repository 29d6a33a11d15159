//! Memory that several processes share: a sealed memfd and its mapping.
//!
//! Why here: requests cross from one process to another over such memory, and the other side may be
//! anybody: it may write anywhere in it at any time. So no reference to its plain bytes is ever
//! made. A [`SharedSlice`] is an address and a length; its bytes are copied in and out by
//! instructions that the compiler cannot look into or repeat, and its words are atomics. The file
//! is sealed: it can be neither cut short (which would make an access a `SIGBUS`) nor grown.
//!
//! What no seal forbids who may write is to punch a hole. It reads as zeros, a page is taken for it
//! at the next access, and where the machine then has none left (`vm.overcommit_memory` = 2, at its
//! limit) that is a `SIGBUS` after all. So memory that this process made and shares for writing is
//! guarded as maps of files are ([`crate::FileMap`]): a page of zeros of its own takes the place,
//! and [`SharedMap::damaged`] says so.
//!
//! Must stay true: a mapping lives as long as every slice and overlay of it, by lifetime; what is
//! read was read once, is plain bytes, and means nothing until it was checked. Any thread. Source:
//! memfd_create(2), fcntl(2) "File Sealing", mmap(2).
#![allow(unsafe_code)] // Maps shared memory and copies to and from it.

use crate::SysError;
use crate::map::Guard;
use crate::region::page_bytes;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use std::marker::PhantomData;
use std::mem::{align_of, size_of};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// What another process may do with the memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Read and write it.
    ReadWrite,
    /// Only read it: the kernel refuses any other mapping, for whoever holds the descriptor.
    ReadOnly,
}

/// A mapping of a sealed memfd.
#[derive(Debug)]
pub struct SharedMap {
    start: NonNull<u8>,
    len: usize,
    file: OwnedFd,
    writable: bool,
    locked: bool,
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
        rustix::fs::ftruncate(&file, len as u64).map_err(refused("ftruncate of a memfd"))?;
        let mut map = Self::map(file, len, true)?;
        if sharing == Sharing::ReadWrite {
            map.guard()?;
        }
        map.touch();
        let mut seals = SealFlags::SHRINK | SealFlags::GROW;
        if sharing == Sharing::ReadOnly {
            // Mappings that exist stay writable: ours.
            seals |= SealFlags::FUTURE_WRITE;
        }
        rustix::fs::fcntl_add_seals(&map.file, seals | SealFlags::SEAL)
            .map_err(refused("sealing a memfd"))?;
        // SAFETY: the range is this mapping.
        map.locked = unsafe { mm::mlock(map.start.as_ptr().cast(), map.len) }.is_ok();
        Ok(map)
    }

    /// Maps memory that another process made and handed over: all of it, after a look at its seals
    /// and size. Pages are made present, and locked where that is allowed.
    ///
    /// # Errors
    /// [`SysError::NotSealed`] where the other side could cut it short; [`SysError::Size`] where it
    /// is not `bytes` long; [`SysError::Map`], [`SysError::Call`].
    pub fn open(file: OwnedFd, bytes: usize, sharing: Sharing) -> Result<Self, SysError> {
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(refused("reading seals"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(SysError::NotSealed);
        }
        let size = rustix::fs::fstat(&file).map_err(refused("fstat"))?.st_size;
        if bytes == 0 || !usize::try_from(size).is_ok_and(|size| size == bytes) {
            return Err(SysError::Size {
                what: "shared memory",
                value: bytes,
                rule: "exactly as long as its file",
            });
        }
        let mut map = Self::map(file, bytes, sharing == Sharing::ReadWrite)?;
        map.touch();
        // SAFETY: the range is this mapping.
        map.locked = unsafe { mm::mlock(map.start.as_ptr().cast(), map.len) }.is_ok();
        Ok(map)
    }

    /// The file, to be handed to another process.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// All of its memory.
    #[must_use]
    pub fn slice(&self) -> SharedSlice<'_> {
        SharedSlice {
            start: self.start,
            len: self.len,
            writable: self.writable,
            life: PhantomData,
        }
    }

    /// Whether it is locked in memory.
    #[must_use]
    pub fn locked(&self) -> bool {
        self.locked
    }

    fn map(file: OwnedFd, len: usize, writable: bool) -> Result<Self, SysError> {
        let protection = if writable {
            ProtFlags::READ | ProtFlags::WRITE
        } else {
            ProtFlags::READ
        };
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start =
            unsafe { mm::mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, &file, 0) };
        let start = start
            .and_then(|start| NonNull::new(start.cast::<u8>()).ok_or(rustix::io::Errno::NOMEM))
            .map_err(|source| SysError::Map {
                bytes: len,
                source: source.into(),
            })?;
        Ok(Self {
            start,
            len,
            file,
            writable,
            locked: false,
            guard: None,
        })
    }

    /// Whether a page that another process took away could not be had again. What was there is
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

    /// Makes every page present in this process. A kernel before 5.14 does it at the first access.
    fn touch(&mut self) {
        let advice = if self.writable {
            Advice::LinuxPopulateWrite
        } else {
            Advice::LinuxPopulateRead
        };
        // SAFETY: populating this mapping changes none of its contents.
        unsafe { mm::madvise(self.start.as_ptr().cast(), self.len, advice) }.ok();
    }
}

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

/// A stretch of memory that others may write to at any time.
#[derive(Clone, Copy)]
pub struct SharedSlice<'m> {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    life: PhantomData<&'m [AtomicU8]>,
}

// SAFETY: nothing but atomics and racing copies touch the memory, so any thread may.
unsafe impl Send for SharedSlice<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedSlice<'_> {}

impl<'m> SharedSlice<'m> {
    /// No bytes.
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

    /// This process's own memory, to be read.
    #[must_use]
    pub fn from_ref(bytes: &'m [u8]) -> Self {
        Self {
            start: NonNull::from(bytes).cast(),
            len: bytes.len(),
            writable: false,
            life: PhantomData,
        }
    }

    /// The first byte. Whoever makes a reference of it answers for nobody writing meanwhile.
    #[inline]
    #[must_use]
    pub fn as_ptr(self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// How many bytes.
    #[inline]
    #[must_use]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The address of the first byte, to look at its alignment.
    #[inline]
    #[must_use]
    pub fn address(self) -> usize {
        self.start.as_ptr().addr()
    }

    /// Asks for the line at `offset` to be brought into this core's cache; nothing where there is
    /// none.
    #[inline]
    pub fn prefetch(self, offset: usize) {
        if offset < self.len {
            crate::prefetch::line(self.start.as_ptr().wrapping_add(offset));
        }
    }

    /// The bytes of `range`, or `None` where it reaches past the end.
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

    /// The same memory, not to be written through this.
    #[must_use]
    pub fn read_only(self) -> Self {
        Self {
            writable: false,
            ..self
        }
    }

    /// Whether it may be written.
    #[must_use]
    pub fn is_writable(self) -> bool {
        self.writable
    }

    /// Copies from byte `offset` on into `target`. Bytes that are written meanwhile come over old,
    /// new, or mixed.
    ///
    /// # Panics
    /// Where the range reaches past the end.
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
    /// Where the range reaches past the end, or the memory is read-only.
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
        // plain memory of ours. They do not overlap, or only by a caller who lends us the same
        // memory as a slice, which `from_mut` forbids by its unique borrow.
        unsafe {
            copy_racing(
                source.as_ptr(),
                self.start.as_ptr().add(offset),
                source.len(),
            )
        }
    }

    /// The value at byte `offset` as a type made of atomics, or `None` where it does not fit, is not
    /// aligned, or the memory is read-only.
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
    /// the partner is whoever wrote it with Release.
    ///
    /// # Panics
    /// Where it does not fit or is not aligned.
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
    // SAFETY: offsets stay below `len` (loops' conditions); atomics of a byte need no alignment, the
    // word loop runs only where both sides are aligned; relaxed, because order is made by the words
    // that announce the bytes.
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

fn refused(call: &'static str) -> impl Fn(rustix::io::Errno) -> SysError {
    move |source| SysError::Call {
        call,
        source: source.into(),
    }
}

/// From how many bytes on the processor's string copy is faster than a loop of words.
#[cfg(target_arch = "x86_64")]
const STRING_COPY_BYTES_MIN: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

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
        // No seal, and cut short: as where a page is gone and memory is out.
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
