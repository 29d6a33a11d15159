//! Puts, gets and messages both ways between two stacks over a link that loses one frame in a
//! hundred, and delays others until later ones have passed: every byte is compared. In virtual
//! time, from a seed; nothing here blocks.
//!
//! `SIDECORE_RDMA_BYTES=1073741824 cargo test -p sidecore-rdma --test suite lossy:: -- --nocapture`
//! moves that many bytes each way; a failure prints its seed, and `SIDECORE_SEED=n` runs that one
//! alone.
#![allow(clippy::print_stdout)] // what the link did

#[path = "../../../stack/tests/common/mod.rs"]
mod common;

use common::{Impairment, MS, S, World, offloading, plain, v4};
use sidecore_net_stack::SessionId;
use sidecore_rdma_wire::{
    Access, Buffers, Domain, Kind, Options, Pair, PairId, Piece, Pieces, Post, ReadyBy, Receive,
    RegionId, Registration, Remote, Setup, Stag, State, Status, Work,
};

/// Bytes each way, by default.
const BYTES: u64 = 3 << 20;
/// One put or get.
const BLOCK: usize = 100_000;
/// Blocks of one side in transit at a time; each has a slot in the peer's memory.
const SLOTS: u64 = 4;
/// Posted receives: a block's message and a reply for each slot.
const RECEIVES: u64 = 2 * SLOTS;
/// Virtual time for 3 MiB; a stall takes longer.
const VIRTUAL_NS: u64 = 60 * S;
const UNIT_BYTES: usize = 1448;

/// The byte of a block at `offset`; the period divides no power of two.
fn byte(side: usize, block: u64, offset: usize) -> u8 {
    ((offset % 65_521) as u64 * 7 + block * 13 + side as u64 * 31) as u8
}

/// One end: memory, a queue pair, and its session.
struct End {
    side: usize,
    session: SessionId,
    pair: Pair,
    domain: Domain,
    memory: Buffers,
    region: RegionId,
    stag: Stag,
    /// The peer's tag.
    there: Stag,
    output: Vec<u8>,
    /// Blocks started on this side, and the first of them that the peer has not compared.
    begun: u64,
    done: u64,
    /// Slots from that block on that the peer has compared out of order.
    answered: [bool; SLOTS as usize],
    /// Blocks of the peer compared on this side.
    compared: u64,
}

/// Memory of an end: blocks to send, then the peer's, then those fetched from the peer.
const FROM: usize = 0;
const INTO: usize = SLOTS as usize * BLOCK;
const FETCHED: usize = 2 * INTO;

impl End {
    fn new(side: usize, session: SessionId, crc: bool) -> Self {
        let mut domain = Domain::new(8, [side as u8 + 1; 16]);
        let mut memory = Buffers::default();
        let bytes = FETCHED + SLOTS as usize * BLOCK;
        let region = memory.add(vec![0; bytes]);
        let registration = Registration {
            region,
            base: 0,
            bytes: bytes as u64,
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
            pair: None,
        };
        let stag = domain.register(registration).expect("room");
        let options = Options {
            crc,
            segment_bytes: UNIT_BYTES,
            setup: Setup::PeerToPeer(ReadyBy::Message),
            ..Options::default()
        };
        let id = PairId(side as u32);
        let pair = match side {
            0 => Pair::connect(id, options, &stag.0.to_be_bytes()).expect("short data"),
            _ => Pair::listen(id, options),
        };
        Self {
            side,
            session,
            pair,
            domain,
            memory,
            region,
            stag,
            there: Stag(0),
            output: Vec::new(),
            begun: 0,
            done: 0,
            answered: [false; SLOTS as usize],
            compared: 0,
        }
    }

    fn piece(&self, offset: usize, bytes: usize) -> Piece {
        Piece {
            stag: self.stag,
            offset: offset as u64,
            bytes: bytes as u32,
        }
    }

    fn post(&mut self, id: u64, work: Work) {
        let post = Post {
            id,
            work,
            fence: false,
        };
        self.pair.post(post, &self.domain).expect("room");
    }

    fn post_receive(&mut self) {
        let pieces = Pieces::from_iter([self.piece(0, 0)]);
        let receive = Receive { id: 0, pieces };
        self.pair.post_receive(receive, &self.domain).expect("room");
    }

    fn learn(&mut self) {
        let told = self.pair.private_data().try_into().expect("four bytes");
        self.there = Stag(u32::from_be_bytes(told));
        for _ in 0..RECEIVES {
            self.post_receive();
        }
    }

    /// Starts blocks as far as there are slots: two puts, then one that the peer fetches.
    fn begin(&mut self, blocks: u64) {
        while self.begun < blocks && self.begun < self.done + SLOTS {
            let block = self.begun;
            let slot = (block % SLOTS) as usize * BLOCK;
            let side = self.side;
            let own = &mut self.memory.bytes_mut(self.region)[FROM + slot..][..BLOCK];
            for (offset, target) in own.iter_mut().enumerate() {
                *target = byte(side, block, offset);
            }
            if block % 3 != 2 {
                let pieces = Pieces::from_iter([self.piece(FROM + slot, BLOCK)]);
                let remote = Remote {
                    stag: self.there,
                    offset: (INTO + slot) as u64,
                };
                self.post(block, Work::Write { pieces, remote });
            }
            let value = block << 1;
            let solicited = false;
            self.post(block, Work::Immediate { value, solicited });
            self.begun += 1;
        }
    }

    fn compare(&mut self, block: u64, at: usize) {
        let found = &self.memory.bytes(self.region)[at..at + BLOCK];
        let theirs = 1 - self.side;
        for (offset, &found) in found.iter().enumerate() {
            assert_eq!(
                found,
                byte(theirs, block, offset),
                "block {block} at {offset}"
            );
        }
        self.compared += 1;
        let (value, solicited) = (block << 1 | 1, false);
        self.post(block, Work::Immediate { value, solicited });
    }

