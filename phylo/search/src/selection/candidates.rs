//! Candidate models, and the relation of special cases among them.
//!
//! Must stay true: names are tried with the parser, so that the list always matches the parser.

use crate::model::{ExchangeName, FrequencyName, ModelName};
use crate::msa::{Alignment, Alphabet, Patterns};

/// Names that a user may give in place of a model: `auto`, and those of all matrices.
#[must_use]
pub fn names() -> Vec<&'static str> {
    let kinds = [Alphabet::Dna, Alphabet::Protein].map(matrices);
    [vec!["auto"], kinds.concat()].concat()
}

/// Names of the matrices to choose from for one kind of data: those of this list that
/// [`ModelName::parse`] knows. For DNA the most general first.
fn matrices(alphabet: Alphabet) -> Vec<&'static str> {
    let names: &[&str] = match alphabet == Alphabet::Dna {
        true => &DNA,
        false => &PROTEIN,
    };
    let known = |name: &&&str| parse(name).is_some_and(|name| name.alphabet() == alphabet);
    names.iter().filter(known).copied().collect()
}

/// The kind of an alignment's data by its characters: binary or multistate where all are digits.
#[must_use]
pub fn likely_alphabet(alignment: &Alignment) -> Alphabet {
    let has_digit = |taxon| alignment.row(taxon).iter().any(u8::is_ascii_digit);
    let has_digit = (0..alignment.names().len()).any(has_digit);
    // Letters are later states: with one of them there are more than ten.
    match alignment
        .multistates()
        .filter(|&states| has_digit && states <= 10)
    {
        Some(2) => Alphabet::Binary,
        Some(states) => Alphabet::Multistate(states),
        None => alignment.likely_alphabet(),
    }
}

/// Parses a name that needs no file.
pub(super) fn parse(name: &str) -> Option<ModelName> {
    let none = |path: &str| Err(std::io::Error::other(path.to_owned()));
    ModelName::parse(name, &mut { none }).ok()
}

/// Rates across sites.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rates {
    Equal,
    Invariant,
    Gamma,
    Both,
    Free(usize),
}

impl Rates {
    /// General ones before their special cases.
    pub(super) const USUAL: [Self; 4] = [Self::Both, Self::Gamma, Self::Invariant, Self::Equal];
    /// Those without invariable sites.
    const VARIABLE: [Self; 2] = [Self::Gamma, Self::Equal];

    fn is_within(self, other: Self) -> bool {
        match (self, other) {
            (Self::Free(own), Self::Free(more)) => own <= more,
            // Free rates of as many categories can be those of the gamma distribution.
            (Self::Gamma, Self::Free(categories)) => categories >= GAMMA,
            // Equal rates are within all; all but free rates are within `+I+G`.
            (Self::Equal, _) | (_, Self::Both) => !matches!(self, Self::Free(_)),
            _ => self == other,
        }
    }

    fn text(self) -> String {
        match self {
            Self::Equal => String::new(),
            Self::Invariant => "+I".to_owned(),
            Self::Gamma => format!("+G{GAMMA}"),
            Self::Both => format!("+I+G{GAMMA}"),
            Self::Free(categories) => format!("+R{categories}"),
        }
    }
}

/// A model to choose.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Candidate {
    /// Matrix and frequencies: `HKY+F`.
    head: String,
    /// Classes of the six rates; nothing for proteins.
    classes: Option<[u16; 6]>,
    /// True if frequencies are counted.
    counted: bool,
    pub(super) rates: Rates,
    /// The suffix behind the rates: the correction for ascertainment, or nothing.
    tail: &'static str,
    /// Rates to try before free ones.
    usual: &'static [Rates],
    /// Other heads whose parameters can make them equal to this one, besides those by classes.
    wider: Vec<String>,
    /// True if candidates of this kind are special cases of one another; protein matrices are not.
    is_nested: bool,
}

impl Candidate {
    pub(super) fn with(&self, rates: Rates) -> Self {
        Self {
            rates,
            ..self.clone()
        }
    }

    /// The name as users write it.
    pub(super) fn text(&self) -> String {
        format!("{}{}{}", self.head, self.rates.text(), self.tail)
    }

    pub(super) fn name(&self) -> ModelName {
        let text = self.text();
        parse(&text).unwrap_or_else(|| panic!("{text} is on the list of models"))
    }

