//! The trait of all policies, and the events that they receive.
//!
//! Why here: the pool and the model must be able to swap policies without knowing them.
//! Must stay true: a policy's answer depends only on the events it was given, in their order.
//!
//! ```
//! use sidecore_sched::{Arrival, ClassId, Decision, Departure, Nanos, Policy, TaskId};
//!
//! /// Splits every loop over half of the engines.
//! struct Half;
//!
//! impl Policy for Half {
//!     fn name(&self) -> String {
//!         "half".to_owned()
//!     }
//!     fn arrive(&mut self, _now: Nanos, arrival: &Arrival) -> Decision {
//!         Decision::engines(arrival.engines / 2)
//!     }
//!     fn depart(&mut self, _now: Nanos, _departure: &Departure) {}
//!     fn tick(&mut self, _now: Nanos) {}
//! }
//!
//! let arrival = Arrival {
//!     task: TaskId(1),
//!     class: ClassId(0),
//!     units: 100,
//!     engines_idle: 8,
//!     engines: 8,
//!     ready: 0,
//!     live: 1,
//!     waiting: 0,
//! };
//! assert_eq!(Half.arrive(0, &arrival).width(), 4);
//! ```

use std::num::NonZeroU32;

/// A time or a duration in nanoseconds, on whatever clock the driver uses.
pub type Nanos = u64;

/// The most loop classes that a policy keeps measurements for. Classes beyond share the last entry.
pub const CLASSES_MAX: usize = 64;

/// The widest decision that a policy makes.
pub(crate) const WIDTH_MAX: u32 = 64;

/// Id of a class (kind) of work; measurements are kept per class. Below [`CLASSES_MAX`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClassId(pub u16);

impl ClassId {
    /// Index of the class in a table of [`CLASSES_MAX`] entries.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0).min(CLASSES_MAX - 1)
    }
}

/// Id of a task: one stream of host work and off-loads (a fiber, a client, a modelled process).
/// The driver numbers its tasks; a number is used again only when its task has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId(pub u64);

/// A task asks to off-load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// The asking task.
    pub task: TaskId,
    /// The kind of work.
    pub class: ClassId,
    /// Into how many pieces the work can be cut (loop iterations, frames); at least 1.
    pub units: u32,
    /// Engines that no other task uses now. Read-ahead and the like do not count as tasks.
    pub engines_idle: u32,
    /// Number of engines of the machine.
    pub engines: u32,
    /// *Other* tasks that are ready on the host: they want engines too.
    pub ready: u32,
    /// Tasks that have begun, not ended and are not parked, this one included: at least 1.
    pub live: u32,
    /// Tasks that are there and not live: parked, or not begun. 0 where the driver cannot know.
    pub waiting: u32,
}

/// Decision of a policy on an arriving off-load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Run on the host: off-loading would cost more than it saves.
    Host,
    /// Off-load to this many engines. Never more than `units` or than there are engines. Where
    /// fewer are idle than that, the driver waits for one and adds others as they come.
    Engines(NonZeroU32),
}

impl Decision {
    /// Off-load to `width` engines, at least one.
    #[must_use]
    pub fn engines(width: u32) -> Self {
        Self::Engines(NonZeroU32::new(width).unwrap_or(NonZeroU32::MIN))
    }

    /// Number of workers that run the work at once: 1 on the host.
    #[must_use]
    pub fn width(self) -> u32 {
        match self {
            Self::Host => 1,
            Self::Engines(width) => width.get(),
        }
    }
}

/// Use of the host by a task that waits for its off-load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// It gives the host to another task at once.
    Yields,
    /// It keeps the host and polls, until its time slice is over; it always comes back to the same
    /// host. No real pool should want this: an operating system without knowledge of engines
    /// schedules processes in this way.
    KeepsHost {
        /// The time slice.
        quantum_ns: Nanos,
    },
}

/// End of an off-load, with its measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Departure {
    /// The task whose work it was.
    pub task: TaskId,
    /// The kind of work.
    pub class: ClassId,
    /// Units that it had. 0 for work that was given up before it began: its task is under way no
    /// more, and the times say nothing.
    pub units: u32,
    /// Engines that took part (1 for the host).
    pub width: u32,
    /// True if it ran on the host.
    pub on_host: bool,
    /// From the decision to the end of the last unit, communication included.
    pub elapsed_ns: Nanos,
    /// Time that the units themselves took, of all engines together: the same at any width, but
    /// where engines slow each other down. 0 where the driver does not measure it.
    pub work_ns: Nanos,
}

/// A scheduling policy.
pub trait Policy: Send {
    /// The policy's name as `by_name` reads it.
    fn name(&self) -> String;

    /// A task asks to off-load at time `now`. Never waits.
    fn arrive(&mut self, now: Nanos, arrival: &Arrival) -> Decision;

    /// A task ended at time `now`.
    fn depart(&mut self, now: Nanos, departure: &Departure);

    /// True if the decision that was just given on this arrival may be given again, without asking,
    /// to arrivals that differ in nothing but the task. A driver then reports those by
    /// [`Self::arrived`], before their departures, and all events a little later, in their order
    /// ([`Shard`](crate::Shard)). False by default: then each event is reported at once.
    fn holds(&self, _arrival: &Arrival) -> bool {
        false
    }

    /// A task asked to off-load at time `now` and got an earlier decision that holds. For the
    /// accounts of a policy whose [`Self::holds`] is ever true; does nothing by default.
    fn arrived(&mut self, _now: Nanos, _arrival: &Arrival) {}

    /// Passage of time; called now and then.
    fn tick(&mut self, now: Nanos);

    /// Number of tasks that the driver should keep live at once on a machine of `engines`, if it
    /// has that many. As many as engines by default. The answer may change with every departure. A
    /// driver with more live tasks parks the youngest as they come back from an off-load. It
    /// resumes parked ones, the oldest first, before it begins new ones.
    fn live_tasks(&self, engines: u32) -> u32 {
        engines
    }

    /// Use of the host by a task while its off-load is under way.
    fn waiting(&self) -> Waiting {
        Waiting::Yields
    }
}
