//! Asking the policy about loops: the caller's part first, the policy where that does not know.
//!
//! Why here: one policy decides for all cores, and its lock is a line that all of them would write
//! for each loop. So there are as many parts as cores, and callers are spread over them by the
//! numbers of their tasks. A part is a [`Shard`], which repeats decisions that still hold and keeps
//! events for the policy, and the split of its callers' loops. A loop takes the lock of its part,
//! and that of the policy once in several loops. A decision lacks at most
//! [`LAG_MAX`](sidecore_sched::LAG_MAX) events of each part.
//!
//! [`ShortLoops`] goes further: a call of the policy takes longer than a loop of a few tens of
//! nanoseconds. `RUN` consecutive calls of a class with about as many units, each on the caller's
//! core and over within a few microseconds, start the bypass. The next `LEFT` calls run there
//! without the policy and without measurement; then one is measured again. Threads have copies of
//! these counts, as many as there are cores.
//!
//! Must stay true: a task has one part, whatever core it is on. So its events reach the policy in
//! their order, and a task that moves is not counted twice. A part's lock is taken before the
//! policy's. One longer call ends the bypass for as many measured
//! calls as it took to begin. So a class with long calls among short ones is measured all the time.
//! Any thread; counts of two threads at once may be lost, which moves a bound a little.
//! Source: own.

use super::{Ready, Shared};
use crate::task;
use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sched::policy::CLASSES_MAX;
use sidecore_sched::split::SplitRun;
use sidecore_sched::{Arrival, ClassId, Decision, Departure, Policy, Shard, Split, TaskId};
use sidecore_sys::{clock, cpu};
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The policy of a pool, and the parts of it.
pub(super) struct Policies {
    /// On a line of its own: the places of the parts are read for each loop.
    policy: CachePadded<Mutex<Box<dyn Policy>>>,
    /// Time of the policy's last tick.
    ticked_ns: CachePadded<AtomicU64>,
    /// By the number of the task, in turn.
    parts: Box<[CachePadded<Mutex<Part>>]>,
}

/// The part of some callers.
struct Part {
    shard: Shard,
    /// Split of the loops of each class.
    splits: Box<[Split]>,
}

/// Arrival of work that is under way, as it was reported to the policy.
pub(crate) struct Arrived {
    arrival: Arrival,
    begun_ns: u64,
    begun_cycles: u64,
    /// Place of the part that its departure goes to.
    pub(crate) part: usize,
    /// True if its departure may be reported to the policy later.
    lags: bool,
}

impl Policies {
    /// `policy` for callers on this many cores: a part for each.
    pub(super) fn new(policy: Box<dyn Policy>, cores: usize) -> Self {
        let part = |_| {
            CachePadded::new(Mutex::new(Part {
                shard: Shard::default(),
                splits: vec![Split::default(); CLASSES_MAX].into(),
            }))
        };
        Self {
            policy: CachePadded::new(Mutex::new(policy)),
            ticked_ns: CachePadded::default(),
            parts: (0..cores.clamp(1, PARTS_MAX)).map(part).collect(),
        }
    }

    /// Place of a task's part.
    fn part_of(&self, task: TaskId) -> usize {
        // Tasks have consecutive numbers, so those that run at once have parts of their own.
        (task.0 % self.parts.len().to_u64()).to_usize()
    }

    /// True if the policy's next tick is due.
    fn is_tick_due(&self, now_ns: u64) -> bool {
        // Relaxed: written under the policy's lock, and looked at again there.
        now_ns.saturating_sub(self.ticked_ns.load(Ordering::Relaxed)) > TICK_NS
    }
}

impl Shared {
    /// The policy's name.
    pub(crate) fn policy_name(&self) -> String {
        self.policies.policy.lock().name()
    }

    /// The arrival to report to the policy when a loop asks for engines.
    fn arrival(&self, ready: &Ready<'_>, class: ClassId, units: u32) -> Arrival {
        let counts = &self.tasks.counts;
        let tasks = counts.ready.load(Ordering::Relaxed) as u32;
        let held = counts.held.load(Ordering::Relaxed) as u32;
        let live = (counts.live.load(Ordering::Relaxed) as u32).saturating_sub(held);
        let others = (tasks + ready.threads).saturating_sub(1);
        let engines = (self.engines.len() as u32).saturating_sub(self.resting.count());
        Arrival {
            task: task::id(),
            live: (live + ready.threads).max(1),
            waiting: (counts.waiting() as u32).saturating_add(held),
            class,
            units,
            // Its own, and all that no other task drives. Where there is no other task: an engine
            // that is on its way out of a loop, or at background work, comes back soon.
            engines_idle: if others == 0 {
                engines
            } else {
                (self.claims.idle_count() + 1).min(engines)
            },
            engines,
            ready: others,
        }
    }

