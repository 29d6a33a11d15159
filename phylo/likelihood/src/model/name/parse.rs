//! The parser of model names.
//!
//! Parse, don't validate: the result has all values in range and of the right number. Files that
//! braces name are read through the caller's function; nothing here does I/O.

mod matrix;
mod mixture;

use super::{
    AscertainmentName, CategoryRate, ExchangeName, FrequencyName, InvariantName, ModelName,
    RatesName, ReadFile, ScalerName,
};
use crate::model::CodonKind;
use crate::model::protein::MIXTURES;
use crate::model::{ALPHA_RANGE, CATEGORIES_MAX, INVARIANT_MAX, ModelError, SCALER_RANGE};
use crate::msa::{Alphabet, GeneticCode};

impl ModelName {
    /// Parses a name. `read` is called for the text of a file where a brace holds no number.
    ///
    /// # Errors
    /// [`ModelError`]; it names the part that it is about.
    pub fn parse(text: &str, read: ReadFile<'_>) -> Result<Self, ModelError> {
        let text = match text.trim() {
            // RAxML-NG takes the data type for the most general model with usual rates.
            data_type if data_type.eq_ignore_ascii_case("DNA") => DNA,
            text => text,
        };
        Self::parse_whole(text, read, true)
    }

    /// A class of a mixture: a matrix, and frequencies perhaps.
    fn parse_class(text: &str, read: ReadFile<'_>) -> Result<Self, ModelError> {
        let name = Self::parse_whole(text, read, false)?;
        let plain = name.rates == RatesName::Uniform
            && name.invariant == InvariantName::None
            && name.scaler == ScalerName::None
            && name.ascertainment == AscertainmentName::None
            && !matches!(
                name.exchange,
                ExchangeName::Codon { .. } | ExchangeName::Mixture(_)
            );
        match plain {
            true => Ok(name),
            false => Err(ModelError::Contradiction {
                model: shown(text),
                what: "a class of MIX is a matrix of bases, amino acids or other states, with \
                       frequencies perhaps: rates across sites follow the closing brace, and \
                       codon models have no mixtures",
            }),
        }
    }

    /// `mixtures` is false in a mixture, which holds no further one.
    fn parse_whole(text: &str, read: ReadFile<'_>, mixtures: bool) -> Result<Self, ModelError> {
        // The error texts show the whole model, whatever part is wrong.
        let mut parser = Parser { model: text, read };
        let mut parts = split_parts(text).into_iter();
        let head = parts.next().unwrap_or_default();
        let mut profiles = mixtures.then(|| Parser::named_profiles(head)).flatten();
        let (exchange, default) = match parser.mixture_list(head)?.filter(|_| mixtures) {
            Some((label, list)) => (parser.classes_of(label, list)?, FrequencyName::Matrix),
            // `C20` alone stands for equal rates of exchange.
            None if profiles.is_some() => parser.exchange("POISSON")?,
            None => parser.exchange(head)?,
        };
        let mut name = Self {
            rates: match profiles {
                Some(_) => GAMMA,
                None => exchange.default_rates(),
            },
            exchange,
            frequencies: default,
            invariant: InvariantName::None,
            scaler: ScalerName::None,
            ascertainment: AscertainmentName::None,
        };
        // The number of states depends on it, so it is parsed first, wherever it occurs.
        let (codes, parts): (Vec<&str>, Vec<&str>) =
            parts.partition(|part| part.to_ascii_uppercase().starts_with("CODE"));
        parser.genetic_code(&codes, &mut name.exchange)?;
        // A second part of a kind would silently replace the first: it is refused.
        let (mut frequencies, mut invariant, mut rates) = (false, false, false);
        let (mut scaler, mut ascertainment) = (false, false);
        let (mut classes, mut fused) = (profiles.is_some(), false);
        for part in parts {
            let starred = part.strip_prefix('*');
            let part = starred.unwrap_or(part);
            // The first letter decides: the names of all parts differ in it.
            let (what, seen) = match part.as_bytes().first().map(u8::to_ascii_uppercase) {
                _ if starred.is_some() && !part.starts_with(['G', 'g', 'R', 'r']) => {
                    return Err(parser.unknown_part(part));
                }
                Some(b'F') if is_list(part) && mixtures => {
                    profiles = Some(parser.listed_profiles(part)?);
                    ("the list of profiles", &mut classes)
                }
                Some(b'C') if mixtures => {
                    let named = Parser::named_profiles(part);
                    profiles = Some(named.ok_or_else(|| parser.unknown_part(part))?);
                    ("the list of profiles", &mut classes)
                }
                Some(b'F') => {
                    name.frequencies = parser.frequencies(part, name.alphabet(), &name.exchange)?;
                    ("+F", &mut frequencies)
                }
                Some(b'I') => {
                    name.invariant = parser.invariant(part)?;
                    ("+I", &mut invariant)
                }
                Some(b'G') => {
                    name.rates = parser.gamma(part)?;
                    ("the distribution of rates", &mut rates)
                }
                Some(b'R') => {
                    name.rates = parser.free(part)?;
                    ("the distribution of rates", &mut rates)
                }
                Some(b'B') => {
                    name.scaler = parser.scaler(part)?;
                    ("+B", &mut scaler)
                }
                Some(b'A') => {
                    name.ascertainment = parser.ascertainment(part, name.alphabet())?;
                    ("+ASC", &mut ascertainment)
                }
                _ => return Err(parser.unknown_part(part)),
            };
            fused |= starred.is_some();
            if std::mem::replace(seen, true) {
                return Err(ModelError::Twice {
                    model: shown(text),
                    what,
                });
            }
        }
        parser.finish_mixture(&mut name, profiles, frequencies, fused)?;
        // A mixture's classes have rates of their own, one each.
        if let ExchangeName::Mixture(at) = name.exchange {
            let classes = MIXTURES[at].classes.len();
            parser.count("a mixture's rates", classes, name.rates.categories())?;
        }
        if ascertainment && invariant {
            return Err(ModelError::Contradiction {
                model: shown(text),
                what: "+I says that some sites cannot vary, +ASC that all such sites were left \
                       out: leave out one of them",
            });
        }
        Ok(name)
    }
}

