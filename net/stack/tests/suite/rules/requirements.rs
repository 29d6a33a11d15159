//! Requirements of RFC 9293 that no other test covers; docs/rfc-requirements.md lists all of them.

use crate::rules::common::{MS, S, v4};
use crate::rules::icmp_about;
use crate::rules::peer::{ACK, PLAIN, Peer, RST, SYN, Segment};
use sidecore_net_stack::{
    Event, Keepalive, NetError, SessionError, SessionOption, SessionState, Stack,
};

/// MUST-1.
#[test]
fn rfc_9293_3_1_a_window_is_an_unsigned_number() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    assert_eq!(peer.write(id, &[1; 500_000]), 500_000);
    let mut most = 0;
    for _ in 0..100 {
        peer.take();
        most = most.max(peer.stack.info(id).expect("open").in_flight);
        peer.ack(1000);
    }
    assert_eq!(most, 60_000, "all of the window");
}

/// MUST-5, MUST-6, MUST-7, MUST-64: in any place, of any kind, of any length.
#[test]
fn rfc_9293_3_1_options_that_nobody_knows_do_no_harm() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&[1, 253, 4, 7, 7, 2, 4, 3, 232, 1, 0, 0]);
    let info = peer.stack.info(id).expect("open");
    assert_eq!(
        info.mss, 1000,
        "behind an option of no known kind, at an odd place"
    );
    for (at, options) in [
        [77, 4, 1, 2],
        [1, 77, 2, 1],
        [2, 4, 0, 88],
        [77, 0, 1, 1],
        [77, 1, 1, 1],
        [77, 40, 1, 1],
        [0, 77, 77, 77],
    ]
    .into_iter()
    .enumerate()
    {
        let mut segment = peer.segment(ACK, b"data");
        segment.options = options.to_vec();
        peer.sequence += 4;
        peer.send(&segment);
        let info = peer.stack.info(id).expect("open");
        assert_eq!(
            (info.unread, info.mss),
            (4 * (at as u32 + 1), 1000),
            "{options:?}"
        );
    }
}

/// MUST-12: also while the application has no call in progress. SHLD-2: a reset may carry data.
#[test]
fn rfc_9293_3_6_an_application_is_told_of_a_reset() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.take_events();
    let reset = peer.segment(RST, b"why");
    peer.send(&reset);
    assert_eq!(peer.stack.next_event(), Some(Event::Session(id)));
    assert_eq!(peer.error(id), Some(SessionError::Reset));
}

/// MUST-66.
#[test]
fn rfc_9293_3_10_7_4_a_reset_counts_though_our_window_is_shut() {
    let mut peer = Peer::new(|config| config.receive_bytes = 4096);
    let id = peer.open(&PLAIN);
    for _ in 0..4 {
        peer.data(&[1; 1024]);
    }
    assert_eq!(peer.take().last().expect("some").window, 0);
    let reset = peer.segment(RST, &[]);
    peer.send(&reset);
    assert_eq!(peer.state(id), SessionState::Closed);
    assert_eq!(peer.error(id), Some(SessionError::Reset));
}

/// MUST-35, SHLD-16, SHLD-17: as long as the peer advertises it.
#[test]
fn rfc_9293_3_8_6_a_window_that_is_taken_back_wholly_is_probed_without_end() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.write(id, &[7; 3000]);
    assert_eq!(peer.take().len(), 3);
    for _ in 0..40 {
        let mut shut = peer.segment(ACK, &[]);
        shut.window = 0;
        peer.send(&shut);
        peer.run(125 * S);
        peer.greet();
        let probes = peer.take();
        let first = |probe: &Segment| probe.sequence == peer.acknowledgment;
        assert!(probes.iter().any(first), "{probes:?}");
        assert!(probes.iter().all(|probe| probe.flags & RST == 0));
    }
    assert_eq!(peer.state(id), SessionState::Established);
    // It opens.
    let mut missing = 3000;
    for _ in 0..10 {
        let open = peer.segment(ACK, &[]);
        peer.send(&open);
        peer.run(125 * S);
        peer.greet();
        peer.take();
        missing = missing.min(peer.stack.info(id).expect("open").in_flight);
        peer.ack(missing.min(1000));
    }
    assert_eq!(peer.stack.info(id).expect("open").in_flight, 0);
}

/// MUST-24 to MUST-28: off, two hours by default, and never while data is unacknowledged.
#[test]
fn rfc_9293_3_8_4_keepalive_is_off_and_waits_for_two_hours() {
    const HOUR: u64 = 3600 * S;
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.run(24 * HOUR);
    assert_eq!(peer.take(), []);
    let on = |on: bool| SessionOption::Keepalive(on.then(Keepalive::default));
    peer.stack.set_option(id, on(true)).expect("open");
    peer.run(2 * HOUR - S);
    assert_eq!(peer.take(), []);
    peer.stack.set_option(id, on(false)).expect("open");
    peer.run(24 * HOUR);
    assert_eq!(peer.take(), []);
    let often = Keepalive {
        idle_s: 1,
        interval_s: 1,
        probes: 2,
    };
    let option = SessionOption::Keepalive(Some(often));
    peer.stack.set_option(id, option).expect("open");
    peer.greet();
    peer.stack.write(id, b"unanswered").expect("open");
    peer.run(20 * S);
    let sent = peer.take();
    assert!(
        sent.len() > 3 && sent.iter().all(|it| it.payload == b"unanswered"),
        "{sent:?}"
    );
}

