//! UDP's header. Source: RFC 768; RFC 8200 section 8.1 for a checksum of zero.
//!
//! ```
//! use sidecore_net_wire::{Ip, udp};
//!
//! let datagram = b"\0\x35\xc0\0\0\x0c\0\0ping"; // from port 53, without a checksum
//! let (ours, theirs) = (Ip::v4([10, 0, 0, 1]), Ip::v4([10, 0, 0, 2]));
//! let (header, payload) = udp::parse(datagram, &theirs, &ours, true).expect("a datagram");
//! assert_eq!((header.source.get(), payload), (53, &b"ping"[..]));
//! // IPv6 demands one.
//! let (ours, theirs) = (Ip([0xfd; 16]), Ip([0xfe; 16]));
//! assert!(udp::parse(datagram, &theirs, &ours, true).is_none());
//! ```
#![expect(missing_docs, reason = "fields and constants have the RFCs' names")]

use super::address::Ip;
use super::ip::UDP;
use crate::checksum::{Sum, pseudo};
use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 8;

/// The length field of a datagram of `len` bytes with its header, which fits a packet.
#[inline]
pub fn length_of(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

/// The header.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Udp {
    pub source: U16,
    pub destination: U16,
    pub bytes: U16,
    pub checksum: [u8; 2],
}

/// Parses a datagram: its header, and its payload. `verify` is true if the checksum was not
/// verified yet.
#[inline]
pub fn parse<'p>(
    bytes: &'p [u8],
    source: &Ip,
    destination: &Ip,
    verify: bool,
) -> Option<(Udp, &'p [u8])> {
    let (header, _) = Udp::ref_from_prefix(bytes).ok()?;
    let len = usize::from(header.bytes.get());
    // A length below the packet's is no fault: the rest is padding.
    if len < HEADER_BYTES || len > bytes.len() {
        return None;
    }
    let none = header.checksum == [0; 2];
    // RFC 8200 section 8.1: over IPv6 a datagram without a checksum is discarded.
    if none && !source.is_v4() {
        return None;
    }
    if verify && !none {
        let sum = pseudo(source, destination, UDP)
            .plus_word(header.bytes.get())
            .plus(Sum::of(&bytes[..len]));
        if !sum.is_right() {
            return None;
        }
    }
    Some((*header, &bytes[HEADER_BYTES..len]))
}
