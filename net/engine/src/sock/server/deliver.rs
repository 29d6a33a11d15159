//! Delivery of a socket's events to its process, and of its pending data to the stack.
//!
//! Must stay true: the socket is looked up once; all steps work on the entry that was found.

use super::books::{Chunks, Kind, Place, Ready, Reported, Requested, Sending, Socket, SocketTable};
use super::link::Link;
use super::{ClientStatus, Owner, Process, Round};
use crate::DatagramPart;
use crate::sock::layout::{CHUNK_BYTES, Entry, Event, MORE, chunk_offset, entry_bytes, octets_of};
use crate::sock::ring::Violation;
use crate::sock::stack::{SocketError, Sockets};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sys::SharedSlice;

/// A socket, and the parts of its process that a delivery needs.
pub(super) struct Delivery<'p> {
    pub(super) socket: &'p mut Socket,
    pub(super) link: &'p mut Link,
    pub(super) chunks: &'p mut Chunks,
    pub(super) ready: &'p mut Ready,
    pub(super) status: &'p mut ClientStatus,
}

/// The result of a delivery, or of a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// All that can be done now is done.
    Done,
    /// The event ring is full.
    Full,
    /// Nothing is left to send, and the process has requested the socket's end.
    Over,
}

/// A receive chunk for a socket, or the reason why there is none.
enum Lent {
    /// The chunk, and its offset in the segment.
    Chunk(u32, usize),
    /// The process holds enough of the socket's chunks, or the socket waits for one.
    Enough,
    /// The event ring is full.
    Full,
}

impl Process {
    /// A socket as `find` finds it, with the other parts.
    pub(super) fn delivery(
        &mut self,
        find: impl FnOnce(&mut SocketTable) -> Option<&mut Socket>,
    ) -> Option<Delivery<'_>> {
        Some(Delivery {
            socket: find(&mut self.sockets)?,
            link: &mut self.link,
            chunks: &mut self.chunks,
            ready: &mut self.ready,
            status: &mut self.status,
        })
    }

    /// Does all pending work of the socket at `place`; false if the event ring is full.
    pub(super) fn deliver(
        &mut self,
        place: Place,
        round: &mut Round<'_, impl Sockets>,
    ) -> Result<bool, Violation> {
        let Some(mut delivery) = self.delivery(|table| table.at(place)) else {
            return Ok(true);
        };
        let progress = match (delivery.socket.requested, delivery.socket.kind) {
            // An abort overtakes all that waits to be sent.
            (Requested::Abort, _) => delivery.abandon()?,
            (Requested::Close, Kind::Listener) => Progress::Over,
            (_, Kind::Listener) => return self.accept(place, round),
            (_, Kind::Udp) => delivery.datagrams(round)?,
            (_, Kind::Session) => delivery.session(round)?,
        };
        if progress == Progress::Over {
            self.end(place, round);
        }
        Ok(progress != Progress::Full)
    }

    /// Removes a socket and ends it in the stack, as its process has requested.
    pub(super) fn end(&mut self, place: Place, round: &mut Round<'_, impl Sockets>) {
        if let Some(socket) = self.chunks.remove(&mut self.sockets, place) {
            round.owners.remove(&socket.id);
            match socket.requested {
                Requested::Abort => round.stack.abort(socket.id),
                _ => round.stack.close(socket.id),
            }
        }
    }

    /// Reports new sessions of a listener; false if the event ring is full.
    fn accept(
        &mut self,
        listener: Place,
        round: &mut Round<'_, impl Sockets>,
    ) -> Result<bool, Violation> {
        let Some(&mut Socket { id, number, .. }) = self.sockets.at(listener) else {
            return Ok(true);
        };
        loop {
            // Without room for the event, the session stays in the stack's queue.
            if !self.link.has_room(1)? {
                return Ok(false);
            }
            // As many sessions as sockets: the rest waits until the process closes some.
            if self.sockets.is_full() {
                return Ok(true);
            }
            let Some((session, peer)) = round.stack.accept(id) else {
                return Ok(true);
            };
            let added = self
                .sockets
                .add(session, Kind::Session, Reported::Connected);
            let Some(socket) = added else {
                round.stack.abort(session);
                return Ok(true);
            };
            let owner = Owner {
                process: round.index,
                place: socket.place(),
            };
            round.owners.insert(session, owner);
            let entry = Entry {
                socket: socket.number,
                argument: number,
                ..Entry::default()
            };
            let local = round.stack.local(session).unwrap_or(peer);
            let entry = entry.at(peer).with_local(local.ip());
            self.link.send(Event::Accepted, entry)?;
            // It may have received bytes before it was accepted.
            self.ready.add(socket);
        }
    }
}

