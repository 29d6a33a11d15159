//! SH-aLRT: support of a branch against both of its alternatives.
//!
//! Each inner branch joins four subtrees, and there are two other ways to join them (NNI moves).
//! Both are evaluated, with the five lengths around the branch fitted. The difference of the
//! log-likelihoods is compared with those of RELL replicates in which all three are taken to be
//! equally good (centred, as in the test of Shimodaira and Hasegawa). The support is the share of
//! replicates whose difference between best and second best is smaller.
//! Must stay true: the likelihood's tree, lengths and parameters are restored at the end; one seed,
//! one result.
//!
//! The same three ways give two more supports. aBayes is the likelihood of the branch as it is,
//! divided by the sum of all three: its probability where all are as likely before. The local
//! bootstrap is the share of RELL replicates in which the branch as it is has the highest
//! likelihood.
//!
//! Source: Guindon and others, Systematic Biology 59 (2010), 307-321; the margin of 0.05 is
//! IQ-TREE's and PhyML's. Anisimova and others, Systematic Biology 60 (2011), 685-699, for aBayes;
//! Adachi and Hasegawa, MOLPHY 2.3, Computer Science Monographs 28 (1996), for local bootstraps.

use crate::likelihood::{Likelihood, LikelihoodError};
use crate::newick::Newick;
use crate::random::Random;
use crate::runner::Runner;
use crate::splits::{self, CompareError, Split, Taxa};
use crate::tree::{EdgeId, HalfId, Tree};
use std::collections::HashMap;

/// The support of an inner branch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Support {
    /// The branch.
    pub edge: EdgeId,
    /// SH-aLRT support, 0 to 1; 0 where another way to join the subtrees is better.
    pub share: f64,
    /// Log-likelihood by which this branch is better than the better alternative; negative if it is
    /// worse.
    pub gain: f64,
    /// aBayes: its posterior probability among the three, 0 to 1.
    pub posterior: f64,
    /// Share of the replicates in which it is the best of the three, 0 to 1.
    pub local: f64,
}

