//! Packets that no honest host sends: dropped and counted, answered only where a standard requires
//! it, and without a lasting cost. Built manually, without the stack's own code.

use crate::common;
use crate::hosts::{datagram_v4, ping_v6};

use common::lone::{
    ALL_NODES, Lone, OUR_MAC, OURS, PEER, PEER_MAC, echo, ethernet, ipv4, ipv6, sealed, segment,
    v6_bytes,
};
use common::{Frame, MS, S, World, v4, v6};
use sidecore_net_stack::{Cidr, FixedNeighbor, Rule, RuleProtocol, Verdict, set_udp_peer};
use std::net::{IpAddr, SocketAddr};

const NOTHING: [[u8; 0]; 0] = [];
const V4: u16 = 0x0800;

/// Packets that a host would answer if they came from a peer: TCP to a listener and to a closed
/// port, UDP to a closed port, an echo request, an unknown protocol.
fn provocations_v4(from: [u8; 4], to: [u8; 4]) -> Vec<Vec<u8>> {
    let tcp = |port| sealed(&from, &to, 6, segment([7_000, port], 9, 0, 2), 16);
    let udp = sealed(&from, &to, 17, vec![0, 9, 0, 9, 0, 8, 0, 0], 6);
    let all = [
        (6, tcp(80)),
        (6, tcp(81)),
        (17, udp),
        (1, echo(8)),
        (99, vec![1, 2, 3, 4]),
    ];
    all.map(|(protocol, payload)| {
        ethernet(OUR_MAC, 0x0800, &ipv4(from, to, protocol, &[], &payload))
    })
    .to_vec()
}

fn provocations_v6(from: [u8; 16], to: [u8; 16]) -> Vec<Vec<u8>> {
    let tcp = |port| sealed(&from, &to, 6, segment([7_000, port], 9, 0, 2), 16);
    let udp = sealed(&from, &to, 17, vec![0, 9, 0, 9, 0, 8, 0, 0], 6);
    let ping = sealed(&from, &to, 58, vec![128, 0, 0, 0, 0, 1, 0, 1], 2);
    let all = [
        (6, tcp(80)),
        (6, tcp(81)),
        (17, udp),
        (58, ping),
        (99, vec![1, 2, 3, 4]),
    ];
    all.map(|(next, payload)| ethernet(OUR_MAC, 0x86dd, &ipv6(from, to, next, &payload)))
        .to_vec()
}

#[test]
fn a_peer_is_answered() {
    // The tests below are meaningful only if these are answered.
    let mut lone = Lone::new();
    for frame in provocations_v4(PEER, OURS) {
        assert_eq!(lone.answers(frame.clone()).len(), 1, "{frame:02x?}");
    }
    for frame in provocations_v6(v6_bytes(2), v6_bytes(1)) {
        assert_eq!(lone.answers(frame.clone()).len(), 1, "{frame:02x?}");
    }
    assert_eq!(lone.counters().martians, 0);
}

#[test]
fn martian_sources_are_dropped_and_counted() {
    for from in [
        [127, 0, 0, 1],
        [127, 255, 1, 2],
        [224, 0, 0, 1],
        [239, 1, 2, 3],
        [240, 0, 0, 1],
        [255, 255, 255, 255],
        [0, 0, 0, 0],
        [0, 1, 2, 3],
        [10, 0, 0, 255],
        OURS,
    ] {
        let mut lone = Lone::new();
        for (at, frame) in provocations_v4(from, OURS).into_iter().enumerate() {
            assert_eq!(lone.answers(frame), [[0; 0]; 0], "{from:?}, {at}");
            assert_eq!(lone.counters().martians, at as u64 + 1, "{from:?}, {at}");
        }
        assert_eq!(lone.stack.sessions(), 0);
    }
}

