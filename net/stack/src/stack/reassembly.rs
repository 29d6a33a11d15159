//! Reassembly of fragmented packets.
//!
//! Why here: senders of long packets rely on it (RFC 1122 section 3.3.2, RFC 8200 section 4.5).
//! Bytes are stored in the stack's buffers at their offset in the packet, so that nothing is sorted
//! at the end. Must stay true: at most [`DATAGRAMS_MAX`] packets and [`BYTES_MAX`] bytes are held,
//! the oldest is evicted first; a packet whose fragments contradict each other is never delivered,
//! and later fragments of it are dropped, too (RFC 5722 section 4). Source: RFC 791 section 3.2,
//! RFC 815 (missing parts), RFC 1122 section 3.3.2, RFC 3168 section 5.3 (marks), RFC 5722, RFC
//! 8200 section 4.5; timeouts and IPv4's overlaps as in Linux (`ip-sysctl`, `ipfrag_time`).

use crate::buffer::pool::{CLASS_BYTES, Pool};
use crate::buffer::ring::Ring;
use crate::checksum::Sum;
use crate::wire::fragment::{Fragment, HEAD_BYTES_MAX, Key, PACKET_BYTES_MAX};
use crate::wire::ip::{Codepoint, Ipv4, Ipv6, V6_BYTES, set_codepoint};
use crate::wire::{Ip, Mac};
use std::collections::VecDeque;
use zerocopy::FromBytes;
use zerocopy::network_endian::U16;

/// Incomplete packets, including refused ones until their timeout.
pub const DATAGRAMS_MAX: usize = 128;
/// Bytes of their buffers; Linux's default is the same.
pub const BYTES_MAX: usize = 4 << 20;
/// Fragments of one packet: the longest over the narrowest link of IPv4 (68 bytes) has 1,366.
const PIECES_MAX: usize = 2048;
/// RFC 1122 section 3.3.2 asks for 60 to 120 s, from a time when sending 65,536 packets took
/// longer. With the 16 bits of IPv4's identification, a shorter timeout joins fewer wrong fragments
/// (RFC 4963): 30 s, as in Linux.
const WAIT_V4_NS: u64 = 30_000_000_000;
/// RFC 8200 section 4.5.
const WAIT_V6_NS: u64 = 60_000_000_000;

/// An incomplete packet.
#[derive(Debug)]
pub(crate) struct Datagram {
    key: Key,
    until_ns: u64,
    /// Its bytes, without the headers.
    bytes: Ring,
    /// Fragments received, by offset; no two overlap.
    pieces: Vec<Piece>,
    /// Total bytes of the fragments.
    have: usize,
    /// Length of the packet, known once the last fragment has arrived.
    len: Option<usize>,
    /// The headers of the first fragment as received, and the protocol of the whole packet.
    head: [u8; HEAD_BYTES_MAX],
    head_len: usize,
    protocol: u8,
    /// Bytes of the first fragment.
    first_len: usize,
    /// True while all fragments were addressed to this host alone.
    unicast: bool,
    /// Hardware address of the sender of the last fragment.
    mac: Mac,
    /// Its fragments contradict each other.
    refused: bool,
    /// ECN fields of its fragments, a bit each: `1 << Codepoint`.
    ecn: u8,
}

/// Position of a fragment in its packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    /// In units of eight bytes.
    start: u16,
    bytes: u16,
}

impl Piece {
    fn of(fragment: &Fragment) -> Self {
        Self {
            start: (fragment.offset / 8) as u16,
            bytes: fragment.len() as u16,
        }
    }

    fn start(&self) -> usize {
        usize::from(self.start) * 8
    }

    fn end(&self) -> usize {
        self.start() + usize::from(self.bytes)
    }
}

/// Result of adding a fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Incomplete, or a duplicate.
    Waits,
    /// The packet is in [`Reassembly::whole`]; true if all its fragments were unicast.
    Whole { unicast: bool },
    /// It contradicts earlier fragments: the packet is refused.
    Refused,
    /// It belongs to a refused packet.
    Late,
    /// There is no memory for it; the fragments of its packet are dropped.
    NoMemory,
}

/// All incomplete packets.
#[derive(Debug, Default)]
pub(crate) struct Reassembly {
    /// The oldest first.
    datagrams: VecDeque<Datagram>,
    held_bytes: usize,
    /// The packet completed last, from its IP header on.
    pub(crate) whole: Vec<u8>,
    /// Packets evicted before their timeout.
    pub(crate) evicted: u64,
}

impl Reassembly {
    /// Number of incomplete packets, and the bytes of their buffers.
    pub(crate) fn held(&self) -> (usize, usize) {
        (self.datagrams.len(), self.held_bytes)
    }

