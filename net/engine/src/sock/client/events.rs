//! Events of the engine, and the resulting state of each socket.
//!
//! Must stay true: a received chunk is owned by one piece of one socket, or is returned; parts of a
//! datagram are kept here until it is complete.

use super::held::Outgoing;
use super::memory::{Chunks, Piece};
use super::{Client, ClientError, Socket};
use crate::sock::layout::{
    DATAGRAM_CHUNKS_MAX, Entry, Event, MORE, PLACE_BITS, Request, RingStatus, ip_of,
};
use crate::sock::stack::SocketError;
use crate::{IcmpError, Refusal};
use sidecore_bare::width::ToUsize;
use std::collections::VecDeque;
use std::net::SocketAddr;

/// State of a socket according to the events.
#[derive(Debug)]
pub(super) struct State {
    number: u32,
    pub(super) is_udp: bool,
    pub(super) local: Option<SocketAddr>,
    /// The session is open, or was.
    pub(super) connected: bool,
    /// The peer sends no more.
    pub(super) ended: bool,
    pub(super) life: Life,
    begun: Begun,
    pub(super) received: VecDeque<(Piece, SocketAddr)>,
    pub(super) accepted: VecDeque<(Socket, SocketAddr)>,
    refused: VecDeque<Refusal>,
    pub(super) outgoing: Outgoing,
    /// True if it is in the ready list.
    queued: bool,
}

/// Life of a session: its end has a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// It is not, or has not even begun.
    Alive,
    /// Both sides have ended it in order.
    Closed,
    /// It was ended by this error.
    Failed(SocketError),
}

/// The parts of a datagram that have arrived so far.
#[derive(Debug, Default)]
struct Begun {
    bytes: Vec<u8>,
    chunks: u32,
}

impl State {
    pub(super) fn new(socket: Socket, is_udp: bool, local: Option<SocketAddr>) -> Self {
        Self {
            number: socket.0,
            is_udp,
            local,
            connected: false,
            ended: false,
            life: Life::Alive,
            begun: Begun::default(),
            received: VecDeque::new(),
            accepted: VecDeque::new(),
            refused: VecDeque::new(),
            outgoing: Outgoing::default(),
            queued: false,
        }
    }

    pub(super) fn name(&self) -> Socket {
        Socket(self.number)
    }

    /// Stores received bytes; false if the rest of a datagram is still to come.
    fn receive(&mut self, mut piece: Piece, entry: &Entry, chunks: &mut Chunks) -> bool {
        let is_part = entry.argument == MORE;
        if self.is_udp && (is_part || self.begun.chunks > 0) {
            // A datagram of several chunks is assembled in private memory. A broken engine must not
            // make that grow without bound.
            if self.begun.chunks.to_usize() < DATAGRAM_CHUNKS_MAX {
                chunks.append(&piece, &mut self.begun.bytes);
                self.begun.chunks += 1;
            } else {
                chunks.skip(&piece);
            }
            if is_part {
                return false;
            }
            let begun = std::mem::take(&mut self.begun);
            piece.complete(begun.bytes, begun.chunks);
        } else if chunks.is_short() {
            chunks.move_out(&mut piece);
        }
        self.received.push_back((piece, entry.socket_address()));
        true
    }
}

/// The sockets of a client, by the place in their number.
#[derive(Debug, Default)]
pub(super) struct Sockets(Vec<Option<State>>);

impl Sockets {
    pub(super) fn places(&self) -> usize {
        self.0.len()
    }

    pub(super) fn insert(&mut self, state: State) {
        let place = place(state.number);
        if self.0.len() <= place {
            self.0.resize_with(place + 1, || None);
        }
        self.0[place] = Some(state);
    }

    pub(super) fn remove(&mut self, socket: Socket) -> Option<State> {
        let state = self.0.get_mut(place(socket.0))?;
        state.take_if(|state| state.number == socket.0)
    }

    pub(super) fn get(&self, socket: Socket) -> Option<&State> {
        let state = self.0.get(place(socket.0))?.as_ref();
        state.filter(|state| state.number == socket.0)
    }

