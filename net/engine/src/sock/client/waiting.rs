//! The client's requests and events, and how it waits for them.
//!
//! First it spins, for the time in its options; then it sleeps on a futex, from which the engine
//! wakes it. Must stay true: the end of an engine is noticed within [`NAP`].

use super::{Client, ClientError, EventSource, Socket};
use crate::sock::layout::{Entry, NO_CHUNK, Request};
use sidecore_sys::local_socket;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

impl Client {
    /// Processes events; if there are none, waits for some, at most for `timeout`. Returns their
    /// number.
    ///
    /// # Errors
    /// [`ClientError::Lost`].
    pub fn poll(&mut self, timeout: Duration) -> Result<usize, ClientError> {
        if self.link.is_here() {
            return self.poll_here(None, timeout);
        }
        let taken = self.take_events();
        if taken == 0 {
            self.chunks.prefetch();
        }
        if taken > 0 || timeout.is_zero() {
            // Some are kept for the requests that the application is about to make.
            self.give_back(GIVING_MAX.min(self.chunks.count() / 32))?;
            return Ok(taken);
        }
        // Nothing may be kept while it waits: the engine may need exactly these chunks.
        self.give_back(0)?;
        let polls = self.patience.polls();
        if polls {
            let taken = self.spin(self.spin.min(timeout));
            if taken > 0 {
                self.patience.ended(true, true);
                return Ok(taken);
            }
        }
        let begun = Instant::now();
        let spun = if polls { self.spin } else { Duration::ZERO };
        loop {
            let taken = self.take_events();
            if taken > 0 {
                let soon = !polls && begun.elapsed() <= self.spin;
                self.patience.ended(polls, soon);
                return Ok(taken);
            }
            if self.link.is_lost() {
                return Err(ClientError::Lost);
            }
            let left = timeout.saturating_sub(spun + begun.elapsed());
            if left.is_zero() {
                // A wait shorter than the spinning time gives no evidence.
                if timeout > self.spin {
                    self.patience.ended(polls, false);
                }
                return Ok(0);
            }
            self.link.sleep(left.min(NAP));
        }
    }

    /// As [`Self::poll`], and also returns when there is an event of `other`: for callers that wait
    /// for descriptors, all of them in one epoll instance. The attachment must have been made with
    /// [`super::ClientOptions::waits_for_others`].
    ///
    /// # Errors
    /// [`ClientError::Lost`].
    pub fn poll_with(
        &mut self,
        other: &dyn EventSource,
        timeout: Duration,
    ) -> Result<usize, ClientError> {
        if self.link.is_here() {
            return self.poll_here(Some(other), timeout);
        }
        let taken = self.take_events();
        self.give_back(0)?;
        let mut timeout = timeout;
        if self.link.has_postponed() {
            self.link.write_postponed();
            // The engine does not report free room in the ring.
            timeout = timeout.min(ROOM_NAP);
        }
        if taken > 0 || timeout.is_zero() {
            return Ok(taken);
        }
        if self.patience.polls() {
            let begun = Instant::now();
            while begun.elapsed() < self.spin.min(timeout) {
                for _ in 0..LOOKS_A_YIELD {
                    if self.link.has_event() || other.is_ready() {
                        self.patience.ended(true, true);
                        return Ok(self.take_events());
                    }
                    std::hint::spin_loop();
                }
                // Checking the descriptor is a system call, so the shared memory is looked at more
                // often.
                if local_socket::is_readable(other.descriptor()) {
                    self.patience.ended(true, true);
                    return Ok(0);
                }
                std::thread::yield_now();
            }
            self.patience.ended(true, false);
        }
        let begun = Instant::now();
        self.link.sleep_with(Some(other), timeout.min(NAP));
        if begun.elapsed() <= self.spin {
            self.patience.ended(false, true);
        }
        let taken = self.take_events();
        // Many short waits together reach the interval of the check.
        if taken == 0 && self.link.is_lost_by_now(NAP) {
            return Err(ClientError::Lost);
        }
        Ok(taken)
    }

