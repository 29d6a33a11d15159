//! Windows, memory, and notifications of an application.

use crate::rules::common::{MS, S};
use crate::rules::peer::{ACK, FIN, PLAIN, Peer, SACK, SYN, Segment, blocks};
use sidecore_net_stack::{Event, SessionOption};

#[test]
fn rfc_9293_3_10_7_4_an_older_segment_does_not_move_the_window() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    let base = peer.sequence;
    peer.data(&[1; 1000]);
    peer.data(&[1; 1000]);
    let edge = |peer: &mut Peer| peer.stack.info(id).expect("open").peer_window;
    assert_eq!(edge(&mut peer), 60_000);
    // It begins before the newest one, has new data, and acknowledges nothing more.
    let older = Segment {
        sequence: base,
        window: 100,
        ..peer.segment(ACK, &[1; 2500])
    };
    peer.send(&older);
    assert_eq!(edge(&mut peer), 60_000);
    // A newer one does.
    peer.sequence += 500;
    let newer = Segment {
        window: 100,
        ..peer.segment(ACK, &[1; 500])
    };
    peer.send(&newer);
    assert_eq!(edge(&mut peer), 100);
}

/// An acknowledgment that data could carry is sent alone if it reports a gap: data has no room for
/// the blocks.
#[test]
fn rfc_2018_3_a_gap_is_reported_though_there_is_data_to_send() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&SACK);
    peer.run(S);
    peer.take();
    let base = peer.sequence;
    peer.stack.write(id, &[1; 5000]).expect("open");
    let ahead = Segment {
        sequence: base + 1000,
        ..peer.segment(ACK, &[1; 1000])
    };
    peer.send(&ahead);
    let out = peer.take();
    let bytes: usize = out.iter().map(|it| it.payload.len()).sum();
    assert_eq!(bytes, 5000);
    let reports = out.iter().map(blocks).filter(|it| !it.is_empty());
    assert_eq!(reports.collect::<Vec<_>>(), [[(base + 1000, base + 2000)]]);
}

/// Bytes count, not segments.
#[test]
fn rfc_9293_3_8_6_3_small_segments_are_acknowledged_when_they_fill_two() {
    let mut peer = Peer::new(|_| {});
    peer.open(&PLAIN);
    // The first ones of a session are acknowledged one by one.
    for _ in 0..40 {
        peer.data(&[1; 400]);
        peer.run(100 * MS);
    }
    peer.take();
    for number in 1..=5 {
        peer.data(&[1; 400]);
        assert_eq!(peer.take().len(), usize::from(number == 5), "{number}");
    }
}

/// As in Linux: a smaller receive buffer (SO_RCVBUF) takes back nothing of the window that the peer
/// knows, which ends where it ended before; from then on it is no larger than the buffer.
#[test]
fn rfc_9293_3_8_6_a_smaller_receive_buffer_takes_no_window_back() {
    let mut peer = Peer::new(|config| config.receive_bytes = 60_000);
    let id = peer.open(&PLAIN);
    peer.take();
    let edge = peer.sequence + 60_000;
    let option = SessionOption::ReceiveBytes(8000);
    peer.stack.set_option(id, option).expect("in range");
    for _ in 0..60 {
        peer.data(&[1; 1000]);
        for answer in peer.take() {
            let end = answer.acknowledgment + u32::from(answer.window);
            assert_eq!(end, edge);
        }
    }
    let mut bytes = vec![0; 60_000];
    assert_eq!(peer.stack.read(id, &mut bytes).expect("open"), 60_000);
    peer.flush();
    let update = peer.take().pop().expect("an update");
    assert_eq!(update.window, 8000);
}

