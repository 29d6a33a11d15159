//! Source text as statements: comments, separators, macros and repetitions.
//!
//! Must stay true: all that source can make grow is bounded, as the constants below say: depth,
//! statements and bytes. Text is bytes, since comments of the time have any encoding.
//! Source: the manual of the GNU assembler, "Syntax" and "Assembler Directives".

use sidecore_bare::text::printable;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A statement and its place.
#[derive(Debug, Clone)]
pub(super) struct Statement {
    pub(super) text: Rc<[u8]>,
    pub(super) file: Rc<str>,
    pub(super) line: u32,
}

/// A macro that source defines.
#[derive(Debug, Clone)]
pub(super) struct Macro {
    /// Names, defaults, and whether a value must be given.
    parameters: Vec<Parameter>,
    body: Rc<[Statement]>,
}

#[derive(Debug, Clone)]
struct Parameter {
    name: Vec<u8>,
    default: Vec<u8>,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Optional,
    Required,
    /// Takes all arguments that are left.
    Rest,
}

/// Statements that are being read: those of a file, a macro, or a repetition.
#[derive(Debug)]
struct Frame {
    body: Rc<[Statement]>,
    next: usize,
    /// Times that it is read again.
    again: u64,
    /// Of a macro the number of conditions around its call.
    conditions: Option<usize>,
}

/// The statements of source, macros and repetitions written out.
#[derive(Debug, Default)]
pub(super) struct Input {
    frames: Vec<Frame>,
    /// Statements that were given.
    given: usize,
    /// Bytes that macros wrote.
    written: usize,
    /// Macros that were called, for `\@`.
    calls: usize,
    macros: BTreeMap<Vec<u8>, Macro>,
}

/// Frames that lie in one another.
const DEPTH_MAX: usize = 100;
/// Statements of one source, repeated ones each time.
const STATEMENTS_MAX: usize = 1_000_000;
/// Bytes that macros may write, with those that a statement takes by itself.
const WRITTEN_MAX: usize = 16 << 20;
const STATEMENT_BYTES: usize = size_of::<Statement>();
const PARAMETERS_MAX: usize = 100;

impl Input {
    /// Reads a file's text before what is left of the others.
    pub(super) fn open(&mut self, text: &[u8], file: &str) -> Result<(), String> {
        // Text without statements is read, too.
        self.given += text.len() / 64;
        self.push(statements(text, file).into(), 1, None)
    }

    /// The next statement; nothing at the end.
    pub(super) fn next(&mut self) -> Result<Option<Statement>, String> {
        while let Some(frame) = self.frames.last_mut() {
            let Some(statement) = frame.body.get(frame.next) else {
                if frame.again == 0 || frame.body.is_empty() {
                    self.frames.pop();
                } else {
                    frame.again -= 1;
                    frame.next = 0;
                }
                continue;
            };
            frame.next += 1;
            // Long ones count as several: each byte is read.
            self.given += 1 + statement.text.len() / 64;
            if self.given > STATEMENTS_MAX {
                return Err(format!(
                    "more than {STATEMENTS_MAX} statements, repeated ones counted"
                ));
            }
            return Ok(Some(statement.clone()));
        }
        Ok(None)
    }

    fn push(
        &mut self,
        body: Rc<[Statement]>,
        times: u64,
        conditions: Option<usize>,
    ) -> Result<(), String> {
        if self.frames.len() >= DEPTH_MAX {
            return Err(format!(
                "macros, repetitions and files lie more than {DEPTH_MAX} deep in one another"
            ));
        }
        if times > 0 {
            self.frames.push(Frame {
                body,
                next: 0,
                again: times - 1,
                conditions,
            });
        }
        Ok(())
    }

    /// Leaves the innermost macro (`.exitm`); returns the number of conditions around its call.
    pub(super) fn leave(&mut self) -> Result<usize, String> {
        while let Some(frame) = self.frames.pop() {
            if let Some(conditions) = frame.conditions {
                return Ok(conditions);
            }
        }
        Err(".exitm outside of a macro".into())
    }

    /// Drops all that is left (`.end`).
    pub(super) fn end(&mut self) {
        self.frames.clear();
    }

    /// The statements up to the one that closes what `opens` opened.
    fn body(&mut self, opens: &[&[u8]], closes: &[&[u8]]) -> Result<Vec<Statement>, String> {
        let mut depth = 0_usize;
        let mut all = Vec::new();
        while let Some(statement) = self.next()? {
            let (word, _) = split_word(skip_labels(&statement.text));
            if opens.contains(&word) {
                depth += 1;
            } else if closes.contains(&word) {
                if depth == 0 {
                    return Ok(all);
                }
                depth -= 1;
            }
            all.push(statement);
        }
        let name = closes.first().copied().unwrap_or_default();
        Err(format!("there is no {}", String::from_utf8_lossy(name)))
    }

