//! Polymorphism-aware models (PoMo): populations, of each of which several sequences are known.
//!
//! A state is a population of `N` virtual individuals at one site: all of them have one base, or
//! two bases in some proportion. A population of one base mutates by a reversible model of DNA,
//! proportions drift as in Moran's model. `HKY+P` has nine individuals, `HKY+P+N5` five. `+P{0.01}`
//! fixes theta, Watterson's heterozygosity, which is fitted else. Lengths count mutations and
//! shifts of proportions. Rates across sites (`+G4`) are those of mutations; a length has as many
//! events in each category.
//! A tip's counts are draws from its population (weighted binomial sampling); counts of three or
//! four bases, which no state has, say nothing.
//! Sources: De Maio, Schrempf and Kosiol, "PoMo: an allele frequency-based approach for species
//! tree estimation", Systematic Biology 64 (2015), 1018-1031; Schrempf and others, "Reversible
//! polymorphism-aware phylogenetic models and their application to tree inference", Journal of
//! Theoretical Biology 407 (2016), 362-370, with the format of counts files; Schrempf, Minh, von
//! Haeseler and Kosiol, Molecular Biology and Evolution 36 (2019), 1294-1301, for rates across
//! sites.

use super::Data;
use crate::model::{FREQUENCY_MIN, Model, ModelError};
use crate::msa::{Alignment, MsaError, shown};
use sidecore_bare::width::ToUsize;
use std::collections::HashMap;

/// The parts of a name that make a model one of populations.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PomoName {
    /// Virtual individuals.
    pub(super) size: usize,
    /// Nothing where it is fitted.
    pub(super) theta: Option<f64>,
}

impl PomoName {
    /// These parts, and the name without them; none where it has no `+P`.
    pub(super) fn split(text: &str) -> Result<Option<(Self, String)>, ModelError> {
        let value = |value: &str, what, range| ModelError::Value {
            model: shown(text),
            value: shown(value),
            what,
            range,
        };
        let mut depth = 0_usize;
        let parts = text.split(|c: char| {
            depth = match c {
                '{' => depth + 1,
                '}' => depth.saturating_sub(1),
                _ => depth,
            };
            // Exponents inside braces may have a sign of their own.
            depth == 0 && c == '+'
        });
        let (mut base, mut theta, mut size) = (Vec::new(), None, SIZE);
        for (at, part) in parts.enumerate() {
            let upper = part.to_ascii_uppercase();
            let inside = upper.strip_prefix("P{");
            let inside = inside.and_then(|rest| rest.strip_suffix('}'));
            let digits = upper.strip_prefix('N').unwrap_or_default();
            if at > 0 && upper == "P" {
                theta = Some(None);
            } else if let (true, Some(inside)) = (at > 0, inside) {
                theta = Some(Some(inside.to_owned()));
            } else if at > 0 && digits.starts_with(|c: char| c.is_ascii_digit()) {
                let own: Option<usize> = digits.parse().ok();
                let own = own.filter(|own| (2..=SIZE_MAX).contains(own));
                size = own.ok_or_else(|| value(digits, "size of a population", "2 to 19"))?;
            } else {
                base.push(part);
            }
        }
        let Some(theta) = theta else {
            return Ok(None);
        };
        let mut found = Self { size, theta: None };
        if let Some(inside) = theta {
            let [least, most] = found.theta_range();
            let own: Option<f64> = inside.trim().parse().ok();
            // What is printed is rounded to six decimals.
            let own = own.filter(|own| (least..=most + 1e-6).contains(own));
            let range = "0.000001 to 0.99 / (1 + 1/2 + … + 1/(N - 1))";
            let own = own.ok_or_else(|| value(&inside, "heterozygosity", range))?;
            found.theta = Some(own);
        }
        Ok(Some((found, base.join("+"))))
    }

    /// The heterozygosities that there may be. Each is the share of populations with two bases,
    /// divided by the sum of [`Self::reciprocals`]: that share is 0.99 at most.
    pub(super) fn theta_range(&self) -> [f64; 2] {
        [THETA_MIN, 0.99 / self.reciprocals()]
    }

    /// The mean rate of mutation of a heterozygosity, in units of drift.
    pub(super) fn mutation(&self, theta: f64) -> f64 {
        theta / (1.0 - theta * self.reciprocals())
    }

