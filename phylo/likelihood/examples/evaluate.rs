//! The log-likelihood of a tree for an alignment, with lengths and parameters fitted.
//!
//! `cargo run --example evaluate -p sidecore-phylo -- ALIGNMENT TREE [MODEL]`
//! MODEL is written as RAxML-NG writes it; `GTR+G` unless given.
#![allow(clippy::print_stdout)] // a program for people

use sidecore_likelihood::likelihood::{Likelihood, Options};
use sidecore_likelihood::model::{Model, ModelName};
use sidecore_likelihood::msa::{Alignment, Patterns};
use sidecore_likelihood::newick::Newick;
use sidecore_likelihood::runner::Serial;
use sidecore_likelihood::tree::Tree;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (msa, tree, model) = match arguments.as_slice() {
        [msa, tree] => (msa, tree, "GTR+G"),
        [msa, tree, model] => (msa, tree, model.as_str()),
        _ => return Err("usage: evaluate ALIGNMENT TREE [MODEL]".into()),
    };
    let alignment = Alignment::parse(&std::fs::read(msa)?)?;
    let name = ModelName::parse(model, &mut |path| std::fs::read_to_string(path))?;
    let patterns = Patterns::new(&alignment, name.alphabet())?;
    let newick = Newick::parse(&std::fs::read_to_string(tree)?)?;
    let tree = Tree::from_newick(&newick, alignment.names())?;

    let model = Model::new(name, &patterns);
    let mut likelihood = Likelihood::new(tree, patterns, model, Serial, Options::default())?;
    println!("as given  {:.6}", likelihood.evaluate()?);
    // Until a round over all lengths and parameters gains less than this log-likelihood.
    println!("fitted    {:.6}", likelihood.optimise(0.001)?);
    println!("model     {}", likelihood.parts()[0].model());
    println!("{}", likelihood.tree().to_newick(alignment.names()));
    Ok(())
}
