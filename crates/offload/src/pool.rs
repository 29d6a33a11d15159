//! The in-process pool: the engines of this process, and who drives them.
//!
//! An engine here is a *seat*: a [`Core`] (local store, DMA, kernel state) with a pinned thread of
//! its own. Whoever holds the seat's claim drives the core: its thread, when it was sent a mission,
//! or a caller who found it idle (DESIGN: "an off-load to an idle engine on the same core is a
//! call, one to another core is a packet"). So never more than `engines` cores inflate at once.
//!
//! Must stay true: a claim is passed on, never copied; a seat is released with the backlog checked
//! afterwards, so that posted work is never left lying while an engine is idle.

use crate::claims::{Claims, ENGINES_MAX};
use crate::deal::Deal;
use crate::error::OffloadError;
use crate::job::{JOBS_MAX, Jobs};
use crate::mission::{Doorbell, Mission};
use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;
use parking_lot::{Condvar, Mutex};
use sidecore_engine::{Core, CoreOptions, Kernel};
use sidecore_sched::{Arrival, ClassId, Decision, Departure, Policy, TaskId};
use sidecore_sys::cpu;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Background work: one object, many tokens, so that posting allocates nothing.
pub trait Background: Send + Sync {
    /// Does the piece of work that `token` names, on an engine. A panic is caught and counted.
    fn run(&self, core: &mut Core, token: u64);
}

/// How to build a pool.
pub struct PoolConfig {
    /// Engines, 1 to 64. Default: one for each core this process may use.
    pub engines: usize,
    /// Each engine's core: local store, pre-touching, DMA mode.
    pub core: CoreOptions,
    /// How long an engine with nothing to do spins before it sleeps.
    pub grace: Duration,
    /// Whether engine threads are pinned, one to a core, in turn.
    pub pin: bool,
    /// Most pieces of background work that wait; more are dropped.
    pub backlog_max: usize,
    /// Who decides how wide a loop runs.
    pub policy: Box<dyn Policy>,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            engines: cpu::allowed()
                .map_or(1, |cpus| cpus.len())
                .clamp(1, ENGINES_MAX),
            core: CoreOptions::default(),
            grace: Duration::from_micros(8),
            pin: true,
            backlog_max: 256,
            policy: Box::new(sidecore_sched::Equi::default()),
        }
    }
}

/// What one engine has done so far.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct SeatCounters {
    /// Times that a caller drove the engine itself.
    pub called: u64,
    /// Missions that its own thread was sent.
    pub missions: u64,
    /// Pieces of background work done.
    pub background: u64,
    /// Pieces of background work that panicked.
    pub panics: u64,
}

#[derive(Default)]
struct Counters {
    called: AtomicU64,
    missions: AtomicU64,
    background: AtomicU64,
    panics: AtomicU64,
}

struct Place {
    core: Mutex<Core>,
    doorbell: Doorbell,
    cpu: usize,
    counters: Counters,
}

struct Posted {
    job: Arc<dyn Background>,
    token: u64,
}

struct Shared {
    places: Box<[CachePadded<Place>]>,
    claims: Claims,
    jobs: Jobs<Core>,
    backlog: ArrayQueue<Posted>,
    policy: Mutex<Box<dyn Policy>>,
    /// Callers that wait for an idle engine; under `waiting` they sleep on `freed`.
    waiters: AtomicU32,
    waiting: Mutex<()>,
    freed: Condvar,
    /// Callers between asking for an engine and being done: "tasks ready on the host".
    ready: AtomicU32,
    grace: Duration,
    started: Instant,
}

