//! Rules that measure nothing: a fixed number of engines for each task, or none but its own.
//!
//! - `llp(n)`: loop-level parallelism. Every off-loaded task's loop is split across `n` engines.
//! - `edtlp`: event-driven task-level parallelism. Every off-loaded task gets exactly one engine.
//! - `hybrid(n)`: static EDTLP-LLP, with groups of `n` engines.
//! - `linux`: an operating system without knowledge of engines, for the model.
//!
//! Source: the multigrain scheduling paper of 2007, sections 4, 5.1, 5.2 and 5.4.

use crate::policy::{Arrival, Decision, Departure, Nanos, Policy, Waiting};

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

    fn holds(&self, _arrival: &Arrival) -> bool {
        true
    }
}

// EDTLP: event-driven task-level parallelism. Every off-loaded task gets exactly one engine; the
// host goes on to another task as soon as one has off-loaded.
//
// Source: the multigrain scheduling paper of 2007, section 4 (EDTLP).

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

    fn holds(&self, _arrival: &Arrival) -> bool {
        true
    }

    fn depart(&mut self, _now: Nanos, _departure: &Departure) {}

    fn tick(&mut self, _now: Nanos) {}
}

// `hybrid(n)`: static EDTLP-LLP. Every loop runs on `n` engines, and only as many tasks are live
// as there are such groups; the host goes on to another task as soon as one has off-loaded.
//
// Source: the multigrain scheduling paper of 2007, section 5.4 and Figure 7 (n is 2 or 4 there).

/// Groups of `n` engines, one live task for each.
#[derive(Debug, Clone, Copy)]
pub struct Hybrid {
    group: Llp,
}

impl Hybrid {
    /// Groups of `width` engines (at least 1).
    #[must_use]
    pub fn new(width: u32) -> Self {
        Self {
            group: Llp::new(width),
        }
    }
}

impl Policy for Hybrid {
    fn name(&self) -> String {
        format!("hybrid({})", self.group.width)
    }

    fn arrive(&mut self, now: Nanos, arrival: &Arrival) -> Decision {
        self.group.arrive(now, arrival)
    }

    fn depart(&mut self, _now: Nanos, _departure: &Departure) {}

    fn tick(&mut self, _now: Nanos) {}

    fn live_tasks(&self, engines: u32) -> u32 {
        (engines / self.group.width).max(1)
    }

    fn holds(&self, _arrival: &Arrival) -> bool {
        true
    }
}

// `linux`: the scheduling of an operating system without knowledge of engines. The paper's
// baseline, for the model; no pool should be driven by it.
//
// Each process stays on its host and polls while its off-load is under way, until its time slice
// of 10 ms is over: two orders of magnitude longer than an off-load.
//
// Source: the multigrain scheduling paper of 2007, section 5.2, Figure 2(b) and Table 1.

/// One engine for each task; a task keeps its host while it waits.
#[derive(Debug, Clone, Copy)]
pub struct Linux {
    quantum_ns: Nanos,
}

impl Linux {
    /// The policy with another time slice than 10 ms.
    #[must_use]
    pub fn with_quantum(quantum_ns: Nanos) -> Self {
        Self { quantum_ns }
    }
}

impl Default for Linux {
    fn default() -> Self {
        Self::with_quantum(QUANTUM_NS)
    }
}

impl Policy for Linux {
    fn name(&self) -> String {
        "linux".into()
    }

    fn arrive(&mut self, _now: Nanos, _arrival: &Arrival) -> Decision {
        Decision::engines(1)
    }

    fn depart(&mut self, _now: Nanos, _departure: &Departure) {}

    fn tick(&mut self, _now: Nanos) {}

    fn waiting(&self) -> Waiting {
        Waiting::KeepsHost {
            quantum_ns: self.quantum_ns,
        }
    }
}

/// The time slice of the paper's kernel.
const QUANTUM_NS: Nanos = 10_000_000;
