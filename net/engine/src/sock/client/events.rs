//! Events of the engine, and the resulting state of each socket.
//!
//! Must stay true: a received chunk is owned by one piece of one socket, or is returned; parts of a
//! datagram are kept here until it is complete.

use super::memory::{self, Received};
use super::{Client, Socket};
use crate::sock::layout::{DATAGRAM_CHUNKS_MAX, Entry, Event, KEPT, MORE, PLACE_BITS};
use crate::sock::stack::SocketError;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

/// State of a socket according to the events.
#[derive(Debug)]
pub(super) struct State {
    pub(super) number: u32,
    pub(super) is_udp: bool,
    pub(super) local: Option<SocketAddr>,
    pub(super) connected: bool,
    pub(super) ended: bool,
    pub(super) closed: Option<Option<SocketError>>,
    /// Partially received datagram, and the chunks it took so far.
    begun: (Vec<u8>, u32),
    pub(super) received: VecDeque<(Received, SocketAddr)>,
    pub(super) accepted: VecDeque<(Socket, SocketAddr)>,
    /// Chunks that the engine has yet to send.
    pub(super) sending: u32,
    /// True if it is in the ready list.
    pub(super) queued: bool,
}

impl Client {
    pub(super) fn insert(
        &mut self,
        number: u32,
        is_udp: bool,
        connected: bool,
        local: Option<SocketAddr>,
    ) -> &mut State {
        let place = place(number);
        if self.sockets.len() <= place {
            self.sockets.resize_with(place + 1, || None);
        }
        self.sockets[place].insert(State {
            number,
            is_udp,
            local,
            connected,
            ended: false,
            closed: None,
            begun: (Vec::new(), 0),
            received: VecDeque::new(),
            accepted: VecDeque::new(),
            sending: 0,
            queued: false,
        })
    }

    /// Removes a socket and returns its received bytes. Sessions that were not accepted are closed
    /// with their listener.
    pub(super) fn forget(&mut self, socket: Socket) {
        let Some(state) = self
            .sockets
            .get_mut(place(socket.0))
            .and_then(|place| place.take_if(|state| state.number == socket.0))
        else {
            return;
        };
        for (piece, _) in state.received {
            self.release(piece);
        }
        for (session, _) in state.accepted {
            self.abort(session).ok();
        }
    }

    pub(super) fn state(&self, socket: Socket) -> Option<&State> {
        self.sockets
            .get(place(socket.0))?
            .as_ref()
            .filter(|state| state.number == socket.0)
    }

    pub(super) fn state_mut(&mut self, socket: Socket) -> Option<&mut State> {
        self.sockets
            .get_mut(place(socket.0))?
            .as_mut()
            .filter(|state| state.number == socket.0)
    }

    /// Applies an event to the socket's state; returns the answer to an opening.
    pub(super) fn apply_event(&mut self, entry: Entry) -> Option<Entry> {
        let socket = Socket(entry.socket);
        match Event::from_number(entry.kind)? {
            Event::Opened if self.note_opened(&entry) => return None,
            Event::Opened => return Some(entry),
            Event::Connected => self.state_mut(socket)?.connected = true,
            Event::Accepted => {
                let listener = Socket(entry.argument);
                let port = self
                    .state(listener)
                    .and_then(|it| it.local)
                    .map(|it| it.port());
                let local = port.map(|port| SocketAddr::new(entry.local_ip(), port));
                self.insert(entry.socket, false, true, local);
                let peer = entry.socket_address();
                match self.state_mut(listener) {
                    Some(state) => state.accepted.push_back((socket, peer)),
                    // Its listener was closed meanwhile.
                    None => self.abort(socket).ok()?,
                }
                self.note_ready(listener);
                return None;
            }
            // The application is notified once the whole datagram has arrived.
            Event::Received => {
                let more = self.received(&entry)?;
                if more {
                    return None;
                }
            }
            Event::Sent => {
                if entry.chunk < self.chunks {
                    self.free.push(entry.chunk);
                }
                let state = self.state_mut(socket)?;
                state.sending = state.sending.saturating_sub(1);
            }
            Event::Ended => self.state_mut(socket)?.ended = true,
            Event::Closed => {
                let error = SocketError::from_number(entry.argument);
                self.state_mut(socket)?.closed = Some(error);
            }
        }
        self.note_ready(socket);
        None
    }

    pub(super) fn give(&mut self, chunk: u32) {
        self.held -= 1;
        self.giving.push(chunk);
    }

    fn note_ready(&mut self, socket: Socket) {
        if let Some(state) = self.state_mut(socket)
            && !std::mem::replace(&mut state.queued, true)
        {
            self.ready.push_back(socket);
        }
    }

    /// Stores received bytes; true if the rest of a datagram is still to come. None if the event is
    /// invalid.
    fn received(&mut self, entry: &Entry) -> Option<bool> {
        let bytes = entry.bytes as usize;
        let whole = self.chunks.checked_add(entry.chunk)?;
        if entry.chunk >= self.chunks || !memory::check(&self.map, whole, bytes) {
            return None;
        }
        let mut piece = Received {
            map: Arc::clone(&self.map),
            chunk: entry.chunk,
            chunks: 1,
            offset: memory::offset(whole),
            start: 0,
            end: bytes,
            moved: None,
            socket: entry.socket,
        };
        self.held += 1;
        self.last_received = piece.offset;
        let is_part = entry.argument == MORE;
        let held_max = self
            .chunks
            .saturating_sub((self.chunks / 4).max(CIRCULATING_MIN));
        let socket = Socket(entry.socket);
        let Some(state) = self.state_mut(socket) else {
            self.release(piece);
            return Some(false);
        };
        if state.is_udp && (is_part || state.begun.1 > 0) {
            // A datagram of several chunks is assembled in private memory.
            let (begun, chunks) = &mut state.begun;
            if *chunks < DATAGRAM_CHUNKS_MAX as u32 {
                begun.extend_from_slice(piece.bytes());
                *chunks += 1;
            }
            if !is_part {
                let (all, chunks) = std::mem::take(&mut state.begun);
                (piece.end, piece.chunks) = (all.len(), chunks);
                piece.moved = Some(all.into());
            }
            self.give(entry.chunk | KEPT);
            if is_part {
                return Some(true);
            }
        } else if self.held > held_max {
            // Otherwise sockets that the application does not read would keep the others from
            // receiving.
            piece.moved = Some(piece.bytes().into());
            self.give(entry.chunk | KEPT);
        }
        let state = self.state_mut(socket)?;
        state.received.push_back((piece, entry.socket_address()));
        Some(false)
    }
}

fn place(number: u32) -> usize {
    (number & ((1 << PLACE_BITS) - 1)) as usize
}

/// Minimum number of chunks in circulation: unread bytes are moved out of the others.
const CIRCULATING_MIN: u32 = 4;
