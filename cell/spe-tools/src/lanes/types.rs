//! Names of a source that the lanes' pass must know: types, vectors, unions.
//!
//! Why without a compiler's tree: the compiler itself decides an expression's type, in the macros
//! that the pass writes; here only the shape of casts and unions is read.

use crate::text::Text;
use std::collections::{BTreeMap, BTreeSet};

/// A vector's or number's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bytes of an element, or of the number.
    pub(crate) width: usize,
    pub(crate) vector: bool,
}

/// Declarations of a source.
#[derive(Debug, Default)]
pub(crate) struct Types {
    named: BTreeMap<Vec<u8>, Option<Shape>>,
    /// Names of pointers, and what they point to.
    pointers: BTreeMap<Vec<u8>, Shape>,
    /// Names of vectors of floats, by the user's own names too.
    floats: BTreeSet<Vec<u8>>,
    /// Variables, and the shape of them or their elements; nothing where declarations differ.
    variables: BTreeMap<Vec<u8>, Option<Shape>>,
    /// Variables of `void *`, and what each of their values points to.
    voids: BTreeMap<Vec<u8>, Vec<Option<Shape>>>,
    /// True where the user's files have a name with "endian" in it.
    pub(super) asks_for_order: bool,
    /// Widths of the vectors that the user's files name.
    pub(super) widths: BTreeSet<usize>,
}

impl Types {
    pub(crate) fn read(text: &Text<'_>) -> Self {
        let mut types = Self::default();
        for place in 0..text.len() {
            if text.at(place) == b"typedef" {
                types.read_typedef(text, place);
            } else if text.at(place) == b"using" && text.at(place + 2) == b"=" {
                types.read_alias(text, place + 1);
            } else if text.is_word(place) && text.is_users(place) {
                types.read_variable(text, place);
            }
        }
        types.read_voids(text);
        types
    }

    /// The vector of a type's name.
    pub(super) fn vector(&self, name: &[u8]) -> Option<Shape> {
        let base = name
            .strip_prefix(b"__spe_vec_")
            .and_then(|rest| std::str::from_utf8(rest).ok());
        if let Some(base) = base {
            let elements = base.trim_start_matches(|letter: char| letter.is_ascii_lowercase());
            return Some(Shape {
                width: 16 / elements.parse::<usize>().ok().filter(|count| *count > 0)?,
                vector: true,
            });
        }
        self.named
            .get(name)
            .copied()
            .flatten()
            .filter(|shape| shape.vector)
    }

    /// A vector's name that says whether it has floats; nothing for other types.
    pub(super) fn base(&self, name: &[u8]) -> Option<String> {
        self.vector(name)?;
        let text = String::from_utf8_lossy(name);
        let named = text.contains("float") || text.contains("double");
        Some(if self.floats.contains(name) && !named {
            format!("{text} of float")
        } else {
            text.into_owned()
        })
    }

    /// The type that the pieces from `from` to before `to` name, if they name a vector or number.
    pub(crate) fn shape(&self, text: &Text<'_>, from: usize, to: usize) -> Option<Shape> {
        let mut width = None;
        // A long of the SPU's has 4 bytes, two of them 8.
        let mut longs = 0;
        let mut plain = false;
        for place in from..to {
            let word = text.at(place);
            if let Some(shape) = self.vector(word) {
                return Some(shape);
            }
            match word {
                b"char" | b"_Bool" | b"bool" => width = Some(1),
                b"short" => width = Some(2),
                b"float" => width = Some(4),
                b"double" => width = Some(8),
                b"__int128" => width = Some(16),
                b"int" | b"unsigned" | b"signed" => plain = true,
                b"long" => longs += 1,
                _ if QUALIFIERS.contains(&word) => {}
                _ => return self.named.get(word).copied().flatten(),
            }
        }
        let width = match (width, longs) {
            (None, 2..) => 8,
            (None, 1) => 4,
            (None, _) if plain => 4,
            (found, _) => found?,
        };
        Some(Shape {
            width,
            vector: false,
        })
    }

