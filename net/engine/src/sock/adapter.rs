//! Implementation of [`Sockets`] by the stack: conversion of names and errors.

use super::stack::{Id, SocketError, SocketOption, Sockets, Status};
use crate::{
    DatagramPart, Event, Keepalive, ListenerId, NetError, Refusal, SessionError, SessionId,
    SessionOption, SessionState, Sharing, Stack, UdpId, Write,
};
use sidecore_net_stack::{
    has_refusal, has_room_or_waits, next_refusal, set_udp_class, set_udp_peer, want_refusals,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Decoded [`Id`]: two bits of kind, 30 of number, 32 of generation.
enum Name {
    Session(SessionId),
    Listener(ListenerId),
    Udp(UdpId),
}

impl Name {
    fn of(id: Id) -> Self {
        let number = (id.0 >> 32) as u32 & NUMBER_MASK;
        let generation = id.0 as u32;
        match id.0 >> 62 {
            LISTENER => Self::Listener(ListenerId::from_parts(number, generation)),
            UDP => Self::Udp(UdpId::from_parts(number, generation)),
            _ => Self::Session(SessionId::from_parts(number, generation)),
        }
    }

    fn id(&self) -> Id {
        let (kind, (number, generation)) = match self {
            Self::Session(id) => (SESSION, id.parts()),
            Self::Listener(id) => (LISTENER, id.parts()),
            Self::Udp(id) => (UDP, id.parts()),
        };
        Id(kind << 62 | u64::from(number & NUMBER_MASK) << 32 | u64::from(generation))
    }

    fn session(id: Id) -> Result<SessionId, SocketError> {
        match Self::of(id) {
            Self::Session(id) => Ok(id),
            _ => Err(SocketError::NotOpen),
        }
    }

    fn udp(id: Id) -> Result<UdpId, SocketError> {
        match Self::of(id) {
            Self::Udp(id) => Ok(id),
            _ => Err(SocketError::NotOpen),
        }
    }
}

/// The name of a session in this interface.
pub(crate) fn id_of(session: SessionId) -> Id {
    Name::Session(session).id()
}

impl From<SessionError> for SocketError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Refused => Self::Refused,
            SessionError::Reset => Self::Reset,
            SessionError::Aborted => Self::Aborted,
            SessionError::TimedOut => Self::TimedOut,
            SessionError::Unreachable => Self::Unreachable,
            SessionError::NetworkUnreachable => Self::NetworkUnreachable,
            SessionError::Prohibited => Self::Prohibited,
            SessionError::NoProtocol => Self::NoProtocol,
            _ => Self::NotOpen,
        }
    }
}

impl From<NetError> for SocketError {
    fn from(error: NetError) -> Self {
        match error {
            NetError::AddressInUse(_) => Self::InUse,
            NetError::AddressNotOurs(_) => Self::NotOurs,
            NetError::NoRoute(_) => Self::Unreachable,
            NetError::NoPort(_) | NetError::Sessions(_) | NetError::Memory(_) => Self::Full,
            NetError::Ended(error) => error.into(),
            NetError::TooLong { .. } => Self::TooLong,
            NetError::Config { .. } => Self::Invalid,
            _ => Self::NotOpen,
        }
    }
}

impl Sockets for Stack {
    fn listen(
        &mut self,
        local: SocketAddr,
        backlog: usize,
        owner: Option<u32>,
    ) -> Result<Id, SocketError> {
        let sharing = owner.map_or(Sharing::Alone, Sharing::WithOwner);
        Ok(Name::Listener(self.listen_shared(local, backlog, sharing)?).id())
    }

    fn connect(&mut self, peer: SocketAddr, port: u16) -> Result<Id, SocketError> {
        let any = match peer.ip() {
            IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        };
        let local = (port != 0).then_some(SocketAddr::new(any, port));
        Ok(Name::Session(Stack::connect(self, peer, local)?).id())
    }

