//! A plain model of the effects of a peer's segments on memory and completions.

mod requests;

use super::{PAIR, READS, RECEIVES, REGION_BYTES, REGION_COUNT, REGIONS, rights};
use sidecore_rdma_wire::wire::ddp::{
    AtomicRequest, AtomicResponse, Header, Opcode, ReadRequest, Target,
};
use sidecore_rdma_wire::wire::terminate::{Cause, Terminate};
use sidecore_rdma_wire::{
    Access, Buffers, Completion, Fault, Kind, Piece, Post, Receive, RegionId, Stag, Status, Work,
};
use std::collections::VecDeque;

/// The end of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Open,
    /// A fault was reported to the peer.
    Told(Cause),
    /// Any other end.
    Over,
}

/// A response that the pair waits for, of the work with this number.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wait {
    Read { id: u64, into: Piece, at: u32 },
    Atomic { id: u64, identifier: u32 },
}

/// A request of the peer without a response yet.
#[derive(Debug)]
enum Asked {
    Read {
        request: ReadRequest,
        at: u32,
    },
    Atomic {
        request: AtomicRequest,
        original: Option<u64>,
    },
}

/// Number of the receive of a message that needs none.
const NOT_POSTED: u64 = u64::MAX;

pub(super) struct Model {
    memory: Vec<Vec<u8>>,
    /// None once invalidated.
    tags: Vec<Option<Stag>>,
    pub(super) outcome: Outcome,
    receives: VecDeque<Receive>,
    incoming: Option<(Receive, Opcode, u32)>,
    msn: [u32; 4],
    asked: VecDeque<Asked>,
    /// Work that was not sent yet.
    works: VecDeque<Post>,
    /// Work in order, with its completion once that is known.
    posted: VecDeque<(u64, Kind, Option<Completion>)>,
    pub(super) waits: VecDeque<Wait>,
    completed: Vec<Completion>,
    may_send: bool,
    /// Unsolicited immediate data need no receive.
    immediate_without_receive: bool,
    identifier: u32,
    /// The message that the pair is about to complete sending.
    sending: Vec<u8>,
}

fn blank(id: u64, kind: Kind, status: Status) -> Completion {
    Completion {
        id,
        kind,
        status,
        bytes: 0,
        immediate: None,
        invalidated: None,
        solicited: false,
        original: None,
    }
}

impl Model {
    pub(super) fn new(
        memory: &Buffers,
        regions: &[RegionId],
        tags: &[Stag],
        may_send: bool,
        immediate_without_receive: bool,
    ) -> Self {
        Self {
            memory: regions
                .iter()
                .map(|&region| memory.bytes(region).to_vec())
                .collect(),
            tags: tags.iter().copied().map(Some).collect(),
            outcome: Outcome::Open,
            receives: VecDeque::new(),
            incoming: None,
            msn: [1; 4],
            asked: VecDeque::new(),
            works: VecDeque::new(),
            posted: VecDeque::new(),
            waits: VecDeque::new(),
            completed: Vec::new(),
            may_send,
            immediate_without_receive,
            identifier: 0,
            sending: Vec::new(),
        }
    }

    pub(super) fn first_bytes(index: usize) -> Vec<u8> {
        (0..REGION_BYTES)
            .map(|byte| (byte * (index + 3)) as u8)
            .collect()
    }

    pub(super) fn bytes(&self, index: usize) -> &[u8] {
        &self.memory[index]
    }

    pub(super) fn msn(&self, queue: u32) -> u32 {
        self.msn.get(queue as usize).copied().unwrap_or(1)
    }

    pub(super) fn incoming_at(&self) -> u32 {
        self.incoming.as_ref().map_or(0, |incoming| incoming.2)
    }

    pub(super) fn incoming_opcode(&self) -> Option<Opcode> {
        self.incoming.as_ref().map(|incoming| incoming.1)
    }

    pub(super) fn has_receives(&self) -> bool {
        !self.receives.is_empty()
    }

    pub(super) fn deregister(&mut self, index: usize) -> bool {
        self.tags[index].take().is_some()
    }

    pub(super) fn post_receive(&mut self, receive: Receive) -> bool {
        let own = self.receives.len() + usize::from(self.incoming.is_some());
        if self.outcome != Outcome::Open || own >= RECEIVES || !self.are_ours(&receive.pieces) {
            return false;
        }
        self.receives.push_back(receive);
        true
    }

