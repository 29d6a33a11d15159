//! The first part of a model's name: which matrix it is, and the values in its braces.

use super::{Parser, shown};
use crate::model::codon::CodonKind;
use crate::model::dna::{ALIASES, NAMED};
use crate::model::name::{ExchangeName, FrequencyName, class_count};
use crate::model::protein::{self, MIXTURES, RATES, upper_triangle};
use crate::model::states;
use crate::model::{EXCHANGE_RANGE, ModelError};
use crate::msa::{Alphabet, GeneticCode};

impl Parser<'_, '_> {
    pub(super) fn exchange(
        &mut self,
        part: &str,
    ) -> Result<(ExchangeName, FrequencyName), ModelError> {
        let (label, braces) = self.braces(part)?;
        // Names of other programs first, so that all tables below have one name a matrix.
        let canonical = ALIASES
            .iter()
            .find(|(alias, _)| alias.eq_ignore_ascii_case(label))
            .map_or(label, |(_, name)| name);
        if let Some(named) = NAMED
            .iter()
            .find(|named| named.name.eq_ignore_ascii_case(canonical))
        {
            let label = named.name.to_owned();
            return self.classes(label, &named.classes, named.equal, &braces);
        }
        // `DNA010020`, as PhyML and RAxML-NG write any reversible matrix.
        if let Some(classes) = digits(label) {
            return self.classes(format!("DNA{}", &label[3..]), &classes, false, &braces);
        }
        let mut aliases = protein::ALIASES.iter();
        let alias = aliases.find(|(alias, _)| alias.eq_ignore_ascii_case(label));
        let label = alias.map_or(label, |(_, name)| name);
        let is = |name: &str| name.eq_ignore_ascii_case(label);
        if let Some(at) = protein::all().position(|published| is(published.name)) {
            self.count("the matrix", 0, braces.len())?;
            return Ok((ExchangeName::Published(at), FrequencyName::Matrix));
        }
        if let Some(at) = MIXTURES.iter().position(|mixture| is(mixture.name)) {
            self.count("the mixture", 0, braces.len())?;
            return Ok((ExchangeName::Mixture(at), FrequencyName::Matrix));
        }
        if is("PROTGTR") || is("GTR20") {
            return self.protein(&braces);
        }
        if let Some((_, kind)) = CodonKind::NAMES.iter().find(|(name, _)| is(name)) {
            return self.codon(*kind, &braces);
        }
        if let Some(matrix) = states::by_name(label) {
            return self.states(matrix, &braces);
        }
        let mut published = protein::NONREVERSIBLE.iter();
        if is("UNREST") || is("NONREV") || published.any(|name| is(name)) {
            return Err(ModelError::Contradiction {
                model: shown(self.model),
                what: "nonreversible models depend on the root: `phylo evaluate` and `phylo root` \
                       take them, for rooted trees",
            });
        }
        // `MULTI5`, or too many states: the number of states is part of the name.
        let multi = label
            .get(..5)
            .is_some_and(|head| head.eq_ignore_ascii_case("MULTI"));
        let found = DATA_TYPES
            .iter()
            .find(|(name, _)| is(name) || multi && *name == "MULTI");
        if let Some((_, hint)) = found {
            return Err(ModelError::DataType {
                name: shown(label),
                hint,
            });
        }
        Err(ModelError::Unknown { name: shown(label) })
    }

    fn classes(
        &mut self,
        label: String,
        classes: &[u8; 6],
        equal: bool,
        braces: &[&str],
    ) -> Result<(ExchangeName, FrequencyName), ModelError> {
        // Alphabets of more states need numbers beyond a byte.
        let classes = classes.map(u16::from).to_vec();
        let given = match braces {
            [] => None,
            [values] => {
                let values = self.numbers(values, "rate", [0.0, 1e6], "0 to 1,000,000")?;
                self.count("the matrix", class_count(&classes), values.len())?;
                self.some_above_zero(&values)?;
                Some(values)
            }
            more => return Err(self.miscount("the matrix", 1, more.len())),
        };
        let frequencies = if equal {
            FrequencyName::Equal
        } else {
            FrequencyName::Fitted
        };
        Ok((
            ExchangeName::Classes {
                label,
                alphabet: Alphabet::Dna,
                classes,
                given,
            },
            frequencies,
        ))
    }

