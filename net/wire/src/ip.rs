//! IPv4 and IPv6 headers: parsing received ones, and writing ours.
//!
//! This module only recognizes a fragment; [`super::fragment`] parses it. TCP never sends
//! fragments: every unfragmented packet of ours has "do not fragment" set. Source: RFC 791, RFC
//! 6864 (identification), RFC 8200.
//!
//! ```
//! use sidecore_net_wire::{Ip, ip};
//!
//! let (source, destination) = (Ip::v4([10, 0, 0, 1]), Ip::v4([10, 0, 0, 2]));
//! let mut packet = [0; ip::V4_BYTES + 4];
//! ip::write(&mut packet, &source, &destination, ip::UDP, ip::HOPS, 4);
//! let read = ip::parse_v4(&packet).expect("a packet");
//! assert_eq!((read.source, read.protocol), (source, ip::UDP));
//! assert_eq!((read.start, read.end), (20, 24));
//! packet[15] ^= 1;
//! assert_eq!(ip::parse_v4(&packet), Err(ip::Bad::Checksum));
//! ```
#![expect(missing_docs, reason = "fields and constants have the RFCs' names")]

use super::address::Ip;
use crate::checksum::Sum;
use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Protocol numbers.
pub const ICMP: u8 = 1;
/// Group membership, IPv4.
pub const IGMP: u8 = 2;
/// TCP.
pub const TCP: u8 = 6;
/// UDP.
pub const UDP: u8 = 17;
/// ICMP for IPv6.
pub const ICMPV6: u8 = 58;
/// Nothing follows (RFC 8200 section 4.7).
pub const NO_NEXT: u8 = 59;
/// Bytes of an IPv4 header without options.
pub const V4_BYTES: usize = 20;
/// Bytes of an IPv6 header.
pub const V6_BYTES: usize = 40;
/// The longest packet that every IPv6 link takes (RFC 8200 section 5).
pub const V6_MTU_MIN: usize = 1280;
/// Hop limit of sent packets (RFC 1700's default).
pub const HOPS: u8 = 64;
/// IPv6's fragment header.
pub const FRAGMENT: u8 = 44;
/// IPv4 options: RFC 791 section 3.1.
const OPTION_END: u8 = 0;
const OPTION_NOP: u8 = 1;
const OPTION_LSRR: u8 = 131;
const OPTION_SSRR: u8 = 137;
/// IPv6's padding of one byte, the only option without a length: RFC 8200 section 4.2.
const OPTION_PAD1: u8 = 0;
/// Offset of the next header field in the IPv6 header.
const V6_NEXT_AT: usize = 6;
/// Offset of IPv4's header checksum.
const CHECKSUM_AT: usize = 10;
/// ECN bits of a type of service or traffic class: RFC 3168 section 5.
const ECN_BITS: u8 = 3;
/// Position of IPv6's traffic class in its first word.
const CLASS_SHIFT: u32 = 20;
/// Extension headers that are skipped in one packet, at most.
const EXTENSIONS_MAX: usize = 8;

/// ECN field of an IP header (RFC 3168 section 5): the low two bits of IPv4's type of service and
/// of IPv6's traffic class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Codepoint {
    /// Not ECN-capable: a congested router can only drop it.
    #[default]
    NotEct = 0,
    /// ECN-capable transport, ECT(1).
    Ect1 = 1,
    /// ECN-capable transport, ECT(0): used by our data (RFC 8311 section 4.2).
    Ect0 = 2,
    /// Congestion experienced: a router marked it instead of dropping it.
    Ce = 3,
}

impl Codepoint {
    /// The codepoint in the low two bits of a type of service or traffic class.
    #[inline]
    pub const fn of(class: u8) -> Self {
        match class & ECN_BITS {
            0 => Self::NotEct,
            1 => Self::Ect1,
            2 => Self::Ect0,
            _ => Self::Ce,
        }
    }
}

/// IPv4's header.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ipv4 {
    pub version_words: u8,
    pub service: u8,
    pub total_bytes: U16,
    pub identification: U16,
    pub fragment: U16,
    pub hops: u8,
    pub protocol: u8,
    pub checksum: [u8; 2],
    pub source: [u8; 4],
    pub destination: [u8; 4],
}

/// IPv6's header.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ipv6 {
    pub version_class_label: U32,
    pub payload_bytes: U16,
    pub next: u8,
    pub hops: u8,
    pub source: Ip,
    pub destination: Ip,
}

