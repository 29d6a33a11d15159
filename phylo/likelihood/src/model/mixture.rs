//! Mixtures: classes of sites, each with a rate matrix, frequencies, a rate and a weight.
//!
//! A class is a [`Model`] without rates across sites. The mixture's own rates across sites multiply
//! the classes: a category of the process is one class at one rate. A *fused* mixture has one
//! category a class instead, as LG4X has.
//! Must stay true: the classes' rates, weighted, have mean 1, whatever the weights.
//! Sources: Le, Gascuel and Lartillot, "Empirical profile mixture models for phylogenetic
//! reconstruction", Bioinformatics 24 (2008), 2317-2323 (C10 to C60); Wang, Li, Susko and Roger, "A
//! class frequency mixture model that adjusts for site-specific amino acid frequencies", BMC
//! Evolutionary Biology 8 (2008), 331 (the added class of counted frequencies). Names and weights
//! as in IQ-TREE.

use super::process::Spectrum;
use super::{
    ExchangeName, FrequencyName, MixtureName, Model, ModelName, Parameter, Process, RatesName,
};
use std::sync::Arc;

/// The values of a mixture's classes; empty of other models.
#[derive(Debug, Clone, Default)]
pub(super) struct Classes {
    pub(super) models: Vec<Model>,
    pub(super) weights: Vec<f64>,
}

impl Classes {
    /// Makes each class's model with `make`.
    pub(super) fn new(name: &ModelName, make: impl Fn(ModelName) -> Model) -> Self {
        let ExchangeName::Mix(mixture) = &name.exchange else {
            return Self::default();
        };
        let classes = mixture.classes.iter();
        Self {
            models: classes.clone().map(|own| make(own.name.clone())).collect(),
            weights: classes.map(|own| own.weight).collect(),
        }
    }
}

impl Model {
    /// The classes' names, if it is a mixture.
    #[must_use]
    pub fn mixture(&self) -> Option<&MixtureName> {
        match &self.name.exchange {
            ExchangeName::Mix(mixture) => Some(mixture),
            _ => None,
        }
    }

    /// The classes' weights; empty if it is no mixture of [`MixtureName`].
    #[must_use]
    pub fn class_weights(&self) -> &[f64] {
        &self.classes.weights
    }

    /// The classes' frequencies, in order; empty if it is no mixture of [`MixtureName`].
    #[must_use]
    pub fn class_frequencies(&self) -> Vec<&[f64]> {
        let own = self.classes.models.iter();
        own.map(|model| &model.frequencies[..]).collect()
    }

    /// Sets the classes' weights, which are made to sum to 1.
    ///
    /// # Panics
    /// When they are not as many as the classes.
    pub(crate) fn set_class_weights(&mut self, weights: &[f64]) {
        assert_eq!(weights.len(), self.classes.weights.len(), "weights");
        let sum: f64 = weights.iter().sum();
        let own = self.classes.weights.iter_mut().zip(weights);
        own.for_each(|(own, weight)| *own = weight / sum);
    }

    /// True if there are too many weights for a search along the slope: expectation maximisation
    /// alone fits them.
    #[must_use]
    pub(crate) fn fits_many_weights(&self) -> bool {
        self.fits_weights() && self.classes.weights.len() > CLIMBED_MAX
    }

    /// The mean of the classes' rates before it is made 1; 1 of other models.
    #[must_use]
    pub(crate) fn mean_class_rate(&self) -> f64 {
        let classes = self.mixture().map(|mixture| mixture.classes.iter());
        let each = classes.map(|own| own.zip(&self.classes.weights));
        each.map_or(1.0, |own| {
            own.map(|(class, weight)| class.rate * weight).sum()
        })
    }

    /// True if the weights are among the parameters that are fitted.
    #[must_use]
    pub(crate) fn fits_weights(&self) -> bool {
        let mixture = self.mixture();
        // A single class has weight 1; a fused mixture's weights are those of its rates.
        mixture.is_some_and(|own| own.fits_weights && !own.fused && own.classes.len() > 1)
    }

