//! Conversions between vectors that source leaves to the compiler: each becomes a cast, which
//! [`crate::lanes`] then treats as it treats the user's own.
//!
//! Why by the compiler: only it knows the types on both sides of an assignment, a return or an
//! argument. With no such conversion permitted, it names the place and the types of each.
//!
//! Must stay true: a conversion between elements of two sizes is a cast afterwards, or the source
//! is refused with its line. So is one of another pointer to a pointer to vectors. Conversions
//! between elements of one size, and those of the kit's own headers, stay as they are.

use crate::Error;
use crate::lanes::operand;
use crate::lanes::types::Types;
use crate::text::{Edits, Text, flat};
use crate::tool::{Diagnostic, Kind};

/// Options by which the compiler names all conversions and writes nothing.
pub(crate) const STRICT: &[&str] = &[
    "-fsyntax-only",
    "-fno-lax-vector-conversions",
    "-ftrack-macro-expansion=2",
    "-fno-diagnostics-show-caret",
    "-fdiagnostics-color=never",
    "-fmessage-length=0",
    "-fmax-errors=0",
    "-Wno-fatal-errors",
    "-Wno-error",
    // In C a pointer to anything becomes one to vectors without a word.
    "-Wc++-compat",
];

/// The source with a cast for each conversion; nothing where there are none. `check` gives what the
/// compiler says of a text by the options [`STRICT`], and may run a compiler for each round.
///
/// # Errors
/// A conversion that no cast can say, and a function of several sizes of elements whose vectors no
/// prototype names, with their file and line; whatever `check` fails with.
pub(crate) fn casts(
    source: &[u8],
    mut check: impl FnMut(&[u8]) -> Result<String, Error>,
) -> Result<Option<Vec<u8>>, Error> {
    let text = Text::new(source);
    if !has_vectors(&text) {
        return Ok(None);
    }
    if let Some(name) = Types::read(&text).old_definition(&text) {
        let (file, line) = text.position(name);
        let name = String::from_utf8_lossy(text.at(name));
        return Err(Error::Refused(format!(
            "{file}:{line}: error: lanes: `{name}` takes vectors, of which its callers know no \
             types; write the parameters' types into its parentheses"
        )));
    }
    let mut changed = None;
    for round in 0..ROUNDS_MAX {
        let text = changed.as_deref().unwrap_or(source);
        let said = check(&flat(text))?;
        let mut found = conversions(&said);
        // A pointer that is still named after some depths is no reason to refuse the source.
        found.retain(|one| !one.pointer || round < ROUNDS_MAX / 2);
        match cast_once(text, &found)? {
            Some(next) => changed = Some(next),
            None => return Ok(changed),
        }
    }
    Err(Error::Refused(format!(
        "vectors are converted implicitly at more than {ROUNDS_MAX} depths; write the casts"
    )))
}

/// True where the user's own files name vectors or call intrinsics.
fn has_vectors(text: &Text<'_>) -> bool {
    const STARTS: &[&[u8]] = &[b"__spe_vec_", b"vec_", b"spu_", b"si_", b"qword"];
    (0..text.len()).any(|place| {
        text.is_users(place) && STARTS.iter().any(|start| text.at(place).starts_with(start))
    })
}

/// A conversion that the compiler named.
#[derive(Debug, PartialEq, Eq)]
struct Conversion {
    line: usize,
    column: usize,
    /// The wanted vector's type; nothing where no cast of one operand says it.
    to: Option<&'static str>,
    /// Elements of the vectors.
    counts: (usize, usize),
    /// True where a pointer to the vector is wanted.
    pointer: bool,
    /// The text of what is converted, which C++ names where a parameter's default is.
    given: Option<String>,
}