    /// The sum of the reciprocals of all numbers below that of individuals.
    fn reciprocals(&self) -> f64 {
        (1..self.size).map(|k| 1.0 / k as f64).sum()
    }

    /// Number of states.
    pub(super) fn states(&self) -> usize {
        states(self.size)
    }

    /// Rates, row by row, with a mean rate of mutation; the diagonal is 0.
    pub(super) fn rates(&self, base: &Model, mutation: f64) -> Vec<f64> {
        let (exchange, shares) = base.exchange_and_frequencies();
        let (n, size) = (self.states(), self.size);
        let mean: f64 = PAIRS
            .iter()
            .zip(&exchange)
            .map(|((a, b), rate)| 2.0 * rate * shares[*a] * shares[*b])
            .sum();
        let mut rates = vec![0.0; n * n];
        for (pair, (&(a, b), rate)) in PAIRS.iter().zip(&exchange).enumerate() {
            // The mean is that in the base model's equilibrium, so that a heterozygosity means the
            // same for all of these.
            let rate = rate * mutation / mean;
            rates[a * n + place(pair, size - 1, size)] = rate * shares[b];
            rates[b * n + place(pair, 1, size)] = rate * shares[a];
            for copies in 1..size {
                // Moran's model: one of each base is chosen, to reproduce and to die.
                let drift = (copies * (size - copies)) as f64 / size as f64;
                let from = place(pair, copies, size);
                // A proportion that is fixed is the state of its base alone.
                let more = match copies + 1 == size {
                    true => a,
                    false => place(pair, copies + 1, size),
                };
                let less = match copies {
                    1 => b,
                    _ => place(pair, copies - 1, size),
                };
                rates[from * n + more] = drift;
                rates[from * n + less] = drift;
            }
        }
        rates
    }
}

/// Number of states of populations of a size.
fn states(size: usize) -> usize {
    4 + PAIRS.len() * (size - 1)
}

/// The state of a pair's two bases, with this number of copies of the first.
fn place(pair: usize, copies: usize, size: usize) -> usize {
    4 + pair * (size - 1) + copies - 1
}

/// Counts of bases in populations, site by site.
#[derive(Debug, Clone)]
pub struct Counts {
    majority: Alignment,
    /// Population by population, site by site: of A, C, G and T.
    counts: Vec<Vec<[u32; 4]>>,
}

