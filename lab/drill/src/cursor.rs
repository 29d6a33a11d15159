//! A position in a line that is being read.

use super::error::Problem;

/// Unread rest of a line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cursor<'t> {
    rest: &'t str,
}

/// Result of reading an item.
pub(crate) type Read<T> = Result<T, Problem>;

impl<'t> Cursor<'t> {
    /// At the first thing in `text`.
    pub(crate) fn new(text: &'t str) -> Self {
        Self {
            rest: text.trim_start(),
        }
    }

    /// The unread text.
    pub(crate) fn rest(&self) -> &'t str {
        self.rest
    }

    /// True at the end of the line.
    pub(crate) fn at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Skips `what`, if it is next, and the blanks behind it.
    pub(crate) fn eat(&mut self, what: &str) -> bool {
        match self.rest.strip_prefix(what) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    /// The same for a word that no letter follows.
    pub(crate) fn eat_word(&mut self, what: &str) -> bool {
        let follows = self.rest.strip_prefix(what).map(|rest| rest.chars().next());
        match follows {
            Some(Some(next)) if is_of_name(next) => false,
            Some(_) => self.eat(what),
            None => false,
        }
    }

    /// Skips `what`, which must be next.
    pub(crate) fn expect(&mut self, what: &str) -> Read<()> {
        if self.eat(what) {
            return Ok(());
        }
        Err(self.wrong(&format!("`{what}`")))
    }

    /// The line does not have the expected item.
    pub(crate) fn wrong(&self, wanted: &str) -> Problem {
        let found: String = self.rest.chars().take(24).collect();
        Problem::Syntax(if found.is_empty() {
            format!("the line ends where {wanted} should be")
        } else {
            format!("`{found}` where {wanted} should be")
        })
    }

    /// As many characters as `wanted` takes, and the blanks behind them.
    pub(crate) fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'t str {
        let end = self
            .rest
            .find(|next| !wanted(next))
            .unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        taken
    }

    /// A name: letters, digits and `_`.
    pub(crate) fn name(&mut self) -> Option<&'t str> {
        let first = self.rest.chars().next()?;
        if first.is_ascii_digit() || !is_of_name(first) {
            return None;
        }
        Some(self.take_while(is_of_name))
    }

    /// A number, decimal or after `0x`.
    pub(crate) fn number(&mut self) -> Read<i64> {
        let before = *self;
        let negative = self.eat("-");
        let digits = self.take_while(is_of_name);
        let value = match digits.strip_prefix("0x") {
            Some(hexadecimal) => i64::from_str_radix(hexadecimal, 16),
            None => digits.parse(),
        };
        match value {
            Ok(value) => Ok(if negative { -value } else { value }),
            Err(_) => Err(before.wrong("a number")),
        }
    }

    /// A number of another type.
    pub(crate) fn small<T: TryFrom<i64>>(&mut self) -> Read<T> {
        let before = *self;
        let number = self.number()?;
        T::try_from(number).map_err(|_| before.wrong("a number in range"))
    }

    /// A time in seconds, in nanoseconds: digits, and a fraction of up to nine.
    pub(crate) fn seconds(&mut self) -> Read<u64> {
        let before = *self;
        let wrong = || before.wrong("a time in seconds");
        let end = self.rest.find(|next: char| !next.is_ascii_digit());
        let (whole, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        let mut fraction = "";
        self.rest = rest;
        // `1...2` is a time, and then dots.
        if !rest.starts_with("..")
            && let Some(behind) = rest.strip_prefix('.')
        {
            let end = behind.find(|next: char| !next.is_ascii_digit());
            let parts = behind.split_at(end.unwrap_or(behind.len()));
            (fraction, self.rest) = parts;
        }
        if whole.is_empty() && fraction.is_empty() || fraction.len() > 9 {
            return Err(wrong());
        }
        let seconds: u64 = if whole.is_empty() {
            0
        } else {
            whole.parse().map_err(|_| wrong())?
        };
        let nanoseconds: u64 = format!("{fraction:0<9}").parse().map_err(|_| wrong())?;
        self.rest = self.rest.trim_start();
        if seconds > SECONDS_MAX {
            return Err(wrong());
        }
        Ok(seconds * 1_000_000_000 + nanoseconds)
    }

    /// Text between quotes; there are no escapes.
    pub(crate) fn quoted(&mut self) -> Read<&'t str> {
        let inner = self.rest.strip_prefix('"');
        match inner.and_then(|inner| inner.split_once('"')) {
            Some((text, rest)) => {
                self.rest = rest.trim_start();
                Ok(text)
            }
            None => Err(self.wrong("a text in quotes")),
        }
    }
}

fn is_of_name(next: char) -> bool {
    next.is_ascii_alphanumeric() || next == '_'
}

/// The longest that a script may last: a month.
const SECONDS_MAX: u64 = 31 * 86_400;