/// The engines of one process. Cheap to share behind an [`Arc`]; every method may be called from
/// any thread but an engine's own. Dropping it ends the threads.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A claimed engine that the caller drives itself. Released on drop.
pub struct Seat<'p> {
    shared: &'p Shared,
    engine: usize,
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
        let cpus = cpu::allowed().unwrap_or_default();
        let mut places = Vec::with_capacity(config.engines);
        for engine in 0..config.engines {
            let core =
                Core::new(config.core).map_err(|source| OffloadError::Engine { engine, source })?;
            places.push(CachePadded::new(Place {
                core: Mutex::new(core),
                doorbell: Doorbell::new(),
                cpu: cpus.get(engine % cpus.len().max(1)).copied().unwrap_or(0),
                counters: Counters::default(),
            }));
        }
        let shared = Arc::new(Shared {
            places: places.into(),
            claims: Claims::new(config.engines),
            jobs: Jobs::new(JOBS_MAX),
            backlog: ArrayQueue::new(config.backlog_max.max(1)),
            policy: Mutex::new(config.policy),
            waiters: AtomicU32::new(0),
            waiting: Mutex::new(()),
            freed: Condvar::new(),
            ready: AtomicU32::new(0),
            grace: config.grace,
            started: Instant::now(),
        });
        let mut pool = Self {
            shared,
            threads: Vec::with_capacity(config.engines),
        };
        for engine in 0..config.engines {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new()
                .name(format!("engine-{engine}"))
                .spawn(move || engine_thread(&shared, engine, config.pin))
                .map_err(|source| OffloadError::Thread { engine, source })?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    /// How many engines there are.
    #[must_use]
    pub fn engines(&self) -> usize {
        self.shared.places.len()
    }

    /// How many are idle at this moment.
    #[must_use]
    pub fn engines_idle(&self) -> usize {
        self.shared.claims.idle_count() as usize
    }

    /// Tasks that are in the pool or wait for an engine, background work aside.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.shared.ready.load(Ordering::Relaxed) as usize
    }

    /// What each engine has done so far.
    #[must_use]
    pub fn counters(&self) -> Vec<SeatCounters> {
        let read = |value: &AtomicU64| value.load(Ordering::Relaxed);
        let of = |place: &CachePadded<Place>| SeatCounters {
            called: read(&place.counters.called),
            missions: read(&place.counters.missions),
            background: read(&place.counters.background),
            panics: read(&place.counters.panics),
        };
        self.shared.places.iter().map(of).collect()
    }

    /// Takes an idle engine, the one of this thread's core if it can, to drive it from this thread.
    /// Waits for one where none is idle.
    #[must_use]
    pub fn seat(&self) -> Seat<'_> {
        let engine = self.shared.acquire();
        self.shared.places[engine]
            .counters
            .called
            .fetch_add(1, Ordering::Relaxed);
        Seat {
            shared: &self.shared,
            engine,
        }
    }

    /// Runs one piece of work on one engine (TLP) and returns what it gives. Blocks.
    pub fn call<R>(&self, work: impl FnOnce(&mut Core) -> R) -> R {
        let _ready = self.shared.count_ready();
        self.seat().drive(work)
    }

    /// Runs one typed kernel with borrowed arguments on one engine (TLP). Blocks.
    ///
    /// # Errors
    /// [`OffloadError::Kernel`] with what the kernel returned; a panic in it counts as that too.
    pub fn run<K: Kernel>(&self, args: K::Args<'_>) -> Result<K::Out, OffloadError> {
        self.call(|core| core.run::<K>(args))
            .map_err(OffloadError::from)
    }

    /// Runs `unit` on every item, on as many engines as the policy gives this loop (LLP); the
    /// caller is the first of them. Each item is handed to exactly one engine, in order of their
    /// index. Blocks until all are done; nothing is allocated.
    ///
    /// # Errors
    /// [`OffloadError::Panicked`] when `unit` panicked on any engine; items not yet begun are then
    /// left as they were.
    pub fn for_each<T: Send>(
        &self,
        class: ClassId,
        items: &mut [T],
        unit: impl Fn(&mut Core, &mut T) + Sync,
    ) -> Result<(), OffloadError> {
        if items.is_empty() {
            return Ok(());
        }
        let ready = self.shared.count_ready();
        let seat = self.seat();
        let units = u32::try_from(items.len()).unwrap_or(u32::MAX);
        if units == 1 {
            // Nothing to decide: one unit has one width.
            return guarded(|| seat.drive(|core| unit(core, &mut items[0])));
        }
        let begun = self.shared.now_ns();
        let decision = self.shared.policy.lock().arrive(
            begun,
            &Arrival {
                task: TaskId(0),
                live: 1 + ready.others,
                class,
                units,
                engines_idle: self.shared.free_for(&ready),
                engines: self.engines() as u32,
                ready: ready.others,
            },
        );
        let (width, result) = self.shared.run_loop(&seat, items, &unit, decision.width());
        drop(seat);
        let ended = self.shared.now_ns();
        self.shared.policy.lock().depart(
            ended,
            &Departure {
                task: TaskId(0),
                class,
                units,
                width,
                on_host: decision == Decision::Host,
                elapsed_ns: ended.saturating_sub(begun),
            },
        );
        result
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

    /// Pieces of background work that wait.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.shared.backlog.len()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        while self.shared.backlog.pop().is_some() {}
        for engine in 0..self.threads.len() {
            // Whoever drives the engine now gives it back soon.
            while !self.shared.claims.claim_exactly(engine) {
                std::thread::sleep(Duration::from_micros(50));
            }
            self.shared.places[engine].doorbell.ring(Mission::Exit);
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Seat<'_> {
    /// Drives the engine: runs `work` on it from this thread.
    pub fn drive<R>(&self, work: impl FnOnce(&mut Core) -> R) -> R {
        work(&mut self.shared.places[self.engine].core.lock())
    }

    /// Which engine it is.
    #[must_use]
    pub fn engine(&self) -> usize {
        self.engine
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        if !self.shared.backlog.is_empty() && self.shared.waiters.load(Ordering::SeqCst) == 0 {
            // Background work waits: pass the claim to the engine's own thread.
            self.shared.places[self.engine]
                .doorbell
                .ring(Mission::Drain);
            return;
        }
        self.shared.claims.release(self.engine);
        self.shared.after_release();
    }
}

/// One caller that wants engines, counted while it does.
struct Ready<'a> {
    shared: &'a Shared,
    /// How many others there were when this one came.
    others: u32,
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        self.shared.ready.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }

    fn count_ready(&self) -> Ready<'_> {
        Ready {
            shared: self,
            others: self.ready.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// How many engines a task that was just counted may think of as idle: its own, and all that no
    /// other task drives. An engine that is on its way out of a loop, or at background work, comes
    /// back within a unit or two.
    fn free_for(&self, ready: &Ready<'_>) -> u32 {
        let engines = self.places.len() as u32;
        if ready.others == 0 {
            engines
        } else {
            (self.claims.idle_count() + 1).min(engines)
        }
    }

    /// The engine whose thread is pinned to the core that this thread runs on, or any.
    fn preferred(&self) -> usize {
        let here = cpu::current();
        self.places
            .iter()
            .position(|place| place.cpu == here)
            .unwrap_or(0)
    }

    fn acquire(&self) -> usize {
        let preferred = self.preferred();
        if let Some(engine) = self.claims.claim(preferred) {
            return engine;
        }
        for _ in 0..SPINS_FOR_SEAT {
            std::hint::spin_loop();
            if let Some(engine) = self.claims.claim(preferred) {
                return engine;
            }
        }
        let mut waiting = self.waiting.lock();
        self.waiters.fetch_add(1, Ordering::SeqCst);
        let engine = loop {
            // After the count went up: a releaser that did not see it has set its bit before.
            if let Some(engine) = self.claims.claim(preferred) {
                break engine;
            }
            self.freed.wait(&mut waiting);
        };
        self.waiters.fetch_sub(1, Ordering::SeqCst);
        engine
    }

    /// To be called after every release of a claim.
    fn after_release(&self) {
        if self.waiters.load(Ordering::SeqCst) > 0 {
            // The lock orders this after a waiter's last look at the bits.
            drop(self.waiting.lock());
            self.freed.notify_one();
        } else if !self.backlog.is_empty() {
            self.start_drain();
        }
    }

    /// Sends an idle engine, if there is one, to work off the background queue.
    fn start_drain(&self) {
        // Background work prefers *another* core than the one that serves a client here.
        let away = (self.preferred() + 1) % self.places.len();
        if let Some(engine) = self.claims.claim(away) {
            self.places[engine].doorbell.ring(Mission::Drain);
        }
    }

    /// Runs a loop on up to `width` engines, the first of which is `seat`. Returns how many were
    /// asked to take part.
    fn run_loop<T: Send>(
        &self,
        seat: &Seat<'_>,
        items: &mut [T],
        unit: &(impl Fn(&mut Core, &mut T) + Sync),
        width: u32,
    ) -> (u32, Result<(), OffloadError>) {
        let panicked = Mutex::new(None);
        let deal = Deal::new(items);
        let run_one = |core: &mut Core| {
            let Some(item) = deal.next() else {
                return false;
            };
            match guarded(|| unit(core, item)) {
                Ok(()) => true,
                Err(error) => {
                    deal.stop();
                    *panicked.lock() = Some(error);
                    false
                }
            }
        };
        let body = |core: &mut Core| while run_one(core) {};
        let mut taken = 1;
        let mut ask = |ticket| {
            while taken < width
                && deal.has_more()
                && let Some(engine) = self.claims.claim(seat.engine + 1)
            {
                self.places[engine].doorbell.ring(Mission::Help(ticket));
                taken += 1;
            }
        };
        let opened = width > 1
            && self
                .jobs
                .with_open(&body, |ticket| {
                    // Engines that are not idle yet join as they become so.
                    ask(ticket);
                    seat.drive(|core| {
                        while run_one(core) {
                            ask(ticket);
                        }
                    });
                })
                .is_some();
        if !opened {
            seat.drive(body);
        }
        (taken, panicked.into_inner().map_or(Ok(()), Err))
    }
}

