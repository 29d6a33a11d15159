//! `sidecore man` and `sidecore completions`: from the one source of flags and help.
//!
//! Why here: packages install these; what they say cannot differ from `--help`. Examples, files and
//! variables stand in `manual/pages.txt`, and a test parses each example.

use crate::values::finished;
use crate::{Cli, Outcome, output};
use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::path::{Path, PathBuf};

/// Arguments of `man`.
#[derive(clap::Args)]
pub(crate) struct Pages {
    /// Directory that gets a page for each command
    directory: PathBuf,
}

/// Arguments of `completions`.
#[derive(clap::Args)]
pub(crate) struct Completions {
    /// Shell to write it for
    shell: clap_complete::Shell,
}

impl Pages {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let shown = self.directory.display();
        std::fs::create_dir_all(&self.directory).with_context(|| format!("cannot make {shown}"))?;
        let mut root = Cli::command().disable_help_subcommand(true);
        root.build();
        write(&root, "", &self.directory)
            .with_context(|| format!("cannot write the pages in {shown}"))?;
        Ok(Outcome::Done)
    }
}

impl Completions {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let mut text = Vec::new();
        clap_complete::generate(
            self.shell,
            &mut finished(Cli::command()),
            "sidecore",
            &mut text,
        );
        // Its lines must stay whole.
        output::result(String::from_utf8(text)?.trim_end())?;
        Ok(Outcome::Done)
    }
}

/// Writes the page of a command and those of its commands; `words` are the words behind
/// `sidecore`.
fn write(command: &Command, words: &str, directory: &Path) -> std::io::Result<()> {
    for inner in command.get_subcommands().filter(|it| !it.is_hide_set()) {
        let words = format!("{words} {}", inner.get_name());
        write(inner, words.trim(), directory)?;
    }
    let man = Man::new(command.clone()).manual("Sidecore");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    own_sections(command, words).to_writer(&mut page)?;
    std::fs::write(directory.join(man.get_filename()), page)
}

/// The sections that are the same for all pages, but for their contents.
fn own_sections(command: &Command, words: &str) -> Roff {
    let mut roff = Roff::new();
    let help = command.get_after_long_help().or(command.get_after_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
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
    for (what, line) in examples(words) {
        roff.control("TP", []);
        roff.text([roman(format!("{what}:"))]);
        roff.text([bold(line)]);
    }
    for (title, kind) in [("FILES", "FILE"), ("ENVIRONMENT", "ENV")] {
        roff.control("SH", [title]);
        for (name, what) in entries(kind, words) {
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
    roff.text([roman(format!("sidecore {}", env!("CARGO_PKG_VERSION")))]);
    roff
}

/// Names of the pages that a page leads to: the one above and those below.
fn related(command: &Command, words: &str) -> Vec<String> {
    let name = |words: &str| format!("sidecore {words}").trim().replace(' ', "-");
    let above = words.rsplit_once(' ').map_or("", |(above, _)| above);
    let mut names = Vec::new();
    if !words.is_empty() {
        names.push(name(""));
        names.extend((!above.is_empty()).then(|| name(above)));
    }
    let below = command.get_subcommands().filter(|it| !it.is_hide_set());
    names.extend(below.map(|it| name(&format!("{words} {}", it.get_name()))));
    // The first page and the last word on scripts.
    names.extend(words.is_empty().then(|| name("doctor")));
    names.dedup();
    names
}

/// Lines of pages.txt of one kind: what they are for, and their two fields.
fn lines(kind: &str) -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let of_kind = PAGES.lines().filter_map(move |line| {
        let (word, rest) = line.split_once(' ')?;
        (word == kind).then_some(rest)
    });
    of_kind.filter_map(|rest| {
        let mut fields = rest.splitn(3, " | ");
        Some((fields.next()?, fields.next()?, fields.next()?))
    })
}

fn examples(words: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let command = if words.is_empty() { "sidecore" } else { words };
    let all = lines("EXAMPLE").filter(move |(of, ..)| *of == command);
    all.map(|(_, what, line)| (what, line))
}

/// Files or variables of a page.
fn entries(kind: &str, words: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let is_of = move |group: &str| {
        let rest = words.strip_prefix(group);
        group == "*" || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    let all = lines(kind).filter(move |(groups, ..)| groups.split(',').any(is_of));
    all.map(|(_, name, what)| (name, what))
}

const PAGES: &str = include_str!("manual/pages.txt");
const DEFAULT_STATUS: &str = "0 done, 1 ran and found a problem, 2 could not run.";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn each(command: &Command, words: &str, see: &mut dyn FnMut(&Command, &str)) {
        see(command, words);
        for inner in command.get_subcommands().filter(|it| !it.is_hide_set()) {
            each(inner, format!("{words} {}", inner.get_name()).trim(), see);
        }
    }

    #[test]
    fn every_command_has_an_example_that_it_would_take() {
        let mut root = Cli::command().disable_help_subcommand(true);
        root.build();
        let mut known = Vec::new();
        each(&root, "", &mut |_, words| {
            let examples: Vec<_> = examples(words).collect();
            assert!(!examples.is_empty(), "`{words}` has no example");
            for (_, line) in examples {
                // One argument in quotes is all that the lines have.
                let (plain, quoted) = line.split_once(" '").unwrap_or((line, ""));
                let mut arguments: Vec<_> = plain.split(' ').collect();
                arguments.extend((!quoted.is_empty()).then(|| quoted.trim_end_matches('\'')));
                assert!(
                    line.starts_with(format!("sidecore {words}").trim()),
                    "{line}"
                );
                if let Err(error) = Cli::try_parse_from(arguments) {
                    panic!("{line}: {error}");
                }
            }
            known.push(words.to_owned());
        });
        known.push("sidecore".to_owned());
        for (of, ..) in lines("EXAMPLE") {
            assert!(known.iter().any(|it| it == of), "no command `{of}`");
        }
        for kind in ["FILE", "ENV"] {
            for (groups, ..) in lines(kind) {
                for group in groups.split(',') {
                    let is_known = group == "*" || known.iter().any(|it| it == group);
                    assert!(is_known, "no command `{group}`");
                }
            }
        }
    }
}
