//! The mailboxes of one context, without a lock: four places inbound, one outbound, one
//! interrupting.
//!
//! Why: when a host and a program both spin, a word takes as long as a line of the cache from one
//! core to the other; a lock would add a line for each side.
//!
//! `inward` is the host's line: a ring in which an entry is valid once it carries its number.
//! `outward` has the outbound words, which the program exchanges for 0 and the host for 0 again.
//! `own` is the program's, and seldom read by others: the entries that it took, and the events that
//! it has seen. Each side spins on one line that the other one writes.
//!
//! Must stay true: the functions under "the program's side" are called by the engine that has the
//! context, or under the context's lock while none has it; all others by any thread. A thread that
//! moves a word then looks at `watch`, and if a bit is set takes the context's lock and settles.
//! Setting a bit and looking again, against moving and looking at the bit, is Dekker's protocol, so
//! these accesses are SeqCst.

use crate::switch::low;
use sidecore_bare::width::ToUsize;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Places of the inbound mailbox.
const IN_DEPTH: usize = 4;
/// The same, to count numbers of entries by.
const DEPTH: u32 = 4;

/// Event bits of the mailboxes, as channel 0 numbers them.
pub(crate) mod event {
    pub(crate) const IN_MAILBOX: u32 = 0x10;
    pub(crate) const OUT_INTERRUPT: u32 = 0x40;
    pub(crate) const OUT_MAILBOX: u32 = 0x80;
}

/// Bits of `watch`: each names a watcher to notify of each word that moves.
pub(crate) mod watch {
    /// The program is parked.
    pub(crate) const PARKED: u32 = 1;
    /// A thread of the host sleeps until a word moves.
    pub(crate) const HOST: u32 = 2;
    /// Event sources show the mailboxes' state.
    pub(crate) const SOURCES: u32 = 4;
    /// Problem-state areas show it.
    pub(crate) const AREAS: u32 = 8;
    /// DMA overwrites the last inbound entry.
    pub(crate) const OVERWRITE: u32 = 16;
    /// The program's interrupts are enabled.
    pub(crate) const INTERRUPTS: u32 = 32;
}

/// `outward.taken` is at most this many entries behind `own.taken`, lest numbers that wrap meet.
const COPY_EVERY: u32 = 1 << 24;

/// The mailboxes. Lines are 128 bytes apart: processors prefetch them in pairs.
#[derive(Debug)]
pub(crate) struct Mail {
    inward: Inward,
    outward: Outward,
    own: Own,
    watch: Watch,
}

/// Written by the host.
#[derive(Debug)]
#[repr(align(128))]
struct Inward {
    /// Number of the next entry, or a number of before: a place to begin the search at.
    head: AtomicU32,
    /// A value that `own.taken` had: while it says that there is room, the other line is not read.
    taken_seen: AtomicU32,
    /// Entry n is at n mod 4: n + 1 above, the word below.
    places: [AtomicU64; IN_DEPTH],
}

/// Words with [`FULL`], or 0.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Outward {
    mailbox: AtomicU64,
    interrupt: AtomicU64,
    /// A value that `own.taken` had.
    taken: AtomicU32,
}

const FULL: u64 = 1 << 32;

#[derive(Debug)]
#[repr(align(128))]
struct Own {
    /// Number of the entry to be taken next.
    taken: AtomicU32,
    /// Conditions that held at the last look, and those that have come true since events were read.
    known: AtomicU32,
    risen: AtomicU32,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Watch(AtomicU32);

impl Mail {
    pub(crate) fn new() -> Mail {
        Mail {
            inward: Inward {
                head: AtomicU32::new(0),
                taken_seen: AtomicU32::new(0),
                // As if the lap before had been written and taken.
                places: [0, 1, 2, 3].map(|number| AtomicU64::new(entry_before(number))),
            },
            outward: Outward::default(),
            own: Own {
                taken: AtomicU32::new(0),
                known: AtomicU32::new(event::OUT_MAILBOX | event::OUT_INTERRUPT),
                risen: AtomicU32::new(0),
            },
            watch: Watch::default(),
        }
    }

