//! MGPS: task-level parallelism while tasks fill more than half of the engines, and loop-level
//! parallelism in addition when they do not. Decided from the recent past.
//!
//! The paper leaves two things open; this is the reading here. *U*, the "discrete tasks off-loaded
//! while the departing task was executing", is the number of different tasks that had work on
//! engines at some time during the last window of departures. *T*, "the tasks waiting for
//! off-loading", is that same number: those are the tasks that come back for engines in the next
//! window. Where a driver does not identify its tasks, the largest number of off-loads under way at
//! once stands in for U.
//!
//! Must stay true: the grain changes only when a window ends, after as many departures as there are
//! engines, or at a tick when departures are rare; both are the policy's hysteresis.
//!
//! Source: the multigrain scheduling paper of 2007, section 5.4.

use crate::policy::{Arrival, Decision, Departure, Nanos, Policy, TaskId, WIDTH_MAX};

/// Multigrain scheduling with a history as long as there are engines.
#[derive(Debug, Clone)]
pub struct Mgps {
    /// Engines for each loop until the window ends. 1 is EDTLP.
    width: u32,
    /// Number of engines; 0 until the first arrival.
    engines: u32,
    /// Off-loads under way, each by its task.
    under_way: Vec<TaskId>,
    /// Different tasks seen in this window.
    seen: Vec<TaskId>,
    under_way_max: usize,
    departures: u32,
    window_began: Nanos,
}

impl Default for Mgps {
    fn default() -> Self {
        Self {
            width: 1,
            engines: 0,
            under_way: Vec::with_capacity(TASKS_MAX),
            seen: Vec::with_capacity(TASKS_MAX),
            under_way_max: 0,
            departures: 0,
            window_began: 0,
        }
    }
}

impl Mgps {
    /// Engines that each loop gets now, before measurement caps it.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Ends the window: sets the grain by the tasks seen in it, and begins the next.
    fn evaluate(&mut self, now: Nanos) {
        let tasks = self.seen.len().max(self.under_way_max) as u32;
        self.width = if tasks <= self.engines / 2 {
            (self.engines / tasks.max(1)).max(1)
        } else {
            1
        };
        self.departures = 0;
        self.window_began = now;
        // Tasks under way reach into the next window and count there, too.
        self.under_way_max = self.under_way.len();
        self.seen.clear();
        for index in 0..self.under_way.len() {
            self.see(self.under_way[index]);
        }
    }

    fn see(&mut self, task: TaskId) {
        if self.seen.len() < TASKS_MAX && !self.seen.contains(&task) {
            self.seen.push(task);
        }
    }
}

impl Policy for Mgps {
    fn name(&self) -> String {
        "mgps".into()
    }

    fn arrive(&mut self, now: Nanos, arrival: &Arrival) -> Decision {
        self.arrived(now, arrival);
        Decision::engines(self.width.min(arrival.units).min(arrival.engines))
    }

    /// The width is the same until a window ends: a driver may know of that a little later.
    fn holds(&self, _arrival: &Arrival) -> bool {
        true
    }

    fn arrived(&mut self, now: Nanos, arrival: &Arrival) {
        // The first window begins with the first arrival, not with the policy.
        if self.engines == 0 {
            self.window_began = now;
        }
        self.engines = arrival.engines;
        self.see(arrival.task);
        if self.under_way.len() < TASKS_MAX {
            self.under_way.push(arrival.task);
        }
        self.under_way_max = self.under_way_max.max(self.under_way.len());
    }

    fn depart(&mut self, now: Nanos, departure: &Departure) {
        let place = self.under_way.iter().position(|&t| t == departure.task);
        if let Some(place) = place {
            self.under_way.swap_remove(place);
        }
        self.departures += 1;
        if self.departures >= self.engines.max(1) {
            self.evaluate(now);
        }
    }

    fn tick(&mut self, now: Nanos) {
        let waited_ns = now.saturating_sub(self.window_began);
        // Long tasks leave seldom: without this bound a few of them would keep an old grain for
        // seconds.
        if waited_ns >= WINDOW_NS_MAX && !self.seen.is_empty() {
            self.evaluate(now);
        }
    }
}

/// Tasks and off-loads that are tracked separately: as many as there can be engines. With more, U
/// is above half of the engines anyway.
const TASKS_MAX: usize = WIDTH_MAX as usize;

/// Programs that off-load seldom: a window ends after this time even with few departures.
const WINDOW_NS_MAX: Nanos = 10_000_000;
