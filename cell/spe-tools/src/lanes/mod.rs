//! Lane order: casts between vectors whose elements differ in size give the bits that an SPU's
//! register has.
//!
//! Why here: on the SPU byte 0 of a register is the most significant one of element 0; here bytes
//! within an element have this machine's order. A cast that moves every byte to its place on the
//! SPU makes all later operations exact, since the intrinsics count bytes by the element's size.
//! The compiler decides the type of a cast's operand, in the macros of `sidecore_lane_macros.h`
//! that this pass writes: where sizes agree, nothing is done.
//!
//! Must stay true: source of system headers, the kit's among them, is not touched, and lines keep
//! their numbers; memory has the element size that its declaration says.

mod pass;
mod shared;
pub(crate) mod types;
mod unions;

/// The requested treatment of lane order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Lanes {
    /// In source with vectors of several element sizes. A vector of bytes that is cast straight
    /// from memory to floats, or from floats into memory, is memory alone and stays as it is.
    #[default]
    Auto,
    /// As `Auto`; what has no exact form keeps memory's order, with a warning.
    Warn,
    /// Everywhere, without exceptions.
    Exact,
    /// Nowhere.
    Off,
}

impl Lanes {
    /// The treatment of a name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "auto" => Some(Self::Auto),
            "warn" => Some(Self::Warn),
            "exact" => Some(Self::Exact),
            "off" => Some(Self::Off),
            _ => None,
        }
    }

    /// The name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Warn => "warn",
            Self::Exact => "exact",
            Self::Off => "off",
        }
    }
}

/// Source with exact lanes.
#[derive(Debug)]
pub(crate) struct Rewritten {
    pub(crate) source: Vec<u8>,
    /// True where its macros are to be defined.
    pub(crate) exact: bool,
    /// Lines that say where it is not exact.
    pub(crate) inexact: Vec<String>,
}

/// The source with exact lanes; nothing where it needs no change. Initializers that the compiler
/// must evaluate are numbers already, with every treatment: it takes no casts of vectors there.
/// `converts` says that casts between element sizes are known to be there.
pub(crate) fn rewrite(source: &[u8], lanes: Lanes, converts: bool) -> Option<Rewritten> {
    if !source.windows(4).any(|part| part == b"vec_") {
        return None;
    }
    let text = crate::text::Text::new(source);
    let types = types::Types::read(&text);
    let mut unions = unions::Accesses::default();
    if lanes != Lanes::Off {
        unions = unions::accesses(&text, &types);
    }
    let members = shared::Members::read(&text, &types, &unions.exact);
    let warns = lanes == Lanes::Warn;
    let lanes = if warns { Lanes::Auto } else { lanes };
    // With elements of one size nothing is to be turned.
    let several = converts
        || types.widths.len() > 1
        || !members.is_empty()
        || casts_results(&text, &types)
        || looks_within(&text, &types);
    let unaligned = several || looks_at_addresses(&text) || casts_pointers(&text, &types);
    let lanes = if lanes == Lanes::Auto && !unaligned {
        Lanes::Off
    } else {
        lanes
    };
    let mut pass = pass::Pass::new(&text, &types, lanes, (unions, members));
    pass.warns = warns;
    pass.several = several || lanes == Lanes::Exact;
    pass.run();
    let (edits, inexact) = pass.finish();
    let line = |one: pass::Inexact| {
        let (file, line) = one.place;
        let (reason, instead) = (one.reason, one.instead);
        if warns {
            format!("{file}:{line}: warning: lanes: {reason}: they keep memory's order")
        } else {
            format!(
                "{file}:{line}: error: lanes: {reason}; {instead}, or let --lanes=warn keep \
                 memory's order"
            )
        }
    };
    let inexact = inexact.into_iter().map(line).collect::<Vec<_>>();
    // Quadwords of intrinsics alone have nothing to rewrite, but macros that differ.
    let quadwords = lanes == Lanes::Auto && several;
    if edits.is_empty() && inexact.is_empty() && lanes != Lanes::Exact && !quadwords {
        return None;
    }
    Some(Rewritten {
        source: edits.apply(source),
        exact: lanes != Lanes::Off,
        inexact,
    })
}

