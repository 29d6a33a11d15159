//! Pins of the cache's slots, and the list of spent slots: the part of the book-keeping that
//! readers change without the cache's lock.
//!
//! Why here: a hit would otherwise take the one lock of the cache twice, to pin and to unpin.
//! Must stay true: **pins are added only under the cache's lock.** So a slot that is seen unpinned
//! under it stays unpinned while it is held, although readers unpin at any time. A slot is in the
//! list at most once, and only the holder of the cache's lock takes slots out.
//! Called from: any thread; what needs the cache's lock says so.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Index of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SlotId(pub usize);

/// Pins of all slots, and the list of spent ones.
#[derive(Debug)]
pub(crate) struct Pins {
    slots: Box<[Pin]>,
    /// The slot that was listed last, plus one; 0 for an empty list.
    newest: AtomicUsize,
}

#[derive(Debug, Default)]
struct Pin {
    /// [`LISTED`], [`SUPERSEDED`], and below them the number of pins.
    word: AtomicU32,
    /// The slot that was listed before this one, as in [`Pins::newest`].
    before: AtomicUsize,
}

impl Pins {
    /// Pins of `slots` slots, none of which is pinned or spent.
    pub(super) fn new(slots: usize) -> Self {
        Self {
            slots: (0..slots).map(|_| Pin::default()).collect(),
            newest: AtomicUsize::new(0),
        }
    }

    /// Number of pins. Under the cache's lock it only falls.
    pub(super) fn count(&self, slot: SlotId) -> u32 {
        // Pairs with the release in `unpin`: at zero, all readers are done with the slot's bytes.
        self.slots[slot.0].word.load(Ordering::Acquire) & COUNT
    }

    /// Adds a pin. Under the cache's lock.
    pub(super) fn pin(&self, slot: SlotId) {
        // The lock orders this with the look at the count; see `count`.
        self.slots[slot.0].word.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the first pin of a slot that gets another frame. Under the cache's lock, with
    /// [`Self::count`] at zero.
    pub(super) fn claim(&self, slot: SlotId) {
        let word = &self.slots[slot.0].word;
        // No other thread writes an unpinned slot's word. A listed slot stays in the list.
        let listed = word.load(Ordering::Relaxed) & LISTED;
        word.store(listed + 1, Ordering::Relaxed);
    }

    /// Marks a pinned slot that no look-up finds any more: it is spent once its readers are done.
    /// Under the cache's lock.
    pub(super) fn supersede(&self, slot: SlotId) {
        self.slots[slot.0]
            .word
            .fetch_or(SUPERSEDED, Ordering::Relaxed);
    }

    /// Releases a pin; takes no lock. `spent` is true if a sequential reader is done with the
    /// frame.
    pub(super) fn unpin(&self, slot: SlotId, spent: bool) {
        let word = &self.slots[slot.0].word;
        if spent || word.load(Ordering::Relaxed) & SUPERSEDED != 0 {
            // Before the release: afterwards the slot may hold another frame, which is not spent.
            self.list(slot);
        }
        // Pairs with the acquire in `count`.
        let before = word.fetch_sub(1, Ordering::Release);
        debug_assert!(before & COUNT > 0);
    }

    /// Adds a slot to the list, unless it is there.
    fn list(&self, slot: SlotId) {
        let Pin { word, before } = &self.slots[slot.0];
        // Pairs with the release in `take_spent`, which has read `before` until then.
        if word.fetch_or(LISTED, Ordering::Acquire) & LISTED != 0 {
            return;
        }
        let mut newest = self.newest.load(Ordering::Relaxed);
        loop {
            before.store(newest, Ordering::Relaxed);
            // Pairs with the acquire in `take_spent`: there, `before` is set.
            let listed = self.newest.compare_exchange_weak(
                newest,
                slot.0 + 1,
                Ordering::Release,
                Ordering::Relaxed,
            );
            match listed {
                Ok(_) => return,
                Err(other) => newest = other,
            }
        }
    }

    /// Takes the slot that was listed last out of the list. It may have been pinned again since.
    /// Under the cache's lock: with one taker at a time, a slot that is seen as the newest and is
    /// still so at the exchange was not taken and listed again in between.
    pub(super) fn take_spent(&self) -> Option<SlotId> {
        let mut newest = self.newest.load(Ordering::Acquire);
        loop {
            let slot = SlotId(newest.checked_sub(1)?);
            let Pin { word, before } = &self.slots[slot.0];
            let next = before.load(Ordering::Relaxed);
            let taken = self.newest.compare_exchange_weak(
                newest,
                next,
                Ordering::Acquire,
                Ordering::Acquire,
            );
            match taken {
                Ok(_) => {
                    // Pairs with the acquire in `list`: the next to list it may change `before`.
                    word.fetch_and(!LISTED, Ordering::Release);
                    return Some(slot);
                }
                Err(other) => newest = other,
            }
        }
    }
}

/// The slot is in the list of spent ones.
const LISTED: u32 = 1 << 31;
/// The slot's frame has another slot by now.
const SUPERSEDED: u32 = 1 << 30;
/// Bits of the number of pins: each is held by a thread or a task, of which there are fewer.
const COUNT: u32 = SUPERSEDED - 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cache::{Cache, Lookup};
    use parking_lot::Mutex;
    use sidecore_random::Random;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn spent_slots_are_taken_once_and_the_last_one_first() {
        let pins = Pins::new(4);
        for slot in [2, 0, 3, 0] {
            pins.pin(SlotId(slot));
        }
        for slot in [2, 0, 3, 0] {
            pins.unpin(SlotId(slot), true);
        }
        let taken = std::iter::from_fn(|| pins.take_spent()).map(|slot| slot.0);
        assert_eq!(taken.collect::<Vec<_>>(), [3, 0, 2]);
        // Taken out, it may be listed again.
        pins.pin(SlotId(0));
        pins.unpin(SlotId(0), true);
        assert_eq!(pins.take_spent(), Some(SlotId(0)));
        assert_eq!(pins.take_spent(), None);
    }

