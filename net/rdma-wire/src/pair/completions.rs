//! Completions that were not polled yet.
//!
//! Must stay true: those of work and of receives are counted apart, because each kind is part of
//! the bound of its own queue.

use crate::work::{Completion, Kind, Status};
use std::collections::VecDeque;

#[derive(Debug)]
pub(super) struct Completions {
    entries: VecDeque<Completion>,
    /// The number of entries that are completions of receives.
    receives: usize,
}

impl Completions {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            entries: VecDeque::with_capacity(capacity),
            receives: 0,
        }
    }

    pub(super) fn push(&mut self, completion: Completion) {
        self.receives += usize::from(completion.kind == Kind::Receive);
        self.entries.push_back(completion);
    }

    pub(super) fn pop(&mut self) -> Option<Completion> {
        let completion = self.entries.pop_front()?;
        self.receives -= usize::from(completion.kind == Kind::Receive);
        Some(completion)
    }

    pub(super) fn next_kind(&self) -> Option<Kind> {
        self.entries.front().map(|completion| completion.kind)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Completions of receives among them.
    pub(super) fn receives(&self) -> usize {
        self.receives
    }

    /// Completions of work among them.
    pub(super) fn works(&self) -> usize {
        self.entries.len() - self.receives
    }
}

/// A completion of no bytes.
pub(super) fn completion(id: u64, kind: Kind, status: Status) -> Completion {
    Completion {
        id,
        kind,
        status,
        bytes: 0,
        immediate: None,
        invalidated: None,
        solicited: false,
        original: None,
    }
}
