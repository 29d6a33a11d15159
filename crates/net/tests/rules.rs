//! One test for each rule of the RFCs that a peer can see: the segments are made by hand.

mod common;

use common::{Frame, MS, S, World, plain, v4};
use sidecore_net::nic::{Received, ReceivedChecksum};
use sidecore_net::{
    Config, Keepalive, ListenerId, NetError, SessionError, SessionId, SessionOption, SessionState,
    Stack,
};

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const PSH: u8 = 8;
const ACK: u8 = 16;

/// A segment of the stack's, or one for it.
#[derive(Debug, Clone, Default, PartialEq)]
struct Segment {
    port: u16,
    sequence: u32,
    acknowledgment: u32,
    flags: u8,
    window: u16,
    options: Vec<u8>,
    payload: Vec<u8>,
}

impl Segment {
    /// From the peer to the stack.
    fn frame(&self) -> Vec<u8> {
        let len = 40 + self.options.len() + self.payload.len();
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        let [high, low] = (len as u16).to_be_bytes();
        bytes.extend([0x45, 0, high, low, 0, 0, 0x40, 0, 64, 6, 0, 0]);
        bytes.extend([10, 0, 0, 2, 10, 0, 0, 1]);
        let sum: u32 = bytes[14..34]
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]))
            .sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
        bytes.extend(self.port.to_be_bytes());
        bytes.extend(80_u16.to_be_bytes());
        bytes.extend(self.sequence.to_be_bytes());
        bytes.extend(self.acknowledgment.to_be_bytes());
        bytes.push((20 + self.options.len() as u8) / 4 * 16);
        bytes.push(self.flags);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend(&self.options);
        bytes.extend(&self.payload);
        bytes
    }
}

/// A stack at 10.0.0.1 and a peer, 10.0.0.2, whose every segment is written here.
struct Peer {
    stack: Stack,
    now_ns: u64,
    out: Vec<Segment>,
    port: u16,
    sequence: u32,
    acknowledgment: u32,
}

impl Peer {
    fn new(change: impl Fn(&mut Config)) -> Self {
        let mut config = common::config(1, 5);
        // Without timestamps segments are easier to read; tests that need them turn them on.
        config.timestamps = false;
        change(&mut config);
        let mut peer = Self {
            stack: Stack::new(config, &plain(1)).expect("a stack"),
            now_ns: 10 * S,
            out: Vec::new(),
            port: 4000,
            sequence: 1000,
            acknowledgment: 0,
        };
        peer.greet();
        peer
    }

