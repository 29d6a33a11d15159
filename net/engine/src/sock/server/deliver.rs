//! Delivery of a socket's events to its process, and of its pending data to the stack.

use super::books::{Chunks, Kind, Sending};
use super::{Client, Round};
use crate::sock::layout::{CHUNK_BYTES, CHUNKS, Entry, Event, MORE, NO_CHUNK};
use crate::sock::ring::Violation;
use crate::sock::stack::{Id, SocketError, Sockets};
use std::net::SocketAddr;
use std::ops::ControlFlow;

impl Client {
    /// Does all pending work of the socket at `place`; false if the event ring is full.
    pub(super) fn deliver(
        &mut self,
        place: u32,
        round: &mut Round<'_, impl Sockets>,
    ) -> Result<bool, Violation> {
        let Some(socket) = self.sockets.get(place) else {
            return Ok(true);
        };
        // An abort overtakes all that waits to be sent.
        if socket.abort_asked {
            return self.abandon(place, round);
        }
        match socket.kind {
            Kind::Listener => {
                if socket.close_asked {
                    self.let_go(place, round);
                    return Ok(true);
                }
                self.accept(place, round)
            }
            Kind::Udp => {
                // Pending datagrams are sent before a close that was requested after them.
                if !self.send_datagrams(place, round)? {
                    return Ok(false);
                }
                if !self.finish(place, round) {
                    return Ok(true);
                }
                self.look_again(place);
                self.receive_datagrams(place, round)
            }
            Kind::Session => self.deliver_session(place, round),
        }
    }

    fn deliver_session(
        &mut self,
        place: u32,
        round: &mut Round<'_, impl Sockets>,
    ) -> Result<bool, Violation> {
        let Some(socket) = self.sockets.get(place) else {
            return Ok(true);
        };
        let status = round.stack.status(socket.id);
        // The process learns of the connection before it gets data or the end.
        if status.connected && !socket.connected_notified {
            if !self.tell_kind(Event::Connected, place, 0)? {
                return Ok(false);
            }
            self.note(place, |socket| socket.connected_notified = true);
        }
        if !self.send_waiting(place, round)? {
            return Ok(false);
        }
        if !self.finish(place, round) {
            return Ok(true);
        }
        if !self.receive(place, round)? {
            return Ok(false);
        }
        // Checked again: the bytes just received may have been the last.
        let Some(socket) = self.sockets.get(place) else {
            return Ok(true);
        };
        let (ended_notified, closed_notified) = (socket.ended_notified, socket.closed_notified);
        let status = round.stack.status(socket.id);
        // A session that failed has no regular end: only its close is reported, with the error.
        if status.ended && !ended_notified && status.error.is_none() {
            if !self.tell_kind(Event::Ended, place, 0)? {
                return Ok(false);
            }
            self.note(place, |socket| socket.ended_notified = true);
        }
        if status.closed && !closed_notified {
            let error = status.error.map_or(0, |error| error as u32);
            if !self.tell_kind(Event::Closed, place, error)? {
                return Ok(false);
            }
            self.note(place, |socket| socket.closed_notified = true);
        }
        Ok(true)
    }

    fn tell_kind(&mut self, event: Event, place: u32, argument: u32) -> Result<bool, Violation> {
        self.send_event(&Entry {
            kind: event as u32,
            socket: self.sockets.number(place),
            argument,
            ..Entry::default()
        })
    }

    fn note(&mut self, place: u32, change: impl FnOnce(&mut super::books::Socket)) {
        if let Some(socket) = self.sockets.get(place) {
            change(socket);
        }
    }

    /// Reports new sessions of a listener.
    fn accept(
        &mut self,
        place: u32,
        round: &mut Round<'_, impl Sockets>,
    ) -> Result<bool, Violation> {
        let listener = self.sockets.number(place);
        while let Some(id) = self.sockets.get(place).map(|socket| socket.id) {
            // Without room for the event, the session stays in the stack's queue.
            if self.events.room(self.attachment.map.slice(), 1)? == 0 {
                return Ok(false);
            }
            if self.sockets.is_full() {
                break;
            }
            // As many sessions as sockets: the rest waits until the process closes some.
            let Some((session, peer)) = round.stack.accept(id) else {
                break;
            };
            let Some(new) = self.sockets.add(session, Kind::Session, true) else {
                round.stack.abort(session);
                break;
            };
            round.owners.insert(session, (round.index, new));
            let event = Entry {
                kind: Event::Accepted as u32,
                socket: self.sockets.number(new),
                argument: listener,
                ..Entry::default()
            };
            let local = round.stack.local(session).unwrap_or(peer);
            self.send_event(&event.at(peer).from_local(local.ip()))?;
            // It may have received bytes before it was accepted.
            self.make_ready(new);
        }
        Ok(true)
    }

