//! Model names as RAxML-NG writes them: a matrix, then parts with `+`, fixed values in braces.
//!
//! `GTR{a/b/c/d/e/f}+FU{A/C/G/T}+G4m{alpha}`, `HKY+F+I+G`, `LG+G4`, `PROTGTR{rates.txt}+FO+R4`;
//! `DNA`, a data type that stands for `GTR+F+G`.
//! The parsed form; the parser is in `parse`.
//! Must stay true: all values are in range and of the right number.

mod parse;

use super::protein::{MIXTURES, PROFILES, published};
use super::{CategoryRate, CodonKind};
use crate::msa::{Alphabet, GeneticCode};

/// A parsed model name.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelName {
    /// Exchangeabilities.
    pub exchange: ExchangeName,
    /// Stationary frequencies.
    pub frequencies: FrequencyName,
    /// Invariable sites.
    pub invariant: InvariantName,
    /// Rates across sites.
    pub rates: RatesName,
    /// Branch lengths of the model's partition relative to the tree's.
    pub scaler: ScalerName,
    /// Correction for sites that were left out because they do not vary.
    pub ascertainment: AscertainmentName,
}

/// Source of the exchangeabilities.
#[derive(Debug, Clone, PartialEq)]
pub enum ExchangeName {
    /// Exchange rates, some of them equal, and their values if they are fixed.
    Classes {
        /// The matrix's name.
        label: String,
        /// The alphabet that it is for.
        alphabet: Alphabet,
        /// For each rate of the upper triangle by rows (DNA: AC AG AT CG CT GT) its class.
        classes: Vec<u16>,
        /// One value a class.
        given: Option<Vec<f64>>,
    },
    /// Protein: a published matrix, by its place in the table.
    Published(usize),
    /// Protein: a matrix for each class of sites, by its place in the table of mixtures.
    Mixture(usize),
    /// Classes of sites that the name lists.
    Mix(MixtureName),
    /// Codons: a published matrix, or `omega` and `kappa`, fixed or to be fitted.
    Codon {
        /// The kind of model.
        kind: CodonKind,
        /// Which triplets are codons, and of what.
        code: GeneticCode,
        /// The values; of a published matrix none, given.
        given: Option<Vec<f64>>,
    },
    /// Protein: 190 rates of its own (upper triangle by rows), fixed or to be fitted.
    Protein {
        /// The values, and the frequencies that came with them, if any did.
        given: Option<(Vec<f64>, Option<Vec<f64>>)>,
    },
}

/// Source of the frequencies.
#[derive(Debug, Clone, PartialEq)]
pub enum FrequencyName {
    /// All equal.
    Equal,
    /// Those of the published matrix or of its file.
    Matrix,
    /// Counted.
    Empirical,
    /// Fitted.
    Fitted,
    /// Given; they sum to 1.
    Given(Vec<f64>),
    /// Protein: a class of a published mixture of profiles.
    Profile {
        /// The mixture's place in the table of profiles.
        mixture: usize,
        /// The class's place in the mixture.
        at: usize,
    },
    /// Codons: products of the frequencies of bases.
    Bases {
        /// True if these are counted at each of the three positions by itself (`F3X4`).
        by_position: bool,
        /// All twelve, if they are given.
        given: Option<Vec<f64>>,
    },
}

/// Share of invariable sites.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum InvariantName {
    /// None.
    None,
    /// A fitted share.
    Fitted,
    /// The share of constant sites.
    Empirical,
    /// A given share.
    Given(f64),
}

/// Rate heterogeneity across sites.
#[derive(Debug, Clone, PartialEq)]
pub enum RatesName {
    /// The same rate at all sites.
    Uniform,
    /// A discrete gamma distribution.
    Gamma {
        /// Number of categories.
        categories: usize,
        /// Its shape, if it is fixed.
        alpha: Option<f64>,
        /// Mean or median.
        by: CategoryRate,
    },
    /// Free rates.
    Free {
        /// Number of categories.
        categories: usize,
        /// Rates and weights, if they are fixed.
        given: Option<(Vec<f64>, Vec<f64>)>,
    },
}

/// Branch-length scaler of a partition (`+B`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ScalerName {
    /// None: whatever linkage the partitions have.
    None,
    /// Fitted.
    Fitted,
    /// Given, 0.01 to 100.
    Given(f64),
}

/// Correction for ascertainment (`+ASC_…`): only variable sites were collected, as of SNPs and of
/// morphological characters.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum AscertainmentName {
    /// None.
    #[default]
    None,
    /// Likelihoods are those of sites that vary (Lewis 2001).
    Lewis,
    /// This number of invariable sites was left out.
    Felsenstein(f64),
    /// This number of invariable sites of each state was left out.
    Stamatakis(Vec<f64>),
}

/// Prints the part of a model's name, or nothing.
impl std::fmt::Display for AscertainmentName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Lewis => write!(f, "+ASC_LEWIS"),
            Self::Felsenstein(count) => write!(f, "+ASC_FELS{{{count}}}"),
            Self::Stamatakis(counts) => {
                let counts: Vec<String> = counts.iter().map(f64::to_string).collect();
                write!(f, "+ASC_STAM{{{}}}", counts.join("/"))
            }
        }
    }
}

/// Reads the file that a brace names.
pub(crate) type ReadFile<'a> = &'a mut dyn FnMut(&str) -> std::io::Result<String>;

impl ModelName {
    /// The alphabet that it is for.
    #[must_use]
    pub fn alphabet(&self) -> Alphabet {
        match &self.exchange {
            ExchangeName::Classes { alphabet, .. } => *alphabet,
            ExchangeName::Codon { code, .. } => Alphabet::Codon(*code),
            ExchangeName::Mix(mixture) => mixture.classes[0].name.alphabet(),
            _ => Alphabet::Protein,
        }
    }
}