struct Parser<'a, 'r> {
    model: &'a str,
    read: ReadFile<'r>,
}

impl Parser<'_, '_> {
    /// `+CODE{2}`, of codon models, at most once.
    fn genetic_code(
        &mut self,
        parts: &[&str],
        exchange: &mut ExchangeName,
    ) -> Result<(), ModelError> {
        let Some(&part) = parts.first() else {
            return Ok(());
        };
        let (label, braces) = self.braces(part)?;
        let ("CODE", ExchangeName::Codon { code, kind, .. }) =
            (label.to_ascii_uppercase().as_str(), exchange)
        else {
            return Err(self.unknown_part(part));
        };
        if parts.len() > 1 {
            return Err(ModelError::Twice {
                model: shown(self.model),
                what: "+CODE",
            });
        }
        self.count("+CODE", 1, braces.len())?;
        let number = braces[0].trim();
        let known = number.parse().ok().and_then(GeneticCode::new);
        *code = known.ok_or_else(|| ModelError::Value {
            model: shown(self.model),
            value: shown(number),
            what: "genetic code",
            range: "1 to 6, 9 to 16 or 21 to 25, as NCBI numbers them",
        })?;
        if matches!(kind, CodonKind::Published(_)) && *code != GeneticCode::STANDARD {
            return Err(ModelError::Contradiction {
                model: shown(self.model),
                what: "published matrices of codons are of the standard genetic code: take GY or \
                       MG for other codes",
            });
        }
        Ok(())
    }

    /// `+F1X4`, `+F3X4`: counted, or four and twelve in braces.
    fn bases(&mut self, part: &str, by_position: bool) -> Result<FrequencyName, ModelError> {
        let (_, braces) = self.braces(part)?;
        let given = match braces.as_slice() {
            [] => None,
            [values] => {
                let values = self.numbers(values, "frequency", [0.0, 1e6], "above 0")?;
                self.count("+F", if by_position { 12 } else { 4 }, values.len())?;
                let mut bases = Vec::new();
                // Each position of a codon has shares of its own.
                for own in values.chunks(4) {
                    bases.extend(self.shares(own.to_vec())?);
                }
                Some(if by_position { bases } else { bases.repeat(3) })
            }
            more => return Err(self.miscount("+F", 1, more.len())),
        };
        Ok(FrequencyName::Bases { by_position, given })
    }

