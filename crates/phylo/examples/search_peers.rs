//! Searches side by side with RAxML 8 and IQ-TREE 2: `search_peers [OPTIONS] [ALIGNMENT ...]`.
//!
//! For each alignment the programs take turns, one thread each, the same model (GTR, counted
//! frequencies, four gamma rates), one start, each with what its authors recommend. Every tree is
//! then fitted by us, so that log-likelihoods compare. Without alignments it simulates six, of 12 to
//! 500 taxa. Peers that are not installed are left out and named.
//!
//! Options: `--runs N` (3), `--seed N` (1), `--ours` (no peers), `--one FILE` (one search of ours,
//! with its rounds, on standard output).
#![allow(clippy::unwrap_used, clippy::print_stdout)] // A tool for developers: it stops where it cannot go on.

use sidecore_phylo::likelihood::{Likelihood, Options};
use sidecore_phylo::model::{Model, ModelName};
use sidecore_phylo::msa::{Alignment, Alphabet, Patterns};
use sidecore_phylo::newick::Newick;
use sidecore_phylo::random::Random;
use sidecore_phylo::runner::Serial;
use sidecore_phylo::search::{self, Start, State};
use sidecore_phylo::simulate::{numbered_names, simulate};
use sidecore_phylo::tree::{Tree, random_tree};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (mut runs, mut seed, mut peers, mut files) = (3, 1, true, Vec::new());
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().expect("an option's value");
        match argument.as_str() {
            "--runs" => runs = value().parse().expect("a number of runs"),
            "--seed" => seed = value().parse().expect("a seed"),
            "--ours" => peers = false,
            "--one" => {
                let file = value();
                let rest: Vec<String> = arguments.collect();
                let seed = rest.get(1).map_or(1, |seed| seed.parse().expect("a seed"));
                return one(Path::new(&file), seed);
            }
            _ => files.push(PathBuf::from(argument)),
        }
    }
    let folder = tempfile::tempdir().unwrap();
    if files.is_empty() {
        files = simulated(folder.path());
    }
    println!("alignment\ttaxa\tpatterns\tprogram\tseed\twall_s\tcpu_s\tlnl_reported\tlnl_fitted");
    for file in files {
        let data = Data::read(&file);
        let path = folder.path().join("data.phy");
        std::fs::write(&path, data.alignment.to_phylip()).unwrap();
        for run in 0..runs {
            for program in PROGRAMS {
                if program == "sidecore" || (peers && installed(program)) {
                    let found = go(program, &path, folder.path(), seed + run);
                    let fitted = data.fit(&found.tree);
                    println!(
                        "{}\t{}\t{}\t{program}\t{}\t{:.3}\t{:.2}\t{:.4}\t{fitted:.4}",
                        file.file_name().unwrap_or_default().to_string_lossy(),
                        data.patterns.taxa(),
                        data.patterns.len(),
                        seed + run,
                        found.wall_s,
                        found.cpu_s,
                        found.lnl
                    );
                }
            }
        }
    }
    for program in PROGRAMS
        .into_iter()
        .filter(|program| peers && !installed(program))
    {
        println!("# {program} is not installed: scripts/setup does that");
    }
}

const PROGRAMS: [&str; 3] = ["sidecore", "raxmlHPC-PTHREADS-AVX", "iqtree2"];

fn installed(program: &str) -> bool {
    let quiet = Command::new(program)
        .arg("-h")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    program == "sidecore" || quiet.is_ok()
}

/// What a program found, and what it took.
struct Found {
    tree: String,
    lnl: f64,
    wall_s: f64,
    cpu_s: f64,
}

fn go(program: &str, path: &Path, folder: &Path, seed: u64) -> Found {
    let seed = seed.to_string();
    let out = folder.join(program);
    let _ = std::fs::remove_dir_all(&out);
    std::fs::create_dir(&out).unwrap();
    let mut command = match program {
        "sidecore" => {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.arg("--one").arg(path).args(["--seed", &seed]);
            command
        }
        "iqtree2" => {
            let mut command = Command::new(program);
            command
                .arg("-s")
                .arg(path)
                .args(["-m", "GTR+F+G4", "-nt", "1"]);
            command.args(["-seed", &seed, "-pre", "out"]);
            command
        }
        _ => {
            let mut command = Command::new(program);
            command
                .arg("-s")
                .arg(path)
                .args(["-m", "GTRGAMMA", "-T", "1"]);
            command.args(["-p", &seed, "-n", "out"]);
            command
        }
    };
    let (began, before) = (Instant::now(), children_cpu_s());
    let output = command.current_dir(&out).output().unwrap();
    let (wall_s, cpu_s) = (began.elapsed().as_secs_f64(), children_cpu_s() - before);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{program}: {text}");
    let read = |name: &str| std::fs::read_to_string(out.join(name)).unwrap();
    let (tree, lnl) = match program {
        "sidecore" => {
            let tree = text.lines().find(|line| line.starts_with('('));
            (tree.unwrap().to_owned(), after(&text, "final "))
        }
        "iqtree2" => (
            read("out.treefile"),
            after(&read("out.iqtree"), "Log-likelihood of the tree: "),
        ),
        _ => (
            read("RAxML_bestTree.out"),
            after(
                &read("RAxML_info.out"),
                "Final GAMMA-based Score of best tree ",
            ),
        ),
    };
    Found {
        tree,
        lnl,
        wall_s,
        cpu_s,
    }
}

