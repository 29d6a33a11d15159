//! The chunks as an application sees them: plain bytes.
//!
//! Why here: zero-copy calls return references into memory that another process maps. The
//! application has to trust the engine as it trusts the kernel: by the protocol, the engine writes
//! to a chunk only while it owns the chunk. (The engine does not trust applications; nothing here
//! weakens that.) Must stay true: a chunk is owned either by the engine or by one value
//! ([`Received`], [`Buffer`]) here.
#![allow(unsafe_code)] // references into memory that the engine maps too

use crate::sock::layout::{CHUNK_BYTES, CHUNKS};
use sidecore_sys::SharedMap;
use std::slice;
use std::sync::Arc;

/// Received bytes in their original place. `Client::release` returns them.
#[derive(Debug)]
pub struct Received {
    pub(super) map: Arc<SharedMap>,
    pub(super) chunk: u32,
    /// Number of chunks that it arrived in; more than one only if the bytes are in `moved`.
    pub(super) chunks: u32,
    pub(super) offset: usize,
    pub(super) start: usize,
    pub(super) end: usize,
    /// The bytes, if their chunk was needed for others.
    pub(super) moved: Option<Box<[u8]>>,
    /// The number of the socket.
    pub(super) socket: u32,
}

impl Received {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        if let Some(moved) = &self.moved {
            return &moved[self.start..self.end];
        }
        let at = self.offset + self.start;
        // SAFETY: `start <= end <= CHUNK_BYTES` and the chunk lies within the map (checked by
        // `check` when it came), which lives as long as self. The engine does not write to it
        // before it is given back, which takes this value.
        unsafe { slice::from_raw_parts(self.map.slice().as_ptr().add(at), self.end - self.start) }
    }
}

/// Memory to send from; `Client::send` consumes it.
#[derive(Debug)]
pub struct Buffer {
    pub(super) map: Arc<SharedMap>,
    pub(super) chunk: u32,
}

impl Buffer {
    /// All [`CHUNK_BYTES`] bytes.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let at = offset(self.chunk);
        // SAFETY: the chunk lies within the map (checked by `check` when it was made), which lives
        // as long as self; the engine never writes to it and this value is its only owner here.
        unsafe { slice::from_raw_parts_mut(self.map.slice().as_ptr().add(at), CHUNK_BYTES) }
    }
}

/// Offset of a chunk in the segment, numbered through both directions.
pub(super) fn offset(chunk: u32) -> usize {
    CHUNKS + chunk as usize * CHUNK_BYTES
}

/// True if the first `bytes` of a chunk, numbered through both directions, are in the segment.
pub(super) fn check(map: &SharedMap, chunk: u32, bytes: usize) -> bool {
    bytes <= CHUNK_BYTES
        && map
            .slice()
            .range(offset(chunk)..offset(chunk) + CHUNK_BYTES)
            .is_some()
}
