//! The application's side: sockets of an engine in another process.
//!
//! A [`Client`] is one attachment. Its calls never block, except [`Client::poll`] and those that
//! open a socket (a round trip to the engine). Reading and writing copy; [`Client::receive`],
//! [`Client::buffer`] and [`Client::send`] do not. Readiness is reported like by an edge-triggered
//! epoll: [`Client::next_ready`] returns a socket once for each time that its state changed. If
//! chunks run short because bytes are not read, they are moved to private memory, up to 256 KiB per
//! socket; if they do because peers take nothing, so are bytes to send, a chunk per session.
//!
//! Why here: no system call and no descriptor per socket. Must stay true: when a client is dropped
//! or its process dies, the engine resets its sessions. One thread; several threads may have one
//! client each.

mod attach;
mod driven;
mod events;
mod held;
mod link;
mod memory;
mod opening;
mod outgoing;
mod waiting;

pub use crate::event_source::EventSource;
pub use attach::{sessions_of_all, siblings, status, status_of, status_of_all};
pub(crate) use driven::OwnEngine;
pub use events::{chunks_held, is_acknowledged, next_refusal, set_peer, show_rings};
pub(crate) use link::{Driver, DriverFailed};
pub use memory::{Buffer, Received};
pub use opening::{Opening, Sharing};

use super::control::SockError;
use super::layout::{CHUNK_BYTES, Entry, MORE, NO_CHUNK, Request, entry_bytes};
use super::stack::{SocketError, SocketOption};
use events::{Life, Ready, Sockets, State};
use link::{Engine, Link};
use memory::Chunks;
use outgoing::Resuming;
use sidecore_attach::Trust;
use sidecore_sched::Patience;
use sidecore_sys::SharedMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Options of attaching.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// Chunks of 16 KiB for each direction, 1 to 4,096.
    pub chunks: u32,
    /// Spinning time of [`Client::poll`] before it sleeps, if that has paid off lately.
    pub spin: Duration,
    /// Users whose engines are trusted, in addition to its own user and root.
    pub trust: Trust,
    /// True to wait for other descriptors, too ([`Client::poll_with`]).
    pub waits_for_others: bool,
    /// No call except [`Client::poll_with`] waits for the engine: requests that find no room are
    /// kept until there is some. For applications that open sockets by [`Client::begin_connect`]
    /// and similar calls.
    pub never_waits: bool,
}

impl ClientOptions {
    /// The default ones, with these users trusted.
    #[must_use]
    pub fn trusting(trust: Trust) -> Self {
        Self {
            trust,
            ..Self::default()
        }
    }
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            chunks: 256,
            spin: Duration::from_micros(50),
            trust: Trust::default(),
            waits_for_others: false,
            never_waits: false,
        }
    }
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The engine has ended or cut the client off: all sockets are lost.
    #[error("the engine is gone; attach again once it is back")]
    Lost,
    /// The engine in this process failed: all sockets are lost.
    #[error("the engine in this process failed: {0}")]
    Failed(String),
    /// Error of the socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

/// A socket, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Socket(u32);

impl Socket {
    /// The socket with that number of [`Self::number`]; one that does not exist is not open.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        Self(number)
    }

    /// Its number, for callers that keep it as one.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }
}

/// Readiness of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Readiness {
    /// A session to accept, bytes, a datagram, or the end can be read.
    pub readable: bool,
    /// It is connected and a buffer is free.
    pub writable: bool,
    /// The peer sends no more.
    pub ended: bool,
    /// The session is over.
    pub closed: bool,
}

/// One attachment to an engine.
pub struct Client {
    link: Link,
    chunks: Chunks,
    sockets: Sockets,
    ready: Ready,
    resuming: Resuming,
    openings: opening::Openings,
    /// Tag of the last request that is answered.
    tag: u32,
    spin: Duration,
    patience: Patience,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("sockets", &self.sockets.places())
            .field("lost", &self.link.was_lost())
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Attaches to the engine at `path`.
    ///
    /// # Errors
    /// [`SockError`] with the remedy.
    pub fn attach(path: &Path, options: &ClientOptions) -> Result<Self, SockError> {
        let attached = attach::attach(path, options)?;
        let engine = Engine::Elsewhere {
            socket: attached.socket,
            bell: attached.bell,
            wake: attached.wake,
        };
        Ok(Self::over(attached.map, engine, attached.chunks, options))
    }