/// The conversions between elements of two sizes, and to pointers to vectors, in the compiler's
/// lines.
fn conversions(said: &str) -> Vec<Conversion> {
    let mut all: Vec<Conversion> = Vec::new();
    let mut open = Reading::default();
    for line in said.lines() {
        let Some(line_read) = Diagnostic::read(line) else {
            continue;
        };
        // The compiler's advice comes before its error, with places of its own.
        if line_read.kind != Kind::Note || line_read.message.starts_with(ADVICE) {
            all.extend(open.end(&all));
            open = Reading::begin(&line_read);
        }
        open.read(&line_read);
    }
    all.extend(open.end(&all));
    all
}

/// An error or warning whose notes are being read.
#[derive(Debug, Default)]
struct Reading {
    place: Option<(usize, usize)>,
    /// What it tells by itself or by a note.
    found: Option<(Option<&'static str>, (usize, usize), bool)>,
    is_warning: bool,
    is_read: bool,
    given: Option<String>,
    /// True while the notes name the macros that the place comes from.
    in_macros: bool,
}

impl Reading {
    fn begin(line: &Diagnostic<'_>) -> Self {
        let is_warning = line.kind == Kind::Warning;
        // Most warnings are about other things; one within a macro has no place for a cast.
        let pointers = || POINTERS.iter().any(|part| line.message.contains(part));
        Self {
            place: line.place,
            found: None,
            given: line
                .message
                .strip_prefix("could not convert '")
                .and_then(|rest| Some(rest.split_once("' from '")?.0.to_owned())),
            is_warning,
            is_read: line.kind == Kind::Error || (is_warning && line.place.is_some() && pointers()),
            // A place in the source itself is the right one.
            in_macros: line.place.is_none(),
        }
    }

    fn read(&mut self, line: &Diagnostic<'_>) {
        if !self.is_read {
            return;
        }
        let note = line.kind == Kind::Note;
        let expands = note && line.message.starts_with("in expansion of macro");
        // The error is one of a macro's text: its place is the macro's name. A macro in another's
        // argument is named behind that.
        if expands && self.in_macros {
            self.place = line.place.or(self.place);
        }
        let of_macros = expands || line.message.starts_with("in definition of macro");
        if note && !of_macros && self.place.is_some() {
            self.in_macros = false;
        }
        if self.found.is_none() {
            self.found = if self.is_warning {
                pointed(line.message)
            } else {
                types(line.message, note).map(|(to, counts)| (to, counts, false))
            };
        }
    }

