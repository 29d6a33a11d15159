//! Ethernet II frames.
//!
//! Source: IEEE 802.3 clause 3, RFC 894, RFC 2464.

use super::Mac;
use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub(crate) const HEADER_BYTES: usize = 14;
/// What follows is IPv4.
pub(crate) const IPV4: u16 = 0x0800;
/// What follows is ARP.
pub(crate) const ARP: u16 = 0x0806;
/// What follows is IPv6.
pub(crate) const IPV6: u16 = 0x86dd;

/// The header.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(crate) struct Ethernet {
    pub(crate) destination: Mac,
    pub(crate) source: Mac,
    pub(crate) kind: U16,
}

impl Ethernet {
    /// A header, to be written.
    pub(crate) fn new(destination: Mac, source: Mac, kind: u16) -> Self {
        Self {
            destination,
            source,
            kind: U16::new(kind),
        }
    }
}