    /// An ARP reply, so that the peer is known for the next half minute.
    fn greet(&mut self) {
        let mut arp = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6];
        arp.extend([0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 2, 10, 0, 0, 2]);
        arp.extend([2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
        self.put(arp);
    }

    fn put(&mut self, mut bytes: Vec<u8>) {
        let received = Received {
            bytes: &mut bytes,
            checksum: ReceivedChecksum::Verified,
            segment_bytes: None,
        };
        self.stack.receive(self.now_ns, received);
        self.flush();
    }

    fn flush(&mut self) {
        let out = &mut self.out;
        self.stack.transmit(self.now_ns, &mut |frame| {
            let bytes = Frame::of(frame).bytes;
            if bytes[12..14] == [8, 0] && bytes[23] == 6 {
                out.push(parse(&bytes[34..]));
            }
            true
        });
    }

    fn send(&mut self, segment: &Segment) {
        self.put(segment.frame());
    }

    /// All of them in one batch.
    fn send_together(&mut self, segments: &[Segment]) {
        for segment in segments {
            let mut bytes = segment.frame();
            let received = Received {
                bytes: &mut bytes,
                checksum: ReceivedChecksum::Verified,
                segment_bytes: None,
            };
            self.stack.receive(self.now_ns, received);
        }
        self.flush();
    }

    /// The next segment of this session.
    fn segment(&self, flags: u8, payload: &[u8]) -> Segment {
        Segment {
            port: self.port,
            sequence: self.sequence,
            acknowledgment: self.acknowledgment,
            flags,
            window: 60_000,
            options: Vec::new(),
            payload: payload.to_vec(),
        }
    }

    /// Sends data in order.
    fn data(&mut self, payload: &[u8]) {
        let segment = self.segment(ACK | PSH, payload);
        self.sequence += payload.len() as u32;
        self.send(&segment);
    }

    /// Acknowledges up to `bytes` behind what is acknowledged.
    fn ack(&mut self, bytes: u32) {
        self.acknowledgment = self.acknowledgment.wrapping_add(bytes);
        let segment = self.segment(ACK, &[]);
        self.send(&segment);
    }

    fn run(&mut self, ns: u64) {
        let until = self.now_ns + ns;
        while let Some(at) = self.stack.next_timer().filter(|&at| at <= until) {
            self.now_ns = at.max(self.now_ns + 1_000);
            self.flush();
        }
        self.now_ns = until;
        self.flush();
    }

    fn take(&mut self) -> Vec<Segment> {
        std::mem::take(&mut self.out)
    }

    fn listen(&mut self) -> ListenerId {
        self.stack.listen(v4(1, 80), 4).expect("listens")
    }

    /// A session that the peer opened with these options.
    fn open(&mut self, options: &[u8]) -> SessionId {
        let listener = self.listen();
        self.open_at(listener, options)
    }

    fn open_at(&mut self, listener: ListenerId, options: &[u8]) -> SessionId {
        let mut syn = self.segment(SYN, &[]);
        syn.options = options.to_vec();
        self.send(&syn);
        let answer = self.take();
        assert_eq!(answer.len(), 1);
        assert_eq!(answer[0].flags, SYN | ACK);
        self.sequence += 1;
        self.acknowledgment = answer[0].sequence.wrapping_add(1);
        self.ack(0);
        self.stack.accept(listener).expect("open").expect("one")
    }

    fn state(&mut self, id: SessionId) -> SessionState {
        self.stack.info(id).expect("open").state
    }
}

fn parse(bytes: &[u8]) -> Segment {
    let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four"));
    let start = usize::from(bytes[12] >> 4) * 4;
    Segment {
        port: u16::from_be_bytes([bytes[2], bytes[3]]),
        sequence: word(4),
        acknowledgment: word(8),
        flags: bytes[13],
        window: u16::from_be_bytes([bytes[14], bytes[15]]),
        options: bytes[20..start].to_vec(),
        payload: bytes[start..].to_vec(),
    }
}

/// MSS 1000, SACK permitted.
const SACK: [u8; 8] = [2, 4, 3, 232, 1, 1, 4, 2];
/// MSS 1000.
const PLAIN: [u8; 4] = [2, 4, 3, 232];

fn blocks(segment: &Segment) -> Vec<(u32, u32)> {
    let options = &segment.options;
    let at = options
        .windows(2)
        .position(|pair| pair[0] == 5 && pair[1] % 8 == 2);
    let Some(at) = at else { return Vec::new() };
    let word = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().expect("four"));
    options[at + 2..at + usize::from(options[at + 1])]
        .chunks(8)
        .map(|block| (word(&block[..4]), word(&block[4..])))
        .collect()
}

fn sack_option(ranges: &[(u32, u32)]) -> Vec<u8> {
    let mut option = vec![1, 1, 5, 2 + 8 * ranges.len() as u8];
    for (start, end) in ranges {
        option.extend(start.to_be_bytes());
        option.extend(end.to_be_bytes());
    }
    option
}

#[test]
fn rfc_6928_the_initial_window_is_ten_segments() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.take();
    assert_eq!(peer.stack.write(id, &[1; 50_000]).expect("open"), 50_000);
    peer.flush();
    let out = peer.take();
    assert_eq!(out.len(), 10);
    assert!(out.iter().all(|segment| segment.payload.len() == 1000));
    // Slow start: two for each one acknowledged (RFC 5681 section 3.1).
    peer.ack(1000);
    assert_eq!(peer.take().len(), 2);
}

