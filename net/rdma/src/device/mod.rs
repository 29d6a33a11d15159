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

mod ids;
mod link;
mod outcome;
mod shared;
mod tables;
mod transport;

pub use ids::{ConnectionId, Event, ListenerId, QueueId, Queued, Queues};
pub use transport::Transport;

use crate::flow::BUFFER_BYTES;
use crate::{Adapter, Options, RdmaError, Receive, State};
use link::{Favourite, Link, Opening};
use shared::Shared;
use sidecore_rdma_wire::{Pair, PairId};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};
use tables::{CompletionQueues, Links, Table};
use transport::{Net, Ready};

/// Most connections of a device, including those that are being closed.
const CONNECTIONS_MAX: usize = 1 << 14;
/// Most completion queues of a device.
pub const QUEUES_MAX: usize = 1 << 12;
/// Most entries of a completion queue.
pub const QUEUE_DEPTH_MAX: usize = 1 << 18;
/// Most connections of a listener that are not accepted yet.
pub const BACKLOG_MAX: u16 = 1 << 10;
/// Most listeners of a device.
const LISTENERS_MAX: usize = 1 << 8;
/// Connections that a listener accepts in one [`Device::progress`].
const ACCEPTS_MAX: usize = 16;
/// Time that a closed connection waits for its peer's end, or one that is being closed for a byte.
const LINGER: Duration = Duration::from_secs(5);
/// Polls of [`Device::wait`] before it sleeps.
const LOOKS: usize = 200;

/// Connections, listeners and queues over one transport.
#[derive(Debug)]
pub struct Device {
    adapter: Adapter,
    net: Net,
    links: Links,
    listeners: Table<Listening>,
    /// Listeners that rest because no place for a connection was free.
    starved: Vec<u32>,
    queues: CompletionQueues,
    shared: Vec<Shared>,
    events: VecDeque<Event>,
    /// Connections that need progress without an event of their stream.
    busy: VecDeque<u32>,
    /// Connections that wait for room in the stream.
    blocked: VecDeque<u32>,
    /// Closed connections that have not ended yet.
    lingering: Vec<u32>,
    ready: Vec<Ready>,
    favourite: Favourite,
    /// Connections with work that was posted and not sent.
    unsent: Vec<u32>,
    /// A descriptor of its owner has something.
    is_watched_ready: bool,
    buffer: Vec<u8>,
    opening: Opening,
}

