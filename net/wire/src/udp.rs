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

/// Position of the checksum in the header.
pub const CHECKSUM_OFFSET: u16 = 6;

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

pub mod dhcp {
    //! DHCP for IPv4: a client's requests, and the answers of servers.
    //!
    //! Must stay true: an [`Answer`] that offers or grants an address has one that a host may have,
    //! a mask and a time. Source: RFC 2131 sections 2 and 4.4.1, RFC 2132.
    //!
    //! ```
    //! use sidecore_net_wire::udp::dhcp;
    //!
    //! let bytes = dhcp::request(&dhcp::Wish::Discover, 7, &[2, 0, 0, 0, 0, 1]);
    //! assert_eq!((bytes[0], &bytes[4..8]), (1, &[0, 0, 0, 7][..]));
    //! // It is no answer.
    //! assert_eq!(dhcp::parse(&bytes, &[2, 0, 0, 0, 0, 1]), None);
    //! ```

    use crate::{Ip, Mac};

    pub const SERVER_PORT: u16 = 67;
    pub const CLIENT_PORT: u16 = 68;
    /// Bytes of a request: BOOTP's least (RFC 1542 section 2.1).
    pub const BYTES: usize = 300;

    /// A client's request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Wish {
        /// Offers of all servers.
        Discover,
        /// The address that this server has offered.
        Select { address: [u8; 4], server: [u8; 4] },
        /// A longer time for the address that it has.
        Renew { address: [u8; 4] },
    }

    /// The kind of an answer.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Kind {
        Offer,
        Grant,
        Refusal,
    }

    /// The answer of a server. A refusal has no address.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Answer {
        pub kind: Kind,
        pub transaction: u32,
        pub server: [u8; 4],
        pub address: [u8; 4],
        pub prefix_bits: u8,
        pub router: Option<[u8; 4]>,
        /// Seconds for which it may be used, until it is to be renewed by the server, and by any.
        pub lease_s: u32,
        pub renew_s: u32,
        pub rebind_s: u32,
    }

    /// A request with this number.
    #[must_use]
    pub fn request(wish: &Wish, transaction: u32, mac: &Mac) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&[REQUEST, ETHERNET, 6, 0]);
        bytes[4..8].copy_from_slice(&transaction.to_be_bytes());
        match wish {
            Wish::Renew { address } => bytes[12..16].copy_from_slice(address),
            // A host without an address hears broadcasts only.
            Wish::Discover | Wish::Select { .. } => bytes[10] = BROADCAST_FLAG,
        }
        bytes[28..34].copy_from_slice(mac);
        bytes[OPTIONS_AT - 4..OPTIONS_AT].copy_from_slice(&COOKIE);
        let mut at = OPTIONS_AT;
        let mut put = |code: u8, value: &[u8]| {
            bytes[at] = code;
            // All are a few bytes long.
            bytes[at + 1] = u8::try_from(value.len()).unwrap_or(u8::MAX);
            at += 2;
            bytes[at..at + value.len()].copy_from_slice(value);
            at += value.len();
        };
        let kind = match wish {
            Wish::Discover => DISCOVER,
            Wish::Select { .. } | Wish::Renew { .. } => SELECT,
        };
        put(MESSAGE, &[kind]);
        if let Wish::Select { address, server } = wish {
            put(ADDRESS, address);
            put(SERVER, server);
        }
        let [a, b, c, d, e, f] = *mac;
        put(CLIENT, &[ETHERNET, a, b, c, d, e, f]);
        put(WANTED, &[MASK, ROUTER, LEASE, SERVER, RENEW, REBIND]);
        bytes[at] = END;
        bytes
    }

    /// The answer to a host with this hardware address; none if it is another message.
    #[must_use]
    pub fn parse(bytes: &[u8], mac: &Mac) -> Option<Answer> {
        let (head, mut options) = bytes.split_at_checked(OPTIONS_AT)?;
        if head[0] != REPLY || head[28..34] != *mac || head[OPTIONS_AT - 4..] != COOKIE {
            return None;
        }
        let word = |at: usize| [head[at], head[at + 1], head[at + 2], head[at + 3]];
        let (mut kind, mut server, mut mask, mut router) = (None, None, None, None);
        let (mut lease_s, mut renew_s, mut rebind_s) = (None, None, None);
        while let [code, rest @ ..] = options {
            if *code == PAD || *code == END {
                options = if *code == PAD { rest } else { &[] };
                continue;
            }
            let [len, rest @ ..] = rest else {
                return None;
            };
            let (value, rest) = rest.split_at_checked(usize::from(*len))?;
            let four = value.first_chunk::<4>().copied();
            match *code {
                MESSAGE => kind = value.first().copied(),
                SERVER => server = four,
                MASK => mask = four,
                ROUTER => router = four,
                LEASE => lease_s = four.map(u32::from_be_bytes),
                RENEW => renew_s = four.map(u32::from_be_bytes),
                REBIND => rebind_s = four.map(u32::from_be_bytes),
                _ => {}
            }
            options = rest;
        }
        let kind = match kind? {
            OFFER => Kind::Offer,
            GRANT => Kind::Grant,
            REFUSE => Kind::Refusal,
            _ => return None,
        };
        let mut answer = Answer {
            kind,
            transaction: u32::from_be_bytes(word(4)),
            server: server?,
            address: [0; 4],
            prefix_bits: 32,
            router: router.filter(|router| !Ip::v4(*router).is_martian_source()),
            lease_s: 0,
            renew_s: 0,
            rebind_s: 0,
        };
        if kind == Kind::Refusal {
            return Some(answer);
        }
        answer.address = word(16);
        let mask = u32::from_be_bytes(mask?);
        let ones = mask.leading_ones();
        // A mask is ones, then zeros.
        let is_mask = ones > 0 && ones + mask.trailing_zeros() == u32::BITS;
        answer.prefix_bits = u8::try_from(ones).ok().filter(|_| is_mask)?;
        answer.lease_s = lease_s.filter(|seconds| *seconds > 0)?;
        if Ip::v4(answer.address).is_martian_source() {
            return None;
        }
        // RFC 2131 section 4.4.5: half of the time, and seven eighths.
        let lease_s = answer.lease_s;
        let (half, most) = (lease_s / 2, lease_s - lease_s / 8);
        answer.rebind_s = rebind_s.filter(|at| *at <= lease_s).unwrap_or(most);
        let renew_s = renew_s.filter(|at| *at <= answer.rebind_s);
        answer.renew_s = renew_s.unwrap_or(half.min(answer.rebind_s));
        Some(answer)
    }

    const REQUEST: u8 = 1;
    const REPLY: u8 = 2;
    const ETHERNET: u8 = 1;
    /// The first byte of the flags.
    const BROADCAST_FLAG: u8 = 0x80;
    const COOKIE: [u8; 4] = [99, 130, 83, 99];
    const OPTIONS_AT: usize = 240;
    // Codes of options: RFC 2132 sections 3 and 9.
    const PAD: u8 = 0;
    const MASK: u8 = 1;
    const ROUTER: u8 = 3;
    const ADDRESS: u8 = 50;
    const LEASE: u8 = 51;
    const MESSAGE: u8 = 53;
    const SERVER: u8 = 54;
    const WANTED: u8 = 55;
    const RENEW: u8 = 58;
    const REBIND: u8 = 59;
    const CLIENT: u8 = 61;
    const END: u8 = 255;
    // Kinds of messages: RFC 2132 section 9.6.
    const DISCOVER: u8 = 1;
    const OFFER: u8 = 2;
    const SELECT: u8 = 3;
    const GRANT: u8 = 5;
    const REFUSE: u8 = 6;

    #[cfg(test)]
    mod tests {
        use super::*;

        const MAC: Mac = [2, 0, 0, 0, 0, 1];

        /// An answer with these options behind the kind and the server.
        fn answer(kind: u8, address: [u8; 4], options: &[u8]) -> Vec<u8> {
            let mut bytes = vec![0; OPTIONS_AT];
            bytes[0] = REPLY;
            bytes[4..8].copy_from_slice(&[0, 0, 0, 9]);
            bytes[16..20].copy_from_slice(&address);
            bytes[28..34].copy_from_slice(&MAC);
            bytes[OPTIONS_AT - 4..].copy_from_slice(&COOKIE);
            bytes.extend([PAD, MESSAGE, 1, kind, SERVER, 4, 10, 0, 0, 2]);
            bytes.extend(options);
            bytes.push(END);
            bytes
        }

        const GOOD: [u8; 12] = [MASK, 4, 255, 255, 255, 0, LEASE, 4, 0, 0, 0, 80];

        #[test]
        fn a_grant_has_its_times_and_a_refusal_none() {
            let good = parse(&answer(GRANT, [10, 0, 0, 7], &GOOD), &MAC).unwrap();
            assert_eq!((good.kind, good.transaction), (Kind::Grant, 9));
            assert_eq!((good.address, good.prefix_bits), ([10, 0, 0, 7], 24));
            assert_eq!((good.server, good.router), ([10, 0, 0, 2], None));
            assert_eq!((good.renew_s, good.rebind_s, good.lease_s), (40, 70, 80));
            let more = [&GOOD[..], &[ROUTER, 4, 10, 0, 0, 1, RENEW, 4, 0, 0, 0, 9]].concat();
            let good = parse(&answer(OFFER, [10, 0, 0, 7], &more), &MAC).unwrap();
            assert_eq!((good.router, good.renew_s), (Some([10, 0, 0, 1]), 9));
            let refusal = parse(&answer(REFUSE, [0; 4], &[]), &MAC).unwrap();
            assert_eq!(refusal.kind, Kind::Refusal);
        }

        #[test]
        fn what_is_no_answer_is_none() {
            let good = answer(GRANT, [10, 0, 0, 7], &GOOD);
            // Without the end alone it is whole.
            for length in 0..good.len() - 1 {
                assert_eq!(parse(&good[..length], &MAC), None, "{length}");
            }
            assert!(parse(&good[..good.len() - 1], &MAC).is_some());
            for (at, value) in [
                (0, REQUEST),
                (33, 2),
                (239, 0),
                (16, 127),
                (243, 9),
                (252, 1),
            ] {
                let mut bad = good.clone();
                bad[at] = value;
                assert_eq!(parse(&bad, &MAC), None, "{at}");
            }
        }
    }
}
