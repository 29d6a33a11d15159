//! Models for the parts of an alignment, and the merging of parts.
//!
//! The parts' lengths are those of one tree, each part's times a factor of its own. So each part's
//! model can be chosen by itself on a tree whose lengths were fitted to all of them. Two parts are
//! merged if one model for both improves the score of the whole: always the pair that gains most,
//! until none gains (PartitionFinder's greedy scheme). A pair is tried with the models of both its
//! members; the final subsets are tried with all candidates again. Relaxed clustering tries only
//! the pairs that are most alike in rate and in the spread of rates across sites; its fast form
//! merges all pairs that gain in a round, each subset once.
//! Sources: Lanfear, Calcott, Ho and Guindon, Molecular Biology and Evolution 29 (2012), 1695-1701;
//! Lanfear, Calcott, Kainer, Mayer and Stamatakis, BMC Evolutionary Biology 14 (2014), 82, and
//! Lanfear and others, Molecular Biology and Evolution 34 (2017), 772-773, for relaxed clustering.

use super::fits::Fitter;
use super::{Criterion, Fit, Options, Search, Selection, SelectionError};
use crate::io::partitions;
use crate::likelihood::{self, Lengths, Likelihood, PartOptions};
use crate::msa::{Alignment, Alphabet, Patterns};
use crate::runner::Runner;
use crate::tree::Tree;
use std::cmp::Ordering;
use std::collections::HashMap;

/// The scheme by which parts are merged.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Merge {
    /// None: each part keeps its own model.
    #[default]
    None,
    /// Every pair is tried; the one that gains most is merged.
    Greedy,
    /// Only pairs that are alike are tried.
    Relaxed(Relaxed),
}

/// Relaxed clustering.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Relaxed {
    /// Share of the pairs that is tried in a round, in percent.
    pub percent: f64,
    /// The most pairs that are tried in a round; unless given, 1,000 or ten for each part, the
    /// larger of these.
    pub pairs_max: Option<usize>,
    /// True if a round merges all pairs that gain, the best first and each subset once; else the
    /// best pair alone (rclusterf and rcluster).
    pub is_fast: bool,
}

impl Relaxed {
    /// Pairs to try, of `pairs`: one at least.
    fn count(self, pairs: usize, parts: usize) -> usize {
        let most = self
            .pairs_max
            .unwrap_or_else(|| PAIRS_MAX.max(PAIRS_OF_PART.saturating_mul(parts)));
        // Counted up instead of cast down: a share of the pairs has no exact integer.
        let wanted = pairs as f64 * self.percent / 100.0;
        let share = (1..=pairs.min(most)).take_while(|&count| count as f64 <= wanted + 0.5);
        share.count().max(1)
    }
}

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
pub(crate) struct Subset {
    /// Numbers of the parts.
    pub parts: Vec<usize>,
    /// Its columns, from 0: in ascending order, or of codons three by three.
    pub sites: Vec<u32>,
    /// Models fitted for it.
    pub selection: Selection,
}

/// A scheme: subsets of an alignment, with their models.
#[derive(Debug, Clone)]
pub struct Scheme {
    /// In the order of their first parts.
    pub(crate) subsets: Vec<Subset>,
    /// The whole's log-likelihood on the tree.
    pub lnl: f64,
    /// Free parameters: the models', a factor for each subset but one, the branches.
    pub parameters: usize,
    /// Columns of all; the criteria count a codon's three as one site.
    pub sites: usize,
    /// Score of the scheme with each part by itself, and of this one.
    pub score_before: f64,
    /// As above.
    pub score: f64,
}

impl Subset {
    /// The names of its parts.
    #[must_use]
    pub(crate) fn name(&self, parts: &[Part]) -> String {
        let names = self.parts.iter().map(|&at| parts[at].name.as_str());
        names.collect::<Vec<_>>().join("_")
    }

    /// Measures of likeness: the logarithm of the rate, and the standard deviation of the rates
    /// across sites, whose mean is 1.
    fn measures(&self) -> [f64; 2] {
        let fit = self.selection.best();
        let length = fit.tree.total_length().max(f64::MIN_POSITIVE);
        let process = fit.model.process();
        let rates = process.rates.iter().zip(&process.weights);
        let square: f64 = rates.map(|(rate, weight)| weight * rate * rate).sum();
        [libm::log(length), libm::sqrt((square - 1.0).max(0.0))]
    }
}

/// A merge of two subsets that gains.
struct Merger {
    /// The whole's score after it.
    score: f64,
    /// Numbers of the two, the smaller first.
    pair: [usize; 2],
    /// The two as one.
    joined: Subset,
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
    pub(super) subsets: Vec<SubsetSummary>,
}

