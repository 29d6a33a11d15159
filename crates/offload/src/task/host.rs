//! The host threads: each runs fibers, one at a time, and starts tasks that nobody has begun.
//!
//! A round: look at what parked fibers wait for; run each ready fiber once; start a task if fewer
//! are live than may be. A round that found nothing to do waits: spins briefly, lets other threads
//! of this core run, then sleeps in a futex until it is rung or a timer is due. A yield that took
//! long has given the core to somebody who keeps it; the next waits then sleep at once.
//!
//! Must stay true: a fiber stays on the thread that started it; the number of live tasks never
//! exceeds what the group allows; a host that sleeps has looked at everything after it said so.
//! README.md beside this file.

use super::bell::{Sleepers, bells};
use super::core::TaskCore;
use super::fiber::{Fiber, Outcome};
use crate::shared::Shared;
use corosensei::stack::DefaultStack;
use crossbeam_queue::SegQueue;
use sidecore_sys::{clock, cpu};
use std::cell::Cell;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use std::time::Duration;

/// The host threads of one call of `Pool::tasks`, and the tasks that wait for them.
pub(super) struct Group {
    pub(super) pool: Arc<Shared>,
    /// Tasks that nobody has begun: urgent ones, others.
    queues: [SegQueue<Arc<TaskCore>>; 2],
    live: AtomicUsize,
    /// The most tasks that are live at once; asks the policy where it is `None`.
    live_max: Option<usize>,
    /// The bells of this group's hosts.
    hosts: Vec<usize>,
    sleepers: Sleepers,
    closed: AtomicBool,
    stack_bytes: usize,
    grace_ns: u64,
}

/// A fiber's way to its host.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) group: Arc<Group>,
    pub(super) bell: usize,
    /// What the host could do besides running this fiber.
    others: Rc<Others>,
}

/// A host's other fibers, for the one that runs to know.
#[derive(Default)]
struct Others {
    ready: Cell<usize>,
    parked: Cell<usize>,
}

impl Link {
    /// Whether other fibers can go on.
    pub(super) fn is_busy(&self) -> bool {
        self.others.ready.get() > 0
    }

    /// Whether there is nothing to do for this host but to run this fiber.
    #[cfg_attr(loom, expect(dead_code, reason = "a model's host has one task"))]
    pub(super) fn is_alone(&self) -> bool {
        self.others.ready.get() + self.others.parked.get() == 0 && !self.group.has_queued()
    }
}

/// How to make a group.
pub(super) struct GroupOptions {
    pub(super) hosts: Vec<usize>,
    pub(super) live_max: Option<usize>,
    pub(super) stack_bytes: usize,
    pub(super) grace: Duration,
}

impl Group {
    pub(super) fn new(pool: Arc<Shared>, options: GroupOptions) -> Self {
        Self {
            pool,
            queues: [SegQueue::new(), SegQueue::new()],
            live: AtomicUsize::new(0),
            live_max: options.live_max,
            hosts: options.hosts,
            sleepers: Sleepers::new(),
            closed: AtomicBool::new(false),
            stack_bytes: options.stack_bytes,
            grace_ns: u64::try_from(options.grace.as_nanos()).unwrap_or(u64::MAX),
        }
    }

    /// The bells of its hosts.
    pub(super) fn bells(&self) -> &[usize] {
        &self.hosts
    }

    /// Queues a task, and wakes a host for it if one sleeps.
    pub(super) fn spawn(&self, task: Arc<TaskCore>) {
        self.pool.tasks.spawned.fetch_add(1, Ordering::Relaxed);
        self.pool.tasks.queued.fetch_add(1, Ordering::Relaxed);
        self.queues[usize::from(!task.is_urgent())].push(task);
        self.announce();
    }