    /// Next timeout.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        let ends = self.datagrams.iter().map(|datagram| datagram.until_ns);
        ends.min()
    }

    /// Adds a fragment; `packet` is the whole packet with it.
    pub(crate) fn take_in(
        &mut self,
        pool: &mut Pool,
        fragment: &Fragment,
        packet: &[u8],
        (mac, unicast): (Mac, bool),
        now_ns: u64,
    ) -> Outcome {
        let at = self.find_or_make(pool, &fragment.key, now_ns);
        let datagram = &mut self.datagrams[at];
        // A refused packet stays in the table, so that its later fragments are recognized.
        if datagram.refused {
            return Outcome::Late;
        }
        datagram.mac = mac;
        // The packet counts as unicast only if all its fragments were.
        datagram.unicast &= unicast;
        let bytes = &packet[fragment.head..fragment.end];
        match datagram.place(pool, fragment, bytes) {
            Overlap::New => {}
            Overlap::Known => return Outcome::Waits,
            Overlap::Contradicts => {
                self.refuse_at(pool, at);
                return Outcome::Refused;
            }
        }
        let end = fragment.offset + bytes.len();
        // Evicting older packets may change the index.
        let at = self.make_room(pool, at, end);
        let datagram = &mut self.datagrams[at];
        let before = datagram.bytes.held_bytes();
        let written = datagram.bytes.write_at(pool, fragment.offset, bytes);
        self.held_bytes += datagram.bytes.held_bytes() - before;
        if !written {
            self.remove(pool, at);
            return Outcome::NoMemory;
        }
        datagram.note(fragment, &packet[..fragment.head]);
        let Some(len) = datagram.complete() else {
            return Outcome::Waits;
        };
        // Together, the fragments may be too long, or their ECN marks may contradict each other.
        let fits = datagram.put_together(pool, len, &mut self.whole);
        let unicast = datagram.unicast;
        if !fits {
            self.refuse_at(pool, at);
            return Outcome::Refused;
        }
        self.remove(pool, at);
        Outcome::Whole { unicast }
    }

    /// Refuses the packet with these ends and this identification until its timeout.
    pub(crate) fn refuse(&mut self, pool: &mut Pool, key: &Key, now_ns: u64) {
        let at = self.find_or_make(pool, key, now_ns);
        self.refuse_at(pool, at);
    }

    /// Takes out a packet after its timeout, to be released once the error is sent.
    pub(crate) fn expired(&mut self, now_ns: u64) -> Option<Datagram> {
        let mut all = self.datagrams.iter();
        let at = all.position(|datagram| datagram.until_ns <= now_ns)?;
        let datagram = self.datagrams.remove(at)?;
        self.held_bytes -= datagram.bytes.held_bytes();
        Some(datagram)
    }

    /// Newest first: fragments of one packet usually arrive together.
    fn find_or_make(&mut self, pool: &mut Pool, key: &Key, now_ns: u64) -> usize {
        let mut all = self.datagrams.iter();
        if let Some(at) = all.rposition(|datagram| datagram.key == *key) {
            return at;
        }
        if self.datagrams.len() == DATAGRAMS_MAX {
            self.evict(pool, 0);
        }
        let wait_ns = if key.source.is_v4() {
            WAIT_V4_NS
        } else {
            WAIT_V6_NS
        };
        self.datagrams
            .push_back(Datagram::new(*key, now_ns + wait_ns));
        self.datagrams.len() - 1
    }

    /// Evicts the oldest others until the packet at `at` may hold `end` bytes; its new index.
    fn make_room(&mut self, pool: &mut Pool, mut at: usize, end: usize) -> usize {
        let own = self.datagrams[at].bytes.held_bytes();
        let wanted = CLASS_BYTES[Pool::class_for(end)].max(own);
        let mut oldest = 0;
        while self.held_bytes - own + wanted > BYTES_MAX && oldest < self.datagrams.len() {
            if oldest == at || self.datagrams[oldest].bytes.held_bytes() == 0 {
                oldest += 1;
                continue;
            }
            self.evict(pool, oldest);
            at -= usize::from(oldest < at);
        }
        at
    }

    fn evict(&mut self, pool: &mut Pool, at: usize) {
        self.evicted += u64::from(!self.datagrams[at].refused);
        self.remove(pool, at);
    }

    fn remove(&mut self, pool: &mut Pool, at: usize) {
        if let Some(mut datagram) = self.datagrams.remove(at) {
            self.held_bytes -= datagram.bytes.held_bytes();
            datagram.release(pool);
        }
    }

    fn refuse_at(&mut self, pool: &mut Pool, at: usize) {
        let datagram = &mut self.datagrams[at];
        self.held_bytes -= datagram.bytes.held_bytes();
        // Its memory is for packets that may still be completed; only the key must stay.
        datagram.release(pool);
        datagram.pieces = Vec::new();
        datagram.refused = true;
    }
}

/// Relation of a fragment to the bytes received so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overlap {
    New,
    /// The same bytes were received before.
    Known,
    Contradicts,
}

/// The bit of an ECN field in [`Datagram::ecn`].
fn ecn_bit(codepoint: Codepoint) -> u8 {
    1 << codepoint as u8
}

