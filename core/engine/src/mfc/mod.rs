//! The memory flow controller: DMA between main memory and the local store.
//!
//! Why here: on an engine the program, not the cache, decides which data is near. A command takes
//! its buffer and gives it back when it has been waited for, so using a buffer in flight does not
//! compile:
//!
//! ```
//! # use sidecore_engine::{Core, CoreOptions, Ctx, In, Kernel, KernelError, Out};
//! # struct Negate;
//! # impl Kernel for Negate {
//! #     type Args<'j> = (In<'j, u32>, Out<'j, u32>);
//! #     type Out = ();
//! #     type State = ();
//! #     fn run<'c, 'j: 'c>(
//! #         cx: &mut Ctx<'c, Self>,
//! #         (source, target): Self::Args<'j>,
//! #     ) -> Result<(), KernelError> {
//! let mfc = cx.mfc;
//! for (from, to) in source.chunks(4096).zip(target.chunks(4096)) {
//!     let buffer = cx.store.alloc(4096)?;
//!     let mut buffer = mfc.get_large(buffer, from)?.wait();
//!     buffer.iter_mut().for_each(|value| *value = !*value);
//!     mfc.put_large(buffer, to)?.wait();
//! }
//! #         Ok(())
//! #     }
//! # }
//! # let mut core = Core::new(CoreOptions::default()).unwrap();
//! # let (source, mut target) = ([1; 10], [0; 10]);
//! # core.run::<Negate>((In::new(&source), Out::new(&mut target))).unwrap();
//! # assert_eq!(target, [!1; 10]);
//! ```
//!
//! **Rules of the hardware, kept and stated in errors.** A command moves 1, 2, 4, 8 or a multiple
//! of 16 bytes, at most 16 KiB. Below 16 bytes both addresses are aligned to the size and agree in
//! their low four bits, else both are aligned to 16. `get_large` and `put_large` are for any size
//! up to 32 MiB and any alignment: they stand for the list of commands that a program for the Cell
//! would write. Tag groups, fences and lists themselves have no counterpart here: a buffer in
//! flight is known by its handle, and `In` and `Out` never overlap, so no order could be observed.
//!
//! **Modes.** [`DmaMode::Borrow`], the default, lends. A get of an [`In`] is prefetched into the
//! cache and hands out main memory itself until it is written to; a [`Window`] is the output chunk
//! itself. No core has a second unit that moves memory while it computes, so the kernel waits for a
//! copy; only the processor's prefetcher works in parallel. [`DmaMode::Copy`] copies when a command
//! is issued: the kernel works on bytes of its own store, which lie together in few pages. Both
//! copy puts, and memory that another process may write to: shared memory could otherwise change
//! under the kernel.
//!
//! **Cost.** A double-buffered loop of lent gets and windows takes as long as the plain loop over
//! the same memory. A put adds a second pass over its bytes, and a copied get one over its own
//! (`sidecore offload bench --only streaming`).
//!
//! Must stay true: a command that is refused has moved nothing. One thread: the one that runs the
//! kernel. Source: Cell Broadband Engine Architecture, "Memory Flow Controller"; SPU C/C++ Language
//! Extensions, "MFC".
//!
//! Rules on sizes and alignment are those of the same architecture's "MFC Commands" (transfer
//! sizes, alignment) and "DMA List Commands" (the number of elements, which bounds a large
//! transfer).

mod handle;
mod streams;

pub use handle::{Get, Put, View, Window};

use crate::error::DmaError;
use crate::limits::{LIST_ELEMENTS_MAX, TRANSFER_BYTES_MAX};
use crate::memory::{In, Out, Readable, Source, Target, Writable};
use crate::store::{Arena, Buf};
use sidecore_bare::width::ToU64;
use sidecore_sys::Plain;
use std::cell::Cell;
use streams::Streams;

/// Mode of transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DmaMode {
    /// Copy when issued.
    Copy,
    /// Prefetch and lend; copy only where lending is impossible.
    #[default]
    Borrow,
}

/// Counters of a run's transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DmaCounters {
    /// Commands that read memory in.
    pub gets: u64,
    /// Commands that took memory out.
    pub puts: u64,
    /// Bytes read in, lent ones included.
    pub bytes_in: u64,
    /// Bytes taken out, windows included.
    pub bytes_out: u64,
}

/// One engine's memory flow controller, for one run.
#[derive(Debug)]
pub struct Mfc<'c> {
    mode: DmaMode,
    store: &'c Arena<'c>,
    streams: Streams,
    counters: Cell<DmaCounters>,
}

