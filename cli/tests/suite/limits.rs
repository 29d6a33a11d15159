//! The pages of docs/limits: each limit has a check that is carried out here, and no other page
//! repeats a limit.
//!
//! Why here: a sentence of the form "X lacks Y" outlives Y's arrival, because nothing fails when Y
//! comes. docs/limits/README.md lists the kinds of checks.

use super::repository::files;
use std::path::Path;
use std::process::Command;

/// A small alignment and its tree, for models that are refused.
const ALIGNMENT: &str = ">a\nATGAAATTTGGG\n>b\nATGAAATTCGGG\n>c\nATGAAGTTTGGA\n>d\nATGAAGTTTGGA\n";
const TREE: &str = "((a:0.1,b:0.1):0.1,c:0.1,d:0.1);\n";

/// Words by which a page denies something.
const DENIALS: [&str; 5] = [
    "not supported:",
    "not there yet",
    "not there:",
    "what it does not do",
    "what it cannot do",
];

/// Files of the repository at `path` or below it, with their texts.
fn below(path: &str) -> impl Iterator<Item = (&'static String, &'static String)> {
    files().iter().filter(move |(name, _)| {
        let rest = name.strip_prefix(path);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// Sources in Rust.
fn sources() -> impl Iterator<Item = &'static String> {
    let all = files().iter().filter(|(name, _)| name.ends_with(".rs"));
    all.map(|(_, text)| text)
}

/// The limits of a page: what is claimed, and the comment with its check. Bullets and rows end
/// where the next one begins.
fn limits(text: &str) -> Vec<(String, Option<String>)> {
    let mut found: Vec<String> = Vec::new();
    let mut is_inside = false;
    for line in text.lines() {
        let is_row = line.starts_with("| ") && !line.starts_with("| case |");
        if line.starts_with("- ") || is_row {
            found.push(line.to_owned());
            is_inside = true;
        } else if is_inside && line.starts_with("  ") {
            let last = found.last_mut().expect("a bullet has begun");
            last.push(' ');
            last.push_str(line.trim());
        } else {
            is_inside = false;
        }
    }
    let check = |limit: &str| {
        let (_, rest) = limit.split_once("<!-- ")?;
        Some(rest.split_once(" -->")?.0.to_owned())
    };
    found
        .into_iter()
        .map(|limit| (check(&limit), limit))
        .map(|(check, limit)| (limit, check))
        .collect()
}

/// True if some file below `path` has `word`, test modules included.
fn has(word: &str, path: &str) -> Result<bool, String> {
    match below(path).next() {
        Some(_) => Ok(below(path).any(|(_, text)| text.contains(word))),
        None => Err(format!("no file below {path}")),
    }
}

/// Carries out one check.
fn holds(check: &str, folder: &Path) -> Result<(), String> {
    let (kind, words) = check.split_once(": ").ok_or("no `KIND: WORDS`")?;
    let sidecore = || Command::new(env!("CARGO_BIN_EXE_sidecore"));
    match kind {
        "refused" => {
            let place = |name: &str| folder.join(name).display().to_string();
            let words = words
                .replace("{fa}", &place("a.fa"))
                .replace("{nwk}", &place("a.nwk"));
            let output = sidecore()
                .args(words.split(' '))
                .output()
                .expect("sidecore runs");
            let said = String::from_utf8_lossy(&output.stderr);
            // A misspelled command is refused, too.
            if said.contains("see `sidecore") {
                return Err(format!("the command itself is wrong: {said}"));
            }
            match output.status.code() {
                Some(2) => Ok(()),
                other => Err(format!("`sidecore {words}` ended with {other:?}")),
            }
        }
        "no option" => {
            let (command, option) = words.rsplit_once(' ').ok_or("no `COMMAND --NAME`")?;
            let help = sidecore().args(command.split(' ')).arg("--help").output();
            let help = help.expect("sidecore runs");
            let text = String::from_utf8_lossy(&help.stdout);
            if !help.status.success() {
                return Err(format!("no command `{command}`"));
            }
            let is_there = text
                .split_whitespace()
                .any(|word| word.trim_matches(',') == option);
            if is_there {
                Err(format!("`{command}` has {option}"))
            } else {
                Ok(())
            }
        }
        "absent" | "present" => {
            let (word, path) = words.rsplit_once(" in ").ok_or("no `WORD in PATH`")?;
            if has(word, path)? == (kind == "present") {
                Ok(())
            } else {
                Err(format!("`{word}` is not {kind} in {path}"))
            }
        }
        "known" => {
            let wanted = format!("\"{words}\"");
            let is_listed =
                |text: &String| text.contains("const KNOWN: ") && text.contains(&wanted);
            match sources().any(is_listed) {
                true => Ok(()),
                false => Err(format!("no list has {wanted}")),
            }
        }
        "test" => {
            let wanted = format!("fn {words}(");
            let is_test = |text: &String| {
                let at = text.find(&wanted);
                at.is_some_and(|at| text[..at].trim_end().ends_with("#[test]"))
            };
            match sources().any(is_test) {
                true => Ok(()),
                false => Err(format!("no test {words}")),
            }
        }
        "script" => {
            let heading = format!("-- {words}.drill --");
            let mut files = below("lab/drill/tests/drill");
            match files.any(|(_, text)| text.lines().any(|line| line == heading)) {
                true => Ok(()),
                false => Err(format!("no script {words}")),
            }
        }
        other => Err(format!("no check is called `{other}`")),
    }
}

#[test]
fn every_limit_still_holds() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.fa"), ALIGNMENT).unwrap();
    std::fs::write(folder.path().join("a.nwk"), TREE).unwrap();
    let mut checked = 0;
    let mut wrong = Vec::new();
    for (page, text) in below("docs/limits").filter(|(name, _)| !name.ends_with("README.md")) {
        for (limit, check) in limits(text) {
            checked += 1;
            let result = match &check {
                Some(check) => holds(check, folder.path()),
                None => Err("no check".to_owned()),
            };
            if let Err(reason) = result {
                wrong.push(format!("{page}: {limit}\n    {reason}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked >= 40, "only {checked} limits were found");
}

/// A check that cannot fail would show nothing.
#[test]
fn limits_that_no_longer_hold_are_seen() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.fa"), ALIGNMENT).unwrap();
    std::fs::write(folder.path().join("a.nwk"), TREE).unwrap();
    for check in [
        "refused: phylo evaluate --msa {fa} --tree {nwk} --model JC",
        "refused: phylo evaluate --no-such-option",
        "no option: block pack --small",
        "no option: block no-such-command --small",
        "absent: fn main in cli/src",
        "absent: anything in no/such/folder",
        "present: no_word_like_this_in_it in core/bare/src",
        "known: no_such_case",
        "test: limits",
        "script: no-such-script",
        "holds: always",
    ] {
        assert!(holds(check, folder.path()).is_err(), "{check}");
    }
}

#[test]
fn no_other_page_has_limits_of_its_own() {
    let mut found = Vec::new();
    for (name, text) in files().iter().filter(|(name, _)| name.ends_with(".md")) {
        let is_exempt = [
            "docs/limits/",
            "docs/results/",
            "CHANGELOG.md",
            "docs/rfc-requirements.md",
        ];
        if is_exempt.iter().any(|part| name.starts_with(part)) {
            continue;
        }
        let text = text.to_lowercase();
        for (number, line) in text.lines().enumerate() {
            if line.trim() == "## limits" || DENIALS.iter().any(|words| line.contains(words)) {
                found.push(format!("{name}:{}: {line}", number + 1));
            }
        }
    }
    assert!(
        found.is_empty(),
        "these belong to docs/limits:\n{}",
        found.join("\n")
    );
}
