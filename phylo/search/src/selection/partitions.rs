//! Models for the parts of an alignment, and the merging of parts.
//!
//! The parts' lengths are those of one tree, each part's times a factor of its own. So each part's
//! model can be chosen by itself on a tree whose lengths were fitted to all of them. Two parts are
//! merged if one model for both improves the score of the whole: always the pair that gains most,
//! until none gains (PartitionFinder's greedy scheme). A pair is tried with the models of both its
//! members; the final subsets are tried with all candidates again.
//! Source: Lanfear, Calcott, Ho and Guindon, Molecular Biology and Evolution 29 (2012), 1695-1701.

use super::fits::Fitter;
use super::{Criterion, Fit, Options, Search, Selection, SelectionError};
use crate::io::partitions;
use crate::likelihood::{self, Lengths, Likelihood, PartOptions};
use crate::msa::{Alignment, Alphabet, Patterns};
use crate::runner::Runner;
use crate::tree::Tree;

/// A part of an alignment before anything is chosen for it.
#[derive(Debug, Clone)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Kind of data.
    pub alphabet: Alphabet,
    /// Its columns, from 0.
    pub sites: Vec<u32>,
}

/// Parts that share one model.
#[derive(Debug, Clone)]
pub struct Subset {
    /// Numbers of the parts.
    pub parts: Vec<usize>,
    /// Its columns, from 0, in ascending order.
    pub sites: Vec<u32>,
    /// Models fitted for it.
    pub selection: Selection,
}

/// A scheme: subsets of an alignment, with their models.
#[derive(Debug, Clone)]
pub struct Scheme {
    /// In the order of their first parts.
    pub subsets: Vec<Subset>,
    /// The whole's log-likelihood on the tree.
    pub lnl: f64,
    /// Free parameters: the models', a factor for each subset but one, the branches.
    pub parameters: usize,
    /// Columns of all.
    pub sites: usize,
    /// Score of the scheme with each part by itself, and of this one.
    pub score_before: f64,
    /// As above.
    pub score: f64,
}

impl Subset {
    /// The names of its parts.
    #[must_use]
    pub fn name(&self, parts: &[Part]) -> String {
        let names = self.parts.iter().map(|&at| parts[at].name.as_str());
        names.collect::<Vec<_>>().join("_")
    }
}

impl Scheme {
    /// The scheme in figures; `criterion` is the one of the scores.
    #[must_use]
    pub fn summary(&self, parts: &[Part], criterion: Criterion) -> SchemeSummary {
        let subset = |subset: &Subset| SubsetSummary {
            name: subset.name(parts),
            sites: subset.sites.len(),
            model: subset.selection.best().name.clone(),
            lnl: subset.selection.best().lnl,
        };
        SchemeSummary {
            criterion: criterion.name(),
            lnl: self.lnl,
            parameters: self.parameters,
            sites: self.sites,
            score: self.score,
            score_before: self.score_before,
            subsets: self.subsets.iter().map(subset).collect(),
        }
    }

    /// As a file of partitions: lengths scaled where there are several.
    #[must_use]
    pub fn to_lines(&self, parts: &[Part]) -> String {
        let scaler = if self.subsets.len() > 1 { "+B" } else { "" };
        let line = |subset: &Subset| {
            // The models were chosen with lengths scaled, and are to be used so.
            let model = format!("{}{scaler}", subset.selection.best().name);
            partitions::line(&model, &subset.name(parts), &subset.sites) + "\n"
        };
        self.subsets.iter().map(line).collect()
    }
}

/// A scheme in figures.
#[derive(Debug, Clone, serde::Serialize)]
pub struct SchemeSummary {
    /// The criterion's name.
    pub criterion: &'static str,
    /// As [`Scheme::lnl`].
    pub lnl: f64,
    /// As [`Scheme::parameters`].
    pub parameters: usize,
    /// As [`Scheme::sites`].
    pub sites: usize,
    /// As [`Scheme::score`].
    pub score: f64,
    /// As [`Scheme::score_before`].
    pub score_before: f64,
    /// The subsets, in order.
    pub subsets: Vec<SubsetSummary>,
}

/// A subset in figures.
#[derive(Debug, Clone, serde::Serialize)]
pub struct SubsetSummary {
    /// The names of its parts.
    pub name: String,
    /// Number of columns.
    pub sites: usize,
    /// The best model's name.
    pub model: String,
    /// Its log-likelihood.
    pub lnl: f64,
}

