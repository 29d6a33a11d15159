//! A process's calls to a daemon's engines, done by the process itself where there is no daemon.
//!
//! ```no_run
//! use sidecore_daemon::client::{Args, Client};
//! use sidecore_daemon::default_socket;
//!
//! let client = Client::attach(default_socket())?;
//! let sum = client.kernel("sum_f64")?;
//! let mut values = client.buffer(8 << 10);
//! values.values_mut::<f64>().fill(0.5);
//! let reply = client.call(sum, Args::new().input(&values))?;
//! assert_eq!(f64::from_bits(reply.words[0]), 512.0);
//! # Ok::<(), sidecore_daemon::client::ClientError>(())
//! ```
//!
//! **A daemon may end at any time**, be killed, or be stopped and go on later. A waiting caller
//! notices within 100 ms (by the socket, or by its heartbeat), gives the attachment up, and does
//! the call with the host version on its own core. No call is lost. None is done twice with a
//! visible effect either: the outputs of a call that was given up move to memory that the daemon
//! does not map, so its later writes are never read; inputs are never written by kernels. Later
//! calls try to attach again, now and then, and never wait for it.
//!
//! **An engine may be held up**, by another client's long request, or on a machine that has no core
//! for it. A call that waits for an engine without progress for a millisecond
//! ([`ClientOptions::held_up_max`]) is done on the caller's core in the same way, and the engine is
//! left alone until it has answered. A kernel that this process cannot run itself
//! ([`Registry::with_remote`]) is waited for instead, within the caller's limit
//! ([`ClientOptions::remote_time_max`], [`Args::within`]).
//!
//! **Jobs** are asynchronous calls: [`Client::submit`] gives a [`Ticket`] to wait for, poll or
//! await, [`Client::post`] leaves the outcome to [`Client::poll`] and [`Client::wait`].
//! [`Attachment`] is for callers that have no use for buffers and host versions of ours.
//!
//! Must stay true: no system call on the fast path. Nothing here trusts the *timing* of the daemon,
//! but a client trusts the daemon's *writing*: it is a process of the same user or of root. Every
//! method may be called from any thread.
//!
//! ```
//! use sidecore_daemon::client::{Args, Client, ClientOptions};
//!
//! // Where no daemon serves, calls run right here, by the same kernels.
//! let client = Client::detached("/nonexistent.sock", ClientOptions::default());
//! let empty = client.kernel("empty")?;
//! client.call(empty, Args::new())?;
//! assert_eq!((client.counters().on_engines, client.counters().on_host), (0, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod args;
mod attachment;
mod buffer;
mod call;
mod error;
mod jobs;
mod link;
pub mod live;
mod spread;
mod trial;

pub use args::Args;
pub use attachment::{Attachment, Request, Stretch};
pub use buffer::Buffer;
pub use error::ClientError;
pub use jobs::{JOB_SEGMENTS_MAX, JOBS_MAX, Job, JobId, Outcome, Refused, Ticket};
pub use spread::{PIECES_MAX, Piece, Spread};
pub use trial::{Trial, Tried, options_for};

use crate::served::{Registry, Reply};
use crate::server::Status;
use crate::shm::introduction::Question;
use crate::shm::layout::{ARENA_BYTES_DEFAULT, ENGINES_MAX, STALE_MS, STATUS_ENGINES_MAX};
use jobs::Queue;
use link::{Link, Slot, Slots};
use parking_lot::{Mutex, MutexGuard};
use sidecore_attach::protocol::KIND_STATUS;
use sidecore_attach::{Introduction, Trust};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sched::{Equi, Policy};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Options of a client.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Bytes of the arena: how much memory calls can name at once without a copy.
    pub arena_bytes: u64,
    /// Time for which a call polls for its answer before it sleeps.
    pub spin: Duration,
    /// The kernels that this client can call, and run itself.
    pub registry: Registry,
    /// Users whose daemons it accepts besides its own user's and root's.
    pub trust: Trust,
    /// Time without a heartbeat after which a daemon is given up; 85 ms. More where the machine is
    /// busy and the daemon's user may not run its heartbeat thread first (`RLIMIT_RTPRIO`): calls
    /// would then be done on the host. A daemon that ends or is killed is noticed at once all the
    /// same.
    pub silence_max: Duration,
    /// Time for which a call waits at an engine without progress on another client's request (or
    /// without a core, on a busy machine); 1 ms. Then it is done on the caller's own core. The
    /// engine may do the call, too, when it comes to it; that result is never read.
    pub held_up_max: Duration,
    /// The same for a kernel that only the daemon has ([`Registry::with_remote`]), its own run
    /// included: [`ClientError::Late`] afterwards. None, as by default: it waits for as long as the
    /// daemon lives. [`Args::within`] is for one call.
    pub remote_time_max: Option<Duration>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            arena_bytes: ARENA_BYTES_DEFAULT,
            spin: Duration::from_micros(50),
            registry: Registry::builtin(),
            trust: Trust::default(),
            silence_max: Duration::from_millis(STALE_MS),
            held_up_max: Duration::from_millis(1),
            remote_time_max: None,
        }
    }
}

