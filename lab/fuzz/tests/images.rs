//! Images of every format, cut, with flipped bits and with all other damage.

use sidecore_block::format::Format;
use sidecore_fuzz::images::{Mutator, Reader, fuzz_image, seeds, sidecar_seed};
use sidecore_random::SplitMix;

#[test]
fn an_image_cut_short_anywhere_never_gives_wrong_bytes() {
    for seed in seeds() {
        let mut reader = Reader::default();
        for cut in 0..seed.image.len() {
            let walk = seed.check(&mut reader, &seed.image[..cut]);
            // The rest of the first magic number, or of an encrypted image's fixed header,
            // distinguishes a raw image from a compressed one.
            let index_is_last = matches!(seed.format, Format::Zstd | Format::Lz4);
            let known_by = match seed.name.starts_with("encrypted") {
                true => 20,
                false => 4,
            };
            if walk.opened && index_is_last && cut >= known_by {
                panic!(
                    "{}: opened though cut to {cut} of {}",
                    seed.name,
                    seed.image.len()
                );
            }
        }
    }
}

#[test]
fn every_flipped_bit_is_noticed_or_harmless() {
    for seed in seeds() {
        let mut reader = Reader::default();
        let mut image = seed.image.clone();
        for at in 0..image.len() {
            for bit in 0..8 {
                if image.len() > 8000 && (at + bit) % 8 != 0 {
                    continue;
                }
                image[at] ^= 1 << bit;
                seed.check(&mut reader, &image);
                image[at] ^= 1 << bit;
            }
        }
    }
}

#[test]
fn mutants_never_give_wrong_bytes() {
    let seed = 2026;
    let seeds = seeds();
    let mut mutator = Mutator::new(seed);
    let mut reader = Reader::default();
    let (mut opened, mut good) = (0, 0);
    for round in 0..20_000 {
        let image = &seeds[round % seeds.len()];
        let mutant = mutator.mutate(image);
        let walk = if mutant.resealed {
            reader.walk(mutant.data, &mut |_, _, _| {})
        } else {
            image.check(&mut reader, mutant.data)
        };
        opened += u64::from(walk.opened);
        good += walk.good_frames;
        assert_eq!(walk.displaced, 0, "round {round} of seed {seed}");
    }
    // The test would prove nothing if all mutants were refused at opening. (Seed 2026.)
    assert!(
        opened > 2000 && good > 2000,
        "{opened} opened, {good} good frames"
    );
}

#[test]
fn files_and_indexes_that_were_damaged_do_no_harm() {
    let seed = sidecar_seed();
    let mut noise = SplitMix::new(3);
    for at in 0..seed.len() {
        for _ in 0..4 {
            let mut damaged = seed.clone();
            damaged[at] = noise.below(256) as u8;
            let other = noise.below(seed.len() as u64) as usize;
            damaged[other] ^= 1 << noise.below(8);
            fuzz_image(&damaged);
        }
        fuzz_image(&seed[..at]);
    }
}
