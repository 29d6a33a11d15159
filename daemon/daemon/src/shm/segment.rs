//! A client's segment as the client sees it: pairs to call with, and an arena of buffers.
//!
//! Why here: results come without a copy, so a buffer that a kernel puts to lies in memory that the
//! daemon also maps. Must stay true: a [`Lease`] is the only way to the bytes of its stretch, and
//! the daemon writes to a stretch only while a request that names it as an output is unanswered. A
//! request that was given up is never answered: a caller that gives one up never looks at its
//! output leases again, but to free them with the whole segment (`client/mod.rs` keeps that rule).
//! Nor does any other: from then on the arena gives nothing out and takes nothing back, since the
//! daemon may go on, and write where it was once asked to.
#![allow(unsafe_code)] // Lends the bytes of a lease as slices.

use super::layout::{self, ARENA_ALIGN, Jobs, Pair};
use parking_lot::Mutex;
use sidecore_bare::width::ToUsize;
use sidecore_sys::{SharedMap, SharedSlice, Sharing, SysError};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A segment that was handed over by a daemon.
#[derive(Debug)]
pub(crate) struct Segment {
    map: SharedMap,
    engines: usize,
    arena_offset: usize,
    arena_bytes: usize,
    /// Free stretches (offset, bytes), ascending, never adjacent.
    free: Mutex<Vec<(usize, usize)>>,
    retired: AtomicBool,
}

impl Segment {
    /// Maps a segment. `None` where the sizes do not fit one another.
    pub(crate) fn open(
        file: OwnedFd,
        bytes: usize,
        engines: usize,
        arena_bytes: u64,
    ) -> Result<Option<Arc<Self>>, SysError> {
        // The daemon is trusted, but maybe of another release: offsets are computed on this side,
        // and must not lead past the end of its segment.
        if layout::segment_bytes(engines, arena_bytes) != Some(bytes) {
            return Ok(None);
        }
        // The daemon has its pages locked; most of the arena may never be used.
        let map = SharedMap::open_on_demand(file, bytes, Sharing::ReadWrite)?;
        Ok(Some(Arc::new(Self {
            map,
            engines,
            arena_offset: layout::arena_offset(engines),
            arena_bytes: arena_bytes.to_usize(),
            free: Mutex::new(vec![(0, arena_bytes.to_usize())]),
            retired: AtomicBool::new(false),
        })))
    }

    /// The arena.
    pub(crate) fn arena(&self) -> SharedSlice<'_> {
        let end = self.arena_offset + self.arena_bytes;
        match self.map.slice().range(self.arena_offset..end) {
            Some(arena) => arena,
            None => unreachable!("a segment holds its arena"),
        }
    }

    /// The pair that belongs to `engine`.
    #[inline]
    pub(crate) fn pair(&self, engine: usize) -> Option<Pair<'_>> {
        layout::pair(self.map.slice(), engine)
    }

    /// The client's jobs. `None` only where the segment is too short, which it is not.
    #[inline]
    pub(crate) fn jobs(&self) -> Option<Jobs<'_>> {
        layout::jobs(self.map.slice(), self.engines)
    }

    /// Takes a stretch of the arena, the first that fits.
    ///
    /// # Errors
    /// The bytes of the largest stretch that is free; 0 once the segment is retired.
    pub(crate) fn lease(self: &Arc<Self>, bytes: usize) -> Result<Lease, usize> {
        // Whole lines of two: no buffer shares a line with another, which an engine may be writing
        // to while this process reads its own.
        let taken = bytes.max(1).next_multiple_of(ARENA_ALIGN);
        let mut free = self.free.lock();
        if self.is_retired() {
            return Err(0);
        }
        // First fit: a program has few sizes of buffers and frees them in the order of allocation.
        // So the list of stretches stays short and the front of the arena stays warm.
        let Some(place) = free.iter().position(|&(_, size)| size >= taken) else {
            return Err(free.iter().map(|&(_, size)| size).max().unwrap_or(0));
        };
        let (offset, size) = free[place];
        if size == taken {
            free.remove(place);
        } else {
            free[place] = (offset + taken, size - taken);
        }
        Ok(Lease {
            segment: Arc::clone(self),
            offset,
            bytes,
        })
    }

    /// Gives nothing of the arena out any more, whatever comes back: the attachment is over, but
    /// its daemon may still write to the outputs of requests that were given up. Takes no lock,
    /// which in a child process may be that of a thread that is not there.
    pub(crate) fn retire(&self) {
        // Release: partner of the Acquire in `is_retired`. What was given up before this comes back
        // after it, so no stretch of that can be among the free ones.
        self.retired.store(true, Ordering::Release);
    }

    /// True once it is retired, and so the attachment dead.
    #[inline]
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    fn give_back(&self, offset: usize, bytes: usize) {
        let bytes = bytes.max(1).next_multiple_of(ARENA_ALIGN);
        let mut free = self.free.lock();
        if self.is_retired() {
            return;
        }
        // Joined with both neighbours at once, the later first while its index still holds. So no
        // two free stretches ever touch, and the largest one is as large as it can be.
        let place = free.partition_point(|&(start, _)| start < offset);
        free.insert(place, (offset, bytes));
        if place + 1 < free.len() && offset + bytes == free[place + 1].0 {
            free[place].1 += free[place + 1].1;
            free.remove(place + 1);
        }
        if place > 0 && free[place - 1].0 + free[place - 1].1 == offset {
            free[place - 1].1 += free[place].1;
            free.remove(place);
        }
    }
}

