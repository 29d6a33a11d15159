//! A queue pair: one stream, work both ways, completions in the order of posting.
//!
//! What must stay true is in the crate's documentation; the files beside this one:
//!
//! - `start`: the start frames, and what follows from them;
//! - `input`: a segment that came, its checks in the order of the layers, its placement;
//! - `output`: the next unit that goes;
//! - `ahead`: segments that came out of order, placed before their turn.

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
/// Most reads and atomics at a time, each way.
pub const IRD_MAX: u16 = 256;
/// The shortest units that a stream may be cut into, in bytes: a terminate message fits.
pub const SEGMENT_BYTES_MIN: usize = 128;
/// The longest, in bytes.
pub const SEGMENT_BYTES_MAX: usize = 66_560;

/// Properties of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// It wants CRCs; they are used where one side does.
    pub crc: bool,
    /// It wants markers in what it receives.
    pub markers: bool,
    /// The initiator offers revision 2 with the depths of reads, else revision 1.
    pub enhanced: bool,
    /// The initiator sends a message of no bytes first, so that the responder may send at once.
    pub peer_to_peer: bool,
    /// The initiator offers to say so with a unit of no bytes, and nothing else (RFC 6581's flag
    /// B); a responder takes any that the initiator offers.
    pub ready_by_empty: bool,
    /// Immediate data that are not solicited complete without a receive; each is 8 bytes, and as
    /// many wait to be polled as there may be receives.
    pub immediate_without_receive: bool,
    /// Reads and atomics of the peer that are answered at a time, at most [`IRD_MAX`].
    pub ird: u16,
    /// Reads and atomics that are outstanding at a time, at most [`IRD_MAX`].
    pub ord: u16,
    /// Entries of the send queue, at most [`DEPTH_MAX`].
    pub send_depth: usize,
    /// Entries of the receive queue, at most [`DEPTH_MAX`].
    pub receive_depth: usize,
    /// Receives come from this queue of the domain.
    pub shared: Option<SharedId>,
    /// A message that finds no receive waits, and the stream behind it, until one is posted; else
    /// it ends the pair. TCP's flow control then holds the sender back (RFC 5041 leaves buffering
    /// to the receiver).
    pub waits_for_receives: bool,
    /// Longest unit that is sent, in bytes: where it is what a segment of TCP holds, each segment
    /// can be placed alone. [`SEGMENT_BYTES_MIN`] to [`SEGMENT_BYTES_MAX`].
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
    /// The peer's start frame is awaited.
    Starting,
    /// The peer's request is there: [`Pair::accept`] or [`Pair::reject`].
    Requested,
    /// Messages go.
    Open,
    /// The last words are to be sent.
    Ending,
    /// Nothing comes or goes any more.
    Ended,
}

/// Reasons for which a start fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartFault {
    /// The peer's start frame is none.
    #[error(transparent)]
    Frame(#[from] StartError),
    /// Longer private data than the frame has room for.
    #[error("{0} bytes of private data, the limit is {1}")]
    PrivateData(usize, usize),
    /// There is no request to answer.
    #[error("there is no request to answer")]
    NotRequested,
}

/// Ends of a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum End {
    /// Both sides closed in order.
    Orderly,
    /// The responder refused; its private data are [`Pair::private_data`].
    Rejected,
    /// The start failed.
    Start(StartFault),
    /// A fault of the peer, or of ours, that it is told.
    Sent(Terminate),
    /// A fault that the peer told us.
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
    /// Start frames: the one that comes, the one that goes and how much of it has gone.
    start_in: Vec<u8>,
    start_out: Vec<u8>,
    start_gone: usize,
    peer: Option<Start>,
    deframer: Deframer,
    framer: Framer,
    /// The responder sends nothing before the initiator has (RFC 5044, section 7.1.2).
    may_send: bool,
    /// What the initiator says "ready to receive" with.
    ready: Option<Ready>,
    /// The first unit may be one of no bytes: so the initiator says "ready to receive".
    may_be_empty: bool,

    receives: VecDeque<Receive>,
    incoming: Option<Incoming>,
    /// A segment that waits for a receive; nothing behind it is taken.
    stalled: Option<(Vec<u8>, Mark)>,
    msn_in: [u32; QUEUES],
    /// Reads and atomics of the peer.
    answers: VecDeque<Answer>,

    works: VecDeque<Slot>,
    /// The first of them that has not gone whole.
    next: usize,
    outstanding: VecDeque<Outstanding>,
    msn_out: [u32; QUEUES],
    current: Option<Current>,
    /// Answers go before work, alternately.
    answer_first: bool,
    ord: usize,
    identifier: u32,
    farewell: Option<Terminate>,
    closing: bool,

    completions: VecDeque<Completion>,
    /// Of those, completions of receives.
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
    /// Not gone whole.
    Waiting,
    /// Gone; it is answered later.
    Gone,
    Over(Completion),
}

