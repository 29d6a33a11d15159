//! Supports of a tree's branches: by an analysis's bootstraps, or by the alignment itself; and what
//! its sites say.

use super::AnalysisError;
use super::plan::{Kind, Ledger, Outcome};
use crate::alrt::{self, labelled, sh_alrt};
use crate::evaluation::{SitePosterior, posteriors_of};
use crate::likelihood::{self, Lengths, Likelihood, PartOptions};
use crate::newick::Newick;
use crate::runner::{Runner, Serial};
use crate::support::{self, Reference};
use crate::tree::Tree;
use crate::ufboot::{self, Step, ufboot};
use sidecore_bare::width::ToUsize;

/// The tree of a result.
///
/// # Errors
/// [`AnalysisError::State`].
pub fn tree_of(outcome: &Outcome) -> Result<Newick, AnalysisError> {
    parsed(outcome, &outcome.tree)
}

/// A text of a result as a tree.
fn parsed(outcome: &Outcome, text: &str) -> Result<Newick, AnalysisError> {
    Newick::parse(text).map_err(|error| AnalysisError::State {
        kind: outcome.kind,
        index: outcome.index,
        why: error.to_string(),
    })
}

/// Rates and probabilities of classes of the sites, on a result's tree under its models. Blocks.
///
/// # Errors
/// [`AnalysisError`].
pub fn sites_of(
    outcome: &Outcome,
    names: &[String],
    parts: Vec<PartOptions>,
    runner: impl Runner + Copy,
) -> Result<Vec<SitePosterior>, AnalysisError> {
    let of_part = |(number, part): (usize, PartOptions)| {
        // Partitions may have lengths of their own.
        let own = outcome.part_trees.get(number);
        let newick = parsed(outcome, own.unwrap_or(&outcome.tree))?;
        Ok((Tree::from_newick(&newick, names)?, part))
    };
    let parts = parts.into_iter().enumerate().map(of_part);
    let parts = parts.collect::<Result<_, AnalysisError>>()?;
    Ok(posteriors_of(parts, runner)?)
}

/// The best tree with the support of the bootstraps; `None` where one of the two is missing.
///
/// # Errors
/// [`AnalysisError`].
pub fn bootstrap_support(
    ledger: &Ledger,
    kind: support::Kind,
    runner: &impl Runner,
) -> Result<Option<Newick>, AnalysisError> {
    // Parsed before the best tree is looked for: a damaged replicate is an error in any case.
    let trees = ledger.outcomes_of(Kind::Bootstrap).map(tree_of);
    let trees: Vec<Newick> = trees.collect::<Result<_, _>>()?;
    let Some(best) = ledger.best().filter(|_| !trees.is_empty()) else {
        return Ok(None);
    };
    let best = tree_of(best)?;
    let reference = Reference::new(&best)?;
    let tally = reference.tally_all(&trees, kind, runner);
    let tally = tally.map_err(|error| AnalysisError::Keep(error.into()))?;
    Ok(Some(reference.labelled(&tally)))
}

/// A tree with the labels of others that are the same tree, with `/` between them.
#[must_use]
pub fn joined(mut tree: Newick, labelled: &[Newick]) -> Newick {
    for node in 0..tree.nodes().len() {
        let labels = labelled.iter().map(|own| own.nodes()[node].label.as_str());
        let labels: Vec<&str> = labels.filter(|label| !label.is_empty()).collect();
        if !tree.nodes()[node].children.is_empty() {
            tree.set_label(node, labels.join("/"));
        }
    }
    tree
}

/// Kinds of support that need an alignment, not replicates' trees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlignmentKind {
    /// SH-like approximate likelihood ratio test.
    ShAlrt,
    /// Posterior probability among a branch and its two alternatives.
    ABayes,
    /// Bootstraps of a branch and its two alternatives.
    LocalBootstrap,
    /// Ultrafast bootstraps.
    Ufboot,
}

impl AlignmentKind {
    /// The supports in a tree's labels, as shares from 0 to 1.
    #[must_use]
    pub fn values(self, labelled: &Newick) -> Vec<f64> {
        // aBayes is a probability already, the others are per cent.
        let whole = match self {
            Self::ABayes => 1.0,
            _ => 100.0,
        };
        let nodes = labelled.nodes().iter();
        let inner = nodes.filter(|node| !node.children.is_empty());
        let shares = inner.filter_map(|node| node.label.parse::<f64>().ok());
        shares.map(|share| share / whole).collect()
    }
}

/// Kinds of support of a tree's branches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Support {
    /// By trees of replicates.
    Replicates(support::Kind),
    /// By the alignment.
    Alignment(AlignmentKind),
}

