//! The host threads: each runs fibers, one at a time, and starts tasks that have not begun.
//!
//! A round: check the conditions of parked fibers; run each ready fiber once; start a task if fewer
//! are live than may be. A round without work waits: it spins briefly, lets other threads of this
//! core run, then sleeps in a futex until it is rung or a timer is due. A yield that took long has
//! given the core to a thread that keeps it; the next waits then sleep at once.
//!
//! Must stay true: a fiber stays on the thread that started it; the number of live tasks never
//! exceeds the group's limit; a host looks at everything after it has announced its sleep.
//! README.md next to this file.

use super::accounts::Accounts;
use super::bell::{Sleepers, bells};
use super::core::{ScopeCore, TaskCore};
use super::fiber::{Fiber, Outcome, Spare};
use super::limiter::TaskLimiter;
use super::queues::{HostQueue, Queues};
use sidecore_sync::Changed;
use sidecore_sys::{clock, cpu};
use std::cell::Cell;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The host threads of one call of `Pool::tasks`, and the tasks that wait for them.
pub(super) struct Group {
    pub(super) pool: Arc<Accounts>,
    /// Tasks that have not begun.
    queues: Queues,
    pub(super) limiter: TaskLimiter,
    /// The most tasks that are live at once; the policy's answer where it is `None`.
    live_max: Option<u32>,
    /// The bells of this group's hosts.
    hosts: Vec<usize>,
    sleepers: Sleepers,
    closed: AtomicBool,
    stack_bytes: usize,
    grace_ns: u64,
}

/// A fiber's reference to its host.
#[derive(Clone)]
pub(super) struct Link {
    pub(super) group: Arc<Group>,
    pub(super) bell: usize,
    /// The host's other fibers.
    others: Rc<Others>,
}

/// A host's other fibers, for the one that runs to know.
#[derive(Default)]
struct Others {
    ready: Cell<usize>,
    parked: Cell<usize>,
}

impl Link {
    /// True if other fibers can go on.
    pub(super) fn is_busy(&self) -> bool {
        self.others.ready.get() > 0
    }

    /// True if there is nothing to do for this host but to run this fiber.
    #[cfg_attr(loom, expect(dead_code, reason = "a model's host has one task"))]
    pub(super) fn is_alone(&self) -> bool {
        self.others.ready.get() + self.others.parked.get() == 0 && !self.group.has_queued()
    }
}

/// Options of a group.
pub(super) struct GroupOptions {
    pub(super) hosts: Vec<usize>,
    pub(super) live_max: Option<usize>,
    pub(super) stack_bytes: usize,
    pub(super) grace: Duration,
}

impl Group {
    /// A group, and the queue of each of its hosts.
    pub(super) fn new(pool: Arc<Accounts>, options: GroupOptions) -> (Self, Vec<HostQueue>) {
        let (queues, queues_of_hosts) = Queues::new(options.hosts.len());
        let live_max = options.live_max;
        let group = Self {
            pool,
            queues,
            limiter: TaskLimiter::new(),
            live_max: live_max.map(|live| u32::try_from(live).unwrap_or(u32::MAX)),
            sleepers: Sleepers::new(&options.hosts),
            hosts: options.hosts,
            closed: AtomicBool::new(false),
            stack_bytes: options.stack_bytes,
            grace_ns: u64::try_from(options.grace.as_nanos()).unwrap_or(u64::MAX),
        };
        (group, queues_of_hosts)
    }

    /// The bells of its hosts.
    pub(super) fn bells(&self) -> &[usize] {
        &self.hosts
    }

    /// Queues a task, and wakes a host for it if one sleeps.
    pub(super) fn spawn(&self, task: Arc<TaskCore>) {
        self.pool.counts.spawned.fetch_add(1, Ordering::Relaxed);
        self.queues.push(task);
        self.announce();
    }

