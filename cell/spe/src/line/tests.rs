//! Reservations: what takes one away, and what a conditional put undoes.

use super::*;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

#[repr(align(128))]
struct Shared([AtomicU64; 16]);

impl Shared {
    fn new() -> Shared {
        crate::fault::install();
        Shared([const { AtomicU64::new(0) }; 16])
    }

    fn at(&self) -> u64 {
        address_of(self.0.as_ptr())
    }
}

fn taken(shared: &Shared, copy: &mut [u64; 16]) -> Reservation {
    Reservation::take(shared.at(), address_of(copy.as_mut_ptr())).expect("it can be read")
}

#[test]
fn a_line_that_nothing_wrote_is_put() {
    let shared = Shared::new();
    shared.0[5].store(9, Ordering::SeqCst);
    let mut copy = [0; 16];
    let own = taken(&shared, &mut copy);
    assert_eq!((copy[5], own.lost()), (9, false));
    copy[0] = 1;
    copy[15] = 2;
    assert_eq!(own.put(shared.at(), address_of(copy.as_ptr())), Some(true));
    assert_eq!(shared.0[0].load(Ordering::SeqCst), 1);
    assert_eq!(shared.0[15].load(Ordering::SeqCst), 2);
}

#[test]
fn a_write_of_either_kind_takes_a_reservation_away() {
    let shared = Shared::new();
    let mut copy = [0; 16];
    // A plain store of the host.
    let own = taken(&shared, &mut copy);
    shared.0[3].store(1, Ordering::SeqCst);
    assert!(own.lost());
    assert_eq!(own.put(shared.at(), address_of(copy.as_ptr())), Some(false));
    // An MFC's put of the same bytes, which the content does not show.
    let own = taken(&shared, &mut copy);
    written(shared.at() + 64, 8);
    assert!(own.lost());
    assert_eq!(own.put(shared.at(), address_of(copy.as_ptr())), Some(false));
    // A put that only touches the line's end, and one that ends before it.
    let own = taken(&shared, &mut copy);
    written(shared.at() + 127, 2);
    assert!(own.lost());
    drop(own);
    let own = taken(&shared, &mut copy);
    written(shared.at() - 16, 16);
    written(shared.at() + 128, 16);
    written(shared.at(), 0);
    assert!(!own.lost());
    // Another line is never put by it.
    assert_eq!(
        own.put(shared.at() + 128, address_of(copy.as_ptr())),
        Some(false)
    );
}

#[test]
fn lines_that_cannot_be_accessed_are_none() {
    crate::fault::install();
    let mut copy = [0_u64; 16];
    let place = address_of(copy.as_mut_ptr());
    assert!(Reservation::take(0, place).is_none());
    assert!(Reservation::take(1 << 46, place).is_none());
    assert!(!put_unconditionally(0x80, place));
    let shared = Shared::new();
    let own = taken(&shared, &mut copy);
    assert_eq!(own.put(shared.at(), 0), None);
}

/// Conditional puts of several programs and atomic additions of the host on one line: none is lost.
#[test]
fn counts_of_many_are_kept() {
    const ROUNDS: u64 = 2_000;
    let shared = Arc::new(Shared::new());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let shared = Arc::clone(&shared);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    loop {
                        let mut copy = [0; 16];
                        let own = taken(&shared, &mut copy);
                        copy[1] += 1;
                        copy[2] = copy[1];
                        if own.put(shared.at(), address_of(copy.as_ptr())) == Some(true) {
                            break;
                        }
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                shared.0[9].fetch_add(1, Ordering::SeqCst);
            }
        });
    });
    assert_eq!(shared.0[1].load(Ordering::SeqCst), 3 * ROUNDS);
    assert_eq!(shared.0[2].load(Ordering::SeqCst), 3 * ROUNDS);
    assert_eq!(shared.0[9].load(Ordering::SeqCst), ROUNDS);
}