impl Datagram {
    fn new(key: Key, until_ns: u64) -> Self {
        Self {
            key,
            until_ns,
            bytes: Ring::EMPTY,
            pieces: Vec::new(),
            have: 0,
            len: None,
            head: [0; HEAD_BYTES_MAX],
            head_len: 0,
            protocol: 0,
            first_len: 0,
            unicast: true,
            mac: Mac::default(),
            refused: false,
            ecn: 0,
        }
    }

    fn place(&self, pool: &Pool, fragment: &Fragment, bytes: &[u8]) -> Overlap {
        let (start, end) = (fragment.offset, fragment.offset + bytes.len());
        let known_end = self.pieces.last().map_or(0, Piece::end);
        let beyond = self.len.is_some_and(|len| end > len);
        let short = !fragment.more && (end < known_end || self.len.is_some_and(|len| len != end));
        if beyond || short || self.pieces.len() >= PIECES_MAX {
            return Overlap::Contradicts;
        }
        let next = self.pieces.partition_point(|piece| piece.end() <= start);
        let Some(piece) = self.pieces.get(next).filter(|piece| piece.start() < end) else {
            return Overlap::New;
        };
        // RFC 8200 section 4.5: an exact duplicate may be ignored.
        let same = *piece == Piece::of(fragment)
            && fragment.more == (self.len != Some(end))
            && self.bytes.ahead(pool, fragment.offset, bytes.len()) == bytes;
        if same {
            Overlap::Known
        } else {
            // RFC 5722 section 4.
            Overlap::Contradicts
        }
    }

    /// Records the bytes of a fragment.
    fn note(&mut self, fragment: &Fragment, head: &[u8]) {
        let (start, end) = (fragment.offset, fragment.offset + fragment.len());
        if fragment.offset == 0 {
            self.head_len = head.len();
            self.head[..head.len()].copy_from_slice(head);
            self.protocol = fragment.protocol;
            self.first_len = fragment.len();
        }
        if !fragment.more {
            self.len = Some(end);
        }
        // Judged when all have arrived: one mark counts for the packet.
        self.ecn |= ecn_bit(fragment.ecn);
        let next = self.pieces.partition_point(|piece| piece.start() < start);
        self.pieces.insert(next, Piece::of(fragment));
        self.have += fragment.len();
    }

    /// Length of the packet, once all of it has arrived.
    fn complete(&self) -> Option<usize> {
        // Fragments do not overlap, and none is behind the last.
        self.len.filter(|&len| len == self.have)
    }

    /// Builds the packet as if it had been sent whole: IPv4's header with its options, IPv6's
    /// without the headers before the fragment header, which were processed. False if it is longer
    /// than any packet, or marked as no router may mark it.
    fn put_together(&self, pool: &Pool, len: usize, whole: &mut Vec<u8>) -> bool {
        whole.clear();
        let marked = self.ecn & ecn_bit(Codepoint::Ce) != 0;
        // RFC 3168 section 5.3: it must not become CE, and the mark must not be lost, so it is
        // dropped.
        if marked && self.ecn & ecn_bit(Codepoint::NotEct) != 0 {
            return false;
        }
        if self.key.source.is_v4() {
            if self.head_len + len > PACKET_BYTES_MAX {
                return false;
            }
            whole.extend_from_slice(&self.head[..self.head_len]);
            if let Ok((fields, _)) = Ipv4::mut_from_prefix(whole) {
                fields.total_bytes = U16::new((self.head_len + len) as u16);
                fields.fragment = U16::new(0);
                fields.checksum = [0; 2];
            }
            let field = Sum::of(whole).field();
            whole[10..12].copy_from_slice(&field);
        } else {
            whole.extend_from_slice(&self.head[..V6_BYTES]);
            if let Ok((fields, _)) = Ipv6::mut_from_prefix(whole) {
                fields.payload_bytes = U16::new(len as u16);
                fields.next = self.protocol;
            }
        }
        if marked {
            set_codepoint(whole, Codepoint::Ce);
        }
        whole.extend_from_slice(self.bytes.ahead(pool, 0, len));
        true
    }

    /// For an error about it: the first fragment as received, up to `bytes_max` bytes, and its
    /// sender. None if the first is missing, or was not unicast, or no error may be sent.
    pub(crate) fn first(&self, pool: &Pool, bytes_max: usize) -> Option<(Vec<u8>, Mac)> {
        if self.head_len == 0 || !self.unicast || self.refused {
            return None;
        }
        let len = self.first_len.min(bytes_max.saturating_sub(self.head_len));
        let bytes = self.bytes.ahead(pool, 0, len);
        Some(([&self.head[..self.head_len], bytes].concat(), self.mac))
    }

    /// Source and destination.
    pub(crate) fn ends(&self) -> (Ip, Ip) {
        (self.key.source, self.key.destination)
    }

    /// True if fragments overlapped with different contents (RFC 5722).
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Returns its buffer.
    pub(crate) fn release(&mut self, pool: &mut Pool) {
        self.bytes.release(pool);
    }
}