    /// `.rept COUNT`.
    pub(super) fn repeat(&mut self, count: u64) -> Result<(), String> {
        let body = self.body(REPEATS, &[b".endr"])?;
        self.push(body.into(), count, None)
    }

    /// `.irp NAME,VALUES…`; with `letters` of `.irpc`, whose values are bytes.
    pub(super) fn repeat_for(&mut self, rest: &[u8], letters: bool) -> Result<(), String> {
        let (name, values) = cut_name(rest).ok_or(".irp needs a name and values")?;
        let values = trim(values.strip_prefix(b",").unwrap_or(values));
        let values: Vec<&[u8]> = if letters {
            values.chunks(1).collect()
        } else {
            arguments(values)
        };
        let body = self.body(REPEATS, &[b".endr"])?;
        let mut all = Vec::new();
        for value in values {
            let pairs = [(name, value)];
            for statement in &body {
                all.push(self.written(statement, &pairs)?);
            }
        }
        self.push(all.into(), 1, None)
    }

    /// `.macro NAME PARAMETERS…`.
    pub(super) fn define(&mut self, rest: &[u8]) -> Result<(), String> {
        let (name, rest) = cut_name(rest).ok_or(".macro needs a name")?;
        let (name, mut rest) = (name.to_vec(), trim(rest));
        rest = trim(rest.strip_prefix(b",").unwrap_or(rest));
        let mut parameters = Vec::new();
        while let Some((name, after)) = cut_name(rest) {
            let mut parameter = Parameter {
                name: name.to_vec(),
                default: Vec::new(),
                kind: Kind::Optional,
            };
            rest = trim(after);
            if let Some(after) = rest.strip_prefix(b":") {
                let (word, after) = cut_name(after).unwrap_or_default();
                parameter.kind = match word {
                    b"req" => Kind::Required,
                    b"vararg" => Kind::Rest,
                    _ => return Err("a parameter is :req or :vararg".into()),
                };
                rest = trim(after);
            }
            if let Some(after) = rest.strip_prefix(b"=") {
                let (value, after) = argument(trim(after));
                parameter.default = value.to_vec();
                rest = trim(after);
            }
            rest = trim(rest.strip_prefix(b",").unwrap_or(rest));
            parameters.push(parameter);
        }
        if !rest.is_empty() || parameters.len() > PARAMETERS_MAX {
            return Err(format!("a macro has up to {PARAMETERS_MAX} parameters"));
        }
        let body = self.body(&[b".macro"], &[b".endm", b".endmacro"])?;
        let body = body.into();
        self.macros.insert(name, Macro { parameters, body });
        Ok(())
    }

    /// `.purgem NAME`.
    pub(super) fn forget(&mut self, name: &[u8]) {
        self.macros.remove(name);
    }

    /// Reads a macro's body with these arguments; false where there is none of the name.
    /// `conditions` is the number of those around the call.
    pub(super) fn call(
        &mut self,
        name: &[u8],
        rest: &[u8],
        conditions: usize,
    ) -> Result<bool, String> {
        let Some(found) = self.macros.get(name).cloned() else {
            return Ok(false);
        };
        let mut left = trim(rest);
        let mut values = found
            .parameters
            .iter()
            .map(|parameter| (&parameter.name[..], &parameter.default[..]))
            .collect::<Vec<_>>();
        let mut given = vec![false; values.len()];
        let mut next = 0;
        while !left.is_empty() {
            let named = cut_name(left).and_then(|(word, after)| {
                let place = values.iter().position(|pair| pair.0 == word)?;
                Some((place, trim(after.strip_prefix(b"=")?)))
            });
            let (place, after) = named.unwrap_or((next, left));
            let kind = found.parameters.get(place).map(|parameter| parameter.kind);
            let (value, after) = match kind {
                Some(Kind::Rest) => (after, &b""[..]),
                Some(_) => argument(after),
                None => return Err(format!("{} has fewer parameters", shown(name))),
            };
            // An empty one stands for the default.
            if !value.is_empty() {
                values[place].1 = unquoted(value);
                given[place] = true;
            }
            next = place + 1;
            left = trim(after);
            left = trim(left.strip_prefix(b",").unwrap_or(left));
        }
        for (parameter, given) in found.parameters.iter().zip(given) {
            if parameter.kind == Kind::Required && !given {
                let (name, parameter) = (shown(name), shown(&parameter.name));
                return Err(format!("{name} needs a value for {parameter}"));
            }
        }
        let count = self.calls.to_string();
        self.calls += 1;
        values.push((&b"@"[..], count.as_bytes()));
        let mut all = Vec::with_capacity(found.body.len());
        for statement in found.body.iter() {
            all.push(self.written(statement, &values)?);
        }
        self.push(all.into(), 1, Some(conditions))?;
        Ok(true)
    }