    /// Descriptors that become readable when the engine has an event after
    /// [`Self::announce_sleep`], and when it has ended: for callers with an epoll instance of their
    /// own. None if the attachment was made without [`super::ClientOptions::waits_for_others`].
    #[must_use]
    pub fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]> {
        self.link.descriptors()
    }

    /// Asks the engine to signal [`Self::descriptors`] at its next event. False if there is one
    /// already: then the caller must not sleep. [`Self::cancel_sleep`] ends it.
    ///
    /// # Errors
    /// [`ClientError::Lost`].
    pub fn announce_sleep(&mut self) -> Result<bool, ClientError> {
        self.give_back(0)?;
        Ok(self.link.announce_sleep())
    }

    /// Ends the announced sleep.
    pub fn cancel_sleep(&mut self) {
        self.link.cancel_sleep();
    }

    /// True once the engine has ended. Makes a system call.
    pub fn is_lost(&mut self) -> bool {
        self.link.is_lost()
    }

    /// Processes all waiting events.
    pub(super) fn take_events(&mut self) -> usize {
        let mut count = 0;
        while count < EVENTS_MAX
            && let Some(entry) = self.link.next_event()
        {
            // An answer for which no call waits belongs to a cancelled opening.
            self.apply_event(entry);
            count += 1;
        }
        count
    }

    /// Waits for the answer to an opening.
    pub(super) fn wait_for_opened(&mut self, tag: u32) -> Result<Entry, ClientError> {
        loop {
            while let Some(entry) = self.link.next_event() {
                if let Some(opened) = self.apply_event(entry)
                    && opened.tag == tag
                {
                    return Ok(opened);
                }
            }
            if self.link.is_lost() {
                return Err(ClientError::Lost);
            }
            if self.link.is_here() {
                self.link.turn(None, NAP)?;
            } else {
                self.link.sleep(NAP);
            }
        }
    }

    /// Sends a request to the engine; it also returns a received chunk.
    pub(super) fn post(
        &mut self,
        request: Request,
        socket: Socket,
        entry: Entry,
    ) -> Result<(), ClientError> {
        let entry = Entry {
            kind: request.number(),
            socket: socket.0,
            give: self.chunks.next_given(),
            ..entry
        };
        // Postponed requests precede this one.
        if self.link.postpones() {
            return self.link.postpone(entry);
        }
        let mut tries = 0u32;
        while !self.link.write(&entry)? {
            // Full: the engine is behind, or waits until the client reads its events.
            self.link.ring();
            self.take_events();
            // The engine runs in this thread: only a turn of it makes room.
            if self.link.is_here() {
                self.link.turn(None, Duration::ZERO)?;
                continue;
            }
            tries += 1;
            // The check for a lost engine is a system call, so it is rare.
            if tries.is_multiple_of(64) {
                self.link.is_lost();
                self.link.sleep(Duration::from_micros(50));
            } else {
                std::hint::spin_loop();
            }
        }
        self.link.ring();
        Ok(())
    }

    /// Lets bytes go on that waited in private memory, and returns received chunks until at most
    /// `keep` are left for later requests to carry.
    pub(super) fn give_back(&mut self, keep: usize) -> Result<(), ClientError> {
        self.resume()?;
        while self.chunks.giving() > keep {
            self.post(Request::Give, Socket(NO_CHUNK), Entry::default())?;
        }
        while let Some((socket, chunks)) = self.chunks.next_credit() {
            let credit = Entry {
                argument: chunks,
                ..Entry::default()
            };
            self.post(Request::Credit, Socket(socket), credit)?;
        }
        Ok(())
    }

    /// Polls for events until `limit` is over, or a little longer.
    fn spin(&mut self, limit: Duration) -> usize {
        // The clock is read late: an immediate event is found without it.
        let mut begun = None;
        loop {
            for _ in 0..LOOKS_A_YIELD {
                if self.link.has_event() {
                    return self.take_events();
                }
                self.chunks.prefetch();
                std::hint::spin_loop();
            }
            if begun.get_or_insert_with(Instant::now).elapsed() >= limit {
                return 0;
            }
            // The engine may need this core.
            std::thread::yield_now();
        }
    }
}

/// Longest sleep before a check that the engine is alive.
pub(super) const NAP: Duration = Duration::from_millis(50);
/// The same, while requests wait for room.
const ROOM_NAP: Duration = Duration::from_millis(2);
/// Received chunks that may wait for a request to carry them back.
const GIVING_MAX: usize = 4;
/// Polls between two yields: some microseconds, longer than an engine on another core takes.
const LOOKS_A_YIELD: usize = 256;
/// Events processed in one go.
const EVENTS_MAX: usize = 1024;
