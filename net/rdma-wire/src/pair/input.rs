//! A received segment: checked by DDP, then by RDMAP, then placed (RFC 5041, section 7; RFC 5040,
//! section 7).
//!
//! Must stay true: nothing is placed before every check of its segment has passed.

use super::completions::completion;
use super::receives::{Incoming, Mark};
use super::responses::{Response, check_atomic, check_read};
use super::sends::Outstanding;
use super::{Pair, request_cause, tagged_cause};
use crate::domain::{Access, Domain};
use crate::memory::{Memory, RegionId};
use crate::piece::{Fault, PIECES_MAX, Piece};
use crate::wire::ddp::{
    ATOMIC_BYTES, ATOMIC_RESPONSE_BYTES, AtomicRequest, AtomicResponse, Header, IMMEDIATE_BYTES,
    Opcode, QUEUE_ATOMIC_RESPONSE, QUEUE_REQUEST, QUEUE_SEND, QUEUE_TERMINATE, READ_BYTES,
    ReadRequest, Target,
};
use crate::wire::terminate::{Cause, Terminate};
use crate::wire::{segment_length, word64};
use crate::work::{Completion, Kind, Status};
use crate::{End, Stag};
use sidecore_bare::width::ToUsize;

/// A segment's payload.
#[derive(Debug, Clone, Copy)]
enum Payload<'a> {
    Here(&'a [u8]),
    /// Bytes that were placed as they came: their number.
    Placed(u32),
}

impl<'a> Payload<'a> {
    fn count(self) -> u32 {
        match self {
            Self::Here(bytes) => segment_length(bytes),
            Self::Placed(count) => count,
        }
    }

    /// Those that are not placed yet.
    fn bytes(self) -> &'a [u8] {
        match self {
            Self::Here(bytes) => bytes,
            Self::Placed(_) => &[],
        }
    }
}

/// An untagged segment after DDP's checks.
struct Untagged<'a> {
    last: bool,
    opcode: Opcode,
    invalidate: Stag,
    offset: u32,
    payload: Payload<'a>,
}

/// A tagged segment after DDP's checks.
struct Tagged<'a> {
    last: bool,
    stag: Stag,
    offset: u64,
    payload: Payload<'a>,
    mark: Mark,
}

/// Places of a payload's bytes, each with its length.
pub(super) type Places = arrayvec::ArrayVec<((RegionId, u64), u32), PIECES_MAX>;

impl Pair {
    /// Processes a segment; a fault ends the pair.
    pub(super) fn take_segment<M: Memory + ?Sized>(
        &mut self,
        segment: &[u8],
        mark: Mark,
        domain: &mut Domain,
        memory: &mut M,
    ) {
        // RFC 6581, section 9.2: the initiator reports so, once, that it is ready to receive.
        if std::mem::take(&mut self.may_be_empty) && segment.is_empty() {
            self.may_send = true;
            return;
        }
        let read = Header::read(segment).ok_or(Cause::Framing);
        let outcome = read.and_then(|(header, payload)| {
            self.segment(&header, Payload::Here(payload), mark, domain, memory)
        });
        if let Err(cause) = outcome {
            let is_read = Header::read(segment)
                .is_some_and(|(header, _)| Opcode::of(header.opcode) == Some(Opcode::ReadRequest));
            self.fail(Terminate::blaming(cause, segment, is_read));
        }
        // The peer has sent, so this side may send (RFC 5044, section 7.1.2).
        self.may_send = true;
    }

    /// Processes a segment of `count` bytes of payload that was placed as it came.
    pub(super) fn take_placed<M: Memory + ?Sized>(
        &mut self,
        header: &Header,
        count: u32,
        domain: &mut Domain,
        memory: &mut M,
    ) -> Result<(), Cause> {
        self.may_be_empty = false;
        self.may_send = true;
        // Its position is of no use: without CRCs nothing is placed out of order.
        let mark = (self.deframer.awaited(), 0);
        self.segment(header, Payload::Placed(count), mark, domain, memory)
    }

