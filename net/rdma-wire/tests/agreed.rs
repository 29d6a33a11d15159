//! Agreements of two ends, at the start and by their options, that both keep to.

mod apparatus;

use apparatus::{Side, done, ends, opened, post, post_receive, settle};
use sidecore_random::choices::Choices;
use sidecore_rdma_wire::wire::terminate::Cause;
use sidecore_rdma_wire::{
    Completion, End, Kind, Memory, Options, Part, Pieces, PostError, ReadyBy, Receive, Remote,
    Setup, Stag, StartFault, State, Status, Work,
};

const BYTES: usize = 20_000;

#[test]
fn depths_of_reads_are_agreed_on_and_kept() {
    let ours = Options {
        ord: 9,
        ird: 2,
        ..Options::default()
    };
    let theirs = Options {
        ord: 7,
        ird: 3,
        ..Options::default()
    };
    let mut both = opened(ours, theirs, BYTES);
    assert_eq!([both[0].pair.depths().0, both[1].pair.depths().0], [3, 2]);
    let [a, b] = &mut both;
    let remote = Remote {
        stag: b.stag,
        offset: b.base,
    };
    for id in 0..10 {
        let into = a.piece(id * 10, 10);
        post(a, id, Work::Read { into, remote });
    }
    // Three requests of 18 + 28 bytes of header, no more before an answer.
    let first = a.transmit();
    assert_eq!(first.len(), 3 * (2 + 18 + 28 + 4));
    b.receive(&first);
    settle(&mut both, &mut Choices::seeded(1));
    assert_eq!(both[0].completions().len(), 10);
}

#[test]
fn a_shared_queue_serves_several_pairs() {
    let mut one = opened(Options::default(), Options::default(), BYTES);
    let shared = one[1].domain.share_receives(8).expect("a queue");
    let options = Options {
        shared: Some(shared),
        ..Options::default()
    };
    // A second connection of the same domain: its pair replaces the first one, and back.
    let mut pairs = Vec::new();
    for _ in 0..2 {
        let mut both = ends(Options::default(), options, BYTES);
        std::mem::swap(&mut both[1].domain, &mut one[1].domain);
        std::mem::swap(&mut both[1].memory, &mut one[1].memory);
        settle(&mut both, &mut Choices::seeded(2));
        both[1].pair.accept(b"").expect("a request");
        settle(&mut both, &mut Choices::seeded(2));
        std::mem::swap(&mut both[1].domain, &mut one[1].domain);
        std::mem::swap(&mut both[1].memory, &mut one[1].memory);
        pairs.push(both);
    }
    let b = &mut one[1];
    for id in 0..2 {
        let pieces = b.pieces(id * 100, 100);
        b.domain
            .post_shared(shared, Receive { id, pieces })
            .expect("room");
    }
    let pieces = b.pieces(0, 1);
    let refused = pairs[0][1]
        .pair
        .post_receive(Receive { id: 9, pieces }, &b.domain);
    assert_eq!(refused, Err(PostError::Shared(shared)));
    for (index, both) in pairs.iter_mut().enumerate().rev() {
        std::mem::swap(&mut both[1].domain, &mut one[1].domain);
        std::mem::swap(&mut both[1].memory, &mut one[1].memory);
        let send = Work::Send {
            pieces: both[0].pieces(500, 60),
            invalidate: None,
            solicited: false,
        };
        post(&mut both[0], 1, send);
        settle(both, &mut Choices::seeded(3));
        let id = 1 - index as u64;
        assert_eq!(both[1].completions(), [done(id, Kind::Receive, 60)]);
        let at = id as usize * 100;
        assert_eq!(both[1].bytes()[at..at + 60], both[0].bytes()[500..560]);
        std::mem::swap(&mut both[1].domain, &mut one[1].domain);
        std::mem::swap(&mut both[1].memory, &mut one[1].memory);
    }
    assert_eq!(one[1].domain.shared_receives(shared), 0);
}

