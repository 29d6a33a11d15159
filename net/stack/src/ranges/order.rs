//! Ranges in flight in the order of sending, for RACK: finds those that may be lost without a walk
//! over all.
//!
//! Why here: the scoreboard is ordered by sequence number, but a retransmission was sent later than
//! its position suggests. Ranges are queued here when they are sent; those sent before the newest
//! delivered range move to a second queue, where they wait for their timeout. The scoreboard
//! decides on the fate of a range: an entry that contradicts the scoreboard is void, and is dropped
//! when it is reached. Must stay true: both queues are ordered by time, so that a check costs the
//! removed entries and one more; a range in flight is in one of them. Source: RFC 8985 section 6.2,
//! step 5 ("time-ordered list").

use crate::timer::before;
use crate::wire::sequence::{Range, Sequence};
use std::collections::VecDeque;

/// Ranges sent at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) sent_us: u32,
    pub(crate) range: Range,
}

/// The two queues.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// Sent no sooner than the newest delivered range.
    later: VecDeque<Left>,
    /// Sent before that.
    pub(crate) waiting: VecDeque<Left>,
    /// Entries and records examined, for tests.
    #[cfg(test)]
    pub(crate) steps: u64,
}

impl Order {
    pub(crate) fn clear(&mut self) {
        self.later.clear();
        self.waiting.clear();
        if self.later.capacity() > KEPT {
            self.later.shrink_to(KEPT);
        }
        if self.waiting.capacity() > KEPT {
            self.waiting.shrink_to(KEPT);
        }
    }

    /// Records a transmission, at a time no earlier than any before.
    pub(crate) fn push(&mut self, range: Range, sent_us: u32) {
        append(&mut self.later, Left { sent_us, range });
    }

    /// Removes acknowledged ranges from the front.
    pub(crate) fn acknowledge(&mut self, ack: Sequence) {
        for queue in [&mut self.waiting, &mut self.later] {
            while queue.front().is_some_and(|left| left.range.end <= ack) {
                queue.pop_front();
            }
        }
    }

    /// The range that was sent at `newest_us` and ends at `newest_end` is the newest delivered one:
    /// ranges sent before it wait for their timeout from now on.
    pub(crate) fn arrived(&mut self, newest_us: u32, newest_end: Sequence) {
        loop {
            self.step();
            let Some(first) = self.later.front_mut() else {
                return;
            };
            let mut left = *first;
            if before(left.sent_us, newest_us) {
                self.later.pop_front();
            } else if left.sent_us == newest_us && left.range.start < newest_end {
                // Of a transmission with the same time, the part before it.
                if newest_end < left.range.end {
                    left.range.end = newest_end;
                    first.range.start = newest_end;
                } else {
                    self.later.pop_front();
                }
            } else {
                return;
            }
            append(&mut self.waiting, left);
        }
    }

    #[inline]
    pub(crate) fn step(&mut self) {
        #[cfg(test)]
        {
            self.steps += 1;
        }
    }
}

/// Merges adjacent ranges that were sent at the same time.
fn append(queue: &mut VecDeque<Left>, left: Left) {
    match queue.back_mut() {
        Some(last) if last.sent_us == left.sent_us && last.range.end == left.range.start => {
            last.range.end = left.range.end;
        }
        _ => queue.push_back(left),
    }
}

/// Queues that grew beyond this free their memory when they are empty.
const KEPT: usize = 512;
