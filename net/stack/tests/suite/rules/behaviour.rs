//! Differences by `Config::behaviour`, and by what a NIC does: has no room, or cuts datagrams.

use super::common::segment::internet_checksum;
use super::common::{MS, S, plain, v4};
use super::peer::{ACK, PLAIN, PSH, Peer, SACK, SYN};
use sidecore_net_stack::frame::{Capabilities, TransmitChecksum};
use sidecore_net_stack::{
    Algorithm, Behaviour, Ecn, RecoveryPhase, SessionError, SessionId, SessionOption, SessionState,
};
use std::num::NonZeroU16;

const ECE: u8 = 0x40;
const CWR: u8 = 0x80;

/// Time passes in steps of ten milliseconds: a session that a NIC refused is ready at any time.
fn wait(peer: &mut Peer, ns: u64) {
    for _ in 0..ns / (10 * MS) {
        peer.now_ns += 10 * MS;
        peer.flush();
    }
}

#[test]
fn rfc_9293_3_10_7_4_an_acknowledgment_of_unsent_data_is_answered_or_dropped() {
    for (behaviour, answers) in [(Behaviour::Standard, 1), (Behaviour::Linux, 0)] {
        let mut peer = Peer::new(|config| config.behaviour = behaviour);
        let id = peer.open(&PLAIN);
        peer.take();
        let mut segment = peer.segment(ACK | PSH, b"data");
        segment.acknowledgment = peer.acknowledgment.wrapping_add(9_999);
        peer.send(&segment);
        assert_eq!(peer.take().len(), answers, "{behaviour:?}");
        assert_eq!(peer.stack.info(id).expect("open").unread, 0);
    }
}

/// A link that does not cut super-segments: the end of each would have PSH.
#[test]
fn bursts_end_with_psh_as_linux_has_it() {
    for (behaviour, pushed) in [
        (Behaviour::Standard, vec![]),
        (Behaviour::Linux, vec![4, 9]),
    ] {
        let mut peer = Peer::new(|config| config.behaviour = behaviour);
        let id = peer.open(&PLAIN);
        peer.take();
        peer.write(id, &[1; 50_000]);
        let out = peer.take();
        assert_eq!(out.len(), 10);
        let has: Vec<usize> = (0..10).filter(|&at| out[at].flags & PSH != 0).collect();
        assert_eq!(has, pushed, "{behaviour:?}");
    }
}

/// A session that a peer with ECN has opened.
fn open_with_marks(peer: &mut Peer) -> SessionId {
    let listener = peer.listen();
    let mut syn = peer.segment(SYN | ECE | CWR, &[]);
    syn.options = SACK.to_vec();
    peer.send(&syn);
    let answer = peer.take().remove(0);
    assert_eq!(answer.flags, SYN | ACK | ECE);
    peer.sequence += 1;
    peer.acknowledgment = answer.sequence.wrapping_add(1);
    peer.ack(0);
    peer.stack.accept(listener).expect("open").expect("one")
}

/// RFC 3168 section 6.1.2: the window falls at once, or by each acknowledgment of the window of
/// data, at the end of which it is the same.
#[test]
fn an_echo_lowers_the_window_at_once_or_by_acknowledgments() {
    for (behaviour, first, early) in [
        (Behaviour::Standard, 7_000, 1),
        (Behaviour::Linux, 10_000, 2),
    ] {
        let mut peer = Peer::new(|config| config.behaviour = behaviour);
        let id = open_with_marks(&mut peer);
        peer.write(id, &[1; 50_000]);
        assert_eq!(peer.take().len(), 10);
        let mut sent = 0;
        for round in 1..=10 {
            peer.acknowledgment = peer.acknowledgment.wrapping_add(1_000);
            let segment = peer.segment(ACK | ECE, &[]);
            peer.send(&segment);
            sent += peer.take().len();
            let window = peer.stack.info(id).expect("open").window;
            match round {
                1 => assert_eq!(window, first, "{behaviour:?}"),
                4 => assert_eq!(sent, early, "{behaviour:?}"),
                _ => {}
            }
        }
        // The end of the window of data: CWR has arrived.
        assert!((6..=7).contains(&sent), "{behaviour:?}: {sent}");
        peer.ack(1_000);
        let info = peer.stack.info(id).expect("open");
        assert!((7_000..7_300).contains(&info.window), "{behaviour:?}");
        assert_eq!(peer.stack.counters().ecn_reductions, 1);
    }
}

