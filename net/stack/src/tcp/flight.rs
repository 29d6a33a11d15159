//! The most data in flight lately: how much of the congestion window the application used.
//!
//! Why here: slow start at most doubles the window that was in use, and a window of which more than
//! half is used may grow although nothing was held back: the acknowledged data proves that the path
//! takes as much (RFC 7661 section 4.1, and Linux).

use crate::wire::sequence::Sequence;

/// Maximum over a window of data.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Flight {
    /// Most bytes in flight since `end` was sent, which is the end of the window over which they
    /// are counted.
    max: u32,
    end: Sequence,
}

impl Flight {
    /// Nothing was sent; counting starts at `at`.
    pub(crate) fn restart(&mut self, at: Sequence) {
        self.end = at;
    }

    /// `bytes` are in flight, from `una` to `nxt`. The maximum counts for a whole window.
    #[inline]
    pub(crate) fn note(&mut self, bytes: u32, una: Sequence, nxt: Sequence) {
        if self.end <= una || bytes > self.max {
            self.max = bytes;
            self.end = nxt;
        }
    }

    /// All in flight was lost: the window starts again from `nxt`, and its maximum stays.
    pub(crate) fn note_timeout(&mut self, bytes: u32, nxt: Sequence) {
        self.max = self.max.max(bytes);
        self.end = nxt;
    }

    /// True if more than half of this congestion window was in flight.
    pub(crate) fn uses_half_of(&self, cwnd: u32) -> bool {
        cwnd < self.max.saturating_mul(2)
    }

    /// True while data of the window in which the maximum was reached is unacknowledged.
    pub(crate) fn is_current(&self, una: Sequence) -> bool {
        una < self.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maximum_counts_for_a_window_of_data() {
        let (mut flight, una) = (Flight::default(), Sequence::new(u32::MAX));
        flight.restart(una);
        flight.note(1_000, una, una + 1_000);
        assert!(flight.uses_half_of(1_999) && !flight.uses_half_of(2_000));
        flight.note(500, una + 500, una + 1_000);
        assert!(flight.uses_half_of(1_999) && flight.is_current(una + 999));
        flight.note(300, una + 1_000, una + 1_300);
        assert!(!flight.uses_half_of(600) && flight.is_current(una + 1_000));
        flight.note_timeout(200, una + 1_400);
        assert!(flight.uses_half_of(599), "a timeout does not lower it");
    }
}
