//! A typed ring of buffers between one producer and one consumer, on one thread or two.
//!
//! Why here: makers of machines with explicit transfers have converged on four verbs, because bare
//! tagged DMA is hard to use. The producer **acquires** a buffer, fills and **commits** it; the
//! consumer **waits** for one, uses and **releases** it. Two buffers are enough for one side to
//! work while the other does.
//!
//! ```
//! use sidecore_engine::Ring;
//!
//! let (mut producer, mut consumer) = Ring::<u32, 1024>::new();
//! std::thread::scope(|scope| {
//!     scope.spawn(move || {
//!         for round in 0..10 {
//!             let mut buffer = producer.acquire();
//!             buffer.fill(round);
//!             buffer.commit(1000);
//!         }
//!     });
//!     for round in 0..10 {
//!         let buffer = consumer.wait().expect("the producer is not done");
//!         assert_eq!((buffer.len(), buffer[999]), (1000, round));
//!         buffer.release();
//!     }
//!     assert!(consumer.wait().is_none(), "the producer is gone");
//! });
//! ```
//!
//! Must stay true: a buffer belongs to one side at a time, by ownership; order is kept; all memory
//! is there from the start. Dropping an acquired buffer gives it back unchanged; dropping a
//! waited-for one releases it.

use crate::wait::{WaitOptions, Waiter};
use sidecore_sync::{EventCount, spsc};
use sidecore_sys::Plain;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A ring of `DEPTH` buffers of `N` values each; see the module. It is only made, and made of two
/// halves.
pub struct Ring<T, const N: usize, const DEPTH: usize = 2>(PhantomData<T>);

/// State that the two halves share besides the buffers.
#[derive(Debug, Default)]
struct Halves {
    committed: EventCount,
    released: EventCount,
    producer_gone: AtomicBool,
    consumer_gone: AtomicBool,
}

#[derive(Debug)]
#[repr(align(128))]
struct Filled<T, const N: usize> {
    values: [T; N],
    len: usize,
}

impl<T, const N: usize, const DEPTH: usize> std::fmt::Debug for Ring<T, N, DEPTH> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a ring of {DEPTH} buffers of {N} values")
    }
}

impl<T: Plain + Default, const N: usize, const DEPTH: usize> Ring<T, N, DEPTH> {
    /// Makes a ring, and gives its two halves.
    #[expect(clippy::new_ret_no_self, reason = "a ring is its two halves")]
    #[must_use]
    pub fn new() -> (Producer<T, N, DEPTH>, Consumer<T, N, DEPTH>) {
        Self::with_wait(WaitOptions::default())
    }

    /// Makes a ring whose halves wait in this way.
    #[must_use]
    pub fn with_wait(wait: WaitOptions) -> (Producer<T, N, DEPTH>, Consumer<T, N, DEPTH>) {
        const {
            assert!(
                DEPTH >= 1 && N >= 1,
                "a ring of at least one buffer of one value"
            )
        };
        let (sender, receiver) = spsc::ring(DEPTH, |_| {
            Box::new(Filled {
                values: [T::default(); N],
                len: 0,
            })
        });
        let halves = Arc::new(Halves::default());
        let producer = Producer {
            buffers: sender,
            halves: Arc::clone(&halves),
            waiter: Waiter::new(wait),
        };
        let consumer = Consumer {
            buffers: receiver,
            halves,
            waiter: Waiter::new(wait),
        };
        (producer, consumer)
    }
}

/// The half that fills buffers.
#[derive(Debug)]
pub struct Producer<T, const N: usize, const DEPTH: usize> {
    buffers: spsc::Sender<Box<Filled<T, N>>>,
    halves: Arc<Halves>,
    waiter: Waiter,
}

impl<T: Plain, const N: usize, const DEPTH: usize> Producer<T, N, DEPTH> {
    /// Takes the next buffer to fill; blocks while the consumer has them all. Its contents are an
    /// old buffer's.
    #[must_use]
    pub fn acquire(&mut self) -> Acquired<'_, T, N, DEPTH> {
        let buffers = &mut self.buffers;
        let has_room = || buffers.acquire().map(drop);
        self.waiter.wait(&self.halves.released, None, has_room);
        match self.try_acquire() {
            Some(buffer) => buffer,
            // Without a timeout the wait ends with room, which only this half takes.
            None => unreachable!("room that was there is gone"),
        }
    }

    /// As [`Self::acquire`], but `None` where it would block.
    #[must_use]
    pub fn try_acquire(&mut self) -> Option<Acquired<'_, T, N, DEPTH>> {
        let buffer = self.buffers.acquire()?;
        Some(Acquired {
            buffer,
            halves: &self.halves,
        })
    }

    /// True once the consumer has been dropped: buffers committed then are never read.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        // Acquire: partner of the Release in the consumer's `drop`.
        self.halves.consumer_gone.load(Ordering::Acquire)
    }
}

