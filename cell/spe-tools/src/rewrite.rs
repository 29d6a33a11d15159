//! `vector float` and its like, as compilers of the time read them, in today's words.
//!
//! Four things change, in preprocessed source. `vector` before a type's keywords becomes the name
//! of a type of [`sidecore_vectors.h`]. A list in parentheses behind a cast to a vector becomes one
//! in braces. A lone number behind such a cast fills all elements. Literals in braces within
//! arguments are put into parentheses, since intrinsics are macros here.
//!
//! Must stay true: strings, characters, comments and line markers are copied as they are, lines
//! keep their numbers, and `vector` is untouched as the name of anything else.
//!
//! [`sidecore_vectors.h`]: https://github.com/sidecore/sidecore

mod aligned;

pub(crate) use aligned::arrays;

use crate::text::Edits;
use crate::tokens::{Kind, Token, next_seen, previous_seen, seen, tokens};
use std::collections::HashMap;

/// The name of the source, by the first line marker.
pub(crate) fn first_name(source: &[u8]) -> Option<&str> {
    let line = source.split(|byte| *byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    line.strip_prefix("# ")?.split('"').nth(1)
}

/// Puts a compound literal within the arguments of a call into parentheses of its own: the commas
/// between its braces would divide the arguments of a macro.
pub(crate) fn guard_literals(source: &[u8]) -> Vec<u8> {
    let tokens = tokens(source);
    let mut places = Vec::new();
    let mut opened = Vec::new();
    let mut last_seen = None;
    // Each parenthesis is kept with what stands before it: whether it holds arguments or a cast is
    // known only by that.
    for (place, token) in tokens.iter().enumerate() {
        match token.text(source) {
            b"(" => opened.push((place, last_seen)),
            b")" => {
                let cast = opened.pop().filter(|(open, before)| {
                    // A name alone behind a parenthesis is a cast of a literal that is cast again.
                    let again = before.is_some_and(|(_, text)| text == b")");
                    let named = place - open == 2 && tokens[open + 1].kind == Kind::Word;
                    !is_called(*before) || (again && named)
                });
                // `(T){…}` alone is a compound literal; `(T)` with anything else behind it is a
                // plain cast.
                let brace = next_seen(&tokens, place + 1);
                let braced = tokens
                    .get(brace)
                    .is_some_and(|next| next.text(source) == b"{");
                if let Some((open, _)) = cast.filter(|_| braced && !opened.is_empty())
                    && let Some(close) = closing(source, &tokens, brace)
                {
                    places.push((tokens[open].start, b'('));
                    places.push((tokens[close].end, b')'));
                }
            }
            _ => {}
        }
        if token.kind != Kind::Blank {
            last_seen = Some((token.kind, token.text(source)));
        }
    }
    // Literals within literals are found inside out, and the text is copied once, from front to
    // back.
    places.sort_by_key(|place| place.0);
    let mut output = Vec::with_capacity(source.len() + places.len());
    let mut copied = 0;
    for (place, mark) in places {
        output.extend_from_slice(&source[copied..place]);
        output.push(mark);
        copied = place;
    }
    output.extend_from_slice(&source[copied..]);
    output
}

/// True where a parenthesis behind this piece holds arguments or a condition.
fn is_called(before: Option<(Kind, &[u8])>) -> bool {
    before.is_some_and(|(kind, text)| {
        kind == Kind::Word && text != b"return" || text == b")" || text == b"]"
    })
}

/// The brace that closes the one at `open`.
fn closing(source: &[u8], tokens: &[Token], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (place, token) in tokens.iter().enumerate().skip(open) {
        match token.text(source) {
            b"{" => depth += 1,
            b"}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(place);
        }
    }
    None
}

/// The source with the ends of a program's parts, where they are cast to numbers, as places within
/// the store: programs compute the free part of the store from them. Nothing where there are none.
pub(crate) fn ends(source: &[u8]) -> Option<Vec<u8>> {
    let tokens = tokens(source);
    let mut edits = Edits::default();
    let seen = seen(&tokens);
    let text = |place: usize| seen[place].text(source);
    // A cast to a number needs three pieces at least before the name: `(`, `int` and `)`.
    for end in 3..seen.len() {
        if !matches!(text(end), b"_end" | b"_edata" | b"_etext" | b"__bss_start") {
            continue;
        }
        let mut and = end - 1;
        // `&(_end)` and `&((_end))` are the same place.
        while text(and) == b"(" && and > 2 {
            and -= 1;
        }
        // Without `&` it is the contents that are meant, and with a binary one (`a & _end`) nothing
        // that is cast stands before it.
        if text(and) != b"&" {
            continue;
        }
        let open = usize::from(text(and - 1) == b"(" && and > 2);
        // A cast's name stands between parentheses.
        let mut word = and - 1 - open;
        if text(word) != b")" {
            continue;
        }
        let mut number = false;
        // Only words may stand between the parentheses: a `*` makes the cast a pointer's, which
        // stays a real address.
        while word > 0 && seen[word - 1].kind == Kind::Word {
            word -= 1;
            number |= is_number_type(text(word));
        }
        if number && word > 0 && text(word - 1) == b"(" {
            // As many parentheses close behind the name as opened before it.
            let shut = end + (end - 1 - and);
            let (start, end) = (seen[and].start, seen[shut.min(seen.len() - 1)].end);
            // Stores begin at multiples of their size, so the low bits of a real address are the
            // place.
            edits.replace(start, start, "(0x3ffffu & (unsigned int)");
            edits.replace(end, end, ")");
        }
    }
    (!edits.is_empty()).then(|| edits.apply(source))
}

/// The source with its named sections kept, though nothing in the program refers to their contents:
/// hosts and programs find such tables by the section. Nothing where there are none.
pub(crate) fn sections(source: &[u8]) -> Option<Vec<u8>> {
    let tokens = tokens(source);
    let seen = seen(&tokens);
    let mut edits = Edits::default();
    for place in seen.windows(4) {
        let [name, open, text, shut] = [0, 1, 2, 3].map(|at| place[at].text(source));
        let named = name == b"section" || name == b"__section__";
        if named && open == b"(" && text.starts_with(b"\"") && shut == b")" {
            edits.replace(place[3].end, place[3].end, ", __retain__");
        }
    }
    (!edits.is_empty()).then(|| edits.apply(source))
}

/// True for keywords and usual names of whole numbers.
fn is_number_type(word: &[u8]) -> bool {
    matches!(
        word,
        b"int"
            | b"unsigned"
            | b"signed"
            | b"long"
            | b"size_t"
            | b"uintptr_t"
            | b"intptr_t"
            | b"uint32_t"
            | b"int32_t"
            | b"uint64_t"
            | b"uint"
            | b"ulong"
            | b"u32"
            | b"u64"
    )
}

/// The source with its vectors in today's words; nothing where there are none.
pub(crate) fn vectors(source: &[u8]) -> Option<Vec<u8>> {
    vectors_of(source, &scalars(source))
}

/// The same, with the types that the whole source has names for.
fn vectors_of(source: &[u8], scalars: &Scalars) -> Option<Vec<u8>> {
    let tokens = tokens(source);
    let mut output = Vec::with_capacity(source.len() + source.len() / 16);
    let mut changed = false;
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        let text = token.text(source);
        if token.kind == Kind::Word
            && (text == b"vector" || text == b"__vector")
            && let Some((name, end)) = vector_type(source, &tokens, at, scalars)
        {
            output.extend_from_slice(name.as_bytes());
            keep_lines(source, &tokens[at..end], &mut output);
            changed = true;
            at = end;
            continue;
        }
        if text == b"("
            && let Some(literal) = literal(source, &tokens, at, scalars)
        {
            literal.write(source, &tokens, &mut output, scalars);
            changed = true;
            at = literal.end;
            continue;
        }
        output.extend_from_slice(text);
        at += 1;
    }
    changed.then_some(output)
}

