//! The atomics and the futex that the concurrent parts are written on: the real ones, or loom's
//! when it checks them.
//!
//! Why here: `mail` and `wait` are model-checked; they may use nothing that loom cannot see. Under
//! `--cfg loom` the futex is a lock and a condition variable, which is what a futex promises: sleep
//! only while the word is unchanged.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use std::time::Duration;

/// Between two looks at something that another thread is about to change.
pub(crate) fn spin() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// A word to sleep on.
#[derive(Debug)]
pub(crate) struct Word {
    value: AtomicU32,
    #[cfg(loom)]
    sleepers: (loom::sync::Mutex<()>, loom::sync::Condvar),
}

impl Word {
    pub(crate) fn new() -> Self {
        Self {
            value: AtomicU32::new(0),
            #[cfg(loom)]
            sleepers: (loom::sync::Mutex::new(()), loom::sync::Condvar::new()),
        }
    }

    pub(crate) fn load(&self, order: Ordering) -> u32 {
        self.value.load(order)
    }

    pub(crate) fn advance(&self, order: Ordering) {
        self.value.fetch_add(1, order);
    }

    /// Sleeps while the word is `expected`; may return for no reason.
    #[cfg(not(loom))]
    pub(crate) fn sleep(&self, expected: u32, timeout: Option<Duration>) {
        sidecore_sys::futex::wait(&self.value, expected, timeout);
    }

    #[cfg(not(loom))]
    pub(crate) fn wake_all(&self) {
        sidecore_sys::futex::wake(&self.value, u32::MAX);
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
    pub(crate) fn wake_all(&self) {
        let (lock, changed) = &self.sleepers;
        drop(lock.lock().expect("loom locks are not poisoned"));
        changed.notify_all();
    }
}