    /// Decides about a loop of `units`, which can be split in at most `parts`: by the part of its
    /// caller, or by the policy. Returns the decision and the arrival that was reported.
    pub(crate) fn arrive(
        &self,
        ready: &Ready<'_>,
        class: ClassId,
        units: u32,
        parts: u32,
    ) -> (Decision, Arrived) {
        let (begun_ns, begun_cycles) = (self.now_ns(), clock::cycles());
        let arrival = self.arrival(ready, class, units);
        let part = self.policies.part_of(arrival.task);
        let (decision, lags) = self.decide(part, begun_ns, &arrival);
        let decision = match decision {
            Decision::Host => Decision::Host,
            Decision::Engines(width) => Decision::engines(width.get().min(parts)),
        };
        let arrived = Arrived {
            arrival,
            begun_ns,
            begun_cycles,
            part,
            lags,
        };
        (decision, arrived)
    }

    fn decide(&self, part: usize, now_ns: u64, arrival: &Arrival) -> (Decision, bool) {
        let mut own = self.policies.parts[part].lock();
        if let Some(decision) = own.shard.decide(now_ns, arrival) {
            return (decision, true);
        }
        let mut policy = self.policies.policy.lock();
        let asked = own.shard.ask(&mut **policy, now_ns, arrival);
        // Hosts are woken without it.
        drop(own);
        self.note_live_tasks(policy);
        asked
    }

    /// Reports the departure. `work_cycles` is the work of its engines in all, 0 where it is not
    /// known.
    pub(crate) fn depart(&self, arrived: &Arrived, width: u32, on_host: bool, work_cycles: u64) {
        let (now_ns, now_cycles) = (self.now_ns(), clock::cycles());
        let elapsed_ns = now_ns.saturating_sub(arrived.begun_ns);
        // The same interval in both units says how long a cycle is.
        let elapsed_cycles = now_cycles.wrapping_sub(arrived.begun_cycles).max(1);
        let work_ns = elapsed_ns as f64 * work_cycles as f64 / elapsed_cycles as f64;
        let (class, units) = (arrived.arrival.class, arrived.arrival.units);
        let here = width == 1 && (on_host || !self.dedicated);
        self.short_loops.note(class, units, here, elapsed_ns);
        let work_ns = match work_cycles {
            0 => 0,
            _ => (work_ns as u64).max(1),
        };
        let departure = Departure {
            task: arrived.arrival.task,
            class,
            units,
            width,
            on_host,
            // Without the cost of asking the policy, which most of such calls do not pay.
            elapsed_ns: match here && ShortLoops::are(elapsed_ns) && work_ns > 0 {
                true => work_ns.min(elapsed_ns),
                false => elapsed_ns,
            },
            work_ns,
        };
        self.report(arrived, now_ns, &departure);
        if self.resting.is_due(now_ns)
            && let Ok((_, affordable)) = cpu::of_process()
        {
            self.rest(affordable);
        }
    }

    /// Reports that work was given up before it began: its task is under way no more.
    pub(crate) fn give_up(&self, arrived: &Arrived) {
        let departure = Departure {
            task: arrived.arrival.task,
            class: arrived.arrival.class,
            units: 0,
            width: 1,
            on_host: false,
            elapsed_ns: 0,
            work_ns: 0,
        };
        self.report(arrived, self.now_ns(), &departure);
    }

    /// Leaves a departure with its part; reports that part's events where that is due.
    fn report(&self, arrived: &Arrived, now_ns: u64, departure: &Departure) {
        let policies = &self.policies;
        let mut own = policies.parts[arrived.part].lock();
        let is_full = own.shard.depart(now_ns, departure);
        if !is_full && arrived.lags && !policies.is_tick_due(now_ns) {
            return;
        }
        let mut policy = policies.policy.lock();
        own.shard.report(&mut **policy);
        drop(own);
        if policies.is_tick_due(now_ns) {
            policies.ticked_ns.store(now_ns, Ordering::Relaxed);
            // Of parts that went quiet. Not waited for: the locks are taken in the other order
            // elsewhere, and a part that is in use reports its events by itself.
            for mut part in policies.parts.iter().filter_map(|part| part.try_lock()) {
                part.shard.report_if_quiet(&mut **policy, now_ns);
            }
            policy.tick(now_ns);
        }
        self.note_live_tasks(policy);
    }

    /// Notes how many tasks the policy wants live now, after it learned of events.
    fn note_live_tasks(&self, policy: MutexGuard<'_, Box<dyn Policy>>) {
        let live = live_tasks(&**policy, self.engines.len());
        let rose = self.tasks.note_live_tasks(live);
        drop(policy);
        self.tasks.tell_room(rose);
    }

    /// Split of the loops of a class, of the callers of this part.
    pub(crate) fn split(&self, part: usize, class: ClassId) -> Split {
        self.policies.parts[part].lock().splits[class.index()]
    }