#[test]
fn rfc_9293_3_8_6_3_every_second_segment_is_acknowledged_at_once_others_after_40_ms() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    // Past the first segments, which are acknowledged at once.
    for _ in 0..20 {
        peer.data(&[1; 1000]);
    }
    peer.take();
    peer.run(S);
    peer.take();
    peer.data(&[1; 1000]);
    assert_eq!(peer.take(), []);
    peer.data(&[1; 1000]);
    assert_eq!(peer.take().len(), 1);
    peer.data(&[1; 100]);
    peer.run(39 * MS);
    assert_eq!(peer.take(), []);
    peer.run(2 * MS);
    let out = peer.take();
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].acknowledgment, peer.sequence);
    assert_eq!(peer.stack.info(id).expect("open").unread, 22_100);
}

/// A sender without SACK needs three to repair a loss without a timeout.
#[test]
fn rfc_5681_4_2_segments_behind_a_gap_are_answered_though_they_come_in_one_batch() {
    for options in [&PLAIN[..], &SACK] {
        let mut peer = Peer::new(|_| {});
        let id = peer.open(options);
        peer.take();
        let base = peer.sequence;
        for (count, answers) in [(1, 1), (2, 2), (5, 3)] {
            let ahead = (1..=count).map(|number| Segment {
                sequence: base + 1000 * number,
                ..peer.segment(ACK, &[1; 1000])
            });
            let ahead: Vec<Segment> = ahead.collect();
            peer.send_together(&ahead);
            let out = peer.take();
            assert_eq!(out.len(), answers, "{count} segments");
            let same = |it: &Segment| it.acknowledgment == base && it.payload.is_empty();
            assert!(out.iter().all(same), "{out:?}");
        }
        // What fills the gap is answered once.
        peer.data(&[1; 1000]);
        let out = peer.take();
        assert_eq!(out.len(), 1);
        assert_eq!(out[0].acknowledgment, base + 6000);
        assert_eq!(peer.stack.read(id, &mut [0; 9000]).expect("open"), 6000);
    }
}

#[test]
fn rfc_2018_4_gaps_are_reported_newest_first_and_rfc_2883_duplicates_before_them() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&SACK);
    peer.take();
    let base = peer.sequence;
    let at = |peer: &Peer, offset: u32, len: usize| Segment {
        sequence: base + offset,
        ..peer.segment(ACK, &vec![1; len])
    };
    for offset in [2000, 6000, 4000] {
        let segment = at(&peer, offset, 500);
        peer.send(&segment);
    }
    let out = peer.take();
    assert_eq!(
        out.len(),
        3,
        "an acknowledgment at once for each (RFC 5681 section 4.2)"
    );
    assert!(out.iter().all(|segment| segment.acknowledgment == base));
    let expected = [
        (base + 4000, base + 4500),
        (base + 6000, base + 6500),
        (base + 2000, base + 2500),
    ];
    assert_eq!(blocks(&out[2]), expected);
    let segment = at(&peer, 4100, 200);
    peer.send(&segment);
    let first = blocks(&peer.take()[0])[0];
    assert_eq!(first, (base + 4100, base + 4300), "RFC 2883 section 4.2.2");
    // The gaps are filled.
    let segment = at(&peer, 0, 6000);
    peer.send(&segment);
    let out = peer.take();
    assert_eq!(out[0].acknowledgment, base + 6500);
    assert_eq!(blocks(&out[0]), []);
    assert_eq!(peer.stack.info(id).expect("open").unread, 6500);
}

