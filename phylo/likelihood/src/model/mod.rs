//! Substitution models: their names, their parameters, and the resulting substitution process.
//!
//! Top-down: [`ModelName`] is a user's text, parsed and nothing more; [`Model`] adds values (from
//! the braces, from the alignment, or to be fitted); [`Process`] is the input of the kernels'
//! tables.
//! Must stay true: a model's parameters are within their bounds whenever a process is made of them.

mod codon;
mod coordinates;
mod dna;
mod eigen;
mod frequencies;
mod gamma;
mod mixture;
mod name;
mod parameters;
mod process;
mod profiles;
mod protein;
mod states;

pub use codon::CodonKind;
pub(crate) use coordinates::Coordinate;
use frequencies::shares;
pub(crate) use frequencies::{FREQUENCY_MIN, constant_share, empirical};
pub use gamma::CategoryRate;
pub(crate) use gamma::discrete_gamma;
pub use name::{
    AscertainmentName, ExchangeName, FrequencyName, InvariantName, MixtureName, ModelName,
    RatesName, ScalerName,
};
pub use parameters::Parameter;
pub use process::Process;
pub(crate) use protein::{NONREVERSIBLE, nonreversible};
pub use states::with_states;

use crate::msa::{Alphabet, GeneticCode, Patterns};
use mixture::Classes;
use process::Spectrum;
use protein::{MIXTURES, PROFILES, Published};
use std::sync::{Arc, OnceLock};

/// Errors of a model's name or values.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// No matrix of this name.
    #[error(
        "no model is called `{name}`: DNA has JC to GTR, proteins LG, WAG, JTT, Q.pfam, LG4X, \
         PROTGTR and others (docs/phylo.md lists all)"
    )]
    Unknown {
        /// The name.
        name: String,
    },
    /// Parts that contradict one another.
    #[error("model `{model}`: {what}")]
    Contradiction {
        /// The whole name.
        model: String,
        /// The parts, why, and what to do.
        what: &'static str,
    },
    /// A data type where a model is wanted.
    #[error("`{name}` is a data type, not a model: {hint}")]
    DataType {
        /// The data type.
        name: String,
        /// The text to write instead.
        hint: &'static str,
    },
    /// A modifier that is not known.
    #[error(
        "model `{model}`: no part is called `+{part}`; there are \
         +F +FO +FE +FU +F1X4 +F3X4 +C10 to +C60 +FMIX +I +IC +IU +G +R +B +ASC_LEWIS +ASC_FELS \
         +ASC_STAM"
    )]
    Part {
        /// The whole name.
        model: String,
        /// The part.
        part: String,
    },
    /// A part that occurs twice.
    #[error("model `{model}`: {what} is given twice")]
    Twice {
        /// The whole name.
        model: String,
        /// The part of the name that is given twice.
        what: &'static str,
    },
    /// A brace is not closed, or text follows it.
    #[error("model `{model}`: braces do not match in `{part}`")]
    Braces {
        /// The whole name.
        model: String,
        /// The part.
        part: String,
    },
    /// Not a number, or out of its range.
    #[error("model `{model}`: `{value}` is not a {what} ({range})")]
    Value {
        /// The whole name.
        model: String,
        /// The text of the value.
        value: String,
        /// The expected kind of value.
        what: &'static str,
        /// Its range.
        range: &'static str,
    },
    /// A wrong number of values.
    #[error("model `{model}`: {what} takes {expected} values, {found} are given")]
    Count {
        /// The whole name.
        model: String,
        /// The part of the name that takes the values.
        what: &'static str,
        /// Number of values that it takes.
        expected: usize,
        /// Number found.
        found: usize,
    },
    /// A file of values that cannot be read.
    #[error("model `{model}`: cannot read `{path}`: {reason}")]
    File {
        /// The whole name.
        model: String,
        /// The path.
        path: String,
        /// Why.
        reason: String,
    },
}

