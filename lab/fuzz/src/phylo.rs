//! Parsers of alignments, trees, partitions, models and saved work: one function for each.
//!
//! [`alignment`], [`nexus`], [`newick`], [`partitions`], [`model`], [`checkpoint`] and
//! [`search_state`] take any bytes, read them as their kind of input and check the result: no
//! panic, and accepted input is consistent. They do no I/O and keep nothing between calls.
//!
//! [`seeds`] are valid inputs; [`mutate`] and [`read`] are for bounded runs
//! without coverage (`src/bin/seeded`).

mod seeds;

pub use seeds::{KINDS, Kind, seeds};

use sidecore_outbreak::Genomes;
use sidecore_phylo::analysis::plan::{Bootstraps, Goal};
use sidecore_phylo::bootstrap;
use sidecore_phylo::compare::compare;
use sidecore_phylo::io::checkpoint::{Settings, line_of, replay};
use sidecore_phylo::io::partitions as partition_files;
use sidecore_phylo::likelihood::{Likelihood, Options};
use sidecore_phylo::model::{Model, ModelName};
use sidecore_phylo::msa::{Alignment, Alphabet, Findings, Patterns};
use sidecore_phylo::newick::Newick;
use sidecore_phylo::packed::unpack;
use sidecore_phylo::random::Random;
use sidecore_phylo::runner::Serial;
use sidecore_phylo::search::{self, State};
use sidecore_phylo::tree::{Tree, random_tree};
use std::ops::ControlFlow;
use std::path::Path;

/// Reads bytes as a kind of input; true if they were accepted.
///
/// # Panics
/// When accepted input breaks a promise: that is the finding.
#[must_use]
pub fn read(kind: Kind, bytes: &[u8]) -> bool {
    match kind {
        Kind::Alignment => alignment(bytes),
        Kind::Tree => newick(bytes),
        Kind::Partitions => partitions(bytes),
        Kind::Model => model(bytes),
        Kind::Checkpoint => checkpoint(bytes),
        Kind::State => search_state(bytes),
    }
}

/// Unpacks it, reads it as an alignment of any format, and makes patterns of it; true if it was
/// accepted.
///
/// # Panics
/// When accepted input breaks a promise: the finding that a fuzzer looks for.
pub fn alignment(bytes: &[u8]) -> bool {
    let Ok(bytes) = unpack(bytes.to_vec(), UNPACKED_BYTES_MAX) else {
        return false;
    };
    if let Ok(genomes) = Genomes::parse(&bytes) {
        assert!(genomes.taxa() > 0, "no genomes");
    }
    let Ok(alignment) = Alignment::parse(&bytes) else {
        return false;
    };
    let sites = alignment.sites();
    let taxa = alignment.names().len();
    assert!(taxa >= 3 && sites > 0, "{taxa} taxa, {sites} sites");
    // A dot may stand for any character, but each character has its byte.
    assert!(
        taxa * sites <= bytes.len(),
        "more characters than the file has"
    );
    let alphabets = [
        Alphabet::Dna,
        Alphabet::Protein,
        Alphabet::Binary,
        Alphabet::Multistate(36),
        Alphabet::Multistate(64),
        Alphabet::Genotype,
        Alphabet::PhasedGenotype,
    ];
    for alphabet in alphabets {
        if let Ok(patterns) = Patterns::new(&alignment, alphabet) {
            let all = patterns.sites() + patterns.undetermined_sites().len();
            assert_eq!(all, sites, "sites are lost");
            let found = Findings::of(&alignment, [&patterns]);
            let warnings = found.warnings(&alignment);
            assert!(warnings.len() <= 10, "{warnings:?}");
            assert!(patterns.len() <= sites, "more patterns than sites");
        }
    }
    true
}

/// Reads the rest of a NEXUS file, so that a fuzzer need not find the first word; true if it was
/// accepted.
///
/// # Panics
/// When accepted input breaks a promise: the finding that a fuzzer looks for.
pub fn nexus(bytes: &[u8]) -> bool {
    alignment(&[b"#NEXUS\n", bytes].concat())
}

/// Reads a file of trees, prints each and reads that again, and makes an unrooted tree of it; true
/// if it was accepted and had one.
///
/// # Panics
/// When accepted input breaks a promise: the finding that a fuzzer looks for.
pub fn newick(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    let trees = Newick::parse_file(text).unwrap_or_default();
    trees.iter().for_each(tree);
    !trees.is_empty()
}

fn tree(newick: &Newick) {
    let printed = newick.to_string();
    assert_eq!(Newick::parse(&printed).as_ref(), Ok(newick), "{printed}");
    let names: Vec<String> = newick
        .tips()
        .map(|tip| newick.nodes()[tip].label.clone())
        .collect();
    if let Ok(distance) = compare(newick, newick) {
        assert_eq!(distance.rf, 0, "a tree differs from itself");
    }
    if let Ok(tree) = Tree::from_newick(newick, &names) {
        assert_eq!(
            tree.edges_depth_first().len(),
            2 * names.len() - 3,
            "branches are lost"
        );
    }
}

/// Reads a file of partitions of 60 sites; true if it was accepted.
///
/// # Panics
/// When accepted input breaks a promise: the finding that a fuzzer looks for.
pub fn partitions(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    let Ok(found) = partition_files::parse(text, PARTITION_SITES) else {
        return false;
    };
    let mut seen = [false; PARTITION_SITES];
    for site in found.iter().flat_map(|partition| &partition.sites) {
        assert!(
            !std::mem::replace(&mut seen[*site as usize], true),
            "site {site} twice"
        );
    }
    assert!(seen.into_iter().all(|seen| seen), "sites are lost");
    true
}

