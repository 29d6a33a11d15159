//! Datagrams over one mapping, and any bytes in their rings.

use super::memory;
use crate::datagram::*;
use crate::*;
use sidecore_random::Random;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};

/// A datagram, by its number.
fn datagram(number: u64, random: &mut Random) -> (Head, Vec<u8>) {
    let bytes = match random.below(8) {
        0 => 0,
        1 => PAYLOAD_BYTES_MAX,
        2 => random.below(PAYLOAD_BYTES_MAX as u64) as usize,
        _ => random.below(1500) as usize,
    };
    let octets = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    let ip = match number % 2 {
        0 => IpAddr::from([10, octets[0], octets[1], octets[2]]),
        _ => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 1, u16::from(octets[3])]),
    };
    let head = Head {
        bytes,
        peer: SocketAddr::new(ip, number as u16),
        to: IpAddr::from([192, 0, 2, octets[4]]),
        segment_bytes: u16::from(octets[5]),
    };
    (head, vec![number as u8; bytes])
}

/// Writes a datagram as the library does; false if there is no room.
fn put(held: &mut Held<'_>, (head, payload): &(Head, Vec<u8>)) -> bool {
    let needed = HEAD_BYTES + payload.len();
    if held.room().unwrap() < needed {
        return false;
    }
    assert_eq!(held.put(0, &head.bytes()), Ok(HEAD_BYTES));
    assert_eq!(held.put(HEAD_BYTES, payload), Ok(payload.len()));
    held.publish(needed);
    true
}

/// Reads a datagram as the library does.
fn next(held: &mut Held<'_>) -> Option<(Head, Vec<u8>)> {
    let head = Head::next(held).unwrap()?;
    let mut payload = vec![0; head.bytes];
    assert_eq!(held.read(&mut payload, true, HEAD_BYTES), Ok(head.bytes));
    held.skip(HEAD_BYTES + head.bytes).unwrap();
    Some((head, payload))
}

#[test]
fn datagrams_pass_whole_and_in_order_both_ways() {
    let (map, large) = (memory(STREAM_BYTES), memory(LARGE_BYTES));
    let stream = Stream::over(map.slice()).unwrap();
    let stream = stream.with_large(Some(large.slice()));
    let mut served = stream.begin_large();
    let mut random = Random::new(17);
    let (mut up, mut down) = (VecDeque::new(), VecDeque::new());
    let mut buffer = vec![0; PAYLOAD_BYTES_MAX];
    let mut full = (false, false);
    for turn in 0..20_000 {
        let Lock::Held(mut held) = stream.lock() else {
            panic!("nobody has it");
        };
        // Writers are the faster ones at times, so that the rings run full, and empty.
        match random.below(4) + turn / 2000 % 2 {
            0 => {
                let taken = Head::take(stream, &mut served, &mut buffer).unwrap();
                let taken = taken.map(|head| (head, buffer[..head.bytes].to_vec()));
                assert_eq!(taken, up.pop_front());
            }
            1 => assert_eq!(next(&mut held), down.pop_front()),
            2 => {
                let one = datagram(turn, &mut random);
                match put(&mut held, &one) {
                    true => up.push_back(one),
                    false => full.0 = true,
                }
            }
            _ => {
                let (head, payload) = datagram(turn, &mut random);
                match head.give(stream, &mut served, &payload).unwrap() {
                    true => down.push_back((head, payload)),
                    false => full.1 = true,
                }
            }
        }
        let waits = |all: &VecDeque<(Head, Vec<u8>)>| -> usize {
            all.iter().map(|(head, _)| HEAD_BYTES + head.bytes).sum()
        };
        assert_eq!(held.readable(), Ok(waits(&down)));
        assert_eq!(held.room(), Ok(LARGE_RING_BYTES - waits(&up)));
    }
    assert_eq!(full, (true, true));
    // What was not read comes back, as a whole.
    assert!(stream.take_back(false));
    let unread = stream.unread(&served).unwrap();
    let mut rest = unread.as_slice();
    for (head, payload) in &down {
        let (one, bytes, behind) = Head::split(rest).unwrap();
        assert_eq!((one, bytes), (*head, payload.as_slice()));
        rest = behind;
    }
    assert_eq!((rest, Head::split(rest)), ([].as_slice(), None));
}

