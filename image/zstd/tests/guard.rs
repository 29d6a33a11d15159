//! Both slices at the very end, and at the very start, of memory between inaccessible pages: a byte
//! read or written outside ends the test by a fault.

#[path = "common/guarded.rs"]
mod guarded;

use guarded::Guarded;
use sidecore_random::Random;
use sidecore_zstd::{Decoder, Progress};
use zstd_safe::{CCtx, CParameter};

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
