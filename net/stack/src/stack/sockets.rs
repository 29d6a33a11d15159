//! The sockets of a stack, for the code that runs the loop.
//!
//! No call blocks: each does what is possible now. [`Stack::next_event`] reports later changes,
//! once for each change; a socket's [`Readiness`] can be read at any time.

use super::sharing::Sharing;
use super::{Host, Stack};
use super::{ListenerId, SessionId, UdpId};
use crate::buffer::NONE;
use crate::buffer::ring::copied;
use crate::error::{NetError, SessionError};
use crate::secrets::Ends;
use crate::shared::EventSource;
use crate::state::flags::{Flags, SendTail};
use crate::state::hot::State;
use crate::tcp::send_buffer::SendBuffer;
use crate::wire::Ip;
use sidecore_bare::width::ToUsize;
use std::net::SocketAddr;

/// A change of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A session can be read, written, or is closed; see [`Stack::readiness`].
    Session(SessionId),
    /// [`Stack::accept`] has a session.
    Listener(ListenerId),
    /// A datagram was received.
    Udp(UdpId),
}

/// Hints of the application about the bytes of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Write {
    /// More data follows (`MSG_MORE`): a partial segment waits for it, for the next acknowledgment,
    /// or for a timeout.
    pub more: bool,
    /// A record ends here (`MSG_EOR`): the next data goes into a segment of its own.
    pub ends_record: bool,
}

/// Readiness of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Readiness {
    /// Bytes, the end, or an error can be read.
    pub readable: bool,
    /// A write takes a good part of the send buffer, or fails.
    pub writable: bool,
    /// The directions that have ended.
    pub ending: Ending,
    /// The error that ended it.
    pub error: Option<SessionError>,
    /// [`Stack::next_stamp`] has a timestamp.
    pub stamped: bool,
}

/// The directions of a session that have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ending {
    /// None as far as reading is concerned; what was shut down for writing is not reported.
    #[default]
    Open,
    /// The peer sends nothing after the data that can be read now.
    Input,
    /// Nothing is sent any more either.
    Closed,
}

impl Readiness {
    /// True if the peer sends nothing after the data that can be read now.
    #[must_use]
    pub fn end_of_input(&self) -> bool {
        self.ending != Ending::Open
    }

    /// True if nothing is sent any more either.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.ending == Ending::Closed
    }
}

impl Stack {
    /// Listens at one of our addresses, or at all (`0.0.0.0`; `::` for both families), for up to
    /// `backlog` sessions in the accept queue.
    ///
    /// # Errors
    /// [`NetError::AddressNotOurs`], [`NetError::AddressInUse`].
    pub fn listen(&mut self, address: SocketAddr, backlog: usize) -> Result<ListenerId, NetError> {
        self.listen_shared(address, backlog, Sharing::Alone)
    }

    /// As [`Stack::listen`], at an address and port that other listeners may have, too: each new
    /// session is for one of them, chosen by a hash of its ends.
    ///
    /// # Errors
    /// As [`Stack::listen`].
    pub fn listen_shared(
        &mut self,
        address: SocketAddr,
        backlog: usize,
        sharing: Sharing,
    ) -> Result<ListenerId, NetError> {
        let ip = Ip::from(address.ip());
        if !ip.is_unspecified() && !self.host.common.interface.is_ours(&ip) {
            return Err(NetError::AddressNotOurs(address));
        }
        self.host
            .sessions
            .listeners
            .add(ip, address.port(), backlog, sharing)
            .ok_or(NetError::AddressInUse(address))
    }

    /// The next session in the accept queue; none if there is none now.
    ///
    /// # Errors
    /// [`NetError::Gone`].
    pub fn accept(&mut self, id: ListenerId) -> Result<Option<SessionId>, NetError> {
        let Some(number) = self.host.sessions.listeners.get(id)?.waiting.pop_front() else {
            return Ok(None);
        };
        let (hot, _, cold) = self.host.sessions.store.session(number);
        hot.clear(Flags::EMBRYO);
        cold.queued = false;
        cold.listener = NONE;
        let generation = hot.generation;
        let mut session = self.host.sessions.access(&mut self.host.common, number);
        // Events of an embryo were not queued; what has happened meanwhile is announced now.
        if session.hot.rx.len() > 0 || session.hot.has(Flags::FIN_RECEIVED) {
            session.notify();
        }
        Ok(Some(SessionId { number, generation }))
    }

