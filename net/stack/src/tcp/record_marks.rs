//! Record marks: positions in the send ring where a record ends, or whose byte is to be
//! timestamped.
//!
//! A record's end (`MSG_EOR`) is the end of a segment: data written after it goes into a new
//! segment, so that a peer that reads segment by segment gets records. A timestamp reports when the
//! last byte of a write was sent, and when it was acknowledged (Linux's `SO_TIMESTAMPING`). Why
//! here: few sessions have marks, so they are stored behind a pointer, and one bit next to the path
//! ([`SendTail::MARKED`](crate::state::flags::SendTail)) shows that there are any. Must stay true:
//! both lists are ordered by sequence number, and each is bounded.

use crate::wire::sequence::Sequence;
use sidecore_bare::width::ToUsize;
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
    end: Sequence,
    sent: bool,
}

/// The marks of one session; nothing is allocated before the first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Marks(Option<Box<Lists>>);

#[derive(Debug, Clone, Default)]
struct Lists {
    record_ends: VecDeque<Sequence>,
    kinds: StampKinds,
    /// Sequence number of byte 0 of the timestamps.
    base: Sequence,
    waiting: VecDeque<Waiting>,
    stamps: VecDeque<Stamp>,
}

impl Lists {
    fn stamp(&mut self, kind: StampKind, at_ns: u64, end: Sequence) {
        // An application that does not read its timestamps must not take memory without bound.
        if self.stamps.len() >= STAMPS_MAX {
            self.stamps.pop_front();
        }
        let byte = end - 1 - self.base;
        self.stamps.push_back(Stamp { kind, at_ns, byte });
    }
}

impl Marks {
    fn lists(&mut self) -> &mut Lists {
        self.0.get_or_insert_default()
    }

    /// Requests timestamps of future writes; bytes count from `base`, if none were requested
    /// before.
    pub(crate) fn set_stamps(&mut self, kinds: StampKinds, base: Sequence) {
        let lists = self.lists();
        if !lists.kinds.any() {
            lists.base = base;
        }
        lists.kinds = kinds;
    }

    /// True if there is room for another record end.
    pub(crate) fn takes_record_end(&self) -> bool {
        let lists = self.0.as_ref();
        lists.is_none_or(|lists| lists.record_ends.len() < RECORD_ENDS_MAX)
    }

    /// Marks the end of the written data; `ends_record`: also as a record's end.
    pub(crate) fn mark(&mut self, end: Sequence, ends_record: bool) {
        let lists = self.lists();
        // A write of no bytes ends a record that has ended already.
        if ends_record && lists.record_ends.back() != Some(&end) {
            lists.record_ends.push_back(end);
        }
        if lists.kinds.any() && lists.waiting.len() < WAITING_MAX {
            lists.waiting.push_back(Waiting { end, sent: false });
        }
    }

    /// The part of `unsent` bytes from `nxt` on up to the first record end.
    #[cold]
    pub(crate) fn record_bytes(&self, nxt: Sequence, unsent: usize) -> usize {
        let Some(lists) = &self.0 else {
            return unsent;
        };
        let next = lists.record_ends.iter().find(|&&end| nxt < end);
        next.map_or(unsent, |&end| unsent.min((end - nxt).to_usize()))
    }

    /// True if a record ends just before this number.
    #[cold]
    pub(crate) fn is_record_end(&self, at: Sequence) -> bool {
        let lists = self.0.as_ref();
        lists.is_some_and(|lists| lists.record_ends.contains(&at))
    }

    /// Creates timestamps for data up to `nxt`, which was just sent for the first time.
    #[cold]
    pub(crate) fn sent(&mut self, nxt: Sequence, now_ns: u64) {
        let Some(lists) = &mut self.0 else {
            return;
        };
        let kinds = lists.kinds;
        let mut at = 0;
        while let Some(waiting) = lists.waiting.get_mut(at)
            && waiting.end <= nxt
        {
            let end = waiting.end;
            // A retransmission does not report the write again.
            if !std::mem::replace(&mut waiting.sent, true) {
                if kinds.scheduled {
                    lists.stamp(StampKind::Scheduled, now_ns, end);
                }
                if kinds.sent {
                    lists.stamp(StampKind::Sent, now_ns, end);
                }
            }
            at += 1;
        }
    }

    /// Removes the marks that `ack` acknowledges, and creates their timestamps; true if there are
    /// new ones.
    #[cold]
    pub(crate) fn acknowledged(&mut self, ack: Sequence, now_ns: u64) -> bool {
        let Some(lists) = &mut self.0 else {
            return false;
        };
        let acknowledged = |end: &Sequence| *end <= ack;
        while lists.record_ends.front().is_some_and(acknowledged) {
            lists.record_ends.pop_front();
        }
        let mut stamped = false;
        while let Some(waiting) = lists.waiting.front().copied()
            && waiting.end <= ack
        {
            lists.waiting.pop_front();
            if lists.kinds.acknowledged {
                lists.stamp(StampKind::Acknowledged, now_ns, waiting.end);
                stamped = true;
            }
        }
        stamped
    }

    /// The oldest timestamp that was not read.
    pub(crate) fn take_stamp(&mut self) -> Option<Stamp> {
        self.0.as_mut()?.stamps.pop_front()
    }

    /// True if a timestamp can be read.
    pub(crate) fn has_stamps(&self) -> bool {
        self.0
            .as_ref()
            .is_some_and(|lists| !lists.stamps.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_end_where_they_were_marked_until_that_is_acknowledged() {
        let (mut marks, base) = (Marks::default(), Sequence::new(u32::MAX - 9));
        assert!(marks.takes_record_end());
        assert_eq!(marks.record_bytes(base, 500), 500);
        marks.mark(base + 100, true);
        marks.mark(base + 250, true);
        assert_eq!(marks.record_bytes(base, 500), 100);
        assert_eq!(marks.record_bytes(base + 100, 400), 150);
        assert!(marks.is_record_end(base + 100));
        assert!(
            !marks.acknowledged(base + 100, 1),
            "no timestamps were requested"
        );
        assert!(!marks.is_record_end(base + 100) && marks.is_record_end(base + 250));
    }

    #[test]
    fn a_write_is_stamped_once_when_sent_and_once_when_acknowledged() {
        let (mut marks, base) = (Marks::default(), Sequence::new(u32::MAX));
        let kinds = StampKinds {
            scheduled: false,
            sent: true,
            acknowledged: true,
        };
        marks.set_stamps(kinds, base);
        marks.mark(base + 10, false);
        marks.sent(base + 9, 1);
        assert!(!marks.has_stamps());
        marks.sent(base + 10, 2);
        marks.sent(base + 10, 3);
        assert!(marks.acknowledged(base + 10, 4));
        let stamps: Vec<_> = std::iter::from_fn(|| marks.take_stamp()).collect();
        let stamps = stamps
            .iter()
            .map(|stamp| (stamp.kind, stamp.at_ns, stamp.byte));
        let expected = [(StampKind::Sent, 2, 9), (StampKind::Acknowledged, 4, 9)];
        assert!(stamps.eq(expected));
    }
}
