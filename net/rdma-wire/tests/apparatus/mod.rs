//! Two ends, with a stream between them that is cut at random places.

#![allow(dead_code, reason = "each test file uses its part")]

use sidecore_random::choices::Choices;
use sidecore_rdma_wire::{
    Access, Buffers, Completion, Domain, Kind, Options, Pair, PairId, Piece, Pieces, Post, Receive,
    RegionId, Registration, Stag, Status, Work,
};

/// One end: a pair, its domain, its memory.
pub(crate) struct Side {
    pub(crate) pair: Pair,
    pub(crate) domain: Domain,
    pub(crate) memory: Buffers,
    pub(crate) region: RegionId,
    pub(crate) stag: Stag,
    pub(crate) base: u64,
}

pub(crate) fn all() -> Access {
    Access::LOCAL_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_WRITE
        | Access::REMOTE_ATOMIC
        | Access::REMOTE_INVALIDATE
}

impl Side {
    pub(crate) fn new(pair: Pair, bytes: usize, base: u64) -> Self {
        let mut domain = Domain::new(64, [(base >> 16) as u8; 16]);
        let mut memory = Buffers::default();
        let region = memory.add(
            (0..bytes)
                .map(|byte| (byte as u64 * 7 + (base >> 16)) as u8)
                .collect(),
        );
        let registration = Registration {
            region,
            base,
            bytes: bytes as u64,
            access: all(),
            pair: None,
        };
        let stag = domain.register(registration).expect("room for one");
        Self {
            pair,
            domain,
            memory,
            region,
            stag,
            base,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.bytes(self.region)
    }

    pub(crate) fn piece(&self, at: u64, bytes: u32) -> Piece {
        Piece {
            stag: self.stag,
            offset: self.base + at,
            bytes,
        }
    }

    pub(crate) fn pieces(&self, at: u64, bytes: u32) -> Pieces {
        Pieces::from_iter([self.piece(at, bytes)])
    }

    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.pair.receive(bytes, &mut self.domain, &mut self.memory);
    }

    /// Everything that it sends now.
    pub(crate) fn transmit(&mut self) -> Vec<u8> {
        let mut stream = Vec::new();
        let mut target = vec![0; 66_560];
        loop {
            let count = self
                .pair
                .transmit(&mut target, &self.domain, &mut self.memory);
            if count == 0 {
                return stream;
            }
            stream.extend_from_slice(&target[..count]);
        }
    }

    pub(crate) fn completions(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.pair.poll()).collect()
    }
}

/// An initiator and a responder that have not exchanged start frames.
pub(crate) fn ends(initiator: Options, responder: Options, bytes: usize) -> [Side; 2] {
    let pair = Pair::connect(PairId(1), initiator, b"from the initiator").expect("short");
    let other = Pair::listen(PairId(2), responder);
    [
        Side::new(pair, bytes, 0x1_0000),
        Side::new(other, bytes, 0x5_0000),
    ]
}

/// Carries both sides' streams until nothing is left, in pieces of random lengths.
pub(crate) fn settle([a, b]: &mut [Side; 2], choices: &mut Choices) {
    for _ in 0..10_000 {
        let mut went = false;
        went |= pass(a, b, choices);
        went |= pass(b, a, choices);
        if !went {
            return;
        }
    }
    panic!("it never ends");
}

fn pass(from: &mut Side, to: &mut Side, choices: &mut Choices) -> bool {
    let stream = from.transmit();
    let mut rest = &stream[..];
    while !rest.is_empty() {
        let count = match choices.below(3) {
            0 => 1 + choices.below(9) as usize,
            1 => 1 + choices.below(3000) as usize,
            _ => rest.len(),
        };
        let (now, later) = rest.split_at(count.min(rest.len()));
        to.receive(now);
        rest = later;
    }
    !stream.is_empty()
}

/// Two ends that are open.
pub(crate) fn opened(initiator: Options, responder: Options, bytes: usize) -> [Side; 2] {
    let mut choices = Choices::seeded(9);
    let mut ends = ends(initiator, responder, bytes);
    settle(&mut ends, &mut choices);
    ends[1]
        .pair
        .accept(b"from the responder")
        .expect("a request");
    settle(&mut ends, &mut choices);
    ends
}

/// Posts work that there is room for.
pub(crate) fn post(side: &mut Side, id: u64, work: Work) {
    let post = Post {
        id,
        work,
        fence: false,
    };
    side.pair
        .post(post, &side.domain)
        .expect("room in the queue");
}

/// Posts a receive that there is room for.
pub(crate) fn post_receive(side: &mut Side, id: u64, pieces: Pieces) {
    let receive = Receive { id, pieces };
    side.pair
        .post_receive(receive, &side.domain)
        .expect("room in the queue");
}

/// The completion of work that succeeded.
pub(crate) fn done(id: u64, kind: Kind, bytes: u32) -> Completion {
    Completion {
        id,
        kind,
        status: Status::Done,
        bytes,
        immediate: None,
        invalidated: None,
        solicited: false,
        original: None,
    }
}
