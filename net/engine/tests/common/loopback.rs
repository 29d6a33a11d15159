//! A stack without a network: a connection reaches one of its own listeners. For testing the layers
//! between applications and a stack.
#![allow(dead_code)] // each test file uses its part

use sidecore_net::sock::{Id, SocketError, SocketOption, Sockets, Status};
use sidecore_net::{DatagramPart, IcmpError, Refusal};
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

/// Bytes in flight per session.
pub(crate) const BUFFER_BYTES: usize = 64 << 10;

/// Hop limit and traffic class of all datagrams.
pub(crate) const MARKS: (u8, u8) = (61, 0xb9);

/// A port for whose datagrams [`TOO_BIG`] comes.
pub(crate) const TOO_BIG_PORT: u16 = 1;
pub(crate) const TOO_BIG: IcmpError = IcmpError {
    kind: 3,
    code: 4,
    info: 1400,
    from: IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 9)),
};

/// Sessions that wait to be accepted.
type Waiting = VecDeque<(Id, SocketAddr)>;
/// Datagrams, and their sources.
type Datagrams = VecDeque<(SocketAddr, Vec<u8>)>;

#[derive(Default)]
pub(crate) struct Loopback {
    next: u64,
    listeners: BTreeMap<Id, (SocketAddr, usize, Waiting)>,
    sessions: BTreeMap<Id, Session>,
    datagrams: BTreeMap<Id, (SocketAddr, Datagrams)>,
    happenings: VecDeque<Id>,
    refusals: VecDeque<(Id, Refusal)>,
    pub(crate) aborted: usize,
    /// Options that were set on sessions.
    pub(crate) options: Vec<SocketOption>,
}

struct Session {
    peer: Option<Id>,
    local: SocketAddr,
    received: VecDeque<u8>,
    ended: bool,
    error: Option<SocketError>,
}

impl Loopback {
    pub(crate) fn sessions(&self) -> usize {
        self.sessions.len()
    }

    fn id(&mut self) -> Id {
        self.next += 1;
        Id(self.next)
    }

    fn drop_listener(&mut self, listener: Id) {
        let waiting = self.listeners.remove(&listener);
        for (session, _) in waiting.into_iter().flat_map(|(.., waiting)| waiting) {
            self.drop_session(session, Some(SocketError::Reset));
        }
    }

    fn drop_session(&mut self, session: Id, error: Option<SocketError>) {
        let Some(session) = self.sessions.remove(&session) else {
            return;
        };
        if let Some(id) = session.peer
            && let Some(peer) = self.sessions.get_mut(&id)
        {
            peer.peer = None;
            peer.ended = true;
            peer.error = error;
            self.happenings.push_back(id);
        }
    }
}

impl Sockets for Loopback {
    fn listen(
        &mut self,
        local: SocketAddr,
        backlog: usize,
        _owner: Option<u32>,
    ) -> Result<Id, SocketError> {
        if self.listeners.values().any(|(other, ..)| *other == local) {
            return Err(SocketError::InUse);
        }
        let id = self.id();
        self.listeners.insert(id, (local, backlog, VecDeque::new()));
        Ok(id)
    }

    fn connect(&mut self, peer: SocketAddr, _port: u16) -> Result<Id, SocketError> {
        let (near, far) = (self.id(), self.id());
        let local = SocketAddr::new(peer.ip(), 40_000 + near.0 as u16 % 20_000);
        let session = |peer, local| Session {
            peer,
            local,
            received: VecDeque::new(),
            ended: false,
            error: None,
        };
        let mut listeners = self.listeners.iter_mut();
        let listener =
            listeners.find(|(_, (at, backlog, queue))| *at == peer && queue.len() < *backlog);
        if let Some((&listener, (.., queue))) = listener {
            queue.push_back((far, local));
            self.sessions.insert(near, session(Some(far), local));
            self.sessions.insert(far, session(Some(near), peer));
            self.happenings.push_back(listener);
        } else {
            let error = Some(SocketError::Refused);
            self.sessions.insert(
                near,
                Session {
                    error,
                    ..session(None, local)
                },
            );
        }
        self.happenings.push_back(near);
        Ok(near)
    }

    fn accept(&mut self, listener: Id) -> Option<(Id, SocketAddr)> {
        self.listeners.get_mut(&listener)?.2.pop_front()
    }

    fn send(
        &mut self,
        session: Id,
        bytes_max: usize,
        source: &mut dyn FnMut(&mut [u8]),
    ) -> Result<usize, SocketError> {
        let peer = self.sessions.get(&session).and_then(|session| session.peer);
        let peer = peer.ok_or(SocketError::NotOpen)?;
        let target = self.sessions.get_mut(&peer).ok_or(SocketError::NotOpen)?;
        let count = bytes_max.min(BUFFER_BYTES - target.received.len());
        let mut bytes = vec![0; count];
        // In two pieces, as into a ring.
        let (one, two) = bytes.split_at_mut(count / 3);
        source(one);
        source(two);
        target.received.extend(&bytes);
        self.happenings.push_back(peer);
        Ok(count)
    }

