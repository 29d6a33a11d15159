//! The machine in virtual time: discrete events, driven by a policy of `sched`.
//!
//! Each task does some work on a host thread, off-loads, and comes back when its engines are done.
//! A host thread's time consists of a task's own work; a switch, when another task was there
//! before; and the time that the task then loses to cold caches and translations. All of it is
//! slower while the other threads of the core are busy. Engines take the times of [`Loop`]. A loop
//! takes the idle ones among the engines that the policy gives it, one at least, and keeps them to
//! its end; the Cell cannot add engines to a running loop.
//!
//! Only [`Options::offloads`] of each task's off-loads are simulated, and the time is scaled up. So
//! everything that a policy has to learn weighs more here than in a full run, never less.
//!
//! Must stay true: the policy gets only information that a real driver could give it; equal seeds
//! give equal runs.
//!
//! Source: the multigrain scheduling paper of 2007, sections 5.2 to 5.4; own for cold resumes.
//!
//! Random times are exponential and yet have an exact mean: a model that simulates one off-load in
//! sixteen must not owe its figures to luck. Each stream repeatedly deals the same [`STRATA`]
//! quantiles of the exponential distribution, each time in another random order, so over each full
//! deal the mean is exactly 1. Must stay true: the same seed deals the same times on every machine.

use crate::host::{Hosts, Leave, count};
use crate::machine::{Loop, Machine};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_random::SplitMix;
use sidecore_sched::{Arrival, ClassId, Decision, Departure, Policy, TaskId, Waiting};
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};
use std::rc::Rc;

/// Extent and seed of a simulation.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The order of all random times.
    pub seed: u64,
    /// Off-loads of each task that are simulated; rounded up to full deals of `STRATA`.
    pub offloads: u32,
}

impl Options {
    /// As much as gives steady figures for this many tasks in a fraction of a second.
    #[must_use]
    pub fn for_tasks(tasks: u32, seed: u64) -> Self {
        Self {
            seed,
            offloads: (OFFLOADS_ALL / tasks.max(1)).clamp(4 * STRATA, 64 * STRATA),
        }
    }
}

/// Result of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Seconds until the last task ended, scaled to all its off-loads.
    pub seconds: f64,
    /// Utilisation of the engines, from 0 to 1.
    pub engines_busy: f64,
    /// Utilisation of the host threads, from 0 to 1.
    pub hosts_busy: f64,
    /// Most tasks that were live at once.
    pub live_max: u32,
    /// Off-loads that the policy kept on the host, as a part of all.
    pub kept_on_host: f64,
}

/// Runs `tasks` equal tasks on `machine` under `policy`.
#[must_use]
pub fn simulate(
    machine: &Machine,
    tasks: u32,
    policy: &mut dyn Policy,
    options: Options,
) -> Outcome {
    Model::new(machine, tasks, policy, options).run()
}

struct Model<'a> {
    machine: &'a Machine,
    policy: &'a mut dyn Policy,
    hosts: Hosts,
    /// Sums of shares, to choose a loop by.
    shares: Vec<f64>,
    tasks: Vec<TaskState>,
    /// Tasks not begun.
    waiting_tasks: u32,
    begun: u32,
    ended: u32,
    /// Live and not parked.
    live: u32,
    live_max: u32,
    /// Parked tasks, the oldest first.
    parked: BTreeSet<usize>,
    /// Live tasks, the oldest first.
    live_tasks: BTreeSet<usize>,
    /// Tasks whose off-load waits for an engine.
    queued: VecDeque<usize>,
    engines_idle: u32,
    done: BinaryHeap<Reverse<(Time, usize)>>,
    now: f64,
    ticked: f64,
    offloads_each: u32,
    seed: u64,
    quantiles: Quantiles,
    engine_us: f64,
    on_host: u64,
}

/// A time in microseconds that can be ordered; never not a number.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Time(f64);

impl Eq for Time {}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

struct TaskState {
    left: u32,
    class: u16,
    host_times: Stream,
    engine_times: Stream,
    random: SplitMix,
    /// The size of the off-load under way, of mean 1.
    size: f64,
    /// Engines decided, then taken.
    width: u32,
    began: f64,
    /// True if the off-load itself runs on the host.
    host_version: bool,
}

impl<'a> Model<'a> {
    fn new(machine: &'a Machine, tasks: u32, policy: &'a mut dyn Policy, options: Options) -> Self {
        let mut sum = 0.0;
        let shares = machine.task.loops.iter().map(|each| {
            sum += each.share;
            sum
        });
        // Full deals alone have the exact mean; a part of one would owe its time to luck.
        let offloads = options.offloads.max(1).next_multiple_of(STRATA);
        let keeps = matches!(policy.waiting(), Waiting::KeepsHost { .. });
        Self {
            shares: shares.collect(),
            hosts: Hosts::new(&machine.host, keeps),
            tasks: Vec::new(),
            waiting_tasks: tasks,
            begun: 0,
            ended: 0,
            live: 0,
            live_max: 0,
            parked: BTreeSet::new(),
            live_tasks: BTreeSet::new(),
            queued: VecDeque::new(),
            engines_idle: machine.engines.count,
            done: BinaryHeap::new(),
            now: 0.0,
            ticked: 0.0,
            offloads_each: offloads,
            seed: options.seed,
            quantiles: Quantiles::default(),
            engine_us: 0.0,
            on_host: 0,
            machine,
            policy,
        }
    }

