//! The way to the engine: the rings, and its location.
//!
//! Must stay true: no wake-up is lost (`sidecore-sync` has the protocol); requests reach the ring
//! in the order in which they were posted.

use super::{ClientError, EventSource};
use crate::sock::layout::{CLIENT_ASLEEP, ENGINE_ASLEEP, EVENTS, Entry, REQUESTS};
use crate::sock::ring::{Reader, Writer};
use sidecore_sync::{Changed, Shared, SleepWord};
use sidecore_sys::{SharedMap, SharedSlice, local_socket};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An engine that its application drives.
pub(crate) trait Driver: Send {
    /// One round; then, after a round without work, waits at most `rest` for work, or for an event
    /// of `other`. True if it has slept.
    ///
    /// # Errors
    /// [`DriverFailed`] when the engine has ended.
    fn turn(
        &mut self,
        other: Option<&dyn EventSource>,
        rest: Duration,
    ) -> Result<bool, DriverFailed>;
}

/// The reason why an engine has ended.
pub(crate) struct DriverFailed(pub(crate) String);

/// Location of a client's engine: another process or this one.
pub(super) enum Engine {
    /// In another process: the connection that ends with it, and the bell that wakes it.
    Elsewhere {
        socket: OwnedFd,
        bell: OwnedFd,
        /// Descriptor by which the engine wakes the client, if requested.
        wake: Option<OwnedFd>,
    },
    /// In this process: it runs while its application waits.
    Here(Box<dyn Driver>),
}

/// The rings between a client and its engine.
pub(super) struct Link {
    map: Arc<SharedMap>,
    engine: Engine,
    requests: Writer,
    events: Reader,
    /// True if requests that find no room are kept, so that no call waits.
    postpones: bool,
    /// Requests that found no room, in order.
    postponed: VecDeque<Entry>,
    /// Time of the last check that the engine is alive.
    looked_at: Instant,
    lost: bool,
}

impl Link {
    pub(super) fn new(map: Arc<SharedMap>, engine: Engine, never_waits: bool) -> Self {
        Self {
            map,
            // An engine in this thread makes room in its own turn.
            postpones: never_waits && matches!(engine, Engine::Elsewhere { .. }),
            engine,
            requests: Writer::new(REQUESTS),
            events: Reader::new(EVENTS),
            postponed: VecDeque::new(),
            looked_at: Instant::now(),
            lost: false,
        }
    }

