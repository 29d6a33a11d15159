//! Buffers of doubles that begin on a cache line.
//!
//! Why here: a load of four doubles that crosses a cache line costs two loads; the allocator aligns
//! to 16 bytes only. And the CLVs of a large tree are some ten thousand buffers that a traversal
//! goes through: from an arena they lie on huge pages, which keeps page walks short.
//! Must stay true: growing keeps no contents; the caller that grows a buffer fills it again.

use parking_lot::Mutex;
use sidecore_engine::page_advice::PageAdvice;
use sidecore_sys::arena::{Arena, Run};
use sidecore_sys::{HugePages, region::page_bytes};
use std::sync::Arc;

/// Doubles in a [`Quad`].
pub(crate) const QUAD: usize = 4;

/// Four doubles: what one AVX2 register holds.
pub type Quad = [f64; QUAD];

/// A growable run of quads that begins on a line of 64 bytes.
#[derive(Debug, Default)]
pub struct Buffer {
    data: Memory,
    start: usize,
    quads: usize,
}

#[derive(Debug)]
enum Memory {
    Own(Vec<f64>),
    Arena(Run),
}

impl Default for Memory {
    fn default() -> Self {
        Self::Own(Vec::new())
    }
}

impl std::ops::Deref for Memory {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        match self {
            Self::Own(data) => data,
            Self::Arena(run) => run,
        }
    }
}

impl std::ops::DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [f64] {
        match self {
            Self::Own(data) => data,
            Self::Arena(run) => run,
        }
    }
}

/// Memory of many buffers, in huge pages once it is large; clones share it. What a buffer took
/// goes back with the last buffer of its region.
#[derive(Debug, Clone)]
pub struct SharedArena(Arc<Mutex<Arena>>);

impl SharedArena {
    /// An empty one; nothing is mapped before a buffer grows.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Arena::new(huge_pages()))))
    }
}

impl Default for SharedArena {
    fn default() -> Self {
        Self::new()
    }
}

/// Page size for the CLVs of large trees: the setting that `sidecore tlb --learn` stored for this
/// machine; by default transparent huge pages. Never reserved ones, which belong to the programs
/// that reserved them.
fn huge_pages() -> HugePages {
    let advice = PageAdvice::of_this_machine().map(|known| known.advise(WORKING_SET_BYTES));
    match advice {
        Some(advice) if advice.page_bytes <= page_bytes() => HugePages::None,
        _ => HugePages::Transparent,
    }
}

impl Buffer {
    /// A buffer of `quads` quads, all zero.
    #[must_use]
    pub fn new(quads: usize) -> Self {
        let mut buffer = Self::default();
        buffer.resize(quads);
        buffer
    }

    /// Makes it `quads` long. Its contents are kept if it was long enough, else lost.
    pub fn resize(&mut self, quads: usize) {
        if self.start + quads * QUAD > self.data.len() {
            let data = vec![0.0; quads * QUAD + LINE_BYTES / size_of::<f64>()];
            let address = data.as_ptr() as usize;
            self.start = (address.wrapping_neg() % LINE_BYTES) / size_of::<f64>();
            self.data = Memory::Own(data);
        }
        self.quads = quads;
    }

    /// As [`Self::resize`], with memory from an arena if it needs more.
    pub fn resize_in(&mut self, quads: usize, arena: &SharedArena) {
        if self.start + quads * QUAD > self.data.len()
            && let Ok(run) = arena.0.lock().take(quads * QUAD)
        {
            // A run begins on a cache line.
            (self.data, self.start) = (Memory::Arena(run), 0);
        }
        // If the arena had no memory, the global allocator is used.
        self.resize(quads);
    }

    /// The quads.
    #[must_use]
    pub fn as_slice(&self) -> &[Quad] {
        self.doubles().as_chunks().0
    }

    /// The quads, to be written.
    pub fn as_mut_slice(&mut self) -> &mut [Quad] {
        self.doubles_mut().as_chunks_mut().0
    }

    /// The doubles.
    #[must_use]
    pub fn doubles(&self) -> &[f64] {
        &self.data[self.start..self.start + self.quads * QUAD]
    }

    /// The doubles, to be written.
    pub fn doubles_mut(&mut self) -> &mut [f64] {
        let end = self.start + self.quads * QUAD;
        &mut self.data[self.start..end]
    }
}

const LINE_BYTES: usize = 64;
/// Size of a tree's CLVs from which the page size matters.
const WORKING_SET_BYTES: usize = 64 << 20;

/// Matrices of patterns that have stationary frequencies of their own: twenty states.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spectra<'a> {
    /// For each pattern the place of its profile in the lists that follow.
    pub(crate) of_pattern: &'a [u32],
    /// Eigenvalues.
    pub(crate) values: &'a [f64],
    /// Right eigenvectors: row by value, column by state.
    pub(crate) right: &'a [f64],
    /// Left eigenvectors: row by state, column by value.
    pub(crate) left: &'a [f64],
    /// Stationary frequencies.
    pub(crate) frequencies: &'a [f64],
    /// The rates across sites.
    pub(crate) rates: &'a [f64],
    /// Their weights.
    pub(crate) weights: &'a [f64],
    /// For each code of a tip its set of states.
    pub(crate) masks: &'a [u64],
}
