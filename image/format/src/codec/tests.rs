//! One conformance suite over all codecs, and tests of single codecs.

use super::*;
use std::io::Write;
use std::process::{Command, Stdio};

/// Every codec, with its name for failures.
fn codecs() -> impl Iterator<Item = CodecId> {
    CodecId::ALL.into_iter()
}

/// Contents of many kinds: empty runs, text, noise, far matches, odd lengths.
fn samples() -> Vec<(&'static str, Vec<u8>)> {
    let mut noise = Noise(0x5EED);
    let text: Vec<u8> = (0..9000_u32)
        .flat_map(|i| format!("line {} of text; ", i * i).into_bytes())
        .collect();
    let mut mixed = Vec::new();
    while mixed.len() < 65536 {
        match noise.next() % 4 {
            0 => mixed.extend(std::iter::repeat_n(
                noise.next() as u8,
                (noise.next() % 3000) as usize,
            )),
            1 => mixed.extend((0..noise.next() % 500).map(|_| noise.next() as u8)),
            2 => {
                let start = noise.next() as usize % text.len();
                mixed.extend_from_slice(&text[start..(start + 700).min(text.len())]);
            }
            _ => {
                let start = noise.next() as usize % mixed.len().max(1);
                let copy = mixed[start..(start + 900).min(mixed.len())].to_vec();
                mixed.extend(copy);
            }
        }
    }
    mixed.truncate(65536);
    vec![
        ("one byte", vec![42]),
        ("short", b"sidecore".to_vec()),
        ("zeros", vec![0; 65536]),
        ("noise", (0..65536).map(|_| noise.next() as u8).collect()),
        ("text", text[..65536].to_vec()),
        ("mixed", mixed.clone()),
        ("odd", mixed[..12_345].to_vec()),
        (
            "large",
            text.iter().chain(&mixed).chain(&text).copied().collect(),
        ),
    ]
}

#[test]
fn what_is_deflated_inflates_again() {
    for codec in codecs() {
        let levels = levels(codec);
        for level in [*levels.start(), default_level(codec), *levels.end()] {
            let mut deflater = make_deflater(codec, Some(level)).unwrap();
            assert_eq!(deflater.codec(), codec);
            let mut inflater = make_inflater(codec);
            assert_eq!(inflater.codec(), codec);
            let mut stored = b"old contents".to_vec();
            for (name, raw) in samples() {
                deflater.deflate(&raw, &mut stored).unwrap();
                for verified in [false, true] {
                    inflater.set_verified(verified);
                    let mut out = vec![0xAA; raw.len()];
                    inflater.inflate(&stored, &mut out).unwrap();
                    assert!(out == raw, "{codec} level {level}: {name}");
                }
            }
        }
    }
}

#[test]
fn a_frame_can_be_had_piece_by_piece() {
    for codec in codecs() {
        let mut deflater = make_deflater(codec, None).unwrap();
        let mut inflater = make_inflater(codec);
        let mut stored = Vec::new();
        for (name, raw) in samples() {
            deflater.deflate(&raw, &mut stored).unwrap();
            for step in [1, 511, 4096, 40_000] {
                if step == 1 && raw.len() > 20_000 {
                    continue;
                }
                inflater.reset();
                let mut out = vec![0xAA; raw.len()];
                let mut done = 0;
                let mut target = step.min(raw.len());
                while done < raw.len() {
                    let now = inflater.advance(&stored, &mut out, target).unwrap();
                    assert!(
                        now >= target && now >= done && now <= raw.len(),
                        "{codec}: {name}"
                    );
                    assert!(out[..now] == raw[..now], "{codec}: {name} at {target}");
                    done = now;
                    target = (target + step).min(raw.len());
                }
                // Advancing a finished frame again gives the same result.
                assert_eq!(
                    inflater.advance(&stored, &mut out, raw.len()),
                    Ok(raw.len())
                );
            }
        }
    }
}

#[test]
fn codecs_with_blocks_stop_early() {
    let raw = samples().remove(5).1;
    for (codec, block) in [
        (CodecId::Zstd, zstd::BLOCK_BYTES as usize),
        (CodecId::Lz4Frame, lz4::BLOCK_BYTES),
    ] {
        let mut stored = Vec::new();
        make_deflater(codec, None)
            .unwrap()
            .deflate(&raw, &mut stored)
            .unwrap();
        let mut inflater = make_inflater(codec);
        let mut out = vec![0; raw.len()];
        let done = inflater.advance(&stored, &mut out, 4096).unwrap();
        assert!((4096..=block).contains(&done), "{codec} stopped at {done}");
    }
}

