//! Selection of the best-fitting substitution model.
//!
//! Top-down: [`select`] fits candidates on one fixed tree and ranks them by an information
//! criterion; [`partitions::select_partitions`] does so part by part and merges parts; `candidates`
//! has the models and their special cases; `fits` fits one, starting from the most similar fit.
//!
//! Most candidates need no fit. A special case of another candidate has at most the other's
//! log-likelihood. If that, with its own number of parameters, scores below the best so far, it
//! cannot win ([`Selection::excluded`]). Proteins' matrices are no special cases of one another.
//! They are ranked by their likelihood with everything else as it was fitted for the first. They
//! are fitted in that order until the next would have to gain several times as much as those before
//! it. Free rates get one more category as long as that gains, and mixtures, if they are wanted,
//! one more class (as Ren and others, "MixtureFinder", Molecular Biology and Evolution 42 (2025),
//! for DNA). So the winner is the best of all
//! candidates, except that this rule decides on protein matrices and free rates.
//! Must stay true: one alignment, tree and options, one result.
//! Sources: Akaike (1974), Schwarz (1978), Hurvich and Tsai (1989) for the criteria; Posada and
//! Crandall, Bioinformatics 14 (1998), 817-818; Kalyaanamoorthy and others, Nature Methods 14
//! (2017), 587-589, for free rates one by one; Lanfear and others, Molecular Biology and Evolution
//! 29 (2012), 1695-1701, for partitions.

mod candidates;
mod fits;
pub mod partitions;
mod shown;

pub use candidates::{likely_alphabet, names};
pub use shown::SelectionReport;

use crate::likelihood::{LikelihoodError, PartOptions};
use crate::model::Model;
use crate::msa::{Alignment, MsaError, Patterns};
use crate::parsimony::parsimony_tree;
use crate::random::Random;
use crate::runner::Runner;
use crate::tree::Tree;
use candidates::{Candidate, Rates};
use fits::Fitter;
#[cfg(test)]
use fits::free_parameters;

/// Errors that keep a model from being chosen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SelectionError {
    /// A fit failed.
    #[error(transparent)]
    Likelihood(#[from] LikelihoodError),
    /// Parts that cannot be joined.
    #[error(transparent)]
    Msa(#[from] MsaError),
    /// An alignment without a tree to fit on.
    #[error("{taxa} taxa: 3 are needed to choose a model")]
    TooFewTaxa {
        /// The number.
        taxa: usize,
    },
    /// No matrix for this kind of data.
    #[error("no models to choose from are known for {alphabet} data")]
    NoCandidates {
        /// The kind.
        alphabet: String,
    },
}

/// Information criterion: twice the negative log-likelihood plus a penalty for parameters; the
/// least is the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Criterion {
    /// Schwarz's: the logarithm of the number of sites for each parameter.
    #[default]
    Bic,
    /// Akaike's, corrected for few sites.
    Aicc,
    /// Akaike's: 2 for each parameter.
    Aic,
}

impl Criterion {
    /// All of them by name, with a line about each.
    pub const NAMED: [(&str, &str, Self); 3] = [
        ("bic", "Bayesian information criterion", Self::Bic),
        ("aicc", "Akaike's, corrected for few sites", Self::Aicc),
        ("aic", "Akaike's", Self::Aic),
    ];

    /// Its usual name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Bic => "BIC",
            Self::Aicc => "AICc",
            Self::Aic => "AIC",
        }
    }

    /// The score of a fit; infinite where an alignment is too short for [`Criterion::Aicc`].
    #[must_use]
    pub fn score(self, lnl: f64, parameters: usize, sites: usize) -> f64 {
        let (k, n) = (parameters as f64, sites as f64);
        let price = match self {
            Self::Bic => k * libm::log(n),
            Self::Aic => 2.0 * k,
            Self::Aicc if n > k + 1.0 => 2.0 * k + 2.0 * k * (k + 1.0) / (n - k - 1.0),
            Self::Aicc => f64::INFINITY,
        };
        price - 2.0 * lnl
    }
}

/// Options of a choice.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Criterion that ranks the models.
    pub criterion: Criterion,
    /// The most categories of free rates; 0 or 1 leaves them out.
    pub free_rates_max: usize,
    /// The most classes of a mixture; 0 or 1 leaves mixtures out, which only proteins have.
    pub classes_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            criterion: Criterion::Bic,
            free_rates_max: 8,
            classes_max: 0,
        }
    }
}

