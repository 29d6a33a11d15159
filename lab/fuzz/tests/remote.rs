//! Servers' answers, damaged.

use sidecore_fuzz::remote::{fuzz_answer, seeds};
use sidecore_random::Random;

#[test]
fn damaged_answers_do_no_harm() {
    let seeds = seeds();
    seeds.iter().for_each(|seed| fuzz_answer(seed));
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
        fuzz_answer(&answer);
    }
}
