//! The host's threads in virtual time: placement of tasks, their speed, and their order.
//!
//! Two ways of waiting (`sched::Waiting`). *Yields*: a task leaves its thread when it off-loads.
//! When it comes back it takes a thread that is idle (its last one if it can), or queues. *Keeps*:
//! a task belongs to one thread. While it waits it polls there, which slows the core's other
//! threads as work does, until its time slice is over and another of the thread's tasks wants a
//! turn.
//!
//! Must stay true: a thread runs one task; work is conserved when its speed changes.

use crate::machine::Host;
use sidecore_bare::width::ToUsize;
use std::collections::VecDeque;

/// All threads of all host cores.
pub(crate) struct Hosts {
    host: Host,
    threads: Vec<Thread>,
    keeps: bool,
    /// Tasks that want a thread (yields).
    ready: VecDeque<(usize, f64)>,
    /// Thread that each task is on or was last on (keeps: its home thread).
    places: Vec<Option<usize>>,
    next_place: usize,
    busy_us: f64,
    /// True if any thread became free or any task ready since the last dispatch.
    changed: bool,
}

/// Kind of work that a thread has finished.
pub(crate) enum Leave {
    /// The task's work.
    Work(usize),
    /// A time slice: the hosts have switched by themselves.
    Nothing,
}

#[derive(Default)]
struct Thread {
    task: Option<usize>,
    last: Option<usize>,
    /// Work left at full speed, in microseconds, as of `since`; `None` while polling.
    work_us: Option<f64>,
    since: f64,
    began: f64,
    due: f64,
    slice_ends: f64,
    /// Tasks of this thread that wait for their turn, with the work that they have (keeps). A task
    /// whose off-load is under way has none yet.
    turns: VecDeque<(usize, Option<f64>)>,
}

impl Hosts {
    pub(crate) fn new(host: &Host, keeps: bool) -> Self {
        let threads = host.cores * host.threads_per_core;
        let idle = || Thread {
            due: f64::INFINITY,
            slice_ends: f64::INFINITY,
            ..Thread::default()
        };
        Self {
            threads: (0..threads).map(|_| idle()).collect(),
            host: host.clone(),
            keeps,
            ready: VecDeque::new(),
            places: Vec::new(),
            next_place: 0,
            busy_us: 0.0,
            changed: false,
        }
    }

    /// Time of the next thread's event.
    pub(crate) fn next_at(&self) -> f64 {
        // A handful of threads: a heap would cost more than the look.
        let each = self.threads.iter().map(|t| t.due.min(t.slice_ends));
        each.fold(f64::INFINITY, f64::min)
    }

    /// Ends all that is due now, one at a time.
    pub(crate) fn advance(&mut self, now: f64) -> Leave {
        // One at a time: what a task does next may change another thread's speed.
        for index in 0..self.threads.len() {
            if self.threads[index].due <= now {
                let thread = &mut self.threads[index];
                thread.due = f64::INFINITY;
                thread.work_us = None;
                if let Some(task) = thread.task {
                    return Leave::Work(task);
                }
            }
            if self.threads[index].slice_ends <= now {
                // The slice ends only where another task waits for the thread.
                self.next_turn(index, now);
                return Leave::Nothing;
            }
        }
        Leave::Nothing
    }

    /// A task wants to do `work_us` of work.
    pub(crate) fn want(&mut self, task: usize, work_us: f64, now: f64) {
        // Tasks are numbered as they begin.
        if self.places.len() <= task {
            self.places.resize(task + 1, None);
        }
        if !self.keeps {
            self.ready.push_back((task, work_us));
            self.changed = true;
            return;
        }
        let index = self.place_of(task);
        let thread = &mut self.threads[index];
        if thread.task == Some(task) {
            self.compute(index, work_us, now);
            return;
        }
        // It lost its turn while it waited for its off-load, and now has work for the next one.
        match thread.turns.iter_mut().find(|turn| turn.0 == task) {
            Some(turn) => turn.1 = Some(work_us),
            None => thread.turns.push_back((task, Some(work_us))),
        }
        if thread.task.is_none() {
            self.next_turn(index, now);
        // The first competitor starts the slice; until then the task had the thread to itself.
        } else if thread.slice_ends == f64::INFINITY {
            thread.slice_ends = now + self.host.quantum_ms * 1e3;
        }
    }