/// A packet of either family: the fields that the layer above needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packet {
    pub source: Ip,
    pub destination: Ip,
    pub protocol: u8,
    pub hops: u8,
    /// ECN field (RFC 3168 section 5).
    pub ecn: Codepoint,
    /// First payload byte in the packet.
    pub start: usize,
    /// End of the payload in the packet.
    pub end: usize,
}

/// The reason why a packet is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bad {
    /// Too short, with inconsistent lengths, or of a wrong version.
    Malformed,
    /// IPv4's header checksum is wrong.
    Checksum,
    /// A fragment.
    Fragment,
    /// An IPv6 packet between IPv4-mapped addresses, which represent IPv4 here (RFC 4291 section
    /// 2.5.5.2) and are never valid on the wire.
    Martian,
    /// An IPv4 source route (RFC 791 section 3.1); rejected, as RFC 7126 section 4.3 advises.
    SourceRoute,
    /// An unknown IPv6 option that must not be skipped (RFC 8200 section 4.2), at this offset in
    /// the packet.
    Option { pointer: usize, report: Report },
    /// An IPv6 routing header with segments left (RFC 8200 section 4.4), whose type is at this
    /// offset in the packet.
    Routing { pointer: usize },
}

/// Recipient of a report about an unknown IPv6 option: the two highest bits of its type (RFC 8200
/// section 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    /// 01: none.
    Never,
    /// 10: the source, even if the packet was sent to a group.
    Always,
    /// 11: the source, unless the packet was sent to a group.
    Unicast,
}

/// Parses an IPv4 packet. Bytes after its total length (Ethernet's padding) are ignored.
#[inline]
pub fn parse_v4(bytes: &[u8]) -> Result<Packet, Bad> {
    let (header, _) = Ipv4::ref_from_prefix(bytes).map_err(|_| Bad::Malformed)?;
    let start = usize::from(header.version_words & 0x0f) * 4;
    let end = usize::from(header.total_bytes.get());
    if header.version_words >> 4 != 4 || start < V4_BYTES || end < start || end > bytes.len() {
        return Err(Bad::Malformed);
    }
    // RFC 1122 section 3.2.1.2: a host must verify it.
    if !Sum::of(&bytes[..start]).is_right() {
        return Err(Bad::Checksum);
    }
    if start > V4_BYTES && has_source_route(&bytes[V4_BYTES..start]) {
        return Err(Bad::SourceRoute);
    }
    // RFC 791 section 3.1: more fragments, or an offset.
    if header.fragment.get() & 0x3fff != 0 {
        return Err(Bad::Fragment);
    }
    Ok(Packet {
        source: Ip::v4(header.source),
        destination: Ip::v4(header.destination),
        protocol: header.protocol,
        hops: header.hops,
        ecn: Codepoint::of(header.service),
        start,
        end,
    })
}

/// Parses an IPv6 packet and skips hop-by-hop, routing and destination options.
#[inline]
pub fn parse_v6(bytes: &[u8]) -> Result<Packet, Bad> {
    let (header, _) = Ipv6::ref_from_prefix(bytes).map_err(|_| Bad::Malformed)?;
    let end = V6_BYTES + usize::from(header.payload_bytes.get());
    if header.version_class_label.get() >> 28 != 6 || end > bytes.len() {
        return Err(Bad::Malformed);
    }
    if header.source.is_v4() || header.destination.is_v4() {
        return Err(Bad::Martian);
    }
    let (start, protocol) = chain(&bytes[..end], V6_BYTES, header.next)?;
    if protocol == FRAGMENT {
        return Err(Bad::Fragment);
    }
    Ok(Packet {
        source: header.source,
        destination: header.destination,
        protocol,
        hops: header.hops,
        ecn: class_codepoint(header.version_class_label),
        start,
        end,
    })
}

