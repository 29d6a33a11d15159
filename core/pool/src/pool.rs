//! The in-process pool: the engines of this process and their drivers.
//!
//! An engine here is a *seat*: a [`Core`] (local store, DMA, kernel state) with a pinned thread of
//! its own. The holder of the seat's claim drives the core: its thread after a command, or a caller
//! that found it idle. An off-load to an idle engine on the same core is a call, one to another
//! core a packet. So at most `engines` cores work at once.
//!
//! Must stay true: a claim is passed on, never copied. The backlog is checked after a seat is
//! released, so posted work never waits while an engine is idle.

use crate::claims::ENGINES_MAX;
use crate::command::Command;
use crate::config::{Background, PoolConfig};
use crate::error::{OffloadError, guarded};
use crate::loops::Loop;
use crate::packet::Driver;
use crate::shared::{Claim, Posted, Shared, add, engine_thread};
use crate::task::{self, Scope, TasksOptions};
use crate::tracks;
use parking_lot::Mutex;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_engine::{Core, Kernel};
use sidecore_sched::{ClassId, Decision};
use sidecore_sys::clock;
use sidecore_sys::float::Modes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Counters of one engine.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineCounters {
    /// Times that a caller drove the engine itself.
    pub called: u64,
    /// Commands that its own thread was sent.
    pub commands: u64,
    /// Pieces of background work done.
    pub background: u64,
    /// Pieces of background work that panicked.
    pub panics: u64,
    /// Units of loops done.
    pub units: u64,
    /// Nanoseconds that it was driven for, by any thread.
    pub busy_ns: u64,
    /// Times that its thread was found to have lost its core for more than 100 us.
    pub stalls: u64,
    /// Nanoseconds lost in these.
    pub stalled_ns: u64,
}

/// Counts of a pool's tasks at one moment.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TaskCounters {
    /// Spawned since the pool started.
    pub spawned: u64,
    /// Spawned and not begun.
    pub queued: u64,
    /// Begun on a stack of their own and not ended.
    pub live: u64,
    /// Of these, those that can go on.
    pub ready: u64,
    /// Of these, those that wait for something.
    pub parked: u64,
    /// Of these, those that are held because more are live than the policy wants.
    pub held: u64,
    /// Ended since the pool started, never begun ones included.
    pub ended: u64,
}

/// State of a pool at one moment, as `sidecore top` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Counters of each engine.
    pub engines: Vec<EngineCounters>,
    /// Engines without a driver.
    pub engines_idle: u64,
    /// Counts of its tasks.
    pub tasks: TaskCounters,
    /// Threads in the pool and tasks that wait for an engine.
    pub callers: u64,
    /// Pieces of background work that wait.
    pub backlog: u64,
    /// The policy's name.
    pub policy: String,
}

/// The engines of one process. Cheap to share behind an [`Arc`]; every method may be called from
/// any thread but an engine's own. Dropping it ends the threads.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Names of classes, by their number.
    class_names: Mutex<Vec<String>>,
}

/// A claimed engine that the caller drives itself. Released on drop.
pub struct Seat<'p> {
    claim: Claim<'p>,
}

