//! One connection of a device; and those that it is opening: their time limit, and the delay of
//! their first messages.

use super::transport::{Net, Wire};
use super::{ConnectionId, Device, Queues};
use crate::flow::{Flow, Moved};
use crate::stream::Session;
use crate::{Adapter, State};
use rustix::event::epoll::EventFlags;
use rustix::net::sockopt;
use sidecore_rdma_wire::Pair;
use sidecore_sys::socket_option;
use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// A connection, its stream, and the events reported to its owner.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) flow: Flow,
    pub(super) wire: Wire,
    /// The listener that it arrived at, until it is accepted.
    pub(super) listener: Option<u32>,
    pub(super) queues: Option<Queues>,
    /// The last event of its life that was reported.
    pub(super) reported: Reported,
    /// Time when its owner closed it.
    pub(super) released: Option<Instant>,
    /// Time of the last byte either way since its owner began to close it and kept it; one that
    /// the peer's host has taken counts where it is looked for.
    pub(super) leaving: Option<Instant>,
    /// See [`Self::is_being_taken`].
    taken: u64,
    /// True if it is in the device's list of busy connections.
    pub(super) is_busy: bool,
    pub(super) is_blocked: bool,
    /// Registered events of a kernel socket.
    pub(super) interest: EventFlags,
}

/// Events of a connection, in the order of its life; any of them may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reported {
    Nothing,
    Requested,
    Established,
    Ended,
}

impl Link {
    /// Events of a kernel socket that it waits for; none once it is over.
    pub(super) fn wanted(&self, is_blocked: bool) -> EventFlags {
        let mut wanted = EventFlags::empty();
        // While a message waits for a receive, the stream is not read: TCP slows the peer.
        if !self.flow.has_ended && !self.flow.pair.is_stalled() {
            wanted |= EventFlags::IN;
        }
        let is_over = self.flow.has_ended && self.flow.pair.state() != State::Open;
        if is_blocked && !is_over {
            wanted |= EventFlags::OUT;
        }
        wanted
    }

    /// True once its owner has learnt of its end.
    pub(super) fn has_reported_end(&self) -> bool {
        self.reported == Reported::Ended
    }

    pub(super) fn new(pair: Pair, wire: Wire, listener: Option<u32>) -> Self {
        Self {
            flow: Flow::new(pair),
            wire,
            listener,
            queues: None,
            reported: Reported::Nothing,
            released: None,
            leaving: None,
            taken: 0,
            is_busy: false,
            is_blocked: false,
            interest: EventFlags::empty(),
        }
    }

    /// True if the peer's host has taken bytes since the last call: the kernel may hold many that
    /// no call of ours moves any more.
    pub(super) fn is_being_taken(&mut self) -> bool {
        let Wire::Kernel(stream, _) = &self.wire else {
            return false;
        };
        let taken = taken(stream);
        taken > std::mem::replace(&mut self.taken, taken)
    }

    /// Makes the end of its stream a reset, which the peer learns of even if it reads nothing.
    pub(super) fn reset(&self) {
        if let Wire::Kernel(stream, _) = &self.wire {
            // Best effort: otherwise the peer finds the end behind the data.
            sockopt::set_socket_linger(stream, Some(Duration::ZERO)).ok();
        }
    }

    pub(super) fn progress(
        &mut self,
        net: &mut Net,
        buffer: &mut [u8],
        adapter: &mut Adapter,
    ) -> io::Result<Moved> {
        match &mut self.wire {
            Wire::Kernel(stream, is_opening) => {
                if *is_opening && !is_open(stream)? {
                    return Ok(opening());
                }
                *is_opening = false;
                self.flow.progress(stream, buffer, adapter)
            }
            Wire::Stack(socket) => match net.session(*socket) {
                Some(mut session) => self.flow.progress(&mut session, buffer, adapter),
                None => Err(io::ErrorKind::NotConnected.into()),
            },
        }
    }

    pub(super) fn write(&mut self, net: &mut Net, adapter: &mut Adapter) -> io::Result<Moved> {
        let mut moved = Moved::default();
        match &mut self.wire {
            Wire::Kernel(_, true) => return Ok(opening()),
            Wire::Kernel(stream, false) => self.flow.write(stream, adapter, &mut moved),
            Wire::Stack(socket) => {
                let session: Option<Session<'_>> = net.session(*socket);
                let mut session = session.ok_or(io::ErrorKind::NotConnected)?;
                self.flow.write(&mut session, adapter, &mut moved);
            }
        }
        Ok(moved)
    }
}