    fn run(mut self) -> Outcome {
        let all = self.waiting_tasks;
        self.keep_live();
        while self.ended < all {
            // Threads that came free since the last event are given away at that event's time.
            self.hosts.dispatch(self.now, self.live);
            let engine_at = self.done.peek().map_or(f64::INFINITY, |next| next.0.0.0);
            let host_at = self.hosts.next_at();
            self.now = engine_at.min(host_at);
            assert!(
                self.now.is_finite(),
                "a task was lost: nothing is under way"
            );
            // Before the event, as a timer of the policy's would be: what it decides holds for the
            // event.
            self.tick();
            // At the same time engines come first: a task that is back may take the thread that is
            // left now.
            if engine_at <= host_at {
                if let Some(Reverse((_, task))) = self.done.pop() {
                    self.engines_done(task);
                }
            } else {
                match self.hosts.advance(self.now) {
                    Leave::Work(task) => self.work_done(task),
                    Leave::Nothing => {}
                }
            }
        }
        // The simulated part stands for all off-loads alike.
        let scale = self.machine.task.offloads as f64 / f64::from(self.offloads_each);
        // A run of no tasks has no time to divide by.
        let elapsed = self.now.max(f64::MIN_POSITIVE);
        let offloads = f64::from(all) * f64::from(self.offloads_each);
        Outcome {
            seconds: self.now * scale * 1e-6,
            engines_busy: self.engine_us / elapsed / f64::from(self.machine.engines.count),
            hosts_busy: self.hosts.busy_us() / elapsed / f64::from(self.machine.threads()),
            live_max: self.live_max,
            kept_on_host: self.on_host as f64 / offloads.max(1.0),
        }
    }

    /// Starts or resumes as many tasks as the policy wants live.
    fn keep_live(&mut self) {
        // A policy that wants none live would never end.
        let target = self.policy.live_tasks(self.machine.engines.count).max(1);
        while self.live < target {
            // The oldest parked task before a new one: it has less left, and its memory is there.
            let task = if let Some(task) = self.parked.pop_first() {
                task
            } else if self.waiting_tasks > 0 {
                self.begin_task()
            } else {
                return;
            };
            self.live += 1;
            self.live_tasks.insert(task);
            self.live_max = self.live_max.max(self.live);
            self.next_burst(task);
        }
    }

    fn begin_task(&mut self) -> usize {
        self.waiting_tasks -= 1;
        // Each task has a stream of its own, so that the order of events does not change its times.
        let mut random = SplitMix::new(self.seed ^ (u64::from(self.begun) << 32));
        self.begun += 1;
        self.tasks.push(TaskState {
            left: self.offloads_each,
            class: 0,
            host_times: Stream::new(&self.quantiles, random.bits()),
            engine_times: Stream::new(&self.quantiles, random.bits()),
            random,
            size: 0.0,
            width: 1,
            began: 0.0,
            host_version: false,
        });
        self.tasks.len() - 1
    }

    /// The task wants a host thread for the work before its next off-load.
    fn next_burst(&mut self, task: usize) {
        let state = &mut self.tasks[task];
        // With one kind nothing is drawn: such runs keep their random numbers.
        if self.shares.len() > 1 {
            let at = state.random.unit() * self.shares[self.shares.len() - 1];
            let classes = (0..).zip(&self.shares);
            state.class = classes
                .filter(|(_, sum)| at < **sum)
                .map(|it| it.0)
                .min()
                .unwrap_or(0);
        }
        let work_us = state.host_times.next_time()
            * self.machine.task.loops[usize::from(state.class)].host_us;
        self.hosts.want(task, work_us, self.now);
    }

    /// A task's work on the host ended: it off-loads, or its off-load was done by the host.
    fn work_done(&mut self, task: usize) {
        if self.tasks[task].host_version {
            self.tasks[task].host_version = false;
            self.hosts.leave(task, self.now);
            self.on_host += 1;
            self.depart(task, true);
            return;
        }
        let state = &mut self.tasks[task];
        state.size = state.engine_times.next_time();
        let each = &self.machine.task.loops[usize::from(state.class)];
        let arrival = Arrival {
            task: TaskId(task.to_u64()),
            class: ClassId(state.class),
            units: each.units,
            engines_idle: self.engines_idle,
            engines: self.machine.engines.count,
            ready: self.hosts.ready_beside(task),
            live: self.live,
            waiting: self.waiting_tasks + count(self.parked.len()),
        };
        let decision = self.policy.arrive(nanos(self.now), &arrival);
        state.began = self.now;
        match decision {
            Decision::Host => {
                // The task stays on its thread; the engine's time is scaled by the same size.
                state.host_version = true;
                let work_us = state.size * each.host_version_us();
                self.hosts.go_on(task, work_us, self.now);
            }
            Decision::Engines(width) => {
                state.width = width.get();
                self.hosts.wait(task, self.now);
                // In the order of arrival: the queue is empty while engines are idle.
                if self.engines_idle > 0 {
                    self.start_engines(task);
                } else {
                    self.queued.push_back(task);
                }
            }
        }
    }

