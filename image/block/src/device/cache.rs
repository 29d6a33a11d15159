//! Book-keeping of the cache of decompressed frames: which frame is in which slot.
//!
//! Why here, apart from the slots' bytes: it is pure (no lock, no I/O, no clock but the ticks that
//! callers pass in), so that a seeded test can drive it. [`super::Device`] keeps it under one mutex
//! and the bytes in locks of their own. Pins are released without the mutex ([`Pins`]).
//! Must stay true: a slot that is pinned or filling is never given to another frame. A frame is
//! found in at most one slot. The number of slots never changes. No reader waits for a pin to be
//! released: a reader that finds no slot gets [`Lookup::Full`] and reads past the cache.
//!
//! Replacement is the clock algorithm with one reference bit. Frames that came in by read-ahead or
//! from a sequential reader start without the bit, so that a scan cannot evict frames that are read
//! repeatedly. A frame that a sequential reader has read to its end is *spent*: its slot is taken
//! first, so that a stream cycles through a few slots, which stay in the processor's caches.
//!
//! Not all slots are *open* from the beginning. The clock's hand goes round the open slots; at its
//! first use and after each full turn, the cache asks for more. The caller of [`Cache::open_slots`]
//! has touched the new slots' memory before, so that no reader waits for page faults.

use super::pins::Pins;
pub(crate) use super::pins::SlotId;
use std::collections::HashMap;
use std::sync::Arc;

/// State of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing.
    Empty,
    /// A frame that another reader is decompressing.
    Filling,
    /// A frame of which this many bytes are valid, from its beginning.
    Ready(usize),
    /// As `Ready`, for readers that had it pinned when another reader needed more of the frame.
    /// That frame has another slot since; look-ups do not find this one any more.
    Superseded(usize),
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    frame: u64,
    state: State,
    referenced: bool,
    /// True when the slot's memory has been given back to the system.
    released: bool,
    /// The tick of the last use.
    used: u64,
}

/// Result of looking a frame up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// The wanted bytes are in this slot, which is now pinned.
    Hit(SlotId),
    /// Another reader is decompressing the frame into this slot, which is now pinned: wait for its
    /// bytes, then ask [`Cache::is_ready`].
    Filling(SlotId),
    /// The caller must decompress the frame into this slot, which is now pinned and filling.
    Claimed {
        /// The slot.
        slot: SlotId,
        /// True when the beginning of the frame was there before: it is being read again.
        again: bool,
    },
    /// Every slot is pinned: decompress somewhere else. Not a reason to wait: the caller itself may
    /// hold pins.
    Full,
}

/// Counts since the start.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheCounts {
    /// Lookups that found the bytes.
    pub hits: u64,
    /// Lookups that found another reader decompressing them.
    pub joins: u64,
    /// Lookups that had to decompress.
    pub misses: u64,
    /// Frames that were evicted.
    pub evictions: u64,
}

/// The book-keeping.
#[derive(Debug)]
pub(crate) struct Cache {
    slots: Vec<Slot>,
    /// Also holds the list of spent slots, which are taken first, the last one first.
    pins: Arc<Pins>,
    by_frame: HashMap<u64, SlotId>,
    hand: usize,
    /// Number of slots that may be taken, counted from the first.
    open: usize,
    /// True when the cache came into use, or the clock's hand completed a turn, since the last
    /// request for growth was taken.
    wants_growth: bool,
    tick: u64,
    counts: CacheCounts,
}

impl Cache {
    /// A cache of `slots` slots (at least 1), all of them open.
    #[cfg(test)]
    pub(crate) fn new(slots: usize) -> Self {
        Self::with_open(slots, slots)
    }

    /// A cache of `slots` slots (at least 1), the first `open` of them (at least 1) open.
    #[must_use]
    pub(crate) fn with_open(slots: usize, open: usize) -> Self {
        let slots = slots.max(1);
        let empty = Slot {
            frame: 0,
            state: State::Empty,
            referenced: false,
            released: true,
            used: 0,
        };
        Self {
            slots: vec![empty; slots],
            pins: Arc::new(Pins::new(slots)),
            // Twice the slots, so that the map never grows: removal leaves marks behind.
            by_frame: HashMap::with_capacity(slots * 2),
            hand: 0,
            open: open.clamp(1, slots),
            wants_growth: true,
            tick: 0,
            counts: CacheCounts::default(),
        }
    }

