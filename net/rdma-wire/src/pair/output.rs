//! The next unit to send: last data, responses and work in turn, each message completely before the
//! next (RFC 5041, section 5.2: sequential messages are the simplest, and every peer accepts them).
//!
//! A long unit without a CRC may be lent to the owner, which sends its payload from its place
//! ([`Pair::lend`]). It is done once the stream has taken all of it.
//!
//! Must stay true: a unit is at most as long as configured; local memory is checked again when it
//! is read, since it may have been deregistered meanwhile; nothing is sent between the parts of a
//! unit.

use super::responses::{Response, check_atomic, check_read};
use super::sends::Outstanding;
use super::units::{Lent, Part, Source};
use super::{Pair, Ready, SEGMENT_BYTES_MIN, State};
use crate::Stag;
use crate::domain::{Access, Domain, PairId};
use crate::framing::tail_bytes;
use crate::memory::{Gone, Memory, RegionId};
use crate::piece::{Fault, Piece, Pieces, message_bytes};
use crate::wire::ddp::{
    AtomicRequest, AtomicResponse, Header, Opcode, QUEUE_ATOMIC_RESPONSE, QUEUE_REQUEST,
    QUEUE_SEND, QUEUE_TERMINATE, ReadRequest, Target,
};
use crate::wire::terminate::{Cause, Terminate};
use crate::work::{Status, Work};
use sidecore_bare::width::{ToU64, ToUsize};

/// Least payload of a unit that is lent: several shorter ones leave in one copy.
const LENT_BYTES_MIN: u32 = 16 << 10;
/// Padding and the CRC's field, at their longest.
const TAIL: [u8; 7] = [0; 7];

/// The message being sent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Current {
    /// The first unsent work; its bytes sent so far.
    Work(u32),
    /// The first response.
    Response,
}

/// Fault of the memory that a message is read from.
enum Trouble {
    /// Of our own work.
    Local(Fault),
    /// Of the peer's request.
    Peer(Cause),
}

impl Pair {
    /// Writes the next data to send to the front of `target`: one unit, or a part of the start
    /// frame; 0 if there is none now. `target` has at least [`SEGMENT_BYTES_MIN`] bytes.
    pub fn transmit<M: Memory + ?Sized>(
        &mut self,
        target: &mut [u8],
        domain: &Domain,
        memory: &mut M,
    ) -> usize {
        if self.handshake.has_output() {
            let count = self.handshake.write(target);
            // A rejection is the last data.
            if !self.handshake.has_output() && self.state == State::Ending {
                self.state = State::Ended;
            }
            return count;
        }
        // Its owner sends the unit that it has borrowed.
        if self.lent.is_some() {
            return 0;
        }
        let room = target.len().min(self.options.segment_bytes);
        if room < SEGMENT_BYTES_MIN {
            return 0;
        }
        let target = &mut target[..room];
        if self.state == State::Open && self.may_send {
            // First of all, so that the responder may send, too.
            if let Some(ready) = self.ready.take() {
                return transmit_ready(self, ready, target);
            }
            match self.transmit_message(target, domain, memory) {
                Ok(count) => return count,
                Err(Trouble::Peer(cause)) => self.fail(Terminate::new(cause)),
                Err(Trouble::Local(fault)) => {
                    // Its completion has the reason; everything else is flushed.
                    let status = Status::Local(fault);
                    self.sends.unsent_failed(status, &mut self.completions);
                    self.fail(Terminate::new(Cause::LocalCatastrophic));
                }
            }
        }
        if let Some(farewell) = self.farewell.take() {
            self.state = State::Ended;
            let bytes = farewell.bytes();
            return self
                .units
                .message(target, QUEUE_TERMINATE, Opcode::Terminate, &bytes);
        }
        0
    }

    /// True if [`Self::transmit`] has data to send.
    #[must_use]
    pub fn wants_to_transmit(&self) -> bool {
        self.handshake.has_output()
            || self.farewell.is_some()
            || self.lent.is_some()
            || (self.state == State::Open
                && self.may_send
                && (self.ready.is_some()
                    || self.current.is_some()
                    || !self.responses.is_empty()
                    || self.sends.may_begin()))
    }

    /// Lends the next unit, if it is a long one without a CRC: then its owner sends the parts that
    /// [`Self::lent`] shows, and calls [`Self::taken`].
    pub fn lend(&mut self, domain: &Domain) -> bool {
        if self.lent.is_none() {
            self.lent = lendable(self, domain);
        }
        self.lent.is_some()
    }

    /// True while a unit is lent.
    #[must_use]
    pub fn is_lending(&self) -> bool {
        self.lent.is_some()
    }

