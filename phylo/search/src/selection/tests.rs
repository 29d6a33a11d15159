use super::partitions::{Merge, Part, Relaxed, Scheme, Step, select_partitions};
use super::*;
use crate::model::ModelName;
use crate::msa::{Alignment, Alphabet, GeneticCode};
use crate::parsimony::parsimony_tree;
use crate::random::Random;
use crate::runner::Serial;
use crate::simulate::simulate;
use crate::tree::random_tree;

fn evolved(model: &str, taxa: usize, sites: usize, seed: u64) -> Alignment {
    let names: Vec<String> = (0..taxa).map(|k| format!("t{k}")).collect();
    let tree = random_tree(taxa, 0.15, &mut Random::new(7));
    let read = &mut |_: &str| Err(std::io::Error::other("no file"));
    let model = Model::without_alignment(ModelName::parse(model, read).unwrap());
    simulate(&tree, &names, &model, sites, seed).unwrap()
}

fn patterns(alignment: &Alignment, alphabet: Alphabet) -> (Patterns, Tree) {
    let patterns = Patterns::new(alignment, alphabet).unwrap();
    let tree = parsimony_tree(&[&patterns], None, &mut Random::new(1));
    (patterns, tree)
}

fn chosen(patterns: &Patterns, tree: &Tree, options: &Options) -> Selection {
    select(tree, patterns, options, Serial, |_| {}).unwrap()
}

#[test]
fn what_is_not_fitted_could_not_have_won() {
    for (model, seed) in [
        ("HKY{1/4}+FU{0.35/0.15/0.2/0.3}+G4m{0.5}", 1),
        ("JC", 2),
        ("GTR{1/3/0.5/0.7/6/1}+FU{0.4/0.1/0.2/0.3}+IU{0.3}", 3),
    ] {
        let alignment = evolved(model, 8, 400, seed);
        let (patterns, tree) = patterns(&alignment, Alphabet::Dna);
        for criterion in [Criterion::Bic, Criterion::Aicc] {
            let options = Options {
                criterion,
                free_rates_max: 0,
                classes_max: 0,
            };
            let found = chosen(&patterns, &tree, &options);
            // All of them, each from its own start.
            let mut fitter = Fitter::new(tree.clone(), &patterns, Serial, false);
            let mut all: Vec<(f64, String)> = Vec::new();
            for candidate in candidates::all(Alphabet::Dna) {
                for rates in Rates::USUAL {
                    let fit = fitter.fit(&candidate.with(rates), None, 0.01).unwrap();
                    all.push((fit.score(criterion), fit.name));
                }
            }
            all.sort_by(|a, b| a.0.total_cmp(&b.0));
            let best = found.best().score(criterion);
            assert!(
                best <= all[0].0 + 0.3,
                "{}: {best}, {:?}",
                found.best().name,
                all[0]
            );
            assert!(found.fits.len() < all.len());
            assert_eq!(found.fits.len() + found.excluded, all.len());
        }
    }
}

#[test]
fn a_protein_matrix_is_found_again() {
    let alignment = evolved("WAG+G4m{0.7}", 10, 400, 5);
    let (patterns, tree) = patterns(&alignment, Alphabet::Protein);
    let options = Options {
        free_rates_max: 3,
        ..Options::default()
    };
    let found = chosen(&patterns, &tree, &options);
    assert!(
        found.best().name.starts_with("WAG+"),
        "{}",
        found.best().name
    );
    assert_eq!(found.best().parameters, 17 + 1);
    assert!(found.fits.windows(2).all(|two| two[0].bic <= two[1].bic));
}

#[test]
fn a_mixture_is_chosen_where_it_made_the_data() {
    let alignment = evolved("LG+C10+G4m{1}", 12, 300, 5);
    let (patterns, tree) = patterns(&alignment, Alphabet::Protein);
    let options = Options {
        free_rates_max: 0,
        classes_max: 10,
        ..Options::default()
    };
    let found = chosen(&patterns, &tree, &options);
    let names: Vec<&str> = found.fits.iter().map(|fit| fit.name.as_str()).collect();
    assert!(names[0].contains("+C10"), "{names:?}");
    assert!(
        names.iter().any(|name| name.starts_with("MIX{")),
        "{names:?}"
    );
    assert!(!names.iter().any(|name| name.contains("C20")), "{names:?}");
}