    /// A statement with values in the place of `\NAME`.
    fn written(
        &mut self,
        statement: &Statement,
        values: &[(&[u8], &[u8])],
    ) -> Result<Statement, String> {
        let mut text = Vec::with_capacity(statement.text.len());
        let mut rest = &statement.text[..];
        while let Some((first, after)) = rest.split_first() {
            rest = after;
            if *first != b'\\' {
                text.push(*first);
                continue;
            }
            // Ends a name that letters follow.
            if let Some(after) = rest.strip_prefix(b"()") {
                rest = after;
                continue;
            }
            let is_here = |pair: &&(&[u8], &[u8])| {
                let after = rest.strip_prefix(pair.0);
                let goes_on = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
                after.is_some_and(|after| pair.0 == b"@" || !after.first().is_some_and(goes_on))
            };
            match values.iter().find(is_here) {
                Some((name, value)) => {
                    text.extend_from_slice(value);
                    rest = &rest[name.len()..];
                }
                None => text.push(b'\\'),
            }
            if self.written + text.len() > WRITTEN_MAX {
                break;
            }
        }
        self.written += text.len() + STATEMENT_BYTES;
        if self.written > WRITTEN_MAX {
            return Err(format!("macros write more than {WRITTEN_MAX} bytes"));
        }
        Ok(Statement {
            text: text.into(),
            ..statement.clone()
        })
    }
}

/// Directives that `.endr` closes.
const REPEATS: &[&[u8]] = &[b".rept", b".irp", b".irpc"];

/// Cuts text into statements, without comments and blanks around them.
fn statements(text: &[u8], file: &str) -> Vec<Statement> {
    let mut cutter = Cutter {
        all: Vec::new(),
        current: Vec::new(),
        file: file.into(),
        line: 1,
    };
    let mut rest = text;
    while let Some(first) = rest.first() {
        let bytes = match first {
            b'\n' => {
                cutter.finish();
                cutter.line = cutter.line.saturating_add(1);
                1
            }
            b';' => {
                cutter.finish();
                1
            }
            // A comment's sign may stand in them.
            b'"' => cutter.keep(&rest[..string_end(rest)]),
            b'\'' => cutter.keep(&rest[..letter_end(rest)]),
            _ => match comment_end(rest) {
                0 => cutter.letter(*first),
                bytes => cutter.comment(&rest[..bytes]),
            },
        };
        rest = &rest[bytes..];
    }
    cutter.finish();
    cutter.all
}

/// Statements that were cut, and the one that is being read.
struct Cutter {
    all: Vec<Statement>,
    current: Vec<u8>,
    file: Rc<str>,
    line: u32,
}

impl Cutter {
    /// Ends a statement.
    fn finish(&mut self) {
        let text = trim(&self.current);
        if !text.is_empty() {
            self.all.push(Statement {
                text: text.into(),
                file: self.file.clone(),
                line: self.line,
            });
        }
        self.current.clear();
    }

    /// Takes text as it is; returns its bytes.
    fn keep(&mut self, text: &[u8]) -> usize {
        self.current.extend_from_slice(text);
        text.len()
    }

    /// Takes a letter; many blanks are one.
    fn letter(&mut self, letter: u8) -> usize {
        let blank = letter.is_ascii_whitespace();
        if !blank || self.current.last().is_some_and(|last| *last != b' ') {
            self.current.push(if blank { b' ' } else { letter });
        }
        1
    }

    /// Reads over a comment, which may name file and line; returns its bytes.
    fn comment(&mut self, text: &[u8]) -> usize {
        let named = marker(text).filter(|_| trim(&self.current).is_empty());
        if let Some((line, file)) = named {
            // The line's own end counts one.
            self.line = line.saturating_sub(1);
            self.file = String::from_utf8_lossy(file).into();
        }
        let lines = text.iter().filter(|byte| **byte == b'\n').count();
        let lines = u32::try_from(lines).unwrap_or(u32::MAX);
        self.line = self.line.saturating_add(lines);
        self.letter(b' ');
        text.len()
    }
}

/// The bytes of the comment that text begins with, without a line's end; 0 where it is none.
fn comment_end(text: &[u8]) -> usize {
    if text.starts_with(b"/*") {
        let end = text[2..].windows(2).position(|pair| pair == b"*/");
        return end.map_or(text.len(), |end| end + 4);
    }
    if text.starts_with(b"#") || text.starts_with(b"//") {
        let end = text.iter().position(|byte| *byte == b'\n');
        return end.unwrap_or(text.len());
    }
    0
}