/// Either side may write anything: the other finds datagrams that are none, or ends the rings.
#[test]
fn any_bytes_in_rings_of_datagrams_are_read() {
    let (map, large) = (memory(STREAM_BYTES), memory(LARGE_BYTES));
    let view = Stream::over(map.slice()).unwrap();
    let stream = view.with_large(Some(large.slice()));
    let mut random = Random::new(23);
    let mut buffer = vec![0; PAYLOAD_BYTES_MAX];
    let (mut broken, mut read) = (0, 0);
    for turn in 0..3000 {
        let mut served = stream.begin_large();
        let filler: Vec<u8> = (0..4096).map(|_| random.below(256) as u8).collect();
        for half in [0, LARGE_RING_BYTES] {
            large.slice().write_at(half, &filler);
            // A length that may be right, in front of the rest.
            let length = (random.below(70_000) as u32).to_le_bytes();
            large.slice().write_at(half, &length);
        }
        // Positions of both sides: plausible ones, and any.
        for at in [64_usize, 192] {
            let position = match turn % 3 {
                0 => random.below(4096),
                1 => random.below(2 * LARGE_RING_BYTES as u64),
                _ => u64::MAX - random.below(1000),
            };
            map.slice().write_at(at, &position.to_le_bytes());
        }
        for _ in 0..100 {
            match Head::take(stream, &mut served, &mut buffer) {
                Ok(Some(head)) => read += usize::from(head.bytes <= PAYLOAD_BYTES_MAX),
                Ok(None) => break,
                Err(Broken) => {
                    broken += 1;
                    break;
                }
            }
        }
        let Lock::Held(mut held) = stream.lock() else {
            panic!("nobody has it");
        };
        match Head::next(&mut held) {
            Ok(Some(head)) => {
                let there = held.readable().unwrap();
                assert!(there >= HEAD_BYTES + head.bytes);
                read += 1;
            }
            Ok(None) => {}
            Err(Broken) => broken += 1,
        }
    }
    assert!(broken > 500 && read > 100, "{broken} {read}");
    // Large rings that this side does not have.
    stream.begin();
    let _ = stream.begin_large();
    let Lock::Held(held) = view.lock() else {
        panic!("nobody has it");
    };
    assert_eq!((held.room(), held.readable()), (Err(Broken), Err(Broken)));
}

#[test]
fn heads_come_back_and_long_ones_are_none() {
    let mut random = Random::new(29);
    for number in 0..200 {
        let (head, _) = datagram(number, &mut random);
        assert_eq!(Head::read(&head.bytes()), Some(head));
        let long = Head {
            bytes: PAYLOAD_BYTES_MAX + 1 + number as usize,
            ..head
        };
        assert_eq!(Head::read(&long.bytes()), None);
    }
    for _ in 0..2000 {
        let bytes: Vec<u8> = (0..random.below(100))
            .map(|_| random.below(4) as u8)
            .collect();
        if let Some((head, payload, rest)) = Head::split(&bytes) {
            assert_eq!(head.bytes, payload.len());
            assert_eq!(HEAD_BYTES + payload.len() + rest.len(), bytes.len());
        }
    }
}

/// A class is that of the destination's family: a program may give both, and either.
#[test]
fn each_family_has_its_class() {
    let head = Head {
        bytes: 1,
        peer: "10.0.0.1:1".parse().unwrap(),
        to: "0.0.0.0".parse().unwrap(),
        segment_bytes: 0,
    };
    let hosts: [IpAddr; 2] = ["10.0.0.1", "fd91::1"].map(|ip| ip.parse().unwrap());
    for classes in [
        [None, None],
        [Some(0), None],
        [None, Some(7)],
        [Some(255), Some(0)],
    ] {
        let sent = head.with_classes(classes).bytes();
        let came = Head::read(&sent).unwrap();
        assert_eq!(hosts.map(|host| came.class_to(host)), classes);
    }
}
