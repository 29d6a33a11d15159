//! The runs: one input of each, from the run's seed and the input's number alone.

use crate::Lzo1x;
use crate::allocator;
use sidecore_fuzz::images::{Mutator, Reader, fuzz_image, seeds as images};
use sidecore_fuzz::phylo::{KINDS, mutate, read, seeds as of_kind};
use sidecore_fuzz::{TARGETS, nbd, seeds};
use sidecore_phylo::random::Random;
use sidecore_random::choices::Choices;

/// One input by its number; returns true if it was accepted.
pub(crate) type Input = Box<dyn FnMut(u64) -> bool>;

/// A run: its name, the bytes of memory that may be in use, and the generator of its inputs from a
/// seed and the number of the first.
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) memory_bytes_max: usize,
    pub(crate) begin: Box<dyn Fn(u64, u64) -> Input + Sync>,
}

/// All runs.
pub(crate) fn all() -> Vec<Run> {
    let run = |name: &str, memory_mib: usize, begin: fn(u64, u64) -> Input| Run {
        name: name.to_owned(),
        memory_bytes_max: memory_mib << 20,
        begin: Box::new(begin),
    };
    // Images: a frame of 16 MiB raw, its 32 MiB stored at most, and the index; the codecs' own C
    // allocations are bounded by their own limits. Phylo: inputs of 8 KiB, protein models of 1 MiB.
    let mut runs = vec![
        run("images", 64, image),
        run("nbd", 64, dialogue),
        run("lzo1x", 64, |seed, _| {
            let mut cases = Lzo1x::new();
            Box::new(move |number| cases.case(seed, number))
        }),
        run("stack", 512, stack),
        run("sockets", 512, sockets),
        run("rdma", 64, rdma),
    ];
    for kind in KINDS {
        runs.push(Run {
            name: format!("phylo-{kind:?}").to_lowercase(),
            memory_bytes_max: 16 << 20,
            begin: Box::new(move |seed, _| {
                let seeds = of_kind(kind);
                Box::new(move |number| {
                    let mut random = Random::new(own_seed(seed, number));
                    let chosen = &seeds[(number % seeds.len() as u64) as usize];
                    read(kind, &mutate(kind, chosen, &mut random))
                })
            }),
        });
    }
    for name in [
        "configuration",
        "daemon",
        "drill",
        "machine",
        "remote",
        "zstd",
    ] {
        runs.push(Run {
            name: name.to_owned(),
            memory_bytes_max: 512 << 20,
            begin: Box::new(move |seed, _| damaged(name, seed)),
        });
    }
    runs
}

/// Each input has a seed of its own, so that any one can be made again without those before it.
fn own_seed(seed: u64, number: u64) -> u64 {
    seed.wrapping_mul(0x1_0000_0001) ^ number << 20
}

fn image(seed: u64, first: u64) -> Input {
    let seeds = images();
    let mut reader = Reader::default();
    let mut displaced = 0;
    Box::new(move |number| {
        let mut mutator = Mutator::new(own_seed(seed, number));
        let image = &seeds[(number % seeds.len() as u64) as usize];
        let mutant = mutator.mutate(image);
        let walk = if mutant.resealed {
            reader.walk(mutant.data, &mut |_, _, _| {})
        } else {
            image.check(&mut reader, mutant.data)
        };
        if number % 1024 == 0 {
            // The same bytes once more, as a fuzzer would send them.
            fuzz_image(mutant.data);
        }
        displaced += walk.displaced;
        let few = 2 + 2 * (number - first) / 1_000_000;
        assert!(displaced <= few, "{displaced} frames displaced");
        walk.opened
    })
}

fn dialogue(seed: u64, _first: u64) -> Input {
    let seeds = nbd::seeds();
    Box::new(move |number| {
        let mut random = seed
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .wrapping_add(number);
        nbd::fuzz_dialogue(&nbd::mutate(&seeds, &mut random)) > 0
    })
}

/// Inputs that follow from one another come in stretches, each with a seed of its own.
const STRETCH: u64 = 10_000;

fn stack(seed: u64, _first: u64) -> Input {
    use sidecore_fuzz::stack::Target;
    let mut target = (u64::MAX, Target::new(0));
    Box::new(move |number| {
        let stretch = number / STRETCH;
        if target.0 != stretch {
            target = (stretch, Target::new(own_seed(seed, stretch)));
        }
        target.1.input();
        true
    })
}

fn sockets(seed: u64, _first: u64) -> Input {
    use sidecore_fuzz::sockets::Target;
    let mut target = (u64::MAX, Target::new(0));
    Box::new(move |number| {
        let stretch = number / STRETCH;
        if target.0 != stretch {
            target = (stretch, Target::new(own_seed(seed, stretch)));
        }
        target.1.input();
        true
    })
}

/// Decisions of a peer and an application, drawn anew for each input.
fn rdma(seed: u64, _first: u64) -> Input {
    Box::new(move |number| {
        let mut random = Choices::seeded(own_seed(seed, number));
        let bytes = 1 + random.below(1200) as usize;
        let seen = sidecore_fuzz::rdma::fuzz_stream(&random.take(bytes));
        seen.segments + seen.ahead > 0
    })
}

/// Seeds of a target, damaged in a few places without regard to their format.
fn damaged(name: &'static str, seed: u64) -> Input {
    let seeds = seeds::of_target(name).unwrap_or_default();
    let target = TARGETS.iter().find(|target| target.0 == name);
    let function = target.map_or(sidecore_fuzz::machine as fn(&[u8]), |target| target.1);
    Box::new(move |number| {
        let mut random = Choices::seeded(own_seed(seed, number));
        let mut data = seeds[(number % seeds.len() as u64) as usize].clone();
        for _ in 0..=random.below(4) {
            damage(&mut data, &seeds, &mut random);
        }
        function(&data);
        true
    })
}

fn damage(data: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Choices) {
    let at = random.below(data.len() as u64 + 1) as usize;
    let run = (random.below(24) as usize).min(data.len() - at);
    match random.below(5) {
        0 if at < data.len() => data[at] ^= 1 << random.below(8),
        1 => drop(data.drain(at..at + run)),
        2 => {
            let again = data[at..at + run].to_vec();
            let to = random.below(data.len() as u64 + 1) as usize;
            data.splice(to..to, again);
        }
        3 => {
            let other = &seeds[random.below(seeds.len() as u64) as usize];
            let from = random.below(other.len() as u64) as usize;
            let upto = (from + 2 * run).min(other.len());
            data.splice(at..at, other[from..upto].iter().copied());
        }
        _ => data.insert(at, random.bits() as u8),
    }
}

/// Fails where more memory is in use than the run may have.
pub(crate) fn check_memory(run: &Run) {
    let (peak, bound) = (allocator::peak_bytes(), run.memory_bytes_max);
    assert!(peak <= bound, "{peak} bytes in use, the bound is {bound}");
}
