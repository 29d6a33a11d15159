//! Two pairs against each other over a stream that is cut at random places.

mod apparatus;

use apparatus::{Side, done, opened, post, post_receive, settle};
use sidecore_random::choices::Choices;
use sidecore_rdma_wire::{
    Access, Atomic, Completion, End, Kind, Options, PairId, Pieces, Post, PostError, ReadyBy,
    Receive, Registration, Remote, Setup, Stag, State, Status, Work,
};

const BYTES: usize = 20_000;

fn settings() -> impl Iterator<Item = (Options, Options)> {
    (0..48).map(|index| {
        let one = |crc: bool, markers: bool| Options {
            crc,
            markers,
            setup: [
                Setup::Basic,
                Setup::Enhanced,
                Setup::PeerToPeer(ReadyBy::Message),
            ][index % 3],
            segment_bytes: [128, 536, 1448, 8948, 65_535, 66_560][index / 8],
            ..Options::default()
        };
        (
            one(index & 1 == 0, index & 2 == 0),
            one(index & 1 == 0, index & 4 == 0),
        )
    })
}

#[test]
fn every_kind_of_work_does_what_it_says() {
    for (seed, (ours, theirs)) in settings().enumerate() {
        let mut choices = Choices::seeded(seed as u64);
        let mut both = opened(ours, theirs, BYTES);
        let [a, b] = &mut both;
        assert_eq!([a.pair.state(), b.pair.state()], [State::Open; 2]);
        assert_eq!(a.pair.private_data(), b"from the responder");
        assert_eq!(b.pair.private_data(), b"from the initiator");
        let first = a.bytes().to_vec();
        let second = b.bytes().to_vec();
        let there = |at| Remote {
            stag: Stag(b.stag.0),
            offset: b.base + at,
        };
        let extra = b.domain.register(Registration {
            region: b.region,
            base: 0,
            bytes: 16,
            access: Access::REMOTE_INVALIDATE,
            pair: Some(PairId(2)),
        });
        let extra = extra.expect("room for another");
        let works = [
            Work::Write {
                pieces: a.pieces(0, 5000),
                remote: there(1000),
            },
            Work::Read {
                into: a.piece(10_000, 4000),
                remote: there(12_000),
            },
            Work::Send {
                pieces: Pieces::from_iter([a.piece(100, 3), a.piece(200, 2000), a.piece(7, 0)]),
                invalidate: None,
                solicited: true,
            },
            Work::Atomic {
                atomic: Atomic::Add(5),
                remote: there(16_000),
            },
            Work::Send {
                pieces: a.pieces(300, 70),
                invalidate: Some(extra),
                solicited: false,
            },
            Work::Immediate {
                value: 0x0102_0304_0506_0708,
                solicited: false,
            },
            Work::Read {
                into: a.piece(0, 0),
                remote: Remote {
                    stag: Stag(0),
                    offset: 0,
                },
            },
        ];
        let pieces = Pieces::from_iter([b.piece(8000, 1500), b.piece(17_000, 900)]);
        post_receive(b, 50, pieces);
        let pieces = b.pieces(18_000, 70);
        post_receive(b, 51, pieces);
        let pieces = b.pieces(0, 0);
        post_receive(b, 52, pieces);
        for (id, work) in works.into_iter().enumerate() {
            post(a, id as u64, work);
        }
        settle(&mut both, &mut choices);
        let [a, b] = &mut both;
        let word = u64::from_ne_bytes(second[16_000..16_008].try_into().expect("eight bytes"));
        let atomic = Completion {
            original: Some(word),
            ..done(3, Kind::Atomic, 8)
        };
        let completions = a.completions();
        let expected = [
            done(0, Kind::Write, 5000),
            done(1, Kind::Read, 4000),
            done(2, Kind::Send, 2003),
            atomic,
            done(4, Kind::Send, 70),
            done(5, Kind::Immediate, 8),
            done(6, Kind::Read, 0),
        ];
        assert_eq!(completions, expected, "{ours:?} {:?}", a.pair.end());
        let solicited = Completion {
            solicited: true,
            ..done(50, Kind::Receive, 2003)
        };
        let invalidated = Completion {
            invalidated: Some(extra),
            ..done(51, Kind::Receive, 70)
        };
        let immediate = Completion {
            immediate: Some(0x0102_0304_0506_0708),
            ..done(52, Kind::Receive, 8)
        };
        assert_eq!(b.completions(), [solicited, invalidated, immediate]);
        assert_eq!(b.domain.registration(extra), None);
        // Expected memory, by plain assignments.
        let mut expected = second.clone();
        expected[1000..6000].copy_from_slice(&first[..5000]);
        let message = [&first[100..103], &first[200..2200]].concat();
        expected[8000..9500].copy_from_slice(&message[..1500]);
        expected[17_000..17_503].copy_from_slice(&message[1500..]);
        expected[18_000..18_070].copy_from_slice(&first[300..370]);
        expected[16_000..16_008].copy_from_slice(&word.wrapping_add(5).to_ne_bytes());
        assert_eq!(b.bytes(), expected);
        let mut expected = first;
        expected[10_000..14_000].copy_from_slice(&second[12_000..16_000]);
        assert_eq!(a.bytes(), expected);
        // Both close in order.
        a.pair.close();
        b.pair.close();
        assert!(a.pair.wants_shutdown() && b.pair.wants_shutdown());
        a.pair.receive_end();
        b.pair.receive_end();
        assert_eq!([a.pair.end(), b.pair.end()], [Some(&End::Orderly); 2]);
    }
}

