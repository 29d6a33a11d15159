//! The engine's side: serves all attached processes in one round of the engine's loop.
//!
//! Why here: applications' requests become calls of the stack, and changes in the stack become
//! events. Must stay true: a process can name only its own sockets and chunks, each of which has
//! one owner at a time according to *this* side's tables; a process that violates this is cut off.
//! A process that does not read its events or return its chunks blocks only its own sockets. One
//! thread: the engine's.

mod books;
mod deliver;
mod requests;

use super::layout::{
    CHUNK_BYTES, CHUNKS, CLIENT_ASLEEP, DATAGRAM_CHUNKS_MAX, ENGINE_ASLEEP, EVENTS, REQUESTS,
};
use super::mailbox::{Attachment, Mailbox};
use super::ring::{Reader, Violation, Writer};
use super::stack::{Id, Sockets};
use books::{Chunks, SocketTable};
use serde::Serialize;
use sidecore_sync::{Changed, Shared, SleepWord};
use sidecore_sys::SharedSlice;
use sidecore_sys::local_socket;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
}

/// All attached processes.
#[derive(Debug)]
pub struct Server {
    mailbox: Arc<Mailbox>,
    bell: Arc<OwnedFd>,
    /// In boxes: the process being served is taken out, so that it can access the others.
    clients: Vec<Option<Box<Client>>>,
    owners: Owners,
    /// Bounce buffer for payload from shared memory to the stack.
    scratch: Box<[u8]>,
    /// Processes that violated the protocol.
    violations: u64,
}

type Owners = HashMap<Id, (u32, u32), BuildHasherDefault<IdHasher>>;

/// One process.
#[derive(Debug)]
struct Client {
    attachment: Arc<Attachment>,
    requests: Reader,
    events: Writer,
    sockets: SocketTable,
    chunks: Chunks,
    /// Sockets with pending work, by their place in the table.
    ready: VecDeque<u32>,
    notified: bool,
    status: ClientStatus,
}