/// Names of the fitted models, the best first, without free rates.
fn ranking(patterns: &Patterns, tree: &Tree) -> Vec<String> {
    let options = Options {
        free_rates_max: 0,
        ..Options::default()
    };
    let fits = chosen(patterns, tree, &options).fits;
    fits.into_iter().map(|fit| fit.name).collect()
}

#[test]
fn binary_and_multistate_models_are_chosen() {
    for (model, alphabet, best) in [
        ("BIN+FU{0.85/0.15}", Alphabet::Binary, "BIN+F"),
        ("BIN+FE", Alphabet::Binary, "BIN+FE"),
        ("MULTI3_MK+G4m{0.3}", Alphabet::Multistate(3), "MULTI3_MK+"),
        (
            "MULTI3_GTR{1/9/1}+FE",
            Alphabet::Multistate(3),
            "MULTI3_GTR+F",
        ),
    ] {
        let alignment = evolved(model, 10, 600, 3);
        assert_eq!(likely_alphabet(&alignment), alphabet);
        let (patterns, tree) = patterns(&alignment, alphabet);
        let names = ranking(&patterns, &tree);
        assert!(names[0].starts_with(best), "{model}: {names:?}");
        let is_equal = names[0].contains("+FE");
        assert_eq!(is_equal, best.contains("+FE"), "{model}: {names:?}");
    }
    let letters = evolved("JC", 4, 20, 1);
    assert_eq!(likely_alphabet(&letters), Alphabet::Dna);
}

#[test]
fn characters_that_all_vary_are_corrected_for() {
    let alignment = evolved("MULTI3_MK", 8, 500, 4);
    let column =
        |site: usize| -> Vec<u8> { (0..8).map(|taxon| alignment.row(taxon)[site]).collect() };
    let varies = |site: &usize| {
        let cells = column(*site);
        cells.iter().any(|&cell| cell != cells[0])
    };
    let kept: Vec<usize> = (0..500).filter(varies).collect();
    assert!((100..500).contains(&kept.len()));
    let row = |taxon: usize| {
        kept.iter()
            .map(|&site| alignment.row(taxon)[site])
            .collect()
    };
    let rows = (0..8).map(row).collect();
    let alignment = Alignment::new(alignment.names().to_vec(), rows).unwrap();
    let (patterns, tree) = patterns(&alignment, Alphabet::Multistate(3));
    let names = ranking(&patterns, &tree);
    // Invariable sites contradict the correction.
    assert!(
        names
            .iter()
            .all(|name| name.ends_with("+ASC") && !name.contains("+I")),
        "{names:?}"
    );
    assert_eq!(names[0], "MULTI3_MK+ASC");
}

#[test]
fn codon_models_are_chosen() {
    let alignment = evolved("GY{0.2/6}", 5, 120, 9);
    let sites = alignment.sites();
    let code = GeneticCode::new(1).unwrap();
    let (patterns, tree) = patterns(&alignment, Alphabet::Codon(code));
    assert_eq!(patterns.sites() * 3, sites);
    let names = ranking(&patterns, &tree);
    // Transitions are frequent, and the sixty counted frequencies cost more than they gain.
    assert!(
        !names[0].starts_with("MG+") && names[0].contains("X4"),
        "{names:?}"
    );
    let candidates = candidates::of(&patterns);
    let heads: Vec<String> = candidates.iter().map(|one| one.text()).collect();
    let of = |head: &str| &candidates[heads.iter().position(|own| own == head).unwrap()];
    assert!(of("MG+F3X4").is_within(of("MGK+F3X4")));
    assert!(!of("MG+F1X4").is_within(of("MGK+F3X4")) && !of("MGK+F3X4").is_within(of("GY+F3X4")));
    let free = |head: &str| free_parameters(&Model::new(of(head).name(), &patterns));
    // Two ratios, of which MG has one; and 3 shares of bases at each of 3 positions, 3 at all, or
    // those of 61 codons but one.
    assert_eq!(
        ["GY+F3X4", "GY+F1X4", "GY+F", "MG+F3X4"].map(free),
        [2 + 9, 2 + 3, 2 + 60, 1 + 9]
    );
    // Another code is part of the name.
    let other = Alphabet::Codon(GeneticCode::new(11).unwrap());
    let other = Patterns::new(&alignment, other).unwrap();
    assert_eq!(candidates::of(&other)[0].text(), "GY+F3X4+CODE{11}");
}

