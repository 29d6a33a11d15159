//! Rate matrices of patterns that have frequencies of their own, as posterior means of a mixture's
//! classes (PMSF): one class a site in place of sixty.
//!
//! Must stay true: equal profiles are decomposed once; no frequency is so small that a state were
//! impossible. Source: Wang, Minh, Susko and Roger, "Modeling site heterogeneity with posterior
//! mean site frequency profiles accelerates accurate phylogenomic estimation", Systematic Biology
//! 67 (2018), 216-235; the least frequency is IQ-TREE's.

use super::name::{AscertainmentName, ExchangeName};
use super::process::Spectrum;
use super::{FrequencyName, Model, ModelError, ModelName};
use crate::msa::{Alphabet, Patterns, SiteProfiles};
use std::collections::HashMap;
use std::sync::Arc;

/// Adds a profile, decomposed.
fn push(profiles: &mut SiteProfiles, exchange: &[f64], frequencies: &[f64]) {
    let spectrum = Spectrum::new(exchange, frequencies);
    profiles.frequencies.extend(&spectrum.frequencies);
    profiles.values.extend(&spectrum.values);
    profiles.right.extend(&spectrum.right);
    profiles.left_by_state.extend(&spectrum.left_by_state);
}

impl Model {
    /// Patterns with frequencies of amino acids for each, twenty a pattern, for which the model
    /// leaves its own. Its rates of exchange must be fixed.
    ///
    /// # Errors
    /// [`ModelError::Contradiction`] where the model is not one fixed protein matrix.
    ///
    /// # Panics
    /// When `frequencies` are not twenty for each pattern.
    pub fn with_site_frequencies(
        &self,
        mut patterns: Patterns,
        frequencies: &[f64],
    ) -> Result<Patterns, ModelError> {
        assert_eq!(frequencies.len(), STATES * patterns.len(), "frequencies");
        let plain = self.name.ascertainment == AscertainmentName::None;
        if !plain || !self.name.exchange.is_fixed_protein() {
            return Err(ModelError::Contradiction {
                model: self.to_string(),
                what: NOT_ONE_MATRIX,
            });
        }
        let exchange = self.name.exchange.expand(&self.exchange);
        let (mut made, mut of_pattern) = (SiteProfiles::default(), Vec::new());
        let mut known: HashMap<Vec<u64>, u32> = HashMap::new();
        for own in frequencies.chunks_exact(STATES) {
            let own = with_least(own);
            // Patterns are far fewer than 2^32.
            let next = known.len() as u32;
            let at = *known
                .entry(own.iter().map(|share| share.to_bits()).collect())
                .or_insert(next);
            if at == next {
                push(&mut made, &exchange, &own);
            }
            of_pattern.push(at);
        }
        patterns.set_profiles(Arc::new(made), of_pattern);
        Ok(patterns)
    }
}

impl ExchangeName {
    fn is_fixed_protein(&self) -> bool {
        matches!(self, Self::Published(_) | Self::Protein { given: Some(_) })
    }
}

impl ModelName {
    /// The model that site frequencies go with: of a mixture of profiles its matrix alone, with its
    /// rates across sites.
    ///
    /// # Errors
    /// [`ModelError::Contradiction`] where the model is not of one fixed protein matrix.
    pub fn of_site_frequencies(&self) -> Result<Self, ModelError> {
        let mut name = self.clone();
        if let ExchangeName::Mix(mixture) = &self.exchange {
            let first = &mixture.classes[0].name.exchange;
            if mixture
                .classes
                .iter()
                .all(|class| class.name.exchange == *first)
            {
                name.exchange = first.clone();
            }
        }
        name.frequencies = FrequencyName::Matrix;
        let protein = name.alphabet() == Alphabet::Protein;
        match protein && name.exchange.is_fixed_protein() {
            true => Ok(name),
            false => Err(ModelError::Contradiction {
                model: self.to_string(),
                what: NOT_ONE_MATRIX,
            }),
        }
    }
}

/// Frequencies of which none is too small; the largest makes up for what is added.
fn with_least(own: &[f64]) -> Vec<f64> {
    let mut own: Vec<f64> = own.iter().map(|share| share.max(SHARE_LEAST)).collect();
    let excess = own.iter().sum::<f64>() - 1.0;
    if let Some(largest) = own.iter_mut().max_by(|a, b| a.total_cmp(b)) {
        *largest -= excess;
    }
    own
}

const NOT_ONE_MATRIX: &str = "frequencies of sites go with one protein matrix, rates across sites \
                              and +I, such as LG+G4 or LG+C20+G4";
/// The least frequency of an amino acid at a site.
const SHARE_LEAST: f64 = 1e-4;
const STATES: usize = 20;