impl Pool {
    /// Starts the engines: makes their local stores and threads. Blocks until all are there.
    ///
    /// # Errors
    /// [`OffloadError::EngineCount`], [`OffloadError::Engine`], [`OffloadError::Thread`].
    pub fn start(config: PoolConfig) -> Result<Self, OffloadError> {
        if config.engines == 0 || config.engines > ENGINES_MAX {
            return Err(OffloadError::EngineCount {
                engines: config.engines,
                max: ENGINES_MAX,
            });
        }
        let (pin, engines, stack_bytes) = (config.pin, config.engines, config.stack_bytes);
        // A name with a zero in it is none to the system.
        let name = config.name.replace('\0', "");
        let shared = Arc::new(Shared::new(config)?);
        let mut pool = Self {
            shared,
            threads: Vec::with_capacity(engines),
            class_names: Mutex::new(Vec::new()),
        };
        for engine in 0..engines {
            let shared = Arc::clone(&pool.shared);
            let mut builder = std::thread::Builder::new().name(format!("{name}-{engine}"));
            if stack_bytes > 0 {
                builder = builder.stack_size(stack_bytes);
            }
            let thread = builder
                .spawn(move || {
                    // Not those of the thread that starts the pool.
                    Modes::restore();
                    engine_thread(&shared, engine, pin);
                })
                .map_err(|source| OffloadError::Thread { engine, source })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// Number of engines.
    #[must_use]
    pub fn engines(&self) -> usize {
        self.shared.engines.len()
    }

    /// Number of idle engines at this moment.
    #[must_use]
    pub fn engines_idle(&self) -> usize {
        self.shared.claims.idle_count().to_usize()
    }

    /// Number of tasks that the policy wants live at present.
    #[must_use]
    pub fn live_tasks(&self) -> usize {
        self.shared.tasks.live_tasks().to_usize()
    }

    /// Threads that are in the pool or wait for an engine, and tasks that wait for one; background
    /// work aside.
    #[must_use]
    pub fn ready(&self) -> usize {
        let tasks = self.shared.tasks.counts.wanting.load(Ordering::Relaxed);
        self.shared.threads.load(Ordering::Relaxed).to_usize() + tasks
    }

    /// Counters of each engine so far. The first call in a process takes 5 ms, to measure the
    /// length of a cycle.
    #[must_use]
    pub fn counters(&self) -> Vec<EngineCounters> {
        let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let of = |slot: &crate::shared::EngineSlot| EngineCounters {
            called: read(&slot.counters.called),
            commands: read(&slot.counters.commands),
            background: read(&slot.counters.background),
            panics: read(&slot.counters.panics),
            units: read(&slot.counters.units),
            busy_ns: clock::cycles_to_ns(read(&slot.counters.busy_cycles)),
            stalls: read(&slot.counters.stalls),
            stalled_ns: read(&slot.counters.stalled_ns),
        };
        self.shared.engines.iter().map(|slot| of(slot)).collect()
    }

    /// The pool at this moment; its parts are read one after another while it goes on.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        let read = |value: &AtomicUsize| value.load(Ordering::Relaxed).to_u64();
        let tasks = &self.shared.tasks.counts;
        let (live, parked) = (read(&tasks.live), read(&tasks.parked));
        let spawned = tasks.spawned.load(Ordering::Relaxed);
        Snapshot {
            engines: self.counters(),
            engines_idle: self.engines_idle().to_u64(),
            tasks: TaskCounters {
                spawned,
                queued: tasks.waiting(),
                live,
                ready: live.saturating_sub(parked),
                parked,
                held: read(&tasks.held),
                ended: tasks.ended.load(Ordering::Relaxed),
            },
            callers: self.ready().to_u64(),
            backlog: self.backlog().to_u64(),
            policy: self.shared.policy_name(),
        }
    }

    /// Takes an idle engine, one of this thread's core if it can, to drive it from this thread.
    /// Waits for one where none is idle.
    #[must_use]
    pub fn seat(&self) -> Seat<'_> {
        let Ok(claim) = self.shared.acquire(false) else {
            unreachable!("this wait cannot be cancelled");
        };
        add(&claim.slot().counters.called, 1);
        Seat { claim }
    }

    /// Runs one piece of work on one engine (TLP), driven by this thread, and returns its result.
    /// Blocks; a task is parked while no engine is idle, but not while `work` runs. Not to be
    /// called by code that runs on an engine, which would wait for another one: see
    /// [`Self::off_load`].
    pub fn call<R>(&self, work: impl FnOnce(&mut Core) -> R) -> R {
        let _ready = self.shared.count_ready();
        self.seat().drive(work)
    }

    /// Off-loads one piece of work to one engine (TLP) and returns its result. In a task on equal
    /// cores an idle engine of the same core is called, another one is sent a packet; a plain
    /// thread drives the engine itself; with dedicated engines it is always a packet. Blocks; a
    /// task is parked while it waits for an engine or for a reply. Called by code that runs on an
    /// engine, it takes another one if that is idle and else does the work right there; loops do
    /// the same.
    ///
    /// # Errors
    /// [`OffloadError::Panicked`] when `work` panicked; [`OffloadError::Cancelled`] in a cancelled
    /// task.
    pub fn off_load<R: Send>(
        &self,
        work: impl FnOnce(&mut Core) -> R + Send,
    ) -> Result<R, OffloadError> {
        if task::is_cancelled() {
            return Err(OffloadError::Cancelled);
        }
        task::await_admission(&self.shared.tasks);
        self.off_load_now(work)
    }