/// A model with values for all its parameters.
#[derive(Debug, Clone)]
pub struct Model {
    name: ModelName,
    /// One value for each class of exchangeabilities.
    exchange: Vec<f64>,
    frequencies: Vec<f64>,
    /// Frequencies of bases by position, of codon models; else empty.
    bases: Vec<f64>,
    invariant: f64,
    alpha: f64,
    free_rates: Vec<f64>,
    free_weights: Vec<f64>,
    constant_share: f64,
    /// The classes of a mixture that the name lists.
    classes: Classes,
    /// Of a class without fitted values: its matrix's eigenvectors, once they are made.
    spectrum: OnceLock<Arc<Spectrum>>,
}

impl Model {
    /// Gives every parameter of `name` a value: the one in its braces, the one counted in
    /// `patterns`, or a start for fitting.
    ///
    /// # Panics
    /// When `patterns` are of another alphabet.
    #[must_use]
    pub fn new(name: ModelName, patterns: &Patterns) -> Self {
        assert_eq!(name.alphabet(), patterns.alphabet(), "alphabet of {name}");
        let bases = match patterns.alphabet() {
            Alphabet::Codon(_) => shares(patterns, 1),
            _ => Vec::new(),
        };
        // As the programs count that the names are of.
        let rounds = match name.exchange {
            ExchangeName::Mix(_) => COUNTING_ROUNDS,
            _ => 1,
        };
        let counted = empirical(patterns, rounds);
        Self::with_counts(name, &counted, &bases, constant_share(patterns))
    }

    /// As [`Model::new`] without an alignment: counted values are those of uniform frequencies.
    #[must_use]
    pub fn without_alignment(name: ModelName) -> Self {
        let states = name.alphabet().states();
        let uniform = vec![1.0 / states as f64; states];
        // A share of invariable sites must be some number: that of many alignments.
        Self::with_counts(name, &uniform, &uniform, 0.2)
    }

    /// `codons`: frequencies that bases are counted in, of a codon model.
    fn with_counts(name: ModelName, counted: &[f64], codons: &[f64], constant_share: f64) -> Self {
        let states = name.alphabet().states();
        let exchange = name.exchange.start();
        let frequencies = match &name.frequencies {
            FrequencyName::Equal => vec![1.0 / states as f64; states],
            FrequencyName::Matrix => name.exchange.frequencies(states),
            FrequencyName::Empirical | FrequencyName::Fitted => counted.to_vec(),
            FrequencyName::Given(values) => values.clone(),
            FrequencyName::Profile { mixture, at } => name::profile_frequencies(*mixture, *at),
            // Made of the bases below.
            FrequencyName::Bases { .. } => Vec::new(),
        };
        let code = match name.exchange {
            ExchangeName::Codon { code, .. } => code,
            _ => GeneticCode::STANDARD,
        };
        let bases = match &name.frequencies {
            FrequencyName::Bases {
                given: Some(bases), ..
            } => bases.clone(),
            // Of the counted codons, which the alignment has; bases are not counted themselves.
            FrequencyName::Bases { by_position, .. } => codon::bases_of(code, codons, *by_position),
            _ => Vec::new(),
        };
        let frequencies = match bases.is_empty() {
            true => frequencies,
            false => codon::products(code, &bases),
        };
        let invariant = match name.invariant {
            InvariantName::None => 0.0,
            // Half of the constant sites is a start that is neither 0 nor the most that is
            // possible.
            InvariantName::Fitted => 0.5 * constant_share,
            InvariantName::Empirical => constant_share,
            InvariantName::Given(share) => share,
        };
        let (mut free_rates, mut free_weights) = (Vec::new(), Vec::new());
        let mut alpha = ALPHA_START;
        match &name.rates {
            RatesName::Uniform => {}
            RatesName::Gamma { alpha: given, .. } => alpha = given.unwrap_or(ALPHA_START),
            RatesName::Free { categories, given } => {
                (free_rates, free_weights) = given.clone().unwrap_or_else(|| {
                    let start = discrete_gamma(ALPHA_START, *categories, CategoryRate::Mean);
                    (start, vec![1.0 / *categories as f64; *categories])
                });
            }
        }
        let classes = Classes::new(&name, |own| {
            Self::with_counts(own, counted, codons, constant_share)
        });
        let mut model = Self {
            classes,
            spectrum: OnceLock::new(),
            name,
            exchange,
            frequencies,
            bases,
            // All sites invariable would leave nothing for the rates.
            invariant: invariant.min(INVARIANT_MAX),
            alpha,
            free_rates,
            free_weights,
            constant_share,
        };
        model.normalise_free_rates();
        model
    }

