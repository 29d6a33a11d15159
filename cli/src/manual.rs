//! `sidecore man` and `sidecore completions`: from the one source of flags and help.
//!
//! Why here: packages install these; what they say cannot differ from `--help`. Examples, files,
//! variables and notes stand in `manual/pages.txt`, and a test parses each example.

use crate::values::{self, PAGES};
use crate::{Cli, Outcome, output};
use anyhow::{Context, Result};
use clap::CommandFactory;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Pages {
    /// Directory that gets a page for each command
    directory: PathBuf,
}

#[derive(clap::Args)]
pub(crate) struct Completions {
    /// Shell to write it for
    shell: clap_complete::Shell,
}

impl Pages {
    pub(crate) fn run(self) -> Result<Outcome> {
        let shown = self.directory.display();
        std::fs::create_dir_all(&self.directory).with_context(|| format!("cannot make {shown}"))?;
        PAGES
            .write(PAGES.noted(Cli::command()), &self.directory)
            .with_context(|| format!("cannot write the pages in {shown}"))?;
        Ok(Outcome::Done)
    }
}

impl Completions {
    pub(crate) fn run(self) -> Result<Outcome> {
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut values::command(), "sidecore", &mut text);
        // Its lines must stay whole.
        output::result(String::from_utf8(text)?.trim_end())?;
        Ok(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Command;
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
            let examples: Vec<_> = PAGES.examples(words).collect();
            assert!(!examples.is_empty(), "`{words}` has no example");
            for (_, line) in examples {
                // Every second part stands in quotes, and is one argument.
                let arguments = line
                    .split('\'')
                    .enumerate()
                    .flat_map(|(i, part)| match i % 2 {
                        0 => part.split_whitespace().collect(),
                        _ => vec![part],
                    });
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
        for [of, ..] in PAGES.lines("EXAMPLE") {
            assert!(known.iter().any(|it| it == of), "no command `{of}`");
        }
        for (of, _) in PAGES.notes() {
            assert!(known.iter().any(|it| it == of), "no command `{of}`");
        }
        for kind in ["FILE", "ENV"] {
            for [groups, ..] in PAGES.lines(kind) {
                for group in groups.split(',') {
                    let is_known = group == "*" || known.iter().any(|it| it == group);
                    assert!(is_known, "no command `{group}`");
                }
            }
        }
    }
}
