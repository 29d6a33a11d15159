//! Recorded tasks under a policy, in virtual time: their duration on an otherwise idle machine.
//!
//! Why here: on a shared machine, wall time mostly depends on the other users. Here the policy is
//! the real one, and gets arrivals and departures as from the pool; tasks and loops take their
//! recorded times; engines and hosts are modelled, one of each a core, a core's threads sharing it
//! evenly. The cost of a handoff was measured ([`Costs`]).
//! Must stay true: pure; the same traces give the same seconds.
//! Left out: the memory bus that loops on two cores share, and cache lines on the other core.

use super::trace::Trace;
use sidecore_sched::{Arrival, Departure, Policy, TaskId};
use std::collections::VecDeque;

/// Costs of handing work over, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Costs {
    /// Asking the policy and reporting the outcome to it, for every off-load.
    pub(super) ask_ns: f64,
    /// From the bell to the first unit on an engine that spins, and on one that sleeps.
    pub(super) late_ns: [f64; 2],
    /// Cost of a notification for the caller where the engine sleeps.
    pub(super) wake_ns: f64,
    /// Time for which an engine with nothing to do spins.
    pub(super) grace_ns: f64,
    /// From a task's end to the next one's beginning.
    pub(super) next_ns: f64,
}

impl Default for Costs {
    /// Measured on two cores of the machine that the project is developed on.
    fn default() -> Self {
        Self {
            ask_ns: 400.0,
            late_ns: [200.0, 14_000.0],
            wake_ns: 4_600.0,
            grace_ns: 8_000.0,
            next_ns: 30_000.0,
        }
    }
}

/// Seconds that the tasks of `traces` take on `engines` engines.
pub(super) fn replay(
    traces: &[Trace],
    engines: usize,
    policy: Box<dyn Policy>,
    costs: Costs,
) -> f64 {
    let mut machine = Machine {
        costs,
        policy,
        now_ns: 0.0,
        tasks: traces.iter().map(Task::new).collect(),
        waiting: (0..traces.len()).collect(),
        cores: (0..engines).map(|_| Core::default()).collect(),
        live: 0,
    };
    while machine.step() {}
    machine.now_ns * 1e-9
}

/// State of a live task.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Doing {
    /// It runs its serial part, for this many nanoseconds more; then its next off-load.
    Own(f64),
    /// It waits for an engine.
    Wants,
    /// It is held: more are live than the policy wants, and it is one of the youngest.
    Held,
    /// It runs its loop.
    Loop,
    Ended,
}

struct Task<'t> {
    trace: &'t Trace,
    at: usize,
    doing: Doing,
    under_way: Option<Loop>,
}

/// A loop under way.
#[derive(Debug)]
struct Loop {
    /// The engine that the caller drives.
    own: usize,
    /// Nanoseconds of one core that are left.
    left_ns: f64,
    width: u32,
    helpers: Vec<usize>,
    arrival: Arrival,
    begun_ns: f64,
    on_host: bool,
}

/// A core: its host, whose fibers take turns, and its engine.
#[derive(Default)]
struct Core {
    fibers: VecDeque<usize>,
    claimed: bool,
    /// The task that the engine's thread helps, and how long until it begins.
    helps: Option<(usize, f64)>,
    idle_since_ns: f64,
}

struct Machine<'t> {
    costs: Costs,
    policy: Box<dyn Policy>,
    now_ns: f64,
    tasks: Vec<Task<'t>>,
    waiting: VecDeque<usize>,
    cores: Vec<Core>,
    live: usize,
}

impl<'t> Task<'t> {
    fn new(trace: &'t Trace) -> Self {
        Self {
            trace,
            at: 0,
            doing: Doing::Own(trace.steps.first().map_or(trace.after_ns, |s| s.before_ns)),
            under_way: None,
        }
    }
}

