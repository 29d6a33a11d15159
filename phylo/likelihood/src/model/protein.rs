//! The published matrices of amino acids and codons: exchangeabilities, stationary frequencies.
//!
//! Why here: they are data, not code: `data/matrices.txtar` has a file in PAML's layout for each,
//! with its source, under a line `-- FILE --`.
//! A mixture of profiles has a line for each class instead: its weight and twenty frequencies.
//! A nonreversible matrix has twenty rows, from the row's state to the column's. Matrices of codons
//! are over the 61 codons of the standard genetic code in the order of [`GeneticCode`].
//!
//! [`GeneticCode`]: crate::msa::GeneticCode
//! A matrix's file has the lower triangle, row by row, of a symmetric matrix over the states in the
//! order A R N D C Q E G H I L K M F P S T W Y V, then the frequencies. Each is parsed once, at its
//! first use.
//! Must stay true: the digits are those of RAxML-NG (where it has the matrix) or of IQ-TREE; the
//! tests compare likelihoods with theirs.

use std::sync::{LazyLock, OnceLock};

/// One published matrix.
pub(super) struct Published {
    /// The name as users write it, without case.
    pub(super) name: &'static str,
    states: usize,
    matrix: OnceLock<Matrix>,
}

/// Numbers of a published matrix.
pub(super) struct Matrix {
    /// Exchangeabilities, upper triangle by rows.
    pub(super) exchange: Vec<f64>,
    /// One frequency a state; they sum to 1 but for rounding.
    pub(super) frequencies: Vec<f64>,
}

/// Classes of sites that differ in their frequencies.
pub(super) struct Profiles {
    /// The name as users write it, without case.
    pub(super) name: &'static str,
    /// The name of a class, before its number.
    pub(super) prefix: &'static str,
    /// True if the classes' weights are not published.
    pub(super) fits_weights: bool,
    rows: OnceLock<Vec<[f64; STATES + 1]>>,
}

impl Profiles {
    const fn new(name: &'static str, prefix: &'static str) -> Self {
        Self {
            name,
            prefix,
            // `CF4` has no published weights.
            fits_weights: name.as_bytes()[1] == b'F',
            rows: OnceLock::new(),
        }
    }

    /// For each class its weight, then twenty frequencies.
    pub(super) fn rows(&self) -> &[[f64; STATES + 1]] {
        self.rows.get_or_init(|| {
            let numbers = |line: &str| -> Option<[f64; STATES + 1]> {
                let words = line.split_ascii_whitespace();
                let numbers: Vec<f64> = words.map_while(|word| word.parse().ok()).collect();
                let mut row: [f64; STATES + 1] = numbers.try_into().ok()?;
                // Rounded digits sum to nearly 1.
                let sum: f64 = row[1..].iter().sum();
                row[1..].iter_mut().for_each(|share| *share /= sum);
                Some(row)
            };
            file(self.name).lines().map_while(numbers).collect()
        })
    }
}

/// Rate classes of sites with a matrix each.
pub(super) struct Mixture {
    /// The name as users write it, without case.
    pub(super) name: &'static str,
    /// One matrix a class, slow ones first.
    pub(super) classes: [Published; 4],
    /// True if the classes' rates and weights are free unless said otherwise; else they are a
    /// gamma distribution's.
    pub(super) free: bool,
}

impl Published {
    const fn new(name: &'static str) -> Self {
        Self::over(STATES, name)
    }

    const fn over(states: usize, name: &'static str) -> Self {
        Self {
            name,
            states,
            matrix: OnceLock::new(),
        }
    }

    /// Its file. A name that is not there gives no text, which the tests see.
    pub(super) fn text(&self) -> &'static str {
        file(self.name)
    }

    /// Its numbers.
    pub(super) fn matrix(&self) -> &Matrix {
        self.matrix.get_or_init(|| {
            let words = self.text().split_ascii_whitespace();
            let mut numbers: Vec<f64> = words.map_while(|word| word.parse().ok()).collect();
            let rates = self.states * (self.states - 1) / 2;
            // A damaged file of ours is found by the tests.
            numbers.resize(rates + self.states, 0.0);
            let frequencies = numbers.split_off(rates);
            Matrix {
                exchange: upper_triangle(&numbers),
                frequencies,
            }
        })
    }
}

/// A file of the archive by the letters and digits of its name; empty where there is none.
fn file(name: &str) -> &'static str {
    let plain = |name: &str| name.to_ascii_lowercase().replace(['-', '_', '.'], "");
    let wanted = plain(name);
    let mut files = FILES.split("-- ").skip(1);
    let text = files.find_map(|part| {
        let (own, text) = part.split_once(".dat --\n")?;
        (plain(own) == wanted).then_some(text)
    });
    text.unwrap_or_default()
}

fn named(names: &'static str) -> Vec<Published> {
    names.split_whitespace().map(Published::new).collect()
}

/// A single matrix by its place among [`all`].
pub(super) fn published(at: usize) -> &'static Published {
    match PUBLISHED.get(at) {
        Some(own) => own,
        None => &COMPONENTS[at - PUBLISHED.len()],
    }
}

/// The 400 rates of a nonreversible matrix by its name in [`NONREVERSIBLE`], row by row; the
/// diagonal is 0. Empty for any other name.
pub(crate) fn nonreversible(name: &str) -> Vec<f64> {
    let words = file(name).split_ascii_whitespace();
    words.map_while(|word| word.parse().ok()).collect()
}