/// A model of the path sets its window itself, also where the window would fall by acknowledgments.
#[test]
fn an_echo_leaves_a_model_its_window() {
    let mut peer = Peer::new(|config| {
        config.behaviour = Behaviour::Linux;
        config.congestion = Algorithm::Bbr;
    });
    let id = open_with_marks(&mut peer);
    peer.write(id, &[1; 50_000]);
    let sent = peer.take().len();
    assert!(sent > 1);
    for _ in 0..=sent {
        peer.acknowledgment = peer.acknowledgment.wrapping_add(1_000);
        let segment = peer.segment(ACK | ECE, &[]);
        peer.send(&segment);
        let info = peer.stack.info(id).expect("open");
        assert!(info.window < 1 << 20, "{info:?}");
        assert_ne!(info.phase, RecoveryPhase::Reduction);
    }
}

#[test]
fn a_nic_without_room_ends_a_session_at_its_user_timeout() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    let limit = SessionOption::UserTimeout(3_000);
    peer.stack.set_option(id, limit).expect("open");
    peer.refuses = true;
    peer.write(id, b"late");
    wait(&mut peer, 2 * S);
    let info = peer.stack.info(id).expect("open");
    // Every half second, and nothing backs off.
    assert!((2..=4).contains(&info.window_probes), "{info:?}");
    assert_eq!((info.backoffs, info.state), (0, SessionState::Established));
    wait(&mut peer, 3 * S);
    assert_eq!(peer.error(id), Some(SessionError::TimedOut));
}

#[test]
fn what_a_nic_had_no_room_for_goes_as_soon_as_it_has() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.take();
    peer.refuses = true;
    peer.write(id, b"late");
    wait(&mut peer, 3 * S);
    assert!(peer.stack.info(id).expect("open").window_probes > 2);
    peer.refuses = false;
    wait(&mut peer, 10 * MS);
    assert_eq!(peer.take()[0].payload, b"late");
    assert_eq!(peer.stack.info(id).expect("open").retries, 0);
    peer.ack(4);
    assert_eq!(peer.stack.info(id).expect("open").in_flight, 0);
}

#[test]
fn a_connect_over_a_nic_without_room_times_out() {
    let mut peer = Peer::new(|_| {});
    peer.refuses = true;
    let id = peer.stack.connect(v4(2, 80), None).expect("connects");
    let limit = SessionOption::UserTimeout(2_000);
    peer.stack.set_option(id, limit).expect("open");
    wait(&mut peer, 5 * S);
    assert_eq!(peer.error(id), Some(SessionError::TimedOut));
}

/// Only the first of them is tried while the NIC has no room; those behind it ended one by one.
#[test]
fn a_nic_without_room_ends_all_sessions_together() {
    let mut peer = Peer::new(|_| {});
    let listener = peer.listen();
    let mut sessions = Vec::new();
    for _ in 0..8 {
        let id = peer.open_at(listener, &PLAIN);
        let limit = SessionOption::UserTimeout(3_000);
        peer.stack.set_option(id, limit).expect("open");
        sessions.push(id);
        peer.port += 1;
    }
    peer.take();
    peer.refuses = true;
    for &id in &sessions {
        peer.write(id, b"late");
    }
    let connecting = peer.stack.connect(v4(2, 80), None).expect("connects");
    let limit = SessionOption::UserTimeout(2_000);
    peer.stack.set_option(connecting, limit).expect("open");
    wait(&mut peer, 5 * S);
    for id in sessions {
        assert_eq!(peer.error(id), Some(SessionError::TimedOut));
    }
    assert_eq!(peer.error(connecting), Some(SessionError::TimedOut));
}

