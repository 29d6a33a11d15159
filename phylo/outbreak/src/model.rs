//! Substitution models: reversible rates of four bases, and what is derived from them.
//!
//! With `p` the frequencies and `P(t)` the transition probabilities, `p[x] P(t)[x][y]` is the sum
//! over `k` of `modes[k][x] exp(values[k] t) modes[k][y]`: symmetric, so that a branch has no
//! direction. Must stay true: the same parameters give the same doubles on every machine (`libm`);
//! small probabilities of short branches keep their digits (`expm1`). Source: Tavare, "Some
//! probabilistic and statistical problems in the analysis of DNA sequences" (1986).

use crate::OutbreakError;
use sidecore_likelihood::model::{Model, ModelName};
use sidecore_likelihood::msa::Alphabet;

/// A model that genomes are taken to evolve by.
#[derive(Debug, Clone, Default)]
pub enum ModelChoice {
    /// Equal rates and frequencies (Jukes and Cantor 1969).
    Jc,
    /// General time-reversible: frequencies of the reference, rates from the substitutions.
    #[default]
    Gtr,
    /// Rates (AC AG AT CG CT GT) and frequencies that are given.
    Given {
        /// The rates.
        exchange: [f64; 6],
        /// The frequencies of A, C, G and T.
        frequencies: [f64; 4],
    },
}

impl ModelChoice {
    /// From a name: `JC`, `GTR`, or any model of DNA with all its values in braces, such as
    /// `GTR{1/4/1/1/9/1}+FU{0.3/0.2/0.2/0.3}`, without rates across sites.
    ///
    /// # Errors
    /// [`OutbreakError::Model`].
    pub fn parse(text: &str) -> Result<Self, OutbreakError> {
        let wrong = |what: String| OutbreakError::Model {
            name: text.to_owned(),
            what,
        };
        // Names without values: the checks below are for models that are given in full.
        let upper = text.to_ascii_uppercase();
        match upper.as_str() {
            "JC" | "JC69" => return Ok(Self::Jc),
            "GTR" => return Ok(Self::Gtr),
            _ => {}
        }
        let mut no_file = |_: &str| -> std::io::Result<String> {
            Err(std::io::Error::other("no files are read here"))
        };
        let name = ModelName::parse(text, &mut no_file);
        let name = name.map_err(|error| wrong(error.to_string()))?;
        let model = Model::without_alignment(name.clone());
        let process = match name.alphabet() {
            Alphabet::Dna => model.process(),
            other => return Err(wrong(format!("it is for {other}, genomes are DNA"))),
        };
        if process.shape.rates != 1 || process.invariant > 0.0 {
            return Err(wrong("rates that differ among sites are not taken".into()));
        }
        if !model.fitted().is_empty() {
            return Err(wrong("give JC, GTR, or a model with all its values".into()));
        }
        // Else they were counted in an alignment.
        if !["+FU{", "+FE"].iter().any(|part| upper.contains(part)) {
            return Err(wrong("add its frequencies, +FE or +FU{A/C/G/T}".into()));
        }
        // The derivative of the probabilities at 0 is the rate matrix.
        let mut block = [0.0; 16];
        process.transitions(STEP, &mut block);
        // Any model of DNA, whatever its parameters are called, comes to the six rates this way.
        let frequencies: [f64; 4] = std::array::from_fn(|x| process.frequencies[x]);
        let exchange = PAIRS.map(|[x, y]| block[4 * y + x] / (STEP * frequencies[y]));
        Ok(Self::Given {
            exchange,
            frequencies,
        })
    }

    /// The rates to begin with; `shares` are the reference's.
    pub(crate) fn start(&self, shares: [f64; 4]) -> Rates {
        match self {
            Self::Jc => Rates::new([1.0; 6], [0.25; 4]),
            Self::Gtr => Rates::new([1.0; 6], shares),
            Self::Given {
                exchange,
                frequencies,
            } => Rates::new(*exchange, *frequencies),
        }
    }
}