/// True where the user's source looks at a vector's memory as numbers of another size, or copies.
fn looks_within(text: &crate::text::Text<'_>, types: &types::Types) -> bool {
    (0..text.len()).any(|place| {
        let copies = pass::COPIES.contains(&text.at(place));
        let close = text.partner(place).filter(|_| text.at(place) == b"(");
        let close = close.filter(|close| text.at(close - 1) == b"*" && text.is_users(place));
        let number =
            close.and_then(|close| Some((close, types.shape(text, place + 1, close - 1)?)));
        let looks = number.is_some_and(|(close, to)| {
            let name = (close + 1..text.len()).find(|at| !matches!(text.at(*at), b"(" | b"&"));
            let name = name.map_or(&b""[..], |name| text.at(name));
            let from = types.variable(name).or_else(|| types.behind_void(name));
            // One of several variables of a name may be a vector.
            let unknown = types.is_ambiguous(name) && !types.widths.is_empty();
            unknown || from.is_some_and(|from| from.vector && from.width != to.width)
        });
        looks || (copies && text.is_users(place) && !types.widths.is_empty())
    })
}

/// True where the user's source reads the last four bits of addresses, or turns quadwords by them.
fn looks_at_addresses(text: &crate::text::Text<'_>) -> bool {
    const BITS: &[&[u8]] = &[b"15", b"0xf", b"0xF", b"0x0f", b"0x0F", b"0xfu", b"15u"];
    const TURNS: &[&[u8]] = &[b"spu_rlqwbyte", b"spu_slqwbyte", b"si_rotqby", b"vec_lvsl"];
    (0..text.len())
        .filter(|place| text.is_users(*place))
        .any(|place| {
            let word = text.at(place);
            let before = place
                .checked_sub(1)
                .map_or(&b""[..], |before| text.at(before));
            (before == b"&" && BITS.contains(&word))
                || (before == b"%" && word == b"16")
                || TURNS.contains(&word)
        })
}

/// True where the user's source makes pointers to vectors of others.
fn casts_pointers(text: &crate::text::Text<'_>, types: &types::Types) -> bool {
    (1..text.len()).any(|place| {
        let pointer = text.at(place) == b"*" && matches!(text.at(place + 1), b")" | b">");
        pointer && text.is_users(place) && types.vector(text.at(place - 1)).is_some()
    })
}

/// True for the word of a type that only the compiler knows.
fn is_typeof(word: &[u8]) -> bool {
    matches!(word, b"typeof" | b"__typeof__" | b"__typeof" | b"decltype")
}

/// True where the user's source casts an intrinsic's result, whose elements may have a size that
/// the source has no name for.
fn casts_results(text: &crate::text::Text<'_>, types: &types::Types) -> bool {
    (0..text.len()).any(|place| {
        let close = text.partner(place).filter(|_| text.at(place) == b"(");
        let Some(close) = close.filter(|close| *close > place && text.is_users(place)) else {
            return false;
        };
        let vector = close == place + 2 && types.vector(text.at(place + 1)).is_some();
        let of_another =
            is_typeof(text.at(place + 1)) && text.partner(place + 2) == Some(close - 1);
        if !vector && !of_another {
            return false;
        }
        let operand = (close + 1..text.len()).find(|at| text.at(*at) != b"(");
        let operand = operand.map_or(&b""[..], |at| text.at(at));
        [&b"spu_"[..], b"vec_", b"si_"]
            .iter()
            .any(|start| operand.starts_with(start))
    })
}

/// Extents of C's unary expressions, by their pieces.
pub(crate) mod operand {
    use super::types::Types;
    use crate::text::Text;
    use crate::tokens::Kind;

