//! A queue pair under attack: a peer driven by a fuzzer, decision by decision, against a model.
//!
//! The peer's segments are mostly complete, with a correct CRC and plausible fields, so that the
//! code behind the framing is reached; some are damaged, some are noise. After each, memory,
//! completions, responses and the terminate code must match the model, which knows nothing of
//! streams, units and pairs. After noise the model is out of step; then memory that this peer has
//! no right to write must still be unchanged.

mod model;
mod segments;

use model::{Model, Outcome};
use sidecore_random::choices::Choices;
use sidecore_rdma_wire::framing::{Deframer, Framer, Step};
use sidecore_rdma_wire::wire::ddp::{ATOMIC_BYTES, Header, Opcode, READ_BYTES};
use sidecore_rdma_wire::wire::mpa::{Enhanced, Side, Start};
use sidecore_rdma_wire::wire::terminate::Cause;
use sidecore_rdma_wire::{
    Access, Atomic, Buffers, Completion, Domain, End, Options, Pair, PairId, Piece, Pieces, Post,
    Receive, RegionId, Registration, Remote, Stag, State, Status, Work,
};

/// Steps of one input.
const STEPS_MAX: usize = 64;
/// Bytes of each region.
const REGION_BYTES: usize = 320;
/// Outstanding reads and atomics, each way.
const READS: usize = 4;
/// Receives posted at a time.
const RECEIVES: usize = 6;
/// The pair that is fuzzed, and another of its domain.
const PAIR: PairId = PairId(1);
const OTHER: PairId = PairId(2);

/// Each region: tagged offset of its first byte, rights, the only pair.
const REGIONS: [(u64, Access, Option<PairId>); REGION_COUNT] = [
    (0x1000, Access::NONE, None),
    (0x4000, Access::REMOTE_WRITE, Some(PAIR)),
    (0x4000, Access::REMOTE_WRITE, Some(OTHER)),
    (64, Access::LOCAL_WRITE, None),
    (u64::MAX - 400, Access::REMOTE_INVALIDATE, None),
    (0, Access::REMOTE_READ, None),
    (0, Access::REMOTE_ATOMIC, None),
    (0x1000, Access::NONE, None),
];
/// Number of regions.
const REGION_COUNT: usize = 8;
/// Memory that the pair sends from.
const SENT: usize = 7;
/// Memory that its receives and reads go to.
const RECEIVED: usize = 3;
/// Regions that no peer of this pair may write, whatever it sends.
const PROTECTED: [usize; 4] = [2, 5, 7, 0];

/// Messages by their frequency.
const LIKELY: [Opcode; 16] = [
    Opcode::Write,
    Opcode::Send,
    Opcode::ReadRequest,
    Opcode::AtomicRequest,
    Opcode::Write,
    Opcode::Send,
    Opcode::ReadRequest,
    Opcode::AtomicRequest,
    Opcode::Write,
    Opcode::Send,
    Opcode::SendSolicited,
    Opcode::SendInvalidate,
    Opcode::SendSolicitedInvalidate,
    Opcode::Immediate,
    Opcode::ImmediateSolicited,
    Opcode::Write,
];

fn rights(index: usize) -> Access {
    let all = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
    match index {
        // A region with all rights, so that bounds faults are reached by all messages.
        1 | 4 => REGIONS[index].1 | all,
        _ => REGIONS[index].1,
    }
}

/// One input: the decisions of a peer and of an application.
///
/// # Panics
/// If an invariant is violated.
pub fn fuzz_stream(data: &[u8]) -> Seen {
    let mut choices = Choices::of(data);
    if choices.below(16) == 0 {
        start_with_noise(&mut choices);
        return Seen::default();
    }
    let mut attacked = Attacked::new(&mut choices);
    let mut steps = 0;
    while !choices.is_over() && steps < STEPS_MAX {
        attacked.step(&mut choices);
        steps += 1;
    }
    attacked.drain();
    attacked.compare();
    if !attacked.lost
        && let Outcome::Told(cause) = attacked.model.outcome
    {
        attacked.seen.told = Some(cause);
    }
    attacked.seen
}

/// Effects of an input, while the model was in step.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// The fault that was reported to the peer.
    pub told: Option<Cause>,
    /// Segments that the pair accepted, and stayed open.
    pub segments: usize,
    /// Segments that it sent.
    pub sent: usize,
    /// Completions other than flushes.
    pub completions: usize,
    /// Bytes that were placed out of order.
    pub ahead: usize,
}

/// Seed inputs: arbitrary decisions.
#[must_use]
pub fn seeds() -> Vec<Vec<u8>> {
    let mut random = Choices::seeded(5);
    (1..=16).map(|tens| random.take(40 * tens)).collect()
}

