//! The FORMAT command: the meaning of a matrix's cells.
//!
//! Must stay true: an option that is not supported is refused by name, never ignored.

use super::tokens::Tokens;
use crate::{Alphabet, Dots, MsaError, name, shown};

/// Kind of data that a block declares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DataType {
    /// Not declared, or without information about the characters.
    Open,
    /// DNA, RNA, NUCLEOTIDE.
    Nucleotide,
    /// PROTEIN.
    Protein,
    /// STANDARD, or MrBayes' RESTRICTION.
    Standard,
}

impl DataType {
    /// The alphabet of its letters.
    pub(super) fn alphabet(self) -> Option<Alphabet> {
        match self {
            Self::Nucleotide => Some(Alphabet::Dna),
            Self::Protein => Some(Alphabet::Protein),
            Self::Open | Self::Standard => None,
        }
    }
}

/// The options of a block's matrix.
#[derive(Debug, Clone)]
pub(super) struct Format {
    pub(super) data: DataType,
    pub(super) gap: u8,
    pub(super) missing: u8,
    pub(super) matching: Option<u8>,
    pub(super) interleave: bool,
    pub(super) labels: bool,
    /// Case matters; only to STANDARD data.
    pub(super) respect_case: bool,
    /// States; empty where the block does not list them.
    pub(super) symbols: Vec<u8>,
    /// Symbols with another meaning: one character, or a set in braces or parentheses.
    pub(super) equates: Vec<(u8, Vec<u8>)>,
    pub(super) dots: Dots,
}

impl Default for Format {
    fn default() -> Self {
        Self {
            data: DataType::Open,
            gap: b'-',
            missing: b'?',
            matching: None,
            interleave: false,
            labels: true,
            respect_case: false,
            symbols: Vec::new(),
            equates: Vec::new(),
            // Programs disagree about a dot where no GAP is named.
            dots: Dots::Unclear,
        }
    }
}

impl Format {
    /// Reads the command's options and its `;`.
    pub(super) fn read(tokens: &mut Tokens<'_>) -> Result<Self, MsaError> {
        let mut format = Self::default();
        while !tokens.take(b';') {
            // The loop would not end on a file that stops within the command.
            if tokens.peek().is_none() {
                return Err(tokens.error("FORMAT does not end with `;`"));
            }
            let key = tokens.key().to_ascii_uppercase();
            match (key.as_slice(), tokens.take(b'=')) {
                (b"DATATYPE", true) => format.data = data_type(tokens)?,
                // With an explicit gap symbol a dot has its usual meaning, a match.
                (b"GAP", true) => {
                    (format.gap, format.dots) = (symbol(tokens)?, Dots::Match);
                }
                (b"MISSING", true) => format.missing = symbol(tokens)?,
                (b"MATCHCHAR", true) => format.matching = Some(symbol(tokens)?),
                (b"INTERLEAVE", false) => format.interleave = true,
                (b"INTERLEAVE", true) => format.interleave = yes(tokens),
                // Rows then come in the order of TAXLABELS.
                (b"NOLABELS", false) => format.labels = false,
                (b"LABELS", false) | (b"NOTOKENS" | b"NOTRANSPOSE", false) => {}
                (b"LABELS", true) => match &*tokens.key().to_ascii_uppercase() {
                    b"LEFT" | b"YES" => {}
                    b"NO" => format.labels = false,
                    _ => return Err(tokens.error("LABELS: only names left of the rows are read")),
                },
                (b"RESPECTCASE", false) => format.respect_case = true,
                (b"SYMBOLS", true) => format.symbols = symbols(tokens)?,
                (b"EQUATE", true) => format.equates = equates(tokens)?,
                (b"ITEMS" | b"STATESFORMAT", true) => {
                    let value = tokens.word().unwrap_or_default().to_ascii_uppercase();
                    let plain = value.iter().filter(|byte| byte.is_ascii_alphabetic());
                    let plain: Vec<u8> = plain.copied().collect();
                    // Other items, such as frequencies, are not states.
                    if !matches!(plain.as_slice(), b"STATES" | b"STATESPRESENT") {
                        let (key, value) = (name(&key), shown(&name(&value)));
                        let what = format!(
                            "{key}={value} is not read: a cell must be a state; write the matrix so"
                        );
                        return Err(tokens.error(&what));
                    }
                }
                // Refused rather than ignored: both change the meaning of a cell of the matrix.
                (b"TRANSPOSE" | b"TOKENS", false) => {
                    let what = format!(
                        "FORMAT {} is not read: write the matrix with a row a taxon and a \
                         character a cell",
                        name(&key)
                    );
                    return Err(tokens.error(&what));
                }
                (b"", _) => {
                    let found = name(&[tokens.peek().unwrap_or(b'=')]);
                    return Err(tokens.error(&format!("`{}` within FORMAT", shown(&found))));
                }
                (key, _) => {
                    let what = format!("FORMAT {} is not known", shown(&name(key)));
                    return Err(tokens.error(&what));
                }
            }
        }
        format.check(tokens)?;
        Ok(format)
    }

