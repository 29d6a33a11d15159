//! The engines of a pool, their claims, and the threads that wait for one.
//!
//! Why here: the pool's calls, its engines' threads and the hosts of its tasks all work on this.
//! Must stay true: a claim is passed on, never copied. A release is followed by a look at the
//! waiters and at the backlog, so no work waits while an engine is idle (README.md).

mod policy;
mod slot;

pub(crate) use slot::{EngineSlot, add, engine_thread};

use crate::claims::{Claims, EnginesOnCpus, Preferred, Resting};
use crate::command::{Command, CommandSlot};
use crate::config::{Background, PoolConfig};
use crate::error::{Cancelled, OffloadError, guarded};
use crate::job::{JOBS_MAX, Jobs};
use crate::neighbours::Neighbours;
use crate::packet::Driver;
use crate::task::{self, Accounts, Priority, WaitPoint};
use crate::tracks;
use crate::wait_queue::{Joined, WaitQueue};
use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use policy::{Policies, ShortLoops};
use sidecore_engine::{Core, CoreOptions};
use sidecore_sync::Changed;
use sidecore_sys::{clock, cpu, machine};
use sidecore_trace::{self as trace, Lane};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub(crate) struct Posted {
    pub(crate) job: Arc<dyn Background>,
    pub(crate) token: u64,
}

pub(crate) struct Shared {
    /// The engines, by their number.
    pub(crate) engines: Box<[CachePadded<EngineSlot>]>,
    pub(crate) claims: CachePadded<Claims>,
    pub(crate) resting: Resting,
    pub(crate) jobs: Jobs<Driver>,
    pub(crate) backlog: ArrayQueue<Posted>,
    policies: Policies,
    /// Loops that are not worth asking the policy.
    pub(crate) short_loops: ShortLoops,
    /// Engines on each core, and near it.
    on_cpus: EnginesOnCpus,
    neighbours: Neighbours,
    /// True if hosts have cores of their own: an off-load is then always a packet.
    pub(crate) dedicated: bool,
    /// Numbers of waiters, on a line of their own: every release looks here.
    waiting: CachePadded<Waiting>,
    /// Tasks, and threads that found no place in the wait queue, wait here.
    freed: WaitPoint,
    wait_queue: WaitQueue,
    /// Plain threads between asking for an engine and being done.
    pub(crate) threads: CachePadded<AtomicU32>,
    pub(crate) tasks: Arc<Accounts>,
    /// Cores for loops that the policy leaves to hosts, where hosts have no engines.
    spare: ArrayQueue<Driver>,
    core_options: CoreOptions,
    grace: Duration,
    started: Instant,
}

/// Counts of those that wait for an idle engine.
#[derive(Default)]
struct Waiting {
    /// Callers and tasks.
    all: AtomicU32,
    /// Of these, the urgent ones, and the tasks.
    urgent: AtomicU32,
    tasks: AtomicU32,
    /// Engines that were given back while tasks waited: every other goes to the wait queue.
    turns: AtomicU32,
}

/// A claimed engine. Released on drop.
pub(crate) struct Claim<'p> {
    pub(crate) shared: &'p Shared,
    pub(crate) engine: usize,
}

/// One caller of the pool, counted while it is in it.
pub(crate) struct Ready<'a> {
    shared: &'a Shared,
    on_task: bool,
    /// Plain threads in the pool when this one came, itself included if it is one.
    threads: u32,
}