    /// Stops listening; sessions in the accept queue are reset.
    ///
    /// # Errors
    /// [`NetError::Gone`].
    pub fn close_listener(&mut self, id: ListenerId) -> Result<(), NetError> {
        let listener = self.host.sessions.listeners.get(id)?;
        listener.open = false;
        let (address, port) = (listener.address, listener.port);
        let waiting = std::mem::take(&mut listener.waiting);
        let ports = &mut self.host.sessions.listeners.ports;
        ports.remove(address, port, id.number);
        for number in waiting {
            self.host
                .sessions
                .access(&mut self.host.common, number)
                .reset(Some(SessionError::Aborted));
        }
        self.host.sweep();
        // Embryos still refer to it; the slot is reused after the last of them.
        self.host.sessions.listeners.free_if_unused(id.number);
        Ok(())
    }

    /// Opens a session to `remote`, from `local` if given (port 0: any). The SYN is sent by the
    /// next [`Stack::transmit`].
    ///
    /// # Errors
    /// [`NetError::NoRoute`], [`NetError::NoPort`], [`NetError::AddressInUse`],
    /// [`NetError::AddressNotOurs`], [`NetError::Sessions`].
    pub fn connect(
        &mut self,
        remote: SocketAddr,
        local: Option<SocketAddr>,
    ) -> Result<SessionId, NetError> {
        let to = Ip::from(remote.ip());
        // RFC 9293 section 3.9.1.1 (MUST-46): only to a single host.
        if to.is_unspecified() || to.is_multicast() || self.host.common.interface.is_broadcast(&to)
        {
            return Err(NetError::NoRoute(remote.ip()));
        }
        let from = match local.filter(|local| !local.ip().is_unspecified()) {
            Some(local) => {
                let ip = Ip::from(local.ip());
                if !self.host.common.interface.is_ours(&ip) {
                    return Err(NetError::AddressNotOurs(local));
                }
                ip
            }
            // A session with ourselves has one address at both ends (RFC 1122 section 3.3.4.3).
            None if self.host.common.interface.is_ours(&to) => to,
            None => {
                let source = self.host.common.interface.source_for(&to);
                source.ok_or(NetError::NoRoute(remote.ip()))?
            }
        };
        let mut ends = Ends {
            local: from,
            remote: to,
            local_port: local.map_or(0, |local| local.port()),
            remote_port: remote.port(),
        };
        if ends.local_port == 0 {
            self.host
                .choose_port(&mut ends)
                .ok_or(NetError::NoPort(remote))?;
        } else {
            let hash = self.host.common.secrets.lookup(&ends);
            if self.host.sessions.find(&ends, hash).is_some() {
                let address = SocketAddr::new(from.to_std(), ends.local_port);
                return Err(NetError::AddressInUse(address));
            }
        }
        // Checked here, because below an error means that the table is full.
        if self.host.common.find_hop(&to).is_none() {
            return Err(NetError::NoRoute(remote.ip()));
        }
        // The port may have been chosen only now.
        let hash = self.host.common.secrets.lookup(&ends);
        let host = &mut self.host;
        let number = host
            .sessions
            .open(&mut host.common, &ends, hash)
            .ok_or(NetError::Sessions(host.common.config.sessions_max))?;
        let mut session = self.host.sessions.access(&mut self.host.common, number);
        session.begin_connect();
        let generation = session.hot.generation;
        Ok(SessionId { number, generation })
    }

    /// True once a session's handshake is complete, also after its end.
    #[inline]
    #[must_use]
    pub fn is_synchronized(&self, id: SessionId) -> bool {
        let number = self.host.sessions.number(id);
        number.is_ok_and(|number| {
            self.host
                .sessions
                .store
                .hot(number)
                .state()
                .is_synchronized()
        })
    }

    /// The address of a listener.
    #[must_use]
    pub fn listener_address(&self, id: ListenerId) -> Option<SocketAddr> {
        let listener = self.host.sessions.listeners.known(id.number)?;
        Some(SocketAddr::new(listener.address.to_std(), listener.port))
    }

