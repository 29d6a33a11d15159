//! Images of every format, cut, with flipped bits and with all other damage.
//!
//! Images of every kind of file, and trees from seeds, damaged in every place.

#[path = "../../../image/erofs/src/tests/fixtures.rs"]
#[allow(dead_code, reason = "tests of the crate use the rest")]
mod fixtures;
#[path = "../../../image/erofs/src/write/tests/trees.rs"]
mod trees;

use fixtures::image;
use sidecore_block::format::Format;
use sidecore_erofs::Kind;
use sidecore_erofs::write::{BLOCK_BYTES, CHUNK_BYTES, Id, Layout, Meta, Node, Tree, Unfit};
use sidecore_fuzz::erofs::{self, fuzz_erofs};
use sidecore_fuzz::images::{Mutator, Reader, fuzz_image, seeds, sidecar_seed};
use sidecore_random::SplitMix;
use trees::{Dice, facts};

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

#[test]
fn damage_in_any_place_is_borne() {
    erofs::seeds().iter().for_each(|seed| fuzz_erofs(seed));
    let image = image();
    let mut damaged = image.clone();
    // All bytes except contents.
    for at in 1024..4608 {
        for byte in [0xFF, image[at] ^ 1] {
            damaged[at] = byte;
            fuzz_erofs(&damaged);
        }
        damaged[at] = image[at];
    }
    for len in (0..image.len()).step_by(61) {
        fuzz_erofs(&image[..len]);
    }
}

#[test]
fn trees_from_seeds_are_walked() {
    for seed in 0..40 {
        let mut dice = Dice(seed);
        let count = 1 + dice.below(120);
        let (image, _) = trees::image(&facts(&mut dice, count)).unwrap();
        fuzz_erofs(&image[..image.len().min(2 << 20)]);
    }
}

#[test]
fn damage_to_what_was_written_is_borne() {
    let mut dice = Dice(11);
    let facts = facts(&mut dice, 40);
    let (whole, data_at) = trees::image(&facts).unwrap();
    let mut damaged = whole[..data_at as usize].to_vec();
    for _ in 0..300 {
        let at = 1024 + dice.below(data_at - 1024) as usize;
        let before = damaged[at];
        damaged[at] ^= 1 + dice.below(255) as u8;
        fuzz_erofs(&damaged);
        // Damage accumulates in part.
        if dice.below(4) > 0 {
            damaged[at] = before;
        }
    }
}
