//! Order in which insertions are visited, and the slots of their near sides.
//!
//! Why here: a walk of radius 15 visits hundreds of branches; breadth first, their near sides would
//! take as much memory as the tree's CLVs. Depth first, a slot is free once both branches beyond it
//! were visited.
//! Must stay true: a slot is freed only when no pending visit reads it; the walk's path depends on
//! scores alone.

use super::Insertion;

/// A walk in progress.
#[derive(Debug, Default)]
pub(in crate::likelihood) struct Walk {
    /// The insertions that are still to be visited, the next ones last.
    pending: Vec<usize>,
    /// For each insertion its slot, and the number of branches beyond it that are still to be
    /// visited.
    slots: Vec<(usize, u32)>,
    free: Vec<usize>,
    slot_count: usize,
}

/// An insertion to visit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Visited {
    /// Its number.
    pub(super) at: usize,
    /// Slot of its near side.
    pub(super) slot: usize,
    /// Slot of the near side of the insertion before it; `None` next to the old place.
    pub(super) from: Option<usize>,
}

impl Walk {
    pub(super) fn clear(&mut self) {
        self.pending.clear();
        self.slots.clear();
        self.free.clear();
        self.slot_count = 0;
    }

    /// Insertions that are to be visited, which are added to those tried; how many.
    pub(super) fn push(
        &mut self,
        tried: &mut Vec<Insertion>,
        more: impl Iterator<Item = Insertion>,
    ) -> u32 {
        let first = tried.len();
        tried.extend(more);
        self.pending.extend(first..tried.len());
        self.slots.resize(tried.len(), (0, 0));
        (tried.len() - first) as u32
    }

    /// Takes the next few; none at the end.
    pub(super) fn next(&mut self, tried: &[Insertion], batch: &mut Vec<Visited>) -> bool {
        batch.clear();
        while batch.len() < BATCH
            && let Some(at) = self.pending.pop()
        {
            let slot = self.free.pop().unwrap_or(self.slot_count);
            self.slot_count = self.slot_count.max(slot + 1);
            self.slots[at].0 = slot;
            let from = tried[at].parent.map(|parent| self.slots[parent].0);
            batch.push(Visited { at, slot, from });
        }
        !batch.is_empty()
    }

    /// One of them is done; those beyond it are to be visited.
    pub(super) fn finish(
        &mut self,
        at: usize,
        tried: &mut Vec<Insertion>,
        beyond: impl Iterator<Item = Insertion>,
    ) {
        let parent = tried[at].parent;
        self.slots[at].1 = self.push(tried, beyond);
        // Without branches beyond it no step needs its slot any more.
        if self.slots[at].1 == 0 {
            self.free.push(self.slots[at].0);
        }
        if let Some(parent) = parent {
            let (slot, left) = &mut self.slots[parent];
            *left -= 1;
            if *left == 0 {
                self.free.push(*slot);
            }
        }
    }
}

/// Branches of one loop over the patterns: more spread its cost over engines, but need more slots.
const BATCH: usize = 4;
