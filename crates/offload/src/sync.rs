//! The atomics and the futex that the concurrent parts are written on: the real ones, or loom's
//! when it checks them.
//!
//! Why here: what is model-checked may use nothing that loom cannot see. Under `--cfg loom` the
//! futex is a lock and a condition variable, which is what a futex promises: sleep only while the
//! word is unchanged.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use std::time::Duration;

/// A word to sleep on.
#[derive(Debug)]
pub(crate) struct Word {
    pub(crate) value: AtomicU32,
    #[cfg(loom)]
    sleepers: (loom::sync::Mutex<()>, loom::sync::Condvar),
}

impl Word {
    pub(crate) fn new(value: u32) -> Self {
        Self {
            value: AtomicU32::new(value),
            #[cfg(loom)]
            sleepers: (loom::sync::Mutex::new(()), loom::sync::Condvar::new()),
        }
    }

    /// Sleeps while the word is `expected`, at most for `timeout`; may return for no reason.
    #[cfg(not(loom))]
    pub(crate) fn sleep(&self, expected: u32, timeout: Option<Duration>) {
        sidecore_sys::futex::wait(&self.value, expected, timeout);
    }

    #[cfg(not(loom))]
    pub(crate) fn wake(&self) {
        sidecore_sys::futex::wake(&self.value, 1);
    }

    #[cfg(loom)]
    pub(crate) fn sleep(&self, expected: u32, _timeout: Option<Duration>) {
        let (lock, changed) = &self.sleepers;
        let guard = lock.lock().expect("loom locks are not poisoned");
        if self.value.load(Ordering::Relaxed) == expected {
            drop(changed.wait(guard).expect("loom locks are not poisoned"));
        }
    }

    #[cfg(loom)]
    pub(crate) fn wake(&self) {
        let (lock, changed) = &self.sleepers;
        drop(lock.lock().expect("loom locks are not poisoned"));
        changed.notify_one();
    }
}
