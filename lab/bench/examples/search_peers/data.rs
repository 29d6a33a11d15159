//! An alignment with its model: our search on it, and the likelihood of any program's tree.

use sidecore_phylo::io::partitions;
use sidecore_phylo::likelihood::{Likelihood, Options, PartOptions};
use sidecore_phylo::model::{Model, ModelName};
use sidecore_phylo::msa::{Alignment, Alphabet, Patterns};
use sidecore_phylo::newick::Newick;
use sidecore_phylo::runner::Serial;
use sidecore_phylo::search::{self, Start, State};
use sidecore_phylo::tree::Tree;
use std::ops::ControlFlow;
use std::path::Path;
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
