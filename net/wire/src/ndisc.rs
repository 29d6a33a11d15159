//! Neighbour discovery: the five ICMPv6 messages and the options that a host needs.
//!
//! Why here: everything in these messages comes from untrusted hosts on the link.
//! [`Message::parse`] walks the options once; users of an [`Options`] can iterate over it without
//! meeting a bad length. Must stay true: an option has at least eight bytes and ends within its
//! message; a target is never a group. Source: RFC 4861 section 4 (formats) and sections 6.1, 7.1,
//! 8.1 (validation), RFC 2464 section 6 (link-layer addresses of Ethernet), RFC 4443 section 2.1.
//!
//! ```
//! use sidecore_net_wire::Ip;
//! use sidecore_net_wire::ndisc::{Message, neighbor_solicitation};
//!
//! let address = |last| Ip([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
//! let (ours, theirs, mac) = (address(1), address(2), [2, 0, 0, 0, 0, 1]);
//! let question = neighbor_solicitation(&ours, &theirs, &theirs, mac);
//! let expected = Message::NeighborSolicitation {
//!     target: theirs,
//!     source: Some(mac),
//! };
//! assert_eq!(Message::parse(&question), Some(expected));
//! ```

use super::address::{Ip, Mac};
use super::ip::ICMPV6;
use crate::checksum::{Sum, pseudo};
use zerocopy::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// ICMPv6 type of a router solicitation, the first of the five.
pub const ROUTER_SOLICITATION: u8 = 133;
/// ICMPv6 type of a router advertisement.
pub(crate) const ROUTER_ADVERTISEMENT: u8 = 134;
/// ICMPv6 type of a neighbour solicitation.
pub(crate) const NEIGHBOR_SOLICITATION: u8 = 135;
/// ICMPv6 type of a neighbour advertisement.
pub(crate) const NEIGHBOR_ADVERTISEMENT: u8 = 136;
/// ICMPv6 type of a redirect, the last of the five.
pub const REDIRECT: u8 = 137;

/// Bytes of a router solicitation that we send.
pub(crate) const ROUTER_SOLICITATION_BYTES: usize = size_of::<RouterSolicitation>();
/// Bytes of a neighbour solicitation or advertisement that we send.
pub(crate) const NEIGHBOR_BYTES: usize = size_of::<Neighbor>();

/// A message; the caller has to check its hop limit and checksum. Link-layer addresses are those of
/// Ethernet; if an option is repeated, the last one counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'p> {
    /// A host solicits routers.
    RouterSolicitation {
        /// Link-layer address of the host.
        source: Option<Mac>,
    },
    /// A router announces itself and the link's prefixes.
    RouterAdvertisement {
        /// Seconds for which it is a default router; 0 if it is not.
        router_s: u16,
        /// Link-layer address of the router.
        source: Option<Mac>,
        /// All options, including prefixes.
        options: Options<'p>,
    },
    /// A host requests the target's link-layer address.
    NeighborSolicitation {
        /// The requested address.
        target: Ip,
        /// Link-layer address of the requesting host.
        source: Option<Mac>,
    },
    /// A host announces its link-layer address.
    NeighborAdvertisement {
        /// Router, solicited, override.
        flags: NeighborFlags,
        /// The host's address.
        target: Ip,
        /// Its link-layer address.
        mac: Option<Mac>,
    },
    /// A router redirects to a better first hop.
    Redirect {
        /// The better first hop.
        target: Ip,
        /// The destination that it applies to.
        destination: Ip,
        /// Link-layer address of the hop.
        mac: Option<Mac>,
    },
}

impl<'p> Message<'p> {
    /// Parses a whole ICMPv6 message. `None` for other types, a code other than 0, a short message,
    /// an option of length zero or one that ends beyond the message, and a target that is a group.
    #[must_use]
    pub fn parse(bytes: &'p [u8]) -> Option<Self> {
        let (head, rest) = Head::ref_from_prefix(bytes).ok()?;
        if head.code != 0 {
            return None;
        }
        match head.kind {
            ROUTER_SOLICITATION => Some(Self::RouterSolicitation {
                source: Options::parse(rest)?.source_mac(),
            }),
            ROUTER_ADVERTISEMENT => {
                // Reachable time and retransmission timer are skipped: ours are constants (RFC 4861
                // section 10).
                let (_, rest) = rest.split_first_chunk::<8>()?;
                let options = Options::parse(rest)?;
                let [_, _, high, low] = head.field;
                Some(Self::RouterAdvertisement {
                    router_s: u16::from_be_bytes([high, low]),
                    source: options.source_mac(),
                    options,
                })
            }
            NEIGHBOR_SOLICITATION => {
                let (target, rest) = target(rest)?;
                Some(Self::NeighborSolicitation {
                    target,
                    source: Options::parse(rest)?.source_mac(),
                })
            }
            NEIGHBOR_ADVERTISEMENT => {
                let (target, rest) = target(rest)?;
                let [flags, ..] = head.field;
                Some(Self::NeighborAdvertisement {
                    flags: NeighborFlags::of_bits(flags),
                    target,
                    mac: Options::parse(rest)?.target_mac(),
                })
            }
            REDIRECT => {
                let (target, rest) = target(rest)?;
                let (destination, rest) = Ip::read_from_prefix(rest).ok()?;
                // RFC 4861 section 8.1: not for groups.
                if destination.is_multicast() {
                    return None;
                }
                Some(Self::Redirect {
                    target,
                    destination,
                    mac: Options::parse(rest)?.target_mac(),
                })
            }
            _ => None,
        }
    }
}

