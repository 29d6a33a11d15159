//! The characters of sequences, and which states each of them may be.
//!
//! A *code* is a character's number within its alphabet; characters that mean the same have one
//! code. DNA: the code is the set of states itself (A 1, C 2, G 4, T 8). Protein: 20 states in the
//! order A R N D C Q E G H I L K M F P S T W Y V, then B (N or D), Z (Q or E), J (I or L), and
//! "unknown" for X, `-`, `?`, `*`, `~` and O (pyrrolysine, which no matrix has). U (selenocysteine)
//! is refused: where it stands, RNA was given a protein's model more often than not.

/// DNA or protein.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alphabet {
    /// Four states, with ambiguity codes.
    Dna,
    /// Twenty states.
    Protein,
}

impl std::fmt::Display for Alphabet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Dna => "DNA",
            Self::Protein => "protein",
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
        }
    }

    /// For each code its set of states.
    #[must_use]
    pub fn masks(self) -> &'static [u32] {
        match self {
            Self::Dna => &DNA_MASKS,
            Self::Protein => &PROTEIN_MASKS,
        }
    }

    /// The code of a character, or none.
    #[must_use]
    pub fn code(self, character: u8) -> Option<u8> {
        let code = match self {
            Self::Dna => DNA_CODES[usize::from(character)],
            Self::Protein => PROTEIN_CODES[usize::from(character)],
        };
        (code != NONE).then_some(code)
    }

    /// The code that says nothing.
    #[must_use]
    pub fn unknown(self) -> u8 {
        match self {
            Self::Dna => 15,
            Self::Protein => 23,
        }
    }

    /// The character of a state.
    #[must_use]
    pub fn letter(self, state: usize) -> u8 {
        match self {
            Self::Dna => b"ACGT"[state],
            Self::Protein => PROTEIN_LETTERS[state],
        }
    }
}

const NONE: u8 = u8::MAX;

const DNA_MASKS: [u32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

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

const PROTEIN_MASKS: [u32; 24] = {
    let mut masks = [0; 24];
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
