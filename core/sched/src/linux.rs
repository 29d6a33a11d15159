//! `linux`: the scheduling of an operating system without knowledge of engines. The paper's
//! baseline, for the model; no pool should be driven by it.
//!
//! Each process stays on its host and polls while its off-load is under way, until its time slice
//! of 10 ms is over: two orders of magnitude longer than an off-load.
//!
//! Source: the multigrain scheduling paper of 2007, section 5.2, Figure 2(b) and Table 1.

use crate::policy::{Arrival, Decision, Departure, Nanos, Policy, Waiting};

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