impl Support {
    /// All kinds by name, with a line about each.
    #[rustfmt::skip] // a line each, to be compared by eye
    pub const NAMED: [(&str, &str, Self); 6] = [
        ("fbp", "Felsenstein's bootstrap proportions", Self::Replicates(support::Kind::Fbp)),
        ("tbe", "Transfer bootstrap expectation", Self::Replicates(support::Kind::Tbe)),
        ("sh-alrt", SH_ALRT, Self::Alignment(AlignmentKind::ShAlrt)),
        ("abayes", ABAYES, Self::Alignment(AlignmentKind::ABayes)),
        ("lbp", LBP, Self::Alignment(AlignmentKind::LocalBootstrap)),
        ("ufboot", UFBOOT, Self::Alignment(AlignmentKind::Ufboot)),
    ];

    /// Its name in options and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        let mut all = Self::NAMED.into_iter();
        let own = all.find(|(.., kind)| *kind == self);
        own.map_or("", |(name, ..)| name)
    }
}

const SH_ALRT: &str = "SH-like approximate likelihood ratio test";
const ABAYES: &str = "Posterior probability among a branch and its two alternatives (aBayes)";
const LBP: &str = "Bootstraps of a branch and its two alternatives (local bootstrap probability)";
const UFBOOT: &str = "Ultrafast bootstraps, among trees that one search meets";

/// Supports of a tree's branches, as programs read them.
#[derive(Debug, Clone, serde::Serialize)]
pub struct SupportReport {
    kind: &'static str,
    replicates: usize,
    branches: usize,
    mean: f64,
    values: Vec<f64>,
    /// The tree, with the supports as labels.
    pub tree: String,
}

impl SupportReport {
    /// Of supports as shares from 0 to 1, which are labels of `tree`.
    #[must_use]
    pub fn new(support: Support, replicates: usize, values: Vec<f64>, tree: &Newick) -> Self {
        Self {
            kind: support.name(),
            replicates,
            branches: values.len(),
            mean: values.iter().sum::<f64>() / values.len().max(1) as f64,
            values,
            tree: tree.to_string(),
        }
    }
}

/// Options of such a support.
#[derive(Debug, Clone, Copy)]
pub struct AlignmentSupport {
    /// Of this kind.
    pub kind: AlignmentKind,
    /// Replicates.
    pub replicates: u32,
    /// Their seed.
    pub seed: u64,
    /// Linkage of the partitions' branch lengths.
    pub lengths: Lengths,
    /// Of ultrafast bootstraps: true if each replicate refines its tree by NNI moves under its own
    /// draws of sites, which keeps supports from being too high where the model fits badly.
    pub bnni: bool,
}

/// Progress of an [`AlignmentSupport`].
#[derive(Debug, Clone, Copy)]
pub enum Progress {
    /// Branches, and all of them.
    Branches(usize, usize),
    /// Perturbations of the ultrafast bootstraps' search.
    Perturbations(usize),
    /// Ultrafast bootstraps that have refined their trees, and all of them.
    Refined(usize, usize),
    /// Perturbations after which the ultrafast bootstraps had not settled.
    Unsettled(usize),
}

impl AlignmentSupport {
    /// As many replicates as usual, and one set of lengths.
    #[must_use]
    pub fn new(kind: AlignmentKind, seed: u64) -> Self {
        Self {
            kind,
            replicates: 1_000,
            seed,
            lengths: Lengths::Linked,
            bnni: false,
        }
    }

    /// A tree with supports. Its lengths and the models' free parameters are fitted first. Blocks.
    ///
    /// # Errors
    /// [`AnalysisError`].
    pub fn on(
        &self,
        newick: &Newick,
        names: &[String],
        parts: Vec<PartOptions>,
        runner: impl Runner,
        mut progress: impl FnMut(Progress),
    ) -> Result<Newick, AnalysisError> {
        let mut tree = Tree::from_newick(newick, names)?;
        // Its search rearranges the whole tree.
        if self.kind == AlignmentKind::Ufboot {
            tree.resolve();
        }
        let options = likelihood::Options::default();
        let mut likelihood = Likelihood::partitioned(tree, parts, runner, options)?;
        likelihood.set_lengths(self.lengths);
        // Both tests compare likelihoods of neighbours: lengths must be at their best first.
        likelihood.optimise(EPSILON)?;
        match self.kind {
            kind @ (AlignmentKind::ShAlrt
            | AlignmentKind::ABayes
            | AlignmentKind::LocalBootstrap) => {
                let label = move |own: &alrt::Support| {
                    let share = match kind {
                        AlignmentKind::ABayes => return format!("{:.6}", own.posterior),
                        AlignmentKind::LocalBootstrap => own.local,
                        AlignmentKind::ShAlrt | AlignmentKind::Ufboot => own.share,
                    };
                    format!("{:.0}", (100.0 * share).round())
                };
                let done = |done, all| progress(Progress::Branches(done, all));
                let supports = sh_alrt(&mut likelihood, self.replicates, self.seed, done)?;
                Ok(labelled(
                    newick,
                    likelihood.tree(),
                    names,
                    &supports,
                    label,
                )?)
            }
            AlignmentKind::Ufboot => {
                let options = ufboot::Options {
                    replicates: self.replicates.to_usize(),
                    seed: self.seed,
                    bnni: self.bnni,
                    ..ufboot::Options::default()
                };
                let step = |step: Step| match step {
                    Step::Perturbed(rounds) => progress(Progress::Perturbations(rounds)),
                    Step::Refined(done, all) => progress(Progress::Refined(done, all)),
                };
                let found = ufboot(&mut likelihood, &options, step)?;
                if !found.converged {
                    progress(Progress::Unsettled(found.rounds));
                }
                // The tree as it was given, so that its root and its labels of tips stay.
                let reference = Reference::new(newick)?;
                let trees = found.trees.iter().map(|tree| {
                    Newick::parse(&tree.to_newick(names))
                        .map_err(|error| AnalysisError::Keep(error.into()))
                });
                let trees: Vec<Newick> = trees.collect::<Result<_, _>>()?;
                let tally = reference.tally_all(&trees, support::Kind::Fbp, &Serial);
                let tally = tally.map_err(|error| AnalysisError::Keep(error.into()))?;
                Ok(reference.labelled(&tally))
            }
        }
    }
}

