//! Nonreversible models: a rate from each state to each other one, and rates across sites.
//!
//! `UNREST` has twelve rates of DNA, in the order AC AG AT CA CG CT GA GC GT TA TC TG, fitted or in
//! braces. `NONREV{FILE}` has the 4 x 4 or 20 x 20 numbers of a file, row by row, from the row's
//! state to the column's; frequencies of the root may follow them. The diagonal is not read. `+I`,
//! `+G` and `+R` are those of other models. The root has the equilibrium's frequencies, unless the
//! file has others. `NQ.pfam` and its like are published matrices. `HKY+P` is a model of
//! populations (`pomo`).
//!
//! Probabilities are made by uniformisation: with `R = 1 + Q / m`, which has no negative entry,
//! `P(t) = exp(-m t) sum (m t)^k / k! R^k`. Long times are halved until one step at most is
//! expected, and the matrix is squared as often. No digit cancels, whatever the eigenvalues.
//! Sources: Yang, "Estimating the pattern of nucleotide substitution", Journal of Molecular
//! Evolution 39 (1994), 105-111; Grassmann, Taksar and Heyman, Operations Research 33 (1985),
//! 1107-1116, for the equilibrium; Jensen, Skandinavisk Aktuarietidskrift 36 (1953), 87-91.

use super::pomo::{PomoName, THETA_START};
use crate::model::{
    AscertainmentName, Coordinate, EXCHANGE_RANGE, ExchangeName, InvariantName, Model, ModelError,
    ModelName, NONREVERSIBLE, ScalerName, empirical, list, nonreversible,
};
use crate::msa::{Alphabet, Patterns, shown};

/// Reads the file that a brace names.
type Read<'r> = &'r mut dyn FnMut(&str) -> std::io::Result<String>;

/// The name of a nonreversible model, or of one of populations.
#[derive(Debug, Clone, PartialEq)]
pub struct RootedModelName {
    label: &'static str,
    alphabet: Alphabet,
    /// Nothing where the rates are fitted.
    given: Option<Given>,
    /// Rates across sites; of populations how bases mutate, too.
    across: ModelName,
    /// Of models of populations alone.
    pomo: Option<PomoName>,
}

/// Values of a brace.
#[derive(Debug, Clone, PartialEq)]
struct Given {
    /// Row by row; the diagonal is 0.
    rates: Vec<f64>,
    /// Frequencies of the root, where they are not the equilibrium's.
    root: Option<Vec<f64>>,
}

impl RootedModelName {
    /// Parses a name; none where it is that of another kind of model. `read` is called for the text
    /// of a file where a brace holds no numbers.
    ///
    /// # Errors
    /// [`ModelError`].
    pub fn parse(text: &str, read: Read<'_>) -> Result<Option<Self>, ModelError> {
        let text = text.trim();
        if let Some((pomo, base)) = PomoName::split(text)? {
            return Self::of_populations(text, pomo, &base, read).map(Some);
        }
        let (label, mut rest) = text.split_at(text.find(['{', '+', '*']).unwrap_or(text.len()));
        let mut labels = [UNREST, NONREV].into_iter().chain(NONREVERSIBLE);
        let Some(label) = labels.find(|own| own.eq_ignore_ascii_case(label)) else {
            return Ok(None);
        };
        // Only what is shown of the text, as a name may be long and hostile.
        let braces = |part: &str| ModelError::Braces {
            model: shown(text),
            part: shown(part),
        };
        let mut given = None;
        if NONREVERSIBLE.contains(&label) {
            given = Some(Given::new(text, label, &nonreversible(label))?);
        } else if let Some(inside) = rest.strip_prefix('{') {
            let (inside, after) = inside.split_once('}').ok_or_else(|| braces(rest))?;
            given = Some(Given::new(text, label, &numbers(text, inside, read)?)?);
            rest = after;
        } else if label == NONREV {
            return Err(miscount(text, label, 0));
        }
        if !(rest.is_empty() || rest.starts_with('+')) {
            return Err(braces(rest));
        }
        let states = given.as_ref().map_or(4, Given::states);
        let (alphabet, base) = match states {
            4 => (Alphabet::Dna, BASES[0]),
            _ => (Alphabet::Protein, BASES[1]),
        };
        // Rates across sites are those of any model: the simplest one of the alphabet carries them.
        let across = ModelName::parse(&format!("{base}{rest}"), read);
        let across = across.map_err(|error| of_model(error, text))?;
        let is_plain = across.ascertainment == AscertainmentName::None
            && across.scaler == ScalerName::None
            && !rest.to_ascii_uppercase().contains("+F")
            && matches!(
                across.exchange,
                ExchangeName::Classes { .. } | ExchangeName::Published(_)
            );
        if !is_plain {
            return Err(ModelError::Contradiction {
                model: shown(text),
                what: "a nonreversible model has its own equilibrium: rates across sites may \
                       follow it (+I, +G, +R), no +F, +C, +B or +ASC",
            });
        }
        Ok(Some(Self {
            label,
            alphabet,
            given,
            across,
            pomo: None,
        }))
    }