    fn accept(&mut self, listener: Id) -> Option<(Id, SocketAddr)> {
        let Name::Listener(listener) = Name::of(listener) else {
            return None;
        };
        loop {
            // A listener that was closed has no sessions, which is no error here.
            let session = Stack::accept(self, listener).ok().flatten()?;
            // A session that ended before it was accepted is still returned.
            if let Ok((_, peer)) = self.addresses(session) {
                return Some((Name::Session(session).id(), peer));
            }
        }
    }

    fn send(
        &mut self,
        session: Id,
        bytes_max: usize,
        source: &mut dyn FnMut(&mut [u8]),
    ) -> Result<usize, SocketError> {
        let session = Name::session(session)?;
        // First the other end, if it is on this stack: what it has no room for is queued.
        let across = self.write_across(session, bytes_max, &mut *source)?;
        if across == bytes_max {
            return Ok(across);
        }
        let rest = self.write_in_place(session, bytes_max - across, Write::default(), source)?;
        Ok(across + rest)
    }

    fn takes_bytes(&mut self, session: Id) -> bool {
        Name::session(session).map_or(true, |session| {
            has_room_or_waits(self, session).unwrap_or(true)
        })
    }

    fn carry(&mut self, session: Id, take: &mut dyn FnMut(Id, usize) -> usize) -> usize {
        let Ok(session) = Name::session(session) else {
            return 0;
        };
        self.carry_across(session, |reader, room| {
            take(Name::Session(reader).id(), room)
        })
    }

    fn receive(&mut self, session: Id, bytes_max: usize, sink: &mut dyn FnMut(&[u8])) -> usize {
        let Ok(id) = Name::session(session) else {
            return 0;
        };
        let Ok([first, second]) = self.peek(id) else {
            return 0;
        };
        let a = first.len().min(bytes_max);
        let b = second.len().min(bytes_max - a);
        if a > 0 {
            sink(&first[..a]);
        }
        if b > 0 {
            sink(&second[..b]);
        }
        // It cannot fail: the bytes were just read.
        self.consume(id, a + b).map_or(0, |()| a + b)
    }

    fn status(&self, session: Id) -> Status {
        // A session that the stack has forgotten is over; the owner may not have closed it yet.
        let gone = Status {
            connected: true,
            ended: true,
            closed: true,
            error: None,
        };
        let Ok(id) = Name::session(session) else {
            return gone;
        };
        let Ok(readiness) = self.readiness(id) else {
            return gone;
        };
        // The end and the close follow the last byte, as the application sees them.
        let unread = self.peek(id).is_ok_and(|pieces| !pieces[0].is_empty());
        Status {
            connected: self.is_synchronized(id),
            ended: readiness.end_of_input() && !unread,
            closed: readiness.is_closed() && !unread,
            error: readiness.error.map(SocketError::from),
        }
    }

    fn is_acknowledged(&mut self, session: Id) -> bool {
        use SessionState::{Closed, FinWait2, TimeWait};
        // A session that the stack has forgotten is over.
        let info = Name::session(session)
            .ok()
            .and_then(|id| self.info(id).ok());
        info.is_none_or(|info| matches!(info.state, FinWait2 | TimeWait | Closed))
    }

    fn shutdown(&mut self, session: Id) {
        if let Ok(id) = Name::session(session) {
            // Fails if the session is over, which is fine.
            self.shutdown_write(id).ok();
        }
    }

    fn close(&mut self, socket: Id) {
        // A name that is no longer valid is closed already.
        match Name::of(socket) {
            Name::Session(id) => Stack::close(self, id),
            Name::Listener(id) => self.close_listener(id),
            Name::Udp(id) => self.close_udp(id),
        }
        .ok();
    }

    fn abort(&mut self, socket: Id) {
        match Name::of(socket) {
            Name::Session(id) => Stack::abort(self, id),
            Name::Listener(id) => self.close_listener(id),
            Name::Udp(id) => self.close_udp(id),
        }
        .ok();
    }

