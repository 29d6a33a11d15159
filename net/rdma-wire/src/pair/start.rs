//! The start: a request, a reply, and the parameters that both sides derive from them (RFC 5044,
//! section 7.1; RFC 6581, sections 8 to 10).

use super::options::{ReadyBy, Setup};
use super::{End, Pair, Ready, StartFault, State};
use crate::framing::{Deframer, Framer};
use crate::wire::mpa::{
    DEPTH_UNKNOWN, Enhanced, START_BYTES_MAX, Side, Start, StartError, private_bytes_max,
};
use crate::wire::terminate::{Cause, Terminate};

/// The two start frames of a stream, as bytes and as values.
#[derive(Debug)]
pub(super) struct Handshake {
    side: Side,
    /// Bytes of the peer's frame so far.
    input: Vec<u8>,
    /// This side's frame, of which `sent` bytes were sent.
    output: Vec<u8>,
    sent: usize,
    peer: Option<Start>,
}

impl Handshake {
    pub(super) fn new(side: Side) -> Self {
        Self {
            side,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            peer: None,
        }
    }

    /// Private data of the peer's frame.
    pub(super) fn private_data(&self) -> &[u8] {
        self.peer.as_ref().map_or(&[], |start| &start.private_data)
    }

    /// Reads that the peer serves, and that it may have outstanding.
    pub(super) fn depths(&self) -> Option<(u16, u16)> {
        let enhanced = self.peer.as_ref()?.enhanced?;
        Some((enhanced.ird, enhanced.ord))
    }

    /// True while bytes of this side's frame wait to be sent.
    pub(super) fn has_output(&self) -> bool {
        self.sent < self.output.len()
    }

    /// Writes the next bytes to send to the front of `target`; their number.
    pub(super) fn write(&mut self, target: &mut [u8]) -> usize {
        let rest = &self.output[self.sent..];
        let count = rest.len().min(target.len());
        target[..count].copy_from_slice(&rest[..count]);
        self.sent += count;
        count
    }

    /// Drops what was not sent.
    fn cancel(&mut self) {
        self.output = Vec::new();
        self.sent = 0;
    }

    /// Prepares this side's frame.
    fn prepare(&mut self, start: Start) -> Result<(), StartFault> {
        let (bytes, max) = (
            start.private_data.len(),
            private_bytes_max(start.enhanced.is_some()),
        );
        if bytes > max {
            return Err(StartFault::PrivateData(bytes, max));
        }
        self.output = start.bytes();
        Ok(())
    }

    /// Takes bytes of the peer's frame from the front of `bytes`; the frame, once it is complete.
    fn read(&mut self, bytes: &mut &[u8]) -> Result<Option<Start>, StartError> {
        // The bound of what a peer can make this side keep before it is known.
        let before = self.input.len();
        let room = (START_BYTES_MAX - before).min(bytes.len());
        self.input.extend_from_slice(&bytes[..room]);
        let side = match self.side {
            Side::Initiator => Side::Responder,
            Side::Responder => Side::Initiator,
        };
        let Some((start, count)) = Start::read(&self.input, side)? else {
            *bytes = &bytes[room..];
            return Ok(None);
        };
        // Bytes after the frame belong to the stream.
        *bytes = &bytes[count - before..];
        self.input = Vec::new();
        Ok(Some(start))
    }
}

impl Pair {
    /// Prepares the initiator's frame.
    pub(super) fn request(&mut self, private_data: &[u8]) -> Result<(), StartFault> {
        let options = self.options;
        let ready_by = match options.setup {
            Setup::Basic => return self.send_start(false, 1, None, private_data),
            Setup::Enhanced => None,
            Setup::PeerToPeer(ready_by) => Some(ready_by),
        };
        let by_message = ready_by == Some(ReadyBy::Message);
        let enhanced = Enhanced {
            peer_to_peer: ready_by.is_some(),
            ready_by_empty: ready_by == Some(ReadyBy::EmptyUnit),
            ready_by_write: by_message,
            // A read needs a place among the outstanding ones.
            ready_by_read: by_message && options.ord > 0,
            ird: options.ird,
            ord: options.ord,
        };
        self.send_start(false, 2, Some(enhanced), private_data)
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
        // The reply has the request's revision: the initiator may not know a later one.
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
        let request = self.handshake.peer.as_ref();
        let request = request.ok_or(StartFault::NotRequested)?;
        if self.state == State::Requested {
            Ok(request)
        } else {
            Err(StartFault::NotRequested)
        }
    }

