//! Both sides over one mapping, and hostile positions.
#![allow(clippy::unwrap_used)] // Helper functions of tests.

mod datagrams;

use super::datagram::*;
use super::*;
use sidecore_random::Random;
use sidecore_sys::{SharedMap, Sharing};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

fn memory(bytes: usize) -> SharedMap {
    SharedMap::reserve("test", bytes, Sharing::ReadWrite).unwrap()
}

#[test]
fn what_one_side_writes_the_other_reads() {
    let (map, large) = (memory(STREAM_BYTES), memory(LARGE_BYTES));
    let mut stream = Stream::over(map.slice()).unwrap();
    stream.begin();
    let mut served = Served::default();
    let mut random = Random::new(7);
    let mut largest = (0, 0);
    let (mut up, mut down) = ((0_u64, 0_u64), (0_u64, 0_u64));
    let byte = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    for turn in 0..40_000 {
        if turn == 10_000 {
            stream = stream.with_large(Some(large.slice()));
        }
        if turn == 15_000 {
            assert_eq!(largest, (RING_BYTES, RING_BYTES));
            stream.show_large();
        }
        let count = random.below(40_000 << (turn / 20_000 * 3)) as usize;
        let mut bytes = vec![0; count];
        let Lock::Held(mut held) = stream.lock() else {
            panic!("nobody has it");
        };
        match random.below(4) {
            0 => {
                let fill = |(at, to): (usize, &mut u8)| *to = byte(up.0 + at as u64);
                bytes.iter_mut().enumerate().for_each(fill);
                up.0 += held.write(&bytes).unwrap() as u64;
            }
            1 => {
                let peeked = held.read(&mut bytes, true, 0).unwrap();
                let mut again = vec![0; count];
                let read = held.read(&mut again, false, 0).unwrap();
                assert_eq!((&bytes, peeked), (&again, read));
                for got in &bytes[..read] {
                    assert_eq!(*got, byte(down.1));
                    down.1 += 1;
                }
            }
            2 => {
                let taken = stream.take(&mut served, &mut bytes).unwrap();
                for got in &bytes[..taken] {
                    assert_eq!(*got, byte(up.1));
                    up.1 += 1;
                }
            }
            _ => {
                let fill = |(at, to): (usize, &mut u8)| *to = byte(down.0 + at as u64);
                bytes.iter_mut().enumerate().for_each(fill);
                down.0 += stream.give(&mut served, &bytes).unwrap() as u64;
            }
        }
        let state = stream.state().unwrap();
        assert_eq!(state.readable_bytes as u64, down.0 - down.1);
        let waiting = (up.0 - up.1) as usize;
        assert!([RING_BYTES, LARGE_RING_BYTES].contains(&(state.writable_bytes + waiting)));
        largest = (largest.0.max(waiting), largest.1.max(state.readable_bytes));
    }
    assert_eq!(largest, (LARGE_RING_BYTES, LARGE_RING_BYTES));
    assert!(up.1 > 10 * RING_BYTES as u64 && down.1 > 10 * RING_BYTES as u64);
    let unread = stream.unread(&served).unwrap();
    assert_eq!(unread.len() as u64, down.0 - down.1);
    assert!(unread.iter().all(|got| {
        down.1 += 1;
        *got == byte(down.1 - 1)
    }));
}

