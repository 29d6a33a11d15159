//! Times of the stages of a round: as counters, and as spans while they are recorded.
//!
//! Must stay true: a round without work records nothing, or records would hold little else.

use sidecore_bare::width::ToU64;
use sidecore_sys::clock;
use sidecore_trace::summary::IDLE as IDLE_CATEGORY;
use sidecore_trace::{self as trace, Begun, Name};

/// Cycles spent in the stages of a round, sampled in some rounds: reading the counter costs as much
/// as polling an application's ring.
#[derive(Debug)]
pub(super) struct Stages {
    mark: Option<u64>,
    /// Receiving, applications, sending.
    pub(super) cycles: [u64; 3],
    /// Starts of the round and of the stage, while they are recorded.
    traced: Option<[Begun; 2]>,
}

impl Stages {
    #[inline]
    pub(super) fn begin(rounds: u64) -> Self {
        let counted = rounds.is_multiple_of(ROUNDS_A_COUNT);
        Self {
            mark: counted.then(clock::cycles),
            cycles: [0; 3],
            traced: trace::begin().zip(trace::begin()).map(<[_; 2]>::from),
        }
    }

    /// Ends a stage in which so much work was done.
    #[inline]
    pub(super) fn end(&mut self, stage: usize, work: usize) {
        if let Some([_, begun]) = &mut self.traced {
            let stage_begun = Some(*begun).filter(|_| work > 0);
            trace::span_since(stage_begun, STAGES[stage], work.to_u64());
            *begun = trace::begin().unwrap_or(*begun);
        }
        if let Some(mark) = &mut self.mark {
            let now = clock::cycles();
            self.cycles[stage] += now.saturating_sub(*mark) * ROUNDS_A_COUNT;
            *mark = now;
        }
    }

    /// Ends a round in which so much work was done in all.
    /// Before it the loop was idle, if it is said since when.
    pub(super) fn end_round(&self, work: usize, idle: Option<Begun>) {
        let begun = self.traced.map(|[round, _]| round);
        trace::span_between(idle, begun, &IDLE, 0);
        trace::span_since(begun, &ROUND, work.to_u64());
    }
}

/// One round in this number is sampled for the cycle counters.
const ROUNDS_A_COUNT: u64 = 16;

// Names of what an engine's loop records: `docs/trace.md` explains them.
//
// Only rounds with work are recorded, each with its stages; a time without work is one span.

/// A round with work: its pieces (frames, requests, timers) in all.
pub(super) static ROUND: Name = Name::new("stack", "round", ["work", ""]);
/// The stages of a round, in the order of [`super::Stages`].
pub(super) static STAGES: [&Name; 3] = [&RECEIVE, &APPLICATIONS, &TRANSMIT];
/// The time from a round without work to the next one with some.
pub(super) static IDLE: Name = Name::new(IDLE_CATEGORY, "idle", ["", ""]);
/// The part of it that the loop sleeps, woken by the NIC, an application or a timer.
pub(super) static SLEEP: Name = Name::new(IDLE_CATEGORY, "sleep", ["at_most_us", ""]);

/// A burst of frames: checked, and their sessions processed as a batch.
static RECEIVE: Name = Name::new("stack", "receive and process", ["work", ""]);
/// Requests of applications, and what is delivered to them.
static APPLICATIONS: Name = Name::new("stack", "serve applications", ["work", ""]);
/// Timers, acknowledgments, and frames sent.
static TRANSMIT: Name = Name::new("stack", "timers and sending", ["work", ""]);