    /// The slots' pins, which readers release without the cache's lock.
    pub(crate) fn pins(&self) -> &Arc<Pins> {
        &self.pins
    }

    /// Looks `frame` up for a reader that wants its first `want` bytes, and pins or claims a slot.
    /// `keep` is true if the frame is likely to be read again.
    pub(crate) fn look_up(&mut self, frame: u64, want: usize, keep: bool) -> Lookup {
        let found = self.by_frame.get(&frame).copied();
        if let Some(slot) = found
            && let Some(lookup) = self.look_at(slot, want, keep)
        {
            return lookup;
        }
        let Some(slot) = self.find_victim() else {
            return Lookup::Full;
        };
        // Only now: without a victim the readers of the old slot would lose it for nothing.
        if let Some(old) = found {
            self.supersede(old);
        }
        if self.forget(slot) {
            self.counts.evictions += 1;
        }
        self.pins.claim(slot);
        self.slots[slot.0] = Slot {
            frame,
            state: State::Filling,
            referenced: keep,
            released: false,
            used: self.tick,
        };
        self.by_frame.insert(frame, slot);
        self.counts.misses += 1;
        Lookup::Claimed {
            slot,
            again: found.is_some(),
        }
    }

    /// Pins or claims the slot in which a frame was found; `None` if the frame needs another slot.
    fn look_at(&mut self, slot: SlotId, want: usize, keep: bool) -> Option<Lookup> {
        let entry = &mut self.slots[slot.0];
        entry.used = self.tick;
        match entry.state {
            // A scan leaves the bit unchanged: it must not clear the bits of frames in use.
            State::Ready(valid) if valid >= want => {
                self.pins.pin(slot);
                entry.referenced |= keep;
                self.counts.hits += 1;
                Some(Lookup::Hit(slot))
            }
            State::Filling => {
                self.pins.pin(slot);
                self.counts.joins += 1;
                Some(Lookup::Filling(slot))
            }
            State::Ready(_) if self.pins.count(slot) == 0 => {
                // Only a beginning is cached: decompress again, in place.
                self.pins.claim(slot);
                entry.state = State::Filling;
                entry.released = false;
                self.counts.misses += 1;
                Some(Lookup::Claimed { slot, again: true })
            }
            // Only a beginning is cached, and others read it. There may always be another reader,
            // so waiting for them could take for ever. The frame gets another slot.
            State::Ready(_) | State::Superseded(_) | State::Empty => None,
        }
    }

    /// True when a frame is in the cache or on its way there.
    #[must_use]
    pub(crate) fn contains(&self, frame: u64) -> bool {
        self.by_frame.contains_key(&frame)
    }

    /// The filler is done: the first `valid` bytes of the frame are there. Keeps the pin.
    pub(crate) fn filled(&mut self, slot: SlotId, valid: usize) {
        let entry = &mut self.slots[slot.0];
        debug_assert_eq!(entry.state, State::Filling);
        entry.state = State::Ready(valid);
    }

    /// The filler would stop after the first `valid` bytes. True when no other reader has joined:
    /// the slot is then ready with these bytes, and a reader that needs more decompresses the frame
    /// again. False when another reader has joined and relies on the whole frame: the filler must
    /// continue. Keeps the pin.
    #[must_use]
    pub(crate) fn leave(&mut self, slot: SlotId, valid: usize) -> bool {
        let entry = &mut self.slots[slot.0];
        debug_assert_eq!(entry.state, State::Filling);
        // The filler's own pin. A reader that joins later sees how many bytes are valid.
        let alone = self.pins.count(slot) == 1;
        if alone {
            entry.state = State::Ready(valid);
        }
        alone
    }

    /// The filler failed: the slot is empty. Keeps the pin.
    pub(crate) fn failed(&mut self, slot: SlotId) {
        let entry = &mut self.slots[slot.0];
        debug_assert_eq!(entry.state, State::Filling);
        entry.state = State::Empty;
        let frame = entry.frame;
        self.by_frame.remove(&frame);
    }

    /// True when a pinned slot holds at least `want` bytes of `frame`.
    #[must_use]
    pub(crate) fn is_ready(&self, slot: SlotId, frame: u64, want: usize) -> bool {
        let entry = &self.slots[slot.0];
        let (State::Ready(valid) | State::Superseded(valid)) = entry.state else {
            return false;
        };
        entry.frame == frame && valid >= want
    }

