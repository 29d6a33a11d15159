//! Targets driven from a seed, with damage of their own kind.

use sidecore_fuzz::{daemon, overlay, remote, sockets};
use sidecore_random::choices::Choices;
use sidecore_random::{Random, split_mix};

/// Clients of the daemon that write anywhere.
#[test]
fn a_scribbler_hurts_itself_alone() {
    let inputs = std::env::var("SIDECORE_SCRIBBLER_INPUTS");
    let inputs = inputs.map_or(500, |text| text.parse().unwrap());
    let mut random = Choices::seeded(1);
    let mut steps = 0;
    for _ in 0..inputs {
        let bytes = random.take(2000);
        steps += daemon::fuzz_daemon(&bytes);
    }
    eprintln!("{inputs} inputs, {steps} operations");
}

/// Overlays to begin with, and their mutants.
#[test]
fn overlays_and_their_mutants_are_taken_by_the_fuzz_target() {
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

/// Servers' answers.
#[test]
fn damaged_answers_do_no_harm() {
    let seeds = remote::seeds();
    seeds.iter().for_each(|seed| remote::fuzz_answer(seed));
    let mut random = Random::new(35);
    for _ in 0..20_000 {
        let mut answer = seeds[random.below(seeds.len() as u64) as usize].clone();
        for _ in 0..=random.below(4) {
            let at = random.below(answer.len() as u64) as usize;
            match random.below(4) {
                0 => answer[at] = random.bits() as u8,
                1 => answer.truncate(at.max(1)),
                2 => answer.insert(at, b":/\"\n{}[]@.?#-09"[random.below(15) as usize]),
                _ => {
                    let other = &seeds[random.below(seeds.len() as u64) as usize];
                    answer.extend_from_slice(&other[at.min(other.len())..]);
                }
            }
        }
        remote::fuzz_answer(&answer);
    }
}

/// Hostile applications.
#[test]
fn a_hostile_application_hurts_itself_alone() {
    let mut target = sockets::Target::new(1);
    for _ in 0..40_000 {
        target.input();
    }
    let (cut_off, done) = target.progress();
    assert!(cut_off > 50, "{cut_off} times cut off");
    assert!(done > 1_000, "{done} requests done");
    let across = target.across_bytes();
    assert!(
        across > 100_000,
        "{across} bytes went from one to the other"
    );
}