/// As IQ-TREE does, published matrices are tried for the standard code, each with its own or other
/// frequencies.
#[test]
fn published_codon_matrices_are_chosen() {
    let alignment = evolved("KOSI07", 5, 200, 4);
    let code = |number| Alphabet::Codon(GeneticCode::new(number).unwrap());
    let (patterns, tree) = patterns(&alignment, code(1));
    let names = ranking(&patterns, &tree);
    assert_eq!(names[0], "KOSI07", "{names:?}");
    let candidates = candidates::of(&patterns);
    let heads: Vec<String> = candidates.iter().map(|one| one.text()).collect();
    for matrix in ["KOSI07", "SCHN05"] {
        let own = heads.iter().filter(|head| head.starts_with(matrix));
        let own: Vec<&str> = own.map(|head| &head[matrix.len()..]).collect();
        assert_eq!(own, ["+F3X4", "+F1X4", "+F", ""]);
    }
    // Its 61 frequencies belong to the matrix.
    let own = candidates.iter().find(|one| one.text() == "KOSI07");
    let own = Model::new(own.unwrap().name(), &patterns);
    assert_eq!(free_parameters(&own), 0);
    // All codons of the standard code are codons of this one, too.
    let other = Patterns::new(&alignment, code(4)).unwrap();
    let other = candidates::of(&other);
    assert!(other.iter().all(|one| !one.text().contains("KOSI07")));
}

#[test]
fn parameters_are_counted_as_usual() {
    let alignment = evolved("JC", 6, 100, 1);
    let (patterns, _) = patterns(&alignment, Alphabet::Dna);
    for (name, expected) in [
        ("JC", 0),
        ("K80+G4", 2),
        ("HKY+F+I+G4", 6),
        ("GTR+F+R4", 14),
        ("GTR+FO", 8),
        ("TPM3uf+F+R3", 9),
        ("GTR{1/2/1/1/2/1}+FU{0.25/0.25/0.25/0.25}+G4m{0.5}", 0),
    ] {
        let read = &mut |_: &str| Err(std::io::Error::other("no file"));
        let model = Model::new(ModelName::parse(name, read).unwrap(), &patterns);
        assert_eq!(free_parameters(&model), expected, "{name}");
    }
}

#[test]
fn criteria_are_as_published() {
    let score = |criterion: Criterion| criterion.score(-1000.0, 20, 500);
    assert!((score(Criterion::Aic) - 2040.0).abs() < 1e-12);
    assert!((score(Criterion::Bic) - (2000.0 + 20.0 * 500_f64.ln())).abs() < 1e-9);
    assert!((score(Criterion::Aicc) - (2040.0 + 840.0 / 479.0)).abs() < 1e-9);
    assert_eq!(Criterion::Aicc.score(-1000.0, 20, 21), f64::INFINITY);
}

