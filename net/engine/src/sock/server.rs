//! The engine's side: serves all attached processes in one round of the engine's loop.
//!
//! Why here: applications' requests become calls of the stack, and changes in the stack become
//! events. Must stay true: a process can name only its own sockets and chunks, each of which has
//! one owner at a time according to *this* side's tables; a process that violates this is cut off.
//! A process that does not read its events or return its chunks blocks only its own sockets. One
//! thread: the engine's.

mod books;
mod deliver;
mod link;
mod requests;

use super::layout::{CHUNK_BYTES, DATAGRAM_CHUNKS_MAX, REQUESTS, RingStatus, chunk_offset};
use super::mailbox::{Attachment, Mailbox, Question};
use super::ring::{Reader, Violation};
use super::stack::{Id, Sockets};
use super::taps::Captures;
use books::{Chunks, Place, Ready, SocketTable};
use link::Link;
use serde::Serialize;
use sidecore_sync::SleepWord;
use sidecore_sys::local_socket::{self, Peer};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Counters of one process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ClientStatus {
    /// Process number.
    pub pid: i32,
    /// User number.
    pub uid: u32,
    /// Its listeners, sessions and UDP sockets.
    pub sockets: usize,
    /// Requests served.
    pub requests: u64,
    /// Events delivered.
    pub events: u64,
    /// Payload that it sent, in bytes.
    pub sent_bytes: u64,
    /// Payload that it received, in bytes.
    pub received_bytes: u64,
    /// Bytes of the stack's buffers that its sessions hold ([`Server::status_over`]).
    pub buffer_bytes: usize,
    /// Programs' rings, if it supervises some.
    pub rings: RingStatus,
}

/// All attached processes.
#[derive(Debug)]
pub struct Server {
    mailbox: Arc<Mailbox>,
    bell: Arc<OwnedFd>,
    /// In boxes: the process being served is taken out, so that it can access the others.
    processes: Vec<Option<Box<Process>>>,
    owners: Owners,
    /// Bounce buffer for payload from shared memory to the stack.
    scratch: Box<[u8]>,
    /// Processes that violated the protocol.
    violations: u64,
    captures: Captures,
}

type Owners = HashMap<Id, Owner, BuildHasherDefault<IdHasher>>;

/// The process and the socket that one of the stack's belongs to.
#[derive(Debug, Clone, Copy)]
struct Owner {
    process: usize,
    place: Place,
}

/// One process.
#[derive(Debug)]
struct Process {
    link: Link,
    requests: Reader,
    sockets: SocketTable,
    chunks: Chunks,
    /// Sockets with pending work.
    ready: Ready,
    /// Without the numbers of sockets and of events, which their parts count.
    status: ClientStatus,
}

impl Server {
    /// Serves the processes that the control thread admits through `mailbox`.
    #[doc(hidden)] // public for the target `sockets` of `lab/fuzz`, as the two below
    pub fn new(mailbox: Arc<Mailbox>, bell: Arc<OwnedFd>) -> Self {
        Self {
            mailbox,
            bell,
            processes: Vec::new(),
            owners: Owners::default(),
            scratch: vec![0; DATAGRAM_CHUNKS_MAX * CHUNK_BYTES].into(),
            violations: 0,
            captures: Captures::default(),
        }
    }

    /// One round; returns the amount of work done (0 if there was none). Wakes sleeping processes.
    pub fn poll(&mut self, stack: &mut impl Sockets) -> usize {
        let work = self.serve(stack);
        self.wake();
        work
    }

    /// Wakes the processes that sleep and have new events. The events are visible already; checking
    /// for a sleeper waits until they have left the store buffer, so an engine should do other work
    /// first.
    pub fn wake(&mut self) {
        for process in self.processes.iter_mut().flatten() {
            process.link.wake();
        }
    }