/// How often a caller looks for an idle engine before it sleeps: about a microsecond.
const SPINS_FOR_SEAT: u32 = 30;

fn engine_thread(shared: &Shared, engine: usize, pin: bool) {
    let place = &shared.places[engine];
    if pin {
        // A refusal is not fatal: an engine that wanders is slower, not wrong.
        let _ = cpu::pin(place.cpu);
    }
    loop {
        match place.doorbell.take(shared.grace) {
            Mission::Exit => return,
            Mission::Help(ticket) => {
                place.counters.missions.fetch_add(1, Ordering::Relaxed);
                shared.jobs.help(ticket, &mut place.core.lock());
            }
            Mission::Drain => {
                place.counters.missions.fetch_add(1, Ordering::Relaxed);
            }
        }
        while shared.waiters.load(Ordering::SeqCst) == 0
            && let Some(posted) = shared.backlog.pop()
        {
            place.counters.background.fetch_add(1, Ordering::Relaxed);
            let mut core = place.core.lock();
            if guarded(|| posted.job.run(&mut core, posted.token)).is_err() {
                place.counters.panics.fetch_add(1, Ordering::Relaxed);
            }
        }
        shared.claims.release(engine);
        shared.after_release();
    }
}

/// Runs `work`, turning a panic into an error.
fn guarded(work: impl FnOnce()) -> Result<(), OffloadError> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let message = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        OffloadError::Panicked { message }
    })
}