    pub(super) fn post(&mut self, post: Post) -> bool {
        let pieces = match &post.work {
            Work::Send { pieces, .. } | Work::Write { pieces, .. } => pieces.to_vec(),
            Work::Read { into, .. } => vec![*into],
            _ => Vec::new(),
        };
        if self.outcome != Outcome::Open || self.posted.len() >= 16 || !self.are_ours(&pieces) {
            return false;
        }
        self.posted.push_back((post.id, post.work.kind(), None));
        self.works.push_back(post);
        true
    }

    fn are_ours(&self, pieces: &[Piece]) -> bool {
        let mut pieces = pieces.iter();
        pieces.all(|piece| piece.bytes == 0 || self.tags.contains(&Some(piece.stag)))
    }

    pub(super) fn completions(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.completed)
    }

    /// The pair ends, with a fault reported to the peer or without.
    pub(super) fn end(&mut self, cause: Option<Cause>) {
        if self.outcome != Outcome::Open {
            return;
        }
        self.outcome = cause.map_or(Outcome::Over, Outcome::Told);
        for (id, kind, over) in std::mem::take(&mut self.posted) {
            self.completed
                .push(over.unwrap_or(blank(id, kind, Status::Flushed)));
        }
        let incoming = self.incoming.take().map(|incoming| incoming.0);
        let incoming = incoming.filter(|receive| receive.id != NOT_POSTED);
        for receive in incoming
            .into_iter()
            .chain(std::mem::take(&mut self.receives))
        {
            self.completed
                .push(blank(receive.id, Kind::Receive, Status::Flushed));
        }
        self.asked.clear();
        self.works.clear();
        self.waits.clear();
    }

    /// A segment arrives.
    pub(super) fn segment(&mut self, header: &Header, payload: &[u8]) {
        if self.outcome != Outcome::Open {
            return;
        }
        self.may_send = true;
        match self.effect(header, payload) {
            Ok(()) => {}
            Err(cause) => self.end(cause),
        }
    }

    fn effect(&mut self, header: &Header, payload: &[u8]) -> Result<(), Option<Cause>> {
        let opcode = Opcode::of(header.opcode);
        match header.target {
            Target::Tagged { .. } if !header.ddp_version => Err(Some(Cause::TaggedVersion)),
            Target::Untagged { .. } if !header.ddp_version => Err(Some(Cause::UntaggedVersion)),
            Target::Untagged { queue, .. } if queue > 3 => Err(Some(Cause::InvalidQueue)),
            _ if !header.rdmap_version => Err(Some(Cause::RdmapVersion)),
            Target::Tagged { stag, offset } => match opcode {
                Some(Opcode::Write) => self.write(stag, offset, payload).map_err(Some),
                Some(Opcode::ReadResponse) => self
                    .read_answer(stag, offset, header.last, payload)
                    .map_err(Some),
                _ => Err(Some(Cause::UnexpectedOpcode)),
            },
            Target::Untagged {
                invalidate,
                queue,
                msn,
                offset,
            } => {
                let Some(opcode) = opcode.filter(|opcode| opcode.queue() == Some(queue)) else {
                    return Err(Some(Cause::UnexpectedOpcode));
                };
                if self.msn[queue as usize] != msn {
                    return Err(Some(Cause::InvalidMsn));
                }
                let done = match queue {
                    0 => self.message(opcode, header.last, offset, payload, invalidate),
                    1 => self.request(opcode, header.last, offset, payload),
                    2 if payload.len() < 4 => Err(Cause::OperationUnspecified),
                    2 => return Err(None),
                    _ => self.atomic_answer(header.last, offset, payload),
                };
                done.map_err(Some)
            }
        }
    }

    /// Index of a region, and of a byte in it, if `bytes` bytes may be used.
    fn find(
        &self,
        stag: Stag,
        offset: u64,
        bytes: u64,
        right: Access,
    ) -> Result<(usize, usize), u8> {
        let index = self
            .tags
            .iter()
            .position(|&own| own == Some(stag))
            .ok_or(0)?;
        let (base, _, pair) = REGIONS[index];
        if pair.is_some_and(|pair| pair != PAIR) {
            return Err(1);
        }
        if !rights(index).has(right) {
            return Err(2);
        }
        if u128::from(offset) + u128::from(bytes) > u128::from(u64::MAX) {
            return Err(3);
        }
        let fits = offset >= base && offset + bytes <= base + REGION_BYTES as u64;
        if fits {
            Ok((index, (offset - base) as usize))
        } else {
            Err(4)
        }
    }

    fn tagged(fault: u8) -> Cause {
        [
            Cause::TaggedStag,
            Cause::TaggedNotAssociated,
            Cause::AccessRights,
            Cause::TaggedWrap,
            Cause::TaggedBounds,
        ][usize::from(fault)]
    }

    fn requested(fault: u8) -> Cause {
        [
            Cause::RequestStag,
            Cause::RequestNotAssociated,
            Cause::AccessRights,
            Cause::RequestWrap,
            Cause::RequestBounds,
        ][usize::from(fault)]
    }

    fn put(&mut self, (index, at): (usize, usize), bytes: &[u8]) {
        for (step, &byte) in bytes.iter().enumerate() {
            self.memory[index][at + step] = byte;
        }
    }

    fn write(&mut self, stag: Stag, offset: u64, payload: &[u8]) -> Result<(), Cause> {
        if payload.is_empty() {
            return Ok(());
        }
        let bytes = payload.len() as u64;
        let place = self
            .find(stag, offset, bytes, Access::REMOTE_WRITE)
            .map_err(Self::tagged)?;
        self.put(place, payload);
        Ok(())
    }

    fn read_answer(
        &mut self,
        stag: Stag,
        offset: u64,
        last: bool,
        payload: &[u8],
    ) -> Result<(), Cause> {
        let Some(&Wait::Read { id, into, at }) = self.waits.front() else {
            return Err(Cause::UnexpectedOpcode);
        };
        if stag != into.stag {
            return Err(Cause::TaggedStag);
        }
        let now = u64::from(at) + payload.len() as u64;
        let is_short = last && now < into.bytes.into();
        if offset != into.offset + u64::from(at) || now > into.bytes.into() || is_short {
            return Err(Cause::TaggedBounds);
        }
        if !payload.is_empty() {
            let bytes = payload.len() as u64;
            let place = self
                .find(stag, offset, bytes, Access::LOCAL_WRITE)
                .map_err(Self::tagged)?;
            self.put(place, payload);
        }
        if last {
            self.waits.pop_front();
            let done = blank(id, Kind::Read, Status::Done);
            self.over(Completion {
                bytes: now as u32,
                ..done
            });
        } else if let Some(Wait::Read { at, .. }) = self.waits.front_mut() {
            *at = now as u32;
        }
        Ok(())
    }

    fn atomic_answer(&mut self, last: bool, offset: u32, payload: &[u8]) -> Result<(), Cause> {
        let Some(&Wait::Atomic { id, identifier }) = self.waits.front() else {
            return Err(Cause::UnexpectedOpcode);
        };
        Self::exactly(last, offset, payload, 12)?;
        let response = AtomicResponse::read(payload).expect("its length is right");
        if response.identifier != identifier {
            return Err(Cause::OperationUnspecified);
        }
        self.msn[3] += 1;
        self.waits.pop_front();
        self.over(Completion {
            bytes: 8,
            original: Some(response.original),
            ..blank(id, Kind::Atomic, Status::Done)
        });
        Ok(())
    }

    fn exactly(last: bool, offset: u32, payload: &[u8], bytes: usize) -> Result<(), Cause> {
        if offset > 0 {
            Err(Cause::InvalidOffset)
        } else if payload.len() > bytes {
            Err(Cause::TooLong)
        } else if payload.len() < bytes || !last {
            Err(Cause::OperationUnspecified)
        } else {
            Ok(())
        }
    }

    /// Work is done; everything done at the front completes.
    fn over(&mut self, completion: Completion) {
        for posted in &mut self.posted {
            if posted.0 == completion.id {
                posted.2 = Some(completion);
            }
        }
        while let Some(&(_, _, Some(completion))) = self.posted.front() {
            self.posted.pop_front();
            self.completed.push(completion);
        }
    }

    /// Compares everything that the pair has sent since the last time; it sends as much as it may.
    pub(super) fn drained(&mut self, messages: &[(Header, Vec<u8>)]) {
        for (header, payload) in messages {
            let opcode = Opcode::of(header.opcode).expect("a known one");
            match opcode {
                Opcode::Terminate => self.told(payload),
                Opcode::ReadResponse | Opcode::AtomicResponse => self.answered(header, payload),
                _ => self.went(opcode, header, payload),
            }
        }
        if self.outcome == Outcome::Open && self.may_send {
            // One that must fail was reported above.
            assert!(self.asked.is_empty(), "an answer is missing");
            let waits = self.waits.len() == READS;
            assert!(
                self.works.is_empty() || waits,
                "work stays: {:?}",
                self.works
            );
        }
    }

    fn told(&mut self, payload: &[u8]) {
        let cause = Terminate::read(payload)
            .and_then(|told| told.cause())
            .expect("a cause");
        if self.outcome == Outcome::Open {
            // Found while sending: memory of a response or of work that is gone.
            let expected = self
                .trouble()
                .unwrap_or_else(|| panic!("no reason for {cause:?}"));
            assert!(
                expected.contains(&cause),
                "{cause:?} is none of {expected:?}"
            );
            if cause == Cause::LocalCatastrophic {
                let post = self.works.front().expect("work that fails");
                let (id, kind) = (post.id, post.work.kind());
                self.over(blank(id, kind, Status::Local(Fault::Stag)));
            }
            self.end(Some(cause));
        }
        assert_eq!(self.outcome, Outcome::Told(cause));
    }

    /// Possible faults of the first response or the first work.
    fn trouble(&self) -> Option<Vec<Cause>> {
        let mut causes = Vec::new();
        match self.asked.front() {
            Some(Asked::Read { request, at }) => {
                causes.extend(self.source(request, *at, request.count - at).err());
            }
            Some(Asked::Atomic {
                request,
                original: None,
            }) => {
                causes.extend(self.word(request).err());
            }
            _ => {}
        }
        if let Some(Post {
            work: Work::Send { pieces, .. } | Work::Write { pieces, .. },
            ..
        }) = self.works.front()
            && !self.are_ours(pieces)
        {
            causes.push(Cause::LocalCatastrophic);
        }
        (!causes.is_empty()).then_some(causes)
    }

    fn answered(&mut self, header: &Header, payload: &[u8]) {
        match self.asked.front() {
            Some(&Asked::Read { request, at }) => {
                let target = Target::Tagged {
                    stag: request.sink,
                    offset: request.sink_offset.wrapping_add(at.into()),
                };
                assert_eq!(header.target, target);
                if !payload.is_empty() {
                    let count = payload.len() as u32;
                    let (index, from) = self.source(&request, at, count).expect("it was read");
                    assert_eq!(payload, &self.memory[index][from..from + payload.len()]);
                }
                let now = at + payload.len() as u32;
                assert_eq!(header.last, now == request.count);
                if let Some(Asked::Read { at, .. }) = self.asked.front_mut() {
                    *at = now;
                }
                if header.last {
                    self.asked.pop_front();
                }
            }
            Some(&Asked::Atomic { request, original }) => {
                let original =
                    original.unwrap_or_else(|| self.change(&request).expect("it was done"));
                let response = AtomicResponse::read(payload).expect("a response");
                let identifier = request.identifier;
                let expected = AtomicResponse {
                    identifier,
                    original,
                };
                assert_eq!(response, expected);
                self.asked.pop_front();
            }
            None => panic!("an answer without a request"),
        }
    }

    /// Processes a segment of the pair's own work.
    fn went(&mut self, opcode: Opcode, header: &Header, payload: &[u8]) {
        let post = self.works.front().cloned().expect("work was posted");
        self.sending.extend_from_slice(payload);
        if !header.last {
            return;
        }
        self.works.pop_front();
        let message = std::mem::take(&mut self.sending);
        let kind = post.work.kind();
        match &post.work {
            Work::Send { pieces, .. } | Work::Write { pieces, .. } => {
                let mut expected = Vec::new();
                for piece in pieces.iter().filter(|piece| piece.bytes > 0) {
                    let bytes = piece.bytes as usize;
                    let found = self.find(piece.stag, piece.offset, bytes as u64, Access::NONE);
                    let (index, from) = found.expect("it was sent");
                    expected.extend_from_slice(&self.memory[index][from..from + bytes]);
                }
                assert_eq!(message, expected);
                assert_eq!(kind == Kind::Write, opcode == Opcode::Write);
                self.over(Completion {
                    bytes: message.len() as u32,
                    ..blank(post.id, kind, Status::Done)
                });
            }
            Work::Read { into, remote } => {
                let request = ReadRequest::read(&message).expect("a request");
                assert_eq!(
                    (request.sink, request.sink_offset),
                    (into.stag, into.offset)
                );
                assert_eq!(
                    (request.source, request.source_offset),
                    (remote.stag, remote.offset)
                );
                let (id, into, at) = (post.id, *into, 0);
                self.waits.push_back(Wait::Read { id, into, at });
            }
            Work::Atomic { remote, .. } => {
                let request = AtomicRequest::read(&message).expect("a request");
                assert_eq!((request.stag, request.offset), (remote.stag, remote.offset));
                self.identifier += 1;
                assert_eq!(request.identifier, self.identifier);
                let (id, identifier) = (post.id, self.identifier);
                self.waits.push_back(Wait::Atomic { id, identifier });
            }
            Work::Immediate { .. } => unreachable!("none is posted"),
        }
    }
}

const _: () = assert!(REGION_COUNT == REGIONS.len());
