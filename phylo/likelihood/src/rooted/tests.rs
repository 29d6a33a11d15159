//! Likelihoods of rooted trees against those of other methods.

use super::chunk::tests::{FOUR, RATES, made, simulated};
use super::rates::{pairs, product};
use super::*;
use crate::likelihood::{Likelihood, Options};
use crate::model::{Model, ModelError, ModelName};
use crate::msa::Alphabet;
use crate::random::Random;
use crate::runner::Serial;
use crate::tree::Tree;
use proptest::prelude::*;

#[test]
fn a_reversible_matrix_gives_the_same_at_any_root() {
    let alignment = simulated(FOUR, &format!("UNREST{{{RATES}}}"), 150, 3);
    // GTR's rate from one state to another is the exchange rate times the other's frequency.
    let (exchange, shares) = ([1.0, 4.0, 0.5, 2.0, 5.0, 1.0], [0.1, 0.2, 0.3, 0.4]);
    let places = [[0, 0, 1, 2], [0, 0, 3, 4], [1, 3, 0, 5], [2, 4, 5, 0]];
    let rate = |from: usize, to: usize| exchange[places[from][to]] * shares[to];
    let off = (0..4).flat_map(|from| (0..4).map(move |to| (from, to)));
    let rates: Vec<String> = off
        .filter(|(from, to)| from != to)
        .map(|(from, to)| rate(from, to).to_string())
        .collect();
    let roots = [
        FOUR,
        "(a:0.03,(b:0.3,(c:0.15,d:0.05):0.6):0.07);",
        "(((a:0.1,b:0.3):0.6,c:0.15):0.01,d:0.04);",
    ];
    for across in ["", "+G4m{0.5}", "+IU{0.2}", "+IU{0.1}+R2{0.5/1.5}{0.5/0.5}"] {
        let gtr = format!("GTR{{1/4/0.5/2/5/1}}+FU{{0.1/0.2/0.3/0.4}}{across}");
        let gtr = ModelName::parse(&gtr, &mut |_| Err(std::io::ErrorKind::NotFound.into()));
        let gtr = gtr.unwrap();
        let patterns = Patterns::new(&alignment, Alphabet::Dna).unwrap();
        let tree = Newick::parse(FOUR).unwrap();
        let tree = Tree::from_newick(&tree, alignment.names()).unwrap();
        let model = Model::new(gtr, &patterns);
        let options = Options::default();
        let mut usual = Likelihood::new(tree, patterns, model, Serial, options).unwrap();
        let expected = usual.evaluate().unwrap();
        let sites = usual.site_log_likelihoods().unwrap();
        for root in roots {
            let model = format!("UNREST{{{}}}{across}", rates.join("/"));
            let mut own = made(&alignment, root, &model);
            let found = own.evaluate().unwrap();
            assert!(
                (found - expected).abs() < 1e-9,
                "{across} {root}: {found} {expected}"
            );
            for (a, b) in own.site_log_likelihoods().unwrap().iter().zip(&sites) {
                assert!((a - b).abs() < 1e-10, "{a} {b}");
            }
        }
    }
}

#[test]
fn the_right_root_is_the_best_one() {
    // Far from reversible: states follow one another in a circle.
    let model = "UNREST{9/1/1/1/9/1/1/1/9/9/1/1}";
    let truth = "((a:0.3,b:0.3):0.3,(c:0.3,d:0.3):0.3);";
    let alignment = simulated(truth, model, 4_000, 11);
    let roots = [
        "(a:0.1,(b:0.3,(c:0.3,d:0.3):0.6):0.2);",
        "(b:0.1,(a:0.3,(c:0.3,d:0.3):0.6):0.2);",
        "(c:0.1,(d:0.3,(a:0.3,b:0.3):0.6):0.2);",
        "(d:0.1,(c:0.3,(a:0.3,b:0.3):0.6):0.2);",
    ];
    let fitted = |root: &str| {
        let mut own = made(&alignment, root, model);
        (
            own.optimise_lengths(0.01, 50).unwrap(),
            own.tree.total_length(),
        )
    };
    let (best, length) = fitted(truth);
    assert!((length - 1.8).abs() < 0.15, "{length}");
    for root in roots {
        let (other, _) = fitted(root);
        assert!(best > other + 1.0, "{root}: {best} {other}");
    }
}

