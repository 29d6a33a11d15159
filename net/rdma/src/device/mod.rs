//! Many connections with one owner, in the manner of verbs: listeners, connections, completion
//! queues, events, and one descriptor to wait for all of them.
//!
//! Only [`Device::wait`] blocks, and [`Device::listen`] and [`Device::connect`] on the stack for a
//! round trip to its engine. A polling caller uses [`Device::progress`] and [`Device::poll`]; a
//! sleeping one calls [`Device::arm`] and waits for [`Device::descriptor`].
//!
//! Why here: `Connection` has one stream and blocks; a program has many connections and its own
//! loop. Must stay true: completions that are not polled stay in their pair, whose queues are
//! bounded, and do not block other connections; a peer that is silent, slow or at fault only
//! affects its own connection, and occupies a place of its listener until the place is needed.

mod link;
mod outcome;
mod shared;
mod transport;

pub use transport::Transport;

use crate::flow::BUFFER_BYTES;
use crate::{Adapter, Completion, End, Options, Post, RdmaError, Receive, State};
use link::Link;
use shared::Shared;
use sidecore_rdma_wire::{Pair, PairId};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use transport::{Net, Ready};

/// Most connections of a device, including those that are being closed.
pub const CONNECTIONS_MAX: usize = 1 << 14;
/// Most completion queues of a device.
pub const QUEUES_MAX: usize = 1 << 12;
/// Most entries of a completion queue.
pub const QUEUE_DEPTH_MAX: usize = 1 << 18;
/// Most connections of a listener that are not accepted yet.
pub const BACKLOG_MAX: usize = 1 << 10;
/// Most listeners of a device.
const LISTENERS_MAX: usize = 1 << 8;
/// Connections that a listener accepts in one [`Device::progress`].
const ACCEPTS_MAX: usize = 16;
/// Time that a closed connection waits for its peer's end.
const LINGER: Duration = Duration::from_secs(5);
/// Default time limit for opening a connection.
const OPENING_LIMIT: Duration = Duration::from_secs(60);
/// Polls of [`Device::wait`] before it sleeps.
const LOOKS: usize = 200;

/// A connection of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId {
    index: u32,
    /// Number of earlier connections in its place.
    generation: u32,
}

/// A listener of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ListenerId(u32);

/// A completion queue of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(u32);

impl ConnectionId {
    /// Converts it to a number.
    #[must_use]
    pub fn number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The connection with a number.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Self {
            index: number as u32,
            generation: (number >> 32) as u32,
        }
    }
}

impl ListenerId {
    /// Converts it to a number.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    /// The listener with a number.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        Self(number)
    }
}

impl QueueId {
    /// Converts it to a number.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    /// The queue with a number.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        Self(number)
    }
}

/// Completion queues of a connection; both may be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queues {
    /// For work.
    pub send: QueueId,
    /// For receives.
    pub receive: QueueId,
}

/// A completion and its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Queued {
    /// The connection.
    pub connection: ConnectionId,
    /// The completion.
    pub completion: Completion,
}

/// Events of connections.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A peer requests a connection: [`Device::accept`] or [`Device::reject`].
    Requested {
        /// Its listener.
        listener: ListenerId,
        /// The requested connection.
        connection: ConnectionId,
        /// The peer's private data.
        private_data: Vec<u8>,
    },
    /// Messages can be exchanged.
    Established {
        /// The connection.
        connection: ConnectionId,
        /// Private data of the peer that accepted; empty on the accepting side.
        private_data: Vec<u8>,
    },
    /// It has ended, or was never established; its work is flushed. [`Device::close`] frees its
    /// place.
    Ended {
        /// The connection.
        connection: ConnectionId,
        /// The reason.
        end: End,
        /// Private data of the peer that rejected.
        private_data: Vec<u8>,
    },
}

