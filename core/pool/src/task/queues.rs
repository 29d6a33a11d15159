//! Queued tasks on their way from spawners to hosts.
//!
//! Why here: with one queue that all hosts take from one at a time, they contend for its line at
//! every task. So a host takes a few at a time into its own deque, from which others steal when
//! they have nothing else: a long task delays no task behind it. Urgent tasks are taken one at a
//! time.
//! Must stay true: after several were taken at once, a sleeping host is notified
//! (`Group::announce`). It may have looked here after they left the one queue and before they were
//! in the other.

use super::core::TaskCore;
use crossbeam_deque::{Injector, Steal, Stealer, Worker};
use crossbeam_queue::SegQueue;
use std::sync::Arc;

/// The queues of one group.
pub(super) struct Queues {
    urgent: SegQueue<Arc<TaskCore>>,
    normal: Injector<Arc<TaskCore>>,
    hosts_queues: Vec<Stealer<Arc<TaskCore>>>,
}

/// Tasks that one host has taken and not begun.
pub(super) struct HostQueue(Worker<Arc<TaskCore>>);

impl Queues {
    /// Queues, with one for each of `hosts` hosts.
    pub(super) fn new(hosts: usize) -> (Self, Vec<HostQueue>) {
        let hosts_queues: Vec<_> = (0..hosts).map(|_| HostQueue(Worker::new_fifo())).collect();
        let queues = Self {
            urgent: SegQueue::new(),
            normal: Injector::new(),
            hosts_queues: hosts_queues.iter().map(|own| own.0.stealer()).collect(),
        };
        (queues, hosts_queues)
    }

    pub(super) fn push(&self, task: Arc<TaskCore>) {
        if task.is_urgent() {
            self.urgent.push(task);
        } else {
            self.normal.push(task);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.urgent.is_empty()
            && self.normal.is_empty()
            && self.hosts_queues.iter().all(Stealer::is_empty)
    }

    pub(super) fn pop_urgent(&self) -> Option<Arc<TaskCore>> {
        // An empty queue is seen by loads alone.
        match self.urgent.is_empty() {
            true => None,
            false => self.urgent.pop(),
        }
    }

    /// Takes a normal task, and says whether it took more into the host's own queue.
    pub(super) fn pop_normal(&self, own: &HostQueue) -> Option<(Arc<TaskCore>, bool)> {
        if let Some(task) = own.0.pop() {
            return Some((task, false));
        }
        loop {
            let stolen = self
                .normal
                .steal_batch_with_limit_and_pop(&own.0, HAND_TASKS)
                .or_else(|| self.hosts_queues.iter().map(Stealer::steal).collect());
            match stolen {
                Steal::Success(task) => return Some((task, !own.0.is_empty())),
                Steal::Empty => return None,
                Steal::Retry => {}
            }
        }
    }

    /// True if there are normal tasks.
    pub(super) fn has_normal(&self) -> bool {
        !self.normal.is_empty() || self.hosts_queues.iter().any(|own| !own.is_empty())
    }
}

/// Tasks that a host takes at a time.
const HAND_TASKS: usize = 16;