    /// No more tasks will come: hosts end when there is nothing left.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.ring_all();
    }

    /// Has every host look at what its tasks wait for.
    pub(super) fn ring_all(&self) {
        fence(Ordering::SeqCst);
        for &bell in &self.hosts {
            bells().bell(bell).ring_after_fence();
        }
    }

    /// Wakes one host that sleeps, if a task waits that may be started.
    fn announce(&self) {
        self.sleepers.wake_one(|| self.may_start());
    }

    fn has_queued(&self) -> bool {
        self.queues.iter().any(|queue| !queue.is_empty())
    }

    /// Whether a task waits that may be started, at this moment.
    fn may_start(&self) -> bool {
        self.has_queued() && self.live.load(Ordering::Relaxed) < self.live_limit()
    }

    fn live_limit(&self) -> usize {
        self.live_max.unwrap_or_else(|| {
            let engines = self.pool.engines() as u32;
            self.pool.policy.lock().live_tasks(engines).max(1) as usize
        })
    }

    /// Counts one more live task, unless there are as many as may be.
    fn take_live(&self) -> bool {
        let limit = self.live_limit();
        let taken = self
            .live
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |live| {
                (live < limit).then_some(live + 1)
            })
            .is_ok();
        if taken {
            self.pool.tasks.live.fetch_add(1, Ordering::Relaxed);
        }
        taken
    }

    fn give_back_live(&self) {
        self.live.fetch_sub(1, Ordering::Relaxed);
        self.pool.tasks.live.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One host thread's own.
pub(super) struct Host {
    link: Link,
    /// Fibers that can go on: urgent ones, others.
    ready: [VecDeque<Fiber>; 2],
    parked: Vec<Fiber>,
    /// Stacks of ended fibers, the warmest last.
    stacks: Vec<DefaultStack>,
    urgent_parked: usize,
    /// Urgent picks in a row while others waited: of fibers, of tasks to start.
    urgent_run: [u32; 2],
    /// Until then waits sleep at once, because yielding was found to be slow.
    sleeps_until_ns: u64,
    /// How long to sleep at most while a fiber waits for something that nobody announces.
    look_again_ns: u64,
}

/// The body of a host thread: runs until its group is closed and nothing is left.
pub(super) fn run_host(group: &Arc<Group>, bell: usize, cpu: Option<usize>) {
    if let Some(cpu) = cpu {
        // A refusal is not fatal: a host that wanders is slower, not wrong.
        let _ = cpu::pin(cpu);
    }
    // Timers of tasks are tens of microseconds; the usual slack is 50.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut host = Host {
        link: Link {
            group: Arc::clone(group),
            bell,
            others: Rc::default(),
        },
        ready: [VecDeque::new(), VecDeque::new()],
        parked: Vec::new(),
        stacks: Vec::new(),
        urgent_parked: 0,
        urgent_run: [0; 2],
        sleeps_until_ns: 0,
        look_again_ns: LOOK_AGAIN_NS_MIN,
    };
    loop {
        let worked = host.round();
        if worked {
            continue;
        }
        if host.parked.is_empty() && group.closed.load(Ordering::Acquire) && !group.has_queued() {
            return;
        }
        host.wait();
    }
}

impl Host {
    /// Does what there is to do once around. False where there was nothing.
    fn round(&mut self) -> bool {
        let mut worked = self.look_at_parked();
        // Those that are ready now, each once: who becomes ready meanwhile comes next time round.
        for _ in 0..self.ready[0].len() + self.ready[1].len() {
            let Some(fiber) = self.pick() else { break };
            self.run(fiber);
            worked = true;
            if self.urgent_parked > 0 {
                self.look_at_parked();
            }
        }
        self.start_one() || worked
    }

    /// Makes those parked fibers ready that have something to go on for.
    fn look_at_parked(&mut self) -> bool {
        if self.parked.is_empty() {
            return false;
        }
        let timed = self.parked.iter().any(|fiber| fiber.due_ns() != u64::MAX);
        let now_ns = if timed { clock::now_ns() } else { 0 };
        let mut found = false;
        let mut place = 0;
        while place < self.parked.len() {
            if !self.parked[place].is_wanted(now_ns) {
                place += 1;
                continue;
            }
            // Not the order in which they were parked, but no condition is looked at twice.
            let fiber = self.parked.swap_remove(place);
            self.link
                .group
                .pool
                .tasks
                .parked
                .fetch_sub(1, Ordering::Relaxed);
            if fiber.is_urgent() {
                self.urgent_parked -= 1;
            }
            if !fiber.wants_engine() {
                self.count_ready(true);
            }
            self.ready[usize::from(!fiber.is_urgent())].push_back(fiber);
            found = true;
        }
        found
    }

    /// The fiber that goes next.
    fn pick(&mut self) -> Option<Fiber> {
        let urgent_first = self.urgent_run[0] < URGENT_RUN_MAX || self.ready[1].is_empty();
        let first = usize::from(!urgent_first || self.ready[0].is_empty());
        self.urgent_run[0] = if first == 0 && !self.ready[1].is_empty() {
            self.urgent_run[0] + 1
        } else {
            0
        };
        self.ready[first].pop_front()
    }

    fn run(&mut self, mut fiber: Fiber) {
        let others = &self.link.others;
        others.ready.set(self.ready[0].len() + self.ready[1].len());
        others.parked.set(self.parked.len());
        match fiber.resume() {
            Outcome::Yielded => self.ready[usize::from(!fiber.is_urgent())].push_back(fiber),
            Outcome::Parked => {
                self.link
                    .group
                    .pool
                    .tasks
                    .parked
                    .fetch_add(1, Ordering::Relaxed);
                if !fiber.wants_engine() {
                    self.count_ready(false);
                }
                if fiber.is_urgent() {
                    self.urgent_parked += 1;
                }
                self.look_again_ns = LOOK_AGAIN_NS_MIN;
                self.parked.push(fiber);
            }
            Outcome::Ended => {
                self.count_ready(false);
                self.stacks.push(fiber.into_stack());
                self.link.group.give_back_live();
                // This host goes on to the next task; where more may start than it can take, as
                // after a change of the policy's mind, another one is woken.
                self.link.group.announce();
            }
        }
    }

