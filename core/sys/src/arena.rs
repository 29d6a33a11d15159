//! Memory for many runs of doubles that live together, in huge pages once there are enough of them.
//!
//! Why here: data that a program reads in turn should lie together. Thousands of buffers of some
//! kilobytes each, allocated one by one, lie on as many small pages, and a walk over all of them
//! waits for the page tables; in an arena they share a few huge pages. Must stay true: a run
//! belongs to one owner and overlaps no other; no run is handed out twice; a region lives as long
//! as any of its runs. Any thread.
//!
//! ```
//! use sidecore_sys::HugePages;
//! use sidecore_sys::arena::Arena;
//!
//! let mut arena = Arena::new(HugePages::None);
//! let mut values = arena.take(100)?;
//! values[99] = 1.5;
//! assert_eq!((values.len(), values[0]), (100, 0.0));
//! assert!(values.as_ptr().addr().is_multiple_of(64), "a line's beginning");
//! # Ok::<(), sidecore_sys::SysError>(())
//! ```
#![allow(unsafe_code)] // Hands out disjoint parts of regions as owned runs.

use crate::SysError;
use crate::region::{HUGE_PAGE_BYTES, HugePages, Region, RegionOptions};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Bump allocator of memory runs; it grows region by region.
#[derive(Debug)]
pub struct Arena {
    options: RegionOptions,
    region: Option<Arc<Region>>,
    /// Bytes of the present region that are taken.
    used: usize,
    /// Bytes of the next region, unless a run needs more.
    next_bytes: usize,
}

/// An owned run of doubles, zero at first. Its memory goes back to the machine with the last run of
/// its region.
#[derive(Debug)]
pub struct Run {
    start: NonNull<f64>,
    len: usize,
    /// Holds the region, which stays mapped while the run lives.
    _region: Arc<Region>,
}

// SAFETY: a run owns its doubles alone, like a `Box<[f64]>`; the rest is an `Arc` of a `Sync` type.
unsafe impl Send for Run {}
// SAFETY: through `&Run` the doubles can only be read.
unsafe impl Sync for Run {}

impl Arena {
    /// An empty one; nothing is mapped yet. Regions of less than a huge page are of small pages
    /// whatever `huge` says.
    #[must_use]
    pub fn new(huge: HugePages) -> Self {
        Self {
            // Locked or touched memory would be taken whether it is needed or not.
            options: RegionOptions {
                huge,
                lock: false,
                touch: false,
            },
            region: None,
            used: 0,
            next_bytes: FIRST_BYTES,
        }
    }

    /// A run of `len` doubles that begins on a line of 64 bytes.
    ///
    /// # Errors
    /// [`SysError`] where memory is refused.
    pub fn take(&mut self, len: usize) -> Result<Run, SysError> {
        let bytes = len
            .checked_mul(size_of::<f64>())
            .and_then(|bytes| bytes.checked_next_multiple_of(LINE_BYTES))
            .ok_or(SysError::Size {
                what: "a run of doubles",
                value: len,
                rule: "less than the address space",
            })?;
        let present = self.region.take();
        let region = match present.filter(|region| region.len() - self.used >= bytes) {
            Some(region) => region,
            None => self.grow(bytes)?,
        };
        // SAFETY: `used + bytes` is within the region, which begins on a page.
        let start = unsafe { region.start().add(self.used) }.cast();
        self.used += bytes;
        self.region = Some(Arc::clone(&region));
        Ok(Run {
            start,
            len,
            _region: region,
        })
    }

    fn grow(&mut self, bytes: usize) -> Result<Arc<Region>, SysError> {
        let next = self.next_bytes.max(bytes);
        let mut options = self.options;
        if next < HUGE_PAGE_BYTES {
            options.huge = HugePages::None;
        }
        let region = Region::new(next, options)?;
        self.next_bytes = (2 * self.next_bytes).min(MOST_BYTES);
        self.used = 0;
        Ok(Arc::new(region))
    }
}

impl Deref for Run {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        // SAFETY: the run is mapped, zero or written (any bits are a double), and this is its only
        // owner.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Run {
    fn deref_mut(&mut self) -> &mut [f64] {
        // SAFETY: as in `deref`, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// A small user's arena is small: regions double from this to two huge pages.
const FIRST_BYTES: usize = 128 << 10;
const MOST_BYTES: usize = 2 * HUGE_PAGE_BYTES;
const LINE_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_overlap_nowhere_and_outlive_the_arena() {
        let mut arena = Arena::new(HugePages::Transparent);
        let mut runs: Vec<Run> = (0..300)
            .map(|k| arena.take(k * 7 % 2_000 + k % 3 * 50_000).unwrap())
            .collect();
        drop(arena);
        for (k, run) in runs.iter_mut().enumerate() {
            assert_eq!(run.as_ptr() as usize % LINE_BYTES, 0);
            assert!(run.iter().all(|value| *value == 0.0), "run {k} is not new");
            run.fill(k as f64);
        }
        for (k, run) in runs.iter().enumerate() {
            assert!(run.iter().all(|value| *value == k as f64), "run {k}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_and_what_can_still_is() {
        let mut arena = Arena::new(HugePages::None);
        assert!(arena.take(usize::MAX).is_err());
        assert!(arena.take(1 << 58).is_err());
        assert_eq!(arena.take(3).unwrap().len(), 3);
        assert_eq!(arena.take(0).unwrap().len(), 0);
    }
}
