//! The chunks as an application sees them: plain bytes.
//!
//! Why here: zero-copy calls return references into memory that another process maps. The
//! application has to trust the engine as it trusts the kernel: by the protocol, the engine writes
//! to a chunk only while it owns the chunk. (The engine does not trust applications; nothing here
//! weakens that.) Must stay true: a chunk is owned either by the engine or by one value
//! ([`Received`], [`Piece`], [`Buffer`]) here.
#![allow(unsafe_code)] // references into memory that the engine maps too

use crate::sock::layout::{CHUNK_BYTES, Entry, KEPT, NO_CHUNK, chunk_offset};
use sidecore_bare::width::ToUsize;
use sidecore_sys::SharedMap;
use std::slice;
use std::sync::Arc;

/// The chunks of a client.
#[derive(Debug)]
pub(super) struct Chunks {
    map: Arc<SharedMap>,
    /// Chunks of each direction.
    count: u32,
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
}

/// Received bytes of one socket, in their chunk or moved out of it.
#[derive(Debug)]
pub(super) struct Piece {
    /// The number of the socket.
    socket: u32,
    chunk: u32,
    /// Number of chunks that it arrived in; more than one only if the bytes are in `moved`.
    chunks: u32,
    offset: usize,
    start: usize,
    end: usize,
    /// The bytes, if their chunk was needed for others.
    moved: Option<Box<[u8]>>,
    /// Hop limit and traffic class of a datagram.
    marks: Option<(u8, u8)>,
}

impl Chunks {
    pub(super) fn new(map: Arc<SharedMap>, count: u32) -> Self {
        Self {
            map,
            count,
            free: (0..count).rev().collect(),
            giving: Vec::new(),
            credits: Vec::new(),
            held: 0,
            last_received: 0,
        }
    }

    /// Chunks of each direction.
    pub(super) fn count(&self) -> usize {
        self.count.to_usize()
    }

    /// Number of chunks that are free to send from.
    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    /// A free chunk to send from.
    pub(super) fn buffer(&mut self) -> Option<Buffer> {
        let chunk = self.free.pop()?;
        Some(Buffer {
            map: Arc::clone(&self.map),
            chunk,
        })
    }

    /// Takes back a chunk to send from; one that does not exist is ignored.
    pub(super) fn take_back(&mut self, chunk: u32) {
        if chunk < self.count {
            self.free.push(chunk);
        }
    }

    /// A chunk that came back with bytes of it unsent; none if it does not exist.
    pub(super) fn returned(&mut self, chunk: u32) -> Option<Buffer> {
        (chunk < self.count).then(|| Buffer {
            map: Arc::clone(&self.map),
            chunk,
        })
    }

    /// Receive chunks that this client holds.
    pub(super) fn held(&self) -> u32 {
        self.held
    }

    /// True if peers that take nothing could use up the chunks to send from that are left, with
    /// `taken` more than are free.
    #[inline]
    pub(super) fn is_short_to_send(&self, taken: usize) -> bool {
        self.free.len() + taken < self.count.to_usize() / 4
    }

    /// The bytes of an event; none if they are not in a chunk.
    pub(super) fn receive(&mut self, entry: &Entry) -> Option<Piece> {
        let bytes = entry.bytes.to_usize();
        if entry.chunk >= self.count || bytes > CHUNK_BYTES {
            return None;
        }
        let offset = chunk_offset(self.count.checked_add(entry.chunk)?);
        // Checked here once, so that `bytes` need not.
        self.map.slice().range(offset..offset + CHUNK_BYTES)?;
        self.held += 1;
        self.last_received = offset;
        Some(Piece {
            socket: entry.socket,
            chunk: entry.chunk,
            chunks: 1,
            offset,
            start: 0,
            end: bytes,
            moved: None,
            marks: entry.marks(),
        })
    }

    /// True if one slow socket could use up the chunks that are left, so that others get none.
    pub(super) fn is_short(&self) -> bool {
        let reserve = (self.count / 4).max(CIRCULATING_MIN);
        self.held > self.count.saturating_sub(reserve)
    }

    /// Moves bytes to private memory: their chunk goes back, but they still count as unread.
    pub(super) fn move_out(&mut self, piece: &mut Piece) {
        piece.moved = Some(self.bytes(piece).into());
        (piece.start, piece.end) = (0, piece.len());
        self.give(piece.chunk | KEPT);
    }

