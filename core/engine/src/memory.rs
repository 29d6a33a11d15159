//! Main memory as an engine sees it: borrows that DMA reads from and writes to.
//!
//! Why here: a job may touch only memory that its host lent it, and only while it is lent. [`In`]
//! is memory to read, [`Out`] memory to write, cut in chunks that never overlap.
//! Must stay true: safe code only; the lifetimes are the host's.

use sidecore_sys::{Plain, SharedSlice};
use std::fmt;
use std::ops::Range;

/// Main memory to read.
#[derive(Debug)]
pub struct In<'j, T>(&'j [T]);

impl<T> Clone for In<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<'_, T> {}

impl<'j, T> In<'j, T> {
    /// Lends `values` for reading.
    #[must_use]
    pub fn new(values: &'j [T]) -> Self {
        Self(values)
    }

    /// Number of values.
    #[must_use]
    #[inline]
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The values of `range`, or `None` if it reaches past the end.
    #[must_use]
    pub fn range(self, range: Range<usize>) -> Option<Self> {
        self.0.get(range).map(Self)
    }

    /// Chunk number `index` of `count` values each; the last may be shorter. `None` past the end.
    #[must_use]
    pub fn chunk(self, index: usize, count: usize) -> Option<Self> {
        // Both are the caller's: an index past the end is an answer, not an overflow.
        let start = index.checked_mul(count)?;
        let end = start.checked_add(count)?.min(self.0.len());
        (start < end).then(|| Self(&self.0[start..end]))
    }

    /// All chunks of `count` values, in order; the last may be shorter.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn chunks(self, count: usize) -> impl ExactSizeIterator<Item = In<'j, T>> {
        self.0.chunks(count).map(In)
    }

    /// The values, without DMA, as a host reads them.
    #[must_use]
    pub fn as_slice(self) -> &'j [T] {
        self.0
    }
}

impl<'j, T> From<&'j [T]> for In<'j, T> {
    fn from(values: &'j [T]) -> Self {
        Self(values)
    }
}

/// Main memory to write. Cut it with [`Self::split_at`] or [`Self::chunks`]:
/// parts never overlap, and writing a part consumes it.
#[derive(Debug)]
pub struct Out<'j, T>(&'j mut [T]);

impl<'j, T> Out<'j, T> {
    /// Lends `values` for writing.
    #[must_use]
    pub fn new(values: &'j mut [T]) -> Self {
        Self(values)
    }

    /// Number of values.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Splits in two before value number `index`. `None` if there are fewer values.
    #[must_use]
    pub fn split_at(self, index: usize) -> Option<(Self, Self)> {
        let (front, rest) = self.0.split_at_mut_checked(index)?;
        Some((Out(front), Out(rest)))
    }

    /// All chunks of `count` values, in order; the last may be shorter.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn chunks(self, count: usize) -> impl ExactSizeIterator<Item = Out<'j, T>> {
        self.0.chunks_mut(count).map(Out)
    }
}

impl<T> Out<'_, T> {
    pub(crate) fn as_slice(&self) -> &[T] {
        self.0
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        self.0
    }
}

impl<'j, T> From<&'j mut [T]> for Out<'j, T> {
    fn from(values: &'j mut [T]) -> Self {
        Self(values)
    }
}

/// Source of a get: an [`In`], or memory that another process may write to
/// ([`SharedSlice`]; always copied, never lent).
#[derive(Debug, Clone, Copy)]
pub struct Source<'c, T>(pub(crate) Readable<'c, T>);

#[derive(Clone, Copy)]
pub(crate) enum Readable<'c, T> {
    Slice(&'c [T]),
    Shared(SharedSlice<'c>),
}

impl<'c, T> From<In<'c, T>> for Source<'c, T> {
    fn from(memory: In<'c, T>) -> Self {
        Self(Readable::Slice(memory.0))
    }
}

impl<'c, T> From<SharedSlice<'c>> for Source<'c, T> {
    fn from(memory: SharedSlice<'c>) -> Self {
        Self(Readable::Shared(memory))
    }
}

/// Target of a put: an [`Out`], or memory that another process may write to.
#[derive(Debug)]
pub struct Target<'c, T>(pub(crate) Writable<'c, T>);

pub(crate) enum Writable<'c, T> {
    Slice(&'c mut [T]),
    Shared(SharedSlice<'c>),
}

impl<'c, T> From<Out<'c, T>> for Target<'c, T> {
    fn from(memory: Out<'c, T>) -> Self {
        Self(Writable::Slice(memory.0))
    }
}

impl<'c, T> From<SharedSlice<'c>> for Target<'c, T> {
    /// The memory must be writable; a put panics otherwise.
    fn from(memory: SharedSlice<'c>) -> Self {
        Self(Writable::Shared(memory))
    }
}

impl<'c, T: Plain> Readable<'c, T> {
    #[inline]
    pub(crate) fn into_bytes(self) -> Readable<'c, u8> {
        match self {
            Self::Slice(values) => Readable::Slice(sidecore_sys::plain::bytes_of(values)),
            Self::Shared(memory) => Readable::Shared(memory),
        }
    }
}

impl Readable<'_, u8> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Slice(bytes) => bytes.len(),
            Self::Shared(memory) => memory.len(),
        }
    }

    #[inline]
    pub(crate) fn address(&self) -> usize {
        match self {
            Self::Slice(bytes) => bytes.as_ptr().addr(),
            Self::Shared(memory) => memory.address(),
        }
    }

    /// Copies from byte `offset` on into `target`. The range lies within, by the rules checked at
    /// issue.
    #[inline]
    pub(crate) fn copy_to(&self, offset: usize, target: &mut [u8]) {
        let range = offset..offset + target.len();
        match self {
            Self::Slice(bytes) => target.copy_from_slice(&bytes[range]),
            Self::Shared(memory) => memory.read_at(offset, target),
        }
    }
}

impl<'c, T: Plain> Writable<'c, T> {
    #[inline]
    pub(crate) fn into_bytes(self) -> Writable<'c, u8> {
        match self {
            Self::Slice(values) => Writable::Slice(sidecore_sys::plain::bytes_of_mut(values)),
            Self::Shared(memory) => Writable::Shared(memory),
        }
    }
}

impl Writable<'_, u8> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Slice(bytes) => bytes.len(),
            Self::Shared(memory) => memory.len(),
        }
    }

    #[inline]
    pub(crate) fn address(&self) -> usize {
        match self {
            Self::Slice(bytes) => bytes.as_ptr().addr(),
            Self::Shared(memory) => memory.address(),
        }
    }

    /// Copies `source` to byte `offset` on. The range lies within, by the rules checked at issue.
    #[inline]
    pub(crate) fn copy_from(&mut self, offset: usize, source: &[u8]) {
        let range = offset..offset + source.len();
        match self {
            Self::Slice(bytes) => bytes[range].copy_from_slice(source),
            Self::Shared(memory) => memory.write_at(offset, source),
        }
    }
}

impl<T> fmt::Debug for Readable<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory to read")
    }
}

impl<T> fmt::Debug for Writable<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory to write")
    }
}