    /// Received bytes in order, in place, in up to two pieces. Empty if there is nothing now, or at
    /// the end: see [`Readiness::end_of_input`].
    ///
    /// # Errors
    /// [`NetError::Gone`]; [`NetError::Ended`] once all received data is read.
    #[inline]
    pub fn peek(&self, id: SessionId) -> Result<[&[u8]; 2], NetError> {
        let number = self.host.sessions.number(id)?;
        let hot = self.host.sessions.store.hot(number);
        let len = hot.rx.len();
        if len == 0 && hot.has(Flags::FAILED) {
            return Err(self
                .host
                .sessions
                .store
                .cold(number)
                .error
                .map_or(NetError::Gone, NetError::Ended));
        }
        Ok(hot.rx.pieces(&self.host.common.pool, 0, len))
    }

    /// Drops `count` bytes, or all if there are fewer, from the front of the received data.
    ///
    /// # Errors
    /// [`NetError::Gone`].
    #[inline]
    pub fn consume(&mut self, id: SessionId, count: usize) -> Result<(), NetError> {
        let number = self.host.sessions.number(id)?;
        let mut session = self.host.sessions.access(&mut self.host.common, number);
        let count = count.min(session.hot.rx.len());
        if count > 0 {
            session.consumed(count);
        }
        Ok(())
    }

    /// Reads into `bytes`, and returns how many were read: 0 if there are none now, or at the end.
    ///
    /// # Errors
    /// As [`Stack::peek`].
    #[inline]
    pub fn read(&mut self, id: SessionId, bytes: &mut [u8]) -> Result<usize, NetError> {
        let [first, second] = self.peek(id)?;
        let a = first.len().min(bytes.len());
        let b = second.len().min(bytes.len() - a);
        bytes[..a].copy_from_slice(&first[..a]);
        bytes[a..a + b].copy_from_slice(&second[..b]);
        self.consume(id, a + b)?;
        Ok(a + b)
    }

    /// Writes as much of `bytes` as the send buffer takes, and returns the number of bytes. They
    /// are sent by the next [`Stack::transmit`].
    ///
    /// # Errors
    /// [`NetError::Gone`], [`NetError::Ended`], [`NetError::ShutDown`].
    #[inline]
    pub fn write(&mut self, id: SessionId, bytes: &[u8]) -> Result<usize, NetError> {
        self.write_with(id, bytes, Write::default())
    }

    /// The same, with hints about the bytes.
    ///
    /// # Errors
    /// As [`Stack::write`].
    #[inline]
    pub fn write_with(
        &mut self,
        id: SessionId,
        bytes: &[u8],
        how: Write,
    ) -> Result<usize, NetError> {
        self.write_in_place(id, bytes.len(), how, copied(bytes))
    }

    /// The same for up to `count` bytes that `fill` writes in place, in up to two pieces, in order:
    /// for callers whose bytes cannot be borrowed (shared memory).
    ///
    /// # Errors
    /// As [`Stack::write`].
    #[inline]
    pub fn write_in_place(
        &mut self,
        id: SessionId,
        count: usize,
        how: Write,
        mut fill: impl FnMut(&mut [u8]),
    ) -> Result<usize, NetError> {
        let number = self.host.sessions.number(id)?;
        let session = &mut self.host.sessions.access(&mut self.host.common, number);
        match session.hot.state() {
            State::Established | State::CloseWait | State::SynSent | State::SynReceived
                if !session.hot.has(Flags::FIN_QUEUED) => {}
            _ if session.hot.has(Flags::FAILED) => {
                return Err(session.cold.error.map_or(NetError::Gone, NetError::Ended));
            }
            _ => return Err(NetError::ShutDown),
        }
        let mut most = session.path.send_bytes.to_usize();
        let mut offered = count;
        if how != Write::default() || session.path.tail != SendTail::EMPTY {
            let allowance = session.before_write(count, how.more, how.ends_record);
            (offered, most) = (allowance.offered, allowance.held_max);
        }
        if !session.common.pool.is_ample() {
            most = most.min(session.pressed_send_bytes());
        }
        let pool = &mut session.common.pool;
        let taken = session.hot.tx.append_with(pool, offered, most, &mut fill);
        // The application is notified when there is room again.
        if taken < count {
            let waits = session.hot.has(Flags::WANTS_ROOM);
            session.hot.set(Flags::WANTS_ROOM);
            // Nothing in flight makes room: only memory that others return.
            if !waits && session.hot.tx.len() == 0 {
                session.common.starved.push_back(session.number);
            }
        }
        if taken > 0 && (how.ends_record || session.path.tail.has(SendTail::MARKED)) {
            session.mark_write(how.ends_record && taken == count);
        }
        // Before the end of the handshake, the data waits in the buffer.
        if taken > 0 && session.hot.state().is_synchronized() {
            session.make_ready();
        }
        Ok(taken)
    }