    /// The conversion that it names, where none is known for its place.
    fn end(self, known: &[Conversion]) -> Option<Conversion> {
        let ((line, column), (to, counts, pointer)) = (self.place?, self.found?);
        let is_known = known
            .iter()
            .any(|known| (known.line, known.column) == (line, column));
        (!is_known).then_some(Conversion {
            line,
            column,
            to,
            counts,
            pointer,
            given: self.given,
        })
    }
}

/// The beginning of a note that the compiler gives once, before an error.
const ADVICE: &str = "use '-flax-vector-conversions'";
/// Parts of warnings about pointers that are converted.
const POINTERS: &[&str] = &[
    "incompatible pointer type",
    "incompatible return type",
    "void *' to ",
    "void*' to ",
];

/// The vector and its elements where a message names a wanted pointer to vectors.
fn pointed(message: &str) -> Option<(Option<&'static str>, (usize, usize), bool)> {
    let argument = message
        .strip_prefix("expected ")
        .and_then(|rest| rest.split_once(" but argument is of type "));
    let assigned = message.split_once(" from incompatible pointer type");
    let returned = message.split_once(" with incompatible return type ");
    // In C, and in C++; qualifiers may stand before the word.
    let unknown = ["void *' to ", "void*' to "];
    let wanted = argument
        .or(assigned)
        .map(|(wanted, _)| wanted)
        .or(returned.map(|(_, wanted)| wanted))
        .or_else(|| {
            unknown
                .iter()
                .find_map(|from| Some(message.split_once(*from)?.1))
        })?;
    let (_, rest) = wanted.split_once("__vector(")?;
    let (count, rest) = rest.split_once(") ")?;
    let count = count.parse::<usize>().ok()?;
    let element = rest
        .split('\'')
        .next()?
        .trim_end()
        .strip_suffix('*')?
        .trim_end();
    let named = ELEMENTS
        .iter()
        .find(|(name, elements, _)| *name == element && *elements == count)?;
    Some((Some(named.2), (count, count), true))
}

/// The wanted vector and both numbers of elements, where a message names vectors that differ.
fn types(message: &str, note: bool) -> Option<(Option<&'static str>, (usize, usize))> {
    let mut found = message
        .match_indices("__vector(")
        .filter_map(|(at, start)| {
            let rest = &message[at + start.len()..];
            let (count, rest) = rest.split_once(") ").unwrap_or_default();
            let element = rest.split(['\'', '&', ')', ',', '}']).next()?;
            // A pointer's cast is another one.
            let whole = !element.contains('*');
            whole.then(|| (count.parse::<usize>().unwrap_or(0), element.trim()))
        });
    let first = found.next()?;
    let wanted_last = message.starts_with("cannot convert")
        || message.starts_with("could not convert")
        || message.starts_with("incompatible types when returning");
    let wanted_first = [
        "incompatible types when",
        "expected",
        "invalid initialization of reference",
    ]
    .iter()
    .any(|start| message.starts_with(start));
    let (from, to) = match found.find(|next| next.0 != first.0) {
        Some(next) if wanted_last => (first, next),
        Some(next) if wanted_first => (next, first),
        // Candidates of a call that fits none, and operations on both.
        Some(next) => return Some((None, (first.0, next.0))),
        // A list in braces names the vector's element where it wants the vector.
        None if wanted_last && !note && message.ends_with(" in initialization") => {
            let (_, element) = message.split_once(" to '")?;
            let element = element.split('\'').next()?;
            let count = ELEMENTS.iter().find(|(name, _, _)| *name == element)?.1;
            (first, (count, element))
        }
        None => return None,
    };
    if from.0 == to.0 {
        return None;
    }
    let named = ELEMENTS
        .iter()
        .find(|(name, count, _)| *name == to.1 && *count == to.0);
    Some((named.map(|(_, _, vector)| *vector), (from.0, to.0)))
}

/// The text with casts at the places that do not lie within one another; nothing without places of
/// the user's.
fn cast_once(source: &[u8], conversions: &[Conversion]) -> Result<Option<Vec<u8>>, Error> {
    if conversions.is_empty() {
        return Ok(None);
    }
    let text = Text::new(source);
    let types = Types::read(&text);
    let lines = text.line_starts();
    let place = |one: &Conversion| {
        let start = lines.get(one.line.saturating_sub(1)).copied();
        text.place_of(start.unwrap_or(source.len()) + one.column.saturating_sub(1))
    };
    let named = conversions.iter().map(|one| (place(one), one));
    let mut named = named.collect::<Vec<_>>();
    named.sort_by_key(|(piece, _)| *piece);
    // Calls that rely on a default are named as well, until that is cast.
    let (defaults, others): (Vec<_>, Vec<_>) =
        named.into_iter().partition(|(_, one)| one.given.is_some());
    let mut found = edits(&text, &types, &defaults)?;
    if found.is_empty() {
        found = edits(&text, &types, &others)?;
    }
    Ok((!found.is_empty()).then(|| found.apply(source)))
}

/// The casts for conversions, by their places.
fn edits(text: &Text<'_>, types: &Types, named: &[(usize, &Conversion)]) -> Result<Edits, Error> {
    let mut edits = Edits::default();
    let mut done = 0;
    for (piece, conversion) in named.iter().copied() {
        // A pointer's assignment is named by its mark, and what is assigned stands behind it.
        let behind = usize::from(conversion.pointer && text.at(piece) == b"=");
        let given = conversion.given.as_deref();
        let whole = given
            .and_then(|given| operand::default(text, piece, given))
            .or_else(|| operand::whole(text, piece + behind));
        // A macro of the system's, such as `va_arg`, stands in the user's source.
        let before = whole.and_then(|(begin, _)| begin.checked_sub(1));
        if !text.is_users(piece) && !before.is_some_and(|before| text.is_users(before)) {
            continue;
        }
        if let Some(shut) = static_cast(text, types, piece) {
            // The compiler takes this one; the pass behind reads both alike.
            if text.at(shut - 1) != b"&" {
                edits.replace(text.start(piece), text.end(piece), "reinterpret_cast");
            }
            continue;
        }
        let (cast, whole) = cast(text, piece, conversion, whole)?;
        let Some((begin, end)) = whole.filter(|(begin, _)| *begin >= done) else {
            continue;
        };
        done = end;
        put(text, types, &mut edits, (begin, end), &cast);
    }
    Ok(edits)
}

/// The end of the type of a `static_cast` to a vector or number.
fn static_cast(text: &Text<'_>, types: &Types, piece: usize) -> Option<usize> {
    let shut = (piece + 3..piece + 6).find(|place| text.at(*place) == b">")?;
    let typed = types.shape(text, piece + 2, shut).is_some();
    (text.at(piece) == b"static_cast" && typed).then_some(shut)
}

/// The cast for a conversion of the expression `whole`, which `piece` is a part of, and where it is
/// put; nothing where the compiler's own is right.
fn cast(
    text: &Text<'_>,
    piece: usize,
    conversion: &Conversion,
    whole: Option<(usize, usize)>,
) -> Result<(String, Option<(usize, usize)>), Error> {
    let refused = || refusal(text, piece, conversion);
    let name = conversion.to.ok_or_else(refused)?;
    let star = usize::from(conversion.pointer);
    let whole = whole.filter(|(begin, _)| {
        // A declaration, of which no part is known to be converted.
        if text.is_word(*begin)
            && text.is_word(begin + 1)
            && !matches!(text.at(*begin), b"sizeof" | b"__extension__")
        {
            return false;
        }
        // A cast that did not help: the conversion is one within a macro.
        let named = text.at(*begin) == b"(" && text.at(begin + 1) == name.as_bytes();
        let starred = star == 0 || text.at(begin + 2) == b"*";
        !(named && starred && text.at(begin + 2 + star) == b")")
    });
    // The compiler has said what it thinks of the pointers.
    if whole.is_none() && !conversion.pointer {
        return Err(refused());
    }
    Ok((format!("({name}{})", ["", " *"][star]), whole))
}

/// The error for a conversion that no cast can say.
fn refusal(text: &Text<'_>, piece: usize, conversion: &Conversion) -> Error {
    let (file, line) = text.position(piece);
    let (from, to) = conversion.counts;
    Error::Refused(format!(
        "{file}:{line}: error: lanes: a vector of {from} elements meets one of {to} here without a \
         cast; write it, so that the bits are the SPU's"
    ))
}

/// Puts a cast before the expression of the pieces from `begin` to before `end`.
fn put(
    text: &Text<'_>,
    types: &Types,
    edits: &mut Edits,
    (begin, end): (usize, usize),
    cast: &str,
) {
    let alone = operand::end(text, types, begin) == Some(end);
    let (open, shut) = if alone { ("", "") } else { ("(", ")") };
    // On the user's own line, as the passes behind this one look only there.
    let at = match begin.checked_sub(1) {
        Some(before) if !text.is_users(begin) => text.end(before),
        _ => text.start(begin),
    };
    edits.replace(at, at, format!("{cast}{open}"));
    edits.replace(text.end(end - 1), text.end(end - 1), shut);
}

/// Elements of vectors as the compiler names them, their number and the kit's vector of them.
const ELEMENTS: &[(&str, usize, &str)] = &[
    ("signed char", 16, "__spe_vec_char16"),
    ("char", 16, "__spe_vec_uchar16"),
    ("unsigned char", 16, "__spe_vec_uchar16"),
    ("short int", 8, "__spe_vec_short8"),
    ("short unsigned int", 8, "__spe_vec_ushort8"),
    ("int", 4, "__spe_vec_int4"),
    ("unsigned int", 4, "__spe_vec_uint4"),
    ("long long int", 2, "__spe_vec_llong2"),
    ("long long unsigned int", 2, "__spe_vec_ullong2"),
    ("float", 4, "__spe_vec_float4"),
    ("double", 2, "__spe_vec_double2"),
];
/// Conversions within conversions are cast from the outside in, one depth each round.
const ROUNDS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    const SHORTS: &str = "'us' {aka '__vector(8) short unsigned int'}";
    const WORDS: &str = "'ui' {aka 'const __vector(4) unsigned int'}";

