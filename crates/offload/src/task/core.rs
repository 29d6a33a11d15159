//! What a task is to everyone but its own closure: its identity, its state, who waits for it.
//!
//! Must stay true: whoever takes a task's work out runs it or drops it, then calls
//! [`TaskCore::end`], once; only then may the scope that lent the closure its borrows return.
//! Any thread.

use super::bell::{WaitPoint, bells};
use super::fiber::{self, Work};
use crate::shared::Shared;
use parking_lot::Mutex;
use sidecore_sched::TaskId;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// How much a task or a call minds waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Priority {
    /// Goes before others, for hosts and for engines, though the others are never held up for good:
    /// every so often one of them goes first.
    Urgent,
    /// As they come.
    #[default]
    Normal,
}

/// A task, begun or not.
pub(super) struct TaskCore {
    pub(super) id: TaskId,
    pub(super) priority: Priority,
    state: AtomicU8,
    cancelled: AtomicBool,
    /// The bell of the host that it was started on; `u32::MAX` before.
    bell: AtomicU32,
    /// What it will run, until it begins.
    work: Mutex<Option<Work>>,
    pub(super) ended: WaitPoint,
    pub(super) scope: Arc<ScopeCore>,
}

/// What the tasks of one scope share.
pub(super) struct ScopeCore {
    /// Tasks that were spawned and have not ended.
    pending: AtomicUsize,
    cancelled: AtomicBool,
    ended: WaitPoint,
    /// Tasks that panicked and were not joined, and what they said.
    panicked: Mutex<Vec<(TaskId, String)>>,
    /// In a scope that a task opened: its tasks, for the opener to run those that nobody has begun.
    tasks: Mutex<Vec<Arc<TaskCore>>>,
    pool: Arc<Shared>,
    /// The task that opened this scope, where a task did.
    parent: Option<Arc<TaskCore>>,
    /// The bells of all hosts that its tasks may be on.
    hosts: u64,
}

const QUEUED: u8 = 0;
const BEGUN: u8 = 1;
const ENDED: u8 = 2;

impl TaskCore {
    pub(super) fn new(priority: Priority, scope: Arc<ScopeCore>, work: Work) -> Self {
        // Relaxed: the owner of the scope spawns, or a task of it; nobody can see none left.
        scope.pending.fetch_add(1, Ordering::Relaxed);
        Self {
            id: new_id(),
            priority,
            state: AtomicU8::new(QUEUED),
            cancelled: AtomicBool::new(false),
            bell: AtomicU32::new(u32::MAX),
            work: Mutex::new(Some(work)),
            ended: WaitPoint::new(),
            scope,
        }
    }

    pub(super) fn is_urgent(&self) -> bool {
        self.priority == Priority::Urgent
    }

    /// Whether this task, its scope or a task above it was cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed) || self.scope.is_cancelled()
    }

    pub(super) fn has_ended(&self) -> bool {
        // Acquire: partner of the Release in `end`; its result is there.
        self.state.load(Ordering::Acquire) == ENDED
    }

    /// Takes the work to run it. `None` where it was taken before. Work that was cancelled meanwhile
    /// is dropped, and the task ends.
    pub(super) fn begin(&self, bell: usize) -> Option<Work> {
        let work = self.take_work()?;
        if self.is_cancelled() {
            self.discard(work);
            return None;
        }
        self.bell.store(bell as u32, Ordering::Relaxed);
        self.state.store(BEGUN, Ordering::Relaxed);
        Some(work)
    }

    /// Runs the task on the fiber that this is called on, if nobody has begun it. Does nothing on a
    /// plain thread.
    pub(super) fn run_here(self: &Arc<Self>) {
        if let Some(bell) = fiber::current_bell()
            && let Some(work) = self.begin(bell)
        {
            fiber::run_as(Arc::clone(self), work);
            self.end();
        }
    }

    /// After the work was run or dropped.
    pub(super) fn end(&self) {
        // Release: partner of the Acquire in `has_ended`.
        self.state.store(ENDED, Ordering::Release);
        self.ended.notify();
        let counts = &self.scope.pool.tasks;
        counts.ended.fetch_add(1, Ordering::Relaxed);
        // AcqRel: partner of the Acquire in `ScopeCore::is_done`; all that tasks did is seen.
        if self.scope.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.scope.ended.notify();
        }
    }

    /// Has it never begin, or have it find out.
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        match self.take_work() {
            Some(work) => self.discard(work),
            // Those of scopes that it opened may wait on other hosts.
            None => self.scope.ring_hosts(),
        }
    }

    /// Has its host look at what it waits for.
    pub(super) fn wake(&self) {
        // Partner: the fence in `Bell::sleep`.
        fence(Ordering::SeqCst);
        let bell = self.bell.load(Ordering::Relaxed);
        if bell != u32::MAX {
            bells().bell(bell as usize).ring_after_fence();
        }
    }

    fn take_work(&self) -> Option<Work> {
        let work = self.work.lock().take()?;
        let queued = &self.scope.pool.tasks.queued;
        queued.fetch_sub(1, Ordering::Relaxed);
        Some(work)
    }

    fn discard(&self, work: Work) {
        // What the closure captured may panic when dropped: that is not the canceller's fault.
        drop(catch_unwind(AssertUnwindSafe(|| drop(work))));
        self.end();
    }
}

impl ScopeCore {
    pub(super) fn new(pool: Arc<Shared>, hosts: u64, parent: Option<Arc<TaskCore>>) -> Self {
        Self {
            pending: AtomicUsize::new(0),
            cancelled: AtomicBool::new(false),
            ended: WaitPoint::new(),
            panicked: Mutex::new(Vec::new()),
            tasks: Mutex::new(Vec::new()),
            pool,
            hosts,
            parent,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        // Acquire: partner of the AcqRel in `TaskCore::end`.
        self.pending.load(Ordering::Acquire) == 0
    }

    /// Keeps a task of a scope that a task opened.
    pub(super) fn keep(&self, task: &Arc<TaskCore>) {
        if self.parent.is_some() {
            self.tasks.lock().push(Arc::clone(task));
        }
    }

    /// Waits until all tasks have ended. A task runs those that nobody has begun: they might wait
    /// for ever for a place among the live ones, which this one has.
    pub(super) fn wait_until_done(&self) {
        loop {
            let Some(task) = self.tasks.lock().pop() else {
                break;
            };
            task.run_here();
        }
        self.ended
            .wait(super::THREAD_WAIT, || self.is_done().then_some(()));
    }

    /// Notes what a task's panic said.
    pub(super) fn add_panic(&self, task: TaskId, message: String) {
        self.panicked.lock().push((task, message));
    }

    /// Forgets the panic of a task whose joiner is told of it.
    pub(super) fn forgive(&self, task: TaskId) {
        self.panicked.lock().retain(|&(other, _)| other != task);
    }

    /// What the first task said that panicked and was not joined.
    pub(super) fn take_panic(&self) -> Option<String> {
        let mut panicked = std::mem::take(&mut *self.panicked.lock());
        (!panicked.is_empty()).then(|| panicked.swap_remove(0).1)
    }

    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        self.ring_hosts();
    }

    fn ring_hosts(&self) {
        // Partner: the fence in `Bell::sleep`.
        fence(Ordering::SeqCst);
        bells().ring_after_fence(self.hosts);
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
            || self.parent.as_ref().is_some_and(|task| task.is_cancelled())
    }
}

/// A number that no task or thread had before.
pub(super) fn new_id() -> TaskId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    TaskId(NEXT.fetch_add(1, Ordering::Relaxed))
}
