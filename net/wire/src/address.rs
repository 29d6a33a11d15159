//! Addresses: IP addresses of either family, and hardware addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// An address of either family; IPv4 ones are mapped (RFC 4291 section 2.5.5.2).
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(transparent)]
pub struct Ip(pub [u8; 16]);

impl Ip {
    /// An IPv4 address from four bytes.
    #[inline]
    pub fn v4(bytes: [u8; 4]) -> Self {
        let [a, b, c, d] = bytes;
        Self([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d])
    }

    /// True for an IPv4-mapped address (RFC 4291 section 2.5.5.2).
    #[inline]
    pub fn is_v4(&self) -> bool {
        self.0[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
    }

    /// The last four bytes: the address if it is IPv4.
    #[inline]
    pub fn last_four(&self) -> [u8; 4] {
        [self.0[12], self.0[13], self.0[14], self.0[15]]
    }

    /// True for a multicast address of either family.
    #[inline]
    pub fn is_multicast(&self) -> bool {
        self.to_std().is_multicast()
    }

    /// `0.0.0.0` or `::`.
    #[inline]
    pub fn is_unspecified(&self) -> bool {
        self.to_std().is_unspecified()
    }

    /// True for 127/8 and `::1`.
    #[inline]
    pub fn is_loopback(&self) -> bool {
        self.to_std().is_loopback()
    }

    /// True for addresses that no packet may have as its source: 0/8, 127/8, groups, 240/4 with the
    /// limited broadcast (RFC 1122 section 3.2.1.3, RFC 6890), and `::1` and groups of IPv6. The
    /// caller has to check for the unspecified IPv6 address, which is valid in neighbour discovery.
    #[inline]
    pub fn is_martian_source(&self) -> bool {
        if self.is_v4() {
            matches!(self.0[12], 0 | 127 | 224..)
        } else {
            self.0[0] == 0xff || u128::from_be_bytes(self.0) == 1
        }
    }

    /// `fe80::/10`.
    #[inline]
    pub fn is_link_local_v6(&self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    /// The standard library's type.
    #[inline]
    pub fn to_std(self) -> IpAddr {
        if self.is_v4() {
            IpAddr::V4(Ipv4Addr::from(self.last_four()))
        } else {
            IpAddr::V6(Ipv6Addr::from(self.0))
        }
    }

    /// True if the first `prefix_bits` of both agree; for IPv4, of its own 32 bits.
    #[inline]
    pub fn shares_prefix(&self, other: &Self, prefix_bits: u8) -> bool {
        if self.is_v4() != other.is_v4() {
            return false;
        }
        // An IPv4 address is the last 32 of the 128 bits.
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
pub type Mac = [u8; 6];

/// The broadcast address.
pub const BROADCAST: Mac = [0xff; 6];

/// The hardware address of a group: RFC 1112 section 6.4, RFC 2464 section 7.
#[inline]
pub fn group_mac(group: &Ip) -> Mac {
    let [a, b, c, d] = group.last_four();
    if group.is_v4() {
        // RFC 1112 section 6.4: the low 23 bits of the group.
        [0x01, 0x00, 0x5e, b & 0x7f, c, d]
    } else {
        // RFC 2464 section 7: the low 32 bits.
        [0x33, 0x33, a, b, c, d]
    }
}
