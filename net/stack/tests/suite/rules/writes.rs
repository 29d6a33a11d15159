//! Writes with hints: timestamps, records, traffic class, and the send buffer as counted by Linux.

use super::common::{Frame, MS};
use super::peer::{ACK, PLAIN, Peer};
use sidecore_net_stack::{SessionOption, StampKind, StampKinds, Write};

/// Linux's `Documentation/networking/timestamping.rst`: for the last byte of each write, once each.
#[test]
fn a_write_is_stamped_when_its_last_byte_is_sent_and_acknowledged() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    let all = StampKinds {
        scheduled: true,
        sent: true,
        acknowledged: true,
    };
    peer.stack
        .set_option(id, SessionOption::Stamps(all))
        .expect("open");
    peer.write(id, &[1; 12_000]);
    // The window permits ten segments; the last byte is in the twelfth.
    assert_eq!(peer.stack.next_stamp(id).expect("open"), None);
    peer.run(20 * MS);
    peer.ack(2000);
    let sent_ns = peer.now_ns;
    for expected in [StampKind::Scheduled, StampKind::Sent] {
        let stamp = peer.stack.next_stamp(id).expect("open").expect("one");
        assert_eq!(
            (stamp.kind, stamp.at_ns, stamp.byte),
            (expected, sent_ns, 11_999)
        );
    }
    assert_eq!(peer.stack.next_stamp(id).expect("open"), None);
    assert!(!peer.stack.readiness(id).expect("open").stamped);
    peer.run(20 * MS);
    peer.ack(10_000);
    assert!(peer.stack.readiness(id).expect("open").stamped);
    let stamp = peer.stack.next_stamp(id).expect("open").expect("one");
    assert_eq!(
        (stamp.kind, stamp.at_ns, stamp.byte),
        (StampKind::Acknowledged, peer.now_ns, 11_999)
    );
}

/// No segment has bytes of two records; the number of pending record ends is bounded.
#[test]
fn records_end_with_segments() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.take();
    let record = Write {
        ends_record: true,
        ..Write::default()
    };
    for len in [100, 200, 300] {
        let taken = peer.stack.write_with(id, &vec![1; len], record);
        assert_eq!(taken.expect("open"), len);
    }
    peer.flush();
    let lens: Vec<usize> = peer.take().iter().map(|it| it.payload.len()).collect();
    // A record with another after it does not wait for more; the last one does (Nagle).
    assert_eq!(lens, [100, 200]);
    peer.ack(300);
    assert_eq!(peer.take()[0].payload.len(), 300);
    peer.ack(300);
    let taken = (0..5000).filter(|_| peer.stack.write_with(id, &[1], record).expect("open") == 1);
    assert_eq!(taken.count(), 1024);
}

/// RFC 9293 section 3.8.6.2.1 (4): a window that is open, but too small to be used, is used after a
/// timeout if nothing is in flight.
#[test]
fn a_silly_window_with_nothing_in_flight_is_used_in_the_end() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.take();
    let mut small = peer.segment(ACK, &[]);
    small.window = 10;
    peer.send(&small);
    peer.write(id, &[1; 2000]);
    assert_eq!(peer.take(), []);
    peer.run(1_500 * MS);
    assert_eq!(peer.take()[0].payload.len(), 10);
}

/// RFC 2474 section 3, in both families' header field; IPv4's header checksum is correct.
#[test]
fn the_traffic_class_is_in_the_header() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.stack
        .set_option(id, SessionOption::TrafficClass(0xbb))
        .expect("open");
    peer.stack.write(id, &[1; 100]).expect("open");
    let mut classes = Vec::new();
    let now_ns = peer.now_ns;
    peer.stack.transmit(now_ns, &mut |frame| {
        let bytes = Frame::of(frame).bytes;
        assert_eq!(super::internet_checksum(&bytes[14..34]), 0);
        classes.push(bytes[15]);
        true
    });
    // ECN's two bits are excluded.
    assert_eq!(classes, [0xb8]);
}

/// `SO_SNDBUF` on Linux counts 1,280 bytes for each segment; `SendBytes` counts none.
#[test]
fn a_send_buffer_is_counted_as_it_was_asked_for() {
    for (option, taken) in [
        (SessionOption::SendBytes(20_000), 20_000),
        (SessionOption::SendMemory(20_000), 10_000),
    ] {
        let mut peer = Peer::new(|_| {});
        let id = peer.open(&PLAIN);
        peer.stack.set_option(id, option).expect("in range");
        // Ten segments are sent at once and take 22,800, so that no room is left for more.
        let written = peer.stack.write(id, &[1; 60_000]).expect("open");
        assert_eq!(written, taken);
    }
}
