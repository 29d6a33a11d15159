//! The list of attached clients, for engines to look at.
//!
//! Why here: engines must learn of clients that come and go without a lock on their way. The list
//! is replaced as a whole; a generation announces that, and is the word that engines sleep on in
//! addition to their clients' bells. A session lives until the last engine has dropped it, so that
//! no engine ever touches unmapped memory. Written by the control thread, read by engines.

use crate::shm::session::Session;
use parking_lot::Mutex;
use sidecore_sys::shared_futex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The cores that the process may use now, for its engines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Cores {
    /// The core of each engine; none while they are those of the start.
    pub(crate) cpus: Vec<usize>,
    /// Engines of this number and above do not poll while they are idle: the process may have the
    /// time of fewer cores, and what polling takes of it is missing elsewhere.
    pub(crate) pollers: Option<usize>,
    /// There are more engines than cores.
    pub(crate) is_shared: bool,
    /// Threads wait for cores: idle engines poll for a short time only.
    pub(crate) is_wanted: bool,
}

/// Judges whether threads wait for the machine's cores, from the time for which some did.
#[derive(Debug, Default)]
pub(crate) struct Pressure {
    /// Waiting time and the clock at the last look, in microseconds.
    last: Option<(u64, u64)>,
    is_high: bool,
}

impl Pressure {
    /// True from a look with much waiting since the one before until one with little. False where
    /// waiting is not counted.
    pub(crate) fn look(&mut self, waited_us: Option<u64>, now_us: u64) -> bool {
        let Some(waited_us) = waited_us else {
            *self = Self::default();
            return false;
        };
        if let Some((waited_before, before)) = self.last.replace((waited_us, now_us))
            && now_us > before
        {
            let more_us = waited_us.saturating_sub(waited_before);
            let limit_percent = match self.is_high {
                true => LITTLE_PERCENT,
                false => MUCH_PERCENT,
            };
            // Two limits: engines that sleep sooner take a part of the waiting away.
            self.is_high = more_us.saturating_mul(100) / (now_us - before) >= limit_percent;
        }
        self.is_high
    }
}

/// The list of sessions.
#[derive(Debug, Default)]
pub struct Roster {
    sessions: Mutex<Vec<Arc<Session>>>,
    cores: Mutex<Cores>,
    generation: AtomicU32,
    ended: AtomicBool,
}

impl Roster {
    /// Replaces the list and tells the engines.
    pub fn set(&self, sessions: Vec<Arc<Session>>) {
        *self.sessions.lock() = sessions;
        self.announce();
    }

    /// Tells the engines where to run, if that has changed.
    pub(crate) fn set_cores(&self, cores: Cores) {
        let mut known = self.cores.lock();
        if *known != cores {
            *known = cores;
            drop(known);
            self.announce();
        }
    }

    /// The cores of the engines.
    pub(crate) fn cores(&self) -> Cores {
        self.cores.lock().clone()
    }

    /// Tells the engines to end.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
        self.announce();
    }

    /// The generation, which differs from `seen` when there is news.
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        // Acquire: partner of the Release in `announce`.
        self.generation.load(Ordering::Acquire)
    }

    /// The word to sleep on while there is no news.
    pub(crate) fn word(&self) -> &AtomicU32 {
        &self.generation
    }

    /// The attached clients.
    pub(crate) fn sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.lock().clone()
    }

    /// True once engines are to end.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Has the engines look around.
    pub(crate) fn announce(&self) {
        // Release: publishes the list, the end, and marks of engines' threads.
        self.generation.fetch_add(1, Ordering::Release);
        shared_futex::wake(&self.generation, u32::MAX);
    }
}

/// Share of the time in which threads wait, from which on they are many.
const MUCH_PERCENT: u64 = 25;
/// Share below which they are few again.
const LITTLE_PERCENT: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_wanted_from_much_waiting_to_little() {
        let mut pressure = Pressure::default();
        let mut waited_us = 7_000_000;
        assert!(
            !pressure.look(Some(waited_us), 0),
            "nothing to compare with"
        );
        let shares = [
            (24, false),
            (25, true),
            (10, true),
            (24, true),
            (9, false),
            (24, false),
            (100, true),
        ];
        for (second, (percent, wanted)) in (1..).zip(shares) {
            waited_us += percent * 10_000;
            let high = pressure.look(Some(waited_us), second * 1_000_000);
            assert_eq!(high, wanted, "{percent} % in second {second}");
        }
        // A second look at the same moment changes nothing.
        assert!(pressure.look(Some(waited_us), 7_000_000));
        assert!(!pressure.look(None, 8_000_000), "not counted any more");
    }
}
