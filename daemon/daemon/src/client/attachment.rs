//! One attachment without host versions: for callers with their own, as the C library is.
//!
//! Why here: a [`Client`](super::Client) owns buffers, runs calls that no engine runs, and attaches
//! again by itself. A program in another language has its own way with all three and needs only the
//! protocol. Must stay true: once lost it stays lost. The daemon may still write to a lost call or
//! job, so the owner of its outputs copies them out and never reads the arena's bytes again.

use super::call::{Asked, ask};
use super::error::ClientError;
use super::jobs::{Job, JobId, Outcome, Queue};
use super::link::{self, Link, Slot};
use super::{ATTACH_TIME_MAX, ClientOptions, Wait};
use crate::served::Reply;
use crate::shm::introduction::Question;
use crate::shm::segment::Lease;
use crate::shm::slot::{Packet, RANGES_MAX, WORDS};
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use sidecore_bare::width::{ToU64, ToUsize};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A request in numbers, as it crosses to the daemon.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The daemon's number of the kernel ([`Attachment::kernel`]).
    pub kernel: u32,
    /// The words; those not used are 0.
    pub words: [u64; WORDS],
    /// Stretches of the arena that are inputs: offset and length in bytes.
    pub inputs: &'a [(u64, u64)],
    /// Stretches of the arena that are outputs; they overlap neither inputs nor one another.
    pub outputs: &'a [(u64, u64)],
}

/// One attachment to a daemon, from its beginning to its end. Any thread may call any method; one
/// call at a time is made on each engine.
#[derive(Debug)]
pub struct Attachment {
    link: Arc<Link>,
    slots: Box<[CachePadded<Mutex<Slot>>]>,
    jobs: Queue,
    spin_cycles: u64,
}

/// A stretch of an attachment's arena, until it is dropped. Outlives the attachment.
#[derive(Debug)]
pub struct Stretch(Lease);

impl Stretch {
    /// Its offset in the arena, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.0.offset().to_u64()
    }

    /// Copies its first bytes out although the daemon may be writing to them: for the output of a
    /// lost call or job.
    ///
    /// # Panics
    /// If `target` is longer than the stretch.
    pub fn copy_racing(&self, target: &mut [u8]) {
        self.0.copy_racing(target);
    }
}

impl Attachment {
    /// Attaches to the daemon at `socket`; blocks for up to 2 s. Of the options, the registry does
    /// not count.
    ///
    /// ```no_run
    /// use sidecore_daemon::client::{Attachment, ClientOptions, Request};
    /// use sidecore_daemon::default_socket;
    ///
    /// let attached = Attachment::attach(&default_socket(), &ClientOptions::default())?;
    /// let kernel = attached.kernel("empty").expect("every daemon has it");
    /// let request = Request { kernel, words: [0; 6], inputs: &[], outputs: &[] };
    /// attached.call(0, &request)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Client::attach`](super::Client::attach).
    pub fn attach(socket: &Path, options: &ClientOptions) -> Result<Self, ClientError> {
        let question = Question::Attach {
            arena_bytes: options.arena_bytes,
        };
        let trust = &options.trust;
        let (asked, answer) = link::ask_and_wait(socket, trust, question, ATTACH_TIME_MAX)?;
        let link = Arc::new(Link::new(asked, answer, options)?);
        let spin_us = options.spin.as_secs_f64() * 1e6;
        let spin_cycles = (spin_us * sidecore_sys::clock::cycles_per_us()) as u64;
        Ok(Self {
            slots: (0..link.engines).map(|_| CachePadded::default()).collect(),
            link,
            jobs: Queue::new(options.registry.clone(), spin_cycles),
            spin_cycles,
        })
    }