/// MUST-41, MUST-42, and MUST-43 for both calls.
#[test]
fn rfc_9293_3_9_1_1_a_port_can_be_listened_at_whatever_sessions_have_it() {
    let mut peer = Peer::new(|_| {});
    let local = v4(1, 80);
    let opening = peer
        .stack
        .connect(v4(2, 4001), Some(local))
        .expect("connects");
    peer.flush();
    assert_eq!(peer.state(opening), SessionState::SynSent);
    peer.take();
    let id = peer.open(&PLAIN);
    // A second one is refused, and changes nothing.
    let again = peer.stack.listen(local, 4);
    assert!(matches!(again, Err(NetError::AddressInUse(_))));
    let strange = peer.stack.listen(v4(7, 80), 4);
    assert!(matches!(strange, Err(NetError::AddressNotOurs(_))));
    assert_eq!(peer.state(opening), SessionState::SynSent);
    assert_eq!(peer.state(id), SessionState::Established);
    let both = |stack: &Stack| [opening, id].map(|id| stack.addresses(id).expect("open").0);
    assert_eq!(both(&peer.stack), [local; 2]);
    let syn = peer.segment(SYN, &[]);
    peer.port = 4002;
    peer.send(&Segment { port: 4002, ..syn });
    assert_eq!(peer.take().pop().expect("an answer").flags, SYN | ACK);
}

/// MUST-47, MUST-54, MUST-56, SHLD-25: reported, and the session continues.
#[test]
fn rfc_9293_3_9_2_2_soft_errors_are_told() {
    let soft = [[3, 0], [3, 1], [3, 5], [11, 0], [11, 1], [12, 0]];
    // Hard ones end only what is being opened (RFC 5927 section 5.2).
    let hard = [[3, 2], [3, 3], [3, 9], [3, 13]];
    for about in soft.into_iter().chain(hard) {
        let reason = match about {
            [3, 0 | 9] => SessionError::NetworkUnreachable,
            [3, 2] => SessionError::NoProtocol,
            [3, 3] => SessionError::Refused,
            _ => SessionError::Unreachable,
        };
        let mut peer = Peer::new(|_| {});
        let id = peer.open(&PLAIN);
        peer.write(id, &[1; 100]);
        let sent = peer.take().remove(0).sequence;
        peer.take_events();
        // About data that is not in flight: any host can forge that (RFC 5927 section 4.1).
        icmp_about(&mut peer, about, 0, sent.wrapping_add(5000));
        assert_eq!(peer.stack.next_event(), None);
        icmp_about(&mut peer, about, 0, sent);
        assert_eq!(
            peer.stack.next_event(),
            Some(Event::Session(id)),
            "{about:?}"
        );
        let info = peer.stack.info(id).expect("open");
        assert_eq!(info.soft_error, Some(reason), "{about:?}");
        assert_eq!(info.state, SessionState::Established);
        peer.ack(100);
        assert_eq!(peer.stack.info(id).expect("open").soft_error, None);
    }
}

/// MUST-47, SHLD-9: the third timeout; and the soft error becomes the reason of the end.
#[test]
fn rfc_9293_3_8_3_an_application_hears_of_three_timeouts() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.write(id, &[1; 100]);
    let sent = peer.take().remove(0).sequence;
    peer.take_events();
    while peer.stack.info(id).expect("open").retries < 3 {
        assert_eq!(peer.stack.next_event(), None);
        peer.run(100 * MS);
    }
    assert_eq!(peer.stack.next_event(), Some(Event::Session(id)));
    icmp_about(&mut peer, [3, 1], 0, sent);
    while peer.error(id).is_none() {
        peer.run(S);
    }
    assert_eq!(peer.error(id), Some(SessionError::Unreachable));
}

/// As in Linux: a SYN that is answered by ICMP's "port unreachable" is refused; a network, a host
/// or a protocol that is unreachable are other reasons. A failed source route and a packet that
/// was too large or too long under way end nothing.
#[test]
fn rfc_9293_3_9_2_2_an_unreachable_port_refuses_an_opening() {
    for (about, expected) in [
        ([3, 0], Some(SessionError::NetworkUnreachable)),
        ([3, 1], Some(SessionError::Unreachable)),
        ([3, 2], Some(SessionError::NoProtocol)),
        ([3, 3], Some(SessionError::Refused)),
        ([3, 4], None),
        ([3, 5], None),
        ([3, 9], Some(SessionError::NetworkUnreachable)),
        ([3, 13], Some(SessionError::Unreachable)),
        ([3, 16], None),
        ([11, 0], None),
    ] {
        let mut peer = Peer::new(|_| {});
        let remote = v4(2, peer.port);
        let opening = peer.stack.connect(remote, Some(v4(1, 80)));
        let opening = opening.expect("connects");
        peer.flush();
        peer.greet();
        peer.flush();
        let syn = peer.take().pop().expect("a SYN");
        // About a number that was not sent, as a forger guesses it.
        icmp_about(&mut peer, about, 0, syn.sequence.wrapping_add(1));
        assert_eq!(peer.error(opening), None, "{about:?}");
        icmp_about(&mut peer, about, 0, syn.sequence);
        assert_eq!(peer.error(opening), expected, "{about:?}");
    }
}
