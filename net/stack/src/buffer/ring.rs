//! A ring of bytes over a buffer that exists only while the ring holds some.
//!
//! Must stay true: a ring without a buffer is empty; bytes beyond `len` may be written ahead (data
//! received out of order), in which case the owner says so when it consumes.

use super::pool::{BUFFER_BYTES_MAX, Buffer, CLASS_BYTES, Pool};
use sidecore_bare::width::ToUsize;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The number that stands for no buffer; the class bits then hold a hint for the next one.
const NO_NUMBER: u32 = 0x0fff_ffff;
/// Largest class that a hint requests without need: 128 KiB.
const HINT_MAX: u32 = 3;

/// The ring: 12 bytes in its session's control block.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Ring {
    buffer: u32,
    head: u32,
    len: u32,
}

impl Ring {
    /// An empty ring.
    pub(crate) const EMPTY: Self = Self {
        buffer: NO_NUMBER,
        head: 0,
        len: 0,
    };

    /// Bytes in the ring.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len.to_usize()
    }

    #[inline]
    fn held(&self) -> Option<Buffer> {
        (self.buffer & NO_NUMBER != NO_NUMBER).then_some(Buffer(self.buffer))
    }

    /// Prefetches the cache line of the next write, if there is a buffer.
    #[inline]
    pub(crate) fn prefetch(&self, pool: &Pool) {
        if let Some(buffer) = self.held() {
            let bytes = pool.bytes(buffer);
            sidecore_bare::prefetch::for_read(
                &bytes[self.head.to_usize() & (bytes.len() - 1)..],
                64,
            );
        }
    }

    /// Size of its buffer, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held().map_or(0, Buffer::capacity)
    }

    /// Makes room for `bytes` in total, if the pool has a buffer of that size.
    #[inline]
    fn reserve(&mut self, pool: &mut Pool, bytes: usize) -> Option<Buffer> {
        match self.held() {
            Some(buffer) if bytes <= buffer.capacity() => Some(buffer),
            held => self.exchange(pool, held, bytes),
        }
    }

    fn exchange(&mut self, pool: &mut Pool, held: Option<Buffer>, bytes: usize) -> Option<Buffer> {
        if bytes > BUFFER_BYTES_MAX {
            return None;
        }
        let needed = Pool::class_for(bytes);
        let Some(old) = held else {
            // The size needed lately, lowered by one class each time.
            let hint = (self.buffer >> 28).to_usize();
            let new = pool.take(needed.max(hint)).or_else(|| pool.take(needed))?;
            self.buffer = new.0;
            self.head = 0;
            return Some(new);
        };
        // The larger buffer first: without one the bytes stay where they are.
        let new = pool.take(needed)?;
        pool.unroll(old, self.head.to_usize(), new);
        pool.give(old);
        self.buffer = new.0;
        self.head = 0;
        Some(new)
    }

    /// Appends as much of `data` as fits below `len_max`, and returns how much.
    #[inline]
    pub(crate) fn append(&mut self, pool: &mut Pool, data: &[u8], len_max: usize) -> usize {
        self.append_with(pool, data.len(), len_max, &mut copied(data))
    }

    /// Appends as much of `count` bytes as fits below `len_max`, which `fill` writes in up to two
    /// pieces, and returns how much.
    #[inline]
    pub(crate) fn append_with(
        &mut self,
        pool: &mut Pool,
        count: usize,
        len_max: usize,
        fill: &mut impl FnMut(&mut [u8]),
    ) -> usize {
        let count = count.min(len_max.saturating_sub(self.len()));
        if count == 0 {
            return 0;
        }
        let Some([first, second]) = self.room(pool, count) else {
            return 0;
        };
        fill(first);
        if !second.is_empty() {
            fill(second);
        }
        self.extend(count);
        count
    }

    /// Writes at `offset` from the head without adding to `len`; false if there is no memory.
    #[inline]
    pub(crate) fn write_at(&mut self, pool: &mut Pool, offset: usize, data: &[u8]) -> bool {
        let Some(buffer) = self.reserve(pool, offset + data.len()) else {
            return false;
        };
        let bytes = pool.bytes_mut(buffer);
        // Capacities are powers of two, so that the mask is the remainder.
        let at = (self.head.to_usize() + offset) & (bytes.len() - 1);
        let first = data.len().min(bytes.len() - at);
        bytes[at..at + first].copy_from_slice(&data[..first]);
        bytes[..data.len() - first].copy_from_slice(&data[first..]);
        true
    }

    /// Space for the `bytes` that follow its content, in up to two pieces; none if there is no
    /// memory. A caller that does not [`Self::extend`] the ring afterwards must [`Self::retract`]
    /// it.
    #[inline]
    pub(crate) fn room<'p>(
        &mut self,
        pool: &'p mut Pool,
        bytes: usize,
    ) -> Option<[&'p mut [u8]; 2]> {
        let buffer = self.reserve(pool, self.len() + bytes)?;
        let all = pool.bytes_mut(buffer);
        let at = (self.head + self.len).to_usize() & (all.len() - 1);
        let (before, behind) = all.split_at_mut(at);
        let first = bytes.min(behind.len());
        Some([&mut behind[..first], &mut before[..bytes - first]])
    }

    /// Returns the buffer if nothing was written to the requested space.
    #[inline]
    pub(crate) fn retract(&mut self, pool: &mut Pool) {
        if self.len == 0
            && let Some(buffer) = self.held()
        {
            pool.give(buffer);
            self.buffer |= NO_NUMBER;
            self.head = 0;
        }
    }

    /// Adds bytes that were written ahead to `len`.
    #[inline]
    pub(crate) fn extend(&mut self, bytes: usize) {
        self.len += bytes as u32;
    }

    /// `len` bytes from `offset` on, in up to two pieces. They must be in the ring.
    #[inline]
    pub(crate) fn pieces<'p>(&self, pool: &'p Pool, offset: usize, len: usize) -> [&'p [u8]; 2] {
        let Some(buffer) = self.held().filter(|_| len > 0) else {
            return [&[], &[]];
        };
        debug_assert!(offset + len <= self.len(), "bytes that are not in the ring");
        let bytes = pool.bytes(buffer);
        let at = (self.head.to_usize() + offset) & (bytes.len() - 1);
        let first = len.min(bytes.len() - at);
        [&bytes[at..at + first], &bytes[..len - first]]
    }

    /// `len` bytes from `offset` on, which may have been written ahead, of a ring from which
    /// nothing was dropped: they are in one piece. Empty if there is no such room.
    pub(crate) fn ahead<'p>(&self, pool: &'p Pool, offset: usize, len: usize) -> &'p [u8] {
        let bytes = self.held().map(|buffer| pool.bytes(buffer));
        bytes
            .and_then(|bytes| bytes.get(offset..offset + len))
            .unwrap_or(&[])
    }

    /// Drops `count` bytes from the front. An empty ring returns its buffer unless bytes were
    /// written ahead.
    #[inline]
    pub(crate) fn consume(&mut self, pool: &mut Pool, count: usize, ahead: bool) {
        debug_assert!(count <= self.len(), "more than is in the ring");
        self.len -= count as u32;
        if self.len == 0 && !ahead {
            self.release(pool);
        } else if let Some(buffer) = self.held() {
            self.head = (self.head + count as u32) & (buffer.capacity() as u32 - 1);
        }
    }

    /// Empties the ring and returns its buffer.
    pub(crate) fn release(&mut self, pool: &mut Pool) {
        if let Some(buffer) = self.held() {
            let class = (self.buffer >> 28).min(HINT_MAX);
            // A small message in a large buffer: request less next time.
            let used = (self.head.to_usize()) > CLASS_BYTES[class.to_usize()] / 8;
            let hint = if used { class } else { class.saturating_sub(1) };
            pool.give(buffer);
            self.buffer = hint << 28 | NO_NUMBER;
        }
        // Not the buffer's hint, which outlives it.
        self.head = 0;
        self.len = 0;
    }
}