    #[test]
    fn a_superseded_slot_is_spent_after_its_readers_and_a_claim_ends_that() {
        let pins = Pins::new(1);
        let slot = SlotId(0);
        pins.pin(slot);
        pins.supersede(slot);
        assert_eq!((pins.count(slot), pins.take_spent()), (1, None));
        pins.unpin(slot, false);
        assert_eq!((pins.count(slot), pins.take_spent()), (0, Some(slot)));
        pins.claim(slot);
        pins.unpin(slot, false);
        assert_eq!((pins.count(slot), pins.take_spent()), (0, None));
    }

    /// Readers unpin without the lock while others claim under it: a slot never gets another frame
    /// under a reader, and at the end all pins are gone.
    #[test]
    fn no_slot_is_claimed_under_a_reader() {
        const SLOTS: usize = 3;
        let cache = Cache::with_open(SLOTS, SLOTS);
        let pins = Arc::clone(cache.pins());
        let cache = Mutex::new(cache);
        // The frame in each slot, as its filler has left it, and if it is being filled.
        let held: [AtomicUsize; SLOTS] = Default::default();
        let filling: [AtomicBool; SLOTS] = Default::default();
        let read = |random: &mut Random| {
            let frame = random.below(6);
            let spent = random.below(2) == 0;
            let found = cache.lock().look_up(frame, 1, !spent);
            let slot = match found {
                Lookup::Full | Lookup::Filling(_) => {
                    // As a reader that gives up: it must not keep the others from the slot.
                    if let Lookup::Filling(slot) = found {
                        pins.unpin(slot, false);
                    }
                    return;
                }
                Lookup::Hit(slot) => slot,
                Lookup::Claimed { slot, .. } => {
                    assert!(!filling[slot.0].swap(true, Ordering::Relaxed));
                    held[slot.0].store(usize::MAX, Ordering::Relaxed);
                    std::thread::yield_now();
                    held[slot.0].store(usize::try_from(frame).unwrap(), Ordering::Relaxed);
                    assert!(filling[slot.0].swap(false, Ordering::Relaxed));
                    cache.lock().filled(slot, 1);
                    slot
                }
            };
            for _ in 0..random.below(3) {
                assert_eq!(held[slot.0].load(Ordering::Relaxed) as u64, frame);
                std::thread::yield_now();
            }
            pins.unpin(slot, spent);
        };
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let read = &read;
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    (0..20_000).for_each(|_| read(&mut random));
                });
            }
        });
        assert!((0..SLOTS).all(|slot| pins.count(SlotId(slot)) == 0));
        let listed: Vec<_> = std::iter::from_fn(|| pins.take_spent()).collect();
        assert!(listed.len() <= SLOTS, "{listed:?}");
    }
}
