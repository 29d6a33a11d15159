//! The engine's tables for one process: its sockets and the owners of its chunks.
//!
//! Must stay true: nothing in here is in shared memory; a number from a process is valid only if
//! these tables contain it.

use crate::sock::layout::{DATAGRAM_CHUNKS_MAX, Entry, MORE, NO_CHUNK, PLACE_BITS, RETURNS};
use crate::sock::ring::Violation;
use crate::sock::stack::Id;
use sidecore_bare::width::ToUsize;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Kind of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Listener,
    Session,
    Udp,
}

/// The last change of a session that was reported to its process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reported {
    /// None: it may not even be open.
    Nothing,
    Connected,
    /// The peer sends no more.
    Ended,
    /// It is over: nothing follows.
    Closed,
}

/// The end that its process requested for a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Requested {
    /// None: it is in use.
    Nothing,
    /// No more data to send; to be passed on after the pending data.
    Shutdown,
    /// As `Shutdown`, and the socket is closed then.
    Close,
    /// Pending data is dropped, and a session is reset.
    Abort,
}

/// Index of a socket in its process's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(u32);

impl Place {
    fn index(self) -> usize {
        self.0.to_usize()
    }
}

/// A socket of the process.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) id: Id,
    pub(super) kind: Kind,
    /// The number by which the process knows it: its place, and the place's generation above it.
    pub(super) number: u32,
    pub(super) reported: Reported,
    pub(super) requested: Requested,
    /// True if it is in the list of sockets with pending work.
    queued: bool,
    /// True if it is in the list of sockets that wait for a receive chunk.
    starved: bool,
    /// Chunks to send, in order: a list through [`Chunks`].
    pub(super) first: u32,
    last: u32,
    /// Receive chunks of this socket that the process holds.
    lent: u32,
    /// Bytes of the next datagram that were already delivered.
    pub(super) handed_bytes: usize,
    /// Bytes were returned unsent: the process waits for room.
    pub(super) awaits_room: bool,
}

impl Socket {
    pub(super) fn place(&self) -> Place {
        Place(self.number & PLACE_MASK)
    }

    /// True if the process has requested its close: it knows the socket no longer.
    pub(super) fn is_closing(&self) -> bool {
        self.requested >= Requested::Close
    }

    /// True if data waits to be sent.
    pub(super) fn has_pending(&self) -> bool {
        self.first != NO_CHUNK
    }
}

/// The sockets of one process.
#[derive(Debug, Default)]
pub(super) struct SocketTable {
    sockets: Vec<Option<Socket>>,
    generations: Vec<u32>,
    free: Vec<Place>,
}

impl SocketTable {
    pub(super) fn len(&self) -> usize {
        self.sockets.len() - self.free.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.sockets.len() >= PLACES
    }

    /// Adds a socket; none if there are too many.
    pub(super) fn add(&mut self, id: Id, kind: Kind, reported: Reported) -> Option<&mut Socket> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.sockets.len() < PLACES => {
                let place = Place(self.sockets.len().try_into().ok()?);
                self.sockets.push(None);
                self.generations.push(0);
                place
            }
            None => return None,
        };
        let generation = self.generations[place.index()];
        Some(self.sockets[place.index()].insert(Socket {
            id,
            kind,
            number: place.0 | generation << PLACE_BITS,
            reported,
            requested: Requested::Nothing,
            queued: false,
            starved: false,
            first: NO_CHUNK,
            last: NO_CHUNK,
            lent: 0,
            handed_bytes: 0,
            awaits_room: false,
        }))
    }

    /// The socket with that number, if there is one. It may be closing.
    pub(super) fn find(&mut self, number: u32) -> Option<&mut Socket> {
        self.at(Place(number & PLACE_MASK))
            .filter(|socket| socket.number == number)
    }

    /// The socket with that number, if the process may still use it.
    pub(super) fn find_open(&mut self, number: u32) -> Option<&mut Socket> {
        self.find(number).filter(|socket| !socket.is_closing())
    }

    pub(super) fn at(&mut self, place: Place) -> Option<&mut Socket> {
        self.sockets.get_mut(place.index())?.as_mut()
    }

    pub(super) fn remove(&mut self, place: Place) -> Option<Socket> {
        let socket = self.sockets.get_mut(place.index())?.take()?;
        let generation = &mut self.generations[place.index()];
        // A later socket in this place has another number, so an old one is refused.
        *generation = (*generation + 1) & (u32::MAX >> PLACE_BITS);
        self.free.push(place);
        Some(socket)
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = Id> {
        self.sockets.iter().flatten().map(|socket| socket.id)
    }
}