/// AICc is infinite up to a site more than there are parameters: then the fewest are the best.
#[test]
fn too_few_sites_have_the_fewest_parameters() {
    let options = Options {
        criterion: Criterion::Aicc,
        free_rates_max: 0,
        classes_max: 0,
    };
    // Seven taxa have 2 * 7 - 3 branches: as many parameters as sites, without any of a model.
    let (patterns, tree) = patterns(&evolved("JC", 7, 11, 3), Alphabet::Dna);
    let found = chosen(&patterns, &tree, &options);
    assert_eq!(found.best().aicc, f64::INFINITY);
    assert_eq!(
        (found.best().name.as_str(), found.best().parameters),
        ("JC", 11)
    );
    // Five parts of three sites: 10 parameters and one for each part at least, up to three subsets
    // finite.
    let alignment = evolved("JC", 7, 15, 3);
    let part = |k: u32| Part {
        name: format!("p{k}"),
        alphabet: Alphabet::Dna,
        sites: (3 * k..3 * (k + 1)).collect(),
    };
    let parts: Vec<Part> = (0..5).map(part).collect();
    let merge = Merge::Greedy;
    let found = select_partitions(&tree, &alignment, &parts, merge, &options, Serial, |_| {});
    let found = found.unwrap();
    assert_eq!(
        (found.score_before, found.subsets.len()),
        (f64::INFINITY, 1)
    );
}

#[test]
fn special_cases_are_known() {
    let all = candidates::all(Alphabet::Dna);
    assert_eq!(all.len(), 22);
    let of = |name: &str| {
        let usual = all
            .iter()
            .flat_map(|one| Rates::USUAL.map(|rates| one.with(rates)));
        { usual }.find(|one| one.text() == name).unwrap()
    };
    let within = |a: &str, b: &str| of(a).is_within(&of(b));
    assert!(within("HKY+F+G4", "GTR+F+I+G4") && within("JC", "SYM+I") && within("K80", "TN93ef"));
    // Frequencies are counted, not fitted: equal ones are no special case.
    assert!(!within("JC", "GTR+F") && !within("GTR+F", "HKY+F") && !within("HKY+F+I", "HKY+F+G4"));
    assert!(!within("TPM2uf+F", "TPM3uf+F"));
    let rates = |a: Rates, b: Rates| of("JC").with(a).is_within(&of("JC").with(b));
    assert!(rates(Rates::Free(2), Rates::Free(3)) && rates(Rates::Gamma, Rates::Free(4)));
    assert!(!rates(Rates::Gamma, Rates::Free(3)) && !rates(Rates::Free(2), Rates::Both));
    // Every candidate stands behind what it is a special case of.
    for (at, one) in all.iter().enumerate() {
        assert!(
            all[at + 1..].iter().all(|later| !one.is_within(later)),
            "{one:?}"
        );
    }
}

/// Four parts of 300 columns, of which the first and the third evolved alike, and the others.
fn two_kinds() -> (Alignment, Vec<Part>) {
    let alike = "JC+G4m{0.5}";
    let other = "HKY{1/8}+FU{0.45/0.05/0.05/0.45}";
    let parts = [alike, other, alike, other];
    let rows: Vec<Alignment> = (0..)
        .zip(parts)
        .map(|(k, m)| evolved(m, 7, 300, k))
        .collect();
    let names = rows[0].names().to_vec();
    let row = |taxon: usize| {
        rows.iter()
            .flat_map(|part| part.row(taxon).to_vec())
            .collect()
    };
    let alignment = Alignment::new(names, (0..7).map(row).collect()).unwrap();
    let part = |k: u32| Part {
        name: format!("p{k}"),
        alphabet: Alphabet::Dna,
        sites: (300 * k..300 * (k + 1)).collect(),
    };
    (alignment, (0..4).map(part).collect())
}

/// The scheme, and the number of pairs of each round.
fn merged(alignment: &Alignment, parts: &[Part], merge: Merge) -> (Scheme, Vec<usize>) {
    let (_, tree) = patterns(alignment, Alphabet::Dna);
    let options = Options {
        free_rates_max: 0,
        ..Options::default()
    };
    let mut rounds = Vec::new();
    let progress = |step: Step<'_>| {
        if let Step::Pairs(1, all) = step {
            rounds.push(all);
        }
    };
    let found = select_partitions(&tree, alignment, parts, merge, &options, Serial, progress);
    (found.unwrap(), rounds)
}

