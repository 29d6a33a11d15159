//! The map of one layer: its grains, and the slots of their bytes.
//!
//! Why here: a device of a terabyte has 268 million grains of 4 KiB. Their entries lie in leaves of
//! one slot each, and a bounded number of leaves is in memory. The pointers to leaves are always in
//! memory; runs of equal pointers are kept as one ([`Pointers`]).
//! Must stay true: a leaf that differs from the file is never evicted; a leaf that is read is
//! checked against its pointer.
//! One thread at a time uses it (the layer's lock).

use super::format::{ENTRY_BYTES, Entry, Geometry};
use super::pointers::Pointers;
use super::seal::{Part, Seal};
use super::store::Store;
use super::{Change, OverlayError};
use sidecore_bare::width::ToUsize;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The map.
pub(super) struct Map {
    seal: Arc<Seal>,
    geometry: Geometry,
    root: Pointers,
    leaves: HashMap<u64, Leaf>,
    /// Numbers of leaves in memory, in the order of eviction. A leaf that differs from the file
    /// leaves the queue when its turn comes, and is put back when it is written.
    queue: std::collections::VecDeque<u64>,
    leaves_max: usize,
    dirty: usize,
    /// Slots of pages that the last snapshot points to and the next one will not.
    outdated: Vec<u64>,
}

struct Leaf {
    entries: Box<[Entry]>,
    dirty: bool,
    /// In the queue.
    queued: bool,
    /// Used since the queue came past it.
    recent: bool,
}

impl Map {
    /// An empty map, which keeps at most `leaves_max` leaves in memory in addition to those that
    /// differ from the file.
    pub(super) fn new(seal: Arc<Seal>, geometry: Geometry, leaves_max: usize) -> Self {
        Self {
            seal,
            geometry,
            root: Pointers::new(geometry.grains.div_ceil(geometry.leaf_entries)),
            leaves: HashMap::new(),
            queue: std::collections::VecDeque::new(),
            leaves_max,
            dirty: 0,
            outdated: Vec::new(),
        }
    }

    /// Takes pointers of a snapshot, those from number `first`; false where they are not valid.
    pub(super) fn load_root(&mut self, first: u64, bytes: &[u8]) -> bool {
        self.root.load(first, bytes)
    }

    /// Grains of the device.
    pub(super) fn grains(&self) -> u64 {
        self.geometry.grains
    }

    /// The grain after the last one of the leaf that has `grain`.
    pub(super) fn leaf_end(&self, grain: u64) -> u64 {
        self.geometry.leaf_end(grain)
    }

    /// Makes it the map of a device of another number of grains. Grains behind the former end are
    /// absent, or zeros: their bytes are the same where the layers below end there, too. It may be
    /// made smaller again only while nothing was put there.
    pub(super) fn resize(&mut self, grains: u64) {
        self.geometry.grains = grains;
        let leaves = grains.div_ceil(self.geometry.leaf_entries);
        self.root.resize(leaves);
    }

    /// Leaves that differ from the file.
    pub(super) fn dirty(&self) -> usize {
        self.dirty
    }

    /// The entries of the grains in `range`, one run of equal kind after another, each with its
    /// first grain and entry and its length. Stops when `each` returns false.
    ///
    /// # Errors
    /// [`OverlayError::Damaged`] for a leaf that is damaged, and the system's.
    pub(super) fn walk(
        &mut self,
        store: &dyn Store,
        range: Range<u64>,
        each: &mut dyn FnMut(u64, &[Entry], u64) -> bool,
    ) -> Result<(), OverlayError> {
        let mut grain = range.start;
        let end = range.end.min(self.geometry.grains);
        while grain < end {
            let (number, within) = self.geometry.place(grain);
            let leaf_end = self.geometry.leaf_end(grain).min(end);
            let go_on = match (self.leaves.get(&number), self.root.get(number)) {
                // No leaf exists: one entry describes the whole run, so large holes cost little.
                (None, one @ (Entry::Absent | Entry::Zero)) => {
                    each(grain, &[one], leaf_end - grain)
                }
                _ => {
                    let entries = &self.leaf(store, number)?.entries;
                    let entries = &entries[within..within + (leaf_end - grain).to_usize()];
                    each(grain, entries, 0)
                }
            };
            if !go_on {
                break;
            }
            grain = leaf_end;
        }
        Ok(())
    }

