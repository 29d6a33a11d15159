//! The lock around the state, and the thread that makes progress while the program does not.
//!
//! Verbs are one-sided: data arrives, and events are raised, without a call of the program. A
//! thread sleeps on the device's descriptor for that. A program that polls makes progress itself,
//! so that a message costs no switch of threads; then the thread looks away, and comes back every
//! [`LEASE`] to see if the program still polls. If the program has run and not polled, and data lay
//! there meanwhile (it waits for a change of its memory), the thread watches all the time for a
//! while. A program that had no processor is none of these: it polls as soon as it has one.
//!
//! Must stay true: a queue is watched from the request of an event on, until the program polls
//! again and again: then its polls raise the event, and the thread does within two leases after the
//! last.
//! Some programs (UCX) request one for good and poll all the same. One lock, never held while
//! waiting.

use crate::state::Core;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use sidecore_rdma::RdmaError;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Polls, since an event was requested, after which the thread looks away.
const POLLS: u64 = 64;
/// Time for which it does.
const LEASE: Duration = Duration::from_millis(1);
/// Longest sleep while it watches: time limits of connections are no events.
const SLEEP: Duration = Duration::from_millis(500);
/// Times for which it only watches after it came back too late, from the first to the longest.
const WATCHES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(10)];
/// Longest wait for the last bytes at the end of the process.
const LAST: Duration = Duration::from_secs(1);
/// Vain polls between two yields: some ten microseconds.
const LOOKS_A_YIELD: u32 = 32;

/// The process's engine.
pub(crate) struct Engine {
    core: Mutex<Core>,
    /// Threads that wait for the lock.
    waiting: AtomicU32,
    /// Something was acknowledged.
    pub(crate) acknowledged: Condvar,
    /// Wakes the thread.
    bell: OwnedFd,
    process: u32,
}

/// State of the thread, under the lock.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    /// It watches the device.
    watches: bool,
    /// It is to watch again.
    is_called: bool,
    /// Polls when it began to watch, or when an event was requested.
    since: u64,
    /// It is not to look away until then.
    until: Option<Instant>,
    /// The thread that polled last, by the clock of its processor time.
    poller: Option<libc::clockid_t>,
}

thread_local! {
    /// The clock of this thread's processor time.
    static CLOCK: Option<libc::clockid_t> = {
        let mut clock = 0;
        // SAFETY: this thread, and a place for a number.
        let outcome = unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &raw mut clock) };
        (outcome == 0).then_some(clock)
    };
}

/// The processor time on a clock; none of a thread that has ended.
fn time_on(clock: Option<libc::clockid_t>) -> Option<Duration> {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: a place for a time.
    let outcome = unsafe { libc::clock_gettime(clock?, &raw mut time) };
    let (seconds, rest) = (time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?);
    (outcome == 0).then_some(Duration::new(seconds, rest))
}

static ENGINE: Mutex<Option<&'static Engine>> = Mutex::new(None);

impl Engine {
    /// The process's engine, which its first user opens.
    pub(crate) fn get() -> Result<&'static Self, RdmaError> {
        let mut place = ENGINE.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        // A child of fork has no thread, and must not use its parent's connections: it gets an
        // engine of its own.
        if let Some(engine) = place.filter(|engine| engine.process == process) {
            return Ok(engine);
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        // Leaked: programs' structures point to it, and threads may be inside at the process's end.
        let engine = Box::leak(Box::new(Self {
            core: Mutex::new(Core::open()?),
            waiting: AtomicU32::new(0),
            acknowledged: Condvar::new(),
            bell: eventfd(0, flags).map_err(std::io::Error::from)?,
            process,
        }));
        let engine: &'static Self = engine;
        let descriptor = {
            let core = engine.lock();
            let found = core.device.descriptor();
            found.map(|one| one.try_clone_to_owned()).transpose()?
        };
        let name = std::thread::Builder::new().name("sidecore-verbs".into());
        spawn_without_signals(name, move || engine.run(descriptor.as_ref()))?;
        *place = Some(engine);
        // SAFETY: a function without arguments, of a library that is never unloaded.
        unsafe { libc::atexit(send_the_rest) };
        Ok(engine)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        if let Ok(core) = self.core.try_lock() {
            return core;
        }
        // Announced, so that a thread that polls without a pause makes room.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        core
    }