    /// A matrix of a table, its rates perhaps in braces.
    fn states(
        &mut self,
        matrix: states::Matrix,
        braces: &[&str],
    ) -> Result<(ExchangeName, FrequencyName), ModelError> {
        let given = match braces {
            [] => matrix.given,
            [values] => {
                let values = self.numbers(values, "rate", [0.0, 1e6], "0 to 1,000,000")?;
                self.count("the matrix", class_count(&matrix.classes), values.len())?;
                self.some_above_zero(&values)?;
                Some(values)
            }
            more => return Err(self.miscount("the matrix", 1, more.len())),
        };
        let frequencies = match matrix.equal {
            true => FrequencyName::Equal,
            false => FrequencyName::Fitted,
        };
        let exchange = ExchangeName::Classes {
            label: matrix.label,
            alphabet: matrix.alphabet,
            classes: matrix.classes,
            given,
        };
        Ok((exchange, frequencies))
    }

    /// `GY{omega/kappa}`; frequencies of codons are counted, of Muse and Gaut's models those of
    /// bases. `KOSI07`: all numbers are published.
    fn codon(
        &mut self,
        kind: CodonKind,
        braces: &[&str],
    ) -> Result<(ExchangeName, FrequencyName), ModelError> {
        let given = match braces {
            _ if matches!(kind, CodonKind::Published(_)) => {
                self.count("the matrix", 0, braces.len())?;
                Some(Vec::new())
            }
            [] => None,
            [values] => {
                let [least, most] = EXCHANGE_RANGE;
                let values = self.numbers(values, "ratio", [least, most], "0.001 to 1,000")?;
                self.count("omega and kappa", kind.start().len(), values.len())?;
                Some(values)
            }
            more => return Err(self.miscount("omega and kappa", 1, more.len())),
        };
        let frequencies = match kind {
            CodonKind::Gy => FrequencyName::Empirical,
            CodonKind::Published(_) => FrequencyName::Matrix,
            // Muse and Gaut's rates depend on the target base, so codons have no free frequencies.
            CodonKind::Mg | CodonKind::Mgk => FrequencyName::Bases {
                by_position: true,
                given: None,
            },
        };
        let code = GeneticCode::STANDARD;
        Ok((ExchangeName::Codon { kind, code, given }, frequencies))
    }

    /// Twenty states of its own: lower triangle by rows, 190 numbers, then perhaps 20 frequencies,
    /// as in PAML's files.
    fn protein(&mut self, braces: &[&str]) -> Result<(ExchangeName, FrequencyName), ModelError> {
        let [values] = braces else {
            self.count("the matrix", 0, braces.len())?;
            return Ok((ExchangeName::Protein { given: None }, FrequencyName::Fitted));
        };
        let numbers = self.numbers(values, "rate", [0.0, 1e6], "0 to 1,000,000")?;
        if numbers.len() != RATES {
            // With frequencies; the message names this number, which PAML's files have.
            self.count("the matrix", 210, numbers.len())?;
        }
        let (rates, frequencies) = numbers.split_at(RATES);
        self.some_above_zero(rates)?;
        let own = match frequencies {
            [] => None,
            own => Some(self.shares(own.to_vec())?),
        };
        let default = if own.is_some() {
            FrequencyName::Matrix
        } else {
            FrequencyName::Fitted
        };
        let given = Some((upper_triangle(rates), own));
        Ok((ExchangeName::Protein { given }, default))
    }
}

/// `DNA010020`: six digits that name classes, numbered from 0 without a gap.
fn digits(label: &str) -> Option<[u8; 6]> {
    let (head, digits) = label.split_at_checked(3)?;
    let digits: &[u8; 6] = digits.as_bytes().try_into().ok()?;
    if !head.eq_ignore_ascii_case("DNA") {
        return None;
    }
    // A gap would leave a rate that no pair of states uses.
    let mut next = b'0';
    for &digit in digits {
        if digit > next || digit < b'0' {
            return None;
        }
        next = next.max(digit + 1);
    }
    Some(digits.map(|digit| digit - b'0'))
}

/// Data types that stand for no model, to RAxML-NG neither, and what to write instead.
const DATA_TYPES: [(&str, &str); 6] = [
    ("PROT", NAME_A_MATRIX),
    ("PROTEIN", NAME_A_MATRIX),
    ("AA", NAME_A_MATRIX),
    (
        "MULTI",
        "name states and matrix, such as MULTI5_MK or MULTI5_GTR (2 to 64 states)",
    ),
    (
        "GT",
        "name a matrix, such as GTGTR4 (unphased) or GT16 (phased)",
    ),
    ("CODON", "name a model, such as GY+F3X4"),
];
const NAME_A_MATRIX: &str = "name a matrix, such as LG+G4";
