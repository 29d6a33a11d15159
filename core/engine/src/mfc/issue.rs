//! Issuing a command: its rules are checked, then it is done, lent or queued, as the mode says.
//!
//! Why here: a command's rules, its order and the fate of its buffer are separate from the
//! controller's state. Must stay true: a command that is refused has moved nothing.

use super::command::{Command, Kind, Order, Plan};
use super::handle::Held;
use super::rules::{self, ListElement};
use super::{DmaMode, Get, Mfc, POISON, Put, Tag};
use crate::error::DmaError;
use crate::memory::{Readable, Source, Target};
use crate::store::Buf;
use sidecore_sys::Plain;

/// A command about to be issued: its tag group and order are chosen, its kind is not.
#[derive(Debug, Clone, Copy)]
pub struct Issue<'c> {
    pub(super) mfc: &'c Mfc<'c>,
    pub(super) tag: Tag,
    pub(super) order: Order,
}

impl<'c> Issue<'c> {
    /// After all earlier commands of its group.
    #[must_use]
    pub fn fence(mut self) -> Self {
        self.order = Order::Fence;
        self
    }

    /// After all earlier commands of its group and before all later ones.
    #[must_use]
    pub fn barrier(mut self) -> Self {
        self.order = Order::Barrier;
        self
    }