    /// This model with its fitted parameters at their start values; all others stay.
    ///
    /// # Panics
    /// When `patterns` are of another alphabet.
    #[must_use]
    pub(crate) fn at_start(&self, patterns: &Patterns) -> Self {
        let start = Self::new(self.name.clone(), patterns);
        let mut model = self.clone();
        for parameter in self.fitted() {
            match parameter {
                Parameter::Exchange(_) => model.exchange.clone_from(&start.exchange),
                Parameter::Frequency(_) => model.frequencies.clone_from(&start.frequencies),
                Parameter::Invariant => model.invariant = start.invariant,
                Parameter::Alpha => model.alpha = start.alpha,
                Parameter::FreeRate(_) => model.free_rates.clone_from(&start.free_rates),
                Parameter::FreeWeight(_) => model.free_weights.clone_from(&start.free_weights),
                Parameter::ClassWeight(_) => {
                    model.classes.weights.clone_from(&start.classes.weights);
                }
                // Given values of a class are the same at the start.
                Parameter::OfClass { .. } => model.classes.models.clone_from(&start.classes.models),
            }
        }
        model
    }

    /// The parsed name.
    #[must_use]
    pub fn name(&self) -> &ModelName {
        &self.name
    }

    /// DNA or protein.
    #[must_use]
    pub fn alphabet(&self) -> Alphabet {
        self.name.alphabet()
    }