/// Fills one piece after the other with `bytes`, in order.
#[inline]
pub(crate) fn copied(mut bytes: &[u8]) -> impl FnMut(&mut [u8]) {
    move |piece| {
        let (now, later) = bytes.split_at(piece.len());
        piece.copy_from_slice(now);
        bytes = later;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Heap;
    use sidecore_random::Random;
    use std::collections::VecDeque;

    #[test]
    fn does_what_a_queue_does() {
        let mut random = Random::new(5);
        let mut pool = Pool::new(64 << 20, Box::new(Heap));
        let mut ring = Ring::EMPTY;
        let mut model: VecDeque<u8> = VecDeque::new();
        let mut next = 0_u8;
        let steps = if cfg!(miri) { 20 } else { 20_000 };
        for step in 0..steps {
            if random.below(2) == 0 {
                let sizes = [3, 100, 700, 30_000];
                let size = sizes[random.below(4) as usize];
                let len = random.below(size) as usize;
                let data: Vec<u8> = (0..len)
                    .map(|_| {
                        next = next.wrapping_add(7);
                        next
                    })
                    .collect();
                let taken = ring.append(&mut pool, &data, 200_000);
                assert_eq!(taken, len.min(200_000 - model.len()), "step {step}");
                next = next.wrapping_sub((len - taken) as u8 * 7);
                next = data[..taken].last().copied().unwrap_or(next);
                model.extend(&data[..taken]);
            } else {
                let len = random.below(model.len() as u64 + 1) as usize;
                let [a, b] = ring.pieces(&pool, 0, len);
                let out: Vec<u8> = a.iter().chain(b).copied().collect();
                assert!(out.iter().eq(model.iter().take(len)), "step {step}");
                ring.consume(&mut pool, len, false);
                model.drain(..len);
            }
            assert_eq!(ring.len(), model.len());
            assert_eq!(pool.taken(), usize::from(!model.is_empty()));
        }
    }

    #[test]
    fn bytes_written_ahead_survive_growth_and_consumption() {
        let mut pool = Pool::new(64 << 20, Box::new(Heap));
        let mut ring = Ring::EMPTY;
        ring.append(&mut pool, &[1; 100], 1 << 20);
        assert!(ring.write_at(&mut pool, 150, &[3; 50]));
        ring.consume(&mut pool, 100, true);
        assert!(ring.write_at(&mut pool, 300, &[9; 4000]), "another buffer");
        assert!(ring.write_at(&mut pool, 0, &[2; 50]));
        ring.extend(100);
        let [a, b] = ring.pieces(&pool, 0, 100);
        let all: Vec<u8> = a.iter().chain(b).copied().collect();
        assert_eq!(all, [[2; 50], [3; 50]].concat());
    }

    #[test]
    fn an_exhausted_pool_refuses() {
        let mut pool = Pool::new(2 << 20, Box::new(Heap));
        let mut rings = vec![Ring::EMPTY; 8193];
        let taken = rings
            .iter_mut()
            .map(|ring| ring.append(&mut pool, &[1], 10))
            .sum::<usize>();
        assert_eq!(taken, 8192, "buffers of 256 bytes in the one slab");
    }
}
