//! Requirements of RFC 1122, 8200, 4443 and 4861 on a host, below TCP: which packets are accepted,
//! which are answered and how. Built manually; docs/rfc-requirements.md refers to these tests.

use crate::common;

use common::lone::{
    ALL_NODES, Lone, OUR_MAC, OURS, PEER, PEER_MAC, echo, ethernet, ipv4, ipv6, sealed, segment,
    v6_bytes,
};
use common::segment::internet_checksum;
use common::{S, v4, v6};
use sidecore_net_stack::{Cidr, NetError, Route, SessionError};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

const NOTHING: [[u8; 0]; 0] = [];
const V4: u16 = 0x0800;
const V6: u16 = 0x86dd;

fn ping_v4() -> Vec<u8> {
    ethernet(OUR_MAC, V4, &ipv4(PEER, OURS, 1, &[], &echo(8)))
}

/// An IPv6 packet with an echo request after `headers`, the first of which is a `next`.
fn ping_v6(next: u8, headers: &[u8]) -> Vec<u8> {
    let (from, ours) = (v6_bytes(2), v6_bytes(1));
    let ping = sealed(&from, &ours, 58, vec![128, 0, 0, 0, 0, 1, 0, 1], 2);
    let packet = ipv6(from, ours, next, &[headers, &ping].concat());
    ethernet(OUR_MAC, V6, &packet)
}

fn datagram_v4(to: [u8; 4], port: u16) -> Vec<u8> {
    let mut udp = vec![0, 9, 0, 0, 0, 12, 0, 0, 1, 2, 3, 4];
    udp[2..4].copy_from_slice(&port.to_be_bytes());
    ipv4(PEER, to, 17, &[], &sealed(&PEER, &to, 17, udp, 6))
}

