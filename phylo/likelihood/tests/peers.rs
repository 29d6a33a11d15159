//! Likelihoods against those of IQ-TREE 2 and RAxML 8, on alignments of our own making; and the
//! figures of `models/figures.rs` made anew by RAxML-NG.
//!
//! Both are Debian packages that `scripts/setup` installs; without them these tests fail and say
//! so. IQ-TREE is given everything fixed. RAxML 8 cannot be: it fits, and prints what it found; at
//! an optimum its rounding of the parameters does not show. RAxML-NG is in no package of Debian 12:
//! where it is not on the path (`scripts/setup-raxml-ng` puts it there), that is said, and its
//! figures in `models.rs` are what holds.
#![allow(clippy::unwrap_used)] // Functions that tests call.

#[path = "models/figures.rs"]
#[allow(dead_code)] // Fitted ones are for `models.rs`.
mod figures;

use sidecore_likelihood::likelihood::{Lengths, Likelihood, Options, PartOptions};
use sidecore_likelihood::model::{Model, ModelName};
use sidecore_likelihood::msa::{Alignment, Patterns};
use sidecore_likelihood::newick::Newick;
use sidecore_likelihood::random::Random;
use sidecore_likelihood::runner::Serial;
use sidecore_likelihood::simulate::{numbered_names, simulate};
use sidecore_likelihood::tree::{Tree, random_tree};
use std::path::Path;
use std::process::Command;

struct Case {
    folder: tempfile::TempDir,
    alignment: Alignment,
    tree: Tree,
}

fn name(text: &str) -> ModelName {
    ModelName::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into())).unwrap()
}

