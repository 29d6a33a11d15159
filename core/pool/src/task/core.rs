//! A task as all but its own closure see it: its identity, its state, its waiters.
//!
//! Why `unsafe` is here: a task knows its scope by a pointer. With counted references, the spawner
//! and all hosts would write to one line for every task. Must stay true: the thread that takes a
//! task runs it or drops it, says that it has ended, and then counts it at its scope, once. Only
//! then may the scope that lent the closure its borrows return. So the scope exists until its task
//! is counted, and no thread reaches it later. Any thread.
#![allow(unsafe_code)]

use super::accounts::Accounts;
use super::bell::{HostSet, WaitPoint, bells};
use super::body::Body;
use super::fiber;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sched::TaskId;
use sidecore_sync::Changed;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Urgency of a task or a call.
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
pub(super) struct TaskCore<B: ?Sized = dyn Body> {
    pub(super) id: TaskId,
    pub(super) priority: Priority,
    /// [`TAKEN`] and the others.
    state: AtomicU8,
    cancelled: AtomicBool,
    /// The bell of the host that it was started on; `u32::MAX` before.
    bell: AtomicU32,
    pub(super) ended: WaitPoint,
    /// Alive until this task is counted there.
    scope: *const ScopeCore,
    /// The bells of all hosts that its scope's tasks may be on.
    hosts: HostSet,
    body: B,
}

// SAFETY: all but the pointer is `Send` and `Sync` anyway; the pointer's target is, too, and
// outlives every use of it (see the module's head).
unsafe impl<B: ?Sized + Send + Sync> Send for TaskCore<B> {}
// SAFETY: as above.
unsafe impl<B: ?Sized + Send + Sync> Sync for TaskCore<B> {}

/// State that the tasks of one scope share.
pub(super) struct ScopeCore {
    /// Tasks that were spawned. On a line of its own: spawners write to it.
    spawned: CachePadded<AtomicUsize>,
    /// Tasks that have ended. Hosts write to it.
    counted: CachePadded<AtomicUsize>,
    /// True if a thread or task waits for the last one.
    awaited: AtomicBool,
    cancelled: AtomicBool,
    ended: WaitPoint,
    /// Tasks that panicked and were not joined, and their messages.
    panicked: Mutex<Vec<(TaskId, String)>>,
    /// In a scope that a task opened: its tasks, so that the opener can run those not yet begun.
    tasks: Mutex<Vec<Arc<TaskCore>>>,
    pool: Arc<Accounts>,
    /// The task that opened this scope, where a task did.
    parent: Option<Arc<TaskCore>>,
    /// The bells of all hosts that its tasks may be on.
    hosts: HostSet,
}

/// Flag: a host runs it, has run it, or its work was dropped.
const TAKEN: u8 = 1;
/// Flag: it has ended, and its result is there.
const ENDED: u8 = 2;
/// Flag: its join handle was dropped, so its result is not needed.
const UNASKED: u8 = 4;
/// Flag: there is, or was, a waiter for its end.
const AWAITED: u8 = 8;

impl<B> TaskCore<B> {
    pub(super) fn new(id: TaskId, priority: Priority, scope: &Arc<ScopeCore>, body: B) -> Self {
        // Relaxed: the owner of the scope or one of its tasks spawns, so the scope cannot look
        // finished now.
        scope.spawned.fetch_add(1, Ordering::Relaxed);
        Self {
            id,
            priority,
            state: AtomicU8::new(0),
            cancelled: AtomicBool::new(false),
            bell: AtomicU32::new(u32::MAX),
            ended: WaitPoint::new(),
            scope: Arc::as_ptr(scope),
            hosts: scope.hosts,
            body,
        }
    }
}

impl TaskCore {
    pub(super) fn is_urgent(&self) -> bool {
        self.priority == Priority::Urgent
    }

    /// Its scope. Only for the thread that has taken the task and not counted it, or runs inside of
    /// it.
    pub(super) fn scope(&self) -> &ScopeCore {
        // SAFETY: the scope waits until this task is counted, which its taker has still to do.
        unsafe { &*self.scope }
    }