    /// The entry of one grain.
    ///
    /// # Errors
    /// As [`Self::walk`].
    pub(super) fn get(&mut self, store: &dyn Store, grain: u64) -> Result<Entry, OverlayError> {
        let (number, within) = self.geometry.place(grain);
        match (self.leaves.get(&number), self.root.get(number)) {
            (None, one @ (Entry::Absent | Entry::Zero)) => Ok(one),
            _ => Ok(self.leaf(store, number)?.entries[within]),
        }
    }

    /// Applies one change; slots that it makes obsolete go to `freed`.
    ///
    /// # Errors
    /// As [`Self::walk`]; a change of several grains may then be applied partly.
    pub(super) fn apply(
        &mut self,
        store: &dyn Store,
        change: Change,
        freed: &mut Vec<u64>,
    ) -> Result<(), OverlayError> {
        match change {
            Change::Data { grain, slot, check } => {
                let new = Entry::Data { slot, check };
                if let Entry::Data { slot, .. } = self.set(store, grain, new)? {
                    freed.push(slot);
                }
            }
            Change::Zero { grain, count } => {
                // On replay `count` comes from the file, so the sum may overflow.
                let end = grain.saturating_add(count).min(self.geometry.grains);
                let mut grain = grain;
                while grain < end {
                    let (number, within) = self.geometry.place(grain);
                    let leaf_end = self.geometry.leaf_end(grain);
                    // A whole leaf becomes one pointer instead of entries.
                    if within == 0 && end >= leaf_end {
                        self.clear_leaf(store, number, freed)?;
                        grain = leaf_end;
                        continue;
                    }
                    for grain in grain..leaf_end.min(end) {
                        if let Entry::Data { slot, .. } = self.set(store, grain, Entry::Zero)? {
                            freed.push(slot);
                        }
                    }
                    grain = leaf_end.min(end);
                }
            }
        }
        Ok(())
    }

    fn set(&mut self, store: &dyn Store, grain: u64, new: Entry) -> Result<Entry, OverlayError> {
        let (number, within) = self.geometry.place(grain);
        let leaf = self.leaf(store, number)?;
        let old = std::mem::replace(&mut leaf.entries[within], new);
        let was_clean = !std::mem::replace(&mut leaf.dirty, true);
        self.dirty += usize::from(was_clean);
        Ok(old)
    }

    /// Makes a whole leaf zeros, without keeping a leaf.
    fn clear_leaf(
        &mut self,
        store: &dyn Store,
        number: u64,
        freed: &mut Vec<u64>,
    ) -> Result<(), OverlayError> {
        let pointer = self.root.get(number);
        if pointer == Entry::Zero && !self.leaves.contains_key(&number) {
            return Ok(());
        }
        // The leaf's entries name the slots to free, so they are read before they are dropped.
        if matches!(pointer, Entry::Data { .. }) || self.leaves.contains_key(&number) {
            for entry in &self.leaf(store, number)?.entries {
                if let Entry::Data { slot, .. } = entry {
                    freed.push(*slot);
                }
            }
        }
        if let Some(leaf) = self.leaves.remove(&number) {
            self.dirty -= usize::from(leaf.dirty);
        }
        if let Entry::Data { slot, .. } = pointer {
            self.outdated.push(slot);
        }
        self.root.set(number, Entry::Zero);
        Ok(())
    }

    /// A leaf, read into memory if it is not there.
    fn leaf(&mut self, store: &dyn Store, number: u64) -> Result<&mut Leaf, OverlayError> {
        if !self.leaves.contains_key(&number) {
            let entries = match self.root.get(number) {
                Entry::Data { slot, check } => self.read_leaf(store, number, slot, check)?,
                same => vec![same; self.geometry.leaf_entries.to_usize()].into(),
            };
            self.make_room();
            self.queue.push_back(number);
            let leaf = Leaf {
                entries,
                dirty: false,
                queued: true,
                recent: false,
            };
            self.leaves.insert(number, leaf);
        }
        let leaf = self.leaves.get_mut(&number);
        let leaf = leaf.ok_or(OverlayError::Damaged {
            what: "its map",
            at: number,
        })?;
        leaf.recent = true;
        Ok(leaf)
    }