    fn frequencies(
        &mut self,
        part: &str,
        alphabet: Alphabet,
        exchange: &ExchangeName,
    ) -> Result<FrequencyName, ModelError> {
        let (label, braces) = self.braces(part)?;
        let kind = label.to_ascii_uppercase();
        // `+F{…}` is IQ-TREE's spelling.
        if kind == "FU" || kind == "F" && !braces.is_empty() {
            self.count("+FU", 1, braces.len())?;
            let values = self.numbers(braces[0], "frequency", [0.0, 1e6], "above 0")?;
            self.count("+FU", alphabet.states(), values.len())?;
            // MG's frequencies are those of bases, not of codons.
            if is_muse_gaut(exchange) {
                return Err(self.unknown_part(part));
            }
            // Users round to two or three digits, so shares are only near 1.
            return Ok(FrequencyName::Given(self.shares(values)?));
        }
        if matches!(alphabet, Alphabet::Codon(_)) && matches!(kind.as_str(), "F1X4" | "F3X4") {
            return self.bases(part, kind == "F3X4");
        }
        self.count("+F", 0, braces.len())?;
        match kind.as_str() {
            _ if is_muse_gaut(exchange) => Err(ModelError::Contradiction {
                model: shown(self.model),
                what: "MG's rates are those of bases, whose frequencies are +F1X4 or +F3X4",
            }),
            "F" | "FC" => Ok(FrequencyName::Empirical),
            "FO" => Ok(FrequencyName::Fitted),
            "FE" | "FQ" => Ok(FrequencyName::Equal),
            "FM" if alphabet == Alphabet::Protein => Ok(FrequencyName::Matrix),
            // `+FC20pi3`, one profile of a mixture.
            _ if alphabet == Alphabet::Protein => {
                let found = mixture::profile(&label[1..]);
                found.ok_or_else(|| self.unknown_part(part))
            }
            _ => Err(self.unknown_part(part)),
        }
    }

    fn invariant(&mut self, part: &str) -> Result<InvariantName, ModelError> {
        let (label, braces) = self.braces(part)?;
        match (label.to_ascii_uppercase().as_str(), braces.as_slice()) {
            ("I" | "IO", []) => Ok(InvariantName::Fitted),
            ("IC", []) => Ok(InvariantName::Empirical),
            ("I" | "IU", [share]) => {
                let range = "0 to 0.99";
                let values = self.numbers(share, "share", [0.0, INVARIANT_MAX], range)?;
                self.count("+I", 1, values.len())?;
                Ok(InvariantName::Given(values[0]))
            }
            ("IU", []) => Err(self.miscount("+IU", 1, 0)),
            _ => Err(self.unknown_part(part)),
        }
    }

    /// `+B`, `+BO`: fitted; `+B{0.9}`, `+BU{0.9}`: given.
    fn scaler(&mut self, part: &str) -> Result<ScalerName, ModelError> {
        let (label, braces) = self.braces(part)?;
        match (label.to_ascii_uppercase().as_str(), braces.as_slice()) {
            ("B" | "BO", []) => Ok(ScalerName::Fitted),
            ("B" | "BU", [value]) => {
                let values = self.numbers(value, "scaler", SCALER_RANGE, "0.01 to 100")?;
                self.count("+B", 1, values.len())?;
                Ok(ScalerName::Given(values[0]))
            }
            ("BU", []) => Err(self.miscount("+BU", 1, 0)),
            _ => Err(self.unknown_part(part)),
        }
    }

    /// `+ASC_LEWIS`, `+ASC_FELS{n}`, `+ASC_STAM{n/n/…}`, as many as there are states.
    fn ascertainment(
        &mut self,
        part: &str,
        alphabet: Alphabet,
    ) -> Result<AscertainmentName, ModelError> {
        let (label, braces) = self.braces(part)?;
        // Checked before the counts, so that the advice comes first.
        if alphabet == Alphabet::PhasedGenotype {
            return Err(ModelError::Contradiction {
                model: shown(self.model),
                what: "+ASC needs a character for each state, which phased genotypes do not have: \
                       take GT10 models",
            });
        }
        let counts = |parser: &mut Self, text: &str, expected: usize| {
            let range = "0 to 1,000,000,000";
            let counts = parser.numbers(text, "number of sites", [0.0, 1e9], range)?;
            parser.count("+ASC", expected, counts.len())?;
            parser.some_above_zero(&counts)?;
            Ok::<_, ModelError>(counts)
        };
        match (label.to_ascii_uppercase().as_str(), braces.as_slice()) {
            // Without a kind, as IQ-TREE writes it, it is Lewis's.
            ("ASC_LEWIS" | "ASC", []) => Ok(AscertainmentName::Lewis),
            ("ASC_FELS", [text]) => {
                let counts = counts(self, text, 1)?;
                Ok(AscertainmentName::Felsenstein(counts[0]))
            }
            ("ASC_STAM", [text]) => {
                let counts = counts(self, text, alphabet.states())?;
                Ok(AscertainmentName::Stamatakis(counts))
            }
            // The right label with a wrong number of braces gets the better message.
            ("ASC_FELS", _) => Err(self.miscount("+ASC_FELS", 1, 0)),
            ("ASC_STAM", _) => Err(self.miscount("+ASC_STAM", alphabet.states(), 0)),
            _ => Err(self.unknown_part(part)),
        }
    }

