//! One line for a command line that cannot be parsed, as for any other error, and a pointer to its
//! help.
//!
//! Why here: the parser's own message takes five lines and begins in another way than ours.
//! Must stay true: requested help and version texts are printed as the parser prints them.

use crate::{columns, print};
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use sidecore_bare::text::printable;
use std::io;

/// The parser's message on one line, with the command whose help explains more. `words` are the
/// command line's, without the program's name; `root` is the parser.
fn refusal(error: &clap::Error, root: &Command, words: &[String]) -> String {
    let text = one_line(&error.to_string());
    let hint = forgotten_option(error, root, words) + &forgotten_group(error, root);
    let (command, _) = meant(root, words);
    format!("{text}{hint}; see `{command} --help`")
}

/// Prints the help or the version that a command line asked for, or why it is none; returns the
/// exit status: 0 for the first, 2 for the second.
#[must_use]
pub fn end(error: &clap::Error, root: &Command) -> u8 {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion};
    match error.kind() {
        DisplayHelp | DisplayVersion => {
            show(error, columns(io::stdout()), print::help);
            return 0;
        }
        DisplayHelpOnMissingArgumentOrSubcommand => {
            show(error, columns(io::stderr()), print::error_text);
        }
        _ => {
            // A word that is not UTF-8 is shown as well as it can be.
            let words = std::env::args_os().skip(1);
            let words: Vec<String> = words.map(|word| word.to_string_lossy().into()).collect();
            let said = refusal(error, root, &words);
            print::error_line(&format!("{}: {said}", root.get_name()));
        }
    }
    2
}

/// Prints a help text. The parser folds what it explains, but not its line of usage, which `folded`
/// prints folded where a terminal has too few columns for it.
fn show(error: &clap::Error, columns: Option<usize>, folded: fn(&str)) {
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

/// The command that was meant, and its name.
fn meant<'c>(root: &'c Command, words: &[String]) -> (String, &'c Command) {
    let mut here = root;
    let mut name = here.get_name().to_owned();
    for word in words {
        let Some(next) = here.find_subcommand(word) else {
            break;
        };
        here = next;
        name = format!("{name} {word}");
    }
    (name, here)
}

/// The option that lacks where a file was given without one: the output, as `cp` takes it, or an
/// input that the command requires; else nothing.
fn forgotten_option(error: &clap::Error, root: &Command, words: &[String]) -> String {
    let Some(ContextValue::String(file)) = error.get(ContextKind::InvalidArg) else {
        return String::new();
    };
    if error.kind() != ErrorKind::UnknownArgument || file.starts_with('-') {
        return String::new();
    }
    let file = printable(file);
    let is_output = |word: &String| word.starts_with("-o") || word.starts_with("--output");
    let (_, command) = meant(root, words);
    let mut options = command.get_arguments();
    let has_output = options.any(|it| it.get_id() == "output" && it.get_short() == Some('o'));
    if has_output && !words.iter().any(is_output) {
        return format!("; the output is `-o {file}`");
    }
    let is_given = |name: &str| {
        let mut rests = words
            .iter()
            .filter_map(|word| word.strip_prefix("--")?.strip_prefix(name));
        rests.any(|rest| rest.is_empty() || rest.starts_with('='))
    };
    let inputs = command.get_arguments().filter(|it| it.is_required_set());
    let mut inputs = inputs.filter(|it| {
        let names = it.get_value_names().unwrap_or_default();
        names.iter().any(|name| name.as_str().starts_with("FILE"))
    });
    let lacking = inputs.find_map(|it| it.get_long().filter(|name| !is_given(name)));
    lacking.map_or_else(String::new, |name| {
        format!("; it is given as `--{name} {file}`")
    })
}

/// The commands with the name that was typed, where the group that they are in was left out.
fn forgotten_group(error: &clap::Error, root: &Command) -> String {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else {
        return String::new();
    };
    let groups = root.get_subcommands();
    let groups = groups.filter(|group| group.find_subcommand(name).is_some());
    let found = groups.map(|group| format!("`{} {} {name}`", root.get_name(), group.get_name()));
    match &*found.collect::<Vec<_>>() {
        [] => String::new(),
        found => format!("; it is {}", found.join(" or ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Arg, value_parser};

    fn program() -> Command {
        let output = Arg::new("output").short('o').value_name("IMAGE");
        let format = Arg::new("format").long("format");
        let pack = Command::new("pack")
            .arg(Arg::new("source").required(true))
            .arg(output.required(true))
            .arg(format.value_parser(["zstd", "lz4"]));
        let core = Arg::new("core").long("core");
        let msa = Arg::new("msa").long("msa").value_name("FILE|FOLDER");
        Command::new("sidecore")
            .subcommand(Command::new("search").arg(msa.required(true)))
            .subcommand(Command::new("block").subcommand(pack))
            .subcommand(Command::new("verify").arg(Arg::new("image")))
            .subcommand(Command::new("tlb").arg(core.value_parser(value_parser!(usize))))
    }

    fn said(line: &str) -> String {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let error = program().try_get_matches_from(&words).unwrap_err();
        refusal(&error, &program(), &words[1..])
    }

    #[test]
    fn what_is_missing_wrong_or_unknown_is_one_line() {
        let missing = said("sidecore block pack folder");
        let end = "not provided: -o <IMAGE>; see `sidecore block pack --help`";
        assert!(missing.ends_with(end), "{missing}");
        let wrong = said("sidecore block pack a -o b --format zsdt");
        assert!(wrong.contains("'zsdt'") && wrong.contains("lz4"), "{wrong}");
        let unknown = said("sidecore blok");
        assert!(
            unknown.contains("'blok'; tip:") && !unknown.contains('\n'),
            "{unknown}"
        );
        let number = said("sidecore tlb --core x");
        assert!(number.contains("it is no whole number; see"), "{number}");
        let other = said("sidecore --nonsense");
        assert!(other.ends_with("see `sidecore --help`"), "{other}");
    }

    #[test]
    fn a_bare_file_leads_to_the_option_of_the_input() {
        let hint = "; it is given as `--msa a.fa`";
        assert!(said("sidecore search a.fa").contains(hint));
        for line in [
            "sidecore search --msa b a.fa",
            "sidecore search --msa=b a.fa",
            "sidecore verify b a.fa",
        ] {
            assert!(!said(line).contains("it is given"), "{line}");
        }
    }

    #[test]
    fn a_command_without_its_group_leads_to_it() {
        let hint = "; it is `sidecore block pack`; see";
        assert!(said("sidecore pack a").contains(hint));
        assert!(!said("sidecore pick a").contains("it is"));
    }

    #[test]
    fn a_second_file_leads_to_the_option_of_the_output() {
        let hint = "; the output is `-o b`";
        assert!(said("sidecore block pack a b").contains(hint));
        for line in [
            "sidecore block pack a b -o c",
            "sidecore block pack a --b",
            "sidecore verify a b",
        ] {
            assert!(!said(line).contains("the output is"), "{line}");
        }
    }
}
