//! Jobs: asynchronous calls.
//!
//! - [`Job`] is the request, [`Outcome`] its result.
//! - `book`: the client's book of its open jobs; no thread, no clock.
//! - [`Ticket`]: a handle of one job, to wait for, to poll, or to await.
//! - `descriptor`: for epoll.
//! - `start_driver`: the thread that wakes futures and does jobs that no engine does, where no
//!   other thread does: an executor that polls a future knows nothing of engines.
//!
//! Why here: one thread with many open requests keeps several engines busy; one that waits for each
//! request keeps one half busy at best. Must stay true: a job's buffers belong to it until its
//! outcome. A waiter notices the daemon's end within 100 ms, and then does the job itself, as a
//! call does. Any thread; no lock is held while a kernel or a waker runs.

mod book;
mod descriptor;
mod job;
mod packet;
mod ticket;

pub use job::{JOB_SEGMENTS_MAX, Job, Outcome, Refused};
pub use ticket::Ticket;

use super::link::Link;
use super::{Client, ClientCounters, ClientError};
use crate::served::Registry;
use crate::shm::ring::wake_one;
use book::{Book, Key, Owner};
use descriptor::Descriptor;
use parking_lot::Mutex;
use sidecore_sync::EventCount;
use sidecore_sys::clock;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The most jobs of a client that are open at once: submitted and their outcome not taken.
pub const JOBS_MAX: usize = crate::shm::ring::JOBS_MAX;

/// Name of a job that was posted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobId(Key);

impl Client {
    /// Hands a job over and returns at once. Its outcome is its ticket's; dropping the ticket
    /// cancels it.
    ///
    /// If there is no daemon, or the arena has no room for the job's memory, the waiter does the
    /// job. Costs an allocation or two and less than a microsecond, a system call where an engine
    /// sleeps. Any thread.
    ///
    /// ```
    /// use sidecore_daemon::client::{Client, ClientOptions, Job};
    ///
    /// let client = Client::detached("/nonexistent.sock", ClientOptions::default());
    /// let sum = client.kernel("sum_f64")?;
    /// let mut values = client.buffer(80);
    /// values.values_mut::<f64>().fill(0.25);
    /// let ticket = client.submit(Job::new(sum).input(values).token(7))?;
    /// // Something else in between; then:
    /// let outcome = ticket.wait();
    /// assert_eq!(outcome.token, 7);
    /// assert_eq!(f64::from_bits(outcome.result?.words[0]), 2.5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Refused`], with the job: [`ClientError::Full`] where [`JOBS_MAX`] jobs are open,
    /// [`ClientError::Limit`] for a job above the limits.
    pub fn submit(&self, job: Job) -> Result<Ticket, Refused> {
        let token = job.mark();
        let key = self.jobs.enter(job, Owner::Ticket, self.link())?;
        Ok(Ticket::new(Arc::clone(&self.jobs), key, token))
    }

