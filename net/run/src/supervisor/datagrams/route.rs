//! Datagrams between programs' sockets and the stack, or other programs' sockets.

use super::*;
use crate::control::refused_by;
use sidecore_bare::width::ToUsize as _;
use sidecore_net::sock::client::next_refusal;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// A datagram on its way to its destination.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outgoing<'d> {
    /// The address to send from, if the program has named one.
    pub(super) source: Option<IpAddr>,
    pub(super) peer: SocketAddr,
    pub(super) payload: &'d [u8],
    pub(super) marks: Marks,
}

/// A datagram for a program.
struct Incoming<'d> {
    from: SocketAddr,
    to: IpAddr,
    payload: &'d [u8],
    marks: Marks,
}

impl Datagrams {
    /// Sends a datagram to the server of its destination.
    ///
    /// # Errors
    /// `ENETUNREACH`: none has a route. The stack's.
    pub(super) fn route(
        &mut self,
        table: &mut Table,
        inode: u64,
        datagram: Outgoing<'_>,
    ) -> Result<(), Errno> {
        let peer = datagram.peer;
        match table.scope.of_peer(peer.ip()) {
            Some(Server::Loopback) => self.send_to_program(table, inode, datagram),
            Some(Server::Stack) => {
                let socket = table.sockets.get(&inode).ok_or(Errno::BADF)?;
                let State::Datagram(Datagram { engines, .. }) = &socket.state else {
                    return Err(Errno::NOTCONN);
                };
                let client = table.engine.client.as_mut().ok_or(Errno::NETDOWN)?;
                let of_family = engines.iter().copied().find(|engine| {
                    let local = client.local(*engine);
                    local.is_some_and(|local| local.is_ipv4() == peer.is_ipv4())
                });
                let engine = of_family.ok_or(Errno::NETUNREACH)?;
                // Without a buffer the datagram is lost, which UDP allows.
                let sent = client.send_to(engine, peer, datagram.payload);
                sent.map(drop).map_err(|error| errno_of(&error))
            }
            None => Err(Errno::NETUNREACH),
        }
    }

    fn send_to_program(
        &mut self,
        table: &mut Table,
        inode: u64,
        datagram: Outgoing<'_>,
    ) -> Result<(), Errno> {
        let peer = datagram.peer;
        let socket = table.sockets.get(&inode).ok_or(Errno::BADF)?;
        let mut from = socket.local;
        let is_connected = socket.peer == Some(peer);
        if let Some(source) = datagram.source.or_else(|| {
            let is_any = from.ip().is_unspecified();
            is_any.then(|| table.scope.source_for(peer.ip())).flatten()
        }) {
            from.set_ip(source);
        }
        // Each iteration but the last removes a closed socket.
        while let Some(taker) = taker_of(table, &table.ports.at(Transport::Udp, peer), from) {
            let datagram = Incoming {
                from,
                to: peer.ip(),
                payload: datagram.payload,
                marks: datagram.marks,
            };
            if self.deliver(table, taker, &datagram) {
                return Ok(());
            }
            table.forget(taker);
        }
        if !table.ports.at(Transport::Udp, peer).is_empty() {
            // Sockets there have other peers, which may change.
            let refused = (peer, datagram.payload);
            self.refuse_once(table, inode, refused, refused_by(peer.ip()));
            return Ok(());
        }
        // Of an unconnected sender only one that asks for it hears an error.
        if self.refuse(table, inode, peer, datagram.payload).is_some() && is_connected {
            // From now on the kernel refuses its writes.
            self.refused.insert(inode);
        }
        Ok(())
    }

    /// Sends a datagram to a program's socket; it is lost if the buffer is full. False if no
    /// program has the socket any more.
    fn deliver(&mut self, table: &mut Table, inode: u64, datagram: &Incoming<'_>) -> bool {
        let Some(socket) = table.sockets.get(&inode) else {
            return true;
        };
        let Some(carrier) = socket.carrier() else {
            return true;
        };
        let sender = match socket.peer {
            // A connected socket receives from its peer only.
            Some(peer) if peer != datagram.from => return true,
            Some(_) => None,
            None => {
                let way = Way {
                    from: datagram.from,
                    to: datagram.to,
                    is_v6: socket.is_v6,
                };
                match self.senders.sender(way) {
                    Ok(sender) => Some(sender),
                    // Without descriptors the datagram is lost, which UDP allows.
                    Err(_) => return true,
                }
            }
        };
        let is_live = carrier.deliver(sender.as_deref(), datagram.payload, datagram.marks);
        if is_live {
            table.calls.wake(inode);
        }
        is_live
    }

