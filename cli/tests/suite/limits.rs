//! The pages of docs/limits: each limit has a check that is carried out here, and no other page
//! repeats a limit.
//!
//! Why here: a sentence of the form "X lacks Y" outlives Y's arrival, because nothing fails when Y
//! comes. docs/limits/README.md lists the kinds of checks.

use super::english::{blocks, has_word, without_code};
use super::repository::files;
use std::path::Path;
use std::process::Command;

/// A small alignment and its tree, for models that are refused.
const ALIGNMENT: &str = ">a\nATGAAATTTGGG\n>b\nATGAAATTCGGG\n>c\nATGAAGTTTGGA\n>d\nATGAAGTTTGGA\n";
const TREE: &str = "((a:0.1,b:0.1):0.1,c:0.1,d:0.1);\n";

/// Kinds of checks.
const KINDS: [&str; 7] = [
    "refused",
    "no option",
    "absent",
    "present",
    "known",
    "test",
    "script",
];

/// Words by which a page denies something. "X lacks Y" and "X of Y alone" outlive the arrival of
/// what they deny.
const DENIALS: [&str; 26] = [
    "alone",
    "are missing",
    "cannot do",
    "do not support",
    "does not do",
    "does not support",
    "does not work",
    "is missing",
    "lack",
    "lacks",
    "no authentication",
    "no encryption",
    "no login",
    "no password",
    "no support for",
    "not available",
    "not covered",
    "not implemented",
    "not offered",
    "not planned",
    "not supported",
    "not there",
    "not yet",
    "there are no",
    "there is no",
    "unsupported",
];

/// Records, and standards line by line: pages that may deny.
const RECORDS: [&str; 4] = [
    "docs/limits/",
    "docs/results/",
    "CHANGELOG.md",
    "docs/rfc-requirements.md",
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
            let name = format!("lab/drill/tests/drill/{words}.drill");
            match files().contains_key(&name) {
                true => Ok(()),
                false => Err(format!("no file {name}")),
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

/// The check behind a block of a page, if it has one.
fn check_of(block: &str) -> Option<&str> {
    let (_, rest) = block.split_once("<!-- ")?;
    let (check, _) = rest.split_once(" -->")?;
    let (kind, _) = check.split_once(": ")?;
    KINDS.contains(&kind).then_some(check)
}

/// Denials of one page that nothing checks.
fn unchecked_denials(name: &str, text: &str, folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let heads = text.lines().enumerate();
    let heads = heads.filter(|(_, line)| line.starts_with('#'));
    let heads = heads.map(|(at, line)| (at + 1, line.to_owned()));
    for (line, block) in blocks(text).into_iter().chain(heads) {
        let plain = without_code(&block).to_lowercase();
        let Some(words) = DENIALS.iter().find(|words| has_word(&plain, words)) else {
            continue;
        };
        let result = match check_of(&block) {
            Some(check) => holds(check, folder),
            None => Err("no check".to_owned()),
        };
        if let Err(reason) = result {
            found.push(format!("{name}:{line}: `{words}`: {reason}"));
        }
    }
    found
}

/// Pages whose denials need a check.
fn pages() -> impl Iterator<Item = (&'static String, &'static String)> {
    files().iter().filter(|(name, _)| {
        let is_record = RECORDS.iter().any(|part| name.starts_with(part));
        name.ends_with(".md") && !is_record && !name.starts_with("target/")
    })
}

/// A denial stands in docs/limits with its check, or has its check where it stands.
#[test]
fn no_other_page_has_limits_without_a_check() {
    let folder = tempfile::tempdir().unwrap();
    let found = pages().flat_map(|(name, text)| unchecked_denials(name, text, folder.path()));
    let found: Vec<String> = found.collect();
    assert!(
        found.is_empty(),
        "these belong to docs/limits, or need a check:\n{}",
        found.join("\n")
    );
}

/// Sentences that once stood in pages and were false.
#[test]
fn denials_are_seen() {
    let folder = tempfile::tempdir().unwrap();
    for sentence in [
        "Codons of the standard genetic code alone.",
        "| `--nbd` | There is no encryption and no password. |",
        "What it does not do: F-RTO, AccECN.",
        "## What it does not do",
        "Heterotachy is\nnot supported.",
        "IPv6 lacks extension headers.",
        "Tags are missing. <!-- absent: fn main in cli/src -->",
    ] {
        let found = unchecked_denials("page", sentence, folder.path());
        assert_eq!(found.len(), 1, "{sentence}");
    }
    let checked = "Tags are missing. <!-- absent: no_such_word_at_all in core/bare/src -->";
    assert!(unchecked_denials("page", checked, folder.path()).is_empty());
}

/// Names with `*` in a README that no file of its folder has: `page:line: name`.
fn dead_globs(name: &str, text: &str, folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (line, block) in blocks(text) {
        let parts: Vec<&str> = block.split('`').collect();
        for pair in parts[1..].chunks(2) {
            let span = pair[0];
            let Some(prefix) = span.strip_suffix('*') else {
                continue;
            };
            let is_name = |it: char| it.is_ascii_lowercase() || it == '_';
            // Functions and options are named so, too.
            let after = pair.get(1).copied().unwrap_or("");
            let is_file = after.starts_with(" example") || after.starts_with(" test");
            if prefix.is_empty() || !prefix.chars().all(is_name) || !is_file {
                continue;
            }
            let has_file = files().keys().any(|file| {
                let file_name = file.rsplit('/').next().unwrap_or(file);
                file.starts_with(folder) && file_name.starts_with(prefix)
            });
            if !has_file {
                found.push(format!("{name}:{line}: {span}"));
            }
        }
    }
    found
}

/// A README of a crate names the examples and tests that it has.
#[test]
fn examples_that_a_readme_names_are_there() {
    let mut found = Vec::new();
    for (name, text) in pages().filter(|(name, _)| name.ends_with("/README.md")) {
        let folder = name.strip_suffix("README.md").unwrap_or(name);
        found.extend(dead_globs(name, text, folder));
    }
    assert!(found.is_empty(), "no such file:\n{}", found.join("\n"));
    let stale = "The `fuzz_*` examples run mutated images.";
    assert_eq!(dead_globs("page", stale, "image/block/").len(), 1);
}
