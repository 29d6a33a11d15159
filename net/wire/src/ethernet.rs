//! Ethernet II frames.
//!
//! Source: IEEE 802.3 clause 3, RFC 894, RFC 2464.
//!
//! ```
//! use sidecore_net_wire::BROADCAST;
//! use sidecore_net_wire::ethernet::{ARP, Ethernet, HEADER_BYTES};
//! use zerocopy::IntoBytes;
//!
//! let header = Ethernet::new(BROADCAST, [2, 0, 0, 0, 0, 1], ARP);
//! assert_eq!(header.as_bytes().len(), HEADER_BYTES);
//! assert_eq!(header.as_bytes()[12..], [0x08, 0x06]);
//! ```
#![expect(missing_docs, reason = "fields and constants have the RFCs' names")]

use super::address::{Ip, Mac};
use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub const HEADER_BYTES: usize = 14;
/// EtherType of IPv4.
pub const IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const IPV6: u16 = 0x86dd;

/// EtherType of a packet that `source` sends.
#[inline]
pub fn kind_of(source: &Ip) -> u16 {
    if source.is_v4() { IPV4 } else { IPV6 }
}

/// The header.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Ethernet {
    pub destination: Mac,
    pub source: Mac,
    pub kind: U16,
}

impl Ethernet {
    /// A header to send.
    #[inline]
    pub fn new(destination: Mac, source: Mac, kind: u16) -> Self {
        Self {
            destination,
            source,
            kind: U16::new(kind),
        }
    }

    /// The header as bytes on the wire.
    #[inline]
    pub fn to_bytes(self) -> [u8; HEADER_BYTES] {
        zerocopy::transmute!(self)
    }

    /// True if it is for one station: the lowest bit of a group's address, and of the broadcast
    /// address, is set.
    #[inline]
    pub fn is_unicast(&self) -> bool {
        self.destination[0] & 1 == 0
    }
}
