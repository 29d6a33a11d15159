//! Values of options for which a list is known: help and completions offer them.

use clap::builder::{PathBufValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command, ValueHint};
use std::any::TypeId;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// One of `names`, each of which parses.
pub(crate) fn one_of<T>(
    names: impl IntoIterator<Item = &'static str>,
) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: Into<Box<dyn std::error::Error + Send + Sync>>> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|text| text.parse::<T>())
}

/// Any text, with some that completions offer.
#[derive(Clone)]
pub(crate) struct Offered(pub(crate) fn() -> Vec<&'static str>);

impl TypedValueParser for Offered {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        _: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        let text = value.to_str().map(str::to_owned);
        text.ok_or_else(|| clap::Error::new(ErrorKind::InvalidUtf8).with_cmd(command))
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.0)().into_iter().map(PossibleValue::new)))
    }
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

/// The command with what holds for all of its options: `-` is refused where a file cannot be
/// standard input or output, and shells complete folders for `DIR` and programs for `PROGRAM`.
pub(crate) fn finished(command: Command) -> Command {
    let checked = command.mut_args(|argument| {
        let argument = match streamed(&argument) {
            Some(false) => argument.value_parser(no_stream()),
            _ => argument,
        };
        let name = argument.get_value_names().and_then(|names| names.first());
        match name.map(|name| name.as_str()) {
            Some("DIR") => argument.value_hint(ValueHint::DirPath),
            Some("PROGRAM") => argument.value_hint(ValueHint::CommandName),
            _ => argument,
        }
    });
    checked.mut_subcommands(finished)
}

/// True where `-` stands for standard input or output, false where it cannot; `None` for what is
/// no path.
fn streamed(argument: &Arg) -> Option<bool> {
    let is_path = argument.get_value_parser().type_id() == TypeId::of::<PathBuf>();
    is_path.then(|| STREAMED.contains(&argument.get_id().as_str()))
}

fn no_stream() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path == Path::new("-") {
        false => Ok(path),
        true => Err(NO_STREAM),
    })
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
const NO_STREAM: &str = "it is used by its name or read in places, which standard input and output \
                         do not allow; name a file (./- for one with this name)";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::{CommandFactory, Parser};

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
        each(&finished(Cli::command()), &mut |command, argument| {
            let names = argument.get_value_names().unwrap_or_default();
            let is_size = names.iter().any(|name| name.as_str() == "SIZE");
            if is_size {
                sizes += 1;
                let name = argument.get_id();
                let mut words = vec!["x".to_owned()];
                words.push(format!("--{}=1e", argument.get_long().expect("long")));
                let alone = Command::new("x").arg(argument.clone().required(false));
                let alone = alone.try_get_matches_from(words).expect_err("no size");
                let said = alone.to_string();
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
            let matches = finished(Cli::command()).try_get_matches_from(words.clone());
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
        each(&Cli::command(), &mut |_, argument| {
            if streamed(argument) == Some(true) {
                seen.insert(argument.get_id().to_string());
            }
        });
        let missing: Vec<_> = STREAMED.iter().filter(|id| !seen.contains(**id)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
