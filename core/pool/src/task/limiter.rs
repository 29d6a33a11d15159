//! Limit of the tasks at work, and the order in which those beyond it are held.
//!
//! Why here: a policy may come to want fewer live tasks than there are. New ones then do not begin,
//! and the youngest of those that return from an off-load are *held*: they wait before their next
//! off-load, until others have ended or wait for something themselves. The oldest continues first,
//! and before any new task begins. While the number at work is within the limit, nothing here is
//! locked.
//!
//! No task waits for ever. A task that waits for other tasks (a join, an inner scope, a condition
//! of its own, a moment in time) is *aside* and takes no place, so the task that it waits for can
//! go on. A task that spins for a held one meets it again after [`HELD_NS_MAX`].
//!
//! Must stay true: a thread that makes room says so afterwards (`TaskLimiter::made_room`); a held
//! task's host looks for room after it has announced its sleep. Any thread.

use super::bell::WaitPoint;
use crate::sync::{AtomicU32, Mutex, Ordering};
use sidecore_bare::width::ToUsize;
use sidecore_sync::Changed;
use std::collections::BTreeSet;

/// Counts of live tasks of one group.
#[derive(Debug)]
pub(super) struct TaskLimiter {
    /// Begun and not ended; and places that hosts keep for their next task.
    live: AtomicU32,
    /// Of these, those that wait for other tasks.
    aside: AtomicU32,
    /// Of these, those that are held.
    held: AtomicU32,
    lists: Mutex<Lists>,
}

/// Tasks by age. Only those that once off-loaded while too many were at work.
#[derive(Debug, Default)]
struct Lists {
    at_work: BTreeSet<u64>,
    held: BTreeSet<u64>,
}

impl TaskLimiter {
    pub(super) fn new() -> Self {
        Self {
            live: AtomicU32::new(0),
            aside: AtomicU32::new(0),
            held: AtomicU32::new(0),
            lists: Mutex::new(Lists::default()),
        }
    }

    /// True if one more task may begin.
    pub(super) fn has_room(&self, limit: u32) -> bool {
        self.live.load(Ordering::Relaxed) < limit
    }

    /// True if more are at work than may be.
    pub(super) fn is_over(&self, limit: u32) -> bool {
        self.at_work() > i64::from(limit)
    }

    /// Counts one more live task, unless there are as many as may be.
    pub(super) fn take(&self, limit: u32) -> bool {
        let more = |live| (live < limit).then_some(live + 1);
        let taken = self
            .live
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok()
    }

    /// A live task has ended.
    pub(super) fn give_back(&self, room: &WaitPoint) {
        self.live.fetch_sub(1, Ordering::Relaxed);
        self.made_room(room);
    }

    /// A task that was on the lists has ended.
    pub(super) fn forget(&self, task: u64) {
        self.lists.lock().at_work.remove(&task);
    }

    /// A task waits for other tasks.
    pub(super) fn step_aside(&self, task: Option<u64>, room: &WaitPoint) {
        if let Some(task) = task {
            self.lists.lock().at_work.remove(&task);
        }
        self.aside.fetch_add(1, Ordering::Relaxed);
        self.made_room(room);
    }

    /// A task that waited for others goes on.
    pub(super) fn come_back(&self, task: Option<u64>) {
        if let Some(task) = task {
            self.lists.lock().at_work.insert(task);
        }
        self.aside.fetch_sub(1, Ordering::Relaxed);
    }