    fn over(map: SharedMap, engine: Engine, chunks: u32, options: &ClientOptions) -> Self {
        let map = Arc::new(map);
        Self {
            link: Link::new(Arc::clone(&map), engine, options.never_waits),
            chunks: Chunks::new(map, chunks),
            sockets: Sockets::default(),
            ready: Ready::default(),
            resuming: Resuming::default(),
            openings: opening::Openings::default(),
            tag: 0,
            spin: options.spin,
            patience: Patience::default(),
        }
    }

    /// Listens for TCP sessions at `local`; at most `backlog` wait to be accepted.
    ///
    /// # Errors
    /// In use, not an address of the stack, full; lost.
    pub fn listen(&mut self, local: SocketAddr, backlog: u32) -> Result<Socket, ClientError> {
        self.open(Request::Listen, local, backlog)
    }

    /// Begins to open a TCP session to `peer`. It becomes writable once it is open.
    ///
    /// # Errors
    /// Unreachable, full; lost.
    pub fn connect(&mut self, peer: SocketAddr) -> Result<Socket, ClientError> {
        self.open(Request::Connect, peer, 0)
    }

    /// The same, from the local `port`; 0 for any.
    ///
    /// # Errors
    /// In use, unreachable, full; lost.
    pub fn connect_from(&mut self, port: u16, peer: SocketAddr) -> Result<Socket, ClientError> {
        self.open(Request::Connect, peer, port.into())
    }

    /// Opens a UDP socket at `local`.
    ///
    /// # Errors
    /// As [`Self::listen`].
    pub fn bind_udp(&mut self, local: SocketAddr) -> Result<Socket, ClientError> {
        self.open(Request::BindUdp, local, 0)
    }

    /// The local address of a socket.
    #[must_use]
    pub fn local(&self, socket: Socket) -> Option<SocketAddr> {
        self.sockets.get(socket)?.local
    }

    /// The next session in a listener's accept queue, and its peer.
    pub fn accept(&mut self, listener: Socket) -> Option<(Socket, SocketAddr)> {
        self.sockets.get_mut(listener)?.accepted.pop_front()
    }

    /// Copies received bytes of a session into `target`; 0 at their end, none if there are none
    /// yet.
    ///
    /// # Errors
    /// The session's error if it ended with one; lost.
    pub fn read(
        &mut self,
        socket: Socket,
        target: &mut [u8],
    ) -> Result<Option<usize>, ClientError> {
        let state = self.sockets.get_mut(socket).ok_or(SocketError::NotOpen)?;
        let mut done = 0;
        while done < target.len()
            && let Some((piece, _)) = state.received.front_mut()
        {
            let bytes = self.chunks.bytes(piece);
            let count = bytes.len().min(target.len() - done);
            target[done..done + count].copy_from_slice(&bytes[..count]);
            done += count;
            // Its chunk goes back with the next request, as soon as nothing of it is left.
            if piece.advance(count)
                && let Some((piece, _)) = state.received.pop_front()
            {
                self.chunks.release(piece);
            }
        }
        if done > 0 {
            return Ok(Some(done));
        }
        self.sockets.nothing(socket, self.link.was_lost())
    }

    /// Received bytes of a session, without a copy; none if there are none yet, or no more
    /// ([`Readiness::ended`]).
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn receive(&mut self, socket: Socket) -> Result<Option<Received>, ClientError> {
        let state = self.sockets.get_mut(socket).ok_or(SocketError::NotOpen)?;
        if let Some((piece, _)) = state.received.pop_front() {
            return Ok(Some(self.chunks.lend(piece)));
        }
        self.sockets
            .nothing(socket, self.link.was_lost())
            .map(|_| None)
    }

    /// The next datagram of a UDP socket, without a copy, and its source.
    pub fn receive_from(&mut self, socket: Socket) -> Option<(Received, SocketAddr)> {
        let state = self.sockets.get_mut(socket)?;
        let (piece, peer) = state.received.pop_front()?;
        Some((self.chunks.lend(piece), peer))
    }

    /// Returns received bytes to the engine.
    pub fn release(&mut self, received: Received) {
        self.chunks.release(received.into_piece());
    }