/// Reversible rates, of mean 1.
#[derive(Debug, Clone)]
pub(crate) struct Rates {
    exchange: [f64; 6],
    /// Frequencies of the bases.
    pub(crate) frequencies: [f64; 4],
    /// Eigenvalues; one of them is 0.
    pub(crate) values: [f64; 4],
    /// See the module.
    pub(crate) modes: [[f64; 4]; 4],
}

impl Rates {
    /// From exchangeabilities AC AG AT CG CT GT and frequencies above 0.
    pub(crate) fn new(exchange: [f64; 6], frequencies: [f64; 4]) -> Self {
        let mean: f64 = PAIRS
            .iter()
            .zip(exchange)
            .map(|(&[x, y], rate)| 2.0 * rate * frequencies[x] * frequencies[y])
            .sum();
        // One substitution a site and unit of length is expected, so that lengths mean the same
        // under all rates.
        let exchange = exchange.map(|rate| rate / mean);
        // Scaled by roots of the frequencies a reversible matrix is symmetric (Tavare 1986): its
        // eigenvalues are real and its vectors orthogonal, so that no inverse is needed.
        let roots = frequencies.map(libm::sqrt);
        let mut symmetric = [[0.0; 4]; 4];
        for ([x, y], rate) in PAIRS.into_iter().zip(exchange) {
            symmetric[x][y] = rate * roots[x] * roots[y];
            symmetric[y][x] = symmetric[x][y];
            symmetric[x][x] -= rate * frequencies[y];
            symmetric[y][y] -= rate * frequencies[x];
        }
        let (mut values, vectors) = eigen(symmetric);
        // The largest is 0 by construction, and none may grow.
        if let Some(largest) = values.iter_mut().max_by(|a, b| a.total_cmp(b)) {
            *largest = 0.0;
        }
        Self {
            exchange,
            frequencies,
            // A value that rounding left above 0 would let probabilities grow with the length.
            values: values.map(|value| value.min(0.0)),
            modes: std::array::from_fn(|k| std::array::from_fn(|x| vectors[x][k] * roots[x])),
        }
    }

    /// Rates of counted substitutions: for each ordered pair of bases their number.
    pub(crate) fn of_counts(counts: &[[f64; 4]; 4], frequencies: [f64; 4]) -> Self {
        // As many sites have a base as its frequency says, so that divides the counts of both
        // directions. A little keeps a kind that was never seen possible.
        let rate = |[x, y]: [usize; 2]| {
            (counts[x][y] + counts[y][x] + PSEUDO_COUNT) / (frequencies[x] * frequencies[y])
        };
        Self::new(PAIRS.map(rate), frequencies)
    }

    /// Transition probabilities over a length.
    pub(crate) fn transitions(&self, length: f64) -> [[f64; 4]; 4] {
        // Without a length nothing could change, and no difference were possible at all.
        let length = length.max(LENGTH_TINY);
        // `exp` less the identity would cancel: branches of 1e-5 would keep five digits fewer.
        let growth = self.values.map(|value| libm::expm1(value * length));
        std::array::from_fn(|x| {
            std::array::from_fn(|y| {
                let sum = sum(|k| self.modes[k][x] * growth[k] * self.modes[k][y]);
                let own = if x == y { 1.0 } else { 0.0 };
                // Rounding may leave a little less than 0, of which no logarithm exists.
                (own + sum / self.frequencies[x]).max(0.0)
            })
        })
    }

    /// The name with all values, as `sidecore phylo evaluate` takes it.
    pub(crate) fn name(&self) -> String {
        // Only ratios matter to a model's name; GT as 1 is the convention of other programs.
        let [ac, ag, at, cg, ct, gt] = self.exchange.map(|rate| rate / self.exchange[5]);
        let [a, c, g, t] = self.frequencies;
        format!(
            "GTR{{{ac:.8}/{ag:.8}/{at:.8}/{cg:.8}/{ct:.8}/{gt:.8}}}+FU{{{a:.8}/{c:.8}/{g:.8}/\
             {t:.8}}}"
        )
    }
}

/// The sum over four numbers.
#[inline]
pub(crate) fn sum(term: impl Fn(usize) -> f64) -> f64 {
    term(0) + term(1) + term(2) + term(3)
}

