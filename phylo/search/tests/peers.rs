//! Site profiles, rates and classes of sites, and classes of branch lengths against IQ-TREE 2.
//!
//! It is a Debian package that `scripts/setup` installs; without it these tests fail and say so.
#![allow(clippy::unwrap_used)] // Functions that tests call.

use sidecore_phylo::evaluation::{Evaluation, EvaluationOptions, Fit, evaluate};
use sidecore_phylo::heterotachy::{self, ClassedModel};
use sidecore_phylo::likelihood::{Lengths, PartOptions};
use sidecore_phylo::model::{Model, ModelName};
use sidecore_phylo::msa::{Alignment, Patterns};
use sidecore_phylo::newick::Newick;
use sidecore_phylo::profiles;
use sidecore_phylo::random::Random;
use sidecore_phylo::runner::Serial;
use sidecore_phylo::simulate::{numbered_names, simulate};
use sidecore_phylo::tree::{Tree, random_tree};
use std::path::Path;
use std::process::Command;

fn name(text: &str) -> ModelName {
    ModelName::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into())).unwrap()
}

struct Case {
    folder: tempfile::TempDir,
    alignment: Alignment,
    tree: Tree,
}

impl Case {
    /// Sites that evolved under one model after the other, `sites` each; with a `spread` the
    /// lengths of each model are random factors of the tree's.
    fn new(models: &[&str], taxa: usize, sites: usize, spread: f64, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let tree = random_tree(taxa, 0.12, &mut random);
        let names = numbered_names(taxa);
        let mut rows = vec![Vec::new(); taxa];
        for (number, model) in models.iter().enumerate() {
            let mut own = tree.clone();
            for edge in tree.edges() {
                let factor = (spread * (random.unit() + random.unit() - 1.0)).exp();
                own.set_length(edge, tree.length(edge) * factor);
            }
            let model = Model::without_alignment(name(model));
            let more = simulate(&own, &names, &model, sites, seed + number as u64).unwrap();
            for (taxon, row) in rows.iter_mut().enumerate() {
                row.extend_from_slice(more.row(taxon));
            }
        }
        let alignment = Alignment::new(names, rows).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.phy"), alignment.to_phylip()).unwrap();
        let text = tree.to_newick(alignment.names());
        std::fs::write(folder.path().join("a.nwk"), &text).unwrap();
        // Others read ten digits, and so does this.
        let tree = Tree::from_newick(&Newick::parse(&text).unwrap(), alignment.names()).unwrap();
        Self {
            folder,
            alignment,
            tree,
        }
    }

    fn patterns(&self, name: &ModelName) -> Patterns {
        Patterns::new(&self.alignment, name.alphabet()).unwrap()
    }

    fn part(&self, model: &str) -> PartOptions {
        let name = name(model);
        let patterns = self.patterns(&name);
        PartOptions::new(name, patterns)
    }

    fn evaluated(&self, parts: Vec<PartOptions>) -> Evaluation {
        let options = EvaluationOptions {
            fit: Fit::Nothing,
            epsilon: 1.0,
            lengths: Lengths::Linked,
            sites: Some(self.alignment.sites()),
            posteriors: true,
        };
        let names = self.alignment.names();
        evaluate(self.tree.clone(), names, parts, &options, Serial).unwrap()
    }

    /// Runs IQ-TREE on the alignment and the tree; its log-likelihood.
    fn iqtree(&self, more: &[&str]) -> f64 {
        let always = "-s a.phy -te a.nwk -nt 1 --redo -pre out -seed 1";
        let arguments = always.split(' ').chain(more.iter().copied());
        let output = Command::new("iqtree2")
            .args(arguments)
            .current_dir(self.folder.path())
            .output();
        let output = output.unwrap_or_else(|error| {
            panic!("cannot run iqtree2: {error}; scripts/setup installs it")
        });
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "iqtree2 {more:?}: {said}");
        let report = self.read("out.iqtree");
        let after = report.split("Log-likelihood of the tree: ").nth(1).unwrap();
        after.split_whitespace().next().unwrap().parse().unwrap()
    }

    fn read(&self, file: &str) -> String {
        let path: &Path = &self.folder.path().join(file);
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    /// The numbers of a table's lines, without comments and heads.
    fn numbers(&self, file: &str) -> Vec<Vec<f64>> {
        let text = self.read(file);
        let lines = text.lines().map(|line| line.split_whitespace());
        let lines = lines.map(|words| words.map(str::parse).collect::<Result<Vec<f64>, _>>());
        lines
            .filter_map(Result::ok)
            .filter(|row| !row.is_empty())
            .collect()
    }
}