#[test]
fn rfc_8985_what_left_before_what_has_arrived_is_lost_and_sent_again_once() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&SACK);
    peer.take();
    peer.stack.write(id, &[1; 10_000]).expect("open");
    peer.flush();
    let first = peer.take()[0].sequence;
    peer.now_ns += 10 * MS;
    let sack = |peer: &mut Peer, from: u32, to: u32| {
        let mut segment = peer.segment(ACK, &[]);
        segment.options = sack_option(&[(first + from, first + to)]);
        peer.send(&segment);
    };
    sack(&mut peer, 1000, 2000);
    sack(&mut peer, 1000, 3000);
    assert_eq!(
        peer.take(),
        [],
        "not before three segments, or the reordering window"
    );
    sack(&mut peer, 1000, 4000);
    let out = peer.take();
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].sequence, first);
    sack(&mut peer, 1000, 5000);
    assert_eq!(peer.take(), []);
    let info = peer.stack.info(id).expect("open");
    assert!(info.recovering);
    assert_eq!(
        info.threshold, 7000,
        "RFC 9438 section 4.6: 0.7 of what was in flight"
    );
    peer.ack(10_000);
    let info = peer.stack.info(id).expect("open");
    assert!(!info.recovering);
    assert_eq!(info.retransmitted, 1);
}

#[test]
fn rfc_8985_7_a_lost_tail_is_probed_for_before_the_timeout() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&SACK);
    peer.take();
    // A round trip of 20 ms.
    peer.stack.write(id, &[1; 100]).expect("open");
    peer.flush();
    peer.now_ns += 20 * MS;
    peer.ack(100);
    peer.take();
    peer.stack.write(id, &[1; 3000]).expect("open");
    peer.flush();
    let sent = peer.take();
    assert_eq!(sent.len(), 3);
    // The session's round trip is below 20 ms (the handshake took none); so is twice that.
    peer.run(45 * MS);
    let out = peer.take();
    assert_eq!(out.len(), 1, "a probe");
    assert_eq!(out[0].sequence, sent[2].sequence, "the last segment");
    assert_eq!(peer.stack.counters().timeouts, 0);
    // The peer had lost the last two: SACK of the probe tells (RFC 8985 section 7.4).
    peer.acknowledgment += 1000;
    let mut segment = peer.segment(ACK, &[]);
    segment.options = sack_option(&[(sent[2].sequence, sent[2].sequence + 1000)]);
    peer.now_ns += 20 * MS;
    peer.send(&segment);
    peer.run(20 * MS);
    let out = peer.take();
    assert_eq!(out[0].sequence, sent[1].sequence);
    assert_eq!(peer.stack.counters().timeouts, 0);
}

#[test]
fn rfc_6298_timeouts_double_and_rfc_9293_3_8_3_end_the_session() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.take();
    peer.stack.write(id, &[1; 100]).expect("open");
    peer.flush();
    peer.take();
    let mut times = Vec::new();
    for _ in 0..400 {
        peer.run(5 * S);
        peer.greet();
        for segment in peer.take() {
            times.push((peer.now_ns, segment.flags & RST != 0));
        }
    }
    assert_eq!(times.iter().filter(|(_, reset)| *reset).count(), 1);
    assert_eq!(times.len(), 16, "15 times again, then a reset");
    let gaps: Vec<u64> = times
        .windows(2)
        .map(|pair| (pair[1].0 - pair[0].0) / S)
        .collect();
    assert!(gaps[7] >= 20 && gaps[12] >= 115, "{gaps:?}");
    let error = peer.stack.write(id, b"x").expect_err("over");
    assert!(matches!(error, NetError::Ended(SessionError::TimedOut)));
}

#[test]
fn rfc_5681_3_2_three_duplicates_without_sack() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.take();
    peer.stack.write(id, &[1; 10_000]).expect("open");
    peer.flush();
    let first = peer.take()[0].sequence;
    peer.ack(0);
    peer.ack(0);
    assert_eq!(peer.take(), []);
    peer.ack(0);
    let out = peer.take();
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].sequence, out[0].payload.len()), (first, 1000));
    // RFC 6582: a partial acknowledgment tells of the next loss.
    peer.ack(3000);
    let out = peer.take();
    assert_eq!(out[0].sequence, first + 3000);
}