impl ClientOptions {
    /// Defaults for callers that want the engines' work and no fallback, as tests and measurements
    /// do. They wait a minute for a daemon and for an engine, so that a machine whose cores are
    /// busy is taken for neither dead nor held up.
    #[must_use]
    pub fn patient() -> Self {
        Self {
            silence_max: Duration::from_secs(60),
            held_up_max: Duration::from_secs(60),
            ..Self::default()
        }
    }
}

/// A kernel of a client's registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelId {
    index: usize,
    /// Only a daemon has it.
    is_remote: bool,
}

/// Counts of calls by the place where they ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientCounters {
    /// Calls that ran on an engine of the daemon.
    pub on_engines: u64,
    /// Calls that ran in this process.
    pub on_host: u64,
    /// Calls that began on an engine, were given up, and ran in this process.
    pub given_up: u64,
    /// Number of attachments.
    pub attached: u64,
}

/// A process's connection to a daemon's engines.
pub struct Client {
    path: PathBuf,
    options: ClientOptions,
    spin_cycles: u64,
    current: Mutex<Option<Arc<Link>>>,
    /// Engines of the current attachment.
    engines: AtomicUsize,
    slots: Slots,
    /// The engine to try first.
    preferred: AtomicUsize,
    again: Mutex<Again>,
    policy: Mutex<Box<dyn Policy>>,
    jobs: Arc<Queue>,
    started: Instant,
    counters: Counters,
}

#[derive(Debug, Default)]
struct Counters {
    on_host: AtomicU64,
    given_up: AtomicU64,
    attached: AtomicU64,
    /// Times that a thread found all engines in use by others.
    waits: AtomicU64,
}

/// State of re-attachment.
#[derive(Debug)]
struct Again {
    asked: Option<Introduction>,
    next_look: Instant,
    give_up_at: Instant,
    pause: Duration,
}

impl Client {
    /// Attaches to the daemon at `socket`.
    ///
    /// # Errors
    /// [`ClientError::NoDaemon`], [`ClientError::Refused`], [`ClientError::Silent`].
    pub fn attach(socket: impl AsRef<Path>) -> Result<Self, ClientError> {
        Self::attach_with(socket, ClientOptions::default())
    }

    /// The same, with options.
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub fn attach_with(
        socket: impl AsRef<Path>,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let client = Self::detached(socket, options);
        let (asked, answer) = link::ask_and_wait(
            &client.path,
            &client.options.trust,
            client.question(),
            ATTACH_TIME_MAX,
        )?;
        let link = Link::new(asked, answer, &client.options)?;
        client.install(Arc::new(link));
        Ok(client)
    }

    /// A client that is not attached yet: it works on its own cores, and attaches when it finds a
    /// daemon at `socket`.
    #[must_use]
    pub fn detached(socket: impl AsRef<Path>, options: ClientOptions) -> Self {
        let spin_us = options.spin.as_secs_f64() * 1e6;
        let spin_cycles = (spin_us * sidecore_sys::clock::cycles_per_us()) as u64;
        let now = Instant::now();
        Self {
            path: socket.as_ref().to_owned(),
            spin_cycles,
            jobs: Arc::new(Queue::new(options.registry.clone(), spin_cycles)),
            options,
            current: Mutex::new(None),
            engines: AtomicUsize::new(0),
            slots: Slots::new(),
            preferred: AtomicUsize::new(0),
            again: Mutex::new(Again {
                asked: None,
                next_look: now,
                give_up_at: now,
                pause: PAUSE_MIN,
            }),
            policy: Mutex::new(Box::new(Equi::default())),
            started: now,
            counters: Counters::default(),
        }
    }

    /// Replaces the policy that decides how wide loops run (default: `equi`).
    pub fn set_policy(&self, policy: Box<dyn Policy>) {
        *self.policy.lock() = policy;
    }

    /// The kernel of that name.
    ///
    /// # Errors
    /// [`ClientError::UnknownKernel`] where this client's registry has none.
    pub fn kernel(&self, name: &str) -> Result<KernelId, ClientError> {
        let found = self.options.registry.find(name);
        found
            .map(|index| KernelId {
                index,
                is_remote: self.options.registry.is_remote(index),
            })
            .ok_or_else(|| ClientError::UnknownKernel {
                name: name.to_owned(),
            })
    }

