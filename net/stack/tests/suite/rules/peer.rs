//! A peer with manually built segments, and a stack that replies.
//!
//! Must stay true: only the test's segments are sent, and time advances only when the test says so.

use crate::rules::common::{self, Frame, S, plain, v4};
use sidecore_net_stack::frame::{Capabilities, Received, ReceivedChecksum};
use sidecore_net_stack::{Config, ListenerId, SessionError, SessionId, SessionState, Stack};

pub(crate) use crate::rules::common::segment::{ACK, FIN, PSH, RST, SYN, Segment};

/// A stack at 10.0.0.1 and a peer, 10.0.0.2, whose segments are all built here.
pub(crate) struct Peer {
    pub(crate) stack: Stack,
    pub(crate) now_ns: u64,
    pub(crate) out: Vec<Segment>,
    /// Requests for the peer's hardware address so far.
    pub(crate) arp_requests: usize,
    pub(crate) port: u16,
    pub(crate) sequence: u32,
    pub(crate) acknowledgment: u32,
    /// The stack's NIC takes nothing.
    pub(crate) refuses: bool,
}

impl Peer {
    pub(crate) fn new(change: impl Fn(&mut Config)) -> Self {
        Self::behind(&plain(1), change)
    }

    /// With a stack whose NIC has more offloads.
    pub(crate) fn behind(nic: &Capabilities, change: impl Fn(&mut Config)) -> Self {
        let mut config = common::config(1, 5);
        // Without timestamps segments are easier to read; tests that need them enable them.
        config.offers.timestamps = false;
        change(&mut config);
        let mut peer = Self {
            stack: Stack::new(config, nic).expect("a stack"),
            now_ns: 10 * S,
            out: Vec::new(),
            arp_requests: 0,
            port: 4000,
            sequence: 1000,
            acknowledgment: 0,
            refuses: false,
        };
        peer.greet();
        peer
    }

    /// An ARP reply, so that the peer is known for the next half minute.
    pub(crate) fn greet(&mut self) {
        let mut arp = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 6];
        arp.extend([0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 2, 10, 0, 0, 2]);
        arp.extend([2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
        self.put(arp);
    }

    pub(crate) fn put(&mut self, bytes: Vec<u8>) {
        self.hand_in(bytes);
        self.flush();
    }

    /// Without collecting the reply yet.
    fn hand_in(&mut self, mut bytes: Vec<u8>) {
        let received = Received {
            bytes: &mut bytes,
            checksum: ReceivedChecksum::Verified,
            segment_bytes: None,
        };
        self.stack.receive(self.now_ns, received);
    }

    pub(crate) fn flush(&mut self) {
        let (out, arp_requests) = (&mut self.out, &mut self.arp_requests);
        let refuses = self.refuses;
        self.stack.transmit(self.now_ns, &mut |frame| {
            if refuses {
                return false;
            }
            let bytes = Frame::of(frame).bytes;
            if bytes[12..14] == [8, 0] && bytes[23] == 6 {
                out.push(parse(&bytes[34..]));
            }
            *arp_requests += usize::from(bytes[12..14] == [8, 6] && bytes[21] == 1);
            true
        });
    }

    pub(crate) fn send(&mut self, segment: &Segment) {
        self.put(segment.frame());
    }

    /// All of them in one batch.
    pub(crate) fn send_together(&mut self, segments: &[Segment]) {
        for segment in segments {
            self.hand_in(segment.frame());
        }
        self.flush();
    }

    /// The next segment of this session.
    pub(crate) fn segment(&self, flags: u8, payload: &[u8]) -> Segment {
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
    pub(crate) fn data(&mut self, payload: &[u8]) {
        let segment = self.segment(ACK | PSH, payload);
        self.sequence += payload.len() as u32;
        self.send(&segment);
    }

    /// Acknowledges `bytes` more bytes.
    pub(crate) fn ack(&mut self, bytes: u32) {
        self.acknowledgment = self.acknowledgment.wrapping_add(bytes);
        let segment = self.segment(ACK, &[]);
        self.send(&segment);
    }

    pub(crate) fn run(&mut self, ns: u64) {
        let until = self.now_ns + ns;
        while let Some(at) = self.stack.next_timer().filter(|&at| at <= until) {
            self.now_ns = at.max(self.now_ns + 1_000);
            self.flush();
        }
        self.now_ns = until;
        self.flush();
    }

    pub(crate) fn take(&mut self) -> Vec<Segment> {
        std::mem::take(&mut self.out)
    }

    pub(crate) fn listen(&mut self) -> ListenerId {
        self.stack.listen(v4(1, 80), 4).expect("listens")
    }

    /// A session that the peer opened with these options.
    pub(crate) fn open(&mut self, options: &[u8]) -> SessionId {
        let listener = self.listen();
        self.open_at(listener, options)
    }

    pub(crate) fn open_at(&mut self, listener: ListenerId, options: &[u8]) -> SessionId {
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

    pub(crate) fn state(&mut self, id: SessionId) -> SessionState {
        self.stack.info(id).expect("open").state
    }

    /// The error that is reported to the application.
    pub(crate) fn error(&self, id: SessionId) -> Option<SessionError> {
        self.stack.readiness(id).expect("open").error
    }

    /// The application writes; permitted data is sent.
    pub(crate) fn write(&mut self, id: SessionId, bytes: &[u8]) -> usize {
        let written = self.stack.write(id, bytes).expect("open");
        self.flush();
        written
    }

    /// The application takes all events.
    pub(crate) fn take_events(&mut self) {
        while self.stack.next_event().is_some() {}
    }
}

pub(crate) fn parse(bytes: &[u8]) -> Segment {
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
pub(crate) const SACK: [u8; 8] = [2, 4, 3, 232, 1, 1, 4, 2];
/// MSS 1000.
pub(crate) const PLAIN: [u8; 4] = [2, 4, 3, 232];

pub(crate) fn blocks(segment: &Segment) -> Vec<(u32, u32)> {
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

pub(crate) fn sack_option(ranges: &[(u32, u32)]) -> Vec<u8> {
    let mut option = vec![1, 1, 5, 2 + 8 * ranges.len() as u8];
    for (start, end) in ranges {
        option.extend(start.to_be_bytes());
        option.extend(end.to_be_bytes());
    }
    option
}
