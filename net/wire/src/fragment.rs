//! Fragments: the position of a fragment in its packet, and the headers of fragments that we send.
//!
//! Must stay true: nothing here panics, whatever the bytes; a parsed fragment is not empty, ends
//! within the maximum packet length, and all but the last end on a multiple of eight bytes.
//! Source: RFC 791 section 3.2, RFC 1858 and RFC 3128 (first fragments that are too small), RFC
//! 8200 section 4.5, RFC 6946 (atomic fragments).
//!
//! ```
//! use sidecore_net_wire::{Ip, fragment, ip};
//!
//! let (source, destination) = (Ip::v4([10, 0, 0, 1]), Ip::v4([10, 0, 0, 2]));
//! let first = fragment::Piece {
//!     identification: 7,
//!     offset: 0,
//!     more: true,
//!     len: 16,
//! };
//! let head_bytes = fragment::head_bytes(&source);
//! let mut packet = vec![0; head_bytes + first.len];
//! let ends = (&source, &destination);
//! fragment::write(&mut packet[..head_bytes], ends, ip::UDP, ip::HOPS, &first);
//! let read = fragment::parse_v4(&packet).expect("a fragment");
//! assert!(read.more && !read.is_whole());
//! assert_eq!((read.key.identification, read.len()), (7, 16));
//! ```
#![expect(missing_docs, reason = "fields and constants have the RFCs' names")]

use super::address::Ip;
use super::ip::{self, Codepoint, Ipv4, Ipv6, V4_BYTES, V6_BYTES};
use crate::checksum::Sum;
use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of IPv6's fragment header.
pub const HEADER_BYTES: usize = size_of::<Ipv6Fragment>();
/// The longest packet with its header, in bytes; for IPv6 without its header.
pub const PACKET_BYTES_MAX: usize = 0xffff;
/// Longest headers before a fragment's bytes: IPv4's are at most 60, IPv6's with a few options 72.
pub const HEAD_BYTES_MAX: usize = 128;
/// IPv4's "more fragments" flag (RFC 791 section 3.1).
const MORE_V4: u16 = 0x2000;
/// The shortest TCP header; a shorter first fragment hides ports or flags from filters.
const TCP_BYTES: usize = super::tcp::HEADER_BYTES;

/// IPv6's M flag (RFC 8200 section 4.5).
const MORE_V6: u16 = 1;

/// IPv6's fragment header: RFC 8200 section 4.5.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Ipv6Fragment {
    next: u8,
    reserved: u8,
    /// Offset in units of eight bytes, two reserved bits, "M".
    field: U16,
    identification: U32,
}

/// Key of a packet in fragments: the fields that its fragments share (RFC 791 section 3.2, RFC 8200
/// section 4.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    pub source: Ip,
    pub destination: Ip,
    pub identification: u32,
    /// IPv4's protocol; 0 for IPv6, where it is not part of the key.
    pub protocol: u8,
}

/// Position of a fragment in its packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    pub key: Key,
    /// Offset of its first byte in the payload of the whole packet.
    pub offset: usize,
    /// True for every fragment but the last.
    pub more: bool,
    /// Transport protocol of the whole packet, according to this fragment.
    pub protocol: u8,
    pub hops: u8,
    /// ECN field of the fragment's packet (RFC 3168 section 5.3).
    pub ecn: Codepoint,
    /// Bytes of the headers before it, including IPv6's fragment header.
    pub head: usize,
    /// End of its bytes in the frame's packet.
    pub end: usize,
}

impl Fragment {
    /// Bytes of its payload.
    pub fn len(&self) -> usize {
        self.end - self.head
    }

    /// True if it has no payload.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// True for an atomic fragment, the whole of its packet (RFC 6946).
    pub fn is_whole(&self) -> bool {
        self.offset == 0 && !self.more
    }
}

/// The reason why a fragment is rejected. For IPv6 it names the field to report to the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bad {
    /// Not parseable, or empty.
    Malformed,
    /// No honest sender makes it: the whole packet is refused.
    Hostile(Key),
    /// RFC 8200 section 4.5: a parameter problem with this code and pointer is sent back.
    Problem { code: u8, pointer: usize },
}

