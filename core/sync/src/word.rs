//! A word of 32 bits to sleep on, private to a process or shared by several.
//!
//! Why here: only this module knows the two kinds of futex, and their stand-in under loom: a lock
//! and a condition variable, which keep a futex's promise (sleep only while the word is unchanged).

use crate::atomic::AtomicU32;
#[cfg(loom)]
use crate::atomic::Ordering;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::time::Duration;

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Private {}
    impl Sealed for super::Shared {}
}

/// Kind of futex that sleepers of a word use.
pub trait Futex: sealed::Sealed + Debug + Send + Sync + 'static {
    /// Sleeps while `word` holds `expected`, at most for `timeout`; may return for no reason.
    #[doc(hidden)]
    #[cfg(not(loom))]
    fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>);
    /// Wakes at most `count` sleepers. A system call.
    #[doc(hidden)]
    #[cfg(not(loom))]
    fn wake(word: &AtomicU32, count: u32);
}

/// Futex of one process: the kernel finds sleepers by address.
#[derive(Debug)]
pub enum Private {}

/// Futex in memory that several processes map: the kernel finds sleepers by page.
#[derive(Debug)]
pub enum Shared {}

#[cfg(not(loom))]
impl Futex for Private {
    fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
        sidecore_sys::futex::wait(word, expected, timeout);
    }

    fn wake(word: &AtomicU32, count: u32) {
        sidecore_sys::futex::wake(word, count);
    }
}

#[cfg(not(loom))]
impl Futex for Shared {
    fn wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
        sidecore_sys::shared_futex::wait(word, expected, timeout.unwrap_or(Duration::MAX));
    }

    fn wake(word: &AtomicU32, count: u32) {
        sidecore_sys::shared_futex::wake(word, count);
    }
}

#[cfg(loom)]
impl Futex for Private {}
#[cfg(loom)]
impl Futex for Shared {}

/// A futex word. It has no other field, so that it may be placed in shared memory.
#[derive(Debug)]
#[cfg_attr(not(loom), repr(transparent))]
pub(crate) struct Word<F> {
    value: AtomicU32,
    #[cfg(loom)]
    sleepers: (loom::sync::Mutex<()>, loom::sync::Condvar),
    kind: PhantomData<F>,
}

impl<F: Futex> Word<F> {
    #[cfg(not(loom))]
    pub(crate) const fn new(value: u32) -> Self {
        Self {
            value: AtomicU32::new(value),
            kind: PhantomData,
        }
    }

    #[cfg(loom)]
    pub(crate) fn new(value: u32) -> Self {
        Self {
            value: AtomicU32::new(value),
            sleepers: (loom::sync::Mutex::new(()), loom::sync::Condvar::new()),
            kind: PhantomData,
        }
    }

    #[inline]
    pub(crate) fn value(&self) -> &AtomicU32 {
        &self.value
    }

    /// Sleeps while the word is `expected`; may return for no reason.
    #[cfg(not(loom))]
    pub(crate) fn sleep(&self, expected: u32, timeout: Option<Duration>) {
        F::wait(&self.value, expected, timeout);
    }

    #[cfg(not(loom))]
    pub(crate) fn wake(&self, count: u32) {
        F::wake(&self.value, count);
    }

    #[cfg(loom)]
    pub(crate) fn sleep(&self, expected: u32, _timeout: Option<Duration>) {
        let (lock, changed) = &self.sleepers;
        let guard = lock.lock().expect("loom locks are not poisoned");
        // A read-modify-write sees the newest value, as the kernel does.
        if self.value.fetch_or(0, Ordering::Relaxed) == expected {
            drop(changed.wait(guard).expect("loom locks are not poisoned"));
        }
    }

    #[cfg(loom)]
    pub(crate) fn wake(&self, count: u32) {
        let (lock, changed) = &self.sleepers;
        drop(lock.lock().expect("loom locks are not poisoned"));
        if count == 1 {
            changed.notify_one();
        } else {
            changed.notify_all();
        }
    }
}