    /// Sends pending data of a session, as far as the stack takes it; false if there was no room
    /// for events.
    pub(super) fn send_waiting(
        &mut self,
        place: u32,
        round: &mut Round<'_, impl Sockets>,
    ) -> Result<bool, Violation> {
        loop {
            let Some(socket) = self.sockets.get(place) else {
                return Ok(true);
            };
            let (id, chunk) = (socket.id, socket.first);
            if chunk == NO_CHUNK {
                return Ok(true);
            }
            // A chunk that is sent goes back by an event, so there must be room for one.
            if self.events.room(self.attachment.map.slice(), 1)? == 0 {
                return Ok(false);
            }
            let sending = sending_from(&mut self.chunks, chunk)?;
            let (start, end) = (sending.start as usize, sending.end as usize);
            let from = CHUNKS + chunk as usize * CHUNK_BYTES + start;
            // A process on the same engine gets the bytes by one copy, without the stack's buffers.
            if let Some(carried) = self.carry(id, from, end - start, round) {
                self.status.sent_bytes += carried as u64;
                sending_from(&mut self.chunks, chunk)?.start += carried as u32;
                if start + carried == end {
                    self.hand_back(place, chunk, 0)?;
                }
                continue;
            }
            let sending = sending_from(&mut self.chunks, chunk)?;
            // One copy out of shared memory; the stack keeps its own until the data is
            // acknowledged.
            let memory = self.attachment.map.slice();
            let mut from = from;
            let mut copy = |piece: &mut [u8]| {
                memory.read_at(from, piece);
                from += piece.len();
            };
            let error = match round.stack.send(id, end - start, &mut copy) {
                Ok(taken) => {
                    self.status.sent_bytes += taken as u64;
                    sending.start += taken as u32;
                    // The stack reports when there is room for the rest.
                    if start + taken < end {
                        return Ok(true);
                    }
                    0
                }
                Err(error) => error as u32,
            };
            self.hand_back(place, chunk, error)?;
        }
    }

    /// Copies bytes of a session directly to the process at its other end, if that is attached to
    /// the same engine, has read everything before and has a free receive chunk; the number of
    /// bytes.
    fn carry(
        &mut self,
        id: Id,
        from: usize,
        bytes_max: usize,
        round: &mut Round<'_, impl Sockets>,
    ) -> Option<usize> {
        let (owners, others) = (&*round.owners, &mut *round.others);
        let memory = self.attachment.map.slice();
        let mut take = |other, room| -> Option<usize> {
            let &(owner, place) = owners.get(&other)?;
            let reader = others.get_mut(owner as usize)?.as_deref_mut()?;
            let (chunk, to) = reader.lend_across(place)?;
            let bytes = bytes_max.min(room);
            let target = reader.attachment.map.slice();
            target.copy_at(to, memory, from, bytes);
            // There was room for the event a moment ago, and only the engine writes to that ring.
            // If the reader's ring is invalid, the reader's own turn finds it.
            reader.received(place, chunk, bytes, None).ok();
            Some(bytes)
        };
        let carried = round
            .stack
            .carry(id, &mut |other, room| take(other, room).unwrap_or(0));
        (carried > 0).then_some(carried)
    }

    /// A chunk for bytes copied to a session, and its offset.
    fn lend_across(&mut self, place: u32) -> Option<(u32, usize)> {
        let socket = self.sockets.get(place)?;
        // Its process must know that it is open; a session without a free chunk is not queued for
        // one.
        let takes = socket.kind == Kind::Session
            && socket.connected_notified
            && !socket.close_asked
            && self.chunks.has_free();
        if !takes {
            return None;
        }
        match self.lend(place) {
            Ok(ControlFlow::Continue((_, chunk, begin))) => Some((chunk, begin)),
            _ => None,
        }
    }