#[test]
fn martian_sources_of_ipv6_are_dropped_and_counted() {
    let loopback = std::net::Ipv6Addr::LOCALHOST.octets();
    let mapped = std::net::Ipv4Addr::from(PEER).to_ipv6_mapped().octets();
    for from in [loopback, mapped, ALL_NODES, v6_bytes(1)] {
        let mut lone = Lone::new();
        for (at, frame) in provocations_v6(from, v6_bytes(1)).into_iter().enumerate() {
            assert_eq!(lone.answers(frame), [[0; 0]; 0], "{from:?}, {at}");
            assert_eq!(lone.counters().martians, at as u64 + 1, "{from:?}, {at}");
        }
        assert_eq!(lone.stack.sessions(), 0);
    }
    // The unspecified address is valid in neighbour discovery, and is answered nowhere else.
    let mut lone = Lone::new();
    for frame in provocations_v6([0; 16], v6_bytes(1)) {
        assert_eq!(lone.answers(frame), [[0; 0]; 0]);
    }
}

#[test]
fn a_station_with_the_address_of_a_group_is_not_answered() {
    let mut lone = Lone::new();
    for mut frame in provocations_v4(PEER, OURS) {
        frame[6] |= 1;
        assert_eq!(lone.answers(frame), [[0; 0]; 0]);
    }
    assert_eq!(lone.counters().martians, 5);
}

