//! Buffers: memory that calls read and write, in the arena where there is one.
//!
//! Why here: a kernel's result comes without a copy, so its memory is shared with the daemon; and a
//! daemon that was given up may still write to it. So a buffer is a handle. When a call is given
//! up, its outputs move to memory of this process alone, with their contents, and the old place is
//! never read again. Owner: one thread at a time, as with a `Vec`.

use crate::shm::segment::{Lease, Segment};
use sidecore_sys::plain::{self, Plain};
use std::sync::Arc;

/// Bytes that calls can read and write. Where a daemon is attached they lie in its arena; else in
/// this process. They keep their contents when a daemon comes or goes.
#[derive(Debug)]
pub struct Buffer {
    home: Home,
    len: usize,
}

#[derive(Debug)]
pub(crate) enum Home {
    Arena(Lease),
    /// Lines of 128 bits, so that any plain type is aligned.
    Own(Box<[u128]>),
}

impl Buffer {
    pub(crate) fn in_arena(lease: Lease, len: usize) -> Self {
        Self {
            home: Home::Arena(lease),
            len,
        }
    }

    pub(crate) fn own(len: usize) -> Self {
        let lines = len.div_ceil(size_of::<u128>());
        Self {
            home: Home::Own(vec![0; lines].into()),
            len,
        }
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.home {
            Home::Arena(lease) => &lease.bytes()[..self.len],
            Home::Own(lines) => &plain::bytes_of(lines)[..self.len],
        }
    }

    /// The bytes, for writing.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.home {
            Home::Arena(lease) => &mut lease.bytes_mut()[..self.len],
            Home::Own(lines) => &mut plain::bytes_of_mut(lines)[..self.len],
        }
    }

    /// The bytes as values of a plain type; only whole values.
    #[must_use]
    pub fn values<T: Plain>(&self) -> &[T] {
        let whole = self.len / size_of::<T>() * size_of::<T>();
        plain::values_of(&self.bytes()[..whole]).unwrap_or_default()
    }

    /// The bytes as values of a plain type, for writing.
    #[must_use]
    pub fn values_mut<T: Plain>(&mut self) -> &mut [T] {
        let whole = self.len / size_of::<T>() * size_of::<T>();
        plain::values_of_mut(&mut self.bytes_mut()[..whole]).unwrap_or_default()
    }

    /// Its offset in that segment's arena, if it is there.
    #[inline]
    pub(crate) fn offset_in(&self, segment: &Arc<Segment>) -> Option<usize> {
        match &self.home {
            Home::Arena(lease) if lease.is_in(segment) => Some(lease.offset()),
            _ => None,
        }
    }

    /// Moves its contents to memory that no daemon maps. The daemon may still be writing to the old
    /// place, which is returned and must be kept until it no longer does.
    pub(crate) fn move_home(&mut self) -> Option<Lease> {
        let Home::Arena(lease) = &self.home else {
            return None;
        };
        let mut own = Self::own(self.len);
        lease.copy_racing(own.bytes_mut());
        match std::mem::replace(self, own).home {
            Home::Arena(lease) => Some(lease),
            Home::Own(_) => None,
        }
    }

    /// Moves it to that segment's arena, where there is room.
    pub(crate) fn move_to(&mut self, segment: &Arc<Segment>) -> bool {
        if self.offset_in(segment).is_some() {
            return true;
        }
        let Ok(lease) = segment.lease(self.len) else {
            return false;
        };
        let mut moved = Self::in_arena(lease, self.len);
        moved.bytes_mut().copy_from_slice(self.bytes());
        *self = moved;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_whole_ones() {
        let mut buffer = Buffer::own(19);
        assert_eq!(buffer.values::<f64>().len(), 2);
        buffer.values_mut::<u32>()[3] = 7;
        assert_eq!(buffer.bytes()[12], 7);
        assert_eq!(Buffer::own(0).values::<u64>().len(), 0);
    }
}
