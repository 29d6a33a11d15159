//! Log-likelihoods of every named model on a fixed tree with fixed parameters, against figures of
//! RAxML-NG 1.2.2 and IQ-TREE 2.0.7, which stand in `models/figures.rs` with the commands that made
//! them: so that they hold where neither is installed. `peers.rs` runs them anew.
#![allow(clippy::unwrap_used)] // Functions that tests call.

#[path = "models/figures.rs"]
mod figures;

use figures::{BRLEN, FIGURES, FITTED, Figure, ROOTED, ROOTED_TREE};
use sidecore_likelihood::likelihood::{Lengths, Likelihood, Options, PartOptions};
use sidecore_likelihood::model::{ModelName, names};
use sidecore_likelihood::msa::{Alignment, Alphabet, Patterns};
use sidecore_likelihood::newick::Newick;
use sidecore_likelihood::rooted::{RootedLikelihood, RootedModel, RootedModelName, RootedTree};
use sidecore_likelihood::runner::Serial;
use sidecore_likelihood::tree::Tree;

fn data(file: &str) -> &'static str {
    let found = figures::files().find(|(name, _)| *name == file);
    found.unwrap().1
}

fn name(text: &str) -> ModelName {
    ModelName::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into())).unwrap()
}

fn likelihood(alignment: &str, model: &str) -> Likelihood<Serial> {
    let bytes = data(&format!("{alignment}.phy")).as_bytes();
    let alignment = Alignment::parse(bytes).unwrap();
    let newick = data("tree.nwk");
    let tree = Tree::from_newick(&Newick::parse(newick).unwrap(), alignment.names()).unwrap();
    let name = name(model);
    let patterns = Patterns::new(&alignment, name.alphabet()).unwrap();
    let part = PartOptions::new(name, patterns);
    Likelihood::partitioned(tree, vec![part], Serial, Options::default()).unwrap()
}

