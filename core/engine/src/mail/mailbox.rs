//! One mailbox: a queue of at most `N` words. The protocol is in `README.md`.

use crate::wait::Waiter;
use crossbeam_utils::CachePadded;
use sidecore_sync::EventCount;
use sidecore_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// A queue of at most `N` words of 32 bits; `N` is a power of two.
///
/// Each slot is one atomic of 64 bits: the word, and a stamp that says whose turn the slot is.
/// Stamp `2p` means that the write numbered `p` may use it, `2p + 1` that the read numbered `p`
/// may.
#[derive(Debug)]
pub struct Mailbox<const N: usize> {
    slots: CachePadded<[AtomicU64; N]>,
    /// Number of the next write.
    tail: CachePadded<AtomicU32>,
    /// Number of the next read.
    head: CachePadded<AtomicU32>,
    written: CachePadded<EventCount>,
    taken: CachePadded<EventCount>,
}

impl<const N: usize> Default for Mailbox<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Mailbox<N> {
    /// An empty mailbox.
    #[must_use]
    pub fn new() -> Self {
        const {
            assert!(
                N.is_power_of_two() && N <= 1 << 16,
                "a mailbox of 2^n words"
            )
        };
        Self {
            slots: CachePadded::new(std::array::from_fn(|index| {
                AtomicU64::new(join(2 * index as u32, 0))
            })),
            tail: CachePadded::new(AtomicU32::new(0)),
            head: CachePadded::new(AtomicU32::new(0)),
            written: CachePadded::new(EventCount::new()),
            taken: CachePadded::new(EventCount::new()),
        }
    }

    /// Writes a word if there is room; true if it was written.
    #[inline]
    pub fn try_write(&self, word: u32) -> bool {
        let done = self.push(word);
        if done {
            self.written.notify_all();
        }
        done
    }

    /// Writes a word; blocks while the mailbox is full, at most for `timeout`. Says whether it was
    /// written.
    #[inline]
    pub fn write(&self, word: u32, waiter: &Waiter, timeout: Option<Duration>) -> bool {
        let done = waiter
            .wait(&self.taken, timeout, || self.push(word).then_some(()))
            .is_some();
        if done {
            self.written.notify_all();
        }
        done
    }

    /// Takes the oldest word if there is one.
    #[inline]
    pub fn try_read(&self) -> Option<u32> {
        let word = self.pop();
        if word.is_some() {
            self.taken.notify_all();
        }
        word
    }

    /// Takes the oldest word; blocks while there is none, at most for `timeout`.
    #[inline]
    pub fn read(&self, waiter: &Waiter, timeout: Option<Duration>) -> Option<u32> {
        let word = waiter.wait(&self.written, timeout, || self.pop());
        if word.is_some() {
            self.taken.notify_all();
        }
        word
    }

    /// Number of words that wait in it, at this moment.
    #[must_use]
    pub fn count(&self) -> usize {
        let head = self.head.load(Ordering::Acquire);
        let tail = self.tail.load(Ordering::Acquire);
        // The two are not read at once: a read and writes in between could make more of it than
        // fits.
        (tail.wrapping_sub(head) as usize).min(N)
    }

    fn push(&self, word: u32) -> bool {
        let mut number = self.tail.load(Ordering::Relaxed);
        loop {
            let slot = &self.slots[number as usize % N];
            // Acquire, from the Release store in `pop`: the slot's last word has been taken.
            let (stamp, _) = split(slot.load(Ordering::Acquire));
            let turn = number.wrapping_mul(2);
            if stamp == turn {
                match self.claim(&self.tail, number) {
                    Ok(()) => {
                        // Release, to the Acquire load in `pop`: writes before the word are visible
                        // with it.
                        slot.store(join(turn.wrapping_add(1), word), Ordering::Release);
                        return true;
                    }
                    Err(newer) => number = newer,
                }
            } else if is_before(stamp, turn) {
                return false;
            } else {
                // Another write took this number; its advance of the tail came before the stamp
                // that we saw.
                number = self.tail.load(Ordering::Relaxed);
            }
        }
    }