#[test]
fn rfc_5961_resets_and_syns_are_challenged() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.take();
    let mut reset = peer.segment(RST, &[]);
    reset.sequence += 10;
    peer.send(&reset);
    let out = peer.take();
    assert_eq!((out.len(), out[0].flags), (1, ACK), "section 3.2");
    let syn = peer.segment(SYN, &[]);
    peer.send(&syn);
    assert_eq!(peer.take()[0].flags, ACK, "section 4.2");
    let mut old = peer.segment(ACK, b"x");
    old.acknowledgment = old.acknowledgment.wrapping_sub(100_000);
    peer.send(&old);
    assert_eq!(peer.take()[0].flags, ACK, "section 5.2");
    assert_eq!(
        peer.stack.info(id).expect("open").unread,
        0,
        "its data is not taken"
    );
    assert_eq!(peer.state(id), SessionState::Established);
    let mut reset = peer.segment(RST, &[]);
    reset.sequence += 100_000_000;
    peer.send(&reset);
    assert_eq!(peer.take(), [], "outside the window");
    let reset = peer.segment(RST, &[]);
    peer.send(&reset);
    let error = peer.stack.readiness(id).expect("open").error;
    assert_eq!(error, Some(SessionError::Reset));
}

#[test]
fn rfc_9293_3_8_6_1_a_shut_window_is_probed_and_opens() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    let mut shut = peer.segment(ACK, &[]);
    shut.window = 0;
    peer.send(&shut);
    peer.take();
    peer.stack.write(id, b"held back").expect("open");
    peer.flush();
    assert_eq!(peer.take(), []);
    for _ in 0..3 {
        peer.run(20 * S);
        peer.greet();
        let out = peer.take();
        assert!(!out.is_empty());
        assert_eq!(out[0].sequence, peer.acknowledgment.wrapping_sub(1));
        assert!(out[0].payload.is_empty());
        peer.send(&shut);
        peer.take();
    }
    peer.ack(0);
    let out = peer.take();
    assert_eq!(out[0].payload, b"held back");
}

#[test]
fn rfc_9293_3_8_6_2_2_our_window_shuts_and_opens_by_whole_segments() {
    let mut peer = Peer::new(|config| config.receive_bytes = 8192);
    let id = peer.open(&PLAIN);
    for _ in 0..8 {
        peer.data(&[1; 1000]);
    }
    peer.data(&[1; 192]);
    assert_eq!(peer.take().last().expect("some").window, 0);
    let segment = peer.segment(ACK, &[9; 100]);
    peer.send(&segment);
    let out = peer.take();
    assert_eq!(
        out[0].acknowledgment, peer.sequence,
        "beyond the window: not taken"
    );
    let mut bytes = [0; 900];
    peer.stack.read(id, &mut bytes).expect("open");
    peer.flush();
    assert_eq!(peer.take(), [], "less than a segment is not worth telling");
    peer.stack.read(id, &mut bytes).expect("open");
    peer.flush();
    assert!(peer.take()[0].window >= 1000);
}

#[test]
fn rfc_9293_3_7_4_nagle_holds_small_segments_back() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.take();
    for text in [b"a", b"b", b"c"] {
        peer.stack.write(id, text).expect("open");
        peer.flush();
    }
    assert_eq!(peer.take().len(), 1);
    peer.ack(1);
    assert_eq!(peer.take()[0].payload, b"bc");
    peer.stack
        .set_option(id, SessionOption::NoDelay(true))
        .expect("open");
    peer.stack.write(id, b"d").expect("open");
    peer.flush();
    assert_eq!(peer.take()[0].payload, b"d");
}