    /// Matrix and frequencies.
    pub(super) fn head(&self) -> &str {
        &self.head
    }

    /// The matrix's name.
    pub(super) fn matrix(&self) -> &str {
        self.head.split('+').next().unwrap_or_default()
    }

    /// A mixture with this candidate's rates across sites.
    pub(super) fn mixture(&self, head: &str, counted: &str) -> Self {
        Self {
            head: format!("{head}{counted}"),
            counted: !counted.is_empty(),
            ..self.clone()
        }
    }

    /// Number of classes of a mixture; none of what is no mixture, or has too many.
    pub(super) fn classes_of_mixture(&self) -> Option<usize> {
        match parse(&self.text())?.exchange {
            ExchangeName::Mix(mixture) => Some(mixture.classes()),
            _ => None,
        }
    }

    /// True if candidates of this kind are special cases of one another.
    pub(super) fn is_nested(&self) -> bool {
        self.is_nested
    }

    /// Rates to try before free ones, general ones before their special cases.
    pub(super) fn usual_rates(&self) -> &'static [Rates] {
        self.usual
    }

    /// True if its likelihood is that of sites that vary: no other's can be compared with it.
    pub(super) fn is_corrected(&self) -> bool {
        !self.tail.is_empty()
    }

    /// True if the other candidate's parameters can make it equal to this one.
    pub(super) fn is_within(&self, other: &Self) -> bool {
        let matrix = match (&self.classes, &other.classes) {
            (Some(own), Some(more)) => {
                // Pairs that share a rate in the other model must share one here.
                let alike = |a: usize, b: usize| more[a] != more[b] || own[a] == own[b];
                self.counted == other.counted && (0..6).all(|a| (0..a).all(|b| alike(a, b)))
            }
            _ => self.head == other.head || self.wider.contains(&other.head),
        };
        matrix && self.rates.is_within(other.rates)
    }

    /// Suitability of the other one's fit as a start: the larger the better.
    pub(super) fn likeness(&self, other: &Self) -> u32 {
        let mut likeness = match (self.rates == other.rates, self.rates, other.rates) {
            // Equal rates among sites matter more than an equal matrix: they take longer to fit.
            (true, ..) => 40,
            (_, Rates::Free(own), Rates::Free(less)) if own == less + 1 => 35,
            (_, Rates::Free(_), Rates::Gamma | Rates::Both) => 30,
            (_, Rates::Gamma, Rates::Both) | (_, Rates::Both, Rates::Gamma) => 20,
            _ => 0,
        };
        if self.head == other.head {
            likeness += 16;
        } else if let (Some(own), Some(more)) = (&self.classes, &other.classes) {
            // Pairs of rates that are equal in both models, or differ in both.
            let same = |a: usize, b: usize| (own[a] == own[b]) == (more[a] == more[b]);
            let pairs = (0..6).flat_map(|a| (0..a).map(move |b| (a, b)));
            likeness += pairs.filter(|&(a, b)| same(a, b)).count() as u32;
        }
        if self.counted == other.counted {
            likeness += 10;
        }
        likeness
    }
}