    /// No more tasks will come: hosts end when there is nothing left.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.ring_all();
    }

    /// Wakes every host to check the conditions that its tasks wait for.
    pub(super) fn ring_all(&self) {
        let changed = Changed::publish();
        for &bell in &self.hosts {
            bells().bell(bell).notify_after(changed);
        }
    }

    /// Wakes one host that sleeps, if a task waits that may be started.
    fn announce(&self) {
        self.sleepers.wake_one(|| self.may_start());
    }

    fn has_queued(&self) -> bool {
        !self.queues.is_empty()
    }

    /// True if a task waits that may be started, at this moment.
    fn may_start(&self) -> bool {
        self.has_queued() && self.limiter.has_room(self.live_limit())
    }

    /// Number of tasks that may be live now.
    pub(super) fn live_limit(&self) -> u32 {
        self.live_max.unwrap_or_else(|| self.pool.live_tasks())
    }
}

/// One host thread's own.
struct Host<'g> {
    group: &'g Group,
    link: Link,
    own_queue: HostQueue,
    /// Fibers that can go on: urgent ones, others.
    ready: [VecDeque<Fiber>; 2],
    parked: Vec<Fiber>,
    /// Stacks and contexts of ended fibers, the warmest last.
    spares: Vec<Spare>,
    /// True if this host keeps the place of a task that ended for the next one: it is counted as
    /// live and ready all the while.
    keeps_place: bool,
    /// Tasks that were begun, and tasks of one scope that have ended, not yet counted. So while
    /// empty tasks follow one another, no shared line is written to.
    begun: u64,
    ended: usize,
    ended_of: Option<Arc<ScopeCore>>,
    urgent_parked: usize,
    /// Urgent picks in a row while others waited: of fibers, of tasks to start.
    urgent_run: [u32; 2],
    /// Until then waits sleep at once, because yielding was found to be slow.
    sleeps_until_ns: u64,
    /// Longest sleep while a fiber waits for something without a notification.
    look_again_ns: u64,
}

/// The body of a host thread: runs until its group is closed and nothing is left.
pub(super) fn run_host(group: &Arc<Group>, own_queue: HostQueue, bell: usize, cpu: Option<usize>) {
    if let Some(cpu) = cpu {
        // A refusal is not fatal: a host that wanders is slower, not wrong.
        let _ = cpu::pin(cpu);
    }
    // Timers of tasks are tens of microseconds; the usual slack is 50.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut host = Host {
        group,
        own_queue,
        link: Link {
            group: Arc::clone(group),
            bell,
            others: Rc::default(),
        },
        ready: [VecDeque::new(), VecDeque::new()],
        parked: Vec::new(),
        spares: Vec::new(),
        keeps_place: false,
        begun: 0,
        ended: 0,
        ended_of: None,
        urgent_parked: 0,
        urgent_run: [0; 2],
        sleeps_until_ns: 0,
        look_again_ns: LOOK_AGAIN_NS_MIN,
    };
    loop {
        if host.round() {
            continue;
        }
        host.flush_counts();
        if host.parked.is_empty() && group.closed.load(Ordering::Acquire) && !group.has_queued() {
            return;
        }
        host.wait();
    }
}

