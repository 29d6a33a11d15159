//! Simulates alignments along a tree: for tests, and for users that test their methods.
//!
//! Must stay true: one seed, one alignment, on every machine: random numbers are ours, exponentials
//! come from `libm`, and everything else is exact or rounded as IEEE 754 says.
//!
//! ```
//! use sidecore_likelihood::model::{Model, ModelName};
//! use sidecore_likelihood::msa::{Alignment, Patterns};
//! use sidecore_likelihood::newick::Newick;
//! use sidecore_likelihood::simulate::simulate;
//! use sidecore_likelihood::tree::Tree;
//!
//! let name = ModelName::parse("JC", &mut |path| std::fs::read_to_string(path))?;
//! let given = Alignment::parse(b">a\nACGT\n>b\nACGT\n>c\nACGT\n>d\nACGT\n")?;
//! let model = Model::new(name.clone(), &Patterns::new(&given, name.alphabet())?);
//! let tree = Newick::parse("((a:0.1,b:0.1):0.1,c:0.1,d:0.1);")?;
//! let tree = Tree::from_newick(&tree, given.names())?;
//! // Equal seeds evolve equal sites.
//! let once = simulate(&tree, given.names(), &model, 200, 7)?;
//! let again = simulate(&tree, given.names(), &model, 200, 7)?;
//! let patterns = |alignment| Patterns::new(alignment, name.alphabet()).map(|it| it.sites());
//! assert_eq!((once.names(), patterns(&once)?), (again.names(), 200));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::model::Model;
use crate::msa::{Alignment, MsaError};
use crate::random::{Random, index};
use crate::tree::{HalfId, Tree, random_tree};
use sidecore_bare::width::ToU64;

/// Evolves `sites` sites along a tree, from a state drawn at the inner node next to the first
/// taxon.
///
/// # Errors
/// [`MsaError`] when the names do not make an alignment: duplicates, fewer than 4.
///
/// # Panics
/// When there is not one name for each tip.
pub fn simulate(
    tree: &Tree,
    names: &[String],
    model: &Model,
    sites: usize,
    seed: u64,
) -> Result<Alignment, MsaError> {
    assert_eq!(names.len(), tree.taxa(), "one name for each tip");
    let process = model.process();
    let (n, matrix) = (process.shape.states, process.shape.matrix());
    let mut matrices = vec![0.0; matrix * tree.edges().count()];
    for (edge, block) in tree.edges().zip(matrices.chunks_mut(matrix)) {
        process.transitions(tree.length(edge), block);
    }
    // Parents before children: for each branch the half-edge that it leads to, and its parent's.
    let root = tree.back(HalfId(0));
    let mut walk = vec![(root, HalfId(0))];
    let mut path = vec![root];
    while let Some(half) = path.pop() {
        for other in tree.others(half) {
            let below = tree.back(other);
            walk.push((other, below));
            if !tree.is_tip(below) {
                path.push(below);
            }
        }
    }
    let mut random = Random::new(seed);
    let (alphabet, width) = (model.alphabet(), model.alphabet().width());
    let mut rows = vec![vec![0; sites * width]; tree.taxa()];
    let mut states = vec![0; 2 * tree.taxa() - 2];
    // Invariable sites are one more kind, after the rates.
    let mut kinds = process.weights.clone();
    kinds.push(process.invariant);
    let mut row = vec![0.0; n];
    for site in 0..sites {
        // A site has one rate on all branches.
        let kind = index(&mut random, &kinds);
        let frequencies = match kind == process.rates.len() {
            true => &process.frequencies[..],
            false => process.frequencies_of(kind),
        };
        // From the equilibrium: a branch that starts elsewhere would not be stationary.
        states[tree.node(root).index()] = index(&mut random, frequencies);
        for &(from, to) in &walk {
            let state: usize = states[tree.node(from).index()];
            // An invariable site keeps its state.
            let next = if kind == process.rates.len() {
                state
            } else {
                let block = &matrices[tree.edge(to).index() * matrix + kind * n * n..][..n * n];
                row.iter_mut()
                    .enumerate()
                    .for_each(|(j, entry)| *entry = block[j * n + state]);
                index(&mut random, &row)
            };
            states[tree.node(to).index()] = next;
        }
        for (taxon, row) in rows.iter_mut().enumerate() {
            alphabet.write(states[taxon], &mut row[site * width..][..width]);
        }
    }
    Alignment::new(names.to_vec(), rows)
}

