//! Whole inferences: the best of all trees where these are few, states that go on, odd sequences.

use super::*;
use crate::sets::Sets;
use sidecore_likelihood::likelihood::{Likelihood, Options as LikelihoodOptions};
use sidecore_likelihood::model::{Model, ModelName};
use sidecore_likelihood::msa::{Alignment, Alphabet};
use sidecore_likelihood::newick::Newick;
use sidecore_likelihood::parsimony;
use sidecore_likelihood::runner::Serial;
use sidecore_likelihood::simulate::{numbered_names, simulate};
use sidecore_likelihood::tree::{EdgeId, HalfId, random_tree};
use sidecore_offload::{Pool, PoolConfig};

fn model(text: &str) -> ModelName {
    ModelName::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into())).unwrap()
}

const TRUTH: &str = "GTR{1.5/3.8/0.6/1.3/4.1/1}+FU{0.27/0.2/0.24/0.29}+G4m{0.5}";
const OPTIONS: Options = Options {
    lengths: Lengths::Linked,
    seed: 3,
    memory: 1 << 30,
};

/// Names and an alignment that evolved along a random tree.
fn case(taxa: usize, sites: usize, mean: f64, seed: u64) -> (Vec<String>, Vec<PartOptions>) {
    let tree = random_tree(taxa, mean, &mut Random::new(seed));
    let truth = Model::without_alignment(model(TRUTH));
    let alignment = simulate(&tree, &numbered_names(taxa), &truth, sites, seed).unwrap();
    let patterns = Patterns::new(&alignment, Alphabet::Dna).unwrap();
    let part = PartOptions::new(model("GTR+G4"), patterns);
    (alignment.names().to_vec(), vec![part])
}

/// Names and sequences as they are given.
fn given(text: &str) -> (Vec<String>, Vec<PartOptions>) {
    let alignment = Alignment::parse(text.as_bytes()).unwrap();
    let patterns = Patterns::new(&alignment, Alphabet::Dna).unwrap();
    let part = PartOptions::new(model("JC"), patterns);
    (alignment.names().to_vec(), vec![part])
}

fn infer(names: &[String], parts: &[PartOptions], runner: &impl Runner) -> Found {
    let inference = Inference::new(names, parts).unwrap();
    let mut go_on = |_: &Step<'_>| ControlFlow::Continue(());
    let found = inference.run(OPTIONS, None, runner, &mut go_on).unwrap();
    found.unwrap()
}

fn likelihood(tree: Tree, part: &PartOptions) -> Likelihood<Serial> {
    let (patterns, model) = (part.patterns.clone(), part.model.clone());
    Likelihood::new(tree, patterns, model, Serial, LikelihoodOptions::default()).unwrap()
}

fn tree_of(text: &str, names: &[String]) -> Tree {
    Tree::from_newick(&Newick::parse(text).unwrap(), names).unwrap()
}

/// All trees of some taxa.
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

/// Or one that is as good but for a fraction of a unit: a quick climb leaves out what nearly gains.
#[test]
fn of_six_taxa_the_best_tree_is_found() {
    for seed in 1..4 {
        let (names, parts) = case(6, 400, 0.15, seed);
        let found = infer(&names, &parts, &Serial);
        let trees = all_trees(6);
        assert_eq!(trees.len(), 105);
        // Under the found model, so that trees differ by their lengths alone.
        let part = PartOptions::new(model(&found.models[0]), parts[0].patterns.clone());
        let best = trees.into_iter().map(|tree| {
            let mut likelihood = likelihood(tree, &part);
            likelihood.optimise_lengths(1e-3, 30).unwrap()
        });
        let best = best.fold(f64::NEG_INFINITY, f64::max);
        assert!(
            found.lnl > best - 0.6,
            "{} of {best}, seed {seed}",
            found.lnl
        );
    }
}

#[test]
fn it_ends_above_its_start_and_what_it_says_is_true() {
    let (names, parts) = case(60, 300, 0.08, 7);
    let found = infer(&names, &parts, &Serial);
    let mut start = likelihood(tree_of(&found.start, &names), &parts[0]);
    let start = start.optimise_onward(0.1).unwrap();
    assert!(found.lnl > start - 0.5, "{} after {start}", found.lnl);
    let part = PartOptions::new(model(&found.models[0]), parts[0].patterns.clone());
    let lnl = likelihood(tree_of(&found.tree, &names), &part)
        .evaluate()
        .unwrap();
    assert!((lnl - found.lnl).abs() < 0.05, "{lnl} is not {}", found.lnl);
}

