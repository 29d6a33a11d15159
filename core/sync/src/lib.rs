//! The one sleep/wake protocol and the one shared ring, private and between processes.
//!
//! - [`EventCount`]: any number of threads sleep until something that they look at has changed.
//! - [`Waiter`]: spins, yields, then sleeps at an [`EventCount`], by the history of its waits.
//! - [`SleepWord`]: the same protocol for one sleeper, in one word, which may lie in memory that
//!   processes share ([`Shared`]) or be private ([`Private`]).
//! - [`MessageCount`]: a count of messages whose one reader sleeps on the count itself.
//! - [`spsc`]: bounded rings of one producer and one consumer that distrust one another.
//! - [`atomic`]: the atomics that all of this is written on; loom's under `--cfg loom`.
//!
//! Why here: no test finds a lost wake-up or a torn entry. So there is one protocol, in prose in
//! `README.md` of this crate, and `tests/loom.rs` tries its interleavings. The crate's only two
//! sequentially consistent fences are [`Changed::publish`] and its partner.
//!
//! Must stay true: a notifier makes its change first and looks for sleepers afterwards. A sleeper
//! announces itself first and looks at the condition afterwards. A fence stands between the two
//! steps on both sides. Data from a ring's shared memory is copied once and checked.
//!
//! ```
//! use sidecore_sync::EventCount;
//! use std::sync::atomic::{AtomicU32, Ordering};
//!
//! let (value, changed): (AtomicU32, EventCount) = Default::default();
//! std::thread::scope(|scope| {
//!     scope.spawn(|| {
//!         value.store(7, Ordering::Release);
//!         changed.notify_all();
//!     });
//!     let seen = changed.wait_until(100, None, || match value.load(Ordering::Acquire) {
//!         0 => None,
//!         value => Some(value),
//!     });
//!     assert_eq!(seen, Some(7));
//! });
//! ```

mod event_count;
mod message_count;
mod protocol;
mod sleep_word;
pub mod spsc;
mod waiter;
mod word;

pub use event_count::{EventCount, Prepared};
pub use message_count::MessageCount;
pub use protocol::Changed;
pub use sleep_word::SleepWord;
pub use waiter::{WaitOptions, Waiter};
pub use word::{Futex, Private, Shared};

pub mod atomic {
    //! The atomics that the modelled parts are written on: the processor's, or loom's.
    //!
    //! Why here: loom sees an access only if it goes through loom's own types. Code that a model
    //! checks takes its atomics from here and nowhere else.

    #[cfg(not(loom))]
    pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

    #[cfg(loom)]
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

    /// Between two looks at something that another thread is about to change: the processor's
    /// pause, or a switch of loom's threads.
    #[inline]
    pub fn spin() {
        #[cfg(not(loom))]
        std::hint::spin_loop();
        #[cfg(loom)]
        loom::thread::yield_now();
    }
}

/// The README's example, compiled and run.
#[cfg(all(doctest, not(loom)))]
#[doc = include_str!("../README.md")]
struct Readme;