    /// The place behind the unary expression that begins at `place`; nothing where none does.
    pub(crate) fn end(text: &Text<'_>, types: &Types, place: usize) -> Option<usize> {
        let mut at = place;
        loop {
            match (text.at(at), text.kind(at)?) {
                // What stands before an operand belongs to it; so does a cast, below.
                (b"-" | b"+" | b"~" | b"!" | b"*" | b"&", _) => at += 1,
                (b"sizeof" | b"__extension__", _) => at += 1,
                (b"(", _) => {
                    let close = text.partner(at)?;
                    // Only a type ends with an asterisk.
                    let pointer = text.at(close - 1) == b"*";
                    let cast = pointer
                        || types.is_type(text, at + 1, close)
                        || is_named_cast(text, at, close);
                    if !cast {
                        return Some(behind_postfix(text, close + 1));
                    }
                    // A compound literal is an object: no further operand follows.
                    if text.at(close + 1) == b"{" {
                        return Some(behind_postfix(text, text.partner(close + 1)? + 1));
                    }
                    at = close + 1;
                }
                (_, Kind::Word) => {
                    let mut last = at;
                    // Names of C++ with their spaces.
                    while text.at(last + 1) == b":" && text.at(last + 2) == b":" {
                        last += 3;
                    }
                    last = behind_types(text, types, last).unwrap_or(last);
                    return Some(behind_postfix(text, last + 1));
                }
                (_, Kind::Number) => return Some(behind_postfix(text, at + 1)),
                (_, Kind::Quoted) => {
                    while text.kind(at) == Some(Kind::Quoted) {
                        at += 1;
                    }
                    return Some(behind_postfix(text, at));
                }
                _ => return None,
            }
        }
    }

    /// Pieces of a template's arguments at most.
    const TEMPLATE_PIECES_MAX: usize = 16;