/// The line and the file of a preprocessor's `# LINE "FILE"`.
fn marker(comment: &[u8]) -> Option<(u32, &[u8])> {
    let rest = trim(comment.strip_prefix(b"#")?);
    let rest = trim(rest.strip_prefix(b"line").unwrap_or(rest));
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
    let name = trim(&rest[digits..]).strip_prefix(b"\"")?;
    let end = name.iter().position(|byte| *byte == b'"')?;
    Some((number, &name[..end]))
}

/// The bytes of the string that text begins with, its quotes counted.
fn string_end(text: &[u8]) -> usize {
    let mut place = 1;
    while let Some(byte) = text.get(place) {
        match byte {
            b'\\' => place += 1,
            b'"' => return place + 1,
            // One that is not closed ends with its line.
            b'\n' => return place,
            _ => {}
        }
        place += 1;
    }
    text.len()
}

/// The bytes of the letter that text begins with (`'a`, `'a'`, `'\n'`): its signs counted, never a
/// line's end.
pub(super) fn letter_end(text: &[u8]) -> usize {
    let bytes = if text.get(1) == Some(&b'\\') { 3 } else { 2 };
    let Some(letter) = text.get(..bytes).filter(|all| !all.contains(&b'\n')) else {
        return text.len().min(1);
    };
    letter.len() + usize::from(text.get(bytes) == Some(&b'\''))
}

/// Text without the blanks around it.
pub(super) fn trim(text: &[u8]) -> &[u8] {
    text.trim_ascii()
}

/// True for the bytes of names.
pub(super) fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'$')
}

/// The name that text begins with, and the rest.
pub(super) fn cut_name(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let text = trim(text);
    let begins = |byte: &u8| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'.' | b'$');
    text.first().filter(|byte| begins(byte))?;
    let end = text.iter().position(|byte| !is_name(*byte));
    Some(text.split_at(end.unwrap_or(text.len())))
}

/// The first word of a statement, and the rest without blanks around it.
pub(super) fn split_word(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(|byte| !is_name(*byte));
    let (word, rest) = text.split_at(end.unwrap_or(text.len()));
    (word, trim(rest))
}

/// The label that a statement begins with, and the rest.
pub(super) fn cut_label(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| !is_name(*byte))?;
    let (name, rest) = text.split_at(end);
    let rest = trim(rest).strip_prefix(b":")?;
    (!name.is_empty()).then(|| (name, trim(rest)))
}

fn skip_labels(mut text: &[u8]) -> &[u8] {
    while let Some((_, rest)) = cut_label(text) {
        text = rest;
    }
    text
}

/// The argument that text begins with, up to a comma or a blank outside of strings and
/// parentheses, and the rest.
fn argument(text: &[u8]) -> (&[u8], &[u8]) {
    let mut depth = 0_usize;
    let mut place = 0;
    while let Some(byte) = text.get(place) {
        match byte {
            b'"' => {
                place += string_end(&text[place..]);
                continue;
            }
            b'(' => depth += 1,
            b')' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => break,
            _ if depth == 0 && byte.is_ascii_whitespace() && !is_inside(text, place) => break,
            _ => {}
        }
        place += 1;
    }
    (trim(&text[..place]), &text[place..])
}

/// True for a blank within one argument: next to an operator or in front of a comma.
fn is_inside(text: &[u8], place: usize) -> bool {
    let operator = |byte: Option<&u8>| byte.is_some_and(|byte| b"+-*/%|&^<>=!~(".contains(byte));
    let before = text[..place].trim_ascii_end().last();
    let after = text[place..].trim_ascii_start().first();
    operator(before) || operator(after) || after == Some(&b',')
}

/// Arguments between commas, outside of strings and parentheses.
pub(super) fn arguments(text: &[u8]) -> Vec<&[u8]> {
    let mut all = Vec::new();
    let mut rest = trim(text);
    if rest.is_empty() {
        return all;
    }
    loop {
        let mut depth = 0_usize;
        let mut place = 0;
        while let Some(byte) = rest.get(place) {
            match byte {
                b'"' => {
                    place += string_end(&rest[place..]);
                    continue;
                }
                b'\'' => {
                    place += letter_end(&rest[place..]);
                    continue;
                }
                b'(' => depth += 1,
                b')' => depth = depth.saturating_sub(1),
                b',' if depth == 0 => break,
                _ => {}
            }
            place += 1;
        }
        all.push(trim(&rest[..place]));
        match rest.get(place + 1..) {
            Some(after) => rest = after,
            None => return all,
        }
    }
}

/// A macro's argument without the quotes around it.
fn unquoted(text: &[u8]) -> &[u8] {
    let inner = text.strip_prefix(b"\"");
    let inner = inner.and_then(|text| text.strip_suffix(b"\""));
    inner.filter(|text| !text.contains(&b'"')).unwrap_or(text)
}

/// Text for a message.
pub(super) fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let mut short = text.chars().take(60).collect::<String>();
    if short.len() < text.len() {
        short.push('…');
    }
    printable(&short).into_owned()
}
