//! The mailboxes of one context, without a lock: four places inbound, one outbound, one
//! interrupting.
//!
//! Why: a host and a program that both spin exchange a word in the time that a line of the cache
//! takes from one core to the other; a lock would add a line for each side.
//!
//! Each side writes lines of its own. `inward` is the host's: a ring in which an entry is valid
//! once it carries its number. `own` is the program's: entries that it took, and the events that
//! it has seen. `outward` holds the two outbound words, which both sides exchange with 0.
//!
//! Must stay true: the functions under "the program's side" are called by the engine that has the
//! context, or under the context's lock while none has it; all others by anybody. Whoever moves a
//! word then looks at `watch`, and if a bit is set takes the context's lock and settles: setting a
//! bit and looking again, against moving and looking at the bit, is Dekker's protocol, so these
//! accesses are SeqCst.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Places of the inbound mailbox.
pub(crate) const IN_DEPTH: usize = 4;

/// Event bits of the mailboxes, as channel 0 numbers them.
pub(crate) mod event {
    pub(crate) const IN_MAILBOX: u32 = 0x10;
    pub(crate) const OUT_INTERRUPT: u32 = 0x40;
    pub(crate) const OUT_MAILBOX: u32 = 0x80;
}

/// Bits of `watch`: someone is to be told of each word that moves.
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
}

const FULL: u64 = 1 << 32;
const DEPTH: u32 = IN_DEPTH as u32;

/// The mailboxes. Lines are 128 bytes apart: processors prefetch them in pairs.
#[derive(Debug)]
pub(crate) struct Mail {
    inward: Inward,
    outward: Outward,
    own: Own,
    watch: Watch,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Inward {
    /// Number of the next entry.
    head: AtomicU32,
    /// A value that `taken` had: while it says that there is room, the other line is not read.
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
}

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
            inward: Inward::default(),
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
        } = &self.inward;
        loop {
            let number = head.load(Ordering::SeqCst);
            // Relaxed: any value that `taken` ever had is a safe one, since that only grows.
            if number.wrapping_sub(taken_seen.load(Ordering::Relaxed)) >= DEPTH {
                // Partners with the exchange in `pop`: the place was read before it is written.
                let taken = self.own.taken.load(Ordering::SeqCst);
                taken_seen.store(taken, Ordering::Relaxed);
                if number.wrapping_sub(taken) >= DEPTH {
                    if head.load(Ordering::SeqCst) == number {
                        return false;
                    }
                    continue;
                }
            }
            let next = number.wrapping_add(1);
            // The place is this thread's once the number is.
            if head
                .compare_exchange(number, next, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
            {
                let entry = u64::from(next) << 32 | u64::from(value);
                places[number as usize % IN_DEPTH].swap(entry, Ordering::SeqCst);
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
            // Full: four entries are before the last one's end, and a program stops behind the
            // first that it takes.
            let head = self.inward.head.load(Ordering::SeqCst);
            if head.wrapping_sub(self.own.taken.load(Ordering::SeqCst)) < DEPTH {
                continue;
            }
            let last = head.wrapping_sub(1) as usize % IN_DEPTH;
            let entry = u64::from(head) << 32;
            let place = &self.inward.places[last];
            let before = place.load(Ordering::SeqCst);
            // An entry whose writer is not done yet is written behind this one.
            if before & !0xffff_ffff == entry {
                place.store(entry | u64::from(value), Ordering::SeqCst);
            }
            break;
        }
        self.unwatch(watch::OVERWRITE);
    }

    /// Takes the outbound word.
    pub(crate) fn take_out(&self) -> Option<u32> {
        take(&self.outward.mailbox)
    }

    /// Takes the interrupting word.
    pub(crate) fn take_interrupt(&self) -> Option<u32> {
        take(&self.outward.interrupt)
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
        // Both numbers of one moment, unless the program takes words all the time.
        for _ in 0..IN_DEPTH {
            let head = self.inward.head.load(Ordering::SeqCst);
            let now = self.own.taken.load(Ordering::SeqCst);
            let used = head.wrapping_sub(taken);
            if now == taken || used == 0 {
                return DEPTH - used.min(DEPTH);
            }
            taken = now;
        }
        1
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
        // It held an entry, so it came to hold one if it did not at the last look.
        self.rise(event::IN_MAILBOX, self.entry(next).is_some());
        Some(word)
    }

    /// Entries that can be read at once.
    pub(crate) fn in_entries(&self) -> u32 {
        let number = self.own.taken.load(Ordering::Relaxed);
        let ready = |index: &u32| self.entry(number.wrapping_add(*index)).is_some();
        (0..DEPTH).take_while(ready).count() as u32
    }

    /// Writes the outbound mailbox; false where it is full.
    pub(crate) fn put_out(&self, value: u32) -> bool {
        let done = put(&self.outward.mailbox, value);
        if done {
            self.rise(event::OUT_MAILBOX, false);
        }
        done
    }

    /// Writes the interrupting mailbox; false where it is full.
    pub(crate) fn put_interrupt(&self, value: u32) -> bool {
        let done = put(&self.outward.interrupt, value);
        if done {
            self.rise(event::OUT_INTERRUPT, false);
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

    /// True where [`Mail::events`] would find one.
    pub(crate) fn has_events(&self) -> bool {
        let known = self.own.known.load(Ordering::Relaxed);
        self.own.risen.load(Ordering::Relaxed) | self.conditions() & !known != 0
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

    /// The word of an entry that is there.
    fn entry(&self, number: u32) -> Option<u32> {
        let entry = self.inward.places[number as usize % IN_DEPTH].load(Ordering::SeqCst);
        ((entry >> 32) as u32 == number.wrapping_add(1)).then_some(entry as u32)
    }
}

fn take(place: &AtomicU64) -> Option<u32> {
    let mut word = place.load(Ordering::SeqCst);
    while word != 0 {
        match place.compare_exchange_weak(word, 0, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return Some(word as u32),
            Err(other) => word = other,
        }
    }
    None
}

fn put(place: &AtomicU64, value: u32) -> bool {
    let word = FULL | u64::from(value);
    // No look before it: the exchange brings the line once, and as this core's own.
    place
        .compare_exchange(0, word, Ordering::SeqCst, Ordering::Relaxed)
        .is_ok()
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
        assert_eq!((mail.take_interrupt(), mail.take_interrupt()), (Some(7), None));
    }

    #[test]
    fn numbers_wrap() {
        let mail = Mail::new();
        let begin = u32::MAX - 5;
        mail.inward.head.store(begin, Ordering::SeqCst);
        mail.inward.taken_seen.store(begin, Ordering::SeqCst);
        mail.own.taken.store(begin, Ordering::SeqCst);
        for word in 0..12 {
            assert!(mail.push(word) && mail.push(100 + word));
            assert_eq!((mail.in_room(), mail.in_entries()), (2, 2));
            assert_eq!((mail.pop(), mail.pop()), (Some(word), Some(100 + word)));
            assert_eq!((mail.pop(), mail.in_room()), (None, 4));
        }
        // Full across the end of the numbers.
        mail.inward.head.store(u32::MAX - 1, Ordering::SeqCst);
        mail.own.taken.store(u32::MAX - 1, Ordering::SeqCst);
        assert!((0..4).all(|word| mail.push(word)) && !mail.push(4));
        mail.push_over(5);
        let words: Vec<_> = std::iter::from_fn(|| mail.pop()).collect();
        assert_eq!(words, [0, 1, 2, 5]);
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
        assert_eq!((mail.take_interrupt(), mail.events()), (Some(1), event::OUT_INTERRUPT));
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
