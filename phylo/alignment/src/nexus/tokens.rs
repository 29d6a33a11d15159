//! Words, quoted names and comments of a NEXUS file.
//!
//! Source: Maddison and others (1997), "Tokens": a quote begins a word only where a word may begin,
//! two quotes within one stand for one, and brackets within quotes are no comment.

use crate::MsaError;

/// A file's text without its comments, and the place in it.
pub(super) struct Tokens<'a> {
    pub(super) text: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Tokens<'a> {
    pub(super) fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    pub(super) fn skip_blanks(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// Takes this byte, after blanks, if it is the next one.
    pub(super) fn take(&mut self, wanted: u8) -> bool {
        self.skip_blanks();
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    /// The next word, or the single character `;`, `=` or `,`.
    pub(super) fn word(&mut self) -> Option<&'a [u8]> {
        self.skip_blanks();
        let start = self.at;
        if matches!(self.peek()?, b';' | b'=' | b',') {
            self.at += 1;
            return Some(&self.text[start..self.at]);
        }
        while self
            .peek()
            .is_some_and(|b| !b.is_ascii_whitespace() && !matches!(b, b';' | b'='))
        {
            self.at += 1;
        }
        Some(&self.text[start..self.at])
    }

    /// A taxon's name: a word, or in quotes, where two quotes stand for one.
    pub(super) fn label(&mut self) -> Option<Vec<u8>> {
        self.skip_blanks();
        let quote = self.peek()?;
        if !matches!(quote, b'\'' | b'"') {
            return self.word().map(<[u8]>::to_vec);
        }
        self.at += 1;
        let mut label = Vec::new();
        loop {
            let byte = self.peek()?;
            self.at += 1;
            if byte != quote {
                label.push(byte);
            } else if self.peek() == Some(quote) {
                label.push(quote);
                self.at += 1;
            } else {
                // A name with blanks could not be written in Newick or PHYLIP; to NEXUS a blank in
                // quotes and an underscore without them are the same.
                label
                    .iter_mut()
                    .filter(|b| b.is_ascii_whitespace())
                    .for_each(|b| *b = b'_');
                return Some(label);
            }
        }
    }

    /// Letters and digits, as the keys of options are.
    pub(super) fn key(&mut self) -> &'a [u8] {
        self.skip_blanks();
        let start = self.at;
        while self
            .peek()
            .is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    /// A text in double quotes, or a word.
    pub(super) fn quoted(&mut self) -> Option<&'a [u8]> {
        if !self.take(b'"') {
            return self.word().filter(|word| *word != b";");
        }
        let rest = &self.text[self.at..];
        let len = rest.iter().position(|&byte| byte == b'"')?;
        self.at += len + 1;
        Some(&rest[..len])
    }

    /// Passes over the rest of a command and its `;`.
    pub(super) fn skip_command(&mut self) {
        while let Some(byte) = self.peek() {
            if let Some(end) = quoted_end(self.text, self.at) {
                self.at = end;
                continue;
            }
            self.at += 1;
            if byte == b';' {
                break;
            }
        }
    }

    /// The rest of a command without its `;`, which is passed over.
    pub(super) fn command(&mut self) -> &'a [u8] {
        let start = self.at;
        self.skip_command();
        let rest = &self.text[start..self.at];
        rest.strip_suffix(b";").unwrap_or(rest).trim_ascii()
    }

    /// True if nothing but blanks stands before this place in its line.
    pub(super) fn begins_line(&self, at: usize) -> bool {
        let before = self.text[..at].iter().rev();
        before
            .take_while(|&&byte| byte != b'\n')
            .all(u8::is_ascii_whitespace)
    }

    pub(super) fn error(&self, what: &str) -> MsaError {
        let line = 1 + self.text[..self.at.min(self.text.len())]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count();
        MsaError::Format {
            format: "NEXUS",
            line,
            what: what.to_owned(),
        }
    }
}

/// The text of a NEXUS file with comments blanked out, lines kept. They nest.
///
/// # Errors
/// [`MsaError::Format`]: a comment that does not end.
pub fn without_comments(bytes: &[u8]) -> Result<Vec<u8>, MsaError> {
    let mut depth = 0_usize;
    let mut line = 1;
    let mut opened = 1;
    let mut quoted = 0;
    let mut text = Vec::with_capacity(bytes.len());
    for (at, &byte) in bytes.iter().enumerate() {
        // Brackets within quotes are part of a name.
        if depth == 0 && at >= quoted {
            quoted = quoted_end(bytes, at).unwrap_or(quoted);
        }
        match byte {
            _ if at < quoted => text.push(byte),
            b'[' => {
                if depth == 0 {
                    opened = line;
                }
                depth += 1;
                text.push(b' ');
            }
            b']' if depth > 0 => {
                depth -= 1;
                text.push(b' ');
            }
            b'\n' => {
                line += 1;
                text.push(b'\n');
            }
            // Blanks in place of comments keep lines and columns of later errors right.
            _ => text.push(if depth > 0 { b' ' } else { byte }),
        }
    }
    if depth > 0 {
        let what = "a comment is not closed".to_owned();
        return Err(MsaError::Format {
            format: "NEXUS",
            line: opened,
            what,
        });
    }
    Ok(text)
}

/// The end of the quoted word that begins at a place. None where none does, or it does not end in
/// its line: an apostrophe may stand alone.
pub(crate) fn quoted_end(text: &[u8], at: usize) -> Option<usize> {
    // Inside a word an apostrophe is a part of it.
    let begins = text[at] == b'\''
        && text[..at]
            .last()
            .is_none_or(|before| before.is_ascii_whitespace() || b",=;(:".contains(before));
    if !begins {
        return None;
    }
    let mut end = at + 1;
    loop {
        match text.get(end)? {
            b'\'' if text.get(end + 1) == Some(&b'\'') => end += 2,
            b'\'' => return Some(end + 1),
            b'\n' => return None,
            _ => end += 1,
        }
    }
}