    /// As [`Self::poll`], without the wake-ups, which [`Self::wake`] does.
    pub fn serve(&mut self, stack: &mut impl Sockets) -> usize {
        // One load in most rounds: processes come and go seldom.
        if self.mailbox.take_flag() {
            self.take_control_messages(stack);
        }
        let mut work = self.take_stack_events(stack);
        for index in 0..self.processes.len() {
            let Some(mut process) = self.processes[index].take() else {
                continue;
            };
            let mut round = Round {
                stack,
                owners: &mut self.owners,
                scratch: &mut self.scratch,
                others: &mut self.processes,
                index,
            };
            let served = process.serve(&mut round);
            // Put back before a violation is handled: `part` takes it out of its place.
            self.processes[index] = Some(process);
            match served {
                Ok(done) => work += done,
                Err(Violation) => {
                    self.violations += 1;
                    self.part(index, stack);
                }
            }
        }
        work
    }

    /// Makes processes ring the bell from now on; false if a request waits already.
    pub fn arm(&self) -> bool {
        let processes = || self.processes.iter().flatten();
        // Announced before the look: a request that arrives in between rings, or is seen here.
        SleepWord::announce_sleep_at(processes().filter_map(|process| process.link.sleep_word()));
        !self.mailbox.is_flagged() && !processes().any(|process| process.has_work())
    }

    /// Makes processes stop ringing.
    pub fn disarm(&self) {
        for process in self.processes.iter().flatten() {
            if let Some(word) = process.link.sleep_word() {
                word.cancel_sleep();
            }
        }
        local_socket::drain(self.bell.as_fd());
    }

    /// Descriptor that becomes readable when a process rings.
    #[must_use]
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Counters of every process.
    pub fn status(&self) -> impl Iterator<Item = ClientStatus> {
        let processes = self.processes.iter().flatten();
        processes.map(|process| process.status())
    }

    /// The same, with the memory of `stack` that each process holds, counted over its first 65,536
    /// sockets.
    pub fn status_over(&self, stack: &impl Sockets) -> impl Iterator<Item = ClientStatus> {
        let processes = self.processes.iter().flatten();
        processes.map(|process| {
            let ids = process.sockets.ids().take(COUNTED_MAX);
            ClientStatus {
                buffer_bytes: ids.map(|id| stack.held_bytes(id)).sum(),
                ..process.status()
            }
        })
    }

    /// Processes that were cut off because they violated the protocol.
    #[must_use]
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// True if a question waits for [`Self::answer`].
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.mailbox.is_asked()
    }

    /// The question, if [`Self::is_asked`].
    pub(crate) fn question(&self) -> Question {
        self.mailbox.question()
    }

    /// The process that one of the stack's sockets belongs to.
    pub(crate) fn owner(&self, id: Id) -> Option<Peer> {
        let owner = self.owners.get(&id)?;
        let process = self.processes.get(owner.process)?.as_deref()?;
        Some(process.link.peer())
    }

    /// Answers a question.
    pub fn answer(&self, text: String) {
        self.mailbox.answer(text);
    }

    /// The readers of frames, if there are any.
    #[inline]
    pub(crate) fn captures(&mut self) -> Option<&mut Captures> {
        Some(&mut self.captures).filter(|captures| !captures.is_empty())
    }

    /// Admits new attachments and releases ended ones.
    #[doc(hidden)]
    pub fn take_control_messages(&mut self, stack: &mut impl Sockets) {
        for attachment in self.mailbox.take_arrived() {
            self.admit(attachment);
        }
        self.captures.forget_gone();
        for index in 0..self.processes.len() {
            let is_gone = |process: &Process| process.link.is_gone();
            if self.processes[index].as_deref().is_some_and(is_gone) {
                self.part(index, stack);
            }
        }
    }

    /// Serves a process from now on.
    #[doc(hidden)]
    pub fn admit(&mut self, attachment: Arc<Attachment>) {
        if attachment.chunks == 0 {
            return self.captures.add(attachment);
        }
        let process = Box::new(Process::new(attachment));
        match self.processes.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(process),
            None => self.processes.push(Some(process)),
        }
    }

    /// Resets all sessions of a process, and nothing else.
    fn part(&mut self, index: usize, stack: &mut impl Sockets) {
        let Some(process) = self.processes[index].take() else {
            return;
        };
        // Marked before the control thread is woken, which looks for it.
        process.link.end();
        for id in process.sockets.ids() {
            self.owners.remove(&id);
            stack.abort(id);
        }
        // The control thread closes the connection and gives the memory back.
        self.mailbox.poke_control();
    }

    fn take_stack_events(&mut self, stack: &mut impl Sockets) -> usize {
        let mut count = 0;
        while count < READY_MAX {
            let Some(id) = stack.next_ready() else {
                break;
            };
            count += 1;
            // A name without an owner belongs to a socket that was just closed.
            if let Some(&owner) = self.owners.get(&id)
                && let Some(Some(process)) = self.processes.get_mut(owner.process)
                && let Some(socket) = process.sockets.at(owner.place)
            {
                process.ready.add(socket);
            }
        }
        count
    }
}

