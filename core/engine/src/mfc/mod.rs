//! The memory flow controller: tagged DMA between main memory and the local store.
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
//! their low four bits, else both are aligned to 16. A list has at most 2,048 elements, each under
//! the same rules. 32 tag groups. At most 16 commands queue; one more stalls until one is done.
//! `get_large` and `put_large` are for any size and alignment. They stand for the list that a
//! program would write, and for the shifting that it would do where main memory is not aligned.
//!
//! **Order.** Within a tag group commands may be done in any order, with two exceptions. One with a
//! *fence* comes after all earlier ones of its group; one with a *barrier* also before all later
//! ones. Only an [`Area`](crate::Area) can show the difference: `In` and `Out` chunks never
//! overlap.
//!
//! **Modes.** [`DmaMode::Borrow`], the default, lends. A get of an [`In`] is prefetched into the
//! cache and hands out main memory itself until it is written to; a [`Window`] is the output chunk
//! itself. No core has a second unit that moves memory while it computes, so the kernel waits for a
//! copy; only the processor's prefetcher works in parallel. [`DmaMode::Copy`] copies when a command
//! is issued: the kernel works on bytes of its own store, which lie together in few pages.
//! [`DmaMode::Checked`] does everything as late as the rules allow and in the order that a program
//! least expects. A transfer happens when it is waited for (or when the queue is full), newest
//! first, and a get's buffer holds [`POISON`] until then. Every mode copies puts, lists, an
//! [`Area`](crate::Area), and memory that another process may write to: shared memory could
//! otherwise change under the kernel.
//!
//! **Cost.** A double-buffered loop of lent gets and windows takes as long as the plain loop over
//! the same memory. A put adds a second pass over its bytes, and a copied get one over its own
//! (`sidecore offload bench --only streaming`).
//!
//! Must stay true: a run ends only when every command that it issued is done. One thread: the one
//! that runs the kernel. Source: Cell Broadband Engine Architecture, "Memory Flow Controller"; SPU
//! C/C++ Language Extensions, "MFC".

mod command;
mod handle;
mod issue;
mod queue;
mod rules;
mod streams;

pub use handle::{Get, Put, View, Window};
pub use issue::Issue;
pub use rules::ListElement;

use crate::error::DmaError;
pub use crate::limits::{
    IN_FLIGHT_MAX, LIST_ELEMENTS_MAX, QUEUE_COMMANDS, TAGS, TRANSFER_BYTES_MAX,
};
use crate::memory::{In, Out, Source, Target};
use crate::store::{Arena, Buf};
use command::Order;
use queue::Queue;
use sidecore_sys::{Plain, clock};
use std::cell::{Cell, RefCell};
use streams::Streams;

/// Byte that fills a get's buffer, in `Checked` mode, until the get was waited for.
pub const POISON: u8 = 0xd5;

/// Mode of transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DmaMode {
    /// Copy when issued.
    Copy,
    /// Prefetch and lend; copy only where lending is impossible.
    #[default]
    Borrow,
    /// Copy when waited for, in the least expected order, and poison until then.
    Checked,
}

/// A tag group, 0 to 31.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Tag(u8);

impl Tag {
    /// Tag group number `number`, or `None` where there is none.
    #[must_use]
    pub const fn new(number: u8) -> Option<Self> {
        if number < TAGS {
            Some(Self(number))
        } else {
            None
        }
    }

    /// Its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The mask that holds only this group.
    #[must_use]
    pub const fn mask(self) -> TagMask {
        TagMask(1 << self.0)
    }
}

/// A set of tag groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TagMask(pub u32);

impl TagMask {
    /// All groups.
    pub const ALL: Self = Self(u32::MAX);

    /// True if it holds `tag`.
    #[must_use]
    pub const fn holds(self, tag: Tag) -> bool {
        self.0 & 1 << tag.0 != 0
    }
}

impl std::ops::BitOr for TagMask {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Counters of a run's transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DmaCounters {
    /// Commands that read memory in (a list counts once).
    pub gets: u64,
    /// Commands that took memory out.
    pub puts: u64,
    /// Bytes read in, lent ones included.
    pub bytes_in: u64,
    /// Bytes taken out, windows included.
    pub bytes_out: u64,
    /// Times that a command found the queue full.
    pub stalls: u64,
    /// Cycles spent in transfers, where they are timed.
    pub cycles: u64,
}

/// One engine's memory flow controller, for one run.
#[derive(Debug)]
pub struct Mfc<'c> {
    mode: DmaMode,
    timed: bool,
    store: &'c Arena<'c>,
    queue: RefCell<Queue<'c>>,
    streams: Streams,
    counters: Cell<DmaCounters>,
}

impl<'c> Mfc<'c> {
    pub(crate) fn new(store: &'c Arena<'c>, mode: DmaMode, timed: bool) -> Self {
        Self {
            mode,
            timed,
            store,
            queue: RefCell::new(Queue::new()),
            streams: Streams::default(),
            counters: Cell::new(DmaCounters::default()),
        }
    }

    /// Mode of its transfers.
    #[must_use]
    pub fn mode(&self) -> DmaMode {
        self.mode
    }

