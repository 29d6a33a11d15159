//! Tasks: any number of streams of ordinary synchronous code, run as fibers by a few host threads.
//!
//! [`Pool::tasks`](crate::Pool::tasks) opens a [`Scope`]. Tasks spawned in it may borrow from
//! around it, and the call returns when all of them have ended. Wherever a task would wait it is
//! parked and its host runs another one: for an engine, for the last helpers of its loop, for
//! another task, for a moment in time. Unmodified code works inside tasks, with one rule: *do not
//! hold a lock across an off-load or another wait if a task of the same host may block on that
//! lock*. Wait for it with [`wait_until`] and a `try_lock` instead.
//!
//! Started tasks stay on the host thread that started them. A task that has not begun is taken by
//! whichever host is free, or by the task that joins it. `README.md` next to this file describes
//! the protocol.
//!
//! ```
//! use sidecore_offload::{Pool, PoolConfig, TaskOptions, TasksOptions};
//!
//! let pool = Pool::start(PoolConfig { engines: 2, ..PoolConfig::default() })?;
//! let words = ["one", "two", "three"];
//! let lengths = pool.tasks(TasksOptions::default(), |scope| {
//!     let handles = words.map(|word| {
//!         let pool = &pool;
//!         scope.spawn(TaskOptions::default(), move |_task| {
//!             // Serial code here; this goes to an engine, and other tasks run meanwhile.
//!             pool.call(|_core| word.len())
//!         })
//!     });
//!     handles.map(|handle| handle.join().unwrap_or(0))
//! })?;
//! assert_eq!(lengths, [3, 3, 5]);
//! # Ok::<(), sidecore_offload::OffloadError>(())
//! ```

mod accounts;
mod bell;
mod body;
mod core;
mod fiber;
mod host;
mod limiter;
mod queues;
mod scope;

pub(crate) use accounts::Accounts;
pub(crate) use bell::WaitPoint;
pub use core::Priority;
#[cfg(all(test, loom))]
pub(crate) use fiber::on_model_host;
pub(crate) use fiber::{await_admission, count_drives, current_bell, is_attentive, want_engine};
pub(crate) use scope::tasks;
pub use scope::{JoinHandle, Scope, Task, TaskOptions, TasksOptions};

use crate::error::Cancelled;
use sidecore_sched::TaskId;
use sidecore_sync::WaitOptions;
use sidecore_sys::clock;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

/// Task that this is called in: [`None`] on a plain thread.
#[must_use]
pub fn current() -> Option<TaskRef> {
    fiber::current_task().map(TaskRef)
}

/// True if the task that this is called in was cancelled, or its scope, or a task above it. False
/// on a plain thread.
#[must_use]
pub fn is_cancelled() -> bool {
    fiber::ask_current(core::TaskCore::is_cancelled).unwrap_or(false)
}

/// Lets this host's other tasks run, if any can; a plain thread yields its core.
pub fn yield_now() {
    if fiber::current_bell().is_some() {
        fiber::give_way();
    } else {
        std::thread::yield_now();
    }
}

/// Parks this task until `condition` is true. The host checks it in every round, and while it
/// sleeps after 50 us, 100 us and so on up to every millisecond; [`TaskRef::wake`] has it check at
/// once. `condition` runs on the host's own stack: it must be quick and must not wait. A plain
/// thread checks in the same way.
///
/// # Errors
/// [`Cancelled`] where the task was cancelled before the condition was true.
pub fn wait_until(mut condition: impl FnMut() -> bool) -> Result<(), Cancelled> {
    if condition() {
        return Ok(());
    }
    if fiber::current_bell().is_none() {
        let mut pause_us = 0;
        while !condition() {
            pause(&mut pause_us);
        }
        return Ok(());
    }
    let task = fiber::current_task();
    let is_cancelled = || task.as_ref().is_some_and(|task| task.is_cancelled());
    let _aside = fiber::step_aside();
    loop {
        if condition() {
            return Ok(());
        }
        if is_cancelled() {
            return Err(Cancelled);
        }
        fiber::park(&mut || condition() || is_cancelled(), u64::MAX, true);
    }
}

/// Waits until `condition` gives a value, as [`wait_until`] does, but is not ended by a cancel: for
/// locks and the like, that others will free.
///
/// ```
/// # use std::sync::Mutex;
/// # let shared = Mutex::new(1);
/// use sidecore_offload::task;
///
/// let guard = task::wait_for(|| shared.try_lock().ok());
/// # assert_eq!(*guard, 1);
/// ```
pub fn wait_for<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    let mut pause_us = 0;
    let mut value = condition();
    if let Some(value) = value {
        return value;
    }
    let _aside = fiber::step_aside();
    loop {
        if let Some(value) = value {
            return value;
        }
        if fiber::current_bell().is_some() {
            let mut look = || {
                value = condition();
                value.is_some()
            };
            fiber::park(&mut look, u64::MAX, true);
            if value.is_none() {
                value = condition();
            }
        } else {
            value = condition();
            pause(&mut pause_us);
        }
    }
}