#[test]
fn a_refused_connection_tells_its_reason() {
    let mut choices = Choices::seeded(4);
    let mut both = ends(Options::default(), Options::default(), 100);
    settle(&mut both, &mut choices);
    assert_eq!(both[1].pair.state(), State::Requested);
    let long = both[1].pair.accept(&[0; 509]);
    assert_eq!(long, Err(StartFault::PrivateData(509, 508)));
    both[1].pair.reject(b"no").expect("a request");
    settle(&mut both, &mut choices);
    let [a, b] = &both;
    assert_eq!([a.pair.end(), b.pair.end()], [Some(&End::Rejected); 2]);
    assert_eq!(a.pair.private_data(), b"no");
    assert_eq!([a.pair.state(), b.pair.state()], [State::Ended; 2]);
}

#[test]
fn an_empty_unit_says_ready_where_it_is_all_that_is_offered() {
    for (seed, crc, markers) in [(1, true, false), (2, false, true), (3, false, false)] {
        let mut choices = Choices::seeded(seed);
        let ours = Options {
            crc,
            setup: Setup::PeerToPeer(ReadyBy::EmptyUnit),
            ..Options::default()
        };
        let theirs = Options {
            crc,
            markers,
            ..Options::default()
        };
        let mut both = opened(ours, theirs, BYTES);
        let [a, b] = &mut both;
        assert_eq!([a.pair.state(), b.pair.state()], [State::Open; 2]);
        // The responder may send first, which was impossible before RFC 6581.
        let pieces = a.pieces(0, 100);
        post_receive(a, 7, pieces);
        let work = Work::Send {
            pieces: b.pieces(50, 100),
            invalidate: None,
            solicited: false,
        };
        post(b, 8, work);
        settle(&mut both, &mut choices);
        let [a, b] = &mut both;
        assert_eq!(b.completions(), [done(8, Kind::Send, 100)]);
        assert_eq!(a.completions(), [done(7, Kind::Receive, 100)]);
        assert_eq!(a.bytes()[..100], b.bytes()[50..150]);
    }
}

#[test]
fn immediate_data_need_no_receive_where_that_is_agreed() {
    let mut choices = Choices::seeded(5);
    let free = Options {
        immediate_without_receive: true,
        receive_depth: 3,
        ..Options::default()
    };
    let mut both = opened(Options::default(), free, BYTES);
    let [a, b] = &mut both;
    let pieces = b.pieces(0, 10);
    post_receive(b, 1, pieces);
    for value in 0..2 {
        let solicited = false;
        post(a, value, Work::Immediate { value, solicited });
    }
    let work = Work::Send {
        pieces: a.pieces(40, 10),
        invalidate: None,
        solicited: false,
    };
    post(a, 9, work);
    settle(&mut both, &mut choices);
    let [a, b] = &mut both;
    let immediate = |value| Completion {
        immediate: Some(value),
        ..done(0, Kind::Receive, 8)
    };
    let expected = [immediate(0), immediate(1), done(1, Kind::Receive, 10)];
    assert_eq!(b.completions(), expected);
    assert_eq!(b.bytes()[..10], a.bytes()[40..50]);
    // Solicited ones still need a receive; and the number of others is bounded by that of receives.
    for value in 0..4 {
        let solicited = false;
        post(a, value, Work::Immediate { value, solicited });
    }
    settle(&mut both, &mut choices);
    let [a, b] = &mut both;
    assert_eq!(b.completions(), [0, 1, 2].map(immediate));
    assert!(matches!(b.pair.end(), Some(End::Sent(told)) if told.cause() == Some(Cause::NoBuffer)));
    assert!(matches!(a.pair.end(), Some(End::Received(_))));
}

