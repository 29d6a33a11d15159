//! Conversions that the compiler's lines name.

use crate::tool::{Diagnostic, Kind};

/// A conversion that the compiler named.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Conversion {
    pub(super) line: usize,
    pub(super) column: usize,
    /// The wanted vector's type; nothing where no cast of one operand says it.
    pub(super) to: Option<&'static str>,
    /// Elements of the vectors, or [`FUNCTIONS`].
    pub(super) counts: (usize, usize),
    /// True where a pointer to the vector is wanted.
    pub(super) pointer: bool,
    /// The text of what is converted, which C++ names where a parameter's default is.
    pub(super) given: Option<String>,
}

/// The conversions between elements of two sizes, and to pointers to vectors, in the compiler's
/// lines.
pub(super) fn conversions(said: &str) -> Vec<Conversion> {
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
    /// Its own message, or that of its note.
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
            self.found = if differ(line.message) {
                Some((None, FUNCTIONS, false))
            } else if self.is_warning {
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

/// In the place of vectors' elements, for functions of vectors that differ.
pub(super) const FUNCTIONS: (usize, usize) = (0, 0);
/// Names of intrinsics begin so.
pub(super) const INTRINSICS: &[&[u8]] = &[b"spu_", b"vec_", b"si_", b"__spe_vec_"];
/// The beginning of a note that the compiler gives once, before an error.
const ADVICE: &str = "use '-flax-vector-conversions'";
/// Parts of warnings about pointers that are converted.
const POINTERS: &[&str] = &[
    "incompatible pointer type",
    "incompatible return type",
    "void *' to ",
    "void*' to ",
    "incompatible function types",
    "(*)(",
];

/// True where a message names two types of functions whose vectors differ.
fn differ(message: &str) -> bool {
    let two = [
        " from incompatible pointer type ",
        " with incompatible return type ",
        " but argument is of type ",
        " to '",
    ];
    let found = two.iter().find_map(|between| message.split_once(between));
    let Some((first, second)) = found.filter(|_| message.contains("(*)(")) else {
        return false;
    };
    // A type's own name stands before what it is.
    let whole = |part: &str| {
        part.split_once("{aka '")
            .map_or(part.to_owned(), |aka| aka.1.into())
    };
    let counts = |part: &str| {
        let whole = whole(part);
        let all = whole.split("__vector(").skip(1);
        all.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned()))
            .collect::<Vec<_>>()
    };
    counts(first) != counts(second)
}

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
