//! Reservations of 128-byte lines of any memory: getllar, putllc, putlluc.
//!
//! A table of versions, hashed by the line's address, records the lines that an MFC wrote. The
//! line's content is compared too, so that most plain stores of the host also take a reservation
//! away. Not seen: a host's store of the same bytes, and one that was undone.
//!
//! Must stay true: an entry's lock is the innermost lock. A conditional put exchanges its changed
//! words one by one against the values that were read, so that atomic instructions of the host on
//! the same line are never undone.

use crate::switch::{Exchange, address as address_of, copy, exchange};
use parking_lot::Mutex;
use sidecore_bare::width::{ToU64, ToUsize};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a lock line.
pub(crate) const LINE_BYTES: u64 = 128;

type Line = [u64; 16];

/// A line that a program read with getllar.
#[derive(Debug)]
pub(crate) struct Reservation {
    address: u64,
    version: u64,
    content: Line,
}

const ENTRIES: usize = 1024;
static VERSIONS: [Mutex<u64>; ENTRIES] = [const { Mutex::new(0) }; ENTRIES];
/// Reservations alive: while there is none, plain puts need not tell the table.
static LIVE: AtomicUsize = AtomicUsize::new(0);

impl Reservation {
    /// Reads a line into the store at `to`. `None` where it cannot be accessed.
    pub(crate) fn take(address: u64, to: u64) -> Option<Reservation> {
        let address = address & !(LINE_BYTES - 1);
        // Counted before the read, so that no put in between goes unnoticed. SeqCst partners with
        // the load in `written`.
        LIVE.fetch_add(1, Ordering::SeqCst);
        let mut own = Reservation {
            address,
            version: 0,
            content: [0; 16],
        };
        let version = entry(address).lock();
        own.version = *version;
        let content = address_of(own.content.as_mut_ptr());
        // SAFETY: an array of this size; the program names the line.
        let read = unsafe { copy(content, address, LINE_BYTES) };
        drop(version);
        // SAFETY: `to` is a line of the program's store.
        (read && unsafe { copy(to, content, LINE_BYTES) }).then_some(own)
    }

    /// True once another's write was noticed.
    pub(crate) fn lost(&self) -> bool {
        *entry(self.address).lock() != self.version || line(self.address) != Some(self.content)
    }

    /// Puts the line if there was no other write since. `None` where it cannot be accessed.
    pub(crate) fn put(self, address: u64, from: u64) -> Option<bool> {
        if address & !(LINE_BYTES - 1) != self.address {
            return Some(false);
        }
        let new = line(from)?;
        let mut version = entry(self.address).lock();
        if *version != self.version || line(self.address)? != self.content {
            return Some(false);
        }
        let changed = (0..16).filter(|word| new[*word] != self.content[*word]);
        for (done, word) in changed.clone().enumerate() {
            let at = self.address + 8 * word.to_u64();
            // SAFETY: a word of a line that the program names.
            match unsafe { exchange(at, self.content[word], new[word]) } {
                Exchange::Done => {}
                other => {
                    for word in changed.clone().take(done) {
                        let at = self.address + 8 * word.to_u64();
                        // SAFETY: as above. Fails where the host wrote meanwhile; its value stays.
                        unsafe { exchange(at, new[word], self.content[word]) };
                    }
                    return (other == Exchange::Other).then_some(false);
                }
            }
        }
        *version += 1;
        Some(true)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // Release: nothing is read under it; only the count matters.
        LIVE.fetch_sub(1, Ordering::Release);
    }
}

/// Puts a line unconditionally; false where it cannot be accessed.
pub(crate) fn put_unconditionally(address: u64, from: u64) -> bool {
    let address = address & !(LINE_BYTES - 1);
    let mut version = entry(address).lock();
    *version += 1;
    // SAFETY: the program names both lines.
    unsafe { copy(address, from, LINE_BYTES) }
}

/// Tells the table that an MFC wrote these bytes.
pub(crate) fn written(address: u64, bytes: u64) {
    // SeqCst: either this sees the count of `take`, or `take` reads the writes before this.
    if bytes == 0 || LIVE.load(Ordering::SeqCst) == 0 {
        return;
    }
    let first = address / LINE_BYTES;
    let last = (address + bytes - 1) / LINE_BYTES;
    for line in first..=last {
        *entry(line * LINE_BYTES).lock() += 1;
    }
}

fn line(address: u64) -> Option<Line> {
    let mut content: Line = [0; 16];
    // SAFETY: an array of this size; the program names the line.
    let read = unsafe { copy(address_of(content.as_mut_ptr()), address, LINE_BYTES) };
    read.then_some(content)
}

fn entry(address: u64) -> &'static Mutex<u64> {
    let mixed = (address / LINE_BYTES).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &VERSIONS[(mixed >> 54).to_usize() % ENTRIES]
}

#[cfg(test)]
mod tests {
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

    /// Conditional puts of several programs and atomic additions of the host on one line: none is
    /// lost.
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
}