/// Two ends without CRCs and markers, whose units are as long as possible.
fn with_long_units(bytes: usize) -> [Side; 2] {
    let options = Options {
        crc: false,
        segment_bytes: usize::MAX,
        ..Options::default()
    };
    opened(options, options, bytes)
}

/// Carries what a side sends: lent units from their places, cut anywhere; half of the long payloads
/// into their places. The bytes lent, and those landed.
fn carry(from: &mut Side, to: &mut Side, choices: &mut Choices) -> [usize; 2] {
    let mut stream = Vec::new();
    let mut target = vec![0; 66_560];
    let mut lent = 0;
    loop {
        if from.pair.lend(&from.domain) {
            let (memory, mut unit) = (&mut from.memory, Vec::new());
            let mut add = |part: Part<'_>| match part {
                Part::Bytes(bytes) => unit.extend_from_slice(bytes),
                Part::Memory(region, offset, count) => {
                    let at = unit.len();
                    unit.resize(at + count, 0);
                    let fetched = memory.fetch(region, offset, &mut unit[at..]);
                    fetched.expect("its memory is there");
                }
            };
            from.pair.lent(&from.domain, &mut add).expect("its memory");
            // As a stream that takes a part.
            let count = 1 + choices.below(unit.len() as u64) as usize;
            stream.extend_from_slice(&unit[..count]);
            from.pair.taken(count);
            lent += count;
            continue;
        }
        let count = from
            .pair
            .transmit(&mut target, &from.domain, &mut from.memory);
        if count == 0 {
            break;
        }
        stream.extend_from_slice(&target[..count]);
    }
    let mut landed = 0;
    let mut rest = &stream[..];
    while !rest.is_empty() {
        let mut places = Vec::new();
        let add = &mut |region, offset, count: usize| places.push((region, offset, count));
        to.pair.landing(&to.domain, add);
        // Half of them through the pair.
        if choices.below(2) == 0 {
            places.clear();
        }
        for (region, offset, count) in places {
            let count = count.min(rest.len());
            let (now, later) = rest.split_at(count);
            let placed = to.memory.place(region, offset, now);
            placed.expect("it is registered");
            to.pair.landed(count);
            rest = later;
            landed += count;
        }
        let count = choices.below(20_000) as usize;
        let (now, later) = rest.split_at(count.min(rest.len()));
        to.receive(now);
        rest = later;
    }
    [lent, landed]
}

#[test]
fn long_units_go_from_their_places_to_their_places() {
    for seed in 0..20 {
        let mut choices = Choices::seeded(seed);
        let mut both = with_long_units(1_000_000);
        let [a, b] = &mut both;
        let (first, second) = (a.bytes().to_vec(), b.bytes().to_vec());
        let there = |at| Remote {
            stag: Stag(b.stag.0),
            offset: b.base + at,
        };
        let works = [
            Work::Write {
                pieces: Pieces::from_iter([a.piece(3, 100_001), a.piece(300_000, 70_000)]),
                remote: there(1),
            },
            Work::Read {
                into: a.piece(500_000, 200_000),
                remote: there(400_000),
            },
            Work::Send {
                pieces: a.pieces(0, 150_000),
                invalidate: None,
                solicited: false,
            },
            Work::Send {
                pieces: a.pieces(0, 70),
                invalidate: None,
                solicited: false,
            },
        ];
        let pieces = Pieces::from_iter([
            b.piece(700_000, 1),
            b.piece(710_000, 65_600),
            b.piece(800_000, 100_000),
        ]);
        post_receive(b, 50, pieces);
        let pieces = b.pieces(950_000, 70);
        post_receive(b, 51, pieces);
        for (id, work) in works.into_iter().enumerate() {
            post(a, id as u64, work);
        }
        let [mut lent, mut landed] = [0; 2];
        loop {
            let one = carry(a, b, &mut choices);
            let other = carry(b, a, &mut choices);
            lent += one[0] + other[0];
            landed += one[1] + other[1];
            let is_over = !a.pair.wants_to_transmit() && !b.pair.wants_to_transmit();
            if is_over {
                break;
            }
        }
        assert!(lent > 500_000, "{lent}");
        assert!(landed > 50_000, "{landed}");
        let expected = [
            done(0, Kind::Write, 170_001),
            done(1, Kind::Read, 200_000),
            done(2, Kind::Send, 150_000),
            done(3, Kind::Send, 70),
        ];
        assert_eq!(a.completions(), expected);
        let expected = [
            done(50, Kind::Receive, 150_000),
            done(51, Kind::Receive, 70),
        ];
        assert_eq!(b.completions(), expected);
        // By plain assignments.
        let mut expected = second.clone();
        expected[1..100_002].copy_from_slice(&first[3..100_004]);
        expected[100_002..170_002].copy_from_slice(&first[300_000..370_000]);
        expected[700_000..700_001].copy_from_slice(&first[..1]);
        expected[710_000..775_600].copy_from_slice(&first[1..65_601]);
        expected[800_000..884_399].copy_from_slice(&first[65_601..150_000]);
        expected[950_000..950_070].copy_from_slice(&first[..70]);
        assert!(b.bytes() == expected);
        let mut expected = first.clone();
        expected[500_000..700_000].copy_from_slice(&second[400_000..600_000]);
        assert!(a.bytes() == expected);
    }
}

