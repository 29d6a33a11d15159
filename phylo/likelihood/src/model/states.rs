//! Matrices for data of other kinds than DNA and protein: binary, multistate, genotypes.
//!
//! Names, states and which rates are equal are RAxML-NG's (its manual's list of models; for
//! genotypes Kozlov, Alves, Stamatakis, Posada, "CellPhy: accurate and fast probabilistic inference
//! of single-cell phylogenies from scDNA-seq data", Genome Biology 23 (2022), 37).

use crate::msa::{Alphabet, MULTISTATE_MAX};
use std::borrow::Cow;

/// A matrix: its name, and which of its rates are equal.
pub(super) struct Matrix {
    /// The name, as it is printed.
    pub(super) label: String,
    pub(super) alphabet: Alphabet,
    /// For each rate of the upper triangle by rows its class.
    pub(super) classes: Vec<u16>,
    /// The classes' values where they are fixed.
    pub(super) given: Option<Vec<f64>>,
    /// True if all frequencies are equal unless said otherwise.
    pub(super) equal: bool,
}

/// Looks a name up, without case.
pub(super) fn by_name(name: &str) -> Option<Matrix> {
    let upper = name.to_ascii_uppercase();
    // Two states have a single exchange rate, so there is nothing to choose.
    if upper == "BIN" {
        return Some(Matrix {
            label: upper,
            alphabet: Alphabet::Binary,
            classes: vec![0],
            given: None,
            equal: false,
        });
    }
    if let Some(rest) = upper.strip_prefix("MULTI") {
        let (states, kind) = rest.split_once('_')?;
        let states: u8 = states.parse().ok()?;
        // There are no characters for more states.
        if !(2..=MULTISTATE_MAX).contains(&states.into()) {
            return None;
        }
        let rates = usize::from(states) * usize::from(states - 1) / 2;
        let (classes, equal) = match kind {
            "MK" | "JC" => (vec![0; rates], true),
            "GTR" => ((0..rates as u16).collect(), false),
            _ => return None,
        };
        return Some(Matrix {
            label: upper,
            alphabet: Alphabet::Multistate(states),
            classes,
            given: None,
            equal,
        });
    }
    let alias = GENOTYPE_ALIASES.iter().find(|(alias, _)| *alias == upper);
    let label = alias.map_or(upper.as_str(), |(_, name)| name);
    let (alphabet, kind) = match label.get(..4) {
        Some("GT10") => (Alphabet::Genotype, &label[4..]),
        Some("GT16") => (Alphabet::PhasedGenotype, &label[4..]),
        _ => return None,
    };
    let pairs = rates_of(alphabet);
    let (classes, given, equal) = match kind {
        "" => (numbered(&pairs, by_bases), None, false),
        "HKY" if alphabet == Alphabet::Genotype => {
            let kind = |from, to| by_bases(from, to).map(|base| HKY[usize::from(base)]);
            (numbered(&pairs, kind), None, false)
        }
        "JC" => (vec![0; pairs.len()], None, true),
        // The class of double changes has rate 0, all others rate 1.
        "JC-SM" if alphabet == Alphabet::Genotype => {
            let one = |from, to| by_bases(from, to).map(|_| 0);
            (numbered(&pairs, one), Some(vec![0.0, 1.0]), true)
        }
        "GTR" => ((0..pairs.len() as u16).collect(), None, false),
        // As GTR, but all double changes share class 0.
        "GTR-SM" if alphabet == Alphabet::Genotype => {
            let mut next = 0;
            let single = pairs.iter().map(|&(from, to)| match by_bases(from, to) {
                Some(_) => {
                    next += 1;
                    next
                }
                None => 0,
            });
            (single.collect(), None, false)
        }
        _ => return None,
    };
    Some(Matrix {
        label: label.to_owned(),
        alphabet,
        classes,
        given,
        equal,
    })
}

/// A model's name with its number of states, where multistate data's is written without one: `MK`,
/// as IQ-TREE has it, `MULTIx_MK` or `MULTIx_GTR`. `states` is asked for the number only then; a
/// name stays as it is if there is none.
#[must_use]
pub fn with_states(model: &str, states: impl FnOnce() -> Option<u8>) -> Cow<'_, str> {
    let (head, rest) = match model.find(['+', '{']) {
        Some(at) => model.split_at(at),
        None => (model, ""),
    };
    let kind = match head.trim().to_ascii_uppercase().as_str() {
        "MK" | "MULTI_MK" | "MULTIX_MK" => "MK",
        "MULTI_GTR" | "MULTIX_GTR" => "GTR",
        _ => return Cow::Borrowed(model),
    };
    match states() {
        Some(states) => Cow::Owned(format!("MULTI{states}_{kind}{rest}")),
        None => Cow::Borrowed(model),
    }
}