    /// The parts of the unit that is lent which the stream has not taken, in their order.
    ///
    /// # Errors
    /// [`Gone`]: its memory was deregistered, and the stream cannot go on.
    pub fn lent<'p>(&'p self, domain: &Domain, part: &mut dyn FnMut(Part<'p>)) -> Result<(), Gone> {
        let Some(lent) = &self.lent else {
            return Ok(());
        };
        let head = lent.gone.min(lent.head.len());
        if head < lent.head.len() {
            part(Part::Bytes(&lent.head[head..]));
        }
        let payload = (lent.gone - head).min(lent.bytes.to_usize());
        let from = u32::try_from(payload).unwrap_or(lent.bytes);
        if from < lent.bytes {
            let places = lent_places(self, lent, from, domain, &mut |region, offset, count| {
                part(Part::Memory(region, offset, count));
            });
            places.ok_or(Gone)?;
        }
        let tail = lent.gone - head - payload;
        part(Part::Bytes(&TAIL[tail..lent.tail]));
        Ok(())
    }

    /// The stream has taken the next `count` bytes of the unit that is lent; true if that was all.
    pub fn taken(&mut self, count: usize) -> bool {
        let Some(lent) = &mut self.lent else {
            return true;
        };
        lent.gone += count;
        if lent.gone < lent.count() {
            return false;
        }
        let Some(lent) = self.lent.take() else {
            return true;
        };
        let segment = lent.count() - lent.tail - 2;
        self.units.framer.pass(segment);
        // Everything was flushed otherwise.
        if self.state == State::Open {
            end_lent(self, &lent);
        }
        true
    }

    fn transmit_message<M: Memory + ?Sized>(
        &mut self,
        target: &mut [u8],
        domain: &Domain,
        memory: &mut M,
    ) -> Result<usize, Trouble> {
        let current = match self.current {
            Some(current) => current,
            None => {
                let Some(begun) = choose(self) else {
                    return Ok(0);
                };
                self.current = Some(begun);
                begun
            }
        };
        match current {
            Current::Response => self.transmit_response(target, domain, memory),
            Current::Work(at) => self.transmit_work(target, at, domain, memory),
        }
    }

    fn transmit_response<M: Memory + ?Sized>(
        &mut self,
        target: &mut [u8],
        domain: &Domain,
        memory: &mut M,
    ) -> Result<usize, Trouble> {
        let (count, is_whole) = match self.responses.first() {
            None => (0, true),
            Some(Response::Atomic { request, original }) => {
                let original = match original {
                    Some(original) => original,
                    None => self
                        .change(&request, domain, memory)
                        .map_err(Trouble::Peer)?,
                };
                let response = AtomicResponse {
                    identifier: request.identifier,
                    original,
                };
                let (queue, opcode) = (QUEUE_ATOMIC_RESPONSE, Opcode::AtomicResponse);
                let bytes = response.bytes();
                (self.units.message(target, queue, opcode, &bytes), true)
            }
            Some(Response::Read { request, at }) => {
                let place = response_place(&request, at);
                let header = Header::new(false, Opcode::ReadResponse, place);
                let (bytes, last) = self.units.part(target.len(), &header, request.count - at);
                // A read of no bytes names no memory.
                let source = if bytes == 0 {
                    None
                } else {
                    let place = check_read(self.id, &request, at, bytes, domain);
                    Some(place.map_err(Trouble::Peer)?)
                };
                let header = Header { last, ..header };
                let count = self
                    .units
                    .write(target, &header, bytes, |target| match source {
                        None => Ok(()),
                        Some((region, offset)) => memory
                            .fetch(region, offset, target)
                            .map_err(|_| Trouble::Peer(Cause::LocalCatastrophic)),
                    })?;
                self.responses.advance(bytes);
                (count, last)
            }
        };
        if is_whole {
            self.responses.pop();
            self.current = None;
        }
        Ok(count)
    }

    /// Executes an atomic that had to wait for reads; returns the old word.
    fn change<M: Memory + ?Sized>(
        &mut self,
        request: &AtomicRequest,
        domain: &Domain,
        memory: &mut M,
    ) -> Result<u64, Cause> {
        let place = check_atomic(self.id, request, domain)?;
        let changed = self.placements.change(place, request, memory);
        changed.map_err(|_| Cause::LocalCatastrophic)
    }

    fn transmit_work<M: Memory + ?Sized>(
        &mut self,
        target: &mut [u8],
        at: u32,
        domain: &Domain,
        memory: &mut M,
    ) -> Result<usize, Trouble> {
        let Some(post) = self.sends.unsent() else {
            self.current = None; // never: it was begun
            return Ok(0);
        };
        let Some((opcode, place, pieces)) = self.message(&post.work, at) else {
            return Ok(transmit_short_work(self, target));
        };
        let whole = message_bytes(pieces).unwrap_or(0);
        let header = Header::new(false, opcode, place);
        let (bytes, last) = self.units.part(target.len(), &header, whole - at);
        let header = Header { last, ..header };
        let count = self.units.write(target, &header, bytes, |target| {
            gather(self.id, pieces, at, target, domain, memory).map_err(Trouble::Local)
        })?;
        self.end_part(at + bytes, last, opcode != Opcode::Write);
        Ok(count)
    }