    /// Issues the next command in tag group `tag`.
    #[must_use]
    pub fn tag(&'c self, tag: Tag) -> Issue<'c> {
        Issue {
            mfc: self,
            tag,
            order: Order::Free,
        }
    }

    /// Transfers `source` into `buffer`; tag group 0. See [`Issue::get`].
    ///
    /// # Errors
    /// As [`Issue::get`].
    pub fn get<T: Plain>(
        &'c self,
        buffer: Buf<'c, T>,
        source: impl Into<Source<'c, T>>,
    ) -> Result<Get<'c, T>, DmaError> {
        self.tag(Tag::default()).get(buffer, source)
    }

    /// Transfers `source`, of any size and alignment, into `buffer`; tag group 0. See
    /// [`Issue::get_large`].
    ///
    /// # Errors
    /// As [`Issue::get_large`].
    pub fn get_large<T: Plain>(
        &'c self,
        buffer: Buf<'c, T>,
        source: impl Into<Source<'c, T>>,
    ) -> Result<Get<'c, T>, DmaError> {
        self.tag(Tag::default()).get_large(buffer, source)
    }

    /// Takes the first values of `buffer` out to `target`, all of it; tag group 0. See
    /// [`Issue::put`].
    ///
    /// # Errors
    /// As [`Issue::put`].
    pub fn put<T: Plain>(
        &'c self,
        buffer: Buf<'c, T>,
        target: impl Into<Target<'c, T>>,
    ) -> Result<Put<'c, T>, DmaError> {
        self.tag(Tag::default()).put(buffer, target)
    }

    /// Takes `buffer` out to `target`, of any size and alignment; tag group 0. See
    /// [`Issue::put_large`].
    ///
    /// # Errors
    /// As [`Issue::put_large`].
    pub fn put_large<T: Plain>(
        &'c self,
        buffer: Buf<'c, T>,
        target: impl Into<Target<'c, T>>,
    ) -> Result<Put<'c, T>, DmaError> {
        self.tag(Tag::default()).put_large(buffer, target)
    }

    /// Fetches memory of any size as a whole, to be read. In `Borrow` mode it is prefetched and
    /// lent (any size), else copied to a buffer that this call takes from the local store.
    ///
    /// # Errors
    /// [`DmaError::Store`] where it does not fit, [`DmaError::ListLength`] above 32 MiB; neither in
    /// `Borrow` mode.
    pub fn fetch<T: Plain>(&'c self, source: In<'c, T>) -> Result<View<'c, T>, DmaError> {
        let begun = self.clock();
        if self.mode == DmaMode::Borrow {
            let bytes = sidecore_sys::plain::bytes_of(source.as_slice());
            self.streams.prefetch(bytes);
            self.count_get(bytes.len(), begun);
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
        let bytes = target.len() * size_of::<T>();
        rules::check_large(bytes)?;
        let buffer = self.store.alloc(target.len())?;
        Ok(Window::copied(self, buffer, target))
    }

    /// Waits until all commands of all the groups in `mask` are done.
    pub fn wait_all(&self, mask: TagMask) {
        let begun = self.clock();
        self.queue.borrow_mut().perform_all(mask);
        self.count_time(begun);
    }

    /// Waits until at least one of the groups in `mask` has no command left, and says which have
    /// none.
    #[must_use]
    pub fn wait_any(&self, mask: TagMask) -> TagMask {
        let begun = self.clock();
        let idle = self.queue.borrow_mut().perform_any(mask);
        self.count_time(begun);
        idle
    }

    /// The groups of `mask` that have no command left, without waiting.
    #[must_use]
    pub fn idle_tags(&self, mask: TagMask) -> TagMask {
        self.queue.borrow().idle(mask)
    }

    /// Commands that may be issued before one stalls. Always 16 where transfers are made when
    /// issued.
    #[must_use]
    pub fn queue_room(&self) -> usize {
        QUEUE_COMMANDS - self.queue.borrow().queued()
    }

    /// Completes all commands, so that the run may end; returns the counters of the run.
    pub(crate) fn finish(&self) -> DmaCounters {
        self.wait_all(TagMask::ALL);
        let mut counters = self.counters.get();
        counters.stalls = self.queue.borrow().stalls();
        counters
    }

    #[inline]
    fn clock(&self) -> u64 {
        if self.timed { clock::cycles() } else { 0 }
    }

    #[inline]
    fn count(&self, change: impl FnOnce(&mut DmaCounters)) {
        let mut counters = self.counters.get();
        change(&mut counters);
        self.counters.set(counters);
    }

    #[inline]
    fn count_time(&self, begun: u64) {
        if self.timed {
            let cycles = clock::cycles().wrapping_sub(begun);
            self.count(|counters| counters.cycles += cycles);
        }
    }

    #[inline]
    fn count_get(&self, bytes: usize, begun: u64) {
        self.count(|counters| {
            counters.gets += 1;
            counters.bytes_in += bytes as u64;
        });
        self.count_time(begun);
    }

    #[inline]
    fn count_put(&self, bytes: usize, begun: u64) {
        self.count(|counters| {
            counters.puts += 1;
            counters.bytes_out += bytes as u64;
        });
        self.count_time(begun);
    }
}
