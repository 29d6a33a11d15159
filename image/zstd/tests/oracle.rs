//! Compares the decoder with libzstd: the same bytes from the same frames, and the same frames
//! refused.
//!
//! Contents of several kinds, all levels, sizes from none to several blocks, blocks of all lengths;
//! then frames with changed bytes, cut short, and spliced from others.
//! `SIDECORE_ZSTD_MUTATED_FRAMES` sets how many changed frames (20,000).
//!
//! Both slices at the very end, and at the very start, of memory between inaccessible pages: a byte
//! read or written outside ends the test by a fault.

#[path = "common/guarded.rs"]
mod guarded;

use guarded::Guarded;
use sidecore_random::Random;
use sidecore_zstd::{Decoder, Error, Progress};
use zstd_safe::{CCtx, CParameter, DCtx, FrameFormat};

/// Contents of a frame.
#[derive(Debug, Clone, Copy)]
enum Contents {
    Zeros,
    Noise,
    /// Words of few letters: many short matches.
    Text,
    /// Records that are alike: repeated offsets.
    Records,
    /// Runs of one byte and of short patterns: matches that overlap.
    Runs,
    /// Noise, and repeats of it at large distances.
    Far,
    /// Few symbols, unevenly distributed: literals in a Huffman tree, few matches.
    Skewed,
}

const CONTENTS: [Contents; 7] = [
    Contents::Zeros,
    Contents::Noise,
    Contents::Text,
    Contents::Records,
    Contents::Runs,
    Contents::Far,
    Contents::Skewed,
];

fn contents(kind: Contents, bytes: usize, random: &mut Random) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes + 512);
    while out.len() < bytes {
        match kind {
            Contents::Zeros => out.push(0),
            Contents::Noise => out.extend(random.bits().to_le_bytes()),
            Contents::Text => {
                let word = random.below(300);
                let letters = 2 + word % 7;
                out.extend((0..letters).map(|at| b'a' + ((word * 31 + at * at * 7) % 26) as u8));
                out.push(b' ');
            }
            Contents::Records => {
                let fields = [random.below(4), 7, random.below(1000), 0, random.below(2)];
                for field in fields {
                    out.extend((field as u32).to_le_bytes());
                }
            }
            Contents::Runs => {
                let pattern = 1 + random.below(20) as usize;
                let first = random.bits().to_le_bytes();
                let count = 1 + random.below(300) as usize;
                out.extend((0..count).map(|at| first[at % pattern % 8] ^ (at % pattern) as u8));
            }
            Contents::Far if out.len() > 4096 && random.below(2) == 0 => {
                let from = random.below(out.len() as u64 - 64) as usize;
                let count = 3 + random.below(61) as usize;
                out.extend_from_within(from..from + count);
            }
            Contents::Far => out.extend(random.bits().to_le_bytes()),
            Contents::Skewed => {
                let bits = random.bits().trailing_zeros() as u8;
                out.push(bits.wrapping_mul(17));
            }
        }
    }
    out.truncate(bytes);
    out
}

/// The method of making a frame.
#[derive(Debug, Clone, Copy)]
struct Making {
    level: i32,
    block_bytes: u32,
    has_checksum: bool,
    has_size: bool,
}

fn compress(raw: &[u8], making: Making) -> Vec<u8> {
    let mut context = CCtx::create();
    for parameter in [
        CParameter::CompressionLevel(making.level),
        CParameter::ChecksumFlag(making.has_checksum),
        CParameter::ContentSizeFlag(making.has_size),
        CParameter::MaxBlockSize(making.block_bytes),
    ] {
        context.set_parameter(parameter).expect("libzstd takes it");
    }
    let mut frame = Vec::with_capacity(zstd_safe::compress_bound(raw.len()) + raw.len() / 8 + 512);
    context.compress2(&mut frame, raw).expect("it compresses");
    frame
}

/// Compares both decoders on one input; returns true if it was accepted.
struct Both {
    ours: Decoder,
    theirs: DCtx<'static>,
    our_out: Vec<u8>,
    their_out: Vec<u8>,
}

