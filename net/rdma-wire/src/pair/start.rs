//! The start: a request, a reply, and the parameters that both sides derive from them (RFC 5044,
//! section 7.1; RFC 6581, sections 8 to 10).

use super::{End, Pair, Ready, StartFault, State};
use crate::framing::{Deframer, Framer};
use crate::wire::mpa::{DEPTH_UNKNOWN, Enhanced, START_BYTES_MAX, Side, Start};
use crate::wire::terminate::{Cause, Terminate};

impl Pair {
    /// Prepares the initiator's frame.
    pub(super) fn request(&mut self, private_data: &[u8]) -> Result<(), StartFault> {
        let options = self.options;
        let enhanced = options.enhanced.then_some(Enhanced {
            peer_to_peer: options.peer_to_peer,
            ready_by_empty: options.peer_to_peer && options.ready_by_empty,
            ready_by_write: options.peer_to_peer && !options.ready_by_empty,
            ready_by_read: options.peer_to_peer && !options.ready_by_empty && options.ord > 0,
            ird: options.ird,
            ord: options.ord,
        });
        let revision = if enhanced.is_some() { 2 } else { 1 };
        self.send_start(false, revision, enhanced, private_data)
    }

    /// Accepts the peer's request.
    ///
    /// # Errors
    /// [`StartFault`]: there is no request; too long private data.
    pub fn accept(&mut self, private_data: &[u8]) -> Result<(), StartFault> {
        let request = self.requested()?;
        let (revision, markers, crc) = (request.revision, request.markers, request.crc);
        let asked = request.enhanced;
        let enhanced = asked.map(|asked| self.answer_enhanced(asked));
        self.send_start(false, revision, enhanced, private_data)?;
        self.open(markers, crc);
        Ok(())
    }

    /// Rejects the peer's request.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub fn reject(&mut self, private_data: &[u8]) -> Result<(), StartFault> {
        let request = self.requested()?;
        let (revision, enhanced) = (request.revision, request.enhanced);
        let enhanced = enhanced.map(|_| Enhanced::default());
        self.send_start(true, revision, enhanced, private_data)?;
        self.flush();
        self.state = State::Ending;
        self.end = Some(End::Rejected);
        Ok(())
    }

    fn requested(&self) -> Result<&Start, StartFault> {
        let request = self.peer.as_ref().ok_or(StartFault::NotRequested)?;
        if self.state == State::Requested {
            Ok(request)
        } else {
            Err(StartFault::NotRequested)
        }
    }

    /// The responder's part of the set-up: at most as many reads as the initiator serves, and the
    /// first common way to report "ready to receive".
    fn answer_enhanced(&mut self, asked: Enhanced) -> Enhanced {
        self.ord = usize::from(depth(asked.ird).min(self.options.ord));
        let (by_write, by_read) = (asked.ready_by_write, asked.ready_by_read);
        let by_empty = asked.ready_by_empty && !by_write && !by_read;
        self.may_be_empty = asked.peer_to_peer && by_empty;
        Enhanced {
            peer_to_peer: asked.peer_to_peer,
            ready_by_empty: self.may_be_empty,
            ready_by_write: asked.peer_to_peer && by_write,
            ready_by_read: asked.peer_to_peer && by_read && !by_write,
            ird: self.options.ird,
            ord: self.ord as u16,
        }
    }

    fn send_start(
        &mut self,
        reject: bool,
        revision: u8,
        enhanced: Option<Enhanced>,
        private_data: &[u8],
    ) -> Result<(), StartFault> {
        let start = Start {
            side: self.side,
            markers: self.options.markers,
            crc: self.options.crc || self.peer.as_ref().is_some_and(|request| request.crc),
            reject,
            revision,
            enhanced,
            private_data: private_data.to_vec(),
        };
        let max = start.private_bytes_max();
        if private_data.len() > max {
            return Err(StartFault::PrivateData(private_data.len(), max));
        }
        self.start_out = start.bytes();
        Ok(())
    }

    /// Processes bytes of the peer's start frame.
    pub(super) fn receive_start(&mut self, bytes: &mut &[u8]) {
        let before = self.start_in.len();
        let room = (START_BYTES_MAX - before).min(bytes.len());
        self.start_in.extend_from_slice(&bytes[..room]);
        let side = match self.side {
            Side::Initiator => Side::Responder,
            Side::Responder => Side::Initiator,
        };
        match Start::read(&self.start_in, side) {
            Ok(None) => *bytes = &bytes[room..],
            Ok(Some((start, count))) => {
                // Bytes after the frame belong to the stream.
                *bytes = &bytes[count - before..];
                self.start_in = Vec::new();
                match self.side {
                    Side::Initiator => self.replied(start),
                    Side::Responder => {
                        self.peer = Some(start);
                        self.state = State::Requested;
                    }
                }
            }
            Err(error) => self.fail_start(error.into()),
        }
    }

    fn replied(&mut self, reply: Start) {
        if reply.reject {
            self.peer = Some(reply);
            self.finish(End::Rejected);
            return;
        }
        let (markers, crc, enhanced) = (reply.markers, reply.crc, reply.enhanced);
        self.peer = Some(reply);
        self.open(markers, crc);
        let Some(enhanced) = enhanced.filter(|_| self.options.enhanced) else {
            return;
        };
        // RFC 6581, section 9.1: the responder's reads must fit, ours are reduced.
        let wanted = enhanced.ord;
        if wanted != DEPTH_UNKNOWN && wanted > self.options.ird {
            self.fail(Terminate::new(Cause::InsufficientReads));
            return;
        }
        self.ord = self.ord.min(depth(enhanced.ird).into());
        if self.options.peer_to_peer && enhanced.peer_to_peer {
            self.ready = if enhanced.ready_by_empty && self.options.ready_by_empty {
                Some(Ready::Empty)
            } else if enhanced.ready_by_write {
                Some(Ready::Write)
            } else if enhanced.ready_by_read && self.ord > 0 {
                Some(Ready::Read)
            } else {
                self.fail(Terminate::new(Cause::NoReadyToReceive));
                None
            };
        }
    }

    /// Messages are exchanged from now on: with markers as the peer requests, CRCs if one side
    /// requests them.
    fn open(&mut self, markers: bool, crc: bool) {
        let crc = crc || self.options.crc;
        self.framer = Framer::new(crc, markers);
        self.deframer = Deframer::new(crc, self.options.markers);
        self.state = State::Open;
    }

    /// Before messages are exchanged a fault cannot be reported: the connection is closed (RFC
    /// 5044, section 7.1.3).
    pub(super) fn fail_start(&mut self, fault: StartFault) {
        self.start_out = Vec::new();
        self.start_gone = 0;
        self.finish(End::Start(fault));
    }
}

/// A depth of the peer; one that it does not negotiate is no limit.
fn depth(depth: u16) -> u16 {
    if depth == DEPTH_UNKNOWN {
        u16::MAX
    } else {
        depth
    }
}