    fn read_leaf(
        &self,
        store: &dyn Store,
        number: u64,
        slot: u64,
        check: u64,
    ) -> Result<Box<[Entry]>, OverlayError> {
        let mut bytes = vec![0; self.geometry.grain_bytes];
        store
            .read_at(&mut bytes, self.geometry.slot_at(slot))
            .map_err(OverlayError::read)?;
        let damaged = || OverlayError::Damaged {
            what: "a leaf of its map",
            at: number,
        };
        // With keys the code covers the number, so leaves cannot be exchanged.
        if self.seal.check(Part::Leaf(number), &bytes) != check {
            return Err(damaged());
        }
        let entries = bytes.as_chunks::<ENTRY_BYTES>().0.iter().map(Entry::decode);
        entries.collect::<Option<_>>().ok_or_else(damaged)
    }

    /// Evicts the least recently used leaves while too many are in memory.
    fn make_room(&mut self) {
        // Each leaf is examined at most once: all of them may be dirty or recent.
        let mut looks = self.queue.len();
        while self.leaves.len() >= self.leaves_max && looks > 0 {
            looks -= 1;
            let Some(number) = self.queue.pop_front() else {
                return;
            };
            let Some(leaf) = self.leaves.get_mut(&number) else {
                continue;
            };
            // A dirty leaf stays until a snapshot has written it.
            if leaf.dirty {
                leaf.queued = false;
            } else if std::mem::take(&mut leaf.recent) {
                self.queue.push_back(number);
            } else {
                self.leaves.remove(&number);
            }
        }
    }

    /// Writes every leaf that differs from the file into a slot of `take`, and points to it.
    /// Obsolete pages are in [`Written`]; [`Self::keep`] or [`Self::undo`] completes the step.
    ///
    /// # Errors
    /// The system's, with the slots that were taken so far in `written`.
    pub(super) fn write(
        &mut self,
        store: &dyn Store,
        take: &mut dyn FnMut() -> u64,
        written: &mut Written,
    ) -> Result<Vec<u8>, OverlayError> {
        let mut numbers: Vec<u64> = self
            .leaves
            .iter()
            .filter(|it| it.1.dirty)
            .map(|it| *it.0)
            .collect();
        // A hash map has no order: sorted, neighbouring leaves get neighbouring slots.
        numbers.sort_unstable();
        for number in numbers {
            let Some(leaf) = self.leaves.get(&number) else {
                continue;
            };
            let bytes: Vec<u8> = leaf
                .entries
                .iter()
                .flat_map(|entry| entry.encode())
                .collect();
            let slot = take();
            // The old pointer is recorded, so that [`Self::undo`] can restore it.
            written.leaves.push((number, slot, self.root.get(number)));
            store
                .write_at(&bytes, self.geometry.slot_at(slot))
                .map_err(OverlayError::write)?;
            let check = self.seal.check(Part::Leaf(number), &bytes);
            self.root.set(number, Entry::Data { slot, check });
        }
        Ok(self.root.encode())
    }

    /// Slots of pages that the snapshot being written does not point to any more.
    pub(super) fn outdated(&self, written: &Written) -> Vec<u64> {
        let replaced = written.leaves.iter().filter_map(|(_, _, old)| match old {
            Entry::Data { slot, .. } => Some(*slot),
            _ => None,
        });
        replaced.chain(self.outdated.iter().copied()).collect()
    }

    /// The snapshot is durable: the written leaves match the file.
    pub(super) fn keep(&mut self, written: &Written) {
        for (number, ..) in &written.leaves {
            if let Some(leaf) = self.leaves.get_mut(number) {
                self.dirty -= usize::from(std::mem::take(&mut leaf.dirty));
                if !std::mem::replace(&mut leaf.queued, true) {
                    self.queue.push_back(*number);
                }
            }
        }
        self.outdated.clear();
    }

    /// The snapshot could not be written: restores the pointers.
    pub(super) fn undo(&mut self, written: &Written) {
        for (number, _, old) in &written.leaves {
            self.root.set(*number, *old);
        }
    }
}

/// Leaves that were written for a snapshot: number, new slot, former pointer.
#[derive(Default)]
pub(super) struct Written {
    pub(super) leaves: Vec<(u64, u64, Entry)>,
}
