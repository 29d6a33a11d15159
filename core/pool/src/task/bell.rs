//! Sleeping host threads, and the points at which tasks and threads wait for a change.
//!
//! A [`Bell`] belongs to one host thread. A [`WaitPoint`] belongs to one condition (an engine
//! becomes idle, a loop's helpers leave, a task ends); tasks and plain threads wait at it alike.
//! Bells belong to the process and are never freed. So a late ring wakes no host, or wakes one for
//! nothing, but never touches freed memory.
//!
//! Must stay true: a thread that makes a condition true notifies afterwards; a host looks at all
//! conditions of its parked tasks after it has announced its sleep. The protocol is that of
//! `sidecore-sync`; a [`Changed`] is the proof that the notifier's fence was made. README.md,
//! "Sleeping". Any thread.

use super::fiber;
use crate::bits::{AtomicBits, WORD_BITS, bits_of};
use crate::sync::{AtomicU64, Ordering};
use crossbeam_utils::CachePadded;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sync::{Changed, EventCount, Private, SleepWord};
use sidecore_sync::{WaitOptions, Waiter};
use std::time::Duration;

/// The most host threads that a process has at once.
pub(crate) const HOSTS_MAX: usize = 1_024;
const _: () = assert!(HOSTS_MAX.is_multiple_of(WORD_BITS), "a bell for each bit");

/// Word on which one host thread sleeps.
pub(super) type Bell = SleepWord<Private>;

/// Hosts that are rung together: bit `b` is for all bells whose number modulo 64 is `b`. A word
/// does for any number of hosts; from the 65th on, some are woken that only look and sleep again.
pub(super) type HostSet = u64;

/// The set of the hosts with this bell.
pub(super) fn host_set(bell: usize) -> HostSet {
    1 << (bell % WORD_BITS)
}

/// All bells, with the set of those that belong to a host.
#[derive(Debug)]
pub(super) struct Bells {
    bells: Vec<CachePadded<Bell>>,
    taken: AtomicBits,
    /// No bell of this number or a higher one was ever taken.
    taken_end: AtomicU64,
}

impl Bells {
    fn new() -> Self {
        // Loom has few atomics to spare; its hosts take their bells without asking.
        let (count, taken_end) = if cfg!(loom) { (2, 2) } else { (HOSTS_MAX, 0) };
        Self {
            bells: (0..count).map(|_| CachePadded::new(Bell::new())).collect(),
            taken: AtomicBits::empty(count),
            taken_end: AtomicU64::new(taken_end),
        }
    }

    /// Takes the first free bell for a new host, or `None` when all are taken.
    pub(super) fn take(&self) -> Option<usize> {
        let bell = (self.taken.words().enumerate())
            .find_map(|(index, word)| Some(index * WORD_BITS + take_zero(word)?))?;
        // Relaxed: the host is started after this, and the fence before its sleep publishes it to
        // every thread that notifies after its own fence.
        self.taken_end
            .fetch_max(bell.to_u64() + 1, Ordering::Relaxed);
        Some(bell)
    }

    pub(super) fn give_back(&self, bell: usize) {
        let (word, bit) = self.taken.place(bell);
        // Relaxed: a bell carries no data.
        word.fetch_and(!bit, Ordering::Relaxed);
    }

    pub(super) fn bell(&self, bell: usize) -> &Bell {
        &self.bells[bell]
    }

    /// Wakes all of a set that sleep.
    pub(super) fn notify_after(&self, changed: Changed, set: HostSet) {
        // Relaxed: after the fence of `changed`; partner of the store in `take`.
        let end = self.taken_end.load(Ordering::Relaxed).to_usize();
        for first in bits_of(set) {
            for bell in (first..end).step_by(WORD_BITS) {
                self.bells[bell].notify_after(changed);
            }
        }
    }
}

