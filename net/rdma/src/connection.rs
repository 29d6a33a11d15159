//! A queue pair on a stream.

use crate::flow::{BUFFER_BYTES, Flow};
use crate::{
    Adapter, Completion, End, Options, Piece, Pieces, Post, RdmaError, Receive, Remote, State,
    Status, Stream, Work,
};
use sidecore_rdma_wire::{Pair, PairId};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Number of the work posted by [`Connection::put`] and similar calls: not for callers.
const OWN_ID: u64 = u64::MAX;

/// A connection.
#[derive(Debug)]
pub struct Connection<S> {
    flow: Flow,
    stream: S,
    input: Vec<u8>,
    completions: VecDeque<Completion>,
}

/// A peer's request for a connection.
#[derive(Debug)]
pub struct Request<S>(Connection<S>);

impl<S: Stream> Request<S> {
    /// Waits for a request on a stream that a peer has opened.
    ///
    /// # Errors
    /// None arrives in time, or it is invalid.
    pub fn wait(
        stream: S,
        adapter: &mut Adapter,
        options: Options,
        timeout: Duration,
    ) -> Result<Self, RdmaError> {
        let pair = Pair::listen(PairId(adapter.next_pair()), options);
        let mut connection = Connection::over(pair, stream);
        // An invalid request ends the pair, which `drive` reports.
        let is_there = |pair: &Pair| pair.state() == State::Requested;
        connection.drive(adapter, timeout, is_there)?;
        Ok(Self(connection))
    }

    /// The peer's private data.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.0.flow.pair.private_data()
    }

    /// Posts a buffer, so that it is there before the peer's first message.
    ///
    /// # Errors
    /// The pair refuses it.
    pub fn post_receive(&mut self, adapter: &Adapter, receive: Receive) -> Result<(), RdmaError> {
        self.0.post_receive(adapter, receive)
    }

    /// Accepts the request.
    ///
    /// # Errors
    /// Too long private data; the connection's.
    pub fn accept(
        mut self,
        adapter: &mut Adapter,
        private_data: &[u8],
    ) -> Result<Connection<S>, RdmaError> {
        self.0.flow.pair.accept(private_data)?;
        // The reply goes out now: the caller may not call for a while.
        self.0.progress(adapter)?;
        Ok(self.0)
    }

    /// Rejects the request; the rejection is sent within `timeout`.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub fn reject(
        mut self,
        adapter: &mut Adapter,
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<(), RdmaError> {
        self.0.flow.pair.reject(private_data)?;
        self.0.finish(adapter, timeout)
    }
}

impl<S: Stream> Connection<S> {
    fn over(pair: Pair, stream: S) -> Self {
        Self {
            flow: Flow::new(pair),
            stream,
            input: vec![0; BUFFER_BYTES],
            completions: VecDeque::new(),
        }
    }

    /// Requests a connection from the peer at the stream's other end; it is open on return.
    ///
    /// # Errors
    /// Rejected ([`RdmaError::Ended`]), late; the connection's.
    pub fn connect(
        stream: S,
        adapter: &mut Adapter,
        options: Options,
        private_data: &[u8],
        timeout: Duration,
    ) -> Result<Self, RdmaError> {
        let pair = Pair::connect(PairId(adapter.next_pair()), options, private_data)?;
        let mut connection = Self::over(pair, stream);
        // The message that reports "ready to receive" is sent without a call: settling applies to
        // it, too.
        connection.drive(adapter, timeout, |pair| pair.state() == State::Open)?;
        Ok(connection)
    }

    /// Delays the first messages: Linux's siw may lose those directly after its reply.
    pub fn settle(&mut self, time: Duration) {
        self.flow.settles = Some(Instant::now() + time);
    }

    /// The time of the first message: now, unless it is delayed ([`Self::settle`]).
    pub(crate) fn first_message(&self) -> Instant {
        let now = Instant::now();
        self.flow.settles.map_or(now, |settles| settles.max(now))
    }

