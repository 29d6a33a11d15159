//! The engine's tables for one process: its sockets and the owners of its chunks.
//!
//! Must stay true: nothing in here is in shared memory; a number from a process is valid only if
//! these tables contain it.

use crate::sock::layout::{DATAGRAM_CHUNKS_MAX, Entry, MORE, NO_CHUNK, PLACE_BITS};
use crate::sock::ring::Violation;
use crate::sock::stack::Id;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// Kind of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Listener,
    Session,
    Udp,
}

/// A socket of the process.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) id: Id,
    pub(super) kind: Kind,
    generation: u32,
    /// True if it is in the list of sockets with pending work.
    queued: bool,
    /// Chunks to send, in order: a list through [`Chunks`].
    pub(super) first: u32,
    pub(super) last: u32,
    /// Receive chunks of this socket that the process holds.
    pub(super) lent: u32,
    /// Bytes of the next datagram that were already delivered.
    pub(super) handed_bytes: usize,
    /// True if it is in the list of sockets that wait for a receive chunk.
    pub(super) starved: bool,
    pub(super) connected_notified: bool,
    pub(super) ended_notified: bool,
    pub(super) closed_notified: bool,
    pub(super) shutdown_asked: bool,
    pub(super) close_asked: bool,
    /// As `close_asked`, but pending data is dropped and a session is reset.
    pub(super) abort_asked: bool,
}

/// The sockets of one process.
#[derive(Debug, Default)]
pub(super) struct SocketTable {
    sockets: Vec<Option<Socket>>,
    generations: Vec<u32>,
    free: Vec<u32>,
}

impl SocketTable {
    pub(super) fn len(&self) -> usize {
        self.sockets.len() - self.free.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.sockets.len() >= SOCKETS_MAX
    }