    /// Undoes a look-up; a frame that a claim evicted stays evicted.
    pub(crate) fn undo(&mut self, lookup: &Lookup) {
        match *lookup {
            Lookup::Hit(slot) | Lookup::Filling(slot) => self.pins.unpin(slot, false),
            Lookup::Claimed { slot, .. } => {
                self.failed(slot);
                self.pins.unpin(slot, false);
            }
            Lookup::Full => {}
        }
    }

    /// Sets the time to `tick`, in a unit of the caller's choice, never less than before.
    pub(crate) fn set_tick(&mut self, tick: u64) {
        self.tick = self.tick.max(tick);
    }

    /// Empties up to `limit` unpinned slots that were not used in the last `ticks` ticks, and calls
    /// `release` for each so that its memory can be given back.
    pub(crate) fn release_idle(
        &mut self,
        ticks: u64,
        limit: usize,
        mut release: impl FnMut(SlotId),
    ) {
        let now = self.tick;
        let mut left = limit;
        for slot in (0..self.slots.len()).map(SlotId) {
            if left == 0 {
                return;
            }
            let entry = &self.slots[slot.0];
            let idle = !entry.released && self.is_free(slot);
            if idle && now.saturating_sub(entry.used) >= ticks {
                let _ = self.forget(slot);
                self.slots[slot.0].released = true;
                left -= 1;
                release(slot);
            }
        }
    }

    /// Counts since the start.
    #[must_use]
    pub(crate) fn counts(&self) -> CacheCounts {
        self.counts
    }

    /// Number of open slots.
    #[must_use]
    pub(crate) fn open(&self) -> usize {
        self.open
    }

    /// True when the cache needs more open slots; true only once for each such need.
    #[must_use]
    pub(crate) fn take_growth_request(&mut self) -> bool {
        std::mem::take(&mut self.wants_growth)
    }

    /// Opens the first `count` slots; never fewer than were open.
    pub(crate) fn open_slots(&mut self, count: usize) {
        self.open = self.open.max(count.min(self.slots.len()));
    }

    /// True for a slot that may get another frame.
    fn is_free(&self, slot: SlotId) -> bool {
        self.slots[slot.0].state != State::Filling && self.pins.count(slot) == 0
    }

    /// Empties an unpinned slot; true if it held a frame.
    fn forget(&mut self, slot: SlotId) -> bool {
        let entry = &mut self.slots[slot.0];
        let held = std::mem::replace(&mut entry.state, State::Empty);
        if matches!(held, State::Ready(_)) {
            // A superseded slot's frame has another slot, and must still be found there.
            self.by_frame.remove(&entry.frame);
        }
        held != State::Empty
    }

    /// Keeps a ready slot for the readers that have it pinned, and hides it from look-ups.
    fn supersede(&mut self, slot: SlotId) {
        let entry = &mut self.slots[slot.0];
        if let State::Ready(valid) = entry.state {
            entry.state = State::Superseded(valid);
            entry.referenced = false;
            self.pins.supersede(slot);
        }
    }

    /// A spent slot, or by the clock an unpinned one without its reference bit, in at most two
    /// turns, or one that was not open when all others are pinned.
    fn find_victim(&mut self) -> Option<SlotId> {
        // Each slot is listed at most once, and readers list few while this holds the lock.
        while let Some(slot) = self.pins.take_spent() {
            // Since it was listed, it may have got other readers, or been taken by the clock.
            if self.is_free(slot) && !self.slots[slot.0].referenced {
                return Some(slot);
            }
        }
        // One turn may find only bits to clear; the second then finds a slot, if any is unpinned.
        for _ in 0..self.open * 2 {
            let slot = SlotId(self.hand);
            self.hand = (self.hand + 1) % self.open;
            self.wants_growth |= self.hand == 0 && self.open < self.slots.len();
            if !self.is_free(slot) {
                continue;
            }
            let entry = &mut self.slots[slot.0];
            // An empty slot's bit does not concern the frame that it will hold.
            if entry.state != State::Empty && entry.referenced {
                entry.referenced = false;
                continue;
            }
            return Some(slot);
        }
        // Untouched memory is better than none.
        let closed = (self.open < self.slots.len()).then_some(SlotId(self.open));
        self.open += usize::from(closed.is_some());
        closed
    }
}
