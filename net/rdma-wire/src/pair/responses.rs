//! Requests of the peer in progress, and the checks of the memory that they name.
//!
//! Must stay true: at most as many are kept as this side has offered to serve; they are answered in
//! their order (RFC 5040, section 5.5; RFC 7306, section 7).

use crate::domain::{Access, Domain, PairId};
use crate::memory::RegionId;
use crate::wire::ddp::{AtomicRequest, ReadRequest};
use crate::wire::terminate::Cause;
use std::collections::VecDeque;

use super::request_cause;

#[derive(Debug)]
pub(super) struct Responses {
    queue: VecDeque<Response>,
    depth: usize,
}

/// A request, and its progress.
#[derive(Debug, Clone, Copy)]
pub(super) enum Response {
    Read {
        request: ReadRequest,
        /// Bytes sent so far.
        at: u32,
    },
    /// With the old word, once it is done.
    Atomic {
        request: AtomicRequest,
        original: Option<u64>,
    },
}

impl Responses {
    pub(super) fn new(ird: u16) -> Self {
        let depth = ird.into();
        Self {
            queue: VecDeque::with_capacity(depth),
            depth,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= self.depth
    }

    /// True if a read is not answered completely.
    pub(super) fn has_read(&self) -> bool {
        let mut queue = self.queue.iter();
        queue.any(|one| matches!(one, Response::Read { .. }))
    }

    pub(super) fn push(&mut self, response: Response) {
        self.queue.push_back(response);
    }

    /// The oldest one, which is sent next.
    pub(super) fn first(&self) -> Option<Response> {
        self.queue.front().copied()
    }

    /// `bytes` more bytes of the oldest one, a read, were sent.
    pub(super) fn advance(&mut self, bytes: u32) {
        if let Some(Response::Read { at, .. }) = self.queue.front_mut() {
            *at += bytes;
        }
    }

    /// The oldest one was sent completely.
    pub(super) fn pop(&mut self) {
        self.queue.pop_front();
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
    }
}

/// Location of a read response's `bytes` bytes from `at` on.
pub(super) fn check_read(
    pair: PairId,
    request: &ReadRequest,
    at: u32,
    bytes: u32,
    domain: &Domain,
) -> Result<(RegionId, u64), Cause> {
    let offset = request
        .source_offset
        .checked_add(at.into())
        .ok_or(Cause::RequestWrap)?;
    let rights = Access::REMOTE_READ;
    let place = domain.check(pair, request.source, offset, bytes.into(), rights);
    place.map_err(request_cause)
}

/// Location of the word that an atomic changes.
pub(super) fn check_atomic(
    pair: PairId,
    request: &AtomicRequest,
    domain: &Domain,
) -> Result<(RegionId, u64), Cause> {
    // An unknown operation is a fault whatever it names.
    request.apply(0).ok_or(Cause::UnexpectedOpcode)?;
    let rights = Access::REMOTE_ATOMIC;
    let place = domain
        .check(pair, request.stag, request.offset, 8, rights)
        .map_err(request_cause)?;
    // Both: the peer's offset, as RFC 7306 demands, and the memory, which is changed by an atomic
    // instruction; a region may begin at an odd address.
    if !request.offset.is_multiple_of(8) || !place.1.is_multiple_of(8) {
        return Err(Cause::StreamCatastrophic);
    }
    Ok(place)
}
