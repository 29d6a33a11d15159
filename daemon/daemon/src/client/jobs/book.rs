//! A client's book of its open jobs: which are at the daemon, which are done, which are left to
//! this process.
//!
//! Must stay true: one thread at a time has the book. A place that an engine may still look at is
//! not used again (`held`). The daemon's answers are trusted in their meaning, but an answer for a
//! place without a job at the daemon is ignored. After an attachment's end nothing of it is read
//! any more.

use super::super::error::ClientError;
use super::super::link::{Link, Watch};
use super::descriptor::Descriptor;
use super::job::{Job, Outcome};
use super::packet::packet;
use crate::served::Reply;
use crate::shm::layout::Status;
use crate::shm::ring::{Completion, JOBS_MAX};
use crate::shm::segment::Lease;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

/// A job's name in the book.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    place: usize,
    generation: u32,
}

/// The taker of a job's outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// Its ticket.
    Ticket,
    /// A call of `poll`.
    Poll,
    /// None: the ticket was dropped, or the outcome taken.
    Nobody,
}

#[derive(Debug)]
enum State {
    /// Without a job; taken out of the book for a moment.
    Free,
    /// Submitted to the daemon, with copies of inputs that were outside the arena.
    Flying {
        job: Job,
        staged: Vec<Lease>,
        cancelled: bool,
    },
    /// To be done by this process.
    Local(Job),
    /// A thread of this process is doing it; this flag tells that thread of a cancellation.
    Running(Arc<AtomicBool>),
    Done(Outcome),
}

#[derive(Debug)]
struct Place {
    generation: u32,
    owner: Owner,
    state: State,
    /// True while its number is in a ring.
    held: bool,
    waker: Option<Waker>,
}

/// Counts of jobs by the place where they ran.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct JobCounters {
    pub(super) on_engines: u64,
    pub(super) on_host: u64,
    pub(super) given_up: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Book {
    process: u32,
    pub(super) link: Option<Arc<Link>>,
    watch: Option<Watch>,
    places: Vec<Place>,
    free: Vec<usize>,
    /// Positions in the rings of the attachment.
    submitted: u64,
    completed: u64,
    /// Places whose number is in a ring.
    held: usize,
    /// Jobs for `poll`: done, and to be done here.
    ready: VecDeque<Key>,
    local: VecDeque<Key>,
    /// Open jobs for `poll`.
    pub(super) posted: usize,
    /// Places with a waker.
    pub(super) wakers: usize,
    /// To be woken once the book is closed.
    pub(super) woken: Vec<Waker>,
    /// Something was done that others may wait for.
    pub(super) progress: bool,
    pub(super) descriptor: Option<Arc<Descriptor>>,
    /// True while a thread drives futures.
    pub(super) driven: bool,
    pub(super) counters: JobCounters,
}

impl Default for Book {
    fn default() -> Self {
        Self {
            process: std::process::id(),
            link: None,
            watch: None,
            places: Vec::new(),
            free: Vec::new(),
            submitted: 0,
            completed: 0,
            held: 0,
            ready: VecDeque::new(),
            local: VecDeque::new(),
            posted: 0,
            wakers: 0,
            woken: Vec::new(),
            progress: false,
            descriptor: None,
            driven: false,
            counters: JobCounters::default(),
        }
    }
}

impl Book {
    /// Takes in the news: completions, the end of the attachment, and a `fork` (this process is a
    /// child of the one that attached).
    pub(super) fn settle(&mut self) {
        let process = std::process::id();
        if process != self.process {
            // The rings are the parent's, and threads are not inherited.
            self.process = process;
            self.driven = false;
            self.give_up();
        }
        // Answers first: they count also where the attachment has ended since.
        self.collect();
        if self.link.as_ref().is_some_and(|link| link.is_dead()) {
            self.give_up();
        }
    }

    /// Looks whether the daemon is still there.
    pub(super) fn look(&mut self) {
        let (Some(link), Some(watch)) = (&self.link, &mut self.watch) else {
            return;
        };
        if self.held > 0 && watch.look(link) {
            // An answer that came before the daemon went is as good as any.
            self.collect();
            self.give_up();
        }
    }

