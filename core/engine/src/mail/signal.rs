//! A signal register: written by hosts, read and cleared by the engine.

use crate::wait::Waiter;
use sidecore_sync::EventCount;
use sidecore_sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Effect of a write on bits that have not been read yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SignalMode {
    /// Replaces them: one writer, one message at a time.
    #[default]
    Overwrite,
    /// ORs into them: many writers, a bit each.
    Or,
}

/// A register of 32 bits that remembers whether it was written since it was last read.
#[derive(Debug)]
pub struct Signal {
    mode: SignalMode,
    /// The bits, and [`WRITTEN`].
    register: AtomicU64,
    written: EventCount,
}

impl Signal {
    /// A register that has not been written.
    #[must_use]
    pub fn new(mode: SignalMode) -> Self {
        Self {
            mode,
            register: AtomicU64::new(0),
            written: EventCount::new(),
        }
    }

    /// Sends bits. Never blocks.
    pub fn send(&self, bits: u32) {
        let value = WRITTEN | u64::from(bits);
        // Release, to the Acquire in `try_read`: writes before the signal are visible with it.
        match self.mode {
            SignalMode::Overwrite => self.register.store(value, Ordering::Release),
            SignalMode::Or => {
                self.register.fetch_or(value, Ordering::Release);
            }
        }
        self.written.notify_all();
    }

    /// Reads and clears the register if it was written since the last read.
    pub fn try_read(&self) -> Option<u32> {
        // A load first, so that a polling reader does not take the cache line from a writer.
        if self.register.load(Ordering::Relaxed) & WRITTEN == 0 {
            return None;
        }
        // Acquire, from the Release in `send`.
        let value = self.register.swap(0, Ordering::Acquire);
        (value & WRITTEN != 0).then_some(value as u32)
    }

    /// Reads and clears the register; blocks until it is written, at most for `timeout`.
    pub fn read(&self, waiter: &Waiter, timeout: Option<Duration>) -> Option<u32> {
        waiter.wait(&self.written, timeout, || self.try_read())
    }

    /// True if it was written since the last read.
    #[must_use]
    pub fn pending(&self) -> bool {
        self.register.load(Ordering::Acquire) & WRITTEN != 0
    }
}

/// Set alongside the bits by every write, so that a write of no bits counts as one.
const WRITTEN: u64 = 1 << 32;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn modes_differ_and_reading_clears() {
        for (mode, both) in [(SignalMode::Overwrite, 4), (SignalMode::Or, 5)] {
            let signal = Signal::new(mode);
            assert_eq!(signal.try_read(), None);
            signal.send(1);
            signal.send(4);
            assert!(signal.pending());
            assert_eq!(signal.try_read(), Some(both));
            assert_eq!(signal.try_read(), None);
            signal.send(0);
            assert_eq!(signal.read(&Waiter::default(), None), Some(0));
            let late = signal.read(&Waiter::default(), Some(Duration::from_millis(1)));
            assert_eq!(late, None);
        }
    }
}
