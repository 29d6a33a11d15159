//! An alignment with its model: our search on it, and the likelihood of any program's tree.
//!
//! The alignments: real ones that other programs' Debian packages bring as examples, and simulated
//! ones.
//!
//! Must stay true: no setting of the search was chosen on a set that is marked as fresh. Anyone
//! that tunes on one first gives it another seed.

use sidecore_phylo::io::partitions;
use sidecore_phylo::likelihood::{Likelihood, Options, PartOptions};
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
use std::time::Instant;

pub(crate) struct Data {
    pub(crate) alignment: Alignment,
    model: ModelName,
    parts: Vec<Patterns>,
}

impl Data {
    /// Reads an alignment. Columns of gaps are left out, as all programs leave them out, except
    /// where partitions count columns.
    pub(crate) fn read(path: &Path, model: &str, parts: Option<&Path>) -> Self {
        let bytes =
            std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let whole = Alignment::parse(&bytes).unwrap();
        let model =
            ModelName::parse(model, &mut |_| Err(std::io::ErrorKind::NotFound.into())).unwrap();
        let alphabet = model.alphabet();
        if let Some(parts) = parts {
            let text = std::fs::read_to_string(parts).unwrap();
            let lines = partitions::parse(&text, whole.sites()).unwrap().into_iter();
            let parts = lines
                .map(|line| Patterns::of_sites(&whole, alphabet, line.sites).unwrap())
                .collect();
            return Self {
                alignment: whole,
                model,
                parts,
            };
        }
        let taxa = whole.names().len();
        let gap = alphabet.code(b'-');
        let code = |taxon, site: usize| Alphabet::code(alphabet, whole.row(taxon)[site]);
        let some = |&site: &usize| (0..taxa).any(|taxon| code(taxon, site) != gap);
        let sites: Vec<usize> = (0..whole.sites()).filter(some).collect();
        let row = |taxon| sites.iter().map(|&site| whole.row(taxon)[site]).collect();
        let rows = (0..taxa).map(row).collect();
        let alignment = Alignment::new(whole.names().to_vec(), rows).unwrap();
        let patterns = Patterns::new(&alignment, alphabet).unwrap();
        Self {
            alignment,
            model,
            parts: vec![patterns],
        }
    }

    /// Taxa and distinct patterns.
    pub(crate) fn size(&self) -> [usize; 2] {
        let patterns = self.parts.iter().map(Patterns::len).sum();
        [self.parts[0].taxa(), patterns]
    }

    fn likelihood(&self, tree: Tree) -> Likelihood<Serial> {
        let part = |patterns: &Patterns| PartOptions {
            patterns: patterns.clone(),
            model: Model::new(self.model.clone(), patterns),
            scale: 1.0,
        };
        let parts = self.parts.iter().map(part).collect();
        Likelihood::partitioned(tree, parts, Serial, Options::default()).unwrap()
    }

    /// The log-likelihood of a tree, lengths and parameters fitted to the end.
    pub(crate) fn fit(&self, tree: &str) -> f64 {
        let newick = Newick::parse(tree.trim()).unwrap();
        let tree = Tree::from_newick(&newick, self.alignment.names()).unwrap();
        self.likelihood(tree).optimise(1e-4).unwrap()
    }

    /// One search of ours, its rounds, tree and log-likelihood on standard output.
    pub(crate) fn search(&self, seed: u64) {
        let parts: Vec<&Patterns> = self.parts.iter().collect();
        let tree = search::start_tree(Start::Parsimony, &parts, None, seed);
        let mut likelihood = self.likelihood(tree.clone());
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
        for part in likelihood.parts() {
            println!("{}", part.model());
        }
        println!("{}", state.tree().to_newick(self.alignment.names()));
        println!("final {:.4}", state.lnl());
    }
}

/// An alignment and the model for it, as each program calls it.
pub(crate) struct Set {
    pub(crate) name: String,
    pub(crate) file: PathBuf,
    pub(crate) model: &'static str,
    pub(crate) model_raxml: &'static str,
    /// In RAxML's style; every peer reads it, RAxML-NG after a change of its first words.
    pub(crate) partitions: Option<PathBuf>,
}

const DNA: [&str; 2] = ["GTR+F+G4", "GTRGAMMA"];
const PROTEIN: [&str; 2] = ["LG+G4", "PROTGAMMALG"];