/// Messages that are read before the next one comes use the start of a ring only: another line each
/// time is another miss of the cache on both sides.
#[test]
fn short_messages_stay_in_a_few_cache_lines() {
    let map = memory(STREAM_BYTES);
    let stream = Stream::over(map.slice()).unwrap();
    stream.begin();
    let mut served = Served::default();
    let mut got = [0; 100];
    for turn in 0..5_000_u32 {
        let message = [turn as u8 | 1; 100];
        assert_eq!(stream.give(&mut served, &message), Ok(100));
        let Lock::Held(mut held) = stream.lock() else {
            panic!("nobody has it");
        };
        assert_eq!(held.read(&mut got, false, 0), Ok(100));
        assert_eq!(got, message);
        if turn % 2 == 0 {
            assert_eq!(held.write(&message), Ok(100));
        } else {
            // In pieces, of which only the first may choose the place.
            assert_eq!(held.put(0, &message[..40]), Ok(40));
            assert_eq!(held.put(40, &message[40..]), Ok(60));
            held.publish(100);
        }
        assert_eq!(stream.take(&mut served, &mut got), Ok(100));
        assert_eq!(got, message);
    }
    let used = |range: std::ops::Range<usize>| {
        let mut bytes = vec![0; range.len()];
        map.slice().read_at(range.start, &mut bytes);
        bytes.iter().filter(|byte| **byte != 0).count()
    };
    assert_eq!(used(512..512 + RING_BYTES), 100);
    assert_eq!(used(512 + RING_BYTES..STREAM_BYTES), 100);
}

/// Each side runs at its own speed, while rings grow under both.
#[test]
fn bytes_keep_their_order_while_rings_grow() {
    const BYTES: u64 = 12 << 20;
    let (map, large) = (memory(STREAM_BYTES), memory(LARGE_BYTES));
    let byte = |at: u64| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    let fill = |from: u64, to: &mut [u8]| {
        for (at, to) in to.iter_mut().enumerate() {
            *to = byte(from + at as u64);
        }
    };
    let check = |from: u64, got: &[u8]| {
        for (at, got) in got.iter().enumerate() {
            assert_eq!(*got, byte(from + at as u64));
        }
    };
    let small = Stream::over(map.slice()).unwrap();
    small.begin();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, mut served) = (small, Served::default());
            let (mut taken, mut given) = (0, 0);
            let mut bytes = vec![0; 24 << 10];
            while taken < BYTES || given < BYTES {
                if given > BYTES / 4 {
                    stream = small.with_large(Some(large.slice()));
                }
                let count = stream.take(&mut served, &mut bytes).unwrap();
                check(taken, &bytes[..count]);
                taken += count as u64;
                let left = (BYTES - given).min(bytes.len() as u64) as usize;
                fill(given, &mut bytes[..left]);
                given += stream.give(&mut served, &bytes[..left]).unwrap() as u64;
            }
        });
        scope.spawn(|| {
            let mut stream = small;
            let (mut read, mut written) = (0, 0);
            let mut bytes = vec![0; 40 << 10];
            while read < BYTES || written < BYTES {
                if !stream.has_large() && read > BYTES / 3 {
                    stream = small.with_large(Some(large.slice()));
                    stream.show_large();
                }
                let Lock::Held(mut held) = stream.lock() else {
                    panic!("nobody else has it");
                };
                let count = held.read(&mut bytes, false, 0).unwrap();
                check(read, &bytes[..count]);
                read += count as u64;
                let left = (BYTES - written).min(bytes.len() as u64) as usize;
                fill(written, &mut bytes[..left]);
                written += held.write(&bytes[..left]).unwrap() as u64;
            }
        });
    });
}

#[test]
fn flags_and_positions_of_any_kind_stay_within_the_memory() {
    let (map, large) = (memory(STREAM_BYTES), memory(LARGE_BYTES));
    let mut random = Random::new(11);
    for turn in 0..4_000 {
        let mut stream = Stream::over(map.slice()).unwrap();
        if turn % 2 == 0 {
            stream = stream.with_large(Some(large.slice()));
        }
        stream.begin();
        let mut served = Served::default();
        for _ in 0..4 {
            let at = [64, 72, 80, 128, 136, 144, 264, 268, 272][random.below(9) as usize];
            let near = random.below(2 * LARGE_RING_BYTES as u64);
            let value = [near, 1, u64::MAX - near][random.below(3) as usize];
            let bytes = value.to_ne_bytes();
            map.slice()
                .write_at(at, &bytes[..if at < 260 { 8 } else { 4 }]);
            let mut room = vec![0; random.below(70_000) as usize];
            let _ = stream.take(&mut served, &mut room);
            let _ = stream.give(&mut served, &room);
            let _ = (stream.state(), stream.unread(&served));
            if let Lock::Held(mut held) = stream.lock() {
                let _ = held.read(&mut room, random.below(2) == 0, random.below(9) as usize);
                let _ = (held.write(&room), held.skip(7), held.is_cramped());
            }
        }
    }
    // Large rings that this side does not have are none.
    let stream = Stream::over(map.slice()).unwrap();
    stream.begin();
    map.slice().write_at(268, &[1; 4]);
    assert!(stream.take(&mut Served::default(), &mut [0; 8]).is_err());
}