    /// Number of values of the classes that the data set: parameters that are fitted, frequencies
    /// that are fitted or counted, and weights.
    #[must_use]
    pub fn free_of_classes(&self) -> usize {
        let states = self.alphabet().states();
        let of_class = |own: &Self| {
            let rates = own.fitted();
            let rates = rates
                .iter()
                .filter(|one| matches!(one, Parameter::Exchange(_)));
            let counted = matches!(
                own.name.frequencies,
                FrequencyName::Empirical | FrequencyName::Fitted
            );
            rates.count() + if counted { states - 1 } else { 0 }
        };
        let weights = match self.fits_weights() {
            true => self.classes.weights.len() - 1,
            false => 0,
        };
        self.classes.models.iter().map(of_class).sum::<usize>() + weights
    }

    /// The parameters of the classes, then their weights.
    pub(super) fn fitted_of_classes(&self, fitted: &mut Vec<Parameter>) {
        for (class, own) in self.classes.models.iter().enumerate() {
            let count = own.fitted().len();
            fitted.extend((0..count).map(|at| Parameter::OfClass { class, at }));
        }
        if self.fits_weights() {
            let weights = 0..self.classes.weights.len();
            fitted.extend(weights.map(Parameter::ClassWeight));
        }
    }

    /// The mixture's process, from the rates across sites and their weights.
    pub(super) fn mixture_process(
        &self,
        mixture: &MixtureName,
        rates: &[f64],
        weights: &[f64],
    ) -> Process {
        let spectra: Vec<_> = self.classes.models.iter().map(Model::spectrum).collect();
        let spectra: Vec<&Spectrum> = spectra.iter().map(|own| &**own).collect();
        if mixture.fused {
            return Process::of_spectra(&spectra, rates, weights, self.invariant);
        }
        let own = mixture.classes.iter().zip(&self.classes.weights);
        let mean = self.mean_class_rate();
        let (mut all_rates, mut all_weights) = (Vec::new(), Vec::new());
        for (class, class_weight) in own {
            let scale = class.rate / mean;
            all_rates.extend(rates.iter().map(|rate| rate * scale));
            all_weights.extend(weights.iter().map(|weight| weight * class_weight));
        }
        Process::of_spectra(&spectra, &all_rates, &all_weights, self.invariant)
    }

    /// The eigenvectors of a class's matrix. Where nothing of it is fitted they are made once: a
    /// fit of sixty classes' rates would else spend its time on them.
    fn spectrum(&self) -> Arc<Spectrum> {
        let make = || {
            let exchange = self.name.exchange.expand(&self.exchange);
            Arc::new(Spectrum::new(&exchange, &self.frequencies))
        };
        match self.fitted().is_empty() {
            true => self.spectrum.get_or_init(make).clone(),
            false => make(),
        }
    }

    /// Writes a mixture's classes so that they can be parsed again.
    pub(super) fn write_classes(
        &self,
        mixture: &MixtureName,
        f: &mut std::fmt::Formatter<'_>,
    ) -> std::fmt::Result {
        if mixture.is_fixed() {
            return write!(f, "{}", mixture.label);
        }
        write!(f, "MIX{{")?;
        for (at, class) in mixture.classes.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(f, "{comma}{}", self.classes.models[at])?;
            // The weights of a fused mixture are printed with its rates.
            if !mixture.fused {
                write!(f, ":{}:{:.8}", class.rate, self.classes.weights[at])?;
            }
        }
        write!(f, "}}")
    }

    /// The sign before the rates across sites: a fused mixture's is a star.
    pub(super) fn rates_sign(&self) -> char {
        match self.mixture().is_some_and(|mixture| mixture.fused) && !self.is_uniform() {
            true => '*',
            false => '+',
        }
    }

    fn is_uniform(&self) -> bool {
        self.name.rates == RatesName::Uniform
    }
}

/// Most weights that are fitted together with other parameters.
const CLIMBED_MAX: usize = 8;