    fn rewritten(source: &str, said: &str) -> String {
        let found = cast_once(source.as_bytes(), &conversions(said)).expect("not refused");
        String::from_utf8(found.expect("a cast")).expect("text")
    }

    #[test]
    fn each_kind_of_conversion_becomes_a_cast() {
        for (source, column, message, wanted) in [
            (
                "a = b = in + 1;",
                9,
                format!("incompatible types when assigning to type {WORDS} from type {SHORTS}"),
                "a = b = (__spe_vec_uint4)(in + 1);",
            ),
            (
                "return f(in)[2];",
                8,
                format!("incompatible types when returning type {SHORTS} but {WORDS} was expected"),
                "return (__spe_vec_uint4)f(in)[2];",
            ),
            (
                "s t = { c == 2 ? in : u };",
                16,
                format!("cannot convert {SHORTS} to 'unsigned int' in initialization"),
                "s t = { (__spe_vec_uint4)(c == 2 ? in : u) };",
            ),
        ] {
            let said = format!("a.i:1:{column}: error: {message}\n");
            assert_eq!(rewritten(source, &said), wanted);
        }
        let said = format!(
            "a.i:1:6: error: incompatible type for argument 2 of 'f'\n\
             a.i:1:1: note: expected {WORDS} but argument is of type {SHORTS}\n"
        );
        assert_eq!(rewritten("f(1, in);", &said), "f(1, (__spe_vec_uint4)in);");
    }