    fn start_engines(&mut self, task: usize) {
        let state = &mut self.tasks[task];
        // No waiting for the full width: a loop takes what is idle now.
        state.width = state.width.min(self.engines_idle);
        state.began = self.now;
        self.engines_idle -= state.width;
        let each: &Loop = &self.machine.task.loops[usize::from(state.class)];
        let time_us = state.size * each.engine_us * each.relative_time(state.width);
        // An engine is taken for the whole loop, though its own part may end before.
        self.engine_us += time_us * f64::from(state.width);
        self.done.push(Reverse((Time(self.now + time_us), task)));
    }

    fn engines_done(&mut self, task: usize) {
        self.engines_idle += self.tasks[task].width;
        // Before the policy hears of the departure, as real engines take the next request by
        // themselves.
        while self.engines_idle > 0
            && let Some(next) = self.queued.pop_front()
        {
            self.start_engines(next);
        }
        self.depart(task, false);
    }

    fn depart(&mut self, task: usize, on_host: bool) {
        let state = &mut self.tasks[task];
        state.left -= 1;
        // On the host the width that was decided does not count.
        let (left, width) = (state.left, if on_host { 1 } else { state.width });
        let departure = Departure {
            task: TaskId(task.to_u64()),
            class: ClassId(state.class),
            units: self.machine.task.loops[usize::from(state.class)].units,
            width,
            on_host,
            elapsed_ns: nanos(self.now - state.began),
            work_ns: 0,
        };
        self.policy.depart(nanos(self.now), &departure);
        let target = self.policy.live_tasks(self.machine.engines.count).max(1);
        if left == 0 {
            self.ended += 1;
            self.stop(task);
        // The youngest are parked, so that the oldest end first.
        } else if self.live > target && self.is_young(task, target) {
            self.stop(task);
            self.parked.insert(task);
        } else {
            self.next_burst(task);
        }
        self.keep_live();
    }

    /// The task is live no more.
    fn stop(&mut self, task: usize) {
        self.live -= 1;
        self.live_tasks.remove(&task);
        self.hosts.end(task, self.now);
    }

    /// True if at least `target` live tasks are older than this one.
    fn is_young(&self, task: usize, target: u32) -> bool {
        let last = self.live_tasks.iter().nth(target.max(1).to_usize() - 1);
        last.is_some_and(|&last| last < task)
    }

    fn tick(&mut self) {
        // Events are far apart at times: one tick, not all that were missed.
        if self.now - self.ticked >= TICK_US {
            self.ticked = self.now;
            self.policy.tick(nanos(self.now));
        }
    }
}

fn nanos(us: f64) -> u64 {
    (us * 1e3) as u64
}

/// Off-loads of all tasks together that are simulated, where that is enough for each.
const OFFLOADS_ALL: u32 = 1 << 18;

/// Virtual time between two ticks of the policy.
const TICK_US: f64 = 1000.0;

/// Quantiles in one deal.
pub(crate) const STRATA: u32 = 1024;

/// The quantiles that all streams deal.
#[derive(Debug, Clone)]
pub(crate) struct Quantiles(Rc<[f64]>);

impl Default for Quantiles {
    fn default() -> Self {
        // The middles of equal strata; their mean is a little below 1, which is corrected.
        let raw = (0..STRATA).map(|i| -(1.0 - (f64::from(i) + 0.5) / f64::from(STRATA)).ln());
        let mean = raw.clone().sum::<f64>() / f64::from(STRATA);
        Self(raw.map(|time| time / mean).collect())
    }
}

/// One stream of exponential times of mean 1.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    quantiles: Quantiles,
    order: Box<[u32]>,
    at: u32,
    random: SplitMix,
}

impl Stream {
    /// A stream in an order of its own.
    #[must_use]
    pub(crate) fn new(quantiles: &Quantiles, seed: u64) -> Self {
        Self {
            quantiles: quantiles.clone(),
            order: (0..STRATA).collect(),
            at: 0,
            random: SplitMix::new(seed),
        }
    }

    /// The next time.
    pub(crate) fn next_time(&mut self) -> f64 {
        // Shuffled as it is dealt: Fisher and Yates, one step a time.
        let other = self.at + below(&mut self.random, STRATA - self.at);
        let at = self.at.to_usize();
        self.order.swap(at, other.to_usize());
        let time = self.quantiles.0[self.order[at].to_usize()];
        self.at = (self.at + 1) % STRATA;
        time
    }
}

/// A number from 0 up to but not including `limit`, which is not 0, by the upper half of the bits.
fn below(random: &mut SplitMix, limit: u32) -> u32 {
    (((random.bits() >> 32) * u64::from(limit)) >> 32) as u32
}