    fn of_populations(
        text: &str,
        pomo: PomoName,
        base: &str,
        read: Read<'_>,
    ) -> Result<Self, ModelError> {
        let across = ModelName::parse(base, read).map_err(|error| of_model(error, text))?;
        let moves = match &across.exchange {
            ExchangeName::Classes { given, .. } => given.iter().flatten().all(|rate| *rate > 0.0),
            _ => false,
        };
        let is_plain = across.ascertainment == AscertainmentName::None
            && across.scaler == ScalerName::None
            && across.invariant == InvariantName::None
            && across.alphabet() == Alphabet::Dna;
        if !is_plain || !moves {
            return Err(ModelError::Contradiction {
                model: shown(text),
                what: "models of populations (+P) are of DNA, with rates of exchange above 0: \
                       leave out +I, +B and +ASC",
            });
        }
        Ok(Self {
            label: POMO,
            alphabet: Alphabet::Dna,
            given: None,
            across,
            pomo: Some(pomo),
        })
    }

    /// True of a model of populations, whose data are counts.
    #[must_use]
    pub fn is_of_populations(&self) -> bool {
        self.pomo.is_some()
    }

    /// The alphabet that it is for.
    #[must_use]
    pub fn alphabet(&self) -> Alphabet {
        self.alphabet
    }
}

impl Given {
    fn new(model: &str, label: &str, values: &[f64]) -> Result<Self, ModelError> {
        let n: usize = match values.len() {
            12 | 16 | 20 => 4,
            400 | 420 if label != UNREST => 20,
            found => return Err(miscount(model, label, found)),
        };
        // A name may name any file: its content must not appear in messages.
        let wrong = |value: String, what, range| ModelError::Value {
            model: shown(model),
            value,
            what,
            range,
        };
        let mut rates = vec![0.0; n * n];
        let mut left = values.iter();
        for from in 0..n {
            for to in 0..n {
                // Twelve numbers leave out the diagonal.
                if from == to && values.len() == 12 {
                    continue;
                }
                let value = left.next().copied().unwrap_or_default();
                if from == to {
                    continue;
                }
                // Wider ratios leave an equilibrium with shares below what doubles can add up.
                if !(0.0..=RATE_MAX).contains(&value) {
                    let place = format!("the rate from state {} to {}", from + 1, to + 1);
                    return Err(wrong(place, "rate", "0 to 1,000,000"));
                }
                rates[from * n + to] = value;
            }
        }
        let root = match left.as_slice() {
            [] => None,
            shares => {
                let sum: f64 = shares.iter().sum();
                let bad = shares.iter().find(|share| **share < 0.0);
                // Published files round to a few digits; anything further away is another kind of
                // list.
                if bad.is_some() || !(0.98..=1.02).contains(&sum) {
                    let what = "set of root frequencies";
                    let range = "0 or more; all of them sum to 1";
                    return Err(wrong(format!("a sum of {sum:.3}"), what, range));
                }
                Some(shares.iter().map(|share| share / sum).collect())
            }
        };
        if RateMatrix::new(n, &rates).is_none() {
            return Err(ModelError::Contradiction {
                model: shown(model),
                what: "its rates have no equilibrium: there must be a way from each state to \
                       each other one",
            });
        }
        Ok(Self { rates, root })
    }

    fn states(&self) -> usize {
        // The two sizes that there are.
        if self.rates.len() == 16 { 4 } else { 20 }
    }
}

fn miscount(model: &str, label: &str, found: usize) -> ModelError {
    ModelError::Count {
        model: shown(model),
        what: "the matrix",
        expected: match found {
            _ if label == UNREST => 12,
            0..=20 => 16,
            _ => 400,
        },
        found,
    }
}