/// Parses a fragment that [`ip::parse_v4`] found: version, lengths and header checksum are valid.
pub fn parse_v4(bytes: &[u8]) -> Result<Fragment, Bad> {
    let (header, _) = Ipv4::ref_from_prefix(bytes).map_err(|_| Bad::Malformed)?;
    let head = usize::from(header.version_words & 0x0f) * 4;
    let end = usize::from(header.total_bytes.get());
    if end > bytes.len() || end <= head {
        return Err(Bad::Malformed);
    }
    let field = header.fragment.get();
    let fragment = Fragment {
        key: Key {
            source: Ip::v4(header.source),
            destination: Ip::v4(header.destination),
            identification: header.identification.get().into(),
            protocol: header.protocol,
        },
        offset: usize::from(field & 0x1fff) * 8,
        more: field & MORE_V4 != 0,
        protocol: header.protocol,
        hops: header.hops,
        ecn: Codepoint::of(header.service),
        head,
        end,
    };
    // All fragments except the last have whole units of eight bytes.
    if fragment.more && !fragment.len().is_multiple_of(8) {
        return Err(Bad::Malformed);
    }
    let place = fragment.offset..fragment.offset + fragment.len();
    // RFC 1858 section 3, RFC 3128: a fragmented TCP header.
    let cuts_tcp = |at: usize| at > 0 && at < TCP_BYTES;
    let torn = header.protocol == ip::TCP
        && (cuts_tcp(place.start) || fragment.more && cuts_tcp(place.end));
    if torn || head + place.end > PACKET_BYTES_MAX {
        return Err(Bad::Hostile(fragment.key));
    }
    Ok(fragment)
}

/// Parses a fragment that [`ip::parse_v6`] found: version and lengths are valid.
pub fn parse_v6(bytes: &[u8]) -> Result<Fragment, Bad> {
    let (header, _) = Ipv6::ref_from_prefix(bytes).map_err(|_| Bad::Malformed)?;
    let end = V6_BYTES + usize::from(header.payload_bytes.get());
    let bytes = bytes.get(..end).ok_or(Bad::Malformed)?;
    let Ok((at, ip::FRAGMENT)) = ip::chain(bytes, V6_BYTES, header.next) else {
        return Err(Bad::Malformed);
    };
    let rest = bytes.get(at..).ok_or(Bad::Malformed)?;
    let (fields, _) = Ipv6Fragment::ref_from_prefix(rest).map_err(|_| Bad::Malformed)?;
    let (field, protocol) = (fields.field.get(), fields.next);
    let head = at + HEADER_BYTES;
    if end <= head || head > HEAD_BYTES_MAX {
        return Err(Bad::Malformed);
    }
    let fragment = Fragment {
        key: Key {
            source: header.source,
            destination: header.destination,
            identification: fields.identification.get(),
            protocol: 0,
        },
        // The field has units of eight bytes above three other bits: masked, it is the offset in
        // bytes.
        offset: usize::from(field & !7),
        more: field & MORE_V6 != 0,
        protocol,
        hops: header.hops,
        ecn: ip::class_codepoint(header.version_class_label),
        head,
        end,
    };
    if fragment.more && !fragment.len().is_multiple_of(8) {
        // Pointer to the payload's length.
        return Err(Bad::Problem {
            code: 0,
            pointer: 4,
        });
    }
    // Headers before the fragment header are part of the whole packet's length.
    if head - HEADER_BYTES - V6_BYTES + fragment.offset + fragment.len() > PACKET_BYTES_MAX {
        // Pointer to the fragment's offset.
        return Err(Bad::Problem {
            code: 0,
            pointer: at + 2,
        });
    }
    if fragment.offset == 0 && fragment.more && !has_all_headers(bytes, head, protocol) {
        // RFC 8200 section 4.5: code 3, with the pointer 0.
        return Err(Bad::Problem {
            code: 3,
            pointer: 0,
        });
    }
    Ok(fragment)
}

/// RFC 7112, RFC 8200 section 4.5: a first fragment has all headers, including the transport's.
fn has_all_headers(bytes: &[u8], head: usize, protocol: u8) -> bool {
    let Ok((start, protocol)) = ip::chain(bytes, head, protocol) else {
        return false;
    };
    let least = match protocol {
        ip::TCP => TCP_BYTES,
        ip::UDP | ip::ICMPV6 => 8,
        ip::NO_NEXT => 0,
        _ => 1,
    };
    bytes.len() >= start + least
}

/// Part of a packet that one outgoing fragment carries.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    pub identification: u32,
    pub offset: usize,
    pub more: bool,
    pub len: usize,
}

/// Bytes of the headers that [`write()`] makes for addresses of this one's family.
pub fn head_bytes(address: &Ip) -> usize {
    let more = if address.is_v4() { 0 } else { HEADER_BYTES };
    ip::header_bytes(address) + more
}

