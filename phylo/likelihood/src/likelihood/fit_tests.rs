//! Fitting: no better parameters are near, and simulated parameters are recovered.

use super::*;
use crate::likelihood::climb::maximise;
use crate::likelihood::{Options, PartOptions};
use crate::model::{Model, ModelName, Parameter};
use crate::msa::Patterns;
use crate::random::Random;
use crate::runner::Serial;
use crate::simulate::{numbered_names, simulate};
use crate::tree::{Tree, random_tree};

const TRUTH: &str = "GTR{1.5/3.8/0.6/1.3/4.1/1}+FU{0.27/0.2/0.24/0.29}+G4m{0.5}";

fn name(text: &str) -> ModelName {
    ModelName::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into())).unwrap()
}

fn evolved(tree: &Tree, truth: &str, sites: usize, seed: u64) -> Patterns {
    let truth = Model::without_alignment(name(truth));
    let alignment = simulate(tree, &numbered_names(tree.taxa()), &truth, sites, seed).unwrap();
    Patterns::new(&alignment, truth.alphabet()).unwrap()
}

fn part(patterns: &Patterns, model: &str) -> PartOptions {
    PartOptions {
        patterns: patterns.clone(),
        model: Model::new(name(model), patterns),
        scale: 1.0,
    }
}

fn likelihood(tree: &Tree, parts: Vec<PartOptions>) -> Likelihood<Serial> {
    Likelihood::partitioned(tree.clone(), parts, Serial, Options::default()).unwrap()
}

fn set_one(likelihood: &mut Likelihood<Serial>, parameter: Parameter, value: f64) {
    let mut model = likelihood.parts()[0].model().clone();
    model.set(parameter, value);
    likelihood.set_model(0, model);
}

/// The slow way: one parameter by itself, along its logarithm. The window moves when the maximum is
/// at one of its ends.
fn fit_one(likelihood: &mut Likelihood<Serial>, parameter: Parameter, tolerance: f64) {
    let model = likelihood.parts()[0].model().clone();
    let [least, most] = model.range(parameter);
    let mut at = model.value(parameter).clamp(least, most);
    let mut best = (likelihood.evaluate_once().unwrap(), at);
    for _ in 0..8 {
        let window = [(at / 2.0).max(least), (at * 2.0).min(most)].map(libm::log);
        let found = maximise(window, libm::log(at), tolerance, |x| {
            set_one(likelihood, parameter, libm::exp(x));
            likelihood.evaluate_once()
        });
        let (found, lnl) = found.unwrap();
        at = libm::exp(found);
        if lnl > best.0 {
            best = (lnl, at);
        }
        let inside = |end: f64, bound: f64| (found - end).abs() > 0.05 || end == bound;
        if inside(window[0], libm::log(least)) && inside(window[1], libm::log(most)) {
            break;
        }
    }
    set_one(likelihood, parameter, best.1);
}

/// Branches that are long at some sites and short at the others make the sites' rates more alike
/// than equal rates would: the best gamma distribution is a narrow one.
#[test]
fn the_shape_of_equal_rates_reaches_its_bound() {
    let tree = random_tree(10, 0.1, &mut Random::new(4));
    let names = numbered_names(10);
    let model = Model::without_alignment(name("JC"));
    let mut rows = vec![Vec::new(); 10];
    for half in 0..2 {
        let mut own = tree.clone();
        for (number, edge) in tree.edges().enumerate() {
            own.set_length(edge, if number % 2 == half { 0.4 } else { 0.02 });
        }
        let more = simulate(&own, &names, &model, 1_500, 7 + half as u64).unwrap();
        let each = rows.iter_mut().enumerate();
        each.for_each(|(taxon, row)| row.extend_from_slice(more.row(taxon)));
    }
    let alignment = crate::msa::Alignment::new(names, rows).unwrap();
    let patterns = Patterns::new(&alignment, crate::msa::Alphabet::Dna).unwrap();
    let [equal, narrow, gamma] = ["JC", "JC+G4{1000}", "JC+G4"].map(|model| {
        let mut own = likelihood(&tree, vec![part(&patterns, model)]);
        own.optimise(1e-3).unwrap()
    });
    // The narrowest one still costs a little here; a shape of 100 costs ten times as much.
    assert!(gamma > narrow - 0.01, "{gamma} {narrow}");
    assert!(gamma > equal - 0.5, "{gamma} {equal}");
}