    /// The task goes on on the thread it has.
    pub(crate) fn go_on(&mut self, task: usize, work_us: f64, now: f64) {
        if let Some(index) = self.thread_of(task) {
            self.compute(index, work_us, now);
        }
    }

    /// The task waits for its off-load: it leaves its thread, or polls there.
    pub(crate) fn wait(&mut self, task: usize, now: f64) {
        // A task that keeps its thread polls there: the thread stays busy for its siblings.
        if !self.keeps {
            self.leave(task, now);
        }
    }

    /// The task leaves its thread for now (yields).
    pub(crate) fn leave(&mut self, task: usize, now: f64) {
        if !self.keeps
            && let Some(index) = self.thread_of(task)
        {
            self.vacate(index, now);
        }
    }

    /// The task ended, or is parked.
    pub(crate) fn end(&mut self, task: usize, now: f64) {
        if let Some(index) = self.places[task]
            && self.threads[index].last == Some(task)
        {
            // Work so far counts at the old speed, before the sibling's load changes.
            self.note_speed(index, now);
            self.threads[index].last = None;
            self.set_speed(index, now);
        }
        if let Some(index) = self.thread_of(task) {
            self.vacate(index, now);
            if self.keeps {
                self.next_turn(index, now);
            }
        }
        if self.keeps
            && let Some(index) = self.places[task].take()
        {
            self.threads[index].turns.retain(|turn| turn.0 != task);
        }
    }

    /// Gives idle threads to tasks that are ready; `live` tasks share the host.
    pub(crate) fn dispatch(&mut self, now: f64, live: u32) {
        // Most events change nothing for the queue.
        if !std::mem::take(&mut self.changed) {
            return;
        }
        while let Some(&(task, work_us)) = self.ready.front() {
            // In the order of arrival: a later task does not overtake the first one.
            let Some(index) = self.idle_for(task) else {
                return;
            };
            self.ready.pop_front();
            let cold_us = self.seat(index, task, now);
            let cores = self.host.cores;
            // The rival explanation: host work grows with the live tasks beyond one a core.
            let further = f64::from(live.saturating_sub(cores)) / f64::from(cores);
            let growth = 1.0 + self.host.growth_per_live * further;
            self.compute(index, (work_us + cold_us) * growth, now);
        }
    }

    /// Other tasks that are ready on the host: they queue for a thread, or have one and compute.
    pub(crate) fn ready_beside(&self, task: usize) -> u32 {
        // A task that polls is not ready: it waits for its off-load.
        let computes = |t: &&Thread| t.work_us.is_some() && t.task != Some(task);
        count(self.ready.len() + self.threads.iter().filter(computes).count())
    }

    /// Time that threads were taken, in microseconds, all together.
    pub(crate) fn busy_us(&self) -> f64 {
        self.busy_us
    }

    /// The best idle thread for a task: the one it was on last, else one on the idlest core.
    fn idle_for(&self, task: usize) -> Option<usize> {
        if let Some(index) = self.places[task]
            && self.threads[index].task.is_none()
            && self.threads[index].last == Some(task)
        {
            return Some(index);
        }
        (0..self.threads.len())
            .filter(|&index| self.threads[index].task.is_none())
            // Of equals the first: the choice must be the same in each run.
            .min_by_key(|&index| self.busy_beside(index))
    }

    fn busy_beside(&self, index: usize) -> usize {
        let threads = &self.threads[self.siblings(index)];
        threads.iter().filter(|t| t.last.is_some()).count()
    }