/// Numbers of sockets with pending work, in the order of their turns. A socket may be closed before
/// its turn; its number is not the next one's in its place.
#[derive(Debug, Default)]
pub(super) struct Ready(VecDeque<u32>);

impl Ready {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Queues a socket, unless it is queued.
    pub(super) fn add(&mut self, socket: &mut Socket) {
        // Queued once at most, which bounds the list.
        if !std::mem::replace(&mut socket.queued, true) {
            self.0.push_back(socket.number);
        }
    }

    /// Queues a socket whose turn could not be finished, before all others.
    pub(super) fn resume(&mut self, socket: &mut Socket) {
        if !std::mem::replace(&mut socket.queued, true) {
            self.0.push_front(socket.number);
        }
    }

    /// True if a socket waits for its turn.
    pub(super) fn has(socket: &Socket) -> bool {
        socket.queued
    }

    /// The next socket; none in an entry whose socket was closed meanwhile.
    pub(super) fn next<'t>(&mut self, table: &'t mut SocketTable) -> Option<&'t mut Socket> {
        let socket = table.find(self.0.pop_front()?)?;
        socket.queued = false;
        Some(socket)
    }
}

/// A chunk to send from, while the engine owns it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sending {
    pub(super) next: u32,
    pub(super) start: u32,
    pub(super) end: u32,
    pub(super) tag: u32,
    pub(super) peer: Option<SocketAddr>,
    /// The next chunk continues this datagram.
    more: bool,
    /// Bytes without room are returned.
    pub(super) returns: bool,
    with_us: bool,
}

/// The owners of the chunks.
#[derive(Debug)]
pub(super) struct Chunks {
    sending: Box<[Sending]>,
    /// The chunk that was returned to the process last.
    last_sent: u32,
    /// Receive chunks owned by the engine; the last returned is used first, while it is cached.
    free: Vec<u32>,
    /// For receive chunks that the process holds: the number of their socket.
    lent: Box<[Option<u32>]>,
    /// Numbers of sockets that found no free chunk.
    starved: VecDeque<u32>,
    /// Number of entries whose socket was removed.
    starved_gone: usize,
}

impl Chunks {
    pub(super) fn new(count: u32) -> Self {
        let none = Sending {
            next: NO_CHUNK,
            start: 0,
            end: 0,
            tag: 0,
            peer: None,
            more: false,
            returns: false,
            with_us: false,
        };
        Self {
            sending: vec![none; count.to_usize()].into(),
            last_sent: 0,
            // Low numbers are given out first.
            free: (0..count).rev().collect(),
            lent: vec![None; count.to_usize()].into(),
            starved: VecDeque::new(),
            starved_gone: 0,
        }
    }

    /// Queues the chunk of a send request behind those of its socket.
    ///
    /// # Errors
    /// It does not exist, or the engine owns it already.
    pub(super) fn queue(&mut self, entry: &Entry, socket: &mut Socket) -> Result<(), Violation> {
        let is_udp = socket.kind == Kind::Udp;
        match self.sending.get_mut(entry.chunk.to_usize()) {
            // A chunk that the engine has already cannot be sent again.
            Some(sending) if !sending.with_us => {
                *sending = Sending {
                    next: NO_CHUNK,
                    start: 0,
                    end: entry.bytes,
                    tag: entry.tag,
                    peer: is_udp.then(|| entry.socket_address()),
                    more: is_udp && entry.argument == MORE,
                    returns: !is_udp && entry.argument == RETURNS,
                    with_us: true,
                };
            }
            _ => return Err(Violation),
        }
        if !socket.has_pending() {
            socket.first = entry.chunk;
        } else if let Some(last) = self.sending.get_mut(socket.last.to_usize()) {
            last.next = entry.chunk;
        }
        socket.last = entry.chunk;
        Ok(())
    }