/// SO_RCVBUF of a listener, which its sessions have from the answer to the SYN on.
#[test]
fn the_receive_buffer_of_a_listener_limits_the_windows_of_its_sessions() {
    let mut peer = Peer::new(|_| {});
    let listener = peer.listen();
    let option = SessionOption::ReceiveBytes(5000);
    let set = peer.stack.set_listener_option(listener, option);
    set.expect("in range");
    peer.open_at(listener, &PLAIN);
    peer.data(&[1; 1000]);
    let answer = peer.take().pop().expect("an acknowledgment");
    assert_eq!(answer.window, 4000);
}

/// Not at the first byte of room, or each acknowledgment would wake it.
#[test]
fn a_writer_is_woken_where_a_third_of_its_ring_is_free() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    let ring = 24_000;
    peer.stack
        .set_option(id, SessionOption::SendBytes(ring))
        .expect("in range");
    let taken = peer.stack.write(id, &[1; 48_000]).expect("open") as u32;
    assert_eq!(taken, ring);
    peer.flush();
    while peer.stack.next_event().is_some() {}
    let mut left = taken;
    let woken = loop {
        assert!(left > 0, "never woken");
        peer.run(10 * MS);
        peer.ack(1000);
        left -= 1000;
        if let Some(Event::Session(woken)) = peer.stack.next_event() {
            break woken;
        }
    };
    assert_eq!((woken, left), (id, ring * 2 / 3));
}

/// Bytes without memory are dropped, counted, and accepted when they are retransmitted.
#[test]
fn data_without_memory_is_counted_and_may_come_again() {
    let mut peer = Peer::new(|config| config.buffers_bytes = 4 << 20);
    let listener = peer.listen();
    let mut sessions = Vec::new();
    let mut lost = None;
    for port in 0..200 {
        peer.take();
        peer.port = 5000 + port;
        peer.sequence = 1000;
        if peer.stack.counters().no_memory > 1 {
            break;
        }
        let id = peer.open_at(listener, &SACK);
        let base = peer.sequence;
        // Every other kilobyte first; then the others.
        for number in [1, 3, 5, 7, 9, 11, 13, 15, 0, 2, 4, 6, 8, 10, 12, 14] {
            let segment = Segment {
                sequence: base + 1000 * number,
                ..peer.segment(ACK, &[1; 1000])
            };
            peer.send(&segment);
            let count = peer.stack.counters().no_memory;
            if lost.is_none() && count > 0 {
                assert_eq!(count, 1);
                lost = Some((port, segment));
            }
        }
        sessions.push(id);
    }
    let (port, segment) = lost.expect("the memory is not enough for all");
    let before = peer.stack.counters().no_memory;
    assert!(before > 1, "{before}");
    // Other sessions return theirs.
    for (number, &id) in sessions.iter().enumerate() {
        if number != usize::from(port) {
            peer.stack.abort(id).expect("open");
        }
    }
    peer.take();
    peer.send(&segment);
    assert_eq!(peer.stack.counters().no_memory, before);
}

/// The bytes before an early FIN find no memory while other sessions hold it all, and may be
/// retransmitted.
#[test]
fn data_before_an_early_fin_without_memory_is_counted_and_may_come_again() {
    let mut peer = Peer::new(|config| config.buffers_bytes = 4 << 20);
    let listener = peer.listen();
    let first = peer.open_at(listener, &SACK);
    let (sequence, acknowledgment) = (peer.sequence, peer.acknowledgment);
    let fin = Segment {
        sequence: sequence + 1000,
        ..peer.segment(ACK | FIN, &[])
    };
    peer.send(&fin);
    peer.take();
    // All are open before memory is short: no session begins then. Each has its least part of it.
    let mut others = Vec::new();
    for _ in 0..2500 {
        peer.port += 1;
        peer.sequence = 1000;
        let id = peer.open_at(listener, &SACK);
        others.push((id, peer.port, peer.sequence, peer.acknowledgment));
    }
    let mut ends = others.iter().cycle();
    let (mut refused, mut turn) = (0, 0);
    // The smallest buffers are the last to run out.
    while refused < 2500 {
        assert!(turn < 100_000, "memory does not end");
        let before = peer.stack.counters().no_memory;
        let &(_, port, sequence, acknowledgment) = ends.next().expect("some");
        peer.port = port;
        peer.sequence = sequence.wrapping_add(turn / 2500 * 1000);
        peer.acknowledgment = acknowledgment;
        let data = peer.segment(ACK, &[1; 1000]);
        peer.send(&data);
        peer.take();
        let is_refused = peer.stack.counters().no_memory > before;
        refused = if is_refused { refused + 1 } else { 0 };
        turn += 1;
    }
    peer.port = 4000;
    (peer.sequence, peer.acknowledgment) = (sequence, acknowledgment);
    let missing = peer.segment(ACK, &[2; 1000]);
    let before = peer.stack.counters().no_memory;
    peer.send(&missing);
    assert_eq!(peer.stack.counters().no_memory, before + 1);
    for (id, ..) in others {
        peer.stack.abort(id).expect("open");
    }
    peer.send(&missing);
    assert_eq!(peer.stack.counters().no_memory, before + 1);
    let read = peer.stack.read(first, &mut [0; 2000]).expect("open");
    assert_eq!(read, 1000);
}

