//! Requirements of RFC 826, 1122, 3810, 4861 and 4862 on a host towards its link: neighbours,
//! routers and groups. Built manually; docs/rfc-requirements.md refers to these tests.

use crate::common;
use crate::hosts::{datagram_v4, ping_v6};

use common::lone::{
    ALL_NODES, Lone, OUR_MAC, OURS, PEER, PEER_MAC, echo, ethernet, ipv4, ipv6, sealed, segment,
    v6_bytes,
};
use common::segment::internet_checksum;
use common::{S, v4, v6};
use sidecore_net_stack::{
    Cidr, FixedNeighbor, NetError, PreferredSource, Route, SessionError, set_udp_class,
};
use std::net::{IpAddr, SocketAddr};

const NOTHING: [[u8; 0]; 0] = [];
const V4: u16 = 0x0800;
const V6: u16 = 0x86dd;

#[test]
fn rfc_1122_2_3_2_1_a_silent_neighbour_is_asked_for_once_a_second() {
    let mut lone = Lone::new();
    for port in 0..20 {
        lone.stack
            .connect(v4(2, 1_000 + port), None)
            .expect("connects");
    }
    let mut asked = Vec::new();
    for _ in 0..100 {
        let arp = |frame: &Vec<u8>| frame[12..14] == [8, 6];
        asked.push(lone.sent().iter().filter(|frame| arp(frame)).count());
        lone.now_ns += S / 10;
    }
    assert_eq!(asked.iter().take(10).sum::<usize>(), 1, "{asked:?}");
    for second in asked.windows(9) {
        assert!(second.iter().sum::<usize>() <= 1, "{asked:?}");
    }
}

/// RFC 1122 section 2.3.2.2.
#[test]
fn rfc_1122_2_3_2_2_a_datagram_waits_for_its_neighbour() {
    let mut lone = Lone::new();
    let id = lone.stack.bind_udp(v4(1, 9)).expect("free");
    lone.stack.send_to(id, v4(2, 9), b"first").expect("sent");
    assert_eq!(lone.sent()[0][12..14], [8, 6]);
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 2, 10, 0, 0, 2];
    arp.extend([2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
    let sent = lone.answers(ethernet(OUR_MAC, 0x0806, &arp));
    assert!(sent[0].ends_with(b"first") && sent[0].starts_with(&PEER_MAC));
}

/// The solicited-node group of our address 1.
fn group_of_ours() -> [u8; 16] {
    let mut group = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0, 0, 0];
    group[13..].copy_from_slice(&v6_bytes(1)[13..]);
    group
}

/// A message of neighbour discovery in a frame.
fn discovery(from: [u8; 16], to: [u8; 16], kind: u8, rest: &[u8]) -> Vec<u8> {
    let message = sealed(&from, &to, 58, [&[kind, 0, 0, 0], rest].concat(), 2);
    let mac = if to[0] == 0xff {
        [0x33, 0x33, to[12], to[13], to[14], to[15]]
    } else {
        OUR_MAC
    };
    ethernet(mac, V6, &ipv6(from, to, 58, &message))
}

fn solicitation(from: [u8; 16], to: [u8; 16], options: &[u8]) -> Vec<u8> {
    let rest = [&[0; 4][..], &v6_bytes(1), options].concat();
    discovery(from, to, 135, &rest)
}

const SOURCE_MAC: [u8; 8] = [1, 1, 2, 0, 0, 0, 0, 2];

#[test]
fn rfc_4861_7_1_1_only_valid_solicitations_are_answered() {
    let (peer, ours, group) = (v6_bytes(2), v6_bytes(1), group_of_ours());
    let good = solicitation(peer, group, &SOURCE_MAC);
    let (mut far, mut damaged, mut code) = (good.clone(), good.clone(), good.clone());
    far[21] = 254;
    damaged[56] ^= 1;
    code[55] = 1;
    code[57] = code[57].wrapping_sub(1);
    let cases = [
        (good, true),
        (solicitation(peer, ours, &[]), true),
        (far, false),
        (damaged, false),
        (code, false),
        (solicitation(peer, group, &[1, 0, 0, 0, 0, 0, 0, 0]), false),
        // From a host that performs duplicate address detection (RFC 4862 section 5.4.3).
        (solicitation([0; 16], group, &[]), true),
        (solicitation([0; 16], group, &SOURCE_MAC), false),
        (solicitation([0; 16], ALL_NODES, &[]), false),
        (solicitation([0; 16], ours, &[]), false),
    ];
    for (at, (frame, answered)) in cases.into_iter().enumerate() {
        let mut lone = Lone::new();
        let answers = lone.answers(frame);
        assert_eq!(answers.len(), usize::from(answered), "{at}");
        if let Some(answer) = answers.first() {
            assert_eq!((answer[21], answer[54]), (255, 136), "{at}");
        }
    }
}

