//! Requirements of RFC 1122, 8200, 4443 and 4861 on a host, below TCP: which packets are accepted,
//! which are answered and how. Built manually; docs/rfc-requirements.md refers to these tests.

use crate::common;

use common::lone::{
    ALL_NODES, Lone, OUR_MAC, OURS, PEER, echo, ethernet, ipv4, ipv6, sealed, segment, v6_bytes,
};
use common::segment::internet_checksum;
use common::{S, v4, v6};
use sidecore_net_stack::{
    Cidr, IcmpError, NetError, Route, next_refusal, set_udp_peer, want_refusals,
};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

const NOTHING: [[u8; 0]; 0] = [];
const V4: u16 = 0x0800;
const V6: u16 = 0x86dd;

fn ping_v4() -> Vec<u8> {
    ethernet(OUR_MAC, V4, &ipv4(PEER, OURS, 1, &[], &echo(8)))
}

/// An IPv6 packet with an echo request after `headers`, the first of which is a `next`.
pub(crate) fn ping_v6(next: u8, headers: &[u8]) -> Vec<u8> {
    let (from, ours) = (v6_bytes(2), v6_bytes(1));
    let ping = sealed(&from, &ours, 58, vec![128, 0, 0, 0, 0, 1, 0, 1], 2);
    let packet = ipv6(from, ours, next, &[headers, &ping].concat());
    ethernet(OUR_MAC, V6, &packet)
}

pub(crate) fn datagram_v4(to: [u8; 4], port: u16) -> Vec<u8> {
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

/// An ICMP error from a router, `kind` and `code` and the word after the checksum, about `abc` from
/// our UDP port to port 53 of the peer.
fn error_about(from_us: u16, [kind, code]: [u8; 2], word: u32) -> Vec<u8> {
    let mut udp = [from_us, 53, 11, 0].map(u16::to_be_bytes).concat();
    udp.extend(b"abc");
    let mut message = vec![kind, code, 0, 0];
    message.extend(word.to_be_bytes());
    message.extend(ipv4(OURS, PEER, 17, &[], &udp));
    let sum = internet_checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let router = [10, 0, 0, 9];
    ethernet(OUR_MAC, V4, &ipv4(router, OURS, 1, &[], &message))
}

/// Each error is passed on with what it says, to the socket that may have sent the datagram.
#[test]
fn rfc_1122_4_1_3_3_icmp_errors_come_to_the_application() {
    let mut lone = Lone::new();
    let socket = lone.stack.bind_udp(v4(1, 5000)).expect("binds");
    want_refusals(&mut lone.stack, socket, true).expect("open");
    for (about, word, info) in [
        ([3, 0], 0, 0),
        ([3, 3], 0, 0),
        ([3, 4], 700, 700),
        ([3, 13], 0, 0),
        ([11, 0], 0, 0),
        ([12, 0], 9 << 24, 9),
    ] {
        lone.answers(error_about(5000, about, word));
        let refusal = next_refusal(&mut lone.stack, socket).expect("reported");
        assert_eq!(refusal.peer, v4(2, 53));
        assert_eq!(refusal.payload, b"abc");
        let [kind, code] = about;
        let error = IcmpError {
            kind,
            code,
            info,
            from: IpAddr::from([10, 0, 0, 9]),
        };
        assert_eq!(refusal.error, error);
    }
    // Of a port without a socket, of a code that does not exist, and of another type.
    for (port, about) in [(5001, [3, 3]), (5000, [3, 16]), (5000, [4, 0])] {
        lone.answers(error_about(port, about, 0));
        assert_eq!(next_refusal(&mut lone.stack, socket), None, "{about:?}");
    }
    // The socket has a peer, to which alone it sends.
    for (peer, is_reported) in [(v4(3, 53), false), (v4(2, 53), true)] {
        set_udp_peer(&mut lone.stack, socket, Some(peer)).expect("open");
        lone.answers(error_about(5000, [3, 1], 0));
        let refusal = next_refusal(&mut lone.stack, socket);
        assert_eq!(refusal.is_some(), is_reported);
    }
}

/// The same of ICMPv6, whose numbers mean something else.
#[test]
fn rfc_4443_2_4_icmpv6_errors_come_to_the_application() {
    let mut lone = Lone::new();
    let (ours, theirs, router) = (v6_bytes(1), v6_bytes(2), v6_bytes(9));
    let mut at = v6(1);
    at.set_port(5000);
    let socket = lone.stack.bind_udp(at).expect("binds");
    want_refusals(&mut lone.stack, socket, true).expect("open");
    let udp = [5000_u16, 80, 8, 0].map(u16::to_be_bytes).concat();
    for (kind, code, word, info) in [
        (1, 0, 0, Some(0)),
        (1, 1, 0, Some(0)),
        (1, 4, 0, Some(0)),
        (2, 0, 1400, Some(1400)),
        // Less than any link has.
        (2, 0, 1000, None),
        (3, 0, 0, Some(0)),
        (4, 1, 40, Some(40)),
    ] {
        let mut message = vec![kind, code, 0, 0];
        message.extend(u32::to_be_bytes(word));
        message.extend(ipv6(ours, theirs, 17, &udp));
        let message = sealed(&router, &ours, 58, message, 2);
        lone.answers(ethernet(OUR_MAC, V6, &ipv6(router, ours, 58, &message)));
        let refusal = next_refusal(&mut lone.stack, socket);
        let from = v6(9).ip();
        let error = info.map(|info| IcmpError {
            kind,
            code,
            info,
            from,
        });
        assert_eq!(refusal.map(|it| it.error), error, "{kind} {code}");
    }
}