    /// Ends sending after the written data: RFC 9293 section 3.10.4.
    ///
    /// # Errors
    /// [`NetError::Gone`], [`NetError::NotConnected`].
    pub fn shutdown_write(&mut self, id: SessionId) -> Result<(), NetError> {
        let number = self.host.sessions.number(id)?;
        let mut session = self.host.sessions.access(&mut self.host.common, number);
        session.queue_fin()
    }

    /// Ends waiting for data: a read without data returns the end. As on Linux, data that was
    /// received, or still arrives, can be read.
    ///
    /// # Errors
    /// [`NetError::Gone`].
    pub fn shutdown_read(&mut self, id: SessionId) -> Result<(), NetError> {
        let number = self.host.sessions.number(id)?;
        let session = self.host.sessions.access(&mut self.host.common, number);
        session.hot.set(Flags::READ_SHUTDOWN);
        Ok(())
    }

    /// Closes a session. Written data is still sent; if received data was not read, the peer gets a
    /// reset (RFC 9293 section 3.6.1, RFC 2525 section 2.17).
    ///
    /// # Errors
    /// [`NetError::Gone`].
    pub fn close(&mut self, id: SessionId) -> Result<(), NetError> {
        let number = self.host.sessions.number(id)?;
        let mut session = self.host.sessions.access(&mut self.host.common, number);
        // The identifier becomes invalid; the number stays in use until the session is over.
        session.hot.generation = session.hot.generation.wrapping_add(1);
        session.hot.set(Flags::DETACHED);
        match session.hot.state() {
            State::Closed => {
                self.host.sessions.give(&mut self.host.common, number);
                return Ok(());
            }
            // Nothing was received, so there is no peer to tell.
            State::SynSent => session.finish(None),
            _ if session.hot.rx.len() > 0 => session.reset(None),
            _ => {
                // Fails if a FIN is queued already, which is fine.
                let _ = session.queue_fin();
                session.watch_fin_wait_2();
            }
        }
        self.host.sweep();
        Ok(())
    }

    /// Ends a session at once, with a reset to the peer.
    ///
    /// # Errors
    /// [`NetError::Gone`].
    pub fn abort(&mut self, id: SessionId) -> Result<(), NetError> {
        let number = self.host.sessions.number(id)?;
        let mut session = self.host.sessions.access(&mut self.host.common, number);
        session.hot.generation = session.hot.generation.wrapping_add(1);
        session.hot.set(Flags::DETACHED);
        if session.hot.state() == State::Closed {
            self.host.sessions.give(&mut self.host.common, number);
            return Ok(());
        }
        session.reset(Some(SessionError::Aborted));
        self.host.sweep();
        Ok(())
    }

    /// Readiness of a session.
    ///
    /// # Errors
    /// [`NetError::Gone`].
    pub fn readiness(&self, id: SessionId) -> Result<Readiness, NetError> {
        let number = self.host.sessions.number(id)?;
        let hot = self.host.sessions.store.hot(number);
        let cold = self.host.sessions.store.cold(number);
        let buffer = SendBuffer {
            hot,
            path: self.host.sessions.store.path(number),
            cold,
        };
        let closed = hot.state() == State::Closed;
        let end = hot.has(Flags::FIN_RECEIVED | Flags::READ_SHUTDOWN) || closed;
        let open = matches!(hot.state(), State::Established | State::CloseWait)
            && !hot.has(Flags::FIN_QUEUED);
        Ok(Readiness {
            readable: hot.rx.len() > 0 || end,
            writable: open && buffer.has_room() || closed,
            ending: match (closed, end) {
                (true, _) => Ending::Closed,
                (false, true) => Ending::Input,
                (false, false) => Ending::Open,
            },
            error: cold.error,
            stamped: cold.marks.has_stamps(),
        })
    }