#[test]
fn rfc_9293_3_8_4_keepalive_asks_a_silent_peer_and_gives_up() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.take();
    let keepalive = Keepalive {
        idle_s: 10,
        interval_s: 2,
        probes: 3,
    };
    let option = SessionOption::Keepalive(Some(keepalive));
    peer.stack.set_option(id, option).expect("open");
    peer.run(9 * S);
    assert_eq!(peer.take(), []);
    peer.run(2 * S);
    let out = peer.take();
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].sequence, peer.acknowledgment.wrapping_sub(1));
    peer.ack(0);
    peer.run(8 * S);
    assert_eq!(peer.take(), [], "it answered");
    peer.run(20 * S);
    let out = peer.take();
    assert_eq!(out.len(), 4, "three probes and a reset");
    assert!(out[3].flags & RST != 0);
    let error = peer.stack.readiness(id).expect("open").error;
    assert_eq!(error, Some(SessionError::TimedOut));
}

#[test]
fn rfc_9293_3_6_both_ways_of_closing_end_in_time_wait() {
    let mut peer = Peer::new(|_| {});
    let listener = peer.listen();
    // Ours first: FIN-WAIT-1, FIN-WAIT-2, TIME-WAIT.
    let id = peer.open_at(listener, &PLAIN);
    peer.take();
    peer.stack.shutdown_write(id).expect("open");
    peer.flush();
    assert_eq!(peer.take()[0].flags, FIN | ACK);
    assert_eq!(peer.state(id), SessionState::FinWait1);
    peer.ack(1);
    assert_eq!(peer.state(id), SessionState::FinWait2);
    peer.data(b"late");
    let fin = peer.segment(FIN | ACK, &[]);
    peer.send(&fin);
    peer.sequence += 1;
    assert_eq!(
        peer.take().last().expect("some").acknowledgment,
        peer.sequence
    );
    assert_eq!(peer.state(id), SessionState::TimeWait);
    peer.send(&fin);
    assert_eq!(peer.take().len(), 1, "the FIN again: acknowledged again");
    let mut bytes = [0; 10];
    assert_eq!(peer.stack.read(id, &mut bytes).expect("data stays"), 4);
    peer.stack.close(id).expect("open");
    peer.run(61 * S);
    assert_eq!(peer.stack.sessions(), 0);
    // Theirs first: CLOSE-WAIT, LAST-ACK, gone.
    peer.port += 1;
    let id = peer.open_at(listener, &PLAIN);
    peer.take();
    let fin = peer.segment(FIN | ACK, &[]);
    peer.send(&fin);
    peer.sequence += 1;
    assert_eq!(peer.state(id), SessionState::CloseWait);
    peer.take();
    peer.stack.close(id).expect("open");
    peer.flush();
    assert_eq!(peer.take()[0].flags, FIN | ACK);
    peer.ack(1);
    assert_eq!(peer.stack.sessions(), 0);
    // At once: CLOSING.
    peer.port += 1;
    let id = peer.open_at(listener, &PLAIN);
    peer.take();
    peer.stack.shutdown_write(id).expect("open");
    peer.flush();
    let fin = peer.segment(FIN | ACK, &[]);
    peer.send(&fin);
    peer.sequence += 1;
    assert_eq!(peer.state(id), SessionState::Closing);
    peer.ack(1);
    assert_eq!(peer.state(id), SessionState::TimeWait);
}

#[test]
fn rfc_2525_2_17_closing_with_unread_data_resets() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&PLAIN);
    peer.data(b"nobody reads this");
    peer.take();
    peer.stack.close(id).expect("open");
    peer.flush();
    assert!(peer.take()[0].flags & RST != 0);
    assert_eq!(peer.stack.sessions(), 0);
}

#[test]
fn rfc_6191_time_wait_gives_way_to_a_later_syn() {
    let mut peer = Peer::new(|_| {});
    let listener = peer.listen();
    let id = peer.open_at(listener, &PLAIN);
    peer.stack.close(id).expect("open");
    peer.flush();
    peer.ack(1);
    let fin = peer.segment(FIN | ACK, &[]);
    peer.send(&fin);
    peer.sequence += 1;
    peer.take();
    assert_eq!(peer.stack.sessions(), 1, "in TIME-WAIT");
    let mut syn = peer.segment(SYN, &[]);
    syn.sequence = peer.sequence.wrapping_sub(500);
    peer.send(&syn);
    assert_eq!(
        peer.take()[0].flags,
        ACK,
        "an earlier number: the old session answers"
    );
    syn.sequence = peer.sequence + 1000;
    peer.send(&syn);
    assert_eq!(peer.take()[0].flags, SYN | ACK);
}