/// Names that `typedef` gave to numbers, and the type of a vector of each.
type Scalars = HashMap<Vec<u8>, &'static str>;

/// The names of numbers that the source's `vector` stands before; compilers whose `vector` was an
/// attribute took them as they took keywords.
fn scalars(source: &[u8]) -> Scalars {
    let mut found = Scalars::new();
    let tokens = tokens(source);
    let seen = seen(&tokens);
    let mut words = seen
        .windows(2)
        .map(|pair| [pair[0].text(source), pair[1].text(source)]);
    // Most sources name no such type: they are not walked a second time for their `typedef`s.
    let named = words.any(|[first, second]| {
        (first == b"vector" || first == b"__vector") && !Keywords::default().add(second)
    });
    if !named {
        return found;
    }
    for (place, token) in seen.iter().enumerate() {
        if token.text(source) != b"typedef" {
            continue;
        }
        let mut keywords = Keywords::default();
        let mut known = None;
        let mut last = None;
        for next in &seen[place + 1..] {
            let text = next.text(source);
            if text == b";" {
                break;
            }
            // The last word before the semicolon is the new name, and all those before it are the
            // type's: a word is looked at when the next one has come.
            if let Some(name) = last.replace(text)
                && !keywords.add(name)
            {
                // A name for a name: `typedef __u u32` is what `__u` is.
                known = found.get(name).copied();
                if known.is_none() {
                    last = None;
                    break;
                }
            }
        }
        let vector = known.or_else(|| keywords.name());
        if let (Some(name), Some(vector)) = (last, vector) {
            found.insert(name.to_vec(), vector);
        }
    }
    found
}

