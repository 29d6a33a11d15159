//! A queue pair: one stream, work both ways, completions in the order of posting.
//!
//! The crate's documentation has the invariants; the files next to this one:
//!
//! - `start`: the start frames, and their consequences;
//! - `input`: a received segment, its checks in the order of the layers, its placement;
//! - `output`: the next unit to send;
//! - `ahead`: segments received out of order, and placed early.

mod ahead;
mod input;
mod output;
mod start;

pub use ahead::AHEAD_MAX;

use crate::domain::{Access, Domain, PairId};
use crate::framing::{Deframer, Framer, Step};
use crate::memory::Memory;
use crate::piece::{Piece, Receive, SharedId, total};
use crate::refusal::{Fault, PostError};
use crate::wire::ddp::{AtomicRequest, QUEUES, ReadRequest};
use crate::wire::mpa::{Side, Start, StartError};
use crate::wire::terminate::{Cause, Terminate};
use crate::work::{Completion, Kind, Post, Status};
use ahead::Ahead;
use input::{Incoming, Mark};
use output::Current;
use std::collections::VecDeque;

/// Most entries of a send or receive queue.
pub const DEPTH_MAX: usize = 1 << 14;
/// Most outstanding reads and atomics, each way.
pub const IRD_MAX: u16 = 256;
/// The smallest limit of a unit's length, in bytes: a terminate message fits.
pub const SEGMENT_BYTES_MIN: usize = 128;
/// The largest one, in bytes.
pub const SEGMENT_BYTES_MAX: usize = 66_560;

/// Properties of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Requests CRCs; they are used if one side requests them.
    pub crc: bool,
    /// Requests markers in received data.
    pub markers: bool,
    /// The initiator offers revision 2 with the depths of reads, instead of revision 1.
    pub enhanced: bool,
    /// The initiator sends a message of no bytes first, so that the responder may send at once.
    pub peer_to_peer: bool,
    /// The initiator offers to do so by a unit of no bytes only (RFC 6581's flag B); a responder
    /// accepts any offered way.
    pub ready_by_empty: bool,
    /// Unsolicited immediate data completes without a receive; each is 8 bytes, and at most as many
    /// wait to be polled as there may be receives.
    pub immediate_without_receive: bool,
    /// Reads and atomics of the peer in progress at a time, at most [`IRD_MAX`].
    pub ird: u16,
    /// Reads and atomics that are outstanding at a time, at most [`IRD_MAX`].
    pub ord: u16,
    /// Entries of the send queue, at most [`DEPTH_MAX`].
    pub send_depth: usize,
    /// Entries of the receive queue, at most [`DEPTH_MAX`].
    pub receive_depth: usize,
    /// Receives come from this shared queue of the domain.
    pub shared: Option<SharedId>,
    /// A message without a receive waits, and the stream behind it, until one is posted; otherwise
    /// it ends the pair. TCP's flow control then slows the sender (RFC 5041 leaves buffering to the
    /// receiver).
    pub waits_for_receives: bool,
    /// Longest unit to send, in bytes: if it fits into a segment of TCP, each segment can be placed
    /// alone. [`SEGMENT_BYTES_MIN`] to [`SEGMENT_BYTES_MAX`].
    pub segment_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            crc: true,
            markers: false,
            enhanced: true,
            peer_to_peer: false,
            ready_by_empty: false,
            immediate_without_receive: false,
            ird: 16,
            ord: 16,
            send_depth: 128,
            receive_depth: 128,
            shared: None,
            waits_for_receives: false,
            segment_bytes: 1448,
        }
    }
}

/// Stages of a pair's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Waits for the peer's start frame.
    Starting,
    /// The peer's request was received: [`Pair::accept`] or [`Pair::reject`].
    Requested,
    /// Messages are exchanged.
    Open,
    /// The last data is being sent.
    Ending,
    /// Nothing is sent or received any more.
    Ended,
}

/// Reasons for which a start fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartFault {
    /// The peer's start frame is invalid.
    #[error(transparent)]
    Frame(#[from] StartError),
    /// Private data that is too long for the frame.
    #[error("{0} bytes of private data, the limit is {1}")]
    PrivateData(usize, usize),
    /// There is no request to answer.
    #[error("there is no request to answer")]
    NotRequested,
}

/// Reasons for a pair's end.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// Both sides closed in order.
    Orderly,
    /// The responder rejected; its private data is [`Pair::private_data`].
    Rejected,
    /// The start failed.
    Start(StartFault),
    /// A fault of the peer, or of this side, that is reported to the peer.
    Sent(Terminate),
    /// A fault that the peer reported.
    Received(Terminate),
    /// The connection broke.
    Lost,
}

