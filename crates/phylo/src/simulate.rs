//! Alignments that evolved along a tree: for tests, and for users who test their methods.
//!
//! Must stay true: one seed, one alignment, on every machine: random numbers are ours, exponentials
//! come from `libm`, and everything else is exact or rounded as IEEE 754 says.

use crate::model::Model;
use crate::msa::{Alignment, MsaError};
use crate::random::Random;
use crate::tree::{HalfId, Tree};

/// Evolves `sites` sites along a tree, from a state drawn at the node beside the first taxon.
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
    // Parents before children: for each branch which half-edge it leads to, from where.
    let root = tree.back(HalfId(0));
    let mut order = tree.post_order(root, |_| true);
    order.reverse();
    let mut walk = vec![(root, HalfId(0))];
    for half in order {
        walk.extend(tree.others(half).map(|other| (other, tree.back(other))));
    }
    let mut random = Random::new(seed);
    let mut rows = vec![vec![0; sites]; tree.taxa()];
    let mut states = vec![0; 2 * tree.taxa() - 2];
    let mut kinds = process.weights.clone();
    kinds.push(process.invariant);
    let mut row = vec![0.0; n];
    for site in 0..sites {
        let kind = random.index(&kinds);
        states[tree.node(root).index()] = random.index(&process.frequencies);
        for &(from, to) in &walk {
            let state: usize = states[tree.node(from).index()];
            let next = if kind == process.rates.len() {
                state
            } else {
                let block = &matrices[tree.edge(to).index() * matrix + kind * n * n..][..n * n];
                row.iter_mut().enumerate().for_each(|(j, entry)| *entry = block[j * n + state]);
                random.index(&row)
            };
            states[tree.node(to).index()] = next;
        }
        for (taxon, row) in rows.iter_mut().enumerate() {
            row[site] = model.alphabet().letter(states[taxon]);
        }
    }
    Alignment::new(names.to_vec(), rows)
}

/// Names for the taxa of a tree that has none: `t1` to `tN`.
#[must_use]
pub fn numbered_names(taxa: usize) -> Vec<String> {
    (1..=taxa).map(|taxon| format!("t{taxon}")).collect()
}