impl Counts {
    /// Reads a counts file: `COUNTSFILE NPOP n NSITES n`, a line `CHROM POS` and the populations'
    /// names, then for each site a line of its place and of counts `A,C,G,T` of each population.
    /// Lines that begin with `#` are comments.
    ///
    /// # Errors
    /// [`MsaError`]: another format, other numbers of populations or sites, fewer than three
    /// populations, names that occur twice.
    pub fn parse(text: &str) -> Result<Self, MsaError> {
        let mut header: Option<[usize; 2]> = None;
        let mut names: Vec<String> = Vec::new();
        let mut counts: Vec<Vec<[u32; 4]>> = Vec::new();
        let wrong = |line: usize, what: String| MsaError::Format {
            format: "counts file",
            line,
            what,
        };
        let mut last = 1;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            last = number + 1;
            let words: Vec<&str> = line.split_whitespace().collect();
            let Some([populations, _]) = header else {
                let found = head(&words).ok_or_else(|| {
                    let what = "it does not begin with `COUNTSFILE NPOP n NSITES n`";
                    wrong(last, what.to_owned())
                })?;
                header = Some(found);
                continue;
            };
            if words.len().checked_sub(2) != Some(populations) {
                let found = words.len();
                let what = format!("{found} words: a place of two, and {populations} populations");
                return Err(wrong(last, what));
            }
            if names.is_empty() {
                names = words[2..].iter().map(|&word| word.to_owned()).collect();
                counts = vec![Vec::new(); names.len()];
                continue;
            }
            for (own, word) in counts.iter_mut().zip(&words[2..]) {
                let found = four(word).ok_or_else(|| {
                    let what = format!("`{}` is no counts A,C,G,T", shown(word));
                    wrong(last, what)
                })?;
                own.push(found);
            }
        }
        let [_, expected] = header.unwrap_or_default();
        let found = counts.first().map_or(0, Vec::len);
        if found != expected {
            let what = format!("{found} sites are there, the header says {expected}");
            return Err(wrong(last, what));
        }
        let rows = counts.iter().map(|own| own.iter().map(most).collect());
        Ok(Self {
            majority: Alignment::new(names, rows.collect())?,
            counts,
        })
    }

    /// The most frequent base of each population at each site, as an alignment of the populations'
    /// names.
    #[must_use]
    pub fn majority(&self) -> &Alignment {
        &self.majority
    }

    /// The share of each base in all counts that are read.
    pub(super) fn shares(&self) -> Vec<f64> {
        let mut sums = [0.0; 4];
        let read = |own: &&[u32; 4]| own.iter().filter(|count| **count > 0).count() <= 2;
        for own in self.counts.iter().flatten().filter(read) {
            let pairs = sums.iter_mut().zip(own);
            pairs.for_each(|(sum, &count)| *sum += f64::from(count));
        }
        let whole: f64 = sums.iter().sum();
        // A base that no population has keeps a little, as it does where letters are counted.
        let shares = sums.map(|own| (own / whole.max(1.0)).max(FREQUENCY_MIN));
        let whole: f64 = shares.iter().sum();
        shares.iter().map(|own| own / whole).collect()
    }

    /// Number of cells with three or four bases, which say nothing.
    #[must_use]
    pub fn unread(&self) -> usize {
        let many = |own: &&[u32; 4]| own.iter().filter(|count| **count > 0).count() > 2;
        self.counts.iter().flatten().filter(many).count()
    }

    /// As patterns, for populations of a size.
    pub(super) fn data(&self, size: usize) -> Data {
        let sites = self.majority.sites();
        let mut data = Data {
            codes: vec![Vec::new(); self.counts.len()],
            states: Vec::new(),
            weights: Vec::new(),
            common: Vec::new(),
            sites: Vec::new(),
            columns: sites,
            offsets: Vec::new(),
        };
        // Of each code the logarithm that its likelihoods were divided by.
        let mut scales = Vec::new();
        let mut numbers: HashMap<[u32; 4], u32> = HashMap::new();
        let mut patterns: HashMap<Vec<u32>, usize> = HashMap::new();
        for site in 0..sites {
            let mut column = Vec::with_capacity(self.counts.len());
            for own in &self.counts {
                // Far fewer than 2^32.
                let next = numbers.len() as u32;
                let code = *numbers.entry(own[site]).or_insert(next);
                if code == next {
                    // Once for each different quadruple: alignments of millions of sites have few.
                    let (states, scale) = scaled(own[site], size);
                    data.states.push(states);
                    scales.push(scale);
                }
                column.push(code);
            }
            let next = data.weights.len();
            let pattern = match patterns.get(&column) {
                Some(&pattern) => pattern,
                None => {
                    let each = data.codes.iter_mut().zip(&column);
                    each.for_each(|(codes, code)| codes.push(*code));
                    data.weights.push(0);
                    // No state is taken for invariable: these models have no +I.
                    data.common.push(0);
                    let own = column.iter().map(|code| scales[code.to_usize()]);
                    data.offsets.push(own.sum());
                    patterns.insert(column, next);
                    next
                }
            };
            data.weights[pattern] += 1;
            data.sites.push((site, pattern));
        }
        data
    }
}

/// Populations and sites of a header.
fn head(words: &[&str]) -> Option<[usize; 2]> {
    let &["COUNTSFILE", "NPOP", populations, "NSITES", sites] = words else {
        return None;
    };
    Some([populations.parse().ok()?, sites.parse().ok()?])
}

/// Counts with commas between.
fn four(word: &str) -> Option<[u32; 4]> {
    let each = word.split(',').map(|count| count.parse().ok());
    let each: Vec<u32> = each.collect::<Option<_>>()?;
    let counts: [u32; 4] = each.try_into().ok()?;
    counts
        .iter()
        .all(|count| *count <= COUNT_MAX)
        .then_some(counts)
}

/// The letter of the most frequent base, the first of equal ones.
fn most(counts: &[u32; 4]) -> u8 {
    let mut best = (b'-', 0);
    for (&letter, &count) in b"ACGT".iter().zip(counts) {
        if count > best.1 {
            best = (letter, count);
        }
    }
    best.0
}

