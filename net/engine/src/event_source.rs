//! External event source that is polled together with a stack's rings.
//!
//! Must stay true: any event that makes `is_ready` true after `announce_sleep`
//! also makes the descriptor readable, so that no wake-up is lost.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An external event source, for [`crate::sock::client::Client::poll_with`].
pub trait EventSource {
    /// Readable when there is an event: an epoll instance, for example.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// True if there is an event that the descriptor does not report. Called in each round of
    /// polling: it must not make a system call.
    fn is_ready(&self) -> bool {
        false
    }

    /// Announces a sleep. [`Self::is_ready`] is called once more afterwards; any later event must
    /// make the descriptor readable.
    fn announce_sleep(&self) {}

    /// The sleep has ended, or did not take place.
    fn cancel_sleep(&self) {}
}

impl EventSource for BorrowedFd<'_> {
    fn descriptor(&self) -> BorrowedFd<'_> {
        *self
    }
}

impl EventSource for OwnedFd {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }
}