    fn segment<M: Memory + ?Sized>(
        &mut self,
        header: &Header,
        payload: Payload<'_>,
        mark: Mark,
        domain: &mut Domain,
        memory: &mut M,
    ) -> Result<(), Cause> {
        match header.target {
            Target::Tagged { stag, offset } => {
                let tagged = Tagged {
                    last: header.last,
                    stag,
                    offset,
                    payload,
                    mark,
                };
                take_tagged(self, header, tagged, domain, memory)
            }
            Target::Untagged {
                invalidate,
                queue,
                msn,
                offset,
            } => {
                // DDP's checks come before RDMAP's, so that the peer learns of the lowest layer at
                // fault: version, queue, then RDMAP's version and opcode, then the number.
                if !header.ddp_version {
                    return Err(Cause::UntaggedVersion);
                }
                let expected = self.msn_in.of(queue).ok_or(Cause::InvalidQueue)?;
                if !header.rdmap_version {
                    return Err(Cause::RdmapVersion);
                }
                let opcode = Opcode::of(header.opcode).ok_or(Cause::UnexpectedOpcode)?;
                if opcode.queue() != Some(queue) {
                    return Err(Cause::UnexpectedOpcode);
                }
                // TCP keeps the order, so another number than the next is a fault of the peer.
                if msn != expected {
                    return Err(Cause::InvalidMsn);
                }
                let untagged = Untagged {
                    last: header.last,
                    opcode,
                    invalidate,
                    offset,
                    payload,
                };
                take_untagged(self, queue, &untagged, domain, memory)
            }
        }
    }

    /// The read that a response of `bytes` bytes belongs to, its bytes up to now, and with them.
    pub(super) fn check_response(
        &self,
        stag: Stag,
        offset: u64,
        bytes: u32,
        last: bool,
    ) -> Result<(Piece, u32), Cause> {
        // Requests are answered in their order, so this one belongs to the oldest.
        let Some(&Outstanding::Read { into, at }) = self.sends.outstanding.front() else {
            return Err(Cause::UnexpectedOpcode);
        };
        if stag != into.stag {
            return Err(Cause::TaggedStag);
        }
        // `into` was checked when it was posted: the sum fits into 64 bits. Exactly the next bytes:
        // TCP keeps the order, so a gap or an overlap is a fault of the responder.
        if offset != into.offset + u64::from(at) || bytes > into.bytes - at {
            return Err(Cause::TaggedBounds);
        }
        let now = at + bytes;
        if last && now != into.bytes {
            return Err(Cause::TaggedBounds);
        }
        Ok((into, now))
    }
}

fn take_tagged<M: Memory + ?Sized>(
    pair: &mut Pair,
    header: &Header,
    tagged: Tagged<'_>,
    domain: &Domain,
    memory: &mut M,
) -> Result<(), Cause> {
    if !header.ddp_version {
        return Err(Cause::TaggedVersion);
    }
    if !header.rdmap_version {
        return Err(Cause::RdmapVersion);
    }
    match Opcode::of(header.opcode) {
        Some(Opcode::Write) => write_came(pair, &tagged, domain, memory),
        Some(Opcode::ReadResponse) => read_answered(pair, &tagged, domain, memory),
        _ => Err(Cause::UnexpectedOpcode),
    }
}

fn take_untagged<M: Memory + ?Sized>(
    pair: &mut Pair,
    queue: u32,
    message: &Untagged<'_>,
    domain: &mut Domain,
    memory: &mut M,
) -> Result<(), Cause> {
    match queue {
        QUEUE_SEND => message_came(pair, message, domain, memory),
        QUEUE_REQUEST => request_came(pair, message, domain, memory),
        QUEUE_TERMINATE => {
            let terminate =
                Terminate::read(message.payload.bytes()).ok_or(Cause::OperationUnspecified)?;
            // No reply: a terminate message is the last one each way (RFC 5040, section 5.4).
            pair.finish(End::Received(terminate));
            Ok(())
        }
        QUEUE_ATOMIC_RESPONSE => atomic_answered(pair, message),
        _ => Err(Cause::InvalidQueue),
    }
}