#[test]
fn rfc_4861_7_1_2_an_answer_to_a_group_is_not_believed() {
    for (to, flags, known) in [
        (v6_bytes(1), 0x60, true),
        (ALL_NODES, 0x20, true),
        (ALL_NODES, 0x60, false),
    ] {
        let mut lone = Lone::new();
        let id = lone.stack.bind_udp(v6(1)).expect("free");
        lone.stack.send_to(id, v6(2), b"x").expect("sent");
        assert_eq!(lone.sent()[0][54], 135);
        let rest = [&[flags, 0, 0, 0][..], &v6_bytes(2), &[2, 1], &PEER_MAC].concat();
        let sent = lone.answers(discovery(v6_bytes(2), to, 136, &rest));
        assert_eq!(sent.len(), usize::from(known), "{flags:#x}");
    }
}

#[test]
fn rfc_6980_5_discovery_in_fragments_is_not_believed() {
    let (peer, ours) = (v6_bytes(2), v6_bytes(1));
    let plain = solicitation(peer, ours, &SOURCE_MAC);
    let mut lone = Lone::new();
    // An atomic fragment; an echo request in one is answered (RFC 6946).
    let header = [58, 0, 0, 0, 0, 0, 0, 7];
    let packet = ipv6(peer, ours, 44, &[&header, &plain[54..]].concat());
    assert_eq!(lone.answers(ethernet(OUR_MAC, V6, &packet)), NOTHING);
    assert_eq!(lone.answers(ping_v6(44, &header)).len(), 1);
    // In two.
    let (mut first, mut second) = (header, header);
    first[3] = 1;
    second[3] = 16;
    for (header, part) in [(first, &plain[54..70]), (second, &plain[70..])] {
        let packet = ipv6(peer, ours, 44, &[&header, part].concat());
        assert_eq!(lone.answers(ethernet(OUR_MAC, V6, &packet)), NOTHING);
    }
    assert_eq!(lone.counters().packets_reassembled, 1);
}

/// A prefix option: 2001:db8:NUMBER::/64.
pub(crate) fn prefix(number: u8, flags: u8, valid_s: u32) -> Vec<u8> {
    let mut option = vec![3, 4, 64, flags];
    option.extend(valid_s.to_be_bytes());
    option.extend(valid_s.to_be_bytes());
    option.extend([0, 0, 0, 0, 0x20, 1, 0x0d, 0xb8, 0, number]);
    option.resize(32, 0);
    option
}

/// An advertisement of the router fe80::9, with this lifetime.
pub(crate) fn router(lifetime_s: u16, options: &[u8]) -> Vec<u8> {
    let [high, low] = lifetime_s.to_be_bytes();
    let rest = [&[64, 0, high, low, 0, 0, 0, 0, 0, 0, 0, 0], options].concat();
    discovery(router_address(), ALL_NODES, 134, &rest)
}

fn router_address() -> [u8; 16] {
    let mut address = v6_bytes(9);
    (address[0], address[1]) = (0xfe, 0x80);
    address
}

#[test]
fn rfc_4861_6_3_4_routers_are_used_for_as_long_as_they_want() {
    let mut lone = Lone::with(|config| config.autoconfigure = true);
    let far = SocketAddr::from(([0x2001, 0xdb8, 7, 0, 0, 0, 0, 1], 80));
    for (lifetime_s, way) in [(1800, true), (0, false), (9, true)] {
        lone.answers(router(lifetime_s, &SOURCE_MAC));
        assert_eq!(lone.stack.connect(far, None).is_ok(), way, "{lifetime_s}");
        let frame = lone.sent().pop();
        assert_eq!(frame.is_some_and(|frame| frame.starts_with(&PEER_MAC)), way);
    }
}