/// A model that was fitted.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Fit {
    /// Its name, as [`crate::model::ModelName::parse`] reads it: `HKY+F+I+G4`.
    pub name: String,
    /// Log-likelihood.
    pub lnl: f64,
    /// Free parameters: the model's, and the branch lengths (or one scale, where the lengths are
    /// shared with other parts).
    pub parameters: usize,
    /// Scores by the three criteria.
    pub bic: f64,
    /// As above; infinite, and no number in JSON, where there are too few sites.
    pub aicc: f64,
    /// As above.
    pub aic: f64,
    /// The model with its fitted values.
    #[serde(skip)]
    pub model: Model,
    #[serde(skip)]
    candidate: Candidate,
    #[serde(skip)]
    tree: Tree,
}

impl Fit {
    /// The score by a criterion: the least is the best.
    #[must_use]
    pub fn score(&self, criterion: Criterion) -> f64 {
        match criterion {
            Criterion::Bic => self.bic,
            Criterion::Aicc => self.aicc,
            Criterion::Aic => self.aic,
        }
    }

    /// The tree with the lengths that were fitted.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }
}

/// All sites under the model of the best score (BIC), on a parsimony tree; and its fit. The seed is
/// always the same: a resumed run chooses the same model. Blocks.
///
/// # Errors
/// [`SelectionError`].
pub fn select_for<R: Runner + Clone>(
    alignment: &Alignment,
    runner: R,
    fitted: impl FnMut(&Fit),
) -> Result<(PartOptions, Fit), SelectionError> {
    let patterns = Patterns::new(alignment, likely_alphabet(alignment))?;
    let taxa = patterns.taxa();
    if taxa < 3 {
        return Err(SelectionError::TooFewTaxa { taxa });
    }
    // The ranking of models hardly depends on the tree, as long as it is not a bad one.
    let tree = parsimony_tree(&[&patterns], None, &mut Random::new(1));
    let selection = select(&tree, &patterns, &Options::default(), runner, fitted)?;
    let best = selection.best().clone();
    let part = PartOptions {
        model: best.model.clone(),
        patterns,
        scale: 1.0,
    };
    Ok((part, best))
}

/// Models in the order of their scores.
#[derive(Debug, Clone)]
pub struct Selection {
    /// Those that were fitted, the best first; never empty.
    pub fits: Vec<Fit>,
    /// Number of candidates that were not fitted because they could not win, or by the rules for
    /// protein matrices and free rates.
    pub excluded: usize,
}

impl Selection {
    /// The winner.
    #[must_use]
    pub fn best(&self) -> &Fit {
        &self.fits[0]
    }
}

/// Fits candidates on a tree and ranks them. `progress` sees each fit. Blocks; a fit is a fraction
/// of a second to minutes, as one of `phylo evaluate --opt all`.
///
/// # Errors
/// [`SelectionError`].
pub fn select<R: Runner + Clone>(
    tree: &Tree,
    patterns: &Patterns,
    options: &Options,
    runner: R,
    progress: impl FnMut(&Fit),
) -> Result<Selection, SelectionError> {
    let fitter = Fitter::new(tree.clone(), patterns, runner, false);
    Search::new(fitter, options, progress)?.run()
}

/// A selection in progress.
struct Search<'p, R, P> {
    fitter: Fitter<'p, R>,
    options: Options,
    progress: P,
    /// Matrices with or without counted frequencies, more parameters before fewer.
    candidates: Vec<Candidate>,
    fits: Vec<Fit>,
    excluded: usize,
}

impl<'p, R: Runner + Clone, P: FnMut(&Fit)> Search<'p, R, P> {
    fn new(fitter: Fitter<'p, R>, options: &Options, progress: P) -> Result<Self, SelectionError> {
        let alphabet = fitter.patterns().alphabet();
        let candidates = candidates::of(fitter.patterns());
        if candidates.is_empty() {
            let alphabet = alphabet.to_string();
            return Err(SelectionError::NoCandidates { alphabet });
        }
        Ok(Self {
            fitter,
            options: *options,
            progress,
            candidates,
            fits: Vec::new(),
            excluded: 0,
        })
    }

    fn run(mut self) -> Result<Selection, SelectionError> {
        let first = self.candidates[0].clone();
        // General rates first: they may exclude their special cases without a fit.
        for &rates in first.usual_rates() {
            self.consider(&first.with(rates))?;
        }
        match first.is_nested() {
            true => self.nested()?,
            false => self.ranked()?,
        }
        self.free_rates()?;
        // After free rates: mixtures take the rates of the best model.
        self.mixtures()?;
        // At the end, when only few candidates are still near the best.
        self.polish()?;
        self.sort();
        Ok(Selection {
            fits: self.fits,
            excluded: self.excluded,
        })
    }