    /// Sends complete pending datagrams, as far as the stack takes them; false if the event ring is
    /// full.
    pub(super) fn send_datagrams(
        &mut self,
        place: u32,
        round: &mut Round<'_, impl Sockets>,
    ) -> Result<bool, Violation> {
        loop {
            let Some(socket) = self.sockets.get(place).filter(|it| it.first != NO_CHUNK) else {
                return Ok(true);
            };
            let (id, first) = (socket.id, socket.first);
            let Some(count) = self.chunks.datagram(first)? else {
                return Ok(true);
            };
            let memory = self.attachment.map.slice();
            // Each chunk goes back by an event of its own.
            if self.events.room(memory, count)? < count {
                return Ok(false);
            }
            // One copy out of shared memory, which also joins the chunks.
            let (mut chunk, mut length, mut to) = (first, 0, None);
            for _ in 0..count {
                let sending = self.chunks.sending(chunk).ok_or(Violation)?;
                let end = length + sending.end as usize;
                let bytes = round.scratch.get_mut(length..end).ok_or(Violation)?;
                memory.read_at(CHUNKS + chunk as usize * CHUNK_BYTES, bytes);
                (chunk, length, to) = (sending.next, end, to.or(sending.peer));
            }
            let peer = to.ok_or(Violation)?;
            let error = match round.stack.send_to(id, peer, &round.scratch[..length]) {
                Ok(true) => {
                    self.status.sent_bytes += length as u64;
                    0
                }
                // No room in the stack: it is tried again in the next round.
                Ok(false) => return Ok(true),
                Err(error) => error as u32,
            };
            for _ in 0..count {
                let chunk = self.sockets.get(place).ok_or(Violation)?.first;
                self.hand_back(place, chunk, error)?;
            }
        }
    }

    /// Returns the first chunk of those to send to the process.
    fn hand_back(&mut self, place: u32, chunk: u32, error: u32) -> Result<(), Violation> {
        let &mut Sending { next, tag, .. } = self.chunks.sending(chunk).ok_or(Violation)?;
        self.chunks.sent(chunk);
        self.note(place, |socket| socket.first = next);
        self.tell_sent(place, chunk, tag, error).map(drop)
    }

    /// A stack reports when a session has room again; for datagrams it has to be polled in every
    /// round.
    pub(super) fn look_again(&mut self, place: u32) {
        let waits = match self.sockets.get(place) {
            Some(socket) if socket.kind == Kind::Udp && socket.first != NO_CHUNK => {
                !self.chunks.is_begun(socket.last)
            }
            _ => false,
        };
        if waits {
            self.make_ready(place);
        }
    }

    /// Does what was requested to follow the last chunk; false if the socket is closed by that.
    fn finish(&mut self, place: u32, round: &mut Round<'_, impl Sockets>) -> bool {
        let Some(socket) = self.sockets.get(place) else {
            return false;
        };
        if socket.first != NO_CHUNK {
            return true;
        }
        if socket.close_asked {
            self.let_go(place, round);
            return false;
        }
        if socket.shutdown_asked && socket.kind == Kind::Session {
            round.stack.shutdown(socket.id);
        }
        true
    }

    /// Returns pending chunks to the process, and resets the session; false if the event ring is
    /// full.
    fn abandon(
        &mut self,
        place: u32,
        round: &mut Round<'_, impl Sockets>,
    ) -> Result<bool, Violation> {
        while let Some((id, chunk)) = self.sockets.get(place).map(|it| (it.id, it.first)) {
            let Some(&mut sending) = self.chunks.sending(chunk) else {
                self.sockets.remove(place);
                round.owners.remove(&id);
                round.stack.abort(id);
                break;
            };
            if !self.tell_sent(place, chunk, sending.tag, SocketError::Aborted as u32)? {
                return Ok(false);
            }
            self.chunks.sent(chunk);
            self.note(place, |socket| socket.first = sending.next);
        }
        Ok(true)
    }

    fn tell_sent(
        &mut self,
        place: u32,
        chunk: u32,
        tag: u32,
        error: u32,
    ) -> Result<bool, Violation> {
        self.send_event(&Entry {
            kind: Event::Sent as u32,
            tag,
            socket: self.sockets.number(place),
            chunk,
            argument: error,
            ..Entry::default()
        })
    }