    /// True where the pieces name a type, pointers included.
    pub(crate) fn is_type(&self, text: &Text<'_>, from: usize, to: usize) -> bool {
        let named = |word: &[u8]| {
            KEYWORDS.contains(&word) || self.named.contains_key(word) || self.vector(word).is_some()
        };
        let mut found = false;
        let mut tagged = false;
        for place in from..to {
            let word = text.at(place);
            match word {
                b"*" if found => {}
                b"struct" | b"union" | b"enum" => tagged = true,
                _ if QUALIFIERS.contains(&word) => {}
                _ if tagged || named(word) => {
                    found = true;
                    tagged = false;
                }
                _ => return false,
            }
        }
        found
    }

    /// The vector or number that a variable is, or has as elements or points to.
    pub(super) fn variable(&self, name: &[u8]) -> Option<Shape> {
        self.variables.get(name).copied().flatten()
    }

    /// Target of a pointer by its name.
    pub(super) fn pointed(&self, name: &[u8]) -> Option<Shape> {
        self.pointers.get(name).copied()
    }

    /// The type that all values of a variable of `void *` point to.
    pub(super) fn behind_void(&self, name: &[u8]) -> Option<Shape> {
        let (first, rest) = self.voids.get(name)?.split_first()?;
        first.filter(|_| rest.iter().all(|other| other == first))
    }

    fn read_voids(&mut self, text: &Text<'_>) {
        for name in (2..text.len()).filter(|name| text.is_users(*name)) {
            if text.at(name - 1) != b"*" || text.at(name - 2) != b"void" || !text.is_word(name) {
                continue;
            }
            let mut values = Vec::new();
            if !matches!(text.at(name + 1), b";" | b"=") {
                values = self.arguments(text, name);
            }
            self.voids
                .entry(text.at(name).to_vec())
                .or_default()
                .extend(values);
        }
        for place in (0..text.len()).filter(|place| text.is_users(*place)) {
            let sets = text.at(place + 1) == b"=" && text.at(place + 2) != b"=";
            if sets && self.voids.contains_key(text.at(place)) {
                let value = self.given(text, place + 2);
                self.voids
                    .entry(text.at(place).to_vec())
                    .or_default()
                    .push(value);
            }
        }
    }

    /// Arguments that the source's calls pass for the parameter at `name`; one that is not known
    /// where there are no calls.
    fn arguments(&self, text: &Text<'_>, name: usize) -> Vec<Option<Shape>> {
        let around = |open: &usize| text.partner(*open).is_some_and(|close| close > name);
        let mut before = (0..name).rev().take(DECLARATOR_PIECES_MAX);
        let open = before.find(|at| text.at(*at) == b"(" && around(at));
        let Some(open) = open.filter(|open| *open > 0 && text.is_word(open - 1)) else {
            return vec![None];
        };
        let number = (open..name).filter(|at| text.at(*at) == b",").count();
        let function = text.at(open - 1);
        let mut all = Vec::new();
        for call in (0..text.len()).filter(|at| text.at(*at) == function && text.is_users(*at)) {
            let argument = argument(text, call + 1, number);
            // A declaration has a type there.
            let given = argument.filter(|at| {
                !self.is_type(text, *at, at + 1) && !QUALIFIERS.contains(&text.at(*at))
            });
            all.extend(given.map(|at| self.given(text, at)));
        }
        if all.is_empty() { vec![None] } else { all }
    }

    /// The type to which the address at `place` points: a variable's, behind any casts.
    fn given(&self, text: &Text<'_>, place: usize) -> Option<Shape> {
        let mut at = place;
        while text.at(at) == b"(" {
            at = text
                .partner(at)
                .filter(|close| text.at(close - 1) == b"*")?
                + 1;
        }
        at += usize::from(text.at(at) == b"&");
        let whole = matches!(text.at(at + 1), b";" | b"," | b"[" | b"+" | b")");
        self.variable(text.at(at)).filter(|_| whole)
    }

    /// True for a name that variables of several types have.
    pub(super) fn is_ambiguous(&self, name: &[u8]) -> bool {
        self.variables.get(name) == Some(&None)
    }

    /// True for a variable of a vector's type.
    pub(crate) fn is_vector(&self, name: &[u8]) -> bool {
        self.variable(name).is_some_and(|shape| shape.vector)
    }