    /// Moves a part of a datagram to `begun`; its chunk goes back.
    pub(super) fn append(&mut self, piece: &Piece, begun: &mut Vec<u8>) {
        begun.extend_from_slice(self.bytes(piece));
        self.give(piece.chunk | KEPT);
    }

    /// Drops a part of a datagram that is longer than any can be.
    pub(super) fn skip(&mut self, piece: &Piece) {
        self.give(piece.chunk | KEPT);
    }

    /// Returns received bytes to the engine.
    pub(super) fn release(&mut self, piece: Piece) {
        if piece.moved.is_some() {
            self.credits.push((piece.socket, piece.chunks));
        } else {
            self.give(piece.chunk);
        }
    }

    fn give(&mut self, chunk: u32) {
        self.held -= 1;
        self.giving.push(chunk);
    }

    /// The chunk that the next request returns, or `NO_CHUNK`.
    pub(super) fn next_given(&mut self) -> u32 {
        self.giving.pop().unwrap_or(NO_CHUNK)
    }

    /// Number of chunks that wait for a request to return them.
    pub(super) fn giving(&self) -> usize {
        self.giving.len()
    }

    /// A socket with moved bytes that were read, and their number of chunks.
    pub(super) fn next_credit(&mut self) -> Option<(u32, u32)> {
        self.credits.pop()
    }

    /// Prefetches the probable place of the next bytes: the engine reuses the chunk that was
    /// returned last.
    pub(super) fn prefetch(&self) {
        self.map.slice().prefetch(self.last_received);
    }

    /// Received bytes.
    pub(super) fn bytes<'c>(&'c self, piece: &'c Piece) -> &'c [u8] {
        bytes_of(&self.map, piece)
    }

    /// Passes received bytes to the application.
    pub(super) fn lend(&self, piece: Piece) -> Received {
        Received {
            map: Arc::clone(&self.map),
            piece,
        }
    }
}

impl Piece {
    pub(super) fn len(&self) -> usize {
        self.end - self.start
    }

    /// Skips bytes that were read; true if none are left.
    pub(super) fn advance(&mut self, count: usize) -> bool {
        self.start += count.min(self.len());
        self.start == self.end
    }

    /// Replaces it by the whole datagram of which it is the last part.
    pub(super) fn complete(&mut self, datagram: Vec<u8>, chunks: u32) {
        (self.start, self.end) = (0, datagram.len());
        self.chunks = chunks;
        self.moved = Some(datagram.into());
    }
}

fn bytes_of<'m>(map: &'m SharedMap, piece: &'m Piece) -> &'m [u8] {
    if let Some(moved) = &piece.moved {
        return &moved[piece.start..piece.end];
    }
    let at = piece.offset + piece.start;
    // SAFETY: `start <= end <= CHUNK_BYTES` and the chunk lies within the map (checked by
    // `Chunks::receive` when it came), which lives as long as the result. The engine does not write
    // to it before it is given back, which takes the piece.
    unsafe { slice::from_raw_parts(map.slice().as_ptr().add(at), piece.len()) }
}

/// Received bytes in their original place. `Client::release` returns them.
#[derive(Debug)]
pub struct Received {
    map: Arc<SharedMap>,
    piece: Piece,
}

impl Received {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        bytes_of(&self.map, &self.piece)
    }

    /// Hop limit and traffic class, with the bits of ECN, with which a datagram arrived; none of an
    /// engine that does not say.
    #[must_use]
    pub fn marks(&self) -> Option<(u8, u8)> {
        self.piece.marks
    }

    pub(super) fn into_piece(self) -> Piece {
        self.piece
    }
}

/// Memory to send from; `Client::send` consumes it.
#[derive(Debug)]
pub struct Buffer {
    map: Arc<SharedMap>,
    chunk: u32,
}

impl Buffer {
    /// All [`CHUNK_BYTES`] bytes.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let at = chunk_offset(self.chunk);
        // SAFETY: the chunk lies within the map, whose size was computed from the number of chunks,
        // and which lives as long as self; the engine never writes to it and this value is its only
        // owner here.
        unsafe { slice::from_raw_parts_mut(self.map.slice().as_ptr().add(at), CHUNK_BYTES) }
    }

    pub(super) fn into_chunk(self) -> u32 {
        self.chunk
    }
}

/// Minimum number of chunks in circulation: unread bytes are moved out of the others.
const CIRCULATING_MIN: u32 = 4;