    /// The same for a job whose outcome [`Self::poll`] or [`Self::wait`] gives, in the order in
    /// which jobs end; its token says which it was.
    ///
    /// ```
    /// use sidecore_daemon::client::{Client, ClientOptions, Job};
    ///
    /// let client = Client::detached("/nonexistent.sock", ClientOptions::default());
    /// let empty = client.kernel("empty")?;
    /// for token in 0..10 {
    ///     client.post(Job::new(empty).token(token))?;
    /// }
    /// let mut seen = 0;
    /// while let Some(outcome) = client.wait(None) {
    ///     outcome.result?;
    ///     seen |= 1 << outcome.token;
    /// }
    /// assert_eq!(seen, 0b11_1111_1111);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn post(&self, job: Job) -> Result<JobId, Refused> {
        Ok(JobId(self.jobs.enter(job, Owner::Poll, self.link())?))
    }

    /// The outcome of a posted job that has ended, if there is one. Does not wait. But where the
    /// daemon has ended it does one of the open jobs, by the host version of its kernel.
    pub fn poll(&self) -> Option<Outcome> {
        self.jobs.poll()
    }

    /// Waits for the outcome of a posted job, at most for `timeout` (for ever if `None`). `None`
    /// where the time was up, and at once where no posted job is open.
    pub fn wait(&self, timeout: Option<Duration>) -> Option<Outcome> {
        self.jobs.wait(timeout)
    }

    /// Takes a posted job back, or cancels it at the running kernel
    /// ([`Memory::is_abandoned`](crate::served::Memory::is_abandoned)). True if it will not have
    /// been done; its outcome then is [`ClientError::Cancelled`], and comes at the next poll.
    pub fn cancel(&self, job: JobId) -> bool {
        self.jobs.cancel(job)
    }

    /// Number of jobs that are open: submitted and their outcome not taken.
    #[must_use]
    pub fn open_jobs(&self) -> usize {
        self.jobs.with(|book| book.open())
    }

    /// A descriptor for `poll`, `epoll` and their like, readable from when a job ends until
    /// [`Self::poll`] gives `None`. It stays the same when a daemon comes or ends, and is readable
    /// as soon as one has ended. A *stopped* daemon shows only when [`Self::poll`] is called, so a
    /// program that wants to notice waits for 100 ms at most. Asking for it makes completions cost
    /// a system call for each time that [`Self::poll`] gave `None`.
    ///
    /// # Errors
    /// [`ClientError::System`] where the system has no descriptor left.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>, ClientError> {
        self.jobs.fd()
    }
}

/// A client's jobs, and the threads that wait for them.
#[derive(Debug)]
pub(super) struct Queue {
    book: Mutex<Book>,
    /// Locked by the one thread that sleeps where engines wake it.
    sleeper: Mutex<()>,
    /// Place where all others sleep.
    changed: EventCount,
    registry: Registry,
    spin_cycles: u64,
    /// Time of the last check of the daemon by threads that only poll.
    looked: AtomicU64,
    descriptor: OnceLock<Arc<Descriptor>>,
}

impl Queue {
    pub(super) fn new(registry: Registry, spin_cycles: u64) -> Self {
        Self {
            book: Mutex::default(),
            sleeper: Mutex::new(()),
            changed: EventCount::new(),
            registry,
            spin_cycles,
            looked: AtomicU64::new(0),
            descriptor: OnceLock::new(),
        }
    }

    /// Adds the jobs to a client's counts.
    pub(super) fn count(&self, counters: &mut ClientCounters) {
        let of_jobs = self.with(|book| book.counters);
        counters.on_engines += of_jobs.on_engines;
        counters.on_host += of_jobs.on_host;
        counters.given_up += of_jobs.given_up;
    }

    /// Opens the book, up to date, and notifies waiters of the changes that `work` made.
    fn with<T>(&self, work: impl FnOnce(&mut Book) -> T) -> T {
        let mut book = self.book.lock();
        book.settle();
        let result = work(&mut book);
        // Behind the lock: what is woken may open the book at once.
        let woken = std::mem::take(&mut book.woken);
        let progress = std::mem::take(&mut book.progress);
        drop(book);
        if progress {
            self.changed.notify_all();
            if let Some(descriptor) = self.descriptor.get() {
                descriptor.ring();
            }
        }
        for waker in woken {
            waker.wake();
        }
        result
    }

    /// Posts a job to one attachment.
    pub(super) fn post(&self, job: Job, link: &Arc<Link>) -> Result<JobId, ClientError> {
        let entered = self.enter(job, Owner::Poll, Some(Arc::clone(link)));
        entered.map(JobId).map_err(|refused| refused.error)
    }

    pub(super) fn cancel(&self, job: JobId) -> bool {
        self.with(|book| book.cancel(job.0))
    }