/// Numbers with `/`, `,` or blanks between, or those of the file that the text names.
fn numbers(model: &str, text: &str, read: Read<'_>) -> Result<Vec<f64>, ModelError> {
    let is_list = text.bytes().all(|b| b"0123456789.eE+-/, \t".contains(&b));
    let owned;
    let text = match is_list {
        true => text,
        false => {
            owned = read(text.trim()).map_err(|error| ModelError::File {
                model: shown(model),
                path: shown(text.trim()),
                reason: error.to_string(),
            })?;
            owned.as_str()
        }
    };
    let mut values: Vec<f64> = Vec::new();
    let separator = |c: char| c == '/' || c == ',' || c.is_whitespace();
    for word in text.split(separator).filter(|word| !word.is_empty()) {
        let value = word.parse().ok().filter(|value: &f64| value.is_finite());
        match value {
            // One too many, which the count then refuses.
            Some(value) if values.len() <= VALUES_MAX => values.push(value),
            // Files of matrices end in prose.
            None if is_list => {
                return Err(ModelError::Value {
                    model: shown(model),
                    value: shown(word),
                    what: "rate",
                    range: "0 to 1,000,000",
                });
            }
            _ => break,
        }
    }
    Ok(values)
}

/// An error of a part, with the whole name that the user gave.
fn of_model(mut error: ModelError, text: &str) -> ModelError {
    if let ModelError::Contradiction { model, .. }
    | ModelError::Part { model, .. }
    | ModelError::Twice { model, .. }
    | ModelError::Braces { model, .. }
    | ModelError::Value { model, .. }
    | ModelError::Count { model, .. }
    | ModelError::File { model, .. } = &mut error
    {
        *model = shown(text);
    }
    error
}

/// A nonreversible model with values for all its parameters.
#[derive(Debug, Clone)]
pub struct RootedModel {
    name: RootedModelName,
    /// Row by row, relative to the last one where they are fitted; the diagonal is 0.
    rates: Vec<f64>,
    pub(super) across: Model,
    /// Of populations: their heterozygosity.
    theta: f64,
}

impl RootedModel {
    /// Gives each parameter the value of its brace, or a start for fitting: rates in proportion to
    /// the frequency of the state that they lead to.
    ///
    /// # Panics
    /// When `patterns` are of another alphabet.
    #[must_use]
    pub fn new(name: RootedModelName, patterns: &Patterns) -> Self {
        let n = name.alphabet.states();
        let rates = match &name.given {
            Some(given) => given.rates.clone(),
            // Made of mutations and drift.
            None if name.pomo.is_some() => Vec::new(),
            None => {
                let counted = empirical(patterns, 1);
                let mut rates = vec![0.0; n * n];
                for (from, to) in pairs(n) {
                    // From frequencies, as if reversible with equal exchange: a start whose
                    // equilibrium is that of the data. The last rate, to state n - 2, is 1 by this
                    // division.
                    rates[from * n + to] = counted[to] / counted[n - 2];
                }
                rates
            }
        };
        let across = Model::new(name.across.clone(), patterns);
        let theta = name.pomo.as_ref().and_then(|pomo| pomo.theta);
        Self {
            name,
            rates,
            across,
            theta: theta.unwrap_or(THETA_START),
        }
    }

    /// Number of states.
    pub(super) fn states(&self) -> usize {
        let own = self.name.alphabet.states();
        self.name.pomo.as_ref().map_or(own, PomoName::states)
    }

    /// Virtual individuals of a population; none where the model has no populations.
    pub(super) fn population(&self) -> Option<usize> {
        self.name.pomo.as_ref().map(|pomo| pomo.size)
    }

    /// The rate matrix of the present values, or of populations one for each of these rates of
    /// mutation; none where one has no equilibrium.
    pub(super) fn matrices(&self, rates: &[f64]) -> Option<Vec<RateMatrix>> {
        let Some(pomo) = &self.name.pomo else {
            let matrix = RateMatrix::new(self.name.alphabet.states(), &self.rates);
            return matrix.map(|own| vec![own]);
        };
        let mean = pomo.mutation(self.theta);
        let each = rates.iter().map(|rate| {
            // A category without any mutation would have four equilibria.
            let mutation = mean * rate.max(MUTATION_MIN);
            RateMatrix::new(pomo.states(), &pomo.rates(&self.across, mutation))
        });
        each.collect()
    }

    /// Takes frequencies that are counted otherwise; nothing changes where they are given.
    pub(super) fn count_anew(&mut self, shares: &[f64]) {
        self.across.count_anew(shares);
    }

