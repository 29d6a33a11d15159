//! The small formats compared with smoltcp's implementation: each parses what the other writes,
//! byte for byte; and both parse random and damaged packets alike, except for the differences named
//! here.

use proptest::collection::vec;
use proptest::prelude::*;
use sidecore_net_stack::wire::fragment::{self, Piece};
use sidecore_net_stack::wire::ndisc::{self, Message, NeighborFlags};
use sidecore_net_stack::wire::{Ip, Mac, arp, igmp, ip, mld};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire as theirs;
use smoltcp::wire::{EthernetAddress, RawHardwareAddress};
use std::net::{Ipv4Addr, Ipv6Addr};

const RECORDS: [mld::Record; 3] = [mld::Record::Current, mld::Record::Left, mld::Record::Joined];

// ARP.

fn their_arp(bytes: &[u8]) -> Option<arp::Arp> {
    let packet = theirs::ArpPacket::new_checked(bytes).ok()?;
    let theirs::ArpRepr::EthernetIpv4 {
        operation,
        source_hardware_addr,
        source_protocol_addr,
        target_hardware_addr,
        target_protocol_addr,
    } = theirs::ArpRepr::parse(&packet).ok()?
    else {
        return None;
    };
    Some(arp::Arp {
        operation: match operation {
            theirs::ArpOperation::Request => arp::Operation::Request,
            theirs::ArpOperation::Reply => arp::Operation::Reply,
            theirs::ArpOperation::Unknown(other) => arp::Operation::Other(other),
        },
        sender_mac: source_hardware_addr.0,
        sender: source_protocol_addr.octets(),
        target_mac: target_hardware_addr.0,
        target: target_protocol_addr.octets(),
    })
}

// Neighbour discovery.

type Their<'p> = theirs::NdiscRepr<'p>;

fn their_discovery(bytes: &[u8]) -> Option<Their<'_>> {
    let packet = theirs::Icmpv6Packet::new_checked(bytes).ok()?;
    let any = Ipv6Addr::UNSPECIFIED;
    let message =
        theirs::Icmpv6Repr::parse(&any, &any, &packet, &ChecksumCapabilities::ignored()).ok()?;
    match message {
        theirs::Icmpv6Repr::Ndisc(message) => Some(message),
        _ => None,
    }
}

fn their_bytes(source: &Ip, destination: &Ip, message: Their<'_>) -> Vec<u8> {
    let message = theirs::Icmpv6Repr::Ndisc(message);
    let mut bytes = vec![0; message.buffer_len()];
    let mut packet = theirs::Icmpv6Packet::new_unchecked(&mut bytes[..]);
    let (from, to) = (Ipv6Addr::from(source.0), Ipv6Addr::from(destination.0));
    message.emit(&from, &to, &mut packet, &ChecksumCapabilities::default());
    bytes
}

fn raw(mac: Mac) -> Option<RawHardwareAddress> {
    Some(RawHardwareAddress::from_bytes(&mac))
}

fn mac_of(address: Option<RawHardwareAddress>) -> Option<Mac> {
    address.and_then(|address| Mac::try_from(address.as_bytes()).ok())
}

fn ip_of(address: Ipv6Addr) -> Ip {
    Ip(address.octets())
}

/// Offset of a discovery message's options.
fn options_at(kind: u8) -> usize {
    match kind {
        133 => 8,
        134 => 16,
        135 | 136 => 24,
        _ => 40,
    }
}

/// True if the implementations differ on purpose: groups as targets, which RFC 4861 forbids and
/// smoltcp accepts; link-layer addresses of other types than Ethernet, of which smoltcp takes six
/// bytes; and short prefixes and redirected headers, for which smoltcp rejects the whole message.
fn differs_on_purpose(bytes: &[u8]) -> bool {
    let kind = bytes[0];
    let is_group = |at: usize| bytes.get(at) == Some(&0xff);
    if kind >= 135 && is_group(8) || kind == 137 && is_group(24) {
        return true;
    }
    let mut rest = bytes.get(options_at(kind)..).unwrap_or_default();
    while let &[kind, units, ..] = rest {
        if matches!((kind, units), (1 | 2, 2..) | (3, 1..4) | (4, 1..6)) {
            return true;
        }
        if units == 0 {
            return false;
        }
        rest = rest.get(usize::from(units) * 8..).unwrap_or_default();
    }
    false
}