#[test]
fn random_work_both_ways_ends_as_a_model_says() {
    for seed in 0..if cfg!(miri) { 2 } else { 300 } {
        let mut choices = Choices::seeded(seed);
        let settings: Vec<_> = settings().collect();
        let (ours, theirs) = settings[choices.below(48) as usize];
        let mut both = opened(ours, theirs, BYTES);
        // Each side writes, reads and receives in its own half, so that the result does not depend
        // on the order of concurrent operations.
        let mut models = [both[0].bytes().to_vec(), both[1].bytes().to_vec()];
        let mut expected = [Vec::new(), Vec::new()];
        let mut receives = [Vec::new(), Vec::new()];
        for id in 0..40 {
            let from = choices.below(2) as usize;
            let [mut a, mut b] = both;
            if from == 1 {
                std::mem::swap(&mut a, &mut b);
            }
            // Sources are in the first quarter, targets of each kind in their own quarter.
            let bytes = choices.below(3000);
            let (source, target) = (choices.below(1000), choices.below(1000));
            let copied = models[from][source as usize..(source + bytes) as usize].to_vec();
            let remote = |at| Remote {
                stag: b.stag,
                offset: b.base + at,
            };
            let (at, work, kind) = match choices.below(3) {
                0 => {
                    let pieces = a.pieces(source, bytes as u32);
                    let remote = remote(5000 + target);
                    (5000 + target, Work::Write { pieces, remote }, Kind::Write)
                }
                1 => {
                    let pieces = b.pieces(10_000 + target, bytes as u32);
                    post_receive(&mut b, 1000 + id, pieces);
                    let receive = done(1000 + id, Kind::Receive, bytes as u32);
                    receives[1 - from].push(receive);
                    let send = Work::Send {
                        pieces: a.pieces(source, bytes as u32),
                        invalidate: None,
                        solicited: false,
                    };
                    (10_000 + target, send, Kind::Send)
                }
                _ => {
                    let into = a.piece(15_000 + target, bytes as u32);
                    let remote = remote(source);
                    (15_000 + target, Work::Read { into, remote }, Kind::Read)
                }
            };
            let (to, copied) = match kind {
                Kind::Read => {
                    let range = source as usize..(source + bytes) as usize;
                    (from, models[1 - from][range].to_vec())
                }
                _ => (1 - from, copied),
            };
            models[to][at as usize..at as usize + copied.len()].copy_from_slice(&copied);
            post(&mut a, id, work);
            expected[from].push(done(id, kind, bytes as u32));
            if from == 1 {
                std::mem::swap(&mut a, &mut b);
            }
            both = [a, b];
            if choices.below(8) == 0 {
                settle(&mut both, &mut choices);
            }
        }
        settle(&mut both, &mut choices);
        for index in 0..2 {
            let completions = both[index].completions();
            let (got, sent): (Vec<Completion>, Vec<Completion>) = completions
                .iter()
                .partition(|one| one.kind == Kind::Receive);
            assert_eq!(sent, expected[index], "seed {seed}");
            assert_eq!(got, receives[index], "seed {seed}");
            assert_eq!(both[index].bytes(), models[index], "seed {seed}");
        }
    }
}

#[test]
fn a_fence_waits_for_answers() {
    let mut both = opened(Options::default(), Options::default(), BYTES);
    let [a, b] = &mut both;
    let remote = Remote {
        stag: b.stag,
        offset: b.base,
    };
    let into = a.piece(0, 100);
    post(a, 1, Work::Read { into, remote });
    let fenced = Post {
        id: 2,
        work: Work::Write {
            pieces: a.pieces(0, 100),
            remote,
        },
        fence: true,
    };
    a.pair.post(fenced, &a.domain).expect("room");
    let request = a.transmit();
    assert_eq!(request.len(), 52, "the read request alone");
    b.receive(&request);
    a.receive(&b.transmit());
    assert_eq!(a.completions(), [done(1, Kind::Read, 100)]);
    assert!(a.transmit().len() > 100);
    assert_eq!(a.completions(), [done(2, Kind::Write, 100)]);
}