/// Gain in log-likelihood below which the fit before a support ends.
const EPSILON: f64 = 0.01;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::likelihood::Part;
    use crate::model::{Model, ModelName};
    use crate::msa::{Alignment, Alphabet, Patterns};
    use crate::random::Random;
    use crate::simulate::{numbered_names, simulate};

    /// Supports are those under the partitions' fitted rates, and of lengths of their own.
    #[test]
    fn partitions_have_their_rates_and_lengths() {
        let names = numbered_names(8);
        let tree = crate::tree::random_tree(8, 0.4, &mut Random::new(5));
        let named = |text: &str| ModelName::parse(text, &mut |_| unreachable!()).unwrap();
        let model = Model::without_alignment(named("JC"));
        let mut rows = vec![Vec::new(); 8];
        for (rate, seed) in [(0.1, 1), (2.0, 2)] {
            let mut own = tree.clone();
            for edge in tree.edges() {
                own.set_length(edge, rate * tree.length(edge));
            }
            let made = simulate(&own, &names, &model, 60, seed).unwrap();
            let each = rows.iter_mut().enumerate();
            each.for_each(|(taxon, row)| row.extend_from_slice(made.row(taxon)));
        }
        let alignment = Alignment::new(names.clone(), rows).unwrap();
        let parts = |models: [&str; 2]| -> Vec<PartOptions> {
            let each = models.into_iter().zip([0..60, 60..120]);
            let part = |(model, columns): (&str, std::ops::Range<u32>)| {
                let own = Patterns::of_sites(&alignment, Alphabet::Dna, columns.collect());
                PartOptions::new(named(model), own.unwrap())
            };
            each.map(part).collect()
        };
        let newick = Newick::parse(&tree.to_newick(&names)).unwrap();
        let kind = AlignmentKind::ABayes;
        let values = |models: [&str; 2], lengths| {
            let options = AlignmentSupport {
                lengths,
                ..AlignmentSupport::new(kind, 1)
            };
            let found = options.on(&newick, &names, parts(models), Serial, |_| {});
            kind.values(&found.unwrap())
        };
        let far = |a: &[f64], b: &[f64]| {
            let pairs = a.iter().zip(b).map(|(a, b)| (a - b).abs());
            pairs.fold(0.0, f64::max)
        };
        let jc = ["JC"; 2];
        let options = likelihood::Options::default();
        let made = Likelihood::partitioned(tree.clone(), parts(jc), Serial, options);
        let mut fitted = made.unwrap();
        fitted.set_lengths(Lengths::Scaled);
        fitted.optimise(EPSILON).unwrap();
        let texts: Vec<String> = fitted.parts().iter().map(Part::model_text).collect();
        let given = values([&texts[0], &texts[1]], Lengths::Linked);
        let scaled = values(jc, Lengths::Scaled);
        assert!(far(&given, &scaled) < 0.01, "{given:?} {scaled:?}");
        let linked = values(jc, Lengths::Linked);
        assert!(far(&linked, &scaled) > 0.02, "{linked:?} {scaled:?}");
        // A branch's swaps leave nothing in the partitions' own lengths for the next branch.
        fitted.set_lengths(Lengths::Unlinked);
        fitted.optimise(EPSILON).unwrap();
        let before = fitted.evaluate().unwrap();
        sh_alrt(&mut fitted, 100, 1, |_, _| {}).unwrap();
        assert!((fitted.evaluate().unwrap() - before).abs() < 1e-6);
    }
}
