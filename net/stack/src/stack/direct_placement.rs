//! Direct placement: the NIC puts payload into the receive ring, without a copy.
//!
//! Why here: a super-segment's 64 KiB are most of its cost, and a stream's next segment nearly
//! always follows the last. After several consecutive ones, the stack offers the space behind the
//! content of the receive ring as memory for the next payload. If another frame arrives, its bytes
//! are copied from the ring to the normal place of a frame, and it is processed as usual: a wrong
//! prediction costs a copy, never a byte. Must stay true: an offered room is valid only until the
//! next frame; at most one ring of the stack has a buffer while it is empty, and none while the
//! engine sleeps; a frame without a verified checksum, or one that differs from the prediction, is
//! processed as usual. Source: header-data split as in NICs.

use super::SessionId;
use super::sessions::Arrival;
use super::{Host, Stack};
use crate::buffer::NONE;
use crate::frame::{FRAME_BYTES_MAX, Received, ReceivedChecksum, Room};
use crate::secrets::Ends;
use crate::tcp::Session;
use crate::tcp::input::Input;
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::ip::{self, Codepoint};
use crate::wire::tcp::{self, Segment, Tcp};
use zerocopy::FromBytes;

/// The session whose payload is expected next, and its headers.
#[derive(Debug, Default)]
pub(crate) struct DirectPlacement {
    number: u32,
    generation: u32,
    /// Bytes of the Ethernet, IP and TCP headers.
    header_bytes: usize,
    /// Consecutive large segments, all of this session.
    streak: u32,
    /// A room was offered, and not used yet.
    offered: bool,
}

impl Stack {
    /// Memory for the payload of the expected next frame; none if no frame is expected. Its
    /// contents are undefined until [`Stack::receive_split`] accepts the frame.
    #[inline]
    pub fn room(&mut self) -> Option<Room<'_>> {
        if self.host.direct_placement.streak < STREAK {
            return None;
        }
        self.host.offer()
    }

    /// Takes a frame whose headers are in `frame.bytes` and whose other bytes are in the room that
    /// was just offered. Otherwise, and without such a room, as [`Stack::receive`].
    pub fn receive_split(&mut self, now_ns: u64, frame: Received<'_>) {
        if !self.host.direct_placement.offered {
            self.receive(now_ns, frame);
            return;
        }
        self.host.common.set_now(now_ns);
        if self.host.takes_placed(&frame) {
            self.host.common.counters.frames_received += 1;
            self.host.common.counters.direct_placements += 1;
            self.host.direct_placement.offered = false;
            return;
        }
        self.host.direct_placement.streak = 0;
        let header_bytes = self
            .host
            .direct_placement
            .header_bytes
            .min(frame.bytes.len());
        let missing = &mut frame.bytes[header_bytes..];
        if let Some(session) = self.host.expected()
            && let Some(pieces) = session.hot.rx.room(&mut session.common.pool, missing.len())
        {
            let (first, second) = missing.split_at_mut(pieces[0].len());
            first.copy_from_slice(pieces[0]);
            second.copy_from_slice(pieces[1]);
            // The ring gets the bytes again by the usual path, at its end.
            self.retract();
            self.receive(now_ns, frame);
        }
    }

    /// Makes a session's payload the expected one, regardless of earlier segments: public for the
    /// target `stack` of `lab/fuzz`.
    #[doc(hidden)]
    pub fn expect_at(&mut self, session: SessionId, header_bytes: usize) {
        self.retract();
        self.host.direct_placement = DirectPlacement {
            number: session.number,
            generation: session.generation,
            header_bytes,
            streak: STREAK,
            offered: false,
        };
    }

    /// Withdraws an unused room: before the engine sleeps, and before another payload is expected.
    #[inline]
    pub fn retract(&mut self) {
        self.host.retract();
    }
}

impl Host {
    /// Withdraws an unused room.
    #[inline]
    fn retract(&mut self) {
        if std::mem::take(&mut self.direct_placement.offered)
            && let Some(session) = self.expected()
            && session.hot.out_of_order == NONE
        {
            session.hot.rx.retract(&mut session.common.pool);
        }
    }

    fn offer(&mut self) -> Option<Room<'_>> {
        // Staged segments go into the same ring.
        self.process_staged_segments();
        let header_bytes = self.direct_placement.header_bytes;
        let bytes = FRAME_BYTES_MAX - header_bytes;
        if !self.expected()?.hot.takes_in_order(bytes) {
            // The window does not allow a full frame: the next segments will be small.
            self.direct_placement.streak = 0;
            return None;
        }
        self.direct_placement.offered = true;
        let (hot, _, _) = self.sessions.store.session(self.direct_placement.number);
        let payload = hot.rx.room(&mut self.common.pool, bytes)?;
        Some(Room {
            header_bytes,
            payload,
        })
    }

    /// A large segment was received: the next may follow it.
    pub(crate) fn expect_more(&mut self, number: u32, arrival: &Arrival, segment: &Segment<'_>) {
        let ip_bytes = ip::header_bytes(&arrival.ends.remote);
        let tcp_bytes = arrival.len - segment.payload.len();
        let generation = self.sessions.store.hot(number).generation;
        let next = DirectPlacement {
            number,
            generation,
            header_bytes: ethernet::HEADER_BYTES + ip_bytes + tcp_bytes,
            ..DirectPlacement::default()
        };
        let same = self.direct_placement.number == next.number
            && self.direct_placement.generation == next.generation
            && self.direct_placement.header_bytes == next.header_bytes;
        if same {
            self.direct_placement.streak = (self.direct_placement.streak + 1).min(STREAK);
        } else {
            self.retract();
            self.direct_placement = next;
        }
    }

    /// The session whose payload is expected, if it still exists.
    fn expected(&mut self) -> Option<Session<'_>> {
        let number = self.direct_placement.number;
        let known = self.sessions.store.knows(number);
        (known && self.sessions.store.hot(number).generation == self.direct_placement.generation)
            .then(|| self.sessions.access(&mut self.common, number))
    }

    /// True if the frame was exactly the expected one, and has been processed.
    fn takes_placed(&mut self, frame: &Received<'_>) -> bool {
        let Some((ends, ecn, tcp)) = self.expected_headers(frame) else {
            return false;
        };
        let Some(mut segment) = tcp::parse(tcp) else {
            return false;
        };
        let behind = segment.payload.len();
        if frame.bytes.len() - behind != self.direct_placement.header_bytes {
            return false;
        }
        // From here on only the length of the payload counts; its bytes are in the ring.
        segment.placed = true;
        // A mark differs from the prediction: such a segment is processed as usual.
        segment.ecn = ecn;
        self.expected().is_some_and(|session| {
            session.path.ends() == ends
                && session.hot.takes_in_order(behind)
                && Input::new(session, &segment).run_predicted()
        })
    }

    /// The ends of the frame, its ECN field, and its TCP header followed by as many bytes as its
    /// payload has: none if it is not for us, incomplete, or not verified.
    fn expected_headers<'f>(&self, frame: &'f Received<'_>) -> Option<(Ends, Codepoint, &'f [u8])> {
        // The checksum of bytes in another place is not computed here.
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
        plain.then_some((ends, packet.ecn, tcp))
    }
}

/// Least size of segments that are worth it.
pub(crate) const LARGE_BYTES: usize = 8 << 10;
/// Consecutive large segments of one session after which its next one is expected.
const STREAK: u32 = 3;
