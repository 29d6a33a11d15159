//! One candidate's fit, which starts from a similar one's.
//!
//! Must stay true: models with the same number of rate categories share one likelihood, so that
//! site repeats and memory, which do not depend on parameters, are made once.

use super::candidates::Candidate;
use super::{Criterion, Fit};
use crate::likelihood::{Likelihood, LikelihoodError, Options, PartOptions};
use crate::model::{ExchangeName, FrequencyName, InvariantName, Model, Parameter, RatesName};
use crate::msa::Patterns;
use crate::runner::Runner;
use crate::tree::Tree;
use std::collections::HashMap;

/// Free parameters of a model: exchangeabilities and rates that are fitted, and frequencies that
/// are fitted or counted.
#[must_use]
pub(super) fn free_parameters(model: &Model) -> usize {
    let mut count = 0;
    for parameter in model.fitted() {
        count += match parameter {
            // Counted below: some of these depend on others.
            Parameter::Frequency(_)
            | Parameter::FreeRate(_)
            | Parameter::FreeWeight(_)
            | Parameter::OfClass { .. }
            | Parameter::ClassWeight(_) => 0,
            _ => 1,
        };
    }
    count += model.free_of_classes();
    let name = model.name();
    if let RatesName::Free {
        categories,
        given: None,
    } = name.rates
    {
        // Weights sum to 1, and the mean rate is 1: each takes one value away.
        count += 2 * (categories - 1);
    }
    if name.invariant == InvariantName::Empirical {
        count += 1;
    }
    if matches!(
        name.frequencies,
        FrequencyName::Empirical | FrequencyName::Fitted
    ) {
        // Frequencies sum to 1, so the last one is no parameter.
        count += name.alphabet().states() - 1;
    }
    if let FrequencyName::Bases {
        by_position,
        given: None,
    } = name.frequencies
    {
        // Three shares of four bases are free, at each position or at all.
        count += if by_position { 9 } else { 3 };
    }
    count
}

/// Fits candidates on one tree.
pub(super) struct Fitter<'p, R> {
    tree: Tree,
    patterns: &'p Patterns,
    runner: R,
    /// True if the tree's lengths are fixed but for one factor.
    proportional: bool,
    sites: usize,
    likelihoods: HashMap<usize, Likelihood<R>>,
}

impl<'p, R: Runner + Clone> Fitter<'p, R> {
    pub(super) fn new(tree: Tree, patterns: &'p Patterns, runner: R, proportional: bool) -> Self {
        Self {
            tree,
            patterns,
            runner,
            proportional,
            // A codon is one site, of three columns.
            sites: patterns.alignment_sites().len() / patterns.alphabet().width(),
            likelihoods: HashMap::new(),
        }
    }

    /// Penalises parameters as for `sites` columns.
    pub(super) fn with_sites(self, sites: usize) -> Self {
        Self { sites, ..self }
    }

    pub(super) fn patterns(&self) -> &Patterns {
        self.patterns
    }

    /// Columns of the alignment.
    pub(super) fn sites(&self) -> usize {
        self.sites
    }

    pub(super) fn parameters(&self, candidate: &Candidate) -> usize {
        let lengths = match self.proportional {
            true => 1,
            false => self.tree.edges().count(),
        };
        lengths + free_parameters(&Model::new(candidate.name(), self.patterns))
    }

    /// A candidate's likelihood, with everything else as in a fit of the same rates.
    pub(super) fn look(
        &mut self,
        candidate: &Candidate,
        start: &Fit,
    ) -> Result<Fit, LikelihoodError> {
        let likelihood = self.prepared(candidate, Some(start))?;
        // Nothing is kept: the next matrix makes all CLVs invalid.
        let lnl = likelihood.evaluate_once()?;
        Ok(self.made(candidate, lnl))
    }

    pub(super) fn fit(
        &mut self,
        candidate: &Candidate,
        start: Option<&Fit>,
        epsilon: f64,
    ) -> Result<Fit, LikelihoodError> {
        let proportional = self.proportional;
        let likelihood = self.prepared(candidate, start)?;
        let lnl = match proportional {
            true => likelihood.optimise_models(epsilon)?,
            false => likelihood.optimise_onward(epsilon)?,
        };
        Ok(self.made(candidate, lnl))
    }