#[test]
fn nothing_is_answered_to_or_from_a_group() {
    let mut lone = Lone::new();
    for to in [[224, 0, 0, 1], [10, 0, 0, 255], [255, 255, 255, 255]] {
        for mut frame in provocations_v4(PEER, to) {
            // With the group's hardware address, broadcast, and (RFC 1122 section 3.3.6) with ours.
            for mac in [[1, 0, 0x5e, 0, 0, 1], [0xff; 6], OUR_MAC] {
                frame[..6].copy_from_slice(&mac);
                assert_eq!(lone.answers(frame.clone()), [[0; 0]; 0], "{to:?}");
            }
        }
    }
    // A packet to our address, but in a frame to all.
    for mut frame in provocations_v4(PEER, OURS) {
        frame[..6].fill(0xff);
        assert_eq!(lone.answers(frame), [[0; 0]; 0]);
    }
    for mut frame in provocations_v6(v6_bytes(2), ALL_NODES) {
        frame[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
        assert_eq!(lone.answers(frame), [[0; 0]; 0]);
    }
}

#[test]
fn source_routes_are_refused() {
    // With one address, which has been passed; no-operation pads it to whole words.
    for kind in [131, 137] {
        for options in [[kind, 7, 8, 10, 0, 0, 9, 1], [1, kind, 7, 4, 10, 0, 0, 9]] {
            let mut lone = Lone::new();
            let packet = ipv4(PEER, OURS, 1, &options, &echo(8));
            assert_eq!(
                lone.answers(ethernet(OUR_MAC, 0x0800, &packet)),
                [[0; 0]; 0]
            );
            assert_eq!(lone.counters().source_routed, 1);
        }
    }
    // Record route, a timestamp, and invalid options are harmless.
    for options in [
        [7, 7, 4, 0, 0, 0, 0, 0],
        [68, 8, 5, 0, 0, 0, 0, 0],
        [99, 0, 131, 7, 0, 0, 0, 0],
    ] {
        let mut lone = Lone::new();
        let packet = ipv4(PEER, OURS, 1, &options, &echo(8));
        assert_eq!(lone.answers(ethernet(OUR_MAC, 0x0800, &packet)).len(), 1);
        assert_eq!(lone.counters().source_routed, 0);
    }
}

/// RFC 8200 section 4.2: the type's two highest bits specify the treatment of an unknown option.
#[test]
fn unknown_options_of_ipv6_are_answered_as_their_type_says() {
    let (from, ours) = (v6_bytes(2), v6_bytes(1));
    // Behind hop-by-hop and destination options: two of padding, then the option with two bytes.
    for extension in [0, 60] {
        for (kind, to, problem, reply) in [
            (0x1e, ours, false, true),
            (0x5e, ours, false, false),
            (0x9e, ours, true, false),
            (0x9e, ALL_NODES, true, false),
            (0xde, ours, true, false),
            (0xde, ALL_NODES, false, false),
        ] {
            let mut lone = Lone::new();
            let ping = sealed(&from, &to, 58, vec![128, 0, 0, 0, 0, 1, 0, 1], 2);
            let options = [58, 0, 1, 0, kind, 2, 0, 0];
            let packet = ipv6(from, to, extension, &[&options[..], &ping].concat());
            let mac = if to == ours {
                OUR_MAC
            } else {
                [0x33, 0x33, 0, 0, 0, 1]
            };
            let answers = lone.answers(ethernet(mac, 0x86dd, &packet));
            let case = format!("{kind:#x} in {extension} to {to:?}");
            assert_eq!(answers.len(), usize::from(problem || reply), "{case}");
            let refused = u64::from(kind != 0x1e);
            assert_eq!(lone.counters().options_refused, refused, "{case}");
            for answer in &answers {
                // From our own address, back to the sender, whatever the packet's destination was.
                assert_eq!(answer[..6], PEER_MAC, "{case}");
                assert_eq!(answer[22..38], ours, "{case}");
                assert_eq!(answer[38..54], from, "{case}");
                if problem {
                    // Parameter problem, code 2, at the option's type.
                    assert_eq!(answer[54..56], [4, 2], "{case}");
                    assert_eq!(answer[58..62], 44_u32.to_be_bytes(), "{case}");
                } else {
                    assert_eq!(answer[54], 129, "{case}");
                }
            }
        }
    }
}

/// CERT advisory CA-1997-28: a SYN whose both ends are the same.
#[test]
fn land_is_dropped() {
    let syn = sealed(&OURS, &OURS, 6, segment([80, 80], 9, 0, 2), 16);
    let mut bytes = ethernet(OUR_MAC, 0x0800, &ipv4(OURS, OURS, 6, &[], &syn));
    let mut lone = Lone::new();
    assert_eq!(lone.answers(bytes.clone()), [[0; 0]; 0]);
    assert_eq!((lone.counters().martians, lone.stack.sessions()), (1, 0));
    // With our hardware address, too.
    bytes[6..12].copy_from_slice(&OUR_MAC);
    assert_eq!(lone.answers(bytes.clone()), [[0; 0]; 0]);
    // Not even on the internal loopback.
    let mut frame = Frame {
        bytes,
        checksum: sidecore_net_stack::frame::ReceivedChecksum::Unknown,
        segment_bytes: None,
    };
    lone.stack.receive_own(lone.now_ns, frame.received());
    lone.stack.process_staged();
    assert_eq!(lone.loop_back(0), 0);
    assert_eq!((lone.counters().martians, lone.stack.sessions()), (3, 0));
}

/// A scan with the flags SYN, FIN, PSH and URG (nmap's "T3" probe) gets no information, and opens
/// nothing; the plain SYN after it does.
#[test]
fn a_syn_with_fin_opens_nothing() {
    let mut lone = Lone::new();
    let from = [10, 0, 0, 9];
    for (flags, sessions) in [(0x2b, 0), (0x03, 0), (0x02, 1)] {
        let syn = sealed(&from, &OURS, 6, segment([4_000, 80], 9, 0, flags), 16);
        let bytes = ethernet(OUR_MAC, 0x0800, &ipv4(from, OURS, 6, &[], &syn));
        let _ = lone.answers(bytes);
        assert_eq!(lone.stack.sessions(), sessions, "flags {flags:#x}");
    }
}

/// RFC 9293 section 3.5, figure 7, for a socket with itself and for two with each other: they open,
/// carry data and close, and are silent after each step.
#[test]
fn sockets_that_talk_to_one_stack_fall_silent() {
    for pairs in [vec![(5_000, 5_000)], vec![(5_000, 6_000), (6_000, 5_000)]] {
        let mut lone = Lone::new();
        let open = |lone: &mut Lone, (local, remote)| {
            let session = lone.stack.connect(v4(1, remote), Some(v4(1, local)));
            session.expect("connects")
        };
        let sessions: Vec<_> = pairs.iter().map(|&pair| open(&mut lone, pair)).collect();
        lone.loop_back(20);
        let mut bytes = [0; 100];
        for &session in &sessions {
            assert!(
                lone.stack.readiness(session).expect("open").writable,
                "{pairs:?}"
            );
            let count = lone.stack.write(session, b"hello").expect("writes");
            assert_eq!(count, 5);
        }
        lone.loop_back(20);
        lone.now_ns += 100 * MS;
        lone.loop_back(20);
        for &session in &sessions {
            let count = lone.stack.read(session, &mut bytes).expect("reads");
            assert_eq!(count, 5);
        }
        for &session in &sessions {
            lone.stack.close(session).expect("open");
        }
        lone.loop_back(40);
    }
}

/// Two ends that disagree about their numbers would answer each other's acknowledgments for ever.
#[test]
fn bare_segments_outside_the_window_are_answered_twice_a_second() {
    let mut lone = Lone::new();
    let from_peer = |sequence, acknowledgment, flags| {
        let bytes = segment([7_000, 80], sequence, acknowledgment, flags);
        let bytes = sealed(&PEER, &OURS, 6, bytes, 16);
        ethernet(OUR_MAC, 0x0800, &ipv4(PEER, OURS, 6, &[], &bytes))
    };
    let syn_ack = lone.answers(from_peer(9, 0, 2));
    let number = u32::from_be_bytes(syn_ack[0][38..42].try_into().expect("four"));
    let next = number.wrapping_add(1);
    lone.answers(from_peer(10, next, 16));
    let mut answers = 0;
    for at in 0..1_000 {
        answers += lone.answers(from_peer(1_000_000 + at, next, 16)).len();
        lone.now_ns += 2 * MS;
    }
    assert!((3..=5).contains(&answers), "{answers} in two seconds");
}

/// An ARP packet for the stack at end 0 that announces the address of 10.0.0.2.
fn arp(operation: u8, mac: [u8; 6], target: [u8; 4]) -> Vec<u8> {
    let mut bytes = vec![0xff; 6];
    bytes.extend(mac);
    bytes.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    bytes.extend(mac);
    bytes.extend(PEER);
    bytes.extend([0; 6]);
    bytes.extend(target);
    bytes.resize(60, 0);
    bytes
}

/// A neighbour advertisement of fd00::2, unsolicited, with "override".
fn advertisement(mac: [u8; 6]) -> Vec<u8> {
    let mut message = vec![136, 0, 0, 0, 0x20, 0, 0, 0];
    message.extend(v6_bytes(2));
    message.extend([2, 1]);
    message.extend(mac);
    let message = sealed(&v6_bytes(2), &ALL_NODES, 58, message, 2);
    let packet = ipv6(v6_bytes(2), ALL_NODES, 58, &message);
    let mut bytes = ethernet([0x33, 0x33, 0, 0, 0, 1], 0x86dd, &packet);
    bytes[6..12].copy_from_slice(&mac);
    bytes
}

/// The longest silence, in virtual time, of a session that sends all the time while `forge` injects
/// frames.
fn longest_silence(to: SocketAddr, mut forge: impl FnMut(u64, &mut World)) -> u64 {
    let mut world = World::new(5);
    let listener = world.stacks[1].listen(to, 4).expect("listens");
    let client = world.stacks[0].connect(to, None).expect("connects");
    world.run(10 * MS);
    let server = world.stacks[1].accept(listener).expect("open");
    let server = server.expect("one session");
    let (mut bytes, mut heard_ns, mut longest_ns) = (vec![0; 1 << 16], world.now_ns, 0);
    for step in 0..60_000 {
        forge(step, &mut world);
        world.stacks[0].write(client, &[1; 100]).expect("open");
        world.run(MS);
        if world.stacks[1].read(server, &mut bytes).expect("open") > 0 {
            heard_ns = world.now_ns;
        }
        longest_ns = longest_ns.max(world.now_ns - heard_ns);
    }
    longest_ns
}

const FALSE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x66];