    fn set(&mut self, socket: Id, option: SocketOption) -> Result<(), SocketError> {
        let option = match option {
            SocketOption::NoDelay(on) => SessionOption::NoDelay(on),
            SocketOption::KeepaliveIdleSeconds(0) => SessionOption::Keepalive(None),
            // Interval and count stay those of the stack's configuration.
            SocketOption::KeepaliveIdleSeconds(idle_s) => {
                let keepalive = self.config().keepalive;
                SessionOption::Keepalive(Some(Keepalive {
                    idle_s,
                    ..keepalive
                }))
            }
            SocketOption::UserTimeoutMs(milliseconds) => SessionOption::UserTimeout(milliseconds),
            SocketOption::SendBytes(bytes) => SessionOption::SendBytes(bytes),
            SocketOption::ReceiveBytes(bytes) => SessionOption::ReceiveBytes(bytes),
            SocketOption::SegmentBytesMax(bytes) => SessionOption::SegmentBytesMax(bytes),
            SocketOption::Refusals(on) => return Ok(want_refusals(self, Name::udp(socket)?, on)?),
            SocketOption::TrafficClass(class) => {
                if let Name::Udp(id) = Name::of(socket) {
                    return Ok(set_udp_class(self, id, class)?);
                }
                SessionOption::TrafficClass(class)
            }
        };
        match Name::of(socket) {
            Name::Session(id) => self.set_option(id, option)?,
            Name::Listener(id) => self.set_listener_option(id, option)?,
            Name::Udp(_) => return Err(SocketError::NotOpen),
        }
        Ok(())
    }

    fn bind_udp(&mut self, local: SocketAddr, owner: Option<u32>) -> Result<Id, SocketError> {
        let sharing = owner.map_or(Sharing::Alone, Sharing::WithOwner);
        Ok(Name::Udp(self.bind_udp_shared(local, sharing)?).id())
    }

    fn send_to(&mut self, socket: Id, peer: SocketAddr, bytes: &[u8]) -> Result<bool, SocketError> {
        match Stack::send_to(self, Name::udp(socket)?, peer, bytes) {
            Ok(()) => Ok(true),
            Err(NetError::QueueFull) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn receive_from(
        &mut self,
        socket: Id,
        from: usize,
        bytes_max: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Option<DatagramPart> {
        self.receive_part(Name::udp(socket).ok()?, from, bytes_max, sink)
    }

    fn set_peer(&mut self, socket: Id, peer: Option<SocketAddr>) {
        if let Ok(id) = Name::udp(socket) {
            // Fails if the socket is closed, which is fine.
            set_udp_peer(self, id, peer).ok();
        }
    }

    fn has_refusal(&self, socket: Id) -> bool {
        Name::udp(socket).is_ok_and(|id| has_refusal(self, id))
    }

    fn next_refusal(&mut self, socket: Id) -> Option<Refusal> {
        next_refusal(self, Name::udp(socket).ok()?)
    }

    fn held_bytes(&self, socket: Id) -> usize {
        match Name::of(socket) {
            Name::Session(id) => Stack::held_bytes(self, id).unwrap_or_default(),
            Name::Listener(_) | Name::Udp(_) => 0,
        }
    }

    fn local(&self, socket: Id) -> Option<SocketAddr> {
        match Name::of(socket) {
            Name::Session(id) => self.addresses(id).ok().map(|(local, _)| local),
            Name::Listener(id) => self.listener_address(id),
            Name::Udp(id) => self.udp_address(id).ok(),
        }
    }

    fn next_ready(&mut self) -> Option<Id> {
        Some(match self.next_event()? {
            Event::Session(id) => Name::Session(id).id(),
            Event::Listener(id) => Name::Listener(id).id(),
            Event::Udp(id) => Name::Udp(id).id(),
        })
    }
}

const SESSION: u64 = 0;
const LISTENER: u64 = 1;
const UDP: u64 = 2;
const NUMBER_MASK: u32 = (1 << 30) - 1;
