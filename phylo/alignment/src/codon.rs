//! Genetic codes: the triplets that are codons, and their amino acids.
//!
//! States are the codons that are not stops, in the order AAA AAC AAG AAT ACA … TTT. A triplet with
//! an ambiguous base counts as missing, as with IQ-TREE. A stop is refused, since no model lets a
//! protein continue after it.
//! Source: the genetic codes of the National Center for Biotechnology Information, by their numbers
//! there (`transl_table` of sequence files).

use std::str::FromStr;

/// A genetic code, by its place in the table of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GeneticCode(usize);

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

/// The place of three bases in [`TABLES`]' order.
const fn place([first, second, third]: [u8; 3]) -> usize {
    16 * PLACES[first as usize] + 4 * PLACES[second as usize] + PLACES[third as usize]
}

/// Code by code and state by state its bases.
static CODONS: [[[u8; 3]; 64]; TABLES.len()] = {
    let mut all = [[[0; 3]; 64]; TABLES.len()];
    let mut code = 0;
    while code < TABLES.len() {
        let (mut triplet, mut state) = (0_u8, 0);
        while triplet < 64 {
            let bases = [triplet / 16, triplet / 4 % 4, triplet % 4];
            if TABLES[code].1[place(bases)] != b'*' {
                all[code][state] = bases;
                state += 1;
            }
            triplet += 1;
        }
        code += 1;
    }
    all
};

impl FromStr for GeneticCode {
    type Err = String;

    /// The code of a number that is written in digits.
    fn from_str(text: &str) -> Result<Self, String> {
        let code = text.parse().ok().and_then(Self::new);
        code.ok_or_else(|| "1 to 6, 9 to 16 or 21 to 25".to_owned())
    }
}

impl GeneticCode {
    /// The code of most genes in nuclei.
    pub const STANDARD: Self = Self(0);

    /// The code of this number; `None` if there is none, or one whose stops may also be amino acids
    /// (27, 28, 31).
    #[must_use]
    pub fn new(number: u8) -> Option<Self> {
        let place = TABLES.iter().position(|(own, _)| *own == number);
        place.map(Self)
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u8 {
        TABLES[self.0].0
    }

    /// The numbers of all of them.
    pub fn numbers() -> impl Iterator<Item = u8> {
        TABLES.iter().map(|(number, _)| *number)
    }

    /// The amino acid of three bases (A 0, C 1, G 2, T 3), or `*`.
    ///
    /// # Panics
    /// When a base is above 3.
    #[must_use]
    pub fn amino_acid(self, bases: [u8; 3]) -> u8 {
        TABLES[self.0].1[place(bases)]
    }

    /// State by state its bases.
    #[must_use]
    pub fn codons(self) -> &'static [[u8; 3]] {
        &CODONS[self.0][..self.states()]
    }

    /// Number of codons that are not stops, 60 to 63.
    #[must_use]
    pub fn states(self) -> usize {
        let acids = TABLES[self.0].1.iter();
        acids.filter(|&&acid| acid != b'*').count()
    }

    /// A state's letters.
    pub(super) fn letters(self, state: usize) -> [u8; 3] {
        self.codons()[state].map(|base| b"ACGT"[usize::from(base)])
    }

    /// The code of three bases, given as sets of A 1, C 2, G 4, T 8: a state, the number of states
    /// if they are ambiguous, `None` if they are a stop.
    pub(super) fn code(self, sets: [u8; 3]) -> Option<u8> {
        if sets.iter().any(|set| !set.is_power_of_two()) {
            return Some(self.states() as u8);
        }
        let bases = sets.map(|set| set.trailing_zeros() as u8);
        let state = self.codons().iter().position(|own| *own == bases)?;
        Some(state as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_named_by_its_number_in_digits() {
        assert_eq!("11".parse(), Ok(GeneticCode::new(11).unwrap()));
        for odd in ["0", "27", "x", ""] {
            let refused = odd.parse::<GeneticCode>().unwrap_err();
            assert!(refused.contains("21 to 25"), "{odd}");
        }
    }
}