    /// Keeps its scope's memory beyond the moment when this task is counted. As [`Self::scope`].
    pub(super) fn hold_scope(&self) -> Arc<ScopeCore> {
        // SAFETY: the pointer came from an `Arc` that its opener still holds, as in `scope`.
        unsafe {
            Arc::increment_strong_count(self.scope);
            Arc::from_raw(self.scope)
        }
    }

    /// True if it is one of this scope's.
    pub(super) fn is_of(&self, scope: &Arc<ScopeCore>) -> bool {
        std::ptr::eq(self.scope, Arc::as_ptr(scope))
    }

    /// True if this task, its scope or a task above it was cancelled. As [`Self::scope`].
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed) || self.scope().is_cancelled()
    }

    pub(super) fn has_ended(&self) -> bool {
        // Acquire: partner of the AcqRel in `run`; its result is there.
        self.state.load(Ordering::Acquire) & ENDED != 0
    }

    /// Takes the task to run it on the host of this bell. False where it was taken before. A task
    /// that was cancelled meanwhile ends here.
    pub(super) fn begin(&self, bell: usize) -> bool {
        if !self.take() {
            return false;
        }
        if self.is_cancelled() {
            self.discard();
            return false;
        }
        self.bell.store(bell as u32, Ordering::Relaxed);
        true
    }

    /// Runs the task, which the caller has begun, on this stack. It has then ended, but is not yet
    /// counted at its scope. Never unwinds.
    pub(super) fn run(&self) {
        // SAFETY: the caller has taken it.
        if let Some(message) = unsafe { self.body.run() } {
            self.scope().add_panic(self.id, message);
        }
        self.finish();
    }

    /// Runs the task on the calling fiber, unless it has begun. Does nothing on a plain thread.
    pub(super) fn run_here(self: &Arc<Self>) {
        if let Some(bell) = fiber::current_bell()
            && self.begin(bell)
        {
            let scope = self.hold_scope();
            scope.pool.counts.begun.fetch_add(1, Ordering::Relaxed);
            fiber::run_as(Arc::clone(self), || self.run());
            scope.count(1);
        }
    }

    /// Cancels it: it never begins, or finds out when it next looks.
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        // One of two takes it: this, or the host that begins it and then sees the flag.
        if self.take() {
            self.discard();
        } else {
            // Those of scopes that it opened may wait on other hosts.
            ring_hosts(self.hosts);
        }
    }

    /// Wakes its host to check the condition that it waits for.
    pub(super) fn wake(&self) {
        let changed = Changed::publish();
        let bell = self.bell.load(Ordering::Relaxed);
        if bell != u32::MAX {
            bells().bell(bell.to_usize()).notify_after(changed);
        }
    }

    /// Announces a waiter for the end. To be called before the last look.
    pub(super) fn expect_end(&self) {
        // A read-modify-write: either `finish` comes later and sees this, or it came before and is
        // seen at the next look.
        self.state.fetch_or(AWAITED, Ordering::AcqRel);
    }

    /// The handle moves the result out of an ended task: see [`Body::take_result`].
    ///
    /// # Safety
    /// As there; and only the task's join handle, before it is dropped.
    pub(super) unsafe fn take_result(&self, target: *mut ()) {
        if self.has_ended() {
            // SAFETY: the caller's promise; ended, the body is the handle's.
            unsafe { self.body.take_result(target) };
        }
    }

    /// Notes that the join handle is dropped: the result will not be taken.
    pub(super) fn disown(&self) {
        // AcqRel: partner of the one in `finish`. The later of the two clears.
        if self.state.fetch_or(UNASKED, Ordering::AcqRel) & ENDED != 0 {
            // SAFETY: ended, the body is the handle's.
            unsafe { self.body.clear() };
        }
    }

    fn take(&self) -> bool {
        // A look first: a joiner and the queues meet most tasks after they were taken.
        if self.state.load(Ordering::Relaxed) & TAKEN != 0 {
            return false;
        }
        // AcqRel: the spawner's writes are visible; partner of itself.
        self.state.fetch_or(TAKEN, Ordering::AcqRel) & TAKEN == 0
    }

    /// Ends a task that was taken and not run.
    fn discard(&self) {
        // SAFETY: the caller has taken it.
        unsafe { self.body.clear() };
        let scope = self.hold_scope();
        scope.pool.counts.begun.fetch_add(1, Ordering::Relaxed);
        self.finish();
        scope.count(1);
    }

    fn finish(&self) {
        // AcqRel: partner of the Acquire in `has_ended` and of the one in `disown`.
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            if state & UNASKED != 0 {
                // SAFETY: the handle is gone, and this thread has taken the task. Cleared before
                // the end is published, so everything that the result borrows still exists.
                unsafe { self.body.clear() };
            }
            match self.state.compare_exchange(
                state,
                state | ENDED,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        // Most tasks are not joined while they run, and a notification costs a fence.
        if state & AWAITED != 0 {
            self.ended.notify();
        }
    }
}

