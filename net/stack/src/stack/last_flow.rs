//! Fast path for a frame that continues the flow of the previous one.
//!
//! Why here: in a bulk transfer nearly every frame has the ends of the last one. The way from such
//! a frame to its session is known already: the addresses, the hash, the table entry. Everything
//! that may differ is checked as usual: lengths, checksums, and all TCP fields. Adjacent frames of
//! a batch thus share only the look-up: the TCP state machine gets every segment separately, with
//! unchanged acknowledgments, samples and windows.
//!
//! Must stay true: the pattern covers every byte that determines the session of a frame, except
//! those that are checked here in each frame; a frame that is not accepted here has changed no
//! state, and takes the normal path, which counts its errors. Source: the fields that Linux
//! compares before it merges (inet_gro_receive and ipv6_gro_receive).

use super::Host;
use super::arrival::STAGED_BYTES;
use super::direct_placement::LARGE_BYTES;
use crate::buffer::NONE;
use crate::checksum::{Sum, pseudo};
use crate::frame::{Received, ReceivedChecksum};
use crate::state::hot::State;
use crate::tcp::input::Input;
use crate::wire::ethernet;
use crate::wire::ip::{self, Codepoint, Packet};
use crate::wire::tcp;

/// Header pattern of the last flow, compared with the next frame.
#[derive(Debug)]
pub(crate) struct LastFlow {
    /// Session of the last large segment that was found in the table; or none.
    last: u32,
    /// The session of the pattern, and its generation; none if there is no pattern.
    session: u32,
    generation: u32,
    /// A frame's first bytes, and a mask of the bits that the next one must share.
    frame: [u8; PATTERN_BYTES],
    mask: &'static [u8; PATTERN_BYTES],
    is_v4: bool,
    /// Sum of the pseudo-header's addresses and protocol.
    addresses: Sum,
}

impl LastFlow {
    /// No pattern yet.
    pub(crate) fn new() -> Self {
        Self {
            last: NONE,
            session: NONE,
            generation: 0,
            frame: [0; PATTERN_BYTES],
            mask: &MASK_V4,
            is_v4: true,
            addresses: Sum::default(),
        }
    }

    /// The ECN field and the segment in `frame`, if it is intact and for the pattern's session.
    #[inline]
    fn segment<'f>(&self, frame: &'f Received<'_>) -> Option<(Codepoint, &'f [u8])> {
        let bytes = &*frame.bytes;
        let head = bytes.first_chunk::<PATTERN_BYTES>()?;
        let words = |bytes: &[u8; PATTERN_BYTES], at: usize| {
            u64::from_ne_bytes(std::array::from_fn(|byte| bytes[at + byte]))
        };
        let differs = (0..PATTERN_BYTES).step_by(8).fold(0, |differs, at| {
            differs | (words(head, at) ^ words(&self.frame, at)) & words(self.mask, at)
        });
        if differs != 0 {
            return None;
        }
        let packet = &bytes[ethernet::HEADER_BYTES..];
        let number = |at: usize| usize::from(u16::from_be_bytes([packet[at], packet[at + 1]]));
        // Not compared: any packet may be marked, and the state machine handles it.
        let (ecn, start, end) = if self.is_v4 {
            // RFC 1122 section 3.2.1.2: a host must verify it.
            if !Sum::of(&packet[..ip::V4_BYTES]).is_right() {
                return None;
            }
            (Codepoint::of(packet[1]), ip::V4_BYTES, number(2))
        } else {
            let ecn = Codepoint::of(packet[1] >> 4);
            (ecn, ip::V6_BYTES, ip::V6_BYTES + number(4))
        };
        let segment = packet.get(start..end)?;
        // Small segments are staged; super-segments may be placed directly.
        if segment.len() <= STAGED_BYTES || segment.len() >= LARGE_BYTES {
            return None;
        }
        // RFC 9293 section 3.1 (MUST-3).
        let right = frame.checksum != ReceivedChecksum::Unknown || {
            let addresses = self.addresses.plus_len(segment.len());
            addresses.plus(Sum::of(segment)).is_right()
        };
        right.then_some((ecn, segment))
    }
}

impl Host {
    /// Takes a frame that continues the last flow; false if it does not, without any change.
    #[inline]
    pub(crate) fn arrive_by_last_flow(&mut self, frame: &Received<'_>) -> bool {
        if self.last_flow.session == NONE {
            return false;
        }
        let number = self.last_flow.session;
        let Some((ecn, bytes)) = self.last_flow.segment(frame) else {
            return false;
        };
        let Some(mut segment) = tcp::parse(bytes) else {
            return false;
        };
        segment.ecn = ecn;
        let hot = self.sessions.store.hot(number);
        if hot.generation != self.last_flow.generation || hot.state() != State::Established {
            self.last_flow.session = NONE;
            return false;
        }
        // Staged segments come first.
        self.process_staged_segments();
        Input::new(self.sessions.access(&mut self.common, number), &segment).run();
        self.sweep();
        true
    }

    /// A frame took the normal path to this session: the second consecutive one becomes the
    /// pattern. `bytes` are the frame's.
    #[inline]
    pub(crate) fn note_last_flow(&mut self, number: u32, packet: &Packet, bytes: &[u8]) {
        let repeated = std::mem::replace(&mut self.last_flow.last, number) == number;
        if repeated {
            self.set_last_flow(number, packet, bytes);
        }
    }

    fn set_last_flow(&mut self, number: u32, packet: &Packet, bytes: &[u8]) {
        let (plain, mask) = if packet.source.is_v4() {
            (ip::V4_BYTES, &MASK_V4)
        } else {
            (ip::V6_BYTES, &MASK_V6)
        };
        let hot = self.sessions.store.hot(number);
        if let Some(frame) = bytes.first_chunk()
            // No other header between them that could differ.
            && packet.start == plain
            && hot.state() == State::Established
        {
            self.last_flow = LastFlow {
                last: number,
                session: number,
                generation: hot.generation,
                frame: *frame,
                mask,
                is_v4: packet.source.is_v4(),
                addresses: pseudo(&packet.source, &packet.destination, ip::TCP),
            };
        }
    }
}

/// Ethernet, IPv6 and TCP's ports: 58, and whole words.
const PATTERN_BYTES: usize = 64;

/// Hardware addresses and type; version and header length; fragment fields; protocol and addresses;
/// ports. Excluded: class, length, identification, hops, and the checksum, which is verified.
static MASK_V4: [u8; PATTERN_BYTES] = mask(&[(0, 15), (21, 22), (23, 24), (26, 38)], (20, 0x3f));

/// As above; version, protocol, addresses and ports. Excluded: class, label, length, hops.
static MASK_V6: [u8; PATTERN_BYTES] = mask(&[(0, 14), (20, 21), (22, 58)], (14, 0xf0));

/// All bits of the bytes from `ranges`, and some of one more.
const fn mask(ranges: &[(usize, usize)], (at, bits): (usize, u8)) -> [u8; PATTERN_BYTES] {
    let mut mask = [0; PATTERN_BYTES];
    mask[at] = bits;
    let mut range = 0;
    while range < ranges.len() {
        let mut byte = ranges[range].0;
        while byte < ranges[range].1 {
            mask[byte] = 0xff;
            byte += 1;
        }
        range += 1;
    }
    mask
}
