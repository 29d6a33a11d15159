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

use crate::text::{Edits, Text};
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
