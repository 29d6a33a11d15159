//! Handles of transfers in flight, and their results.

use super::{DmaMode, Mfc};
use crate::error::DmaError;
use crate::memory::Out;
use crate::store::Buf;
use sidecore_sys::Plain;
use std::ops::{Deref, DerefMut};

/// A transfer from main memory that is in flight. It holds the buffer; [`Self::wait`] is the way to
/// see the bytes.
///
/// No core of today has a unit that moves memory by itself, so the bytes are there already. The
/// handle keeps programs right for a machine that has one.
#[must_use = "the buffer comes back from `wait`"]
#[derive(Debug)]
pub struct Get<'c, T>(Buf<'c, T>);

impl<'c, T: Plain> Get<'c, T> {
    pub(crate) fn new(buffer: Buf<'c, T>) -> Self {
        Self(buffer)
    }

    /// Waits until the transfer is done, and returns the buffer.
    #[inline]
    pub fn wait(self) -> Buf<'c, T> {
        self.0
    }
}

/// A transfer to main memory that is in flight. It holds the buffer until [`Self::wait`].
#[must_use = "the buffer comes back from `wait`"]
#[derive(Debug)]
pub struct Put<'c, T>(Buf<'c, T>);

impl<'c, T: Plain> Put<'c, T> {
    pub(crate) fn new(buffer: Buf<'c, T>) -> Self {
        Self(buffer)
    }

    /// Waits until the bytes are in main memory, and returns the buffer.
    #[inline]
    pub fn wait(self) -> Buf<'c, T> {
        self.0
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
/// [`Self::commit`], it leaves the output as it was in `Copy` mode, and with whatever was written
/// in `Borrow` mode.
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
    /// Those of [`Mfc::put_large`], which a window has passed already when it was made.
    pub fn commit(self) -> Result<(), DmaError> {
        match self.buffer {
            Some(buffer) => {
                self.mfc.put_large(buffer, self.target)?.wait();
            }
            None => {
                // The results are in place; they only have to be counted.
                debug_assert_eq!(self.mfc.mode(), DmaMode::Borrow);
                let bytes = self.target.len() * size_of::<T>();
                self.mfc.count_put(bytes);
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