    pub(super) fn memory(&self) -> SharedSlice<'_> {
        self.map.slice()
    }

    /// True if the engine runs in this thread.
    pub(super) fn is_here(&self) -> bool {
        matches!(self.engine, Engine::Here(_))
    }

    /// True if the engine was found to have ended.
    pub(super) fn was_lost(&self) -> bool {
        self.lost
    }

    /// True once the engine has ended. Makes a system call.
    pub(super) fn is_lost(&mut self) -> bool {
        if let Engine::Elsewhere { socket, .. } = &self.engine {
            self.lost = self.lost || local_socket::is_hung_up(socket.as_fd());
        }
        self.lost
    }

    /// As [`Self::is_lost`], with a system call once in `interval` only.
    pub(super) fn is_lost_by_now(&mut self, interval: Duration) -> bool {
        if self.looked_at.elapsed() < interval {
            return false;
        }
        self.looked_at = Instant::now();
        self.is_lost()
    }

    pub(super) fn has_event(&self) -> bool {
        !self.events.is_empty(self.map.slice())
    }

    pub(super) fn next_event(&mut self) -> Option<Entry> {
        self.events.read(self.map.slice())
    }

    /// True if [`Self::postpone`] is to be used instead of [`Self::write`].
    pub(super) fn postpones(&self) -> bool {
        self.postpones
    }

    /// True if requests wait for room.
    pub(super) fn has_postponed(&self) -> bool {
        !self.postponed.is_empty()
    }

    /// Writes a request; false if there is no room.
    ///
    /// # Errors
    /// [`ClientError::Lost`].
    pub(super) fn write(&mut self, entry: &Entry) -> Result<bool, ClientError> {
        if self.lost {
            return Err(ClientError::Lost);
        }
        self.requests.write(self.map.slice(), entry).map_err(|_| {
            // Only a broken engine moves its position to where it cannot be.
            self.lost = true;
            ClientError::Lost
        })
    }

    /// Queues a request behind those that wait for room.
    ///
    /// # Errors
    /// [`ClientError::Lost`].
    pub(super) fn postpone(&mut self, entry: Entry) -> Result<(), ClientError> {
        if self.lost {
            return Err(ClientError::Lost);
        }
        // Behind those that wait, even where there is room now: requests keep their order.
        self.postponed.push_back(entry);
        self.write_postponed();
        Ok(())
    }

    /// Writes requests that found no room before, as far as there is room now.
    pub(super) fn write_postponed(&mut self) {
        while let Some(&entry) = self.postponed.front()
            && self.write(&entry).unwrap_or(false)
        {
            self.postponed.pop_front();
        }
        self.ring();
    }

    /// Wakes the engine if it sleeps.
    pub(super) fn ring(&self) {
        let Engine::Elsewhere { bell, .. } = &self.engine else {
            return;
        };
        let word: Option<&SleepWord<Shared>> = self.memory().overlay(ENGINE_ASLEEP);
        // The engine sleeps on descriptors, so it is woken by its bell.
        if word.is_some_and(|word| word.claim_after(Changed::publish())) {
            local_socket::poke(bell.as_fd());
        }
    }

    /// One round of the engine, if it is in this thread.
    pub(super) fn turn(
        &mut self,
        other: Option<&dyn EventSource>,
        rest: Duration,
    ) -> Result<bool, ClientError> {
        let Engine::Here(driver) = &mut self.engine else {
            return Ok(false);
        };
        if self.lost {
            return Err(ClientError::Lost);
        }
        driver.turn(other, rest).map_err(|DriverFailed(reason)| {
            self.lost = true;
            ClientError::Failed(reason)
        })
    }

    /// Descriptors that become readable at the engine's next event and at its end, if requested.
    pub(super) fn descriptors(&self) -> Option<[BorrowedFd<'_>; 2]> {
        match &self.engine {
            Engine::Elsewhere {
                socket,
                wake: Some(wake),
                ..
            } => Some([wake.as_fd(), socket.as_fd()]),
            _ => None,
        }
    }

    fn wake(&self) -> Option<BorrowedFd<'_>> {
        self.descriptors().map(|[wake, _]| wake)
    }

    fn sleep_word(&self) -> Option<&SleepWord<Shared>> {
        self.memory().overlay(CLIENT_ASLEEP)
    }

    /// Asks the engine to signal its next event; false if there is one already.
    pub(super) fn announce_sleep(&self) -> bool {
        if let Some(word) = self.sleep_word() {
            word.announce_sleep();
        }
        // Looked at after the announcement: an event in between is signalled, or seen here.
        !self.has_event()
    }

    /// Ends the announced sleep.
    pub(super) fn cancel_sleep(&self) {
        if let Some(word) = self.sleep_word() {
            word.cancel_sleep();
        }
        if let Some(wake) = self.wake() {
            local_socket::drain(wake);
        }
    }

    /// Sleeps until the engine wakes it; wake-ups may be spurious.
    pub(super) fn sleep(&self, limit: Duration) {
        if self.wake().is_some() {
            // The engine signals this descriptor, and nothing else.
            return self.sleep_with(None, limit);
        }
        if let Some(word) = self.sleep_word() {
            word.sleep_unless(Some(limit), || self.has_event());
        }
    }

    /// Sleeps until the engine wakes it, or there is an event of `other`; not at all if the
    /// attachment was made without a descriptor for that.
    pub(super) fn sleep_with(&self, other: Option<&dyn EventSource>, limit: Duration) {
        let Some(wake) = self.wake() else {
            return;
        };
        let is_quiet = self.announce_sleep();
        if let Some(other) = other {
            other.announce_sleep();
        }
        if is_quiet && !other.is_some_and(EventSource::is_ready) {
            let other = other.map(EventSource::descriptor);
            let descriptors = [wake, other.unwrap_or(wake)];
            let count = 1 + usize::from(other.is_some());
            // It fails only without memory: then the sleep was short.
            local_socket::poll(&descriptors[..count], &mut Vec::new(), limit).ok();
        }
        if let Some(other) = other {
            other.cancel_sleep();
        }
        self.cancel_sleep();
    }
}