#[test]
fn every_figure_of_the_peers_is_met() {
    let mut wrong = Vec::new();
    for &Figure { data, model, lnl } in FIGURES {
        let found = likelihood(data, model).evaluate().unwrap();
        if ((found - lnl) / lnl).abs() > 1e-6 {
            wrong.push(format!("{data} {model}: {found}, the peer's is {lnl}"));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        FIGURES.len(),
        wrong.join("\n")
    );
}

#[test]
fn published_nonreversible_matrices_meet_the_peers() {
    for &Figure { data, model, lnl } in ROOTED {
        let bytes = self::data(&format!("{data}.phy")).as_bytes();
        let alignment = Alignment::parse(bytes).unwrap();
        let name = RootedModelName::parse(model, &mut |_| Err(std::io::ErrorKind::NotFound.into()));
        let name = name.unwrap().unwrap();
        let patterns = Patterns::new(&alignment, name.alphabet()).unwrap();
        let newick = Newick::parse(ROOTED_TREE).unwrap();
        let tree = RootedTree::from_newick(&newick, alignment.names()).unwrap();
        let made = RootedModel::new(name, &patterns);
        assert_eq!(made.to_string(), model);
        let mut likelihood = RootedLikelihood::new(tree, &patterns, made, Serial).unwrap();
        let found = likelihood.evaluate().unwrap();
        let off = ((found - lnl) / lnl).abs();
        assert!(off < 1e-6, "{model}: {found}, the peer's is {lnl}");
    }
}

/// Fitted, ours may be better, and no more than 0.05 below.
#[test]
fn fits_reach_the_peers() {
    for &Figure { data, model, lnl } in FITTED {
        let found = likelihood(data, model).optimise(0.01).unwrap();
        assert!(
            found > lnl - 0.05,
            "{data} {model}: {found}, the peer's is {lnl}"
        );
    }
}

/// Three partitions, however they share branch lengths.
fn parted(lengths: Lengths) -> Likelihood<Serial> {
    let bytes = data("dna.phy").as_bytes();
    let alignment = Alignment::parse(bytes).unwrap();
    let newick = data("tree.nwk");
    let tree = Tree::from_newick(&Newick::parse(newick).unwrap(), alignment.names()).unwrap();
    let lines = data("parts.txt").lines().zip((0..).step_by(100));
    let parts = lines.map(|(line, first)| {
        // `MODEL, NAME = 1-100`: a hundred sites each.
        let name = name(line.split(',').next().unwrap());
        let sites = (first..first + 100).collect();
        let patterns = Patterns::of_sites(&alignment, name.alphabet(), sites).unwrap();
        PartOptions::new(name, patterns)
    });
    let mut made =
        Likelihood::partitioned(tree, parts.collect(), Serial, Options::default()).unwrap();
    made.set_lengths(lengths);
    made
}

#[test]
fn lengths_are_shared_as_the_peer_shares_them() {
    let kinds = [Lengths::Linked, Lengths::Scaled, Lengths::Unlinked];
    let found = kinds.map(|lengths| parted(lengths).optimise(0.01).unwrap());
    for (found, peer) in found.iter().zip(BRLEN) {
        assert!(
            (found - peer).abs() < 0.1 || *found > peer,
            "{found}, the peer's is {peer}"
        );
    }
    // Each has more to fit than the one before.
    assert!(found.is_sorted_by(|a, b| a < b), "{found:?}");
}

/// Unlinked parameters are as if each partition had been alone, and are restored with a tree.
#[test]
fn unlinked_lengths_are_each_partitions_best() {
    let mut all = parted(Lengths::Unlinked);
    let together = all.optimise_lengths(1e-6, 100).unwrap();
    let kept = all.tree().clone();
    let alone = (0..3).map(|number| {
        let part = &all.parts()[number];
        let part = PartOptions {
            patterns: part.patterns().clone(),
            model: part.model().clone(),
            scale: 1.0,
        };
        let tree = kept.of_part(number, 1.0);
        let mut own =
            Likelihood::partitioned(tree, vec![part], Serial, Options::default()).unwrap();
        let before = own.evaluate().unwrap();
        let after = own.optimise_lengths(1e-6, 100).unwrap();
        assert!(after - before < 1e-3, "{before} {after}");
        before
    });
    let alone: f64 = alone.sum();
    assert!((alone - together).abs() < 1e-6, "{alone} {together}");
    let edge = all.tree().edges().next().unwrap();
    all.set_length(edge, 0.7);
    let moved = all.evaluate().unwrap();
    assert!(moved < together - 0.01, "{moved} {together}");
    all.set_tree(kept);
    assert!((all.evaluate().unwrap() - together).abs() < 1e-9);
}

/// A figure for each name but those that stand for the same numbers as another.
#[test]
fn every_matrix_has_a_figure() {
    // A mixture's own text has no head.
    let single = FIGURES
        .iter()
        .filter(|figure| !figure.model.starts_with("MIX"));
    let heads = single.map(|figure| {
        let head = figure.model.split(['+', '{']).next();
        name(head.unwrap()).exchange.label().to_owned()
    });
    let heads: Vec<String> = heads.collect();
    // The phased ones are not evaluated by RAxML-NG 1.2.2, which takes them for ten states.
    let spared = |known: &str| known.starts_with("GT16") || known.starts_with("MULTIx");
    for (known, ..) in names().filter(|(_, alphabet, _)| *alphabet != Alphabet::Dna) {
        if spared(known) || known == "PROTGTR" {
            continue;
        }
        assert!(heads.iter().any(|head| head == known), "{known}");
    }
}

/// The derivatives that lengths are fitted by, with unseen patterns among the sites: against
/// differences of the log-likelihood.
#[test]
fn slopes_with_ascertainment_are_the_log_likelihoods() {
    for (data, model) in [
        ("snp", "GTR{1/2/1/1/3/1}+FC+G4m{0.5}+ASC_LEWIS"),
        ("snp", "GTR{1/2/1/1/3/1}+FC+G4m{0.5}+ASC_FELS{500}"),
        ("snp", "HKY{1/3}+FC+ASC_STAM{100/200/0/90}"),
        ("multi5var", "MULTI5_MK+G4m{0.5}+ASC_LEWIS"),
        ("multi5", "MULTI9_MK+G4m{0.5}"),
        (
            "protein",
            "LG4X+IU{0.1}+R4{0.2/0.6/1.1/2.4}{0.3/0.3/0.2/0.2}",
        ),
    ] {
        let mut likelihood = likelihood(data, model);
        let edges: Vec<_> = likelihood.tree().edges().collect();
        for edge in [edges[0], edges[7]] {
            let length = likelihood.tree().length(edge);
            let h = 1e-5 * length;
            let mut at = |length: f64| {
                let by_table = likelihood.evaluate_length(edge, length).unwrap();
                likelihood.set_length(edge, length);
                let lnl = likelihood.evaluate_at(edge).unwrap();
                assert!(
                    (by_table - lnl).abs() < 1e-8 * lnl.abs(),
                    "{model} {by_table} {lnl}"
                );
                lnl
            };
            let (above, below) = (at(length + h), at(length - h));
            let middle = at(length);
            let slope = likelihood.derivatives(edge, length).unwrap();
            let first = (above - below) / (2.0 * h);
            let near = |a: f64, b: f64, by: f64| (a - b).abs() <= by * a.abs().max(b.abs()) + by;
            assert!(
                near(slope.first, first, 1e-4),
                "{model} {} {first}",
                slope.first
            );
            let second = (above + below - 2.0 * middle) / (h * h);
            assert!(
                near(slope.second, second, 0.05),
                "{model} {} {second}",
                slope.second
            );
        }
    }
}

/// Sites' log-likelihoods sum to the tree's, corrections included.
#[test]
fn sites_sum_to_the_whole() {
    for (data, model) in [("snp", "JC+ASC_LEWIS"), ("binvar", "BIN+FC+ASC_FELS{500}")] {
        let mut likelihood = likelihood(data, model);
        let lnl = likelihood.evaluate().unwrap();
        let sites: f64 = likelihood.site_log_likelihoods().unwrap().iter().sum();
        assert!(
            (sites - lnl).abs() < 1e-9 * lnl.abs(),
            "{model}: {sites} {lnl}"
        );
    }
}

/// Sixteen phased genotypes with all rates alike are ten unphased ones whose pairs of bases weigh
/// double, where no heterozygous character stands; and all codes are read.
#[test]
fn phased_genotypes_are_read() {
    let mut jc = likelihood("genotype", "GT16JC+G4m{0.5}");
    let mut fitted = likelihood("genotype", "GPGTR4+FE+G4m{0.5}");
    let [a, b] = [jc.evaluate().unwrap(), fitted.evaluate().unwrap()];
    // The second one's rates all begin at 1.
    assert!((a - b).abs() < 1e-9 * a.abs(), "{a} {b}");
    // A fit cannot be worse than its start.
    let better = fitted.optimise_models(0.1).unwrap();
    assert!(better > b + 1.0, "{better}");
}