#[test]
fn a_region_that_leaves_within_a_unit_ends_the_pair_and_takes_no_byte_more() {
    let [mut a, mut b] = with_long_units(100_000);
    let remote = Remote {
        stag: b.stag,
        offset: b.base,
    };
    let pieces = a.pieces(0, 60_000);
    post(&mut a, 1, Work::Write { pieces, remote });
    let unit = a.transmit();
    let before = b.bytes().to_vec();
    b.receive(&unit[..30_000]);
    assert_eq!(
        b.pair.landing(&b.domain, &mut |_, _, _| {}),
        60_000 - (30_000 - 16)
    );
    let tag = b.stag;
    b.domain.deregister(tag).expect("it is registered");
    assert_eq!(b.pair.landing(&b.domain, &mut |_, _, _| {}), 0);
    b.receive(&unit[30_000..]);
    assert!(b.bytes()[30_000..] == before[30_000..]);
    let end = b.pair.end().cloned();
    assert!(matches!(end, Some(End::Sent(_))), "{end:?}");
    let farewell = b.transmit();
    a.receive(&farewell);
    assert!(matches!(a.pair.end(), Some(End::Received(_))));
}

#[test]
fn a_lent_unit_is_sent_to_its_end_before_anything_else() {
    let [mut a, b] = with_long_units(100_000);
    let remote = Remote {
        stag: b.stag,
        offset: b.base,
    };
    let pieces = a.pieces(0, 60_000);
    post(&mut a, 1, Work::Write { pieces, remote });
    assert!(a.pair.lend(&a.domain));
    a.pair.taken(100);
    // A fault of the peer: an unknown queue.
    let unit = [
        0, 18, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    a.receive(&unit);
    assert!(matches!(a.pair.end(), Some(End::Sent(_))));
    // Its work is flushed, and the stream is within its unit.
    let flushed = a.completions();
    assert_eq!(flushed.len(), 1);
    assert_eq!(flushed[0].status, Status::Flushed);
    assert_eq!(a.transmit(), []);
    assert!(!a.pair.taken(1000));
    let mut rest = 0;
    let count = &mut |part: Part<'_>| {
        rest += match part {
            Part::Bytes(bytes) => bytes.len(),
            Part::Memory(_, _, count) => count,
        };
    };
    a.pair.lent(&a.domain, count).expect("it is registered");
    assert_eq!(rest, 16 + 60_000 + 4 - 1100);
    assert!(a.pair.taken(rest));
    assert!(!a.transmit().is_empty(), "the terminate message");
}