/// A damaged start frame, or none at all.
fn start_with_noise(choices: &mut Choices) {
    let mut domain = Domain::new(1, [0; 16]);
    let mut memory = Buffers::default();
    let is_initiator = choices.below(2) == 1;
    let mut pair = if is_initiator {
        Pair::connect(PAIR, Options::default(), b"hello").expect("a short greeting")
    } else {
        Pair::listen(PAIR, Options::default())
    };
    let mut bytes = start_frame(choices, !is_initiator).bytes();
    for _ in 0..choices.below(4) {
        let index = choices.below(bytes.len() as u64) as usize;
        bytes[index] = choices.below(256) as u8;
    }
    let noise = choices.below(64) as usize;
    bytes.extend(choices.take(noise));
    for piece in bytes.chunks(1 + choices.below(40) as usize) {
        pair.receive(piece, &mut domain, &mut memory);
    }
    let mut target = [0; 600];
    if pair.state() == State::Requested {
        let accepted = pair.accept(&bytes[..bytes.len().min(500)]);
        assert_eq!(accepted, Ok(()));
        pair.receive(&bytes, &mut domain, &mut memory);
    }
    for _ in 0..4 {
        pair.transmit(&mut target, &domain, &mut memory);
    }
    assert!(!pair.wants_to_transmit() || pair.state() == State::Open);
}

fn start_frame(choices: &mut Choices, initiator: bool) -> Start {
    let side = if initiator {
        Side::Initiator
    } else {
        Side::Responder
    };
    let revision = 1 + choices.below(2) as u8;
    let enhanced = (revision == 2 && choices.below(2) == 1).then_some(Enhanced {
        peer_to_peer: false,
        ready_by_empty: false,
        ready_by_write: false,
        ready_by_read: false,
        ird: READS as u16,
        ord: READS as u16,
    });
    let private = choices.below(8) as usize;
    Start {
        side,
        markers: choices.below(2) == 1,
        crc: choices.below(2) == 1,
        reject: false,
        revision,
        enhanced,
        private_data: choices.take(private),
    }
}

/// A pair, its peer, and the model.
struct Attacked {
    pair: Pair,
    domain: Domain,
    memory: Buffers,
    regions: [RegionId; REGION_COUNT],
    tags: [Stag; REGION_COUNT],
    model: Model,
    /// The peer's side of the stream.
    framer: Framer,
    deframer: Deframer,
    /// Noise was sent.
    lost: bool,
    id: u64,
    /// Bytes of units that the peer has created.
    sent: u64,
    seen: Seen,
}

impl Attacked {
    fn new(choices: &mut Choices) -> Self {
        let options = Options {
            crc: choices.below(4) != 0,
            markers: choices.below(4) == 0,
            immediate_without_receive: choices.below(4) == 0,
            ird: READS as u16,
            ord: READS as u16,
            send_depth: 16,
            receive_depth: RECEIVES,
            segment_bytes: 128 + 4 * choices.below(64) as usize,
            ..Options::default()
        };
        let is_initiator = choices.below(2) == 1;
        let start = start_frame(choices, !is_initiator);
        let mut domain = Domain::new(REGION_COUNT, [7; 16]);
        let mut memory = Buffers::default();
        let mut regions = [RegionId(0); REGION_COUNT];
        let mut tags = [Stag(0); REGION_COUNT];
        for (index, &(base, _, pair)) in REGIONS.iter().enumerate() {
            let bytes = (0..REGION_BYTES)
                .map(|byte| (byte * (index + 3)) as u8)
                .collect();
            regions[index] = memory.add(bytes);
            let registration = Registration {
                region: regions[index],
                base,
                bytes: REGION_BYTES as u64,
                access: rights(index),
                pair,
            };
            tags[index] = domain.register(registration).expect("room for all");
        }
        let mut pair = if is_initiator {
            Pair::connect(PAIR, options, b"").expect("no private data")
        } else {
            Pair::listen(PAIR, options)
        };
        pair.receive(&start.bytes(), &mut domain, &mut memory);
        if !is_initiator {
            assert_eq!(pair.private_data(), start.private_data);
            pair.accept(b"welcome").expect("a request is there");
        }
        let mut start_out = [0; 600];
        let gone = pair.transmit(&mut start_out, &domain, &mut memory);
        let side = if is_initiator {
            Side::Initiator
        } else {
            Side::Responder
        };
        let own = Start::read(&start_out[..gone], side).expect("a start frame");
        let (own, _) = own.expect("all of it");
        assert_eq!(pair.state(), State::Open);
        let crc = own.crc || start.crc;
        assert_eq!(pair.has_crc(), crc);
        let free = options.immediate_without_receive;
        let model = Model::new(&memory, &regions, &tags, is_initiator, free);
        Self {
            pair,
            domain,
            memory,
            regions,
            tags,
            model,
            framer: Framer::new(crc, options.markers),
            deframer: Deframer::new(crc, start.markers),
            lost: false,
            id: 0,
            sent: 0,
            seen: Seen::default(),
        }
    }

