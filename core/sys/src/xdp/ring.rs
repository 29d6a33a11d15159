//! One of the rings between us and the kernel.
//!
//! Must stay true: the kernel writes one of the two positions, we the other; ours are counted here
//! and only ever written there. An entry is read after the Acquire of the position that covers it,
//! and written before the Release of the one that publishes it. Partners: the kernel's
//! `smp_store_release` and `smp_load_acquire` in `net/xdp/xsk_queue.h`.

use super::call;
use crate::SysError;
use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::net::xdp::XdpRingOffset;
use sidecore_bare::width::ToUsize;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

/// A ring of `T`; this side either only pushes or only pops.
#[derive(Debug)]
pub(super) struct Ring<T> {
    map: NonNull<u8>,
    map_bytes: usize,
    producer: NonNull<AtomicU32>,
    consumer: NonNull<AtomicU32>,
    entries: NonNull<T>,
    count: u32,
    /// Our position, entries that are not published or released included.
    ours: u32,
    /// The other side's position, as last read.
    theirs: u32,
    life: PhantomData<T>,
}

impl<T: Copy> Ring<T> {
    /// Maps the ring at page offset `offset` of the socket, of `count` entries (a power of two).
    pub(super) fn map(
        socket: impl AsFd,
        offset: u64,
        at: &XdpRingOffset,
        count: u32,
    ) -> Result<Self, SysError> {
        let (producer, consumer) = (at.producer.to_usize(), at.consumer.to_usize());
        let entries = at.desc.to_usize();
        let map_bytes = entries + count.to_usize() * size_of::<T>();
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let map = unsafe {
            mm::mmap(
                ptr::null_mut(),
                map_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                socket,
                offset,
            )
        };
        let map = map
            .and_then(|map| NonNull::new(map.cast::<u8>()).ok_or(rustix::io::Errno::NOMEM))
            .map_err(call("mapping an AF_XDP ring"))?;
        debug_assert!(producer + 4 <= map_bytes && consumer + 4 <= map_bytes);
        // SAFETY: offsets that the kernel gave for this mapping, which is long enough for them; it
        // aligns positions and entries.
        unsafe {
            Ok(Self {
                map,
                map_bytes,
                producer: map.add(producer).cast(),
                consumer: map.add(consumer).cast(),
                entries: map.add(entries).cast(),
                count,
                ours: 0,
                theirs: 0,
                life: PhantomData,
            })
        }
    }

    /// True if there is no room to push.
    #[inline]
    pub(super) fn is_full(&mut self) -> bool {
        if self.ours.wrapping_sub(self.theirs) < self.count {
            return false;
        }
        self.theirs = self.consumer().load(Ordering::Acquire);
        self.ours.wrapping_sub(self.theirs) >= self.count
    }

    /// True if the other side has taken everything that was published.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.consumer().load(Ordering::Acquire) == self.ours
    }

    /// Adds an entry if there is room; visible to the other side after [`Self::publish`].
    #[inline]
    pub(super) fn push(&mut self, value: T) {
        if self.is_full() {
            return;
        }
        let index = (self.ours & (self.count - 1)).to_usize();
        // SAFETY: below `count`; the kernel reads it only after it is published, and has read the
        // previous entry, as its position says (`is_full`).
        unsafe { self.entries.add(index).write_volatile(value) };
        self.ours = self.ours.wrapping_add(1);
    }

    /// Publishes all pushed entries to the other side.
    #[inline]
    pub(super) fn publish(&self) {
        self.producer().store(self.ours, Ordering::Release);
    }

    /// The next entry; the other side may use its place again after [`Self::release`].
    #[inline]
    pub(super) fn pop(&mut self) -> Option<T> {
        if self.ours == self.theirs {
            self.theirs = self.producer().load(Ordering::Acquire);
            // More than fits would be nonsense, and is taken as nothing.
            if self.theirs.wrapping_sub(self.ours) > self.count {
                self.theirs = self.ours;
            }
            if self.ours == self.theirs {
                return None;
            }
        }
        let index = (self.ours & (self.count - 1)).to_usize();
        // SAFETY: below `count`; covered by the producer's position, so the kernel has written it
        // and does not until we release it.
        let value = unsafe { self.entries.add(index).read_volatile() };
        self.ours = self.ours.wrapping_add(1);
        Some(value)
    }

    /// Returns the places of popped entries to the other side.
    #[inline]
    pub(super) fn release(&self) {
        self.consumer().store(self.ours, Ordering::Release);
    }

    fn producer(&self) -> &AtomicU32 {
        // SAFETY: within the mapping, aligned, alive as long as self; only accessed as an atomic.
        unsafe { self.producer.as_ref() }
    }

    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { self.consumer.as_ref() }
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping, which nothing refers to any more.
        unsafe { mm::munmap(self.map.as_ptr().cast(), self.map_bytes) }.ok();
    }
}
