//! A region cut in equal slots, each handed out as an owned buffer that can travel between threads.
//!
//! Why here: a cache of decompressed frames wants all its memory at start-up, one buffer per frame,
//! moved to whichever engine fills it, and the pages of idle buffers given back to the machine.
//! Must stay true: a slot is in the free list or in exactly one [`SlotBuf`], never both; the region
//! lives as long as any of its slots. Any thread may take and drop; both take a short lock.
#![allow(unsafe_code)] // Hands out disjoint parts of a region as owned buffers.

use crate::SysError;
use crate::region::{Backing, Region, RegionOptions, page_bytes};
use rustix::io::Errno;
use rustix::mm::{self, Advice};
use sidecore_bare::width::ToUsize;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Equal slots of one region. Clones share it.
#[derive(Debug, Clone)]
pub struct Slab {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    region: Region,
    slot_bytes: usize,
    slots: usize,
    /// Free slots; the one given back last is taken first, while its memory is warm. Never grows
    /// past `slots`.
    free: Mutex<Vec<u32>>,
}

impl Slab {
    /// Maps `slots` slots of `slot_bytes` (rounded up to whole pages) each.
    ///
    /// # Errors
    /// [`SysError::Size`] for no slots, no bytes, or more than the address space; [`SysError::Map`]
    /// where memory is refused.
    pub fn new(slot_bytes: usize, slots: usize, options: RegionOptions) -> Result<Self, SysError> {
        let refuse = |rule| SysError::Size {
            what: "a slab slot",
            value: slot_bytes,
            rule,
        };
        if slot_bytes == 0 || slots == 0 {
            return Err(refuse("at least one slot of at least 1 byte"));
        }
        let count = u32::try_from(slots).map_err(|_| refuse("at most 2^32 - 1 slots"))?;
        let total = slot_bytes
            .checked_next_multiple_of(page_bytes())
            .and_then(|rounded| rounded.checked_mul(slots))
            .ok_or_else(|| refuse("all slots together fit the address space"))?;
        let region = Region::new(total, options)?;
        Ok(Self {
            shared: Arc::new(Shared {
                region,
                slot_bytes: total / slots,
                slots,
                free: Mutex::new((0..count).rev().collect()),
            }),
        })
    }

    /// Takes a slot, or `None` when all are taken. Its contents are whatever its last owner left,
    /// zeros at first.
    #[must_use]
    pub fn take(&self) -> Option<SlotBuf> {
        let index = self.shared.lock_free().pop()?;
        let offset = index.to_usize() * self.shared.slot_bytes;
        // SAFETY: `index < slots`, so the slot lies within the region.
        let start = unsafe { self.shared.region.start().add(offset) };
        Some(SlotBuf {
            start,
            index,
            shared: Arc::clone(&self.shared),
        })
    }

    /// Bytes in a slot: the requested size, rounded up to whole pages.
    #[must_use]
    pub fn slot_bytes(&self) -> usize {
        self.shared.slot_bytes
    }

    /// Number of slots, taken or free.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.shared.slots
    }

    /// Number of slots that are free at this moment.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn free_slots(&self) -> usize {
        self.shared.lock_free().len()
    }

    /// Kind of pages that back it.
    #[must_use]
    pub fn backing(&self) -> Backing {
        self.shared.region.backing()
    }

    /// True if it is locked in memory (mlock(2)).
    #[must_use]
    pub fn locked(&self) -> bool {
        self.shared.region.locked()
    }
}

