//! The standard genetic code: which triplets are codons, and what they stand for.
//!
//! States are the 61 codons that are not stops, in the order AAA AAC AAG AAT ACA … TTT. A triplet
//! with an ambiguous base says nothing, as with IQ-TREE; a stop is refused, since no model lets a
//! protein go on after it.

/// Number of codons that are not stops.
pub const CODONS: usize = 61;

/// Amino acids of the triplets in the order of bases A C G T, the last position turning fastest.
const AMINO_ACIDS: &[u8; 64] = b"KNKNTTTTRSRSIIMIQHQHPPPPRRRRLLLLEDEDAAAAGGGGVVVV*Y*YSSSS*CWCLFLF";

/// State by state its bases (A 0, C 1, G 2, T 3).
pub(crate) const BASES: [[u8; 3]; CODONS] = {
    let mut all = [[0; 3]; CODONS];
    let (mut triplet, mut state) = (0, 0);
    while triplet < 64 {
        if AMINO_ACIDS[triplet] != b'*' {
            all[state] = [
                (triplet / 16) as u8,
                (triplet / 4 % 4) as u8,
                (triplet % 4) as u8,
            ];
            state += 1;
        }
        triplet += 1;
    }
    all
};

/// The amino acid that a state stands for.
pub(crate) fn amino_acid(state: usize) -> u8 {
    AMINO_ACIDS[place(BASES[state])]
}

/// A state's letters.
pub(super) fn letters(state: usize) -> [u8; 3] {
    BASES[state].map(|base| b"ACGT"[usize::from(base)])
}

/// The code of three bases, given as sets of A 1, C 2, G 4, T 8: a state, [`CODONS`] where they
/// leave it open, none where they are a stop.
pub(super) fn code(sets: [u8; 3]) -> Option<u8> {
    let mut bases = [0; 3];
    let mut open = false;
    for (base, set) in bases.iter_mut().zip(sets) {
        match set.is_power_of_two() {
            true => *base = set.trailing_zeros() as u8,
            false => open = true,
        }
    }
    if open {
        return Some(CODONS as u8);
    }
    let state = BASES.iter().position(|own| *own == bases)?;
    Some(state as u8)
}

fn place(bases: [u8; 3]) -> usize {
    bases
        .iter()
        .fold(0, |place, &base| 4 * place + usize::from(base))
}
