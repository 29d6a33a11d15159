//! Page-aligned anonymous memory, in huge pages where the machine has them, locked and touched
//! before use.
//!
//! Why here: the papers lost two orders of magnitude on local stores and buffers that were mapped
//! or faulted on the way of a request. A [`Region`] is made once, at start-up, and reports its
//! properties rather than fail: a machine without reserved huge pages or with a small lock limit
//! still works, only slower. Must stay true: the memory is zero when new, belongs to one owner, and
//! is unmapped when dropped. Any thread. Source: mmap(2), madvise(2), mlock(2),
//! Documentation/admin-guide/mm/{hugetlbpage,transhuge}.rst.
//!
//! ```
//! use sidecore_sys::region::page_bytes;
//! use sidecore_sys::{HugePages, Region, RegionOptions};
//!
//! let options = RegionOptions {
//!     huge: HugePages::None,
//!     lock: false,
//!     touch: true,
//! };
//! let mut region = Region::new(3 * page_bytes(), options)?;
//! region.bytes_mut()[0] = 1;
//! assert!(region.touched() && region.len() >= 3 * page_bytes());
//! # Ok::<(), sidecore_sys::SysError>(())
//! ```
#![allow(unsafe_code)] // Maps memory and hands it out as slices.

use crate::SysError;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use sidecore_bare::{Memory, Owner};
use std::ptr::{self, NonNull};

/// A huge page on the machines this runs on.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Kinds of huge pages to try, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HugePages {
    /// Reserved ones first (`vm.nr_hugepages`), then transparent ones, then small pages.
    Reserved,
    /// Transparent ones, then small pages.
    #[default]
    Transparent,
    /// Small pages only.
    None,
}

/// Kind of pages that back a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// Reserved huge pages of 2 MiB.
    Hugetlb,
    /// Aligned to 2 MiB and advised to be huge; whether it is, only the kernel knows.
    Transparent,
    /// Small pages.
    Small,
}

/// Options of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionOptions {
    /// Kinds of huge pages to try.
    pub huge: HugePages,
    /// Lock the memory (mlock(2)); a refusal is reported, not an error.
    pub lock: bool,
    /// Make every page present before the first use.
    pub touch: bool,
}

impl Default for RegionOptions {
    fn default() -> Self {
        Self {
            huge: HugePages::Transparent,
            lock: true,
            touch: true,
        }
    }
}

/// An owned run of zeroed, page-aligned memory.
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    /// The mapped range, which contains `start..start + len`.
    map_start: NonNull<u8>,
    map_bytes: usize,
    backing: Backing,
    locked: bool,
    touched: bool,
}

