//! Positions of a ring's two ends: private, published, and validated ones.
//!
//! Must stay true: `taken <= published <= next <= taken + capacity` at the producer, `released <=
//! next <= available <= next + capacity` at the consumer, whatever the other side writes. Partners:
//! the Release in [`Producer::publish`] and the Acquire in [`Consumer::available`]; the Release in
//! [`Consumer::release`] and the Acquire in [`Producer::room`].

use crate::atomic::{AtomicU64, Ordering};

/// The other side broke the ring's rules: its position fell, or is where it cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the other side of a ring wrote a position that cannot be; the connection has to end")]
pub struct Violation;

/// The producing end's positions, in units of the caller's choice (entries, bytes).
#[derive(Debug)]
pub struct Producer {
    capacity: u64,
    /// Position of the next unit to write.
    next: u64,
    /// Position up to which the consumer may read.
    published: u64,
    /// The consumer's position, as last read.
    taken: u64,
}

impl Producer {
    /// An end of a ring that holds `capacity` units and holds none yet.
    ///
    /// # Panics
    /// If `capacity` is 0 or more than 2^63.
    #[must_use]
    pub const fn new(capacity: u64) -> Self {
        assert!(capacity > 0 && capacity <= 1 << 63, "a ring's capacity");
        Self {
            capacity,
            next: 0,
            published: 0,
            taken: 0,
        }
    }

    /// Units known to be free, without reading the consumer's position.
    #[inline]
    #[must_use]
    pub fn known(&self) -> u64 {
        self.capacity - (self.next - self.taken)
    }

    /// Free units. Looks at the consumer's position only where the last copy of it leaves less room
    /// than `wanted`.
    ///
    /// # Errors
    /// [`Violation`] for a position that fell, or that is beyond the published one.
    #[inline]
    pub fn room(&mut self, wanted: u64, consumer: &AtomicU64) -> Result<u64, Violation> {
        let known = self.known();
        if known >= wanted {
            return Ok(known);
        }
        // Acquire: partner of the Release in `Consumer::release`; the consumer has read the entries
        // that are overwritten now. Copied once: it may change while it is checked.
        let taken = consumer.load(Ordering::Acquire);
        if taken < self.taken || taken > self.published {
            return Err(Violation);
        }
        self.taken = taken;
        Ok(self.capacity - (self.next - taken))
    }

    /// Position of the next unit to write; the ring's index is this modulo its capacity.
    #[inline]
    #[must_use]
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Units that were written and not published.
    #[inline]
    #[must_use]
    pub fn unpublished(&self) -> u64 {
        self.next - self.published
    }

    /// `count` units were written, for which [`Self::room`] said there is room.
    ///
    /// # Panics
    /// If there is none: a bug of the caller's, which would overwrite unread entries.
    #[inline]
    pub fn advance(&mut self, count: u64) {
        let room = self.known();
        assert!(count <= room, "{count} units written where {room} had room");
        self.next += count;
    }

    /// Publishes all written units to the consumer.
    #[inline]
    pub fn publish(&mut self, producer: &AtomicU64) {
        // Release: partner of the Acquire in `Consumer::available`; the entries are there.
        producer.store(self.next, Ordering::Release);
        self.published = self.next;
    }

    /// Records that all written units are visible by another mark than this end's position.
    #[inline]
    pub(crate) fn published_by_mark(&mut self) {
        self.published = self.next;
    }
}

/// The consuming end's positions.
#[derive(Debug)]
pub struct Consumer {
    capacity: u64,
    /// Position of the next unit to read.
    next: u64,
    /// Position up to which the producer may overwrite.
    released: u64,
    /// The producer's position, as last read.
    available: u64,
}

impl Consumer {
    /// An end of a ring that holds `capacity` units and holds none yet.
    ///
    /// # Panics
    /// If `capacity` is 0 or more than 2^63.
    #[must_use]
    pub const fn new(capacity: u64) -> Self {
        assert!(capacity > 0 && capacity <= 1 << 63, "a ring's capacity");
        Self {
            capacity,
            next: 0,
            released: 0,
            available: 0,
        }
    }