/// All matrices that have a name.
pub(super) fn all() -> impl Iterator<Item = &'static Published> {
    PUBLISHED.iter().chain(COMPONENTS.iter())
}

/// From the lower triangle by rows to the upper one by rows.
pub(super) fn upper_triangle(lower: &[f64]) -> Vec<f64> {
    let at = |row: usize, column: usize| lower[row * (row - 1) / 2 + column];
    // Of n states there are n (n - 1) / 2 numbers.
    let states = usize::midpoint(1, (1 + 8 * lower.len()).isqrt());
    (0..states)
        .flat_map(|i| (i + 1..states).map(move |j| (i, j)))
        .map(|(i, j)| at(j, i))
        .collect()
}

/// The inverse of [`upper_triangle`].
pub(super) fn lower_triangle(upper: &[f64]) -> Vec<f64> {
    let at = |row: usize, column: usize| upper[row * (2 * STATES - 1 - row) / 2 + column - row - 1];
    (1..STATES)
        .flat_map(|i| (0..i).map(move |j| (j, i)))
        .map(|(j, i)| at(j, i))
        .collect()
}

const STATES: usize = 20;
/// Exchangeabilities of [`STATES`] states.
pub(super) const RATES: usize = STATES * (STATES - 1) / 2;

/// The files, each under a line `-- FILE --`.
static FILES: &str = include_str!("../../data/matrices.txtar");

/// All single matrices.
pub(super) static PUBLISHED: LazyLock<Vec<Published>> = LazyLock::new(|| {
    named(
        "LG WAG JTT Dayhoff DCMut JTT-DCMut mtREV mtMAM mtART mtZOA mtMet mtVer mtInv rtREV \
         cpREV VT Blosum62 PMB HIVb HIVw FLU FLAVI DEN stmtREV Q.pfam Q.pfam_gb Q.LG Q.bird \
         Q.insect Q.mammal Q.plant Q.yeast",
    )
});

/// Nonreversible matrices, for rooted trees.
pub(crate) const NONREVERSIBLE: [&str; 6] = [
    "NQ.pfam",
    "NQ.bird",
    "NQ.insect",
    "NQ.mammal",
    "NQ.plant",
    "NQ.yeast",
];

/// Matrices of codons of the standard genetic code.
pub(super) static CODONS: [Published; 3] = [
    Published::over(CODON_STATES, "KOSI07"),
    Published::over(CODON_STATES, "ECMREST"),
    Published::over(CODON_STATES, "SCHN05"),
];
/// Codons of the standard genetic code.
const CODON_STATES: usize = 61;

/// Equal rates, and the classes of the mixtures in [`STOCK`].
pub(super) static COMPONENTS: LazyLock<Vec<Published>> = LazyLock::new(|| {
    named(
        "POISSON BurEX2 ExpEX2 BurEX3 IntEX3 HExEX3 ExtEHO HelEHO OthEHO M1_UL2 M2_UL2 Q1_UL3 \
         Q2_UL3 Q3_UL3 BUR_EXT BUR_HEL BUR_OTH EXP_EXT EXP_HEL EXP_OTH",
    )
});

/// Mixtures of matrices: the classes with their rates.
pub(super) static STOCK: [(&str, &str); 6] = [
    ("EX2", "BurEX2:0.672020808818762,ExpEX2:1.6413466609931"),
    (
        "EX3",
        "BurEX3:0.427672756793791,IntEX3:0.837595938019774,HExEX3:1.51863631431518",
    ),
    (
        "EHO",
        "ExtEHO:0.720274356,HelEHO:0.976798797,OthEHO:0.783109376",
    ),
    ("UL2", "M1_UL2:0.581348617,M2_UL2:1.465482789"),
    (
        "UL3",
        "Q1_UL3:0.484340397,Q2_UL3:0.492780514,Q3_UL3:1.15597274",
    ),
    (
        "EX_EHO",
        "BUR_EXT:0.761816796788931,BUR_HEL:0.744425646802117,BUR_OTH:0.532457759429489,\
         EXP_EXT:1.5639387472863,EXP_HEL:2.06403411829438,EXP_OTH:1.43336795177594",
    ),
];

/// Mixtures of profiles.
pub(super) static PROFILES: [Profiles; 7] = [
    Profiles::new("C10", "C10pi"),
    Profiles::new("C20", "C20pi"),
    Profiles::new("C30", "C30pi"),
    Profiles::new("C40", "C40pi"),
    Profiles::new("C50", "C50pi"),
    Profiles::new("C60", "C60pi"),
    Profiles::new("CF4", "Fclass"),
];

/// Other names in use.
pub(super) const ALIASES: [(&str, &str); 2] =
    [("JTTDCMUT", "JTT-DCMUT"), ("Q.pfam.gb", "Q.pfam_gb")];

/// All mixtures.
pub(super) static MIXTURES: [Mixture; 2] = [
    Mixture {
        name: "LG4M",
        classes: [
            Published::new("LG4M1"),
            Published::new("LG4M2"),
            Published::new("LG4M3"),
            Published::new("LG4M4"),
        ],
        free: false,
    },
    Mixture {
        name: "LG4X",
        classes: [
            Published::new("LG4X1"),
            Published::new("LG4X2"),
            Published::new("LG4X3"),
            Published::new("LG4X4"),
        ],
        free: true,
    },
];