    pub(super) fn let_go(&mut self, place: u32, round: &mut Round<'_, impl Sockets>) {
        if let Some(socket) = self.sockets.remove(place) {
            round.owners.remove(&socket.id);
            round.stack.close(socket.id);
        }
    }

    fn receive(
        &mut self,
        place: u32,
        round: &mut Round<'_, impl Sockets>,
    ) -> Result<bool, Violation> {
        loop {
            let (id, chunk, begin) = match self.lend(place)? {
                ControlFlow::Break(all) => return Ok(all),
                ControlFlow::Continue(lent) => lent,
            };
            let memory = self.attachment.map.slice();
            let mut end = begin;
            round.stack.receive(id, CHUNK_BYTES, &mut |bytes| {
                // A stack that delivers more than requested would write into another chunk.
                let used = bytes.len().min(begin + CHUNK_BYTES - end);
                memory.write_at(end, &bytes[..used]);
                end += used;
            });
            if end == begin {
                self.chunks.unlend(chunk);
                return Ok(true);
            }
            self.received(place, chunk, end - begin, None)?;
        }
    }

    fn receive_datagrams(
        &mut self,
        place: u32,
        round: &mut Round<'_, impl Sockets>,
    ) -> Result<bool, Violation> {
        loop {
            let (id, chunk, begin) = match self.lend(place)? {
                ControlFlow::Break(all) => return Ok(all),
                ControlFlow::Continue(lent) => lent,
            };
            let from = self
                .sockets
                .get(place)
                .map_or(0, |socket| socket.handed_bytes);
            let memory = self.attachment.map.slice();
            let mut end = begin;
            let part = round
                .stack
                .receive_from(id, from, CHUNK_BYTES, &mut |bytes| {
                    // As for a session: nothing is written beyond the chunk.
                    let used = bytes.len().min(begin + CHUNK_BYTES - end);
                    memory.write_at(end, &bytes[..used]);
                    end += used;
                });
            let Some((peer, left)) = part else {
                self.chunks.unlend(chunk);
                return Ok(true);
            };
            self.note(place, |socket| {
                socket.handed_bytes = if left > 0 { from + end - begin } else { 0 };
            });
            self.received(place, chunk, end - begin, Some((peer, left > 0)))?;
        }
    }

    /// Lends a chunk for bytes that a socket receives: its session, the chunk, and its offset.
    /// Breaks if the socket has enough chunks (true) or its process has no room for an event
    /// (false).
    fn lend(&mut self, place: u32) -> Result<ControlFlow<bool, (Id, u32, usize)>, Violation> {
        let Some(socket) = self.sockets.get(place).filter(|it| it.lent < LENT_MAX) else {
            return Ok(ControlFlow::Break(true));
        };
        if self.events.room(self.attachment.map.slice(), 1)? == 0 {
            return Ok(ControlFlow::Break(false));
        }
        let id = socket.id;
        let Some(chunk) = self.chunks.lend(place, socket) else {
            return Ok(ControlFlow::Break(true));
        };
        let begin = CHUNKS + (self.attachment.chunks + chunk) as usize * CHUNK_BYTES;
        Ok(ControlFlow::Continue((id, chunk, begin)))
    }

    fn received(
        &mut self,
        place: u32,
        chunk: u32,
        bytes: usize,
        datagram: Option<(SocketAddr, bool)>,
    ) -> Result<(), Violation> {
        self.note(place, |socket| socket.lent += 1);
        self.status.received_bytes += bytes as u64;
        let event = Entry {
            kind: Event::Received as u32,
            socket: self.sockets.number(place),
            bytes: bytes as u32,
            chunk,
            ..Entry::default()
        };
        let event = match datagram {
            Some((peer, more)) => Entry {
                argument: if more { MORE } else { 0 },
                ..event.at(peer)
            },
            None => event,
        };
        self.send_event(&event).map(drop)
    }
}

fn sending_from(chunks: &mut Chunks, chunk: u32) -> Result<&mut Sending, Violation> {
    chunks.sending(chunk).ok_or(Violation)
}

/// Receive chunks of one socket that a process may hold: 256 KiB; then the stack's own buffer fills
/// up, and the peer's window closes.
pub(super) const LENT_MAX: u32 = 16;

const _: () = assert!(SocketError::Refused as u32 != 0, "0 stands for no error");
