//! An image with zeros behind its end: the base of an overlay that is larger than its image.
//!
//! Must stay true: bytes inside the image come from it alone, with its checks; the size only grows.
//! Any thread.

use crate::source::{BlockSource, Deliver, Extent, ReadError, check_range};
use sidecore_bare::width::{ToU64, ToUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// See the module.
pub(super) struct Enlarged {
    image: Arc<dyn BlockSource>,
    size_bytes: AtomicU64,
}

impl Enlarged {
    /// `image` as a device of `size_bytes`, or as large as it is.
    pub(super) fn new(image: Arc<dyn BlockSource>, size_bytes: u64) -> Self {
        Self {
            size_bytes: AtomicU64::new(size_bytes.max(image.size_bytes())),
            image,
        }
    }

    /// Makes it a device of `size_bytes`, if it is smaller.
    pub(super) fn grow(&self, size_bytes: u64) {
        // Release pairs with Acquire in `size_bytes`.
        self.size_bytes.fetch_max(size_bytes, Ordering::Release);
    }

    /// Bytes of a range that lie in the image.
    fn inside(&self, offset: u64, len: usize) -> usize {
        let left = self.image.size_bytes().saturating_sub(offset);
        left.min(len.to_u64()).to_usize()
    }
}

impl BlockSource for Enlarged {
    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    fn preferred_bytes(&self) -> u32 {
        self.image.preferred_bytes()
    }

    fn read_with_max_bytes(&self) -> usize {
        self.image.read_with_max_bytes()
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), ReadError> {
        check_range(offset, dst.len(), self.size_bytes())?;
        let (inside, behind) = dst.split_at_mut(self.inside(offset, dst.len()));
        behind.fill(0);
        match inside.is_empty() {
            true => Ok(()),
            false => self.image.read_into(offset, inside),
        }
    }

    fn read_with(&self, offset: u64, len: usize, deliver: &mut Deliver<'_>) {
        if self.inside(offset, len) == len {
            return self.image.read_with(offset, len, deliver);
        }
        let mut bytes = vec![0; len];
        match self.read_into(offset, &mut bytes) {
            Ok(()) => deliver(Ok(&[&bytes])),
            Err(error) => deliver(Err(&error)),
        }
    }

    fn extent(&self, offset: u64) -> Extent {
        match offset < self.image.size_bytes() {
            true => self.image.extent(offset),
            false => Extent {
                len: self.size_bytes().saturating_sub(offset),
                zero: true,
            },
        }
    }

    fn waits_for_a_network(&self) -> bool {
        self.image.waits_for_a_network()
    }

    fn release_idle(&self, idle: Duration) {
        self.image.release_idle(idle);
    }
}
