//! The likelihood of one tree, with what is reported of it.

use crate::likelihood::{
    Lengths, Likelihood, LikelihoodError, Options, Part, PartOptions, Posteriors,
};
use crate::runner::Runner;
use crate::tree::Tree;

/// Parameters to fit before anything else is done with a likelihood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// Nothing: the tree and the model as given.
    Nothing,
    /// Branch lengths.
    Branches,
    /// Branch lengths and the model's free parameters.
    All,
}

impl Fit {
    /// Fits until a round gains less than `epsilon`; returns the log-likelihood. Blocks.
    ///
    /// # Errors
    /// [`LikelihoodError`].
    pub fn apply<R: Runner>(
        self,
        likelihood: &mut Likelihood<R>,
        epsilon: f64,
    ) -> Result<f64, LikelihoodError> {
        match self {
            Self::Nothing => likelihood.evaluate(),
            Self::Branches => likelihood.optimise_lengths_anew(epsilon, ROUNDS_MAX),
            Self::All => likelihood.optimise(epsilon),
        }
    }
}

/// Options of an evaluation.
#[derive(Debug, Clone, Copy)]
pub struct EvaluationOptions {
    /// Parameters to fit.
    pub fit: Fit,
    /// Gain in log-likelihood below which the fit ends.
    pub epsilon: f64,
    /// Linkage of the partitions' branch lengths.
    pub lengths: Lengths,
    /// Number of the alignment's columns, if each one's log-likelihood is wanted.
    pub sites: Option<usize>,
    /// True if the sites' rates and the probabilities of their classes are wanted.
    pub posteriors: bool,
}

/// A tree's likelihood, and the parameters that were fitted.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Evaluation {
    /// The log-likelihood.
    pub lnl: f64,
    /// Sum of the branch lengths.
    pub tree_length: f64,
    /// Each partition's model with all values.
    pub models: Vec<String>,
    /// Each partition's rate relative to the tree's lengths.
    pub scales: Vec<f64>,
    /// The tree in Newick; of unlinked lengths one with each partition's.
    #[serde(skip)]
    pub newicks: Vec<String>,
    /// Each column's log-likelihood, if wanted.
    #[serde(skip)]
    pub sites: Vec<f64>,
    /// Rates and probabilities of classes, if wanted: for each column that a partition has.
    #[serde(skip)]
    pub posteriors: Vec<SitePosterior>,
}

/// What a column's posterior probabilities say.
#[derive(Debug, Clone)]
pub struct SitePosterior {
    /// The column, from 0; of a codon the first.
    pub site: usize,
    /// Its partition.
    pub part: usize,
    /// The mean rate, in units of the mean over all sites.
    pub rate: f64,
    /// The category of rates that is most probable, from 1, and its rate; 0 where sites are
    /// invariable. Of a mixture categories are those of all its classes, class by class.
    pub category: (usize, f64),
    /// The probability of each class of a mixture; of other models of each category of rates. What
    /// they lack to 1 is that of invariable sites.
    pub classes: Vec<f64>,
}

/// Those of a likelihood's columns, in order.
fn posteriors<R: Runner>(
    likelihood: &mut Likelihood<R>,
) -> Result<Vec<SitePosterior>, LikelihoodError> {
    let mut all = Vec::new();
    for number in 0..likelihood.parts().len() {
        let found = Posteriors::of(likelihood, number)?;
        let part = &likelihood.parts()[number];
        let (process, means) = (part.process(), found.rates());
        let categories = process.rates.len();
        let of_classes = found.classes();
        let (list, width) = match part.model().class_weights().len() {
            0 => (found.categories(), categories),
            classes => (&of_classes[..], classes),
        };
        for (site, pattern) in part.patterns().site_patterns() {
            let own = &found.categories()[pattern * categories..][..categories];
            let rest = 1.0 - own.iter().sum::<f64>();
            // The first of the most probable, so that equal ones give one answer.
            let mut best = (0, rest);
            for (at, &share) in own.iter().enumerate() {
                if share > best.1 {
                    best = (at + 1, share);
                }
            }
            let rate = best.0.checked_sub(1).map_or(0.0, |at| process.rates[at]);
            all.push(SitePosterior {
                site,
                part: number,
                rate: means[pattern],
                category: (best.0, rate),
                classes: list[pattern * width..][..width].to_vec(),
            });
        }
    }
    // Partitions may have alternating columns; the order is the alignment's.
    all.sort_by_key(|own| own.site);
    Ok(all)
}

/// Evaluates a tree under the models of an alignment's partitions. Blocks.
///
/// # Errors
/// [`LikelihoodError`].
pub fn evaluate(
    tree: Tree,
    names: &[String],
    parts: Vec<PartOptions>,
    options: &EvaluationOptions,
    runner: impl Runner,
) -> Result<Evaluation, LikelihoodError> {
    let mut likelihood = Likelihood::partitioned(tree, parts, runner, Options::default())?;
    // Before the fit, which decides by it what may move.
    likelihood.set_lengths(options.lengths);
    let lnl = options.fit.apply(&mut likelihood, options.epsilon)?;
    let mut sites = Vec::new();
    if let Some(columns) = options.sites {
        sites = likelihood.site_log_likelihoods()?;
        // Columns at the end may belong to no partition.
        sites.resize(columns, 0.0);
    }
    let posteriors = match options.posteriors {
        true => posteriors(&mut likelihood)?,
        false => Vec::new(),
    };
    let (tree, parts) = (likelihood.tree(), likelihood.parts());
    let newicks = match options.lengths {
        Lengths::Unlinked => {
            let of_part = |(number, part): (usize, &Part)| tree.of_part(number, part.scale());
            let trees = parts.iter().enumerate().map(of_part);
            trees.map(|tree| tree.to_newick(names)).collect()
        }
        Lengths::Linked | Lengths::Scaled => vec![tree.to_newick(names)],
    };
    Ok(Evaluation {
        lnl,
        newicks,
        tree_length: tree.total_length(),
        models: parts.iter().map(Part::model_text).collect(),
        scales: parts.iter().map(Part::scale).collect(),
        sites,
        posteriors,
    })
}

/// As many as fitting needs; a bound only.
const ROUNDS_MAX: usize = 64;