/// They speak for themselves as default routers: configured routes through them stay.
#[test]
fn rfc_4861_6_3_4_an_advertisement_leaves_configured_routes() {
    let mut lone = Lone::with(|config| {
        config.autoconfigure = true;
        config.routes = vec![Route {
            network: Cidr {
                address: IpAddr::from([0x2001, 0xdb8, 7, 0, 0, 0, 0, 0]),
                prefix_bits: 48,
            },
            gateway: IpAddr::from(router_address()),
        }];
    });
    let behind = SocketAddr::from(([0x2001, 0xdb8, 7, 0, 0, 0, 0, 1], 80));
    let elsewhere = SocketAddr::from(([0x2001, 0xdb8, 8, 0, 0, 0, 0, 1], 80));
    for (lifetime_s, is_default) in [(1800, true), (0, false)] {
        lone.answers(router(lifetime_s, &SOURCE_MAC));
        for (peer, way) in [(behind, true), (elsewhere, is_default)] {
            assert_eq!(lone.stack.connect(peer, None).is_ok(), way, "{peer}");
            let frame = lone.sent().pop();
            assert_eq!(frame.is_some_and(|frame| frame.starts_with(&PEER_MAC)), way);
        }
    }
}

#[test]
fn rfc_4861_6_3_7_routers_are_asked_for_three_times() {
    for answered in [false, true] {
        let mut lone = Lone::with(|config| config.autoconfigure = true);
        let mut asked = 1; // before the first look
        for second in 0..60 {
            asked += lone.sent().iter().filter(|frame| frame[54] == 133).count();
            lone.now_ns += S;
            if answered && second == 1 {
                lone.answers(router(1800, &[]));
            }
        }
        assert_eq!(asked, if answered { 1 } else { 3 });
    }
}

#[test]
fn rfc_4862_5_5_3_addresses_come_from_a_routers_prefixes() {
    let options = [
        prefix(1, 0xc0, 3600),
        prefix(2, 0x40, 3600),
        // Not to be used for addresses; already expired.
        prefix(3, 0x80, 3600),
        prefix(4, 0xc0, 0),
    ]
    .concat();
    let good = router(1800, &options);
    let message = &good[58..];
    let local = good[22..38].try_into().expect("16 bytes");
    let mut far = good.clone();
    far[21] = 64;
    for (frame, believed) in [
        (good.clone(), true),
        (far, false),
        (discovery(v6_bytes(9), ALL_NODES, 134, message), false),
        (discovery(local, ALL_NODES, 134, &message[..4]), false),
    ] {
        let mut lone = Lone::with(|config| config.autoconfigure = true);
        let before = lone.stack.networks().own;
        lone.answers(frame);
        let mut own = lone.stack.networks().own;
        own.drain(..before.len());
        assert_eq!(own.len(), if believed { 2 } else { 0 }, "{own:?}");
        for (at, (address, bits)) in own.into_iter().enumerate() {
            // RFC 4291 appendix A, of 02:00:00:00:00:01. RFC 5942 section 4: only the second is on
            // the link.
            let wanted = [0x2001, 0xdb8, at as u16 + 1, 0, 0, 0xff, 0xfe00, 1];
            assert_eq!(address, IpAddr::from(wanted));
            assert_eq!(bits, [64, 128][at]);
        }
    }
    let mut lone = Lone::new();
    let before = lone.stack.networks().own;
    lone.answers(good);
    assert_eq!(
        lone.stack.networks().own,
        before,
        "only where it was asked for"
    );
}

/// The longest prefix selects the gateway; section 3.3.1.6: they are configured.
#[test]
fn rfc_1122_3_3_1_1_neighbours_get_packets_directly_and_a_gateway_all_others() {
    let route = |network: [u8; 4], prefix_bits, gateway| Route {
        network: Cidr {
            address: network.into(),
            prefix_bits,
        },
        gateway: v4(gateway, 0).ip(),
    };
    for (to, asked) in [
        ([10, 0, 0, 7], 7),
        ([192, 0, 2, 1], 9),
        ([198, 51, 100, 1], 8),
        ([198, 51, 101, 1], 9),
    ] {
        let mut lone = Lone::with(|config| {
            config.routes = vec![route([0; 4], 0, 9), route([198, 51, 100, 0], 24, 8)];
        });
        let id = lone.stack.bind_udp(v4(1, 9)).expect("free");
        let to = SocketAddr::from((to, 9));
        lone.stack.send_to(id, to, b"x").expect("sent");
        let sent = lone.sent();
        assert_eq!(sent.len(), 1, "{to}");
        let target = (&sent[0][12..14], &sent[0][38..42]);
        assert_eq!(target, (&[8, 6][..], &[10, 0, 0, asked][..]), "{to}");
    }
    let mut lone = Lone::new();
    let far = lone
        .stack
        .connect(SocketAddr::from(([192, 0, 2, 1], 9)), None);
    assert!(
        matches!(far, Err(NetError::NoRoute(_))),
        "without a gateway"
    );
}

