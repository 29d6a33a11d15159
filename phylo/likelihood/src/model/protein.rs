//! The published amino-acid matrices: exchangeabilities and stationary frequencies.
//!
//! Why here: they are data, not code: `data/protein.txtar` has a file in PAML's layout for each,
//! with its source, under a line `-- FILE --`.
//! A mixture of profiles has a line for each class instead: its weight and twenty frequencies.
//! A matrix's file has the lower triangle, row by row, of a symmetric matrix over the states in the
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

/// Classes of sites that differ in their frequencies.
pub(super) struct Profiles {
    /// The name as users write it, without case.
    pub(super) name: &'static str,
    /// The name of a class, before its number.
    pub(super) prefix: &'static str,
    file: &'static str,
    /// True if the classes' weights are not published.
    pub(super) fits_weights: bool,
    rows: OnceLock<Vec<[f64; STATES + 1]>>,
}

impl Profiles {
    const fn new(name: &'static str, prefix: &'static str, file: &'static str) -> Self {
        Self {
            name,
            prefix,
            file,
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
            file(self.file).lines().map_while(numbers).collect()
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
    const fn new(name: &'static str, file: &'static str) -> Self {
        Self {
            name,
            file,
            matrix: OnceLock::new(),
        }
    }

    /// Its file. A name that is not there gives no text, which the tests see.
    pub(super) fn text(&self) -> &'static str {
        file(self.file)
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

/// A file of the archive; empty where there is none of the name.
fn file(name: &str) -> &'static str {
    let mut files = FILES.split("-- ").skip(1);
    let text = files.find_map(|part| part.strip_prefix(name)?.strip_prefix(".dat --\n"));
    text.unwrap_or_default()
}

/// A single matrix by its place among [`all`].
pub(super) fn published(at: usize) -> &'static Published {
    match PUBLISHED.get(at) {
        Some(own) => own,
        None => &COMPONENTS[at - PUBLISHED.len()],
    }
}

/// All matrices that have a name.
pub(super) fn all() -> impl Iterator<Item = &'static Published> {
    PUBLISHED.iter().chain(&COMPONENTS)
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

/// Equal rates, and the classes of the mixtures in [`STOCK`].
pub(super) static COMPONENTS: [Published; 20] = [
    Published::new("POISSON", "poisson"),
    Published::new("BurEX2", "burex2"),
    Published::new("ExpEX2", "expex2"),
    Published::new("BurEX3", "burex3"),
    Published::new("IntEX3", "intex3"),
    Published::new("HExEX3", "hexex3"),
    Published::new("ExtEHO", "exteho"),
    Published::new("HelEHO", "heleho"),
    Published::new("OthEHO", "otheho"),
    Published::new("M1_UL2", "m1_ul2"),
    Published::new("M2_UL2", "m2_ul2"),
    Published::new("Q1_UL3", "q1_ul3"),
    Published::new("Q2_UL3", "q2_ul3"),
    Published::new("Q3_UL3", "q3_ul3"),
    Published::new("BUR_EXT", "bur_ext"),
    Published::new("BUR_HEL", "bur_hel"),
    Published::new("BUR_OTH", "bur_oth"),
    Published::new("EXP_EXT", "exp_ext"),
    Published::new("EXP_HEL", "exp_hel"),
    Published::new("EXP_OTH", "exp_oth"),
];

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
    Profiles::new("C10", "C10pi", "c10"),
    Profiles::new("C20", "C20pi", "c20"),
    Profiles::new("C30", "C30pi", "c30"),
    Profiles::new("C40", "C40pi", "c40"),
    Profiles::new("C50", "C50pi", "c50"),
    Profiles::new("C60", "C60pi", "c60"),
    Profiles::new("CF4", "Fclass", "cf4"),
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
