//! The sites' log-likelihoods of several trees, each with lengths fitted to it.

use crate::likelihood::{Likelihood, LikelihoodError, Options, PartOptions};
use crate::runner::Runner;
use crate::tree::Tree;

/// The sites' log-likelihoods of each tree: lengths fitted tree by tree, parameters on the best.
/// Columns without a character, which are no draws, are left out. `progress` is called twice a
/// tree. Blocks.
///
/// # Errors
/// [`LikelihoodError`].
///
/// # Panics
/// When there is no tree.
pub fn fitted_sites(
    parts: Vec<PartOptions>,
    trees: Vec<Tree>,
    runner: &impl Runner,
    mut progress: impl FnMut(),
) -> Result<Vec<Vec<f64>>, LikelihoodError> {
    let first = trees[0].clone();
    let mut likelihood = Likelihood::partitioned(first, parts, runner, Options::default())?;
    likelihood.optimise(EPSILON_COARSE)?;
    let mut fitted = Vec::new();
    let mut best = (0, f64::NEG_INFINITY);
    for (at, tree) in trees.into_iter().enumerate() {
        likelihood.set_tree(tree);
        let lnl = likelihood.optimise_lengths_anew(EPSILON_COARSE, ROUNDS_MAX)?;
        if lnl > best.1 {
            best = (at, lnl);
        }
        fitted.push(likelihood.tree().clone());
        progress();
    }
    likelihood.set_tree(fitted[best.0].clone());
    likelihood.optimise(EPSILON)?;
    let mut all = Vec::new();
    // Lengths under the first parameters are near those under the last.
    for tree in fitted {
        likelihood.set_tree(tree);
        likelihood.optimise_lengths(EPSILON, ROUNDS_MAX)?;
        all.push(likelihood.site_log_likelihoods()?);
        progress();
    }
    // Columns without a character say nothing of any tree.
    let said: Vec<usize> = (0..all[0].len())
        .filter(|&site| all.iter().any(|tree| tree[site] != 0.0))
        .collect();
    let kept = |tree: &Vec<f64>| said.iter().map(|&site| tree[site]).collect();
    Ok(all.iter().map(kept).collect())
}

/// Gains in log-likelihood below which fits end: before the best tree is known, and after.
const EPSILON_COARSE: f64 = 0.1;
const EPSILON: f64 = 0.001;
const ROUNDS_MAX: usize = 64;
