//! Constants of single precision in a source, cut as the SPU's compilers cut them.
//!
//! Must stay true: a constant beyond this machine's floats is refused with its line; one whose
//! place the compiler names otherwise stays, with a warning.

use crate::Error;
use crate::text::{Edits, Text, flat};
use crate::tokens::Kind;

/// Options by which the compiler names constants that it converts, and writes nothing.
pub(crate) const CONVERSIONS: &[&str] = &[
    "-fsyntax-only",
    "-Wfloat-conversion",
    "-ftrack-macro-expansion=2",
    "-fno-diagnostics-show-caret",
    "-fdiagnostics-color=never",
    "-fmessage-length=0",
    "-Wno-error",
];

/// Source whose constants of single precision are cut, as the SPU's compilers cut them.
#[derive(Debug, Default)]
pub(crate) struct Constants {
    /// The source; nothing where no constant changes.
    pub(crate) source: Option<Vec<u8>>,
    /// Lines that name constants that stay rounded.
    pub(crate) warnings: Vec<String>,
}

/// Cuts constants. `check` gives what the compiler says of a text by the options [`CONVERSIONS`].
///
/// # Errors
/// A constant beyond this machine's range, with its line; whatever `check` fails with.
pub(crate) fn constants(
    source: &[u8],
    check: impl FnOnce(&[u8]) -> Result<String, Error>,
) -> Result<Constants, Error> {
    let text = Text::new(source);
    let mut found = Constants::default();
    let mut edits = Edits::default();
    let mut doubles = false;
    for place in 0..text.len() {
        if text.kind(place) != Some(Kind::Number) {
            continue;
        }
        let Some((value, single)) = value(text.at(place)) else {
            continue;
        };
        if single || is_cast(&text, place) {
            edit(&text, place, value, &mut edits)?;
        } else {
            doubles |= text.is_users(place);
        }
    }
    // Only the compiler knows which doubles become floats.
    if doubles {
        convert(&text, &check(&flat(source))?, &mut edits, &mut found)?;
    }
    found.source = (!edits.is_empty()).then(|| edits.apply(source));
    Ok(found)
}

/// Cuts the doubles that the compiler said it converts.
fn convert(
    text: &Text<'_>,
    said: &str,
    edits: &mut Edits,
    found: &mut Constants,
) -> Result<(), Error> {
    let starts = text.line_starts();
    for said in said.lines() {
        let Some((line, column, wanted)) = conversion(said) else {
            continue;
        };
        let start = starts.get(line.saturating_sub(1)).copied();
        let offset = start.unwrap_or(0) + column.saturating_sub(1);
        let named = text.place_of(offset);
        let mut place = named;
        while matches!(text.at(place), b"-" | b"+" | b"(") {
            place += 1;
        }
        // Another value is a part of the expression that the compiler computed.
        let is_wanted =
            |(value, single): (f64, bool)| !single && value.to_bits() == wanted.abs().to_bits();
        if value(text.at(place)).is_some_and(is_wanted) {
            edit(text, place, wanted.abs(), edits)?;
        } else if text.is_users(named) && cut(wanted.abs()) != Cut::Exact {
            let (file, line) = text.position(named);
            // In a list, g++ then writes the double in the float's place.
            if said.contains(LEFT) {
                return Err(Error::Refused(format!(
                    "{file}:{line}: error: floats: the compiler does not make this constant a \
                     float; write it as one number"
                )));
            }
            found.warnings.push(format!(
                "{file}:{line}: warning: floats: this constant is rounded to the nearest float; \
                 write it as one number, which is cut as on the SPU"
            ));
        }
    }
    Ok(())
}

/// The compiler's words of a conversion that it leaves, as of constants in C++.
const LEFT: &str = "changes the value of '";
/// Its words of one that it has made.
const MADE: &str = "changes value from '";

/// Line, column and value of a constant that one of the compiler's lines says it converts.
fn conversion(line: &str) -> Option<(usize, usize, f64)> {
    let (place, message) = line.split_once(": warning: ")?;
    let message = message.strip_prefix("conversion from 'double' to 'float' ")?;
    let value = [MADE, LEFT]
        .iter()
        .find_map(|words| message.strip_prefix(words))?;
    let value = value.split('\'').next()?.parse().ok()?;
    let mut parts = place.rsplitn(3, ':');
    let column = parts.next()?.parse().ok()?;
    let line = parts.next()?.parse().ok()?;
    // Places in headers of macros are not the source's.
    parts
        .next()?
        .ends_with(".i")
        .then_some((line, column, value))
}

