//! Depths, order, wrap-around, events, and all sides at once.

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
