//! Both slices at the very end, and at the very start, of memory between inaccessible pages: a byte
//! read or written outside ends the test by a fault.

#[path = "../../../../../zstd/tests/common/guarded.rs"]
mod guarded;

use super::super::Inflate;
use super::streams::{Random, mutate, random_stream};
use super::{deflated, frames, inflate, samples};
use guarded::Guarded;

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