#[test]
fn all_at_once_is_not_below_one_after_the_other() {
    let tree = random_tree(14, 0.15, &mut Random::new(3));
    let dna = evolved(&tree, TRUTH, 800, 5);
    let protein = evolved(&tree, "LG+G4m{0.5}", 150, 5);
    for (patterns, model) in [
        (&dna, "GTR+FO+G"),
        (&dna, "HKY+FO+I+G"),
        (&dna, "GTR+R3"),
        (&protein, "LG+FO+G"),
    ] {
        let mut own = likelihood(&tree, vec![part(patterns, model)]);
        let all = own.optimise(1e-3).unwrap();
        assert!((all - own.evaluate().unwrap()).abs() < 1e-8 * all.abs());
        // One after the other, to where nothing moves, from where the first ended.
        let mut best = all;
        for _ in 0..3 {
            for parameter in own.parts()[0].model().fitted() {
                fit_one(&mut own, parameter, 1e-3);
            }
            best = own.optimise_lengths(1e-4, 20).unwrap();
        }
        assert!(best - all < 0.05, "{model}: {best} is left above {all}");
        // And one after the other from the start comes no higher.
        let mut other = likelihood(&tree, vec![part(patterns, model)]);
        let mut last = f64::NEG_INFINITY;
        for _ in 0..6 {
            for parameter in other.parts()[0].model().fitted() {
                fit_one(&mut other, parameter, 1e-2);
            }
            last = other.optimise_lengths(1e-2, 4).unwrap();
        }
        assert!(all > last - 0.05, "{model}: {all}, one by one {last}");
    }
}

#[test]
fn free_rates_are_not_below_a_gamma_distribution() {
    let tree = random_tree(20, 0.15, &mut Random::new(8));
    let patterns = evolved(&tree, TRUTH, 1_500, 2);
    let fit = |model: &str| {
        let mut own = likelihood(&tree, vec![part(&patterns, model)]);
        let lnl = own.optimise(1e-2).unwrap();
        (lnl, own.parts()[0].model().process())
    };
    let (gamma, _) = fit("GTR+G4m");
    let (free, process) = fit("GTR+R4");
    assert!(free > gamma - 1e-2, "{free} {gamma}");
    let mean: f64 = process
        .rates
        .iter()
        .zip(&process.weights)
        .map(|(r, w)| r * w)
        .sum();
    assert!((mean - 1.0).abs() < 1e-9, "{process:?}");
}

#[test]
fn scales_are_found_and_have_mean_one() {
    let tree = random_tree(16, 0.1, &mut Random::new(4));
    let mut slow = tree.clone();
    tree.edges()
        .for_each(|edge| slow.set_length(edge, 0.3 * tree.length(edge)));
    let genes = [
        evolved(&tree, TRUTH, 1_200, 1),
        evolved(&slow, TRUTH, 2_400, 2),
    ];
    let parts = || {
        genes
            .iter()
            .map(|gene| part(gene, "GTR+G4m"))
            .collect::<Vec<_>>()
    };
    let mut linked = likelihood(&tree, parts());
    let mut scaled = likelihood(&tree, parts());
    scaled.set_lengths(Lengths::Scaled);
    // With all scales 1 the two are one.
    assert_eq!(linked.evaluate().unwrap(), scaled.evaluate().unwrap());
    let (below, above) = (
        linked.optimise(1e-2).unwrap(),
        scaled.optimise(1e-2).unwrap(),
    );
    assert!(above > below + 20.0, "{below} {above}");
    assert!(linked.parts().iter().all(|part| part.scale() == 1.0));
    let [fast, slow] = [0, 1].map(|part| scaled.parts()[part].scale());
    assert!((slow / fast / 0.3 - 1.0).abs() < 0.15, "{slow} / {fast}");
    assert!(((1_200.0 * fast + 2_400.0 * slow) / 3_600.0 - 1.0).abs() < 1e-9);
    // A partition's values are those it would have alone on a tree of its own lengths.
    let mut alone = 0.0;
    for (number, gene) in genes.iter().enumerate() {
        let own = &scaled.parts()[number];
        let mut tree = scaled.tree().clone();
        let edges = scaled.tree().edges();
        edges.for_each(|edge| tree.set_length(edge, own.scale() * tree.length(edge)));
        let part = PartOptions {
            patterns: gene.clone(),
            model: own.model().clone(),
            scale: 1.0,
        };
        alone += likelihood(&tree, vec![part]).evaluate().unwrap();
    }
    assert!(
        (alone - above).abs() < 1e-5 * above.abs(),
        "{alone} {above}"
    );
}

#[test]
fn a_second_fit_has_nothing_to_do() {
    let tree = random_tree(16, 0.1, &mut Random::new(6));
    let patterns = evolved(&tree, TRUTH, 900, 3);
    let mut own = likelihood(&tree, vec![part(&patterns, "GTR+FO+G")]);
    let first = own.optimise(0.1).unwrap();
    let second = own.optimise(0.1).unwrap();
    assert!(
        second >= first - 1e-9 && second - first < 0.1,
        "{first} {second}"
    );
}