/// Writes the headers of a fragment into `head`, of [`head_bytes`], from `source` to `destination`.
pub fn write(
    head: &mut [u8],
    (source, destination): (&Ip, &Ip),
    protocol: u8,
    hops: u8,
    piece: &Piece,
) {
    if source.is_v4() {
        ip::write(head, source, destination, protocol, hops, piece.len);
        // The field counts in eight bytes (RFC 791 section 3.1).
        let units = (piece.offset / 8) as u16;
        if let Ok((fields, _)) = Ipv4::mut_from_prefix(head) {
            fields.identification = U16::new(piece.identification as u16);
            fields.fragment = U16::new(units | if piece.more { MORE_V4 } else { 0 });
            // The field counts as 0 while its value is computed.
            fields.checksum = [0; 2];
            fields.checksum = Sum::of(fields.as_bytes()).field();
        }
        debug_assert_eq!(head.len(), V4_BYTES);
        return;
    }
    let payload = HEADER_BYTES + piece.len;
    ip::write(head, source, destination, ip::FRAGMENT, hops, payload);
    let fields = Ipv6Fragment {
        next: protocol,
        reserved: 0,
        field: U16::new(piece.offset as u16 & !7 | if piece.more { MORE_V6 } else { 0 }),
        identification: U32::new(piece.identification),
    };
    head[V6_BYTES..V6_BYTES + HEADER_BYTES].copy_from_slice(fields.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::Bad as BadPacket;

    /// Parses a fragment of ours, as another stack would.
    fn read(v4: bool, protocol: u8, piece: &Piece) -> Result<Fragment, Bad> {
        let ends = if v4 {
            [Ip::v4([10, 0, 0, 1]), Ip::v4([10, 0, 0, 2])]
        } else {
            [Ip([0xfd; 16]), Ip([0xfc; 16])]
        };
        let mut bytes = vec![0; head_bytes(&ends[0])];
        write(&mut bytes, (&ends[0], &ends[1]), protocol, 64, piece);
        bytes.resize(bytes.len() + piece.len, 7);
        if v4 {
            assert_eq!(ip::parse_v4(&bytes), Err(BadPacket::Fragment));
            parse_v4(&bytes)
        } else {
            assert_eq!(ip::parse_v6(&bytes), Err(BadPacket::Fragment));
            parse_v6(&bytes)
        }
    }

    fn piece(offset: usize, len: usize, more: bool) -> Piece {
        Piece {
            identification: 0x1234,
            offset,
            more,
            len,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for v4 in [true, false] {
            let sent = piece(1480, 600, true);
            let got = read(v4, ip::UDP, &sent).expect("a fragment");
            assert_eq!((got.offset, got.len(), got.more), (1480, 600, true));
            assert_eq!((got.protocol, got.hops), (ip::UDP, 64));
            assert_eq!(got.key.identification, 0x1234);
            assert!(!got.is_whole());
        }
    }

    #[test]
    fn what_no_sender_makes_is_not_taken() {
        let of = |v4, protocol, offset, len, more| read(v4, protocol, &piece(offset, len, more));
        assert_eq!(of(true, ip::UDP, 8, 13, true), Err(Bad::Malformed));
        let wrong_length = Bad::Problem {
            code: 0,
            pointer: 4,
        };
        assert_eq!(of(false, ip::UDP, 8, 13, true), Err(wrong_length));
        assert!(of(true, ip::UDP, 8, 13, false).is_ok());
        // Beyond the maximum packet length.
        let last = 0x1fff * 8;
        assert!(matches!(
            of(true, ip::UDP, last, 8, false),
            Err(Bad::Hostile(_))
        ));
        assert!(of(false, ip::UDP, last, 7, false).is_ok());
        let beyond = Bad::Problem {
            code: 0,
            pointer: 42,
        };
        assert_eq!(of(false, ip::UDP, last, 8, false), Err(beyond));
        // A fragmented TCP header.
        assert!(matches!(
            of(true, ip::TCP, 0, 16, true),
            Err(Bad::Hostile(_))
        ));
        assert!(matches!(
            of(true, ip::TCP, 8, 16, false),
            Err(Bad::Hostile(_))
        ));
        assert!(of(true, ip::TCP, 0, 24, true).is_ok());
        let torn = Bad::Problem {
            code: 3,
            pointer: 0,
        };
        assert_eq!(of(false, ip::TCP, 0, 16, true), Err(torn));
        assert!(of(false, ip::TCP, 0, 24, true).is_ok());
        assert!(of(false, ip::UDP, 0, 8, true).is_ok());
    }
}