#[test]
fn words_are_changed_by_their_bits() {
    let [mut a, mut b] = opened(Options::default(), Options::default(), BYTES);
    let remote = Remote {
        stag: b.stag,
        offset: b.base,
    };
    let cases = [
        // Two fields of 32 bits: neither carries into the other.
        (
            0x0000_0001_ffff_ffff,
            Atomic::AddFields {
                value: 0xffff_ffff_0000_0002,
                mask: 0x8000_0000_8000_0000,
            },
            0x0000_0000_0000_0001,
        ),
        (
            0x1234,
            Atomic::CompareSwapBits {
                expected: 0xff30,
                compared: 0x00f0,
                new: 0xabcd,
                swapped: 0x0ff0,
            },
            0x1bc4,
        ),
        (
            0x1234,
            Atomic::CompareSwapBits {
                expected: 0xff40,
                compared: 0x00f0,
                new: 0xabcd,
                swapped: 0x0ff0,
            },
            0x1234,
        ),
        (
            0x1234,
            Atomic::Swap {
                new: 0xffff,
                mask: 0x00ff,
            },
            0x12ff,
        ),
    ];
    for (id, (before, atomic, after)) in (0..).zip(cases) {
        let word = u64::to_ne_bytes(before);
        let region = b.region;
        b.memory.bytes_mut(region)[..8].copy_from_slice(&word);
        post(&mut a, id, Work::Atomic { atomic, remote });
        let request = a.transmit();
        b.receive(&request);
        a.receive(&b.transmit());
        let original = a.completions()[0].original;
        assert_eq!(original, Some(before), "{atomic:x?}");
        assert_eq!(b.bytes()[..8], u64::to_ne_bytes(after), "{atomic:x?}");
    }
}

#[test]
fn queues_have_their_bounds_and_everything_posted_completes() {
    let options = Options {
        send_depth: 4,
        receive_depth: 3,
        ..Options::default()
    };
    let mut both = opened(options, options, BYTES);
    let [a, b] = &mut both;
    let remote = Remote {
        stag: b.stag,
        offset: b.base,
    };
    let write = |a: &Side, id| Post {
        id,
        work: Work::Write {
            pieces: a.pieces(0, 10),
            remote,
        },
        fence: false,
    };
    for id in 0..4 {
        a.pair.post(write(a, id), &a.domain).expect("room");
    }
    assert_eq!(a.pair.post(write(a, 4), &a.domain), Err(PostError::Full(4)));
    // Work that is done but not polled counts, too.
    a.transmit();
    assert_eq!(a.pair.post(write(a, 4), &a.domain), Err(PostError::Full(4)));
    assert_eq!(a.pair.poll(), Some(done(0, Kind::Write, 10)));
    a.pair.post(write(a, 4), &a.domain).expect("room");
    for id in 0..3 {
        let pieces = a.pieces(0, 10);
        post_receive(a, 10 + id, pieces);
    }
    let pieces = a.pieces(0, 10);
    let more = a.pair.post_receive(Receive { id: 20, pieces }, &a.domain);
    assert_eq!(more, Err(PostError::Full(3)));
    a.pair.lose();
    let ids: Vec<(u64, Status)> = a
        .completions()
        .iter()
        .map(|one| (one.id, one.status))
        .collect();
    let (over, flushed) = (Status::Done, Status::Flushed);
    let expected = [
        (1, over),
        (2, over),
        (3, over),
        (4, flushed),
        (10, flushed),
        (11, flushed),
        (12, flushed),
    ];
    assert_eq!(ids, expected);
    assert_eq!(a.pair.post(write(a, 5), &a.domain), Err(PostError::Ended));
}

#[test]
fn a_segment_that_comes_early_is_placed_and_not_copied_again() {
    let mut both = opened(Options::default(), Options::default(), BYTES);
    let [a, b] = &mut both;
    let remote = Remote {
        stag: b.stag,
        offset: b.base,
    };
    let pieces = a.pieces(0, 9000);
    post(a, 1, Work::Write { pieces, remote });
    let mut units = Vec::new();
    let mut target = vec![0; 2000];
    let mut position = b.pair.awaited();
    loop {
        let count = a.pair.transmit(&mut target, &a.domain, &mut a.memory);
        if count == 0 {
            break;
        }
        assert!(count <= 1448);
        units.push((position, target[..count].to_vec()));
        position += count as u64;
    }
    // All but the first arrive before it: their bytes are in place.
    for (position, unit) in units[1..].iter().rev() {
        let placed = b
            .pair
            .place_ahead(*position, unit, &b.domain, &mut b.memory);
        assert_eq!(placed, unit.len());
    }
    let first = units[0].1.len() - 2 - 14 - 4;
    assert_eq!(b.bytes()[first..9000], a.bytes()[first..9000]);
    assert_ne!(b.bytes()[..first], a.bytes()[..first]);
    // In order they are not copied again: a mark written meanwhile stays.
    b.memory.bytes_mut(b.region)[8000] ^= 0xff;
    for (_, unit) in &units {
        b.receive(unit);
    }
    assert_eq!(b.bytes()[..8000], a.bytes()[..8000]);
    assert_ne!(b.bytes()[8000], a.bytes()[8000]);
    assert_eq!(b.pair.state(), State::Open);
}