#[test]
fn engines_change_nothing() {
    let (names, parts) = case(120, 200, 0.05, 2);
    let alone = infer(&names, &parts, &Serial);
    let config = PoolConfig {
        engines: 3,
        ..PoolConfig::default()
    };
    let together = infer(&names, &parts, &Pool::start(config).unwrap());
    assert_eq!(alone, together);
}

/// Each state that a watch sees, as a checkpoint would keep it, gives the same end.
#[test]
fn an_interrupted_run_ends_as_if_it_had_not_been() {
    let (names, parts) = case(40, 250, 0.08, 5);
    let inference = Inference::new(&names, &parts).unwrap();
    let whole = infer(&names, &parts, &Serial);
    let mut texts = Vec::new();
    let mut keep = |step: &Step<'_>| {
        let text = serde_json::to_string(&step.state).unwrap();
        if texts.last() != Some(&text) {
            texts.push(text);
        }
        ControlFlow::Continue(())
    };
    inference.run(OPTIONS, None, &Serial, &mut keep).unwrap();
    assert!(texts.len() > 3, "{} states", texts.len());
    for text in texts {
        let state: Option<State> = serde_json::from_str(&text).unwrap();
        let mut go_on = |_: &Step<'_>| ControlFlow::Continue(());
        let found = inference.run(OPTIONS, state, &Serial, &mut go_on).unwrap();
        assert_eq!(found.unwrap(), whole);
    }
}

