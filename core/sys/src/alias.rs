//! A few frames of memory mapped at many pages.
//!
//! Why here: a measurement of address translation must keep the data cache out of it. A few frames,
//! each mapped at very many addresses, need very many translations and next to no cache. Must stay
//! true: neighbouring pages are never neighbouring frames (processors merge such pairs into one
//! translation). Reading through [`AliasedMap::values`] and writing through [`AliasedMap::set`]
//! never overlap in time; their borrows see to that. Everything is unmapped when dropped. Any
//! thread. Source: memfd_create(2), mmap(2).
#![allow(unsafe_code)] // Maps memory at chosen addresses and hands it out as slices.

use crate::SysError;
use crate::region::page_bytes;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{self, MapFlags, ProtFlags};
use sidecore_bare::width::ToU64;
use std::os::fd::OwnedFd;
use std::ptr::{self, NonNull};

/// Kind of memory that backs the frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame {
    /// Small pages.
    Small,
    /// Reserved huge pages of 2 MiB.
    Huge2M,
    /// Reserved huge pages of 1 GiB.
    Huge1G,
}

impl Frame {
    /// Size of a frame in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Small => page_bytes(),
            Self::Huge2M => 2 << 20,
            Self::Huge1G => 1 << 30,
        }
    }
}

/// Options of an aliased map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AliasOptions {
    /// Kind of memory to back it with.
    pub frame: Frame,
    /// Number of frames.
    pub frames: usize,
    /// Number of pages that show the frames; `frames` or more.
    pub pages: usize,
}

/// Frames mapped at more pages than there are frames.
#[derive(Debug)]
pub struct AliasedMap {
    /// View of all pages, one after another.
    view: Mapping,
    /// Writable view of the frames, each once.
    store: Mapping,
    options: AliasOptions,
    /// Numbers in a page.
    page_values: usize,
}

impl AliasedMap {
    /// Maps `pages` pages of `frames` frames, all of them present. Blocks, about 1 us a page.
    ///
    /// # Errors
    /// [`SysError::Size`] for no frames, fewer pages than frames, or more pages than half of
    /// `vm.max_map_count`; [`SysError::Map`] where memory is refused, which for huge frames means
    /// that too few are reserved; [`SysError::Call`] where there are no memory files.
    pub fn new(options: AliasOptions) -> Result<Self, SysError> {
        let AliasOptions { frames, pages, .. } = options;
        // Each page is a map of its own; the other half is left for the process.
        let most = maps_max() / 2;
        let refuse = |rule| SysError::Size {
            what: "an aliased map",
            value: pages.saturating_mul(options.frame.bytes()),
            rule,
        };
        if frames == 0 || pages < frames {
            return Err(refuse("at least one frame, and no fewer pages than frames"));
        }
        if pages > most {
            return Err(refuse(
                "at most half as many pages as vm.max_map_count allows maps",
            ));
        }
        let bytes = options.frame.bytes();
        let view_bytes = pages
            .checked_mul(bytes)
            .ok_or_else(|| refuse("all pages together fit the address space"))?;
        let file = memory_file(options)?;
        let store = Mapping::of_file(&file, frames * bytes, bytes)?;
        // Reserved as one range first, so that no other mapping comes in between.
        let view = Mapping::reserve(view_bytes, bytes)?;
        for page in 0..pages {
            view.show(&file, page * bytes, frame_of(page, frames) * bytes, bytes)?;
        }
        Ok(Self {
            view,
            store,
            options,
            page_values: bytes / size_of::<u32>(),
        })
    }

    /// The numbers of all pages, one page after another.
    #[must_use]
    pub fn values(&self) -> &[u32] {
        let count = self.options.pages * self.page_values;
        // SAFETY: every page of the view is mapped readable for as long as self lives. The memory
        // changes only through `set`, which borrows self uniquely. No other process has the file:
        // its descriptor is closed, and its pages are zero or were written as numbers.
        unsafe { std::slice::from_raw_parts(self.view.start.as_ptr().cast(), count) }
    }

    /// Writes the number at `index` of [`Self::values`]; it changes in every page that shows the
    /// same frame.
    ///
    /// # Panics
    /// If `index` is past the end.
    #[inline]
    pub fn set(&mut self, index: usize, value: u32) {
        let (page, place) = (index / self.page_values, index % self.page_values);
        assert!(page < self.options.pages, "value {index} is past the end");
        let place = frame_of(page, self.options.frames) * self.page_values + place;
        // SAFETY: the frame is one of the store's (checked by the page), the place within it; the
        // store is mapped writable, and `&mut self` means that nothing reads meanwhile.
        unsafe {
            self.store
                .start
                .as_ptr()
                .cast::<u32>()
                .add(place)
                .write(value)
        };
    }

    /// Number of the frame that page `page` shows.
    #[must_use]
    pub fn frame_of(&self, page: usize) -> usize {
        frame_of(page, self.options.frames)
    }

    /// Options that the map was made with.
    #[must_use]
    pub fn options(&self) -> AliasOptions {
        self.options
    }
}

/// Every run of `frames` pages shows each frame once, in steps that are no neighbours, and the next
/// run begins with another one.
fn frame_of(page: usize, frames: usize) -> usize {
    // Odd and coprime to the number of frames: each round of pages visits every frame once.
    let mut step = (frames * 3 / 8).max(3) | 1;
    while common_divisor(step, frames) != 1 {
        step += 2;
    }
    (page * step + page / frames) % frames
}

