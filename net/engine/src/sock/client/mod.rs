//! The application's side: sockets of an engine in another process.
//!
//! A [`Client`] is one attachment. Its calls never block, except [`Client::poll`] and those that
//! open a socket (a round trip to the engine). Reading and writing copy; [`Client::receive`],
//! [`Client::buffer`] and [`Client::send`] do not. Readiness is reported like by an edge-triggered
//! epoll: [`Client::next_ready`] returns a socket once for each time that its state changed. If
//! chunks run short because bytes are not read, they are moved to private memory, up to 256 KiB per
//! socket.
//!
//! Why here: no system call and no descriptor per socket. Must stay true: when a client is dropped
//! or its process dies, the engine resets its sessions. One thread; several threads may have one
//! client each.

mod attach;
mod driven;
mod events;
mod memory;
mod opening;
mod waiting;

pub use crate::event_source::EventSource;
pub use attach::{siblings, status, status_of, status_of_all};
pub(crate) use driven::{Driver, DriverFailed, OwnEngine};
pub use memory::{Buffer, Received};
pub use opening::Opening;

use super::control::SockError;
use super::layout::{
    CHUNK_BYTES, DATAGRAM_CHUNKS_MAX, EVENTS, Entry, MORE, NO_CHUNK, REQUESTS, Request,
};
use super::ring::{Reader, Writer};
use super::stack::{SocketError, SocketOption};
use events::State;
use sidecore_attach::Trust;
use sidecore_sched::Patience;
use sidecore_sys::SharedMap;
use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

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
    map: Arc<SharedMap>,
    engine: Engine,
    chunks: u32,
    spin: Duration,
    patience: Patience,
    requests: Writer,
    events: Reader,
    /// Free chunks to send from.
    free: Vec<u32>,
    /// Receive chunks that the next requests return.
    giving: Vec<u32>,
    /// Sockets with bytes that were read after being moved, and their number of chunks.
    credits: Vec<(u32, u32)>,
    /// Receive chunks that this client holds.
    held: u32,
    /// Offset of the last received bytes, to prefetch the next ones, which probably reuse that
    /// chunk.
    last_received: usize,
    sockets: Vec<Option<State>>,
    ready: VecDeque<Socket>,
    tag: u32,
    openings: opening::Openings,
    never_waits: bool,
    /// Requests that found no room, in order.
    postponed: VecDeque<Entry>,
    /// Time of the last check that the engine is alive.
    looked_at: Instant,
    lost: bool,
}

