//! Datagrams between programs' sockets and the stack, or other programs' sockets.

use super::*;
use crate::control::refused_by;
use sidecore_bare::width::ToUsize as _;
use sidecore_net::sock::client::next_refusal;
use sidecore_net_rings::datagram::{Frame, SEGMENTS_MAX};
use sidecore_sys::message::DATAGRAMS_MAX;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::Ipv4Addr;

/// Datagrams on their way to one destination.
#[derive(Debug, Clone, Copy)]
pub(super) struct Outgoing<'d> {
    /// The address to send from, if the program has named one.
    pub(super) source: Option<IpAddr>,
    pub(super) peer: SocketAddr,
    pub(super) payloads: &'d [&'d [u8]],
    pub(super) marks: Marks,
}

/// Datagrams for a program, from one source.
pub(super) struct Incoming<'d> {
    pub(super) from: SocketAddr,
    pub(super) to: IpAddr,
    pub(super) payloads: &'d [&'d [u8]],
    pub(super) marks: Marks,
}

/// A datagram of the stack for a program.
struct Arrival {
    taker: u64,
    from: SocketAddr,
    to: IpAddr,
    payload: Vec<u8>,
    marks: Marks,
}

impl Arrival {
    /// True if both go to one socket from one source, with the same marks.
    fn is_like(&self, other: &Self) -> bool {
        let ends = |it: &Self| (it.taker, it.from, it.to, it.marks);
        ends(self) == ends(other)
    }
}

/// The datagrams of a payload that is cut into segments of this length.
pub(super) fn segments_of(payload: &[u8], bytes: usize) -> Vec<&[u8]> {
    // An empty datagram is one, too, but has no segments.
    if payload.len() <= bytes {
        return vec![payload];
    }
    payload.chunks(bytes.max(1)).collect()
}

