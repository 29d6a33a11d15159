//! Upper bounds of the cost of one frame: no frame from an untrusted host occupies the engine for
//! long.
//!
//! Wall time is compared with a bound a thousand times the usual value. The stack is deterministic,
//! so the same frames are played several times, and each frame's minimum counts: a busy machine
//! does not fail this.

use crate::common;

use common::lone::{
    ALL_NODES, Lone, OUR_MAC, OURS, PEER, PEER_MAC, echo, ethernet, ipv4, ipv6, sealed, segment,
    v6_bytes,
};
use common::segment::internet_checksum;
use common::{MS, Random};
use std::time::{Duration, Instant};

/// Frames of all kinds: as they are, and with bytes changed.
fn frames(seed: u64) -> Vec<Vec<u8>> {
    let mut random = Random(seed);
    let mut all = Vec::new();
    for _ in 0..4_000 {
        let mut frame = one(&mut random);
        if random.below(2) == 0 {
            for _ in 0..=random.below(4) {
                let at = random.below(frame.len() as u64) as usize;
                frame[at] = random.below(256) as u8;
            }
        }
        all.push(frame);
    }
    all
}

fn one(random: &mut Random) -> Vec<u8> {
    match random.below(8) {
        0 => {
            // ARP from an unknown host, or in the name of one.
            let mut bytes = vec![0xff; 6];
            bytes.extend([2, 0, 0, 9, random.below(256) as u8, random.below(256) as u8]);
            bytes.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1 + random.below(2) as u8]);
            bytes.extend(PEER_MAC);
            bytes.extend([10, random.below(4) as u8, random.below(256) as u8, 2]);
            bytes.extend([0; 6]);
            bytes.extend(OURS);
            bytes
        }
        1 => {
            let options: Vec<u8> = (0..4 * random.below(11)).map(|_| byte(random)).collect();
            ethernet(OUR_MAC, 0x0800, &ipv4(PEER, OURS, 1, &options, &echo(8)))
        }
        2 => {
            // A chain of extension headers, with unknown options.
            let mut headers = Vec::new();
            let count = random.below(40);
            for left in (0..count).rev() {
                headers.push(if left == 0 { 59 } else { 60 });
                headers.push(0);
                headers.extend((0..6).map(|_| byte(random)));
            }
            let next = if count == 0 { 59 } else { 60 };
            ethernet(
                OUR_MAC,
                0x86dd,
                &ipv6(v6_bytes(2), v6_bytes(1), next, &headers),
            )
        }
        3 => fragment(random),
        4 => {
            // An ICMP error about data that was never sent.
            let about = ipv4(OURS, PEER, 6, &[], &segment([80, 7_000], 1, 2, 16));
            let mut bytes = vec![3, random.below(16) as u8, 0, 0, 0, 0, 0, byte(random)];
            bytes.extend(about);
            let sum = internet_checksum(&bytes);
            bytes[2..4].copy_from_slice(&sum.to_be_bytes());
            ethernet(OUR_MAC, 0x0800, &ipv4(PEER, OURS, 1, &[], &bytes))
        }
        5 => {
            // A router advertisement full of options.
            let mut bytes = vec![134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0];
            for _ in 0..random.below(60) {
                bytes.extend([byte(random), 1, 0, 0, 0, 0, byte(random), byte(random)]);
            }
            let from = v6_bytes(2);
            let bytes = sealed(&from, &ALL_NODES, 58, bytes, 2);
            ethernet(
                [0x33, 0x33, 0, 0, 0, 1],
                0x86dd,
                &ipv6(from, ALL_NODES, 58, &bytes),
            )
        }
        6 => {
            let flags = byte(random);
            tcp(random, 7_000, 80, flags)
        }
        _ => {
            // For a session: any part of its window, and any acknowledgment.
            let flags = [0x10, 0x18, 0x10, 0x11][random.below(4) as usize];
            tcp(random, 7_777, 80, flags)
        }
    }
}

fn byte(random: &mut Random) -> u8 {
    random.below(256) as u8
}

/// A segment with random options and a correct checksum.
fn tcp(random: &mut Random, from: u16, to: u16, flags: u8) -> Vec<u8> {
    let ports = [
        from + random.below(2) as u16 * (random.below(30_000) as u16),
        to,
    ];
    let sequence = 10 + random.below(60_000) as u32;
    let mut bytes = segment(ports, sequence, random.below(1 << 32) as u32, flags);
    let words = random.below(11) as usize;
    bytes[12] = (5 + words as u8) << 4;
    for _ in 0..words {
        bytes.extend([
            byte(random) % 10,
            byte(random) % 40,
            byte(random),
            byte(random),
        ]);
    }
    bytes.extend(vec![7; random.below(1_400) as usize]);
    let bytes = sealed(&PEER, &OURS, 6, bytes, 16);
    ethernet(OUR_MAC, 0x0800, &ipv4(PEER, OURS, 6, &[], &bytes))
}

/// A fragment of one of a few datagrams, which overlap.
fn fragment(random: &mut Random) -> Vec<u8> {
    let payload = vec![1; 8 * (1 + random.below(180) as usize)];
    let mut packet = ipv4(PEER, OURS, 17, &[], &payload);
    packet[5] = random.below(4) as u8;
    let more = if random.below(8) == 0 { 0 } else { 0x2000 };
    let offset = (random.below(8_000) as u16 | more).to_be_bytes();
    packet[6..8].copy_from_slice(&offset);
    packet[10..12].fill(0);
    let sum = internet_checksum(&packet[..20]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    ethernet(OUR_MAC, 0x0800, &packet)
}

/// A stack with a session that has much data in flight, and holes in its received data.
fn busy() -> Lone {
    let mut lone = Lone::new();
    let from_peer = |sequence, acknowledgment, flags| {
        let bytes = segment([7_777, 80], sequence, acknowledgment, flags);
        let bytes = sealed(&PEER, &OURS, 6, bytes, 16);
        ethernet(OUR_MAC, 0x0800, &ipv4(PEER, OURS, 6, &[], &bytes))
    };
    let syn_ack = lone.answers(from_peer(9, 0, 2));
    let number = u32::from_be_bytes(syn_ack[0][38..42].try_into().expect("four"));
    lone.answers(from_peer(10, number.wrapping_add(1), 16));
    lone
}

#[test]
fn no_packet_costs_a_millisecond() {
    for seed in 1..=3 {
        let frames = frames(seed);
        let mut least = vec![Duration::MAX; frames.len()];
        for _ in 0..5 {
            let mut lone = busy();
            // One pass without timing: memory is allocated at the first use, 2 MiB each time, up to
            // a bound.
            for round in 0..2 {
                for (frame, least) in frames.iter().zip(&mut least) {
                    let frame = frame.clone();
                    let begun = Instant::now();
                    let answers = lone.answers(frame).len();
                    let time = begun.elapsed();
                    if round > 0 {
                        *least = time.min(*least);
                    }
                    assert!(answers <= ANSWERS_MAX, "{answers} frames in answer to one");
                    lone.now_ns += MS;
                }
            }
        }
        let worst = least.iter().zip(&frames).max_by_key(|(time, _)| **time);
        let (time, frame) = worst.expect("frames");
        assert!(*time < Duration::from_millis(1), "{time:?}: {frame:02x?}");
    }
}

/// Frames in reply to one, at most: a window of pending data.
const ANSWERS_MAX: usize = 64;