    /// The responder's part of the set-up: at most as many reads as the initiator serves, and the
    /// first common way to report "ready to receive".
    fn answer_enhanced(&mut self, asked: Enhanced) -> Enhanced {
        self.sends.ord = depth(asked.ird).min(self.options.ord);
        let (by_write, by_read) = (asked.ready_by_write, asked.ready_by_read);
        // Exactly one way may be chosen (RFC 6581, section 9.2). A write costs least: it needs no
        // response, and every peer has it.
        let by_empty = asked.ready_by_empty && !by_write && !by_read;
        self.may_be_empty = asked.peer_to_peer && by_empty;
        Enhanced {
            peer_to_peer: asked.peer_to_peer,
            ready_by_empty: self.may_be_empty,
            ready_by_write: asked.peer_to_peer && by_write,
            ready_by_read: asked.peer_to_peer && by_read && !by_write,
            ird: self.options.ird,
            ord: self.sends.ord,
        }
    }

    fn send_start(
        &mut self,
        reject: bool,
        revision: u8,
        enhanced: Option<Enhanced>,
        private_data: &[u8],
    ) -> Result<(), StartFault> {
        let request = self.handshake.peer.as_ref();
        self.handshake.prepare(Start {
            side: self.handshake.side,
            markers: self.options.markers,
            // CRCs are used if either side wants them: the reply confirms those of the request.
            crc: self.options.crc || request.is_some_and(|request| request.crc),
            reject,
            revision,
            enhanced,
            private_data: private_data.to_vec(),
        })
    }

    /// Processes bytes of the peer's start frame.
    pub(super) fn receive_start(&mut self, bytes: &mut &[u8]) {
        match self.handshake.read(bytes) {
            Ok(None) => {}
            Ok(Some(start)) => match self.handshake.side {
                Side::Initiator => self.replied(start),
                Side::Responder => {
                    self.handshake.peer = Some(start);
                    self.state = State::Requested;
                }
            },
            Err(error) => self.fail_start(error.into()),
        }
    }

    fn replied(&mut self, reply: Start) {
        if reply.reject {
            self.handshake.peer = Some(reply);
            self.finish(End::Rejected);
            return;
        }
        let (markers, crc, enhanced) = (reply.markers, reply.crc, reply.enhanced);
        self.handshake.peer = Some(reply);
        // Before the checks below: from here on a fault is reported by a terminate message.
        self.open(markers, crc);
        let Some(enhanced) = enhanced.filter(|_| self.options.setup != Setup::Basic) else {
            return;
        };
        // RFC 6581, section 9.1: the responder's reads must fit, ours are reduced.
        let wanted = enhanced.ord;
        if wanted != DEPTH_UNKNOWN && wanted > self.options.ird {
            self.fail(Terminate::new(Cause::InsufficientReads));
            return;
        }
        self.sends.ord = self.sends.ord.min(depth(enhanced.ird));
        if let Setup::PeerToPeer(ready_by) = self.options.setup
            && enhanced.peer_to_peer
        {
            // Only a way that was offered: the responder may set no other flag.
            self.ready = if enhanced.ready_by_empty && ready_by == ReadyBy::EmptyUnit {
                Some(Ready::Empty)
            } else if enhanced.ready_by_write {
                Some(Ready::Write)
            } else if enhanced.ready_by_read && self.sends.ord > 0 {
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
        // Each side decides on the markers that it receives (RFC 5044, section 7.1.1).
        self.units.framer = Framer::new(crc, markers);
        self.deframer = Deframer::showing_heads(crc, self.options.markers);
        self.state = State::Open;
    }

    /// Before messages are exchanged a fault cannot be reported: the connection is closed (RFC
    /// 5044, section 7.1.3).
    pub(super) fn fail_start(&mut self, fault: StartFault) {
        self.handshake.cancel();
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