/// More separate ranges than the list holds.
#[test]
fn pieces_beyond_the_list_are_counted() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&SACK);
    let base = peer.sequence;
    for number in 1..300 {
        let piece = Segment {
            sequence: base + 100 * number,
            ..peer.segment(ACK, &[1; 10])
        };
        peer.send(&piece);
    }
    let counters = peer.stack.counters();
    assert!(counters.out_of_order > 10, "{counters:?}");
    assert!(counters.no_memory > 0, "{counters:?}");
    assert_eq!(
        counters.out_of_order + counters.no_memory,
        299,
        "{counters:?}"
    );
    peer.data(&[1; 30_000]);
    assert_eq!(peer.stack.read(id, &mut [0; 40_000]).expect("open"), 30_000);
}

/// However many sessions stall, one that comes later is served.
#[test]
fn stalled_sessions_leave_memory_for_others() {
    let mut peer = Peer::new(|config| config.buffers_bytes = 64 << 20);
    let listener = peer.listen();
    let mut held = 0;
    for port in 0..1100 {
        peer.port = 5000 + port;
        peer.sequence = 1000;
        let id = peer.open_at(listener, &PLAIN);
        let mut shut = peer.segment(ACK, &[]);
        shut.window = 0;
        peer.send(&shut);
        // As much as it takes, as a server does.
        held += peer.write(id, &[1; 1 << 20]);
        peer.take();
    }
    let buffers = peer.stack.buffers();
    let (most, used) = (buffers.bytes_max, buffers.bytes_in_use);
    assert!(held > 8 << 20, "{held}");
    assert!(used < most, "{used} of {most}");
    peer.port = 4000;
    peer.sequence = 1000;
    let id = peer.open_at(listener, &PLAIN);
    peer.take();
    assert_eq!(peer.write(id, &[2; 16 << 10]), 16 << 10);
    assert!(!peer.take().is_empty());
}

/// The status says which listener and which prefix of peers hold the memory.
#[test]
fn memory_is_counted_by_listener_and_prefix() {
    let mut peer = Peer::new(|config| config.buffers_bytes = 64 << 20);
    let listener = peer.listen();
    for port in 0..300 {
        peer.port = 5000 + port;
        peer.sequence = 1000;
        let id = peer.open_at(listener, &PLAIN);
        let mut shut = peer.segment(ACK, &[]);
        shut.window = 0;
        peer.send(&shut);
        peer.write(id, &[1; 1 << 20]);
        peer.take();
    }
    let [listeners, prefixes] = sidecore_net_stack::holders(&peer.stack, 10);
    let used = peer.stack.buffers().bytes_in_use;
    for held in [&listeners, &prefixes] {
        assert_eq!(held.len(), 1);
        assert_eq!((held[0].sessions, held[0].buffer_bytes), (300, used));
    }
    assert_eq!((listeners[0].prefix_bits, prefixes[0].prefix_bits), (0, 24));
    // A quarter of it is theirs together, but for what each may have at least and the first had.
    assert!(used <= (64 << 20) / 8 + 300 * (64 << 10), "{used}");
}

