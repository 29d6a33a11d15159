//! Bytes between two sessions of one stack, in segments and copied in any mixture, in both
//! directions: complete, in order, and with both control blocks as if all had been segments.
//!
//! A failure prints its seed; to run that one alone:
//!
//! `SIDECORE_SEED=n cargo test -p sidecore-net-stack --test suite across::`.

use crate::common;

use common::{Frame, MS, Random, S, config, offloading, plain, v4};
use sidecore_net_stack::frame::Capabilities;
use sidecore_net_stack::{SessionId, Stack};
use std::collections::VecDeque;

/// The byte of direction `which` at `offset`; the period divides no power of two.
fn byte(which: usize, offset: usize) -> u8 {
    ((offset % 65_521) * 7 + (offset >> 16) + which * 31) as u8
}

/// A stack whose frames to itself wait in a queue.
struct Alone {
    stack: Stack,
    now_ns: u64,
    queue: VecDeque<Frame>,
}

impl Alone {
    fn new(seed: u64, nic: &Capabilities, window: u32) -> Self {
        let mut config = config(1, seed);
        config.receive_bytes = window;
        config.send_bytes = window.max(64 << 10);
        Self {
            stack: Stack::new(config, nic).expect("a stack"),
            now_ns: S,
            queue: VecDeque::new(),
        }
    }

    fn send(&mut self) {
        let queue = &mut self.queue;
        self.stack.transmit(self.now_ns, &mut |outgoing| {
            queue.push_back(Frame::of(outgoing));
            true
        });
    }

    /// Passes at most `frames` of the queued frames.
    fn receive(&mut self, frames: usize) {
        for _ in 0..frames {
            let Some(mut frame) = self.queue.pop_front() else {
                break;
            };
            self.stack.receive_own(self.now_ns, frame.received());
        }
        self.stack.process_staged();
    }

    /// Runs until the queue is empty.
    fn settle(&mut self) {
        for _ in 0..1000 {
            self.send();
            if self.queue.is_empty() {
                return;
            }
            self.receive(usize::MAX);
        }
        panic!("the stack talks to itself without end");
    }

    fn pair(&mut self) -> [SessionId; 2] {
        let listener = self.stack.listen(v4(1, 80), 1).expect("listens");
        let client = self.stack.connect(v4(1, 80), None).expect("connects");
        self.settle();
        let server = self.stack.accept(listener).expect("listens");
        [client, server.expect("a session")]
    }
}

/// One direction, as its two owners see it.
#[derive(Default)]
struct Flow {
    written: usize,
    got: usize,
}

impl Flow {
    fn block(&self, which: usize, count: usize) -> Vec<u8> {
        (self.written..self.written + count)
            .map(|at| byte(which, at))
            .collect()
    }

    fn read(&mut self, alone: &mut Alone, which: usize, reader: SessionId, most: usize) {
        let mut bytes = vec![0; most];
        let count = alone.stack.read(reader, &mut bytes).expect("open");
        for &found in &bytes[..count] {
            assert_eq!(found, byte(which, self.got), "flow {which} at {}", self.got);
            self.got += 1;
        }
    }
}

/// Copies `block` across, in pieces as there is room.
fn write_across(stack: &mut Stack, session: SessionId, block: &[u8]) -> usize {
    let mut rest = block;
    let fill = |piece: &mut [u8]| {
        let (now, later) = rest.split_at(piece.len());
        piece.copy_from_slice(now);
        rest = later;
    };
    stack
        .write_across(session, block.len(), fill)
        .expect("open")
}

fn run(seed: u64) -> (u64, u64) {
    let mut random = Random(seed);
    let windows = [4096, 20_000, 64 << 10, 1 << 20];
    let window = windows[random.below(4) as usize];
    let nic = if random.below(2) == 0 {
        plain(1)
    } else {
        offloading(1)
    };
    let mut alone = Alone::new(seed, &nic, window);
    let ends = alone.pair();
    let mut flows = [Flow::default(), Flow::default()];
    let before = alone.stack.counters();
    // Share of writes in segments, of eight.
    let plain_of_8 = random.below(8);
    for _ in 0..4000 {
        let which = random.below(2) as usize;
        let (writer, reader) = (ends[which], ends[1 - which]);
        let count = [1, 64, 3000, 40_000][random.below(4) as usize];
        let count = random.below(count) as usize + 1;
        match random.below(10) {
            0..4 => {
                let block = flows[which].block(which, count);
                flows[which].written += if random.below(8) < plain_of_8 {
                    alone.stack.write(writer, &block).expect("open")
                } else {
                    write_across(&mut alone.stack, writer, &block)
                };
            }
            4..6 => flows[which].read(&mut alone, which, reader, count),
            // Copied by the owners: only if it overtakes nothing.
            6 => {
                let flow = &mut flows[which];
                let carried = alone.stack.carry_across(writer, |other, room| {
                    assert_eq!(other, reader);
                    assert_eq!(flow.got, flow.written, "bytes on the way are overtaken");
                    count.min(room)
                });
                flow.written += carried;
                flow.got += carried;
            }
            7 => alone.send(),
            8 => alone.receive(random.below(4) as usize),
            _ => alone.now_ns += random.below(2 * MS),
        }
    }
    // All written data arrives; then both ends close in segments, in order.
    for _ in 0..10_000 {
        alone.settle();
        alone.now_ns += MS;
        for which in 0..2 {
            flows[which].read(&mut alone, which, ends[1 - which], 1 << 20);
        }
        if flows.iter().all(|flow| flow.got == flow.written) {
            break;
        }
    }
    for (which, flow) in flows.iter().enumerate() {
        assert_eq!(flow.got, flow.written, "flow {which}");
    }
    for session in ends {
        alone.stack.shutdown_write(session).expect("open");
        assert_eq!(write_across(&mut alone.stack, session, &[1]), 0);
    }
    alone.settle();
    for session in ends {
        let readiness = alone.stack.readiness(session).expect("known");
        assert!(readiness.end_of_input() && readiness.error.is_none());
    }
    let after = alone.stack.counters();
    // Frames queued here for long are retransmitted, and acknowledgments that copied bytes have
    // overtaken are old when they arrive; but no data is missing, and no session times out.
    let wrong = [
        after.timeouts,
        after.paws,
        after.resets_sent,
        after.out_of_order,
    ];
    assert_eq!(wrong, [0; 4], "{after:?}");
    let by_segments = after.segments_sent - before.segments_sent;
    (after.across_bytes, by_segments)
}