impl Shared {
    pub(crate) fn new(config: PoolConfig) -> Result<Self, OffloadError> {
        let cpus = match config.cpus.is_empty() {
            true => cpu::allowed().unwrap_or_default(),
            false => config.cpus,
        };
        let mut cpu_of_engine = Vec::with_capacity(config.engines);
        let mut engines = Vec::with_capacity(config.engines);
        for engine in 0..config.engines {
            let core =
                Core::new(config.core).map_err(|source| OffloadError::Engine { engine, source })?;
            let cpu = cpus.get(engine % cpus.len().max(1)).copied().unwrap_or(0);
            let lane = Lane::new(|| format!("engine {engine} (cpu {cpu})"));
            cpu_of_engine.push(cpu);
            engines.push(CachePadded::new(EngineSlot {
                driver: CachePadded::new(Mutex::new(Driver { core, units: 0 })),
                commands: CommandSlot::new(lane),
                cpu,
                counters: CachePadded::default(),
            }));
        }
        let cores = cpu::allowed().map_or(1, |cpus| cpus.len());
        Ok(Self {
            claims: CachePadded::new(Claims::new(engines.len())),
            resting: Resting::new(cpu::of_process().map_or(1, |(_, count)| count)),
            spare: ArrayQueue::new(engines.len().max(1)),
            engines: engines.into(),
            jobs: Jobs::new(JOBS_MAX),
            backlog: ArrayQueue::new(config.backlog_max.max(1)),
            tasks: Arc::new(Accounts::new(policy::live_tasks(
                &*config.policy,
                config.engines,
            ))),
            policies: Policies::new(config.policy, cores),
            short_loops: ShortLoops::new(cores),
            on_cpus: EnginesOnCpus::new(&cpu_of_engine),
            neighbours: Neighbours::new(&cpu_of_engine, machine::place),
            dedicated: config.dedicated,
            waiting: CachePadded::default(),
            freed: WaitPoint::new(),
            wait_queue: WaitQueue::new(THREADS_WAITING_MAX),
            threads: CachePadded::new(AtomicU32::new(0)),
            core_options: config.core,
            grace: config.grace,
            started: Instant::now(),
        })
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    /// Counts a caller that is a plain thread; tasks are counted by their hosts.
    pub(crate) fn count_ready(&self) -> Ready<'_> {
        let on_task = task::current_bell().is_some();
        let threads = if on_task {
            self.threads.load(Ordering::Relaxed)
        } else {
            self.threads.fetch_add(1, Ordering::Relaxed) + 1
        };
        Ready {
            shared: self,
            on_task,
            threads,
        }
    }

    /// Set of the engines whose threads are pinned to the core that this thread runs on.
    pub(crate) fn near(&self) -> &[u64] {
        if self.dedicated {
            return &[];
        }
        self.on_cpus.on(cpu::current())
    }

    /// Takes an engine for a part of a loop, if a quick look shows an idle one: of those that share
    /// a cache with this core, of its node, of all; among each those after the engine `after`.
    pub(crate) fn claim_helper(&self, cpu: usize, after: usize) -> Option<usize> {
        let mut near = self.neighbours.sets(cpu);
        near.find_map(|set| self.claims.glance_of(set, after))
            .or_else(|| self.claims.glance(Preferred::After(after)))
    }