    /// Tunes it by a loop that has ended.
    pub(crate) fn learn_split(&self, part: usize, class: ClassId, run: &SplitRun) {
        self.policies.parts[part].lock().splits[class.index()].learn(run);
    }
}

/// Number of tasks that a policy wants live now on this many engines.
pub(super) fn live_tasks(policy: &dyn Policy, engines: usize) -> u32 {
    policy.live_tasks(engines as u32).max(1)
}

/// Parts of a pool at most: on machines of more cores, several callers share one.
const PARTS_MAX: usize = 64;
/// Shortest time between two ticks of a policy.
const TICK_NS: u64 = 10_000_000;

/// Runs of short calls, by class and power of two of units. Each call writes its word, which would
/// take longer than the loop if two cores did so in turn. So there is a copy for each core, which
/// threads share by their numbers, and every class has a line of its own.
pub(crate) struct ShortLoops {
    /// One copy after the other, a line for each class.
    lines: Box<[CachePadded<[AtomicU32; BUCKETS]>]>,
    /// Number of copies less one; a power of two less one.
    mask: usize,
}

impl ShortLoops {
    /// For callers on this many cores.
    pub(crate) fn new(cores: usize) -> Self {
        // Rounded up: a remainder costs more than the rest of a look.
        let copies = cores.clamp(1, COPIES_MAX).next_power_of_two();
        let lines = (0..copies * CLASSES_MAX).map(|_| CachePadded::default());
        Self {
            lines: lines.collect(),
            mask: copies - 1,
        }
    }

    /// True if a call of this many units is to be run at once, on this core.
    #[inline]
    pub(crate) fn take(&self, class: ClassId, units: usize) -> bool {
        let Some(word) = self.word(class, units) else {
            return false;
        };
        // Relaxed, and not one operation: these are counts alone, and lost ones do not matter.
        let seen = word.load(Ordering::Relaxed);
        let is_left = seen & LEFT_MASK != 0;
        if is_left {
            word.store(seen - 1, Ordering::Relaxed);
        }
        is_left
    }

    /// True if calls of this length are run at once when there are many.
    pub(crate) fn are(elapsed_ns: u64) -> bool {
        elapsed_ns < SHORT_NS
    }

    /// A measured call has ended; `here`: one core did all of it, the caller's.
    pub(crate) fn note(&self, class: ClassId, units: u32, here: bool, elapsed_ns: u64) {
        let Some(word) = self.word(class, units.to_usize()) else {
            return;
        };
        let run = match here && Self::are(elapsed_ns) {
            true => (word.load(Ordering::Relaxed) / RUN_ONE + 1).min(RUN),
            false => 0,
        };
        let left = if run == RUN { LEFT } else { 0 };
        word.store(run * RUN_ONE + left, Ordering::Relaxed);
    }

    #[inline]
    fn word(&self, class: ClassId, units: usize) -> Option<&AtomicU32> {
        self.word_of(thread_number(), class, units)
    }

    #[inline]
    fn word_of(&self, thread: usize, class: ClassId, units: usize) -> Option<&AtomicU32> {
        let bucket = units.checked_ilog2()?.to_usize();
        let copy = thread & self.mask;
        self.lines[copy * CLASSES_MAX + class.index()].get(bucket)
    }
}

/// Number of this thread among those that have called a pool: neighbours in their order differ.
#[inline]
fn thread_number() -> usize {
    match THREAD_NUMBER.get() {
        0 => {
            // Relaxed: a number, nothing more.
            let number = THREADS.fetch_add(1, Ordering::Relaxed) + 1;
            THREAD_NUMBER.set(number);
            number
        }
        number => number,
    }
}