/// Progress of a choice.
#[derive(Debug)]
pub enum Step<'f> {
    /// A candidate was fitted for a part or a subset.
    Fit(&'f Fit),
    /// Pairs tried, of this many pairs.
    Pairs(usize, usize),
}

/// Chooses models for the parts of an alignment; with `merge`, for as few subsets of them as score
/// best. `tree` has any lengths. Blocks.
///
/// # Errors
/// [`SelectionError`].
///
/// # Panics
/// When there is no part.
pub fn select_partitions<R: Runner + Clone>(
    tree: &Tree,
    alignment: &Alignment,
    parts: &[Part],
    merge: bool,
    options: &Options,
    runner: R,
    mut progress: impl FnMut(Step<'_>),
) -> Result<Scheme, SelectionError> {
    assert!(!parts.is_empty(), "no part");
    let mut choice = Choice {
        tree: tree.clone(),
        alignment,
        options: *options,
        runner,
        subsets: Vec::new(),
    };
    // One tree with fixed relative lengths for all choices, so that scores are comparable.
    choice.fit_lengths(parts)?;
    for (number, part) in parts.iter().enumerate() {
        let selection = choice.select(part.alphabet, &part.sites, &mut progress)?;
        choice.subsets.push(Subset {
            parts: vec![number],
            sites: part.sites.clone(),
            selection,
        });
    }
    let before = choice.score(&choice.subsets);
    if merge {
        choice.merge(parts, &mut progress)?;
    }
    let (lnl, parameters) = choice.sums(&choice.subsets);
    Ok(Scheme {
        lnl,
        parameters,
        sites: choice.sites(),
        score_before: before,
        score: choice.score(&choice.subsets),
        subsets: choice.subsets,
    })
}

struct Choice<'a, R> {
    tree: Tree,
    alignment: &'a Alignment,
    options: Options,
    runner: R,
    subsets: Vec<Subset>,
}