#[test]
fn rfc_7323_5_3_old_timestamps_are_not_taken() {
    let mut peer = Peer::new(|config| config.timestamps = true);
    let stamp = |value: u32| {
        let mut option = vec![1, 1, 8, 10];
        option.extend(value.to_be_bytes());
        option.extend([0; 4]);
        option
    };
    let listener = peer.listen();
    let mut syn = peer.segment(SYN, &[]);
    syn.options = [vec![2, 4, 5, 180], stamp(100)].concat();
    peer.send(&syn);
    let answer = peer.take().remove(0);
    assert_eq!(answer.options[..4], [2, 4, 5, 180]);
    assert_eq!(answer.options[4..8], [1, 1, 8, 10]);
    assert_eq!(answer.options[12..16], 100_u32.to_be_bytes(), "the echo");
    peer.sequence += 1;
    peer.acknowledgment = answer.sequence.wrapping_add(1);
    for (value, payload, taken) in [(101, &b"new"[..], 3), (90, b"old", 3), (101, b"er", 5)] {
        let mut segment = peer.segment(ACK, payload);
        segment.sequence = peer.sequence + if taken == 5 { 3 } else { 0 };
        segment.options = stamp(value);
        peer.send(&segment);
        peer.run(50 * MS);
        if value == 101 && taken == 3 {
            let id = peer.stack.accept(listener).expect("open").expect("one");
            assert_eq!(peer.stack.info(id).expect("open").unread, 3);
        }
    }
    assert_eq!(peer.stack.counters().paws, 1);
    let last = peer.take().pop().expect("some");
    assert_eq!(last.acknowledgment, peer.sequence + 5);
}

#[test]
fn rfc_4987_3_6_a_flood_of_syns_is_answered_with_cookies_that_open_sessions() {
    let mut peer = Peer::new(|config| config.timestamps = true);
    let listener = peer.listen();
    let options = |value: u32| {
        let mut options = vec![2, 4, 5, 180, 4, 2, 8, 10];
        options.extend(value.to_be_bytes());
        options.extend([0, 0, 0, 0, 1, 3, 3, 7]);
        options
    };
    for port in 10_000..12_000 {
        let mut syn = peer.segment(SYN, &[]);
        syn.port = port;
        syn.options = options(7);
        peer.send(&syn);
    }
    assert!(peer.stack.counters().cookies_sent > 1900);
    assert!(peer.stack.sessions() <= 64, "embryos are bounded");
    let answer = peer.take().pop().expect("the last SYN's answer");
    assert_eq!((answer.port, answer.flags), (11_999, SYN | ACK));
    let sent_stamp = &answer.options[8..12];
    peer.port = 11_999;
    peer.sequence += 1;
    peer.acknowledgment = answer.sequence.wrapping_add(1);
    let mut ack = peer.segment(ACK, b"hello");
    ack.options = [&[1, 1, 8, 10, 0, 0, 0, 9][..], sent_stamp].concat();
    peer.send(&ack);
    let id = peer
        .stack
        .accept(listener)
        .expect("open")
        .expect("the cookie's session");
    let info = peer.stack.info(id).expect("open");
    assert_eq!(info.unread, 5);
    assert_eq!(
        (info.scales, info.sack, info.timestamps),
        ((7, 8), true, true)
    );
    assert_eq!(info.mss, 1448);
    // A forged one does not.
    let mut forged = ack.clone();
    forged.port = 11_998;
    forged.acknowledgment = forged.acknowledgment.wrapping_add(77);
    peer.take();
    peer.send(&forged);
    assert!(peer.take()[0].flags & RST != 0);
    assert!(peer.stack.accept(listener).expect("open").is_none());
}