    /// Bits of [`watch`] that are set.
    pub(crate) fn watched(&self) -> u32 {
        self.watch.0.load(Ordering::SeqCst)
    }

    /// Sets bits of [`watch`]; the caller has the context's lock, and looks again behind it.
    pub(crate) fn watch(&self, bits: u32) {
        if self.watched() & bits != bits {
            self.watch.0.fetch_or(bits, Ordering::SeqCst);
        }
    }

    /// Clears bits of [`watch`]; the caller has the context's lock.
    pub(crate) fn unwatch(&self, bits: u32) {
        self.watch.0.fetch_and(!bits, Ordering::SeqCst);
    }

    /// Writes the inbound mailbox; false where it is full.
    pub(crate) fn push(&self, value: u32) -> bool {
        let Inward {
            head,
            taken_seen,
            places,
            ..
        } = &self.inward;
        // Relaxed: any number that was the next one is a place to begin at, and any value that
        // `taken` ever had is a safe one, since that only grows.
        let mut number = head.load(Ordering::Relaxed);
        let mut seen = taken_seen.load(Ordering::Relaxed);
        loop {
            if number.wrapping_sub(seen) >= DEPTH {
                // Partners with the exchange in `pop`: the place was read before it is written.
                seen = self.own.taken.load(Ordering::SeqCst);
                taken_seen.store(seen, Ordering::Relaxed);
                match number.wrapping_sub(seen) {
                    0..DEPTH => {}
                    DEPTH => return false,
                    // The number is of long ago.
                    _ => number = seen,
                }
                continue;
            }
            let place = &places[place_of(number)];
            let before = place.load(Ordering::SeqCst);
            let next = number_of(before);
            if next != number.wrapping_sub(DEPTH - 1) {
                // Another thread's entry is here.
                number = next;
                continue;
            }
            // One exchange writes the entry and makes it this thread's: between two, the line
            // would be fetched by the program that spins on it.
            if place
                .compare_exchange(
                    before,
                    entry(number, value),
                    Ordering::SeqCst,
                    Ordering::SeqCst,
                )
                .is_ok()
            {
                head.store(number.wrapping_add(1), Ordering::Relaxed);
                return true;
            }
        }
    }

    /// Writes the inbound mailbox as DMA does: where it is full, the last entry is overwritten.
    /// The caller has the context's lock, which a program that took a word in the meantime waits
    /// for.
    pub(crate) fn push_over(&self, value: u32) {
        self.watch(watch::OVERWRITE);
        while !self.push(value) {
            // Full: a program that takes the first entry from now on waits behind it.
            let taken = self.own.taken.load(Ordering::SeqCst);
            let last = taken.wrapping_add(DEPTH - 1);
            let place = &self.inward.places[place_of(last)];
            if self.entry(last).is_some() {
                place.store(entry(last, value), Ordering::SeqCst);
                break;
            }
        }
        self.unwatch(watch::OVERWRITE);
    }

    /// Takes the outbound word.
    pub(crate) fn take_out(&self) -> Option<u32> {
        self.take(&self.outward.mailbox)
    }

    /// Takes the interrupting word.
    pub(crate) fn take_interrupt(&self) -> Option<u32> {
        self.take(&self.outward.interrupt)
    }

    fn take(&self, place: &AtomicU64) -> Option<u32> {
        let mut word = place.load(Ordering::SeqCst);
        while word != 0 {
            match place.compare_exchange(word, 0, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => {
                    // This line includes the program's count of taken entries, so no further load
                    // is needed.
                    let seen = self.outward.taken.load(Ordering::SeqCst);
                    self.inward.taken_seen.store(seen, Ordering::Relaxed);
                    return Some(word_of(word));
                }
                Err(other) => word = other,
            }
        }
        None
    }

    pub(crate) fn out_entries(&self) -> u32 {
        u32::from(self.outward.mailbox.load(Ordering::SeqCst) != 0)
    }