    /// Transfers all of `source` into `buffer`, which has its length afterwards. In `Borrow` mode
    /// an [`In`](crate::In) is prefetched into the cache and lent: the buffer reads main memory
    /// until it is written to.
    ///
    /// # Errors
    /// [`DmaError::Size`], [`DmaError::Alignment`], [`DmaError::BufferTooShort`],
    /// [`DmaError::TooManyInFlight`]. The buffer is lost to this run then.
    pub fn get<T: Plain>(
        self,
        buffer: Buf<'c, T>,
        source: impl Into<Source<'c, T>>,
    ) -> Result<Get<'c, T>, DmaError> {
        let source = source.into().0.into_bytes();
        rules::check(source.len(), buffer.address(), source.address())?;
        self.issue_get(buffer, source, Plan::Whole)
    }

    /// As [`Self::get`], for any size up to 32 MiB and any alignment.
    ///
    /// # Errors
    /// [`DmaError::ListLength`], [`DmaError::BufferTooShort`], [`DmaError::TooManyInFlight`].
    pub fn get_large<T: Plain>(
        self,
        buffer: Buf<'c, T>,
        source: impl Into<Source<'c, T>>,
    ) -> Result<Get<'c, T>, DmaError> {
        let source = source.into().0.into_bytes();
        rules::check_large(source.len())?;
        self.issue_get(buffer, source, Plan::Whole)
    }

    /// Gathers the stretches of `source` that `list` names into `buffer`, one after another. Each
    /// begins at a 16-byte boundary; one below 16 bytes keeps its offset in the 16 bytes of main
    /// memory.
    ///
    /// # Errors
    /// As [`Self::get`] for each element; [`DmaError::ListLength`], [`DmaError::ListElement`].
    pub fn get_list<T: Plain>(
        self,
        buffer: Buf<'c, T>,
        list: &'c [ListElement],
        source: impl Into<Source<'c, T>>,
    ) -> Result<Get<'c, T>, DmaError> {
        let source = source.into().0.into_bytes();
        rules::check_list(list, source.address(), source.len())?;
        self.issue_get(buffer, source, Plan::List(list))
    }

    /// Takes the first values of `buffer` out to all of `target`.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn put<T: Plain>(
        self,
        buffer: Buf<'c, T>,
        target: impl Into<Target<'c, T>>,
    ) -> Result<Put<'c, T>, DmaError> {
        let target = target.into().0.into_bytes();
        rules::check(target.len(), buffer.address(), target.address())?;
        self.issue_put(buffer, Kind::Put(target), Plan::Whole)
    }

    /// As [`Self::put`], for any size up to 32 MiB and any alignment.
    ///
    /// # Errors
    /// As [`Self::get_large`].
    pub fn put_large<T: Plain>(
        self,
        buffer: Buf<'c, T>,
        target: impl Into<Target<'c, T>>,
    ) -> Result<Put<'c, T>, DmaError> {
        let target = target.into().0.into_bytes();
        rules::check_large(target.len())?;
        self.issue_put(buffer, Kind::Put(target), Plan::Whole)
    }

    /// Scatters `buffer`, laid out as [`Self::get_list`] leaves it, over the stretches of `target`
    /// that `list` names.
    ///
    /// # Errors
    /// As [`Self::get_list`].
    pub fn put_list<T: Plain>(
        self,
        buffer: Buf<'c, T>,
        list: &'c [ListElement],
        target: impl Into<Target<'c, T>>,
    ) -> Result<Put<'c, T>, DmaError> {
        let target = target.into().0.into_bytes();
        rules::check_list(list, target.address(), target.len())?;
        self.issue_put(buffer, Kind::Put(target), Plan::List(list))
    }

    #[inline]
    fn issue_get<T: Plain>(
        self,
        buffer: Buf<'c, T>,
        source: Readable<'c, u8>,
        plan: Plan<'c>,
    ) -> Result<Get<'c, T>, DmaError> {
        let begun = self.mfc.clock();
        let (local_bytes, bytes) = plan.bytes(source.address(), source.len());
        let mut buffer = buffer.into_bytes();
        let buffer_bytes = buffer.whole_mut().len();
        if local_bytes > buffer_bytes {
            return Err(DmaError::BufferTooShort {
                bytes: local_bytes,
                buffer_bytes,
            });
        }
        let held = match (self.mfc.mode, source, plan) {
            (DmaMode::Borrow, Readable::Slice(source), Plan::Whole) => {
                self.mfc.streams.prefetch(source);
                buffer.lend(source);
                Held::Here(buffer)
            }
            // The usual case by the fast path: work that is done at once needs no command.
            (DmaMode::Copy | DmaMode::Borrow, source, Plan::Whole) => {
                source.copy_to(0, &mut buffer.whole_mut()[..local_bytes]);
                buffer.set_filled(local_bytes);
                Held::Here(buffer)
            }
            (_, source, plan) => {
                if self.mfc.mode == DmaMode::Checked {
                    buffer.whole_mut()[..local_bytes].fill(POISON);
                }
                buffer.set_filled(local_bytes);
                self.enqueue(Kind::Get(source), plan, buffer)?
            }
        };
        self.mfc.count_get(bytes, begun);
        Ok(Get::new(self.mfc, held))
    }

    #[inline]
    fn issue_put<T: Plain>(
        self,
        buffer: Buf<'c, T>,
        kind: Kind<'c>,
        plan: Plan<'c>,
    ) -> Result<Put<'c, T>, DmaError> {
        let begun = self.mfc.clock();
        let (local_bytes, bytes) = plan.bytes(kind.main_address(), kind.main_bytes());
        let buffer = buffer.into_bytes();
        if local_bytes > buffer.len() {
            return Err(DmaError::BufferTooShort {
                bytes: local_bytes,
                buffer_bytes: buffer.len(),
            });
        }
        let held = match (self.mfc.mode, kind, plan) {
            (DmaMode::Copy | DmaMode::Borrow, Kind::Put(mut target), Plan::Whole) => {
                target.copy_from(0, &buffer[..local_bytes]);
                Held::Here(buffer)
            }
            (_, kind, plan) => self.enqueue(kind, plan, buffer)?,
        };
        self.mfc.count_put(bytes, begun);
        Ok(Put::new(self.mfc, held))
    }

    /// Does the command now, or queues it where that is checked.
    fn enqueue(
        self,
        kind: Kind<'c>,
        plan: Plan<'c>,
        buffer: Buf<'c, u8>,
    ) -> Result<Held<'c>, DmaError> {
        let mut command = Command {
            tag: self.tag,
            order: self.order,
            kind,
            plan,
            buffer,
        };
        if self.mfc.mode == DmaMode::Checked {
            let slot = self.mfc.queue.borrow_mut().push(command)?;
            Ok(Held::Queued(slot))
        } else {
            command.perform();
            Ok(Held::Here(command.buffer))
        }
    }
}