    /// True if an engine has completed a job that the book does not know of.
    pub(super) fn has_news(&self) -> bool {
        let jobs = self.link.as_ref().and_then(|link| link.segment.jobs());
        jobs.is_some_and(|jobs| jobs.completed.completion(self.completed).is_some())
    }

    /// Open jobs: submitted and their outcome not taken.
    pub(super) fn open(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Enters a job and submits it to the daemon of `link`, or leaves it to this process. The
    /// number of jobs that are at the daemon then.
    ///
    /// # Errors
    /// [`ClientError::Full`], and the job.
    pub(super) fn enter(
        &mut self,
        job: Job,
        owner: Owner,
        link: Option<Arc<Link>>,
    ) -> Result<Key, Box<(ClientError, Job)>> {
        let Some(place) = self.free_place() else {
            let open = self.open();
            return Err(Box::new((ClientError::Full { open }, job)));
        };
        // Only now: a refused job must not change the attachment.
        self.adopt(link);
        let generation = self.places[place].generation;
        let key = Key { place, generation };
        self.places[place].owner = owner;
        self.posted += usize::from(owner == Owner::Poll);
        self.dispatch(key, job);
        Ok(key)
    }

    fn free_place(&mut self) -> Option<usize> {
        // The place used last: its slot in shared memory is in the cache.
        if let Some(place) = self.free.pop() {
            return Some(place);
        }
        if self.places.len() == JOBS_MAX {
            return None;
        }
        let place = self.places.len();
        self.places.push(Place {
            generation: 0,
            owner: Owner::Nobody,
            state: State::Free,
            held: false,
            waker: None,
        });
        Some(place)
    }

    /// Takes an attachment into use where there is none.
    fn adopt(&mut self, link: Option<Arc<Link>>) {
        let is_ours = |link: &Arc<Link>| link.process == self.process && !link.is_dead();
        if self.link.is_none()
            && let Some(link) = link.filter(is_ours)
        {
            // A new attachment has new rings, whose positions begin at 0.
            self.watch = Some(Watch::new(&link));
            (self.submitted, self.completed) = (0, 0);
            if let Some(descriptor) = &self.descriptor {
                descriptor.follow(Some(&link));
            }
            self.link = Some(link);
        }
    }

    /// Submits a job to the daemon, or leaves it to this process.
    fn dispatch(&mut self, key: Key, mut job: Job) {
        let place = key.place;
        let submitted = self.link.clone().and_then(|link| {
            let jobs = link.segment.jobs()?;
            let slot = jobs.slot(place)?;
            let (packet, staged) = packet(&link, &mut job)?;
            // The slot before its number in the ring: an engine reads it as soon as it sees that.
            slot.ask(&packet);
            jobs.submitted.submit(self.submitted, place);
            Some(staged)
        });
        let Some(staged) = submitted else {
            self.leave_here(key, job);
            return;
        };
        self.submitted += 1;
        self.held += 1;
        self.places[place].held = true;
        self.places[place].state = State::Flying {
            job,
            staged,
            cancelled: false,
        };
    }

    /// Leaves a job to this process.
    fn leave_here(&mut self, key: Key, job: Job) {
        let place = &mut self.places[key.place];
        place.state = State::Local(job);
        if place.owner == Owner::Poll {
            self.local.push_back(key);
        }
        // A thread that waits may do it.
        self.progress = true;
    }

    /// Takes in completions.
    fn collect(&mut self) {
        let Some(link) = self.link.clone() else {
            return;
        };
        let Some(jobs) = link.segment.jobs() else {
            return;
        };
        // As many as can be open; a daemon that is trusted writes no more.
        for _ in 0..JOBS_MAX {
            let Some(completion) = jobs.completed.completion(self.completed) else {
                break;
            };
            self.completed += 1;
            self.complete(&link, completion);
        }
    }

    fn complete(&mut self, link: &Link, completion: Completion) {
        let index = completion.place();
        // Anything may stand in shared memory: an answer without a question is dropped.
        let Some(place) = self.places.get_mut(index).filter(|place| place.held) else {
            return;
        };
        place.held = false;
        self.held -= 1;
        match std::mem::replace(&mut place.state, State::Free) {
            State::Flying { job, .. } => {
                self.counters.on_engines += 1;
                let result = result(link, completion);
                self.finish(index, job, result);
            }
            // Its outcome was taken while its number was still in the ring.
            State::Free => self.free.push(index),
            state => place.state = state,
        }
    }

    /// The end of a job.
    fn finish(&mut self, index: usize, job: Job, result: Result<Reply, ClientError>) {
        self.progress = true;
        let place = &mut self.places[index];
        let key = Key {
            place: index,
            generation: place.generation,
        };
        place.state = State::Done(job.end(result));
        // Not woken here: a waker runs foreign code, which may want the book.
        if let Some(waker) = place.waker.take() {
            self.wakers -= 1;
            self.woken.push(waker);
        }
        match place.owner {
            Owner::Ticket => {}
            Owner::Poll => self.ready.push_back(key),
            Owner::Nobody => drop(self.take(key)),
        }
    }

    /// The attachment is over: open jobs are left to this process.
    fn give_up(&mut self) {
        let link = self.link.take();
        if let Some(link) = &link {
            link.give_up();
            if let Some(descriptor) = &self.descriptor {
                descriptor.follow(None);
            }
        }
        // The rings of a parent are not a child's to change.
        let own = link.filter(|link| link.process == self.process);
        let jobs = own.as_ref().and_then(|link| link.segment.jobs());
        self.watch = None;
        self.held = 0;
        for index in 0..self.places.len() {
            let place = &mut self.places[index];
            if !std::mem::take(&mut place.held) {
                continue;
            }
            let key = Key {
                place: index,
                generation: place.generation,
            };
            match std::mem::replace(&mut place.state, State::Free) {
                State::Flying {
                    mut job, cancelled, ..
                } => {
                    // A daemon that was only stopped begins none of them later; a running kernel
                    // can see that its answer is not wanted.
                    if let Some(slot) = jobs.as_ref().and_then(|jobs| jobs.slot(index)) {
                        slot.take_back();
                    }
                    // Later writes of the daemon then go to memory that no code reads any more.
                    job.move_home();
                    self.counters.given_up += 1;
                    if cancelled || self.places[index].owner == Owner::Nobody {
                        self.finish(index, job, Err(ClientError::Cancelled));
                    } else {
                        self.leave_here(key, job);
                    }
                }
                State::Free => self.free.push(index),
                state => place.state = state,
            }
        }
    }

    /// Cancels a job; true if it ends without having been done.
    pub(super) fn cancel(&mut self, key: Key) -> bool {
        let link = self.link.clone();
        let Some(place) = self.place(key) else {
            return false;
        };
        match std::mem::replace(&mut place.state, State::Free) {
            State::Flying { job, staged, .. } => {
                let jobs = link.as_ref().and_then(|link| link.segment.jobs());
                let slot = jobs.and_then(|jobs| jobs.slot(key.place));
                // Its number stays in the ring, and its place is held until an engine has seen it.
                if slot.is_some_and(|slot| slot.take_back()) {
                    self.finish(key.place, job, Err(ClientError::Cancelled));
                    return true;
                }
                place.state = State::Flying {
                    job,
                    staged,
                    cancelled: true,
                };
                false
            }
            State::Local(job) => {
                self.local.retain(|local| *local != key);
                self.finish(key.place, job, Err(ClientError::Cancelled));
                true
            }
            state => {
                if let State::Running(cancelled) = &state {
                    // Relaxed: advice.
                    cancelled.store(true, Ordering::Relaxed);
                }
                place.state = state;
                false
            }
        }
    }

    /// Drops the owner of a job's outcome.
    pub(super) fn abandon(&mut self, key: Key) {
        let Some(place) = self.place(key) else {
            return;
        };
        place.owner = Owner::Nobody;
        let had_waker = place.waker.take().is_some();
        let is_done = matches!(place.state, State::Done(_));
        self.wakers -= usize::from(had_waker);
        if is_done {
            drop(self.take(key));
        } else {
            self.cancel(key);
        }
    }

    /// Takes the outcome of a job, if it is done.
    pub(super) fn take(&mut self, key: Key) -> Option<Outcome> {
        let place = self.place(key)?;
        let State::Done(_) = &place.state else {
            return None;
        };
        let State::Done(outcome) = std::mem::replace(&mut place.state, State::Free) else {
            return None;
        };
        // Keys of this job name nothing from now on.
        place.generation = place.generation.wrapping_add(1);
        let owner = std::mem::replace(&mut place.owner, Owner::Nobody);
        if !place.held {
            self.free.push(key.place);
        }
        self.posted -= usize::from(owner == Owner::Poll);
        Some(outcome)
    }

    /// Takes the next outcome for `poll`.
    pub(super) fn take_ready(&mut self) -> Option<Outcome> {
        while let Some(key) = self.ready.pop_front() {
            if let Some(outcome) = self.take(key) {
                return Some(outcome);
            }
        }
        None
    }

    pub(super) fn is_done(&mut self, key: Key) -> bool {
        self.place(key)
            .is_none_or(|place| matches!(place.state, State::Done(_)))
    }

    pub(super) fn is_local(&mut self, key: Key) -> bool {
        self.place(key)
            .is_some_and(|place| matches!(place.state, State::Local(_)))
    }

    /// True if a job waits for `poll`.
    pub(super) fn is_ready(&self) -> bool {
        !self.ready.is_empty() || !self.local.is_empty()
    }

    /// A job for `poll` that this process has to do.
    pub(super) fn next_local(&mut self) -> Option<Key> {
        self.local.pop_front()
    }

    /// A job with a waker that this process has to do.
    pub(super) fn next_awaited(&self) -> Option<Key> {
        // The search goes over all places, and most programs have no futures.
        if self.wakers == 0 {
            return None;
        }
        let is_due =
            |place: &&Place| place.waker.is_some() && matches!(place.state, State::Local(_));
        let index = self.places.iter().position(|place| is_due(&place))?;
        Some(Key {
            place: index,
            generation: self.places[index].generation,
        })
    }

    /// Takes a job out to be done by this thread; the flag is set when the job is cancelled.
    pub(super) fn begin(&mut self, key: Key) -> Option<(Job, Arc<AtomicBool>)> {
        let place = self.place(key)?;
        match std::mem::replace(&mut place.state, State::Free) {
            State::Local(job) => {
                let cancelled = Arc::new(AtomicBool::new(false));
                place.state = State::Running(Arc::clone(&cancelled));
                Some((job, cancelled))
            }
            state => {
                place.state = state;
                None
            }
        }
    }

    /// Enters the result of a job that this process did.
    pub(super) fn end(&mut self, key: Key, job: Job, result: Result<Reply, ClientError>) {
        // The work was done, whether or not its owner still wants it.
        self.counters.on_host += 1;
        if self.place(key).is_some() {
            self.finish(key.place, job, result);
        }
    }

    /// Leaves a waker with a job that is not done.
    pub(super) fn set_waker(&mut self, key: Key, waker: &Waker) {
        let Some(place) = self.place(key) else {
            return;
        };
        let is_new = place.waker.replace(waker.clone()).is_none();
        self.wakers += usize::from(is_new);
    }

    /// Wakes all futures that left a waker.
    pub(super) fn wake_all(&mut self) {
        let wakers = self
            .places
            .iter_mut()
            .filter_map(|place| place.waker.take());
        self.woken.extend(wakers);
        self.wakers = 0;
    }

    /// Jobs whose numbers are in a ring: at the daemon, or taken back and not passed yet.
    pub(super) fn at_daemon(&self) -> usize {
        self.held
    }

    fn place(&mut self, key: Key) -> Option<&mut Place> {
        self.places
            .get_mut(key.place)
            .filter(|place| place.generation == key.generation)
    }
}

/// The result that an engine gave.
fn result(link: &Link, completion: Completion) -> Result<Reply, ClientError> {
    let jobs = link.segment.jobs();
    let slot = jobs.and_then(|jobs| jobs.slot(completion.place()));
    let slot = slot.ok_or(ClientError::Nonsense)?;
    match Status::from_number(completion.status()) {
        Some(Status::Done) => Ok(Reply {
            words: slot.reply(),
        }),
        Some(Status::Failed) => Err(ClientError::Engine { text: slot.text() }),
        Some(Status::TakenBack) => Err(ClientError::Cancelled),
        // Our numbers and ranges were checked: this daemon breaks the protocol.
        Some(Status::UnknownKernel | Status::BadRange) | None => Err(ClientError::Nonsense),
    }
}