impl Shared {
    fn lock_free(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        // A panic cannot happen between the list's changes, so a poisoned lock still guards a whole
        // list.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One slot, owned: a buffer of [`Slab::slot_bytes`] bytes, given back when dropped.
#[derive(Debug)]
pub struct SlotBuf {
    start: NonNull<u8>,
    index: u32,
    shared: Arc<Shared>,
}

// SAFETY: a `SlotBuf` owns its slot alone, like a `Box<[u8]>`; the rest of it is an `Arc` of a
// `Sync` type.
unsafe impl Send for SlotBuf {}
// SAFETY: through `&SlotBuf` the slot can only be read.
unsafe impl Sync for SlotBuf {}

impl SlotBuf {
    /// Makes the slot's pages present and writable, so that no thread waits for them later; its
    /// contents stay. Costs one system call, and the machine's time to find and clear the pages.
    ///
    /// # Errors
    /// The operating system's error; before Linux 5.14, that it knows no such call.
    pub fn populate(&self) -> io::Result<()> {
        let start = self.start.as_ptr().cast();
        // SAFETY: the range is this slot's own whole pages; making them present changes no
        // contents.
        unsafe { mm::madvise(start, self.shared.slot_bytes, Advice::LinuxPopulateWrite) }
            .map_err(io::Error::from)
    }

    /// Gives the slot's physical pages back to the machine and keeps the addresses: it then reads
    /// as zeros, and the next write to each page faults one in. Returns whether the machine took
    /// them: reserved huge pages are given back only by slots that are whole huge pages. Costs one
    /// system call.
    ///
    /// # Errors
    /// The operating system's error, other than that such pages cannot be given back.
    pub fn release_pages(&mut self) -> io::Result<bool> {
        let start = self.start.as_ptr().cast();
        let bytes = self.shared.slot_bytes;
        // SAFETY: the range is this slot's own whole pages, uniquely borrowed; afterwards they read
        // as zeros, which are valid bytes.
        let refused = match unsafe { mm::madvise(start, bytes, Advice::LinuxDontNeed) } {
            Ok(()) => return Ok(true),
            Err(error) => error,
        };
        if refused != Errno::INVAL {
            return Err(refused.into());
        }
        // Locked pages are refused by the plain call; Linux 5.18 has one for them.
        // SAFETY: as above.
        let locked = unsafe { libc::madvise(start, bytes, MADV_DONTNEED_LOCKED) };
        Ok(locked == 0)
    }
}

impl Deref for SlotBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the slot is mapped and initialised, and this `SlotBuf` is its only owner.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.shared.slot_bytes) }
    }
}

impl DerefMut for SlotBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.shared.slot_bytes) }
    }
}

impl Drop for SlotBuf {
    fn drop(&mut self) {
        self.shared.lock_free().push(self.index);
    }
}

/// `MADV_DONTNEED_LOCKED`, Linux 5.18 (asm-generic/mman-common.h).
const MADV_DONTNEED_LOCKED: libc::c_int = 24;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::HugePages;

    fn options(huge: HugePages, lock: bool) -> RegionOptions {
        RegionOptions {
            huge,
            lock,
            touch: true,
        }
    }

    #[test]
    fn populating_a_slot_makes_it_present_and_keeps_its_contents() {
        let untouched = RegionOptions {
            touch: false,
            ..options(HugePages::None, false)
        };
        let slab = Slab::new(4 * page_bytes(), 2, untouched).unwrap();
        let mut slot = slab.take().unwrap();
        slot[0] = 7;
        match slot.populate() {
            Ok(()) => {
                let mut present = [0_u8; 4];
                let start = slot.start.as_ptr().cast();
                // SAFETY: asks about this slot's own pages; there is a byte for each of the four.
                let asked =
                    unsafe { libc::mincore(start, slot.len(), present.as_mut_ptr().cast()) };
                assert_eq!(asked, 0);
                assert!(present.iter().all(|page| page & 1 == 1), "{present:?}");
            }
            // Before Linux 5.14.
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{error}"),
        }
        assert_eq!(slot[0], 7);
        assert!(slot[1..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn slots_are_disjoint_and_come_back() {
        let slab = Slab::new(5000, 4, options(HugePages::None, false)).unwrap();
        assert_eq!(slab.slot_bytes(), 8192);
        let mut taken: Vec<SlotBuf> = std::iter::from_fn(|| slab.take()).collect();
        assert_eq!((taken.len(), slab.free_slots()), (4, 0));
        for (number, slot) in taken.iter_mut().enumerate() {
            slot.fill(number as u8 + 1);
        }
        for (number, slot) in taken.iter().enumerate() {
            assert!(slot.iter().all(|&byte| byte == number as u8 + 1));
        }
        let last = taken.pop().map(|slot| slot.as_ptr());
        assert_eq!(
            slab.take().map(|slot| slot.as_ptr()),
            last,
            "the warm one comes first"
        );
        drop(taken);
        assert_eq!(slab.free_slots(), 4);
    }

    #[test]
    fn a_slot_outlives_its_slab_on_another_thread() {
        let slab = Slab::new(4096, 1, options(HugePages::Transparent, true)).unwrap();
        let mut slot = slab.take().unwrap();
        drop(slab);
        std::thread::spawn(move || {
            slot.fill(3);
            assert_eq!(slot[4095], 3);
        })
        .join()
        .unwrap();
    }
}
