//! An even share: idle engines divided by the tasks that want them.
//!
//! Why here: the rule inside `equi`, before measurement caps it.
//! Must stay true: leaves one engine for each task that is ready on the host, as far as they go.
//!
//! Source: own; DESIGN, "Policies".

use crate::policy::{Arrival, Decision, Departure, Nanos, Policy};

/// Idle engines / (1 + tasks ready on the host).
#[derive(Debug, Default, Clone, Copy)]
pub struct Share;

impl Policy for Share {
    fn name(&self) -> String {
        "share".into()
    }

    fn arrive(&mut self, _now: Nanos, arrival: &Arrival) -> Decision {
        let share = arrival.engines_idle / arrival.ready.saturating_add(1);
        Decision::engines(share.min(arrival.units).min(arrival.engines))
    }

    fn depart(&mut self, _now: Nanos, _departure: &Departure) {}

    fn tick(&mut self, _now: Nanos) {}
}
