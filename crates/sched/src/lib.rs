//! Who runs where, and how wide. Pure: events in, decisions out.
//!
//! A [`Policy`] is told of an *arrival* (a task asks to off-load), a *departure* (it ended, with
//! what was measured) and a *tick*; it answers how many engines the task gets. It has no clock, no
//! thread and no I/O: time comes in as an argument, so that the real pool (`sidecore-offload`) and
//! a machine in virtual time drive the same code, and a run can be replayed from a seed.
//!
//! - [`policy`]: the trait and the events.
//! - [`edtlp`]: event-driven task-level parallelism, one engine a task.
//! - [`llp`]: loop-level parallelism, a fixed number of engines a task.
//! - [`equi`]: idle engines shared evenly among the tasks that are ready, capped by what was
//!   measured to be useful.
//! - [`curve`]: the measured cost of a loop class at each width; the off-load test.
//!
//! Source: the multigrain scheduling paper of 2007 (EDTLP, LLP), sections 4 and 5.

pub mod curve;
pub mod edtlp;
pub mod equi;
pub mod llp;
pub mod policy;

pub use edtlp::Edtlp;
pub use equi::Equi;
pub use llp::Llp;
pub use policy::{Arrival, ClassId, Decision, Departure, Nanos, Policy, TaskId, Waiting};

#[cfg(test)]
mod tests;