    /// The daemon's number of the kernel of that name.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<u32> {
        self.link.kernel_of_name(name)
    }

    /// Number of engines.
    #[must_use]
    pub fn engines(&self) -> usize {
        self.link.engines
    }

    /// The engine to use first: clients are spread over them.
    #[must_use]
    pub fn own_engine(&self) -> usize {
        self.link.client.to_usize() % self.link.engines
    }

    /// Address of the arena in this process, and its bytes.
    #[must_use]
    pub fn arena(&self) -> (*mut u8, u64) {
        let arena = self.link.segment.arena();
        (arena.as_ptr(), arena.len().to_u64())
    }

    /// A stretch of `bytes` bytes. `None` where the arena has no room, and once the daemon is known
    /// to have ended ([`Attachment::is_lost`]).
    #[must_use]
    pub fn stretch(&self, bytes: usize) -> Option<Stretch> {
        // Asked for its effect, too: the arena of a daemon that is ending gives nothing out.
        if self.link.is_dead() {
            return None;
        }
        self.link.segment.lease(bytes).ok().map(Stretch)
    }

    /// True once the daemon is known to have ended, for good.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.link.is_dead()
    }

    /// Calls a kernel on one engine and waits. At most 4 ranges.
    ///
    /// # Errors
    /// [`ClientError::Lost`] where the daemon has ended, [`ClientError::Engine`] where the kernel
    /// failed, [`ClientError::Limit`] and [`ClientError::Nonsense`] for an invalid request.
    pub fn call(&self, engine: usize, request: &Request<'_>) -> Result<Reply, ClientError> {
        let limit = |what, value, limit| Err(ClientError::Limit { what, value, limit });
        let Some(slot) = self.slots.get(engine) else {
            return limit("the number of an engine", engine, self.slots.len());
        };
        let used = request.inputs.len() + request.outputs.len();
        if used > RANGES_MAX {
            return limit("inputs and outputs of a request", used, RANGES_MAX);
        }
        // Before the slot is locked: another call may hold it, and still have to find out.
        if self.link.is_dead() {
            return Err(ClientError::Lost);
        }
        let mut packet = Packet {
            kernel: request.kernel,
            words: request.words,
            inputs: request.inputs.len() as u8,
            outputs: request.outputs.len() as u8,
            ..Packet::default()
        };
        let ranges = request.inputs.iter().chain(request.outputs);
        for (place, range) in packet.ranges.iter_mut().zip(ranges) {
            *place = *range;
        }
        let mut slot = slot.lock();
        if slot.link(engine, || Some(Arc::clone(&self.link))).is_none() {
            return Err(ClientError::Lost);
        }
        // It waits though the engine is held up: this code does not own the outputs, so it cannot
        // move them.
        let wait = Wait::Until(None);
        let answer = ask(&mut slot, engine, &packet, self.spin_cycles, wait, |_| {});
        match answer {
            Some(Asked::Answered(result)) => result,
            Some(Asked::HeldUp) | None => Err(ClientError::Lost),
        }
    }

    /// Hands a job over, with its token; its outcome comes by [`Self::poll`] or [`Self::wait`]. At
    /// most [`JOB_SEGMENTS_MAX`](super::JOB_SEGMENTS_MAX) ranges.
    ///
    /// # Errors
    /// [`ClientError::Lost`], [`ClientError::Full`] and [`ClientError::Limit`].
    pub fn post(&self, request: &Request<'_>, token: u64) -> Result<JobId, ClientError> {
        if self.link.is_dead() {
            return Err(ClientError::Lost);
        }
        let job = Job::of_places(
            request.kernel,
            &request.words,
            request.inputs,
            request.outputs,
        );
        self.jobs.post(job.token(token), &self.link)
    }

    /// The outcome of a job that has ended, if there is one; [`ClientError::Lost`] in it where the
    /// daemon ended before. Does not wait.
    #[must_use]
    pub fn poll(&self) -> Option<Outcome> {
        self.jobs.poll()
    }

    /// Waits for the outcome of a job, at most for `timeout`; `None` then, and where no job is
    /// open.
    #[must_use]
    pub fn wait(&self, timeout: Option<Duration>) -> Option<Outcome> {
        self.jobs.wait(timeout)
    }

    /// As [`Client::cancel`](super::Client::cancel).
    #[must_use]
    pub fn cancel(&self, job: JobId) -> bool {
        self.jobs.cancel(job)
    }

    /// As [`Client::descriptor`](super::Client::descriptor).
    ///
    /// # Errors
    /// [`ClientError::System`] where the system has no descriptor left.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>, ClientError> {
        self.jobs.fd()
    }
}
