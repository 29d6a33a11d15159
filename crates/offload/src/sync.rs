//! The atomics and the futex that the concurrent parts are written on: the real ones, or loom's
//! when it checks them.
//!
//! Why here: what is model-checked may use nothing that loom cannot see. Under `--cfg loom` the
//! futex is a notification that is kept for one who is about to sleep, which is what a futex
//! promises to the one thread that sleeps on a word here: no wake-up falls between its look at the
//! word and its sleep.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

#[cfg(not(loom))]
pub(crate) use parking_lot::Mutex;

#[cfg(loom)]
pub(crate) use model::Mutex;

use std::time::Duration;

#[cfg(loom)]
mod model {
    /// Loom's mutex with the interface of the real one.
    #[derive(Debug)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
            // Nothing panics while it holds one.
            self.0
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
        }
    }
}

/// A word that one thread sleeps on.
#[derive(Debug)]
pub(crate) struct Word {
    pub(crate) value: AtomicU32,
    #[cfg(loom)]
    woken: loom::sync::Notify,
}

impl Word {
    pub(crate) fn new(value: u32) -> Self {
        Self {
            value: AtomicU32::new(value),
            #[cfg(loom)]
            woken: loom::sync::Notify::new(),
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
        // A read-modify-write sees the newest value, as the kernel does.
        if self.value.fetch_or(0, Ordering::AcqRel) == expected {
            self.woken.wait();
        }
    }

    #[cfg(loom)]
    pub(crate) fn wake(&self) {
        self.woken.notify();
    }
}