/// Walks the headers from `start` on, the first of which is a `protocol`, up to the first that is
/// neither options nor routing of RFC 8200: its offset and protocol.
#[inline]
pub fn chain(bytes: &[u8], mut start: usize, mut protocol: u8) -> Result<(usize, u8), Bad> {
    // A longer chain ends as an unknown protocol, which bounds the work for a packet.
    for _ in 0..EXTENSIONS_MAX {
        // RFC 8200 sections 4.3, 4.4 and 4.6: hop-by-hop, routing, destination options. Hop-by-hop
        // options after another header are an unknown protocol (section 4).
        if !matches!(protocol, 43 | 60) && (protocol != 0 || start != V6_BYTES) {
            break;
        }
        let Some(&[next, units]) = bytes.get(start..start + 2) else {
            return Err(Bad::Malformed);
        };
        // RFC 8200 section 4.4: segments left must be 0 for a packet at its destination.
        if protocol == 43 {
            match bytes.get(start + 3) {
                Some(0) => {}
                Some(_) => return Err(Bad::Routing { pointer: start + 2 }),
                None => return Err(Bad::Malformed),
            }
        }
        // RFC 8200 section 4.3: the length leaves out the first eight bytes.
        let header_end = start + (usize::from(units) + 1) * 8;
        if protocol != 43 {
            let options = bytes.get(start + 2..header_end).ok_or(Bad::Malformed)?;
            check_options(options, start + 2)?;
        }
        start = header_end;
        protocol = next;
    }
    if start > bytes.len() {
        return Err(Bad::Malformed);
    }
    Ok((start, protocol))
}

/// The header after an IPv6 packet's extension headers, none of which begins at `end` or later: the
/// offset of the field with its protocol, its own offset, and its protocol. Without validation; for
/// errors about rejected packets.
#[cold]
#[inline]
pub fn last_header(bytes: &[u8], end: usize) -> (usize, usize, u8) {
    let (mut place, mut start) = (V6_NEXT_AT, V6_BYTES);
    let mut protocol = bytes.get(place).copied().unwrap_or(NO_NEXT);
    while start < end && matches!(protocol, 0 | 43 | 60 | FRAGMENT) {
        let Some(&[next, units]) = bytes.get(start..start + 2) else {
            break;
        };
        place = start;
        start += match protocol {
            // Its second byte is reserved, not a length.
            FRAGMENT => 8,
            _ => (usize::from(units) + 1) * 8,
        };
        protocol = next;
    }
    (place, start, protocol)
}

/// RFC 8200 section 4.2: skips options, or returns the reason why it must not. `at` is their offset
/// in the packet.
fn check_options(options: &[u8], at: usize) -> Result<(), Bad> {
    let mut place = 0;
    while let Some(&kind) = options.get(place) {
        if kind == OPTION_PAD1 {
            place += 1;
            continue;
        }
        let Some(&len) = options.get(place + 1) else {
            return Err(Bad::Malformed);
        };
        let report = match kind >> 6 {
            // Known ones (padding, RFC 2711's router alert) have these bits.
            0 => None,
            1 => Some(Report::Never),
            2 => Some(Report::Always),
            _ => Some(Report::Unicast),
        };
        if let Some(report) = report {
            let pointer = at + place;
            return Err(Bad::Option { pointer, report });
        }
        place += 2 + usize::from(len);
    }
    // An option that ends beyond its header.
    if place > options.len() {
        return Err(Bad::Malformed);
    }
    Ok(())
}

/// True if IPv4 options contain a loose or a strict source route.
#[cold]
fn has_source_route(options: &[u8]) -> bool {
    let mut place = 0;
    while let Some(&kind) = options.get(place) {
        match kind {
            OPTION_END => return false,
            OPTION_NOP => place += 1,
            OPTION_LSRR | OPTION_SSRR => return true,
            _ => match options.get(place + 1) {
                Some(&len) if len >= 2 => place += usize::from(len),
                // Unparseable; nothing here uses options.
                _ => return false,
            },
        }
    }
    false
}

/// Writes the header for `payload_bytes` from `source` to `destination`, of their family, and
/// returns its length. `header` has room for 40 bytes.
#[inline]
pub fn write(
    header: &mut [u8],
    source: &Ip,
    destination: &Ip,
    protocol: u8,
    hops: u8,
    payload_bytes: usize,
) -> usize {
    if source.is_v4() {
        let mut fields = Ipv4 {
            // Version 4, and five words: no options.
            version_words: 0x45,
            service: 0,
            // A super-segment of 64 KiB and its header may exceed the field; the NIC that cuts it
            // rewrites it.
            total_bytes: U16::new(length_of(V4_BYTES + payload_bytes)),
            // RFC 6864 section 4.1: any value is valid if fragmentation is forbidden.
            identification: U16::new(0),
            // RFC 791 section 3.1: the flag "do not fragment".
            fragment: U16::new(0x4000),
            hops,
            protocol,
            checksum: [0; 2],
            source: source.last_four(),
            destination: destination.last_four(),
        };
        fields.checksum = Sum::of(fields.as_bytes()).field();
        header[..V4_BYTES].copy_from_slice(fields.as_bytes());
        V4_BYTES
    } else {
        let fields = Ipv6 {
            version_class_label: U32::new(6 << 28),
            payload_bytes: U16::new(length_of(payload_bytes)),
            next: protocol,
            hops,
            source: *source,
            destination: *destination,
        };
        header[..V6_BYTES].copy_from_slice(fields.as_bytes());
        V6_BYTES
    }
}

