//! `equi`: the grain follows the load.
//!
//! At each off-load a task gets the best *measured* width that is no more than the idle engines
//! divided by the tasks that want them (itself and those ready on the host). One reader of a
//! device thus gets all engines, many readers one each, and a width that was measured to be no
//! faster than a narrower one is not used. From time to time a loser is measured again.
//!
//! Source: DESIGN "Policies"; it is meant to beat the multigrain paper's MGPS, whose `floor(8/T)`
//! takes 8 engines for one task where 5 were faster (Table 2 there).

use crate::curve::Curve;
use crate::policy::{Arrival, CLASSES_MAX, Decision, Departure, Nanos, Policy};

/// Idle engines shared evenly among ready tasks, capped by measurement.
#[derive(Debug, Clone)]
pub struct Equi {
    curves: Box<[Curve]>,
}

impl Default for Equi {
    fn default() -> Self {
        Self {
            curves: vec![Curve::default(); CLASSES_MAX].into(),
        }
    }
}

impl Equi {
    /// What was measured for a class.
    #[must_use]
    pub fn curve(&self, class: crate::policy::ClassId) -> &Curve {
        &self.curves[class.index()]
    }
}

impl Policy for Equi {
    fn name(&self) -> String {
        "equi".into()
    }

    fn arrive(&mut self, _now: Nanos, arrival: &Arrival) -> Decision {
        let curve = &mut self.curves[arrival.class.index()];
        let share = arrival.engines_idle / (1 + arrival.ready);
        let limit = share.min(arrival.units).min(arrival.engines).max(1);
        if curve.count_arrival() {
            return Decision::engines(limit);
        }
        let width = curve.best_width(limit);
        if curve.offload_pays(width) {
            Decision::engines(width)
        } else {
            Decision::Host
        }
    }

    fn depart(&mut self, _now: Nanos, departure: &Departure) {
        self.curves[departure.class.index()].learn(departure);
    }

    fn tick(&mut self, _now: Nanos) {}
}