    fn off_load_now<R: Send>(
        &self,
        work: impl FnOnce(&mut Core) -> R + Send,
    ) -> Result<R, OffloadError> {
        let _ready = self.shared.count_ready();
        let work = |driver: &mut Driver| work(&mut driver.core);
        let Some(claim) = self.shared.acquire_or_host(true)? else {
            return self.shared.on_host(work);
        };
        if self.shared.dedicated || (task::current_bell().is_some() && !claim.is_near()) {
            claim.send(work)
        } else {
            add(&claim.slot().counters.called, 1);
            guarded(|| claim.drive(work))
        }
    }

    /// Runs one typed kernel with borrowed arguments on one engine (TLP), as [`Self::off_load`]
    /// does. Blocks.
    ///
    /// # Errors
    /// [`OffloadError::Kernel`] with the kernel's error; a panic in it counts as that too.
    /// [`OffloadError::Cancelled`] in a cancelled task.
    pub fn run<'j, K: Kernel>(&self, args: K::Args<'j>) -> Result<K::Out, OffloadError>
    where
        K::Args<'j>: Send,
    {
        self.off_load(|core| core.run::<K>(args))?
            .map_err(OffloadError::from)
    }

    /// [`Self::off_load`] for work of a class that the policy measures. Where measurements show
    /// that the host is faster, the caller's own core does it (the papers' off-load test).
    ///
    /// # Errors
    /// As [`Self::off_load`].
    pub fn off_load_as<R: Send>(
        &self,
        class: ClassId,
        work: impl FnOnce(&mut Core) -> R + Send,
    ) -> Result<R, OffloadError> {
        if task::is_cancelled() {
            return Err(OffloadError::Cancelled);
        }
        task::await_admission(&self.shared.tasks);
        let ready = self.shared.count_ready();
        let (decision, arrival) = self.shared.arrive(&ready, class, 1, 1);
        let on_host = decision == Decision::Host;
        let result = match on_host {
            true => self.shared.on_host(|driver| work(&mut driver.core)),
            false => self.off_load_now(work),
        };
        match &result {
            // Elapsed times say all: one unit has one width.
            Ok(_) | Err(OffloadError::Panicked { .. }) => {
                self.shared.depart(&arrival, 1, on_host, 0);
            }
            Err(_) => self.shared.give_up(&arrival),
        }
        result
    }

    /// Runs `unit` on every item, on as many engines as the policy gives this loop (LLP); on equal
    /// cores the caller is the first of them. Each item is handed to exactly one engine: every
    /// engine has a run of neighbours, the first one's a little larger by measurement. An engine
    /// that is done takes items that others have left. Blocks until all are done; a task is parked
    /// while it has nothing to do itself. Nothing is allocated. Where the policy leaves the loop to
    /// the host, the caller's own core runs all of it.
    ///
    /// # Errors
    /// [`OffloadError::Panicked`] when `unit` panicked on any engine; items not yet begun are then
    /// left as they were. [`OffloadError::Cancelled`] in a task that was cancelled before the loop
    /// began.
    pub fn for_each<T: Send>(
        &self,
        class: ClassId,
        items: &mut [T],
        unit: impl Fn(&mut Core, &mut T) + Sync,
    ) -> Result<(), OffloadError> {
        let kernel = |core: &mut Core, _first: usize, items: &mut [T]| {
            items.iter_mut().for_each(|item| unit(core, item));
        };
        self.split(class, items, 1, &kernel)
    }

    /// Splits a loop: `kernel` gets chunks of `least` items or more, each with the place of its
    /// first item. See [`Self::for_each`].
    pub(crate) fn split<T: Send, F: Fn(&mut Core, usize, &mut [T]) + Sync>(
        &self,
        class: ClassId,
        items: &mut [T],
        least: u32,
        kernel: &F,
    ) -> Result<(), OffloadError> {
        if items.is_empty() {
            return Ok(());
        }
        if task::is_cancelled() {
            return Err(OffloadError::Cancelled);
        }
        let shared = &self.shared;
        task::await_admission(&shared.tasks);
        let ready = shared.count_ready();
        // On equal cores the caller needs an engine whatever the policy says.
        let own = match shared.dedicated {
            true => None,
            false => shared.acquire_or_host(true)?,
        };
        let Ok(units) = u32::try_from(items.len()) else {
            drop((own, ready));
            let most = u32::MAX.to_usize();
            let mut parts = items.chunks_mut(most).enumerate();
            return parts.try_for_each(|(part, items)| {
                let kernel = |core: &mut Core, first: usize, items: &mut [T]| {
                    kernel(core, part * most + first, items);
                };
                // By reference, or each part would be of a type of its own, without end.
                let kernel: &(dyn Fn(&mut Core, usize, &mut [T]) + Sync) = &kernel;
                self.split(class, items, least, &kernel)
            });
        };
        if let Some(own) = own.as_ref()
            && (units == 1 || shared.short_loops.take(class, items.len()))
        {
            // Nothing to decide: one unit has one width, and a short loop is not split.
            add(&own.slot().counters.called, 1);
            return guarded(|| {
                own.drive(|driver| {
                    driver.units += u64::from(units);
                    kernel(&mut driver.core, 0, items);
                });
            });
        }
        let parts = units.div_ceil(least.max(1));
        let (decision, arrival) = shared.arrive(&ready, class, units, parts);
        let width = u64::from(decision.width());
        let _loop = sidecore_trace::span(&tracks::LOOP, units.into(), width);
        let place = (decision.width(), arrival.part);
        let mut work = Loop::new(shared, class, items, kernel, least, place);
        let width = work.run(decision, own);
        // Also a loop that never began has arrived, and departs.
        let width = width.inspect_err(|_| shared.give_up(&arrival))?;
        let on_host = decision == Decision::Host;
        shared.depart(&arrival, width, on_host, work.work_cycles());
        work.result()
    }

    /// Opens a scope for tasks, runs `body` with it, waits until all tasks have ended, and returns
    /// the result of `body`. Called on a plain thread it starts host threads for the tasks and ends
    /// them afterwards, tens of microseconds each. So open a scope for a program's whole work, not
    /// for a loop's. Called in a task it uses that task's hosts; `options` then do not count.
    ///
    /// # Errors
    /// [`OffloadError::HostCount`], [`OffloadError::Host`]; [`OffloadError::TaskPanicked`] where a
    /// task panicked and was not joined.
    ///
    /// # Panics
    /// If `body` does: the scope is then cancelled, and its tasks awaited first.
    pub fn tasks<'env, R>(
        &self,
        options: TasksOptions,
        body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    ) -> Result<R, OffloadError> {
        task::tasks(&self.shared.tasks, options, body)
    }

    /// Queues background work. Returns false, and drops it, when the queue is full. Never blocks.
    pub fn post(&self, job: &Arc<dyn Background>, token: u64) -> bool {
        if self
            .shared
            .backlog
            .push(Posted {
                job: Arc::clone(job),
                token,
            })
            .is_err()
        {
            return false;
        }
        self.shared.start_drain();
        true
    }

    pub(crate) fn class_names(&self) -> &Mutex<Vec<String>> {
        &self.class_names
    }

    /// True if a loop of this many units, which needs no engine, is to be run at once on this
    /// thread.
    #[inline]
    pub(crate) fn takes_at_once(&self, class: ClassId, units: usize) -> bool {
        self.shared.short_loops.take(class, units) && !task::is_cancelled()
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    #[cfg(test)]
    pub(crate) fn accounts(&self) -> &task::Accounts {
        &self.shared.tasks
    }

    /// Pieces of background work that wait.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.shared.backlog.len()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        while self.shared.backlog.pop().is_some() {}
        self.shared.rest(usize::MAX);
        for engine in 0..self.threads.len() {
            // The engine's present driver gives it back soon.
            while !self.shared.claims.claim_exactly(engine) {
                std::thread::sleep(Duration::from_micros(50));
            }
            self.shared.engines[engine].commands.send(Command::Exit);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Seat<'_> {
    /// Drives the engine: runs `work` on it from this thread.
    pub fn drive<R>(&self, work: impl FnOnce(&mut Core) -> R) -> R {
        self.claim.drive(|driver| work(&mut driver.core))
    }

    /// Number of the engine.
    #[must_use]
    pub fn engine(&self) -> usize {
        self.claim.engine
    }
}
