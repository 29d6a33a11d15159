//! The parser of the whole program, and the values that its options offer.

use crate::Cli;
use clap::{Command, CommandFactory};
use sidecore_terminal::values::finished;

/// The parser, with what holds for the options of every command.
pub(crate) fn command() -> Command {
    finished(Cli::command(), &STREAMED)
}

/// Models by name, and `auto`.
pub(crate) fn models() -> Vec<&'static str> {
    use sidecore_phylo::msa::Alphabet;
    use sidecore_phylo::selection::matrices;
    let mut names = vec!["auto"];
    names.extend(matrices(Alphabet::Dna));
    names.extend(matrices(Alphabet::Protein));
    names
}

/// Names of policies, with numbers for their `N`.
pub(crate) fn policies() -> Vec<&'static str> {
    vec!["edtlp", "llp(2)", "hybrid(2)", "mgps", "equi"]
}

/// Options and arguments that are read or written once, from the start to the end.
const STREAMED: [&str; 26] = [
    "bootstraps",
    "config",
    "constraint",
    "fasta",
    "files",
    "first",
    "identity",
    "input",
    "machine",
    "msa",
    "new_passphrase_file",
    "output",
    "partitions",
    "passphrase_file",
    "prefetch",
    "second",
    "sign",
    "site_lnl",
    "source",
    "svg",
    "timeline",
    "tree",
    "tree_out",
    "trees",
    "tsv",
    "verify_key",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::Parser;
    use clap::{Arg, Command};
    use sidecore_terminal::values::is_streamed;

    fn each(command: &Command, see: &mut dyn FnMut(&Command, &Arg)) {
        for argument in command.get_arguments() {
            see(command, argument);
        }
        command.get_subcommands().for_each(|it| each(it, see));
    }

    /// A value name says what is taken: sizes have one parser, and so have times.
    #[test]
    fn options_with_the_same_unit_have_the_same_parser() {
        let mut sizes = 0;
        each(&command(), &mut |command, argument| {
            let names = argument.get_value_names().unwrap_or_default();
            let is_size = names.iter().any(|name| name.as_str() == "SIZE");
            if is_size {
                sizes += 1;
                let name = argument.get_id();
                let mut words = vec!["x".to_owned()];
                words.push(format!("--{}=1e", argument.get_long().expect("long")));
                // With the command's other options: one may require another.
                let parsed = command.clone().try_get_matches_from(words);
                let said = parsed.expect_err("no size").to_string();
                assert!(
                    said.contains("write it as"),
                    "{} {name}: {said}",
                    command.get_name()
                );
            }
        });
        assert!(sizes > 10, "{sizes}");
    }

    #[test]
    fn a_dash_that_cannot_be_a_stream_is_refused_with_the_reason() {
        for words in [
            "block info -",
            "block mount - /mnt",
            "tlb --svg a.svg --tsv b --json",
        ] {
            let words = std::iter::once("sidecore").chain(words.split(' '));
            let matches = command().try_get_matches_from(words.clone());
            let is_refused = words.clone().any(|word| word == "-");
            match matches {
                Ok(_) => assert!(!is_refused),
                Err(error) => assert!(error.to_string().contains("name a file"), "{error}"),
            }
        }
        assert!(Cli::try_parse_from(["sidecore", "phylo", "draw", "-", "-o", "-"]).is_ok());
    }

    /// An id in the list that no option has would hide a mistake.
    #[test]
    fn each_streamed_option_exists() {
        let mut seen = std::collections::BTreeSet::new();
        each(&command(), &mut |_, argument| {
            if is_streamed(argument, &STREAMED) == Some(true) {
                seen.insert(argument.get_id().to_string());
            }
        });
        let missing: Vec<_> = STREAMED.iter().filter(|id| !seen.contains(**id)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
