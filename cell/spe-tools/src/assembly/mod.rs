//! The PowerPC's assembly within a host's functions, as C for this machine.
//!
//! Why here: programs of the PPE update words by `lwarx` and `stwcx.`, read the time base and count
//! zeros in asm statements of a few instructions. These become C that the compiler knows all of;
//! atomic updates keep the promise of a reservation, by `sidecore_powerpc.h`.
//!
//! Must stay true: a statement is translated whole or left as it is. Statements without an
//! instruction of the PowerPC alone, such as this machine's own, are left without a warning. Lines
//! keep their numbers.

mod instructions;
mod powerpc;
mod statement;

use crate::edits::Edits;
use crate::text::Text;
use statement::Statement;

/// Source without the PowerPC's assembly.
#[derive(Debug)]
pub(crate) struct Translated {
    pub(crate) source: Vec<u8>,
    /// True where something was translated.
    pub(crate) changed: bool,
    /// Lines that name unknown instructions or operands.
    pub(crate) warnings: Vec<String>,
}

/// The source with its statements in C; nothing where there is none to say anything about.
pub(crate) fn translate(source: &[u8]) -> Option<Translated> {
    // Most sources have none, and are not divided into pieces.
    if !source.windows(3).any(|part| part == b"asm") {
        return None;
    }
    let text = Text::new(source);
    let mut edits = Edits::default();
    let mut warnings = Vec::new();
    let mut scopes = Scopes::default();
    for place in 0..text.len() {
        scopes.pass(&text, place);
        let named = matches!(text.at(place), b"asm" | b"__asm__" | b"__asm");
        if !named || !scopes.within() || !begins(&text, place) {
            continue;
        }
        // Of another form than gcc's: the compiler says what it thinks of it.
        let Some(statement) = Statement::read(&text, place) else {
            continue;
        };
        match powerpc::translate(&statement) {
            Ok(Some(code)) => edits.replace(text.start(place), text.end(statement.last), code),
            Ok(None) => {}
            Err(unknown) => {
                let (file, line) = text.position(place);
                warnings.push(format!("{file}:{line}: warning: assembly: {unknown}"));
            }
        }
    }
    let changed = !edits.is_empty();
    (changed || !warnings.is_empty()).then(|| Translated {
        source: edits.apply(source),
        changed,
        warnings,
    })
}

/// True where a statement may begin at `place`; behind a name stands a variable's register.
fn begins(text: &Text, place: usize) -> bool {
    place > 0
        && matches!(
            text.at(place - 1),
            b";" | b"{" | b"}" | b")" | b":" | b"else" | b"do"
        )
}

/// Braces that are open, but those of namespaces and of `extern "C"`, in which assembly is the
/// file's own.
#[derive(Debug, Default)]
struct Scopes {
    open: Vec<bool>,
}

impl Scopes {
    fn pass(&mut self, text: &Text, place: usize) {
        match text.at(place) {
            b"{" => {
                let before = text.at(place.wrapping_sub(1));
                // Behind a string only `extern "C"` opens a brace.
                let outer = before == b"namespace"
                    || text.at(place.wrapping_sub(2)) == b"namespace"
                    || before.starts_with(b"\"");
                self.open.push(!outer);
            }
            b"}" => {
                self.open.pop();
            }
            _ => {}
        }
    }

    fn within(&self) -> bool {
        self.open.contains(&true)
    }
}

#[cfg(test)]
mod tests;
