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

use crate::text::{Edits, Text};
use crate::tokens::Kind;

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

/// A statement with its template and operands.
#[derive(Debug)]
struct Statement {
    /// The template, as an assembler would get it before operands are put in.
    template: String,
    /// Operands that are written, then those that are read alone.
    operands: Vec<Operand>,
    /// Number of operands that are written.
    written: usize,
    /// True where memory is said to change.
    memory: bool,
    /// The piece of its closing parenthesis.
    last: usize,
}

/// An operand of a statement.
#[derive(Debug)]
struct Operand {
    name: String,
    constraint: String,
    /// Its C expression.
    expression: String,
}

impl Statement {
    /// The statement whose keyword stands at `place`; nothing where it has another form.
    fn read(text: &Text, place: usize) -> Option<Self> {
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

#[cfg(test)]
mod tests {
    //! Statements and their translations.

    use super::*;

    fn translated(source: &str) -> (String, Vec<String>) {
        let found = translate(source.as_bytes()).expect("there is something to say");
        let text = String::from_utf8(found.source).expect("text stays text");
        (text, found.warnings)
    }

    #[test]
    fn statements_of_the_powerpc_are_c() {
        let source = "int f(int *p) {\n int old, new;\n __asm__ volatile(\"1: lwarx %0,0,%2\\n\"\n\
                  \" addi %1,%0,1\\n stwcx. %1,0,%2\\n bne- 1b\" : \"=&r\"(old), \"=&r\"(new)\n\
                  : \"r\"(p) : \"cc\", \"memory\");\n return old;\n}\n";
        let (text, warnings) = translated(source);
        assert_eq!(warnings, Vec::<String>::new());
        assert!(!text.contains("lwarx"), "{text}");
        assert!(text.contains("goto __sidecore_l0"), "{text}");
        assert_eq!(text.matches('\n').count(), source.matches('\n').count());
    }

    #[test]
    fn what_is_not_the_powerpcs_stays_without_a_word() {
        for source in [
            "__asm__(\"sync\");\n",
            "void f(void) { asm volatile(\"rdtsc\" : \"=A\"(x)); }\n",
            "void f(void) { asm(\"add %1, %0\" : \"+r\"(x) : \"r\"(y)); }\n",
            "void f(void) { asm volatile(\"\" : : : \"memory\"); }\n",
            "void f(void) { register long x asm(\"r3\"); }\n",
            "extern \"C\" { __asm__(\"sync\"); }\n",
        ] {
            assert!(translate(source.as_bytes()).is_none(), "{source}");
        }
    }

    #[test]
    fn what_is_not_known_is_said_once_and_stays() {
        let source = "# 1 \"a.c\"\nvoid f(void) {\n asm(\"mr %0,%1\\n vaddfp 1,2,3\" : \"=r\"(x)\n\
                  : \"r\"(y)); }\n";
        let (text, warnings) = translated(source);
        assert_eq!(text, source);
        assert_eq!(
            warnings,
            ["a.c:2: warning: assembly: `vaddfp` is not known here"]
        );
        let source = "void f(void) {\n asm(\"mr %0,5\\n sync\" : \"=r\"(x)); asm(\"sync\");\n\
                  asm(\"extsb %0,%1\" : \"=r\"(x) : \"v\"(y)); }\n";
        let (text, warnings) = translated(source);
        assert_eq!(
            warnings,
            [
                ":2: warning: assembly: `mr` with these operands is not known here",
                ":3: warning: assembly: `extsb` with these operands is not known here",
            ]
        );
        assert!(text.contains("__sync_synchronize"), "{text}");
    }

    #[test]
    fn a_branch_to_no_label_of_the_template_is_not_known() {
        for target in ["1b", "elsewhere", "\u{e9}", "7f"] {
            let source = format!(
                "void f(void) {{ asm(\"lwarx %0,0,%1\\n bne {target}\" \
                 : \"=r\"(x) : \"r\"(p)); }}\n"
            );
            let (text, warnings) = translated(&source);
            assert_eq!((text, warnings.len()), (source, 1), "{target}");
        }
    }
}
