//! quick
#![allow(clippy::unwrap_used, clippy::print_stdout)]
use sidecore_phylo::likelihood::{Likelihood, Options};
use sidecore_phylo::model::{Model, ModelName};
use sidecore_phylo::msa::{Alignment, Alphabet, Patterns};
use sidecore_phylo::runner::Serial;
use sidecore_phylo::search::{self, Start, State};
use std::ops::ControlFlow;

fn main() {
    let seed: u64 = std::env::var("SEED").ok().map_or(1, |s| s.parse().unwrap());

    for path in std::env::args().skip(1) {
        let alignment = Alignment::parse(&std::fs::read(&path).unwrap()).unwrap();
        let patterns = Patterns::new(&alignment, Alphabet::Dna).unwrap();
        let name = ModelName::parse(
            "GTR+F+G4",
            &mut |_| Err(std::io::ErrorKind::NotFound.into()),
        )
        .unwrap();
        let model = Model::new(name, &patterns);

        let tree = search::start_tree(Start::Parsimony, &[&patterns], None, seed);
        println!(
            "{path}: {} taxa {} patterns; parsimony {:.3} s, score {}",
            patterns.taxa(),
            patterns.len(),
            (sidecore_sys::clock::thread_cpu_ns() as f64 * 1e-9),
            sidecore_phylo::parsimony::score(&tree, &[&patterns])
        );
        let mut likelihood =
            Likelihood::new(tree.clone(), patterns, model, Serial, Options::default()).unwrap();
        let mut last = None;
        let state = search::run(
            &mut likelihood,
            State::new(tree, seed),
            &search::Options::default(),
            &mut |state: &State| {
                let now = (state.phase(), state.round());
                if last != Some(now) {
                    println!(
                        "  {:.3} s {:?} {} radius {} lnl {:.4} moves {}",
                        (sidecore_sys::clock::thread_cpu_ns() as f64 * 1e-9),
                        state.phase(),
                        state.round(),
                        state.radius(),
                        state.lnl(),
                        state.moves()
                    );
                    last = Some(now);
                }
                ControlFlow::Continue(())
            },
        )
        .unwrap();
        println!(
            "  {:.3} s: {:.4}",
            (sidecore_sys::clock::thread_cpu_ns() as f64 * 1e-9),
            state.lnl()
        );
    }
}