    pub(super) fn fd(&self) -> Result<BorrowedFd<'_>, ClientError> {
        Ok(self.descriptor()?.as_fd())
    }

    fn enter(&self, job: Job, owner: Owner, link: Option<Arc<Link>>) -> Result<Key, Refused> {
        let refused = |error, job| Refused {
            error,
            job: Box::new(job),
        };
        if let Err(error) = job.checked() {
            return Err(refused(error, job));
        }
        let (entered, link, open) = self.with(|book| {
            let entered = book.enter(job, owner, link);
            (entered, book.link.clone(), book.at_daemon())
        });
        // A system call at most, and not under the lock.
        if let Some(link) = link {
            wake_engine(&link, open);
        }
        entered.map_err(|full| refused(full.0, full.1))
    }

    pub(super) fn poll(&self) -> Option<Outcome> {
        if let Some(outcome) = self.next() {
            return Some(outcome);
        }
        self.look_now_and_then();
        // Armed before the last look: what comes in between makes it readable.
        if let Some(descriptor) = self.descriptor.get() {
            descriptor.arm();
        }
        self.next()
    }

    /// The next outcome of a posted job; does the job if need be.
    fn next(&self) -> Option<Outcome> {
        loop {
            let (outcome, key) = self.with(|book| match book.take_ready() {
                None => (None, book.next_local()),
                outcome => (outcome, None),
            });
            match key {
                Some(key) => self.run(key),
                None => {
                    // Futures with a descriptor have no thread of their own that would do it.
                    if self.descriptor.get().is_some() {
                        self.run_awaited();
                    }
                    return outcome;
                }
            }
        }
    }

    pub(super) fn wait(&self, timeout: Option<Duration>) -> Option<Outcome> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let begun = clock::cycles();
        loop {
            if let Some(outcome) = self.next() {
                return Some(outcome);
            }
            // Without an open job nothing would ever come.
            if self.with(|book| book.posted) == 0 || self.is_over(deadline) {
                return None;
            }
            if clock::cycles().wrapping_sub(begun) < self.spin_cycles {
                self.glance();
            } else {
                self.rest(deadline, |book| book.is_ready());
            }
        }
    }

    /// Waits for one job, at most until `deadline`.
    fn wait_for(&self, key: Key, deadline: Option<Instant>) -> Option<Outcome> {
        let begun = clock::cycles();
        loop {
            let (outcome, local) = self.with(|book| (book.take(key), book.is_local(key)));
            if outcome.is_some() {
                return outcome;
            }
            // Left to this process, so this thread does it, whatever the deadline.
            if local {
                self.run(key);
            } else if self.is_over(deadline) {
                return None;
            } else if clock::cycles().wrapping_sub(begun) < self.spin_cycles {
                self.glance();
            } else {
                self.rest(deadline, |book| book.is_done(key) || book.is_local(key));
            }
        }
    }

    /// Does a job on this thread, if it is still to be done here.
    fn run(&self, key: Key) {
        let Some((mut job, cancelled)) = self.with(|book| book.begin(key)) else {
            return;
        };
        // Without the lock: a kernel may take long, and others submit and poll meanwhile.
        let result = job.run(&self.registry, &cancelled);
        self.with(|book| book.end(key, job, result));
    }

    /// Does the jobs that futures wait for and that are left to this process.
    fn run_awaited(&self) {
        while let Some(key) = self.with(|book| book.next_awaited()) {
            self.run(key);
        }
    }

    fn is_over(&self, deadline: Option<Instant>) -> bool {
        deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// A moment, or until something has come.
    fn glance(&self) {
        for _ in 0..GLANCES {
            // The lock only for the look: others submit and poll between two of them.
            if self.book.lock().has_news() {
                return;
            }
            for _ in 0..GLANCE_PAUSES {
                std::hint::spin_loop();
            }
        }
    }

    /// Looks whether the daemon is there, a millisecond after the last look.
    fn look_now_and_then(&self) {
        let now_ns = clock::now_ns();
        // Relaxed: two looks do no harm.
        let looked_ns = self.looked.load(Ordering::Relaxed);
        if now_ns.saturating_sub(looked_ns) > LOOK_NS {
            self.looked.store(now_ns, Ordering::Relaxed);
            self.with(Book::look);
        }
    }

    /// Sleeps until something may have come or `is_ready`, and then looks whether the daemon is
    /// there; not longer than until `deadline`, and never long.
    fn rest(&self, deadline: Option<Instant>, mut is_ready: impl FnMut(&mut Book) -> bool) {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let nap = left.unwrap_or(NAP_MAX).min(NAP_MAX);
        if let Some(sleeper) = self.sleeper.try_lock() {
            let link = self.book.lock().link.clone();
            if let Some(jobs) = link.as_ref().and_then(|link| link.segment.jobs()) {
                jobs.sleep.waiter.sleep_unless(Some(nap), || {
                    let mut book = self.book.lock();
                    book.has_news() || is_ready(&mut book)
                });
                self.with(Book::look);
                drop(sleeper);
                // One of the others sleeps there from now on.
                self.changed.notify_all();
                return;
            }
        }
        self.changed.wait_until(0, Some(nap), || {
            let mut book = self.book.lock();
            let is_free = book.link.is_some() && self.sleeper.try_lock().is_some();
            (is_ready(&mut book) || is_free).then_some(())
        });
        self.with(|_| ());
    }

    fn descriptor(&self) -> Result<&Arc<Descriptor>, ClientError> {
        if let Some(descriptor) = self.descriptor.get() {
            return Ok(descriptor);
        }
        // Two threads may both make one; the second one's is dropped before anyone has seen it.
        let made = Arc::new(Descriptor::new()?);
        let descriptor = self.descriptor.get_or_init(|| made);
        self.with(|book| {
            // Under the lock of the book: a job that ends from here on makes it readable.
            if book.descriptor.is_none() {
                descriptor.follow(book.link.as_ref());
                book.descriptor = Some(Arc::clone(descriptor));
            }
        });
        Ok(descriptor)
    }
}