impl Delivery<'_> {
    fn session(&mut self, round: &mut Round<'_, impl Sockets>) -> Result<Progress, Violation> {
        let status = round.stack.status(self.socket.id);
        // The process learns of the connection before it gets data or the end.
        if status.connected && self.socket.reported == Reported::Nothing {
            let is_told = self.report(Reported::Connected, Event::Connected, 0)?;
            if !is_told {
                return Ok(Progress::Full);
            }
        }
        if !self.send_waiting(round)? || !self.report_room(round)? {
            return Ok(Progress::Full);
        }
        if self.finish(round) {
            return Ok(Progress::Over);
        }
        if !self.receive(round)? {
            return Ok(Progress::Full);
        }
        // Checked again: the bytes just received may have been the last.
        let status = round.stack.status(self.socket.id);
        // A session that failed has no regular end: only its close is reported, with the error.
        let has_ended = status.ended && status.error.is_none();
        if has_ended && self.socket.reported < Reported::Ended {
            let is_told = self.report(Reported::Ended, Event::Ended, 0)?;
            if !is_told {
                return Ok(Progress::Full);
            }
        }
        if status.closed && self.socket.reported < Reported::Closed {
            let error = status.error.map_or(0, SocketError::number);
            let is_told = self.report(Reported::Closed, Event::Closed, error)?;
            if !is_told {
                return Ok(Progress::Full);
            }
        }
        Ok(Progress::Done)
    }

    /// Reports a change; false, and nothing is noted, if the event ring is full.
    fn report(&mut self, change: Reported, event: Event, error: u32) -> Result<bool, Violation> {
        let entry = Entry {
            socket: self.socket.number,
            argument: error,
            ..Entry::default()
        };
        let is_told = self.link.send(event, entry)?;
        if is_told {
            self.socket.reported = change;
        }
        Ok(is_told)
    }

    /// Sends pending data of a session, as far as the stack takes it; false if there was no room
    /// for events.
    pub(super) fn send_waiting(
        &mut self,
        round: &mut Round<'_, impl Sockets>,
    ) -> Result<bool, Violation> {
        while self.socket.has_pending() {
            // A chunk that is sent goes back by an event, so there must be room for one.
            if !self.link.has_room(1)? {
                return Ok(false);
            }
            let chunk = self.socket.first;
            let &mut Sending { start, end, .. } = self.chunks.sending(chunk)?;
            let from = chunk_offset(chunk) + start.to_usize();
            let bytes = (end - start).to_usize();
            // A process on the same engine gets the bytes by one copy, without the stack's buffers.
            if let Some(carried) = self.carry(from, bytes, round) {
                self.status.sent_bytes += carried.to_u64();
                self.chunks.sending(chunk)?.start += entry_bytes(carried);
                if carried == bytes {
                    self.hand_back(0)?;
                }
                continue;
            }
            // One copy out of shared memory; the stack keeps its own until the data is
            // acknowledged.
            let memory = self.link.memory();
            let mut from = from;
            let mut copy = |piece: &mut [u8]| {
                memory.read_at(from, piece);
                from += piece.len();
            };
            let error = match round.stack.send(self.socket.id, bytes, &mut copy) {
                Ok(taken) => {
                    self.status.sent_bytes += taken.to_u64();
                    // The stack reports when there is room for the rest.
                    if taken < bytes {
                        let sending = self.chunks.sending(chunk)?;
                        sending.start += entry_bytes(taken);
                        if sending.returns {
                            self.hand_back_unsent()?;
                        }
                        return Ok(true);
                    }
                    0
                }
                Err(error) => error.number(),
            };
            self.hand_back(error)?;
        }
        Ok(true)
    }

    /// Copies bytes of a session directly to the process at its other end, if that is attached to
    /// the same engine, has read everything before and has a free receive chunk; the number of
    /// bytes.
    fn carry(
        &mut self,
        from: usize,
        bytes_max: usize,
        round: &mut Round<'_, impl Sockets>,
    ) -> Option<usize> {
        let (owners, others) = (&*round.owners, &mut *round.others);
        let memory = self.link.memory();
        let mut take = |other, room| -> Option<usize> {
            let owner = *owners.get(&other)?;
            let reader = others.get_mut(owner.process)?.as_deref_mut()?;
            let mut reader = reader.delivery(|table| table.at(owner.place))?;
            let (chunk, to) = reader.lend_across()?;
            let bytes = bytes_max.min(room);
            reader.link.memory().copy_at(to, memory, from, bytes);
            // There was room for the event a moment ago, and only the engine writes to that ring.
            // If the reader's ring is invalid, the reader's own turn finds it.
            reader.received(chunk, bytes, None).ok();
            Some(bytes)
        };
        let carried = round.stack.carry(self.socket.id, &mut |other, room| {
            take(other, room).unwrap_or(0)
        });
        (carried > 0).then_some(carried)
    }

    /// A chunk for bytes copied to a session, and its offset.
    fn lend_across(&mut self) -> Option<(u32, usize)> {
        // Its process must know that it is open; a session without a free chunk is not queued for
        // one.
        let takes = self.socket.kind == Kind::Session
            && self.socket.reported != Reported::Nothing
            && !self.socket.is_closing()
            && self.chunks.has_free();
        if !takes {
            return None;
        }
        match self.lend() {
            Ok(Lent::Chunk(chunk, offset)) => Some((chunk, offset)),
            _ => None,
        }
    }

    /// Returns the first chunk of those to send to the process; false if the event ring is full.
    fn hand_back(&mut self, error: u32) -> Result<bool, Violation> {
        let chunk = self.socket.first;
        let entry = Entry {
            tag: self.chunks.sending(chunk)?.tag,
            socket: self.socket.number,
            chunk,
            argument: error,
            ..Entry::default()
        };
        let is_told = self.link.send(Event::Sent, entry)?;
        // Otherwise the process would wait for its chunk for ever.
        if is_told {
            self.chunks.sent(self.socket);
        }
        Ok(is_told)
    }

    /// Returns the first chunk, some of whose bytes found no room. There is room for the event.
    #[cold]
    fn hand_back_unsent(&mut self) -> Result<(), Violation> {
        let chunk = self.socket.first;
        let entry = Entry {
            socket: self.socket.number,
            chunk,
            bytes: self.chunks.sending(chunk)?.start,
            ..Entry::default()
        };
        if self.link.send(Event::Unsent, entry)? {
            self.chunks.sent(self.socket);
            self.socket.awaits_room = true;
            // Further ones of a process that posts several are returned in its next turn.
            self.ready.add(self.socket);
        }
        Ok(())
    }

    /// Reports that a session whose bytes were returned has room; false if the event ring is full.
    fn report_room(&mut self, round: &mut Round<'_, impl Sockets>) -> Result<bool, Violation> {
        if !self.socket.awaits_room || !round.stack.takes_bytes(self.socket.id) {
            return Ok(true);
        }
        let entry = Entry {
            socket: self.socket.number,
            ..Entry::default()
        };
        let is_told = self.link.send(Event::Room, entry)?;
        self.socket.awaits_room = !is_told;
        Ok(is_told)
    }

    /// Does what was requested to follow the last chunk; true if that is the end of the socket.
    fn finish(&mut self, round: &mut Round<'_, impl Sockets>) -> bool {
        if self.socket.has_pending() {
            return false;
        }
        if self.socket.requested == Requested::Shutdown && self.socket.kind == Kind::Session {
            round.stack.shutdown(self.socket.id);
        }
        self.socket.is_closing()
    }

    /// Returns pending chunks to the process, before the socket is ended.
    fn abandon(&mut self) -> Result<Progress, Violation> {
        while self.socket.has_pending() {
            if !self.hand_back(SocketError::Aborted.number())? {
                return Ok(Progress::Full);
            }
        }
        Ok(Progress::Over)
    }

    /// Delivers received bytes of a session; false if the event ring is full.
    fn receive(&mut self, round: &mut Round<'_, impl Sockets>) -> Result<bool, Violation> {
        loop {
            let (chunk, begin) = match self.lend()? {
                Lent::Chunk(chunk, offset) => (chunk, offset),
                Lent::Enough => return Ok(true),
                Lent::Full => return Ok(false),
            };
            let memory = self.link.memory();
            let mut end = begin;
            let mut copy = into_chunk(memory, begin, &mut end);
            round.stack.receive(self.socket.id, CHUNK_BYTES, &mut copy);
            drop(copy);
            if end == begin {
                self.chunks.unlend(chunk);
                return Ok(true);
            }
            self.received(chunk, end - begin, None)?;
        }
    }

    /// Lends a chunk for bytes that the socket receives.
    fn lend(&mut self) -> Result<Lent, Violation> {
        if self.socket.is_at_limit() {
            return Ok(Lent::Enough);
        }
        if !self.link.has_room(1)? {
            return Ok(Lent::Full);
        }
        Ok(match self.chunks.lend(self.socket) {
            Some(chunk) => Lent::Chunk(chunk, self.link.receive_offset(chunk)),
            None => Lent::Enough,
        })
    }

    /// Reports `bytes` bytes in a chunk, of a datagram if it is one.
    fn received(
        &mut self,
        chunk: u32,
        bytes: usize,
        datagram: Option<DatagramPart>,
    ) -> Result<(), Violation> {
        self.socket.debit();
        self.status.received_bytes += bytes.to_u64();
        let entry = Entry {
            socket: self.socket.number,
            bytes: entry_bytes(bytes),
            chunk,
            ..Entry::default()
        };
        let entry = match datagram {
            Some(part) => Entry {
                argument: if part.left > 0 { MORE } else { 0 },
                ..entry.marked(part.hops, part.class).at(part.peer)
            },
            None => entry,
        };
        self.link.send(Event::Received, entry).map(drop)
    }
}