/// The candidates for some patterns, with equal rates; the general first.
pub(super) fn of(patterns: &Patterns) -> Vec<Candidate> {
    let alphabet = patterns.alphabet();
    // Each head, and the one that it is a special case of.
    let heads: Vec<(String, Option<String>)> = match alphabet {
        Alphabet::Binary => BINARY.map(|head| (head.to_owned(), None)).into(),
        Alphabet::Multistate(states) => {
            let head = |kind: &str| format!("MULTI{states}_{kind}");
            let general = (states <= GENERAL_MAX).then(|| head("GTR+F"));
            let all = general.clone().map(|general| (general, None)).into_iter();
            all.chain([(head("MK+F"), general), (head("MK"), None)])
                .collect()
        }
        Alphabet::Codon(own) => {
            let code = match own.number() {
                1 => String::new(),
                number => format!("+CODE{{{number}}}"),
            };
            let head = |text: &str| format!("{text}{code}");
            let published = |name: &'static str| {
                let each = PUBLISHED_FREQUENCIES.iter();
                each.map(move |frequencies| format!("{name}{frequencies}"))
            };
            // MG is MGK with the ratio 1 of transitions to transversions.
            let wider = |text: &str| Some(head(&text.replacen("MG+", "MGK+", 1)));
            let heads = CODON.iter().map(|text| match text.starts_with("MG+") {
                true => (head(text), wider(text)),
                false => (head(text), None),
            });
            // Published matrices know the standard code's codons alone: other names have no parse.
            let published = PUBLISHED.into_iter().flat_map(published);
            let published = published.map(|text| (head(&text), None));
            heads
                .chain(published.filter(|(head, _)| parse(head).is_some()))
                .collect()
        }
        _ => return all(alphabet),
    };
    // Characters are often collected because they vary: then the likelihood is that of such sites.
    let is_codon = matches!(alphabet, Alphabet::Codon(_));
    let corrected = !is_codon && patterns.constant_sites() == 0;
    let made = heads.into_iter().map(|(head, wider)| Candidate {
        counted: head.contains("+F") && !head.contains("+FE"),
        head,
        classes: None,
        rates: Rates::Equal,
        tail: if corrected { "+ASC" } else { "" },
        usual: match corrected || is_codon {
            true => &Rates::VARIABLE,
            false => &Rates::USUAL,
        },
        wider: wider.into_iter().collect(),
        is_nested: true,
    });
    made.collect()
}

/// All matrices with the frequencies that they may have, with equal rates; the general first.
pub(super) fn all(alphabet: Alphabet) -> Vec<Candidate> {
    let mut all = Vec::new();
    for matrix in matrices(alphabet) {
        let Some(name) = parse(matrix) else { continue };
        let classes = match name.exchange {
            ExchangeName::Classes { classes, .. } => <[u16; 6]>::try_from(classes).ok(),
            _ => None,
        };
        let mut add = |counted: bool| {
            all.push(Candidate {
                head: format!("{matrix}{}", if counted { "+F" } else { "" }),
                classes,
                counted,
                rates: Rates::Equal,
                tail: "",
                usual: &Rates::USUAL,
                wider: Vec::new(),
                is_nested: alphabet != Alphabet::Protein,
            });
        };
        match (classes, name.frequencies) {
            // DNA: the name says whether its frequencies are equal.
            (Some(_), FrequencyName::Equal) => add(false),
            (Some(_), _) => add(true),
            (None, _) => [false, true].map(&mut add).into_iter().collect(),
        }
    }
    all
}

/// Categories of a gamma distribution.
const GAMMA: usize = 4;
/// Two states: frequencies that are counted, and equal ones.
const BINARY: [&str; 2] = ["BIN+F", "BIN+FE"];
/// The most states with a rate for each pair: with more, few characters show each change.
const GENERAL_MAX: u8 = 6;
/// Codons: each before its special cases.
const CODON: [&str; 7] = [
    "GY+F3X4", "GY+F1X4", "GY+F", "MGK+F3X4", "MGK+F1X4", "MG+F3X4", "MG+F1X4",
];
/// Codons: published matrices of the standard code, and frequencies that each may have; without a
/// suffix they are its own.
const PUBLISHED: [&str; 2] = ["KOSI07", "SCHN05"];
const PUBLISHED_FREQUENCIES: [&str; 4] = ["+F3X4", "+F1X4", "+F", ""];
/// DNA: each before its special cases.
const DNA: [&str; 22] = [
    "GTR", "SYM", "TVM", "TVMef", "TIM1", "TIM2", "TIM3", "TIM1uf", "TIM2uf", "TIM3uf", "TN93",
    "TN93ef", "K81uf", "K81", "TPM2uf", "TPM2", "TPM3uf", "TPM3", "HKY", "K80", "F81", "JC",
];
/// Proteins: the first is the reference for the others.
const PROTEIN: [&str; 30] = [
    "LG",
    "WAG",
    "JTT",
    "Q.pfam",
    "Q.bird",
    "Q.mammal",
    "Q.insect",
    "Q.plant",
    "Q.yeast",
    "JTT-DCMut",
    "DCMut",
    "VT",
    "PMB",
    "Blosum62",
    "Dayhoff",
    "DEN",
    "mtREV",
    "mtART",
    "mtZOA",
    "mtMet",
    "mtVer",
    "mtInv",
    "mtMAM",
    "FLAVI",
    "HIVb",
    "HIVw",
    "FLU",
    "rtREV",
    "cpREV",
    "stmtREV",
];