    fn gamma(&mut self, part: &str) -> Result<RatesName, ModelError> {
        let (label, braces) = self.braces(part)?;
        let upper = label.to_ascii_uppercase();
        // `G4m`, `G4a`: RAxML-NG appends the kind of a category's rate to their number.
        let rest = &upper[1..];
        let (digits, by) = match rest.as_bytes().last() {
            Some(b'A') => (&rest[..rest.len() - 1], CategoryRate::Median),
            Some(b'M') => (&rest[..rest.len() - 1], CategoryRate::Mean),
            _ => (rest, CategoryRate::Mean),
        };
        let categories = self.categories(digits)?;
        let alpha = match braces.as_slice() {
            [] => None,
            [alpha] => {
                let values = self.numbers(alpha, "shape", ALPHA_RANGE, "0.02 to 1000")?;
                self.count("+G", 1, values.len())?;
                Some(values[0])
            }
            more => return Err(self.miscount("+G", 1, more.len())),
        };
        Ok(RatesName::Gamma {
            categories,
            alpha,
            by,
        })
    }

    fn free(&mut self, part: &str) -> Result<RatesName, ModelError> {
        let (label, braces) = self.braces(part)?;
        let categories = self.categories(&label[1..])?;
        let given = match braces.as_slice() {
            [] => None,
            [rates, weights] => {
                let rates = self.numbers(rates, "rate", [0.0, 1e6], "0 to 1,000,000")?;
                let weights = self.numbers(weights, "weight", [0.0, 1e6], "above 0")?;
                self.count("+R", categories, rates.len())?;
                self.count("+R", categories, weights.len())?;
                self.some_above_zero(&rates)?;
                Some((rates, self.shares(weights)?))
            }
            more => return Err(self.miscount("+R", 2, more.len())),
        };
        Ok(RatesName::Free { categories, given })
    }

    /// Number of categories; four where the text is empty.
    fn categories(&self, digits: &str) -> Result<usize, ModelError> {
        if digits.is_empty() {
            return Ok(4);
        }
        digits
            .parse()
            .ok()
            .filter(|count| (1..=CATEGORIES_MAX).contains(count))
            .ok_or_else(|| ModelError::Value {
                model: shown(self.model),
                value: shown(digits),
                what: "number of categories",
                range: "1 to 16",
            })
    }