/// Type of service, or traffic class, of the header at the beginning of `packet`, with the two bits
/// of ECN; 0 for bytes that are not an IP header.
#[inline]
#[must_use]
pub fn class_of(packet: &[u8]) -> u8 {
    match packet.first_chunk() {
        Some([first, second]) if first >> 4 == 4 => *second,
        Some([first, second]) if first >> 4 == 6 => first << 4 | second >> 4,
        _ => 0,
    }
}

/// Sets RFC 2474's bits of a traffic class in the header that [`write()`] has just written.
#[cold]
#[inline]
pub fn set_traffic_class(header: &mut [u8], class: u8) {
    set_class(header, !ECN_BITS, class);
}

/// ECN field of an IPv6 header's first word (RFC 8200 section 7, RFC 3168 section 5).
#[inline]
pub(crate) fn class_codepoint(version_class_label: U32) -> Codepoint {
    Codepoint::of((version_class_label.get() >> CLASS_SHIFT) as u8)
}

/// Sets the ECN field of the header at the beginning of `packet`, and updates IPv4's checksum.
/// Bytes that are not an IP header stay unchanged.
///
/// ```
/// use sidecore_net_wire::{Ip, ip};
///
/// let (source, destination) = (Ip::v4([10, 0, 0, 1]), Ip::v4([10, 0, 0, 2]));
/// let mut packet = [0; ip::V4_BYTES];
/// ip::write(&mut packet, &source, &destination, ip::TCP, ip::HOPS, 0);
/// ip::set_codepoint(&mut packet, ip::Codepoint::Ce);
/// assert_eq!(ip::class_of(&packet), 3);
/// assert_eq!(ip::parse_v4(&packet).map(|packet| packet.ecn), Ok(ip::Codepoint::Ce));
/// ```
#[inline]
pub fn set_codepoint(packet: &mut [u8], codepoint: Codepoint) {
    set_class(packet, ECN_BITS, codepoint as u8);
}

/// Sets the bits `mask` of the type of service or traffic class to `value`.
#[inline]
fn set_class(packet: &mut [u8], mask: u8, value: u8) {
    match packet.first().map(|first| first >> 4) {
        Some(4) => {
            let header_bytes = usize::from(packet[0] & 0x0f) * 4;
            let Some(header) = packet.get_mut(..header_bytes) else {
                return;
            };
            // A header whose length is less than 20 bytes fails here, and stays as it is.
            if let Ok((fields, _)) = Ipv4::mut_from_prefix(header) {
                fields.service = fields.service & !mask | value & mask;
                fields.checksum = [0; 2];
                let field = Sum::of(header).field();
                header[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&field);
            }
        }
        Some(6) => {
            if let Ok((fields, _)) = Ipv6::mut_from_prefix(packet) {
                let word = fields.version_class_label.get() & !(u32::from(mask) << CLASS_SHIFT);
                let class = u32::from(value & mask) << CLASS_SHIFT;
                fields.version_class_label = U32::new(word | class);
            }
        }
        _ => {}
    }
}

/// The ends of a packet and its hop limit; `header` is IPv4's of 20 bytes or IPv6's of 40.
#[inline]
pub fn ends(header: &[u8]) -> Option<(Ip, Ip, u8)> {
    if header.len() == V4_BYTES {
        let fields = Ipv4::ref_from_bytes(header).ok()?;
        let (source, destination) = (Ip::v4(fields.source), Ip::v4(fields.destination));
        return Some((source, destination, fields.hops));
    }
    let fields = Ipv6::ref_from_bytes(header).ok()?;
    Some((fields.source, fields.destination, fields.hops))
}

/// A length field; longer packets do not exist.
#[inline]
fn length_of(bytes: usize) -> u16 {
    u16::try_from(bytes).unwrap_or(u16::MAX)
}

/// Bytes of the header that [`write()`] makes for addresses of this one's family.
#[inline]
pub fn header_bytes(address: &Ip) -> usize {
    if address.is_v4() { V4_BYTES } else { V6_BYTES }
}
