//! Events of others, that somebody waits for beside a stack's.
//!
//! Must stay true: whatever [`Beside::is_ready`] says after [`Beside::announce_sleep`] makes the
//! descriptor readable, so that nothing is slept over.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Events of others, for [`crate::sock::client::Client::poll_beside`].
pub trait Beside {
    /// Readable when something has happened: an epoll, say.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// True if something has happened that the descriptor does not tell. Asked in each round of
    /// polling: it costs no system call.
    fn is_ready(&self) -> bool {
        false
    }

    /// A sleep begins. [`Self::is_ready`] is asked once more behind it; what happens later must
    /// make the descriptor readable.
    fn announce_sleep(&self) {}

    /// The sleep is over, or there was none after all.
    fn cancel_sleep(&self) {}
}

impl Beside for BorrowedFd<'_> {
    fn descriptor(&self) -> BorrowedFd<'_> {
        *self
    }
}

impl Beside for OwnedFd {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}