/// Value of a decimal number with a fraction or an exponent, and whether it is a float.
fn value(number: &[u8]) -> Option<(f64, bool)> {
    let text = std::str::from_utf8(number).ok()?;
    if text.starts_with("0x") || text.starts_with("0X") || !text.contains(['.', 'e', 'E']) {
        return None;
    }
    let digits = text.strip_suffix(['f', 'F']);
    Some((digits.unwrap_or(text).parse().ok()?, digits.is_some()))
}

/// True for the operand of a cast to float.
fn is_cast(text: &Text<'_>, place: usize) -> bool {
    place >= 3
        && text.at(place - 1) == b")"
        && text.at(place - 2) == b"float"
        && text.at(place - 3) == b"("
}

fn edit(text: &Text<'_>, place: usize, value: f64, edits: &mut Edits) -> Result<(), Error> {
    match cut(value) {
        Cut::Exact => {}
        Cut::Number(number) => edits.replace(text.start(place), text.end(place), number),
        Cut::Beyond => {
            let (file, line) = text.position(place);
            return Err(Error::Refused(format!(
                "{file}:{line}: error: floats: this constant is a number on the SPU, but lies \
                 beyond this machine's floats; make it of its bits"
            )));
        }
    }
    Ok(())
}

/// A positive number as a float.
#[derive(Debug, PartialEq, Eq)]
enum Cut {
    /// It is one.
    Exact,
    /// As much of it as 24 bits have room for, in hexadecimal digits.
    Number(String),
    /// It has no float of this machine's.
    Beyond,
}

fn cut(value: f64) -> Cut {
    let bits = value.to_bits();
    let exponent = i64::try_from(bits >> 52 & 0x7ff).unwrap_or(0) - 1023;
    let fraction = bits & ((1 << 52) - 1);
    if value == 0.0 {
        return Cut::Exact;
    }
    match exponent {
        // The SPU has no numbers below the normal ones.
        ..-126 => Cut::Number("0.0f".into()),
        // Of a float's fraction, 29 bits less than a double's, nothing is lost.
        -126..128 if fraction & ((1 << 29) - 1) == 0 => Cut::Exact,
        -126..128 => Cut::Number(format!("0x1.{:06x}p{exponent}f", fraction >> 29 << 1)),
        128.. => Cut::Beyond,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_cut() {
        let source = b"float a = 0.1f, b = -0.1, c = 0.5, d = 1.0 / 3.0; double e = 0.1;\n\
                       float f = (float)0.7;\n";
        // As the compiler says it: columns of the second, the third and the quotient.
        let said = "/tmp/x.i:1:22: warning: conversion from 'double' to 'float' changes value from \
                    '-1.0000000000000001e-1' to '-1.00000001e-1f' [-Wfloat-conversion]\n\
                    /tmp/x.i:1:44: warning: conversion from 'double' to 'float' changes value from \
                    '3.3333333333333331e-1' to '3.33333343e-1f' [-Wfloat-conversion]\n\
                    /tmp/x.i:1:9: warning: conversion from 'double' to 'float' may change value\n";
        let found = constants(source, |_| Ok(said.into())).expect("constants in range");
        let text = String::from_utf8(found.source.expect("changes")).expect("text");
        assert_eq!(
            text,
            "float a = 0x1.999998p-4f, b = -0x1.999998p-4f, c = 0.5, d = 1.0 / 3.0; \
             double e = 0.1;\nfloat f = (float)0x1.666666p-1f;\n"
        );
        assert_eq!(found.warnings.len(), 1, "{:?}", found.warnings);
        // As g++ says it, of a number and of the quotient.
        let left = |column, value| {
            let said = format!(
                "/tmp/x.i:1:{column}: warning: conversion from 'double' to 'float' changes the \
                 value of '{value}' [-Wfloat-conversion]\n"
            );
            constants(source, |_| Ok(said))
        };
        let found = left(22, "-1.0000000000000001e-1").expect("a number");
        assert_eq!(found.source.map(|it| it.len()), Some(text.len()));
        assert!(left(44, "3.3333333333333331e-1").is_err());
        assert_eq!(cut(0.75), Cut::Exact);
        assert_eq!(cut(1e-40), Cut::Number("0.0f".into()));
        assert!(constants(b"float a = 1e39f;", |_| Ok(String::new())).is_err());
        let plain = constants(b"float a = 0.5f; int b = 0x1f;", |_| Ok(String::new()));
        assert!(plain.is_ok_and(|found| found.source.is_none()));
    }
}
