//! A typed ring of buffers between one producer and one consumer, on one thread or two.
//!
//! Why here: makers of machines with explicit transfers have converged on four verbs, because users
//! find bare tagged DMA taxing: the producer **acquires** a buffer, fills and **commits** it; the
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
//! is there from the start. Dropping what was acquired gives it back unchanged; dropping what was
//! waited for releases it.

use crate::wait::{Doorbell, WaitOptions, Waiter};
use crossbeam_utils::atomic::AtomicCell;
use sidecore_sys::Plain;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A ring of `DEPTH` buffers of `N` values each; see the module. It is only made, and made of two
/// halves.
pub struct Ring<T, const N: usize, const DEPTH: usize = 2> {
    /// Where the buffer number `i % DEPTH` waits for its next user; empty while somebody uses it.
    slots: [Slot<T, N>; DEPTH],
    committed: Doorbell,
    released: Doorbell,
    producer_gone: AtomicBool,
    consumer_gone: AtomicBool,
}

struct Slot<T, const N: usize> {
    /// For the producer to acquire.
    free: AtomicCell<Option<Box<Filled<T, N>>>>,
    /// For the consumer to wait for.
    full: AtomicCell<Option<Box<Filled<T, N>>>>,
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
        let ring = Arc::new(Self {
            slots: std::array::from_fn(|_| Slot {
                free: AtomicCell::new(Some(Box::new(Filled {
                    values: [T::default(); N],
                    len: 0,
                }))),
                full: AtomicCell::new(None),
            }),
            committed: Doorbell::new(),
            released: Doorbell::new(),
            producer_gone: AtomicBool::new(false),
            consumer_gone: AtomicBool::new(false),
        });
        let producer = Producer {
            ring: Arc::clone(&ring),
            next: 0,
            waiter: Waiter::new(wait),
        };
        let consumer = Consumer {
            ring,
            next: 0,
            waiter: Waiter::new(wait),
        };
        (producer, consumer)
    }
}

/// The half that fills buffers.
#[derive(Debug)]
pub struct Producer<T, const N: usize, const DEPTH: usize> {
    ring: Arc<Ring<T, N, DEPTH>>,
    next: usize,
    waiter: Waiter,
}

impl<T: Plain, const N: usize, const DEPTH: usize> Producer<T, N, DEPTH> {
    /// Takes the next buffer to fill; blocks while the consumer has them all. Its contents are an
    /// old buffer's.
    #[must_use]
    pub fn acquire(&mut self) -> Acquired<'_, T, N, DEPTH> {
        loop {
            let slot = &self.ring.slots[self.next % DEPTH];
            let free = self
                .ring
                .released
                .wait(&self.waiter, None, || slot.free.take());
            if let Some(buffer) = free {
                return Acquired {
                    producer: self,
                    buffer: Some(buffer),
                };
            }
        }
    }

    /// As [`Self::acquire`], but `None` where it would block.
    #[must_use]
    pub fn try_acquire(&mut self) -> Option<Acquired<'_, T, N, DEPTH>> {
        let buffer = self.ring.slots[self.next % DEPTH].free.take()?;
        Some(Acquired {
            producer: self,
            buffer: Some(buffer),
        })
    }

    /// Whether the consumer has been dropped: what is committed then is read by nobody.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        self.ring.consumer_gone.load(Ordering::Acquire)
    }
}

impl<T, const N: usize, const DEPTH: usize> Drop for Producer<T, N, DEPTH> {
    fn drop(&mut self) {
        self.ring.producer_gone.store(true, Ordering::Release);
        self.ring.committed.ring();
    }
}

/// A buffer that the producer fills: all `N` values of it.
#[derive(Debug)]
pub struct Acquired<'p, T: Plain, const N: usize, const DEPTH: usize> {
    producer: &'p mut Producer<T, N, DEPTH>,
    buffer: Option<Box<Filled<T, N>>>,
}

