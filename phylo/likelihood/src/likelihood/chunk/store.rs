//! Memory of a chunk's CLVs: buffers of eight lengths (eighths of its patterns), which are reused.
//!
//! Why here: a node's classes depend on the direction, and most nodes are seen from a side where
//! few patterns differ. Buffers as long as each node's longest direction would take three times the
//! memory that is in use at once.
//! Must stay true: a buffer belongs to one owner, or is free here; its history does not affect
//! results.

use crate::kernel::{Buffer, Shape};
use parking_lot::Mutex;
use sidecore_engine::page_advice::PageAdvice;
use sidecore_sys::arena::Arena;
use sidecore_sys::{HugePages, region::page_bytes};
use std::sync::Arc;

/// Memory of all chunks of a likelihood.
#[derive(Debug, Clone)]
pub(in crate::likelihood) struct SharedArena(Arc<Mutex<Arena>>);

impl SharedArena {
    pub(in crate::likelihood) fn new() -> Self {
        Self(Arc::new(Mutex::new(Arena::new(huge_pages()))))
    }
}

/// The CLV of one direction of one node.
#[derive(Debug, Default)]
pub(super) struct Values {
    pub(super) quads: Buffer,
    /// For each class one scaler a rate; empty where no entry was scaled.
    pub(super) scalers: Vec<u16>,
    /// Capacity in eighths of the chunk's patterns.
    eighths: usize,
}

impl Values {
    /// Keeps the scaler of each class and rate, if any was scaled.
    pub(super) fn keep_counts(&mut self, scaled: bool, counts: &[u16]) {
        self.scalers.clear();
        if scaled {
            self.scalers.extend_from_slice(counts);
        }
    }
}

/// A chunk's memory for CLVs.
#[derive(Debug)]
pub(super) struct Store {
    arena: SharedArena,
    /// Quads of one class.
    span: usize,
    patterns: usize,
    /// Free buffers, by their length.
    spare: [Vec<Buffer>; EIGHTHS + 1],
}

impl Store {
    pub(super) fn new(arena: &SharedArena, shape: Shape, patterns: usize) -> Self {
        Self {
            arena: arena.clone(),
            span: shape.quads(),
            patterns,
            spare: Default::default(),
        }
    }

    /// Gives a CLV the room that `classes` need; its contents are lost.
    pub(super) fn fit(&mut self, values: &mut Values, classes: usize) {
        // Sizes are rounded up to eighths of the patterns, so that buffers can be reused.
        let eighths = (classes * EIGHTHS).div_ceil(self.patterns.max(1));
        if eighths != values.eighths {
            let before = std::mem::take(&mut values.quads);
            if values.eighths > 0 {
                self.spare[values.eighths].push(before);
            }
            values.quads = match self.spare[eighths].pop() {
                Some(buffer) => buffer,
                None => {
                    let room = (eighths * self.patterns).div_ceil(EIGHTHS);
                    let mut buffer = Buffer::default();
                    buffer.resize_in(room * self.span, &mut self.arena.0.lock());
                    buffer
                }
            };
            values.eighths = eighths;
        }
        values.quads.resize(classes * self.span);
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

/// Size of a tree's CLVs from which the page size matters.
const WORKING_SET_BYTES: usize = 64 << 20;
const EIGHTHS: usize = 8;