/// Reads a model's name and makes its transition probabilities; true if it was accepted. A file in
/// braces never exists.
///
/// # Panics
/// When accepted input breaks a promise: the finding that a fuzzer looks for.
pub fn model(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    let mut read = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    let Ok(name) = ModelName::parse(text, &mut read) else {
        return false;
    };
    let model = Model::without_alignment(name);
    let process = model.process();
    let mut matrix = vec![0.0; process.shape.matrix()];
    process.transitions(0.1, &mut matrix);
    let n = process.shape.states;
    for block in matrix.chunks(n * n) {
        // States beyond the alphabet's are padding.
        for i in 0..model.alphabet().states() {
            let sum: f64 = (0..n).map(|j| block[j * n + i]).sum();
            assert!((sum - 1.0).abs() < 1e-6, "{text}: a row of {sum}");
        }
    }
    true
}

/// Replays a checkpoint, both as it is and with its lines' checksums corrected; true if the
/// second was accepted.
///
/// # Panics
/// When accepted input breaks a promise: the finding that a fuzzer looks for.
pub fn checkpoint(bytes: &[u8]) -> bool {
    let mut settings = Settings::default();
    settings.add("--seed", "1");
    let goal = Goal {
        starts: 2,
        bootstraps: Bootstraps::UntilConverged,
        chain: 10,
        convergence: bootstrap::Options::default(),
    };
    let path = Path::new("checkpoint");
    let _ = replay(path, bytes, &settings, goal);
    let Ok(text) = std::str::from_utf8(bytes) else {
        return false;
    };
    let signed: String = text.lines().map(line_of).collect();
    let Ok(mut replayed) = replay(path, signed.as_bytes(), &settings, goal) else {
        return false;
    };
    let ledger = &mut replayed.ledger;
    let [done, needed] = ledger.progress();
    assert!(done <= needed.max(done), "{done} of {needed}");
    assert_eq!(ledger.outcomes().count(), done as usize, "results are lost");
    let _ = (ledger.take_next(), ledger.test_due(), ledger.is_done());
    true
}

/// Reads a search's saved state and makes one step from it; true if the step was made.
///
/// # Panics
/// When accepted input breaks a promise: the finding that a fuzzer looks for.
pub fn search_state(bytes: &[u8]) -> bool {
    let Ok(state) = serde_json::from_slice::<State>(bytes) else {
        return false;
    };
    let tree = random_tree(seeds::STATE_TAXA, 0.1, &mut Random::new(7));
    let read = |text| ModelName::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into()));
    let (Ok(name), Ok(alignment)) = (read("JC"), Alignment::parse(STATE_ALIGNMENT)) else {
        return false;
    };
    let Ok(patterns) = Patterns::new(&alignment, Alphabet::Dna) else {
        return false;
    };
    let model = Model::new(name, &patterns);
    let Ok(mut likelihood) = Likelihood::new(tree, patterns, model, Serial, Options::default())
    else {
        return false;
    };
    let options = search::Options::default();
    let mut once = |_: &State| ControlFlow::Break(());
    search::run(&mut likelihood, state, &options, &mut once).is_ok()
}

/// Damages a seed in one to four places: bits, cuts, moves, doublings, numbers, other seeds' parts.
#[must_use]
pub fn mutate(kind: Kind, seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut data = seed.to_vec();
    for _ in 0..=random.below(4) {
        damage(kind, &mut data, random);
    }
    data.truncate(INPUT_BYTES_MAX);
    data
}

fn damage(kind: Kind, data: &mut Vec<u8>, random: &mut Random) {
    let len = data.len() as u64;
    let at = random.below(len.max(1)) as usize;
    let run = (random.below(24) as usize).min(data.len() - at);
    match random.below(9) {
        0 => {
            if let Some(byte) = data.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        1 => {
            let letters = kind.letters();
            if let Some(byte) = data.get_mut(at) {
                *byte = letters[random.below(letters.len() as u64) as usize];
            }
        }
        2 => data.truncate(at),
        3 => {
            let moved: Vec<u8> = data[at..at + run].to_vec();
            let to = random.below(len + 1) as usize;
            data.splice(to..to, moved);
        }
        4 => {
            data.drain(at..at + run);
        }
        5 => {
            let word = WORDS[random.below(WORDS.len() as u64) as usize];
            data.splice(at..at, word.bytes());
        }
        6 => {
            let letters = kind.letters();
            let letter = letters[random.below(letters.len() as u64) as usize];
            data.splice(at..at, std::iter::repeat_n(letter, 1 + run * run));
        }
        7 => {
            let of_kind = seeds(kind);
            let other = &of_kind[random.below(of_kind.len() as u64) as usize];
            let from = random.below(other.len() as u64) as usize;
            let upto = from + (random.below(48) as usize).min(other.len() - from);
            data.splice(at..at, other[from..upto].iter().copied());
        }
        _ => data.insert(at, random.bits() as u8),
    }
}

/// Words that break arithmetic and parsers.
const WORDS: [&str; 16] = [
    "0",
    "-1",
    "1e999",
    "nan",
    "inf",
    "18446744073709551616",
    "9223372036854775807",
    "4294967296",
    "1e-320",
    "\u{fffd}",
    "''",
    "[",
    "{}",
    "\r\n",
    "\t",
    "0.0000000000000000000000001",
];
/// The alignment that states are read for.
const STATE_ALIGNMENT: &[u8] = b"5 4\na ACGT\nb ACGA\nc AC?T\nd ACTT\ne CCTT\n";
const PARTITION_SITES: usize = 60;
const INPUT_BYTES_MAX: usize = 8 << 10;
/// Packed inputs may unpack to this; more is a bomb to a fuzzer.
const UNPACKED_BYTES_MAX: usize = 1 << 20;
