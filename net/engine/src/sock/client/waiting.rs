//! The rings as the application uses them, and how it waits.
//!
//! First it spins, for the time in its options; then it sleeps on a futex, from which the engine
//! wakes it. Must stay true: no wake-up is lost (`sidecore-sync` has the protocol); the end of an
//! engine is noticed within [`NAP`].

use super::{Client, ClientError, Engine, EventSource, Socket};
use crate::sock::layout::{CLIENT_ASLEEP, ENGINE_ASLEEP, Entry, NO_CHUNK, Request};
use sidecore_sync::{Changed, Shared, SleepWord};
use sidecore_sys::local_socket;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

impl Client {
    /// Processes events; if there are none, waits for some, at most for `timeout`. Returns their
    /// number.
    ///
    /// # Errors
    /// [`ClientError::Lost`].
    pub fn poll(&mut self, timeout: Duration) -> Result<usize, ClientError> {
        if matches!(self.engine, Engine::Here(_)) {
            return self.poll_here(None, timeout);
        }
        let taken = self.take_events();
        if taken == 0 {
            // Prefetches the probable place of the next bytes: the engine reuses the chunk that was
            // returned last.
            self.map.slice().prefetch(self.last_received);
        }
        if taken > 0 || timeout.is_zero() {
            self.give_back(GIVING_MAX.min(self.chunks as usize / 32))?;
            return Ok(taken);
        }
        self.give_back(0)?;
        let polls = self.patience.polls();
        if polls {
            let taken = self.spin(self.spin.min(timeout));
            if taken > 0 {
                self.patience.ended(true, true);
                return Ok(taken);
            }
        }
        let (begun, spun) = (
            Instant::now(),
            if polls { self.spin } else { Duration::ZERO },
        );
        loop {
            let taken = self.take_events();
            if taken > 0 {
                let soon = !polls && begun.elapsed() <= self.spin;
                self.patience.ended(polls, soon);
                return Ok(taken);
            }
            if self.is_lost() {
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
            self.sleep(left.min(NAP));
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
        let Engine::Elsewhere { wake, .. } = &self.engine else {
            return self.poll_here(Some(other), timeout);
        };
        let wake = wake.clone();
        let taken = self.take_events();
        self.give_back(0)?;
        let mut timeout = timeout;
        if !self.postponed.is_empty() {
            self.write_postponed();
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
                    if !self.events.is_empty(self.map.slice()) || other.is_ready() {
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
        if let Some(wake) = &wake {
            self.sleep_on(Some(other), wake, timeout.min(NAP));
        }
        if begun.elapsed() <= self.spin {
            self.patience.ended(false, true);
        }
        let taken = self.take_events();
        // Many short waits together reach the interval of the check.
        if taken == 0 && self.looked_at.elapsed() >= NAP {
            self.looked_at = Instant::now();
            if self.is_lost() {
                return Err(ClientError::Lost);
            }
        }
        Ok(taken)
    }

    /// Descriptors that become readable when the engine has an event after
    /// [`Self::announce_sleep`], and when it has ended: for callers with an epoll instance of their
    /// own. None if the attachment was made without [`super::ClientOptions::waits_for_others`].
    #[must_use]
    pub fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]> {
        match &self.engine {
            Engine::Elsewhere {
                socket,
                wake: Some(wake),
                ..
            } => Some([wake.as_fd(), socket.as_fd()]),
            _ => None,
        }
    }

    /// Asks the engine to signal [`Self::descriptors`] at its next event. False if there is one
    /// already: then the caller must not sleep. [`Self::cancel_sleep`] ends it.
    ///
    /// # Errors
    /// [`ClientError::Lost`].
    pub fn announce_sleep(&mut self) -> Result<bool, ClientError> {
        self.give_back(0)?;
        let memory = self.map.slice();
        if let Some(word) = memory.overlay::<SleepWord<Shared>>(CLIENT_ASLEEP) {
            word.announce_sleep();
        }
        Ok(self.events.is_empty(memory))
    }

    /// Ends the announced sleep.
    pub fn cancel_sleep(&mut self) {
        let memory = self.map.slice();
        if let Some(word) = memory.overlay::<SleepWord<Shared>>(CLIENT_ASLEEP) {
            word.cancel_sleep();
        }
        if let Engine::Elsewhere {
            wake: Some(wake), ..
        } = &self.engine
        {
            local_socket::drain(wake.as_fd());
        }
    }

    /// True once the engine has ended. Makes a system call.
    pub fn is_lost(&mut self) -> bool {
        if let Engine::Elsewhere { socket, .. } = &self.engine {
            self.lost = self.lost || local_socket::is_hung_up(socket.as_fd());
        }
        self.lost
    }

    /// Processes all waiting events.
    pub(super) fn take_events(&mut self) -> usize {
        let mut count = 0;
        while count < EVENTS_MAX
            && let Some(entry) = self.events.read(self.map.slice())
        {
            // An answer for which no call waits belongs to a cancelled opening.
            self.apply_event(entry);
            count += 1;
        }
        count
    }

    /// Waits for the answer to an opening.
    pub(super) fn wait_for_opened(&mut self, tag: u32) -> Result<Entry, ClientError> {
        let map = std::sync::Arc::clone(&self.map);
        loop {
            while let Some(entry) = self.events.read(map.slice()) {
                if let Some(opened) = self.apply_event(entry)
                    && opened.tag == tag
                {
                    return Ok(opened);
                }
            }
            if self.is_lost() {
                return Err(ClientError::Lost);
            }
            match self.engine {
                Engine::Here(_) => self.turn(None, NAP)?,
                Engine::Elsewhere { .. } => self.sleep(NAP),
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
            kind: request as u32,
            socket: socket.0,
            give: self.giving.pop().unwrap_or(NO_CHUNK),
            ..entry
        };
        let map = std::sync::Arc::clone(&self.map);
        // Postponed requests precede this one.
        if self.never_waits && matches!(self.engine, Engine::Elsewhere { .. }) {
            if self.lost {
                return Err(ClientError::Lost);
            }
            self.postponed.push_back(entry);
            self.write_postponed();
            return Ok(());
        }
        let mut tries = 0u32;
        loop {
            if self.lost {
                return Err(ClientError::Lost);
            }
            match self.requests.write(map.slice(), &entry) {
                Ok(true) => break,
                Ok(false) => {}
                Err(_) => self.lost = true,
            }
            // Full: the engine is behind, or waits until the client reads its events.
            self.ring();
            self.take_events();
            // The engine runs in this thread: only a turn of it makes room.
            if matches!(self.engine, Engine::Here(_)) {
                self.turn(None, Duration::ZERO)?;
                continue;
            }
            tries += 1;
            // The check for a lost engine is a system call, so it is rare.
            if tries.is_multiple_of(64) {
                self.is_lost();
                self.sleep(Duration::from_micros(50));
            } else {
                std::hint::spin_loop();
            }
        }
        self.ring();
        Ok(())
    }

    /// Writes requests that found no room before, as far as there is room now.
    fn write_postponed(&mut self) {
        let map = std::sync::Arc::clone(&self.map);
        while let Some(entry) = self.postponed.front() {
            match self.requests.write(map.slice(), entry) {
                Ok(true) => self.postponed.pop_front(),
                Ok(false) => break,
                Err(_) => {
                    self.lost = true;
                    break;
                }
            };
        }
        self.ring();
    }

    /// Wakes the engine if it sleeps.
    fn ring(&self) {
        let Engine::Elsewhere { bell, .. } = &self.engine else {
            return;
        };
        let word: Option<&SleepWord<Shared>> = self.map.slice().overlay(ENGINE_ASLEEP);
        // The engine sleeps on descriptors, so it is woken by its bell.
        if word.is_some_and(|word| word.claim_after(Changed::publish())) {
            local_socket::poke(bell.as_fd());
        }
    }

    /// Returns received chunks until at most `keep` are left for later requests to carry.
    pub(super) fn give_back(&mut self, keep: usize) -> Result<(), ClientError> {
        while self.giving.len() > keep {
            self.post(Request::Give, Socket(NO_CHUNK), Entry::default())?;
        }
        while let Some((socket, chunks)) = self.credits.pop() {
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
                let memory = self.map.slice();
                if !self.events.is_empty(memory) {
                    return self.take_events();
                }
                memory.prefetch(self.last_received);
                std::hint::spin_loop();
            }
            if begun.get_or_insert_with(Instant::now).elapsed() >= limit {
                return 0;
            }
            // The engine may need this core.
            std::thread::yield_now();
        }
    }

    /// Sleeps until the engine wakes it, or there is an event of `other`; wake-ups may be spurious.
    fn sleep_on(&self, other: Option<&dyn EventSource>, wake: &OwnedFd, limit: Duration) {
        let memory = self.map.slice();
        let Some(word) = memory.overlay::<SleepWord<Shared>>(CLIENT_ASLEEP) else {
            return;
        };
        word.announce_sleep();
        if let Some(other) = other {
            other.announce_sleep();
        }
        if self.events.is_empty(memory) && !other.is_some_and(EventSource::is_ready) {
            let others = other.map(EventSource::descriptor).into_iter();
            let descriptors: Vec<_> = others.chain([wake.as_fd()]).collect();
            // It fails only without memory: then the sleep was short.
            local_socket::poll(&descriptors, &mut Vec::new(), limit).ok();
            local_socket::drain(wake.as_fd());
        }
        if let Some(other) = other {
            other.cancel_sleep();
        }
        word.cancel_sleep();
    }

    fn sleep(&self, limit: Duration) {
        if let Engine::Elsewhere {
            wake: Some(wake), ..
        } = &self.engine
        {
            // The engine signals this descriptor, and nothing else.
            return self.sleep_on(None, wake, limit);
        }
        let memory = self.map.slice();
        if let Some(word) = memory.overlay::<SleepWord<Shared>>(CLIENT_ASLEEP) {
            word.sleep_unless(Some(limit), || !self.events.is_empty(memory));
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