// SAFETY: a region owns its memory alone and gives it out only through borrows of itself, like a
// `Box<[u8]>`.
unsafe impl Send for Region {}
// SAFETY: as above; through `&Region` the memory can only be read.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `bytes` (rounded up to whole pages) of zeroed memory. Blocks while pages are touched:
    /// about 0.1 ms per MiB.
    ///
    /// # Errors
    /// [`SysError::Size`] for 0 bytes, [`SysError::Map`] where even small pages are refused.
    pub fn new(bytes: usize, options: RegionOptions) -> Result<Self, SysError> {
        let rounded = bytes.checked_next_multiple_of(page_bytes());
        let len = rounded.filter(|&len| len > 0).ok_or(SysError::Size {
            what: "a region",
            value: bytes,
            rule: "at least 1 byte and less than the address space",
        })?;
        let mut region = Self::map(len, options.huge)?;
        if options.touch {
            region.touch();
        }
        if options.lock {
            // SAFETY: the range is this region's own mapping.
            region.locked =
                unsafe { mm::mlock(region.map_start.as_ptr().cast(), region.map_bytes) }.is_ok();
        }
        Ok(region)
    }

    /// The memory, for reading.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: `start..start + len` is mapped readable, initialised (zero or written), and lives
        // as long as self.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// The memory, for writing.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, mapped writable, and `&mut self` makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Usable bytes: the requested size, rounded up to whole pages.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a region is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Kind of pages that back it.
    #[must_use]
    pub fn backing(&self) -> Backing {
        self.backing
    }

    /// True if it is locked in memory (mlock(2)).
    #[must_use]
    pub fn locked(&self) -> bool {
        self.locked
    }

    /// True if every page was made present when the region was made.
    #[must_use]
    pub fn touched(&self) -> bool {
        self.touched
    }

    /// The address of its first byte, for [`crate::slab`].
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn map(len: usize, huge: HugePages) -> Result<Self, SysError> {
        if huge == HugePages::Reserved {
            // hugetlbfs takes whole pages only; the rest of the last one is lost.
            let map_bytes = len.next_multiple_of(HUGE_PAGE_BYTES);
            let flags = MapFlags::PRIVATE | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
            if let Ok(map_start) = map_anonymous(map_bytes, flags) {
                return Ok(Self::mapped(
                    map_start,
                    map_start,
                    len,
                    map_bytes,
                    Backing::Hugetlb,
                ));
            }
        }
        if huge != HugePages::None
            && let Some(region) = Self::map_transparent(len)
        {
            return Ok(region);
        }
        let map_start = map_anonymous(len, MapFlags::PRIVATE).map_err(|source| SysError::Map {
            bytes: len,
            source: source.into(),
        })?;
        if huge == HugePages::None {
            // Where the kernel makes everything huge by itself. One without huge pages refuses.
            // SAFETY: the advice is on this mapping only and changes none of its contents.
            unsafe { mm::madvise(map_start.as_ptr().cast(), len, Advice::LinuxNoHugepage) }.ok();
        }
        Ok(Self::mapped(map_start, map_start, len, len, Backing::Small))
    }

    /// Maps enough to find an aligned start in it, unmaps the rest, and asks for huge pages. Small
    /// regions are rounded up to a whole huge page of addresses so that one can be used at all.
    fn map_transparent(len: usize) -> Option<Self> {
        let huge_bytes = len.checked_next_multiple_of(HUGE_PAGE_BYTES)?;
        // Larger by a page, to cut an aligned range out of it.
        let wide_bytes = huge_bytes.checked_add(HUGE_PAGE_BYTES)?;
        let wide = map_anonymous(wide_bytes, MapFlags::PRIVATE).ok()?;
        let before = wide.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: an aligned address lies within the first huge page's worth of the mapping.
        let start = unsafe { wide.add(before) };
        // SAFETY: both ends are parts of the mapping just made that nothing refers to; lengths are
        // whole pages.
        unsafe {
            if before > 0 {
                mm::munmap(wide.as_ptr().cast(), before).ok();
            }
            let after = wide_bytes - before - huge_bytes;
            if after > 0 {
                mm::munmap(start.as_ptr().add(huge_bytes).cast(), after).ok();
            }
        }
        // SAFETY: the advice is on this mapping only and changes none of its contents.
        let advised =
            unsafe { mm::madvise(start.as_ptr().cast(), huge_bytes, Advice::LinuxHugepage) };
        let backing = if advised.is_ok() {
            Backing::Transparent
        } else {
            Backing::Small
        };
        Some(Self::mapped(start, start, len, huge_bytes, backing))
    }

    fn mapped(
        start: NonNull<u8>,
        map_start: NonNull<u8>,
        len: usize,
        map_bytes: usize,
        backing: Backing,
    ) -> Self {
        Self {
            start,
            len,
            map_start,
            map_bytes,
            backing,
            locked: false,
            touched: false,
        }
    }

    /// Makes every page present: in one call where the kernel has it (5.14), else by writing to
    /// each.
    fn touch(&mut self) {
        // SAFETY: populating this region's own memory changes none of its contents.
        let populated = unsafe {
            mm::madvise(
                self.start.as_ptr().cast(),
                self.len,
                Advice::LinuxPopulateWrite,
            )
        };
        if populated.is_err() {
            let page = page_bytes();
            for first in self.bytes_mut().iter_mut().step_by(page) {
                // SAFETY: a write of a byte that is uniquely borrowed; volatile so that it is not
                // optimised away.
                unsafe { ptr::write_volatile(first, 0) };
            }
        }
        self.touched = true;
    }
}

// SAFETY: the mapping stays where it is until the drop, and only the region has its address.
unsafe impl Owner for Region {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

impl From<Region> for Memory {
    fn from(region: Region) -> Self {
        Self::new(region)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this region's own and no borrow of it outlives the region.
        unsafe { mm::munmap(self.map_start.as_ptr().cast(), self.map_bytes) }.ok();
    }
}

/// Bytes in a small page.
#[must_use]
pub fn page_bytes() -> usize {
    rustix::param::page_size()
}

fn map_anonymous(bytes: usize, flags: MapFlags) -> rustix::io::Result<NonNull<u8>> {
    // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
    let start = unsafe {
        mm::mmap_anonymous(
            ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            flags,
        )
    }?;
    NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_zeroed_aligned_and_writable() {
        for huge in [HugePages::Reserved, HugePages::Transparent, HugePages::None] {
            for touch in [false, true] {
                let options = RegionOptions {
                    huge,
                    lock: true,
                    touch,
                };
                let mut region = Region::new(300_000, options).unwrap();
                assert_eq!(region.len(), 303_104);
                assert_eq!(region.touched(), touch);
                assert!(region.bytes().iter().all(|&byte| byte == 0));
                assert_eq!(region.bytes().as_ptr().addr() % page_bytes(), 0);
                if region.backing() != Backing::Small {
                    assert_eq!(region.bytes().as_ptr().addr() % HUGE_PAGE_BYTES, 0);
                }
                region.bytes_mut().fill(7);
                assert!(region.bytes().iter().all(|&byte| byte == 7));
            }
        }
    }

    #[test]
    fn nothing_and_everything_are_refused() {
        let refused = Region::new(0, RegionOptions::default());
        assert!(matches!(refused, Err(SysError::Size { .. })));
        let refused = Region::new(usize::MAX, RegionOptions::default());
        assert!(matches!(refused, Err(SysError::Size { .. })));
        let refused = Region::new(1 << 60, RegionOptions::default());
        assert!(matches!(refused, Err(SysError::Map { .. })));
    }
}