    /// The process of the present values. Takes some microseconds (DNA) to half a millisecond.
    #[must_use]
    pub fn process(&self) -> Process {
        let (rates, weights) = self.variable_rates();
        if let Some(mixture) = self.mixture() {
            return self.mixture_process(mixture, &rates, &weights);
        }
        if let ExchangeName::Mixture(at) = self.name.exchange {
            // Each class has the frequencies that it was published with, unless others are named.
            let own = self.name.frequencies == FrequencyName::Matrix;
            let class = |class: &'static Published| {
                let matrix = class.matrix();
                let frequencies = if own {
                    &matrix.frequencies
                } else {
                    &self.frequencies
                };
                (&matrix.exchange[..], &frequencies[..])
            };
            let classes = MIXTURES[at].classes.iter().map(class);
            let classes: Vec<_> = classes.collect();
            return Process::new(&classes, &rates, &weights, self.invariant);
        }
        let exchange = match &self.name.exchange {
            ExchangeName::Codon { kind, code, .. } => {
                kind.exchange(*code, &self.exchange, &self.bases)
            }
            other => other.expand(&self.exchange),
        };
        let matrix = (&exchange[..], &self.frequencies[..]);
        Process::new(&[matrix], &rates, &weights, self.invariant)
    }

    /// Takes frequencies that are counted otherwise; nothing changes where they are not counted.
    pub(crate) fn count_anew(&mut self, shares: &[f64]) {
        let counted = [FrequencyName::Empirical, FrequencyName::Fitted];
        if counted.contains(&self.name.frequencies) {
            self.frequencies = shares.to_vec();
        }
    }

    /// Rates of exchange (upper triangle by rows) and frequencies, of a model with one matrix.
    pub(crate) fn exchange_and_frequencies(&self) -> (Vec<f64>, Vec<f64>) {
        let exchange = self.name.exchange.expand(&self.exchange);
        (exchange, self.frequencies.clone())
    }

    /// Rates and weights of the variable sites.
    fn variable_rates(&self) -> (Vec<f64>, Vec<f64>) {
        match &self.name.rates {
            RatesName::Uniform => (vec![1.0], vec![1.0]),
            RatesName::Gamma { categories, by, .. } => (
                discrete_gamma(self.alpha, *categories, *by),
                vec![1.0 / *categories as f64; *categories],
            ),
            RatesName::Free { .. } => (self.free_rates.clone(), self.free_weights.clone()),
        }
    }

    /// True if it has free rates that are to be fitted.
    #[must_use]
    pub(crate) fn fits_free_rates(&self) -> bool {
        matches!(self.name.rates, RatesName::Free { categories, given: None } if categories > 1)
    }

    /// Gives free rates the values of a gamma distribution of this shape, with equal weights: the
    /// start of a fit.
    pub(crate) fn start_free_rates(&mut self, alpha: f64) {
        let count = self.free_rates.len();
        self.free_rates = discrete_gamma(alpha, count, CategoryRate::Mean);
        self.free_weights = vec![1.0 / count as f64; count];
        self.normalise_free_rates();
    }

    /// True of a mixture whose free rates are to be fitted and have not been.
    #[must_use]
    pub(crate) fn has_new_classes(&self) -> bool {
        // A model that was fitted before, or read from a checkpoint, has other rates.
        let start = discrete_gamma(ALPHA_START, self.free_rates.len(), CategoryRate::Mean);
        let same = |(own, start): (&f64, &f64)| (own - start).abs() < 1e-9;
        matches!(self.name.exchange, ExchangeName::Mixture(_))
            && self.fits_free_rates()
            && self.free_rates.iter().zip(&start).all(same)
    }

    /// The model with each choice of a slowest and a fastest class, the others in order between
    /// them.
    #[must_use]
    pub(crate) fn class_orders(&self) -> Vec<Self> {
        let mut sorted = self.free_rates.clone();
        // The choice of classes must not depend on the order that an earlier fit left.
        sorted.sort_unstable_by(f64::total_cmp);
        let classes = 0..sorted.len();
        let ends = classes
            .clone()
            .flat_map(|slow| classes.clone().map(move |fast| [slow, fast]));
        let order = |[slow, fast]: [usize; 2]| {
            let mut own = self.clone();
            let mut middle = sorted[1..].iter();
            for (class, rate) in own.free_rates.iter_mut().enumerate() {
                *rate = match class {
                    _ if class == slow => sorted[0],
                    _ if class == fast => sorted[sorted.len() - 1],
                    _ => middle.next().copied().unwrap_or(1.0),
                };
            }
            // The mean rate must stay 1.
            own.normalise_free_rates();
            own
        };
        ends.filter(|[slow, fast]| slow != fast)
            .map(order)
            .collect()
    }

    /// Weights to sum 1, mean rate 1.
    fn normalise_free_rates(&mut self) {
        let sum: f64 = self.free_weights.iter().sum();
        self.free_weights
            .iter_mut()
            .for_each(|weight| *weight /= sum);
        let mean: f64 = self
            .free_rates
            .iter()
            .zip(&self.free_weights)
            .map(|(r, w)| r * w)
            .sum();
        self.free_rates.iter_mut().for_each(|rate| *rate /= mean);
    }
}

impl Model {
    /// The values in the matrix's braces.
    fn printed_exchange(&self) -> Vec<f64> {
        if !matches!(self.name.exchange, ExchangeName::Protein { .. }) {
            return self.exchange.clone();
        }
        // As PAML's files have them, since a user's text may be such a file's.
        let mut values = protein::lower_triangle(&self.exchange);
        if self.name.frequencies == FrequencyName::Matrix {
            values.extend(&self.frequencies);
        }
        values
    }
}

/// Values with `/` between them, as they stand in braces.
pub(crate) fn list(values: &[f64]) -> String {
    let texts = values
        .iter()
        .map(|&value| match value < 1e-3 && value > 0.0 {
            // Six decimals would keep few digits of it, or make it 0.
            true => format!("{value:.6e}"),
            false => format!("{value:.6}"),
        });
    texts.collect::<Vec<_>>().join("/")
}