    /// Puts a task on the lists: whether it has to be held. Then it calls [`Self::try_return`]
    /// until that is true, or [`Self::leave`].
    pub(super) fn must_be_held(&self, task: u64, limit: u32) -> bool {
        let mut lists = self.lists.lock();
        lists.at_work.insert(task);
        // By age, not by arrival: the oldest tasks end first, and free their stacks.
        let older = lists.at_work.range(..task).count();
        if older < limit.to_usize() || !self.is_over(limit) {
            return false;
        }
        lists.at_work.remove(&task);
        lists.held.insert(task);
        self.held.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// A held task goes on if there is room for it and it is the oldest.
    pub(super) fn try_return(&self, task: u64, limit: u32) -> bool {
        // Looked at in every round of a host, so without the lock where the answer is no.
        if self.at_work() >= i64::from(limit) {
            return false;
        }
        let mut lists = self.lists.lock();
        if lists.held.first() != Some(&task) || self.at_work() >= i64::from(limit) {
            return false;
        }
        lists.held.remove(&task);
        lists.at_work.insert(task);
        self.held.fetch_sub(1, Ordering::Relaxed);
        true
    }

    /// A held task goes on in any case.
    pub(super) fn leave(&self, task: u64) {
        let mut lists = self.lists.lock();
        if lists.held.remove(&task) {
            lists.at_work.insert(task);
            self.held.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Wakes the hosts of held tasks to check again. To be called after a place became free, and by
    /// a task that was held itself: the next one may go on, too.
    pub(super) fn made_room(&self, room: &WaitPoint) {
        let changed = Changed::publish();
        // Relaxed: a held task counts itself before its host announces its sleep.
        if self.held.load(Ordering::Relaxed) > 0 {
            room.notify_hosts_after(changed);
        }
    }

    /// Number of tasks at work. The counts are read one after another: a little off while they
    /// change.
    fn at_work(&self) -> i64 {
        let read = |count: &AtomicU32| i64::from(count.load(Ordering::Relaxed));
        read(&self.live) - read(&self.aside) - read(&self.held)
    }
}

/// Longest time that a task is held, each time: some hundred off-loads of the papers' grain.
pub(super) const HELD_NS_MAX: u64 = 10_000_000;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_youngest_are_held_and_the_oldest_goes_on_first() {
        let (limiter, room) = (TaskLimiter::new(), WaitPoint::new());
        for _ in 0..4 {
            assert!(limiter.take(4));
        }
        assert!(!limiter.take(4));
        // The limit falls to two. No task is known yet, so the first to come go on.
        assert!(!limiter.must_be_held(1, 2) && !limiter.must_be_held(3, 2));
        assert!(limiter.must_be_held(4, 2));
        assert!(!limiter.must_be_held(2, 2));
        assert!(limiter.must_be_held(3, 2));
        assert!(!limiter.is_over(2));
        assert!(!limiter.try_return(3, 2) && !limiter.try_return(4, 2));
        limiter.step_aside(Some(1), &room);
        assert!(!limiter.try_return(4, 2), "3 is older");
        assert!(limiter.try_return(3, 2));
        assert!(!limiter.try_return(4, 2));
        limiter.come_back(Some(1));
        assert!(limiter.is_over(2) && limiter.must_be_held(3, 2));
        // A limit that rises again lets all go on.
        assert!(limiter.try_return(3, 4) && limiter.try_return(4, 4));
        for task in 1..=4 {
            limiter.forget(task);
            limiter.give_back(&room);
        }
        assert!(limiter.has_room(1) && limiter.lists.lock().at_work.is_empty());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::task::{bell::bells, on_model_host};
    use loom::sync::Arc;

    /// Of two tasks one may be at work. The older ends while the younger is being held.
    #[test]
    fn a_held_task_sees_the_room_that_is_made() {
        loom::model(|| {
            let both = Arc::new((TaskLimiter::new(), WaitPoint::new()));
            assert!(both.0.take(2) && both.0.take(2));
            assert!(!both.0.must_be_held(1, 1));
            let older = {
                let both = Arc::clone(&both);
                loom::thread::spawn(move || {
                    both.0.forget(1);
                    both.0.give_back(&both.1);
                })
            };
            on_model_host(0, || {
                let (limiter, room) = &*both;
                if limiter.must_be_held(2, 1) {
                    room.expect(0);
                    let mut returned = false;
                    while !returned {
                        bells().bell(0).sleep_unless(None, || {
                            returned = limiter.try_return(2, 1);
                            returned
                        });
                    }
                }
            });
            assert!(older.join().is_ok());
        });
    }
}