impl<'c> Mfc<'c> {
    pub(crate) fn new(store: &'c Arena<'c>, mode: DmaMode) -> Self {
        Self {
            mode,
            store,
            streams: Streams::default(),
            counters: Cell::new(DmaCounters::default()),
        }
    }

    /// Mode of its transfers.
    #[must_use]
    pub fn mode(&self) -> DmaMode {
        self.mode
    }

    /// Transfers all of `source` into `buffer`, which has its length afterwards. In `Borrow` mode
    /// an [`In`] is prefetched into the cache and lent: the buffer reads main memory until it is
    /// written to.
    ///
    /// # Errors
    /// [`DmaError::Size`], [`DmaError::Alignment`], [`DmaError::BufferTooShort`]. The buffer is
    /// lost to this run then.
    pub fn get<T: Plain>(
        &'c self,
        buffer: Buf<'c, T>,
        source: impl Into<Source<'c, T>>,
    ) -> Result<Get<'c, T>, DmaError> {
        let source = source.into().0.into_bytes();
        check(source.len(), buffer.address(), source.address())?;
        self.transfer_in(buffer, &source)
    }

    /// As [`Self::get`], for any size up to 32 MiB and any alignment.
    ///
    /// # Errors
    /// [`DmaError::ListLength`], [`DmaError::BufferTooShort`].
    pub fn get_large<T: Plain>(
        &'c self,
        buffer: Buf<'c, T>,
        source: impl Into<Source<'c, T>>,
    ) -> Result<Get<'c, T>, DmaError> {
        let source = source.into().0.into_bytes();
        check_large(source.len())?;
        self.transfer_in(buffer, &source)
    }

    /// Takes the first values of `buffer` out to all of `target`.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn put<T: Plain>(
        &'c self,
        buffer: Buf<'c, T>,
        target: impl Into<Target<'c, T>>,
    ) -> Result<Put<'c, T>, DmaError> {
        let target = target.into().0.into_bytes();
        check(target.len(), buffer.address(), target.address())?;
        self.transfer_out(buffer, target)
    }

    /// As [`Self::put`], for any size up to 32 MiB and any alignment.
    ///
    /// # Errors
    /// As [`Self::get_large`].
    pub fn put_large<T: Plain>(
        &'c self,
        buffer: Buf<'c, T>,
        target: impl Into<Target<'c, T>>,
    ) -> Result<Put<'c, T>, DmaError> {
        let target = target.into().0.into_bytes();
        check_large(target.len())?;
        self.transfer_out(buffer, target)
    }

    #[inline]
    fn transfer_in<T: Plain>(
        &'c self,
        buffer: Buf<'c, T>,
        source: &Readable<'c, u8>,
    ) -> Result<Get<'c, T>, DmaError> {
        let bytes = source.len();
        let mut buffer = buffer.into_bytes();
        let room = buffer.whole_mut();
        if bytes > room.len() {
            return Err(DmaError::BufferTooShort {
                bytes,
                buffer_bytes: room.len(),
            });
        }
        match (self.mode, source) {
            (DmaMode::Borrow, Readable::Slice(source)) => {
                self.streams.prefetch(source);
                // No byte moves until the kernel writes to the buffer.
                buffer.lend(source);
            }
            // Memory of another process may change at any time: only a copy can be relied on.
            (DmaMode::Copy | DmaMode::Borrow, source) => {
                source.copy_to(0, &mut room[..bytes]);
                buffer.set_filled(bytes);
            }
        }
        self.count_get(bytes);
        Ok(Get::new(buffer.into_values()))
    }

    #[inline]
    fn transfer_out<T: Plain>(
        &'c self,
        buffer: Buf<'c, T>,
        mut target: Writable<'c, u8>,
    ) -> Result<Put<'c, T>, DmaError> {
        // The target decides: a buffer may be longer, and its rest stays behind.
        let bytes = target.len();
        let buffer = buffer.into_bytes();
        if bytes > buffer.len() {
            return Err(DmaError::BufferTooShort {
                bytes,
                buffer_bytes: buffer.len(),
            });
        }
        // Always a copy: the buffer goes back to the kernel, which fills it with the next results.
        target.copy_from(0, &buffer[..bytes]);
        self.count_put(bytes);
        Ok(Put::new(buffer.into_values()))
    }

    /// Fetches memory of any size as a whole, to be read. In `Borrow` mode it is prefetched and
    /// lent (any size), else copied to a buffer that this call takes from the local store.
    ///
    /// # Errors
    /// [`DmaError::Store`] where it does not fit, [`DmaError::ListLength`] above 32 MiB; neither in
    /// `Borrow` mode.
    pub fn fetch<T: Plain>(&'c self, source: In<'c, T>) -> Result<View<'c, T>, DmaError> {
        if self.mode == DmaMode::Borrow {
            let bytes = sidecore_sys::plain::bytes_of(source.as_slice());
            // The kernel reads main memory itself: its first misses overlap with the prefetch.
            self.streams.prefetch(bytes);
            self.count_get(bytes.len());
            return Ok(View::Lent(source.as_slice()));
        }
        let buffer = self.store.alloc(source.len())?;
        Ok(View::Copied(self.get_large(buffer, source)?.wait()))
    }

    /// Lends `target` to the kernel as a window to write its results in. In `Borrow` mode the
    /// window *is* the target, so that no copy is made; else it is a buffer from the local store
    /// that [`Window::commit`] puts.
    ///
    /// # Errors
    /// [`DmaError::Store`] where the buffer does not fit, [`DmaError::ListLength`] above 32 MiB;
    /// neither in `Borrow` mode.
    pub fn window<T: Plain>(&'c self, target: Out<'c, T>) -> Result<Window<'c, T>, DmaError> {
        if self.mode == DmaMode::Borrow {
            return Ok(Window::direct(self, target));
        }
        // Now, so that a window that could not be committed is not written to.
        check_large(target.len() * size_of::<T>())?;
        let buffer = self.store.alloc(target.len())?;
        Ok(Window::copied(self, buffer, target))
    }

    /// The counters of the run.
    pub(crate) fn counters(&self) -> DmaCounters {
        self.counters.get()
    }

    #[inline]
    fn count(&self, change: impl FnOnce(&mut DmaCounters)) {
        let mut counters = self.counters.get();
        change(&mut counters);
        self.counters.set(counters);
    }

    #[inline]
    fn count_get(&self, bytes: usize) {
        self.count(|counters| {
            counters.gets += 1;
            counters.bytes_in += bytes.to_u64();
        });
    }

    #[inline]
    fn count_put(&self, bytes: usize) {
        self.count(|counters| {
            counters.puts += 1;
            counters.bytes_out += bytes.to_u64();
        });
    }
}

