//! Cells of a matrix: characters, sets of them, and what FORMAT makes of them.
//!
//! A set in braces means one of its states, one in parentheses all of them. A likelihood treats
//! both as ambiguity, as PAUP and IQ-TREE do; the second kind is counted for a warning, since it
//! changes the meaning. A set without a letter of its own gets a byte beyond ASCII.

use super::format::{DataType, Format};
use super::tokens::Tokens;
use crate::{Accept, Alphabet, MsaError, SET_FIRST, is_multistate, name, shown};

/// Reads cells.
pub(super) struct Cells<'f> {
    format: &'f Format,
    accept: Accept,
    /// For each byte the meaning of a cell with it.
    meaning: Vec<Meaning>,
    /// Cells in parentheses.
    pub(super) polymorphic: usize,
    /// Sets of states without a letter; the byte of the k-th is [`SET_FIRST`] plus k.
    pub(super) sets: Vec<Vec<u8>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Meaning {
    Matching,
    Is(u8),
    Wrong(String),
}

impl<'f> Cells<'f> {
    pub(super) fn new(format: &'f Format, accept: Accept) -> Self {
        let accept = match format.data {
            DataType::Standard => is_multistate,
            _ => accept,
        };
        let mut cells = Self {
            format,
            accept,
            meaning: Vec::new(),
            polymorphic: 0,
            sets: Vec::new(),
        };
        cells.meaning = (0..=u8::MAX).map(|byte| cells.meaning_of(byte)).collect();
        // In the file's order: a later EQUATE may use an earlier one.
        for (symbol, value) in &format.equates {
            let meaning = match value.as_slice() {
                [b'{' | b'(', inside @ .., _] => cells.set(inside),
                [one] => cells.meaning[usize::from(*one)].clone(),
                _ => continue,
            };
            cells.meaning[usize::from(*symbol)] = meaning;
        }
        cells
    }

    /// A byte without EQUATE.
    fn meaning_of(&self, byte: u8) -> Meaning {
        let format = self.format;
        let is = |symbol: u8| match format.respect_case {
            true => byte == symbol,
            false => byte.eq_ignore_ascii_case(&symbol),
        };
        // Symbols that the file declares have priority, since they may be letters, too.
        if format.matching.is_some_and(is) {
            Meaning::Matching
        } else if is(format.gap) {
            Meaning::Is(b'-')
        } else if is(format.missing) {
            Meaning::Is(b'?')
        } else if !(self.accept)(byte) {
            let character = shown(&name(&[byte]));
            Meaning::Wrong(format!("`{character}` cannot stand in a sequence"))
        } else if format.data != DataType::Standard
            || format.symbols.is_empty()
            || format.symbols.iter().any(|&symbol| is(symbol))
            || matches!(byte, b'-' | b'?')
        {
            Meaning::Is(byte)
        } else {
            let character = shown(&name(&[byte]));
            Meaning::Wrong(format!("`{character}` is none of the SYMBOLS"))
        }
    }

    /// The next cell of a row. `first` is the character of the first row, where there is one.
    pub(super) fn next(
        &mut self,
        tokens: &mut Tokens<'_>,
        first: impl FnOnce() -> Option<u8>,
    ) -> Result<u8, MsaError> {
        let byte = tokens.peek().unwrap_or_default();
        let closing = match byte {
            b'{' => b'}',
            b'(' => b')',
            _ => {
                return match &self.meaning[usize::from(byte)] {
                    Meaning::Is(byte) => Ok(*byte),
                    Meaning::Matching => {
                        first().ok_or_else(|| tokens.error("no character to match here"))
                    }
                    Meaning::Wrong(what) => Err(tokens.error(what)),
                };
            }
        };
        // A `;` ends the search: an unclosed cell must not swallow the rest of the file.
        let rest = &tokens.text[tokens.at + 1..];
        let len = rest
            .iter()
            .position(|&byte| byte == closing || byte == b';');
        let len = len.filter(|&len| rest[len] == closing);
        let Some(len) = len else {
            return Err(tokens.error("a cell of several states is not closed"));
        };
        let found = match self.set(&rest[..len]) {
            Meaning::Is(byte) => byte,
            Meaning::Matching => return Err(tokens.error("no character to match here")),
            Meaning::Wrong(what) => return Err(tokens.error(&what)),
        };
        // `(AG)` means both states at once, which models read as either of them: a warning counts
        // these.
        self.polymorphic += usize::from(byte == b'(');
        // The caller passes over the cell's last byte.
        tokens.at += len + 1;
        Ok(found)
    }

    /// A set of states.
    fn set(&mut self, inside: &[u8]) -> Meaning {
        // Blanks and commas only separate the members.
        let members = inside
            .iter()
            .filter(|byte| !byte.is_ascii_whitespace() && **byte != b',');
        let mut found = Vec::new();
        for &member in members {
            // A gap or a missing state within a set leaves the cell open.
            match &self.meaning[usize::from(member)] {
                Meaning::Is(b'-' | b'?') => return Meaning::Is(b'?'),
                // A symbol that EQUATE has given a set.
                Meaning::Is(byte @ SET_FIRST..) => {
                    found.extend_from_slice(&self.sets[usize::from(byte - SET_FIRST)]);
                }
                Meaning::Is(byte) => found.push(byte.to_ascii_uppercase()),
                other => return other.clone(),
            }
        }
        found.sort_unstable();
        found.dedup();
        if let [one] = found[..] {
            return Meaning::Is(one);
        }
        // Without a DATATYPE, sets of bases are DNA.
        let is_base = |byte: &u8| b"ACGTU".contains(byte);
        let alphabet = match self.format.data {
            DataType::Open if found.iter().all(is_base) => Some(Alphabet::Dna),
            data => data.alphabet(),
        };
        let letter = alphabet.and_then(|alphabet| {
            let masks = alphabet.masks();
            let mut set = 0;
            for &byte in &found {
                set |= masks[usize::from(alphabet.code(byte)?)];
            }
            let code = masks.iter().position(|&mask| mask == set)?;
            // Only letters are tried: the code's first letter stands for the set from here on.
            (b'A'..=b'Z').find(|&letter| {
                alphabet
                    .code(letter)
                    .is_some_and(|c| usize::from(c) == code)
            })
        });
        match letter {
            Some(letter) => Meaning::Is(letter),
            None if found.is_empty() => Meaning::Wrong("a cell without a state".to_owned()),
            None => self.number(found),
        }
    }

    /// The byte that stands for a set of states.
    fn number(&mut self, members: Vec<u8>) -> Meaning {
        let known = self.sets.iter().position(|set| *set == members);
        let place = known.unwrap_or(self.sets.len());
        let Some(byte) = u8::try_from(place)
            .ok()
            .and_then(|k| SET_FIRST.checked_add(k))
        else {
            return Meaning::Wrong(format!(
                "a cell of the states `{}`: more than {place} different sets of states",
                shown(&name(&members))
            ));
        };
        if known.is_none() {
            self.sets.push(members);
        }
        Meaning::Is(byte)
    }
}