    /// Delivers datagrams from the stack. Of the sockets that share a port, one connected to the
    /// source is preferred, else the last unconnected one.
    pub(in super::super) fn give(&mut self, table: &mut Table, engine: Session) {
        self.give_refusals(table, engine);
        loop {
            let Some(client) = &mut table.engine.client else {
                return;
            };
            let Some((received, from)) = client.receive_from(engine) else {
                return;
            };
            let local = client.local(engine).map(|local| local.ip());
            // The chunk goes back at once: a program that does not read must not hold it.
            let payload = received.bytes().to_vec();
            client.release(received);
            let Some(inode) = taker_of(table, table.engine.sharers(engine), from) else {
                continue;
            };
            let to = local
                .filter(|ip| !ip.is_unspecified())
                .or_else(|| table.scope.source_for(from.ip()));
            let datagram = Incoming {
                from,
                to: to.unwrap_or(from.ip()),
                payload: &payload,
                marks: Marks::default(),
            };
            if !self.deliver(table, inode, &datagram) {
                table.forget(inode);
            }
        }
    }

    /// Reports ICMP errors about datagrams that the stack has sent.
    fn give_refusals(&mut self, table: &mut Table, engine: Session) {
        while let Some(client) = &mut table.engine.client
            && let Some(refusal) = next_refusal(client, engine)
        {
            if let Some(inode) = taker_of(table, table.engine.sharers(engine), refusal.peer) {
                let refused = (refusal.peer, refusal.payload.as_slice());
                self.refuse_once(table, inode, refused, refusal.error);
            }
        }
    }

    /// Handles an event of a socket's far end.
    pub(in super::super) fn look_at_far(
        &mut self,
        table: &mut Table,
        inode: u64,
        is_refused: bool,
    ) {
        self.take(table, inode);
        // The kernel has refused a datagram to the program, which may have closed its socket.
        if is_refused && table.is_closed(inode) {
            table.forget(inode);
        }
    }

    /// Continues with the sockets of which one round did not take all.
    pub(in super::super) fn take_unfinished(&mut self, table: &mut Table) {
        for _ in 0..self.unfinished.len() {
            if let Some(inode) = self.unfinished.pop_front() {
                self.take(table, inode);
            }
        }
    }

    /// Forwards datagrams that a program wrote without an address to its peer.
    pub(super) fn take(&mut self, table: &mut Table, inode: u64) {
        let mut payload = std::mem::take(&mut self.scratch);
        payload.resize(DATAGRAM_BYTES_MAX, 0);
        if !self.take_some(table, inode, &mut payload) {
            self.unfinished.push_back(inode);
        }
        self.scratch = payload;
    }

    /// Forwards some of them; true if none is left.
    fn take_some(&mut self, table: &mut Table, inode: u64, payload: &mut [u8]) -> bool {
        let mut control = [0; MARKS_BYTES];
        for _ in 0..TAKEN_MAX {
            let Some(socket) = table.sockets.get(&inode) else {
                return true;
            };
            let Some(carrier) = socket.carrier() else {
                return true;
            };
            let received = match message::receive(carrier.far.as_fd(), payload, &mut control, 0) {
                Ok(received) => received,
                // The error of an earlier delivery; the program's socket may be closed.
                Err(Errno::CONNREFUSED) => continue,
                Err(_) => return true,
            };
            // Other processes can send to the far end, too.
            let is_programs = address::write(carrier.near, socket.is_v6) == received.name;
            if let Some(peer) = socket.peer.filter(|_| is_programs) {
                let datagram = Outgoing {
                    source: None,
                    peer,
                    payload: &payload[..received.bytes],
                    marks: Marks::read(&control[..received.control_bytes]),
                };
                // Lost if there is no route, which UDP allows.
                self.route(table, inode, datagram).ok();
            }
        }
        false
    }
}

/// The socket of these that receives datagrams from `from`: one that is connected to it, else the
/// last one without a peer. Of those with SO_REUSEPORT, a hash of `from` chooses.
fn taker_of(table: &Table, sockets: &[u64], from: SocketAddr) -> Option<u64> {
    let with_peer = |peer: Option<SocketAddr>| {
        let mut sockets = sockets.iter().rev();
        let fits = |inode: &&u64| {
            let socket = table.sockets.get(inode);
            socket.is_some_and(|socket| socket.peer == peer)
        };
        sockets.find(fits).copied()
    };
    if let Some(connected) = with_peer(Some(from)) {
        return Some(connected);
    }
    let last = with_peer(None)?;
    let shares = |inode: &u64| table.sockets.get(inode).is_some_and(Socket::shares_port);
    if sockets.len() == 1 || !shares(&last) {
        return Some(last);
    }
    let is_free = |inode: &u64| {
        let socket = table.sockets.get(inode);
        socket.is_some_and(|socket| socket.peer.is_none())
    };
    let sharing = sockets
        .iter()
        .copied()
        .filter(|it| is_free(it) && shares(it));
    let sharing: Vec<u64> = sharing.collect();
    let at = hash_of(from).to_usize().checked_rem(sharing.len())?;
    sharing.get(at).copied()
}

fn hash_of(from: SocketAddr) -> u64 {
    let mut hasher = DefaultHasher::new();
    from.hash(&mut hasher);
    hasher.finish()
}

/// Datagrams read in one go: about as many as the buffer holds at most.
const TAKEN_MAX: usize = 256;
/// Capacity for TTL and traffic class.
const MARKS_BYTES: usize = 128;
