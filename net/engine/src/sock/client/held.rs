//! Bytes of one session that are on their way to the engine, or wait in private memory.
//!
//! Why here: it is a part of a session's state, which events change; the ways on stand in
//! `outgoing`. Must stay true: a session's bytes keep their order, and its end follows them; a
//! chunk on trial is the only one of its session.

use crate::sock::layout::Request;
use sidecore_bare::width::ToUsize;
use std::collections::VecDeque;

/// A session's bytes to send.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    /// Chunks that the engine has.
    pub(super) posted: u32,
    /// Bytes of the chunk on trial.
    pub(super) trial: Option<u32>,
    /// The engine reports when there is room.
    pub(super) awaits_room: bool,
    /// Bytes in private memory, in order.
    pub(super) held: VecDeque<Box<[u8]>>,
    /// An end to be requested after them.
    pub(super) end: Option<Request>,
    /// It is in the list of those that go on.
    pub(super) listed: bool,
    /// The peer has acknowledged all, the end included.
    pub(super) acknowledged: bool,
}

/// The way of some bytes that the application sends.
pub(super) enum Way {
    Post,
    Try,
    Hold,
}

impl Outgoing {
    /// Chunks that the engine has yet to send, and those that wait here.
    pub(super) fn count(&self) -> u32 {
        self.posted + u32::try_from(self.held.len()).unwrap_or(u32::MAX)
    }

    /// True if the application has closed the session, and some bytes of it are left.
    pub(super) fn is_closing(&self) -> bool {
        self.end == Some(Request::Close)
    }

    /// True if bytes may be in private memory, now or soon.
    pub(super) fn is_held_back(&self) -> bool {
        self.trial.is_some() || !self.held.is_empty()
    }

    pub(super) fn way(&self, is_short: bool) -> Way {
        // Behind bytes that wait, to keep their order.
        if self.is_held_back() || is_short && self.posted > 0 {
            Way::Hold
        } else if is_short {
            Way::Try
        } else {
            Way::Post
        }
    }

    /// A chunk was sent, or dropped with its session.
    pub(super) fn sent(&mut self) {
        self.posted = self.posted.saturating_sub(1);
        self.trial = None;
    }

    /// True if bytes or an end that waited here can go on.
    pub(super) fn goes_on(&self) -> bool {
        let waits = !self.held.is_empty() || self.end.is_some();
        waits && self.trial.is_none() && !self.awaits_room
    }
}

impl Outgoing {
    /// A chunk is posted.
    pub(super) fn note_posted(&mut self) {
        self.posted += 1;
    }

    /// The chunk on trial came back after `sent` bytes: the rest waits here.
    #[cold]
    pub(super) fn note_unsent(&mut self, chunk: &[u8], sent: u32) {
        let bytes = self.trial.unwrap_or(0).to_usize();
        if let Some(rest) = chunk.get(sent.to_usize()..bytes) {
            // In front: bytes that wait came later.
            self.held.push_front(rest.into());
        }
        self.sent();
        self.awaits_room = true;
    }
}
