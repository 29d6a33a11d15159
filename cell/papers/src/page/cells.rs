//! One figure, one answer, one reason.
//!
//! Why here: numbers are written one way on the whole page, and a reason once below its table,
//! however many rows have it.

use crate::answer::{Cell, Claim, Row};
use crate::catalogue::Paper;
use maud::{Markup, html};

/// The reasons of one table, each with a letter.
#[derive(Debug, Default)]
pub(super) struct Notes(Vec<(String, bool)>);

impl Notes {
    /// The letter of a reason.
    fn letter(&mut self, why: &str, missing: bool) -> String {
        // The same words as "no figure" and as "not measured" are two reasons.
        let same = |each: &(String, bool)| each.0 == why && each.1 == missing;
        let index = self.0.iter().position(same).unwrap_or_else(|| {
            self.0.push((why.to_owned(), missing));
            self.0.len() - 1
        });
        letter(index)
    }

    /// The list of reasons below the table.
    pub(super) fn list(&self) -> Markup {
        html! {
            @if !self.0.is_empty() {
                ul.reasons {
                    @for (index, (why, missing)) in self.0.iter().enumerate() {
                        li.missing[*missing] {
                            sup { (letter(index)) } " "
                            @if *missing { "not measured: " }
                            (prose(why))
                        }
                    }
                }
            }
        }
    }
}

/// Cell with the document's figure.
pub(super) fn paper(row: &Row) -> Markup {
    html! {
        @match &row.paper {
            Some(Paper::Number(value)) => {
                span.number data-value=(value) { (grouped(&format!("{value}"))) }
                (unit(&row.unit))
            }
            Some(Paper::Numbers(_)) | None => "\u{2014}",
            Some(Paper::Words(words)) => span.words { (words) },
        }
    }
}

/// Cell with an answer, or the letter of the reason why there is none.
pub(super) fn cell(cell: &Cell, of: &str, notes: &mut Notes) -> Markup {
    html! {
        @match cell {
            Cell::Number { value, spread, fitted } => {
                span.number data-value=(value) { (number(*value)) @if *fitted { "*" } }
                (unit(of))
                @if let Some(spread) = spread.filter(|spread| *spread >= 0.005) {
                    " " span.spread { "\u{b1}" (format!("{:.0}", 100.0 * spread)) "\u{a0}%" }
                }
            }
            Cell::Words { text } => span.words { (prose(text)) },
            Cell::Claims { claims } => (list(claims)),
            Cell::None { why } => span.none { "\u{2014}" sup { (notes.letter(why, false)) } },
            Cell::Missing { why } => span.missing { "\u{2014}" sup { (notes.letter(why, true)) } },
        }
    }
}

fn list(claims: &[Claim]) -> Markup {
    html! {
        ul.claims {
            @for claim in claims {
                li.holds[claim.holds].fails[!claim.holds] {
                    b { @if claim.holds { "holds: " } @else { "does not hold: " } }
                    (claim.text)
                    @if let (Some(value), Some(limit)) = (claim.value, claim.limit) {
                        ": " (number(value)) " (at most " (number(limit)) ")"
                    }
                }
            }
        }
    }
}

/// Text whose parts between backquotes are commands.
pub(super) fn prose(text: &str) -> Markup {
    html! {
        @for (index, piece) in text.split('`').enumerate() {
            @if index % 2 == 1 { code { (piece) } } @else { (piece) }
        }
    }
}

fn unit(unit: &str) -> Markup {
    html! { @if !unit.is_empty() { span.unit { "\u{a0}" (unit) } } }
}

/// Formats a number with three significant digits; whole numbers from 100 on.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    let text = match size {
        _ if size >= 100.0 || value == 0.0 => format!("{value:.0}"),
        _ if value.fract() == 0.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 1.0 => format!("{value:.2}"),
        _ => {
            // Three significant digits, and no endless zeros of a number that is nearly 0.
            let digits = (2 - size.log10().floor() as i32).clamp(3, 9) as usize;
            format!("{value:.digits$}")
        }
    };
    grouped(&text)
}

/// Thousands are set apart from five digits on.
fn grouped(text: &str) -> String {
    // Digits behind the point are not grouped.
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let digits = whole.trim_start_matches('-');
    // Years and small counts are read more easily without.
    if digits.len() < 5 {
        return text.to_owned();
    }
    let mut out = String::from(if whole.starts_with('-') { "-" } else { "" });
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}

/// a, b, ... z, aa, ab ...
fn letter(index: usize) -> String {
    // Bijective: behind z comes aa, so that no reason is without a letter.
    let last = char::from(b'a' + (index % 26) as u8);
    match index / 26 {
        0 => last.to_string(),
        more => format!("{}{last}", letter(more - 1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_thousands_set_apart() {
        for (value, text) in [
            (0.0, "0"),
            (8.0, "8"),
            (0.0543, "0.0543"),
            (0.4, "0.400"),
            (2.674, "2.67"),
            (20.34, "20.3"),
            (1501.8, "1502"),
            (65_536.0, "65,536"),
            (-870_000.0, "-870,000"),
            (1e-12, "0.000000000"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(grouped("12345.678"), "12,345.678");
    }

    #[test]
    fn a_reason_has_one_letter_however_often_it_is_given() {
        let mut notes = Notes::default();
        assert_eq!(notes.letter("x", false), "a");
        assert_eq!(notes.letter("y", false), "b");
        assert_eq!(notes.letter("x", false), "a");
        assert_eq!(notes.letter("x", true), "c");
        assert_eq!(letter(25), "z");
        assert_eq!(letter(26), "aa");
        assert_eq!(letter(53), "bb");
    }
}