/// More bytes than a ring holds passed between the loads of the two positions: a healthy stream
/// looked broken, and poll(2) reported a hang-up.
#[test]
fn positions_that_advance_between_two_loads_are_loaded_again() {
    use crate::positions::between_moving;
    use std::cell::Cell;
    let room = || Ok(RING_BYTES);
    let (read, given) = (Cell::new(7), Cell::new(7));
    let passes = Cell::new(3);
    let load_given = || {
        if passes.get() > 0 {
            passes.set(passes.get() - 1);
            given.set(given.get() + 2 * RING_BYTES as u64);
            read.set(given.get() - 5);
        }
        given.get()
    };
    let found = between_moving(|| read.get(), load_given, room);
    assert_eq!(found, Ok((5, RING_BYTES)));
    // One that stays is wrong at once; a hostile one that changes for ever, in the end.
    let beyond = RING_BYTES as u64 + 1;
    assert_eq!(between_moving(|| 0, || beyond, room), Err(Broken));
    let hostile = Cell::new(0);
    let load_hostile = || {
        hostile.set(hostile.get() + 2 * beyond);
        hostile.get()
    };
    let found = between_moving(load_hostile, || 0, room);
    assert_eq!(found, Err(Broken));
}

#[test]
fn a_position_that_cannot_be_is_seen() {
    for (at, value) in [
        (64, RING_BYTES as u64 + 1),
        (64, u64::MAX),
        (80, 1),
        (80, u64::MAX / 2),
    ] {
        let map = memory(STREAM_BYTES);
        let stream = Stream::over(map.slice()).unwrap();
        stream.begin();
        map.slice().write_at(at, &value.to_ne_bytes());
        let mut served = Served::default();
        let taken = stream.take(&mut served, &mut [0; 8]);
        let given = stream.give(&mut served, &[0; 8]);
        assert!(taken.is_err() || given.is_err(), "{value} at {at}");
        assert!(stream.state().is_err());
    }
}

#[test]
fn a_stream_is_taken_back_once_nobody_copies() {
    let map = memory(STREAM_BYTES);
    let stream = Stream::over(map.slice()).unwrap();
    stream.begin();
    let held = stream.lock();
    assert!(matches!(stream.lock(), Lock::Busy));
    assert!(!stream.take_back(false));
    drop(held);
    assert!(stream.take_back(false));
    assert!(matches!(stream.lock(), Lock::TakenBack));
    // By force, while a thread copies: it stays taken.
    stream.begin();
    let held = stream.lock();
    assert!(stream.take_back(true));
    drop(held);
    assert!(matches!(stream.lock(), Lock::TakenBack));
}

#[test]
fn news_are_told_once_to_whom_they_are_for() {
    let map = memory(SEGMENT_BYTES);
    let process = Process::over(map.slice()).unwrap();
    for stream in [0, 63, 64, STREAMS - 1, STREAMS, u32::MAX] {
        process.tell_supervisor(stream);
        process.tell_waiter(63, stream);
        process.tell_waiter(64, stream);
    }
    let mut told = Vec::new();
    assert!(process.has_supervisor_news() && !process.has_waiter_news(62));
    process.take_supervisor_news(|stream| told.push(stream));
    process.take_waiter_news(62, |stream| told.push(stream));
    process.take_waiter_news(63, |stream| told.push(stream));
    process.take_waiter_news(63, |stream| told.push(stream));
    assert_eq!(told, [0, 63, 64, 1023, 0, 63, 64, 1023]);
    assert!(!process.has_supervisor_news() && !process.has_waiter_news(63));
    assert!(process.waiter_word(63).is_some() && process.waiter_word(64).is_none());
    assert!(Process::over(map.slice().range(0..4096).unwrap()).is_none());
}