    #[test]
    fn a_macro_in_a_macro_s_argument_is_cast_alone() {
        let said = format!(
            "k.h:24:24: error: incompatible type for argument 2 of 'arg'\n\
             k.h:176:65: note: in definition of macro 'of'\n\
             a.i:1:6: note: in expansion of macro 'print'\n\
             a.i:1:19: note: in expansion of macro 'spu_add'\n\
             a.i:1:1: note: expected {WORDS} but argument is of type {SHORTS}\n\
             k.h:1:1: note: use '-flax-vector-conversions' to permit conversions\n\
             a.i:1:1: note: in expansion of macro 'other'\n"
        );
        assert_eq!(
            rewritten("f(1, print(arg(0, spu_add(a, b))));", &said),
            "f(1, print(arg(0, (__spe_vec_uint4)spu_add(a, b))));"
        );
    }

    #[test]
    fn defaults_of_c_plus_plus_are_cast_before_the_calls_that_rely_on_them() {
        let source = "int f(T v = in, int k = 0) { v = static_cast<int>(x); } int y = f();";
        let said = format!(
            "a.i:1:26: error: could not convert 'in' from {SHORTS} to {WORDS}\n\
             a.i:1:66: error: cannot convert {SHORTS} to {WORDS}\n"
        );
        let wanted = source.replace("= in", "= (__spe_vec_uint4)in");
        assert_eq!(rewritten(source, &said), wanted);
        let said = format!("a.i:1:34: error: invalid 'static_cast' from {SHORTS} to {WORDS}\n");
        let wanted = source.replace("static_", "reinterpret_");
        assert_eq!(rewritten(source, &said), wanted);
    }

    #[test]
    fn an_element_is_cast_whole_where_its_bracket_is_named() {
        let said = format!("a.i:1:11: error: cannot convert {SHORTS} to {WORDS} in assignment\n");
        let found = rewritten("p->v = b[1];", &said);
        assert_eq!(found, "p->v = (__spe_vec_uint4)b[1];");
    }

