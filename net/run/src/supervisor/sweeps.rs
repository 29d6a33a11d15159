//! Times of sweeps, which find the sockets whose close no event shows.
//!
//! Must stay true: sweeps take at most 1 % of the time, unless sockets come faster than that.

use std::time::{Duration, Instant};

/// The times.
#[derive(Debug)]
pub(super) struct Sweeps {
    /// New sockets since the last sweep whose close no event shows.
    unseen: usize,
    last: Instant,
    pause: Duration,
}

impl Default for Sweeps {
    fn default() -> Self {
        Self {
            unseen: 0,
            last: Instant::now(),
            pause: PAUSE,
        }
    }
}

impl Sweeps {
    pub(super) fn note_unseen(&mut self) {
        self.unseen += 1;
    }

    /// A socket at the stack was made: its close should be found soon, because its peers, or other
    /// programs, wait for the port.
    pub(super) fn hurry(&mut self) {
        self.pause = PAUSE_AT_STACK;
    }

    /// True if the next sweep is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.unseen > UNSEEN_MAX || now.saturating_duration_since(self.last) > self.pause
    }

    pub(super) fn begin(&mut self) {
        self.unseen = 0;
        self.last = Instant::now();
    }

    /// A sweep of all sockets has ended; some at the stack are left if `is_pressing`.
    pub(super) fn end(&mut self, begun: Instant, is_pressing: bool) {
        self.last = Instant::now();
        self.pause = if is_pressing {
            // A hundred times its own time: 1 %.
            PAUSE_AT_STACK.max(self.last.saturating_duration_since(begun) * 100)
        } else {
            PAUSE
        };
    }
}

const PAUSE: Duration = Duration::from_secs(10);
/// The pause while a socket has one at the stack.
const PAUSE_AT_STACK: Duration = Duration::from_secs(1);
/// New sockets that trigger an early sweep.
const UNSEEN_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_is_due_after_its_pause_or_many_sockets() {
        let mut sweeps = Sweeps::default();
        let begun = sweeps.last;
        assert!(!sweeps.is_due(begun + PAUSE));
        assert!(sweeps.is_due(begun + PAUSE + Duration::from_nanos(1)));
        for _ in 0..UNSEEN_MAX {
            sweeps.note_unseen();
        }
        assert!(!sweeps.is_due(begun));
        sweeps.note_unseen();
        assert!(sweeps.is_due(begun));
        sweeps.begin();
        assert!(!sweeps.is_due(begun));
    }

    #[test]
    fn sockets_at_the_stack_are_swept_more_often() {
        let mut sweeps = Sweeps::default();
        sweeps.hurry();
        assert_eq!(sweeps.pause, PAUSE_AT_STACK);
        sweeps.end(Instant::now(), false);
        assert_eq!(sweeps.pause, PAUSE);
        sweeps.end(Instant::now(), true);
        assert!(sweeps.pause >= PAUSE_AT_STACK && sweeps.pause < PAUSE);
    }

    #[test]
    fn a_long_sweep_earns_a_long_pause() {
        let mut sweeps = Sweeps::default();
        // As if it had begun a second ago.
        let Some(begun) = Instant::now().checked_sub(Duration::from_secs(1)) else {
            return;
        };
        sweeps.end(begun, true);
        assert!(sweeps.pause >= Duration::from_secs(100));
    }
}
