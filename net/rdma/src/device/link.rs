//! One connection of a device, its posted work, and the one that is looked at first; and those that
//! it is opening: their time limit, and the delay of their first messages.

use super::transport::{Net, Ready, Wire};
use super::{ConnectionId, Device, Queues};
use crate::flow::{Flow, Moved};
use crate::stream::Session;
use crate::{Adapter, Post, RdmaError, State};
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
        // A failed stream whose data waits for a receive would be reported for ever.
        if self.flow.broke_at().is_some() {
            return EventFlags::ONESHOT;
        }
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

/// Successive looks at all sockets that found the same one alone.
const FAVOURED: u32 = 4;
/// Looks at that one alone between two at all.
const LOOKS_ALONE: u32 = 7;

/// The kernel socket that alone has had data of late. It is asked for data at once: epoll, which
/// would be asked first, is one more call of the system for each message.
#[derive(Debug, Default)]
pub(super) struct Favourite {
    index: Option<u32>,
    streak: u32,
    looks: u32,
}

impl Favourite {
    /// The connection to look at alone; none if it is time for all.
    pub(super) fn next(&mut self, is_stack: bool) -> Option<u32> {
        if is_stack || self.streak < FAVOURED || self.looks == LOOKS_ALONE {
            self.looks = 0;
            return None;
        }
        self.looks += 1;
        self.index
    }

    /// All have been looked at.
    pub(super) fn saw(&mut self, ready: &[Ready]) {
        match ready {
            [] => {}
            &[Ready::Link(index)] if self.index == Some(index) => {
                self.streak = self.streak.saturating_add(1);
            }
            &[Ready::Link(index)] => (self.index, self.streak) = (Some(index), 1),
            // Others are at work, too: epoll knows which.
            _ => self.streak = 0,
        }
    }

    /// A connection leaves its place.
    pub(super) fn forget(&mut self, index: u32) {
        if self.index == Some(index) {
            *self = Self::default();
        }
    }
}

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
    /// Posts work, and sends as much as there is room for.
    ///
    /// # Errors
    /// The pair refuses it.
    pub fn post(&mut self, connection: ConnectionId, post: Post) -> Result<(), RdmaError> {
        self.post_later(connection, post)?;
        self.send_posted();
        Ok(())
    }

    /// Posts work that is sent together with what follows: [`Self::send_posted`]; at the latest by
    /// the next [`Self::post`] or [`Self::progress`].
    ///
    /// # Errors
    /// The pair refuses it.
    pub fn post_later(&mut self, connection: ConnectionId, post: Post) -> Result<(), RdmaError> {
        let link = self.links.live(connection);
        let link = link.ok_or(RdmaError::Unknown("connection"))?;
        // Even if it was released: the pair itself refuses work once it is closing.
        link.flow.pair.post(post, &self.adapter.domain)?;
        // Work that waits for room is sent when there is some.
        if !link.is_blocked && !self.unsent.contains(&connection.index) {
            self.unsent.push(connection.index);
        }
        Ok(())
    }

    /// Sends posted work, as much as there is room for.
    pub fn send_posted(&mut self) {
        while let Some(index) = self.unsent.pop() {
            if let Some(link) = self.links.at(index) {
                let moved = link.write(&mut self.net, &mut self.adapter);
                self.settle(index, moved);
            }
        }
    }

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