    /// Sends a copy of `source`, as far as buffers are free; 0 if there are none.
    ///
    /// # Errors
    /// Not connected, over, shut down; lost.
    pub fn write(&mut self, socket: Socket, source: &[u8]) -> Result<usize, ClientError> {
        let mut done = 0;
        while done < source.len()
            && let Some(mut buffer) = self.buffer_for(socket)?
        {
            let count = (source.len() - done).min(CHUNK_BYTES);
            buffer.bytes_mut()[..count].copy_from_slice(&source[done..done + count]);
            self.post_bytes(socket, buffer, count)?;
            done += count;
        }
        Ok(done)
    }

    /// Memory for data to send; none while all is in use.
    pub fn buffer(&mut self) -> Option<Buffer> {
        // Chunks come back as events.
        if self.chunks.free() == 0 {
            self.take_events();
        }
        self.chunks.buffer()
    }

    /// Number of calls of [`Self::buffer`] that would succeed now.
    pub fn buffers_free(&mut self) -> usize {
        if self.chunks.free() < BUFFERS_FEW {
            self.take_events();
        }
        self.chunks.free()
    }

    /// Number of all buffers to send from.
    #[must_use]
    pub fn buffers_max(&self) -> usize {
        self.chunks.count()
    }

    /// Takes back memory of [`Self::buffer`] that will not be sent.
    pub fn give_buffer_back(&mut self, buffer: Buffer) {
        self.chunks.take_back(buffer.into_chunk());
    }

    /// True if a session is open, or was.
    #[must_use]
    pub fn is_connected(&self, session: Socket) -> bool {
        self.sockets
            .get(session)
            .is_some_and(|state| state.connected)
    }

    /// Sends the first `bytes` bytes of `buffer`.
    ///
    /// # Errors
    /// As [`Self::write`]; the buffer is free again.
    pub fn send(
        &mut self,
        socket: Socket,
        buffer: Buffer,
        bytes: usize,
    ) -> Result<(), ClientError> {
        match self.sockets.check_open(socket, self.link.was_lost()) {
            Ok(()) => self.post_bytes(socket, buffer, bytes.min(CHUNK_BYTES)),
            Err(error) => {
                self.give_buffer_back(buffer);
                Err(error)
            }
        }
    }

    /// Sends a datagram from a UDP socket; false if too few buffers are free, one for each 16 KiB.
    /// It is lost silently if there is no route to `peer`.
    ///
    /// # Errors
    /// Longer than 65,507 bytes (IPv6: 65,527), or than all buffers; lost.
    pub fn send_to(
        &mut self,
        socket: Socket,
        peer: SocketAddr,
        bytes: &[u8],
    ) -> Result<bool, ClientError> {
        let chunks = bytes.len().div_ceil(CHUNK_BYTES).max(1);
        if bytes.len() > datagram_bytes_max(peer) || chunks > self.chunks.count() {
            return Err(SocketError::TooLong.into());
        }
        // The engine would take the chunks of a session as a stream's bytes.
        if !self.sockets.get(socket).is_some_and(|state| state.is_udp) {
            return Err(SocketError::NotOpen.into());
        }
        // Buffers of datagrams already sent may be free by now.
        if self.chunks.free() < chunks {
            self.take_events();
        }
        if self.chunks.free() < chunks {
            return Ok(false);
        }
        // All or none: the engine cuts off a process that ends a socket within a datagram.
        for index in 0..chunks {
            let Some(mut buffer) = self.buffer() else {
                break; // never: they were counted
            };
            let (from, is_last) = (index * CHUNK_BYTES, index + 1 == chunks);
            let part = &bytes[from..bytes.len().min(from + CHUNK_BYTES)];
            buffer.bytes_mut()[..part.len()].copy_from_slice(part);
            let entry = Entry {
                argument: if is_last { 0 } else { MORE },
                ..Entry::default()
            };
            self.post_send(socket, buffer, part.len(), entry.at(peer))?;
        }
        Ok(true)
    }

    /// Ends sending after all queued data.
    ///
    /// # Errors
    /// Lost.
    pub fn shutdown(&mut self, socket: Socket) -> Result<(), ClientError> {
        if self.sockets.ends_later(socket, Request::Shutdown) {
            return Ok(());
        }
        self.post(Request::Shutdown, socket, Entry::default())
    }

