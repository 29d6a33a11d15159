//! The receive queue: posted buffers, and the message that fills one.
//!
//! Must stay true: posted receives, the one being filled and unpolled completions are together at
//! most `depth`; each receive completes once.

use super::completions::{Completions, completion};
use super::options::Options;
use crate::domain::Domain;
use crate::piece::{Pieces, PostError, Receive, SharedId, message_bytes};
use crate::wire::ddp::{Header, Opcode, QUEUE_SEND, Target};
use crate::wire::terminate::Cause;
use crate::work::{Kind, Status};
use std::collections::VecDeque;

/// A unit's position in the stream and its CRC.
pub(super) type Mark = (u64, u32);

#[derive(Debug)]
pub(super) struct ReceiveQueue {
    posted: VecDeque<Receive>,
    /// The message in progress.
    pub(super) incoming: Option<Incoming>,
    /// Receives come from this queue of the domain instead.
    shared: Option<SharedId>,
    depth: usize,
    /// A message without a receive waits for one.
    waits: bool,
    /// Unsolicited immediate data completes without a receive.
    immediate_without_receive: bool,
}

/// A message in progress, of several segments.
#[derive(Debug)]
pub(super) struct Incoming {
    pub(super) receive: Receive,
    /// True if the receive was posted.
    is_posted: bool,
    pub(super) opcode: Opcode,
    /// Bytes received so far.
    pub(super) at: u32,
    /// Bytes that the buffer holds.
    pub(super) room: u32,
}

impl ReceiveQueue {
    pub(super) fn new(options: &Options) -> Self {
        // Those of a shared queue are in the domain until a message begins.
        let own = match options.shared {
            Some(_) => 0,
            None => options.receive_depth,
        };
        Self {
            posted: VecDeque::with_capacity(own),
            incoming: None,
            shared: options.shared,
            depth: options.receive_depth,
            waits: options.waits_for_receives,
            immediate_without_receive: options.immediate_without_receive,
        }
    }

    pub(super) fn shared(&self) -> Option<SharedId> {
        self.shared
    }

    /// An error if it has receives.
    pub(super) fn check_empty(&self) -> Result<(), PostError> {
        match self.posted.is_empty() && self.incoming.is_none() {
            true => Ok(()),
            false => Err(PostError::Full(0)),
        }
    }

    /// Replaces the queue's own receives by those of a shared queue.
    pub(super) fn share(&mut self, shared: SharedId) -> Result<(), PostError> {
        self.check_empty()?;
        self.shared = Some(shared);
        Ok(())
    }

    /// True if no further receive fits, with `unread` completions that were not polled.
    pub(super) fn check_room(&self, unread: usize) -> Result<(), PostError> {
        let own = self.posted.len() + usize::from(self.incoming.is_some());
        if own + unread >= self.depth {
            return Err(PostError::Full(self.depth));
        }
        Ok(())
    }

    pub(super) fn push(&mut self, receive: Receive) {
        self.posted.push_back(receive);
    }

    /// Removes the first receive with that number that no message has begun to fill.
    pub(super) fn cancel(&mut self, id: u64) -> bool {
        let index = self.posted.iter().position(|receive| receive.id == id);
        let receive = index.and_then(|index| self.posted.remove(index));
        receive.is_some()
    }

    /// True if `segment` begins a message without a receive, and the message may wait.
    pub(super) fn is_missing_for(&self, segment: &[u8], unread: usize, domain: &Domain) -> bool {
        // A message in progress has its receive already.
        if !self.waits || self.incoming.is_some() {
            return false;
        }
        let Some((header, _)) = Header::read(segment) else {
            return false; // the checks of the segment report it
        };
        let Target::Untagged { queue, .. } = header.target else {
            return false;
        };
        if queue != QUEUE_SEND {
            return false;
        }
        let is_free = Opcode::of(header.opcode).is_some_and(|opcode| self.needs_no_receive(opcode));
        if is_free {
            return !self.has_room_for(unread);
        }
        match self.shared {
            Some(shared) => !self.has_room_for(unread) || domain.shared_receives(shared) == 0,
            None => self.posted.is_empty(),
        }
    }

    /// True for immediate data that completes without a receive.
    fn needs_no_receive(&self, opcode: Opcode) -> bool {
        self.immediate_without_receive && opcode == Opcode::Immediate
    }

    /// True while the number of unpolled completions is below its bound. Receives of the queue's
    /// own keep it anyway; shared ones and immediate data could exceed it.
    fn has_room_for(&self, unread: usize) -> bool {
        unread < self.depth
    }

    /// Takes the receive of a message that begins.
    pub(super) fn begin(
        &mut self,
        opcode: Opcode,
        unread: usize,
        domain: &mut Domain,
    ) -> Result<Incoming, Cause> {
        if self.needs_no_receive(opcode) {
            if !self.has_room_for(unread) {
                return Err(Cause::NoBuffer);
            }
            return Ok(Incoming {
                receive: Receive {
                    id: 0,
                    pieces: Pieces::new(),
                },
                is_posted: false,
                opcode,
                at: 0,
                room: 0,
            });
        }
        let receive = match self.shared {
            Some(_) if !self.has_room_for(unread) => None,
            Some(shared) => domain.take_shared(shared),
            None => self.posted.pop_front(),
        };
        let receive = receive.ok_or(Cause::NoBuffer)?;
        // A shared receive was not checked for this pair yet.
        let room = message_bytes(&receive.pieces).unwrap_or(0);
        Ok(Incoming {
            receive,
            is_posted: true,
            opcode,
            at: 0,
            room,
        })
    }

    /// Completes everything as flushed, the message in progress first.
    pub(super) fn flush(&mut self, completions: &mut Completions) {
        // Immediate data without a receive took nothing that its owner would miss.
        let incoming = self.incoming.take().filter(|incoming| incoming.is_posted);
        let incoming = incoming.map(|incoming| incoming.receive);
        let posted = std::mem::take(&mut self.posted);
        for receive in incoming.into_iter().chain(posted) {
            completions.push(completion(receive.id, Kind::Receive, Status::Flushed));
        }
    }
}
