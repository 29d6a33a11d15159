//! The parser of the whole program, and the values that its options offer.

use crate::Cli;
use clap::{ArgMatches, Command, CommandFactory};
pub(crate) use sidecore_phylo::selection::names as models;
use sidecore_terminal::manual::Pages;
use sidecore_terminal::values::{finished, uncrowded};

/// The parser, with what holds for the options of every command.
pub(crate) fn command() -> Command {
    finished(PAGES.noted(Cli::command()), &STREAMED)
}

/// The words of this process's command line, parsed.
pub(crate) fn parse() -> Result<ArgMatches, clap::Error> {
    uncrowded(command().try_get_matches()?, &WRITTEN, command)
}

/// Texts of help and of the manual's pages beyond the options.
pub(crate) const PAGES: Pages = Pages {
    text: include_str!("manual/pages.txt"),
    version: env!("CARGO_PKG_VERSION"),
};

/// Names of policies, with numbers for their `N`.
pub(crate) fn policies() -> Vec<&'static str> {
    vec!["edtlp", "llp(2)", "hybrid(2)", "mgps", "equi"]
}

/// Options and arguments that are read or written once, from the start to the end, and images of
/// commands that are done with them when they end. What is served, or changed, has a name.
#[rustfmt::skip] // words, of which a line has several
const STREAMED: [&str; 46] = [
    "bootstraps", "config", "constraint", "fasta", "files", "first", "genes", "identity", "input",
    "machine", "msa", "new_passphrase_file", "output", "partitions", "passphrase_file", "pmsf",
    "pmsf_out", "pmsf_tree", "prefetch", "rootstrap", "score", "second", "sign", "site_lnl",
    "site_posteriors", "site_rates", "source", "svg", "table", "timeline", "tree", "tree_out",
    "trees", "tsv", "verify_key", "write", "cat image", "commit image", "export image",
    "extract image", "find image", "info image", "ls image", "unpack image", "verify image",
    "summary file",
];

/// Those of them that are written.
#[rustfmt::skip] // words, of which a line has several
const WRITTEN: [&str; 12] = [
    "fasta", "output", "pmsf_out", "site_lnl", "site_posteriors", "site_rates", "svg", "table",
    "timeline", "tree_out", "tsv", "write",
];

#[cfg(test)]
mod tests {
    use super::*;
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
                match argument.get_long() {
                    Some(long) => words.push(format!("--{long}=1e")),
                    None => {
                        let positionals = command.get_positionals();
                        let before = positionals.take_while(|it| it.get_id() != name);
                        words.extend(before.map(|_| "1".to_owned()));
                        words.push("1e".to_owned());
                    }
                }
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
            "block attach -",
            "block mount - /mnt",
            "block serve - --nbd unix:s",
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
        for words in [
            "phylo draw - -o -",
            "phylo species - --score b",
            "block verify -",
            "block ls - etc",
            "trace summary -",
        ] {
            let words = std::iter::once("sidecore").chain(words.split(' '));
            let matches = command().try_get_matches_from(words);
            assert!(matches.is_ok(), "{:?}", matches.err());
        }
    }

    #[test]
    fn one_result_goes_to_standard_output() {
        for (words, is_taken) in [
            ("net capture -w -", true),
            ("net capture -w - --json", false),
            ("phylo consensus a -o - --json", false),
            (
                "phylo simulate --sites 9 --model JC --taxa 4 -o - --tree-out -",
                false,
            ),
            ("block unpack a -o - --json", false),
            ("block unpack a -o b --json", true),
        ] {
            let all = std::iter::once("sidecore").chain(words.split(' '));
            let matches = command().try_get_matches_from(all).expect("it parses");
            match uncrowded(matches, &WRITTEN, command) {
                Ok(_) => assert!(is_taken, "{words}"),
                Err(error) => {
                    let said = error.to_string();
                    assert!(
                        !is_taken && said.contains("takes one of"),
                        "{words}: {said}"
                    );
                }
            }
        }
    }

    /// An id in the lists that no option has would hide a mistake.
    #[test]
    fn each_streamed_option_exists() {
        let mut missing = [&STREAMED[..], &WRITTEN].concat();
        each(&command(), &mut |command, argument| {
            let name = command.get_name();
            missing.retain(|entry| is_streamed(name, argument, &[*entry]) != Some(true));
        });
        assert!(missing.is_empty(), "{missing:?}");
    }
}
