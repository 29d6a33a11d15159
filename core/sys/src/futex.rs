//! Waiting on a 32-bit word, and waking its waiters; private to this process.
//!
//! Why here: everything that blocks in this project blocks here. Source: futex(2).
//!
//! ```
//! use sidecore_sys::futex;
//! use std::sync::atomic::{AtomicU32, Ordering};
//!
//! let word = AtomicU32::new(0);
//! std::thread::scope(|scope| {
//!     scope.spawn(|| {
//!         word.store(1, Ordering::Release);
//!         futex::wake(&word, 1);
//!     });
//!     // Returns at once where the word has changed before.
//!     while word.load(Ordering::Acquire) == 0 {
//!         futex::wait(&word, 0, None);
//!     }
//! });
//! ```

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Timespec};
use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Result of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// Woken, the word had changed, or a spurious wake-up: check the condition again.
    LookAgain,
    /// The time-out expired.
    TimedOut,
}

/// Sleeps while `word` holds `expected`, for at most `timeout`. May return early for no reason.
#[inline]
pub fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) -> Woken {
    let limit = timeout.map(|time| Timespec {
        tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: time.subsec_nanos().into(),
    });
    match futex::wait(word, Flags::PRIVATE, expected, limit.as_ref()) {
        Err(Errno::TIMEDOUT) => Woken::TimedOut,
        _ => Woken::LookAgain,
    }
}

/// Wakes at most `count` threads that wait on `word`, and returns how many it woke.
#[inline]
pub fn wake(word: &AtomicU32, count: u32) -> usize {
    // The kernel takes a signed count; a failure is impossible for a mapped, aligned word.
    futex::wake(word, Flags::PRIVATE, count.min(i32::MAX as u32)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_changed_word_does_not_block_and_time_runs_out() {
        let word = AtomicU32::new(1);
        assert_eq!(wait(&word, 0, None), Woken::LookAgain);
        assert_eq!(
            wait(&word, 1, Some(Duration::from_millis(1))),
            Woken::TimedOut
        );
        assert_eq!(wake(&word, u32::MAX), 0);
    }

    #[test]
    fn a_sleeper_is_woken() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while word.load(Ordering::Acquire) == 0 {
                    wait(&word, 0, None);
                }
            });
            std::thread::sleep(Duration::from_millis(5));
            word.store(1, Ordering::Release);
            wake(&word, 1);
        });
    }
}
