//! EDTLP: event-driven task-level parallelism. Every off-loaded task gets exactly one engine; the
//! host goes on to another task as soon as one has off-loaded.
//!
//! Source: the multigrain scheduling paper of 2007, section 4 (EDTLP).

use crate::policy::{Arrival, Decision, Departure, Nanos, Policy};

/// One engine for each task, always (event-driven task-level parallelism).
#[derive(Debug, Default, Clone, Copy)]
pub struct Edtlp;

impl Policy for Edtlp {
    fn name(&self) -> String {
        "edtlp".into()
    }

    fn arrive(&mut self, _now: Nanos, _arrival: &Arrival) -> Decision {
        Decision::engines(1)
    }

    fn depart(&mut self, _now: Nanos, _departure: &Departure) {}

    fn tick(&mut self, _now: Nanos) {}
}