impl<T: Plain, const N: usize, const DEPTH: usize> Acquired<'_, T, N, DEPTH> {
    /// Hands the first `len` values to the consumer.
    ///
    /// # Panics
    /// Where `len` is more than `N`.
    pub fn commit(mut self, len: usize) {
        assert!(len <= N, "{len} values committed of a buffer of {N}");
        if let Some(mut buffer) = self.buffer.take() {
            buffer.len = len;
            let slot = self.producer.next % DEPTH;
            self.producer.next += 1;
            self.producer.ring.slots[slot].full.store(Some(buffer));
            self.producer.ring.committed.ring();
        }
    }
}

impl<T: Plain, const N: usize, const DEPTH: usize> Drop for Acquired<'_, T, N, DEPTH> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            let slot = self.producer.next % DEPTH;
            self.producer.ring.slots[slot].free.store(Some(buffer));
        }
    }
}

impl<T: Plain, const N: usize, const DEPTH: usize> Deref for Acquired<'_, T, N, DEPTH> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.buffer
            .as_ref()
            .map_or(&[], |buffer| &buffer.values[..])
    }
}

impl<T: Plain, const N: usize, const DEPTH: usize> DerefMut for Acquired<'_, T, N, DEPTH> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.buffer {
            Some(buffer) => &mut buffer.values,
            None => &mut [],
        }
    }
}

/// The half that uses buffers.
#[derive(Debug)]
pub struct Consumer<T, const N: usize, const DEPTH: usize> {
    ring: Arc<Ring<T, N, DEPTH>>,
    next: usize,
    waiter: Waiter,
}

impl<T: Plain, const N: usize, const DEPTH: usize> Consumer<T, N, DEPTH> {
    /// Takes the next committed buffer; blocks while there is none. `None` when the producer is
    /// gone and all that it committed has been taken.
    #[must_use]
    pub fn wait(&mut self) -> Option<Waited<'_, T, N, DEPTH>> {
        let slot = &self.ring.slots[self.next % DEPTH];
        loop {
            let full = self.ring.committed.wait(&self.waiter, None, || {
                // Gone is read first: what it committed before it went is seen by the look that
                // follows.
                let gone = self.ring.producer_gone.load(Ordering::Acquire);
                match slot.full.take() {
                    Some(buffer) => Some(Some(buffer)),
                    None => gone.then_some(None),
                }
            });
            if let Some(buffer) = full {
                return buffer.map(|buffer| Waited {
                    consumer: self,
                    buffer: Some(buffer),
                });
            }
        }
    }

    /// As [`Self::wait`], but `None` also where it would block.
    #[must_use]
    pub fn try_wait(&mut self) -> Option<Waited<'_, T, N, DEPTH>> {
        let buffer = self.ring.slots[self.next % DEPTH].full.take()?;
        Some(Waited {
            consumer: self,
            buffer: Some(buffer),
        })
    }
}

impl<T, const N: usize, const DEPTH: usize> Drop for Consumer<T, N, DEPTH> {
    fn drop(&mut self) {
        self.ring.consumer_gone.store(true, Ordering::Release);
    }
}

/// A buffer that the consumer uses: the values that were committed.
#[derive(Debug)]
pub struct Waited<'p, T: Plain, const N: usize, const DEPTH: usize> {
    consumer: &'p mut Consumer<T, N, DEPTH>,
    buffer: Option<Box<Filled<T, N>>>,
}

impl<T: Plain, const N: usize, const DEPTH: usize> Waited<'_, T, N, DEPTH> {
    /// Gives the buffer back to the producer, as dropping it does.
    pub fn release(self) {}
}

impl<T: Plain, const N: usize, const DEPTH: usize> Drop for Waited<'_, T, N, DEPTH> {
    fn drop(&mut self) {
        if let Some(buffer) = self.buffer.take() {
            let slot = self.consumer.next % DEPTH;
            self.consumer.next += 1;
            self.consumer.ring.slots[slot].free.store(Some(buffer));
            self.consumer.ring.released.ring();
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
