//! A pool as its tasks see it: counts of them, the number that may be live, and the wait point of
//! hosts that have tasks and no place for them.
//!
//! Why here: a pool's engines and the hosts of its tasks both read and write these, and the hosts
//! need nothing else of the pool. Must stay true: the policy's answer is written under the policy's
//! lock, so that a later one is never overwritten by an earlier. Any thread.

use super::bell::WaitPoint;
use crossbeam_utils::CachePadded;
use sidecore_sync::Changed;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// State that a pool shares with the hosts of its tasks.
pub(crate) struct Accounts {
    pub(crate) counts: CachePadded<Counts>,
    /// Number of tasks that the policy wants live: its answer after the last event, so that hosts
    /// that look all the time need not lock it.
    live_tasks: CachePadded<AtomicU32>,
    /// Wait point of hosts for more live tasks to be allowed.
    pub(crate) room: WaitPoint,
}

impl Accounts {
    /// No tasks, of which this many may be live.
    pub(crate) fn new(live_tasks: u32) -> Self {
        Self {
            counts: CachePadded::default(),
            live_tasks: CachePadded::new(AtomicU32::new(live_tasks)),
            room: WaitPoint::new(),
        }
    }

    /// Number of tasks that the policy wants live.
    pub(crate) fn live_tasks(&self) -> u32 {
        // Advice only: a thread that reads it late starts or holds one task too many.
        self.live_tasks.load(Ordering::Relaxed)
    }

    /// Stores the policy's present answer, under its lock; true if it grew.
    pub(crate) fn note_live_tasks(&self, now: u32) -> bool {
        let before = self.live_tasks.load(Ordering::Relaxed);
        if now != before {
            self.live_tasks.store(now, Ordering::Relaxed);
        }
        now > before
    }

    /// Wakes hosts that have tasks and no place for them, where the policy's answer grew.
    pub(crate) fn tell_room(&self, rose: bool) {
        if rose {
            self.room.notify_hosts_after(Changed::publish());
        }
    }
}

/// Counts of a pool's tasks; read by `Pool::snapshot`.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) spawned: AtomicU64,
    /// Begun, or cancelled before.
    pub(crate) begun: AtomicU64,
    /// Begun by hosts and not ended, and places that hosts keep for their next task.
    pub(crate) live: AtomicUsize,
    pub(crate) ended: AtomicU64,
    pub(crate) parked: AtomicUsize,
    /// Of these, those that wait because more are at work than the policy wants.
    pub(crate) held: AtomicUsize,
    /// Fibers that can go on, and those parked ones that wait for an engine.
    pub(crate) ready: AtomicUsize,
    /// Those parked ones.
    pub(crate) wanting: AtomicUsize,
}

impl Counts {
    /// Spawned and not begun.
    pub(crate) fn waiting(&self) -> u64 {
        // In this order: never more begun than spawned, except for tasks that are counted in
        // between.
        let begun = self.begun.load(Ordering::Relaxed);
        self.spawned.load(Ordering::Relaxed).saturating_sub(begun)
    }
}
