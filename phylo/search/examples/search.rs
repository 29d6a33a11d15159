//! A search for the tree of the highest likelihood, from a parsimony tree, on all cores.
//!
//! `cargo run --release --example search -p sidecore-phylo -- ALIGNMENT [MODEL [SEED]]`
#![allow(clippy::print_stdout)] // a program for people

use sidecore_offload::{Pool, PoolConfig};
use sidecore_phylo::likelihood::{self, Likelihood};
use sidecore_phylo::model::{Model, ModelName};
use sidecore_phylo::msa::{Alignment, Patterns};
use sidecore_phylo::search::{self, Start, State, start_tree};
use std::error::Error;
use std::ops::ControlFlow;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let msa = arguments
        .first()
        .ok_or("usage: search ALIGNMENT [MODEL [SEED]]")?;
    let model = arguments.get(1).map_or("GTR+G", String::as_str);
    let seed = arguments.get(2).map_or(Ok(1), |seed| seed.parse())?;
    let alignment = Alignment::parse(&std::fs::read(msa)?)?;
    let name = ModelName::parse(model, &mut |path| std::fs::read_to_string(path))?;
    let patterns = Patterns::new(&alignment, name.alphabet())?;

    let start = start_tree(Start::Parsimony, &[&patterns], None, seed);
    let model = Model::new(name, &patterns);
    // Loops of the likelihood go to the pool's engines where that is worth it. The result is the
    // same, to the last bit, on any number of them.
    let pool = Pool::start(PoolConfig::default())?;
    let options = likelihood::Options::default();
    let mut likelihood = Likelihood::new(start.clone(), patterns, model, &pool, options)?;

    let mut phase = None;
    let mut watch = |state: &State| {
        if phase.replace(state.phase()) != Some(state.phase()) {
            eprintln!("{:?}: {:.3}", state.phase(), state.lnl());
        }
        // A state can be saved (`serde`) and run on from; `Break` stops here.
        ControlFlow::Continue(())
    };
    let state = State::new(start, seed);
    let found = search::run(
        &mut likelihood,
        state,
        &search::Options::default(),
        &mut watch,
    )?;
    println!("{:.6}", found.lnl());
    println!("{}", found.tree().to_newick(alignment.names()));
    Ok(())
}