/// Eigenvalues of a symmetric matrix and its eigenvectors as columns, by Jacobi's rotations.
fn eigen(mut a: [[f64; 4]; 4]) -> ([f64; 4], [[f64; 4]; 4]) {
    let mut vectors: [[f64; 4]; 4] =
        std::array::from_fn(|x| std::array::from_fn(|y| if x == y { 1.0 } else { 0.0 }));
    // A bound for numbers of any kind; a sweep over a matrix that is diagonal already passes over
    // all pairs.
    for _ in 0..SWEEPS {
        for [p, q] in PAIRS {
            // A subnormal divisor would overflow the angle's cotangent.
            if a[p][q].abs() < f64::MIN_POSITIVE {
                continue;
            }
            let theta = (a[q][q] - a[p][p]) / (2.0 * a[p][q]);
            // The smaller of the two possible angles, which keeps the rotation accurate.
            let t = match theta.is_finite() {
                true => theta.signum() / (theta.abs() + libm::sqrt(theta * theta + 1.0)),
                false => 0.0,
            };
            let c = 1.0 / libm::sqrt(t * t + 1.0);
            let s = t * c;
            let turn = |row: &mut [f64; 4]| {
                let (x, y) = (row[p], row[q]);
                row[p] = c * x - s * y;
                row[q] = s * x + c * y;
            };
            a.iter_mut().for_each(turn);
            vectors.iter_mut().for_each(turn);
            let (upper, lower) = (a[p], a[q]);
            a[p] = std::array::from_fn(|k| c * upper[k] - s * lower[k]);
            a[q] = std::array::from_fn(|k| s * upper[k] + c * lower[k]);
            // Zero by the choice of the angle; rounding would leave a rest that later turns
            // amplify.
            a[p][q] = 0.0;
            a[q][p] = 0.0;
        }
    }
    (std::array::from_fn(|x| a[x][x]), vectors)
}

/// Pairs of bases, in the order of a model's rates.
const PAIRS: [[usize; 2]; 6] = [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]];
/// Length of a branch of none, in substitutions a site: a substitution on it stays possible, at
/// a price that no fit pays. It is small against a branch times `sparse::SMALL`.
pub(crate) const LENGTH_TINY: f64 = 1e-16;
/// A length at which probabilities are proportional to rates.
const STEP: f64 = 1e-10;
/// Added to the number of substitutions of each kind.
const PSEUDO_COUNT: f64 = 0.1;
/// Four rows need six or seven.
const SWEEPS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_the_likelihoods_own() {
        let text = "GTR{1.5/4/0.5/0.7/9/1}+FU{0.3/0.2/0.15/0.35}";
        let choice = ModelChoice::parse(text).unwrap();
        let rates = choice.start([0.25; 4]);
        let name = ModelName::parse(text, &mut |_| unreachable!()).unwrap();
        let process = Model::without_alignment(name).process();
        for length in [1e-6, 3e-5, 0.01, 0.3, 5.0] {
            let mut block = [0.0; 16];
            process.transitions(length, &mut block);
            for (x, row) in rates.transitions(length).iter().enumerate() {
                assert!((row.iter().sum::<f64>() - 1.0).abs() < 1e-12);
                for (y, own) in row.iter().enumerate() {
                    let known = block[4 * y + x];
                    assert!(
                        (own - known).abs() <= 1e-7 * known,
                        "{length} {own} {known}"
                    );
                }
            }
        }
        let again = ModelChoice::parse(&rates.name()).unwrap().start([0.25; 4]);
        assert!((again.transitions(0.1)[1][3] - rates.transitions(0.1)[1][3]).abs() < 1e-5);
    }

    #[test]
    fn models_that_are_not_taken_say_so() {
        for (text, said) in [
            ("LG", "protein"),
            (
                "GTR{1/1/1/1/1/1}+FU{0.25/0.25/0.25/0.25}+G4m{0.5}",
                "among sites",
            ),
            ("HKY", "all its values"),
            ("nonsense", "nonsense"),
        ] {
            let error = ModelChoice::parse(text).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains('\n'), "{error}");
        }
    }
}