    /// Puts a task on an idle thread; returns the cost of that, in microseconds.
    fn seat(&mut self, index: usize, task: usize, now: f64) -> f64 {
        // Read before the places change below.
        let warm = self.threads[index].last == Some(task);
        if let Some(old) = self.places[task]
            && old != index
            && self.threads[old].last == Some(task)
        {
            // No task polls there any more.
            self.note_speed(old, now);
            self.threads[old].last = None;
            self.set_speed(old, now);
        }
        self.note_speed(index, now);
        let thread = &mut self.threads[index];
        thread.task = Some(task);
        thread.last = Some(task);
        thread.began = now;
        self.places[task] = Some(index);
        self.set_speed(index, now);
        if warm {
            0.0
        } else {
            self.host.switch_us + self.host.cold_resume_us
        }
    }

    fn vacate(&mut self, index: usize, now: f64) {
        self.note_speed(index, now);
        let thread = &mut self.threads[index];
        thread.task = None;
        thread.work_us = None;
        thread.due = f64::INFINITY;
        // Polling counts as taken, too: the thread could do nothing else.
        self.busy_us += now - thread.began;
        self.changed = true;
        self.set_speed(index, now);
    }

    fn compute(&mut self, index: usize, work_us: f64, now: f64) {
        let factor = self.factor(index);
        let thread = &mut self.threads[index];
        thread.work_us = Some(work_us);
        thread.since = now;
        thread.due = now + work_us * factor;
    }

    /// The thread's next task has its turn (keeps).
    fn next_turn(&mut self, index: usize, now: f64) {
        self.note_speed(index, now);
        let thread = &mut self.threads[index];
        if let Some(task) = thread.task {
            // Its unfinished work goes with it, as the scheduler's preemption leaves it.
            let work_us = thread.work_us;
            self.vacate(index, now);
            self.threads[index].turns.push_back((task, work_us));
        }
        let thread = &mut self.threads[index];
        let Some((task, work_us)) = thread.turns.pop_front() else {
            thread.slice_ends = f64::INFINITY;
            return;
        };
        thread.slice_ends = if thread.turns.is_empty() {
            f64::INFINITY
        } else {
            now + self.host.quantum_ms * 1e3
        };
        let cold_us = self.seat(index, task, now);
        // Without work it polls for its off-load: its event is the engine's.
        if let Some(work_us) = work_us {
            self.compute(index, work_us + cold_us, now);
        }
    }

    /// Home thread of a task (keeps), assigned round-robin.
    fn place_of(&mut self, task: usize) -> usize {
        if let Some(index) = self.places[task] {
            return index;
        }
        let loads = |index: &usize| {
            let thread = &self.threads[*index];
            thread.turns.len() + usize::from(thread.task.is_some())
        };
        // The least loaded one at the task's first work; the task stays there.
        let least = (0..self.threads.len()).min_by_key(loads).unwrap_or(0);
        self.next_place = least;
        self.places[task] = Some(least);
        least
    }

    fn thread_of(&self, task: usize) -> Option<usize> {
        self.places[task].filter(|&index| self.threads[index].task == Some(task))
    }

    /// Factor by which work takes longer on this thread now.
    fn factor(&self, index: usize) -> f64 {
        // The thread itself counts among the busy ones.
        let beside = self.busy_beside(index).saturating_sub(1);
        1.0 + (self.host.smt_factor - 1.0) * beside as f64
    }

    /// Before the core's load changes: counts the work of its threads.
    fn note_speed(&mut self, index: usize, now: f64) {
        for other in self.siblings(index) {
            let factor = self.factor(other);
            let thread = &mut self.threads[other];
            if let Some(work_us) = &mut thread.work_us {
                // Rounding must not leave a negative rest.
                *work_us = (*work_us - (now - thread.since) / factor).max(0.0);
                thread.since = now;
            }
        }
    }

    /// After the core's load changed: when its threads will be done.
    fn set_speed(&mut self, index: usize, now: f64) {
        for other in self.siblings(index) {
            let factor = self.factor(other);
            let thread = &mut self.threads[other];
            if let Some(work_us) = thread.work_us {
                thread.due = now + work_us * factor;
            }
        }
    }

    fn siblings(&self, index: usize) -> std::ops::Range<usize> {
        let per_core = self.host.threads_per_core.to_usize();
        let first = index / per_core * per_core;
        first..first + per_core
    }
}

/// A number of tasks or threads, which machines and options keep far below the limit.
pub(crate) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