#[test]
fn a_frame_cut_short_anywhere_is_refused() {
    for codec in codecs() {
        let mut deflater = make_deflater(codec, None).unwrap();
        let mut inflater = make_inflater(codec);
        let mut stored = Vec::new();
        for (name, raw) in samples() {
            deflater.deflate(&raw, &mut stored).unwrap();
            let mut out = vec![0; raw.len()];
            let few = stored.len().div_ceil(800).max(1);
            for cut in (0..stored.len())
                .step_by(few)
                .chain(stored.len().saturating_sub(20)..stored.len())
            {
                // A boxed copy, so that a read past its end is one past an allocation.
                let short: Box<[u8]> = stored[..cut].into();
                let result = inflater.inflate(&short, &mut out);
                assert!(
                    result.is_err(),
                    "{codec}: {name} cut to {cut} of {}",
                    stored.len()
                );
            }
        }
    }
}

#[test]
fn a_wrong_length_is_refused() {
    for codec in codecs() {
        let mut deflater = make_deflater(codec, None).unwrap();
        let mut inflater = make_inflater(codec);
        let mut stored = Vec::new();
        for (name, raw) in samples() {
            deflater.deflate(&raw, &mut stored).unwrap();
            for expected in [
                1,
                raw.len() / 2,
                raw.len() - 1,
                raw.len() + 1,
                raw.len() * 2,
            ] {
                if expected == 0 || expected == raw.len() {
                    continue;
                }
                let mut out = vec![0; expected].into_boxed_slice();
                let result = inflater.inflate(&stored, &mut out);
                assert!(
                    result.is_err(),
                    "{codec}: {name} as {expected} of {}",
                    raw.len()
                );
            }
        }
    }
}

#[test]
fn damage_never_panics_and_seldom_passes() {
    let seed = 7;
    let mut noise = Noise(seed);
    for codec in codecs() {
        let mut deflater = make_deflater(codec, None).unwrap();
        let mut inflater = make_inflater(codec);
        let mut stored = Vec::new();
        for (name, raw) in samples() {
            deflater.deflate(&raw, &mut stored).unwrap();
            let mut out = vec![0; raw.len()].into_boxed_slice();
            for _ in 0..60 {
                let mut damaged: Box<[u8]> = stored.as_slice().into();
                for _ in 0..=noise.next() % 4 {
                    let at = noise.next() as usize % damaged.len();
                    damaged[at] ^= 1 << (noise.next() % 8);
                }
                let passes = inflater.inflate(&damaged, &mut out).is_ok();
                let carries_check = matches!(
                    codec,
                    CodecId::Zlib | CodecId::Zstd | CodecId::Lz4Frame | CodecId::Xz
                );
                if passes && carries_check {
                    assert!(
                        *out == *raw,
                        "{codec}: {name}: wrong bytes passed, seed {seed}"
                    );
                }
            }
        }
    }
}

#[test]
fn random_bytes_never_panic() {
    let seed = 11;
    let mut noise = Noise(seed);
    for codec in codecs() {
        let mut inflater = make_inflater(codec);
        let mut stored = Vec::new();
        make_deflater(codec, None)
            .unwrap()
            .deflate(&samples().remove(5).1, &mut stored)
            .unwrap();
        for round in 0..3000 {
            // Half of them with a plausible beginning.
            let keep = if round % 2 == 0 {
                0
            } else {
                noise.next() as usize % 64
            };
            let mut bytes = stored[..keep.min(stored.len())].to_vec();
            bytes.extend((0..noise.next() % 300).map(|_| noise.next() as u8));
            let mut out = vec![0; 1 + noise.next() as usize % 5000].into_boxed_slice();
            let _ = inflater.inflate(&bytes.into_boxed_slice(), &mut out);
        }
    }
}

#[test]
fn other_buffers_in_the_middle_of_a_frame_are_refused() {
    let raw = samples().remove(5).1;
    for codec in [CodecId::Zstd, CodecId::Lz4Frame, CodecId::Xz] {
        let mut stored = Vec::new();
        make_deflater(codec, None)
            .unwrap()
            .deflate(&raw, &mut stored)
            .unwrap();
        let mut inflater = make_inflater(codec);
        let mut out = vec![0; raw.len()];
        let done = inflater.advance(&stored, &mut out, 10).unwrap();
        assert!(done < raw.len(), "{codec}");
        let mut other = out.clone();
        assert!(
            inflater.advance(&stored, &mut other, raw.len()).is_err(),
            "{codec}"
        );
        inflater.reset();
        assert_eq!(
            inflater.advance(&stored, &mut other, raw.len()),
            Ok(raw.len())
        );
    }
}

#[test]
fn an_error_stays_until_the_next_reset() {
    let raw = samples().remove(5).1;
    for codec in [CodecId::Zstd, CodecId::Lz4Frame, CodecId::Xz] {
        let mut stored = Vec::new();
        make_deflater(codec, None)
            .unwrap()
            .deflate(&raw, &mut stored)
            .unwrap();
        let half = stored.len() / 2;
        let mut inflater = make_inflater(codec);
        let mut out = vec![0; raw.len()];
        let first = inflater
            .advance(&stored[..half], &mut out, raw.len())
            .unwrap_err();
        assert_eq!(
            inflater.advance(&stored[..half], &mut out, 1),
            Err(first),
            "{codec}"
        );
        inflater.inflate(&stored, &mut out).unwrap();
        assert!(out == raw);
    }
}