/// A path that has seen no SYN has dropped none for its flags.
#[test]
fn a_syn_that_the_nic_never_took_still_asks_for_ecn() {
    for (ecn, asks) in [(Ecn::Accurate, CWR | 0x40), (Ecn::Active, CWR | 0x40)] {
        let mut peer = Peer::new(|config| config.ecn = ecn);
        peer.refuses = true;
        peer.stack.connect(v4(2, 80), None).expect("connects");
        wait(&mut peer, 8 * S);
        assert!(peer.stack.counters().timeouts >= 2);
        peer.refuses = false;
        // Its hardware address may have been forgotten meanwhile.
        peer.greet();
        wait(&mut peer, 10 * MS);
        let first = peer.take().remove(0);
        assert_eq!(first.flags & !SYN, asks, "{ecn:?}");
        // One that was taken, and is not answered, counts.
        wait(&mut peer, 20 * S);
        peer.greet();
        let last = peer.take().pop().expect("again");
        assert_eq!(last.flags, SYN, "{ecn:?}");
    }
}

/// A NIC that cuts datagrams gets those to one peer in one frame: the NIC sums each, and cuts
/// pieces of one length, of which the last may be shorter. All others are frames of their own.
#[test]
fn datagrams_to_one_peer_share_a_frame_where_the_nic_cuts_them() {
    for (cuts, frames) in [
        (
            true,
            vec![
                (5001, 3500, 1000),
                (5001, 1000, 0),
                (5002, 9, 0),
                (5002, 10, 0),
            ],
        ),
        (
            false,
            vec![
                (5001, 1000, 0),
                (5001, 1000, 0),
                (5001, 1000, 0),
                (5001, 500, 0),
                (5001, 1000, 0),
                (5002, 9, 0),
                (5002, 10, 0),
            ],
        ),
    ] {
        let nic = Capabilities {
            super_segment_bytes: 65_535,
            completes_checksums: true,
            cuts_datagrams: cuts,
            ..plain(1)
        };
        let mut peer = Peer::behind(&nic, |_| {});
        let id = peer.stack.bind_udp(v4(1, 9)).expect("free");
        let mut sent = Vec::new();
        for (port, bytes) in [
            (5001, 1000),
            (5001, 1000),
            (5001, 1000),
            (5001, 500),
            (5001, 1000),
            (5002, 9),
            (5002, 10),
        ] {
            let payload = vec![sent.len() as u8; bytes];
            peer.stack.send_to(id, v4(2, port), &payload).expect("room");
            sent.extend(payload);
        }
        let (mut heads, mut payloads) = (Vec::new(), Vec::new());
        peer.stack.transmit(peer.now_ns, &mut |frame| {
            let (header, payload) = (frame.header, frame.payload[0]);
            let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
            assert_eq!(internet_checksum(&header[14..34]), 0);
            assert_eq!(usize::from(number(16)), 28 + payload.len());
            assert_eq!(usize::from(number(38)), 8 + payload.len());
            // The sum of the pseudo-header, which the NIC finishes.
            let length = number(38).to_be_bytes();
            let pseudo = [&header[26..34], &[0, 17], &length].concat();
            assert_eq!(number(40), !internet_checksum(&pseudo));
            let left = TransmitChecksum::Partial {
                start: 34,
                offset: 6,
            };
            assert_eq!(frame.checksum, left);
            let each = frame.segment_bytes.map_or(0, NonZeroU16::get);
            heads.push((number(36), payload.len(), each));
            payloads.extend_from_slice(payload);
            true
        });
        assert_eq!(heads, frames);
        assert!(payloads == sent);
    }
}