#[test]
fn fitted_rates_are_far_better_than_reversible_ones() {
    let model = "UNREST{9/1/1/1/9/1/1/1/9/9/1/1}";
    let alignment = simulated(FOUR, model, 2_000, 2);
    let given = made(&alignment, FOUR, model).evaluate().unwrap();
    let mut own = made(&alignment, FOUR, "UNREST");
    let start = own.evaluate().unwrap();
    let found = own.optimise(0.05).unwrap();
    assert!(found > start + 50.0, "{found} {start}");
    assert!(found < given + 30.0, "{found} {given}");
    let again = own.evaluate().unwrap();
    assert!((again - found).abs() < 1e-9, "{again} {found}");
}

fn matrix(n: usize, seed: u64) -> RateMatrix {
    let mut random = Random::new(seed);
    let rates: Vec<f64> = (0..n * n).map(|_| 0.01 + 5.0 * random.unit()).collect();
    RateMatrix::new(n, &rates).unwrap()
}

fn probabilities(matrix: &RateMatrix, time: f64) -> Vec<f64> {
    let mut out = vec![0.0; matrix.rates().len()];
    matrix.transitions(time, &mut out);
    out
}

proptest! {
    #[test]
    fn probabilities_are_a_semigroup_that_keeps_the_equilibrium(
        seed in any::<u64>(), large in any::<bool>(), a in 1e-6..20.0_f64, b in 1e-6..20.0_f64
    ) {
        let n = if large { 20 } else { 4 };
        let own = matrix(n, seed);
        let [one, other, both] = [a, b, a + b].map(|time| probabilities(&own, time));
        for row in one.chunks_exact(n) {
            prop_assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            prop_assert!(row.iter().all(|entry| *entry >= 0.0));
        }
        for (made, found) in product(n, &one, &other).iter().zip(&both) {
            prop_assert!((made - found).abs() < 1e-12, "{made} {found}");
        }
        for state in 0..n {
            let flow: f64 = (0..n).map(|i| own.equilibrium()[i] * own.rates()[i * n + state]).sum();
            prop_assert!(flow.abs() < 1e-13);
            let kept: f64 = (0..n).map(|i| own.equilibrium()[i] * one[i * n + state]).sum();
            prop_assert!((kept - own.equilibrium()[state]).abs() < 1e-12);
        }
    }
}

#[test]
fn short_times_keep_their_digits() {
    let own = matrix(4, 3);
    let found = probabilities(&own, 1e-9);
    for (from, to) in pairs(4) {
        let expected = 1e-9 * own.rates()[from * 4 + to];
        assert!((found[from * 4 + to] / expected - 1.0).abs() < 1e-6);
    }
}

