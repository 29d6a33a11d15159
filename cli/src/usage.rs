//! One line for a command line that cannot be parsed, as for any other error, and a pointer to its
//! help.
//!
//! Why here: the parser's own message takes five lines and begins in another way than ours.
//! Must stay true: requested help and version texts are printed as the parser prints them.

use crate::Cli;
use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use sidecore_sys::text::printable;
use sidecore_terminal::columns;
use std::process::ExitCode;

/// Prints the parser's message; returns the exit status.
pub(crate) fn end(error: &clap::Error) -> ExitCode {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    match error.kind() {
        DisplayHelp | DisplayVersion => {
            print(error, columns(std::io::stdout()), crate::output::help);
            ExitCode::SUCCESS
        }
        DisplayHelpOnMissingArgumentOrSubcommand => {
            print(error, columns(std::io::stderr()), crate::output::error_text);
            ExitCode::from(2)
        }
        _ => {
            let text = one_line(&error.to_string());
            let hint = forgotten_output(error, std::env::args().skip(1));
            let command = command(std::env::args().skip(1));
            crate::output::note!("sidecore: {text}{hint}; see `{command} --help`");
            ExitCode::from(2)
        }
    }
}

/// Prints a help text. The parser folds what it explains, but not its line of usage, which `folded`
/// prints folded where a terminal has too few columns for it.
fn print(error: &clap::Error, columns: Option<usize>, folded: fn(&str)) {
    let text = error.render().to_string();
    let is_longer = |columns| text.lines().any(|line| line.chars().count() > columns);
    if columns.is_some_and(is_longer) {
        folded(text.trim_end());
    } else {
        // The stream may be closed.
        error.print().ok();
    }
}

/// The parser's message without usage and hints, on one line.
fn one_line(text: &str) -> String {
    let message = text.strip_prefix("error: ").unwrap_or(text);
    let end = ["\n\nUsage:", "\n\nFor more information"]
        .iter()
        .filter_map(|mark| message.find(mark))
        .min()
        .unwrap_or(message.len());
    let message = message[..end].replace("\n\n  tip:", "; tip:");
    let words: Vec<&str> = message.split_whitespace().collect();
    let mut said = printable(&words.join(" ")).into_owned();
    for (its, ours) in PLAIN {
        said = said.replace(its, ours);
    }
    said
}

/// Replacements for the parser's messages about numbers and addresses, in plainer words.
const PLAIN: [(&str, &str); 5] = [
    ("invalid digit found in string", "it is no whole number"),
    ("invalid float literal", "it is no number"),
    ("cannot parse integer from empty string", "it is no number"),
    ("number too large to fit in target type", "it is too large"),
    (
        "invalid socket address syntax",
        "write it as 10.0.0.2:7, with the port",
    ),
];

/// The command that was meant: the longest prefix of words that names one.
fn command(words: impl Iterator<Item = String>) -> String {
    let root = Cli::command();
    meant(&root, words).0
}

/// The command that was meant, and its name.
fn meant(root: &clap::Command, words: impl Iterator<Item = String>) -> (String, &clap::Command) {
    let mut here = root;
    let mut name = here.get_name().to_owned();
    for word in words {
        let Some(next) = here.find_subcommand(&word) else {
            break;
        };
        here = next;
        name = format!("{name} {word}");
    }
    (name, here)
}

/// The option that lacks where a second file was given as `cp` takes it, and the command's output
/// is an option; else nothing.
fn forgotten_output(error: &clap::Error, words: impl Iterator<Item = String>) -> String {
    let Some(ContextValue::String(file)) = error.get(ContextKind::InvalidArg) else {
        return String::new();
    };
    let words: Vec<String> = words.collect();
    let is_output = |word: &String| word.starts_with("-o") || word.starts_with("--output");
    let root = Cli::command();
    let (_, command) = meant(&root, words.iter().cloned());
    let mut options = command.get_arguments();
    let has_output = options.any(|it| it.get_id() == "output" && it.get_short() == Some('o'));
    let is_file = error.kind() == ErrorKind::UnknownArgument && !file.starts_with('-');
    match is_file && has_output && !words.iter().any(is_output) {
        true => format!("; the output is `-o {}`", printable(file)),
        false => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn said(words: &[&str]) -> String {
        one_line(&Cli::try_parse_from(words).err().unwrap().to_string())
    }

    #[test]
    fn what_is_missing_wrong_or_unknown_is_one_line() {
        let missing = said(&["sidecore", "block", "pack", "folder"]);
        assert!(
            missing.ends_with("not provided: --output <IMAGE>"),
            "{missing}"
        );
        let wrong = said(&[
            "sidecore", "block", "pack", "a", "-o", "b", "--format", "zsdt",
        ]);
        assert!(wrong.contains("'zsdt'") && wrong.contains("lz4"), "{wrong}");
        let unknown = said(&["sidecore", "blok"]);
        assert!(
            unknown.contains("'blok'; tip:") && !unknown.contains('\n'),
            "{unknown}"
        );
        let number = said(&["sidecore", "tlb", "--core", "x"]);
        assert!(number.ends_with("it is no whole number"), "{number}");
        let address = said(&["sidecore", "net", "echo", "10.0.0.2"]);
        assert!(address.ends_with("with the port"), "{address}");
    }

    #[test]
    fn a_second_file_leads_to_the_option_of_the_output() {
        let hint = |line: &str| {
            let words = line.split(' ').map(str::to_owned);
            let error = Cli::try_parse_from(words.clone()).err().unwrap();
            forgotten_output(&error, words.skip(1))
        };
        for (line, file) in [
            ("sidecore block pack a b", "b"),
            ("sidecore block unpack a.img raw", "raw"),
            ("sidecore phylo draw a.nwk a.svg", "a.svg"),
        ] {
            assert_eq!(hint(line), format!("; the output is `-o {file}`"), "{line}");
        }
        for line in [
            "sidecore block pack a b -o c",
            "sidecore block pack a --b",
            "sidecore block verify a b",
        ] {
            assert_eq!(hint(line), "", "{line}");
        }
    }

    #[test]
    fn the_help_pointed_at_is_that_of_the_command_meant() {
        let words = |text: &str| command(text.split(' ').map(str::to_owned));
        assert_eq!(words("block pack a -o b"), "sidecore block pack");
        assert_eq!(words("--nonsense"), "sidecore");
    }
}
