//! The client and the engine that a request belongs to, for kernels that other processes run.
//!
//! Why here: such a process maps the client's segment itself, so that no bytes are copied, and it
//! must end with the client's session. Must stay true: what a kernel keeps for a session
//! ([`Origin::companion`]) is dropped before the session's memory is given back. One engine's
//! companions are used by that engine's thread alone.

use parking_lot::{Mutex, MutexGuard};
use sidecore_bare::width::ToU64;
use sidecore_sys::SharedSlice;
use std::any::Any;
use std::os::fd::BorrowedFd;

/// A client's session at one engine.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'m> {
    session: &'m dyn Attached,
    engine: usize,
}

/// A session, as far as its kernels' processes need it.
pub(crate) trait Attached: std::fmt::Debug + Sync {
    /// The file of its memory.
    fn file(&self) -> BorrowedFd<'_>;

    /// All of its memory.
    fn segment(&self) -> SharedSlice<'_>;

    /// Offset at which the memory begins that requests may name.
    fn arena_offset(&self) -> usize;

    /// The values that kernels keep for it at an engine; that engine's thread alone asks.
    fn companions(&self, engine: usize) -> MutexGuard<'_, Companions>;
}

/// Values that kernels keep for a session, each by its kernel's key.
pub(crate) type Companions = Vec<(u64, Option<Box<dyn Any + Send>>)>;

/// Those of one engine.
pub(crate) type KeptCompanions = Mutex<Companions>;

impl<'m> Origin<'m> {
    #[inline]
    pub(crate) fn new(session: &'m dyn Attached, engine: usize) -> Self {
        Self { session, engine }
    }

    /// The file of the client's shared memory, to be mapped by a process that is trusted as this
    /// one.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'m> {
        self.session.file()
    }

    /// Bytes of that file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.session.segment().len().to_u64()
    }

    /// Offset in that file at which the memory begins that requests may name; a whole number of
    /// pages.
    #[must_use]
    pub fn arena_offset(&self) -> u64 {
        self.session.arena_offset().to_u64()
    }

    /// Offset of a stretch of the request's memory from the beginning of the file.
    #[inline]
    #[must_use]
    pub fn offset_of(&self, stretch: SharedSlice<'_>) -> u64 {
        let start = self.session.segment().address();
        stretch.address().saturating_sub(start).to_u64()
    }

    /// Gives `work` what a kernel keeps for this session at this engine under `key`: nothing at
    /// first. It is dropped when the session ends, on a thread that must not wait long.
    pub fn companion<R>(
        &self,
        key: u64,
        work: impl FnOnce(&mut Option<Box<dyn Any + Send>>) -> R,
    ) -> R {
        let mut kept = self.session.companions(self.engine);
        let place = match kept.iter().position(|(of, _)| *of == key) {
            Some(place) => place,
            None => {
                kept.push((key, None));
                kept.len() - 1
            }
        };
        work(&mut kept[place].1)
    }
}
