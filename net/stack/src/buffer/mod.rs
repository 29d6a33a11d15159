//! Buffers on demand: an idle session holds none.
//!
//! Why here: 100,000 idle sessions must cost no more than their control blocks, and the buffers of
//! the few busy ones must stay in the core's cache. Buffers of six sizes are cut from slabs and
//! handed out last-in-first-out, so the buffer freed last, which is still cached, is used next.
//! Must stay true: the pool never grows beyond its bound; an allocated slab is never freed.

use sidecore_bare::width::ToUsize;

pub(crate) mod pool;
pub(crate) mod ring;

// A pool of objects of one type, last in first out.

/// Index that stands for no entry.
pub(crate) const NONE: u32 = u32::MAX;

/// A pool of `T`s under small numbers. It grows to the largest number ever in use at once; a
/// returned object keeps its allocations.
#[derive(Debug, Default)]
pub(crate) struct Slab<T> {
    items: Vec<T>,
    free: Vec<u32>,
}

impl<T: Default> Slab<T> {
    /// A pool that does not allocate before more than `count` objects are in use at once.
    pub(crate) fn with_capacity(count: usize) -> Self {
        Self {
            items: Vec::with_capacity(count),
            free: Vec::with_capacity(count),
        }
    }

    /// Takes an object, in the state that the last owner left it in.
    pub(crate) fn take(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.items.push(T::default());
            self.items.len() as u32 - 1
        })
    }

    /// Returns an object.
    pub(crate) fn give(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Number of items in use.
    pub(crate) fn taken(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// An object in use.
    #[inline]
    pub(crate) fn get(&self, number: u32) -> &T {
        &self.items[number.to_usize()]
    }

    /// An object in use.
    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> &mut T {
        &mut self.items[number.to_usize()]
    }
}