impl Case {
    fn new(model: &str, taxa: usize, sites: usize, unclear: &[u8], seed: u64) -> Self {
        let mut random = Random::new(seed);
        let tree = random_tree(taxa, 0.12, &mut random);
        let names = numbered_names(taxa);
        let truth = Model::without_alignment(name(model));
        let clean = simulate(&tree, &names, &truth, sites, seed).unwrap();
        let rows = (0..taxa).map(|taxon| {
            let mut row = clean.row(taxon).to_vec();
            for letter in row.iter_mut().filter(|_| taxon > 0) {
                if random.below(25) == 0 {
                    *letter = unclear[random.below(unclear.len() as u64) as usize];
                }
            }
            row
        });
        let alignment = Alignment::new(names, rows.collect()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.phy"), alignment.to_phylip()).unwrap();
        std::fs::write(
            folder.path().join("a.nwk"),
            tree.to_newick(alignment.names()),
        )
        .unwrap();
        // The others read ten digits; so do we.
        let text = std::fs::read_to_string(folder.path().join("a.nwk")).unwrap();
        let tree = Tree::from_newick(&Newick::parse(&text).unwrap(), alignment.names()).unwrap();
        Self {
            folder,
            alignment,
            tree,
        }
    }

    /// Every third site from `first` on has a model of its own.
    fn codons(&self, models: [&str; 3]) -> Vec<PartOptions> {
        let sites = self.alignment.sites() as u32;
        let part = |(first, model): (u32, &str)| {
            let name = name(model);
            let own = (first..sites).step_by(3).collect();
            let patterns = Patterns::of_sites(&self.alignment, name.alphabet(), own).unwrap();
            PartOptions {
                model: Model::new(name, &patterns),
                patterns,
                scale: 1.0,
            }
        };
        (0..).zip(models).map(part).collect()
    }

    /// IQ-TREE's result for these partitions and models; `how` selects how they share lengths.
    fn iqtree_codons(&self, how: &str, models: [&str; 3], more: &[&str]) -> f64 {
        let sites = self.alignment.sites();
        let mut text = "#nexus\nbegin sets;\n".to_owned();
        for first in 1..=3 {
            text += &format!("charset p{first} = {first}-{sites}\\3;\n");
        }
        let [a, b, c] = models;
        text += &format!("charpartition all = {a}:p1, {b}:p2, {c}:p3;\nend;\n");
        std::fs::write(self.folder.path().join("p.nex"), text).unwrap();
        let fixed = [
            "-s", "a.phy", "-te", "a.nwk", "-nt", "1", "--redo", "-pre", "p",
        ];
        self.run("iqtree2", &[&fixed[..], &[how, "p.nex"], more].concat());
        after(&self.read("p.iqtree"), "Log-likelihood of the tree: ")
    }

    fn likelihood(&self, tree: Tree, model: &str) -> Likelihood<Serial> {
        let name = ModelName::parse(model, &mut |file| {
            std::fs::read_to_string(self.folder.path().join(file))
        });
        let name = name.unwrap();
        let patterns = Patterns::new(&self.alignment, name.alphabet()).unwrap();
        let model = Model::new(name, &patterns);
        Likelihood::new(tree, patterns, model, Serial, Options::default()).unwrap()
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let output = Command::new(program)
            .args(arguments)
            .current_dir(self.folder.path())
            .output();
        let output = output.unwrap_or_else(|error| {
            panic!("cannot run {program}: {error}; scripts/setup installs it")
        });
        let tail: String = String::from_utf8_lossy(&output.stdout)
            .chars()
            .rev()
            .take(800)
            .collect();
        let tail: String = tail.chars().rev().collect();
        assert!(output.status.success(), "{program} {arguments:?}: {tail}");
    }

    fn read(&self, file: &str) -> String {
        let path: &Path = &self.folder.path().join(file);
        std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{file}: {error}"))
    }
}

/// The word after a text.
fn after(text: &str, mark: &str) -> f64 {
    let rest = text
        .split(mark)
        .nth(1)
        .unwrap_or_else(|| panic!("no `{mark}`"));
    let word = rest.split_whitespace().next().unwrap_or_default();
    word.parse()
        .unwrap_or_else(|_| panic!("`{word}` after `{mark}`"))
}

fn agree(ours: f64, theirs: f64, what: &str) {
    assert!(
        (ours / theirs - 1.0).abs() < 1e-6,
        "{what}: ours {ours}, theirs {theirs}"
    );
}

#[test]
fn iqtree_agrees_on_fixed_parameters() {
    let gtr = "GTR{1.5/3.8/0.6/1.3/4.1/1}+FU{0.27/0.2/0.24/0.29}";
    let theirs = "GTR{1.5,3.8,0.6,1.3,4.1,1}+F{0.27,0.2,0.24,0.29}";
    let dna = Case::new(&format!("{gtr}+G4m{{0.5}}"), 24, 700, b"RYSWKMBDHVN-?", 4);
    let protein = Case::new("LG+G4m{0.6}", 16, 300, b"BZX-?", 5);
    let models = [
        (&dna, "JC".to_owned(), "JC".to_owned()),
        (&dna, "K80{1/2.5}".to_owned(), "K80{2.5}".to_owned()),
        (
            &dna,
            format!("{gtr}+G4m{{0.5}}"),
            format!("{theirs}+G4{{0.5}}"),
        ),
        (
            &dna,
            format!("{gtr}+IU{{0.2}}+G4m{{0.5}}"),
            format!("{theirs}+I{{0.2}}+G4{{0.5}}"),
        ),
        (
            &dna,
            format!("{gtr}+R3{{0.2/0.8/2.0667}}{{0.3/0.4/0.3}}"),
            format!("{theirs}+R3{{0.3,0.2,0.4,0.8,0.3,2.0667}}"),
        ),
        (&protein, "LG+G4m{0.6}".to_owned(), "LG+G4{0.6}".to_owned()),
        (
            &protein,
            "WAG+IU{0.1}+G4m{0.6}".to_owned(),
            "WAG+I{0.1}+G4{0.6}".to_owned(),
        ),
        (
            &protein,
            "JTT+G4m{0.6}".to_owned(),
            "JTT+G4{0.6}".to_owned(),
        ),
        (&protein, "Dayhoff".to_owned(), "Dayhoff".to_owned()),
    ];
    for (case, ours, theirs) in models {
        let arguments = [
            "-s", "a.phy", "-te", "a.nwk", "-m", &theirs, "-blfix", "-wsl", "-nt", "1", "--redo",
            "-pre", "out",
        ];
        case.run("iqtree2", &arguments);
        let mut likelihood = case.likelihood(case.tree.clone(), &ours);
        let lnl = likelihood.evaluate().unwrap();
        agree(
            lnl,
            after(&case.read("out.iqtree"), "Log-likelihood of the tree: "),
            &ours,
        );
        // IQ-TREE's Dayhoff has other last digits than RAxML's (and ours) in its frequencies: the
        // sum agrees as well as any, single sites less.
        let exact = if ours == "Dayhoff" { 5e-5 } else { 1e-5 };
        let sites = case.read("out.sitelh");
        let sites: Vec<&str> = sites.split_whitespace().skip(3).collect();
        let own = likelihood.site_log_likelihoods().unwrap();
        assert_eq!(sites.len(), own.len());
        for (site, (own, text)) in own.iter().zip(sites).enumerate() {
            let theirs: f64 = text.parse().unwrap();
            // Six digits are printed: half a unit of the last is theirs to be off.
            let printed = 0.5 * 10_f64.powf(theirs.abs().log10().floor() - 5.0);
            assert!(
                (own - theirs).abs() < exact + printed,
                "{ours}, site {site}: {own} {theirs}"
            );
        }
    }
}

#[test]
fn iqtree_agrees_on_partitions_however_they_share_lengths() {
    let case = Case::new("GTR{1/3/1/1/4/1}+G4m{0.5}", 12, 900, b"RYN-", 21);
    let ours = [
        "GTR{1/2/1/1/3/1}+FU{0.3/0.2/0.2/0.3}+G4m{0.4}",
        "HKY{1/2.5}+FU{0.27/0.2/0.24/0.29}",
        "JC+G4m{0.9}",
    ];
    let theirs = [
        "GTR{1,2,1,1,3,1}+F{0.3,0.2,0.2,0.3}+G4{0.4}",
        "HKY{2.5}+F{0.27,0.2,0.24,0.29}",
        "JC+G4{0.9}",
    ];
    let made = || {
        let parts = case.codons(ours);
        Likelihood::partitioned(case.tree.clone(), parts, Serial, Options::default()).unwrap()
    };
    let found = case.iqtree_codons("-q", theirs, &["-blfix"]);
    agree(made().evaluate().unwrap(), found, "linked, nothing fitted");

    let found = case.iqtree_codons("-q", theirs, &[]);
    let own = made().optimise_lengths(1e-4, 100).unwrap();
    agree(own, found, "linked, lengths fitted");

    let found = case.iqtree_codons("-p", theirs, &[]);
    let mut scaled = made();
    scaled.set_lengths(Lengths::Scaled);
    agree(scaled.optimise(1e-4).unwrap(), found, "scaled");

    let found = case.iqtree_codons("-Q", theirs, &[]);
    let parts = case.codons(ours).into_iter();
    let own = parts.map(|part| {
        let tree = case.tree.clone();
        let mut own =
            Likelihood::partitioned(tree, vec![part], Serial, Options::default()).unwrap();
        own.optimise_lengths(1e-4, 100).unwrap()
    });
    agree(own.sum(), found, "each its own lengths");
}

#[test]
fn iqtree_agrees_on_a_given_matrix_and_on_two_thousand_taxa() {
    let case = Case::new("LG+G4m{0.6}", 14, 200, b"BZX-", 31);
    // PAML's form: 190 rates, row by row, and 20 frequencies.
    let mut random = Random::new(3);
    let mut text = String::new();
    for row in 1..20 {
        let rates = (0..row).map(|_| format!("{:.4} ", 0.1 + 5.0 * random.unit()));
        text += &rates.collect::<String>();
        text.push('\n');
    }
    let weights: Vec<f64> = (0..20).map(|_| 0.5 + random.unit()).collect();
    let sum: f64 = weights.iter().sum();
    let mut left = 1.0;
    for (k, weight) in weights.iter().enumerate() {
        let share = (1e4 * weight / sum).round() / 1e4;
        let share = if k == 19 { left } else { share };
        left -= share;
        text += &format!("{share:.4} ");
    }
    std::fs::write(case.folder.path().join("own.dat"), text).unwrap();
    let large = Case::new("GTR{1/3/1/1/4/1}+G4m{0.5}", 2_000, 120, b"RYN-", 41);
    for (case, ours, theirs) in [
        (&case, "PROTGTR{own.dat}+G4m{0.6}", "own.dat+G4{0.6}"),
        (
            &large,
            "GTR{1/3/1/1/4/1}+FU{0.3/0.2/0.2/0.3}+G4m{0.5}",
            "GTR{1,3,1,1,4,1}+F{0.3,0.2,0.2,0.3}+G4{0.5}",
        ),
    ] {
        let arguments = [
            "-s", "a.phy", "-te", "a.nwk", "-m", theirs, "-blfix", "-safe", "-nt", "1", "--redo",
            "-pre", "out",
        ];
        case.run("iqtree2", &arguments);
        let lnl = case.likelihood(case.tree.clone(), ours).evaluate().unwrap();
        let found = after(&case.read("out.iqtree"), "Log-likelihood of the tree: ");
        agree(lnl, found, ours);
    }
}

#[test]
fn frequencies_are_fitted_as_well_as_by_iqtree() {
    let truth = "HKY{1/3}+FU{0.4/0.1/0.15/0.35}+G4m{0.5}";
    let case = Case::new(truth, 10, 600, b"RYN-", 51);
    let arguments = [
        "-s",
        "a.phy",
        "-te",
        "a.nwk",
        "-m",
        "HKY+FO+G4",
        "-nt",
        "1",
        "--redo",
        "-pre",
        "out",
    ];
    case.run("iqtree2", &arguments);
    let found = after(&case.read("out.iqtree"), "Log-likelihood of the tree: ");
    let mut own = case.likelihood(case.tree.clone(), "HKY+FO+G4m");
    let lnl = own.optimise(1e-4).unwrap();
    // Theirs stops a little below the top.
    assert!(
        lnl > found - 1e-6 * found.abs(),
        "ours {lnl}, theirs {found}"
    );
    assert!(lnl < found + 0.1, "ours {lnl}, theirs {found}");
}

#[test]
fn raxml_agrees_at_its_optimum() {
    let gtr = "GTR{1.5/3.8/0.6/1.3/4.1/1}+FU{0.27/0.2/0.24/0.29}+G4m{0.5}";
    let dna = Case::new(gtr, 10, 300, b"RYKN-", 8);
    let protein = Case::new("WAG+G4m{0.7}", 8, 120, b"BZX-", 9);
    let cases = [
        (&dna, "GTRGAMMA", ""),
        (&protein, "PROTGAMMAWAG", "WAG"),
        (&protein, "PROTGAMMADAYHOFF", "Dayhoff"),
    ];
    for (k, (case, theirs, matrix)) in cases.into_iter().enumerate() {
        let run = format!("r{k}");
        let arguments = [
            "-f", "e", "-m", theirs, "-s", "a.phy", "-t", "a.nwk", "-n", &run, "-e", "0.001", "-p",
            "1",
        ];
        case.run("raxmlHPC", &arguments);
        let info = case.read(&format!("RAxML_info.{run}"));
        let alpha = after(&info, "alpha: ");
        let ours = if matrix.is_empty() {
            let rate = |pair: &str| after(&info, &format!("rate {pair}: "));
            let pairs = [
                "A <-> C", "A <-> G", "A <-> T", "C <-> G", "C <-> T", "G <-> T",
            ];
            let rates = pairs.map(|pair| rate(pair).to_string()).join("/");
            let frequency = |state: &str| after(&info, &format!("pi({state}): ")).to_string();
            let frequencies = ["A", "C", "G", "T"].map(frequency).join("/");
            format!("GTR{{{rates}}}+FU{{{frequencies}}}+G4m{{{alpha}}}")
        } else {
            format!("{matrix}+G4m{{{alpha}}}")
        };
        let text = case.read(&format!("RAxML_result.{run}"));
        let newick = Newick::parse(text.trim()).unwrap();
        let tree = Tree::from_newick(&newick, case.alignment.names()).unwrap();
        let lnl = case.likelihood(tree, &ours).evaluate().unwrap();
        agree(lnl, after(&info, "Final GAMMA  likelihood: "), theirs);
    }
}

/// The frozen figures are RAxML-NG's.
#[test]
fn figures_are_raxml_ngs() {
    let version = Command::new("raxml-ng").arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        eprintln!("no raxml-ng: its figures were not made anew; see scripts/setup-raxml-ng");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in figures::files() {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    // IQ-TREE's figures are of what RAxML-NG does not have.
    let others = ["mtMet", "mtVer", "mtInv", "FLAVI", "GY", "MG"];
    let own = figures::FIGURES.iter();
    let own = own.filter(|figure| !others.iter().any(|head| figure.model.starts_with(head)));
    for figure in own {
        let msa = format!("{}.phy", figure.data);
        let arguments = [
            "--evaluate",
            "--msa",
            &msa,
            "--tree",
            "tree.nwk",
            "--model",
            figure.model,
            "--opt-model",
            "off",
            "--opt-branches",
            "off",
            "--threads",
            "1",
            "--prefix",
            "x",
            "--redo",
            "--force",
            "perf_threads",
        ];
        let output = Command::new("raxml-ng")
            .args(arguments)
            .current_dir(folder.path())
            .output();
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        agree(
            figure.lnl,
            after(&text, "Final LogLikelihood: "),
            figure.model,
        );
    }
}