#[test]
fn zstd_takes_several_frames_and_skippable_ones() {
    let raw = samples().remove(4).1;
    let (mut one, mut all) = (Vec::new(), Vec::new());
    let mut deflater = make_deflater(CodecId::Zstd, None).unwrap();
    for part in raw.chunks(20_000) {
        deflater.deflate(part, &mut one).unwrap();
        all.extend(0x184D_2A53_u32.to_le_bytes());
        all.extend(5_u32.to_le_bytes());
        all.extend(b"skip!");
        all.extend_from_slice(&one);
    }
    all.extend(0x184D_2A50_u32.to_le_bytes());
    all.extend(0_u32.to_le_bytes());
    let mut out = vec![0; raw.len()];
    make_inflater(CodecId::Zstd)
        .inflate(&all, &mut out)
        .unwrap();
    assert!(out == raw);
}

/// The header names a dictionary, and from its sixth byte on it is a frame of one byte.
#[test]
fn zstd_takes_no_frame_out_of_a_header() {
    let hiding = [0x28, 0xB5, 0x2F, 0xFD, 0x83];
    let hidden = [0x28, 0xB5, 0x2F, 0xFD, 0x20, 1, 0x0B, 0, 0, b'x'];
    // A run of 2816 bytes.
    let rest = [0x28, 0xB5, 0x2F, 0xFD, 0x60, 0, 0x0A, 3, 0x58, 0, b'x'];
    let mut inflater = make_inflater(CodecId::Zstd);
    let mut out = vec![0; 2817];
    let inner = [&hidden[..], &rest[..]].concat();
    let whole = [&hiding[..], &inner[..]].concat();
    for first in [1, out.len()] {
        inflater.reset();
        let taken = inflater.advance(&inner, &mut out, first);
        assert_eq!(taken, Ok(first));
        inflater.reset();
        let refused = inflater.advance(&whole, &mut out, first);
        assert!(refused.is_err(), "{first}");
    }
}

#[test]
fn a_verified_frame_is_not_checked_again() {
    let raw = samples().remove(4).1;
    for codec in [CodecId::Zstd, CodecId::Lz4Frame] {
        let mut stored = Vec::new();
        make_deflater(codec, None)
            .unwrap()
            .deflate(&raw, &mut stored)
            .unwrap();
        *stored.last_mut().unwrap() ^= 1;
        let mut inflater = make_inflater(codec);
        let mut out = vec![0; raw.len()];
        assert!(
            inflater.inflate(&stored, &mut out).is_err(),
            "{codec}: unverified"
        );
        inflater.set_verified(true);
        inflater.inflate(&stored, &mut out).unwrap();
        assert!(out == raw);
    }
}

#[test]
fn frames_that_other_tools_make_inflate() {
    let raw = samples().remove(7).1;
    let cases: [(CodecId, &str, &[&str]); 8] = [
        (CodecId::Zstd, "zstd", &["-c", "-19", "--check"]),
        (CodecId::Zstd, "zstd", &["-c", "-1", "--no-check"]),
        (CodecId::Xz, "xz", &["-c", "-9", "--check=sha256"]),
        (CodecId::Xz, "xz", &["-c", "-0", "--check=none"]),
        (CodecId::Lz4Frame, "lz4", &["-c", "-9", "-B4", "-BD"]),
        (CodecId::Lz4Frame, "lz4", &["-c", "-1", "-B7", "-BX"]),
        (CodecId::Lz4Frame, "lz4", &["-c", "--no-frame-crc", "-B5"]),
        (CodecId::Lz4Frame, "lz4", &["-c", "--content-size", "-BI"]),
    ];
    for (codec, program, arguments) in cases {
        let stored = pipe(program, arguments, &raw);
        let mut out = vec![0; raw.len()];
        let result = make_inflater(codec).inflate(&stored, &mut out);
        assert_eq!(result, Ok(()), "{program} {arguments:?}");
        assert!(out == raw, "{program} {arguments:?}");
    }
}

#[test]
fn other_tools_read_our_frames() {
    for (codec, program) in [
        (CodecId::Zstd, "zstd"),
        (CodecId::Lz4Frame, "lz4"),
        (CodecId::Xz, "xz"),
    ] {
        let mut deflater = make_deflater(codec, None).unwrap();
        let mut stored = Vec::new();
        for (name, raw) in samples() {
            deflater.deflate(&raw, &mut stored).unwrap();
            assert!(pipe(program, &["-dc"], &stored) == raw, "{program}: {name}");
        }
    }
}

/// Runs a program over `input`.
fn pipe(program: &str, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot run {program}: {error}; run scripts/setup"));
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    let feeder = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().unwrap();
    feeder.join().unwrap().unwrap();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        output.status
    );
    output.stdout
}

/// Noise: same seed, same tests.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        sidecore_random::split_mix(&mut self.0)
    }
}
