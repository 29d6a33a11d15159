//! Agreements of two ends, at the start and by their options, that both keep to.

mod apparatus;

use apparatus::{done, ends, opened, post, post_receive, settle};
use sidecore_random::choices::Choices;
use sidecore_rdma_wire::wire::terminate::Cause;
use sidecore_rdma_wire::{
    Completion, End, Kind, Options, PostError, ReadyBy, Receive, Remote, Setup, StartFault, State,
    Work,
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