    pub(crate) fn interrupt_entries(&self) -> u32 {
        u32::from(self.outward.interrupt.load(Ordering::SeqCst) != 0)
    }

    /// Free places of the inbound mailbox.
    pub(crate) fn in_room(&self) -> u32 {
        let mut taken = self.own.taken.load(Ordering::SeqCst);
        // Entries of one moment, unless the program takes words all the time.
        for _ in 0..IN_DEPTH {
            let used = self.entries_from(taken);
            let now = self.own.taken.load(Ordering::SeqCst);
            if now == taken {
                return DEPTH - used;
            }
            taken = now;
        }
        1
    }

    /// True where no word was taken inbound yet: the program is only about to begin.
    pub(crate) fn untouched(&self) -> bool {
        self.own.taken.load(Ordering::Relaxed) == 0
    }

    /// Entries outbound, places inbound, entries interrupting, as the status register has them.
    pub(crate) fn status(&self) -> u32 {
        self.out_entries() | self.in_room() << 8 | self.interrupt_entries() << 16
    }

    // The program's side.

    /// Reads the inbound mailbox.
    pub(crate) fn pop(&self) -> Option<u32> {
        let number = self.own.taken.load(Ordering::Relaxed);
        let word = self.entry(number)?;
        let next = number.wrapping_add(1);
        self.own.taken.swap(next, Ordering::SeqCst);
        if next.is_multiple_of(COPY_EVERY) {
            self.outward.taken.store(next, Ordering::SeqCst);
        }
        // It held an entry, so it came to hold one if it did not at the last look.
        self.rise(event::IN_MAILBOX, self.entry(next).is_some());
        Some(word)
    }

    /// Entries that can be read at once.
    pub(crate) fn in_entries(&self) -> u32 {
        self.entries_from(self.own.taken.load(Ordering::Relaxed))
    }

    /// Writes the outbound mailbox; false where it is full.
    pub(crate) fn put_out(&self, value: u32) -> bool {
        self.put(&self.outward.mailbox, event::OUT_MAILBOX, value)
    }

    /// Writes the interrupting mailbox; false where it is full.
    pub(crate) fn put_interrupt(&self, value: u32) -> bool {
        self.put(&self.outward.interrupt, event::OUT_INTERRUPT, value)
    }

    fn put(&self, place: &AtomicU64, condition: u32, value: u32) -> bool {
        let word = FULL | u64::from(value);
        let taken = self.own.taken.load(Ordering::Relaxed);
        self.outward.taken.store(taken, Ordering::Relaxed);
        // No look before it: the exchange fetches the line once, and as this core's own.
        let done = place
            .compare_exchange(0, word, Ordering::SeqCst, Ordering::Relaxed)
            .is_ok();
        if done {
            self.rise(condition, false);
        }
        done
    }

    /// Conditions that came true since the last call. Nothing is missed though only the program's
    /// side looks: each of them ends by an operation of the program, which looks.
    pub(crate) fn events(&self) -> u32 {
        let now = self.conditions();
        let known = self.own.known.load(Ordering::Relaxed);
        let risen = self.own.risen.load(Ordering::Relaxed) | now & !known;
        if risen != 0 || now != known {
            self.own.known.store(now, Ordering::Relaxed);
            self.own.risen.store(0, Ordering::Relaxed);
        }
        risen
    }

    /// Events that [`Mail::events`] would find, without taking them.
    pub(crate) fn pending_events(&self) -> u32 {
        let known = self.own.known.load(Ordering::Relaxed);
        self.own.risen.load(Ordering::Relaxed) | self.conditions() & !known
    }

    /// True where there are such events.
    pub(crate) fn has_events(&self) -> bool {
        self.pending_events() != 0
    }

    /// True where the inbound mailbox can be read.
    pub(crate) fn has_word(&self) -> bool {
        self.entry(self.own.taken.load(Ordering::Relaxed)).is_some()
    }

    fn conditions(&self) -> u32 {
        let holds = |condition: bool, bit: u32| if condition { bit } else { 0 };
        holds(self.has_word(), event::IN_MAILBOX)
            | holds(self.out_entries() == 0, event::OUT_MAILBOX)
            | holds(self.interrupt_entries() == 0, event::OUT_INTERRUPT)
    }