thread_local! {
    /// This thread's number; 0 before it has one.
    static THREAD_NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// Threads that have a number.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// Copies of the runs at most: on machines of more cores, several threads share one.
const COPIES_MAX: usize = 16;

/// Powers of two of units: more than that take longer.
const BUCKETS: usize = 12;

/// Time of a call that is short.
const SHORT_NS: u64 = 4_000;

/// Short calls in a row that it takes, and calls that are then run at once.
const RUN: u32 = 64;
const LEFT: u32 = 64;

/// A word: the run above, the calls left below.
const LEFT_MASK: u32 = 0xffff;
const RUN_ONE: u32 = LEFT_MASK + 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_short_calls_is_followed_by_some_that_nobody_asks_about() {
        let (short_loops, class) = (ShortLoops::new(1), ClassId(3));
        for _ in 0..RUN {
            assert!(!short_loops.take(class, 9));
            short_loops.note(class, 9, true, 100);
        }
        let taken = |units| {
            (0..1_000)
                .take_while(|_| short_loops.take(class, units))
                .count()
        };
        assert_eq!(taken(16), 0, "others than about as many");
        assert_eq!(taken(15), LEFT as usize);
        short_loops.note(class, 8, true, 100);
        assert_eq!(taken(8), LEFT as usize, "one that is measured, between");
        // One that is long, or that was split, begins a new run.
        for (here, elapsed_ns) in [(true, SHORT_NS), (false, 100)] {
            short_loops.note(class, 8, here, elapsed_ns);
            for _ in 1..RUN {
                short_loops.note(class, 8, true, 100);
                assert_eq!(taken(8), 0);
            }
            short_loops.note(class, 8, true, 100);
            assert_eq!(taken(8), LEFT as usize);
        }
        assert!(!short_loops.take(class, 0) && !short_loops.take(class, usize::MAX));
        assert!(!short_loops.take(ClassId(4), 9));
    }

    #[test]
    fn calls_of_two_threads_or_two_classes_write_no_line_in_common() {
        let line = |short_loops: &ShortLoops, thread: usize, class: usize, units: usize| {
            let word = short_loops.word_of(thread, ClassId(class as u16), units);
            std::ptr::from_ref(word.expect("few units")).addr() / 64
        };
        let most = (1 << BUCKETS) - 1;
        let two = ShortLoops::new(2);
        for class in 1..CLASSES_MAX {
            assert_ne!(line(&two, 7, class - 1, most), line(&two, 7, class, 1));
            assert_ne!(line(&two, 7, class, 1), line(&two, 8, class, 1));
            assert_eq!(line(&two, 7, class, 1), line(&two, 9, class, 1));
        }
        assert!(two.word(ClassId(0), most + 1).is_none());
        // As many as there are cores, or a few more; on large machines a bounded number.
        for (cores, copies) in [(0, 1), (1, 1), (3, 4), (16, 16), (1_000, 16)] {
            assert_eq!(ShortLoops::new(cores).mask + 1, copies, "{cores} cores");
        }
        let number = thread_number();
        let other = std::thread::spawn(thread_number).join().expect("no panic");
        assert!(number == thread_number() && number != other);
    }

    /// Counts what it is asked, and what is given up.
    #[cfg(not(loom))]
    struct Counting(std::sync::Arc<[AtomicU32; 2]>);

    #[cfg(not(loom))]
    impl Policy for Counting {
        fn name(&self) -> String {
            "counting".into()
        }

        fn arrive(&mut self, _: u64, _: &Arrival) -> Decision {
            self.0[0].fetch_add(1, Ordering::Relaxed);
            Decision::engines(1)
        }

        fn depart(&mut self, _: u64, departure: &Departure) {
            self.0[1].fetch_add(u32::from(departure.units == 0), Ordering::Relaxed);
        }

        fn tick(&mut self, _: u64) {}
    }

    #[cfg(not(loom))]
    #[test]
    fn a_loop_that_is_cancelled_before_it_begins_departs_too() {
        use crate::{OffloadError, Pool, PoolConfig, TaskOptions, TasksOptions};
        use std::sync::Arc;
        use std::sync::atomic::AtomicBool;

        let counts: Arc<[AtomicU32; 2]> = Arc::default();
        let config = PoolConfig {
            engines: 1,
            dedicated: true,
            policy: Box::new(Counting(Arc::clone(&counts))),
            ..PoolConfig::default()
        };
        let pool = Pool::start(config).expect("a pool");
        let (begun, go) = (AtomicBool::new(false), AtomicBool::new(false));
        let (begun, go, pool) = (&begun, &go, &pool);
        let options = TasksOptions {
            hosts: 2,
            live_max: Some(2),
            ..TasksOptions::default()
        };
        let ended = pool.tasks(options, |scope| {
            let busy = scope.spawn(TaskOptions::default(), move |_| {
                pool.off_load(move |_| {
                    begun.store(true, Ordering::Release);
                    while !go.load(Ordering::Acquire) {
                        std::thread::yield_now();
                    }
                })
            });
            let until = |is_so: &dyn Fn() -> bool| task::wait_until(is_so).expect("no cancel");
            until(&|| begun.load(Ordering::Acquire));
            let waits = scope.spawn(TaskOptions::default(), move |_| {
                pool.for_each(ClassId(0), &mut [0_u8; 4], |_, _| ())
            });
            until(&|| counts[0].load(Ordering::Relaxed) == 1);
            waits.cancel();
            let ended = waits.join();
            go.store(true, Ordering::Release);
            busy.join().expect("no panic").expect("no panic");
            ended
        });
        let ended = ended.expect("hosts");
        assert!(
            matches!(ended, Ok(Err(OffloadError::Cancelled))),
            "{ended:?}"
        );
        // It would else be under way for ever, and its share of the engines with it.
        assert_eq!(counts[1].load(Ordering::Relaxed), 1);
    }
}