impl Host<'_> {
    /// Does all pending work once around. False where there was none.
    fn round(&mut self) -> bool {
        let mut worked = self.look_at_parked();
        // All fibers that are ready now, once each; one that becomes ready meanwhile waits for the
        // next round.
        for _ in 0..self.ready[0].len() + self.ready[1].len() {
            let Some(fiber) = self.pick() else { break };
            // The fiber may run for long, and a scope may wait for the ended tasks.
            self.flush_counts();
            self.run(fiber);
            worked = true;
            // An urgent fiber must not wait for the whole round, however many fibers are ready.
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
        // The clock is read once a round, and only where a fiber waits for a moment in time.
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
            let parked = &self.group.pool.counts.parked;
            parked.fetch_sub(1, Ordering::Relaxed);
            if fiber.is_urgent() {
                self.urgent_parked -= 1;
            }
            // One that waits for an engine was counted as ready all the while.
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
        // Urgent ones go first, but a stream of them must not starve the others for good.
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
        // The fiber's waits ask this: with other work at hand it switches, alone it looks itself.
        let others = &self.link.others;
        others.ready.set(self.ready[0].len() + self.ready[1].len());
        others.parked.set(self.parked.len());
        match fiber.resume() {
            Outcome::Yielded => {
                // The thread that it yields to may be waiting for the counts.
                self.flush_counts();
                self.ready[usize::from(!fiber.is_urgent())].push_back(fiber);
            }
            Outcome::Parked => {
                self.flush_counts();
                let parked = &self.group.pool.counts.parked;
                parked.fetch_add(1, Ordering::Relaxed);
                if !fiber.wants_engine() {
                    self.count_ready(false);
                }
                if fiber.is_urgent() {
                    self.urgent_parked += 1;
                }
                // A new wait is likely to be short: look at unannounced conditions soon again.
                self.look_again_ns = LOOK_AGAIN_NS_MIN;
                self.parked.push(fiber);
            }
            Outcome::Ended => {
                if let Some(task) = fiber.listed() {
                    self.group.limiter.forget(task);
                }
                fiber.with_task(|task| self.count_ended(task));
                self.spares.push(fiber.into_spare());
                // For the next task, unless the counts or the place are needed now: fibers that are
                // ready run first, and a held task must see that there is room.
                self.keeps_place = true;
                let has_fibers = self.ready.iter().any(|ready| !ready.is_empty());
                if has_fibers || self.group.limiter.is_over(self.group.live_limit()) {
                    self.flush_counts();
                }
            }
        }
    }

    /// Starts a task that has not begun, if there is one and the limits allow it.
    fn start_one(&mut self) -> bool {
        let group = self.group;
        if !self.keeps_place {
            if !group.has_queued() || !group.limiter.take(group.live_limit()) {
                return false;
            }
            group.pool.counts.live.fetch_add(1, Ordering::Relaxed);
            self.count_ready(true);
            // Kept until a task takes it: the queue may be empty by the time we look.
            self.keeps_place = true;
        }
        while let Some(task) = self.next_task() {
            if self
                .ended_of
                .as_ref()
                .is_some_and(|scope| !task.is_of(scope))
            {
                // Counts are gathered for one scope at a time.
                self.count();
            }
            if !task.begin(self.link.bell) {
                continue; // Cancelled, or run by its joiner.
            }
            self.begun += 1;
            let spare = self.spares.pop().or_else(|| {
                let tries = (0..STACK_TRIES).map(|number| {
                    if number > 0 {
                        std::thread::sleep(STACK_PAUSE);
                    }
                    Spare::new(group.stack_bytes).ok()
                });
                tries.flatten().next()
            });
            match spare {
                Some(spare) => {
                    self.keeps_place = false;
                    let fiber = Fiber::new(spare, task, &self.link);
                    self.run(fiber);
                }
                None => {
                    // No memory for a stack of its own: it runs on this thread's, and waits there
                    // as a thread would.
                    task.run();
                    self.count_ended(&task);
                }
            }
            return true;
        }
        false
    }

    /// Takes a task out of the queues.
    fn next_task(&mut self) -> Option<Arc<TaskCore>> {
        let queues = &self.group.queues;
        if self.urgent_run[1] < URGENT_RUN_MAX
            && let Some(task) = queues.pop_urgent()
        {
            self.urgent_run[1] = match queues.has_normal() {
                true => self.urgent_run[1] + 1,
                false => 0,
            };
            return Some(task);
        }
        self.urgent_run[1] = 0;
        let Some((task, took_more)) = queues.pop_normal(&self.own_queue) else {
            return queues.pop_urgent();
        };
        if took_more {
            // A host may have looked between the one queue and the other, and seen neither full.
            self.group.announce();
        }
        Some(task)
    }

    /// Notes that a task ended here; counted later, with others of its scope.
    fn count_ended(&mut self, task: &TaskCore) {
        if self
            .ended_of
            .as_ref()
            .is_none_or(|scope| !task.is_of(scope))
        {
            self.count();
            self.ended_of = Some(task.hold_scope());
        }
        self.ended += 1;
    }

    /// Counts ended tasks. A scope may wait for them, so this comes before anything else than
    /// starting another task of that scope, which it waits for as well.
    fn count(&mut self) {
        let Some(scope) = self.ended_of.take() else {
            return;
        };
        scope.count_begun(std::mem::take(&mut self.begun));
        scope.count(std::mem::take(&mut self.ended));
    }

    /// Counts ended tasks and gives back the place that was kept.
    fn flush_counts(&mut self) {
        self.count();
        if self.begun > 0 {
            let begun = &self.group.pool.counts.begun;
            begun.fetch_add(std::mem::take(&mut self.begun), Ordering::Relaxed);
        }
        if std::mem::take(&mut self.keeps_place) {
            // While the place is kept no host is notified, so all are when it is given back.
            self.count_ready(false);
            let group = self.group;
            group.pool.counts.live.fetch_sub(1, Ordering::Relaxed);
            group.limiter.give_back(&group.pool.room);
            // Another host may take the place.
            group.announce();
        }
    }

    /// True if a round would find something to do.
    fn has_work(&mut self) -> bool {
        let group = self.group;
        // Acquire: partner of the Release in `close`; all that was spawned before is in the queues.
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
        while before_ns - begun_ns < self.group.grace_ns {
            std::thread::yield_now();
            let after_ns = clock::now_ns();
            // The thread that got the core keeps it for its slice. The kernel puts a sleeper in
            // front when it wakes, but not a yielder.
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
        // Timers come without a notification, so the sleep ends with the first.
        let due_ns = self.parked.iter().map(Fiber::due_ns).min();
        let mut timeout = due_ns
            .filter(|&due_ns| due_ns != u64::MAX)
            .map(|due_ns| due_ns.saturating_sub(clock::now_ns()));
        if self.parked.iter().any(Fiber::is_unannounced) {
            timeout = Some(timeout.unwrap_or(u64::MAX).min(self.look_again_ns));
            self.look_again_ns = (self.look_again_ns * 2).min(LOOK_AGAIN_NS_MAX);
        }
        if self.group.has_queued() {
            // Queued tasks have no place now: a policy that raises its limit notifies the hosts
            // that wait here.
            self.group.pool.room.expect(self.link.bell);
        }
        let group = self.group;
        let timeout = timeout.map(Duration::from_nanos);
        group
            .sleepers
            .sleep(self.link.bell, timeout, || self.has_work());
    }

    /// Counts a fiber of this host that can go on.
    fn count_ready(&self, more: bool) {
        let ready = &self.group.pool.counts.ready;
        if more {
            ready.fetch_add(1, Ordering::Relaxed);
        } else {
            ready.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Host<'_> {
    fn drop(&mut self) {
        bells().give_back(self.link.bell);
    }
}

/// Tries to have memory for a stack, and the time between two: a task that has none of its own
/// cannot be woken or cancelled.
const STACK_TRIES: u32 = 5;
const STACK_PAUSE: Duration = Duration::from_millis(10);
/// Looks of a host while it spins: about 4 us.
const SPINS: u32 = 100;
/// A yield that takes longer than this has given the core to a process that keeps it.
const SLOW_YIELD_NS: u64 = 300_000;
/// Time for which waits then sleep at once, as a multiple of the lost time, before yielding is
/// tried again. A time and not a number: a host with several fibers waits many times in a slice.
const SLEEPS_FOR_LOST: u64 = 50;
/// Number of urgent tasks in a row after which a waiting one goes first.
const URGENT_RUN_MAX: u32 = 16;
/// First sleep of a host whose fibers wait for something without a notification; doubled each time.
const LOOK_AGAIN_NS_MIN: u64 = 50_000;
/// Longest such sleep.
const LOOK_AGAIN_NS_MAX: u64 = 1_000_000;
