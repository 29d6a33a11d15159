//! The pool of buffers, cut from slabs: the memory budget of a stack.
//!
//! While less than an eighth of it is in use, a session's buffers are as large as configured.
//! Beyond that they follow what its peer takes, and each ring is bounded by a share of what is
//! free, as in switches with a shared buffer (Choudhury and Hahne, "Dynamic queue length
//! thresholds", 1998): however many sessions stall, a part is left for those that come. Must stay
//! true: a session may always hold [`SHARE_BYTES_MIN`]; slabs of small buffers have room that large
//! ones cannot take.

use crate::memory::{MemorySource, Use};
use sidecore_bare::Memory;
use sidecore_bare::width::ToUsize;

/// Sizes of buffers, in bytes; each a power of two.
pub(crate) const CLASS_BYTES: [usize; 6] = [256, 2 << 10, 16 << 10, 128 << 10, 1 << 20, 8 << 20];
/// The largest buffer.
pub(crate) const BUFFER_BYTES_MAX: usize = CLASS_BYTES[CLASS_BYTES.len() - 1];
/// Bytes of a slab, unless one buffer needs more: one huge page.
const SLAB_BYTES: usize = 2 << 20;

/// Bytes that a session may hold, however little memory is free.
pub(crate) const SHARE_BYTES_MIN: usize = 16 << 10;
/// A ring may hold one part in this many of the free memory.
const SHARES: usize = 512;
/// Budget from which on a sixteenth is kept for small buffers.
const KEPT_FROM: usize = 64 << 20;

/// Buffers per slab, by size class, as a power of two.
const PER_SLAB_BITS: [u32; CLASS_BYTES.len()] = {
    let mut bits = [0; CLASS_BYTES.len()];
    let mut class = 0;
    while class < bits.len() {
        if CLASS_BYTES[class] < SLAB_BYTES {
            bits[class] = (SLAB_BYTES / CLASS_BYTES[class]).trailing_zeros();
        }
        class += 1;
    }
    bits
};

/// A buffer's name: its class in the upper four bits, its number below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Buffer(pub(crate) u32);

impl Buffer {
    #[inline]
    fn class(self) -> usize {
        (self.0 >> 28).to_usize()
    }

    #[inline]
    fn number(self) -> usize {
        (self.0 & 0x0fff_ffff).to_usize()
    }

    /// Capacity in bytes.
    #[inline]
    pub(crate) fn capacity(self) -> usize {
        CLASS_BYTES[self.class()]
    }
}

/// All buffers.
#[derive(Debug)]
pub(crate) struct Pool {
    classes: [Class; CLASS_BYTES.len()],
    bytes: usize,
    bytes_max: usize,
    /// Bytes of the buffers that are in use.
    used: usize,
    /// A buffer was returned since [`Self::take_returned`].
    has_returned: bool,
    source: Box<dyn MemorySource>,
}

#[derive(Debug, Default)]
struct Class {
    slabs: Vec<Memory>,
    free: Vec<u32>,
    count: u32,
}

impl Pool {
    /// A pool that grows up to `bytes_max`.
    pub(crate) fn new(bytes_max: usize, source: Box<dyn MemorySource>) -> Self {
        Self {
            classes: Default::default(),
            bytes: 0,
            bytes_max,
            used: 0,
            has_returned: false,
            source,
        }
    }

    /// The class of buffers that hold `bytes`; the largest class if none does.
    #[inline]
    pub(crate) fn class_for(bytes: usize) -> usize {
        CLASS_BYTES
            .iter()
            .position(|&size| bytes <= size)
            .unwrap_or(CLASS_BYTES.len() - 1)
    }

    /// Takes a buffer of a class; none when the pool is at its bound.
    #[inline]
    pub(crate) fn take(&mut self, class: usize) -> Option<Buffer> {
        let buffer = match self.classes[class].free.pop() {
            Some(number) => Buffer((class as u32) << 28 | number),
            None => self.grow(class).or_else(|| self.take_larger(class))?,
        };
        self.used += buffer.capacity();
        Some(buffer)
    }

    /// A buffer of a larger class, when the pool is at its bound.
    #[cold]
    fn take_larger(&mut self, class: usize) -> Option<Buffer> {
        (class + 1..CLASS_BYTES.len()).find_map(|larger| {
            let number = self.classes[larger].free.pop()?;
            Some(Buffer((larger as u32) << 28 | number))
        })
    }

    /// True while the configured sizes apply: little is in use.
    #[inline]
    pub(crate) fn is_ample(&self) -> bool {
        self.used <= self.bytes_max / 8
    }

    /// True if sessions without progress are to give their memory back.
    pub(crate) fn is_short(&self) -> bool {
        self.used > self.bytes_max - self.bytes_max / 16
    }