fn write_came<M: Memory + ?Sized>(
    pair: &mut Pair,
    write: &Tagged<'_>,
    domain: &Domain,
    memory: &mut M,
) -> Result<(), Cause> {
    // A message of no bytes accesses no memory, so nothing is checked.
    if write.payload.count() == 0 {
        return Ok(());
    }
    let (bytes, rights) = (write.payload.count().into(), Access::REMOTE_WRITE);
    let place = domain
        .check(pair.id, write.stag, write.offset, bytes, rights)
        .map_err(tagged_cause)?;
    let Payload::Here(bytes) = write.payload else {
        return Ok(());
    };
    let written = pair
        .placements
        .write(place, bytes, Some(write.mark), memory);
    written.map_err(|_| Cause::DdpCatastrophic)
}

fn read_answered<M: Memory + ?Sized>(
    pair: &mut Pair,
    response: &Tagged<'_>,
    domain: &Domain,
    memory: &mut M,
) -> Result<(), Cause> {
    let payload = response.payload;
    let bytes = payload.count();
    if let Some(Outstanding::Ready) = pair.sends.outstanding.front()
        && bytes == 0
        && response.last
    {
        pair.sends.outstanding.pop_front();
        return Ok(());
    }
    let (stag, offset) = (response.stag, response.offset);
    let (into, now) = pair.check_response(stag, offset, bytes, response.last)?;
    if bytes > 0 {
        // Again, although it was checked at posting: the region may be deregistered by now.
        let rights = Access::LOCAL_WRITE;
        let place = domain
            .check(pair.id, into.stag, offset, bytes.into(), rights)
            .map_err(tagged_cause)?;
        if let Payload::Here(bytes) = payload {
            let written = pair
                .placements
                .write(place, bytes, Some(response.mark), memory);
            written.map_err(|_| Cause::DdpCatastrophic)?;
        }
    }
    if response.last {
        pair.sends.outstanding.pop_front();
        pair.sends.answered(now, None, &mut pair.completions);
    } else if let Some(Outstanding::Read { at, .. }) = pair.sends.outstanding.front_mut() {
        *at = now;
    }
    Ok(())
}

fn atomic_answered(pair: &mut Pair, message: &Untagged<'_>) -> Result<(), Cause> {
    let Some(&Outstanding::Atomic { identifier }) = pair.sends.outstanding.front() else {
        return Err(Cause::UnexpectedOpcode);
    };
    let response = single(message, ATOMIC_RESPONSE_BYTES, AtomicResponse::read)?;
    if response.identifier != identifier {
        return Err(Cause::OperationUnspecified);
    }
    pair.msn_in.advance(QUEUE_ATOMIC_RESPONSE);
    pair.sends.outstanding.pop_front();
    pair.sends
        .answered(8, Some(response.original), &mut pair.completions);
    Ok(())
}

fn message_came<M: Memory + ?Sized>(
    pair: &mut Pair,
    message: &Untagged<'_>,
    domain: &mut Domain,
    memory: &mut M,
) -> Result<(), Cause> {
    let bytes = message.payload.count();
    let is_immediate = matches!(
        message.opcode,
        Opcode::Immediate | Opcode::ImmediateSolicited
    );
    let unread = pair.completions.receives();
    let mut incoming = match pair.receives.incoming.take() {
        Some(incoming) => incoming,
        None => pair.receives.begin(message.opcode, unread, domain)?,
    };
    let checked = if incoming.opcode != message.opcode {
        Err(Cause::UnexpectedOpcode)
    } else if message.offset != incoming.at {
        Err(Cause::InvalidOffset)
    } else if is_immediate {
        // RFC 7306, section 6: the data is in the completion, the buffer stays as it was.
        single(message, IMMEDIATE_BYTES, |_| Some(()))
    } else if bytes > incoming.room - incoming.at {
        Err(Cause::TooLong)
    } else {
        scatter(pair, &incoming, message.payload, domain, memory)
    };
    // Put back, so that a fault flushes its buffer.
    incoming.at += if checked.is_ok() { bytes } else { 0 };
    let at = incoming.at;
    pair.receives.incoming = Some(incoming);
    checked?;
    if !message.last {
        return Ok(());
    }
    // Only with the last segment: the message may be on its way into that very region.
    let invalidated = if message.opcode.invalidates() {
        invalidate(pair, message.invalidate, domain)?;
        Some(message.invalidate)
    } else {
        None
    };
    if let Some(incoming) = pair.receives.incoming.take() {
        pair.msn_in.advance(QUEUE_SEND);
        pair.completions.push(Completion {
            bytes: at,
            immediate: is_immediate
                .then(|| word64(message.payload.bytes(), 0))
                .flatten(),
            invalidated,
            solicited: message.opcode.is_solicited(),
            ..completion(incoming.receive.id, Kind::Receive, Status::Done)
        });
    }
    Ok(())
}

