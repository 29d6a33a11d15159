//! Record marks: positions in the send ring where a record ends, or whose byte is to be
//! timestamped.
//!
//! A record's end (`MSG_EOR`) is the end of a segment: data written after it goes into a new
//! segment, so that a peer that reads segment by segment gets records. A timestamp reports when the
//! last byte of a write was sent, and when it was acknowledged (Linux's `SO_TIMESTAMPING`). Why
//! here: few sessions have marks, so they are stored behind a pointer, and one bit next to the path
//! ([`Tail::MARKED`]) shows that there are any. Must stay true: both lists are ordered by sequence
//! number, and each is bounded.

use super::Session;
use crate::state::hot::Tail;
use crate::wire::sequence::{before, before_or_at};
use std::collections::VecDeque;

/// Record ends in a send ring; a write that would add one more waits.
pub(crate) const RECORD_ENDS_MAX: usize = 1024;
/// Writes that wait for their timestamps; later ones get none.
const WAITING_MAX: usize = 1024;
/// Timestamps that wait to be read; beyond that, the oldest are dropped.
const STAMPS_MAX: usize = 1024;

/// Timestamps that an application requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StampKinds {
    /// Time when the write's last byte was passed to the link's queue.
    pub scheduled: bool,
    /// Time when the link took it. The stack has no queue of its own in between.
    pub sent: bool,
    /// Time when the peer acknowledged it.
    pub acknowledged: bool,
}

impl StampKinds {
    fn any(self) -> bool {
        self.scheduled || self.sent || self.acknowledged
    }
}

/// The event of a timestamp.
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
    /// Time of the event, on the stack's clock.
    pub at_ns: u64,
    /// The byte, counted from the first unacknowledged one when timestamps were requested.
    pub byte: u32,
}

/// A write's end with pending timestamps.
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
    /// Sequence number of byte 0 of the timestamps.
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

    /// Requests timestamps of future writes.
    pub(crate) fn set_stamps(&mut self, kinds: StampKinds) {
        let base = self.hot.snd_una;
        let marks = self.marks();
        if !marks.kinds.any() {
            marks.base = base;
        }
        marks.kinds = kinds;
    }

    /// True if there is room for another record end.
    pub(crate) fn takes_record_end(&self) -> bool {
        let marks = self.cold.marks.as_ref();
        marks.is_none_or(|marks| marks.record_ends.len() < RECORD_ENDS_MAX)
    }

    /// Marks the end of the written data; `ends_record`: also as a record's end.
    pub(crate) fn mark_write(&mut self, ends_record: bool) {
        let start = if self.hot.state().is_synchronized() {
            self.hot.snd_una
        } else {
            // After our SYN.
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

    /// The part of `unsent` bytes after `snd_nxt` up to the first record end.
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

    /// Creates timestamps for data that was just sent for the first time.
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

    /// Removes the marks that `ack` acknowledges, and creates their timestamps.
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

    /// The oldest timestamp that was not read.
    pub(crate) fn take_stamp(&mut self) -> Option<Stamp> {
        self.cold.marks.as_mut()?.stamps.pop_front()
    }
}

/// True if a timestamp can be read.
pub(crate) fn has_stamps(marks: Option<&Marks>) -> bool {
    marks.is_some_and(|marks| !marks.stamps.is_empty())
}