    /// Number of chunks of the datagram that begins with this one; none while the process has not
    /// posted all of them.
    pub(super) fn datagram(&self, first: u32) -> Result<Option<usize>, Violation> {
        let mut chunk = first;
        // Bounded, because the process decides how many entries say that more follows.
        for count in 1..=DATAGRAM_CHUNKS_MAX {
            match self.sending.get(chunk.to_usize()) {
                None if chunk == NO_CHUNK => return Ok(None),
                None => return Err(Violation),
                Some(sending) if !sending.more => return Ok(Some(count)),
                Some(sending) => chunk = sending.next,
            }
        }
        Err(Violation)
    }

    /// True if the process has begun a datagram of a socket and not posted its last chunk.
    pub(super) fn is_in_datagram(&self, socket: &Socket) -> bool {
        socket.has_pending()
            && self
                .sending
                .get(socket.last.to_usize())
                .is_some_and(|sending| sending.with_us && sending.more)
    }

    /// Pending transmission from a chunk.
    pub(super) fn sending(&mut self, chunk: u32) -> Result<&mut Sending, Violation> {
        self.sending.get_mut(chunk.to_usize()).ok_or(Violation)
    }

    /// Returns the first pending chunk of a socket to the process.
    pub(super) fn sent(&mut self, socket: &mut Socket) {
        if let Some(sending) = self.sending.get_mut(socket.first.to_usize()) {
            sending.with_us = false;
            self.last_sent = socket.first;
            socket.first = sending.next;
        }
    }

    /// The chunk to send from that was returned to the process last.
    pub(super) fn last_sent(&self) -> u32 {
        self.last_sent
    }

    /// A free receive chunk for a socket, which is queued for one if there is none.
    pub(super) fn lend(&mut self, socket: &mut Socket) -> Option<u32> {
        let Some(chunk) = self.free.pop() else {
            if !std::mem::replace(&mut socket.starved, true) {
                self.starved.push_back(socket.number);
            }
            return None;
        };
        self.lent[chunk.to_usize()] = Some(socket.number);
        Some(chunk)
    }

    /// True if a receive chunk is free.
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes back a chunk that was not needed.
    pub(super) fn unlend(&mut self, chunk: u32) {
        self.lent[chunk.to_usize()] = None;
        self.free.push(chunk);
    }

    /// Takes back a chunk that the process returns; the number of its socket.
    ///
    /// # Errors
    /// The process did not hold it.
    pub(super) fn give(&mut self, chunk: u32) -> Result<u32, Violation> {
        let number = self.lent.get(chunk.to_usize()).copied().flatten();
        let number = number.ok_or(Violation)?;
        self.unlend(chunk);
        Ok(number)
    }

    /// Number of sockets that wait for a receive chunk and can get one.
    pub(super) fn waiting(&self) -> usize {
        self.starved.len().min(self.free.len())
    }

    /// The first socket in the queue for chunks; none if it was closed meanwhile.
    pub(super) fn next_starved<'t>(
        &mut self,
        table: &'t mut SocketTable,
    ) -> Option<&'t mut Socket> {
        let Some(socket) = table.find(self.starved.pop_front()?) else {
            self.starved_gone = self.starved_gone.saturating_sub(1);
            return None;
        };
        socket.starved = false;
        Some(socket)
    }

    /// Removes a socket from the table, and from the queue for chunks.
    pub(super) fn remove(&mut self, table: &mut SocketTable, place: Place) -> Option<Socket> {
        let socket = table.remove(place)?;
        if socket.starved {
            self.starved_gone += 1;
            // Half of the queue at once, so that a removal costs the same in any queue. A process
            // that returns no chunk would otherwise make it grow without bound.
            if self.starved_gone > self.starved.len() / 2 {
                self.starved.retain(|number| table.find(*number).is_some());
                self.starved_gone = 0;
            }
        }
        Some(socket)
    }
}