/// Sets the lowest bit of a word that is not set, if there is one.
fn take_zero(word: &AtomicU64) -> Option<usize> {
    let mut taken = word.load(Ordering::Relaxed);
    loop {
        let free = taken.trailing_ones().to_usize();
        if free == WORD_BITS {
            return None;
        }
        let (failed, now) = (Ordering::Relaxed, taken | 1 << free);
        // Relaxed: a bell carries no data.
        match word.compare_exchange_weak(taken, now, Ordering::Relaxed, failed) {
            Ok(_) => return Some(free),
            Err(now) => taken = now,
        }
    }
}

/// The process's bells.
#[cfg(not(loom))]
pub(super) fn bells() -> &'static Bells {
    static BELLS: std::sync::OnceLock<Bells> = std::sync::OnceLock::new();
    BELLS.get_or_init(Bells::new)
}

#[cfg(loom)]
loom::lazy_static! {
    static ref BELLS: Bells = Bells::new();
}

#[cfg(loom)]
pub(super) fn bells() -> &'static Bells {
    &BELLS
}

/// The hosts of a group that sleep or are about to: one of them is woken for a new task. Here every
/// bell has its own bit, since a waker takes back only its own.
#[derive(Debug)]
pub(super) struct Sleepers(AtomicBits);

impl Sleepers {
    /// Of a group with these bells.
    pub(super) fn new(bells: &[usize]) -> Self {
        Self(AtomicBits::empty(
            bells.iter().max().map_or(0, |&last| last + 1),
        ))
    }

    /// Sleeps at `bell` as one of these, unless `look` finds something.
    pub(super) fn sleep(
        &self,
        bell: usize,
        timeout: Option<Duration>,
        look: impl FnOnce() -> bool,
    ) {
        let (word, bit) = self.0.place(bell);
        // Relaxed: published by the fence in `sleep_unless`, whose partner is that of a `Changed`.
        word.fetch_or(bit, Ordering::Relaxed);
        bells().bell(bell).sleep_unless(timeout, look);
        word.fetch_and(!bit, Ordering::Relaxed);
    }

    /// Wakes one that sleeps, if `is_wanted` then. To be called after there was made work for it.
    pub(super) fn wake_one(&self, is_wanted: impl FnOnce() -> bool) {
        let changed = Changed::publish();
        // Asked once, and only where a host sleeps.
        let mut is_wanted = Some(is_wanted);
        for (index, word) in self.0.words().enumerate() {
            // Relaxed: after the fence of `changed`.
            let asleep = word.load(Ordering::Relaxed);
            if asleep == 0 {
                continue;
            }
            if is_wanted.take().is_some_and(|is_wanted| !is_wanted()) {
                return;
            }
            // A host that was rung meanwhile looks at everything, this work too; but it may have
            // been rung for other work, so the next one is asked.
            if bits_of(asleep)
                .any(|bit| bells().bell(index * WORD_BITS + bit).notify_after(changed))
            {
                return;
            }
        }
    }
}

/// An event that tasks and threads wait for.
#[derive(Debug)]
pub(crate) struct WaitPoint {
    /// Hosts that have, or once had, a parked task that waits here: a [`HostSet`].
    hosts: AtomicU64,
    threads: EventCount,
}

impl WaitPoint {
    pub(crate) fn new() -> Self {
        Self {
            hosts: AtomicU64::new(0),
            threads: EventCount::new(),
        }
    }

    /// Waits until `condition` gives a value. A task is parked meanwhile and its host runs others;
    /// a thread waits as `thread` says.
    pub(crate) fn wait<T>(
        &self,
        thread: WaitOptions,
        mut condition: impl FnMut() -> Option<T>,
    ) -> T {
        if let Some(value) = condition() {
            return value;
        }
        if let Some(bell) = fiber::current_bell() {
            // A task that is alone on its host would be resumed by the very next look: it saves two
            // switches where the answer comes within microseconds.
            if let Some(value) = fiber::look_briefly(&mut condition) {
                return value;
            }
            self.expect(bell);
            return fiber::park_for(condition);
        }
        // A new waiter per wait: its history of slow yields is not worth storing.
        let waiter = Waiter::new(thread);
        loop {
            // Without a timeout the wait ends with a value; the loop is for the compiler.
            if let Some(value) = waiter.wait(&self.threads, None, &mut condition) {
                return value;
            }
        }
    }

