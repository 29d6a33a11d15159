//! The process's rings with their threads, and the tables of names.
//!
//! Why here: a thread gets its ring at its first record and keeps it to its end; the events of
//! threads that ended stay until their ring is needed again.
//! Must stay true: at most [`THREADS_MAX`] rings are ever made; a ring is written by one thread at
//! a time, since it is given and taken back under this lock.

use crate::name::Name;
use crate::ring::{Ring, Words};
use sidecore_sys::clock;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// All there is of a recording, but for the rings' contents.
pub(crate) struct Registry {
    threads: Vec<Thread>,
    pub(crate) names: Vec<&'static Name>,
    pub(crate) lanes: Vec<String>,
    pub(crate) labels: Vec<String>,
    /// Threads that found every ring taken.
    pub(crate) threads_left_out: u64,
    /// Threads that have ended so far.
    ended: u64,
    /// The beginning of the recording.
    pub(crate) begun: Moment,
}

impl Name {
    /// Its number, which it gets at the first call.
    #[inline]
    pub(crate) fn number(&'static self) -> u32 {
        // Relaxed: the number alone says all; the table is read under its lock.
        match self.number.load(Ordering::Relaxed) {
            0 => self.register(),
            number => number,
        }
    }

    #[cold]
    fn register(&'static self) -> u32 {
        let mut registry = registry();
        // Another thread may have been quicker.
        let number = self.number.load(Ordering::Relaxed);
        if number != 0 {
            return number;
        }
        registry.names.push(self);
        let number = u32::try_from(registry.names.len()).unwrap_or(u32::MAX);
        self.number.store(number, Ordering::Relaxed);
        number
    }
}

/// One ring, and the thread that has it or had it last.
struct Thread {
    ring: &'static Ring,
    /// Records that were there before this thread, or this recording, began.
    since: u64,
    id: i32,
    name: String,
    /// Its turn among the threads that ended; `None` while it lives.
    ended: Option<u64>,
}

/// One moment on both clocks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Moment {
    pub(crate) cycles: u64,
    pub(crate) ns: u64,
}

impl Moment {
    pub(crate) fn now() -> Self {
        Self {
            cycles: clock::cycles(),
            ns: clock::now_ns(),
        }
    }
}

/// The records of one thread, copied.
#[derive(Debug, Default)]
pub(crate) struct ThreadRecords {
    pub(crate) id: i32,
    pub(crate) name: String,
    /// Records that were overwritten.
    pub(crate) lost: u64,
    pub(crate) records: Vec<Words>,
}

/// The registry, locked.
pub(crate) fn registry() -> MutexGuard<'static, Registry> {
    // A panic under the lock leaves tables that are whole.
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry {
    threads: Vec::new(),
    names: Vec::new(),
    lanes: Vec::new(),
    labels: Vec::new(),
    threads_left_out: 0,
    ended: 0,
    begun: Moment { cycles: 0, ns: 0 },
});

impl Registry {
    /// Begins a recording: what was recorded before does not count. Lanes stay, for those that
    /// have them.
    pub(crate) fn begin(&mut self) {
        for thread in &mut self.threads {
            thread.since = thread.ring.count();
        }
        self.threads_left_out = 0;
        self.begun = Moment::now();
    }

    /// A ring for a thread, if there is one left: a new one, or that of the thread that ended
    /// first.
    pub(crate) fn admit(&mut self, id: i32, name: String) -> Option<&'static Ring> {
        if self.threads.len() < THREADS_MAX {
            // Never freed: a thread that ends late may still write, and the number is bounded.
            let ring: &'static Ring = Box::leak(Box::new(Ring::new(RECORDS)));
            self.threads.push(Thread {
                ring,
                since: 0,
                id,
                name,
                ended: None,
            });
            return Some(ring);
        }
        let ended = self.threads.iter_mut().filter(|it| it.ended.is_some());
        let Some(thread) = ended.min_by_key(|thread| thread.ended) else {
            self.threads_left_out += 1;
            return None;
        };
        // Records in the ring now are of the thread that had it before.
        thread.since = thread.ring.count();
        (thread.id, thread.name, thread.ended) = (id, name, None);
        Some(thread.ring)
    }

    /// Takes a thread's ring back; its records stay.
    pub(crate) fn dismiss(&mut self, ring: &'static Ring) {
        self.ended += 1;
        let turn = self.ended;
        if let Some(thread) = self.thread_of(ring) {
            thread.ended = Some(turn);
        }
    }

    /// Names the thread that has this ring.
    pub(crate) fn rename(&mut self, ring: &'static Ring, name: String) {
        if let Some(thread) = self.thread_of(ring) {
            thread.name = name;
        }
    }

    fn thread_of(&mut self, ring: &'static Ring) -> Option<&mut Thread> {
        let mut threads = self.threads.iter_mut();
        threads.find(|thread| std::ptr::eq(thread.ring, ring))
    }

    /// Copies all records that are there.
    pub(crate) fn copy(&self) -> Vec<ThreadRecords> {
        let copy = |thread: &Thread| {
            let mut records = Vec::with_capacity(RECORDS);
            let lost = thread.ring.read(thread.since, &mut records);
            ThreadRecords {
                id: thread.id,
                name: thread.name.clone(),
                lost,
                records,
            }
        };
        self.threads.iter().map(copy).collect()
    }
}

/// Records that a thread's ring holds, of which the newest are kept: 1 MiB.
pub const RECORDS: usize = 1 << 15;
/// The most threads whose records are kept; those that ended make room for new ones.
pub const THREADS_MAX: usize = 128;
