//! An engine: a thread on one core that drives a [`Core`].
//!
//! Why here: services that poll, and measurements of one engine, want a core of their own. (The
//! off-load pool has its own way to lend cores to callers; it builds on `Core`, not on this.)
//!
//! ```
//! use sidecore_engine::{Ctx, Engine, EngineOptions, In, Kernel, KernelError};
//!
//! struct Sum;
//! impl Kernel for Sum {
//!     type Args<'j> = In<'j, u32>;
//!     type Out = u32;
//!     type State = ();
//!     fn run<'c, 'j: 'c>(
//!         cx: &mut Ctx<'c, Self>,
//!         values: In<'j, u32>,
//!     ) -> Result<u32, KernelError> {
//!         Ok(cx.mfc.fetch(values)?.iter().sum())
//!     }
//! }
//!
//! let engine = Engine::start(EngineOptions::default())?;
//! let values = [1, 2, 3, 4];
//! let (front, back) = engine.scope(|scope| {
//!     let front = scope.spawn::<Sum>(In::new(&values[..2]));
//!     let back = scope.spawn::<Sum>(In::new(&values[2..]));
//!     (front.join(), back.join())
//! });
//! assert_eq!((front?, back?), (3, 7));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Must stay true: a scope ends only when its jobs and their transfers are done and the engine
//! holds nothing of them, panics included. Any thread may spawn; spawning allocates, and blocks
//! while [`JOBS_MAX`] jobs wait.

mod lend;

use crate::core::{Core, CoreCounters, CoreOptions};
use crate::error::{EngineError, KernelError};
use crate::kernel::Kernel;
use crate::mail::HostPorts;
use crate::wait::{WaitOptions, Waiter};
use crossbeam_queue::ArrayQueue;
use lend::{Job, Lent, Loans};
use sidecore_sync::EventCount;
use sidecore_sys::cpu;
use sidecore_sys::float::Modes;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;

/// Jobs that may wait for an engine.
pub const JOBS_MAX: usize = 64;

/// Options of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineOptions {
    /// Core to which the thread is pinned; `None` for any.
    pub cpu: Option<usize>,
    /// The thread's name, of which the system keeps 15 bytes.
    pub name: String,
    /// Options of its core.
    pub core: CoreOptions,
    /// Policy of its waits for jobs, and of its hosts' waits for it.
    pub wait: WaitOptions,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            cpu: None,
            name: "engine".to_owned(),
            core: CoreOptions::default(),
            wait: WaitOptions::default(),
        }
    }
}

/// A running engine. Dropped, it stops; it has no jobs then, because scopes borrow it.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    ports: HostPorts,
    wait: WaitOptions,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    jobs: ArrayQueue<Lent>,
    /// Notified when there is a job or the engine shall stop.
    work: EventCount,
    /// Notified when a job has been taken.
    room: EventCount,
    stop: AtomicBool,
    counters: Mutex<CoreCounters>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "an engine with {} jobs waiting", self.jobs.len())
    }
}

impl Engine {
    /// Starts the thread, pins it, and makes its hardware there, so that its memory is near its
    /// core.
    ///
    /// # Errors
    /// [`EngineError`] where thread, core or memory are refused.
    pub fn start(options: EngineOptions) -> Result<Self, EngineError> {
        let shared = Arc::new(Shared {
            jobs: ArrayQueue::new(JOBS_MAX),
            work: EventCount::new(),
            room: EventCount::new(),
            stop: AtomicBool::new(false),
            counters: Mutex::new(CoreCounters::default()),
        });
        let wait = options.wait;
        let (started, start) = mpsc::sync_channel(1);
        let engine = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(options.name.clone())
            .spawn(move || {
                // Not those of the thread that starts it.
                Modes::restore();
                let core = options
                    .cpu
                    .map_or(Ok(()), cpu::pin)
                    .and_then(|()| Core::new(options.core));
                match core {
                    Ok(mut core) => {
                        started.send(Ok(core.host_ports(wait))).ok();
                        drop(started);
                        engine.drive(&mut core, &Waiter::new(wait));
                    }
                    Err(error) => {
                        started.send(Err(error)).ok();
                    }
                }
            })
            .map_err(EngineError::Thread)?;
        let ports = match start.recv() {
            Ok(Ok(ports)) => ports,
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => {
                let died = std::io::Error::other("it died before it could say why");
                return Err(EngineError::Thread(died));
            }
        };
        Ok(Self {
            shared,
            ports,
            wait,
            thread: Some(thread),
        })
    }