#[derive(Debug)]
enum Outstanding {
    /// What "ready to receive" is said with.
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
    /// With the word as it was, once it is done.
    Atomic {
        request: AtomicRequest,
        original: Option<u64>,
    },
}

impl Pair {
    /// The initiator's side of a connection that is open.
    ///
    /// # Errors
    /// [`StartFault::PrivateData`].
    pub fn connect(id: PairId, options: Options, private_data: &[u8]) -> Result<Self, StartFault> {
        let mut pair = Self::new(id, options, Side::Initiator);
        pair.request(private_data)?;
        Ok(pair)
    }

    /// The responder's side: a request is awaited.
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

    /// Its owner's name of it.
    #[must_use]
    pub fn id(&self) -> PairId {
        self.id
    }

    /// The stage of its life.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// The end that it came to, or comes to.
    #[must_use]
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// Private data of the peer's start frame.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.peer.as_ref().map_or(&[], |start| &start.private_data)
    }

    /// True where units have CRCs.
    #[must_use]
    pub fn has_crc(&self) -> bool {
        self.framer.crc
    }

    /// Reads and atomics that it may have outstanding.
    #[must_use]
    pub fn ord(&self) -> usize {
        self.ord
    }

    /// Takes `bytes` of the stream; how many it took. All of them, unless a message waits for a
    /// receive ([`Options::waits_for_receives`]): then it is called again with the others, or with
    /// none, once one is posted.
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
                // Units that come before the request is answered are a fault of the initiator.
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

    /// The peer's stream is over.
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

    /// No more is posted; [`Self::wants_shutdown`] tells when all has gone.
    pub fn close(&mut self) {
        self.closing = true;
    }

    /// True when this side's stream is to be shut down: all that was posted before
    /// [`Self::close`] is done, or the pair has ended.
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
    /// [`PostError`]; nothing was taken.
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
    /// [`PostError`]; nothing was taken.
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

    /// Takes its receives from a shared queue of the domain. Before messages go, and before it has
    /// receives of its own.
    ///
    /// # Errors
    /// [`PostError::Full`]: it has; [`PostError::Ended`]: it is too late.
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

    /// The shared queue that its receives come from.
    #[must_use]
    pub fn shared(&self) -> Option<SharedId> {
        self.options.shared
    }

    /// Takes a receive back that no message has begun to fill: the first one of that number; false
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

    /// Completions that wait.
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

    /// Ends with a fault that the peer is told.
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

    /// Everything that was posted is over.
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

    /// Marks work as over; what is over at the front is completed, in order.
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

    /// The oldest work that waits for its answer.
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

/// The fault that a tagged segment's sender is told.
fn tagged_cause(fault: Fault) -> Cause {
    match fault {
        Fault::Stag => Cause::TaggedStag,
        Fault::NotAssociated => Cause::TaggedNotAssociated,
        Fault::Access => Cause::AccessRights,
        Fault::Wrap => Cause::TaggedWrap,
        Fault::Bounds => Cause::TaggedBounds,
    }
}

/// The fault that a request's sender is told.
fn request_cause(fault: Fault) -> Cause {
    match fault {
        Fault::Stag => Cause::RequestStag,
        Fault::NotAssociated => Cause::RequestNotAssociated,
        Fault::Access => Cause::AccessRights,
        Fault::Wrap => Cause::RequestWrap,
        Fault::Bounds => Cause::RequestBounds,
    }
}