/// The states of a population from which counts may be drawn, each with the chance of it divided by
/// the highest of them; and the logarithm of this one, which is too small for a number where counts
/// are large.
fn scaled(counts: [u32; 4], size: usize) -> (Vec<(usize, f64)>, f64) {
    let mut states = log_likelihoods(counts, size);
    let most = states.iter().map(|own| own.1);
    let most = most.fold(f64::NEG_INFINITY, f64::max);
    for (_, share) in &mut states {
        // Hundreds of draws have likelihoods that no double holds: the largest is 1, and its
        // logarithm is added at the end.
        *share = libm::exp(*share - most);
    }
    (states, most)
}

/// The states of a population from which counts may be drawn, each with the logarithm of its
/// chance.
fn log_likelihoods(counts: [u32; 4], size: usize) -> Vec<(usize, f64)> {
    let there: Vec<usize> = (0..4).filter(|&base| counts[base] > 0).collect();
    let log = |copies: usize| libm::log(copies as f64 / size as f64);
    let of = |base: usize| f64::from(counts[base]);
    match there[..] {
        [own] => {
            let mut all = vec![(own, 0.0)];
            for (pair, &(a, b)) in PAIRS.iter().enumerate() {
                if a != own && b != own {
                    continue;
                }
                for copies in 1..size {
                    let first = if a == own { copies } else { size - copies };
                    all.push((place(pair, first, size), of(own) * log(copies)));
                }
            }
            all
        }
        [a, b] => {
            let pair = PAIRS.iter().position(|&own| own == (a, b)).unwrap_or(0);
            let ways = libm::lgamma(of(a) + of(b) + 1.0);
            let ways = ways - libm::lgamma(of(a) + 1.0) - libm::lgamma(of(b) + 1.0);
            let chance = |copies: usize| {
                let log = of(a) * log(copies) + of(b) * log(size - copies);
                (place(pair, copies, size), ways + log)
            };
            (1..size).map(chance).collect()
        }
        // No count, or more bases than a state has.
        _ => (0..states(size)).map(|state| (state, 0.0)).collect(),
    }
}

