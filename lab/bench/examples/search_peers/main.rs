//! Searches side by side with RAxML 8, IQ-TREE 2 and RAxML-NG: `search_peers [OPTIONS] [ALIGNMENT
//! ...]`.
//!
//! For each alignment the programs take turns, one thread each, the same model, one start a search,
//! each with what its authors recommend. Every tree is then fitted by us, lengths and parameters,
//! so that log-likelihoods compare. Prints what `docs/results/phylo.md` shows, as Markdown. Peers
//! and examples that are not installed are left out and named.
//!
//! Options: `--runs N` of ours for each set (10), `--peer-runs N` (1), `--seed N` (1), `--limit S`
//! seconds of a core for one run of a peer (1800), `--quick` (the sets that are done in minutes, 3
//! runs), `--only NAME` and `--peer NAME` (may be repeated), `--ours` (no peers), `--tsv FILE`
//! (every sample is added to it at once), `--from FILE` (no runs: the tables of such a file),
//! `--write FOLDER` (no runs: the sets' files), `--one FILE` (one search of ours, with its rounds;
//! `--seed`, `--model`, `--partitions`). ALIGNMENTs of DNA take the sets' place.
// A tool for developers: it stops where it cannot go on.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod data;
mod peers;
mod report;

use data::{Data, Set};
use peers::{Ended, Peers};
use report::Row;
use std::io::Write;
use std::path::{Path, PathBuf};

struct Arguments {
    runs: u64,
    peer_runs: u64,
    seed: u64,
    limit_s: u64,
    quick: bool,
    peers: bool,
    peer: Vec<String>,
    only: Vec<String>,
    files: Vec<PathBuf>,
    tsv: Option<PathBuf>,
    from: Option<PathBuf>,
    write: Option<PathBuf>,
    one: Option<PathBuf>,
    model: String,
    partitions: Option<PathBuf>,
}

fn main() {
    let arguments = read_arguments();
    if let Some(file) = &arguments.one {
        let model = &arguments.model;
        let partitions = arguments.partitions.as_deref();
        return Data::read(file, model, partitions).search(arguments.seed);
    }
    if let Some(file) = &arguments.from {
        let text = std::fs::read_to_string(file).unwrap();
        let rows: Vec<Row> = text.lines().filter_map(Row::parse).collect();
        return print!("{}", report::tables(&rows));
    }
    let folder = tempfile::tempdir().unwrap();
    let sets = the_sets(&arguments, folder.path());
    if arguments.write.is_some() {
        return;
    }
    let load_before = report::load();
    let peers = Peers::find(folder.path(), arguments.limit_s, &arguments.peer);
    let mut rows = Vec::new();
    for set in &sets {
        run_set(&arguments, set, &peers, folder.path(), &mut rows);
    }
    println!(
        "- load averages: {load_before} at the start, {} at the end",
        report::load()
    );
    print!("{}{}", peers.versions(), report::tables(&rows));
}

fn the_sets(arguments: &Arguments, folder: &Path) -> Vec<Set> {
    if !arguments.files.is_empty() {
        let files = arguments.files.iter();
        return files.map(|file| Set::of_file(file)).collect();
    }
    let folder = arguments.write.as_deref().unwrap_or(folder);
    let wanted = |name: &str, long: bool| match &arguments.only[..] {
        [] => !(long && arguments.quick),
        only => only.iter().any(|only| only == name),
    };
    data::standard(folder, wanted)
}

/// All runs of one set; programs take turns.
fn run_set(arguments: &Arguments, set: &Set, peers: &Peers, folder: &Path, rows: &mut Vec<Row>) {
    let data = Data::read(&set.file, set.model, set.partitions.as_deref());
    let path = folder.join("data.phy");
    std::fs::write(&path, data.alignment.to_phylip()).unwrap();
    let [taxa, patterns] = data.size();
    for run in 0..arguments.runs.max(arguments.peer_runs) {
        for program in peers::PROGRAMS {
            let ours = program == peers::OURS;
            let runs = if ours {
                arguments.runs
            } else {
                arguments.peer_runs
            };
            if run >= runs || !(ours || arguments.peers && peers.has(program)) {
                continue;
            }
            let seed = arguments.seed + run;
            let found = peers.go(program, &path, set, seed);
            let (reported, fitted) = match &found.ended {
                Ended::Tree { tree, lnl } => (*lnl, data.fit(tree)),
                Ended::Limit => (f64::NAN, f64::NAN),
            };
            let row = Row {
                set: set.name.clone(),
                taxa,
                patterns,
                model: set.shown(),
                program: program.to_owned(),
                seed,
                wall_s: found.wall_s,
                cpu_s: found.cpu_s,
                rss_mib: found.rss_mib,
                reported,
                fitted,
            };
            eprintln!("{row}");
            if let Some(tsv) = &arguments.tsv {
                let mut options = std::fs::OpenOptions::new();
                let mut file = options.create(true).append(true).open(tsv).unwrap();
                writeln!(file, "{row}").unwrap();
            }
            rows.push(row);
        }
    }
}

/// Reports the fault of the arguments, and exits.
fn refuse(why: &str) -> ! {
    eprintln!("search_peers: {why}");
    std::process::exit(2);
}

fn read_arguments() -> Arguments {
    let mut found = Arguments {
        runs: 10,
        peer_runs: 1,
        seed: 1,
        limit_s: 1_800,
        quick: false,
        peers: true,
        peer: Vec::new(),
        only: Vec::new(),
        files: Vec::new(),
        tsv: None,
        from: None,
        write: None,
        one: None,
        model: "GTR+F+G4".to_owned(),
        partitions: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            let value = arguments.next();
            value.unwrap_or_else(|| refuse(&format!("{argument} needs a value")))
        };
        let number = |text: String| -> u64 {
            let number = text.parse();
            number.unwrap_or_else(|_| refuse(&format!("`{text}` is not a whole number")))
        };
        match argument.as_str() {
            "--runs" => found.runs = number(value()),
            "--peer-runs" => found.peer_runs = number(value()),
            "--seed" => found.seed = number(value()),
            "--limit" => found.limit_s = number(value()),
            "--quick" => (found.quick, found.runs) = (true, 3),
            "--ours" => found.peers = false,
            "--peer" => {
                let name = value();
                if !peers::PEERS.contains(&name.as_str()) {
                    refuse(&format!("no peer `{name}`: {}", peers::PEERS.join(", ")));
                }
                found.peer.push(name);
            }
            "--only" => found.only.push(value()),
            "--tsv" => found.tsv = Some(value().into()),
            "--from" => found.from = Some(value().into()),
            "--write" => found.write = Some(value().into()),
            "--one" => found.one = Some(value().into()),
            "--model" => found.model = value(),
            "--partitions" => found.partitions = Some(value().into()),
            option if option.starts_with('-') => refuse(&format!(
                "no option `{option}`; docs/results/phylo.md has them"
            )),
            _ => found.files.push(argument.into()),
        }
    }
    found
}
