//! Images of every kind of file, and trees from seeds, damaged in every place.

#[path = "../../../image/erofs/src/tests/fixtures.rs"]
#[allow(dead_code, reason = "tests of the crate use the rest")]
mod fixtures;
#[path = "../../../image/erofs/src/write/tests/trees.rs"]
mod trees;

use fixtures::image;
use sidecore_erofs::Kind;
use sidecore_erofs::write::{BLOCK_BYTES, CHUNK_BYTES, Id, Layout, Meta, Node, Tree, Unfit};
use sidecore_fuzz::erofs::{fuzz_erofs, seeds};
use trees::{Dice, facts};

#[test]
fn damage_in_any_place_is_borne() {
    seeds().iter().for_each(|seed| fuzz_erofs(seed));
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