    fn pop(&self) -> Option<u32> {
        let mut number = self.head.load(Ordering::Relaxed);
        loop {
            let slot = &self.slots[number as usize % N];
            // Acquire, from the Release store in `push`.
            let (stamp, word) = split(slot.load(Ordering::Acquire));
            let turn = number.wrapping_mul(2).wrapping_add(1);
            if stamp == turn {
                match self.claim(&self.head, number) {
                    Ok(()) => {
                        let next = number.wrapping_add(N as u32).wrapping_mul(2);
                        // Release, to the Acquire load in `push`.
                        slot.store(join(next, 0), Ordering::Release);
                        return Some(word);
                    }
                    Err(newer) => number = newer,
                }
            } else if is_before(stamp, turn) {
                return None;
            } else {
                number = self.head.load(Ordering::Relaxed);
            }
        }
    }

    /// Makes `number` ours, or says which is next. Relaxed: the slots' stamps carry the memory.
    fn claim(&self, next: &AtomicU32, number: u32) -> Result<(), u32> {
        next.compare_exchange_weak(
            number,
            number.wrapping_add(1),
            Ordering::Relaxed,
            Ordering::Relaxed,
        )
        .map(drop)
    }
}

fn join(stamp: u32, word: u32) -> u64 {
    u64::from(stamp) << 32 | u64::from(word)
}

fn split(slot: u64) -> (u32, u32) {
    ((slot >> 32) as u32, slot as u32)
}

/// True if a stamp lies before another, on a circle.
fn is_before(stamp: u32, other: u32) -> bool {
    stamp.wrapping_sub(other).cast_signed() < 0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn fills_and_empties<const N: usize>(start: u32) {
        let mut mailbox = Mailbox::<N>::new();
        mailbox.tail = CachePadded::new(AtomicU32::new(start));
        mailbox.head = CachePadded::new(AtomicU32::new(start));
        mailbox.slots = CachePadded::new(std::array::from_fn(|index| {
            let number = start.wrapping_add((index as u32).wrapping_sub(start) % N as u32);
            AtomicU64::new(join(number.wrapping_mul(2), 0))
        }));
        for round in 0..20 {
            for index in 0..N {
                assert_eq!(mailbox.count(), index);
                assert!(mailbox.try_write(round * 100 + index as u32));
            }
            assert!(!mailbox.try_write(0));
            assert_eq!(mailbox.count(), N);
            for index in 0..N {
                assert_eq!(mailbox.try_read(), Some(round * 100 + index as u32));
            }
            assert_eq!(mailbox.try_read(), None);
        }
    }

    #[test]
    fn in_order_and_bounded_over_the_counters_ends() {
        for start in [0, u32::MAX / 2 - 3, u32::MAX - 7] {
            fills_and_empties::<1>(start);
            fills_and_empties::<4>(start);
        }
    }

    #[test]
    fn many_writers_and_readers_lose_nothing() {
        const EACH: u32 = 20_000;
        let mailbox = Mailbox::<4>::new();
        let sums: Vec<u64> = std::thread::scope(|scope| {
            for writer in 0..2 {
                let mailbox = &mailbox;
                scope.spawn(move || {
                    let waiter = Waiter::default();
                    for word in 0..EACH {
                        assert!(mailbox.write(writer * EACH + word, &waiter, None));
                    }
                });
            }
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let waiter = Waiter::default();
                        let mut last = [None::<u32>; 2];
                        let mut sum = 0;
                        for _ in 0..EACH {
                            let word = mailbox.read(&waiter, None).unwrap();
                            let seen = &mut last[(word / EACH) as usize];
                            assert!(*seen < Some(word), "one writer's words come in order");
                            *seen = Some(word);
                            sum += u64::from(word);
                        }
                        sum
                    })
                })
                .collect();
            readers
                .into_iter()
                .map(|reader| reader.join().unwrap())
                .collect()
        });
        let all = u64::from(2 * EACH);
        assert_eq!(sums.iter().sum::<u64>(), all * (all - 1) / 2);
    }
}
