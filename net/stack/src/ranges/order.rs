//! The order in which what is in flight left, for RACK: who may be lost now, without looking at
//! all.
//!
//! Why here: the scoreboard lies in the order of sequence numbers, and what was sent again left
//! later than its place says. Ranges queue here as they leave; those that left before what is known
//! to have arrived wait in a second queue for their time to be over. What becomes of a range is the
//! board's to know: an entry that says something else than the board is void, and is dropped when
//! it is met. Must stay true: both queues lie in the order of time, so that a look costs what it
//! takes off and one more; a range that flies is in one of them. Source: RFC 8985 section 6.2, step
//! 5 ("time-ordered list").

use crate::wire::sequence::{Range, before, before_or_at};
use std::collections::VecDeque;

/// Ranges sent at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) sent_us: u32,
    pub(crate) range: Range,
}

/// The two queues.
#[derive(Debug, Default)]
pub(crate) struct Order {
    /// Left no sooner than what is known to have arrived.
    later: VecDeque<Left>,
    /// Left before that.
    pub(crate) waiting: VecDeque<Left>,
    /// Entries and records that were looked at, for tests.
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

    /// Notes what leaves now, at a time no sooner than any before.
    pub(crate) fn push(&mut self, range: Range, sent_us: u32) {
        append(&mut self.later, Left { sent_us, range });
    }

    /// Drops from the front what `ack` acknowledges.
    pub(crate) fn acknowledge(&mut self, ack: u32) {
        for queue in [&mut self.waiting, &mut self.later] {
            while queue
                .front()
                .is_some_and(|left| before_or_at(left.range.end, ack))
            {
                queue.pop_front();
            }
        }
    }

    /// Something that left at `newest_us` and ends at `newest_end` has arrived, and nothing that
    /// left later: what left before it waits from now on.
    pub(crate) fn arrived(&mut self, newest_us: u32, newest_end: u32) {
        loop {
            self.step();
            let Some(first) = self.later.front_mut() else {
                return;
            };
            let mut left = *first;
            if before(left.sent_us, newest_us) {
                self.later.pop_front();
            } else if left.sent_us == newest_us && before(left.range.start, newest_end) {
                // Of what left at once, what lies before it.
                if before(newest_end, left.range.end) {
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

/// Ranges that follow one another and left at once are one.
fn append(queue: &mut VecDeque<Left>, left: Left) {
    match queue.back_mut() {
        Some(last) if last.sent_us == left.sent_us && last.range.end == left.range.start => {
            last.range.end = left.range.end;
        }
        _ => queue.push_back(left),
    }
}

/// Queues that grew beyond this give their memory back when they are done.
const KEPT: usize = 512;
