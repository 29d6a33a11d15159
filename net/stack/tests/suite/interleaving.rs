//! Property: however a byte stream is cut into segments, and whatever order, overlap and number of
//! segments arrive, the application reads the stream.

use crate::common;

use common::segment::Segment;
use common::{Frame, MS, S, plain, v4};
use proptest::prelude::*;
use sidecore_net_stack::Stack;
use sidecore_net_stack::frame::{Received, ReceivedChecksum};

/// Sequence number of the peer's SYN, so that the stream passes the wrap.
const START: u32 = u32::MAX - 3_000;
const LEN: usize = 8_000;

fn frame(sequence: u32, acknowledgment: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let segment = Segment {
        port: 4000,
        sequence,
        acknowledgment,
        flags,
        window: u16::MAX,
        options: Vec::new(),
        payload: payload.to_vec(),
    };
    segment.frame()
}

struct Run {
    stack: Stack,
    now_ns: u64,
    acknowledged: u32,
    isn: u32,
}

impl Run {
    fn put(&mut self, mut bytes: Vec<u8>) {
        let received = Received {
            bytes: &mut bytes,
            checksum: ReceivedChecksum::Verified,
            segment_bytes: None,
        };
        self.stack.receive(self.now_ns, received);
        self.now_ns += MS;
        let (acknowledged, isn) = (&mut self.acknowledged, &mut self.isn);
        self.stack.transmit(self.now_ns, &mut |out| {
            let bytes = Frame::of(out).bytes;
            if bytes[12..14] == [8, 0] && bytes[23] == 6 {
                let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4"));
                *isn = word(38);
                let next = word(42);
                assert!(
                    next.wrapping_sub(*acknowledged) <= LEN as u32 + 2,
                    "acknowledgments never go back"
                );
                *acknowledged = next;
            }
            true
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_interleaving_yields_the_stream(
        cuts in prop::collection::vec((0..LEN, 1..3_000_usize), 0..60),
        reads in prop::collection::vec(0..2_000_usize, 0..40),
        window in 4_096..20_000_u32,
        fin_early in any::<bool>(),
    ) {
        let mut config = common::config(1, 3);
        config.receive_bytes = window;
        let stack = Stack::new(config, &plain(1)).expect("a stack");
        let mut run = Run { stack, now_ns: 5 * S, acknowledged: START.wrapping_add(1), isn: 0 };
        let listener = run.stack.listen(v4(1, 80), 4).expect("listens");
        run.put(frame(START, 0, 2, &[]));
        let ack = run.isn.wrapping_add(1);
        run.put(frame(START.wrapping_add(1), ack, 16, &[]));
        let id = run.stack.accept(listener).expect("open").expect("one");
        let stream: Vec<u8> = (0..LEN).map(|at| ((at * 31) >> 2) as u8).collect();
        let first = START.wrapping_add(1);
        let mut got: Vec<u8> = Vec::new();
        let mut scratch = [0; 2_000];
        if fin_early {
            run.put(frame(first.wrapping_add(LEN as u32), ack, 17, &[]));
        }
        let mut reads = reads.into_iter();
        for (from, len) in cuts {
            let end = (from + len).min(LEN);
            let sequence = first.wrapping_add(from as u32);
            run.put(frame(sequence, ack, 16, &stream[from..end]));
            if let Some(most) = reads.next() {
                let count = run.stack.read(id, &mut scratch[..most]).expect("open");
                got.extend(&scratch[..count]);
            }
        }
        // Like a sender without progress: from the acknowledged number, as far as it goes.
        for _ in 0..200 {
            let from = run.acknowledged.wrapping_sub(first) as usize;
            if from > LEN {
                break;
            }
            let end = (from + 700).min(LEN);
            let flags = if end == LEN { 17 } else { 16 };
            let sequence = first.wrapping_add(from as u32);
            run.put(frame(sequence, ack, flags, &stream[from..end]));
            let count = run.stack.read(id, &mut scratch).expect("open");
            got.extend(&scratch[..count]);
        }
        loop {
            let count = run.stack.read(id, &mut scratch).expect("open");
            if count == 0 {
                break;
            }
            got.extend(&scratch[..count]);
        }
        prop_assert!(got == stream, "{} of {} bytes", got.len(), LEN);
        prop_assert!(run.stack.readiness(id).expect("open").end_of_input());
    }
}