    /// Closes a socket after all queued data was sent.
    ///
    /// # Errors
    /// Lost.
    pub fn close(&mut self, socket: Socket) -> Result<(), ClientError> {
        if self.sockets.ends_later(socket, Request::Close) {
            if let Some(mut state) = self.sockets.remove(socket) {
                self.drop_input(&mut state);
                self.sockets.insert(state);
            }
            return Ok(());
        }
        // First, so that events still on their way find no socket.
        self.forget(socket);
        self.post(Request::Close, socket, Entry::default())
    }

    /// Closes a socket now; a session is reset.
    ///
    /// # Errors
    /// Lost.
    pub fn abort(&mut self, socket: Socket) -> Result<(), ClientError> {
        self.forget(socket);
        self.post(Request::Abort, socket, Entry::default())
    }

    /// Sets an option of a session.
    ///
    /// # Errors
    /// Lost.
    pub fn set(&mut self, socket: Socket, option: SocketOption) -> Result<(), ClientError> {
        let (argument, bytes) = option.numbers();
        let entry = Entry {
            argument,
            bytes,
            ..Entry::default()
        };
        self.post(Request::Option, socket, entry)
    }

    /// Readiness of a socket now.
    #[must_use]
    pub fn readiness(&self, socket: Socket) -> Readiness {
        let Some(state) = self.sockets.get(socket) else {
            return Readiness::default();
        };
        let closed = state.life != Life::Alive;
        let has_input = !state.received.is_empty() || !state.accepted.is_empty();
        // A UDP socket needs no session to send.
        let may_send = (state.connected || state.is_udp) && !closed;
        Readiness {
            readable: has_input || state.ended || closed,
            writable: may_send && self.chunks.free() > 0,
            ended: state.ended,
            closed,
        }
    }

    /// The next socket whose state has changed since it was last returned.
    pub fn next_ready(&mut self) -> Option<Socket> {
        self.ready.next(&mut self.sockets)
    }

    /// Chunks of a session that the engine has yet to send.
    #[must_use]
    pub fn sending(&self, socket: Socket) -> u32 {
        let state = self.sockets.get(socket);
        state.map_or(0, |state| state.outgoing.count())
    }

    fn buffer_for(&mut self, socket: Socket) -> Result<Option<Buffer>, ClientError> {
        self.sockets.check_open(socket, self.link.was_lost())?;
        // Bytes held here go first, and may have room by now.
        if !self.takes(socket) {
            self.take_events();
            self.resume()?;
        }
        Ok(match self.takes(socket) {
            true => self.buffer(),
            false => None,
        })
    }

    fn next_tag(&mut self) -> u32 {
        self.tag = self.tag.wrapping_add(1);
        self.tag
    }

    fn post_send(
        &mut self,
        socket: Socket,
        buffer: Buffer,
        bytes: usize,
        entry: Entry,
    ) -> Result<(), ClientError> {
        let entry = Entry {
            bytes: entry_bytes(bytes),
            chunk: buffer.into_chunk(),
            tag: self.next_tag(),
            ..entry
        };
        // Counted before the request: its answer may be taken while the request waits for room.
        if let Some(state) = self.sockets.get_mut(socket) {
            state.outgoing.note_posted();
        }
        self.post(Request::Send, socket, entry)
    }

    fn open(
        &mut self,
        request: Request,
        address: SocketAddr,
        argument: u32,
    ) -> Result<Socket, ClientError> {
        let tag = self.next_tag();
        let entry = Entry {
            tag,
            argument,
            ..Entry::default()
        };
        self.post(request, Socket(NO_CHUNK), entry.at(address))?;
        let opened = self.wait_for_opened(tag)?;
        if let Some(error) = SocketError::from_number(opened.argument) {
            return Err(error.into());
        }
        let socket = Socket(opened.socket);
        let local = Some(opened.socket_address());
        let is_udp = request == Request::BindUdp;
        self.sockets.insert(State::new(socket, is_udp, local));
        Ok(socket)
    }
}

/// Free buffers below which the engine's events are taken before they are counted.
const BUFFERS_FEW: usize = 64;

/// Largest payload of a datagram, in bytes: without UDP's header (RFC 768) and, for IPv4, without
/// its own (RFC 791).
fn datagram_bytes_max(peer: SocketAddr) -> usize {
    usize::from(u16::MAX) - 8 - if peer.is_ipv4() { 20 } else { 0 }
}