/// Pairs of bases, in the order of exchange rates.
const PAIRS: [(usize, usize); 6] = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)];
/// Virtual individuals unless said otherwise: IQ-TREE's.
const SIZE: usize = 9;
const SIZE_MAX: usize = 19;
const THETA_MIN: f64 = 1e-6;
pub(super) const THETA_START: f64 = 0.01;
const COUNT_MAX: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::msa::{Alphabet, Patterns};
    use crate::newick::Newick;
    use crate::rooted::{RootedLikelihood, RootedModel, RootedModelName, RootedTree};
    use crate::runner::Serial;
    use proptest::prelude::*;

    const FILE: &str = "# a comment\nCOUNTSFILE NPOP 3 NSITES 5\nCHROM POS one two three\n\
                        1 1 0,0,1,0 0,0,5,0 1,0,3,0\n1 2 2,0,0,0 3,0,0,0 0,0,0,4\n\
                        1 3 0,2,0,2 0,9,0,0 0,0,0,0\n1 4 1,1,1,0 0,4,0,0 0,3,0,1\n\
                        2 1 0,0,1,0 0,0,5,0 1,0,3,0\n";

    fn likelihoods(counts: [u32; 4], size: usize) -> Vec<(usize, f64)> {
        let own = log_likelihoods(counts, size).into_iter();
        own.map(|(state, log)| (state, log.exp())).collect()
    }

    fn model(text: &str, counts: &Counts) -> RootedModel {
        let name = RootedModelName::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into()));
        let patterns = Patterns::new(counts.majority(), Alphabet::Dna).unwrap();
        RootedModel::new(name.unwrap().unwrap(), &patterns)
    }

    #[test]
    fn the_equilibrium_is_the_known_one() {
        let counts = Counts::parse(FILE).unwrap();
        let size = 9;
        // Watterson's: the share of polymorphic populations is theta times a sum of reciprocals.
        let harmonic: f64 = (1..size).map(|k| 1.0 / k as f64).sum();
        let mutation = 0.02 / (1.0 - 0.02 * harmonic);
        let own = model("GTR{1/4/0.5/2/5/1}+FU{0.1/0.2/0.3/0.4}+P{0.02}", &counts);
        let matrices = own.matrices(&[1.0]).unwrap();
        let matrix = &matrices[0];
        let (exchange, shares) = ([1.0, 4.0, 0.5, 2.0, 5.0, 1.0], [0.1, 0.2, 0.3, 0.4]);
        let mean = |(&(a, b), rate): (&(usize, usize), &f64)| 2.0 * rate * shares[a] * shares[b];
        let mean: f64 = PAIRS.iter().zip(&exchange).map(mean).sum();
        let mut expected = shares.to_vec();
        for (&(a, b), rate) in PAIRS.iter().zip(&exchange) {
            for copies in 1..size {
                let both = (copies * (size - copies)) as f64 / size as f64;
                expected.push(shares[a] * shares[b] * rate * mutation / mean / both);
            }
        }
        let sum: f64 = expected.iter().sum();
        assert_eq!(expected.len(), 52);
        for (found, expected) in matrix.equilibrium().iter().zip(&expected) {
            assert!((found - expected / sum).abs() < 1e-14, "{found} {expected}");
        }
        assert!(((sum - 1.0) / sum - 0.02 * harmonic).abs() < 1e-12, "{sum}");
    }

    #[test]
    fn a_likelihood_is_the_sum_over_all_states() {
        let counts = Counts::parse(FILE).unwrap();
        let lengths = [0.3, 0.5, 0.2];
        let newick = Newick::parse("(one:0.3,two:0.5,three:0.2);").unwrap();
        let own = model("HKY{1/3}+FU{0.1/0.2/0.3/0.4}+G3m{0.4}+P{0.05}+N4", &counts);
        let rates = own.across.process().rates;
        // Sites differ in their rates of mutation.
        let matrices = own.matrices(&rates).unwrap();
        let n = matrices[0].equilibrium().len();
        assert_eq!((n, matrices.len()), (22, 3));
        let tree = RootedTree::from_any(&newick, counts.majority().names()).unwrap();
        let mut likelihood = RootedLikelihood::of_counts(tree, &counts, own, Serial).unwrap();
        let found = likelihood.site_log_likelihoods().unwrap();
        assert_eq!(found.len(), 5);
        for (site, lnl) in found.iter().enumerate() {
            let mut sum = 0.0;
            for (matrix, root) in matrices
                .iter()
                .flat_map(|own| (0..n).map(move |k| (own, k)))
            {
                let mut product = matrix.equilibrium()[root] / 3.0;
                for (length, own) in lengths.iter().zip(&counts.counts) {
                    let mut table = vec![0.0; n * n];
                    matrix.transitions(*length, &mut table);
                    let each = likelihoods(own[site], 4).into_iter();
                    product *= each
                        .map(|(state, share)| table[root * n + state] * share)
                        .sum::<f64>();
                }
                sum += product;
            }
            assert!((lnl - sum.ln()).abs() < 1e-12, "{site}: {lnl} {}", sum.ln());
        }
        assert_eq!(found[0], found[4]);
        let before = likelihood.evaluate().unwrap();
        assert!(likelihood.optimise(0.01).unwrap() >= before);
    }

    /// IQ-TREE 2.0.7 and 3.0.1, `-blfix`, names as here but for `HKY{3}` and `+F{0.3,…}`. With
    /// rates across sites kappa is what 2.0.7 fitted (`-a 1`). Sums over states by matrix
    /// exponentials, made in another language, have these figures to 1e-7.
    #[test]
    fn figures_are_iqtrees() {
        let text = "COUNTSFILE NPOP 4 NSITES 6\nCHROM POS one two three four\n\
                    1 1 0,0,1,0 0,0,5,0 1,0,3,0 0,0,4,0\n1 2 2,0,0,0 3,0,0,0 0,0,0,4 6,0,0,2\n\
                    1 3 0,2,0,2 0,9,0,0 0,0,0,6 0,3,0,1\n1 4 4,0,0,0 0,4,0,0 0,3,0,1 2,0,0,0\n\
                    1 5 0,0,1,0 0,0,5,0 1,0,3,0 0,0,8,0\n2 1 5,0,0,0 4,0,0,0 7,0,0,0 9,0,0,0\n";
        let counts = Counts::parse(text).unwrap();
        let newick = Newick::parse("(one:1.3,two:2.5,(three:1.2,four:0.7):0.9);").unwrap();
        for (name, expected) in [
            ("HKY{1/3}+F+P{0.05}+N5", -48.827_581_2),
            (
                "HKY{1/3.808416234}+FU{0.3/0.2/0.2/0.3}+G4m{1}+P{0.02}+N5",
                -53.321_713_6,
            ),
        ] {
            let tree = RootedTree::from_any(&newick, counts.majority().names()).unwrap();
            let own = model(name, &counts);
            let mut own = RootedLikelihood::of_counts(tree, &counts, own, Serial).unwrap();
            let found = own.evaluate().unwrap();
            assert!(
                (found - expected).abs() < 1e-5,
                "{name}: {found} {expected}"
            );
        }
    }

    #[test]
    fn large_counts_do_not_underflow() {
        let text = "COUNTSFILE NPOP 3 NSITES 1\nCHROM POS one two three\n\
                    1 1 900000,0,1,0 3,0,700000,0 1,0,1000000,0\n";
        let counts = Counts::parse(text).unwrap();
        let newick = Newick::parse("(one:0.3,two:0.5,three:0.2);").unwrap();
        let tree = RootedTree::from_any(&newick, counts.majority().names()).unwrap();
        let own = model("HKY{1/3}+FU{0.1/0.2/0.3/0.4}+P{0.05}+N4", &counts);
        let mut likelihood = RootedLikelihood::of_counts(tree, &counts, own, Serial).unwrap();
        let found = likelihood.evaluate().unwrap();
        assert!(found < -10_000.0, "{found}");
    }

    #[test]
    fn chances_of_counts_sum_to_one() {
        // All ways to draw three from a population of two bases.
        let size = 5;
        for copies in 1..size {
            let state = place(1, copies, size);
            let draws = [[3, 0, 0, 0], [2, 0, 1, 0], [1, 0, 2, 0], [0, 0, 3, 0]];
            let chance = |counts: [u32; 4]| -> f64 {
                let own = likelihoods(counts, size).into_iter();
                own.filter(|own| own.0 == state).map(|own| own.1).sum()
            };
            assert!((draws.map(chance).iter().sum::<f64>() - 1.0).abs() < 1e-12);
        }
        assert_eq!(likelihoods([0, 0, 0, 0], size).len(), 28);
        assert_eq!(likelihoods([1, 0, 2, 3], size).len(), 28);
    }

    #[test]
    fn files_and_names_are_checked() {
        let counts = Counts::parse(FILE).unwrap();
        assert_eq!(counts.majority().names(), ["one", "two", "three"]);
        assert_eq!(counts.majority().row(2), b"GT-CG");
        assert_eq!(counts.unread(), 1);
        for (from, to, said) in [
            ("NPOP 3", "NPOP 4", "line 3: 5 words"),
            (
                "NSITES 5",
                "NSITES 6",
                "5 sites are there, the header says 6",
            ),
            ("COUNTSFILE", "COUNTS", "does not begin"),
            ("2,0,0,0", "2,0,0", "line 5: `2,0,0` is no counts"),
            ("2,0,0,0", "2,0,0,-1", "is no counts"),
            ("2,0,0,0", "2,0,0,0 1", "line 5"),
            ("two", "one", "`one`"),
        ] {
            let error = Counts::parse(&FILE.replacen(from, to, 1)).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
        assert!(Counts::parse("").is_err());
        let own = model("HKY{1/3}+F+P{0.01}+N5+G4m{0.5}", &counts);
        let again = model(&own.to_string(), &counts);
        assert_eq!(own.to_string(), again.to_string());
        let parse = |text: &str| {
            RootedModelName::parse(text, &mut |_| Err(std::io::ErrorKind::NotFound.into()))
        };
        for (text, said) in [
            ("HKY+P{2}", "heterozygosity"),
            ("HKY+P{0.3}+N19", "heterozygosity"),
            ("HKY+P+N1", "size of a population"),
            ("HKY+P+I", "populations"),
            ("LG+P", "populations"),
            ("HKY+P+X", "`HKY+P+X`"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(
            text in "(COUNTSFILE NPOP 3 NSITES [0-3]\n)?[ -~\n]{0,80}"
        ) {
            let _ = Counts::parse(&text);
        }
    }
}