    fn step(&mut self, choices: &mut Choices) {
        match choices.below(64) {
            0..=35 => {
                let (header, payload) = self.segment(choices);
                self.deliver(&header, &payload, choices);
            }
            36..=40 => self.ahead(choices),
            41 => self.damage(choices),
            42 => self.noise(choices),
            43..=52 => self.post_receive(choices),
            53..=61 => self.post(choices),
            62 => {
                let index = choices.below(REGION_COUNT as u64) as usize;
                let gone = self.domain.deregister(self.tags[index]).is_some();
                assert!(self.model.deregister(index) == gone || self.lost);
            }
            _ => {
                // The peer's stream may end anywhere.
                if choices.below(4) == 0 {
                    self.pair.receive_end();
                    self.model.end(None);
                }
            }
        }
        if choices.below(4) != 0 {
            self.drain();
        }
        self.compare();
    }

    fn unit(&mut self, header: &Header, payload: &[u8]) -> Vec<u8> {
        let unit = unit_of(&mut self.framer, header, payload);
        self.sent += unit.len() as u64;
        unit
    }

    fn deliver(&mut self, header: &Header, payload: &[u8], choices: &mut Choices) {
        let unit = self.unit(header, payload);
        self.arrive(&unit, choices);
        self.model.segment(header, payload);
        self.seen.segments += usize::from(!self.lost && self.model.outcome == Outcome::Open);
    }

    fn arrive(&mut self, unit: &[u8], choices: &mut Choices) {
        let step = match choices.below(4) {
            0 => 1 + choices.below(unit.len() as u64) as usize,
            _ => unit.len(),
        };
        for piece in unit.chunks(step) {
            self.pair.receive(piece, &mut self.domain, &mut self.memory);
        }
    }

    /// Two to four segments, the later ones of which are also seen out of order.
    fn ahead(&mut self, choices: &mut Choices) {
        let count = 2 + choices.below(3);
        let mut units = Vec::new();
        for _ in 0..count {
            let (header, payload) = self.segment(choices);
            let position = self.sent;
            let unit = self.unit(&header, &payload);
            // A peer that lies: the bytes in order differ from those seen out of order.
            let mut seen = unit.clone();
            if choices.below(4) == 3 && payload.len() > 1 {
                let other: Vec<u8> = payload.iter().map(|byte| !byte).collect();
                seen = unit_of(&mut Framer::new(true, false), &header, &other);
            }
            units.push((position, unit, seen, header, payload));
        }
        // Data placed out of order may be overwritten by earlier segments; responses must not be
        // visible to a read of ours that another segment ends. Memory is compared once all have
        // arrived.
        let was_open = self.pair.state() == State::Open && !self.lost;
        for (position, _, seen, ..) in units.iter().rev() {
            if choices.below(4) != 0 {
                let (domain, memory) = (&self.domain, &mut self.memory);
                self.seen.ahead += self.pair.place_ahead(*position, seen, domain, memory);
            }
        }
        let mut is_exact = true;
        for (_, unit, _, header, payload) in &units {
            self.arrive(unit, choices);
            self.model.segment(header, payload);
            // Requests may see data placed out of order before them, as the RFCs allow; and data
            // placed out of order after a fault stays.
            is_exact &= header.opcode != Opcode::AtomicRequest as u8
                && header.opcode != Opcode::ReadRequest as u8;
        }
        is_exact &= self.pair.state() == State::Open;
        if was_open && !is_exact {
            self.lost = true;
        }
    }

    fn damage(&mut self, choices: &mut Choices) {
        let (header, payload) = self.segment(choices);
        let mut unit = self.unit(&header, &payload);
        // After the length, which only determines how much is awaited.
        let index = 8 + choices.below(unit.len() as u64 - 8) as usize;
        unit[index] ^= 1 << choices.below(8);
        self.arrive(&unit, choices);
        if self.pair.has_crc() {
            self.model.end(Some(Cause::Crc));
        } else {
            self.lost = true;
        }
    }

    fn noise(&mut self, choices: &mut Choices) {
        let bytes = 1 + choices.below(100) as usize;
        let noise = choices.take(bytes);
        self.arrive(&noise, choices);
        self.lost = true;
    }