    /// A buffer of `len` bytes for calls: in the arena where there is room, else in this process
    /// (then calls copy it). Its contents are unspecified.
    #[must_use]
    pub fn buffer(&self, len: usize) -> Buffer {
        // A full arena is no error: calls with other memory cost a copy.
        let lease = self.link().and_then(|link| link.segment.lease(len).ok());
        lease.map_or_else(|| Buffer::own(len), |lease| Buffer::in_arena(lease, len))
    }

    /// Calls a kernel and waits for its reply: on an engine, or on this thread where there is no
    /// daemon (any more).
    ///
    /// # Errors
    /// [`ClientError::Engine`] and [`ClientError::Host`] where the kernel failed;
    /// [`ClientError::Limit`] for arguments that a request cannot carry; [`ClientError::Late`] and
    /// [`ClientError::ArenaFull`] for a kernel that only the daemon has.
    #[inline]
    pub fn call(&self, kernel: KernelId, args: Args<'_>) -> Result<Reply, ClientError> {
        call::call(self, kernel, args)
    }

    /// True while it is attached, as far as it knows.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        self.current
            .lock()
            .as_ref()
            .is_some_and(|link| !link.is_dead())
    }

    /// The number of the daemon's engines; 0 without one.
    #[must_use]
    pub fn engines(&self) -> usize {
        self.engines.load(Ordering::Relaxed)
    }

    /// Counts of its calls. Waits for calls that other threads are in.
    #[must_use]
    pub fn counters(&self) -> ClientCounters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut counters = ClientCounters {
            on_engines: self.slots.iter().map(|slot| slot.lock().calls).sum(),
            on_host: load(&self.counters.on_host),
            given_up: load(&self.counters.given_up),
            attached: load(&self.counters.attached),
        };
        self.jobs.count(&mut counters);
        counters
    }

    /// The daemon's status. Asks over a connection of its own; blocks for up to 2 s.
    ///
    /// # Errors
    /// As [`Self::attach`].
    pub fn status(&self) -> Result<Status, ClientError> {
        status(&self.path, &self.options.trust)
    }

    /// The attachment, if there is one that is not known to be dead. Tries to attach again now and
    /// then; never waits.
    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        let link = self.current.lock().clone();
        // Not under the lock: attaching takes the same one.
        match link {
            Some(link) if !link.is_dead() => Some(link),
            _ => self.attach_again(),
        }
    }

    /// The pair of an engine that no other thread of this process uses: of the last one if it is
    /// free, else of another. Waits where other threads have them all. `None` where there are no
    /// engines, or all are held up beyond the limit of `wait`.
    #[inline]
    fn claim(&self, wait: Wait) -> Option<(usize, MutexGuard<'_, Slot>)> {
        // Acquire: partner of the Release in `install`.
        let engines = self.engines.load(Ordering::Acquire);
        let preferred = self.preferred.load(Ordering::Relaxed);
        // The engine of the last call has this thread's line in its cache.
        if preferred < engines
            && let Some(mut slot) = self.slots.get(preferred).and_then(Mutex::try_lock)
            && !slot.is_held_up()
        {
            return Some((preferred, slot));
        }
        self.claim_another(engines, preferred, wait)
    }

    #[cold]
    fn claim_another(
        &self,
        engines: usize,
        preferred: usize,
        wait: Wait,
    ) -> Option<(usize, MutexGuard<'_, Slot>)> {
        loop {
            let all = (0..engines).map(|step| (preferred + step) % engines);
            for engine in all {
                if let Some(mut slot) = self.slots.get(engine).and_then(Mutex::try_lock)
                    && !slot.is_held_up()
                {
                    return Some((engine, slot));
                }
            }
            // All are in use, or held up: threads that come here spread over them.
            let turn = self.counters.waits.fetch_add(1, Ordering::Relaxed);
            let engine = turn.to_usize().checked_rem(engines)?;
            let slot = self.slots.get(engine)?;
            match wait {
                Wait::UntilHeldUp => {
                    let mut slot = slot.lock();
                    return (!slot.is_held_up()).then_some((engine, slot));
                }
                Wait::Until(_) if wait.is_over() || !self.is_attached() => return None,
                Wait::Until(_) => {
                    let slot = slot.try_lock_for(CLAIM_PAUSE);
                    if let Some(mut slot) = slot {
                        if !slot.is_held_up() {
                            return Some((engine, slot));
                        }
                        drop(slot);
                        std::thread::sleep(CLAIM_PAUSE);
                    }
                }
            }
        }
    }

    /// Takes a new attachment into use.
    fn install(&self, link: Arc<Link>) {
        self.slots.grow(link.engines);
        // Clients begin at different engines.
        self.preferred
            .store(link.client.to_usize() % link.engines, Ordering::Relaxed);
        // Release: partner of the Acquire in `claim`; the slots are there.
        self.engines.store(link.engines, Ordering::Release);
        *self.current.lock() = Some(link);
        self.counters.attached.fetch_add(1, Ordering::Relaxed);
        // The present user of a slot drops its dead attachment by itself.
        for slot in self.slots.iter().filter_map(Mutex::try_lock) {
            { slot }.forget_dead();
        }
    }

    /// One step towards a new attachment, if it is time for one and no other thread is at it.
    #[cold]
    fn attach_again(&self) -> Option<Arc<Link>> {
        // Another thread is at it: this one does its work itself meanwhile.
        let mut again = self.again.try_lock()?;
        let now = Instant::now();
        if now < again.next_look {
            return None;
        }
        let link = match again.asked.take() {
            None => match link::ask(&self.path, &self.options.trust, self.question()) {
                Ok(asked) => {
                    // The answer is looked for by later calls: none of them waits for it.
                    again.asked = Some(asked);
                    again.give_up_at = now + ATTACH_TIME_MAX;
                    again.next_look = now + LOOK_EVERY;
                    return None;
                }
                Err(_) => None,
            },
            Some(asked) => match asked.poll() {
                Ok(None) if now < again.give_up_at => {
                    again.asked = Some(asked);
                    again.next_look = now + LOOK_EVERY;
                    return None;
                }
                Ok(Some(answer)) => Link::new(asked, answer, &self.options).ok(),
                Ok(None) | Err(_) => None,
            },
        };
        let Some(link) = link else {
            // Longer each time: a program without a daemon must not spend its time on this.
            again.next_look = now + again.pause;
            again.pause = (again.pause * 2).min(PAUSE_MAX);
            return None;
        };
        again.pause = PAUSE_MIN;
        let link = Arc::new(link);
        self.install(Arc::clone(&link));
        Some(link)
    }

    fn question(&self) -> Question {
        Question::Attach {
            arena_bytes: self.options.arena_bytes,
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "client of {}", self.path.display())
    }
}