/// Result while a socket is being opened, which is over when it is writable.
fn opening() -> Moved {
    Moved {
        is_blocked: true,
        ..Moved::default()
    }
}

/// Bytes that the peer's host has acknowledged; 0 if that is not known (tcp(7), TCP_INFO).
fn taken(stream: &TcpStream) -> u64 {
    let info = socket_option::get(stream.as_fd(), IPPROTO_TCP, TCP_INFO, BYTES_ACKED + 8);
    let info = info.unwrap_or_default();
    let bytes = info.get(BYTES_ACKED..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// False while the socket is being opened.
fn is_open(stream: &TcpStream) -> io::Result<bool> {
    // A failed connect is reported here alone: the socket is writable, too.
    if let Some(error) = stream.take_error()? {
        return Err(error);
    }
    match stream.peer_addr() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
        Err(error) => Err(error),
    }
}

const IPPROTO_TCP: i32 = 6;
const TCP_INFO: i32 = 11;
/// Offset of `tcpi_bytes_acked` (`include/uapi/linux/tcp.h`).
const BYTES_ACKED: usize = 120;
/// Default time limit for opening a connection.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Opening {
    /// In the order of their beginning.
    begun: VecDeque<(Instant, ConnectionId)>,
    limit: Duration,
    /// Delay of the first messages of connections opened from now on.
    pub(super) settle: Duration,
    settling: Vec<ConnectionId>,
}

impl Opening {
    pub(super) fn new() -> Self {
        Self {
            begun: VecDeque::new(),
            limit: LIMIT,
            settle: Duration::ZERO,
            settling: Vec::new(),
        }
    }

    pub(super) fn begin(&mut self, connection: ConnectionId) {
        self.begun.push_back((Instant::now(), connection));
        if self.settle > Duration::ZERO {
            self.settling.push(connection);
        }
    }

    /// The next connection whose time is over, open or not. Each is returned once.
    pub(super) fn next_due(&mut self) -> Option<ConnectionId> {
        // All have the same limit, so the first one is due first.
        let due = self.begun.front()?.0.elapsed() >= self.limit;
        due.then(|| self.begun.pop_front())
            .flatten()
            .map(|(_, connection)| connection)
    }

    /// Time until the next connection's time is over.
    pub(super) fn due_in(&self) -> Option<Duration> {
        let (begun, _) = self.begun.front()?;
        Some(self.limit.saturating_sub(begun.elapsed()))
    }

    /// Takes those whose first messages were delayed long enough, or that have ended. `links` finds
    /// an open connection.
    pub(super) fn take_settled<'l>(
        &mut self,
        links: impl Fn(ConnectionId) -> Option<&'l Link>,
    ) -> Vec<ConnectionId> {
        let (settling, settled) =
            std::mem::take(&mut self.settling)
                .into_iter()
                .partition(|&connection| {
                    let link = links(connection);
                    link.is_some_and(|link| link.flow.is_held() && !link.has_reported_end())
                });
        self.settling = settling;
        settled
    }

    /// True while the first message of a connection is being delayed: its end is no event of a
    /// stream.
    pub(super) fn is_settling<'l>(&self, links: impl Fn(ConnectionId) -> Option<&'l Link>) -> bool {
        let mut settling = self.settling.iter();
        settling.any(|&connection| {
            let link = links(connection);
            link.is_some_and(|link| link.flow.is_settling())
        })
    }
}

impl Device {
    /// Aborts attempts to connect after `limit`, by default a minute; [`Event::Ended`] reports it.
    /// Checked in [`Self::progress`] and [`Self::wait`].
    ///
    /// [`Event::Ended`]: super::Event::Ended
    pub fn limit_opening(&mut self, limit: Duration) {
        self.opening.limit = limit;
    }

    /// Delays the first messages of connections opened from now on by `time` after the peer's
    /// reply: Linux's siw may miss a message directly after it until the next one arrives. No delay
    /// by default. Meanwhile [`Self::arm`] returns false.
    pub fn hold_first(&mut self, time: Duration) {
        self.opening.settle = time;
    }

    /// Ends attempts to connect that are late, and continues connections whose first messages were
    /// delayed long enough.
    pub(super) fn advance_opening(&mut self) {
        while let Some(connection) = self.opening.next_due() {
            let link = self.links.live(connection);
            if link.is_some_and(|link| link.reported < Reported::Established) {
                let late = std::io::ErrorKind::TimedOut.into();
                self.settle(connection.index, Err(late));
            }
        }
        for connection in self.opening.take_settled(|of| self.links.get(of)) {
            // Its place may have another connection by now.
            if self.links.live(connection).is_some() {
                self.advance(connection.index);
            }
        }
    }
}
