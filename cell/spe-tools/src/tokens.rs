//! Pieces of preprocessed C and C++ source.
//!
//! Must stay true: the pieces together are the source, byte for byte; strings, comments and line
//! markers are one piece each.

/// A piece of source.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Token {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) kind: Kind,
}

impl Token {
    /// Its bytes.
    pub(crate) fn text<'a>(&self, source: &'a [u8]) -> &'a [u8] {
        &source[self.start..self.end]
    }
}

/// Kinds of pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A name or keyword.
    Word,
    /// A number.
    Number,
    /// Blanks, comments, lines of the preprocessor: nothing to the compiler.
    Blank,
    /// A string or character.
    Quoted,
    /// One other byte.
    Mark,
}

/// Cuts source into pieces that together are the source.
pub(crate) fn tokens(source: &[u8]) -> Vec<Token> {
    let mut all = Vec::with_capacity(source.len() / 4);
    let mut start = 0;
    let mut line_begins = true;
    while start < source.len() {
        let (kind, end) = token_at(source, start, line_begins);
        let text = &source[start..end];
        line_begins = match kind {
            Kind::Blank => text.ends_with(b"\n") || (line_begins && !text.contains(&b'#')),
            _ => false,
        };
        all.push(Token { start, end, kind });
        start = end;
    }
    all
}

fn token_at(source: &[u8], start: usize, line_begins: bool) -> (Kind, usize) {
    let rest = &source[start..];
    let while_true = |from: usize, test: &dyn Fn(u8) -> bool| {
        let found = source[from..].iter().position(|byte| !test(*byte));
        found.map_or(source.len(), |length| from + length)
    };
    let first = rest[0];
    match first {
        b'\n' => (Kind::Blank, start + 1),
        b'#' if line_begins => {
            let end = while_true(start, &|byte| byte != b'\n');
            (Kind::Blank, (end + 1).min(source.len()))
        }
        _ if first.is_ascii_whitespace() => (
            Kind::Blank,
            while_true(start, &|byte| byte != b'\n' && byte.is_ascii_whitespace()),
        ),
        b'/' if rest.starts_with(b"//") => (Kind::Blank, while_true(start, &|byte| byte != b'\n')),
        b'/' if rest.starts_with(b"/*") => {
            let found = rest[2..].windows(2).position(|pair| pair == b"*/");
            (
                Kind::Blank,
                found.map_or(source.len(), |length| start + length + 4),
            )
        }
        b'"' | b'\'' => (Kind::Quoted, quoted_end(source, start)),
        b'0'..=b'9' => (Kind::Number, number_end(source, start)),
        b'.' if rest.get(1).is_some_and(u8::is_ascii_digit) => {
            (Kind::Number, number_end(source, start))
        }
        _ if is_word(first) => (Kind::Word, while_true(start, &is_word)),
        _ => (Kind::Mark, start + 1),
    }
}

pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
}

fn number_end(source: &[u8], start: usize) -> usize {
    let mut end = start + 1;
    while let Some(&byte) = source.get(end) {
        let exponent = matches!(source[end - 1], b'e' | b'E' | b'p' | b'P');
        let hexadecimal = source[start..end].starts_with(b"0x") && !matches!(source[end - 1], b'p');
        let sign = exponent && !hexadecimal && matches!(byte, b'+' | b'-');
        if !(is_word(byte) || byte == b'.' || sign) {
            break;
        }
        end += 1;
    }
    end
}

fn quoted_end(source: &[u8], start: usize) -> usize {
    let quote = source[start];
    let mut end = start + 1;
    while let Some(&byte) = source.get(end) {
        match byte {
            b'\\' => end += 2,
            // Without its end on this line it is no string; the compiler reports it.
            b'\n' => return end,
            _ if byte == quote => return end + 1,
            _ => end += 1,
        }
    }
    source.len()
}

/// The first piece from `at` on that the compiler sees.
pub(crate) fn next_seen(tokens: &[Token], at: usize) -> usize {
    let seen = tokens[at.min(tokens.len())..]
        .iter()
        .position(|token| token.kind != Kind::Blank);
    seen.map_or(tokens.len(), |length| at + length)
}

/// The last piece before `at` that the compiler sees; the number of pieces where there is none.
pub(crate) fn previous_seen(tokens: &[Token], at: usize) -> usize {
    let seen = tokens[..at]
        .iter()
        .rposition(|token| token.kind != Kind::Blank);
    seen.unwrap_or(tokens.len())
}

/// The pieces that the compiler sees.
pub(crate) fn seen(tokens: &[Token]) -> Vec<&Token> {
    let seen = tokens.iter().filter(|token| token.kind != Kind::Blank);
    seen.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_the_whole_source() {
        let source =
            b"# 1 \"a\"\n  # 2 \"b\"\nx = 0x1e+1; y = 1e-3f; c = '\\''; /* \" */ s = \"//\\\"\";\n";
        let all = tokens(source);
        let joined = all
            .iter()
            .flat_map(|token| token.text(source))
            .copied()
            .collect::<Vec<_>>();
        assert_eq!(joined, source);
        assert!(all.iter().any(|token| token.text(source) == b"1e-3f"));
        assert!(all.iter().any(|token| token.text(source) == b"0x1e"));
    }
}