/// The target of a message and the bytes after it. RFC 4861 sections 7.1.1, 7.1.2, 8.1: never a
/// group.
fn target(bytes: &[u8]) -> Option<(Ip, &[u8])> {
    let (target, rest) = Ip::read_from_prefix(bytes).ok()?;
    (!target.is_multicast()).then_some((target, rest))
}

/// Flags of a neighbour advertisement: RFC 4861 section 4.4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NeighborFlags {
    /// The station is a router.
    pub router: bool,
    /// It is a reply to a solicitation.
    pub solicited: bool,
    /// The override flag: a cached hardware address is to be replaced (RFC 4861 section 4.4).
    pub replaces: bool,
}

impl NeighborFlags {
    fn of_bits(bits: u8) -> Self {
        Self {
            router: bits & 0x80 != 0,
            solicited: bits & 0x40 != 0,
            replaces: bits & 0x20 != 0,
        }
    }

    fn bits(self) -> u8 {
        u8::from(self.router) << 7 | u8::from(self.solicited) << 6 | u8::from(self.replaces) << 5
    }
}

/// The options of a message, with valid lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options<'p>(&'p [u8]);

impl<'p> Options<'p> {
    /// RFC 4861 section 4.6: a message with an option of length zero is discarded as a whole.
    fn parse(bytes: &'p [u8]) -> Option<Self> {
        let mut rest = bytes;
        while !rest.is_empty() {
            (_, rest) = split_option(rest)?;
        }
        Some(Self(bytes))
    }

    /// Prefixes in a router advertisement, in order.
    pub fn prefixes(self) -> impl Iterator<Item = Prefix> + 'p {
        self.each().filter_map(|bytes| {
            // A prefix option has exactly 32 bytes.
            let option = PrefixOption::ref_from_bytes(bytes).ok()?;
            (option.kind == PREFIX).then(|| Prefix {
                bits: option.bits,
                on_link: option.flags & 0x80 != 0,
                autonomous: option.flags & 0x40 != 0,
                valid_s: option.valid_s.get(),
                preferred_s: option.preferred_s.get(),
                prefix: option.prefix,
            })
        })
    }

    fn source_mac(self) -> Option<Mac> {
        self.mac(SOURCE_MAC)
    }

    fn target_mac(self) -> Option<Mac> {
        self.mac(TARGET_MAC)
    }

    fn mac(self, kind: u8) -> Option<Mac> {
        // RFC 2464 section 6: eight bytes; a longer one is the address of other hardware.
        let options = self
            .each()
            .filter_map(|bytes| LinkOption::ref_from_bytes(bytes).ok());
        options
            .filter(|option| option.kind == kind)
            .last()
            .map(|option| option.mac)
    }

    fn each(self) -> impl Iterator<Item = &'p [u8]> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let option;
            (option, rest) = split_option(rest)?;
            Some(option)
        })
    }
}

/// The first option, and the bytes after it. `None` at the end, and for a length of zero or beyond
/// the end.
fn split_option(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let &[_, units, ..] = bytes else {
        return None;
    };
    if units == 0 {
        return None;
    }
    bytes.split_at_checked(usize::from(units) * 8)
}

/// A prefix in a router advertisement: RFC 4861 section 4.6.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// Its length, 0 to 128 if valid; any number may be received.
    pub bits: u8,
    /// Its addresses are on this link.
    pub on_link: bool,
    /// Hosts may derive addresses from it (RFC 4862).
    pub autonomous: bool,
    /// Seconds for which it is valid; all ones for ever.
    pub valid_s: u32,
    /// Seconds for which its addresses are preferred; all ones for ever.
    pub preferred_s: u32,
    /// The prefix; bits beyond its length are undefined.
    pub prefix: Ip,
}