    /// Takes an idle engine, one of this core if it can; waits for one where none is idle. A task
    /// is parked meanwhile.
    ///
    /// # Errors
    /// [`Cancelled`] where `may_cancel` is set and the task was cancelled meanwhile.
    pub(crate) fn acquire(&self, may_cancel: bool) -> Result<Claim<'_>, Cancelled> {
        let claim = |engine| Claim {
            shared: self,
            engine,
        };
        let urgent = task::priority() == Priority::Urgent;
        let near = self.near();
        let mut patience = Patience {
            urgent,
            until: None,
        };
        if let Some(bell) = task::current_bell() {
            if let Some(engine) = self.try_claim(near, &mut patience) {
                return Ok(claim(engine));
            }
            return self
                .acquire_on_task(bell, near, patience, may_cancel)
                .map(claim);
        }
        // While others wait, a new caller joins the wait queue instead of trying first.
        for look in 0..=SPINS_FOR_ENGINE {
            if self.has_waiters() {
                break;
            }
            if look > 0 {
                std::hint::spin_loop();
            }
            if let Some(engine) = self.try_claim(near, &mut patience) {
                return Ok(claim(engine));
            }
        }
        let _wait = trace::span(&tracks::WAIT, 0, 0);
        let _waits = self.count_waiter(urgent);
        loop {
            let prepared = self.freed.threads().prepare();
            // After the count went up: a releaser that did not see it has set its bit before.
            match self
                .wait_queue
                .join(|| self.claims.claim(Preferred::Of(near)))
            {
                Joined::Engine(engine) => return Ok(claim(engine)),
                Joined::Place(place) => {
                    drop(prepared);
                    return Ok(claim(self.wait_queue.wait(place, SPINS_IN_QUEUE)));
                }
                Joined::Full => prepared.wait(None),
            }
        }
    }

    /// True if an urgent caller waits for an engine: loops then ask no more of them to help.
    pub(crate) fn has_urgent_waiters(&self) -> bool {
        self.waiting.urgent.load(Ordering::Relaxed) > 0
    }

    /// As [`Self::acquire`], but never waits for an engine inside of one, where all might wait for
    /// one another. With `None` the caller's own core does the work, with a core that is no
    /// engine's.
    pub(crate) fn acquire_or_host(&self, may_cancel: bool) -> Result<Option<Claim<'_>>, Cancelled> {
        if task::count_drives(0) == 0 {
            return self.acquire(may_cancel).map(Some);
        }
        let claim = |engine| Claim {
            shared: self,
            engine,
        };
        Ok(self.claims.claim(Preferred::Of(self.near())).map(claim))
    }

    fn acquire_on_task(
        &self,
        bell: usize,
        near: &[u64],
        mut patience: Patience,
        may_cancel: bool,
    ) -> Result<usize, Cancelled> {
        let _wait = trace::span(&tracks::WAIT, 0, 0);
        let _waits = self.count_waiter(patience.urgent);
        let _task = self.count_task_waiter();
        let _wants = task::want_engine(&self.tasks.counts);
        self.freed.expect(bell);
        loop {
            if let Some(engine) = self.try_claim(near, &mut patience) {
                return Ok(engine);
            }
            if may_cancel && task::is_cancelled() {
                return Err(Cancelled);
            }
            let urgent = patience.urgent;
            let due_ns = match patience.until {
                Some(_) => clock::now_ns() + DEFER.as_nanos() as u64,
                None => u64::MAX,
            };
            // Only checked here, and taken when this task goes on. So no engine is held for a task
            // that waits behind others of its host.
            task::park_until(due_ns, || {
                self.claims.idle_count() > 0
                    && (urgent || self.waiting.urgent.load(Ordering::Relaxed) == 0)
            });
        }
    }

    /// Takes an idle engine. A caller that is not urgent first defers to urgent waiters for a
    /// while.
    fn try_claim(&self, near: &[u64], patience: &mut Patience) -> Option<usize> {
        if !patience.urgent && self.waiting.urgent.load(Ordering::SeqCst) > 0 {
            let now = Instant::now();
            if now < *patience.until.get_or_insert(now + DEFER) {
                return None;
            }
        } else {
            patience.until = None;
        }
        self.claims.claim(Preferred::Of(near))
    }

    fn count_task_waiter(&self) -> TaskWaits<'_> {
        self.waiting.tasks.fetch_add(1, Ordering::SeqCst);
        TaskWaits { shared: self }
    }

    pub(crate) fn count_waiter(&self, urgent: bool) -> Waits<'_> {
        self.waiting.all.fetch_add(1, Ordering::SeqCst);
        if urgent {
            self.waiting.urgent.fetch_add(1, Ordering::SeqCst);
        }
        Waits {
            shared: self,
            urgent,
        }
    }

    /// Gives a claimed engine back: to the thread that has waited longest, or to all.
    pub(crate) fn give_back(&self, engine: usize) {
        if self.has_waiters() && self.is_turn_of_waiters() && self.wait_queue.hand_over(engine) {
            self.freed.threads().notify_one();
            return;
        }
        self.claims.release(engine);
        if self.has_waiters() {
            let changed = Changed::publish();
            if !self.tasks_wait() {
                self.wait_queue
                    .serve(|| self.claims.claim(Preferred::Of(&[])));
            }
            self.freed.notify_after(changed, 1);
        } else if !self.backlog.is_empty() {
            self.start_drain();
        }
    }

    /// True if the next engine goes to the queue of threads rather than to a task: every other one
    /// where tasks wait too, one in a few where those are urgent.
    fn is_turn_of_waiters(&self) -> bool {
        if !self.tasks_wait() {
            return true;
        }
        let is_urgent = self.waiting.urgent.load(Ordering::Relaxed) > 0;
        let every = if is_urgent { TURNS_URGENT } else { TURNS };
        // Relaxed: a count that orders nothing.
        let turn = self.waiting.turns.fetch_add(1, Ordering::Relaxed);
        turn.is_multiple_of(every)
    }

    /// Threads that wait in the queue.
    #[cfg(test)]
    pub(crate) fn line_len(&self) -> usize {
        self.wait_queue.len()
    }

    /// True if tasks wait for an engine, at this moment.
    fn tasks_wait(&self) -> bool {
        self.waiting.tasks.load(Ordering::SeqCst) > 0
    }

    /// Sends an idle engine, if there is one, to work off the background queue.
    pub(crate) fn start_drain(&self) {
        // Background work prefers *another* core than the one that serves a client here.
        if let Some(engine) = self.claims.claim(Preferred::But(self.near())) {
            self.engines[engine].commands.send(Command::Drain);
        }
    }

    /// True if any caller waits for an engine: they go before background work.
    fn has_waiters(&self) -> bool {
        self.waiting.all.load(Ordering::SeqCst) > 0
    }

    /// Runs `work` with a core that is no engine's: the caller's host does the work itself.
    ///
    /// # Errors
    /// [`OffloadError::Core`] where there is no memory for such a core.
    pub(crate) fn on_host<R>(
        &self,
        work: impl FnOnce(&mut Driver) -> R,
    ) -> Result<R, OffloadError> {
        let mut driver = match self.spare.pop() {
            Some(driver) => driver,
            None => Driver {
                core: Core::new(self.core_options)
                    .map_err(|source| OffloadError::Core { source })?,
                units: 0,
            },
        };
        let result = guarded(|| work(&mut driver));
        // More than fit are dropped: there were more at once than engines.
        let _ = self.spare.push(driver);
        result
    }
}