    /// Adds a socket; its place, or none if there are too many.
    pub(super) fn add(&mut self, id: Id, kind: Kind, connected: bool) -> Option<u32> {
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.sockets.len() < SOCKETS_MAX => {
                self.sockets.push(None);
                self.generations.push(0);
                (self.sockets.len() - 1) as u32
            }
            None => return None,
        };
        self.sockets[place as usize] = Some(Socket {
            id,
            kind,
            generation: self.generations[place as usize],
            queued: false,
            first: NO_CHUNK,
            last: NO_CHUNK,
            lent: 0,
            handed_bytes: 0,
            starved: false,
            connected_notified: connected,
            ended_notified: false,
            closed_notified: false,
            shutdown_asked: false,
            close_asked: false,
            abort_asked: false,
        });
        Some(place)
    }

    /// The number by which the process knows the socket at `place`.
    pub(super) fn number(&self, place: u32) -> u32 {
        let generation = self.generations.get(place as usize).copied().unwrap_or(0);
        place | generation << PLACE_BITS
    }

    /// The place of the socket with that number, if there is one.
    pub(super) fn find(&self, number: u32) -> Option<u32> {
        let place = number & (SOCKETS_MAX as u32 - 1);
        let socket = self.sockets.get(place as usize)?.as_ref()?;
        (socket.generation == number >> PLACE_BITS && !socket.close_asked).then_some(place)
    }

    /// The place of the socket with that number, if it is being closed.
    pub(super) fn find_closing(&self, number: u32) -> Option<u32> {
        let place = number & (SOCKETS_MAX as u32 - 1);
        let socket = self.sockets.get(place as usize)?.as_ref()?;
        (socket.generation == number >> PLACE_BITS && socket.close_asked).then_some(place)
    }

    pub(super) fn get(&mut self, place: u32) -> Option<&mut Socket> {
        self.sockets.get_mut(place as usize)?.as_mut()
    }

    pub(super) fn remove(&mut self, place: u32) -> Option<Socket> {
        let socket = self.sockets.get_mut(place as usize)?.take()?;
        let generation = &mut self.generations[place as usize];
        *generation = (*generation + 1) & (u32::MAX >> PLACE_BITS);
        self.free.push(place);
        Some(socket)
    }

    /// Marks it as listed; false if it was, or does not exist.
    pub(super) fn queue(&mut self, place: u32) -> bool {
        self.get(place)
            .is_some_and(|socket| !std::mem::replace(&mut socket.queued, true))
    }

    pub(super) fn unqueue(&mut self, place: u32) {
        if let Some(socket) = self.get(place) {
            socket.queued = false;
        }
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = Id> {
        self.sockets.iter().flatten().map(|socket| socket.id)
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
    pub(super) more: bool,
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
    /// For receive chunks that the process holds: the place of their socket, plus one.
    lent: Box<[u32]>,
    /// Places of sockets that found no free chunk.
    starved: VecDeque<u32>,
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
            with_us: false,
        };
        Self {
            sending: vec![none; count as usize].into(),
            last_sent: 0,
            free: (0..count).rev().collect(),
            lent: vec![0; count as usize].into(),
            starved: VecDeque::new(),
        }
    }

    /// Queues the chunk of a send request; false if it does not exist, or the engine owns it
    /// already.
    pub(super) fn take(&mut self, entry: &Entry, is_udp: bool) -> bool {
        match self.sending.get_mut(entry.chunk as usize) {
            Some(sending) if !sending.with_us => {
                *sending = Sending {
                    next: NO_CHUNK,
                    start: 0,
                    end: entry.bytes,
                    tag: entry.tag,
                    peer: is_udp.then(|| entry.socket_address()),
                    more: is_udp && entry.argument == MORE,
                    with_us: true,
                };
                true
            }
            _ => false,
        }
    }

    /// Number of chunks of the datagram that begins with this one; none while the process has not
    /// posted all of them.
    pub(super) fn datagram(&self, first: u32) -> Result<Option<usize>, Violation> {
        let mut chunk = first;
        for count in 1..=DATAGRAM_CHUNKS_MAX {
            match self.sending.get(chunk as usize) {
                None if chunk == NO_CHUNK => return Ok(None),
                None => return Err(Violation),
                Some(sending) if !sending.more => return Ok(Some(count)),
                Some(sending) => chunk = sending.next,
            }
        }
        Err(Violation)
    }

    /// True if the process has begun a datagram whose last chunk so far is this one.
    pub(super) fn is_begun(&self, last: u32) -> bool {
        self.sending
            .get(last as usize)
            .is_some_and(|sending| sending.with_us && sending.more)
    }

    /// Pending transmission from a chunk.
    pub(super) fn sending(&mut self, chunk: u32) -> Option<&mut Sending> {
        self.sending.get_mut(chunk as usize)
    }

    /// Returns a chunk to send from to the process.
    pub(super) fn sent(&mut self, chunk: u32) {
        if let Some(sending) = self.sending.get_mut(chunk as usize) {
            sending.with_us = false;
            self.last_sent = chunk;
        }
    }

    /// The chunk to send from that was returned to the process last.
    pub(super) fn last_sent(&self) -> u32 {
        self.last_sent
    }

    /// A free receive chunk for the socket at `place`, which is queued for one if there is none.
    pub(super) fn lend(&mut self, place: u32, socket: &mut Socket) -> Option<u32> {
        let Some(chunk) = self.free.pop() else {
            if !std::mem::replace(&mut socket.starved, true) {
                self.starved.push_back(place);
            }
            return None;
        };
        self.lent[chunk as usize] = place + 1;
        Some(chunk)
    }

    /// True if a receive chunk is free.
    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Takes back a chunk that was not needed.
    pub(super) fn unlend(&mut self, chunk: u32) {
        self.lent[chunk as usize] = 0;
        self.free.push(chunk);
    }

    /// Takes back a chunk that the process returns; the place of its socket. None if the process
    /// did not hold it.
    pub(super) fn give(&mut self, chunk: u32) -> Option<u32> {
        let place = self.lent.get(chunk as usize)?.checked_sub(1)?;
        self.unlend(chunk);
        Some(place)
    }

    /// Number of sockets that wait for a receive chunk and can get one.
    pub(super) fn waiting(&self) -> usize {
        self.starved.len().min(self.free.len())
    }

    /// The place of the first socket in the queue for chunks, which may be closed by now.
    pub(super) fn next_starved(&mut self) -> Option<u32> {
        self.starved.pop_front()
    }
}

/// The most sockets of one process.
const SOCKETS_MAX: usize = 1 << PLACE_BITS;
