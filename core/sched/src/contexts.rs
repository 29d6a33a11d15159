//! Contexts: programs that share a few engines, each of which holds its engine until it waits or
//! gives way. The order of programs on idle engines, and the end of a turn.
//!
//! Why here: EDTLP gives the host to another task as soon as one waits for its off-load. Here the
//! same rule gives an engine to another program as soon as one waits, also where it waits by
//! polling (an empty mailbox, a tag that is not done). Programs that an event made ready go first:
//! they run for a short time until they wait again, and others wait for their answers. The paper's
//! loops (LLP, MGPS) have no part in it: a program is one task of one engine, and splits its work
//! itself.
//!
//! Must stay true: no program starves. A program that was overtaken by many more turns than a round
//! of its own kind has goes before younger ones of a better kind, the longest waiting first. Turns
//! are counted, not time: engines may share processors with others' work.
//!
//! Source: the multigrain scheduling paper of 2007, sections 5.2 and 5.4; the kinds with ageing are
//! a feedback queue (Corbato, Daggett and Daley, "An experimental time-sharing system", 1962).

use crate::policy::Nanos;
use std::collections::VecDeque;

/// The rule by which programs get engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// One queue in the order of arrival; a program gives way when its slice is over.
    Arrival,
    /// Event-driven: kinds of readiness in their order; a program that only polls gives way at
    /// once.
    #[default]
    Edtlp,
}

impl Sharing {
    /// The rule of a name: `fifo` or `edtlp`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "fifo" => Some(Self::Arrival),
            "edtlp" => Some(Self::Edtlp),
            _ => None,
        }
    }
}

/// Reason for which a program is ready, the best kind first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ready {
    /// It begins, or its event came.
    Event,
    /// It gave way at the end of its slice.
    Slice,
    /// It gave way at this time because it only polled.
    Poll(Nanos),
}

/// Ready programs, in the order in which engines take them.
///
/// ```
/// use sidecore_sched::{Ready, ReadyQueue, Sharing};
///
/// let mut queue = ReadyQueue::new(Sharing::Edtlp);
/// queue.push("polls", Ready::Poll(0));
/// queue.push("computes", Ready::Slice);
/// queue.push("has a word", Ready::Event);
/// assert_eq!(queue.take(|| 30), Some("has a word"));
/// assert_eq!(queue.take(|| 40), Some("computes"));
/// assert_eq!(queue.take(|| 50), Some("polls"));
/// ```
#[derive(Debug)]
pub struct ReadyQueue<T> {
    sharing: Sharing,
    kinds: [VecDeque<Entry<T>>; KINDS],
    /// Programs taken so far.
    taken: u64,
}

#[derive(Debug)]
struct Entry<T> {
    program: T,
    /// Programs that had been taken when it became ready.
    taken: u64,
    /// The time of that, for one that asks.
    since: Nanos,
}

impl<T> ReadyQueue<T> {
    /// An empty queue.
    #[must_use]
    pub const fn new(sharing: Sharing) -> Self {
        Self {
            sharing,
            kinds: [const { VecDeque::new() }; KINDS],
            taken: 0,
        }
    }

    /// Sets the rule; those that are in the queue stay where they are.
    pub fn share_by(&mut self, sharing: Sharing) {
        self.sharing = sharing;
    }

