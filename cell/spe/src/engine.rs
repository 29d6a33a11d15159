//! Engines: threads that run contexts, and the warden that helps where they are too few.
//!
//! A context runs until it parks at a channel, stops, or gives way at an operation while another
//! waits: at the end of its slice, or at once if it only polls. `sched` decides when it gives way
//! and which context is next ([`ReadyQueue`], [`Turn`]). A program that never operates a channel
//! keeps its engine. If others wait meanwhile, the warden starts a relief engine, which the
//! system's scheduler shares the cores with and which ends when it finds nothing to do. So programs
//! that poll memory for one another all get on.
//!
//! Must stay true: signals of the process are not delivered to engines, whose stack may be a
//! program's. The queue's lock is taken under a context's, never the other way round.

use crate::fault;
use crate::interrupt;
use crate::switch::{Header, enter};
use crate::trace;
use parking_lot::{Condvar, Mutex};
use sidecore_bare::float::Modes;
use sidecore_sched::{Operation, Ready, ReadyQueue, Sharing, Turn};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// An operation that a program requested at the gate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) op: u64,
    pub(crate) args: [u64; 4],
}

/// The MFC's command that loads a line to look at it, and the channel that says how that went.
const GET_LINE: u64 = 0xd0;
const ATOMIC_STATUS: u64 = 27;

impl Request {
    /// Kind of operation that it was, by its answer: a count of nothing, a line that is loaded to
    /// see whether it changed, or something else.
    fn kind(&self, answer: u64) -> Operation {
        match (self.op, self.args[0], self.args[3] & 0xff) {
            // Only what found nothing counts as polling: a loop that finds work keeps its engine.
            (3, ..) if answer == 0 => Operation::InVain,
            // A lock that is tried again and again begins each try with this command.
            (7, _, GET_LINE) => Operation::InVain,
            (1, ATOMIC_STATUS, _) => Operation::Beside,
            _ => Operation::Done,
        }
    }
}

/// A context, as engines see it.
pub(crate) trait Work: Send + Sync {
    fn id(&self) -> u32;

    fn header(&self) -> *mut Header;

    /// The first step with an active context: an answer, or a request to ask again.
    fn take_step(&self) -> Result<u64, Request>;

    /// True where the program is the SPU's own: [`Work::interpret`] runs it.
    fn is_interpreted(&self) -> bool;

    /// Goes on with such a program with the answer to its last request, to its next one.
    fn interpret(&self, answer: u64) -> Request;

    /// Takes the answer to a request, which the program gets later, and returns the kind of
    /// readiness with which the context goes back to the queue: the answer may be there now.
    fn put_step(&self, answer: u64, request: &Request, ready: Ready) -> Ready;

    /// Serves one request. `None`: the program parked or stopped, and may be elsewhere by now.
    fn serve(&self, request: Request) -> Option<u64>;

    /// Handles the end of the time that a parked program set.
    fn remind(&self);
}

struct Pool {
    ready: ReadyQueue<Arc<dyn Work>>,
    /// Contexts that were taken from the queue, ever: no change between two looks is a stall.
    taken: u64,
    idle: usize,
    engines: usize,
    /// Engines by their numbers: the clocks of their threads' time on processors.
    clocks: [Clock; ENGINES_MAX],
    reminders: BinaryHeap<Reverse<Reminder>>,
    watch: Watch,
}

/// The warden's sleep.
#[derive(Clone, Copy)]
enum Watch {
    /// Until another thread wakes it, or it was woken and has not looked yet.
    Asleep,
    Awake,
    /// Until a time at the latest; `regular` if it comes to look at the queue then.
    Until {
        at: Instant,
        regular: bool,
    },
}

/// Clock of an engine's thread.
#[derive(Clone, Copy)]
enum Clock {
    /// There is no engine of the number.
    None,
    /// Its thread has not begun.
    Begins,
    Runs(libc::clockid_t),
}

struct Reminder {
    at: Instant,
    context: Weak<dyn Work>,
}

impl PartialEq for Reminder {
    fn eq(&self, other: &Reminder) -> bool {
        self.at == other.at
    }
}

impl Eq for Reminder {}