    fn receive(&mut self, session: Id, bytes_max: usize, sink: &mut dyn FnMut(&[u8])) -> usize {
        let Some(session) = self.sessions.get_mut(&session) else {
            return 0;
        };
        let count = session.received.len().min(bytes_max);
        let bytes: Vec<u8> = session.received.drain(..count).collect();
        // In two pieces, as out of a ring.
        let (one, two) = bytes.split_at(count / 3);
        sink(one);
        sink(two);
        if let (Some(peer), true) = (session.peer, count > 0) {
            self.happenings.push_back(peer);
        }
        count
    }

    fn status(&self, session: Id) -> Status {
        self.sessions
            .get(&session)
            .map_or_else(Status::default, |session| Status {
                connected: session.error != Some(SocketError::Refused),
                ended: session.ended && session.received.is_empty(),
                closed: session.peer.is_none() && session.received.is_empty(),
                error: session.error,
            })
    }

    fn shutdown(&mut self, session: Id) {
        if let Some(peer) = self.sessions.get(&session).and_then(|session| session.peer)
            && let Some(target) = self.sessions.get_mut(&peer)
        {
            target.ended = true;
            self.happenings.push_back(peer);
        }
    }

    fn close(&mut self, socket: Id) {
        self.drop_listener(socket);
        self.datagrams.remove(&socket);
        self.drop_session(socket, None);
    }

    fn abort(&mut self, socket: Id) {
        self.aborted += 1;
        self.drop_listener(socket);
        self.datagrams.remove(&socket);
        self.drop_session(socket, Some(SocketError::Reset));
    }

    fn set(&mut self, session: Id, option: SocketOption) -> Result<(), SocketError> {
        let known = self.sessions.contains_key(&session);
        known.then_some(()).ok_or(SocketError::NotOpen)?;
        self.options.push(option);
        Ok(())
    }

    fn bind_udp(&mut self, local: SocketAddr, _owner: Option<u32>) -> Result<Id, SocketError> {
        let id = self.id();
        self.datagrams.insert(id, (local, VecDeque::new()));
        Ok(id)
    }

    fn send_to(&mut self, socket: Id, peer: SocketAddr, bytes: &[u8]) -> Result<bool, SocketError> {
        let local = self.datagrams.get(&socket).ok_or(SocketError::NotOpen)?.0;
        if peer.port() == TOO_BIG_PORT {
            let (payload, error) = (bytes.to_vec(), TOO_BIG);
            let refusal = Refusal {
                peer,
                payload,
                error,
            };
            self.refusals.push_back((socket, refusal));
            self.happenings.push_back(socket);
            return Ok(true);
        }
        let mut sockets = self.datagrams.iter_mut();
        let (&id, (_, queue)) = sockets
            .find(|(_, (at, _))| *at == peer)
            .ok_or(SocketError::Unreachable)?;
        queue.push_back((local, bytes.to_vec()));
        self.happenings.push_back(id);
        Ok(true)
    }

    fn receive_from(
        &mut self,
        socket: Id,
        from: usize,
        bytes_max: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Option<DatagramPart> {
        let queue = &mut self.datagrams.get_mut(&socket)?.1;
        let (peer, bytes) = queue.front()?;
        let (peer, end) = (*peer, bytes.len().min(from + bytes_max));
        let left = bytes.len() - end;
        sink(&bytes[from..end]);
        if left == 0 {
            queue.pop_front();
        }
        let (hops, class) = MARKS;
        Some(DatagramPart {
            peer,
            left,
            hops,
            class,
        })
    }

    fn has_refusal(&self, socket: Id) -> bool {
        self.refusals.iter().any(|(of, _)| *of == socket)
    }

    fn next_refusal(&mut self, socket: Id) -> Option<Refusal> {
        let at = self.refusals.iter().position(|(of, _)| *of == socket)?;
        self.refusals.remove(at).map(|(_, refusal)| refusal)
    }

    fn local(&self, socket: Id) -> Option<SocketAddr> {
        let listener = self.listeners.get(&socket).map(|(local, ..)| *local);
        let session = self.sessions.get(&socket).map(|session| session.local);
        listener
            .or(session)
            .or(self.datagrams.get(&socket).map(|(local, _)| *local))
    }

    fn next_ready(&mut self) -> Option<Id> {
        self.happenings.pop_front()
    }
}