/// Prints the model with all its values fixed: the text can be parsed as a model again.
impl std::fmt::Display for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.mixture() {
            Some(mixture) => self.write_classes(mixture, f)?,
            None => write!(f, "{}", self.name.exchange.label())?,
        }
        // Published matrices and mixtures are known by name: their values are not printed.
        let fixed = matches!(
            self.name.exchange,
            ExchangeName::Published(_) | ExchangeName::Mixture(_) | ExchangeName::Mix(_)
        );
        let code = match self.name.exchange {
            ExchangeName::Codon { code, .. } => Some(code),
            _ => None,
        };
        // A single class of rates is equal rates, as in the name; a published matrix of codons has
        // no values.
        let written = self.exchange.len() > usize::from(code.is_none());
        if written && !fixed {
            write!(f, "{{{}}}", list(&self.printed_exchange()))?;
        }
        if let Some(code) = code.filter(|&code| code != GeneticCode::STANDARD) {
            write!(f, "+CODE{{{}}}", code.number())?;
        }
        match self.name.frequencies {
            FrequencyName::Matrix => {}
            FrequencyName::Equal => write!(f, "+FE")?,
            FrequencyName::Profile { mixture, at } => {
                write!(f, "+F{}{}", PROFILES[mixture].prefix, at + 1)?;
            }
            FrequencyName::Bases {
                by_position: false, ..
            } => write!(f, "+F1X4{{{}}}", list(&self.bases[..4]))?,
            FrequencyName::Bases { .. } => write!(f, "+F3X4{{{}}}", list(&self.bases))?,
            _ => write!(f, "+FU{{{}}}", list(&self.frequencies))?,
        }
        if self.name.invariant != InvariantName::None {
            write!(f, "+IU{{{:.6}}}", self.invariant)?;
        }
        match &self.name.rates {
            RatesName::Uniform => {}
            RatesName::Gamma { categories, by, .. } => {
                let by = if *by == CategoryRate::Mean { "m" } else { "a" };
                let sign = self.rates_sign();
                write!(f, "{sign}G{categories}{by}{{{:.6}}}", self.alpha)?;
            }
            RatesName::Free { categories, .. } => {
                let (rates, weights) = (list(&self.free_rates), list(&self.free_weights));
                let sign = self.rates_sign();
                write!(f, "{sign}R{categories}{{{rates}}}{{{weights}}}")?;
            }
        }
        write!(f, "{}", self.name.ascertainment)
    }
}

/// All matrices that a model can be named after, with their alphabets, and true for mixtures, whose
/// classes of rates have a matrix each. Those of DNA come first; in each alphabet simple ones do.
/// `MULTIx_MK` and `MULTIx_GTR` stand for all numbers of states. Accepted aliases, such as `JC69`,
/// are not included.
pub fn names() -> impl Iterator<Item = (&'static str, Alphabet, bool)> {
    let dna = dna::NAMED.iter();
    let dna = dna.map(|named| (named.name, Alphabet::Dna, false));
    let published = protein::PUBLISHED.iter().map(|published| published.name);
    let protein = published.chain(["PROTGTR"]);
    let protein = protein.map(|name| (name, Alphabet::Protein, false));
    let mixtures = MIXTURES.iter();
    let mixtures = mixtures.map(|mixture| (mixture.name, Alphabet::Protein, true));
    let states = states::NAMES.into_iter();
    let states = states.map(|(name, alphabet)| (name, alphabet, false));
    let kinds = CodonKind::NAMES.into_iter().take(CodonKind::DISTINCT);
    let codons = kinds.map(|(name, _)| (name, Alphabet::Codon(GeneticCode::STANDARD), false));
    dna.chain(protein)
        .chain(mixtures)
        .chain(states)
        .chain(codons)
}

/// Rounds of counting frequencies of a mixture's class: IQ-TREE's.
const COUNTING_ROUNDS: usize = 8;
/// The shape of the gamma distribution before it is fitted.
const ALPHA_START: f64 = 1.0;
/// The range of the gamma distribution's shape.
pub(crate) const ALPHA_RANGE: [f64; 2] = [0.02, 1_000.0];
/// The largest share of invariable sites.
pub(crate) const INVARIANT_MAX: f64 = 0.99;
/// The range of a partition's branch-length scaler: RAxML-NG's.
pub(crate) const SCALER_RANGE: [f64; 2] = [0.01, 100.0];
/// The range of exchangeabilities, relative to the last.
pub(crate) const EXCHANGE_RANGE: [f64; 2] = [0.001, 1_000.0];
/// The most categories of rates across sites, as the messages say.
pub(crate) const CATEGORIES_MAX: usize = 16;

#[cfg(test)]
mod tests;