    fn pieces(&self, index: usize, choices: &mut Choices) -> Pieces {
        let mut pieces = Pieces::new();
        for _ in 0..1 + choices.below(3) {
            let within = choices.below(REGION_BYTES as u64 + 1);
            let bytes = choices.below(REGION_BYTES as u64 + 1 - within) as u32;
            pieces.push(Piece {
                stag: self.tags[index],
                offset: REGIONS[index].0 + within,
                bytes,
            });
        }
        pieces
    }

    fn post_receive(&mut self, choices: &mut Choices) {
        self.id += 1;
        let pieces = self.pieces(RECEIVED, choices);
        let receive = Receive {
            id: self.id,
            pieces,
        };
        let posted = self
            .pair
            .post_receive(receive.clone(), &self.domain)
            .is_ok();
        if !self.lost {
            assert_eq!(posted, self.model.post_receive(receive));
        }
    }

    fn post(&mut self, choices: &mut Choices) {
        self.id += 1;
        let remote = Remote {
            stag: Stag(choices.bits() as u32),
            offset: choices.bits(),
        };
        let work = match choices.below(5) {
            0 => Work::Send {
                pieces: self.pieces(SENT, choices),
                invalidate: None,
                solicited: choices.below(2) == 1,
            },
            1 => Work::Write {
                pieces: self.pieces(SENT, choices),
                remote,
            },
            2 => Work::Atomic {
                atomic: Atomic::Add(choices.bits()),
                remote,
            },
            _ => {
                let mut into = self.pieces(RECEIVED, choices)[0];
                into.bytes = into.bytes.min(100);
                Work::Read { into, remote }
            }
        };
        let post = Post {
            id: self.id,
            work,
            fence: false,
        };
        let posted = self.pair.post(post.clone(), &self.domain).is_ok();
        if !self.lost {
            assert_eq!(posted, self.model.post(post), "{:?}", self.pair);
        }
    }

    /// Takes everything that the pair sends.
    fn drain(&mut self) {
        let mut target = [0; 1024];
        let mut stream = Vec::new();
        loop {
            let count = self
                .pair
                .transmit(&mut target, &self.domain, &mut self.memory);
            if count == 0 {
                break;
            }
            assert!(stream.len() < 1 << 16, "more is sent than was asked for");
            stream.extend_from_slice(&target[..count]);
        }
        let mut sent = Vec::new();
        let mut rest = &stream[..];
        while !rest.is_empty() {
            match self
                .deframer
                .step(&mut rest)
                .expect("what we send is well-formed")
            {
                Step::More => panic!("units are sent whole"),
                Step::There(segment, ..) => sent.push(segment.to_vec()),
                Step::Held(..) => {
                    let held = self.deframer.take_held();
                    sent.push(held.clone());
                    self.deframer.give_back(held);
                }
            }
        }
        let messages: Vec<(Header, Vec<u8>)> = sent
            .iter()
            .map(|segment| {
                let (header, payload) = Header::read(segment).expect("a header");
                (header, payload.to_vec())
            })
            .collect();
        if !self.lost {
            self.seen.sent += messages.len();
            self.model.drained(&messages);
        }
    }

    fn compare(&mut self) {
        let mut completions = Vec::<Completion>::new();
        while let Some(completion) = self.pair.poll() {
            completions.push(completion);
        }
        if self.lost {
            for index in PROTECTED {
                let first = Model::first_bytes(index);
                assert_eq!(
                    self.memory.bytes(self.regions[index]),
                    first,
                    "region {index}"
                );
            }
            return;
        }
        for index in 0..REGION_COUNT {
            let (own, other) = (
                self.memory.bytes(self.regions[index]),
                self.model.bytes(index),
            );
            assert_eq!(own, other, "region {index}");
        }
        assert_eq!(completions, self.model.completions());
        let done = completions.iter().filter(|one| one.status == Status::Done);
        self.seen.completions += done.count();
        let outcome = match self.pair.end() {
            None => Outcome::Open,
            Some(End::Sent(terminate)) => Outcome::Told(terminate.cause().expect("a known one")),
            Some(_) => Outcome::Over,
        };
        assert_eq!(outcome, self.model.outcome);
    }
}

fn unit_of(framer: &mut Framer, header: &Header, payload: &[u8]) -> Vec<u8> {
    let segment = [header.bytes().as_slice(), payload].concat();
    let mut unit = vec![0; segment.len() + 64];
    let count = framer.write(&mut unit, segment.len(), |target| {
        target.copy_from_slice(&segment);
        Ok::<_, std::convert::Infallible>(())
    });
    unit.truncate(count.unwrap_or_else(|never| match never {}));
    unit
}

const _: () = assert!(READ_BYTES == 28 && ATOMIC_BYTES == 52);