/// A router solicitation from `source` to `destination`, with our link-layer address.
#[must_use]
pub fn router_solicitation(
    source: &Ip,
    destination: &Ip,
    mac: Mac,
) -> [u8; ROUTER_SOLICITATION_BYTES] {
    let (ends, len) = ((source, destination), ROUTER_SOLICITATION_BYTES);
    let option = LinkOption::new(SOURCE_MAC, mac);
    let rest = Sum::of(option.as_bytes());
    let head = Head::new(ends, ROUTER_SOLICITATION, 0, len, rest);
    zerocopy::transmute!(RouterSolicitation { head, option })
}

/// A solicitation from `source` to `destination` for the neighbour with `target`, with our
/// link-layer address.
#[must_use]
pub fn neighbor_solicitation(
    source: &Ip,
    destination: &Ip,
    target: &Ip,
    mac: Mac,
) -> [u8; NEIGHBOR_BYTES] {
    let option = LinkOption::new(SOURCE_MAC, mac);
    neighbor(
        (source, destination),
        NEIGHBOR_SOLICITATION,
        0,
        target,
        option,
    )
}

/// Announces to `destination` that we have `source`, and our link-layer address.
#[must_use]
pub fn neighbor_advertisement(
    source: &Ip,
    destination: &Ip,
    flags: NeighborFlags,
    mac: Mac,
) -> [u8; NEIGHBOR_BYTES] {
    let option = LinkOption::new(TARGET_MAC, mac);
    let (ends, flags) = ((source, destination), flags.bits());
    neighbor(ends, NEIGHBOR_ADVERTISEMENT, flags, source, option)
}

fn neighbor(
    ends: (&Ip, &Ip),
    kind: u8,
    flags: u8,
    target: &Ip,
    option: LinkOption,
) -> [u8; NEIGHBOR_BYTES] {
    let sum = Sum::of(&target.0).plus(Sum::of(option.as_bytes()));
    let head = Head::new(ends, kind, flags, NEIGHBOR_BYTES, sum);
    let target = *target;
    zerocopy::transmute!(Neighbor {
        head,
        target,
        option
    })
}

const SOURCE_MAC: u8 = 1;
const TARGET_MAC: u8 = 2;
const PREFIX: u8 = 3;

/// Header shared by all messages.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Head {
    kind: u8,
    code: u8,
    checksum: [u8; 2],
    /// Flags, a router's lifetime, or nothing.
    field: [u8; 4],
}

impl Head {
    /// The head of a message of `len` bytes, whose bytes after this head have the sum `rest`.
    fn new((source, destination): (&Ip, &Ip), kind: u8, flags: u8, len: usize, rest: Sum) -> Self {
        let mut head = Self {
            kind,
            code: 0,
            checksum: [0; 2],
            field: [flags, 0, 0, 0],
        };
        // RFC 4443 section 2.3: unlike ICMPv4's, it covers the addresses.
        let sum = pseudo(source, destination, ICMPV6)
            .plus_len(len)
            .plus(Sum::of(head.as_bytes()))
            .plus(rest);
        head.checksum = sum.field();
        head
    }
}

/// RFC 4861 section 4.6.1, RFC 2464 section 6: type, length in units of eight bytes, address.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct LinkOption {
    kind: u8,
    units: u8,
    mac: Mac,
}

impl LinkOption {
    fn new(kind: u8, mac: Mac) -> Self {
        Self {
            kind,
            // Eight bytes, type and length included.
            units: 1,
            mac,
        }
    }
}

/// RFC 4861 section 4.1, with its option.
#[derive(Clone, Copy, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct RouterSolicitation {
    head: Head,
    option: LinkOption,
}

/// RFC 4861 sections 4.3 and 4.4, with their option.
#[derive(Clone, Copy, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct Neighbor {
    head: Head,
    target: Ip,
    option: LinkOption,
}