/// True if both parsers agree on a message.
fn same(ours: Option<Message<'_>>, theirs: Option<Their<'_>>) -> bool {
    match (ours, theirs) {
        (None, None) => true,
        (Some(Message::RouterSolicitation { source }), Some(Their::RouterSolicit { lladdr })) => {
            source == mac_of(lladdr)
        }
        (
            Some(Message::RouterAdvertisement {
                router_s,
                source,
                options,
            }),
            Some(Their::RouterAdvert {
                router_lifetime,
                lladdr,
                prefix_info,
                ..
            }),
        ) => {
            // smoltcp keeps the last prefix.
            let prefix = options.prefixes().last();
            let prefix = prefix.map(|ours| {
                let seconds = (u64::from(ours.valid_s), u64::from(ours.preferred_s));
                (
                    ours.bits,
                    ours.on_link,
                    ours.autonomous,
                    seconds,
                    ours.prefix,
                )
            });
            let flags = theirs::NdiscPrefixInfoFlags::contains;
            let theirs = prefix_info.map(|theirs| {
                let seconds = (
                    theirs.valid_lifetime.secs(),
                    theirs.preferred_lifetime.secs(),
                );
                let on_link = flags(&theirs.flags, theirs::NdiscPrefixInfoFlags::ON_LINK);
                let autonomous = flags(&theirs.flags, theirs::NdiscPrefixInfoFlags::ADDRCONF);
                let address = ip_of(theirs.prefix);
                (theirs.prefix_len, on_link, autonomous, seconds, address)
            });
            u64::from(router_s) == router_lifetime.secs()
                && source == mac_of(lladdr)
                && prefix == theirs
        }
        (
            Some(Message::NeighborSolicitation { target, source }),
            Some(Their::NeighborSolicit {
                target_addr,
                lladdr,
            }),
        ) => target == ip_of(target_addr) && source == mac_of(lladdr),
        (
            Some(Message::NeighborAdvertisement { flags, target, mac }),
            Some(Their::NeighborAdvert {
                flags: their_flags,
                target_addr,
                lladdr,
            }),
        ) => {
            flags_of(flags) == their_flags && target == ip_of(target_addr) && mac == mac_of(lladdr)
        }
        (
            Some(Message::Redirect {
                target,
                destination,
                mac,
            }),
            Some(Their::Redirect {
                target_addr,
                dest_addr,
                lladdr,
                ..
            }),
        ) => {
            target == ip_of(target_addr) && destination == ip_of(dest_addr) && mac == mac_of(lladdr)
        }
        _ => false,
    }
}

fn flags_of(flags: NeighborFlags) -> theirs::NdiscNeighborFlags {
    let mut theirs = theirs::NdiscNeighborFlags::empty();
    theirs.set(theirs::NdiscNeighborFlags::ROUTER, flags.router);
    theirs.set(theirs::NdiscNeighborFlags::SOLICITED, flags.solicited);
    theirs.set(theirs::NdiscNeighborFlags::OVERRIDE, flags.replaces);
    theirs
}

/// An option, usually one with a valid length.
fn option() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![0_u8..8, any::<u8>()];
    let units = prop_oneof![Just(None), (0_u8..8).prop_map(Some)];
    (kind, units, vec(any::<u8>(), 0..64)).prop_map(|(kind, units, body)| {
        let own = match kind {
            1 | 2 | 5 => 1,
            3 => 4,
            4 => 6,
            _ => 1 + (body.len() / 16) as u8,
        };
        let units = units.unwrap_or(own);
        let mut bytes = vec![kind, units];
        bytes.extend(body);
        bytes.resize(usize::from(units.max(1)) * 8, 0x5a);
        bytes
    })
}

fn discovery() -> impl Strategy<Value = Vec<u8>> {
    let code = prop_oneof![9 => Just(0_u8), 1 => any::<u8>()];
    let cut = prop_oneof![3 => Just(0_usize), 1 => 0_usize..40];
    let head = vec(any::<u8>(), 38);
    (133_u8..=137, code, head, vec(option(), 0..5), cut).prop_map(
        |(kind, code, head, options, cut)| {
            let mut bytes = vec![kind, code];
            bytes.extend(head);
            bytes.truncate(options_at(kind));
            bytes.extend(options.concat());
            bytes.truncate(bytes.len() - cut.min(bytes.len() - 2));
            bytes
        },
    )
}

