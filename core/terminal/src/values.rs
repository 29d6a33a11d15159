//! Values of options for which a list is known: help and completions offer them.

use crate::quantity;
use clap::builder::{PathBufValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Command, ValueHint};
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

/// A parser of a number for which `fits` holds; a refusal says by `form` which numbers do.
pub fn number(
    fits: fn(f64) -> bool,
    form: &'static str,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text: &str| {
        let number: Option<f64> = text.parse().ok();
        let number = number.filter(|number| fits(*number));
        number.ok_or_else(|| form.to_owned())
    }
}

/// A parser of a size in bytes for which `fits` holds; a refusal says by `form` which sizes do.
pub fn fitting_size<T: TryFrom<u64> + 'static>(
    fits: fn(u64) -> bool,
    form: &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text: &str| {
        let bytes = Some(quantity::size(text)?).filter(|bytes| fits(*bytes));
        let bytes = bytes.and_then(|bytes| T::try_from(bytes).ok());
        bytes.ok_or_else(|| form.to_owned())
    }
}

/// Parses an owner and a group, by their numbers.
///
/// # Errors
/// A line that says how they are written.
pub fn owner(text: &str) -> Result<(u32, u32), String> {
    let owner = text.split_once(':').and_then(|(uid, gid)| {
        let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
        // The system takes the largest number for "leave it as it is".
        (uid != u32::MAX && gid != u32::MAX).then_some((uid, gid))
    });
    owner.ok_or_else(|| "must be two numbers, as in 1000:1000".to_owned())
}

/// Parses the ends of a range.
///
/// # Errors
/// A line that says how they are written.
pub fn range(text: &str) -> Result<[f64; 2], String> {
    let ends = text.split_once(',').and_then(|(least, most)| {
        let ends: [f64; 2] = [least.trim().parse().ok()?, most.trim().parse().ok()?];
        ends.iter().all(|end| end.is_finite()).then_some(ends)
    });
    ends.ok_or_else(|| "not two numbers with a comma between, such as 0,100".to_owned())
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
/// `streamed` are the ids of those for which it can: `ID` in every command, `COMMAND ID` in one.
#[must_use]
pub fn finished(command: Command, streamed: &'static [&'static str]) -> Command {
    let name = command.get_name().to_owned();
    let checked = command.mut_args(|argument| {
        let argument = match is_streamed(&name, &argument, streamed) {
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

/// True where `-` stands for standard input or output in an argument of this command, false where
/// it cannot; `None` for what is no path.
#[must_use]
pub fn is_streamed(command: &str, argument: &Arg, streamed: &[&str]) -> Option<bool> {
    // Options for paths have this type, and no others.
    let is_path = argument.get_value_parser().type_id() == TypeId::of::<PathBuf>();
    let id = argument.get_id().as_str();
    let is_it = |entry: &&str| match entry.split_once(' ') {
        Some((its, name)) => its == command && name == id,
        None => *entry == id,
    };
    is_path.then(|| streamed.iter().any(is_it))
}

/// Refuses two results on one standard output, of which a reader could tell neither: `--json`, and
/// options with an id of `outputs` whose value is `-`. `command` is for the error.
///
/// # Errors
/// A conflict of arguments, which names both.
pub fn uncrowded(
    matches: ArgMatches,
    outputs: &[&'static str],
    command: impl FnOnce() -> Command,
) -> Result<ArgMatches, clap::Error> {
    match crowded(&matches, outputs) {
        None => Ok(matches),
        Some([one, other]) => {
            let said = format!("standard output takes one of {one} and {other}; name a file");
            Err(command().error(ErrorKind::ArgumentConflict, said))
        }
    }
}

/// Two options of a command line that both want standard output: `--json`, and those with an id of
/// `outputs` whose value is `-`.
fn crowded(matches: &ArgMatches, outputs: &[&'static str]) -> Option<[String; 2]> {
    let mut here = matches;
    while let Some((_, inner)) = here.subcommand() {
        here = inner;
    }
    let is_json = here.try_get_one::<bool>("json").ok().flatten() == Some(&true);
    let is_dash = |id: &&&'static str| {
        let values = here.try_get_raw(id).ok().flatten();
        values.is_some_and(|mut values| values.any(|value| value == OsStr::new("-")))
    };
    let dashes = outputs.iter().filter(is_dash);
    let dashes = dashes.map(|id| format!("--{} -", id.replace('_', "-")));
    let mut all = is_json
        .then(|| "--json".to_owned())
        .into_iter()
        .chain(dashes);
    Some([all.next()?, all.next()?])
}

fn no_stream() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path == Path::new("-") {
        false => Ok(path),
        true => Err(NO_STREAM),
    })
}

const NO_STREAM: &str = "it is used by its name or for longer than one pass, which standard input \
                         and output do not allow; name a file (./- for one with this name)";

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ArgAction;

    #[test]
    fn standard_output_is_for_one() {
        let flag = Arg::new("json").long("json").action(ArgAction::SetTrue);
        let option = |id: &'static str| {
            Arg::new(id)
                .long(id)
                .value_parser(PathBufValueParser::new())
        };
        let draw = Command::new("draw").args([flag, option("svg"), option("tsv")]);
        let program = Command::new("program").subcommand(draw);
        for (line, crowd) in [
            (
                "program draw --svg - --tsv a --json",
                Some(["--json", "--svg -"]),
            ),
            ("program draw --tsv - --svg -", Some(["--svg -", "--tsv -"])),
            ("program draw --svg a --tsv ./- --json", None),
            ("program draw --svg -", None),
            ("program draw", None),
        ] {
            let matches = program.clone().try_get_matches_from(line.split(' '));
            let found = crowded(&matches.expect("parsed"), &["svg", "tsv", "missing"]);
            let crowd = crowd.map(|both| both.map(str::to_owned));
            assert_eq!(found, crowd, "{line}");
        }
    }

    #[test]
    fn a_size_fits_or_is_refused_by_its_form() {
        let parse = fitting_size::<u32>(|bytes| bytes % 4096 == 0, "must be a multiple of 4KiB");
        assert_eq!(parse("8KiB"), Ok(8192));
        for odd in ["4097", "8GiB"] {
            assert_eq!(
                parse(odd).unwrap_err(),
                "must be a multiple of 4KiB",
                "{odd}"
            );
        }
        assert!(parse("1e").unwrap_err().contains("write it as"));
    }

    #[test]
    fn pairs_are_taken_whole_or_refused() {
        assert_eq!(owner("1000:0"), Ok((1000, 0)));
        for odd in [
            "1000",
            "1000:",
            ":0",
            "a:b",
            "4294967295:0",
            "0:4294967295",
            " 1:2",
        ] {
            assert!(owner(odd).unwrap_err().contains("1000:1000"), "{odd}");
        }
        assert_eq!(range("0.333, 1"), Ok([0.333, 1.0]));
        for odd in ["1", "0,", "0,inf", "0,1,2"] {
            assert!(range(odd).unwrap_err().contains("0,100"), "{odd}");
        }
    }

    #[test]
    fn an_entry_is_of_all_commands_or_of_one() {
        let path = Arg::new("image").value_parser(PathBufValueParser::new());
        let is_in = |command: &str, list: &[&str]| is_streamed(command, &path, list);
        assert_eq!(is_in("info", &["image"]), Some(true));
        assert_eq!(is_in("info", &["info image"]), Some(true));
        assert_eq!(is_in("mount", &["info image"]), Some(false));
        assert_eq!(is_streamed("info", &Arg::new("image"), &["image"]), None);
    }
}