/// IQ-TREE before 3.1.3 gives invariable sites the alignment's frequencies, not those of the site's
/// profile: its own correction of May 2026 says so. The sites that it gives otherwise are corrected
/// here; all others agree as they are.
#[test]
fn profiles_with_invariable_sites_are_iqtrees() {
    let case = Case::new(&["LG+C10+IU{0.2}+G4m{0.7}"], 10, 150, 0.0, 3);
    let mut random = Random::new(7);
    let mut text = String::new();
    let mut columns = std::collections::HashMap::new();
    for site in 0..case.alignment.sites() {
        let column: Vec<u8> = (0..10)
            .map(|taxon| case.alignment.row(taxon)[site])
            .collect();
        // Equal columns have one profile.
        let shares = columns.entry(column).or_insert_with(|| {
            let each: Vec<f64> = (0..20).map(|_| 0.02 - random.unit().ln()).collect();
            let sum: f64 = each.iter().sum();
            let shares = each.iter().map(|share| format!(" {:.10}", share / sum));
            shares.collect::<String>()
        });
        text += &format!("{}{shares}\n", site + 1);
    }
    std::fs::write(case.folder.path().join("a.sitefreq"), &text).unwrap();
    for (ours, theirs, invariable) in [
        ("LG+G4m{0.6}", "LG+G4{0.6}", 0.0),
        ("LG+IU{0.3}", "LG+I{0.3}", 0.3),
        ("LG+IU{0.2}+G4m{0.6}", "LG+I{0.2}+G4{0.6}", 0.2),
    ] {
        let part = profiles::apply(&case.part(ours), &text).unwrap();
        let own = case.evaluated(vec![part]);
        let lnl = case.iqtree(&["-m", theirs, "-fs", "a.sitefreq", "-blfix", "-wsl"]);
        let sites = case.read("out.sitelh");
        let sites = sites.split_whitespace().skip(3);
        let counted = Model::new(name("LG+F"), &case.patterns(&name("LG")));
        let counted = counted.process().frequencies;
        let rows = (0..10).map(|taxon| case.alignment.row(taxon));
        let rows: Vec<&[u8]> = rows.collect();
        let mut moved = 0.0;
        for (site, (word, own)) in sites.zip(&own.sites).enumerate() {
            let theirs: f64 = word.parse().unwrap();
            let mut meant = theirs;
            if rows.iter().all(|row| row[site] == rows[0][site]) {
                let state = b"ARNDCQEGHILKMFPSTWYV"
                    .iter()
                    .position(|aa| *aa == rows[0][site]);
                let state = state.unwrap();
                let profile = text.lines().nth(site).unwrap().split(' ').nth(state + 1);
                let profile: f64 = profile.unwrap().parse().unwrap();
                meant = (theirs.exp() + invariable * (profile - counted[state])).ln();
                moved += meant - theirs;
            }
            assert!(
                (meant - own).abs() < 2e-4,
                "{ours}, site {site}: {own} {meant}"
            );
        }
        let whole = lnl + moved;
        assert!(
            (own.lnl / whole - 1.0).abs() < 1e-6,
            "{ours}: {} {whole}",
            own.lnl
        );
    }
}