/// Then the neighbour counts as unreachable, and waiting sessions get an error.
#[test]
fn rfc_4861_7_2_2_a_silent_neighbour_is_asked_for_three_times() {
    let mut lone = Lone::new();
    let id = lone.stack.connect(v6(77), None).expect("connects");
    let mut asked = Vec::new();
    for tenth in 0..60 {
        let sent = lone.sent();
        asked.extend(sent.iter().filter(|it| it[54] == 135).map(|_| tenth));
        assert!(sent.iter().all(|it| it[20] == 58), "the SYN waits");
        if lone.stack.readiness(id).expect("open").error.is_some() {
            break;
        }
        lone.now_ns += S / 10;
    }
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert!(asked.windows(2).all(|pair| pair[1] - pair[0] >= 10));
    let error = lone.stack.readiness(id).expect("open").error;
    assert_eq!(error, Some(SessionError::Unreachable));
}

#[test]
fn a_session_waits_for_its_own_neighbour_although_its_number_waited_for_another() {
    let mut lone = Lone::new();
    let first = lone.stack.connect(v6(77), None).expect("connects");
    let passes = |lone: &mut Lone, tenths: u64| {
        for _ in 0..tenths {
            lone.sent();
            lone.now_ns += S / 10;
        }
    };
    passes(&mut lone, 20);
    lone.stack.abort(first).expect("open");
    let second = lone.stack.connect(v6(78), None).expect("connects");
    assert_eq!(first.parts().0, second.parts().0);
    // The first one's neighbour is given up meanwhile.
    passes(&mut lone, 20);
    let error = lone.stack.readiness(second).expect("open").error;
    assert_eq!(error, None);
    passes(&mut lone, 20);
    let error = lone.stack.readiness(second).expect("open").error;
    assert_eq!(error, Some(SessionError::Unreachable));
}

/// An IGMP message in a frame to this group.
fn igmp(to: [u8; 4], kind: u8, group: [u8; 4]) -> Vec<u8> {
    let mut message = [&[kind, 0, 0, 0][..], &group].concat();
    let sum = internet_checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    ethernet(group_mac(to), V4, &ipv4(PEER, to, 2, &[], &message))
}

fn group_mac(group: [u8; 4]) -> [u8; 6] {
    [1, 0, 0x5e, group[1] & 0x7f, group[2], group[3]]
}

#[test]
fn rfc_1122_3_3_7_a_group_is_heard_while_it_is_joined_and_all_hosts_always() {
    const ALL: [u8; 4] = [224, 0, 0, 1];
    const GROUP: [u8; 4] = [239, 1, 2, 3];
    let mut lone = Lone::new();
    let any = SocketAddr::from(([0; 4], 9));
    let id = lone.stack.bind_udp(any).expect("free");
    let hears = |lone: &mut Lone, group: [u8; 4]| {
        let frame = ethernet(group_mac(group), V4, &datagram_v4(group, 9));
        assert_eq!(lone.answers(frame), NOTHING);
        let taken = lone.stack.receive_from(id, &mut [0; 8]).expect("open");
        taken.is_some()
    };
    assert!(hears(&mut lone, ALL) && !hears(&mut lone, GROUP));
    lone.stack.join(GROUP.into()).expect("a group");
    // RFC 2236 sections 2, 3 and 6: to the group, which is in the report, with one hop.
    let report = |frame: &[u8], to: [u8; 4], kind: u8| {
        assert_eq!(frame[..6], group_mac(to));
        assert_eq!((frame[22], frame[23], frame[34]), (1, 2, kind));
        assert_eq!((&frame[30..34], &frame[38..42]), (&to[..], &GROUP[..]));
    };
    let sent = lone.sent();
    assert_eq!(sent.len(), 1);
    report(&sent[0], GROUP, 0x16);
    assert!(hears(&mut lone, ALL) && hears(&mut lone, GROUP));
    // A router queries all groups, then ours, then another one.
    for (to, group, answers) in [
        (ALL, [0; 4], 1),
        (GROUP, GROUP, 1),
        (ALL, [239, 9, 9, 9], 0),
    ] {
        let sent = lone.answers(igmp(to, 0x11, group));
        assert_eq!(sent.len(), answers, "{group:?}");
        sent.iter().for_each(|frame| report(frame, GROUP, 0x16));
    }
    // RFC 1122 section 3.2.1.7, RFC 1112 section 6.1: a datagram to a group has one hop.
    lone.stack
        .send_to(id, SocketAddr::from((GROUP, 9)), b"all")
        .expect("sent");
    let sent = lone.sent();
    assert_eq!((&sent[0][..6], sent[0][22]), (&group_mac(GROUP)[..], 1));
    lone.stack.leave(GROUP.into());
    let sent = lone.sent();
    assert_eq!(sent.len(), 1);
    report(&sent[0], [224, 0, 0, 2], 0x17);
    assert!(hears(&mut lone, ALL) && !hears(&mut lone, GROUP));
}