/// Datagrams: a UDP socket's pending ones to the stack, received ones to its process.
impl Delivery<'_> {
    fn datagrams(&mut self, round: &mut Round<'_, impl Sockets>) -> Result<Progress, Violation> {
        // Pending datagrams are sent before a close that was requested after them.
        if !self.send_datagrams(round)? {
            return Ok(Progress::Full);
        }
        if self.finish(round) {
            return Ok(Progress::Over);
        }
        self.look_again();
        let has_room = self.receive_datagrams(round)?;
        Ok(if has_room && self.report_refusals(round)? {
            Progress::Done
        } else {
            Progress::Full
        })
    }

    /// Sends complete pending datagrams, as far as the stack takes them; false if the event ring is
    /// full.
    pub(super) fn send_datagrams(
        &mut self,
        round: &mut Round<'_, impl Sockets>,
    ) -> Result<bool, Violation> {
        while self.socket.has_pending() {
            let first = self.socket.first;
            let Some(count) = self.chunks.datagram(first)? else {
                return Ok(true);
            };
            // Each chunk goes back by an event of its own.
            if !self.link.has_room(count)? {
                return Ok(false);
            }
            let memory = self.link.memory();
            // One copy out of shared memory, which also joins the chunks.
            let (mut chunk, mut length, mut to) = (first, 0, None);
            for _ in 0..count {
                let &mut Sending {
                    next, end, peer, ..
                } = self.chunks.sending(chunk)?;
                let end = length + end.to_usize();
                let bytes = round.scratch.get_mut(length..end).ok_or(Violation)?;
                memory.read_at(chunk_offset(chunk), bytes);
                (chunk, length, to) = (next, end, to.or(peer));
            }
            let peer = to.ok_or(Violation)?;
            let datagram = &round.scratch[..length];
            let error = match round.stack.send_to(self.socket.id, peer, datagram) {
                Ok(true) => {
                    self.status.sent_bytes += length.to_u64();
                    0
                }
                // No room in the stack: it is tried again in the next round.
                Ok(false) => return Ok(true),
                Err(error) => error.number(),
            };
            for _ in 0..count {
                self.hand_back(error)?;
            }
        }
        Ok(true)
    }

    /// Queues the socket again while complete datagrams wait: a stack reports when a session has
    /// room again, but not for datagrams.
    pub(super) fn look_again(&mut self) {
        if self.socket.has_pending() && !self.chunks.is_in_datagram(self.socket) {
            self.ready.add(self.socket);
        }
    }

    /// Delivers received datagrams; false if the event ring is full.
    fn receive_datagrams(
        &mut self,
        round: &mut Round<'_, impl Sockets>,
    ) -> Result<bool, Violation> {
        loop {
            let (chunk, begin) = match self.lend()? {
                Lent::Chunk(chunk, offset) => (chunk, offset),
                Lent::Enough => return Ok(true),
                Lent::Full => return Ok(false),
            };
            let from = self.socket.handed_bytes;
            let memory = self.link.memory();
            let mut end = begin;
            let mut copy = into_chunk(memory, begin, &mut end);
            let stack = &mut *round.stack;
            let part = stack.receive_from(self.socket.id, from, CHUNK_BYTES, &mut copy);
            drop(copy);
            let Some(part) = part else {
                self.chunks.unlend(chunk);
                return Ok(true);
            };
            // A datagram longer than a chunk is delivered in parts, each in a chunk of its own.
            self.socket.handed_bytes = if part.left > 0 { from + end - begin } else { 0 };
            self.received(chunk, end - begin, Some(part))?;
        }
    }

    /// Reports datagrams that were refused; false if the event ring is full.
    fn report_refusals(&mut self, round: &mut Round<'_, impl Sockets>) -> Result<bool, Violation> {
        while round.stack.has_refusal(self.socket.id) {
            let (chunk, begin) = match self.lend()? {
                Lent::Chunk(chunk, offset) => (chunk, offset),
                Lent::Enough => return Ok(true),
                Lent::Full => return Ok(false),
            };
            let Some(refusal) = round.stack.next_refusal(self.socket.id) else {
                self.chunks.unlend(chunk);
                return Ok(true);
            };
            let (error, payload) = (refusal.error, refusal.payload);
            // The entry has room for one address: the sender's precedes the payload.
            let from = octets_of(error.from);
            let bytes = &payload[..payload.len().min(CHUNK_BYTES - from.len())];
            self.link.memory().write_at(begin, &from);
            self.link.memory().write_at(begin + from.len(), bytes);
            self.socket.debit();
            let entry = Entry {
                tag: u16::from_be_bytes([error.kind, error.code]).into(),
                socket: self.socket.number,
                bytes: entry_bytes(from.len() + bytes.len()),
                chunk,
                argument: error.info,
                ..Entry::default()
            };
            self.link.send(Event::Refused, entry.at(refusal.peer))?;
        }
        Ok(true)
    }
}

/// Copies received bytes into the chunk that begins at `begin`; `end` is behind the last one.
fn into_chunk<'m>(
    memory: SharedSlice<'m>,
    begin: usize,
    end: &'m mut usize,
) -> impl FnMut(&[u8]) + 'm {
    move |bytes| {
        // A stack that delivers more than requested would write into another chunk.
        let used = bytes.len().min(begin + CHUNK_BYTES - *end);
        memory.write_at(*end, &bytes[..used]);
        *end += used;
    }
}