/// The number after a text.
fn after(text: &str, mark: &str) -> f64 {
    let rest = text.split(mark).nth(1).unwrap();
    rest.split_whitespace().next().unwrap().parse().unwrap()
}

/// Seconds on a core of all child processes that have ended.
fn children_cpu_s() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    // After the name, which may hold blanks: fields 16 and 17 in hundredths.
    let rest = stat.rsplit(')').next().unwrap();
    let ticks: Vec<f64> = rest
        .split_whitespace()
        .skip(13)
        .take(2)
        .map(|field| field.parse().unwrap())
        .collect();
    (ticks[0] + ticks[1]) * 0.01
}

struct Data {
    alignment: Alignment,
    patterns: Patterns,
}

impl Data {
    /// Reads an alignment; columns of gaps are left out, as all programs leave them out.
    fn read(path: &Path) -> Self {
        let bytes =
            std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let whole = Alignment::parse(&bytes).unwrap();
        let taxa = whole.names().len();
        let some = |site: &usize| {
            (0..taxa).any(|taxon| Alphabet::Dna.code(whole.row(taxon)[*site]) != Some(15))
        };
        let sites: Vec<usize> = (0..whole.sites()).filter(some).collect();
        let row = |taxon| sites.iter().map(|&site| whole.row(taxon)[site]).collect();
        let rows = (0..taxa).map(row).collect();
        let alignment = Alignment::new(whole.names().to_vec(), rows).unwrap();
        let patterns = Patterns::new(&alignment, Alphabet::Dna).unwrap();
        Self {
            alignment,
            patterns,
        }
    }

    fn likelihood(&self, tree: Tree) -> Likelihood<Serial> {
        let model = Model::new(name("GTR+F+G4"), &self.patterns);
        Likelihood::new(
            tree,
            self.patterns.clone(),
            model,
            Serial,
            Options::default(),
        )
        .unwrap()
    }

    /// The log-likelihood of a tree, lengths and parameters fitted to the end.
    fn fit(&self, tree: &str) -> f64 {
        let newick = Newick::parse(tree.trim()).unwrap();
        let tree = Tree::from_newick(&newick, self.alignment.names()).unwrap();
        let mut likelihood = self.likelihood(tree);
        let mut lnl = f64::NEG_INFINITY;
        loop {
            likelihood.optimise_lengths(1e-3, 20).unwrap();
            let better = likelihood.optimise_model(0, 1e-3).unwrap();
            if better - lnl < 1e-3 {
                return better;
            }
            lnl = better;
        }
    }
}

/// One search of ours.
fn one(path: &Path, seed: u64) {
    let data = Data::read(path);
    let tree = search::start_tree(Start::Parsimony, &[&data.patterns], None, seed);
    let mut likelihood = data.likelihood(tree.clone());
    let (began, mut last) = (Instant::now(), None);
    let mut watch = |state: &State| {
        let now = (state.phase(), state.round(), state.lnl().to_bits());
        if last.replace(now) != Some(now) {
            println!(
                "{:8.3} s  {:?} {} radius {} moves {} lnl {:.4}",
                began.elapsed().as_secs_f64(),
                state.phase(),
                state.round(),
                state.radius(),
                state.moves(),
                state.lnl()
            );
        }
        ControlFlow::Continue(())
    };
    let options = search::Options::default();
    let state = State::new(tree, seed);
    let state = search::run(&mut likelihood, state, &options, &mut watch).unwrap();
    println!("{}", likelihood.parts()[0].model());
    println!("{}", state.tree().to_newick(data.alignment.names()));
    println!("final {:.4}", state.lnl());
}

fn name(text: &str) -> ModelName {
    ModelName::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into())).unwrap()
}

/// Six alignments of 12 to 500 taxa.
fn simulated(folder: &Path) -> Vec<PathBuf> {
    let truth = "GTR{1.5/3.8/0.6/1.3/4.1/1}+FU{0.27/0.2/0.24/0.29}+G4m{0.5}";
    let truth = Model::without_alignment(name(truth));
    let sets = [
        (12, 900, 0.1),
        (42, 1_200, 0.03),
        (60, 4_000, 0.05),
        (101, 1_600, 0.03),
        (200, 1_200, 0.03),
        (500, 1_400, 0.02),
    ];
    let make = |(taxa, sites, mean): (usize, usize, f64)| {
        let tree = random_tree(taxa, mean, &mut Random::new(taxa as u64));
        let alignment = simulate(&tree, &numbered_names(taxa), &truth, sites, 7).unwrap();
        let path = folder.join(format!("sim{taxa}.phy"));
        std::fs::write(&path, alignment.to_phylip()).unwrap();
        path
    };
    sets.map(make).to_vec()
}
