//! A received segment: checked by DDP, then by RDMAP, then placed (RFC 5041, section 7; RFC 5040,
//! section 7).
//!
//! Must stay true: nothing is placed before every check of its segment has passed.

use super::{Answer, Outstanding, Pair, State, completion, request_cause, tagged_cause};
use crate::domain::{Access, Domain};
use crate::memory::{Memory, RegionId};
use crate::piece::{Piece, Receive, total};
use crate::refusal::Fault;
use crate::wire::ddp::{
    ATOMIC_BYTES, AtomicRequest, AtomicResponse, Header, IMMEDIATE_BYTES, Opcode,
    QUEUE_ATOMIC_RESPONSE, QUEUE_REQUEST, QUEUE_SEND, QUEUE_TERMINATE, QUEUES, READ_BYTES,
    ReadRequest, Target,
};
use crate::wire::terminate::{Cause, Terminate};
use crate::wire::word64;
use crate::work::{Completion, Kind, Status};
use crate::{End, Stag};

/// A message in progress, of several segments.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) receive: Receive,
    /// True if the receive was posted.
    pub(super) is_posted: bool,
    opcode: Opcode,
    /// Bytes received so far.
    at: u32,
    room: u32,
}

/// An untagged segment after DDP's checks.
struct Untagged<'a> {
    last: bool,
    opcode: Opcode,
    invalidate: Stag,
    msn: u32,
    offset: u32,
    payload: &'a [u8],
}

