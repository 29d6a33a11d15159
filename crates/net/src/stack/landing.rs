//! Payload that a NIC puts where it is wanted, without a copy in between.
//!
//! Why here: a super-segment's 64 KiB are most of its cost, and a stream's next segment is nearly always
//! the one that follows the last. So once some came in a row, the stack offers the receive ring behind
//! what is in it as the place for the next payload. If another frame comes, its bytes are copied out
//! of the ring to where a frame lies otherwise, and it goes the usual way: a wrong guess costs a copy,
//! never a byte.
//! Must stay true: a room lives only from its question to the next frame; one ring of the stack at most
//! has a buffer while it is empty, and none while the engine sleeps; a frame whose checksum nobody vouches for, or which
//! is not exactly what was expected, takes the usual way.
//! Source: header-data split as NICs have it.

use super::arrival::Arrival;
use super::sockets::SessionId;
use super::{Stack, session};
use crate::buffer::slab::NONE;
use crate::nic::{FRAME_BYTES_MAX, Received, ReceivedChecksum, Room};
use crate::secrets::Ends;
use crate::state::hot::{State, flag};
use crate::tcp::Session;
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::ip;
use crate::wire::tcp::{self, Segment, Tcp};
use zerocopy::FromBytes;

/// Whose payload is expected next, and behind what.
#[derive(Debug, Default)]
pub(crate) struct Landing {
    number: u32,
    generation: u32,
    /// Of Ethernet, IP and TCP.
    header_bytes: usize,
    /// Large segments in a row, all of this session.
    streak: u32,
    /// A room was offered, and nothing came into it yet.
    offered: bool,
}

