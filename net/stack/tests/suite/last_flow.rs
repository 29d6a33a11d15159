//! Property: a frame that continues the previous one takes a shorter path to its session, without
//! an observable difference: the same bytes are read, and every sent frame is identical - the same
//! acknowledgments, at the same time, with the same windows, blocks and timestamps.
//!
//! Two receivers with one seed get the same frames. For the second one each large frame has a
//! different source hardware address, which TCP ignores, so that it takes the normal path.

use crate::common;

use common::segment::{CE, NOT_ECT, ecn, set_ecn};
use common::{Frame, MS, Random, S, offloading, plain, v4, v6};
use proptest::prelude::{Just, ProptestConfig, any, prop_assert, prop_oneof, proptest};
use sidecore_net_stack::frame::{Capabilities, ReceivedChecksum};
use sidecore_net_stack::{Counters, Ecn, ListenerId, SessionId, Stack};
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Sessions of a run, and bytes that each of them carries.
const SESSIONS: usize = 3;
const STREAM_BYTES: usize = 120_000;

/// A receiver and its application.
struct Twin {
    stack: Stack,
    listener: ListenerId,
    /// By their other ends.
    sessions: BTreeMap<SocketAddr, SessionId>,
    read: BTreeMap<SocketAddr, Vec<u8>>,
}

impl Twin {
    fn new(seed: u64, nic: &Capabilities) -> Self {
        let mut config = common::config(2, seed);
        config.receive_bytes = 60_000;
        let mut stack = Stack::new(config, nic).expect("a stack");
        let listener = stack.listen(everywhere(), 8).expect("listens");
        Self {
            stack,
            listener,
            sessions: BTreeMap::new(),
            read: BTreeMap::new(),
        }
    }

    /// Reads up to `most` bytes of each session, and replies occasionally.
    fn attend(&mut self, most: usize, answers: bool) {
        self.stack.process_staged();
        while let Some(session) = self.stack.accept(self.listener).expect("listens") {
            let (_, peer) = self.stack.addresses(session).expect("open");
            self.sessions.insert(peer, session);
        }
        let mut scratch = vec![0; most];
        for (&peer, &session) in &self.sessions {
            let count = self.stack.read(session, &mut scratch).expect("open");
            let read = self.read.entry(peer).or_default();
            read.extend(&scratch[..count]);
            if answers && count > 0 {
                self.stack.write(session, &[7; 100]).expect("open");
            }
        }
        while self.stack.next_event().is_some() {}
    }

    fn sent(&mut self, now_ns: u64) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.stack.transmit(now_ns, &mut |out| {
            frames.push(Frame::of(out));
            true
        });
        frames
    }

    /// Counters without the table searches, and those.
    fn counted(&self) -> (Counters, u64) {
        let mut counters = self.stack.counters();
        let searches = counters.searches;
        (counters.searches, counters.search_hits) = (0, 0);
        (counters, searches)
    }
}

fn everywhere() -> SocketAddr {
    SocketAddr::from(([0_u16; 8], 80))
}

/// Loses, duplicates, swaps, damages and marks.
fn impair(frames: Vec<Frame>, per_million: u64, random: &mut Random) -> Vec<Frame> {
    let mut out: Vec<Frame> = Vec::new();
    for mut frame in frames {
        if random.happens(per_million) {
            continue;
        }
        // With checksum offload, damage would go unnoticed.
        let checked = frame.checksum == ReceivedChecksum::Unknown && frame.bytes.len() > 100;
        if random.happens(per_million) && checked {
            let at = 14 + random.below(frame.bytes.len() as u64 - 14) as usize;
            frame.bytes[at] ^= 1 << random.below(8);
        }
        // A router that marks (RFC 3168 section 5).
        if ecn(&frame.bytes) != NOT_ECT && random.happens(per_million) {
            set_ecn(&mut frame.bytes, CE);
        }
        if random.happens(per_million) {
            out.push(frame.clone());
        }
        out.push(frame);
        let last = out.len() - 1;
        if last > 0 && random.happens(per_million) {
            out.swap(last - 1, last);
        }
    }
    out
}

/// The second twin's copy: with a different source address each time.
fn disguised(frame: &Frame, serial: u64) -> Frame {
    let mut frame = frame.clone();
    if frame.bytes.len() > 400 {
        frame.bytes[10..12].copy_from_slice(&(serial as u16).to_be_bytes());
    }
    frame
}

