//! Searches: trees found, rounds that never lose, resuming from any state, constraints.

use super::*;
use crate::compare::compare;
use crate::likelihood::Options as LikelihoodOptions;
use crate::model::{Model, ModelName};
use crate::newick::Newick;
use crate::runner::Serial;
use crate::simulate::{numbered_names, simulate};
use crate::tree::EdgeId;
use proptest::prelude::*;
use sidecore_offload::{Pool, PoolConfig};

fn model(text: &str) -> ModelName {
    ModelName::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into())).unwrap()
}

const TRUTH: &str = "GTR{1.5/3.8/0.6/1.3/4.1/1}+FU{0.27/0.2/0.24/0.29}+G4m{0.5}";

/// A random tree and an alignment that evolved along it.
fn case(taxa: usize, sites: usize, mean: f64, seed: u64) -> (Tree, Patterns) {
    let mut tree = random_tree(taxa, mean, &mut Random::new(seed));
    for edge in tree.edges() {
        // No branch so short that nothing happened on it.
        tree.set_length(edge, tree.length(edge).max(0.3 * mean));
    }
    let truth = Model::without_alignment(model(TRUTH));
    let alignment = simulate(&tree, &numbered_names(taxa), &truth, sites, seed).unwrap();
    let patterns = Patterns::new(&alignment, truth.alphabet()).unwrap();
    (tree, patterns)
}

fn likelihood<R: Runner>(tree: &Tree, patterns: &Patterns, text: &str, runner: R) -> Likelihood<R> {
    let model = Model::new(model(text), patterns);
    let options = LikelihoodOptions {
        // Small, so that there are several.
        chunk_bytes: 8 << 10,
        ..LikelihoodOptions::default()
    };
    Likelihood::new(tree.clone(), patterns.clone(), model, runner, options).unwrap()
}

fn go_on(_: &State) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn text(tree: &Tree) -> Newick {
    Newick::parse(&tree.to_newick(&numbered_names(tree.taxa()))).unwrap()
}

fn rf(a: &Tree, b: &Tree) -> usize {
    compare(&text(a), &text(b)).unwrap().rf
}

#[test]
fn finds_the_true_tree_from_either_start() {
    let (truth, patterns) = case(24, 3_000, 0.08, 4);
    for (kind, seed) in [(Start::Parsimony, 1), (Start::Random, 2)] {
        let start = start_tree(kind, &[&patterns], None, seed);
        let mut likelihood = likelihood(&start, &patterns, "GTR+F+G4", Serial);
        let state = State::new(start, seed);
        let state = run(&mut likelihood, state, &Options::default(), &mut go_on).unwrap();
        assert!(state.is_done());
        assert_eq!(rf(state.tree(), &truth), 0, "{kind:?}");
        // The likelihood has the parameters of the state.
        assert_eq!(likelihood.evaluate().unwrap(), state.lnl());
    }
}

#[test]
fn near_identical_sequences_reach_the_best_tree() {
    // A change a branch.
    let (truth, patterns) = case(60, 5_000, 0.0002, 5);
    assert!(are_near(&[&patterns]));
    let on_truth = likelihood(&truth, &patterns, "GTR+F+G4", Serial)
        .optimise(1e-3)
        .unwrap();
    for seed in 1..4 {
        let start = start_tree(Start::Parsimony, &[&patterns], None, seed);
        let score = |tree: &Tree| crate::parsimony::score(tree, &[&patterns]);
        assert!(score(&start) <= score(&truth), "seed {seed}");
        let mut likelihood = likelihood(&start, &patterns, "GTR+F+G4", Serial);
        let state = State::new(start, seed);
        let state = run(&mut likelihood, state, &Options::default(), &mut go_on).unwrap();
        assert!(
            state.lnl() > on_truth - 0.01,
            "seed {seed}: {} {on_truth}",
            state.lnl()
        );
    }
}

#[test]
fn three_taxa_have_one_tree() {
    let (truth, patterns) = case(3, 200, 0.1, 2);
    let best = likelihood(&truth, &patterns, "GTR+F+G4", Serial)
        .optimise(1e-4)
        .unwrap();
    for kind in [Start::Parsimony, Start::Random] {
        let start = start_tree(kind, &[&patterns], None, 1);
        let mut likelihood = likelihood(&start, &patterns, "GTR+F+G4", Serial);
        let state = State::new(start, 1);
        let state = run(&mut likelihood, state, &Options::default(), &mut go_on).unwrap();
        assert!(
            state.is_done() && (state.lnl() - best).abs() < 1e-3,
            "{}",
            state.lnl()
        );
    }
}