    /// The likelihood for a candidate's number of categories, with its model at the start.
    fn prepared(
        &mut self,
        candidate: &Candidate,
        start: Option<&Fit>,
    ) -> Result<&mut Likelihood<R>, LikelihoodError> {
        let mut model = Model::new(candidate.name(), self.patterns);
        let mut tree = &self.tree;
        if let Some(start) = start {
            carry_over(&start.model, &mut model);
            tree = &start.tree;
        }
        let categories = model.process().shape.rates;
        // A mixture's CLVs may take most of the memory: they are not kept next to another's.
        if categories > LARGE {
            self.likelihoods.retain(|&own, _| own == categories);
        }
        // Categories determine the size of the CLVs: candidates with equal numbers share the
        // memory.
        if !self.likelihoods.contains_key(&categories) {
            let part = PartOptions {
                patterns: self.patterns.clone(),
                model: model.clone(),
                scale: 1.0,
            };
            let made = Likelihood::partitioned(
                tree.clone(),
                vec![part],
                self.runner.clone(),
                Options::default(),
            )?;
            self.likelihoods.insert(categories, made);
        }
        let likelihood = self.likelihoods.get_mut(&categories);
        let likelihood = likelihood.unwrap_or_else(|| panic!("made for {categories} categories"));
        // The candidate before this one has left its own lengths.
        likelihood.set_tree(tree.clone());
        likelihood.set_model(0, model);
        Ok(likelihood)
    }

    /// The present fit of the likelihood for a candidate's number of categories.
    fn made(&self, candidate: &Candidate, lnl: f64) -> Fit {
        let model = Model::new(candidate.name(), self.patterns);
        let likelihood = &self.likelihoods[&model.process().shape.rates];
        let parameters = self.parameters(candidate);
        let score = |criterion: Criterion| criterion.score(lnl, parameters, self.sites);
        Fit {
            name: candidate.text(),
            lnl,
            parameters,
            bic: score(Criterion::Bic),
            aicc: score(Criterion::Aicc),
            aic: score(Criterion::Aic),
            model: likelihood.parts()[0].model().clone(),
            candidate: candidate.clone(),
            tree: likelihood.tree().clone(),
        }
    }
}

fn categories(model: &Model) -> usize {
    match &model.name().rates {
        RatesName::Uniform => 1,
        RatesName::Gamma { categories, .. } | RatesName::Free { categories, .. } => *categories,
    }
}

/// Copies the values of parameters that both models have.
fn carry_over(from: &Model, to: &mut Model) {
    let has = from.fitted();
    for parameter in to.fitted() {
        // Rates of free-rate models mean the same only with the same number of categories.
        let same = match parameter {
            Parameter::Alpha | Parameter::Invariant => has.contains(&parameter),
            Parameter::FreeRate(_) | Parameter::FreeWeight(_) => {
                categories(from) == categories(to) && has.contains(&parameter)
            }
            _ => false,
        };
        if same {
            to.set(parameter, from.value(parameter));
        }
    }
    let classes = |model: &Model| match &model.name().exchange {
        ExchangeName::Classes { classes, .. } => Some(classes.clone()),
        _ => None,
    };
    if let (Some(old), Some(new)) = (classes(from), classes(to)) {
        // A class's rate: the mean of what its members had, relative to the last class.
        let value = |at: usize| from.value(Parameter::Exchange(usize::from(old[at])));
        let mean = |class: u16| {
            let members: Vec<f64> = (0..new.len())
                .filter(|&at| new[at] == class)
                .map(value)
                .collect();
            members.iter().sum::<f64>() / members.len() as f64
        };
        let last = new.iter().copied().max().unwrap_or(0);
        for class in 0..last {
            to.set(Parameter::Exchange(class.into()), mean(class) / mean(last));
        }
    }
}

/// Categories of rates, those of all classes, of a large likelihood.
const LARGE: usize = 32;
