//! The basics of a stack: address resolution, echo replies, handshakes, data, closing.

use crate::common;
use crate::link::{prefix, router};

use common::lone::{Lone, OUR_MAC, PEER, ethernet, ipv4, sealed};
use common::segment::internet_checksum;
use common::{MS, S, World, offloading, plain, v4, v6};
use sidecore_net_stack::{
    Cidr, Event, Ipv4Source, NetError, SessionError, SessionId, SessionState, has_refusal,
    next_refusal, session_page, set_udp_peer, want_refusals,
};
use std::net::{IpAddr, SocketAddr};

/// Two ends of one session: the client's, and the server's.
fn open(world: &mut World, to: SocketAddr) -> (SessionId, SessionId) {
    let listener = world.stacks[1].listen(to, 16).expect("listens");
    let client = world.stacks[0].connect(to, None).expect("connects");
    world.run(10 * MS);
    let server = world.stacks[1]
        .accept(listener)
        .expect("open")
        .expect("one");
    (client, server)
}

fn read_all(world: &mut World, end: usize, id: SessionId) -> Vec<u8> {
    let mut out = vec![0; 1 << 20];
    let count = world.stacks[end].read(id, &mut out).expect("reads");
    out.truncate(count);
    out
}

#[test]
fn a_ping_is_answered() {
    let mut world = World::new(1);
    world.run(MS);
    let mut frame = vec![0; 14 + 20 + 8 + 5];
    frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 2]);
    frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14..34].copy_from_slice(&[
        0x45, 0, 0, 33, 0, 0, 0x40, 0, 64, 1, 0, 0, 10, 0, 0, 9, 10, 0, 0, 2,
    ]);
    let sum = internet_checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame[34..].copy_from_slice(&[8, 0, 0, 0, 1, 2, 3, 4, b'h', b'e', b'l', b'l', b'o']);
    let sum = internet_checksum(&frame[34..]);
    frame[36..38].copy_from_slice(&sum.to_be_bytes());
    world.trace = Some(Vec::new());
    world.inject(1, frame.clone());
    world.run(MS);
    let trace = world.trace.take().expect("a trace");
    let (_, from, answer) = trace.last().expect("an answer");
    assert_eq!(*from, 1);
    assert_eq!(&answer[..6], &[2, 0, 0, 0, 0, 9], "to the asker");
    assert_eq!(&answer[26..34], &[10, 0, 0, 2, 10, 0, 0, 9]);
    assert_eq!(answer[34], 0, "an echo reply");
    assert_eq!(internet_checksum(&answer[34..]), 0);
    assert_eq!(&answer[38..], &frame[38..]);
}

#[test]
fn two_stacks_talk_and_part() {
    for (nics, to) in [
        ([plain(1), plain(2)], v4(2, 80)),
        ([plain(1), plain(2)], v6(2)),
        ([offloading(1), offloading(2)], v4(2, 80)),
        ([offloading(1), offloading(2)], v6(2)),
    ] {
        let mut world = World::with(7, nics, |_| {});
        let (client, server) = open(&mut world, to);
        assert_eq!(world.stacks[1].addresses(server).expect("open").0, to);
        assert_eq!(
            world.stacks[0].write(client, b"a request").expect("open"),
            9
        );
        world.run(MS);
        assert_eq!(read_all(&mut world, 1, server), b"a request");
        let answer: Vec<u8> = (0..200_000_u32).map(|at| ((at * 7) >> 3) as u8).collect();
        assert_eq!(
            world.stacks[1].write(server, &answer).expect("open"),
            answer.len()
        );
        world.stacks[1].close(server).expect("open");
        let mut got = Vec::new();
        for _ in 0..100 {
            world.run(MS);
            got.extend(read_all(&mut world, 0, client));
        }
        assert!(got == answer, "{} of {} bytes", got.len(), answer.len());
        assert!(
            world.stacks[0]
                .readiness(client)
                .expect("open")
                .end_of_input()
        );
        world.stacks[0].close(client).expect("open");
        world.run(61 * S);
        world.run(S);
        assert_eq!(world.stacks[0].sessions(), 0);
        assert_eq!(world.stacks[1].sessions(), 0);
        assert_eq!(
            world.stacks[0].buffers().in_use + world.stacks[1].buffers().in_use,
            0
        );
        assert_eq!(world.stacks[0].counters().retransmitted, 0);
        assert_eq!(world.stacks[1].counters().retransmitted, 0);
    }
}

