//! Scheduling policies: where off-loaded loops run, and on how many engines. Pure: events in,
//! decisions out.
//!
//! A [`Policy`] receives an *arrival* (a task asks to off-load), a *departure* (it ended, with its
//! measurements) and a *tick*; it answers how many engines the task gets. It has no clock, no
//! thread and no I/O: time comes in as an argument. So the real pool (`sidecore-offload`) and a
//! machine in virtual time drive the same code, and a run can be replayed from a seed.
//!
//! - [`policy`]: the trait and the events; `names`: policies by name.
//! - Rules: `linux` (the baseline), `edtlp` (one engine a task), `llp` and `hybrid` (a fixed
//!   number), `mgps` (by the recent past), `share` (by idle engines).
//! - `measured`: caps every rule by measurements, with a `curve` for each class of loops: an
//!   `entry` for each width, over the work that `sizes` expects.
//! - `equi`: `share`, measured, and on top `climb`: how many tasks to keep live.
//! - [`Shard`]: a core's decisions that still hold, and its events that a policy gets later.
//! - [`Patience`]: whether a waiter polls before it sleeps, by its waits so far.
//! - [`ReadyQueue`], [`Turn`]: the order of programs that share engines, and when one gives way.
//! - [`split`]: the distribution of a loop's iterations over its engines.
//!
//! Source: the multigrain scheduling paper of 2007, section 5.

mod climb;
mod contexts;
mod curve;
mod entry;
mod equi;
mod fixed;
mod lag;
mod measured;
mod mgps;
mod names;
mod patience;
pub mod policy;
mod sizes;
pub mod split;

pub use contexts::{Operation, Ready, ReadyQueue, Sharing, Turn};
pub use equi::Equi;
pub use fixed::{Edtlp, Hybrid, Linux, Llp};
pub use lag::{LAG_MAX, Shard, Sharded};
pub use measured::Measured;
pub use mgps::Mgps;
pub use names::{NAMES, PolicyError, by_name};
pub use patience::Patience;
pub use policy::{Arrival, ClassId, Decision, Departure, Nanos, Policy, TaskId, Waiting};
pub use split::Split;

mod share {
    //! An even share, the larger of two: idle engines divided by the tasks that want them, or all
    //! engines divided by the live tasks, as far as those engines are idle.
    //!
    //! Why here: the rule inside `equi`, before measurement caps it.
    //! Why two: where each core is host and engine, a task that is in a loop counts as ready. With
    //! two tasks on eight engines, of which one has four, the other's share of the four idle ones
    //! would be two; but four are its due.
    //! Must stay true: leaves one engine for each task that is ready on the host, as far as they
    //! go.
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

        fn holds(&self, _arrival: &Arrival) -> bool {
            true
        }

        fn depart(&mut self, _now: Nanos, _departure: &Departure) {}

        fn tick(&mut self, _now: Nanos) {}
    }
}

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests;
