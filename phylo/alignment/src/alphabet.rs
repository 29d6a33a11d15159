//! The characters of sequences, and the states that each of them may be.
//!
//! A *code* is a character's number within its alphabet; characters that mean the same have one
//! code. DNA: the code is the set of states itself (A 1, C 2, G 4, T 8). Protein: 20 states in the
//! order A R N D C Q E G H I L K M F P S T W Y V, then B (N or D), Z (Q or E), J (I or L), and
//! "unknown" for X, `-`, `?`, `*`, `~`, and for O and U (pyrrolysine and selenocysteine, which no
//! matrix has; RNA that was given a protein's model is found by its letters as a whole).
//!
//! Binary: 0 and 1. Multistate: up to 64 states in the order of [`MULTISTATE`], without case.
//! Genotypes of diploid cells: the ten unordered pairs of bases in the order AA CC GG TT AC AG AT
//! CG CT GT, written as DNA's ambiguity codes (`M` is AC). Phased genotypes have sixteen ordered
//! pairs, and a heterozygous code may be either of two. In all of these alphabets the last code is
//! the missing state. Source of these: RAxML-NG's manual, "Evolutionary models".

use super::codon::GeneticCode;

/// Kind of characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Alphabet {
    /// Four states, with ambiguity codes.
    Dna,
    /// Twenty states.
    Protein,
    /// Two states, 0 and 1.
    Binary,
    /// Number of states, 2 to `MULTISTATE_MAX`.
    Multistate(u8),
    /// Ten unphased genotypes.
    Genotype,
    /// Sixteen phased genotypes.
    PhasedGenotype,
    /// The codons of a genetic code that are not stops, three columns each.
    Codon(GeneticCode),
}

impl std::fmt::Display for Alphabet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Dna => "DNA",
            Self::Protein => "protein",
            Self::Binary => "binary",
            Self::Multistate(states) => return write!(f, "multistate ({states} states)"),
            Self::Genotype => "genotype",
            Self::PhasedGenotype => "phased genotype",
            Self::Codon(_) => "codon",
        })
    }
}

impl Alphabet {
    /// Number of states.
    #[must_use]
    pub fn states(self) -> usize {
        match self {
            Self::Dna => 4,
            Self::Protein => 20,
            Self::Binary => 2,
            Self::Multistate(states) => states.into(),
            Self::Genotype => 10,
            Self::PhasedGenotype => 16,
            Self::Codon(code) => code.states(),
        }
    }

    /// Columns of one site: 3 of codons, otherwise 1.
    #[must_use]
    pub fn width(self) -> usize {
        match self {
            Self::Codon(_) => 3,
            _ => 1,
        }
    }

    /// For each code its set of states.
    #[must_use]
    pub fn masks(self) -> &'static [u64] {
        match self {
            Self::Dna => &DNA_MASKS,
            Self::Protein => &PROTEIN_MASKS,
            Self::PhasedGenotype => &PHASED_MASKS,
            Self::Binary | Self::Multistate(_) | Self::Genotype | Self::Codon(_) => {
                let states = self.states();
                &SINGLE_MASKS[states][..=states]
            }
        }
    }

    /// The code of a site's characters, as many as [`Alphabet::width`]; `None` if they are not
    /// valid.
    #[must_use]
    pub(crate) fn code_of(self, characters: &[u8]) -> Option<u8> {
        match (self, characters) {
            (Self::Codon(genetic), &[a, b, c]) => {
                // Through DNA's codes, so that ambiguous bases of a codon are known as well.
                let set = |character| Self::Dna.code(character);
                genetic.code([set(a)?, set(b)?, set(c)?])
            }
            (_, [character]) => self.code(*character),
            _ => None,
        }
    }

    /// The code of a character; `None` if it is not valid. For codons see `Alphabet::code_of`.
    #[must_use]
    pub fn code(self, character: u8) -> Option<u8> {
        let code = match self {
            Self::Dna => DNA_CODES[usize::from(character)],
            Self::Protein => PROTEIN_CODES[usize::from(character)],
            Self::Genotype | Self::PhasedGenotype => GENOTYPE_CODES[usize::from(character)],
            Self::Binary => match character {
                b'0' => 0,
                b'1' => 1,
                b'-' | b'?' => 2,
                _ => NONE,
            },
            Self::Multistate(states) => match character {
                b'-' | b'?' => states,
                _ => {
                    // RAxML-NG's letters for states above nine are capitals; files have both.
                    let upper = character.to_ascii_uppercase();
                    let known = &MULTISTATE[..states.into()];
                    let state = known.iter().position(|&letter| letter == upper);
                    state.map_or(NONE, |state| state as u8)
                }
            },
            Self::Codon(_) => NONE,
        };
        // Sixteen phased genotypes are written with the ten letters of the unphased ones.
        (code != NONE).then_some(code)
    }

    /// The code of missing data.
    #[must_use]
    pub fn unknown(self) -> u8 {
        match self {
            Self::Dna => 15,
            Self::Protein => 23,
            Self::Binary => 2,
            Self::Multistate(states) => states,
            Self::Genotype | Self::PhasedGenotype => 10,
            Self::Codon(code) => code.states() as u8,
        }
    }

    /// The code of a state alone; `None` where no character names it, as for phased genotypes of
    /// two different bases.
    #[must_use]
    pub fn code_of_state(self, state: usize) -> Option<u8> {
        let wanted = 1_u64.checked_shl(state as u32)?;
        let code = self.masks().iter().position(|&mask| mask == wanted)?;
        u8::try_from(code).ok()
    }

    /// Writes the characters of a state, as many as [`Alphabet::width`].
    ///
    /// # Panics
    /// When `to` is not of that length.
    pub fn write(self, state: usize, to: &mut [u8]) {
        match self {
            Self::Codon(code) => to.copy_from_slice(&code.letters(state)),
            _ => to.copy_from_slice(&[self.letter(state)]),
        }
    }

    /// The character of a state; of a codon the first of three.
    #[must_use]
    pub fn letter(self, state: usize) -> u8 {
        match self {
            Self::Codon(code) => code.letters(state)[0],
            Self::Dna => b"ACGT"[state],
            Self::Protein => PROTEIN_LETTERS[state],
            Self::Binary | Self::Multistate(_) => MULTISTATE[state],
            Self::Genotype => GENOTYPE_LETTERS[state],
            // The second six are the first six, the other way round.
            Self::PhasedGenotype => GENOTYPE_LETTERS[if state < 10 { state } else { state - 6 }],
        }
    }
}