/// A stretch of an arena that belongs to one owner.
#[derive(Debug)]
pub(crate) struct Lease {
    segment: Arc<Segment>,
    offset: usize,
    bytes: usize,
}

impl Lease {
    /// Its offset in the arena.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// True if it lies in that segment.
    pub(crate) fn is_in(&self, segment: &Arc<Segment>) -> bool {
        Arc::ptr_eq(&self.segment, segment)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        let memory = self.memory();
        // SAFETY: the stretch is mapped and readable as long as the segment, which this lease keeps
        // alive. No code writes to it while this borrow lives. In this process leases do not
        // overlap and writing takes `&mut`. The daemon, which a client trusts, writes only to the
        // outputs of a request in flight, whose owner is then borrowed uniquely by the call. A
        // lease whose request was given up is not looked at again (see the module's head).
        unsafe { std::slice::from_raw_parts(memory.as_ptr(), memory.len()) }
    }

    /// Copies all of it out although the daemon may be writing to it: for the outputs of a call
    /// that was given up.
    pub(crate) fn copy_racing(&self, target: &mut [u8]) {
        self.memory().read_at(0, target);
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let memory = self.memory();
        // SAFETY: as in `bytes`; `&mut self` makes the borrow unique in this process.
        unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), memory.len()) }
    }

    fn memory(&self) -> SharedSlice<'_> {
        let start = self.segment.arena_offset + self.offset;
        match self.segment.map.slice().range(start..start + self.bytes) {
            Some(memory) => memory,
            None => unreachable!("a lease lies within its arena"),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.segment.give_back(self.offset, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segment(arena_bytes: u64) -> Arc<Segment> {
        let bytes = layout::segment_bytes(1, arena_bytes).unwrap();
        let map = SharedMap::create("test", bytes, Sharing::ReadWrite).unwrap();
        let file = map.file().try_clone_to_owned().unwrap();
        Segment::open(file, bytes, 1, arena_bytes).unwrap().unwrap()
    }

    #[test]
    fn a_segment_of_the_wrong_size_is_refused() {
        let map = SharedMap::create("test", 16384, Sharing::ReadWrite).unwrap();
        let file = map.file().try_clone_to_owned().unwrap();
        assert!(Segment::open(file, 16384, 1, 16384).unwrap().is_none());
    }

    #[test]
    fn a_lease_is_whole_lines_of_the_arena_and_no_more() {
        let segment = segment(16384);
        let all = segment.map.slice();
        let mut one = segment.lease(0).unwrap();
        let mut two = segment.lease(129).unwrap();
        let three = segment.lease(128).unwrap();
        assert_eq!((one.offset(), two.offset(), three.offset()), (0, 128, 384));
        assert_eq!((one.bytes().len(), two.bytes_mut().len()), (0, 129));
        assert!(one.bytes_mut().is_empty());
        // It is the arena's memory, which begins behind the pairs and the jobs.
        two.bytes_mut().fill(7);
        let mut seen = [0; 131];
        all.read_at(layout::arena_offset(1) + 128 - 1, &mut seen);
        assert!(seen[0] == 0 && seen[1..130] == [7; 129] && seen[130] == 0);
        let mut copy = [0; 129];
        two.copy_racing(&mut copy);
        assert_eq!(copy, [7; 129]);
        let other = self::segment(4096);
        assert!(two.is_in(&segment) && !two.is_in(&other));
    }

    #[test]
    fn what_comes_back_joins_its_neighbours_and_the_first_that_fits_is_taken() {
        let segment = segment(16384);
        let free = || segment.free.lock().clone();
        let mut held: Vec<Option<Lease>> = (0..4).map(|_| segment.lease(1024).ok()).collect();
        assert_eq!(free(), [(4096, 12288)]);
        // Alone, then before and behind free memory, then between two.
        held[1] = None;
        assert_eq!(free(), [(1024, 1024), (4096, 12288)]);
        held[0] = None;
        assert_eq!(free(), [(0, 2048), (4096, 12288)]);
        // The error has the largest size that is free.
        assert_eq!(segment.lease(12289).unwrap_err(), 12288);
        // Too short for the first, just right, and the rest of the first one left.
        let long = segment.lease(2049).unwrap();
        assert_eq!(long.offset(), 4096);
        let short = segment.lease(1000).unwrap();
        assert_eq!((short.offset(), free()[0]), (0, (1024, 1024)));
        let exact = segment.lease(1024).unwrap();
        assert_eq!((exact.offset(), free().len()), (1024, 1));
        drop((long, short, exact));
        assert_eq!(free(), [(0, 2048), (4096, 12288)]);
        held[3] = None;
        assert_eq!(free(), [(0, 2048), (3072, 13312)]);
        held[2] = None;
        assert_eq!(free(), [(0, 16384)]);
        let whole = segment.lease(16384).unwrap();
        assert_eq!(segment.lease(1).unwrap_err(), 0);
        drop(whole);
    }

    #[test]
    fn a_retired_segment_gives_nothing_out_whatever_comes_back() {
        let segment = segment(16384);
        let mut kept = segment.lease(100).unwrap();
        let given_up = segment.lease(1000).unwrap();
        segment.retire();
        drop(given_up);
        for bytes in [0, 1, 1000] {
            assert_eq!(segment.lease(bytes).unwrap_err(), 0);
        }
        // Buffers that are held stay as they are.
        kept.bytes_mut().fill(3);
        assert_eq!(kept.bytes(), [3; 100]);
        segment.retire();
    }

    proptest! {
        #[test]
        fn leases_never_overlap_and_all_comes_back(
            steps in prop::collection::vec((0usize..3000, any::<bool>()), 1..60)
        ) {
            let segment = segment(16384);
            let mut held: Vec<(Lease, u8)> = Vec::new();
            for (number, (bytes, give_back)) in steps.into_iter().enumerate() {
                if give_back && !held.is_empty() {
                    held.swap_remove(bytes % held.len());
                } else if let Ok(mut lease) = segment.lease(bytes) {
                    lease.bytes_mut().fill(number as u8);
                    held.push((lease, number as u8));
                }
                for (lease, mark) in &held {
                    prop_assert!(lease.bytes().iter().all(|byte| byte == mark));
                }
            }
            held.clear();
            prop_assert_eq!(&*segment.free.lock(), &[(0, 16384)]);
        }
    }
}