#[test]
fn nobody_listens() {
    let mut world = World::new(3);
    let client = world.stacks[0].connect(v4(2, 81), None).expect("connects");
    world.run(10 * MS);
    let readiness = world.stacks[0].readiness(client).expect("there");
    assert_eq!(readiness.error, Some(SessionError::Refused));
    let error = world.stacks[0].write(client, b"x").expect_err("refused");
    assert!(matches!(error, NetError::Ended(SessionError::Refused)));
    world.stacks[0].close(client).expect("there");
    assert_eq!(world.stacks[0].sessions(), 0);
    let error = world.stacks[0].close(client).expect_err("closed");
    assert!(matches!(error, NetError::Gone));
}

#[test]
fn nobody_is_there() {
    let mut world = World::new(3);
    let client = world.stacks[0].connect(v4(77, 80), None).expect("connects");
    world.run(10 * S);
    let readiness = world.stacks[0].readiness(client).expect("there");
    assert_eq!(readiness.error, Some(SessionError::Unreachable));
}

#[test]
fn events_tell_once() {
    let mut world = World::new(4);
    let listener = world.stacks[1].listen(v4(2, 80), 4).expect("listens");
    let client = world.stacks[0].connect(v4(2, 80), None).expect("connects");
    world.run(10 * MS);
    assert_eq!(
        world.stacks[1].next_event(),
        Some(Event::Listener(listener))
    );
    assert_eq!(world.stacks[1].next_event(), None);
    assert_eq!(world.stacks[0].next_event(), Some(Event::Session(client)));
    let server = world.stacks[1]
        .accept(listener)
        .expect("open")
        .expect("one");
    world.stacks[0].write(client, b"1").expect("open");
    world.run(MS);
    world.stacks[0].write(client, b"2").expect("open");
    world.run(50 * MS);
    assert_eq!(world.stacks[1].next_event(), Some(Event::Session(server)));
    assert_eq!(world.stacks[1].next_event(), None);
    assert_eq!(read_all(&mut world, 1, server), b"12");
}

#[test]
fn datagrams_arrive() {
    let mut world = World::new(5);
    for (from, to) in [(v4(1, 0), v4(2, 53)), (v6(1), v6(2))] {
        let sender = world.stacks[0].bind_udp(from).expect("binds");
        let receiver = world.stacks[1].bind_udp(to).expect("binds");
        for text in [&b"one"[..], b"two", b""] {
            world.stacks[0].send_to(sender, to, text).expect("sends");
            world.run(10 * MS);
            let mut bytes = [0; 100];
            let got = world.stacks[1].receive_from(receiver, &mut bytes);
            let (source, _, len) = got.expect("open").expect("a datagram");
            assert_eq!(source, world_address(&mut world, from, sender));
            assert_eq!(&bytes[..len], text);
        }
        let long = vec![0; 65_528];
        let error = world.stacks[0]
            .send_to(sender, to, &long)
            .expect_err("long");
        assert!(matches!(error, NetError::TooLong { .. }));
    }
}