/// Our own addresses' groups are reported, too; queries that do not come from a router of the link
/// are ignored.
#[test]
fn rfc_3810_5_groups_are_reported_when_joined_left_and_asked_for() {
    let group: [u8; 16] = [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x42];
    let mut lone = Lone::new();
    // Groups in version 2's reports, with the kind of their records.
    let records = |frames: Vec<Vec<u8>>| {
        let records = frames.iter().flat_map(|frame| {
            // To ff02::16, with one hop, after the router alert.
            assert_eq!((frame[20], frame[21], frame[53]), (0, 1, 0x16));
            assert_eq!(frame[54..62], [58, 0, 5, 2, 0, 0, 1, 0]);
            assert_eq!(frame[62], 143);
            let count = usize::from(u16::from_be_bytes([frame[68], frame[69]]));
            assert_eq!(frame.len(), 70 + 20 * count);
            frame[70..].chunks_exact(20).map(|record| {
                let group: [u8; 16] = record[4..].try_into().expect("16 bytes");
                (record[0], group)
            })
        });
        records.collect::<Vec<_>>()
    };
    lone.stack.join(group.into()).expect("a group");
    assert_eq!(records(lone.sent()), [(4, group)]);
    let query = |from: [u8; 16], hops: u8, about: [u8; 16]| {
        let message = [&[130, 0, 0, 0, 0, 1, 0, 0][..], &about, &[2, 125, 0, 0]].concat();
        let message = sealed(&from, &ALL_NODES, 58, message, 2);
        let packet = [&[58, 0, 5, 2, 0, 0, 1, 0][..], &message].concat();
        let mut packet = ipv6(from, ALL_NODES, 0, &packet);
        packet[7] = hops;
        ethernet([0x33, 0x33, 0, 0, 0, 1], V6, &packet)
    };
    let mut router = v6_bytes(9);
    (router[0], router[1]) = (0xfe, 0x80);
    let answers = lone.answers(query(router, 1, [0; 16]));
    assert_eq!(answers.len(), 1, "one report for all groups");
    assert_eq!(records(answers), [(2, group), (2, group_of_ours())]);
    let answers = records(lone.answers(query(router, 1, group)));
    assert_eq!(answers, [(2, group)]);
    for (from, hops) in [(router, 2), (v6_bytes(9), 1)] {
        assert_eq!(lone.answers(query(from, hops, [0; 16])), NOTHING);
    }
    lone.stack.leave(group.into());
    assert_eq!(records(lone.sent()), [(3, group)]);
}

/// A router is reached by its link-local address; a packet that goes through it must not come from
/// one (RFC 6724 section 5, rule 2).
#[test]
fn rfc_6724_5_a_routers_own_address_does_not_choose_the_source() {
    let mut lone = Lone::with(|config| config.autoconfigure = true);
    let options = [&SOURCE_MAC[..], &prefix(1, 0xc0, 3600)[..]].concat();
    lone.answers(router(1800, &options));
    let far = SocketAddr::from(([0x2001, 0xdb8, 7, 0, 0, 0, 0, 1], 80));
    let id = lone.stack.connect(far, None).expect("connects");
    let (local, _) = lone.stack.addresses(id).expect("open");
    let wanted = [0x2001, 0xdb8, 1, 0, 0, 0xff, 0xfe00, 1];
    assert_eq!(local.ip(), IpAddr::from(wanted));
    lone.sent();
    // On the link, and to a group of the link, the least scope is enough.
    for to in [0xfe80, 0xff02] {
        let to = SocketAddr::from(([to, 0, 0, 0, 0, 0, 0, 9], 80));
        let id = lone.stack.bind_udp(SocketAddr::from(([0_u16; 8], 0)));
        let id = id.expect("free");
        lone.stack.send_to(id, to, b"x").expect("sent");
        let sent = lone.sent().pop().expect("a datagram, or a solicitation");
        assert_eq!(sent[22..24], [0xfe, 0x80], "{to}");
    }
}