/// A unit's position in the stream and its CRC.
pub(super) type Mark = (u64, u32);

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
        if let Err(cause) = self.segment(segment, mark, domain, memory) {
            let is_read = Header::read(segment)
                .is_some_and(|(header, _)| header.opcode == Opcode::ReadRequest as u8);
            self.fail(Terminate::blaming(cause, segment, is_read));
        }
        // The peer has sent, so this side may send.
        self.may_send = true;
    }

    /// True if `segment` begins a message without a receive, and the message may wait.
    pub(super) fn lacks_receive(&self, segment: &[u8], domain: &Domain) -> bool {
        if !self.options.waits_for_receives || self.incoming.is_some() {
            return false;
        }
        let is_there = match self.options.shared {
            Some(shared) => {
                self.received < self.options.receive_depth && domain.shared_receives(shared) > 0
            }
            None => !self.receives.is_empty(),
        };
        let is_message = |target| {
            let Target::Untagged { queue, .. } = target else {
                return false;
            };
            queue == QUEUE_SEND
        };
        Header::read(segment).is_some_and(|(header, _)| {
            let is_there = match Opcode::of(header.opcode) {
                Some(opcode) if self.needs_no_receive(opcode) => self.has_room_for_received(),
                _ => is_there,
            };
            !is_there && is_message(header.target)
        })
    }

    /// True for immediate data that completes without a receive.
    fn needs_no_receive(&self, opcode: Opcode) -> bool {
        self.options.immediate_without_receive && opcode == Opcode::Immediate
    }

    /// True while the number of unpolled completions is below its bound.
    fn has_room_for_received(&self) -> bool {
        self.received < self.options.receive_depth
    }

    fn segment<M: Memory + ?Sized>(
        &mut self,
        segment: &[u8],
        mark: Mark,
        domain: &mut Domain,
        memory: &mut M,
    ) -> Result<(), Cause> {
        let (header, payload) = Header::read(segment).ok_or(Cause::Framing)?;
        match header.target {
            Target::Tagged { stag, offset } => {
                if !header.ddp_version {
                    return Err(Cause::TaggedVersion);
                }
                if !header.rdmap_version {
                    return Err(Cause::RdmapVersion);
                }
                match Opcode::of(header.opcode) {
                    Some(Opcode::Write) => {
                        self.write_came(stag, offset, payload, mark, domain, memory)
                    }
                    Some(Opcode::ReadResponse) => {
                        let place = Piece {
                            stag,
                            offset,
                            bytes: payload.len() as u32,
                        };
                        self.read_answered(place, header.last, payload, mark, domain, memory)
                    }
                    _ => Err(Cause::UnexpectedOpcode),
                }
            }
            Target::Untagged {
                invalidate,
                queue,
                msn,
                offset,
            } => {
                if !header.ddp_version {
                    return Err(Cause::UntaggedVersion);
                }
                if queue as usize >= QUEUES {
                    return Err(Cause::InvalidQueue);
                }
                if !header.rdmap_version {
                    return Err(Cause::RdmapVersion);
                }
                let opcode = Opcode::of(header.opcode).ok_or(Cause::UnexpectedOpcode)?;
                if opcode.queue() != Some(queue) {
                    return Err(Cause::UnexpectedOpcode);
                }
                if msn != self.msn_in[queue as usize] {
                    return Err(Cause::InvalidMsn);
                }
                let untagged = Untagged {
                    last: header.last,
                    opcode,
                    invalidate,
                    msn,
                    offset,
                    payload,
                };
                match queue {
                    QUEUE_SEND => self.message_came(&untagged, domain, memory),
                    QUEUE_REQUEST => self.request_came(&untagged, domain, memory),
                    QUEUE_TERMINATE => {
                        let terminate =
                            Terminate::read(payload).ok_or(Cause::OperationUnspecified)?;
                        self.finish(End::Received(terminate));
                        Ok(())
                    }
                    QUEUE_ATOMIC_RESPONSE => self.atomic_answered(&untagged),
                    _ => Err(Cause::InvalidQueue),
                }
            }
        }
    }

    fn write_came<M: Memory + ?Sized>(
        &mut self,
        stag: Stag,
        offset: u64,
        payload: &[u8],
        mark: Mark,
        domain: &Domain,
        memory: &mut M,
    ) -> Result<(), Cause> {
        // A message of no bytes accesses no memory, so nothing is checked.
        if payload.is_empty() {
            return Ok(());
        }
        let bytes = payload.len() as u64;
        let place = domain
            .check(self.id, stag, offset, bytes, Access::REMOTE_WRITE)
            .map_err(tagged_cause)?;
        self.place(place, payload, Some(mark), memory)
    }

    fn read_answered<M: Memory + ?Sized>(
        &mut self,
        place: Piece,
        last: bool,
        payload: &[u8],
        mark: Mark,
        domain: &Domain,
        memory: &mut M,
    ) -> Result<(), Cause> {
        let (into, at) = match self.outstanding.front() {
            Some(Outstanding::Ready) if payload.is_empty() && last => {
                self.outstanding.pop_front();
                return Ok(());
            }
            Some(Outstanding::Read { into, at }) => (*into, *at),
            _ => return Err(Cause::UnexpectedOpcode),
        };
        if place.stag != into.stag {
            return Err(Cause::TaggedStag);
        }
        // `into` was checked when it was posted: the sum fits into 64 bits.
        if place.offset != into.offset + u64::from(at) || place.bytes > into.bytes - at {
            return Err(Cause::TaggedBounds);
        }
        let now = at + place.bytes;
        if last && now != into.bytes {
            return Err(Cause::TaggedBounds);
        }
        if !payload.is_empty() {
            let bytes = place.bytes.into();
            let target = domain
                .check(
                    self.id,
                    place.stag,
                    place.offset,
                    bytes,
                    Access::LOCAL_WRITE,
                )
                .map_err(tagged_cause)?;
            self.place(target, payload, Some(mark), memory)?;
        }
        if last {
            self.outstanding.pop_front();
            self.answered(now, None);
        } else if let Some(Outstanding::Read { at, .. }) = self.outstanding.front_mut() {
            *at = now;
        }
        Ok(())
    }

    fn atomic_answered(&mut self, message: &Untagged<'_>) -> Result<(), Cause> {
        let Some(&Outstanding::Atomic { identifier }) = self.outstanding.front() else {
            return Err(Cause::UnexpectedOpcode);
        };
        let response = single(message, 12, AtomicResponse::read)?;
        if response.identifier != identifier {
            return Err(Cause::OperationUnspecified);
        }
        self.msn_in[QUEUE_ATOMIC_RESPONSE as usize] = message.msn.wrapping_add(1);
        self.outstanding.pop_front();
        self.answered(8, Some(response.original));
        Ok(())
    }

    /// The oldest work that waits for its response is done.
    fn answered(&mut self, bytes: u32, original: Option<u64>) {
        if let Some(index) = self.oldest_gone() {
            let post = &self.works[index].post;
            let over = Completion {
                bytes,
                original,
                ..completion(post.id, post.work.kind(), Status::Done)
            };
            self.work_is_over(index, over);
        }
    }

    fn message_came<M: Memory + ?Sized>(
        &mut self,
        message: &Untagged<'_>,
        domain: &mut Domain,
        memory: &mut M,
    ) -> Result<(), Cause> {
        let bytes = message.payload.len() as u32;
        let is_immediate = matches!(
            message.opcode,
            Opcode::Immediate | Opcode::ImmediateSolicited
        );
        let mut incoming = match self.incoming.take() {
            Some(incoming) => incoming,
            None => self.begin_message(message.opcode, domain)?,
        };
        let checked = if incoming.opcode != message.opcode {
            Err(Cause::UnexpectedOpcode)
        } else if message.offset != incoming.at {
            Err(Cause::InvalidOffset)
        } else if is_immediate {
            single(message, IMMEDIATE_BYTES, |_| Some(()))
        } else if bytes > incoming.room - incoming.at {
            Err(Cause::TooLong)
        } else {
            self.scatter(&incoming, message.payload, domain, memory)
        };
        // Put back, so that a fault flushes its buffer.
        incoming.at += if checked.is_ok() { bytes } else { 0 };
        let at = incoming.at;
        self.incoming = Some(incoming);
        checked?;
        if !message.last {
            return Ok(());
        }
        let invalidated = if message.opcode.invalidates() {
            self.invalidate(message.invalidate, domain)?;
            Some(message.invalidate)
        } else {
            None
        };
        if let Some(incoming) = self.incoming.take() {
            self.msn_in[QUEUE_SEND as usize] = message.msn.wrapping_add(1);
            self.complete_receive(Completion {
                bytes: at,
                immediate: is_immediate.then(|| word64(message.payload, 0)).flatten(),
                invalidated,
                solicited: message.opcode.is_solicited(),
                ..completion(incoming.receive.id, Kind::Receive, Status::Done)
            });
        }
        Ok(())
    }

    fn begin_message(&mut self, opcode: Opcode, domain: &mut Domain) -> Result<Incoming, Cause> {
        if self.needs_no_receive(opcode) {
            if !self.has_room_for_received() {
                return Err(Cause::NoBuffer);
            }
            return Ok(Incoming {
                receive: Receive {
                    id: 0,
                    pieces: crate::piece::Pieces::new(),
                },
                is_posted: false,
                opcode,
                at: 0,
                room: 0,
            });
        }
        let receive = match self.options.shared {
            // The number of unpolled completions is bounded for shared receives, too.
            Some(_) if self.received >= self.options.receive_depth => None,
            Some(shared) => domain.take_shared(shared),
            None => self.receives.pop_front(),
        };
        let receive = receive.ok_or(Cause::NoBuffer)?;
        // A shared receive was not checked for this pair yet.
        let room = total(&receive.pieces).unwrap_or(0);
        Ok(Incoming {
            receive,
            is_posted: true,
            opcode,
            at: 0,
            room,
        })
    }

    /// Places a message's bytes from `incoming.at` on.
    fn scatter<M: Memory + ?Sized>(
        &mut self,
        incoming: &Incoming,
        payload: &[u8],
        domain: &Domain,
        memory: &mut M,
    ) -> Result<(), Cause> {
        let mut places = arrayvec::ArrayVec::<_, { crate::piece::PIECES_MAX }>::new();
        let (mut skip, mut rest) = (incoming.at, payload);
        for piece in &incoming.receive.pieces {
            let from = skip.min(piece.bytes);
            skip -= from;
            let (now, later) = rest.split_at(rest.len().min((piece.bytes - from) as usize));
            rest = later;
            if !now.is_empty() {
                let bytes = now.len() as u64;
                let offset = piece.offset.wrapping_add(from.into());
                // Memory of ours is gone: not a fault of the peer.
                let place = domain
                    .check(self.id, piece.stag, offset, bytes, Access::LOCAL_WRITE)
                    .map_err(|_| Cause::LocalCatastrophic)?;
                places.push((place, now));
            }
        }
        places
            .into_iter()
            .try_for_each(|(place, bytes)| self.place(place, bytes, None, memory))
    }

    fn invalidate(&mut self, stag: Stag, domain: &mut Domain) -> Result<(), Cause> {
        domain
            .invalidate(self.id, stag)
            .map_err(|fault| match fault {
                Fault::Access => Cause::CannotInvalidate,
                other => request_cause(other),
            })
    }

    fn request_came<M: Memory + ?Sized>(
        &mut self,
        message: &Untagged<'_>,
        domain: &Domain,
        memory: &mut M,
    ) -> Result<(), Cause> {
        if self.answers.len() >= usize::from(self.options.ird) {
            return Err(Cause::NoBuffer);
        }
        let answer = if message.opcode == Opcode::ReadRequest {
            let request = single(message, READ_BYTES, ReadRequest::read)?;
            if request.count > 0 {
                self.check_read(&request, 0, request.count, domain)?;
            }
            Answer::Read { request, at: 0 }
        } else {
            let request = single(message, ATOMIC_BYTES, AtomicRequest::read)?;
            self.check_atomic(&request, domain)?;
            // Earlier reads must see the old word.
            let reads = self
                .answers
                .iter()
                .any(|one| matches!(one, Answer::Read { .. }));
            let original = if reads {
                None
            } else {
                Some(self.change(&request, domain, memory)?)
            };
            Answer::Atomic { request, original }
        };
        self.msn_in[QUEUE_REQUEST as usize] = message.msn.wrapping_add(1);
        self.answers.push_back(answer);
        Ok(())
    }

    /// Location of a read response's `bytes` bytes from `at` on.
    pub(super) fn check_read(
        &self,
        request: &ReadRequest,
        at: u32,
        bytes: u32,
        domain: &Domain,
    ) -> Result<(RegionId, u64), Cause> {
        let offset = request
            .source_offset
            .checked_add(at.into())
            .ok_or(Cause::RequestWrap)?;
        domain
            .check(
                self.id,
                request.source,
                offset,
                bytes.into(),
                Access::REMOTE_READ,
            )
            .map_err(request_cause)
    }

    fn check_atomic(
        &self,
        request: &AtomicRequest,
        domain: &Domain,
    ) -> Result<(RegionId, u64), Cause> {
        request.apply(0).ok_or(Cause::UnexpectedOpcode)?;
        let place = domain
            .check(
                self.id,
                request.stag,
                request.offset,
                8,
                Access::REMOTE_ATOMIC,
            )
            .map_err(request_cause)?;
        if !request.offset.is_multiple_of(8) || !place.1.is_multiple_of(8) {
            return Err(Cause::StreamCatastrophic);
        }
        Ok(place)
    }

    /// Executes an atomic; returns the old word.
    pub(super) fn change<M: Memory + ?Sized>(
        &mut self,
        request: &AtomicRequest,
        domain: &Domain,
        memory: &mut M,
    ) -> Result<u64, Cause> {
        let (region, offset) = self.check_atomic(request, domain)?;
        self.forget_ahead(region, offset, 8);
        let mut change = |word| request.apply(word).unwrap_or(word);
        let changed = memory.update(region, offset, &mut change);
        changed.map_err(|_| Cause::LocalCatastrophic)
    }

    /// Writes to memory, unless that was done early.
    fn place<M: Memory + ?Sized>(
        &mut self,
        (region, offset): (RegionId, u64),
        bytes: &[u8],
        mark: Option<Mark>,
        memory: &mut M,
    ) -> Result<(), Cause> {
        if let Some(mark) = mark
            && self.was_placed(region, offset, bytes.len(), mark)
        {
            return Ok(());
        }
        self.forget_ahead(region, offset, bytes.len() as u64);
        let placed = memory.place(region, offset, bytes);
        placed.map_err(|_| Cause::DdpCatastrophic)
    }

    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open
    }
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
    if message.payload.len() > bytes {
        return Err(Cause::TooLong);
    }
    if !message.last || message.payload.len() < bytes {
        return Err(Cause::OperationUnspecified);
    }
    read(message.payload).ok_or(Cause::OperationUnspecified)
}