    /// Ready programs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.kinds.iter().map(VecDeque::len).sum()
    }

    /// True if no program is ready.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kinds.iter().all(VecDeque::is_empty)
    }

    /// A program is ready.
    pub fn push(&mut self, program: T, ready: Ready) {
        let (kind, since) = match (self.sharing, ready) {
            (Sharing::Arrival, _) | (_, Ready::Event) => (EVENT, 0),
            (Sharing::Edtlp, Ready::Slice) => (SLICE, 0),
            (Sharing::Edtlp, Ready::Poll(since)) => (POLL, since),
        };
        self.kinds[kind].push_back(Entry {
            program,
            taken: self.taken,
            since,
        });
    }

    /// The program that an idle engine takes. `now` is called only where a polling program waits.
    pub fn take(&mut self, now: impl FnOnce() -> Nanos) -> Option<T> {
        let now = if self.kinds[POLL].is_empty() {
            0
        } else {
            now()
        };
        // Among those that waited too long the oldest goes first, whatever its kind: this is what
        // bounds
        // the wait of a slice behind a steady stream of events.
        let aged = (0..KINDS)
            .filter_map(|kind| {
                let first = self.kinds[kind].front()?;
                self.is_aged(now, kind, first)
                    .then_some((first.taken, kind))
            })
            .min();
        let best = || (0..KINDS).find(|kind| !self.kinds[*kind].is_empty());
        let kind = aged.map(|(_, kind)| kind).or_else(best)?;
        self.taken += 1;
        self.kinds[kind].pop_front().map(|entry| entry.program)
    }

    /// True if the first of a kind is not to wait for better ones any more. A turn of a polling
    /// program costs little, and no event announces a change that it looks for in memory: it ages
    /// by time.
    fn is_aged(&self, now: Nanos, kind: usize, first: &Entry<T>) -> bool {
        let others = self.kinds[kind].len() as u64;
        // A poller may ask many times in one turn of another program: its age is a time.
        if kind == POLL {
            return now.saturating_sub(first.since) >= ASKER_NS + others * ASKER_EACH_NS;
        }
        self.taken - first.taken >= TURNS + others * TURNS_EACH
    }

    /// Makes a program ready by an event: the word that it polled for came. False
    /// if it is not in the queue as one that polls.
    pub fn came(&mut self, is_it: impl Fn(&T) -> bool) -> bool {
        let polls = &mut self.kinds[POLL];
        // Only pollers: a program of another kind runs soon anyway and finds the event itself.
        let Some(place) = polls.iter().position(|entry| is_it(&entry.program)) else {
            return false;
        };
        if let Some(entry) = polls.remove(place) {
            self.push(entry.program, Ready::Event);
        }
        true
    }
}

/// An operation of a program, as its turn sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// It did something.
    Done,
    /// It polled in vain.
    InVain,
    /// A part of such a question.
    Beside,
}

/// The time of one program on its engine, from when it got it.
#[derive(Debug, Clone)]
pub struct Turn {
    sharing: Sharing,
    began: Nanos,
    /// Questions in a row to which the answer was that nothing is there, and the first one's time.
    asked: u32,
    asked_first: Nanos,
}

impl Turn {
    /// A turn begins.
    #[must_use]
    pub fn new(sharing: Sharing, now: Nanos) -> Self {
        Self {
            sharing,
            began: now,
            asked: 0,
            asked_first: now,
        }
    }

    /// Counts an operation of the program while another is ready. Returns the kind of readiness
    /// with which it gives way, if it does.
    pub fn operation(&mut self, now: Nanos, operation: Operation) -> Option<Ready> {
        // Before anything else: a program that never waits must not keep its engine.
        if now.saturating_sub(self.began) > SLICE_NS {
            return Some(Ready::Slice);
        }
        match operation {
            Operation::InVain if self.sharing == Sharing::Edtlp => {}
            Operation::Beside => return None,
            Operation::InVain | Operation::Done => {
                self.asked = 0;
                return None;
            }
        }
        if self.asked == 0 {
            self.asked_first = now;
        }
        self.asked += 1;
        if self.asked < ASKED_MIN {
            return None;
        }
        // A program that works between two polls looks now and then; one that does not is waiting.
        let gap_ns = now.saturating_sub(self.asked_first) / u64::from(self.asked - 1);
        if gap_ns <= GAP_NS_MAX {
            return Some(Ready::Poll(now));
        }
        self.asked = 1;
        self.asked_first = now;
        None
    }
}

const KINDS: usize = 3;
const EVENT: usize = 0;
const SLICE: usize = 1;
const POLL: usize = 2;
/// A program that operates channels gives way after this long, if another is ready.
const SLICE_NS: Nanos = 200_000;
/// Turns of others after which a ready program goes first, and the addition for each of its kind.
const TURNS: u64 = 8;
const TURNS_EACH: u64 = 4;
/// The same as time, for those that ask.
const ASKER_NS: Nanos = 2 * SLICE_NS;
const ASKER_EACH_NS: Nanos = SLICE_NS / 10;
/// Failed polls by which a program is known to wait: three gaps.
const ASKED_MIN: u32 = 4;
/// Time between two such questions in which hardly any work is done.
const GAP_NS_MAX: Nanos = 2_000;