/// Places a message's bytes from `incoming.at` on.
fn scatter<M: Memory + ?Sized>(
    pair: &mut Pair,
    incoming: &Incoming,
    payload: Payload<'_>,
    domain: &Domain,
    memory: &mut M,
) -> Result<(), Cause> {
    // All places are checked before the first byte is placed.
    let places = message_places(pair, incoming, incoming.at, payload.count(), domain)?;
    let mut rest = payload.bytes();
    for (place, count) in places {
        let (now, later) = rest.split_at(rest.len().min(count.to_usize()));
        rest = later;
        if !now.is_empty() {
            let written = pair.placements.write(place, now, None, memory);
            written.map_err(|_| Cause::DdpCatastrophic)?;
        }
    }
    Ok(())
}

/// Places of a message's `bytes` bytes from `at` on.
pub(super) fn message_places(
    pair: &Pair,
    incoming: &Incoming,
    at: u32,
    bytes: u32,
    domain: &Domain,
) -> Result<Places, Cause> {
    let mut places = Places::new();
    let (mut skip, mut rest) = (at, bytes);
    for piece in &incoming.receive.pieces {
        let from = skip.min(piece.bytes);
        skip -= from;
        let count = rest.min(piece.bytes - from);
        rest -= count;
        if count > 0 {
            let offset = piece.offset.wrapping_add(from.into());
            // Memory of ours is gone: not a fault of the peer.
            let place = domain
                .check(
                    pair.id,
                    piece.stag,
                    offset,
                    count.into(),
                    Access::LOCAL_WRITE,
                )
                .map_err(|_| Cause::LocalCatastrophic)?;
            places.push((place, count));
        }
    }
    Ok(places)
}

fn invalidate(pair: &mut Pair, stag: Stag, domain: &mut Domain) -> Result<(), Cause> {
    domain
        .invalidate(pair.id, stag)
        .map_err(|fault| match fault {
            Fault::Access => Cause::CannotInvalidate,
            other => request_cause(other),
        })
}

fn request_came<M: Memory + ?Sized>(
    pair: &mut Pair,
    message: &Untagged<'_>,
    domain: &Domain,
    memory: &mut M,
) -> Result<(), Cause> {
    // The peer knows the depth since the start: a request beyond it is its fault.
    if pair.responses.is_full() {
        return Err(Cause::NoBuffer);
    }
    let response = if message.opcode == Opcode::ReadRequest {
        let request = single(message, READ_BYTES, ReadRequest::read)?;
        // Checked as a whole now, and part by part while it is sent.
        if request.count > 0 {
            check_read(pair.id, &request, 0, request.count, domain)?;
        }
        Response::Read { request, at: 0 }
    } else {
        let request = single(message, ATOMIC_BYTES, AtomicRequest::read)?;
        let place = check_atomic(pair.id, &request, domain)?;
        // Earlier reads must see the old word.
        let original = if pair.responses.has_read() {
            None
        } else {
            let changed = pair.placements.change(place, &request, memory);
            Some(changed.map_err(|_| Cause::LocalCatastrophic)?)
        };
        Response::Atomic { request, original }
    };
    pair.msn_in.advance(QUEUE_REQUEST);
    pair.responses.push(response);
    Ok(())
}

/// A message of one segment of exactly `bytes` bytes.
fn single<T>(
    message: &Untagged<'_>,
    bytes: usize,
    read: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<T, Cause> {
    if message.offset != 0 {
        return Err(Cause::InvalidOffset);
    }
    let payload = message.payload.bytes();
    if payload.len() > bytes {
        return Err(Cause::TooLong);
    }
    if !message.last || payload.len() < bytes {
        return Err(Cause::OperationUnspecified);
    }
    read(payload).ok_or(Cause::OperationUnspecified)
}