/// A process's credit for receive chunks.
impl Socket {
    /// True if the process holds as many of its chunks as it may.
    pub(super) fn is_at_limit(&self) -> bool {
        self.lent >= LENT_MAX
    }

    /// The process has got one more chunk.
    pub(super) fn debit(&mut self) {
        self.lent += 1;
    }

    /// The process has read `count` chunks; true if it held as many as it may.
    pub(super) fn credit(&mut self, count: u32) -> bool {
        let was_at_limit = self.is_at_limit();
        // The process chooses the number: more than it held count as all.
        self.lent = self.lent.saturating_sub(count);
        was_at_limit
    }
}

/// Receive chunks of one socket that a process may hold: 256 KiB; then the stack's own buffer fills
/// up, and the peer's window closes.
const LENT_MAX: u32 = 16;

/// The most sockets of one process.
const PLACES: usize = 1 << PLACE_BITS;
const PLACE_MASK: u32 = (1 << PLACE_BITS) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_socket_in_an_old_place_has_turns_of_its_own() {
        let mut table = SocketTable::default();
        let open = |table: &mut SocketTable, id| {
            let socket = table.add(Id(id), Kind::Session, Reported::Nothing);
            socket.unwrap().number
        };
        let (mut ready, mut chunks) = (Ready::default(), Chunks::new(1));
        let old = open(&mut table, 1);
        let socket = table.find(old).unwrap();
        let lent = chunks.lend(socket).unwrap();
        assert_eq!(chunks.lend(socket), None);
        ready.add(socket);
        let place = socket.place();
        chunks.remove(&mut table, place).unwrap();
        let new = open(&mut table, 2);
        let socket = table.find(new).unwrap();
        assert_eq!(socket.place(), place);
        ready.add(socket);
        assert_eq!(chunks.lend(socket), None);
        // The old one's entries end with it.
        assert!(ready.next(&mut table).is_none());
        assert_eq!(chunks.give(lent).ok(), Some(old));
        let socket = table.find(new).unwrap();
        assert!(socket.queued && socket.starved);
        assert_eq!(ready.next(&mut table).map(|it| it.number), Some(new));
        let socket = chunks.next_starved(&mut table).unwrap();
        assert_eq!(socket.number, new);
        assert!(!socket.queued && !socket.starved);
        assert_eq!((ready.len(), chunks.starved.len()), (0, 0));
    }

    /// Each of them stayed in the queue until a chunk was free, which a process prevents that
    /// returns none.
    #[test]
    fn sockets_that_are_closed_while_they_wait_for_a_chunk_leave_the_queue() {
        let (mut table, mut chunks) = (SocketTable::default(), Chunks::new(1));
        let open = |chunks: &mut Chunks, table: &mut SocketTable, id| {
            let socket = table.add(Id(id), Kind::Udp, Reported::Nothing).unwrap();
            (chunks.lend(socket), socket.number, socket.place())
        };
        let (lent, ..) = open(&mut chunks, &mut table, 0);
        let (_, waiting, _) = open(&mut chunks, &mut table, 1);
        for id in 2..100_000 {
            let (none, _, place) = open(&mut chunks, &mut table, id);
            assert_eq!(none, None);
            chunks.remove(&mut table, place).unwrap();
            assert!(chunks.starved.len() <= 4, "after {id} sockets");
        }
        assert!(chunks.give(lent.unwrap()).is_ok());
        let mut found = None;
        while found.is_none() && !chunks.starved.is_empty() {
            found = chunks.next_starved(&mut table).map(|it| it.number);
        }
        assert_eq!(found, Some(waiting));
    }
}