    /// The frequencies at the root.
    pub(super) fn root<'m>(&'m self, matrix: &'m RateMatrix) -> &'m [f64] {
        let given = self.name.given.as_ref();
        let own = given.and_then(|given| given.root.as_deref());
        own.unwrap_or_else(|| matrix.equilibrium())
    }

    /// The present point of all that is fitted.
    pub(super) fn coordinates(&self) -> Vec<Coordinate> {
        let mut point = Vec::new();
        if let Some(pomo) = &self.name.pomo {
            let theta = Coordinate::of(self.theta, pomo.theta_range());
            point.extend(pomo.theta.is_none().then_some(theta));
        } else if self.name.given.is_none() {
            let n = self.name.alphabet.states();
            let own = pairs(n).map(|(from, to)| self.rates[from * n + to]);
            point.extend(own.map(|rate| Coordinate::of(rate, EXCHANGE_RANGE)));
            // Rates are relative to the last one.
            point.pop();
        }
        point.extend(self.across.coordinates());
        point
    }

    /// Moves to a point with as many coordinates as [`Self::coordinates`] has.
    pub(super) fn move_to(&mut self, point: &[f64]) {
        let mut across = point;
        if let Some(pomo) = &self.name.pomo {
            if let (None, [theta, rest @ ..]) = (pomo.theta, point) {
                self.theta = libm::exp(*theta);
                across = rest;
            }
        } else if self.name.given.is_none() {
            let n = self.name.alphabet.states();
            let (own, rest) = point.split_at(n * (n - 1) - 1);
            let values = own.iter().map(|log| libm::exp(*log)).chain([1.0]);
            for ((from, to), rate) in pairs(n).zip(values) {
                self.rates[from * n + to] = rate;
            }
            across = rest;
        }
        self.across.move_to(across);
    }
}

/// Prints the model with all its values: the text can be parsed again.
impl std::fmt::Display for RootedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(pomo) = &self.name.pomo {
            let theta = list(&[self.theta]);
            return write!(f, "{}+P{{{theta}}}+N{}", self.across, pomo.size);
        }
        let n = self.name.alphabet.states();
        let given = self.name.given.as_ref();
        let root = given.and_then(|given| given.root.as_deref());
        let values: Vec<f64> = match root {
            None if n == 4 => pairs(n)
                .map(|(from, to)| self.rates[from * n + to])
                .collect(),
            root => [&self.rates[..], root.unwrap_or_default()].concat(),
        };
        match NONREVERSIBLE.contains(&self.name.label) {
            true => f.write_str(self.name.label)?,
            false => write!(f, "{}{{{}}}", self.name.label, list(&values))?,
        }
        let across = self.across.to_string();
        let parts = BASES.iter().find_map(|base| across.strip_prefix(base));
        let parts = parts.unwrap_or_default();
        f.write_str(parts.strip_prefix("+FE").unwrap_or(parts))
    }
}

/// The pairs of different states, row by row.
pub(super) fn pairs(n: usize) -> impl Iterator<Item = (usize, usize)> {
    let all = (0..n).flat_map(move |from| (0..n).map(move |to| (from, to)));
    all.filter(|(from, to)| from != to)
}

/// A rate matrix whose mean rate at equilibrium is 1.
#[derive(Debug, Clone)]
pub(super) struct RateMatrix {
    states: usize,
    /// Row by row.
    rates: Vec<f64>,
    equilibrium: Vec<f64>,
    /// The highest rate at which a state is left.
    fastest: f64,
    /// Powers of `1 + rates / fastest`, one after the other, from 0 on.
    powers: Vec<f64>,
}

impl RateMatrix {
    /// From rates of which the diagonal is not read; none where there is no way from each state to
    /// each other one.
    pub(super) fn new(states: usize, rates: &[f64]) -> Option<Self> {
        let n = states;
        let equilibrium = equilibrium(n, rates)?;
        let mut own = rates.to_vec();
        for from in 0..n {
            // What a file has on its diagonal must not count as a rate.
            own[from * n + from] = 0.0;
            own[from * n + from] = -own[from * n..][..n].iter().sum::<f64>();
        }
        let leaves = |state: usize| -own[state * n + state];
        // Lengths are expected substitutions in equilibrium, whatever the root's frequencies are.
        let mean: f64 = (0..n).map(|state| equilibrium[state] * leaves(state)).sum();
        if !(mean > 0.0 && mean.is_finite()) {
            return None;
        }
        own.iter_mut().for_each(|rate| *rate /= mean);
        let fastest = (0..n).map(|state| -own[state * n + state]);
        let fastest = fastest.fold(0.0, f64::max);
        let unit = |at: usize| f64::from(u8::from(at.is_multiple_of(n + 1)));
        // Rounding must not leave the diagonal of the fastest state below 0.
        let step = own.iter().enumerate();
        let step = step.map(|(at, rate)| (unit(at) + rate / fastest).max(0.0));
        let step: Vec<f64> = step.collect();
        let mut powers: Vec<f64> = (0..n * n).map(unit).collect();
        for _ in 1..TERMS {
            let next = product(n, &powers[powers.len() - n * n..], &step);
            powers.extend(next);
        }
        Some(Self {
            states,
            rates: own,
            equilibrium,
            fastest,
            powers,
        })
    }