/// Location of a client's engine: another process or this one.
enum Engine {
    /// In another process: the connection that ends with it, and the bell that wakes it.
    Elsewhere {
        socket: OwnedFd,
        bell: OwnedFd,
        /// Descriptor by which the engine wakes the client, if requested.
        wake: Option<Arc<OwnedFd>>,
    },
    /// In this process: it runs while its application waits.
    Here(Box<dyn Driver>),
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("sockets", &self.sockets.len())
            .field("lost", &self.lost)
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
            wake: attached.wake.map(Arc::new),
        };
        Ok(Self::over(attached.map, engine, attached.chunks, options))
    }

    fn over(map: SharedMap, engine: Engine, chunks: u32, options: &ClientOptions) -> Self {
        Self {
            map: Arc::new(map),
            engine,
            chunks,
            spin: options.spin,
            patience: Patience::default(),
            requests: Writer::new(REQUESTS),
            events: Reader::new(EVENTS),
            free: (0..chunks).rev().collect(),
            giving: Vec::new(),
            credits: Vec::new(),
            held: 0,
            last_received: 0,
            sockets: Vec::new(),
            ready: VecDeque::new(),
            tag: 0,
            openings: opening::Openings::default(),
            never_waits: options.never_waits,
            postponed: VecDeque::new(),
            looked_at: Instant::now(),
            lost: false,
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
        self.state(socket)?.local
    }

    /// The next session in a listener's accept queue, and its peer.
    pub fn accept(&mut self, listener: Socket) -> Option<(Socket, SocketAddr)> {
        self.state_mut(listener)?.accepted.pop_front()
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
        let state = self.state_mut(socket).ok_or(SocketError::NotOpen)?;
        let mut done = 0;
        let mut giving = Vec::new();
        while done < target.len()
            && let Some((piece, _)) = state.received.front_mut()
        {
            let count = piece.bytes().len().min(target.len() - done);
            target[done..done + count].copy_from_slice(&piece.bytes()[..count]);
            piece.start += count;
            done += count;
            if piece.start == piece.end
                && let Some((piece, _)) = state.received.pop_front()
            {
                giving.push(piece);
            }
        }
        if done > 0 {
            for piece in giving {
                self.release(piece);
            }
            return Ok(Some(done));
        }
        self.nothing(socket)
    }

    /// Received bytes of a session, without a copy; none if there are none yet, or no more
    /// ([`Readiness::ended`]).
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn receive(&mut self, socket: Socket) -> Result<Option<Received>, ClientError> {
        let state = self.state_mut(socket).ok_or(SocketError::NotOpen)?;
        if let Some((piece, _)) = state.received.pop_front() {
            return Ok(Some(piece));
        }
        self.nothing(socket).map(|_| None)
    }

    /// The next datagram of a UDP socket, without a copy, and its source.
    pub fn receive_from(&mut self, socket: Socket) -> Option<(Received, SocketAddr)> {
        self.state_mut(socket)?.received.pop_front()
    }

    /// Returns received bytes to the engine.
    pub fn release(&mut self, received: Received) {
        if received.moved.is_some() {
            self.credits.push((received.socket, received.chunks));
        } else {
            self.give(received.chunk);
        }
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
            self.post_send(socket, buffer, count, Entry::default())?;
            done += count;
        }
        Ok(done)
    }

    /// Memory for data to send; none while all is in use.
    pub fn buffer(&mut self) -> Option<Buffer> {
        if self.free.is_empty() {
            self.take_events();
        }
        let chunk = self.free.pop()?;
        Some(Buffer {
            map: Arc::clone(&self.map),
            chunk,
        })
    }

    /// Takes back memory of [`Self::buffer`] that will not be sent.
    pub fn give_buffer_back(&mut self, buffer: Buffer) {
        self.free.push(buffer.chunk);
    }

    /// True if a session is open, or was.
    #[must_use]
    pub fn is_connected(&self, session: Socket) -> bool {
        self.state(session).is_some_and(|state| state.connected)
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
        match self.check_open(socket) {
            Ok(()) => self.post_send(socket, buffer, bytes.min(CHUNK_BYTES), Entry::default()),
            Err(error) => {
                self.free.push(buffer.chunk);
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
        if bytes.len() > datagram_bytes_max(peer) || chunks > self.chunks as usize {
            return Err(SocketError::TooLong.into());
        }
        if !self.state(socket).is_some_and(|state| state.is_udp) {
            return Err(SocketError::NotOpen.into());
        }
        // Buffers of datagrams already sent may be free by now.
        if self.free.len() < chunks {
            self.take_events();
        }
        if self.free.len() < chunks {
            return Ok(false);
        }
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
        self.post(Request::Shutdown, socket, Entry::default())
    }

    /// Closes a socket after all queued data was sent.
    ///
    /// # Errors
    /// Lost.
    pub fn close(&mut self, socket: Socket) -> Result<(), ClientError> {
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
        self.state(socket)
            .map_or_else(Readiness::default, |state| Readiness {
                readable: !state.received.is_empty()
                    || !state.accepted.is_empty()
                    || state.ended
                    || state.closed.is_some(),
                writable: (state.connected || state.is_udp)
                    && state.closed.is_none()
                    && !self.free.is_empty(),
                ended: state.ended,
                closed: state.closed.is_some(),
            })
    }

    /// The next socket whose state has changed since it was last returned.
    pub fn next_ready(&mut self) -> Option<Socket> {
        loop {
            let socket = self.ready.pop_front()?;
            // A socket that was closed meanwhile is skipped.
            if let Some(state) = self.state_mut(socket) {
                state.queued = false;
                return Some(socket);
            }
        }
    }

    /// Chunks of a session that the engine has yet to send.
    #[must_use]
    pub fn sending(&self, socket: Socket) -> u32 {
        self.state(socket).map_or(0, |state| state.sending)
    }

    fn buffer_for(&mut self, socket: Socket) -> Result<Option<Buffer>, ClientError> {
        self.check_open(socket)?;
        Ok(self.buffer())
    }

    fn check_open(&self, socket: Socket) -> Result<(), ClientError> {
        let state = self.state(socket).ok_or(SocketError::NotOpen)?;
        match state.closed {
            Some(error) => Err(error.unwrap_or(SocketError::NotOpen).into()),
            None if self.lost => Err(ClientError::Lost),
            None if state.connected => Ok(()),
            None => Err(SocketError::NotOpen.into()),
        }
    }

    /// Result of reading without bytes: the end, the error, or none yet.
    fn nothing(&self, socket: Socket) -> Result<Option<usize>, ClientError> {
        let state = self.state(socket).ok_or(SocketError::NotOpen)?;
        match state.closed {
            Some(Some(error)) => Err(error.into()),
            Some(None) => Ok(Some(0)),
            None if state.ended => Ok(Some(0)),
            None if self.lost => Err(ClientError::Lost),
            None => Ok(None),
        }
    }

    fn post_send(
        &mut self,
        socket: Socket,
        buffer: Buffer,
        bytes: usize,
        entry: Entry,
    ) -> Result<(), ClientError> {
        self.tag = self.tag.wrapping_add(1);
        let entry = Entry {
            bytes: bytes as u32,
            chunk: buffer.chunk,
            tag: self.tag,
            ..entry
        };
        if let Some(state) = self.state_mut(socket) {
            state.sending += 1;
        }
        self.post(Request::Send, socket, entry)
    }

    fn open(
        &mut self,
        request: Request,
        address: SocketAddr,
        argument: u32,
    ) -> Result<Socket, ClientError> {
        self.tag = self.tag.wrapping_add(1);
        let tag = self.tag;
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
        let is_udp = request == Request::BindUdp;
        let local = Some(opened.socket_address());
        self.insert(opened.socket, is_udp, false, local);
        Ok(Socket(opened.socket))
    }
}

/// Largest payload of a datagram, in bytes: without UDP's header (RFC 768) and, for IPv4, without
/// its own (RFC 791).
fn datagram_bytes_max(peer: SocketAddr) -> usize {
    usize::from(u16::MAX) - 8 - if peer.is_ipv4() { 20 } else { 0 }
}

const _: () = assert!(DATAGRAM_CHUNKS_MAX * CHUNK_BYTES >= u16::MAX as usize);