#[derive(Debug)]
struct Listening {
    options: Options,
    backlog: usize,
    /// Connections not accepted yet, the oldest first.
    pending: VecDeque<u32>,
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
            links: Links::new(CONNECTIONS_MAX),
            listeners: Table::new(LISTENERS_MAX),
            starved: Vec::new(),
            queues: CompletionQueues::new(QUEUES_MAX),
            shared: Vec::new(),
            events: VecDeque::new(),
            busy: VecDeque::new(),
            blocked: VecDeque::new(),
            lingering: Vec::new(),
            ready: Vec::new(),
            favourite: Favourite::default(),
            unsent: Vec::new(),
            is_watched_ready: false,
            buffer: vec![0; BUFFER_BYTES],
            opening: Opening::new(),
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
        let queue = self.queues.create(depth.clamp(1, QUEUE_DEPTH_MAX));
        queue.ok_or(RdmaError::TooMany("completion queues", QUEUES_MAX))
    }

    /// Drops a queue with its completions; later completions of its connections are dropped, too.
    pub fn drop_queue(&mut self, queue: QueueId) {
        self.queues.remove(queue);
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
        self.begin_listening(backlog, options, |net, number, backlog| {
            net.listen(number, local, backlog)
        })
    }

    /// The address of a listener.
    #[must_use]
    pub fn listener_address(&self, listener: ListenerId) -> Option<SocketAddr> {
        self.net.listener_address(listener.0)
    }

    /// Stops listening; connections that were not accepted are dropped.
    pub fn close_listener(&mut self, listener: ListenerId) {
        let Some(listening) = self.listeners.remove(listener.0) else {
            return;
        };
        // Requested ones, too: the numbers in their events name nothing from now on.
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
        self.queues.check(queues)?;
        // The pair first: too long private data must not open a stream.
        let id = PairId(self.adapter.next_pair());
        let pair = Pair::connect(id, self.net.fitted(options), private_data)?;
        let index = self.links.reserve();
        let index = index.ok_or(RdmaError::TooMany("connections", CONNECTIONS_MAX))?;
        match self.net.connect(index, peer, local) {
            Ok(wire) => {
                let mut link = Link::new(pair, wire, None);
                link.queues = Some(queues);
                link.flow.settle = self.opening.settle;
                let connection = self.links.put(index, link);
                self.opening.begin(connection);
                Ok(connection)
            }
            Err(error) => {
                self.links.release(index);
                Err(error)
            }
        }
    }

    /// Gives a requested connection the depths and the owner that its queues want; CRCs, markers
    /// and the set-up stay those of its listener.
    ///
    /// # Errors
    /// There is no such connection; it was accepted, or has receives.
    pub fn adapt(&mut self, connection: ConnectionId, options: Options) -> Result<(), RdmaError> {
        let options = self.net.fitted(options);
        Ok(self.links.owned(connection)?.flow.pair.adapt(options)?)
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
        self.queues.check(queues)?;
        let link = self.links.owned(connection)?;
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
        self.links
            .owned(connection)?
            .flow
            .pair
            .reject(private_data)?;
        self.close(connection)
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The pair of a connection: its state, its end, the negotiated parameters.
    #[must_use]
    pub fn pair(&self, connection: ConnectionId) -> Option<&Pair> {
        Some(&self.links.get(connection)?.flow.pair)
    }

    /// Addresses of a connection: local and peer.
    #[must_use]
    pub fn addresses(&self, connection: ConnectionId) -> Option<(SocketAddr, SocketAddr)> {
        self.net.addresses(&self.links.get(connection)?.wire)
    }

    /// True if no work of a connection waits to be sent, and none of its bytes for room in the
    /// stream; also if there is no such connection.
    #[must_use]
    pub fn is_drained(&self, connection: ConnectionId) -> bool {
        self.links.get(connection).is_none_or(|link| {
            let is_over = link.flow.pair.state() == State::Ended;
            link.flow.is_drained() && (is_over || !link.flow.pair.wants_to_transmit())
        })
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
        let link = self.links.live(connection);
        let link = link.ok_or(RdmaError::Unknown("connection"))?;
        link.flow.pair.post_receive(receive, &self.adapter.domain)?;
        // The message that waits is no event of the stream any more.
        if link.flow.pair.is_stalled() {
            self.make_busy(connection.index);
        }
        Ok(())
    }

    /// Cancels a receive that no message has begun to fill: the first one with that number; false
    /// if there is none. It has no completion.
    pub fn cancel_receive(&mut self, connection: ConnectionId, id: u64) -> bool {
        let link = self.links.live(connection);
        link.is_some_and(|link| link.flow.pair.cancel_receive(id))
    }

    /// Closes a connection in order and keeps it: posted work is completed, then both streams end,
    /// which [`Event::Ended`] reports. If no byte moves for some seconds, and the peer's host takes
    /// none, the connection is lost: checked in [`Self::progress`] and [`Self::wait`].
    ///
    /// # Errors
    /// There is no such connection.
    pub fn shut(&mut self, connection: ConnectionId) -> Result<(), RdmaError> {
        let link = self.links.owned(connection)?;
        link.flow.pair.close();
        // From the first call on: repeated ones do not delay the end.
        if link.leaving.is_none() {
            link.leaving = Some(Instant::now());
            link.is_being_taken();
            self.lingering.push(connection.index);
        }
        self.advance(connection.index);
        Ok(())
    }

    /// Releases a connection: posted work is completed if the peer allows it, within some seconds;
    /// completions are still reported. No event reports its end.
    ///
    /// # Errors
    /// There is no such connection.
    pub fn close(&mut self, connection: ConnectionId) -> Result<(), RdmaError> {
        let link = self.links.owned(connection)?;
        link.flow.pair.close();
        link.released = Some(Instant::now());
        if !self.lingering.contains(&connection.index) {
            self.lingering.push(connection.index);
        }
        self.advance(connection.index);
        Ok(())
    }

    /// Releases a connection at once; its work is flushed and its completions are dropped.
    ///
    /// # Errors
    /// There is no such connection.
    pub fn abort(&mut self, connection: ConnectionId) -> Result<(), RdmaError> {
        self.links.owned(connection)?;
        self.free_link(connection.index);
        Ok(())
    }

    /// Makes progress without waiting; true if there was any, or an event or a completion is
    /// pending.
    ///
    /// # Errors
    /// The engine is gone, and all its connections with it.
    pub fn progress(&mut self) -> Result<bool, RdmaError> {
        self.send_posted();
        // Its allocation is used again; meanwhile `advance` borrows the whole device.
        let mut ready = std::mem::take(&mut self.ready);
        let polled = match self.favourite.next(self.net.is_stack()) {
            Some(index) => {
                ready.push(Ready::Link(index));
                Ok(())
            }
            None => {
                let polled = self.net.poll(&mut ready);
                self.favourite.saw(&ready);
                polled
            }
        };
        let mut moved = false;
        for &one in &ready {
            match one {
                Ready::Link(index) => moved |= self.advance(index),
                Ready::Listener(index) => {
                    moved = true;
                    self.take_connections(index);
                }
                Ready::Watched => {
                    moved = true;
                    self.is_watched_ready = true;
                }
            }
        }
        ready.clear();
        self.ready = ready;
        // Only those busy now: connections that become busy again wait for the next call.
        for _ in 0..self.busy.len() {
            if let Some(index) = self.busy.pop_front() {
                moved = true;
                if let Some(link) = self.links.at(index) {
                    link.is_busy = false;
                }
                self.advance(index);
            }
        }
        // Tried at each call: room among the chunks of an attachment is no event of the session
        // that waits for it.
        for _ in 0..self.blocked.len() {
            if let Some(index) = self.blocked.pop_front() {
                if let Some(link) = self.links.at(index) {
                    link.is_blocked = false;
                }
                self.advance(index);
            }
        }
        self.serve_shared();
        self.end_lingering();
        self.advance_opening();
        // After everything else, so that data that had arrived is not lost with the engine.
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
        let entries = self.queues.get_mut(queue);
        let entries = entries.ok_or(RdmaError::Unknown("completion queue"))?;
        let (count, waiting) = entries.take(into);
        for index in waiting {
            self.collect(index);
        }
        Ok(count)
    }

    /// As [`Self::poll`]; makes progress if there is no completion.
    ///
    /// # Errors
    /// There is no such queue; the engine is gone.
    pub fn poll_or_progress(
        &mut self,
        queue: QueueId,
        into: &mut [Option<Queued>],
    ) -> Result<usize, RdmaError> {
        let mut count = self.poll(queue, into)?;
        if count == 0 {
            let progressed = self.progress();
            // Flushed work is reported before the end of the connection.
            count = self.poll(queue, into)?;
            if count == 0 {
                progressed?;
            }
        }
        Ok(count)
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
            if has_news(self) {
                return Ok(true);
            }
            let now = Instant::now();
            if now >= until {
                return Ok(false);
            }
            // A sleep and a wake-up cost more than some looks in vain.
            looks = if moved { 0 } else { looks + 1 };
            if looks < LOOKS {
                // The peer may need this core.
                if looks % 16 == 15 {
                    std::thread::yield_now();
                }
                continue;
            }
            if self.arm()? {
                // A time limit is no event of a stream: the sleep must not outlast it.
                let due = self.opening.due_in().unwrap_or(Duration::MAX);
                let due = match self.lingering.is_empty() {
                    true => due,
                    false => due.min(LINGER),
                };
                self.net.wait(due.min(until - now))?;
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
        // Each of these would be missed by a sleeper: no byte of a stream announces it.
        if has_news(self) || self.has_work() || self.opening.is_settling(|of| self.links.get(of)) {
            return Ok(false);
        }
        self.net.arm()
    }

    /// True while a connection could go on by [`Self::progress`] without anything from its stream.
    #[must_use]
    pub fn has_work(&self) -> bool {
        let mut shared = self.shared.iter();
        // Posted work that was not sent: no event of a stream would send it.
        let is_sent = self.unsent.is_empty();
        !is_sent || !self.busy.is_empty() || shared.any(|one| one.has_work(&self.adapter))
    }

    /// Ends a connection at once, as if its stream were lost: everything posted is flushed, which
    /// completions and [`Event::Ended`] report.
    pub fn break_off(&mut self, connection: ConnectionId) {
        let lost = std::io::ErrorKind::ConnectionAborted;
        if self.links.live(connection).is_some() {
            self.settle(connection.index, Err(lost.into()));
        }
    }

    fn free_link(&mut self, index: u32) {
        let Some(link) = self.links.remove(index) else {
            return;
        };
        if let Some(listener) = link.listener {
            self.forget_pending(listener, index);
        }
        // Lists by place are cleared here: the place is used again at once.
        self.net.close(link.wire);
        self.favourite.forget(index);
        self.unsent.retain(|&other| other != index);
        for list in [&mut self.busy, &mut self.blocked] {
            list.retain(|&other| other != index);
        }
        self.lingering.retain(|&other| other != index);
        // The place may be the only one: each of them looks again.
        for listener in self.starved.drain(..) {
            self.net.rest(listener, false);
        }
    }

    fn forget_pending(&mut self, listener: u32, index: u32) {
        if let Some(listening) = self.listeners.get_mut(listener) {
            listening.pending.retain(|&other| other != index);
            self.net.rest(listener, false);
        }
    }

    fn make_busy(&mut self, index: u32) {
        if let Some(link) = self.links.at(index)
            && !link.is_busy
        {
            link.is_busy = true;
            self.busy.push_back(index);
        }
    }
}

/// True if an event or a completion is pending.
fn has_news(device: &Device) -> bool {
    !device.events.is_empty() || device.queues.has_entries()
}
