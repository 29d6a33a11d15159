//! One search whose sites are split among processes: here among threads, each with its share.
//! The same bits on any number of them, and as by one.

#![allow(clippy::unwrap_used)] // Functions that tests call.

use sidecore_phylo::likelihood::{Likelihood, Options, PartOptions};
use sidecore_phylo::model::{Model, ModelName};
use sidecore_phylo::msa::{Alignment, Patterns};
use sidecore_phylo::random::Random;
use sidecore_phylo::runner::split::{Seat, Split};
use sidecore_phylo::runner::{Runner, Serial};
use sidecore_phylo::search::{self, Start, State, start_tree};
use sidecore_phylo::simulate::{numbered_names, simulate};
use sidecore_phylo::tree::{Tree, random_tree};
use std::ops::ControlFlow;

const TAXA: usize = 8;

fn model(text: &str) -> ModelName {
    ModelName::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into())).unwrap()
}

/// Sites of `text` along a tree.
fn evolved(tree: &Tree, text: &str, sites: usize, seed: u64) -> Alignment {
    let truth = Model::without_alignment(model(text));
    simulate(tree, &numbered_names(TAXA), &truth, sites, seed).unwrap()
}

/// A partition of several small chunks, and one of a single chunk if there are to be two.
fn parts(count: usize) -> Vec<PartOptions> {
    // Sites for chunks that make blocks, where there are no others.
    let sites = if count == 1 { 8_000 } else { 500 };
    let tree = random_tree(TAXA, 0.15, &mut Random::new(3));
    let truths = [
        (
            "GTR{1.5/3.8/0.6/1.3/4.1/1}+FU{0.27/0.2/0.24/0.29}+G4m{0.5}",
            sites,
        ),
        ("JC", 40),
    ];
    let fitted = ["GTR+FO+I+G4", "JC"];
    let parts = truths
        .iter()
        .zip(fitted)
        .take(count)
        .map(|((truth, sites), fitted)| {
            let alignment = evolved(&tree, truth, *sites, 5);
            let name = model(fitted);
            let patterns = Patterns::new(&alignment, name.alphabet()).unwrap();
            PartOptions::new(name, patterns)
        });
    parts.collect()
}

#[derive(Debug, PartialEq)]
struct Found {
    tree: String,
    lnl: u64,
    models: Vec<String>,
    sites: Vec<u64>,
    chunks: usize,
}

fn found(parts: usize, chunk_bytes: usize, runner: impl Runner) -> Found {
    let parts = self::parts(parts);
    let patterns: Vec<&Patterns> = parts.iter().map(|part| &part.patterns).collect();
    let start = start_tree(Start::Random, &patterns, None, 8);
    let options = Options {
        chunk_bytes,
        ..Options::default()
    };
    let mut likelihood = Likelihood::partitioned(start.clone(), parts, runner, options).unwrap();
    let chunks = likelihood.chunks();
    let go_on = &mut |_: &State| ControlFlow::Continue(());
    let options = search::Options::default();
    let (tree, lnl) = match likelihood.parts().len() {
        1 => {
            let lnl = likelihood.optimise_lengths(0.1, 1).unwrap();
            (likelihood.tree().clone(), lnl)
        }
        _ => {
            let state = State::new(start, 1);
            let state = search::run(&mut likelihood, state, &options, go_on).unwrap();
            (state.tree().clone(), state.lnl())
        }
    };
    let sites = likelihood.site_log_likelihoods().unwrap();
    let models = likelihood.parts().iter().map(|part| part.model_text());
    Found {
        tree: tree.to_newick(&numbered_names(TAXA)),
        lnl: lnl.to_bits(),
        models: models.collect(),
        sites: sites.into_iter().map(f64::to_bits).collect(),
        chunks,
    }
}

#[test]
fn any_number_of_processes_finds_the_same_bits() {
    // More processes than chunks, too: some have nothing.
    same_as_alone(2, 4 << 10, &[2, 3, 12]);
}

/// One partition is handed out in blocks of several chunks.
#[test]
fn blocks_of_chunks_add_up_to_the_same_bits() {
    same_as_alone(1, 1, &[2, 3]);
}

fn same_as_alone(parts: usize, chunk_bytes: usize, counts: &[usize]) {
    let alone = found(parts, chunk_bytes, Serial);
    let least = if parts == 1 { 32 } else { 4 };
    assert!(alone.chunks >= least, "{} chunks", alone.chunks);
    for &count in counts {
        let threads: Vec<_> = Seat::all(count)
            .into_iter()
            .map(|peers| {
                std::thread::spawn(move || {
                    let runner = Serial;
                    found(parts, chunk_bytes, Split { runner, peers })
                })
            })
            .collect();
        let all: Vec<Found> = threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect();
        let chunks: usize = all.iter().map(|found| found.chunks).sum();
        assert_eq!(chunks, alone.chunks, "chunks of {count}");
        for found in all {
            let chunks = alone.chunks;
            assert_eq!(Found { chunks, ..found }, alone, "{count} processes");
        }
    }
}