#[test]
fn a_rate_that_overshot_comes_back() {
    // Rates far above the one that all are relative to: from a small value the fourth has to rise
    // a hundredfold, where its logarithm changes hardly anything at first.
    let tree = random_tree(12, 0.15, &mut Random::new(5));
    let truth = "GTR{4/24/2.4/1.2/25/1}+FU{0.32/0.3/0.11/0.27}+G4m{0.45}";
    let patterns = evolved(&tree, truth, 900, 4);
    let mut own = likelihood(&tree, vec![part(&patterns, "GTR+F+G4")]);
    let top = own.optimise(0.1).unwrap();
    set_one(&mut own, Parameter::Exchange(3), 0.01);
    assert!(own.evaluate().unwrap() < top - 1.0);
    let again = own.optimise(0.1).unwrap();
    assert!((again - top).abs() < 0.1, "{top}, and again {again}");
}

#[test]
fn lengths_that_begin_too_long_do_not_end_on_a_lower_top() {
    let truth = "GTR{0.9/4.5/0.4/1.1/6.2/1}+FU{0.31/0.18/0.22/0.29}+G4m{0.6}";
    let tree = random_tree(200, 0.05, &mut Random::new(6 ^ 0x7472_6565));
    let patterns = evolved(&tree, truth, 300, 6);
    let fit_from = |lengths: Option<f64>| {
        let mut tree = tree.clone();
        lengths.inspect(|&length| tree.set_all_lengths(length));
        likelihood(&tree, vec![part(&patterns, "GTR+F+G4")])
    };
    let right = fit_from(None).optimise(0.1).unwrap();
    let trapped = fit_from(Some(1.0))
        .optimise_by_turns(0.1, First::Lengths)
        .unwrap();
    assert!(trapped < right - 100.0, "no trap: {trapped}, {right}");
    let found = fit_from(Some(1.0)).optimise(0.1).unwrap();
    assert!((found - right).abs() < 0.5, "{found}, {right}");
    // And where a tree is right, nothing is reconsidered.
    assert!(!fit_from(None).reconsider_lengths().unwrap());
}

/// Models of each family, with the kind of data that each is for.
const FAMILIES: [(&str, &str); 10] = [
    ("GTR+FO+G", TRUTH),
    ("HKY+FO+I+G", TRUTH),
    ("GTR+R3", TRUTH),
    ("JC", TRUTH),
    ("LG+F+G", "LG+G4m{0.5}"),
    ("LG4X+R4", "LG+G4m{0.5}"),
    ("BIN+FO+G", "BIN+FU{0.3/0.7}+G4m{0.5}"),
    ("MULTI4_GTR+G", "MULTI4_MK"),
    ("GT10+FO", "GT10JC"),
    ("GY", "GY{0.3/2}"),
];

/// Any lengths, many far from right, and any parameters.
fn anywhere(
    tree: &Tree,
    patterns: &Patterns,
    model: &str,
    random: &mut Random,
) -> Likelihood<Serial> {
    let mut start = tree.clone();
    for edge in start.edges() {
        start.set_length(edge, libm::pow(10.0, 7.0 * random.unit() - 5.5));
    }
    let mut own = likelihood(&start, vec![part(patterns, model)]);
    let mut values = own.parts()[0].model().clone();
    for parameter in values.fitted() {
        let [least, most] = values.range(parameter).map(libm::log);
        values.set(parameter, libm::exp(least + (most - least) * random.unit()));
    }
    own.set_model(0, values);
    own
}

#[test]
fn no_fit_ends_below_its_start() {
    for (case, (model, truth)) in (0..).zip(FAMILIES) {
        let mut random = Random::new(case);
        let tree = random_tree(4 + random.index(3), 0.1, &mut random);
        let patterns = evolved(&tree, truth, 45, case);
        let mut own = anywhere(&tree, &patterns, model, &mut random);
        let mut last = own.evaluate().unwrap();
        let mut above = |what: &str, lnl: f64| {
            assert!(
                lnl >= last - 1e-9,
                "case {case}, {model}, {what}: {lnl} after {last}"
            );
            last = lnl;
        };
        above("lengths", own.optimise_lengths(1e-2, 2).unwrap());
        above("parameters", own.optimise_models(1e-2).unwrap());
        above("onward", own.optimise_onward(1e-2).unwrap());
        above("all", own.optimise(1e-3).unwrap());
        assert!((last - own.evaluate().unwrap()).abs() < 1e-8 * last.abs());
        // And no fit from the true lengths comes much higher: of data as small as these, some have
        // several tops close to one another.
        let mut right = likelihood(&tree, vec![part(&patterns, model)]);
        let right = right.optimise(1e-3).unwrap();
        assert!(
            last > right - 0.1,
            "case {case}, {model}: {last}, from right lengths {right}"
        );
    }
}