    /// Private data of the peer's start frame.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.flow.pair.private_data()
    }

    /// The pair: its state, its end, the negotiated parameters.
    #[must_use]
    pub fn pair(&self) -> &Pair {
        &self.flow.pair
    }

    /// Posts work.
    ///
    /// # Errors
    /// The pair refuses it.
    pub fn post(&mut self, adapter: &Adapter, post: Post) -> Result<(), RdmaError> {
        Ok(self.flow.pair.post(post, &adapter.domain)?)
    }

    /// Posts a buffer for a message of the peer.
    ///
    /// # Errors
    /// The pair refuses it.
    pub fn post_receive(&mut self, adapter: &Adapter, receive: Receive) -> Result<(), RdmaError> {
        Ok(self.flow.pair.post_receive(receive, &adapter.domain)?)
    }

    /// The next completion, after making progress.
    ///
    /// # Errors
    /// The connection's.
    pub fn poll(&mut self, adapter: &mut Adapter) -> Result<Option<Completion>, RdmaError> {
        self.progress(adapter)?;
        Ok(self.next_completion())
    }

    fn next_completion(&mut self) -> Option<Completion> {
        // Those set aside by `finish_own` are older.
        self.completions
            .pop_front()
            .or_else(|| self.flow.pair.poll())
    }

    /// The next completion; waits for it.
    ///
    /// # Errors
    /// Ended, late; the connection's.
    pub fn wait(
        &mut self,
        adapter: &mut Adapter,
        timeout: Duration,
    ) -> Result<Completion, RdmaError> {
        if let Some(completion) = self.next_completion() {
            return Ok(completion);
        }
        self.drive(adapter, timeout, |pair| pair.completions() > 0)?;
        self.next_completion().ok_or(RdmaError::Late(timeout))
    }

    /// Copies `from` to a location of the peer. On return it was passed to the stream, and every
    /// later message arrives after it.
    ///
    /// # Errors
    /// Refused, flushed, late; the connection's.
    pub fn put(
        &mut self,
        adapter: &mut Adapter,
        from: Piece,
        to: Remote,
        timeout: Duration,
    ) -> Result<(), RdmaError> {
        let pieces = Pieces::from_iter([from]);
        let work = Work::Write { pieces, remote: to };
        self.finish_own(adapter, work, timeout).map(drop)
    }

    /// Copies from a location of the peer into `into`; it is there on return.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn get(
        &mut self,
        adapter: &mut Adapter,
        into: Piece,
        from: Remote,
        timeout: Duration,
    ) -> Result<(), RdmaError> {
        let work = Work::Read { into, remote: from };
        self.finish_own(adapter, work, timeout).map(drop)
    }

    /// Sends a message to the peer's next receive; it was passed to the stream on return.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn send(
        &mut self,
        adapter: &mut Adapter,
        from: Piece,
        timeout: Duration,
    ) -> Result<(), RdmaError> {
        let work = Work::Send {
            pieces: Pieces::from_iter([from]),
            invalidate: None,
            solicited: false,
        };
        self.finish_own(adapter, work, timeout).map(drop)
    }

    fn finish_own(
        &mut self,
        adapter: &mut Adapter,
        work: Work,
        timeout: Duration,
    ) -> Result<Completion, RdmaError> {
        let post = Post {
            id: OWN_ID,
            work,
            fence: false,
        };
        let kind = post.work.kind();
        self.post(adapter, post)?;
        let until = Instant::now() + timeout;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            self.drive(adapter, left, |pair| pair.completions() > 0)?;
            while let Some(completion) = self.flow.pair.poll() {
                if (completion.id, completion.kind) != (OWN_ID, kind) {
                    // Other work's: their number is bounded by the pair's queues.
                    self.completions.push_back(completion);
                } else if completion.status == Status::Done {
                    return Ok(completion);
                } else {
                    return Err(RdmaError::Undone(completion.status));
                }
            }
        }
    }

    /// Closes in order: posted work is completed, both streams end.
    ///
    /// # Errors
    /// Late; the connection's.
    pub fn close(mut self, adapter: &mut Adapter, timeout: Duration) -> Result<(), RdmaError> {
        self.flow.pair.close();
        self.finish(adapter, timeout)
    }

    fn finish(&mut self, adapter: &mut Adapter, timeout: Duration) -> Result<(), RdmaError> {
        match self.drive(adapter, timeout, |_| false) {
            // `drive` knows no other success than an end, which is an error to its other callers.
            Err(RdmaError::Ended(End::Orderly | End::Rejected)) => Ok(()),
            other => other,
        }
    }

    /// Makes progress without waiting; true if any byte was moved.
    ///
    /// # Errors
    /// The connection's.
    pub fn progress(&mut self, adapter: &mut Adapter) -> Result<bool, RdmaError> {
        let moved = self
            .flow
            .progress(&mut self.stream, &mut self.input, adapter)?;
        Ok(moved.anything)
    }

    /// Makes progress until `is_done`, or the end.
    fn drive(
        &mut self,
        adapter: &mut Adapter,
        timeout: Duration,
        is_done: impl Fn(&Pair) -> bool,
    ) -> Result<(), RdmaError> {
        let until = Instant::now() + timeout;
        loop {
            let moved = self.progress(adapter)?;
            if is_done(&self.flow.pair) {
                return Ok(());
            }
            // Data that a closed peer does not read any more is not waited for.
            let is_sent = self.flow.is_drained() || self.flow.has_ended;
            if self.flow.pair.state() == State::Ended && is_sent {
                let end = self.flow.pair.end().cloned();
                return Err(RdmaError::Ended(end.unwrap_or(End::Lost)));
            }
            // A peer that never stops sending must not prevent the timeout.
            let now = Instant::now();
            if now >= until {
                return Err(RdmaError::Late(timeout));
            }
            // Bytes that moved may have made room for others.
            if moved {
                continue;
            }
            let waits = until - now;
            // While messages are delayed the stream stays writable: only reading would wait.
            match self.flow.settles.filter(|&settles| settles > now) {
                Some(settles) => self.stream.wait(false, waits.min(settles - now))?,
                None => self.stream.wait(!self.flow.is_drained(), waits)?,
            }
        }
    }
}
