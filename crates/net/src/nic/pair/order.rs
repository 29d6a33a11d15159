//! The orderings of one direction of a link: positions, and who is asleep.
//!
//! Why here: `tests/loom.rs` takes this file as it is and tries every interleaving with loom's atomics
//! in place of the processor's. Must stay true: partners are the Release and the Acquire of each
//! position, and the two fences; positions that make no sense are refused by whoever reads them.

use super::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The three words of one direction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words<'m> {
    /// The sender's position: what is written.
    pub(crate) sender: &'m AtomicU64,
    /// The receiver's: what is read.
    pub(crate) receiver: &'m AtomicU64,
    /// Whether the receiver sleeps, or is about to.
    pub(crate) asleep: &'m AtomicU32,
}

impl Words<'_> {
    /// Announces what is written up to `position`; true if the receiver is to be woken.
    #[inline]
    pub(crate) fn publish(&self, position: u64) -> bool {
        self.sender.store(position, Ordering::Release);
        // Either we see that the other side is asleep, or it sees our frames before it sleeps;
        // partner: the fence in `fall_asleep`.
        fence(Ordering::SeqCst);
        let asleep = self.asleep.load(Ordering::Relaxed) != 0;
        if asleep {
            self.asleep.store(0, Ordering::Relaxed);
        }
        asleep
    }

    /// What is written, as the receiver at `read` sees it; none where that is more than `bytes` ahead.
    #[inline]
    pub(crate) fn written(&self, read: u64, bytes: u64) -> Option<u64> {
        // Acquire: partner of `publish`; the records are there.
        let written = self.sender.load(Ordering::Acquire);
        (written.wrapping_sub(read) <= bytes).then_some(written)
    }

    /// What is read, as the sender at `written` sees it; none where that is more than `bytes` behind.
    #[inline]
    pub(crate) fn read(&self, written: u64, bytes: u64) -> Option<u64> {
        // Acquire: partner of `release`; the receiver has read what is written over next.
        let read = self.receiver.load(Ordering::Acquire);
        (written.wrapping_sub(read) <= bytes).then_some(read)
    }

    /// The receiver has read up to `position`.
    #[inline]
    pub(crate) fn release(&self, position: u64) {
        self.receiver.store(position, Ordering::Release);
    }

    /// The receiver is about to sleep; what it sees as written afterwards decides whether it does.
    #[inline]
    pub(crate) fn fall_asleep(&self) {
        self.asleep.store(1, Ordering::Relaxed);
        // Partner: the fence in `publish`.
        fence(Ordering::SeqCst);
    }

    /// The receiver is awake.
    #[inline]
    pub(crate) fn wake_up(&self) {
        self.asleep.store(0, Ordering::Relaxed);
    }
}