impl Both {
    fn new() -> Self {
        Self {
            ours: Decoder::new(),
            theirs: DCtx::create(),
            our_out: Vec::new(),
            their_out: Vec::new(),
        }
    }

    fn decode(&mut self, input: &[u8], room: usize) -> bool {
        self.our_out.clear();
        self.our_out.resize(room, 0xA5);
        self.their_out.clear();
        self.their_out.resize(room, 0x5A);
        let ours = self.ours.decode(input, &mut self.our_out);
        let theirs = self.theirs.decompress(&mut self.their_out[..], input);
        match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => {
                assert_eq!(ours, theirs, "as long as theirs");
                assert!(
                    self.our_out[..ours] == self.their_out[..theirs],
                    "as theirs"
                );
                true
            }
            (Err(_), Err(_)) => false,
            (Ok(bytes), Err(code)) => panic!(
                "only libzstd refuses, {}: {bytes} bytes from {input:02x?}",
                zstd_safe::get_error_name(code)
            ),
            // RFC 8878, section 4.2.2: a stream that is not used up is damaged. libzstd checks that
            // only where its fast loop does not run. Section 3.1.1.2.4: no block is longer than the
            // window; libzstd checks that only while streaming.
            (Err(Error::Literals | Error::Block), Ok(_)) => false,
            (Err(error), Ok(bytes)) => {
                panic!("only we refuse, {error}: they have {bytes} bytes from {input:02x?}")
            }
        }
    }
}

#[test]
fn frames_of_every_level_size_and_kind_give_what_went_in() {
    let mut both = Both::new();
    let mut random = Random::new(1);
    let sizes = [
        0, 1, 5, 63, 64, 255, 256, 1000, 4096, 30_000, 65_536, 200_000,
    ];
    for kind in CONTENTS {
        for (index, &size) in sizes.iter().enumerate() {
            let raw = contents(kind, size, &mut random);
            for level in [-5, 1, 3, 6, 9, 15, 19, 22] {
                let making = Making {
                    level,
                    block_bytes: [131_072, 32_768, 4096, 1024]
                        [(index + level.unsigned_abs() as usize) % 4],
                    has_checksum: random.below(2) == 0,
                    has_size: random.below(4) != 0,
                };
                let frame = compress(&raw, making);
                assert!(both.decode(&frame, raw.len()), "{kind:?} {size} {making:?}");
                assert!(both.our_out == raw, "{kind:?} {size} {making:?}");
                // Also with an output that is too large.
                assert!(both.decode(&frame, raw.len() + 200));
                assert!(raw.is_empty() || !both.decode(&frame, raw.len() - 1));
            }
        }
    }
}

#[test]
fn long_frames_and_lists_that_are_full_decode() {
    let mut both = Both::new();
    let mut random = Random::new(2);
    for kind in CONTENTS {
        let raw = contents(kind, 3_000_000, &mut random);
        for level in [1, 12, 19] {
            let frame = compress(
                &raw,
                Making {
                    level,
                    block_bytes: 131_072,
                    has_checksum: true,
                    has_size: false,
                },
            );
            assert!(both.decode(&frame, raw.len()), "{kind:?} {level}");
            assert!(both.our_out == raw, "{kind:?} {level}");
        }
    }
    // Matches of three bytes only, more of them than fit in a list.
    let mut raw = Vec::new();
    let words: Vec<[u8; 3]> = (0..200)
        .map(|_| random.bits().to_le_bytes())
        .map(|w| [w[0], w[1], w[2]])
        .collect();
    while raw.len() < 1 << 17 {
        raw.extend(words[random.below(200) as usize]);
    }
    let mut context = CCtx::create();
    for parameter in [
        CParameter::CompressionLevel(19),
        CParameter::MinMatch(3),
        CParameter::Strategy(zstd_safe::Strategy::ZSTD_btultra2),
    ] {
        context.set_parameter(parameter).expect("libzstd takes it");
    }
    let mut frame = Vec::with_capacity(1 << 18);
    context
        .compress2(&mut frame, &raw[..])
        .expect("it compresses");
    assert!(both.decode(&frame, raw.len()));
    assert!(both.our_out == raw);
}

