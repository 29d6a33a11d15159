//! Deals each item of a borrowed slice to exactly one of the engines that share a loop.
//!
//! Why here: the frames of one request are cut up dynamically, an atomic counter deep, so that an
//! engine which was woken late simply takes fewer; and items are `&mut`, so a kernel's outputs are
//! borrowed, not copied.
//!
//! Why `unsafe` is here: the borrow checker cannot see that the counter hands out every index once.
//! Must stay true: `next` never returns the same index twice.
#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A slice being dealt.
pub(crate) struct Deal<'a, T> {
    first: *mut T,
    len: usize,
    next: AtomicUsize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: sharing a `Deal` only lets threads take distinct `&mut T`, which is sending each `T`'s
// borrow to one thread: sound for `T: Send`.
unsafe impl<T: Send> Sync for Deal<'_, T> {}

impl<'a, T> Deal<'a, T> {
    pub(crate) fn new(items: &'a mut [T]) -> Self {
        Self {
            first: items.as_mut_ptr(),
            len: items.len(),
            next: AtomicUsize::new(0),
            slice: PhantomData,
        }
    }

    /// The next item, or `None` when all are dealt or [`Self::stop`] was called.
    #[allow(clippy::mut_from_ref)]
    pub(crate) fn next(&self) -> Option<&mut T> {
        // Relaxed: the counter only divides; what an item holds was published by the job's gate.
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        if index >= self.len {
            // Keep the counter from wrapping, however often it is asked.
            self.next.store(self.len, Ordering::Relaxed);
            return None;
        }
        // SAFETY: `index < len`, and `fetch_add` returned this index to nobody else. A store of
        // `len` can only skip items, never repeat one, because it is never below a dealt index.
        Some(unsafe { &mut *self.first.add(index) })
    }

    /// Whether there is an item left to deal, at this moment.
    pub(crate) fn has_more(&self) -> bool {
        self.next.load(Ordering::Relaxed) < self.len
    }

    /// Deals no more.
    pub(crate) fn stop(&self) {
        self.next.store(self.len, Ordering::Relaxed);
    }
}
