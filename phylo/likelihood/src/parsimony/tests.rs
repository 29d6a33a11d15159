//! Parsimony against Fitch's rule, pattern by pattern.

use super::*;
use crate::model::{Model, ModelName};
use crate::msa::{Alignment, Alphabet};
use crate::simulate::{numbered_names, simulate};
use crate::tree::random_tree;
use proptest::prelude::*;

fn model(text: &str) -> Model {
    let name = ModelName::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into()));
    Model::without_alignment(name.unwrap())
}

/// An alignment with unclear characters, evolved along a tree that is not returned.
fn patterns(text: &str, taxa: usize, sites: usize, seed: u64) -> Patterns {
    let mut random = Random::new(seed);
    let tree = random_tree(taxa, 0.1, &mut random);
    let model = model(text);
    let alignment = simulate(&tree, &numbered_names(taxa), &model, sites, seed).unwrap();
    let unclear: &[u8] = match model.alphabet() {
        Alphabet::Dna => b"RYN-K",
        Alphabet::Protein => b"BZJX-",
        _ => b"-?-?-",
    };
    let rows = (0..taxa).map(|taxon| {
        let mut row = alignment.row(taxon).to_vec();
        for letter in row.iter_mut().filter(|_| taxon > 0) {
            if random.below(12) == 0 {
                *letter = unclear[random.below(5) as usize];
            }
        }
        row
    });
    let alignment = Alignment::new(numbered_names(taxa), rows.collect()).unwrap();
    Patterns::new(&alignment, model.alphabet()).unwrap()
}

/// Fitch's rule, one pattern and one node at a time.
fn naive(tree: &Tree, patterns: &Patterns) -> u64 {
    fn set(tree: &Tree, patterns: &Patterns, pattern: usize, half: HalfId) -> (u64, u64) {
        if tree.is_tip(half) {
            let code = patterns.codes(half.index())[pattern];
            return (patterns.alphabet().masks()[usize::from(code)], 0);
        }
        let [a, b] = tree
            .others(half)
            .map(|other| set(tree, patterns, pattern, tree.back(other)));
        join(a, b)
    }
    fn join(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
        match a.0 & b.0 {
            0 => (a.0 | b.0, a.1 + b.1 + 1),
            both => (both, a.1 + b.1),
        }
    }
    let cost = |pattern| {
        let below = set(tree, patterns, pattern, tree.back(HalfId(0)));
        join(set(tree, patterns, pattern, HalfId(0)), below).1
    };
    let weights = patterns.weights().iter().enumerate();
    weights
        .map(|(pattern, &weight)| u64::from(weight) * cost(pattern))
        .sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn scores_are_those_of_fitchs_rule(
        taxa in 4_usize..40, sites in 1_usize..600, seed in 0_u64..1000,
    ) {
        let dna = patterns("GTR+G4", taxa, sites, seed);
        let protein = patterns("LG", taxa, sites.min(90), seed);
        let tree = random_tree(taxa, 0.1, &mut Random::new(seed + 1));
        let (first, second) = (naive(&tree, &dna), naive(&tree, &protein));
        prop_assert_eq!(score(&tree, &[&dna]), first);
        prop_assert_eq!(score(&tree, &[&protein]), second);
        prop_assert_eq!(score(&tree, &[&dna, &protein]), first + second);
        for model in ["BIN", "MULTI7_MK"] {
            let other = patterns(model, taxa, sites, seed);
            let third = naive(&tree, &other);
            prop_assert_eq!(score(&tree, &[&other]), third, "{}", model);
            prop_assert_eq!(score(&tree, &[&other, &dna]), first + third);
        }
    }

    #[test]
    fn places_cost_what_the_tree_with_the_tip_costs(seed in 0_u64..1000) {
        let patterns = patterns("JC", 7, 200, seed);
        let sites = Sites::new(&[&patterns]);
        let mut tree = Tree::star(7, [0, 1, 2], 0.1);
        let mut order: Vec<usize> = (0..7).collect();
        let mut random = Random::new(seed);
        for before in 3..7 {
            let tip = order[before];
            let mut sets = Sets::new(&sites, &tree);
            let found = sets.cheapest(&tree, &order[..before], tip, None);
            // The whole tree's cost with the tip in each of the branches.
            let costs: Vec<u64> = (0..2 * before as u32 - 3).map(|edge| {
                let mut grown = tree.clone();
                grown.insert_tip(tip, before, EdgeId(edge));
                Sets::new(&sites, &grown).score(&grown)
            }).collect();
            prop_assert_eq!(costs[found.index()], *costs.iter().min().unwrap());
            tree.insert_tip(tip, before, EdgeId(random.below(2 * before as u64 - 3) as u32));
        }
        order.clear();
    }
}

#[test]
fn one_seed_one_tree_and_better_than_chance() {
    let patterns = patterns("GTR+G4", 40, 800, 3);
    let tree = parsimony_tree(&[&patterns], None, &mut Random::new(5));
    assert_eq!(
        tree,
        parsimony_tree(&[&patterns], None, &mut Random::new(5))
    );
    let other = parsimony_tree(&[&patterns], None, &mut Random::new(6));
    assert_ne!(tree, other);
    let chance = random_tree(40, 0.1, &mut Random::new(5));
    let scores = [&tree, &other, &chance].map(|tree| score(tree, &[&patterns]));
    assert!(
        scores[0] * 3 < scores[2] * 2 && scores[1] * 3 < scores[2] * 2,
        "{scores:?}"
    );
}

#[test]
fn no_single_move_within_the_radius_saves_anything() {
    let patterns = patterns("GTR+G4", 14, 300, 9);
    let tree = parsimony_tree(&[&patterns], None, &mut Random::new(1));
    let least = score(&tree, &[&patterns]);
    for half in (14..tree.halves() as u32).map(HalfId) {
        let mut pruned_tree = tree.clone();
        let pruned = pruned_tree.prune(half);
        for edge in tree.edges() {
            let in_subtree = {
                let mut path = vec![tree.back(half)];
                let mut inside = edge == tree.edge(half);
                while let Some(at) = path.pop() {
                    if !tree.is_tip(at) {
                        for other in tree.others(at) {
                            inside |= tree.edge(other) == edge;
                            path.push(tree.back(other));
                        }
                    }
                }
                inside
            };
            if in_subtree || edge == pruned.edges[1] {
                continue;
            }
            let mut moved = pruned_tree.clone();
            let _ = moved.regraft(pruned, edge);
            assert!(naive(&moved, &patterns) >= least);
        }
    }
}

fn stretches(differ: usize) -> Patterns {
    // Each sequence has a stretch of its own.
    let row = |taxon: usize| {
        let mut row = vec![b'A'; 40 * 64];
        row[40 * taxon..][..differ].fill(b'C');
        row
    };
    let names = (0..64).map(|taxon| format!("t{taxon}")).collect();
    let alignment = Alignment::new(names, (0..64).map(row).collect()).unwrap();
    Patterns::new(&alignment, Alphabet::Dna).unwrap()
}

#[test]
fn few_differences_are_near_and_many_are_not() {
    assert!(are_near(&[&stretches(0)]));
    assert!(are_near(&[&stretches(4)]));
    assert!(!are_near(&[&stretches(40)]));
}
