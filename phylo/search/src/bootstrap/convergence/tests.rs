//! Convergence of bootstraps; the same on engines, with and without memory.

use super::*;
use crate::runner::Serial;
use crate::tree::{Tree, random_tree};

fn names(taxa: usize) -> Vec<String> {
    (0..taxa).map(|k| format!("t{k}")).collect()
}

/// `count` trees that are `moves` random interchanges away from one tree.
fn replicates(taxa: usize, count: u32, moves: u32, seed: u64) -> Replicates {
    let names = names(taxa);
    let mut random = Random::new(seed);
    let tree = random_tree(taxa, 0.1, &mut random);
    let parsed = |tree: &Tree| Newick::parse(&tree.to_newick(&names)).unwrap();
    let mut all = Replicates::new(&parsed(&tree)).unwrap();
    for _ in 0..count {
        let mut moved = tree.clone();
        for _ in 0..moves {
            let edge = random.below(2 * taxa as u64 - 3) as usize;
            let edge = moved.edges().nth(edge).unwrap();
            let _ = moved.nni(edge, random.below(2) == 0);
        }
        all.add(&parsed(&moved)).unwrap();
    }
    all
}

#[test]
fn equal_trees_have_converged_and_random_ones_have_not() {
    let options = Options {
        cuts: 100,
        ..Options::default()
    };
    let same = replicates(20, 50, 0, 1).test(1, &options, &Serial).unwrap();
    assert_eq!(
        (same.distance, same.within, same.converged),
        (0.0, 100, true)
    );
    let wild = replicates(20, 50, 60, 1)
        .test(1, &options, &Serial)
        .unwrap();
    assert!(wild.distance > 0.05 && !wild.converged, "{wild:?}");
    assert!(wild.within < 10, "{wild:?}");
    let one = replicates(20, 1, 0, 1).test(1, &options, &Serial).unwrap();
    assert!(!one.converged);
}

#[test]
fn more_replicates_bring_halves_together() {
    let options = Options {
        cuts: 100,
        ..Options::default()
    };
    let at = |count| {
        let all = replicates(16, count, 2, 5);
        all.test(7, &options, &Serial).unwrap()
    };
    let verdicts = [20, 100, 800].map(at);
    assert!(
        verdicts.is_sorted_by(|a, b| a.distance > b.distance),
        "{verdicts:?}"
    );
    assert!(
        !verdicts[0].converged && verdicts[2].converged,
        "{verdicts:?}"
    );
}

#[test]
fn the_answer_is_the_same_on_engines() {
    let all = replicates(30, 60, 4, 2);
    let options = Options {
        cuts: 130,
        ..Options::default()
    };
    let pool = sidecore_offload::Pool::start(sidecore_offload::PoolConfig {
        engines: 3,
        ..Default::default()
    })
    .unwrap();
    let serial = all.test(9, &options, &Serial).unwrap();
    assert_eq!(all.test(9, &options, &pool).unwrap(), serial);
    assert_ne!(
        all.test(10, &options, &Serial).unwrap().distance,
        serial.distance
    );
}

/// The consensus by its definition, without the state that a half keeps.
fn agree_by_definition(all: &Replicates, support: &[u32]) -> Vec<bool> {
    let mut order: Vec<usize> = (0..all.splits.len()).collect();
    order.sort_by_key(|&split| std::cmp::Reverse(support[split]));
    let mut taken = vec![false; order.len()];
    for split in order.into_iter().filter(|&split| support[split] > 0) {
        let mut others = (0..taken.len()).filter(|&other| taken[other]);
        if others.all(|other| all.splits[split].is_compatible(&all.splits[other])) {
            taken[split] = true;
        }
    }
    taken
}

#[test]
fn a_consensus_is_the_same_with_and_without_memory() {
    let all = replicates(24, 40, 6, 3);
    let mut halves = [Half::new(&all), Half::new(&all)];
    let mut whole = 0.0;
    for cut in 0..50 {
        whole += all.distance(4, cut, &mut halves);
        for half in &halves {
            assert_eq!(half.taken, agree_by_definition(&all, &half.support));
            // Each tree of the half has all its inner splits.
            assert_eq!(half.support.iter().sum::<u32>(), 20 * 21);
        }
    }
    assert!(whole > 0.0);
}