/// A queue pair.
#[derive(Debug)]
pub struct Pair {
    id: PairId,
    options: Options,
    state: State,
    end: Option<End>,
    side: Side,
    /// Start frames: the received one, the one to send, and how much of it was sent.
    start_in: Vec<u8>,
    start_out: Vec<u8>,
    start_gone: usize,
    peer: Option<Start>,
    deframer: Deframer,
    framer: Framer,
    /// The responder sends nothing before the initiator has (RFC 5044, section 7.1.2).
    may_send: bool,
    /// The message by which the initiator reports "ready to receive".
    ready: Option<Ready>,
    /// The first unit may have no bytes: the initiator reports "ready to receive" by it.
    may_be_empty: bool,

    receives: VecDeque<Receive>,
    incoming: Option<Incoming>,
    /// A segment that waits for a receive; nothing after it is processed.
    stalled: Option<(Vec<u8>, Mark)>,
    msn_in: [u32; QUEUES],
    /// Reads and atomics of the peer in progress.
    answers: VecDeque<Answer>,

    works: VecDeque<Slot>,
    /// The first of them that was not sent completely.
    next: usize,
    outstanding: VecDeque<Outstanding>,
    msn_out: [u32; QUEUES],
    current: Option<Current>,
    /// Responses and work alternate; true if a response is next.
    answer_first: bool,
    ord: usize,
    identifier: u32,
    farewell: Option<Terminate>,
    closing: bool,

    completions: VecDeque<Completion>,
    /// The number of them that are completions of receives.
    received: usize,
    ahead: Vec<Ahead>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ready {
    Empty,
    Write,
    Read,
}

#[derive(Debug)]
struct Slot {
    post: Post,
    progress: Progress,
}

#[derive(Debug, Clone, Copy)]
enum Progress {
    /// Not sent completely.
    Waiting,
    /// Sent; a response is pending.
    Gone,
    Over(Completion),
}

#[derive(Debug)]
enum Outstanding {
    /// Message that reports "ready to receive".
    Ready,
    Read {
        into: Piece,
        at: u32,
    },
    Atomic {
        identifier: u32,
    },
}

#[derive(Debug)]
enum Answer {
    Read {
        request: ReadRequest,
        at: u32,
    },
    /// With the old word, once it is done.
    Atomic {
        request: AtomicRequest,
        original: Option<u64>,
    },
}

impl Pair {
    /// The initiator's side of an open connection.
    ///
    /// # Errors
    /// [`StartFault::PrivateData`].
    pub fn connect(id: PairId, options: Options, private_data: &[u8]) -> Result<Self, StartFault> {
        let mut pair = Self::new(id, options, Side::Initiator);
        pair.request(private_data)?;
        Ok(pair)
    }

    /// The responder's side: waits for a request.
    #[must_use]
    pub fn listen(id: PairId, options: Options) -> Self {
        Self::new(id, options, Side::Responder)
    }

    fn new(id: PairId, mut options: Options, side: Side) -> Self {
        options.ird = options.ird.min(IRD_MAX);
        options.ord = options.ord.min(IRD_MAX);
        options.send_depth = options.send_depth.clamp(1, DEPTH_MAX);
        options.receive_depth = options.receive_depth.clamp(1, DEPTH_MAX);
        options.segment_bytes = options
            .segment_bytes
            .clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        Self {
            id,
            options,
            state: State::Starting,
            end: None,
            side,
            start_in: Vec::new(),
            start_out: Vec::new(),
            start_gone: 0,
            peer: None,
            deframer: Deframer::new(false, false),
            framer: Framer::new(false, false),
            may_send: side == Side::Initiator,
            ready: None,
            may_be_empty: false,
            receives: VecDeque::with_capacity(options.receive_depth),
            incoming: None,
            stalled: None,
            msn_in: [1; QUEUES],
            answers: VecDeque::with_capacity(options.ird.into()),
            works: VecDeque::with_capacity(options.send_depth),
            next: 0,
            outstanding: VecDeque::with_capacity(usize::from(options.ord) + 1),
            msn_out: [1; QUEUES],
            current: None,
            answer_first: false,
            ord: options.ord.into(),
            identifier: 0,
            farewell: None,
            closing: false,
            completions: VecDeque::with_capacity(options.send_depth + options.receive_depth),
            received: 0,
            ahead: Vec::new(),
        }
    }

    /// Its owner's number.
    #[must_use]
    pub fn id(&self) -> PairId {
        self.id
    }

    /// Its current stage.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// The reason for its end, also while it is ending.
    #[must_use]
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// Private data of the peer's start frame.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.peer.as_ref().map_or(&[], |start| &start.private_data)
    }

    /// True if units have CRCs.
    #[must_use]
    pub fn has_crc(&self) -> bool {
        self.framer.crc
    }

    /// Reads and atomics that may be outstanding.
    #[must_use]
    pub fn ord(&self) -> usize {
        self.ord
    }