/// Names for the taxa of a tree that has none: `t1` to `tN`.
#[must_use]
pub fn numbered_names(taxa: usize) -> Vec<String> {
    (1..=taxa).map(|taxon| format!("t{taxon}")).collect()
}

/// The random tree along which [`simulate`] evolves `taxa` taxa where no tree is given: another
/// stream than the sites', so that a longer alignment has the same tree.
///
/// # Panics
/// When there are fewer than 3 taxa.
#[must_use]
pub fn tree_of_seed(taxa: usize, length_mean: f64, seed: u64) -> Tree {
    random_tree(taxa, length_mean, &mut Random::new(seed ^ TREE_STREAM))
}

/// Approximate bytes of memory that [`simulate`] and writing its alignment take: the characters,
/// once more as text; and each branch's transitions.
#[must_use]
pub fn simulation_bytes(model: &Model, taxa: usize, sites: usize) -> u64 {
    let cells = taxa.to_u64() * sites.to_u64() * model.alphabet().width().to_u64();
    2 * cells + 16 * taxa.to_u64() * model.process().shape.matrix().to_u64()
}

const TREE_STREAM: u64 = 0x7472_6565;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelName;
    use crate::tree::random_tree;

    fn model(text: &str) -> Model {
        let name = ModelName::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into()));
        Model::without_alignment(name.unwrap())
    }

    #[test]
    fn one_seed_one_alignment_on_every_machine() {
        let tree = random_tree(6, 0.2, &mut Random::new(8));
        let text = "GTR{1/4/1/1/4/1}+FU{0.3/0.2/0.2/0.3}+IU{0.1}+G4m{0.5}";
        let names = numbered_names(6);
        let alignment = simulate(&tree, &names, &model(text), 40, 99).unwrap();
        let rows: Vec<_> = (0..6)
            .map(|taxon| String::from_utf8_lossy(alignment.row(taxon)))
            .collect();
        assert_eq!(rows, KNOWN);
    }

    #[test]
    fn characters_have_the_models_frequencies() {
        let tree = random_tree(8, 0.5, &mut Random::new(2));
        let text = "HKY{1/3}+FU{0.4/0.1/0.2/0.3}+G4m{1}";
        let alignment = simulate(&tree, &numbered_names(8), &model(text), 20_000, 3).unwrap();
        for (letter, share) in b"ACGT".iter().zip([0.4, 0.1, 0.2, 0.3]) {
            let count: usize = (0..8)
                .map(|t| alignment.row(t).iter().filter(|c| *c == letter).count())
                .sum();
            let found = count as f64 / 160_000.0;
            assert!(
                (found - share).abs() < 0.01,
                "{}: {found}",
                char::from(*letter)
            );
        }
    }

    const KNOWN: [&str; 6] = [
        "TACGACAAATTACTAGGCATCGTTTCGCGCTAGTTTGGCA",
        "TAGGACCAATTAATAGGCATTATTTCGGGCCAGTTTGGCA",
        "TATGACCATTTGTTAGGTATGATTTCGTGCCAGTTTGTCA",
        "TAGGACTAATTAATAGGCATTATTTCGAGCCAGTTTGGCA",
        "TACGACTAATTATTAGGCATCATTTCGTGCCAGTTTGTCA",
        "TAGGACAAATTAGTAGGCATGATTTCGTGCGAGTTTGTCA",
    ];
}