#[test]
fn several_frames_and_skippable_ones_are_one_contents() {
    let mut both = Both::new();
    let mut random = Random::new(3);
    let (mut input, mut raw) = (Vec::new(), Vec::new());
    for kind in CONTENTS {
        let piece = contents(kind, 40_000, &mut random);
        input.extend(compress(
            &piece,
            Making {
                level: 5,
                block_bytes: 8192,
                has_checksum: true,
                has_size: true,
            },
        ));
        raw.extend(piece);
        input.extend(0x184D_2A53_u32.to_le_bytes());
        input.extend(5_u32.to_le_bytes());
        input.extend(b"skip!");
    }
    assert!(both.decode(&input, raw.len()));
    assert!(both.our_out == raw);
    input.truncate(input.len() - 1);
    assert!(!both.decode(&input, raw.len()));
}

/// The bytes that a reader waits for are final, whatever their number.
#[test]
fn targets_are_met_block_by_block() {
    let mut random = Random::new(4);
    let raw = contents(Contents::Text, 400_000, &mut random);
    let frame = compress(
        &raw,
        Making {
            level: 9,
            block_bytes: 16_384,
            has_checksum: true,
            has_size: true,
        },
    );
    let mut decoder = Decoder::new();
    for step in [1, 5000, 32_769, 100_000, 400_000] {
        decoder.reset();
        let (mut progress, mut out) = (Progress::default(), vec![0; raw.len()]);
        let mut target = 0;
        while progress.written < raw.len() {
            target = (target + step).min(raw.len());
            decoder
                .advance(&frame, &mut out, &mut progress, target)
                .expect("the frame is sound");
            assert!(progress.written >= target);
            assert!(out[..progress.written] == raw[..progress.written]);
        }
        assert_eq!(progress.read, frame.len());
    }
    // One block is enough for the first byte.
    decoder.reset();
    let (mut progress, mut out) = (Progress::default(), vec![0; raw.len()]);
    decoder
        .advance(&frame, &mut out, &mut progress, 1)
        .expect("the frame is sound");
    assert_eq!(progress.written, 16_384);
    // Another output than before is refused or written within its bounds.
    let _ = decoder.advance(&frame, &mut out[..100], &mut progress, 100);
}

/// Changes, removes, inserts and swaps bytes between frames.
fn mutate(frame: &mut Vec<u8>, others: &[Vec<u8>], random: &mut Random) {
    for _ in 0..1 + random.below(3) {
        if frame.is_empty() {
            return;
        }
        // The headers, near the start, decide most.
        let end = if random.below(2) == 0 { 40 } else { u64::MAX };
        let at = random.below(end.min(frame.len() as u64)) as usize;
        match random.below(8) {
            0 | 1 => frame[at] ^= 1 << random.below(8),
            2 | 3 => frame[at] = random.bits() as u8,
            4 => drop(frame.remove(at)),
            5 => frame.insert(at, random.bits() as u8),
            6 => frame.truncate(at),
            _ => {
                let other = &others[random.below(others.len() as u64) as usize];
                let from = random.below(other.len() as u64) as usize;
                let count = (1 + random.below(30) as usize)
                    .min(other.len() - from)
                    .min(frame.len() - at);
                frame[at..at + count].copy_from_slice(&other[from..from + count]);
            }
        }
    }
}

#[test]
fn changed_frames_give_the_same_or_are_refused_by_both() {
    let count: usize = std::env::var("SIDECORE_ZSTD_MUTATED_FRAMES")
        .map_or(20_000, |text| text.parse().expect("a number of frames"));
    let mut random = Random::new(count as u64);
    let mut frames = Vec::new();
    for kind in CONTENTS {
        for _ in 0..12 {
            let bytes = 1 + random.below(12_000) as usize;
            let raw = contents(kind, bytes, &mut random);
            frames.push(compress(
                &raw,
                Making {
                    level: 1 + random.below(22) as i32,
                    block_bytes: 1024 << random.below(4),
                    // Mostly without: a checksum would refuse the differences that are to be
                    // compared.
                    has_checksum: random.below(8) == 0,
                    has_size: random.below(2) == 0,
                },
            ));
        }
    }
    let mut both = Both::new();
    let mut taken = 0;
    for _ in 0..count {
        let mut frame = frames[random.below(frames.len() as u64) as usize].clone();
        mutate(&mut frame, &frames, &mut random);
        taken += usize::from(both.decode(&frame, 16_384));
    }
    // Otherwise hardly any frame was compared.
    assert!(taken > count / 50, "{taken} of {count} were taken");
    assert!(taken < count, "some must have been refused");
}