impl PartialOrd for Reminder {
    fn partial_cmp(&self, other: &Reminder) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Reminder {
    fn cmp(&self, other: &Reminder) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

static POOL: Mutex<Pool> = Mutex::new(Pool {
    ready: ReadyQueue::new(Sharing::Edtlp),
    taken: 0,
    idle: 0,
    engines: 0,
    clocks: [Clock::None; ENGINES_MAX],
    reminders: BinaryHeap::new(),
    watch: Watch::Awake,
});
static WORK: Condvar = Condvar::new();
static WARDEN: Condvar = Condvar::new();
/// Length of the queue, for looks without its lock.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Engines at least: a PlayStation 3 has this many, and many programs of the time count on it.
const ENGINES_MIN: usize = 6;
/// Engines at most, with relief.
const ENGINES_MAX: usize = 256;
/// A queue from which nothing was taken while an engine ran for this long gets a relief engine.
const STALL: Duration = Duration::from_millis(5);

/// Usable engines: SIDECORE_SPE_ENGINES, or the processors, but at least six.
pub(crate) fn count() -> usize {
    static COUNT: OnceLock<usize> = OnceLock::new();
    *COUNT.get_or_init(|| {
        let asked = std::env::var("SIDECORE_SPE_ENGINES").ok();
        let asked = asked.and_then(|text| text.trim().parse::<usize>().ok());
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        asked
            .filter(|count| *count > 0)
            .unwrap_or(processors.max(ENGINES_MIN))
            .min(ENGINES_MAX)
    })
}

/// True while a context waits for an engine.
pub(crate) fn work_waits() -> bool {
    // Relaxed: a late answer costs a part of a slice.
    WAITING.load(Ordering::Relaxed) > 0
}

/// The rule by which contexts share engines: SIDECORE_SPE_SHARING, or the event-driven one.
pub(crate) fn sharing() -> Sharing {
    static SHARING: OnceLock<Sharing> = OnceLock::new();
    *SHARING.get_or_init(|| {
        let asked = std::env::var("SIDECORE_SPE_SHARING").ok();
        asked
            .and_then(|name| Sharing::named(&name))
            .unwrap_or_default()
    })
}

/// Nanoseconds since the first look.
fn now_ns() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let since = FIRST.get_or_init(Instant::now).elapsed();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Queues an active context.
pub(crate) fn push(context: Arc<dyn Work>, ready: Ready) {
    trace::ready(context.id());
    let mut pool = POOL.lock();
    // The static cannot read the environment; setting the rule again costs nothing.
    pool.ready.share_by(sharing());
    pool.ready.push(context, ready);
    WAITING.store(pool.ready.len(), Ordering::Relaxed);
    // An idle engine is woken before a new one is started, up to the usable number.
    if pool.idle > 0 {
        WORK.notify_one();
    } else if pool.engines < count() {
        start_engine(&mut pool);
    }
    warden();
    // A wake-up costs as much as a switch. A warden that looks every few milliseconds needs none.
    if !matches!(
        pool.watch,
        Watch::Awake | Watch::Until { regular: true, .. }
    ) {
        wake_warden(&mut pool);
    }
}

fn wake_warden(pool: &mut Pool) {
    pool.watch = Watch::Awake;
    WARDEN.notify_one();
}

/// Notes that the word which a context polled for came while it waits for an engine.
pub(crate) fn came(id: u32) {
    let mut pool = POOL.lock();
    pool.ready.came(|context| context.id() == id);
}

/// Has a parked context looked at again at a time.
pub(crate) fn remind(at: Instant, context: Weak<dyn Work>) {
    let mut pool = POOL.lock();
    pool.reminders.push(Reverse(Reminder { at, context }));
    let comes = match pool.watch {
        Watch::Asleep => false,
        Watch::Awake => true,
        Watch::Until { at: comes, .. } => comes <= at,
    };
    if !comes {
        wake_warden(&mut pool);
    }
}

fn start_engine(pool: &mut Pool) {
    // Beyond the usable number an engine exists for a stall alone, and ends when it finds nothing.
    let relief = pool.engines >= count();
    let name = if relief { "spe-relief" } else { "spe-engine" };
    let Some(number) = pool
        .clocks
        .iter()
        .position(|clock| matches!(clock, Clock::None))
    else {
        return;
    };
    // Where no thread can be started, the others go on; the warden tries again at the next stall.
    if spawn(name, move || engine(number, relief)) {
        pool.engines += 1;
        pool.clocks[number] = Clock::Begins;
    }
}

fn warden() {
    static STARTED: OnceLock<bool> = OnceLock::new();
    STARTED.get_or_init(|| spawn("spe-warden", watch));
}

/// Starts a thread that no signal of the process reaches; faults are its own and still do.
fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> bool {
    // SAFETY: all zeroes is a set; the mask is put back below.
    // The mask is inherited at the start, so it is set here and not in the thread: a signal could
    // come first.
    let before = unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        for fault in fault::SIGNALS {
            libc::sigdelset(&mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    };
    let builder = std::thread::Builder::new().name(name.to_owned());
    let started = builder.spawn(body).is_ok();
    // SAFETY: the set of above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    started
}

/// An engine's thread.
fn engine(number: usize, relief: bool) {
    fault::prepare_thread();
    trace::is_engine(number);
    let mut pool = POOL.lock();
    pool.clocks[number] = own_clock();
    loop {
        // The clock is read only if the queue's rule asks, and then used for the turn as well.
        let mut looked = None;
        if let Some(context) = pool.ready.take(|| *looked.get_or_insert_with(now_ns)) {
            pool.taken += 1;
            WAITING.store(pool.ready.len(), Ordering::Relaxed);
            drop(pool);
            // Neither the host's modes, nor those that another context left.
            Modes::restore();
            run(&context, looked);
            drop(context);
            pool = POOL.lock();
        } else if relief {
            break;
        } else {
            pool.idle += 1;
            WORK.wait(&mut pool);
            pool.idle -= 1;
        }
    }
    pool.engines -= 1;
    pool.clocks[number] = Clock::None;
    drop(pool);
    interrupt::retire();
    fault::release_thread();
}

/// Runs a context until it parks, stops, or gives way.
fn run(context: &Arc<dyn Work>, looked: Option<u64>) {
    trace::runs(context.id());
    let header = context.header();
    let interpreted = context.is_interpreted();
    // A context that was taken begins a slice of its own.
    let mut turn = Turn::new(sharing(), looked.unwrap_or_else(now_ns));
    let mut step = context.take_step();
    loop {
        let answer = match step {
            // An answer, where the program stands in the gate already.
            Ok(answer) => answer,
            Err(request) => {
                let Some(answer) = context.serve(request) else {
                    return;
                };
                if work_waits()
                    && let Some(ready) = turn.operation(now_ns(), request.kind(answer))
                {
                    let ready = context.put_step(answer, &request, ready);
                    push(context.clone(), ready);
                    return;
                }
                answer
            }
        };
        if interpreted {
            step = Err(context.interpret(answer));
            continue;
        }
        fault::set_running(header);
        // SAFETY: an active context, which this engine took from the queue, so no other thread has
        // it; the thread was prepared.
        unsafe {
            interrupt::inside(header);
            enter(header, answer);
            interrupt::outside(header);
        }
        fault::set_running(std::ptr::null_mut());
        // SAFETY: the header of a live store; the program stands in the gate.
        let (op, args) = unsafe { ((*header).op, (*header).args) };
        step = Err(Request { op, args });
    }
}

fn own_clock() -> Clock {
    let mut clock = 0;
    // SAFETY: the thread's own, and our own place.
    match unsafe { libc::pthread_getcpuclockid(libc::pthread_self(), &mut clock) } {
        0 => Clock::Runs(clock),
        _ => Clock::Begins,
    }
}

/// Processor time of each engine's thread. An engine without any, because others have the cores, is
/// not the reason why the queue does not move.
fn engines_times(pool: &Pool) -> Vec<Duration> {
    let time = |clock: &Clock| {
        let mut now = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        if let Clock::Runs(clock) = clock {
            // SAFETY: our own place; the thread lives, as it takes its clock away under the lock.
            unsafe { libc::clock_gettime(*clock, &mut now) };
        }
        // The kernel's are never negative, nor a second or more of nanoseconds.
        let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
        Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
    };
    let last = |clock: &Clock| !matches!(clock, Clock::None);
    let count = pool
        .clocks
        .iter()
        .rposition(last)
        .map_or(0, |last| last + 1);
    pool.clocks[..count].iter().map(time).collect()
}

/// The longest time that one engine ran between two looks.
fn ran_longest(before: &[Duration], now: &[Duration]) -> Duration {
    let ran = before
        .iter()
        .zip(now)
        .map(|(before, now)| now.saturating_sub(*before));
    ran.max().unwrap_or_default()
}

/// The warden's thread.
fn watch() {
    let mut pool = POOL.lock();
    let mut seen: Option<(u64, Vec<Duration>)> = None;
    let mut taken_before = 0;
    loop {
        pool.watch = Watch::Awake;
        // Reminders first: one that makes a context ready changes the queue that is looked at
        // below.
        let now = Instant::now();
        while let Some(Reverse(first)) = pool.reminders.peek()
            && first.at <= now
        {
            let due = pool.reminders.pop();
            drop(pool);
            if let Some(context) = due.and_then(|Reverse(due)| due.context.upgrade()) {
                context.remind();
            }
            pool = POOL.lock();
        }
        let mut next = pool.reminders.peek().map(|Reverse(first)| first.at);
        // An empty queue that was used a moment ago is used again soon.
        let regular = !pool.ready.is_empty() || pool.taken != taken_before;
        taken_before = pool.taken;
        if pool.ready.is_empty() {
            seen = None;
        } else {
            let times = engines_times(&pool);
            match &seen {
                Some((taken, before)) if *taken == pool.taken => {
                    // An engine that is held within a program takes nothing, and its clock stands.
                    if ran_longest(before, &times) >= STALL || interrupt::held() > 0 {
                        // At the bound the queue waits: a thousand spinning programs get no
                        // thousand threads.
                        if pool.engines < ENGINES_MAX {
                            start_engine(&mut pool);
                        }
                        seen = None;
                    }
                }
                _ => seen = Some((pool.taken, times)),
            }
        }
        if regular {
            let look = now + STALL;
            next = Some(next.map_or(look, |next| next.min(look)));
        }
        match next {
            Some(at) => {
                pool.watch = Watch::Until { at, regular };
                WARDEN.wait_until(&mut pool, at);
            }
            None => {
                pool.watch = Watch::Asleep;
                WARDEN.wait(&mut pool);
            }
        }
    }
}
