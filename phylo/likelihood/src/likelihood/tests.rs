//! The likelihood against its definition, against itself from other sides, and at extremes.

use super::*;
use crate::kernel::Isa;
use crate::model::{ModelName, Parameter};
use crate::msa::Alignment;
use crate::newick::Newick;
use crate::random::Random;
use crate::runner::Serial;
use crate::simulate::{numbered_names, simulate};
use crate::tree::random_tree;
use proptest::prelude::*;
use sidecore_offload::{Pool, PoolConfig};

const GTR: &str = "GTR{1.5/3.8/0.6/1.3/4.1/1}+FU{0.27/0.2/0.24/0.29}";

fn name(text: &str) -> ModelName {
    ModelName::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into())).unwrap()
}

/// A random tree with an alignment that evolved along it, gaps and ambiguities sprinkled in.
fn case(text: &str, taxa: usize, sites: usize, mean: f64, seed: u64) -> (Tree, Patterns, Model) {
    sprinkled(text, taxa, sites, mean, seed, 20)
}

/// One character of `one_in` is made ambiguous; none if it is 0.
fn sprinkled(
    text: &str,
    taxa: usize,
    sites: usize,
    mean: f64,
    seed: u64,
    one_in: u64,
) -> (Tree, Patterns, Model) {
    let mut random = Random::new(seed);
    let tree = random_tree(taxa, mean, &mut random);
    let names = numbered_names(taxa);
    let truth = Model::without_alignment(name(text));
    let alignment = simulate(&tree, &names, &truth, sites, seed).unwrap();
    let unclear: &[u8] = match truth.alphabet() {
        crate::msa::Alphabet::Dna => b"RYN-K",
        _ => b"BZJX-",
    };
    let rows = (0..taxa).map(|taxon| {
        let mut row = alignment.row(taxon).to_vec();
        // The first taxon stays whole, so that no column is all gaps.
        for letter in row.iter_mut().filter(|_| taxon > 0) {
            if one_in > 0 && random.below(one_in) == 0 {
                *letter = unclear[random.below(5) as usize];
            }
        }
        row
    });
    let alignment = Alignment::new(names, rows.collect()).unwrap();
    let patterns = Patterns::new(&alignment, truth.alphabet()).unwrap();
    let model = Model::new(name(text), &patterns);
    (tree, patterns, model)
}

fn likelihood(case: &(Tree, Patterns, Model), options: Options) -> Likelihood<Serial> {
    let (tree, patterns, model) = case.clone();
    Likelihood::new(tree, patterns, model, Serial, options).unwrap()
}

/// The likelihood of each pattern by the definition: a sum over the states of all inner nodes.
fn by_definition((tree, patterns, model): &(Tree, Patterns, Model)) -> f64 {
    let process = model.process();
    let (n, taxa) = (process.shape.states, tree.taxa());
    let masks = patterns.alphabet().masks();
    let mut matrix = vec![0.0; process.shape.matrix()];
    let matrices: Vec<Vec<f64>> = tree
        .edges()
        .map(|edge| {
            process.transitions(tree.length(edge), &mut matrix);
            matrix.clone()
        })
        .collect();
    let inner = taxa - 2;
    let mut lnl = 0.0;
    for (pattern, &weight) in patterns.weights().iter().enumerate() {
        let mut whole = 0.0;
        for rate in 0..process.rates.len() {
            for assignment in 0..n.pow(inner as u32) {
                let inner_state = |k: usize| assignment / n.pow(k as u32) % n;
                let mut product = process.frequencies[inner_state(0)] * process.weights[rate];
                for edge in tree.edges() {
                    // Reversible, but each branch is read away from inner node 0: walk by parents.
                    let [a, b] = tree.ends(edge);
                    let (up, down) = if nearer(tree, a, b) { (a, b) } else { (b, a) };
                    let from = inner_state(tree.node(up).index() - taxa);
                    let block = &matrices[edge.index()][rate * n * n..][..n * n];
                    product *= if tree.is_tip(down) {
                        let mask = masks[usize::from(patterns.codes(down.index())[pattern])];
                        (0..n)
                            .filter(|j| mask >> j & 1 == 1)
                            .map(|j| block[j * n + from])
                            .sum()
                    } else {
                        block[inner_state(tree.node(down).index() - taxa) * n + from]
                    };
                }
                whole += product;
            }
        }
        let common = patterns.common_states(pattern);
        let fitting = (0..n).filter(|j| common >> j & 1 == 1);
        whole += process.invariant * fitting.map(|j| process.frequencies[j]).sum::<f64>();
        lnl += f64::from(weight) * whole.ln();
    }
    lnl
}