/// Connections, listeners and queues over one transport.
#[derive(Debug)]
pub struct Device {
    adapter: Adapter,
    net: Net,
    links: Vec<Place>,
    free: Vec<u32>,
    listeners: Vec<Option<Listening>>,
    queues: Vec<Option<Queue>>,
    shared: Vec<Shared>,
    events: VecDeque<Event>,
    /// Connections that need progress without an event of their stream.
    busy: VecDeque<u32>,
    /// Connections that wait for room in the stream.
    blocked: VecDeque<u32>,
    /// Closed connections that have not ended yet.
    lingering: Vec<u32>,
    ready: Vec<Ready>,
    buffer: Vec<u8>,
    /// Connections being opened from this side, in order.
    opening: VecDeque<(Instant, ConnectionId)>,
    opening_limit: Duration,
    /// Delay of the first messages of connections from this side.
    settle: Duration,
    settling: Vec<ConnectionId>,
}

#[derive(Debug, Default)]
struct Place {
    generation: u32,
    link: Option<Link>,
}

#[derive(Debug)]
struct Listening {
    options: Options,
    backlog: usize,
    /// Connections not accepted yet, the oldest first.
    pending: VecDeque<u32>,
}

#[derive(Debug)]
struct Queue {
    entries: VecDeque<Queued>,
    depth: usize,
    /// Connections with completions that found no room.
    waiting: VecDeque<u32>,
}

impl Device {
    /// Opens a device.
    ///
    /// # Errors
    /// The engine's, the system's.
    pub fn open(transport: Transport) -> Result<Self, RdmaError> {
        Ok(Self {
            adapter: Adapter::new()?,
            net: Net::open(transport)?,
            links: Vec::new(),
            free: Vec::new(),
            listeners: Vec::new(),
            queues: Vec::new(),
            shared: Vec::new(),
            events: VecDeque::new(),
            busy: VecDeque::new(),
            blocked: VecDeque::new(),
            lingering: Vec::new(),
            ready: Vec::new(),
            buffer: vec![0; BUFFER_BYTES],
            opening: VecDeque::new(),
            opening_limit: OPENING_LIMIT,
            settle: Duration::ZERO,
            settling: Vec::new(),
        })
    }

    /// Registered memory.
    #[must_use]
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// Registered memory, to register and to modify.
    pub fn adapter_mut(&mut self) -> &mut Adapter {
        &mut self.adapter
    }

    /// A completion queue of `depth` entries, at most [`QUEUE_DEPTH_MAX`].
    ///
    /// # Errors
    /// Too many queues.
    pub fn create_queue(&mut self, depth: usize) -> Result<QueueId, RdmaError> {
        let depth = depth.clamp(1, QUEUE_DEPTH_MAX);
        let queue = Queue {
            entries: VecDeque::new(),
            depth,
            waiting: VecDeque::new(),
        };
        let place = vacant(&mut self.queues, QUEUES_MAX);
        let index = place.ok_or(RdmaError::TooMany("completion queues", QUEUES_MAX))?;
        self.queues[index] = Some(queue);
        Ok(QueueId(index as u32))
    }

    /// Drops a queue with its completions; later completions of its connections are dropped, too.
    pub fn drop_queue(&mut self, queue: QueueId) {
        if let Some(place) = self.queues.get_mut(queue.0 as usize) {
            *place = None;
        }
    }

    /// Listens at `local`; at most `backlog` connections wait to be accepted, whose pairs get
    /// `options`.
    ///
    /// # Errors
    /// In use, not a local address; too many listeners.
    pub fn listen(
        &mut self,
        local: SocketAddr,
        backlog: usize,
        options: Options,
    ) -> Result<ListenerId, RdmaError> {
        let place = vacant(&mut self.listeners, LISTENERS_MAX);
        let index = place.ok_or(RdmaError::TooMany("listeners", LISTENERS_MAX))?;
        let backlog = backlog.clamp(1, BACKLOG_MAX);
        self.net.listen(index as u32, local, backlog)?;
        self.listeners[index] = Some(Listening {
            options: self.net.fitted(options),
            backlog,
            pending: VecDeque::new(),
        });
        Ok(ListenerId(index as u32))
    }