#[test]
fn a_forged_gratuitous_arp_is_not_believed() {
    for operation in [1, 2] {
        for target in [PEER, OURS] {
            let silence_ns = longest_silence(v4(2, 80), |step, world| {
                if step % 700 == 100 {
                    world.inject(0, arp(operation, FALSE_MAC, target));
                }
            });
            assert!(silence_ns < S, "{} ms of silence", silence_ns / MS);
        }
    }
}

#[test]
fn a_forged_advertisement_is_not_believed() {
    let silence_ns = longest_silence(v6(2), |step, world| {
        if step % 700 == 100 {
            world.inject(0, advertisement(FALSE_MAC));
        }
    });
    assert!(silence_ns < S, "{} ms of silence", silence_ns / MS);
}

/// A forged address that was accepted, because the true neighbour's replies were lost.
#[test]
fn a_false_address_is_left_within_nine_seconds() {
    use std::cell::Cell;
    use std::rc::Rc;
    let deaf = Rc::new(Cell::new(false));
    let silence_ns = longest_silence(v4(2, 80), |step, world| {
        if step == 100 {
            let deaf = Rc::clone(&deaf);
            // The peer's ARP packets are lost while it is probed.
            world.filter = Some(Box::new(move |from, bytes| {
                !(from == 1 && deaf.get() && bytes[12..14] == [8, 6])
            }));
            world.inject(0, arp(2, FALSE_MAC, OURS));
        }
        deaf.set((100..2_600).contains(&step));
    });
    assert!(
        silence_ns > 500 * MS,
        "it was not believed: the test shows nothing"
    );
    assert!(silence_ns <= 9 * S, "{} ms of silence", silence_ns / MS);
}

