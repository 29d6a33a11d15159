//! The published amino-acid matrices: exchangeabilities and stationary frequencies.
//!
//! Why here: they are data, not code: `data/protein.txtar` has a file in PAML's layout for each,
//! with its source, under a line `-- FILE --`.
//! A file has the lower triangle, row by row, of a symmetric matrix over the states in the
//! order A R N D C Q E G H I L K M F P S T W Y V, then the frequencies. Each is parsed once, at its
//! first use.
//! Must stay true: the digits are those of RAxML-NG (where it has the matrix) or of IQ-TREE; the
//! tests compare likelihoods with theirs.

use std::sync::OnceLock;

/// One published matrix.
pub(super) struct Published {
    /// The name as users write it, without case.
    pub(super) name: &'static str,
    /// The file's name in the archive.
    file: &'static str,
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
    const fn new(name: &'static str, file: &'static str) -> Self {
        Self {
            name,
            file,
            matrix: OnceLock::new(),
        }
    }

    /// Its file. A name that is not there gives no text, which the tests see.
    pub(super) fn text(&self) -> &'static str {
        let mut files = FILES.split("-- ").skip(1);
        let text = files.find_map(|part| part.strip_prefix(self.file)?.strip_prefix(".dat --\n"));
        text.unwrap_or_default()
    }

    /// Its numbers.
    pub(super) fn matrix(&self) -> &Matrix {
        self.matrix.get_or_init(|| {
            let words = self.text().split_ascii_whitespace();
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

/// The files, each under a line `-- FILE --`.
static FILES: &str = include_str!("../../data/protein.txtar");

/// All single matrices.
pub(super) static PUBLISHED: [Published; 32] = [
    Published::new("LG", "lg"),
    Published::new("WAG", "wag"),
    Published::new("JTT", "jtt"),
    Published::new("Dayhoff", "dayhoff"),
    Published::new("DCMut", "dcmut"),
    Published::new("JTT-DCMut", "jtt_dcmut"),
    Published::new("mtREV", "mtrev"),
    Published::new("mtMAM", "mtmam"),
    Published::new("mtART", "mtart"),
    Published::new("mtZOA", "mtzoa"),
    Published::new("mtMet", "mtmet"),
    Published::new("mtVer", "mtver"),
    Published::new("mtInv", "mtinv"),
    Published::new("rtREV", "rtrev"),
    Published::new("cpREV", "cprev"),
    Published::new("VT", "vt"),
    Published::new("Blosum62", "blosum62"),
    Published::new("PMB", "pmb"),
    Published::new("HIVb", "hivb"),
    Published::new("HIVw", "hivw"),
    Published::new("FLU", "flu"),
    Published::new("FLAVI", "flavi"),
    Published::new("DEN", "den"),
    Published::new("stmtREV", "stmtrev"),
    Published::new("Q.pfam", "q_pfam"),
    Published::new("Q.pfam_gb", "q_pfam_gb"),
    Published::new("Q.LG", "q_lg"),
    Published::new("Q.bird", "q_bird"),
    Published::new("Q.insect", "q_insect"),
    Published::new("Q.mammal", "q_mammal"),
    Published::new("Q.plant", "q_plant"),
    Published::new("Q.yeast", "q_yeast"),
];

/// Other names in use.
pub(super) const ALIASES: [(&str, &str); 2] =
    [("JTTDCMUT", "JTT-DCMUT"), ("Q.pfam.gb", "Q.pfam_gb")];

/// All mixtures.
pub(super) static MIXTURES: [Mixture; 2] = [
    Mixture {
        name: "LG4M",
        classes: [
            Published::new("LG4M1", "lg4m_1"),
            Published::new("LG4M2", "lg4m_2"),
            Published::new("LG4M3", "lg4m_3"),
            Published::new("LG4M4", "lg4m_4"),
        ],
        free: false,
    },
    Mixture {
        name: "LG4X",
        classes: [
            Published::new("LG4X1", "lg4x_1"),
            Published::new("LG4X2", "lg4x_2"),
            Published::new("LG4X3", "lg4x_3"),
            Published::new("LG4X4", "lg4x_4"),
        ],
        free: true,
    },
];