    /// A condition held at this operation; says if it still does behind it.
    fn rise(&self, bit: u32, still: bool) {
        let Own { known, risen, .. } = &self.own;
        let before = known.load(Ordering::Relaxed);
        if before & bit == 0 {
            risen.store(risen.load(Ordering::Relaxed) | bit, Ordering::Relaxed);
        }
        let after = if still { before | bit } else { before & !bit };
        if after != before {
            known.store(after, Ordering::Relaxed);
        }
    }

    fn entries_from(&self, number: u32) -> u32 {
        let missing = |index: &u32| self.entry(number.wrapping_add(*index)).is_none();
        (0..DEPTH).find(missing).unwrap_or(DEPTH)
    }

    /// The word of an entry that is there.
    fn entry(&self, number: u32) -> Option<u32> {
        let entry = self.inward.places[place_of(number)].load(Ordering::SeqCst);
        (number_of(entry) == number.wrapping_add(1)).then_some(word_of(entry))
    }
}

/// An entry of the inbound ring.
fn entry(number: u32, value: u32) -> u64 {
    u64::from(number.wrapping_add(1)) << 32 | u64::from(value)
}

/// The upper half of an entry: its number and one.
fn number_of(entry: u64) -> u32 {
    low(entry >> 32)
}

/// The lower half of an entry, or of an outbound word with [`FULL`].
fn word_of(entry: u64) -> u32 {
    low(entry)
}

/// The place in the ring of the entry of a number.
fn place_of(number: u32) -> usize {
    (number % DEPTH).to_usize()
}

/// The entry in whose place the one of this number comes.
fn entry_before(number: u32) -> u64 {
    entry(number.wrapping_sub(DEPTH), 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn depths_and_order() {
        let mail = Mail::new();
        assert_eq!(mail.status(), 4 << 8);
        assert_eq!(mail.pop(), None);
        for round in 0..3 {
            for word in 0..4 {
                assert_eq!(mail.in_entries(), word);
                assert!(mail.push(round * 10 + word));
            }
            assert!(!mail.push(9));
            assert_eq!((mail.in_room(), mail.in_entries()), (0, 4));
            for word in 0..4 {
                assert_eq!(mail.pop(), Some(round * 10 + word));
                assert_eq!(mail.in_room(), word + 1);
            }
            assert_eq!(mail.pop(), None);
        }
        assert!(mail.put_out(0) && !mail.put_out(1));
        assert!(mail.put_interrupt(7) && !mail.put_interrupt(8));
        assert_eq!(mail.status(), 1 | 4 << 8 | 1 << 16);
        assert_eq!((mail.take_out(), mail.take_out()), (Some(0), None));
        assert_eq!(
            (mail.take_interrupt(), mail.take_interrupt()),
            (Some(7), None)
        );
    }

    /// Mailboxes in which `number` words went in, and as many out.
    fn after(number: u32) -> Mail {
        let mail = Mail::new();
        for value in [
            &mail.inward.head,
            &mail.inward.taken_seen,
            &mail.own.taken,
            &mail.outward.taken,
        ] {
            value.store(number, Ordering::SeqCst);
        }
        for index in 0..DEPTH {
            let next = number.wrapping_add(index);
            mail.inward.places[place_of(next)].store(entry_before(next), Ordering::SeqCst);
        }
        mail
    }

    #[test]
    fn numbers_wrap() {
        let mail = after(u32::MAX - 5);
        for word in 0..12 {
            assert!(mail.push(word) && mail.push(100 + word));
            assert_eq!((mail.in_room(), mail.in_entries()), (2, 2));
            assert_eq!((mail.pop(), mail.pop()), (Some(word), Some(100 + word)));
            assert_eq!((mail.pop(), mail.in_room()), (None, 4));
            assert!(mail.put_out(word) && !mail.put_out(9) && mail.out_entries() == 1);
            assert_eq!((mail.take_out(), mail.take_out()), (Some(word), None));
            assert_eq!((mail.out_entries(), mail.interrupt_entries()), (0, 0));
        }
        // Full across the end of the numbers.
        let mail = after(u32::MAX - 1);
        assert!((0..4).all(|word| mail.push(word)) && !mail.push(4));
        mail.push_over(5);
        assert_eq!(mail.in_room(), 0);
        let words: Vec<_> = std::iter::from_fn(|| mail.pop()).collect();
        assert_eq!(words, [0, 1, 2, 5]);
        // A number to begin at that a thread wrote late.
        for late in [0, 1, u32::MAX - 1, 1 << 31] {
            mail.inward.head.store(late, Ordering::SeqCst);
            mail.inward.taken_seen.store(late, Ordering::SeqCst);
            assert!(mail.push(late));
            assert_eq!((mail.pop(), mail.in_room()), (Some(late), 4));
        }
    }

    #[test]
    fn an_event_is_a_condition_that_came_true() {
        let mail = Mail::new();
        assert_eq!(mail.events(), 0);
        // An entry that came and went between two looks.
        assert!(mail.push(1) && mail.has_events());
        assert_eq!(mail.pop(), Some(1));
        assert_eq!((mail.events(), mail.events()), (event::IN_MAILBOX, 0));
        // Two entries are one event, also when they are taken one by one.
        assert!(mail.push(1) && mail.push(2));
        assert_eq!(mail.events(), event::IN_MAILBOX);
        assert_eq!((mail.pop(), mail.pop()), (Some(1), Some(2)));
        assert_eq!(mail.events(), 0);
        // The outbound mailbox became free behind the first word, and is full again.
        assert!(mail.put_out(1));
        assert_eq!((mail.events(), mail.take_out()), (0, Some(1)));
        assert!(mail.put_out(2));
        assert_eq!(mail.events(), event::OUT_MAILBOX);
        assert!(mail.put_interrupt(1) && !mail.has_events());
        assert_eq!(
            (mail.take_interrupt(), mail.events()),
            (Some(1), event::OUT_INTERRUPT)
        );
    }

    /// Two writers, a reader, and DMA that overwrites: the words of each writer arrive in order,
    /// and none twice.
    #[test]
    fn writers_and_a_reader_at_once() {
        const WORDS: u32 = 20_000;
        let mail = Mail::new();
        let lock = parking_lot::Mutex::new(());
        let done = AtomicBool::new(false);
        let mut seen = Vec::new();
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..2)
                .map(|writer| {
                    let mail = &mail;
                    scope.spawn(move || {
                        for word in 0..WORDS {
                            while !mail.push(writer << 24 | word) {
                                std::thread::yield_now();
                            }
                        }
                    })
                })
                .collect();
            let (mail, lock, done) = (&mail, &lock, &done);
            let over = scope.spawn(move || {
                for word in 0..WORDS / 10 {
                    let _held = lock.lock();
                    mail.push_over(2 << 24 | word);
                }
            });
            let seen = &mut seen;
            scope.spawn(move || {
                loop {
                    let ends = done.load(Ordering::SeqCst);
                    match mail.pop() {
                        Some(word) => seen.push(word),
                        None if ends => break,
                        None => std::thread::yield_now(),
                    }
                    if mail.watched() != 0 {
                        drop(lock.lock());
                    }
                }
            });
            for writer in writers {
                writer.join().unwrap();
            }
            over.join().unwrap();
            done.store(true, Ordering::SeqCst);
        });
        for writer in 0..3 {
            let mut last = None;
            for word in seen.iter().filter(|word| *word >> 24 == writer) {
                assert!(last.is_none_or(|last| last < *word), "{last:?} {word}");
                last = Some(*word);
            }
        }
        // Each overwritten word is one of DMA's at most; all others arrived.
        let written = (2 * WORDS + WORDS / 10) as usize;
        let overwritten = written - seen.len();
        assert!(overwritten <= (WORDS / 10) as usize, "{overwritten}");
    }
}