/// Recomputes the header's checksum.
fn sealed_header(mut frame: Vec<u8>) -> Vec<u8> {
    frame[24..26].fill(0);
    let sum = internet_checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// True for a parameter problem with this code and pointer, in a frame of ours.
fn is_problem(frame: &[u8], code: u8, pointer: u32) -> bool {
    frame[20] == 58 && frame[54..56] == [4, code] && frame[58..62] == pointer.to_be_bytes()
}

#[test]
fn rfc_1122_3_2_1_damaged_packets_and_those_for_others_are_dropped_silently() {
    let mut lone = Lone::new();
    let mut version = ping_v4();
    version[14] = 0x55;
    assert_eq!(lone.answers(sealed_header(version)), NOTHING);
    assert_eq!(lone.counters().malformed, 1);
    let mut damaged = ping_v4();
    damaged[24] ^= 1;
    assert_eq!(lone.answers(damaged), NOTHING);
    assert_eq!(lone.counters().bad_checksums, 1);
    let strange = ethernet(OUR_MAC, V4, &ipv4(PEER, [10, 0, 0, 7], 1, &[], &echo(8)));
    assert_eq!(lone.answers(strange), NOTHING);
    assert_eq!(lone.counters().not_ours, 1);
    assert_eq!(lone.answers(ping_v4()).len(), 1);
}

#[test]
fn rfc_1122_3_2_1_7_a_last_hop_is_enough_and_ours_are_configurable() {
    let mut lone = Lone::with(|config| config.hops = 9);
    let mut last = ping_v4();
    last[22] = 1;
    let answers = lone.answers(sealed_header(last));
    assert_eq!((answers.len(), answers[0][22]), (1, 9));
    let answers = lone.answers(ping_v6(58, &[]));
    assert_eq!((answers.len(), answers[0][21]), (1, 9));
    for flags in [2, 16] {
        // A segment of a session, and a reset without one.
        let syn = sealed(&PEER, &OURS, 6, segment([7_000, 80], 9, 0, flags), 16);
        let answers = lone.answers(ethernet(OUR_MAC, V4, &ipv4(PEER, OURS, 6, &[], &syn)));
        assert_eq!((answers.len(), answers[0][22]), (1, 9));
    }
}

#[test]
fn rfc_9293_3_1_a_segment_with_a_wrong_checksum_is_dropped() {
    let mut lone = Lone::new();
    let mut syn = sealed(&PEER, &OURS, 6, segment([7_000, 80], 9, 0, 2), 16);
    syn[16] ^= 1;
    let frame = ethernet(OUR_MAC, V4, &ipv4(PEER, OURS, 6, &[], &syn));
    assert_eq!(lone.answers(frame), NOTHING);
    assert_eq!(
        (lone.counters().bad_checksums, lone.stack.sessions()),
        (1, 0)
    );
}

/// Unknown types; source quench (RFC 6633); redirects and requests that a host does not answer.
#[test]
fn rfc_1122_3_2_2_other_types_of_icmp_are_dropped_silently() {
    let mut lone = Lone::new();
    for kind in [4, 5, 9, 13, 15, 17, 99] {
        let frame = ethernet(OUR_MAC, V4, &ipv4(PEER, OURS, 1, &[], &echo(kind)));
        assert_eq!(lone.answers(frame), NOTHING, "{kind}");
    }
    let (from, ours) = (v6_bytes(2), v6_bytes(1));
    for kind in [5, 99, 127, 139, 200] {
        let message = sealed(&from, &ours, 58, vec![kind, 0, 0, 0, 0, 1, 0, 1], 2);
        let frame = ethernet(OUR_MAC, V6, &ipv6(from, ours, 58, &message));
        assert_eq!(lone.answers(frame), NOTHING, "{kind}");
    }
}

/// The header and at least eight bytes of the packet that it refers to.
#[test]
fn rfc_1122_3_2_2_an_error_quotes_what_it_is_about() {
    let mut lone = Lone::new();
    let packet = datagram_v4(OURS, 9);
    let answers = lone.answers(ethernet(OUR_MAC, V4, &packet));
    assert_eq!(answers[0][34..36], [3, 3]);
    assert_eq!(answers[0][42..], packet);
}

/// RFC 1122 section 3.2.2: a fragment of an ICMP error that is never completed is not answered
/// either.
#[test]
fn rfc_1122_3_2_2_no_error_is_about_an_error() {
    for (kind, late) in [(8, 1), (3, 0), (11, 0), (12, 0), (5, 0), (4, 0)] {
        let mut lone = Lone::new();
        let mut first = ethernet(
            OUR_MAC,
            V4,
            &ipv4(PEER, OURS, 1, &[], &[echo(kind), vec![0; 4]].concat()),
        );
        first[20..22].copy_from_slice(&[0x20, 0]);
        assert_eq!(lone.answers(sealed_header(first)), NOTHING);
        lone.now_ns += 40 * S;
        assert_eq!(lone.sent().len(), late, "{kind}");
        assert_eq!(lone.counters().reassemblies_late, 1);
    }
}

#[test]
fn rfc_4443_2_4_e_no_error_is_about_an_error_or_a_redirect() {
    let (from, ours) = (v6_bytes(2), v6_bytes(1));
    for (kind, answered) in [(128, 1), (1, 0), (4, 0), (127, 0), (137, 0)] {
        let mut lone = Lone::new();
        // After an option that requests an error.
        let message = sealed(&from, &ours, 58, vec![kind, 0, 0, 0, 0, 1, 0, 1], 2);
        let options = [58, 0, 1, 0, 0x9e, 2, 0, 0];
        let packet = ipv6(from, ours, 60, &[&options[..], &message].concat());
        let answers = lone.answers(ethernet(OUR_MAC, V6, &packet));
        assert_eq!(answers.len(), answered, "{kind}");
    }
}

#[test]
fn rfc_4443_2_4_f_errors_of_one_second_are_bounded() {
    let mut lone = Lone::new();
    let mut sent = 0;
    for _ in 0..3_000 {
        sent += lone
            .answers(ethernet(OUR_MAC, V4, &datagram_v4(OURS, 9)))
            .len();
    }
    assert!((500..1_000).contains(&sent), "{sent}");
    lone.now_ns += S;
    assert_eq!(
        lone.answers(ethernet(OUR_MAC, V4, &datagram_v4(OURS, 9)))
            .len(),
        1
    );
}

#[test]
fn rfc_8200_4_an_unknown_header_is_told_at_its_place() {
    // After the fixed header; after destination options; hop-by-hop options in second place.
    for (next, headers, place) in [
        (99, &[][..], 6),
        (60, &[99, 0, 1, 4, 0, 0, 0, 0], 40),
        (60, &[0, 0, 1, 4, 0, 0, 0, 0, 58, 0, 1, 4, 0, 0, 0, 0], 40),
        (43, &[0, 0, 0, 0, 0, 0, 0, 0, 58, 0, 1, 4, 0, 0, 0, 0], 40),
    ] {
        let mut lone = Lone::new();
        let answers = lone.answers(ping_v6(next, headers));
        assert_eq!(answers.len(), 1, "{headers:?}");
        assert!(
            is_problem(&answers[0], 1, place),
            "{headers:?} {:02x?}",
            answers[0]
        );
    }
}

#[test]
fn rfc_8200_4_1_headers_come_in_any_order() {
    let mut lone = Lone::new();
    let options = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
    let routing = |next: u8| [next, 0, 0, 0, 0, 0, 0, 0];
    let headers = [options(43), routing(60), options(60), options(58)].concat();
    assert_eq!(lone.answers(ping_v6(0, &headers)).len(), 1);
}

#[test]
fn rfc_8200_4_4_a_routing_header_counts_only_where_segments_are_left() {
    for kind in [0, 2, 3, 4, 253] {
        let mut lone = Lone::new();
        let done = [58, 0, kind, 0, 0, 0, 0, 0];
        assert_eq!(lone.answers(ping_v6(43, &done))[0][54], 129, "{kind}");
        let left = [58, 0, kind, 1, 0, 0, 0, 0];
        let answers = lone.answers(ping_v6(43, &left));
        assert_eq!(answers.len(), 1, "{kind}");
        assert!(is_problem(&answers[0], 0, 42), "{kind}");
    }
}

#[test]
fn rfc_8200_4_7_what_follows_no_next_header_is_ignored() {
    let mut lone = Lone::new();
    assert_eq!(lone.answers(ping_v6(59, &[])), NOTHING);
    assert_eq!(
        lone.answers(ping_v6(60, &[59, 0, 1, 4, 0, 0, 0, 0])),
        NOTHING
    );
}

#[test]
fn rfc_8200_6_the_flow_label_and_class_of_others_change_nothing_and_ours_are_zero() {
    let mut lone = Lone::new();
    let mut ping = ping_v6(58, &[]);
    ping[14..18].copy_from_slice(&[0x6e, 0x4f, 0xab, 0xcd]);
    let answers = lone.answers(ping);
    assert_eq!(answers[0][14..18], [0x60, 0, 0, 0]);
    assert_eq!(answers[0][54], 129);
}

#[test]
fn rfc_1122_3_3_6_broadcasts_are_sent_to_all_and_taken_from_all() {
    let mut lone = Lone::new();
    let id = lone
        .stack
        .bind_udp(SocketAddr::from(([0, 0, 0, 0], 9)))
        .expect("free");
    for to in [[255; 4], [10, 0, 0, 255]] {
        let to_all = SocketAddr::from((to, 9));
        lone.stack.send_to(id, to_all, b"all").expect("sent");
        let sent = lone.sent();
        assert_eq!(sent.len(), 1, "{to:?}");
        assert_eq!((&sent[0][..6], &sent[0][30..34]), (&[0xff; 6][..], &to[..]));
        let frame = ethernet([0xff; 6], V4, &datagram_v4(to, 9));
        assert_eq!(lone.answers(frame), NOTHING);
        let taken = lone.stack.receive_from(id, &mut [0; 8]).expect("open");
        assert_eq!(taken.map(|(_, at, len)| (at, len)), Some((to_all, 4)));
    }
    // To our address in a broadcast frame: this would bypass filters of the link.
    let frame = ethernet([0xff; 6], V4, &datagram_v4(OURS, 9));
    assert_eq!(lone.answers(frame), NOTHING);
    assert_eq!(
        lone.stack.receive_from(id, &mut [0; 8]).expect("open"),
        None
    );
}

#[test]
fn rfc_1122_4_1_3_4_a_datagram_with_a_wrong_checksum_is_dropped() {
    let mut lone = Lone::new();
    let id = lone.stack.bind_udp(v4(1, 9)).expect("free");
    let good = ethernet(OUR_MAC, V4, &datagram_v4(OURS, 9));
    let (mut damaged, mut none) = (good.clone(), good.clone());
    damaged[42] ^= 1;
    none[40..42].fill(0);
    for (frame, taken) in [(good, true), (damaged, false), (none, true)] {
        assert_eq!(lone.answers(frame), NOTHING);
        let got = lone.stack.receive_from(id, &mut [0; 8]).expect("open");
        // RFC 1122 section 4.1.3.5: the destination address is reported, too.
        let wanted = taken.then_some((v4(2, 9), v4(1, 9), 4));
        assert_eq!(got, wanted);
    }
    assert_eq!(lone.counters().bad_checksums, 1);
}

#[test]
fn rfc_8200_8_1_a_datagram_without_a_checksum_is_dropped() {
    let mut lone = Lone::new();
    let id = lone.stack.bind_udp(v6(1)).expect("free");
    let (from, ours) = (v6_bytes(2), v6_bytes(1));
    let udp = sealed(&from, &ours, 17, vec![0, 9, 0, 80, 0, 9, 0, 0, 1], 6);
    let good = ethernet(OUR_MAC, V6, &ipv6(from, ours, 17, &udp));
    let mut none = good.clone();
    none[60..62].fill(0);
    for (frame, taken) in [(none, false), (good, true)] {
        assert_eq!(lone.answers(frame), NOTHING);
        let got = lone.stack.receive_from(id, &mut [0; 8]).expect("open");
        assert_eq!(got.is_some(), taken);
    }
}

/// RFC 9293 section 3.9.1.1 (MUST-46); RFC 1122 section 3.2.1.3 (g): loopback addresses are never
/// used on the wire, whatever routes there are.
#[test]
fn rfc_9293_3_9_1_1_only_one_station_can_be_connected_to() {
    let anywhere = |address: IpAddr| Route {
        network: Cidr {
            address,
            prefix_bits: 0,
        },
        gateway: if address.is_ipv4() { v4(9, 0) } else { v6(9) }.ip(),
    };
    let mut lone = Lone::with(|config| {
        config.routes = vec![
            anywhere([0; 4].into()),
            anywhere(Ipv6Addr::UNSPECIFIED.into()),
        ];
    });
    let id = lone.stack.bind_udp(v4(1, 9)).expect("free");
    let loopbacks: [IpAddr; 2] = [[127, 0, 0, 1].into(), Ipv6Addr::LOCALHOST.into()];
    let groups: [IpAddr; 5] = [
        [255; 4].into(),
        [10, 0, 0, 255].into(),
        [224, 0, 0, 1].into(),
        [0; 4].into(),
        Ipv6Addr::from([0xff02, 0, 0, 0, 0, 0, 0, 1]).into(),
    ];
    for address in groups.into_iter().chain(loopbacks) {
        let to = SocketAddr::new(address, 80);
        let refused = lone.stack.connect(to, None);
        assert!(matches!(refused, Err(NetError::NoRoute(_))), "{to}");
        if loopbacks.contains(&address) {
            let refused = lone.stack.send_to(id, to, b"x");
            assert!(matches!(refused, Err(NetError::NoRoute(_))), "{to}");
        }
    }
    assert_eq!(lone.sent(), NOTHING);
    assert!(
        lone.stack
            .connect(SocketAddr::from(([192, 0, 2, 1], 80)), None)
            .is_ok()
    );
}

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
fn prefix(number: u8, flags: u8, valid_s: u32) -> Vec<u8> {
    let mut option = vec![3, 4, 64, flags];
    option.extend(valid_s.to_be_bytes());
    option.extend(valid_s.to_be_bytes());
    option.extend([0, 0, 0, 0, 0x20, 1, 0x0d, 0xb8, 0, number]);
    option.resize(32, 0);
    option
}

/// An advertisement of the router fe80::9, with this lifetime.
fn router(lifetime_s: u16, options: &[u8]) -> Vec<u8> {
    let [high, low] = lifetime_s.to_be_bytes();
    let rest = [&[64, 0, high, low, 0, 0, 0, 0, 0, 0, 0, 0], options].concat();
    let mut from = v6_bytes(9);
    (from[0], from[1]) = (0xfe, 0x80);
    discovery(from, ALL_NODES, 134, &rest)
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
        let before = lone.stack.own_addresses();
        lone.answers(frame);
        let mut own = lone.stack.own_addresses();
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
    let before = lone.stack.own_addresses();
    lone.answers(good);
    assert_eq!(
        lone.stack.own_addresses(),
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

/// RFC 1122 sections 3.2.1.3 and 4.1.3.6.
#[test]
fn rfc_1122_3_2_1_3_nothing_leaves_from_an_address_that_is_not_ours() {
    let mut lone = Lone::new();
    for address in [v4(7, 9), v6(7)] {
        let refused = lone.stack.bind_udp(address);
        assert!(matches!(refused, Err(NetError::AddressNotOurs(_))));
    }
    for (to, from) in [(v4(2, 80), v4(7, 9)), (v6(2), v6(7))] {
        let refused = lone.stack.connect(to, Some(from));
        assert!(matches!(refused, Err(NetError::AddressNotOurs(_))));
    }
    assert_eq!(lone.sent(), NOTHING);
}

/// RFC 768, RFC 8200 section 8.1: zero would mean no checksum.
#[test]
fn rfc_8200_8_1_a_checksum_of_zero_is_sent_as_all_ones() {
    let everybody = [
        (SocketAddr::from(([255; 4], 9)), v4(1, 9), 40),
        (SocketAddr::from((ALL_NODES, 9)), v6(1), 60),
    ];
    for (to, from, at) in everybody {
        let mut lone = Lone::new();
        let id = lone.stack.bind_udp(from).expect("free");
        lone.stack.send_to(id, to, &[0, 0]).expect("sent");
        let frame = lone.sent().remove(0);
        // As a payload, the checksum makes the sum all ones.
        lone.stack
            .send_to(id, to, &frame[at..at + 2])
            .expect("sent");
        assert_eq!(lone.sent()[0][at..at + 2], [0xff, 0xff], "{to}");
    }
}

#[test]
fn rfc_8200_3_a_wrong_version_or_length_is_dropped() {
    let mut lone = Lone::new();
    let (mut version, mut long, mut padded) =
        (ping_v6(58, &[]), ping_v6(58, &[]), ping_v6(58, &[]));
    version[14] = 0x50;
    long[19] += 1;
    padded.extend([0; 20]);
    for (frame, answers) in [(version, 0), (long, 0), (padded, 1)] {
        assert_eq!(lone.answers(frame).len(), answers);
    }
    assert_eq!(lone.counters().malformed, 2);
}

#[test]
fn rfc_8504_5_3_eight_headers_are_passed_and_the_next_is_unknown() {
    let headers = |count: usize| {
        let options = |next: u8| [next, 0, 1, 4, 0, 0, 0, 0];
        let mut headers = [60; 8].map(options).concat();
        headers.resize(8 * count, 0);
        headers[8 * (count - 1)..].copy_from_slice(&options(58));
        headers
    };
    let mut lone = Lone::new();
    assert_eq!(lone.answers(ping_v6(60, &headers(8)))[0][54], 129);
    let answers = lone.answers(ping_v6(60, &headers(9)));
    assert_eq!(answers.len(), 1);
    assert!(
        is_problem(&answers[0], 1, 40 + 7 * 8),
        "{:02x?}",
        answers[0]
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
        let records = frames.iter().map(|frame| {
            // To ff02::16, with one hop, after the router alert.
            assert_eq!((frame[20], frame[21], frame[53]), (0, 1, 0x16));
            assert_eq!(frame[54..62], [58, 0, 5, 2, 0, 0, 1, 0]);
            assert_eq!((frame[62], &frame[68..70]), (143, &[0, 1][..]));
            let group: [u8; 16] = frame[74..90].try_into().expect("16 bytes");
            (frame[70], group)
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
    let answers = records(lone.answers(query(router, 1, [0; 16])));
    assert_eq!(answers, [(2, group), (2, group_of_ours())]);
    let answers = records(lone.answers(query(router, 1, group)));
    assert_eq!(answers, [(2, group)]);
    for (from, hops) in [(router, 2), (v6_bytes(9), 1)] {
        assert_eq!(lone.answers(query(from, hops, [0; 16])), NOTHING);
    }
    lone.stack.leave(group.into());
    assert_eq!(records(lone.sent()), [(3, group)]);
}
