//! Shell lines in the tour's folder, and on the screen.
//!
//! Must stay true: a line finds the program under its own name, and is what the screen shows. Only
//! names in braces that the tour has a value for are replaced. No line on the screen is wider than
//! asked for, and nothing of a text is lost; every character counts as one column.

use indicatif::ProgressBar;
use sidecore_terminal::print;
use sidecore_terminal::progress::spinner;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The screen of a tour.
pub trait Show {
    /// Prints a line of at most 80 columns. Foreign text in it is not escaped yet.
    ///
    /// # Errors
    /// Those of the write.
    fn line(&mut self, line: &str) -> io::Result<()>;
    /// Called now and then while a command runs.
    fn wait(&mut self);
}

/// The screen of a program: lines on standard output, and a sign of life on standard error where
/// that is a terminal, until it is dropped.
#[derive(Debug)]
pub struct Terminal(ProgressBar);

impl Default for Terminal {
    fn default() -> Self {
        Self(spinner())
    }
}

impl Show for Terminal {
    fn line(&mut self, line: &str) -> io::Result<()> {
        self.0.suspend(|| print::line(line))
    }

    fn wait(&mut self) {
        self.0.tick();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// The surroundings of the tour's commands.
#[derive(Debug, Clone)]
pub(crate) struct Shell {
    folder: PathBuf,
    path: OsString,
    environment: Vec<(&'static str, &'static str)>,
    /// Values of names in braces, as a shell reads them.
    values: BTreeMap<String, String>,
    /// The words of a command that runs another one in a namespace.
    prefix: Vec<String>,
}

impl Shell {
    /// A shell in `folder`, which has links to programs in `bin`.
    pub(crate) fn new(folder: &Path, environment: &[(&'static str, &'static str)]) -> Self {
        // First in the path: the tour shows this program, and no installed one of the same name.
        let own = folder.join("bin");
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        // Tools of administrators are not in every user's path.
        let system = ["/usr/sbin", "/sbin"].map(PathBuf::from);
        let all = std::iter::once(own)
            .chain(std::env::split_paths(&inherited))
            .chain(system);
        // A colon in the folder's name: then the program is found as the user finds it.
        let path = std::env::join_paths(all).unwrap_or(inherited);
        Self {
            folder: folder.to_owned(),
            path,
            environment: environment.to_vec(),
            values: BTreeMap::new(),
            prefix: Vec::new(),
        }
    }

    /// Sets the value of `{name}`.
    pub(crate) fn set(&mut self, name: &str, value: &str) {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:+,=@".contains(c);
        // Quoted only where it must be: the screen shows the line.
        let value = match !value.is_empty() && value.chars().all(is_plain) {
            true => value.to_owned(),
            // A quote ends the quoted text, stands escaped, and begins it again.
            false => format!("'{}'", value.replace('\'', r"'\''")),
        };
        self.values.insert(format!("{{{name}}}"), value);
    }

    /// The line with values for the names in braces.
    pub(crate) fn filled(&self, line: &str) -> String {
        let (mut filled, mut rest) = (String::new(), line);
        // Once from left to right: a value may itself have a name in braces, as a folder's can.
        while let Some(at) = rest.find('{') {
            let (before, from) = rest.split_at(at);
            let mut all = self.values.iter();
            let found = all.find_map(|(name, value)| Some((value, from.strip_prefix(name)?)));
            filled.push_str(before);
            let (text, behind) = found.map_or(from.split_at(1), |(value, rest)| (value, rest));
            filled.push_str(text);
            rest = behind;
        }
        filled + rest
    }

    /// The command of a filled line.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut words = self.prefix.iter().map(OsStr::new);
        let mut command = match words.next() {
            Some(first) => {
                let mut command = Command::new(first);
                command.args(words).arg(SHELL);
                command
            }
            None => Command::new(SHELL),
        };
        command.arg("-c").arg(line).current_dir(&self.folder);
        command.env("PATH", &self.path);
        command.envs(self.environment.iter().copied());
        command
    }

    /// The same shell in the namespaces of a process.
    pub(crate) fn inside(&self, prefix: Vec<String>) -> Self {
        Self {
            prefix,
            ..self.clone()
        }
    }
}

/// The text in lines of `width` columns at most, broken at blanks where it can be.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut rest: Vec<char> = text.trim_end().chars().collect();
    while rest.len() > width {
        // A blank right behind the last column is a place for a break, too.
        let blank = rest[..=width].iter().rposition(|letter| *letter == ' ');
        // A blank among the first ones is an indent, not a place for a break.
        let (end, next) = match blank.filter(|at| *at > width / 3) {
            Some(at) => (at, at + 1),
            None => (width, width),
        };
        lines.push(rest[..end].iter().collect());
        rest.drain(..next);
    }
    lines.push(rest.into_iter().collect());
    lines
}

/// A shell's line in several, which a shell reads as one.
pub(crate) fn command_lines(line: &str, indent: usize) -> Vec<String> {
    // Four columns are for the mark and the backslash.
    let lines = wrapped(line, COLUMNS - indent - 4);
    let last = lines.len() - 1;
    let each = lines.into_iter().enumerate().map(|(at, line)| {
        let (mark, end) = (
            if at == 0 { "$ " } else { "  " },
            if at == last { "" } else { " \\" },
        );
        format!("{:indent$}{mark}{line}{end}", "")
    });
    each.collect()
}

/// Columns of the screen.
pub(crate) const COLUMNS: usize = 80;
const SHELL: &str = "/bin/sh";