    /// As [`Self::lock`], for a poll: others go first.
    pub(crate) fn lock_to_poll(&self) -> MutexGuard<'_, Core> {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            std::thread::yield_now();
        }
        let mut core = self.lock();
        // Counted under the lock, where the thread compares it.
        core.polls += 1;
        core.watch.poller = CLOCK.with(|clock| *clock);
        let watch = &core.watch;
        // Again from time to time: the thread may have had to watch then.
        let polls = core.polls - watch.since;
        if watch.watches && polls >= POLLS && polls.is_multiple_of(POLLS) {
            self.ring();
        }
        core
    }

    /// A vain poll: the peer may need this core.
    pub(crate) fn looked_in_vain(&self, mut core: MutexGuard<'_, Core>) {
        core.vain = core.vain.wrapping_add(1);
        // Not each time: a yield costs more than a look, and the next message may be microseconds
        // away.
        let is_long = core.vain.is_multiple_of(LOOKS_A_YIELD);
        drop(core);
        if is_long {
            std::thread::yield_now();
        }
    }

    /// An event was requested, or is waited for: the thread must watch.
    pub(crate) fn watch(&self, core: &mut Core) {
        // A program that waits for events polls a few times between them.
        core.watch.since = core.polls;
        if !core.watch.watches {
            core.watch.is_called = true;
            self.ring();
        }
    }

    /// Waits until something is acknowledged.
    pub(crate) fn wait<'a>(&self, core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        let waited = self.acknowledged.wait(core);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        rustix::io::write(&self.bell, &1_u64.to_ne_bytes()).ok();
    }

    fn run(&self, device: Option<&OwnedFd>) {
        ask_for_short_slices();
        let mut backoff = WATCHES[0];
        loop {
            self.watch_device(device);
            backoff = self.look_away(backoff);
        }
    }

    /// Makes progress and sleeps in turn, until the program polls.
    fn watch_device(&self, device: Option<&OwnedFd>) {
        let mut core = self.lock();
        core.watch.watches = true;
        core.watch.since = core.polls;
        loop {
            core.progress();
            let polls = core.polls - core.watch.since;
            let may_rest = core.watch.until.is_none_or(|until| Instant::now() >= until);
            if polls >= POLLS && may_rest {
                core.watch.watches = false;
                return;
            }
            // Armed before the lock is free: what arrives from here on makes the descriptor
            // readable.
            let is_idle = core.device.arm().unwrap_or(true);
            let limit = core.exchange.due_in().map_or(SLEEP, |due| due.min(SLEEP));
            drop(core);
            if is_idle {
                self.sleep(device, limit);
            }
            core = self.lock();
        }
    }

    /// Leaves the device to the program until it polls no more; the next time to watch without a
    /// rest.
    fn look_away(&self, backoff: Duration) -> Duration {
        let begun = Instant::now();
        let mut before: Option<(u64, Option<Duration>)> = None;
        loop {
            self.sleep(None, LEASE);
            let mut core = self.lock();
            if std::mem::take(&mut core.watch.is_called) {
                return backoff;
            }
            let time = time_on(core.watch.poller);
            if let Some((polls, earlier)) = before
                && polls == core.polls
            {
                // No poll for a whole lease. Data that lay here while the program ran shows that it
                // waits without polling.
                let spent = time
                    .zip(earlier)
                    .map(|(now, then)| now.saturating_sub(then));
                let has_run = spent.is_some_and(|spent| spent >= LEASE / 2);
                let is_late = core.progress();
                if !is_late || !has_run {
                    return backoff;
                }
                core.watch.until = Some(Instant::now() + backoff);
                // A program that polls for long between is no reason to watch for long.
                return match begun.elapsed() > WATCHES[1] {
                    true => WATCHES[0],
                    false => (2 * backoff).min(WATCHES[1]),
                };
            }
            before = Some((core.polls, time));
        }
    }

    /// Sleeps until the bell rings or the device has something.
    fn sleep(&self, device: Option<&OwnedFd>, limit: Duration) {
        let other = device.unwrap_or(&self.bell);
        let mut places = [&self.bell, other].map(|one| PollFd::new(one, PollFlags::IN));
        let limit = Timespec {
            tv_sec: limit.as_secs().cast_signed(),
            tv_nsec: limit.subsec_nanos().into(),
        };
        poll(&mut places, Some(&limit)).ok();
        if !places[0].revents().is_empty() {
            rustix::io::read(self.bell.as_fd(), &mut [0; 8]).ok();
        }
    }
}

/// At the end of the process: what was reported as sent is sent, as far as the peers read it.
extern "C" fn send_the_rest() {
    let begun = Instant::now();
    // Never waits: an exit inside `get` holds this lock.
    let engine = ENGINE.try_lock().ok().and_then(|place| *place);
    let Some(engine) = engine.filter(|engine| engine.process == std::process::id()) else {
        return;
    };
    while begun.elapsed() < LAST {
        // Another thread may have it for ever: a signal may have ended the program inside a call.
        if let Ok(mut core) = engine.core.try_lock()
            && core.is_drained()
        {
            return;
        }
        std::thread::yield_now();
    }
}

/// Asks the scheduler for short slices of time (Linux 6.12; others have no use for it): the thread
/// then runs as soon as data arrives, also where programs that spin have all cores.
fn ask_for_short_slices() {
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: libc::SCHED_OTHER.cast_unsigned(),
        flags: 0,
        // SAFETY: this thread's own number.
        nice: unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) },
        priority: 0,
        runtime: 100_000,
        deadline: 0,
        period: 0,
    };
    // SAFETY: attributes of this thread, as sched_setattr(2) has them.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// Starts a thread that gets none of the program's signals.
fn spawn_without_signals(
    builder: std::thread::Builder,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    // SAFETY: two sets of signals on this stack; a new thread has its creator's mask.
    unsafe {
        let (mut all, mut old) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut old);
        let started = builder.spawn(work);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut());
        started.map(drop)
    }
}