/// A model here, the same for IQ-TREE, and its option for probabilities of classes.
type Same = [&'static str; 3];

#[test]
fn rates_and_classes_of_sites_are_iqtrees() {
    let dna = Case::new(&["HKY{1/3}+G4m{0.5}"], 10, 200, 0.0, 5);
    let protein = Case::new(&["LG+G4m{0.7}"], 8, 100, 0.0, 6);
    let hky = "HKY{3}+F{0.3,0.2,0.2,0.3}";
    let models: [(&Case, Same); 5] = [
        (&dna, ["+G4m{0.5}", "+G4{0.5}", "-wspr"]),
        (&dna, ["+IU{0.2}+G4m{0.5}", "+I{0.2}+G4{0.5}", "-wspr"]),
        (
            &dna,
            [
                "+R3{0.2/1/3}{0.3/0.5/0.2}",
                "+R3{0.3,0.2,0.5,1,0.2,3}",
                "-wspr",
            ],
        ),
        (
            &protein,
            [
                "MIX{LG:1:0.4,WAG:1:0.3,JTT:1:0.3}+G4m{0.7}",
                "MIX{LG:1:0.4,WAG:1:0.3,JTT:1:0.3}+G4{0.7}",
                "-wspm",
            ],
        ),
        (
            &protein,
            [
                "MIX{LG:1:0.4,WAG:1:0.6}+IU{0.1}+G4m{0.7}",
                "MIX{LG:1:0.4,WAG:1:0.6}+I{0.1}+G4{0.7}",
                "-wspm",
            ],
        ),
    ];
    for (case, [ours, theirs, option]) in models {
        let (mut own, mut other) = (ours.to_owned(), theirs.to_owned());
        if ours.starts_with('+') {
            own = format!("HKY{{1/3}}+FU{{0.3/0.2/0.2/0.3}}{ours}");
            other = format!("{hky}{theirs}");
        }
        let own = case.evaluated(vec![case.part(&own)]);
        let lnl = case.iqtree(&["-m", &other, "-blfix", "-wsr", option]);
        assert!(
            (own.lnl / lnl - 1.0).abs() < 1e-6,
            "{ours}: {} {lnl}",
            own.lnl
        );
        let rates = case.numbers("out.rate");
        let shares = case.numbers("out.siteprob");
        assert_eq!(rates.len(), own.posteriors.len());
        for ((own, rates), shares) in own.posteriors.iter().zip(rates).zip(shares) {
            let site = own.site + 1;
            assert!((own.rate - rates[1]).abs() < 1e-4, "{ours}, site {site}");
            let (category, rate) = own.category;
            assert_eq!(category as f64, rates[2], "{ours}, site {site}");
            assert!((rate - rates[3]).abs() < 1e-4, "{ours}, site {site}");
            // Theirs are of a site that is not invariable.
            let sum: f64 = own.classes.iter().sum();
            for (own, share) in own.classes.iter().zip(&shares[1..]) {
                assert!((own / sum - share).abs() < 1e-4, "{ours}, site {site}");
            }
        }
    }
}

#[test]
fn rates_of_partitions_are_iqtrees() {
    let case = Case::new(&["HKY{1/3}+G4m{0.5}"], 8, 120, 0.0, 8);
    let sets = "#nexus\nbegin sets;\ncharset a = 1-50;\ncharset b = 51-120;\n\
                charpartition p = JC+G4{0.5}:a, K80{3}+I{0.1}+G4{0.8}:b;\nend;\n";
    std::fs::write(case.folder.path().join("p.nex"), sets).unwrap();
    let part = |model: &str, columns: std::ops::Range<u32>| {
        let name = name(model);
        let own = columns.collect();
        let patterns = Patterns::of_sites(&case.alignment, name.alphabet(), own).unwrap();
        PartOptions::new(name, patterns)
    };
    let parts = vec![
        part("JC+G4m{0.5}", 0..50),
        part("K80{1/3}+IU{0.1}+G4m{0.8}", 50..120),
    ];
    let own = case.evaluated(parts);
    let lnl = case.iqtree(&["-q", "p.nex", "-blfix", "-wsr"]);
    assert!((own.lnl / lnl - 1.0).abs() < 1e-6, "{} {lnl}", own.lnl);
    let rates = case.numbers("out.rate");
    assert_eq!(rates.len(), 120);
    for (own, rates) in own.posteriors.iter().zip(rates) {
        assert!((own.rate - rates[2]).abs() < 1e-4, "site {}", own.site + 1);
        assert_eq!(own.category.0 as f64, rates[3], "site {}", own.site + 1);
    }
}

#[test]
fn linked_classes_of_lengths_end_no_lower_than_iqtrees() {
    let hky = "HKY{1/3}+FU{0.3/0.2/0.2/0.3}";
    let case = Case::new(&[hky, hky], 8, 400, 2.0, 11);
    let theirs = case.iqtree(&["-m", "HKY+FO+H2"]);
    let mut none = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    let own = ClassedModel::parse("HKY+FO+H2", &mut none)
        .unwrap()
        .unwrap();
    let patterns = case.patterns(own.first());
    let trees = [case.tree.clone()];
    let names = case.alignment.names();
    let fit = (Fit::All, 1e-3);
    let own = heterotachy::evaluate(&trees, names, &patterns, &own, fit, Serial).unwrap();
    assert!(own.lnl > theirs - 0.05, "{} {theirs}", own.lnl);
}
