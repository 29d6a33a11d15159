//! Compressing: round trips, bounds, and sizes compared with the levels' promises.

use super::super::{LEVEL_MAX, LEVEL_MIN};
use super::streams::{Random, round_trip};
use super::{Deflate, Deflater, deflated, frames, samples};
use proptest::prelude::*;

#[test]
fn every_level_round_trips() {
    for level in LEVEL_MIN..=LEVEL_MAX {
        let mut deflate = Deflate::new(level);
        let mut stream = Vec::new();
        for (_, raw) in samples() {
            for frame in frames(&raw) {
                round_trip(&mut deflate, frame, &mut stream);
            }
            if level != 9 || raw.len() < 100_000 {
                round_trip(&mut deflate, &raw, &mut stream);
            }
        }
    }
}

#[test]
fn every_length_round_trips() {
    for level in [1, 3, 7] {
        let mut deflate = Deflate::new(level);
        let mut stream = Vec::new();
        let text = b"abcabcabdabcabcabcabcabcaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaabcabcabdabb";
        for end in 0..text.len() {
            for start in 0..end.min(8) {
                round_trip(&mut deflate, &text[start..end], &mut stream);
            }
        }
        // Noise of every length near those at which a run takes another byte.
        let mut random = Random(3);
        let noise: Vec<u8> = (0..1200).map(|_| random.bits() as u8).collect();
        for length in (0..300).chain(480..560).chain(750..800) {
            round_trip(&mut deflate, &noise[..length], &mut stream);
        }
    }
}

#[test]
fn streams_do_not_depend_on_the_frame_before() {
    let samples = samples();
    for level in [1, 3, 6] {
        let mut used = Deflate::new(level);
        for (name, raw) in &samples {
            let mut stream = Vec::new();
            used.deflate(&raw[..raw.len().min(70_000)], &mut stream)
                .unwrap();
            assert_eq!(
                stream,
                deflated(level, &raw[..raw.len().min(70_000)]),
                "{name}"
            );
        }
    }
}

#[test]
fn stronger_levels_are_smaller() {
    let (_, raw) = samples()
        .into_iter()
        .find(|(name, _)| *name == "program")
        .unwrap();
    let size = |level| {
        frames(&raw)
            .iter()
            .map(|frame| deflated(level, frame).len())
            .sum::<usize>()
    };
    let sizes: Vec<usize> = [1, 3, 5, 7, 9].into_iter().map(size).collect();
    assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
}

#[test]
fn zeros_shrink_as_far_as_the_format_can() {
    for level in [1, 5, 9] {
        assert!(
            deflated(level, &vec![0; 65_536]).len() < 300,
            "level {level}"
        );
    }
}

#[test]
fn levels_outside_are_brought_to_the_nearest() {
    let raw = include_bytes!("classes.rs");
    assert_eq!(deflated(0, raw), deflated(1, raw));
    assert_eq!(deflated(200, raw), deflated(9, raw));
}

proptest! {
    #[test]
    fn any_bytes_round_trip(
        pieces in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..40), 1usize..2000, 0usize..300),
            0..40,
        ),
        level in LEVEL_MIN..=LEVEL_MAX,
    ) {
        let mut raw = Vec::new();
        for (bytes, distance, count) in pieces {
            raw.extend(bytes);
            for _ in 0..count {
                if let Some(from) = raw.len().checked_sub(distance) {
                    raw.push(raw[from]);
                }
            }
        }
        round_trip(&mut Deflate::new(level), &raw, &mut Vec::new());
    }
}