    /// True for the `*` of a further declarator, as in `T a = { 1 }, *b;`.
    pub(super) fn is_declarator(&self, text: &Text<'_>, star: usize) -> bool {
        if star == 0 || text.at(star - 1) != b"," {
            return false;
        }
        let mut first = star;
        while let Some(before) = first.checked_sub(1) {
            first = match (text.at(before), text.partner(before)) {
                // A list of values; behind anything else a block has ended.
                (b"}", Some(open)) if open > 0 && self.begins_values(text, open - 1) => open,
                (b")" | b"]", Some(open)) => open,
                (b";" | b"{" | b"}", _) => break,
                (b"(", _) if before > 0 && text.at(before - 1) == b"for" => break,
                // Arguments, or the sizes of an array.
                (b"(" | b"[", _) => return false,
                _ => before,
            };
        }
        matches!(text.at(first), b"struct" | b"union" | b"typedef")
            || QUALIFIERS.contains(&text.at(first))
            || self.is_type(text, first, first + 1)
    }

    /// True for what stands before the braces of a list of values.
    fn begins_values(&self, text: &Text<'_>, before: usize) -> bool {
        match (text.at(before), text.partner(before)) {
            (b"=" | b"," | b"(", _) => true,
            (b")", Some(open)) => self.is_type(text, open + 1, before),
            _ => false,
        }
    }

    /// The name of a function with vectors whose parameters are declared behind its parentheses, in
    /// C source with several sizes of elements: a call of it converts nothing.
    pub(crate) fn old_definition(&self, text: &Text<'_>) -> Option<usize> {
        if self.widths.len() < 2 || text.is_plus() {
            return None;
        }
        let mut place = 0;
        while place < text.len() {
            if text.is_users(place) && self.is_old_definition(text, place) {
                return Some(place);
            }
            // Only the file's scope is looked at.
            place = match text.at(place) {
                b"{" => text.partner(place).unwrap_or(place) + 1,
                _ => place + 1,
            };
        }
        None
    }

    /// True for the name in `name(a, b) T a; T b; {` where one of the types is a vector.
    fn is_old_definition(&self, text: &Text<'_>, name: usize) -> bool {
        let open = name + 1;
        let Some(close) = text.partner(open).filter(|_| text.at(open) == b"(") else {
            return false;
        };
        let names = (open + 1..close).all(|place| text.is_word(place) || text.at(place) == b",");
        if !text.is_word(name) || !names || !text.is_word(close + 1) {
            return false;
        }
        let body = (close + 1..text.len())
            .find(|place| matches!(text.at(*place), b"{" | b"}" | b"(" | b"="))
            .filter(|body| text.at(*body) == b"{" && text.at(body - 1) == b";");
        body.is_some_and(|body| (close + 1..body).any(|word| self.vector(text.at(word)).is_some()))
    }

    /// `using name = T;`, by its name.
    fn read_alias(&mut self, text: &Text<'_>, name: usize) {
        let Some(end) = (name + 2..text.len()).find(|at| text.at(*at) == b";") else {
            return;
        };
        let star = text.at(end - 1) == b"*";
        let shape = self.shape(text, name + 2, end - usize::from(star));
        let name = text.at(name).to_vec();
        if let Some(shape) = shape.filter(|_| star) {
            self.pointers.insert(name, shape);
        } else {
            self.named.insert(name, shape);
        }
    }

    fn read_typedef(&mut self, text: &Text<'_>, place: usize) {
        let mut end = place + 1;
        let mut name = None;
        let mut pointer = false;
        let mut body = false;
        // The place of an attribute that makes a vector of the type before it.
        let mut sized = None;
        let mut by_mode: Option<(usize, usize)> = None;
        while end < text.len() && text.at(end) != b";" {
            match text.at(end) {
                b"__attribute__" | b"__attribute" => {
                    if text.is_users(end) && makes_vector(text, end) {
                        sized = Some(end);
                    }
                    by_mode = by_mode.or_else(|| Some((end, mode(text, end)?)));
                    end += 1;
                }
                b"*" => pointer = true,
                b"{" => body = true,
                b"(" if text.at(end + 1) == b"*" => {
                    name = Some(end + 2);
                    pointer = true;
                }
                _ if text.is_word(end) && !(pointer && name.is_some_and(|at| at > end)) => {
                    name = Some(end);
                }
                _ => {}
            }
            end = text
                .partner(end)
                .filter(|other| *other > end)
                .unwrap_or(end)
                + 1;
        }
        if let Some(name) = name {
            let first = sized.into_iter().chain(by_mode.map(|(at, _)| at)).min();
            let behind = first.map_or(name, |first: usize| first.min(name));
            let shape = self.shape(text, place + 1, behind);
            // `typedef T *name;`, not one of pointers to pointers or to functions.
            let star = name - 1;
            let points = text.at(star) == b"*" && text.at(name + 1) == b";" && !body;
            if let Some(shape) = self.shape(text, place + 1, star).filter(|_| points) {
                self.pointers.insert(text.at(name).to_vec(), shape);
            }
            let shape = shape.filter(|_| !pointer && !body && text.at(name + 1) != b"[");
            let shape = shape.map(|shape| Shape {
                vector: shape.vector || sized.is_some(),
                width: by_mode.map_or(shape.width, |(_, width)| width),
            });
            let floats = (place + 1..name).any(|word| {
                let word = text.at(word);
                let named = String::from_utf8_lossy(word);
                self.floats.contains(word) || named.contains("float") || named.contains("double")
            });
            if floats && shape.is_some_and(|shape| shape.vector) {
                self.floats.insert(text.at(name).to_vec());
            }
            self.named.insert(text.at(name).to_vec(), shape);
        }
    }