    /// A message or write up to `at` was sent.
    fn end_part(&mut self, at: u32, last: bool, is_send: bool) {
        if !last {
            self.current = Some(Current::Work(at));
            return;
        }
        // All segments of a message have its number.
        if is_send {
            self.units.end_message(QUEUE_SEND);
        }
        self.current = None;
        self.sends.sent(at, &mut self.completions);
    }

    /// The message or write of some work from `at` on; none for other work.
    fn message<'w>(&self, work: &'w Work, at: u32) -> Option<(Opcode, Target, &'w Pieces)> {
        match work {
            Work::Send {
                pieces,
                invalidate,
                solicited,
            } => {
                let opcode = match (invalidate.is_some(), solicited) {
                    (false, false) => Opcode::Send,
                    (true, false) => Opcode::SendInvalidate,
                    (false, true) => Opcode::SendSolicited,
                    (true, true) => Opcode::SendSolicitedInvalidate,
                };
                let place = self.units.target(QUEUE_SEND, *invalidate, at);
                Some((opcode, place, pieces))
            }
            Work::Write { pieces, remote } => {
                let place = Target::Tagged {
                    stag: remote.stag,
                    offset: remote.offset.wrapping_add(at.into()),
                };
                Some((Opcode::Write, place, pieces))
            }
            Work::Immediate { .. } | Work::Read { .. } | Work::Atomic { .. } => None,
        }
    }
}

fn lendable(pair: &mut Pair, domain: &Domain) -> Option<Lent> {
    let is_ready = pair.state == State::Open && pair.may_send && pair.ready.is_none();
    if !is_ready || pair.handshake.has_output() {
        return None;
    }
    if pair.current.is_none() {
        pair.current = choose(pair);
    }
    let (source, opcode, place, at, whole) = match pair.current? {
        Current::Response => {
            let Response::Read { request, at } = pair.responses.first()? else {
                return None;
            };
            let place = response_place(&request, at);
            let whole = request.count;
            (
                Source::Read(request),
                Opcode::ReadResponse,
                place,
                at,
                whole,
            )
        }
        Current::Work(at) => {
            let work = &pair.sends.unsent()?.work;
            let (opcode, place, pieces) = pair.message(work, at)?;
            let whole = message_bytes(pieces)?;
            let source = match opcode {
                Opcode::Write => Source::Write(pieces.clone()),
                _ => Source::Send(pieces.clone()),
            };
            (source, opcode, place, at, whole)
        }
    };
    let header = Header::new(false, opcode, place);
    let rest = whole.checked_sub(at)?;
    let room = pair.options.segment_bytes;
    let (bytes, last) = pair.units.part(room, &header, rest);
    if bytes < LENT_BYTES_MIN {
        return None;
    }
    let header = Header { last, ..header };
    let lent = Lent {
        head: pair.units.head(&header, bytes)?,
        source,
        at,
        bytes,
        last,
        tail: tail_bytes(header.count() + bytes.to_usize()),
        gone: 0,
    };
    // One whose memory is gone is sent, and fails, as any other.
    let is_there = lent_places(pair, &lent, 0, domain, &mut |_, _, _| {});
    is_there.is_some().then_some(lent)
}

fn end_lent(pair: &mut Pair, lent: &Lent) {
    let at = lent.at + lent.bytes;
    match &lent.source {
        Source::Read(_) => {
            pair.responses.advance(lent.bytes);
            if lent.last {
                pair.responses.pop();
                pair.current = None;
            }
        }
        Source::Send(_) | Source::Write(_) => {
            let is_send = matches!(lent.source, Source::Send(_));
            pair.end_part(at, lent.last, is_send);
        }
    }
}

/// Places of the lent payload's bytes from `from` on; none if they are not registered.
fn lent_places(
    pair: &Pair,
    lent: &Lent,
    from: u32,
    domain: &Domain,
    place: &mut dyn FnMut(RegionId, u64, usize),
) -> Option<()> {
    let (at, bytes) = (lent.at + from, lent.bytes - from);
    match &lent.source {
        Source::Read(request) => {
            let (region, offset) = check_read(pair.id, request, at, bytes, domain).ok()?;
            place(region, offset, bytes.to_usize());
            Some(())
        }
        Source::Send(pieces) | Source::Write(pieces) => {
            each_place(pair.id, pieces, at, bytes.to_usize(), domain, place).ok()
        }
    }
}