    /// Starts a task that nobody has begun, if there is one and it may be.
    fn start_one(&mut self) -> bool {
        let group = Arc::clone(&self.link.group);
        if !group.has_queued() || !group.take_live() {
            return false;
        }
        let urgent_first = self.urgent_run[1] < URGENT_RUN_MAX;
        let order = if urgent_first { [0, 1] } else { [1, 0] };
        while let Some((queue, task)) = order
            .into_iter()
            .find_map(|queue| Some((queue, group.queues[queue].pop()?)))
        {
            self.urgent_run[1] = if queue == 0 && !group.queues[1].is_empty() {
                self.urgent_run[1] + 1
            } else {
                0
            };
            let Some(work) = task.begin(self.link.bell) else {
                continue; // Cancelled, or run by who joined it.
            };
            let stack = match self.stacks.pop() {
                Some(stack) => stack,
                None => match DefaultStack::new(group.stack_bytes) {
                    Ok(stack) => stack,
                    Err(_) => {
                        // No memory for a stack of its own: it runs on this thread's, and waits
                        // there as a thread would.
                        work();
                        task.end();
                        group.give_back_live();
                        return true;
                    }
                },
            };
            self.count_ready(true);
            let fiber = Fiber::new(stack, task, self.link.clone(), work);
            self.run(fiber);
            return true;
        }
        group.give_back_live();
        false
    }

    /// Whether a round would find something to do.
    fn has_work(&mut self) -> bool {
        let group = &self.link.group;
        let ends = group.closed.load(Ordering::Acquire) && self.parked.is_empty();
        group.may_start() || ends || self.look_at_parked()
    }

    /// Waits until there is something to do: spins, yields, sleeps.
    fn wait(&mut self) {
        if self.sleeps_until_ns > clock::now_ns() {
            return self.sleep();
        }
        for _ in 0..SPINS {
            std::hint::spin_loop();
            if self.has_work() {
                return;
            }
        }
        let begun_ns = clock::now_ns();
        let mut before_ns = begun_ns;
        while before_ns - begun_ns < self.link.group.grace_ns {
            std::thread::yield_now();
            let after_ns = clock::now_ns();
            if after_ns - before_ns > SLOW_YIELD_NS {
                let lost_ns = after_ns - before_ns;
                self.sleeps_until_ns = after_ns + SLEEPS_FOR_LOST * lost_ns;
                return;
            }
            if self.has_work() {
                return;
            }
            before_ns = after_ns;
        }
        self.sleep();
    }

    fn sleep(&mut self) {
        let due_ns = self.parked.iter().map(Fiber::due_ns).min();
        let mut timeout = due_ns
            .filter(|&due_ns| due_ns != u64::MAX)
            .map(|due_ns| due_ns.saturating_sub(clock::now_ns()));
        if self.parked.iter().any(Fiber::is_unannounced) {
            timeout = Some(timeout.unwrap_or(u64::MAX).min(self.look_again_ns));
            self.look_again_ns = (self.look_again_ns * 2).min(LOOK_AGAIN_NS_MAX);
        }
        let group = Arc::clone(&self.link.group);
        let timeout = timeout.map(Duration::from_nanos);
        group
            .sleepers
            .sleep(self.link.bell, timeout, || self.has_work());
    }

    /// Counts a fiber of this host that can go on.
    fn count_ready(&self, more: bool) {
        let ready = &self.link.group.pool.tasks.ready;
        if more {
            ready.fetch_add(1, Ordering::Relaxed);
        } else {
            ready.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        bells().give_back(self.link.bell);
    }
}

/// How often a host looks around while it spins: about 4 us.
const SPINS: u32 = 100;
/// A yield that takes longer than this has given the core to a process that keeps it.
const SLOW_YIELD_NS: u64 = 300_000;
/// For how many times what was lost waits then sleep at once, before yielding is tried again: a
/// host with several fibers waits many times in a slice, so waits are not what to count.
const SLEEPS_FOR_LOST: u64 = 50;
/// After so many urgent ones in a row, one of those that wait goes first.
const URGENT_RUN_MAX: u32 = 16;
/// How soon a sleeping host looks at conditions that nobody announces; doubled each time.
const LOOK_AGAIN_NS_MIN: u64 = 50_000;
/// How late it looks at them at the latest.
const LOOK_AGAIN_NS_MAX: u64 = 1_000_000;
