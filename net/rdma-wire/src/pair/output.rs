//! The next unit to send: last data, responses and work in turn, each message completely before the
//! next (RFC 5041, section 5.2: sequential messages are the simplest, and every peer accepts them).
//!
//! Must stay true: a unit is at most as long as configured; local memory is checked again when it
//! is read, since it may have been deregistered meanwhile.

use super::{Answer, Outstanding, Pair, Progress, Ready, SEGMENT_BYTES_MIN, State, completion};
use crate::Stag;
use crate::domain::{Access, Domain, PairId};
use crate::memory::Memory;
use crate::piece::{Piece, total};
use crate::refusal::Fault;
use crate::wire::ddp::{
    AtomicResponse, Header, Opcode, QUEUE_ATOMIC_RESPONSE, QUEUE_REQUEST, QUEUE_SEND,
    QUEUE_TERMINATE, ReadRequest, Target,
};
use crate::wire::terminate::{Cause, Terminate};
use crate::work::{Completion, Status, Work};

/// The message being sent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Current {
    /// The work at `next`; its bytes sent so far.
    Work(u32),
    /// The first response.
    Answer,
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
        if self.start_gone < self.start_out.len() {
            return self.transmit_start(target);
        }
        let room = target.len().min(self.options.segment_bytes);
        if room < SEGMENT_BYTES_MIN {
            return 0;
        }
        let target = &mut target[..room];
        if self.state == State::Open && self.may_send {
            if let Some(ready) = self.ready.take() {
                return self.transmit_ready(ready, target);
            }
            match self.transmit_message(target, domain, memory) {
                Ok(count) => return count,
                Err(Trouble::Peer(cause)) => self.fail(Terminate::new(cause)),
                Err(Trouble::Local(fault)) => {
                    let post = &self.works[self.next].post;
                    let over = completion(post.id, post.work.kind(), Status::Local(fault));
                    self.work_is_over(self.next, over);
                    self.fail(Terminate::new(Cause::LocalCatastrophic));
                }
            }
        }
        if let Some(farewell) = self.farewell.take() {
            self.state = State::Ended;
            let place = untagged(QUEUE_TERMINATE, 1, 0);
            return self.unit(target, true, Opcode::Terminate, place, &farewell.bytes());
        }
        0
    }

    /// True if [`Self::transmit`] has data to send.
    #[must_use]
    pub fn wants_to_transmit(&self) -> bool {
        self.start_gone < self.start_out.len()
            || self.farewell.is_some()
            || (self.state == State::Open
                && self.may_send
                && (self.ready.is_some()
                    || self.current.is_some()
                    || !self.answers.is_empty()
                    || self.may_begin_work()))
    }

    fn transmit_start(&mut self, target: &mut [u8]) -> usize {
        let rest = &self.start_out[self.start_gone..];
        let count = rest.len().min(target.len());
        target[..count].copy_from_slice(&rest[..count]);
        self.start_gone += count;
        // A rejection is the last data.
        if self.start_gone == self.start_out.len() && self.state == State::Ending {
            self.state = State::Ended;
        }
        count
    }

    fn transmit_ready(&mut self, ready: Ready, target: &mut [u8]) -> usize {
        let nowhere = Target::Tagged {
            stag: Stag(0),
            offset: 0,
        };
        match ready {
            Ready::Empty => {
                let nothing = |_: &mut [u8]| Ok::<_, std::convert::Infallible>(());
                let written = self.framer.write(target, 0, nothing);
                written.unwrap_or_else(|never| match never {})
            }
            Ready::Write => self.unit(target, true, Opcode::Write, nowhere, &[]),
            Ready::Read => {
                let request = ReadRequest {
                    sink: Stag(0),
                    sink_offset: 0,
                    count: 0,
                    source: Stag(0),
                    source_offset: 0,
                };
                self.outstanding.push_back(Outstanding::Ready);
                let place = self.next_message(QUEUE_REQUEST);
                self.unit(target, true, Opcode::ReadRequest, place, &request.bytes())
            }
        }
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
                let Some(begun) = self.choose() else {
                    return Ok(0);
                };
                self.current = Some(begun);
                begun
            }
        };
        match current {
            Current::Answer => self.transmit_answer(target, domain, memory),
            Current::Work(at) => self.transmit_work(target, at, domain, memory),
        }
    }

    /// The next message, responses and work in turn.
    fn choose(&mut self) -> Option<Current> {
        let (answers, works) = (!self.answers.is_empty(), self.may_begin_work());
        let is_answer = answers && (self.answer_first || !works);
        self.answer_first = !is_answer;
        if is_answer {
            Some(Current::Answer)
        } else {
            works.then_some(Current::Work(0))
        }
    }

    fn may_begin_work(&self) -> bool {
        let Some(slot) = self.works.get(self.next) else {
            return false;
        };
        let waits = slot.post.fence && !self.outstanding.is_empty();
        let is_full = slot.post.work.is_answered() && self.outstanding.len() >= self.ord;
        !waits && !is_full
    }

    fn transmit_answer<M: Memory + ?Sized>(
        &mut self,
        target: &mut [u8],
        domain: &Domain,
        memory: &mut M,
    ) -> Result<usize, Trouble> {
        let (count, is_whole) = match self.answers.front() {
            None => (0, true),
            Some(&Answer::Atomic { request, original }) => {
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
                let place = self.next_message(QUEUE_ATOMIC_RESPONSE);
                let bytes = response.bytes();
                (
                    self.unit(target, true, Opcode::AtomicResponse, place, &bytes),
                    true,
                )
            }
            Some(&Answer::Read { request, at }) => {
                let place = Target::Tagged {
                    stag: request.sink,
                    offset: request.sink_offset.wrapping_add(at.into()),
                };
                let header = Header::new(false, Opcode::ReadResponse, place);
                let (bytes, last) = self.part(target, &header, request.count - at);
                let source = if bytes == 0 {
                    None
                } else {
                    let place = self.check_read(&request, at, bytes, domain);
                    Some(place.map_err(Trouble::Peer)?)
                };
                let header = Header { last, ..header };
                let count = self.framed(target, &header, bytes, |target| match source {
                    None => Ok(()),
                    Some((region, offset)) => memory
                        .fetch(region, offset, target)
                        .map_err(|_| Trouble::Peer(Cause::LocalCatastrophic)),
                })?;
                if let Some(Answer::Read { at, .. }) = self.answers.front_mut() {
                    *at += bytes;
                }
                (count, last)
            }
        };
        if is_whole {
            self.answers.pop_front();
            self.current = None;
        }
        Ok(count)
    }

    fn transmit_work<M: Memory + ?Sized>(
        &mut self,
        target: &mut [u8],
        at: u32,
        domain: &Domain,
        memory: &mut M,
    ) -> Result<usize, Trouble> {
        let Some(slot) = self.works.get(self.next) else {
            self.current = None; // never: it was begun
            return Ok(0);
        };
        let work = slot.post.work.clone();
        let (opcode, place, pieces) = match &work {
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
                let place = Target::Untagged {
                    invalidate: invalidate.unwrap_or(Stag(0)),
                    queue: QUEUE_SEND,
                    msn: self.msn_out[QUEUE_SEND as usize],
                    offset: at,
                };
                (opcode, place, pieces)
            }
            Work::Write { pieces, remote } => {
                let place = Target::Tagged {
                    stag: remote.stag,
                    offset: remote.offset.wrapping_add(at.into()),
                };
                (Opcode::Write, place, pieces)
            }
            Work::Immediate { value, solicited } => {
                let opcode = match solicited {
                    false => Opcode::Immediate,
                    true => Opcode::ImmediateSolicited,
                };
                let place = self.next_message(QUEUE_SEND);
                let count = self.unit(target, true, opcode, place, &value.to_be_bytes());
                self.work_has_gone(&work, 8);
                return Ok(count);
            }
            Work::Read { .. } | Work::Atomic { .. } => {
                return Ok(self.transmit_request(target, &work));
            }
        };
        let whole = total(pieces).unwrap_or(0);
        let header = Header::new(false, opcode, place);
        let (bytes, last) = self.part(target, &header, whole - at);
        let header = Header { last, ..header };
        let id = self.id;
        let count = self.framed(target, &header, bytes, |target| {
            gather(id, pieces, at, target, domain, memory).map_err(Trouble::Local)
        })?;
        if last {
            if matches!(work, Work::Send { .. }) {
                let msn = &mut self.msn_out[QUEUE_SEND as usize];
                *msn = msn.wrapping_add(1);
            }
            self.work_has_gone(&work, whole);
        } else {
            self.current = Some(Current::Work(at + bytes));
        }
        Ok(count)
    }

    fn transmit_request(&mut self, target: &mut [u8], work: &Work) -> usize {
        let count = match *work {
            Work::Read { into, remote } => {
                let request = ReadRequest {
                    sink: into.stag,
                    sink_offset: into.offset,
                    count: into.bytes,
                    source: remote.stag,
                    source_offset: remote.offset,
                };
                self.outstanding
                    .push_back(Outstanding::Read { into, at: 0 });
                let place = self.next_message(QUEUE_REQUEST);
                self.unit(target, true, Opcode::ReadRequest, place, &request.bytes())
            }
            Work::Atomic { atomic, remote } => {
                self.identifier = self.identifier.wrapping_add(1);
                let identifier = self.identifier;
                self.outstanding
                    .push_back(Outstanding::Atomic { identifier });
                let request = atomic.request(remote, identifier);
                let place = self.next_message(QUEUE_REQUEST);
                self.unit(target, true, Opcode::AtomicRequest, place, &request.bytes())
            }
            _ => 0,
        };
        self.work_has_gone(work, 0);
        count
    }

    /// The work at `next` was sent completely.
    fn work_has_gone(&mut self, work: &Work, bytes: u32) {
        let index = self.next;
        self.next += 1;
        self.current = None;
        let Some(slot) = self.works.get_mut(index) else {
            return;
        };
        slot.progress = Progress::Gone;
        if !work.is_answered() {
            let over = Completion {
                bytes,
                ..completion(slot.post.id, work.kind(), Status::Done)
            };
            self.work_is_over(index, over);
        }
    }

    /// Target of a new message of a queue.
    fn next_message(&mut self, queue: u32) -> Target {
        let msn = &mut self.msn_out[queue as usize];
        let own = *msn;
        *msn = own.wrapping_add(1);
        untagged(queue, own, 0)
    }

    /// Bytes of the next segment of a message with `rest` bytes left; true if it is the last.
    fn part(&self, target: &[u8], header: &Header, rest: u32) -> (u32, bool) {
        let room = self.framer.segment_bytes_max(target.len()) - header.count();
        let bytes = (room as u32).min(rest);
        (bytes, bytes == rest)
    }

    /// A unit of a short message.
    fn unit(
        &mut self,
        target: &mut [u8],
        last: bool,
        opcode: Opcode,
        place: Target,
        payload: &[u8],
    ) -> usize {
        let header = Header::new(last, opcode, place);
        let written = self.framed(target, &header, payload.len() as u32, |target| {
            target.copy_from_slice(payload);
            Ok::<_, std::convert::Infallible>(())
        });
        written.unwrap_or_else(|never| match never {})
    }

    fn framed<E>(
        &mut self,
        target: &mut [u8],
        header: &Header,
        bytes: u32,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<usize, E> {
        let count = header.count();
        self.framer.write(target, count + bytes as usize, |target| {
            header.write(target);
            fill(&mut target[count..])
        })
    }
}

fn untagged(queue: u32, msn: u32, offset: u32) -> Target {
    Target::Untagged {
        invalidate: Stag(0),
        queue,
        msn,
        offset,
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
    let mut skip = at;
    for piece in pieces {
        let from = skip.min(piece.bytes);
        skip -= from;
        let count = target.len().min((piece.bytes - from) as usize);
        let (now, later) = target.split_at_mut(count);
        target = later;
        if !now.is_empty() {
            let offset = piece.offset.wrapping_add(from.into());
            let place = domain.check(id, piece.stag, offset, count as u64, Access::NONE)?;
            memory
                .fetch(place.0, place.1, now)
                .map_err(|_| Fault::Bounds)?;
        }
    }
    Ok(())
}
