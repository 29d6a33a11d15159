//! An alignment that evolved along a random tree: what to test a method on.
//!
//! `cargo run --example simulate -p sidecore-phylo -- TAXA SITES [SEED] > a.phy`
//! The tree goes to standard error. The same arguments make the same alignment on every machine.

use sidecore_likelihood::model::{Model, ModelName};
use sidecore_likelihood::random::Random;
use sidecore_likelihood::simulate::{numbered_names, simulate};
use sidecore_likelihood::tree::random_tree;
use std::error::Error;
use std::io::Write;

/// Rates AC AG AT CG CT GT, frequencies A C G T, the shape of the gamma distribution.
const MODEL: &str = "GTR{1/4/1/1/4/1}+FU{0.3/0.2/0.2/0.3}+G4m{0.5}";
/// Mean length of a branch, in substitutions a site.
const LENGTH_MEAN: f64 = 0.1;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [taxa, sites, rest @ ..] = arguments.as_slice() else {
        return Err("usage: simulate TAXA SITES [SEED]".into());
    };
    let (taxa, sites): (usize, usize) = (taxa.parse()?, sites.parse()?);
    if taxa < 4 {
        return Err("a tree needs at least 4 taxa".into());
    }
    let seed = rest.first().map_or(Ok(1), |seed| seed.parse())?;
    // No file is read: all values stand in the name.
    let name = ModelName::parse(MODEL, &mut |_| Err(std::io::ErrorKind::NotFound.into()))?;
    let names = numbered_names(taxa);
    let tree = random_tree(taxa, LENGTH_MEAN, &mut Random::new(seed));
    let alignment = simulate(&tree, &names, &Model::without_alignment(name), sites, seed)?;
    std::io::stdout().write_all(&alignment.to_phylip())?;
    eprintln!("{}", tree.to_newick(&names));
    Ok(())
}
