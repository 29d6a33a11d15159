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
mod tests;
