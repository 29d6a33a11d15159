//! ARP packets for IPv4 over Ethernet: 28 bytes, the only combination that this stack supports.
//!
//! Must stay true: [`Arp::parse`] rejects other types and lengths of addresses, so that users of an
//! [`Arp`] need not check them. Source: RFC 826; RFC 5227 section 1.1 for the words "probe" and
//! "announcement".
//!
//! ```
//! use sidecore_net_wire::arp::{Arp, Operation};
//!
//! let question = Arp {
//!     operation: Operation::Request,
//!     sender_mac: [2, 0, 0, 0, 0, 1],
//!     sender: [10, 0, 0, 1],
//!     target_mac: [0; 6],
//!     target: [10, 0, 0, 2],
//! };
//! assert_eq!(Arp::parse(&question.to_bytes()), Some(question));
//! ```

use super::address::Mac;
use super::ethernet;
use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a packet; an Ethernet frame pads it to 46.
pub const BYTES: usize = size_of::<Layout>();

/// Operation code (RFC 826).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// 1: requests the target's hardware address.
    Request,
    /// 2: answers a request.
    Reply,
    /// Any other number. RFC 826 learns from the sender before it checks the operation, so these
    /// packets are not rejected.
    Other(u16),
}

/// A packet with addresses of IPv4 and Ethernet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arp {
    /// Request or reply.
    pub operation: Operation,
    /// Hardware address of the sender.
    pub sender_mac: Mac,
    /// Its IPv4 address; all zero in a probe (RFC 5227 section 2.1.1).
    pub sender: [u8; 4],
    /// Hardware address of the target; undefined in a request.
    pub target_mac: Mac,
    /// IPv4 address that is requested, or that the reply goes to.
    pub target: [u8; 4],
}

impl Arp {
    /// Parses a packet; bytes after its 28 bytes are padding. `None` for a short one and for other
    /// hardware than Ethernet, other protocols than IPv4 and other lengths than theirs.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (layout, _) = Layout::ref_from_prefix(bytes).ok()?;
        let kinds = (layout.hardware.get(), layout.protocol.get());
        let lengths = (layout.hardware_bytes, layout.protocol_bytes);
        if kinds != (HARDWARE_ETHERNET, ethernet::IPV4) || lengths != (6, 4) {
            return None;
        }
        Some(Self {
            operation: match layout.operation.get() {
                1 => Operation::Request,
                2 => Operation::Reply,
                other => Operation::Other(other),
            },
            sender_mac: layout.sender_mac,
            sender: layout.sender,
            target_mac: layout.target_mac,
            target: layout.target,
        })
    }

    /// The packet as bytes on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BYTES] {
        let operation = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
            Operation::Other(other) => other,
        };
        zerocopy::transmute!(Layout {
            hardware: U16::new(HARDWARE_ETHERNET),
            protocol: U16::new(ethernet::IPV4),
            hardware_bytes: 6,
            protocol_bytes: 4,
            operation: U16::new(operation),
            sender_mac: self.sender_mac,
            sender: self.sender,
            target_mac: self.target_mac,
            target: self.target,
        })
    }
}

/// IANA's number of Ethernet as a hardware type.
const HARDWARE_ETHERNET: u16 = 1;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Layout {
    hardware: U16,
    protocol: U16,
    hardware_bytes: u8,
    protocol_bytes: u8,
    operation: U16,
    sender_mac: Mac,
    sender: [u8; 4],
    target_mac: Mac,
    target: [u8; 4],
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: [u8; BYTES] = *b"\x00\x01\x08\x00\x06\x04\x00\x01\
        \x02\x00\x00\x00\x00\x01\x0a\x00\x00\x01\
        \x00\x00\x00\x00\x00\x00\x0a\x00\x00\x02";

    #[test]
    fn a_request_is_read_and_written() {
        let request = Arp {
            operation: Operation::Request,
            sender_mac: [2, 0, 0, 0, 0, 1],
            sender: [10, 0, 0, 1],
            target_mac: [0; 6],
            target: [10, 0, 0, 2],
        };
        assert_eq!(Arp::parse(&REQUEST), Some(request));
        assert_eq!(request.to_bytes(), REQUEST);
        let mut padded = [0xaa; 46];
        padded[..BYTES].copy_from_slice(&REQUEST);
        assert_eq!(Arp::parse(&padded), Some(request));
    }

    #[test]
    fn no_other_kinds_lengths_or_short_packets_are_taken() {
        for len in 0..BYTES {
            assert_eq!(Arp::parse(&REQUEST[..len]), None, "{len} bytes");
        }
        // Hardware type, protocol type, and both lengths.
        for at in 0..6 {
            for value in 0..=255 {
                let mut packet = REQUEST;
                packet[at] = value;
                assert_eq!(
                    Arp::parse(&packet).is_some(),
                    value == REQUEST[at],
                    "byte {at} is {value}"
                );
            }
        }
    }
}
