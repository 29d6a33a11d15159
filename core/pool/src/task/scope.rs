//! Scopes: tasks that borrow from around them, all of them ended when the scope is.
//!
//! Why `unsafe` is here: a task lies in a queue that knows nothing of its closure's borrows. Must
//! stay true: `Pool::tasks` returns or unwinds only when every task spawned in its scope was
//! counted as ended, that is when each closure was run or dropped. The `'scope` lifetime is
//! invariant, so that nothing shorter can be smuggled in. Source: the shape of
//! `std::thread::scope`.
#![allow(unsafe_code)]

use super::accounts::Accounts;
use super::bell::{HOSTS_MAX, bells, host_set};
use super::body::{Body, Closure};
use super::core::{Priority, ScopeCore, TaskCore};
use super::fiber;
use super::host::{Group, GroupOptions, run_host};
use crate::error::OffloadError;
use sidecore_sched::TaskId;
use sidecore_sys::cpu;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Options of [`Pool::tasks`](crate::Pool::tasks).
#[derive(Debug, Clone)]
pub struct TasksOptions {
    /// Host threads; 0 for one on each of `cpus`.
    pub hosts: usize,
    /// The cores that hosts are put on in turn; empty for all that this thread may use.
    pub cpus: Vec<usize>,
    /// True if hosts are pinned, each to its core.
    pub pin: bool,
    /// Bytes of each task's stack, rounded up to whole pages. Below it lies a guard page: a task
    /// that overflows its stack ends the process rather than write into another's.
    pub stack_bytes: usize,
    /// The most tasks that are live at once; further ones wait as closures. `None`: as many as the
    /// pool's policy says.
    pub live_max: Option<usize>,
    /// Time that a host with nothing to do lets other threads run before it sleeps.
    pub grace: Duration,
}

impl Default for TasksOptions {
    fn default() -> Self {
        Self {
            hosts: 0,
            cpus: Vec::new(),
            pin: true,
            stack_bytes: 256 << 10,
            live_max: None,
            grace: Duration::from_micros(120),
        }
    }
}

/// Options of one task.
#[derive(Debug, Clone, Copy, Default)]
pub struct TaskOptions {
    /// True if it goes before others.
    pub priority: Priority,
}

impl TaskOptions {
    /// Options for latency-bound work.
    #[must_use]
    pub fn urgent() -> Self {
        Self {
            priority: Priority::Urgent,
        }
    }
}

/// A task's view of itself: passed to its closure.
#[derive(Debug)]
pub struct Task {
    id: TaskId,
}

impl Task {
    /// The number by which policies know it.
    #[must_use]
    pub fn id(&self) -> TaskId {
        self.id
    }

    /// True if it was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        super::is_cancelled()
    }
}

/// Scope in which tasks are spawned. Shared freely by them.
pub struct Scope<'scope, 'env: 'scope> {
    group: Arc<Group>,
    core: Arc<ScopeCore>,
    scope: PhantomData<&'scope mut &'scope ()>,
    env: PhantomData<&'env mut &'env ()>,
}

/// Handle of a task's result. Dropped, the task goes on.
pub struct JoinHandle<'scope, T> {
    task: Arc<TaskCore>,
    /// The task's body has it.
    result: PhantomData<T>,
    scope: PhantomData<&'scope ()>,
}

/// [`Pool::tasks`](crate::Pool::tasks), of the pool with these accounts.
pub(crate) fn tasks<'env, R>(
    pool: &Arc<Accounts>,
    options: TasksOptions,
    body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
) -> Result<R, OffloadError> {
    if let Some(host) = fiber::current_host() {
        return run_scope(&host.group, body);
    }
    let cpus = match options.cpus.is_empty() {
        true => cpu::allowed().unwrap_or_default(),
        false => options.cpus.clone(),
    };
    let hosts = match options.hosts {
        0 => cpus.len().clamp(1, HOSTS_MAX),
        hosts => hosts,
    };
    let (group, own_queues) = Group::new(
        Arc::clone(pool),
        GroupOptions {
            hosts: take_bells(hosts)?,
            live_max: options.live_max.map(|live| live.max(1)),
            stack_bytes: options.stack_bytes.max(STACK_BYTES_MIN),
            grace: options.grace,
        },
    );
    let group = Arc::new(group);
    let started = AssertUnwindSafe(std::thread::scope(|threads| {
        let mut spare = group.bells().to_vec();
        for ((host, &bell), own_queue) in group.bells().iter().enumerate().zip(own_queues) {
            let cpu = match options.pin {
                true => cpus.get(host % cpus.len().max(1)).copied(),
                false => None,
            };
            let group = &group;
            let thread = std::thread::Builder::new()
                .name(format!("host-{host}"))
                .spawn_scoped(threads, move || run_host(group, own_queue, bell, cpu));
            if let Err(source) = thread {
                spare.drain(..host);
                spare.iter().for_each(|&bell| bells().give_back(bell));
                group.close();
                return Err(OffloadError::Host { host, source });
            }
        }
        // An unwind must not skip the close: the hosts would wait for it for ever.
        let result = catch_unwind(AssertUnwindSafe(|| run_scope(&group, body)));
        group.close();
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }));
    started.0
}

