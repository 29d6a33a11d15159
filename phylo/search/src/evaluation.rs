//! The likelihood of one tree, with what is reported of it.

use crate::constraint::Terrace;
use crate::likelihood::{
    Lengths, Likelihood, LikelihoodError, Options, Part, PartOptions, Posteriors,
};
use crate::model::Process;
use crate::rooted::RootedLikelihood;
use crate::runner::Runner;
use crate::tree::Tree;
use std::fmt::Write as _;

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
    /// All of them by name, with a line about each.
    #[rustfmt::skip] // a line each
    pub const NAMED: [(&str, &str, Self); 3] = [
        ("none", "Nothing: the tree and the model as given", Self::Nothing),
        ("branches", "Branch lengths", Self::Branches),
        ("all", "Branch lengths and the model's free parameters", Self::All),
    ];

    /// The likelihood of a tree, fitted until a round gains less than `epsilon`, and its logarithm.
    /// Blocks.
    ///
    /// # Errors
    /// [`LikelihoodError`].
    pub fn likelihood<R: Runner>(
        self,
        tree: Tree,
        (parts, lengths): (Vec<PartOptions>, Lengths),
        epsilon: f64,
        runner: R,
    ) -> Result<(Likelihood<R>, f64), LikelihoodError> {
        let mut likelihood = Likelihood::partitioned(tree, parts, runner, Options::default())?;
        // Before the fit, which decides by it what may move.
        likelihood.set_lengths(lengths);
        let lnl = match self {
            Self::Nothing => likelihood.evaluate()?,
            Self::Branches => likelihood.optimise_lengths_anew(epsilon, ROUNDS_MAX)?,
            Self::All => likelihood.optimise(epsilon)?,
        };
        Ok((likelihood, lnl))
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
    /// The tree's terrace, if it was counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terrace: Option<Terrace>,
    /// The frequencies of the root's states, under a nonreversible model or of populations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root_frequencies: Option<Vec<f64>>,
    /// Each column's log-likelihood, if wanted.
    #[serde(skip)]
    pub sites: Vec<f64>,
    /// Rates and probabilities of classes, if wanted: for each column that a partition has.
    #[serde(skip)]
    pub posteriors: Vec<SitePosterior>,
}

/// The probabilities of each column's classes, as a table with tabs between; `names` are the
/// partitions'.
#[must_use]
pub fn class_table(sites: &[SitePosterior], names: &[String]) -> String {
    let rows = sites.iter();
    class_rows(rows.map(|own| (own.site, name_of(names, own.part), &own.classes[..])))
}

/// The columns' rates: the mean, and the most probable category with its rate, as a table with tabs
/// between.
#[must_use]
pub fn rate_table(sites: &[SitePosterior], names: &[String]) -> String {
    let mut text = "site\tpart\trate\tcategory\tcategory_rate\n".to_owned();
    for own in sites {
        let (part, (category, rate)) = (name_of(names, own.part), own.category);
        let (site, mean) = (own.site + 1, own.rate);
        let row = format!("{site}\t{part}\t{mean:.6}\t{category}\t{rate:.6}\n");
        text.push_str(&row);
    }
    text
}

/// Each column's log-likelihood on a line: of several trees one after the other, with tabs between.
/// A tree that was evaluated without its columns has empty cells.
#[must_use]
pub fn site_table(evaluated: &[Evaluation]) -> String {
    let columns = evaluated.iter().map(|one| one.sites.len()).max();
    let mut text = String::new();
    for site in 0..columns.unwrap_or(0) {
        let own = evaluated.iter().map(|one| one.sites.get(site));
        let cells = own.map(|lnl| lnl.map_or_else(String::new, |lnl| format!("{lnl:.9}")));
        text.push_str(&cells.collect::<Vec<_>>().join("\t"));
        text.push('\n');
    }
    text
}

fn name_of(names: &[String], part: usize) -> &str {
    names.get(part).map_or("all", String::as_str)
}

