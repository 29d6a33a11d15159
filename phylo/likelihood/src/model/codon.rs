//! Codon models: rates of exchange of codons that differ in one base.
//!
//! Sources: Goldman and Yang, "A codon-based model of nucleotide substitution for protein-coding
//! DNA sequences", Molecular Biology and Evolution 11 (1994), 725-736, in the form without
//! amino-acid
//! distances that all programs use (GY); Muse and Gaut, "A likelihood approach for comparing
//! synonymous and nonsynonymous nucleotide substitution rates", the same volume, 715-724 (MG; with
//! transitions apart, MGK). Names as IQ-TREE's.
//! Of these a rate is 1, times `omega` where the amino acid changes, times `kappa` in transitions;
//! times, in GY, the new codon's frequency; in MG, the new base's. Written as exchangeabilities, MG
//! divides by the frequencies of the two bases that stay. Published matrices (KOSI07, ECMREST,
//! SCHN05) have no parameters; their papers stand with them in `data/matrices.txtar`.

use super::protein::CODONS;
use crate::msa::GeneticCode;

/// The kinds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodonKind {
    /// Goldman and Yang's.
    Gy,
    /// Muse and Gaut's, without `kappa`.
    Mg,
    /// Muse and Gaut's, with `kappa`.
    Mgk,
    /// A published matrix of the standard genetic code, by its place in the table of them.
    Published(usize),
}

impl CodonKind {
    /// All of them, with their names; the first of each is the one that is printed.
    pub(super) const NAMES: [(&'static str, Self); 12] = [
        ("GY", Self::Gy),
        ("MG", Self::Mg),
        ("MGK", Self::Mgk),
        ("KOSI07", Self::Published(0)),
        ("ECMREST", Self::Published(1)),
        ("SCHN05", Self::Published(2)),
        ("ECM", Self::Published(0)),
        ("ECMK07", Self::Published(0)),
        ("ECMS05", Self::Published(2)),
        ("GY94", Self::Gy),
        ("MG94", Self::Mg),
        ("MG94K", Self::Mgk),
    ];

    /// Number of [`Self::NAMES`] that stand for no other one.
    pub(super) const DISTINCT: usize = 6;

    /// Its name.
    #[must_use]
    pub fn label(self) -> &'static str {
        let own = Self::NAMES.iter().find(|(_, kind)| *kind == self);
        own.map_or("GY", |(label, _)| label)
    }

    /// `omega`, and `kappa` if it has one, before they are fitted.
    pub(super) fn start(self) -> Vec<f64> {
        match self {
            Self::Mg => vec![0.5],
            Self::Gy | Self::Mgk => vec![0.5, 2.0],
            Self::Published(_) => Vec::new(),
        }
    }

    /// Frequencies that belong to the matrix, if any do.
    pub(super) fn frequencies(self) -> Option<Vec<f64>> {
        match self {
            Self::Published(at) => Some(CODONS[at].matrix().frequencies.clone()),
            _ => None,
        }
    }

    /// The upper triangle of exchangeabilities from `omega` and `kappa`; `bases` are the twelve
    /// frequencies of bases by position.
    pub(super) fn exchange(self, code: GeneticCode, values: &[f64], bases: &[f64]) -> Vec<f64> {
        if let Self::Published(at) = self {
            return CODONS[at].matrix().exchange.clone();
        }
        let codons = code.codons();
        let acids: Vec<u8> = codons.iter().map(|&bases| code.amino_acid(bases)).collect();
        let (omega, kappa) = (values[0], values.get(1).copied().unwrap_or(1.0));
        let rate = |(i, j): (usize, usize)| {
            let (from, to) = (codons[i], codons[j]);
            let mut changed = (0..3).filter(|&at| from[at] != to[at]);
            // Two or three changed bases at once have rate 0.
            let (Some(at), None) = (changed.next(), changed.next()) else {
                return 0.0;
            };
            let mut rate = 1.0;
            if acids[i] != acids[j] {
                rate *= omega;
            }
            // A and G, C and T are two apart.
            if from[at].abs_diff(to[at]) == 2 {
                rate *= kappa;
            }
            // The MG models count only the frequency of the new base: the codon's other bases are
            // divided out.
            if self != Self::Gy {
                let stay = (0..3).filter(|&other| other != at);
                rate /= stay
                    .map(|other| bases[4 * other + usize::from(from[other])])
                    .product::<f64>();
            }
            rate
        };
        let states = codons.len();
        let pairs = (0..states).flat_map(|i| (i + 1..states).map(move |j| (i, j)));
        pairs.map(rate).collect()
    }
}

/// Frequencies of bases by position (twelve) from those of codons; `by_position` false: the same at
/// each.
pub(super) fn bases_of(code: GeneticCode, codons: &[f64], by_position: bool) -> Vec<f64> {
    let mut bases = vec![0.0; 12];
    for (own, share) in code.codons().iter().zip(codons) {
        for (at, &base) in own.iter().enumerate() {
            bases[4 * at + usize::from(base)] += share;
        }
    }
    if !by_position {
        for base in 0..4 {
            let mean = (bases[base] + bases[4 + base] + bases[8 + base]) / 3.0;
            (0..3).for_each(|at| bases[4 * at + base] = mean);
        }
    }
    for own in bases.chunks_mut(4) {
        // A base that never occurs keeps a small frequency, or a codon's frequency would be 0.
        own.iter_mut()
            .for_each(|share| *share = share.max(super::FREQUENCY_MIN));
        let sum: f64 = own.iter().sum();
        own.iter_mut().for_each(|share| *share /= sum);
    }
    bases
}

/// Frequencies of codons as products of those of their bases.
pub(super) fn products(code: GeneticCode, bases: &[f64]) -> Vec<f64> {
    let product = |own: &[u8; 3]| -> f64 {
        let each = own.iter().enumerate();
        each.map(|(at, &base)| bases[4 * at + usize::from(base)])
            .product()
    };
    let mut codons: Vec<f64> = code.codons().iter().map(product).collect();
    let sum: f64 = codons.iter().sum();
    codons.iter_mut().for_each(|share| *share /= sum);
    codons
}
