//! An asm statement in its parts.

use crate::text::Text;
use crate::tokens::Kind;

/// A statement with its template and operands.
#[derive(Debug)]
pub(super) struct Statement {
    /// The template, as an assembler would get it before operands are put in.
    pub(super) template: String,
    /// Operands that are written, then those that are read alone.
    pub(super) operands: Vec<Operand>,
    /// Number of operands that are written.
    pub(super) written: usize,
    /// True where memory is said to change.
    pub(super) memory: bool,
    /// The piece of its closing parenthesis.
    pub(super) last: usize,
}

/// An operand of a statement.
#[derive(Debug)]
pub(super) struct Operand {
    pub(super) name: String,
    pub(super) constraint: String,
    /// Its C expression.
    pub(super) expression: String,
}

impl Statement {
    /// The statement whose keyword stands at `place`; nothing where it has another form.
    pub(super) fn read(text: &Text, place: usize) -> Option<Self> {
        let mut open = place + 1;
        while matches!(
            text.at(open),
            b"volatile" | b"__volatile__" | b"__volatile" | b"inline" | b"__inline__"
        ) {
            open += 1;
        }
        // `asm goto`, whose labels are the function's.
        if text.at(open) != b"(" {
            return None;
        }
        let last = text.partner(open)?;
        let mut sections = split(text, open + 1, last, b":").into_iter();
        let (from, to) = sections.next()?;
        let template = strings(text, from, to)?;
        let mut operands = Vec::new();
        let mut written = 0;
        // Outputs, then inputs.
        for first in [true, false] {
            if let Some((from, to)) = sections.next() {
                for (from, to) in split(text, from, to, b",") {
                    operands.push(Operand::read(text, from, to)?);
                }
            }
            if first {
                written = operands.len();
            }
        }
        let clobbers = sections.next();
        // A fifth part would be labels.
        if sections.next().is_some() {
            return None;
        }
        let memory = clobbers
            .is_some_and(|(from, to)| (from..to).any(|piece| text.at(piece) == b"\"memory\""));
        Some(Self {
            template,
            operands,
            written,
            memory,
            last,
        })
    }
}

impl Operand {
    fn read(text: &Text, from: usize, to: usize) -> Option<Self> {
        let mut at = from;
        let mut name = String::new();
        if text.at(at) == b"[" {
            name = text.span(at + 1, at + 2);
            at = text.partner(at)? + 1;
        }
        let open = (at..to).find(|piece| text.at(*piece) == b"(")?;
        let constraint = strings(text, at, open)?;
        let close = text.partner(open)?;
        // Pieces behind the parenthesis or none in it: no operand that was understood.
        if close + 1 != to || close == open + 1 {
            return None;
        }
        Some(Self {
            name,
            constraint,
            expression: text.span(open + 1, close),
        })
    }
}

/// Parts between marks that stand in no brackets; none where there is no piece at all.
fn split(text: &Text, from: usize, to: usize, mark: &[u8]) -> Vec<(usize, usize)> {
    let mut parts = Vec::new();
    let mut start = from;
    let mut at = from;
    while at < to {
        if text.at(at) == mark {
            parts.push((start, at));
            start = at + 1;
        }
        // Over brackets at one step: marks in them are the expression's.
        at = text.partner(at).filter(|other| *other > at).unwrap_or(at) + 1;
    }
    if start < to || !parts.is_empty() {
        parts.push((start, to));
    }
    parts
}

/// The text of adjacent string literals; nothing where there is something else.
fn strings(text: &Text, from: usize, to: usize) -> Option<String> {
    let mut all = String::new();
    for piece in from..to {
        let bytes = text.at(piece);
        if text.kind(piece) != Some(Kind::Quoted) || bytes.len() < 2 || bytes[0] != b'"' {
            return None;
        }
        let inner = std::str::from_utf8(&bytes[1..bytes.len() - 1]).ok()?;
        let mut letters = inner.chars();
        while let Some(letter) = letters.next() {
            all.push(match letter {
                '\\' => match letters.next()? {
                    'n' => '\n',
                    't' => '\t',
                    same @ ('\\' | '"' | '\'') => same,
                    // Numbers of characters, which templates have no use for.
                    _ => return None,
                },
                other => other,
            });
        }
    }
    (from < to).then_some(all)
}