/// RFC 1122 section 4.1.3.3: the application hears of "port unreachable", if it asks for it.
#[test]
fn refused_datagrams_are_reported_to_those_who_ask() {
    let mut world = World::new(6);
    for (from, mut to) in [(v4(1, 0), v4(2, 53)), (v6(1), v6(2))] {
        to.set_port(4000);
        let sender = world.stacks[0].bind_udp(from).expect("binds");
        world.stacks[0]
            .send_to(sender, to, b"unheard")
            .expect("sends");
        world.run(10 * MS);
        assert!(!has_refusal(&world.stacks[0], sender));
        want_refusals(&mut world.stacks[0], sender, true).expect("open");
        for text in [&b"refused"[..], b"again", b""] {
            world.stacks[0].send_to(sender, to, text).expect("sends");
            world.run(10 * MS);
            assert!(has_refusal(&world.stacks[0], sender));
            let refused = next_refusal(&mut world.stacks[0], sender).expect("reported");
            assert_eq!((refused.peer, refused.payload), (to, text.to_vec()));
            assert_eq!(refused.error.from, to.ip());
        }
        // A bounded number is kept.
        for _ in 0..20 {
            world.stacks[0].send_to(sender, to, b"x").expect("sends");
            world.run(2000 * MS);
        }
        let kept = std::iter::from_fn(|| next_refusal(&mut world.stacks[0], sender)).count();
        assert_eq!(kept, 8);
        world.stacks[0].close_udp(sender).expect("open");
        assert!(!has_refusal(&world.stacks[0], sender));
    }
}

/// As in Linux: a datagram of another source than a socket's peer finds no socket.
#[test]
fn a_socket_with_a_peer_refuses_the_datagrams_of_others() {
    let mut world = World::new(7);
    for (from, to) in [(v4(1, 0), v4(2, 53)), (v6(1), v6(2))] {
        let [peer, other] = [0; 2].map(|_| {
            let mut any = from;
            any.set_port(0);
            world.stacks[0].bind_udp(any).expect("binds")
        });
        let at = world_address(&mut world, from, peer);
        let receiver = world.stacks[1].bind_udp(to).expect("binds");
        want_refusals(&mut world.stacks[0], other, true).expect("open");
        for (only, is_refused) in [(None, false), (Some(at), true), (None, false)] {
            set_udp_peer(&mut world.stacks[1], receiver, only).expect("open");
            for sender in [peer, other] {
                world.stacks[0].send_to(sender, to, b"x").expect("sends");
                world.run(10 * MS);
            }
            let mut came = 0;
            while let Ok(Some(_)) = world.stacks[1].receive_from(receiver, &mut [0; 8]) {
                came += 1;
            }
            assert_eq!(came, if is_refused { 1 } else { 2 });
            let refused = next_refusal(&mut world.stacks[0], other);
            let refused = refused.map(|it| (it.peer, it.payload));
            assert_eq!(refused, is_refused.then(|| (to, b"x".to_vec())));
        }
    }
}

#[test]
fn pages_have_every_session_once() {
    let mut world = World::new(7);
    let there = v4(2, 80);
    world.stacks[1].listen(there, 64).expect("free");
    for _ in 0..10 {
        world.stacks[0].connect(there, None).expect("a route");
    }
    world.run(50 * MS);
    for stack in &mut world.stacks {
        let (mut ends, mut from) = (Vec::new(), Some(0));
        while let Some(number) = from {
            let page = session_page(stack, number, 3);
            assert!(page.sessions.len() <= 3);
            for (id, [local, remote], info) in page.sessions {
                assert_eq!(stack.addresses(id).expect("open"), (local, remote));
                assert_eq!(info.state, SessionState::Established);
                assert!(info.rtt_us > 0 && info.mss > 500);
                ends.push((local, remote));
            }
            from = page.next;
        }
        assert_eq!(ends.len(), 10);
        ends.sort();
        ends.dedup();
        assert_eq!(ends.len(), 10);
    }
}

fn world_address(world: &mut World, from: SocketAddr, id: sidecore_net_stack::UdpId) -> SocketAddr {
    let port = world.stacks[0].udp_address(id).expect("open").port();
    SocketAddr::new(from.ip(), port)
}

#[test]
fn what_was_closed_is_not_told_of() {
    let mut world = World::new(6);
    let (client, server) = open(&mut world, v4(2, 80));
    world.stacks[0].write(client, b"unread").expect("open");
    world.run(MS);
    // Its event is pending; the reset ends the session at once and frees its number.
    world.stacks[1].close(server).expect("open");
    world.run(MS);
    assert_eq!(world.stacks[1].sessions(), 0);
    while let Some(event) = world.stacks[1].next_event() {
        assert!(matches!(event, Event::Listener(_)), "{event:?}");
    }
    // The number is reused, and its events are reported.
    let again = world.stacks[1].connect(v4(1, 99), None).expect("connects");
    world.run(10 * MS);
    assert_eq!(world.stacks[1].next_event(), Some(Event::Session(again)));
    world.stacks[1]
        .close(again)
        .expect("refused, and still there");
    assert_eq!(world.stacks[1].next_event(), None);
}

