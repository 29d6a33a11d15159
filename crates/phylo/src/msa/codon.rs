//! Genetic codes: which triplets are codons, and what they stand for.
//!
//! States are the codons that are not stops, in the order AAA AAC AAG AAT ACA … TTT. A triplet with
//! an ambiguous base says nothing, as with IQ-TREE; a stop is refused, since no model lets a
//! protein go on after it.
//! Source: the genetic codes of the National Center for Biotechnology Information, by their numbers
//! there (`transl_table` of sequence files).

/// A genetic code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GeneticCode(u8);

/// Amino acids of the triplets in the order of bases T C A G, the last position turning fastest; a
/// stop is `*`.
#[rustfmt::skip] // One line each, to be compared by eye.
const TABLES: [(u8, &[u8; 64]); 19] = [
    (1, b"FFLLSSSSYY**CC*WLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"),
    (2, b"FFLLSSSSYY**CCWWLLLLPPPPHHQQRRRRIIMMTTTTNNKKSS**VVVVAAAADDEEGGGG"),
    (3, b"FFLLSSSSYY**CCWWTTTTPPPPHHQQRRRRIIMMTTTTNNKKSSRRVVVVAAAADDEEGGGG"),
    (4, b"FFLLSSSSYY**CCWWLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"),
    (5, b"FFLLSSSSYY**CCWWLLLLPPPPHHQQRRRRIIMMTTTTNNKKSSSSVVVVAAAADDEEGGGG"),
    (6, b"FFLLSSSSYYQQCC*WLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"),
    (9, b"FFLLSSSSYY**CCWWLLLLPPPPHHQQRRRRIIIMTTTTNNNKSSSSVVVVAAAADDEEGGGG"),
    (10, b"FFLLSSSSYY**CCCWLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"),
    (11, b"FFLLSSSSYY**CC*WLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"),
    (12, b"FFLLSSSSYY**CC*WLLLSPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"),
    (13, b"FFLLSSSSYY**CCWWLLLLPPPPHHQQRRRRIIMMTTTTNNKKSSGGVVVVAAAADDEEGGGG"),
    (14, b"FFLLSSSSYYY*CCWWLLLLPPPPHHQQRRRRIIIMTTTTNNNKSSSSVVVVAAAADDEEGGGG"),
    (15, b"FFLLSSSSYY*QCC*WLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"),
    (16, b"FFLLSSSSYY*LCC*WLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"),
    (21, b"FFLLSSSSYY**CCWWLLLLPPPPHHQQRRRRIIMMTTTTNNNKSSSSVVVVAAAADDEEGGGG"),
    (22, b"FFLLSS*SYY*LCC*WLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"),
    (23, b"FF*LSSSSYY**CC*WLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"),
    (24, b"FFLLSSSSYY**CCWWLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSSKVVVVAAAADDEEGGGG"),
    (25, b"FFLLSSSSYY**CCGWLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"),
];

/// The place in [`TABLES`]' order of each base in the order A C G T.
const PLACES: [usize; 4] = [2, 1, 3, 0];

impl GeneticCode {
    /// The code of most genes in nuclei.
    pub const STANDARD: Self = Self(1);

    /// The code of this number; none where there is none, or one whose stops may also be amino
    /// acids (27, 28, 31).
    #[must_use]
    pub fn new(number: u8) -> Option<Self> {
        let known = TABLES.iter().any(|(own, _)| *own == number);
        known.then_some(Self(number))
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u8 {
        self.0
    }

    /// The numbers of all of them.
    pub fn numbers() -> impl Iterator<Item = u8> {
        TABLES.iter().map(|(number, _)| *number)
    }

    /// The amino acid of three bases (A 0, C 1, G 2, T 3), or `*`.
    pub(crate) fn amino_acid(self, bases: [u8; 3]) -> u8 {
        let at = |sum, &base: &u8| 4 * sum + PLACES[usize::from(base)];
        let place = bases.iter().fold(0, at);
        let own = TABLES.iter().find(|(number, _)| *number == self.0);
        own.map_or(b'*', |(_, table)| table[place])
    }

    /// State by state its bases.
    pub(crate) fn codons(self) -> Vec<[u8; 3]> {
        let triplets = (0..64_u8).map(|at| [at / 16, at / 4 % 4, at % 4]);
        let codons = triplets.filter(|&bases| self.amino_acid(bases) != b'*');
        codons.collect()
    }

    /// Number of codons that are not stops, 60 to 63.
    #[must_use]
    pub fn states(self) -> usize {
        let own = TABLES.iter().find(|(number, _)| *number == self.0);
        own.map_or(0, |(_, table)| {
            table.iter().filter(|&&acid| acid != b'*').count()
        })
    }

    /// A state's letters.
    pub(super) fn letters(self, state: usize) -> [u8; 3] {
        self.codons()[state].map(|base| b"ACGT"[usize::from(base)])
    }

    /// The code of three bases, given as sets of A 1, C 2, G 4, T 8: a state, the number of states
    /// where they leave it open, none where they are a stop.
    pub(super) fn code(self, sets: [u8; 3]) -> Option<u8> {
        if sets.iter().any(|set| !set.is_power_of_two()) {
            return Some(self.states() as u8);
        }
        let bases = sets.map(|set| set.trailing_zeros() as u8);
        let place = |bases: [u8; 3]| bases.iter().fold(0, |sum, &base| 4 * sum + base);
        if self.amino_acid(bases) == b'*' {
            return None;
        }
        let before = (0..place(bases)).map(|at| [at / 16, at / 4 % 4, at % 4]);
        let state = before.filter(|&bases| self.amino_acid(bases) != b'*');
        Some(state.count() as u8)
    }
}