/// While memory is short, sessions whose peers take nothing give theirs back, with a reset.
#[test]
fn sessions_without_progress_are_ended_while_memory_is_short() {
    let mut peer = Peer::new(|config| config.buffers_bytes = 64 << 20);
    let listener = peer.listen();
    let mut sessions = Vec::new();
    for port in 0..4200 {
        peer.port = 5000 + port;
        peer.sequence = 1000;
        let mut shut = peer.segment(SYN, &[]);
        shut.options = PLAIN.to_vec();
        peer.send(&shut);
        let Some(answer) = peer.take().pop() else {
            // Without memory, there are no new sessions.
            break;
        };
        peer.sequence += 1;
        peer.acknowledgment = answer.sequence.wrapping_add(1);
        let mut shut = peer.segment(ACK, &[]);
        shut.window = 0;
        peer.send(&shut);
        let id = peer.stack.accept(listener).expect("open").expect("one");
        peer.write(id, &[1; 1 << 20]);
        peer.take();
        sessions.push(id);
    }
    assert!(sessions.len() > 1100, "{}", sessions.len());
    let buffers = peer.stack.buffers();
    let (most, used) = (buffers.bytes_max, buffers.bytes_in_use);
    assert!(used > most - most / 16, "{used} of {most}");
    for _ in 0..60 {
        peer.run(S);
    }
    let used = peer.stack.buffers().bytes_in_use;
    assert!(used <= most - most / 16, "{used} of {most}");
    let ended = sessions.iter().filter(|id| peer.error(**id).is_some());
    let ended = ended.count();
    assert!(ended > 0 && ended < sessions.len(), "{ended}");
    peer.take();
    peer.port = 4000;
    peer.sequence = 1000;
    peer.open_at(listener, &PLAIN);
}

/// A full table answers no SYN, rather than promise a session by a cookie that it cannot have.
#[test]
fn a_full_table_refuses_sessions() {
    let mut peer = Peer::new(|config| config.sessions_max = 4);
    let listener = peer.listen();
    for port in 0..4 {
        peer.port = 5000 + port;
        peer.sequence = 1000;
        peer.open_at(listener, &PLAIN);
        peer.take();
    }
    peer.port = 6000;
    let syn = peer.segment(SYN, &[]);
    peer.send(&syn);
    assert_eq!(peer.take(), []);
    assert_eq!(peer.stack.counters().listen_overflows, 1);
    assert_eq!(peer.stack.counters().cookies_sent, 0);
}

#[test]
fn rfc_2883_4_2_a_segment_that_spans_held_data_is_reported_as_a_duplicate() {
    let mut peer = Peer::new(|_| {});
    peer.open(&SACK);
    let base = peer.sequence;
    let piece = |peer: &Peer, from: u32, bytes: usize| Segment {
        sequence: base + from,
        ..peer.segment(ACK, &vec![1; bytes])
    };
    for (from, bytes) in [(2000, 500), (1500, 800)] {
        let segment = piece(&peer, from, bytes);
        peer.send(&segment);
    }
    let out = peer.take();
    let reported = blocks(out.last().expect("an acknowledgment"));
    assert_eq!(
        reported[0],
        (base + 2000, base + 2300),
        "the part that was held"
    );
    assert_eq!(
        reported[1],
        (base + 1500, base + 2500),
        "the block that contains it"
    );
    // In order, over all that is held.
    let segment = piece(&peer, 0, 3000);
    peer.send(&segment);
    let out = peer.take();
    let last = out.last().expect("an acknowledgment");
    assert_eq!(last.acknowledgment, base + 3000);
    assert_eq!(blocks(last)[0], (base + 1500, base + 2500));
}