    /// True if there is none for new sessions.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.used > self.bytes_max - self.bytes_max / 64
    }

    /// Bytes that one ring may hold while memory is not ample: a power of two, as buffers are.
    pub(crate) fn share_bytes(&self) -> usize {
        let share = (self.bytes_max - self.used.min(self.bytes_max)) / SHARES;
        let fitting = CLASS_BYTES.iter().rev().find(|&&size| size <= share);
        fitting.map_or(SHARE_BYTES_MIN, |&size| size.max(SHARE_BYTES_MIN))
    }

    /// True if a buffer was returned since the last call.
    #[inline]
    pub(crate) fn take_returned(&mut self) -> bool {
        std::mem::take(&mut self.has_returned)
    }

    /// The budget, and the bytes of it that are in use.
    pub(crate) fn budget(&self) -> (usize, usize) {
        (self.bytes_max, self.used)
    }

    #[cold]
    fn grow(&mut self, class: usize) -> Option<Buffer> {
        let slab_bytes = CLASS_BYTES[class].max(SLAB_BYTES);
        let of = &mut self.classes[class];
        let per_slab = (slab_bytes / CLASS_BYTES[class]) as u32;
        // Small sessions are served also when large ones have taken all that they can.
        let kept = match CLASS_BYTES[class] > SHARE_BYTES_MIN && self.bytes_max >= KEPT_FROM {
            true => self.bytes_max / 16,
            false => 0,
        };
        // The last number stands for no buffer.
        if self.bytes + slab_bytes > self.bytes_max - kept || of.count + per_slab >= 0x0fff_ffff {
            return None;
        }
        of.slabs
            .push(self.source.provide(slab_bytes, Use::Sparse).ok()?);
        self.bytes += slab_bytes;
        let first = of.count;
        of.count += per_slab;
        // For all buffers of the class, so that returning one never allocates.
        of.free.reserve(of.count.to_usize());
        // Lower numbers are taken first: their bytes are next to those in use.
        of.free.extend((first + 1..first + per_slab).rev());
        Some(Buffer((class as u32) << 28 | first))
    }

    /// Returns a buffer to the pool.
    #[inline]
    pub(crate) fn give(&mut self, buffer: Buffer) {
        self.used -= buffer.capacity();
        self.has_returned = true;
        self.classes[buffer.class()]
            .free
            .push(buffer.number() as u32);
    }

    /// The bytes of a buffer.
    #[inline]
    pub(crate) fn bytes(&self, buffer: Buffer) -> &[u8] {
        let (class, bytes) = (buffer.class(), buffer.capacity());
        let per_slab = PER_SLAB_BITS[buffer.class()];
        let slab = &self.classes[class].slabs[buffer.number() >> per_slab];
        let start = (buffer.number() & ((1 << per_slab) - 1)) * bytes;
        &slab.bytes()[start..start + bytes]
    }

    /// The bytes of a buffer, for writing.
    #[inline]
    pub(crate) fn bytes_mut(&mut self, buffer: Buffer) -> &mut [u8] {
        let (class, bytes) = (buffer.class(), buffer.capacity());
        let per_slab = PER_SLAB_BITS[buffer.class()];
        let slab = &mut self.classes[class].slabs[buffer.number() >> per_slab];
        let start = (buffer.number() & ((1 << per_slab) - 1)) * bytes;
        &mut slab.bytes_mut()[start..start + bytes]
    }

    /// Two buffers: to copy from one to another of a larger class.
    fn two(&mut self, from: Buffer, to: Buffer) -> Option<(&[u8], &mut [u8])> {
        let (low, high) = self.classes.split_at_mut_checked(to.class())?;
        let locate = |buffer: Buffer| {
            let bytes = buffer.capacity();
            let per_slab = PER_SLAB_BITS[buffer.class()];
            let start = (buffer.number() & ((1 << per_slab) - 1)) * bytes;
            (buffer.number() >> per_slab, start..start + bytes)
        };
        let ((from_slab, from_range), (to_slab, to_range)) = (locate(from), locate(to));
        let from = low.get(from.class())?.slabs.get(from_slab)?;
        let from = from.bytes().get(from_range)?;
        let to = high.first_mut()?.slabs.get_mut(to_slab)?;
        let to = to.bytes_mut().get_mut(to_range)?;
        Some((from, to))
    }

    /// Copies a ring's bytes, which start at `head` of `from`, to the start of the larger `to`.
    pub(crate) fn unroll(&mut self, from: Buffer, head: usize, to: Buffer) {
        if let Some((from, to)) = self.two(from, to) {
            let (end, start) = from.split_at(head);
            to[..start.len()].copy_from_slice(start);
            to[start.len()..from.len()].copy_from_slice(end);
        }
    }

    /// Bytes of all slabs.
    pub(crate) fn bytes_held(&self) -> usize {
        self.bytes
    }

    /// Buffers in use.
    pub(crate) fn taken(&self) -> usize {
        let of = |class: &Class| class.count.to_usize() - class.free.len();
        self.classes.iter().map(of).sum()
    }
}