    /// All but proteins: each candidate in turn, general ones before their special cases.
    fn nested(&mut self) -> Result<(), SelectionError> {
        for candidate in self.candidates.clone().into_iter().skip(1) {
            for &rates in candidate.usual_rates() {
                self.consider(&candidate.with(rates))?;
            }
        }
        Ok(())
    }

    /// Proteins: matrices by their likelihood, with everything else as fitted for the first.
    fn ranked(&mut self) -> Result<(), SelectionError> {
        self.sort();
        let start = self.fits[0].clone();
        let mut quick = Vec::new();
        for candidate in self.candidates.clone() {
            let candidate = candidate.with(start.candidate.rates);
            if self.is_known(&candidate) {
                continue;
            }
            let fit = self.fitter.look(&candidate, &start)?;
            quick.push((fit.score(self.options.criterion), fit.lnl, candidate));
        }
        quick.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut gain = GAIN_START;
        for (score, lnl, candidate) in quick {
            // A score falls by twice the gain in log-likelihood.
            if score - 2.0 * GAIN_FACTOR * gain > self.best_score() {
                self.excluded += 1;
                continue;
            }
            let fit = self.fit(&candidate)?;
            gain = f64::max(gain, fit - lnl);
        }
        // The other rate distributions, for the best matrices only.
        self.sort();
        let best: Vec<Candidate> = self.fits.iter().map(|fit| fit.candidate.clone()).collect();
        for candidate in best.into_iter().take(RANKED_BEST) {
            for &rates in candidate.usual_rates() {
                self.consider(&candidate.with(rates))?;
            }
        }
        Ok(())
    }

    /// Free rates for the best matrix; if they are better, also for matrices with similar scores.
    fn free_rates(&mut self) -> Result<(), SelectionError> {
        self.sort();
        let before = self.fits[0].clone();
        let mut last = f64::INFINITY;
        for categories in 2..=self.options.free_rates_max {
            let candidate = before.candidate.with(Rates::Free(categories));
            self.fit(&candidate)?;
            let score = self.fits[self.fits.len() - 1].score(self.options.criterion);
            // More categories only cost parameters once one more did not improve the score.
            if score > last {
                break;
            }
            last = score;
        }
        self.sort();
        let best = self.fits[0].clone();
        if !matches!(best.candidate.rates, Rates::Free(_)) {
            return Ok(());
        }
        // The gain of free rates with the best matrix predicts that with others.
        let gain = before.score(self.options.criterion) - best.score(self.options.criterion);
        let near: Vec<(f64, Candidate)> = self
            .fits
            .iter()
            .filter(|fit| fit.candidate.rates == before.candidate.rates)
            .map(|fit| (fit.score(self.options.criterion), fit.candidate.clone()))
            .collect();
        for (score, candidate) in near {
            // Rates gain about as much with one matrix as with another.
            match score - gain <= best.score(self.options.criterion) + NEAR {
                true => self.consider(&candidate.with(best.candidate.rates))?,
                false => self.excluded += 1,
            }
        }
        Ok(())
    }

    /// Proteins: mixtures with the rates of the best model. Published profiles, each number of
    /// classes until one more step does not score better; classes that differ in their matrices;
    /// and the best matrices together, one more at a time.
    fn mixtures(&mut self) -> Result<(), SelectionError> {
        self.sort();
        let best = self.fits[0].candidate.clone();
        if best.is_nested() || self.options.classes_max < 2 {
            return Ok(());
        }
        let single: Vec<Candidate> = self.fits.iter().map(|fit| fit.candidate.clone()).collect();
        for counted in ["", "+F"] {
            let name =
                |profiles: &&str| best.mixture(&format!("{}+{profiles}", best.matrix()), counted);
            self.as_long_as_better(PROFILES.iter().map(name))?;
        }
        for stock in STOCK {
            self.fit_mixture(&best.mixture(stock, ""))?;
        }
        // Each matrix once, in the form that scores best.
        let mut heads: Vec<&str> = Vec::new();
        for candidate in single.iter().filter(|own| own.rates == best.rates) {
            if !heads
                .iter()
                .any(|head| head.split('+').next() == Some(candidate.matrix()))
            {
                heads.push(candidate.head());
            }
        }
        let counts = 2..=heads.len().min(self.options.classes_max);
        let together = |count: usize| format!("MIX{{{}}}", heads[..count].join(","));
        self.as_long_as_better(counts.map(|count| best.mixture(&together(count), "")))
    }