    /// The address of a listener.
    #[must_use]
    pub fn listener_address(&self, listener: ListenerId) -> Option<SocketAddr> {
        self.net.listener_address(listener.0)
    }

    /// Stops listening; connections that were not accepted are dropped.
    pub fn close_listener(&mut self, listener: ListenerId) {
        let place = self.listeners.get_mut(listener.0 as usize);
        let Some(listening) = place.and_then(Option::take) else {
            return;
        };
        self.net.close_listener(listener.0);
        for index in listening.pending {
            self.free_link(index);
        }
    }

    /// Begins to open a connection; [`Event::Established`] or [`Event::Ended`] reports the outcome.
    ///
    /// # Errors
    /// Unreachable, too long private data, no such queue; too many connections.
    pub fn connect(
        &mut self,
        peer: SocketAddr,
        options: Options,
        queues: Queues,
        private_data: &[u8],
    ) -> Result<ConnectionId, RdmaError> {
        self.connect_from(None, peer, options, queues, private_data)
    }

    /// The same from a local address; on the stack only its port is used.
    ///
    /// # Errors
    /// As [`Self::connect`]; the address is in use.
    pub fn connect_from(
        &mut self,
        local: Option<SocketAddr>,
        peer: SocketAddr,
        options: Options,
        queues: Queues,
        private_data: &[u8],
    ) -> Result<ConnectionId, RdmaError> {
        self.check_queues(queues)?;
        let id = PairId(self.adapter.next_pair());
        let pair = Pair::connect(id, self.net.fitted(options), private_data)?;
        let index = self.reserve()?;
        match self.net.connect(index, peer, local) {
            Ok(wire) => {
                let mut link = Link::new(pair, wire, None);
                link.queues = Some(queues);
                link.flow.settle = self.settle;
                let connection = self.put(index, link);
                self.opening.push_back((Instant::now(), connection));
                if self.settle > Duration::ZERO {
                    self.settling.push(connection);
                }
                Ok(connection)
            }
            Err(error) => {
                self.free.push(index);
                Err(error)
            }
        }
    }

    /// Accepts a connection.
    ///
    /// # Errors
    /// It was not requested, or has ended; too long private data; no such queue.
    pub fn accept(
        &mut self,
        connection: ConnectionId,
        queues: Queues,
        private_data: &[u8],
    ) -> Result<(), RdmaError> {
        self.check_queues(queues)?;
        let link = self.link(connection)?;
        link.flow.pair.accept(private_data)?;
        link.queues = Some(queues);
        self.advance(connection.index);
        Ok(())
    }

