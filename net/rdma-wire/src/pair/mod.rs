//! A queue pair: one stream, work both ways, completions in the order of posting.
//!
//! The crate's documentation has the invariants; the files next to this one:
//!
//! - `options`: the properties of a pair;
//! - `start`: the start frames, and their consequences;
//! - `input`: a received segment, its checks in the order of the layers, its placement;
//! - `ahead`: placements in memory, those of segments received out of order, and those of long ones
//!   as they come;
//! - `output`: the next unit to send, which `units` writes;
//! - `sends`, `receives`, `responses`, `completions`: the queues, each with its bound.

mod ahead;
mod completions;
mod input;
mod options;
mod output;
mod receives;
mod responses;
mod sends;
mod start;
mod units;

pub use options::{DEPTH_MAX, Options, ReadyBy, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, Setup};
pub use units::Part;

use crate::domain::{Access, Domain, PairId};
use crate::framing::{Deframer, Step};
use crate::memory::Memory;
use crate::piece::{Fault, Piece, PostError, Receive, SharedId, message_bytes};
use crate::wire::mpa::{Side, StartError};
use crate::wire::terminate::{Cause, Terminate};
use crate::work::{Completion, Kind, Post};
use ahead::{Landing, Placements};
use completions::Completions;
use output::Current;
use receives::{Mark, ReceiveQueue};
use responses::Responses;
use sends::SendQueue;
use start::Handshake;
use units::{Lent, MessageNumbers, Units};

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
    handshake: Handshake,
    /// The responder sends nothing before the initiator has (RFC 5044, section 7.1.2).
    may_send: bool,
    /// The message by which the initiator reports "ready to receive".
    ready: Option<Ready>,
    /// The first unit may have no bytes: the initiator reports "ready to receive" by it.
    may_be_empty: bool,

    deframer: Deframer,
    /// A segment that waits for a receive; nothing after it is processed.
    stalled: Option<(Vec<u8>, Mark)>,
    msn_in: MessageNumbers,
    receives: ReceiveQueue,
    placements: Placements,
    /// The unit whose payload is placed as it comes.
    landing: Option<Landing>,

    units: Units,
    sends: SendQueue,
    responses: Responses,
    /// The message being sent.
    current: Option<Current>,
    /// The unit whose payload is sent from its place.
    lent: Option<Lent>,
    /// Responses and work alternate; true if a response is next.
    response_first: bool,
    farewell: Option<Terminate>,
    closing: bool,

    completions: Completions,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ready {
    Empty,
    Write,
    Read,
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

    fn new(id: PairId, options: Options, side: Side) -> Self {
        let options = options.bounded();
        Self {
            id: options.owner.unwrap_or(id),
            options,
            state: State::Starting,
            end: None,
            handshake: Handshake::new(side),
            may_send: side == Side::Initiator,
            ready: None,
            may_be_empty: false,
            // The start decides on CRCs and markers.
            deframer: Deframer::new(false, false),
            stalled: None,
            msn_in: MessageNumbers::first(),
            receives: ReceiveQueue::new(&options),
            placements: Placements::default(),
            landing: None,
            units: Units::new(),
            sends: SendQueue::new(options.send_depth, options.ord),
            responses: Responses::new(options.ird),
            current: None,
            lent: None,
            response_first: false,
            farewell: None,
            closing: false,
            completions: Completions::new(options.send_depth + options.receive_depth),
        }
    }

    /// Gives it other depths and another owner, before it has work or receives: a responder's owner
    /// may choose them once it has the request. What the request decides stays.
    ///
    /// # Errors
    /// [`PostError::Ended`]: messages are exchanged already, or it has receives.
    pub fn adapt(&mut self, options: Options) -> Result<(), PostError> {
        let is_early = matches!(self.state, State::Starting | State::Requested);
        if !is_early || self.receives.check_empty().is_err() {
            return Err(PostError::Ended);
        }
        let options = Options {
            // The start has used them.
            crc: self.options.crc,
            markers: self.options.markers,
            setup: self.options.setup,
            ..options.bounded()
        };
        self.id = options.owner.unwrap_or(self.id);
        self.receives = ReceiveQueue::new(&options);
        self.sends = SendQueue::new(options.send_depth, options.ord);
        self.responses = Responses::new(options.ird);
        self.completions = Completions::new(options.send_depth + options.receive_depth);
        self.options = options;
        Ok(())
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
        self.handshake.private_data()
    }

    /// True if units have CRCs.
    #[must_use]
    pub fn has_crc(&self) -> bool {
        self.units.framer.crc
    }

    /// Reads and atomics that may be outstanding; and those that the peer serves and may have
    /// outstanding as its start frame says, if it negotiates them.
    #[must_use]
    pub fn depths(&self) -> (usize, Option<(u16, u16)>) {
        (self.sends.ord.into(), self.handshake.depths())
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
        // The held segment comes first: nothing behind it may overtake it.
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
                State::Open if self.landing.is_some() => self.land(&mut bytes, domain, memory),
                State::Open => match self.deframer.step(&mut bytes) {
                    Ok(Step::More) => self.begin_landing(domain, memory),
                    Ok(Step::There(segment, position, crc)) => {
                        // Copied only if it has to wait: the stream's buffer is not ours.
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
                        // Its memory serves the next unit that arrives in pieces.
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
            // RFC 5044, section 7.2: an end within a message is no orderly one.
            State::Open
                if self.deframer.is_between()
                    && self.landing.is_none()
                    && self.receives.incoming.is_none()
                    && self.stalled.is_none() =>
            {
                self.finish(End::Orderly);
            }
            _ => self.finish(End::Lost),
        }
    }

    /// The connection is lost.
    pub fn lose(&mut self) {
        self.finish(End::Lost);
        // The rest of it will not be read.
        self.lent = None;
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
            // With responses pending the peer still waits for data of ours.
            State::Open => self.closing && self.sends.len() == 0 && self.responses.is_empty(),
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
        // Unpolled completions count, too: otherwise an owner that never polls could post without a
        // bound.
        if self.sends.len() + self.completions.works() >= self.options.send_depth {
            return Err(PostError::Full(self.options.send_depth));
        }
        let rights = match post.work.kind() {
            Kind::Read => Access::LOCAL_WRITE,
            _ => Access::NONE,
        };
        self.check_pieces(post.work.pieces(), rights, domain)?;
        // It would wait in the queue for ever.
        if post.work.is_answered() && self.sends.ord == 0 {
            return Err(PostError::NoReads);
        }
        self.sends.push(post);
        Ok(())
    }

    /// Posts a buffer for a message of the peer.
    ///
    /// # Errors
    /// [`PostError`]; then nothing was posted.
    pub fn post_receive(&mut self, receive: Receive, domain: &Domain) -> Result<(), PostError> {
        if let Some(shared) = self.receives.shared() {
            return Err(PostError::Shared(shared));
        }
        if matches!(self.state, State::Ending | State::Ended) {
            return Err(PostError::Ended);
        }
        self.receives.check_room(self.completions.receives())?;
        self.check_pieces(&receive.pieces, Access::LOCAL_WRITE, domain)?;
        self.receives.push(receive);
        Ok(())
    }

    /// Makes it use a shared queue of the domain for receives. Only before messages are exchanged,
    /// and before it has receives of its own.
    ///
    /// # Errors
    /// [`PostError::Full`]: it has receives; [`PostError::Ended`]: it is too late.
    pub fn share_receives(&mut self, shared: SharedId) -> Result<(), PostError> {
        // Later a message may be half placed in a receive of the pair's own.
        if !matches!(self.state, State::Starting | State::Requested) {
            return Err(PostError::Ended);
        }
        self.receives.share(shared)
    }

    /// Its shared receive queue.
    #[must_use]
    pub fn shared(&self) -> Option<SharedId> {
        self.receives.shared()
    }

    /// Cancels a receive that no message has begun to fill: the first one with that number; false
    /// if there is none. It has no completion.
    pub fn cancel_receive(&mut self, id: u64) -> bool {
        self.receives.cancel(id)
    }

    /// The next completion.
    pub fn poll(&mut self) -> Option<Completion> {
        self.completions.pop()
    }

    /// Kind of the next completion.
    #[must_use]
    pub fn next_kind(&self) -> Option<Kind> {
        self.completions.next_kind()
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
        message_bytes(pieces).ok_or(PostError::TooLong)?;
        // A piece of no bytes accesses no memory, so its steering tag may be anything.
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
        // The first fault is the one that is reported.
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
        // The peer reads no more: a terminate message would only wait in the stream.
        self.farewell = None;
        // While it was ending, the reason was a fault of this side or a rejection.
        self.end.get_or_insert(end);
    }

    /// Flushes everything that was posted.
    fn flush(&mut self) {
        // Both queues, so that their owner gets each buffer back, done or not.
        self.sends.flush(&mut self.completions);
        self.receives.flush(&mut self.completions);
        self.current = None;
        self.landing = None;
        // One that was begun goes on: what follows it would otherwise be read as its payload.
        self.lent.take_if(|lent| !lent.is_begun());
        self.responses.clear();
        self.placements.clear();
        self.stalled = None;
    }

    /// True if `segment` begins a message that waits for a receive.
    fn lacks_receive(&self, segment: &[u8], domain: &Domain) -> bool {
        let unread = self.completions.receives();
        self.receives.is_missing_for(segment, unread, domain)
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