    /// Refuses what cannot be written to; the engine may be `lost`.
    pub(super) fn check_open(&self, socket: Socket, lost: bool) -> Result<(), ClientError> {
        let state = self.get(socket).ok_or(SocketError::NotOpen)?;
        match state.life {
            Life::Failed(error) => Err(error.into()),
            Life::Alive if lost => Err(ClientError::Lost),
            Life::Alive if state.connected => Ok(()),
            Life::Alive | Life::Closed => Err(SocketError::NotOpen.into()),
        }
    }

    /// Result of reading without bytes: the end, the error, or none yet.
    pub(super) fn nothing(&self, socket: Socket, lost: bool) -> Result<Option<usize>, ClientError> {
        let state = self.get(socket).ok_or(SocketError::NotOpen)?;
        match state.life {
            Life::Failed(error) => Err(error.into()),
            Life::Closed => Ok(Some(0)),
            // The end was received before the engine was lost, and stays true.
            Life::Alive if state.ended => Ok(Some(0)),
            Life::Alive if lost => Err(ClientError::Lost),
            Life::Alive => Ok(None),
        }
    }

    pub(super) fn get_mut(&mut self, socket: Socket) -> Option<&mut State> {
        let state = self.0.get_mut(place(socket.0))?.as_mut();
        state.filter(|state| state.number == socket.0)
    }
}

/// Sockets whose state has changed since they were last returned, in order.
#[derive(Debug, Default)]
pub(super) struct Ready(VecDeque<Socket>);

impl Ready {
    pub(super) fn add(&mut self, state: &mut State) {
        // The application has closed it, and knows it no longer.
        if state.outgoing.is_closing() {
            return;
        }
        if !std::mem::replace(&mut state.queued, true) {
            self.0.push_back(Socket(state.number));
        }
    }

    pub(super) fn next(&mut self, sockets: &mut Sockets) -> Option<Socket> {
        loop {
            let socket = self.0.pop_front()?;
            // A socket that was closed meanwhile is skipped.
            if let Some(state) = sockets.get_mut(socket) {
                state.queued = false;
                return Some(socket);
            }
        }
    }
}

impl Client {
    /// Removes a socket and returns its received bytes. Sessions that were not accepted are closed
    /// with their listener.
    pub(super) fn forget(&mut self, socket: Socket) {
        if let Some(mut state) = self.sockets.remove(socket) {
            self.drop_input(&mut state);
        }
    }

    /// Returns the received bytes of a socket.
    pub(super) fn drop_input(&mut self, state: &mut State) {
        for (piece, _) in state.received.drain(..) {
            self.chunks.release(piece);
        }
        for (session, _) in state.accepted.drain(..) {
            self.abort(session).ok();
        }
    }

    /// Applies an event to the socket's state; returns the answer to an opening.
    pub(super) fn apply_event(&mut self, entry: Entry) -> Option<Entry> {
        let socket = Socket(entry.socket);
        match Event::from_number(entry.kind)? {
            Event::Opened if self.note_opened(&entry) => {}
            Event::Opened => return Some(entry),
            Event::Accepted => self.note_accepted(&entry),
            Event::Connected => self.change(socket, |state| state.connected = true),
            Event::Received => {
                let piece = self.chunks.receive(&entry)?;
                let state = self.sockets.get_mut(socket);
                match state.filter(|state| !state.outgoing.is_closing()) {
                    // The application is notified once the whole datagram has arrived.
                    Some(state) => {
                        if state.receive(piece, &entry, &mut self.chunks) {
                            self.ready.add(state);
                        }
                    }
                    // It was closed while the event was under way.
                    None => self.chunks.release(piece),
                }
            }
            Event::Sent => {
                // First, because the chunk comes back even if the socket is closed by now.
                self.chunks.take_back(entry.chunk);
                if let Some(state) = self.sockets.get_mut(socket) {
                    self.resuming.note_sent(state);
                    self.ready.add(state);
                }
            }
            Event::Unsent => {
                let mut buffer = self.chunks.returned(entry.chunk)?;
                if let Some(state) = self.sockets.get_mut(socket) {
                    state.outgoing.note_unsent(buffer.bytes_mut(), entry.bytes);
                    self.ready.add(state);
                }
                self.give_buffer_back(buffer);
            }
            Event::Refused => {
                let piece = self.chunks.receive(&entry)?;
                let state = self.sockets.get_mut(socket);
                if let Some(state) = state.filter(|it| it.refused.len() < REFUSED_MAX)
                    && let Some(refusal) = refusal_of(&entry, self.chunks.bytes(&piece))
                {
                    state.refused.push_back(refusal);
                    self.ready.add(state);
                }
                self.chunks.release(piece);
            }
            Event::Room => self.resuming.note_room(&mut self.sockets, socket),
            Event::Acknowledged => self.change(socket, |state| state.outgoing.acknowledged = true),
            Event::Ended => self.change(socket, |state| state.ended = true),
            Event::Closed => {
                self.change(socket, |state| {
                    let error = SocketError::from_number(entry.argument);
                    state.life = error.map_or(Life::Closed, Life::Failed);
                });
                self.resuming.note_room(&mut self.sockets, socket);
            }
        }
        None
    }

