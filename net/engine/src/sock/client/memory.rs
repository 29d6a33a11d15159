//! The chunks as an application sees them: plain bytes.
//!
//! Why here: zero-copy calls hand out references into memory that another process maps. The engine
//! is to its applications what the kernel is: it keeps to the protocol, by which it writes to a
//! chunk only while it has it. (It does not trust *them*; nothing here weakens that.) Must stay
//! true: a chunk is either with the engine or one owned value ([`Received`], [`Buffer`]) here.
#![allow(unsafe_code)] // references into memory that the engine maps too

use crate::sock::layout::{CHUNK_BYTES, CHUNKS};
use sidecore_sys::SharedMap;
use std::slice;
use std::sync::Arc;

/// Received bytes where the engine put them. They go back by `Client::release`.
#[derive(Debug)]
pub struct Received {
    pub(super) map: Arc<SharedMap>,
    pub(super) chunk: u32,
    /// Chunks that it arrived in; more than one only where `moved` has the bytes.
    pub(super) chunks: u32,
    pub(super) offset: usize,
    pub(super) start: usize,
    pub(super) end: usize,
    /// The bytes, where they had to make room for others'.
    pub(super) moved: Option<Box<[u8]>>,
    /// The number of their socket.
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

/// Memory to send from; handed over by `Client::send`.
#[derive(Debug)]
pub struct Buffer {
    pub(super) map: Arc<SharedMap>,
    pub(super) chunk: u32,
}

impl Buffer {
    /// All [`CHUNK_BYTES`] of it.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let at = offset(self.chunk);
        // SAFETY: the chunk lies within the map (checked by `check` when it was made), which lives
        // as long as self; the engine never writes to it and this value is its only owner here.
        unsafe { slice::from_raw_parts_mut(self.map.slice().as_ptr().add(at), CHUNK_BYTES) }
    }
}

/// Offset of a chunk in the segment, counted through both directions.
pub(super) fn offset(chunk: u32) -> usize {
    CHUNKS + chunk as usize * CHUNK_BYTES
}

/// True if the first `bytes` of a chunk, counted through both directions, lie within the segment.
pub(super) fn check(map: &SharedMap, chunk: u32, bytes: usize) -> bool {
    bytes <= CHUNK_BYTES
        && map
            .slice()
            .range(offset(chunk)..offset(chunk) + CHUNK_BYTES)
            .is_some()
}
