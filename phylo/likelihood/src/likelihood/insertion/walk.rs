//! Order in which insertions are visited, and the slots of their near sides.
//!
//! Why here: a walk of radius 15 sees hundreds of branches; kept level by level their near sides
//! would be as much memory as the tree's. Depth first, a slot is free once both branches beyond it
//! were visited.
//! Must stay true: a slot is free only when nothing that is still to be visited reads it; where a
//! walk goes depends on scores alone.

use super::Insertion;

/// A walk that is under way.
#[derive(Debug, Default)]
pub(in crate::likelihood) struct Walk {
    /// Which of the insertions are to be visited, the next ones last.
    pending: Vec<usize>,
    /// For each insertion its slot, and how many branches beyond it are still to be visited.
    slots: Vec<(usize, u32)>,
    free: Vec<usize>,
    slot_count: usize,
}

/// An insertion whose turn it is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Visited {
    /// Its number.
    pub(super) at: usize,
    /// Where its near side goes.
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

    /// The next few; nothing at the end.
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

/// Branches of one loop over the patterns: more share its cost among engines, and hold more slots.
const BATCH: usize = 4;