    /// Fits candidates until one scores no better than the one before it.
    fn as_long_as_better(
        &mut self,
        candidates: impl Iterator<Item = Candidate>,
    ) -> Result<(), SelectionError> {
        let mut last = f64::INFINITY;
        for candidate in candidates {
            let Some(score) = self.fit_mixture(&candidate)? else {
                return Ok(());
            };
            if score > last {
                return Ok(());
            }
            last = score;
        }
        Ok(())
    }

    /// The score of a mixture; none where it has too many classes.
    fn fit_mixture(&mut self, candidate: &Candidate) -> Result<Option<f64>, SelectionError> {
        let classes = candidate.classes_of_mixture();
        if classes.is_none_or(|classes| classes > self.options.classes_max) {
            self.excluded += 1;
            return Ok(None);
        }
        self.fit(candidate)?;
        let last = self.fits.last();
        Ok(last.map(|fit| fit.score(self.options.criterion)))
    }

    /// Fits a candidate unless it cannot win.
    fn consider(&mut self, candidate: &Candidate) -> Result<(), SelectionError> {
        if self.is_known(candidate) {
            return Ok(());
        }
        let above = self
            .fits
            .iter()
            .filter(|fit| candidate.is_within(&fit.candidate));
        // A special case cannot fit better than a model that contains it, but for the tolerance of
        // fits.
        let most = above.map(|fit| fit.lnl).fold(f64::INFINITY, f64::min) + SLACK;
        // Without such a model the bound is infinite: the candidate is fitted.
        let parameters = self.fitter.parameters(candidate);
        let sites = self.fitter.sites();
        let bound = self.options.criterion.score(most, parameters, sites);
        if bound > self.best_score() {
            self.excluded += 1;
            return Ok(());
        }
        self.fit(candidate).map(|_| ())
    }

    /// Fits a candidate from the most similar fit, and returns its log-likelihood.
    fn fit(&mut self, candidate: &Candidate) -> Result<f64, SelectionError> {
        let start = self
            .fits
            .iter()
            .max_by_key(|fit| candidate.likeness(&fit.candidate));
        let fit = self.fitter.fit(candidate, start, EPSILON)?;
        (self.progress)(&fit);
        let lnl = fit.lnl;
        self.fits.push(fit);
        Ok(lnl)
    }

    /// Fits the candidates that may still win to convergence.
    fn polish(&mut self) -> Result<(), SelectionError> {
        self.sort();
        let near = self.best_score() + NEAR;
        for at in 0..self.fits.len() {
            if self.fits[at].score(self.options.criterion) <= near {
                let start = self.fits[at].clone();
                let fit = self
                    .fitter
                    .fit(&start.candidate, Some(&start), EPSILON_LAST)?;
                // A fit never lowers the likelihood; starting from another model may have hidden a
                // gain.
                if fit.lnl > start.lnl {
                    self.fits[at] = fit;
                }
            }
        }
        Ok(())
    }

    fn is_known(&self, candidate: &Candidate) -> bool {
        self.fits.iter().any(|fit| fit.candidate == *candidate)
    }

    fn best_score(&self) -> f64 {
        let scores = self
            .fits
            .iter()
            .map(|fit| fit.score(self.options.criterion));
        scores.fold(f64::INFINITY, f64::min)
    }

    fn sort(&mut self) {
        sort(&mut self.fits, self.options.criterion);
    }
}

/// Sorts fits by their scores. Of equal ones that of fewer parameters is first: where there are too
/// few sites for AICc all are infinite.
fn sort(fits: &mut [Fit], criterion: Criterion) {
    fits.sort_by(|a, b| {
        let scores = a.score(criterion).total_cmp(&b.score(criterion));
        scores.then(a.parameters.cmp(&b.parameters))
    });
}

/// Published profiles and mixtures of matrices, fewer classes first.
const PROFILES: [&str; 6] = ["C10", "C20", "C30", "C40", "C50", "C60"];
const STOCK: [&str; 6] = ["EX2", "UL2", "EX3", "EHO", "UL3", "EX_EHO"];
/// Gains in log-likelihood below which a fit ends: of all candidates, and of those that may win.
const EPSILON: f64 = 0.1;
const EPSILON_LAST: f64 = 0.01;
/// Distance from its maximum that a fit may have.
const SLACK: f64 = 0.2;
/// Difference in score within which candidates are fitted to convergence.
const NEAR: f64 = 6.0;
/// Least gain in log-likelihood that a protein matrix is expected to have from its own fit, and the
/// factor applied to the largest gain seen.
const GAIN_START: f64 = 3.0;
const GAIN_FACTOR: f64 = 2.0;
/// Matrices that are tried with all rate distributions.
const RANKED_BEST: usize = 2;

#[cfg(test)]
mod tests;