impl Machine<'_> {
    /// Advances to the next event; false when all is done.
    fn step(&mut self) -> bool {
        self.start_tasks();
        self.claim_for_waiting();
        self.ask_helpers();
        let rates: Vec<[f64; 2]> = (0..self.cores.len()).map(|core| self.rates(core)).collect();
        let mut step_ns = f64::INFINITY;
        for (core, [host, _]) in rates.iter().enumerate() {
            if let Some(Doing::Own(left_ns)) = self.running(core).map(|task| self.tasks[task].doing)
            {
                step_ns = step_ns.min(left_ns / host);
            }
            if let Some((_, late_ns)) = self.cores[core].helps.filter(|(_, late)| *late > 0.0) {
                step_ns = step_ns.min(late_ns);
            }
        }
        for (task, rate) in self.loop_rates(&rates) {
            if let Some(under_way) = &self.tasks[task].under_way {
                step_ns = step_ns.min(under_way.left_ns / rate);
            }
        }
        if step_ns == f64::INFINITY {
            return false;
        }
        self.pass(step_ns, &rates);
        true
    }

    /// Advances the time; ends the work that is then done.
    fn pass(&mut self, step_ns: f64, rates: &[[f64; 2]]) {
        self.now_ns += step_ns;
        for (task, rate) in self.loop_rates(rates) {
            if let Some(under_way) = &mut self.tasks[task].under_way {
                under_way.left_ns -= step_ns * rate;
            }
        }
        for (core, [host, _]) in rates.iter().enumerate() {
            let running = self.running(core);
            if let Some((_, late_ns)) = &mut self.cores[core].helps {
                *late_ns = (*late_ns - step_ns).max(0.0);
            }
            if let Some(task) = running
                && let Doing::Own(left_ns) = &mut self.tasks[task].doing
            {
                *left_ns -= step_ns * host;
                if *left_ns <= NOTHING_NS {
                    self.own_part_ended(task, core);
                }
            }
        }
        for task in 0..self.tasks.len() {
            let left = self.tasks[task].under_way.as_ref();
            if left.is_some_and(|under_way| under_way.left_ns <= NOTHING_NS) {
                self.end_loop(task);
            }
        }
    }

    /// The fiber that a core's host runs: the first that does not wait.
    fn running(&self, core: usize) -> Option<usize> {
        let runs = |&&task: &&usize| matches!(self.tasks[task].doing, Doing::Own(_) | Doing::Loop);
        self.cores[core].fibers.iter().find(runs).copied()
    }

    /// Speeds of a core's host and its engine's thread.
    fn rates(&self, core: usize) -> [f64; 2] {
        let helps = self.cores[core]
            .helps
            .is_some_and(|(_, late_ns)| late_ns == 0.0);
        match (self.running(core).is_some(), helps) {
            (true, true) => [0.5, 0.5],
            (host, helps) => [f64::from(u8::from(host)), f64::from(u8::from(helps))],
        }
    }

    /// The loops under way, and how much of each is done in a nanosecond.
    fn loop_rates(&self, rates: &[[f64; 2]]) -> Vec<(usize, f64)> {
        let mut found: Vec<(usize, f64)> = Vec::new();
        for (core, [host, engine]) in rates.iter().enumerate() {
            let own = self
                .running(core)
                .filter(|&task| self.tasks[task].doing == Doing::Loop);
            let helped = self.cores[core]
                .helps
                .filter(|(_, late_ns)| *late_ns == 0.0);
            let both = [(own, host), (helped.map(|(task, _)| task), engine)];
            for (task, rate) in both
                .into_iter()
                .filter_map(|(t, rate)| t.map(|t| (t, rate)))
            {
                match found.iter_mut().find(|(other, _)| *other == task) {
                    Some((_, sum)) => *sum += rate,
                    None => found.push((task, *rate)),
                }
            }
        }
        found
    }

    /// Begins tasks as long as the policy wants more, on hosts that have the fewest.
    fn start_tasks(&mut self) {
        while self.live < self.live_max() {
            let Some(task) = self.waiting.pop_front() else {
                return;
            };
            let idle = self.cores.iter_mut().min_by_key(|core| core.fibers.len());
            if let Some(core) = idle {
                core.fibers.push_back(task);
            }
            // The first tasks are there from the start, without a handoff.
            if self.now_ns > 0.0
                && let Doing::Own(left_ns) = &mut self.tasks[task].doing
            {
                *left_ns += self.costs.next_ns;
            }
            self.live += 1;
        }
    }

    fn own_part_ended(&mut self, task: usize, core: usize) {
        if self.tasks[task].at == self.tasks[task].trace.steps.len() {
            self.tasks[task].doing = Doing::Ended;
            self.cores[core].fibers.retain(|&own| own != task);
            self.live -= 1;
            return;
        }
        self.tasks[task].doing = match self.must_be_held(task) {
            true => Doing::Held,
            false => Doing::Wants,
        };
    }

    /// No more than hosts: see [`sidecore_phylo::analysis::workers`].
    fn live_max(&self) -> usize {
        let hosts = self.cores.len() as u32;
        self.policy.live_tasks(hosts).clamp(1, hosts) as usize
    }

    fn must_be_held(&self, task: usize) -> bool {
        let limit = self.live_max();
        let older = self.tasks[..task].iter();
        let at_work = |other: &&Task<'_>| other.doing != Doing::Ended;
        self.live > limit && older.filter(at_work).count() >= limit
    }

    /// Engines for those that want one, tasks in order.
    fn claim_for_waiting(&mut self) {
        for task in 0..self.tasks.len() {
            if self.tasks[task].doing == Doing::Held && !self.must_be_held(task) {
                self.tasks[task].doing = Doing::Wants;
            }
            if self.tasks[task].doing != Doing::Wants {
                continue;
            }
            let core = self
                .cores
                .iter()
                .position(|core| core.fibers.contains(&task));
            // An engine on the task's own core is a call, another one a request packet.
            let near = core.filter(|&core| !self.cores[core].claimed);
            let any = || self.cores.iter().position(|core| !core.claimed);
            if let Some(engine) = near.or_else(any) {
                self.begin_loop(task, engine);
            }
        }
    }

    fn begin_loop(&mut self, task: usize, own: usize) {
        self.cores[own].claimed = true;
        let step = self.tasks[task].trace.steps[self.tasks[task].at];
        let is_ready = |task: &&Task<'_>| !matches!(task.doing, Doing::Ended | Doing::Held);
        let on_cores = self.cores.iter().flat_map(|core| &core.fibers);
        let fibers: Vec<&Task<'_>> = on_cores.map(|&task| &self.tasks[task]).collect();
        // Less the task itself.
        let others = fibers.iter().copied().filter(|t| is_ready(t)).count() as u32 - 1;
        let engines = self.cores.len() as u32;
        let idle = self.cores.iter().filter(|core| !core.claimed).count() as u32;
        let held = fibers
            .iter()
            .filter(|task| task.doing == Doing::Held)
            .count();
        let arrival = Arrival {
            task: TaskId(task as u64),
            class: step.class,
            units: step.units,
            // As the pool counts them.
            engines_idle: if others == 0 { engines } else { idle + 1 },
            engines,
            ready: others,
            live: (self.live - held) as u32,
            waiting: (self.waiting.len() + held) as u32,
        };
        let decision = self.policy.arrive(self.now_ns as u64, &arrival);
        self.tasks[task].doing = Doing::Loop;
        self.tasks[task].under_way = Some(Loop {
            own,
            left_ns: step.loop_ns + self.costs.ask_ns,
            width: decision.width(),
            helpers: Vec::new(),
            arrival,
            begun_ns: self.now_ns,
            on_host: decision == sidecore_sched::Decision::Host,
        });
    }

    /// Sends idle engines to loops that may have more.
    fn ask_helpers(&mut self) {
        for task in 0..self.tasks.len() {
            let Some(under_way) = &mut self.tasks[task].under_way else {
                continue;
            };
            while (under_way.helpers.len() as u32) + 1 < under_way.width
                && let Some(engine) = self.cores.iter().position(|core| !core.claimed)
            {
                let core = &mut self.cores[engine];
                let sleeps = self.now_ns - core.idle_since_ns > self.costs.grace_ns;
                core.claimed = true;
                core.helps = Some((task, self.costs.late_ns[usize::from(sleeps)]));
                under_way.helpers.push(engine);
                // The caller alone pays: as much as two engines do in half the time.
                let share = if sleeps { self.costs.wake_ns } else { 0.0 };
                under_way.left_ns += share;
            }
        }
    }

    fn end_loop(&mut self, task: usize) {
        let Some(ended) = self.tasks[task].under_way.take() else {
            return;
        };
        let trace = self.tasks[task].trace;
        let step = trace.steps[self.tasks[task].at];
        // The first to finish waits for half a unit.
        let tail_ns = match ended.helpers.is_empty() {
            true => 0.0,
            false => 0.5 * step.loop_ns / f64::from(step.units.max(1)),
        };
        for &engine in ended.helpers.iter().chain([&ended.own]) {
            self.cores[engine].claimed = false;
        }
        for &engine in &ended.helpers {
            self.cores[engine].helps = None;
            self.cores[engine].idle_since_ns = self.now_ns;
        }
        let departure = Departure {
            task: ended.arrival.task,
            class: step.class,
            units: step.units,
            width: 1 + ended.helpers.len() as u32,
            on_host: ended.on_host,
            elapsed_ns: (self.now_ns - ended.begun_ns + tail_ns) as u64,
            work_ns: 0,
        };
        self.policy
            .depart((self.now_ns + tail_ns) as u64, &departure);
        let own = &mut self.tasks[task];
        own.at += 1;
        let next = trace
            .steps
            .get(own.at)
            .map_or(trace.after_ns, |step| step.before_ns);
        own.doing = Doing::Own(next + tail_ns);
    }
}