impl Set {
    fn new(name: &str, file: PathBuf, [model, model_raxml]: [&'static str; 2]) -> Self {
        Self {
            name: name.to_owned(),
            file,
            model,
            model_raxml,
            partitions: None,
        }
    }

    /// A user's alignment of DNA.
    pub(crate) fn of_file(file: &Path) -> Self {
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        Self::new(&name, file.to_owned(), DNA)
    }

    /// The model, for the reader.
    pub(crate) fn shown(&self) -> String {
        match self.partitions {
            Some(_) => format!("{}, 3 partitions", self.model),
            None => self.model.to_owned(),
        }
    }
}

/// The sets that are `wanted`, by name and by whether a peer may take half an hour for it; writes
/// their files to a folder. Sets whose package is missing are named.
pub(crate) fn standard(folder: &Path, wanted: impl Fn(&str, bool) -> bool) -> Vec<Set> {
    let mut sets = Vec::new();
    for (name, package, path, model, partitions) in REAL {
        let from = Path::new("/usr/share/doc")
            .join(package)
            .join("examples")
            .join(path);
        if !wanted(name, false) {
            continue;
        }
        let Ok(bytes) = std::fs::read(&from) else {
            println!(
                "- {name} is left out: Debian's package {package} brings it (scripts/setup --peers)"
            );
            continue;
        };
        let file = folder.join(format!(
            "{name}.{}",
            if path.ends_with("nex") { "nex" } else { "phy" }
        ));
        std::fs::write(&file, bytes).unwrap();
        let mut set = Set::new(name, file, model);
        if !partitions.is_empty() {
            let file = folder.join(format!("{name}.parts"));
            std::fs::write(&file, partitions).unwrap();
            set.partitions = Some(file);
        }
        sets.push(set);
    }
    for (name, taxa, sites, mean, seed, model) in SIMULATED {
        if wanted(name, taxa >= 200) {
            let file = folder.join(format!("{name}.phy"));
            let truth = if model == DNA { TRUTH } else { TRUTH_PROTEIN };
            std::fs::write(&file, simulated(taxa, sites, mean, seed, truth)).unwrap();
            sets.push(Set::new(name, file, model));
        }
    }
    sets
}

fn simulated(taxa: usize, sites: usize, mean: f64, seed: u64, truth: &str) -> Vec<u8> {
    let truth = ModelName::parse(truth, &mut |_| Err(std::io::ErrorKind::NotFound.into()));
    let truth = Model::without_alignment(truth.unwrap());
    let tree = random_tree(taxa, mean, &mut Random::new(seed ^ TREE_STREAM));
    let alignment = simulate(&tree, &numbered_names(taxa), &truth, sites, seed).unwrap();
    alignment.to_phylip()
}

/// Models of the simulated sets.
const TRUTH: &str = "GTR{0.9/4.5/0.4/1.1/6.2/1}+FU{0.31/0.18/0.22/0.29}+G4m{0.6}";
const TRUTH_PROTEIN: &str = "LG+G4m{0.7}";
/// As `sidecore phylo simulate` does: the same seed there makes the same alignment.
const TREE_STREAM: u64 = 0x7472_6565;

/// Name, package, path in its examples, model, partitions.
type Real = (
    &'static str,
    &'static str,
    &'static str,
    [&'static str; 2],
    &'static str,
);
const REAL: [Real; 5] = [
    ("primates12", "mrbayes", "primates.nex", DNA, ""),
    ("phyml54", "phyml", "nucleic", DNA, ""),
    ("sceloporus123", "mrbayes", "sceloporus.nex", DNA, ""),
    ("protein37", "phyml", "proteic", PROTEIN, ""),
    (
        "parts17",
        "iqtree",
        "example.phy",
        DNA,
        "DNA, first = 1-999\\3, 2-999\\3\nDNA, third = 3-999\\3\nDNA, rest = 1000-1998\n",
    ),
];

/// Name, taxa, sites, mean length of branches, seed, model; fresh ones.
type Simulated = (&'static str, usize, usize, f64, u64, [&'static str; 2]);
const SIMULATED: [Simulated; 9] = [
    ("fresh12", 12, 900, 0.1, 2026, DNA),
    ("fresh80", 80, 800, 0.08, 7201, DNA),
    ("fresh101", 101, 1_600, 0.04, 2611, DNA),
    ("fresh-p20", 20, 400, 0.2, 7204, PROTEIN),
    ("fresh-p40", 40, 600, 0.12, 7203, PROTEIN),
    ("fresh200", 200, 1_200, 0.04, 2026, DNA),
    ("fresh218", 218, 1_100, 0.04, 7202, DNA),
    ("fresh500", 500, 1_400, 0.03, 2611, DNA),
    ("fresh600", 600, 1_000, 0.04, 4105, DNA),
];