impl ScopeCore {
    pub(super) fn new(pool: Arc<Accounts>, hosts: HostSet, parent: Option<Arc<TaskCore>>) -> Self {
        Self {
            spawned: CachePadded::default(),
            counted: CachePadded::default(),
            awaited: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            ended: WaitPoint::new(),
            panicked: Mutex::new(Vec::new()),
            tasks: Mutex::new(Vec::new()),
            pool,
            hosts,
            parent,
        }
    }

    /// Counts tasks of this scope that have ended. Afterwards they and it have nothing to do with
    /// one another. The caller holds this scope by itself, because its opener may go on at once.
    pub(super) fn count(self: &Arc<Self>, ended: usize) {
        let counts = &self.pool.counts;
        counts.ended.fetch_add(ended.to_u64(), Ordering::Relaxed);
        // AcqRel: partner of the Acquire in `is_done`; all that tasks did is seen.
        self.counted.fetch_add(ended, Ordering::AcqRel);
        // Relaxed: the fence of `changed` partners the waiter's, which stands between its store to
        // `awaited` and its last look.
        let changed = Changed::publish();
        if self.awaited.load(Ordering::Relaxed) && self.is_done() {
            self.ended.notify_after(changed, u32::MAX);
        }
    }

    pub(super) fn is_done(&self) -> bool {
        // In this order: tasks that were spawned by one that is counted are then seen as spawned.
        // Acquire: partner of the AcqRel in `count`.
        let counted = self.counted.load(Ordering::Acquire);
        counted == self.spawned.load(Ordering::Relaxed)
    }

    /// Keeps a task of a scope that a task opened.
    pub(super) fn keep(&self, task: &Arc<TaskCore>) {
        if self.parent.is_some() {
            self.tasks.lock().push(Arc::clone(task));
        }
    }

    /// Counts tasks that hosts have begun.
    pub(super) fn count_begun(&self, begun: u64) {
        self.pool.counts.begun.fetch_add(begun, Ordering::Relaxed);
    }

    /// Waits until all tasks have ended. A task runs those not yet begun itself: they might wait
    /// for ever for a place among the live ones, which this task holds.
    pub(super) fn wait_until_done(&self) {
        loop {
            let Some(task) = self.tasks.lock().pop() else {
                break;
            };
            task.run_here();
        }
        // Partner: the load in `count`; the fence between this and the last look is the waiter's.
        self.awaited.store(true, Ordering::Relaxed);
        let _aside = fiber::step_aside();
        self.ended
            .wait(super::THREAD_WAIT, || self.is_done().then_some(()));
    }

    /// Records the message of a task's panic.
    fn add_panic(&self, task: TaskId, message: String) {
        self.panicked.lock().push((task, message));
    }

    /// Drops the recorded panic of a task whose joiner receives it.
    pub(super) fn forgive(&self, task: TaskId) {
        self.panicked.lock().retain(|&(other, _)| other != task);
    }

    /// Message of the first task that panicked and was not joined.
    pub(super) fn take_panic(&self) -> Option<String> {
        let mut panicked = std::mem::take(&mut *self.panicked.lock());
        (!panicked.is_empty()).then(|| panicked.swap_remove(0).1)
    }

    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        ring_hosts(self.hosts);
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
            || self.parent.as_ref().is_some_and(|task| task.is_cancelled())
    }
}

fn ring_hosts(hosts: HostSet) {
    bells().notify_after(Changed::publish(), hosts);
}

/// A number that no task or thread had before.
pub(super) fn new_id() -> TaskId {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    TaskId(NEXT.fetch_add(1, Ordering::Relaxed))
}