impl Datagrams {
    /// Sends datagrams to the server of their destination.
    ///
    /// # Errors
    /// `ENETUNREACH`: none has a route. The stack's.
    pub(super) fn route(
        &mut self,
        table: &mut Table,
        inode: u64,
        datagrams: Outgoing<'_>,
    ) -> Result<(), Errno> {
        let peer = datagrams.peer;
        match table.scope.of_peer(peer.ip()) {
            Some(Server::Loopback) => self.send_to_program(table, inode, datagrams),
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
                let mut payloads = datagrams.payloads.iter();
                // Without a buffer the datagram is lost, which UDP allows.
                payloads.try_for_each(|payload| {
                    let sent = client.send_to(engine, peer, payload);
                    sent.map(drop).map_err(|error| errno_of(&error))
                })
            }
            None => Err(Errno::NETUNREACH),
        }
    }

    fn send_to_program(
        &mut self,
        table: &mut Table,
        inode: u64,
        datagrams: Outgoing<'_>,
    ) -> Result<(), Errno> {
        let peer = datagrams.peer;
        let socket = table.sockets.get(&inode).ok_or(Errno::BADF)?;
        let mut from = socket.local;
        let is_connected = socket.peer == Some(peer);
        if let Some(source) = datagrams.source.or_else(|| {
            let is_any = from.ip().is_unspecified();
            is_any.then(|| table.scope.source_for(peer.ip())).flatten()
        }) {
            from.set_ip(source);
        }
        // Each iteration but the last removes a closed socket.
        while let Some(taker) = taker_of(table, &table.ports.at(Transport::Udp, peer), from) {
            let incoming = Incoming {
                from,
                to: peer.ip(),
                payloads: datagrams.payloads,
                marks: datagrams.marks,
            };
            if self.deliver(table, taker, &incoming) {
                return Ok(());
            }
            table.forget(taker);
        }
        if !table.ports.at(Transport::Udp, peer).is_empty() {
            // Sockets there have other peers, which may change.
            for &payload in datagrams.payloads {
                self.refuse_once(table, inode, (peer, payload), refused_by(peer.ip()));
            }
            return Ok(());
        }
        for &payload in datagrams.payloads {
            // Of an unconnected sender only one that asks for it hears an error.
            if self.refuse(table, inode, peer, payload).is_some() && is_connected {
                // From now on the kernel refuses its writes.
                self.refused.insert(inode);
            }
        }
        Ok(())
    }

    /// Sends datagrams to a program's socket; those are lost for which its buffer has no room.
    /// False if no program has the socket any more.
    pub(super) fn deliver(
        &mut self,
        table: &mut Table,
        inode: u64,
        datagrams: &Incoming<'_>,
    ) -> bool {
        let Some(socket) = table.sockets.get(&inode) else {
            return true;
        };
        let Some(carrier) = socket.carrier() else {
            return true;
        };
        if carrier.records.is_some() {
            let takes = socket.peer.is_none_or(|peer| peer == datagrams.from);
            let ends = (datagrams.from, datagrams.to);
            for payload in datagrams.payloads.iter().filter(|_| takes) {
                self.give_by_ring(table, inode, ends, (payload, datagrams.marks));
            }
            return true;
        }
        let sender = match socket.peer {
            // A connected socket receives from its peer only.
            Some(peer) if peer != datagrams.from => return true,
            Some(_) => None,
            None => {
                let way = Way {
                    from: datagrams.from,
                    to: datagrams.to,
                    is_v6: socket.is_v6,
                };
                match self.senders.sender(way, &mut table.directory) {
                    Ok(sender) => Some(sender),
                    // Without descriptors they are lost, which UDP allows.
                    Err(_) => return true,
                }
            }
        };
        let (payloads, marks) = (datagrams.payloads, datagrams.marks);
        let is_live = carrier.deliver(sender.as_deref(), payloads, marks);
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
            let arrived = self.arrivals(table, engine);
            if arrived.is_empty() {
                return;
            }
            for alike in arrived.chunk_by(Arrival::is_like) {
                let Some(Arrival {
                    taker,
                    from,
                    to,
                    marks,
                    ..
                }) = alike.first()
                else {
                    continue;
                };
                let payloads: Vec<&[u8]> = alike.iter().map(|it| it.payload.as_slice()).collect();
                let incoming = Incoming {
                    from: *from,
                    to: *to,
                    payloads: &payloads,
                    marks: *marks,
                };
                // An earlier one may have found that it is closed.
                let taker = match table.sockets.contains_key(taker) {
                    true => Some(*taker),
                    false => taker_of(table, table.engine.sharers(engine), *from),
                };
                if let Some(taker) = taker
                    && !self.deliver(table, taker, &incoming)
                {
                    // What it sent before it was closed.
                    self.take_frames(table, taker);
                    table.forget(taker);
                }
            }
        }
    }

    /// Takes some datagrams of the stack, with the sockets that get them; empty if there is none.
    /// Those of sockets with rings are given at once.
    fn arrivals(&mut self, table: &mut Table, engine: Session) -> Vec<Arrival> {
        let mut arrived = Vec::new();
        while arrived.len() < GIVEN_MAX
            && let Some(client) = &mut table.engine.client
            && let Some((received, from)) = client.receive_from(engine)
        {
            let local = client.local(engine).map(|local| local.ip());
            let taker = taker_of(table, table.engine.sharers(engine), from);
            let to = local
                .filter(|ip| !ip.is_unspecified())
                .or_else(|| table.scope.source_for(from.ip()))
                .unwrap_or(from.ip());
            let marks = received.marks().map(|(hops, class)| Marks {
                // The kernel, by which some get them, refuses 0.
                hops: Some(hops.max(1).into()),
                class: Some(class.into()),
            });
            let marks = marks.unwrap_or_default();
            let payload = match taker {
                // Without another copy.
                Some(taker)
                    if self.give_by_ring(table, taker, (from, to), (received.bytes(), marks)) =>
                {
                    None
                }
                taker => taker.map(|taker| (taker, received.bytes().to_vec())),
            };
            // The chunk goes back at once: a program that does not read must not hold it.
            if let Some(client) = &mut table.engine.client {
                client.release(received);
            }
            arrived.extend(payload.map(|(taker, payload)| Arrival {
                taker,
                from,
                to,
                payload,
                marks,
            }));
        }
        arrived
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

    /// Forwards what a program sent without a call: frames, and what it wrote without an address
    /// to its peer.
    pub(in super::super) fn take(&mut self, table: &mut Table, inode: u64) {
        self.take_records(table, inode);
        let mut batch = self.batch.take().unwrap_or_else(new_batch);
        let frames_done = self.take_some_frames(table, inode, &mut batch);
        if !self.take_some(table, inode, &mut batch) || !frames_done {
            self.unfinished.push_back(inode);
        }
        self.batch = Some(batch);
    }

    /// Forwards the frames that a program has sent: by an event of the desk, or before a call of it
    /// is served.
    pub(in super::super) fn take_frames(&mut self, table: &mut Table, inode: u64) {
        self.take_records(table, inode);
        let carrier = table.sockets.get(&inode).and_then(Socket::carrier);
        if carrier.is_none_or(|carrier| carrier.direct.desk.is_none()) {
            return;
        }
        let mut batch = self.batch.take().unwrap_or_else(new_batch);
        if !self.take_some_frames(table, inode, &mut batch) {
            self.unfinished.push_back(inode);
        }
        self.batch = Some(batch);
    }

    /// Forwards all that programs sent, before the run ends.
    pub(in super::super) fn take_all(&mut self, table: &mut Table) {
        let sockets = table.sockets.iter();
        let all: Vec<u64> = sockets
            .filter(|(_, socket)| socket.is_datagram())
            .map(|(inode, _)| *inode)
            .collect();
        for inode in all {
            self.take(table, inode);
        }
    }

    /// Forwards some of what a program wrote to its peer; true if none is left.
    fn take_some(&mut self, table: &mut Table, inode: u64, batch: &mut Batch) -> bool {
        for _ in 0..ROUNDS_MAX {
            let Some(socket) = table.sockets.get(&inode) else {
                return true;
            };
            let Some(carrier) = socket.carrier() else {
                return true;
            };
            match batch.receive(carrier.far.as_fd()) {
                Ok(_) => {}
                // The error of an earlier delivery; the program's socket may be closed.
                Err(Errno::CONNREFUSED) => continue,
                Err(_) => return true,
            }
            let Some(peer) = socket.peer else {
                continue;
            };
            // Other processes can send to the far end, too.
            let name = address::write(carrier.near, socket.is_v6);
            let messages = batch.messages().filter(|message| message.name == name);
            let marked: Vec<(Marks, &[u8])> = messages
                .map(|message| (Marks::read(message.control), message.payload))
                .collect();
            for alike in marked.chunk_by(|one, other| one.0 == other.0) {
                let payloads: Vec<&[u8]> = alike.iter().map(|(_, payload)| *payload).collect();
                let datagrams = Outgoing {
                    source: None,
                    peer,
                    payloads: &payloads,
                    marks: alike
                        .first()
                        .map_or_else(Marks::default, |(marks, _)| *marks),
                };
                // Lost if there is no route, which UDP allows.
                self.route(table, inode, datagrams).ok();
            }
        }
        false
    }

    /// Forwards some of a program's frames; true if none is left.
    fn take_some_frames(&mut self, table: &mut Table, inode: u64, batch: &mut Batch) -> bool {
        for _ in 0..ROUNDS_MAX {
            let Some(socket) = table.sockets.get(&inode) else {
                return true;
            };
            let Some(carrier) = socket.carrier() else {
                return true;
            };
            let Some((desk, _)) = &carrier.direct.desk else {
                return true;
            };
            let Ok(received) = batch.receive(desk.as_fd()) else {
                return true;
            };
            // Other processes can send to the desk, too.
            let (name, is_v6) = (address::write(carrier.near, socket.is_v6), socket.is_v6);
            for message in batch.messages().filter(|message| message.name == name) {
                let Some((frame, payload)) = Frame::read(message.payload) else {
                    continue;
                };
                let peer = address::plain_peer(frame.peer, is_v6);
                // Calls refuse them.
                if is_v6 || peer.is_ipv4() {
                    let marks = Marks::read(message.control);
                    self.forward_frame(table, inode, Frame { peer, ..frame }, payload, marks);
                }
            }
            // The desk sends nothing, so that no error has cut the batch short: it is empty.
            if received < DATAGRAMS_MAX {
                return true;
            }
        }
        false
    }

    /// Forwards the datagrams behind a frame, or in a ring; calls refuse what is dropped here.
    pub(super) fn forward_frame(
        &mut self,
        table: &mut Table,
        inode: u64,
        frame: Frame,
        payload: &[u8],
        marks: Marks,
    ) {
        if frame.peer.ip() == IpAddr::from(Ipv4Addr::BROADCAST) {
            return;
        }
        let segment_bytes = match frame.segment_bytes {
            0 => usize::MAX,
            bytes => bytes.into(),
        };
        // As many as the kernel would take; a library sends no more.
        let most = segment_bytes
            .saturating_mul(SEGMENTS_MAX)
            .min(payload.len());
        let segments = segments_of(&payload[..most], segment_bytes);
        let outgoing = Outgoing {
            source: None,
            peer: frame.peer,
            payloads: &segments,
            marks,
        };
        if self.route(table, inode, outgoing).is_err() {
            // The datagram is lost, which UDP allows; the next call hears why.
            table.directory.set_reaches(frame.peer.ip(), false);
        }
    }
}

/// Memory for datagrams of any length, with their marks.
pub(super) fn new_batch() -> Batch {
    Batch::new(DATAGRAM_BYTES_MAX, MARKS_BYTES)
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

/// Batches that one look at a socket takes: about as much as its buffer holds at most.
const ROUNDS_MAX: usize = 16;
/// Datagrams of the stack that are given together.
const GIVEN_MAX: usize = 64;
/// Capacity for TTL and traffic class.
const MARKS_BYTES: usize = 128;