/// RFC 4861 section 4.6.2.
#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct PrefixOption {
    kind: u8,
    _units: u8,
    bits: u8,
    flags: u8,
    valid_s: U32,
    preferred_s: U32,
    _reserved: U32,
    prefix: Ip,
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Mac = [2, 0, 0, 0, 0, 1];
    const SOURCE: Ip = Ip([0xfd; 16]);

    fn advertisement(options: &[u8]) -> Vec<u8> {
        let mut bytes = vec![ROUTER_ADVERTISEMENT, 0, 0, 0, 64, 0, 0x07, 0x08];
        bytes.extend([0; 8]);
        bytes.extend(options);
        bytes
    }

    fn prefix(first: u8) -> [u8; 32] {
        let mut option = [0; 32];
        option[..8].copy_from_slice(&[3, 4, 64, 0xc0, 0, 0, 0, 9]);
        option[16] = first;
        option
    }

    #[test]
    fn what_is_written_is_read() {
        let target = Ip([0xfc; 16]);
        let bytes = neighbor_solicitation(&SOURCE, &target, &target, OURS);
        let source = Some(OURS);
        let asked = Message::NeighborSolicitation { target, source };
        assert_eq!(Message::parse(&bytes), Some(asked));
        let flags = NeighborFlags {
            router: true,
            solicited: false,
            replaces: true,
        };
        let bytes = neighbor_advertisement(&SOURCE, &target, flags, OURS);
        let expected = Message::NeighborAdvertisement {
            flags,
            target: SOURCE,
            mac: source,
        };
        assert_eq!(Message::parse(&bytes), Some(expected));
        let bytes = router_solicitation(&SOURCE, &target, OURS);
        let asked = Message::RouterSolicitation { source };
        assert_eq!(Message::parse(&bytes), Some(asked));
    }

    #[test]
    fn an_advertisement_has_every_prefix() {
        let options = [prefix(0x20), [0; 32], prefix(0x30)].concat();
        // The second one is of an unknown type.
        let mut bytes = advertisement(&options);
        bytes[16 + 32..16 + 34].copy_from_slice(&[200, 4]);
        let Some(Message::RouterAdvertisement {
            router_s, options, ..
        }) = Message::parse(&bytes)
        else {
            panic!("an advertisement");
        };
        assert_eq!(router_s, 1800);
        let first: Vec<u8> = options
            .prefixes()
            .map(|prefix| prefix.prefix.0[0])
            .collect();
        assert_eq!(first, [0x20, 0x30]);
        let prefix = options.prefixes().next().expect("a prefix");
        assert!(prefix.on_link && prefix.autonomous);
        assert_eq!(
            (prefix.bits, prefix.valid_s, prefix.preferred_s),
            (64, 9, 0)
        );
    }

    #[test]
    fn an_option_of_no_length_or_beyond_the_end_refuses_the_message() {
        let prefix = prefix(0x20);
        assert!(Message::parse(&advertisement(&prefix)).is_some());
        for len in 1..32 {
            assert_eq!(
                Message::parse(&advertisement(&prefix[..len])),
                None,
                "{len}"
            );
        }
        for units in [0, 5, 255] {
            let mut option = prefix;
            option[1] = units;
            assert_eq!(Message::parse(&advertisement(&option)), None, "{units}");
        }
        // A valid one before it does not help.
        let options = [&prefix[..], &[1, 0, 2, 0, 0, 0, 0, 1]].concat();
        assert_eq!(Message::parse(&advertisement(&options)), None);
    }

    #[test]
    fn an_option_of_another_length_than_its_own_says_nothing() {
        // A link-layer address of 14 bytes, and a prefix of 24.
        let mut options = [0; 40];
        options[..2].copy_from_slice(&[1, 2]);
        options[16..18].copy_from_slice(&[3, 3]);
        let bytes = advertisement(&options);
        let Some(Message::RouterAdvertisement {
            source, options, ..
        }) = Message::parse(&bytes)
        else {
            panic!("an advertisement");
        };
        assert_eq!((source, options.prefixes().count()), (None, 0));
    }

    #[test]
    fn short_messages_other_codes_and_groups_as_targets_are_not_taken() {
        let target = Ip([0xfc; 16]);
        let good = neighbor_solicitation(&SOURCE, &target, &target, OURS);
        // Without the option it is whole too.
        for len in (0..NEIGHBOR_BYTES).filter(|len| *len != 24) {
            assert_eq!(Message::parse(&good[..len]), None, "{len} bytes");
        }
        assert!(Message::parse(&good[..24]).is_some());
        for (at, value) in [(0, 132), (0, 138), (1, 1), (8, 0xff)] {
            let mut bytes = good;
            bytes[at] = value;
            assert_eq!(Message::parse(&bytes), None, "byte {at} is {value}");
        }
        let mut redirect = [0xfc; 40];
        redirect[..8].copy_from_slice(&[REDIRECT, 0, 0, 0, 0, 0, 0, 0]);
        assert!(Message::parse(&redirect).is_some());
        assert_eq!(Message::parse(&redirect[..39]), None);
        redirect[24] = 0xff;
        assert_eq!(Message::parse(&redirect), None);
    }
}