/// All ephemeral ports can be chosen, except that of a listener: there, a session to the own host
/// would meet itself (RFC 9293 section 3.5, figure 7).
#[test]
fn a_port_that_is_chosen_has_no_listener() {
    let mut world = World::new(1);
    let own = v4(1, 40_000);
    let stack = &mut world.stacks[0];
    stack.listen(own, 16).expect("listens");
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..32_767 {
        let session = stack.connect(own, None).expect("a port is free");
        let (local, _) = stack.addresses(session).expect("it is open");
        assert_ne!(local.port(), own.port());
        seen.insert(local.port());
        stack.abort(session).expect("it is open");
    }
    assert_eq!(seen.len(), 32_767);
}

/// The answer of the server 10.0.0.2 to a request in a frame: 10.9.0.7 of a network of 256, behind
/// 10.9.0.1, for 1,000 s.
fn dhcp_answer(kind: u8, request: &[u8], to: [u8; 4]) -> Vec<u8> {
    let mut message = vec![2, 1, 6, 0];
    message.extend(&request[46..50]);
    message.resize(16, 0);
    message.extend([10, 9, 0, 7]);
    message.resize(28, 0);
    message.extend(OUR_MAC);
    message.resize(236, 0);
    message.extend([99, 130, 83, 99, 53, 1, kind, 54, 4, 10, 0, 0, 2]);
    message.extend([1, 4, 255, 255, 255, 0, 3, 4, 10, 9, 0, 1]);
    message.extend([51, 4, 0, 0, 3, 232, 255]);
    let mut udp = vec![0, 67, 0, 68];
    udp.extend(((8 + message.len()) as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(message);
    let mac = if to == [255; 4] { [255; 6] } else { OUR_MAC };
    let udp = sealed(&PEER, &to, 17, udp, 6);
    ethernet(mac, 0x0800, &ipv4(PEER, to, 17, &[], &udp))
}

/// RFC 2131 sections 4.4.1 and 4.4.5.
#[test]
fn an_address_of_a_server_is_renewed_and_ends_with_its_time() {
    const ALL: [u8; 4] = [255; 4];
    let mut lone = Lone::with(|config| config.ipv4 = Ipv4Source::Dhcp);
    let leased = (IpAddr::from([10, 9, 0, 7]), 24);
    let asked = |frames: Vec<Vec<u8>>| {
        let mut all = frames.into_iter();
        all.find(|frame| frame[12..14] == [8, 0] && frame[36..38] == [0, 67])
    };
    // The first request is lost.
    lone.now_ns += 6 * S;
    let discover = asked(lone.sent()).expect("a request");
    assert!(discover.starts_with(&[255; 6]));
    assert_eq!(discover[26..34], [0, 0, 0, 0, 255, 255, 255, 255]);
    assert_eq!(discover[284], 1);
    let mut foreign = discover.clone();
    foreign[46] ^= 1;
    assert_eq!(asked(lone.answers(dhcp_answer(2, &foreign, ALL))), None);
    let select = asked(lone.answers(dhcp_answer(2, &discover, ALL))).expect("a request");
    // The kind, the address, and the server.
    let wanted = [3, 50, 4, 10, 9, 0, 7, 54, 4, 10, 0, 0, 2];
    assert_eq!(select[284..297], wanted);
    assert!(!lone.stack.networks().own.contains(&leased));
    // Section 4.4.1: the time runs from the request.
    let begun_ns = lone.now_ns;
    lone.now_ns += 3 * S;
    lone.answers(dhcp_answer(5, &select, ALL));
    assert!(lone.stack.networks().own.contains(&leased));
    let far = SocketAddr::from(([192, 0, 2, 1], 80));
    assert!(lone.stack.connect(far, None).is_ok());
    let bound = lone.stack.bind_udp(SocketAddr::from(([10, 9, 0, 7], 9)));
    let bound = bound.expect("ours");
    assert!(lone.stack.send_to(bound, v4(2, 9), b"x").is_ok());
    // Half of the time.
    lone.now_ns = begun_ns + 499 * S;
    assert_eq!(asked(lone.sent()), None);
    lone.now_ns = begun_ns + 501 * S;
    let renew = asked(lone.sent()).expect("a request");
    assert_eq!(
        (&renew[26..30], &renew[54..58]),
        (&[10, 9, 0, 7][..], &[10, 9, 0, 7][..])
    );
    lone.answers(dhcp_answer(5, &renew, [10, 9, 0, 7]));
    lone.now_ns = begun_ns + 1_400 * S;
    assert!(asked(lone.sent()).is_some());
    assert!(lone.stack.networks().own.contains(&leased));
    lone.now_ns = begun_ns + 1_502 * S;
    lone.sent();
    assert!(!lone.stack.networks().own.contains(&leased));
    assert!(
        lone.stack.connect(far, None).is_err(),
        "the router is gone, too"
    );
    let sent = lone.stack.send_to(bound, v4(2, 9), b"x");
    assert!(matches!(sent, Err(NetError::NoRoute(_))), "{sent:?}");
    let again = asked(lone.sent()).expect("a request");
    assert_eq!(again[284], 1);
}

/// A refusal ends the use of an address at once; the client begins anew. The address may be that of
/// another host then, which is asked for, even if a session to it was one to ourselves.
#[test]
fn an_address_that_a_server_refuses_is_given_up() {
    const ALL: [u8; 4] = [255; 4];
    let mut lone = Lone::with(|config| {
        config.ipv4 = Ipv4Source::Dhcp;
        config.addresses.push(Cidr {
            address: IpAddr::from([10, 9, 0, 3]),
            prefix_bits: 24,
        });
    });
    let own = lone.stack.networks().own;
    let leased = SocketAddr::from(([10, 9, 0, 7], 80));
    let connected = |lone: &mut Lone| {
        lone.stack.connect(leased, None).expect("connects");
        lone.sent()
    };
    let last = |frames: Vec<Vec<u8>>| {
        let mut all = frames.into_iter();
        all.rfind(|frame| frame[12..14] == [8, 0] && frame[36..38] == [0, 67])
    };
    lone.now_ns += 6 * S;
    let discover = last(lone.sent()).expect("a request");
    let select = last(lone.answers(dhcp_answer(2, &discover, ALL))).expect("a request");
    lone.answers(dhcp_answer(5, &select, ALL));
    assert_eq!(lone.stack.networks().own.len(), own.len() + 1);
    assert!(connected(&mut lone)[0].starts_with(&OUR_MAC));
    // Nothing was asked: it means nothing.
    lone.answers(dhcp_answer(6, &select, ALL));
    assert_eq!(lone.stack.networks().own.len(), own.len() + 1);
    lone.now_ns += 501 * S;
    let renew = last(lone.sent()).expect("a request");
    // Another server's identifier, without a checksum.
    let mut other = dhcp_answer(6, &renew, ALL);
    other[290] = 9;
    other[40..42].fill(0);
    assert_eq!(last(lone.answers(other)), None);
    assert_eq!(lone.stack.networks().own.len(), own.len() + 1);
    let again = last(lone.answers(dhcp_answer(6, &renew, ALL))).expect("a request");
    assert_eq!(again[284], 1);
    assert_eq!(lone.stack.networks().own, own);
    let asks = |frame: &Vec<u8>| frame[12..14] == [8, 6] && frame[38..42] == [10, 9, 0, 7];
    assert!(connected(&mut lone).iter().any(asks));
    // A server that offers what it refuses gets no request for each of its answers.
    let select = last(lone.answers(dhcp_answer(2, &again, ALL))).expect("a request");
    assert_eq!(last(lone.answers(dhcp_answer(6, &select, ALL))), None);
    lone.now_ns += 5 * S;
    assert_eq!(last(lone.sent()).map(|frame| frame[284]), Some(1));
}

/// An answer whose times are nothing is not followed by a request at once.
#[test]
fn a_server_that_grants_no_time_is_asked_once_a_second() {
    const ALL: [u8; 4] = [255; 4];
    let mut lone = Lone::with(|config| config.ipv4 = Ipv4Source::Dhcp);
    let last = |frames: Vec<Vec<u8>>| {
        let mut all = frames.into_iter();
        all.rfind(|frame| frame[12..14] == [8, 0] && frame[36..38] == [0, 67])
    };
    // A lease of a second in place of 1,000, without a checksum.
    let short = |kind: u8, request: &[u8]| {
        let mut answer = dhcp_answer(kind, request, ALL);
        let end = answer.len() - 1;
        answer[end - 4..end].copy_from_slice(&[0, 0, 0, 1]);
        answer[40..42].fill(0);
        answer
    };
    lone.now_ns += 6 * S;
    let discover = last(lone.sent()).expect("a request");
    let select = last(lone.answers(short(2, &discover))).expect("a request");
    assert_eq!(last(lone.answers(short(5, &select))), None);
    lone.now_ns += 999 * MS;
    assert_eq!(last(lone.sent()), None);
    lone.now_ns += 2 * MS;
    // It ends, and is asked for.
    lone.sent();
    assert_eq!(last(lone.sent()).map(|frame| frame[284]), Some(1));
}

/// Routers and addresses that are not advertised again end with their lifetimes.
#[test]
fn rfc_4861_6_3_5_what_a_router_has_advertised_ends() {
    const HOUR: u64 = 3_600 * S;
    let mut lone = Lone::with(|config| config.autoconfigure = true);
    let before = lone.stack.networks().own;
    let far = SocketAddr::from(([0x2001, 0xdb8, 7, 0, 0, 0, 0, 1], 80));
    let prefixes = [prefix(1, 0xc0, 3_600), prefix(2, 0xc0, u32::MAX)].concat();
    lone.answers(router(1_800, &prefixes));
    let count = |lone: &Lone| lone.stack.networks().own.len() - before.len();
    assert_eq!(count(&lone), 2);
    lone.now_ns += HOUR / 2 - S;
    lone.sent();
    assert!(lone.stack.connect(far, None).is_ok());
    lone.now_ns += 2 * S;
    lone.sent();
    assert!(lone.stack.connect(far, None).is_err(), "the router is gone");
    assert_eq!(count(&lone), 2);
    lone.now_ns += HOUR / 2;
    lone.sent();
    // The other has no end.
    assert_eq!(count(&lone), 1);
}

/// RFC 4862 section 5.5.3 (e): a message of anyone cannot end an address at once.
#[test]
fn rfc_4862_5_5_3_an_address_is_shortened_to_two_hours_at_least() {
    const HOUR: u64 = 3_600 * S;
    let mut lone = Lone::with(|config| config.autoconfigure = true);
    let before = lone.stack.networks().own.len();
    let is_there = |lone: &Lone| lone.stack.networks().own.len() > before;
    lone.answers(router(9, &prefix(1, 0xc0, 86_400)));
    // From a day to two hours, and to no less from there.
    for _ in 0..2 {
        lone.answers(router(9, &prefix(1, 0xc0, 0)));
        assert!(is_there(&lone));
    }
    lone.now_ns += HOUR;
    lone.answers(router(9, &prefix(1, 0xc0, 1)));
    lone.now_ns += HOUR - S;
    lone.sent();
    assert!(is_there(&lone));
    lone.now_ns += 2 * S;
    lone.sent();
    assert!(!is_there(&lone));
    // A longer time counts at once.
    lone.answers(router(9, &prefix(1, 0xc0, 60)));
    lone.answers(router(9, &prefix(1, 0xc0, 86_400)));
    lone.now_ns += 3 * HOUR;
    lone.sent();
    assert!(is_there(&lone));
}
