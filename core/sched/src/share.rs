//! An even share, the larger of two: idle engines divided by the tasks that want them, or all
//! engines divided by the live tasks, as far as those engines are idle.
//!
//! Why here: the rule inside `equi`, before measurement caps it.
//! Why two: where each core is host and engine, a task that is in a loop counts as ready. With two
//! tasks on eight engines, of which one has four, the other's share of the four idle ones would be
//! two; but four are its due.
//! Must stay true: leaves one engine for each task that is ready on the host, as far as they go.
//!
//! Source: own.

use crate::policy::{Arrival, Decision, Departure, Nanos, Policy};

/// An even share: idle engines / (1 + tasks ready on the host), or engines / live tasks.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Share;

impl Policy for Share {
    fn name(&self) -> String {
        "share".into()
    }

    fn arrive(&mut self, _now: Nanos, arrival: &Arrival) -> Decision {
        let share = arrival.engines_idle / arrival.ready.saturating_add(1);
        let due = arrival.engines / arrival.live.max(1);
        let share = share.max(due.min(arrival.engines_idle));
        Decision::engines(share.min(arrival.units).min(arrival.engines))
    }

    fn depart(&mut self, _now: Nanos, _departure: &Departure) {}

    fn tick(&mut self, _now: Nanos) {}
}