/// Rule 6 (labels), rule 8 (the longest prefix), and what the configuration prefers.
#[test]
fn rfc_6724_5_sources_are_like_their_destinations() {
    let own = |first: u16, second: u16| Cidr {
        address: IpAddr::from([first, second, 0, 0, 0, 0, 0, 1]),
        prefix_bits: 64,
    };
    let (one, other) = (own(0x2001, 0xdb8), own(0x2a00, 1));
    let preferred = PreferredSource {
        network: Cidr {
            address: IpAddr::from([0x2001, 0xdb8, 9, 0, 0, 0, 0, 0]),
            prefix_bits: 48,
        },
        source: other.address,
    };
    for (to, wanted) in [
        ([0xfd00, 9, 0], v6(1).ip()),
        ([0x2001, 0xdb8, 7], one.address),
        ([0x2a00, 7, 0], other.address),
        ([0x2001, 0xdb8, 9], other.address),
    ] {
        let mut lone = Lone::with(|config| {
            config.addresses.extend([one, other]);
            config.sources = vec![preferred];
            config.routes = vec![Route {
                network: Cidr {
                    address: IpAddr::from([0_u16; 8]),
                    prefix_bits: 0,
                },
                gateway: v6(9).ip(),
            }];
        });
        let to = SocketAddr::from(([to[0], to[1], to[2], 0, 0, 0, 0, 1], 80));
        let id = lone.stack.connect(to, None).expect("connects");
        let (local, _) = lone.stack.addresses(id).expect("open");
        assert_eq!(local.ip(), wanted, "{to}");
    }
}

#[test]
fn a_fixed_neighbour_gets_the_first_packet_at_once() {
    let mut lone = Lone::with(|config| {
        config.neighbors = vec![FixedNeighbor {
            address: v4(2, 0).ip(),
            mac: PEER_MAC,
        }];
    });
    lone.stack.connect(v4(2, 80), None).expect("connects");
    let sent = lone.sent();
    assert_eq!(sent.len(), 1);
    assert!(sent[0].starts_with(&PEER_MAC) && sent[0][12..14] == [8, 0]);
}

/// RFC 2474: the configured class, and a socket's own.
#[test]
fn packets_have_the_class_of_the_configuration_or_their_socket() {
    let mut lone = Lone::with(|config| config.traffic_class = 0xb8);
    let syn = sealed(&PEER, &OURS, 6, segment([7_000, 80], 9, 0, 2), 16);
    let refused = sealed(&PEER, &OURS, 6, segment([7_000, 81], 9, 0, 2), 16);
    let ping = ipv4(PEER, OURS, 1, &[], &echo(8));
    for (packet, kind) in [
        (ipv4(PEER, OURS, 6, &[], &syn), "SYN"),
        (ipv4(PEER, OURS, 6, &[], &refused), "refused"),
        (ping, "echo"),
    ] {
        let answers = lone.answers(ethernet(OUR_MAC, V4, &packet));
        assert_eq!((answers.len(), answers[0][15]), (1, 0xb8), "{kind}");
        assert_eq!(internet_checksum(&answers[0][14..34]), 0, "{kind}");
    }
    // Errors have none: RFC 1122 section 3.2.2.
    let error = lone.answers(ethernet(OUR_MAC, V4, &datagram_v4(OURS, 9)));
    assert_eq!((error[0][15], error[0][34]), (0, 3));
    let id = lone.stack.bind_udp(v4(1, 9)).expect("free");
    let long = [0; 4000];
    for (class, wanted) in [(None, 0xb8), (Some(0x2b), 0x28), (Some(0), 0)] {
        if let Some(class) = class {
            set_udp_class(&mut lone.stack, id, class).expect("open");
        }
        for payload in [&long[..9], &long[..]] {
            lone.stack.send_to(id, v4(2, 9), payload).expect("sent");
            let sent = lone.sent();
            assert!(!sent.is_empty());
            for frame in sent {
                assert_eq!(frame[15], wanted, "{} bytes", payload.len());
                assert_eq!(internet_checksum(&frame[14..34]), 0);
            }
        }
    }
}