/// All that have a name of their own, with their alphabets; multistate ones with `x` for the number
/// of states.
pub(super) const NAMES: [(&str, Alphabet); 12] = [
    ("BIN", Alphabet::Binary),
    ("MULTIx_MK", Alphabet::Multistate(MULTISTATE_MAX as u8)),
    ("MULTIx_GTR", Alphabet::Multistate(MULTISTATE_MAX as u8)),
    ("GT10JC", Alphabet::Genotype),
    ("GT10JC-SM", Alphabet::Genotype),
    ("GT10HKY", Alphabet::Genotype),
    ("GT10", Alphabet::Genotype),
    ("GT10GTR-SM", Alphabet::Genotype),
    ("GT10GTR", Alphabet::Genotype),
    ("GT16JC", Alphabet::PhasedGenotype),
    ("GT16", Alphabet::PhasedGenotype),
    ("GT16GTR", Alphabet::PhasedGenotype),
];

/// Other names in use.
const GENOTYPE_ALIASES: [(&str, &str); 7] = [
    ("GTJC", "GT10JC"),
    ("GTJC-SM", "GT10JC-SM"),
    ("GTHKY4", "GT10HKY"),
    ("GTGTR4", "GT10"),
    ("GTGTR", "GT10GTR"),
    ("GTGTR-SM", "GT10GTR-SM"),
    ("GPGTR4", "GT16"),
];

/// The bases (A 0, C 1, G 2, T 3) of the genotypes in the order of their states.
const GENOTYPES: [[u8; 2]; 16] = [
    [0, 0],
    [1, 1],
    [2, 2],
    [3, 3],
    [0, 1],
    [0, 2],
    [0, 3],
    [1, 2],
    [1, 3],
    [2, 3],
    [1, 0],
    [2, 0],
    [3, 0],
    [2, 1],
    [3, 1],
    [3, 2],
];

/// A genotype as two bases, with the order that tells a phased one from its reverse.
type Genotype = ([u8; 2], bool);

/// The upper triangle by rows.
fn rates_of(alphabet: Alphabet) -> Vec<(Genotype, Genotype)> {
    let states = alphabet.states();
    let phased = alphabet == Alphabet::PhasedGenotype;
    let pairs = (0..states).flat_map(|i| (i + 1..states).map(move |j| (i, j)));
    let of = |state: usize| (GENOTYPES[state], phased);
    pairs.map(|(i, j)| (of(i), of(j))).collect()
}

/// The exchange of bases (AC 0, AG 1, AT 2, CG 3, CT 4, GT 5) that leads from one genotype to
/// another; `None` where it takes two.
fn by_bases((from, phased): Genotype, (to, _): Genotype) -> Option<u16> {
    let changed = |to: [u8; 2]| match [from[0] == to[0], from[1] == to[1]] {
        [true, false] => Some([from[1], to[1]]),
        [false, true] => Some([from[0], to[0]]),
        _ => None,
    };
    // Unphased, both orders of the second are equivalent.
    let turned = || changed([to[1], to[0]]).filter(|_| !phased);
    let [a, b] = changed(to).or_else(turned)?;
    Some(match [a.min(b), a.max(b)] {
        [0, 1] => 0,
        [0, 2] => 1,
        [0, 3] => 2,
        [1, 2] => 3,
        [1, 3] => 4,
        _ => 5,
    })
}

/// Classes: 0 for exchanges of two bases at once, from 1 on the results of `kind` for the others.
fn numbered(
    pairs: &[(Genotype, Genotype)],
    kind: impl Fn(Genotype, Genotype) -> Option<u16>,
) -> Vec<u16> {
    let class = |&(from, to): &(Genotype, Genotype)| kind(from, to).map_or(0, |kind| kind + 1);
    pairs.iter().map(class).collect()
}

/// Transversions alike, transitions (AG, CT) alike.
const HKY: [u16; 6] = [0, 1, 0, 0, 1, 0];