    /// Changes the state of a socket, which is ready by that.
    fn change(&mut self, socket: Socket, change: impl FnOnce(&mut State)) {
        if let Some(state) = self.sockets.get_mut(socket) {
            change(state);
            self.ready.add(state);
        }
    }

    fn note_accepted(&mut self, entry: &Entry) {
        let (socket, listener) = (Socket(entry.socket), Socket(entry.argument));
        let known = self.sockets.get(listener).and_then(|it| it.local);
        // The event has no room for the local port: it is the listener's.
        let local = known.map(|known| SocketAddr::new(entry.local_ip(), known.port()));
        let mut state = State::new(socket, false, local);
        state.connected = true;
        self.sockets.insert(state);
        match self.sockets.get_mut(listener) {
            Some(state) => {
                state.accepted.push_back((socket, entry.socket_address()));
                self.ready.add(state);
            }
            // Its listener was closed meanwhile. The loop notices when the engine is gone.
            None => drop(self.abort(socket)),
        }
    }
}

fn place(number: u32) -> usize {
    (number & ((1 << PLACE_BITS) - 1)).to_usize()
}

/// The next datagram of a UDP socket about which an ICMP error has come. Needs
/// [`SocketOption::Refusals`](crate::sock::SocketOption::Refusals).
pub fn next_refusal(client: &mut Client, socket: Socket) -> Option<Refusal> {
    client.sockets.get_mut(socket)?.refused.pop_front()
}

/// The contents of [`Event::Refused`]; none if its bytes are too few.
fn refusal_of(entry: &Entry, bytes: &[u8]) -> Option<Refusal> {
    let (from, payload) = bytes.split_first_chunk::<16>()?;
    let [_, _, kind, code] = entry.tag.to_be_bytes();
    Some(Refusal {
        peer: entry.socket_address(),
        payload: payload.to_vec(),
        error: IcmpError {
            kind,
            code,
            info: entry.argument,
            from: ip_of(*from),
        },
    })
}

/// True once the peer of a session has acknowledged all, the end included ([`Client::shutdown`]),
/// or the session is over. Asks the engine, whose answer is seen by a later call.
///
/// # Errors
/// Lost.
pub fn is_acknowledged(client: &mut Client, session: Socket) -> Result<bool, ClientError> {
    let state = client.sockets.get(session);
    if state.is_none_or(|state| state.outgoing.acknowledged || state.life != Life::Alive) {
        return Ok(true);
    }
    client.post(Request::Acknowledged, session, Entry::default())?;
    Ok(false)
}

/// Lets a UDP socket take datagrams of this peer only, or of all again. Others are refused as if
/// there were no socket.
///
/// # Errors
/// Lost.
pub fn set_peer(
    client: &mut Client,
    socket: Socket,
    peer: Option<SocketAddr>,
) -> Result<(), ClientError> {
    // Port 0 stands for no peer.
    let entry = peer.map_or(Entry::default(), |peer| Entry::default().at(peer));
    client.post(Request::Peer, socket, entry)
}

/// Shows the engine's users how many of the programs that this client supervises have rings.
pub fn show_rings(client: &Client, status: RingStatus) {
    status.show(client.link.memory());
}

/// Chunks with received bytes that were not returned to the engine yet: unread, or lent by
/// [`Client::receive`].
#[must_use]
pub fn chunks_held(client: &Client) -> u32 {
    client.chunks.held()
}

/// Refusals that a socket keeps for its application.
const REFUSED_MAX: usize = 64;