/// A run; the number of searches of each twin.
fn run(seed: u64, per_million: u64, nics: [Capabilities; 2]) -> [u64; 2] {
    let random = &mut Random(seed);
    let mut config = common::config(1, seed);
    if random.happens(500_000) {
        config.ecn = Ecn::Active;
    }
    let mut sender = Stack::new(config, &nics[0]).expect("a stack");
    let mut twins = [(); 2].map(|()| Twin::new(seed, &nics[1]));
    let to = [v4(2, 80), v6(2), v4(2, 80)];
    let sessions = to.map(|to| sender.connect(to, None).expect("a session"));
    let stream: Vec<u8> = (0..STREAM_BYTES).map(|at| ((at * 31) >> 3) as u8).collect();
    let mut written = [0; SESSIONS];
    let (mut now_ns, mut serial) = (S, 0);
    let mut scratch = vec![0; 2_000];
    for turn in 0.. {
        assert!(turn < 20_000, "seed {seed}: no end");
        let read = |peer: &SocketAddr| twins[0].read.get(peer).map_or(0, Vec::len);
        if twins[0].sessions.len() == SESSIONS
            && twins[0]
                .sessions
                .keys()
                .all(|peer| read(peer) == STREAM_BYTES)
        {
            break;
        }
        // Usually one session at a time, as in a bulk transfer.
        let one = random.below(SESSIONS as u64) as usize;
        let end = (written[one] + random.below(40_000) as usize).min(STREAM_BYTES);
        // Fails until it is open.
        let taken = sender.write(sessions[one], &stream[written[one]..end]);
        written[one] += taken.unwrap_or(0);
        for session in sessions {
            let _ = sender.read(session, &mut scratch);
        }
        now_ns += [20_000, 200_000, 3 * MS, 50 * MS][random.below(4) as usize];
        let mut frames = Vec::new();
        sender.transmit(now_ns, &mut |out| {
            frames.push(Frame::of(out));
            true
        });
        let mut frames = impair(frames, per_million, random).into_iter().peekable();
        // At least once, so that earlier frames are processed.
        for first in 0.. {
            if first > 0 && frames.peek().is_none() {
                break;
            }
            let batch: Vec<Frame> = frames
                .by_ref()
                .take(1 + random.below(64) as usize)
                .collect();
            for frame in batch {
                serial += 1;
                let mut pair = [disguised(&frame, serial), frame];
                for (twin, frame) in twins.iter_mut().rev().zip(&mut pair) {
                    twin.stack.receive(now_ns, frame.received());
                }
            }
            let (most, answers) = (random.below(70_000) as usize, random.happens(200_000));
            for twin in &mut twins {
                twin.attend(most, answers);
            }
        }
        let [first, second] = &mut twins;
        let (said, other) = (first.sent(now_ns), second.sent(now_ns));
        assert_eq!(said.len(), other.len(), "seed {seed}, turn {turn}");
        for (a, b) in said.iter().zip(&other) {
            // The rejection of a damaged frame goes to that frame's source.
            assert_eq!(a.bytes[6..], b.bytes[6..], "seed {seed}, turn {turn}");
        }
        for mut frame in impair(said, per_million, random) {
            sender.receive(now_ns, frame.received());
        }
        sender.process_staged();
        while sender.next_event().is_some() {}
    }
    assert!(twins[0].read == twins[1].read, "seed {seed}: what was read");
    assert!(
        twins[0].read.values().all(|read| *read == stream),
        "seed {seed}"
    );
    let [(first, searches), (second, other)] = twins.map(|twin| twin.counted());
    assert_eq!(first, second, "seed {seed}");
    [searches, other]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn what_goes_out_is_the_same_to_the_last_bit(
        seed in any::<u64>(),
        per_million in prop_oneof![Just(0), 0..60_000_u64],
        offload in any::<bool>(),
    ) {
        let nic = if offload { offloading } else { plain };
        let [short, long] = run(seed, per_million, [nic(1), nic(2)]);
        prop_assert!(short <= long, "more searches, not fewer: {short} and {long}");
        // Super-segments have their own path.
        prop_assert!(
            offload || short < long,
            "nothing went the short way: {short} and {long} searches"
        );
    }
}

#[test]
fn most_of_a_clean_bulk_transfer_goes_the_short_way() {
    let [short, long] = run(5, 0, [plain(1), plain(2)]);
    // Only the start of a run of one session, and small segments, are looked up.
    assert!(short * 3 < long, "{short} and {long} searches");
}
