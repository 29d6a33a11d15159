//! `hybrid(n)`: static EDTLP-LLP. Every loop runs on `n` engines, and only as many tasks are live
//! as there are such groups; the host goes on to another task as soon as one has off-loaded.
//!
//! Source: the multigrain scheduling paper of 2007, section 5.4 and Figure 7 (n is 2 or 4 there).

use crate::policy::{Arrival, Decision, Departure, Nanos, Policy};

/// Groups of `n` engines, one live task for each.
#[derive(Debug, Clone, Copy)]
pub struct Hybrid {
    width: u32,
}

impl Hybrid {
    /// Groups of `width` engines (at least 1).
    #[must_use]
    pub fn new(width: u32) -> Self {
        Self {
            width: width.max(1),
        }
    }
}

impl Policy for Hybrid {
    fn name(&self) -> String {
        format!("hybrid({})", self.width)
    }

    fn arrive(&mut self, _now: Nanos, arrival: &Arrival) -> Decision {
        Decision::engines(self.width.min(arrival.units).min(arrival.engines))
    }

    fn depart(&mut self, _now: Nanos, _departure: &Departure) {}

    fn tick(&mut self, _now: Nanos) {}

    fn live_tasks(&self, engines: u32) -> u32 {
        (engines / self.width).max(1)
    }
}