#[test]
fn a_watch_breaks_it_off_in_every_stage() {
    let (names, parts) = case(80, 100, 0.08, 5);
    let inference = Inference::new(&names, &parts).unwrap();
    let stages = [
        Stage::Addition,
        Stage::Moves,
        Stage::Fit,
        Stage::Climb,
        Stage::Last,
    ];
    for last in stages {
        let mut seen = false;
        let mut stop = |step: &Step<'_>| {
            assert!(!seen, "called again");
            seen = step.stage == last;
            match seen {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let found = inference.run(OPTIONS, None, &Serial, &mut stop).unwrap();
        assert_eq!((found, seen), (None, true), "{last:?}");
    }
}

#[test]
fn identical_sequences_are_siblings_at_no_distance() {
    let text =
        ">a\nAACCGTTA\n>b\nAACCGTTA\n>c\nGACTGTTA\n>d\nGATTGTTC\n>e\nGATTATTC\n>f\nAACCGTTA\n";
    let (names, parts) = given(text);
    let inference = Inference::new(&names, &parts).unwrap();
    assert_eq!(inference.kept(), 4);
    let found = infer(&names, &parts, &Serial);
    assert!(found.tree.contains("(a:0,b:0,f:0)"), "{}", found.tree);
    // All of them have the likelihood of one, but for the shortest length.
    let tree = tree_of(&found.tree, &names);
    let part = PartOptions::new(model(&found.models[0]), parts[0].patterns.clone());
    let lnl = likelihood(tree, &part).evaluate().unwrap();
    assert!((lnl - found.lnl).abs() < 0.01, "{lnl} is not {}", found.lnl);
}

#[test]
fn odd_sequences_have_trees() {
    for text in [
        ">a\nACGT\n>b\nAGGT\n>c\nACCT\n",
        // All are identical, or say nothing.
        ">a\nACGT\n>b\nACGT\n>c\nACGT\n>d\nACGT\n>e\nACGT\n",
        ">a\nACGT\n>b\n----\n>c\nNNNN\n>d\nACGA\n>e\n????\n>f\nTCGA\n",
        ">a\nA---\n>b\n-C--\n>c\n--G-\n>d\n---T\n>e\nA---\n",
        // Every code of sets of states.
        ">a\nRYKMSWBDHV\n>b\nACGTACGTAC\n>c\nNNRYACGTAC\n>d\nRRRRCCCCGG\n",
    ] {
        let (names, parts) = given(text);
        let found = infer(&names, &parts, &Serial);
        let tree = Newick::parse(&found.tree).unwrap();
        let mut labels = tree.tip_labels();
        labels.sort();
        assert_eq!(labels, names, "{text}");
        assert!(found.lnl.is_finite() && found.lnl <= 0.0, "{text}");
    }
}

#[test]
fn what_cannot_be_a_tree_is_refused() {
    let (names, parts) = case(6, 50, 0.1, 1);
    let refused = |names: &[String], parts: &[PartOptions]| Inference::new(names, parts).err();
    assert!(matches!(refused(&names, &[]), Some(WideError::Parts)));
    assert!(matches!(
        refused(&names[..5], &parts),
        Some(WideError::Parts)
    ));
    let two = PartOptions {
        patterns: parts[0].patterns.of_taxa(&[0, 1]),
        ..parts[0].clone()
    };
    let few = refused(&names[..2], &[two]);
    assert!(matches!(few, Some(WideError::TooSmall { taxa: 2 })));
    // A state of another alignment.
    let tree = random_tree(5, 0.1, &mut Random::new(1));
    let inference = Inference::new(&names, &parts).unwrap();
    let mut go_on = |_: &Step<'_>| ControlFlow::Continue(());
    let other = Some(State::new(tree));
    let result = inference.run(OPTIONS, other, &Serial, &mut go_on);
    assert!(matches!(result, Err(WideError::State { .. })), "{result:?}");
}

/// What a user's limit is compared with grows with the sequences that differ, and with their
/// differences.
#[test]
fn memory_is_that_of_different_sequences() {
    let (names, parts) = case(50, 300, 0.1, 1);
    let bytes = Inference::new(&names, &parts).unwrap().least_bytes();
    let inner = 48 * parts[0].patterns.len().to_u64() * 16 * 8;
    let of = |parts: &[PartOptions]| {
        let tree = random_tree(50, 0.1, &mut Random::new(1));
        climb::bytes(parts, &State::new(tree)).unwrap()
    };
    let need = of(&parts);
    assert!(need > inner / 4 && need < 3 * inner, "{need} of {inner}");
    // Of sequences that hardly differ most nodes have few classes, and the same repeats.
    let (_, near) = case(50, 300, 0.002, 1);
    let share = |need: u64, parts: &[PartOptions]| need as f64 / parts[0].patterns.len() as f64;
    let (few, many) = (share(of(&near), &near), share(need, &parts));
    assert!(few < many, "{few} of {many} bytes a pattern");
    let inference = Inference::new(&names, &parts).unwrap();
    let mut go_on = |_: &Step<'_>| ControlFlow::Continue(());
    let small = Options {
        memory: need / 8,
        ..OPTIONS
    };
    let refused = inference.run(small, None, &Serial, &mut go_on);
    assert!(
        matches!(refused, Err(WideError::Memory { .. })),
        "{refused:?}"
    );
    let twice: Vec<usize> = (0..50).chain(0..50).collect();
    let doubled = PartOptions {
        patterns: parts[0].patterns.of_taxa(&twice),
        ..parts[0].clone()
    };
    let all = numbered_names(100);
    let inference = Inference::new(&all, &[doubled]).unwrap();
    assert_eq!((inference.kept(), inference.least_bytes()), (50, bytes));
}

fn added(parts: &[PartOptions], scanned: usize, runner: &impl Runner) -> Tree {
    let patterns = [&parts[0].patterns];
    let sites = Sites::new(&patterns);
    let mut go_on = |_: &Step<'_>| ControlFlow::Continue(());
    let mut random = Random::new(5);
    let data = (&sites, &patterns[..]);
    let tree = start::add_all(data, scanned, &mut random, runner, &mut go_on);
    let (tree, mut sets) = tree.unwrap().unwrap();
    let score = parsimony::score(&tree, &patterns);
    assert_eq!(sets.score(&tree), score);
    tree
}

/// Of taxa that are added near like ones against all branches tried: hardly more changes.
#[test]
fn like_taxa_lead_to_cheap_branches() {
    let (_, parts) = case(400, 400, 0.03, 6);
    let score = |scanned| parsimony::score(&added(&parts, scanned, &Serial), &[&parts[0].patterns]);
    let (all, guided) = (score(400), score(40));
    assert!(guided < all + all / 50, "{guided} instead of {all}");
    let config = PoolConfig {
        engines: 3,
        ..PoolConfig::default()
    };
    let pool = Pool::start(config).unwrap();
    assert_eq!(added(&parts, 40, &Serial), added(&parts, 40, &pool));
}

/// Each branch has two sites of its own, which change nowhere else: one tree alone needs no more
/// changes. It is found whether all branches are tried or those near like taxa.
#[test]
fn sequences_without_homoplasy_give_their_tree() {
    let taxa = 30;
    let names = numbered_names(taxa);
    for seed in 1..5 {
        let tree = random_tree(taxa, 0.1, &mut Random::new(seed));
        let mut rows = vec![String::new(); taxa];
        for edge in tree.edges() {
            let mut behind = vec![false; taxa];
            let mut path = vec![tree.ends(edge)[0]];
            while let Some(half) = path.pop() {
                match tree.is_tip(half) {
                    true => behind[half.index()] = true,
                    false => path.extend(tree.others(half).map(|other| tree.back(other))),
                }
            }
            for (row, behind) in rows.iter_mut().zip(behind) {
                row.push_str(if behind { "CC" } else { "AA" });
            }
        }
        let rows = names.iter().zip(rows);
        let text: String = rows
            .map(|(name, row)| format!(">{name}\n{row}\n"))
            .collect();
        let (names, parts) = given(&text);
        for scanned in [3, taxa] {
            let found = added(&parts, scanned, &Serial);
            let score = parsimony::score(&found, &[&parts[0].patterns]);
            assert_eq!(score, 2 * tree.edges().count().to_u64(), "seed {seed}");
            assert_eq!(found.topology(), tree.topology(), "seed {seed}");
        }
        let found = infer(&names, &parts, &Serial);
        assert_eq!(tree_of(&found.tree, &names).topology(), tree.topology());
    }
}

/// Of sequences that are alike, or that say nothing, some branch is found.
#[test]
fn odd_sequences_are_added() {
    let rows = (0..60).map(|at| {
        let base = char::from(b"ACGT"[at % 4]);
        let rest = if at % 5 == 0 { "NNNN" } else { "AC-T" };
        format!(
            ">t{at}\n{base}{}{rest}\n",
            "ACGTN"[at % 5..].repeat(2).get(..2).unwrap()
        )
    });
    let (_, parts) = given(&rows.collect::<String>());
    let tree = added(&parts, 3, &Serial);
    assert_eq!(tree.edges_depth_first().len(), 2 * 60 - 3);
}

/// Walks that end where sets stay equal leave the sets of a tree made anew.
#[test]
fn changed_sets_are_those_of_the_tree() {
    let (_, parts) = case(40, 500, 0.1, 9);
    let sites = Sites::new(&[&parts[0].patterns]);
    let mut random = Random::new(11);
    let mut tree = Tree::star(40, [0, 1, 2], 0.1);
    let mut sets = Sets::of_star(&sites, &tree);
    for tip in 3..40 {
        let edge = EdgeId::new(random.index(2 * tip - 3));
        tree.insert_tip(tip, tip, edge);
        sets.inserted(&tree, tip);
    }
    let mut moved = 0;
    for _ in 0..200 {
        let half = HalfId::new(40 + random.index(tree.inner_halves()));
        let to = EdgeId::new(random.index(77));
        if can_move(&tree, half, to) {
            sets.move_subtree(&mut tree, half, to);
            moved += 1;
        }
    }
    assert!(moved > 50, "{moved} moves");
    let anew = Sets::of(&sites, &tree);
    for half in (0..tree.halves()).map(HalfId::new) {
        assert_eq!(sets.get(half), anew.get(half), "{half:?}");
    }
    let score = parsimony::score(&tree, &[&parts[0].patterns]);
    assert_eq!(sets.score(&tree), score);
}

/// True if a branch is not within the subtree behind `half`, nor next to its node.
fn can_move(tree: &Tree, half: HalfId, to: EdgeId) -> bool {
    let own = tree.others(half).map(|own| tree.edge(own));
    let below = tree.back(half);
    let within = tree.post_order(below, |_| true);
    let within = within.into_iter().flat_map(|half| tree.others(half));
    let mut taken = within.map(|half| tree.edge(half));
    !own.contains(&to) && to != tree.edge(half) && !taken.any(|edge| edge == to)
}

#[test]
fn moves_save_changes() {
    let (_, parts) = case(100, 300, 0.1, 4);
    let patterns = [&parts[0].patterns];
    let sites = Sites::new(&patterns);
    let mut tree = random_tree(100, 0.1, &mut Random::new(1));
    let before = parsimony::score(&tree, &patterns);
    let mut sets = Sets::of(&sites, &tree);
    let mut go_on = |_: &Step<'_>| ControlFlow::Continue(());
    let ended = start::improve(&mut tree, &mut sets, &Serial, &mut go_on).unwrap();
    assert!(ended.is_continue());
    let after = parsimony::score(&tree, &patterns);
    assert_eq!(sets.score(&tree), after);
    // A random tree is far from the best, which takes about this share of its changes.
    assert!(after < before * 7 / 10, "{after} of {before}");
}