#[test]
fn frames_of_magicless_and_older_formats_are_refused() {
    let mut context = CCtx::create();
    context
        .set_parameter(CParameter::Format(FrameFormat::Magicless))
        .expect("libzstd takes it");
    let mut frame = Vec::with_capacity(1000);
    context
        .compress2(&mut frame, &b"some bytes"[..])
        .expect("it compresses");
    let mut out = [0; 100];
    assert_eq!(Decoder::new().decode(&frame, &mut out), Err(Error::Magic));
    let old = [0x27, 0xB5, 0x2F, 0xFD, 0, 0, 0, 0];
    assert_eq!(Decoder::new().decode(&old, &mut out), Err(Error::Magic));
}

fn raw(random: &mut Random, bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes + 64);
    let letters = 1 + random.below(255);
    while out.len() < bytes {
        let period = 1 + random.below(40) as usize;
        if out.len() > period && random.below(2) == 0 {
            for _ in 0..3 + random.below(60) {
                out.push(out[out.len() - period]);
            }
        } else {
            out.extend((0..random.below(30)).map(|_| random.below(letters) as u8));
        }
    }
    out.truncate(bytes);
    out
}

#[test]
fn nothing_outside_the_slices_is_touched() {
    const ROOM: usize = 80_000;
    let mut random = Random::new(5);
    let (mut input, mut output) = (Guarded::new(ROOM + 1000), Guarded::new(ROOM));
    let mut decoder = Decoder::new();
    let mut taken = 0;
    for case in 0..3000 {
        let longest = if case % 20 == 0 { ROOM as u64 } else { 3000 };
        let raw = raw(&mut random, Random::new(case).below(longest) as usize);
        let mut context = CCtx::create();
        for parameter in [
            CParameter::CompressionLevel([1, 3, 7, 13, 19][case as usize % 5]),
            CParameter::MaxBlockSize(1024 << random.below(6)),
        ] {
            context.set_parameter(parameter).expect("libzstd takes it");
        }
        let mut frame = Vec::with_capacity(zstd_safe::compress_bound(raw.len()) + 2000);
        context
            .compress2(&mut frame, &raw[..])
            .expect("it compresses");
        // Valid frames first, then damaged ones, and outputs that are too small.
        for damage in 0..4 {
            let mut room = raw.len();
            if damage > 0 {
                let at = random.below(frame.len() as u64) as usize;
                frame[at] ^= 1 << random.below(8);
                room = (room + 20)
                    .saturating_sub(random.below(60) as usize)
                    .min(ROOM);
            }
            for is_at_end in [true, false] {
                let frame_here = input.slice(frame.len(), is_at_end);
                frame_here.copy_from_slice(&frame);
                let out = output.slice(room, is_at_end);
                let mut progress = Progress::default();
                decoder.reset();
                let step = [room, 1000, 40_000][damage % 3];
                let mut target = 0;
                let result = loop {
                    target = room.min(target + step);
                    match decoder.advance(frame_here, out, &mut progress, target) {
                        Ok(()) if progress.read == frame.len() || target == room => break Ok(()),
                        Ok(()) => {}
                        Err(error) => break Err(error),
                    }
                };
                if damage == 0 {
                    assert_eq!(result, Ok(()), "case {case}");
                    assert!(out == raw, "case {case}");
                }
                taken += usize::from(result.is_ok());
            }
        }
    }
    assert!(
        taken > 6000,
        "the sound ones and some of the others: {taken}"
    );
}