/// True if inner node 0 is on `a`'s side of the branch between `a` and `b`.
fn nearer(tree: &Tree, a: HalfId, b: HalfId) -> bool {
    let root = tree.taxa();
    let _ = b;
    tree.node(a).index() == root
        || tree
            .post_order(a, |_| true)
            .iter()
            .any(|half| tree.node(*half).index() == root)
}

#[test]
fn the_definition_by_brute_force() {
    for text in [
        "JC".to_owned(),
        format!("{GTR}+G4m{{0.4}}"),
        format!("{GTR}+IU{{0.3}}+G3m{{0.7}}"),
        format!("{GTR}+R3{{0.2/0.9/2}}{{0.3/0.4/0.3}}"),
    ] {
        let case = case(&text, 6, 60, 0.2, 5);
        let exact = by_definition(&case);
        for isa in Isa::all() {
            for repeats in [false, true] {
                let options = Options {
                    isa,
                    repeats,
                    ..Options::default()
                };
                let lnl = likelihood(&case, options).evaluate().unwrap();
                assert!(
                    (lnl - exact).abs() < 1e-10 * exact.abs(),
                    "{text}: {lnl} {exact}"
                );
            }
        }
    }
    let case = case("WAG+G2m{0.5}", 4, 12, 0.3, 6);
    let exact = by_definition(&case);
    let lnl = likelihood(&case, Options::default()).evaluate().unwrap();
    assert!((lnl - exact).abs() < 1e-10 * exact.abs(), "{lnl} {exact}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// The pulley principle: any branch gives the same likelihood; and so do all ways to compute
    /// it.
    #[test]
    fn every_branch_gives_the_same(
        seed in any::<u64>(), taxa in 4_usize..40, protein in any::<bool>(), mean in 0.01..1.0_f64
    ) {
        let dna = format!("{GTR}+G4m{{0.5}}");
        let text = if protein { "LG+IU{0.1}+G4m{0.5}".to_owned() } else { dna };
        let case = case(&text, taxa, 80, mean, seed);
        let mut first = likelihood(&case, Options::default());
        let once = first.evaluate_once().unwrap();
        let lnl = first.evaluate().unwrap();
        prop_assert_eq!(once, lnl);
        // Some values kept, some not.
        first.set_length(EdgeId((seed % (2 * taxa as u64 - 3)) as u32), 0.3);
        let [once, lnl] = [first.evaluate_once().unwrap(), first.evaluate().unwrap()];
        prop_assert_eq!(once, lnl);
        for edge in case.0.edges() {
            let other = first.evaluate_at(edge).unwrap();
            prop_assert!((lnl - other).abs() < 1e-9 * lnl.abs(), "{:?}: {} {}", edge, lnl, other);
        }
        let options = Options { isa: Isa::PORTABLE, repeats: false, chunk_bytes: 1 << 12 };
        let (_, patterns, model) = case;
        let other = Likelihood::new(first.tree().clone(), patterns, model, Serial, options);
        let other = other.unwrap().evaluate_once().unwrap();
        prop_assert!((lnl - other).abs() < 1e-10 * lnl.abs());
        let sites = first.site_log_likelihoods().unwrap();
        prop_assert_eq!(sites.len(), 80);
        prop_assert!((sites.iter().sum::<f64>() - lnl).abs() < 1e-9 * lnl.abs());
    }

    #[test]
    fn derivatives_are_differences(
        seed in any::<u64>(), taxa in 4_usize..20, protein in any::<bool>(), edge in any::<u32>(),
        length in 0.005..2.0_f64
    ) {
        let dna = format!("{GTR}+IU{{0.2}}+G4m{{0.5}}");
        let text = if protein { "JTT+G4m{0.5}".to_owned() } else { dna };
        let case = case(&text, taxa, 60, 0.2, seed);
        let mut own = likelihood(&case, Options::default());
        let edge = EdgeId(edge % (2 * taxa as u32 - 3));
        let mut at = |length: f64| {
            own.set_length(edge, length);
            own.evaluate_at(edge).unwrap()
        };
        let h = 1e-4 * length;
        let (below, here, above) = (at(length - h), at(length), at(length + h));
        let (first, second) = ((above - below) / (2.0 * h), (above - 2.0 * here + below) / (h * h));
        let by_table = own.evaluate_length(edge, length).unwrap();
        prop_assert!((by_table - here).abs() < 1e-11 * here.abs(), "{} {}", by_table, here);
        let found = own.derivatives(edge, length).unwrap();
        let scale = here.abs() / length;
        prop_assert!((found.first - first).abs() < 1e-6 * scale, "{} {}", found.first, first);
        let scale = scale / length;
        prop_assert!((found.second - second).abs() < 1e-4 * scale, "{} {}", found.second, second);
    }

    /// Whatever a search does to the tree, the likelihood is that of a fresh start; and undone, it
    /// is the old one to the last bit.
    #[test]
    fn edits_leave_nothing_stale(seed in any::<u64>(), taxa in 5_usize..24) {
        let case = case(&format!("{GTR}+G4m{{0.5}}"), taxa, 50, 0.2, seed);
        let mut own = likelihood(&case, Options::default());
        let mut random = Random::new(seed ^ 1);
        let edges = 2 * taxa as u64 - 3;
        for _ in 0..12 {
            let before = own.evaluate().unwrap();
            let tree = own.tree().clone();
            let edge = EdgeId(random.below(edges) as u32);
            match random.below(3) {
                0 => own.set_length(edge, crate::random::exponential(&mut random, 0.3)),
                1 => {
                    if let Some(nni) = own.nni(edge, random.below(2) == 0) {
                        own.evaluate_at(edge).unwrap();
                        if random.below(2) == 0 {
                            own.undo_nni(nni);
                            prop_assert_eq!(own.tree(), &tree);
                            prop_assert_eq!(own.evaluate().unwrap(), before);
                        }
                    }
                }
                _ => {
                    let inner = taxa as u64 + random.below(3 * taxa as u64 - 6);
                    let half = HalfId(inner as u32);
                    let pruned = own.prune(half);
                    // Anywhere outside the subtree: a walk from the old place.
                    let mut at = pruned.ends[random.below(2) as usize];
                    for _ in 0..random.below(5) {
                        if !own.tree().is_tip(at) {
                            at = own.tree().back(own.tree().others(at)[random.below(2) as usize]);
                        }
                    }
                    let target = own.tree().edge(at);
                    let grafted = own.regraft(pruned, target);
                    let after = own.evaluate_at(own.tree().edge(half)).unwrap();
                    let (_, patterns, model) = case.clone();
                    let fresh = Likelihood::new(
                        own.tree().clone(), patterns, model, Serial, Options::default(),
                    );
                    let fresh = fresh.unwrap().evaluate().unwrap();
                    prop_assert!((after - fresh).abs() < 1e-9 * fresh.abs());
                    if random.below(2) == 0 {
                        let pruned = own.ungraft(grafted);
                        own.unprune(pruned);
                        prop_assert_eq!(own.tree(), &tree);
                        prop_assert_eq!(own.evaluate().unwrap(), before);
                    }
                }
            }
            let (_, patterns, model) = case.clone();
            let fresh =
                Likelihood::new(own.tree().clone(), patterns, model, Serial, Options::default());
            let fresh = fresh.unwrap().evaluate().unwrap();
            prop_assert!((own.evaluate().unwrap() - fresh).abs() < 1e-9 * fresh.abs());
        }
    }
}

#[test]
fn any_number_of_engines_gives_the_same_bits() {
    let case = case(
        &format!("{GTR}+FO+G4").replace("+FU{0.27/0.2/0.24/0.29}", ""),
        24,
        900,
        0.3,
        9,
    );
    let options = Options {
        chunk_bytes: 8 << 10,
        ..Options::default()
    };
    let run = |runner: &dyn Fn() -> Vec<u64>| runner();
    let work = |lnl: f64, tree: &Tree, model: &Model| {
        let mut bits = vec![lnl.to_bits()];
        bits.extend(tree.edges().map(|edge| tree.length(edge).to_bits()));
        bits.extend(model.fitted().into_iter().map(|p| model.value(p).to_bits()));
        bits
    };
    let serial = run(&|| {
        let mut own = likelihood(&case, options);
        assert!(own.chunks() > 8, "{} chunks", own.chunks());
        let lnl = own.optimise(0.5).unwrap();
        work(lnl, own.tree(), own.parts()[0].model())
    });
    for engines in 1..=3 {
        let pool = Pool::start(PoolConfig {
            engines,
            ..PoolConfig::default()
        })
        .unwrap();
        let pooled = run(&|| {
            let (tree, patterns, model) = case.clone();
            let mut own = Likelihood::new(tree, patterns, model, &pool, options).unwrap();
            let lnl = own.optimise(0.5).unwrap();
            work(lnl, own.tree(), own.parts()[0].model())
        });
        assert_eq!(serial, pooled, "{engines} engines");
    }
}

#[test]
fn extreme_lengths_have_finite_likelihoods() {
    let text = format!("{GTR}+G4m{{0.05}}");
    let (tree, patterns, model) = case(&text, 30, 100, 0.5, 3);
    for length in [0.0, -1.0, 1e-300, 1e-12, 1e-6, 50.0, 1e9] {
        let mut tree = tree.clone();
        tree.edges().for_each(|edge| tree.set_length(edge, length));
        let case = (tree, patterns.clone(), model.clone());
        let mut own = likelihood(&case, Options::default());
        let lnl = own.evaluate().unwrap();
        assert!(lnl.is_finite() && lnl < 0.0, "{length}: {lnl}");
        for edge in case.0.edges() {
            let other = own.evaluate_at(edge).unwrap();
            assert!(
                (lnl - other).abs() < 1e-8 * lnl.abs(),
                "{length}: {lnl} {other}"
            );
            let slope = own.derivatives(edge, own.tree().length(edge)).unwrap();
            assert!(
                slope.first.is_finite() && slope.second.is_finite(),
                "{length}: {slope:?}"
            );
        }
        let better = own.optimise_lengths(0.1, 8).unwrap();
        assert!(
            better.is_finite() && better >= lnl,
            "{length}: {lnl} {better}"
        );
    }
}

#[test]
fn two_thousand_taxa_do_not_underflow() {
    for (mean, text) in [
        (0.3, format!("{GTR}+G4m{{0.3}}")),
        (0.01, format!("{GTR}+IU{{0.1}}+G4m{{0.1}}")),
    ] {
        let case = case(&text, 2_000, 60, mean, 12);
        let mut own = likelihood(&case, Options::default());
        let lnl = own.evaluate().unwrap();
        assert!(lnl.is_finite(), "{lnl}");
        // From the middle of the tree and from tips, all counts meet differently.
        for edge in (0..3_997).step_by(97) {
            let other = own.evaluate_at(EdgeId(edge)).unwrap();
            assert!(
                (lnl - other).abs() < 1e-9 * lnl.abs(),
                "branch {edge}: {lnl} {other}"
            );
            let length = own.tree().length(EdgeId(edge));
            let other = own.evaluate_length(EdgeId(edge), length).unwrap();
            assert!(
                (lnl - other).abs() < 1e-9 * lnl.abs(),
                "branch {edge}: {lnl} {other}"
            );
            let slope = own.derivatives(EdgeId(edge), 0.1).unwrap();
            assert!(
                slope.first.is_finite() && slope.second.is_finite(),
                "{slope:?}"
            );
        }
        let options = Options {
            isa: Isa::PORTABLE,
            repeats: false,
            ..Options::default()
        };
        let other = likelihood(&case, options).evaluate().unwrap();
        assert!((lnl - other).abs() < 1e-10 * lnl.abs(), "{lnl} {other}");
    }
}

#[test]
fn fitting_climbs_to_where_nothing_is_left() {
    let (tree, patterns, _) = sprinkled(&format!("{GTR}+G4m{{0.5}}"), 16, 3_000, 0.15, 21, 0);
    let model = Model::new(name("GTR+FO+G"), &patterns);
    let mut own = Likelihood::new(
        tree.clone(),
        patterns.clone(),
        model,
        Serial,
        Options::default(),
    )
    .unwrap();
    let start = own.evaluate().unwrap();
    let lengths = own.optimise_lengths(1e-6, 50).unwrap();
    let all = own.optimise(1e-4).unwrap();
    assert!(start < lengths && lengths < all);
    for edge in own.tree().edges() {
        let length = own.tree().length(edge);
        let slope = own.derivatives(edge, length).unwrap();
        let flat = slope.first.abs() < 1e-2 * slope.second.abs().sqrt().max(1.0);
        assert!(
            flat || (length <= LENGTH_MIN && slope.first < 0.0),
            "{edge:?}: {slope:?}"
        );
    }
    // Three thousand sites know the truth well.
    let fitted = own.parts()[0].model();
    let near = |parameter, truth: f64| {
        let value = fitted.value(parameter);
        assert!(
            (value / truth - 1.0).abs() < 0.25,
            "{parameter:?}: {value}, not {truth}"
        );
    };
    near(Parameter::Alpha, 0.5);
    near(Parameter::Exchange(1), 3.8);
    near(Parameter::Exchange(4), 4.1);
    near(Parameter::Frequency(3), 0.29);
    // The truth is not better than the best.
    let truth = Model::without_alignment(name(&format!("{GTR}+G4m{{0.5}}")));
    let mut exact = Likelihood::new(tree, patterns, truth, Serial, Options::default()).unwrap();
    assert!(exact.evaluate().unwrap() < all);
}

#[test]
fn partitions_add_up_and_scale_lengths() {
    let dna = case(&format!("{GTR}+G4m{{0.5}}"), 12, 300, 0.2, 30);
    let protein = case("LG+G4m{0.9}", 12, 90, 0.2, 30);
    let part = |case: &(Tree, Patterns, Model), scale| PartOptions {
        patterns: case.1.clone(),
        model: case.2.clone(),
        scale,
    };
    let tree = dna.0.clone();
    let options = Options::default();
    let parts = vec![part(&dna, 1.0), part(&protein, 0.4)];
    // Both cover sites from 0 on; a real partitioning never does, and the sum does not mind.
    let mut both = Likelihood::partitioned(tree.clone(), parts, Serial, options).unwrap();
    let mut scaled = tree.clone();
    scaled
        .edges()
        .for_each(|edge| scaled.set_length(edge, 0.4 * scaled.length(edge)));
    let alone = likelihood(&dna, options).evaluate().unwrap()
        + likelihood(&(scaled, protein.1.clone(), protein.2.clone()), options)
            .evaluate()
            .unwrap();
    let lnl = both.evaluate().unwrap();
    assert!((lnl - alone).abs() < 1e-9 * alone.abs(), "{lnl} {alone}");
    let edge = EdgeId(7);
    let h = 1e-5;
    let at = |both: &mut Likelihood<Serial>, length: f64| {
        both.set_length(edge, length);
        both.evaluate().unwrap()
    };
    let slope = (at(&mut both, 0.2 + h) - at(&mut both, 0.2 - h)) / (2.0 * h);
    let found = both.derivatives(edge, 0.2).unwrap().first;
    assert!(
        (found - slope).abs() < 1e-3 * slope.abs().max(1.0),
        "{found} {slope}"
    );
}

#[test]
fn tree_and_alignment_must_have_the_same_taxa() {
    let (_, patterns, model) = case("JC", 5, 20, 0.1, 1);
    let tree = Newick::parse("(t1,t2,(t3),t4);").unwrap();
    let error = Tree::from_newick(&tree, &numbered_names(4)).unwrap_err();
    assert!(error.to_string().contains("2 neighbours"), "{error}");
    let tree = random_tree(6, 0.1, &mut Random::new(1));
    let error = Likelihood::new(tree, patterns, model, Serial, Options::default()).unwrap_err();
    assert!(
        matches!(
            error,
            LikelihoodError::Taxa {
                tree: 6,
                alignment: 5
            }
        ),
        "{error}"
    );
}