#[test]
fn no_byte_overtakes_another_and_the_ends_agree() {
    if let Ok(seed) = std::env::var("SIDECORE_SEED") {
        run(seed.parse().expect("a number"));
        return;
    }
    let (mut across, mut segments) = (0, 0);
    for seed in 0..200 {
        let outcome = std::panic::catch_unwind(|| run(seed));
        let Ok((bytes, sent)) = outcome else {
            panic!("SIDECORE_SEED={seed}");
        };
        across += bytes;
        segments += sent;
    }
    assert!(across > 10 << 20, "{across} bytes went across");
    assert!(segments > 10_000, "{segments} segments were sent");
}

#[test]
fn no_segment_is_sent_for_what_goes_across() {
    let mut alone = Alone::new(3, &plain(1), 1 << 20);
    let [client, server] = alone.pair();
    let before = alone.stack.counters();
    let mut got = vec![0; 60_000];
    for round in 0..50 {
        let block = vec![round; 60_000];
        assert_eq!(write_across(&mut alone.stack, client, &block), block.len());
        assert_eq!(
            alone.stack.read(server, &mut got).expect("open"),
            block.len()
        );
        assert_eq!(got, block);
    }
    let info = alone.stack.info(client).expect("known");
    assert_eq!(info.in_flight, 0);
    let after = alone.stack.counters();
    assert_eq!(after.across_bytes - before.across_bytes, 3_000_000);
    // The window advances with the reader, without segments.
    assert_eq!(after.segments_sent, before.segments_sent);
}

#[test]
fn what_has_a_word_to_say_goes_by_segments() {
    let mut alone = Alone::new(4, &plain(1), 1 << 16);
    let [client, server] = alone.pair();
    let mut asked = false;
    alone.stack.carry_across(client, |other, _| {
        asked = other == server;
        0
    });
    assert!(asked);
    // Bytes in flight are not overtaken.
    alone.stack.write(client, b"first").expect("open");
    assert_eq!(write_across(&mut alone.stack, client, b"not yet"), 0);
    alone.send();
    assert_eq!(write_across(&mut alone.stack, client, b"not yet"), 0);
    alone.settle();
    alone.now_ns += S;
    alone.settle();
    // All is acknowledged, and not read yet.
    assert_eq!(alone.stack.carry_across(client, |_, _| 1), 0);
    assert_eq!(write_across(&mut alone.stack, client, b" second"), 7);
    let mut got = [0; 32];
    let count = alone.stack.read(server, &mut got).expect("open");
    assert_eq!(&got[..count], b"first second");
    // A closed session does not read: its peer gets a reset, as usual.
    alone.stack.close(server).expect("open");
    assert_eq!(write_across(&mut alone.stack, client, b"third"), 0);
}

/// The reader's numbers advance as far as by segments: more than 2^31 bytes later, it ignored the
/// writer's window updates as old ones, and its own bytes waited for ever.
#[test]
fn after_gigabytes_across_a_window_update_is_new() {
    let mut alone = Alone::new(5, &plain(1), 1 << 20);
    let [client, server] = alone.pair();
    let mut carried = 0;
    while carried < 3 << 30 {
        let count = alone.stack.carry_across(client, |_, room| room);
        assert!(count > 0, "after {carried} bytes");
        carried += count;
    }
    // The other direction: until the window is full, and more that waits for it.
    let block = vec![7; 64 << 10];
    let mut written = 0;
    loop {
        let count = write_across(&mut alone.stack, server, &block);
        written += count;
        if count == 0 {
            break;
        }
    }
    written += alone.stack.write(server, &block).expect("open");
    alone.settle();
    let (mut got, mut bytes) = (0, vec![0; 256 << 10]);
    for _ in 0..100 {
        got += alone.stack.read(client, &mut bytes).expect("open");
        alone.settle();
        alone.now_ns += 100 * MS;
    }
    assert_eq!(got, written);
}

/// Bytes that go across count as received, so the rule for old timestamps does not lapse: it
/// dropped all segments that came after 24.8 days of them.
#[test]
fn after_weeks_across_a_segments_timestamp_is_new() {
    let mut alone = Alone::new(6, &plain(1), 1 << 20);
    let [client, server] = alone.pair();
    for _ in 0..26 {
        alone.now_ns += 24 * 3600 * S;
        alone.settle();
        assert_eq!(alone.stack.carry_across(client, |_, _| 1), 1);
    }
    let mut bytes = [0; 8];
    for (from, to) in [(client, server), (server, client)] {
        alone.stack.write(from, b"by segment").expect("open");
        alone.settle();
        assert_eq!(alone.stack.read(to, &mut bytes).expect("open"), 8);
    }
    assert_eq!(alone.stack.counters().paws, 0);
}