fn common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Maps that a process may have.
fn maps_max() -> usize {
    std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(MAPS_MAX_DEFAULT)
}

/// Linux's default for `vm.max_map_count`.
const MAPS_MAX_DEFAULT: usize = 65_530;

fn memory_file(options: AliasOptions) -> Result<OwnedFd, SysError> {
    let huge = match options.frame {
        Frame::Small => MemfdFlags::empty(),
        Frame::Huge2M => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
        Frame::Huge1G => MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
    };
    let file = memfd_create("sidecore-alias", MemfdFlags::CLOEXEC | huge).map_err(|source| {
        SysError::Call {
            call: "memfd_create",
            source: source.into(),
        }
    })?;
    let bytes = options.frames * options.frame.bytes();
    ftruncate(&file, bytes.to_u64()).map_err(|source| refused(bytes, source))?;
    Ok(file)
}

fn refused(bytes: usize, source: rustix::io::Errno) -> SysError {
    SysError::Map {
        bytes,
        source: source.into(),
    }
}

/// A mapping of its own, unmapped when dropped.
#[derive(Debug)]
struct Mapping {
    /// Start of the aligned range within the mapping.
    start: NonNull<u8>,
    map_start: NonNull<u8>,
    map_bytes: usize,
}

// SAFETY: a mapping is memory that only its owner hands out, through borrows.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Reserves addresses without memory behind them.
    fn reserve(bytes: usize, align: usize) -> Result<Self, SysError> {
        let map_bytes = bytes
            .checked_add(align)
            .ok_or_else(|| refused(bytes, rustix::io::Errno::NOMEM))?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let mapped = unsafe {
            mm::mmap_anonymous(
                ptr::null_mut(),
                map_bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        };
        let mapped = mapped.map_err(|source| refused(bytes, source))?;
        let map_start = NonNull::new(mapped.cast::<u8>())
            .ok_or_else(|| refused(bytes, rustix::io::Errno::NOMEM))?;
        // Only the start is aligned; the rest of the reservation stays unused.
        let before = map_start.as_ptr().align_offset(align);
        // SAFETY: at most `align` bytes further, which were mapped on top of `bytes`.
        let start = unsafe { map_start.add(before) };
        Ok(Self {
            start,
            map_start,
            map_bytes,
        })
    }

    /// Maps all of a file for writing.
    fn of_file(file: &OwnedFd, bytes: usize, align: usize) -> Result<Self, SysError> {
        let mapping = Self::reserve(bytes, align)?;
        mapping.place(file, 0, 0, bytes, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok(mapping)
    }

    /// Maps `bytes` of the file, from `from` on, at `offset`, for reading.
    fn show(
        &self,
        file: &OwnedFd,
        offset: usize,
        from: usize,
        bytes: usize,
    ) -> Result<(), SysError> {
        self.place(file, offset, from, bytes, ProtFlags::READ)
    }

    fn place(
        &self,
        file: &OwnedFd,
        offset: usize,
        from: usize,
        bytes: usize,
        protection: ProtFlags,
    ) -> Result<(), SysError> {
        // SAFETY: the addresses are this mapping's own, reserved and not handed out yet; the caller
        // stays within its reservation.
        let placed = unsafe {
            mm::mmap(
                self.start.as_ptr().add(offset).cast(),
                bytes,
                protection,
                MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE,
                file,
                from.to_u64(),
            )
        };
        placed.map(drop).map_err(|source| refused(bytes, source))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is its own and no borrow of it outlives it.
        unsafe { mm::munmap(self.map_start.as_ptr().cast(), self.map_bytes) }.ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(frames: usize, pages: usize) -> AliasOptions {
        AliasOptions {
            frame: Frame::Small,
            frames,
            pages,
        }
    }

    #[test]
    fn every_page_shows_its_frame() {
        let mut map = AliasedMap::new(small(8, 100)).unwrap();
        let page_values = page_bytes() / 4;
        assert_eq!(map.values().len(), 100 * page_values);
        for page in 0..100 {
            let place = page * page_values + page;
            map.set(place, 1000 + page as u32);
            assert_eq!(map.values()[place], 1000 + page as u32);
            for other in (0..100).filter(|&other| map.frame_of(other) == map.frame_of(page)) {
                assert_eq!(map.values()[other * page_values + page], 1000 + page as u32);
            }
        }
    }

    #[test]
    fn neighbours_are_no_neighbours() {
        for frames in [4, 8, 64, 100, 128, 256] {
            for page in 0..4 * frames {
                let (this, next) = (frame_of(page, frames), frame_of(page + 1, frames));
                assert_ne!(next, this + 1, "{frames} frames, page {page}");
            }
            let mut run: Vec<_> = (0..frames).map(|page| frame_of(page, frames)).collect();
            run.sort_unstable();
            assert!(run.into_iter().eq(0..frames), "{frames}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (frames, pages) in [(0, 5), (5, 4), (4, usize::MAX)] {
            let refused = AliasedMap::new(small(frames, pages));
            assert!(matches!(refused, Err(SysError::Size { .. })));
        }
    }

    #[test]
    #[should_panic(expected = "past the end")]
    fn a_write_past_the_end_panics() {
        let mut map = AliasedMap::new(small(2, 4)).unwrap();
        let past = map.values().len();
        map.set(past, 1);
    }
}