/// Characters of multistate data, state by state: RAxML-NG's.
const MULTISTATE: &[u8; MULTISTATE_MAX] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ!\"#$%&'()*+,/:;<=>@[\\]^_{|}~";

/// The most states of an alphabet.
pub const MULTISTATE_MAX: usize = 64;

const NONE: u8 = u8::MAX;

const DNA_MASKS: [u64; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

const DNA_CODES: [u8; 256] = codes(&[
    (b'A', 1),
    (b'C', 2),
    (b'G', 4),
    (b'T', 8),
    (b'U', 8),
    (b'M', 3),
    (b'R', 5),
    (b'W', 9),
    (b'S', 6),
    (b'Y', 10),
    (b'K', 12),
    (b'V', 7),
    (b'H', 11),
    (b'D', 13),
    (b'B', 14),
    (b'N', 15),
    (b'X', 15),
    (b'O', 15),
    (b'-', 15),
    (b'?', 15),
    (b'~', 15),
]);

const PROTEIN_LETTERS: &[u8; 20] = b"ARNDCQEGHILKMFPSTWYV";

const PROTEIN_MASKS: [u64; 24] = {
    let mut masks = [0_u64; 24];
    let mut state = 0;
    while state < 20 {
        masks[state] = 1 << state;
        state += 1;
    }
    masks[20] = 1 << 2 | 1 << 3;
    masks[21] = 1 << 5 | 1 << 6;
    masks[22] = 1 << 9 | 1 << 10;
    masks[23] = (1 << 20) - 1;
    masks
};

const PROTEIN_CODES: [u8; 256] = {
    let mut table = codes(&[
        (b'B', 20),
        (b'Z', 21),
        (b'J', 22),
        (b'X', 23),
        (b'O', 23),
        (b'U', 23),
        (b'-', 23),
        (b'?', 23),
        (b'*', 23),
        (b'~', 23),
    ]);
    let mut state = 0;
    while state < 20 {
        table[PROTEIN_LETTERS[state] as usize] = state as u8;
        table[PROTEIN_LETTERS[state].to_ascii_lowercase() as usize] = state as u8;
        state += 1;
    }
    table
};

/// For each number of states: each alone, then all.
static SINGLE_MASKS: [[u64; MULTISTATE_MAX + 1]; MULTISTATE_MAX + 1] = {
    let mut all = [[0; MULTISTATE_MAX + 1]; MULTISTATE_MAX + 1];
    let mut states = 1;
    while states <= MULTISTATE_MAX {
        let mut state = 0;
        while state < states {
            all[states][state] = 1 << state;
            all[states][states] |= 1 << state;
            state += 1;
        }
        states += 1;
    }
    all
};

const GENOTYPE_LETTERS: &[u8; 10] = b"ACGTMRWSYK";

const GENOTYPE_CODES: [u8; 256] = {
    let mut table = codes(&[
        (b'U', 3),
        (b'N', 10),
        (b'O', 10),
        (b'X', 10),
        (b'-', 10),
        (b'?', 10),
    ]);
    let mut state = 0;
    while state < 10 {
        table[GENOTYPE_LETTERS[state] as usize] = state as u8;
        table[GENOTYPE_LETTERS[state].to_ascii_lowercase() as usize] = state as u8;
        state += 1;
    }
    table
};

/// The first four are homozygous; each further letter is one of two orders.
const PHASED_MASKS: [u64; 11] = {
    let mut masks = [0; 11];
    let mut code = 0;
    while code < 10 {
        masks[code] = if code < 4 {
            1 << code
        } else {
            1 << code | 1 << (code + 6)
        };
        code += 1;
    }
    masks[10] = (1 << 16) - 1;
    masks
};

const fn codes(pairs: &[(u8, u8)]) -> [u8; 256] {
    let mut table = [NONE; 256];
    let mut i = 0;
    while i < pairs.len() {
        let (letter, code) = pairs[i];
        table[letter as usize] = code;
        table[letter.to_ascii_lowercase() as usize] = code;
        i += 1;
    }
    table
}
