//! Values of options for which a list is known: help and completions offer them.

use clap::builder::{PathBufValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, Command, ValueHint};
use std::any::TypeId;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A parser that takes one of `names`, each of which parses.
pub fn one_of<T>(names: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: Into<Box<dyn std::error::Error + Send + Sync>>> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(names).try_map(|text| text.parse::<T>())
}

/// A parser that takes one of some words: each with its line in the help, and the value that it
/// stands for.
pub fn named<T: Clone + Send + Sync + 'static>(
    words: impl IntoIterator<Item = (&'static str, &'static str, T)>,
) -> impl TypedValueParser<Value = T> {
    let words: Vec<_> = words.into_iter().collect();
    let shown = words
        .iter()
        .map(|(word, help, _)| PossibleValue::new(*word).help(*help));
    PossibleValuesParser::new(shown).try_map(move |text| {
        let found = words.iter().find(|(word, ..)| *word == text);
        found.map(|(.., value)| value.clone()).ok_or("no such word")
    })
}

/// A parser that takes any text, with some that completions offer.
#[derive(Debug, Clone)]
pub struct Offered(pub fn() -> Vec<&'static str>);

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

/// The command with what holds for all of its options: `-` is refused where a file cannot be
/// standard input or output, and shells complete folders for `DIR` and programs for `PROGRAM`.
/// `streamed` are the ids of those that are read or written once, from the start to the end.
#[must_use]
pub fn finished(command: Command, streamed: &'static [&'static str]) -> Command {
    let checked = command.mut_args(|argument| {
        let argument = match is_streamed(&argument, streamed) {
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
    checked.mut_subcommands(|inner| finished(inner, streamed))
}

/// True where `-` stands for standard input or output, false where it cannot; `None` for what is
/// no path.
#[must_use]
pub fn is_streamed(argument: &Arg, streamed: &[&str]) -> Option<bool> {
    // Options for paths have this type, and no others.
    let is_path = argument.get_value_parser().type_id() == TypeId::of::<PathBuf>();
    is_path.then(|| streamed.contains(&argument.get_id().as_str()))
}

fn no_stream() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path == Path::new("-") {
        false => Ok(path),
        true => Err(NO_STREAM),
    })
}

const NO_STREAM: &str = "it is used by its name or read in places, which standard input and output \
                         do not allow; name a file (./- for one with this name)";