    /// Processes `bytes` of the stream; returns the number processed. All of them, unless a message
    /// waits for a receive ([`Options::waits_for_receives`]): then call it again with the rest, or
    /// with none, once a receive is posted.
    pub fn receive<M: Memory + ?Sized>(
        &mut self,
        mut bytes: &[u8],
        domain: &mut Domain,
        memory: &mut M,
    ) -> usize {
        let all = bytes.len();
        if let Some((segment, mark)) = self.stalled.take() {
            if self.lacks_receive(&segment, domain) {
                self.stalled = Some((segment, mark));
                return 0;
            }
            self.take_segment(&segment, mark, domain, memory);
        }
        while !bytes.is_empty() {
            match self.state {
                State::Starting => self.receive_start(&mut bytes),
                // A unit before the reply to the request is a fault of the initiator.
                State::Requested => {
                    self.fail_start(StartFault::NotRequested);
                    return all;
                }
                State::Open => match self.deframer.step(&mut bytes) {
                    Ok(Step::More) => return all,
                    Ok(Step::There(segment, position, crc)) => {
                        if self.lacks_receive(segment, domain) {
                            self.stalled = Some((segment.to_vec(), (position, crc)));
                            return all - bytes.len();
                        }
                        self.take_segment(segment, (position, crc), domain, memory);
                    }
                    Ok(Step::Held(position, crc)) => {
                        let segment = self.deframer.take_held();
                        if self.lacks_receive(&segment, domain) {
                            self.stalled = Some((segment, (position, crc)));
                            return all - bytes.len();
                        }
                        self.take_segment(&segment, (position, crc), domain, memory);
                        self.deframer.give_back(segment);
                    }
                    Err(cause) => self.fail(Terminate::new(cause)),
                },
                State::Ending | State::Ended => return all,
            }
        }
        all
    }