    pub(super) fn equilibrium(&self) -> &[f64] {
        &self.equilibrium
    }

    /// Row by row.
    pub(super) fn rates(&self) -> &[f64] {
        &self.rates
    }

    /// The probabilities of changes within a time, row by row: from the row's state to the
    /// column's.
    pub(super) fn transitions(&self, time: f64, out: &mut [f64]) {
        let n = self.states;
        let (mut steps, mut doublings) = (self.fastest * time, 0);
        while steps > 1.0 && doublings < DOUBLINGS_MAX {
            steps *= 0.5;
            doublings += 1;
        }
        out.fill(0.0);
        let mut weight = libm::exp(-steps);
        for (k, power) in self.powers.chunks_exact(n * n).enumerate() {
            if k > 0 {
                // Poisson's weights one from the other: factorials would overflow, and all terms
                // stay positive.
                weight *= steps / k as f64;
            }
            let entries = out.iter_mut().zip(power);
            entries.for_each(|(to, from)| *to += weight * from);
        }
        for _ in 0..doublings {
            // P(2t) = P(t) P(t). Sums of products of numbers that are not negative lose no digits.
            let square = product(n, out, out);
            out.copy_from_slice(&square);
            // Each squaring doubles what the rows' sums miss.
            for row in out.chunks_exact_mut(n) {
                let sum: f64 = row.iter().sum();
                row.iter_mut().for_each(|entry| *entry /= sum);
            }
        }
    }
}

/// The product of two square matrices, row by row.
pub(super) fn product(n: usize, a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; n * n];
    for (row, to) in a.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
        for (entry, from) in row.iter().zip(b.chunks_exact(n)) {
            let pairs = to.iter_mut().zip(from);
            pairs.for_each(|(to, from)| *to += entry * from);
        }
    }
    out
}

/// The frequencies that rates keep, by elimination of one state after the other: without a
/// subtraction. None where a state cannot be left to those that remain.
fn equilibrium(n: usize, rates: &[f64]) -> Option<Vec<f64>> {
    let mut a = rates.to_vec();
    for last in (1..n).rev() {
        let out: f64 = a[last * n..][..last].iter().sum();
        if !(out > 0.0 && out.is_finite()) {
            return None;
        }
        for from in 0..last {
            // Elimination without a subtraction (Grassmann, Taksar and Heyman): small shares keep
            // all their digits.
            a[from * n + last] /= out;
            let share = a[from * n + last];
            for to in (0..last).filter(|&to| to != from) {
                a[from * n + to] += share * a[last * n + to];
            }
        }
    }
    let mut shares = vec![1.0];
    for state in 1..n {
        let into = shares.iter().enumerate();
        let share: f64 = into.map(|(from, own)| own * a[from * n + state]).sum();
        shares.push(share);
    }
    let sum: f64 = shares.iter().sum();
    // A state that no other leads to has no share, and with it no way back.
    let good = sum.is_finite() && shares.iter().all(|share| *share > 0.0);
    good.then(|| shares.iter().map(|share| share / sum).collect())
}

const UNREST: &str = "UNREST";
const NONREV: &str = "NONREV";
const POMO: &str = "PoMo";
/// Models that lend their rates across sites: of DNA, of proteins.
const BASES: [&str; 2] = ["JC", "POISSON"];
/// Numbers of 20 states and their frequencies.
const VALUES_MAX: usize = 420;
const RATE_MAX: f64 = 1e6;
/// The least rate of mutation of a category, relative to the mean.
const MUTATION_MIN: f64 = 1e-6;
/// The next term is below 1e-18 where one step is expected.
pub(super) const TERMS: usize = 20;
const DOUBLINGS_MAX: u32 = 64;
