//! The way to one process: its memory and the ring of events.

use crate::sock::layout::{CLIENT_ASLEEP, ENGINE_ASLEEP, EVENTS, Entry, Event, chunk_offset};
use crate::sock::mailbox::Attachment;
use crate::sock::ring::{Violation, Writer};
use sidecore_sync::{Changed, Shared, SleepWord};
use sidecore_sys::local_socket::Peer;
use sidecore_sys::{SharedSlice, local_socket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Events to a process, and the memory that it shares with the engine.
#[derive(Debug)]
pub(super) struct Link {
    attachment: Arc<Attachment>,
    events: Writer,
    /// Events written, in total.
    written: u64,
    /// True if there are events since the process was last woken.
    is_news: bool,
}

impl Link {
    pub(super) fn new(attachment: Arc<Attachment>) -> Self {
        Self {
            attachment,
            events: Writer::new(EVENTS),
            written: 0,
            is_news: false,
        }
    }

    pub(super) fn memory(&self) -> SharedSlice<'_> {
        self.attachment.map.slice()
    }

    pub(super) fn peer(&self) -> Peer {
        self.attachment.peer
    }

    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Offset of a receive chunk: they lie behind those to send from.
    pub(super) fn receive_offset(&self, chunk: u32) -> usize {
        chunk_offset(self.attachment.chunks + chunk)
    }

    /// True if there is room for `count` events.
    pub(super) fn has_room(&mut self, count: usize) -> Result<bool, Violation> {
        Ok(self.events.room(self.attachment.map.slice(), count)? >= count)
    }

    /// Writes an event; false if the ring is full.
    pub(super) fn send(&mut self, event: Event, entry: Entry) -> Result<bool, Violation> {
        let entry = Entry {
            kind: event.number(),
            ..entry
        };
        let written = self.events.write(self.attachment.map.slice(), &entry)?;
        self.is_news |= written;
        self.written += u64::from(written);
        Ok(written)
    }

    /// Wakes the process if it sleeps and has new events.
    pub(super) fn wake(&mut self) {
        // Looking for a sleeper costs a fence, which most rounds save.
        if !std::mem::take(&mut self.is_news) {
            return;
        }
        let word: Option<&SleepWord<Shared>> = self.memory().overlay(CLIENT_ASLEEP);
        let Some(word) = word else { return };
        match &self.attachment.wake {
            // The process sleeps on descriptors, so it is woken by its bell.
            Some(bell) => {
                if word.claim_after(Changed::publish()) {
                    local_socket::poke(bell.as_fd());
                }
            }
            None => {
                word.notify();
            }
        }
    }

    /// The word by which the engine announces a sleep to this process.
    pub(super) fn sleep_word(&self) -> Option<&SleepWord<Shared>> {
        self.memory().overlay(ENGINE_ASLEEP)
    }

    /// True once the attachment has ended.
    pub(super) fn is_gone(&self) -> bool {
        // Acquire: partner of the Release of either side that ends it.
        self.attachment.gone.load(Ordering::Acquire)
    }

    /// Ends the attachment.
    pub(super) fn end(&self) {
        self.attachment.gone.store(true, Ordering::Release);
    }
}
