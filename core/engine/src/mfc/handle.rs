//! Handles of transfers in flight, and their results.

use super::{DmaMode, Mfc};
use crate::error::DmaError;
use crate::memory::Out;
use crate::store::Buf;
use sidecore_sys::Plain;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// Buffer of a transfer.
#[derive(Debug)]
pub(crate) enum Held<'c> {
    /// Here: the transfer is done.
    Here(Buf<'c, u8>),
    /// In the queue's entry of this number.
    Queued(usize),
}

/// The state that `Get` and `Put` share. Dropped, the transfer still happens, before the run ends
/// at the latest.
#[derive(Debug)]
struct Flight<'c> {
    mfc: &'c Mfc<'c>,
    held: Option<Held<'c>>,
}

impl<'c> Flight<'c> {
    #[inline]
    fn land<T: Plain>(mut self, wait: bool) -> Buf<'c, T> {
        let buffer = match self.held.take() {
            Some(Held::Here(buffer)) => Some(buffer),
            Some(Held::Queued(slot)) => {
                let begun = self.mfc.clock();
                let mut queue = self.mfc.queue.borrow_mut();
                let buffer = if wait {
                    queue.finish(slot)
                } else {
                    queue.take(slot)
                };
                drop(queue);
                self.mfc.count_time(begun);
                buffer
            }
            None => None,
        };
        match buffer {
            Some(buffer) => buffer.into_values(),
            None => unreachable!("a flight lands once, and its entry waits for it"),
        }
    }
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if let Some(Held::Queued(slot)) = self.held {
            self.mfc.queue.borrow_mut().abandon(slot);
        }
    }
}

/// A transfer from main memory that is in flight. It holds the buffer; [`Self::wait`] is the way to
/// see the bytes.
#[must_use = "the buffer comes back from `wait`"]
#[derive(Debug)]
pub struct Get<'c, T> {
    flight: Flight<'c>,
    values: PhantomData<T>,
}

impl<'c, T: Plain> Get<'c, T> {
    pub(crate) fn new(mfc: &'c Mfc<'c>, held: Held<'c>) -> Self {
        Self {
            flight: Flight {
                mfc,
                held: Some(held),
            },
            values: PhantomData,
        }
    }

    /// Waits until the transfer is done, and returns the buffer.
    #[inline]
    pub fn wait(self) -> Buf<'c, T> {
        self.flight.land(true)
    }

    /// Gives the buffer without waiting, as a program on the hardware sees it after a forgotten
    /// wait. In `Copy` mode the bytes may be there, in `Checked` mode they are poison and never
    /// come.
    pub fn without_waiting(self) -> Buf<'c, T> {
        self.flight.land(false)
    }
}

/// A transfer to main memory that is in flight. It holds the buffer until [`Self::wait`].
#[must_use = "the buffer comes back from `wait`"]
#[derive(Debug)]
pub struct Put<'c, T> {
    flight: Flight<'c>,
    values: PhantomData<T>,
}

impl<'c, T: Plain> Put<'c, T> {
    pub(crate) fn new(mfc: &'c Mfc<'c>, held: Held<'c>) -> Self {
        Self {
            flight: Flight {
                mfc,
                held: Some(held),
            },
            values: PhantomData,
        }
    }

    /// Waits until the bytes are in main memory, and returns the buffer.
    #[inline]
    pub fn wait(self) -> Buf<'c, T> {
        self.flight.land(true)
    }

    /// Gives the buffer back without waiting, as a program on the hardware does after a forgotten
    /// wait. In `Copy` mode the bytes are out, in `Checked` mode they never get there.
    pub fn without_waiting(self) -> Buf<'c, T> {
        self.flight.land(false)
    }
}

/// Memory that was fetched whole, to be read: main memory itself or a copy.
#[derive(Debug)]
pub enum View<'c, T> {
    /// Main memory.
    Lent(&'c [T]),
    /// A copy in the local store.
    Copied(Buf<'c, T>),
}

impl<T: Plain> Deref for View<'_, T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Self::Lent(values) => values,
            Self::Copied(buffer) => buffer,
        }
    }
}

/// Output memory that is lent to the kernel to write its results in. Dropped without
/// [`Self::commit`], it leaves the output as it was in `Copy` and `Checked` mode, and with whatever
/// was written in `Borrow` mode.
#[must_use = "results reach main memory by `commit`"]
#[derive(Debug)]
pub struct Window<'c, T> {
    mfc: &'c Mfc<'c>,
    /// The copy, if there is one.
    buffer: Option<Buf<'c, T>>,
    target: Out<'c, T>,
}

impl<'c, T: Plain> Window<'c, T> {
    pub(crate) fn direct(mfc: &'c Mfc<'c>, target: Out<'c, T>) -> Self {
        Self {
            mfc,
            buffer: None,
            target,
        }
    }

    pub(crate) fn copied(mfc: &'c Mfc<'c>, buffer: Buf<'c, T>, target: Out<'c, T>) -> Self {
        Self {
            mfc,
            buffer: Some(buffer),
            target,
        }
    }

    /// True if writes go to main memory at once.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.buffer.is_none()
    }

    /// Makes all that was written part of the output, and waits for it.
    ///
    /// # Errors
    /// [`DmaError::TooManyInFlight`] in `Checked` mode.
    pub fn commit(self) -> Result<(), DmaError> {
        match self.buffer {
            Some(buffer) => {
                self.mfc.put_large(buffer, self.target)?.wait();
            }
            None => {
                debug_assert_eq!(self.mfc.mode(), DmaMode::Borrow);
                let bytes = self.target.len() * size_of::<T>();
                self.mfc.count_put(bytes, self.mfc.clock());
            }
        }
        Ok(())
    }
}

impl<T: Plain> Deref for Window<'_, T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match &self.buffer {
            Some(buffer) => buffer,
            None => self.target.as_slice(),
        }
    }
}

impl<T: Plain> DerefMut for Window<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.buffer {
            Some(buffer) => buffer,
            None => self.target.as_mut_slice(),
        }
    }
}