    /// Bytes of buffers that a session holds.
    ///
    /// # Errors
    /// [`NetError::Gone`].
    pub fn held_bytes(&self, id: SessionId) -> Result<usize, NetError> {
        let number = self.host.sessions.number(id)?;
        let hot = self.host.sessions.store.hot(number);
        Ok(hot.rx.held_bytes() + hot.tx.held_bytes())
    }

    /// The two ends of a session: ours, and the peer's.
    ///
    /// # Errors
    /// [`NetError::Gone`].
    pub fn addresses(&self, id: SessionId) -> Result<(SocketAddr, SocketAddr), NetError> {
        let path = self
            .host
            .sessions
            .store
            .path(self.host.sessions.number(id)?);
        Ok((
            SocketAddr::new(path.local.to_std(), path.local_port),
            SocketAddr::new(path.remote.to_std(), path.remote_port),
        ))
    }

    /// The next pending event; none when all were taken.
    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            match self.host.common.pending_events.pop_front()? {
                EventSource::Session(number) => {
                    let hot = self.host.sessions.store.hot_mut(number);
                    // Cleared when it is reported: a later change queues a new event.
                    hot.clear(Flags::EVENT);
                    if hot.has(Flags::DETACHED | Flags::EMBRYO) {
                        // Not accepted yet, or closed meanwhile: there is no owner to notify.
                        continue;
                    }
                    let generation = hot.generation;
                    return Some(Event::Session(SessionId { number, generation }));
                }
                EventSource::Listener(number) => {
                    let listener = self.host.sessions.listeners.at_mut(number);
                    listener.listed = false;
                    if listener.open {
                        let generation = listener.generation;
                        return Some(Event::Listener(ListenerId { number, generation }));
                    }
                }
                EventSource::Udp(number) => {
                    if let Some(generation) = self.host.datagrams.take_event(number) {
                        return Some(Event::Udp(UdpId { number, generation }));
                    }
                }
            }
        }
    }
}

impl Host {
    /// RFC 6056 section 3.3.3: successive ports towards one peer, from an unpredictable start.
    fn choose_port(&mut self, ends: &mut Ends) -> Option<()> {
        let offset = self.common.secrets.port_offset(ends);
        let span = u32::from(u16::MAX - PORT_MIN) + 1;
        for _ in 0..span {
            let port = offset.wrapping_add(self.common.next_port) % span;
            self.common.next_port = self.common.next_port.wrapping_add(1);
            // Less than the span, which has 16 bits.
            ends.local_port = PORT_MIN + port as u16;
            // As in Linux, the port of a listener is never chosen: a session to ourselves must not
            // connect to itself there.
            let is_taken = self
                .sessions
                .listeners
                .ports
                .is_taken(&ends.local, ends.local_port)
                || ends.local == ends.remote && ends.local_port == ends.remote_port;
            if is_taken || !self.shard.may_open(ends) {
                continue;
            }
            let hash = self.common.secrets.lookup(ends);
            if self.sessions.find(ends, hash).is_none() {
                return Some(());
            }
        }
        None
    }
}

/// True if a session has room for a good part of its send buffer, or takes no more bytes at
/// all. Else it has an event once it has room.
///
/// # Errors
/// [`NetError::Gone`].
pub fn has_room_or_waits(stack: &mut Stack, id: SessionId) -> Result<bool, NetError> {
    let number = stack.host.sessions.number(id)?;
    let session = &mut stack.host.sessions.access(&mut stack.host.common, number);
    let takes = match session.common.pool.is_ample() {
        true => session.send_buffer().has_room(),
        false => session.hot.tx.len() <= session.pressed_send_bytes() / 3 * 2,
    };
    if takes || session.hot.state() == State::Closed {
        return Ok(true);
    }
    let waits = session.hot.has(Flags::WANTS_ROOM);
    session.hot.set(Flags::WANTS_ROOM);
    if !waits && session.hot.tx.len() == 0 {
        session.common.starved.push_back(session.number);
    }
    Ok(false)
}

/// Ephemeral ports start here: IANA's dynamic ports (RFC 6335 section 6) and, as in Linux, some
/// more.
const PORT_MIN: u16 = 32_768;
