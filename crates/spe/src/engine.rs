//! Engines: threads that run contexts, and the warden that helps where they are too few.
//!
//! A context runs until it parks at a channel, stops, or its slice ends at an operation while
//! another waits. A program that never operates a channel keeps its engine; if others wait
//! meanwhile, the warden starts a relief engine, which the system's scheduler shares the cores with
//! and which ends when it finds nothing to do. So programs that poll memory for one another all get
//! on.
//!
//! Must stay true: signals of the process are not delivered to engines, whose stack may be a
//! program's; the queue's lock is taken under a context's, never the other way round.

use crate::fault;
use crate::switch::{Header, enter};
use crate::trace;
use parking_lot::{Condvar, Mutex};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// An operation that a program asked for at the gate.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) op: u64,
    pub(crate) args: [u64; 4],
}

/// A context, as engines see it.
pub(crate) trait Work: Send + Sync {
    fn id(&self) -> u32;

    fn header(&self) -> *mut Header;

    /// The first step with an active context: an answer, or a request to ask again.
    fn take_step(&self) -> Result<u64, Request>;

    /// Takes an answer that the program gets later; the context goes back to the queue.
    fn put_step(&self, answer: u64);

    /// Serves one request. `None`: the program parked or stopped, and may be elsewhere by now.
    fn serve(&self, request: Request) -> Option<u64>;

    /// The time came that a parked program asked for.
    fn remind(&self);
}

struct Pool {
    ready: VecDeque<Arc<dyn Work>>,
    /// Contexts that were taken from the queue, ever: no change between two looks is a stall.
    taken: u64,
    idle: usize,
    engines: usize,
    /// Numbers that engines have, by index.
    numbers: [bool; ENGINES_MAX],
    reminders: BinaryHeap<Reverse<Reminder>>,
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
    ready: VecDeque::new(),
    taken: 0,
    idle: 0,
    engines: 0,
    numbers: [false; ENGINES_MAX],
    reminders: BinaryHeap::new(),
});
static WORK: Condvar = Condvar::new();
static WARDEN: Condvar = Condvar::new();
/// Length of the queue, for looks without its lock.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Engines at least: what a PlayStation 3 offers, since many programs of the time count on it.
const ENGINES_MIN: usize = 6;
/// Engines at most, with relief.
const ENGINES_MAX: usize = 256;
/// A program that operates channels gives way after this long, if another waits.
const SLICE: Duration = Duration::from_micros(200);
/// A queue from which nothing was taken for this long gets a relief engine.
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

/// Queues an active context.
pub(crate) fn push(context: Arc<dyn Work>) {
    trace::ready(context.id());
    let mut pool = POOL.lock();
    pool.ready.push_back(context);
    WAITING.store(pool.ready.len(), Ordering::Relaxed);
    if pool.idle > 0 {
        WORK.notify_one();
    } else if pool.engines < count() {
        start_engine(&mut pool);
    }
    warden();
    WARDEN.notify_one();
}

/// Has a parked context looked at again at a time.
pub(crate) fn remind(at: Instant, context: Weak<dyn Work>) {
    let mut pool = POOL.lock();
    pool.reminders.push(Reverse(Reminder { at, context }));
    WARDEN.notify_one();
}

fn start_engine(pool: &mut Pool) {
    let relief = pool.engines >= count();
    let name = if relief { "spe-relief" } else { "spe-engine" };
    let Some(number) = pool.numbers.iter().position(|taken| !taken) else {
        return;
    };
    if spawn(name, move || engine(number, relief)) {
        pool.engines += 1;
        pool.numbers[number] = true;
    }
}

fn warden() {
    static STARTED: OnceLock<bool> = OnceLock::new();
    STARTED.get_or_init(|| spawn("spe-warden", watch));
}

/// Starts a thread that no signal of the process reaches; faults are its own and still do.
fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> bool {
    // SAFETY: all zeroes is a set; the mask is put back below.
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
    loop {
        if let Some(context) = pool.ready.pop_front() {
            pool.taken += 1;
            WAITING.store(pool.ready.len(), Ordering::Relaxed);
            drop(pool);
            run(&context);
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
    pool.numbers[number] = false;
    drop(pool);
    fault::release_thread();
}

/// Runs a context until it parks, stops, or gives way.
fn run(context: &Arc<dyn Work>) {
    trace::runs(context.id());
    let since = Instant::now();
    let header = context.header();
    let mut step = context.take_step();
    loop {
        let answer = match step {
            Ok(answer) => answer,
            Err(request) => match context.serve(request) {
                Some(answer) => answer,
                None => return,
            },
        };
        if work_waits() && since.elapsed() > SLICE {
            context.put_step(answer);
            push(context.clone());
            return;
        }
        fault::set_running(header);
        // SAFETY: an active context, which this engine took from the queue, so nobody else has it;
        // the thread was prepared.
        unsafe { enter(header, answer) };
        fault::set_running(std::ptr::null_mut());
        // SAFETY: the header of a live store; the program stands in the gate.
        let (op, args) = unsafe { ((*header).op, (*header).args) };
        step = Err(Request { op, args });
    }
}

/// The warden's thread.
fn watch() {
    let mut pool = POOL.lock();
    let mut seen = None;
    loop {
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
        if pool.ready.is_empty() {
            seen = None;
        } else {
            match seen {
                Some((taken, since)) if taken == pool.taken && now - since >= STALL => {
                    if pool.engines < ENGINES_MAX {
                        start_engine(&mut pool);
                    }
                    seen = None;
                }
                Some((taken, _)) if taken == pool.taken => {}
                _ => seen = Some((pool.taken, now)),
            }
            let look = now + STALL;
            next = Some(next.map_or(look, |next| next.min(look)));
        }
        match next {
            Some(at) => {
                WARDEN.wait_until(&mut pool, at);
            }
            None => WARDEN.wait(&mut pool),
        }
    }
}
