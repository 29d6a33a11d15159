//! Places in the send ring that the application marked: ends of records, and bytes to be stamped.
//!
//! A record's end (`MSG_EOR`) is no segment's middle: what is written behind it goes in a segment
//! of its own, so that a peer that reads segment by segment gets records. A stamp tells when the
//! last byte of a write was sent, and when it was acknowledged (Linux's `SO_TIMESTAMPING`).
//! Why here: few sessions have marks, so they lie behind a pointer, and one bit beside the path
//! ([`Tail::MARKED`]) says that there are any. Must stay true: both lists are in the order of the
//! sequence numbers, and each is bounded.

use super::Session;
use crate::state::hot::Tail;
use crate::wire::sequence::{before, before_or_at};
use std::collections::VecDeque;

/// Ends of records that may lie in a send ring; a write that would add one more waits.
pub(crate) const RECORD_ENDS_MAX: usize = 1024;
/// Writes that may wait for their stamps; later ones get none.
const WAITING_MAX: usize = 1024;
/// Stamps that may wait to be taken; the oldest are dropped.
const STAMPS_MAX: usize = 1024;

/// Stamps that an application asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StampKinds {
    /// When the write's last byte was handed to the link's queue.
    pub scheduled: bool,
    /// When the link took it. The stack has no queue of its own in between.
    pub sent: bool,
    /// When the peer acknowledged it.
    pub acknowledged: bool,
}

impl StampKinds {
    fn any(self) -> bool {
        self.scheduled || self.sent || self.acknowledged
    }
}

/// The event that a stamp is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StampKind {
    /// See [`StampKinds::scheduled`].
    Scheduled,
    /// See [`StampKinds::sent`].
    Sent,
    /// See [`StampKinds::acknowledged`].
    Acknowledged,
}

/// The time at which the last byte of a write was sent or acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// The event.
    pub kind: StampKind,
    /// When, on the stack's clock.
    pub at_ns: u64,
    /// The byte, counted from the first that was not acknowledged when stamps were asked for.
    pub byte: u32,
}

/// A write's end whose stamps are still to come.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    end: u32,
    sent: bool,
}

/// The marks of one session.
#[derive(Debug, Clone, Default)]
pub(crate) struct Marks {
    record_ends: VecDeque<u32>,
    kinds: StampKinds,
    /// Sequence number of byte 0 of the stamps.
    base: u32,
    waiting: VecDeque<Waiting>,
    stamps: VecDeque<Stamp>,
}

impl Marks {
    fn stamp(&mut self, kind: StampKind, at_ns: u64, end: u32) {
        if self.stamps.len() >= STAMPS_MAX {
            self.stamps.pop_front();
        }
        let byte = end.wrapping_sub(self.base).wrapping_sub(1);
        self.stamps.push_back(Stamp { kind, at_ns, byte });
    }
}

impl Session<'_> {
    fn marks(&mut self) -> &mut Marks {
        self.path.tail.set(Tail::MARKED);
        self.cold.marks.get_or_insert_default()
    }

    /// Asks for stamps of the writes to come.
    pub(crate) fn set_stamps(&mut self, kinds: StampKinds) {
        let base = self.hot.snd_una;
        let marks = self.marks();
        if !marks.kinds.any() {
            marks.base = base;
        }
        marks.kinds = kinds;
    }

    /// True if a record may end in the next write.
    pub(crate) fn takes_record_end(&self) -> bool {
        let marks = self.cold.marks.as_ref();
        marks.is_none_or(|marks| marks.record_ends.len() < RECORD_ENDS_MAX)
    }

    /// Marks the end of all that was written; `ends_record`: also as a record's end.
    pub(crate) fn mark_write(&mut self, ends_record: bool) {
        let start = if self.hot.state().is_synchronized() {
            self.hot.snd_una
        } else {
            // Behind our SYN.
            self.cold.iss.wrapping_add(1)
        };
        let end = start.wrapping_add(self.hot.tx.len() as u32);
        let marks = self.marks();
        if ends_record && marks.record_ends.back() != Some(&end) {
            marks.record_ends.push_back(end);
        }
        if marks.kinds.any() && marks.waiting.len() < WAITING_MAX {
            marks.waiting.push_back(Waiting { end, sent: false });
        }
    }

    /// Of `unsent` bytes behind `snd_nxt`, those up to the first end of a record.
    #[cold]
    pub(crate) fn record_bytes(&self, unsent: usize) -> usize {
        let from = self.hot.snd_nxt;
        let Some(marks) = &self.cold.marks else {
            return unsent;
        };
        let next = marks.record_ends.iter().find(|&&end| before(from, end));
        next.map_or(unsent, |end| unsent.min(end.wrapping_sub(from) as usize))
    }

    /// True if a record ends just before this number.
    #[cold]
    pub(crate) fn is_record_end(&self, at: u32) -> bool {
        let marks = self.cold.marks.as_ref();
        marks.is_some_and(|marks| marks.record_ends.contains(&at))
    }

    /// Stamps what has just been sent for the first time.
    #[cold]
    pub(crate) fn marks_sent(&mut self) {
        let (now_ns, next) = (self.common.now_ns, self.hot.snd_nxt);
        let Some(marks) = &mut self.cold.marks else {
            return;
        };
        let kinds = marks.kinds;
        let mut at = 0;
        while let Some(waiting) = marks.waiting.get_mut(at)
            && before_or_at(waiting.end, next)
        {
            let end = waiting.end;
            if !std::mem::replace(&mut waiting.sent, true) {
                if kinds.scheduled {
                    marks.stamp(StampKind::Scheduled, now_ns, end);
                }
                if kinds.sent {
                    marks.stamp(StampKind::Sent, now_ns, end);
                }
            }
            at += 1;
        }
    }

    /// Forgets the marks that `ack` acknowledges, and stamps them.
    #[cold]
    pub(crate) fn marks_acknowledged(&mut self, ack: u32) {
        let now_ns = self.common.now_ns;
        let Some(marks) = &mut self.cold.marks else {
            return;
        };
        let acknowledged = |end: &u32| before_or_at(*end, ack);
        while marks.record_ends.front().is_some_and(acknowledged) {
            marks.record_ends.pop_front();
        }
        let mut stamped = false;
        while let Some(waiting) = marks.waiting.front().copied()
            && before_or_at(waiting.end, ack)
        {
            marks.waiting.pop_front();
            if marks.kinds.acknowledged {
                marks.stamp(StampKind::Acknowledged, now_ns, waiting.end);
                stamped = true;
            }
        }
        if stamped {
            self.notify();
        }
    }

    /// The oldest stamp that was not taken.
    pub(crate) fn take_stamp(&mut self) -> Option<Stamp> {
        self.cold.marks.as_mut()?.stamps.pop_front()
    }
}

/// True if a stamp waits to be taken.
pub(crate) fn has_stamps(marks: Option<&Marks>) -> bool {
    marks.is_some_and(|marks| !marks.stamps.is_empty())
}
