//! Peers that violate the rules: each gets its own terminate code, and only harms itself.

mod apparatus;

use apparatus::{Side, all, ends, opened, settle};
use sidecore_random::choices::Choices;
use sidecore_rdma_wire::wire::ddp::{AtomicRequest, Header, Opcode, ReadRequest, Target};
use sidecore_rdma_wire::wire::terminate::{Cause, Terminate};
use sidecore_rdma_wire::{
    Access, End, Kind, Options, Pair, PairId, Post, ReadyBy, Receive, Registration, Remote, Setup,
    Stag, StartFault, State, Status, Work,
};

/// A unit of MPA, built without the crate: a length, a segment, padding, a CRC bit by bit.
fn unit(segment: &[u8]) -> Vec<u8> {
    let mut unit = (segment.len() as u16).to_be_bytes().to_vec();
    unit.extend_from_slice(segment);
    unit.resize(unit.len().next_multiple_of(4), 0);
    let mut crc = u32::MAX;
    for &byte in &unit {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    unit.extend_from_slice(&(!crc).to_le_bytes());
    unit
}

fn segment(last: bool, opcode: Opcode, target: Target, payload: &[u8]) -> Vec<u8> {
    [
        Header::new(last, opcode, target).bytes().as_slice(),
        payload,
    ]
    .concat()
}

fn untagged(queue: u32, msn: u32, offset: u32) -> Target {
    Target::Untagged {
        invalidate: Stag(0),
        queue,
        msn,
        offset,
    }
}

/// The terminate message of the pair.
fn told(side: &mut Side) -> Terminate {
    let stream = side.transmit();
    let length = usize::from(u16::from_be_bytes([stream[0], stream[1]]));
    assert_eq!(
        unit(&stream[2..2 + length]),
        stream,
        "one unit and nothing else"
    );
    let (header, payload) = Header::read(&stream[2..2 + length]).expect("a header");
    let last_words = Header::new(true, Opcode::Terminate, untagged(2, 1, 0));
    assert_eq!(header, last_words);
    Terminate::read(payload).expect("a terminate message")
}

/// A responder with a receive of 100 bytes, and the facts that a peer needs.
fn responder() -> Side {
    let options = Options {
        ird: 2,
        ..Options::default()
    };
    let [_, mut b] = opened(options, options, 1000);
    let receive = Receive {
        id: 7,
        pieces: b.pieces(0, 100),
    };
    b.pair.post_receive(receive, &b.domain).expect("room");
    b
}

/// Sends segments to a new responder: the last of them must end it with `cause`, all its work must
/// be flushed and its memory unchanged, except by earlier segments.
fn expect(cause: Cause, segments: impl FnOnce(&mut Side) -> Vec<Vec<u8>>) {
    let mut b = responder();
    let segments = segments(&mut b);
    let (bad, good) = segments.split_last().expect("a segment");
    for segment in good {
        b.receive(&unit(segment));
        assert_eq!(b.pair.state(), State::Open, "{cause:?}: {:?}", b.pair.end());
    }
    b.transmit();
    let before = b.bytes().to_vec();
    b.receive(&unit(bad));
    let words = told(&mut b);
    assert_eq!(words.cause(), Some(cause));
    assert_eq!(
        words.segment_bytes.map(usize::from),
        Some(bad.len()),
        "{cause:?}"
    );
    assert!(
        bad.starts_with(&words.ddp) && words.ddp.len() >= 14,
        "{cause:?}"
    );
    assert_eq!(b.pair.end(), Some(&End::Sent(words)));
    assert_eq!(b.bytes(), before, "{cause:?}");
    // It has ended: nothing sent or received has an effect.
    assert_eq!(b.pair.state(), State::Ended);
    let tag = b.stag;
    let offset = b.base;
    let write = segment(
        true,
        Opcode::Write,
        Target::Tagged { stag: tag, offset },
        &[9; 9],
    );
    b.receive(&unit(&write));
    assert_eq!(b.bytes(), before);
    assert!(b.transmit().is_empty() && b.pair.wants_shutdown());
    let receives: Vec<_> = b
        .completions()
        .into_iter()
        .map(|one| (one.id, one.status))
        .collect();
    assert!(
        matches!(receives[..], [(7, Status::Flushed | Status::Done)]),
        "{receives:?}"
    );
}

fn write(stag: Stag, offset: u64) -> Vec<Vec<u8>> {
    vec![segment(
        true,
        Opcode::Write,
        Target::Tagged { stag, offset },
        &[1; 10],
    )]
}

fn send(last: bool, msn: u32, offset: u32, bytes: usize) -> Vec<u8> {
    segment(
        last,
        Opcode::Send,
        untagged(0, msn, offset),
        &vec![2; bytes],
    )
}

fn read(source: Stag, source_offset: u64, count: u32) -> Vec<Vec<u8>> {
    let request = ReadRequest {
        sink: Stag(1),
        sink_offset: 0,
        count,
        source,
        source_offset,
    };
    vec![segment(
        true,
        Opcode::ReadRequest,
        untagged(1, 1, 0),
        &request.bytes(),
    )]
}

fn region(b: &mut Side, access: Access, pair: Option<PairId>) -> Stag {
    let registration = Registration {
        region: b.region,
        base: 0,
        bytes: 64,
        access,
        pair,
    };
    b.domain.register(registration).expect("room")
}

#[test]
fn tagged_segments_are_held_to_their_region() {
    expect(Cause::TaggedStag, |b| {
        write(Stag(b.stag.0 ^ 0x4000_0000), b.base)
    });
    expect(Cause::TaggedBounds, |b| write(b.stag, b.base - 1));
    expect(Cause::TaggedBounds, |b| write(b.stag, b.base + 991));
    expect(Cause::TaggedWrap, |b| write(b.stag, u64::MAX - 8));
    expect(Cause::TaggedNotAssociated, |b| {
        write(region(b, all(), Some(PairId(77))), 0)
    });
    expect(Cause::AccessRights, |b| {
        write(region(b, Access::REMOTE_READ, None), 0)
    });
    // A tag that was valid and is gone.
    expect(Cause::TaggedStag, |b| {
        let stag = region(b, all(), None);
        b.domain.deregister(stag);
        write(stag, 0)
    });
    expect(Cause::TaggedVersion, |b| {
        let mut segments = write(b.stag, b.base);
        segments[0][0] ^= 2;
        segments
    });
    expect(Cause::UnexpectedOpcode, |b| {
        let mut segments = write(b.stag, b.base);
        segments[0][1] = 0x43;
        segments
    });
}

#[test]
fn untagged_segments_are_held_to_their_turn() {
    expect(Cause::InvalidQueue, |_| {
        vec![segment(true, Opcode::Send, untagged(4, 1, 0), &[])]
    });
    expect(Cause::InvalidMsn, |_| vec![send(true, 2, 0, 10)]);
    expect(Cause::InvalidMsn, |_| {
        vec![send(true, 1, 0, 10), send(true, 1, 0, 10)]
    });
    expect(Cause::NoBuffer, |_| {
        vec![send(true, 1, 0, 10), send(true, 2, 0, 10)]
    });
    expect(Cause::InvalidOffset, |_| vec![send(true, 1, 1, 10)]);
    expect(Cause::InvalidOffset, |_| {
        vec![send(false, 1, 0, 10), send(true, 1, 0, 10)]
    });
    expect(Cause::TooLong, |_| vec![send(true, 1, 0, 101)]);
    expect(Cause::TooLong, |_| {
        vec![send(false, 1, 0, 60), send(true, 1, 60, 41)]
    });
    expect(Cause::UnexpectedOpcode, |_| {
        let other = segment(true, Opcode::SendSolicited, untagged(0, 1, 10), &[]);
        vec![send(false, 1, 0, 10), other]
    });
    expect(Cause::UnexpectedOpcode, |_| {
        vec![segment(true, Opcode::Send, untagged(1, 1, 0), &[])]
    });
    for (byte, cause) in [(0, Cause::UntaggedVersion), (1, Cause::RdmapVersion)] {
        expect(cause, |_| {
            let mut bad = send(true, 1, 0, 10);
            bad[byte] ^= if byte == 0 { 3 } else { 0x80 };
            vec![bad]
        });
    }
    expect(Cause::OperationUnspecified, |_| {
        vec![segment(true, Opcode::Immediate, untagged(0, 1, 0), &[0; 7])]
    });
}

#[test]
fn invalidation_needs_its_right() {
    let with = |stag: Stag| {
        let target = Target::Untagged {
            invalidate: stag,
            queue: 0,
            msn: 1,
            offset: 0,
        };
        // No bytes: a buffer may be placed before the fault is found.
        vec![segment(true, Opcode::SendInvalidate, target, &[])]
    };
    expect(Cause::RequestStag, |_| with(Stag(5)));
    expect(Cause::CannotInvalidate, |b| {
        with(region(b, Access::REMOTE_WRITE, None))
    });
    expect(Cause::RequestNotAssociated, |b| {
        with(region(b, all(), Some(PairId(3))))
    });
}

#[test]
fn requests_are_held_to_their_region() {
    expect(Cause::RequestStag, |b| read(Stag(!b.stag.0), b.base, 10));
    expect(Cause::RequestBounds, |b| read(b.stag, b.base + 990, 11));
    expect(Cause::RequestBounds, |b| read(b.stag, b.base, u32::MAX));
    expect(Cause::RequestWrap, |b| read(b.stag, u64::MAX, 2));
    expect(Cause::AccessRights, |b| {
        read(region(b, Access::REMOTE_WRITE, None), 0, 4)
    });
    expect(Cause::RequestNotAssociated, |b| {
        read(region(b, all(), Some(PairId(4))), 0, 4)
    });
    expect(Cause::OperationUnspecified, |b| {
        let mut short = read(b.stag, b.base, 4);
        short[0].truncate(18 + 27);
        short
    });
    expect(Cause::TooLong, |b| {
        let mut long = read(b.stag, b.base, 4);
        long[0].push(0);
        long
    });
    let atomic = |operation, stag, offset| {
        let request = AtomicRequest {
            operation,
            identifier: 1,
            stag,
            offset,
            operand: 1,
            operand_mask: 0,
            compare: 0,
            compare_mask: 0,
        };
        vec![segment(
            true,
            Opcode::AtomicRequest,
            untagged(1, 1, 0),
            &request.bytes(),
        )]
    };
    expect(Cause::UnexpectedOpcode, |b| atomic(3, b.stag, b.base));
    expect(Cause::StreamCatastrophic, |b| atomic(0, b.stag, b.base + 4));
    expect(Cause::RequestBounds, |b| atomic(0, b.stag, b.base + 1000));
    expect(Cause::AccessRights, |b| {
        atomic(0, region(b, Access::REMOTE_WRITE, None), 0)
    });
}

#[test]
fn more_reads_than_were_agreed_on_find_no_buffer() {
    let mut b = responder();
    let stag = b.stag;
    for msn in 1..=3 {
        let mut request = read(stag, b.base, 1).remove(0);
        request[13] = msn;
        b.receive(&unit(&request));
    }
    assert_eq!(told(&mut b).cause(), Some(Cause::NoBuffer));
}

#[test]
fn answers_that_nobody_asked_for_end_the_pair() {
    let answer = |stag, offset, bytes: usize, last| {
        let target = Target::Tagged { stag, offset };
        segment(last, Opcode::ReadResponse, target, &vec![3; bytes])
    };
    expect(Cause::UnexpectedOpcode, |b| {
        vec![answer(b.stag, b.base, 4, true)]
    });
    expect(Cause::UnexpectedOpcode, |_| {
        vec![segment(
            true,
            Opcode::AtomicResponse,
            untagged(3, 1, 0),
            &[0; 12],
        )]
    });
    // For a pending read: another region, another offset, too much, too little.
    let wrong = |change: fn(&mut Side) -> Vec<u8>, cause| {
        let mut b = responder();
        // The responder may send after it has received from the initiator.
        b.receive(&unit(&write(b.stag, b.base)[0]));
        let post = Post {
            id: 1,
            work: Work::Read {
                into: b.piece(500, 20),
                remote: Remote {
                    stag: Stag(9),
                    offset: 9,
                },
            },
            fence: false,
        };
        b.pair.post(post, &b.domain).expect("room");
        assert_eq!(b.transmit().len(), 52);
        let before = b.bytes().to_vec();
        let bad = change(&mut b);
        b.receive(&unit(&bad));
        assert_eq!(told(&mut b).cause(), Some(cause));
        assert_eq!(b.bytes(), before);
        let kinds: Vec<_> = b
            .completions()
            .iter()
            .map(|one| (one.kind, one.status))
            .collect();
        let flushed = Status::Flushed;
        assert_eq!(kinds, [(Kind::Read, flushed), (Kind::Receive, flushed)]);
    };
    wrong(
        |b| response(b, b.stag.0 ^ 1, 500, 20, true),
        Cause::TaggedStag,
    );
    wrong(
        |b| response(b, b.stag.0, 501, 19, true),
        Cause::TaggedBounds,
    );
    wrong(
        |b| response(b, b.stag.0, 500, 21, true),
        Cause::TaggedBounds,
    );
    wrong(
        |b| response(b, b.stag.0, 500, 19, true),
        Cause::TaggedBounds,
    );
}

fn response(b: &Side, stag: u32, at: u64, bytes: usize, last: bool) -> Vec<u8> {
    let target = Target::Tagged {
        stag: Stag(stag),
        offset: b.base + at,
    };
    segment(last, Opcode::ReadResponse, target, &vec![3; bytes])
}

#[test]
fn units_that_are_none_are_told_by_mpa() {
    let mut b = responder();
    let mut bad = unit(&write(b.stag, b.base)[0]);
    bad[20] ^= 1;
    let before = b.bytes().to_vec();
    b.receive(&bad);
    let words = told(&mut b);
    assert_eq!(words, Terminate::new(Cause::Crc));
    assert_eq!(b.bytes(), before);
    // Too short for any segment.
    let mut b = responder();
    b.receive(&unit(&[0x41; 5]));
    assert_eq!(told(&mut b), Terminate::new(Cause::Framing));
}

#[test]
fn a_peer_s_terminate_ends_the_pair_without_an_answer() {
    let mut b = responder();
    let words = Terminate::blaming(Cause::TaggedStag, &write(Stag(1), 2)[0], false);
    let message = segment(true, Opcode::Terminate, untagged(2, 1, 0), &words.bytes());
    b.receive(&unit(&message));
    assert_eq!(b.pair.end(), Some(&End::Received(words)));
    assert!(b.transmit().is_empty());
    assert_eq!(b.completions().len(), 1);
}

#[test]
fn a_stream_that_breaks_off_is_lost() {
    let mut b = responder();
    b.receive(&unit(&send(true, 1, 0, 50))[..20]);
    b.pair.receive_end();
    assert_eq!(b.pair.end(), Some(&End::Lost));
    // Between two segments of one message, too.
    let mut b = responder();
    b.receive(&unit(&send(false, 1, 0, 50)));
    b.pair.receive_end();
    assert_eq!(b.pair.end(), Some(&End::Lost));
}

#[test]
fn starts_that_cannot_be_end_without_a_word() {
    let mut b = Side::new(Pair::listen(PairId(1), Options::default()), 10, 0);
    b.receive(b"GET / HTTP/1.1\r\n\r\n");
    assert!(matches!(
        b.pair.end(),
        Some(End::Start(StartFault::Frame(_)))
    ));
    assert!(b.transmit().is_empty() && b.pair.wants_shutdown());
    // Messages before the reply.
    let [mut a, mut b] = ends(Options::default(), Options::default(), 10);
    let request = [a.transmit(), unit(&write(b.stag, b.base)[0])].concat();
    b.receive(&request);
    assert_eq!(b.pair.end(), Some(&End::Start(StartFault::NotRequested)));
}

#[test]
fn an_initiator_tells_of_depths_and_of_no_way_to_be_ready() {
    let replied = |bytes: [u8; 8], options| {
        let pair = Pair::connect(PairId(1), options, b"").expect("short");
        let mut a = Side::new(pair, 10, 0);
        a.transmit();
        a.receive(&[b"MPA ID Rep Frame".as_slice(), &bytes].concat());
        a
    };
    let options = Options {
        ird: 4,
        setup: Setup::PeerToPeer(ReadyBy::Message),
        ..Options::default()
    };
    // The responder requires 5 reads at a time, 4 are served.
    let mut a = replied([0x50, 2, 0, 4, 0x80, 9, 0x80, 5], options);
    assert_eq!(told(&mut a).cause(), Some(Cause::InsufficientReads));
    let mut a = replied([0x50, 2, 0, 4, 0x80, 9, 0, 4], options);
    assert_eq!(told(&mut a).cause(), Some(Cause::NoReadyToReceive));
    // Ready by a write or by a read of no bytes, before anything else.
    for (flag, bytes) in [(0x80, 2 + 14 + 4), (0x40, 2 + 18 + 28 + 4)] {
        let mut a = replied([0x50, 2, 0, 4, 0x80, 9, flag, 4], options);
        assert_eq!((a.transmit().len(), a.pair.state()), (bytes, State::Open));
    }
}

#[test]
fn a_responder_sends_nothing_before_the_initiator_has() {
    let mut both = opened(Options::default(), Options::default(), 100);
    let [a, b] = &mut both;
    let remote = Remote {
        stag: a.stag,
        offset: a.base,
    };
    let work = |side: &Side, id| Post {
        id,
        work: Work::Write {
            pieces: side.pieces(0, 10),
            remote,
        },
        fence: false,
    };
    b.pair.post(work(b, 1), &b.domain).expect("room");
    assert!(b.transmit().is_empty() && !b.pair.wants_to_transmit());
    // Any unit is accepted; this one names a region that does not exist, and has no bytes.
    let nowhere = Target::Tagged {
        stag: Stag(0),
        offset: 0,
    };
    b.receive(&unit(&segment(true, Opcode::Write, nowhere, &[])));
    assert!(b.pair.wants_to_transmit());
    settle(&mut both, &mut Choices::seeded(1));
    assert_eq!(both[1].completions().len(), 1);
}

#[test]
fn memory_of_ours_that_is_gone_is_told_as_ours() {
    let mut both = opened(Options::default(), Options::default(), 100);
    let [a, b] = &mut both;
    let post = Post {
        id: 1,
        work: Work::Write {
            pieces: a.pieces(0, 10),
            remote: Remote {
                stag: b.stag,
                offset: b.base,
            },
        },
        fence: false,
    };
    a.pair.post(post, &a.domain).expect("room");
    a.domain.deregister(a.stag);
    assert_eq!(told(a).cause(), Some(Cause::LocalCatastrophic));
    let completion = a.pair.poll().expect("it is over");
    assert!(matches!(completion.status, Status::Local(_)));
}

#[test]
fn a_bad_peer_leaves_other_pairs_of_the_domain_alone() {
    let mut both = opened(Options::default(), Options::default(), 200);
    let mut bad = Pair::listen(PairId(9), Options::default());
    let request = [b"MPA ID Req Frame".as_slice(), &[0x40, 1, 0, 0]].concat();
    let b = &mut both[1];
    bad.receive(&request, &mut b.domain, &mut b.memory);
    bad.accept(b"").expect("a request");
    let mine = Registration {
        region: b.region,
        base: 0,
        bytes: 200,
        access: all(),
        pair: Some(PairId(2)),
    };
    let mine = b.domain.register(mine).expect("room");
    // A wrong guess; its own pair ends.
    bad.receive(&unit(&write(mine, 0)[0]), &mut b.domain, &mut b.memory);
    assert!(matches!(bad.state(), State::Ending));
    // The other one continues.
    let remote = Remote {
        stag: mine,
        offset: 0,
    };
    let pieces = both[0].pieces(100, 50);
    let work = Work::Write { pieces, remote };
    let post = Post {
        id: 1,
        work,
        fence: false,
    };
    let a = &mut both[0];
    a.pair.post(post, &a.domain).expect("room");
    settle(&mut both, &mut Choices::seeded(1));
    assert_eq!(both[1].bytes()[..50], both[0].bytes()[100..150]);
}
