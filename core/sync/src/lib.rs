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
mod protocol {
    //! The two fences of the sleep/wake protocol.
    //!
    //! Why here: every sleeper and every waker of the project runs through these two functions, so
    //! each ordering has its partner here. README.md, "No wake-up is lost".

    use crate::atomic::{Ordering, fence};

    /// Proof that a change was made visible: the fence between a change and the look for sleepers.
    ///
    /// One proof serves any number of looks, so a change that several sleepers may wait for costs
    /// one fence. It is worth nothing for changes that are made after it.
    #[derive(Debug, Clone, Copy)]
    pub struct Changed(());

    impl Changed {
        /// To be called after a change that a thread may sleep for. Costs a fence.
        #[inline]
        #[must_use = "sleepers are still asleep: notify them"]
        pub fn publish() -> Self {
            // Partner: the fence in `announce`. Either we see the sleeper that was announced before
            // it, or the sleeper sees the change.
            fence(Ordering::SeqCst);
            Self(())
        }
    }

    /// The fence between a sleeper's announcement and its last look at the condition.
    #[inline]
    pub(crate) fn announce() {
        // Partner: the fence in `Changed::publish`.
        fence(Ordering::SeqCst);
    }
}
mod sleep_word;
pub mod spsc {
    //! Bounded rings of one producer and one consumer, whose two ends distrust one another.
    //!
    //! - [`Producer`] and [`Consumer`]: the positions of both ends, wherever they and the entries
    //!   lie. For records of any size in memory that the caller lays out.
    //! - [`lines`]: entries of one cache line each, in shared memory or elsewhere: a message moves
    //!   one line from core to core.
    //! - [`ring`]: values of a type, in this process: acquire, commit, wait, release.
    //!
    //! All three are the same protocol: an end knows its own position, which no other memory can
    //! change, and keeps the last copy of the other's. It reads the other's only where the copy
    //! does not suffice. Such a read copies the position once and checks the copy: positions never
    //! fall, a consumer is never ahead of its producer, a producer never more than the capacity
    //! ahead of its consumer. So no value that the other side writes makes this side index out of
    //! bounds or loop.
    //!
    //! Must stay true: one thread at a time at each end. Positions are 64 bits wide and do not wrap
    //! in any machine's life. README.md has the picture.

    mod line_ring;
    mod positions;
    mod typed;

    pub use positions::{Consumer, Producer, Violation};

    /// Rings whose entries are a cache line each.
    pub mod lines {
        pub use super::line_ring::{LINE_WORDS, Line, Lines, Reader, SharedLines, Writer};
    }

    pub use typed::{Acquired, Receiver, Sender, Waited, ring};
}
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