#[test]
fn rfc_1191_a_smaller_path_is_learned_and_what_was_too_large_goes_again() {
    let mut peer = Peer::new(|_| {});
    let id = peer.open(&[2, 4, 5, 180]);
    peer.take();
    peer.stack.write(id, &[1; 5000]).expect("open");
    peer.flush();
    let sent = peer.take();
    assert_eq!(sent[0].payload.len(), 1460);
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    bytes.extend([0x45, 0, 0, 56, 0, 0, 0x40, 0, 64, 1, 0, 0]);
    bytes.extend([10, 0, 0, 9, 10, 0, 0, 1]);
    let sum = |bytes: &[u8]| {
        let sum: u32 = bytes
            .chunks(2)
            .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1]))
            .sum();
        (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
    };
    let field = sum(&bytes[14..34]);
    bytes[24..26].copy_from_slice(&field);
    let mut message = vec![3, 4, 0, 0, 0, 0, 3, 232];
    message.extend([0x45, 0, 5, 220, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    message.extend([10, 0, 0, 1, 10, 0, 0, 2, 0, 80]);
    message.extend(peer.port.to_be_bytes());
    message.extend(sent[0].sequence.to_be_bytes());
    let field = sum(&message);
    message[2..4].copy_from_slice(&field);
    bytes.extend(message);
    peer.put(bytes);
    assert_eq!(peer.stack.info(id).expect("open").mss, 960);
    let out = peer.take();
    assert!(!out.is_empty() && out.iter().all(|segment| segment.payload.len() <= 960));
    assert_eq!(out[0].sequence, sent[0].sequence);
}

#[test]
fn rfc_9293_3_5_both_may_open_at_once() {
    let mut world = World::new(9);
    let one = world.stacks[0]
        .connect(v4(2, 5000), Some(v4(1, 6000)))
        .expect("connects");
    let two = world.stacks[1]
        .connect(v4(1, 6000), Some(v4(2, 5000)))
        .expect("connects");
    world.run(S);
    for (end, id) in [(0, one), (1, two)] {
        let info = world.stacks[end].info(id).expect("open");
        assert_eq!(info.state, SessionState::Established, "end {end}");
    }
    world.stacks[0].write(one, b"hello").expect("open");
    world.run(S);
    let mut bytes = [0; 10];
    assert_eq!(world.stacks[1].read(two, &mut bytes).expect("open"), 5);
}

#[test]
fn an_idle_session_holds_no_buffer() {
    let mut world = World::new(2);
    let listener = world.stacks[1].listen(v4(2, 80), 64).expect("listens");
    let clients: Vec<SessionId> = (0..50)
        .map(|_| world.stacks[0].connect(v4(2, 80), None).expect("connects"))
        .collect();
    world.run(S);
    for &client in &clients {
        let server = world.stacks[1]
            .accept(listener)
            .expect("open")
            .expect("one");
        world.stacks[0].write(client, b"ping").expect("open");
        world.run(100 * MS);
        let mut bytes = [0; 10];
        assert_eq!(world.stacks[1].read(server, &mut bytes).expect("open"), 4);
    }
    assert_eq!(world.stacks[0].buffers().1, 0);
    assert_eq!(world.stacks[1].buffers().1, 0);
}

#[test]
fn an_embryo_whose_listener_is_gone_is_reset() {
    let mut peer = Peer::new(|_| {});
    let listener = peer.listen();
    let syn = peer.segment(SYN, &[]);
    peer.send(&syn);
    let answer = peer.take().remove(0);
    peer.stack.close_listener(listener).expect("listens");
    peer.sequence += 1;
    peer.acknowledgment = answer.sequence.wrapping_add(1);
    peer.ack(0);
    assert!(peer.take()[0].flags & RST != 0);
    assert_eq!(peer.stack.sessions(), 0);
}