const ANY: Rule = Rule {
    verdict: Verdict::Allow,
    from: None,
    to: None,
    protocol: None,
    ports: None,
    peer_ports: None,
};

/// A SYN to a port, from a neighbour.
fn syn_to(port: u16) -> Vec<u8> {
    let syn = sealed(&PEER, &OURS, 6, segment([7_000, port], 9, 0, 2), 16);
    ethernet(OUR_MAC, V4, &ipv4(PEER, OURS, 6, &[], &syn))
}

#[test]
fn the_filter_decides_about_what_opens_something() {
    let mine = Cidr {
        address: IpAddr::from(PEER),
        prefix_bits: 24,
    };
    let tcp = Rule {
        protocol: Some(RuleProtocol::Tcp),
        ports: Some((79, 80)),
        ..ANY
    };
    let rejects = Rule {
        verdict: Verdict::Reject,
        protocol: Some(RuleProtocol::Tcp),
        ports: Some((80, 80)),
        ..ANY
    };
    let drops = Rule {
        verdict: Verdict::Drop,
        ..ANY
    };
    let only = |from: Option<Cidr>| vec![Rule { from, ..tcp }, drops];
    let elsewhere = Cidr {
        address: IpAddr::from([10, 1, 0, 0]),
        ..mine
    };
    // Flags of the answer; none if there is none.
    for (filter, wanted) in [
        (vec![], Some(0x12)),
        (only(None), Some(0x12)),
        (only(Some(mine)), Some(0x12)),
        (only(Some(elsewhere)), None),
        (vec![drops], None),
        (vec![rejects, drops], Some(0x14)),
    ] {
        let count = u64::from(wanted != Some(0x12));
        let mut lone = Lone::with(|config| config.filter = filter);
        let answers = lone.answers(syn_to(80));
        assert_eq!(answers.first().map(|answer| answer[47]), wanted);
        assert_eq!(lone.counters().filtered, count);
        assert_eq!(lone.stack.sessions(), usize::from(wanted == Some(0x12)));
    }
}

