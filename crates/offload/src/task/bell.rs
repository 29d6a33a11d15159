//! How a host thread sleeps, and how whoever makes something true wakes those who wait for it.
//!
//! A [`Bell`] belongs to one host thread. A [`WaitPoint`] belongs to one thing that is waited for
//! (an engine to become idle, a loop's helpers to leave, a task to end); tasks and plain threads
//! wait at it alike. Bells are the process's own and outlive everything, so that who rings one late
//! rings nobody, or wakes a host for nothing, but never touches memory that is gone.
//!
//! Must stay true: who makes a condition true notifies afterwards; a host looks at all conditions
//! of its parked tasks after it has said that it will sleep. The fences on both sides see to it that
//! one of the two sees the other. README.md, "Sleeping". Any thread.

use super::fiber;
use crate::sync::{AtomicU64, Ordering, Word, fence};
use crossbeam_utils::CachePadded;
use sidecore_engine::{Doorbell, WaitOptions, Waiter};
use std::time::Duration;

/// The most host threads that a process has at once: one bit each.
pub const HOSTS_MAX: usize = 64;

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// Where one host thread sleeps.
#[derive(Debug)]
pub(super) struct Bell {
    state: Word,
}

impl Bell {
    pub(super) fn new() -> Self {
        Self {
            state: Word::new(AWAKE),
        }
    }

    /// Wakes the host if it sleeps, and says whether it did. To be called after whatever the host
    /// may wait for was made true, with a sequentially consistent fence between.
    pub(super) fn ring_after_fence(&self) -> bool {
        // Release, to the Acquire in `sleep`: who was woken sees what came before.
        let asleep = self.state.value.load(Ordering::Relaxed) == ASLEEP
            && self.state.value.swap(AWAKE, Ordering::AcqRel) == ASLEEP;
        if asleep {
            self.state.wake();
        }
        asleep
    }

    /// Sleeps until rung, at most for `timeout`, unless `look` finds something. Only its own host.
    pub(super) fn sleep(&self, timeout: Option<Duration>, look: impl FnOnce() -> bool) {
        // A read-modify-write, as the ringers' are, so that one has its place among the others.
        self.state.value.swap(ASLEEP, Ordering::Relaxed);
        // Partner: the fences in `WaitPoint::notify` and `Sleepers::wake_one`.
        fence(Ordering::SeqCst);
        if !look() {
            self.state.sleep(ASLEEP, timeout);
        }
        // Acquire, from the Release in `ring_after_fence`.
        self.state.value.swap(AWAKE, Ordering::Acquire);
    }
}

/// All bells, and which are some host's.
#[derive(Debug)]
pub(super) struct Bells {
    bells: Vec<CachePadded<Bell>>,
    taken: AtomicU64,
}

impl Bells {
    fn new() -> Self {
        // Loom has few atomics to spare.
        let count = if cfg!(loom) { 2 } else { HOSTS_MAX };
        Self {
            bells: (0..count).map(|_| CachePadded::new(Bell::new())).collect(),
            taken: AtomicU64::new(0),
        }
    }

    /// Takes a bell for a new host, or `None` when all are taken.
    pub(super) fn take(&self) -> Option<usize> {
        let mut taken = self.taken.load(Ordering::Relaxed);
        loop {
            let free = taken.trailing_ones() as usize;
            if free >= self.bells.len() {
                return None;
            }
            // Relaxed: a bell carries no data.
            match self.taken.compare_exchange_weak(
                taken,
                taken | 1 << free,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(free),
                Err(now) => taken = now,
            }
        }
    }

    pub(super) fn give_back(&self, bell: usize) {
        self.taken.fetch_and(!(1 << bell), Ordering::Relaxed);
    }

    pub(super) fn bell(&self, bell: usize) -> &Bell {
        &self.bells[bell]
    }

    /// Rings all of a set, after the caller's fence.
    pub(super) fn ring_after_fence(&self, mut set: u64) {
        while set != 0 {
            self.bells[set.trailing_zeros() as usize].ring_after_fence();
            set &= set - 1;
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

/// The hosts of a group that sleep or are about to: one of them is woken for a new task.
#[derive(Debug)]
pub(super) struct Sleepers(AtomicU64);

impl Sleepers {
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Sleeps at `bell` as one of these; see [`Bell::sleep`].
    pub(super) fn sleep(
        &self,
        bell: usize,
        timeout: Option<Duration>,
        look: impl FnOnce() -> bool,
    ) {
        // Relaxed: published by the fence in `Bell::sleep`, which partners the one in `wake_one`.
        self.0.fetch_or(1 << bell, Ordering::Relaxed);
        bells().bell(bell).sleep(timeout, look);
        self.0.fetch_and(!(1 << bell), Ordering::Relaxed);
    }

    /// Wakes one that sleeps, if `is_wanted` then. To be called after there was made work for it.
    pub(super) fn wake_one(&self, is_wanted: impl FnOnce() -> bool) {
        // Partner: the fence in `Bell::sleep`.
        fence(Ordering::SeqCst);
        let mut asleep = self.0.load(Ordering::Relaxed);
        if asleep == 0 || !is_wanted() {
            return;
        }
        while asleep != 0 {
            let bell = asleep.trailing_zeros() as usize;
            // One that was rung meanwhile looks at everything, this work too; but it may have been
            // rung for other work, so the next one is asked.
            if bells().bell(bell).ring_after_fence() {
                return;
            }
            asleep &= asleep - 1;
        }
    }
}

/// Something that tasks and threads wait for.
#[derive(Debug)]
pub(crate) struct WaitPoint {
    /// Hosts that have, or once had, a parked task that waits here.
    hosts: AtomicU64,
    threads: Doorbell,
}

impl WaitPoint {
    pub(crate) fn new() -> Self {
        Self {
            hosts: AtomicU64::new(0),
            threads: Doorbell::new(),
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
            if let Some(value) = fiber::look_briefly(&mut condition) {
                return value;
            }
            self.expect(bell);
            return fiber::park_for(condition);
        }
        let waiter = Waiter::new(thread);
        loop {
            // Without a timeout the wait ends with a value; the loop is for the compiler.
            if let Some(value) = self.threads.wait(&waiter, None, &mut condition) {
                return value;
            }
        }
    }

    /// Notes that a task of this host will be parked for what this point announces.
    pub(crate) fn expect(&self, bell: usize) {
        // Relaxed: published by the fence in `Bell::sleep`; until then the host is awake and looks.
        if self.hosts.load(Ordering::Relaxed) & (1 << bell) == 0 {
            self.hosts.fetch_or(1 << bell, Ordering::Relaxed);
        }
    }

    /// Has all who wait look at their conditions again. To be called after one was made true.
    pub(crate) fn notify(&self) {
        // Begins with the fence that partners those of sleeping hosts and threads.
        self.threads.ring();
        self.notify_hosts_after_fence();
    }

    /// The same for parked tasks alone.
    pub(crate) fn notify_hosts_after_fence(&self) {
        let hosts = self.hosts.load(Ordering::Relaxed);
        if hosts != 0 {
            bells().ring_after_fence(hosts);
        }
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
                    fence(Ordering::SeqCst);
                    bells().ring_after_fence(0b11);
                    return;
                }
                model.sleepers.sleep(bell, None, || {
                    let is_set = |flag: &AtomicU64| flag.load(Ordering::Relaxed) == 1;
                    is_set(&model.queued) || is_set(&model.taken)
                });
            }
        }
        loom::model(|| {
            let model = Arc::new(Model {
                queued: AtomicU64::new(0),
                taken: AtomicU64::new(0),
                sleepers: Sleepers::new(),
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