impl Stack {
    /// Where the payload of the next frame is wanted, if it is the one that is expected; none where
    /// nothing is. What is put there is told by [`Stack::receive_split`]; it is nobody's until then.
    #[inline]
    pub fn room(&mut self) -> Option<Room<'_>> {
        if self.landing.streak < STREAK {
            return None;
        }
        self.offer()
    }

    fn offer(&mut self) -> Option<Room<'_>> {
        // What was put off goes into the same ring.
        self.settle_staged();
        let header_bytes = self.landing.header_bytes;
        let bytes = FRAME_BYTES_MAX - header_bytes;
        if !self.expected()?.takes(bytes) {
            self.landing.streak = 0;
            return None;
        }
        self.landing.offered = true;
        let (hot, _, _) = self.store.session(self.landing.number);
        let payload = hot.rx.room(&mut self.common.pool, bytes)?;
        Some(Room {
            header_bytes,
            payload,
        })
    }

    /// Takes a frame whose headers are in `frame.bytes` and of which all that is longer lies in the
    /// room that was offered a moment ago. Otherwise, and where none was, as [`Stack::receive`].
    pub fn receive_split(&mut self, now_ns: u64, frame: Received<'_>) {
        if !self.landing.offered {
            self.receive(now_ns, frame);
            return;
        }
        self.common.set_now(now_ns);
        if self.takes_landed(&frame) {
            self.common.counters.frames_received += 1;
            self.common.counters.landed += 1;
            self.landing.offered = false;
            return;
        }
        self.landing.streak = 0;
        let header_bytes = self.landing.header_bytes.min(frame.bytes.len());
        let missing = &mut frame.bytes[header_bytes..];
        if let Some(session) = self.expected()
            && let Some(pieces) = session.hot.rx.room(&mut session.common.pool, missing.len())
        {
            let (first, second) = missing.split_at_mut(pieces[0].len());
            first.copy_from_slice(pieces[0]);
            second.copy_from_slice(pieces[1]);
            self.retract();
            self.receive(now_ns, frame);
        }
    }

    /// A large segment has come to a session: the next may follow it.
    pub(crate) fn expect_more(&mut self, number: u32, arrival: &Arrival, segment: &Segment<'_>) {
        let ip_bytes = ip::header_bytes(&arrival.ends.remote);
        let tcp_bytes = arrival.len - segment.payload.len();
        let generation = self.store.hot(number).generation;
        let next = Landing {
            number,
            generation,
            header_bytes: ethernet::HEADER_BYTES + ip_bytes + tcp_bytes,
            ..Landing::default()
        };
        let same = self.landing.number == next.number
            && self.landing.generation == next.generation
            && self.landing.header_bytes == next.header_bytes;
        if same {
            self.landing.streak = (self.landing.streak + 1).min(STREAK);
        } else {
            self.retract();
            self.landing = next;
        }
    }

    /// Lets the next payload of a session be expected, whatever came before: for the fuzzer.
    pub(crate) fn expect_at(&mut self, session: SessionId, header_bytes: usize) {
        self.retract();
        self.landing = Landing {
            number: session.number,
            generation: session.generation,
            header_bytes,
            streak: STREAK,
            offered: false,
        };
    }

    /// Takes back what was offered and not used: before the engine sleeps, and before another is
    /// expected.
    #[inline]
    pub(crate) fn retract(&mut self) {
        if std::mem::take(&mut self.landing.offered)
            && let Some(session) = self.expected()
            && session.hot.gaps == NONE
        {
            session.hot.rx.retract(&mut session.common.pool);
        }
    }

    /// The session whose payload is expected, if it is still that one.
    fn expected(&mut self) -> Option<Session<'_>> {
        let number = self.landing.number;
        let known = self.store.knows(number);
        (known && self.store.hot(number).generation == self.landing.generation)
            .then(|| session(&mut self.store, &mut self.common, number))
    }

    /// True if the frame was exactly what was expected, and has been dealt with.
    fn takes_landed(&mut self, frame: &Received<'_>) -> bool {
        let Some((ends, tcp)) = self.expected_headers(frame) else {
            return false;
        };
        let Some(mut segment) = tcp::parse(tcp) else {
            return false;
        };
        let behind = segment.payload.len();
        if frame.bytes.len() - behind != self.landing.header_bytes {
            return false;
        }
        segment.landed = true;
        self.expected().is_some_and(|mut session| {
            session.path.ends() == ends
                && session.takes(behind)
                && session.input_predicted(&segment)
        })
    }

    /// Whose the frame is, and its TCP header with as many bytes behind as its payload has: none where
    /// it is not for us, not whole, or not known to be right.
    fn expected_headers<'f>(&self, frame: &'f Received<'_>) -> Option<(Ends, &'f [u8])> {
        // The checksum of bytes that lie elsewhere is not computed here.
        if frame.checksum == ReceivedChecksum::Unknown {
            return None;
        }
        let (header, _) = Ethernet::ref_from_prefix(frame.bytes).ok()?;
        let bytes = &frame.bytes[ethernet::HEADER_BYTES..];
        let packet = match header.kind.get() {
            ethernet::IPV4 => ip::parse_v4(bytes).ok()?,
            ethernet::IPV6 => ip::parse_v6(bytes).ok()?,
            _ => return None,
        };
        let plain = header.destination == self.common.interface.mac
            && packet.protocol == ip::TCP
            && packet.start == ip::header_bytes(&packet.source)
            && packet.end == bytes.len();
        let tcp = &bytes[packet.start..];
        let (fields, _) = Tcp::ref_from_prefix(tcp).ok()?;
        let ends = Ends {
            local: packet.destination,
            remote: packet.source,
            local_port: fields.destination.get(),
            remote_port: fields.source.get(),
        };
        plain.then_some((ends, tcp))
    }
}

impl Session<'_> {
    /// Whether so many bytes more, in order, are wanted in the ring.
    fn takes(&self, bytes: usize) -> bool {
        let hot = &*self.hot;
        hot.state == State::ESTABLISHED
            && hot.gaps == NONE
            && !hot.has(flag::DEAF | flag::DETACHED)
            && bytes <= hot.rcv_edge.wrapping_sub(hot.rcv_nxt) as usize
    }
}

/// Segments of at least so many bytes are worth it.
pub(crate) const LARGE_BYTES: usize = 8 << 10;
/// So many large segments in a row, and their session's next one is expected.
const STREAK: u32 = 3;