#[test]
fn whom_to_tell_is_what_the_program_said() {
    let map = memory(STREAM_BYTES);
    let stream = Stream::over(map.slice()).unwrap();
    stream.begin();
    assert_eq!(stream.tells().count(), 0);
    stream.tell(0, Some(5));
    stream.tell(2, Some(0));
    stream.tell(3, Some(9));
    assert_eq!(stream.tells().collect::<Vec<_>>(), [5, 0]);
    stream.tell(0, None);
    assert_eq!(stream.tells().collect::<Vec<_>>(), [0]);
    assert!(!stream.program_waits());
    stream.wait_for_room();
    assert!(stream.program_waits() && !stream.program_waits());
    stream.wait_for_reading();
    let Lock::Held(held) = stream.lock() else {
        panic!("nobody has it");
    };
    assert!(held.supervisor_waits() && !held.supervisor_waits());
}

/// An address of the loopback, of either family.
fn loopback(random: &mut Random) -> SocketAddr {
    let port = u16::try_from(random.below(65_536)).unwrap();
    match random.below(2) {
        0 => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port),
        _ => SocketAddr::new(Ipv6Addr::LOCALHOST.into(), port),
    }
}

#[test]
fn the_directory_finds_what_it_has() {
    let map = memory(DIRECTORY_BYTES);
    let supervisor = Directory::over(map.slice()).unwrap();
    let library = Directory::over(map.slice().read_only()).unwrap();
    let mut random = Random::new(3);
    let mut ways: HashMap<SocketAddr, (SocketAddr, IpAddr)> = HashMap::new();
    let mut owners: Vec<Option<SocketAddr>> = vec![None; usize::from(WAYS)];
    for turn in 0..20_000_u64 {
        let at = loopback(&mut random);
        let number = random.below(WAYS.into());
        let owner = &mut owners[usize::try_from(number).unwrap()];
        // A way is written only once no address has it.
        if let Some(before) = owner.take() {
            supervisor.clear_way(before);
            ways.remove(&before);
        }
        if let std::collections::hash_map::Entry::Vacant(free) = ways.entry(at) {
            let from = SocketAddr::from(([10, 0, (turn >> 8) as u8, turn as u8], turn as u16));
            let to = IpAddr::from(
                u128::from(turn)
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    .to_be_bytes(),
            );
            supervisor.set_way(u16::try_from(number).unwrap(), at, from, to);
            free.insert((from, to));
            *owner = Some(at);
        }
        let (some, other) = (ways.keys().next(), loopback(&mut random));
        for at in some.into_iter().chain([&other]) {
            assert_eq!(library.way(*at), ways.get(at).copied());
        }
    }
    // The exact address counts: other processes can bind the port of another one.
    let at = *ways.keys().find(|at| at.is_ipv4()).unwrap();
    let elsewhere = SocketAddr::from(([127, 0, 0, 2], at.port()));
    assert_eq!(library.way(elsewhere), None);
    let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped().into();
    assert_eq!(
        library.way(SocketAddr::new(mapped, at.port())),
        ways.get(&at).copied()
    );
}