/// The type that begins with `vector` at `at`, and the place behind its last keyword.
fn vector_type(
    source: &[u8],
    tokens: &[Token],
    at: usize,
    scalars: &Scalars,
) -> Option<(&'static str, usize)> {
    if let Some(name) = tokens.get(next_seen(tokens, at + 1))
        && let Some(vector) = scalars.get(name.text(source))
        && !is_tag(source, tokens, at)
    {
        return Some((vector, next_seen(tokens, at + 1) + 1));
    }
    let mut found = Keywords::default();
    let mut end = at + 1;
    loop {
        // Blanks and markers lie between keywords, too, where a line ends within the type.
        let next = next_seen(tokens, end);
        let Some(token) = tokens.get(next).filter(|token| token.kind == Kind::Word) else {
            break;
        };
        if !found.add(token.text(source)) {
            break;
        }
        end = next + 1;
    }
    found.name().map(|name| (name, end))
}

/// True for a name of a structure's.
fn is_tag(source: &[u8], tokens: &[Token], at: usize) -> bool {
    let before = tokens.get(previous_seen(tokens, at));
    before.is_some_and(|token| {
        matches!(
            token.text(source),
            b"struct" | b"union" | b"enum" | b"class" | b"." | b">" | b":"
        )
    })
}

/// Keywords of one type.
#[derive(Debug, Default)]
struct Keywords {
    unsigned: bool,
    signed: bool,
    boolean: bool,
    longs: u8,
    base: Option<&'static str>,
}

impl Keywords {
    /// Takes a keyword; false where the word is none of a vector's type.
    fn add(&mut self, word: &[u8]) -> bool {
        match word {
            b"unsigned" => self.unsigned = true,
            b"signed" | b"__signed__" => self.signed = true,
            b"bool" | b"_Bool" | b"__bool" => self.boolean = true,
            b"long" => self.longs += 1,
            b"char" => self.base = Some("char"),
            // A pixel has 16 bits and no sign.
            b"short" | b"pixel" | b"__pixel" => {
                self.unsigned |= word != b"short";
                self.base = Some("short");
            }
            // `short int` and `long int` are what the first word says.
            b"int" => self.base = self.base.or(Some("int")),
            b"float" => self.base = Some("float"),
            b"double" => self.base = Some("double"),
            _ => return false,
        }
        true
    }

    /// The name of the type, where the keywords name one.
    fn name(&self) -> Option<&'static str> {
        // Vectors of truth values are masks, whose elements have no sign.
        let unsigned = self.unsigned || self.boolean;
        let integer = unsigned || self.signed || self.longs > 0;
        Some(match (self.base, self.longs) {
            // Plain characters have no sign on either side of the Cell.
            (Some("char"), _) if self.signed => "__spe_vec_char16",
            (Some("char"), _) => "__spe_vec_uchar16",
            (Some("short"), _) if unsigned => "__spe_vec_ushort8",
            (Some("short"), _) => "__spe_vec_short8",
            (Some("float"), _) => "__spe_vec_float4",
            (Some("double"), _) => "__spe_vec_double2",
            // `vector x` is a variable's name or a type of the user's.
            (None, _) if !integer => return None,
            // `vector long` is an old name of `vector int`.
            (_, 2..) if unsigned => "__spe_vec_ullong2",
            (_, 2..) => "__spe_vec_llong2",
            _ if unsigned => "__spe_vec_uint4",
            _ => "__spe_vec_int4",
        })
    }
}