/// True if this is called in a task, so that a wait parks it and its host runs others.
#[must_use]
pub fn is_task() -> bool {
    fiber::current_bell().is_some()
}

/// Between two looks of a plain thread: soon at first, then every millisecond.
fn pause(pause_us: &mut u64) {
    if *pause_us < 50 {
        std::thread::yield_now();
        *pause_us += 1;
    } else {
        std::thread::sleep(Duration::from_micros(*pause_us));
        *pause_us = (*pause_us * 2).min(1_000);
    }
}

/// Parks this task until `due_ns` on the clock of [`now_ns`]; a plain thread sleeps.
///
/// # Errors
/// [`Cancelled`] where the task was cancelled before.
pub fn sleep_until(due_ns: u64) -> Result<(), Cancelled> {
    if fiber::current_bell().is_none() {
        let left_ns = due_ns.saturating_sub(clock::now_ns());
        if left_ns > 0 {
            std::thread::sleep(Duration::from_nanos(left_ns));
        }
        return Ok(());
    }
    let _aside = fiber::step_aside();
    while clock::now_ns() < due_ns {
        if is_cancelled() {
            return Err(Cancelled);
        }
        let task = fiber::current_task();
        fiber::park(
            &mut || task.as_ref().is_some_and(|task| task.is_cancelled()),
            due_ns,
            false,
        );
    }
    Ok(())
}

/// The clock of [`sleep_until`]: nanoseconds since some fixed moment.
#[must_use]
pub fn now_ns() -> u64 {
    clock::now_ns()
}

/// Runs `work` with its calls of pools counted as `priority`, on a task or a plain thread.
pub fn with_priority<R>(priority: Priority, work: impl FnOnce() -> R) -> R {
    struct Restore(Option<Priority>);
    impl Drop for Restore {
        fn drop(&mut self) {
            PRIORITY.set(self.0);
        }
    }
    let _restore = Restore(PRIORITY.replace(Some(priority)));
    work()
}

#[cfg(all(test, not(loom)))]
mod tests;

thread_local! {
    /// Priority that `with_priority` set on this thread.
    static PRIORITY: Cell<Option<Priority>> = const { Cell::new(None) };
    /// The number by which a policy knows this thread, where it is no task.
    static THREAD_ID: Cell<Option<TaskId>> = const { Cell::new(None) };
}

/// Parks this task until `condition` is true or `due_ns` has come; may return early. The
/// condition's cause must be announced to this host (see [`WaitPoint`]). Must be called in a task.
pub(crate) fn park_until(due_ns: u64, mut condition: impl FnMut() -> bool) {
    let task = fiber::current_task();
    let is_cancelled = || task.as_ref().is_some_and(|task| task.is_cancelled());
    fiber::park(&mut || condition() || is_cancelled(), due_ns, false);
}

/// The priority of calls made here.
pub(crate) fn priority() -> Priority {
    fiber::ask_current(|task| task.priority)
        .or_else(|| PRIORITY.get())
        .unwrap_or_default()
}

/// Id under which the policy knows the caller: the task's, or the thread's.
pub(crate) fn id() -> TaskId {
    fiber::ask_current(|task| task.id).unwrap_or_else(|| {
        THREAD_ID.get().unwrap_or_else(|| {
            let id = core::new_id();
            THREAD_ID.set(Some(id));
            id
        })
    })
}

/// Reference to a task, for waking or cancelling it from any thread.
#[derive(Clone)]
pub struct TaskRef(Arc<core::TaskCore>);

impl TaskRef {
    /// The number by which policies know it.
    #[must_use]
    pub fn id(&self) -> TaskId {
        self.0.id
    }

    /// Has its host check the condition that it waits for ([`wait_until`]) at once. Never blocks;
    /// costs a fence, and a system call where the host sleeps.
    pub fn wake(&self) {
        self.0.wake();
    }

    /// If it has not begun it never will; else it finds out: see [`is_cancelled`].
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// True if it has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.has_ended()
    }
}

impl std::fmt::Debug for TaskRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "task {}", self.0.id.0)
    }
}

/// Policy of a plain thread's wait for tasks: they are long, so it soon sleeps.
const THREAD_WAIT: WaitOptions = WaitOptions {
    spins: 100,
    grace: Duration::ZERO,
};
