//! Pieces of work as tasks on a pool's engines.
//!
//! A piece is a fiber; every loop of its likelihood is an off-load point, so the pool's policy
//! decides how many engines it gets. A fiber exists before its piece: it begins when the pool has a
//! place for one more task, reports that it is idle, and waits for the coordinator's order. So no
//! piece is queued here while another process is idle. When no pieces are left, the engines of
//! finished ones join the loops of the others.
//!
//! A search waits only for engines, so more searches than hosts gain nothing; and two on one host
//! would leave another host idle at the end. Hence there are at most as many as hosts, and a fiber
//! spawns the next one only when it has its order: while it waits, its host would take that one
//! too.
//!
//! ```text
//!   fiber ── Event::Wanted ──► coordinator's mailbox    one coordinator a run, on a thread,
//!   fiber ◄── Order::Work ──── Workers::deliver         perhaps in another process
//!   fiber ── Saved …, Finished ──►
//! ```
//!
//! Must stay true: an ordered piece is reported exactly once: finished, dropped or failed.
//! Called from: the coordinator's thread, which may block; a fiber only ever parks.

use super::AnalysisError;
use super::plan::{Outcome, Piece};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sidecore_offload::{
    OffloadError, Pool, Scope, TaskOptions, TasksOptions,
    task::{self, TaskRef},
};
use std::collections::{BTreeMap, VecDeque};
use std::ops::ControlFlow;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A procedure that does pieces.
pub trait Job: Sync {
    /// Does a piece, from its saved state or from its beginning. `None` where the watch broke it
    /// off. Called in a task.
    ///
    /// # Errors
    /// [`AnalysisError`]; a cancelled task ends with [`OffloadError::Cancelled`] in it.
    fn run(
        &self,
        piece: &Piece,
        saved: Option<&str>,
        watch: &mut dyn Watch,
    ) -> Result<Option<Vec<Outcome>>, AnalysisError>;
}

/// Observes a piece while it is done.
pub trait Watch {
    /// To be called wherever the piece could resume from a saved state; `state` makes it. Returns
    /// whether to continue. Quick unless the state is needed.
    fn step(&mut self, state: &mut dyn FnMut() -> String) -> ControlFlow<()>;
}

/// A message from workers to their coordinator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// One more task could work.
    Wanted,
    /// A piece's state.
    Saved(Piece, String),
    /// A piece is done.
    Finished(Piece, Vec<Outcome>),
    /// A piece was broken off, as ordered.
    Dropped(Piece),
    /// A piece cannot be done.
    Failed(Piece, String),
}

/// A message from the coordinator to workers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Order {
    /// Do this, from the state saved.
    Work(Piece, Option<String>),
    /// Break this off: it is not needed.
    Drop(Piece),
    /// Save all states and break off.
    Stop,
    /// No more orders will come; pieces in progress are not needed.
    Close,
}

/// The workers of one process, as their coordinator sees them.
pub struct Workers<'j> {
    job: &'j dyn Job,
    notify: &'j (dyn Fn(Event) + Sync),
    save_every: Duration,
    queue: Mutex<Queue>,
    stopped: AtomicBool,
    closed: AtomicBool,
}

#[derive(Default)]
struct Queue {
    orders: VecDeque<(Piece, Option<String>)>,
    idle: Vec<TaskRef>,
    working: BTreeMap<Piece, TaskRef>,
}

impl<'j> Workers<'j> {
    /// Runs workers on a pool's engines and the cores `cpus` for as long as `lead` runs, which is
    /// called on this thread and gives them orders; then closes them. `notify` is called from
    /// tasks: it must not block. A piece's state is saved every `save_every`. Blocks until all
    /// tasks have ended.
    ///
    /// # Errors
    /// [`OffloadError`] when tasks cannot be started or one panicked.
    pub fn run<R>(
        pool: &Pool,
        cpus: &[usize],
        job: &'j dyn Job,
        save_every: Duration,
        notify: &'j (dyn Fn(Event) + Sync),
        lead: impl FnOnce(&Self) -> R,
    ) -> Result<R, OffloadError> {
        let workers = Self {
            job,
            notify,
            save_every,
            queue: Mutex::new(Queue::default()),
            stopped: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        };
        // More hosts than cores would only take turns on them.
        let hosts = pool.engines().min(cpus.len());
        let options = TasksOptions {
            hosts,
            live_max: Some(pool.live_tasks().min(hosts)),
            cpus: cpus.to_vec(),
            stack_bytes: STACK_BYTES,
            ..TasksOptions::default()
        };
        pool.tasks(options, |scope| {
            spawn(scope, &workers);
            let result = lead(&workers);
            workers.deliver(Order::Close);
            scope.cancel();
            result
        })
    }

