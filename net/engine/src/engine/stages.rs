//! Times of the stages of a round: as counters, and as spans while they are recorded.
//!
//! Must stay true: a round without work records nothing, or records would hold little else.

use super::tracks;
use sidecore_bare::width::ToU64;
use sidecore_sys::clock;
use sidecore_trace::{self as trace, Begun};

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
            trace::span_since(stage_begun, tracks::STAGES[stage], work.to_u64());
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
        trace::span_between(idle, begun, &tracks::IDLE, 0);
        trace::span_since(begun, &tracks::ROUND, work.to_u64());
    }
}

/// One round in this number is sampled for the cycle counters.
const ROUNDS_A_COUNT: u64 = 16;