impl std::fmt::Display for ModelName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", super::Model::without_alignment(self.clone()))
    }
}

impl RatesName {
    /// Number of categories.
    #[must_use]
    pub fn categories(&self) -> usize {
        match self {
            Self::Uniform => 1,
            Self::Gamma { categories, .. } | Self::Free { categories, .. } => *categories,
        }
    }
}

impl ExchangeName {
    /// Default rates across sites, where the name gives none: a mixture's classes have rates.
    pub(super) fn default_rates(&self) -> RatesName {
        match self {
            Self::Mixture(at) if MIXTURES[*at].free => RatesName::Free {
                categories: MIXTURES[*at].classes.len(),
                given: None,
            },
            Self::Mixture(at) => RatesName::Gamma {
                categories: MIXTURES[*at].classes.len(),
                alpha: None,
                by: CategoryRate::Mean,
            },
            _ => RatesName::Uniform,
        }
    }

    /// The matrix's name.
    #[must_use]
    pub fn label(&self) -> &str {
        match self {
            Self::Classes { label, .. } => label,
            Self::Published(at) => published(*at).name,
            Self::Mix(mixture) => mixture.label(),
            Self::Mixture(at) => MIXTURES[*at].name,
            Self::Codon { kind, .. } => kind.label(),
            Self::Protein { .. } => "PROTGTR",
        }
    }

    /// One value a class: the given ones, or the start of a fit.
    pub(super) fn start(&self) -> Vec<f64> {
        match self {
            Self::Classes {
                given: Some(values),
                ..
            } => values.clone(),
            Self::Classes { classes, .. } => vec![1.0; class_count(classes)],
            Self::Published(at) => published(*at).matrix().exchange.clone(),
            // Its matrices are looked up where the process is made.
            Self::Mixture(_) | Self::Mix(_) => Vec::new(),
            Self::Codon { kind, given, .. } => given.clone().unwrap_or_else(|| kind.start()),
            Self::Protein {
                given: Some((values, _)),
            } => values.clone(),
            // Without given values, the average over all proteins is a better start than equal
            // rates.
            Self::Protein { given: None } => {
                let rates = &published(0).matrix().exchange;
                let last = rates[rates.len() - 1];
                rates.iter().map(|rate| rate / last).collect()
            }
        }
    }

    /// The full upper triangle.
    pub(super) fn expand(&self, values: &[f64]) -> Vec<f64> {
        match self {
            Self::Classes { classes, .. } => classes
                .iter()
                .map(|&class| values[usize::from(class)])
                .collect(),
            _ => values.to_vec(),
        }
    }

    /// The matrix's own frequencies.
    pub(super) fn frequencies(&self, states: usize) -> Vec<f64> {
        match self {
            Self::Published(at) => published(*at).matrix().frequencies.clone(),
            Self::Mixture(at) => {
                let classes = &MIXTURES[*at].classes;
                let mean = |state: usize| {
                    let own = classes
                        .iter()
                        .map(|class| class.matrix().frequencies[state]);
                    own.sum::<f64>() / classes.len() as f64
                };
                (0..states).map(mean).collect()
            }
            Self::Protein {
                given: Some((_, Some(frequencies))),
            } => frequencies.clone(),
            Self::Codon { kind, .. } => {
                let own = kind.frequencies();
                own.unwrap_or_else(|| vec![1.0 / states as f64; states])
            }
            _ => vec![1.0 / states as f64; states],
        }
    }
}

/// The frequencies of a class of a published mixture of profiles.
pub(super) fn profile_frequencies(mixture: usize, at: usize) -> Vec<f64> {
    PROFILES[mixture].rows()[at][1..].to_vec()
}

/// Number of classes.
fn class_count(classes: &[u16]) -> usize {
    usize::from(*classes.iter().max().unwrap_or(&0)) + 1
}

/// The classes of a mixture, as a name lists them.
#[derive(Debug, Clone, PartialEq)]
pub struct MixtureName {
    /// The text that stands for these classes.
    pub(super) label: String,
    /// One or more.
    pub(super) classes: Vec<ClassName>,
    /// True if the weights are fitted, else they are given.
    pub(super) fits_weights: bool,
    /// True if the rates across sites are the classes' rates, one each.
    pub(super) fused: bool,
}

/// One class of a mixture.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ClassName {
    /// Exchangeabilities and frequencies.
    pub(super) name: ModelName,
    /// The rate, before the mean is made 1.
    pub(super) rate: f64,
    /// The weight: of all classes they sum to 1.
    pub(super) weight: f64,
}

impl ExchangeName {
    /// Number of classes of a mixture that the name lists; else 0.
    #[cfg(test)]
    pub(super) fn mixture_size(&self) -> usize {
        match self {
            Self::Mix(mixture) => mixture.classes.len(),
            _ => 0,
        }
    }
}

impl MixtureName {
    /// Number of classes.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.classes.len()
    }

    /// True if the weights are fitted.
    #[must_use]
    pub fn fits_weights(&self) -> bool {
        self.fits_weights
    }

    /// The text that stands for the classes.
    pub(super) fn label(&self) -> &str {
        &self.label
    }

    /// True if the label alone tells all values.
    pub(super) fn is_fixed(&self) -> bool {
        let fixed = |class: &ClassName| {
            matches!(
                class.name.frequencies,
                FrequencyName::Matrix | FrequencyName::Equal | FrequencyName::Profile { .. }
            ) && matches!(class.name.exchange, ExchangeName::Published(_))
        };
        !self.fits_weights && self.classes.iter().all(fixed)
    }
}
