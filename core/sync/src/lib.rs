//! The one sleep/wake protocol and the one shared ring, private and between processes.
//!
//! - [`EventCount`]: any number of threads sleep until something that they look at has changed.
//! - [`SleepWord`]: the same protocol for one sleeper, in one word, which may lie in memory that
//!   processes share ([`Shared`]) or be private ([`Private`]).
//! - [`MessageCount`]: a count of messages whose one reader sleeps on the count itself.
//! - [`spsc`]: bounded rings of one producer and one consumer that distrust one another.
//! - [`atomic`]: the atomics that all of this is written on; loom's under `--cfg loom`.
//!
//! Why here: a lost wake-up or a torn entry is the bug that no test finds. So there is one
//! protocol, in prose in `README.md` beside this crate, and `tests/loom.rs` tries its
//! interleavings. The crate's only two sequentially consistent fences are [`Changed::publish`] and
//! its partner.
//!
//! Must stay true: who changes something makes the change first and looks for sleepers afterwards;
//! a sleeper announces itself first and looks at the condition afterwards; a fence stands between
//! the two steps on both sides. What is read from a ring's shared memory is copied once and
//! checked.
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

pub mod atomic;
mod event_count;
mod message_count;
mod protocol;
mod sleep_word;
pub mod spsc;
mod word;

pub use event_count::{EventCount, Prepared};
pub use message_count::MessageCount;
pub use protocol::Changed;
pub use sleep_word::SleepWord;
pub use word::{Futex, Private, Shared};

/// The README's example, compiled and run.
#[cfg(all(doctest, not(loom)))]
#[doc = include_str!("../README.md")]
struct Readme;