    fn check(&self, tokens: &Tokens<'_>) -> Result<(), MsaError> {
        // DNA and proteins have their states by themselves; SYMBOLS can only add to them.
        if let Some(alphabet) = self.data.alphabet() {
            let more = self.symbols.iter().find(|&&s| alphabet.code(s).is_none());
            return match more {
                Some(&more) => Err(tokens.error(&format!(
                    "SYMBOLS adds the state `{}` to {alphabet}, which no model has",
                    shown(&name(&[more]))
                ))),
                None => Ok(()),
            };
        }
        // Models ignore case: symbols that differ in case alone would become one state.
        let other_case = |symbol: &u8| match symbol.is_ascii_lowercase() {
            true => symbol.to_ascii_uppercase(),
            false => symbol.to_ascii_lowercase(),
        };
        let is_both = |symbol: &&u8| {
            symbol.is_ascii_alphabetic() && self.symbols.contains(&other_case(symbol))
        };
        match self.symbols.iter().find(is_both) {
            Some(&both) if self.respect_case => Err(tokens.error(&format!(
                "RESPECTCASE makes two states of `{}` and `{}`, models know one: rename one of \
                 them",
                char::from(both),
                char::from(other_case(&both))
            ))),
            _ => Ok(()),
        }
    }
}

fn data_type(tokens: &mut Tokens<'_>) -> Result<DataType, MsaError> {
    let value = tokens.word().unwrap_or_default().to_ascii_uppercase();
    match value.as_slice() {
        b"DNA" | b"RNA" | b"NUCLEOTIDE" => Ok(DataType::Nucleotide),
        b"PROTEIN" => Ok(DataType::Protein),
        b"STANDARD" | b"RESTRICTION" => Ok(DataType::Standard),
        other => Err(tokens.error(&format!(
            "DATATYPE={} is not read: DNA, RNA, NUCLEOTIDE, PROTEIN or STANDARD is; write a file \
             for each kind of data",
            shown(&name(other))
        ))),
    }
}

/// One character, perhaps in quotes.
fn symbol(tokens: &mut Tokens<'_>) -> Result<u8, MsaError> {
    tokens.skip_blanks();
    let rest = &tokens.text[tokens.at..];
    let (symbol, len) = match *rest {
        // A quoted character may be one that has a meaning to NEXUS.
        [quote @ (b'\'' | b'"'), symbol, end, ..] if quote == end => (symbol, 3),
        [symbol, ..] if symbol.is_ascii_graphic() && symbol != b';' => (symbol, 1),
        _ => return Err(tokens.error("FORMAT names no character here")),
    };
    tokens.at += len;
    // A word of several characters is no symbol; the next option may follow at once.
    let next = tokens.text.get(tokens.at);
    let glued = next.is_some_and(|byte| byte.is_ascii_alphanumeric());
    match glued && symbol.is_ascii_alphanumeric() {
        true => Err(tokens.error("FORMAT names several characters where one is wanted")),
        false => Ok(symbol),
    }
}

fn yes(tokens: &mut Tokens<'_>) -> bool {
    let answer = tokens.key();
    !answer
        .first()
        // Anything but `no` is a yes, as the option stands there.
        .is_some_and(|byte| byte.eq_ignore_ascii_case(&b'n'))
}

/// States: single characters, or a range such as `0~9`.
fn symbols(tokens: &mut Tokens<'_>) -> Result<Vec<u8>, MsaError> {
    let Some(text) = tokens.quoted() else {
        return Err(tokens.error("SYMBOLS wants its characters in double quotes"));
    };
    let text: Vec<u8> = text
        .iter()
        .filter(|b| !b.is_ascii_whitespace())
        .copied()
        .collect();
    let mut symbols = Vec::new();
    let mut rest = text.as_slice();
    while let Some((&first, more)) = rest.split_first() {
        // A range is by the characters' codes: `A~F`, `0~9`.
        if let [b'~', last, others @ ..] = more {
            if *last < first {
                return Err(tokens.error("SYMBOLS has a range that ends before it begins"));
            }
            symbols.extend(first..=*last);
            rest = others;
        } else {
            symbols.push(first);
            rest = more;
        }
    }
    Ok(symbols)
}

/// `x=A y={CG}`.
fn equates(tokens: &mut Tokens<'_>) -> Result<Vec<(u8, Vec<u8>)>, MsaError> {
    let bad = "EQUATE wants pairs such as `R={AG}` in double quotes";
    let Some(text) = tokens.quoted() else {
        return Err(tokens.error(bad));
    };
    let text: Vec<u8> = text
        .iter()
        .filter(|b| !b.is_ascii_whitespace())
        .copied()
        .collect();
    let mut pairs = Vec::new();
    let mut rest = text.as_slice();
    while let [symbol, b'=', more @ ..] = rest {
        let len = match more.first() {
            Some(b'{') => more.iter().position(|&byte| byte == b'}').map(|at| at + 1),
            Some(b'(') => more.iter().position(|&byte| byte == b')').map(|at| at + 1),
            Some(_) => Some(1),
            None => None,
        };
        let Some(len) = len else {
            return Err(tokens.error(bad));
        };
        pairs.push((*symbol, more[..len].to_vec()));
        rest = &more[len..];
    }
    match rest.is_empty() {
        true => Ok(pairs),
        false => Err(tokens.error(bad)),
    }
}