impl<'p> Claim<'p> {
    pub(crate) fn slot(&self) -> &'p EngineSlot {
        &self.shared.engines[self.engine]
    }

    /// True if this engine's thread runs on the core that this thread is on.
    pub(crate) fn is_near(&self) -> bool {
        self.slot().cpu == cpu::current()
    }

    /// Drives the engine from this thread.
    pub(crate) fn drive<R>(&self, work: impl FnOnce(&mut Driver) -> R) -> R {
        self.slot().drive(&tracks::CALL, 0, work)
    }

    pub(crate) fn command_slot(&self) -> &'p CommandSlot {
        &self.shared.engines[self.engine].commands
    }

    /// Passes the claim on to the engine's thread, which will be rung.
    pub(crate) fn into_command_slot(self) -> &'p CommandSlot {
        let slot = self.command_slot();
        std::mem::forget(self);
        slot
    }

    /// Sends a command to the engine's thread; the claim goes with it.
    pub(crate) fn send_command(self, command: Command) {
        self.into_command_slot().send(command);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if !self.shared.backlog.is_empty() && !self.shared.has_waiters() {
            // Background work waits: pass the claim to the engine's own thread.
            self.slot().commands.send(Command::Drain);
            return;
        }
        self.shared.give_back(self.engine);
    }
}

/// Counted among the waiters for an engine, until dropped.
pub(crate) struct Waits<'a> {
    shared: &'a Shared,
    urgent: bool,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if self.urgent {
            self.shared.waiting.urgent.fetch_sub(1, Ordering::SeqCst);
        }
        let before = self.shared.waiting.all.fetch_sub(1, Ordering::SeqCst);
        // An engine that came back meanwhile left the backlog to this waiter, which may have gone
        // without it: a task that was cancelled.
        if before == 1 && !self.shared.backlog.is_empty() {
            self.shared.start_drain();
        }
    }
}

/// Counted among the tasks that wait for an engine, until dropped.
struct TaskWaits<'a> {
    shared: &'a Shared,
}

impl Drop for TaskWaits<'_> {
    fn drop(&mut self) {
        let before = self.shared.waiting.tasks.fetch_sub(1, Ordering::SeqCst);
        if before == 1 && self.shared.has_waiters() {
            // An engine may have been left to this task that it does not need any more.
            let claim = || self.shared.claims.claim(Preferred::Of(&[]));
            self.shared.wait_queue.serve(claim);
        }
    }
}

/// Patience of a caller that lets urgent ones go first.
struct Patience {
    urgent: bool,
    until: Option<Instant>,
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        if !self.on_task {
            self.shared.threads.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Looks of a caller for an idle engine before it joins the wait queue: about a microsecond; and
/// looks of one in the queue before it sleeps.
const SPINS_FOR_ENGINE: u32 = 30;
const SPINS_IN_QUEUE: u32 = 30;
/// Threads that wait in the queue; more wait until there is a place.
const THREADS_WAITING_MAX: u32 = 1_024;
/// Engines given back, of which one goes to the queue where tasks wait, or urgent ones.
const TURNS: u32 = 2;
const TURNS_URGENT: u32 = 8;
/// Longest time for which others give way to urgent callers, each time.
const DEFER: Duration = Duration::from_micros(100);