/// Lines of columns, each with its partition and the probabilities of its classes.
pub(crate) fn class_rows<'t>(
    rows: impl Iterator<Item = (usize, &'t str, &'t [f64])> + Clone,
) -> String {
    let most = rows.clone().map(|(_, _, own)| own.len()).max().unwrap_or(0);
    let mut text = "site\tpart".to_owned();
    for class in 1..=most {
        // Writing to a string does not fail, here and below.
        let _ = write!(text, "\tp{class}");
    }
    text.push('\n');
    for (site, part, own) in rows {
        let _ = write!(text, "{}\t{part}", site + 1);
        for share in own {
            let _ = write!(text, "\t{share:.6}");
        }
        text.push('\n');
    }
    text
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
    /// invariable. Of a mixture that has rates across sites, a category is one of these, whatever
    /// the class; of other mixtures, a class.
    pub category: (usize, f64),
    /// The probability of each class of a mixture; of other models of each category of rates. What
    /// they lack to 1 is that of invariable sites.
    pub classes: Vec<f64>,
}

/// The columns of partitions that share no lengths, each on a tree of its own. Blocks.
///
/// # Errors
/// [`LikelihoodError`].
pub(crate) fn posteriors_of(
    parts: Vec<(Tree, PartOptions)>,
    runner: impl Runner + Copy,
) -> Result<Vec<SitePosterior>, LikelihoodError> {
    let mut all = Vec::new();
    for (number, (tree, part)) in parts.into_iter().enumerate() {
        let options = Options::default();
        let mut one = Likelihood::partitioned(tree, vec![part], runner, options)?;
        let own = posteriors(&mut one)?.into_iter();
        all.extend(own.map(|own| SitePosterior {
            part: number,
            ..own
        }));
    }
    all.sort_by_key(|own| own.site);
    Ok(all)
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
        let across = across_classes(process, categories / width);
        for (site, pattern) in part.patterns().site_patterns() {
            let own = &found.categories()[pattern * categories..][..categories];
            // The rest of a pattern's likelihood is that of invariable sites.
            let mut best = (0, 1.0 - own.iter().sum::<f64>());
            for at in 0..across.len() {
                let share: f64 = own.iter().skip(at).step_by(across.len()).sum();
                // The first of the most probable, so that equal ones give one answer.
                if share > best.1 {
                    best = (at + 1, share);
                }
            }
            let rate = best.0.checked_sub(1).map_or(0.0, |at| across[at]);
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

/// The rates across sites, `count` of them, as the classes of a mixture have them in the mean: each
/// class has all, one after the other. With one or none, the rates of all categories.
fn across_classes(process: &Process, count: usize) -> Vec<f64> {
    if count < 2 {
        return process.rates.clone();
    }
    let mean = |at: usize| {
        let own = process.rates.iter().zip(&process.weights);
        let own = own.skip(at).step_by(count);
        let (sum, weights) = own.fold((0.0, 0.0), |(sum, all), (rate, weight)| {
            (sum + rate * weight, all + weight)
        });
        sum / weights
    };
    (0..count).map(mean).collect()
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
    let (fit, epsilon) = (options.fit, options.epsilon);
    let (mut likelihood, lnl) = fit.likelihood(tree, (parts, options.lengths), epsilon, runner)?;
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
        terrace: None,
        root_frequencies: None,
        sites,
        posteriors,
    })
}

/// Fits the parameters of a rooted tree's likelihood, and reports it; with `has_sites` each
/// column's, too. Blocks.
///
/// # Errors
/// [`LikelihoodError`].
pub fn evaluate_rooted<R: Runner>(
    mut likelihood: RootedLikelihood<R>,
    fit: Fit,
    epsilon: f64,
    has_sites: bool,
) -> Result<Evaluation, LikelihoodError> {
    let lnl = match fit {
        Fit::Nothing => likelihood.evaluate()?,
        Fit::Branches => likelihood.optimise_lengths(epsilon, ROOTED_ROUNDS_MAX)?,
        Fit::All => likelihood.optimise(epsilon)?,
    };
    let sites = match has_sites {
        true => likelihood.site_log_likelihoods()?,
        false => Vec::new(),
    };
    Ok(Evaluation {
        lnl,
        tree_length: likelihood.tree().total_length(),
        models: vec![likelihood.model().to_string()],
        scales: vec![1.0],
        newicks: vec![likelihood.tree().to_newick().to_string()],
        terrace: None,
        root_frequencies: Some(likelihood.root_frequencies()),
        sites,
        posteriors: Vec::new(),
    })
}

/// As many as fitting needs; a bound only.
const ROUNDS_MAX: usize = 64;
/// The same of a rooted tree's lengths.
const ROOTED_ROUNDS_MAX: usize = 1_000;
