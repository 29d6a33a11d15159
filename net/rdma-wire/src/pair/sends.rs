//! The send queue: work from its posting to its completion, and the responses that it waits for.
//!
//! Must stay true: work is sent, and completes, in the order of posting (RFC 5040, section 5.5);
//! `outstanding` has an entry for each read and atomic that was sent and not answered.

use super::completions::{Completions, completion};
use crate::piece::Piece;
use crate::work::{Completion, Post, Status};
use std::collections::VecDeque;

#[derive(Debug)]
pub(super) struct SendQueue {
    slots: VecDeque<Slot>,
    /// The first slot that was not sent completely.
    next: usize,
    pub(super) outstanding: VecDeque<Outstanding>,
    /// Reads and atomics that may be outstanding.
    pub(super) ord: u16,
    /// Of the last atomic request.
    identifier: u32,
}

#[derive(Debug)]
struct Slot {
    post: Post,
    progress: Progress,
}

#[derive(Debug, Clone, Copy)]
enum Progress {
    /// Not sent completely.
    Waiting,
    /// Sent; a response is pending.
    Sent,
    Over(Completion),
}

/// A request that the peer has not answered.
#[derive(Debug)]
pub(super) enum Outstanding {
    /// Message that reports "ready to receive".
    Ready,
    Read {
        into: Piece,
        /// Bytes received so far.
        at: u32,
    },
    Atomic {
        identifier: u32,
    },
}

impl SendQueue {
    pub(super) fn new(depth: usize, ord: u16) -> Self {
        Self {
            slots: VecDeque::with_capacity(depth),
            next: 0,
            // In addition to `ord` requests: the message that reports "ready to receive".
            outstanding: VecDeque::with_capacity(usize::from(ord) + 1),
            ord,
            identifier: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn push(&mut self, post: Post) {
        self.slots.push_back(Slot {
            post,
            progress: Progress::Waiting,
        });
    }

    /// The first work that was not sent completely.
    pub(super) fn unsent(&self) -> Option<&Post> {
        self.slots.get(self.next).map(|slot| &slot.post)
    }

    /// True if there is unsent work that neither its fence nor the bound of requests holds back.
    pub(super) fn may_begin(&self) -> bool {
        let Some(post) = self.unsent() else {
            return false;
        };
        let waits = post.fence && !self.outstanding.is_empty();
        // RFC 6581, section 9: a request beyond the depth that the peer granted would be a fault.
        let is_full = post.work.is_answered() && self.outstanding.len() >= usize::from(self.ord);
        !waits && !is_full
    }

    pub(super) fn next_identifier(&mut self) -> u32 {
        self.identifier = self.identifier.wrapping_add(1);
        self.identifier
    }

    /// The first unsent work was sent completely: `bytes` of it.
    pub(super) fn sent(&mut self, bytes: u32, completions: &mut Completions) {
        let index = self.next;
        let Some(slot) = self.slots.get_mut(index) else {
            return;
        };
        self.next += 1;
        slot.progress = Progress::Sent;
        // Sends and writes are done once TCP has them: the buffer may be used again, while only a
        // response proves that the peer has the data (RFC 5040, section 5.5).
        if !slot.post.work.is_answered() {
            self.end(index, bytes, None, Status::Done, completions);
        }
    }

    /// The first unsent work cannot be sent.
    pub(super) fn unsent_failed(&mut self, status: Status, completions: &mut Completions) {
        self.end(self.next, 0, None, status, completions);
    }

    /// The oldest work that waits for a response is done: they arrive in the order of requests.
    pub(super) fn answered(
        &mut self,
        bytes: u32,
        original: Option<u64>,
        completions: &mut Completions,
    ) {
        let mut slots = self.slots.iter();
        let oldest = slots.position(|slot| matches!(slot.progress, Progress::Sent));
        if let Some(index) = oldest {
            self.end(index, bytes, original, Status::Done, completions);
        }
    }

    /// Marks work as done; everything done at the front is completed, in order.
    fn end(
        &mut self,
        index: usize,
        bytes: u32,
        original: Option<u64>,
        status: Status,
        completions: &mut Completions,
    ) {
        if let Some(Slot { post, progress }) = self.slots.get_mut(index) {
            *progress = Progress::Over(Completion {
                bytes,
                original,
                ..completion(post.id, post.work.kind(), status)
            });
        }
        // A write behind an unanswered read is done, and still waits here: completions have the
        // order of posting.
        while let Some(slot) = self.slots.front()
            && let Progress::Over(completion) = slot.progress
        {
            self.slots.pop_front();
            self.next = self.next.saturating_sub(1);
            completions.push(completion);
        }
    }

    /// Completes everything, as flushed unless it was done.
    pub(super) fn flush(&mut self, completions: &mut Completions) {
        for slot in std::mem::take(&mut self.slots) {
            completions.push(match slot.progress {
                Progress::Over(completion) => completion,
                _ => completion(slot.post.id, slot.post.work.kind(), Status::Flushed),
            });
        }
        self.next = 0;
        self.outstanding.clear();
    }
}