    fn complete(&mut self) {
        while let Some(completion) = self.pair.poll() {
            assert_eq!(completion.status, Status::Done, "{completion:?}");
            match (completion.kind, completion.immediate) {
                (Kind::Receive, Some(value)) => {
                    self.post_receive();
                    let (block, is_answer) = (value >> 1, value & 1 == 1);
                    let slot = (block % SLOTS) as usize * BLOCK;
                    if is_answer {
                        // A fetched block is answered later than the put after it.
                        let answered = &mut self.answered[(block % SLOTS) as usize];
                        assert!(!std::mem::replace(answered, true), "block {block} twice");
                        while std::mem::take(&mut self.answered[(self.done % SLOTS) as usize]) {
                            self.done += 1;
                        }
                    } else if block % 3 == 2 {
                        let into = self.piece(FETCHED + slot, BLOCK);
                        let remote = Remote {
                            stag: self.there,
                            offset: (FROM + slot) as u64,
                        };
                        self.post(block, Work::Read { into, remote });
                    } else {
                        self.compare(block, INTO + slot);
                    }
                }
                (Kind::Read, _) => {
                    let slot = (completion.id % SLOTS) as usize * BLOCK;
                    self.compare(completion.id, FETCHED + slot);
                }
                _ => {}
            }
        }
    }

    /// Makes progress between the session and the pair.
    fn progress(&mut self, world: &mut World) {
        let stack = &mut world.stacks[self.side];
        let taken = {
            let pieces = stack.peek(self.session).expect("open");
            let mut taken = 0;
            for piece in pieces {
                taken += self.pair.receive(piece, &mut self.domain, &mut self.memory);
            }
            taken
        };
        stack.consume(self.session, taken).expect("open");
        if self.pair.state() == State::Requested {
            self.pair.accept(&self.stag.0.to_be_bytes()).expect("asked");
        }
        if self.pair.state() == State::Open && self.there == Stag(0) {
            self.learn();
        }
        loop {
            if self.output.is_empty() {
                self.output.resize(UNIT_BYTES, 0);
                let count = self
                    .pair
                    .transmit(&mut self.output, &self.domain, &mut self.memory);
                self.output.truncate(count);
            }
            if self.output.is_empty() {
                return;
            }
            let stack = &mut world.stacks[self.side];
            let gone = stack.write(self.session, &self.output).expect("open");
            self.output.drain(..gone);
            if !self.output.is_empty() {
                return;
            }
        }
    }
}

/// Losses and reorderings of a run.
struct Impaired {
    retransmitted: u64,
    out_of_order: u64,
    virtual_ns: u64,
}

fn run(seed: u64, bytes: u64) -> Impaired {
    let nics = match seed % 2 {
        0 => [plain(1), plain(2)],
        _ => [offloading(1), offloading(2)],
    };
    let mut world = World::with(seed, nics, |_| {});
    world.impairment = Impairment {
        loss: 10_000,
        reorder: 20_000,
        duplicate: 1_000,
        delay_ns: 50_000,
        ..Impairment::default()
    };
    let listener = world.stacks[1].listen(v4(2, 7174), 1).expect("listens");
    let client = world.stacks[0]
        .connect(v4(2, 7174), None)
        .expect("connects");
    let server = loop {
        world.run(MS);
        if let Some(server) = world.stacks[1].accept(listener).expect("listens") {
            break server;
        }
    };
    let crc = seed % 4 < 2;
    let mut ends = [End::new(0, client, crc), End::new(1, server, crc)];
    let blocks = bytes.div_ceil(BLOCK as u64);
    let until_ns = world.now_ns + VIRTUAL_NS * bytes.div_ceil(BYTES);
    while ends
        .iter()
        .any(|end| end.done < blocks || end.compared < blocks)
    {
        for end in &mut ends {
            end.progress(&mut world);
            end.complete();
            if end.there != Stag(0) {
                end.begin(blocks);
            }
            end.progress(&mut world);
        }
        world.step(until_ns);
        assert!(world.now_ns < until_ns, "it does not get on");
    }
    assert_eq!(ends[0].pair.has_crc(), crc);
    let counters = world.stacks.map(|stack| stack.counters());
    Impaired {
        retransmitted: counters.iter().map(|one| one.retransmitted).sum(),
        out_of_order: counters.iter().map(|one| one.out_of_order).sum(),
        virtual_ns: world.now_ns,
    }
}

#[test]
fn every_byte_is_right_through_loss_and_reordering() {
    let bytes = std::env::var("SIDECORE_RDMA_BYTES");
    let bytes = bytes.map_or(BYTES, |bytes| bytes.parse().expect("a number of bytes"));
    let only = std::env::var("SIDECORE_SEED");
    let seeds = match only.map(|seed| seed.parse().expect("a number")) {
        Ok(seed) => seed..seed + 1,
        Err(_) if bytes > BYTES => 0..2,
        Err(_) => 0..8,
    };
    let (mut retransmitted, mut out_of_order) = (0, 0);
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| run(seed, bytes));
        let Ok(impaired) = outcome else {
            panic!("SIDECORE_SEED={seed}");
        };
        println!(
            "seed {seed}: {bytes} bytes each way in {} ms of virtual time, {} segments sent again, \
             {} out of order",
            impaired.virtual_ns / MS,
            impaired.retransmitted,
            impaired.out_of_order,
        );
        retransmitted += impaired.retransmitted;
        out_of_order += impaired.out_of_order;
    }
    assert!(
        retransmitted > 0 && out_of_order > 0,
        "the link was perfect"
    );
}