/// A filter that drops all is silent, also where nothing listens, and a link works with it.
#[test]
fn what_the_filter_drops_has_no_answer_and_neighbours_have() {
    let mut lone = Lone::with(|config| {
        config.filter = vec![Rule {
            verdict: Verdict::Drop,
            ..ANY
        }];
    });
    let ack = sealed(&PEER, &OURS, 6, segment([7_000, 80], 9, 5, 16), 16);
    // An option that is to be reported, and a fragment header with a length of half a word.
    let (from, to) = (v6_bytes(2), v6_bytes(1));
    let option = [59, 0, 1, 0, 0x9e, 2, 0, 0];
    let half = [17, 0, 0, 1, 0, 0, 0, 6, 0, 0, 0, 0];
    let silent = [
        ethernet(OUR_MAC, 0x86dd, &ipv6(from, to, 60, &option)),
        ethernet(OUR_MAC, 0x86dd, &ipv6(from, to, 44, &half)),
        syn_to(80),
        syn_to(81),
        ethernet(OUR_MAC, V4, &ipv4(PEER, OURS, 6, &[], &ack)),
        ethernet(OUR_MAC, V4, &ipv4(PEER, OURS, 1, &[], &echo(8))),
        ethernet(OUR_MAC, V4, &ipv4(PEER, OURS, 132, &[], &[0; 12])),
        ethernet(OUR_MAC, V4, &datagram_v4(OURS, 9)),
        ping_v6(58, &[]),
    ];
    let count = silent.len() as u64;
    for frame in silent {
        assert_eq!(lone.answers(frame), NOTHING);
    }
    assert_eq!(lone.counters().filtered, count);
    // A packet whose rest does not come.
    let first = [17, 0, 0, 1, 0, 0, 0, 7, 0, 9, 0, 9, 0, 16, 0, 0];
    let frame = ethernet(OUR_MAC, 0x86dd, &ipv6(from, to, 44, &first));
    assert_eq!(lone.answers(frame), NOTHING);
    lone.now_ns += 61 * S;
    assert_eq!(lone.sent(), NOTHING);
    assert_eq!(lone.counters().reassemblies_late, 1);
    assert_eq!(lone.counters().filtered, count + 1);
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 10, 0, 0, 2];
    arp.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, 1]);
    assert_eq!(lone.answers(ethernet(OUR_MAC, 0x0806, &arp)).len(), 1);
}

/// Sessions that the stack has opened need no rule.
#[test]
fn answers_to_what_was_opened_here_pass_the_filter() {
    let drops = Rule {
        verdict: Verdict::Drop,
        ..ANY
    };
    let mut lone = Lone::with(|config| {
        config.filter = vec![drops];
        config.neighbors = vec![FixedNeighbor {
            address: v4(2, 0).ip(),
            mac: PEER_MAC,
        }];
    });
    let local = Some(v4(1, 5_000));
    let id = lone.stack.connect(v4(2, 80), local).expect("connects");
    let syn = lone.sent().remove(0);
    let isn: [u8; 4] = syn[38..42].try_into().expect("four bytes");
    let next = u32::from_be_bytes(isn).wrapping_add(1);
    let answer = sealed(&PEER, &OURS, 6, segment([80, 5_000], 9, next, 0x12), 16);
    lone.answers(ethernet(OUR_MAC, V4, &ipv4(PEER, OURS, 6, &[], &answer)));
    assert!(lone.stack.is_synchronized(id));

    // The peer's port in `datagram_v4`.
    let socket = lone.stack.bind_udp(v4(1, 9)).expect("free");
    for (peer, taken) in [
        (None, false),
        (Some(v4(2, 9)), true),
        (Some(v4(2, 8)), false),
    ] {
        set_udp_peer(&mut lone.stack, socket, peer).expect("open");
        let answers = lone.answers(ethernet(OUR_MAC, V4, &datagram_v4(OURS, 9)));
        assert_eq!(answers, NOTHING);
        let got = lone.stack.receive_from(socket, &mut [0; 8]).expect("open");
        assert_eq!(got.is_some(), taken, "{peer:?}");
    }
}