#[test]
fn the_log_likelihood_never_falls() {
    let (_, patterns) = case(30, 300, 0.05, 8);
    let start = start_tree(Start::Random, &[&patterns], None, 3);
    let mut likelihood = likelihood(&start, &patterns, "GTR+F+G4", Serial);
    let (mut last, mut steps) = (f64::NEG_INFINITY, 0);
    let mut watch = |state: &State| {
        assert!(state.lnl() >= last - 1e-6, "{} after {last}", state.lnl());
        (last, steps) = (state.lnl(), steps + 1);
        ControlFlow::Continue(())
    };
    let state = State::new(start, 1);
    let state = run(&mut likelihood, state, &Options::default(), &mut watch).unwrap();
    assert!(steps > 20 && state.moves() > 5, "{steps} {}", state.moves());
}

#[test]
fn going_on_from_every_state_gives_the_same_bits() {
    let (_, patterns) = case(12, 200, 0.1, 5);
    let start = start_tree(Start::Random, &[&patterns], None, 3);
    let fresh = || likelihood(&start, &patterns, "HKY+F+G4", Serial);
    let options = Options::default();
    let mut states = Vec::new();
    let mut keep = |state: &State| {
        states.push(serde_json::to_string(state).unwrap());
        ControlFlow::Continue(())
    };
    let state = State::new(start.clone(), 7);
    let whole = run(&mut fresh(), state, &options, &mut keep).unwrap();
    assert!(states.len() > 10, "{}", states.len());
    for saved in &states {
        let state: State = serde_json::from_str(saved).unwrap();
        let again = run(&mut fresh(), state, &options, &mut go_on).unwrap();
        assert_eq!(again, whole);
    }
    // Stopping at every step, too.
    let mut state = State::new(start.clone(), 7);
    while !state.is_done() {
        state = run(&mut fresh(), state, &options, &mut |_: &State| {
            ControlFlow::Break(())
        })
        .unwrap();
    }
    assert_eq!(state, whole);
}

#[test]
fn engines_change_nothing() {
    let (_, patterns) = case(14, 900, 0.1, 6);
    let start = start_tree(Start::Parsimony, &[&patterns], None, 3);
    let options = Options::default();
    let mut serial = likelihood(&start, &patterns, "GTR+F+G4", Serial);
    assert!(serial.chunks() > 3);
    let alone = run(
        &mut serial,
        State::new(start.clone(), 1),
        &options,
        &mut go_on,
    )
    .unwrap();
    let pool = Pool::start(PoolConfig {
        engines: 2,
        ..PoolConfig::default()
    })
    .unwrap();
    let mut shared = likelihood(&start, &patterns, "GTR+F+G4", &pool);
    let both = run(&mut shared, State::new(start, 1), &options, &mut go_on).unwrap();
    assert_eq!(alone, both);
}

#[test]
fn states_of_other_data_are_refused() {
    let (tree, patterns) = case(9, 100, 0.1, 6);
    let mut likelihood = likelihood(&tree, &patterns, "GTR+F+G4", Serial);
    let other = State::new(random_tree(8, 0.1, &mut Random::new(1)), 1);
    let error = run(&mut likelihood, other, &Options::default(), &mut go_on).unwrap_err();
    assert!(matches!(error, LikelihoodError::State { .. }), "{error}");
}