/// Wakes an engine for a job that was submitted, where those that are awake do not suffice.
fn wake_engine(link: &Link, open: usize) {
    let words = (0..link.engines).filter_map(|engine| link.segment.pair(engine));
    let comes_soon = |engine: usize| {
        let serving = link.activity.serving(engine);
        serving.is_none() || serving == Some(link.client)
    };
    wake_one(words.map(|pair| &pair.sleep.engine), comes_soon, open);
}

/// Looks of a waiting thread between two readings of the clock, and pauses between two looks.
const GLANCES: u32 = 8;
const GLANCE_PAUSES: u32 = 8;
/// Nanoseconds between two checks of the daemon by threads that only poll.
const LOOK_NS: u64 = 1_000_000;
/// The longest sleep between two looks at the daemon.
const NAP_MAX: Duration = Duration::from_millis(8);

/// Starts the thread that wakes futures, unless there is one. It exists only while a future was
/// pending within the last second, and ends with the client and its tickets.
fn start_driver(queue: &Arc<Queue>) {
    if queue.with(|book| std::mem::replace(&mut book.driven, true)) {
        return;
    }
    let driven = Arc::clone(queue);
    let started = std::thread::Builder::new()
        .name("sidecore-jobs".to_owned())
        .spawn(move || drive(&driven));
    if started.is_err() {
        // Out of threads: callers that poll go on polling.
        queue.with(|book| {
            book.driven = false;
            book.wake_all();
        });
    }
}

fn drive(queue: &Arc<Queue>) {
    let mut awaited = Instant::now();
    loop {
        queue.run_awaited();
        if queue.with(|book| book.wakers > 0) {
            awaited = Instant::now();
            queue.rest(None, |book: &mut Book| {
                book.wakers == 0 || book.next_awaited().is_some()
            });
            continue;
        }
        let is_last = Arc::strong_count(queue) == 1;
        let is_over = is_last || awaited.elapsed() > LINGER;
        // Decided with the book open: a future that leaves a waker later starts another thread.
        if queue.with(|book| {
            let ends = is_over && book.wakers == 0;
            book.driven = !ends;
            ends
        }) {
            return;
        }
        let is_wanted = || (queue.book.lock().wakers > 0).then_some(());
        queue.changed.wait_until(0, Some(LINGER / 20), is_wanted);
    }
}

/// Time for which it stays when no future is pending.
const LINGER: Duration = Duration::from_secs(1);
