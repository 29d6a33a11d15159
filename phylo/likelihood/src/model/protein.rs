//! The published amino-acid matrices: exchangeabilities and stationary frequencies.
//!
//! Why here: they are data, not code: files in PAML's layout (`data/protein`), each with its
//! source. A file has the lower triangle, row by row, of a symmetric matrix over the states in the
//! order A R N D C Q E G H I L K M F P S T W Y V, then the frequencies. Each is parsed once, at its
//! first use.
//! Must stay true: the digits are those of RAxML-NG (where it has the matrix) or of IQ-TREE; the
//! tests compare likelihoods with theirs.

use std::sync::OnceLock;

/// One published matrix.
pub(super) struct Published {
    /// The name as users write it, without case.
    pub(super) name: &'static str,
    /// The file.
    text: &'static str,
    matrix: OnceLock<Matrix>,
}

/// Numbers of a published matrix.
pub(super) struct Matrix {
    /// 190 exchangeabilities, upper triangle by rows.
    pub(super) exchange: Vec<f64>,
    /// 20 frequencies; they sum to 1 but for rounding.
    pub(super) frequencies: Vec<f64>,
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
    const fn new(name: &'static str, text: &'static str) -> Self {
        Self {
            name,
            text,
            matrix: OnceLock::new(),
        }
    }

    /// Its file.
    #[cfg(test)]
    pub(super) fn text(&self) -> &'static str {
        self.text
    }

    /// Its numbers.
    pub(super) fn matrix(&self) -> &Matrix {
        self.matrix.get_or_init(|| {
            let words = self.text.split_ascii_whitespace();
            let mut numbers: Vec<f64> = words.map_while(|word| word.parse().ok()).collect();
            // A damaged file of ours is found by the tests.
            numbers.resize(RATES + STATES, 0.0);
            let frequencies = numbers.split_off(RATES);
            Matrix {
                exchange: upper_triangle(&numbers),
                frequencies,
            }
        })
    }
}

/// From the lower triangle by rows to the upper one by rows.
pub(super) fn upper_triangle(lower: &[f64]) -> Vec<f64> {
    let at = |row: usize, column: usize| lower[row * (row - 1) / 2 + column];
    (0..STATES)
        .flat_map(|i| (i + 1..STATES).map(move |j| (i, j)))
        .map(|(i, j)| at(j, i))
        .collect()
}

const STATES: usize = 20;
/// Exchangeabilities of [`STATES`] states.
pub(super) const RATES: usize = STATES * (STATES - 1) / 2;

/// A matrix of the folder of published ones.
macro_rules! published {
    ($name:literal, $file:literal) => {
        Published::new(
            $name,
            include_str!(concat!("../../data/protein/", $file, ".dat")),
        )
    };
}

/// All single matrices.
pub(super) static PUBLISHED: [Published; 32] = [
    published!("LG", "lg"),
    published!("WAG", "wag"),
    published!("JTT", "jtt"),
    published!("Dayhoff", "dayhoff"),
    published!("DCMut", "dcmut"),
    published!("JTT-DCMut", "jtt_dcmut"),
    published!("mtREV", "mtrev"),
    published!("mtMAM", "mtmam"),
    published!("mtART", "mtart"),
    published!("mtZOA", "mtzoa"),
    published!("mtMet", "mtmet"),
    published!("mtVer", "mtver"),
    published!("mtInv", "mtinv"),
    published!("rtREV", "rtrev"),
    published!("cpREV", "cprev"),
    published!("VT", "vt"),
    published!("Blosum62", "blosum62"),
    published!("PMB", "pmb"),
    published!("HIVb", "hivb"),
    published!("HIVw", "hivw"),
    published!("FLU", "flu"),
    published!("FLAVI", "flavi"),
    published!("DEN", "den"),
    published!("stmtREV", "stmtrev"),
    published!("Q.pfam", "q_pfam"),
    published!("Q.pfam_gb", "q_pfam_gb"),
    published!("Q.LG", "q_lg"),
    published!("Q.bird", "q_bird"),
    published!("Q.insect", "q_insect"),
    published!("Q.mammal", "q_mammal"),
    published!("Q.plant", "q_plant"),
    published!("Q.yeast", "q_yeast"),
];

/// Other names in use.
pub(super) const ALIASES: [(&str, &str); 2] =
    [("JTTDCMUT", "JTT-DCMUT"), ("Q.pfam.gb", "Q.pfam_gb")];

/// All mixtures.
pub(super) static MIXTURES: [Mixture; 2] = [
    Mixture {
        name: "LG4M",
        classes: [
            published!("LG4M1", "lg4m_1"),
            published!("LG4M2", "lg4m_2"),
            published!("LG4M3", "lg4m_3"),
            published!("LG4M4", "lg4m_4"),
        ],
        free: false,
    },
    Mixture {
        name: "LG4X",
        classes: [
            published!("LG4X1", "lg4x_1"),
            published!("LG4X2", "lg4x_2"),
            published!("LG4X3", "lg4x_3"),
            published!("LG4X4", "lg4x_4"),
        ],
        free: true,
    },
];
