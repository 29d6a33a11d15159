//! The sites' log-likelihoods of several trees, each with lengths fitted to it.

use crate::likelihood::{Lengths, Likelihood, LikelihoodError, Options, PartOptions};
use crate::runner::Runner;
use crate::tree::Tree;

/// The sites' log-likelihoods of each tree: lengths fitted tree by tree, parameters (with the
/// partitions' rates, where `lengths` are scaled) on the best.
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
    lengths: Lengths,
    trees: Vec<Tree>,
    runner: &impl Runner,
    mut progress: impl FnMut(),
) -> Result<Vec<Vec<f64>>, LikelihoodError> {
    let first = trees[0].clone();
    let mut likelihood = Likelihood::partitioned(first, parts, runner, Options::default())?;
    likelihood.set_lengths(lengths);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluation::{EvaluationOptions, Fit, evaluate};
    use crate::model::{Model, ModelName};
    use crate::msa::{Alignment, Alphabet, Patterns};
    use crate::newick::Newick;
    use crate::runner::Serial;
    use crate::simulate::{numbered_names, simulate};

    /// Of two partitions, one of which evolves five times as fast, each tree gets the
    /// log-likelihood that it has alone.
    #[test]
    fn partitions_have_rates_as_in_an_evaluation() {
        let names = numbered_names(6);
        let tree = |text: &str| Tree::from_newick(&Newick::parse(text).unwrap(), &names).unwrap();
        let name = ModelName::parse("JC", &mut |_| unreachable!()).unwrap();
        let model = Model::without_alignment(name.clone());
        let mut rows = vec![Vec::new(); 6];
        for (rate, seed) in [(0.05, 1), (0.25, 2)] {
            let text = format!(
                "((t1:{rate},t2:{rate}):{rate},(t3:{rate},t4:{rate}):{rate},\
                (t5:{rate},t6:{rate}):{rate});"
            );
            let made = simulate(&tree(&text), &names, &model, 300, seed).unwrap();
            let each = rows.iter_mut().enumerate();
            each.for_each(|(taxon, row)| row.extend_from_slice(made.row(taxon)));
        }
        let alignment = Alignment::new(names.clone(), rows).unwrap();
        let part = |columns: std::ops::Range<u32>| {
            let patterns = Patterns::of_sites(&alignment, Alphabet::Dna, columns.collect());
            PartOptions::new(name.clone(), patterns.unwrap())
        };
        let parts = || vec![part(0..300), part(300..600)];
        let trees = ["((t1,t2),(t3,t4),(t5,t6));", "((t1,t3),(t2,t4),(t5,t6));"].map(tree);
        let fitted = |lengths| {
            let sites = fitted_sites(parts(), lengths, trees.to_vec(), &Serial, || {}).unwrap();
            let sum = |sites: &Vec<f64>| sites.iter().sum::<f64>();
            sites.iter().map(sum).collect::<Vec<_>>()
        };
        let scaled = fitted(Lengths::Scaled);
        for (tree, lnl) in trees.iter().zip(&scaled) {
            let options = EvaluationOptions {
                fit: Fit::All,
                epsilon: EPSILON,
                lengths: Lengths::Scaled,
                sites: None,
                posteriors: false,
            };
            let alone = evaluate(tree.clone(), &names, parts(), &options, Serial).unwrap();
            // Parameters are those of the best tree.
            assert!((alone.lnl - lnl).abs() < 0.5, "{} {scaled:?}", alone.lnl);
        }
        let linked = fitted(Lengths::Linked);
        assert!(scaled[0] > linked[0] + 20.0, "{scaled:?} {linked:?}");
    }
}