/// Copies the line ends and markers between pieces that are left out.
fn keep_lines(source: &[u8], tokens: &[Token], output: &mut Vec<u8>) {
    for token in tokens.iter().filter(|token| token.kind == Kind::Blank) {
        // Errors and debuggers name lines: those of a type on two lines stay two.
        if token.text(source).contains(&b'\n') {
            output.extend_from_slice(token.text(source));
        }
    }
}

/// `(vector T)(…)` where the parentheses hold elements, not an expression.
#[derive(Debug)]
struct Literal {
    /// The type's name.
    name: String,
    /// The cast's opening parenthesis.
    start: usize,
    /// The list's parentheses.
    open: usize,
    close: usize,
    /// Behind all of it.
    end: usize,
    /// True for a single number.
    alone: bool,
}

/// The literal whose cast opens at `at`.
fn literal(source: &[u8], tokens: &[Token], at: usize, scalars: &Scalars) -> Option<Literal> {
    let first = next_seen(tokens, at + 1);
    let word = tokens
        .get(first)
        .filter(|token| token.kind == Kind::Word)?
        .text(source);
    let (name, behind) = if word == b"vector" || word == b"__vector" {
        let (name, end) = vector_type(source, tokens, first, scalars)?;
        (name.to_owned(), end)
    } else {
        let name = std::str::from_utf8(word).ok()?;
        // Names that headers of the time gave vectors; any other name's cast stays as it is.
        elements(name)?;
        (name.to_owned(), first + 1)
    };
    let text = |place: usize| tokens.get(place).map(|token| token.text(source));
    let shut = next_seen(tokens, behind);
    let open = next_seen(tokens, shut + 1);
    if text(shut) != Some(b")") || text(open) != Some(b"(") {
        return None;
    }
    let mut depth = 0;
    let mut commas = 0;
    let mut close = open;
    for (place, token) in tokens.iter().enumerate().skip(open) {
        match token.text(source) {
            b"(" | b"[" | b"{" => depth += 1,
            b")" | b"]" | b"}" => depth -= 1,
            b"," if depth == 1 => commas += 1,
            // A statement expression, no list.
            b";" if depth == 1 => return None,
            _ => {}
        }
        if depth == 0 {
            close = place;
            break;
        }
    }
    // `(vector int)(x)` is a cast of a vector x, but of a number it is a fill: only a literal
    // number is known to be one.
    let alone = commas == 0 && is_number(source, tokens.get(open + 1..close)?);
    if close == open || (commas == 0 && !alone) {
        return None;
    }
    Some(Literal {
        name,
        start: at,
        open,
        close,
        end: close + 1,
        alone,
    })
}

/// True for one number, with or without a sign.
fn is_number(source: &[u8], tokens: &[Token]) -> bool {
    let mut seen = tokens.iter().filter(|token| token.kind != Kind::Blank);
    let mut first = seen.next();
    if first.is_some_and(|token| matches!(token.text(source), b"-" | b"+" | b"~")) {
        first = seen.next();
    }
    first.is_some_and(|token| token.kind == Kind::Number) && seen.next().is_none()
}

impl Literal {
    /// Writes it with braces; a lone number as often as there are elements.
    fn write(&self, source: &[u8], tokens: &[Token], output: &mut Vec<u8>, scalars: &Scalars) {
        output.extend_from_slice(format!("({}){{", self.name).as_bytes());
        keep_lines(source, &tokens[self.start..self.open], output);
        let inner = &tokens[self.open + 1..self.close];
        let inner = &source[inner[0].start..inner[inner.len() - 1].end];
        // Elements may hold vectors themselves.
        let inner = vectors_of(inner, scalars).unwrap_or_else(|| inner.to_vec());
        output.extend_from_slice(&inner);
        if self.alone {
            for _ in 1..elements(&self.name).unwrap_or(1) {
                output.push(b',');
                // Copies of the number must not add lines.
                output.extend(inner.iter().filter(|byte| **byte != b'\n'));
            }
        }
        output.push(b'}');
    }
}

/// Elements of a vector type, by its name.
fn elements(name: &str) -> Option<usize> {
    let name = name.strip_prefix("__spe_").unwrap_or(name);
    let kind = name.strip_prefix("vec_")?;
    let digits = kind.trim_start_matches(|letter: char| letter.is_ascii_lowercase());
    let known = [
        "char", "uchar", "bchar", "short", "ushort", "bshort", "int", "uint", "bint", "llong",
        "ullong", "float", "double", "pixel",
    ];
    known
        .contains(&&kind[..kind.len() - digits.len()])
        .then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests;