impl<R: Runner + Clone> Choice<'_, R> {
    /// The lengths of one tree for all parts, under each one's most general usual model.
    fn fit_lengths(&mut self, parts: &[Part]) -> Result<(), SelectionError> {
        let mut options = Vec::new();
        for part in parts {
            let patterns = self.patterns(part.alphabet, &part.sites)?;
            let candidates = super::candidates::all(part.alphabet);
            let first = candidates
                .first()
                .ok_or_else(|| SelectionError::NoCandidates {
                    alphabet: part.alphabet.to_string(),
                })?;
            let name = first.with(super::candidates::Rates::Gamma).name();
            options.push(PartOptions::new(name, patterns));
        }
        let tree = self.tree.clone();
        let settings = likelihood::Options::default();
        let runner = self.runner.clone();
        let mut likelihood = Likelihood::partitioned(tree, options, runner, settings)?;
        // Parts share relative lengths, with a scale for each.
        likelihood.set_lengths(Lengths::Scaled);
        likelihood.optimise(LENGTHS_EPSILON)?;
        self.tree = likelihood.tree().clone();
        Ok(())
    }

    fn patterns(&self, alphabet: Alphabet, sites: &[u32]) -> Result<Patterns, SelectionError> {
        Ok(Patterns::of_sites(
            self.alignment,
            alphabet,
            sites.to_vec(),
        )?)
    }

    fn select(
        &self,
        alphabet: Alphabet,
        sites: &[u32],
        progress: &mut impl FnMut(Step<'_>),
    ) -> Result<Selection, SelectionError> {
        let patterns = self.patterns(alphabet, sites)?;
        let fitter = Fitter::new(self.tree.clone(), &patterns, self.runner.clone(), true);
        // A part is scored by its contribution to the whole, so the penalty is that of the whole.
        let fitter = fitter.with_sites(self.sites_of(sites.len()));
        Search::new(fitter, &self.options, |fit| progress(Step::Fit(fit)))?.run()
    }

    /// Number of columns for a part's score: all, where they are known.
    fn sites_of(&self, own: usize) -> usize {
        match self.options.criterion {
            Criterion::Bic => self.alignment.sites(),
            // AICc's correction for few sites uses the part's own number.
            Criterion::Aicc | Criterion::Aic => own,
        }
    }

    fn sites(&self) -> usize {
        self.subsets.iter().map(|subset| subset.sites.len()).sum()
    }

    /// Log-likelihood and parameters of a scheme.
    fn sums(&self, subsets: &[Subset]) -> (f64, usize) {
        let best = || subsets.iter().map(|subset| subset.selection.best());
        // Each subset has a factor, and one of them is absorbed by the lengths.
        let parameters: usize = best().map(|fit| fit.parameters).sum();
        let lnl = best().map(|fit| fit.lnl).sum();
        (lnl, parameters + self.tree.edges().count() - 1)
    }

    fn score(&self, subsets: &[Subset]) -> f64 {
        let (lnl, parameters) = self.sums(subsets);
        self.options.criterion.score(lnl, parameters, self.sites())
    }

    fn merge(
        &mut self,
        parts: &[Part],
        progress: &mut impl FnMut(Step<'_>),
    ) -> Result<(), SelectionError> {
        // Merged subsets that were fitted, by the numbers of their parts.
        let mut tried: Vec<(Vec<usize>, Subset)> = Vec::new();
        loop {
            let (count, mut done) = (self.subsets.len(), 0);
            let before = self.score(&self.subsets);
            let mut best: Option<(f64, usize, usize, Subset)> = None;
            for b in 1..count {
                for a in 0..b {
                    done += 1;
                    progress(Step::Pairs(done, count * (count - 1) / 2));
                    let [one, other] = [a, b].map(|at| &self.subsets[at]);
                    let [x, y] = [one, other].map(|subset| parts[subset.parts[0]].alphabet);
                    // One model needs one alphabet.
                    if x != y {
                        continue;
                    }
                    let mut members = [&one.parts[..], &other.parts].concat();
                    members.sort_unstable();
                    // A merge leaves most pairs as they were: these are not fitted again.
                    let known = tried.iter().position(|(parts, _)| *parts == members);
                    let joined = match known {
                        Some(at) => tried[at].1.clone(),
                        None => {
                            let joined = self.joined(x, one, other, members.clone())?;
                            tried.push((members, joined.clone()));
                            joined
                        }
                    };
                    let mut subsets = self.subsets.clone();
                    subsets[a] = joined.clone();
                    subsets.remove(b);
                    let score = self.score(&subsets);
                    if score < best.as_ref().map_or(before, |best| best.0) {
                        best = Some((score, a, b, joined));
                    }
                }
            }
            let Some((_, a, b, joined)) = best else { break };
            self.subsets[a] = joined;
            self.subsets.remove(b);
        }
        // Merged subsets were tried with their members' models only; now all candidates are.
        for at in 0..self.subsets.len() {
            let subset = &self.subsets[at];
            if subset.parts.len() > 1 {
                let alphabet = parts[subset.parts[0]].alphabet;
                let selection = self.select(alphabet, &subset.sites, progress)?;
                let criterion = self.options.criterion;
                if selection.best().score(criterion) < subset.selection.best().score(criterion) {
                    self.subsets[at].selection = selection;
                }
            }
        }
        Ok(())
    }

    /// Two subsets as one, with the better of their models.
    fn joined(
        &self,
        alphabet: Alphabet,
        one: &Subset,
        other: &Subset,
        parts: Vec<usize>,
    ) -> Result<Subset, SelectionError> {
        let mut sites = [&one.sites[..], &other.sites].concat();
        sites.sort_unstable();
        let patterns = self.patterns(alphabet, &sites)?;
        let fitter = Fitter::new(self.tree.clone(), &patterns, self.runner.clone(), true);
        let mut fitter = fitter.with_sites(self.sites_of(sites.len()));
        let mut fits: Vec<Fit> = Vec::new();
        for start in [one, other].map(|subset| subset.selection.best()) {
            if fits.iter().all(|fit| fit.candidate != start.candidate) {
                // The factor of a subset's own lengths does not fit the merged subset.
                let mut start = start.clone();
                start.tree.clone_from(&self.tree);
                fits.push(fitter.fit(&start.candidate, Some(&start), super::EPSILON)?);
            }
        }
        let criterion = self.options.criterion;
        fits.sort_by(|a, b| a.score(criterion).total_cmp(&b.score(criterion)));
        Ok(Subset {
            parts,
            sites,
            selection: Selection { fits, excluded: 0 },
        })
    }
}

/// Gain in log-likelihood below which the fit of the lengths of all parts ends.
const LENGTHS_EPSILON: f64 = 0.5;