/// The status of the daemon at `socket`. Blocks for up to 2 s.
///
/// # Errors
/// As [`Client::attach`].
pub fn status(socket: impl AsRef<Path>, trust: &Trust) -> Result<Status, ClientError> {
    let part = |engines_from: usize| -> Result<Status, ClientError> {
        let question = Question::Status {
            engines_from: engines_from.to_u64(),
        };
        let (_, answer) = link::ask_and_wait(socket.as_ref(), trust, question, ATTACH_TIME_MAX)?;
        if answer.kind != KIND_STATUS {
            return Err(ClientError::Nonsense);
        }
        serde_json::from_slice(&answer.body).map_err(|_| ClientError::Nonsense)
    };
    let mut status = part(0)?;
    // A full list may go on. Each part is of its own moment.
    let mut is_full = status.engines.len() == STATUS_ENGINES_MAX;
    while is_full && status.engines.len() < ENGINES_MAX {
        let more = part(status.engines.len())?.engines;
        is_full = more.len() == STATUS_ENGINES_MAX;
        status.engines.extend(more);
    }
    Ok(status)
}

/// For how long a call waits for an engine.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wait {
    /// Until the engine does not move on: this process can do it itself.
    UntilHeldUp,
    /// Until this moment, or for as long as the daemon lives: this process cannot do it itself.
    Until(Option<Instant>),
}

impl Wait {
    /// For a kernel: `within` is the caller's limit, where it gave one.
    #[inline]
    fn of(client: &Client, kernel: KernelId, within: Option<Duration>) -> Self {
        if !kernel.is_remote {
            return Self::UntilHeldUp;
        }
        let limit = within.or(client.options.remote_time_max);
        Self::Until(limit.and_then(|limit| Instant::now().checked_add(limit)))
    }

    /// True once the time is up.
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Self::Until(Some(until)) if Instant::now() >= until)
    }
}

/// Between two looks at engines that are all held up.
const CLAIM_PAUSE: Duration = Duration::from_millis(1);
/// The longest time that a daemon may take to answer.
const ATTACH_TIME_MAX: Duration = Duration::from_secs(2);
/// Interval of checks for the answer of a daemon to which we attach again.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Between two tries to attach again: doubled from the least to the most.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(100);