/// Parts of the engine that serving one process needs.
struct Round<'r, S> {
    stack: &'r mut S,
    owners: &'r mut Owners,
    scratch: &'r mut [u8],
    /// The other processes; none in the place of the one being served.
    others: &'r mut [Option<Box<Process>>],
    index: usize,
}

impl Process {
    fn new(attachment: Arc<Attachment>) -> Self {
        Self {
            requests: Reader::new(REQUESTS),
            sockets: SocketTable::default(),
            chunks: Chunks::new(attachment.chunks),
            ready: Ready::default(),
            status: ClientStatus {
                pid: attachment.peer.pid,
                uid: attachment.peer.uid,
                ..ClientStatus::default()
            },
            link: Link::new(attachment),
        }
    }

    fn status(&self) -> ClientStatus {
        ClientStatus {
            sockets: self.sockets.len(),
            events: self.link.written(),
            rings: RingStatus::of(self.link.memory()),
            ..self.status
        }
    }

    /// True if the next round has something to do for it.
    fn has_work(&self) -> bool {
        !self.requests.is_empty(self.link.memory())
            || self.ready.len() > 0
            || self.chunks.waiting() > 0
    }

    fn serve(&mut self, round: &mut Round<'_, impl Sockets>) -> Result<usize, Violation> {
        let mut work = 0;
        while work < REQUESTS_MAX {
            let memory = self.link.memory();
            if self.requests.is_empty(memory) {
                // Prefetches the probable payload of the next request: a process uses the chunk
                // that was returned last.
                memory.prefetch(chunk_offset(self.chunks.last_sent()));
                break;
            }
            // Every request may need an answer at once; without room for it, the request waits.
            if !self.link.has_room(1)? {
                break;
            }
            let Some(entry) = self.requests.read(self.link.memory()) else {
                break;
            };
            self.status.requests += 1;
            self.request(&entry, round)?;
            work += 1;
        }
        // As many as there are chunks: if a socket does not use one, another gets it in the next
        // round.
        for _ in 0..self.chunks.waiting() {
            if let Some(socket) = self.chunks.next_starved(&mut self.sockets) {
                self.ready.add(socket);
            }
        }
        // A socket that is queued again meanwhile has its turn in the next round, so the loop ends.
        for _ in 0..self.ready.len() {
            work += 1;
            let Some(socket) = self.ready.next(&mut self.sockets) else {
                continue;
            };
            let place = socket.place();
            if !self.deliver(place, round)? {
                // No room for events: the process is behind. This socket is the first to continue.
                if let Some(socket) = self.sockets.at(place) {
                    self.ready.resume(socket);
                }
                break;
            }
        }
        Ok(work)
    }
}

/// The keys are numbers that the stack chose itself, so a cheap hash is enough.
#[derive(Debug, Default)]
struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0 ^ value)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(26);
    }
}

/// Sockets of a process whose memory a status counts.
const COUNTED_MAX: usize = 65_536;
/// Bounds of one round: requests of one process, changes of the stack.
const REQUESTS_MAX: usize = 256;
const READY_MAX: usize = 4096;
