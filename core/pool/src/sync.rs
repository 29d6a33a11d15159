//! The atomics and the lock that the modelled parts are written on: the real ones, or loom's.
//!
//! Why here: model-checked code may use nothing that loom cannot see.

pub(crate) use sidecore_sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(not(loom))]
pub(crate) use parking_lot::Mutex;

#[cfg(loom)]
pub(crate) use model::Mutex;

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