    /// Rejects a connection, which is closed.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub fn reject(
        &mut self,
        connection: ConnectionId,
        private_data: &[u8],
    ) -> Result<(), RdmaError> {
        self.link(connection)?.flow.pair.reject(private_data)?;
        self.close(connection)
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The pair of a connection: its state, its end, the negotiated parameters.
    #[must_use]
    pub fn pair(&self, connection: ConnectionId) -> Option<&Pair> {
        Some(&self.link_of(connection)?.flow.pair)
    }

    /// Addresses of a connection: local and peer.
    #[must_use]
    pub fn addresses(&self, connection: ConnectionId) -> Option<(SocketAddr, SocketAddr)> {
        self.net.addresses(&self.link_of(connection)?.wire)
    }

    /// True if no work of a connection waits to be sent, and none of its bytes for room in the
    /// stream; also if there is no such connection.
    #[must_use]
    pub fn is_drained(&self, connection: ConnectionId) -> bool {
        self.link_of(connection).is_none_or(|link| {
            let is_over = link.flow.pair.state() == State::Ended;
            link.flow.is_drained() && (is_over || !link.flow.pair.wants_to_transmit())
        })
    }

    /// Posts work, and sends as much as there is room for.
    ///
    /// # Errors
    /// The pair refuses it.
    pub fn post(&mut self, connection: ConnectionId, post: Post) -> Result<(), RdmaError> {
        let link = live_in(&mut self.links, connection);
        let link = link.ok_or(RdmaError::Unknown("connection"))?;
        link.flow.pair.post(post, &self.adapter.domain)?;
        // Work that waits for room is sent when there is some.
        if !link.is_blocked {
            let moved = link.write(&mut self.net, &mut self.adapter);
            self.settle(connection.index, moved);
        }
        Ok(())
    }

    /// Posts a buffer for a message of the peer. Allowed from [`Event::Requested`] on, so that it
    /// is there before the first message.
    ///
    /// # Errors
    /// The pair refuses it.
    pub fn post_receive(
        &mut self,
        connection: ConnectionId,
        receive: Receive,
    ) -> Result<(), RdmaError> {
        let link = live_in(&mut self.links, connection);
        let link = link.ok_or(RdmaError::Unknown("connection"))?;
        link.flow.pair.post_receive(receive, &self.adapter.domain)?;
        if link.flow.pair.is_stalled() {
            self.make_busy(connection.index);
        }
        Ok(())
    }

    /// Cancels a receive that no message has begun to fill: the first one with that number; false
    /// if there is none. It has no completion.
    pub fn cancel_receive(&mut self, connection: ConnectionId, id: u64) -> bool {
        let link = live_in(&mut self.links, connection);
        link.is_some_and(|link| link.flow.pair.cancel_receive(id))
    }

    /// Aborts attempts to connect after `limit`, by default a minute; [`Event::Ended`] reports it.
    /// Checked in [`Self::progress`].
    pub fn limit_opening(&mut self, limit: Duration) {
        self.opening_limit = limit;
    }

    /// Delays the first messages of connections opened from now on by `time` after the peer's
    /// reply: Linux's siw may miss a message directly after it until the next one arrives. No delay
    /// by default. Meanwhile [`Self::arm`] returns false.
    pub fn hold_first(&mut self, time: Duration) {
        self.settle = time;
    }

    /// Continues connections whose first messages were delayed long enough.
    fn end_settling(&mut self) {
        for connection in std::mem::take(&mut self.settling) {
            match live_in(&mut self.links, connection) {
                Some(link) if link.flow.is_held() && !link.told.ended => {
                    self.settling.push(connection);
                }
                Some(_) => self.advance(connection.index),
                None => {}
            }
        }
    }

    fn is_settling(&self) -> bool {
        let mut settling = self.settling.iter();
        settling.any(|&connection| {
            let link = self.link_of(connection);
            link.is_some_and(|link| link.flow.is_settling())
        })
    }

    /// Ends attempts to connect that are late.
    fn end_late(&mut self) {
        while let Some(&(begun, connection)) = self.opening.front() {
            if begun.elapsed() < self.opening_limit {
                return;
            }
            self.opening.pop_front();
            let link = live_in(&mut self.links, connection);
            if link.is_some_and(|link| !link.told.established && !link.told.ended) {
                let late = std::io::ErrorKind::TimedOut.into();
                self.settle(connection.index, Err(late));
            }
        }
    }

    /// Closes a connection in order and keeps it: posted work is completed, then both streams end,
    /// which [`Event::Ended`] reports.
    ///
    /// # Errors
    /// There is no such connection.
    pub fn shut(&mut self, connection: ConnectionId) -> Result<(), RdmaError> {
        self.link(connection)?.flow.pair.close();
        self.advance(connection.index);
        Ok(())
    }

    /// Releases a connection: posted work is completed if the peer allows it, within some seconds;
    /// completions are still reported. No event reports its end.
    ///
    /// # Errors
    /// There is no such connection.
    pub fn close(&mut self, connection: ConnectionId) -> Result<(), RdmaError> {
        let link = self.link(connection)?;
        link.flow.pair.close();
        link.released = Some(Instant::now());
        self.lingering.push(connection.index);
        self.advance(connection.index);
        Ok(())
    }

    /// Releases a connection at once; its work is flushed and its completions are dropped.
    ///
    /// # Errors
    /// There is no such connection.
    pub fn abort(&mut self, connection: ConnectionId) -> Result<(), RdmaError> {
        self.link(connection)?;
        self.free_link(connection.index);
        Ok(())
    }

    /// Makes progress without waiting; true if there was any, or an event or a completion is
    /// pending.
    ///
    /// # Errors
    /// The engine is gone, and all its connections with it.
    pub fn progress(&mut self) -> Result<bool, RdmaError> {
        let mut ready = std::mem::take(&mut self.ready);
        let polled = self.net.poll(&mut ready);
        let mut moved = false;
        for &one in &ready {
            moved = true;
            match one {
                Ready::Link(index) => self.advance(index),
                Ready::Listener(index) => self.take_connections(index),
            }
        }
        ready.clear();
        self.ready = ready;
        // Only those busy now: connections that become busy again wait for the next call.
        for _ in 0..self.busy.len() {
            if let Some(index) = self.busy.pop_front() {
                moved = true;
                if let Some(link) = self.link_at(index) {
                    link.is_busy = false;
                }
                self.advance(index);
            }
        }
        for _ in 0..self.blocked.len() {
            if let Some(index) = self.blocked.pop_front() {
                if let Some(link) = self.link_at(index) {
                    link.is_blocked = false;
                }
                self.advance(index);
            }
        }
        self.serve_shared();
        self.end_lingering();
        self.end_late();
        self.end_settling();
        if let Err(error) = polled {
            self.lose_all();
            return Err(error);
        }
        Ok(moved || !self.events.is_empty())
    }

    /// Moves completions of a queue to `into`, as many as it has room for; returns their number.
    ///
    /// # Errors
    /// There is no such queue.
    pub fn poll(
        &mut self,
        queue: QueueId,
        into: &mut [Option<Queued>],
    ) -> Result<usize, RdmaError> {
        let place = self.queues.get_mut(queue.0 as usize);
        let entries = place.and_then(Option::as_mut);
        let entries = entries.ok_or(RdmaError::Unknown("completion queue"))?;
        let mut count = 0;
        for target in into {
            let Some(queued) = entries.entries.pop_front() else {
                break;
            };
            *target = Some(queued);
            count += 1;
        }
        if count > 0 && !entries.waiting.is_empty() {
            for index in std::mem::take(&mut entries.waiting) {
                self.collect(index);
            }
        }
        Ok(count)
    }

    /// The next completion of a queue, after making progress.
    ///
    /// # Errors
    /// There is no such queue; the engine is gone.
    pub fn poll_one(&mut self, queue: QueueId) -> Result<Option<Queued>, RdmaError> {
        let mut one = [None];
        if self.poll(queue, &mut one)? == 0 {
            let progressed = self.progress();
            // Flushed work is reported before the end of the connection.
            if self.poll(queue, &mut one)? == 0 {
                progressed?;
            }
        }
        Ok(one[0])
    }

    /// Waits for an event, or for a completion of any queue, at most for `timeout`; true if there
    /// is one.
    ///
    /// # Errors
    /// The engine is gone.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, RdmaError> {
        let until = Instant::now() + timeout;
        let mut looks = 0;
        loop {
            let moved = self.progress()?;
            if self.has_news() {
                return Ok(true);
            }
            let now = Instant::now();
            if now >= until {
                return Ok(false);
            }
            looks = if moved { 0 } else { looks + 1 };
            if looks < LOOKS {
                // The peer may need this core.
                if looks % 16 == 15 {
                    std::thread::yield_now();
                }
                continue;
            }
            if self.arm()? {
                self.net.wait(until - now)?;
            }
        }
    }

    /// A descriptor that becomes readable when progress may be possible, to wait for after
    /// [`Self::arm`]; none if the engine runs in this process.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.net.descriptor()
    }

    /// Prepares for waiting: true if the caller may wait for [`Self::descriptor`], false if there
    /// is work, an event or a completion already.
    ///
    /// # Errors
    /// The engine is gone.
    pub fn arm(&mut self) -> Result<bool, RdmaError> {
        if self.has_news() || !self.busy.is_empty() || self.is_settling() || self.has_shared_work()
        {
            return Ok(false);
        }
        self.net.arm()
    }

    fn has_news(&self) -> bool {
        let mut queues = self.queues.iter().flatten();
        !self.events.is_empty() || queues.any(|queue| !queue.entries.is_empty())
    }

    fn check_queues(&self, queues: Queues) -> Result<(), RdmaError> {
        for queue in [queues.send, queues.receive] {
            if !matches!(self.queues.get(queue.0 as usize), Some(Some(_))) {
                return Err(RdmaError::Unknown("completion queue"));
            }
        }
        Ok(())
    }

    fn link(&mut self, connection: ConnectionId) -> Result<&mut Link, RdmaError> {
        live_in(&mut self.links, connection)
            .filter(|link| link.released.is_none())
            .ok_or(RdmaError::Unknown("connection"))
    }

    fn link_at(&mut self, index: u32) -> Option<&mut Link> {
        link_in(&mut self.links, index)
    }

    fn link_of(&self, connection: ConnectionId) -> Option<&Link> {
        let place = self.links.get(connection.index as usize)?;
        let is_it = place.generation == connection.generation;
        place.link.as_ref().filter(|_| is_it)
    }

    fn id_at(&self, index: u32) -> ConnectionId {
        let generation = self
            .links
            .get(index as usize)
            .map_or(0, |place| place.generation);
        ConnectionId { index, generation }
    }

    /// A free place for a link.
    fn reserve(&mut self) -> Result<u32, RdmaError> {
        if let Some(index) = self.free.pop() {
            return Ok(index);
        }
        if self.links.len() >= CONNECTIONS_MAX {
            return Err(RdmaError::TooMany("connections", CONNECTIONS_MAX));
        }
        self.links.push(Place::default());
        Ok(self.links.len() as u32 - 1)
    }

    fn put(&mut self, index: u32, link: Link) -> ConnectionId {
        self.links[index as usize].link = Some(link);
        self.id_at(index)
    }

    fn free_link(&mut self, index: u32) {
        let Some(place) = self.links.get_mut(index as usize) else {
            return;
        };
        let Some(link) = place.link.take() else {
            return;
        };
        place.generation = place.generation.wrapping_add(1);
        if let Some(listener) = link.listener {
            self.forget_pending(listener, index);
        }
        self.net.close(link.wire);
        for list in [&mut self.busy, &mut self.blocked] {
            list.retain(|&other| other != index);
        }
        self.lingering.retain(|&other| other != index);
        self.free.push(index);
    }

    fn forget_pending(&mut self, listener: u32, index: u32) {
        if let Some(Some(listening)) = self.listeners.get_mut(listener as usize) {
            listening.pending.retain(|&other| other != index);
            self.net.rest(listener, false);
        }
    }

    fn make_busy(&mut self, index: u32) {
        if let Some(link) = self.link_at(index)
            && !link.is_busy
        {
            link.is_busy = true;
            self.busy.push_back(index);
        }
    }
}

/// The link at a place, of any connection: an associated function, for callers that borrow another
/// part of the device, too.
fn link_in(links: &mut [Place], index: u32) -> Option<&mut Link> {
    links.get_mut(index as usize)?.link.as_mut()
}

/// The link of a connection, even if it was released.
fn live_in(links: &mut [Place], connection: ConnectionId) -> Option<&mut Link> {
    let place = links.get_mut(connection.index as usize)?;
    let is_it = place.generation == connection.generation;
    place.link.as_mut().filter(|_| is_it)
}

/// A free place of a table of at most `max`.
fn vacant<T>(table: &mut Vec<Option<T>>, max: usize) -> Option<usize> {
    if let Some(index) = table.iter().position(Option::is_none) {
        return Some(index);
    }
    if table.len() >= max {
        return None;
    }
    table.push(None);
    Some(table.len() - 1)
}
