//! Comparison with other programs: lzokay in this process, liblzo2 in a program of its own.
//!
//! Both slices at the very end, and at the very start, of memory between inaccessible pages: a byte
//! read or written outside ends the test by a fault.

use super::super::{Inflate, LEVEL_MAX, LEVEL_MIN};
use super::differ::fuzz_inflate;
use super::guarded::Guarded;
use super::peer::Peer;
use super::streams::{Random, mutate, random_stream};
use super::{deflated, frames, inflate, samples};
use proptest::prelude::*;

fn peer() -> Peer {
    Peer::build().unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn inflates_what_liblzo2_and_lzokay_deflate() {
    let peer = peer();
    let samples = samples();
    let blocks: Vec<&[u8]> = samples
        .iter()
        .flat_map(|(_, raw)| [frames(raw), vec![raw]].concat())
        .collect();
    for mode in ["compress1", "compress999"] {
        let streams = peer.compress(mode, &blocks).unwrap();
        assert_eq!(streams.len(), blocks.len());
        for (stream, block) in streams.iter().zip(&blocks) {
            assert_eq!(
                inflate(stream, block.len()).as_deref(),
                Ok(*block),
                "{mode}"
            );
        }
    }
    // Without the empty block, for which lzokay gives no valid stream.
    for block in blocks.iter().filter(|block| !block.is_empty()) {
        let stream = lzokay::compress::compress(block).unwrap();
        assert!(inflate(&stream, block.len()).unwrap() == *block);
    }
}

#[test]
fn liblzo2_and_lzokay_inflate_what_we_deflate() {
    let peer = peer();
    let samples = samples();
    let blocks: Vec<&[u8]> = samples.iter().flat_map(|(_, raw)| frames(raw)).collect();
    for level in LEVEL_MIN..=LEVEL_MAX {
        let streams: Vec<Vec<u8>> = blocks.iter().map(|block| deflated(level, block)).collect();
        let asked: Vec<(usize, &[u8])> = streams
            .iter()
            .zip(&blocks)
            .map(|(stream, block)| (block.len(), &stream[..]))
            .collect();
        for ((status, out), block) in peer.decompress(&asked).unwrap().iter().zip(&blocks) {
            assert!(
                *status == 0 && out == block,
                "level {level}: status {status}"
            );
        }
        for (stream, block) in streams
            .iter()
            .zip(&blocks)
            .filter(|(_, block)| !block.is_empty())
        {
            let out = super::lzokay_inflate(stream, block.len());
            assert!(out == *block, "level {level}");
        }
    }
}

/// liblzo2 accepts a damaged stream exactly when we do, and then gives the same bytes.
#[test]
fn liblzo2_refuses_what_we_refuse() {
    let seed = 20_261_121;
    let mut random = Random(seed);
    let mut cases = Vec::new();
    for _ in 0..20_000 {
        let output_max = 1 + random.below(1200);
        let (mut stream, room) = random_stream(&mut random, output_max, 300);
        if !random.once_in(4) {
            mutate(&mut random, &mut stream);
        }
        cases.push((room + random.below(20), stream));
    }
    for _ in 0..100 {
        let (mut stream, room) = random_stream(&mut random, 60_000, 3000);
        mutate(&mut random, &mut stream);
        cases.push((room, stream));
    }
    for marker in [
        &[0x12, 0, 0][..],
        &[0x17, 3, 0],
        &[0x10, 1, 0, 0],
        &[0x10, 0, 9, 2, 0],
    ] {
        cases.push((100, [b"\x15abcd", marker].concat()));
        cases.push((100, [b"\x15abcd", marker, &[0]].concat()));
    }
    let asked: Vec<(usize, &[u8])> = cases
        .iter()
        .map(|(room, stream)| (*room, &stream[..]))
        .collect();
    let answers = peer().decompress(&asked).unwrap();
    assert_eq!(answers.len(), cases.len());
    let mut good = 0;
    for (index, ((room, stream), (status, out))) in cases.iter().zip(answers).enumerate() {
        let ours = inflate(stream, *room);
        match (&ours, status) {
            (Ok(bytes), 0) => assert!(*bytes == out, "seed {seed} case {index}: other bytes"),
            (Err(_), status) if status != 0 => {}
            _ => panic!(
                "seed {seed} case {index}: {:?}, liblzo2 says {status}",
                ours.map(|b| b.len())
            ),
        }
        good += usize::from(status == 0);
    }
    // Both kinds must occur, or the test would prove nothing.
    assert!(
        good > 2000 && good < cases.len() - 2000,
        "{good} good of {}",
        cases.len()
    );
}

/// The sizes that the levels were designed for, as promised in the module's README.
#[test]
fn sizes_against_liblzo2() {
    let samples = samples();
    let raw = &samples
        .iter()
        .find(|(name, _)| *name == "program")
        .unwrap()
        .1;
    let blocks = frames(raw);
    let peer = peer();
    let total = |streams: Vec<Vec<u8>>| streams.iter().map(Vec::len).sum::<usize>() as f64;
    let ours = |level| total(blocks.iter().map(|block| deflated(level, block)).collect());
    assert!(ours(1) <= total(peer.compress("compress1", &blocks).unwrap()));
    assert!(ours(9) * 0.97 <= total(peer.compress("compress999", &blocks).unwrap()));
}

proptest! {
    #[test]
    fn any_bytes_are_read_alike(data in prop::collection::vec(any::<u8>(), 0..400)) {
        fuzz_inflate(&data);
    }

    #[test]
    fn any_damage_is_read_alike(seed in any::<u64>(), pace in any::<u8>()) {
        let mut random = Random(seed);
        let (mut stream, room) = random_stream(&mut random, 3000, 500);
        mutate(&mut random, &mut stream);
        let mut data = (room as u32).to_le_bytes()[..3].to_vec();
        data.push(pace);
        data.extend(stream);
        fuzz_inflate(&data);
    }
}

/// Decompresses with both slices at the guard pages, at targets `step` apart.
fn guarded(pages: &mut [Guarded; 2], stream: &[u8], room: usize, step: usize) {
    let expected = inflate(stream, room);
    let [input, output] = pages;
    for at_end in [true, false] {
        let frame = input.slice(stream.len(), at_end);
        let out = output.slice(room, at_end);
        frame.copy_from_slice(stream);
        let mut inflate = Inflate::new();
        let mut target = 0;
        let got = loop {
            target = room.min(target + step);
            match inflate.try_advance(frame, out, target) {
                Ok(count) if inflate.has_ended() => break Ok(out[..count].to_vec()),
                Ok(_) => {}
                Err(error) => break Err(error),
            }
        };
        assert!(got == expected, "fast and plain differ");
    }
}

#[test]
fn real_streams_stay_inside() {
    let mut pages = [Guarded::new(80_000), Guarded::new(80_000)];
    for (_, raw) in samples() {
        for frame in frames(&raw) {
            for level in [1, 5] {
                let stream = deflated(level, frame);
                guarded(&mut pages, &stream, frame.len(), frame.len().max(1));
                guarded(&mut pages, &stream, frame.len(), 1000);
                // Truncated, and with less space than it needs.
                guarded(
                    &mut pages,
                    &stream[..stream.len() * 2 / 3],
                    frame.len(),
                    5000,
                );
                guarded(&mut pages, &stream, frame.len() / 2, frame.len().max(1));
            }
        }
    }
}

#[test]
fn damaged_streams_stay_inside() {
    let seed = 99;
    let mut random = Random(seed);
    let mut pages = [Guarded::new(80_000), Guarded::new(80_000)];
    for case in 0..30_000 {
        let output_max = 1 + random.below(if case % 100 == 0 { 60_000 } else { 600 });
        let (mut stream, room) = random_stream(&mut random, output_max, 50);
        mutate(&mut random, &mut stream);
        stream.truncate(79_000);
        let room = (room + random.below(3)).min(79_000);
        guarded(&mut pages, &stream, room, 1 + random.below(700));
    }
}