/// The supports of all inner branches, in the order of their numbers. Branch lengths should have
/// been fitted. `progress` receives the number of branches done and their total. Blocks.
///
/// # Errors
/// [`LikelihoodError`].
pub(crate) fn sh_alrt<R: Runner>(
    likelihood: &mut Likelihood<R>,
    replicates: u32,
    seed: u64,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<Support>, LikelihoodError> {
    let own = likelihood.site_log_likelihoods()?;
    let tree = likelihood.tree();
    let inner = |edge: &EdgeId| tree.ends(*edge).iter().all(|&end| !tree.is_tip(end));
    let mut edges: Vec<EdgeId> = tree.edges().filter(inner).collect();
    edges.sort();
    let mut supports = Vec::with_capacity(edges.len());
    let all = edges.len();
    for (done, edge) in edges.into_iter().enumerate() {
        progress(done, all);
        let mut sites = vec![own.clone()];
        for second in [false, true] {
            sites.extend(alternative(likelihood, edge, second)?);
        }
        // Random numbers of its own for each branch: its result does not depend on the others.
        let mut random = Random::new(sidecore_random::mix(seed) ^ u64::from(edge.0));
        supports.push(support(edge, &sites, replicates, &mut random));
    }
    progress(all, all);
    Ok(supports)
}

/// The sites' log-likelihoods with two subtrees swapped across a branch.
fn alternative<R: Runner>(
    likelihood: &mut Likelihood<R>,
    edge: EdgeId,
    second: bool,
) -> Result<Option<Vec<f64>>, LikelihoodError> {
    let before = likelihood.tree().clone();
    let Some(nni) = likelihood.nni(edge, second) else {
        return Ok(None);
    };
    let around = around(likelihood.tree(), edge);
    // Only lengths around the swap are optimised: those farther away hardly change.
    let mut lnl = f64::NEG_INFINITY;
    for _ in 0..ROUNDS_MAX {
        for &edge in &around {
            likelihood.optimise_length(edge)?;
        }
        let better = likelihood.evaluate_at(edge)?;
        let gain = better - lnl;
        lnl = better;
        if gain < EPSILON {
            break;
        }
    }
    let sites = likelihood.site_log_likelihoods()?;
    likelihood.undo_nni(nni);
    // Undoing the swap restores the topology, not the lengths, of which partitions may have own
    // ones.
    likelihood.set_tree(before);
    Ok(Some(sites))
}

/// A branch and its four neighbours.
fn around(tree: &Tree, edge: EdgeId) -> Vec<EdgeId> {
    let others = tree.ends(edge).into_iter().flat_map(|end| tree.others(end));
    let mut around = vec![edge];
    around.extend(others.map(|half| tree.edge(half)));
    around
}

/// The supports that three ways to join four subtrees give to the first, and its lead.
fn support(edge: EdgeId, sites: &[Vec<f64>], replicates: u32, random: &mut Random) -> Support {
    let sums: Vec<f64> = sites.iter().map(|own| own.iter().sum()).collect();
    let rival = sums[1..].iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let gain = sums[0] - rival;
    // Columns without a character are 0 in all three, and are not drawn.
    let said = |site: &usize| sites.iter().any(|own| own[*site] != 0.0);
    let drawn: Vec<usize> = (0..sites[0].len()).filter(said).collect();
    let (mut smaller, mut first) = (0, 0);
    let mut centred = vec![0.0; sites.len()];
    for _ in 0..replicates {
        for (to, sum) in centred.iter_mut().zip(&sums) {
            *to = -sum;
        }
        for _ in 0..drawn.len() {
            let site = drawn[random.index(drawn.len())];
            for (to, own) in centred.iter_mut().zip(sites) {
                *to += own[site];
            }
        }
        let drawn_sum = |way: usize| centred[way] + sums[way];
        let rivals = (1..sites.len()).map(drawn_sum);
        first += u32::from(rivals.fold(f64::NEG_INFINITY, f64::max) < drawn_sum(0));
        centred.sort_unstable_by(f64::total_cmp);
        let [.., second, best] = centred[..] else {
            break;
        };
        smaller += u32::from(gain > best - second + MARGIN);
    }
    let of_replicates = |count: u32| f64::from(count) / f64::from(replicates.max(1));
    // Relative to the first: the likelihoods themselves are too small.
    let ratios = sums.iter().map(|sum| libm::exp(sum - sums[0]));
    Support {
        edge,
        share: of_replicates(smaller),
        gain,
        posterior: 1.0 / ratios.sum::<f64>(),
        local: of_replicates(first),
    }
}

/// A tree's text with what `label` writes for the supports at its inner nodes. `tree` has the
/// same branches; its root and other labels of inner nodes are its own.
///
/// # Errors
/// [`CompareError`].
pub(crate) fn labelled(
    tree: &Newick,
    of: &Tree,
    names: &[String],
    supports: &[Support],
    label: impl Fn(&Support) -> String,
) -> Result<Newick, CompareError> {
    let taxa = Taxa::of(tree)?;
    let mut by_split: HashMap<Split, &Support> = HashMap::new();
    for support in supports {
        // The branch alone, as a tree: the taxa at one of its ends, and all others.
        let mut inside = vec![false; names.len()];
        below(of, of.ends(support.edge)[0], &mut inside);
        let mut pair = Newick::root(String::new());
        let clade = pair.push(0, String::new(), None);
        for (taxon, inside) in inside.into_iter().enumerate() {
            pair.push(if inside { clade } else { 0 }, names[taxon].clone(), None);
        }
        taxa.check(&pair)?;
        by_split.insert(splits::of(&pair, &taxa).swap_remove(clade), support);
    }
    let mut labelled = tree.clone();
    for (node, split) in splits::of(tree, &taxa).into_iter().enumerate() {
        if tree.nodes()[node].children.is_empty() {
            continue;
        }
        // The root has no branch of its own.
        let support = by_split.get(&split).filter(|_| node > 0);
        labelled.set_label(node, support.map_or(String::new(), |own| label(own)));
    }
    Ok(labelled)
}

/// Marks the taxa behind a half-edge's node, seen from its branch.
fn below(tree: &Tree, half: HalfId, inside: &mut [bool]) {
    let mut path = vec![half];
    while let Some(half) = path.pop() {
        if tree.is_tip(half) {
            inside[half.index()] = true;
        } else {
            path.extend(tree.others(half).map(|other| tree.back(other)));
        }
    }
}

/// Difference by which a branch must be better than a replicate's.
const MARGIN: f64 = 0.05;
/// Gain in log-likelihood below which the fit of the five lengths ends.
const EPSILON: f64 = 0.01;
const ROUNDS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::likelihood::Options;
    use crate::model::{Model, ModelName};
    use crate::msa::{Alignment, Alphabet, Patterns};
    use crate::runner::Serial;

    /// Four groups of two: `ab|cd` has many sites, `abcd|ef` one against one.
    fn likelihood(sites: &[&str]) -> (Likelihood<Serial>, Alignment) {
        let names = ["a", "b", "c", "d", "e", "f"].map(str::to_owned).to_vec();
        let rows = (0..6)
            .map(|taxon| sites.iter().map(|site| site.as_bytes()[taxon]).collect())
            .collect();
        let alignment = Alignment::new(names, rows).unwrap();
        let patterns = Patterns::new(&alignment, Alphabet::Dna).unwrap();
        let newick = Newick::parse("((a,b),(c,d),(e,f));").unwrap();
        let tree = Tree::from_newick(&newick, alignment.names()).unwrap();
        let read = &mut |_: &str| Err(std::io::Error::other("no file"));
        let model = Model::new(ModelName::parse("JC", read).unwrap(), &patterns);
        let mut likelihood =
            Likelihood::new(tree, patterns, model, Serial, Options::default()).unwrap();
        likelihood.optimise_lengths(0.001, 50).unwrap();
        (likelihood, alignment)
    }

    #[test]
    fn clear_branches_are_supported_and_others_not() {
        let mut sites = vec!["AAAAAA"; 40];
        sites.extend(["CCAAAA"; 12]);
        sites.extend(["AAGGAA"; 12]);
        // One for ef, one against it.
        sites.extend(["AAAATT", "CAAACA"]);
        let (mut likelihood, alignment) = likelihood(&sites);
        let before = likelihood.evaluate().unwrap();
        let tree = likelihood.tree().clone();
        let found = sh_alrt(&mut likelihood, 1_000, 1, |_, _| {}).unwrap();
        assert_eq!(
            found,
            sh_alrt(&mut likelihood, 1_000, 1, |_, _| {}).unwrap()
        );
        assert_eq!(found.len(), 3);
        assert!((likelihood.evaluate().unwrap() - before).abs() < 1e-6);
        assert_eq!(
            likelihood.tree().to_newick(alignment.names()),
            tree.to_newick(alignment.names())
        );
        let newick = Newick::parse("((a,b),(c,d),(e,f));").unwrap();
        let share = |own: &Support| format!("{:.0}", (100.0 * own.share).round());
        let text = labelled(&newick, &tree, alignment.names(), &found, share).unwrap();
        // By all three kinds the clear ones are clear, and the other is not.
        for (one, clear) in found.iter().map(|one| (one, one.share > 0.95)) {
            assert_eq!(one.posterior > 0.99 && one.local > 0.95, clear, "{one:?}");
            // Two rivals at `gain` below at best.
            let most = 1.0 / (1.0 + (-one.gain).exp());
            let least = 1.0 / (1.0 + 2.0 * (-one.gain).exp());
            assert!(
                (least - 1e-9..=most + 1e-9).contains(&one.posterior),
                "{one:?}"
            );
        }
        let of = |tip: &str| {
            let nodes = text.nodes();
            let tip = nodes.iter().position(|node| node.label == tip).unwrap();
            nodes[nodes[tip].parent.unwrap()]
                .label
                .parse::<f64>()
                .unwrap()
        };
        assert!(of("a") > 95.0 && of("c") > 95.0, "{text}");
        assert!(of("e") < 90.0, "{text}");
        assert_eq!(text.nodes()[0].label, "");
    }

    #[test]
    fn a_worse_branch_has_none() {
        // ac|bd, not ab|cd.
        let mut sites = vec!["AAAAAA"; 30];
        sites.extend(["CACAAA"; 10]);
        let (mut likelihood, _) = likelihood(&sites);
        let found = sh_alrt(&mut likelihood, 200, 1, |_, _| {}).unwrap();
        assert!(
            found
                .iter()
                .any(|support| support.gain < 0.0 && support.share == 0.0),
            "{found:?}"
        );
    }
}