    /// A vector's or number's type before names.
    fn read_variable(&mut self, text: &Text<'_>, place: usize) {
        let word = text.at(place);
        self.asks_for_order |= word
            .windows(6)
            .any(|part| part.eq_ignore_ascii_case(b"endian"));
        if let Some(shape) = self.vector(text.at(place)) {
            self.widths.insert(shape.width);
        } else if BY_BYTES.contains(&text.at(place)) {
            // A quadword has the register's bytes, whatever they are elements of.
            self.widths.extend([1, 4]);
        }
        let word = text.at(place);
        let begins = KEYWORDS.contains(&word) || self.named.contains_key(word);
        // A variable of a structure's, which may have another's name.
        let tagged = matches!(word, b"struct" | b"union" | b"enum" | b"class");
        if !begins && !tagged && self.vector(word).is_none() {
            return;
        }
        // A further word of a type that was read already.
        let before = place
            .checked_sub(1)
            .map_or(&b""[..], |before| text.at(before));
        if KEYWORDS.contains(&word) && KEYWORDS.contains(&before) {
            return;
        }
        let mut end = place + 1;
        if tagged {
            end += usize::from(text.is_word(end));
            end = text
                .partner(end)
                .filter(|_| text.at(end) == b"{")
                .map_or(end, |end| end + 1);
        }
        // `unsigned long` is one type; names behind it are variables'.
        while KEYWORDS.contains(&text.at(end)) || QUALIFIERS.contains(&text.at(end)) {
            end += 1;
        }
        let shape = self.shape(text, place, end).filter(|_| !tagged);
        loop {
            while matches!(text.at(end), b"*" | b"&") || QUALIFIERS.contains(&text.at(end)) {
                end += 1;
            }
            let behind = text.at(end + 1);
            if !text.is_word(end) || !matches!(behind, b";" | b"," | b"=" | b"[" | b")") {
                return;
            }
            let known = self.variables.entry(text.at(end).to_vec());
            let known = known.or_insert(shape);
            // One name of several shapes, in different functions: which one is meant is not
            // followed.
            if *known != shape {
                *known = None;
            }
            if behind != b"," {
                return;
            }
            end += 2;
        }
    }
}

/// The first piece of an argument, by its number, of the call whose parenthesis is at `open`.
fn argument(text: &Text<'_>, open: usize, number: usize) -> Option<usize> {
    let close = text.partner(open).filter(|_| text.at(open) == b"(")?;
    let mut at = open + 1;
    let mut left = number;
    while left > 0 && at < close {
        left -= usize::from(text.at(at) == b",");
        at = text.partner(at).filter(|end| *end > at).unwrap_or(at) + 1;
    }
    (at < close && left == 0).then_some(at)
}

/// True for `__attribute__((vector_size(16)))` at `place`.
fn makes_vector(text: &Text<'_>, place: usize) -> bool {
    let close = text.partner(place + 1).unwrap_or(place);
    (place..close).any(|at| {
        matches!(text.at(at), b"vector_size" | b"__vector_size__") && text.at(at + 2) == b"16"
    })
}

