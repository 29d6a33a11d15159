//! A device, with waits for a single event or completion, as in the tools' exchanges.
//!
//! Must stay true: every wait has a limit; completions and events that are not awaited yet are kept
//! in order.

use sidecore_rdma::{
    Completion, ConnectionId, Device, Event, Kind, Options, Piece, Pieces, Post, QueueId, Queues,
    ReadyBy, Receive, Region, Remote, Setup, State, Status, Transport, Work,
};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

pub(crate) type Failure = Box<dyn std::error::Error>;

/// Longest wait for anything; the peer may be an emulated machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Linux's siw may miss messages directly after its reply: the first one is delayed by this.
const SETTLE: Duration = Duration::from_millis(100);
/// Time for which connecting to a server that refuses is retried.
const PATIENCE: Duration = Duration::from_secs(2);
/// Receives, and work requests, of a connection at a time.
pub(crate) const DEPTH: usize = 1024;
/// Outstanding reads and atomics: as many as perftest requests.
const READS: u16 = 128;

/// Sides of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// It is listening already.
    Serve,
    Connect,
}

/// A device, its queue, and its pending events and completions.
pub(crate) struct Node {
    pub(crate) device: Device,
    queue: QueueId,
    done: VecDeque<(ConnectionId, Completion)>,
    events: VecDeque<Event>,
}

impl Node {
    pub(crate) fn new(transport: Transport) -> Result<Self, Failure> {
        let mut device = Device::open(transport)?;
        device.hold_first(SETTLE);
        let queue = device.create_queue(8 * DEPTH)?;
        Ok(Self {
            device,
            queue,
            done: VecDeque::new(),
            events: VecDeque::new(),
        })
    }

    fn options() -> Options {
        Options {
            send_depth: DEPTH,
            receive_depth: DEPTH,
            ird: READS,
            ord: READS,
            waits_for_receives: true,
            // In some exchanges the server sends first.
            setup: Setup::PeerToPeer(ReadyBy::Message),
            ..Options::default()
        }
    }

    fn queues(&self) -> Queues {
        Queues {
            send: self.queue,
            receive: self.queue,
        }
    }

    /// Listens; returns the address, whose port may have been 0.
    pub(crate) fn listen(&mut self, address: SocketAddr) -> Result<SocketAddr, Failure> {
        let listener = self.device.listen(address, 4, Self::options())?;
        Ok(self.device.listener_address(listener).unwrap_or(address))
    }

    /// Waits for a client's request; its private data.
    pub(crate) fn requested(&mut self) -> Result<(ConnectionId, Vec<u8>), Failure> {
        match self.event(|event| matches!(event, Event::Requested { .. }))? {
            Event::Requested {
                connection,
                private_data,
                ..
            } => Ok((connection, private_data)),
            other => Err(format!("{other:?} instead of a request").into()),
        }
    }

    /// Accepts the request; it is open on return.
    pub(crate) fn accept(&mut self, connection: ConnectionId, data: &[u8]) -> Result<(), Failure> {
        let queues = self.queues();
        self.device.accept(connection, queues, data)?;
        self.established(connection).map(drop)
    }

    /// Connects; `prepare` posts receives before the peer can send. Returns the peer's private
    /// data. Retries while the server does not listen yet.
    pub(crate) fn connect(
        &mut self,
        peer: SocketAddr,
        data: &[u8],
        prepare: impl Fn(&mut Self, ConnectionId) -> Result<(), Failure>,
    ) -> Result<(ConnectionId, Vec<u8>), Failure> {
        let begun = Instant::now();
        loop {
            let queues = self.queues();
            let connection = self.device.connect(peer, Self::options(), queues, data)?;
            prepare(self, connection)?;
            match self.established(connection) {
                Ok(private_data) => return Ok((connection, private_data)),
                Err(failure) if begun.elapsed() > PATIENCE => return Err(failure),
                Err(_) => {
                    self.device.abort(connection)?;
                    self.done.retain(|(other, _)| *other != connection);
                    std::thread::sleep(PATIENCE / 20);
                }
            }
        }
    }

    fn established(&mut self, wanted: ConnectionId) -> Result<Vec<u8>, Failure> {
        let event = self.event(|event| match event {
            Event::Established { connection, .. } | Event::Ended { connection, .. } => {
                *connection == wanted
            }
            _ => false,
        })?;
        match event {
            Event::Established { private_data, .. } => Ok(private_data),
            other => Err(format!("not connected: {other:?}").into()),
        }
    }

    /// The next event for which `wanted` is true; others are kept.
    fn event(&mut self, wanted: impl Fn(&Event) -> bool) -> Result<Event, Failure> {
        let begun = Instant::now();
        loop {
            if let Some(at) = self.events.iter().position(&wanted)
                && let Some(event) = self.events.remove(at)
            {
                return Ok(event);
            }
            if begun.elapsed() > LIMIT {
                return Err("the peer does not connect in time".into());
            }
            self.device.wait(Duration::from_millis(100))?;
            self.take()?;
        }
    }

