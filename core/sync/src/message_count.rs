//! A count of messages that its one reader sleeps on: message and announcement in one word.
//!
//! Why here, and why not an [`EventCount`](crate::EventCount): an engine's thread reads one line
//! for each request that it gets. With the announcement in the word that counts the messages, both
//! sides' steps are read-modify-writes of one word, which are in one order for all: no fence, and
//! no second word for the sender to look at. For a sender that meets no sleeper both cost the same
//! (4.7 ns here; `examples/notify_cost.rs`); the gain of the reader's line was not measured.
//!
//! Must stay true: one thread at a time posts (senders that take turns are ordered by their lock or
//! claim); one thread reads, and each message is taken before the next is posted.

use crate::atomic::Ordering;
use crate::word::{Private, Word};

/// The lowest bit: the reader sleeps or is about to. The others count messages.
const ASLEEP: u32 = 1;
const ONE_MESSAGE: u32 = 2;

/// Messages that were posted, and whether their reader sleeps.
#[derive(Debug)]
pub struct MessageCount(Word<Private>);

impl Default for MessageCount {
    fn default() -> Self {
        Self::new()
    }
}

impl MessageCount {
    /// No message so far.
    #[must_use]
    pub fn new() -> Self {
        Self(Word::new(0))
    }

    /// Sender: counts a message, whose contents were written before; wakes the reader if it sleeps.
    #[inline]
    pub fn post(&self) {
        // The reader may fall asleep meanwhile, which the swap then sees.
        let after = self.next();
        // Release: partner of the Acquire in `poll`, publishes the message. AcqRel with the
        // exchange in `sleep`, so that one of the two sees the other.
        if self.0.value().swap(after, Ordering::AcqRel) & ASLEEP != 0 {
            self.0.wake(1);
        }
    }

    /// Sender: the count that its next message gets, as [`Self::poll`] shows it to the reader.
    #[inline]
    pub fn next(&self) -> u32 {
        // Relaxed: only the sender whose turn it is counts up.
        let before = self.0.value().load(Ordering::Relaxed);
        (before & !ASLEEP).wrapping_add(ONE_MESSAGE)
    }

    /// Reader: true if a message came after those that `seen` counts, which begins at 0; then
    /// `seen` counts it, too. Only reads, so that the line comes to the reader once a message.
    #[inline]
    pub fn poll(&self, seen: &mut u32) -> bool {
        // Acquire: partner of the Release in `post`.
        let count = self.0.value().load(Ordering::Acquire) & !ASLEEP;
        let is_new = count != *seen;
        *seen = count;
        is_new
    }

    /// Reader: sleeps until a message comes after those that `seen` counts. May return for no
    /// reason.
    #[cold]
    pub fn sleep(&self, seen: u32) {
        let asleep = seen | ASLEEP;
        // AcqRel: partner of the swap in `post`.
        let exchanged =
            self.0
                .value()
                .compare_exchange(seen, asleep, Ordering::AcqRel, Ordering::Acquire);
        // It may have been announced before, by a sleep that ended for no reason.
        if exchanged.is_ok() || exchanged == Err(asleep) {
            self.0.sleep(asleep, None);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_message_is_seen_once_also_over_the_end_of_the_count() {
        const ROUNDS: u32 = if cfg!(miri) { 10 } else { 2_000 };
        let mut seen = u32::MAX - 1 - 2 * ONE_MESSAGE;
        let messages = MessageCount(Word::new(seen));
        let answered = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    messages.post();
                    while answered.load(Ordering::Acquire) == round {
                        std::thread::yield_now();
                    }
                }
            });
            for round in 0..ROUNDS {
                while !messages.poll(&mut seen) {
                    messages.sleep(seen);
                }
                assert!(!messages.poll(&mut seen));
                answered.store(round + 1, Ordering::Release);
            }
        });
    }
}
