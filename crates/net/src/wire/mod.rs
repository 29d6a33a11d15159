//! What lies on the wire: headers with fixed layouts for the fast path, and what is built from them.
//!
//! Why here: these are the only places where bytes from outside become fields. What is not hot (ARP,
//! ICMP, neighbour discovery, group membership) is read and written by `smoltcp::wire`, which is
//! fuzzed; Ethernet, IPv4, IPv6, UDP and TCP are ours because each packet passes through them.
//! Must stay true: nothing here panics, whatever the bytes.

pub(crate) mod ethernet;
pub(crate) mod fragment;
pub(crate) mod ip;
pub(crate) mod tcp;
pub(crate) mod udp;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An address of either family; IPv4 ones are mapped (RFC 4291 section 2.5.5.2).
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Default,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(transparent)]
pub(crate) struct Ip(pub(crate) [u8; 16]);

impl Ip {
    /// Of four bytes.
    #[inline]
    pub(crate) fn v4(bytes: [u8; 4]) -> Self {
        let [a, b, c, d] = bytes;
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// Whether it is a mapped IPv4 address.
    #[inline]
    pub(crate) fn is_v4(&self) -> bool {
        self.0[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
    }

    /// The last four bytes: the address where it is IPv4.
    #[inline]
    pub(crate) fn last_four(&self) -> [u8; 4] {
        [self.0[12], self.0[13], self.0[14], self.0[15]]
    }

    /// Whether it names a group, of either family.
    pub(crate) fn is_multicast(&self) -> bool {
        self.to_std().is_multicast()
    }

    /// `0.0.0.0` or `::`.
    pub(crate) fn is_unspecified(&self) -> bool {
        self.to_std().is_unspecified()
    }

    /// `fe80::/10`.
    pub(crate) fn is_link_local_v6(&self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    /// As the standard library has it.
    pub(crate) fn to_std(self) -> IpAddr {
        if self.is_v4() {
            IpAddr::V4(Ipv4Addr::from(self.last_four()))
        } else {
            IpAddr::V6(Ipv6Addr::from(self.0))
        }
    }

    /// Whether the first `prefix_bits` of both agree. For IPv4 the count is of its own 32 bits.
    pub(crate) fn shares_prefix(&self, other: &Self, prefix_bits: u8) -> bool {
        if self.is_v4() != other.is_v4() {
            return false;
        }
        let bits = u32::from(prefix_bits) + if self.is_v4() { 96 } else { 0 };
        let different = u128::from_be_bytes(self.0) ^ u128::from_be_bytes(other.0);
        different.leading_zeros() >= bits.min(128)
    }
}

impl From<IpAddr> for Ip {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(v4) => Self::v4(v4.octets()),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }
}

impl std::fmt::Debug for Ip {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.to_std().fmt(f)
    }
}

/// A hardware address.
pub(crate) type Mac = [u8; 6];

/// To all.
pub(crate) const BROADCAST: Mac = [0xff; 6];

/// The hardware address of a group: RFC 1112 section 6.4, RFC 2464 section 7.
pub(crate) fn group_mac(group: &Ip) -> Mac {
    let [a, b, c, d] = group.last_four();
    if group.is_v4() {
        [0x01, 0x00, 0x5e, b & 0x7f, c, d]
    } else {
        [0x33, 0x33, a, b, c, d]
    }
}