fn transmit_ready(pair: &mut Pair, ready: Ready, target: &mut [u8]) -> usize {
    match ready {
        Ready::Empty => pair.units.empty(target),
        Ready::Write => {
            // Of no bytes, so the steering tag is not checked (RFC 6581, section 9.2).
            let nowhere = Target::Tagged {
                stag: Stag(0),
                offset: 0,
            };
            pair.units.short(target, Opcode::Write, nowhere, &[])
        }
        Ready::Read => {
            let request = ReadRequest {
                sink: Stag(0),
                sink_offset: 0,
                count: 0,
                source: Stag(0),
                source_offset: 0,
            };
            // No work of the owner waits for this response.
            pair.sends.outstanding.push_back(Outstanding::Ready);
            let bytes = request.bytes();
            pair.units
                .message(target, QUEUE_REQUEST, Opcode::ReadRequest, &bytes)
        }
    }
}

/// Sends the first unsent work, which fits into one unit.
fn transmit_short_work(pair: &mut Pair, target: &mut [u8]) -> usize {
    let Some(post) = pair.sends.unsent() else {
        return 0;
    };
    let (count, bytes) = match post.work {
        Work::Immediate { value, solicited } => {
            let opcode = match solicited {
                false => Opcode::Immediate,
                true => Opcode::ImmediateSolicited,
            };
            let bytes = value.to_be_bytes();
            (pair.units.message(target, QUEUE_SEND, opcode, &bytes), 8)
        }
        Work::Read { into, remote } => {
            let request = ReadRequest {
                sink: into.stag,
                sink_offset: into.offset,
                count: into.bytes,
                source: remote.stag,
                source_offset: remote.offset,
            };
            let read = Outstanding::Read { into, at: 0 };
            pair.sends.outstanding.push_back(read);
            let (queue, bytes) = (QUEUE_REQUEST, request.bytes());
            let count = pair
                .units
                .message(target, queue, Opcode::ReadRequest, &bytes);
            (count, 0)
        }
        Work::Atomic { atomic, remote } => {
            let identifier = pair.sends.next_identifier();
            let atomic_request = Outstanding::Atomic { identifier };
            pair.sends.outstanding.push_back(atomic_request);
            let (queue, bytes) = (QUEUE_REQUEST, atomic.request(remote, identifier).bytes());
            let count = pair
                .units
                .message(target, queue, Opcode::AtomicRequest, &bytes);
            (count, 0)
        }
        Work::Send { .. } | Work::Write { .. } => return 0, // never: `transmit_work` sends them
    };
    pair.current = None;
    pair.sends.sent(bytes, &mut pair.completions);
    count
}

/// The next message, responses and work in turn: neither a peer that reads without a pause nor
/// an owner that posts without one keeps the other from being served.
fn choose(pair: &mut Pair) -> Option<Current> {
    let (responses, works) = (!pair.responses.is_empty(), pair.sends.may_begin());
    let is_response = responses && (pair.response_first || !works);
    pair.response_first = !is_response;
    if is_response {
        Some(Current::Response)
    } else {
        works.then_some(Current::Work(0))
    }
}

/// The peer's place of a response's bytes from `at` on.
fn response_place(request: &ReadRequest, at: u32) -> Target {
    Target::Tagged {
        stag: request.sink,
        // The sink is the peer's: whether its range wraps is for the peer to check.
        offset: request.sink_offset.wrapping_add(at.into()),
    }
}

/// Reads a message's bytes from `at` on into all of `target`.
fn gather<M: Memory + ?Sized>(
    id: PairId,
    pieces: &[Piece],
    at: u32,
    mut target: &mut [u8],
    domain: &Domain,
    memory: &mut M,
) -> Result<(), Fault> {
    let mut outcome = Ok(());
    each_place(
        id,
        pieces,
        at,
        target.len(),
        domain,
        &mut |region, offset, count| {
            let (now, later) = std::mem::take(&mut target).split_at_mut(count);
            target = later;
            if memory.fetch(region, offset, now).is_err() {
                outcome = Err(Fault::Bounds);
            }
        },
    )?;
    outcome
}

/// Passes on where a message's `bytes` bytes from `at` on are, each place with its length.
fn each_place(
    id: PairId,
    pieces: &[Piece],
    at: u32,
    bytes: usize,
    domain: &Domain,
    place: &mut dyn FnMut(RegionId, u64, usize),
) -> Result<(), Fault> {
    let (mut skip, mut rest) = (at, bytes);
    for piece in pieces {
        let from = skip.min(piece.bytes);
        skip -= from;
        let count = rest.min((piece.bytes - from).to_usize());
        rest -= count;
        if count > 0 {
            let offset = piece.offset.wrapping_add(from.into());
            // No right is needed: an owner may always read its regions.
            let found = domain.check(id, piece.stag, offset, count.to_u64(), Access::NONE)?;
            place(found.0, found.1, count);
        }
    }
    Ok(())
}
