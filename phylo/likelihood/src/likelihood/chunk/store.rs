//! Memory of a chunk's values: one length for each eighth of its patterns, used again and again.
//!
//! Why here: a node's classes depend on the direction that one sees it from, and most nodes are
//! seen from where few patterns differ. Buffers as long as the longest direction ever needed would
//! be three times what is needed at once.
//! Must stay true: a buffer belongs to one owner, or waits here; how one came by it does not show.

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

/// The values of one direction of one node.
#[derive(Debug, Default)]
pub(super) struct Values {
    pub(super) quads: Buffer,
    /// Class by class one count a rate; empty where nothing was scaled.
    pub(super) scalers: Vec<u16>,
    /// The eighths of the chunk's patterns that there is room for.
    eighths: usize,
}

impl Values {
    /// Keeps how often each class and rate was scaled, if any was.
    pub(super) fn keep_counts(&mut self, scaled: bool, counts: &[u16]) {
        self.scalers.clear();
        if scaled {
            self.scalers.extend_from_slice(counts);
        }
    }
}

/// A chunk's memory for values.
#[derive(Debug)]
pub(super) struct Store {
    arena: SharedArena,
    /// Quads of one class.
    span: usize,
    patterns: usize,
    /// Free stretches, by their length.
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

    /// Gives values the room that `classes` need; what they held is lost.
    pub(super) fn fit(&mut self, values: &mut Values, classes: usize) {
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

/// Which pages large trees' values are to lie on: by what `sidecore tlb --learn` kept of this
/// machine; where it kept nothing, transparent huge pages. Never reserved ones, which others have
/// reserved them for.
fn huge_pages() -> HugePages {
    let advice = PageAdvice::of_this_machine().map(|known| known.advise(WORKING_SET_BYTES));
    match advice {
        Some(advice) if advice.page_bytes <= page_bytes() => HugePages::None,
        _ => HugePages::Transparent,
    }
}

/// The values of a tree that is large enough for pages to matter.
const WORKING_SET_BYTES: usize = 64 << 20;
const EIGHTHS: usize = 8;