/// Bytes of the numbers of `__attribute__((mode(…)))` at `place`.
fn mode(text: &Text<'_>, place: usize) -> Option<usize> {
    let close = text.partner(place + 1)?;
    let mode = (place..close).find(|at| matches!(text.at(*at), b"mode" | b"__mode__"))?;
    match text.at(mode + 2) {
        b"QI" | b"__QI__" => Some(1),
        b"HI" | b"__HI__" => Some(2),
        b"SI" | b"__SI__" | b"SF" | b"__SF__" => Some(4),
        b"DI" | b"__DI__" | b"DF" | b"__DF__" => Some(8),
        b"TI" | b"__TI__" => Some(16),
        _ => None,
    }
}

/// Pointers to vectors that a source declares.
#[derive(Debug, Default)]
pub(super) struct Pointers {
    /// Their names, if only in one place: elsewhere the macro finds another type.
    pub(super) names: BTreeSet<Vec<u8>>,
    /// Asterisks of the declarations, which read nothing.
    pub(super) stars: BTreeSet<usize>,
}

impl Pointers {
    /// Those of the user's own files.
    pub(super) fn read(text: &Text<'_>, types: &Types) -> Self {
        let mut found = Self::default();
        for place in (0..text.len()).filter(|place| text.is_users(*place)) {
            if types.vector(text.at(place)).is_some() {
                found.declared(text, place + 1);
            }
        }
        found
    }

    /// The pointers among the declarators that begin at `place`, behind the vector's name.
    fn declared(&mut self, text: &Text<'_>, place: usize) {
        let mut star = place;
        while matches!(text.at(star), b"const" | b"volatile") {
            star += 1;
        }
        loop {
            let mut name = star;
            while text.at(name) == b"*" || RESTRICTS.contains(&text.at(name)) {
                name += 1;
            }
            let behind = text.at(name + 1);
            let ends = matches!(behind, b"," | b";" | b"=" | b"[" | b"(" | b")" | b":");
            // The next parameter's type has a name behind it.
            if !text.is_word(name) || !(ends || star == place || text.at(star) == b"*") {
                return;
            }
            if text.at(star) == b"*" {
                self.stars.insert(star);
                if text.at(star + 1) != b"*" && !matches!(behind, b"[" | b"(") {
                    self.names.insert(text.at(name).to_vec());
                }
            }
            match next_declarator(text, name + 1) {
                Some(next) => star = next,
                None => return,
            }
        }
    }
}

/// The place behind the comma that ends the declarator whose name stands before `place`.
fn next_declarator(text: &Text<'_>, place: usize) -> Option<usize> {
    let mut at = place;
    let mut given = false;
    // Bounded, so that no source without an end is walked again for each vector in it.
    for _ in 0..DECLARATOR_PIECES_MAX {
        at = match text.at(at) {
            b"," => return Some(at + 1),
            b"" | b";" | b")" | b"]" | b"}" => return None,
            // A function's body.
            b"{" if !given => return None,
            b"(" | b"[" | b"{" => text.partner(at)? + 1,
            word => {
                given |= word == b"=";
                at + 1
            }
        };
    }
    None
}

/// Pieces of a declarator at most, each bracket with all within it counted once.
const DECLARATOR_PIECES_MAX: usize = 1024;
/// Words between a pointer's asterisk and its name.
const RESTRICTS: &[&[u8]] = &[
    b"const",
    b"volatile",
    b"restrict",
    b"__restrict",
    b"__restrict__",
];

/// Intrinsics that look at a quadword by bytes.
const BY_BYTES: &[&[u8]] = &[
    b"si_shufb",
    b"si_rotqby",
    b"si_rotqbyi",
    b"si_rotqmbyi",
    b"si_shlqbyi",
    b"si_fsmb",
    b"si_fsmbi",
    b"si_from_uchar",
    b"si_to_uchar",
];

const QUALIFIERS: &[&[u8]] = &[
    b"const",
    b"volatile",
    b"restrict",
    b"__restrict",
    b"__restrict__",
    b"static",
    b"register",
    b"extern",
    b"__const",
    b"__volatile__",
    b"__signed__",
    b"inline",
];
const KEYWORDS: &[&[u8]] = &[
    b"char",
    b"short",
    b"int",
    b"long",
    b"float",
    b"double",
    b"unsigned",
    b"signed",
    b"void",
    b"_Bool",
    b"bool",
    b"__int128",
];