#[test]
fn parts_that_evolved_alike_are_merged() {
    let (alignment, parts) = two_kinds();
    let (apart, rounds) = merged(&alignment, &parts, Merge::None);
    assert_eq!((apart.subsets.len(), rounds.len()), (4, 0));
    assert_eq!(apart.score, apart.score_before);
    let (merged, rounds) = merged(&alignment, &parts, Merge::Greedy);
    let members: Vec<&[usize]> = merged.subsets.iter().map(|one| &one.parts[..]).collect();
    assert_eq!(members, [&[0, 2][..], &[1, 3]]);
    assert!(merged.score < apart.score);
    assert_eq!(merged.sites, 1200);
    // The last round merges nothing.
    assert_eq!(rounds, [6, 3, 1]);
}

/// A codon is one site of a scheme's score, too, and its three columns stay together in a merge.
#[test]
fn codons_of_parts_are_sites() {
    let genes = evolved("GY{0.2/6}", 5, 120, 9);
    // The second of two genes is within a codon of the first: between its bases 100 and 101.
    let row = |taxon: usize| {
        let own = genes.row(taxon);
        [&own[..100], &own[240..], &own[100..240]].concat()
    };
    let rows = (0..5).map(row).collect();
    let alignment = Alignment::new(genes.names().to_vec(), rows).unwrap();
    let alphabet = Alphabet::Codon(GeneticCode::new(1).unwrap());
    let part = |name: &str, sites: Vec<u32>| Part {
        name: name.to_owned(),
        alphabet,
        sites,
    };
    let outer: Vec<u32> = (0..100).chain(220..360).collect();
    let inner: Vec<u32> = (100..220).collect();
    let parts = [part("outer", outer.clone()), part("inner", inner.clone())];
    let (found, _) = merged(&alignment, &parts, Merge::Greedy);
    let (lnl, k) = (found.lnl, found.parameters as f64);
    assert!((found.score - (k * 120_f64.ln() - 2.0 * lnl)).abs() < 1e-9);
    assert_eq!(found.sites, 360);
    // Genes that evolved alike have one model.
    assert_eq!(found.subsets.len(), 1);
    assert_eq!(found.subsets[0].sites, [outer, inner].concat());
    let joint = found.subsets[0].selection.best();
    assert!((joint.lnl - lnl).abs() < 1e-9);
    assert!((joint.bic - (joint.parameters as f64 * 120_f64.ln() - 2.0 * lnl)).abs() < 1e-9);
}

#[test]
fn relaxed_clustering_tries_the_pairs_that_are_alike() {
    let (alignment, parts) = two_kinds();
    let relaxed = |percent, pairs_max, is_fast| {
        let rule = Relaxed {
            percent,
            pairs_max,
            is_fast,
        };
        merged(&alignment, &parts, Merge::Relaxed(rule))
    };
    let (greedy, _) = merged(&alignment, &parts, Merge::Greedy);
    let members = |scheme: &Scheme| -> Vec<Vec<usize>> {
        let subsets = scheme.subsets.iter();
        subsets.map(|one| one.parts.clone()).collect()
    };
    // A third of the pairs is enough to find the two that are alike.
    let (found, rounds) = relaxed(33.4, None, false);
    assert_eq!(rounds, [2, 1, 1]);
    assert_eq!(members(&found), members(&greedy));
    assert!((found.score - greedy.score).abs() < 0.01);
    // Both in one round.
    let (found, rounds) = relaxed(33.4, None, true);
    assert_eq!(rounds, [2, 1]);
    assert_eq!(members(&found), members(&greedy));
    assert!((found.score - greedy.score).abs() < 0.01);
    // The number of pairs is bounded, too; one is always tried.
    assert_eq!(relaxed(100.0, Some(4), true).1[0], 4);
    assert_eq!(relaxed(1.0, None, true).1[0], 1);
    // With all pairs it is the greedy scheme.
    let (found, rounds) = relaxed(100.0, None, false);
    assert_eq!((rounds, found.score), (vec![6, 3, 1], greedy.score));
}