    /// Units that wait. Looks at the producer's position only where none is known to wait.
    ///
    /// # Errors
    /// [`Violation`] for a position that fell, or that is more than the capacity ahead of the
    /// released one.
    #[inline]
    pub fn available(&mut self, producer: &AtomicU64) -> Result<u64, Violation> {
        if self.available == self.next {
            // Acquire: partner of the Release in `Producer::publish`; the entries are there. Copied
            // once: it may change while it is checked.
            let available = producer.load(Ordering::Acquire);
            let is_ahead = available.checked_sub(self.released);
            if available < self.available || is_ahead.is_none_or(|ahead| ahead > self.capacity) {
                return Err(Violation);
            }
            self.available = available;
        }
        Ok(self.available - self.next)
    }

    /// Position of the next unit to read; the ring's index is this modulo its capacity.
    #[inline]
    #[must_use]
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Units known to wait, without reading the producer's position.
    #[inline]
    #[must_use]
    pub fn known(&self) -> u64 {
        self.available - self.next
    }

    /// Units that were read and not released.
    #[inline]
    #[must_use]
    pub fn unreleased(&self) -> u64 {
        self.next - self.released
    }

    /// `count` units were read, which [`Self::available`] said were waiting.
    ///
    /// # Panics
    /// If fewer waited: a bug of the caller's.
    #[inline]
    pub fn advance(&mut self, count: u64) {
        let known = self.known();
        assert!(count <= known, "{count} units read where {known} waited");
        self.next += count;
    }

    /// Releases all read units to the producer.
    #[inline]
    pub fn release(&mut self, consumer: &AtomicU64) {
        // Release: partner of the Acquire in `Producer::room`; our reads are done.
        consumer.store(self.next, Ordering::Release);
        self.released = self.next;
    }

    /// Records that one unit was read, found by another mark than the producer's position.
    #[inline]
    pub(crate) fn advance_by_mark(&mut self) {
        self.next += 1;
        self.available = self.next;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn impossible_positions_are_refused_and_change_nothing() {
        let mut producer = Producer::new(8);
        let (ours, theirs) = (AtomicU64::new(0), AtomicU64::new(0));
        producer.advance(8);
        producer.publish(&ours);
        for (position, expected) in [
            (3, Ok(3)),
            (2, Err(Violation)),
            (9, Err(Violation)),
            (u64::MAX, Err(Violation)),
            (8, Ok(8)),
        ] {
            theirs.store(position, Ordering::Relaxed);
            assert_eq!(producer.room(8, &theirs), expected, "{position}");
        }
        // An unpublished entry cannot have been taken.
        producer.advance(2);
        theirs.store(9, Ordering::Relaxed);
        assert_eq!(producer.room(8, &theirs), Err(Violation));

        let mut consumer = Consumer::new(8);
        for (position, expected) in [(9, Err(Violation)), (u64::MAX, Err(Violation)), (8, Ok(8))] {
            ours.store(position, Ordering::Relaxed);
            assert_eq!(consumer.available(&ours), expected, "{position}");
        }
        consumer.advance(8);
        ours.store(7, Ordering::Relaxed);
        assert_eq!(consumer.available(&ours), Err(Violation));
        // Nothing was released, so nothing can follow.
        ours.store(9, Ordering::Relaxed);
        assert_eq!(consumer.available(&ours), Err(Violation));
        consumer.release(&theirs);
        assert_eq!(consumer.available(&ours), Ok(1));
    }

    #[test]
    #[should_panic(expected = "1 units written where 0 had room")]
    fn writing_without_room_is_a_bug() {
        let mut producer = Producer::new(1);
        producer.advance(1);
        producer.advance(1);
    }
}