    /// The `>` of `name<T>(…)`, by the name; nothing where `<` may compare.
    fn behind_types(text: &Text<'_>, types: &Types, name: usize) -> Option<usize> {
        let mut depth = 0_usize;
        let mut inner = (name + 1..text.len()).take(TEMPLATE_PIECES_MAX);
        let shut = inner.find(|at| {
            match text.at(*at) {
                b"<" => depth += 1,
                b">" => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0
        });
        let shut = shut.filter(|shut| text.at(*shut) == b">" && text.at(shut + 1) == b"(")?;
        let converts = matches!(
            text.at(name),
            b"reinterpret_cast" | b"static_cast" | b"const_cast" | b"dynamic_cast"
        );
        (converts || types.is_type(text, name + 2, shut)).then_some(shut)
    }

    /// The first piece of `a.b[i]->name`, by the place of the name; nothing where it is not clear.
    pub(super) fn first(text: &Text<'_>, name: usize) -> Option<usize> {
        let mut first = name;
        loop {
            let dot = match first.checked_sub(1) {
                Some(before) if text.at(before) == b"." => before,
                Some(before)
                    if before > 0 && text.at(before) == b">" && text.at(before - 1) == b"-" =>
                {
                    before - 1
                }
                _ => return Some(first),
            };
            let mut start = dot.checked_sub(1)?;
            // A member in a list of values has nothing before its dot.
            if !text.is_word(start) && !matches!(text.at(start), b"]" | b")") {
                return None;
            }
            while let (b"]" | b")", Some(open)) = (text.at(start), text.partner(start)) {
                start = open;
                let Some(before) = open.checked_sub(1) else {
                    break;
                };
                // `if (a) (b).c`, `(T)(b).c` and `f(a)(b).c` look alike.
                if text.at(open) == b"(" && text.at(before) == b")" {
                    return None;
                }
                let named = text.is_word(before)
                    && !matches!(
                        text.at(before),
                        b"return" | b"case" | b"else" | b"do" | b"sizeof"
                    );
                if !named && !matches!(text.at(before), b"]" | b")") {
                    break;
                }
                start = before;
            }
            first = start;
        }
    }

    /// True for a `*` that is no product's: those have an operand before it.
    pub(super) fn dereferences(text: &Text<'_>, star: usize) -> bool {
        let before = star
            .checked_sub(1)
            .map_or(&b""[..], |before| text.at(before));
        matches!(
            before,
            b"(" | b"," | b"=" | b";" | b"{" | b"}" | b"return" | b"+" | b"-" | b"&" | b"|"
        )
    }

    /// A load of a quadword that is the whole operand.
    pub(super) fn quadword_load(text: &Text<'_>, start: usize, end: usize) -> Option<usize> {
        let load = matches!(
            text.at(start),
            b"si_lqd" | b"si_lqx" | b"si_lqa" | b"si_lqr"
        );
        (load && text.partner(start + 1) == Some(end - 1)).then_some(start)
    }

    /// True for an operand that `*` reads, in parentheses or without.
    pub(super) fn is_read(text: &Text<'_>, open: usize) -> bool {
        match open.checked_sub(1).map(|before| text.at(before)) {
            Some(b"*") => true,
            Some(b"(") => open > 1 && text.at(open - 2) == b"*",
            _ => false,
        }
    }

    /// True where an expression may begin.
    pub(crate) fn begins(text: &Text<'_>, place: usize) -> bool {
        match text.kind(place) {
            // `__attribute__` and `__asm__` follow a declaration's parenthesis, and these follow a
            // method's: `operator()(T) const`.
            Some(Kind::Word) => {
                let behind = matches!(
                    text.at(place),
                    b"const" | b"volatile" | b"noexcept" | b"throw"
                );
                !behind && !text.at(place).starts_with(b"__a")
            }
            Some(Kind::Number | Kind::Quoted) => true,
            Some(Kind::Mark) => {
                matches!(
                    text.at(place),
                    b"(" | b"-" | b"+" | b"~" | b"!" | b"*" | b"&"
                )
            }
            _ => false,
        }
    }

    /// The whole expression that is assigned, returned or passed on, by a piece of it.
    pub(crate) fn whole(text: &Text<'_>, piece: usize) -> Option<(usize, usize)> {
        let mut begin = match text.at(piece) {
            // An assignment that is assigned once more is named by its mark.
            b"=" => piece.checked_sub(1)?,
            // In C++ an element or a call is named by its bracket.
            b")" | b"]" | b"}" => text.partner(piece)?,
            _ => piece,
        };
        while let Some(before) = begin.checked_sub(1) {
            begin = match text.at(before) {
                // What an expression's brace ends goes on with a mark.
                b"}" if text.is_word(begin) => break,
                b")" | b"]" | b"}" => text.partner(before)?,
                b"(" | b"[" | b"{" | b"," | b";" | b"return" => break,
                b"=" if assigns(text, before) => break,
                _ => before,
            };
        }
        let mut end = begin;
        while end < text.len() {
            end = match text.at(end) {
                b"(" | b"[" | b"{" => text.partner(end)? + 1,
                b")" | b"]" | b"}" | b"," | b";" => break,
                _ => end + 1,
            };
        }
        (end > begin).then_some((begin, end))
    }

    /// A parameter's default in the parentheses that `close` ends: the one with the text `given`,
    /// or the only one.
    pub(crate) fn default(text: &Text<'_>, close: usize, given: &str) -> Option<(usize, usize)> {
        let open = text.partner(close).filter(|_| text.at(close) == b")")?;
        let plain = |text: &str| text.split_whitespace().collect::<String>();
        let mut all = Vec::new();
        let mut place = open + 1;
        while place < close {
            if text.at(place) == b"=" && assigns(text, place) {
                let found = whole(text, place + 1).filter(|(begin, _)| *begin == place + 1)?;
                if plain(&text.span(found.0, found.1)) == plain(given) {
                    return Some(found);
                }
                all.push(found);
            }
            let inner = text.partner(place).filter(|other| *other > place);
            place = inner.unwrap_or(place) + 1;
        }
        all.pop().filter(|_| all.is_empty())
    }

    /// True for a `=` that is no part of a comparison.
    fn assigns(text: &Text<'_>, place: usize) -> bool {
        let follows = text.at(place + 1) == b"=" && text.start(place + 1) == text.end(place);
        let compares = place.checked_sub(1).is_some_and(|before| {
            matches!(text.at(before), b"=" | b"!" | b"<" | b">")
                && text.end(before) == text.start(place)
        });
        !follows && !compares
    }

    /// A name alone in parentheses before a name or number can only be a type.
    fn is_named_cast(text: &Text<'_>, open: usize, close: usize) -> bool {
        let named = close == open + 2 && text.is_word(open + 1);
        named && matches!(text.kind(close + 1), Some(Kind::Word | Kind::Number))
    }

    fn behind_postfix(text: &Text<'_>, place: usize) -> usize {
        let mut at = place;
        loop {
            // `a - >b` is no arrow, and `a + +b` is a sum.
            let adjacent = text.start(at + 1) == text.end(at);
            match text.at(at) {
                b"(" | b"[" => match text.partner(at) {
                    Some(close) => at = close + 1,
                    None => return at,
                },
                b"." if text.is_word(at + 1) => at += 2,
                b"-" if adjacent && text.at(at + 1) == b">" => at += 3,
                b"+" | b"-" if adjacent && text.at(at + 1) == text.at(at) => at += 2,
                _ => return at,
            }
        }
    }
}

#[cfg(test)]
mod tests;