    #[test]
    fn a_macro_of_the_system_s_is_cast_in_the_user_s_line() {
        let source = "v = \n# 1 \"a.c\" 3 4\nva(l, s)\n# 1 \"a.c\"\n;";
        let said = format!(
            "a.i:3:1: error: incompatible types when assigning to type {WORDS} from type {SHORTS}\n"
        );
        let wanted = source.replace("v = ", "v =(__spe_vec_uint4) ");
        assert_eq!(rewritten(source, &said), wanted);
        // All of a system's header stays.
        let source = format!("# 1 \"b.h\" 3 4\n{}", source.replace("# 1 \"a.c\"\n;", ";"));
        let said = said.replace("i:3", "i:4");
        let none = cast_once(source.as_bytes(), &conversions(&said)).expect("not refused");
        assert_eq!(none, None);
    }

    #[test]
    fn pointers_to_vectors_are_cast_and_other_warnings_left() {
        let to = "'ui *' {aka '__vector(4) unsigned int *'}";
        let from = "'us *' {aka '__vector(8) short unsigned int *'}";
        for (source, column, at, message) in [
            (
                "p = malloc(1);",
                3,
                5,
                format!(
                    "request for implicit conversion from 'void *' to {to} not permitted in C++"
                ),
            ),
            (
                "p = q;",
                3,
                5,
                format!("assignment to {to} from incompatible pointer type {from} [-Wone]"),
            ),
            (
                "p = q;",
                5,
                5,
                format!(
                    "invalid conversion from 'void*' to {} [-fpermissive]",
                    to.replace(" *", "*")
                ),
            ),
            (
                "return q;",
                8,
                8,
                format!("returning {from} from a function with incompatible return type {to}"),
            ),
        ] {
            let said = format!("a.i:1:{column}: warning: {message}\n");
            let wanted = format!(
                "{}(__spe_vec_uint4 *){}",
                &source[..at - 1],
                &source[at - 1..]
            );
            assert_eq!(rewritten(source, &said), wanted);
            // Once it is there, it is not written again.
            let again = cast_once(wanted.as_bytes(), &conversions(&said)).expect("not refused");
            assert_eq!(again, None);
        }
        let said = format!(
            "a.i:1:3: warning: passing argument 1 of 'f' from incompatible pointer type\n\
             a.i:1:1: note: expected {to} but argument is of type 'int *'\n"
        );
        assert_eq!(rewritten("f(q);", &said), "f((__spe_vec_uint4 *)q);");
        // Pointers to pointers, and vectors in a warning about something else.
        let said = format!(
            "a.i:1:1: warning: request for implicit conversion from 'void *' to {}\n\
             a.i:1:1: warning: unused {WORDS}\na.i:1:1: note: expected {WORDS} but argument is of \
             type {SHORTS}\n",
            to.replace("*'}", "**'}")
        );
        assert_eq!(conversions(&said), []);
    }

    #[test]
    fn elements_of_one_size_and_other_errors_are_left_alone() {
        let said = format!(
            "a.i:1:1: error: cannot convert {WORDS} to 'si' {{aka '__vector(4) int'}}\n\
             a.i:1:1: error: 'x' undeclared\n"
        );
        assert_eq!(conversions(&said), []);
        let source = b"# 1 \"a\"\n\tx\xc3;\n#pragma a\n";
        assert_eq!(flat(source), b"\n xx;\n#pragma a\n");
    }

    #[test]
    fn a_conversion_without_one_place_is_refused_with_its_line() {
        let said =
            format!("a.i:3:5: error: invalid operands to binary + (have {WORDS} and {SHORTS})");
        let source = b"# 7 \"user.c\"\n\nx = a + b;";
        let refused = cast_once(source, &conversions(&said)).expect_err("refused");
        assert!(
            refused.to_string().starts_with("user.c:8: error: lanes: "),
            "{refused}"
        );
    }
}