/// Nanoseconds below which work counts as done.
const NOTHING_NS: f64 = 1e-3;

#[cfg(test)]
mod tests {
    //! Replays whose seconds can be computed by hand.

    use super::super::trace::Step;
    use super::*;
    use sidecore_sched::{ClassId, by_name};

    const FREE: Costs = Costs {
        ask_ns: 0.0,
        late_ns: [0.0; 2],
        wake_ns: 0.0,
        grace_ns: 0.0,
        next_ns: 0.0,
    };

    /// A task of 100 loops of a millisecond in 1,000 chunks each, a tenth of it outside of them.
    fn trace() -> Trace {
        let step = Step {
            before_ns: 1e5,
            class: ClassId(0),
            units: 1_000,
            loop_ns: 9e5,
        };
        Trace {
            steps: vec![step; 100],
            after_ns: 0.0,
        }
    }

    fn seconds(tasks: usize, policy: &str) -> f64 {
        let policy = by_name(policy).unwrap();
        replay(&vec![trace(); tasks], 2, policy, FREE)
    }

    fn about(found: f64, expected: f64) {
        assert!(
            (found / expected - 1.0).abs() < 0.06,
            "{found}, not {expected}"
        );
    }

    #[test]
    fn what_can_be_reckoned_by_hand_comes_out() {
        about(seconds(1, "edtlp"), 0.1);
        about(seconds(3, "edtlp"), 0.2);
        about(seconds(4, "edtlp"), 0.2);
        // A tenth of each task is not split.
        about(seconds(1, "hybrid(2)"), 0.055);
        about(seconds(3, "hybrid(2)"), 3.0 * 0.055);
    }

    #[test]
    fn freed_engines_join_the_last_task() {
        for policy in ["mgps", "equi"] {
            about(seconds(1, policy), 0.055);
            about(seconds(2, policy), 0.1);
            about(seconds(3, policy), 0.155);
            about(seconds(5, policy), 0.255);
        }
    }

    #[test]
    fn what_handing_over_costs_is_paid() {
        let mut slow = FREE;
        slow.late_ns = [1e9; 2];
        let policy = by_name("hybrid(2)").unwrap();
        // The helper never comes in time: both are as fast as one.
        about(replay(&[trace()], 2, policy, slow), 0.1);
    }
}