    /// Lends memory to jobs: calls `body` with a scope to spawn them on, and returns when it has
    /// returned and all its jobs are done. If it panics, waits for them all the same.
    pub fn scope<'env, R>(
        &'env self,
        body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
    ) -> R {
        let scope = Scope {
            engine: self,
            loans: Arc::new(Loans::default()),
            waiter: Waiter::new(self.wait),
            lifetimes: PhantomData,
        };
        let result = catch_unwind(AssertUnwindSafe(|| body(&scope)));
        scope.loans.wait(&scope.waiter);
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Runs one job and waits for it.
    ///
    /// # Errors
    /// As [`Core::run`].
    pub fn run<'j, K: Kernel>(&self, args: K::Args<'j>) -> Result<K::Out, KernelError>
    where
        K::Args<'j>: Send,
    {
        self.scope(|scope| scope.spawn::<K>(args).join())
    }

    /// The host's side of its mailboxes and signals.
    #[must_use]
    pub fn ports(&self) -> &HostPorts {
        &self.ports
    }

    /// Its counters up to the last job that ended.
    #[must_use]
    pub fn counters(&self) -> CoreCounters {
        *lock(&self.shared.counters)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.work.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread catches its jobs' panics and has none of its own to report.
            thread.join().ok();
        }
    }
}

impl Shared {
    /// The engine's thread.
    fn drive(&self, core: &mut Core, waiter: &Waiter) {
        enum Next {
            Job(Lent),
            Stop,
        }
        loop {
            let next = waiter.wait(&self.work, None, || match self.jobs.pop() {
                Some(job) => Some(Next::Job(job)),
                None => self.stop.load(Ordering::Acquire).then_some(Next::Stop),
            });
            match next {
                Some(Next::Job(job)) => {
                    self.room.notify_all();
                    job.run_on(core);
                    *lock(&self.counters) = core.counters();
                }
                Some(Next::Stop) => return,
                None => {}
            }
        }
    }

    fn push(&self, job: Lent, waiter: &Waiter) {
        let mut job = Some(job);
        waiter.wait(&self.room, None, || {
            if let Some(refused) = job.take() {
                job = self.jobs.push(refused).err();
            }
            job.is_none().then_some(())
        });
        self.work.notify_all();
    }
}

/// Scope in which jobs are spawned that borrow from outside of it. Made by [`Engine::scope`].
#[derive(Debug)]
pub struct Scope<'scope, 'env: 'scope> {
    engine: &'env Engine,
    loans: Arc<Loans>,
    waiter: Waiter,
    /// Invariant in both, as `std::thread::Scope` is: jobs may hold exactly the borrows that
    /// outlive the scope.
    lifetimes: PhantomData<(&'scope mut &'scope (), &'env mut &'env ())>,
}

impl<'scope> Scope<'scope, '_> {
    /// Hands a job to the engine. Blocks while [`JOBS_MAX`] jobs wait.
    pub fn spawn<'j, K: Kernel>(&'scope self, args: K::Args<'j>) -> JobHandle<'scope, 'j, K>
    where
        'j: 'scope,
        K::Args<'j>: Send,
    {
        let task = Arc::new(Task::<'j, K> {
            args: Mutex::new(Some(args)),
            result: Mutex::new(None),
            done: AtomicBool::new(false),
            ended: EventCount::new(),
        });
        let job: Arc<dyn Job + 'j> = task.clone();
        #[expect(unsafe_code, reason = "the promise that `lend` asks for")]
        // SAFETY: `Engine::scope` waits for these loans whether its body returns or panics, and
        // `'j` outlives that call.
        let lent = unsafe { Lent::new(job, &self.loans) };
        self.engine.shared.push(lent, &self.waiter);
        JobHandle {
            task,
            waiter: &self.waiter,
        }
    }
}

/// A job that was spawned.
#[must_use = "the result comes from `join`"]
pub struct JobHandle<'scope, 'j, K: Kernel> {
    task: Arc<Task<'j, K>>,
    waiter: &'scope Waiter,
}

impl<K: Kernel> std::fmt::Debug for JobHandle<'_, '_, K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = if self.is_done() { "done" } else { "not done" };
        write!(f, "a job, {state}")
    }
}

impl<K: Kernel> JobHandle<'_, '_, K> {
    /// True if the job has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.task.done.load(Ordering::Acquire)
    }

    /// Waits for the job and gives its result.
    ///
    /// # Errors
    /// As [`Core::run`].
    pub fn join(self) -> Result<K::Out, KernelError> {
        loop {
            let done = || self.is_done().then_some(());
            self.waiter.wait(&self.task.ended, None, done);
            if let Some(result) = lock(&self.task.result).take() {
                return result;
            }
        }
    }
}

/// A job, shared by its engine and its handle.
struct Task<'s, K: Kernel> {
    /// Taken by the engine.
    args: Mutex<Option<K::Args<'s>>>,
    /// Set by the engine, taken by the handle.
    result: Mutex<Option<Result<K::Out, KernelError>>>,
    done: AtomicBool,
    ended: EventCount,
}

impl<'s, K: Kernel> Job for Task<'s, K>
where
    K::Args<'s>: Send,
{
    fn run_on(&self, core: &mut Core) {
        if let Some(args) = lock(&self.args).take() {
            let result = core.run::<K>(args);
            *lock(&self.result) = Some(result);
        }
        self.done.store(true, Ordering::Release);
        self.ended.notify_all();
    }
}

/// No code panics while it holds one of these locks; a poisoned one still guards whole values.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