impl<'scope, 'env> Scope<'scope, 'env> {
    /// Spawns a task. It begins when a host is free and fewer tasks are live than may be, or when
    /// another task joins it. Never blocks.
    pub fn spawn<T, F>(&'scope self, options: TaskOptions, work: F) -> JoinHandle<'scope, T>
    where
        T: Send + 'scope,
        F: FnOnce(&Task) -> T + Send + 'scope,
    {
        let id = super::core::new_id();
        let body = Closure::new(move || work(&Task { id }));
        let task = TaskCore::new(id, options.priority, &self.core, body);
        let task: Arc<TaskCore<dyn Body + 'scope>> = Arc::new(task);
        // SAFETY: only the lifetime changes. `run_scope` waits until this task is counted, before
        // `'scope` ends; by then the closure was run or dropped, and the result too was dropped or
        // is the handle's, which has `'scope` itself. The body's own drop touches neither.
        let task =
            unsafe { std::mem::transmute::<Arc<TaskCore<dyn Body + 'scope>>, Arc<TaskCore>>(task) };
        self.core.keep(&task);
        self.group.spawn(Arc::clone(&task));
        JoinHandle {
            task,
            result: PhantomData,
            scope: PhantomData,
        }
    }

    /// Cancels all tasks of this scope, those spawned later too.
    pub fn cancel(&self) {
        self.core.cancel();
    }

    /// True if it was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.core.is_cancelled()
    }
}

impl<T> JoinHandle<'_, T> {
    /// Waits until the task has ended and returns its result. Called in a task, it runs a task that
    /// has not begun right here, so that joining never waits for a place among the live ones.
    ///
    /// # Errors
    /// [`OffloadError::TaskPanicked`]; [`OffloadError::Cancelled`] where it never began.
    pub fn join(self) -> Result<T, OffloadError> {
        if !self.task.has_ended() {
            self.task.run_here();
            self.task.expect_end();
            let ended = || self.task.has_ended().then_some(());
            let _aside = fiber::step_aside();
            self.task.ended.wait(super::THREAD_WAIT, ended);
        }
        let mut result: Option<Result<T, String>> = None;
        // SAFETY: this is the handle, and `T` is the result type of the task that it was made with.
        unsafe { self.task.take_result((&raw mut result).cast()) };
        match result {
            None => Err(OffloadError::Cancelled),
            Some(Ok(value)) => Ok(value),
            Some(Err(message)) => {
                // The join returns the panic; the scope need not report it.
                self.task.scope().forgive(self.task.id);
                Err(OffloadError::TaskPanicked { message })
            }
        }
    }

    /// If the task has not begun it never will; else it finds out at its next call of a pool, or
    /// when it asks.
    pub fn cancel(&self) {
        self.task.cancel();
    }

    /// True if the task has ended: then [`Self::join`] does not wait.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.task.has_ended()
    }

    /// Reference to the task, for waking or cancelling it.
    #[must_use]
    pub fn task(&self) -> super::TaskRef {
        super::TaskRef(Arc::clone(&self.task))
    }
}

impl std::fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a scope of tasks")
    }
}

impl<T> Drop for JoinHandle<'_, T> {
    fn drop(&mut self) {
        self.task.disown();
    }
}

impl<T> std::fmt::Debug for JoinHandle<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the handle of task {}", self.task.id.0)
    }
}

/// Runs `body` with a new scope and waits for its tasks, also when it panics.
fn run_scope<'env, R>(
    group: &Arc<Group>,
    body: impl for<'scope> FnOnce(&'scope Scope<'scope, 'env>) -> R,
) -> Result<R, OffloadError> {
    let scope = Scope {
        group: Arc::clone(group),
        core: Arc::new(ScopeCore::new(
            Arc::clone(&group.pool),
            group
                .bells()
                .iter()
                .fold(0, |set, &bell| set | host_set(bell)),
            fiber::current_task(),
        )),
        scope: PhantomData,
        env: PhantomData,
    };
    let result = catch_unwind(AssertUnwindSafe(|| body(&scope)));
    if result.is_err() {
        scope.cancel();
    }
    scope.core.wait_until_done();
    let panicked = scope.core.take_panic();
    match (result, panicked) {
        (Err(panic), _) => resume_unwind(panic),
        (Ok(_), Some(message)) => Err(OffloadError::TaskPanicked { message }),
        (Ok(result), None) => Ok(result),
    }
}

fn take_bells(hosts: usize) -> Result<Vec<usize>, OffloadError> {
    let taken: Vec<usize> = (0..hosts.min(HOSTS_MAX + 1))
        .map_while(|_| bells().take())
        .collect();
    if taken.len() == hosts && hosts > 0 {
        return Ok(taken);
    }
    taken.iter().for_each(|&bell| bells().give_back(bell));
    Err(OffloadError::HostCount {
        hosts,
        max: HOSTS_MAX,
    })
}

/// Least stack size: room for a panic's message.
const STACK_BYTES_MIN: usize = 32 << 10;