/// Checks one transfer.
#[inline]
pub(crate) fn check(bytes: usize, local: usize, main: usize) -> Result<(), DmaError> {
    // A transfer below a quadword is a naturally aligned scalar.
    let alignment = match bytes {
        1 | 2 | 4 | 8 => bytes,
        0 => return Err(DmaError::Size { bytes }),
        _ if bytes.is_multiple_of(16) && bytes <= TRANSFER_BYTES_MAX => 16,
        _ => return Err(DmaError::Size { bytes }),
    };
    let aligned = local.is_multiple_of(alignment) && main.is_multiple_of(alignment);
    // The hardware moves quadwords: a shorter transfer keeps its place within one.
    if aligned && local % 16 == main % 16 {
        Ok(())
    } else {
        Err(DmaError::Alignment { bytes, local, main })
    }
}

/// Checks a transfer of any size: as a list of 16 KiB elements it must not be too long.
#[inline]
pub(crate) fn check_large(bytes: usize) -> Result<(), DmaError> {
    let elements = bytes.div_ceil(TRANSFER_BYTES_MAX);
    if elements <= LIST_ELEMENTS_MAX {
        Ok(())
    } else {
        Err(DmaError::ListLength { elements })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_alignment_are_the_hardwares() {
        for bytes in 0..=TRANSFER_BYTES_MAX + 32 {
            let allowed =
                matches!(bytes, 1 | 2 | 4 | 8) || (bytes != 0 && bytes % 16 == 0 && bytes <= 16384);
            assert_eq!(check(bytes, 0, 0).is_ok(), allowed, "{bytes}");
        }
        for (bytes, local, main, allowed) in [
            (4, 4, 20, true),
            (4, 4, 24, false),
            (4, 2, 2, false),
            (1, 7, 23, true),
            (1, 7, 8, false),
            (16, 16, 1600, true),
            (16, 8, 8, false),
            (16, 0, 8, false),
        ] {
            assert_eq!(
                check(bytes, local, main).is_ok(),
                allowed,
                "{bytes} {local} {main}"
            );
        }
        let text = check(24, 0, 0).unwrap_err().to_string();
        assert!(
            text.contains("1, 2, 4, 8, or a multiple of 16 up to 16384"),
            "{text}"
        );
        assert!(check_large(32 << 20).is_ok() && check_large((32 << 20) + 1).is_err());
    }
}