    /// A part's label and the texts in its braces.
    fn braces<'t>(&self, part: &'t str) -> Result<(&'t str, Vec<&'t str>), ModelError> {
        let bad = || ModelError::Braces {
            model: shown(self.model),
            part: shown(part),
        };
        let start = part.find('{').unwrap_or(part.len());
        let (label, mut rest) = part.split_at(start);
        // A brace that closes before one opens is in the label.
        if label.contains('}') {
            return Err(bad());
        }
        let mut texts = Vec::new();
        while !rest.is_empty() {
            let inside = rest.strip_prefix('{').ok_or_else(bad)?;
            let (text, more) = inside.split_once('}').ok_or_else(bad)?;
            // No part nests braces, so an inner one is an outer one without its end.
            if text.contains('{') || texts.len() == BRACES_MAX {
                return Err(bad());
            }
            texts.push(text);
            rest = more;
        }
        Ok((label, texts))
    }

    /// Numbers with `/` or `,` between them, or those of the file that the text names.
    fn numbers(
        &mut self,
        text: &str,
        what: &'static str,
        [least, most]: [f64; 2],
        range: &'static str,
    ) -> Result<Vec<f64>, ModelError> {
        let text = text.trim();
        // Text with any other character is a file's name.
        let inline = text.bytes().all(|b| b"0123456789.eE+-/, \t".contains(&b));
        let owned;
        let (text, from_file) = if inline {
            (text, false)
        } else {
            owned = (self.read)(text).map_err(|error| ModelError::File {
                model: shown(self.model),
                path: shown(text),
                reason: error.to_string(),
            })?;
            (owned.as_str(), true)
        };
        // RAxML-NG has slashes, partition files commas, PAML's matrices spaces and lines.
        let separator = |c: char| c == '/' || c == ',' || c.is_whitespace();
        let mut values = Vec::new();
        for word in text.split(separator).filter(|word| !word.is_empty()) {
            let value: Option<f64> = word.parse().ok();
            match value.filter(|value| (least..=most).contains(value)) {
                Some(value) if values.len() < VALUES_MAX => values.push(value),
                // PAML's files end in prose.
                None if from_file && value.is_none() && values.len() >= 190 => break,
                _ if from_file && values.len() >= VALUES_MAX => break,
                _ => {
                    // A name may name any file: its content must not appear in messages.
                    let value = match from_file {
                        true => format!("number {} of the file", values.len() + 1),
                        false => shown(word),
                    };
                    return Err(ModelError::Value {
                        model: shown(self.model),
                        value,
                        what,
                        range,
                    });
                }
            }
        }
        Ok(values)
    }

    /// Shares of a whole: above 0, normalised to a sum of 1.
    fn shares(&self, mut values: Vec<f64>) -> Result<Vec<f64>, ModelError> {
        let sum: f64 = values.iter().sum();
        let bad = values.iter().find(|value| **value <= 0.0);
        // A looser sum is a mistake in a value, not rounding: normalising would hide it.
        if bad.is_some() || !(0.98..=1.02).contains(&sum) {
            return Err(ModelError::Value {
                model: shown(self.model),
                value: bad.map_or_else(|| format!("sum {sum}"), ToString::to_string),
                what: "share",
                range: "above 0; all of them sum to 1",
            });
        }
        values.iter_mut().for_each(|value| *value /= sum);
        Ok(values)
    }

    fn some_above_zero(&self, rates: &[f64]) -> Result<(), ModelError> {
        if rates.iter().any(|rate| *rate > 0.0) {
            return Ok(());
        }
        Err(ModelError::Value {
            model: shown(self.model),
            value: "0".to_owned(),
            what: "set of rates",
            range: "one of them above 0",
        })
    }

    fn count(&self, what: &'static str, expected: usize, found: usize) -> Result<(), ModelError> {
        if expected == found {
            Ok(())
        } else {
            Err(self.miscount(what, expected, found))
        }
    }

    fn miscount(&self, what: &'static str, expected: usize, found: usize) -> ModelError {
        ModelError::Count {
            model: shown(self.model),
            what,
            expected,
            found,
        }
    }

    fn unknown_part(&self, part: &str) -> ModelError {
        ModelError::Part {
            model: shown(self.model),
            part: shown(part),
        }
    }
}

fn is_muse_gaut(exchange: &ExchangeName) -> bool {
    let bases = [CodonKind::Mg, CodonKind::Mgk];
    matches!(exchange, ExchangeName::Codon { kind, .. } if bases.contains(kind))
}

/// Cuts at the `+` and `*` that stand outside braces: a value may be 1e+3. A star stays with its
/// part.
fn split_parts(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut depth) = (0, 0_usize);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            b'+' | b'*' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + usize::from(byte == b'+');
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// True of `FMIX{…}`.
fn is_list(part: &str) -> bool {
    let head = part.split_at_checked(4);
    head.is_some_and(|(head, _)| head.eq_ignore_ascii_case("FMIX"))
}

/// A text short enough for a message.
fn shown(text: &str) -> String {
    let end = text
        .char_indices()
        .nth(SHOWN_MAX)
        .map_or(text.len(), |(at, _)| at);
    let more = if end < text.len() { "…" } else { "" };
    format!("{}{more}", text[..end].escape_debug())
}

/// The model of the data type `DNA`: RAxML-NG's (`Model::Model` in its source, version 1.2), which
/// equals RAxML 8 under GTRGAMMA.
const DNA: &str = "GTR+F+G";
/// Rates across sites of a mixture of profiles that is named alone.
const GAMMA: RatesName = RatesName::Gamma {
    categories: 4,
    alpha: None,
    by: CategoryRate::Mean,
};
const BRACES_MAX: usize = 4;
/// Rates and frequencies of 64 states.
const VALUES_MAX: usize = 64 * 63 / 2 + 64;
const SHOWN_MAX: usize = 120;
