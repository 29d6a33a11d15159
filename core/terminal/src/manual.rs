//! Pages of the manual: the help of each command, with examples, files, variables, exit status,
//! related pages and the version.
//!
//! Why here: what is said in a page beyond the help stands in one text, a line each, whose examples
//! a test can parse.

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::io;
use std::path::Path;

/// Text of pages beyond the help. A line of the text is `EXAMPLE command | what it does | command
/// line`, or `FILE` or `ENV` and `commands | name | what it is`. A line `NOTES command` begins the
/// notes behind the options of a command's help, which end with the next such line.
#[derive(Debug, Clone, Copy)]
pub struct Pages {
    /// The lines.
    pub text: &'static str,
    /// The program's version.
    pub version: &'static str,
}

impl Pages {
    /// Writes a page for the program and each of its commands into a directory.
    ///
    /// # Errors
    /// The file system's.
    pub fn write(&self, program: Command, directory: &Path) -> io::Result<()> {
        let mut program = program.disable_help_subcommand(true);
        // Passes options that all commands share down to each of them.
        program.build();
        page(&program, "", self, directory)
    }

    /// The program with the notes of each command in its help, but for those that have some.
    #[must_use]
    pub fn noted(&self, program: Command) -> Command {
        self.noted_below(program, "")
    }

    /// `command`, of these words behind `sidecore`, and the commands below it with their notes.
    fn noted_below(&self, command: Command, words: &str) -> Command {
        let name = if words.is_empty() { "sidecore" } else { words };
        let command = match self.notes().find(|(of, _)| *of == name) {
            Some((_, notes)) if command.get_after_help().is_none() => command.after_help(notes),
            _ => command,
        };
        command.mut_subcommands(|inner| {
            let words = format!("{words} {}", inner.get_name());
            self.noted_below(inner, words.trim())
        })
    }

    /// Commands with their notes.
    pub fn notes(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let blocks = self.text.split("\nNOTES ").skip(1);
        let blocks = blocks.filter_map(|block| block.split_once('\n'));
        blocks.map(|(command, notes)| (command, notes.trim_end()))
    }

    /// Fields of the lines of one kind.
    pub fn lines(&self, kind: &str) -> impl Iterator<Item = [&'static str; 3]> {
        let of_kind = self.text.lines().filter_map(move |line| {
            let (word, rest) = line.split_once(' ')?;
            (word == kind).then_some(rest)
        });
        of_kind.filter_map(|rest| {
            let mut fields = rest.splitn(3, " | ");
            Some([fields.next()?, fields.next()?, fields.next()?])
        })
    }

    /// Examples of a command (the words behind `sidecore`): what each does, and its line.
    pub fn examples(&self, words: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
        let command = if words.is_empty() { "sidecore" } else { words };
        let all = self.lines("EXAMPLE").filter(move |[of, ..]| *of == command);
        all.map(|[_, what, line]| (what, line))
    }

    /// Files or variables of a page: `FILE` or `ENV`.
    fn entries(
        &self,
        kind: &str,
        words: &str,
    ) -> impl Iterator<Item = (&'static str, &'static str)> {
        let is_of = move |group: &str| {
            // By whole words: one command's name may begin another's.
            let rest = words.strip_prefix(group);
            group == "*" || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        let all = self
            .lines(kind)
            .filter(move |[groups, ..]| groups.split(',').any(is_of));
        all.map(|[_, name, what]| (name, what))
    }
}

/// Writes the page of a command and those of its commands; `words` are the words behind
/// `sidecore`.
fn page(command: &Command, words: &str, pages: &Pages, directory: &Path) -> io::Result<()> {
    for inner in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        let words = format!("{words} {}", inner.get_name());
        page(inner, words.trim(), pages, directory)?;
    }
    let man = Man::new(command.clone()).manual("Sidecore");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    own_sections(command, words, pages).to_writer(&mut text)?;
    std::fs::write(directory.join(man.get_filename()), text)
}

/// The sections that are the same for all pages, but for their contents.
fn own_sections(command: &Command, words: &str, pages: &Pages) -> Roff {
    let mut roff = Roff::new();
    let help = command.get_after_long_help().or(command.get_after_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    // Help has the exit status among its notes; a page has a section for it.
    let (notes, status) = match help.split_once("Exit status: ") {
        Some((notes, status)) => (notes, status),
        None => (help.as_str(), DEFAULT_STATUS),
    };
    let (status, more) = status.split_once("\n\n").unwrap_or((status, ""));
    let notes = [notes, more].concat();
    if !notes.trim().is_empty() {
        roff.control("SH", ["NOTES"]);
        for paragraph in notes.trim().split("\n\n") {
            roff.control("PP", []);
            roff.text([roman(paragraph)]);
        }
    }
    roff.control("SH", ["EXAMPLES"]);
    for (what, line) in pages.examples(words) {
        roff.control("TP", []);
        roff.text([roman(format!("{what}:"))]);
        roff.text([bold(line)]);
    }
    for (title, kind) in [("FILES", "FILE"), ("ENVIRONMENT", "ENV")] {
        roff.control("SH", [title]);
        for (name, what) in pages.entries(kind, words) {
            roff.control("TP", []);
            roff.text([bold(name)]);
            roff.text([roman(what)]);
        }
    }
    roff.control("SH", ["EXIT STATUS"]);
    roff.text([roman(status.trim())]);
    roff.control("SH", ["SEE ALSO"]);
    let related: Vec<_> = related(command, words)
        .iter()
        .map(|name| format!("{name}(1)"))
        .collect();
    roff.text([roman(related.join(", "))]);
    roff.control("SH", ["VERSION"]);
    roff.text([roman(format!("sidecore {}", pages.version))]);
    roff
}

/// Names of the pages that a page leads to: the one above and those below.
fn related(command: &Command, words: &str) -> Vec<String> {
    let name = |words: &str| {
        let all = std::iter::once("sidecore").chain(words.split_whitespace());
        all.collect::<Vec<_>>().join("-")
    };
    let above = words.rsplit_once(' ').map_or("", |(above, _)| above);
    let mut names = Vec::new();
    if !words.is_empty() {
        names.push(name(""));
        names.extend((!above.is_empty()).then(|| name(above)));
    }
    let below = command.get_subcommands().filter(|it| !it.is_hide_set());
    names.extend(below.map(|it| name(&format!("{words} {}", it.get_name()))));
    names
}

const DEFAULT_STATUS: &str = "0 done, 1 ran and found a problem, 2 could not run.";