// Groups.

fn their_igmp(bytes: &[u8]) -> Option<igmp::Message> {
    let packet = theirs::IgmpPacket::new_checked(bytes).ok()?;
    let message = theirs::IgmpRepr::parse(&packet).ok()?;
    if !packet.verify_checksum() {
        return None;
    }
    Some(match message {
        theirs::IgmpRepr::MembershipQuery { group_addr, .. } => igmp::Message::Query {
            group: group_addr.octets(),
            response_code: packet.max_resp_code(),
        },
        theirs::IgmpRepr::MembershipReport {
            group_addr,
            version: theirs::IgmpVersion::Version1,
        } => igmp::Message::ReportV1(group_addr.octets()),
        theirs::IgmpRepr::MembershipReport { group_addr, .. } => {
            igmp::Message::ReportV2(group_addr.octets())
        }
        theirs::IgmpRepr::LeaveGroup { group_addr } => igmp::Message::Leave(group_addr.octets()),
    })
}

fn their_igmp_bytes(message: &theirs::IgmpRepr) -> Vec<u8> {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut theirs::IgmpPacket::new_unchecked(&mut bytes[..]));
    bytes
}

/// An IGMP message, usually with a correct checksum.
fn membership() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![
        Just(0x11_u8),
        Just(0x12),
        Just(0x16),
        Just(0x17),
        any::<u8>()
    ];
    let first = prop_oneof![Just(0_u8), 224_u8..240, any::<u8>()];
    (kind, first, vec(any::<u8>(), 0..40), 0_u8..8).prop_map(|(kind, first, rest, seal)| {
        let mut bytes = vec![kind, 7, 0, 0, first];
        bytes.extend(if first == 0 {
            vec![0; 3]
        } else {
            vec![0, 0, 9]
        });
        bytes.extend(rest);
        if seal > 0 {
            let field = sidecore_net_stack::checksum::Sum::of(&bytes).field();
            bytes[2..4].copy_from_slice(&field);
        }
        bytes
    })
}

fn their_query(bytes: &[u8]) -> Option<Ip> {
    let packet = theirs::Icmpv6Packet::new_checked(bytes).ok()?;
    match theirs::MldRepr::parse(&packet).ok()? {
        theirs::MldRepr::Query { mcast_addr, .. } => Some(ip_of(mcast_addr)),
        _ => None,
    }
}

fn group() -> impl Strategy<Value = [u8; 4]> {
    (224_u8..240, any::<[u8; 3]>()).prop_map(|(first, [a, b, c])| [first, a, b, c])
}

/// An IPv6 address that is not IPv4-mapped.
fn address() -> impl Strategy<Value = Ip> {
    any::<[u8; 16]>().prop_map(|mut bytes| {
        bytes[0] |= 1;
        Ip(bytes)
    })
}