proptest! {
    #[test]
    fn any_name_is_parsed_or_refused(text in "(UNREST|nonrev)[{}0-9/.+GIRFx -]{0,40}") {
        let found = RootedModelName::parse(&text, &mut |_| Ok("1 x".to_owned()));
        if let Err(error) = found {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }
}

fn parse(text: &str) -> Result<Option<RootedModelName>, ModelError> {
    RootedModelName::parse(text, &mut |path| match path {
        "four" => Ok("-3 1 1 1\n2 -4 1 1\n1 1 -3 1\n1 5 1 -7\n\n0.1 0.2 0.3 0.4\nProse".into()),
        "twenty" => Ok("1 ".repeat(400)),
        "absorbing" => Ok("0 1 1 1 0 0 0 0 1 1 0 1 1 1 1 0".into()),
        _ => Err(std::io::ErrorKind::NotFound.into()),
    })
}

#[test]
fn names_are_read_and_printed() {
    let alignment = crate::msa::Alignment::parse(b">a\nACGT\n>b\nACGA\n>c\nACTT\n").unwrap();
    let patterns = Patterns::new(&alignment, Alphabet::Dna).unwrap();
    for text in [
        "UNREST{1/2/3/4/5/6/7/8/9/10/11/12}+IU{0.1}+G4m{0.5}",
        "unrest+G4",
        "NONREV{four}+R2{0.5/1.5}{0.5/0.5}",
    ] {
        let model = RootedModel::new(parse(text).unwrap().unwrap(), &patterns);
        let again = parse(&model.to_string()).unwrap().unwrap();
        let again = RootedModel::new(again, &patterns);
        assert_eq!(again.to_string(), model.to_string(), "{text}");
    }
    let twenty = parse("NONREV{twenty}+G4").unwrap().unwrap();
    assert_eq!(twenty.alphabet(), Alphabet::Protein);
    assert!(parse("GTR+G").unwrap().is_none() && parse("UNRESTED").unwrap().is_none());
    for (text, said) in [
        ("UNREST{1/2}", "12 values"),
        ("UNREST{twenty}", "12 values"),
        ("NONREV", "16 values"),
        ("NONREV{none}", "cannot read `none`"),
        ("NONREV{absorbing}", "no equilibrium"),
        ("UNREST{1/2/3/4/5/6/7/8/9/10/11/-1}", "rate"),
        ("UNREST+FO", "its own equilibrium"),
        ("UNREST+ASC_LEWIS", "its own equilibrium"),
        ("UNREST+X", "`UNREST+X`"),
        ("UNREST{1", "braces"),
    ] {
        let error = parse(text).unwrap_err().to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
}

/// The numbers of each published matrix: no negative one, the equilibrium that they keep, and of
/// Pfam's the published frequencies.
#[test]
fn published_matrices_keep_their_equilibrium() {
    for label in crate::model::NONREVERSIBLE {
        let rates = crate::model::nonreversible(label);
        assert_eq!(rates.len(), 400, "{label}");
        let matrix = super::rates::RateMatrix::new(20, &rates).unwrap();
        let shares = matrix.equilibrium();
        // Published with a mean rate of 1, but for rounding.
        let mean: f64 = pairs(20).map(|(i, j)| shares[i] * rates[20 * i + j]).sum();
        assert!((mean - 1.0).abs() < 1e-5, "{label}: {mean}");
        for to in 0..20 {
            let into = (0..20).map(|from| shares[from] * matrix.rates()[20 * from + to]);
            assert!(into.sum::<f64>().abs() < 1e-12, "{label}");
            assert_eq!(rates[20 * to + to], 0.0, "{label}");
        }
        let name = parse(&format!("{label}+G4m{{0.5}}")).unwrap().unwrap();
        assert_eq!(name.alphabet(), Alphabet::Protein);
        if label == "NQ.pfam" {
            assert!((shares[0] - 0.085828).abs() < 2e-6, "{shares:?}");
            assert!((shares[19] - 0.06428).abs() < 2e-6, "{shares:?}");
        }
    }
    let odd = parse("nq.PFAM{1/2}").unwrap_err().to_string();
    assert!(odd.contains("braces"), "{odd}");
}

#[test]
fn shares_of_populations_are_of_all_counts_and_categories() {
    let parse = |cells: &str| {
        let text = format!("COUNTSFILE NPOP 3 NSITES 1\nCHROM POS a b c\n1 1 {cells}\n");
        Counts::parse(&text).unwrap()
    };
    // Cells of three bases are not read, and a base that is nowhere keeps a little.
    for (cells, expected) in [
        ("3,0,1,0 0,6,0,0 1,1,1,0", [0.3, 0.6, 0.1, 0.0]),
        ("0,0,0,0 0,0,0,0 1,1,1,0", [0.25; 4]),
    ] {
        let shares = parse(cells).shares();
        for (share, expected) in shares.iter().zip(expected) {
            assert!((share - expected).abs() < 2e-6, "{shares:?}");
            assert!(*share > 0.0);
        }
    }
    let counts = parse("3,0,1,0 0,6,0,0 2,2,0,0");
    let newick = Newick::parse("(a:0.3,b:0.5,c:0.2);").unwrap();
    let patterns = Patterns::new(counts.majority(), Alphabet::Dna).unwrap();
    let name = RootedModelName::parse("HKY{1/3}+F+G4m{0.5}+P{0.02}+N4", &mut |_| {
        Err(std::io::ErrorKind::NotFound.into())
    });
    let model = RootedModel::new(name.unwrap().unwrap(), &patterns);
    let tree = RootedTree::from_any(&newick, counts.majority().names()).unwrap();
    let own = RootedLikelihood::of_counts(tree, &counts, model, Serial).unwrap();
    // One distribution, though each category has its own.
    let shares = own.root_frequencies();
    assert_eq!((shares.len(), own.matrices.len()), (22, 4));
    assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    // Populations of one base are the fewer, the faster their sites.
    let alone = |shares: &[f64]| shares[..4].iter().sum::<f64>();
    let ends = [0, 3].map(|at| alone(own.matrices[at].equilibrium()));
    assert!(
        ends[1] < alone(&shares) && alone(&shares) < ends[0],
        "{ends:?}"
    );
}
