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
        self.state.value.store(ASLEEP, Ordering::Relaxed);
        // Partner: the fence in `WaitPoint::notify` and in `Group::announce`.
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