#[test]
fn a_place_is_its_sockets_alone() {
    let map = memory(DIRECTORY_BYTES);
    let directory = Directory::over(map.slice()).unwrap();
    let place = |number, generation| Place { number, generation };
    for place in [place(0, 0), place(0, u32::MAX), place(PLACES - 1, 7)] {
        assert_eq!(Place::of_bits(place.bits()), Some(place));
    }
    assert_eq!(Place::of_bits(0), None);
    let state = PlaceState {
        flags: OPEN | IS_V6 | WRITES,
        desk_port: 40_000,
    };
    directory.set_state(place(5, 2), state);
    assert_eq!(directory.state(place(5, 2)), Some(state));
    assert_eq!(directory.state(place(5, 1)), None);
    assert_eq!(directory.state(place(PLACES, 0)), None);
    assert!(state.has(OPEN | IS_V6) && !state.has(OPEN | SENDS_V4));
    assert_eq!(
        state.desk(),
        Some(SocketAddr::new(Ipv6Addr::LOCALHOST.into(), 40_000))
    );
    assert_eq!(PlaceState::default().desk(), None);
    let host = |last| IpAddr::from([10, 0, 0, last]);
    assert!(!directory.reaches(host(1)));
    directory.set_reaches(host(1), true);
    directory.set_reaches(host(2), false);
    assert!(directory.reaches(host(1)) && !directory.reaches(host(2)));
    directory.set_reaches(host(1), false);
    assert!(!directory.reaches(host(1)));
}

#[test]
fn any_bytes_are_a_directory() {
    let map = memory(DIRECTORY_BYTES);
    let directory = Directory::over(map.slice()).unwrap();
    let mut random = Random::new(9);
    for _ in 0..5 {
        let bytes: Vec<u8> = (0..DIRECTORY_BYTES)
            .map(|_| random.below(256) as u8)
            .collect();
        map.slice().write_at(0, &bytes);
        for _ in 0..2000 {
            let at = loopback(&mut random);
            let number = u32::try_from(random.below(2 * u64::from(PLACES))).unwrap();
            let place = Place {
                number,
                generation: 0,
            };
            // What is found is of this address; the rest is only read.
            let _ = (directory.way(at), directory.reaches(at.ip()));
            let state = directory.state(place);
            assert!(number < PLACES || state.is_none());
        }
    }
    assert!(Directory::over(map.slice().range(1..DIRECTORY_BYTES).unwrap()).is_none());
}

#[test]
fn frames_come_back_and_any_bytes_are_read() {
    for peer in ["10.0.0.1:53", "[fd00::1]:65535"] {
        let frame = Frame {
            peer: peer.parse().unwrap(),
            segment_bytes: 1200,
        };
        let message = [frame.bytes().as_slice(), b"payload"].concat();
        assert_eq!(Frame::read(&message), Some((frame, b"payload".as_slice())));
        assert_eq!(Frame::read(&message[1..]), None);
        assert_eq!(Frame::read(&message[..FRAME_BYTES - 1]), None);
        let port_0 = SocketAddr::new(frame.peer.ip(), 0);
        let bytes = Frame {
            peer: port_0,
            ..frame
        }
        .bytes();
        assert_eq!(Frame::read(&bytes), None);
    }
    let mut random = Random::new(11);
    for _ in 0..2000 {
        let bytes: Vec<u8> = (0..random.below(64))
            .map(|_| random.below(256) as u8)
            .collect();
        assert_eq!(Frame::read(&bytes), None);
    }
}

#[test]
fn names_come_back_and_any_bytes_are_read() {
    for (peer, is_v6) in [
        ("10.0.0.1:53", false),
        ("10.0.0.1:53", true),
        ("[fd00::1]:9", true),
    ] {
        let peer: SocketAddr = peer.parse().unwrap();
        let (name, bytes) = write_name(peer, is_v6);
        let (read, read_as_v6) = read_name(&name[..bytes]).unwrap();
        assert_eq!((plain(read), read_as_v6), (peer, is_v6));
        assert_eq!(read_name(&name[..bytes.min(15)]), None);
    }
    let mut random = Random::new(5);
    for _ in 0..2000 {
        let bytes: Vec<u8> = (0..random.below(40))
            .map(|_| random.below(12) as u8)
            .collect();
        if let Some((_, is_v6)) = read_name(&bytes) {
            assert!(bytes.len() >= if is_v6 { 24 } else { 16 });
        }
    }
}