/// A subset in figures.
#[derive(Debug, Clone, serde::Serialize)]
pub(super) struct SubsetSummary {
    /// The names of its parts.
    pub(super) name: String,
    /// Number of columns.
    pub(super) sites: usize,
    /// The best model's name.
    pub(super) model: String,
    /// Its log-likelihood.
    pub(super) lnl: f64,
}

/// Progress of a choice.
#[derive(Debug)]
pub enum Step<'f> {
    /// A candidate was fitted for a part or a subset.
    Fit(&'f Fit),
    /// Pairs tried, of this many pairs.
    Pairs(usize, usize),
}

/// Chooses models for the parts of an alignment, or for the subsets of them that score best by the
/// scheme `merge`. `tree` has any lengths. Blocks.
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
    merge: Merge,
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
        counted: parts
            .iter()
            .map(|part| counted(part.alphabet, &part.sites))
            .sum(),
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
    if merge != Merge::None {
        choice.merge(parts, merge, &mut progress)?;
    }
    let (lnl, parameters) = choice.sums(&choice.subsets);
    Ok(Scheme {
        lnl,
        parameters,
        sites: parts.iter().map(|part| part.sites.len()).sum(),
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
    /// Sites of the whole, for the criteria.
    counted: usize,
    subsets: Vec<Subset>,
}

impl<R: Runner + Clone> Choice<'_, R> {
    /// The lengths of one tree for all parts, under each one's most general usual model.
    fn fit_lengths(&mut self, parts: &[Part]) -> Result<(), SelectionError> {
        let mut options = Vec::new();
        for part in parts {
            let patterns = self.patterns(part.alphabet, &part.sites)?;
            let candidates = super::candidates::of(&patterns);
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
        let fitter = fitter.with_sites(self.sites_of(alphabet, sites));
        Search::new(fitter, &self.options, |fit| progress(Step::Fit(fit)))?.run()
    }

    /// Number of sites for a part's score. BIC's is that of the whole: then a model that scores
    /// better for a part does so for the whole.
    fn sites_of(&self, alphabet: Alphabet, own: &[u32]) -> usize {
        match self.options.criterion {
            Criterion::Bic => self.counted,
            // AICc's correction for few sites uses the part's own number.
            Criterion::Aicc | Criterion::Aic => counted(alphabet, own),
        }
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
        self.score_of(self.sums(subsets))
    }

    fn merge(
        &mut self,
        parts: &[Part],
        scheme: Merge,
        progress: &mut impl FnMut(Step<'_>),
    ) -> Result<(), SelectionError> {
        // By the numbers of their parts, the merged subsets that were fitted; none where the merge
        // did not gain. It never will: fewer parameters of the whole make a saved one worth less.
        let mut tried: HashMap<Vec<usize>, Option<Subset>> = HashMap::new();
        loop {
            let pairs = self.pairs(parts, scheme);
            let sums = self.sums(&self.subsets);
            let mut better: Vec<Merger> = Vec::new();
            for (done, &pair) in pairs.iter().enumerate() {
                progress(Step::Pairs(done + 1, pairs.len()));
                let [one, other] = pair.map(|at| &self.subsets[at]);
                let mut members = [&one.parts[..], &other.parts].concat();
                members.sort_unstable();
                // A merge leaves most pairs as they were: these are not fitted again.
                let joined = match tried.get(&members) {
                    Some(None) => continue,
                    Some(Some(known)) => known.clone(),
                    None => {
                        let alphabet = parts[one.parts[0]].alphabet;
                        self.joined(alphabet, one, other, members.clone())?
                    }
                };
                let next = self.merged(sums, pair, &joined);
                let gains = self.is_better(next, sums);
                tried.insert(members, gains.then(|| joined.clone()));
                if gains {
                    better.push(Merger {
                        score: self.score_of(next),
                        pair,
                        joined,
                    });
                }
            }
            if better.is_empty() {
                break;
            }
            // Stable: of equal scores the pair that was tried first.
            better.sort_by(|a, b| a.score.total_cmp(&b.score));
            if !matches!(scheme, Merge::Relaxed(Relaxed { is_fast: true, .. })) {
                better.truncate(1);
            }
            self.take(better, sums);
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

    /// Merges pairs, the best first, as long as each improves the score; a subset once.
    fn take(&mut self, better: Vec<Merger>, mut sums: (f64, usize)) {
        let (mut changed, mut gone) = (vec![false; self.subsets.len()], Vec::new());
        for Merger { pair, joined, .. } in better {
            if pair.iter().any(|&at| changed[at]) {
                continue;
            }
            let next = self.merged(sums, pair, &joined);
            // By AICc a saved parameter is worth less once others are saved.
            if !self.is_better(next, sums) {
                continue;
            }
            sums = next;
            pair.iter().for_each(|&at| changed[at] = true);
            self.subsets[pair[0]] = joined;
            gone.push(pair[1]);
        }
        let mut at = 0;
        self.subsets.retain(|_| {
            at += 1;
            !gone.contains(&(at - 1))
        });
    }

    /// Log-likelihood and parameters of the scheme after a merge, from those before it.
    fn merged(
        &self,
        (lnl, parameters): (f64, usize),
        pair: [usize; 2],
        joined: &Subset,
    ) -> (f64, usize) {
        let [one, other] = pair.map(|at| self.subsets[at].selection.best());
        let own = joined.selection.best();
        (
            lnl - one.lnl - other.lnl + own.lnl,
            parameters + own.parameters - one.parameters - other.parameters,
        )
    }

    fn score_of(&self, (lnl, parameters): (f64, usize)) -> f64 {
        self.options.criterion.score(lnl, parameters, self.counted)
    }

    /// True if a scheme scores better than another, by their sums. Of two with too few sites for
    /// AICc, which is infinite then, the one of fewer parameters is nearer to having enough.
    fn is_better(&self, one: (f64, usize), other: (f64, usize)) -> bool {
        let [own, its] = [one, other].map(|sums| self.score_of(sums));
        let is_open = own == f64::INFINITY && its == f64::INFINITY;
        own < its || is_open && one.1 < other.1
    }

    /// The pairs of subsets to try: all that may share a model, or the most alike of these.
    fn pairs(&self, parts: &[Part], scheme: Merge) -> Vec<[usize; 2]> {
        // One model needs one alphabet, and is corrected for ascertainment for all or for none.
        let kind = |at: usize| {
            let subset: &Subset = &self.subsets[at];
            let is_corrected = subset.selection.best().candidate.is_corrected();
            (parts[subset.parts[0]].alphabet, is_corrected)
        };
        let all = (1..self.subsets.len()).flat_map(|b| (0..b).map(move |a| [a, b]));
        let mut pairs: Vec<[usize; 2]> = all.filter(|&[a, b]| kind(a) == kind(b)).collect();
        let Merge::Relaxed(relaxed) = scheme else {
            return pairs;
        };
        let measures: Vec<[f64; 2]> = self.subsets.iter().map(Subset::measures).collect();
        let distance = |pair: &[usize; 2]| -> f64 {
            let [one, other] = pair.map(|at| measures[at]);
            let squares = one.iter().zip(&other).map(|(x, y)| (x - y) * (x - y));
            squares.sum()
        };
        let order = |x: &[usize; 2], y: &[usize; 2]| -> Ordering {
            distance(x).total_cmp(&distance(y)).then_with(|| x.cmp(y))
        };
        let wanted = relaxed.count(pairs.len(), parts.len());
        // Of a million pairs a few thousand are wanted: the others are not sorted.
        if wanted < pairs.len() {
            pairs.select_nth_unstable_by(wanted, order);
            pairs.truncate(wanted);
        }
        pairs.sort_unstable_by(order);
        pairs
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
        // Codons may lie apart, with others' columns between theirs: their three stay together.
        if alphabet.width() == 1 {
            sites.sort_unstable();
        }
        let patterns = self.patterns(alphabet, &sites)?;
        let fitter = Fitter::new(self.tree.clone(), &patterns, self.runner.clone(), true);
        let mut fitter = fitter.with_sites(self.sites_of(alphabet, &sites));
        let mut fits: Vec<Fit> = Vec::new();
        for start in [one, other].map(|subset| subset.selection.best()) {
            if fits.iter().all(|fit| fit.candidate != start.candidate) {
                // The factor of a subset's own lengths does not fit the merged subset.
                let mut start = start.clone();
                start.tree.clone_from(&self.tree);
                fits.push(fitter.fit(&start.candidate, Some(&start), super::EPSILON)?);
            }
        }
        super::sort(&mut fits, self.options.criterion);
        Ok(Subset {
            parts,
            sites,
            selection: Selection { fits, excluded: 0 },
        })
    }
}

/// Sites that columns are, for the criteria: a codon is one, of three.
fn counted(alphabet: Alphabet, columns: &[u32]) -> usize {
    columns.len() / alphabet.width()
}

/// Gain in log-likelihood below which the fit of the lengths of all parts ends.
const LENGTHS_EPSILON: f64 = 0.5;
/// The most pairs of a round of relaxed clustering: in all, and for each part where these are more.
const PAIRS_MAX: usize = 1_000;
const PAIRS_OF_PART: usize = 10;