    /// Gives an order. Never blocks for long.
    pub fn deliver(&self, order: Order) {
        let mut queue = self.queue.lock();
        match order {
            Order::Work(piece, saved) => {
                queue.orders.push_back((piece, saved));
                // One is enough: a fiber takes one order.
                if let Some(task) = queue.idle.pop() {
                    task.wake();
                }
            }
            Order::Drop(piece) => {
                if let Some(task) = queue.working.get(&piece) {
                    task.cancel();
                }
            }
            // Partners: the looks of `work` and of `Minder::step`.
            Order::Stop => self.stopped.store(true, Ordering::Release),
            Order::Close => {
                self.closed.store(true, Ordering::Release);
                queue.idle.drain(..).for_each(|task| task.wake());
                queue.working.values().for_each(TaskRef::cancel);
            }
        }
    }

    /// Parks until there is an order that no other worker has taken; `None` once the workers are
    /// closed.
    fn await_order(&self) -> Option<(Piece, Option<String>)> {
        let Some(own) = task::current() else {
            return self.await_order_as_thread();
        };
        loop {
            {
                let mut queue = self.queue.lock();
                // It may still be listed from an earlier wait.
                queue.idle.retain(|task| task.id() != own.id());
                if self.is_closed() {
                    return None;
                }
                if let Some(order) = queue.orders.pop_front() {
                    queue.working.insert(order.0, own);
                    return Some(order);
                }
                queue.idle.push(own.clone());
            }
            let has_order = || {
                let queue = self.queue.try_lock();
                queue.is_some_and(|queue| !queue.orders.is_empty()) || self.is_closed()
            };
            task::wait_until(has_order).ok()?;
        }
    }

    /// The same on a host's own stack, where there was no memory for a fiber: it can neither be
    /// woken nor have its work cancelled.
    fn await_order_as_thread(&self) -> Option<(Piece, Option<String>)> {
        loop {
            if self.is_closed() {
                return None;
            }
            let order = self.queue.lock().orders.pop_front();
            if order.is_some() {
                return order;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn is_closed(&self) -> bool {
        // Partner: the store of `deliver`.
        self.closed.load(Ordering::Acquire)
    }

    /// A fiber's piece.
    fn work(&self, piece: Piece, saved: Option<&str>) {
        let mut minder = Minder {
            workers: self,
            piece,
            saved_ns: task::now_ns(),
        };
        let job = AssertUnwindSafe(|| self.job.run(&piece, saved, &mut minder));
        // The coordinator waits for an event of every piece: without one the run would never end.
        let result = panic::catch_unwind(job)
            .unwrap_or_else(|panic| Err(OffloadError::task_panicked(&*panic).into()));
        // Removed before the event, since the piece may be handed out again at once.
        self.queue.lock().working.remove(&piece);
        (self.notify)(match result {
            Ok(Some(outcomes)) => Event::Finished(piece, outcomes),
            Ok(None) => Event::Dropped(piece),
            Err(error) if is_cancel(&error) => Event::Dropped(piece),
            Err(error) => Event::Failed(piece, error.to_string()),
        });
    }
}

/// One more fiber.
fn spawn<'scope, 'env: 'scope>(scope: &'scope Scope<'scope, 'env>, workers: &'env Workers<'_>) {
    scope.spawn(TaskOptions::default(), move |_| {
        if workers.is_closed() {
            return;
        }
        (workers.notify)(Event::Wanted);
        if let Some((piece, saved)) = workers.await_order() {
            spawn(scope, workers);
            workers.work(piece, saved.as_deref());
        }
    });
}

fn is_cancel(error: &AnalysisError) -> bool {
    use crate::likelihood::LikelihoodError;
    matches!(
        error,
        AnalysisError::Offload(OffloadError::Cancelled)
            | AnalysisError::Likelihood(LikelihoodError::Offload(OffloadError::Cancelled))
    )
}

/// Looks after one piece.
struct Minder<'c, 'j> {
    workers: &'c Workers<'j>,
    piece: Piece,
    saved_ns: u64,
}

impl Watch for Minder<'_, '_> {
    fn step(&mut self, state: &mut dyn FnMut() -> String) -> ControlFlow<()> {
        // Partner: the store of `Workers::deliver`.
        let stopped = self.workers.stopped.load(Ordering::Acquire);
        let age_ns = task::now_ns().saturating_sub(self.saved_ns);
        if stopped || u128::from(age_ns) >= self.workers.save_every.as_nanos() {
            self.saved_ns = task::now_ns();
            (self.workers.notify)(Event::Saved(self.piece, state()));
        }
        match stopped || task::is_cancelled() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// Poll interval of a worker that cannot be woken.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// A search keeps its CLVs on the heap; this is room for its calls.
const STACK_BYTES: usize = 1 << 20;
