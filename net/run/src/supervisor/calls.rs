//! Calls of programs: their answers, and those that wait.
//!
//! A call that cannot be answered yet is parked at its socket, and repeated once the socket has
//! changed. Must stay true: a call is answered once; a call that is parked is answered, repeated or
//! failed before its socket is removed; a repeated call keeps its first deadline.

use super::Reply;
use super::kept::KeptAnswers;
use crate::caller::Caller;
use rustix::io::Errno;
use sidecore_sys::seccomp::{Answer, Call, Listener};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The calls, and the file by which they are received and answered.
#[derive(Debug)]
pub(super) struct Calls {
    listener: Rc<Listener>,
    /// Answers that were lost by a signal, after the descriptor was replaced.
    pub(super) kept: KeptAnswers,
    /// The wait queue of each socket that has one.
    waiting: HashMap<u64, VecDeque<Waiting>>,
    /// Sockets that have changed: their calls are to be repeated.
    woken: VecDeque<u64>,
    /// Number of waiting calls with a limit.
    limited: usize,
}

/// A call that waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) call: Call,
    pub(super) limit: Option<Limit>,
    pub(super) goal: Goal,
}

/// The end of a call's patience.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limit {
    pub(super) at: Instant,
    /// The answer then.
    pub(super) errno: Errno,
}

impl Limit {
    /// A limit from now on; none without patience.
    pub(super) fn after(patience: Option<Duration>, errno: Errno) -> Option<Self> {
        let at = Instant::now() + patience?;
        Some(Self { at, errno })
    }
}

/// The event for which a call waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// It can be answered.
    Completion,
    /// The session exists at the stack: a nonblocking connect(2).
    Beginning,
}

impl Calls {
    pub(super) fn new(listener: Listener) -> Self {
        Self {
            listener: Rc::new(listener),
            kept: KeptAnswers::default(),
            waiting: HashMap::new(),
            woken: VecDeque::new(),
            limited: 0,
        }
    }

    /// The file by which calls come.
    pub(super) fn listener(&self) -> Rc<Listener> {
        Rc::clone(&self.listener)
    }

    /// True while the call waits for its answer: no signal has interrupted it.
    pub(super) fn is_waiting(&self, call: &Call) -> bool {
        self.listener.is_waiting(call.id)
    }

    /// Answers a call; false if a signal has interrupted it.
    pub(super) fn answer(&self, call: &Call, answer: Answer) -> bool {
        self.listener.answer(call.id, answer)
    }

    /// Answers a call that has replaced its descriptor's file by `placed`. A caller that a signal
    /// has interrupted repeats the call, and gets the same answer then.
    pub(super) fn answer_placed(&mut self, call: Call, answer: Answer, placed: Option<u64>) {
        if !self.answer(&call, answer)
            && let Some(placed) = placed
        {
            self.kept.keep(call, answer, placed);
        }
    }

    /// Parks a call in the wait queue of a socket.
    pub(super) fn park(
        &mut self,
        inode: u64,
        caller: &Caller<'_>,
        limit: Option<Limit>,
        goal: Goal,
    ) -> Reply {
        let call = caller.call;
        let queue = self.waiting.entry(inode).or_default();
        self.limited -= limited(queue);
        // Calls that a signal interrupted are stale: they were repeated.
        queue.retain(|it| self.listener.is_waiting(it.call.id));
        queue.push_back(Waiting { call, limit, goal });
        self.limited += limited(queue);
        Reply::Later
    }

    /// Takes all calls out of the wait queue of a socket.
    pub(super) fn take(&mut self, inode: u64) -> VecDeque<Waiting> {
        let waiting = self.waiting.remove(&inode).unwrap_or_default();
        self.limited -= limited(&waiting);
        waiting
    }

    /// Puts calls back into the wait queue of their socket.
    pub(super) fn put_back(&mut self, inode: u64, waiting: VecDeque<Waiting>) {
        if !waiting.is_empty() {
            self.limited += limited(&waiting);
            self.waiting.entry(inode).or_default().extend(waiting);
        }
    }

    /// True if calls wait for a socket; some may have been interrupted since.
    pub(super) fn has(&self, inode: u64) -> bool {
        self.waiting.contains_key(&inode)
    }

    /// True if a call waits for a socket that no signal has interrupted.
    pub(super) fn has_live(&self, inode: u64) -> bool {
        let queue = self.waiting.get(&inode).into_iter().flatten();
        queue.into_iter().any(|it| self.is_waiting(&it.call))
    }

    /// Fails the calls that wait for a socket.
    pub(super) fn fail(&mut self, inode: u64, errno: Errno) {
        for waiting in self.take(inode) {
            self.answer(&waiting.call, Answer::Fail(errno));
        }
    }

    /// The socket has changed: its calls are repeated before the supervisor waits again.
    pub(super) fn wake(&mut self, inode: u64) {
        // Without a call nothing is to be repeated; the list stays short under load.
        if self.has(inode) && !self.woken.contains(&inode) {
            self.woken.push_back(inode);
        }
    }

    /// True while calls are to be repeated.
    pub(super) fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// The sockets whose calls are to be repeated now. One that is woken again by that is not among
    /// them, so that a round ends.
    pub(super) fn take_woken(&mut self) -> VecDeque<u64> {
        std::mem::take(&mut self.woken)
    }

    /// Keeps the first deadline of a call that was repeated and waits again.
    pub(super) fn keep_limit(&mut self, inode: u64, before: &Waiting) {
        let queue = self.waiting.get_mut(&inode).into_iter().flatten();
        // A repeated call has its number as long as it waits; each attempt would extend its time.
        let again = queue
            .into_iter()
            .find(|it| it.call.id == before.call.id && before.limit.is_some());
        if let Some(again) = again {
            self.limited += usize::from(again.limit.is_none());
            again.limit = before.limit;
        }
    }

    /// True if a waiting call has a deadline.
    pub(super) fn has_limits(&self) -> bool {
        self.limited > 0
    }

    /// Answers the calls whose patience is over.
    pub(super) fn end_patience(&mut self, now: Instant) {
        // An interrupted call is answered in vain here, which does no harm.
        let (listener, left) = (&self.listener, &mut self.limited);
        self.waiting.retain(|_, queue| {
            queue.retain(|it| match it.limit {
                Some(limit) if limit.at <= now => {
                    listener.answer(it.call.id, Answer::Fail(limit.errno));
                    *left -= 1;
                    false
                }
                _ => true,
            });
            !queue.is_empty()
        });
    }
}

fn limited(queue: &VecDeque<Waiting>) -> usize {
    queue.iter().filter(|it| it.limit.is_some()).count()
}

#[cfg(test)]
mod tests;