impl<T, const N: usize, const DEPTH: usize> Drop for Producer<T, N, DEPTH> {
    fn drop(&mut self) {
        // Release: partner of the Acquire in `Consumer::wait`; all commits come before it.
        self.halves.producer_gone.store(true, Ordering::Release);
        self.halves.committed.notify_all();
    }
}

/// A buffer that the producer fills: all `N` values of it.
#[derive(Debug)]
pub struct Acquired<'p, T: Plain, const N: usize, const DEPTH: usize> {
    buffer: spsc::Acquired<'p, Box<Filled<T, N>>>,
    halves: &'p Halves,
}

impl<T: Plain, const N: usize, const DEPTH: usize> Acquired<'_, T, N, DEPTH> {
    /// Hands the first `len` values to the consumer.
    ///
    /// # Panics
    /// If `len` is more than `N`.
    pub fn commit(mut self, len: usize) {
        assert!(len <= N, "{len} values committed of a buffer of {N}");
        self.buffer.len = len;
        self.buffer.commit();
        self.halves.committed.notify_all();
    }
}

impl<T: Plain, const N: usize, const DEPTH: usize> Deref for Acquired<'_, T, N, DEPTH> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.buffer.values
    }
}

impl<T: Plain, const N: usize, const DEPTH: usize> DerefMut for Acquired<'_, T, N, DEPTH> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.buffer.values
    }
}

/// The half that uses buffers.
#[derive(Debug)]
pub struct Consumer<T, const N: usize, const DEPTH: usize> {
    buffers: spsc::Receiver<Box<Filled<T, N>>>,
    halves: Arc<Halves>,
    waiter: Waiter,
}

impl<T: Plain, const N: usize, const DEPTH: usize> Consumer<T, N, DEPTH> {
    /// Takes the next committed buffer; blocks while there is none. `None` when the producer was
    /// dropped and all of its commits have been taken.
    #[must_use]
    pub fn wait(&mut self) -> Option<Waited<'_, T, N, DEPTH>> {
        let (buffers, halves) = (&mut self.buffers, &self.halves);
        self.waiter.wait(&halves.committed, None, || {
            // `producer_gone` is read first: the check that follows then sees all commits before
            // the drop. Acquire: partner of the Release in the producer's `drop`.
            let gone = halves.producer_gone.load(Ordering::Acquire);
            (buffers.wait().is_some() || gone).then_some(())
        });
        self.try_wait()
    }

    /// As [`Self::wait`], but `None` also where it would block.
    #[must_use]
    pub fn try_wait(&mut self) -> Option<Waited<'_, T, N, DEPTH>> {
        let buffer = self.buffers.wait()?;
        Some(Waited {
            buffer: Some(buffer),
            halves: &self.halves,
        })
    }
}

impl<T, const N: usize, const DEPTH: usize> Drop for Consumer<T, N, DEPTH> {
    fn drop(&mut self) {
        // Release: partner of the Acquire in `is_abandoned`.
        self.halves.consumer_gone.store(true, Ordering::Release);
    }
}

/// A buffer that the consumer uses: the values that were committed.
#[derive(Debug)]
pub struct Waited<'p, T: Plain, const N: usize, const DEPTH: usize> {
    /// Taken only by `drop`.
    buffer: Option<spsc::Waited<'p, Box<Filled<T, N>>>>,
    halves: &'p Halves,
}

impl<T: Plain, const N: usize, const DEPTH: usize> Waited<'_, T, N, DEPTH> {
    /// Gives the buffer back to the producer, as dropping it does.
    pub fn release(self) {}
}

impl<T: Plain, const N: usize, const DEPTH: usize> Drop for Waited<'_, T, N, DEPTH> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            buffer.release();
            self.halves.released.notify_all();
        }
    }
}

impl<T: Plain, const N: usize, const DEPTH: usize> Deref for Waited<'_, T, N, DEPTH> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.buffer
            .as_ref()
            .map_or(&[], |buffer| &buffer.values[..buffer.len])
    }
}
