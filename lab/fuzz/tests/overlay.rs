//! Overlays to begin with, and their mutants.

use sidecore_fuzz::overlay;
use sidecore_random::split_mix;

#[test]
fn seeds_and_their_mutants_are_taken_by_the_fuzz_target() {
    let mut random = 11;
    let seeds = overlay::seeds();
    assert!(seeds.len() >= 8, "{}", seeds.len());
    for seed in &seeds {
        overlay::fuzz_overlay(seed);
        for _ in 0..12 {
            let mut mutant = seed.clone();
            for _ in 0..=split_mix(&mut random) % 4 {
                // Superblock and log, mostly.
                let reach = match split_mix(&mut random) % 3 {
                    0 => mutant.len(),
                    _ => mutant.len().min(1500),
                };
                let at = split_mix(&mut random) as usize % reach;
                mutant[at] = split_mix(&mut random) as u8;
            }
            overlay::fuzz_overlay(&mutant);
        }
    }
}
