//! Conversions between vectors that source leaves to the compiler: each becomes a cast, which
//! [`crate::lanes`] then treats as it treats the user's own.
//!
//! Why by the compiler: only it knows the types on both sides of an assignment, a return or an
//! argument. With no such conversion permitted, it names the place and the types of each.
//!
//! Must stay true: a conversion between elements of two sizes is a cast afterwards, or the source
//! is refused with its line. So is one of another pointer to a pointer to vectors. Conversions
//! between elements of one size, and those of the kit's own headers, stay as they are.

mod said;

use crate::Error;
use crate::lanes::operand;
use crate::lanes::types::Types;
use crate::text::{Edits, Text, flat};
use crate::tool::Diagnostic;
use said::{Conversion, FUNCTIONS, INTRINSICS, conversions};

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
    "-Wcast-function-type",
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
        if round == 0 {
            refuse_unseen(text, &said)?;
        }
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

/// Refuses vectors for functions that are not declared: what they take is not known.
fn refuse_unseen(source: &[u8], said: &str) -> Result<(), Error> {
    let lines = said.lines().filter_map(Diagnostic::read);
    let unseen = lines.filter(|line| line.message.starts_with("implicit declaration of function"));
    let places = unseen.filter_map(|line| line.place).collect::<Vec<_>>();
    if places.is_empty() {
        return Ok(());
    }
    let text = Text::new(source);
    let types = Types::read(&text);
    let starts = text.line_starts();
    for (line, column) in places {
        let start = starts
            .get(line.saturating_sub(1))
            .copied()
            .unwrap_or(source.len());
        let piece = text.place_of(start + column.saturating_sub(1));
        let Some(close) = text.partner(piece + 1).filter(|_| text.is_users(piece)) else {
            continue;
        };
        if gives_vector(&text, &types, piece + 1, close) {
            let (file, line) = text.position(piece);
            let name = String::from_utf8_lossy(text.at(piece));
            return Err(Error::Refused(format!(
                "{file}:{line}: error: lanes: `{name}` gets a vector and is not declared; declare \
                 it with its parameters' types"
            )));
        }
    }
    Ok(())
}

/// True where one of a call's arguments begins as a vector. A name that stands for a pointer or an
/// array somewhere may be one: those are passed alike with a declaration and without.
fn gives_vector(text: &Text<'_>, types: &Types, open: usize, close: usize) -> bool {
    let points = |word: &[u8]| {
        let mut places = (1..text.len()).filter(|at| text.at(*at) == word && text.is_users(*at));
        places.any(|at| text.at(at - 1) == b"*" || text.at(at + 1) == b"[")
    };
    let mut at = open + 1;
    while at < close {
        let inner = text.partner(at).filter(|end| *end > at);
        let word = text.at(at + usize::from(inner.is_some()));
        let begins = matches!(text.at(at - 1), b"(" | b",");
        // A cast to a pointer.
        let pointer = inner.is_some_and(|end| text.at(end - 1) == b"*");
        let starts = |all: &[&[u8]]| all.iter().any(|start| word.starts_with(start));
        let called = starts(INTRINSICS) && !starts(SCALARS);
        if begins && !pointer && (called || (types.is_vector(word) && !points(word))) {
            return true;
        }
        at = inner.unwrap_or(at) + 1;
    }
    false
}

/// True where the user's own files name vectors or call intrinsics.
fn has_vectors(text: &Text<'_>) -> bool {
    const STARTS: &[&[u8]] = &[b"__spe_vec_", b"vec_", b"spu_", b"si_", b"qword"];
    (0..text.len()).any(|place| {
        text.is_users(place) && STARTS.iter().any(|start| text.at(place).starts_with(start))
    })
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
            .or_else(|| operand::whole(text, piece + behind))
            .map(|whole| called(text, whole));
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

/// The call `(*f)(…)`, which the compiler names by what it calls; other expressions as they are.
fn called(text: &Text<'_>, (begin, end): (usize, usize)) -> (usize, usize) {
    let open = begin.checked_sub(1);
    let open = open.filter(|open| text.partner(*open) == Some(end) && text.at(end + 1) == b"(");
    let call = open.filter(|_| text.at(begin) == b"*");
    call.and_then(|open| operand::whole(text, open))
        .unwrap_or((begin, end))
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
    if conversion.counts == FUNCTIONS {
        return Error::Refused(format!(
            "{file}:{line}: error: lanes: a function becomes one of other vectors here; call it by \
             its own type, and cast the vectors"
        ));
    }
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

/// Beginnings of intrinsics whose results are numbers.
const SCALARS: &[&[u8]] = &[
    b"spu_extract",
    b"spu_read",
    b"spu_stat",
    b"spu_mfcstat",
    b"si_to_",
    b"vec_all_",
    b"vec_any_",
    b"vec_step",
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
    fn vectors_for_a_function_that_is_not_declared_are_refused() {
        for (given, refused) in [
            ("1, v", true),
            ("(__spe_vec_uint4)x", true),
            ("spu_add(v, v)", true),
            ("spu_extract(v, 0)", false),
            ("h(v)", false),
            ("(void *)v", false),
            ("w, 1", false),
        ] {
            let source = format!(
                "__spe_vec_uint4 v; __spe_vec_uint4 w[2]; int f(void) {{ return g({given}); }}"
            );
            let column = source.find("g(").expect("it is there") + 1;
            let said = format!("a.i:1:{column}: warning: implicit declaration of function 'g'\n");
            let read = refuse_unseen(source.as_bytes(), &said);
            assert_eq!(read.is_err(), refused, "{given}");
        }
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