/// All binary trees of some taxa, topologies alone.
fn all_trees(taxa: usize) -> Vec<Tree> {
    let mut trees = vec![Tree::star(taxa, [0, 1, 2], LENGTH_DEFAULT)];
    for tip in 3..taxa {
        let grown = trees.iter().flat_map(|tree| {
            (0..2 * tip as u32 - 3).map(move |edge| {
                let mut grown = tree.clone();
                grown.insert_tip(tip, tip, EdgeId(edge));
                grown
            })
        });
        trees = grown.collect();
    }
    trees
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn finds_the_best_of_all_trees_of_seven_taxa(seed in 0_u64..10_000) {
        let (_, patterns) = case(7, 250, 0.1, seed);
        let trees = all_trees(7);
        prop_assert_eq!(trees.len(), 945);
        let mut likelihood = likelihood(&trees[0], &patterns, "JC", Serial);
        let mut best = f64::NEG_INFINITY;
        for tree in trees {
            likelihood.set_tree(tree);
            let rough = likelihood.optimise_lengths(0.5, 3).unwrap();
            if rough > best - 1.0 {
                best = best.max(likelihood.optimise_lengths(1e-3, 30).unwrap());
            }
        }
        for kind in [Start::Parsimony, Start::Random] {
            let start = start_tree(kind, &[&patterns], None, seed);
            let found = run(&mut likelihood, State::new(start, 1), &Options::default(), &mut go_on);
            let lnl = found.unwrap().lnl();
            prop_assert!(lnl > best - 0.01, "{} {}", lnl, best);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn scores_are_those_of_the_moved_tree(seed in 0_u64..10_000) {
        let (tree, patterns) = case(11, 120, 0.2, seed);
        let mut here = likelihood(&tree, &patterns, TRUTH, Serial);
        let mut random = Random::new(seed);
        let half = HalfId((11 + random.below(27)) as u32);
        let mut found = Insertions::default();
        here.score_insertions(half, 4, &mut found, |_| true).unwrap();
        for (k, tried) in found.tried.iter().enumerate() {
            let mut moved = likelihood(&tree, &patterns, TRUTH, Serial);
            let pruned = moved.prune(half);
            let _ = moved.regraft(pruned, tried.edge);
            prop_assert!((moved.evaluate().unwrap() - tried.lnl).abs() < 1e-6);
            let refined = here.refine_insertion(&found, k, 1).unwrap();
            prop_assert!(refined.lnl > tried.lnl - 1e-6);
            let mut applied = likelihood(&tree, &patterns, TRUTH, Serial);
            applied.apply_insertion(half, &refined);
            prop_assert!((applied.evaluate().unwrap() - refined.lnl).abs() < 1e-6);
        }
    }

    #[test]
    fn constraints_allow_what_keeps_them_and_nothing_else(seed in 0_u64..10_000) {
        let names = numbered_names(9);
        let newick = Newick::parse("((t1,t2,t3),(t4,t5),t6,(t7,t8));").unwrap();
        let constraint = Constraint::from_newick(&newick, &names).unwrap();
        let mut random = Random::new(seed);
        let tree = constraint::random_tree(9, &constraint, &mut random);
        prop_assert!(constraint.holds(&tree));
        for half in (9..tree.halves() as u32).map(HalfId) {
            let allowed = constraint.edges_for_subtree(&tree, half);
            let mut rest = tree.clone();
            let pruned = rest.prune(half);
            let mut path = vec![pruned.ends[0], pruned.ends[1]];
            while let Some(end) = path.pop() {
                let edge = rest.edge(end);
                let mut moved = rest.clone();
                let _ = moved.regraft(pruned, edge);
                prop_assert_eq!(allowed[edge.index()], constraint.holds(&moved));
                if !rest.is_tip(end) {
                    path.extend(rest.others(end).map(|other| rest.back(other)));
                }
            }
        }
    }
}

#[test]
fn a_constrained_search_keeps_its_splits() {
    let (_, patterns) = case(12, 300, 0.1, 6);
    let names = numbered_names(12);
    // Splits that contradict the data.
    let newick = Newick::parse("((t1,t8,t11),(t2,t9),(t3,t10,t4),t5);").unwrap();
    let constraint = Constraint::from_newick(&newick, &names).unwrap();
    for kind in [Start::Parsimony, Start::Random] {
        let start = start_tree(kind, &[&patterns], Some(&constraint), 4);
        assert!(constraint.holds(&start), "{kind:?}");
        let mut likelihood = likelihood(&start, &patterns, "JC", Serial);
        let options = Options {
            constraint: Some(constraint.clone()),
            ..Options::default()
        };
        let free = run(
            &mut likelihood,
            State::new(start.clone(), 1),
            &Options::default(),
            &mut go_on,
        );
        let mut watch = |state: &State| {
            assert!(constraint.holds(state.tree()));
            ControlFlow::Continue(())
        };
        let kept = run(&mut likelihood, State::new(start, 1), &options, &mut watch).unwrap();
        let free = free.unwrap();
        assert!(!constraint.holds(free.tree()));
        let error = run(&mut likelihood, free.clone(), &options, &mut go_on).unwrap_err();
        assert!(matches!(error, LikelihoodError::State { .. }), "{error}");
        assert!(kept.moves() > 0 && kept.lnl() < free.lnl());
    }
}

#[test]
fn a_saved_state_has_the_names_that_its_version_began_with() {
    let tree = random_tree(5, 0.1, &mut Random::new(1));
    let mut state = State::new(tree, 1);
    state.phase = Phase::Perturb;
    let saved = serde_json::to_value(&state).unwrap();
    assert_eq!(saved["phase"], "Escape");
    assert!(saved["seconds"].is_array() && saved.get("runner_up").is_none());
    assert_eq!(serde_json::from_value::<State>(saved).unwrap(), state);
}

mod terraces {
    use crate::constraint::{TerraceError, terrace};
    use crate::random::Random;
    use crate::tree::{EdgeId, HalfId, Tree, random_tree};

    /// All binary trees of some taxa.
    fn all_trees(taxa: usize) -> Vec<Tree> {
        let mut trees = vec![Tree::star(taxa, [0, 1, 2], 0.1)];
        for tip in 3..taxa {
            let grown = trees.iter().flat_map(|tree| {
                (0..2 * tip - 3).map(move |edge| {
                    let mut tree = tree.clone();
                    tree.insert_tip(tip, tip, EdgeId::new(edge));
                    tree
                })
            });
            trees = grown.collect();
        }
        trees
    }

    /// Branches between all tips.
    fn distances(tree: &Tree) -> Vec<Vec<usize>> {
        let from = |tip: usize| {
            let mut found = vec![0; tree.taxa()];
            let mut path = vec![(HalfId::new(tip), 1)];
            while let Some((half, steps)) = path.pop() {
                let back = tree.back(half);
                match tree.is_tip(back) {
                    true => found[back.index()] = steps,
                    false => path.extend(tree.others(back).map(|other| (other, steps + 1))),
                }
            }
            found
        };
        (0..tree.taxa()).map(from).collect()
    }

    /// True if the trees have the same subtree of these taxa: all of its quartets.
    fn are_alike(one: &[Vec<usize>], other: &[Vec<usize>], taxa: &[usize]) -> bool {
        let pairing = |far: &[Vec<usize>], [a, b, c, d]: [usize; 4]| {
            let sums = [
                far[a][b] + far[c][d],
                far[a][c] + far[b][d],
                far[a][d] + far[b][c],
            ];
            (0..3).min_by_key(|&way| sums[way])
        };
        (0..taxa.len()).all(|d| {
            (0..d).all(|c| {
                (0..c).all(|b| {
                    (0..b).all(|a| {
                        let four = [a, b, c, d].map(|at| taxa[at]);
                        pairing(one, four) == pairing(other, four)
                    })
                })
            })
        })
    }

    #[test]
    fn a_terrace_has_the_trees_that_a_list_of_all_has() {
        let all = all_trees(7);
        assert_eq!(all.len(), 945);
        let far: Vec<_> = all.iter().map(distances).collect();
        let mut random = Random::new(3);
        let mut sizes = Vec::new();
        for round in 0..60 {
            let at = random.index(all.len());
            let reference = random.index(7);
            let mut part = || -> Vec<bool> {
                let is_there = |taxon| taxon == reference || random.index(10) < 5 + round % 5;
                (0..7).map(is_there).collect()
            };
            let parts: Vec<Vec<bool>> = (0..1 + round % 4).map(|_| part()).collect();
            let lists: Vec<Vec<usize>> = parts
                .iter()
                .map(|own| (0..7).filter(|&taxon| own[taxon]).collect())
                .collect();
            let is_on =
                |other: &&Vec<Vec<usize>>| lists.iter().all(|own| are_alike(&far[at], other, own));
            let expected = far.iter().filter(is_on).count();
            let found = terrace(&all[at], &parts, u64::MAX).unwrap();
            assert_eq!(found.trees, u128::try_from(expected).ok(), "{parts:?}");
            assert!((found.trees_log10 - libm::log10(expected as f64)).abs() < 1e-9);
            assert!(found.is_exact);
            sizes.push(expected);
        }
        sizes.sort_unstable();
        sizes.dedup();
        assert!(sizes.len() > 5 && sizes[0] == 1, "{sizes:?}");
    }

    #[test]
    fn a_terrace_has_a_bound() {
        let tree = random_tree(50, 0.1, &mut Random::new(1));
        let part = |has: fn(usize) -> bool| -> Vec<bool> { (0..50).map(has).collect() };
        // Two taxa next to the reference say nothing: all trees of 50 taxa.
        let found = terrace(&tree, &[part(|taxon| taxon < 3)], 1).unwrap();
        let expected: f64 = (1..=95).step_by(2).map(|k| f64::from(k).log10()).sum();
        assert!(found.trees.is_none() && found.is_exact);
        assert!((found.trees_log10 - expected).abs() < 1e-9);
        let whole = terrace(&tree, &[part(|_| true), part(|taxon| taxon < 9)], 0).unwrap();
        assert_eq!((whole.trees, whole.is_exact), (Some(1), true));
        let halves = [
            part(|taxon| taxon % 2 == 0),
            part(|taxon| taxon % 2 == 1 || taxon == 0),
        ];
        let few = terrace(&tree, &halves, 10).unwrap();
        assert!(!few.is_exact && few.trees_log10 >= 0.0);
        let more = terrace(&tree, &halves, 1000).unwrap();
        assert!(more.trees_log10 >= few.trees_log10);
        let apart = [part(|taxon| taxon < 25), part(|taxon| taxon >= 25)];
        assert_eq!(terrace(&tree, &apart, 1), Err(TerraceError::NoReference));
    }
}