impl Server {
    /// Serves the processes that the control thread admits through `mailbox`.
    #[doc(hidden)] // public for the target `sockets` of `lab/fuzz`, as the two below
    pub fn new(mailbox: Arc<Mailbox>, bell: Arc<OwnedFd>) -> Self {
        Self {
            mailbox,
            bell,
            clients: Vec::new(),
            owners: Owners::default(),
            scratch: vec![0; DATAGRAM_CHUNKS_MAX * CHUNK_BYTES].into(),
            violations: 0,
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
        for client in self.clients.iter_mut().flatten() {
            client.wake();
        }
    }

    /// As [`Self::poll`], without the wake-ups, which [`Self::wake`] does.
    pub fn serve(&mut self, stack: &mut impl Sockets) -> usize {
        if self.mailbox.take_flag() {
            self.take_control_messages(stack);
        }
        let mut work = self.take_stack_events(stack);
        for index in 0..self.clients.len() {
            let Some(mut client) = self.clients[index].take() else {
                continue;
            };
            let mut round = Round {
                stack,
                owners: &mut self.owners,
                scratch: &mut self.scratch,
                others: &mut self.clients,
                index: index as u32,
            };
            let served = client.serve(&mut round);
            self.clients[index] = Some(client);
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
        let clients = self.clients.iter().flatten();
        SleepWord::announce_sleep_at(clients.filter_map(|client| client.sleep_word()));
        let waits = |client: &Client| !client.requests.is_empty(client.memory());
        !self.mailbox.is_flagged()
            && !self.clients.iter().flatten().any(|client| {
                waits(client) || !client.ready.is_empty() || client.chunks.waiting() > 0
            })
    }

    /// Makes processes stop ringing.
    pub fn disarm(&self) {
        for client in self.clients.iter().flatten() {
            if let Some(word) = client.sleep_word() {
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
        self.clients.iter().flatten().map(|client| ClientStatus {
            sockets: client.sockets.len(),
            ..client.status
        })
    }

    /// Processes that were cut off because they violated the protocol.
    #[must_use]
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// True if a request for the status waits for [`Self::answer`].
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.mailbox.is_asked()
    }

    /// Answers a request for the status.
    pub fn answer(&self, text: String) {
        self.mailbox.answer(text);
    }

    /// Admits new attachments and releases ended ones.
    #[doc(hidden)]
    pub fn take_control_messages(&mut self, stack: &mut impl Sockets) {
        for attachment in self.mailbox.take_arrived() {
            self.admit(attachment);
        }
        for index in 0..self.clients.len() {
            let gone = |client: &Client| client.attachment.gone.load(Ordering::Acquire);
            if self.clients[index].as_deref().is_some_and(gone) {
                self.part(index, stack);
            }
        }
    }

    /// Serves a process from now on.
    #[doc(hidden)]
    pub fn admit(&mut self, attachment: Arc<Attachment>) {
        let client = Box::new(Client::new(attachment));
        match self.clients.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(client),
            None => self.clients.push(Some(client)),
        }
    }

    /// Resets all sessions of a process, and nothing else.
    fn part(&mut self, index: usize, stack: &mut impl Sockets) {
        let Some(client) = self.clients[index].take() else {
            return;
        };
        client.attachment.gone.store(true, Ordering::Release);
        for id in client.sockets.ids() {
            self.owners.remove(&id);
            stack.abort(id);
        }
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
            if let Some(&(client, socket)) = self.owners.get(&id)
                && let Some(client) = self
                    .clients
                    .get_mut(client as usize)
                    .and_then(Option::as_mut)
            {
                client.make_ready(socket);
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
    others: &'r mut [Option<Box<Client>>],
    index: u32,
}

impl Client {
    fn new(attachment: Arc<Attachment>) -> Self {
        Self {
            requests: Reader::new(REQUESTS),
            events: Writer::new(EVENTS),
            sockets: SocketTable::default(),
            chunks: Chunks::new(attachment.chunks),
            ready: VecDeque::new(),
            notified: false,
            status: ClientStatus {
                pid: attachment.peer.pid,
                uid: attachment.peer.uid,
                ..ClientStatus::default()
            },
            attachment,
        }
    }

    fn memory(&self) -> SharedSlice<'_> {
        self.attachment.map.slice()
    }

    fn serve(&mut self, round: &mut Round<'_, impl Sockets>) -> Result<usize, Violation> {
        let mut work = 0;
        while work < REQUESTS_MAX {
            // Every request may need an answer at once; without room for it, the request waits.
            let memory = self.attachment.map.slice();
            if self.requests.is_empty(memory) {
                // Prefetches the probable payload of the next request: a process uses the chunk
                // that was returned last.
                memory.prefetch(CHUNKS + self.chunks.last_sent() as usize * CHUNK_BYTES);
                break;
            }
            if self.events.room(memory, 1)? == 0 {
                break;
            }
            let Some(entry) = self.requests.read(memory) else {
                break;
            };
            self.status.requests += 1;
            self.request(&entry, round)?;
            work += 1;
        }
        // As many as there are chunks: if a socket does not use one, another gets it in the next
        // round.
        for _ in 0..self.chunks.waiting() {
            if let Some(place) = self.chunks.next_starved() {
                if let Some(socket) = self.sockets.get(place) {
                    socket.starved = false;
                }
                self.make_ready(place);
            }
        }
        for _ in 0..self.ready.len() {
            let Some(place) = self.ready.pop_front() else {
                break;
            };
            work += 1;
            self.sockets.unqueue(place);
            if !self.deliver(place, round)? {
                // No room for events: the process is behind. This socket is the first to continue.
                self.sockets.queue(place);
                self.ready.push_front(place);
                break;
            }
        }
        Ok(work)
    }

    fn make_ready(&mut self, place: u32) {
        if self.sockets.queue(place) {
            self.ready.push_back(place);
        }
    }

    fn send_event(&mut self, entry: &super::layout::Entry) -> Result<bool, Violation> {
        let written = self.events.write(self.attachment.map.slice(), entry)?;
        self.notified |= written;
        self.status.events += u64::from(written);
        Ok(written)
    }

    /// Wakes the process if it sleeps and has new events.
    fn wake(&mut self) {
        if !std::mem::take(&mut self.notified) {
            return;
        }
        let word: Option<&SleepWord<Shared>> = self.memory().overlay(CLIENT_ASLEEP);
        let Some(word) = word else { return };
        match &self.attachment.wake {
            // The process sleeps on descriptors, so it is woken by its bell.
            Some(bell) => {
                if word.claim_after(Changed::publish()) {
                    local_socket::poke(bell.as_fd());
                }
            }
            None => {
                word.notify();
            }
        }
    }

    /// The word by which the engine announces a sleep to this process.
    fn sleep_word(&self) -> Option<&SleepWord<Shared>> {
        self.memory().overlay(ENGINE_ASLEEP)
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

/// Bounds of one round: requests of one process, changes of the stack.
const REQUESTS_MAX: usize = 256;
const READY_MAX: usize = 4096;