    /// True while a message waits for a receive.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.stalled.is_some()
    }

    /// The peer's stream has ended.
    pub fn receive_end(&mut self) {
        match self.state {
            State::Ended => {}
            State::Open if self.is_between_messages() => {
                self.finish(End::Orderly);
            }
            _ => self.finish(End::Lost),
        }
    }

    fn is_between_messages(&self) -> bool {
        self.deframer.is_between() && self.incoming.is_none() && self.stalled.is_none()
    }

    /// The connection is lost.
    pub fn lose(&mut self) {
        self.finish(End::Lost);
    }

    /// Ends posting; [`Self::wants_shutdown`] is true when everything was sent.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// True when this side's stream is to be shut down: everything posted before [`Self::close`] is
    /// done, or the pair has ended.
    #[must_use]
    pub fn wants_shutdown(&self) -> bool {
        match self.state {
            State::Ended => true,
            State::Open => self.closing && self.works.is_empty() && self.answers.is_empty(),
            _ => false,
        }
    }

    /// Posts work.
    ///
    /// # Errors
    /// [`PostError`]; then nothing was posted.
    pub fn post(&mut self, post: Post, domain: &Domain) -> Result<(), PostError> {
        if self.state != State::Open || self.closing {
            return Err(PostError::Ended);
        }
        let collected = self.completions.len() - self.received;
        if self.works.len() + collected >= self.options.send_depth {
            return Err(PostError::Full(self.options.send_depth));
        }
        let rights = match post.work.kind() {
            Kind::Read => Access::LOCAL_WRITE,
            _ => Access::NONE,
        };
        self.check_pieces(post.work.pieces(), rights, domain)?;
        if post.work.is_answered() && self.ord == 0 {
            return Err(PostError::NoReads);
        }
        let progress = Progress::Waiting;
        self.works.push_back(Slot { post, progress });
        Ok(())
    }

    /// Posts a buffer for a message of the peer.
    ///
    /// # Errors
    /// [`PostError`]; then nothing was posted.
    pub fn post_receive(&mut self, receive: Receive, domain: &Domain) -> Result<(), PostError> {
        if let Some(shared) = self.options.shared {
            return Err(PostError::Shared(shared));
        }
        if matches!(self.state, State::Ending | State::Ended) {
            return Err(PostError::Ended);
        }
        let own = self.receives.len() + usize::from(self.incoming.is_some());
        if own + self.received >= self.options.receive_depth {
            return Err(PostError::Full(self.options.receive_depth));
        }
        self.check_pieces(&receive.pieces, Access::LOCAL_WRITE, domain)?;
        self.receives.push_back(receive);
        Ok(())
    }

    /// Makes it use a shared queue of the domain for receives. Only before messages are exchanged,
    /// and before it has receives of its own.
    ///
    /// # Errors
    /// [`PostError::Full`]: it has receives; [`PostError::Ended`]: it is too late.
    pub fn share_receives(&mut self, shared: SharedId) -> Result<(), PostError> {
        if !matches!(self.state, State::Starting | State::Requested) {
            return Err(PostError::Ended);
        }
        if !self.receives.is_empty() {
            return Err(PostError::Full(0));
        }
        self.options.shared = Some(shared);
        Ok(())
    }

    /// Its shared receive queue.
    #[must_use]
    pub fn shared(&self) -> Option<SharedId> {
        self.options.shared
    }

    /// Cancels a receive that no message has begun to fill: the first one with that number; false
    /// if there is none. It has no completion.
    pub fn cancel_receive(&mut self, id: u64) -> bool {
        let index = self.receives.iter().position(|receive| receive.id == id);
        let receive = index.and_then(|index| self.receives.remove(index));
        receive.is_some()
    }

    /// The next completion.
    pub fn poll(&mut self) -> Option<Completion> {
        let completion = self.completions.pop_front()?;
        if completion.kind == Kind::Receive {
            self.received -= 1;
        }
        Some(completion)
    }

    /// Kind of the next completion.
    #[must_use]
    pub fn next_kind(&self) -> Option<Kind> {
        self.completions.front().map(|completion| completion.kind)
    }

    /// Number of completions that can be polled.
    #[must_use]
    pub fn completions(&self) -> usize {
        self.completions.len()
    }

    fn check_pieces(
        &self,
        pieces: &[Piece],
        rights: Access,
        domain: &Domain,
    ) -> Result<(), PostError> {
        total(pieces).ok_or(PostError::TooLong)?;
        for piece in pieces.iter().filter(|piece| piece.bytes > 0) {
            domain.check(
                self.id,
                piece.stag,
                piece.offset,
                piece.bytes.into(),
                rights,
            )?;
        }
        Ok(())
    }

    /// Ends with a fault that is reported to the peer.
    fn fail(&mut self, terminate: Terminate) {
        if matches!(self.state, State::Ending | State::Ended) {
            return;
        }
        self.flush();
        self.state = State::Ending;
        self.farewell = Some(terminate.clone());
        self.end = Some(End::Sent(terminate));
    }

    fn finish(&mut self, end: End) {
        self.flush();
        self.state = State::Ended;
        self.farewell = None;
        self.end.get_or_insert(end);
    }

    /// Flushes everything that was posted.
    fn flush(&mut self) {
        for slot in std::mem::take(&mut self.works) {
            let completion = match slot.progress {
                Progress::Over(completion) => completion,
                _ => completion(slot.post.id, slot.post.work.kind(), Status::Flushed),
            };
            self.completions.push_back(completion);
        }
        let incoming = self.incoming.take().filter(|incoming| incoming.is_posted);
        let incoming = incoming.map(|incoming| incoming.receive);
        let receives = std::mem::take(&mut self.receives);
        for receive in incoming.into_iter().chain(receives) {
            self.complete_receive(completion(receive.id, Kind::Receive, Status::Flushed));
        }
        self.next = 0;
        self.current = None;
        self.answers.clear();
        self.outstanding.clear();
        self.ahead.clear();
        self.stalled = None;
    }

    fn complete_receive(&mut self, completion: Completion) {
        self.received += 1;
        self.completions.push_back(completion);
    }

    /// Marks work as done; everything done at the front is completed, in order.
    fn work_is_over(&mut self, index: usize, completion: Completion) {
        if let Some(slot) = self.works.get_mut(index) {
            slot.progress = Progress::Over(completion);
        }
        while let Some(slot) = self.works.front()
            && let Progress::Over(completion) = slot.progress
        {
            self.works.pop_front();
            self.next = self.next.saturating_sub(1);
            self.completions.push_back(completion);
        }
    }

    /// The oldest work that waits for its response.
    fn oldest_gone(&self) -> Option<usize> {
        let mut slots = self.works.iter();
        slots.position(|slot| matches!(slot.progress, Progress::Gone))
    }
}

/// A completion of no bytes.
fn completion(id: u64, kind: Kind, status: Status) -> Completion {
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

/// The fault that is reported to a tagged segment's sender.
fn tagged_cause(fault: Fault) -> Cause {
    match fault {
        Fault::Stag => Cause::TaggedStag,
        Fault::NotAssociated => Cause::TaggedNotAssociated,
        Fault::Access => Cause::AccessRights,
        Fault::Wrap => Cause::TaggedWrap,
        Fault::Bounds => Cause::TaggedBounds,
    }
}

/// The fault that is reported to a request's sender.
fn request_cause(fault: Fault) -> Cause {
    match fault {
        Fault::Stag => Cause::RequestStag,
        Fault::NotAssociated => Cause::RequestNotAssociated,
        Fault::Access => Cause::AccessRights,
        Fault::Wrap => Cause::RequestWrap,
        Fault::Bounds => Cause::RequestBounds,
    }
}
