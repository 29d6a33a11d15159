//! `equi`: the grain follows the load, and so does the number of live tasks.
//!
//! Two steps. At each off-load a task gets the best *measured* width that is no more than the idle
//! engines divided by the tasks that want them (itself and those ready on the host). So one reader
//! of a device gets all engines, many readers one each. Where there are more tasks than engines,
//! the number that is kept live climbs to where the most work gets done ([`crate::climb`]).
//!
//! Source: own; it is meant to beat the multigrain paper's MGPS, which knows only the last eight
//! off-loads, and never runs more tasks than engines.

use crate::climb::Climb;
use crate::curve::Curve;
use crate::measured::Measured;
use crate::policy::{Arrival, CLASSES_MAX, ClassId, Decision, Departure, Nanos, Policy};
use crate::share::Share;

/// Idle engines shared evenly among ready tasks, capped by measurement; as many tasks live as pays.
#[derive(Debug, Clone)]
pub struct Equi {
    measured: Measured<Share>,
    climb: Climb,
    /// Work that a unit of each class counts for: the time one engine takes for it. Constant during
    /// a trial, because two numbers of live tasks are compared by it.
    unit_work: Box<[f64]>,
}

impl Default for Equi {
    fn default() -> Self {
        Self {
            measured: Measured::new(Share),
            climb: Climb::default(),
            unit_work: vec![0.0; CLASSES_MAX].into(),
        }
    }
}

impl Equi {
    /// Measured costs of a class.
    #[must_use]
    pub fn curve(&self, class: ClassId) -> &Curve {
        self.measured.curve(class)
    }
}

impl Policy for Equi {
    fn name(&self) -> String {
        "equi".into()
    }

    fn arrive(&mut self, now: Nanos, arrival: &Arrival) -> Decision {
        self.climb
            .arrive(arrival.engines, arrival.live, arrival.waiting);
        self.measured.arrive(now, arrival)
    }

    /// A trial of another number of live tasks compares stretches of time. Events of other cores
    /// that come late would blur them, so that nothing holds meanwhile.
    fn holds(&self, arrival: &Arrival) -> bool {
        !self.climb.trying() && self.measured.holds(arrival)
    }

    fn arrived(&mut self, now: Nanos, arrival: &Arrival) {
        self.climb
            .arrive(arrival.engines, arrival.live, arrival.waiting);
        self.measured.arrived(now, arrival);
    }

    fn depart(&mut self, now: Nanos, departure: &Departure) {
        self.measured.depart(now, departure);
        if departure.units == 0 {
            // Given up: it is worth nothing, and must not count among the departures of a trial.
            return;
        }
        let unit_work = &mut self.unit_work[departure.class.index()];
        if !self.climb.trying() || *unit_work == 0.0 {
            let units = f64::from(departure.units.max(1));
            let curve = self.measured.curve(departure.class);
            let unit_ns = curve.unit_ns(false, 1);
            *unit_work = unit_ns.unwrap_or(departure.elapsed_ns as f64 / units);
        }
        let work = *unit_work * f64::from(departure.units);
        self.climb.depart(now, work);
    }

    fn tick(&mut self, now: Nanos) {
        self.measured.tick(now);
    }

    fn live_tasks(&self, engines: u32) -> u32 {
        self.climb.target(engines)
    }
}