/// An address that is not a group.
fn station() -> impl Strategy<Value = Ip> {
    address().prop_map(|mut ip| {
        ip.0[0] &= 0x7f;
        ip
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 4_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn arp_is_written_alike_and_read_back(
        number in any::<u16>(),
        (sender_mac, target_mac) in any::<(Mac, Mac)>(),
        (sender, target) in any::<([u8; 4], [u8; 4])>(),
    ) {
        let operation = match number % 4 {
            0 => arp::Operation::Request,
            1 => arp::Operation::Reply,
            _ => arp::Operation::Other(number | 4),
        };
        let ours = arp::Arp { operation, sender_mac, sender, target_mac, target };
        let packet = theirs::ArpRepr::EthernetIpv4 {
            operation: match operation {
                arp::Operation::Request => theirs::ArpOperation::Request,
                arp::Operation::Reply => theirs::ArpOperation::Reply,
                arp::Operation::Other(other) => theirs::ArpOperation::Unknown(other),
            },
            source_hardware_addr: EthernetAddress(sender_mac),
            source_protocol_addr: Ipv4Addr::from(sender),
            target_hardware_addr: EthernetAddress(target_mac),
            target_protocol_addr: Ipv4Addr::from(target),
        };
        let mut bytes = vec![0; packet.buffer_len()];
        packet.emit(&mut theirs::ArpPacket::new_unchecked(&mut bytes[..]));
        prop_assert_eq!(&ours.to_bytes()[..], &bytes[..]);
        prop_assert_eq!(arp::Arp::parse(&bytes), Some(ours));
    }

    #[test]
    fn arp_is_read_alike(
        mut bytes in vec(any::<u8>(), 0..60),
        head in any::<bool>(),
        damaged in 0_usize..16,
        value in any::<u8>(),
    ) {
        let right = [0, 1, 8, 0, 6, 4, 0, 2];
        if head && bytes.len() >= right.len() {
            bytes[..right.len()].copy_from_slice(&right);
        }
        if let Some(byte) = bytes.get_mut(damaged) {
            *byte = value;
        }
        prop_assert_eq!(arp::Arp::parse(&bytes), their_arp(&bytes));
    }

    #[test]
    fn discovery_is_written_alike_and_read_back(
        (source, destination, target) in (station(), address(), station()),
        mac in any::<Mac>(),
        (router, solicited, replaces) in any::<(bool, bool, bool)>(),
    ) {
        let lladdr = raw(mac);
        let ours = ndisc::router_solicitation(&source, &destination, mac);
        let bytes = their_bytes(&source, &destination, Their::RouterSolicit { lladdr });
        prop_assert_eq!(&ours[..], &bytes[..]);
        prop_assert!(same(Message::parse(&ours), their_discovery(&ours)));

        let ours = ndisc::neighbor_solicitation(&source, &destination, &target, mac);
        let target_addr = Ipv6Addr::from(target.0);
        let message = Their::NeighborSolicit { target_addr, lladdr };
        prop_assert_eq!(&ours[..], &their_bytes(&source, &destination, message)[..]);
        prop_assert!(same(Message::parse(&ours), Some(message)));

        let flags = NeighborFlags { router, solicited, replaces };
        let ours = ndisc::neighbor_advertisement(&source, &destination, flags, mac);
        let target_addr = Ipv6Addr::from(source.0);
        let message = Their::NeighborAdvert { flags: flags_of(flags), target_addr, lladdr };
        prop_assert_eq!(&ours[..], &their_bytes(&source, &destination, message)[..]);
        prop_assert!(same(Message::parse(&ours), Some(message)));
    }

    #[test]
    fn discovery_is_read_alike(bytes in discovery()) {
        let ours = Message::parse(&bytes);
        if !differs_on_purpose(&bytes) {
            let theirs = their_discovery(&bytes);
            prop_assert!(same(ours, theirs), "{ours:?} and {theirs:?}");
        }
    }

    #[test]
    fn any_bytes_at_all_are_survived(bytes in vec(any::<u8>(), 0..200)) {
        let _ = Message::parse(&bytes);
        let _ = (arp::Arp::parse(&bytes), igmp::Message::parse(&bytes), mld::parse_query(&bytes));
        let _ = (fragment::parse_v4(&bytes), fragment::parse_v6(&bytes));
    }

    #[test]
    fn igmp_is_written_alike(group in group()) {
        let group_addr = Ipv4Addr::from(group);
        let version = theirs::IgmpVersion::Version2;
        let theirs = theirs::IgmpRepr::MembershipReport { group_addr, version };
        let ours = igmp::Message::ReportV2(group).to_bytes();
        prop_assert_eq!(&ours[..], &their_igmp_bytes(&theirs)[..]);
        let version = theirs::IgmpVersion::Version1;
        let theirs = theirs::IgmpRepr::MembershipReport { group_addr, version };
        let ours = igmp::Message::ReportV1(group).to_bytes();
        prop_assert_eq!(&ours[..], &their_igmp_bytes(&theirs)[..]);
        let theirs = theirs::IgmpRepr::LeaveGroup { group_addr };
        let ours = igmp::Message::Leave(group).to_bytes();
        prop_assert_eq!(&ours[..], &their_igmp_bytes(&theirs)[..]);
    }

    #[test]
    fn igmp_is_read_alike(bytes in membership()) {
        // RFC 3376 section 7.1 forbids queries of 9 to 11 bytes; smoltcp accepts them.
        let strange = bytes[0] == 0x11 && (9..12).contains(&bytes.len());
        let expected = if strange { None } else { their_igmp(&bytes) };
        prop_assert_eq!(igmp::Message::parse(&bytes), expected);
    }

    #[test]
    fn a_report_of_listeners_is_read_by_the_other(
        (source, mut group) in (station(), address()),
        ours in prop::sample::select(&RECORDS),
    ) {
        group.0[0] = 0xff;
        let bytes = mld::report(&source, &group, ours);
        let packet = theirs::Icmpv6Packet::new_checked(&bytes[8..]).expect("a message");
        let (from, to) = (Ipv6Addr::from(source.0), Ipv6Addr::from(mld::ROUTERS.0));
        prop_assert!(packet.verify_checksum(&from, &to));
        let message = theirs::MldRepr::parse(&packet).expect("a report");
        let theirs::MldRepr::Report { nr_mcast_addr_rcrds: 1, data } = message else {
            panic!("{message:?}");
        };
        let record = theirs::MldAddressRecord::new_checked(data).expect("a record");
        let kind = match ours {
            mld::Record::Current => theirs::MldRecordType::ModeIsExclude,
            mld::Record::Left => theirs::MldRecordType::ChangeToInclude,
            mld::Record::Joined => theirs::MldRecordType::ChangeToExclude,
        };
        prop_assert_eq!(record.record_type(), kind);
        prop_assert_eq!(record.num_srcs(), 0);
        prop_assert_eq!(record.mcast_addr(), Ipv6Addr::from(group.0));
        // And all of its bytes as the other one writes them.
        let record = theirs::MldAddressRecordRepr {
            record_type: kind,
            aux_data_len: 0,
            num_srcs: 0,
            mcast_addr: Ipv6Addr::from(group.0),
            payload: &[],
        };
        let records = [record];
        let report = theirs::Icmpv6Repr::Mld(theirs::MldRepr::ReportRecordReprs(&records));
        // Its `buffer_len` omits the records.
        let mut theirs = [0; 8 + 20];
        let mut packet = theirs::Icmpv6Packet::new_unchecked(&mut theirs[..]);
        report.emit(&from, &to, &mut packet, &ChecksumCapabilities::default());
        prop_assert_eq!(&bytes[8..], &theirs[..]);
    }

    #[test]
    fn a_query_of_listeners_is_read_alike(
        mut bytes in vec(any::<u8>(), 1..80), all in any::<bool>()
    ) {
        bytes[0] = mld::QUERY;
        if let Some(group) = bytes.get_mut(8..24) {
            match all {
                true => group.fill(0),
                false => group[0] = 0xff,
            }
        }
        let ours = mld::parse_query(&bytes);
        // Version 1's 24 bytes, which RFC 3810 section 8.1 requires to be parsed, smoltcp rejects.
        match bytes.len() {
            24 => prop_assert!(ours.is_some()),
            _ => prop_assert_eq!(ours, their_query(&bytes)),
        }
    }

    #[test]
    fn a_fragment_header_is_written_and_read_alike(
        (source, destination) in (station(), station()),
        (identification, units, more) in (any::<u32>(), 0_u16..0x1fff, any::<bool>()),
        len in 1_usize..8,
        reserved in 0_u8..4,
    ) {
        let piece = Piece { identification, offset: usize::from(units) * 8, more, len: len * 8 };
        let mut bytes = vec![0; fragment::head_bytes(&source)];
        fragment::write(&mut bytes, (&source, &destination), ip::UDP, 64, &piece);
        let ident = identification;
        let header = theirs::Ipv6FragmentRepr { frag_offset: units, more_frags: more, ident };
        let mut theirs = [0; 6];
        header.emit(&mut theirs::Ipv6FragmentHeader::new_unchecked(&mut theirs[..]));
        prop_assert_eq!(&bytes[42..], &theirs[..]);
        prop_assert_eq!(&bytes[40..42], &[ip::UDP, 0]);
        // Reserved bits are ignored (RFC 8200 section 4.5).
        bytes[43] |= reserved << 1;
        bytes.resize(bytes.len() + len * 8, 0);
        let theirs = theirs::Ipv6FragmentHeader::new_checked(&bytes[42..]).expect("a header");
        let theirs = theirs::Ipv6FragmentRepr::parse(&theirs).expect("a header");
        let end = usize::from(units) * 8 + len * 8;
        match fragment::parse_v6(&bytes) {
            Ok(ours) => {
                prop_assert_eq!(ours.offset, usize::from(theirs.frag_offset) * 8);
                prop_assert_eq!(ours.more, theirs.more_frags);
                prop_assert_eq!(ours.key.identification, theirs.ident);
            }
            Err(_) => prop_assert!(end > fragment::PACKET_BYTES_MAX),
        }
    }
}
