//! The atomics that the modelled parts are written on: the processor's, or loom's.
//!
//! Why here: loom sees an access only if it goes through loom's own types. Code that a model checks
//! takes its atomics from here and nowhere else.

#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// Between two looks at something that another thread is about to change: the processor's pause, or
/// a switch of loom's threads.
#[inline]
pub fn spin() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}
