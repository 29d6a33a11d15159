//! LLP: loop-level parallelism. Every off-loaded task's loop is split across a fixed number of
//! engines.
//!
//! Source: the multigrain scheduling paper of 2007, section 5.1 (LLP).

use crate::policy::{Arrival, Decision, Departure, Nanos, Policy};

/// `n` engines for each task, bounded by its units and the machine (loop-level parallelism).
#[derive(Debug, Clone, Copy)]
pub struct Llp {
    width: u32,
}

impl Llp {
    /// Splits every task across `width` engines (at least 1).
    #[must_use]
    pub fn new(width: u32) -> Self {
        Self {
            width: width.max(1),
        }
    }
}

impl Policy for Llp {
    fn name(&self) -> String {
        format!("llp({})", self.width)
    }

    fn arrive(&mut self, _now: Nanos, arrival: &Arrival) -> Decision {
        Decision::engines(self.width.min(arrival.units).min(arrival.engines))
    }

    fn depart(&mut self, _now: Nanos, _departure: &Departure) {}

    fn tick(&mut self, _now: Nanos) {}
}
