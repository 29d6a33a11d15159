//! Wrapper shared by all policies: caps widths by measured times, and keeps work on the host where
//! the host is faster.
//!
//! Why here: the rule that divides the engines (EDTLP, LLP, MGPS, an even share) does not know how
//! well a loop splits. The literal `floor(8/T)` takes eight engines for one task where five were
//! faster (Table 2 of the paper). So each rule's answer is a *limit*, and this wrapper picks the
//! best measured width below it, with one [`Curve`] for each loop class.
//!
//! Must stay true: never wider than the rule inside says; memory is taken once, at the start.
//!
//! Source: the multigrain scheduling paper of 2007, sections 5.2 (test) and 5.3 (Table 2).

use crate::curve::Curve;
use crate::policy::{Arrival, CLASSES_MAX, ClassId, Decision, Departure, Nanos, Policy, Waiting};

/// A rule, with the measurements that cap its widths.
#[derive(Debug, Clone)]
pub struct Measured<P> {
    rule: P,
    curves: Box<[Curve]>,
}

impl<P> Measured<P> {
    /// Caps the widths of `rule`.
    #[must_use]
    pub fn new(rule: P) -> Self {
        Self {
            rule,
            curves: vec![Curve::default(); CLASSES_MAX].into(),
        }
    }

    /// Measured costs of a class.
    #[must_use]
    pub fn curve(&self, class: ClassId) -> &Curve {
        &self.curves[class.index()]
    }
}

impl<P: Policy> Policy for Measured<P> {
    fn name(&self) -> String {
        self.rule.name()
    }

    fn arrive(&mut self, now: Nanos, arrival: &Arrival) -> Decision {
        match self.rule.arrive(now, arrival) {
            Decision::Host => Decision::Host,
            Decision::Engines(limit) => {
                self.curves[arrival.class.index()].choose(limit.get(), arrival.units)
            }
        }
    }

    /// A trial is one call's: only usual decisions hold.
    fn holds(&self, arrival: &Arrival) -> bool {
        self.rule.holds(arrival) && self.curves[arrival.class.index()].is_settled()
    }

    fn arrived(&mut self, now: Nanos, arrival: &Arrival) {
        self.rule.arrived(now, arrival);
        self.curves[arrival.class.index()].count_arrival();
    }

    fn depart(&mut self, now: Nanos, departure: &Departure) {
        // Work that was given up has no cost to learn from.
        if departure.units > 0 {
            self.curves[departure.class.index()].learn(departure);
        }
        self.rule.depart(now, departure);
    }

    fn tick(&mut self, now: Nanos) {
        self.rule.tick(now);
    }

    fn live_tasks(&self, engines: u32) -> u32 {
        self.rule.live_tasks(engines)
    }

    fn waiting(&self) -> Waiting {
        self.rule.waiting()
    }
}
