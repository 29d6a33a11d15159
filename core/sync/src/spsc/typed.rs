//! A ring of values in this process: the producer acquires a place, fills and commits it; the
//! consumer waits for one, uses and releases it.
//!
//! Why here: users of explicit transfers work in the buffers themselves, so nothing is copied and
//! nothing allocated after the start. Never blocks: an end that wants to sleep for the other side
//! pairs it with an [`EventCount`](crate::EventCount).
//!
//! Why `unsafe` is here: the borrow checker cannot see that a place belongs to one end at a time.
//! Must stay true: the producer touches only places between its position and the consumer's plus
//! the capacity. The consumer touches only those between its position and the published one. Each
//! end is one value that is neither cloned nor shared.
#![allow(unsafe_code)]

use super::positions::{Consumer, Producer};
use crate::atomic::AtomicU64;
use crossbeam_utils::CachePadded;
use sidecore_bare::width::{ToU64, ToUsize};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

#[cfg(loom)]
use loom::cell::UnsafeCell;

/// A cell with the interface of loom's.
#[cfg(not(loom))]
#[derive(Debug)]
struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline]
    fn with_mut<R>(&self, work: impl FnOnce(*mut T) -> R) -> R {
        work(self.0.get())
    }
}

struct Memory<T> {
    /// The places; their number is a power of two, so that an index is a mask.
    places: Box<[UnsafeCell<T>]>,
    producer: CachePadded<AtomicU64>,
    consumer: CachePadded<AtomicU64>,
}

// SAFETY: each place is touched by one end at a time (see the module's head), and passes between
// them by the Release and Acquire of the positions; so its value only has to be `Send`.
unsafe impl<T: Send> Sync for Memory<T> {}

impl<T> Memory<T> {
    /// The place of a position, which is the caller's until it publishes or releases it.
    #[inline]
    fn place(&self, position: u64) -> *mut T {
        let index = position.to_usize() & (self.places.len() - 1);
        self.places[index].with_mut(|place| place)
    }
}

/// Makes a ring of `capacity` places, with a value of `init` in each; gives its two ends.
///
/// ```
/// let (mut sender, mut receiver) = sidecore_sync::spsc::ring(2, |_| [0_u8; 64]);
/// let mut place = sender.acquire().expect("an empty ring has room");
/// place[0] = 7;
/// place.commit();
/// let place = receiver.wait().expect("one was committed");
/// assert_eq!(place[0], 7);
/// place.release();
/// assert!(receiver.wait().is_none());
/// ```
///
/// # Panics
/// If `capacity` is 0.
pub fn ring<T>(capacity: usize, init: impl FnMut(usize) -> T) -> (Sender<T>, Receiver<T>) {
    let places = (0..capacity.next_power_of_two()).map(init);
    let memory = Arc::new(Memory {
        places: places.map(UnsafeCell::new).collect(),
        producer: CachePadded::new(AtomicU64::new(0)),
        consumer: CachePadded::new(AtomicU64::new(0)),
    });
    let sender = Sender {
        memory: Arc::clone(&memory),
        end: Producer::new(capacity.to_u64()),
    };
    let receiver = Receiver {
        memory,
        end: Consumer::new(capacity.to_u64()),
    };
    (sender, receiver)
}

/// The sending end, which fills places.
pub struct Sender<T> {
    memory: Arc<Memory<T>>,
    end: Producer,
}

impl<T> Sender<T> {
    /// The next place to fill, with its last contents; `None` while the receiver has them all.
    #[inline]
    pub fn acquire(&mut self) -> Option<Acquired<'_, T>> {
        // The other end is this crate's: its positions are valid.
        let room = self.end.room(1, &self.memory.consumer).unwrap_or(0);
        (room > 0).then_some(Acquired { sender: self })
    }
}

impl<T> std::fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.end.fmt(f)
    }
}

/// A place that the producer fills. Dropping it leaves it to the next [`Sender::acquire`].
#[derive(Debug)]
pub struct Acquired<'s, T> {
    sender: &'s mut Sender<T>,
}

impl<T> Acquired<'_, T> {
    /// Hands the place to the receiver.
    #[inline]
    pub fn commit(self) {
        let Sender { memory, end } = self.sender;
        end.advance(1);
        end.publish(&memory.producer);
    }
}

impl<T> Deref for Acquired<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        let place = self.sender.memory.place(self.sender.end.position());
        // SAFETY: there was room for it, it is not published, and we borrow the only sender.
        unsafe { &*place }
    }
}

impl<T> DerefMut for Acquired<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        let place = self.sender.memory.place(self.sender.end.position());
        // SAFETY: as above, and uniquely.
        unsafe { &mut *place }
    }
}

/// The receiving end, which reads places.
pub struct Receiver<T> {
    memory: Arc<Memory<T>>,
    end: Consumer,
}

impl<T> Receiver<T> {
    /// The oldest committed place; `None` while there is none.
    #[inline]
    pub fn wait(&mut self) -> Option<Waited<'_, T>> {
        // The other end is this crate's: its positions are valid.
        let waiting = self.end.available(&self.memory.producer).unwrap_or(0);
        (waiting > 0).then_some(Waited { receiver: self })
    }
}

impl<T> std::fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.end.fmt(f)
    }
}

/// A place that the consumer uses. Dropping it leaves it to the next [`Receiver::wait`].
#[derive(Debug)]
pub struct Waited<'r, T> {
    receiver: &'r mut Receiver<T>,
}

impl<T> Waited<'_, T> {
    /// Returns the place to the sender.
    #[inline]
    pub fn release(self) {
        let Receiver { memory, end } = self.receiver;
        end.advance(1);
        end.release(&memory.consumer);
    }
}

impl<T> Deref for Waited<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        let place = self.receiver.memory.place(self.receiver.end.position());
        // SAFETY: it was published, it is not released, and we borrow the only receiver.
        unsafe { &*place }
    }
}

impl<T> DerefMut for Waited<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        let place = self.receiver.memory.place(self.receiver.end.position());
        // SAFETY: as above, and uniquely.
        unsafe { &mut *place }
    }
}