    /// Notes that a task of this host will be parked until this point is notified.
    pub(crate) fn expect(&self, bell: usize) {
        // Relaxed: published by the fence of the host's announcement; until then it is awake and
        // looks. A load first: all waiters of this point share the line, and the bit is never
        // cleared.
        let set = host_set(bell);
        if self.hosts.load(Ordering::Relaxed) & set == 0 {
            self.hosts.fetch_or(set, Ordering::Relaxed);
        }
    }

    /// Wakes all waiters to check their conditions. To be called after one was made true.
    pub(crate) fn notify(&self) {
        self.notify_after(Changed::publish(), u32::MAX);
    }

    /// The same for a change that was published before; of the plain threads that sleep here, at
    /// most `threads` are woken.
    pub(crate) fn notify_after(&self, changed: Changed, threads: u32) {
        self.threads.notify_after(changed, threads);
        self.notify_hosts_after(changed);
    }

    /// The same for parked tasks alone.
    pub(crate) fn notify_hosts_after(&self, changed: Changed) {
        // Relaxed: after the fence of `changed`.
        let hosts = self.hosts.load(Ordering::Relaxed);
        if hosts != 0 {
            bells().notify_after(changed, hosts);
        }
    }

    /// Event count of the plain threads, for those that wait in a way of their own.
    pub(crate) fn threads(&self) -> &EventCount {
        &self.threads
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// A host whose tasks wait for two things that two threads make true; it sleeps between.
    #[test]
    fn a_host_sleeps_through_nothing_that_its_tasks_wait_for() {
        loom::model(|| {
            let point = Arc::new((AtomicU64::new(0), WaitPoint::new()));
            let makers: Vec<_> = [1, 2]
                .into_iter()
                .map(|bit| {
                    let point = Arc::clone(&point);
                    thread::spawn(move || {
                        point.0.fetch_or(bit, Ordering::Relaxed);
                        point.1.notify();
                    })
                })
                .collect();
            fiber::on_model_host(0, || {
                let is_all = || (point.0.load(Ordering::Relaxed) == 3).then_some(());
                point.1.wait(WaitOptions::BLOCK, is_all);
            });
            for maker in makers {
                assert!(maker.join().is_ok());
            }
        });
    }

    /// Two hosts on their way to sleep, and a task that is queued for whichever is woken. The one
    /// that takes it tells the other to end.
    #[test]
    fn a_queued_task_wakes_a_host() {
        struct Model {
            queued: AtomicU64,
            taken: AtomicU64,
            sleepers: Sleepers,
        }
        fn host(model: &Model, bell: usize) {
            while model.taken.load(Ordering::Acquire) == 0 {
                if model.queued.swap(0, Ordering::AcqRel) == 1 {
                    model.taken.store(1, Ordering::Release);
                    bells().notify_after(Changed::publish(), 0b11);
                    return;
                }
                model.sleepers.sleep(bell, None, || {
                    let is_set = |flag: &AtomicU64| flag.load(Ordering::Relaxed) == 1;
                    is_set(&model.queued) || is_set(&model.taken)
                });
            }
        }
        let mut orders = loom::model::Builder::new();
        // Three threads: a lost wake-up takes two preemptions, and three of them would take minutes
        // to try.
        orders.preemption_bound = Some(2);
        orders.check(|| {
            let model = Arc::new(Model {
                queued: AtomicU64::new(0),
                taken: AtomicU64::new(0),
                sleepers: Sleepers::new(&[0, 1]),
            });
            let other = {
                let model = Arc::clone(&model);
                thread::spawn(move || host(&model, 0))
            };
            let spawner = {
                let model = Arc::clone(&model);
                thread::spawn(move || {
                    // A read-modify-write, as the queue's own push is.
                    model.queued.swap(1, Ordering::AcqRel);
                    model.sleepers.wake_one(|| true);
                })
            };
            host(&model, 1);
            assert!(other.join().is_ok());
            assert!(spawner.join().is_ok());
            assert_eq!(model.taken.load(Ordering::Relaxed), 1);
        });
    }
}