    /// Takes all pending events and completions.
    fn take(&mut self) -> Result<(), Failure> {
        let mut some = [None; 64];
        loop {
            let count = self.device.poll(self.queue, &mut some)?;
            let queued = some[..count].iter().flatten();
            self.done
                .extend(queued.map(|one| (one.connection, one.completion)));
            if count < some.len() {
                break;
            }
        }
        while let Some(event) = self.device.next_event() {
            self.events.push_back(event);
        }
        Ok(())
    }

    /// Makes progress without waiting.
    pub(crate) fn move_on(&mut self) -> Result<(), Failure> {
        self.device.progress()?;
        self.take()
    }

    /// True once a connection is over.
    pub(crate) fn has_ended(&self, wanted: ConnectionId) -> bool {
        self.events
            .iter()
            .any(|event| matches!(event, Event::Ended { connection, .. } if *connection == wanted))
    }

    /// The next completion of a connection, of a receive or of work, if there is one.
    pub(crate) fn next_done(
        &mut self,
        wanted: ConnectionId,
        is_receive: bool,
    ) -> Result<Option<Completion>, Failure> {
        let at = self.done.iter().position(|(connection, completion)| {
            *connection == wanted && (completion.kind == Kind::Receive) == is_receive
        });
        let Some((_, completion)) = at.and_then(|at| self.done.remove(at)) else {
            return Ok(None);
        };
        match completion.status {
            Status::Done => Ok(Some(completion)),
            status => {
                let end = self
                    .device
                    .pair(wanted)
                    .and_then(|pair| pair.end().cloned());
                Err(format!("{:?}: {status:?}, {end:?}", completion.kind).into())
            }
        }
    }

    /// The same; waits for it.
    pub(crate) fn await_done(
        &mut self,
        wanted: ConnectionId,
        is_receive: bool,
    ) -> Result<Completion, Failure> {
        self.until("a completion", |node| node.next_done(wanted, is_receive))
    }

    /// Makes progress until `look` finds something.
    pub(crate) fn until<T>(
        &mut self,
        what: &str,
        mut look: impl FnMut(&mut Self) -> Result<Option<T>, Failure>,
    ) -> Result<T, Failure> {
        let begun = Instant::now();
        loop {
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if begun.elapsed() > LIMIT {
                return Err(format!("{what} does not come in time").into());
            }
            // Polled memory changes without a completion, so sleeps are short.
            self.device.wait(Duration::from_millis(1))?;
            self.take()?;
        }
    }

    pub(crate) fn post(&mut self, connection: ConnectionId, work: Work) -> Result<(), Failure> {
        let post = Post {
            id: 0,
            work,
            fence: false,
        };
        Ok(self.device.post(connection, post)?)
    }

    pub(crate) fn post_send(&mut self, to: ConnectionId, piece: Piece) -> Result<(), Failure> {
        let work = Work::Send {
            pieces: Pieces::from_iter([piece]),
            invalidate: None,
            solicited: false,
        };
        self.post(to, work)
    }

    pub(crate) fn post_write(
        &mut self,
        to: ConnectionId,
        piece: Piece,
        remote: Remote,
    ) -> Result<(), Failure> {
        let pieces = Pieces::from_iter([piece]);
        self.post(to, Work::Write { pieces, remote })
    }

    pub(crate) fn post_receive(
        &mut self,
        from: ConnectionId,
        id: u64,
        piece: Piece,
    ) -> Result<(), Failure> {
        let pieces = Pieces::from_iter([piece]);
        Ok(self.device.post_receive(from, Receive { id, pieces })?)
    }

    /// Posts a used receive again: after its last message the peer may be gone already.
    pub(crate) fn post_receive_again(
        &mut self,
        from: ConnectionId,
        id: u64,
        piece: Piece,
    ) -> Result<(), Failure> {
        let posted = self.post_receive(from, id, piece);
        let pair = self.device.pair(from);
        let is_open = pair.is_some_and(|pair| pair.state() == State::Open);
        posted.or_else(|failure| if is_open { Err(failure) } else { Ok(()) })
    }

    /// Sends bytes of a region, and waits until they were sent.
    pub(crate) fn send(&mut self, to: ConnectionId, piece: Piece) -> Result<(), Failure> {
        self.post_send(to, piece)?;
        self.await_done(to, false).map(drop)
    }

    pub(crate) fn bytes(&self, region: Region) -> &[u8] {
        self.device.adapter().bytes(region)
    }

    pub(crate) fn bytes_mut(&mut self, region: Region) -> &mut [u8] {
        self.device.adapter_mut().bytes_mut(region)
    }

    /// Closes a connection in order, and waits for the peer's end.
    pub(crate) fn close(&mut self, connection: ConnectionId) -> Result<(), Failure> {
        self.device.shut(connection)?;
        self.until("the end", |node| {
            Ok(node.has_ended(connection).then_some(()))
        })?;
        Ok(self.device.close(connection)?)
    }
}
